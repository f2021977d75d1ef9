//! Reading: the log up to the safe head, a stream to its end, one event by its name.

use std::time::Duration;

use inorder::{Append, Config, Event, ExpectedVersion, Inorder, NewEvent};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::database;
use ExpectedVersion::Any;

async fn log(url: &str) -> Inorder {
    Inorder::connect(url).await.unwrap()
}

fn ids(events: &[Event]) -> Vec<i64> {
    events.iter().map(Event::id).collect()
}

fn versions(events: &[Event]) -> Vec<i64> {
    events.iter().map(|e| e.stream_version().unwrap()).collect()
}

async fn append(log: &Inorder, events: &[NewEvent]) {
    let append = log.append(Any, events).await.unwrap();
    assert!(matches!(append, Append::Appended(_)), "{append:?}");
}

/// Many events without a stream, quickly.
async fn fill(client: &Client, count: i32, payload: &str) {
    let insert = "INSERT INTO inorder.events (event_type, payload)
        SELECT 'x', $2::text::json FROM generate_series(1, $1)";
    client.execute(insert, &[&count, &payload]).await.unwrap();
}

/// What is read is never followed by an event with a lower id: an open writer ends the reading.
#[tokio::test]
async fn a_reader_never_passes_an_open_writer() {
    let db = database().await;
    let log = log(db.url()).await;
    let mut writer = db.client().await;
    append(&log, &[NewEvent::from_json("x", "1")]).await;
    let tx = writer.transaction().await.unwrap();
    let late = log.append_in(&tx, Any, &[NewEvent::from_json("x", "2")]).await.unwrap();
    assert_eq!(late, Append::Appended(vec![2]));
    append(&log, &[NewEvent::from_json("x", "3")]).await;

    assert_eq!(ids(&log.read(0, 10).await.unwrap()), [1]);
    assert!(log.read(1, 10).await.unwrap().is_empty());
    assert_eq!(log.safe_head().await.unwrap(), 1);
    tx.commit().await.unwrap();
    assert_eq!(ids(&log.read(1, 10).await.unwrap()), [2, 3]);
    assert_eq!(log.safe_head().await.unwrap(), 3);

    // A hole that nobody can fill any more is passed.
    let tx = writer.transaction().await.unwrap();
    let undone = log.append_in(&tx, Any, &[NewEvent::from_json("x", "4")]).await.unwrap();
    assert_eq!(undone, Append::Appended(vec![4]));
    tx.rollback().await.unwrap();
    append(&log, &[NewEvent::from_json("x", "5")]).await;
    assert_eq!(ids(&log.read(3, 10).await.unwrap()), [5]);
}

/// Writers at work all the while: a reader that goes on from its last id sees every event once, in id order.
#[tokio::test]
async fn a_reader_that_goes_on_from_its_last_id_sees_every_event_in_order() {
    let db = database().await;
    let log = log(db.url()).await;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..6 {
        let log = log.clone();
        writers.spawn(async move {
            for round in 0..40 {
                let mut client = log.get().await.unwrap();
                let tx = client.transaction().await.unwrap();
                let appended = log.append_in(&tx, Any, &[NewEvent::from_json("x", "1")]).await.unwrap();
                assert!(matches!(appended, Append::Appended(_)));
                tokio::task::yield_now().await;
                if (writer + round) % 5 == 0 { tx.rollback().await } else { tx.commit().await }.unwrap();
            }
        });
    }
    let mut seen = Vec::new();
    let reader = Inorder::connect(db.url()).await.unwrap();
    let mut writing = true;
    loop {
        let page = reader.read(seen.last().copied().unwrap_or(0), 7).await.unwrap();
        seen.extend(ids(&page));
        if page.is_empty() {
            if !writing {
                break;
            }
            writing = writers.try_join_next().is_some() || !writers.is_empty();
        }
    }
    let client = db.client().await;
    let rows = client.query("SELECT id FROM inorder.events ORDER BY id", &[]).await.unwrap();
    assert_eq!(seen, rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>());
    assert_eq!(seen.len(), 6 * 40 - 6 * 8);
}

#[tokio::test]
async fn a_page_of_the_log_ends_at_its_limit_and_the_next_one_begins_there() {
    let db = database().await;
    let log = log(db.url()).await;
    assert!(log.read(0, 10).await.unwrap().is_empty());
    fill(&db.client().await, 25, "1").await;
    assert_eq!(ids(&log.read(0, 10).await.unwrap()), (1..=10).collect::<Vec<_>>());
    assert_eq!(ids(&log.read(10, 10).await.unwrap()), (11..=20).collect::<Vec<_>>());
    assert_eq!(ids(&log.read(20, 10).await.unwrap()), (21..=25).collect::<Vec<_>>());
    assert_eq!(log.read(0, usize::MAX).await.unwrap().len(), 25);
    assert!(log.read(0, 0).await.unwrap().is_empty());
    assert!(log.read(25, 10).await.unwrap().is_empty());
    assert!(log.read(i64::MAX, 10).await.unwrap().is_empty());
    assert_eq!(log.read(-5, 1).await.unwrap().len(), 1);
}

/// However large the events, a page is some megabytes, and everything is read in the end.
#[tokio::test]
async fn memory_is_bounded_in_bytes() {
    const BOUND: usize = 34 * 1024 * 1024;
    let db = database().await;
    let log = log(db.url()).await;
    let client = db.client().await;
    // A payload that does not compress, and one that does, very well.
    let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(1_000_000).collect();
    fill(&client, 20, &format!("\"{random}\"")).await;
    fill(&client, 80, &format!("\"{}\"", "x".repeat(1_000_000))).await;
    let (mut seen, mut pages) = (Vec::new(), 0);
    loop {
        let page = log.read(seen.last().copied().unwrap_or(0), 1_000).await.unwrap();
        if page.is_empty() {
            break;
        }
        let bytes: usize = page.iter().map(|e| e.payload_json().len()).sum();
        assert!(bytes <= BOUND, "{bytes}");
        seen.extend(ids(&page));
        pages += 1;
    }
    assert_eq!(seen, (1..=100).collect::<Vec<_>>());
    assert!(pages >= 5, "{pages}");

    client
        .batch_execute(
            "INSERT INTO inorder.events (event_type, payload, stream_type, stream_id, stream_version)
            SELECT event_type, payload, 'large', '1', id FROM inorder.events ORDER BY id",
        )
        .await
        .unwrap();
    let mut stream = log.read_stream("large", 1);
    for version in 1..=100 {
        assert_eq!(stream.next().await.unwrap().unwrap().stream_version(), Some(version));
    }
    assert!(stream.next().await.unwrap().is_none());
    assert_eq!(
        versions(&log.read_stream("large", 1).backward().all().await.unwrap()),
        (1..=100).rev().collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_stream_is_read_from_where_and_in_the_direction_that_is_asked_for() {
    let db = database().await;
    let log = log(db.url()).await;
    let of = |id: u32| NewEvent::from_json("x", "1").in_stream("thing", id);
    append(&log, &[of(1), of(2), of(1), of(1).tenant("t"), of(1), of(2)]).await;
    let read = || log.read_stream("thing", 1);

    assert_eq!(versions(&read().all().await.unwrap()), [1, 2, 3]);
    assert_eq!(versions(&read().from_version(2).all().await.unwrap()), [2, 3]);
    assert_eq!(versions(&read().from_version(4).all().await.unwrap()), [0i64; 0]);
    assert_eq!(versions(&read().limit(2).all().await.unwrap()), [1, 2]);
    assert_eq!(versions(&read().limit(0).all().await.unwrap()), [0i64; 0]);
    assert_eq!(versions(&read().backward().all().await.unwrap()), [3, 2, 1]);
    assert_eq!(versions(&read().backward().limit(1).all().await.unwrap()), [3]);
    assert_eq!(versions(&read().backward().from_version(2).all().await.unwrap()), [2, 1]);
    assert_eq!(ids(&read().tenant("t").all().await.unwrap()), [4]);
    assert_eq!(ids(&log.read_stream("thing", 2).all().await.unwrap()), [2, 6]);
    assert_eq!(ids(&log.read_stream("other", 1).all().await.unwrap()), [0i64; 0]);
    assert_eq!(ids(&log.read_stream("thing", "1 ").all().await.unwrap()), [0i64; 0]);

    let mut one_by_one = read().limit(2);
    assert_eq!(one_by_one.next().await.unwrap().unwrap().stream_version(), Some(1));
    assert_eq!(one_by_one.next().await.unwrap().unwrap().stream_version(), Some(2));
    assert!(one_by_one.next().await.unwrap().is_none());
    assert!(one_by_one.next().await.unwrap().is_none());
}

/// Longer than a page, both ways, and also when the limit is beyond a page.
#[tokio::test]
async fn a_long_stream_is_read_whole() {
    let db = database().await;
    let log = log(db.url()).await;
    let insert = "INSERT INTO inorder.events (event_type, payload, stream_type, stream_id, stream_version)
        SELECT 'x', '1', 'long', '1', n FROM generate_series(1, 2000) AS n";
    db.client().await.batch_execute(insert).await.unwrap();
    let read = || log.read_stream("long", 1);
    assert_eq!(versions(&read().all().await.unwrap()), (1..=2_000).collect::<Vec<_>>());
    assert_eq!(versions(&read().backward().all().await.unwrap()), (1..=2_000).rev().collect::<Vec<_>>());
    assert_eq!(read().limit(1_500).all().await.unwrap().len(), 1_500);
}

/// A stream is read to its end, also past a writer that is open elsewhere: its own writers wait for each other.
#[tokio::test]
async fn a_stream_is_read_past_the_safe_head() {
    let db = database().await;
    let log = log(db.url()).await;
    let mut writer = db.client().await;
    let tx = writer.transaction().await.unwrap();
    let open = log.append_in(&tx, Any, &[NewEvent::from_json("x", "1")]).await.unwrap();
    assert!(matches!(open, Append::Appended(_)));
    append(&log, &[NewEvent::from_json("x", "1").in_stream("thing", 1)]).await;
    assert_eq!(log.safe_head().await.unwrap(), 0);
    assert_eq!(versions(&log.read_stream("thing", 1).all().await.unwrap()), [1]);
}

#[tokio::test]
async fn an_event_is_found_by_its_name() {
    let db = database().await;
    let log = log(db.url()).await;
    let name = Uuid::now_v7();
    append(&log, &[NewEvent::from_json("x", "1"), NewEvent::from_json("y", "2").event_id(name)]).await;
    let event = log.event(name).await.unwrap().unwrap();
    assert_eq!((event.id(), event.event_type(), event.payload::<i32>().unwrap()), (2, "y", 2));
    assert!(log.event(Uuid::now_v7()).await.unwrap().is_none());
}

/// A read that hangs ends at its deadline, and its session is not given to the next one.
#[tokio::test]
async fn a_read_that_hangs_ends_and_the_next_one_has_a_session_of_its_own() {
    let db = database().await;
    let statement_timeout = Duration::from_millis(300);
    let config = Config { statement_timeout, pool_size: 1, ..Config::new(db.url()) };
    let log = Inorder::with_config(config).await.unwrap();
    let before = backend(&log).await;
    let holder = db.client().await;
    holder.batch_execute("BEGIN; LOCK TABLE inorder.events IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let error = log.event(Uuid::nil()).await.unwrap_err();
    assert_eq!(error.kind(), inorder::ErrorKind::Timeout, "{error:?}");
    assert_ne!(backend(&log).await, before);
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert!(log.event(Uuid::nil()).await.unwrap().is_none());
}

/// The session that the pool gives.
async fn backend(log: &Inorder) -> i32 {
    let client = log.get().await.unwrap();
    let asking = client.query_typed_one("SELECT pg_backend_pid()", &[]);
    tokio::time::timeout(Duration::from_secs(10), asking)
        .await
        .expect("a session that answers")
        .unwrap()
        .get(0)
}

/// The futures can be spawned.
#[tokio::test]
async fn a_read_can_run_on_any_thread() {
    let db = database().await;
    let log = log(db.url()).await;
    let task = tokio::spawn(async move {
        log.read(0, 1).await?;
        log.event(Uuid::nil()).await?;
        let mut stream = log.read_stream("thing", 1);
        stream.next().await?;
        stream.all().await
    });
    assert!(task.await.unwrap().unwrap().is_empty());
}
