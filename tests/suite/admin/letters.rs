//! Dead letters: listed, shown, retried, discarded.

use inorder::{DeadLetterState, DeadLetters, ErrorKind};
use serde_json::json;

use super::{Scene, beside, refused};

/// A consumer that passed over events 1 and 2, and another that passed over 1.
async fn scene() -> Scene {
    let scene = Scene::with(10).await;
    for (name, id) in [("search", 1), ("search", 2), ("totals", 1)] {
        if id == 1 {
            scene.consumer(name, 0).await;
        }
        scene.admin.skip_poison(name, scene.event_id(id).await).await.unwrap();
    }
    scene
}

#[tokio::test]
async fn dead_letters_are_listed_by_consumer_and_state_and_in_parts() {
    let scene = scene().await;
    let admin = &scene.admin;
    let ids = async |which: DeadLetters| -> Vec<i64> {
        admin.dead_letters(&which).await.unwrap().iter().map(|l| l.id).collect()
    };
    assert_eq!(ids(DeadLetters::open()).await, [1, 2, 3]);
    assert_eq!(ids(DeadLetters::open().of("totals")).await, [3]);
    assert_eq!(ids(DeadLetters::open().limit(2)).await, [1, 2]);
    assert_eq!(ids(DeadLetters::open().limit(2).after(2)).await, [3]);
    admin.discard_dead_letter(2).await.unwrap();
    assert_eq!(ids(DeadLetters::open()).await, [1, 3]);
    assert_eq!(ids(DeadLetters::any()).await, [1, 2, 3]);
    assert_eq!(ids(DeadLetters::any().state(DeadLetterState::Discarded)).await, [2]);
    refused(
        admin.dead_letters(&DeadLetters::open().of("serach")).await,
        ErrorKind::NotRegistered,
        &["\"search\""],
    );
}

#[tokio::test]
async fn a_dead_letter_is_shown_with_its_event() {
    let scene = scene().await;
    let (letter, event) = scene.admin.dead_letter(2).await.unwrap();
    let event = event.unwrap();
    assert_eq!((letter.position, letter.event_id), (2, Some(event.event_id())));
    assert_eq!((event.id(), event.event_type(), event.payload_json()), (2, "a", "{\"n\" : 2}"));
    refused(scene.admin.dead_letter(99).await, ErrorKind::NotRegistered, &["no dead letter 99"]);
}

#[tokio::test]
async fn a_retry_is_asked_for_once_and_only_of_what_can_be_delivered() {
    let scene = scene().await;
    let admin = &scene.admin;
    let change = admin.retry_dead_letter(1).await.unwrap();
    assert_eq!(
        (&change.before["state"], &change.after["state"]),
        (&json!("open"), &json!("retry_requested"))
    );
    assert_eq!(change.after["updated_by"], json!("ops"));
    refused(admin.retry_dead_letter(1).await, ErrorKind::Precondition, &["its state is retry_requested"]);
    refused(admin.retry_dead_letter(99).await, ErrorKind::NotRegistered, &["no dead letter 99"]);
    scene
        .client
        .execute("UPDATE inorder.dead_letters SET state = 'resolved' WHERE id = 1", &[])
        .await
        .unwrap();
    refused(admin.retry_dead_letter(1).await, ErrorKind::Precondition, &["its state is resolved"]);
    refused(admin.discard_dead_letter(1).await, ErrorKind::Precondition, &["its state is resolved"]);

    admin.discard_dead_letter(2).await.unwrap();
    refused(admin.discard_dead_letter(2).await, ErrorKind::Precondition, &["its state is discarded"]);
    admin.retry_dead_letter(2).await.unwrap();

    admin.unregister("totals").await.unwrap();
    refused(admin.retry_dead_letter(3).await, ErrorKind::NotRegistered, &["no consumer \"totals\""]);
}

#[tokio::test]
async fn a_range_is_not_retried() {
    let scene = scene().await;
    scene.client.batch_execute("SELECT inorder.reset('totals', 7)").await.unwrap();
    let letters = scene.admin.dead_letters(&DeadLetters::any().of("totals")).await.unwrap();
    let range = letters.last().unwrap();
    assert_eq!((range.position, range.position_to, range.event_id), (2, Some(7), None));
    refused(
        scene.admin.retry_dead_letter(range.id).await,
        ErrorKind::Precondition,
        &["a range, 2 to 7", "reset()"],
    );
    assert!(scene.admin.dead_letter(range.id).await.unwrap().1.is_none());
}

/// A discarded letter no longer keeps its event.
#[tokio::test]
async fn what_was_pruned_is_not_retried() {
    let scene = scene().await;
    for id in 1..=3 {
        scene.admin.discard_dead_letter(id).await.unwrap();
    }
    let everything = inorder::Prune::before(time::OffsetDateTime::now_utc() + time::Duration::days(9_000));
    scene.admin.prune(&everything, |_| ()).await.unwrap();
    assert!(scene.admin.dead_letter(1).await.unwrap().1.is_none());
    refused(scene.admin.retry_dead_letter(1).await, ErrorKind::Precondition, &["no longer in the log"]);
}

#[tokio::test]
async fn a_dead_letter_that_is_being_delivered_is_busy() {
    let scene = scene().await;
    let pass = scene.database.client().await;
    pass.batch_execute("BEGIN; UPDATE inorder.dead_letters SET attempts = 1 WHERE id = 1").await.unwrap();
    let pid: i32 = pass.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let admin = scene.admin.clone();
    let retry = beside(async move { admin.retry_dead_letter(1).await });
    refused(
        scene.admin.discard_dead_letter(1).await,
        ErrorKind::Busy,
        &[&format!("pid {pid}"), "dead letter 1"],
    );
    refused(retry.await.unwrap(), ErrorKind::Busy, &["dead letter 1"]);
    pass.batch_execute("COMMIT").await.unwrap();
    scene.admin.discard_dead_letter(1).await.unwrap();
}
