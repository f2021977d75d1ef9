//! What the environment says about the server.

use std::path::PathBuf;

use super::target::{WORDS, Words};
use crate::error::{Error, ErrorKind};

/// Looks a variable up; tests have their own.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A variable of this process, unless it is empty. What is not UTF-8 counts as not there.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Service files are not read: where one would say which server is meant, another must not be taken in silence.
pub(crate) fn refuse_services(variables: Variables<'_>) -> Result<(), Error> {
    match variables("PGSERVICE") {
        None => Ok(()),
        Some(service) => Err(Error::new(
            ErrorKind::Config,
            format!(
                "PGSERVICE is {service:?}, and service files are not read here; name the server in INORDER_DATABASE_URL"
            ),
        )),
    }
}

/// Fills what `words` leave open from the `PG…` variables, and says where passwords are looked for. Nothing that was said is
/// changed, and a host that was named does not get the address of another.
pub(crate) fn fill(words: &mut Words, variables: Variables<'_>) -> Result<(), Error> {
    let named = words.get("host").or(words.get("hostaddr")).is_some();
    for (word, variable) in WORDS.iter().filter(|(_, variable)| !variable.is_empty()) {
        let is_where = matches!(*word, "host" | "hostaddr");
        if words.get(word).is_none()
            && !(named && is_where)
            && let Some(value) = variables(variable)
        {
            words.set(word, &value)?;
        }
    }
    if words.get("passfile").is_none()
        && let Some(file) = home(variables).map(|home| home.join(".pgpass"))
    {
        words.set("passfile", &file.display().to_string())?;
    }
    Ok(())
}

fn home(variables: Variables<'_>) -> Option<PathBuf> {
    variables("HOME").map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Result<Words, Error> {
        let variables = |name: &str| {
            let value = match name {
                "PGHOST" => "from-env",
                "PGHOSTADDR" => "127.0.0.7",
                "PGPORT" => "7",
                "PGUSER" => "eve",
                "PGPASSWORD" => "hunter2",
                "PGSSLMODE" => "verify-full",
                "HOME" => "/home/eve",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let mut words = Words::parse(text)?;
        fill(&mut words, &variables).map(|()| words)
    }

    #[test]
    fn the_environment_fills_what_was_left_open() {
        let words = filled("user=ada").unwrap();
        let said = ["host", "port", "user", "password", "sslmode", "passfile"].map(|word| words.get(word));
        assert_eq!(
            said.map(Option::unwrap_or_default),
            ["from-env", "7", "ada", "hunter2", "verify-full", "/home/eve/.pgpass"]
        );
    }

    #[test]
    fn a_server_that_was_named_does_not_get_the_address_of_another() {
        let words = filled("host=named").unwrap();
        assert_eq!(
            (words.get("host"), words.get("hostaddr"), words.get("port")),
            (Some("named"), None, Some("7"))
        );
        assert_eq!(words.get("sslmode"), Some("verify-full"));
    }
}
