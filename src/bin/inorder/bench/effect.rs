//! `effect`: how fast an effect consumer gets through stored events, beside two committed statements an event by hand.
//!
//! Ours is a running dispatcher whose handler only counts. Its clock runs from the commit that stores the events to the last
//! settlement: so it is woken, and it reads the events. The floor, one connection that knows the events already, claims an event
//! by an insert and settles it by an update, each committed, on the same table in another schema. Both have their turns in short
//! slices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use inorder::{Consumer, Dispatcher, Effect, EffectBatchHandler, Event, Failure, Inorder, Running};
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::append::exact;
use super::arena::{Arena, until};
use super::figures::{Bar, Case};
use super::{Args, Result, ours_first, sql};

const REPETITIONS: u32 = 3;
/// Into how many slices a measurement is cut, in each of which both sides have their turn.
pub(super) const SLICES: u32 = 12;
const EVENTS: u32 = 48_000;
/// A batch is so much faster that the clock would hardly run.
const BATCH_TIMES: u32 = 5;
/// As many as the batched form takes at once unless told otherwise.
const BATCH: usize = 100;
/// Whose claims they are, on both sides.
pub(super) const NAME: &str = "counter";

const ONE_BY_ONE: &str = "one by one";
const IN_BATCHES: &str = "in batches of 100";

pub(super) async fn measure(args: &Args, arena: &Arena) -> Result<Vec<Case>> {
    let events = args.events.unwrap_or(EVENTS);
    let mut cases = Vec::new();
    for (name, events, size, bar) in [
        (ONE_BY_ONE, events, 1, Bar::RatioAtLeast(0.9)),
        (IN_BATCHES, events * BATCH_TIMES, BATCH, Bar::None),
    ] {
        if !args.wants(name) {
            continue;
        }
        let mut case = Case::new(name, "events/s", bar);
        for _ in 0..args.repetitions(REPETITIONS) {
            let (ours, floor) = pair(arena, events / SLICES, size).await?;
            case.add(ours, floor);
        }
        cases.push(case);
    }
    Ok(cases)
}

async fn pair(arena: &Arena, events: u32, size: usize) -> Result<(f64, f64)> {
    let mut ours = match size {
        1 => Ours::start(arena, one_by_one).await?,
        _ => Ours::start(arena, in_batches).await?,
    };
    let mut floor = ByHand::connect(arena, size).await?;
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

/// What came through in which time, over all slices.
#[derive(Default)]
pub(super) struct Clock {
    events: u64,
    time: Duration,
}

impl Clock {
    pub(super) fn add(&mut self, events: u32, took: Duration) {
        self.events += u64::from(events);
        self.time += took;
    }

    /// Events a second.
    pub(super) fn rate(&self) -> f64 {
        exact(self.events) / self.time.as_secs_f64()
    }
}

pub(super) fn one_by_one(counter: &Arc<AtomicU64>) -> Consumer {
    let counter = Arc::clone(counter);
    Consumer::effect_fn(NAME, move |_, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(()) })
    })
}

struct Counting(Arc<AtomicU64>);

impl EffectBatchHandler for Counting {
    async fn handle(&self, events: &[Event], _: &[Effect]) -> std::result::Result<(), Failure> {
        self.0.fetch_add(events.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

fn in_batches(counter: &Arc<AtomicU64>) -> Consumer {
    Consumer::effect_batch(NAME, Counting(Arc::clone(counter))).batch_size(BATCH)
}

/// A running dispatcher with one consumer that counts.
pub(super) struct Ours {
    log: Inorder,
    running: Running,
    handled: Arc<AtomicU64>,
    stored: u64,
    session: Client,
    settled: Statement,
}

impl Ours {
    pub(super) async fn start(
        arena: &Arena,
        consumer: impl FnOnce(&Arc<AtomicU64>) -> Consumer,
    ) -> Result<Self> {
        let (log, handled) = (arena.log().await?, Arc::default());
        let running = Dispatcher::builder(&log).consumer(consumer(&handled)).build()?.start().await?;
        let session = arena.connect().await?;
        let settled = session.prepare(&sql::settled(&log.config().schema)).await?;
        Ok(Self { log, running, handled, stored: 0, session, settled })
    }

    /// Stores so many events, and takes the time from then until all are settled.
    pub(super) async fn run(&mut self, events: u32) -> Result<Duration> {
        self.session.execute(&sql::fill(&self.log.config().schema), &[&i64::from(events)]).await?;
        self.stored += u64::from(events);
        let began = Instant::now();
        until("every event is handled", async || Ok(self.handled.load(Ordering::Relaxed) >= self.stored))
            .await?;
        until("every event is settled", async || {
            Ok(self.session.query_one(&self.settled, &[/* handler */ &NAME]).await?.get("settled"))
        })
        .await?;
        Ok(began.elapsed())
    }

    /// # Errors
    /// An event was not handled once, or is not recorded as done.
    pub(super) async fn end(self, arena: &Arena) -> Result<()> {
        self.running.stop().await?;
        let handled = self.handled.load(Ordering::Relaxed);
        let done: i64 = self.session.query_one(&sql::done(&self.log.config().schema), &[]).await?.get("done");
        if handled != self.stored || done.unsigned_abs() != self.stored {
            let stored = self.stored;
            return Err(format!(
                "of {stored} events, {handled} were handled and {done} done: nothing was measured"
            )
            .into());
        }
        arena.drop(self.log).await
    }
}

/// Keys and positions of events that nobody has stored.
pub(super) fn made_up(events: u32) -> Vec<(Uuid, i64)> {
    (1..=i64::from(events)).map(|position| (Uuid::new_v4(), position)).collect()
}

/// One connection that claims and settles, one event or a batch at a time.
struct ByHand {
    log: Inorder,
    session: Client,
    size: usize,
    claim: Statement,
    settle: Statement,
}

impl ByHand {
    async fn connect(arena: &Arena, size: usize) -> Result<Self> {
        let (log, session) = (arena.log().await?, arena.connect().await?);
        session.batch_execute(sql::LOOK_UP).await?;
        let schema = &log.config().schema;
        let (claim, settle) = match size {
            1 => (sql::claim(schema), sql::settle(schema)),
            _ => (sql::claim_batch(schema), sql::settle_batch(schema)),
        };
        let (claim, settle) = (session.prepare(&claim).await?, session.prepare(&settle).await?);
        Ok(Self { log, session, size, claim, settle })
    }

    async fn run(&mut self, keys: &[(Uuid, i64)]) -> Result<Duration> {
        let began = Instant::now();
        for batch in keys.chunks(self.size) {
            match batch {
                [(event_id, position)] => self.one(*event_id, *position).await?,
                batch => self.batch(batch).await?,
            }
        }
        Ok(began.elapsed())
    }

    async fn one(&self, event_id: Uuid, position: i64) -> Result<()> {
        let claimed = self
            .session
            .query_one(
                &self.claim,
                &[/* event_id */ &event_id, /* handler */ &NAME, /* position */ &position],
            )
            .await?;
        let token: i64 = claimed.get("token");
        let settled = self
            .session
            .execute(&self.settle, &[/* event_id */ &event_id, /* handler */ &NAME, /* token */ &token])
            .await?;
        all(settled, 1)
    }

    async fn batch(&self, keys: &[(Uuid, i64)]) -> Result<()> {
        let (event_ids, positions): (Vec<Uuid>, Vec<i64>) = keys.iter().copied().unzip();
        let claimed = self
            .session
            .query(
                &self.claim,
                &[/* event_ids */ &event_ids, /* handler */ &NAME, /* positions */ &positions],
            )
            .await?;
        let (event_ids, tokens): (Vec<Uuid>, Vec<i64>) =
            claimed.iter().map(|row| (row.get::<_, Uuid>("event_id"), row.get::<_, i64>("token"))).unzip();
        let settled = self
            .session
            .execute(&self.settle, &[/* event_ids */ &event_ids, /* handler */ &NAME, /* tokens */ &tokens])
            .await?;
        all(settled, keys.len())
    }
}

pub(super) fn all(settled: u64, events: usize) -> Result<()> {
    if settled == events as u64 {
        return Ok(());
    }
    Err(format!("{settled} of {events} claims were settled by hand: nothing was measured").into())
}
