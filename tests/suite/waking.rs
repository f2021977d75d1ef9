//! Waking up: nothing that was appended is slept through, and appenders pay next to nothing for it.
//!
//! Most tests poll once an hour, so that nothing but the bell can have woken anybody.

mod connections;
mod lingering;
mod ringing;

use std::time::{Duration, Instant};

use inorder::{Dispatcher, Running};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::support::database::Database;
use crate::support::{Recording, Words, Writer, database, eventually, versatile_database, versatile_server};

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

async fn set(db: &Database, setting: &str, value: &str) {
    let name = db.url().rsplit('/').next().unwrap();
    let name = name.split('?').next().unwrap();
    db.client()
        .await
        .batch_execute(&format!("ALTER DATABASE {name} SET {setting} = '{value}'"))
        .await
        .unwrap();
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
