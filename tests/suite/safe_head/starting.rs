//! Where a consumer may begin, and what `safe_head()` answers.

use std::collections::HashSet;
use std::time::SystemTime;

use inorder::{ErrorKind, Start};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{LIMIT, Scene, drain, safe_head};
use crate::support::{Recording, Writer, database, eventually};

/// One snapshot for all its statements cannot see what commits between them.
#[tokio::test]
async fn safe_head_refuses_to_be_asked_above_read_committed() {
    let db = database().await;
    let client = db.client().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        client.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}")).await.unwrap();
        let refused = client.query_one("SELECT inorder.safe_head()", &[]).await.unwrap_err();
        assert_eq!(refused.code(), Some(&SqlState::from_code("IO006")), "{refused:?}");
        assert!(refused.as_db_error().unwrap().message().contains(level), "{refused:?}");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
}

/// What is ours and uncommitted is visible to us, and to no consumer.
#[tokio::test]
async fn safe_head_does_not_count_what_the_caller_has_not_committed() {
    let scene = Scene::new().await;
    scene.append().await;
    scene.delivered().await;
    let (writer, 2) = scene.open_writer().await else { panic!() };
    assert_eq!(safe_head(writer.client()).await, 1);
    writer.run("SAVEPOINT s; ROLLBACK TO s").await;
    assert_eq!(safe_head(writer.client()).await, 1);
    writer.commit().await;
    assert_eq!(safe_head(writer.client()).await, 2);
}

#[tokio::test]
async fn safe_head_is_the_contiguous_prefix_while_somebody_writes() {
    let scene = Scene::new().await;
    let writer = scene.writer().await;
    writer.append_many(25_000).await;
    let (late, 25_001) = scene.open_writer().await else { panic!() };
    writer.append().await;
    assert_eq!(scene.safe_head().await, 25_000);
    late.roll_back().await;
    assert_eq!(scene.safe_head().await, 25_002);
}

/// I-1: `Head` is never the highest id.
#[tokio::test]
async fn a_consumer_that_starts_at_the_head_gets_what_was_being_written() {
    let scene = Scene::new().await;
    scene.append().await;
    let (late, 2) = scene.open_writer().await else { panic!() };
    scene.append().await;
    let dispatcher = scene.seen.builder();
    let tail = Recording::consumer("tail").start(Start::Head);
    let registered = dispatcher.consumer(tail).build().unwrap().register().await.unwrap();
    late.commit().await;
    drain(&registered).await;
    assert_eq!(scene.seen.ids_of("tail").await, [2, 3]);
    assert_eq!(scene.seen.ids().await, [1, 2, 3]);
}

#[tokio::test]
async fn a_start_at_the_head_waits_a_moment_for_those_who_are_writing() {
    let scene = Scene::new().await;
    let (late, 1) = scene.open_writer().await else { panic!() };
    scene.append().await;
    let dispatcher =
        scene.seen.builder().consumer(Recording::consumer("tail").start(Start::Head)).build().unwrap();
    let client = scene.db.client().await;
    let (registered, ()) = tokio::join!(dispatcher.register(), async {
        asks_again(&client).await;
        late.commit().await;
    });
    let registered = registered.unwrap();
    scene.append().await;
    drain(&registered).await;
    assert_eq!(scene.seen.ids_of("tail").await, [3]);
    assert_eq!(scene.seen.ids().await, [1, 2, 3]);
}

/// Waits until somebody has read the locks, twice.
async fn asks_again(client: &Client) {
    let asked = "SELECT query_start FROM pg_stat_activity \
        WHERE datname = current_database() AND query LIKE '-- inorder safe_head/writers%'";
    let mut times = HashSet::new();
    eventually(LIMIT, "the locks are read again", async || {
        times.extend(client.query(asked, &[]).await.unwrap().iter().map(|row| row.get::<_, SystemTime>(0)));
        times.len() > 1
    })
    .await;
}

/// I-1: on a busy log, what was appended after the registration is delivered, and what was settled before it is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_head_of_a_busy_log_is_found_without_losing_anything() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    let db = database().await;
    let seen = Recording::on(db.url()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for n in 0..6 {
        let (url, stop) = (db.url().to_owned(), Arc::clone(&stop));
        writers.push(tokio::spawn(async move {
            let writer = Writer::on(&url).await;
            while !stop.load(Ordering::Relaxed) {
                writer.run("BEGIN").await;
                writer.append_many(1 + n % 3).await;
                tokio::time::sleep(std::time::Duration::from_millis(3)).await;
                writer.run(if fastrand::u32(..10) == 0 { "ROLLBACK" } else { "COMMIT" }).await;
            }
        }));
    }
    let client = db.client().await;
    for round in 0..5 {
        let settled = safe_head(&client).await;
        let name = format!("tail{round}");
        let tail = Recording::consumer(&name).start(Start::Head);
        let registered = seen.builder().consumer(tail).build().unwrap().register().await.unwrap();
        let after: i64 = client.query_one("SELECT max(id) FROM inorder.events", &[]).await.unwrap().get(0);
        drain(&registered).await;
        let begins: i64 = client
            .query_one("SELECT position FROM inorder.consumers WHERE name = $1", &[&name])
            .await
            .unwrap()
            .get(0);
        assert!(begins >= settled && begins >= 0, "{begins} {settled} {after}");
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    let tails = (0..5).map(|round| Recording::consumer(&format!("tail{round}")).start(Start::Head));
    let registered = tails
        .fold(seen.builder(), inorder::DispatcherBuilder::consumer)
        .build()
        .unwrap()
        .register()
        .await
        .unwrap();
    drain(&registered).await;
    seen.assert_complete().await;
    let all = seen.ids().await;
    for round in 0..5 {
        let tail = seen.ids_of(&format!("tail{round}")).await;
        let first = all.iter().position(|id| id == &tail[0]).expect("it is in the log");
        assert_eq!(tail, all[first..], "nothing is missing from where it began");
    }
}

/// I-1: a start beyond the safe head would pass over what is being written.
#[tokio::test]
async fn a_start_beyond_the_safe_head_is_refused() {
    let scene = Scene::new().await;
    scene.append().await;
    let (late, 2) = scene.open_writer().await else { panic!() };
    scene.append().await;
    let register = || async {
        let late_comer = Recording::consumer("late comer").start(Start::After(2));
        scene.seen.builder().consumer(late_comer).build().unwrap().register().await
    };
    let refused = register().await.expect_err("2 may still come");
    assert_eq!(refused.kind(), ErrorKind::Config);
    assert!(refused.report().contains("beyond the safe head 1"), "{}", refused.report());
    late.commit().await;
    drain(&register().await.unwrap()).await;
    assert_eq!(scene.seen.ids_of("late comer").await, [3]);
}
