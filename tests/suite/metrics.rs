//! What monitoring sees.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use inorder::{Consumer, NewEvent};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_util::registry::{AtomicStorage, Registry};

use crate::support::{LIMIT, Stage, Words, Writer, eventually};

/// Keeps what was measured last; looking at it changes nothing.
pub(super) struct Measured(pub(super) Registry<Key, AtomicStorage>);

impl Recorder for Measured {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.0.get_or_create_counter(key, |c| Counter::from_arc(Arc::clone(c)))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.0.get_or_create_gauge(key, |g| Gauge::from_arc(Arc::clone(g)))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

impl Measured {
    /// The value of a gauge with these labels, if it was ever set.
    pub(super) fn gauge(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.0.get_gauge_handles().into_iter().find_map(|(key, value)| {
            let has =
                |(label, is): &(&str, &str)| key.labels().any(|l| l.key() == *label && l.value() == *is);
            (key.name() == name && labels.iter().all(has))
                .then(|| f64::from_bits(value.load(Ordering::Relaxed)))
        })
    }

    /// The value of a counter with these labels, 0 if it was never counted.
    pub(super) fn counter(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let handles = self.0.get_counter_handles().into_iter();
        let these = handles.filter(|(key, _)| {
            let has =
                |(label, is): &(&str, &str)| key.labels().any(|l| l.key() == *label && l.value() == *is);
            key.name() == name && labels.iter().all(has)
        });
        these.map(|(_, value)| value.load(Ordering::Relaxed)).sum()
    }
}

fn idle(name: &str) -> Consumer {
    Consumer::transactional_fn(name, |_, _| Box::pin(async { Ok(()) }))
}

#[tokio::test]
async fn every_registered_consumer_is_measured_in_every_state_until_it_is_unregistered() {
    let seen = Measured(Registry::atomic());
    let _here = metrics::set_default_local_recorder(&seen);
    let stage = Stage::with_events(3).await;
    stage
        .sql(
            "INSERT INTO inorder.consumers (name, kind, position, status, attempts, next_attempt_at) VALUES \
              ('dead', 'batch', 1, 'dead', 10, NULL), ('disabled', 'batch', 1, 'disabled', 0, NULL), \
              ('expired', 'batch', 1, 'expired', 0, NULL), ('waiting', 'batch', 1, 'idle', 2, clock_timestamp() + interval '1 hour')",
        )
        .await;
    stage
        .sql(
            "INSERT INTO inorder.dead_letters (consumer, position, event_id, reason, state) \
             SELECT 'dead', n, gen_random_uuid(), 'rejected', state \
             FROM unnest('{open, open, retry_requested, resolved, discarded}'::text[]) WITH ORDINALITY AS l (state, n)",
        )
        .await;
    stage
        .sql(
            "INSERT INTO inorder.consumers (name, kind, position, status) VALUES ('queue', 'queued', 3, 'disabled'); \
             INSERT INTO inorder.ledger (event_id, handler, status, position) \
             SELECT event_id, 'queue', 'pending', id FROM inorder.events",
        )
        .await;
    let running = stage.dispatcher([idle("idle")]).build().unwrap().start().await.unwrap();
    let status = |name: &str, status: &str| {
        seen.gauge("inorder_consumer_status", &[("consumer", name), ("status", status)])
    };
    for name in ["idle", "waiting", "dead", "disabled", "expired"] {
        eventually(LIMIT, "its status is measured", async || status(name, name) == Some(1.0)).await;
    }
    let lag = |name: &str| seen.gauge("inorder_consumer_lag_events", &[("consumer", name)]);
    eventually(LIMIT, "what runs has no lag", async || lag("idle") == Some(0.0)).await;
    assert_eq!((lag("dead"), lag("disabled"), lag("expired")), (Some(2.0), Some(2.0), Some(2.0)));
    assert!(seen.gauge("inorder_consumer_lag_seconds", &[("consumer", "dead")]) > Some(0.0));
    assert_eq!(seen.gauge("inorder_consumer_attempts", &[("consumer", "dead")]), Some(10.0));
    let letters = |name: &str| seen.gauge("inorder_dead_letters_open", &[("consumer", name)]);
    assert_eq!((letters("idle"), letters("dead")), (Some(0.0), Some(3.0)));
    assert_eq!(seen.gauge("inorder_log_head", &[]), Some(3.0));
    eventually(LIMIT, "it listens", async || seen.gauge("inorder_listener_connected", &[]) == Some(1.0))
        .await;

    let depth = || seen.gauge("inorder_queue_events", &[("consumer", "queue"), ("state", "pending")]);
    let due = || seen.gauge("inorder_queue_oldest_due_seconds", &[("consumer", "queue")]);
    eventually(LIMIT, "its queue is measured", async || depth() == Some(3.0) && due() > Some(0.0)).await;

    stage.log.admin().unregister("dead").await.unwrap();
    eventually(LIMIT, "nobody is dead any more", async || {
        (status("dead", "dead"), lag("dead")) == (Some(0.0), Some(0.0))
    })
    .await;
    stage.log.admin().unregister("queue").await.unwrap();
    eventually(LIMIT, "its queue is gone", async || (depth(), due()) == (Some(0.0), Some(0.0))).await;
    running.stop().await.unwrap();
    assert_eq!(seen.gauge("inorder_listener_connected", &[]), Some(0.0));
}

/// A hole that does not close is told to whoever is on duty, with who holds it open; and when it has closed, that it has.
#[tokio::test]
async fn who_holds_an_old_hole_open_is_named_and_measured_until_it_is_closed() {
    let (seen, words) = (Measured(Registry::atomic()), Words::listen());
    let _here = metrics::set_default_local_recorder(&seen);
    let stage = Stage::with_events(1).await;
    let running = stage.dispatcher([idle("idle")]).build().unwrap().start().await.unwrap();
    let writer = Writer::in_transaction(stage.database.url()).await;
    writer.append().await;
    stage.append(1).await;
    let pid: i32 = writer.client().query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);

    words.say(LIMIT, &["a transaction took an id and has not ended", "safe_head=1", &pid.to_string()]).await;
    let blockers = || seen.gauge("inorder_log_blockers", &[]);
    assert_eq!(blockers(), Some(1.0));
    let age = || seen.gauge("inorder_log_blocker_age_seconds", &[]);
    assert!(age() >= Some(5.0), "{:?}", age());
    assert!(seen.gauge("inorder_log_hole_age_seconds", &[]) >= Some(5.0));

    writer.commit().await;
    eventually(LIMIT, "nobody holds anything open", async || (blockers(), age()) == (Some(0.0), Some(0.0)))
        .await;
    assert_eq!(seen.gauge("inorder_log_hole_age_seconds", &[]), Some(0.0));
    running.stop().await.unwrap();
}

#[tokio::test]
async fn messages_from_outside_are_counted_by_what_became_of_them() {
    let seen = Measured(Registry::atomic());
    let _here = metrics::set_default_local_recorder(&seen);
    let stage = Stage::with_events(0).await;
    let feed = stage.log.inbound("usgs");
    let quake = |mag: i32| NewEvent::from_json("quake", mag.to_string());
    let received =
        feed.receive_all([("a", quake(1)), ("b", quake(2)), ("a", quake(1)), ("b", quake(3))]).await;
    assert_eq!(received.unwrap().len(), 4);
    let counted = ["new", "duplicate", "mismatch"].map(|result| {
        seen.counter("inorder_messages_received_total", &[("source", "usgs"), ("result", result)])
    });
    assert_eq!(counted, [2, 1, 1]);
}
