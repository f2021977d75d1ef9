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

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tracing::Instrument;
use uuid::Uuid;

use super::handling::{cancelling, panic_message};
use super::{Context, Phase, handler_name};
use crate::backoff::Backoff;
use crate::consumer::{Consumer, Effect, Work, saturated};
use crate::error::Error;
use crate::event::Event;
use crate::metrics;
use crate::outcome::{Failure, Verdict, shortened};
use crate::pg::consumers::Key;
use crate::pg::ledger::{self, Arrival, Due, Settlement, Sweep};
use crate::pg::{On, checkout, deadline, throw_away};
use crate::safe_head::Mutant;

/// Results that one statement settles at most.
const MOST_RESULTS: usize = 1_000;
/// A lease is renewed so many times before it would run out.
const RENEWALS: u32 = 3;

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
    pub(crate) counts: Counts,
}

/// What was settled since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    processed: AtomicU64,
    failed: AtomicU64,
    skipped: AtomicU64,
}

impl State {
    /// This claim is held no more; one that was made on the same event since is.
    fn let_go(&mut self, event_id: Uuid, token: i64) {
        if self.held.get(&event_id).is_some_and(|hold| hold.token == token) {
            self.held.remove(&event_id);
        }
    }
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
    results: Vec<Result>,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    token: i64,
    valid_until: Instant,
}

/// What an event came to.
#[derive(Debug)]
struct Result {
    settlement: Settlement,
    reason: Option<&'static str>,
}

/// What running a handler came to.
enum Called {
    Done,
    Failed(Failure),
    Cancelled,
    /// Another may be running it.
    Lost,
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
            counts: Counts::default(),
        })
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
    pub(crate) async fn sweep(&self) -> std::result::Result<usize, Error> {
        let limit = self.room().min(self.consumer.options.batch_size);
        if limit == 0 {
            return Ok(0);
        }
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let client = checkout(&self.cx.leases, "sweeping a queue").await?;
        let asked_at = Instant::now();
        let asked = Sweep {
            handler: &self.handler,
            key: &self.key,
            limit,
            lease: self.lease(),
            owner: self.cx.process,
            in_order: self.consumer.options.in_stream_order,
            revision: self.consumer.revision_number(),
        };
        let sweeping = ledger::sweep(&client, self.cx.log.schema(), asked);
        match deadline(self.cx.log.limit(), On("sweeping the queue of", &self.key), sweeping).await {
            Ok(due) => {
                let count = due.len();
                metrics::swept(&self.key, count);
                self.take(due, asked_at);
                Ok(count)
            }
            Err(error) => {
                throw_away(client);
                Err(error)
            }
        }
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
        let running = async {
            let mut running = JoinSet::new();
            let mut phase = self.cx.phase.clone();
            loop {
                // Those that have ended are let go of.
                while running.try_join_next().is_some() {}
                let permit = tokio::select! {
                    biased;
                    _ = phase.wait_for(|phase| *phase >= Phase::Draining) => break,
                    permit = Arc::clone(&self.handlers).acquire_owned() => permit,
                };
                let Ok(permit) = permit else { break };
                let next = tokio::select! {
                    biased;
                    _ = phase.wait_for(|phase| *phase >= Phase::Draining) => break,
                    next = self.next() => next,
                };
                let queue = Arc::clone(&self);
                running.spawn(async move {
                    let mut next = Some(next);
                    while let Some(events) = next {
                        queue.run(events).await;
                        // Handlers that never wait would leave the others no turn.
                        tokio::task::yield_now().await;
                        next = queue.another();
                    }
                    drop(permit);
                });
            }
            let waiting: Vec<Due> = self.state().waiting.drain(..).flatten().collect();
            waiting.iter().for_each(|due| self.finish(released(due, Duration::ZERO)));
            while running.join_next().await.is_some() {}
        };
        let (ended, watch_end) = watch::channel(false);
        tokio::join!(
            async {
                running.await;
                ended.send_replace(true);
            },
            // While one waits for the disk, the other writes.
            self.settle_results(watch_end.clone()),
            self.settle_results(watch_end)
        );
    }

    /// What else is waiting, for whoever has come to an end.
    fn another(&self) -> Option<Vec<Due>> {
        match *self.cx.phase.borrow() {
            Phase::Running => self.state().waiting.pop_front(),
            _ => None,
        }
    }

    async fn next(&self) -> Vec<Due> {
        loop {
            if let Some(next) = self.state().waiting.pop_front() {
                return next;
            }
            self.arrived.notified().await;
        }
    }

    /// Events of one stream, one after the other; where one is to be tried again, those behind it wait for that.
    async fn run(&self, events: Vec<Due>) {
        let mut held_up = None;
        for due in &events {
            if let Some(pause) = held_up {
                self.finish(released(due, pause));
                continue;
            }
            let result = match self.call(due).await {
                Called::Done => done(due),
                Called::Cancelled => released(due, Duration::ZERO),
                Called::Lost => {
                    metrics::lease_lost(&self.key);
                    tracing::warn!(consumer = %self.key, event_id = %due.event.event_id(), "a claim was lost; the event is another's now");
                    // If it is still ours after all, it is at once another's to take.
                    released(due, Duration::ZERO)
                }
                Called::Failed(failure) => self.judge(due, &failure),
            };
            held_up = (result.settlement.status == "pending").then_some(result.settlement.due_in);
            self.finish(result);
        }
    }

    async fn call(&self, due: &Due) -> Called {
        let Work::Outside(handler) = &self.consumer.work else {
            unreachable!("what runs inside a transaction is called with one")
        };
        let options = &self.consumer.options;
        let (event, limit) = (&due.event, options.handler_timeout);
        if due.faults > saturated(options.max_faults).saturating_add(saturated(options.max_attempts)) {
            return Called::Failed(Failure::reject(format!(
                "its lease ran out {} times: whoever handles it is heard of no more",
                due.faults
            )));
        }
        if self.valid_until(due).is_none_or(|until| Instant::now() >= until) {
            return Called::Lost;
        }
        let attempt = u32::try_from(due.attempts + due.faults + 1).unwrap_or(1);
        let effect = Effect::new(&self.handler, event.event_id(), due.token, attempt);
        let span = tracing::debug_span!(
            "handle",
            consumer = %self.key,
            event = event.id(),
            event_id = %event.event_id(),
            event_type = event.event_type(),
            correlation_id = event.correlation_id().map(tracing::field::display),
            causation_id = event.causation_id().map(tracing::field::display),
            attempt,
            fencing_number = due.token,
        );
        // Called inside, so that a panic before the first await is caught, too.
        let handling =
            async { handler.handle(std::slice::from_ref(event), std::slice::from_ref(&effect)).await };
        tokio::select! {
            biased;
            handled = AssertUnwindSafe(handling.instrument(span)).catch_unwind() => match handled {
                Ok(Ok(())) => Called::Done,
                Ok(Err(failure)) => Called::Failed(failure),
                Err(panic) => {
                    Called::Failed(Failure::retry(format!("the handler panicked: {}", panic_message(&*panic))))
                }
            },
            () = tokio::time::sleep(limit) => Called::Failed(Failure::timed_out(limit)),
            () = cancelling(self.cx.phase.clone()) => Called::Cancelled,
            () = self.lost(due) => Called::Lost,
        }
    }

    /// `None` when this claim is not ours any more, also where the same event was claimed here anew since.
    fn valid_until(&self, due: &Due) -> Option<Instant> {
        let forever = self.cx.mutant == Some(Mutant::LateRenewal);
        let hold = self.state().held.get(&due.event.event_id()).copied();
        let hold = hold.filter(|hold| hold.token == due.token)?;
        Some(if forever {
            Instant::now() + hold.valid_until.elapsed() + self.lease()
        } else {
            hold.valid_until
        })
    }

    /// Ends when another may have claimed the event.
    async fn lost(&self, due: &Due) {
        while let Some(until) = self.valid_until(due) {
            if Instant::now() >= until {
                return;
            }
            tokio::time::sleep_until(until.into()).await;
        }
    }

    fn judge(&self, due: &Due, failure: &Failure) -> Result {
        let options = &self.consumer.options;
        let verdict = match failure.verdict() {
            Verdict::Fault if due.faults >= saturated(options.max_faults) => Verdict::Retry,
            verdict => verdict,
        };
        let pause = |n: i32| options.backoff.pause(u32::try_from(n).unwrap_or(1));
        let error = shortened(&failure.message());
        let mut result = released(due, Duration::ZERO);
        let s = &mut result.settlement;
        let exhausted = due.attempts + 1 >= saturated(options.max_attempts);
        (s.status, s.attempts, s.faults, s.due_in, result.reason) = match verdict {
            Verdict::Skip => ("dead", 1, 0, Duration::ZERO, Some("skip_policy")),
            Verdict::Reject => ("dead", 1, 0, Duration::ZERO, Some("rejected")),
            Verdict::Retry if options.skip_errors => ("dead", 1, 0, Duration::ZERO, Some("skip_policy")),
            Verdict::Retry if exhausted => ("dead", 1, 0, Duration::ZERO, Some("exhausted")),
            Verdict::Retry => ("pending", 1, 0, pause(due.attempts + 1), None),
            Verdict::Fault => ("pending", 0, 1, pause(due.faults + 1), None),
            Verdict::Defer(until) => ("pending", 0, 0, until.unwrap_or_else(|| pause(1)), None),
        };
        let (consumer, id, event_id) = (&self.key, due.event.id(), due.event.event_id());
        match result.reason {
            Some(reason) => {
                tracing::warn!(%consumer, event = id, %event_id, reason, error, "event given up; a dead letter is kept");
            }
            None => {
                tracing::warn!(%consumer, event = id, %event_id, due_in = ?s.due_in, error, "event failed");
            }
        }
        s.error = Some(error);
        result
    }

    fn finish(&self, result: Result) {
        self.state().results.push(result);
        self.ended.notify_one();
    }

    /// Settles what has come to an end, together, until everything has.
    async fn settle_results(&self, mut ended: watch::Receiver<bool>) {
        let backoff = Backoff::exponential(Duration::from_millis(50)).up_to(Duration::from_secs(2));
        let mut failures = 0;
        loop {
            let results: Vec<Result> = {
                let mut state = self.state();
                let count = state.results.len().min(MOST_RESULTS);
                state.results.drain(..count).collect()
            };
            if results.is_empty() {
                if *ended.borrow_and_update() {
                    return;
                }
                tokio::select! {
                    () = self.ended.notified() => {}
                    // The sender lives until it has told.
                    _ = ended.changed() => {}
                }
                continue;
            }
            match self.settle(&results).await {
                Ok(settled) => {
                    failures = 0;
                    self.count(&results, &settled);
                }
                Err(error) => {
                    failures += 1;
                    let pause = backoff.pause(failures);
                    tracing::warn!(consumer = %self.key, error = error.report(), ?pause, "results could not be written; they are tried again");
                    self.keep_for_later(results);
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// What is no longer ours, by our own clock, is not worth another try.
    fn keep_for_later(&self, results: Vec<Result>) {
        let now = Instant::now();
        let mut state = self.state();
        for result in results {
            let Settlement { event_id, token, .. } = result.settlement;
            let hold = state.held.get(&event_id).filter(|hold| hold.token == token);
            if hold.is_some_and(|hold| now < hold.valid_until) {
                state.results.push(result);
            } else {
                metrics::lease_lost(&self.key);
                state.let_go(event_id, token);
            }
        }
        drop(state);
        self.settled.send_modify(|n| *n += 1);
    }

    async fn settle(&self, results: &[Result]) -> std::result::Result<Vec<Uuid>, Error> {
        let claims = results.iter().map(|result| (&result.settlement, result.reason));
        let client = checkout(&self.cx.leases, "settling queued events").await?;
        let schema = self.cx.log.schema();
        let all_done = results.iter().all(|result| result.settlement.status == "done");
        let settling = async {
            if !all_done {
                return ledger::settle_queued(&client, schema, &self.handler, &self.key, claims).await;
            }
            let claims: Vec<(Uuid, i64)> = claims.map(|(claim, _)| (claim.event_id, claim.token)).collect();
            ledger::settle_done(&client, schema, &self.handler, &self.key, &claims).await
        };
        let settled = deadline(self.cx.log.limit(), On("settling events of", &self.key), settling).await;
        if settled.is_err() {
            throw_away(client);
        }
        settled
    }

    fn count(&self, results: &[Result], settled: &[Uuid]) {
        let settled: HashSet<&Uuid> = settled.iter().collect();
        let (mut processed, mut failed, mut skipped, mut due_in) = (0, 0, 0, None);
        let mut state = self.state();
        for Result { settlement, reason } in results {
            state.let_go(settlement.event_id, settlement.token);
            if !settled.contains(&settlement.event_id) {
                metrics::lease_lost(&self.key);
                tracing::warn!(consumer = %self.key, event_id = %settlement.event_id, "a claim was lost before it was settled; another may have handled the event, too");
                continue;
            }
            if settlement.status == "pending" {
                due_in = Some(due_in.map_or(settlement.due_in, |due: Duration| due.min(settlement.due_in)));
            }
            match (settlement.status, reason) {
                ("done", _) => processed += 1,
                (_, Some(_)) => skipped += 1,
                _ if settlement.attempts + settlement.faults > 0 => failed += 1,
                _ => {}
            }
        }
        drop(state);
        self.counts.processed.fetch_add(processed, Ordering::Relaxed);
        self.counts.failed.fetch_add(failed, Ordering::Relaxed);
        self.counts.skipped.fetch_add(skipped, Ordering::Relaxed);
        metrics::settled(&self.key, processed, failed, skipped);
        if self.consumer.options.in_stream_order && processed + skipped > 0 {
            // What was behind it in its stream is due now.
            due_in = Some(Duration::ZERO);
        }
        if let Some(at) = due_in.map(|due| Instant::now() + due) {
            self.sweep_at(at);
        }
        self.settled.send_modify(|n| *n += 1);
    }

    /// Renews everything that is held, until it is aborted.
    async fn renew(self: Arc<Self>) {
        let lease = self.lease();
        let pause = match self.cx.mutant {
            Some(Mutant::LateRenewal) => lease.mul_f64(1.5),
            _ => lease / RENEWALS,
        };
        loop {
            tokio::time::sleep(pause).await;
            let held: Vec<(Uuid, i64)> =
                self.state().held.iter().map(|(id, hold)| (*id, hold.token)).collect();
            if held.is_empty() {
                continue;
            }
            let sent = Instant::now();
            let renewing = async {
                let client = checkout(&self.cx.leases, "renewing leases").await?;
                let extending = ledger::extend(&client, self.cx.log.schema(), &self.handler, &held, lease);
                let extended = deadline(lease, "renewing leases", extending).await;
                if extended.is_err() {
                    throw_away(client);
                }
                extended
            };
            match renewing.await {
                // What is not named is lost, or was settled meanwhile: it is not valid any longer than it was.
                Ok(extended) => {
                    let mut state = self.state();
                    for (id, token, _) in extended {
                        if let Some(hold) = state.held.get_mut(&id).filter(|hold| hold.token == token) {
                            hold.valid_until = sent + lease;
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(consumer = %self.key, error = error.report(), "leases could not be renewed");
                }
            }
        }
    }
}

fn done(due: &Due) -> Result {
    let mut result = released(due, Duration::ZERO);
    result.settlement.status = "done";
    result
}

/// To be run again after a pause; it costs no attempt.
fn released(due: &Due, pause: Duration) -> Result {
    let settlement = Settlement {
        event_id: due.event.event_id(),
        token: due.token,
        status: "pending",
        attempts: 0,
        faults: 0,
        due_in: pause,
        error: None,
    };
    Result { settlement, reason: None }
}
