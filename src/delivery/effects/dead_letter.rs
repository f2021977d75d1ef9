//! The retry of a dead letter of an effect consumer: its event, claimed once more, out of order, under the row's lease.

use std::sync::Arc;

use super::claiming::Claims;
use crate::delivery::judgement::Judgement;
use crate::delivery::keeper::Keeper;
use crate::delivery::outside::Called;
use crate::delivery::{Context, Pass, Runner};
use crate::error::Error;
use crate::outcome::Outcome;
use crate::pg::consumers::State;
use crate::pg::dead_letters;

impl Runner {
    /// Runs the event of a dead letter that an operator wants retried. The position stays.
    pub(super) async fn retry_effect(
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
