//! Settling what was claimed, together with the row: position, failure and dead letter, in one statement.

use std::time::{Duration, Instant};

use super::claiming::Ahead;
use crate::backoff::Backoff;
use crate::delivery::handling::cancelling;
use crate::delivery::judgement::Judgement;
use crate::delivery::keeper::Keeper;
use crate::delivery::{Context, Phase, Runner};
use crate::error::Error;
use crate::event::Event;
use crate::metrics;
use crate::outcome::{Failure, Verdict};
use crate::pg::consumers::State;
use crate::pg::consumers::leased::{self, ClaimsTo, LeasedWork, SettledLease};
use crate::pg::dead_letters::DeadLetter;
use crate::pg::ledger::{self, Settlement};
use crate::pg::{On, ask};

impl Runner {
    /// Settles a slice whose events were handled, `ran` of them just now, and claims the next one with it where there is one.
    /// Answers whether the row was still ours.
    pub(super) async fn settle_handled(
        &self,
        cx: &Context,
        keeper: &Keeper,
        state: &State,
        ran: usize,
        to: i64,
        next: &[Event],
    ) -> Result<(bool, Option<Ahead>), Error> {
        let mut judgement = match state.failed_at > Some(to) {
            true => Judgement::before_failed(state, to),
            false => Judgement::well(to),
        };
        judgement.settlement.processed = i64::try_from(ran).unwrap_or(i64::MAX);
        let goes_on = judgement.is_well() && *cx.phase.borrow() < Phase::Draining && keeper.has_row();
        let settling = match goes_on && !next.is_empty() {
            true => self.settle_and_claim(cx, keeper, &judgement, next).await,
            false => self.settle(cx, keeper, &judgement, None, "done", true).await.map(|done| (done, None)),
        };
        let (settled, ahead) = match settling {
            Ok(settled) => settled,
            Err(error) => {
                self.record_done(cx, keeper).await;
                return Err(error);
            }
        };
        if settled.settled < ran {
            metrics::lease_lost(&self.key);
            tracing::warn!(consumer = %self.key, claims = ran, settled = settled.settled,
                "claims were lost while their events were handled; another may have handled them, too");
        }
        Ok((settled.moved, ahead))
    }

    /// Records that what is held was run, after the attempt to settle it with the row has failed: again and again, as long as the
    /// claims are ours. The row is moved by a later pass, which finds the events done.
    async fn record_done(&self, cx: &Context, keeper: &Keeper) {
        let settlements: Vec<Settlement> =
            keeper.held().into_iter().map(|(event_id, token)| Settlement::done(event_id, token)).collect();
        let backoff = Backoff::exponential(Duration::from_millis(50)).up_to(Duration::from_secs(2));
        let schema = cx.log.schema();
        let recording = async {
            let mut failures = 0;
            loop {
                let what = On("recording what was run for consumer", &self.key);
                let recorded = ask(&cx.claims, cx.log.limit(), what, async |client| {
                    ledger::settle(client, schema, &self.handler_name, &settlements).await
                });
                let Err(error) = recorded.await else { return };
                failures += 1;
                tracing::warn!(consumer = %self.key, error = error.report(), "what was run could not be recorded; it is tried again");
                tokio::time::sleep(backoff.pause(failures)).await;
            }
        };
        tokio::select! {
            () = recording => drop(keeper.let_go()),
            () = keeper.lost() => metrics::lease_lost(&self.key),
            () = cancelling(cx.phase.clone()) => {}
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
        let (schema, to, asked_at) = (cx.log.schema(), &judgement.settlement, Instant::now());
        let what = On("settling consumer", &self.key);
        let settling = ask(&cx.claims, cx.log.limit(), what, async |client| {
            let (settled, claimed) = tokio::join!(
                leased::move_on(client, schema, work, to.position, to.processed),
                self.claim_new(client, cx, keeper, next),
            );
            // Whatever became of the settlement, what is claimed is given back at the end of the pass.
            if let Ok(claimed) = &claimed {
                keeper.hold(claimed.clone());
            }
            Ok((settled?, claimed?))
        });
        match settling.await {
            Ok((settled, claimed)) => Ok((settled, Some(Ahead { asked_at, claimed }))),
            Err(error) => {
                keeper.hold(claims);
                Err(error)
            }
        }
    }

    /// Settles what is held, the row, and the dead letter of an event that is passed over.
    pub(super) async fn settle(
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
        let (schema, to) = (cx.log.schema(), &judgement.settlement);
        let what = On("settling consumer", &self.key);
        let settling = ask(&cx.claims, cx.log.limit(), what, async |client| {
            match judgement.is_well() && claim == "done" && keep {
                true => leased::move_on(client, schema, work, to.position, to.processed).await,
                false => {
                    let claims_to = ClaimsTo { status: claim, attempts };
                    leased::settle(client, schema, work, to, claims_to, letter.as_ref(), keep).await
                }
            }
        });
        let settled = settling.await;
        if settled.is_err() {
            keeper.hold(claims);
        }
        settled
    }
}
