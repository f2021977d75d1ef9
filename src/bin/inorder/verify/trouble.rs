//! Why the proof could not be run, as opposed to what it found.

use std::error::Error as StdError;
use std::fmt;

/// Its text is for the operator.
pub(crate) struct CouldNot {
    text: String,
    sqlstate: Option<String>,
}

pub(crate) type Result<T> = std::result::Result<T, CouldNot>;

impl CouldNot {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { text: what.into(), sqlstate: None }
    }

    /// What the server called it.
    pub(crate) fn sqlstate(&self) -> Option<&str> {
        self.sqlstate.as_deref()
    }

    /// `while` something was being done.
    pub(crate) fn while_doing(self, what: impl fmt::Display) -> Self {
        Self { text: format!("{what}: {}", self.text), ..self }
    }
}

impl fmt::Display for CouldNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for CouldNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<E: StdError + 'static> From<E> for CouldNot {
    fn from(error: E) -> Self {
        let code = chain(&error).find_map(|e| e.downcast_ref::<tokio_postgres::Error>()?.code());
        Self { text: describe(&error), sqlstate: code.map(|code| code.code().to_owned()) }
    }
}

/// The chain of causes in one line; of a database error the server's own words.
fn describe(error: &(dyn StdError + 'static)) -> String {
    let mut words = Vec::new();
    for link in chain(error) {
        match link.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::as_db_error) {
            Some(db) => {
                words.push(format!("{} (SQLSTATE {})", db.message(), db.code().code()));
                break;
            }
            None => words.push(link.to_string()),
        }
    }
    words.join(": ")
}

fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |e: &&'a (dyn StdError + 'static)| (*e).source())
}
