//! Delivery: every event, in order, once.

use std::time::Duration;

use inorder::{
    BatchHandler, Consumer, Event, ExpectedVersion, Failure, HandlerTx, NewEvent, Outcome,
    TransactionalHandler,
};
use serde_json::json;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::support::{Act, Actor, Gate, LIMIT, Stage, Words, at_once, dispatcher, eventually, within};

fn ids(range: std::ops::RangeInclusive<i64>) -> Vec<i64> {
    range.collect()
}

/// I-1, I-2, I-4.
#[tokio::test]
async fn a_transactional_consumer_receives_every_event_in_order_and_once() {
    let stage = Stage::with_events(250).await;
    let consumers = stage.register([Actor::new("c").transactional()]).await;

    let report = consumers.drain().await.unwrap();

    assert_eq!((report["c"].processed, &report["c"].outcome), (250, &Outcome::CaughtUp));
    assert_eq!(stage.effects("c").await, ids(1..=250));
    assert_eq!(consumers.drain().await.unwrap()["c"].processed, 0);
    assert_eq!(stage.effects("c").await, ids(1..=250));
}

/// I-1, I-2, I-4.
#[tokio::test]
async fn a_batch_consumer_receives_every_event_in_order_in_slices_of_at_most_its_size() {
    let stage = Stage::with_events(250).await;
    stage.sql("CREATE TABLE slices (n int GENERATED ALWAYS AS IDENTITY, events bigint[])").await;
    let keep = Consumer::batch_fn("c", |events, tx| {
        Box::pin(async move {
            let ids: Vec<i64> = events.iter().map(Event::id).collect();
            tx.execute("INSERT INTO slices (events) VALUES ($1)", &[&ids]).await?;
            Ok(())
        })
    });
    let consumers = stage.register([keep.batch_size(40)]).await;

    assert_eq!(consumers.drain().await.unwrap()["c"].processed, 250);

    let slices = stage.client.query("SELECT events FROM slices ORDER BY n", &[]).await.unwrap();
    let slices: Vec<Vec<i64>> = slices.iter().map(|row| row.get(0)).collect();
    assert!(slices.iter().all(|slice| slice.len() <= 40), "{slices:?}");
    assert_eq!(slices.concat(), ids(1..=250));
}

/// I-1, I-2: pages read ahead, several of them, with commits of many batches.
#[tokio::test]
async fn a_consumer_that_is_far_behind_misses_nothing_and_keeps_the_order() {
    let stage = Stage::with_events(0).await;
    stage
        .sql(
            "INSERT INTO inorder.events (event_type, payload) SELECT 'old', '{}' FROM generate_series(1, 30000)",
        )
        .await;
    stage.sql("CREATE TABLE seen (n bigint GENERATED ALWAYS AS IDENTITY, event bigint)").await;
    let keep = Consumer::batch_fn("c", |events, tx| {
        Box::pin(async move {
            let ids: Vec<i64> = events.iter().map(Event::id).collect();
            tx.execute("INSERT INTO seen (event) SELECT unnest($1::bigint[])", &[&ids]).await?;
            Ok(())
        })
    });
    // The least memory: the window on the head does not hold all of it.
    let consumers = stage.dispatcher([keep]).read_ahead_bytes(1024 * 1024).build().unwrap();

    assert_eq!(consumers.register().await.unwrap().drain().await.unwrap()["c"].processed, 30_000);

    let out_of_order = "SELECT count(*) FROM (SELECT event <> row_number() OVER (ORDER BY n) AS wrong FROM seen) AS s WHERE wrong";
    assert_eq!(stage.count(out_of_order).await, 0);
    assert_eq!(stage.count("SELECT count(*) FROM seen").await, 30_000);
}

/// I-4: nobody sees the one without the other.
#[tokio::test]
async fn effects_and_position_become_visible_together() {
    let stage = Stage::with_events(3).await;
    let gate = Gate::closed();
    let consumers = stage.register([Actor::new("c").at(3, Act::Meet(gate.clone())).transactional()]).await;
    let pass = tokio::spawn(async move { consumers.run_once().await });
    gate.reached().await;

    assert_eq!((stage.effects("c").await, stage.standing("c").await.position), (vec![], 0));

    gate.open();
    within("the pass ends", pass).await.unwrap().unwrap();
    assert_eq!((stage.effects("c").await, stage.standing("c").await.position), (ids(1..=3), 3));
}

/// I-1: what is not wanted is passed, and the lag goes to zero.
#[tokio::test]
async fn a_filter_delivers_what_is_wanted_and_leaves_no_lag() {
    let stage = Stage::with_events(0).await;
    stage.append_types(&["a", "b", "a", "c", "b"]).await;
    let (a, none) = (Actor::new("a").transactional().only(["a"]), Actor::new("none").batch().only(["z"]));
    let consumers = stage.register([a, none]).await;

    let report = consumers.drain().await.unwrap();

    assert_eq!(stage.effects("a").await, [1, 3]);
    assert_eq!((report["a"].processed, report["none"].processed), (2, 0));
    assert_eq!((stage.standing("a").await.position, stage.standing("none").await.position), (5, 5));
    // And while it runs by itself.
    let running = consumers.start();
    stage.append_types(&["b", "a", "c"]).await;
    for consumer in ["a", "none"] {
        eventually(LIMIT, "the lag is gone", async || stage.standing(consumer).await.position == 8).await;
    }
    assert_eq!(stage.effects("a").await, [1, 3, 7]);
    running.stop().await.unwrap();
}

/// I-1, I-2: the doorbell or the poll, whichever comes first.
#[tokio::test]
async fn a_running_dispatcher_delivers_what_is_appended_meanwhile() {
    for poll_only in [false, true] {
        let stage = Stage::with_events(20).await;
        let consumers = [Actor::new("t").transactional(), Actor::new("b").batch()];
        let mut dispatcher = stage.dispatcher(consumers);
        if poll_only {
            dispatcher = dispatcher.poll_only();
        }
        let running = dispatcher.build().unwrap().start().await.unwrap();
        for _ in 0..20 {
            stage.append(4).await;
        }
        for consumer in ["t", "b"] {
            eventually(LIMIT, "everything is there", async || stage.effects(consumer).await.len() >= 100)
                .await;
            assert_eq!(stage.effects(consumer).await, ids(1..=100));
        }
        running.stop().await.unwrap();
    }
}

/// The row of an event that a handler appended.
async fn appended(stage: &Stage, event_type: &str) -> Option<(i64, Option<Uuid>, Option<Uuid>)> {
    let select = "SELECT id, causation_id, correlation_id FROM inorder.events WHERE event_type = $1";
    let row = stage.client.query_opt(select, &[&event_type]).await.unwrap();
    row.map(|row: Row| (row.get(0), row.get(1), row.get(2)))
}

#[tokio::test]
async fn an_event_appended_by_a_handler_names_its_cause_and_inherits_the_correlation() {
    let stage = Stage::with_events(0).await;
    let (request, plain, explicit) = (Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4());
    stage
        .append_events(&[
            NewEvent::from_json("a", "1").event_id(plain).correlation(request),
            NewEvent::from_json("a", "1").event_id(explicit),
            NewEvent::from_json("a", "1"),
        ])
        .await;
    let says_otherwise = Act::custom(move |_, tx| {
        Box::pin(async move {
            let event = NewEvent::from_json("third", "{}").causation(request).correlation(request);
            let _ = tx.append(ExpectedVersion::Any, &[event]).await?;
            Ok(())
        })
    });
    let actor =
        Actor::new("c").at(1, Act::Append("first")).at(2, Act::Append("second")).at(3, says_otherwise);
    stage.register([actor.transactional()]).await.drain().await.unwrap();

    let links = async |event_type| appended(&stage, event_type).await.map(|(_, cause, with)| (cause, with));
    assert_eq!(links("first").await, Some((Some(plain), Some(request))));
    assert_eq!(
        links("second").await,
        Some((Some(explicit), Some(explicit))),
        "the cause begins a correlation"
    );
    assert_eq!(links("third").await, Some((Some(request), Some(request))));
}

/// I-7: what a handler appends is a hole for everybody until the pass commits; so it commits at once, and not at the end of
/// the batch.
#[tokio::test]
async fn a_pass_in_which_a_handler_appended_commits_right_after_that_event() {
    for append in [
        Act::Append("appended"),
        Act::Sql("SELECT * FROM inorder.append('appended', '{}')"),
        Act::Sql("INSERT INTO inorder.events (event_type, payload) VALUES ('appended', '{}')"),
    ] {
        let stage = Stage::with_events(5).await;
        let gate = Gate::closed();
        let actor = Actor::new("c").at_first(2, 1, append).at(3, Act::MeetBefore(gate.clone()));
        let running = stage.dispatcher([actor.transactional()]).build().unwrap().start().await.unwrap();

        gate.reached().await;
        assert_eq!(stage.effects("c").await, [1, 2]);
        assert!(appended(&stage, "appended").await.is_some());

        gate.open();
        eventually(LIMIT, "it comes in its turn", async || stage.effects("c").await.len() == 6).await;
        assert_eq!(stage.effects("c").await, ids(1..=6));
        running.stop().await.unwrap();
    }
}

/// I-7: also where nobody can see in a handler's statements that they append, here a trigger on a business table. As soon as
/// somebody waits for the pass, it commits after the event at hand.
#[tokio::test]
async fn a_pass_that_holds_a_hole_open_commits_after_the_event_at_hand() {
    let stage = Stage::with_events(6).await;
    stage
        .sql(
            "CREATE TABLE business (n int); \
             CREATE FUNCTION publish() RETURNS trigger LANGUAGE plpgsql AS \
                $$ BEGIN PERFORM inorder.append('appended', '{}'); RETURN NULL; END $$; \
             CREATE TRIGGER publish AFTER INSERT ON business FOR EACH ROW EXECUTE FUNCTION publish()",
        )
        .await;
    let (words, hole, after) = (Words::listen(), Gate::closed(), Gate::closed());
    let actor = Actor::new("c")
        .at_first(2, 1, Act::Sql("INSERT INTO business VALUES (1)"))
        .at_first(3, 1, Act::Meet(hole.clone()))
        .at_first(4, 1, Act::MeetBefore(after.clone()));
    let consumers = [actor.transactional(), Actor::new("other").transactional()];
    let running = stage.dispatcher(consumers).build().unwrap().start().await.unwrap();
    hole.reached().await;
    // Databases that were made of one template have the same relations.
    let session = "SELECT pid::bigint FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database \
        WHERE d.datname = current_database() AND l.relation = 'inorder.events_id_seq'::regclass AND l.mode = 'RowExclusiveLock'";
    let session = stage.count(session).await;
    stage.append(1).await;
    words.say(LIMIT, &["in front of a hole", &format!("{session}")]).await;

    hole.open();
    after.reached().await;

    assert_eq!(stage.effects("c").await, ids(1..=3));
    eventually(LIMIT, "the other has what was appended", async || stage.effects("other").await.len() == 8)
        .await;
    after.open();
    eventually(LIMIT, "it goes on", async || stage.effects("c").await.len() == 8).await;
    running.stop().await.unwrap();
}

/// I-4: an append is an effect like any other.
#[tokio::test]
async fn an_event_appended_by_a_handler_that_fails_is_seen_by_nobody() {
    let stage = Stage::with_events(2).await;
    let appends_and_fails = Act::custom(|_, tx| {
        Box::pin(async move {
            let _ = tx.append(ExpectedVersion::Any, &[NewEvent::from_json("appended", "{}")]).await?;
            Err("after all".into())
        })
    });
    let actor = Actor::new("c").at(2, appends_and_fails).transactional();
    let consumers = stage.register([actor, Actor::new("other").batch()]).await;

    let report = consumers.drain().await.unwrap();

    assert!(matches!(report["c"].outcome, Outcome::Waiting { at: 2, .. }), "{report:?}");
    assert_eq!((stage.effects("c").await, stage.effects("other").await), (vec![1], vec![1, 2]));
    assert_eq!(appended(&stage, "appended").await, None);
    stage.append(1).await;
    consumers.drain().await.unwrap();
    assert_eq!(stage.effects("other").await.len(), 3, "nobody waits for what will never be");
}

/// I-7: a bare INSERT is unchecked, and nothing of it makes the others stand still.
#[tokio::test]
async fn an_event_from_the_end_of_time_is_delivered_like_any_other() {
    let stage = Stage::with_events(0).await;
    stage
        .sql("INSERT INTO inorder.events (event_type, payload, recorded_at) VALUES ('a', '1', '-infinity'), ('b', '2', 'infinity')")
        .await;
    let dead = "INSERT INTO inorder.consumers (name, kind, position, status) VALUES ('dead', 'batch', 0, 'dead'), ('lame', 'batch', 1, 'dead')";
    stage.sql(dead).await;
    let running = stage.dispatcher([Actor::new("c").transactional()]).build().unwrap().start().await.unwrap();
    eventually(LIMIT, "both are delivered", async || stage.effects("c").await == [1, 2]).await;
    let lags = "SELECT sum(lag)::bigint FROM inorder.list_consumers() WHERE behind IS NOT NULL";
    assert_eq!(stage.count(lags).await, 3);
    assert_eq!(stage.log.admin().list().await.unwrap().len(), 3);
    running.stop().await.unwrap();
}

/// I-7.
#[tokio::test]
async fn a_slow_a_dead_and_a_disabled_consumer_delay_nobody() {
    let stage = Stage::with_events(3).await;
    let gate = Gate::closed();
    let slow = Actor::new("slow").at(1, Act::Meet(gate.clone())).transactional();
    let dead = Actor::new("dead").at(1, Act::Reject("never")).transactional();
    let disabled = Actor::new("disabled").batch();
    let consumers = stage.register([slow, dead, disabled, Actor::new("quick").batch()]).await;
    stage.sql("UPDATE inorder.consumers SET status = 'disabled' WHERE name = 'disabled'").await;
    let running = consumers.start();
    gate.reached().await;
    eventually(LIMIT, "it dies", async || stage.standing("dead").await.status == "dead").await;

    stage.append(3).await;
    eventually(LIMIT, "the quick one goes on", async || stage.effects("quick").await.len() == 6).await;

    assert_eq!((stage.effects("slow").await, stage.effects("disabled").await), (vec![], vec![]));
    gate.open();
    eventually(LIMIT, "the slow one, too", async || stage.effects("slow").await == ids(1..=6)).await;
    running.stop().await.unwrap();
}

/// I-3.
#[tokio::test]
async fn a_consumer_is_held_by_one_process_at_a_time() {
    let stage = Stage::with_events(2).await;
    let gate = Gate::closed();
    let first = stage.register([Actor::new("c").at(1, Act::Meet(gate.clone())).transactional()]).await;
    let other = Actor::new("c");
    let heard = other.heard();
    let second = stage.register([other.transactional()]).await;
    let pass = tokio::spawn(async move { first.run_once().await });
    gate.reached().await;

    let report = second.run_once().await.unwrap();

    assert_eq!((&report["c"].outcome, heard.all()), (&Outcome::Busy, vec![]));
    gate.open();
    pass.await.unwrap().unwrap();
    assert_eq!(second.drain().await.unwrap()["c"].outcome, Outcome::CaughtUp);
    assert_eq!((stage.effects("c").await, heard.all()), (ids(1..=2), vec![]));
}

/// I-1, I-3, I-4: whoever has it, every event once.
#[tokio::test]
async fn two_processes_share_consumers_and_take_over_from_each_other() {
    let stage = Stage::with_events(0).await;
    let consumers = || {
        let actor = |name| Actor::new(name).transactional().batch_size(3);
        [actor("a"), actor("b"), Actor::new("c").batch().batch_size(2)]
    };
    let mut running = Vec::new();
    for _ in 0..2 {
        running.push(stage.dispatcher(consumers()).build().unwrap().start().await.unwrap());
    }
    for round in 1..=6 {
        stage.append(10).await;
        eventually(LIMIT, "everything is there", async || {
            stage.count("SELECT count(*) FROM effects").await >= round * 30
        })
        .await;
        // One leaves, another comes.
        running.remove(0).stop().await.unwrap();
        running.push(stage.dispatcher(consumers()).build().unwrap().start().await.unwrap());
    }
    for running in running {
        running.stop().await.unwrap();
    }
    for consumer in ["a", "b", "c"] {
        assert_eq!(stage.effects(consumer).await, ids(1..=60));
    }
}

/// I-3, I-4: a process whose tasks go away in the middle of a handler leaves nothing held and nothing half done.
#[tokio::test]
async fn the_consumers_of_a_process_that_is_gone_are_taken_over() {
    let stage = Stage::with_events(3).await;
    let gate = Gate::closed();
    let actor = Actor::new("c").at(2, Act::Meet(gate.clone())).transactional();
    let log = Stage::log_through(stage.database.url(), LIMIT).await;
    let (gone, reached) = (std::sync::mpsc::channel::<()>(), gate.clone());
    let process = std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let _running = dispatcher(&log, [actor]).build().unwrap().start().await.unwrap();
            reached.reached().await;
            std::mem::forget(_running);
        });
        runtime.shutdown_timeout(Duration::ZERO);
        drop(gone);
    });
    tokio::task::spawn_blocking(|| process.join().unwrap()).await.unwrap();

    let consumers = stage.register([Actor::new("c").transactional()]).await;

    assert_eq!(within("it is taken over", consumers.drain()).await.unwrap()["c"].processed, 3);
    assert_eq!(stage.effects("c").await, ids(1..=3));
}

/// I-2, I-3: order within a stream; each event in exactly one partition.
#[tokio::test]
async fn partitions_share_the_streams_and_keep_the_order_within_each() {
    let stage = Stage::with_events(0).await;
    let events: Vec<NewEvent> = (0..200)
        .map(|n| NewEvent::new("moved", &json!({"n": n})).unwrap().in_stream("cart", n % 17))
        .collect();
    stage.append_events(&events).await;
    stage.append(40).await;
    stage
        .sql("CREATE TABLE moves (n bigint GENERATED ALWAYS AS IDENTITY, pid int, stream text, event bigint)")
        .await;
    let keep = || {
        Consumer::transactional_fn("c", |event, tx| {
            Box::pin(async move {
                let insert = "INSERT INTO moves (pid, stream, event) VALUES (pg_backend_pid(), $1, $2)";
                tx.execute(insert, &[&event.stream_id(), &event.id()]).await?;
                Ok(())
            })
        })
        .partitions(4)
        .batch_size(10)
    };
    let one = stage.dispatcher([keep()]).build().unwrap().start().await.unwrap();
    let two = stage.dispatcher([keep()]).build().unwrap().start().await.unwrap();
    eventually(LIMIT, "all is delivered", async || stage.count("SELECT count(*) FROM moves").await >= 240)
        .await;
    one.stop().await.unwrap();
    two.stop().await.unwrap();

    assert_eq!(stage.count("SELECT count(*) FROM inorder.consumers WHERE name = 'c'").await, 4);
    assert_eq!(stage.count("SELECT count(DISTINCT event) FROM moves").await, 240);
    assert_eq!(stage.count("SELECT count(*) FROM moves").await, 240);
    let out_of_order = "SELECT count(*) FROM ( \
            SELECT event < lag(event) OVER (PARTITION BY stream ORDER BY n) AS back FROM moves WHERE stream IS NOT NULL \
        ) AS s WHERE back";
    assert_eq!(stage.count(out_of_order).await, 0);
    let standings = stage.standings("c").await;
    assert!(standings.iter().all(|s| s.position <= 240), "{standings:?}");
    // Split for real: each partition has some of them.
    let split = "SELECT count(DISTINCT (stream_hash & 2147483647) % 4) FROM inorder.events";
    assert_eq!(stage.count(split).await, 4);
}

/// A failed statement behind a savepoint does not spoil the pass, and what was done before it stays.
#[tokio::test]
async fn a_savepoint_lets_a_handler_go_on_after_a_failed_statement() {
    let stage = Stage::with_events(3).await;
    stage.sql("CREATE TABLE once (n int PRIMARY KEY)").await;
    let insert_once = || {
        Act::custom(|_, tx| {
            Box::pin(async move {
                let inserted: Result<u64, tokio_postgres::Error> =
                    tx.savepoint(async || tx.execute("INSERT INTO once VALUES (1)", &[]).await).await;
                match inserted {
                    Ok(_) => Ok(()),
                    Err(e) if e.code() == Some(&tokio_postgres::error::SqlState::UNIQUE_VIOLATION) => Ok(()),
                    Err(e) => Err(e.into()),
                }
            })
        })
    };
    let actor = Actor::new("c").at(1, insert_once()).at(2, insert_once()).at(3, insert_once());

    let report = stage.register([actor.transactional()]).await.drain().await.unwrap();

    assert_eq!((report["c"].processed, report["c"].failed), (3, 0));
    assert_eq!(stage.effects("c").await, ids(1..=3));
    assert_eq!(stage.count("SELECT count(*) FROM once").await, 1);
}

/// Handlers as structs with a state of their own, everything that a transaction offers held across awaits.
struct Totals {
    step: i64,
}

impl Totals {
    async fn add(&self, event: &Event, tx: &HandlerTx<'_>) -> Result<(), Failure> {
        let total: i64 = tx.query_one("SELECT coalesce(max(total), 0) FROM totals", &[]).await?.get(0);
        let payload: serde_json::Value = event.payload()?;
        let n = payload["n"].as_i64().ok_or("no n")?;
        let insert = tx.prepare("INSERT INTO totals VALUES ($1) RETURNING total").await?;
        tx.savepoint(async || -> Result<(), Failure> {
            tx.execute("SELECT 1", &[]).await?;
            Ok(())
        })
        .await?;
        let mut rows = Box::pin(tx.query_raw(&insert, [total + self.step * n]).await?);
        while let Some(row) = futures_util::StreamExt::next(&mut rows).await {
            let _: i64 = row?.get(0);
        }
        if tx.query_opt("SELECT 1 WHERE false", &[]).await?.is_some() {
            return Err(Failure::reject("it is false"));
        }
        Ok(())
    }
}

impl TransactionalHandler for Totals {
    async fn handle(&self, event: &Event, tx: &HandlerTx<'_>) -> Result<(), Failure> {
        self.add(event, tx).await
    }
}

impl BatchHandler for Totals {
    async fn handle(&self, events: &[Event], tx: &HandlerTx<'_>) -> Result<(), Failure> {
        for event in events {
            self.add(event, tx).await?;
        }
        if let Some(last) = events.last().filter(|e| e.event_type() == "counted") {
            let event = NewEvent::new("total", &json!({"n": 0}))?.caused_by(last);
            let _ = tx.append(ExpectedVersion::Any, &[event]).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn handlers_are_structs_too() {
    let stage = Stage::with_events(5).await;
    stage.sql("CREATE TABLE totals (total bigint)").await;
    let one = Consumer::transactional("one", Totals { step: 10 }).backoff(at_once());
    assert_eq!(stage.register([one]).await.drain().await.unwrap()["one"].processed, 5);
    assert_eq!(stage.count("SELECT max(total) FROM totals").await, 100);
    let many = Consumer::batch("many", Totals { step: 1 });
    assert_eq!(stage.register([many]).await.drain().await.unwrap()["many"].processed, 6);
    assert_eq!(stage.count("SELECT max(total) FROM totals").await, 110);
}
