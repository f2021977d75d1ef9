//! What a failure means for the consumer's row; pure.

use std::time::Duration;

use time::OffsetDateTime;

use super::Pass;
use crate::backoff::LONGEST_PAUSE;
use crate::consumer::{Options, saturated};
use crate::event::Event;
use crate::outcome::{ConsumerReport, Failure, Outcome, Verdict, shortened};
use crate::pg::consumers::{Settlement, State};

/// What is to be written, and what it is called.
#[derive(Debug)]
pub(super) struct Judgement {
    pub(super) settlement: Settlement,
    /// The reason of the dead letter, where the event is passed over.
    pub(super) dead_letter: Option<&'static str>,
    /// Which attempt it was.
    pub(super) attempt: i32,
    /// The id of the event that failed.
    failed_at: Option<i64>,
}

impl Judgement {
    /// Everything up to the position is dealt with.
    pub(super) fn well(position: i64) -> Self {
        let settlement = Settlement {
            position,
            status: "idle",
            attempts: 0,
            faults: 0,
            rearms: 0,
            due_in: None,
            failed_event_id: None,
            last_error: None,
            processed: 0,
            failed: 0,
            skipped: 0,
        };
        Self { settlement, dead_letter: None, attempt: 0, failed_at: None }
    }

    /// The position moves towards the event that failed last; what is known of that failure stays.
    pub(super) fn before_failed(state: &State, position: i64) -> Self {
        let mut judgement = Self::well(position);
        judgement.settlement = Settlement {
            attempts: state.attempts,
            faults: state.faults,
            rearms: state.rearms,
            failed_event_id: state.failed_event_id,
            last_error: state.last_error.clone(),
            ..judgement.settlement
        };
        judgement
    }

    /// Is the row as plain as can be with it?
    pub(super) fn is_well(&self) -> bool {
        let s = &self.settlement;
        s.status == "idle"
            && s.failed_event_id.is_none()
            && s.due_in.is_none()
            && s.attempts + s.faults + s.rearms == 0
    }

    pub(super) fn into_pass(self, head: i64, next_attempt_at: Option<OffsetDateTime>) -> Pass {
        let Self { settlement: s, failed_at, .. } = self;
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        let outcome = match (failed_at, next_attempt_at) {
            (at, _) if s.status == "dead" => Outcome::Dead { at: at.unwrap_or(s.position) },
            (Some(at), Some(until)) => Outcome::Waiting { at, until },
            _ if s.position >= head => Outcome::CaughtUp,
            _ => Outcome::More,
        };
        let report = ConsumerReport {
            processed: count(s.processed),
            failed: count(s.failed),
            skipped: count(s.skipped),
            outcome,
        };
        Pass { report, position: s.position, due_in: s.due_in }
    }
}

/// A dead consumer whose row was to be had has armed itself again: its failed event begins anew.
pub(super) fn rearmed(state: State) -> State {
    if state.status != "dead" || !state.is_locked {
        return state;
    }
    State { status: "idle".into(), attempts: 0, faults: 0, rearms: state.rearms + 1, ..state }
}

/// Judges the failure of `event`, everything before it being dealt with up to `position`.
pub(super) fn judge(
    options: &Options,
    state: &State,
    event: &Event,
    cause: &Failure,
    position: i64,
) -> Judgement {
    let failed = Failed { id: event.id(), again: state.failed_event_id == Some(event.event_id()) };
    let mut judgement = judge_at(options, state, &failed, cause, position);
    if judgement.dead_letter.is_none() {
        judgement.settlement.failed_event_id = Some(event.event_id());
    }
    judgement
}

/// The event that failed, and whether it is the one that failed last.
struct Failed {
    id: i64,
    again: bool,
}

fn judge_at(options: &Options, state: &State, event: &Failed, cause: &Failure, position: i64) -> Judgement {
    let (attempts, faults, rearms) = match event.again {
        true => (state.attempts, state.faults, state.rearms),
        false => (0, 0, 0),
    };
    let mut judgement = Judgement::well(position);
    judgement.failed_at = Some(event.id);
    judgement.attempt = attempts + 1;
    let s = &mut judgement.settlement;
    (s.attempts, s.faults, s.rearms, s.failed) = (attempts, faults, rearms, 1);
    s.last_error = Some(shortened(&cause.message()));
    let verdict = match cause.verdict() {
        Verdict::Fault if faults >= saturated(options.max_faults) => Verdict::Retry,
        verdict => verdict,
    };
    let pause = |failures: i32| options.backoff.pause(u32::try_from(failures).unwrap_or(1));
    match verdict {
        Verdict::Skip => judgement.pass_over(event.id, "skip_policy"),
        Verdict::Reject if options.skip_errors => judgement.pass_over(event.id, "rejected"),
        Verdict::Retry if options.skip_errors => judgement.pass_over(event.id, "skip_policy"),
        Verdict::Retry => {
            s.attempts += 1;
            s.due_in = Some(pause(s.attempts));
            if s.attempts >= saturated(options.max_attempts) {
                judgement.die(options.rearm);
            }
        }
        Verdict::Reject => {
            s.attempts += 1;
            judgement.die(options.rearm);
        }
        Verdict::Fault => {
            s.faults += 1;
            s.due_in = Some(pause(s.faults));
        }
        Verdict::Defer(until) => s.due_in = Some(until.unwrap_or_else(|| pause(1))),
    }
    let s = &mut judgement.settlement;
    s.due_in = s.due_in.map(|due| due.min(LONGEST_PAUSE));
    judgement
}

impl Judgement {
    fn pass_over(&mut self, id: i64, reason: &'static str) {
        let s = &mut self.settlement;
        (s.position, s.attempts, s.faults, s.rearms, s.skipped, s.failed) = (id, 0, 0, 0, 1, 0);
        self.dead_letter = Some(reason);
        self.failed_at = None;
    }

    fn die(&mut self, rearm: Option<(u32, Duration)>) {
        let s = &mut self.settlement;
        s.status = "dead";
        s.due_in = rearm.filter(|(times, _)| s.rearms < saturated(*times)).map(|(_, pause)| pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumer::Consumer;

    fn options(adjust: impl FnOnce(Consumer) -> Consumer) -> Options {
        adjust(Consumer::transactional_fn("c", |_, _| Box::pin(async { Ok(()) }))).options
    }

    fn state(attempts: i32, faults: i32) -> State {
        State {
            is_locked: true,
            position: 4,
            status: "idle".into(),
            attempts,
            faults,
            rearms: 0,
            revision: 1,
            failed_event_id: None,
            failed_at: None,
            last_error: None,
            next_attempt_at: None,
            due_in: None,
            pruned: None,
            retry: None,
            epoch: None,
        }
    }

    fn again(options: &Options, state: &State, cause: &Failure) -> Settlement {
        judge_at(options, state, &Failed { id: 5, again: true }, cause, 4).settlement
    }

    #[test]
    fn attempts_count_up_to_the_last_which_is_death() {
        let options = options(|c| c.max_attempts(3));
        let cause = Failure::retry("no");
        assert_eq!(again(&options, &state(1, 0), &cause).attempts, 2);
        let last = again(&options, &state(2, 0), &cause);
        assert_eq!((last.attempts, last.status, last.due_in), (3, "dead", None));
        let another = judge_at(&options, &state(2, 0), &Failed { id: 9, again: false }, &cause, 8).settlement;
        assert_eq!((another.attempts, another.status), (1, "idle"), "another event begins anew");
    }

    #[test]
    fn deferrals_cost_nothing_and_faults_count_apart_until_there_are_too_many() {
        let options = options(|c| c.max_attempts(3).max_faults(2));
        let deferred = again(&options, &state(2, 1), &Failure::defer_for(Duration::from_secs(9), "down"));
        assert_eq!(
            (deferred.attempts, deferred.faults, deferred.due_in),
            (2, 1, Some(Duration::from_secs(9)))
        );
        let for_ever = again(&options, &state(0, 0), &Failure::defer_for(Duration::MAX, "closed down"));
        assert_eq!(for_ever.due_in, Some(LONGEST_PAUSE), "a time that the row can hold");
        let fault = Failure::fault("connection lost");
        let counted = again(&options, &state(0, 1), &fault);
        assert_eq!((counted.attempts, counted.faults), (0, 2));
        let too_many = again(&options, &state(0, 2), &fault);
        assert_eq!((too_many.attempts, too_many.faults), (1, 2));
    }

    #[test]
    fn a_rejected_event_is_dead_at_once_and_a_skipped_one_moves_the_position_onto_it() {
        let plain = options(|c| c);
        assert_eq!(again(&plain, &state(0, 0), &Failure::reject("never")).status, "dead");
        let skipped =
            judge_at(&plain, &state(0, 0), &Failed { id: 5, again: false }, &Failure::skip("odd"), 4);
        assert_eq!((skipped.settlement.position, skipped.dead_letter), (5, Some("skip_policy")));
        let skipping = options(Consumer::skip_errors);
        let skipped =
            judge_at(&skipping, &state(0, 0), &Failed { id: 5, again: false }, &Failure::retry("no"), 4);
        assert_eq!((skipped.settlement.position, skipped.settlement.skipped), (5, 1));
        assert_eq!(
            again(&skipping, &state(0, 0), &Failure::defer("down")).position,
            4,
            "a deferral is waited out"
        );
    }

    #[test]
    fn a_dead_consumer_arms_itself_again_only_so_many_times() {
        let options = options(|c| c.max_attempts(1).rearm(1, Duration::from_secs(60)));
        let cause = Failure::retry("no");
        let first = again(&options, &state(0, 0), &cause);
        assert_eq!((first.status, first.rearms, first.due_in), ("dead", 0, Some(Duration::from_secs(60))));
        let dead = State { status: "dead".into(), attempts: 1, ..state(0, 0) };
        let second = again(&options, &rearmed(dead), &cause);
        assert_eq!((second.status, second.rearms, second.due_in), ("dead", 1, None));
    }
}
