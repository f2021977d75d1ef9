//! A row that is held for the next event.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use inorder::{Consumer, Dispatcher, Inorder};

use super::{LIMIT, NEVER, Scene, is_held, ringing_database};
use crate::support::{Recording, Writer, eventually};

/// Events that come shortly one after the other have a lane hold its row for the next one. Where none comes, the row is as it
/// was, and nobody's.
#[tokio::test]
async fn a_row_that_is_held_for_an_event_that_does_not_come_is_given_back_untouched() {
    let scene = Scene::polling_every(NEVER).await;
    scene.asleep().await;
    let (writer, client) = (scene.writer().await, scene.db.client().await);
    let version = "SELECT xmin::text || ':' || position FROM inorder.consumers";
    for n in 1..=30 {
        writer.append().await;
        scene.delivered(&(1..=n).collect::<Vec<_>>()).await;
    }
    let settled = async || client.query_one(version, &[]).await.unwrap().get::<_, String>(0);
    eventually(LIMIT, "all passes are settled", async || settled().await.ends_with(":30")).await;
    let before = settled().await;
    eventually(LIMIT, "nobody holds the row", async || !is_held(&client).await).await;
    assert_eq!(settled().await, before);
    let free = client.batch_execute("BEGIN; SELECT FROM inorder.consumers FOR UPDATE NOWAIT; ROLLBACK").await;
    free.unwrap();
    writer.append().await;
    scene.delivered(&(1..=31).collect::<Vec<_>>()).await;
    scene.stop().await;
}

/// Its action waits for that, and nothing comes after it.
#[tokio::test]
async fn an_operator_gets_a_row_that_is_held_for_an_event() {
    let scene = Scene::polling_every(NEVER).await;
    scene.asleep().await;
    let (writer, client) = (scene.writer().await, scene.db.client().await);
    let mut appended = 0;
    eventually(LIMIT, "the row is held for the next event", async || {
        writer.append().await;
        appended += 1;
        scene.delivered(&(1..=appended).collect::<Vec<_>>()).await;
        is_held(&client).await
    })
    .await;
    let admin = Inorder::connect(scene.db.url()).await.unwrap().admin();
    let consumers = admin.list().await.unwrap();
    let disabled = admin.disable(&consumers[0].name).await.unwrap();
    assert_eq!(disabled[0].after["position"], appended);
    writer.append().await;
    eventually(LIMIT, "nobody holds the row", async || !is_held(&client).await).await;
    scene.running.stop().await.unwrap();
    assert_eq!(scene.seen.ids().await, (1..=appended).collect::<Vec<_>>());
}

/// The time for which a row is kept for an event to come is not the handler's: it has all of its own to be silent in.
#[tokio::test]
async fn a_handler_that_is_silent_after_its_row_was_kept_for_its_event_has_all_of_its_time() {
    let db = ringing_database().await;
    let seen = Recording::on(db.url()).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let consumer = Consumer::transactional_fn("slow", move |event, tx| {
        let (id, calls) = (event.id(), Arc::clone(&counted));
        Box::pin(async move {
            calls.fetch_add(1, Ordering::Relaxed);
            if id == 3 {
                tokio::time::sleep(Duration::from_millis(900)).await;
            }
            tx.execute(
                "INSERT INTO public.delivered VALUES (DEFAULT, 'slow', $1, gen_random_uuid())",
                &[&id],
            )
            .await?;
            Ok(())
        })
    });
    let consumer = consumer.handler_timeout(Duration::from_millis(1_200));
    let dispatcher = Dispatcher::builder(&seen.log).consumer(consumer).poll_interval(NEVER);
    let running = dispatcher.build().unwrap().start().await.unwrap();
    let writer = Writer::on(db.url()).await;
    for event in 1..=3 {
        writer.append().await;
        let all: Vec<i64> = (1..=event).collect();
        eventually(LIMIT, "it is delivered", async || seen.ids_of("slow").await == all).await;
        tokio::time::sleep(Duration::from_millis(800)).await;
    }
    assert_eq!(calls.load(Ordering::Relaxed), 3, "each of them at its first attempt");
    running.stop().await.unwrap();
}
