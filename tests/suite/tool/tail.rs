//! `inorder tail`.

use std::process::Stdio;

use inorder::{ExpectedVersion, Inorder, NewEvent};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

use super::{LIMIT, ended, file, flights, inorder, interrupt, read_until, run, run_with};
use crate::support::database::Database;
use crate::support::{connect, database};

/// A log with so many flights.
async fn with_flights(count: usize) -> Database {
    let db = database().await;
    let file = file(&flights(count));
    run_with(db.url(), &["append", file.path().to_str().unwrap()]).await.said();
    db
}

fn ids(out: &str) -> Vec<i64> {
    out.lines().map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect()
}

#[tokio::test]
async fn the_last_events_are_shown_in_order_also_of_rare_types() {
    let db = with_flights(2_500).await;
    let log = Inorder::connect(db.url()).await.unwrap();
    for n in 0..3 {
        let events = ["rare", "often"].map(|kind| NewEvent::from_json(kind, n.to_string()));
        let _ = log.append(ExpectedVersion::Any, &events).await.unwrap();
    }
    let last = run(db.url(), "tail -n 4").await;
    assert_eq!(ids(last.said()), [2_503, 2_504, 2_505, 2_506]);
    assert_eq!(ids(run(db.url(), "tail -n 2 --only rare").await.said()), [2_503, 2_505]);
    assert_eq!(ids(run(db.url(), "tail -n 5 --only rare,never").await.said()), [2_501, 2_503, 2_505]);
    assert_eq!(ids(run(db.url(), "tail --after 2504").await.said()), [2_505, 2_506]);
    assert_eq!(run(db.url(), "tail --after 9999").await.said(), "");
}

#[tokio::test]
async fn what_tail_prints_as_json_another_log_takes_as_it_is() {
    let (db, other) = (with_flights(1_100).await, database().await);
    let log = Inorder::connect(db.url()).await.unwrap();
    let odd = NewEvent::from_json("odd", "{\n \"text\": \"zwei\\nZeilen ☃\",\n \"n\": 1.50\n}")
        .tenant("acme")
        .created_by("me");
    let _ = log.append(ExpectedVersion::Any, &[odd]).await.unwrap();
    let all = run(db.url(), "tail --after 0 --json").await;
    let copy = file(all.said());
    assert_eq!(
        run_with(other.url(), &["append", copy.path().to_str().unwrap()]).await.said(),
        "1,101 events: 1,101 appended, 0 already there"
    );
    let everything = "SELECT string_agg(concat_ws('|', event_id, tenant_id, stream_type, stream_id, stream_version, event_type,
        schema_version, translate(payload::text, E'\\n', ' '), metadata, correlation_id, causation_id, created_by), E'\\n'
        ORDER BY id) FROM inorder.events";
    let dump = async |db: &Database| -> String {
        db.client().await.query_one(everything, &[]).await.unwrap().get(0)
    };
    assert_eq!(dump(&db).await, dump(&other).await);
}

/// I-2: what is shown is never followed by an event with a lower id.
#[tokio::test]
async fn a_tail_that_follows_never_passes_an_open_writer_and_ctrl_c_ends_it_well() {
    let db = with_flights(3).await;
    let mut child = inorder(db.url(), "tail --follow -n 1").spawn().unwrap();
    assert_eq!(ids(&read_until(&mut child, "\n").await), [3]);

    let writer = connect(db.url()).await;
    writer.batch_execute("BEGIN; SELECT inorder.append('late', '1')").await.unwrap();
    let log = Inorder::connect(db.url()).await.unwrap();
    let _ = log.append(ExpectedVersion::Any, &[NewEvent::from_json("early", "2")]).await.unwrap();
    // It says why it waits.
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    let told = tokio::time::timeout(LIMIT, errors.next_line()).await.expect("it says why").unwrap().unwrap();
    assert!(told.contains("waiting at the safe head 3: hole at 4 held for"), "{told}");
    writer.batch_execute("COMMIT").await.unwrap();
    assert_eq!(ids(&read_until(&mut child, "early").await), [4, 5]);

    interrupt(&child);
    let ran = ended(child).await;
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{ran:?}");
    let left = db.client().await.query_one("SELECT count(*) FROM inorder.instances", &[]).await.unwrap();
    assert_eq!(left.get::<_, i64>(0), 0);
}

#[tokio::test]
async fn from_the_head_only_what_is_new_is_shown() {
    let db = with_flights(3).await;
    let mut child = inorder(db.url(), "tail -f --from-head --only new --json").spawn().unwrap();
    let log = Inorder::connect(db.url()).await.unwrap();
    // Until it has found the head, an event may be an old one.
    let appending = async {
        loop {
            let events = ["old", "new"].map(|kind| NewEvent::from_json(kind, "1"));
            let _ = log.append(ExpectedVersion::Any, &events).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let first = tokio::select! {
        first = read_until(&mut child, "\n") => first,
        () = appending => unreachable!("it goes on"),
    };
    for line in first.lines() {
        assert!(line.contains(r#""event_type":"new""#), "{line}");
    }
    interrupt(&child);
    assert_eq!(ended(child).await.code, 0);
}

#[tokio::test]
async fn a_reader_that_has_seen_enough_is_no_error() {
    let db = with_flights(3_000).await;
    let mut child = inorder(db.url(), "tail --after 0").spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 10]).await.unwrap();
    drop(out);
    let ran = ended(child).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
}

#[tokio::test]
async fn a_reader_that_was_never_there_is_no_error() {
    let db = with_flights(1).await;
    for arguments in ["tail", "status", "migrate", "blockers --json"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ran = ended(inorder(db.url(), arguments).stdout(Stdio::from(writer)).spawn().unwrap()).await;
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{arguments}: {ran:?}");
    }
}
