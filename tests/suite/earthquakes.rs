//! A feed from outside, end to end: delivered twice at the same time and out of order, handled once.

use std::fmt::Write as _;
use std::time::Duration;

use inorder::{Config, Dispatcher, Inorder};

use super::tool::file;
use crate::support::{database, empty_database, within};

#[path = "../../examples/earthquakes/feed.rs"]
mod feed;

/// So many quakes in the form of the real feed, every tenth of them on two lines.
fn quakes(n: usize) -> String {
    let mut lines = String::new();
    for quake in (0..n).chain((0..n).step_by(10)) {
        let (mag, id) = (f64::from(u8::try_from(quake % 70).unwrap()) / 10.0, 37_868_143 + quake);
        writeln!(
            lines,
            r#"{{"type":"Feature","properties":{{"mag":{mag},"place":"{quake}km W of Castaic, CA","time":1517966773840,"felt":null,"net":"ci","code":"{id}","ids":",ci{id},","title":"M {mag} - Castaic, CA"}},"geometry":{{"type":"Point","coordinates":[-118.6671667,34.4945,26.49]}},"id":"ci{id}"}}"#
        )
        .unwrap();
    }
    lines
}

async fn deliver_and_handle(log: &Inorder, n: usize) -> feed::Handled {
    let file = file(&quakes(n));
    let quakes = feed::read(file.path()).unwrap();
    assert_eq!((quakes.len(), feed::distinct(&quakes)), (n + n.div_ceil(10), n));
    let handled = feed::Handled::default();
    let dispatcher = Dispatcher::builder(log).consumer(handled.consumer("alerts"));
    let dispatcher = dispatcher.poll_interval(Duration::from_millis(50)).build().unwrap();
    let running = dispatcher.start().await.unwrap();
    let feed::Deliveries { in_order, shuffled } = feed::deliver_twice(log, &quakes).await.unwrap();
    assert_eq!((in_order.new + shuffled.new, in_order.mismatches + shuffled.mismatches), (n, 0));
    let again = feed::deliver_in_order(log, &quakes).await.unwrap();
    assert_eq!((again.new, again.duplicates), (0, quakes.len()));
    within("handling", feed::wait_until_handled(log)).await.unwrap();
    running.stop().await.unwrap();
    handled
}

/// I-5.
#[tokio::test]
async fn a_feed_that_is_delivered_twice_at_once_and_out_of_order_is_handled_once() {
    let db = database().await;
    let log = Inorder::connect(db.url()).await.unwrap();
    let handled = deliver_and_handle(&log, 241).await;
    assert_eq!(feed::count_events(&log).await.unwrap(), 241);
    assert_eq!((handled.runs(), handled.quakes()), (241, 241));
}

#[tokio::test]
async fn messages_are_received_in_any_schema() {
    let db = empty_database().await;
    let config = Config { schema: "the \"feed's\" log".into(), ..Config::new(db.url()) };
    let log = Inorder::with_config(config).await.unwrap();
    log.migrate().await.unwrap();
    let received = log.inbound("usgs").receive("1", inorder::NewEvent::from_json("a", "1")).await.unwrap();
    assert!(received.is_new());
    let consumer = feed::Handled::default().consumer("alerts");
    Dispatcher::builder(&log).consumer(consumer).build().unwrap().register().await.unwrap();
    let mut client = log.get().await.unwrap();
    let tx = client.transaction().await.unwrap();
    let pending = log.record_pending_in(&tx, &[received.id()], "alerts").await.unwrap();
    assert_eq!(pending.consumers(), ["alerts"]);
    tx.commit().await.unwrap();
}
