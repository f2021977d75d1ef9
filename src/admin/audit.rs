//! What operators did.

use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use tokio_postgres::Row;

/// Which rows of the audit trail to list, newest first.
///
/// ```
/// use inorder::AuditRows;
///
/// let latest = AuditRows::any();
/// let skipped = AuditRows::any().of("search-index").action("skip_poison").by("ops@example.com").limit(1_000);
/// let next_part = AuditRows::any().before(4_711);
/// # let _ = (latest, skipped, next_part);
/// ```
#[derive(Clone, Debug)]
pub struct AuditRows {
    pub(super) consumer: Option<String>,
    pub(super) instance: Option<String>,
    pub(super) action: Option<String>,
    pub(super) by: Option<String>,
    pub(super) limit: i32,
    pub(super) before: Option<i64>,
}

impl AuditRows {
    /// Every action.
    pub fn any() -> Self {
        Self { consumer: None, instance: None, action: None, by: None, limit: 100, before: None }
    }

    /// What was done to one consumer only.
    #[must_use]
    pub fn of(self, consumer: impl Into<String>) -> Self {
        Self { consumer: Some(consumer.into()), ..self }
    }

    /// To one instance only.
    #[must_use]
    pub fn instance(self, instance: impl Into<String>) -> Self {
        Self { instance: Some(instance.into()), ..self }
    }

    /// One action only: the name of the SQL function, such as `skip_poison`.
    #[must_use]
    pub fn action(self, action: impl Into<String>) -> Self {
        Self { action: Some(action.into()), ..self }
    }

    /// What one operator did only, by the name that was given or that of the database user.
    #[must_use]
    pub fn by(self, who: impl Into<String>) -> Self {
        Self { by: Some(who.into()), ..self }
    }

    /// At most so many. Default 100.
    #[must_use]
    pub fn limit(self, limit: i32) -> Self {
        Self { limit, ..self }
    }

    /// Those before this one: the next part of a list.
    #[must_use]
    pub fn before(self, id: i64) -> Self {
        Self { before: Some(id), ..self }
    }
}

/// One action of an operator.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AuditRow {
    /// What [`AuditRows::before`] is told.
    pub id: i64,
    /// When, by the database's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Who, as the operator said.
    pub by: String,
    /// The user of the database session.
    pub db_user: String,
    /// The name of the action: that of the SQL function.
    pub action: String,
    /// The consumer; `None` for what is done to the log, or to many at once.
    pub consumer: Option<String>,
    /// Its instance, `""` for a shared consumer.
    pub instance: Option<String>,
    /// Its partition.
    pub partition: Option<i32>,
    /// Why.
    pub why: Option<String>,
    /// The row as it was, column by column; `Null` when it is new.
    pub before: Value,
    /// The row as it was afterwards; `Null` when it was gone.
    pub after: Value,
}

impl AuditRow {
    pub(super) fn from_row(row: &Row) -> Self {
        Self {
            id: row.get("id"),
            at: row.get("at"),
            by: row.get("by"),
            db_user: row.get("db_user"),
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
