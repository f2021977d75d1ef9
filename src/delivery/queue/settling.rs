//! Settling what has come to an end, many events in one statement.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use uuid::Uuid;

use super::{Ended, Queue};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::metrics;
use crate::pg::ledger::{self, Settlement};
use crate::pg::{On, ask};

/// Events that one statement settles at most.
const MOST_EVENTS: usize = 1_000;

/// What is being settled. Dropped before it is, it waits for the next one who settles.
struct InHand<'q> {
    queue: &'q Queue,
    ended: Vec<Ended>,
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.queue.state().ended.append(&mut self.ended);
    }
}

/// Is it one of the rows that the server does not take, and would not take at another time either?
fn is_of_the_data(error: &Error) -> bool {
    error.sqlstate().is_some_and(|state| ["22", "23", "P0"].iter().any(|class| state.starts_with(class)))
}

impl Queue {
    /// Settles what has come to an end, together, until everything has.
    pub(super) async fn settle_what_ended(&self, mut all_ended: watch::Receiver<bool>) {
        let backoff = Backoff::exponential(Duration::from_millis(50)).up_to(Duration::from_secs(2));
        let mut failures = 0;
        loop {
            let mut taken = self.take_ended();
            if taken.ended.is_empty() {
                if *all_ended.borrow_and_update() {
                    return;
                }
                tokio::select! {
                    () = self.ended.notified() => {}
                    // The sender lives until it has told.
                    _ = all_ended.changed() => {}
                }
                continue;
            }
            match self.settle_all(&mut taken.ended).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures += 1;
                    let pause = backoff.pause(failures);
                    tracing::warn!(consumer = %self.key, error = error.report(), ?pause, "results could not be written; they are tried again");
                    self.keep_for_later(std::mem::take(&mut taken.ended));
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    fn take_ended(&self) -> InHand<'_> {
        let mut state = self.state();
        let count = state.ended.len().min(MOST_EVENTS);
        InHand { queue: self, ended: state.ended.drain(..count).collect() }
    }

    /// Settles them in one statement; where one of them is refused, in halves until that one stands alone. It is given up, and
    /// waits out its lease. What an error leaves unsettled stays in `ended`.
    async fn settle_all(&self, ended: &mut Vec<Ended>) -> Result<(), Error> {
        let mut part = ended.len();
        while !ended.is_empty() {
            part = part.min(ended.len());
            let last = &ended[ended.len() - part..];
            match self.settle(last).await {
                Ok(settled) => {
                    self.count(last, &settled);
                    ended.truncate(ended.len() - part);
                    part = ended.len();
                }
                Err(error) if !is_of_the_data(&error) => return Err(error),
                Err(_) if part > 1 => part /= 2,
                Err(error) => {
                    let Settlement { event_id, token, status, .. } = &last[0].settlement;
                    tracing::error!(consumer = %self.key, %event_id, status, error = error.report(), "a result is refused; the event is tried again when its lease has run out");
                    self.let_go(*event_id, *token);
                    ended.truncate(ended.len() - 1);
                    part = ended.len();
                }
            }
        }
        Ok(())
    }

    fn let_go(&self, event_id: Uuid, token: i64) {
        metrics::lease_lost(&self.key);
        self.state().let_go(event_id, token);
        self.settled.send_modify(|n| *n += 1);
    }

    /// What is no longer ours, by our own clock, is not worth another try.
    fn keep_for_later(&self, ended: Vec<Ended>) {
        let now = Instant::now();
        let mut state = self.state();
        for one in ended {
            let Settlement { event_id, token, .. } = one.settlement;
            let hold = state.held.get(&event_id).filter(|hold| hold.token == token);
            if hold.is_some_and(|hold| now < hold.valid_until) {
                state.ended.push(one);
            } else {
                metrics::lease_lost(&self.key);
                state.let_go(event_id, token);
            }
        }
        drop(state);
        self.settled.send_modify(|n| *n += 1);
    }

    async fn settle(&self, ended: &[Ended]) -> Result<Vec<Uuid>, Error> {
        let claims = ended.iter().map(|one| (&one.settlement, one.reason));
        let (schema, what) = (self.cx.log.schema(), On("settling events of", &self.key));
        let all_done = ended.iter().all(|one| one.settlement.status == "done");
        ask(&self.cx.leases, self.cx.log.limit(), what, async |client| {
            if !all_done {
                return ledger::settle_queued(client, schema, &self.handler, &self.key, claims).await;
            }
            let claims: Vec<(Uuid, i64)> = claims.map(|(claim, _)| (claim.event_id, claim.token)).collect();
            ledger::settle_done(client, schema, &self.handler, &self.key, &claims).await
        })
        .await
    }

    fn count(&self, ended: &[Ended], settled: &[Uuid]) {
        let settled: HashSet<&Uuid> = settled.iter().collect();
        let (mut processed, mut failed, mut skipped, mut due_in) = (0, 0, 0, None);
        let mut state = self.state();
        for Ended { settlement, reason } in ended {
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
}
