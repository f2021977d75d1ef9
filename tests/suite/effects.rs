//! Effects that no transaction can undo: claimed before they are run, recorded after, once.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use inorder::{Backoff, Consumer, Dispatcher, Failure, Inorder, Outcome, Registered};
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
