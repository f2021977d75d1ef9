//! The claims that survive a restart and that other processes see, and whether they can be had at the moment.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_postgres::Object;
use tokio::sync::Notify;
use uuid::Uuid;

use super::breaker::Breaker;
use super::builder::Settings;
use super::decision::{Claim, Side};
use crate::error::{Error, ErrorKind};
use crate::pg::handoffs::{self, Swept, Taken};
use crate::pg::{self, deadline};
use crate::store::Inorder;
use crate::{metrics, pg::Schema};

/// The rows of one scope in the table `handoffs`.
pub(super) struct Table {
    pub(super) log: Inorder,
    pub(super) scope: String,
    /// How long an answer is waited for.
    pub(super) limit: Duration,
    /// How long rows are kept: of the direct path, of deliveries.
    keep: (Duration, Duration),
    /// Does the table know that?
    keep_is_told: AtomicBool,
    breaker: Mutex<Breaker>,
    /// Told when the breaker opens.
    pub(super) opened: Arc<Notify>,
    /// Was it told, since the table answered last, that memory forgets?
    pub(super) forgetting_is_told: AtomicBool,
}

impl Table {
    pub(super) fn new(log: Inorder, scope: String, settings: &Settings) -> Self {
        let [keep_is_told, forgetting_is_told] = [false, false].map(AtomicBool::new);
        Self {
            log,
            scope,
            limit: settings.table_timeout,
            keep: (settings.keep, settings.keep_deliveries),
            keep_is_told,
            breaker: Mutex::new(Breaker::new(settings.open_after)),
            opened: Arc::default(),
            forgetting_is_told,
        }
    }

    /// Is nothing decided by the table at the moment?
    pub(super) fn is_open(&self) -> bool {
        self.breaker().is_open()
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [`take`](Self::take), unless the breaker is open.
    pub(super) async fn decide(&self, keys: &[Uuid], side: Side) -> Result<HashMap<Uuid, Claim>, Error> {
        self.while_closed(keys.len())?;
        self.take(keys, side).await
    }

    /// [`ran`](Self::ran), unless the breaker is open.
    pub(super) async fn note_run(&self, keys: &[Uuid]) -> Result<HashMap<Uuid, Claim>, Error> {
        self.while_closed(keys.len())?;
        self.ran(keys).await
    }

    fn while_closed(&self, events: usize) -> Result<(), Error> {
        match self.is_open() {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::Connection,
                format!(
                    "asking for {events} events of hand-off {:?}: the table did not answer several times in a row, and is not asked until it answers the hand-off's probe; try again later",
                    self.scope
                ),
            )),
        }
    }

    /// Takes each event for the side, unless the other side has it. Durable when it answers: who has each of them.
    pub(super) async fn take(&self, keys: &[Uuid], side: Side) -> Result<HashMap<Uuid, Claim>, Error> {
        let taken_by = match side {
            Side::Direct => "direct",
            Side::Delivery => "delivery",
        };
        let what = format!("taking {} events of hand-off {:?} ({taken_by})", keys.len(), self.scope);
        let taken = self
            .asking(&what, async |client| {
                if !self.keep_is_told.load(Ordering::Relaxed) {
                    self.tell_keep(client).await?;
                }
                handoffs::take(client, self.schema(), &self.scope, taken_by, keys).await
            })
            .await?;
        Ok(taken.iter().map(claim).collect())
    }

    /// Records that the direct path has run these. Who has each of them.
    pub(super) async fn ran(&self, keys: &[Uuid]) -> Result<HashMap<Uuid, Claim>, Error> {
        let what = format!("recording {} events of hand-off {:?} as run directly", keys.len(), self.scope);
        let taken = self
            .asking(&what, async |client| handoffs::ran(client, self.schema(), &self.scope, keys).await)
            .await?;
        Ok(taken.iter().map(claim).collect())
    }

    pub(super) async fn unfinished(&self, older_than: Duration, limit: i64) -> Result<Vec<Uuid>, Error> {
        let what = format!("looking for unfinished events of hand-off {:?}", self.scope);
        self.asking(&what, async |client| {
            handoffs::unfinished(client, self.schema(), &self.scope, older_than, limit).await
        })
        .await
    }

    /// Deletes at most so many rows that are kept no longer.
    pub(super) async fn sweep(&self, limit: i32) -> Result<Swept, Error> {
        let what = format!("sweeping hand-off {:?}", self.scope);
        self.asking(&what, async |client| {
            self.tell_keep(client).await?;
            handoffs::sweep(client, self.schema(), &self.scope, limit).await
        })
        .await
    }

    /// Says how long rows are kept, to whoever keeps house.
    async fn tell_keep(&self, client: &Object) -> Result<(), tokio_postgres::Error> {
        let (keep, keep_deliveries) = self.keep;
        handoffs::keep(client, self.schema(), &self.scope, keep, keep_deliveries).await?;
        self.keep_is_told.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn schema(&self) -> &Schema {
        self.log.schema()
    }

    async fn asking<T>(
        &self,
        what: &str,
        question: impl AsyncFnOnce(&Object) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Error> {
        let answer = self.ask(what, question).await;
        self.note(answer.as_ref().err());
        answer
    }

    /// Cancel safe: a connection whose answer may still come is closed, as nobody else shall wait for that.
    async fn ask<T>(
        &self,
        what: &str,
        question: impl AsyncFnOnce(&Object) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Error> {
        let asking = async {
            let mut busy = Busy(Some(self.log.client(what).await?));
            let Some(client) = &busy.0 else { unreachable!() };
            let answer = question(client).await;
            busy.0.take();
            answer.map_err(|e| Error::statement(what, e))
        };
        deadline(self.limit, what, asking).await
    }

    /// Tells once that the table is away, once that it is not asked, and once that it is back.
    fn note(&self, error: Option<&Error>) {
        let (before, now) = {
            let mut breaker = self.breaker();
            let before = *breaker;
            match error {
                Some(_) => breaker.failed(),
                None => breaker.answered(),
            }
            (before, *breaker)
        };
        metrics::handoff_table(&self.scope, !now.is_away(), now.is_open());
        let Some(error) = error else {
            if before.is_away() {
                self.forgetting_is_told.store(false, Ordering::Relaxed);
                tracing::info!(scope = self.scope, "the table of hand-offs answers again");
            }
            return;
        };
        if !before.is_away() {
            tracing::warn!(
                scope = self.scope,
                error = error.report(),
                "the table of hand-offs does not answer; until it does, other processes and later starts do not know what is decided here"
            );
        }
        if now.is_open() && !before.is_open() {
            metrics::handoff_opened(&self.scope);
            tracing::warn!(
                scope = self.scope,
                error = error.report(),
                "decisions do not wait for the table of hand-offs any more, until it answers a probe"
            );
            self.opened.notify_one();
        }
    }
}

/// A connection that goes back to its pool only when its statement was answered.
struct Busy(Option<Object>);

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            pg::throw_away(client);
        }
    }
}

fn claim(taken: &Taken) -> (Uuid, Claim) {
    let side = if taken.taken_by == "direct" { Side::Direct } else { Side::Delivery };
    (taken.key, Claim { side, ran: taken.ran })
}
