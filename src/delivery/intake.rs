//! The pass of a queued consumer: its next events go into the ledger, leased to this process, and its row moves past them, in one
//! statement; they are handled afterwards.
//!
//! There is no transaction around it, so none is open while handlers run. What is read ahead is taken only from where the row
//! stands, and the statement says whether it did.
//!
//! Invariants: I-1 (an event is in the ledger before the row has passed it), I-3 (one statement, under the row's lock), I-5.
//!
//! Failure handling: an answer that never came leaves events leased to nobody who knows; the sweep finds them when the lease has
//! run out.

use std::sync::Arc;
use std::time::Instant;

use uuid::Uuid;

use super::queue::Queue;
use super::supply::{Behind, Lane, Page};
use super::{Context, Head, Lookout, Pass, Runner, TRIES, another_epoch, not_ours};
use crate::error::Error;
use crate::outcome::Outcome;
use crate::pg::consumers::{self, State};
use crate::pg::ledger::{self, Intake};
use crate::pg::{On, ask, ask_and_keep, throw_away};

/// Where a row stood when it was last moved from here, and in which epoch that was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stand {
    head: Head,
    position: i64,
}

impl Runner {
    pub(super) async fn take_in(
        &mut self,
        cx: &Context,
        queue: &Queue,
        lookout: Lookout,
    ) -> Result<Pass, Error> {
        let head = lookout.head().await;
        self.began = Instant::now();
        tracing::Span::current().record("head", head.id);
        let known = self.stood.take().filter(|stood| stood.head.epoch == head.epoch);
        let mut position = known.map(|stood| stood.position);
        for _ in 0..TRIES {
            let from = match position {
                Some(position) if position < head.id => position,
                _ => match self.look(cx, head).await? {
                    Ok(state) => state.position,
                    Err(pass) => return Ok(pass),
                },
            };
            let page = self.next_events(cx, queue, from, head).await?;
            if page.to <= from {
                return Ok(Pass::new(Outcome::More, from));
            }
            let asked_at = Instant::now();
            if let Some(claimed) = self.enqueue(cx, queue, &page, head).await? {
                let to = page.to;
                queue.take_page(page.events, claimed, asked_at);
                self.stood = Some(Stand { head, position: to });
                let outcome = if to >= head.id { Outcome::CaughtUp } else { Outcome::More };
                return Ok(Pass::new(outcome, to));
            }
            // It stands elsewhere, or is not ours now.
            position = None;
        }
        Ok(Pass::new(Outcome::Busy, -1))
    }

    /// How the row stands, where it is for us to run. The inner error is a pass that ends here.
    async fn look(&self, cx: &Context, head: Head) -> Result<Result<State, Pass>, Error> {
        let (schema, key) = (cx.log.schema(), &self.key);
        let what = On("looking at consumer", key);
        let looking = ask_and_keep(&cx.passes, cx.log.limit(), what, async |client| {
            consumers::stand(client, schema, key, cx.process, false).await
        });
        let (state, client) = looking.await?;
        let Some(mut state) = state else { return Ok(Err(Pass::new(Outcome::Unregistered, 0))) };
        if state.epoch != Some(head.epoch) {
            throw_away(client);
            return Err(another_epoch(key));
        }
        // The queue itself sees to dead letters.
        state.retry = None;
        Ok(match not_ours(&state, self.consumer.revision_number(), head.id) {
            // Nobody holds a row of this kind for longer than a statement.
            Some(Outcome::Busy) | None => Ok(state),
            Some(outcome) => Err(Pass::refused(outcome, &state)),
        })
    }

    async fn next_events(
        &mut self,
        cx: &Context,
        queue: &Queue,
        position: i64,
        head: Head,
    ) -> Result<Page, Error> {
        let (consumer, key) = (Arc::clone(&self.consumer), self.key.clone());
        let lane = Lane { consumer: &consumer, key: &key };
        let behind = Behind { epoch: head.epoch, position, head: head.id };
        let limit = self.pass_size(head.id - position).min(queue.room().max(1));
        self.ahead.next(&cx.readers(), &lane, behind, limit).await
    }

    /// Those that are ours to run, with their tokens; `None` when the row was not where the page begins, or not ours.
    async fn enqueue(
        &self,
        cx: &Context,
        queue: &Queue,
        page: &Page,
        head: Head,
    ) -> Result<Option<Vec<(Uuid, i64)>>, Error> {
        let arrivals = queue.arrivals(&page.events);
        let intake = Intake {
            key: &self.key,
            revision: self.consumer.revision_number(),
            epoch: head.epoch,
            from: page.from,
            to: page.to,
            handler: queue.handler(),
            lease: queue.lease(),
            owner: cx.process,
        };
        let (schema, what) = (cx.log.schema(), On("taking events into the queue of", &self.key));
        ask(&cx.passes, cx.log.limit(), what, async |client| {
            ledger::enqueue(client, schema, &intake, &arrivals).await
        })
        .await
    }
}
