//! What became of connections is no matter.

use std::time::Duration;

use inorder::{Config, Inorder};

use super::{LIMIT, NEVER, Scene, TRACKER, TRACKERS, ringing_database, terminate};
use crate::support::{Proxy, Recording, Words, Writer, database, eventually};

#[tokio::test]
async fn a_watcher_that_was_cut_off_comes_back_and_hears() {
    let scene = Scene::polling_every(NEVER).await;
    scene.asleep().await;
    let writer = scene.writer().await;
    for n in [1, 3, 5] {
        scene.words.forget();
        assert!(terminate(&scene.db, TRACKERS).await > 0);
        // Nobody may hear this one; the look after the reconnect finds it.
        writer.append().await;
        scene.words.say(LIMIT, &["the head of the log is out of sight"]).await;
        scene.words.say(LIMIT, &["listening"]).await;
        scene.delivered(&(1..=n).collect::<Vec<_>>()).await;
        scene.asleep().await;
        writer.append().await;
        scene.delivered(&(1..=n + 1).collect::<Vec<_>>()).await;
    }
    scene.stop().await;
}

/// I-1: tracker, passes and readers are ended at random while events come; nothing is lost, doubled or out of order.
#[tokio::test]
async fn sessions_may_be_ended_at_any_moment() {
    let scene = Scene::polling_every(Duration::from_millis(100)).await;
    let writer = scene.writer().await;
    for n in 0..40 {
        writer.append_many(50).await;
        let which = ["%", TRACKER, "-- inorder consumers/%", "-- inorder events/%", "COMMIT"][n % 5];
        terminate(&scene.db, which).await;
        // Another moment of a pass each time.
        tokio::time::sleep(Duration::from_millis(u64::try_from(n).unwrap() % 7)).await;
    }
    scene.delivered(&(1..=2_000).collect::<Vec<_>>()).await;
    scene.seen.assert_complete().await;
    scene.stop().await;
}

/// Half-open sockets: no error ever comes. Everything of ours that waits has an end, and what comes after it is new.
#[tokio::test]
async fn connections_that_fell_silent_are_found_and_replaced() {
    let db = ringing_database().await;
    let words = Words::listen();
    let proxy = Proxy::in_front_of(db.url()).await;
    let limit = Duration::from_millis(700);
    let config = Config {
        statement_timeout: limit,
        connect_timeout: Duration::from_secs(5),
        ..Config::new(proxy.url())
    };
    let seen = Recording::over(Inorder::with_config(config).await.unwrap(), db.url()).await;
    let poll_interval = Duration::from_millis(100);
    let running = seen.builder().poll_interval(poll_interval).build().unwrap().start().await.unwrap();
    let writer = Writer::on(db.url()).await;
    writer.append().await;
    eventually(LIMIT, "it is delivered", async || seen.ids().await == [1]).await;
    words.say(LIMIT, &["asleep"]).await;
    words.forget();

    proxy.silence();
    writer.append().await;

    eventually(LIMIT, "it is delivered over new connections", async || seen.ids().await == [1, 2]).await;
    words.say(LIMIT, &["the head of the log is out of sight", "no answer within 0.7 s"]).await;
    words.say(LIMIT, &["listening"]).await;
    running.stop().await.unwrap();
}

/// In the middle of passes, too: the commit of a pass may be among what was swallowed.
#[tokio::test]
async fn a_network_that_swallows_everything_for_a_while_costs_no_event() {
    let db = database().await;
    let proxy = Proxy::in_front_of(db.url()).await;
    let config = Config {
        statement_timeout: Duration::from_millis(300),
        connect_timeout: Duration::from_millis(300),
        ..Config::new(proxy.url())
    };
    let seen = Recording::over(Inorder::with_config(config).await.unwrap(), db.url()).await;
    let dispatcher = seen.builder().poll_interval(Duration::from_millis(100)).build().unwrap();
    let running = dispatcher.start().await.unwrap();
    let writer = Writer::on(db.url()).await;
    for n in 0..4 {
        writer.append_many(200).await;
        match n % 2 {
            0 => proxy.black_hole(),
            _ => proxy.swallow_answers(),
        }
        writer.append_many(200).await;
        // So long does it last: longer than anything of ours waits for an answer.
        tokio::time::sleep(Duration::from_millis(400)).await;
        proxy.cut();
        proxy.heal();
    }
    eventually(LIMIT, "all are delivered", async || seen.ids().await.len() == 1_600).await;
    seen.assert_complete().await;
    running.stop().await.unwrap();
}
