//! Appending: one table of cases for every way to append, what is refused, and what happens side by side.

mod answers;
mod concurrent;
mod ends;
mod producers;
mod refusals;

use inorder::{Append, Config, Error, ErrorKind, ExpectedVersion, Inorder, NewEvent};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient};
use uuid::Uuid;

/// An event to be appended, for every way to append.
#[derive(Clone, Debug)]
struct Given {
    event_id: Uuid,
    event_type: String,
    payload: String,
    metadata: String,
    stream: Option<(String, String)>,
    tenant_id: String,
    schema_version: i32,
    correlation_id: Option<Uuid>,
    causation_id: Option<Uuid>,
    created_by: Option<String>,
}

impl Given {
    fn new(event_type: &str, payload: &str) -> Given {
        Given {
            event_id: Uuid::new_v4(),
            event_type: event_type.into(),
            payload: payload.into(),
            metadata: "{}".into(),
            stream: None,
            tenant_id: String::new(),
            schema_version: 1,
            correlation_id: None,
            causation_id: None,
            created_by: None,
        }
    }

    fn of(stream_type: &str, stream_id: &str) -> Given {
        Given { stream: Some((stream_type.into(), stream_id.into())), ..Given::new("thing.happened", "{}") }
    }

    fn with(&self, change: impl FnOnce(&mut Given)) -> Given {
        let mut other = self.clone();
        change(&mut other);
        other
    }

    fn to_new_event(&self) -> NewEvent {
        let mut event = NewEvent::from_json(&self.event_type, &self.payload)
            .event_id(self.event_id)
            .tenant(&self.tenant_id)
            .schema_version(self.schema_version)
            .metadata_json(&self.metadata);
        if let Some((stream_type, stream_id)) = &self.stream {
            event = event.in_stream(stream_type, stream_id);
        }
        if let Some(id) = self.correlation_id {
            event = event.correlation(id);
        }
        if let Some(id) = self.causation_id {
            event = event.causation(id);
        }
        if let Some(who) = &self.created_by {
            event = event.created_by(who);
        }
        event
    }
}

/// A way to append.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// `Inorder::append_in`.
    In,
    /// `Inorder::append`.
    Alone,
    /// The SQL function for batches.
    Batch,
    /// The SQL function for one event.
    One,
}

const WAYS: [Way; 4] = [Way::In, Way::Alone, Way::Batch, Way::One];

/// What an append answers.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Appended(Vec<i64>),
    Already(Vec<i64>),
    Completed(Vec<i64>, usize),
    Conflict(i64),
    Mismatch(Uuid, i64),
    Refused(String),
}

impl Answer {
    fn of(append: Result<Append, Error>) -> Result<Answer, Error> {
        Ok(match append {
            Ok(Append::Appended(ids)) => Answer::Appended(ids),
            Ok(Append::AlreadyAppended(ids)) => Answer::Already(ids),
            Ok(Append::Completed { ids, already }) => Answer::Completed(ids, already),
            Ok(Append::Conflict { actual, .. }) => Answer::Conflict(actual),
            Ok(Append::Mismatch { event_id, id }) => Answer::Mismatch(event_id, id),
            Err(e) if e.kind() == ErrorKind::Refused => Answer::Refused(without_prefix(&e.to_string())),
            Err(e) => return Err(e),
        })
    }
}

fn without_prefix(message: &str) -> String {
    message.strip_prefix("append refused: ").unwrap_or_else(|| panic!("{message}")).to_owned()
}

async fn log(url: &str) -> Inorder {
    Inorder::connect(url).await.unwrap()
}

fn new_events(given: &[Given]) -> Vec<NewEvent> {
    given.iter().map(Given::to_new_event).collect()
}

fn number(expected: ExpectedVersion) -> Option<i64> {
    match expected {
        ExpectedVersion::Any => None,
        ExpectedVersion::NoStream => Some(0),
        ExpectedVersion::Exists => Some(-1),
        ExpectedVersion::Exact(version) => Some(version),
    }
}

/// `inorder.append_events(…)`
async fn batch(client: &impl GenericClient, expected: ExpectedVersion, given: &[Given]) -> Answer {
    fn column<T>(given: &[Given], field: impl Fn(&Given) -> T) -> Vec<T> {
        given.iter().map(field).collect()
    }
    let row = client
        .query_typed_one(
            "SELECT * FROM inorder.append_events($1, $2, $3, $4,
                metadata => $5, stream_types => $6, stream_ids => $7, tenant_ids => $8, schema_versions => $9,
                correlation_ids => $10, causation_ids => $11, created_by => $12)",
            &[
                (&number(expected), Type::INT8),
                (&column(given, |e| e.event_id), Type::UUID_ARRAY),
                (&column(given, |e| e.event_type.clone()), Type::TEXT_ARRAY),
                (&column(given, |e| e.payload.clone()), Type::TEXT_ARRAY),
                (&column(given, |e| e.metadata.clone()), Type::TEXT_ARRAY),
                (&column(given, |e| e.stream.clone().map(|s| s.0)), Type::TEXT_ARRAY),
                (&column(given, |e| e.stream.clone().map(|s| s.1)), Type::TEXT_ARRAY),
                (&column(given, |e| e.tenant_id.clone()), Type::TEXT_ARRAY),
                (&column(given, |e| e.schema_version), Type::INT4_ARRAY),
                (&column(given, |e| e.correlation_id), Type::UUID_ARRAY),
                (&column(given, |e| e.causation_id), Type::UUID_ARRAY),
                (&column(given, |e| e.created_by.clone()), Type::TEXT_ARRAY),
            ],
        )
        .await
        .unwrap();
    match row.get("outcome") {
        "appended" => Answer::Appended(row.get("ids")),
        "already_appended" => Answer::Already(row.get("ids")),
        "completed" => {
            Answer::Completed(row.get("ids"), usize::try_from(row.get::<_, i32>("already")).unwrap())
        }
        "conflict" => Answer::Conflict(row.get("actual")),
        "mismatch" => Answer::Mismatch(row.get("mismatch_event_id"), row.get("mismatch_id")),
        "refused" => Answer::Refused(row.get("refusal")),
        other => panic!("{other}"),
    }
}

/// `inorder.append(…)`. A refusal is an exception.
async fn one(
    client: &impl GenericClient,
    expected: ExpectedVersion,
    given: &Given,
) -> Result<Answer, tokio_postgres::Error> {
    let (stream_type, stream_id) = given.stream.clone().unzip();
    let row = client
        .query_typed_one(
            "SELECT * FROM inorder.append($1, $2::json, stream_type => $3, stream_id => $4, expected_version => $5,
                event_id => $6, tenant_id => $7, schema_version => $8, metadata => $9::json, correlation_id => $10,
                causation_id => $11, created_by => $12)",
            &[
                (&given.event_type as &(dyn ToSql + Sync), Type::TEXT),
                (&given.payload, Type::TEXT),
                (&stream_type, Type::TEXT),
                (&stream_id, Type::TEXT),
                (&number(expected), Type::INT8),
                (&given.event_id, Type::UUID),
                (&given.tenant_id, Type::TEXT),
                (&given.schema_version, Type::INT4),
                (&given.metadata, Type::TEXT),
                (&given.correlation_id, Type::UUID),
                (&given.causation_id, Type::UUID),
                (&given.created_by, Type::TEXT),
            ],
        )
        .await;
    let row = match row {
        Ok(row) => row,
        Err(e) if e.code().is_some_and(|code| code.code() == "IO002") => {
            let e = e.as_db_error().unwrap();
            assert!(e.hint().is_some());
            return Ok(Answer::Refused(without_prefix(e.message())));
        }
        Err(e) => return Err(e),
    };
    assert_eq!(row.get::<_, Uuid>("event_id"), given.event_id);
    Ok(match row.get("outcome") {
        "appended" => Answer::Appended(vec![row.get("id")]),
        "already_appended" => Answer::Already(vec![row.get("id")]),
        "conflict" => Answer::Conflict(row.get("stream_version")),
        "mismatch" => Answer::Mismatch(given.event_id, row.get("id")),
        other => panic!("{other}"),
    })
}

/// Appends in one of the ways, in a transaction that is committed afterwards: whatever the answer, it is usable (but after
/// the exception that a refusal by `inorder.append` is).
async fn append(
    way: Way,
    log: &Inorder,
    client: &mut Client,
    expected: ExpectedVersion,
    given: &[Given],
) -> Answer {
    if way == Way::Alone {
        return Answer::of(log.append(expected, &new_events(given)).await).unwrap();
    }
    let tx = client.transaction().await.unwrap();
    let answer = match (way, given) {
        (Way::In, _) => Answer::of(log.append_in(&tx, expected, &new_events(given)).await).unwrap(),
        (Way::One, [given]) => {
            let answer = one(&tx, expected, given).await.unwrap();
            if matches!(answer, Answer::Refused(_)) {
                tx.rollback().await.unwrap();
                return answer;
            }
            answer
        }
        _ => batch(&tx, expected, given).await,
    };
    tx.execute("SELECT 1", &[]).await.unwrap();
    tx.commit().await.unwrap();
    answer
}

async fn count(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM inorder.events", &[]).await.unwrap().get(0)
}

/// A log that takes payloads up to `max_payload_bytes`.
async fn log_up_to(url: &str, max_payload_bytes: usize) -> Inorder {
    Inorder::with_config(Config { max_payload_bytes, ..Config::new(url) }).await.unwrap()
}
