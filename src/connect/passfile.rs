//! Passwords in a file, as PostgreSQL's clients keep them: `host:port:database:user:password`, a line each.

use std::fs;
use std::io;
use std::path::Path;

use super::target::Place;
use crate::error::{Error, ErrorKind};

/// The first password in the file that fits.
///
/// # Errors
/// [`ErrorKind::Config`] for a file that cannot be read. One that is not there holds no password.
pub(super) fn find(file: &Path, place: &Place, database: &str, user: &str) -> Result<Option<String>, Error> {
    let unreadable =
        |e| Error::with_source(ErrorKind::Config, format!("the password file {}", file.display()), e);
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(unreadable(e)),
    };
    if readable_by_others(file).map_err(unreadable)? {
        tracing::warn!(file = %file.display(), "the password file is not used: others can read it; chmod 600 it");
        return Ok(None);
    }
    Ok(look_up(&text, place, database, user))
}

#[cfg(unix)]
fn readable_by_others(file: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(file.metadata()?.mode() & 0o077 != 0)
}

#[cfg(not(unix))]
fn readable_by_others(_: &Path) -> io::Result<bool> {
    Ok(false)
}

fn look_up(text: &str, place: &Place, database: &str, user: &str) -> Option<String> {
    // A server's own socket stands there as localhost.
    let host = if place.is_socket() { "localhost".to_owned() } else { place.name() };
    let port = place.port.to_string();
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut fields = fields(line);
        let password = (fields.len() >= 5).then(|| fields.swap_remove(4))?;
        let fits = [host.as_str(), &port, database, user];
        fields.iter().zip(fits).all(|(field, fits)| field == "*" || field == fits).then_some(password)
    })
}

/// Split at colons; a backslash takes the next one as it is.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, fields.last_mut()) {
            (':', _) => fields.push(String::new()),
            ('\\', Some(field)) => field.extend(chars.next()),
            (c, Some(field)) => field.push(c),
            _ => {}
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::Host;

    use super::*;

    const FILE: &str = "# host:port:db:user:password\n\
        db:5432:shop:ada:one\n\
        db:*:*:bob:t\\:wo\\\\\n\
        localhost:5432:*:*:three\n\
        too:few\n";

    fn found(host: &str, port: u16, database: &str, user: &str) -> Option<String> {
        let host = if host.starts_with('/') { Host::Unix(host.into()) } else { Host::Tcp(host.into()) };
        look_up(FILE, &Place { host, address: None, port }, database, user)
    }

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        assert_eq!(found("db", 5432, "shop", "ada").as_deref(), Some("one"));
        assert_eq!(found("db", 7, "x", "bob").as_deref(), Some("t:wo\\"));
        assert_eq!(found("/tmp", 5432, "x", "y").as_deref(), Some("three"));
        assert_eq!(found("db", 5433, "shop", "ada"), None);
    }
}
