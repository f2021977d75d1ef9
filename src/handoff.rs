//! The hand-off: who runs an event whose offer to a queue was ambiguous.
//!
//! A program offers an event to a queue, and gets a time-out: the queue has it, or not, or will. If the program runs the event
//! itself, the queue may deliver it, too; if it does not, nobody may. [`Handoff`] lets one side have it.
//!
//! ```text
//!            queue answered
//!   open ────────────────────────▶ close: the queue has it
//!    │                                                      take_direct
//!    ├── every attempt ambiguous, and no delivery came ──────────────────▶ true: run it here. Deliveries are dropped from now on
//!    └── a delivery came first ──────────────────────────────────────────▶ false: it is run there
//! ```
//!
//! Both sides may be in different processes, so neither can know by itself that the other has not begun. The protocol: **whoever wants
//! to run an event writes a row first**, `take_direct` as well as `delivering`, in one statement that inserts the row or reads the
//! one that is there. Of two rows for one key the unique index lets only the first in, so exactly one side is told to run it, however
//! the processes are timed, and whichever of them is restarted in between. A side that finds its own row may run the event (again: it
//! may have died before it had). The row of the direct path also says whether it has run: one that has not is found by
//! [`Handoff::unfinished`], since deliveries are dropped from the moment that the row is there.
//!
//! Within a process a decision is kept in memory, too, where the first is final: of two statements under way for one key, the answer that
//! comes second is measured by what the first one left in memory.
//!
//! Invariants: I-5. Failure handling: a table that does not answer is told in one warning and a metric, and memory decides alone
//! until it is back: then two *processes*, or one before and after a restart, may both run an event; [`Handoff::run_once`] writes down
//! later what was decided meanwhile, and says where both sides ran. A strict hand-off returns the error instead. After a few failures in
//! a row no decision waits for the table any more, until it has answered a probe (`breaker.rs`). A sweep now and then and the probes
//! are made by a task of the hand-off's own, which ends with its last clone (`housekeeping.rs`).
//!
//! Not its job: to run anything, or to make one side run an event once only; that is the ledger's.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::AbortHandle;
use uuid::Uuid;

use crate::error::{Error, ErrorKind};
use crate::metrics;
use crate::store::Inorder;

mod breaker;
mod builder;
mod decision;
mod housekeeping;
mod memory;
#[cfg(test)]
mod model;
mod sweep;
mod table;

pub use builder::HandoffBuilder;
pub use sweep::HandoffSweep;

use builder::Settings;
use decision::{Answer, Side};
use memory::Memory;
use table::Table;

/// Compiles what the page says.
#[cfg(doctest)]
#[doc = include_str!("../docs/handoff.md")]
struct HandoffPage;

/// Decides, for each event, whether the program that offers it to a queue runs it or the queue's delivery does.
///
/// ```no_run
/// use inorder::{Delivery, Error, Event, Handoff, Offer};
/// # #[derive(Debug)] enum Sent { Accepted, Unknown }
/// # async fn offer_to_queue(_: &Event) -> Sent { Sent::Unknown }
/// # async fn run(_: &Event) {}
///
/// /// The side that offers.
/// async fn offer(handoff: &Handoff, event: &Event) -> Result<(), Error> {
///     let key = event.event_id();
///     let direct = match handoff.open(key)? {
///         Offer::Open => {
///             for _attempt in 1..=3 {
///                 if let Sent::Accepted = offer_to_queue(event).await {
///                     handoff.close(key);
///                     return Ok(());
///                 }
///             }
///             handoff.take_direct(key).await? // every attempt was ambiguous
///         }
///         Offer::RunDirectly => true, // an earlier call was told so, and has not run it
///         Offer::Taken => false,
///     };
///     if direct {
///         run(event).await;
///         handoff.ran_directly(key).await?;
///     }
///     Ok(())
/// }
///
/// /// The side that takes deliveries, in this process or in another.
/// async fn deliver(handoff: &Handoff, event: &Event) -> Result<(), Error> {
///     match handoff.delivering(event.event_id()).await? {
///         Delivery::Deliver => run(event).await,
///         Delivery::HandledDirectly => {} // acknowledge it all the same
///         Delivery::NotYet => return Ok(()), // do not acknowledge it
///     }
///     // … acknowledge it
///     Ok(())
/// }
/// ```
///
/// Cloning is cheap, and clones share their memory: make one for each scope in a process, and clone it. After a crash, an event whose
/// offer had not ended is to be offered again, and what [`unfinished`](Self::unfinished) returns is to be run.
#[derive(Clone)]
pub struct Handoff {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    table: Table,
    memory: Mutex<Memory>,
    /// One sweep at a time, so that nothing is told twice.
    sweeping: tokio::sync::Mutex<()>,
    housekeeping: Mutex<Option<AbortHandle>>,
}

/// What [`Handoff::open`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "an event that is to be run directly must not be offered: its delivery would be dropped"]
pub enum Offer {
    /// Offer it.
    Open,
    /// In this process the direct path has taken it, and has not run it yet: run it, without an offer.
    RunDirectly,
    /// In this process it was given to a delivery, or run directly: nothing is to be done.
    Taken,
}

/// What [`Handoff::delivering`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "what was handled directly must not be run again"]
pub enum Delivery {
    /// Run it. The direct path will not.
    Deliver,
    /// The direct path has taken it: drop the delivery, and acknowledge it.
    HandledDirectly,
    /// The direct path has taken it while the table was away, and has not run it: neither run nor acknowledge it, and let the queue
    /// deliver it again later. If this process died now, the delivery would be all that is left of the event.
    NotYet,
}

/// A batch of deliveries without those that the direct path has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "what was handled directly must not be run again"]
pub struct Sifted<T> {
    /// To be run, in the order of the batch.
    pub deliver: Vec<T>,
    /// To be dropped and acknowledged.
    pub handled_directly: Vec<T>,
    /// To be delivered again later ([`Delivery::NotYet`]); empty while the table answers.
    pub not_yet: Vec<T>,
}

impl Inorder {
    /// A hand-off. Scopes have nothing to do with each other: name one for each queue and each thing that is done with its events.
    pub fn handoff(&self, scope: impl Into<String>) -> HandoffBuilder {
        HandoffBuilder::new(self.clone(), scope.into())
    }
}

impl Handoff {
    /// Before the first attempt to offer an event. Looks only into memory. For an event whose offer is open it changes nothing.
    ///
    /// An offer whose task was dropped is still open: [`close`](Self::close) it, or take it directly.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while `max_entries` offers are open: an open offer never leaves memory, so end some.
    pub fn open(&self, key: Uuid) -> Result<Offer, Error> {
        let offer = self.remembering(|memory| memory.open(key)).map_err(|_| {
            Error::new(
                ErrorKind::Busy,
                format!(
                    "opening the offer of {key} in hand-off {:?}: {} offers are open, and memory may hold no more; close them, take \
                     them directly, or raise max_entries",
                    self.scope(),
                    self.inner.settings.max_entries
                ),
            )
        })?;
        if offer == Offer::Open {
            metrics::handoff(self.scope(), "opened", 1);
        }
        Ok(offer)
    }

    /// The queue answered that it has the event: it is a delivery's.
    pub fn close(&self, key: Uuid) {
        self.remembering(|memory| memory.close(key));
        metrics::handoff(self.scope(), "closed", 1);
    }

    /// Every attempt was ambiguous: does the direct path have the event? True: run it, and call
    /// [`ran_directly`](Self::ran_directly) afterwards; every delivery from now on is dropped, and a durable row says so. False: a
    /// delivery has it, or the direct path has run it before. The offer is over in either case.
    ///
    /// Asked again, it answers the same until the event was run.
    ///
    /// Cancel safe: dropped, it may have taken the event, which another call or [`unfinished`](Self::unfinished) finds out.
    ///
    /// # Errors
    /// Only when strict: that of the table, and the offer stays open. Calling again is harmless.
    pub async fn take_direct(&self, key: Uuid) -> Result<bool, Error> {
        let direct = self.decide(&[key], Side::Direct).await? == [Answer::Run];
        metrics::handoff(self.scope(), if direct { "direct" } else { "left_to_delivery" }, 1);
        Ok(direct)
    }

    /// The direct path has run an event that it had taken.
    ///
    /// Cancel safe: memory knows it at once, and [`run_once`](Self::run_once) tells the table if this did not.
    ///
    /// # Errors
    /// Only when strict: that of the table. Memory knows it all the same; until the table does, the event is
    /// [`unfinished`](Self::unfinished) for other processes, and for this one after a restart.
    pub async fn ran_directly(&self, key: Uuid) -> Result<(), Error> {
        self.keep_house();
        // First, so that a call that is dropped is not forgotten.
        self.remembering(|memory| memory.ran(key, None));
        match self.inner.table.note_run(&[key]).await {
            Ok(told) => {
                let alone = self.remembering(|memory| memory.ran(key, told.get(&key).copied()));
                self.report_both_sides(usize::from(!alone));
            }
            Err(error) if self.inner.settings.strict => return Err(error),
            Err(_) => metrics::handoff_degraded(self.scope(), 1),
        }
        metrics::handoff(self.scope(), "ran_directly", 1);
        Ok(())
    }

    /// At delivery, before the event is run: has the direct path taken it? If not, the delivery takes it now, also from an offer that
    /// is still open, and a durable row says so.
    ///
    /// Cancel safe: dropped, it may have taken the event for the delivery; the queue delivers it again.
    ///
    /// # Errors
    /// Only when strict: that of the table. Let the queue deliver the event again.
    pub async fn delivering(&self, key: Uuid) -> Result<Delivery, Error> {
        let sifted = self.leave_out_direct(vec![key], |key| *key).await?;
        Ok(match (sifted.deliver.is_empty(), sifted.not_yet.is_empty()) {
            (false, _) => Delivery::Deliver,
            (true, true) => Delivery::HandledDirectly,
            (true, false) => Delivery::NotYet,
        })
    }

    /// [`delivering`](Self::delivering) for a batch, in one statement. What is dropped is counted and logged.
    ///
    /// # Errors
    /// As for [`delivering`](Self::delivering); then for the whole batch.
    pub async fn leave_out_direct<T>(
        &self,
        batch: Vec<T>,
        key_of: impl Fn(&T) -> Uuid,
    ) -> Result<Sifted<T>, Error> {
        let keys: Vec<Uuid> = batch.iter().map(key_of).collect();
        let answers = self.decide(&keys, Side::Delivery).await?;
        let mut sifted = Sifted {
            deliver: Vec::with_capacity(batch.len()),
            handled_directly: Vec::new(),
            not_yet: Vec::new(),
        };
        for ((delivery, answer), key) in batch.into_iter().zip(answers).zip(keys) {
            match answer {
                Answer::Run => sifted.deliver.push(delivery),
                Answer::Leave => {
                    tracing::info!(scope = self.scope(), event_id = %key, "a delivery is dropped: the direct path has taken the event");
                    sifted.handled_directly.push(delivery);
                }
                Answer::NotYet => sifted.not_yet.push(delivery),
            }
        }
        metrics::handoff(self.scope(), "delivered", sifted.deliver.len());
        metrics::handoff(self.scope(), "handled_directly", sifted.handled_directly.len());
        metrics::handoff(self.scope(), "not_yet", sifted.not_yet.len());
        Ok(sifted)
    }

    /// For each key, what the side that asks is to do.
    async fn decide(&self, keys: &[Uuid], asking: Side) -> Result<Vec<Answer>, Error> {
        let at_hand: Vec<Option<Answer>> =
            self.remembering(|memory| keys.iter().map(|key| memory.at_hand(*key, asking)).collect());
        let unknown: Vec<Uuid> =
            keys.iter().zip(&at_hand).filter(|(_, known)| known.is_none()).map(|(key, _)| *key).collect();
        if unknown.is_empty() {
            return Ok(at_hand.into_iter().flatten().collect());
        }
        self.keep_house();
        let told = match self.inner.table.decide(&unknown, asking).await {
            Ok(told) => told,
            Err(error) if self.inner.settings.strict => return Err(error),
            Err(_) => {
                metrics::handoff_degraded(self.scope(), unknown.len());
                HashMap::new()
            }
        };
        let strict = self.inner.settings.strict;
        let answers: Option<Vec<Answer>> = self.remembering(|memory| {
            let decide = |key: &Uuid| memory.decide(*key, asking, told.get(key).copied(), strict);
            let mut decided = unknown.iter().map(decide);
            at_hand.into_iter().map(|known| known.or_else(|| decided.next().flatten())).collect()
        });
        answers.ok_or_else(|| {
            let what = format!("deciding {} events of hand-off {:?}", keys.len(), self.scope());
            Error::new(
                ErrorKind::Database,
                format!("{what}: the table left some out, so it is not told who has them"),
            )
        })
    }

    fn scope(&self) -> &str {
        &self.inner.table.scope
    }

    /// Does something with memory, and keeps it within its bound.
    fn remembering<T>(&self, work: impl FnOnce(&mut Memory) -> T) -> T {
        let mut memory = self.inner.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let value = work(&mut memory);
        let forgotten = memory.make_room();
        metrics::handoff_memory(self.scope(), memory.open_offers(), memory.claims());
        drop(memory);
        if forgotten == 0 {
            return value;
        }
        metrics::handoff(self.scope(), "forgotten", forgotten);
        if !self.inner.table.forgetting_is_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                scope = self.scope(),
                "memory is full: claims that the table does not have are forgotten, and their events may be run by both sides"
            );
        }
        value
    }

    fn report_both_sides(&self, events: usize) {
        if events > 0 {
            metrics::handoff(self.scope(), "both_sides", events);
            tracing::error!(
                scope = self.scope(),
                events,
                "both sides were told to run events: the table did not answer when one of them asked"
            );
        }
    }
}

impl fmt::Debug for Handoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handoff({:?})", self.scope())
    }
}
