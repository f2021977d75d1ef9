//! Appending. What an append is lives in `sql/functions/append.sql`, once for every language; here its answer is put
//! into Rust, and refused what cannot be sent.

use std::fmt;

use tokio_postgres::{Client, Transaction};

use crate::error::{Error, ErrorKind};
use crate::event::{Append, ExpectedVersion, NewEvent};
use crate::pg::events::{self, Alone, Appended};
use crate::pg::{deadline, is_connection_lost, throw_away};
use crate::store::Inorder;

/// Events that go into one append.
const MAX_BATCH: usize = 10_000;
/// Bytes of JSON text that go into one append of several events.
const MAX_BATCH_BYTES: usize = 64 * 1024 * 1024;

impl Inorder {
    /// Appends events, all or nothing, in the caller's transaction: they become part of the log when it commits, and never
    /// when it rolls back. One round trip.
    ///
    /// Every answer, refusals included, leaves the transaction usable. Writers of one stream wait for each other until the
    /// end of their transactions, so commit soon. Under REPEATABLE READ and SERIALIZABLE a concurrent writer of the same
    /// stream or event is an error that [is retryable](Error::is_retryable), as the isolation level has it.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] for input that the log does not take; nothing was written. A retryable
    /// [`ErrorKind::Database`] when other transactions wrote some of the events meanwhile: roll back and try again.
    pub async fn append_in(
        &self,
        tx: &Transaction<'_>,
        expected: ExpectedVersion,
        events: &[NewEvent],
    ) -> Result<Append, Error> {
        self.append_on(tx.client(), expected, events).await
    }

    /// As [`append_in`](Self::append_in), on the session that the transaction is open on.
    pub(crate) async fn append_on(
        &self,
        client: &Client,
        expected: ExpectedVersion,
        events: &[NewEvent],
    ) -> Result<Append, Error> {
        let what = Appending(events.len());
        let max_bytes = self.config().max_payload_bytes;
        check_sendable(events, max_bytes)?;
        let append = events::append(client, self.schema(), number(expected)?, events, to_int(max_bytes));
        into_append(deadline(self.limit(), &what, append).await?, expected)
    }

    /// Appends events, all or nothing, in a transaction of its own. One round trip.
    ///
    /// Call it again with the same events (the same `event_id`s) when the outcome is unknown: what went through is answered
    /// as [`Append::AlreadyAppended`].
    ///
    /// Cancel safety: when the future is dropped the events may or may not be appended.
    ///
    /// # Errors
    /// As for [`append_in`](Self::append_in); and [`ErrorKind::Ambiguous`] when the answer to the commit never came.
    pub async fn append(&self, expected: ExpectedVersion, events: &[NewEvent]) -> Result<Append, Error> {
        let what = Appending(events.len());
        let max_bytes = self.config().max_payload_bytes;
        check_sendable(events, max_bytes)?;
        let (number, schema) = (number(expected)?, self.schema());
        let question =
            async |client: &Client| events::append(client, schema, number, events, to_int(max_bytes)).await;
        let (appended, commit) = self.alone(&what, question).await?;
        let appended = into_append(appended, expected)?;
        if matches!(appended, Append::Appended(_) | Append::Completed { .. }) {
            commit?;
        }
        // Of another answer, nothing was written that a commit could lose.
        Ok(appended)
    }

    /// Asks something in a READ COMMITTED transaction of its own, in one round trip: the answer, and what came of the commit.
    pub(crate) async fn alone<T>(
        &self,
        what: &(impl fmt::Display + Sync),
        question: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<(T, Result<(), Error>), Error> {
        let client = self.client(&what.to_string()).await?;
        let asking = events::alone(&client, question(&client));
        let Ok(Alone { answer, commit }) = tokio::time::timeout(self.limit(), asking).await else {
            // Its answers may still come; nobody else may get them.
            throw_away(client);
            return Err(Error::new(
                ErrorKind::Ambiguous,
                format!(
                    "{what}: no answer to the commit within {:.1} s; do the same again to find out",
                    self.limit().as_secs_f64()
                ),
            ));
        };
        let answer = answer.map_err(|e| {
            // The commit had been sent along with it.
            if is_connection_lost(&e) { ambiguous(what, e) } else { Error::statement(what, e) }
        })?;
        let commit = commit.map_err(|e| {
            if is_connection_lost(&e) {
                ambiguous(what, e)
            } else {
                Error::statement(format!("committing after {what}"), e)
            }
        });
        Ok((answer, commit))
    }
}

/// What is being attempted, in words.
struct Appending(usize);

impl fmt::Display for Appending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("appending an event"),
            n => write!(f, "appending {n} events"),
        }
    }
}

fn ambiguous(what: &dyn fmt::Display, e: tokio_postgres::Error) -> Error {
    Error::with_source(
        ErrorKind::Ambiguous,
        format!(
            "{what}: the connection was lost before the commit was answered; do the same again to find out"
        ),
        e,
    )
}

/// The number that stands for an expectation in SQL.
fn number(expected: ExpectedVersion) -> Result<Option<i64>, Error> {
    match expected {
        ExpectedVersion::Any => Ok(None),
        ExpectedVersion::NoStream => Ok(Some(0)),
        ExpectedVersion::Exists => Ok(Some(-1)),
        ExpectedVersion::Exact(version) if version < 0 => Err(Error::new(
            ErrorKind::Refused,
            format!("append refused: expected version {version}; versions begin at 1"),
        )),
        ExpectedVersion::Exact(version) => Ok(Some(version)),
    }
}

pub(crate) fn to_int(max_bytes: usize) -> i32 {
    i32::try_from(max_bytes).unwrap_or(i32::MAX)
}

/// What the server could not even be asked: text with U+0000, and more than a message holds.
pub(crate) fn check_sendable(events: &[NewEvent], max_bytes: usize) -> Result<(), Error> {
    let refused = |why: String| Err(Error::new(ErrorKind::Refused, format!("append refused: {why}")));
    let count = events.len();
    if count > MAX_BATCH {
        return refused(format!(
            "a batch of {count} events; at most {MAX_BATCH} go into one append: split it"
        ));
    }
    let mut bytes = 0;
    for (index, event) in events.iter().enumerate() {
        let (stream_type, stream_id) = event.stream.as_ref().map_or(("", ""), |(t, i)| (t, i));
        let names = [
            ("event_type", event.event_type.as_str()),
            ("stream_type", stream_type),
            ("stream_id", stream_id),
            ("tenant_id", &event.tenant_id),
            ("created_by", event.created_by.as_deref().unwrap_or_default()),
        ];
        let documents = [("payload", &event.payload), ("metadata", &event.metadata)];
        let why = if let Some((name, _)) = names.iter().find(|(_, text)| text.contains('\0')) {
            Some(format!("{name} contains U+0000"))
        } else if let Some((name, text)) = documents.iter().find(|(_, text)| text.len() > max_bytes) {
            Some(format!(
                "{name} has {} bytes; at most {max_bytes}: keep the large part elsewhere, or raise the limit",
                text.len()
            ))
        } else {
            documents
                .iter()
                .find(|(_, text)| text.contains('\0'))
                .map(|(name, _)| format!("{name}: not JSON: it contains U+0000"))
        };
        if let Some(why) = why {
            return refused(format!(
                "event {} of {count} (event_id {}, event_type '{}'): {why}",
                index + 1,
                event.event_id,
                event.event_type.escape_default(),
            ));
        }
        bytes += event.payload.len() + event.metadata.len();
    }
    let most = MAX_BATCH_BYTES.max(max_bytes);
    if count > 1 && bytes > most {
        return refused(format!("a batch of {bytes} bytes; at most {most} go into one append: split it"));
    }
    Ok(())
}

fn into_append(answer: Appended, expected: ExpectedVersion) -> Result<Append, Error> {
    match (answer.outcome.as_str(), answer.mismatch) {
        ("appended", _) => Ok(Append::Appended(answer.ids)),
        ("already_appended", _) => Ok(Append::AlreadyAppended(answer.ids)),
        ("completed", _) => Ok(Append::Completed { ids: answer.ids, already: answer.already }),
        ("conflict", _) => Ok(Append::Conflict { expected, actual: answer.actual }),
        ("mismatch", Some((event_id, id))) => Ok(Append::Mismatch { event_id, id }),
        ("refused", _) => Err(Error::new(ErrorKind::Refused, format!("append refused: {}", answer.refusal))),
        (other, _) => Err(Error::new(
            ErrorKind::Migration,
            format!(
                "append_events answered {other:?}, which this version does not know; is the schema newer than the library?"
            ),
        )),
    }
}
