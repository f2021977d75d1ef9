//! An event: as it is appended, and as it is read back.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use time::OffsetDateTime;
use time::macros::datetime;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};
use uuid::Uuid;

use crate::error::{Error, ErrorKind};

/// An event of the log, as it was appended.
///
/// Cloning is cheap: clones share one row. Nothing is decoded before it is asked for.
#[derive(Clone)]
pub struct Event {
    id: i64,
    row: Arc<Row>,
}

/// The columns of every statement that reads events, in this order; `sql/query/events/*.sql` list them so.
mod column {
    pub(super) const ID: usize = 0;
    pub(super) const EVENT_ID: usize = 1;
    pub(super) const TENANT_ID: usize = 2;
    pub(super) const STREAM_TYPE: usize = 3;
    pub(super) const STREAM_ID: usize = 4;
    pub(super) const STREAM_VERSION: usize = 5;
    pub(super) const STREAM_HASH: usize = 6;
    pub(super) const EVENT_TYPE: usize = 7;
    pub(super) const SCHEMA_VERSION: usize = 8;
    pub(super) const PAYLOAD: usize = 9;
    pub(super) const METADATA: usize = 10;
    pub(super) const CORRELATION_ID: usize = 11;
    pub(super) const CAUSATION_ID: usize = 12;
    pub(super) const CREATED_BY: usize = 13;
    pub(super) const RECORDED_AT: usize = 14;
}

/// The text of a `json` column, borrowed from the row: what was appended, byte for byte.
struct JsonText<'a>(&'a str);

impl<'a> FromSql<'a> for JsonText<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(std::str::from_utf8(raw)?))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSON
    }
}

/// A `timestamptz`, whatever it holds: the database's times reach further than those of the `time` crate.
struct Instant(OffsetDateTime);

impl FromSql<'_> for Instant {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let since_2000 = time::Duration::microseconds(i64::from_be_bytes(raw.try_into()?));
        Ok(Self(datetime!(2000-01-01 0:00 UTC).saturating_add(since_2000)))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

impl Event {
    /// Takes a row whose first fifteen columns are those of `events` in the order of `sql/query/events/page.sql`.
    pub(crate) fn from_row(row: Row) -> Self {
        Self { id: row.get(column::ID), row: Arc::new(row) }
    }

    /// The place in the log. Ids have gaps and, after a failover that lost the tail, can be used again: outside the
    /// log, name an event by [`event_id`](Self::event_id).
    pub fn id(&self) -> i64 {
        self.id
    }

    /// The name of the event outside the log, and the producer's idempotency key.
    pub fn event_id(&self) -> Uuid {
        self.row.get(column::EVENT_ID)
    }

    /// The tenant, `""` where there is none.
    pub fn tenant_id(&self) -> &str {
        self.row.get(column::TENANT_ID)
    }

    /// The kind of stream, where the event is part of one.
    pub fn stream_type(&self) -> Option<&str> {
        self.row.get(column::STREAM_TYPE)
    }

    /// The stream within its kind.
    pub fn stream_id(&self) -> Option<&str> {
        self.row.get(column::STREAM_ID)
    }

    /// The place in the stream, from 1, without gaps.
    pub fn stream_version(&self) -> Option<i64> {
        self.row.get(column::STREAM_VERSION)
    }

    /// The stable hash of the stream (of the event where there is none) that partitions go by.
    pub fn stream_hash(&self) -> i32 {
        self.row.get(column::STREAM_HASH)
    }

    /// The type, such as `order.placed`.
    pub fn event_type(&self) -> &str {
        self.row.get(column::EVENT_TYPE)
    }

    /// The version of the payload's form, 1 unless the producer said otherwise.
    pub fn schema_version(&self) -> i32 {
        self.row.get(column::SCHEMA_VERSION)
    }

    /// The payload as JSON text, byte for byte as it was appended.
    pub fn payload_json(&self) -> &str {
        self.row.get::<_, JsonText<'_>>(column::PAYLOAD).0
    }

    /// The payload, decoded.
    ///
    /// # Errors
    /// [`Undecodable`] names the event and the place in the payload. Returned from a handler it is a failure of that
    /// event, as any error is.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, Undecodable> {
        self.decode(column::PAYLOAD, "payload")
    }

    /// The metadata as JSON text.
    pub fn metadata_json(&self) -> &str {
        self.row.get::<_, JsonText<'_>>(column::METADATA).0
    }

    /// The metadata, decoded.
    ///
    /// # Errors
    /// As for [`payload`](Self::payload).
    pub fn metadata<T: DeserializeOwned>(&self) -> Result<T, Undecodable> {
        self.decode(column::METADATA, "metadata")
    }

    /// What all events of one business transaction share.
    pub fn correlation_id(&self) -> Option<Uuid> {
        self.row.get(column::CORRELATION_ID)
    }

    /// The `event_id` of the event that caused this one.
    pub fn causation_id(&self) -> Option<Uuid> {
        self.row.get(column::CAUSATION_ID)
    }

    /// Who appended it, as the producer said.
    pub fn created_by(&self) -> Option<&str> {
        self.row.get(column::CREATED_BY)
    }

    /// When the row was written, by the database's clock. Later ids can carry earlier times; order is by id. What a raw
    /// `INSERT` set beyond the years -9999 to 9999, `infinity` included, is the nearest of those.
    pub fn recorded_at(&self) -> OffsetDateTime {
        self.row.get::<_, Instant>(column::RECORDED_AT).0
    }

    /// What the rows of a stream wait for each other by, in the ledger. In SQL: `inorder.ledger_stream`.
    pub(crate) fn ledger_stream(&self) -> Option<String> {
        let (kind, id) = self.stream_type().zip(self.stream_id())?;
        Some(format!("{}/{kind}/{id}", self.tenant_id()))
    }

    /// Bytes that the event holds in memory, about.
    pub(crate) fn size(&self) -> usize {
        const FIXED: usize = 400;
        self.row.raw_size_bytes() + FIXED
    }

    fn decode<T: DeserializeOwned>(&self, column: usize, part: &'static str) -> Result<T, Undecodable> {
        let JsonText(text) = self.row.get(column);
        serde_json::from_str(text).map_err(|source| Undecodable {
            part,
            id: self.id,
            event_type: self.event_type().to_owned(),
            schema_version: self.schema_version(),
            into: std::any::type_name::<T>(),
            source,
        })
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.id)
            .field("event_id", &self.event_id())
            .field("event_type", &self.event_type())
            .finish_non_exhaustive()
    }
}

/// A payload or metadata that is not what the reader takes it for.
#[derive(Debug)]
pub struct Undecodable {
    part: &'static str,
    id: i64,
    event_type: String,
    schema_version: i32,
    into: &'static str,
    source: serde_json::Error,
}

impl fmt::Display for Undecodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, id, event_type, schema_version, into, .. } = self;
        write!(
            f,
            "undecodable {part} of event {id} ({event_type}, schema version {schema_version}) as {into}"
        )
    }
}

impl std::error::Error for Undecodable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// An event to be appended.
///
/// ```
/// use inorder::NewEvent;
/// use uuid::Uuid;
///
/// let order = Uuid::now_v7();
/// let placed = NewEvent::new("order.placed", &serde_json::json!({"total": 99.5}))?
///     .in_stream("order", order)
///     .created_by("checkout");
/// # Ok::<(), inorder::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NewEvent {
    pub(crate) event_id: Uuid,
    pub(crate) tenant_id: String,
    pub(crate) stream: Option<(String, String)>,
    pub(crate) event_type: String,
    pub(crate) schema_version: i32,
    pub(crate) payload: String,
    pub(crate) metadata: String,
    pub(crate) correlation_id: Option<Uuid>,
    pub(crate) causation_id: Option<Uuid>,
    pub(crate) created_by: Option<String>,
}

impl NewEvent {
    /// An event with a payload of any type that serializes to JSON, under a new `event_id`.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] when the payload does not serialize.
    pub fn new(event_type: impl Into<String>, payload: &impl Serialize) -> Result<Self, Error> {
        let event_type = event_type.into();
        let payload = json(payload, "payload", &event_type)?;
        Ok(Self::from_json(event_type, payload))
    }

    /// An event whose payload is JSON text already; it is stored byte for byte. That it is JSON is checked when it is
    /// appended.
    pub fn from_json(event_type: impl Into<String>, payload: impl Into<String>) -> Self {
        Self {
            event_id: Uuid::now_v7(),
            tenant_id: String::new(),
            stream: None,
            event_type: event_type.into(),
            schema_version: 1,
            payload: payload.into(),
            metadata: "{}".into(),
            correlation_id: None,
            causation_id: None,
            created_by: None,
        }
    }

    /// The idempotency key: an event with a key that is there already is not appended again.
    #[must_use]
    pub fn event_id(mut self, event_id: Uuid) -> Self {
        self.event_id = event_id;
        self
    }

    /// Puts the event at the end of a stream.
    #[must_use]
    pub fn in_stream(mut self, stream_type: impl Into<String>, stream_id: impl fmt::Display) -> Self {
        self.stream = Some((stream_type.into(), stream_id.to_string()));
        self
    }

    /// The tenant that the event, and its stream, belong to.
    #[must_use]
    pub fn tenant(mut self, tenant_id: impl Into<String>) -> Self {
        self.tenant_id = tenant_id.into();
        self
    }

    /// The version of the payload's form.
    #[must_use]
    pub fn schema_version(mut self, version: i32) -> Self {
        self.schema_version = version;
        self
    }

    /// What is to be known about the event and is not part of it.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] when it does not serialize.
    pub fn metadata(mut self, metadata: &impl Serialize) -> Result<Self, Error> {
        self.metadata = json(metadata, "metadata", &self.event_type)?;
        Ok(self)
    }

    /// Metadata that is JSON text already; it is stored byte for byte. That it is JSON is checked when it is appended.
    #[must_use]
    pub fn metadata_json(mut self, metadata: impl Into<String>) -> Self {
        self.metadata = metadata.into();
        self
    }

    /// Names `cause` as the cause and inherits its correlation; the cause itself where it has none.
    #[must_use]
    pub fn caused_by(mut self, cause: &Event) -> Self {
        self.causation_id = Some(cause.event_id());
        self.correlation_id = Some(cause.correlation_id().unwrap_or_else(|| cause.event_id()));
        self
    }

    /// As [`caused_by`](Self::caused_by), where nothing else was said.
    pub(crate) fn caused_by_default(mut self, cause: &Event) -> Self {
        self.causation_id.get_or_insert_with(|| cause.event_id());
        self.correlation_id.get_or_insert_with(|| cause.correlation_id().unwrap_or_else(|| cause.event_id()));
        self
    }

    /// What all events of one business transaction share.
    #[must_use]
    pub fn correlation(mut self, correlation_id: Uuid) -> Self {
        self.correlation_id = Some(correlation_id);
        self
    }

    /// The `event_id` of the event that caused this one.
    #[must_use]
    pub fn causation(mut self, causation_id: Uuid) -> Self {
        self.causation_id = Some(causation_id);
        self
    }

    /// Who appends it.
    #[must_use]
    pub fn created_by(mut self, who: impl Into<String>) -> Self {
        self.created_by = Some(who.into());
        self
    }
}

fn json(value: &impl Serialize, part: &str, event_type: &str) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|e| {
        Error::with_source(
            ErrorKind::Refused,
            format!("serializing the {part} of an event of type {event_type:?}"),
            e,
        )
    })
}

/// What the stream is expected to look like before an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedVersion {
    /// Whatever it looks like; never a conflict.
    Any,
    /// It has no event yet.
    NoStream,
    /// It has at least one event.
    Exists,
    /// Its last event has this version.
    Exact(i64),
}

/// The answer to an append: refusals are values, and the caller's transaction goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a conflict is a value, not an error"]
pub enum Append {
    /// All events were appended; their ids, in the order given.
    Appended(Vec<i64>),
    /// All of them were there already, with the same content: an earlier try went through. Their ids.
    AlreadyAppended(Vec<i64>),
    /// Some were there already, with the same content; the others were appended now.
    Completed {
        /// The ids of all, in the order given.
        ids: Vec<i64>,
        /// How many were there already.
        already: usize,
    },
    /// The stream does not look as expected; nothing was appended.
    Conflict {
        /// What was expected.
        expected: ExpectedVersion,
        /// The version that the stream has, 0 where it has no event.
        actual: i64,
    },
    /// This `event_id` is in the log with other content; nothing was appended.
    Mismatch {
        /// The key.
        event_id: Uuid,
        /// The id of the event that has it.
        id: i64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_no_calendar_reaches_is_the_last_or_the_first_there_is() {
        let read = |micros: i64| {
            Instant::from_sql(&Type::TIMESTAMPTZ, &micros.to_be_bytes()).expect("eight bytes").0
        };
        assert_eq!(read(0), datetime!(2000-01-01 0:00 UTC));
        assert_eq!(read(i64::MAX).year(), 9999, "infinity");
        assert_eq!(read(i64::MIN).year(), -9999, "-infinity");
    }
}
