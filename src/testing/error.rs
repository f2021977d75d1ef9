//! What can go wrong around a throwaway server.

use std::error::Error as StdError;
use std::fmt;
use std::io;

/// A throwaway server could not be made, started, stopped or used.
///
/// The message names what was attempted and, where PostgreSQL said something, quotes it. [`fmt::Debug`] prints
/// the same text, so that a test that fails on `?` or `unwrap()` is readable.
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Missing,
    PortTaken,
    Failed,
}

impl Error {
    /// Whether no usable PostgreSQL was found on this machine; the message says what to install.
    pub fn is_missing(&self) -> bool {
        self.kind == Kind::Missing
    }

    pub(super) fn is_port_taken(&self) -> bool {
        self.kind == Kind::PortTaken
    }

    pub(super) fn missing(message: impl Into<String>) -> Error {
        Error { kind: Kind::Missing, message: message.into(), source: None }
    }

    pub(super) fn port_taken(message: impl Into<String>) -> Error {
        Error { kind: Kind::PortTaken, message: message.into(), source: None }
    }

    pub(super) fn failed(message: impl Into<String>) -> Error {
        Error { kind: Kind::Failed, message: message.into(), source: None }
    }

    pub(super) fn io(message: impl Into<String>, source: io::Error) -> Error {
        Error { kind: Kind::Failed, message: message.into(), source: Some(Box::new(source)) }
    }

    /// An error of PostgreSQL or of the connection to it; `attempted` reads as "could not …".
    pub(super) fn postgres(attempted: impl fmt::Display, error: tokio_postgres::Error) -> Error {
        match error.as_db_error() {
            Some(db) => {
                Error::failed(format!("{attempted}: {} (SQLSTATE {})", db.message(), db.code().code()))
            }
            None => {
                Error { kind: Kind::Failed, message: attempted.to_string(), source: Some(Box::new(error)) }
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let mut cause = self.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as &(dyn StdError + 'static))
    }
}
