//! The connection and the transaction of a pass. Whatever ends a pass early, a connection goes back to its pool only with
//! its transaction ended.

use std::time::Duration;

use super::*;
use crate::pg::{On, consumers};

/// How long after a time-out the server may take to be ready again.
const MARGIN: Duration = Duration::from_secs(2);

/// One connection, from the lock to the commit.
pub(crate) struct PassSession {
    /// `None` once it is given back or thrown away.
    object: Option<Object>,
    key: Key,
    begin: String,
    lock: tokio_postgres::Statement,
    settle: tokio_postgres::Statement,
    transaction_id: String,
    backend: i32,
    traces: crate::consumer::Traces,
    limit: Duration,
}

/// Why a pass could not be committed.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// The server refused it: nothing was written.
    Refused(Error),
    /// The answer never came.
    Unknown(Error),
}

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Refused(error) | CommitError::Unknown(error) => error,
        }
    }
}

impl PassSession {
    /// Takes a connection, and has everything prepared so that the pass's own round trips can be pipelined.
    pub(crate) async fn begin(cx: &Context, consumer: &Consumer, key: &Key) -> Result<Self, Error> {
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
                drop(Object::take(object));
                return Err(error);
            }
        };
        let limit = consumer.options.handler_timeout;
        Ok(Self {
            object: Some(object),
            key: key.clone(),
            begin: pg::session::begin(limit, limit + Duration::from_millis(500)),
            lock,
            settle,
            transaction_id: String::new(),
            backend: 0,
            traces: crate::consumer::Traces::default(),
            limit: cx.log.limit(),
        })
    }

    pub(crate) fn client(&self) -> &deadpool_postgres::ClientWrapper {
        match &self.object {
            Some(object) => object,
            None => unreachable!("a pass uses its session only until it ends"),
        }
    }

    pub(crate) fn traces(&self) -> &crate::consumer::Traces {
        &self.traces
    }

    /// Begins, asks for the row's lock and sets the savepoint, in one round trip. `None` when there is no such row.
    pub(crate) async fn lock(
        &mut self,
        cx: &Context,
        consumer: &Consumer,
        head: i64,
    ) -> Result<Option<State>, Error> {
        let client = self.client();
        let asking = async {
            let (began, state, saved) = tokio::join!(
                client.batch_execute(&self.begin),
                consumers::lock(client, &self.lock, &self.key, cx.process, consumer.revision_number(), head),
                client.batch_execute("SAVEPOINT inorder_pass"),
            );
            began?;
            let state = state?;
            saved?;
            Ok::<_, tokio_postgres::Error>(state)
        };
        let state = deadline(self.limit, On("locking consumer", &self.key), asking).await?;
        if let Some(state) = &state {
            self.transaction_id = state.locked.clone().unwrap_or_default();
            self.backend = state.backend;
        }
        Ok(state)
    }

    /// Did the handler append an event since the last call?
    pub(crate) fn appended(&self) -> bool {
        self.traces.take_appended()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.client().is_closed()
    }

    /// A handler that went on after a failed statement left the transaction aborted, and none of its work would be kept.
    pub(crate) async fn swallowed_error(&self) -> Option<Failure> {
        if !self.traces.take_failed() {
            return None;
        }
        let probe = deadline(
            MARGIN,
            "after a statement of the handler failed",
            self.client().batch_execute("SELECT 1"),
        );
        let error = probe.await.err()?;
        Some(Failure::retry(Error::with_source(
            ErrorKind::Database,
            "a statement failed, the handler went on, and the transaction is aborted: return the error, or use a savepoint",
            error,
        )))
    }

    /// Undoes what the handlers did; the row stays locked.
    pub(crate) async fn roll_back(&mut self) -> Result<(), Error> {
        let what = "rolling back to the savepoint";
        self.traces.take_failed();
        self.traces.take_appended();
        let client = self.client();
        match deadline(MARGIN, what, client.batch_execute("ROLLBACK TO SAVEPOINT inorder_pass")).await {
            // A cancel that came late hit this statement in the place of the handler's.
            Err(e) if e.sqlstate() == Some("57014") => {
                deadline(MARGIN, what, client.batch_execute("ROLLBACK TO SAVEPOINT inorder_pass")).await
            }
            done => done,
        }
    }

    /// Cancels the statement of a handler that was dropped. True when the session is still there.
    pub(crate) async fn interrupt(&self) -> bool {
        let cancel = self.client().cancel_token();
        let cancelled = tokio::time::timeout(MARGIN, cancel.cancel_query(NoTls)).await;
        if !matches!(cancelled, Ok(Ok(()))) {
            tracing::debug!(consumer = %self.key, "cancelling a handler's statement did not get through");
        }
        !self.is_lost()
    }

    pub(crate) async fn dead_letter(&self, cx: &Context, letter: &DeadLetter<'_>) -> Result<(), Error> {
        let adding = pg::dead_letters::add(self.client(), cx.log.schema(), &self.key, letter);
        deadline(self.limit, "writing a dead letter", adding).await
    }

    pub(crate) async fn dead_letter_event(&self, cx: &Context, id: i64) -> Result<Option<Event>, Error> {
        let reading = pg::dead_letters::event(self.client(), cx.log.schema(), id);
        deadline(self.limit, On("reading the event of dead letter", id), reading).await
    }

    pub(crate) async fn settle_dead_letter(
        &self,
        cx: &Context,
        id: i64,
        state: &str,
        error: Option<&str>,
    ) -> Result<(), Error> {
        let settling = pg::dead_letters::settle(self.client(), cx.log.schema(), id, state, error);
        deadline(self.limit, On("settling dead letter", id), settling).await
    }

    /// Writes what the pass came to and commits, in one round trip. Answers when the next attempt is due.
    pub(crate) async fn commit(
        mut self,
        cx: &Context,
        key: &Key,
        to: &Settlement,
    ) -> Result<Option<OffsetDateTime>, CommitError> {
        if cx.mutant == Some(Mutant::PositionOutside) {
            self.commit_effects_first().await.map_err(CommitError::Unknown)?;
        }
        let client = self.client();
        let ending = async {
            Ok::<_, Error>(tokio::join!(
                client.batch_execute("SET CONSTRAINTS ALL IMMEDIATE"),
                consumers::settle(client, &self.settle, key, &self.transaction_id, cx.process, to),
                client.batch_execute("COMMIT"),
            ))
        };
        let what = format!("committing a pass of consumer {key}");
        let (checked, settled, committed) = deadline(self.limit, &what, ending).await.map_err(unknown)?;
        let settled = match checked.and(settled).and_then(|settled| committed.map(|()| settled)) {
            Ok(settled) => settled,
            Err(error) => return Err(self.refused(&what, error)),
        };
        self.give_back();
        match settled {
            Some(next_attempt_at) => Ok(next_attempt_at),
            None => Err(CommitError::Refused(Error::new(
                ErrorKind::NotRegistered,
                format!(
                    "{what}: its row is gone, although this process held it; nothing but the handlers' effects was kept"
                ),
            ))),
        }
    }

    /// An answer of the server means that nothing was kept; anything else, that nobody knows.
    fn refused(&mut self, what: &str, error: tokio_postgres::Error) -> CommitError {
        if error.as_db_error().is_some() && !self.is_lost() {
            self.give_back();
            return CommitError::Refused(Error::statement(what, error));
        }
        unknown(Error::statement(what, error))
    }

    /// The mutant `position-outside`.
    async fn commit_effects_first(&mut self) -> Result<(), Error> {
        let client = self.client();
        deadline(self.limit, "committing effects", client.batch_execute("COMMIT")).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        deadline(self.limit, "beginning again", client.batch_execute(&self.begin)).await?;
        let row = deadline(
            self.limit,
            "beginning again",
            client.query_one("SELECT pg_current_xact_id()::text", &[]),
        );
        self.transaction_id = row.await?.get(0);
        Ok(())
    }

    /// Ends the transaction without having written anything.
    pub(crate) async fn leave(mut self) -> Result<(), Error> {
        deadline(self.limit, "ending a pass", self.client().batch_execute("ROLLBACK")).await?;
        self.give_back();
        Ok(())
    }

    /// Drops the connection and has the server end its session, so that the row is free.
    pub(crate) async fn abandon(mut self, cx: &Context) {
        let Some(object) = self.object.take() else { return };
        drop(Object::take(object));
        let freeing = async {
            let client = checkout(&cx.passes, "ending a lost session").await?;
            let freeing =
                consumers::free(&client, cx.log.schema(), &self.key, Duration::ZERO, Some(self.backend));
            deadline(MARGIN, "ending a lost session", freeing).await
        };
        if let Err(error) = freeing.await {
            tracing::warn!(consumer = %self.key, error = error.report(), "a lost session could not be ended; the server will");
        }
    }

    fn give_back(&mut self) {
        self.object = None;
    }
}

impl Drop for PassSession {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            drop(Object::take(object));
        }
    }
}

fn unknown(error: Error) -> CommitError {
    CommitError::Unknown(Error::with_source(
        ErrorKind::Ambiguous,
        "the answer to a commit never came; the next pass reads what is true",
        error,
    ))
}
