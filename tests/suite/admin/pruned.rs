//! I-9: a consumer whose unread events were pruned does not run until somebody accepts that.

use inorder::{DeadLetters, ErrorKind, Reset, Start};
use serde_json::json;

use super::{Scene, refused};

const MISSING: &str =
    "SELECT inorder.pruned_unread(position, accepted_to, event_types)::text FROM inorder.consumers";

/// A disabled consumer at 4, and everything up to 20 pruned.
async fn scene() -> Scene {
    let scene = Scene::with(30).await;
    scene.consumer("search", 4).await;
    scene.set("search", "status = 'disabled'").await;
    let day = "SELECT inorder.prune(recorded_at) FROM inorder.events WHERE id = 21";
    scene.client.query_one(day, &[]).await.unwrap();
    assert_eq!(scene.ids().await, (21..=30).collect::<Vec<_>>());
    scene
}

#[tokio::test]
async fn what_was_pruned_unread_is_shown_and_accepted_with_a_dead_letter() {
    let scene = scene().await;
    assert_eq!(scene.value(MISSING).await, json!("[5,21)"));
    let progress = &scene.admin.progress("search").await.unwrap()[0];
    assert_eq!((progress.missing_from, progress.missing_to), (Some(5), Some(20)));
    let changes = scene.admin.accept_pruned("search").await.unwrap();
    assert_eq!((&changes[0].after["accepted_to"], &changes[0].after["position"]), (&json!(20), &json!(20)));
    assert_eq!(scene.value(MISSING).await, json!(null));
    let letters = scene.admin.dead_letters(&DeadLetters::any()).await.unwrap();
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    let range = (letter.position, letter.position_to, letter.reason.as_str(), letter.created_by.as_str());
    assert_eq!(range, (5, Some(20), "pruned", "ops"));
    refused(
        scene.admin.accept_pruned("search").await,
        ErrorKind::Precondition,
        &["no event that it has not read"],
    );
}

#[tokio::test]
async fn what_is_missing_begins_behind_what_was_accepted() {
    let scene = scene().await;
    scene.admin.accept_pruned("search").await.unwrap();
    scene
        .client
        .query_one("SELECT inorder.prune(recorded_at) FROM inorder.events WHERE id = 26", &[])
        .await
        .unwrap();
    assert_eq!(scene.value(MISSING).await, json!("[21,26)"));
}

#[tokio::test]
async fn no_event_is_skipped_before_what_is_missing_is_accepted() {
    let scene = scene().await;
    let event = scene.event_id(21).await;
    refused(
        scene.admin.skip_poison("search", event).await,
        ErrorKind::Precondition,
        &["[5,21)", "accept_pruned()"],
    );
    scene.admin.accept_pruned("search").await.unwrap();
    scene.admin.skip_poison("search", event).await.unwrap();
}

#[tokio::test]
async fn no_consumer_is_moved_below_what_was_pruned_unless_that_is_accepted() {
    let scene = scene().await;
    for place in [Start::Beginning, Start::After(19)] {
        let refusal = scene.admin.reset("search", place).await;
        refused(refusal, ErrorKind::Precondition, &["were pruned", "reset to 20 or above"]);
    }
    let ranges = async || -> Vec<_> {
        let letters = scene.admin.dead_letters(&DeadLetters::any()).await.unwrap();
        letters.into_iter().map(|l| (l.position, l.position_to, l.reason)).collect()
    };
    // Forwards, what it had not read leaves its letter, and what it reads no more another.
    scene.admin.reset("search", Start::After(25)).await.unwrap();
    assert_eq!(ranges().await, [(5, Some(20), "pruned".into()), (21, Some(25), "operator_skip".into())]);
    refused(scene.admin.reset("search", Start::After(2)).await, ErrorKind::Precondition, &["were pruned"]);
    scene.admin.reset("search", Reset::to(Start::After(2)).accept_pruned()).await.unwrap();
    let row = scene.row("search").await;
    assert_eq!((&row["position"], &row["accepted_to"]), (&json!(20), &json!(20)));
    assert_eq!(ranges().await[2..], [(3, Some(20), "pruned".into())]);
}

/// What is left of a range is still delivered.
#[tokio::test]
async fn a_consumer_stays_in_front_of_what_is_left_of_the_range() {
    let scene = Scene::with(30).await;
    scene.dead("search", 4).await;
    scene.set("search", "status = 'disabled'").await;
    scene.client.query_one("SELECT inorder.prune('2030-01-01', '{b}')", &[]).await.unwrap();
    let changes = scene.admin.accept_pruned("search").await.unwrap();
    let after = &changes[0].after;
    assert_eq!(
        (&after["accepted_to"], &after["position"], &after["attempts"]),
        (&json!(30), &json!(4), &json!(10))
    );
    scene.admin.reset("search", Reset::to(Start::Beginning).accept_pruned()).await.unwrap();
    assert_eq!(scene.row("search").await["position"], json!(0));
}

/// What is pruned was settled, also where it was the end of the log.
#[tokio::test]
async fn the_end_of_the_log_stays_where_it_was_when_its_last_events_are_pruned() {
    let scene = Scene::with(30).await;
    scene.client.query_one("SELECT inorder.prune('2030-01-01', '{b}')", &[]).await.unwrap();
    assert_eq!(scene.ids().await.last(), Some(&29));
    let log = scene.admin.log_progress().await.unwrap();
    assert_eq!((log.head, log.safe_head, log.hole), (30, 30, None));
    scene.consumer("search", 0).await;
    scene.admin.reset("search", Reset::to(Start::Head).accept_pruned()).await.unwrap();
    assert_eq!(scene.value(MISSING).await, json!(null), "who begins at the head misses nothing");
    assert_eq!(scene.admin.list().await.unwrap()[0].lag, 0);
}

/// Of types that were pruned by themselves, only those that a consumer wants are missing.
#[tokio::test]
async fn only_a_consumer_that_wants_a_pruned_type_misses_it() {
    let scene = Scene::with(30).await;
    scene.consumer("search", 4).await;
    scene.set("search", "status = 'disabled', event_types = '{a}'").await;
    scene.client.query_one("SELECT inorder.prune('2030-01-01', '{b}')", &[]).await.unwrap();
    assert_eq!(scene.value(MISSING).await, json!(null));
    scene.set("search", "event_types = '{a,b}'").await;
    assert_eq!(scene.value(MISSING).await, json!("[5,31)"));
    scene.set("search", "event_types = NULL").await;
    assert_eq!(scene.value(MISSING).await, json!("[5,31)"));
}
