//! How consumers and the log stand.

use std::fmt;

use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use tokio_postgres::Row;
use uuid::Uuid;

/// How a state row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ConsumerStatus {
    /// Runs when there is something to deliver.
    Idle,
    /// The event at which it stands failed; the next attempt is not due yet.
    Waiting,
    /// Failed for good at the event at which it stands, until an operator acts.
    Dead,
    /// An operator disabled it.
    Disabled,
    /// Not seen for days: it no longer holds back prune and does not run by itself.
    Expired,
    /// A word that a newer schema knows.
    Unknown,
}

impl ConsumerStatus {
    /// The word that SQL, metrics and messages use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Waiting => "waiting",
            Self::Dead => "dead",
            Self::Disabled => "disabled",
            Self::Expired => "expired",
            Self::Unknown => "unknown",
        }
    }

    fn from_word(word: &str) -> Self {
        [Self::Idle, Self::Waiting, Self::Dead, Self::Disabled, Self::Expired]
            .into_iter()
            .find(|status| status.as_str() == word)
            .unwrap_or(Self::Unknown)
    }
}

impl fmt::Display for ConsumerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How far one state row is, how it stands and who holds it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Progress {
    /// The consumer's name.
    pub name: String,
    /// Its instance, `""` for a shared consumer.
    pub instance: String,
    /// Its partition, of [`partitions`](Self::partitions).
    pub partition: i32,
    /// `transactional` or `batch`.
    pub kind: String,
    /// The revision of the application that configured it.
    pub revision: i32,
    /// Into how many rows the consumer is split.
    pub partitions: i32,
    /// What it wants; `None` for every type.
    pub event_types: Option<Vec<String>>,
    /// How it stands.
    pub status: ConsumerStatus,
    /// The id of the last event dealt with.
    pub position: i64,
    /// Ids between the position and the head.
    pub lag: i64,
    /// The age of the oldest event that is not dealt with; 0 when there is none.
    pub lag_seconds: f64,
    /// Failed attempts at the event at which it stands.
    pub attempts: i32,
    /// At so many it is dead.
    pub max_attempts: i32,
    /// Failures of that event that were the server's or the network's.
    pub faults: i32,
    /// How many times a dead consumer tried again by itself.
    pub rearms: i32,
    /// When the next attempt is due.
    #[serde(with = "time::serde::rfc3339::option")]
    pub next_attempt_at: Option<OffsetDateTime>,
    /// The event that failed.
    pub failed_event_id: Option<Uuid>,
    /// Its id.
    pub failed_position: Option<i64>,
    /// Its type.
    pub failed_event_type: Option<String>,
    /// What the handler said last.
    pub last_error: Option<String>,
    /// When.
    #[serde(with = "time::serde::rfc3339::option")]
    pub last_error_at: Option<OffsetDateTime>,
    /// The process of the server that holds the row now.
    pub holder_pid: Option<i32>,
    /// Events from this id on, which it had not read, were pruned: it does not run until that is accepted.
    pub missing_from: Option<i64>,
    /// Up to this id.
    pub missing_to: Option<i64>,
    /// Events handled.
    pub processed: i64,
    /// Attempts that failed.
    pub failed: i64,
    /// Events passed over.
    pub skipped: i64,
    /// Dead letters that are open or to be retried.
    pub open_dead_letters: i64,
    /// When a process last had it, give or take an hour.
    #[serde(with = "time::serde::rfc3339")]
    pub seen_at: OffsetDateTime,
}

impl Progress {
    pub(crate) fn from_row(row: &Row) -> Self {
        Self {
            name: row.get("name"),
            instance: row.get("instance"),
            partition: row.get("partition"),
            kind: row.get("kind"),
            revision: row.get("revision"),
            partitions: row.get("partitions"),
            event_types: row.get("event_types"),
            status: ConsumerStatus::from_word(row.get("status")),
            position: row.get("position"),
            lag: row.get("lag"),
            lag_seconds: row.get("lag_seconds"),
            attempts: row.get("attempts"),
            max_attempts: row.get("max_attempts"),
            faults: row.get("faults"),
            rearms: row.get("rearms"),
            next_attempt_at: row.get("next_attempt_at"),
            failed_event_id: row.get("failed_event_id"),
            failed_position: row.get("failed_position"),
            failed_event_type: row.get("failed_event_type"),
            last_error: row.get("last_error"),
            last_error_at: row.get("last_error_at"),
            holder_pid: row.get("holder_pid"),
            missing_from: row.get("missing_from"),
            missing_to: row.get("missing_to"),
            processed: row.get("processed"),
            failed: row.get("failed"),
            skipped: row.get("skipped"),
            open_dead_letters: row.get("open_dead_letters"),
            seen_at: row.get("seen_at"),
        }
    }
}

/// How the log as a whole stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogProgress {
    /// The highest id.
    pub head: i64,
    /// Everything up to here is settled and may be delivered.
    pub safe_head: i64,
    /// The first id above the safe head where somebody may still be writing; `None` when head and safe head are one.
    pub hole: Option<i64>,
    /// How many transactions are writing.
    pub writers: i32,
    /// Every event up to here was pruned.
    pub pruned_to: i64,
    /// Event type to the highest id pruned, for prunes of some types only.
    pub pruned_types: Value,
}

impl LogProgress {
    pub(crate) fn from_row(row: &Row) -> Self {
        Self {
            head: row.get("head"),
            safe_head: row.get("safe_head"),
            hole: row.get("hole"),
            writers: row.get("writers"),
            pruned_to: row.get("pruned_to"),
            pruned_types: row.get("pruned_types"),
        }
    }
}

/// A transaction that is writing, and so may hold a hole open.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Blocker {
    /// The process of the server; `None` for a prepared transaction.
    pub pid: Option<i32>,
    /// The name of the prepared transaction: `COMMIT PREPARED` or `ROLLBACK PREPARED` ends it.
    pub prepared_gid: Option<String>,
    /// The role.
    pub username: Option<String>,
    /// The name under which it shows at the server.
    pub application: Option<String>,
    /// `active`, `idle in transaction`, …; `prepared`; `hidden` for lack of `pg_read_all_stats`.
    pub state: String,
    /// When the transaction began; `None` where that is hidden.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// Its age.
    pub age_seconds: Option<f64>,
    /// The consumer, if it is a pass of ours whose handler appends.
    pub consumer: Option<String>,
    /// Its instance.
    pub instance: Option<String>,
    /// Its partition.
    pub partition: Option<i32>,
    /// The id of the event with which the pass began.
    pub event_position: Option<i64>,
    /// That event.
    pub event_id: Option<Uuid>,
    /// Its type.
    pub event_type: Option<String>,
}

impl fmt::Display for Blocker {
    /// As in `pid 4711 (app "checkout", idle in transaction) for 2.1 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.pid, &self.prepared_gid) {
            (_, Some(gid)) => write!(f, "prepared transaction {gid:?}")?,
            (Some(pid), None) => {
                write!(
                    f,
                    "pid {pid} (app {:?}, {})",
                    self.application.as_deref().unwrap_or_default(),
                    self.state
                )?;
            }
            (None, None) => write!(f, "a transaction that is {}", self.state)?,
        }
        if let Some(consumer) = &self.consumer {
            write!(f, ", a pass of consumer {consumer:?}")?;
        }
        match self.age_seconds {
            Some(age) => write!(f, " for {age:.1} s"),
            None => Ok(()),
        }
    }
}

impl Blocker {
    pub(crate) fn from_row(row: &Row) -> Self {
        Self {
            pid: row.get("pid"),
            prepared_gid: row.get("prepared_gid"),
            username: row.get("username"),
            application: row.get("application"),
            state: row.get("state"),
            since: row.get("since"),
            age_seconds: row.get("age_seconds"),
            consumer: row.get("consumer"),
            instance: row.get("instance"),
            partition: row.get("partition"),
            event_position: row.get("event_position"),
            event_id: row.get("event_id"),
            event_type: row.get("event_type"),
        }
    }
}
