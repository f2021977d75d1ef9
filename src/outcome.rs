//! What a handler answers, and what a pass reports.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::ops::Index;
use std::time::Duration;

use time::OffsetDateTime;

use crate::error::{describe, is_infrastructure, sqlstate};

/// A handler's answer when it could not handle the event, and what that means.
///
/// Any error converts into a *retry*, so `?` works in handlers. The other meanings are said:
///
/// ```
/// use inorder::Failure;
///
/// fn charge(reachable: bool, card_known: bool) -> Result<(), Failure> {
///     if !reachable {
///         return Err(Failure::defer("payment service unreachable"));
///     }
///     if !card_known {
///         return Err(Failure::reject("no such card"));
///     }
///     Ok(())
/// }
/// assert!(charge(false, true).is_err());
/// ```
pub struct Failure {
    verdict: Verdict,
    error: Box<dyn StdError + Send + Sync>,
}

/// What a [`Failure`] means for the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Try again with backoff; counts an attempt. At the last attempt the consumer is dead.
    Retry,
    /// The other side is down: try again, not before the given time from now (the consumer's backoff where it is
    /// `None`). Costs no attempt.
    Defer(Option<Duration>),
    /// This event can never work: the consumer is dead at once, and an operator decides.
    Reject,
    /// Record a dead letter and go on.
    Skip,
    /// The server, the network or another transaction was at fault, not the event: as a retry, but counted apart.
    Fault,
}

impl Failure {
    /// Try again with backoff; counts an attempt. The same as `?` on an error.
    pub fn retry(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { verdict: Verdict::Retry, error: error.into() }
    }

    /// The other side is down: try again later. Costs no attempt.
    pub fn defer(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { verdict: Verdict::Defer(None), error: error.into() }
    }

    /// As [`defer`](Self::defer), not before `pause` from now.
    pub fn defer_for(pause: Duration, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { verdict: Verdict::Defer(Some(pause)), error: error.into() }
    }

    /// This event can never work: the consumer is dead at once.
    pub fn reject(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { verdict: Verdict::Reject, error: error.into() }
    }

    /// Record the event as a dead letter and go on.
    pub fn skip(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { verdict: Verdict::Skip, error: error.into() }
    }

    /// The handler's time was up.
    pub(crate) fn timed_out(limit: Duration) -> Self {
        Self::retry(TimedOut(limit))
    }

    /// Whatever a handler says about an event while its session goes away is the server's or the network's doing.
    pub(crate) fn of_a_lost_session(self) -> Self {
        match self.verdict {
            Verdict::Retry if !self.error.is::<TimedOut>() => Self { verdict: Verdict::Fault, ..self },
            _ => self,
        }
    }

    /// Was it the server that ended the statement, at its own time-out or because it was told to?
    pub(crate) fn is_cancelled(&self) -> bool {
        sqlstate(&*self.error) == Some("57014")
    }

    #[cfg(test)]
    pub(crate) fn fault(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { verdict: Verdict::Fault, error: error.into() }
    }

    /// What it means. A retry that was caused by the server, the network or another transaction is a fault.
    pub fn verdict(&self) -> Verdict {
        match self.verdict {
            Verdict::Retry if is_infrastructure(&*self.error) => Verdict::Fault,
            verdict => verdict,
        }
    }

    /// The error and its causes in one line.
    pub fn message(&self) -> String {
        describe(&*self.error)
    }
}

/// A handler that did not finish.
#[derive(Debug)]
struct TimedOut(Duration);

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the handler did not finish within {:?}", self.0)
    }
}

impl StdError for TimedOut {}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.verdict(), self.message())
    }
}

/// How a consumer stood when its passes ended, or why it did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Everything up to the safe head is dealt with.
    CaughtUp,
    /// Events were delivered and there are more.
    More,
    /// The event with this id failed; the next attempt is due at the given time.
    Waiting {
        /// The id of the failed event.
        at: i64,
        /// When the next attempt is due, by the database's clock.
        until: OffsetDateTime,
    },
    /// The consumer is dead at the event with this id, until an operator acts.
    Dead {
        /// The id of the event at which it died.
        at: i64,
    },
    /// An operator disabled it.
    Disabled,
    /// Not seen for days: it no longer holds back retention and does not run by itself.
    Expired,
    /// Another process holds its row.
    Busy,
    /// Its row is gone: unregistered behind our back.
    Unregistered,
    /// The row was written by a higher revision of the application: this process does not run it.
    Outdated {
        /// The revision in the row.
        registered: i32,
        /// The revision of this process.
        ours: i32,
    },
    /// Events that it had not read were pruned: it does not run until an operator accepts that.
    Pruned {
        /// The first id that is missing.
        from: i64,
        /// The last id that is missing.
        to: i64,
    },
    /// The dispatcher is stopping.
    Stopped,
}

/// What the passes of one consumer did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerReport {
    /// Events handled, their effects committed.
    pub processed: u64,
    /// Attempts that failed and were recorded.
    pub failed: u64,
    /// Events passed over, each with a dead letter.
    pub skipped: u64,
    /// How it stands now.
    pub outcome: Outcome,
}

impl ConsumerReport {
    pub(crate) fn new(outcome: Outcome) -> Self {
        Self { processed: 0, failed: 0, skipped: 0, outcome }
    }

    /// Takes in what was done since.
    pub(crate) fn add(&mut self, since: &Self) {
        self.processed += since.processed;
        self.failed += since.failed;
        self.skipped += since.skipped;
        self.outcome = since.outcome.clone();
    }
}

/// What `run_once` did, by row: `name`, `name@instance`, and from its partition 1 on `name/partition`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report(pub(crate) BTreeMap<String, ConsumerReport>);

impl Report {
    /// The report of one consumer, `None` where there is no such.
    pub fn get(&self, consumer: &str) -> Option<&ConsumerReport> {
        self.0.get(consumer)
    }

    /// Consumers and their reports, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ConsumerReport)> {
        self.0.iter().map(|(name, report)| (name.as_str(), report))
    }

    /// Events handled, over all consumers.
    pub fn processed(&self) -> u64 {
        self.0.values().map(|r| r.processed).sum()
    }
}

impl Index<&str> for Report {
    type Output = ConsumerReport;

    /// # Panics
    /// When there is no such consumer; [`get`](Self::get) asks first.
    fn index(&self, consumer: &str) -> &ConsumerReport {
        match self.get(consumer) {
            Some(report) => report,
            None => panic!("no consumer {consumer:?} in the report; there are {:?}", self.0.keys()),
        }
    }
}

/// An error as it is kept in a row, which is written often.
pub(crate) fn shortened(message: &str) -> String {
    const MOST: usize = 2_000;
    // A text of PostgreSQL cannot hold U+0000.
    let clean = message.replace('\0', "\u{fffd}");
    match clean.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &clean[..end]),
        None => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_error_is_a_retry_and_a_lost_connection_is_a_fault() {
        let failure: Failure = "no".parse::<i32>().map_err(Failure::from).expect_err("not a number");
        assert_eq!(failure.verdict(), Verdict::Retry);
        let lost = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert_eq!(Failure::from(lost).verdict(), Verdict::Fault);
        assert_eq!(Failure::reject("never").verdict(), Verdict::Reject);
    }
}
