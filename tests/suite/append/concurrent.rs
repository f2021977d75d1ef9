//! Several who append at the same time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use inorder::{Append, Error, ExpectedVersion, Inorder, NewEvent};
use tokio::sync::Barrier;
use tokio::task::{JoinHandle, JoinSet};
use tokio_postgres::{Client, Transaction};

use super::answers::assert_streams_have_no_gaps;
use super::{Answer, Given, append, batch, count, log, new_events, one};
use crate::support::database::Database;
use crate::support::{database, eventually};
use ExpectedVersion::{Any, Exact, Exists, NoStream};

const LIMIT: Duration = Duration::from_secs(20);

/// An append in a transaction of its own that commits whatever the answer, so that it proves to be usable.
fn appending(db: &Database, expected: ExpectedVersion, given: &[Given]) -> JoinHandle<Result<Answer, Error>> {
    let (url, given) = (db.url().to_owned(), given.to_vec());
    tokio::spawn(async move {
        let log = log(&url).await;
        let mut client = log.get().await?;
        let tx = client.transaction().await.unwrap();
        let answer = Answer::of(log.append_in(&tx, expected, &new_events(&given)).await)?;
        tx.execute("SELECT 1", &[]).await.unwrap();
        tx.commit().await.unwrap();
        Ok(answer)
    })
}

/// Until a statement waits for another transaction.
async fn until_one_waits(client: &Client) {
    eventually(LIMIT, "an append waits", async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity
            WHERE wait_event_type = 'Lock' AND datname = current_database()";
        client.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
}

/// What `first` does in its transaction is followed by `second`, which waits; then `first` ends.
async fn one_after_the_other(
    db: &Database,
    first: impl AsyncFnOnce(&Transaction<'_>),
    commit: bool,
    expected: ExpectedVersion,
    second: &[Given],
) -> Result<Answer, Error> {
    let mut client = db.client().await;
    let observer = db.client().await;
    let tx = client.transaction().await.unwrap();
    first(&tx).await;
    let second = appending(db, expected, second);
    until_one_waits(&observer).await;
    if commit {
        tx.commit().await.unwrap();
    } else {
        tx.rollback().await.unwrap();
    }
    second.await.unwrap()
}

/// Two transactions with the same event: the second waits for the first, and finds the event there, or appends it.
#[tokio::test]
async fn the_same_event_from_two_transactions_is_appended_once() {
    for size in [1, 3] {
        for in_stream in [false, true] {
            let new = || if in_stream { Given::of("thing", "1") } else { Given::new("x", "1") };
            let given: Vec<Given> = (0..size).map(|_| new()).collect();
            for commit in [false, true] {
                let db = database().await;
                let first = async |tx: &Transaction<'_>| drop(batch(tx, Any, &given).await);
                let answer = one_after_the_other(&db, first, commit, Any, &given).await.unwrap();
                match answer {
                    Answer::Already(ids) if commit => assert_eq!(ids.len(), size),
                    Answer::Appended(ids) if !commit => assert_eq!(ids.len(), size),
                    other => panic!("{size} {in_stream} {commit}: {other:?}"),
                }
                assert_eq!(count(&db.client().await).await, i64::try_from(size).unwrap());
            }
        }
    }
}

/// The same key with other content is a mismatch, also when both are appended at the same time.
#[tokio::test]
async fn other_content_under_the_same_key_is_a_mismatch_also_at_the_same_time() {
    let db = database().await;
    let given = Given::new("x", "1");
    let other = given.with(|e| e.payload = "2".into());
    let first = async |tx: &Transaction<'_>| drop(one(tx, Any, &given).await.unwrap());
    let answer = one_after_the_other(&db, first, true, Any, &[other]).await.unwrap();
    assert!(matches!(answer, Answer::Mismatch(id, _) if id == given.event_id), "{answer:?}");
}

/// Batches that share a part cannot both be all or nothing: the second is told to try again, and then completes.
#[tokio::test]
async fn batches_that_overlap_are_retryable() {
    let db = database().await;
    let [a, b] = [Given::new("x", "1"), Given::new("x", "2")];
    let first = async |tx: &Transaction<'_>| drop(one(tx, Any, &a).await.unwrap());
    let both = [b, a.clone()];
    let error = one_after_the_other(&db, first, true, Any, &both).await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("40001"), "{error:?}");
    assert!(error.is_retryable());
    assert_eq!(count(&db.client().await).await, 1);
    let answer = appending(&db, Any, &both).await.unwrap().unwrap();
    assert!(matches!(answer, Answer::Completed(_, 1)), "{answer:?}");
}

/// Writers of one stream wait for each other; what the second answers is right about what the first did.
#[tokio::test]
async fn writers_of_one_stream_wait_for_each_other() {
    let appended = None;
    for (commit, expected, conflict) in [
        (true, Any, appended),
        (true, NoStream, Some(2)),
        (true, Exists, appended),
        (true, Exact(0), Some(2)),
        (true, Exact(2), appended),
        (false, Any, appended),
        (false, NoStream, appended),
        (false, Exists, Some(0)),
        (false, Exact(0), appended),
        (false, Exact(2), Some(0)),
    ] {
        for size in [1, 2] {
            let db = database().await;
            let new = |count| (0..count).map(|_| Given::of("thing", "1")).collect::<Vec<_>>();
            let first = async |tx: &Transaction<'_>| drop(batch(tx, Any, &new(2)).await);
            let answer = one_after_the_other(&db, first, commit, expected, &new(size)).await.unwrap();
            match conflict {
                Some(actual) => assert_eq!(answer, Answer::Conflict(actual), "{commit} {expected:?}"),
                None => assert!(matches!(answer, Answer::Appended(_)), "{commit} {expected:?}: {answer:?}"),
            }
            assert_streams_have_no_gaps(&db.client().await).await;
        }
    }
}

/// A raw INSERT takes no lock: the version that it took is noticed, and is a conflict or, for who expects nothing, no matter.
#[tokio::test]
async fn a_version_taken_by_a_raw_insert_is_noticed() {
    let insert = "INSERT INTO inorder.events (event_type, payload, stream_type, stream_id, stream_version)
        VALUES ('raw', '1', 'thing', '1', 1)";
    let raw = async |tx: &Transaction<'_>| assert_eq!(tx.execute(insert, &[]).await.unwrap(), 1);
    let new = |count| (0..count).map(|_| Given::of("thing", "1")).collect::<Vec<_>>();
    for (expected, conflict) in [(NoStream, true), (Exact(0), true), (Any, false)] {
        let db = database().await;
        let answer = one_after_the_other(&db, raw, true, expected, &new(1)).await.unwrap();
        match answer {
            Answer::Conflict(1) if conflict => {}
            Answer::Appended(_) if !conflict => {}
            other => panic!("{expected:?}: {other:?}"),
        }
        assert_streams_have_no_gaps(&db.client().await).await;
    }
    // A part of a batch cannot be taken back.
    let db = database().await;
    let error = one_after_the_other(&db, raw, true, Any, &new(2)).await.unwrap_err();
    assert!(error.is_retryable() && error.sqlstate() == Some("40001"), "{error:?}");
    assert_eq!(count(&db.client().await).await, 1);
}

/// Above READ COMMITTED a writer that was overtaken is told to try again, as the isolation level has it.
#[tokio::test]
async fn above_read_committed_a_writer_that_was_overtaken_is_retryable() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        for given in [vec![Given::of("thing", "1")], vec![Given::of("thing", "1"), Given::of("thing", "2")]] {
            let db = database().await;
            let log = log(db.url()).await;
            let mut other = db.client().await;
            let client = db.client().await;
            client.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT")).await.unwrap();
            // Its snapshot is taken; somebody else appends.
            client.execute("SELECT FROM inorder.events", &[]).await.unwrap();
            append(
                super::Way::In,
                &log,
                &mut other,
                Any,
                &[Given::of("thing", "1"), Given::of("thing", "2")],
            )
            .await;
            let tried = client.query_one("SELECT * FROM inorder.append('x', '1', 'thing', '1')", &[]).await;
            let error = tried.unwrap_err();
            assert_eq!(error.code().unwrap().code(), "40001", "{level}: {error:?}");
            client.batch_execute("ROLLBACK").await.unwrap();

            // And from Rust.
            let mut client = db.client().await;
            let tx =
                client.build_transaction().isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
            let tx = tx.start().await.unwrap();
            tx.execute("SELECT FROM inorder.events", &[]).await.unwrap();
            append(
                super::Way::In,
                &log,
                &mut other,
                Any,
                &given.iter().map(|e| e.with(|e| e.event_id = uuid::Uuid::new_v4())).collect::<Vec<_>>(),
            )
            .await;
            let error = log.append_in(&tx, Any, &new_events(&given)).await.unwrap_err();
            assert!(error.is_retryable() && error.sqlstate() == Some("40001"), "{level}: {error:?}");
        }
    }
}

/// Many writers who all expect nothing: no conflict, no gap.
#[tokio::test]
async fn any_never_conflicts() {
    let db = database().await;
    let mut writers = JoinSet::new();
    for writer in 0..8 {
        let log = log(db.url()).await;
        writers.spawn(async move {
            for round in 0..20 {
                let size = if (writer + round) % 3 == 0 { 3 } else { 1 };
                let events = new_events(&(0..size).map(|_| Given::of("thing", "1")).collect::<Vec<_>>());
                let append = log.append(Any, &events).await.unwrap();
                assert!(matches!(append, Append::Appended(_)), "{append:?}");
            }
        });
    }
    writers.join_all().await;
    assert_streams_have_no_gaps(&db.client().await).await;
}

/// Many writers who read the version and expect it: whoever is late is told the version, and nothing is written over.
#[tokio::test]
async fn of_writers_that_expect_the_same_version_one_wins() {
    let db = database().await;
    let mut writers = JoinSet::new();
    for _ in 0..6 {
        let log = log(db.url()).await;
        writers.spawn(async move {
            let mut expected = 0;
            for _ in 0..10 {
                let events = new_events(&[Given::of("thing", "1")]);
                loop {
                    match log.append(Exact(expected), &events).await.unwrap() {
                        Append::Appended(_) => break,
                        Append::Conflict { actual, .. } => {
                            assert!(actual > expected);
                            expected = actual;
                        }
                        other => panic!("{other:?}"),
                    }
                }
                expected += 1;
            }
        });
    }
    writers.join_all().await;
    let client = db.client().await;
    assert_eq!(count(&client).await, 60);
    assert_streams_have_no_gaps(&client).await;
}

/// Batches with the same streams in opposite orders: none waits for another in a circle.
#[tokio::test]
async fn batches_with_overlapping_streams_do_not_deadlock() {
    let db = database().await;
    let barrier = Arc::new(Barrier::new(4));
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        let (log, barrier) = (log(db.url()).await, Arc::clone(&barrier));
        writers.spawn(async move {
            for _ in 0..10 {
                let mut streams: Vec<u32> = (0..300).collect();
                match writer {
                    0 => {}
                    1 => streams.reverse(),
                    _ => fastrand::shuffle(&mut streams),
                }
                let events: Vec<NewEvent> =
                    streams.iter().map(|id| NewEvent::from_json("x", "1").in_stream("thing", id)).collect();
                barrier.wait().await;
                let append = log.append(Any, &events).await.unwrap();
                assert!(matches!(append, Append::Appended(_)), "{append:?}");
            }
        });
    }
    writers.join_all().await;
    let client = db.client().await;
    assert_eq!(count(&client).await, 4 * 10 * 300);
    assert_streams_have_no_gaps(&client).await;
}

/// A batch of any number of streams takes at most 1,024 locks, so that it does not exhaust the lock table.
#[tokio::test]
async fn a_batch_of_5000_streams_takes_at_most_1024_locks() {
    let db = database().await;
    let log: Inorder = log(db.url()).await;
    let mut client = db.client().await;
    let given: Vec<Given> = (0..5_000).map(|id| Given::of("thing", &id.to_string())).collect();
    let tx = client.transaction().await.unwrap();
    let answer = Answer::of(log.append_in(&tx, Any, &new_events(&given)).await).unwrap();
    assert!(matches!(answer, Answer::Appended(ids) if ids.len() == 5_000));
    let locks = tx
        .query(
            "SELECT objid::bigint FROM pg_locks
            WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND classid = 'inorder.events'::regclass",
            &[],
        )
        .await
        .unwrap();
    let buckets: HashSet<i64> = locks.iter().map(|row| row.get(0)).collect();
    assert_eq!(buckets.len(), locks.len());
    assert!(buckets.iter().all(|bucket| (0..1_024).contains(bucket)));
    assert!(buckets.len() > 900, "the streams spread: {}", buckets.len());
    tx.commit().await.unwrap();
}
