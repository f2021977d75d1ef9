//! Messages from outside: each received once, and run once, however it is delivered.

use std::time::Duration;

use inorder::{Consumer, Dispatcher, ErrorKind, Inbound, Inorder, NewEvent, Received};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::database::Database;
use crate::support::{LIMIT, Runs, database, eventually, within};

/// A way to receive one message.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Receive,
    ReceiveIn,
    ReceiveAll,
    ReceiveAllIn,
    Sql,
}

const WAYS: [Way; 5] = [Way::Receive, Way::ReceiveIn, Way::ReceiveAll, Way::ReceiveAllIn, Way::Sql];

struct Scene {
    db: Database,
    log: Inorder,
    client: Client,
    feed: Inbound,
    runs: Runs,
}

impl Scene {
    async fn new() -> Scene {
        let db = database().await;
        let (log, client) = (Inorder::connect(db.url()).await.unwrap(), db.client().await);
        let feed = log.inbound("usgs");
        Scene { db, log, client, feed, runs: Runs::default() }
    }

    /// Receives a quake of this magnitude.
    async fn receive(&mut self, way: Way, external_id: &str, mag: i32) -> Result<Received, inorder::Error> {
        let event = quake(mag);
        // So that a batch is one.
        let other = (format!("{external_id}, too"), quake(9));
        match way {
            Way::Receive => self.feed.receive(external_id, event).await,
            Way::ReceiveIn => {
                let tx = self.client.transaction().await.unwrap();
                let (received, pending) = self.feed.receive_in(&tx, external_id, event).await?;
                tx.commit().await.unwrap();
                pending.dispatch();
                Ok(received)
            }
            Way::ReceiveAll => {
                let batch = [(external_id.to_owned(), event), other];
                self.feed.receive_all(batch).await.map(|received| received[0])
            }
            Way::ReceiveAllIn => {
                let tx = self.client.transaction().await.unwrap();
                let batch = [(external_id.to_owned(), event), other];
                let (received, pending) = self.feed.receive_all_in(&tx, batch).await?;
                tx.commit().await.unwrap();
                pending.dispatch();
                Ok(received[0])
            }
            Way::Sql => {
                let payload = format!(r#"{{"mag":{mag}}}"#);
                let receive = "SELECT outcome, id, event_id FROM inorder.receive('usgs', $1, 'quake.reported', $2::text::json)";
                let row = self.client.query_one(receive, &[&external_id, &payload]).await.unwrap();
                assert_eq!(row.get::<_, Uuid>("event_id"), self.feed.event_id(external_id));
                let id = row.get("id");
                Ok(match row.get("outcome") {
                    "new" => Received::New { id },
                    "duplicate" => Received::Duplicate { id },
                    "mismatch" => Received::Mismatch { id },
                    other => panic!("{other}"),
                })
            }
        }
    }

    async fn register(&self, consumer: Consumer) {
        let dispatcher = Dispatcher::builder(&self.log).consumer(consumer).build().unwrap();
        dispatcher.register().await.unwrap_or_else(|e| panic!("{e:?}"));
    }

    async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Who is to handle what: `name position`, in order.
    async fn pending(&self) -> Vec<String> {
        let pending =
            "SELECT handler || ' ' || position FROM inorder.ledger WHERE status = 'pending' ORDER BY 1";
        self.client.query(pending, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }
}

fn quake(mag: i32) -> NewEvent {
    NewEvent::from_json("quake.reported", format!(r#"{{"mag":{mag}}}"#))
}

/// The derivation is for ever: these were computed by another implementation.
#[tokio::test]
async fn the_event_id_is_the_same_in_every_language() {
    let scene = Scene::new().await;
    let known = [
        ("usgs", "ci37868143".to_owned(), "c0297e71-cc9b-5597-b47e-bd3778c95f17"),
        ("a", "b".to_owned(), "f4d59a16-ab7c-54d0-b909-82eb7e8be3f6"),
        ("Ünïcode/🌍", "id 1".to_owned(), "dd294a04-9ddb-5586-8147-2f500baaac99"),
        ("shop", "x".repeat(200), "e5cd0d56-98f4-5521-8d28-f453e76a667d"),
    ];
    for (source, external_id, event_id) in known {
        assert_eq!(scene.log.inbound(source).event_id(&external_id).to_string(), event_id);
    }
    // Every way in which a message fills the blocks of the hash.
    let derive = "SELECT inorder.inbound_event_id($1, $2)";
    for length in 1..=140 {
        let external_id: String = (0..length).map(|n| if n % 7 == 3 { 'é' } else { 'x' }).collect();
        let row = scene.client.query_one(derive, &[&"usgs", &external_id]).await.unwrap();
        assert_eq!(row.get::<_, Uuid>(0), scene.feed.event_id(&external_id), "{length}");
    }
}

/// I-5. One table of cases for every way to receive.
#[tokio::test]
async fn a_redelivery_is_a_duplicate_whichever_way_it_comes() {
    let mut scene = Scene::new().await;
    scene.register(scene.runs.consumer("mail")).await;
    for first in WAYS {
        for again in WAYS {
            let external_id = format!("{first:?} {again:?}");
            let Received::New { id } = scene.receive(first, &external_id, 2).await.unwrap() else {
                panic!("{external_id}: not new")
            };
            let duplicate = scene.receive(again, &external_id, 2).await.unwrap();
            assert_eq!(duplicate, Received::Duplicate { id }, "{external_id}");
            let mismatch = scene.receive(again, &external_id, 3).await.unwrap();
            assert_eq!(mismatch, Received::Mismatch { id }, "{external_id}");
            let event = scene.log.event(scene.feed.event_id(&external_id)).await.unwrap().unwrap();
            assert_eq!((event.id(), event.payload_json()), (id, r#"{"mag":2}"#));
            assert_eq!((event.event_type(), event.created_by()), ("quake.reported", Some("usgs")));
        }
    }
    let rows = "SELECT count(*) FROM inorder.ledger JOIN inorder.events USING (event_id) WHERE position = id";
    assert_eq!(scene.number(rows).await, scene.number("SELECT count(*) FROM inorder.events").await);
}

#[tokio::test]
async fn a_batch_may_bring_a_message_twice_and_one_that_is_there() {
    let scene = Scene::new().await;
    let old = scene.feed.receive("old", quake(1)).await.unwrap().id();
    let batch = [
        ("old", quake(1)),
        ("b", quake(2)),
        ("a", quake(3)),
        ("b", quake(2)),
        ("old", quake(7)),
        ("a", quake(8)),
        ("c", quake(4).in_stream("quake", "c")),
    ];
    let received = scene.feed.receive_all(batch).await.unwrap();
    let (b, a, c) = (received[1].id(), received[2].id(), received[6].id());
    assert!(old < b && b < a && a < c, "in the order given");
    use Received::{Duplicate, Mismatch, New};
    let expected = [
        Duplicate { id: old },
        New { id: b },
        New { id: a },
        Duplicate { id: b },
        Mismatch { id: old },
        Mismatch { id: a },
        New { id: c },
    ];
    assert_eq!(received, expected);
    assert_eq!(scene.number("SELECT count(*) FROM inorder.events").await, 4);
    assert_eq!(scene.feed.receive_all(Vec::<(String, NewEvent)>::new()).await.unwrap(), []);
}

#[tokio::test]
async fn the_same_external_id_of_another_source_is_another_message() {
    let scene = Scene::new().await;
    let there = scene.feed.receive("1", quake(1)).await.unwrap();
    let here = scene.log.inbound("geofon").receive("1", quake(1)).await.unwrap();
    assert!(there.is_new() && here.is_new() && there.id() != here.id());
    assert_ne!(scene.log.inbound("a").event_id("bc"), scene.log.inbound("ab").event_id("c"));
}

#[tokio::test]
async fn what_is_received_is_recorded_for_the_queued_consumers_that_want_it() {
    let mut scene = Scene::new().await;
    scene.register(scene.runs.consumer("everything").partitions(3)).await;
    scene.register(scene.runs.consumer("quakes").only(["quake.reported", "quake.revised"])).await;
    scene.register(scene.runs.consumer("storms").only(["storm.reported"])).await;
    scene.register(scene.runs.consumer("off")).await;
    scene.register(Consumer::effect_fn("in order", |_, _| Box::pin(async { Ok(()) }))).await;
    scene.log.admin().by("ops").disable("off").await.unwrap();
    let id = scene.feed.receive("1", quake(1)).await.unwrap().id();
    assert_eq!(scene.pending().await, [format!("everything {id}"), format!("quakes {id}")]);

    let tx = scene.client.transaction().await.unwrap();
    let storm = NewEvent::from_json("storm.reported", "{}");
    let batch = [("2", quake(2)), ("3", storm), ("1", quake(1))];
    let (received, pending) = scene.feed.receive_all_in(&tx, batch).await.unwrap();
    assert_eq!(pending.consumers(), ["everything", "quakes", "storms"]);
    tx.commit().await.unwrap();
    let (second, third) = (received[0].id(), received[1].id());
    let mut expected =
        vec![format!("everything {id}"), format!("everything {second}"), format!("everything {third}")];
    expected.extend([format!("quakes {id}"), format!("quakes {second}"), format!("storms {third}")]);
    assert_eq!(scene.pending().await, expected);
}

#[tokio::test]
async fn a_message_whose_transaction_rolls_back_was_not_received() {
    let mut scene = Scene::new().await;
    scene.register(scene.runs.consumer("mail")).await;
    let tx = scene.client.transaction().await.unwrap();
    let (received, _) = scene.feed.receive_in(&tx, "1", quake(1)).await.unwrap();
    assert!(received.is_new());
    tx.rollback().await.unwrap();
    assert_eq!(scene.pending().await, [""; 0]);
    assert!(scene.feed.receive("1", quake(2)).await.unwrap().is_new());
}

#[tokio::test]
async fn a_refusal_names_the_message_and_nothing_is_received() {
    let mut scene = Scene::new().await;
    let bad = || NewEvent::from_json("quake.reported", r#"{"mag": "\u0000"}"#);
    let long = "x".repeat(2_001);
    for (external_id, event, why) in [
        ("", quake(1), "message 2 of 2: external_id is empty"),
        (&long, quake(1), "message 2 of 2: external_id has 2001 bytes; at most 2000"),
        ("a\0b", quake(1), "contains U+0000"),
        ("2", bad(), "external id '2': event 2 of 2"),
    ] {
        let tx = scene.client.transaction().await.unwrap();
        let batch = [("1", quake(1)), (external_id, event)];
        let error = scene.feed.receive_all_in(&tx, batch.clone()).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Refused && error.to_string().contains(why), "{error}");
        tx.commit().await.unwrap();
        let error = scene.feed.receive_all(batch).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Refused && error.to_string().contains(why), "{error}");
    }
    let nameless = scene.log.inbound("").receive("1", quake(1)).await.unwrap_err();
    assert!(nameless.to_string().contains("source is empty"), "{nameless}");
    assert_eq!(scene.number("SELECT count(*) FROM inorder.events").await, 0);
    let raised = scene.client.batch_execute("SELECT inorder.receive('', '1', 'a', '1')").await.unwrap_err();
    assert_eq!(raised.code().map(tokio_postgres::error::SqlState::code), Some("IO002"));
}

/// I-5: twice, at the same time, in different orders, one by one and in batches.
#[tokio::test]
async fn a_message_that_is_delivered_by_many_at_once_is_run_once() {
    const MESSAGES: usize = 300;
    let scene = Scene::new().await;
    let dispatcher = Dispatcher::builder(&scene.log)
        .consumer(scene.runs.consumer("mail"))
        .consumer(scene.runs.consumer("storms").only(["storm.reported"]))
        .poll_interval(Duration::from_millis(50))
        .build()
        .unwrap();
    let running = dispatcher.start().await.unwrap();
    let deliveries = (0..6_u64).map(|delivery| {
        // Half of them go through a log, and so a process, of their own.
        let (log, url) = (scene.log.clone(), scene.db.url().to_owned());
        tokio::spawn(async move {
            let log = if delivery % 2 == 0 { log } else { Inorder::connect(url).await.unwrap() };
            let feed = log.inbound("usgs");
            let mut order: Vec<usize> = (0..MESSAGES).collect();
            fastrand::Rng::with_seed(delivery).shuffle(&mut order);
            let message =
                |n: usize| (n.to_string(), quake(i32::try_from(n).unwrap()).in_stream("place", n % 5));
            let mut new = 0;
            for part in order.chunks(if delivery < 2 { 1 } else { 40 }) {
                let batch: Vec<_> = part.iter().copied().map(message).collect();
                let received = match batch.as_slice() {
                    [(external_id, event)] => vec![feed.receive(external_id, event.clone()).await.unwrap()],
                    _ => feed.receive_all(batch).await.unwrap(),
                };
                assert!(received.iter().all(|one| !matches!(one, Received::Mismatch { .. })), "{received:?}");
                new += received.iter().filter(|one| one.is_new()).count();
            }
            new
        })
    });
    let mut new = 0;
    for delivery in deliveries.collect::<Vec<_>>() {
        new += within("delivering", delivery).await.unwrap();
    }
    assert_eq!(new, MESSAGES);
    let done = "SELECT count(*) FROM inorder.ledger WHERE status = 'done'";
    eventually(LIMIT, "everything is done", async || scene.number(done).await == 300).await;
    let passed =
        "SELECT count(*) FROM inorder.consumers WHERE position = (SELECT max(id) FROM inorder.events)";
    eventually(LIMIT, "everything is passed", async || scene.number(passed).await == 2).await;
    running.stop().await.unwrap();
    assert_eq!((scene.runs.times().len(), scene.runs.count()), (MESSAGES, MESSAGES));
    assert_eq!(scene.number("SELECT count(*) FROM inorder.events").await, 300);
}

impl Scene {
    /// Until some session waits for a lock of this type.
    async fn somebody_waits_for(&self, locktype: &str) {
        self.waiters(locktype, 1).await;
    }

    /// Until so many sessions wait for locks of this type.
    async fn waiters(&self, locktype: &str, sessions: i64) {
        let waiting = "SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) \
            WHERE NOT l.granted AND l.locktype = $1 AND a.datname = current_database()";
        eventually(LIMIT, "somebody waits", async || {
            self.client.query_one(waiting, &[&locktype]).await.unwrap().get::<_, i64>(0) == sessions
        })
        .await;
    }
}

/// They may bring the same messages in different orders, and would wait for each other crosswise.
#[tokio::test]
async fn batches_of_one_source_wait_for_each_other_and_those_of_others_do_not() {
    let scene = Scene::new().await;
    let mut first = scene.db.client().await;
    let tx = first.transaction().await.unwrap();
    let (received, _) = scene.feed.receive_all_in(&tx, [("a", quake(1)), ("b", quake(2))]).await.unwrap();
    let other = scene.log.inbound("geofon");
    let elsewhere = other.receive_all([("b", quake(2)), ("a", quake(1))]);
    assert!(within("another source", elsewhere).await.unwrap().iter().all(|one| one.is_new()));
    assert!(within("one by one", scene.feed.receive("c", quake(3))).await.unwrap().is_new());
    let feed = scene.feed.clone();
    let second = tokio::spawn(async move { feed.receive_all([("b", quake(2)), ("a", quake(1))]).await });
    scene.somebody_waits_for("advisory").await;
    tx.commit().await.unwrap();
    let again = within("the second", second).await.unwrap().unwrap();
    assert_eq!(again, [received[1], received[0]].map(|one| Received::Duplicate { id: one.id() }));
}

/// I-5.
#[tokio::test]
async fn a_batch_that_is_overtaken_by_one_of_its_messages_is_received_again() {
    let scene = Scene::new().await;
    scene.register(scene.runs.consumer("mail")).await;
    let mut first = scene.db.client().await;
    let tx = first.transaction().await.unwrap();
    let (b, _) = scene.feed.receive_in(&tx, "b", quake(2)).await.unwrap();
    let feed = scene.feed.clone();
    let batch = tokio::spawn(async move { feed.receive_all([("a", quake(1)), ("b", quake(2))]).await });
    scene.somebody_waits_for("transactionid").await;
    tx.commit().await.unwrap();
    let received = within("the batch", batch).await.unwrap().unwrap();
    assert!(received[0].is_new());
    assert_eq!(received[1], Received::Duplicate { id: b.id() });
    let expected = [format!("mail {}", b.id()), format!("mail {}", received[0].id())];
    assert_eq!(scene.pending().await, expected);
}

/// Each time one of its messages is received by itself, and never again: a batch comes to its end however often it is overtaken.
#[tokio::test]
async fn a_batch_that_is_overtaken_again_and_again_is_received_at_last() {
    const MESSAGES: usize = 9;
    let scene = Scene::new().await;
    let name = |n: usize| format!("m{n}");
    let feed = scene.feed.clone();
    let mut clients = Vec::new();
    for _ in 0..MESSAGES {
        clients.push(scene.db.client().await);
    }
    let mut clients = clients.iter_mut();
    let mut held = clients.next().unwrap().transaction().await.unwrap();
    let (first, _) = scene.feed.receive_in(&held, &name(MESSAGES), quake(1)).await.unwrap();
    assert!(first.is_new());
    // It waits for whoever holds its last message.
    let batch =
        tokio::spawn(async move { feed.receive_all((1..=MESSAGES).map(|n| (name(n), quake(1)))).await });
    for n in (1..MESSAGES).rev() {
        scene.waiters("transactionid", 1).await;
        let next = clients.next().unwrap().transaction().await.unwrap();
        // Waits for the batch, which has written this one, and has it as soon as the batch is overtaken.
        let message = name(n);
        let (received, ()) = tokio::join!(scene.feed.receive_in(&next, &message, quake(1)), async {
            scene.waiters("transactionid", 2).await;
            held.commit().await.unwrap();
        });
        assert!(received.unwrap().0.is_new());
        held = next;
    }
    scene.waiters("transactionid", 1).await;
    held.commit().await.unwrap();
    let received = within("the batch", batch).await.unwrap().unwrap();
    assert!(received.iter().all(|one| !one.is_new()), "{received:?}");
    assert_eq!(scene.number("SELECT count(*) FROM inorder.events").await, 9);
}

/// I-5.
#[tokio::test]
async fn the_same_message_from_two_transactions_is_received_once() {
    let scene = Scene::new().await;
    let mut first = scene.db.client().await;
    for commit in [false, true] {
        let external_id = format!("{commit}");
        let tx = first.transaction().await.unwrap();
        let (one, _) = scene.feed.receive_in(&tx, &external_id, quake(1)).await.unwrap();
        let (feed, id) = (scene.feed.clone(), external_id.clone());
        let other = tokio::spawn(async move { feed.receive(&id, quake(1)).await });
        scene.somebody_waits_for("transactionid").await;
        match commit {
            true => tx.commit().await.unwrap(),
            false => tx.rollback().await.unwrap(),
        }
        let other = within("the other", other).await.unwrap().unwrap();
        match commit {
            true => assert_eq!(other, Received::Duplicate { id: one.id() }),
            false => assert!(other.is_new() && other.id() > one.id()),
        }
    }
}
