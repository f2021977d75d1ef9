//! Statements on `ledger`.

use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use time::OffsetDateTime;
use tokio_postgres::Client;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::consumers::{Key, seconds};
use super::{Schema, sql};
use crate::event::Event;

type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// What is to be claimed: its key, and its place in the log where it is an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) event_id: Uuid,
    pub(crate) position: Option<i64>,
}

/// On what terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) handler: &'a str,
    pub(crate) lease: Duration,
    pub(crate) owner: Option<Uuid>,
    /// Below the floor, too, and what is dead: an operator said that effects may repeat.
    pub(crate) repeat: bool,
    /// Only while this row is leased to us.
    pub(crate) row: Option<(&'a Key, i64)>,
}

/// How the row of a key stands after it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) event_id: Uuid,
    pub(crate) below_floor: bool,
    /// Ours, when there is one.
    pub(crate) token: Option<i64>,
    pub(crate) attempts: i32,
    pub(crate) faults: i32,
    /// Of a row that is not ours; `None` where another was making it at the same moment.
    pub(crate) status: Option<String>,
    /// Until when it is held, or waits for its next attempt.
    pub(crate) until: Option<OffsetDateTime>,
    /// The same, from now.
    pub(crate) held_for: Option<Duration>,
}

impl Entry {
    /// Of a row that nobody had before.
    pub(crate) fn new(event_id: Uuid, token: i64) -> Self {
        Self {
            event_id,
            below_floor: false,
            token: Some(token),
            attempts: 0,
            faults: 0,
            status: None,
            until: None,
            held_for: None,
        }
    }
}

/// Claims what can be claimed; an entry for each key, in any order.
pub(crate) async fn claim(
    client: &ClientWrapper,
    schema: &Schema,
    asked: &[Asked],
    on: Terms<'_>,
) -> Result<Vec<Entry>> {
    let (event_ids, positions): (Vec<Uuid>, Vec<Option<i64>>) =
        asked.iter().map(|a| (a.event_id, a.position)).unzip();
    let row = on.row.map(|(key, token)| (&*key.name, &*key.instance, key.partition, token));
    let statement = schema.prepare(client, sql!("ledger/claim")).await?;
    let rows = statement
        .query(
            client,
            &[
                /* event_ids */ &event_ids,
                /* positions */ &positions,
                /* handler */ &on.handler,
                /* lease */ &on.lease.as_secs_f64(),
                /* owner */ &on.owner,
                /* repeat */ &on.repeat,
                /* consumer */ &row.map(|r| r.0),
                /* instance */ &row.map(|r| r.1),
                /* partition */ &row.map(|r| r.2),
                /* lease_token */ &row.map(|r| r.3),
            ],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| Entry {
            event_id: row.get("event_id"),
            below_floor: row.get("below_floor"),
            token: row.get("token"),
            attempts: row.get::<_, Option<i32>>("attempts").unwrap_or(0),
            faults: row.get::<_, Option<i32>>("faults").unwrap_or(0),
            status: row.get("status"),
            until: row.get("until"),
            held_for: seconds(row.get("held_for")),
        })
        .collect())
}

/// Claims what nobody has claimed before, while the row is leased to us. Names what is ours, with the tokens.
pub(crate) async fn claim_new(
    client: &ClientWrapper,
    schema: &Schema,
    asked: &[(Uuid, i64)],
    handler: &str,
    lease: Duration,
    owner: Uuid,
    (key, lease_token): (&Key, i64),
) -> Result<Vec<(Uuid, i64)>> {
    let (event_ids, positions) = sorted(asked);
    let statement = schema.prepare(client, sql!("ledger/claim_new")).await?;
    let rows = statement
        .query(
            client,
            &[
                /* event_ids */ &event_ids,
                /* positions */ &positions,
                /* handler */ &handler,
                /* lease */ &lease.as_secs_f64(),
                /* owner */ &owner,
                /* consumer */ &key.name,
                /* instance */ &key.instance,
                /* partition */ &key.partition,
                /* lease_token */ &lease_token,
            ],
        )
        .await?;
    Ok(rows.iter().map(|row| (row.get("event_id"), row.get("token"))).collect())
}

/// A claim and what it came to.
#[derive(Clone, Debug)]
pub(crate) struct Settlement {
    pub(crate) event_id: Uuid,
    pub(crate) token: i64,
    pub(crate) status: &'static str,
    /// To be added, as the faults.
    pub(crate) attempts: i32,
    pub(crate) faults: i32,
    /// Until the next attempt, of a pending row.
    pub(crate) due_in: Duration,
    pub(crate) error: Option<String>,
}

impl Settlement {
    /// Free again at once, at no cost.
    pub(crate) fn released(event_id: Uuid, token: i64) -> Self {
        let (attempts, faults, due_in, error) = (0, 0, Duration::ZERO, None);
        Self { event_id, token, status: "pending", attempts, faults, due_in, error }
    }

    pub(crate) fn done(event_id: Uuid, token: i64) -> Self {
        Self { status: "done", ..Self::released(event_id, token) }
    }
}

/// Names those that were still held; the others were changed by nobody here.
pub(crate) async fn settle(
    client: &ClientWrapper,
    schema: &Schema,
    handler: &str,
    claims: &[Settlement],
) -> Result<Vec<Uuid>> {
    let column = Columns::of(claims.iter().map(|claim| (claim, None)));
    let statement = schema.prepare(client, sql!("ledger/settle")).await?;
    let rows = statement
        .query(
            client,
            &[
                /* event_ids */ &column.event_ids,
                /* tokens */ &column.tokens,
                /* handler */ &handler,
                /* statuses */ &column.statuses,
                /* attempts */ &column.attempts,
                /* faults */ &column.faults,
                /* due_in */ &column.due_in,
                /* errors */ &column.errors,
            ],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

struct Columns<'a> {
    event_ids: Vec<Uuid>,
    tokens: Vec<i64>,
    statuses: Vec<&'static str>,
    attempts: Vec<i32>,
    faults: Vec<i32>,
    due_in: Vec<f64>,
    errors: Vec<Option<&'a str>>,
    reasons: Vec<Option<&'static str>>,
}

impl<'a> Columns<'a> {
    /// In the order in which rows are locked.
    fn of(claims: impl Iterator<Item = (&'a Settlement, Option<&'static str>)>) -> Self {
        let mut claims: Vec<_> = claims.collect();
        claims.sort_unstable_by_key(|(claim, _)| claim.event_id);
        Self {
            event_ids: claims.iter().map(|(c, _)| c.event_id).collect(),
            tokens: claims.iter().map(|(c, _)| c.token).collect(),
            statuses: claims.iter().map(|(c, _)| c.status).collect(),
            attempts: claims.iter().map(|(c, _)| c.attempts).collect(),
            faults: claims.iter().map(|(c, _)| c.faults).collect(),
            due_in: claims.iter().map(|(c, _)| c.due_in.as_secs_f64()).collect(),
            errors: claims.iter().map(|(c, _)| c.error.as_deref()).collect(),
            reasons: claims.iter().map(|(_, reason)| *reason).collect(),
        }
    }
}

/// Names those that are held on: event, token, and the end of the lease.
pub(crate) async fn extend(
    client: &ClientWrapper,
    schema: &Schema,
    handler: &str,
    claims: &[(Uuid, i64)],
    lease: Duration,
) -> Result<Vec<(Uuid, i64, OffsetDateTime)>> {
    let (event_ids, tokens) = sorted(claims);
    let statement = schema.prepare(client, sql!("ledger/extend")).await?;
    let rows = statement
        .query(
            client,
            &[
                /* event_ids */ &event_ids,
                /* tokens */ &tokens,
                /* handler */ &handler,
                /* lease */ &lease.as_secs_f64(),
            ],
        )
        .await?;
    Ok(rows.iter().map(|row| (row.get("event_id"), row.get("token"), row.get("lease_until"))).collect())
}

/// An event that is to be taken into a queue.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) event_id: Uuid,
    pub(crate) position: i64,
    /// Of events that wait for others.
    pub(crate) stream: Option<String>,
}

/// Where events go, and from where the consumer's row is moved past them.
pub(crate) struct Intake<'a> {
    pub(crate) key: &'a Key,
    pub(crate) revision: i32,
    pub(crate) epoch: Uuid,
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) handler: &'a str,
    pub(crate) lease: Duration,
    pub(crate) owner: Uuid,
}

/// Takes events into a queue and moves the row past them; those that are ours to run, with their tokens. `None` when the row does
/// not stand there, is not ours, or the server is another one: nothing was changed.
pub(crate) async fn enqueue(
    client: &ClientWrapper,
    schema: &Schema,
    intake: &Intake<'_>,
    arrivals: &[Arrival],
) -> Result<Option<Vec<(Uuid, i64)>>> {
    let mut arrivals: Vec<&Arrival> = arrivals.iter().collect();
    arrivals.sort_unstable_by_key(|a| a.event_id);
    let event_ids: Vec<Uuid> = arrivals.iter().map(|a| a.event_id).collect();
    let positions: Vec<i64> = arrivals.iter().map(|a| a.position).collect();
    let streams: Vec<Option<&str>> = arrivals.iter().map(|a| a.stream.as_deref()).collect();
    let statement = schema.prepare(client, sql!("ledger/enqueue")).await?;
    let rows = statement
        .query(
            client,
            &[
                /* event_ids */ &event_ids,
                /* positions */ &positions,
                /* streams */ &streams,
                /* handler */ &intake.handler,
                /* lease */ &intake.lease.as_secs_f64(),
                /* owner */ &intake.owner,
                /* consumer */ &intake.key.name,
                /* instance */ &intake.key.instance,
                /* partition */ &intake.key.partition,
                /* revision */ &intake.revision,
                /* epoch */ &intake.epoch,
                /* from */ &intake.from,
                /* to */ &intake.to,
            ],
        )
        .await?;
    if rows.is_empty() {
        return Ok(None);
    }
    Ok(Some(rows.iter().filter_map(|row| Some((row.get::<_, Option<Uuid>>(0)?, row.get(1)))).collect()))
}

/// An event of a queue that is claimed.
#[derive(Clone, Debug)]
pub(crate) struct Due {
    pub(crate) event: Event,
    pub(crate) token: i64,
    pub(crate) attempts: i32,
    pub(crate) faults: i32,
}

/// What is to be claimed in a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep<'a> {
    pub(crate) handler: &'a str,
    pub(crate) key: &'a Key,
    pub(crate) limit: i64,
    pub(crate) lease: Duration,
    pub(crate) owner: Uuid,
    /// Within each stream.
    pub(crate) in_order: bool,
    /// A newer one of the application is not ours to run.
    pub(crate) revision: i32,
}

/// Claims what is due in a queue, in id order.
pub(crate) async fn sweep(client: &ClientWrapper, schema: &Schema, asked: Sweep<'_>) -> Result<Vec<Due>> {
    let statement = schema.prepare(client, sql!("ledger/sweep")).await?;
    let rows = statement
        .query(
            client,
            &[
                /* handler */ &asked.handler,
                /* limit */ &asked.limit,
                /* lease */ &asked.lease.as_secs_f64(),
                /* owner */ &asked.owner,
                /* consumer */ &asked.key.name,
                /* instance */ &asked.key.instance,
                /* in_order */ &asked.in_order,
                /* revision */ &asked.revision,
            ],
        )
        .await?;
    Ok(rows
        .into_iter()
        .map(|row| Due {
            token: row.get("token"),
            attempts: row.get("attempts"),
            faults: row.get("faults"),
            event: Event::from_row(row),
        })
        .collect())
}

/// Settles queued events that are done. Names those that were still held.
pub(crate) async fn settle_done(
    client: &ClientWrapper,
    schema: &Schema,
    handler: &str,
    key: &Key,
    claims: &[(Uuid, i64)],
) -> Result<Vec<Uuid>> {
    let (event_ids, tokens) = sorted(claims);
    let statement = schema.prepare(client, sql!("ledger/settle_done")).await?;
    let rows = statement
        .query(
            client,
            &[
                /* event_ids */ &event_ids,
                /* tokens */ &tokens,
                /* handler */ &handler,
                /* consumer */ &key.name,
                /* instance */ &key.instance,
            ],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Settles queued events, with the dead letters of those that have a reason. Names those that were still held.
pub(crate) async fn settle_queued(
    client: &ClientWrapper,
    schema: &Schema,
    handler: &str,
    key: &Key,
    claims: impl Iterator<Item = (&Settlement, Option<&'static str>)>,
) -> Result<Vec<Uuid>> {
    let column = Columns::of(claims);
    let statement = schema.prepare(client, sql!("ledger/settle_queued")).await?;
    let rows = statement
        .query(
            client,
            &[
                /* event_ids */ &column.event_ids,
                /* tokens */ &column.tokens,
                /* handler */ &handler,
                /* statuses */ &column.statuses,
                /* attempts */ &column.attempts,
                /* faults */ &column.faults,
                /* due_in */ &column.due_in,
                /* errors */ &column.errors,
                /* reasons */ &column.reasons,
                /* consumer */ &key.name,
                /* instance */ &key.instance,
            ],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// What became of rows that were to be recorded.
pub(crate) struct Recorded {
    /// Those that have something to do.
    pub(crate) handlers: Vec<String>,
    pub(crate) refusal: Option<String>,
}

/// Records that a queued consumer is to handle events, in the transaction that the session is in. Nothing is prepared.
pub(crate) async fn record_pending(
    client: &Client,
    schema: &Schema,
    consumer: &str,
    ids: &[i64],
) -> Result<Recorded> {
    let rows = client
        .query_typed(
            &schema.sql(sql!("ledger/record_pending")),
            &[(/* consumer */ &consumer, Type::TEXT), (/* ids */ &ids, Type::INT8_ARRAY)],
        )
        .await?;
    let [row] = rows.as_slice() else { unreachable!("a function with OUT parameters answers one row") };
    Ok(Recorded {
        handlers: row.get::<_, Option<_>>("handlers").unwrap_or_default(),
        refusal: row.get("refusal"),
    })
}

/// Claims in the order in which rows of the ledger are locked.
pub(super) fn sorted(claims: &[(Uuid, i64)]) -> (Vec<Uuid>, Vec<i64>) {
    let mut claims = claims.to_vec();
    claims.sort_unstable();
    claims.into_iter().unzip()
}

/// How much is unfinished, by handler and status; 10,000 at most.
#[cfg(feature = "http")]
pub(crate) async fn count_unfinished(
    client: &ClientWrapper,
    schema: &Schema,
) -> Result<Vec<(String, String, i64)>> {
    let statement = schema.prepare(client, sql!("ledger/count_unfinished")).await?;
    let rows = statement.query(client, &[]).await?;
    Ok(rows.iter().map(|r| (r.get(0), r.get(1), r.get(2))).collect())
}
