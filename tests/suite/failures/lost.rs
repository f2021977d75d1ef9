//! Failures that take the transaction, or the session, with them.

use inorder::Outcome;

use super::{SUICIDE, exhaust, ids, letter};
use crate::support::{Act, Actor, Stage, at_once};

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
