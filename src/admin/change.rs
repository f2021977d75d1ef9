//! What an action is done to, and what it did.

use std::fmt;

use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use tokio_postgres::Row;

use crate::error::{Error, ErrorKind};

/// The state rows that an action is done to: a consumer's name, or narrower.
///
/// ```
/// use inorder::Target;
///
/// let all_partitions: Target = "search-index".into();
/// let one_of_them = Target::consumer("search-index").partition(3);
/// let on_one_node = Target::consumer("cache").instance("node-1");
/// # assert_eq!(one_of_them.to_string(), "consumer \"search-index\" partition 3");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub(super) consumer: String,
    pub(super) instance: String,
    pub(super) partition: Option<i32>,
}

impl Target {
    /// A shared consumer, with all its partitions.
    pub fn consumer(name: impl Into<String>) -> Self {
        Self { consumer: name.into(), instance: String::new(), partition: None }
    }

    /// One instance of a consumer that runs once per instance.
    #[must_use]
    pub fn instance(self, instance: impl Into<String>) -> Self {
        Self { instance: instance.into(), ..self }
    }

    /// One partition only.
    #[must_use]
    pub fn partition(self, partition: i32) -> Self {
        Self { partition: Some(partition), ..self }
    }

    /// For actions that are never done to some partitions only.
    pub(super) fn whole(&self, doing: &str) -> Result<(), Error> {
        match self.partition {
            None => Ok(()),
            Some(_) => Err(Error::new(
                ErrorKind::Config,
                format!("{doing} {self} is not possible, only the whole consumer; leave the partition out"),
            )),
        }
    }
}

impl From<&str> for Target {
    fn from(name: &str) -> Self {
        Self::consumer(name)
    }
}

impl From<String> for Target {
    fn from(name: String) -> Self {
        Self::consumer(name)
    }
}

impl From<&String> for Target {
    fn from(name: &String) -> Self {
        Self::consumer(name)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "consumer {:?}", self.consumer)?;
        if !self.instance.is_empty() {
            write!(f, " instance {:?}", self.instance)?;
        }
        match self.partition {
            Some(partition) => write!(f, " partition {partition}"),
            None => Ok(()),
        }
    }
}

/// What an action did to one state row or dead letter: its audit row.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// The id of the audit row.
    pub id: i64,
    /// When, by the database's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Who.
    pub by: String,
    /// The name of the action: that of the SQL function.
    pub action: String,
    /// The consumer's name.
    pub consumer: String,
    /// Its instance, `""` for a shared consumer.
    pub instance: String,
    /// Its partition.
    pub partition: i32,
    /// Why.
    pub why: Option<String>,
    /// The row as it was, column by column; `Null` when it is new.
    pub before: Value,
    /// The row as it is now; `Null` when it is gone.
    pub after: Value,
}

impl Change {
    pub(super) fn from_row(row: &Row) -> Self {
        Self {
            id: row.get("id"),
            at: row.get("at"),
            by: row.get("by"),
            action: row.get("action"),
            consumer: row.get("consumer"),
            instance: row.get("instance"),
            partition: row.get("partition"),
            why: row.get("why"),
            before: row.get::<_, Option<Value>>("before").unwrap_or_default(),
            after: row.get::<_, Option<Value>>("after").unwrap_or_default(),
        }
    }
}
