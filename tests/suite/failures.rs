//! What a failing event does to its consumer, and what it does not.

mod dead_letters;
mod lost;
mod slices;

use std::time::Duration;

use inorder::{Consumer, ConsumerReport, Outcome, Registered};

use crate::support::stage::DeadLetter;
use crate::support::{Act, Actor, LIMIT, Stage, at_once, eventually};

fn ids(range: std::ops::RangeInclusive<i64>) -> Vec<i64> {
    range.collect()
}

/// Ends the session of the handler that runs it.
const SUICIDE: &str = "SELECT pg_terminate_backend(pg_backend_pid())";

/// Passes until the consumer is dead or has caught up; pauses are ended by hand.
async fn exhaust(stage: &Stage, consumers: &Registered, name: &str) -> ConsumerReport {
    for _ in 0..200 {
        let report = consumers.drain().await.unwrap()[name].clone();
        if !matches!(report.outcome, Outcome::Waiting { .. }) {
            return report;
        }
        stage.due_now(name).await;
    }
    panic!("{:?}", stage.standing(name).await);
}

async fn letter(stage: &Stage) -> DeadLetter {
    let mut letters = stage.dead_letters().await;
    assert_eq!(letters.len(), 1, "{letters:?}");
    letters.remove(0)
}

/// I-4, I-6: in the middle of a page.
#[tokio::test]
async fn events_before_a_failing_one_are_committed_and_it_is_tried_again_with_backoff() {
    let stage = Stage::with_events(6).await;
    let actor = Actor::new("c").at_first(4, 2, Act::Fail("no luck"));
    let heard = actor.heard();
    let consumers = stage.register([actor.transactional()]).await;

    let report = consumers.run_once().await.unwrap()["c"].clone();
    assert_eq!((report.processed, report.failed, report.skipped), (3, 1, 0));
    assert!(matches!(report.outcome, Outcome::Waiting { at: 4, .. }), "{report:?}");
    assert_eq!(stage.effects("c").await, ids(1..=3));
    let standing = stage.standing("c").await;
    assert_eq!(
        (standing.position, standing.attempts, standing.waits, standing.error()),
        (3, 1, true, "no luck")
    );

    // Not before its time.
    let calls = heard.all().len();
    let waiting = consumers.run_once().await.unwrap()["c"].clone();
    assert!(matches!(waiting.outcome, Outcome::Waiting { at: 4, .. }), "{waiting:?}");
    assert_eq!((waiting.failed, heard.all().len()), (0, calls));

    stage.due_now("c").await;
    assert_eq!(consumers.run_once().await.unwrap()["c"].failed, 1);
    assert_eq!(stage.standing("c").await.attempts, 2);

    // A success begins anew.
    stage.due_now("c").await;
    assert_eq!(consumers.drain().await.unwrap()["c"].outcome, Outcome::CaughtUp);
    assert_eq!(stage.effects("c").await, ids(1..=6));
    let standing = stage.standing("c").await;
    assert_eq!((standing.attempts, standing.waits, standing.last_error), (0, false, None));
}

/// I-6: also at the first event, and at the last attempt.
#[tokio::test]
async fn a_consumer_is_dead_after_its_last_attempt_and_stays_at_the_event() {
    for failing in [1, 4, 6] {
        let stage = Stage::with_events(6).await;
        let actor = Actor::new("c").at(failing, Act::Fail("no luck"));
        let heard = actor.heard();
        let consumers = stage.register([actor.transactional().max_attempts(3).backoff(at_once())]).await;

        let report = exhaust(&stage, &consumers, "c").await;

        assert_eq!(report.outcome, Outcome::Dead { at: failing });
        let standing = stage.standing("c").await;
        assert_eq!(
            (standing.position, standing.status.as_str(), standing.attempts),
            (failing - 1, "dead", 3)
        );
        assert_eq!((heard.times(failing), stage.effects("c").await), (3, ids(1..=failing - 1)));
        // And it says so, and does nothing.
        assert_eq!(consumers.run_once().await.unwrap()["c"].outcome, Outcome::Dead { at: failing });
        assert_eq!((heard.times(failing), stage.dead_letters().await), (3, vec![]));
    }
}

/// The error of a handler is to be found where the operator looks, whatever kind of error it is.
#[tokio::test]
async fn every_kind_of_failure_is_a_retry_with_its_own_words() {
    stage_fails(Act::Fail("no luck"), &["no luck"]).await;
    stage_fails(Act::Panic("index out of bounds"), &["panicked", "index out of bounds"]).await;
    stage_fails(
        Act::Decode,
        &["undecodable payload of event 2 (counted, schema version 1) as i32", "invalid type"],
    )
    .await;
    stage_fails(Act::Sql("SELECT 1 / 0"), &["division by zero", "22012"]).await;
    let swallowed = Act::Swallow("SELECT 1 / 0");
    stage_fails(swallowed, &["division by zero", "the handler went on", "savepoint"]).await;
    let ends = ["must not end the transaction", "savepoint"];
    for end in ["COMMIT", "ROLLBACK", "SELECT 1; COMMIT; SELECT 2"] {
        stage_fails(Act::Sql(end), &ends).await;
        stage_fails(Act::Swallow(end), &ends).await;
    }
}

/// I-4: nothing of the failing event is kept, everything of the others, once.
async fn stage_fails(act: Act, words: &[&str]) {
    for batch in [false, true] {
        let stage = Stage::with_events(3).await;
        let actor = Actor::new("c").at_first(2, if batch { 4 } else { 1 }, act.clone());
        let consumer = if batch { actor.batch() } else { actor.transactional() };
        let consumers = stage.register([consumer]).await;
        let report = consumers.drain().await.unwrap()["c"].clone();
        assert!(matches!(report.outcome, Outcome::Waiting { at: 2, .. }), "{words:?}: {report:?}");
        let standing = stage.standing("c").await;
        assert_eq!(
            (standing.position, standing.attempts, standing.faults),
            (1, 1, 0),
            "{words:?}: {standing:?}"
        );
        for word in words {
            assert!(standing.error().contains(word), "{word:?} is not in {:?}", standing.error());
        }
        assert_eq!(stage.effects("c").await, [1]);
        exhaust(&stage, &consumers, "c").await;
        assert_eq!(stage.effects("c").await, ids(1..=3));
    }
}

/// I-3, I-4: where the words of its statements do not tell, it is found at the end, and the position does not move.
#[tokio::test]
async fn a_handler_that_ends_the_transaction_after_all_moves_nothing() {
    for batch in [false, true] {
        let stage = Stage::with_events(1).await;
        let actor = Actor::new("c").at(1, Act::Sql("CREATE TABLE mine (); COMMIT"));
        let consumer = if batch { actor.batch() } else { actor.transactional() };
        let report = stage.register([consumer]).await.drain().await.unwrap()["c"].clone();
        assert_eq!((report.processed, report.failed), (0, 1));
        let standing = stage.standing("c").await;
        assert_eq!((standing.position, standing.attempts), (0, 1));
        assert!(standing.error().contains("must not end the transaction"), "{standing:?}");
    }
}

/// A panic before the handler's future exists is one like any other.
#[tokio::test]
async fn a_panic_in_the_call_itself_does_not_stop_the_dispatcher() {
    struct Eager;
    impl inorder::BatchHandler for Eager {
        fn handle(
            &self,
            _: &[inorder::Event],
            _: &inorder::HandlerTx<'_>,
        ) -> impl Future<Output = Result<(), inorder::Failure>> + Send {
            assert!(std::hint::black_box(false), "much too early");
            async { Ok(()) }
        }
    }
    let stage = Stage::with_events(1).await;
    let running = stage.dispatcher([Consumer::batch("c", Eager)]).build().unwrap().start().await.unwrap();
    eventually(LIMIT, "it is recorded", async || stage.standing("c").await.attempts == 1).await;
    assert!(stage.standing("c").await.error().contains("much too early"));
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_deferral_costs_no_attempt_and_waits_as_long_as_it_says() {
    let stage = Stage::with_events(2).await;
    let pause = Duration::from_secs(3_600);
    let actor = Actor::new("c").at_first(2, 3, Act::Defer(Some(pause)));
    let consumers = stage.register([actor.transactional().max_attempts(1)]).await;
    for _ in 0..3 {
        let report = consumers.drain().await.unwrap()["c"].clone();
        assert!(matches!(report.outcome, Outcome::Waiting { at: 2, .. }), "{report:?}");
        let left =
            "SELECT extract(epoch FROM next_attempt_at - clock_timestamp())::bigint FROM inorder.consumers";
        assert!((3_500..=3_600).contains(&stage.count(left).await));
        let standing = stage.standing("c").await;
        assert_eq!((standing.attempts, standing.faults, standing.error()), (0, 0, "the other side is down"));
        stage.due_now("c").await;
    }
    assert_eq!(consumers.drain().await.unwrap()["c"].outcome, Outcome::CaughtUp);
    assert_eq!(stage.effects("c").await, ids(1..=2));
}

/// I-6.
#[tokio::test]
async fn a_rejected_event_kills_at_once() {
    let stage = Stage::with_events(3).await;
    let consumers =
        stage.register([Actor::new("c").at(2, Act::Reject("no such card")).transactional()]).await;

    assert_eq!(consumers.drain().await.unwrap()["c"].outcome, Outcome::Dead { at: 2 });

    let standing = stage.standing("c").await;
    assert_eq!((standing.position, standing.status.as_str(), standing.error()), (1, "dead", "no such card"));
    assert_eq!((stage.effects("c").await, stage.dead_letters().await), (vec![1], vec![]));
}

/// I-4, I-6: the handler's effects are gone, the dead letter is there, and the position has moved, all together.
#[tokio::test]
async fn a_skipped_event_leaves_a_dead_letter_and_no_effects() {
    let stage = Stage::with_events(4).await;
    let consumers = stage.register([Actor::new("c").at(2, Act::Skip("not for us")).transactional()]).await;

    let report = consumers.drain().await.unwrap()["c"].clone();

    assert_eq!((report.processed, report.skipped, report.outcome), (3, 1, Outcome::CaughtUp));
    assert_eq!(stage.effects("c").await, [1, 3, 4]);
    let letter = letter(&stage).await;
    assert_eq!((letter.event, letter.reason.as_str(), letter.state.as_str()), (2, "skip_policy", "open"));
    assert_eq!(letter.error, "not for us");
}

/// I-6: with the policy, any failure of an event is a dead letter; but not a deferral, and not the server's faults.
#[tokio::test]
async fn skip_errors_passes_over_failing_events_and_keeps_each() {
    let stage = Stage::with_events(8).await;
    let script = |name: &str| {
        Actor::new(name)
            .at(2, Act::Fail("no luck"))
            .at(3, Act::Panic("out of bounds"))
            .at_first(5, 1, Act::Defer(None))
            .at_first(6, 1, Act::Sql(SUICIDE))
            .at(8, Act::Reject("never"))
    };
    let (one, many) = (script("one").transactional(), script("many").batch());
    let consumers = stage.register([one.skip_errors(), many.skip_errors()]).await;

    for name in ["one", "many"] {
        assert_eq!(exhaust(&stage, &consumers, name).await.outcome, Outcome::CaughtUp);
        assert_eq!(stage.effects(name).await, [1, 4, 5, 6, 7]);
        assert_eq!(stage.standing(name).await.position, 8);
        let letters = stage.dead_letters().await;
        let letters = letters.iter().filter(|l| l.consumer == name);
        let letters: Vec<_> = letters.map(|l| (l.event, l.reason.as_str(), l.error.as_str())).collect();
        let panicked = "the handler panicked: out of bounds";
        assert_eq!(
            letters,
            [(2, "skip_policy", "no luck"), (3, "skip_policy", panicked), (8, "rejected", "never")]
        );
    }
}

/// I-4, I-6: neither without the other, whatever fails.
#[tokio::test]
async fn a_dead_letter_that_cannot_be_written_keeps_the_position() {
    let stage = Stage::with_events(2).await;
    let consumers =
        stage.register([Actor::new("c").at(2, Act::Fail("no")).transactional().skip_errors()]).await;
    stage.sql("ALTER TABLE inorder.dead_letters ADD CHECK (event_type = 'other')").await;

    assert!(consumers.drain().await.is_err());

    assert_eq!((stage.standing("c").await.position, stage.effects("c").await), (0, vec![]));
    stage.sql("ALTER TABLE inorder.dead_letters DROP CONSTRAINT dead_letters_event_type_check").await;
    consumers.drain().await.unwrap();
    assert_eq!((stage.standing("c").await.position, stage.effects("c").await), (2, vec![1]));
    assert_eq!(stage.dead_letters().await.len(), 1);
}

/// I-6: whatever it failed by; and then it is dead for good.
#[tokio::test]
async fn a_consumer_arms_itself_again_only_so_many_times() {
    for act in [Act::Fail("no luck"), Act::Sql(SUICIDE)] {
        let stage = Stage::with_events(3).await;
        let actor = Actor::new("c").at(2, act);
        let heard = actor.heard();
        let consumer = actor.transactional().max_attempts(2).max_faults(0).backoff(at_once());
        let consumers = stage.register([consumer.rearm(2, Duration::from_millis(1))]).await;

        for rearms in 0..=2 {
            let report = exhaust(&stage, &consumers, "c").await;
            assert_eq!(report.outcome, Outcome::Dead { at: 2 });
            let standing = stage.standing("c").await;
            assert_eq!((standing.attempts, standing.rearms), (2, rearms), "{standing:?}");
            if rearms < 2 {
                stage.due_now("c").await;
            }
        }
        let handed = heard.times(2);
        let armed = "SELECT count(*) FROM inorder.consumers WHERE next_attempt_at IS NOT NULL";
        assert_eq!(stage.count(armed).await, 0, "no clock arms it again");
        assert_eq!(consumers.run_once().await.unwrap()["c"].outcome, Outcome::Dead { at: 2 });
        assert_eq!((heard.times(2), stage.effects("c").await), (handed, vec![1]));
    }
}

/// A success after it armed itself begins everything anew.
#[tokio::test]
async fn a_consumer_that_armed_itself_and_succeeded_is_as_good_as_new() {
    let stage = Stage::with_events(3).await;
    let actor = Actor::new("c").at_first(2, 2, Act::Fail("no luck")).at(3, Act::Fail("no luck"));
    let consumer = actor.transactional().max_attempts(1).rearm(2, Duration::from_millis(1));
    let running = stage.dispatcher([consumer]).build().unwrap().start().await.unwrap();

    eventually(LIMIT, "it dies at the next one", async || {
        let standing = stage.standing("c").await;
        standing.position == 2 && standing.status == "dead" && standing.rearms == 2 && !standing.waits
    })
    .await;

    assert_eq!(stage.effects("c").await, ids(1..=2));
    running.stop().await.unwrap();
}
