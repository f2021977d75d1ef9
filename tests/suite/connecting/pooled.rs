//! Through a pooler that gives each transaction another session: nothing that was prepared, set or listened for is there in the
//! next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use inorder::testing::TempPostgres;
use inorder::{
    Backoff, Config, Consumer, Dispatcher, ExpectedVersion, Failure, Inorder, NewEvent, Outcome, Prune, Start,
};
use serde_json::json;
use tokio_postgres::Client;

use crate::suite::tool::run;
use crate::support::pooler::POLLED;
use crate::support::{Act, Actor, LIMIT, Pooler, Runs, Words, connect, eventually, within};

/// A log behind a pooler, and a session that goes to the server itself.
struct Pooled {
    _server: TempPostgres,
    pooler: Pooler,
    log: Inorder,
    client: Client,
}

impl Pooled {
    async fn log() -> Pooled {
        let server = TempPostgres::start().await.unwrap();
        server.create_database("shop").await.unwrap();
        let pooler = Pooler::of_transactions(&server, 4).await;
        let log =
            Inorder::connect(pooler.url("shop")).await.unwrap_or_else(|e| panic!("{e:?}: {}", pooler.log()));
        log.migrate().await.unwrap_or_else(|e| panic!("{e:?}"));
        let client = connect(&server.url_for("shop")).await;
        client
            .batch_execute(
                "CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, consumer text, event bigint)",
            )
            .await
            .unwrap();
        Pooled { _server: server, pooler, log, client }
    }

    async fn append(&self, count: usize) -> Vec<i64> {
        let events: Vec<NewEvent> =
            (0..count).map(|n| NewEvent::new("counted", &json!({"n": n})).unwrap()).collect();
        match self.log.append(ExpectedVersion::Any, &events).await.unwrap() {
            inorder::Append::Appended(ids) => ids,
            other => panic!("{other:?}"),
        }
    }

    fn dispatcher(&self) -> inorder::DispatcherBuilder {
        Dispatcher::builder(&self.log).poll_interval(POLLED)
    }

    async fn effects(&self, consumer: &str) -> Vec<i64> {
        let select = "SELECT event FROM effects WHERE consumer = $1 ORDER BY n";
        self.client.query(select, &[&consumer]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }

    /// Sessions of the pooler's, all of them held at once: none is missed.
    async fn sessions(&self) -> Vec<Client> {
        let mut sessions = Vec::new();
        for _ in 0..4 {
            let session = connect(&self.pooler.url("shop")).await;
            session.batch_execute("BEGIN").await.unwrap();
            sessions.push(session);
        }
        sessions
    }
}

#[tokio::test]
async fn every_kind_of_consumer_works_and_one_warning_says_that_it_polls() {
    let words = Words::listen();
    let pooled = Pooled::log().await;
    let (in_order, many) = (Runs::default(), Runs::default());
    let effect = {
        let runs = in_order.clone();
        Consumer::effect_fn("effect", move |event, _| {
            runs.note(event);
            Box::pin(async { Ok(()) })
        })
    };
    let ids = pooled.append(200).await;

    let running = pooled
        .dispatcher()
        .consumer(Actor::new("transactional").transactional())
        .consumer(Actor::new("batch").batch())
        .consumer(Actor::new("split").transactional().partitions(2))
        .consumer(effect)
        .consumer(many.consumer("queued"))
        .build()
        .unwrap()
        .start()
        .await
        .unwrap();
    let late = pooled.append(50).await;
    let all: Vec<i64> = ids.into_iter().chain(late).collect();

    let done = async || {
        pooled.effects("transactional").await == all
            && pooled.effects("batch").await == all
            && pooled.effects("split").await.len() == all.len()
            && in_order.ids() == all
            && many.count() == all.len()
    };
    eventually(LIMIT, "all consumers have all events", done).await;
    running.stop().await.unwrap();

    let warnings = words.with(&["WARN"]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("a pooler gives each transaction another session"), "{warnings:?}");
}

/// Neither settings nor prepared statements, for whoever has the session next.
#[tokio::test]
async fn nothing_is_left_behind_in_a_session_of_the_poolers() {
    let pooled = Pooled::log().await;
    pooled.append(20).await;
    let consumers = pooled.dispatcher().consumer(Actor::new("c").at(7, Act::Fail("no")).transactional());
    consumers.build().unwrap().register().await.unwrap().run_once().await.unwrap();

    let ours = "SELECT name FROM pg_catalog.pg_settings WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding')";
    let prepared = "SELECT statement FROM pg_catalog.pg_prepared_statements WHERE statement NOT LIKE '%pg_prepared_statements%'";
    for session in pooled.sessions().await {
        for question in [ours, prepared] {
            let left = session.query_typed(question, &[]).await.unwrap();
            let left: Vec<String> = left.iter().map(|row| row.get(0)).collect();
            assert!(left.is_empty(), "{question}: {left:?}");
        }
    }
}

/// The cancel finds the session that the pooler gave the transaction.
#[tokio::test]
async fn a_handler_that_takes_too_long_is_ended_and_the_others_work_goes_on() {
    let pooled = Pooled::log().await;
    pooled.append(5).await;
    let slow = Actor::new("slow").at_first(3, 1, Act::Sql("SELECT pg_catalog.pg_sleep(3600)"));
    let slow = slow
        .transactional()
        .handler_timeout(Duration::from_millis(300))
        .backoff(Backoff::constant(Duration::from_millis(10)));
    let hanging = Actor::new("hanging").at_first(2, 1, Act::Hang);
    let hanging = hanging
        .transactional()
        .handler_timeout(Duration::from_millis(300))
        .backoff(Backoff::constant(Duration::from_millis(10)));
    let running =
        pooled.dispatcher().consumer(slow).consumer(hanging).build().unwrap().start().await.unwrap();
    eventually(LIMIT, "both have all events", async || {
        pooled.effects("slow").await == [1, 2, 3, 4, 5] && pooled.effects("hanging").await == [1, 2, 3, 4, 5]
    })
    .await;
    assert!(!pooled.pooler.log().contains("FATAL"), "the pooler is well: {}", pooled.pooler.log());
    let sleeping = "SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE query LIKE '%pg_sleep(3600)%' AND state = 'active' AND pid <> pg_backend_pid()";
    assert_eq!(pooled.client.query_one(sleeping, &[]).await.unwrap().get::<_, i64>(0), 0);
    running.stop().await.unwrap();
}

/// Each transaction prepares what it needs.
#[tokio::test]
async fn a_handlers_own_statements_work_in_whatever_session_they_come_to() {
    let pooled = Pooled::log().await;
    let tables = "CREATE TYPE mood AS ENUM ('fine', 'sad'); CREATE TABLE moods (event bigint, mood mood)";
    pooled.client.batch_execute(tables).await.unwrap();
    // From here on the pooler has all of its sessions, and gives them out in turn.
    for session in pooled.sessions().await {
        session.batch_execute("COMMIT").await.unwrap();
    }
    pooled.append(40).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    let consumer = Consumer::transactional_fn("moody", move |event, tx| {
        counted.fetch_add(1, Ordering::Relaxed);
        let id = event.id();
        Box::pin(async move {
            let cast = tx
                .query_one(
                    "SELECT CASE WHEN $1::bigint % 2 = 0 THEN 'sad' ELSE 'fine' END::mood::text",
                    &[&id],
                )
                .await?;
            let mood: String = cast.get(0);
            tx.execute("INSERT INTO moods SELECT $1, $2::text::mood", &[&id, &mood]).await?;
            tx.query_raw(&tx.prepare("SELECT 1").await?, std::iter::empty::<i32>()).await?;
            Ok::<(), Failure>(())
        })
    })
    .batch_size(3)
    .backoff(Backoff::constant(Duration::from_millis(10)));
    let registered = pooled.dispatcher().consumer(consumer).build().unwrap().register().await.unwrap();
    let report = within("all are handled", Box::pin(registered.drain())).await.unwrap();
    assert_eq!(report["moody"].processed, 40, "{report:?}");
    assert_eq!(tries.load(Ordering::Relaxed), 40, "none had to be tried again");
}

#[tokio::test]
async fn operators_act_through_it_and_so_does_the_tool() {
    let pooled = Pooled::log().await;
    pooled.append(10).await;
    let picky = || Actor::new("picky").at(4, Act::Reject("never")).transactional();
    let registered = pooled.dispatcher().consumer(picky()).build().unwrap().register().await.unwrap();
    let report = Box::pin(registered.drain()).await.unwrap();
    assert_eq!(report["picky"].outcome, Outcome::Dead { at: 4 });

    let admin = pooled.log.admin().by("ops");
    admin.skip_poison("picky", name_of(&pooled, 4).await).await.unwrap();
    admin.disable("picky").await.unwrap();
    admin.enable("picky").await.unwrap();
    assert_eq!(admin.list().await.unwrap().len(), 1);
    assert!(admin.progress("picky").await.is_ok());
    assert_eq!(admin.dead_letters(&inorder::DeadLetters::open()).await.unwrap().len(), 1);
    Box::pin(registered.drain()).await.unwrap();
    admin.reset("picky", Start::After(8)).await.unwrap();
    let pruned = admin.prune(&Prune::before(time::OffsetDateTime::now_utc()), |_| {}).await.unwrap();
    assert!(pruned.deleted > 0, "{pruned:?}");

    let findings = admin.doctor(&inorder::Doctor::default()).await.unwrap();
    let found = findings.iter().filter(|f| f.looked_for == "pooler").count();
    assert_eq!(found, 1, "{findings:?}");
    let said = Config { pooler: inorder::Pooler::Transaction, ..Config::new(pooled.pooler.url("shop")) };
    let findings =
        Inorder::with_config(said).await.unwrap().admin().doctor(&inorder::Doctor::default()).await.unwrap();
    assert!(findings.iter().all(|f| f.looked_for != "pooler"), "{findings:?}");

    let url = pooled.pooler.url("shop");
    for verb in [
        "doctor",
        "roles",
        "migrate",
        "status",
        "consumers",
        "show picky",
        "instances",
        "audit",
        "blockers",
        "dead-letters list",
        "disable picky",
        "enable picky",
        "tail -n 3",
        "ledger list",
        "handoffs list",
    ] {
        let ran = run(&url, verb).await;
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{verb}: {ran:?}");
    }
}

/// What is found out can also be said.
#[tokio::test]
async fn a_pooler_that_keeps_sessions_is_as_if_there_were_none_where_that_is_said() {
    let server = TempPostgres::start().await.unwrap();
    let pooler = Pooler::of_sessions(&server).await;
    let words = Words::listen();
    for (pooler_is, warned) in
        [(inorder::Pooler::Detect, 1), (inorder::Pooler::Session, 0), (inorder::Pooler::Transaction, 1)]
    {
        words.forget();
        let log = Inorder::with_config(Config { pooler: pooler_is, ..Config::new(pooler.url("postgres")) })
            .await
            .unwrap();
        log.migrate().await.unwrap();
        let consumers = Dispatcher::builder(&log).consumer(Runs::default().consumer("c")).build().unwrap();
        let running = consumers.start().await.unwrap();
        if warned == 0 {
            words.say(LIMIT, &["listening"]).await;
        }
        running.stop().await.unwrap();
        assert_eq!(
            words.with(&["WARN", "a pooler gives each transaction another session"]).len(),
            warned,
            "{pooler_is:?}"
        );
    }
}

/// A server without a pooler is not taken for one, whatever options the application gives its sessions.
#[tokio::test]
async fn a_server_itself_is_not_taken_for_a_pooler() {
    let server = TempPostgres::start().await.unwrap();
    let words = Words::listen();
    let url = format!("{}?options=-c%20work_mem%3D7MB", server.url());
    let log = Inorder::connect(url).await.unwrap();
    log.migrate().await.unwrap();
    let memory = log.get().await.unwrap().query_one("SHOW work_mem", &[]).await.unwrap();
    assert_eq!(memory.get::<_, &str>(0), "7MB");
    let consumers = Dispatcher::builder(&log).consumer(Runs::default().consumer("c")).build().unwrap();
    let running = consumers.start().await.unwrap();
    words.say(LIMIT, &["listening"]).await;
    running.stop().await.unwrap();
}

async fn name_of(pooled: &Pooled, id: i64) -> uuid::Uuid {
    pooled.client.query_one("SELECT event_id FROM inorder.events WHERE id = $1", &[&id]).await.unwrap().get(0)
}
