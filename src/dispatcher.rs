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

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore, watch};

use crate::connect::SessionTerms;
use crate::consumer::{Consumer, Kind, Start, saturated};
use crate::delivery::queue::Queue;
use crate::delivery::supply::Window;
use crate::delivery::{Context, HoldUps, Phase, Runner};
use crate::error::{Error, ErrorKind};
use crate::metrics;
use crate::pg::consumers::{Key, Registration};
use crate::pg::instances::Identity;
use crate::pg::{self, deadline};
use crate::safe_head::{Mutant, Tracker};
use crate::store::Inorder;

mod bell;
mod board;
mod housekeeping;
mod lane;
mod registered;
mod running;
mod sweeper;
mod watcher;

pub use registered::Registered;
pub use running::Running;

/// How long the first start of a consumer at the head waits for those who are writing.
/// As long as a date of PostgreSQL can be put back.
const MOST_FORGOTTEN: Duration = Duration::from_secs(100 * 366 * 24 * 3_600);
const PATIENCE: Duration = Duration::from_secs(3);

/// Connections for leases and queues: a renewal does not wait for a settlement.
const LEASES: usize = 3;

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
    forget_after: Duration,
    house_interval: Duration,
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
            forget_after: Duration::from_secs(30 * 24 * 3_600),
            house_interval: Duration::from_secs(3_600),
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
        let who = Identity::of_this_process();
        // `Head` is to be the head of a busy log, too.
        let at_head =
            self.consumers.iter().any(|c| c.first() != Start::Beginning || c.options.rejoin_at_head);
        let patience = if at_head { PATIENCE } else { Duration::ZERO };
        let tracker = Tracker::begin(&self.log, &who, self.settings.mutant, patience).await?;
        let keys = self.write_rows(&tracker).await?;
        let (phase, watched) = watch::channel(Phase::Running);
        let connector = self.log.connector();
        let wait = self.log.config().wait_timeout;
        let lanes = keys.len().max(1);
        let Settings { max_passes, read_ahead_bytes, mutant, .. } = self.settings;
        let terms = Arc::<SessionTerms>::default();
        let cx = Context {
            log: self.log.clone(),
            process: who.id,
            passes: connector.pool(max_passes, wait)?,
            lingering: Arc::new(Semaphore::new(max_passes / 2)),
            readers: connector.pool(max_passes.clamp(1, 4), wait)?,
            leases: connector.pool_looking_up(LEASES, wait, Arc::clone(&terms))?,
            claims: connector.pool_looking_up(max_passes, wait, Arc::clone(&terms))?,
            terms,
            window: Window::new(read_ahead_bytes / 4),
            hold_ups: HoldUps::default(),
            page_bytes: (read_ahead_bytes / (2 * lanes)).clamp(256 * 1024, 8 * 1024 * 1024),
            phase: watched,
            mutant,
        };
        let cx = Arc::new(cx);
        let (runners, queues) = runners(&cx, keys);
        Ok(Registered {
            runners,
            queues,
            tracker: Mutex::new(Some(tracker)),
            cx,
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
            let rejoin_at = consumer.options.rejoin_at_head.then(|| tracker.head());
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
                rejoin_at,
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

/// A runner for each row, and a queue for each queued consumer, which its partitions share.
fn runners(cx: &Arc<Context>, keys: Vec<(Arc<Consumer>, Key)>) -> (Vec<Mutex<Runner>>, Vec<Arc<Queue>>) {
    let mut queues: Vec<Arc<Queue>> = Vec::new();
    let mut runners = Vec::new();
    for (consumer, key) in keys {
        let queue = (consumer.kind == Kind::Queued).then(|| {
            let known = queues.iter().find(|queue| queue.key.name == key.name).map(Arc::clone);
            known.unwrap_or_else(|| {
                let queue = Queue::new(cx, &consumer, &key);
                queues.push(Arc::clone(&queue));
                queue
            })
        });
        runners.push(Mutex::new(Runner::new(consumer, key, queue)));
    }
    (runners, queues)
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
        "forgotten" => format!(
            "consumer {key} would begin below id {0}, up to which the ledger has forgotten what was done under its name; start it \
             after that id, and reset() it from there if effects may repeat, or choose another name",
            answer.position
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

    /// Never listens. Default: it listens, unless connections go through a pooler that gives each transaction another session;
    /// see [`Config::pooler`](crate::Config::pooler).
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

    /// After how long the ledger forgets what was done: by effect and queued consumers, and by whoever claims by key. Of all
    /// processes of a log the shortest counts. Default 30 days; what is done for an event goes with the event, if that is pruned
    /// before.
    pub fn forget_done_after(mut self, limit: Duration) -> Self {
        self.settings.forget_after = limit;
        self
    }

    /// How often house is kept: instances that nobody runs expire, what was done long ago is forgotten, and hand-offs that were kept
    /// long enough are deleted. The first time is soon after the start. Default 1 h.
    pub fn keep_house_every(mut self, interval: Duration) -> Self {
        self.settings.house_interval = interval;
        self
    }

    /// Breaks the safe head on purpose.
    #[doc(hidden)]
    #[cfg(feature = "cli")]
    pub fn mutant(mut self, mutant: Option<Mutant>) -> Self {
        if let Some(mutant) = mutant {
            self.log = self.log.broken(mutant.in_statements());
        }
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
        if !(Duration::from_secs(1)..=Duration::from_secs(24 * 3_600)).contains(&settings.house_interval) {
            return wrong(format!(
                "keep_house_every is {:?}; it must be 1 s to 1 day",
                settings.house_interval
            ));
        }
        if !(Duration::from_secs(24 * 3_600)..=MOST_FORGOTTEN).contains(&settings.forget_after) {
            return wrong(format!(
                "forget_done_after is {:?}; it must be 1 day to 100 years",
                settings.forget_after
            ));
        }
        if read_ahead_bytes < 1024 * 1024 {
            return wrong(format!("read_ahead_bytes is {read_ahead_bytes}; it must be at least 1 MiB"));
        }
        Ok(Dispatcher { log, consumers: consumers.into_iter().map(Arc::new).collect(), settings })
    }
}
