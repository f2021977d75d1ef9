//! All that is known of a consumer.

use serde::Serialize;
use time::OffsetDateTime;
use tokio_postgres::Row;
use uuid::Uuid;

use super::Progress;
use crate::event::Event;

/// All that is known of one state row.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ConsumerRow {
    /// How far it is and how it stands.
    #[serde(flatten)]
    pub progress: Progress,
    /// The process that ran it last.
    pub owner: Option<Uuid>,
    /// Where that runs; `None` when it has stopped, or was silent for an hour.
    pub owner_host: Option<String>,
    /// Its pid there.
    pub owner_pid: Option<i32>,
    /// It is known to run no more.
    pub owner_gone: Option<bool>,
    /// Until when that has leased it, for handlers outside of any transaction.
    #[serde(with = "time::serde::rfc3339::option")]
    pub lease_until: Option<OffsetDateTime>,
    /// Rows of the ledger that wait to be run, of an effect or queued consumer; counted up to 10,000, and with partition 0 for all
    /// of them.
    pub pending: Option<i64>,
    /// Rows of the ledger that are claimed, counted likewise.
    pub in_progress: Option<i64>,
    /// Events up to this id that were pruned unread were accepted as gone.
    pub accepted_to: i64,
    /// When it was registered for the first time.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it last moved or failed.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
    /// The event at which it failed; `None` when there is none, it was pruned, events of rows before this one take megabytes, or the
    /// role may not read payloads, as a monitor.
    #[serde(skip)]
    pub failed_event: Option<Event>,
}

impl ConsumerRow {
    /// From a row that begins with the columns of the event.
    pub(super) fn from_row(row: Row) -> Self {
        Self {
            progress: Progress::from_row(&row),
            owner: row.get("owner"),
            owner_host: row.get("owner_host"),
            owner_pid: row.get("owner_pid"),
            owner_gone: row.get("owner_gone"),
            lease_until: row.get("lease_until"),
            pending: row.get("pending"),
            in_progress: row.get("in_progress"),
            accepted_to: row.get("accepted_to"),
            created_at: row.get("created_at"),
            updated_at: row.get("updated_at"),
            failed_event: row.get::<_, Option<i64>>(0).is_some().then(|| Event::from_row(row)),
        }
    }
}
