//! The only Rust that knows SQL: one file per table, no rules, no loops.
//!
//! A statement lives in `sql/query/<table>/<verb>.sql` and writes the schema as the literal `inorder.`; [`Schema`] puts
//! the configured one in. `src/pg/<table>.rs`, or a file in a folder of that name, binds it, checks its row count, and decides nothing.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_postgres::{Object, Pool};

use crate::connect::pooling::Pooling;
use crate::error::{Error, ErrorKind};

pub(crate) mod admin;
pub(crate) mod consumers;
pub(crate) mod dead_letters;
pub(crate) mod events;
pub(crate) mod handoffs;
pub(crate) mod instances;
pub(crate) mod ledger;
pub(crate) mod migrations;
pub(crate) mod pages;
pub(crate) mod safe_head;
pub(crate) mod session;
pub(crate) mod statement;

/// The text of a statement, with the schema still written as `inorder.`.
macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/query/", $name, ".sql"))
    };
}
pub(crate) use sql;

/// The schema that holds the log, and the statements written for it.
pub(crate) struct Schema {
    name: String,
    quoted: String,
    rendered: Mutex<HashMap<usize, Arc<str>>>,
    /// Pieces of statements that are broken on purpose.
    broken: &'static [(&'static str, &'static str)],
    pooling: Pooling,
}

impl Schema {
    /// # Errors
    /// [`ErrorKind::Config`] for a name that PostgreSQL would refuse, shorten or reserve.
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        let wrong = if name.is_empty() {
            "is empty"
        } else if name.len() > 63 {
            "is longer than 63 bytes"
        } else if name.contains('\0') {
            "contains U+0000"
        } else if name.starts_with("pg_") {
            "begins with pg_, which PostgreSQL reserves"
        } else if name.contains("$body$") {
            "contains $body$, which would end the quoting of our functions"
        } else {
            let quoted = format!("\"{}\"", name.replace('"', "\"\""));
            let pooling = Pooling::default();
            return Ok(Self {
                name: name.to_owned(),
                quoted,
                rendered: Mutex::default(),
                broken: &[],
                pooling,
            });
        };
        Err(Error::new(ErrorKind::Config, format!("schema name {name:?} {wrong}; choose another")))
    }

    /// The same, for sessions of which this is known.
    pub(crate) fn reached(mut self, pooling: &Pooling) -> Self {
        self.pooling = pooling.clone();
        self
    }

    /// Does each transaction have another session?
    pub(crate) fn is_pooled(&self) -> bool {
        self.pooling.is_pooled()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The name as an identifier, quoted.
    pub(crate) fn quoted(&self) -> &str {
        &self.quoted
    }

    /// The same, with pieces of its statements broken on purpose.
    #[cfg(feature = "cli")]
    pub(crate) fn broken(&self, pieces: &'static [(&'static str, &'static str)]) -> Self {
        let (name, quoted, pooling) = (self.name.clone(), self.quoted.clone(), self.pooling.clone());
        Self { name, quoted, rendered: Mutex::default(), broken: pieces, pooling }
    }

    /// A statement for this schema. Rendered once.
    pub(crate) fn sql(&self, statement: &'static str) -> Arc<str> {
        let mut rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        let render = || {
            let whole = self.render(statement);
            self.broken.iter().fold(whole, |text, (from, to)| text.replace(from, to)).into()
        };
        Arc::clone(rendered.entry(statement.as_ptr().addr()).or_insert_with(render))
    }

    /// Replaces each `inorder.` that begins a word by the quoted schema; inside a string literal, with the quotes
    /// that a literal needs.
    pub(crate) fn render(&self, statement: &str) -> String {
        const LITERAL: &str = "inorder.";
        let in_literal = self.quoted.replace('\'', "''");
        let mut text = String::with_capacity(statement.len() + 64);
        let (mut rest, mut quoted, mut comment, mut word) = (statement, false, false, false);
        while let Some(c) = rest.chars().next() {
            if !word && !comment && rest.starts_with(LITERAL) && !rest.starts_with("inorder.ring'") {
                text.push_str(if quoted { &in_literal } else { &self.quoted });
                text.push('.');
                rest = &rest[LITERAL.len()..];
                continue;
            }
            match c {
                '\n' => comment = false,
                '\'' if !comment => quoted = !quoted,
                '-' if !quoted && rest.starts_with("--") => comment = true,
                _ => {}
            }
            word = c.is_alphanumeric() || matches!(c, '_' | '"' | '.');
            text.push(c);
            rest = &rest[c.len_utf8()..];
        }
        text
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema({:?})", self.name)
    }
}

/// Waits for an answer, but not longer than `limit`: a connection whose other side fell silent hangs for ever otherwise.
/// The statement may go on at the server; `statement_timeout` ends it there.
pub(crate) async fn deadline<T, E>(
    limit: Duration,
    what: impl fmt::Display,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, Error>
where
    E: IntoError,
{
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.into_error(&what)),
        Err(_) => Err(Error::new(
            ErrorKind::Timeout,
            format!(
                "{what}: no answer within {:.1} s; is the server reachable and not overloaded?",
                limit.as_secs_f64()
            ),
        )),
    }
}

/// What was attempted, on which object; put together only when it is asked for.
pub(crate) struct On<T>(pub(crate) &'static str, pub(crate) T);

impl<T: fmt::Display> fmt::Display for On<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.1)
    }
}

/// An error of a layer below, put into words.
pub(crate) trait IntoError {
    fn into_error(self, what: &dyn fmt::Display) -> Error;
}

impl IntoError for tokio_postgres::Error {
    fn into_error(self, what: &dyn fmt::Display) -> Error {
        Error::statement(what, self)
    }
}

impl IntoError for Error {
    fn into_error(self, _: &dyn fmt::Display) -> Error {
        self
    }
}

impl IntoError for deadpool_postgres::PoolError {
    fn into_error(self, what: &dyn fmt::Display) -> Error {
        match self {
            Self::Backend(e) => match crate::connect::undisguised(e) {
                Ok(e) => Error::with_source(e.kind(), what.to_string(), e),
                Err(e) => Error::with_source(ErrorKind::Connection, what.to_string(), e),
            },
            Self::Timeout(_) => Error::with_source(
                ErrorKind::Timeout,
                format!(
                    "{what}: every connection of the pool is in use; raise its size or look for sessions that hang"
                ),
                self,
            ),
            other => Error::with_source(ErrorKind::Connection, what.to_string(), other),
        }
    }
}

/// Is the session gone, or going? Whether a statement that was sent took effect is then unknown.
pub(crate) fn is_connection_lost(error: &tokio_postgres::Error) -> bool {
    error.code().is_none_or(|code| code.code().starts_with("08") || code.code().starts_with("57P"))
}

/// Closes a connection that belongs to a pool, and with it whatever it is still busy with.
pub(crate) fn throw_away(object: Object) {
    drop(Object::take(object));
}

/// Takes a connection from a pool.
pub(crate) async fn checkout(pool: &Pool, what: impl fmt::Display) -> Result<Object, Error> {
    pool.get().await.map_err(|e| e.into_error(&what))
}

/// Asks something over a connection of a pool, and waits no longer than `limit` for the answer. A connection that an error came
/// over is closed: it may still be busy with what was asked.
pub(crate) async fn ask<T>(
    pool: &Pool,
    limit: Duration,
    what: impl fmt::Display,
    question: impl AsyncFnOnce(&Object) -> Result<T, tokio_postgres::Error>,
) -> Result<T, Error> {
    let (answer, _) = ask_and_keep(pool, limit, what, question).await?;
    Ok(answer)
}

/// The same, for who decides by the answer whether the connection may go back to its pool.
pub(crate) async fn ask_and_keep<T>(
    pool: &Pool,
    limit: Duration,
    what: impl fmt::Display,
    question: impl AsyncFnOnce(&Object) -> Result<T, tokio_postgres::Error>,
) -> Result<(T, Object), Error> {
    let client = checkout(pool, &what).await?;
    match deadline(limit, &what, question(&client)).await {
        Ok(answer) => Ok((answer, client)),
        Err(error) => {
            throw_away(client);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(schema: &str, statement: &str) -> String {
        Schema::new(schema).expect("a good name").render(statement)
    }

    #[test]
    fn the_schema_is_put_in_as_a_quoted_identifier() {
        assert_eq!(render("We ird", "SELECT FROM inorder.events"), "SELECT FROM \"We ird\".events");
        assert_eq!(render("a\"b", "inorder.events"), "\"a\"\"b\".events");
        assert_eq!(
            render("it's", "'inorder.events'::regclass, inorder.x"),
            "'\"it''s\".events'::regclass, \"it's\".x"
        );
        assert_eq!(render("s", "-- it's\n'inorder.x'"), "-- it's\n'\"s\".x'");
    }

    #[test]
    fn settings_and_longer_words_are_left_alone() {
        assert_eq!(
            render("s", "current_setting('inorder.ring', true)"),
            "current_setting('inorder.ring', true)"
        );
        assert_eq!(render("s", "notinorder.events"), "notinorder.events");
    }

    #[test]
    fn names_that_would_be_shortened_or_refused_are_refused_first() {
        for name in ["", "pg_x", "a\0b", "a$body$b", &"x".repeat(64)] {
            assert!(Schema::new(name).is_err(), "{name:?}");
        }
        assert!(Schema::new(&"x".repeat(63)).is_ok());
    }
}
