//! What is said about the server in several places, and which of them counts.
//!
//! Layers lie on each other, the one that counts most on top: what a person gave, `INORDER_…` variables, a file, `DATABASE_URL`,
//! and at the bottom the `PG…` variables. The topmost that names a server is where its words are from: a user, a password or a
//! certificate that was meant for one server is not given to another. What is still open then, the `PG…` variables fill, as they
//! do for every client.

use std::collections::BTreeMap;
use std::time::Duration;

use super::environment::{self, Variables};
use super::target::{Target, WORDS, Words};
use crate::error::{Error, ErrorKind};

/// What can be said besides the words about the server, and the variable for it.
pub(crate) const MORE: &[(&str, &str)] = &[
    ("schema", "INORDER_SCHEMA"),
    ("pooler", "INORDER_POOLER"),
    ("pool_size", "INORDER_POOL_SIZE"),
    ("statement_timeout", "INORDER_STATEMENT_TIMEOUT"),
];

/// What one place says, by name; and where each is said, in words.
#[derive(Default)]
pub(crate) struct Layer {
    said: BTreeMap<String, Said>,
    /// It says which server is meant.
    names_a_server: bool,
}

#[derive(Clone)]
pub(crate) struct Said {
    pub(crate) value: String,
    pub(crate) by: String,
}

impl Layer {
    pub(crate) fn say(&mut self, name: &str, value: impl Into<String>, by: impl Into<String>) {
        self.names_a_server |= matches!(name, "host" | "hostaddr");
        self.said.insert(name.to_owned(), Said { value: value.into(), by: by.into() });
    }

    /// All that a URL says.
    ///
    /// # Errors
    /// [`ErrorKind::Config`]: it does not parse.
    pub(crate) fn say_url(&mut self, url: &str, by: &str) -> Result<(), Error> {
        let words = Words::parse(url).map_err(|e| e.said_by(by))?;
        for (word, value) in words.iter() {
            self.say(word, value, by);
        }
        // Also without a host: then it is the one that there is by default.
        self.names_a_server = true;
        Ok(())
    }

    /// What one variable of the environment says, if it is there.
    fn say_variable(&mut self, name: &str, variable: &str, variables: Variables<'_>) {
        if let Some(value) = variables(variable) {
            self.say(name, value, variable);
        }
    }
}

/// What counts, of all that was said.
#[derive(Default)]
pub(crate) struct Gathered(BTreeMap<String, Said>);

impl Gathered {
    /// Puts together what was given, what the environment says, and what stands in a file.
    ///
    /// # Errors
    /// [`ErrorKind::Config`]: something does not parse or does not fit; where it stands is named, its value is not.
    pub(crate) fn gather(given: Layer, file: Layer, variables: Variables<'_>) -> Result<Self, Error> {
        let mut ours = Layer::default();
        if let Some(url) = variables("INORDER_DATABASE_URL") {
            ours.say_url(&url, "INORDER_DATABASE_URL")?;
        }
        ours.say_variable("connect_timeout", "INORDER_CONNECT_TIMEOUT", variables);
        for (name, variable) in MORE {
            ours.say_variable(name, variable, variables);
        }
        let mut theirs = Layer::default();
        if let Some(url) = variables("DATABASE_URL") {
            theirs.say_url(&url, "DATABASE_URL")?;
        }
        let mut gathered = Self::default();
        let mut named = false;
        for layer in [given, ours, file, theirs] {
            for (name, said) in layer.said {
                let is_of_a_server = WORDS.iter().any(|(word, _)| *word == name) && name != "connect_timeout";
                // What names no server speaks of any.
                if !(named && layer.names_a_server && is_of_a_server) {
                    gathered.0.entry(name).or_insert(said);
                }
            }
            named |= layer.names_a_server;
        }
        let mut filled = gathered.words();
        if !named {
            environment::refuse_services(variables)?;
        }
        environment::fill(&mut filled, variables)?;
        for (word, value) in filled.iter() {
            let variable =
                WORDS.iter().find(|(known, _)| *known == word).map_or("", |(_, variable)| variable);
            let by = if variables(variable).is_some() { variable } else { "default" };
            gathered.0.entry(word.to_owned()).or_insert(Said { value: value.to_owned(), by: by.to_owned() });
        }
        gathered.check()?;
        Ok(gathered)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Said> {
        self.0.get(name)
    }

    /// What is said about the server.
    pub(crate) fn words(&self) -> Words {
        let mut words = Words::default();
        for (word, _) in WORDS {
            if let Some(said) = self.0.get(*word) {
                // It is one that is understood.
                let _ = words.set(word, &said.value);
            }
        }
        words
    }

    /// A value that must be of some form.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] names where it stands.
    pub(crate) fn parsed<T>(
        &self,
        name: &str,
        must_be: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(said) = self.0.get(name) else { return Ok(None) };
        parse(&said.value).map(Some).ok_or_else(|| {
            Error::new(ErrorKind::Config, format!("{name} is not what it must be: {must_be}"))
                .said_by(&said.by)
        })
    }

    pub(crate) fn seconds(&self, name: &str) -> Result<Option<Duration>, Error> {
        let parse = |text: &str| {
            let seconds = text.trim().parse().ok().filter(|seconds| *seconds > 0.0)?;
            Duration::try_from_secs_f64(seconds).ok()
        };
        self.parsed(name, "seconds, more than 0", parse)
    }

    /// Does what is said about the server fit together? The error names where the word stands that does not.
    fn check(&self) -> Result<(), Error> {
        let Err(error) = Target::from_words(&self.words()) else { return Ok(()) };
        let first = error.to_string();
        let first = first.split([' ', '=']).next().unwrap_or_default();
        match self.0.get(first) {
            Some(said) => Err(error.said_by(&said.by)),
            None => Err(error),
        }
    }
}
