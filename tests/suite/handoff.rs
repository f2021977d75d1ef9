//! Of an event whose offer was ambiguous, one side runs it: the program that offered it, or a delivery (I-5).
//!
//! Two processes are two hand-offs here, with connections and memory of their own; a restart is a third.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inorder::testing::TempPostgres;
use inorder::uuid::Uuid;
use inorder::{Config, Delivery, ErrorKind, Handoff, HandoffBuilder, HandoffRows, Inorder, Offer};
use metrics_util::registry::Registry;
use tokio::sync::Barrier;

use super::metrics::Measured;
use crate::support::{Database, Proxy, Stage, Words, connect, database, eventually, within};

const LIMIT: Duration = Duration::from_secs(30);
/// For hand-offs whose table goes away.
const PATIENCE: Duration = Duration::from_millis(300);

async fn process(database: &Database) -> Handoff {
    Inorder::connect(database.url()).await.unwrap().handoff("mail").build().unwrap()
}

/// A process whose way to the table is the proxy. It asks, however often it got no answer, and does nothing by itself.
async fn process_behind(proxy: &Proxy) -> HandoffBuilder {
    let log = Stage::log_through(proxy.url(), LIMIT).await;
    log.handoff("mail").table_timeout(PATIENCE).open_after(1_000).sweep_by_hand()
}

/// The table does not answer from now on.
fn take_away(proxy: &Proxy) {
    proxy.refuse();
    proxy.cut();
}

async fn take_direct(handoff: &Handoff, key: Uuid) -> bool {
    within("take_direct", handoff.take_direct(key)).await.unwrap()
}

async fn delivering(handoff: &Handoff, key: Uuid) -> Delivery {
    within("delivering", handoff.delivering(key)).await.unwrap()
}

async fn count(database: &Database, condition: &str) -> i64 {
    let select = format!("SELECT count(*) FROM inorder.handoffs WHERE {condition}");
    database.client().await.query_one(&select, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn deliveries_of_what_was_taken_directly_are_dropped_in_every_process() {
    let database = database().await;
    let (here, there) = (process(&database).await, process(&database).await);
    let key = Uuid::now_v7();
    assert_eq!(here.open(key).unwrap(), Offer::Open);
    assert!(take_direct(&here, key).await);
    assert_eq!(count(&database, "taken_by = 'direct' AND ran_at IS NULL").await, 1);
    for process in [&here, &there] {
        assert_eq!(delivering(process, key).await, Delivery::HandledDirectly);
    }
    here.ran_directly(key).await.unwrap();
    assert_eq!(count(&database, "ran_at IS NOT NULL").await, 1);
    assert_eq!(delivering(&there, key).await, Delivery::HandledDirectly);
    assert!(!take_direct(&here, key).await, "it was run");
    assert_eq!(here.open(key).unwrap(), Offer::Taken);
}

#[tokio::test]
async fn a_delivery_takes_an_event_whose_offer_is_still_open() {
    let database = database().await;
    let (here, there) = (process(&database).await, process(&database).await);
    for delivers in [&here, &there] {
        let key = Uuid::now_v7();
        assert_eq!(here.open(key).unwrap(), Offer::Open);
        assert_eq!(delivering(delivers, key).await, Delivery::Deliver);
        assert!(!take_direct(&here, key).await);
        assert_eq!(delivering(&there, key).await, Delivery::Deliver, "the queue may deliver it again");
    }
}

#[tokio::test]
async fn what_the_queue_answered_for_is_delivered() {
    let database = database().await;
    let (here, there) = (process(&database).await, process(&database).await);
    let key = Uuid::now_v7();
    assert_eq!(here.open(key).unwrap(), Offer::Open);
    here.close(key);
    assert_eq!(delivering(&there, key).await, Delivery::Deliver);
    // The program died before it had noted that, and offers it again, to a queue that does not answer now.
    let again = process(&database).await;
    assert_eq!(again.open(key).unwrap(), Offer::Open);
    assert!(!take_direct(&again, key).await);
}

#[tokio::test]
async fn of_two_processes_that_ask_at_once_one_has_the_event() {
    let database = database().await;
    let (here, there) = (process(&database).await, process(&database).await);
    let mut direct = 0;
    for _ in 0..100 {
        let key = Uuid::now_v7();
        assert_eq!(here.open(key).unwrap(), Offer::Open);
        let start = Arc::new(Barrier::new(2));
        let (taking, began) = (here.clone(), Arc::clone(&start));
        let taking = tokio::spawn(async move {
            began.wait().await;
            take_direct(&taking, key).await
        });
        start.wait().await;
        let delivered = delivering(&there, key).await == Delivery::Deliver;
        let taken = taking.await.unwrap();
        assert_ne!(taken, delivered, "{key}");
        direct += usize::from(taken);
    }
    println!("{direct} of 100 were taken directly");
}

#[tokio::test]
async fn batches_that_overlap_and_direct_claims_agree_about_every_event() {
    let database = database().await;
    let keys: Vec<Uuid> = (0..200).map(|_| Uuid::new_v4()).collect();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..4 {
        let process = process(&database).await;
        let mut keys = keys.clone();
        fastrand::shuffle(&mut keys);
        tasks.spawn(async move {
            let mut ours = HashSet::new();
            for some in keys.chunks(20) {
                if n % 2 == 0 {
                    let sifted = process.leave_out_direct(some.to_vec(), |key| *key).await.unwrap();
                    ours.extend(sifted.deliver);
                } else if process.take_direct(some[0]).await.unwrap() {
                    ours.insert(some[0]);
                }
            }
            (n % 2 == 0, ours)
        });
    }
    let (mut delivered, mut direct) = (HashSet::new(), HashSet::new());
    while let Some(done) = tasks.join_next().await {
        let (delivers, ours) = done.unwrap();
        if delivers { delivered.extend(ours) } else { direct.extend(ours) }
    }
    assert_eq!(delivered.intersection(&direct).count(), 0);
    assert_eq!(delivered.len() + direct.len(), keys.len());
}

#[tokio::test]
async fn a_batch_is_sifted_in_its_order_and_what_is_dropped_is_told_and_counted() {
    let (seen, words) = (Measured(Registry::atomic()), Words::listen());
    let _here = metrics::set_default_local_recorder(&seen);
    let database = database().await;
    let (here, there) = (process(&database).await, process(&database).await);
    let keys: Vec<Uuid> = (0..6).map(|_| Uuid::now_v7()).collect();
    for key in [keys[1], keys[4]] {
        assert!(take_direct(&here, key).await);
    }
    let batch: Vec<(usize, Uuid)> =
        keys.iter().copied().enumerate().chain([(6, keys[0]), (7, keys[1])]).collect();
    let sifted = there.leave_out_direct(batch, |(_, key)| *key).await.unwrap();
    let numbers = |part: &[(usize, Uuid)]| part.iter().map(|(n, _)| *n).collect::<Vec<_>>();
    assert_eq!(numbers(&sifted.deliver), [0, 2, 3, 5, 6]);
    assert_eq!(numbers(&sifted.handled_directly), [1, 4, 7]);
    assert!(sifted.not_yet.is_empty());
    words.say(LIMIT, &["a delivery is dropped", &keys[4].to_string(), "scope=\"mail\""]).await;
    let outcome =
        |outcome| seen.counter("inorder_handoffs_total", &[("scope", "mail"), ("outcome", outcome)]);
    assert_eq!((outcome("direct"), outcome("delivered"), outcome("handled_directly")), (2, 5, 3));
}

#[tokio::test]
async fn what_was_decided_holds_after_a_restart() {
    let database = database().await;
    let (direct, delivered) = (Uuid::now_v7(), Uuid::now_v7());
    let before = process(&database).await;
    assert!(take_direct(&before, direct).await);
    assert_eq!(delivering(&before, delivered).await, Delivery::Deliver);
    drop(before);

    let after = process(&database).await;
    assert_eq!(delivering(&after, direct).await, Delivery::HandledDirectly);
    assert!(!take_direct(&after, delivered).await);
    assert_eq!(after.unfinished(Duration::ZERO).await.unwrap(), [direct]);
    assert!(after.unfinished(Duration::from_secs(3_600)).await.unwrap().is_empty());
    assert!(take_direct(&after, direct).await, "it was not run yet");
    after.ran_directly(direct).await.unwrap();
    assert!(after.unfinished(Duration::ZERO).await.unwrap().is_empty());
}

/// Also where commits are not waited for.
#[tokio::test]
async fn what_was_decided_holds_after_a_crash_of_the_server() {
    let server = TempPostgres::start().await.unwrap();
    let log = Inorder::connect(server.url()).await.unwrap();
    log.migrate().await.unwrap();
    let setting = connect(server.url()).await.query_one("SHOW synchronous_commit", &[]).await.unwrap();
    assert_eq!(setting.get::<_, &str>(0), "off");
    let handoff = log.handoff("mail").build().unwrap();
    let (direct, delivered) = (Uuid::now_v7(), Uuid::now_v7());
    assert!(take_direct(&handoff, direct).await);
    assert_eq!(delivering(&handoff, delivered).await, Delivery::Deliver);
    server.crash().await.unwrap();
    server.start_again().await.unwrap();

    let after = Inorder::connect(server.url()).await.unwrap().handoff("mail").build().unwrap();
    assert_eq!(delivering(&after, direct).await, Delivery::HandledDirectly);
    assert!(!take_direct(&after, delivered).await);
}

#[tokio::test]
async fn scopes_have_nothing_to_do_with_each_other() {
    let database = database().await;
    let log = Inorder::connect(database.url()).await.unwrap();
    let [mail, push] = ["mail", "push"].map(|scope| log.handoff(scope).build().unwrap());
    let key = Uuid::now_v7();
    assert!(take_direct(&mail, key).await);
    assert_eq!(delivering(&push, key).await, Delivery::Deliver);
    assert_eq!(delivering(&mail, key).await, Delivery::HandledDirectly);
    assert!(push.unfinished(Duration::ZERO).await.unwrap().is_empty());
    assert_eq!(push.run_once().await.unwrap().unfinished, 0);
}

#[tokio::test]
async fn an_open_offer_never_leaves_memory_and_the_oldest_claims_do() {
    let seen = Measured(Registry::atomic());
    let _here = metrics::set_default_local_recorder(&seen);
    let database = database().await;
    let log = Inorder::connect(database.url()).await.unwrap();
    let handoff = log.handoff("mail").max_entries(2).build().unwrap();
    let keys: Vec<Uuid> = (0..4).map(|_| Uuid::now_v7()).collect();
    for key in &keys[..2] {
        assert_eq!(handoff.open(*key).unwrap(), Offer::Open);
    }
    let refused = handoff.open(keys[2]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(refused.to_string().contains("2 offers are open"), "{refused}");
    let entries = |state| seen.gauge("inorder_handoff_entries", &[("scope", "mail"), ("state", state)]);
    assert_eq!((entries("open"), entries("taken")), (Some(2.0), Some(0.0)));

    for key in &keys[..2] {
        assert!(take_direct(&handoff, *key).await);
    }
    assert_eq!(handoff.open(keys[2]).unwrap(), Offer::Open);
    assert_eq!((entries("open"), entries("taken")), (Some(1.0), Some(1.0)));
    assert_eq!(handoff.open(keys[1]).unwrap(), Offer::RunDirectly, "the younger claim is still there");
    assert_eq!(handoff.open(keys[0]).unwrap(), Offer::Open, "the oldest is not");
    assert_eq!(delivering(&handoff, keys[0]).await, Delivery::HandledDirectly, "the table knows it");
}

#[tokio::test]
async fn without_the_table_one_side_of_the_process_has_the_event_and_the_table_gets_it_later() {
    let (seen, words) = (Measured(Registry::atomic()), Words::listen());
    let _here = metrics::set_default_local_recorder(&seen);
    let database = database().await;
    let proxy = Proxy::in_front_of(database.url()).await;
    let (here, there) = (process_behind(&proxy).await.build().unwrap(), process(&database).await);
    let answers = || seen.gauge("inorder_handoff_table_answers", &[("scope", "mail")]);
    let [direct, delivered, ran] = [(); 3].map(|()| Uuid::now_v7());
    take_away(&proxy);

    for key in [direct, delivered, ran] {
        assert_eq!(here.open(key).unwrap(), Offer::Open);
    }
    assert!(take_direct(&here, direct).await);
    assert!(take_direct(&here, ran).await);
    assert_eq!(delivering(&here, delivered).await, Delivery::Deliver);
    assert!(!take_direct(&here, delivered).await);
    // Should the process die now, the delivery is all that is left of the event.
    assert_eq!(delivering(&here, direct).await, Delivery::NotYet);
    here.ran_directly(ran).await.unwrap();
    assert_eq!(delivering(&here, ran).await, Delivery::HandledDirectly);
    assert_eq!(words.with(&["the table of hand-offs does not answer"]).len(), 1);
    assert_eq!(answers(), Some(0.0));
    assert_eq!(seen.counter("inorder_handoffs_degraded_total", &[("scope", "mail")]), 4);
    assert!(here.run_once().await.is_err());
    assert_eq!(count(&database, "true").await, 0);

    proxy.heal();
    let swept = here.run_once().await.unwrap();
    assert_eq!((swept.recorded, swept.both_sides, swept.unfinished), (3, 0, 1));
    assert_eq!(answers(), Some(1.0));
    assert_eq!(words.with(&["the table of hand-offs answers again"]).len(), 1);
    assert_eq!(delivering(&here, direct).await, Delivery::HandledDirectly);
    for key in [direct, ran] {
        assert_eq!(delivering(&there, key).await, Delivery::HandledDirectly);
    }
    assert!(!take_direct(&there, delivered).await);
    assert_eq!(here.run_once().await.unwrap().recorded, 0);
}

#[tokio::test]
async fn where_both_sides_were_told_to_run_an_event_it_is_said() {
    let words = Words::listen();
    let database = database().await;
    let proxy = Proxy::in_front_of(database.url()).await;
    let (here, there) = (process_behind(&proxy).await.build().unwrap(), process(&database).await);
    let (direct, delivered) = (Uuid::now_v7(), Uuid::now_v7());
    take_away(&proxy);
    assert!(take_direct(&here, direct).await);
    assert_eq!(delivering(&there, direct).await, Delivery::Deliver);
    assert_eq!(delivering(&here, delivered).await, Delivery::Deliver);
    assert!(take_direct(&there, delivered).await);
    proxy.heal();
    let swept = here.run_once().await.unwrap();
    assert_eq!((swept.recorded, swept.both_sides), (2, 2));
    assert_eq!(words.with(&["ERROR", "both sides were told to run events", "events=2"]).len(), 1);
    assert!(here.unfinished(Duration::ZERO).await.unwrap().is_empty(), "a delivery runs it here");
}

#[tokio::test]
async fn a_strict_hand_off_decides_nothing_without_the_table() {
    let database = database().await;
    let proxy = Proxy::in_front_of(database.url()).await;
    let strict = process_behind(&proxy).await.strict().build().unwrap();
    let (key, before) = (Uuid::now_v7(), Uuid::now_v7());
    assert!(take_direct(&strict, before).await);
    take_away(&proxy);
    assert_eq!(strict.open(key).unwrap(), Offer::Open);
    let direct = strict.take_direct(key).await.unwrap_err();
    assert!(direct.is_retryable(), "{direct:?}");
    assert!(strict.delivering(key).await.is_err());
    assert!(strict.leave_out_direct(vec![before, key], |key| *key).await.is_err());
    assert_eq!(delivering(&strict, before).await, Delivery::HandledDirectly, "the table had it");
    proxy.heal();
    assert!(take_direct(&strict, key).await);
}

/// Nobody heard that the direct path has it: another process finds out, and so does who asks again.
#[tokio::test]
async fn a_row_whose_answer_was_lost_counts() {
    let database = database().await;
    let proxy = Proxy::in_front_of(database.url()).await;
    let strict = process_behind(&proxy).await.strict().build().unwrap();
    let there = process(&database).await;
    assert!(take_direct(&strict, Uuid::now_v7()).await, "there is a connection");
    let key = Uuid::now_v7();
    proxy.swallow_answers();
    assert_eq!(strict.take_direct(key).await.unwrap_err().kind(), ErrorKind::Timeout);
    eventually(LIMIT, "the row is there", async || count(&database, &format!("key = '{key}'")).await == 1)
        .await;
    assert_eq!(delivering(&there, key).await, Delivery::HandledDirectly);
    proxy.heal();
    proxy.cut();
    eventually(LIMIT, "it is told so after all", async || strict.take_direct(key).await.unwrap_or(false))
        .await;
}

#[tokio::test]
async fn a_black_hole_is_waited_for_no_longer_than_the_table_may_take() {
    let database = database().await;
    let proxy = Proxy::in_front_of(database.url()).await;
    let here = process_behind(&proxy).await.build().unwrap();
    assert!(take_direct(&here, Uuid::now_v7()).await, "there is a connection");
    proxy.black_hole();
    let began = Instant::now();
    assert!(take_direct(&here, Uuid::now_v7()).await);
    assert!(began.elapsed() >= PATIENCE && began.elapsed() < LIMIT / 2, "{:?}", began.elapsed());
}

/// After two of them; the probe finds the table again.
#[tokio::test]
async fn after_failures_in_a_row_no_decision_waits_until_a_probe_is_answered() {
    let (seen, words) = (Measured(Registry::atomic()), Words::listen());
    let _here = metrics::set_default_local_recorder(&seen);
    let database = database().await;
    let proxy = Proxy::in_front_of(database.url()).await;
    let behind = process_behind(&proxy).await.open_after(2).probe_interval(Duration::from_millis(50));
    let (here, there) = (behind.build().unwrap(), process(&database).await);
    let open = || seen.gauge("inorder_handoff_breaker_open", &[("scope", "mail")]);
    let [first, second, third, fourth] = [(); 4].map(|()| Uuid::now_v7());
    assert!(take_direct(&here, first).await);
    assert_eq!(open(), Some(0.0));
    proxy.black_hole();
    for key in [second, third] {
        let began = Instant::now();
        assert!(take_direct(&here, key).await);
        assert!(began.elapsed() >= PATIENCE, "it was waited for: {:?}", began.elapsed());
    }
    assert_eq!(open(), Some(1.0));
    let began = Instant::now();
    for _ in 0..20 {
        assert_eq!(delivering(&here, Uuid::now_v7()).await, Delivery::Deliver);
    }
    assert_eq!(delivering(&here, fourth).await, Delivery::Deliver);
    assert!(!take_direct(&here, fourth).await, "memory knows");
    here.ran_directly(third).await.unwrap();
    assert!(began.elapsed() < PATIENCE, "none of them waited: {:?}", began.elapsed());
    // However many probes are not answered.
    tokio::time::sleep(3 * PATIENCE).await;
    for word in ["the table of hand-offs does not answer", "decisions do not wait for the table"] {
        assert_eq!(words.with(&["WARN", word]).len(), 1, "{word}");
    }
    assert_eq!(seen.counter("inorder_handoff_breaker_opened_total", &[("scope", "mail")]), 1);

    proxy.heal();
    proxy.cut();
    eventually(LIMIT, "a probe is answered", async || open() == Some(0.0)).await;
    // What was decided meanwhile is written down by whoever probes.
    eventually(LIMIT, "what was decided is written down", async || count(&database, "true").await == 24)
        .await;
    assert_eq!(delivering(&there, second).await, Delivery::HandledDirectly);
    assert!(!take_direct(&there, fourth).await);
    assert!(there.unfinished(Duration::ZERO).await.unwrap().iter().all(|key| *key != third), "it was run");
    let fifth = Uuid::now_v7();
    assert!(take_direct(&there, fifth).await);
    assert_eq!(delivering(&here, fifth).await, Delivery::HandledDirectly, "it asks again");
}

#[tokio::test]
async fn a_strict_hand_off_with_an_open_breaker_refuses_at_once() {
    let database = database().await;
    let proxy = Proxy::in_front_of(database.url()).await;
    let strict =
        process_behind(&proxy).await.strict().open_after(1).probe_interval(Duration::from_millis(50));
    let strict = strict.build().unwrap();
    let (key, before) = (Uuid::now_v7(), Uuid::now_v7());
    assert!(take_direct(&strict, before).await);
    proxy.black_hole();
    assert_eq!(strict.take_direct(key).await.unwrap_err().kind(), ErrorKind::Timeout);
    let began = Instant::now();
    for _ in 0..10 {
        let refused = strict.take_direct(key).await.unwrap_err();
        assert!(refused.is_retryable() && refused.to_string().contains("is not asked until"), "{refused}");
        assert!(strict.delivering(key).await.is_err());
        assert!(strict.ran_directly(before).await.is_err());
    }
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert!(!take_direct(&strict, before).await, "this process knows that it was run");
    assert_eq!(strict.open(key).unwrap(), Offer::Open);
    proxy.heal();
    proxy.cut();
    eventually(LIMIT, "the table is asked again", async || strict.take_direct(key).await.unwrap_or(false))
        .await;
    eventually(LIMIT, "the table knows it, too", async || count(&database, "ran_at IS NOT NULL").await == 1)
        .await;
}

#[tokio::test]
async fn a_hand_off_sweeps_by_itself_until_its_last_clone_is_dropped() {
    let words = Words::listen();
    let database = database().await;
    let one = Config { pool_size: 1, ..Config::new(database.url()) };
    let (log, other) = (Inorder::with_config(one).await.unwrap(), process(&database).await);
    for old in 0..2 {
        let key = Uuid::from_u128(old);
        assert!(take_direct(&other, key).await);
        other.ran_directly(key).await.unwrap();
    }
    assert!(take_direct(&other, Uuid::from_u128(9)).await, "a program that dies here");
    drop(other);
    let age = "UPDATE inorder.handoffs SET taken_at = taken_at - interval '31 days', ran_at = ran_at - interval '31 days'";
    database.client().await.batch_execute(age).await.unwrap();
    // Those of sessions that have just ended are still there for a moment.
    let settles = async |what, tasks| {
        let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        eventually(LIMIT, what, async || alive() == tasks).await;
    };
    assert!(log.event(Uuid::nil()).await.unwrap().is_none());
    settles("the pool's connection alone", 1).await;
    let mail = log.handoff("mail").sweep_interval(Duration::from_millis(10)).build().unwrap();
    settles("it has asked nothing yet", 1).await;
    assert_eq!(delivering(&mail, Uuid::now_v7()).await, Delivery::Deliver);
    eventually(LIMIT, "what was kept long enough is gone", async || count(&database, "true").await == 2)
        .await;
    words.say(LIMIT, &["WARN", "has not run them", "unfinished=1"]).await;
    let clone = mail.clone();
    drop(mail);
    settles("a clone is enough", 2).await;
    drop((clone, log));
    settles("nobody sweeps, and the pool is gone", 0).await;
}

/// Dropped in the middle, each call leaves what the next one finds.
#[tokio::test]
async fn a_call_that_is_dropped_in_the_middle_loses_nothing() {
    let database = database().await;
    let proxy = Proxy::in_front_of(database.url()).await;
    let log = Stage::log_through(proxy.url(), LIMIT).await;
    let here = log.handoff("mail").table_timeout(LIMIT).sweep_by_hand().build().unwrap();
    let [taken, delivered, ran] = [(); 3].map(|()| Uuid::now_v7());
    assert_eq!(here.open(taken).unwrap(), Offer::Open);
    assert!(take_direct(&here, ran).await);
    proxy.swallow_answers();
    let patience = Duration::from_millis(100);
    assert!(tokio::time::timeout(patience, here.take_direct(taken)).await.is_err());
    proxy.heal();
    let sweep = within("a sweep, which does not wait for the answer of another", here.run_once()).await;
    assert_eq!(sweep.unwrap().unfinished, 2);
    assert_eq!(
        delivering(&here, Uuid::now_v7()).await,
        Delivery::Deliver,
        "the new connection knows the statement"
    );
    proxy.swallow_answers();
    assert!(tokio::time::timeout(patience, here.delivering(delivered)).await.is_err());
    let row = format!("key = '{delivered}'");
    eventually(LIMIT, "the delivery's row is there", async || count(&database, &row).await == 1).await;
    proxy.heal();
    proxy.swallow_answers();
    assert!(tokio::time::timeout(patience, here.ran_directly(ran)).await.is_err());
    assert_eq!(here.open(ran).unwrap(), Offer::Taken, "it is not run again");
    assert!(tokio::time::timeout(patience, here.run_once()).await.is_err());
    assert!(tokio::time::timeout(patience, here.unfinished(Duration::ZERO)).await.is_err());
    proxy.heal();

    assert!(take_direct(&here, taken).await, "nobody was told so");
    assert!(!take_direct(&here, delivered).await);
    assert_eq!(delivering(&here, delivered).await, Delivery::Deliver, "the queue delivers it again");
    within("a sweep", here.run_once()).await.unwrap();
    assert_eq!(count(&database, &format!("key = '{ran}' AND ran_at IS NOT NULL")).await, 1);
    assert_eq!(here.unfinished(Duration::ZERO).await.unwrap(), [taken]);
}

/// Whatever goes by age while somebody asks: of those who ask then, one side is told to run the event.
#[tokio::test]
async fn a_row_that_goes_by_age_while_both_sides_ask_is_one_sides() {
    let database = database().await;
    let client = database.client().await;
    let mut gone = 0;
    for _ in 0..60 {
        let key = Uuid::now_v7();
        let former = "INSERT INTO inorder.handoffs (scope, key, taken_by, taken_at, ran_at) \
            VALUES ('mail', $1, 'direct', now() - interval '31 days', now() - interval '31 days')";
        client.execute(former, &[&key]).await.unwrap();
        let [here, there, third] =
            [process(&database).await, process(&database).await, process(&database).await];
        for process in [&here, &there, &third] {
            // There is a connection.
            process.unfinished(Duration::ZERO).await.unwrap();
        }
        let (direct, delivery, swept) =
            tokio::join!(here.take_direct(key), there.delivering(key), third.run_once());
        let (direct, delivery) = (direct.unwrap(), delivery.unwrap() == Delivery::Deliver);
        assert!(!(direct && delivery), "{key}");
        gone += usize::from(swept.unwrap().deleted > 0 && (direct || delivery));
    }
    println!("{gone} of 60 were anybody's again");
}

/// A plan is kept for as long as its session: also one that was made while the table was empty.
#[tokio::test]
async fn a_decision_looks_up_its_events_by_their_keys_whatever_its_plan_was_made_for() {
    let database = database().await;
    let client = database.client().await;
    let take = include_str!("../../sql/query/handoffs/take.sql");
    let prepare =
        format!("SET plan_cache_mode = force_generic_plan; PREPARE take (text, text, uuid[]) AS {take}");
    client.batch_execute(&prepare).await.unwrap();
    let decide = "EXECUTE take('mail', 'delivery', array_fill(gen_random_uuid(), '{1000}'))";
    client.batch_execute(decide).await.unwrap();
    let many = "INSERT INTO inorder.handoffs (scope, key, taken_by) \
        SELECT 'mail', gen_random_uuid(), 'delivery' FROM generate_series(1, 20000)";
    client.batch_execute(many).await.unwrap();
    let plan: Vec<String> = client
        .query(&format!("EXPLAIN (ANALYZE, BUFFERS OFF, TIMING OFF, COSTS OFF) {decide}"), &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    let plan = plan.join("\n");
    assert!(plan.contains("handoffs_pkey"), "{plan}");
    assert!(!plan.contains("handoffs_taken_at") && !plan.contains("Seq Scan"), "{plan}");
}

/// I-10: an event that the direct path took and did not run is found, whatever the clock says.
#[tokio::test]
async fn a_clock_that_was_set_back_hides_no_unfinished_event() {
    let database = database().await;
    let [run, unfinished, delivered] = [(); 3].map(|()| Uuid::now_v7());
    let before = process(&database).await;
    for key in [run, unfinished] {
        assert!(take_direct(&before, key).await);
    }
    before.ran_directly(run).await.unwrap();
    assert_eq!(delivering(&before, delivered).await, Delivery::Deliver);
    let ahead = "UPDATE inorder.handoffs SET taken_at = taken_at + interval '1 year', ran_at = ran_at + interval '1 year'";
    database.client().await.batch_execute(ahead).await.unwrap();
    let after = process(&database).await;
    let hour = Duration::from_secs(3_600);
    assert_eq!(after.unfinished(hour).await.unwrap(), [unfinished]);
    let swept = after.run_once().await.unwrap();
    assert_eq!((swept.deleted, swept.unfinished, swept.oldest_unfinished), (0, 1, Duration::ZERO));
    let admin = Inorder::connect(database.url()).await.unwrap().admin();
    assert_eq!(admin.handoff_rows(&HandoffRows::unfinished().older_than(hour)).await.unwrap().len(), 1);
    assert_eq!(delivering(&after, run).await, Delivery::HandledDirectly);
    assert!(!take_direct(&after, delivered).await);
    assert!(after.unfinished(Duration::MAX).await.unwrap().len() <= 1, "a time that no calendar has");
}

#[tokio::test]
async fn rows_are_kept_for_their_time_and_until_the_event_was_run() {
    let database = database().await;
    let log = Inorder::connect(database.url()).await.unwrap();
    let day = Duration::from_secs(24 * 3_600);
    let handoff = log.handoff("mail").keep_deliveries(7 * day).build().unwrap();
    let other = log.handoff("push").build().unwrap();
    let [run, unfinished, delivered] = [(); 3].map(|()| Uuid::now_v7());
    for key in [run, unfinished] {
        assert!(take_direct(&handoff, key).await);
    }
    handoff.ran_directly(run).await.unwrap();
    assert_eq!(delivering(&handoff, delivered).await, Delivery::Deliver);
    assert_eq!(delivering(&other, run).await, Delivery::Deliver);
    let client = database.client().await;
    let mut left = Vec::new();
    for days in [6, 8, 29, 31] {
        let age = format!(
            "UPDATE inorder.handoffs SET taken_at = clock_timestamp() - interval '{days} days', ran_at = ran_at - interval '{days} days'"
        );
        client.batch_execute(&age).await.unwrap();
        let swept = handoff.run_once().await.unwrap();
        assert_eq!((swept.unfinished, swept.more), (1, false));
        left.push((swept.deleted, count(&database, "scope = 'mail'").await));
    }
    assert_eq!(left, [(0, 3), (1, 2), (0, 2), (1, 1)]);
    assert_eq!(count(&database, "scope = 'push'").await, 1);
    assert_eq!(handoff.unfinished(Duration::ZERO).await.unwrap(), [unfinished]);
}

#[tokio::test]
async fn options_out_of_range_are_refused_by_name() {
    let database = database().await;
    let log = Inorder::connect(database.url()).await.unwrap();
    for (builder, name) in [
        (log.handoff(""), "scope"),
        (log.handoff("x".repeat(201)), "scope"),
        (log.handoff("mail").max_entries(0), "max_entries"),
        (log.handoff("mail").keep(Duration::ZERO), "keep"),
        (log.handoff("mail").keep_deliveries(Duration::MAX), "keep_deliveries"),
        (log.handoff("mail").table_timeout(Duration::ZERO), "table_timeout"),
        (log.handoff("mail").open_after(0), "open_after"),
        (log.handoff("mail").probe_interval(Duration::ZERO), "probe_interval"),
        (log.handoff("mail").sweep_interval(Duration::MAX), "sweep_interval"),
    ] {
        let refused = builder.build().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Config);
        assert!(refused.to_string().contains(name), "{refused}");
    }
}
