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

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::ClientWrapper;
use futures_util::FutureExt;
use tracing::Instrument;
use uuid::Uuid;

use super::handling::{cancelling, panic_message};
use super::judgement::{Judgement, judge, rearmed};
use super::keeper::Keeper;
use super::supply::{Behind, Lane, Page, Readers};
use super::{Context, Head, Lookout, Pass, Phase, Runner, not_ours};
use crate::consumer::{Effect, Work};
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::metrics;
use crate::outcome::{ConsumerReport, Failure, Outcome, Verdict};
use crate::pg::consumers::{self, ClaimsTo, LeasedWork, SettledLease, State};
use crate::pg::dead_letters::{self, DeadLetter};
use crate::pg::ledger::{self, Asked, Entry, Terms};
use crate::pg::{On, checkout, deadline, throw_away};

/// Events of one pass at least: their claims are made one by one or slice by slice anyway.
const LEAST_EVENTS: usize = 500;
/// How often a claim is asked for that others are making at the same moment.
const TRIES: usize = 3;

/// What a slice of events came to.
enum Ran {
    /// All dealt with; so many of them handled.
    Through(usize, Option<Ahead>),
    /// The pass ends here.
    Ended(Pass),
}

/// What running a handler came to.
enum Called {
    Done,
    Failed(Failure),
    Cancelled,
    /// Another may be running it.
    Lost,
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

/// What was claimed of a slice together with the settlement of the one before it.
struct Ahead {
    asked_at: Instant,
    claimed: Vec<(Uuid, i64)>,
}

/// What claiming a slice came to.
enum Claims {
    /// The first so many events are dealt with when these were run.
    Held { events: usize, to_run: Vec<(Event, Entry, i64)> },
    /// The first event is another's for so long.
    Others(Duration),
    /// The first event lies where the ledger has forgotten what was done.
    Forgotten,
    /// The row is not ours any more.
    Lost,
}

impl Runner {
    pub(super) async fn run_effects(&mut self, cx: &Arc<Context>, lookout: Lookout) -> Result<Pass, Error> {
        let head = match lookout {
            Lookout::Known(head) => head,
            Lookout::Moving(_, moved) => moved.await,
        };
        self.began = Instant::now();
        let (mut token, mut state, mut asked_at) = self.lease(cx, head.id).await?;
        if token.is_none() && state.as_ref().is_some_and(|s| s.retry.is_some() && s.position >= head.id) {
            // There is no event to lease the row for, but a dead letter.
            (token, state, asked_at) = self.lease(cx, i64::MAX).await?;
        }
        let Some(state) = state else { return Ok(Pass::new(Outcome::Unregistered, 0)) };
        let keeper = token.map(|token| {
            Keeper::begin(cx, &self.key, &self.handler_name, token, self.consumer.options.lease, asked_at)
        });
        if state.epoch != Some(head.epoch) {
            if let Some(keeper) = keeper {
                keeper.give_back().await;
            }
            return Err(Error::new(
                ErrorKind::Connection,
                format!("consumer {}: the safe head belongs to another epoch; it is read anew", self.key),
            ));
        }
        let state = rearmed(state);
        let refused = not_ours(&state, self.consumer.revision_number(), head.id);
        let Some(keeper) = keeper else {
            let outcome = refused.unwrap_or(Outcome::Busy);
            return Ok(Pass { due_in: state.due_in, ..Pass::new(outcome, state.position) });
        };
        let ended = match refused {
            Some(outcome) => Ok(Pass { due_in: state.due_in, ..Pass::new(outcome, state.position) }),
            None => match state.retry {
                Some(letter) => self.retry_effect(cx, &keeper, &state, letter).await,
                None => self.run_leased(cx, &keeper, state, head).await,
            },
        };
        keeper.give_back().await;
        ended
    }

    /// Asks for the lease, and then for how the row stands.
    async fn lease(&self, cx: &Context, head: i64) -> Result<(Option<i64>, Option<State>, Instant), Error> {
        let client = checkout(&cx.claims, "taking a connection for a pass").await?;
        let (schema, key, process) = (cx.log.schema(), &self.key, cx.process);
        let (revision, lease) = (self.consumer.revision_number(), self.consumer.options.lease);
        let asked_at = Instant::now();
        let asking = async {
            let token = consumers::lease(&client, schema, key, process, revision, head, lease).await?;
            let state = consumers::stand(&client, schema, key, process, token.is_some()).await?;
            Ok::<_, tokio_postgres::Error>((token, state))
        };
        match deadline(cx.log.limit(), On("leasing consumer", key), asking).await {
            Ok((token, state)) => Ok((token, state, asked_at)),
            Err(error) => {
                throw_away(client);
                Err(error)
            }
        }
    }

    async fn run_leased(
        &mut self,
        cx: &Arc<Context>,
        keeper: &Keeper,
        mut state: State,
        head: Head,
    ) -> Result<Pass, Error> {
        let page = self.next_page(cx, &state, head).await?;
        let until = Instant::now() + self.consumer.options.pass_timeout;
        let mut total = ConsumerReport::new(Outcome::More);
        let (mut rest, mut ahead) = (&page.events[..], None);
        if rest.is_empty() && page.to > state.position {
            let judgement = Judgement::well(page.to);
            let settled = self.settle(cx, keeper, &judgement, None, "done", false).await?;
            return Ok(moved(judgement, &settled, head.id, &state));
        }
        while !rest.is_empty() {
            let size = match state.failed_event_id {
                Some(_) => 1,
                None => self.narrow.unwrap_or(self.consumer.options.batch_size),
            };
            let slice = &rest[..size.min(rest.len())];
            let to = if slice.len() == rest.len() { page.to } else { slice[slice.len() - 1].id() };
            // Where nothing has failed, the next slice is claimed when this one is settled.
            let next =
                match self.narrow.is_none() && state.failed_event_id.is_none() && Instant::now() < until {
                    true => &rest[slice.len()..rest.len().min(2 * slice.len())],
                    false => &[],
                };
            let now = Slice { events: slice, ahead: ahead.take(), next, to };
            match self.run_slice(cx, keeper, &state, now, head.id).await? {
                Ran::Through(events, claimed) => {
                    ahead = claimed;
                    let handled = &slice[..events];
                    total.processed += u64::try_from(events).unwrap_or(0);
                    rest = &rest[events..];
                    let position = if rest.is_empty() { page.to } else { handled[events - 1].id() };
                    state = match state.failed_at > Some(position) {
                        true => State { position, ..state },
                        false => State { position, ..forgiven(state) },
                    };
                    if events == slice.len() {
                        self.widen();
                    }
                }
                Ran::Ended(pass) => {
                    total.processed += pass.report.processed;
                    total.failed += pass.report.failed;
                    total.skipped += pass.report.skipped;
                    total.outcome = pass.report.outcome;
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
        let readers = Readers {
            log: &cx.log,
            pool: &cx.readers,
            window: &cx.window,
            process: cx.process,
            bytes: cx.page_bytes,
        };
        let (consumer, key) = (Arc::clone(&self.consumer), self.key.clone());
        let lane = Lane { consumer: &consumer, key: &key };
        let behind = Behind { epoch: head.epoch, position: state.position, head: head.id };
        let limit = (consumer.options.batch_size * 10).max(LEAST_EVENTS);
        if let Some(page) = self.ahead.at_hand(&readers, &lane, behind, limit) {
            return Ok(page);
        }
        self.ahead.read(&readers, &lane, behind).await?;
        let nothing = Page { from: state.position, to: state.position, events: Vec::new() };
        Ok(self.ahead.at_hand(&readers, &lane, behind, limit).unwrap_or(nothing))
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
                let (event, ..) = &to_run[0];
                return self.settle_failure(cx, keeper, state, event, &cause, head).await;
            }
        }
        let to = if events == slice.len() { to } else { slice[events - 1].id() };
        let mut judgement = match state.failed_at > Some(to) {
            true => Judgement::before_failed(state, to),
            false => Judgement::well(to),
        };
        judgement.settlement.processed = i64::try_from(to_run.len()).unwrap_or(i64::MAX);
        let is_whole = events == slice.len() && judgement.is_well() && *cx.phase.borrow() < Phase::Draining;
        let (settled, ahead) = match is_whole && !next.is_empty() && keeper.has_row() {
            true => self.settle_and_claim(cx, keeper, &judgement, next).await?,
            false => (self.settle(cx, keeper, &judgement, None, "done", true).await?, None),
        };
        if settled.settled < to_run.len() {
            metrics::lease_lost(&self.key);
            tracing::warn!(consumer = %self.key, claims = to_run.len(), settled = settled.settled,
                "claims were lost while their events were handled; another may have handled them, too");
        }
        match settled.moved {
            true => Ok(Ran::Through(events, ahead)),
            false => Ok(Ran::Ended(Pass::new(Outcome::Busy, state.position))),
        }
    }

    /// Settles what is held as done and claims what is new of the next slice, in one round trip.
    async fn settle_and_claim(
        &self,
        cx: &Context,
        keeper: &Keeper,
        judgement: &Judgement,
        next: &[Event],
    ) -> Result<(SettledLease, Option<Ahead>), Error> {
        let claims = keeper.let_go();
        let work = LeasedWork {
            key: &self.key,
            lease_token: keeper.token(),
            handler: &self.handler_name,
            claims: &claims,
        };
        let client = checkout(&cx.claims, "taking a connection to settle").await?;
        let (schema, to, asked_at) = (cx.log.schema(), &judgement.settlement, Instant::now());
        let both = async {
            let (settled, claimed) = tokio::join!(
                consumers::move_leased(&client, schema, work, to.position, to.processed),
                self.claim_new(&client, cx, keeper, next),
            );
            // Whatever became of the settlement, what is claimed is given back at the end of the pass.
            if let Ok(claimed) = &claimed {
                keeper.hold(claimed.clone());
            }
            Ok::<_, tokio_postgres::Error>((settled?, claimed?))
        };
        match deadline(cx.log.limit(), On("settling consumer", &self.key), both).await {
            Ok((settled, claimed)) => Ok((settled, Some(Ahead { asked_at, claimed }))),
            Err(error) => {
                throw_away(client);
                Err(error)
            }
        }
    }

    async fn claim_new(
        &self,
        client: &ClientWrapper,
        cx: &Context,
        keeper: &Keeper,
        slice: &[Event],
    ) -> Result<Vec<(Uuid, i64)>, tokio_postgres::Error> {
        let asked: Vec<(Uuid, i64)> = slice.iter().map(|e| (e.event_id(), e.id())).collect();
        let (schema, handler, row) = (cx.log.schema(), &self.handler_name, (&self.key, keeper.token()));
        ledger::claim_new(client, schema, &asked, handler, keeper.lease(), cx.process, row).await
    }

    /// Claims as many of the first events as can be run together.
    async fn claim(
        &self,
        cx: &Context,
        keeper: &Keeper,
        slice: &[Event],
        mut ahead: Option<Ahead>,
        repeat: bool,
    ) -> Result<Claims, Error> {
        for _ in 0..TRIES {
            let ahead = ahead.take();
            let asked_at = ahead.as_ref().map_or_else(Instant::now, |ahead| ahead.asked_at);
            let mut entries = match ahead {
                Some(ahead) if ahead.claimed.len() == slice.len() => entries_of(ahead.claimed),
                ahead => {
                    let client = checkout(&cx.claims, "taking a connection for a claim").await?;
                    let claiming = self.ask_for_claims(&client, cx, keeper, slice, ahead, repeat);
                    match deadline(cx.log.limit(), On("claiming for consumer", &self.key), claiming).await {
                        Ok(entries) => entries,
                        Err(error) => {
                            throw_away(client);
                            return Err(error);
                        }
                    }
                }
            };
            keeper.hold(entries.values().filter_map(|e| Some((e.event_id, e.token?))).collect());
            let late = asked_at.elapsed() >= keeper.lease() && cx.mutant.is_none();
            if late || !keeper.has_row() {
                return Ok(Claims::Lost);
            }
            let (mut events, mut to_run) = (0, Vec::new());
            for event in slice {
                let Some(entry) = entries.remove(&event.event_id()) else { break };
                metrics::claim(&self.key, &entry);
                match (entry.token, entry.status.as_deref()) {
                    (Some(token), _) => to_run.push((event.clone(), entry, token)),
                    (None, Some("done" | "dead")) => {}
                    (None, Some(_)) if events == 0 => {
                        return Ok(Claims::Others(entry.held_for.unwrap_or_default()));
                    }
                    (None, None) if events == 0 && entry.below_floor => return Ok(Claims::Forgotten),
                    (None, _) => break,
                }
                events += 1;
            }
            if events > 0 {
                return Ok(Claims::Held { events, to_run });
            }
        }
        Ok(Claims::Lost)
    }

    /// Claims what is new, which most events are, and only then, whatever else can be. An entry for each event.
    async fn ask_for_claims(
        &self,
        client: &ClientWrapper,
        cx: &Context,
        keeper: &Keeper,
        slice: &[Event],
        ahead: Option<Ahead>,
        repeat: bool,
    ) -> Result<HashMap<Uuid, Entry>, tokio_postgres::Error> {
        let mut entries = entries_of(match ahead {
            Some(ahead) => ahead.claimed,
            None if repeat => Vec::new(),
            None => self.claim_new(client, cx, keeper, slice).await?,
        });
        let others = slice.iter().filter(|event| !entries.contains_key(&event.event_id()));
        let asked: Vec<Asked> =
            others.map(|e| Asked { event_id: e.event_id(), position: Some(e.id()) }).collect();
        if !asked.is_empty() {
            let on = Terms {
                handler: &self.handler_name,
                lease: keeper.lease(),
                owner: Some(cx.process),
                repeat,
                row: Some((&self.key, keeper.token())),
            };
            let claimed = ledger::claim(client, cx.log.schema(), &asked, on).await?;
            entries.extend(claimed.into_iter().map(|entry| (entry.event_id, entry)));
        }
        Ok(entries)
    }

    /// Calls the handler, for no longer than it may take, and not beyond our claims.
    async fn call_outside(&self, cx: &Context, keeper: &Keeper, to_run: &[(Event, Entry, i64)]) -> Called {
        if to_run.is_empty() {
            return Called::Done;
        }
        let Work::Outside(handler) = &self.consumer.work else {
            unreachable!("what runs inside a transaction is called with one")
        };
        let limit = self.consumer.options.handler_timeout;
        let events: Vec<Event> = to_run.iter().map(|(event, ..)| event.clone()).collect();
        let effects: Vec<Effect> = to_run
            .iter()
            .map(|(event, entry, token)| {
                let attempt = u32::try_from(entry.attempts + entry.faults + 1).unwrap_or(1);
                Effect::new(&self.handler_name, event.event_id(), *token, attempt)
            })
            .collect();
        let span = tracing::debug_span!(
            "handle",
            consumer = %self.key,
            event = events[0].id(),
            event_id = %events[0].event_id(),
            event_type = events[0].event_type(),
            correlation_id = events[0].correlation_id().map(tracing::field::display),
            causation_id = events[0].causation_id().map(tracing::field::display),
            attempt = effects[0].attempt(),
            fencing_number = effects[0].fencing_number(),
            events = events.len(),
        );
        // Called inside, so that a panic before the first await is caught, too.
        let handling = async { handler.handle(&events, &effects).await };
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
            () = cancelling(cx.phase.clone()) => Called::Cancelled,
            () = keeper.lost() => Called::Lost,
        }
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

    /// Settles what is held, the row, and the dead letter of an event that is passed over.
    async fn settle(
        &self,
        cx: &Context,
        keeper: &Keeper,
        judgement: &Judgement,
        failed: Option<(&Event, &Failure)>,
        claim: &'static str,
        keep: bool,
    ) -> Result<SettledLease, Error> {
        let claims = keeper.let_go();
        let work = LeasedWork {
            key: &self.key,
            lease_token: keeper.token(),
            handler: &self.handler_name,
            claims: &claims,
        };
        let attempts = failed.map_or(0, |(_, cause)| {
            i32::from(matches!(cause.verdict(), Verdict::Retry | Verdict::Reject | Verdict::Skip))
        });
        let error = judgement.settlement.last_error.as_deref().unwrap_or_default();
        let letter = failed.zip(judgement.dead_letter).map(|((event, _), reason)| DeadLetter {
            event,
            attempts: judgement.attempt,
            error,
            reason,
        });
        let client = checkout(&cx.claims, "taking a connection to settle").await?;
        let (schema, to) = (cx.log.schema(), &judgement.settlement);
        let settling = async {
            match judgement.is_well() && claim == "done" && keep {
                true => consumers::move_leased(&client, schema, work, to.position, to.processed).await,
                false => {
                    let claims_to = ClaimsTo { status: claim, attempts };
                    consumers::settle_leased(&client, schema, work, to, claims_to, letter.as_ref(), keep)
                        .await
                }
            }
        };
        let settled = deadline(cx.log.limit(), On("settling consumer", &self.key), settling).await;
        if settled.is_err() {
            throw_away(client);
        }
        settled
    }

    /// Runs the event of a dead letter that an operator wants retried. The position stays.
    async fn retry_effect(
        &mut self,
        cx: &Arc<Context>,
        keeper: &Keeper,
        state: &State,
        letter: i64,
    ) -> Result<Pass, Error> {
        let schema = cx.log.schema();
        let reading = cx.log.asking("reading the event of a dead letter", async |client| {
            dead_letters::event(client, schema, letter).await
        });
        let Some(event) = reading.await? else {
            return self.settle_letter(cx, state, letter, "discarded", Some("its event was pruned")).await;
        };
        let to_run = match self.claim(cx, keeper, std::slice::from_ref(&event), None, true).await? {
            Claims::Held { to_run, .. } => to_run,
            Claims::Others(held_for) => {
                return Ok(Pass { due_in: Some(held_for), ..Pass::new(Outcome::Busy, state.position) });
            }
            Claims::Lost | Claims::Forgotten => return Ok(Pass::new(Outcome::Busy, state.position)),
        };
        let (claim, to, error) = match self.call_outside(cx, keeper, &to_run).await {
            Called::Done => ("done", "resolved", None),
            Called::Failed(cause) => ("dead", "open", Some(cause.message())),
            Called::Cancelled => return Ok(Pass::new(Outcome::Stopped, state.position)),
            Called::Lost => return Ok(Pass::new(Outcome::Busy, state.position)),
        };
        let judgement = Judgement::before_failed(state, state.position);
        self.settle(cx, keeper, &judgement, None, claim, true).await?;
        if let Some(error) = &error {
            tracing::warn!(consumer = %self.key, letter, event = event.id(), event_id = %event.event_id(), error, "the retry of a dead letter failed");
        }
        self.settle_letter(cx, state, letter, to, error.as_deref()).await
    }

    async fn settle_letter(
        &self,
        cx: &Context,
        state: &State,
        letter: i64,
        to: &str,
        error: Option<&str>,
    ) -> Result<Pass, Error> {
        let schema = cx.log.schema();
        let settling = cx.log.asking("settling a dead letter", async |client| {
            dead_letters::settle(client, schema, letter, to, error).await
        });
        let mut pass = Pass::new(Outcome::More, state.position);
        if settling.await? {
            pass.report.processed = u64::from(to == "resolved");
            pass.report.failed = u64::from(to == "open");
        }
        Ok(pass)
    }
}

fn entries_of(claimed: Vec<(Uuid, i64)>) -> HashMap<Uuid, Entry> {
    claimed.into_iter().map(|(event_id, token)| (event_id, Entry::new(event_id, token))).collect()
}

/// What failed before is dealt with, or lies ahead still.
fn forgiven(state: State) -> State {
    State {
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
