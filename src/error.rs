//! The one error of the library, and how a chain of causes is put into words.

use std::error::Error as StdError;
use std::fmt;

use tokio_postgres::error::DbError;

/// What went wrong, in the terms that a caller branches on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting, name or argument outside its range; nothing was tried.
    Config,
    /// Input that the log does not take: a payload, a name, a batch.
    Refused,
    /// No connection, or the connection went away.
    Connection,
    /// No answer within the deadline. A statement may still have run.
    Timeout,
    /// A commit was sent and its answer never came: done or not done, nobody knows.
    Ambiguous,
    /// The server refused a statement.
    Database,
    /// The schema is missing, newer than this library, or altered.
    Migration,
    /// A consumer was used before it was registered, or its row is gone.
    NotRegistered,
    /// An operator's action whose precondition does not hold.
    Precondition,
    /// A row that is held by somebody else.
    Busy,
    /// The log does not satisfy what safe delivery rests on.
    Unsafe,
    /// The dispatcher was stopped.
    Stopped,
}

/// The error of every fallible operation of this crate.
///
/// Refusals that a caller handles in the normal course (a version conflict, an event that is already there, a busy row)
/// are values of their own types and never an `Error`.
pub struct Error(Box<Repr>);

struct Repr {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Repr { kind, message: message.into(), source: None }))
    }

    pub(crate) fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self(Box::new(Repr { kind, message: message.into(), source: Some(source.into()) }))
    }

    /// A statement that failed; `what` says what was attempted. The kind follows from the SQLSTATE.
    pub(crate) fn statement(what: impl fmt::Display, source: tokio_postgres::Error) -> Self {
        let kind = match source.code() {
            None => ErrorKind::Connection,
            Some(code) => kind_of(code.code()),
        };
        Self::with_source(kind, what.to_string(), source)
    }

    /// Names where the setting stands that is wrong.
    pub(crate) fn said_by(mut self, by: &str) -> Self {
        self.0.message = format!("{by}: {}", self.0.message);
        self
    }

    /// What went wrong, to branch on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Would the same call, made again, have a chance? True for lost connections, time-outs, serialization
    /// failures, deadlocks and a server that is short of resources or shutting down.
    pub fn is_retryable(&self) -> bool {
        match self.0.kind {
            ErrorKind::Connection | ErrorKind::Timeout | ErrorKind::Busy => true,
            _ => self.sqlstate().is_some_and(is_infrastructure_state),
        }
    }

    /// Was something sent whose outcome is unknown?
    pub fn is_ambiguous(&self) -> bool {
        self.0.kind == ErrorKind::Ambiguous
    }

    /// The SQLSTATE of the server's answer, if the server answered.
    pub fn sqlstate(&self) -> Option<&str> {
        sqlstate(self)
    }

    /// The whole chain of causes in one line, the server's own words included.
    pub fn report(&self) -> String {
        describe(self)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, describe(self))
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }
}

/// The SQLSTATEs that our own SQL functions raise. Kept in one place, here and in `docs/design.md`.
fn kind_of(code: &str) -> ErrorKind {
    match code {
        "IO001" | "IO002" => ErrorKind::Refused,
        "IO003" => ErrorKind::NotRegistered,
        "IO004" => ErrorKind::Precondition,
        "IO005" | "55P03" => ErrorKind::Busy,
        "IO006" => ErrorKind::Unsafe,
        "57014" => ErrorKind::Timeout,
        _ if code.starts_with("08") || code.starts_with("57P") => ErrorKind::Connection,
        _ => ErrorKind::Database,
    }
}

/// SQLSTATEs that speak of the server or of other transactions, not of the event being handled.
pub(crate) fn is_infrastructure_state(code: &str) -> bool {
    // The last two: a pooler gave us a session in which somebody's statements were left behind, or ours are missing.
    matches!(code, "40001" | "40P01" | "25006" | "55P03" | "25P03" | "25P04" | "26000" | "42P05")
        || ["08", "53", "57P", "58"].iter().any(|class| code.starts_with(class))
}

/// Does any error of the chain speak of the server, the network or other transactions?
pub(crate) fn is_infrastructure(error: &(dyn StdError + 'static)) -> bool {
    chain(error).any(|e| {
        if let Some(e) = e.downcast_ref::<tokio_postgres::Error>() {
            return e.is_closed() || e.code().is_some_and(|c| is_infrastructure_state(c.code()));
        }
        if let Some(e) = e.downcast_ref::<Error>() {
            return matches!(e.kind(), ErrorKind::Connection | ErrorKind::Ambiguous);
        }
        e.is::<deadpool_postgres::PoolError>() || e.is::<std::io::Error>()
    })
}

fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |e: &&'a (dyn StdError + 'static)| (*e).source())
}

/// The SQLSTATE, where the error or one of its causes is the server's answer.
pub(crate) fn sqlstate<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a str> {
    db_error(error).map(|e| e.code().code())
}

/// Does a prepared statement no longer fit the tables?
pub(crate) fn is_stale_statement(error: &(dyn StdError + 'static)) -> bool {
    // The code of the first is that of everything that is not supported, and its words are in the server's language.
    db_error(error)
        .is_some_and(|e| e.routine() == Some("RevalidateCachedQuery") || e.code().code() == "26000")
}

fn db_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a DbError> {
    chain(error).find_map(|e| e.downcast_ref())
}

/// The chain of causes in one line. `Display` of a database error says only "db error": the server's own message,
/// detail, hint and SQLSTATE are put in its place.
pub(crate) fn describe(error: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    for link in chain(error) {
        let words = match link.downcast_ref::<tokio_postgres::Error>() {
            Some(e) if e.as_db_error().is_some() => continue,
            _ => match link.downcast_ref::<DbError>() {
                Some(db) => {
                    let mut words = format!("{} (SQLSTATE {})", db.message(), db.code().code());
                    for (label, more) in [("detail", db.detail()), ("hint", db.hint())] {
                        if let Some(more) = more {
                            words.push_str(&format!("; {label}: {more}"));
                        }
                    }
                    words
                }
                None => link.to_string(),
            },
        };
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&words);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_does_not_repeat_the_source_and_report_tells_it() {
        let inner = Error::new(ErrorKind::Timeout, "no answer within 5 s");
        let outer = Error::with_source(ErrorKind::Connection, "connecting to 127.0.0.1:1", inner);
        assert_eq!(outer.to_string(), "connecting to 127.0.0.1:1");
        assert_eq!(outer.report(), "connecting to 127.0.0.1:1: no answer within 5 s");
        assert!(outer.is_retryable());
    }

    #[test]
    fn sqlstates_that_speak_of_the_server_are_infrastructure() {
        for state in ["40001", "40P01", "08006", "53100", "53300", "57P01", "58030"] {
            assert!(is_infrastructure_state(state), "{state}");
        }
        for state in ["23505", "22012", "57014", "25P02", "42P01"] {
            assert!(!is_infrastructure_state(state), "{state}");
        }
    }
}
