//! What operators see with the tool.

use inorder::{Consumer, Dispatcher, ExpectedVersion, Inorder, NewEvent};
use serde_json::json;

use super::operate::Dead;
use super::{LIMIT, run, run_with};
use crate::support::{database, eventually};

/// The words of a line.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// A table's lines, in words, without the titles.
fn rows(out: &str) -> Vec<Vec<&str>> {
    out.lines().skip(1).map(words).collect()
}

#[tokio::test]
async fn consumers_are_listed_as_they_are_registered_one_line_each() {
    let dead = Dead::new().await;
    let fill = "INSERT INTO inorder.consumers (name, instance, partition, kind, revision, partitions, event_types, position) \
        SELECT 'search', '', p, 'batch', 3, 4, '{order.placed,order.paid}'::text[], p FROM generate_series(0, 3) AS p \
        UNION ALL \
        SELECT 'cache', 'node-' || n, 0, 'effect', 1, 1, NULL, 0 FROM generate_series(1, 2) AS n \
        UNION ALL \
        SELECT 'cache', 'node-3', 0, 'effect', 2, 1, NULL, 0";
    dead.db.client().await.batch_execute(fill).await.unwrap();
    let listed = run(dead.url(), "consumers").await;
    let rows: Vec<Vec<&str>> = rows(listed.said())
        .into_iter()
        .map(|mut row| {
            row.remove(5);
            row
        })
        .collect();
    assert_eq!(
        rows,
        [
            words("cache effect 1 1 10 every type; 2 instances: node-1, node-2"),
            words("cache effect 2 1 10 every type; 1 instance: node-3"),
            words("picky transactional 1 1 1 every type"),
            words("search batch 3 4 10 order.placed, order.paid"),
        ]
    );
    let json = run(dead.url(), "consumers --json").await.json();
    assert_eq!(json["consumers"].as_array().unwrap().len(), 4);
    assert_eq!(json["consumers"][3]["event_types"], json!(["order.placed", "order.paid"]));
    assert_eq!(
        (&json["consumers"][0]["instances"], &json["consumers"][2]["event_types"]),
        (&json!(["node-1", "node-2"]), &json!(null))
    );
    assert!(run(database().await.url(), "consumers").await.said().starts_with("no consumer is registered"));
}

#[tokio::test]
async fn a_dead_consumer_is_shown_with_its_event_its_error_and_what_can_be_done() {
    let dead = Dead::new().await;
    let url = dead.url();
    run_with(url, &["restart", "picky", "--why", "try again", "--by", "me"]).await.said();
    assert_eq!(dead.pass().await, inorder::Outcome::Dead { at: 4 });
    let shown = run(url, "show picky").await;
    let said: Vec<String> = shown.said().lines().map(|line| words(line).join(" ")).collect();
    let has = |what: &str| assert!(said.iter().any(|line| line.contains(what)), "{what}: {said:#?}");
    has("consumer picky");
    has("registered transactional, revision 1, since ");
    has("wants every type");
    has("state dead");
    has("position 3, lag 7, ");
    has(&format!("run by pid {} on ", std::process::id()));
    has("so far 3 handled, 2 failed, 0 passed over");
    has("attempts 1 of 1");
    has(&format!("failed at event 4 (counted), {}", dead.event_ids[3]));
    has("four is too many");
    has(&format!(r#"content {{"id":4,"event_id":"{}""#, dead.event_ids[3]));
    has("what to do picky is dead: inorder restart picky, or inorder skip picky --event 4 --why …");
    has("restart by me: dead at 3 → idle at 3; try again");

    let json = run(url, "show picky --json").await.json();
    let consumer = &json["consumers"][0];
    assert_eq!((&consumer["status"], &consumer["failed_event"]["payload"]), (&json!("dead"), &json!(4)));
    assert_eq!(
        (&json["audit"][0]["action"], &json["audit"][0]["db_user"].is_string()),
        (&json!("restart"), &true)
    );
    assert!(run(url, "show nobody").await.failed(4).contains(r#"registered are "picky""#));
    run(url, "repartition picky 2").await.failed(4);
}

#[tokio::test]
async fn of_a_split_consumer_all_rows_are_shown_or_the_one_that_is_named() {
    let dead = Dead::new().await;
    run(dead.url(), "reset picky --to head --yes").await.said();
    run(dead.url(), "repartition picky 3").await.said();
    let shown = run(dead.url(), "show picky").await;
    assert_eq!(shown.said().lines().filter(|line| line.starts_with("consumer ")).count(), 3, "{shown:?}");
    let shown = run(dead.url(), "show picky/2").await;
    assert!(
        shown.said().starts_with("consumer     picky/2\n") && shown.out.contains("partition 2 of 3"),
        "{shown:?}"
    );
    assert!(!shown.out.contains("picky/1\n"), "{shown:?}");
    assert!(run(dead.url(), "show picky/7").await.failed(4).contains("its partitions are 0, 1, 2"));
}

#[tokio::test]
async fn the_processes_at_work_are_shown_with_what_they_run() {
    let db = database().await;
    let url = db.url();
    assert_eq!(run(url, "instances").await.said(), "no process runs a dispatcher");
    let log = Inorder::connect(url).await.unwrap();
    let _ = log.append(ExpectedVersion::Any, &[NewEvent::from_json("counted", "1")]).await.unwrap();
    let easy = Consumer::transactional_fn("easy", |_, _| Box::pin(async { Ok(()) }));
    let running = Dispatcher::builder(&log).consumer(easy).build().unwrap().start().await.unwrap();
    let ran = "SELECT position = 1 FROM inorder.consumers WHERE name = 'easy'";
    let client = db.client().await;
    eventually(LIMIT, "it is through", async || client.query_one(ran, &[]).await.unwrap().get(0)).await;
    let shown = run(url, "instances").await;
    let row = rows(shown.said()).remove(0);
    assert_eq!((row[1], row[2]), (std::process::id().to_string().as_str(), env!("CARGO_PKG_VERSION")));
    assert!(["awake", "sleeping"].contains(&row[3]) && row.contains(&"easy"), "{row:?}");
    let json = run(url, "instances --json").await.json();
    assert_eq!(json["instances"][0]["consumers"][0]["name"], "easy");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn what_operators_did_is_shown_newest_first_and_found_again() {
    let dead = Dead::new().await;
    let url = dead.url();
    assert_eq!(run(url, "audit").await.said(), "none");
    run_with(url, &["skip", "picky", "--event", "4", "--why", "a test\norder", "--by", "me"]).await.said();
    run_with(url, &["disable", "picky", "--by", "else"]).await.said();
    run(url, "prune --older-than 0s --yes --by else --json").await.json();
    let shown = run(url, "audit").await;
    let rows = rows(shown.said());
    let without_time = |row: &[&str]| [&row[..1], &row[3..]].concat().join(" ");
    assert!(without_time(&rows[0]).starts_with("3 else prune – "), "{shown:?}");
    assert_eq!(without_time(&rows[1]), "2 else disable picky idle at 4 → disabled at 4");
    assert_eq!(without_time(&rows[2]), "1 me skip_poison picky dead at 3 → idle at 4; a test order");
    for (arguments, ids) in [
        ("--limit 1", json!([3])),
        ("--before 3 --limit 1", json!([2])),
        ("--consumer picky", json!([2, 1])),
        ("--by me", json!([1])),
        ("--action disable", json!([2])),
    ] {
        let json = run(url, &format!("audit --json {arguments}")).await.json();
        let found: Vec<_> = json["audit"].as_array().unwrap().iter().map(|row| row["id"].clone()).collect();
        assert_eq!(json!(found), ids, "{arguments}");
    }
    assert!(run(url, "audit --consumer nobody").await.failed(4).contains("nobody"));
}
