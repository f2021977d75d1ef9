//! Delivery: every event, in order, once.

use inorder::{Append, Consumer, Dispatcher, ExpectedVersion, NewEvent, Outcome};
use serde_json::json;

use crate::support::{connect, database};

#[tokio::test]
async fn a_transactional_consumer_receives_every_event_in_order_and_its_effects_commit() {
    let db = database().await;
    let log = inorder::Inorder::connect(db.url()).await.unwrap();
    let client = connect(db.url()).await;
    client.batch_execute("CREATE TABLE seen (n serial, id bigint)").await.unwrap();
    let events: Vec<NewEvent> =
        (0..250).map(|n| NewEvent::new("counted", &json!({"n": n})).unwrap()).collect();
    let Append::Appended(ids) = log.append(ExpectedVersion::Any, &events).await.unwrap() else { panic!() };
    let dispatcher = Dispatcher::builder(&log)
        .consumer(Consumer::transactional_fn("seen", |event, tx| {
            Box::pin(async move {
                tx.execute("INSERT INTO seen (id) VALUES ($1)", &[&event.id()]).await?;
                Ok(())
            })
        }))
        .build()
        .unwrap();
    let registered = dispatcher.register().await.unwrap();
    let report = registered.drain().await.unwrap();
    assert_eq!(report["seen"].processed, 250);
    assert_eq!(report["seen"].outcome, Outcome::CaughtUp);
    let seen: Vec<i64> =
        client.query("SELECT id FROM seen ORDER BY n", &[]).await.unwrap().iter().map(|r| r.get(0)).collect();
    assert_eq!(seen, ids);
    let running = registered.start();
    let more: Vec<NewEvent> = (0..50).map(|n| NewEvent::new("counted", &json!({"n": n})).unwrap()).collect();
    let _ = log.append(ExpectedVersion::Any, &more).await.unwrap();
    crate::support::eventually(std::time::Duration::from_secs(10), "everything is seen", async || {
        client.query_one("SELECT count(*) FROM seen", &[]).await.unwrap().get::<_, i64>(0) == 300
    })
    .await;
    running.stop().await.unwrap();
    running.stop().await.unwrap();
}
