//! A queued consumer's events in this process: claimed, handled many at once, and settled together.
//!
//! ```text
//!  pass (new events) ─┐                    ┌▶ handler ─┐
//!                     ├▶ waiting ── room ──┼▶ handler ─┼▶ results ──▶ settled, many in one statement
//!  sweep (what is due)┘                    └▶ handler ─┘
//! ```
//!
//! Everything in here is leased to this process in the ledger, and renewed by a task of its own. A claim that cannot be
//! renewed is given up: what was not started is not started, and a handler at work is dropped.
//!
//! Invariants: I-5 (a claim in the ledger before the handler, fenced when it is settled), I-6 (what is given up leaves a dead
//! letter).
//!
//! Failure handling: what this process leaves behind, because it died, is swept up by others when its lease has run out.
//! Results that cannot be written are tried again for as long as their claims are ours.
//!
//! Not its job: which events come in, and when to sweep.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{Context, handler_name};
use crate::consumer::Consumer;
use crate::error::Error;
use crate::event::Event;
use crate::metrics;
use crate::pg::consumers::Key;
use crate::pg::ledger::{self, Arrival, Due, Sweep};
use crate::pg::{On, ask};

mod ended;
mod handlers;
mod leases;
mod settling;

use ended::Ended;
use leases::Hold;

/// The queue of one consumer in this process.
pub(crate) struct Queue {
    cx: Arc<Context>,
    consumer: Arc<Consumer>,
    /// The consumer, whichever its partitions.
    pub(crate) key: Key,
    handler: Arc<str>,
    state: Mutex<State>,
    /// Something came in that is to be run.
    arrived: Notify,
    /// Something came to its end, and is to be settled.
    ended: Notify,
    /// Grows with every settlement.
    settled: watch::Sender<u64>,
    /// When the next attempt of something that failed here is due.
    retry_at: watch::Sender<Option<Instant>>,
    /// Grows when somebody in this process has recorded events for it.
    nudges: watch::Receiver<u64>,
    handlers: Arc<Semaphore>,
    /// How many may still bring something in.
    feeders: watch::Sender<usize>,
    pub(crate) counts: Counts,
}

/// Somebody who brings events in: what they bring is waited for, and given back where it is too late to be run.
pub(crate) struct Feeder(Arc<Queue>);

impl Drop for Feeder {
    fn drop(&mut self) {
        self.0.feeders.send_modify(|feeders| *feeders -= 1);
    }
}

/// What was settled since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    processed: AtomicU64,
    failed: AtomicU64,
    skipped: AtomicU64,
}

impl Counts {
    pub(crate) fn now(&self) -> [u64; 3] {
        [&self.processed, &self.failed, &self.skipped].map(|count| count.load(Ordering::Relaxed))
    }

    pub(crate) fn since(&self, before: [u64; 3]) -> [u64; 3] {
        let now = self.now();
        std::array::from_fn(|n| now[n] - before[n])
    }
}

#[derive(Default)]
struct State {
    /// Claimed and not started: events of one stream together, in order.
    waiting: VecDeque<Vec<Due>>,
    /// Everything that is claimed and not settled: its token, and until when the claim is valid by our own clock.
    held: HashMap<Uuid, Hold>,
    ended: Vec<Ended>,
}

impl State {
    /// This claim is held no more; one that was made on the same event since is.
    fn let_go(&mut self, event_id: Uuid, token: i64) {
        if self.held.get(&event_id).is_some_and(|hold| hold.token == token) {
            self.held.remove(&event_id);
        }
    }
}

impl Queue {
    pub(crate) fn new(cx: &Arc<Context>, consumer: &Arc<Consumer>, key: &Key) -> Arc<Self> {
        let handler = handler_name(key);
        Arc::new(Self {
            nudges: cx.log.nudges().listen(&handler),
            cx: Arc::clone(cx),
            consumer: Arc::clone(consumer),
            key: Key { partition: 0, ..key.clone() },
            handler,
            state: Mutex::default(),
            arrived: Notify::new(),
            ended: Notify::new(),
            settled: watch::Sender::new(0),
            retry_at: watch::Sender::new(None),
            handlers: Arc::new(Semaphore::new(consumer.options.concurrency)),
            feeders: watch::Sender::new(0),
            counts: Counts::default(),
        })
    }

    /// For who brings events in, as long as they may.
    pub(crate) fn feed(self: &Arc<Self>) -> Feeder {
        self.feeders.send_modify(|feeders| *feeders += 1);
        Feeder(Arc::clone(self))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many more events it takes: enough to keep all handlers at work while others are being fetched and settled.
    pub(crate) fn room(&self) -> usize {
        self.most().saturating_sub(self.state().held.len())
    }

    fn most(&self) -> usize {
        self.consumer.options.batch_size.max(2 * self.consumer.options.concurrency) * 2
    }

    /// Waits until it takes half of what it holds at most: as much as it still has to do meanwhile.
    pub(crate) async fn has_room(&self) {
        let mut settled = self.settled.subscribe();
        while self.room() < self.most() / 2 {
            // The sender lives as long as we do.
            let _ = settled.changed().await;
        }
    }

    /// Waits until everything that came in is settled.
    pub(crate) async fn idle(&self) {
        let mut settled = self.settled.subscribe();
        while !self.state().held.is_empty() {
            let _ = settled.changed().await;
        }
    }

    /// How events arrive in the ledger.
    pub(crate) fn arrivals(&self, events: &[Event]) -> Vec<Arrival> {
        events
            .iter()
            .map(|event| Arrival {
                event_id: event.event_id(),
                position: event.id(),
                stream: self.stream(event),
            })
            .collect()
    }

    fn stream(&self, event: &Event) -> Option<String> {
        self.consumer.options.in_stream_order.then(|| event.ledger_stream()).flatten()
    }

    /// Takes what was claimed by a statement sent at `asked_at`, in id order.
    pub(crate) fn take(&self, claimed: Vec<Due>, asked_at: Instant) {
        if claimed.is_empty() {
            return;
        }
        let mut state = self.state();
        let valid_until = asked_at + self.consumer.options.lease;
        let mut streams: BTreeMap<String, Vec<Due>> = BTreeMap::new();
        for due in claimed {
            state.held.insert(due.event.event_id(), Hold { token: due.token, valid_until });
            match self.stream(&due.event) {
                Some(stream) => streams.entry(stream).or_default().push(due),
                None => state.waiting.push_back(vec![due]),
            }
        }
        state.waiting.extend(streams.into_values());
        drop(state);
        self.arrived.notify_one();
    }

    /// Takes from a page what the ledger leaves to us.
    pub(crate) fn take_page(&self, events: Vec<Event>, claimed: Vec<(Uuid, i64)>, asked_at: Instant) {
        if claimed.len() < events.len() && self.consumer.options.in_stream_order {
            // What had been recorded before may have waited for the position.
            self.sweep_at(Instant::now());
        }
        let tokens: HashMap<Uuid, i64> = claimed.into_iter().collect();
        let ours = events
            .into_iter()
            .filter_map(|event| {
                let token = *tokens.get(&event.event_id())?;
                Some(Due { event, token, attempts: 0, faults: 0 })
            })
            .collect();
        self.take(ours, asked_at);
    }

    pub(crate) fn handler(&self) -> &str {
        &self.handler
    }

    pub(crate) fn lease(&self) -> Duration {
        self.consumer.options.lease
    }

    /// Claims what is due, as far as there is room. How many there were.
    pub(crate) async fn sweep(&self) -> Result<usize, Error> {
        let limit = self.room().min(self.consumer.options.batch_size);
        if limit == 0 {
            return Ok(0);
        }
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let asked = Sweep {
            handler: &self.handler,
            key: &self.key,
            limit,
            lease: self.lease(),
            owner: self.cx.process,
            in_order: self.consumer.options.in_stream_order,
            revision: self.consumer.revision_number(),
        };
        let (schema, what) = (self.cx.log.schema(), On("sweeping the queue of", &self.key));
        let (due, asked_at) = ask(&self.cx.leases, self.cx.log.limit(), what, async |client| {
            let asked_at = Instant::now();
            Ok((ledger::sweep(client, schema, asked).await?, asked_at))
        })
        .await?;
        let count = due.len();
        metrics::swept(&self.key, count);
        self.take(due, asked_at);
        Ok(count)
    }

    /// Something will be due at that time.
    pub(crate) fn sweep_at(&self, at: Instant) {
        self.retry_at.send_if_modified(|retry_at| {
            let sooner = retry_at.is_none_or(|known| at < known);
            if sooner {
                *retry_at = Some(at);
            }
            sooner
        });
    }

    /// Changes when somebody in this process has recorded events for it.
    pub(crate) fn nudges(&self) -> watch::Receiver<u64> {
        self.nudges.clone()
    }

    /// When something is due, as far as this process knows; waits for that.
    pub(crate) async fn due(&self) {
        let mut retry_at = self.retry_at.subscribe();
        loop {
            let at = *retry_at.borrow_and_update();
            let waiting = async {
                match at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The sender lives as long as we do.
                _ = retry_at.changed() => {}
                () = waiting => {
                    self.retry_at.send_if_modified(|known| {
                        *known = known.filter(|known| Some(*known) != at);
                        false
                    });
                    return;
                }
            }
        }
    }

    /// Runs, renews and settles until the dispatcher drains and everything that had been started is settled. What was not started
    /// is given back.
    pub(crate) async fn work(self: Arc<Self>) {
        let mut renewing = JoinSet::new();
        renewing.spawn(Arc::clone(&self).renew());
        let (ended, watch_end) = watch::channel(false);
        tokio::join!(
            async {
                self.run_handlers().await;
                ended.send_replace(true);
            },
            // While one waits for the disk, the other writes.
            self.settle_what_ended(watch_end.clone()),
            self.settle_what_ended(watch_end)
        );
    }
}
