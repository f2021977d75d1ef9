//! The safe head: no consumer ever passes an event that may still come, and none waits for one that cannot.

mod assumptions;
mod looking;
mod random;
mod starting;

use std::time::Duration;

use inorder::{Config, Inorder, Registered, Report};
use tokio_postgres::Client;

use crate::support::database::Database;
use crate::support::{Recording, Writer, database, eventually};

const LIMIT: Duration = Duration::from_secs(30);

/// A log, a recording consumer, and writers.
struct Scene {
    db: Database,
    seen: Recording,
    registered: Registered,
}

impl Scene {
    async fn new() -> Scene {
        let db = database().await;
        let seen = Recording::on(db.url()).await;
        let registered = seen.register().await;
        Scene { db, seen, registered }
    }

    /// A writer outside a transaction.
    async fn writer(&self) -> Writer {
        Writer::on(self.db.url()).await
    }

    /// A writer that has begun a transaction and appended; the id.
    async fn open_writer(&self) -> (Writer, i64) {
        let writer = Writer::in_transaction(self.db.url()).await;
        let id = writer.append().await;
        (writer, id)
    }

    /// Appends an event and commits.
    async fn append(&self) -> i64 {
        self.writer().await.append().await
    }

    /// Delivers what is safe; what has been delivered in all.
    async fn delivered(&self) -> Vec<i64> {
        drain(&self.registered).await;
        self.seen.ids().await
    }

    async fn safe_head(&self) -> i64 {
        safe_head(&self.db.client().await).await
    }
}

async fn drain(registered: &Registered) -> Report {
    registered.drain().await.unwrap_or_else(|e| panic!("{e:?}"))
}

async fn safe_head(client: &Client) -> i64 {
    client.query_one("SELECT inorder.safe_head()", &[]).await.unwrap().get(0)
}

/// Waits until a session of this database that runs a statement like this one waits for a lock.
async fn waits_for_a_lock(client: &Client, statement: &str) {
    let waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity \
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1)";
    eventually(LIMIT, "a session waits for a lock", async || {
        client.query_one(waiting, &[&statement]).await.unwrap().get(0)
    })
    .await;
}

/// I-1: the late lower id.
#[tokio::test]
async fn a_reader_never_passes_an_open_writer() {
    let scene = Scene::new().await;
    let (late, 1) = scene.open_writer().await else { panic!() };
    assert_eq!(scene.append().await, 2);
    assert_eq!(scene.delivered().await, [0; 0]);
    assert_eq!(scene.safe_head().await, 0);

    late.commit().await;

    assert_eq!(scene.delivered().await, [1, 2]);
    assert_eq!(scene.safe_head().await, 2);
}

/// I-1, I-10: however long it takes, and however often it is looked at.
#[tokio::test]
async fn no_number_of_looks_passes_an_open_writer() {
    let scene = Scene::new().await;
    let (late, _) = scene.open_writer().await;
    for _ in 0..30 {
        scene.append().await;
        assert_eq!(drain(&scene.registered).await["all"].processed, 0);
    }
    late.commit().await;
    assert_eq!(scene.delivered().await, (1..=31).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_lies_in_front_of_a_hole_is_delivered_meanwhile() {
    let scene = Scene::new().await;
    scene.append().await;
    scene.append().await;
    let (late, 3) = scene.open_writer().await else { panic!() };
    assert_eq!(scene.append().await, 4);
    assert_eq!(scene.delivered().await, [1, 2]);
    assert_eq!(scene.safe_head().await, 2);
    late.roll_back().await;
    assert_eq!(scene.delivered().await, [1, 2, 4]);
}

/// I-1. A transaction id that was taken long before the place in the log: a filter by the snapshot's horizon waits here, and is
/// right for the wrong reason.
#[tokio::test]
async fn business_first_and_the_event_later_is_waited_for_from_the_event_on() {
    let scene = Scene::new().await;
    let business = Writer::in_transaction(scene.db.url()).await;
    business.run("CREATE TABLE orders (n int); INSERT INTO orders VALUES (1)").await;
    assert_eq!(scene.append().await, 1);
    assert_eq!(scene.delivered().await, [1], "it has not appended yet");
    assert_eq!(business.append().await, 2);
    assert_eq!(scene.append().await, 3);
    assert_eq!(scene.delivered().await, [1]);
    business.commit().await;
    assert_eq!(scene.delivered().await, [1, 2, 3]);
}

/// I-1. The place in the log is taken before the transaction has an id, so no horizon of transaction ids shows it.
#[tokio::test]
async fn a_place_taken_without_a_transaction_id_is_waited_for() {
    let scene = Scene::new().await;
    assert_eq!(scene.append().await, 1);
    let slow = Writer::in_transaction(scene.db.url()).await;
    slow.client().query_one("SELECT nextval('inorder.events_id_seq')", &[]).await.unwrap();
    let taken = slow.client().query_one("SELECT pg_current_xact_id_if_assigned()::text", &[]).await.unwrap();
    assert_eq!(taken.get::<_, Option<&str>>(0), None, "this is what the test is about");
    assert_eq!(scene.append().await, 3);
    assert_eq!(scene.delivered().await, [1]);
    slow.run(
        "INSERT INTO inorder.events (id, event_type, payload) OVERRIDING SYSTEM VALUE VALUES (2, 'x', '{}')",
    )
    .await;
    slow.commit().await;
    assert_eq!(scene.delivered().await, [1, 2, 3]);
}

#[tokio::test]
async fn a_hole_at_the_very_start_is_waited_for_and_passed() {
    let scene = Scene::new().await;
    let (late, 1) = scene.open_writer().await else { panic!() };
    assert_eq!(scene.append().await, 2);
    assert_eq!(scene.delivered().await, [0; 0]);
    late.roll_back().await;
    assert_eq!(scene.delivered().await, [2]);
}

#[tokio::test]
async fn an_empty_table_whose_first_insert_rolled_back_is_at_its_head() {
    let scene = Scene::new().await;
    let (gone, 1) = scene.open_writer().await else { panic!() };
    assert_eq!(scene.delivered().await, [0; 0]);
    gone.roll_back().await;
    assert_eq!(scene.delivered().await, [0; 0]);
    assert_eq!(scene.safe_head().await, 0);
    assert_eq!(scene.append().await, 2);
    assert_eq!(scene.delivered().await, [2]);
}

#[tokio::test]
async fn ten_thousand_rolled_back_ids_are_one_hole() {
    let scene = Scene::new().await;
    let writer = Writer::in_transaction(scene.db.url()).await;
    writer.append_many(10_000).await;
    assert_eq!(scene.append().await, 10_001);
    assert_eq!(scene.delivered().await, [0; 0]);
    writer.roll_back().await;
    assert_eq!(scene.delivered().await, [10_001]);
    assert_eq!(scene.safe_head().await, 10_001);
}

/// I-1. The lock is not given back with the savepoint: what comes after it may still take lower ids than those of others.
#[tokio::test]
async fn a_writer_that_rolled_back_to_a_savepoint_is_still_waited_for() {
    let scene = Scene::new().await;
    let writer = Writer::in_transaction(scene.db.url()).await;
    writer.run("SAVEPOINT s").await;
    assert_eq!(writer.append().await, 1);
    writer.run("ROLLBACK TO s").await;
    assert_eq!(scene.append().await, 2);
    assert_eq!(scene.delivered().await, [0; 0]);
    assert_eq!(writer.append().await, 3);
    assert_eq!(scene.append().await, 4);
    writer.commit().await;
    assert_eq!(scene.delivered().await, [2, 3, 4]);
}

/// I-1.
#[tokio::test]
async fn copy_is_waited_for_like_any_other_writer() {
    use futures_util::SinkExt;

    let scene = Scene::new().await;
    let copying = Writer::in_transaction(scene.db.url()).await;
    let copy = "COPY inorder.events (event_type, payload) FROM STDIN";
    let sink = copying.client().copy_in::<_, &[u8]>(copy).await.unwrap();
    futures_util::pin_mut!(sink);
    sink.send(b"copied\t{}\ncopied\t{}\n").await.unwrap();
    assert_eq!(sink.finish().await.unwrap(), 2);
    assert_eq!(scene.append().await, 3);
    assert_eq!(scene.delivered().await, [0; 0]);
    copying.commit().await;
    assert_eq!(scene.delivered().await, [1, 2, 3]);
}

/// I-1. The append happens inside COMMIT, after everything that the client sent.
#[tokio::test]
async fn a_deferred_trigger_that_appends_at_commit_is_waited_for() {
    let scene = Scene::new().await;
    let watcher = scene.db.client().await;
    let setup = "CREATE TABLE orders (n int);
        CREATE FUNCTION place() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO inorder.events (event_type, payload) VALUES ('order.placed', '{}');
            PERFORM pg_advisory_xact_lock(1);
            RETURN NULL;
        END $$;
        CREATE CONSTRAINT TRIGGER placed AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION place()";
    watcher.batch_execute(setup).await.unwrap();
    watcher.batch_execute("SELECT pg_advisory_lock(1)").await.unwrap();
    let shop = Writer::in_transaction(scene.db.url()).await;
    shop.run("INSERT INTO orders VALUES (1)").await;
    let committing = tokio::spawn(async move { shop.commit().await });
    waits_for_a_lock(&scene.db.client().await, "COMMIT").await;
    assert_eq!(scene.append().await, 2);
    assert_eq!(scene.delivered().await, [0; 0]);
    watcher.batch_execute("SELECT pg_advisory_unlock(1)").await.unwrap();
    committing.await.unwrap();
    assert_eq!(scene.delivered().await, [1, 2]);
}

/// I-1.
#[tokio::test]
async fn writers_above_read_committed_are_waited_for() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let scene = Scene::new().await;
        let writer = scene.writer().await;
        writer.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM inorder.events")).await;
        assert_eq!(scene.append().await, 1);
        assert_eq!(writer.append().await, 2);
        assert_eq!(scene.append().await, 3);
        assert_eq!(scene.delivered().await, [1], "{level}");
        writer.commit().await;
        assert_eq!(scene.delivered().await, [1, 2, 3], "{level}");
    }
}

/// I-7. Locks are told apart by sequence and by database, also where the sequences have the same number: these databases are clones of one.
#[tokio::test]
async fn long_writers_elsewhere_delay_nothing() {
    let scene = Scene::new().await;
    let other_table = Writer::in_transaction(scene.db.url()).await;
    other_table.run("CREATE TABLE orders (n bigint GENERATED ALWAYS AS IDENTITY, m int); INSERT INTO orders (m) VALUES (1)").await;
    let other_log = Config { schema: "other".into(), ..Config::new(scene.db.url()) };
    Inorder::with_config(other_log).await.unwrap().migrate().await.unwrap();
    let other_schema = Writer::in_transaction(scene.db.url()).await;
    other_schema.run("INSERT INTO other.events (event_type, payload) VALUES ('x', '{}')").await;
    let elsewhere = database().await;
    let other_database = Writer::in_transaction(elsewhere.url()).await;
    other_database.append().await;
    let (gone, 1) = scene.open_writer().await else { panic!() };
    gone.roll_back().await;
    assert_eq!(scene.append().await, 2);
    assert_eq!(scene.delivered().await, [2]);
    other_table.commit().await;
    other_schema.commit().await;
    other_database.commit().await;
}

#[tokio::test]
async fn of_two_holes_each_is_waited_for() {
    let scene = Scene::new().await;
    let (first, 1) = scene.open_writer().await else { panic!() };
    scene.append().await;
    let (second, 3) = scene.open_writer().await else { panic!() };
    scene.append().await;
    assert_eq!(scene.delivered().await, [0; 0]);
    second.commit().await;
    assert_eq!(scene.delivered().await, [0; 0]);
    first.commit().await;
    assert_eq!(scene.delivered().await, [1, 2, 3, 4]);

    let (first, 5) = scene.open_writer().await else { panic!() };
    scene.append().await;
    assert_eq!(scene.delivered().await, [1, 2, 3, 4]);
    let (second, 7) = scene.open_writer().await else { panic!() };
    scene.append().await;
    first.roll_back().await;
    assert_eq!(scene.delivered().await, [1, 2, 3, 4, 6]);
    second.roll_back().await;
    assert_eq!(scene.delivered().await, [1, 2, 3, 4, 6, 8]);
}

/// Whoever could fill the second hole was already writing when the first was found: nobody is asked again.
#[tokio::test]
async fn what_was_waited_for_at_one_hole_counts_at_the_next() {
    let scene = Scene::new().await;
    let (first, 1) = scene.open_writer().await else { panic!() };
    let (second, 2) = scene.open_writer().await else { panic!() };
    scene.append().await;
    assert_eq!(scene.delivered().await, [0; 0]);
    first.commit().await;
    let (third, 4) = scene.open_writer().await else { panic!() };
    scene.append().await;
    assert_eq!(scene.delivered().await, [1]);
    second.roll_back().await;
    assert_eq!(scene.delivered().await, [1, 3], "the third writer is no concern of the second's hole");
    third.commit().await;
    assert_eq!(scene.delivered().await, [1, 3, 4, 5]);
}

/// I-1. A writer that fills two holes, of which the second was seen only after the first was filled.
#[tokio::test]
async fn a_writer_that_fills_holes_one_by_one_is_waited_for_each_time() {
    let scene = Scene::new().await;
    let (both, 1) = scene.open_writer().await else { panic!() };
    scene.append().await;
    assert_eq!(scene.delivered().await, [0; 0]);
    let (other, 3) = scene.open_writer().await else { panic!() };
    assert_eq!(both.append().await, 4);
    scene.append().await;
    both.commit().await;
    assert_eq!(scene.delivered().await, [1, 2]);
    other.commit().await;
    assert_eq!(scene.delivered().await, [1, 2, 3, 4, 5]);
}

/// No starvation: there is always somebody writing, but those who came later do not matter.
#[tokio::test]
async fn a_hole_in_front_of_thousands_is_passed_while_others_keep_writing() {
    let scene = Scene::new().await;
    let (late, 1) = scene.open_writer().await else { panic!() };
    scene.writer().await.append_many(3_000).await;
    let (mut current, mut id) = scene.open_writer().await;
    for _ in 0..20 {
        assert_eq!(scene.delivered().await, [0; 0]);
        let (next, next_id) = scene.open_writer().await;
        current.commit().await;
        (current, id) = (next, next_id);
    }
    late.roll_back().await;
    assert_eq!(scene.delivered().await, (2..id).collect::<Vec<_>>());
    current.commit().await;
    assert_eq!(scene.delivered().await, (2..=id).collect::<Vec<_>>());
}

/// I-1. Rows, then locks, then rows again: what was committed between the first two is found by the third.
#[tokio::test]
async fn a_commit_between_the_look_and_the_reading_of_the_locks_is_not_passed() {
    let scene = Scene::new().await;
    let (late, 1) = scene.open_writer().await else { panic!() };
    assert_eq!(scene.append().await, 2);
    let lock = scene.db.client().await;
    // The statement that reads the locks reads the consumers, too; the look does not.
    lock.batch_execute("BEGIN; LOCK TABLE inorder.consumers IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let (_, ()) = tokio::join!(drain(&scene.registered), async {
        waits_for_a_lock(&scene.db.client().await, "-- inorder safe_head/writers%").await;
        late.commit().await;
        lock.batch_execute("COMMIT").await.unwrap();
    });
    assert_eq!(scene.seen.ids().await, [1, 2]);
}

/// I-1. The highest id that counts is the one of the look, not one that was seen after the locks.
#[tokio::test]
async fn a_writer_that_comes_after_the_locks_were_read_fills_its_own_hole() {
    let scene = Scene::new().await;
    let (late, 1) = scene.open_writer().await else { panic!() };
    assert_eq!(scene.append().await, 2);
    assert_eq!(scene.delivered().await, [0; 0]);
    let (later, 3) = scene.open_writer().await else { panic!() };
    assert_eq!(scene.append().await, 4);
    late.commit().await;
    assert_eq!(scene.delivered().await, [1, 2]);
    later.commit().await;
    assert_eq!(scene.delivered().await, [1, 2, 3, 4]);
}

/// I-1, I-2.
#[tokio::test]
async fn a_dispatcher_that_begins_in_the_middle_of_a_hole_waits_for_it_too() {
    let Scene { db, seen, registered } = Scene::new().await;
    let writer = Writer::on(db.url()).await;
    writer.append().await;
    let late = Writer::in_transaction(db.url()).await;
    assert_eq!(late.append().await, 2);
    writer.append().await;
    drain(&registered).await;
    assert_eq!(seen.ids().await, [1]);
    drop(registered);

    let registered = seen.register().await;
    drain(&registered).await;
    assert_eq!(seen.ids().await, [1]);
    late.commit().await;
    drain(&registered).await;
    assert_eq!(seen.ids().await, [1, 2, 3]);
}

#[tokio::test]
async fn a_quiet_log_and_then_a_burst_lose_nothing() {
    let scene = Scene::new().await;
    scene.append().await;
    assert_eq!(scene.delivered().await, [1]);
    for _ in 0..5 {
        drain(&scene.registered).await;
    }
    let mut burst = Vec::new();
    for n in 0..8 {
        let url = scene.db.url().to_owned();
        burst.push(tokio::spawn(async move {
            let writer = Writer::on(&url).await;
            for round in 0..40 {
                writer.run("BEGIN").await;
                writer.append_many(1 + (n + round) % 3).await;
                writer.run(if round % 10 == n { "ROLLBACK" } else { "COMMIT" }).await;
            }
        }));
    }
    while !burst.iter().all(tokio::task::JoinHandle::is_finished) {
        drain(&scene.registered).await;
    }
    drain(&scene.registered).await;
    scene.seen.assert_complete().await;
}
