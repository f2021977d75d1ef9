//! Which of several events it was that failed.

use inorder::Outcome;

use super::{exhaust, ids};
use crate::support::{Act, Actor, Stage, at_once};

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
