//! Statements on `events`.

use futures_util::{TryStreamExt, pin_mut};
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::{Schema, sql};
use crate::event::{Event, NewEvent};

type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// What became of an append, as `append_events` answers it.
pub(crate) struct Appended {
    pub(crate) outcome: String,
    /// In the order given.
    pub(crate) ids: Vec<i64>,
    pub(crate) already: usize,
    /// The version of the stream.
    pub(crate) actual: i64,
    pub(crate) mismatch: Option<(Uuid, i64)>,
    pub(crate) refusal: String,
}

/// Appends in the transaction that the session is in. One round trip, nothing prepared: a session behind a pooler will do.
pub(crate) async fn append(
    client: &Client,
    schema: &Schema,
    expected: Option<i64>,
    events: &[NewEvent],
    max_bytes: i32,
) -> Result<Appended> {
    let columns = Columns::of(events);
    let mut params: Vec<Param<'_>> = vec![(/* expected */ &expected, Type::INT8)];
    params.extend(columns.params());
    params.push((/* max_bytes */ &max_bytes, Type::INT4));
    let rows = client.query_typed(&schema.sql(sql!("events/append")), &params).await?;
    let [row] = rows.as_slice() else { unreachable!("a function with OUT parameters answers one row") };
    let event_id: Option<Uuid> = row.get("mismatch_event_id");
    Ok(Appended {
        outcome: row.get("outcome"),
        ids: row.get::<_, Option<_>>("ids").unwrap_or_default(),
        already: row.get::<_, Option<i32>>("already").unwrap_or(0).try_into().unwrap_or(0),
        actual: row.get::<_, Option<_>>("actual").unwrap_or(0),
        mismatch: event_id.zip(row.get("mismatch_id")),
        refusal: row.get::<_, Option<_>>("refusal").unwrap_or_default(),
    })
}

/// What is asked of a transaction of its own, and what came of its end.
pub(crate) struct Alone<T> {
    pub(crate) answer: Result<T>,
    pub(crate) commit: Result<()>,
}

/// Asks in a READ COMMITTED transaction of its own. One round trip: the three statements are sent together.
pub(crate) async fn alone<T>(client: &Client, question: impl Future<Output = Result<T>>) -> Alone<T> {
    // Each is sent when it is first polled, which is in this order.
    let (begin, answer, commit) = futures_util::join!(
        client.batch_execute(sql!("session/begin")),
        question,
        client.batch_execute("COMMIT"),
    );
    Alone { answer: begin.and(answer), commit }
}

/// What became of messages, as `receive_events` answers it.
pub(crate) struct ReceivedAll {
    /// Of each, in the order given; empty where there is a refusal.
    pub(crate) outcomes: Vec<(String, i64)>,
    /// Who has something to do.
    pub(crate) handlers: Vec<String>,
    pub(crate) refusal: Option<String>,
}

/// Receives in the transaction that the session is in. One round trip, nothing prepared.
pub(crate) async fn receive(
    client: &Client,
    schema: &Schema,
    source: &str,
    external_ids: &[&str],
    events: &[NewEvent],
    max_bytes: i32,
) -> Result<ReceivedAll> {
    let columns = Columns::of(events);
    let mut params: Vec<Param<'_>> =
        vec![(/* source */ &source, Type::TEXT), (/* external_ids */ &external_ids, Type::TEXT_ARRAY)];
    params.extend(columns.params());
    params.push((/* max_bytes */ &max_bytes, Type::INT4));
    let rows = client.query_typed(&schema.sql(sql!("events/receive")), &params).await?;
    let [row] = rows.as_slice() else { unreachable!("a function with OUT parameters answers one row") };
    let outcomes: Vec<String> = row.get::<_, Option<_>>("outcomes").unwrap_or_default();
    let ids: Vec<i64> = row.get::<_, Option<_>>("ids").unwrap_or_default();
    Ok(ReceivedAll {
        outcomes: outcomes.into_iter().zip(ids).collect(),
        handlers: row.get::<_, Option<_>>("handlers").unwrap_or_default(),
        refusal: row.get("refusal"),
    })
}

/// The fields of events, each as an array; `None` where no event has such a thing.
struct Columns<'a> {
    event_ids: Vec<Uuid>,
    event_types: Vec<&'a str>,
    payloads: Vec<&'a str>,
    metadata: Option<Vec<Option<&'a str>>>,
    stream_types: Option<Vec<Option<&'a str>>>,
    stream_ids: Option<Vec<Option<&'a str>>>,
    tenant_ids: Option<Vec<Option<&'a str>>>,
    schema_versions: Option<Vec<Option<i32>>>,
    correlation_ids: Option<Vec<Option<Uuid>>>,
    causation_ids: Option<Vec<Option<Uuid>>>,
    created_by: Option<Vec<Option<&'a str>>>,
}

impl<'a> Columns<'a> {
    fn of(events: &'a [NewEvent]) -> Self {
        Self {
            event_ids: events.iter().map(|e| e.event_id).collect(),
            event_types: events.iter().map(|e| e.event_type.as_str()).collect(),
            payloads: events.iter().map(|e| e.payload.as_str()).collect(),
            metadata: column(events, |e| Some(e.metadata.as_str()).filter(|m| *m != "{}")),
            stream_types: column(events, |e| e.stream.as_ref().map(|s| s.0.as_str())),
            stream_ids: column(events, |e| e.stream.as_ref().map(|s| s.1.as_str())),
            tenant_ids: column(events, |e| Some(e.tenant_id.as_str()).filter(|t| !t.is_empty())),
            schema_versions: column(events, |e| Some(e.schema_version).filter(|v| *v != 1)),
            correlation_ids: column(events, |e| e.correlation_id),
            causation_ids: column(events, |e| e.causation_id),
            created_by: column(events, |e| e.created_by.as_deref()),
        }
    }

    /// In the order in which the functions that append take them.
    fn params(&self) -> [Param<'_>; 11] {
        [
            (/* event_ids */ &self.event_ids, Type::UUID_ARRAY),
            (/* event_types */ &self.event_types, Type::TEXT_ARRAY),
            (/* payloads */ &self.payloads, Type::TEXT_ARRAY),
            (/* metadata */ &self.metadata, Type::TEXT_ARRAY),
            (/* stream_types */ &self.stream_types, Type::TEXT_ARRAY),
            (/* stream_ids */ &self.stream_ids, Type::TEXT_ARRAY),
            (/* tenant_ids */ &self.tenant_ids, Type::TEXT_ARRAY),
            (/* schema_versions */ &self.schema_versions, Type::INT4_ARRAY),
            (/* correlation_ids */ &self.correlation_ids, Type::UUID_ARRAY),
            (/* causation_ids */ &self.causation_ids, Type::UUID_ARRAY),
            (/* created_by */ &self.created_by, Type::TEXT_ARRAY),
        ]
    }
}

/// One field of all events; `None` where no event has it.
fn column<'a, T>(
    events: &'a [NewEvent],
    field: impl Fn(&'a NewEvent) -> Option<T>,
) -> Option<Vec<Option<T>>> {
    let values: Vec<Option<T>> = events.iter().map(field).collect();
    values.iter().any(Option::is_some).then_some(values)
}

/// Some events, in order.
pub(crate) struct Page {
    pub(crate) events: Vec<Event>,
    /// Are there more behind the last one?
    pub(crate) more: bool,
}

/// The column behind those of the event.
const MORE: usize = 15;
/// How many bytes a page may take in the table, where they may be compressed, and in memory.
const STORED_BUDGET: i64 = 8 * 1024 * 1024;
const BUDGET: usize = 4 * 8 * 1024 * 1024;

/// The safe head, as of now.
pub(crate) async fn safe_head(client: &Client, schema: &Schema) -> Result<i64> {
    let rows = client.query_typed(&schema.sql(sql!("safe_head/find")), &[]).await?;
    let [row] = rows.as_slice() else { unreachable!("a SELECT without FROM answers one row") };
    Ok(row.get("head"))
}

/// The events above `after`, up to `bound`.
pub(crate) async fn read(
    client: &Client,
    schema: &Schema,
    after: i64,
    bound: i64,
    limit: i64,
) -> Result<Page> {
    let params: [Param<'_>; 4] = [
        (/* after */ &after, Type::INT8),
        (/* bound */ &bound, Type::INT8),
        (/* limit */ &limit, Type::INT8),
        (/* budget */ &STORED_BUDGET, Type::INT8),
    ];
    page(client, &schema.sql(sql!("events/read")), params, limit).await
}

/// A stream, by tenant, type and id.
pub(crate) type StreamName = (String, String, String);

/// The events of a stream, forward or backward, from a version.
pub(crate) async fn read_stream(
    client: &Client,
    schema: &Schema,
    (tenant_id, stream_type, stream_id): &StreamName,
    backward: bool,
    from: i64,
    limit: i64,
) -> Result<Page> {
    let statement = if backward { sql!("events/read_stream_backward") } else { sql!("events/read_stream") };
    let params: [Param<'_>; 6] = [
        (/* tenant_id */ tenant_id, Type::TEXT),
        (/* stream_type */ stream_type, Type::TEXT),
        (/* stream_id */ stream_id, Type::TEXT),
        (/* from */ &from, Type::INT8),
        (/* limit */ &limit, Type::INT8),
        (/* budget */ &STORED_BUDGET, Type::INT8),
    ];
    page(client, &schema.sql(statement), params, limit).await
}

/// The event of this name.
pub(crate) async fn find(client: &Client, schema: &Schema, event_id: Uuid) -> Result<Option<Event>> {
    let params = [(/* event_id */ &event_id as &(dyn ToSql + Sync), Type::UUID)];
    let row = client.query_typed_opt(&schema.sql(sql!("events/find")), &params).await?;
    Ok(row.map(Event::from_row))
}

type Param<'a> = (&'a (dyn ToSql + Sync), Type);

async fn page<const N: usize>(
    client: &Client,
    statement: &str,
    params: [Param<'_>; N],
    limit: i64,
) -> Result<Page> {
    let rows = client.query_typed_raw(statement, params).await?;
    pin_mut!(rows);
    let mut page = Page { events: Vec::new(), more: false };
    let mut bytes = 0;
    while let Some(row) = rows.try_next().await? {
        page.more = row.get(MORE);
        let event = Event::from_row(row);
        bytes += event.size();
        page.events.push(event);
        if bytes > BUDGET {
            page.more = true;
            break;
        }
    }
    page.more |= i64::try_from(page.events.len()) == Ok(limit);
    Ok(page)
}
