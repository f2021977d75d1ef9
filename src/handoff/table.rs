//! The claims that survive a restart and that other processes see, and whether they can be had at the moment.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_postgres::Object;
use uuid::Uuid;

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
    away: AtomicBool,
}

impl Table {
    pub(super) fn new(log: Inorder, scope: String, limit: Duration, keep: (Duration, Duration)) -> Self {
        let [keep_is_told, away] = [false, false].map(AtomicBool::new);
        Self { log, scope, limit, keep, keep_is_told, away }
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

    async fn ask<T>(
        &self,
        what: &str,
        question: impl AsyncFnOnce(&Object) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Error> {
        let client = deadline(self.limit, what, self.log.client(what)).await?;
        let answer = deadline(self.limit, what, question(&client)).await;
        if answer.as_ref().is_err_and(|e| e.kind() == ErrorKind::Timeout) {
            // Its answer may still come; nobody else shall wait for it.
            pg::throw_away(client);
        }
        answer
    }

    /// Tells once that the table is away, and once that it is back.
    fn note(&self, error: Option<&Error>) {
        let away = error.is_some();
        metrics::handoff_table(&self.scope, !away);
        match (self.away.swap(away, Ordering::Relaxed), error) {
            (false, Some(error)) => tracing::warn!(
                scope = self.scope,
                error = error.report(),
                "the table of hand-offs does not answer; until it does, other processes and later starts do not know what is decided here"
            ),
            (true, None) => tracing::info!(scope = self.scope, "the table of hand-offs answers again"),
            _ => {}
        }
    }
}

fn claim(taken: &Taken) -> (Uuid, Claim) {
    let side = if taken.taken_by == "direct" { Side::Direct } else { Side::Delivery };
    (taken.key, Claim { side, ran: taken.ran })
}
