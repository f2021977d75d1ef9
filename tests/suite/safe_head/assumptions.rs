//! What the safe head rests on is checked at the start and with every reading of the locks: delivery stops, and says why.

use std::time::Duration;

use inorder::testing::TempPostgres;
use inorder::{Error, ErrorKind, Inorder};
use tokio_postgres::Client;

use super::{LIMIT, Scene};
use crate::support::database::Database;
use crate::support::{
    Proxy, Recording, Words, Writer, connect, database, eventually, versatile_database, versatile_server,
};

/// Breaks one thing, expects these words, mends it.
struct Case {
    breaks: &'static str,
    words: &'static [&'static str],
    mends: &'static str,
}

const CASES: &[Case] = &[
    Case {
        breaks: "ALTER SEQUENCE inorder.events_id_seq CACHE 20",
        words: &["events_id_seq has CACHE 20", "ALTER SEQUENCE inorder.events_id_seq CACHE 1"],
        mends: "ALTER SEQUENCE inorder.events_id_seq CACHE 1",
    },
    Case {
        breaks: "ALTER SEQUENCE inorder.events_id_seq INCREMENT 2",
        words: &["events_id_seq has INCREMENT 2"],
        mends: "ALTER SEQUENCE inorder.events_id_seq INCREMENT 1",
    },
    Case {
        breaks: "ALTER SEQUENCE inorder.events_id_seq CYCLE",
        words: &["events_id_seq may CYCLE"],
        mends: "ALTER SEQUENCE inorder.events_id_seq NO CYCLE",
    },
    Case {
        breaks: "ALTER TABLE inorder.events SET UNLOGGED",
        words: &["table inorder.events is not logged"],
        mends: "ALTER TABLE inorder.events SET LOGGED",
    },
    Case {
        breaks: "CREATE TABLE child () INHERITS (inorder.events)",
        words: &["inorder.events is not an ordinary table without children"],
        mends: "DROP TABLE child",
    },
    Case {
        breaks: "SELECT setval('inorder.events_id_seq', 2)",
        words: &["events_id_seq stands at 2, below 3, the highest id", "RESTART WITH 4"],
        mends: "ALTER SEQUENCE inorder.events_id_seq RESTART WITH 4",
    },
    // The next id would be the highest one again.
    Case {
        breaks: "ALTER SEQUENCE inorder.events_id_seq RESTART WITH 3",
        words: &["events_id_seq stands at 2, below 3, the highest id"],
        mends: "ALTER SEQUENCE inorder.events_id_seq RESTART WITH 4",
    },
    // Nothing is left in the table, and still the ids were given.
    Case {
        breaks: "UPDATE inorder.log_state SET pruned_to = 100",
        words: &["events_id_seq stands at", "below 100, the highest id"],
        mends: "UPDATE inorder.log_state SET pruned_to = 0",
    },
    Case {
        breaks: "UPDATE inorder.consumers SET position = 1000",
        words: &["consumer 'all' is at 1000, beyond the last id"],
        mends: "UPDATE inorder.consumers SET position = 0",
    },
];

#[track_caller]
fn assert_unsafe<T>(result: Result<T, Error>, words: &[&str]) {
    let error = result.err().expect("nothing is delivered");
    let report = error.report();
    assert_eq!(error.kind(), ErrorKind::Unsafe, "{report}");
    assert!(report.contains("no event can be delivered safely"), "{report}");
    for word in words {
        assert!(report.contains(word), "{word:?} is not in: {report}");
    }
}

async fn version(client: &Client) -> i32 {
    client.query_one("SELECT current_setting('server_version_num')::int", &[]).await.unwrap().get(0)
}

/// I-1.
#[tokio::test]
async fn nothing_is_delivered_from_the_start_while_an_assumption_is_broken() {
    for case in CASES {
        let scene = Scene::new().await;
        let client = scene.db.client().await;
        scene.writer().await.append_many(3).await;
        client.batch_execute(case.breaks).await.unwrap();
        let register = || async { scene.seen.builder().build().unwrap().register().await };
        assert_unsafe(register().await, case.words);
        client.batch_execute(case.mends).await.unwrap();
        let registered = register().await.unwrap_or_else(|e| panic!("{}: {e:?}", case.mends));
        super::drain(&registered).await;
        assert_eq!(scene.seen.ids().await, [1, 2, 3], "{}", case.mends);
    }
}

/// I-1: also by whoever has been running for long, at the next hole.
#[tokio::test]
async fn no_hole_is_passed_while_an_assumption_is_broken() {
    for case in CASES {
        let scene = Scene::new().await;
        let client = scene.db.client().await;
        let (gone, 1) = scene.open_writer().await else { panic!() };
        gone.roll_back().await;
        scene.writer().await.append_many(2).await;
        client.batch_execute(case.breaks).await.unwrap();
        assert_unsafe(scene.registered.run_once().await, case.words);
        assert_unsafe(scene.registered.run_once().await, case.words);
        assert_eq!(scene.seen.ids().await, [0; 0], "{}", case.breaks);
        client.batch_execute(case.mends).await.unwrap();
        assert_eq!(scene.delivered().await, [2, 3], "{}", case.mends);
    }
}

#[tokio::test]
async fn a_sequence_that_is_not_logged_is_named() {
    let scene = Scene::new().await;
    let client = scene.db.client().await;
    // Before, sequences could not be unlogged.
    if version(&client).await < 150_000 {
        return;
    }
    client.batch_execute("ALTER SEQUENCE inorder.events_id_seq SET UNLOGGED").await.unwrap();
    assert_unsafe(scene.seen.builder().build().unwrap().register().await, &["events_id_seq is not logged"]);
}

/// I-1: a sequence that hands out used ids makes no hole that would have the locks read; the poll asks, too.
#[tokio::test]
async fn a_running_dispatcher_stops_without_a_hole_and_goes_on_when_mended() {
    let words = Words::listen();
    let db = database().await;
    let (writer, client) = (Writer::on(db.url()).await, db.client().await);
    writer.append_many(3).await;
    let seen = Recording::on(db.url()).await;
    let dispatcher = seen.builder().poll_interval(Duration::from_millis(50)).build().unwrap();
    let running = dispatcher.start().await.unwrap();
    eventually(LIMIT, "three events are delivered", async || seen.ids().await == [1, 2, 3]).await;

    words.say(LIMIT, &["asleep"]).await;
    client.batch_execute("ALTER SEQUENCE inorder.events_id_seq CACHE 20").await.unwrap();
    words.say(LIMIT, &["ERROR", "delivery stands still", "events_id_seq has CACHE 20"]).await;
    let other = Writer::on(db.url()).await;
    assert_eq!((writer.append().await, other.append().await), (4, 24));
    words.forget();
    words.say(LIMIT, &["ERROR", "delivery stands still"]).await;
    assert_eq!(seen.ids().await, [1, 2, 3]);
    client.batch_execute("ALTER SEQUENCE inorder.events_id_seq CACHE 1").await.unwrap();

    writer.append().await;
    eventually(LIMIT, "all are delivered", async || seen.ids().await.len() == 6).await;
    seen.assert_complete().await;
    running.stop().await.unwrap();
}

/// A standby cannot tell who is writing.
#[tokio::test]
async fn a_standby_is_refused_by_name() {
    let primary = TempPostgres::start().await.unwrap();
    let proxy = Proxy::in_front_of(primary.url()).await;
    let log = Inorder::connect(proxy.url()).await.unwrap();
    log.migrate().await.unwrap();
    let standby = primary.standby().await.unwrap();
    let seen = Recording::over(log, primary.url()).await;
    let registered = seen.register().await;

    proxy.lead_to(standby.url()).await;
    proxy.cut();

    let words = ["the server is a standby", "connect to the primary"];
    assert_unsafe(registered.run_once().await, &words);
    let at_start = seen.builder().build().unwrap().register().await.unwrap_err();
    assert!(words.iter().all(|word| at_start.report().contains(word)), "{at_start:?}");
}

/// What is replicated into the table commits in another order than its ids.
#[tokio::test]
async fn a_log_that_is_filled_by_logical_replication_is_refused_by_name() {
    let (from, to) = (versatile_database().await, versatile_database().await);
    let publisher = from.client().await;
    publisher.batch_execute("CREATE PUBLICATION p FOR TABLE inorder.events").await.unwrap();
    let slot = format!("s_{}", name_of(&from));
    publisher.query_one("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", &[&slot]).await.unwrap();
    let subscriber = to.client().await;
    let subscribe = format!(
        "CREATE SUBSCRIPTION {slot} CONNECTION 'host=127.0.0.1 port={} user=postgres dbname={}' PUBLICATION p \
         WITH (copy_data = false, create_slot = false, slot_name = {slot})",
        versatile_server().await.port(),
        name_of(&from),
    );
    subscriber.batch_execute(&subscribe).await.unwrap();
    let seen = Recording::on(to.url()).await;
    assert_unsafe(seen.builder().build().unwrap().register().await, &["filled by logical replication"]);
    subscriber.batch_execute(&format!("DROP SUBSCRIPTION {slot}")).await.unwrap();
    Writer::on(to.url()).await.append().await;
    super::drain(&seen.register().await).await;
    assert_eq!(seen.ids().await, [1]);
}

fn name_of(database: &Database) -> &str {
    database.url().rsplit('/').next().unwrap()
}

/// I-1: rows that a policy hides from us are no holes. A session of ours sees every row, or fails.
#[tokio::test]
async fn rows_hidden_by_a_policy_stop_delivery_and_are_not_passed() {
    let db = versatile_database().await;
    let admin = db.client().await;
    let owner = format!("owner_of_{}", name_of(&db));
    let setup = format!(
        "CREATE ROLE {owner} LOGIN; GRANT CREATE ON SCHEMA public TO {owner};
         DROP SCHEMA inorder CASCADE; GRANT CREATE ON DATABASE {} TO {owner}",
        name_of(&db)
    );
    admin.batch_execute(&setup).await.unwrap();
    let url = db.url().replace("postgres@", &format!("{owner}@"));
    let log = Inorder::connect(&url).await.unwrap();
    log.migrate().await.unwrap();
    let seen = Recording::over(log, &url).await;
    let registered = seen.register().await;
    let writer = Writer::on(&url).await;
    writer.append_many(3).await;
    connect(&url)
        .await
        .batch_execute(
            "ALTER TABLE inorder.events ENABLE ROW LEVEL SECURITY;
             ALTER TABLE inorder.events FORCE ROW LEVEL SECURITY;
             CREATE POLICY odd ON inorder.events USING (id % 2 = 1)",
        )
        .await
        .unwrap();
    let error = registered.run_once().await.unwrap_err();
    assert!(error.report().contains("row-level security policy for table \"events\""), "{error:?}");
    assert_eq!(seen.ids().await, [0; 0]);
    connect(&url).await.batch_execute("ALTER TABLE inorder.events DISABLE ROW LEVEL SECURITY").await.unwrap();
    super::drain(&registered).await;
    assert_eq!(seen.ids().await, [1, 2, 3]);
}

/// What a database or a role has as its defaults is not what our sessions rely on.
#[tokio::test]
async fn defaults_of_the_database_do_not_matter() {
    let db = database().await;
    let name = name_of(&db).split('?').next().unwrap();
    let defaults = [
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = on",
        "row_security = on",
        "search_path = ''",
        "intervalstyle = 'iso_8601'",
        "datestyle = 'SQL, DMY'",
        "timezone = 'Asia/Kathmandu'",
        "statement_timeout = '50s'",
    ];
    let (client, seen) = (db.client().await, Recording::on(db.url()).await);
    for default in defaults {
        client.batch_execute(&format!("ALTER DATABASE {name} SET {default}")).await.unwrap();
    }
    // Sessions that begin from now on have them.
    let log = Inorder::connect(db.url()).await.unwrap();
    let seen = seen.through(log);
    let registered = seen.register().await;
    let writer = Writer::on(db.url()).await;
    writer.run("SET default_transaction_read_only = off").await;
    let late = Writer::on(db.url()).await;
    late.run("BEGIN READ WRITE").await;
    late.append().await;
    writer.append().await;
    super::drain(&registered).await;
    assert_eq!(seen.ids().await, [0; 0]);
    late.commit().await;
    super::drain(&registered).await;
    assert_eq!(seen.ids().await, [1, 2]);
    let running = registered.start();
    writer.append().await;
    eventually(LIMIT, "it is delivered", async || seen.ids().await == [1, 2, 3]).await;
    running.stop().await.unwrap();
}
