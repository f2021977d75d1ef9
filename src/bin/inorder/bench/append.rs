//! `append`: what an append costs with consumers attached, beside a bare insert into the same table without triggers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use inorder::{Append, Consumer, Dispatcher, ExpectedVersion, Inorder, NewEvent, Running};
use tokio::task::JoinSet;
use tokio_postgres::{Client, Statement};

use super::arena::{Arena, until};
use super::figures::{Bar, Case};
use super::{Args, Result, ours_first, sql};

const WRITERS: usize = 32;
const REPETITIONS: u32 = 5;
const SECONDS: u32 = 4;
/// Into how many slices that is cut, in each of which both sides have their turn.
const SLICES: u32 = 6;
/// Before the clock starts, in each slice: a dispatcher that slept is busy by then.
const WARM_UP: Duration = Duration::from_millis(500);

pub(super) const PAYLOAD: &str = r#"{"order":"8d6b1f0e-52a1-4c37-9a58-0b3f6a1c2d77","customer":"customer-4711","total":99.5,"currency":"EUR","items":[{"sku":"A-1001","n":2},{"sku":"B-2002","n":1}]}"#;

/// How one event is appended, a transaction each.
#[derive(Clone, Copy, Debug)]
enum Way {
    Insert,
    InsertAndNotify,
    AppendIn,
    Function,
}

/// What one case measures beside the floor, which is bare inserts without triggers or consumers.
#[derive(Clone, Copy, Debug)]
struct Side {
    name: &'static str,
    bar: Bar,
    consumers: usize,
    way: Way,
    /// Is a snapshot held while the clock runs?
    snapshot: bool,
}

const ONE: Side = Side {
    name: "one consumer",
    bar: Bar::RatioAtLeast(0.9),
    consumers: 1,
    way: Way::Insert,
    snapshot: false,
};

const SIDES: [Side; 6] = [
    ONE,
    Side { name: "ten consumers", bar: Bar::RatioAtLeast(0.8), consumers: 10, ..ONE },
    Side { name: "append_in", bar: Bar::None, way: Way::AppendIn, ..ONE },
    Side { name: "sql function", bar: Bar::None, way: Way::Function, ..ONE },
    Side { name: "long snapshot open", bar: Bar::RatioAtLeast(0.8), snapshot: true, ..ONE },
    Side { name: "notify in every transaction", bar: Bar::None, way: Way::InsertAndNotify, ..ONE },
];

pub(super) async fn measure(args: &Args, arena: &Arena) -> Result<Vec<Case>> {
    let sides: Vec<Side> = SIDES.into_iter().filter(|side| args.wants(side.name)).collect();
    let mut cases: Vec<Case> = sides.iter().map(|side| Case::new(side.name, "events/s", side.bar)).collect();
    let slice = args.seconds(SECONDS) / SLICES;
    for _ in 0..args.repetitions(REPETITIONS) {
        for (side, case) in sides.iter().zip(&mut cases) {
            let (ours, floor) = pair(arena, *side, slice).await?;
            case.add(ours.rate(), floor.rate());
            case.kept_up(ours.kept_up());
        }
    }
    Ok(cases)
}

/// Both sides in short slices, in turns: what else the machine does meanwhile falls on both.
async fn pair(arena: &Arena, side: Side, slice: Duration) -> Result<(Clock, Clock)> {
    let (log, bare) = (arena.log().await?, arena.bare().await?);
    arena.checkpoint().await?;
    let (running, delivered) = counting(&log, side.consumers).await?;
    let snapshot = arena.connect().await?;
    if side.snapshot {
        snapshot.batch_execute(sql::HOLD_SNAPSHOT).await?;
    }
    let mut ours = Writers::connect(arena, &log, side.way).await?;
    let mut floor = Writers::connect(arena, &bare, Way::Insert).await?;
    let (mut our_clock, mut floor_clock) = (Clock::new(delivered), Clock::new(Vec::new()));
    for n in 0..SLICES {
        if ours_first(n) {
            ours.write_for(slice, &mut our_clock).await?;
            floor.write_for(slice, &mut floor_clock).await?;
        } else {
            floor.write_for(slice, &mut floor_clock).await?;
            ours.write_for(slice, &mut our_clock).await?;
        }
    }
    until("every event is delivered to every consumer", async || Ok(our_clock.is_caught_up())).await?;
    running.stop().await?;
    drop(snapshot);
    arena.drop(log).await?;
    arena.drop(bare).await?;
    Ok((our_clock, floor_clock))
}

/// A dispatcher with so many batch consumers that do nothing but count.
pub(super) async fn counting(log: &Inorder, consumers: usize) -> Result<(Running, Vec<Arc<AtomicU64>>)> {
    let counters: Vec<Arc<AtomicU64>> = (0..consumers).map(|_| Arc::default()).collect();
    let mut dispatcher = Dispatcher::builder(log);
    for (n, counter) in counters.iter().enumerate() {
        dispatcher = dispatcher.consumer(counter_of(format!("counter-{n}"), counter));
    }
    Ok((dispatcher.build()?.start().await?, counters))
}

/// A batch consumer that counts what it is handed.
pub(super) fn counter_of(name: impl Into<String>, counter: &Arc<AtomicU64>) -> Consumer {
    let counter = Arc::clone(counter);
    Consumer::batch_fn(name, move |events, _| {
        counter.fetch_add(events.len() as u64, Ordering::Relaxed);
        Box::pin(async { Ok(()) })
    })
}

/// What one side appended in all, and while the clock ran, and what was delivered of that.
struct Clock {
    delivered: Vec<Arc<AtomicU64>>,
    appended: Arc<AtomicU64>,
    time: Duration,
    appended_in_time: u64,
    delivered_in_time: Vec<u64>,
}

impl Clock {
    fn new(delivered: Vec<Arc<AtomicU64>>) -> Self {
        let delivered_in_time = vec![0; delivered.len()];
        Self {
            delivered,
            appended: Arc::default(),
            time: Duration::ZERO,
            appended_in_time: 0,
            delivered_in_time,
        }
    }

    async fn run(&mut self, time: Duration) {
        let delivered_now =
            |all: &[Arc<AtomicU64>]| -> Vec<u64> { all.iter().map(|n| n.load(Ordering::Relaxed)).collect() };
        let (began, appended) = (Instant::now(), self.appended.load(Ordering::Relaxed));
        let delivered = delivered_now(&self.delivered);
        tokio::time::sleep(time).await;
        self.time += began.elapsed();
        self.appended_in_time += self.appended.load(Ordering::Relaxed) - appended;
        let after = delivered_now(&self.delivered);
        for ((sum, before), after) in self.delivered_in_time.iter_mut().zip(delivered).zip(after) {
            *sum += after - before;
        }
    }

    /// Events appended a second.
    fn rate(&self) -> f64 {
        exact(self.appended_in_time) / self.time.as_secs_f64()
    }

    /// Delivered to the slowest consumer, of what was appended meanwhile.
    fn kept_up(&self) -> f64 {
        let slowest = self.delivered_in_time.iter().copied().min().unwrap_or(0);
        exact(slowest) / exact(self.appended_in_time)
    }

    fn is_caught_up(&self) -> bool {
        let appended = self.appended.load(Ordering::Relaxed);
        self.delivered.iter().all(|n| n.load(Ordering::Relaxed) >= appended)
    }
}

/// So many sessions, each appending one event after the other.
struct Writers {
    log: Inorder,
    way: Way,
    sessions: Vec<(Client, Statement)>,
}

impl Writers {
    async fn connect(arena: &Arena, log: &Inorder, way: Way) -> Result<Self> {
        let schema = &log.config().schema;
        let text = match way {
            Way::Insert | Way::AppendIn => sql::insert(schema),
            Way::InsertAndNotify => sql::insert_notifying(schema),
            Way::Function => sql::append_function(schema),
        };
        let mut sessions = Vec::new();
        for _ in 0..WRITERS {
            let session = arena.connect().await?;
            let statement = session.prepare(&text).await?;
            sessions.push((session, statement));
        }
        Ok(Self { log: log.clone(), way, sessions })
    }

    /// Writes, and lets the clock run for so long when all are under way.
    async fn write_for(&mut self, time: Duration, clock: &mut Clock) -> Result<()> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for (mut session, statement) in self.sessions.drain(..) {
            let (log, way) = (self.log.clone(), self.way);
            let (appended, stop) = (Arc::clone(&clock.appended), Arc::clone(&stop));
            tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    write(&mut session, &statement, &log, way).await?;
                    appended.fetch_add(1, Ordering::Relaxed);
                }
                Result::Ok((session, statement))
            });
        }
        tokio::time::sleep(WARM_UP).await;
        clock.run(time).await;
        stop.store(true, Ordering::Relaxed);
        while let Some(session) = tasks.join_next().await {
            self.sessions.push(session??);
        }
        Ok(())
    }
}

/// One event, in a transaction of its own.
async fn write(session: &mut Client, insert: &Statement, log: &Inorder, way: Way) -> Result<()> {
    if !matches!(way, Way::AppendIn) {
        session.execute(insert, &[/* event_type */ &"order.placed", /* payload */ &PAYLOAD]).await?;
        return Ok(());
    }
    let tx = session.transaction().await?;
    let event = NewEvent::from_json("order.placed", PAYLOAD);
    match log.append_in(&tx, ExpectedVersion::Any, &[event]).await? {
        Append::Appended(_) => Ok(tx.commit().await?),
        refused => Err(format!("an append was answered by {refused:?}").into()),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of events")]
pub(super) fn exact(count: u64) -> f64 {
    count as f64
}
