//! What the ledger holds.

use std::fmt;

use serde::Serialize;
use time::OffsetDateTime;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::ledger::LedgerKey;

/// How a row of the ledger stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LedgerStatus {
    /// To be run, when it is due.
    Pending,
    /// Claimed: somebody runs it, or did until the lease ran out.
    InProgress,
    /// Run, and recorded.
    Done,
    /// Given up.
    Dead,
    /// A word that a newer schema knows.
    Unknown,
}

impl LedgerStatus {
    /// The word that SQL, metrics and messages use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Unknown => "unknown",
        }
    }

    fn from_word(word: &str) -> Self {
        [Self::Pending, Self::InProgress, Self::Done, Self::Dead]
            .into_iter()
            .find(|status| status.as_str() == word)
            .unwrap_or(Self::Unknown)
    }
}

impl fmt::Display for LedgerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Which rows of the ledger to list, in the order of their keys.
///
/// ```
/// use inorder::{LedgerRows, LedgerStatus};
///
/// let waiting = LedgerRows::unfinished().of("mail");
/// let given_up = LedgerRows::any().of("mail").status(LedgerStatus::Dead).limit(1_000);
/// let of_one_order = LedgerRows::any().key("charge order 42");
/// # let _ = (waiting, given_up, of_one_order);
/// ```
#[derive(Clone, Debug)]
pub struct LedgerRows {
    pub(super) key: Option<Uuid>,
    pub(super) handler: Option<String>,
    pub(super) status: Option<&'static str>,
    pub(super) limit: i32,
    pub(super) after: Option<(Uuid, String)>,
}

impl LedgerRows {
    /// However they stand.
    pub fn any() -> Self {
        Self { key: None, handler: None, status: None, limit: 100, after: None }
    }

    /// What is pending or in progress.
    pub fn unfinished() -> Self {
        Self { status: Some("unfinished"), ..Self::any() }
    }

    /// Of one key only: an event, a uuid, a text.
    #[must_use]
    pub fn key(self, key: impl Into<LedgerKey>) -> Self {
        Self { key: Some(key.into().event_id()), ..self }
    }

    /// Of one handler only: a consumer's name, `name@instance`, or what a program of its own claims for.
    #[must_use]
    pub fn of(self, handler: impl Into<String>) -> Self {
        Self { handler: Some(handler.into()), ..self }
    }

    /// In one status only.
    #[must_use]
    pub fn status(self, status: LedgerStatus) -> Self {
        Self { status: Some(status.as_str()), ..self }
    }

    /// At most so many. Default 100.
    #[must_use]
    pub fn limit(self, limit: i32) -> Self {
        Self { limit, ..self }
    }

    /// Those behind this one: the next part of a list.
    #[must_use]
    pub fn after(self, event_id: Uuid, handler: &str) -> Self {
        Self { after: Some((event_id, handler.to_owned())), ..self }
    }
}

/// What the ledger knows of one effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LedgerRow {
    /// The event, or the uuid that stands for another key.
    pub event_id: Uuid,
    /// Whose effect.
    pub handler: String,
    /// How it stands.
    pub status: LedgerStatus,
    /// Failed attempts.
    pub attempts: i32,
    /// Attempts that ended without an answer: a lease that ran out, a connection that was lost.
    pub faults: i32,
    /// When a pending one is due; `None`: at once.
    #[serde(with = "time::serde::rfc3339::option")]
    pub next_attempt_at: Option<OffsetDateTime>,
    /// Until when a claim is valid.
    #[serde(with = "time::serde::rfc3339::option")]
    pub lease_until: Option<OffsetDateTime>,
    /// The fencing number of the last claim; 0 before the first.
    pub token: i64,
    /// The event's id in the log; `None` for a key that is no event, or one that was pruned.
    pub position: Option<i64>,
    /// Its type, while it is in the log.
    pub event_type: Option<String>,
    /// The stream whose events are handled one after the other.
    pub stream: Option<String>,
    /// The process of the last claim; `None` for a claim outside of a dispatcher.
    pub owner: Option<Uuid>,
    /// Where it runs.
    pub owner_host: Option<String>,
    /// Its pid there.
    pub owner_pid: Option<i32>,
    /// It is known to live no more.
    pub owner_gone: Option<bool>,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// When the row was made.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it was last claimed, settled or changed.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

impl LedgerRow {
    pub(super) fn from_row(row: &Row) -> Self {
        Self {
            event_id: row.get("event_id"),
            handler: row.get("handler"),
            status: LedgerStatus::from_word(row.get("status")),
            attempts: row.get("attempts"),
            faults: row.get("faults"),
            next_attempt_at: row.get("next_attempt_at"),
            lease_until: row.get("lease_until"),
            token: row.get("token"),
            position: row.get("position"),
            event_type: row.get("event_type"),
            stream: row.get("stream"),
            owner: row.get("owner"),
            owner_host: row.get("owner_host"),
            owner_pid: row.get("owner_pid"),
            owner_gone: row.get("owner_gone"),
            last_error: row.get("last_error"),
            created_at: row.get("created_at"),
            updated_at: row.get("updated_at"),
        }
    }
}
