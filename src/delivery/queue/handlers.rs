//! The handlers of a queue: as many at once as the consumer allows, events of one stream one after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{Ended, Queue};
use crate::consumer::Effect;
use crate::delivery::Phase;
use crate::delivery::outside::{self, Called, next_attempt};
use crate::metrics;
use crate::outcome::Failure;
use crate::pg::ledger::Due;

/// Events that are taken out to be run, one after the other. Those that were not run to their end are given back, also where
/// whoever runs them is dropped.
struct Taken {
    queue: Arc<Queue>,
    events: VecDeque<Due>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        for due in &self.events {
            self.queue.finish(Ended::released(due, Duration::ZERO));
        }
    }
}

impl Queue {
    /// Runs what comes in until the dispatcher drains, and gives back what was not started.
    pub(super) async fn run_handlers(self: &Arc<Self>) {
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
            let queue = Arc::clone(self);
            running.spawn(async move {
                let mut next = Some(next);
                while let Some(events) = next {
                    run(events).await;
                    // Handlers that never wait would leave the others no turn.
                    tokio::task::yield_now().await;
                    next = queue.another();
                }
                drop(permit);
            });
        }
        // What is still on its way to us is given back, too.
        let mut feeders = self.feeders.subscribe();
        let _ = feeders.wait_for(|feeders| *feeders == 0).await;
        while let Some(taken) = self.take_out() {
            drop(taken);
        }
        while running.join_next().await.is_some() {}
    }

    /// What else is waiting, for whoever has come to an end.
    fn another(self: &Arc<Self>) -> Option<Taken> {
        match *self.cx.phase.borrow() {
            Phase::Running => self.take_out(),
            _ => None,
        }
    }

    async fn next(self: &Arc<Self>) -> Taken {
        loop {
            if let Some(next) = self.take_out() {
                return next;
            }
            self.arrived.notified().await;
        }
    }

    fn take_out(self: &Arc<Self>) -> Option<Taken> {
        let events = self.state().waiting.pop_front()?;
        Some(Taken { queue: Arc::clone(self), events: events.into() })
    }

    async fn run_one(&self, due: &Due) -> Ended {
        match self.call(due).await {
            Called::Done => Ended::done(due),
            Called::Cancelled => Ended::released(due, Duration::ZERO),
            Called::Lost => {
                metrics::lease_lost(&self.key);
                tracing::warn!(consumer = %self.key, event_id = %due.event.event_id(), "a claim was lost; the event is another's now");
                // If it is still ours after all, it is at once another's to take.
                Ended::released(due, Duration::ZERO)
            }
            Called::Failed(failure) => self.judge(due, &failure),
        }
    }

    async fn call(&self, due: &Due) -> Called {
        if let Some(failure) = outside::heard_of_no_more(&self.consumer, due.faults) {
            return Called::Failed(failure);
        }
        if self.valid_until(due).is_none_or(|until| Instant::now() >= until) {
            return Called::Lost;
        }
        let (event, attempt) = (&due.event, next_attempt(due.attempts, due.faults));
        let effects = [Effect::new(&self.handler, event.event_id(), due.token, attempt)];
        let events = std::slice::from_ref(event);
        outside::call(&self.cx, &self.consumer, &self.key, events, &effects, self.lost(due)).await
    }

    fn judge(&self, due: &Due, failure: &Failure) -> Ended {
        let ended = Ended::failed(due, &self.consumer.options, failure);
        let (consumer, event, event_id) = (&self.key, due.event.id(), due.event.event_id());
        let error = ended.settlement.error.as_deref().unwrap_or_default();
        match ended.reason {
            Some(reason) => {
                tracing::warn!(%consumer, event, %event_id, reason, error, "event given up; a dead letter is kept");
            }
            None => {
                let due_in = ended.settlement.due_in;
                tracing::warn!(%consumer, event, %event_id, ?due_in, error, "event failed");
            }
        }
        ended
    }

    fn finish(&self, ended: Ended) {
        self.state().ended.push(ended);
        self.ended.notify_one();
    }
}

/// Events of one stream, one after the other; where one is to be tried again, those behind it wait for that.
async fn run(mut taken: Taken) {
    let queue = Arc::clone(&taken.queue);
    let mut held_up = None;
    while let Some(due) = taken.events.front() {
        let ended = match held_up {
            Some(pause) => Ended::released(due, pause),
            None => queue.run_one(due).await,
        };
        held_up = (ended.settlement.status == "pending").then_some(ended.settlement.due_in);
        queue.finish(ended);
        taken.events.pop_front();
    }
}
