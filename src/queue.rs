//! What queued consumers are to handle, recorded by whoever appends it.
//!
//! ```text
//!  producer's transaction: event + pending row ──commit──▶ dispatch ──▶ swept at once, in this process
//!                                                  │
//!                                                  └─ or the producer died ──▶ swept when a poll finds it, anywhere
//! ```
//!
//! A pending row is an event that is handled early: the consumer's own pass comes to it later, finds the row, and leaves it
//! alone.
//!
//! Invariants: I-5 (one row for event and handler, whoever makes it), I-1 (with the transaction the row is there or not, as the
//! event is).
//!
//! Failure handling: nothing hangs on [`Pending::dispatch`] but time.
//!
//! Not its job: running anything (the module `delivery::queue`), and when to sweep (`dispatcher::sweeper`).

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;
use tokio_postgres::Transaction;

use crate::error::{Error, ErrorKind};
use crate::pg::{self, On, deadline};
use crate::store::Inorder;

/// Events that queued consumers are to handle as soon as the transaction commits.
#[must_use = "call dispatch() after the commit, or the events wait for the next poll"]
pub struct Pending {
    log: Inorder,
    handlers: Vec<String>,
}

impl Pending {
    pub(crate) fn new(log: &Inorder, handlers: Vec<String>) -> Self {
        Self { log: log.clone(), handlers }
    }

    /// After the commit: dispatchers of this log in this process run the events at once. Those of other processes find them by
    /// their poll, if nobody did before.
    ///
    /// Called before the commit, or never, it does no harm: the next poll finds what was committed.
    pub fn dispatch(self) {
        self.log.nudges().nudge(&self.handlers);
    }

    /// Which consumers have something to do, instances as `name@instance`. Empty where everything had been recorded before, or
    /// nobody wants it.
    pub fn consumers(&self) -> &[String] {
        &self.handlers
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pending").field(&self.handlers).finish()
    }
}

impl Inorder {
    /// Records, in the transaction that appended them, that a queued consumer is to handle events: at once when it commits,
    /// however far behind the consumer's position is, and no second time when that comes to them. Nothing when it rolls back.
    /// Whoever dies, a dispatcher that runs the consumer finds the rows and finishes. One round trip.
    ///
    /// It handles the events whatever types it wants. Where it is to handle the events of a stream
    /// [in order](crate::Consumer::in_stream_order), one waits until the consumer has passed what is in front of it. Instances that
    /// are disabled or expired are left to their positions.
    ///
    /// ```no_run
    /// # use inorder::{Append, ExpectedVersion, Inorder, NewEvent};
    /// # async fn example(log: Inorder, placed: NewEvent) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut client = log.get().await?;
    /// let tx = client.transaction().await?;
    /// let Append::Appended(ids) = log.append_in(&tx, ExpectedVersion::NoStream, &[placed]).await? else {
    ///     return Err("placed before".into());
    /// };
    /// let pending = log.record_pending_in(&tx, &ids, "receipts").await?;
    /// tx.commit().await?;
    /// pending.dispatch(); // the receipt is on its way now
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Precondition`] where no queued consumer of this name is registered, an id is none of the log, or lies so far back
    /// that it is forgotten whether it was run; nothing was recorded, and the transaction goes on. Otherwise of the server and the
    /// network.
    pub async fn record_pending_in(
        &self,
        tx: &Transaction<'_>,
        ids: &[i64],
        consumer: &str,
    ) -> Result<Pending, Error> {
        let recording = pg::ledger::record_pending(tx.client(), self.schema(), consumer, ids);
        let recorded = deadline(self.limit(), On("recording events for", consumer), recording).await?;
        match recorded.refusal {
            None => Ok(Pending::new(self, recorded.handlers)),
            Some(why) => Err(Error::new(
                ErrorKind::Precondition,
                format!("recording {} event(s) for consumer {consumer:?}: {why}", ids.len()),
            )),
        }
    }
}

/// Wakes the sweepers of this process. Numbers that grow: a nudge while nobody waits is not lost.
#[derive(Default)]
pub(crate) struct Nudges(Mutex<HashMap<String, watch::Sender<u64>>>);

impl Nudges {
    /// Changes with every nudge to a handler.
    pub(crate) fn listen(&self, handler: &str) -> watch::Receiver<u64> {
        let mut handlers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        handlers.entry(handler.to_owned()).or_default().subscribe()
    }

    pub(crate) fn nudge(&self, handlers: &[String]) {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for sender in handlers.iter().filter_map(|handler| known.get(handler)) {
            sender.send_modify(|nudges| *nudges += 1);
        }
    }
}
