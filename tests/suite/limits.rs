//! Time limits, stopping, and futures that are dropped: nothing is half done, nothing stays behind, nothing is charged to the
//! wrong event.

use std::time::{Duration, Instant};

use inorder::{Config, Consumer, Inorder, Outcome};

use crate::support::{Act, Actor, Gate, LIMIT, Proxy, Stage, at_once, dispatcher, eventually, within};

fn ids(range: std::ops::RangeInclusive<i64>) -> Vec<i64> {
    range.collect()
}

const SHORT: Duration = Duration::from_millis(300);
const SLEEPS: &str = "SELECT pg_sleep(60)";

/// Sessions of ours that are still at it, or in a transaction that nobody ends.
async fn assert_nothing_hangs(stage: &Stage) {
    let hanging = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND (query LIKE '%pg_sleep%' OR xact_start IS NOT NULL) \
            AND state <> 'idle'";
    eventually(LIMIT, "no session hangs", async || stage.count(hanging).await == 0).await;
}

/// I-4: whether the server or the handler itself takes too long.
#[tokio::test]
async fn a_handler_that_takes_too_long_is_dropped_and_that_is_a_retry() {
    for act in [Act::Sql(SLEEPS), Act::Hang, Act::Sql("SELECT 1; SELECT pg_sleep(60); SELECT 2")] {
        for batch in [false, true] {
            let stage = Stage::with_events(4).await;
            let actor = Actor::new("c").at_first(3, if batch { 3 } else { 1 }, act.clone());
            let consumer = if batch { actor.batch() } else { actor.transactional() };
            let consumers = stage.register([consumer.handler_timeout(SHORT)]).await;

            let report = within("it is dropped", consumers.drain()).await.unwrap()["c"].clone();

            assert!(matches!(report.outcome, Outcome::Waiting { at: 3, .. }), "{report:?}");
            let standing = stage.standing("c").await;
            assert_eq!((standing.position, standing.attempts, standing.faults), (2, 1, 0));
            assert_eq!(standing.error(), "the handler did not finish within 300ms");
            assert_eq!(stage.effects("c").await, ids(1..=2));
            assert_nothing_hangs(&stage).await;
            stage.due_now("c").await;
            consumers.drain().await.unwrap();
            assert_eq!(stage.effects("c").await, ids(1..=4));
        }
    }
}

/// The server would let the statement run for as long again; it is told to end it. So the row stays ours, and one pass is enough.
#[tokio::test]
async fn a_statement_that_runs_when_the_time_is_up_is_ended() {
    let limit = Duration::from_millis(2_500);
    let starts_late = Act::custom(move |_, tx| {
        Box::pin(async move {
            tokio::time::sleep(limit - Duration::from_millis(200)).await;
            tx.batch_execute(SLEEPS).await?;
            Ok(())
        })
    });
    let stage = Stage::with_events(2).await;
    let consumer = Actor::new("c").at(2, starts_late).transactional().handler_timeout(limit);
    let consumers = stage.register([consumer]).await;

    let report = consumers.run_once().await.unwrap()["c"].clone();

    assert_eq!((report.processed, report.failed), (1, 1));
    assert_eq!(stage.standing("c").await.error(), "the handler did not finish within 2.5s");
}

/// The server has the same limit and may be faster; a shorter one of the handler's own keeps its words.
#[tokio::test]
async fn the_servers_time_out_reads_as_one_when_it_was_the_limit() {
    let late = Act::custom(|_, tx| {
        Box::pin(async move {
            let sleeping = "SET LOCAL statement_timeout = '50ms'; SELECT pg_sleep(60)";
            let error = tx.batch_execute(sleeping).await.unwrap_err();
            // As in a process that was stopped and goes on later.
            std::thread::sleep(SHORT);
            Err(error.into())
        })
    });
    let own = Act::Sql("SET LOCAL statement_timeout = '50ms'; SELECT pg_sleep(60)");
    for (act, words) in [(late, "did not finish within 300ms"), (own, "57014")] {
        let stage = Stage::with_events(1).await;
        let consumer = Actor::new("c").at(1, act).transactional().handler_timeout(SHORT);
        stage.register([consumer]).await.drain().await.unwrap();
        let standing = stage.standing("c").await;
        assert!(standing.error().contains(words), "{standing:?}");
        assert_eq!((standing.attempts, standing.faults), (1, 0));
    }
}

/// A cancel that comes late hits nobody else: each event is dropped once, and succeeds then.
#[tokio::test]
async fn a_time_out_is_charged_to_no_other_event() {
    let stage = Stage::with_events(30).await;
    let mut actor = Actor::new("c");
    for event in 1..=30 {
        actor = actor.at_first(event, 1, if event % 2 == 0 { Act::Sql(SLEEPS) } else { Act::Hang });
    }
    let consumer = actor.transactional().handler_timeout(Duration::from_millis(100)).backoff(at_once());
    let running = stage.dispatcher([consumer]).max_passes(1).build().unwrap().start().await.unwrap();
    eventually(LIMIT, "all are delivered", async || stage.standing("c").await.position == 30).await;
    running.stop().await.unwrap();
    assert_eq!(stage.effects("c").await, ids(1..=30));
    assert_eq!(stage.count("SELECT failed FROM inorder.consumers").await, 30);
}

/// I-3: the process stands still in the middle of a handler, timers and all; another one has its row soon, and when the first
/// goes on, it can write nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_process_loses_its_row_and_can_write_nothing() {
    let stage = Stage::with_events(3).await;
    let (frozen, thaw) =
        (Gate::closed(), std::sync::Arc::new((std::sync::Mutex::new(false), std::sync::Condvar::new())));
    let (at, until) = (frozen.clone(), std::sync::Arc::clone(&thaw));
    let freezes = Act::custom(move |_, tx| {
        let (at, until) = (at.clone(), std::sync::Arc::clone(&until));
        Box::pin(async move {
            at.open();
            at.pass().await;
            drop(until.1.wait_while(until.0.lock().unwrap(), |thawed| !*thawed).unwrap());
            tx.execute("INSERT INTO effects (consumer, event) VALUES ('c', 777)", &[]).await?;
            Ok(())
        })
    });
    let log = Stage::log_through(stage.database.url(), LIMIT).await;
    let actor = Actor::new("c").at(2, freezes).transactional().handler_timeout(SHORT);
    let process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let consumers = dispatcher(&log, [actor]).build().unwrap().register().await.unwrap();
            consumers.run_once().await
        })
    });
    frozen.reached().await;

    let began = Instant::now();
    let other = Actor::new("c").transactional().handler_timeout(SHORT);
    let running = stage.dispatcher([other]).build().unwrap().start().await.unwrap();
    eventually(LIMIT, "it is taken over", async || stage.effects("c").await == ids(1..=3)).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());

    *thaw.0.lock().unwrap() = true;
    thaw.1.notify_all();
    let outcome = tokio::task::spawn_blocking(|| process.join().unwrap()).await.unwrap();
    assert!(outcome.as_ref().map_or(true, |report| report["c"].processed == 0), "{outcome:?}");
    assert_eq!(stage.effects("c").await, ids(1..=3));
    let standing = stage.standing("c").await;
    assert_eq!((standing.position, standing.attempts, standing.faults), (3, 0, 0));
    running.stop().await.unwrap();
}

/// The limit of a pass ends the batch early, and what was done is kept.
#[tokio::test]
async fn a_pass_commits_when_its_time_is_up() {
    let stage = Stage::with_events(10).await;
    let mut actor = Actor::new("c");
    for event in 1..=10 {
        let slow = Act::custom(|_, _| {
            Box::pin(async {
                tokio::time::sleep(Duration::from_millis(40)).await;
                Ok(())
            })
        });
        actor = actor.at(event, slow);
    }
    let consumers = stage.register([actor.transactional().pass_timeout(Duration::from_millis(60))]).await;

    let report = consumers.run_once().await.unwrap()["c"].clone();

    assert!((1..=2).contains(&report.processed), "{report:?}");
    assert_eq!(report.outcome, Outcome::More);
    assert_eq!(stage.effects("c").await.len(), usize::try_from(report.processed).unwrap());
    consumers.drain().await.unwrap();
    assert_eq!(stage.effects("c").await, ids(1..=10));
}

#[tokio::test]
async fn handlers_run_under_read_committed_whatever_the_database_says() {
    let stage = Stage::with_events(1).await;
    stage
        .sql(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); \
                EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$",
        )
        .await;
    let ask = Act::custom(|_, tx| {
        Box::pin(async move {
            let level: String = tx.query_one("SHOW transaction_isolation", &[]).await?.get(0);
            assert_eq!(level, "read committed");
            Ok(())
        })
    });
    let log = Inorder::connect(stage.database.url()).await.unwrap();
    let consumers = dispatcher(&log, [Actor::new("c").at(1, ask).transactional()]).build().unwrap();
    let report = consumers.register().await.unwrap().drain().await.unwrap();
    assert_eq!((report["c"].processed, report["c"].failed), (1, 0));
}

/// A handler may borrow connections of the log: the passes have their own.
#[tokio::test]
async fn handlers_that_borrow_another_connection_starve_nobody() {
    let stage = Stage::with_events(10).await;
    let config = Config { pool_size: 1, ..Config::new(stage.database.url()) };
    let log = Inorder::with_config(config).await.unwrap();
    let borrowing = |name: &str| {
        let log = log.clone();
        let name = name.to_owned();
        Consumer::transactional_fn(name.clone(), move |event, tx| {
            let (log, name) = (log.clone(), name.clone());
            Box::pin(async move {
                let other = log.get().await?;
                other.query_one("SELECT pg_sleep(0.001)", &[]).await?;
                let insert = "INSERT INTO effects (consumer, event) VALUES ($1, $2)";
                tx.execute(insert, &[&name, &event.id()]).await?;
                Ok(())
            })
        })
    };
    let names = ["a", "b", "c", "d", "e", "f"];
    let consumers = names.map(borrowing);
    let running = dispatcher(&log, consumers).max_passes(3).build().unwrap().start().await.unwrap();
    for name in names {
        eventually(LIMIT, "all is delivered", async || stage.effects(name).await == ids(1..=10)).await;
    }
    running.stop().await.unwrap();
    assert_eq!(stage.count("SELECT sum(failed)::bigint FROM inorder.consumers").await, 0);
}

/// A statement that was prepared for a table as it was heals itself: no attempt is counted.
#[tokio::test]
async fn a_prepared_statement_that_no_longer_fits_is_prepared_anew() {
    for batch in [false, true] {
        let stage = Stage::with_events(3).await;
        stage.sql("CREATE TABLE shape (n int); INSERT INTO shape VALUES (1)").await;
        let mut actor = Actor::new("c");
        for event in 1..=6 {
            let look = Act::custom(|_, tx| {
                Box::pin(async move {
                    tx.query_one("SELECT * FROM shape", &[]).await?;
                    Ok(())
                })
            });
            actor = actor.at(event, look);
        }
        let consumer = if batch { actor.batch() } else { actor.transactional() };
        let consumers = stage.dispatcher([consumer]).max_passes(1).build().unwrap().register().await.unwrap();
        consumers.drain().await.unwrap();

        stage.sql("ALTER TABLE shape ADD COLUMN more text, ALTER COLUMN n TYPE bigint").await;
        stage.append(3).await;
        let report = consumers.drain().await.unwrap()["c"].clone();

        assert_eq!((report.processed, report.failed, report.outcome), (3, 0, Outcome::CaughtUp));
        assert_eq!(stage.effects("c").await, ids(1..=6));
    }
}

/// A log whose sessions can be told from others.
async fn named(stage: &Stage, url: &str) -> Inorder {
    let limit = Duration::from_secs(2);
    let config = Config {
        application_name: "under test".into(),
        connect_timeout: limit,
        statement_timeout: limit,
        ..Config::new(url)
    };
    assert_eq!(left_behind(stage).await, 0);
    Inorder::with_config(config).await.unwrap()
}

async fn left_behind(stage: &Stage) -> i64 {
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'under test' AND datname = current_database()";
    stage.count(sessions).await
}

#[tokio::test]
async fn stopping_lets_the_handlers_in_flight_finish_and_takes_no_further_event() {
    for batch in [false, true] {
        let stage = Stage::with_events(5).await;
        let gate = Gate::closed();
        let actor = Actor::new("c").at(2, Act::Meet(gate.clone()));
        let heard = actor.heard();
        let consumer = if batch { actor.batch().batch_size(2) } else { actor.transactional() };
        let running = stage.dispatcher([consumer]).build().unwrap().start().await.unwrap();
        gate.reached().await;

        let stopping = running.stop();
        tokio::pin!(stopping);
        assert!(futures_util::poll!(&mut stopping).is_pending());
        gate.open();
        within("it stops", stopping).await.unwrap();

        assert_eq!((stage.effects("c").await, heard.all()), (ids(1..=2), ids(1..=2)));
        assert_eq!(stage.standing("c").await.position, 2);
    }
}

/// The event is nobody's fault, and is free for others at once.
#[tokio::test]
async fn handlers_over_the_stop_time_out_are_dropped_and_cost_no_attempt() {
    for act in [Act::Hang, Act::Sql(SLEEPS)] {
        let stage = Stage::with_events(3).await;
        let gate = Gate::closed();
        let (then, reached) = (act.clone(), gate.clone());
        let hangs = Act::custom(move |event, tx| {
            let (then, reached) = (then.clone(), reached.clone());
            Box::pin(async move {
                reached.open();
                reached.pass().await;
                then.play(event, tx).await
            })
        });
        let log = named(&stage, stage.database.url()).await;
        let consumer = Actor::new("c").at(2, hangs).transactional();
        let running =
            dispatcher(&log, [consumer]).stop_timeout(SHORT).build().unwrap().start().await.unwrap();
        let others = stage.register([Actor::new("c").transactional()]).await;
        gate.reached().await;

        let began = Instant::now();
        within("it stops", running.stop()).await.unwrap();

        assert!((SHORT..Duration::from_secs(5)).contains(&began.elapsed()), "{:?}", began.elapsed());
        let standing = stage.standing("c").await;
        assert_eq!((standing.position, standing.attempts, standing.faults), (0, 0, 0), "{standing:?}");
        assert_eq!((standing.waits, standing.last_error), (false, None));
        assert_eq!(others.run_once().await.unwrap()["c"].processed, 3, "it is free when stop returns");
        drop(log);
        eventually(LIMIT, "no session is left", async || left_behind(&stage).await == 0).await;
    }
}

#[tokio::test]
async fn stopping_leaves_nothing_behind_however_often_it_is_asked_for() {
    let stage = Stage::with_events(50).await;
    let log = named(&stage, stage.database.url()).await;
    let consumers = [Actor::new("a").transactional(), Actor::new("b").batch()];
    let running = dispatcher(&log, consumers).build().unwrap().start().await.unwrap();
    eventually(LIMIT, "it is at work", async || stage.effects("b").await.len() == 50).await;
    assert_eq!(stage.count("SELECT count(*) FROM inorder.instances").await, 1);

    let (one, two) = within("it stops", async { tokio::join!(running.stop(), running.stop()) }).await;
    one.unwrap();
    two.unwrap();
    running.stop().await.unwrap();
    running.stopped().await.unwrap();

    assert_eq!(stage.count("SELECT count(*) FROM inorder.instances").await, 0);
    drop((running, log));
    eventually(LIMIT, "no session is left", async || left_behind(&stage).await == 0).await;
}

#[tokio::test]
async fn dropping_a_running_dispatcher_asks_it_to_stop() {
    let stage = Stage::with_events(3).await;
    let gate = Gate::closed();
    let log = named(&stage, stage.database.url()).await;
    let consumer = Actor::new("c").at(2, Act::Meet(gate.clone())).transactional();
    let running = dispatcher(&log, [consumer]).build().unwrap().start().await.unwrap();
    gate.reached().await;

    drop((running, log));
    gate.open();

    eventually(LIMIT, "the process is gone", async || {
        stage.count("SELECT count(*) FROM inorder.instances").await == 0
    })
    .await;
    eventually(LIMIT, "no session is left", async || left_behind(&stage).await == 0).await;
    assert_eq!(stage.effects("c").await, ids(1..=2), "what was in flight has finished");
}

/// Handlers and the watcher all wait for a server that does not answer any more.
#[tokio::test]
async fn a_server_that_fell_silent_does_not_hold_up_the_stop() {
    for refuse in [false, true] {
        let stage = Stage::with_events(3).await;
        let proxy = Proxy::in_front_of(stage.database.url()).await;
        let gate = Gate::closed();
        let log = named(&stage, proxy.url()).await;
        let consumers =
            [Actor::new("a").at(2, Act::Meet(gate.clone())).transactional(), Actor::new("b").batch()];
        let running = dispatcher(&log, consumers).stop_timeout(SHORT).build().unwrap().start().await.unwrap();
        gate.reached().await;
        match refuse {
            true => proxy.refuse(),
            false => proxy.black_hole(),
        }
        gate.open();

        let began = Instant::now();
        within("it stops", running.stop()).await.unwrap();

        // The stop time-out, tidying up, and taking leave.
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        drop(proxy);
        let others = stage.register([Actor::new("a").transactional()]).await;
        within("others have it", others.drain()).await.unwrap();
        assert_eq!(stage.effects("a").await, ids(1..=3));
    }
}

/// I-4: a pass that is dropped in the middle of a handler is rolled back, and its connection is of no harm to anybody.
#[tokio::test]
async fn a_pass_that_is_dropped_in_a_handler_leaves_nothing_half_done() {
    for act in [Act::Hang, Act::Sql(SLEEPS)] {
        let stage = Stage::with_events(3).await;
        let actor = Actor::new("c").at_first(3, 1, act);
        let consumers = stage.dispatcher([actor.transactional()]).max_passes(1).build().unwrap();
        let consumers = consumers.register().await.unwrap();
        assert!(tokio::time::timeout(SHORT, consumers.run_once()).await.is_err());

        let began = Instant::now();
        within("the row is free", consumers.drain()).await.unwrap();
        // The server notices within half a second that a client went away in the middle of a statement.
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert_eq!(stage.effects("c").await, ids(1..=3));
        assert_nothing_hangs(&stage).await;
    }
}

/// I-4: wherever it is dropped.
#[tokio::test]
async fn a_pass_may_be_dropped_anywhere() {
    let stage = Stage::with_events(0).await;
    let consumer = Actor::new("c").transactional().batch_size(2);
    let consumers = stage.dispatcher([consumer]).max_passes(1).build().unwrap().register().await.unwrap();
    let mut dropped = 0;
    for n in 0..80 {
        stage.append(2).await;
        let patience = Duration::from_micros(200 * n);
        dropped += usize::from(tokio::time::timeout(patience, consumers.run_once()).await.is_err());
    }
    assert!(dropped > 10, "{dropped} were dropped in the middle");
    within("the rest is delivered", consumers.drain()).await.unwrap();
    assert_eq!(stage.effects("c").await, ids(1..=160));
    assert_nothing_hangs(&stage).await;
}
