//! Events that were passed over.

use std::fmt;

use serde::Serialize;
use time::OffsetDateTime;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::pg::admin::Fitting;

/// What became of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeadLetterState {
    /// Nobody decided yet. Its event is not pruned.
    Open,
    /// The consumer's next pass delivers its event once more.
    RetryRequested,
    /// Delivered after all.
    Resolved,
    /// Settled without a delivery.
    Discarded,
    /// A word that a newer schema knows.
    Unknown,
}

impl DeadLetterState {
    /// The word that SQL, metrics and messages use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::RetryRequested => "retry_requested",
            Self::Resolved => "resolved",
            Self::Discarded => "discarded",
            Self::Unknown => "unknown",
        }
    }

    fn from_word(word: &str) -> Self {
        [Self::Open, Self::RetryRequested, Self::Resolved, Self::Discarded]
            .into_iter()
            .find(|state| state.as_str() == word)
            .unwrap_or(Self::Unknown)
    }
}

impl fmt::Display for DeadLetterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Which dead letters to list, to retry or to discard, oldest first.
///
/// ```
/// use inorder::DeadLetters;
///
/// let open = DeadLetters::open().of("search-index");
/// let everything = DeadLetters::any().limit(1_000);
/// let outage = DeadLetters::open().of("mail").reason("exhausted").error("connection refused");
/// # let _ = (open, everything, outage);
/// ```
#[derive(Clone, Debug)]
pub struct DeadLetters {
    pub(super) consumer: Option<String>,
    pub(super) instance: Option<String>,
    pub(super) event_type: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) error: Option<String>,
    pub(super) state: Option<DeadLetterState>,
    pub(super) limit: i32,
    pub(super) after: i64,
    pub(super) up_to: Option<i64>,
    pub(super) stop_at: Option<OffsetDateTime>,
}

impl DeadLetters {
    /// Those on which nobody decided yet.
    pub fn open() -> Self {
        Self::any().state(DeadLetterState::Open)
    }

    /// In whatever state.
    pub fn any() -> Self {
        Self {
            consumer: None,
            instance: None,
            event_type: None,
            reason: None,
            error: None,
            state: None,
            limit: 100,
            after: 0,
            up_to: None,
            stop_at: None,
        }
    }

    /// Of one consumer only.
    #[must_use]
    pub fn of(self, consumer: impl Into<String>) -> Self {
        Self { consumer: Some(consumer.into()), ..self }
    }

    /// In one state only.
    #[must_use]
    pub fn state(self, state: DeadLetterState) -> Self {
        Self { state: Some(state), ..self }
    }

    /// At most so many. Default 100.
    #[must_use]
    pub fn limit(self, limit: i32) -> Self {
        Self { limit, ..self }
    }

    /// Those behind this one: the next part of a list.
    #[must_use]
    pub fn after(self, id: i64) -> Self {
        Self { after: id, ..self }
    }

    /// Up to this one.
    #[must_use]
    pub fn up_to(self, id: i64) -> Self {
        Self { up_to: Some(id), ..self }
    }

    /// Of one instance only.
    #[must_use]
    pub fn instance(self, instance: impl Into<String>) -> Self {
        Self { instance: Some(instance.into()), ..self }
    }

    /// Of events of one type only.
    #[must_use]
    pub fn event_type(self, event_type: impl Into<String>) -> Self {
        Self { event_type: Some(event_type.into()), ..self }
    }

    /// For one reason only; see [`DeadLetter::reason`].
    #[must_use]
    pub fn reason(self, reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..self }
    }

    /// Only those in whose error this text is, in upper or lower case.
    #[must_use]
    pub fn error(self, text: impl Into<String>) -> Self {
        Self { error: Some(text.into()), ..self }
    }

    /// None is retried or discarded after this time, by the database's clock. A list does not go by it.
    #[must_use]
    pub fn stop_at(self, time: OffsetDateTime) -> Self {
        Self { stop_at: Some(time), ..self }
    }

    pub(super) fn fitting(&self) -> Fitting<'_> {
        Fitting {
            consumer: self.consumer.as_deref(),
            instance: self.instance.as_deref(),
            event_type: self.event_type.as_deref(),
            reason: self.reason.as_deref(),
            error: self.error.as_deref(),
            state: self.state.map(DeadLetterState::as_str),
            after: self.after,
            up_to: self.up_to,
            limit: self.limit,
            stop_at: self.stop_at,
        }
    }
}

/// What became of dead letters that were retried or discarded together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SettledLetters {
    /// Those that were, oldest first.
    pub letters: Vec<i64>,
    /// How many before the last of them fit, too, but cannot be retried (a range, an event that was pruned, a consumer that is
    /// gone), or were held by a pass.
    pub left_out: i64,
    /// There are more behind the last of them.
    pub more: bool,
}

impl SettledLetters {
    pub(super) fn from_row(row: &Row) -> Self {
        Self { letters: row.get("letters"), left_out: row.get("left_out"), more: row.get("more") }
    }
}

/// An event, or a range of ids, that a consumer passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadLetter {
    /// What [`Admin::retry_dead_letter`](crate::Admin::retry_dead_letter) is told.
    pub id: i64,
    /// The consumer's name.
    pub consumer: String,
    /// Its instance, `""` for a shared consumer.
    pub instance: String,
    /// Its partition.
    pub partition: i32,
    /// The event's id, or the first of the range.
    pub position: i64,
    /// The last of the range; `None` for one event.
    pub position_to: Option<i64>,
    /// The event; `None` for a range.
    pub event_id: Option<Uuid>,
    /// Its type.
    pub event_type: Option<String>,
    /// Failed attempts.
    pub attempts: i32,
    /// What the handler said last.
    pub error: Option<String>,
    /// `skip_policy`, `operator_skip`, `rejected`, `exhausted`, `max_deliveries` or `pruned`.
    pub reason: String,
    /// What became of it.
    pub state: DeadLetterState,
    /// When it was passed over.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// By whom: an operator, or `inorder`.
    pub created_by: String,
    /// When the state was last changed.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
    /// By whom.
    pub updated_by: Option<String>,
}

impl DeadLetter {
    pub(super) fn from_row(row: &Row) -> Self {
        Self {
            id: row.get("id"),
            consumer: row.get("consumer"),
            instance: row.get("instance"),
            partition: row.get("partition"),
            position: row.get("position"),
            position_to: row.get("position_to"),
            event_id: row.get("event_id"),
            event_type: row.get("event_type"),
            attempts: row.get("attempts"),
            error: row.get("error"),
            reason: row.get("reason"),
            state: DeadLetterState::from_word(row.get("state")),
            created_at: row.get("created_at"),
            created_by: row.get("created_by"),
            updated_at: row.get("updated_at"),
            updated_by: row.get("updated_by"),
        }
    }
}
