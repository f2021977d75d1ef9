//! The connection and the transaction of a pass. Whatever ends a pass early, a connection goes back to its pool only with
//! its transaction ended; every other one is thrown away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::{ClientWrapper, Object};
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::{Context, judgement};
use crate::consumer::{Consumer, FirstError, Traces};
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::outcome::Failure;
use crate::pg::consumers::{Key, Locked, Settled, Settlement, State};
use crate::pg::dead_letters::DeadLetter;
use crate::pg::statement::Ready;
use crate::pg::{self, On, ask, checkout, consumers, deadline, is_connection_lost, throw_away};
use crate::safe_head::Mutant;

/// How long after a time-out the server may take to be ready again.
pub(crate) const MARGIN: Duration = Duration::from_secs(2);
/// How long after a handler's limit the server takes a client that says nothing for frozen. Ours speaks up at the limit.
const SILENCE: Duration = Duration::from_millis(300);
/// Statements that a session keeps prepared: handlers whose texts are never the same twice do not fill its memory.
const MOST_STATEMENTS: usize = 1_000;
/// How soon a row whose last holder is being ended is asked for again.
const AGAIN_PAUSE: Duration = Duration::from_millis(20);

/// One connection, from the lock to the commit.
pub(crate) struct PassSession<'a> {
    cx: &'a Context,
    consumer: Arc<Consumer>,
    key: Key,
    /// `None` once it is given back or thrown away.
    object: Option<Object>,
    lock: Ready,
    settle: Ready,
    transaction_id: String,
    backend: i32,
    traces: Traces,
    /// A cancel may still be on its way, and would hit whatever statement comes next.
    spoiled: bool,
    /// It remembers what the server does not: no other pass is to use it.
    forgetful: bool,
}

/// A row as a pass left it that went well. While nobody else has written it, it stands at that pass's position, with nothing
/// that failed; and as it was neither disabled nor expired meanwhile, nothing that it had not read was pruned. After a crash or
/// a failover that lost the tail, names of transactions are used again: so it is known in one epoch.
#[derive(Debug)]
pub(crate) struct Left {
    written_by: String,
    epoch: Option<Uuid>,
}

impl Left {
    pub(crate) fn new(written_by: String, epoch: Option<Uuid>) -> Self {
        Self { written_by, epoch }
    }

    fn is(&self, locked: &Locked) -> bool {
        self.epoch == locked.epoch && self.written_by == locked.written_by
    }
}

/// What came of an attempt to commit. That the answer never came is an error instead: nobody knows.
#[derive(Debug)]
pub(crate) enum Committed {
    Done(Settled),
    /// The server refused it: nothing was kept.
    Refused(Error),
    /// The handlers' effects are kept, but the row is gone: they took it away themselves.
    Gone,
}

impl<'a> PassSession<'a> {
    /// Takes a connection, and has everything prepared so that the pass's own round trips can be pipelined.
    pub(crate) async fn begin(cx: &'a Context, consumer: &Arc<Consumer>, key: &Key) -> Result<Self, Error> {
        let object = checkout(&cx.passes, "taking a connection for a pass").await?;
        let preparing = async {
            Ok::<_, tokio_postgres::Error>((
                consumers::prepare_lock(&object, cx.log.schema()).await?,
                consumers::prepare_settle(&object, cx.log.schema()).await?,
            ))
        };
        let (lock, settle) = match deadline(cx.log.limit(), "preparing a pass", preparing).await {
            Ok(prepared) => prepared,
            Err(error) => {
                throw_away(object);
                return Err(error);
            }
        };
        Ok(Self {
            cx,
            consumer: Arc::clone(consumer),
            key: key.clone(),
            object: Some(object),
            lock,
            settle,
            transaction_id: String::new(),
            backend: 0,
            traces: Traces::default(),
            spoiled: false,
            forgetful: false,
        })
    }

    /// Takes the row again after a pass was lost. `None` when anybody has moved on since.
    pub(crate) async fn begin_again(
        cx: &'a Context,
        consumer: &Arc<Consumer>,
        key: &Key,
        before: &State,
    ) -> Result<Option<Self>, Error> {
        let until = Instant::now() + MARGIN;
        loop {
            let mut session = Self::begin(cx, consumer, key).await?;
            let now = session.lock(i64::MAX, None).await?.filter(|now| now.stands_as(before));
            if now.as_ref().is_some_and(|now| now.is_locked) {
                return Ok(Some(session));
            }
            session.leave().await?;
            if now.is_none() || Instant::now() >= until {
                return Ok(None);
            }
            tokio::time::sleep(AGAIN_PAUSE).await;
        }
    }

    pub(crate) fn client(&self) -> &ClientWrapper {
        match &self.object {
            Some(object) => object,
            None => unreachable!("a pass uses its session only until it ends"),
        }
    }

    /// The pid of the session.
    pub(crate) fn backend(&self) -> i32 {
        self.backend
    }

    pub(crate) fn traces(&self) -> &Traces {
        &self.traces
    }

    /// Begins, asks for the row's lock and sets the savepoint, in one round trip, and one more where the row is not ours, or not
    /// as `left` by our last pass. `None` when there is no such row.
    pub(crate) async fn lock(&mut self, head: i64, left: Option<&Left>) -> Result<Option<State>, Error> {
        let (schema, revision) = (self.cx.log.schema(), self.consumer.revision_number());
        let (process, limit) = (self.cx.process, self.consumer.options.handler_timeout);
        let client = self.client();
        let asking = async {
            // Each is sent when it is first polled, which is in this order. The answer to the last is not waited for: where it
            // failed, so does whatever comes after it.
            let (began, locked, ()) = tokio::join!(
                pg::session::begin(client),
                consumers::lock(client, &self.lock, &self.key, process, revision, head),
                send(pg::session::guard(client, limit, limit + SILENCE)),
            );
            began?;
            let locked = locked?;
            let state = match (&locked, left) {
                (Some(locked), Some(left)) if left.is(locked) => Some(State::plain(locked)),
                _ => consumers::stand(client, schema, &self.key, process, locked.is_some()).await?,
            };
            Ok::<_, tokio_postgres::Error>((locked, state))
        };
        let (locked, state) = deadline(self.limit(), On("locking consumer", &self.key), asking).await?;
        if let Some(locked) = locked {
            self.transaction_id = locked.transaction_id;
            self.backend = locked.backend;
        }
        Ok(state.map(judgement::rearmed))
    }

    /// How long the session has been idle while the row was kept is no matter of the handler's, whose time begins now; neither the
    /// server nor a peer counts it as such. No answer is waited for.
    pub(crate) async fn speak_up_after(&self, silence: Duration) {
        if silence > SILENCE / 4 {
            send(pg::session::ask(self.client())).await;
        }
    }

    /// Did the handler append an event since the last call?
    pub(crate) fn appended(&self) -> bool {
        self.traces.take_appended()
    }

    /// A handler that went on after a failed statement left the transaction aborted, unless it has gone back to a savepoint.
    pub(crate) async fn swallowed(&self, first: Option<&FirstError>) -> Option<Failure> {
        let first = first?;
        let probe = pg::session::ask(self.client());
        let error = deadline(MARGIN, "after a statement of the handler failed", probe).await.err()?;
        Some(Failure::retry(aborted(&first.message, error)))
    }

    /// Undoes what the handlers did; the row stays locked.
    pub(crate) async fn roll_back(&mut self) -> Result<(), Error> {
        let what = On("rolling back a pass of consumer", &self.key);
        self.traces.take_error();
        self.traces.take_appended();
        if self.spoiled {
            return Err(Error::new(
                ErrorKind::Timeout,
                format!("{what}: the server did not end the statement"),
            ));
        }
        let client = self.client();
        match deadline(MARGIN, &what, pg::session::back_to_guard(client)).await {
            // The cancel hit this statement in the place of the handler's.
            Err(e) if e.sqlstate() == Some("57014") => {
                deadline(MARGIN, &what, pg::session::back_to_guard(client)).await
            }
            done => done,
        }
    }

    /// Has the server end the statement of a handler that was dropped.
    pub(crate) async fn interrupt(&mut self) {
        let token = self.client().cancel_token();
        let cancelling = self.cx.log.connector().cancel(token);
        if let Err(error) = deadline(MARGIN, On("interrupting consumer", &self.key), cancelling).await {
            tracing::debug!(error = error.report(), "the session is dropped");
            self.spoiled = true;
        }
    }

    /// Prepared statements do not fit the tables any more; or are not there, where a pooler gave us another session than the one
    /// that knew what this one remembers.
    pub(crate) fn forget_statements(&mut self) {
        self.client().statement_cache.clear();
        self.forgetful |= self.cx.log.schema().is_pooled();
    }

    pub(crate) async fn dead_letter(&self, letter: &DeadLetter<'_>) -> Result<(), Error> {
        let adding = pg::dead_letters::add(self.client(), self.cx.log.schema(), &self.key, letter);
        deadline(self.limit(), "writing a dead letter", adding).await
    }

    pub(crate) async fn dead_letter_event(&self, id: i64) -> Result<Option<Event>, Error> {
        let reading = pg::dead_letters::event(self.client(), self.cx.log.schema(), id);
        deadline(self.limit(), On("reading the event of dead letter", id), reading).await
    }

    /// False when its retry is asked for no more.
    pub(crate) async fn settle_dead_letter(
        &self,
        id: i64,
        state: &str,
        error: Option<&str>,
    ) -> Result<bool, Error> {
        let settling = pg::dead_letters::settle(self.client(), self.cx.log.schema(), id, state, error);
        deadline(self.limit(), On("settling dead letter", id), settling).await
    }

    /// Writes what the pass came to and commits, in one round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Ambiguous`]: the answer never came.
    pub(crate) async fn commit(mut self, to: &Settlement) -> Result<Committed, Error> {
        if self.cx.mutant == Some(Mutant::PositionOutside) {
            self.commit_effects_first().await?;
        }
        let what = On("committing a pass of consumer", &self.key);
        let client = self.client();
        let ending = async {
            tokio::join!(
                pg::session::check_constraints(client),
                consumers::settle(client, &self.settle, &self.key, &self.transaction_id, self.cx.process, to),
                pg::session::commit(client),
            )
        };
        // What is deferred to the end may take as long as a handler.
        let limit = self.limit().max(self.consumer.options.handler_timeout + MARGIN);
        let Ok((checked, settled, committed)) = tokio::time::timeout(limit, ending).await else {
            return Err(Error::new(
                ErrorKind::Ambiguous,
                format!(
                    "{what}: no answer within {:.1} s; the next pass reads what is true",
                    limit.as_secs_f64()
                ),
            ));
        };
        // The server's word on what comes before the commit means that nothing is kept, however it ended the session.
        let settled = match checked.and(settled) {
            Ok(settled) => settled,
            Err(e) if e.as_db_error().is_some() => return Ok(Committed::Refused(refused(&what, e))),
            Err(e) => return Err(unanswered(&what, e)),
        };
        match committed {
            Ok(()) => {}
            Err(e) if is_connection_lost(&e) => return Err(unanswered(&what, e)),
            Err(e) => return Ok(Committed::Refused(refused(&what, e))),
        }
        self.give_back();
        Ok(settled.map_or(Committed::Gone, Committed::Done))
    }

    /// The mutant `position-outside`.
    async fn commit_effects_first(&mut self) -> Result<(), Error> {
        let client = self.client();
        let again = async {
            pg::session::commit(client).await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
            pg::session::begin(client).await?;
            pg::session::transaction_id(client).await
        };
        self.transaction_id = deadline(self.limit(), "committing effects", again).await?;
        Ok(())
    }

    /// Ends the transaction without having written anything.
    pub(crate) async fn leave(mut self) -> Result<(), Error> {
        deadline(self.limit(), "ending a pass", pg::session::roll_back(self.client())).await?;
        self.give_back();
        Ok(())
    }

    /// Ends the pass of a handler that was dropped: nothing of it is kept, and nothing stays behind.
    pub(crate) async fn give_up(mut self) {
        self.interrupt().await;
        let ended = match self.spoiled {
            true => false,
            false => {
                let ending = pg::session::roll_back(self.client());
                deadline(MARGIN, "giving up a pass", ending).await.is_ok()
            }
        };
        match ended {
            true => self.give_back(),
            false => self.abandon().await,
        }
    }

    /// Drops the connection and has the server end its session, so that the row is free.
    pub(crate) async fn abandon(mut self) {
        let Some(object) = self.object.take() else { return };
        throw_away(object);
        let (schema, backend) = (self.cx.log.schema(), Some(self.backend));
        let freeing = ask(&self.cx.passes, MARGIN, "ending a lost session", async |client| {
            consumers::free(client, schema, &self.key, Duration::ZERO, backend).await
        });
        if let Err(error) = deadline(2 * MARGIN, "ending a lost session", freeing).await {
            tracing::warn!(consumer = %self.key, error = error.report(), "a lost session could not be ended; the server will");
        }
    }

    /// For the next pass to use.
    fn give_back(&mut self) {
        let Some(object) = self.object.take() else { return };
        if self.forgetful {
            throw_away(object);
        } else if object.statement_cache.size() > MOST_STATEMENTS {
            object.statement_cache.clear();
        }
    }

    fn limit(&self) -> Duration {
        self.cx.log.limit()
    }
}

/// Has a statement sent, without waiting for its answer.
async fn send<T>(statement: impl Future<Output = T>) {
    let mut statement = std::pin::pin!(statement);
    std::future::poll_fn(|cx| {
        let _ = statement.as_mut().poll(cx);
        std::task::Poll::Ready(())
    })
    .await;
}

impl Drop for PassSession<'_> {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            throw_away(object);
        }
    }
}

fn aborted(first: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::with_source(
        ErrorKind::Database,
        format!(
            "a statement failed, the handler went on, and nothing of the transaction can be kept ({first}); return the error, \
             or use a savepoint"
        ),
        error,
    )
}

fn refused(what: &impl std::fmt::Display, error: tokio_postgres::Error) -> Error {
    match error.code().map(SqlState::code) {
        Some("25P02") => aborted("its words went unheard", error),
        _ => Error::statement(what, error),
    }
}

fn unanswered(what: &impl std::fmt::Display, error: tokio_postgres::Error) -> Error {
    Error::with_source(
        ErrorKind::Ambiguous,
        format!("{what}: the answer never came; the next pass reads what is true"),
        error,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_as_it_was_left_only_in_the_same_epoch_and_by_the_same_writer() {
        let epoch = Some(Uuid::from_u128(1));
        let locked = Locked {
            transaction_id: "9".into(),
            backend: 1,
            epoch,
            position: 4,
            revision: 1,
            written_by: "7".into(),
        };
        let left = Left::new("7".into(), epoch);
        assert!(left.is(&locked));
        assert!(!left.is(&Locked { written_by: "8".into(), ..locked.clone() }));
        assert!(!left.is(&Locked { epoch: Some(Uuid::from_u128(2)), ..locked }), "7 is another's name now");
    }
}
