//! `inorder handoffs`.

use inorder::{Delivery, ExpectedVersion, NewEvent};
use serde_json::json;

use super::{run, run_with};
use crate::support::database;

#[tokio::test]
async fn hand_offs_are_shown_forgotten_and_pruned() {
    let database = database().await;
    let url = database.url();
    let log = inorder::Inorder::connect(url).await.unwrap();
    let events = [1, 2, 3].map(|n| NewEvent::new("order.placed", &json!({ "n": n })).unwrap());
    let _ = log.append(ExpectedVersion::Any, &events).await.unwrap();
    let [unfinished, ran, delivered] = {
        let mut events = log.read(0, 3).await.unwrap();
        [events.remove(0), events.remove(0), events.remove(0)].map(|event| event.event_id())
    };
    let mail = log.handoff("mail").build().unwrap();
    for key in [unfinished, ran] {
        assert!(mail.take_direct(key).await.unwrap());
    }
    mail.ran_directly(ran).await.unwrap();
    assert_eq!(mail.delivering(delivered).await.unwrap(), Delivery::Deliver);

    let listed = run(url, "handoffs list").await;
    let lines: Vec<&str> = listed.said().lines().collect();
    assert_eq!(lines.len(), 2, "{}", listed.out);
    assert!(lines[0].starts_with("SCOPE") && lines[0].contains("STATE"), "{}", listed.out);
    assert!(lines[1].contains("unfinished") && lines[1].ends_with("(order.placed)"), "{}", listed.out);
    assert_eq!(run(url, "handoffs list --older-than 1h").await.said(), "none");
    assert_eq!(run(url, "handoffs list --scope push --state any").await.said(), "none");
    let all = run(url, "handoffs list --state any --json").await.json();
    assert_eq!(all["handoffs"].as_array().unwrap().len(), 3);
    let behind = format!("handoffs list --state any --scope mail --after {unfinished} --limit 1 --json");
    assert_eq!(run(url, &behind).await.json()["handoffs"][0]["event_id"], ran.to_string());
    let shown = run(url, "handoffs show 2 mail --json").await.json();
    assert_eq!(
        (&shown["handoffs"][0]["state"], &shown["handoffs"][0]["position"]),
        (&"ran_directly".into(), &2.into())
    );
    assert!(run(url, &format!("handoffs show {ran}")).await.said().contains("run at "));
    assert!(run(url, "handoffs show 3 push").await.failed(4).contains("no hand-off of"));
    assert!(run(url, "handoffs show three").await.failed(2).contains("names no event"));

    for wrong in ["handoffs forget", "handoffs forget 1", "handoffs forget 1 mail --scope mail --yes"] {
        assert_eq!(run(url, wrong).await.code, 2, "{wrong}");
    }
    assert!(run(url, "handoffs forget 1 mail --yes").await.failed(4).contains("with force"));
    assert!(run(url, "handoffs forget 1 mail --force").await.failed(2).contains("nobody runs it any more"));
    assert!(run(url, "handoffs forget 2 mail").await.failed(2).contains("run a second time"));
    assert!(run(url, "handoffs forget 3 mail").await.failed(2).contains("runs it a second time"));
    assert_eq!(
        run(url, "handoffs forget 2 mail --yes").await.said(),
        format!("mail, {ran}: ran directly → forgotten")
    );
    let forgotten = run_with(url, &["handoffs", "forget", "1", "mail", "--force", "--yes", "--json"]).await;
    assert_eq!(forgotten.json()["changes"][0]["action"], "handoff_forget");
    assert!(run(url, "handoffs forget --all").await.failed(2).contains("may then be run again"));
    assert_eq!(run(url, "handoffs forget --scope mail --yes").await.said(), "1 hand-off forgotten");
    assert_eq!(run(url, "handoffs forget --all --yes").await.said(), "none");
    assert_eq!(run(url, "handoffs prune").await.said(), "0 rows deleted");
    assert!(run(url, "handoffs prune --older-than 1d").await.failed(2).contains("may then be run again"));
    assert!(run(url, "handoffs prune --older-than 1m --yes").await.failed(4).contains("an hour"));
    assert_eq!(run(url, "handoffs prune --older-than 1d --yes --json").await.json()["deleted"], 0);
}
