//! `deliver`: how fast stored events reach a handler, beside a bare read of them, and beside bare inserts of its effects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use futures_util::TryStreamExt;
use inorder::{Consumer, Dispatcher, Inorder};
use tokio_postgres::Client;

use super::append::counter_of;
use super::arena::{Arena, until};
use super::figures::{Bar, Case};
use super::{Args, Result, ours_first, sql};
use crate::failure::tell;

const EVENTS: u32 = 1_000_000;
const REPETITIONS: u32 = 5;
/// Rows of a page of the floor.
const PAGE: i64 = 1_000;
/// One in so many of the stored events is delivered to the transactional consumer, which is slower.
const TRANSACTIONAL_SHARE: u32 = 10;
/// Inserts of a transaction of the floor.
const TRANSACTION: usize = 200;

const BATCH: &str = "batch";
const STREAMED: &str = "batch, streamed floor";
const TRANSACTIONAL: &str = "transactional";

pub(super) async fn measure(args: &Args, arena: &Arena) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let events = args.events.unwrap_or(EVENTS);
    let repetitions = args.repetitions(REPETITIONS);
    let (batch, streamed) = (args.wants(BATCH), args.wants(STREAMED));
    if batch || streamed {
        let log = filled(arena, events).await?;
        for (name, floor, bar) in
            [(BATCH, Floor::Pages, Bar::RatioAtLeast(1.0)), (STREAMED, Floor::Streamed, Bar::None)]
        {
            if !args.wants(name) {
                continue;
            }
            let mut case = Case::new(name, "events/s", bar);
            for repetition in 0..repetitions {
                let consumer = format!("batch-{}-{repetition}", cases.len());
                let (ours, read);
                if ours_first(repetition) {
                    ours = delivered(arena, &log, &consumer, events).await?;
                    read = read_bare(arena, &log, floor, events).await?;
                } else {
                    read = read_bare(arena, &log, floor, events).await?;
                    ours = delivered(arena, &log, &consumer, events).await?;
                }
                case.add(ours, read);
            }
            cases.push(case);
        }
        arena.drop(log).await?;
    }
    if args.wants(TRANSACTIONAL) {
        let events = (events / TRANSACTIONAL_SHARE).max(1_000);
        let log = filled(arena, events).await?;
        let mut case = Case::new(TRANSACTIONAL, "events/s", Bar::RatioAtLeast(0.9));
        for repetition in 0..repetitions {
            let (ours, inserted);
            if ours_first(repetition) {
                ours = with_effects(arena, &log, &format!("transactional-{repetition}"), events).await?;
                inserted = inserts_by_hand(arena, &log, events).await?;
            } else {
                inserted = inserts_by_hand(arena, &log, events).await?;
                ours = with_effects(arena, &log, &format!("transactional-{repetition}"), events).await?;
            }
            case.add(ours, inserted);
        }
        cases.push(case);
        arena.drop(log).await?;
    }
    Ok(cases)
}

/// A log with so many events, all of it in memory.
async fn filled(arena: &Arena, events: u32) -> Result<Inorder> {
    let log = arena.log().await?;
    let schema = &log.config().schema;
    let client = arena.connect().await?;
    tell(format_args!("  storing {events} events"));
    client.execute(&sql::fill(schema), &[&i64::from(events)]).await?;
    client.batch_execute(&sql::vacuum(schema)).await?;
    let row = client.query_one(&sql::count_and_size(schema), &[]).await?;
    let bytes: f64 = row.get("bytes");
    tell(format_args!("  {} events of {bytes:.0} bytes of JSON", row.get::<_, i64>("events")));
    Ok(log)
}

#[derive(Clone, Copy, Debug)]
enum Floor {
    Pages,
    Streamed,
}

/// From nothing, through a dispatcher's start, until the position is at the end.
async fn run(
    arena: &Arena,
    log: &Inorder,
    name: &str,
    consumer: Consumer,
    done: impl Fn() -> bool,
) -> Result<f64> {
    let watching = arena.connect().await?;
    let position = watching.prepare(&sql::position(&log.config().schema)).await?;
    let last: i64 = watching.query_one(&sql::count_and_size(&log.config().schema), &[]).await?.get("last");
    let dispatcher = Dispatcher::builder(log).consumer(consumer).build()?;
    let began = Instant::now();
    let running = dispatcher.start().await?;
    until("every event is handed to the handler", async || Ok(done())).await?;
    until("the position is at the end of the log", async || {
        Ok(watching.query_one(&position, &[&name]).await?.get::<_, i64>(0) == last)
    })
    .await?;
    let took = began.elapsed().as_secs_f64();
    running.stop().await?;
    Ok(took)
}

async fn delivered(arena: &Arena, log: &Inorder, name: &str, events: u32) -> Result<f64> {
    arena.checkpoint().await?;
    let counter = Arc::new(AtomicU64::new(0));
    let all = u64::from(events);
    let took =
        run(arena, log, name, counter_of(name, &counter), || counter.load(Ordering::Relaxed) >= all).await?;
    exactly(counter.load(Ordering::Relaxed), events)?;
    Ok(f64::from(events) / took)
}

async fn read_bare(arena: &Arena, log: &Inorder, floor: Floor, events: u32) -> Result<f64> {
    let schema = &log.config().schema;
    let client = arena.connect().await?;
    arena.checkpoint().await?;
    let began = Instant::now();
    let read = match floor {
        Floor::Pages => read_pages(&client, schema).await?,
        Floor::Streamed => read_streamed(&client, schema).await?,
    };
    let took = began.elapsed().as_secs_f64();
    exactly(read, events)?;
    Ok(f64::from(events) / took)
}

async fn read_pages(client: &Client, schema: &str) -> Result<u64> {
    let page = client.prepare(&sql::page(schema)).await?;
    let (mut after, mut read) = (0_i64, 0);
    loop {
        let rows = client.query(&page, &[/* after */ &after, /* limit */ &PAGE]).await?;
        let Some(last) = rows.last() else { return Ok(read) };
        after = last.get("id");
        read += rows.len() as u64;
    }
}

async fn read_streamed(client: &Client, schema: &str) -> Result<u64> {
    let rows = client.query_raw(&sql::stream(schema), std::iter::empty::<i64>()).await?;
    let mut read = 0;
    futures_util::pin_mut!(rows);
    while rows.try_next().await?.is_some() {
        read += 1;
    }
    Ok(read)
}

/// A handler that inserts one row an event.
async fn with_effects(arena: &Arena, log: &Inorder, name: &str, events: u32) -> Result<f64> {
    let schema = log.config().schema.clone();
    let client = arena.connect().await?;
    client.batch_execute(&sql::create_effects(&schema)).await?;
    arena.checkpoint().await?;
    let counter = Arc::new(AtomicU64::new(0));
    let (insert, handled) = (Arc::<str>::from(sql::insert_effect(&schema)), Arc::clone(&counter));
    let consumer = Consumer::transactional_fn(name, move |event, tx| {
        let (insert, handled) = (Arc::clone(&insert), Arc::clone(&handled));
        Box::pin(async move {
            tx.execute(&insert, &[/* id */ &event.id(), /* event_type */ &event.event_type()]).await?;
            handled.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    });
    let all = u64::from(events);
    let took = run(arena, log, name, consumer, || counter.load(Ordering::Relaxed) >= all).await?;
    check_effects(&client, &schema, events).await?;
    Ok(f64::from(events) / took)
}

async fn inserts_by_hand(arena: &Arena, log: &Inorder, events: u32) -> Result<f64> {
    let schema = &log.config().schema;
    let mut client = arena.connect().await?;
    client.batch_execute(&sql::create_effects(schema)).await?;
    arena.checkpoint().await?;
    let began = Instant::now();
    let insert = client.prepare(&sql::insert_effect(schema)).await?;
    let ids: Vec<i64> = (1..=i64::from(events)).collect();
    for ids in ids.chunks(TRANSACTION) {
        let tx = client.transaction().await?;
        for id in ids {
            tx.execute(&insert, &[/* id */ id, /* event_type */ &"order.placed"]).await?;
        }
        tx.commit().await?;
    }
    let took = began.elapsed().as_secs_f64();
    check_effects(&client, schema, events).await?;
    Ok(f64::from(events) / took)
}

async fn check_effects(client: &Client, schema: &str, events: u32) -> Result<()> {
    let effects: i64 = client.query_one(&sql::count_effects(schema), &[]).await?.get("effects");
    exactly(effects.unsigned_abs(), events)
}

fn exactly(count: u64, events: u32) -> Result<()> {
    if count == u64::from(events) {
        return Ok(());
    }
    Err(format!("{count} events came through, not {events}: nothing was measured").into())
}
