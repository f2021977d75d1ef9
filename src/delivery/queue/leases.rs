//! The leases of what a queue holds: until when each claim is valid by our own clock, and its renewal.

use std::sync::Arc;
use std::time::Instant;

use uuid::Uuid;

use super::Queue;
use crate::pg::ask;
use crate::pg::ledger::{self, Due};
use crate::safe_head::Mutant;

#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) token: i64,
    pub(super) valid_until: Instant,
}

impl Queue {
    /// `None` when this claim is not ours any more, also where the same event was claimed here anew since.
    pub(super) fn valid_until(&self, due: &Due) -> Option<Instant> {
        let forever = self.cx.mutant == Some(Mutant::LateRenewal);
        let hold = self.state().held.get(&due.event.event_id()).copied();
        let hold = hold.filter(|hold| hold.token == due.token)?;
        Some(if forever {
            Instant::now() + hold.valid_until.elapsed() + self.lease()
        } else {
            hold.valid_until
        })
    }

    /// Ends when another may have claimed the event.
    pub(super) async fn lost(&self, due: &Due) {
        while let Some(until) = self.valid_until(due) {
            if Instant::now() >= until {
                return;
            }
            tokio::time::sleep_until(until.into()).await;
        }
    }

    /// Renews everything that is held, until it is aborted.
    pub(super) async fn renew(self: Arc<Self>) {
        let lease = self.lease();
        let every = self.cx.renewed_every(lease);
        let mut pause = every;
        loop {
            tokio::time::sleep(pause).await;
            let held: Vec<(Uuid, i64)> =
                self.state().held.iter().map(|(id, hold)| (*id, hold.token)).collect();
            if held.is_empty() {
                continue;
            }
            let sent = Instant::now();
            let schema = self.cx.log.schema();
            let renewing = ask(&self.cx.leases, every / 2, "renewing leases", async |client| {
                ledger::extend(client, schema, &self.handler, &held, lease).await
            });
            match renewing.await {
                // What is not named is lost, or was settled meanwhile: it is not valid any longer than it was.
                Ok(extended) => {
                    pause = every;
                    let mut state = self.state();
                    for (id, token, _) in extended {
                        if let Some(hold) = state.held.get_mut(&id).filter(|hold| hold.token == token) {
                            hold.valid_until = sent + lease;
                        }
                    }
                }
                // It is tried again soon, over another connection.
                Err(error) => {
                    pause = every / 10;
                    tracing::warn!(consumer = %self.key, error = error.report(), "leases could not be renewed");
                }
            }
        }
    }
}
