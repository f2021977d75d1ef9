//! `inorder append`.

use std::process::Stdio;

use tokio::io::AsyncWriteExt;

use super::{LIMIT, ended, file, flights, inorder, interrupt, run, run_with};
use crate::support::database::Database;
use crate::support::{database, eventually};

/// Appends a file.
async fn append(db: &Database, content: &str, options: &[&str]) -> super::Ran {
    let file = file(content);
    let mut arguments = vec!["append", file.path().to_str().unwrap()];
    arguments.extend(options);
    run_with(db.url(), &arguments).await
}

async fn count(db: &Database) -> i64 {
    db.client().await.query_one("SELECT count(*) FROM inorder.events", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_file_is_appended_once_however_often_it_is_run() {
    let db = database().await;
    let flights = flights(1_234);
    assert_eq!(append(&db, &flights, &[]).await.said(), "1,234 events: 1,234 appended, 0 already there");
    assert_eq!(append(&db, &flights, &[]).await.said(), "1,234 events: 0 appended, 1,234 already there");

    let answer = append(&db, &super::flights(1_240), &["--json"]).await.json();
    assert_eq!(
        answer,
        serde_json::json!({"events": 1_240, "appended": 6, "already_there": 1_234, "bad_lines": 0, "last_line": 1_240})
    );
}

#[tokio::test]
async fn events_are_in_the_log_in_the_order_of_the_lines_byte_for_byte() {
    let db = database().await;
    let flights = flights(600);
    append(&db, &flights, &[]).await.said();
    let rows =
        db.client().await.query("SELECT payload::text, stream_id FROM inorder.events ORDER BY id", &[]).await;
    let stored: Vec<(String, String)> = rows.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(stored.len(), 600);
    for (line, (payload, stream_id)) in flights.lines().zip(&stored) {
        assert!(
            line.ends_with(&format!(r#""stream_id":"{stream_id}","payload":{payload}}}"#)),
            "{line} {payload}"
        );
    }
}

#[tokio::test]
async fn every_field_of_a_line_arrives() {
    let db = database().await;
    let line = r#"{"event_id":"00000000-0000-4000-8000-000000000001","event_type":"t","payload":null,"metadata":{"b": 1,"a":2},"tenant_id":"acme","schema_version":3,"correlation_id":"00000000-0000-4000-8000-000000000002","causation_id":"00000000-0000-4000-8000-000000000003","created_by":"me"}"#;
    append(&db, line, &[]).await.said();
    let row = db
        .client()
        .await
        .query_one(
            "SELECT concat_ws('|', event_id, event_type, payload, metadata, tenant_id, schema_version, correlation_id,
                causation_id, created_by) FROM inorder.events",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        row.get::<_, String>(0),
        r#"00000000-0000-4000-8000-000000000001|t|null|{"b": 1,"a":2}|acme|3|00000000-0000-4000-8000-000000000002|00000000-0000-4000-8000-000000000003|me"#
    );
}

#[tokio::test]
async fn a_bad_line_is_named_by_its_number_and_nothing_behind_it_is_appended() {
    let flights = flights(700);
    let lines: Vec<&str> = flights.lines().collect();
    let known = lines[9].replace("flight.landed", "flight.lost");
    let bad = [
        ("nonsense", "expected"),
        (r#"{"event_id":"00000000-0000-4000-8000-000000000001","payload":1}"#, "missing field `event_type`"),
        (
            r#"{"event_id":"00000000-0000-4000-8000-000000000001","event_type":"t","payload":"\u0000"}"#,
            "U+0000",
        ),
        (r#"{"event_id":"00000000-0000-4000-8000-000000000001","event_type":"","payload":1}"#, "event_type"),
        (known.as_str(), "in the log already, as event 10, with other content"),
    ];
    for (line, why) in bad {
        let db = database().await;
        let mut with_bad = lines.clone();
        with_bad.insert(620, line);
        let ran = append(&db, &with_bad.join("\n"), &[]).await;
        let said = ran.failed(1);
        assert!(
            said.contains("line 621 of ") && said.contains(why) && said.contains("up to line 620"),
            "{said}"
        );
        assert_eq!(ran.out, "620 events: 620 appended, 0 already there, 1 bad line\n");
        assert_eq!(count(&db).await, 620);
    }
}

#[tokio::test]
async fn bad_lines_can_be_passed_over_and_each_is_told() {
    let db = database().await;
    let flights = flights(30);
    let mut lines: Vec<&str> = flights.lines().collect();
    lines.insert(3, "nonsense");
    lines.insert(
        20,
        r#"{"event_id":"00000000-0000-4000-8000-000000000001","event_type":"t","payload":"\ud800"}"#,
    );
    let ran = append(&db, &lines.join("\n"), &["--skip-bad"]).await;
    assert_eq!((ran.code, ran.out.as_str()), (0, "30 events: 30 appended, 0 already there, 2 bad lines\n"));
    let told: Vec<&str> = ran.err.lines().collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("line 4 of ") && told[1].contains("line 21 of "), "{told:?}");
    assert_eq!(count(&db).await, 30);
}

/// Without a key nobody can tell a second run from new events, so that somebody has to say which it is.
#[tokio::test]
async fn lines_without_an_event_id_are_refused_derived_or_new_as_one_says() {
    let db = database().await;
    let lines = "{\"event_type\":\"t\",\"payload\":1}\n".repeat(3);
    assert!(append(&db, &lines, &[]).await.failed(1).contains("--ids derive or --ids new"));
    for _ in 0..2 {
        append(&db, &lines, &["--ids", "derive"]).await.said();
    }
    assert_eq!(count(&db).await, 3);
    append(&db, &lines, &["--ids", "new"]).await.said();
    assert_eq!(count(&db).await, 6);
}

/// A pipe is not waited for while something that came out of it is not appended yet.
#[tokio::test]
async fn what_comes_through_a_pipe_is_appended_as_it_comes_and_ctrl_c_loses_nothing() {
    let db = database().await;
    let flights = flights(10);
    let mut child = inorder(db.url(), "append").stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(flights.as_bytes()).await.unwrap();
    eventually(LIMIT, "the lines are in the log", async || count(&db).await == 10).await;

    interrupt(&child);
    let ran = ended(child).await;
    assert!(ran.failed(130).contains("up to line 10"), "{ran:?}");
    assert_eq!(ran.out, "10 events: 10 appended, 0 already there\n");
    drop(pipe);
}

/// Whenever it comes: what was told is in the log, in order, and the next run does the rest.
#[tokio::test]
async fn an_append_that_is_interrupted_is_finished_by_the_next_run() {
    let db = database().await;
    let flights = file(&flights(20_000));
    let path = flights.path().to_str().unwrap();
    let child = super::inorder_with(db.url(), &["append", path, "--json"]).spawn().unwrap();
    eventually(LIMIT, "something is in the log", async || count(&db).await > 0).await;
    interrupt(&child);
    let ran = ended(child).await;
    let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    if ran.code == 0 {
        assert_eq!(told["appended"], 20_000, "it was faster than we");
    } else {
        ran.failed(130);
    }
    assert_eq!(told["appended"], count(&db).await);

    let answer = run(db.url(), &format!("append {path} --json")).await.json();
    assert_eq!(answer["already_there"], told["appended"]);
    assert_eq!(answer["events"], 20_000);
    let client = db.client().await;
    let streams = "SELECT count(*) FROM (SELECT stream_version - row_number() OVER (PARTITION BY stream_id ORDER BY id) AS gap
        FROM inorder.events) AS v WHERE gap <> 0";
    assert_eq!(client.query_one(streams, &[]).await.unwrap().get::<_, i64>(0), 0);
}
