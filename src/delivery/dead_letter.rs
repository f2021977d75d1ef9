//! The retry of a dead letter: one event, alone in its pass and out of order, under the row's lock.

use super::handling::{Called, Failed};
use super::judgement::Judgement;
use super::session::{Committed, PassSession};
use super::{Context, Pass, Runner};
use crate::error::Error;
use crate::outcome::{Failure, Outcome};
use crate::pg::consumers::State;

/// What a retry came to.
enum Retried<'a> {
    Resolved,
    /// An operator decides anew.
    Failed(&'a str),
    /// There is nothing left to be retried.
    Pruned,
}

impl Runner {
    /// Delivers the event of a dead letter that an operator wants retried. The position stays.
    pub(super) async fn retry_dead_letter(
        &mut self,
        cx: &Context,
        mut session: PassSession<'_>,
        state: &State,
        letter: i64,
    ) -> Result<Pass, Error> {
        let Some(event) = session.dead_letter_event(letter).await? else {
            return settle(session, state, letter, &Retried::Pruned).await?;
        };
        let (session, cause) = match self.call(cx, &mut session, std::slice::from_ref(&event)).await {
            Called::Cancelled => {
                session.give_up().await;
                return Ok(Pass::new(Outcome::Stopped, state.position));
            }
            Called::Done => match settle(session, state, letter, &Retried::Resolved).await? {
                Ok(pass) => return Ok(pass),
                Err(refused) => (None, Failure::retry(refused)),
            },
            Called::Failed(Failed { cause, .. }) => match session.roll_back().await {
                Ok(()) => (Some(session), cause),
                Err(_) => {
                    session.abandon().await;
                    (None, cause)
                }
            },
        };
        let session = match session {
            Some(session) => Some(session),
            None => PassSession::begin_again(cx, &self.consumer, &self.key, state).await?,
        };
        let Some(session) = session else { return Ok(Pass::new(Outcome::Busy, state.position)) };
        let error = cause.message();
        tracing::warn!(consumer = %self.key, letter, event = event.id(), event_id = %event.event_id(), error, "the retry of a dead letter failed");
        settle(session, state, letter, &Retried::Failed(&error)).await?
    }
}

/// Commits what the retry came to. The inner error is the server's refusal: nothing was kept.
async fn settle(
    session: PassSession<'_>,
    state: &State,
    letter: i64,
    retried: &Retried<'_>,
) -> Result<Result<Pass, Error>, Error> {
    let (to, error) = match retried {
        Retried::Resolved => ("resolved", None),
        Retried::Failed(error) => ("open", Some(*error)),
        Retried::Pruned => ("discarded", Some("its event was pruned")),
    };
    if !session.settle_dead_letter(letter, to, error).await? {
        // Another process, or an operator, was faster.
        session.leave().await?;
        return Ok(Ok(Pass::new(Outcome::More, state.position)));
    }
    let mut judgement = Judgement::before_failed(state, state.position);
    judgement.settlement.processed = i64::from(matches!(retried, Retried::Resolved));
    judgement.settlement.failed = i64::from(matches!(retried, Retried::Failed(_)));
    Ok(match session.commit(&judgement.settlement).await? {
        Committed::Done(settled) => Ok(judgement.into_pass(i64::MAX, settled.next_attempt_at)),
        Committed::Refused(error) => Err(error),
        Committed::Gone => Ok(Pass::new(Outcome::Unregistered, state.position)),
    })
}
