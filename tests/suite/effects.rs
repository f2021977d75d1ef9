//! Effects that no transaction can undo: claimed before they are run, recorded after, once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use inorder::{Backoff, Consumer, Dispatcher, Failure, Inorder, Outcome, Registered};
use tokio::sync::Notify;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::database::Database;
use crate::support::{Writer, database, eventually};

const LIMIT: Duration = Duration::from_secs(30);

/// What a handler outside of any transaction was called with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    id: i64,
    event_id: Uuid,
    key: Uuid,
    number: i64,
    attempt: u32,
}

/// The other side: it keeps every call.
#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<Vec<Call>>>);

impl Receiver {
    fn calls(&self) -> Vec<Call> {
        self.0.lock().unwrap().clone()
    }

    fn ids(&self) -> Vec<i64> {
        self.calls().iter().map(|call| call.id).collect()
    }

    /// A consumer that calls it, and answers what `answer` says of the event's id and the attempt.
    fn consumer(
        &self,
        kind: fn(&str, Receiver, Answer) -> Consumer,
        answer: impl Fn(i64, u32) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Consumer {
        kind("mail", self.clone(), Arc::new(answer))
    }
}

type Answer = Arc<dyn Fn(i64, u32) -> Result<(), Failure> + Send + Sync>;

fn call(receiver: &Receiver, event: &inorder::Event, effect: &inorder::Effect) -> (i64, u32) {
    let call = Call {
        id: event.id(),
        event_id: event.event_id(),
        key: effect.idempotency_key(),
        number: effect.fencing_number(),
        attempt: effect.attempt(),
    };
    receiver.0.lock().unwrap().push(call);
    (call.id, call.attempt)
}

fn effect(name: &str, receiver: Receiver, answer: Answer) -> Consumer {
    Consumer::effect_fn(name, move |event, effect| {
        let (id, attempt) = call(&receiver, event, effect);
        let answer = answer(id, attempt);
        Box::pin(async move { answer })
    })
    .backoff(Backoff::constant(Duration::from_millis(1)))
}

fn queued(name: &str, receiver: Receiver, answer: Answer) -> Consumer {
    Consumer::queued_fn(name, move |event, effect| {
        let (id, attempt) = call(&receiver, event, effect);
        let answer = answer(id, attempt);
        Box::pin(async move { answer })
    })
    .backoff(Backoff::constant(Duration::from_millis(1)))
}

struct Scene {
    db: Database,
    receiver: Receiver,
    client: Client,
    log: Inorder,
}

impl Scene {
    async fn with_events(n: i32) -> Scene {
        let db = database().await;
        Writer::on(db.url()).await.append_many(n).await;
        let (client, log) = (db.client().await, Inorder::connect(db.url()).await.unwrap());
        Scene { db, receiver: Receiver::default(), client, log }
    }

    async fn register(&self, consumer: Consumer) -> Registered {
        let dispatcher = Dispatcher::builder(&self.log).consumer(consumer).build().unwrap();
        dispatcher.register().await.unwrap_or_else(|e| panic!("{e:?}"))
    }

    /// The statuses in the ledger, in the order of the events.
    async fn ledger(&self) -> Vec<String> {
        let statuses = "SELECT status FROM inorder.ledger ORDER BY position";
        self.client.query(statuses, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }

    async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }
}

/// I-5.
#[tokio::test]
async fn an_effect_consumer_runs_each_event_once_and_in_order() {
    let scene = Scene::with_events(250).await;
    let registered = scene.register(scene.receiver.consumer(effect, |_, _| Ok(()))).await;
    let report = registered.drain().await.unwrap();
    assert_eq!((report["mail"].processed, &report["mail"].outcome), (250, &Outcome::CaughtUp));
    assert_eq!(scene.receiver.ids(), (1..=250).collect::<Vec<i64>>());
    assert_eq!(scene.ledger().await, vec!["done"; 250]);
    assert_eq!(scene.number("SELECT position FROM inorder.consumers").await, 250);
    assert_eq!(scene.number("SELECT count(*) FROM inorder.consumers WHERE lease_until IS NOT NULL").await, 0);
    let again = registered.run_once().await.unwrap();
    assert_eq!(again["mail"].processed, 0);
}

/// I-5. What a receiver tells repetitions by.
#[tokio::test]
async fn every_attempt_has_the_same_key_and_a_greater_number() {
    let scene = Scene::with_events(1).await;
    let consumer = scene.receiver.consumer(effect, |_, attempt| match attempt {
        3 => Ok(()),
        n => Err(Failure::retry(format!("attempt {n}"))),
    });
    let registered = scene.register(consumer).await;
    eventually(LIMIT, "it is done", async || registered.run_once().await.unwrap()["mail"].processed == 1)
        .await;
    let calls = scene.receiver.calls();
    assert_eq!(calls.iter().map(|call| call.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(calls.iter().all(|call| call.key == calls[0].key && call.key != call.event_id), "{calls:?}");
    assert!(calls.windows(2).all(|pair| pair[0].number < pair[1].number), "{calls:?}");
}

/// I-6.
#[tokio::test]
async fn an_effect_consumer_halts_at_the_event_that_fails_until_it_is_skipped() {
    let scene = Scene::with_events(5).await;
    let consumer =
        scene.receiver.consumer(effect, |id, _| if id == 3 { Err(Failure::reject("never")) } else { Ok(()) });
    let registered = scene.register(consumer).await;
    let report = registered.drain().await.unwrap();
    assert_eq!(report["mail"].outcome, Outcome::Dead { at: 3 });
    assert_eq!(scene.receiver.ids(), [1, 2, 3]);
    let poison = scene.receiver.calls()[2].event_id;
    scene.log.admin().by("ops").skip_poison("mail", poison).await.unwrap();
    let report = registered.drain().await.unwrap();
    assert_eq!(report["mail"].outcome, Outcome::CaughtUp);
    assert_eq!(scene.receiver.ids(), [1, 2, 3, 4, 5]);
    assert_eq!(scene.ledger().await, ["done", "done", "dead", "done", "done"]);
    assert_eq!(scene.number("SELECT count(*) FROM inorder.dead_letters WHERE state = 'open'").await, 1);
}

#[tokio::test]
async fn a_dead_letter_of_an_effect_consumer_is_run_again_when_it_is_asked_for() {
    let scene = Scene::with_events(3).await;
    let consumer = scene.receiver.consumer(effect, |id, attempt| {
        if id == 2 && attempt == 1 { Err(Failure::skip("not now")) } else { Ok(()) }
    });
    let registered = scene.register(consumer).await;
    let report = registered.drain().await.unwrap();
    assert_eq!((report["mail"].processed, report["mail"].skipped), (2, 1));
    let letter = scene.number("SELECT id FROM inorder.dead_letters").await;
    scene.log.admin().by("ops").retry_dead_letter(letter).await.unwrap();
    registered.drain().await.unwrap();
    assert_eq!(scene.receiver.ids(), [1, 2, 3, 2]);
    assert_eq!(scene.ledger().await, vec!["done"; 3]);
    let resolved = "SELECT count(*) FROM inorder.dead_letters WHERE state = 'resolved'";
    assert_eq!(scene.number(resolved).await, 1);
}

/// I-5.
#[tokio::test]
async fn an_event_that_another_has_claimed_is_waited_for_and_costs_no_attempt() {
    let scene = Scene::with_events(2).await;
    let registered = scene.register(scene.receiver.consumer(effect, |_, _| Ok(()))).await;
    let event_id: Uuid =
        scene.client.query_one("SELECT event_id FROM inorder.events WHERE id = 1", &[]).await.unwrap().get(0);
    let inorder::Claim::Acquired(claim) = scene.log.ledger().claim(event_id, "mail").await.unwrap() else {
        panic!("nobody else claims")
    };
    let report = registered.run_once().await.unwrap();
    assert!(matches!(report["mail"].outcome, Outcome::Waiting { at: 1, .. }), "{report:?}");
    assert_eq!(scene.receiver.ids(), [0; 0]);
    assert!(claim.complete().await.unwrap());
    scene.client.batch_execute("UPDATE inorder.consumers SET next_attempt_at = NULL").await.unwrap();
    registered.drain().await.unwrap();
    assert_eq!(scene.receiver.ids(), [2], "1 was run by the other");
    assert_eq!(scene.number("SELECT attempts::bigint FROM inorder.consumers").await, 0);
}

#[tokio::test]
async fn a_queued_consumer_runs_each_event_once() {
    let scene = Scene::with_events(2_500).await;
    let registered = scene.register(scene.receiver.consumer(queued, |_, _| Ok(()))).await;
    let report = registered.drain().await.unwrap();
    assert_eq!((report["mail"].processed, &report["mail"].outcome), (2_500, &Outcome::CaughtUp));
    let mut ids = scene.receiver.ids();
    ids.sort_unstable();
    assert_eq!(ids, (1..=2_500).collect::<Vec<i64>>());
    assert_eq!(scene.ledger().await, vec!["done"; 2_500]);
}

/// I-6. A failing event holds up no other; given up, it leaves a dead letter, which can be retried.
#[tokio::test]
async fn a_queued_event_that_fails_is_tried_again_by_itself_until_it_is_dead() {
    let scene = Scene::with_events(5).await;
    let consumer = scene
        .receiver
        .consumer(queued, |id, attempt| match (id, attempt) {
            (2, 1) => Err(Failure::retry("not yet")),
            (4, _) => Err(Failure::retry("never")),
            _ => Ok(()),
        })
        .max_attempts(3);
    let registered = scene.register(consumer).await;
    let letters = "SELECT count(*) FROM inorder.dead_letters WHERE state = 'open' AND reason = 'exhausted'";
    eventually(LIMIT, "the event is given up", async || {
        registered.run_once().await.unwrap();
        scene.number(letters).await == 1
    })
    .await;
    let times = |id| scene.receiver.ids().iter().filter(|call| **call == id).count();
    assert_eq!([1, 2, 3, 4, 5].map(times), [1, 2, 1, 3, 1]);
    assert_eq!(scene.ledger().await, ["done", "done", "done", "dead", "done"]);
    let letter = scene.number("SELECT id FROM inorder.dead_letters").await;
    scene.log.admin().by("ops").retry_dead_letter(letter).await.unwrap();
    eventually(LIMIT, "it is given up again", async || {
        registered.run_once().await.unwrap();
        scene.number(letters).await == 1
    })
    .await;
    assert_eq!(times(4), 6);
}

#[tokio::test]
async fn a_running_dispatcher_runs_effects_and_queues() {
    let scene = Scene::with_events(100).await;
    let (mail, bill) = (Receiver::default(), Receiver::default());
    let dispatcher = Dispatcher::builder(&scene.log)
        .consumer(effect("mail", mail.clone(), Arc::new(|_, _| Ok(()))))
        .consumer(queued(
            "bill",
            bill.clone(),
            Arc::new(|id, attempt| match (id % 10, attempt) {
                (0, 1) => Err(Failure::retry("at first")),
                _ => Ok(()),
            }),
        ))
        .build()
        .unwrap();
    let running = dispatcher.start().await.unwrap();
    Writer::on(scene.db.url()).await.append_many(100).await;
    let done = "SELECT count(*) FROM inorder.ledger WHERE status = 'done'";
    eventually(LIMIT, "everything is done", async || scene.number(done).await == 400).await;
    running.stop().await.unwrap();
    assert_eq!(mail.ids(), (1..=200).collect::<Vec<i64>>());
    assert_eq!(bill.ids().len(), 220);
}

/// A handler that waits, and says that it was entered.
#[derive(Clone, Default)]
struct Door {
    entered: Arc<Notify>,
    open: Arc<Notify>,
    left: Arc<AtomicUsize>,
}

impl Door {
    fn effect(&self) -> Consumer {
        let door = self.clone();
        Consumer::effect_fn("mail", move |_, _| {
            let door = door.clone();
            Box::pin(async move {
                door.entered.notify_one();
                door.open.notified().await;
                door.left.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        })
    }
}

/// I-5. A lease is no limit: it is renewed for as long as the handler may take.
#[tokio::test]
async fn a_handler_that_takes_longer_than_its_lease_keeps_what_it_runs() {
    let scene = Scene::with_events(1).await;
    let door = Door::default();
    let registered = scene.register(door.effect().lease(Duration::from_millis(300))).await;
    let other = scene.register(scene.receiver.consumer(effect, |_, _| Ok(()))).await;
    let waiting = async {
        door.entered.notified().await;
        let renewed = "SELECT (count(*) FILTER (WHERE updated_at < clock_timestamp() - interval '700 ms'))::bigint \
            FROM inorder.ledger WHERE status = 'in_progress' AND lease_until > clock_timestamp()";
        eventually(LIMIT, "the lease was renewed", async || scene.number(renewed).await == 1).await;
        assert_eq!(other.run_once().await.unwrap()["mail"].outcome, Outcome::Busy);
        door.open.notify_one();
    };
    let (report, ()) = tokio::join!(registered.run_once(), waiting);
    assert_eq!(report.unwrap()["mail"].processed, 1);
    assert_eq!(scene.receiver.ids(), [0; 0]);
}

/// I-3, I-5. Another took the row and the claim: the handler is dropped, and nothing of it is written.
#[tokio::test]
async fn a_handler_whose_claim_was_lost_is_dropped_and_writes_nothing() {
    let scene = Scene::with_events(1).await;
    let door = Door::default();
    let registered = scene.register(door.effect().lease(Duration::from_millis(300))).await;
    let taking = async {
        door.entered.notified().await;
        let taken = "UPDATE inorder.ledger SET token = nextval('inorder.fencing'), lease_until = 'infinity';
             UPDATE inorder.consumers SET lease_token = nextval('inorder.fencing'), lease_until = 'infinity'";
        scene.client.batch_execute(taken).await.unwrap();
    };
    let (report, ()) = tokio::join!(registered.run_once(), taking);
    assert_eq!(report.unwrap()["mail"].outcome, Outcome::Busy);
    assert_eq!(door.left.load(Ordering::Relaxed), 0);
    let theirs = "SELECT count(*) FROM inorder.ledger AS l CROSS JOIN inorder.consumers AS c \
        WHERE l.status = 'in_progress' AND l.lease_until = 'infinity' AND c.lease_until = 'infinity' AND c.position = 0";
    assert_eq!(scene.number(theirs).await, 1);
}

/// Whoever stops gives back what it was running: that costs no attempt, and another goes on at once.
#[tokio::test]
async fn a_dispatcher_that_stops_releases_what_it_was_running() {
    let scene = Scene::with_events(1).await;
    let door = Door::default();
    let dispatcher =
        Dispatcher::builder(&scene.log).stop_timeout(Duration::ZERO).consumer(door.effect()).build().unwrap();
    let running = dispatcher.start().await.unwrap();
    door.entered.notified().await;
    running.stop().await.unwrap();
    assert_eq!(scene.ledger().await, ["pending"]);
    let registered = scene.register(scene.receiver.consumer(effect, |_, _| Ok(()))).await;
    assert_eq!(registered.run_once().await.unwrap()["mail"].processed, 1);
    assert_eq!(scene.receiver.calls()[0].attempt, 1);
}

/// I-3. Nobody waits for the lease of a process whose session is gone; what it was running is waited for.
#[tokio::test]
async fn the_row_of_a_process_that_is_gone_is_taken_at_once_and_its_claim_is_not() {
    let scene = Scene::with_events(2).await;
    let door = Door::default();
    let dispatcher = Dispatcher::builder(&scene.log)
        .consumer(door.effect().lease(Duration::from_secs(3_600)))
        .build()
        .unwrap();
    let running = dispatcher.start().await.unwrap();
    door.entered.notified().await;
    let registered = scene.register(scene.receiver.consumer(effect, |_, _| Ok(()))).await;
    assert_eq!(registered.run_once().await.unwrap()["mail"].outcome, Outcome::Busy, "it is there");
    let gone = "UPDATE inorder.instances SET session_lock = 0 WHERE session_lock IS NOT NULL";
    scene.client.batch_execute(gone).await.unwrap();
    let report = registered.run_once().await.unwrap();
    assert!(matches!(report["mail"].outcome, Outcome::Waiting { at: 1, .. }), "{report:?}");
    assert_eq!(scene.receiver.ids(), [0; 0]);
    door.open.notify_one();
    running.stop().await.unwrap();
}

/// What is done is done, whoever has the row meanwhile.
#[tokio::test]
async fn an_operator_who_moves_a_consumer_under_a_running_handler_is_not_overwritten() {
    let scene = Scene::with_events(3).await;
    let door = Door::default();
    let registered = scene.register(door.effect()).await;
    let acting = async {
        door.entered.notified().await;
        scene.log.admin().by("ops").disable("mail").await.unwrap();
        door.open.notify_one();
    };
    let (report, ()) = tokio::join!(registered.run_once(), acting);
    assert_eq!(report.unwrap()["mail"].outcome, Outcome::Busy, "the row is not its own any more");
    assert_eq!(scene.ledger().await, ["done"]);
    let untouched = "SELECT count(*) FROM inorder.consumers WHERE status = 'disabled' AND position = 0";
    assert_eq!(scene.number(untouched).await, 1);
    scene.log.admin().by("ops").enable("mail").await.unwrap();
    let registered = scene.register(scene.receiver.consumer(effect, |_, _| Ok(()))).await;
    registered.drain().await.unwrap();
    assert_eq!(scene.receiver.ids(), [2, 3], "1 was run");
}

/// Events of a stream are run one after the other; one that fails holds up those behind it, and no other stream.
#[tokio::test]
async fn a_queue_in_stream_order_runs_each_stream_one_by_one() {
    let scene = Scene::with_events(0).await;
    let client = scene.db.client().await;
    for n in 1..=6 {
        let stream = if n % 2 == 0 { "even" } else { "odd" };
        let append = "SELECT FROM inorder.append('counted', '{}', stream_type => 'n', stream_id => $1)";
        client.execute(append, &[&stream]).await.unwrap();
    }
    let consumer = scene.receiver.consumer(queued, |id, attempt| {
        if id == 2 && attempt == 1 { Err(Failure::retry("at first")) } else { Ok(()) }
    });
    let registered = scene.register(consumer.in_stream_order()).await;
    let done = "SELECT count(*) FROM inorder.ledger WHERE status = 'done'";
    eventually(LIMIT, "all are done", async || {
        registered.run_once().await.unwrap();
        scene.number(done).await == 6
    })
    .await;
    let calls = scene.receiver.ids();
    let of = |rest| calls.iter().copied().filter(|id| id % 2 == rest).collect::<Vec<i64>>();
    assert_eq!((of(1), of(0)), (vec![1, 3, 5], vec![2, 2, 4, 6]));
}

/// What a process left behind is run by another when its lease has run out, and that is a fault of the event.
#[tokio::test]
async fn what_a_process_left_in_a_queue_is_swept_up_when_its_lease_has_run_out() {
    let scene = Scene::with_events(1).await;
    let registered = scene.register(scene.receiver.consumer(queued, |_, _| Ok(()))).await;
    let left = "INSERT INTO inorder.ledger (event_id, handler, status, token, lease_until, position) \
        SELECT event_id, 'mail', 'in_progress', nextval('inorder.fencing'), clock_timestamp() + interval '1 hour', id FROM inorder.events";
    scene.client.batch_execute(left).await.unwrap();
    registered.drain().await.unwrap();
    assert_eq!(scene.receiver.ids(), [0; 0], "it may still be running");
    scene.client.batch_execute("UPDATE inorder.ledger SET lease_until = clock_timestamp()").await.unwrap();
    registered.drain().await.unwrap();
    assert_eq!(scene.ledger().await, ["done"]);
    assert_eq!(scene.receiver.calls()[0].attempt, 2);
    assert_eq!(scene.number("SELECT faults::bigint FROM inorder.ledger").await, 1);
}
