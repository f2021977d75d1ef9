//! The ledger: who ran what, so that an effect which no transaction can undo is run once.
//!
//! ```text
//!            claim                      complete
//!   (none) ───────▶ in progress ─────────────────────▶ done
//!      ▲              │   ▲  │ fail, release
//!      │ forget       │   │  ▼
//!      └── by an      │   └ pending ── its next attempt is due
//!          operator   ▼
//!              dead, by exhaustion or rejection
//! ```
//!
//! A claim is a lease on the database's clock and a fencing number. The number stands in the WHERE clause of every later
//! write: a worker that lost its lease, because it was frozen, say, changes nothing and is told so. A claim whose lease ran
//! out may be taken over; that is a fault of its row, no attempt.
//!
//! Invariants: I-5 (not run while another's claim is valid, nor once it is recorded done; the same key at every attempt and
//! a growing number), I-10 (a clock decides when a claim may be taken over, never that something is done).
//!
//! Failure handling: a claim that could not be recorded is no claim, so nothing is ever run unrecorded. A worker that dies
//! leaves a lease that runs out.
//!
//! Not its job: which events are to be handled, and when.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use crate::backoff::LONGEST_PAUSE;
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::outcome::shortened;
use crate::pg::ledger::{self as table, Asked, Entry, Settlement, Terms};
use crate::store::Inorder;

/// Runs what must be run once, by key: in a web handler, a job, or behind a consumer.
///
/// What is done is remembered as long as its event is in the log, and for 30 days at most where a dispatcher keeps house
/// ([`forget_done_after`](crate::DispatcherBuilder::forget_done_after)): an event is then refused rather than run again, another key
/// is like a new one.
///
/// ```no_run
/// use inorder::{Claim, Inorder};
///
/// # async fn example(log: Inorder, order: i64) -> Result<(), Box<dyn std::error::Error>> {
/// match log.ledger().claim(format!("charge order {order}"), "payments").await? {
///     Claim::Acquired(claim) => {
///         // The key is the same at every attempt, the number grows: a receiver that looks at either makes it once.
///         // bank.charge(claim.idempotency_key(), claim.fencing_number()).await?;
///         claim.complete().await?;
///     }
///     Claim::Done => {}
///     Claim::Held { until } => println!("somebody is at it, until {until} at least"),
///     Claim::Dead => println!("it was given up"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Ledger {
    log: Inorder,
    lease: Duration,
    repeats: bool,
}

/// What is claimed: an event, a uuid, or any text, which is hashed.
#[derive(Clone, Copy, Debug)]
pub struct LedgerKey(Asked);

/// The namespace of the uuids that texts are hashed to.
const TEXTS: Uuid = Uuid::from_u128(0x696e_6f72_6465_7200_8000_6c65_6467_6572);

impl LedgerKey {
    /// The event, or the uuid that stands for the key.
    pub fn event_id(&self) -> Uuid {
        self.0.event_id
    }
}

impl From<&Event> for LedgerKey {
    fn from(event: &Event) -> Self {
        Self(Asked { event_id: event.event_id(), position: Some(event.id()) })
    }
}

impl From<Uuid> for LedgerKey {
    fn from(event_id: Uuid) -> Self {
        Self(Asked { event_id, position: None })
    }
}

impl From<&str> for LedgerKey {
    fn from(text: &str) -> Self {
        Self::from(Uuid::new_v5(&TEXTS, text.as_bytes()))
    }
}

impl From<String> for LedgerKey {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

/// What became of a claim.
#[derive(Debug)]
pub enum Claim {
    /// It is ours: run it, and say what came of it.
    Acquired(Claimed),
    /// It was run.
    Done,
    /// Another's claim is valid, or the next attempt is not due, until then, by the database's clock.
    Held {
        /// When to ask again.
        until: OffsetDateTime,
    },
    /// It was given up: rejected, or out of attempts. An operator may have it tried again.
    Dead,
}

/// A claim that is ours. Dropped before it was settled, it is released in the background, so that another can go on at once.
#[must_use = "a claim that is dropped is released"]
pub struct Claimed {
    ledger: Ledger,
    handler: String,
    event_id: Uuid,
    token: i64,
    attempts: u32,
    settled: bool,
}

/// The key that a receiver of this effect is to be given at every attempt: a UUIDv5 of the handler's name within the event's id.
pub(crate) fn idempotency_key(handler: &str, event_id: Uuid) -> Uuid {
    Uuid::new_v5(&event_id, handler.as_bytes())
}

impl Inorder {
    /// The ledger, with leases of 30 s.
    pub fn ledger(&self) -> Ledger {
        Ledger { log: self.clone(), lease: Duration::from_secs(30), repeats: false }
    }
}

impl Ledger {
    /// How long a claim is valid, unless it is [extended](Claimed::extend): 10 ms to 24 h. Default 30 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Claims what was given up, too, and what is so old that the ledger has forgotten whether it was run: an operator has said
    /// that effects may repeat. What is recorded done stays done.
    #[must_use]
    pub fn accept_repeats(mut self) -> Self {
        self.repeats = true;
        self
    }

    /// Claims a key for a handler, where nobody has run it and nobody is at it.
    ///
    /// Cancel safety: dropped in the middle, the claim may have been made; its lease runs out.
    ///
    /// # Errors
    /// [`ErrorKind::Precondition`] for an event so old that the ledger has forgotten whether it was run;
    /// [`ErrorKind::Config`] for a handler's name that is empty or longer than 500 bytes, and for a lease out of its range;
    /// [`ErrorKind::Busy`] when others are at the same key all the time. Otherwise of the server and the network. After any
    /// error, do not run it.
    pub async fn claim(&self, key: impl Into<LedgerKey>, handler: &str) -> Result<Claim, Error> {
        let claims = self.claim_all([key], handler).await?;
        claims.into_iter().next().ok_or_else(|| unclaimed(handler))
    }

    /// Claims several keys for a handler in one statement: an answer for each, in their order. A key that is there twice is
    /// claimed once, and held for its second place.
    ///
    /// # Errors
    /// As for [`claim`](Self::claim).
    pub async fn claim_all<K: Into<LedgerKey>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        handler: &str,
    ) -> Result<Vec<Claim>, Error> {
        self.check(handler)?;
        let keys: Vec<Asked> = keys.into_iter().map(|key| key.into().0).collect();
        let mut found: HashMap<Uuid, Entry> = HashMap::new();
        let mut left = keys.clone();
        left.sort_by_key(|asked| asked.event_id);
        left.dedup_by_key(|asked| asked.event_id);
        // One that another was making at the same moment shows the next time.
        for _ in 0..TRIES {
            for entry in self.ask(&left, handler).await? {
                if entry.token.is_some() || entry.status.is_some() || entry.below_floor {
                    found.insert(entry.event_id, entry);
                }
            }
            left.retain(|asked| !found.contains_key(&asked.event_id));
            if left.is_empty() {
                break;
            }
        }
        keys.iter()
            .map(|asked| {
                let Some(entry) = found.get_mut(&asked.event_id) else { return Err(unclaimed(handler)) };
                let token = entry.token.take();
                if let Some(token) = token {
                    entry.status = Some("in_progress".into());
                    return Ok(Claim::Acquired(self.claimed(handler, entry, token)));
                }
                self.refusal(entry, handler)
            })
            .collect()
    }

    async fn ask(&self, keys: &[Asked], handler: &str) -> Result<Vec<Entry>, Error> {
        let on = Terms { handler, lease: self.lease, owner: None, repeat: self.repeats, row: None };
        let schema = self.log.schema();
        self.log.asking("claiming", async |client| table::claim(client, schema, keys, on).await).await
    }

    fn claimed(&self, handler: &str, entry: &Entry, token: i64) -> Claimed {
        Claimed {
            ledger: self.clone(),
            handler: handler.to_owned(),
            event_id: entry.event_id,
            token,
            attempts: u32::try_from(entry.attempts).unwrap_or(0),
            settled: false,
        }
    }

    fn refusal(&self, entry: &Entry, handler: &str) -> Result<Claim, Error> {
        match entry.status.as_deref() {
            Some("done") => Ok(Claim::Done),
            Some("dead") => Ok(Claim::Dead),
            Some(_) => Ok(Claim::Held {
                until: entry.until.unwrap_or_else(|| OffsetDateTime::now_utc() + self.lease),
            }),
            None => Err(Error::new(
                ErrorKind::Precondition,
                format!(
                    "claiming {} for {handler:?}: it lies at or below the floor, where what was done is forgotten; the effect could repeat",
                    entry.event_id
                ),
            )),
        }
    }

    /// Records that claims were run, in one statement for each handler. The answer is how many were still ours. As with
    /// [`Claimed::complete`], it begins at once, and goes on when the future is dropped.
    ///
    /// # Errors
    /// Of the server and the network: whether they are recorded is unknown.
    pub fn complete_all(
        &self,
        claims: Vec<Claimed>,
    ) -> impl Future<Output = Result<usize, Error>> + Send + 'static {
        self.settle_all(claims, |claim| claim.settlement("done"))
    }

    /// Records attempts that failed, to be made again after `pause`; as [`complete_all`](Self::complete_all) otherwise.
    ///
    /// # Errors
    /// As for [`complete_all`](Self::complete_all).
    pub fn fail_all(
        &self,
        claims: Vec<Claimed>,
        pause: Duration,
        error: impl fmt::Display,
    ) -> impl Future<Output = Result<usize, Error>> + Send + 'static {
        let error = error.to_string();
        self.settle_all(claims, move |claim| claim.failure("pending", pause, &error))
    }

    /// Gives claims back, at no cost; as [`complete_all`](Self::complete_all) otherwise.
    ///
    /// # Errors
    /// As for [`complete_all`](Self::complete_all).
    pub fn release_all(
        &self,
        claims: Vec<Claimed>,
    ) -> impl Future<Output = Result<usize, Error>> + Send + 'static {
        self.settle_all(claims, |claim| claim.settlement("pending"))
    }

    fn settle_all(
        &self,
        claims: Vec<Claimed>,
        settlement: impl Fn(&Claimed) -> Settlement,
    ) -> impl Future<Output = Result<usize, Error>> + Send + 'static {
        let mut by_handler: BTreeMap<String, Vec<Settlement>> = BTreeMap::new();
        for mut claim in claims {
            let settlement = settlement(&claim);
            claim.settled = true;
            by_handler.entry(std::mem::take(&mut claim.handler)).or_default().push(settlement);
        }
        let ledger = self.clone();
        to_the_end(async move {
            let mut held = 0;
            for (handler, settlements) in by_handler {
                held += ledger.settle(&handler, &settlements).await?.len();
            }
            Ok(held)
        })
    }

    async fn settle(&self, handler: &str, claims: &[Settlement]) -> Result<Vec<Uuid>, Error> {
        let schema = self.log.schema();
        self.log
            .asking("settling claims", async |client| table::settle(client, schema, handler, claims).await)
            .await
    }

    fn check(&self, handler: &str) -> Result<(), Error> {
        let wrong = if handler.is_empty() || handler.len() > 500 || handler.contains('\0') {
            format!("handler is {handler:?}; it must be 1 to 500 bytes long, without U+0000")
        } else if !(Duration::from_millis(10)..=Duration::from_secs(24 * 3_600)).contains(&self.lease) {
            format!("lease is {:?}; it must be 10 ms to 24 h", self.lease)
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Config, wrong))
    }
}

/// Begins at once, and goes on when the future is dropped: what was run is recorded, whatever becomes of whoever waits for it.
fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> impl Future<Output = Result<T, Error>> + Send + 'static {
    let begun = match tokio::runtime::Handle::try_current() {
        Ok(runtime) => Ok(runtime.spawn(work)),
        Err(_) => Err(work),
    };
    async move {
        match begun {
            Err(work) => work.await,
            Ok(task) => task.await.unwrap_or_else(|ended| match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Error::new(
                    ErrorKind::Ambiguous,
                    "settling claims: the runtime was shut down meanwhile, and whether they are settled is unknown",
                )),
            }),
        }
    }
}

/// How often a key is asked for that others are making at the same moment.
const TRIES: usize = 5;

fn unclaimed(handler: &str) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!("claiming for {handler:?}: others are making and taking away the same row; ask again"),
    )
}

impl Claimed {
    /// The event, or the uuid that stands for the key.
    pub fn event_id(&self) -> Uuid {
        self.event_id
    }

    /// The same at every attempt, and at no other effect: what a receiver tells repetitions by.
    pub fn idempotency_key(&self) -> Uuid {
        idempotency_key(&self.handler, self.event_id)
    }

    /// Greater than that of every claim on the same effect before: a receiver that has seen a greater one refuses.
    pub fn fencing_number(&self) -> i64 {
        self.token
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempts + 1
    }

    /// Records that it was run. False: the claim was lost, and nothing was changed; another may have run it, too.
    ///
    /// Cancel safety: it begins at once, and goes on when the future is dropped, polled or not. So it is with the others that
    /// settle a claim.
    ///
    /// # Errors
    /// Of the server and the network: whether it is recorded is unknown. Its lease runs out, and then it may run again.
    pub fn complete(self) -> impl Future<Output = Result<bool, Error>> + Send + 'static {
        let settlement = self.settlement("done");
        self.settle(settlement)
    }

    /// Records an attempt that failed, to be made again after `pause`. False: the claim was lost, and nothing was changed.
    ///
    /// # Errors
    /// As for [`complete`](Self::complete).
    pub fn fail(
        self,
        pause: Duration,
        error: impl fmt::Display,
    ) -> impl Future<Output = Result<bool, Error>> + Send + 'static {
        let settlement = self.failure("pending", pause, &error.to_string());
        self.settle(settlement)
    }

    /// Records that it is given up: nobody may claim it until an operator says so. False: the claim was lost.
    ///
    /// # Errors
    /// As for [`complete`](Self::complete).
    pub fn give_up(
        self,
        error: impl fmt::Display,
    ) -> impl Future<Output = Result<bool, Error>> + Send + 'static {
        let settlement = self.failure("dead", Duration::ZERO, &error.to_string());
        self.settle(settlement)
    }

    /// Gives the claim back; it costs no attempt, and another may claim it at once. False: the claim was lost.
    ///
    /// # Errors
    /// As for [`complete`](Self::complete).
    pub fn release(self) -> impl Future<Output = Result<bool, Error>> + Send + 'static {
        let settlement = self.settlement("pending");
        self.settle(settlement)
    }

    /// Renews the lease from now on. False: the claim was lost; stop, another may be at it.
    ///
    /// # Errors
    /// Of the server and the network; the lease stands as it was, or was renewed.
    pub async fn extend(&self) -> Result<bool, Error> {
        let Ledger { log, lease, .. } = &self.ledger;
        let (schema, claim) = (log.schema(), [(self.event_id, self.token)]);
        let extending = log.asking("extending a claim", async |client| {
            table::extend(client, schema, &self.handler, &claim, *lease).await
        });
        Ok(!extending.await?.is_empty())
    }

    fn settlement(&self, status: &'static str) -> Settlement {
        Settlement {
            event_id: self.event_id,
            token: self.token,
            status,
            attempts: 0,
            faults: 0,
            due_in: Duration::ZERO,
            error: None,
        }
    }

    fn failure(&self, status: &'static str, pause: Duration, error: &str) -> Settlement {
        Settlement {
            attempts: 1,
            due_in: pause.min(LONGEST_PAUSE),
            error: Some(shortened(error)),
            ..self.settlement(status)
        }
    }

    fn settle(
        mut self,
        settlement: Settlement,
    ) -> impl Future<Output = Result<bool, Error>> + Send + 'static {
        // Unanswered, it is left to the lease: a release could overtake it.
        self.settled = true;
        let (ledger, handler) = (self.ledger.clone(), std::mem::take(&mut self.handler));
        to_the_end(async move { Ok(!ledger.settle(&handler, &[settlement]).await?.is_empty()) })
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        // Without a runtime, the lease runs out.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (ledger, handler) = (self.ledger.clone(), std::mem::take(&mut self.handler));
        let settlement = self.settlement("pending");
        runtime.spawn(async move {
            if let Err(error) = ledger.settle(&handler, &[settlement]).await {
                tracing::debug!(
                    error = error.report(),
                    handler,
                    "a claim that was dropped runs out by itself"
                );
            }
        });
    }
}

impl fmt::Debug for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claimed")
            .field("handler", &self.handler)
            .field("event_id", &self.event_id)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_at_every_attempt_and_at_no_other_effect() {
        let (event, other) = (Uuid::from_u128(7), Uuid::from_u128(8));
        assert_eq!(idempotency_key("mail", event), idempotency_key("mail", event));
        assert_ne!(idempotency_key("mail", event), idempotency_key("mail", other));
        assert_ne!(idempotency_key("mail", event), idempotency_key("bill", event));
    }
}
