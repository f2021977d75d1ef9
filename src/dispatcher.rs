//! Runs consumers: registers them, follows the head of the log, and drives their passes until it is stopped.
//!
//! ```text
//!  Dispatcher ──register──▶ Registered ──run_once, drain──▶ reports
//!                               │
//!                               └──start──▶ Running ──stop──▶ stopped
//! ```
//!
//! Any number of processes may run the same consumers: each row is held by one at a time, and a row whose holder dies is
//! free at once.
//!
//! Failure handling: a lost connection is made anew with back-off; nothing is lost with it. A process that is killed takes
//! its open transactions with it. Stopping lets handlers in flight finish up to a limit and then drops them; their events
//! cost no attempt.
//!
//! Not its job: what a pass does (the module `delivery`), and what is safe to deliver (the module `safe_head`).

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::consumer::{Consumer, Start, saturated};
use crate::delivery::supply::Window;
use crate::delivery::{Context, Head, Phase, Runner};
use crate::error::{Error, ErrorKind};
use crate::metrics;
use crate::outcome::{ConsumerReport, Outcome, Report};
use crate::pg::consumers::{Key, Registration};
use crate::pg::instances::Identity;
use crate::pg::{self, deadline};
use crate::safe_head::{Mutant, Pace, Tracker};
use crate::store::Inorder;

mod board;
mod housekeeping;
mod lane;
mod listener;
mod watcher;

use board::Board;
use housekeeping::keep_house;
use lane::LaneLoop;
use listener::{Bell, listen};
use watcher::{Parts, Watcher};

/// Consumers that are to be run together in this process.
#[derive(Debug)]
pub struct Dispatcher {
    log: Inorder,
    consumers: Vec<Arc<Consumer>>,
    settings: Settings,
}

/// What stands behind the builder, with its defaults.
#[derive(Clone, Debug)]
struct Settings {
    instance: Option<String>,
    max_passes: usize,
    poll_interval: Duration,
    poll_only: bool,
    stop_timeout: Duration,
    read_ahead_bytes: usize,
    expire_after: Duration,
    mutant: Option<Mutant>,
}

/// Puts a [`Dispatcher`] together.
#[derive(Debug)]
#[must_use = "nothing runs before it is built and started"]
pub struct DispatcherBuilder {
    log: Inorder,
    consumers: Vec<Consumer>,
    settings: Settings,
}

impl Dispatcher {
    /// A dispatcher for consumers of `log`.
    pub fn builder(log: &Inorder) -> DispatcherBuilder {
        let settings = Settings {
            instance: None,
            max_passes: 8,
            poll_interval: Duration::from_secs(1),
            poll_only: false,
            stop_timeout: Duration::from_secs(10),
            read_ahead_bytes: 64 * 1024 * 1024,
            expire_after: Duration::from_secs(7 * 24 * 3_600),
            mutant: None,
        };
        DispatcherBuilder { log: log.clone(), consumers: Vec::new(), settings }
    }

    /// Writes the state rows of all consumers, in one transaction, without touching existing positions.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a consumer that is registered with another kind, with another number of partitions, or
    /// with another filter under the same revision; [`ErrorKind::Migration`] for a schema that does not fit;
    /// [`ErrorKind::Unsafe`] when nothing can be delivered safely.
    pub async fn register(&self) -> Result<Registered, Error> {
        metrics::describe();
        self.log.check_schema().await?;
        let who = Identity { id: Uuid::new_v4(), host: host(), pid: pid() };
        let mut tracker = Tracker::begin(&self.log, &who, self.settings.mutant).await?;
        if self.consumers.iter().any(|c| c.first() != Start::Beginning || c.options.rejoin_at_head) {
            settle(&mut tracker).await?;
        }
        let keys = self.write_rows(&tracker).await?;
        let (phase, watched) = watch::channel(Phase::Running);
        let connector = self.log.connector();
        let wait = self.log.config().wait_timeout;
        let lanes = keys.len().max(1);
        let Settings { max_passes, read_ahead_bytes, mutant, .. } = self.settings;
        let cx = Context {
            log: self.log.clone(),
            process: who.id,
            passes: connector.pool(max_passes, wait)?,
            readers: connector.pool(max_passes.clamp(1, 4), wait)?,
            window: Window::new(read_ahead_bytes / 4),
            page_bytes: (read_ahead_bytes / (2 * lanes)).clamp(256 * 1024, 8 * 1024 * 1024),
            phase: watched,
            mutant,
        };
        Ok(Registered {
            runners: keys.into_iter().map(|(consumer, key)| Mutex::new(Runner::new(consumer, key))).collect(),
            tracker: Mutex::new(Some(tracker)),
            cx: Arc::new(cx),
            phase,
            who,
            settings: self.settings.clone(),
        })
    }

    /// Registers all consumers and runs them in the background.
    ///
    /// # Errors
    /// As for [`register`](Self::register).
    pub async fn start(&self) -> Result<Running, Error> {
        Ok(self.register().await?.start())
    }

    /// One row for each consumer and partition.
    fn rows(&self) -> Vec<(Arc<Consumer>, Key)> {
        let mut rows = Vec::new();
        for consumer in &self.consumers {
            let instance = match consumer.options.per_instance {
                true => self.settings.instance.clone().unwrap_or_default(),
                false => String::new(),
            };
            for partition in 0..consumer.partition_count() {
                let key = Key { name: consumer.name.clone(), instance: instance.clone(), partition };
                rows.push((Arc::clone(consumer), key));
            }
        }
        // Everybody writes rows in this order.
        rows.sort_by(|(_, a), (_, b)| a.cmp(b));
        rows
    }

    async fn write_rows(&self, tracker: &Tracker) -> Result<Vec<(Arc<Consumer>, Key)>, Error> {
        let rows = self.rows();
        let mut client = self.log.client("registering consumers").await?;
        let limit = self.log.limit();
        let begin =
            client.build_transaction().isolation_level(tokio_postgres::IsolationLevel::ReadCommitted).start();
        let tx = deadline(limit, "registering consumers", begin).await?;
        for (consumer, key) in &rows {
            let rejoin = consumer.options.rejoin_at_head;
            let start_after = match consumer.first() {
                Start::Beginning => 0,
                Start::Head => tracker.head(),
                Start::After(id) if id <= tracker.head() => id,
                Start::After(id) => {
                    return Err(Error::new(
                        ErrorKind::Config,
                        format!(
                            "consumer {key}: start is after id {id}, beyond the safe head {}; it must be at most that",
                            tracker.head()
                        ),
                    ));
                }
            };
            let registration = Registration {
                key,
                kind: consumer.kind.name(),
                revision: consumer.revision_number(),
                event_types: consumer.options.event_types.as_deref(),
                partitions: consumer.partition_count(),
                max_attempts: saturated(consumer.options.max_attempts),
                start_after,
                rejoin,
            };
            let what = format!("registering consumer {key}");
            let registering = pg::consumers::register(tx.client(), self.log.schema(), &registration);
            let registered = deadline(limit, &what, registering).await?;
            accept(&registration, &registered)?;
        }
        deadline(limit, "registering consumers", tx.commit()).await?;
        Ok(rows)
    }
}

/// Tells refusals from what is merely worth telling.
fn accept(asked: &Registration<'_>, answer: &pg::consumers::Registered) -> Result<(), Error> {
    let key = asked.key;
    let was = answer.was.as_deref().unwrap_or_default();
    let refusal = match answer.outcome.as_str() {
        "kind" => format!(
            "consumer {key} is registered as {was} and asked for as {}; a consumer keeps its kind: choose another name, or \
             unregister it",
            asked.kind
        ),
        "partitions" => format!(
            "consumer {key} is registered with {was} partition(s) and asked for with {}; repartition() changes that, with all \
             of them at the same position",
            asked.partitions
        ),
        "differs" => format!(
            "consumer {key} is registered under revision {} for {was}, and asked for with another filter under the same \
             revision; raise the revision",
            answer.revision
        ),
        "outdated" => {
            tracing::warn!(consumer = %key, registered = answer.revision, ours = asked.revision,
                "registered by a newer revision of the application; this process does not run it");
            return Ok(());
        }
        "returned" => {
            tracing::warn!(consumer = %key, position = answer.position, "back after it had expired");
            return Ok(());
        }
        outcome => {
            tracing::debug!(consumer = %key, outcome, position = answer.position, "registered");
            return Ok(());
        }
    };
    Err(Error::new(ErrorKind::Config, refusal))
}

impl DispatcherBuilder {
    /// Adds a consumer.
    pub fn consumer(mut self, consumer: Consumer) -> Self {
        self.consumers.push(consumer);
        self
    }

    /// The name of this instance of the application, stable over restarts; per-instance consumers need it.
    pub fn instance(mut self, name: impl Into<String>) -> Self {
        self.settings.instance = Some(name.into());
        self
    }

    /// How many passes run at the same time, each on a connection of its own. Default 8.
    pub fn max_passes(mut self, passes: usize) -> Self {
        self.settings.max_passes = passes;
        self
    }

    /// How often to look at the log and at all consumers when nothing rings. Default 1 s; a little is added at random.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.settings.poll_interval = interval;
        self
    }

    /// Never listens, for connections through a pooler that gives each transaction another session. Default: it listens.
    pub fn poll_only(mut self) -> Self {
        self.settings.poll_only = true;
        self
    }

    /// How long [`Running::stop`] lets handlers in flight finish before it drops them. Default 10 s.
    pub fn stop_timeout(mut self, limit: Duration) -> Self {
        self.settings.stop_timeout = limit;
        self
    }

    /// Memory for events that are read ahead, over all consumers, in bytes. Default 64 MiB.
    pub fn read_ahead_bytes(mut self, bytes: usize) -> Self {
        self.settings.read_ahead_bytes = bytes;
        self
    }

    /// After how long an instance that nobody runs expires: it no longer holds back retention. Default 7 days.
    pub fn expire_after(mut self, limit: Duration) -> Self {
        self.settings.expire_after = limit;
        self
    }

    /// Breaks the safe head on purpose.
    #[doc(hidden)]
    #[cfg(feature = "cli")]
    pub fn mutant(mut self, mutant: Option<Mutant>) -> Self {
        self.settings.mutant = mutant;
        self
    }

    /// Checks everything that can be checked without the server.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] names the field, its value and the range that it must be in.
    pub fn build(self) -> Result<Dispatcher, Error> {
        let Self { log, consumers, settings } = self;
        let wrong = |message: String| Err(Error::new(ErrorKind::Config, message));
        if consumers.is_empty() {
            return wrong("the dispatcher has no consumer; add one".into());
        }
        let mut names = HashSet::new();
        for consumer in &consumers {
            consumer.validate()?;
            if !names.insert(consumer.name.as_str()) {
                return wrong(format!("consumer {:?} is there twice; names must differ", consumer.name));
            }
            if consumer.options.per_instance && settings.instance.as_deref().is_none_or(str::is_empty) {
                return wrong(format!(
                    "consumer {:?} is per instance, and this instance has no name; call instance(…) with one that is stable over \
                     restarts",
                    consumer.name
                ));
            }
        }
        if let Some(name) =
            settings.instance.as_deref().filter(|n| n.len() > 200 || n.contains(['/', '@', '\0']))
        {
            return wrong(format!(
                "instance is {name:?}; it must be at most 200 bytes long and free of / and @"
            ));
        }
        let Settings { max_passes, poll_interval, read_ahead_bytes, .. } = settings;
        if !(1..=1_000).contains(&max_passes) {
            return wrong(format!("max_passes is {max_passes}; it must be 1 to 1,000"));
        }
        if !(Duration::from_millis(10)..=Duration::from_secs(3_600)).contains(&poll_interval) {
            return wrong(format!("poll_interval is {poll_interval:?}; it must be 10 ms to 1 h"));
        }
        if settings.expire_after < Duration::from_secs(2 * 3_600) {
            return wrong(format!("expire_after is {:?}; it must be at least 2 h", settings.expire_after));
        }
        if read_ahead_bytes < 1024 * 1024 {
            return wrong(format!("read_ahead_bytes is {read_ahead_bytes}; it must be at least 1 MiB"));
        }
        Ok(Dispatcher { log, consumers: consumers.into_iter().map(Arc::new).collect(), settings })
    }
}

/// Consumers that are registered: for tests, crons and scripts that run passes themselves, and to be started.
pub struct Registered {
    runners: Vec<Mutex<Runner>>,
    tracker: Mutex<Option<Tracker>>,
    cx: Arc<Context>,
    phase: watch::Sender<Phase>,
    who: Identity,
    settings: Settings,
}

impl Registered {
    /// Looks at the log once and runs one pass of every consumer, up to the safe head. A pass delivers up to a batch, ten
    /// where the consumer is far behind; [`Outcome::More`] says that there is more.
    ///
    /// # Errors
    /// Of the server and the network. A handler's failures are in the report.
    pub async fn run_once(&self) -> Result<Report, Error> {
        let head = self.look().await?;
        let passes = join_all(self.runners.iter().map(|runner| async move {
            let mut runner = runner.lock().await;
            let began = Instant::now();
            let pass = runner.pass(&self.cx, head).await?;
            metrics::pass(&runner.key, &pass.report, began.elapsed());
            Ok::<_, Error>((runner.key.to_string(), pass.report))
        }));
        let mut report = BTreeMap::new();
        for pass in passes.await {
            let (name, one) = pass?;
            report.insert(name, one);
        }
        Ok(Report(report))
    }

    /// Runs passes until every consumer is caught up with the safe head, dead, or waiting. The counts are those of all
    /// passes. A row that another process holds is waited for.
    ///
    /// # Errors
    /// As for [`run_once`](Self::run_once).
    pub async fn drain(&self) -> Result<Report, Error> {
        let mut total = Report::default();
        loop {
            let report = self.run_once().await?;
            let busy = report.0.values().any(|r| r.outcome == Outcome::Busy);
            let more = report.0.values().any(|r| r.outcome == Outcome::More);
            for (name, one) in report.0 {
                let sum = total.0.entry(name).or_insert_with(|| ConsumerReport::new(Outcome::More));
                sum.processed += one.processed;
                sum.failed += one.failed;
                sum.skipped += one.skipped;
                sum.outcome = one.outcome;
            }
            if !more && !busy {
                return Ok(total);
            }
            if !more {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// Runs the consumers in the background.
    pub fn start(self) -> Running {
        let Self { runners, tracker, cx, phase, who, settings } = self;
        // The watcher makes one of its own, under a new epoch.
        drop(tracker);
        let (stopped, watched) = watch::channel(None);
        let lanes = runners.into_iter().map(Mutex::into_inner).collect();
        let phase = Arc::new(phase);
        tokio::spawn(supervise(lanes, cx, Arc::clone(&phase), who, settings, stopped));
        Running { phase, stopped: watched }
    }

    /// The safe head now. A connection that was lost meanwhile is made anew.
    async fn look(&self) -> Result<Head, Error> {
        let mut slot = self.tracker.lock().await;
        for fresh in [false, true] {
            let mut tracker = match slot.take() {
                Some(tracker) => tracker,
                None => Tracker::begin(&self.cx.log, &self.who, self.cx.mutant).await?,
            };
            match self.follow(&mut tracker).await {
                Ok(head) => {
                    *slot = Some(tracker);
                    return Ok(head);
                }
                Err(error) if fresh || error.kind() != ErrorKind::Connection => return Err(error),
                Err(error) => tracing::debug!(error = error.report(), "looking again over a new connection"),
            }
        }
        Err(Error::new(ErrorKind::Connection, "the log was lost sight of twice in a row"))
    }

    async fn follow(&self, tracker: &mut Tracker) -> Result<Head, Error> {
        loop {
            let step = tracker.step(Pace::Eager).await?;
            let head = Head { id: tracker.head(), epoch: tracker.epoch() };
            self.cx.window.extend(head.epoch, &step, head.id);
            if !step.more {
                return Ok(head);
            }
        }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("rows", &self.runners.len()).finish_non_exhaustive()
    }
}

/// A dispatcher at work. Dropping it asks it to stop, without waiting.
#[derive(Debug)]
pub struct Running {
    phase: Arc<watch::Sender<Phase>>,
    stopped: watch::Receiver<Option<Stopped>>,
}

/// How it ended.
#[derive(Clone, Debug)]
enum Stopped {
    Well,
    Panicked(String),
}

impl Running {
    /// Stops: handlers in flight finish, up to the stop time-out, and are dropped then; their events cost no attempt.
    /// Returns when everything has stopped. Calling it again is harmless.
    ///
    /// # Cancel safety
    /// Dropped in the middle, stopping goes on; call it again to wait for the end.
    ///
    /// # Errors
    /// [`ErrorKind::Stopped`] when a part of the dispatcher had panicked.
    pub async fn stop(&self) -> Result<(), Error> {
        self.phase.send_if_modified(|phase| {
            let running = *phase == Phase::Running;
            if running {
                *phase = Phase::Draining;
            }
            running
        });
        self.stopped().await
    }

    /// Waits until it has stopped, without asking for it.
    ///
    /// # Errors
    /// As for [`stop`](Self::stop).
    pub async fn stopped(&self) -> Result<(), Error> {
        let mut stopped = self.stopped.clone();
        let ended = match stopped.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone(),
            Err(_) => None,
        };
        match ended {
            Some(Stopped::Well) => Ok(()),
            Some(Stopped::Panicked(what)) => {
                Err(Error::new(ErrorKind::Stopped, format!("a part of the dispatcher panicked: {what}")))
            }
            None => Err(Error::new(ErrorKind::Stopped, "the dispatcher went away with its runtime")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.phase.send_if_modified(|phase| {
            let running = *phase == Phase::Running;
            if running {
                *phase = Phase::Draining;
            }
            running
        });
    }
}

/// Owns all tasks of a running dispatcher, and ends them in order: lanes, then the watcher and the listener.
async fn supervise(
    runners: Vec<Runner>,
    cx: Arc<Context>,
    phase: Arc<watch::Sender<Phase>>,
    who: Identity,
    settings: Settings,
    stopped: watch::Sender<Option<Stopped>>,
) {
    let (board, boards) = watch::channel(Board::default());
    let (connected, connections) = watch::channel(false);
    let (bell, suspect) = (Arc::new(Bell::default()), Arc::new(Notify::new()));
    let mut services = JoinSet::new();
    if !settings.poll_only {
        services.spawn(listen(cx.log.clone(), Arc::clone(&bell), connected, phase.subscribe()));
    }
    let parts = Parts {
        cx: Arc::clone(&cx),
        who: who.clone(),
        bell,
        connected: connections,
        board,
        suspect: Arc::clone(&suspect),
        poll_interval: settings.poll_interval,
        poll_only: settings.poll_only,
    };
    services.spawn(Watcher::new(parts).run());
    let keys = runners.iter().map(|runner| runner.key.clone()).collect();
    services.spawn(keep_house(Arc::clone(&cx), keys, settings.expire_after));
    let mut lanes = JoinSet::new();
    for runner in runners {
        lanes.spawn(LaneLoop::new(runner, Arc::clone(&cx), boards.clone(), Arc::clone(&suspect)).run());
    }
    let mut end = Stopped::Well;
    let mut asked = phase.subscribe();
    let draining = async {
        // The sender lives as long as this task.
        let _ = asked.wait_for(|phase| *phase >= Phase::Draining).await;
        tokio::time::sleep(settings.stop_timeout).await;
    };
    tokio::pin!(draining);
    loop {
        tokio::select! {
            ended = lanes.join_next() => match ended {
                None => break,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::error!(%error, "a consumer's task panicked; the dispatcher stops");
                    end = Stopped::Panicked(error.to_string());
                    phase.send_replace(Phase::Draining);
                }
            },
            () = &mut draining, if *phase.borrow() < Phase::Cancelling => {
                tracing::warn!("handlers in flight did not finish within the stop time-out; they are dropped");
                phase.send_replace(Phase::Cancelling);
            }
        }
    }
    phase.send_replace(Phase::Cancelling);
    while let Some(ended) = services.join_next().await {
        if let Err(error) = ended {
            end = Stopped::Panicked(error.to_string());
        }
    }
    leave(&cx, &who).await;
    stopped.send_replace(Some(end));
}

/// Takes the process out of the table, as a courtesy: a row that stays is removed by others in time.
async fn leave(cx: &Context, who: &Identity) {
    let leaving = async {
        let client = cx.log.client("leaving").await?;
        let limit = cx.log.limit().min(Duration::from_secs(5));
        deadline(limit, "leaving", pg::instances::leave(&client, cx.log.schema(), who.id)).await
    };
    if let Err(error) = leaving.await {
        tracing::debug!(error = error.report(), "leaving");
    }
}

/// Waits a moment for the writers in front of a hole, so that `Head` begins at the head of a busy log, too.
async fn settle(tracker: &mut Tracker) -> Result<(), Error> {
    const PATIENCE: Duration = Duration::from_secs(3);
    let began = Instant::now();
    loop {
        let step = tracker.step(Pace::Eager).await?;
        if step.more {
            continue;
        }
        if step.hole.is_none() || began.elapsed() >= PATIENCE {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .or_else(|_| std::env::var("HOSTNAME"))
        .unwrap_or_else(|_| "unknown".into())
}

fn pid() -> i32 {
    i32::try_from(std::process::id()).unwrap_or(i32::MAX)
}
