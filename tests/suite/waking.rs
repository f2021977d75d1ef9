//! Waking up: nothing that was appended is slept through, and appenders pay next to nothing for it.
//!
//! Most tests poll once an hour, so that nothing but the bell can have woken anybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use inorder::{Config, Consumer, Dispatcher, Inorder, Running};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::support::database::Database;
use crate::support::{
    Proxy, Recording, Words, Writer, database, eventually, versatile_database, versatile_server,
};

const LIMIT: Duration = Duration::from_secs(30);
const NEVER: Duration = Duration::from_secs(3_600);

/// A log and a dispatcher at work on it.
struct Scene {
    words: Words,
    db: Database,
    seen: Recording,
    running: Running,
}

impl Scene {
    async fn polling_every(poll_interval: Duration) -> Scene {
        Scene::in_database(ringing_database().await, poll_interval).await
    }

    async fn in_database(db: Database, poll_interval: Duration) -> Scene {
        let words = Words::listen();
        let seen = Recording::on(db.url()).await;
        let running = seen.builder().poll_interval(poll_interval).build().unwrap().start().await.unwrap();
        Scene { words, db, seen, running }
    }

    async fn writer(&self) -> Writer {
        Writer::on(self.db.url()).await
    }

    /// Waits until the dispatcher is asleep: every appender that did not see its mark is gone, and it looks no more.
    async fn asleep(&self) {
        self.words.say(LIMIT, &["asleep"]).await;
    }

    async fn delivered(&self, ids: &[i64]) {
        eventually(LIMIT, &format!("{ids:?} are delivered"), async || self.seen.ids().await == ids).await;
    }

    async fn stop(self) {
        self.running.stop().await.unwrap();
    }
}

/// A database in which appends ring, whatever the server allows.
async fn ringing_database() -> Database {
    let db = database().await;
    let prepares = db.client().await.query_one("SHOW max_prepared_transactions", &[]).await.unwrap();
    if prepares.get::<_, &str>(0) != "0" {
        set(&db, "inorder.ring", "on").await;
    }
    db
}

/// Until when the process sleeps, in seconds from now; `None` while it is awake.
async fn sleeping(client: &Client) -> Option<f64> {
    let until =
        "SELECT extract(epoch FROM max(sleeping_until) - clock_timestamp())::float8 FROM inorder.instances";
    client.query_one(until, &[]).await.unwrap().get(0)
}

/// Is a consumer's row held by a pass?
async fn is_held(client: &Client) -> bool {
    let holders = "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database \
        WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted AND l.classid = 'inorder.consumers'::regclass";
    client.query_one(holders, &[]).await.unwrap().get::<_, i64>(0) > 0
}

/// Ends the sessions of the dispatcher whose last statement is like this one. How many there were.
async fn terminate(db: &Database, statement: &str) -> i64 {
    let terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
        WHERE datname = current_database() AND application_name = 'inorder' AND query LIKE $1";
    db.client().await.query_one(terminate, &[&statement]).await.unwrap().get(0)
}

const TRACKER: &str = "-- inorder consumers/poll%";
const TRACKERS: &str = "-- inorder%";

/// Somebody who hears the bell, as a dispatcher does.
struct Ear {
    rung: tokio::sync::watch::Receiver<usize>,
    _client: Client,
}

impl Ear {
    async fn in_database(db: &Database) -> Ear {
        let (client, mut connection) = tokio_postgres::connect(db.url(), NoTls).await.unwrap();
        let (count, rung) = tokio::sync::watch::channel(0);
        tokio::spawn(async move {
            let mut messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
            while let Some(Ok(message)) = futures_util::StreamExt::next(&mut messages).await {
                if let AsyncMessage::Notification(note) = message {
                    assert_eq!(note.payload(), "", "appends ring with nothing to say");
                    count.send_modify(|count| *count += 1);
                }
            }
        });
        let channel = client.query_one("SELECT 'inorder_' || md5('inorder')", &[]).await.unwrap();
        client.batch_execute(&format!("LISTEN {}", channel.get::<_, &str>(0))).await.unwrap();
        Ear { rung, _client: client }
    }

    /// How often it has rung. What was notified before a statement began has arrived when it ends.
    async fn heard(&self) -> usize {
        self._client.batch_execute("SELECT 1").await.unwrap();
        *self.rung.borrow()
    }
}

/// I-1: again and again, each time out of a sleep.
#[tokio::test]
async fn an_append_wakes_a_sleeping_dispatcher() {
    let scene = Scene::polling_every(NEVER).await;
    scene.asleep().await;
    let writer = scene.writer().await;
    for n in 1..=20 {
        writer.append().await;
        scene.delivered(&(1..=n).collect::<Vec<_>>()).await;
    }
    scene.stop().await;
}

/// I-1: the mark may be there when the append begins; what rings is the commit.
#[tokio::test]
async fn the_bell_rings_for_a_hole_that_fills_behind_what_has_been_seen() {
    let scene = Scene::polling_every(NEVER).await;
    scene.asleep().await;
    let late = Writer::in_transaction(scene.db.url()).await;
    late.append().await;
    scene.writer().await.append().await;
    late.commit().await;
    scene.delivered(&[1, 2]).await;
    scene.stop().await;
}

/// I-1. Its statement ran before anybody slept, so it rings for nobody; it is waited for instead.
#[tokio::test]
async fn an_appender_in_flight_when_the_mark_was_set_is_waited_for() {
    let db = ringing_database().await;
    let early = Writer::in_transaction(db.url()).await;
    early.run("SET LOCAL inorder.ring = 'off'").await;
    early.append().await;
    let scene = Scene::in_database(db, NEVER).await;
    let client = scene.db.client().await;
    eventually(LIMIT, "it is marked as sleeping", async || sleeping(&client).await.is_some()).await;
    assert!(scene.words.with(&["asleep"]).is_empty(), "it cannot sleep yet");
    early.commit().await;
    scene.delivered(&[1]).await;
    scene.asleep().await;
    scene.stop().await;
}

/// I-1: whatever is in flight at whatever moment of falling asleep.
#[tokio::test]
async fn no_wake_up_is_lost_over_many_sleeps_among_busy_writers() {
    let scene = Scene::polling_every(NEVER).await;
    let mut rng = fastrand::Rng::with_seed(1);
    let mut writers = Vec::new();
    for _ in 0..3 {
        writers.push(scene.writer().await);
    }
    for round in 1..=12 {
        // A new epoch begins awake, and falls asleep among the writers.
        terminate(&scene.db, TRACKERS).await;
        let writing = writers.iter().map(|writer| {
            let mut pause = || tokio::time::sleep(Duration::from_millis(rng.u64(..120)));
            let (before, within) = (pause(), pause());
            async move {
                before.await;
                writer.run("BEGIN").await;
                writer.append().await;
                within.await;
                writer.commit().await;
            }
        });
        futures_util::future::join_all(writing).await;
        scene.delivered(&(1..=3 * round).collect::<Vec<_>>()).await;
    }
    scene.stop().await;
}

/// I-10: a snapshot that is older than the mark does not show it; the poll finds what such a writer appends.
#[tokio::test]
async fn a_writer_whose_snapshot_is_older_than_the_mark_is_found_by_the_poll() {
    let db = ringing_database().await;
    let (ear, old) = (Ear::in_database(&db).await, Writer::on(db.url()).await);
    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM inorder.instances").await;
    let scene = Scene::in_database(db, Duration::from_millis(200)).await;
    scene.asleep().await;
    old.append().await;
    old.commit().await;
    scene.delivered(&[1]).await;
    assert_eq!(ear.heard().await, 0);
    old.append().await;
    scene.delivered(&[1, 2]).await;
    assert_eq!(ear.heard().await, 1, "with a new snapshot it rings");
    scene.stop().await;
}

/// I-8.
#[tokio::test]
async fn nobody_rings_while_nobody_sleeps() {
    let db = ringing_database().await;
    let (ear, writer) = (Ear::in_database(&db).await, Writer::on(db.url()).await);
    writer.append().await;
    assert_eq!(ear.heard().await, 0);
    let scene = Scene::in_database(db, NEVER).await;
    scene.asleep().await;
    writer.append_many(100).await;
    assert_eq!(ear.heard().await, 1, "once a statement");
    writer.run("BEGIN").await;
    writer.append().await;
    writer.append().await;
    writer.commit().await;
    assert_eq!(ear.heard().await, 2, "once a transaction");
    scene.stop().await;
    writer.append().await;
    assert_eq!(ear.heard().await, 2, "it has left");
}

/// I-8: ringing costs appenders something, so the mark goes while events come fast, and comes back.
#[tokio::test]
async fn the_mark_goes_while_events_come_fast_and_comes_back_when_they_do_not() {
    let scene = Scene::polling_every(NEVER).await;
    scene.asleep().await;
    let (writer, client) = (scene.writer().await, scene.db.client().await);
    let marked_for = sleeping(&client).await.unwrap();
    assert!((50.0..=60.0).contains(&marked_for), "{marked_for}");
    for _ in 0..5 {
        writer.append().await;
    }
    assert!(sleeping(&client).await.is_some(), "light traffic rings");
    let mut appended = 5;
    eventually(LIMIT, "the mark is gone", async || {
        appended += writer.append_many(100).await.len();
        sleeping(&client).await.is_none()
    })
    .await;
    scene.words.forget();
    scene.asleep().await;
    assert!(sleeping(&client).await.is_some());
    eventually(LIMIT, "all are delivered", async || scene.seen.ids().await.len() == appended).await;
    scene.stop().await;
}

#[tokio::test]
async fn a_watcher_that_was_cut_off_comes_back_and_hears() {
    let scene = Scene::polling_every(NEVER).await;
    scene.asleep().await;
    let writer = scene.writer().await;
    for n in [1, 3, 5] {
        scene.words.forget();
        assert!(terminate(&scene.db, TRACKERS).await > 0);
        // Nobody may hear this one; the look after the reconnect finds it.
        writer.append().await;
        scene.words.say(LIMIT, &["the head of the log is out of sight"]).await;
        scene.words.say(LIMIT, &["listening"]).await;
        scene.delivered(&(1..=n).collect::<Vec<_>>()).await;
        scene.asleep().await;
        writer.append().await;
        scene.delivered(&(1..=n + 1).collect::<Vec<_>>()).await;
    }
    scene.stop().await;
}

/// I-1: tracker, passes and readers are ended at random while events come; nothing is lost, doubled or out of order.
#[tokio::test]
async fn sessions_may_be_ended_at_any_moment() {
    let scene = Scene::polling_every(Duration::from_millis(100)).await;
    let writer = scene.writer().await;
    for n in 0..40 {
        writer.append_many(50).await;
        let which = ["%", TRACKER, "-- inorder consumers/%", "-- inorder events/%", "COMMIT"][n % 5];
        terminate(&scene.db, which).await;
        // Another moment of a pass each time.
        tokio::time::sleep(Duration::from_millis(u64::try_from(n).unwrap() % 7)).await;
    }
    scene.delivered(&(1..=2_000).collect::<Vec<_>>()).await;
    scene.seen.assert_complete().await;
    scene.stop().await;
}

/// Half-open sockets: no error ever comes. Everything of ours that waits has an end, and what comes after it is new.
#[tokio::test]
async fn connections_that_fell_silent_are_found_and_replaced() {
    let db = ringing_database().await;
    let words = Words::listen();
    let proxy = Proxy::in_front_of(db.url()).await;
    let limit = Duration::from_millis(700);
    let config = Config {
        statement_timeout: limit,
        connect_timeout: Duration::from_secs(5),
        ..Config::new(proxy.url())
    };
    let seen = Recording::over(Inorder::with_config(config).await.unwrap(), db.url()).await;
    let poll_interval = Duration::from_millis(100);
    let running = seen.builder().poll_interval(poll_interval).build().unwrap().start().await.unwrap();
    let writer = Writer::on(db.url()).await;
    writer.append().await;
    eventually(LIMIT, "it is delivered", async || seen.ids().await == [1]).await;
    words.say(LIMIT, &["asleep"]).await;
    words.forget();

    proxy.silence();
    writer.append().await;

    eventually(LIMIT, "it is delivered over new connections", async || seen.ids().await == [1, 2]).await;
    words.say(LIMIT, &["the head of the log is out of sight", "no answer within 0.7 s"]).await;
    words.say(LIMIT, &["listening"]).await;
    running.stop().await.unwrap();
}

/// In the middle of passes, too: the commit of a pass may be among what was swallowed.
#[tokio::test]
async fn a_network_that_swallows_everything_for_a_while_costs_no_event() {
    let db = database().await;
    let proxy = Proxy::in_front_of(db.url()).await;
    let config = Config {
        statement_timeout: Duration::from_millis(300),
        connect_timeout: Duration::from_millis(300),
        ..Config::new(proxy.url())
    };
    let seen = Recording::over(Inorder::with_config(config).await.unwrap(), db.url()).await;
    let dispatcher = seen.builder().poll_interval(Duration::from_millis(100)).build().unwrap();
    let running = dispatcher.start().await.unwrap();
    let writer = Writer::on(db.url()).await;
    for n in 0..4 {
        writer.append_many(200).await;
        match n % 2 {
            0 => proxy.black_hole(),
            _ => proxy.swallow_answers(),
        }
        writer.append_many(200).await;
        // So long does it last: longer than anything of ours waits for an answer.
        tokio::time::sleep(Duration::from_millis(400)).await;
        proxy.cut();
        proxy.heal();
    }
    eventually(LIMIT, "all are delivered", async || seen.ids().await.len() == 1_600).await;
    seen.assert_complete().await;
    running.stop().await.unwrap();
}

/// A transaction that has notified cannot be prepared, so by default nobody notifies where transactions may be.
#[tokio::test]
async fn a_server_that_allows_prepared_transactions_is_polled_and_that_is_said() {
    let db = versatile_database().await;
    let ear = Ear::in_database(&db).await;
    let scene = Scene::in_database(db, Duration::from_millis(100)).await;
    scene.words.say(LIMIT, &["appends do not ring on this server"]).await;
    let writer = scene.writer().await;
    // As if somebody slept.
    writer.run("UPDATE inorder.instances SET sleeping_until = now() + interval '1 hour'").await;
    writer.append().await;
    writer.run("BEGIN").await;
    writer.append().await;
    let gid = format!("waking {}", scene.db.url());
    writer.run(&format!("PREPARE TRANSACTION '{gid}'")).await;
    writer.run(&format!("COMMIT PREPARED '{gid}'")).await;
    scene.delivered(&[1, 2]).await;
    assert_eq!(ear.heard().await, 0);
    assert!(scene.words.with(&["asleep"]).is_empty());
    scene.stop().await;
}

#[tokio::test]
async fn a_server_that_allows_prepared_transactions_rings_where_the_setting_says_so() {
    let db = versatile_database().await;
    set(&db, "inorder.ring", "on").await;
    let scene = Scene::in_database(db, NEVER).await;
    scene.asleep().await;
    let writer = scene.writer().await;
    writer.append().await;
    scene.delivered(&[1]).await;
    assert!(scene.words.with(&["appends do not ring"]).is_empty());
    scene.stop().await;
}

#[tokio::test]
async fn the_setting_that_stops_the_bell_leaves_the_poll() {
    let db = database().await;
    set(&db, "inorder.ring", "off").await;
    let ear = Ear::in_database(&db).await;
    let scene = Scene::in_database(db, Duration::from_millis(100)).await;
    scene.words.say(LIMIT, &["appends do not ring on this server"]).await;
    let writer = scene.writer().await;
    writer.run("UPDATE inorder.instances SET sleeping_until = now() + interval '1 hour'").await;
    writer.append().await;
    scene.delivered(&[1]).await;
    assert_eq!(ear.heard().await, 0);
    scene.stop().await;
}

/// The setting may change under a dispatcher that sleeps.
#[tokio::test]
async fn a_bell_that_is_taken_away_meanwhile_is_noticed() {
    let db = database().await;
    set(&db, "inorder.ring", "on").await;
    let scene = Scene::in_database(db, Duration::from_millis(100)).await;
    scene.asleep().await;
    scene.words.forget();
    set(&scene.db, "inorder.ring", "off").await;
    eventually(LIMIT, "the tracker is ended", async || terminate(&scene.db, TRACKER).await > 0).await;
    scene.words.say(LIMIT, &["appends do not ring on this server"]).await;
    scene.writer().await.append().await;
    scene.delivered(&[1]).await;
    scene.stop().await;
}

async fn set(db: &Database, setting: &str, value: &str) {
    let name = db.url().rsplit('/').next().unwrap();
    let name = name.split('?').next().unwrap();
    db.client()
        .await
        .batch_execute(&format!("ALTER DATABASE {name} SET {setting} = '{value}'"))
        .await
        .unwrap();
}

/// Through a pooler that gives each transaction another session, LISTEN hears nothing.
#[tokio::test]
async fn a_dispatcher_that_only_polls_neither_listens_nor_has_anybody_ring() {
    let db = database().await;
    let words = Words::listen();
    let ear = Ear::in_database(&db).await;
    let seen = Recording::on(db.url()).await;
    let dispatcher = seen.builder().poll_only().poll_interval(Duration::from_millis(50)).build().unwrap();
    let running = dispatcher.start().await.unwrap();
    let (writer, client) = (Writer::on(db.url()).await, db.client().await);
    for n in 1..=5 {
        writer.append().await;
        eventually(LIMIT, "it is delivered", async || seen.ids().await.len() == n).await;
        assert_eq!(sleeping(&client).await, None);
    }
    assert_eq!(ear.heard().await, 0);
    assert_eq!(words.with(&["listening"]), [""; 0]);
    running.stop().await.unwrap();
}

/// I-8. The trigger looks into a table that a producer may not.
#[tokio::test]
async fn a_producer_without_any_right_on_the_processes_appends_while_one_sleeps() {
    let db = versatile_database().await;
    set(&db, "inorder.ring", "on").await;
    let scene = Scene::in_database(db, NEVER).await;
    scene.asleep().await;
    let producer = scene.writer().await;
    let role = format!("producer_of_{}", scene.db.url().rsplit('/').next().unwrap());
    let grants = format!(
        "CREATE ROLE {role};
         GRANT USAGE ON SCHEMA inorder TO {role};
         GRANT INSERT (event_type, payload) ON inorder.events TO {role};
         SET ROLE {role}"
    );
    producer.run(&grants).await;
    producer.run("INSERT INTO inorder.events (event_type, payload) VALUES ('produced', '{}')").await;
    scene.delivered(&[1]).await;
    assert!(producer.client().batch_execute("SELECT FROM inorder.instances").await.is_err());
    scene.stop().await;
}

/// The trigger's function runs with its owner's rights, under the producer's search path.
#[tokio::test]
async fn a_producer_cannot_put_its_own_functions_in_the_place_of_those_that_the_bell_uses() {
    let scene = Scene::polling_every(NEVER).await;
    scene.asleep().await;
    let producer = scene.writer().await;
    producer
        .run(
            "CREATE SCHEMA evil;
             CREATE TABLE evil.instances (sleeping_until timestamptz);
             CREATE FUNCTION evil.trap() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
             CREATE FUNCTION evil.later(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap()';
             CREATE FUNCTION evil.same(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap()';
             CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT now() WHERE evil.trap()';
             CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS 'SELECT $1 WHERE evil.trap()';
             CREATE FUNCTION evil.md5(text) RETURNS text LANGUAGE sql AS 'SELECT $1 WHERE evil.trap()';
             CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT evil.trap()';
             CREATE OPERATOR evil.> (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = evil.later);
             CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);
             SET search_path = evil, pg_catalog",
        )
        .await;
    assert!(
        producer.client().batch_execute("SELECT 'a'::text = 'a'::text").await.is_err(),
        "the trap is set"
    );
    producer.run("INSERT INTO inorder.events (event_type, payload) VALUES ('produced', '{}')").await;
    scene.delivered(&[1]).await;
    scene.stop().await;
}

/// Events that come shortly one after the other have a lane hold its row for the next one. Where none comes, the row is as it
/// was, and nobody's.
#[tokio::test]
async fn a_row_that_is_held_for_an_event_that_does_not_come_is_given_back_untouched() {
    let scene = Scene::polling_every(NEVER).await;
    scene.asleep().await;
    let (writer, client) = (scene.writer().await, scene.db.client().await);
    let version = "SELECT xmin::text || ':' || position FROM inorder.consumers";
    for n in 1..=30 {
        writer.append().await;
        scene.delivered(&(1..=n).collect::<Vec<_>>()).await;
    }
    let settled = async || client.query_one(version, &[]).await.unwrap().get::<_, String>(0);
    eventually(LIMIT, "all passes are settled", async || settled().await.ends_with(":30")).await;
    let before = settled().await;
    eventually(LIMIT, "nobody holds the row", async || !is_held(&client).await).await;
    assert_eq!(settled().await, before);
    let free = client.batch_execute("BEGIN; SELECT FROM inorder.consumers FOR UPDATE NOWAIT; ROLLBACK").await;
    free.unwrap();
    writer.append().await;
    scene.delivered(&(1..=31).collect::<Vec<_>>()).await;
    scene.stop().await;
}

/// Its action waits for that, and nothing comes after it.
#[tokio::test]
async fn an_operator_gets_a_row_that_is_held_for_an_event() {
    let scene = Scene::polling_every(NEVER).await;
    scene.asleep().await;
    let (writer, client) = (scene.writer().await, scene.db.client().await);
    let mut appended = 0;
    eventually(LIMIT, "the row is held for the next event", async || {
        writer.append().await;
        appended += 1;
        scene.delivered(&(1..=appended).collect::<Vec<_>>()).await;
        is_held(&client).await
    })
    .await;
    let admin = Inorder::connect(scene.db.url()).await.unwrap().admin();
    let consumers = admin.list().await.unwrap();
    let disabled = admin.disable(&consumers[0].name).await.unwrap();
    assert_eq!(disabled[0].after["position"], appended);
    writer.append().await;
    eventually(LIMIT, "nobody holds the row", async || !is_held(&client).await).await;
    scene.running.stop().await.unwrap();
    assert_eq!(scene.seen.ids().await, (1..=appended).collect::<Vec<_>>());
}

/// Everybody who sleeps is woken.
#[tokio::test]
async fn one_append_wakes_every_process_that_sleeps() {
    let first = Scene::polling_every(NEVER).await;
    first.asleep().await;
    first.words.forget();
    let other =
        Dispatcher::builder(&first.seen.log).consumer(Recording::consumer("other")).poll_interval(NEVER);
    let other = other.build().unwrap().start().await.unwrap();
    first.asleep().await;
    first.writer().await.append().await;
    first.delivered(&[1]).await;
    eventually(LIMIT, "the other has it, too", async || first.seen.ids_of("other").await == [1]).await;
    other.stop().await.unwrap();
    first.stop().await;
}

/// The channel is named after the schema, whatever its name.
#[tokio::test]
async fn the_bell_of_a_log_in_any_schema_is_heard_and_no_other() {
    let words = Words::listen();
    let db = ringing_database().await;
    let schema = "It's \"a\" very long name, much too long for a channel, üöä";
    let log = Inorder::with_config(Config { schema: schema.into(), ..Config::new(db.url()) }).await.unwrap();
    log.migrate().await.unwrap();
    let seen = Recording::over(log.clone(), db.url()).await;
    let running = seen.builder().poll_interval(NEVER).build().unwrap().start().await.unwrap();
    words.say(LIMIT, &["asleep"]).await;
    let ear = Ear::in_database(&db).await;
    let event = inorder::NewEvent::from_json("odd", "{}");
    let _ = log.append(inorder::ExpectedVersion::Any, &[event]).await.unwrap();
    eventually(LIMIT, "it is delivered", async || seen.ids().await == [1]).await;
    assert_eq!(ear.heard().await, 0, "that is another log's bell");
    running.stop().await.unwrap();
}

/// What an operator does is seen at once, too.
#[tokio::test]
async fn an_operator_wakes_a_sleeping_dispatcher() {
    let scene = Scene::polling_every(NEVER).await;
    scene.asleep().await;
    let admin = scene.seen.log.admin();
    admin.disable("all").await.unwrap();
    let writer = scene.writer().await;
    for n in 1..=3 {
        writer.append().await;
        admin.enable("all").await.unwrap();
        scene.delivered(&(1..=n).collect::<Vec<_>>()).await;
        admin.disable("all").await.unwrap();
    }
    scene.stop().await;
}

/// One statement a tick for the whole process, however many consumers it has.
#[tokio::test]
async fn an_idle_dispatcher_asks_once_a_tick() {
    let db = versatile_database().await;
    set(&db, "inorder.ring", "on").await;
    set(&db, "log_statement", "all").await;
    let words = Words::listen();
    let seen = Recording::on(db.url()).await;
    let poll_interval = Duration::from_millis(200);
    let twenty = (0..20).map(|n| Recording::consumer(&format!("idle {n}")));
    let dispatcher = twenty.fold(seen.builder(), inorder::DispatcherBuilder::consumer);
    let running = dispatcher.poll_interval(poll_interval).build().unwrap().start().await.unwrap();
    words.say(LIMIT, &["asleep"]).await;
    let (writer, client) = (Writer::on(db.url()).await, db.client().await);
    for ids in [&[1][..], &[1, 2]] {
        writer.append().await;
        for n in 0..20 {
            let name = format!("idle {n}");
            eventually(LIMIT, "it is delivered", async || seen.ids_of(&name).await == ids).await;
        }
    }
    let delivered = Instant::now();
    eventually(LIMIT, "nobody lingers any more", async || {
        delivered.elapsed() > Duration::from_secs(2) && !is_held(&client).await
    })
    .await;

    let (began, before, mut asked) = (Instant::now(), statements(&db).await, 0);
    eventually(LIMIT, "it has asked fifteen times", async || {
        asked = statements(&db).await - before;
        asked >= 15
    })
    .await;

    let ticks = began.elapsed().as_millis() / poll_interval.as_millis();
    let most = usize::try_from(ticks).unwrap() + 2;
    assert!(asked <= most, "{asked} statements in {ticks} ticks");
    running.stop().await.unwrap();
}

/// How many statements of a dispatcher the server has logged for this database.
async fn statements(db: &Database) -> usize {
    let session = format!("{} inorder: ", db.url().rsplit('/').next().unwrap());
    let log = std::fs::read_to_string(versatile_server().await.log_file()).unwrap();
    log.lines()
        .filter(|line| {
            line.contains(&session) && (line.contains(" statement: ") || line.contains(" execute "))
        })
        .count()
}

/// The time for which a row is kept for an event to come is not the handler's: it has all of its own to be silent in.
#[tokio::test]
async fn a_handler_that_is_silent_after_its_row_was_kept_for_its_event_has_all_of_its_time() {
    let db = ringing_database().await;
    let seen = Recording::on(db.url()).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let consumer = Consumer::transactional_fn("slow", move |event, tx| {
        let (id, calls) = (event.id(), Arc::clone(&counted));
        Box::pin(async move {
            calls.fetch_add(1, Ordering::Relaxed);
            if id == 3 {
                tokio::time::sleep(Duration::from_millis(900)).await;
            }
            tx.execute(
                "INSERT INTO public.delivered VALUES (DEFAULT, 'slow', $1, gen_random_uuid())",
                &[&id],
            )
            .await?;
            Ok(())
        })
    });
    let consumer = consumer.handler_timeout(Duration::from_millis(1_200));
    let dispatcher = Dispatcher::builder(&seen.log).consumer(consumer).poll_interval(NEVER);
    let running = dispatcher.build().unwrap().start().await.unwrap();
    let writer = Writer::on(db.url()).await;
    for event in 1..=3 {
        writer.append().await;
        let all: Vec<i64> = (1..=event).collect();
        eventually(LIMIT, "it is delivered", async || seen.ids_of("slow").await == all).await;
        tokio::time::sleep(Duration::from_millis(800)).await;
    }
    assert_eq!(calls.load(Ordering::Relaxed), 3, "each of them at its first attempt");
    running.stop().await.unwrap();
}
