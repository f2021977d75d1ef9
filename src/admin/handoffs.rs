//! Which side has which event, and what an operator may do about it.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{Admin, Change, only};
use crate::error::Error;
use crate::pg::handoffs::{self as statements, Fitting};

/// How a hand-off stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HandoffState {
    /// The direct path took the event, and has not said that it ran it: it is at it, or has died.
    Unfinished,
    /// The direct path took it and has run it.
    RanDirectly,
    /// A delivery took it. Whether that ran it is the queue's to know.
    Delivery,
    /// A word that a newer schema knows.
    Unknown,
}

impl HandoffState {
    /// The word that SQL and messages use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unfinished => "unfinished",
            Self::RanDirectly => "ran_directly",
            Self::Delivery => "delivery",
            Self::Unknown => "unknown",
        }
    }

    fn from_word(word: &str) -> Self {
        [Self::Unfinished, Self::RanDirectly, Self::Delivery]
            .into_iter()
            .find(|state| state.as_str() == word)
            .unwrap_or(Self::Unknown)
    }
}

impl fmt::Display for HandoffState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Which hand-offs, in the order of scope and event.
///
/// ```
/// use std::time::Duration;
///
/// use inorder::{HandoffRows, HandoffState};
///
/// let left_over = HandoffRows::unfinished().older_than(Duration::from_secs(300));
/// let delivered = HandoffRows::any().in_scope("mail").state(HandoffState::Delivery).limit(1_000);
/// # let _ = (left_over, delivered);
/// ```
#[derive(Clone, Debug)]
pub struct HandoffRows {
    key: Option<Uuid>,
    scope: Option<String>,
    state: Option<HandoffState>,
    older_than: Option<Duration>,
    limit: i32,
    after: Option<(String, Uuid)>,
}

impl HandoffRows {
    /// However they stand.
    pub fn any() -> Self {
        Self { key: None, scope: None, state: None, older_than: None, limit: 100, after: None }
    }

    /// What the direct path took, and has not said that it ran.
    pub fn unfinished() -> Self {
        Self::any().state(HandoffState::Unfinished)
    }

    /// Of one event only.
    #[must_use]
    pub fn key(self, event_id: Uuid) -> Self {
        Self { key: Some(event_id), ..self }
    }

    /// In one scope only.
    #[must_use]
    pub fn in_scope(self, scope: impl Into<String>) -> Self {
        Self { scope: Some(scope.into()), ..self }
    }

    /// In one state only.
    #[must_use]
    pub fn state(self, state: HandoffState) -> Self {
        Self { state: Some(state), ..self }
    }

    /// Taken at least so long ago.
    #[must_use]
    pub fn older_than(self, age: Duration) -> Self {
        Self { older_than: Some(age), ..self }
    }

    /// At most so many. Default 100.
    #[must_use]
    pub fn limit(self, limit: i32) -> Self {
        Self { limit, ..self }
    }

    /// Those behind this one: the next part of a list.
    #[must_use]
    pub fn after(self, scope: impl Into<String>, event_id: Uuid) -> Self {
        Self { after: Some((scope.into(), event_id)), ..self }
    }

    fn fitting(&self) -> Fitting<'_> {
        Fitting {
            key: self.key,
            scope: self.scope.as_deref(),
            state: self.state.map(HandoffState::as_str),
            older_than: self.older_than,
            limit: self.limit,
            after: self.after.as_ref(),
        }
    }
}

/// Which side has an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HandoffRow {
    /// The hand-off's scope.
    pub scope: String,
    /// The event.
    pub event_id: Uuid,
    /// Which side, and whether it has run it.
    pub state: HandoffState,
    /// When it was taken.
    #[serde(with = "time::serde::rfc3339")]
    pub taken_at: OffsetDateTime,
    /// When the direct path had run it.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ran_at: Option<OffsetDateTime>,
    /// The event's id in the log; `None` for a key that is no event of it, or one that was pruned.
    pub position: Option<i64>,
    /// Its type, while it is in the log.
    pub event_type: Option<String>,
}

impl HandoffRow {
    fn from_row(row: &Row) -> Self {
        Self {
            scope: row.get("scope"),
            event_id: row.get("event_id"),
            state: HandoffState::from_word(row.get("state")),
            taken_at: row.get("taken_at"),
            ran_at: row.get("ran_at"),
            position: row.get("position"),
            event_type: row.get("event_type"),
        }
    }
}

/// What became of many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ForgottenHandoffs {
    /// How many.
    pub forgotten: i64,
    /// How many before the last of them fit, too, but are being decided at the moment.
    pub left_out: i64,
    /// There are more that fit, behind the last of them.
    pub more: bool,
    /// The scope and the event of the last that fits, for [`HandoffRows::after`].
    pub last: Option<(String, Uuid)>,
}

impl ForgottenHandoffs {
    fn from_row(row: &Row) -> Self {
        let (scope, event_id) =
            (row.get::<_, Option<_>>("last_scope"), row.get::<_, Option<_>>("last_event_id"));
        Self {
            forgotten: row.get("forgotten"),
            left_out: row.get("left_out"),
            more: row.get("more"),
            last: scope.zip(event_id),
        }
    }
}

/// Hand-offs.
impl Admin {
    /// Which side has which event, in the order of scope and event. With a key alone that is nobody's,
    /// [`ErrorKind::NotRegistered`](crate::ErrorKind::NotRegistered).
    pub async fn handoff_rows(&self, which: &HandoffRows) -> Result<Vec<HandoffRow>, Error> {
        let rows = self
            .ask("looking at hand-offs", async |client, schema| {
                statements::rows(client, schema, &which.fitting()).await
            })
            .await?;
        Ok(rows.iter().map(HandoffRow::from_row).collect())
    }

    /// Forgets which side has an event: whoever asks next has it, and may run it a second time. A process that has decided about it
    /// answers by its memory until it is started anew.
    ///
    /// What the direct path took and has not said that it ran only with [`force`](Self::force): its deliveries were dropped, so
    /// that nobody runs it any more who does not offer it anew.
    pub async fn handoff_forget(&self, scope: &str, event_id: Uuid) -> Result<Change, Error> {
        let what = format!("forgetting the hand-off of {event_id} in scope {scope:?}");
        let rows = self
            .ask(&what, async |client, schema| {
                statements::forget(client, schema, scope, event_id, self.note(), self.force).await
            })
            .await?;
        only(&what, &rows)
    }

    /// The same for all that fit, in one transaction with one audit row; a [`key`](HandoffRows::key) is not looked at. Call again
    /// while [`ForgottenHandoffs::more`], with [`HandoffRows::after`] the last of them. What the direct path still has to run is
    /// left alone, but with [`force`](Self::force).
    pub async fn handoffs_forget(&self, which: &HandoffRows) -> Result<ForgottenHandoffs, Error> {
        let row = self
            .ask("forgetting hand-offs", async |client, schema| {
                let (fitting, note) = (which.fitting(), self.note());
                statements::forget_fitting(client, schema, &fitting, note, self.force).await
            })
            .await?;
        Ok(ForgottenHandoffs::from_row(&row))
    }

    /// Deletes what was kept of hand-offs long enough, in one scope or in all, in steps of one transaction each. The answer is how many
    /// rows went. Without an age, an hour at least, each scope's rows are kept as its programs have it
    /// ([`keep`](crate::HandoffBuilder::keep), [`keep_deliveries`](crate::HandoffBuilder::keep_deliveries)), or for 30 days. A
    /// running dispatcher does that every hour.
    ///
    /// What the direct path still has to run stays, however old. An event whose row went is anybody's again, should its queue still
    /// deliver it or a program still offer it.
    pub async fn handoff_prune(
        &self,
        scope: Option<&str>,
        older_than: Option<Duration>,
    ) -> Result<i64, Error> {
        let mut deleted = 0;
        loop {
            let (step, more) = self
                .ask("deleting what was kept of hand-offs", async |client, schema| {
                    statements::prune(client, schema, scope, older_than, self.note()).await
                })
                .await?;
            deleted += step;
            if !more {
                return Ok(deleted);
            }
        }
    }
}
