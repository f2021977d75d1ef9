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
//! The head that it delivers up to is known from the start, or ([`Lookout::Moving`]) waited for while the row is held, so that
//! look and lock are made at the same time; a head that has not moved ends the pass without having written anything.
//!
//! Invariants: I-2 (in id order, from the row's position), I-3 (the row lock; every write names the transaction that
//! holds it), I-4 (effects and position in one transaction), I-6 (a failing event halts; what is passed over leaves a dead
//! letter in the same transaction).
//!
//! Failure handling: a handler's error, panic or time-out is rolled back to the savepoint in front of the batch, and the
//! failure is committed together with the events before it. Where the transaction is lost, or its commit refused, the next
//! pass is shorter until the event stands alone; then its failure is recorded in another transaction, fenced by how the row
//! stood at the lock. A process that dies takes its transaction with it.
//!
//! Not its job: when to run a pass, and who reads the events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::Instrument;

use crate::consumer::{Consumer, Kind};
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::outcome::{ConsumerReport, Failure, Outcome};
use crate::pg::consumers::{Key, State};
use crate::pg::dead_letters::DeadLetter;

mod context;
mod dead_letter;
mod effects;
mod handling;
mod intake;
mod judgement;
mod keeper;
mod outside;
pub(crate) mod queue;
mod session;
pub(crate) mod supply;

pub(crate) use context::{Context, Head, HoldUps, Lookout, Phase};

use handling::{Broken, Delivered};
use intake::Stand;
use judgement::{Judgement, judge};
use queue::Queue;
use session::{Committed, Left, PassSession};
use supply::{Behind, Lane, MOST_ROWS, Page, ReadAhead};

/// How often a pass finds that another process has moved the row on while its events were being read.
const TRIES: usize = 3;

/// One row of a consumer, as this process runs it.
pub(crate) struct Runner {
    pub(crate) consumer: Arc<Consumer>,
    pub(crate) key: Key,
    /// Whose effects these are, in the ledger: the consumer, whichever its partitions.
    handler_name: Arc<str>,
    /// Where events go that are handled in no order.
    pub(crate) queue: Option<Arc<Queue>>,
    ahead: ReadAhead,
    /// After a slice failed, or a commit: the most events of the next pass, until the failing one stands alone.
    narrow: Option<usize>,
    /// How the last pass left the row, where it went well and nothing else is known of the row.
    left: Option<Left>,
    /// Of a queued consumer: where the last pass left its row.
    stood: Option<Stand>,
    /// Since when the last pass knew how far it might go.
    pub(crate) began: Instant,
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

    /// The row is not for us to run now.
    fn refused(outcome: Outcome, state: &State) -> Self {
        Self { due_in: state.due_in, ..Self::new(outcome, state.position) }
    }
}

impl Runner {
    pub(crate) fn new(consumer: Arc<Consumer>, key: Key, queue: Option<Arc<Queue>>) -> Self {
        Self {
            handler_name: handler_name(&key),
            consumer,
            key,
            queue,
            ahead: ReadAhead::default(),
            narrow: None,
            left: None,
            stood: None,
            began: Instant::now(),
        }
    }

    /// The next pass asks how the row stands, whole, even if it is as this process left it: a dead letter is to be retried.
    pub(crate) fn look_closely(&mut self) {
        self.left = None;
    }

    /// Runs one pass.
    ///
    /// # Errors
    /// Of the server and the network, outside of any handler: nothing was written, or the commit is ambiguous; the next
    /// pass reads the row and knows.
    ///
    /// # Cancel safety
    /// Dropped in the middle, the transaction is rolled back, or its commit is ambiguous.
    pub(crate) async fn pass(&mut self, cx: &Arc<Context>, lookout: Lookout) -> Result<Pass, Error> {
        let span = tracing::debug_span!("pass", consumer = %self.key, head = tracing::field::Empty);
        self.began = Instant::now();
        match (self.consumer.kind, self.queue.clone()) {
            (Kind::Effect, _) => self.run_effects(cx, lookout).instrument(span).await,
            (_, Some(queue)) => self.take_in(cx, &queue, lookout).instrument(span).await,
            _ => self.run(cx, lookout).instrument(span).await,
        }
    }

    async fn run(&mut self, cx: &Context, mut lookout: Lookout) -> Result<Pass, Error> {
        let readers = cx.readers();
        let (consumer, key) = (Arc::clone(&self.consumer), self.key.clone());
        let lane = Lane { consumer: &consumer, key: &key };
        let mut missing = match &lookout {
            Lookout::Known(head) => self.ahead.used_up(head.epoch),
            Lookout::Moving(..) => None,
        };
        for _ in 0..TRIES {
            // Reading may take longer than a session may be idle, and than others should wait for the row.
            if let (Some(position), Lookout::Known(head)) = (missing.take(), &lookout) {
                let behind = Behind { epoch: head.epoch, position, head: head.id };
                self.ahead.read(&readers, &lane, behind).await?;
            }
            let (session, state, head) = match self.take_row(cx, lookout).await? {
                Ok(taken) => taken,
                Err(pass) => return Ok(pass),
            };
            lookout = Lookout::Known(head);
            if let Some(letter) = state.retry {
                return self.retry_dead_letter(cx, session, &state, letter).await;
            }
            let limit = self.pass_size(head.id - state.position);
            let behind = Behind { epoch: head.epoch, position: state.position, head: head.id };
            if let Some(page) = self.ahead.at_hand(&readers, &lane, behind, limit) {
                return self.deliver(cx, session, &state, &page, head).await;
            }
            session.leave().await?;
            missing = Some(state.position);
        }
        Ok(Pass::new(Outcome::More, missing.unwrap_or_default()))
    }

    /// Begins a transaction that holds the row. The inner error is a pass that ends here, with nothing to do or not ours.
    async fn take_row<'a>(
        &mut self,
        cx: &'a Context,
        lookout: Lookout,
    ) -> Result<Result<(PassSession<'a>, State, Head), Pass>, Error> {
        let mut session = PassSession::begin(cx, &self.consumer, &self.key).await?;
        let mut state = session.lock(lookout.asks_for(), self.left.as_ref()).await?;
        if state
            .as_ref()
            .is_some_and(|s| !s.is_locked && s.retry.is_some() && s.position >= lookout.asks_for())
        {
            // There is no event to lock the row for, but a dead letter.
            session.leave().await?;
            session = PassSession::begin(cx, &self.consumer, &self.key).await?;
            state = session.lock(i64::MAX, None).await?;
        }
        let Some(state) = state else {
            session.leave().await?;
            return Ok(Err(Pass::new(Outcome::Unregistered, 0)));
        };
        let head = match lookout {
            Lookout::Known(head) => head,
            Lookout::Moving(_, moved) if state.is_locked => {
                let asked = Instant::now();
                let head = moved.await;
                self.began = Instant::now();
                session.speak_up_after(self.began - asked).await;
                head
            }
            Lookout::Moving(head, _) => head,
        };
        tracing::Span::current().record("head", head.id);
        if state.epoch != Some(head.epoch) {
            drop(session);
            return Err(another_epoch(&self.key));
        }
        if let Some(outcome) = not_ours(&state, self.consumer.revision_number(), head.id) {
            session.leave().await?;
            return Ok(Err(Pass::refused(outcome, &state)));
        }
        Ok(Ok((session, state, head)))
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
        mut session: PassSession<'_>,
        state: &State,
        page: &Page,
        head: Head,
    ) -> Result<Pass, Error> {
        let narrow = self.narrow;
        let part = up_to_failed(&page.events, state);
        let Delivered { handled, failure } = match self.deliver_what_works(cx, &mut session, part).await {
            Ok(delivered) => delivered,
            Err(Broken::Cancelled) => {
                session.give_up().await;
                return Ok(Pass::new(Outcome::Stopped, state.position));
            }
            Err(Broken::Lost { before, slice, cause }) => {
                session.abandon().await;
                return self.charge(cx, state, before, &part[before..before + slice], cause).await;
            }
        };
        let position = match handled.checked_sub(1) {
            _ if handled == page.events.len() && failure.is_none() => page.to,
            Some(last) => page.events[last].id(),
            None => state.position,
        };
        if position == state.position && failure.is_none() {
            session.leave().await?;
            return Ok(Pass::new(Outcome::More, position));
        }
        let mut judgement = match &failure {
            Some((event, cause)) => judge(&self.consumer.options, state, event, cause, position),
            None if state.failed_at > Some(position) => Judgement::before_failed(state, position),
            None => Judgement::well(position),
        };
        judgement.settlement.processed = i64::try_from(handled).unwrap_or(i64::MAX);
        match self.conclude(session, &judgement, failure.as_ref().map(|(event, _)| *event)).await? {
            Committed::Done(settled) => {
                if self.narrow == narrow {
                    self.widen();
                }
                self.left = judgement.is_well().then(|| Left::new(settled.written_by, state.epoch));
                Ok(judgement.into_pass(head.id, settled.next_attempt_at))
            }
            Committed::Refused(error) if handled == 0 => Err(error),
            // A deferred constraint, or an error that was swallowed last.
            Committed::Refused(error) => {
                self.charge(cx, state, 0, &part[..handled], Failure::retry(error)).await
            }
            Committed::Gone => Ok(Pass::new(Outcome::Unregistered, position)),
        }
    }

    /// Charges a failure whose transaction is gone to the event that it is of, in another transaction. Where that is not
    /// clear, or others come before it, nothing is written: the next pass is shorter, until it is.
    async fn charge(
        &mut self,
        cx: &Context,
        state: &State,
        before: usize,
        slice: &[Event],
        cause: Failure,
    ) -> Result<Pass, Error> {
        // A dead letter that is to be retried comes first, and whoever looks for what has changed sees it.
        self.left = None;
        if before > 0 || slice.len() > 1 {
            self.narrow = Some(if before > 0 { before } else { slice.len() / 2 });
            return Ok(Pass::new(Outcome::More, state.position));
        }
        let Some(session) = PassSession::begin_again(cx, &self.consumer, &self.key, state).await? else {
            return Ok(Pass::new(Outcome::Busy, state.position));
        };
        let judgement = judge(&self.consumer.options, state, &slice[0], &cause, state.position);
        match self.conclude(session, &judgement, Some(&slice[0])).await? {
            Committed::Done(settled) => Ok(judgement.into_pass(i64::MAX, settled.next_attempt_at)),
            Committed::Refused(error) => Err(error),
            Committed::Gone => Ok(Pass::new(Outcome::Unregistered, state.position)),
        }
    }

    /// Writes what a pass came to, with the dead letter of the event that failed where it is passed over, and commits.
    async fn conclude(
        &self,
        session: PassSession<'_>,
        judgement: &Judgement,
        failed: Option<&Event>,
    ) -> Result<Committed, Error> {
        if let Some((event, reason)) = failed.zip(judgement.dead_letter) {
            let error = judgement.settlement.last_error.as_deref().unwrap_or_default();
            session.dead_letter(&DeadLetter { event, attempts: judgement.attempt, error, reason }).await?;
        }
        let committed = session.commit(&judgement.settlement).await?;
        if let (Some(event), Committed::Done(_)) = (failed, &committed) {
            self.note(event, judgement);
        }
        Ok(committed)
    }

    /// Passes that went well grow back to their full size.
    fn widen(&mut self) {
        let full = self.consumer.options.batch_size;
        self.narrow = self.narrow.map(|narrow| narrow * 2).filter(|narrow| *narrow < full);
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

/// Whose effects a row's are, in the ledger.
pub(crate) fn handler_name(key: &Key) -> Arc<str> {
    Key { partition: 0, ..key.clone() }.to_string().into()
}

/// Perhaps a connection to a server that was replaced: it must not come back from its pool.
fn another_epoch(key: &Key) -> Error {
    Error::new(
        ErrorKind::Connection,
        format!("consumer {key}: the safe head belongs to another epoch; it is read anew"),
    )
}

/// What is delivered first. The event that failed last stands alone, and what comes before it is committed before it is tried
/// again: whatever it does, they are done.
fn up_to_failed<'e>(events: &'e [Event], state: &State) -> &'e [Event] {
    let Some(failed_at) = state.failed_at else { return events };
    let before = events.partition_point(|e| e.id() < failed_at);
    let is_first = events.first().is_some_and(|e| e.id() == failed_at);
    match before {
        0 if is_first => &events[..1],
        0 => events,
        _ => &events[..before],
    }
}

/// Why a row that was asked for is not for us to run now; `None` when we hold it and may.
fn not_ours(state: &State, revision: i32, head: i64) -> Option<Outcome> {
    if state.revision > revision {
        return Some(Outcome::Outdated { registered: state.revision, ours: revision });
    }
    if let Some((from, to)) = state.pruned {
        return Some(Outcome::Pruned { from, to });
    }
    if state.is_locked {
        // The head that the row was locked for has not moved.
        return (state.position >= head && state.retry.is_none()).then_some(Outcome::CaughtUp);
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
