//! `queue`: how fast a queued consumer gets through stored events, beside a queue by hand, and beside an effect consumer.
//!
//! Ours is as in [`effect`](super::effect): woken, and reading the events. By hand, as many workers as ours has handlers at
//! once, each with a connection: each inserts a batch of rows, claims as many with FOR UPDATE SKIP LOCKED, and settles them, each
//! batch committed, on the same table in another schema. What they insert is known to them already.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use inorder::{Consumer, Inorder};
use tokio::task::JoinSet;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::arena::Arena;
use super::effect::{Clock, NAME, Ours, SLICES, all, made_up, one_by_one};
use super::figures::{Bar, Case};
use super::{Args, Result, ours_first, sql};

const REPETITIONS: u32 = 5;
const EVENTS: u32 = 360_000;
/// An effect consumer gets only one in so many of them.
const EFFECT_SHARE: u32 = 20;
const BATCH: usize = 1_000;
/// Handlers at once, and workers by hand.
const CONCURRENCY: usize = 10;

const BESIDE_HAND: &str = "queued beside a queue by hand";
const BESIDE_EFFECT: &str = "queued beside effect one by one";

pub(super) async fn measure(args: &Args, arena: &Arena) -> Result<Vec<Case>> {
    let slice = args.events.unwrap_or(EVENTS) / SLICES;
    let mut cases = Vec::new();
    if args.wants(BESIDE_HAND) {
        let mut case = Case::new(BESIDE_HAND, "events/s", Bar::RatioAtLeast(1.0));
        for _ in 0..args.repetitions(REPETITIONS) {
            let (ours, floor) = beside_hand(arena, slice).await?;
            case.add(ours, floor);
        }
        cases.push(case);
    }
    if args.wants(BESIDE_EFFECT) {
        let mut case = Case::new(BESIDE_EFFECT, "events/s", Bar::RatioAtLeast(10.0));
        for _ in 0..args.repetitions(REPETITIONS) {
            let (queued, effect) = beside_effect(arena, slice).await?;
            case.add(queued, effect);
        }
        cases.push(case);
    }
    Ok(cases)
}

async fn beside_hand(arena: &Arena, events: u32) -> Result<(f64, f64)> {
    let mut ours = Ours::start(arena, queued).await?;
    let mut floor = ByHand::connect(arena).await?;
    arena.checkpoint().await?;
    let (mut our_clock, mut floor_clock) = (Clock::default(), Clock::default());
    for n in 0..SLICES {
        let keys = made_up(events);
        if ours_first(n) {
            our_clock.add(events, ours.run(events).await?);
            floor_clock.add(events, floor.run(&keys).await?);
        } else {
            floor_clock.add(events, floor.run(&keys).await?);
            our_clock.add(events, ours.run(events).await?);
        }
    }
    ours.end(arena).await?;
    arena.drop(floor.log).await?;
    Ok((our_clock.rate(), floor_clock.rate()))
}

async fn beside_effect(arena: &Arena, events: u32) -> Result<(f64, f64)> {
    let fewer = (events / EFFECT_SHARE).max(1);
    let mut in_queue = Ours::start(arena, queued).await?;
    let mut in_order = Ours::start(arena, one_by_one).await?;
    arena.checkpoint().await?;
    let (mut queue_clock, mut order_clock) = (Clock::default(), Clock::default());
    for n in 0..SLICES {
        if ours_first(n) {
            queue_clock.add(events, in_queue.run(events).await?);
            order_clock.add(fewer, in_order.run(fewer).await?);
        } else {
            order_clock.add(fewer, in_order.run(fewer).await?);
            queue_clock.add(events, in_queue.run(events).await?);
        }
    }
    in_queue.end(arena).await?;
    in_order.end(arena).await?;
    Ok((queue_clock.rate(), order_clock.rate()))
}

fn queued(counter: &Arc<AtomicU64>) -> Consumer {
    let counter = Arc::clone(counter);
    let consumer = Consumer::queued_fn(NAME, move |_, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(()) })
    });
    consumer.batch_size(BATCH).concurrency(CONCURRENCY)
}

/// A queue by hand: workers that insert, claim and settle, a batch at a time.
struct ByHand {
    log: Inorder,
    workers: Vec<Worker>,
}

struct Worker {
    session: Client,
    insert: Statement,
    claim: Statement,
    settle: Statement,
}

impl ByHand {
    async fn connect(arena: &Arena) -> Result<Self> {
        let log = arena.log().await?;
        let schema = &log.config().schema;
        let mut workers = Vec::new();
        for _ in 0..CONCURRENCY {
            let session = arena.connect().await?;
            session.batch_execute(sql::LOOK_UP).await?;
            let insert = session.prepare(&sql::enqueue(schema)).await?;
            let claim = session.prepare(&sql::claim_due(schema)).await?;
            let settle = session.prepare(&sql::settle_batch(schema)).await?;
            workers.push(Worker { session, insert, claim, settle });
        }
        Ok(Self { log, workers })
    }

    /// Inserts these keys and takes them through the queue.
    async fn run(&mut self, keys: &[(Uuid, i64)]) -> Result<Duration> {
        let batches: Arc<[Vec<(Uuid, i64)>]> = keys.chunks(BATCH).map(<[_]>::to_vec).collect();
        let next = Arc::new(AtomicUsize::new(0));
        let began = Instant::now();
        let mut working = JoinSet::new();
        for worker in self.workers.drain(..) {
            let (batches, next) = (Arc::clone(&batches), Arc::clone(&next));
            working.spawn(async move {
                let mut settled = 0;
                while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                    worker.insert(batch).await?;
                    settled += worker.work().await?;
                }
                // What another has inserted since.
                loop {
                    match worker.work().await? {
                        0 => break,
                        events => settled += events,
                    }
                }
                Result::Ok((worker, settled))
            });
        }
        let mut settled = 0;
        while let Some(worked) = working.join_next().await {
            let (worker, events) = worked??;
            self.workers.push(worker);
            settled += events;
        }
        let took = began.elapsed();
        all(settled, keys.len())?;
        Ok(took)
    }
}

impl Worker {
    async fn insert(&self, keys: &[(Uuid, i64)]) -> Result<()> {
        let (event_ids, positions): (Vec<Uuid>, Vec<i64>) = keys.iter().copied().unzip();
        let arguments: [&(dyn ToSql + Sync); 3] =
            [/* event_ids */ &event_ids, /* handler */ &NAME, /* positions */ &positions];
        self.session.execute(&self.insert, &arguments).await?;
        Ok(())
    }

    /// Claims a batch and settles it, as if it had been handled. How many there were.
    async fn work(&self) -> Result<u64> {
        let limit = i64::try_from(BATCH)?;
        let claimed = self.session.query(&self.claim, &[/* handler */ &NAME, /* limit */ &limit]).await?;
        if claimed.is_empty() {
            return Ok(0);
        }
        // In the order of the index, as ours.
        let mut claimed: Vec<(Uuid, i64)> =
            claimed.iter().map(|row| (row.get("event_id"), row.get("token"))).collect();
        claimed.sort_unstable();
        let (event_ids, tokens): (Vec<Uuid>, Vec<i64>) = claimed.into_iter().unzip();
        let arguments: [&(dyn ToSql + Sync); 3] =
            [/* event_ids */ &event_ids, /* handler */ &NAME, /* tokens */ &tokens];
        Ok(self.session.execute(&self.settle, &arguments).await?)
    }
}
