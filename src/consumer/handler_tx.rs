//! The transaction that a handler gets: everything but its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use deadpool_postgres::ClientWrapper;
use tokio_postgres::types::{BorrowToSql, ToSql};
use tokio_postgres::{Row, RowStream, Statement};

use crate::error::{Error, describe, is_stale_statement, sqlstate};
use crate::event::{Append, Event, ExpectedVersion, NewEvent};
use crate::pg;
use crate::store::Inorder;

mod text;

type PgResult<T> = Result<T, tokio_postgres::Error>;

/// The transaction of a pass, as a handler sees it.
///
/// Statements run in the pass's own transaction, under READ COMMITTED, and commit together with the advance of the
/// position. There is no commit and no rollback here, and a handler that runs them as SQL gets an error in their place.
/// Statement texts are prepared once per connection; behind a pooler that gives each transaction another session, once per call.
///
/// A statement that fails aborts the transaction, as always in PostgreSQL: return the error, or put the statement into a
/// [`savepoint`](Self::savepoint).
pub struct HandlerTx<'a> {
    client: &'a ClientWrapper,
    log: &'a Inorder,
    cause: Option<&'a Event>,
    traces: &'a Traces,
}

/// What a handler left behind in the transaction, for the pass to know.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    first_error: Mutex<Option<FirstError>>,
    appended: AtomicBool,
}

/// The first statement of a handler that failed.
#[derive(Debug)]
pub(crate) struct FirstError {
    /// The server's words.
    pub(crate) message: String,
    /// The transaction was aborted already: a statement before this one failed, and nobody looked.
    pub(crate) aborted_before: bool,
    /// A prepared statement no longer fits the tables; preparing it anew helps.
    pub(crate) stale: bool,
}

impl Traces {
    fn note(&self, error: &(dyn std::error::Error + 'static)) {
        let mut first = self.first_error.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| FirstError {
            message: describe(error),
            aborted_before: sqlstate(error) == Some("25P02"),
            stale: is_stale_statement(error),
        });
    }

    /// The first statement that failed since the last call.
    pub(crate) fn take_error(&self) -> Option<FirstError> {
        self.first_error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Was an event appended since the last call?
    pub(crate) fn take_appended(&self) -> bool {
        self.appended.swap(false, Ordering::Relaxed)
    }
}

impl<'a> HandlerTx<'a> {
    pub(crate) fn new(
        client: &'a ClientWrapper,
        log: &'a Inorder,
        cause: Option<&'a Event>,
        traces: &'a Traces,
    ) -> Self {
        Self { client, log, cause, traces }
    }

    /// Runs a statement and answers how many rows it touched.
    ///
    /// # Errors
    /// The server's.
    pub async fn execute(&self, statement: &str, params: &[&(dyn ToSql + Sync)]) -> PgResult<u64> {
        let statement = self.prepare(statement).await?;
        self.noting(self.client.execute(&statement, params).await)
    }

    /// Runs a statement and answers its rows.
    ///
    /// # Errors
    /// The server's.
    pub async fn query(&self, statement: &str, params: &[&(dyn ToSql + Sync)]) -> PgResult<Vec<Row>> {
        let statement = self.prepare(statement).await?;
        self.noting(self.client.query(&statement, params).await)
    }

    /// Runs a statement that answers exactly one row.
    ///
    /// # Errors
    /// The server's, and another number of rows.
    pub async fn query_one(&self, statement: &str, params: &[&(dyn ToSql + Sync)]) -> PgResult<Row> {
        let statement = self.prepare(statement).await?;
        self.noting(self.client.query_one(&statement, params).await)
    }

    /// Runs a statement that answers one row or none.
    ///
    /// # Errors
    /// The server's, and more than one row.
    pub async fn query_opt(&self, statement: &str, params: &[&(dyn ToSql + Sync)]) -> PgResult<Option<Row>> {
        let statement = self.prepare(statement).await?;
        self.noting(self.client.query_opt(&statement, params).await)
    }

    /// Runs a prepared statement and streams its rows.
    ///
    /// # Errors
    /// The server's; those that the stream ends with are for the handler to return.
    pub async fn query_raw<P, I>(&self, statement: &Statement, params: I) -> PgResult<RowStream>
    where
        P: BorrowToSql,
        I: IntoIterator<Item = P>,
        I::IntoIter: ExactSizeIterator,
    {
        self.noting(self.client.query_raw(statement, params).await)
    }

    /// Prepares a statement, once per connection. Behind a pooler that gives each transaction another session: at each call, and
    /// for as long as the handler runs.
    ///
    /// # Errors
    /// The server's.
    pub async fn prepare(&self, statement: &str) -> PgResult<Statement> {
        self.check(statement).await?;
        // Behind a pooler it goes with this transaction's session.
        let prepared = match self.log.schema().is_pooled() {
            true => self.client.prepare(statement).await,
            false => self.client.prepare_cached(statement).await,
        };
        self.noting(prepared)
    }

    /// Runs statements without parameters, separated by semicolons.
    ///
    /// # Errors
    /// The server's.
    pub async fn batch_execute(&self, statements: &str) -> PgResult<()> {
        self.check(statements).await?;
        self.noting(self.client.batch_execute(statements).await)
    }

    /// Runs `work` behind a savepoint: when it fails, what it did is undone and the transaction goes on.
    ///
    /// # Errors
    /// That of `work`, after the rollback; the server's for the savepoint itself.
    ///
    /// # Cancel safety
    /// Dropped in the middle, the savepoint stays; only drop it together with the handler.
    pub async fn savepoint<T, E>(&self, work: impl AsyncFnOnce() -> Result<T, E>) -> Result<T, E>
    where
        E: From<tokio_postgres::Error>,
    {
        self.batch_execute("SAVEPOINT inorder_handler").await?;
        match work().await {
            Ok(value) => {
                self.batch_execute("RELEASE SAVEPOINT inorder_handler").await?;
                Ok(value)
            }
            Err(error) => {
                self.batch_execute(
                    "ROLLBACK TO SAVEPOINT inorder_handler; RELEASE SAVEPOINT inorder_handler",
                )
                .await?;
                Err(error)
            }
        }
    }

    /// Appends events in this transaction. They name the event being handled as their cause and inherit its
    /// correlation, unless they say otherwise; a batch handler says which event it was with
    /// [`NewEvent::caused_by`]. The pass commits right after this event, as what it appended is a hole for everybody
    /// until then.
    ///
    /// # Errors
    /// As for [`Inorder::append_in`].
    pub async fn append(&self, expected: ExpectedVersion, events: &[NewEvent]) -> Result<Append, Error> {
        self.traces.appended.store(true, Ordering::Relaxed);
        let appended = match self.cause {
            None => self.log.append_on(self.client, expected, events).await,
            Some(cause) => {
                let events: Vec<NewEvent> =
                    events.iter().map(|e| e.clone().caused_by_default(cause)).collect();
                self.log.append_on(self.client, expected, &events).await
            }
        };
        if let Err(error) = &appended {
            self.traces.note(error);
        }
        appended
    }

    /// Refuses, in the server's words, what would end the pass's transaction.
    async fn check(&self, statements: &str) -> PgResult<()> {
        let schema = self.log.schema();
        if text::appends(statements, schema.name(), schema.quoted()) {
            self.traces.appended.store(true, Ordering::Relaxed);
        }
        if text::ends_transaction(statements) {
            return self.noting(pg::consumers::refuse_end(self.client, schema).await);
        }
        Ok(())
    }

    fn noting<T>(&self, result: PgResult<T>) -> PgResult<T> {
        if let Err(error) = &result {
            self.traces.note(error);
        }
        result
    }
}
