//! Following the log without being a consumer.

use std::time::Duration;

use inorder::{Append, ExpectedVersion, Follower, Inorder, NewEvent};
use tokio_postgres::Client;

use crate::support::database::Database;
use crate::support::{connect, database};

const LIMIT: Duration = Duration::from_secs(30);
/// Long enough for some looks at the log.
const A_MOMENT: Duration = Duration::from_millis(400);

async fn log(db: &Database) -> Inorder {
    Inorder::connect(db.url()).await.unwrap()
}

async fn append(log: &Inorder, count: usize) -> Vec<i64> {
    let events: Vec<NewEvent> = (0..count).map(|n| NewEvent::from_json("counted", n.to_string())).collect();
    match log.append(ExpectedVersion::Any, &events).await.unwrap() {
        Append::Appended(ids) => ids,
        other => panic!("{other:?}"),
    }
}

/// A transaction that has appended and does not end yet.
async fn open_writer(url: &str) -> Client {
    let client = connect(url).await;
    client
        .batch_execute("BEGIN; INSERT INTO inorder.events (event_type, payload) VALUES ('late', '0')")
        .await
        .unwrap();
    client
}

async fn take(follower: &mut Follower, count: usize) -> Vec<i64> {
    let mut ids = Vec::new();
    while ids.len() < count {
        let events = tokio::time::timeout(LIMIT, follower.next()).await.expect("there is an event").unwrap();
        assert!(!events.is_empty());
        ids.extend(events.iter().map(inorder::Event::id));
    }
    ids
}

/// I-1, I-2: of what there is, and of what comes.
#[tokio::test]
async fn a_follower_gets_every_event_in_order_from_any_place() {
    let db = database().await;
    let log = log(&db).await;
    let mut ids = append(&log, 2_500).await;
    let mut all = log.follow(0);
    let mut some = log.follow(ids[1_999]);
    assert_eq!(take(&mut all, 2_500).await, ids);
    assert_eq!(take(&mut some, 500).await, ids[2_000..]);
    assert_eq!(some.position(), ids[2_499]);

    ids.extend(append(&log, 3).await);
    assert_eq!(take(&mut some, 3).await, ids[2_500..]);
    all.stop().await.unwrap();
    some.stop().await.unwrap();
    let left = db.client().await.query_one("SELECT count(*) FROM inorder.instances", &[]).await.unwrap();
    assert_eq!(left.get::<_, i64>(0), 0);
}

/// I-1: also when its calls are dropped while it waits.
#[tokio::test]
async fn a_follower_never_passes_an_open_writer() {
    let db = database().await;
    let log = log(&db).await;
    let writer = open_writer(db.url()).await;
    let behind = append(&log, 2).await;
    let mut follower = log.follow(0);
    for _ in 0..3 {
        assert!(
            tokio::time::timeout(A_MOMENT, follower.next()).await.is_err(),
            "event {} is still open",
            behind[0] - 1
        );
    }
    writer.batch_execute("COMMIT").await.unwrap();
    assert_eq!(take(&mut follower, 3).await, [behind[0] - 1, behind[0], behind[1]]);
}

/// A log in which somebody is always writing, and in which nobody has settled anything, is followed all the same.
#[tokio::test]
async fn a_follower_gets_on_while_writers_overlap_without_end() {
    let db = database().await;
    let log = log(&db).await;
    open_writer(db.url()).await.batch_execute("ROLLBACK").await.unwrap();
    let mut writer = open_writer(db.url()).await;
    let ids = append(&log, 2).await;
    assert!(log.read(0, 10).await.unwrap().is_empty(), "a single look stops at the hole");

    let following = tokio::spawn({
        let mut follower = log.follow(0);
        async move { take(&mut follower, 2).await }
    });
    while !following.is_finished() {
        let next = open_writer(db.url()).await;
        writer.batch_execute("ROLLBACK").await.unwrap();
        writer = next;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(following.await.unwrap(), ids);
}

#[tokio::test]
async fn a_follower_whose_connection_is_lost_goes_on_with_the_next_call() {
    let db = database().await;
    let log = log(&db).await;
    let first = append(&log, 1).await;
    let mut follower = log.follow(0);
    assert_eq!(take(&mut follower, 1).await, first);

    let others = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    db.client().await.batch_execute(others).await.unwrap();
    let error = tokio::time::timeout(LIMIT, follower.next()).await.expect("an answer").unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    let second = append(&log, 1).await;
    assert_eq!(take(&mut follower, 1).await, second);
}
