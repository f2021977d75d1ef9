//! What was known before a crash, a restart or a failover is not trusted after it.

use std::time::Duration;

use inorder::testing::TempPostgres;
use inorder::{Config, Consumer, Dispatcher, Inorder, Registered, Running};
use tokio_postgres::{Client, NoTls};

use crate::support::{Proxy, Recording, Writer, connect, eventually, process, versatile_database};

const LIMIT: Duration = Duration::from_secs(60);

/// A server that the test may break, with a log and a recording consumer.
struct Scene {
    server: TempPostgres,
    seen: Recording,
    registered: Registered,
}

impl Scene {
    async fn on(server: TempPostgres) -> Scene {
        let log = Inorder::connect(server.url()).await.unwrap();
        log.migrate().await.unwrap();
        let seen = Recording::on(server.url()).await;
        let registered = seen.register().await;
        Scene { server, seen, registered }
    }

    async fn writer(&self) -> Writer {
        Writer::on(self.server.url()).await
    }

    async fn delivered(&self) -> Vec<i64> {
        drain(&self.registered).await;
        self.seen.ids().await
    }
}

async fn drain(registered: &Registered) {
    registered.drain().await.unwrap_or_else(|e| panic!("{e:?}"));
}

/// I-1.
#[tokio::test]
async fn a_prepared_transaction_is_waited_for_until_it_is_decided() {
    for (end, expected) in [("COMMIT PREPARED", vec![1, 2]), ("ROLLBACK PREPARED", vec![2])] {
        let db = versatile_database().await;
        let seen = Recording::on(db.url()).await;
        let registered = seen.register().await;
        let writer = Writer::in_transaction(db.url()).await;
        assert_eq!(writer.append().await, 1);
        let gid = format!("decided by {}", db.url());
        writer.run(&format!("PREPARE TRANSACTION '{gid}'")).await;
        assert_eq!(writer.append().await, 2);
        drain(&registered).await;
        assert_eq!(seen.ids().await, [0; 0]);
        drop(writer);
        drain(&registered).await;
        assert_eq!(seen.ids().await, [0; 0]);
        db.client().await.batch_execute(&format!("{end} '{gid}'")).await.unwrap();
        drain(&registered).await;
        assert_eq!(seen.ids().await, expected, "{end}");
    }
}

/// I-1. Its holder was read before it was prepared: whoever is waited for must be found again under the name it has now.
#[tokio::test]
async fn a_transaction_that_is_prepared_while_it_is_waited_for_is_still_waited_for() {
    let db = versatile_database().await;
    let seen = Recording::on(db.url()).await;
    let registered = seen.register().await;
    let writer = Writer::in_transaction(db.url()).await;
    assert_eq!(writer.append().await, 1);
    let other = Writer::on(db.url()).await;
    assert_eq!(other.append().await, 2);
    drain(&registered).await;
    let gid = format!("prepared meanwhile by {}", db.url());
    writer.run(&format!("PREPARE TRANSACTION '{gid}'")).await;
    for _ in 0..3 {
        drain(&registered).await;
        assert_eq!(seen.ids().await, [0; 0]);
        writer.append().await;
    }
    other.run(&format!("COMMIT PREPARED '{gid}'")).await;
    drain(&registered).await;
    seen.assert_complete().await;
}

/// I-1. After the restart it shows under another name, and its hole is a hole of the new epoch.
#[tokio::test]
async fn a_prepared_transaction_that_outlives_a_restart_is_waited_for() {
    let server = TempPostgres::builder().max_prepared_transactions(5).start().await.unwrap();
    let scene = Scene::on(server).await;
    let writer = scene.writer().await;
    assert_eq!(writer.append().await, 1);
    writer.run("BEGIN").await;
    assert_eq!(writer.append().await, 2);
    writer.run("PREPARE TRANSACTION 'p'").await;
    assert_eq!(writer.append().await, 3);
    assert_eq!(scene.delivered().await, [1]);

    scene.server.restart().await.unwrap();

    assert_eq!(scene.delivered().await, [1]);
    let writer = scene.writer().await;
    assert_eq!(writer.append().await, 4);
    assert_eq!(scene.delivered().await, [1]);
    scene.server.crash().await.unwrap();
    scene.server.start_again().await.unwrap();
    assert_eq!(scene.delivered().await, [1]);
    scene.writer().await.run("COMMIT PREPARED 'p'").await;
    assert_eq!(scene.delivered().await[..3], [1, 2, 3]);
}

/// I-1, I-2: the same with a dispatcher at work through it all.
#[tokio::test]
async fn a_running_dispatcher_waits_for_a_prepared_transaction_through_a_restart() {
    let server = TempPostgres::builder().max_prepared_transactions(5).start().await.unwrap();
    let Scene { server, seen, registered } = Scene::on(server).await;
    let running = registered.start();
    let writer = Writer::on(server.url()).await;
    writer.append().await;
    writer.run("BEGIN").await;
    writer.append().await;
    writer.run("PREPARE TRANSACTION 'p'").await;
    writer.append().await;
    eventually(LIMIT, "what is in front of it is delivered", async || seen.ids().await == [1]).await;
    let epoch = epoch(&connect(server.url()).await).await;

    server.restart().await.unwrap();

    let writer = Writer::on(server.url()).await;
    eventually(LIMIT, "the dispatcher is back", async || {
        let now = self::epoch(writer.client()).await;
        now.is_some() && now != epoch
    })
    .await;
    writer.append().await;
    // It has looked, and asked who is writing, at least once since.
    asked_who_writes(writer.client()).await;
    assert_eq!(seen.ids().await, [1]);
    writer.run("COMMIT PREPARED 'p'").await;
    eventually(LIMIT, "all are delivered", async || seen.ids().await.len() == 4).await;
    seen.assert_complete().await;
    running.stop().await.unwrap();
}

async fn epoch(client: &Client) -> Option<String> {
    client.query_opt("SELECT epoch::text FROM inorder.instances", &[]).await.unwrap().map(|row| row.get(0))
}

/// Waits until a session has read the locks.
async fn asked_who_writes(client: &Client) {
    let asked = "SELECT EXISTS (SELECT FROM pg_stat_activity \
        WHERE datname = current_database() AND query LIKE '-- inorder safe_head/writers%' AND query_start > $1)";
    let now: std::time::SystemTime = client.query_one("SELECT now()", &[]).await.unwrap().get(0);
    eventually(LIMIT, "the locks are read", async || client.query_one(asked, &[&now]).await.unwrap().get(0))
        .await;
}

/// I-1: what was being written is gone with its ids, and the sequence goes on further up.
#[tokio::test]
async fn the_ids_that_a_crash_jumped_over_are_passed() {
    let server = TempPostgres::builder().setting("synchronous_commit", "on").start().await.unwrap();
    let scene = Scene::on(server).await;
    let writer = scene.writer().await;
    assert_eq!(writer.append().await, 1);
    let late = Writer::in_transaction(scene.server.url()).await;
    assert_eq!(late.append().await, 2);
    assert_eq!(writer.append().await, 3);
    assert_eq!(scene.delivered().await, [1]);

    scene.server.crash().await.unwrap();
    scene.server.start_again().await.unwrap();

    assert_eq!(scene.delivered().await, [1, 3]);
    let jumped = scene.writer().await.append().await;
    assert!(jumped > 4, "{jumped}");
    assert_eq!(scene.delivered().await, [1, 3, jumped]);
    scene.seen.assert_complete().await;
}

/// I-1. Under asynchronous commit a crash takes events back that had been delivered, together with their effects, and their
/// ids are given to other events.
#[tokio::test]
async fn ids_that_are_used_again_after_a_crash_are_delivered_again() {
    let server = TempPostgres::builder()
        .setting("autovacuum", "off")
        .setting("synchronous_commit", "on")
        .start()
        .await
        .unwrap();
    let scene = Scene::on(server).await;
    let writer = scene.writer().await;
    writer.append_many(3).await;
    assert_eq!(scene.delivered().await, [1, 2, 3]);
    let admin = connect(scene.server.url()).await;
    admin.batch_execute("ALTER SYSTEM SET synchronous_commit = off").await.unwrap();
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    eventually(LIMIT, "commits are asynchronous", async || {
        admin.query_one("SHOW synchronous_commit", &[]).await.unwrap().get::<_, &str>(0) == "off"
    })
    .await;
    // Nobody writes the log of the server out, until its death ends the server.
    let walwriter: i32 = admin
        .query_one("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'", &[])
        .await
        .unwrap()
        .get(0);
    process::signal("STOP", walwriter.into());
    let lost = Writer::on(scene.server.url()).await.append_many(60).await;
    assert_eq!(scene.delivered().await.len(), 63);

    process::signal("KILL", walwriter.into());

    eventually(LIMIT, "the server has died of it", async || admin.batch_execute("SELECT 1").await.is_err())
        .await;
    eventually(LIMIT, "the server has recovered", async || is_up(scene.server.url()).await).await;
    let writer = scene.writer().await;
    let left: i64 =
        writer.client().query_one("SELECT count(*) FROM inorder.events", &[]).await.unwrap().get(0);
    assert_eq!(left, 3, "the crash took them back");
    let again = writer.append_many(60).await;
    assert!(lost.iter().any(|id| again.contains(id)), "{again:?}");
    scene.delivered().await;
    scene.seen.assert_complete().await;
}

async fn is_up(url: &str) -> bool {
    let Ok((client, connection)) = tokio_postgres::connect(url, NoTls).await else { return false };
    tokio::spawn(async move { connection.await.ok() });
    client.batch_execute("SELECT 1").await.is_ok()
}

/// A primary, a standby that will lack what the primary commits last, and an address that leads to the one of the two that is
/// primary.
struct Failover {
    primary: TempPostgres,
    standby: TempPostgres,
    proxy: Proxy,
    seen: Recording,
}

impl Failover {
    /// Events 1 to 3 are on the primary.
    async fn new() -> Failover {
        let primary = TempPostgres::start().await.unwrap();
        let proxy = Proxy::in_front_of(primary.url()).await;
        let config = Config { statement_timeout: Duration::from_secs(5), ..Config::new(proxy.url()) };
        let log = Inorder::with_config(config).await.unwrap();
        log.migrate().await.unwrap();
        let standby = primary.standby().await.unwrap();
        let seen = Recording::over(log, primary.url()).await;
        Writer::on(primary.url()).await.append_many(3).await;
        Failover { primary, standby, proxy, seen }
    }

    /// From now on the standby misses what happens.
    async fn part(&self) {
        let position = "SELECT pg_current_wal_flush_lsn()::text";
        let primary = connect(self.primary.url()).await;
        // Commits are asynchronous: what is there must be flushed before it can be sent.
        primary.batch_execute("SELECT pg_switch_wal()").await.unwrap();
        let sent: String = primary.query_one(position, &[]).await.unwrap().get(0);
        let standby = connect(self.standby.url()).await;
        eventually(LIMIT, "the standby has caught up", async || {
            let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{sent}'::pg_lsn");
            standby.query_one(&replayed, &[]).await.unwrap().get(0)
        })
        .await;
        self.standby.stop_streaming().await.unwrap();
    }

    /// The standby takes over; connections to the old primary stay.
    async fn promote(&mut self) {
        self.standby.promote().await.unwrap();
        self.proxy.lead_to(self.standby.url()).await;
        self.seen.look_at(self.standby.url());
    }
}

/// I-1, I-2. Ids that were delivered are used again by the new primary; position and effects went with the tail.
#[tokio::test]
async fn a_standby_that_lacks_the_tail_takes_over_and_its_events_are_delivered() {
    let mut failover = Failover::new().await;
    let registered = failover.seen.register().await;
    drain(&registered).await;
    failover.part().await;
    let lost = Writer::on(failover.primary.url()).await.append_many(60).await;
    drain(&registered).await;
    assert_eq!(failover.seen.ids().await.len(), 63);

    failover.promote().await;
    failover.proxy.cut();

    let again = Writer::on(failover.standby.url()).await.append_many(60).await;
    assert!(lost.iter().any(|id| again.contains(id)), "{again:?}");
    drain(&registered).await;
    failover.seen.assert_complete().await;
}

/// The same while the dispatcher runs, and the connections of passes and readers still lead to the old primary, which lives
/// on: only what looks at the head has moved. The events are there before it: they are read in pages.
#[tokio::test]
async fn readers_that_still_reach_the_old_primary_neither_mix_nor_block() {
    let mut failover = Failover::new().await;
    let (running, registered) = failover.run_until_the_tail_is_delivered().await;
    failover.promote().await;
    Writer::on(failover.standby.url()).await.append_many(60).await;
    failover.end_all_but_passes().await;
    failover.new_ones_are_delivered(running, registered).await;
}

/// The same, and the events come when the new head is in sight already.
#[tokio::test]
async fn passes_that_still_reach_the_old_primary_neither_mix_nor_block() {
    let mut failover = Failover::new().await;
    let (running, registered) = failover.run_until_the_tail_is_delivered().await;
    failover.promote().await;
    failover.end_all_but_passes().await;
    let new = connect(failover.standby.url()).await;
    eventually(LIMIT, "the new head is in sight", async || epoch(&new).await.is_some()).await;
    Writer::on(failover.standby.url()).await.append_many(60).await;
    failover.new_ones_are_delivered(running, registered).await;
}

/// The same for the connections over which an effect consumer leases its row, claims and settles.
#[tokio::test]
async fn an_effect_consumer_that_still_reaches_the_old_primary_goes_on_at_the_new_one() {
    goes_on_at_the_new_primary(Consumer::effect_fn("mail", |_, _| Box::pin(async { Ok(()) }))).await;
}

/// And for those over which a queue settles, renews and sweeps.
#[tokio::test]
async fn a_queue_that_still_reaches_the_old_primary_goes_on_at_the_new_one() {
    goes_on_at_the_new_primary(Consumer::queued_fn("mail", |_, _| Box::pin(async { Ok(()) }))).await;
}

/// What it runs for the new one is settled there.
async fn goes_on_at_the_new_primary(consumer: Consumer) {
    let mut failover = Failover::new().await;
    let dispatcher = Dispatcher::builder(&failover.seen.log).consumer(consumer);
    let dispatcher = dispatcher.poll_interval(Duration::from_millis(50)).build().unwrap();
    let running = dispatcher.start().await.unwrap();
    let left = async |client: &Client| -> i64 {
        let left = "SELECT count(*) FROM inorder.events AS e WHERE NOT EXISTS (\
            SELECT FROM inorder.ledger AS l WHERE l.event_id = e.event_id AND l.status = 'done')";
        client.query_one(left, &[]).await.unwrap().get(0)
    };
    let old = connect(failover.primary.url()).await;
    eventually(LIMIT, "three are settled", async || left(&old).await == 0).await;
    failover.part().await;
    failover.promote().await;
    assert_eq!(failover.end_lookers().await, 1, "the watcher");
    Writer::on(failover.standby.url()).await.append_many(5).await;
    let new = connect(failover.standby.url()).await;
    eventually(LIMIT, "the new primary's are settled", async || left(&new).await == 0).await;
    running.stop().await.unwrap();
}

impl Failover {
    /// A dispatcher at work and one by hand, with connections of every kind to the old primary.
    async fn run_until_the_tail_is_delivered(&self) -> (Running, Registered) {
        let registered = self.seen.register().await;
        let dispatcher = self.seen.builder().poll_interval(Duration::from_millis(50)).build().unwrap();
        let running = dispatcher.start().await.unwrap();
        // Read in pages, as they were there before the dispatcher came.
        eventually(LIMIT, "three are delivered", async || self.seen.ids().await.len() == 3).await;
        self.part().await;
        Writer::on(self.primary.url()).await.append_many(60).await;
        eventually(LIMIT, "the tail is delivered", async || self.seen.ids().await.len() == 63).await;
        drain(&registered).await;
        (running, registered)
    }

    /// Whoever looks at the head comes back, and that is to the new primary.
    async fn end_all_but_passes(&self) {
        assert_eq!(self.end_lookers().await, 2, "the watcher, and who looks by hand");
    }

    /// Ends the sessions that look at the head. How many there were.
    async fn end_lookers(&self) -> i64 {
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'inorder' \
            AND query ~ '^-- inorder (events/look|consumers/poll|instances/mark|safe_head)'";
        connect(self.primary.url()).await.query_one(end, &[]).await.unwrap().get(0)
    }

    async fn new_ones_are_delivered(self, running: Running, registered: Registered) {
        eventually(LIMIT, "the new primary's are delivered", async || self.seen.ids().await.len() == 63)
            .await;
        self.seen.assert_complete().await;
        running.stop().await.unwrap();
        // Whoever runs passes by hand is told, and calls again.
        eventually(LIMIT, "passes by hand go on", async || match registered.drain().await {
            Ok(_) => true,
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                false
            }
        })
        .await;
        Writer::on(self.standby.url()).await.append_many(3).await;
        drain(&registered).await;
        self.seen.assert_complete().await;
    }
}
