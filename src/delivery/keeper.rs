//! Keeps a leased row, and the claims on what is being run for it, while handlers run: renews them from a task of its own, so
//! that a handler which never yields is renewed for, too.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::AbortHandle;
use uuid::Uuid;

use super::Context;
use crate::pg::ask;
use crate::pg::consumers::Key;
use crate::pg::consumers::leased::{self, LeasedWork};
use crate::safe_head::Mutant;

/// A row that is ours for now.
pub(super) struct Keeper {
    cx: Arc<Context>,
    key: Key,
    handler: Arc<str>,
    token: i64,
    lease: Duration,
    claims: Arc<Mutex<Claims>>,
    standing: watch::Receiver<Standing>,
    task: AbortHandle,
}

/// The claims on what is being run, and how often they changed.
#[derive(Debug, Default)]
struct Claims {
    held: Vec<(Uuid, i64)>,
    /// Claimed with them, and not to be run now: they lie behind what is another's.
    spare: Vec<(Uuid, i64)>,
    turn: u64,
}

/// What is known of the lease, by this machine's monotonic clock: never later than the database has it.
#[derive(Clone, Copy, Debug)]
struct Standing {
    valid_until: Instant,
    /// Somebody else has the row.
    row_lost: bool,
    /// Somebody else may have what is being run.
    claims_lost: bool,
}

impl Keeper {
    /// Keeps a row that was leased by a statement sent at `asked_at`.
    pub(super) fn begin(
        cx: &Arc<Context>,
        key: &Key,
        handler: &Arc<str>,
        token: i64,
        lease: Duration,
        asked_at: Instant,
    ) -> Self {
        let standing = Standing { valid_until: asked_at + lease, row_lost: false, claims_lost: false };
        let (tell, watched) = watch::channel(standing);
        let claims = Arc::new(Mutex::new(Claims::default()));
        let renewal = Renewal {
            cx: Arc::clone(cx),
            key: key.clone(),
            handler: Arc::clone(handler),
            token,
            lease,
            claims: Arc::clone(&claims),
            tell,
        };
        let task = tokio::spawn(renewal.run()).abort_handle();
        Self {
            cx: Arc::clone(cx),
            key: key.clone(),
            handler: Arc::clone(handler),
            token,
            lease,
            claims,
            standing: watched,
            task,
        }
    }

    pub(super) fn token(&self) -> i64 {
        self.token
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are ours; they may be run from now on. Those that were before go back with the row.
    pub(super) fn hold(&self, claims: Vec<(Uuid, i64)>) {
        let mut ours = self.claims();
        let before = std::mem::replace(&mut ours.held, claims);
        ours.turn += 1;
        if !before.is_empty() {
            let tokens: HashSet<i64> = ours.held.iter().map(|(_, token)| *token).collect();
            ours.spare.extend(before.into_iter().filter(|(_, token)| !tokens.contains(token)));
        }
    }

    /// Of what is held, only the claims with these tokens are run; the others go back with the row.
    pub(super) fn run_only(&self, tokens: impl Iterator<Item = i64>) {
        let tokens: HashSet<i64> = tokens.collect();
        let mut ours = self.claims();
        if ours.held.iter().all(|(_, token)| tokens.contains(token)) {
            return;
        }
        let (held, spare): (Vec<_>, Vec<_>) =
            std::mem::take(&mut ours.held).into_iter().partition(|(_, token)| tokens.contains(token));
        ours.held = held;
        ours.spare.extend(spare);
        ours.turn += 1;
    }

    pub(super) fn held(&self) -> Vec<(Uuid, i64)> {
        self.claims().held.clone()
    }

    /// They are settled, or about to be.
    pub(super) fn let_go(&self) -> Vec<(Uuid, i64)> {
        let mut ours = self.claims();
        ours.turn += 1;
        std::mem::take(&mut ours.held)
    }

    /// Is the row still ours, as far as is known? What is not known to be valid is not.
    pub(super) fn has_row(&self) -> bool {
        let standing = *self.standing.borrow();
        self.cx.mutant == Some(Mutant::LateRenewal)
            || !standing.row_lost && Instant::now() < standing.valid_until
    }

    /// Ends when what is being run may be run by another.
    pub(super) async fn lost(&self) {
        let mut standing = self.standing.clone();
        if self.cx.mutant == Some(Mutant::LateRenewal) {
            return std::future::pending().await;
        }
        loop {
            let now = *standing.borrow_and_update();
            if now.claims_lost {
                return;
            }
            tokio::select! {
                changed = standing.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(now.valid_until.into()) => {
                    if Instant::now() >= standing.borrow().valid_until {
                        return;
                    }
                }
            }
        }
    }

    /// Lets others have the row, and what was not run to its end. Where that fails, the lease runs out.
    pub(super) async fn give_back(self) {
        let mut claims = self.let_go();
        claims.append(&mut self.claims().spare);
        let work =
            LeasedWork { key: &self.key, lease_token: self.token, handler: &self.handler, claims: &claims };
        let (pool, limit, schema) = (&self.cx.leases, self.cx.log.limit(), self.cx.log.schema());
        let giving = ask(pool, limit, "giving back a lease", async |client| {
            leased::give_back(client, schema, work).await
        });
        if let Err(error) = giving.await {
            tracing::warn!(consumer = %self.key, error = error.report(), "a lease could not be given back; it runs out by itself");
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Renewal {
    cx: Arc<Context>,
    key: Key,
    handler: Arc<str>,
    token: i64,
    lease: Duration,
    claims: Arc<Mutex<Claims>>,
    tell: watch::Sender<Standing>,
}

impl Renewal {
    async fn run(self) {
        let every = self.cx.renewed_every(self.lease);
        let mut pause = every;
        loop {
            tokio::time::sleep(pause).await;
            let (claims, turn) = {
                let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
                (claims.held.clone(), claims.turn)
            };
            let sent = Instant::now();
            let work = LeasedWork {
                key: &self.key,
                lease_token: self.token,
                handler: &self.handler,
                claims: &claims,
            };
            let (pool, schema, lease) = (&self.cx.leases, self.cx.log.schema(), self.lease);
            let renewing = ask(pool, every / 2, "renewing a lease", async |client| {
                leased::renew(client, schema, work, lease).await
            });
            match renewing.await {
                Ok((row_held, claims_held)) => {
                    pause = every;
                    let same = self.claims.lock().unwrap_or_else(PoisonError::into_inner).turn == turn;
                    let lost = same && claims_held < claims.len();
                    if lost || !row_held {
                        tracing::warn!(consumer = %self.key, row_held, claims_held, claims = claims.len(), "a lease was lost");
                    }
                    self.tell.send_modify(|standing| {
                        standing.row_lost |= !row_held;
                        standing.claims_lost |= lost;
                        if !lost {
                            standing.valid_until = sent + self.lease;
                        }
                    });
                }
                // It is tried again soon, over another connection; meanwhile the lease runs on, and out.
                Err(error) => {
                    pause = every / 10;
                    tracing::warn!(consumer = %self.key, error = error.report(), "a lease could not be renewed");
                }
            }
        }
    }
}
