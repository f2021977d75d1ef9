//! What is claimed, when things go wrong around it: every event is run, and recorded, whoever stops, falls silent or fails.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use inorder::{
    Backoff, Claim, Consumer, Effect, EffectBatchHandler, EffectHandler, Event, Failure, NewEvent, Outcome,
    Prune, Registered, Start,
};
use uuid::Uuid;

use crate::support::{Gate, LIMIT, Proxy, Stage, at_once, dispatcher, eventually, within};

type Answer = Arc<dyn Fn(i64, u32) -> Result<(), Failure> + Send + Sync>;

/// The other side of effects: it keeps every call, and answers, at some events only when the test lets it.
#[derive(Clone)]
struct Receiver {
    calls: Arc<Mutex<Vec<(i64, u32)>>>,
    answer: Answer,
    gate: Option<(i64, Gate)>,
}

impl Receiver {
    fn new() -> Receiver {
        Receiver::answering(|_, _| Ok(()))
    }

    /// By event and attempt.
    fn answering(answer: impl Fn(i64, u32) -> Result<(), Failure> + Send + Sync + 'static) -> Receiver {
        Receiver { calls: Arc::default(), answer: Arc::new(answer), gate: None }
    }

    /// Waits at this event.
    fn waiting_at(self, id: i64, gate: &Gate) -> Receiver {
        Receiver { gate: Some((id, gate.clone())), ..self }
    }

    fn calls(&self) -> Vec<(i64, u32)> {
        self.calls.lock().unwrap().clone()
    }

    fn ids(&self) -> Vec<i64> {
        self.calls().iter().map(|(id, _)| *id).collect()
    }

    fn sorted_ids(&self) -> Vec<i64> {
        let mut ids = self.ids();
        ids.sort_unstable();
        ids
    }

    fn effect(&self) -> Consumer {
        Consumer::effect("mail", self.clone()).backoff(at_once())
    }

    fn effect_batch(&self) -> Consumer {
        Consumer::effect_batch("mail", self.clone()).backoff(at_once())
    }

    fn queued(&self) -> Consumer {
        Consumer::queued("mail", self.clone()).backoff(at_once())
    }

    async fn call(&self, event: &Event, effect: &Effect) -> Result<(), Failure> {
        self.calls.lock().unwrap().push((event.id(), effect.attempt()));
        match &self.gate {
            Some((id, gate)) if *id == event.id() => gate.pass().await,
            _ => {}
        }
        (self.answer)(event.id(), effect.attempt())
    }
}

impl EffectHandler for Receiver {
    fn handle(&self, event: &Event, effect: &Effect) -> impl Future<Output = Result<(), Failure>> + Send {
        self.call(event, effect)
    }
}

impl EffectBatchHandler for Receiver {
    async fn handle(&self, events: &[Event], effects: &[Effect]) -> Result<(), Failure> {
        for (event, effect) in events.iter().zip(effects) {
            self.call(event, effect).await?;
        }
        Ok(())
    }
}

/// Status, attempts and faults of every row of the ledger, in the order of the events.
async fn ledger(stage: &Stage) -> Vec<(String, i32, i32)> {
    let rows = "SELECT status, attempts, faults FROM inorder.ledger ORDER BY position";
    let rows = stage.client.query(rows, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

async fn statuses(stage: &Stage) -> Vec<String> {
    ledger(stage).await.into_iter().map(|(status, ..)| status).collect()
}

async fn all_done(stage: &Stage, count: i64) {
    let done = "SELECT count(*) FROM inorder.ledger WHERE status = 'done'";
    eventually(LIMIT, "everything is done", async || stage.count(done).await == count).await;
}

async fn event_id(stage: &Stage, id: i64) -> Uuid {
    let event_id = "SELECT event_id FROM inorder.events WHERE id = $1";
    stage.client.query_one(event_id, &[&id]).await.unwrap().get(0)
}

/// Somebody waits for a lock with this statement.
async fn waits_for_a_lock(stage: &Stage, statement: &str) {
    let waiting = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '-- inorder ' || $1 || '%'";
    eventually(LIMIT, &format!("{statement} waits for a lock"), async || {
        stage.client.query_one(waiting, &[&statement]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
}

/// I-1, I-5. Of a slice, only what was handed to the handler is done.
#[tokio::test]
async fn an_event_behind_one_that_another_has_claimed_is_not_recorded_before_it_is_run() {
    let stage = Stage::with_events(6).await;
    let receiver = Receiver::new();
    let registered = stage.register([receiver.effect_batch()]).await;
    let event = event_id(&stage, 3).await;
    let Claim::Acquired(claim) = stage.log.ledger().claim(event, "mail").await.unwrap() else {
        panic!("nobody else claims")
    };
    registered.run_once().await.unwrap();
    assert_eq!(receiver.ids(), [1, 2]);
    assert!(claim.release().await.unwrap());
    eventually(LIMIT, "it is caught up", async || {
        stage.sql("UPDATE inorder.consumers SET next_attempt_at = NULL").await;
        registered.run_once().await.unwrap()["mail"].outcome == Outcome::CaughtUp
    })
    .await;
    assert_eq!(receiver.ids(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(statuses(&stage).await, vec!["done"; 6]);
}

/// I-6. The same where the one before is passed over.
#[tokio::test]
async fn an_event_behind_one_that_is_passed_over_is_run() {
    let stage = Stage::with_events(4).await;
    let receiver = Receiver::answering(|id, _| if id == 1 { Err(Failure::skip("odd")) } else { Ok(()) });
    let registered = stage.register([receiver.effect_batch()]).await;
    let event = event_id(&stage, 2).await;
    let Claim::Acquired(claim) = stage.log.ledger().claim(event, "mail").await.unwrap() else {
        panic!("nobody else claims")
    };
    registered.run_once().await.unwrap();
    assert!(claim.complete().await.unwrap());
    eventually(LIMIT, "it is caught up", async || {
        stage.sql("UPDATE inorder.consumers SET next_attempt_at = NULL").await;
        registered.run_once().await.unwrap()["mail"].outcome == Outcome::CaughtUp
    })
    .await;
    assert_eq!(receiver.ids(), [1, 3, 4], "2 was run by the other");
    assert_eq!(stage.dead_letters().await.len(), 1);
}

/// A pause beyond all calendars is a long one, and holds up nothing.
#[tokio::test]
async fn a_deferral_without_end_holds_up_no_other_result() {
    let stage = Stage::with_events(20).await;
    let receiver = Receiver::answering(|id, _| match id {
        7 => Err(Failure::defer_for(Duration::MAX, "closed down")),
        _ => Ok(()),
    });
    let registered = stage.register([receiver.queued()]).await;
    within("a pass", registered.run_once()).await.unwrap();
    assert_eq!(receiver.sorted_ids(), (1..=20).collect::<Vec<i64>>());
    let mut expected = vec!["done"; 20];
    expected[6] = "pending";
    assert_eq!(statuses(&stage).await, expected);
}

/// I-6. Whoever claimed it by its uuid did not say where it is in the log.
#[tokio::test]
async fn an_event_that_was_first_claimed_by_its_uuid_leaves_a_dead_letter_too() {
    let stage = Stage::with_events(5).await;
    let receiver = Receiver::answering(|id, _| if id == 3 { Err(Failure::reject("never")) } else { Ok(()) });
    let registered = stage.register([receiver.queued()]).await;
    let event = event_id(&stage, 3).await;
    let Claim::Acquired(claim) = stage.log.ledger().claim(event, "mail").await.unwrap() else {
        panic!("nobody else claims")
    };
    assert!(claim.release().await.unwrap());
    within("passes", registered.drain()).await.unwrap();
    let letters = stage.dead_letters().await;
    assert_eq!(letters.iter().map(|l| (l.event, l.reason.as_str())).collect::<Vec<_>>(), [(3, "rejected")]);
    assert_eq!(receiver.sorted_ids(), [1, 2, 3, 4, 5]);
}

/// One that the database refuses is not written, and the others are.
#[tokio::test]
async fn a_result_that_cannot_be_written_holds_up_no_other() {
    let stage = Stage::with_events(20).await;
    let refusing = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
            IF new.position = 7 AND new.status = 'done' THEN RAISE 'no' USING ERRCODE = 'check_violation'; END IF; \
            RETURN new; \
        END $$; \
        CREATE TRIGGER refuse BEFORE UPDATE ON inorder.ledger FOR EACH ROW EXECUTE FUNCTION refuse()";
    stage.sql(refusing).await;
    let receiver = Receiver::new();
    let registered = stage.register([receiver.queued()]).await;
    within("a pass", registered.run_once()).await.unwrap();
    assert_eq!(receiver.sorted_ids(), (1..=20).collect::<Vec<i64>>());
    let mut expected = vec!["done"; 20];
    expected[6] = "in_progress";
    assert_eq!(statuses(&stage).await, expected, "it waits out its lease");
}

/// A pass by hand may be dropped at any moment; what it had begun is free again at the next one.
#[tokio::test]
async fn a_pass_of_a_queue_that_is_dropped_is_begun_anew_by_the_next() {
    let stage = Stage::with_events(5).await;
    let gate = Gate::closed();
    let receiver = Receiver::new().waiting_at(2, &gate);
    let registered = stage.register([receiver.queued().concurrency(2)]).await;
    tokio::select! {
        _ = registered.run_once() => panic!("the handler waits"),
        () = gate.reached() => {}
    }
    gate.open();
    within("passes", registered.drain()).await.unwrap();
    let mut ids = receiver.sorted_ids();
    ids.dedup();
    assert_eq!(ids, [1, 2, 3, 4, 5]);
    eventually(LIMIT, "all are done", async || {
        within("a pass", registered.run_once()).await.unwrap();
        statuses(&stage).await == vec!["done"; 5]
    })
    .await;
    assert!(ledger(&stage).await.iter().all(|(_, attempts, faults)| (*attempts, *faults) == (0, 0)));
}

/// Nothing that is on its way when a dispatcher stops waits for its lease to run out.
#[tokio::test]
async fn what_is_on_its_way_into_a_queue_that_stops_is_given_back() {
    for recorded in [false, true] {
        let stage = Stage::with_events(0).await;
        let proxy = Proxy::in_front_of(stage.database.url()).await;
        let log = Stage::log_through(proxy.url(), Duration::from_secs(30)).await;
        let receiver = Receiver::new();
        let running = dispatcher(&log, [receiver.queued()]).build().unwrap().start().await.unwrap();
        stage.append(3).await;
        all_done(&stage, 3).await;
        // From now on an answer is on its way for long enough.
        proxy.delay(Duration::from_millis(250));
        match recorded {
            true => stage.sql("UPDATE inorder.ledger SET status = 'pending'").await,
            false => drop(stage.append(3).await),
        }
        let claimed = "SELECT count(*) FROM inorder.ledger WHERE status = 'in_progress'";
        eventually(LIMIT, "they are claimed", async || stage.count(claimed).await > 0).await;
        within("stopping", running.stop()).await.unwrap();
        assert_eq!(stage.count(claimed).await, 0, "recorded: {recorded}");
        let faults = ledger(&stage).await;
        assert!(faults.iter().all(|(.., faults)| *faults == 0), "{faults:?}");
    }
}

/// Both change the row and what is claimed for it.
#[tokio::test]
async fn a_renewal_and_a_settlement_never_wait_for_each_other_crosswise() {
    let stage = Stage::with_events(1).await;
    let gate = Gate::closed();
    let receiver = Receiver::new().waiting_at(1, &gate);
    let registered = stage.register([receiver.effect().lease(Duration::from_secs(6))]).await;
    let mut other = stage.database.client().await;
    let crossing = async {
        gate.reached().await;
        let holding = other.transaction().await.unwrap();
        holding.batch_execute("SELECT FROM inorder.consumers FOR UPDATE").await.unwrap();
        waits_for_a_lock(&stage, "consumers/renew").await;
        gate.open();
        let both = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        eventually(LIMIT, "both wait", async || stage.count(both).await == 2).await;
        holding.commit().await.unwrap();
    };
    let (report, ()) = tokio::join!(registered.run_once(), crossing);
    assert_eq!(report.unwrap()["mail"].processed, 1);
    assert_eq!(statuses(&stage).await, ["done"]);
}

/// I-5. What was run is recorded as long as its claim lasts, not only if the first try succeeds.
#[tokio::test]
async fn what_was_run_is_recorded_when_the_server_comes_back() {
    let stage = Stage::with_events(2).await;
    let proxy = Proxy::in_front_of(stage.database.url()).await;
    let log = Stage::log_through(proxy.url(), Duration::from_secs(5)).await;
    let gate = Gate::closed();
    let receiver = Receiver::new().waiting_at(1, &gate);
    let registered = dispatcher(&log, [receiver.effect()]).build().unwrap().register().await.unwrap();
    let away = async {
        gate.reached().await;
        proxy.refuse();
        gate.open();
        // Nobody is there, and it tries on.
        eventually(LIMIT, "it tried three times", async || proxy.refused() >= 3).await;
        proxy.heal();
    };
    let (report, ()) = tokio::join!(registered.run_once(), away);
    assert!(report.is_err(), "the row was not moved: {report:?}");
    assert_eq!(statuses(&stage).await, ["done"]);
    drain(&registered).await;
    assert_eq!(receiver.calls(), [(1, 1), (2, 1)]);
}

async fn drain(registered: &Registered) {
    eventually(LIMIT, "it is caught up", async || {
        registered.run_once().await.is_ok_and(|report| report["mail"].outcome == Outcome::CaughtUp)
    })
    .await;
}

/// I-5. A connection that falls silent costs a renewal, not the claim.
#[tokio::test]
async fn a_claim_outlives_a_connection_that_falls_silent() {
    for queued in [false, true] {
        let stage = Stage::with_events(1).await;
        let proxy = Proxy::in_front_of(stage.database.url()).await;
        let log = Stage::log_through(proxy.url(), Duration::from_secs(1)).await;
        let gate = Gate::closed();
        let receiver = Receiver::new().waiting_at(1, &gate);
        let consumer = if queued { receiver.queued() } else { receiver.effect() };
        let consumer = consumer.lease(Duration::from_secs(3));
        let running = dispatcher(&log, [consumer]).build().unwrap().start().await.unwrap();
        gate.reached().await;
        let until = "SELECT (extract(epoch FROM lease_until) * 1000)::bigint FROM inorder.ledger";
        let first = stage.count(until).await;
        eventually(LIMIT, "it was renewed", async || stage.count(until).await > first).await;
        let second = stage.count(until).await;
        proxy.silence();
        eventually(LIMIT, "it was renewed again", async || {
            assert_eq!(statuses(&stage).await, ["in_progress"], "queued: {queued}");
            stage.count(until).await > second
        })
        .await;
        let past = format!(
            "SELECT count(*) FROM inorder.ledger WHERE clock_timestamp() > to_timestamp({second} / 1000.0)"
        );
        eventually(LIMIT, "it would have run out", async || stage.count(&past).await == 1).await;
        gate.open();
        all_done(&stage, 1).await;
        assert_eq!(receiver.calls(), [(1, 1)], "queued: {queued}");
        within("stopping", running.stop()).await.unwrap();
    }
}

/// I-6. An event whose effect ends its process each time is given up in the end.
#[tokio::test]
async fn an_effect_that_ends_its_process_each_time_does_not_live_for_ever() {
    let stage = Stage::with_events(2).await;
    let receiver = Receiver::new();
    let consumer = receiver.effect().max_faults(3).max_attempts(2);
    let registered = stage.register([consumer]).await;
    let left = "INSERT INTO inorder.ledger (event_id, handler, status, token, lease_until, position, faults) \
        SELECT event_id, 'mail', 'in_progress', nextval('inorder.fencing'), clock_timestamp(), id, 5 \
        FROM inorder.events WHERE id = 1";
    stage.sql(left).await;
    let report = registered.run_once().await.unwrap();
    assert_eq!(report["mail"].outcome, Outcome::Dead { at: 1 });
    assert_eq!(receiver.ids(), [0; 0]);
    assert!(
        stage.standing("mail").await.error().contains("ran out 6 times"),
        "{:?}",
        stage.standing("mail").await
    );
}

/// I-5. What waits in memory under a claim that ran out is not run, though the process has claimed the event anew.
#[tokio::test]
async fn an_event_that_the_same_process_claims_again_while_it_waits_is_run_once() {
    let stage = Stage::with_events(3).await;
    let gate = Gate::closed();
    let receiver = Receiver::new().waiting_at(1, &gate);
    let running =
        stage.dispatcher([receiver.queued().concurrency(1)]).build().unwrap().start().await.unwrap();
    gate.reached().await;
    stage.sql("UPDATE inorder.ledger SET lease_until = clock_timestamp() WHERE position = 2").await;
    let again = "SELECT count(*) FROM inorder.ledger WHERE position = 2 AND faults = 1";
    eventually(LIMIT, "it is claimed again", async || stage.count(again).await == 1).await;
    gate.open();
    all_done(&stage, 3).await;
    within("stopping", running.stop()).await.unwrap();
    assert_eq!(receiver.calls(), [(1, 1), (3, 1), (2, 2)]);
}

/// The next event is claimed together with what was run before it.
#[tokio::test]
async fn what_was_claimed_ahead_is_given_back_when_the_dispatcher_stops() {
    let stage = Stage::with_events(3).await;
    let proxy = Proxy::in_front_of(stage.database.url()).await;
    let log = Stage::log_through(proxy.url(), Duration::from_secs(30)).await;
    let gate = Gate::closed();
    let receiver = Receiver::new().waiting_at(1, &gate);
    let running = dispatcher(&log, [receiver.effect()]).build().unwrap().start().await.unwrap();
    gate.reached().await;
    proxy.delay(Duration::from_millis(250));
    gate.open();
    let ahead = "SELECT count(*) FROM inorder.ledger WHERE position = 2 AND status = 'in_progress'";
    eventually(LIMIT, "the next one is claimed", async || stage.count(ahead).await == 1).await;
    within("stopping", running.stop()).await.unwrap();
    assert_eq!(receiver.ids(), [1]);
    let of = |status: &str| (status.to_owned(), 0, 0);
    assert_eq!(ledger(&stage).await, [of("done"), of("pending")]);
    assert_eq!(stage.standing("mail").await.position, 1);
}

/// Rows are made in the order of their keys, by whomever: here by a pass and by a producer that takes its time.
#[tokio::test]
async fn a_pass_and_a_producer_never_wait_for_each_other_crosswise() {
    let stage = Stage::with_events(0).await;
    let receiver = Receiver::new();
    let registered = stage.register([receiver.queued()]).await;
    stage
        .sql(
            "INSERT INTO inorder.events (event_type, payload, event_id) VALUES \
                ('a', '{}', 'ffffffff-ffff-4fff-bfff-ffffffffffff'), ('a', '{}', '00000000-0000-4000-8000-000000000000')",
        )
        .await;
    let mut producer = stage.log.get().await.unwrap();
    let tx = producer.transaction().await.unwrap();
    drop(stage.log.record_pending_in(&tx, &[2], "mail").await.unwrap());
    let crossing = async {
        waits_for_a_lock(&stage, "ledger/enqueue").await;
        drop(stage.log.record_pending_in(&tx, &[1], "mail").await.unwrap());
        tx.commit().await.unwrap();
    };
    let (passed, ()) = tokio::join!(registered.run_once(), crossing);
    passed.unwrap();
    drain(&registered).await;
    all_done(&stage, 2).await;
    assert_eq!(receiver.sorted_ids(), [1, 2]);
}

/// How often the ledger was read whole, and by an index. What a session did is counted when it has ended.
async fn scans(stage: &Stage, sessions: i64) -> (i64, i64) {
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'";
    eventually(LIMIT, "the others are gone", async || stage.count(open).await <= sessions).await;
    let scans = "SELECT seq_scan, coalesce(idx_scan, 0) FROM pg_stat_user_tables WHERE relname = 'ledger'";
    let row = stage.client.query_one(scans, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

/// Nothing is known of the ledger yet, and it is large: every row is found by its key all the same.
#[tokio::test]
async fn a_ledger_that_was_never_analyzed_is_not_read_whole() {
    for by_hand in [true, false] {
        let stage = Stage::with_events(100).await;
        let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'";
        let sessions = stage.count(open).await;
        let fill = "ALTER TABLE inorder.ledger SET (autovacuum_enabled = off); \
            INSERT INTO inorder.ledger (event_id, handler, status, position, next_attempt_at) \
            SELECT gen_random_uuid(), CASE n % 2 WHEN 0 THEN 'mail' ELSE 'bill' END, \
                CASE n % 3 WHEN 0 THEN 'pending' ELSE 'done' END, n + 1000, \
                CASE n % 3 WHEN 0 THEN clock_timestamp() + interval '1 hour' END \
            FROM generate_series(1, 150000) AS n";
        stage.database.client().await.batch_execute(fill).await.unwrap();
        let (before, by_key_before) = scans(&stage, sessions).await;

        let log = Stage::log_through(stage.database.url(), Duration::from_secs(30)).await;
        let bill = Receiver::new();
        let mail = Receiver::answering(|id, attempt| match (id % 10, attempt) {
            (0, 1) => Err(Failure::retry("at first")),
            _ => Ok(()),
        });
        let consumers = [mail.queued(), Consumer::effect_batch("bill", bill.clone())];
        let registered = dispatcher(&log, consumers).build().unwrap().register().await.unwrap();
        let all_run = || mail.calls().len() == 110 && bill.calls().len() == 100;
        if by_hand {
            eventually(LIMIT, "all are run", async || {
                registered.run_once().await.unwrap();
                all_run()
            })
            .await;
            drop(registered);
        } else {
            let running = registered.start();
            eventually(LIMIT, "all are run", async || all_run()).await;
            within("stopping", running.stop()).await.unwrap();
        }
        let orders = (0..100).map(|n| format!("order {n}"));
        let claims =
            log.ledger().claim_all(orders, "web").await.unwrap().into_iter().map(|claim| match claim {
                Claim::Acquired(claim) => claim,
                other => panic!("{other:?}"),
            });
        assert_eq!(log.ledger().complete_all(claims.collect()).await.unwrap(), 100);
        drop(log);

        let (after, by_key) = scans(&stage, sessions).await;
        assert!(by_key > by_key_before, "it is counted");
        assert_eq!(after - before, 0, "by hand: {by_hand}");
        let done = "SELECT count(*) FROM inorder.ledger WHERE status = 'done' AND position <= 1000";
        assert_eq!(stage.count(done).await, 200);
    }
}

/// Nobody has to call it.
#[tokio::test]
async fn a_dispatcher_has_the_ledger_forget_what_was_done_long_ago() {
    let stage = Stage::with_events(2).await;
    let running = stage.dispatcher([Receiver::new().effect()]).build().unwrap().start().await.unwrap();
    all_done(&stage, 2).await;
    stage.sql("UPDATE inorder.ledger SET updated_at = clock_timestamp() - interval '31 days' WHERE position = 1").await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(400)).await;
    tokio::time::resume();
    let left = "SELECT count(*) FROM inorder.ledger";
    eventually(LIMIT, "it is forgotten", async || stage.count(left).await == 1).await;
    assert_eq!(stage.count("SELECT floor FROM inorder.ledger_floors WHERE handler = 'mail'").await, 1);
    within("stopping", running.stop()).await.unwrap();
}

/// What a consumer has passed it will not run: it holds nothing back.
#[tokio::test]
async fn an_event_that_an_effect_consumer_was_moved_past_does_not_hold_back_prune() {
    let stage = Stage::with_events(3).await;
    let receiver = Receiver::answering(|id, _| if id == 2 { Err(Failure::defer("down")) } else { Ok(()) });
    let registered = stage.register([receiver.effect().backoff(Backoff::constant(LIMIT))]).await;
    registered.drain().await.unwrap();
    assert_eq!(statuses(&stage).await, ["done", "pending"]);
    let admin = stage.log.admin().by("ops");
    let before = Prune::before(time::OffsetDateTime::now_utc() + time::Duration::days(1));
    admin.reset("mail", Start::After(3)).await.unwrap();
    let pruned = admin.prune(&before, |_| ()).await.unwrap();
    assert_eq!((pruned.deleted, pruned.blocked_by), (3, vec![]));
    assert_eq!(statuses(&stage).await, [""; 0]);
}

/// Those that wait for others of their stream are taken many at a time, however many there are.
#[tokio::test]
async fn a_long_stream_is_run_in_order_without_a_look_for_each_event() {
    let stage = Stage::with_events(0).await;
    let events: Vec<_> =
        (0..6_000).map(|_| NewEvent::from_json("counted", "{}").in_stream("thing", "a")).collect();
    stage.append_events(&events).await;
    let receiver = Receiver::answering(|id, attempt| match (id % 1_000, attempt) {
        (0, 1) => Err(Failure::retry("at first")),
        _ => Ok(()),
    });
    let consumer = receiver.queued().batch_size(100).in_stream_order();
    let running = stage.dispatcher([consumer]).build().unwrap().start().await.unwrap();
    all_done(&stage, 6_000).await;
    within("stopping", running.stop()).await.unwrap();
    let mut ids = receiver.ids();
    assert_eq!(ids.len(), 6_006);
    ids.dedup();
    assert!(ids.iter().copied().eq(1..=6_000), "in order");
}
