//! A process that consumes, to be killed and frozen: this program again, with a hidden verb.
//!
//! On standard output it says, a line each, `ready`; `> lane call time id id:event …` when a handler is entered with these
//! events; `< lane call time` when it is left, however it is left. A line is written before the handler does anything, so
//! that whatever had an effect was announced. It ends in good order when its standard input does.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use inorder::{
    Backoff, BatchHandler, Config, Consumer, Dispatcher, Event, HandlerTx, Running, Start,
    TransactionalHandler,
};
use tokio::io::AsyncReadExt;
use uuid::Uuid;

use super::MutantName;
use super::effects::hand;
use super::lanes::{EACH, FILTERED, HANDLER_LIMIT, LINGERING, Line, MINE, SLICES};
use super::statements::{EFFECT, render};
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::options::Options;

/// Consume, for `verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The name of this process.
    #[arg(long)]
    process: String,
    /// Which process of this name it is.
    #[arg(long)]
    incarnation: u32,
    #[arg(long)]
    mutant: Option<MutantName>,
    /// Whom the effects call; without it, the consumers are of the kinds that have their effects in the database.
    #[arg(long)]
    receiver: Option<String>,
}

impl Args {
    /// This process, of all that run under its name.
    pub(crate) fn name(&self) -> String {
        format!("{}.{}", self.process, self.incarnation)
    }
}

/// A handler that panics on purpose says so with this, and nothing else is printed.
pub(crate) const ON_PURPOSE: &str = "a panic on purpose";

pub(crate) async fn run(args: Args, options: &Options, interrupt: &Interrupt) -> Result<(), Failure> {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() != Some(&ON_PURPOSE) {
            usual(info);
        }
    }));
    let starting = async {
        loop {
            match start(&args, options).await {
                // The server may be down on purpose.
                Err(failure) if failure.exit() == Exit::Unreachable => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                started => return started,
            }
        }
    };
    let running = tokio::select! {
        started = starting => started?,
        () = orphaned(interrupt) => return Ok(()),
    };
    say("ready\n");
    tokio::select! {
        () = orphaned(interrupt) => Ok(running.stop().await?),
        stopped = running.stopped() => Ok(stopped?),
    }
}

/// Waits until the parent wants us to end, or has ended itself.
async fn orphaned(interrupt: &Interrupt) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = [0; 64];
    let reading = async { while matches!(stdin.read(&mut buffer).await, Ok(n) if n > 0) {} };
    tokio::select! {
        () = reading => {}
        () = interrupt.wait() => {}
    }
}

async fn start(args: &Args, options: &Options) -> Result<Running, Failure> {
    let adjust = |config: Config| Config {
        pool_size: 2,
        // The parent ends sessions by the first part, and tells by the second who wrote what.
        application_name: format!("{}/{}", config.schema, args.name()),
        ..config
    };
    let log = options.connect_with("verify-worker", adjust).await?;
    let scribe = Arc::new(Scribe {
        statement: render(EFFECT, &log.config().schema),
        process: args.process.clone(),
        worker: args.name(),
        calls: AtomicU64::new(0),
    });
    if let Some(receiver) = &args.receiver {
        return Ok(hand::start(&log, scribe, receiver, args.mutant).await?);
    }
    let hand =
        |line: Line, fails: u32, lingers: bool| Hand { scribe: Arc::clone(&scribe), line, fails, lingers };
    let tuned = |consumer: Consumer, line: Line| {
        let consumer = consumer
            .start(Start::Beginning)
            .handler_timeout(HANDLER_LIMIT)
            .backoff(Backoff::exponential(Duration::from_millis(20)).up_to(Duration::from_millis(100)))
            .max_attempts(10_000);
        let consumer = match line.only {
            Some(only) => consumer.only([only]),
            None => consumer,
        };
        let partitions = u32::try_from(line.partitions).unwrap_or(1);
        if line.per_instance { consumer.per_instance() } else { consumer.partitions(partitions) }
    };
    let dispatcher = Dispatcher::builder(&log)
        .instance(&args.process)
        .mutant(args.mutant.map(Into::into))
        .consumer(tuned(Consumer::transactional(EACH.name, hand(EACH, 400, false)), EACH))
        .consumer(tuned(Consumer::batch(SLICES.name, hand(SLICES, 60, false)).batch_size(200), SLICES))
        .consumer(tuned(Consumer::transactional(FILTERED.name, hand(FILTERED, 200, false)), FILTERED))
        .consumer(tuned(Consumer::batch(MINE.name, hand(MINE, 0, false)), MINE))
        .consumer(tuned(Consumer::transactional(LINGERING.name, hand(LINGERING, 200, true)), LINGERING))
        .build()?;
    Ok(dispatcher.start().await?)
}

/// Writes effects, and announces calls.
pub(crate) struct Scribe {
    statement: String,
    process: String,
    worker: String,
    calls: AtomicU64,
}

impl Scribe {
    pub(crate) fn process(&self) -> &str {
        &self.process
    }
}

/// The handler of a consumer.
struct Hand {
    scribe: Arc<Scribe>,
    line: Line,
    /// Once in so many calls it fails after its effects are written; never where it is 0.
    fails: u32,
    lingers: bool,
}

impl TransactionalHandler for Hand {
    async fn handle(&self, event: &Event, tx: &HandlerTx<'_>) -> Result<(), inorder::Failure> {
        self.take(std::slice::from_ref(event), tx).await
    }
}

impl BatchHandler for Hand {
    async fn handle(&self, events: &[Event], tx: &HandlerTx<'_>) -> Result<(), inorder::Failure> {
        self.take(events, tx).await
    }
}

impl Hand {
    async fn take(&self, events: &[Event], tx: &HandlerTx<'_>) -> Result<(), inorder::Failure> {
        let lane = self.line.lane(&events[0], &self.scribe.process);
        let _inside = Inside::enter(&self.scribe, &lane, events);
        self.linger().await;
        let ids: Vec<i64> = events.iter().map(Event::id).collect();
        let event_ids: Vec<Uuid> = events.iter().map(Event::event_id).collect();
        tx.execute(
            &self.scribe.statement,
            &[
                /* lane */ &lane,
                /* ids */ &ids,
                /* event_ids */ &event_ids,
                /* worker */ &self.scribe.worker,
            ],
        )
        .await?;
        self.linger().await;
        match self.fails > 0 && fastrand::u32(..self.fails) == 0 {
            false => Ok(()),
            true if fastrand::u32(..4) == 0 => std::panic::panic_any(ON_PURPOSE),
            true => Err(inorder::Failure::retry("a failure on purpose")),
        }
    }

    async fn linger(&self) {
        if self.lingers {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(5..25))).await;
        }
    }
}

/// From entering a handler to leaving it.
pub(crate) struct Inside<'a> {
    lane: &'a str,
    call: u64,
}

impl<'a> Inside<'a> {
    pub(crate) fn enter(scribe: &Scribe, lane: &'a str, events: &[Event]) -> Self {
        let call = scribe.calls.fetch_add(1, Ordering::Relaxed);
        let last = events.last().map_or(0, Event::id);
        let mut line = format!("> {lane} {call} {} {last}", now_us());
        for event in events {
            line.push_str(&format!(" {}:{}", event.id(), event.event_id().simple()));
        }
        line.push('\n');
        say(&line);
        Self { lane, call }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        say(&format!("< {} {} {}\n", self.lane, self.call, now_us()));
    }
}

/// One write: what is announced is announced before anything else happens.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
        // Nobody is left to hear it.
        std::process::exit(1);
    }
}

/// Microseconds by a clock that all processes of a machine share.
pub(crate) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
