//! Statements of the safe head.

use deadpool_postgres::ClientWrapper;
use futures_util::{StreamExt, pin_mut};
use uuid::Uuid;

use super::{Schema, sql};
use crate::event::Event;

type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// The events above an id, holes and all.
pub(crate) struct Look {
    /// `None` when the process is not entered.
    pub(crate) epoch: Option<Uuid>,
    pub(crate) events: Vec<Event>,
    /// There may be more above the last one.
    pub(crate) more: bool,
}

/// The column behind those of the event.
const EPOCH: usize = 15;

/// Stops early when the events take more than `budget` bytes of memory.
pub(crate) async fn look(
    client: &ClientWrapper,
    schema: &Schema,
    process: Uuid,
    head: i64,
    limit: i64,
    budget: usize,
) -> Result<Look> {
    look_with(client, schema, sql!("events/look"), process, head, limit, budget).await
}

/// The mutant `xmin`.
#[cfg(feature = "cli")]
pub(crate) async fn look_below_xmin(
    client: &ClientWrapper,
    schema: &Schema,
    process: Uuid,
    head: i64,
    limit: i64,
    budget: usize,
) -> Result<Look> {
    look_with(client, schema, sql!("events/look_below_xmin"), process, head, limit, budget).await
}

async fn look_with(
    client: &ClientWrapper,
    schema: &Schema,
    statement: &'static str,
    process: Uuid,
    head: i64,
    limit: i64,
    budget: usize,
) -> Result<Look> {
    let statement = schema.prepare(client, statement).await?;
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [/* process */ &process, /* head */ &head, /* limit */ &limit];
    let rows = statement.query_raw(client, &params).await?;
    pin_mut!(rows);
    let mut look = Look { epoch: None, events: Vec::new(), more: false };
    let mut bytes = 0;
    while let Some(row) = rows.next().await {
        let row = row?;
        look.epoch = row.get(EPOCH);
        if row.get::<_, Option<i64>>(0).is_none() {
            break;
        }
        let event = Event::from_row(row);
        bytes += event.size();
        look.events.push(event);
        if bytes > budget {
            look.more = true;
            break;
        }
    }
    look.more |= i64::try_from(look.events.len()) == Ok(limit);
    Ok(look)
}

/// How far ids go.
pub(crate) struct Given {
    /// The last one that was given.
    pub(crate) last: i64,
    /// The highest one that is visible, 0 when there is no event.
    pub(crate) visible: i64,
    /// `None` when the process is not entered.
    pub(crate) epoch: Option<Uuid>,
}

pub(crate) async fn given(client: &ClientWrapper, schema: &Schema, process: Uuid) -> Result<Given> {
    let statement = schema.prepare(client, sql!("safe_head/given")).await?;
    let row = statement.query_one(client, &[/* process */ &process]).await?;
    Ok(Given { last: row.get("last"), visible: row.get("visible"), epoch: row.get("epoch") })
}

/// What the safe head rests on and does not hold.
pub(crate) async fn unsafe_reasons(client: &ClientWrapper, schema: &Schema) -> Result<Vec<String>> {
    let statement = schema.prepare(client, sql!("safe_head/unsafe")).await?;
    Ok(statement.query_one(client, &[]).await?.get("unsafe"))
}

/// The highest id, be it pruned, and the epoch.
pub(crate) async fn top(
    client: &ClientWrapper,
    schema: &Schema,
    process: Uuid,
) -> Result<(i64, Option<Uuid>)> {
    let statement = schema.prepare(client, sql!("safe_head/top")).await?;
    let row = statement.query_one(client, &[/* process */ &process]).await?;
    Ok((row.get("top"), row.get("epoch")))
}

/// A safe head to begin with, and the epoch.
pub(crate) async fn begin(
    client: &ClientWrapper,
    schema: &Schema,
    process: Uuid,
) -> Result<(i64, Option<Uuid>)> {
    let statement = schema.prepare(client, sql!("safe_head/begin")).await?;
    let row = statement.query_one(client, &[/* process */ &process]).await?;
    Ok((row.get("head"), row.get("epoch")))
}

/// Who could still fill a hole.
pub(crate) struct Writers {
    pub(crate) epoch: Option<Uuid>,
    /// What the safe head rests on and does not hold.
    pub(crate) unsafe_reasons: Vec<String>,
    /// By virtual transaction, with the pid where there is one.
    pub(crate) holders: Vec<(String, Option<i32>)>,
}

pub(crate) async fn writers(client: &ClientWrapper, schema: &Schema, process: Uuid) -> Result<Writers> {
    let statement = schema.prepare(client, sql!("safe_head/writers")).await?;
    let rows = statement.query(client, &[/* process */ &process]).await?;
    let mut found = Writers { epoch: None, unsafe_reasons: Vec::new(), holders: Vec::new() };
    for row in &rows {
        found.epoch = row.get("epoch");
        found.unsafe_reasons = row.get("unsafe");
        if let Some(transaction) = row.get("virtualtransaction") {
            found.holders.push((transaction, row.get("pid")));
        }
    }
    Ok(found)
}

/// What a look without a process of its own saw.
#[cfg(feature = "http")]
#[derive(Debug)]
pub(crate) struct Seen {
    /// Who is writing, by virtual transaction.
    pub(crate) writers: Vec<String>,
    /// Up to here there is no hole.
    pub(crate) reached: i64,
}

/// Looks who is writing, and how far the ids above `floor` go without a hole.
#[cfg(feature = "http")]
pub(crate) async fn sample(client: &ClientWrapper, schema: &Schema, floor: i64) -> Result<Seen> {
    let statement = schema.prepare(client, sql!("safe_head/sample")).await?;
    let row = statement.query_one(client, &[/* floor */ &floor]).await?;
    Ok(Seen { writers: row.get("writers"), reached: row.get("reached") })
}
