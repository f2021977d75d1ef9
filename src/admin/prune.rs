//! What is to go, and what went.

use std::fmt;

use serde::Serialize;
use time::OffsetDateTime;
use tokio_postgres::Row;

use crate::pg::admin::Step;

/// What is to be pruned: events that were recorded before a time, all or some types.
///
/// What goes is a prefix of the ids: nothing behind the first event that is not old enough, nothing above the safe head,
/// nothing that a consumer has not read, unless it is disabled or expired, and no event of an unfinished dead letter, or that the
/// ledger has not finished. What the ledger keeps of the events goes with them.
///
/// ```
/// use inorder::Prune;
/// use time::{Duration, OffsetDateTime};
///
/// let month = OffsetDateTime::now_utc() - Duration::days(30);
/// let prune = Prune::before(month).only(["cart.viewed"]);
/// # assert!(prune.to_string().contains("cart.viewed"));
/// ```
#[derive(Clone, Debug)]
pub struct Prune {
    before: OffsetDateTime,
    types: Option<Vec<String>>,
    step_size: i32,
}

impl Prune {
    /// Events recorded before this time.
    pub fn before(time: OffsetDateTime) -> Self {
        Self { before: time, types: None, step_size: 10_000 }
    }

    /// Only events of these types.
    #[must_use]
    pub fn only(self, types: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { types: Some(types.into_iter().map(Into::into).collect()), ..self }
    }

    /// How many events go in one transaction, at most. Default 10,000.
    #[must_use]
    pub fn step_size(self, events: i32) -> Self {
        Self { step_size: events, ..self }
    }

    pub(super) fn step(&self, dry_run: bool) -> Step<'_> {
        Step { before: self.before, types: self.types.as_deref(), dry_run, max_events: self.step_size }
    }
}

impl fmt::Display for Prune {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "events recorded before {}", self.before)?;
        match &self.types {
            Some(types) => write!(f, " of types {}", types.join(", ")),
            None => Ok(()),
        }
    }
}

/// What went, or would go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Pruned {
    /// How many events.
    pub deleted: i64,
    /// The highest id among them.
    pub up_to: Option<i64>,
    /// There is more that may go.
    pub more: bool,
    /// Who needs what was old enough but had to stay, in words; empty when nothing had to.
    pub blocked_by: Vec<String>,
}

impl Pruned {
    pub(super) fn from_row(row: &Row) -> Self {
        Self {
            deleted: row.get("deleted"),
            up_to: row.get("up_to"),
            more: row.get("more"),
            blocked_by: row.get("blocked_by"),
        }
    }

    /// The sum of what went so far and in the next step.
    pub(super) fn add(&mut self, step: Self) {
        let deleted = self.deleted + step.deleted;
        let up_to = step.up_to.max(self.up_to);
        *self = Self { deleted, up_to, ..step };
    }
}
