//! What a failing event does to its consumer, and what it does not.

use std::time::Duration;

use inorder::{Consumer, ConsumerReport, Outcome, Registered, Running};

use crate::support::stage::DeadLetter;
use crate::support::{Act, Actor, Gate, LIMIT, Stage, at_once, eventually};

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

/// I-4, I-6: an event whose handler ends its own session does not live for ever, and what is before it is done. The faults
/// have their own column until there are too many of them.
#[tokio::test]
async fn an_event_that_kills_its_session_is_dead_in_the_end() {
    for batch in [false, true] {
        let stage = Stage::with_events(7).await;
        let actor = Actor::new("c").at(5, Act::Sql(SUICIDE));
        let consumer = if batch { actor.batch() } else { actor.transactional() };
        let consumer = consumer.max_faults(2).max_attempts(2).backoff(at_once());
        let consumers = stage.register([consumer]).await;

        let report = consumers.drain().await.unwrap()["c"].clone();
        assert!(matches!(report.outcome, Outcome::Waiting { at: 5, .. }), "{report:?}");
        let standing = stage.standing("c").await;
        assert_eq!((standing.position, standing.attempts, standing.faults), (4, 0, 1));
        assert!(standing.error().contains("57P01"), "{standing:?}");
        assert_eq!(stage.effects("c").await, ids(1..=4));

        assert_eq!(exhaust(&stage, &consumers, "c").await.outcome, Outcome::Dead { at: 5 });
        let standing = stage.standing("c").await;
        assert_eq!((standing.position, standing.attempts, standing.faults), (4, 2, 2));
        assert_eq!(stage.effects("c").await, ids(1..=4));
    }
}

/// A handler that says something of its own about a session that went away under it: still a fault.
#[tokio::test]
async fn a_lost_session_is_a_fault_whatever_the_handler_makes_of_it() {
    let silent = Act::Swallow(SUICIDE);
    let in_own_words = Act::custom(|_, tx| {
        Box::pin(async move {
            tx.batch_execute(SUICIDE).await.map_err(|_| "could not charge")?;
            Ok(())
        })
    });
    let panics = Act::custom(|_, tx| {
        Box::pin(async move {
            tx.batch_execute(SUICIDE).await.expect("it works");
            Ok(())
        })
    });
    for act in [silent, in_own_words, panics] {
        let stage = Stage::with_events(3).await;
        let consumers = stage.register([Actor::new("c").at_first(1, 1, act).transactional()]).await;
        consumers.drain().await.unwrap();
        let standing = stage.standing("c").await;
        assert_eq!((standing.attempts, standing.faults), (0, 1), "{standing:?}");
        exhaust(&stage, &consumers, "c").await;
        assert_eq!(stage.effects("c").await, ids(1..=3));
    }
}

/// Another transaction's fault is no attempt at the event.
#[tokio::test]
async fn a_deadlock_is_a_fault() {
    let stage = Stage::with_events(2).await;
    stage.sql("CREATE TABLE locked (n int); INSERT INTO locked VALUES (1), (2)").await;
    let raise = Act::Sql("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$");
    let consumers = stage.register([Actor::new("c").at_first(2, 1, raise).transactional()]).await;
    consumers.drain().await.unwrap();
    let standing = stage.standing("c").await;
    assert_eq!((standing.position, standing.attempts, standing.faults, standing.waits), (1, 0, 1, true));
    assert_eq!(exhaust(&stage, &consumers, "c").await.outcome, Outcome::CaughtUp);
    assert_eq!(stage.standing("c").await.faults, 0, "a success begins anew");
}

/// I-6: with the policy, an event that kills its session is passed over when its faults are used up; the letter is written
/// although the pass's transaction never survives.
#[tokio::test]
async fn skip_errors_passes_over_an_event_that_kills_its_session_in_the_end() {
    for batch in [false, true] {
        let stage = Stage::with_events(5).await;
        let actor = Actor::new("c").at(3, Act::Sql(SUICIDE));
        let consumer = if batch { actor.batch() } else { actor.transactional() };
        let consumers = stage.register([consumer.skip_errors().max_faults(2).backoff(at_once())]).await;

        assert_eq!(exhaust(&stage, &consumers, "c").await.outcome, Outcome::CaughtUp);

        assert_eq!(stage.effects("c").await, [1, 2, 4, 5]);
        let letter = letter(&stage).await;
        assert_eq!((letter.event, letter.reason.as_str()), (3, "skip_policy"));
        assert!(letter.error.contains("57P01"), "{letter:?}");
    }
}

/// What is checked at the end of the transaction only, is charged to the event that it is of, and everything else is
/// delivered once. One of them fails for good, one only at first.
#[tokio::test]
async fn a_deferred_constraint_is_charged_to_the_event_that_breaks_it() {
    for batch in [false, true] {
        let stage = Stage::with_events(20).await;
        stage
            .sql(
                "CREATE TABLE parents (n int PRIMARY KEY); \
                 CREATE TABLE children (n int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)",
            )
            .await;
        let orphan = Act::Sql("INSERT INTO children VALUES (1)");
        // Another one fails by itself in the same pass.
        let actor = Actor::new("c").at(13, orphan).at_first(17, 3, Act::Fail("no luck"));
        let consumer = if batch { actor.batch() } else { actor.transactional() };
        let consumers = stage.register([consumer.max_attempts(2).backoff(at_once())]).await;

        assert_eq!(exhaust(&stage, &consumers, "c").await.outcome, Outcome::Dead { at: 13 });

        let standing = stage.standing("c").await;
        assert!(standing.error().contains("23503"), "{standing:?}");
        assert_eq!((standing.position, standing.attempts), (12, 2));
        assert_eq!(stage.effects("c").await, ids(1..=12));

        stage
            .sql("INSERT INTO parents VALUES (1); UPDATE inorder.consumers SET status = 'idle', attempts = 0")
            .await;
        assert_eq!(exhaust(&stage, &consumers, "c").await.outcome, Outcome::CaughtUp);
        assert_eq!(stage.effects("c").await, ids(1..=20));
    }
}

/// I-4: what is deferred and ends the session at the end of the transaction is known not to have been committed.
#[tokio::test]
async fn a_session_that_is_ended_by_a_deferred_trigger_is_charged_too() {
    let stage = Stage::with_events(6).await;
    stage
        .sql(
            "CREATE TABLE traps (n int); \
             CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS \
                $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(1); RETURN NULL; END $$; \
             CREATE CONSTRAINT TRIGGER trap AFTER INSERT ON traps DEFERRABLE INITIALLY DEFERRED \
                FOR EACH ROW EXECUTE FUNCTION trap()",
        )
        .await;
    let actor = Actor::new("c").at(4, Act::Sql("INSERT INTO traps VALUES (1)"));
    let consumer = actor.transactional().max_faults(1).max_attempts(1).backoff(at_once());
    let consumers = stage.register([consumer]).await;

    assert_eq!(exhaust(&stage, &consumers, "c").await.outcome, Outcome::Dead { at: 4 });

    assert_eq!(stage.effects("c").await, ids(1..=3));
    let standing = stage.standing("c").await;
    assert_eq!((standing.position, standing.faults, standing.attempts), (3, 1, 1));
}

/// A failing slice is halved until the poison stands alone; the others are delivered, each once.
#[tokio::test]
async fn a_failing_batch_is_halved_until_the_poison_stands_alone() {
    for poison in [1, 2, 333, 700, 999, 1_000] {
        let stage = Stage::with_events(1_000).await;
        let actor = Actor::new("c").at(poison, Act::Fail("poison"));
        let heard = actor.heard();
        let consumers = stage.register([actor.batch().max_attempts(2).backoff(at_once())]).await;

        assert_eq!(exhaust(&stage, &consumers, "c").await.outcome, Outcome::Dead { at: poison });

        assert_eq!(stage.effects("c").await, ids(1..=poison - 1));
        let standing = stage.standing("c").await;
        assert_eq!((standing.position, standing.attempts), (poison - 1, 2));
        // Halving takes a handful of rounds, and the second attempt none of them again.
        assert!(heard.times(poison) <= 60, "handed out {} times", heard.times(poison));

        stage
            .client
            .execute("UPDATE inorder.consumers SET position = $1, status = 'idle', attempts = 0", &[&poison])
            .await
            .unwrap();
        consumers.drain().await.unwrap();
        let left: Vec<i64> = (1..=1_000).filter(|id| *id != poison).collect();
        assert_eq!(stage.effects("c").await, left);
    }
}

/// The meaning of a failure holds for the one event that it is of, in a batch, too.
#[tokio::test]
async fn several_poisons_in_a_batch_are_each_treated_as_they_say() {
    let stage = Stage::with_events(100).await;
    let actor = Actor::new("c")
        .at(10, Act::Skip("odd"))
        .at(11, Act::Skip("odd, too"))
        .at_first(50, 12, Act::Fail("at first"))
        .at(90, Act::Reject("never"));
    let consumers = stage.register([actor.batch()]).await;

    assert_eq!(exhaust(&stage, &consumers, "c").await.outcome, Outcome::Dead { at: 90 });

    let kept: Vec<i64> = (1..90).filter(|id| ![10, 11].contains(id)).collect();
    assert_eq!(stage.effects("c").await, kept);
    let letters = stage.dead_letters().await;
    assert_eq!(letters.iter().map(|l| l.event).collect::<Vec<_>>(), [10, 11]);
}

/// Sends a statement that fails, and does not wait for its answer.
fn forgets() -> Act {
    Act::custom(|_, tx| {
        Box::pin(async move {
            let mut forgotten = Box::pin(tx.batch_execute("SELECT 1 / 0"));
            let sent = std::future::poll_fn(|cx| {
                let _ = forgotten.as_mut().poll(cx);
                std::task::Poll::Ready(())
            });
            sent.await;
            Ok(())
        })
    })
}

/// A statement whose answer nobody waited for fails after the handler has returned: charged to that handler's event, not to
/// the next one.
#[tokio::test]
async fn an_error_that_nobody_heard_is_charged_to_the_event_whose_handler_caused_it() {
    for failing in [1, 3, 6] {
        let stage = Stage::with_events(6).await;
        let consumers = stage.register([Actor::new("c").at(failing, forgets()).transactional()]).await;

        let report = consumers.drain().await.unwrap()["c"].clone();

        assert!(matches!(report.outcome, Outcome::Waiting { at, .. } if at == failing), "{report:?}");
        assert_eq!(stage.effects("c").await, ids(1..=failing - 1));
        let standing = stage.standing("c").await;
        assert!(standing.error().contains("the handler went on"), "{standing:?}");
    }
}

/// The same, when it happens only once: then it is nobody's failure.
#[tokio::test]
async fn an_error_that_nobody_heard_is_not_charged_to_the_next_event() {
    let stage = Stage::with_events(6).await;
    let consumers = stage.register([Actor::new("c").at_first(3, 1, forgets()).transactional()]).await;

    let report = consumers.drain().await.unwrap()["c"].clone();

    assert_eq!((report.processed, report.failed, report.outcome), (6, 0, Outcome::CaughtUp));
    assert_eq!(stage.effects("c").await, ids(1..=6));
}

/// I-4: whoever has the consumer next. What comes before it, where an operator moved the consumer back, is done on its own.
#[tokio::test]
async fn an_event_that_failed_stands_alone_at_its_next_attempt() {
    for batch in [false, true] {
        let stage = Stage::with_events(20).await;
        let consumer = |actor: Actor| if batch { actor.batch() } else { actor.transactional() };
        stage.register([consumer(Actor::new("c").at(10, Act::Fail("no luck")))]).await.drain().await.unwrap();
        let actor = Actor::new("c").at(10, Act::Fail("still no luck"));
        let heard = actor.heard();
        let another = stage.register([consumer(actor)]).await;
        stage.due_now("c").await;

        let report = another.run_once().await.unwrap()["c"].clone();
        assert_eq!((report.processed, report.failed, heard.all()), (0, 1, vec![10]));

        stage.sql("UPDATE inorder.consumers SET position = 6").await;
        stage.due_now("c").await;
        let report = another.run_once().await.unwrap()["c"].clone();
        assert_eq!((report.processed, report.failed, &heard.all()[1..]), (3, 0, &[7, 8, 9][..]));
        assert_eq!((stage.standing("c").await.position, stage.standing("c").await.attempts), (9, 2));
        let report = another.run_once().await.unwrap()["c"].clone();
        assert_eq!((report.processed, report.failed, &heard.all()[4..]), (0, 1, &[10][..]));
        assert_eq!(stage.standing("c").await.attempts, 3);
    }
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

/// The handler's connection is dropped or goes on, but never with somebody else's transaction: many failures, few
/// connections.
#[tokio::test]
async fn failures_of_every_kind_use_up_no_connections() {
    let stage = Stage::with_events(40).await;
    let mut actor = Actor::new("c");
    for event in 1..=40 {
        let acts = [Act::Fail("no"), Act::Panic("no"), Act::Sql("SELECT 1 / 0"), Act::Sql(SUICIDE)];
        actor = actor.at_first(event, 1, acts[usize::try_from(event).unwrap() % 4].clone());
    }
    let consumer = actor.transactional().backoff(at_once());
    let consumers = stage.dispatcher([consumer]).max_passes(1).build().unwrap().register().await.unwrap();
    exhaust(&stage, &consumers, "c").await;
    assert_eq!(stage.effects("c").await, ids(1..=40));
    let in_transaction = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    assert_eq!(stage.count(in_transaction).await, 0);
}

/// Asks for the retry of every open letter.
async fn retry_letters(stage: &Stage) {
    stage
        .sql(
            "SELECT inorder.retry_dead_letter(id) FROM inorder.dead_letters WHERE state = 'open' ORDER BY id",
        )
        .await;
}

/// I-2 has this one exception: an event that an operator wants retried comes late.
#[tokio::test]
async fn a_dead_letter_is_delivered_by_its_consumers_own_pass_and_resolved() {
    for batch in [false, true] {
        let stage = Stage::with_events(4).await;
        let actor = Actor::new("c").at_first(2, if batch { 4 } else { 1 }, Act::Fail("no luck"));
        let consumer = if batch { actor.batch() } else { actor.transactional() };
        let consumers = stage.register([consumer.skip_errors()]).await;
        consumers.drain().await.unwrap();
        assert_eq!(stage.effects("c").await, [1, 3, 4]);

        retry_letters(&stage).await;
        let report = consumers.drain().await.unwrap()["c"].clone();

        assert_eq!((report.processed, report.outcome), (1, Outcome::CaughtUp));
        assert_eq!((stage.effects("c").await, stage.standing("c").await.position), (vec![1, 3, 4, 2], 4));
        assert_eq!(letter(&stage).await.state, "resolved");
        assert_eq!(consumers.drain().await.unwrap()["c"].processed, 0);
    }
}

/// However many are asked for, and without a poll: the bell is enough.
#[tokio::test]
async fn all_dead_letters_that_are_to_be_retried_are_delivered_one_after_the_other() {
    let stage = Stage::with_events(4).await;
    let actor = (1..=3).fold(Actor::new("c"), |actor, event| actor.at_first(event, 1, Act::Skip("odd")));
    let running = start_without_polls(&stage, actor.transactional()).await;
    eventually(LIMIT, "what is not odd is done", async || stage.effects("c").await == [4]).await;

    retry_letters(&stage).await;

    eventually(LIMIT, "all others are, too", async || stage.effects("c").await == [4, 1, 2, 3]).await;
    running.stop().await.unwrap();
}

/// The poll that the retry asked for is answered only after another pass began, which does not look for dead letters.
#[tokio::test]
async fn a_dead_letter_is_retried_while_pass_follows_pass() {
    let stage = Stage::with_events(1).await;
    let (third, fourth) = (Gate::closed(), Gate::closed());
    let actor = Actor::new("c")
        .at_first(1, 1, Act::Skip("odd"))
        .at(3, Act::Meet(third.clone()))
        .at(4, Act::Meet(fourth.clone()));
    let running = start_without_polls(&stage, actor.transactional().batch_size(1)).await;
    eventually(LIMIT, "the first is passed over", async || stage.standing("c").await.position == 1).await;
    stage.append(5).await;
    third.reached().await;
    let (operator, slow) = (stage.database.client().await, stage.database.client().await);
    operator.batch_execute("BEGIN; SELECT inorder.retry_dead_letter(1)").await.unwrap();
    let slow = tokio::spawn(async move {
        slow.batch_execute("BEGIN; LOCK TABLE inorder.dead_letters").await.unwrap();
        slow
    });
    let waits = |statement| {
        format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' \
             AND query LIKE '%{statement}%' AND pid <> pg_backend_pid()"
        )
    };
    let locking = waits("LOCK TABLE");
    eventually(LIMIT, "the lock is waited for", async || stage.count(&locking).await == 1).await;
    operator.batch_execute("COMMIT").await.unwrap();
    let polling = waits("inorder consumers/poll");
    eventually(LIMIT, "the poll waits", async || stage.count(&polling).await == 1).await;
    third.open();
    fourth.reached().await;
    slow.await.unwrap().batch_execute("COMMIT").await.unwrap();
    let polls = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
        AND query LIKE '%inorder consumers/poll%' AND pid <> pg_backend_pid()";
    eventually(LIMIT, "the poll is answered", async || stage.count(polls).await == 0).await;
    fourth.open();

    eventually(LIMIT, "the first is done, too", async || {
        let mut effects = stage.effects("c").await;
        effects.sort_unstable();
        effects == ids(1..=6)
    })
    .await;
    running.stop().await.unwrap();
}

/// Polls once an hour.
async fn start_without_polls(stage: &Stage, consumer: Consumer) -> Running {
    let dispatcher = stage.dispatcher([consumer]).poll_interval(Duration::from_secs(3_600));
    dispatcher.build().unwrap().start().await.unwrap()
}

/// I-4: nothing of it is kept, its consumer stands as it stood, and the letter is the operator's again: whatever fails.
#[tokio::test]
async fn a_dead_letter_that_fails_again_is_open_again() {
    let end_of_transaction = "CREATE TABLE parents (n int PRIMARY KEY); \
        CREATE TABLE children (n int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)";
    for (act, words) in [
        (Act::Fail("still no luck"), "still no luck"),
        (Act::Reject("never"), "never"),
        (Act::Panic("no"), "panicked"),
        (Act::Sql(SUICIDE), "57P01"),
        (Act::Swallow("SELECT 1 / 0"), "division by zero"),
        (Act::Sql("INSERT INTO children VALUES (1)"), "23503"),
        (Act::Hang, "did not finish within 300ms"),
        (Act::Sql("SELECT pg_sleep(60)"), "did not finish within 300ms"),
    ] {
        let stage = Stage::with_events(4).await;
        stage.sql(end_of_transaction).await;
        let skipping = stage.register([Actor::new("c").at(2, Act::Skip("odd")).transactional()]).await;
        skipping.drain().await.unwrap();
        retry_letters(&stage).await;
        let actor = Actor::new("c").at(2, act);
        let heard = actor.heard();
        let consumer = actor.transactional().handler_timeout(Duration::from_millis(300));
        let consumers = stage.register([consumer]).await;

        let report = consumers.drain().await.unwrap()["c"].clone();

        assert_eq!((report.failed, report.outcome), (1, Outcome::CaughtUp), "{words}");
        let letter = letter(&stage).await;
        assert_eq!((letter.state.as_str(), letter.attempts), ("open", 2), "{words}");
        assert!(letter.error.contains(words), "{words}: {letter:?}");
        assert_eq!((heard.all(), stage.effects("c").await), (vec![2], vec![1, 3, 4]), "{words}");
        let standing = stage.standing("c").await;
        assert_eq!((standing.position, standing.attempts, standing.faults), (4, 0, 0), "{words}");
    }
}

/// A retry leaves what is known of the event at which the consumer stands.
#[tokio::test]
async fn a_dead_letter_is_retried_while_another_event_fails() {
    let stage = Stage::with_events(4).await;
    let actor = Actor::new("c").at_first(2, 1, Act::Skip("odd")).at(4, Act::Fail("no luck"));
    let consumers = stage.register([actor.transactional()]).await;
    consumers.drain().await.unwrap();
    assert_eq!(stage.standing("c").await.attempts, 1);

    retry_letters(&stage).await;
    stage.due_now("c").await;
    let report = consumers.run_once().await.unwrap()["c"].clone();

    assert_eq!((report.processed, report.failed), (1, 0));
    assert_eq!(stage.effects("c").await, [1, 3, 2]);
    let standing = stage.standing("c").await;
    assert_eq!((standing.position, standing.attempts, standing.error()), (3, 1, "no luck"));
    consumers.drain().await.unwrap();
    assert_eq!(stage.standing("c").await.attempts, 2);
}

/// I-4: a letter that was settled by somebody else meanwhile is not delivered twice.
#[tokio::test]
async fn a_dead_letter_that_is_settled_meanwhile_has_no_effect() {
    let stage = Stage::with_events(3).await;
    let gate = Gate::closed();
    let once = Actor::new("c").at(2, Act::Skip("odd")).transactional();
    stage.register([once]).await.drain().await.unwrap();
    retry_letters(&stage).await;
    let consumers = stage.register([Actor::new("c").at(2, Act::Meet(gate.clone())).transactional()]).await;
    let pass = tokio::spawn(async move { consumers.drain().await });
    gate.reached().await;

    stage.sql("UPDATE inorder.dead_letters SET state = 'discarded'").await;
    gate.open();
    let report = pass.await.unwrap().unwrap()["c"].clone();

    assert_eq!((report.processed, report.outcome), (0, Outcome::CaughtUp));
    assert_eq!((stage.effects("c").await, letter(&stage).await.state.as_str()), (vec![1, 3], "discarded"));
}
