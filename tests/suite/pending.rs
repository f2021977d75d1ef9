//! Events that a producer records for a queued consumer, in the transaction that appends them.

use std::time::Duration;

use inorder::{Append, Consumer, Dispatcher, ErrorKind, ExpectedVersion, Inorder, NewEvent, Running};
use tokio_postgres::{Client, Transaction};

use crate::support::database::Database;
use crate::support::{LIMIT, Runs, Writer, database, eventually, process, within};

struct Scene {
    db: Database,
    log: Inorder,
    client: Client,
    runs: Runs,
}

impl Scene {
    async fn new() -> Scene {
        let db = database().await;
        let (log, client) = (Inorder::connect(db.url()).await.unwrap(), db.client().await);
        Scene { db, log, client, runs: Runs::default() }
    }

    /// A dispatcher that polls that rarely.
    async fn start(&self, log: &Inorder, consumer: Consumer, poll_interval: Duration) -> Running {
        let dispatcher = Dispatcher::builder(log).consumer(consumer).poll_interval(poll_interval).build();
        dispatcher.unwrap().start().await.unwrap_or_else(|e| panic!("{e:?}"))
    }

    async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }
}

/// Nothing but a nudge wakes it.
const NEVER: Duration = Duration::from_secs(3_600);

fn in_stream(id: &str) -> NewEvent {
    NewEvent::from_json("thing.happened", "{}").in_stream("thing", id)
}

async fn append(log: &Inorder, tx: &Transaction<'_>, event: NewEvent) -> i64 {
    match log.append_in(tx, ExpectedVersion::Any, &[event]).await.unwrap() {
        Append::Appended(ids) => ids[0],
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_recorded_in_a_transaction_that_rolls_back_is_not_run() {
    let mut scene = Scene::new().await;
    let consumer = scene.runs.consumer("mail");
    let registered = Dispatcher::builder(&scene.log).consumer(consumer).build().unwrap();
    let registered = registered.register().await.unwrap();
    let tx = scene.client.transaction().await.unwrap();
    let id = append(&scene.log, &tx, in_stream("a")).await;
    let pending = scene.log.record_pending_in(&tx, &[id], "mail").await.unwrap();
    assert_eq!(pending.consumers(), ["mail"]);
    tx.rollback().await.unwrap();
    pending.dispatch();
    registered.drain().await.unwrap();
    assert_eq!((scene.runs.count(), scene.number("SELECT count(*) FROM inorder.ledger").await), (0, 0));
}

/// I-5.
#[tokio::test]
async fn what_is_recorded_is_run_at_once_however_far_behind_the_queue_is_and_once() {
    let mut scene = Scene::new().await;
    let running = scene.start(&scene.log, scene.runs.consumer("mail"), NEVER).await;
    // The position cannot move while this one is open.
    let hole = Writer::in_transaction(scene.db.url()).await;
    let held = hole.append().await;
    let behind = Writer::on(scene.db.url()).await.append_many(50).await;
    let tx = scene.client.transaction().await.unwrap();
    let id = append(&scene.log, &tx, in_stream("a")).await;
    let pending = scene.log.record_pending_in(&tx, &[id], "mail").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(scene.runs.count(), 0);
    pending.dispatch();
    eventually(LIMIT, "it is run", async || scene.runs.count() == 1).await;
    assert_eq!(scene.runs.ids(), [id]);
    let done = "SELECT count(*) FROM inorder.ledger WHERE status = 'done'";
    eventually(LIMIT, "it is done", async || scene.number(done).await == 1).await;
    assert_eq!(scene.number("SELECT position FROM inorder.consumers").await, 0);

    hole.commit().await;
    eventually(LIMIT, "everything is done", async || scene.number(done).await == 52).await;
    within("stopping", running.stop()).await.unwrap();
    let mut ids = scene.runs.ids();
    ids.sort_unstable();
    let all: Vec<i64> = std::iter::once(held).chain(behind).chain([id]).collect();
    assert_eq!(ids, all);
}

/// I-5: whoever appended it may die.
#[tokio::test]
async fn what_a_producer_recorded_before_it_died_is_run_by_another_process() {
    let scene = Scene::new().await;
    let running = scene.start(&scene.log, scene.runs.consumer("mail"), Duration::from_millis(20)).await;
    let hole = Writer::in_transaction(scene.db.url()).await;
    hole.append().await;
    let status = process::this_program("suite::pending::appends_records_and_dies")
        .env(DATABASE, scene.db.url())
        .output()
        .unwrap()
        .status;
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(6), "{status}");
    eventually(LIMIT, "it is run", async || scene.runs.count() == 1).await;
    hole.commit().await;
    let done = "SELECT count(*) FROM inorder.ledger WHERE status = 'done'";
    eventually(LIMIT, "both are done", async || scene.number(done).await == 2).await;
    running.stop().await.unwrap();
    assert_eq!(scene.runs.count(), 2);
}

const DATABASE: &str = "INORDER_TEST_PENDING_IN";

#[tokio::test]
#[ignore = "no test: a producer that dies, started by a test"]
async fn appends_records_and_dies() {
    let Ok(url) = std::env::var(DATABASE) else { return };
    let log = Inorder::connect(url).await.unwrap();
    let mut client = log.get().await.unwrap();
    let tx = client.transaction().await.unwrap();
    let id = append(&log, &tx, in_stream("a")).await;
    let _pending = log.record_pending_in(&tx, &[id], "mail").await.unwrap();
    tx.commit().await.unwrap();
    std::process::abort();
}

/// I-5.
#[tokio::test]
async fn what_is_recorded_while_passes_run_is_run_once() {
    let scene = Scene::new().await;
    let poll = Duration::from_millis(20);
    let first = scene.start(&scene.log, scene.runs.consumer("mail"), poll).await;
    let other_log = Inorder::connect(scene.db.url()).await.unwrap();
    let second = scene.start(&other_log, scene.runs.consumer("mail"), poll).await;
    let producers = (0..4).map(|producer| {
        let log = if producer % 2 == 0 { scene.log.clone() } else { other_log.clone() };
        tokio::spawn(async move {
            let mut client = log.get().await.unwrap();
            for n in 0..50 {
                let tx = client.transaction().await.unwrap();
                let id = append(&log, &tx, in_stream(&format!("{producer}/{n}"))).await;
                match n % 2 {
                    0 => {
                        let pending = log.record_pending_in(&tx, &[id], "mail").await.unwrap();
                        tx.commit().await.unwrap();
                        pending.dispatch();
                    }
                    _ => tx.commit().await.unwrap(),
                }
            }
        })
    });
    for producer in producers.collect::<Vec<_>>() {
        within("appending", producer).await.unwrap();
    }
    let done = "SELECT count(*) FROM inorder.ledger WHERE status = 'done'";
    eventually(LIMIT, "everything is done", async || scene.number(done).await == 200).await;
    let passed = "SELECT count(*) FROM inorder.consumers \
        WHERE position = (SELECT max(id) FROM inorder.events)";
    eventually(LIMIT, "everything is passed", async || scene.number(passed).await == 1).await;
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    let times = scene.runs.times();
    assert_eq!((times.len(), scene.runs.count()), (200, 200), "{times:?}");
}

#[tokio::test]
async fn what_is_recorded_in_a_stream_that_is_handled_in_order_waits_for_what_is_in_front_of_it() {
    let mut scene = Scene::new().await;
    let running = scene.start(&scene.log, scene.runs.consumer("mail").in_stream_order(), NEVER).await;
    let hole = Writer::in_transaction(scene.db.url()).await;
    let held = hole.append().await;
    let _ = scene.log.append(ExpectedVersion::Any, &[in_stream("a")]).await.unwrap();
    let tx = scene.client.transaction().await.unwrap();
    let second = append(&scene.log, &tx, in_stream("a")).await;
    let alone = append(&scene.log, &tx, NewEvent::from_json("thing.happened", "{}")).await;
    let pending = scene.log.record_pending_in(&tx, &[second, alone], "mail").await.unwrap();
    tx.commit().await.unwrap();
    pending.dispatch();
    // What is in no stream waits for nothing.
    eventually(LIMIT, "the one without a stream is run", async || scene.runs.count() == 1).await;
    assert_eq!(scene.runs.ids(), [alone]);
    hole.commit().await;
    eventually(LIMIT, "everything is run", async || scene.runs.count() == 4).await;
    running.stop().await.unwrap();
    let ids = scene.runs.ids();
    let place = |id: i64| ids.iter().position(|run| *run == id);
    assert!(place(second - 1) < place(second) && place(held).is_some(), "{ids:?}");
}

/// Rows that were recorded, rows that a pass made, and those of dead letters that are retried wait for each other.
#[tokio::test]
async fn a_stream_has_one_name_in_the_ledger_whoever_writes_it() {
    let mut scene = Scene::new().await;
    let consumer = scene.runs.consumer("mail").in_stream_order();
    let dispatcher = Dispatcher::builder(&scene.log).consumer(consumer).build().unwrap();
    let registered = dispatcher.register().await.unwrap();
    let odd = || NewEvent::from_json("thing.happened", "{}").tenant("a/b").in_stream("größe", "1 '/ ☃");
    let _ = scene.log.append(ExpectedVersion::Any, &[odd()]).await.unwrap();
    let tx = scene.client.transaction().await.unwrap();
    let id = append(&scene.log, &tx, odd()).await;
    let _pending = scene.log.record_pending_in(&tx, &[id], "mail").await.unwrap();
    tx.commit().await.unwrap();
    registered.drain().await.unwrap();
    let names = "SELECT count(DISTINCT stream) FROM inorder.ledger WHERE stream IS NOT NULL GROUP BY handler \
        HAVING count(*) = 2";
    assert_eq!(scene.number(names).await, 1);

    let letter = "INSERT INTO inorder.dead_letters (consumer, position, event_id, event_type, reason) \
        SELECT 'mail', id, event_id, event_type, 'exhausted' FROM inorder.events WHERE id = 1";
    scene.client.batch_execute(letter).await.unwrap();
    let event = &scene.log.read(0, 1).await.unwrap()[0];
    scene.log.admin().ledger_forget(event, "mail").await.unwrap();
    scene.log.admin().retry_dead_letter(1).await.unwrap();
    assert_eq!(scene.number(names).await, 1);
}

#[tokio::test]
async fn what_cannot_be_recorded_leaves_the_transaction_usable() {
    let mut scene = Scene::new().await;
    for consumer in
        [scene.runs.consumer("mail"), Consumer::effect_fn("bill", |_, _| Box::pin(async { Ok(()) }))]
    {
        let dispatcher = Dispatcher::builder(&scene.log).consumer(consumer).build().unwrap();
        dispatcher.register().await.unwrap();
    }
    let floor = "INSERT INTO inorder.ledger_floors (handler, floor) VALUES ('mail', 1)";
    scene.client.batch_execute(floor).await.unwrap();
    let tx = scene.client.transaction().await.unwrap();
    let old = append(&scene.log, &tx, in_stream("a")).await;
    let id = append(&scene.log, &tx, in_stream("a")).await;
    assert_eq!((old, id), (1, 2));
    for (ids, consumer, why) in [
        (vec![id], "post", "no queued consumer 'post' is registered"),
        (vec![id], "bill", "no queued consumer 'bill' is registered"),
        (vec![id, 99], "mail", "there is no event 99"),
        (vec![id, old], "mail", "event 1 lies at or below the floor"),
    ] {
        let error = scene.log.record_pending_in(&tx, &ids, consumer).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition);
        assert!(error.to_string().contains(why), "{error}");
    }
    let pending = scene.log.record_pending_in(&tx, &[id, id], "mail").await.unwrap();
    assert_eq!(pending.consumers(), ["mail"]);
    let again = scene.log.record_pending_in(&tx, &[id], "mail").await.unwrap();
    assert_eq!(again.consumers(), [""; 0]);
    tx.commit().await.unwrap();
    assert_eq!(scene.number("SELECT count(*) FROM inorder.ledger").await, 1);
}

/// An operator's word, and that of a newer process, hold for what was recorded, too.
#[tokio::test]
async fn what_is_recorded_waits_while_the_consumer_is_disabled_or_a_newer_revisions() {
    let mut scene = Scene::new().await;
    let dispatcher = |consumer| Dispatcher::builder(&scene.log).consumer(consumer).build().unwrap();
    let registered = dispatcher(scene.runs.consumer("mail")).register().await.unwrap();
    let newer = Runs::default();
    let tx = scene.client.transaction().await.unwrap();
    let id = append(&scene.log, &tx, in_stream("a")).await;
    scene.log.record_pending_in(&tx, &[id], "mail").await.unwrap().dispatch();
    tx.commit().await.unwrap();
    scene.log.admin().by("ops").disable("mail").await.unwrap();
    registered.run_once().await.unwrap();
    assert_eq!(scene.runs.count(), 0);
    let newest = dispatcher(newer.consumer("mail").revision(2)).register().await.unwrap();
    scene.log.admin().by("ops").enable("mail").await.unwrap();
    registered.run_once().await.unwrap();
    assert_eq!(scene.runs.count(), 0);
    newest.run_once().await.unwrap();
    assert_eq!((scene.runs.count(), newer.ids()), (0, vec![id]));
}

/// A producer that had seen the consumer may commit after it is gone.
#[tokio::test]
async fn what_is_recorded_while_the_consumer_is_unregistered_is_forgotten_when_that_is_asked_for_again() {
    let mut scene = Scene::new().await;
    let dispatcher = Dispatcher::builder(&scene.log).consumer(scene.runs.consumer("mail")).build().unwrap();
    drop(dispatcher.register().await.unwrap());
    let tx = scene.client.transaction().await.unwrap();
    let id = append(&scene.log, &tx, in_stream("a")).await;
    let _pending = scene.log.record_pending_in(&tx, &[id], "mail").await.unwrap();
    let admin = scene.log.admin().by("ops");
    admin.unregister("mail").await.unwrap();
    tx.commit().await.unwrap();
    let left = "SELECT count(*) FROM inorder.ledger";
    assert_eq!(scene.number(left).await, 1);
    assert_eq!(admin.unregister("mail").await.unwrap()[0].before["pending"], 1);
    assert_eq!(scene.number(left).await, 0);
    assert_eq!(admin.unregister("mail").await.unwrap_err().kind(), ErrorKind::NotRegistered);
}
