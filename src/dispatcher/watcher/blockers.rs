//! What an operator is told of a hole that does not close: who holds it open.
//!
//! The log has their names once for each hole; the metrics have them anew every few seconds, until the hole is closed. They are
//! asked for in the background, over another connection than the watcher's: nobody waits for the answer.

use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use crate::metrics::{self, OLD_HOLE};
use crate::store::Inorder;

/// How often it is asked who holds it open.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Those who hold open the hole that the safe head stands before, as far as the operator knows of them.
#[derive(Debug, Default)]
pub(super) struct Blockers {
    /// When it was asked last who they are; `None` while there is no old hole.
    asked_at: Option<Instant>,
    telling: Option<AbortHandle>,
}

impl Blockers {
    /// The safe head stands before a hole of this age.
    pub(super) fn tell(&mut self, log: &Inorder, safe_head: i64, age: Duration) {
        if age < OLD_HOLE || self.asked_at.is_some_and(|at| at.elapsed() < ASK_EVERY) {
            return;
        }
        let first = self.asked_at.replace(Instant::now()).is_none();
        self.telling = Some(tokio::spawn(ask(log.clone(), safe_head, age, first)).abort_handle());
    }

    /// The safe head stands before no hole.
    pub(super) fn are_gone(&mut self) {
        if self.asked_at.take().is_none() {
            return;
        }
        // Its answer would be measured after this.
        if let Some(telling) = self.telling.take() {
            telling.abort();
        }
        metrics::blockers(0, 0.0);
    }
}

async fn ask(log: Inorder, safe_head: i64, age: Duration, first: bool) {
    let blockers = match log.admin().blockers().await {
        Ok(blockers) => blockers,
        Err(error) => {
            tracing::warn!(
                safe_head,
                ?age,
                error = error.report(),
                "a transaction took an id and has not ended: nothing behind it can be delivered; who it is could not be asked"
            );
            return;
        }
    };
    metrics::blockers(blockers.len(), blockers.iter().filter_map(|b| b.age_seconds).fold(0.0, f64::max));
    if first {
        let blockers = blockers.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        tracing::warn!(
            safe_head,
            ?age,
            blockers,
            "a transaction took an id and has not ended: nothing behind it can be delivered"
        );
    }
}
