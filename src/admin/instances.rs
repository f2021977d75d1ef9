//! The processes at work.

use std::fmt;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use tokio_postgres::Row;
use tokio_postgres::types::Json;
use uuid::Uuid;

/// How a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum InstanceState {
    /// Looks at the log, at short intervals.
    Awake,
    /// Waits for an append to ring.
    Sleeping,
    /// Nothing was heard of it for two minutes.
    Silent,
    /// Its session at the server has ended.
    Gone,
    /// A word that a newer schema knows.
    Unknown,
}

impl InstanceState {
    /// The word that SQL and messages use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Awake => "awake",
            Self::Sleeping => "sleeping",
            Self::Silent => "silent",
            Self::Gone => "gone",
            Self::Unknown => "unknown",
        }
    }

    fn from_word(word: &str) -> Self {
        [Self::Awake, Self::Sleeping, Self::Silent, Self::Gone]
            .into_iter()
            .find(|state| state.as_str() == word)
            .unwrap_or(Self::Unknown)
    }
}

impl fmt::Display for InstanceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A process that runs a dispatcher, or follows the log.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Instance {
    /// The process, by the name that it gave itself when it started.
    pub id: Uuid,
    /// The machine, as it calls itself.
    pub host: String,
    /// Its pid there.
    pub pid: i32,
    /// The version of this library that it was built with.
    pub version: String,
    /// How it stands.
    pub state: InstanceState,
    /// When it was entered.
    #[serde(with = "time::serde::rfc3339")]
    pub started_at: OffsetDateTime,
    /// When it last said that it lives, which it does every 30 s at least; one that only follows the log, every minute.
    #[serde(with = "time::serde::rfc3339")]
    pub heartbeat_at: OffsetDateTime,
    /// The age of that, in seconds, by the database's clock.
    pub heartbeat_age: f64,
    /// Until when appends ring for it.
    #[serde(with = "time::serde::rfc3339::option")]
    pub sleeping_until: Option<OffsetDateTime>,
    /// The state rows that it was the last to run, by name; at most 1,000.
    pub consumers: Vec<InstanceConsumer>,
}

/// A state row that a process was the last to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InstanceConsumer {
    /// The consumer's name.
    pub name: String,
    /// Its instance, `""` for a shared consumer.
    pub instance: String,
    /// Its partition, of [`partitions`](Self::partitions).
    pub partition: i32,
    /// Into how many rows the consumer is split.
    pub partitions: i32,
    /// Is a pass of it under way, or is it leased?
    pub holds: bool,
}

impl Instance {
    pub(super) fn from_row(row: &Row) -> Self {
        let Json(consumers) = row.get("consumers");
        Self {
            id: row.get("id"),
            host: row.get("host"),
            pid: row.get("pid"),
            version: row.get("version"),
            state: InstanceState::from_word(row.get("state")),
            started_at: row.get("started_at"),
            heartbeat_at: row.get("heartbeat_at"),
            heartbeat_age: row.get("heartbeat_age"),
            sleeping_until: row.get("sleeping_until"),
            consumers,
        }
    }
}
