//! `latency`: from the commit being acknowledged to the handler being entered, beside LISTEN, NOTIFY and a SELECT.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use inorder::{Consumer, Dispatcher};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio_postgres::Client;

use super::append::PAYLOAD;
use super::arena::{Arena, LIMIT};
use super::figures::{Bar, Case, percentile};
use super::{Args, Result, ours_first, sql};

const REPETITIONS: u32 = 5;
/// Of each measurement.
const SECONDS: u32 = 10;
/// Before the first event that counts.
const WARM_UP: Duration = Duration::from_millis(1_500);
/// Events before those that count.
const UNCOUNTED: usize = 3;

/// How far events are apart.
const PACES: [(&str, Duration); 2] =
    [("asleep", Duration::from_millis(500)), ("awake", Duration::from_millis(5))];

pub(super) async fn measure(args: &Args, arena: &Arena) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let clock = args.seconds(SECONDS);
    for (pace, apart) in PACES {
        let (p50, p99) = (format!("p50 {pace}"), format!("p99 {pace}"));
        if !args.wants(&p50) && !args.wants(&p99) {
            continue;
        }
        let mut p50 = Case::new(p50, "ms", Bar::RatioAtMost(2.0));
        let mut p99 = Case::new(p99, "ms", Bar::None);
        for repetition in 0..args.repetitions(REPETITIONS) {
            let (ours, floor);
            if ours_first(repetition) {
                ours = through_inorder(arena, apart, clock).await?;
                floor = through_notify(arena, apart, clock).await?;
            } else {
                floor = through_notify(arena, apart, clock).await?;
                ours = through_inorder(arena, apart, clock).await?;
            }
            p50.add(percentile(&ours, 0.5), percentile(&floor, 0.5));
            p99.add(percentile(&ours, 0.99), percentile(&floor, 0.99));
        }
        cases.extend([p50, p99]);
    }
    Ok(cases)
}

/// An event arrived: its id, and when.
type Arrival = (i64, Instant);

async fn through_inorder(arena: &Arena, apart: Duration, clock: Duration) -> Result<Vec<f64>> {
    let log = arena.log().await?;
    let (entered, arrivals) = mpsc::unbounded_channel::<Arrival>();
    let consumer = Consumer::transactional_fn("latency", move |event, _| {
        // Nobody is interested any more when this fails.
        let _ = entered.send((event.id(), Instant::now()));
        Box::pin(async { Ok(()) })
    });
    let running = Dispatcher::builder(&log).consumer(consumer).build()?.start().await?;
    let producer = arena.connect().await?;
    let insert = sql::insert_returning(&log.config().schema);
    let latencies = produce(&producer, &insert, apart, clock, arrivals).await?;
    running.stop().await?;
    arena.drop(log).await?;
    Ok(latencies)
}

/// A notification in the inserting transaction names the id; the row is then read on another connection.
async fn through_notify(arena: &Arena, apart: Duration, clock: Duration) -> Result<Vec<f64>> {
    let log = arena.bare().await?;
    let schema = &log.config().schema;
    let (notified, mut notifications) = mpsc::unbounded_channel::<i64>();
    let listener = inorder::testing::connect_hearing(&arena.url(), move |payload| {
        if let Ok(id) = payload.parse() {
            // Nobody is interested any more when this fails.
            let _ = notified.send(id);
        }
    })
    .await?;
    listener.batch_execute(&format!("LISTEN {schema}")).await?;
    let reader = arena.connect().await?;
    let event = reader.prepare(&sql::event(schema)).await?;
    let (entered, arrivals) = mpsc::unbounded_channel::<Arrival>();
    let reading = tokio::spawn(async move {
        while let Some(id) = notifications.recv().await {
            let row = reader.query_one(&event, &[/* id */ &id]).await?;
            if entered.send((row.get("id"), Instant::now())).is_err() {
                break;
            }
        }
        Ok::<(), tokio_postgres::Error>(())
    });
    let producer = arena.connect().await?;
    let latencies = produce(&producer, &sql::insert_notifying(schema), apart, clock, arrivals).await?;
    // With it goes who hears.
    drop(listener);
    reading.await??;
    arena.drop(log).await?;
    Ok(latencies)
}

/// Appends events so far apart and answers, sorted, how many milliseconds after its commit was acknowledged each arrived.
async fn produce(
    producer: &Client,
    insert: &str,
    apart: Duration,
    clock: Duration,
    mut arrivals: UnboundedReceiver<Arrival>,
) -> Result<Vec<f64>> {
    let insert = producer.prepare(insert).await?;
    tokio::time::sleep(WARM_UP).await;
    let mut ticks = tokio::time::interval(apart);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut committed = HashMap::new();
    let mut order = Vec::new();
    let until = Instant::now() + clock;
    while Instant::now() < until {
        ticks.tick().await;
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
            [/* event_type */ &"order.placed", /* payload */ &PAYLOAD];
        let id: i64 = producer.query_one(&insert, &params).await?.get("id");
        committed.insert(id, Instant::now());
        order.push(id);
    }
    let mut arrived = HashMap::new();
    while arrived.len() < committed.len() {
        let Some((id, at)) = tokio::time::timeout(LIMIT, arrivals.recv()).await? else {
            return Err("the events did not arrive".into());
        };
        arrived.entry(id).or_insert(at);
    }
    let mut latencies: Vec<f64> = order
        .iter()
        .skip(UNCOUNTED)
        .filter_map(|id| Some(milliseconds(*committed.get(id)?, *arrived.get(id)?)))
        .collect();
    latencies.sort_by(f64::total_cmp);
    Ok(latencies)
}

/// An event can arrive before the producer has heard of its own commit: negative then.
fn milliseconds(committed: Instant, arrived: Instant) -> f64 {
    let after = arrived.saturating_duration_since(committed).as_secs_f64();
    let before = committed.saturating_duration_since(arrived).as_secs_f64();
    (after - before) * 1_000.0
}
