//! The pass: one consumer's row, locked; its next events, delivered in order; what it came to, committed with their effects.
//!
//! ```text
//!  lock ──▶ nothing to do, or not ours ──▶ leave without writing
//!   │
//!   ▼
//!  deliver ──▶ all handled ────────────────────────────────┐
//!   │  ▲                                                    ▼
//!   │  └── roll back to the savepoint, deliver again     settle ──▶ commit
//!   ▼      what came before the failing event               ▲
//!  an event fails ── alone and before all others: judged ───┘
//! ```
//!
//! Invariants: I-2 (in id order, from the row's position), I-3 (the row lock; every write names the transaction that
//! holds it), I-4 (effects and position in one transaction), I-6 (a failing event halts; what is passed over leaves a dead
//! letter in the same transaction).
//!
//! Failure handling: a handler's error, panic or time-out is rolled back to the savepoint in front of the batch, and the
//! failure is committed together with the events before it. Where the transaction is lost, the failure is recorded in
//! another, fenced by how the row stood at the lock. A process that dies takes its transaction with it.
//!
//! Not its job: when to run a pass, and who reads the events.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::{Object, Pool};
use futures_util::FutureExt;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio_postgres::NoTls;
use tracing::Instrument;
use uuid::Uuid;

use crate::consumer::{Consumer, HandlerTx, Kind};
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::outcome::{ConsumerReport, Failure, Outcome};
use crate::pg::consumers::{Key, Settlement, State};
use crate::pg::dead_letters::DeadLetter;
use crate::pg::{self, checkout, deadline};
use crate::safe_head::Mutant;
use crate::store::Inorder;

pub(crate) mod judgement;
pub(crate) mod session;
pub(crate) mod supply;

use judgement::{Judgement, judge};
use session::PassSession;
use supply::{Lane, MOST_ROWS, Page, ReadAhead, Readers, Window};

/// What all passes of a process share.
pub(crate) struct Context {
    pub(crate) log: Inorder,
    /// This process, as `instances` knows it.
    pub(crate) process: Uuid,
    /// The passes' own connections: handlers that borrow another cannot starve them.
    pub(crate) passes: Pool,
    pub(crate) readers: Pool,
    pub(crate) window: Window,
    pub(crate) page_bytes: usize,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) mutant: Option<Mutant>,
}

/// How far a dispatcher is in stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Running,
    /// Handlers in flight finish; no further event is taken.
    Draining,
    /// Handlers in flight are dropped.
    Cancelling,
}

/// The safe head, and the epoch in which it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) id: i64,
    pub(crate) epoch: Uuid,
}

/// One row of a consumer, as this process runs it.
pub(crate) struct Runner {
    pub(crate) consumer: Arc<Consumer>,
    pub(crate) key: Key,
    ahead: ReadAhead,
    /// After a slice failed, or a commit: the most events of the next pass, until the failing one stands alone.
    narrow: Option<usize>,
}

/// What one pass came to.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) report: ConsumerReport,
    pub(crate) position: i64,
    /// When it is worth while to come back, where that is not at the next event.
    pub(crate) due_in: Option<Duration>,
}

impl Pass {
    fn new(outcome: Outcome, position: i64) -> Self {
        Self { report: ConsumerReport::new(outcome), position, due_in: None }
    }
}

/// How far a delivery came.
struct Delivered {
    /// Events handled, from the first.
    handled: usize,
    /// Why it stopped, where it did not come to the end.
    stopped: Stopped,
}

enum Stopped {
    /// It came to the end, the time of the pass is up, the dispatcher drains, or a handler appended.
    No,
    /// The slice behind the handled events, of so many events, failed.
    Failed(usize, Failure),
    /// The session is of no use any more; the slice failed besides.
    Lost(usize, Failure),
    Cancelled,
}

impl Runner {
    pub(crate) fn new(consumer: Arc<Consumer>, key: Key) -> Self {
        Self { consumer, key, ahead: ReadAhead::default(), narrow: None }
    }

    /// Runs one pass.
    ///
    /// # Errors
    /// Of the server and the network, outside of any handler: nothing was written, or the commit is ambiguous; the next
    /// pass reads the row and knows. Dropped in the middle, the transaction is rolled back.
    pub(crate) async fn pass(&mut self, cx: &Context, head: Head) -> Result<Pass, Error> {
        let span = tracing::debug_span!("pass", consumer = %self.key, head = head.id);
        self.run(cx, head).instrument(span).await
    }

    async fn run(&mut self, cx: &Context, head: Head) -> Result<Pass, Error> {
        let mut session = PassSession::begin(cx, &self.consumer, &self.key).await?;
        let Some(state) = session.lock(cx, &self.consumer, head.id).await? else {
            session.leave().await?;
            return Ok(Pass::new(Outcome::Unregistered, 0));
        };
        if state.epoch != Some(head.epoch) {
            // Perhaps a connection to a server that was replaced: it must not come back from the pool.
            drop(session);
            return Err(Error::new(
                ErrorKind::Connection,
                format!("consumer {}: the safe head belongs to another epoch; it is read anew", self.key),
            ));
        }
        if let Some(outcome) = not_ours(&state, self.consumer.revision_number(), head.id) {
            session.leave().await?;
            return Ok(Pass { due_in: state.due_in, ..Pass::new(outcome, state.position) });
        }
        if let Some(letter) = state.retry {
            return self.retry_dead_letter(cx, session, &state, letter).await;
        }
        let page = self.events(cx, &state, head).await?;
        self.deliver(cx, session, &state, page, head).await
    }

    async fn events(&mut self, cx: &Context, state: &State, head: Head) -> Result<Page, Error> {
        let readers = Readers {
            log: &cx.log,
            pool: &cx.readers,
            window: &cx.window,
            process: cx.process,
            bytes: cx.page_bytes,
        };
        let lane = Lane { consumer: &self.consumer, key: &self.key };
        let limit = self.pass_size(head.id - state.position);
        self.ahead.next(&readers, &lane, (head.epoch, state.position, head.id), limit).await
    }

    /// The further behind, the more events a transaction takes: up to ten times the batch size.
    fn pass_size(&self, lag: i64) -> usize {
        let batch = self.consumer.options.batch_size;
        let behind = usize::try_from(lag / 10).unwrap_or(0);
        let size = behind.clamp(batch, batch.saturating_mul(10)).min(batch.max(MOST_ROWS));
        self.narrow.map_or(size, |narrow| size.min(narrow))
    }

    async fn deliver(
        &mut self,
        cx: &Context,
        mut session: PassSession,
        state: &State,
        page: Page,
        head: Head,
    ) -> Result<Pass, Error> {
        // Events before the one that failed last are committed on their own: whatever it does, they are done.
        let mut end =
            page.events.iter().position(|e| Some(e.event_id()) == state.failed_event_id).unwrap_or(0);
        let before_failed = end > 0;
        if !before_failed {
            end = page.events.len();
        }
        let mut failure = None;
        let until = Instant::now() + self.consumer.options.pass_timeout;
        let handled = loop {
            let Delivered { handled, stopped } =
                self.handle(cx, &mut session, &page.events[..end], until).await;
            match stopped {
                Stopped::No => {
                    if handled < end {
                        // Cut short: what is behind, also a failure, is for the next pass.
                        failure = None;
                    }
                    break handled;
                }
                Stopped::Cancelled => {
                    session.leave().await?;
                    return Ok(Pass::new(Outcome::Stopped, state.position));
                }
                Stopped::Lost(slice, cause) => {
                    session.abandon(cx).await;
                    return self.record(cx, state, &page.events[handled..handled + slice], cause).await;
                }
                Stopped::Failed(slice, cause) => {
                    if let Err(error) = session.roll_back().await {
                        tracing::warn!(consumer = %self.key, error = error.report(), "rolling back failed; the session is dropped");
                        session.abandon(cx).await;
                        return self.record(cx, state, &page.events[handled..handled + slice], cause).await;
                    }
                    end = handled;
                    if slice > 1 {
                        self.narrow = Some(slice / 2);
                        failure = None;
                    } else {
                        failure = Some((page.events[handled].clone(), cause));
                    }
                }
            }
        };
        let complete = handled == page.events.len() && !before_failed;
        let position = match handled.checked_sub(1) {
            _ if complete && failure.is_none() => page.to,
            Some(last) => page.events[last].id(),
            None => state.position,
        };
        if position == state.position && failure.is_none() {
            session.leave().await?;
            return Ok(Pass::new(Outcome::More, position));
        }
        let mut judgement = match &failure {
            Some((event, cause)) => judge(&self.consumer.options, state, event, cause, position),
            None if before_failed => Judgement::before_failed(state, position),
            None => Judgement::well(position),
        };
        judgement.settlement.processed = i64::try_from(handled).unwrap_or(i64::MAX);
        if let Some((event, _)) = &failure {
            self.note(event, &judgement);
            if let Some(reason) = judgement.dead_letter {
                let settlement = &judgement.settlement;
                let error = settlement.last_error.as_deref().unwrap_or_default();
                session
                    .dead_letter(cx, &DeadLetter { event, attempts: judgement.attempt, error, reason })
                    .await?;
            }
        }
        match session.commit(cx, &self.key, &judgement.settlement).await {
            Ok(next_attempt_at) => {
                self.widen(handled, failure.is_some());
                Ok(judgement.into_pass(head.id, next_attempt_at))
            }
            Err(session::CommitError::Refused(cause)) if failure.is_none() => {
                // A deferred constraint, or a handler that ended our transaction: which event it was shows when it is alone.
                if handled > 1 {
                    self.narrow = Some(handled / 2);
                    return Ok(Pass::new(Outcome::More, state.position));
                }
                self.record(cx, state, &page.events[..handled], Failure::retry(cause)).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Hands events to the handler, slice by slice, until one fails or it is time to stop.
    async fn handle(
        &self,
        cx: &Context,
        session: &mut PassSession,
        events: &[Event],
        until: Instant,
    ) -> Delivered {
        let slice = match self.consumer.kind {
            Kind::Transactional => 1,
            Kind::Batch => self.consumer.options.batch_size,
        };
        let mut handled = 0;
        for slice in events.chunks(slice) {
            if handled > 0 && (Instant::now() >= until || *cx.phase.borrow() >= Phase::Draining) {
                break;
            }
            let stopped = match self.call(cx, session, slice).await {
                Called::Done => {
                    handled += slice.len();
                    if session.appended() {
                        break;
                    }
                    continue;
                }
                Called::Cancelled => Stopped::Cancelled,
                Called::Failed(cause) if session.is_lost() => Stopped::Lost(slice.len(), cause),
                Called::Failed(cause) => Stopped::Failed(slice.len(), cause),
                Called::TimedOut => {
                    let limit = self.consumer.options.handler_timeout;
                    let cause = Failure::retry(format!("the handler did not finish within {limit:?}"));
                    match session.interrupt().await {
                        true => Stopped::Failed(slice.len(), cause),
                        false => Stopped::Lost(slice.len(), cause),
                    }
                }
            };
            return Delivered { handled, stopped };
        }
        Delivered { handled, stopped: Stopped::No }
    }

    /// Calls the handler, for no longer than it may take; a panic is a failure that carries its message.
    async fn call(&self, cx: &Context, session: &PassSession, slice: &[Event]) -> Called {
        let cause = (self.consumer.kind == Kind::Transactional).then(|| &slice[0]);
        let tx = HandlerTx::new(session.client(), &cx.log, cause, session.traces());
        let span = tracing::debug_span!(
            "handle",
            consumer = %self.key,
            event = slice[0].id(),
            event_id = %slice[0].event_id(),
            event_type = slice[0].event_type(),
            correlation_id = slice[0].correlation_id().map(tracing::field::display),
            causation_id = slice[0].causation_id().map(tracing::field::display),
            events = slice.len(),
        );
        let handling = self.consumer.handler.handle(slice, &tx).instrument(span);
        let handled = tokio::select! {
            biased;
            handled = AssertUnwindSafe(handling).catch_unwind() => handled,
            () = tokio::time::sleep(self.consumer.options.handler_timeout) => return Called::TimedOut,
            () = cancelling(cx.phase.clone()) => return Called::Cancelled,
        };
        match handled {
            Ok(Ok(())) => match session.swallowed_error().await {
                None => Called::Done,
                Some(swallowed) => Called::Failed(swallowed),
            },
            Ok(Err(failure)) => Called::Failed(failure),
            Err(panic) => {
                Called::Failed(Failure::retry(format!("the handler panicked: {}", panic_message(&*panic))))
            }
        }
    }

    /// A dead letter that an operator wants retried: alone in its pass, out of order.
    async fn retry_dead_letter(
        &mut self,
        cx: &Context,
        mut session: PassSession,
        state: &State,
        letter: i64,
    ) -> Result<Pass, Error> {
        let event = session.dead_letter_event(cx, letter).await?;
        let (result, processed) = match event {
            None => ("discarded", Some("its event was pruned".to_owned())),
            Some(event) => match self.call(cx, &session, std::slice::from_ref(&event)).await {
                Called::Done => ("resolved", None),
                Called::Cancelled => {
                    session.leave().await?;
                    return Ok(Pass::new(Outcome::Stopped, state.position));
                }
                called => {
                    let message = match called {
                        Called::Failed(cause) => cause.message(),
                        _ => format!(
                            "the handler did not finish within {:?}",
                            self.consumer.options.handler_timeout
                        ),
                    };
                    if !session.interrupt().await || session.roll_back().await.is_err() {
                        session.abandon(cx).await;
                        session = PassSession::begin(cx, &self.consumer, &self.key).await?;
                        match session.lock(cx, &self.consumer, i64::MAX).await? {
                            Some(State { locked: Some(_), retry, .. }) if retry == Some(letter) => {}
                            _ => {
                                session.leave().await?;
                                return Ok(Pass::new(Outcome::More, state.position));
                            }
                        }
                    }
                    ("open", Some(message))
                }
            },
        };
        session.settle_dead_letter(cx, letter, result, processed.as_deref()).await?;
        let mut judgement = Judgement::before_failed(state, state.position);
        judgement.settlement.processed = i64::from(result == "resolved");
        judgement.settlement.failed = i64::from(result == "open");
        let next_attempt_at = session.commit(cx, &self.key, &judgement.settlement).await?;
        Ok(judgement.into_pass(i64::MAX, next_attempt_at))
    }

    /// Records a failure whose transaction is lost. Fenced: when anybody has moved on since, there is nothing to record.
    async fn record(
        &mut self,
        cx: &Context,
        state: &State,
        slice: &[Event],
        cause: Failure,
    ) -> Result<Pass, Error> {
        if slice.len() > 1 {
            self.narrow = Some(slice.len() / 2);
        }
        let Some(event) = slice.first() else { return Ok(Pass::new(Outcome::More, state.position)) };
        let mut judgement = judge(&self.consumer.options, state, event, &cause, state.position);
        if judgement.dead_letter.is_some() {
            // It is passed over in a transaction of its own: the next pass delivers it alone and does that.
            self.narrow = Some(1);
            judgement.settlement = Judgement::before_failed(state, state.position).settlement;
            judgement.settlement.failed_event_id = Some(event.event_id());
            judgement.settlement.faults += 1;
            judgement.settlement.last_error = Some(cause.message());
            judgement.settlement.due_in = Some(self.consumer.options.backoff.pause(1));
        }
        self.note(event, &judgement);
        let client = checkout(&cx.passes, "recording a failure").await?;
        let recording =
            pg::consumers::record(&client, cx.log.schema(), &self.key, state, &judgement.settlement);
        match deadline(cx.log.limit(), "recording a failure", recording).await? {
            Some(next_attempt_at) => Ok(judgement.into_pass(i64::MAX, next_attempt_at)),
            None => Ok(Pass::new(Outcome::Busy, state.position)),
        }
    }

    /// Passes that went well grow back to their full size.
    fn widen(&mut self, handled: usize, failed: bool) {
        if let Some(narrow) = self.narrow {
            let full = narrow >= self.consumer.options.batch_size;
            self.narrow = match failed || handled == 0 {
                true => Some(narrow),
                false if full => None,
                false => Some(narrow * 2),
            };
        }
    }

    fn note(&self, event: &Event, judgement: &Judgement) {
        let settlement = &judgement.settlement;
        let error = settlement.last_error.as_deref().unwrap_or_default();
        let (consumer, id, event_id) = (&self.key, event.id(), event.event_id());
        match judgement.dead_letter {
            Some(reason) => {
                tracing::warn!(%consumer, event = id, %event_id, reason, error, "event passed over; a dead letter is kept");
            }
            None if settlement.status == "dead" => {
                let attempt = judgement.attempt;
                tracing::error!(%consumer, event = id, %event_id, attempt, error, "consumer is dead; restart it or skip the event");
            }
            None => {
                let due_in = settlement.due_in.unwrap_or_default();
                tracing::warn!(%consumer, event = id, %event_id, attempt = judgement.attempt, ?due_in, error, "event failed");
            }
        }
    }
}

/// What calling a handler came to.
enum Called {
    Done,
    Failed(Failure),
    TimedOut,
    Cancelled,
}

/// Why a row that was asked for is not for us to run now; `None` when we hold it and may.
fn not_ours(state: &State, revision: i32, head: i64) -> Option<Outcome> {
    if state.revision > revision {
        return Some(Outcome::Outdated { registered: state.revision, ours: revision });
    }
    if let Some((from, to)) = state.pruned {
        return Some(Outcome::Pruned { from, to });
    }
    if state.locked.is_some() {
        return None;
    }
    Some(match state.status.as_str() {
        "dead" => Outcome::Dead { at: state.failed_at.unwrap_or(state.position) },
        "disabled" => Outcome::Disabled,
        "expired" => Outcome::Expired,
        _ => match (state.due_in, state.next_attempt_at) {
            (Some(due_in), Some(until)) if !due_in.is_zero() => {
                Outcome::Waiting { at: state.failed_at.unwrap_or(state.position), until }
            }
            _ if state.position >= head && state.retry.is_none() => Outcome::CaughtUp,
            _ => Outcome::Busy,
        },
    })
}

/// Ends when the dispatcher cancels what is in flight; never where there is none.
async fn cancelling(mut phase: watch::Receiver<Phase>) {
    if phase.wait_for(|phase| *phase >= Phase::Cancelling).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
