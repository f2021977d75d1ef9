//! The pass of an effect consumer: its row leased, its next events claimed, run and settled one after the other, with no
//! transaction open meanwhile.
//!
//! ```text
//!  lease the row ──▶ nothing to do, or not ours ──▶ leave
//!   │
//!   ▼
//!  claim ──▶ done already ────────────────────────────────────┐
//!   │  ▲  └▶ another's claim is valid: wait for that ──▶ settle│
//!   ▼  │                                                      ▼
//!  run ──▶ handled, or failed and judged ──▶ settle claim and row together ──▶ give the lease back
//!      └──────────── the next event ─────────────┘
//! ```
//!
//! A claim is made only while the row is leased to us, so a former holder claims nothing. Row and claims are renewed meanwhile by
//! a task of its own; what was claimed is started only while the claim is valid by our own clock, counted from before it was
//! asked for.
//!
//! Invariants: I-2, I-3 (every write names the lease's token), I-5 (the ledger), I-6.
//!
//! Failure handling: as for every consumer; a claim is released when the event is to be tried again. When the process dies, its
//! row is free at once (its session is gone), and what it was running waits out its lease.

use std::sync::Arc;
use std::time::Instant;

use super::judgement::{Judgement, judge, rearmed};
use super::keeper::Keeper;
use super::outside::{self, Called, next_attempt};
use super::supply::{Behind, Lane, Page};
use super::{Context, Head, Lookout, Pass, Phase, Runner, another_epoch, not_ours};
use crate::consumer::Effect;
use crate::error::Error;
use crate::event::Event;
use crate::metrics;
use crate::outcome::{ConsumerReport, Failure, Outcome};
use crate::pg::consumers::leased::SettledLease;
use crate::pg::consumers::{self, State, leased};
use crate::pg::{On, ask_and_keep, throw_away};

mod claiming;
mod dead_letter;
mod settling;

use claiming::{Ahead, Claimed, Claims};

/// Events of one pass at least: their claims are made one by one or slice by slice anyway.
const LEAST_EVENTS: usize = 500;

/// What a slice of events came to.
enum Ran {
    /// All dealt with; so many of them handled.
    Through(usize, Option<Ahead>),
    /// The pass ends here.
    Ended(Pass),
}

/// Events that are run together.
struct Slice<'e> {
    events: &'e [Event],
    ahead: Option<Ahead>,
    /// Those to be claimed when these are settled.
    next: &'e [Event],
    /// Where the row stands when all of it is dealt with.
    to: i64,
}

impl Runner {
    pub(super) async fn run_effects(&mut self, cx: &Arc<Context>, lookout: Lookout) -> Result<Pass, Error> {
        let head = lookout.head().await;
        self.began = Instant::now();
        let (mut token, mut state, mut asked_at) = self.lease(cx, head, head.id).await?;
        if token.is_none() && state.as_ref().is_some_and(|s| s.retry.is_some() && s.position >= head.id) {
            // There is no event to lease the row for, but a dead letter.
            (token, state, asked_at) = self.lease(cx, head, i64::MAX).await?;
        }
        let Some(state) = state else { return Ok(Pass::new(Outcome::Unregistered, 0)) };
        let state = rearmed(state);
        let refused = match state.epoch == Some(head.epoch) {
            true => not_ours(&state, self.consumer.revision_number(), head.id)
                .map(|outcome| Ok(Pass::refused(outcome, &state))),
            false => Some(Err(another_epoch(&self.key))),
        };
        let Some(token) = token else {
            return refused.unwrap_or_else(|| Ok(Pass::refused(Outcome::Busy, &state)));
        };
        let lease = self.consumer.options.lease;
        let keeper = Keeper::begin(cx, &self.key, &self.handler_name, token, lease, asked_at);
        let ended = match (refused, state.retry) {
            (Some(refused), _) => refused,
            (None, Some(letter)) => self.retry_effect(cx, &keeper, &state, letter).await,
            (None, None) => self.run_leased(cx, &keeper, state, head).await,
        };
        keeper.give_back().await;
        ended
    }

    /// Asks for the lease of a row that is behind `behind`, and then for how the row stands.
    async fn lease(
        &self,
        cx: &Context,
        head: Head,
        behind: i64,
    ) -> Result<(Option<i64>, Option<State>, Instant), Error> {
        let (schema, key, process) = (cx.log.schema(), &self.key, cx.process);
        let (revision, lease) = (self.consumer.revision_number(), self.consumer.options.lease);
        let leasing = ask_and_keep(&cx.claims, cx.log.limit(), On("leasing consumer", key), async |client| {
            let asked_at = Instant::now();
            let token = leased::lease(client, schema, key, process, revision, behind, lease).await?;
            let state = consumers::stand(client, schema, key, process, token.is_some()).await?;
            Ok((token, state, asked_at))
        });
        let (answer, client) = leasing.await?;
        if answer.1.as_ref().is_some_and(|state| state.epoch != Some(head.epoch)) {
            throw_away(client);
        }
        Ok(answer)
    }

    /// Runs the next events, slice by slice, until there are no more, one fails, or it is time to stop.
    async fn run_leased(
        &mut self,
        cx: &Arc<Context>,
        keeper: &Keeper,
        mut state: State,
        head: Head,
    ) -> Result<Pass, Error> {
        let page = self.next_page(cx, &state, head).await?;
        if page.events.is_empty() && page.to > state.position {
            let judgement = Judgement::well(page.to);
            let settled = self.settle(cx, keeper, &judgement, None, "done", false).await?;
            return Ok(moved(judgement, &settled, head.id, &state));
        }
        let until = Instant::now() + self.consumer.options.pass_timeout;
        let mut total = ConsumerReport::new(Outcome::More);
        let (mut rest, mut ahead) = (&page.events[..], None);
        while !rest.is_empty() {
            let slice = self.next_slice(rest, page.to, &state, ahead.take(), until);
            let asked = slice.events.len();
            match self.run_slice(cx, keeper, &state, slice, head.id).await? {
                Ran::Through(events, claimed) => {
                    let position = if events == rest.len() { page.to } else { rest[events - 1].id() };
                    (rest, ahead) = (&rest[events..], claimed);
                    total.processed += u64::try_from(events).unwrap_or(0);
                    state = moved_on(state, position);
                    if events < asked {
                        // What else was claimed of the slice goes back with the row.
                        break;
                    }
                    self.widen();
                }
                Ran::Ended(pass) => {
                    total.add(&pass.report);
                    return Ok(Pass { report: total, ..pass });
                }
            }
            if Instant::now() >= until || *cx.phase.borrow() >= Phase::Draining || !keeper.has_row() {
                break;
            }
        }
        if state.position >= head.id {
            total.outcome = Outcome::CaughtUp;
        }
        Ok(Pass { report: total, position: state.position, due_in: None })
    }

    async fn next_page(&mut self, cx: &Context, state: &State, head: Head) -> Result<Page, Error> {
        let (consumer, key) = (Arc::clone(&self.consumer), self.key.clone());
        let lane = Lane { consumer: &consumer, key: &key };
        let behind = Behind { epoch: head.epoch, position: state.position, head: head.id };
        let limit = (consumer.options.batch_size * 10).max(LEAST_EVENTS);
        self.ahead.next(&cx.readers(), &lane, behind, limit).await
    }

    /// The first of the rest, and what is claimed when they are settled: nothing where something has failed, or time is up.
    fn next_slice<'e>(
        &self,
        rest: &'e [Event],
        to: i64,
        state: &State,
        ahead: Option<Ahead>,
        until: Instant,
    ) -> Slice<'e> {
        let size = match state.failed_event_id {
            Some(_) => 1,
            None => self.narrow.unwrap_or(self.consumer.options.batch_size),
        };
        let (events, behind) = rest.split_at(size.min(rest.len()));
        let goes_well = self.narrow.is_none() && state.failed_event_id.is_none();
        let next = match goes_well && Instant::now() < until {
            true => &behind[..behind.len().min(events.len())],
            false => &[],
        };
        let to = if behind.is_empty() { to } else { events[events.len() - 1].id() };
        Slice { events, ahead, next, to }
    }

    /// Claims, runs and settles a slice.
    async fn run_slice(
        &mut self,
        cx: &Arc<Context>,
        keeper: &Keeper,
        state: &State,
        Slice { events: slice, ahead, next, to }: Slice<'_>,
        head: i64,
    ) -> Result<Ran, Error> {
        let (events, to_run) = match self.claim(cx, keeper, slice, ahead, false).await? {
            Claims::Held { events, to_run } => (events, to_run),
            Claims::Lost => return Ok(Ran::Ended(Pass::new(Outcome::Busy, state.position))),
            Claims::Others(held_for) => {
                let held = Failure::defer_for(held_for, "another's claim on it is still valid");
                return self.settle_failure(cx, keeper, state, &slice[0], &held, head).await;
            }
            Claims::Forgotten => {
                let forgotten = Failure::reject(
                    "it lies at or below the ledger's floor, where what was done is forgotten; the effect could repeat",
                );
                return self.settle_failure(cx, keeper, state, &slice[0], &forgotten, head).await;
            }
        };
        match self.call_outside(cx, keeper, &to_run).await {
            Called::Done => {}
            Called::Cancelled => return Ok(Ran::Ended(Pass::new(Outcome::Stopped, state.position))),
            Called::Lost => {
                metrics::lease_lost(&self.key);
                return Ok(Ran::Ended(Pass::new(Outcome::Busy, state.position)));
            }
            Called::Failed(_) if to_run.len() > 1 => {
                // Which of them it was shows when they are apart.
                self.narrow = Some(to_run.len() / 2);
                return Ok(Ran::Ended(Pass::new(Outcome::More, state.position)));
            }
            Called::Failed(cause) => {
                // What was done before it in the slice is left for the next pass to find done.
                return self.settle_failure(cx, keeper, state, &to_run[0].event, &cause, head).await;
            }
        }
        let (to, next) = match events == slice.len() {
            true => (to, next),
            false => (slice[events - 1].id(), &[][..]),
        };
        match self.settle_handled(cx, keeper, state, to_run.len(), to, next).await? {
            (true, ahead) => Ok(Ran::Through(events, ahead)),
            (false, _) => Ok(Ran::Ended(Pass::new(Outcome::Busy, state.position))),
        }
    }

    /// Calls the handler with what was claimed.
    async fn call_outside(&self, cx: &Context, keeper: &Keeper, to_run: &[Claimed]) -> Called {
        if to_run.is_empty() {
            return Called::Done;
        }
        if let Some(failure) =
            to_run.iter().find_map(|claimed| outside::heard_of_no_more(&self.consumer, claimed.faults))
        {
            return Called::Failed(failure);
        }
        let events: Vec<Event> = to_run.iter().map(|claimed| claimed.event.clone()).collect();
        let effects: Vec<Effect> = to_run
            .iter()
            .map(|Claimed { event, token, attempts, faults }| {
                let attempt = next_attempt(*attempts, *faults);
                Effect::new(&self.handler_name, event.event_id(), *token, attempt)
            })
            .collect();
        outside::call(cx, &self.consumer, &self.key, &events, &effects, keeper.lost()).await
    }

    /// Judges a failure and writes what it means; the pass ends with it.
    async fn settle_failure(
        &self,
        cx: &Arc<Context>,
        keeper: &Keeper,
        state: &State,
        event: &Event,
        cause: &Failure,
        head: i64,
    ) -> Result<Ran, Error> {
        let judgement = judge(&self.consumer.options, state, event, cause, state.position);
        let claim = if judgement.dead_letter.is_some() { "dead" } else { "pending" };
        let settled = self.settle(cx, keeper, &judgement, Some((event, cause)), claim, false).await?;
        if settled.moved {
            self.note(event, &judgement);
        }
        Ok(Ran::Ended(moved(judgement, &settled, head, state)))
    }
}

/// What failed before is dealt with, or lies ahead still.
fn moved_on(state: State, position: i64) -> State {
    if state.failed_at > Some(position) {
        return State { position, ..state };
    }
    State {
        position,
        attempts: 0,
        faults: 0,
        rearms: 0,
        failed_event_id: None,
        failed_at: None,
        last_error: None,
        next_attempt_at: None,
        due_in: None,
        ..state
    }
}

fn moved(judgement: Judgement, settled: &SettledLease, head: i64, state: &State) -> Pass {
    match settled.moved {
        true => judgement.into_pass(head, settled.next_attempt_at),
        false => Pass::new(Outcome::Busy, state.position),
    }
}
