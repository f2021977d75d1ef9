//! The loop around the passes of one consumer row: when to run the next one.
//!
//! ```text
//!  due ──▶ pass ──▶ caught up, more ──────────────▶ due when the head is above the position
//!   ▲       │ └───▶ busy, pruned, an error ───────▶ rests until then
//!   │       └─────▶ waiting for its next attempt ─▶ rests until then, or until an operator acts
//!   │       └─────▶ dead, disabled, not ours … ───▶ parked until an operator acts
//!   └─────────────────────────────────────────────────┘
//! ```
//!
//! A lane at the head does not wait to be told that the head has moved. When the bell rings, it takes its row while the watcher
//! looks; where events have been coming shortly one after the other it *lingers*: it takes its row after a pass at once, and
//! keeps it for the next one.
//!
//! Invariants: I-7 (each row has a task of its own, and no more than half of the connections linger). What a lane knows of its
//! row is never more than a hint: the pass reads the row under its lock.
//!
//! Failure handling: a pass that does not come to its end is begun anew with back-off, and one that lost its connection makes the
//! watcher ask whether the epoch still holds. A row whose holder is frozen is freed after the handler's limit.
//!
//! Not its job: what a pass does (the module `delivery`), and how far it may deliver (the watcher).

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};

use super::board::Board;
use crate::backoff::Backoff;
use crate::consumer::Kind;
use crate::delivery::queue::{Feeder, Queue};
use crate::delivery::{Context, Head, Lookout, Pass, Phase, Runner};
use crate::error::{Error, ErrorKind};
use crate::metrics;
use crate::outcome::Outcome;
use crate::pg::consumers;
use crate::pg::consumers::poll::Standing;
use crate::pg::{On, ask};

/// How soon a row that another process holds is asked for again.
const BUSY_PAUSE: Duration = Duration::from_millis(150);
/// How often a filtered consumer's position moves over events that it does not want.
const ADVANCE_EVERY: Duration = Duration::from_secs(1);
/// How soon a row with unread events missing is looked at again.
const PRUNED_PAUSE: Duration = Duration::from_secs(5);
/// How long a row is held for an event that the bell has announced; it comes at once, unless a hole is before it.
const ANNOUNCED: Duration = Duration::from_millis(20);
/// How long a row is held on after a pass, where events have been coming no further apart than that: the next one then waits for
/// no lock. No longer, so that an operator's action, which waits for the lock, and vacuuming are not kept waiting.
const LINGER: Duration = Duration::from_secs(1);
/// How long after its limit a row's holder is left alone.
const HOLDER_MARGIN: Duration = Duration::from_millis(400);

/// One consumer row, as a running dispatcher drives it.
pub(crate) struct LaneLoop {
    /// Of the queue that it brings events into.
    _feeder: Option<Feeder>,
    runner: Runner,
    cx: Arc<Context>,
    board: watch::Receiver<Board>,
    appends: watch::Receiver<u64>,
    suspect: Arc<Notify>,
    position: i64,
    rest: Rest,
    passed_at: Option<Instant>,
    busy_since: Option<Instant>,
    failures: u32,
    /// When events were delivered last; where that was soon after those before, until when the next ones are expected.
    delivered_at: Option<Instant>,
    expected_until: Option<Instant>,
    /// While the row is kept for them.
    lingering: Option<OwnedSemaphorePermit>,
    /// The poll that told of a dead letter to be retried, for which a pass was run.
    retried_at: Option<Instant>,
}

/// When a pass is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Now,
    /// As soon as the head has moved, which it is about to do: somebody has rung.
    Announced,
    /// As soon as the head has moved, if it does so as soon as it did before.
    Expected,
}

/// Why no pass runs although there may be events.
#[derive(Clone, Copy, Debug)]
enum Rest {
    No,
    Until(Instant),
    /// Until then, or until an operator acts.
    Waiting(Instant),
    /// Until an operator acts.
    Parked,
}

impl LaneLoop {
    pub(crate) fn new(
        runner: Runner,
        cx: Arc<Context>,
        board: watch::Receiver<Board>,
        appends: watch::Receiver<u64>,
        suspect: Arc<Notify>,
    ) -> Self {
        Self {
            _feeder: runner.queue.as_ref().map(Queue::feed),
            runner,
            cx,
            board,
            appends,
            suspect,
            position: -1,
            rest: Rest::No,
            passed_at: None,
            busy_since: None,
            failures: 0,
            delivered_at: None,
            expected_until: None,
            lingering: None,
            retried_at: None,
        }
    }

    /// Runs passes until the dispatcher drains.
    pub(crate) async fn run(mut self) {
        let mut phase = self.cx.phase.clone();
        loop {
            let due = tokio::select! {
                biased;
                _ = phase.wait_for(|phase| *phase >= Phase::Draining) => return,
                due = self.due() => due,
            };
            if let Some(queue) = self.runner.queue.clone() {
                tokio::select! {
                    _ = phase.wait_for(|phase| *phase >= Phase::Draining) => return,
                    () = queue.has_room() => {}
                }
            }
            let Some(head) = self.board.borrow().head else { continue };
            self.passed_at = Some(Instant::now());
            let lookout = match due {
                Due::Announced if head.id == self.position => self.moving(head, ANNOUNCED),
                Due::Expected if head.id == self.position => self.moving(head, self.linger()),
                _ => Lookout::Known(head),
            };
            let ended = self.runner.pass(&self.cx, lookout).await;
            self.lingering = None;
            match ended {
                Ok(pass) => {
                    self.failures = 0;
                    metrics::pass(&self.runner.key, &pass.report, self.runner.began.elapsed());
                    self.expect(&pass);
                    self.take(&pass).await;
                }
                Err(error) => self.back_off(&error),
            }
        }
    }

    /// Waits until a pass is due.
    async fn due(&mut self) -> Due {
        loop {
            let mut soon = false;
            let at = {
                let board = self.board.borrow_and_update();
                let standing = board.standings.get(&self.runner.key);
                // Passes that began since do not look for dead letters while the row is as they left it.
                let retry = board.polled.filter(|_| standing.is_some_and(|standing| standing.retry));
                let standing = standing.filter(|_| board.polled > self.passed_at).cloned();
                let head = board.head;
                let rung_for = board.rung_for;
                drop(board);
                let at = self.when(head, standing.as_ref(), retry);
                if at.is_none() && rung_for && self.is_at(head) {
                    if self.expected_until > Some(Instant::now()) {
                        self.lingering = self.cx.linger();
                    }
                    if self.lingering.is_some() {
                        return Due::Expected;
                    }
                    soon = true;
                    self.appends.mark_unchanged();
                }
                at
            };
            if at.is_some_and(|at| at <= Instant::now()) {
                return Due::Now;
            }
            let sleep = async {
                match at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.board.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
                Ok(()) = self.appends.changed(), if soon => return Due::Announced,
                () = sleep => {}
            }
        }
    }

    /// Events that came shortly one after the other let the next one be expected as soon.
    fn expect(&mut self, pass: &Pass) {
        let now = Instant::now();
        let before = match pass.report.processed {
            0 => None,
            _ => self.delivered_at.replace(now),
        };
        self.expected_until = before.filter(|before| now - *before < LINGER).map(|_| now + LINGER);
    }

    /// For how long the row is kept for what is expected.
    fn linger(&self) -> Duration {
        let until =
            self.expected_until.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
        until.min(self.runner.consumer.options.handler_timeout)
    }

    /// The head as soon as it has moved; as it was when it has not within that time, or is lost, or the dispatcher drains.
    fn moving(&self, from: Head, within: Duration) -> Lookout {
        let (mut board, mut phase) = (self.board.clone(), self.cx.phase.clone());
        let moved = async move {
            tokio::select! {
                moved = board.wait_for(|board| board.head != Some(from)) => moved.ok()?.head,
                _ = phase.wait_for(|phase| *phase >= Phase::Draining) => None,
            }
        };
        let moved = async move { tokio::time::timeout(within, moved).await.ok().flatten().unwrap_or(from) };
        Lookout::Moving(from, moved.boxed())
    }

    /// Is it idle at the head, and will it want the next event?
    fn is_at(&self, head: Option<Head>) -> bool {
        matches!(self.rest, Rest::No)
            && head.is_some_and(|head| head.id == self.position)
            && self.runner.consumer.wants_everything()
            && self.runner.consumer.kind != Kind::Effect
    }

    /// When the next pass is due, as far as the board tells; `None` while nothing is to be done. The standing is one that
    /// was asked for after the last pass began: an older one says nothing new. `retry` is the poll that told of a dead letter to
    /// be retried.
    fn when(
        &mut self,
        head: Option<Head>,
        standing: Option<&Standing>,
        retry: Option<Instant>,
    ) -> Option<Instant> {
        let now = Instant::now();
        let head = head?;
        let Runner { consumer, key, .. } = &self.runner;
        if let Some(standing) = standing {
            self.position = standing.position;
        }
        let runnable = standing.is_some_and(|standing| standing.is_runnable(consumer.revision_number()));
        match self.rest {
            Rest::Until(at) if at > now => return Some(at),
            Rest::Waiting(at) if at > now && !runnable => return Some(at),
            Rest::Parked if !runnable => return None,
            _ => self.rest = Rest::No,
        }
        if retry > self.retried_at {
            self.retried_at = retry;
            self.runner.look_closely();
            return Some(now);
        }
        if self.position >= head.id {
            return None;
        }
        if self.position >= 0 && self.cx.window.is_idle(head.epoch, self.position, head.id, consumer, key) {
            return Some(self.passed_at.map_or(now, |at| at + ADVANCE_EVERY));
        }
        Some(now)
    }

    async fn take(&mut self, pass: &Pass) {
        self.position = pass.position;
        let now = Instant::now();
        if pass.report.outcome != Outcome::Busy {
            self.busy_since = None;
        }
        self.rest = match &pass.report.outcome {
            Outcome::More => {
                if self.board.borrow().head.is_some_and(|head| head.id <= self.position) {
                    // Not an event: there may be another dead letter to be retried.
                    self.position = -1;
                }
                Rest::No
            }
            Outcome::CaughtUp | Outcome::Stopped => Rest::No,
            Outcome::Busy => {
                self.free_stuck(now).await;
                // Its position is the holder's business; only that there was lag is known.
                self.position = -1;
                Rest::Until(now + BUSY_PAUSE)
            }
            Outcome::Waiting { .. } => Rest::Waiting(now + pass.due_in.unwrap_or(BUSY_PAUSE)),
            Outcome::Dead { .. } if pass.due_in.is_some() => {
                Rest::Waiting(now + pass.due_in.unwrap_or_default())
            }
            Outcome::Pruned { from, to } => {
                tracing::error!(consumer = %self.runner.key, from, to, "unread events were pruned; accept it, or reset the consumer");
                Rest::Until(now + PRUNED_PAUSE)
            }
            Outcome::Dead { .. } | Outcome::Disabled | Outcome::Expired => Rest::Parked,
            outcome @ (Outcome::Unregistered | Outcome::Outdated { .. }) => {
                tracing::warn!(consumer = %self.runner.key, ?outcome, "this process does not run the consumer");
                Rest::Parked
            }
        };
    }

    /// A holder that has been in the same state for longer than a handler may take is frozen, or its client is: it is
    /// ended. No event is decided by that clock; the holder's transaction rolls back.
    async fn free_stuck(&mut self, now: Instant) {
        let since = *self.busy_since.get_or_insert(now);
        let limit = self.runner.consumer.options.handler_timeout + HOLDER_MARGIN;
        if now - since < HOLDER_MARGIN {
            return;
        }
        let (schema, key) = (self.cx.log.schema(), &self.runner.key);
        let what = On("looking at who holds consumer", key);
        let freeing = ask(&self.cx.passes, self.cx.log.limit(), what, async |client| {
            consumers::free(client, schema, key, limit, None).await
        });
        match freeing.await {
            Ok(Some(freed)) => {
                metrics::freed(&self.runner.key);
                let consumers::Freed { pid, application, stuck_for } = freed;
                tracing::warn!(consumer = %self.runner.key, pid, application, ?stuck_for, "terminated a session that held the consumer for too long");
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(error = error.report(), "looking at who holds a consumer"),
        }
    }

    fn back_off(&mut self, error: &Error) {
        metrics::pass_failed(&self.runner.key);
        self.failures += 1;
        self.position = -1;
        let backoff = Backoff::exponential(Duration::from_millis(50)).up_to(Duration::from_secs(5));
        let pause = backoff.pause(self.failures);
        if error.kind() == ErrorKind::Connection {
            self.suspect.notify_one();
        }
        tracing::warn!(consumer = %self.runner.key, error = error.report(), ?pause, "a pass did not come to its end");
        self.rest = Rest::Until(Instant::now() + pause);
    }
}

impl Standing {
    fn is_runnable(&self, revision: i32) -> bool {
        self.status == "idle" && self.revision <= revision && self.due_in.is_none_or(|due| due.is_zero())
    }
}
