//! Dead letters: listed, shown, retried, discarded.

use inorder::{DeadLetterState, DeadLetters, ErrorKind, SettledLetters};
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

/// Letters 1 to 40 of two consumers, for the events of the same id: every fifth of type `b`, with errors and reasons of all sorts.
async fn many() -> Scene {
    let scene = Scene::with(40).await;
    scene.consumer("search", 40).await;
    scene.consumer("totals", 40).await;
    let fill = "INSERT INTO inorder.dead_letters (consumer, position, event_id, event_type, error, reason) \
        SELECT CASE WHEN id > 30 THEN 'totals' ELSE 'search' END, id, event_id, event_type, \
               CASE WHEN id % 2 = 0 THEN 'Connection REFUSED' ELSE 'no such card' END, \
               CASE WHEN id <= 10 THEN 'rejected' ELSE 'exhausted' END \
        FROM inorder.events ORDER BY id";
    scene.client.batch_execute(fill).await.unwrap();
    scene
}

fn ids(settled: &SettledLetters) -> &[i64] {
    &settled.letters
}

#[tokio::test]
async fn many_are_retried_by_what_they_are_found_by_and_what_is_left_is_told() {
    let scene = many().await;
    let admin = &scene.admin;
    let retry = async |which: DeadLetters| admin.retry_dead_letters(&which).await.unwrap();
    let which = DeadLetters::open().of("search").reason("exhausted").error("refused").event_type("a");
    let listed = admin.dead_letters(&which).await.unwrap();
    let first = retry(which.clone().limit(3)).await;
    assert_eq!((ids(&first), first.left_out, first.more), (&[12, 14, 16][..], 0, true));
    let rest = retry(which).await;
    assert_eq!((ids(&rest), rest.more), (&[18, 22, 24, 26, 28][..], false));
    assert_eq!(listed.iter().map(|letter| letter.id).collect::<Vec<_>>(), [ids(&first), ids(&rest)].concat());
    let range = retry(DeadLetters::open().after(30).up_to(33)).await;
    assert_eq!((ids(&range), range.more), (&[31, 32, 33][..], false));

    let audit = scene.value("SELECT to_jsonb(a) FROM inorder.audit AS a WHERE id = 1").await;
    assert_eq!((&audit["action"], &audit["consumer"]), (&json!("retry_dead_letters"), &json!("search")));
    assert_eq!(audit["after"], json!({"state": "retry_requested", "letters": [12, 14, 16]}));
    assert_eq!(audit["before"]["error"], json!("refused"));
    assert_eq!(scene.value("SELECT count(*) FROM inorder.audit").await, json!(3), "one row for each action");
    let states =
        "SELECT count(*) FROM inorder.dead_letters WHERE state = 'retry_requested' AND updated_by = 'ops'";
    assert_eq!(scene.value(states).await, json!(11));

    let nothing = retry(DeadLetters::open().error("no such error")).await;
    assert_eq!(nothing, SettledLetters::default());
    assert_eq!(
        scene.value("SELECT count(*) FROM inorder.audit").await,
        json!(3),
        "nothing done, nothing noted"
    );
    refused(
        admin.retry_dead_letters(&DeadLetters::open().of("serach")).await,
        ErrorKind::NotRegistered,
        &["\"search\""],
    );
    refused(
        admin.retry_dead_letters(&DeadLetters::any()).await,
        ErrorKind::Precondition,
        &["open or discarded"],
    );
}

#[tokio::test]
async fn many_are_discarded_within_the_limit_and_the_time() {
    let scene = many().await;
    let past = time::OffsetDateTime::now_utc() - time::Duration::hours(1);
    let none = scene.admin.discard_dead_letters(&DeadLetters::open().stop_at(past)).await.unwrap();
    assert_eq!((none.letters.len(), none.more), (0, true));
    let later = DeadLetters::open().stop_at(past + time::Duration::hours(2));
    let mut discarded = Vec::new();
    loop {
        let step = scene.admin.discard_dead_letters(&later.clone().limit(17)).await.unwrap();
        discarded.push(step.letters.len());
        if !step.more {
            break;
        }
    }
    assert_eq!(discarded, [17, 17, 6]);
    let again = DeadLetters::any().state(DeadLetterState::Discarded).of("totals");
    assert_eq!(scene.admin.retry_dead_letters(&again).await.unwrap().letters.len(), 10);
}

/// What cannot be delivered is left out and counted; so is what a pass holds.
#[tokio::test]
async fn of_many_those_that_cannot_be_retried_or_are_held_are_left_out() {
    let scene = many().await;
    scene
        .client
        .batch_execute("SELECT inorder.reset('search', 3), inorder.reset('search', 40)")
        .await
        .unwrap();
    scene.admin.unregister("totals").await.unwrap();
    scene.client.batch_execute("UPDATE inorder.dead_letters SET state = 'open'").await.unwrap();
    let pass = scene.database.client().await;
    pass.batch_execute("BEGIN; UPDATE inorder.dead_letters SET attempts = 1 WHERE id = 7").await.unwrap();
    let settled = scene.admin.retry_dead_letters(&DeadLetters::open().limit(1_000)).await.unwrap();
    assert_eq!(settled.letters.len(), 29, "30 of search, but for one that is held");
    assert_eq!(settled.left_out, 12, "that one, a range, and ten of a consumer that is gone");
    assert!(!settled.more);
    pass.batch_execute("COMMIT").await.unwrap();
    let settled = scene.admin.retry_dead_letters(&DeadLetters::open()).await.unwrap();
    assert_eq!((ids(&settled), settled.left_out), (&[7][..], 11));
    let settled = scene.admin.discard_dead_letters(&DeadLetters::open()).await.unwrap();
    assert_eq!((settled.letters.len(), settled.left_out), (11, 0));
}
