//! Settling what was claimed, together with the row: position, failure and dead letter, in one statement.

use std::time::Instant;

use super::claiming::Ahead;
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
        let (settled, ahead) = match goes_on && !next.is_empty() {
            true => self.settle_and_claim(cx, keeper, &judgement, next).await?,
            false => (self.settle(cx, keeper, &judgement, None, "done", true).await?, None),
        };
        if settled.settled < ran {
            metrics::lease_lost(&self.key);
            tracing::warn!(consumer = %self.key, claims = ran, settled = settled.settled,
                "claims were lost while their events were handled; another may have handled them, too");
        }
        Ok((settled.moved, ahead))
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
        let (settled, claimed) = ask(&cx.claims, cx.log.limit(), what, async |client| {
            let (settled, claimed) = tokio::join!(
                leased::move_on(client, schema, work, to.position, to.processed),
                self.claim_new(client, cx, keeper, next),
            );
            // Whatever became of the settlement, what is claimed is given back at the end of the pass.
            if let Ok(claimed) = &claimed {
                keeper.hold(claimed.clone());
            }
            Ok((settled?, claimed?))
        })
        .await?;
        Ok((settled, Some(Ahead { asked_at, claimed })))
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
        ask(&cx.claims, cx.log.limit(), On("settling consumer", &self.key), async |client| {
            match judgement.is_well() && claim == "done" && keep {
                true => leased::move_on(client, schema, work, to.position, to.processed).await,
                false => {
                    let claims_to = ClaimsTo { status: claim, attempts };
                    leased::settle(client, schema, work, to, claims_to, letter.as_ref(), keep).await
                }
            }
        })
        .await
    }
}
