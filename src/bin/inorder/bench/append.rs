//! `append`: what an append costs with consumers attached, beside a bare insert into the same table without triggers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use inorder::{Append, Consumer, Dispatcher, ExpectedVersion, Inorder, NewEvent, Running};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::arena::{Arena, until};
use super::figures::{Bar, Case};
use super::{Args, Result, ours_first, sql};

const WRITERS: usize = 32;
const REPETITIONS: u32 = 5;
const SECONDS: u32 = 4;
/// Before the clock starts.
const WARM_UP: Duration = Duration::from_secs(2);

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
    let clock = args.seconds(SECONDS);
    for repetition in 0..args.repetitions(REPETITIONS) {
        for (side, case) in sides.iter().zip(&mut cases) {
            let (ours, floor);
            if ours_first(repetition) {
                ours = attached(arena, *side, clock).await?;
                floor = bare(arena, clock).await?;
            } else {
                floor = bare(arena, clock).await?;
                ours = attached(arena, *side, clock).await?;
            }
            case.add(ours.rate, floor);
            case.kept_up(ours.kept_up);
        }
    }
    Ok(cases)
}

async fn bare(arena: &Arena, clock: Duration) -> Result<f64> {
    let log = arena.bare().await?;
    arena.checkpoint().await?;
    let writers = Writers::start(arena, &log, Way::Insert).await?;
    let rate = writers.rate(clock, &[]).await?.rate;
    writers.stop().await?;
    arena.drop(log).await?;
    Ok(rate)
}

async fn attached(arena: &Arena, side: Side, clock: Duration) -> Result<Rate> {
    let log = arena.log().await?;
    arena.checkpoint().await?;
    let (running, delivered) = counting(&log, side.consumers).await?;
    let snapshot = arena.connect().await?;
    if side.snapshot {
        snapshot.batch_execute(sql::HOLD_SNAPSHOT).await?;
    }
    let writers = Writers::start(arena, &log, side.way).await?;
    let rate = writers.rate(clock, &delivered).await?;
    let appended = writers.stop().await?;
    until("every event is delivered to every consumer", async || {
        Ok(delivered.iter().all(|n| n.load(Ordering::Relaxed) >= appended))
    })
    .await?;
    running.stop().await?;
    drop(snapshot);
    arena.drop(log).await?;
    Ok(rate)
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

/// What the clock showed.
struct Rate {
    /// Events appended a second.
    rate: f64,
    /// Delivered to the slowest consumer, of what was appended meanwhile.
    kept_up: f64,
}

/// So many sessions, each appending one event after the other.
pub(super) struct Writers {
    appended: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<Result<()>>,
}

impl Writers {
    async fn start(arena: &Arena, log: &Inorder, way: Way) -> Result<Self> {
        let mut sessions = Vec::new();
        for _ in 0..WRITERS {
            sessions.push(arena.connect().await?);
        }
        let (appended, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for session in sessions {
            let (log, appended, stop) = (log.clone(), Arc::clone(&appended), Arc::clone(&stop));
            tasks.spawn(async move { write(session, &log, way, &appended, &stop).await });
        }
        Ok(Self { appended, stop, tasks })
    }

    async fn rate(&self, clock: Duration, delivered: &[Arc<AtomicU64>]) -> Result<Rate> {
        tokio::time::sleep(WARM_UP).await;
        let count = || {
            let delivered: Vec<u64> = delivered.iter().map(|n| n.load(Ordering::Relaxed)).collect();
            (Instant::now(), self.appended.load(Ordering::Relaxed), delivered)
        };
        let (began, appended_before, delivered_before) = count();
        tokio::time::sleep(clock).await;
        let (ended, appended_after, delivered_after) = count();
        let appended = exact(appended_after - appended_before);
        let shares = delivered_before
            .iter()
            .zip(&delivered_after)
            .map(|(before, after)| exact(after - before) / appended);
        Ok(Rate {
            rate: appended / ended.duration_since(began).as_secs_f64(),
            kept_up: shares.fold(f64::INFINITY, f64::min),
        })
    }

    /// Answers how many events were appended in all.
    async fn stop(mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(writer) = self.tasks.join_next().await {
            writer??;
        }
        Ok(self.appended.load(Ordering::Relaxed))
    }
}

async fn write(
    mut session: Client,
    log: &Inorder,
    way: Way,
    appended: &AtomicU64,
    stop: &AtomicBool,
) -> Result<()> {
    let schema = &log.config().schema;
    let statement = match way {
        Way::Insert | Way::AppendIn => sql::insert(schema),
        Way::InsertAndNotify => sql::insert_notifying(schema),
        Way::Function => sql::append_function(schema),
    };
    let statement = session.prepare(&statement).await?;
    while !stop.load(Ordering::Relaxed) {
        if matches!(way, Way::AppendIn) {
            let tx = session.transaction().await?;
            let event = NewEvent::from_json("order.placed", PAYLOAD);
            match log.append_in(&tx, ExpectedVersion::Any, &[event]).await? {
                Append::Appended(_) => tx.commit().await?,
                refused => return Err(format!("an append was answered by {refused:?}").into()),
            }
        } else {
            session.execute(&statement, &[/* event_type */ &"order.placed", /* payload */ &PAYLOAD]).await?;
        }
        appended.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a count of events")]
pub(super) fn exact(count: u64) -> f64 {
    count as f64
}
