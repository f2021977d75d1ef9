//! Actions meet consumers that run.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use inorder::{
    Backoff, Consumer, DeadLetterState, DeadLetters, Dispatcher, ErrorKind, Outcome, Prune, Start,
};
use serde_json::json;
use time::OffsetDateTime;
use tokio::sync::Notify;

use super::{LIMIT, Scene, beside, refused};
use crate::support::{Words, eventually};

fn everything() -> Prune {
    Prune::before(OffsetDateTime::now_utc() + time::Duration::days(9_000))
}

/// A handler that writes down what it was given, and fails at the events that are poison.
#[derive(Clone, Default)]
struct Poison(Arc<Mutex<BTreeSet<i64>>>);

impl Poison {
    fn at(ids: &[i64]) -> Self {
        Self(Arc::new(Mutex::new(ids.iter().copied().collect())))
    }

    fn cured(&self) {
        self.0.lock().unwrap().clear();
    }

    fn consumer(&self) -> Consumer {
        let poison = self.clone();
        Consumer::transactional_fn("search", move |event, tx| {
            let fails = poison.0.lock().unwrap().contains(&event.id());
            Box::pin(async move {
                tx.execute("INSERT INTO seen (id) VALUES ($1)", &[&event.id()]).await?;
                if fails { Err("no such card".into()) } else { Ok(()) }
            })
        })
        .backoff(Backoff::exponential(std::time::Duration::from_secs(60)))
        .max_attempts(1)
    }

    fn dispatcher(&self, scene: &Scene) -> Dispatcher {
        Dispatcher::builder(&scene.log).consumer(self.consumer()).build().unwrap()
    }
}

impl Scene {
    async fn with_seen(events: i32) -> Self {
        let scene = Self::with(events).await;
        scene.client.batch_execute("CREATE TABLE seen (n serial, id bigint)").await.unwrap();
        scene
    }

    async fn seen(&self) -> Vec<i64> {
        let rows = self.client.query("SELECT id FROM seen ORDER BY n", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn eventually_seen(&self, ids: &[i64]) {
        eventually(LIMIT, &format!("{ids:?} are seen"), async || self.seen().await == ids).await;
    }
}

/// I-6: until somebody acts; then it goes on at once.
#[tokio::test]
async fn a_dead_consumer_stays_dead_until_it_is_restarted_and_then_runs_at_once() {
    let scene = Scene::with_seen(5).await;
    let poison = Poison::at(&[3]);
    let running = poison.dispatcher(&scene).start().await.unwrap();
    scene.eventually_seen(&[1, 2]).await;
    eventually(LIMIT, "it is dead", async || scene.row("search").await["status"] == json!("dead")).await;
    poison.cured();
    scene.admin.restart("search").await.unwrap();
    scene.eventually_seen(&[1, 2, 3, 4, 5]).await;
    running.stop().await.unwrap();
}

/// I-6: and what was skipped is delivered after all when it is asked for, once.
#[tokio::test]
async fn a_poison_event_is_skipped_and_later_retried_by_the_consumers_own_pass() {
    let scene = Scene::with_seen(5).await;
    let poison = Poison::at(&[3]);
    let registered = poison.dispatcher(&scene).register().await.unwrap();
    assert_eq!(registered.drain().await.unwrap()["search"].outcome, Outcome::Dead { at: 3 });
    let event = scene.event_id(3).await;
    scene.admin.skip_poison("search", event).await.unwrap();
    assert_eq!(registered.drain().await.unwrap()["search"].outcome, Outcome::CaughtUp);
    assert_eq!(scene.seen().await, [1, 2, 4, 5]);
    poison.cured();
    let letter = scene.admin.dead_letters(&DeadLetters::open()).await.unwrap()[0].id;
    scene.admin.retry_dead_letter(letter).await.unwrap();
    registered.drain().await.unwrap();
    assert_eq!(scene.seen().await, [1, 2, 4, 5, 3]);
    let (letter, _) = scene.admin.dead_letter(letter).await.unwrap();
    assert_eq!(letter.state, DeadLetterState::Resolved);
    registered.drain().await.unwrap();
    assert_eq!(scene.seen().await.len(), 5);
}

#[tokio::test]
async fn a_disabled_consumer_does_not_run_until_it_is_enabled() {
    let scene = Scene::with_seen(5).await;
    let registered = Poison::default().dispatcher(&scene).register().await.unwrap();
    scene.admin.disable("search").await.unwrap();
    assert_eq!(registered.drain().await.unwrap()["search"].outcome, Outcome::Disabled);
    assert!(scene.seen().await.is_empty());
    scene.admin.enable("search").await.unwrap();
    registered.drain().await.unwrap();
    assert_eq!(scene.seen().await, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_consumer_that_is_moved_back_is_given_the_events_again() {
    let scene = Scene::with_seen(5).await;
    let registered = Poison::default().dispatcher(&scene).register().await.unwrap();
    registered.drain().await.unwrap();
    scene.admin.reset("search", Start::After(3)).await.unwrap();
    registered.drain().await.unwrap();
    assert_eq!(scene.seen().await, [1, 2, 3, 4, 5, 4, 5]);
}

#[tokio::test]
async fn a_consumer_that_was_unregistered_says_so_and_is_registered_anew_at_the_next_start() {
    let scene = Scene::with_seen(5).await;
    let dispatcher = Poison::default().dispatcher(&scene);
    let registered = dispatcher.register().await.unwrap();
    scene.admin.unregister("search").await.unwrap();
    assert_eq!(registered.drain().await.unwrap()["search"].outcome, Outcome::Unregistered);
    dispatcher.register().await.unwrap().drain().await.unwrap();
    assert_eq!(scene.seen().await, [1, 2, 3, 4, 5]);
}

/// I-9.
#[tokio::test]
async fn a_consumer_whose_unread_events_were_pruned_does_not_run_until_that_is_accepted() {
    let scene = Scene::with_seen(5).await;
    let registered = Poison::at(&[3]).dispatcher(&scene).register().await.unwrap();
    registered.drain().await.unwrap();
    scene.admin.disable("search").await.unwrap();
    scene.admin.prune(&everything(), |_| ()).await.unwrap();
    scene.admin.enable("search").await.unwrap();
    scene.append(2).await;
    assert_eq!(registered.drain().await.unwrap()["search"].outcome, Outcome::Pruned { from: 3, to: 5 });
    scene.admin.accept_pruned("search").await.unwrap();
    assert_eq!(registered.drain().await.unwrap()["search"].outcome, Outcome::CaughtUp);
    assert_eq!(scene.seen().await, [1, 2, 6, 7]);
}

/// I-9: a lane that knows how it left its row sees that somebody has written it since.
#[tokio::test]
async fn a_dispatcher_at_work_sees_that_unread_events_were_pruned_while_its_consumer_was_disabled() {
    let words = Words::listen();
    let scene = Scene::with_seen(5).await;
    let running = Poison::default().dispatcher(&scene).start().await.unwrap();
    eventually(LIMIT, "all are delivered", async || scene.seen().await == [1, 2, 3, 4, 5]).await;
    scene.admin.disable("search").await.unwrap();
    scene.append(3).await;
    scene.admin.prune(&everything(), |_| ()).await.unwrap();
    scene.admin.enable("search").await.unwrap();
    scene.append(2).await;
    words.say(LIMIT, &["unread events were pruned", "from=6", "to=8"]).await;
    assert_eq!(scene.seen().await, [1, 2, 3, 4, 5]);
    assert_eq!(scene.admin.accept_pruned("search").await.unwrap().len(), 1);
    eventually(LIMIT, "the others are delivered", async || scene.seen().await == [1, 2, 3, 4, 5, 9, 10])
        .await;
    running.stop().await.unwrap();
}

/// I-9: a beginning that is gone.
#[tokio::test]
async fn a_new_consumer_that_asks_for_a_beginning_that_was_pruned_does_not_run_until_that_is_accepted() {
    let scene = Scene::with_seen(5).await;
    scene
        .client
        .query_one("SELECT inorder.prune(recorded_at) FROM inorder.events WHERE id = 4", &[])
        .await
        .unwrap();
    let registered = Poison::default().dispatcher(&scene).register().await.unwrap();
    assert_eq!(registered.drain().await.unwrap()["search"].outcome, Outcome::Pruned { from: 1, to: 3 });
    scene.admin.accept_pruned("search").await.unwrap();
    registered.drain().await.unwrap();
    assert_eq!(scene.seen().await, [4, 5]);
}

/// I-3, I-4: the pass in whose middle an action comes either commits before it or not at all.
#[tokio::test]
async fn an_action_waits_for_the_pass_and_force_does_not() {
    let scene = Scene::with_seen(1).await;
    let (entered, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let gates = (Arc::clone(&entered), Arc::clone(&go));
    let consumer = Consumer::transactional_fn("search", move |event, tx| {
        let (entered, go) = gates.clone();
        Box::pin(async move {
            entered.notify_one();
            go.notified().await;
            tx.execute("INSERT INTO seen (id) VALUES ($1)", &[&event.id()]).await?;
            Ok(())
        })
    });
    let running = Dispatcher::builder(&scene.log).consumer(consumer).build().unwrap().start().await.unwrap();
    entered.notified().await;
    refused(scene.admin.disable("search").await, ErrorKind::Busy, &["held by pid"]);
    let admin = scene.admin.clone();
    let disabled = beside(async move { admin.disable("search").await });
    scene.somebody_waits().await;
    go.notify_one();
    let changes = disabled.await.unwrap().unwrap();
    assert_eq!((&changes[0].before["position"], scene.seen().await), (&json!(1), vec![1]));
    scene.append(1).await;
    scene.admin.enable("search").await.unwrap();
    entered.notified().await;
    let changes = scene.admin.force().disable("search").await.unwrap();
    assert_eq!((&changes[0].before["position"], scene.seen().await), (&json!(1), vec![1]));
    running.stop().await.unwrap();
}

/// I-1, I-4: a process that still has the old number of partitions no longer runs the consumer.
#[tokio::test]
async fn a_consumer_that_was_split_is_run_by_who_knows_of_it_and_gives_each_event_once() {
    let scene = Scene::with_seen(20).await;
    let poison = Poison::default();
    let old = poison.dispatcher(&scene).register().await.unwrap();
    old.drain().await.unwrap();
    scene.admin.repartition("search", 3).await.unwrap();
    scene.append(30).await;
    let report = old.drain().await.unwrap();
    assert_eq!(report["search"].outcome, Outcome::Outdated { registered: 2, ours: 1 });
    assert_eq!(scene.seen().await.len(), 20);
    let split = poison.consumer().partitions(3).revision(2);
    let new = Dispatcher::builder(&scene.log).consumer(split).build().unwrap();
    new.register().await.unwrap().drain().await.unwrap();
    let mut seen = scene.seen().await;
    seen.sort_unstable();
    assert_eq!(seen, (1..=50).collect::<Vec<_>>());
}
