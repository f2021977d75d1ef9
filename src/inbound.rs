//! Messages from outside, each received once however often it is delivered.
//!
//! The `event_id` of a message is derived from where it comes from and from the id that it has there. A message that was received
//! is an event of that `event_id`, so a redelivery finds it there. What is to be handled because of it is recorded in the same
//! transaction.
//!
//! Invariants: I-5 (a redelivery records nothing, so it runs nothing), I-1 (a message is acknowledged only when its event and what
//! is to be handled are committed).
//!
//! Failure handling: what was not answered may be received again; that is what redelivery is for.
//!
//! Not its job: talking to whoever delivers, and running handlers.

use std::fmt;
use std::time::Duration;

use tokio_postgres::{Client, Transaction};
use uuid::Uuid;

use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind};
use crate::event::NewEvent;
use crate::metrics;
use crate::pg::deadline;
use crate::pg::events::{self, ReceivedAll};
use crate::queue::Pending;
use crate::store::{Inorder, check_sendable, to_int};

/// The namespace of the namespaces of sources: `696e6f72-6465-7200-8000-696e626f756e`.
const SOURCES: Uuid = Uuid::from_u128(0x696e_6f72_6465_7200_8000_696e_626f_756e);

/// How often a batch is received again for other reasons than that others received a part of it meanwhile.
const TRIES: u32 = 5;

/// Where messages come from: a feed, a webhook, a queue of somebody else's.
///
/// ```no_run
/// use inorder::{Inorder, NewEvent, Received};
///
/// # async fn example(log: Inorder, id: &str, body: String) -> Result<(), inorder::Error> {
/// let feed = log.inbound("usgs");
/// match feed.receive(id, NewEvent::from_json("quake.reported", body)).await? {
///     Received::New { id } => println!("event {id}; the queued consumers that want it are at it"),
///     Received::Duplicate { id } => println!("redelivered; it is event {id}"),
///     Received::Mismatch { id } => println!("another message under this id: event {id}"),
/// }
/// // Acknowledge it now: it is committed.
/// # Ok(())
/// # }
/// ```
///
/// # The `event_id`
///
/// It is the UUIDv5 of the message's external id in a namespace of the source's own, which is the UUIDv5 of the source's name in
/// the namespace `696e6f72-6465-7200-8000-696e626f756e`; names as UTF-8. Every language can derive it; in SQL,
/// `inorder.inbound_event_id(source, external_id)` does. The `event_id` that the event had before is not used.
#[derive(Clone, Debug)]
pub struct Inbound {
    log: Inorder,
    source: String,
    namespace: Uuid,
}

/// What became of a message. Any of them may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a mismatch is a value, not an error"]
pub enum Received {
    /// It is an event now, and the queued consumers that want it handle it.
    New {
        /// Of the event.
        id: i64,
    },
    /// It had been received before, with the same content; nothing was done.
    Duplicate {
        /// Of the event.
        id: i64,
    },
    /// It had been received before, with other content; nothing was done. Where a source edits its messages, their version belongs
    /// into the external id.
    Mismatch {
        /// Of the event.
        id: i64,
    },
}

impl Received {
    /// The event's place in the log.
    pub fn id(self) -> i64 {
        let (Self::New { id } | Self::Duplicate { id } | Self::Mismatch { id }) = self;
        id
    }

    /// Was it received just now?
    pub fn is_new(self) -> bool {
        matches!(self, Self::New { .. })
    }
}

impl Inorder {
    /// Receives from a source. Its name is part of every `event_id`, so it must never change: 1 to 200 bytes.
    pub fn inbound(&self, source: impl Into<String>) -> Inbound {
        let source = source.into();
        let namespace = Uuid::new_v5(&SOURCES, source.as_bytes());
        Inbound { log: self.clone(), source, namespace }
    }
}

impl Inbound {
    /// The `event_id` of the message with this external id.
    pub fn event_id(&self, external_id: &str) -> Uuid {
        Uuid::new_v5(&self.namespace, external_id.as_bytes())
    }

    /// Receives a message, in a transaction of its own: appends it, and records it for every queued consumer that wants its type.
    /// Dispatchers of this process run it at once, others find it by their poll. One round trip.
    ///
    /// The event is created by the source, unless it says otherwise.
    ///
    /// Cancel safety: when the future is dropped, the message may or may not be received; receive it again.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] for input that the log does not take: it never will, so keep such a message elsewhere. After any
    /// other error, [`ErrorKind::Ambiguous`] included, receive it again.
    pub async fn receive(&self, external_id: &str, event: NewEvent) -> Result<Received, Error> {
        let received = self.receive_all([(external_id, event)]).await?;
        received.first().copied().ok_or_else(|| self.unanswered(0, 1))
    }

    /// As [`receive`](Self::receive), in the caller's transaction. [`dispatch`](Pending::dispatch) what is pending after the
    /// commit.
    ///
    /// # Errors
    /// As for [`receive`](Self::receive); a refusal leaves the transaction usable.
    pub async fn receive_in(
        &self,
        tx: &Transaction<'_>,
        external_id: &str,
        event: NewEvent,
    ) -> Result<(Received, Pending), Error> {
        let (received, pending) = self.receive_all_in(tx, [(external_id, event)]).await?;
        let one = received.first().copied().ok_or_else(|| self.unanswered(0, 1))?;
        Ok((one, pending))
    }

    /// Receives up to 10,000 messages in one transaction of its own and one round trip: an answer for each, in their order. All are
    /// received or, after an error, none. A message that is there twice is received once.
    ///
    /// Batches of one source are received one after the other.
    ///
    /// Cancel safety: as for [`receive`](Self::receive).
    ///
    /// # Errors
    /// As for [`receive`](Self::receive); the message names the external id.
    pub async fn receive_all<T: Into<String>>(
        &self,
        messages: impl IntoIterator<Item = (T, NewEvent)>,
    ) -> Result<Vec<Received>, Error> {
        let batch = self.batch(messages)?;
        if batch.events.is_empty() {
            return Ok(Vec::new());
        }
        let backoff = Backoff::exponential(Duration::from_millis(5)).up_to(Duration::from_millis(100));
        // Whoever overtakes it has received one of its messages for good: it is overtaken no more often than it has messages.
        let most = u32::try_from(batch.events.len()).map_or(u32::MAX, |n| n.saturating_add(TRIES));
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_to_receive(&batch).await {
                Err(error) if error.is_retryable() && tries < most => {
                    tracing::debug!(source = self.source, error = error.report(), "receiving again");
                    tokio::time::sleep(backoff.pause(tries)).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// As [`receive_all`](Self::receive_all), in the caller's transaction. Other batches of the source wait for its end.
    ///
    /// # Errors
    /// As for [`receive`](Self::receive); and a retryable [`ErrorKind::Database`] when others received some of the messages
    /// meanwhile: roll back and try again.
    pub async fn receive_all_in<T: Into<String>>(
        &self,
        tx: &Transaction<'_>,
        messages: impl IntoIterator<Item = (T, NewEvent)>,
    ) -> Result<(Vec<Received>, Pending), Error> {
        let batch = self.batch(messages)?;
        if batch.events.is_empty() {
            return Ok((Vec::new(), Pending::new(&self.log, Vec::new())));
        }
        let what = Receiving { count: batch.events.len(), source: &self.source };
        let answer = deadline(self.log.limit(), &what, self.ask(tx.client(), &batch)).await?;
        self.understand(answer, &batch)
    }

    async fn try_to_receive(&self, batch: &Batch) -> Result<Vec<Received>, Error> {
        let what = Receiving { count: batch.events.len(), source: &self.source };
        let question = async |client: &Client| self.ask(client, batch).await;
        let (answer, commit) = self.log.alone(&what, question).await?;
        let (received, pending) = self.understand(answer, batch)?;
        if received.iter().any(|one| one.is_new()) {
            commit?;
        }
        pending.dispatch();
        Ok(received)
    }

    async fn ask(&self, client: &Client, batch: &Batch) -> Result<ReceivedAll, tokio_postgres::Error> {
        let external_ids: Vec<&str> = batch.external_ids.iter().map(String::as_str).collect();
        let max_bytes = to_int(self.log.config().max_payload_bytes);
        let schema = self.log.schema();
        events::receive(client, schema, &self.source, &external_ids, &batch.events, max_bytes).await
    }

    fn batch<T: Into<String>>(
        &self,
        messages: impl IntoIterator<Item = (T, NewEvent)>,
    ) -> Result<Batch, Error> {
        let (mut external_ids, mut events) = (Vec::new(), Vec::new());
        for (external_id, mut event) in messages {
            let external_id: String = external_id.into();
            event.event_id = self.event_id(&external_id);
            event.created_by.get_or_insert_with(|| self.source.clone());
            external_ids.push(external_id);
            events.push(event);
        }
        for text in external_ids.iter().chain([&self.source]) {
            if text.contains('\0') {
                return Err(refused(format!("{text:?} contains U+0000")));
            }
        }
        check_sendable(&events, self.log.config().max_payload_bytes)?;
        Ok(Batch { external_ids, events })
    }

    fn understand(&self, answer: ReceivedAll, batch: &Batch) -> Result<(Vec<Received>, Pending), Error> {
        if let Some(why) = answer.refusal {
            return Err(refused(why));
        }
        let answers = answer.outcomes.iter().map(|(outcome, id)| match (outcome.as_str(), *id) {
            ("new", id) => Ok(Received::New { id }),
            ("duplicate", id) => Ok(Received::Duplicate { id }),
            ("mismatch", id) => Ok(Received::Mismatch { id }),
            (other, _) => Err(Error::new(
                ErrorKind::Migration,
                format!(
                    "receive_events answered {other:?}, which this version does not know; is the schema newer than the library?"
                ),
            )),
        });
        let received: Vec<Received> = answers.collect::<Result<_, _>>()?;
        if received.len() != batch.events.len() {
            return Err(self.unanswered(received.len(), batch.events.len()));
        }
        self.count(&received);
        Ok((received, Pending::new(&self.log, answer.handlers)))
    }

    fn count(&self, received: &[Received]) {
        let (mut new, mut duplicates, mut mismatches) = (0, 0, 0);
        for one in received {
            match one {
                Received::New { .. } => new += 1,
                Received::Duplicate { .. } => duplicates += 1,
                Received::Mismatch { .. } => mismatches += 1,
            }
        }
        for (result, count) in [("new", new), ("duplicate", duplicates), ("mismatch", mismatches)] {
            if count > 0 {
                metrics::received(&self.source, result, count);
            }
        }
    }

    fn unanswered(&self, answered: usize, asked: usize) -> Error {
        Error::new(
            ErrorKind::Migration,
            format!(
                "receiving from {:?}: {answered} of {asked} message(s) answered; is the schema newer than the library?",
                self.source
            ),
        )
    }
}

/// Messages under their external ids, and the events that they become.
struct Batch {
    external_ids: Vec<String>,
    events: Vec<NewEvent>,
}

fn refused(why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Refused, format!("receive refused: {why}"))
}

/// What is being attempted, in words.
struct Receiving<'a> {
    count: usize,
    source: &'a str,
}

impl fmt::Display for Receiving<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "receiving a message from {:?}", self.source),
            n => write!(f, "receiving {n} messages from {:?}", self.source),
        }
    }
}
