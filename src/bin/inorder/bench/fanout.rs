//! `fanout`: rows that are read from the log for ten consumers at its head, beside those read for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::append::{PAYLOAD, counting};
use super::arena::{Arena, until};
use super::figures::{Bar, Case};
use super::{Args, Result, ours_first, sql};

const EVENTS: u32 = 20_000;
const REPETITIONS: u32 = 3;
const CONSUMERS: usize = 10;
const WRITERS: usize = 4;

pub(super) async fn measure(args: &Args, arena: &Arena) -> Result<Vec<Case>> {
    let name = "ten consumers";
    if !args.wants(name) {
        return Ok(Vec::new());
    }
    let events = args.events.unwrap_or(EVENTS);
    let mut case = Case::new(name, "rows read per event", Bar::RatioAtMost(1.5));
    for repetition in 0..args.repetitions(REPETITIONS) {
        let (ten, one);
        if ours_first(repetition) {
            ten = rows_read(arena, CONSUMERS, events).await?;
            one = rows_read(arena, 1, events).await?;
        } else {
            one = rows_read(arena, 1, events).await?;
            ten = rows_read(arena, CONSUMERS, events).await?;
        }
        case.add(ten, one);
    }
    Ok(vec![case])
}

/// Rows read from the log, whoever read them, for each event that was appended while so many consumers followed.
async fn rows_read(arena: &Arena, consumers: usize, events: u32) -> Result<f64> {
    let log = arena.log().await?;
    let schema = log.config().schema.clone();
    let (running, delivered) = counting(&log, consumers).await?;
    let left = Arc::new(AtomicU32::new(events));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let session = arena.connect().await?;
        let (insert, left) = (session.prepare(&sql::insert(&schema)).await?, Arc::clone(&left));
        writers.spawn(async move {
            let take = |n: u32| n.checked_sub(1);
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
                session.execute(&insert, &[/* event_type */ &"order.placed", /* payload */ &PAYLOAD]).await?;
            }
            Ok::<(), tokio_postgres::Error>(())
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    until("every event is delivered to every consumer", async || {
        Ok(delivered.iter().all(|n| n.load(Ordering::Relaxed) >= u64::from(events)))
    })
    .await?;
    running.stop().await?;
    drop(log);
    let rows = reported(arena, &schema, events).await?;
    arena.drop_schema(&schema).await?;
    Ok(rows / f64::from(events))
}

/// A session reports what it read at its end at the latest, so all of ours are gone first.
async fn reported(arena: &Arena, schema: &str, events: u32) -> Result<f64> {
    until("the sessions are gone", async || {
        let row = arena.outside().query_one(sql::SESSIONS, &[&arena.database()]).await?;
        Ok(row.get::<_, i64>("sessions") == 0)
    })
    .await?;
    let mut before = (-1, -1);
    loop {
        let client = arena.connect().await?;
        let row = client.query_one(sql::ROWS_READ, &[&schema]).await?;
        let now: (i64, i64) = (row.get("rows"), row.get("appended"));
        if now == before && now.1 == i64::from(events) {
            #[expect(clippy::cast_precision_loss, reason = "a count of rows")]
            return Ok(now.0 as f64);
        }
        before = now;
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
}
