//! What a queued event came to, and what a failure means for its row in the ledger; pure.

use std::time::Duration;

use crate::backoff::LONGEST_PAUSE;
use crate::consumer::{Options, saturated};
use crate::outcome::{Failure, Verdict, shortened};
use crate::pg::ledger::{Due, Settlement};

/// What an event came to.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) settlement: Settlement,
    /// The reason of the dead letter, where the event is passed over.
    pub(super) reason: Option<&'static str>,
}

impl Ended {
    pub(super) fn done(due: &Due) -> Self {
        let mut ended = Self::released(due, Duration::ZERO);
        ended.settlement.status = "done";
        ended
    }

    /// To be run again after a pause; it costs no attempt.
    pub(super) fn released(due: &Due, pause: Duration) -> Self {
        let released = Settlement::released(due.event.event_id(), due.token);
        let settlement = Settlement { due_in: pause, ..released };
        Self { settlement, reason: None }
    }

    pub(super) fn failed(due: &Due, options: &Options, failure: &Failure) -> Self {
        let verdict = match failure.verdict() {
            Verdict::Fault if due.faults >= saturated(options.max_faults) => Verdict::Retry,
            verdict => verdict,
        };
        let pause = |n: i32| options.backoff.pause(u32::try_from(n).unwrap_or(1));
        let exhausted = due.attempts + 1 >= saturated(options.max_attempts);
        let mut ended = Self::released(due, Duration::ZERO);
        let s = &mut ended.settlement;
        s.error = Some(shortened(&failure.message()));
        (s.status, s.attempts, s.faults, s.due_in, ended.reason) = match verdict {
            Verdict::Skip => ("dead", 1, 0, Duration::ZERO, Some("skip_policy")),
            Verdict::Reject => ("dead", 1, 0, Duration::ZERO, Some("rejected")),
            Verdict::Retry if options.skip_errors => ("dead", 1, 0, Duration::ZERO, Some("skip_policy")),
            Verdict::Retry if exhausted => ("dead", 1, 0, Duration::ZERO, Some("exhausted")),
            Verdict::Retry => ("pending", 1, 0, pause(due.attempts + 1), None),
            Verdict::Fault => ("pending", 0, 1, pause(due.faults + 1), None),
            Verdict::Defer(until) => ("pending", 0, 0, until.unwrap_or_else(|| pause(1)), None),
        };
        s.due_in = s.due_in.min(LONGEST_PAUSE);
        ended
    }
}
