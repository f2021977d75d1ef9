//! `inorder trace`.

use serde_json::json;
use uuid::Uuid;

use super::{LIMIT, ended, inorder, interrupt, run};
use crate::support::database::Database;
use crate::support::{database, eventually};

/// Events that are named after their ids, a second apart, with their types and causes.
async fn related(events: &[(&str, i64)]) -> Database {
    let db = database().await;
    let client = db.client().await;
    for (n, (kind, cause)) in (1_u32..).zip(events) {
        let insert = "INSERT INTO inorder.events (event_id, event_type, payload, causation_id, correlation_id, stream_type, stream_id, \
            stream_version, created_by, recorded_at) VALUES ($1, $2, '1', $3, CASE WHEN $4::bigint < 5 THEN $5::uuid END, 'order', 'o', $4, \
            CASE $4 WHEN 3 THEN 'ada' END, timestamptz '2026-01-01' + $4 * interval '1 second')";
        let id = |n: i64| Uuid::from_u128(n.unsigned_abs().into());
        let cause = (*cause != 0).then(|| id(*cause));
        client.execute(insert, &[&id(n.into()), kind, &cause, &i64::from(n), &id(99)]).await.unwrap();
    }
    db
}

#[tokio::test]
async fn what_led_to_an_event_and_followed_from_it_is_drawn_as_a_tree() {
    let db = related(&[("placed", 0), ("paid", 1), ("sent", 2), ("told", 1), ("other", 0)]).await;
    let tree = "1  placed  order/o  2026-01-01 00:00:01\n\
        ├─ 2  paid  order/o  +1.000s  ◀\n\
        │  └─ 3  sent  order/o  +2.000s  by ada\n\
        └─ 4  told  order/o  +3.000s\n\
        all of its correlation: inorder trace 00000000-0000-0000-0000-000000000063";
    assert_eq!(run(db.url(), "trace 2").await.said(), tree);
    assert_eq!(run(db.url(), &format!("trace {}", Uuid::from_u128(2))).await.said(), tree);
    let of_correlation = run(db.url(), &format!("trace {}", Uuid::from_u128(99))).await;
    assert_eq!(of_correlation.said().lines().count(), 4, "{of_correlation:?}");
    assert!(run(db.url(), "trace 2 --limit 2").await.said().contains("only the first 2 events are shown"));
    assert!(run(db.url(), "trace 17").await.failed(4).contains("no such event"));
    let nobody = run(db.url(), &format!("trace {}", Uuid::from_u128(17))).await;
    assert!(nobody.failed(4).contains("no event has that"), "{nobody:?}");
    assert_eq!(run(db.url(), "trace order.placed").await.code, 2);
}

#[tokio::test]
async fn as_json_it_is_nested() {
    let mut events = vec![("first", 0)];
    events.extend((1..50).map(|cause| ("next", cause)));
    events.push(("beside", 1));
    let trace = run(related(&events).await.url(), "trace 25 --json").await.json();
    let sum = ["events", "cut", "start", "missing_causes"].map(|field| trace[field].clone());
    assert_eq!(sum, [json!(51), json!(false), json!(Uuid::from_u128(25)), json!([])]);
    let root = &trace["trees"][0];
    assert_eq!((&root["id"], &root["caused"][1]["event_type"]), (&json!(1), &json!("beside")));
    let (mut event, mut depth) = (root, 1);
    while let Some(next) = event["caused"].get(0) {
        (event, depth) = (next, depth + 1);
        assert_eq!(event["id"], depth);
    }
    assert_eq!(depth, 50);
}

#[tokio::test]
async fn a_tree_of_any_depth_is_drawn_and_nested() {
    let mut events = vec![("first", 0)];
    events.extend((1..500).map(|cause| ("next", cause)));
    let db = related(&events).await;
    let drawn = run(db.url(), "trace 250").await;
    assert!(
        drawn.said().contains("└─ 499 deep: 500  next")
            && drawn.out.lines().all(|line| line.chars().count() < 110)
    );
    let nested = run(db.url(), "trace 250 --json").await;
    assert!(nested.said().ends_with(&("]}".repeat(500) + "]}")), "{nested:?}");
    assert_eq!(nested.out.matches(r#""caused":["#).count(), 500);
}

#[tokio::test]
async fn circles_and_causes_that_are_not_there_are_said() {
    let db = related(&[("a", 2), ("b", 1), ("c", 3), ("d", 77), ("e", 4)]).await;
    let first = |out: &str| out.lines().next().unwrap_or_default().split_once("  (").unwrap().1.to_owned();
    let missing = "caused by 00000000-0000-0000-0000-00000000004d, which is not in the log)";
    assert_eq!(first(run(db.url(), "trace 5").await.said()), missing);
    assert_eq!(first(run(db.url(), "trace 3").await.said()), "caused by itself)");
    let circle = run(db.url(), "trace 2").await;
    assert_eq!(
        first(circle.said()),
        "caused by 00000000-0000-0000-0000-000000000002, which followed from it)"
    );
    assert_eq!(circle.out.lines().filter(|line| line.contains("order/o")).count(), 2, "{circle:?}");
}

#[tokio::test]
async fn a_search_that_is_interrupted_shows_what_it_found() {
    let db = related(&[("a", 0), ("b", 1)]).await;
    let client = db.client().await;
    let fill = "INSERT INTO inorder.events (event_type, payload, causation_id) \
        SELECT 'other', '1', gen_random_uuid() FROM generate_series(1, 250000)";
    client.batch_execute(fill).await.unwrap();
    let child = inorder(db.url(), "trace 1").spawn().unwrap();
    let searches = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
        AND query LIKE '-- inorder admin/trace_forward%')";
    eventually(LIMIT, "it searches", async || client.query_one(searches, &[]).await.unwrap().get(0)).await;
    interrupt(&child);
    let ran = ended(child).await;
    if ran.code == 0 {
        // It was faster than we.
        assert!(ran.err.is_empty());
    } else {
        let said = ran.failed(130);
        assert!(
            said.starts_with("inorder: interrupted; searched up to id ") && said.ends_with(" of 250,002"),
            "{said}"
        );
    }
    assert!(ran.out.starts_with("1  a  order/o"), "{ran:?}");
}
