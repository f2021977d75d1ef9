//! Dead letters that an operator wants retried.

use std::time::Duration;

use inorder::{Consumer, Outcome, Running};

use super::{SUICIDE, ids, letter};
use crate::support::{Act, Actor, Gate, LIMIT, Stage, eventually};

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
