//! `inorder export`.

use std::fs;
use std::process::Stdio;

use inorder::{ExpectedVersion, Inorder, NewEvent};
use serde_json::json;
use uuid::Uuid;

use super::{LIMIT, ended, file, flights, inorder, inorder_with, interrupt, run, run_with};
use crate::support::database::Database;
use crate::support::{database, eventually};

async fn append(db: &Database, content: &str) {
    let file = file(content);
    run_with(db.url(), &["append", file.path().to_str().unwrap()]).await.said();
}

async fn with_flights(count: usize) -> Database {
    let db = database().await;
    append(&db, &flights(count)).await;
    db
}

/// Everything but what a log adds.
async fn content(db: &Database) -> String {
    let everything = "SELECT string_agg(concat_ws('|', event_id, tenant_id, stream_type, stream_id, stream_version, event_type,
        schema_version, payload, metadata, correlation_id, causation_id, created_by), E'\\n' ORDER BY id) FROM inorder.events";
    db.client().await.query_one(everything, &[]).await.unwrap().get(0)
}

fn ids(lines: &str) -> Vec<i64> {
    let id = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].as_i64().unwrap();
    lines.lines().map(id).collect()
}

#[tokio::test]
async fn what_is_exported_another_log_has_alike_and_both_know_it_already() {
    let (db, other) = (with_flights(1_234).await, database().await);
    let log = Inorder::connect(db.url()).await.unwrap();
    let named = |n: u128| Uuid::from_u128(n);
    let odd = [
        "{\n \"text\": \"zwei\\nZeilen ☃\",\r\n \"n\": 1.50\n}",
        " {\"blanks\" : \"around\"}\t",
        "{\"b\":1,  \"a\":12345678901234567890, \"b\":1e300}",
        "null",
    ];
    let odd = odd.map(|payload| {
        NewEvent::from_json("odd", payload)
            .metadata_json(if payload == "null" { "null" } else { "{\n}" })
            .in_stream("odd", 1)
            .tenant("acme")
            .schema_version(7)
            .correlation(named(1))
            .causation(named(2))
            .created_by("me")
    });
    let _ = log.append(ExpectedVersion::Any, &odd).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    let path = path.to_str().unwrap();
    let said = run_with(db.url(), &["export", path]).await;
    assert_eq!(said.said(), "1,238 events written, all above id 0 up to 1,238");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    for expected in
        ["1,238 events: 1,238 appended, 0 already there", "1,238 events: 0 appended, 1,238 already there"]
    {
        assert_eq!(run_with(other.url(), &["append", path]).await.said(), expected);
    }
    assert_eq!(content(&db).await, content(&other).await);
    assert_eq!(
        run_with(db.url(), &["append", path]).await.said(),
        "1,238 events: 0 appended, 1,238 already there"
    );
}

#[tokio::test]
async fn a_range_and_types_narrow_it_down_and_a_pipe_gets_the_lines_alone() {
    let db = with_flights(2_100).await;
    let rare = format!(r#"{{"event_id":"{}","event_type":"rare","payload":1}}"#, Uuid::from_u128(7));
    append(&db, &rare).await;
    let ran = run(db.url(), "export --after 1000 --up-to 2050").await;
    assert_eq!((ran.code, ids(&ran.out)), (0, (1_001..=2_050).collect()));
    assert_eq!(ran.err, "1,050 events written, all above id 1,000 up to 2,050\n");
    let ran = run(db.url(), "export --only rare,never -").await;
    assert_eq!((ran.code, ids(&ran.out)), (0, vec![2_101]));
    let ran = run(db.url(), "export --after 5000").await;
    assert_eq!((ran.code, ran.out.as_str()), (0, ""));
    for arguments in ["export --resume", "export --replace", "export --after -1"] {
        assert_eq!(run(db.url(), arguments).await.code, 2, "{arguments}");
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ran = ended(inorder(db.url(), "export").stdout(Stdio::from(writer)).spawn().unwrap()).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

#[tokio::test]
async fn an_interrupted_export_goes_on_behind_its_last_whole_line() {
    let db = with_flights(20_000).await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let export = async |name: &str, options: &[&str]| {
        run_with(db.url(), &[&["export", path(name).as_str()][..], options].concat()).await
    };
    export("whole", &[]).await.said();
    let whole = fs::read_to_string(path("whole")).unwrap();

    // Interrupted by a signal, whenever it comes.
    let child = inorder_with(db.url(), &["export", &path("some")]).spawn().unwrap();
    let begun = || fs::metadata(path("some.partial")).is_ok_and(|file| file.len() > 0);
    eventually(LIMIT, "it has begun", async || begun() || fs::exists(path("some")).unwrap()).await;
    interrupt(&child);
    let ran = ended(child).await;
    if ran.code == 0 {
        assert_eq!(fs::read_to_string(path("some")).unwrap(), whole, "it was faster than we");
    } else {
        assert!(ran.failed(130).contains("some.partial is kept; --resume goes on with it"), "{ran:?}");
        assert!(!fs::exists(path("some")).unwrap(), "it has its name only when it is whole");
        let part = fs::read_to_string(path("some.partial")).unwrap();
        assert!(whole.starts_with(&part) && part.ends_with('\n'));
        assert!(export("some", &[]).await.failed(2).contains("some.partial is there"));
        export("some", &["--resume"]).await.said();
        assert_eq!(fs::read_to_string(path("some")).unwrap(), whole);
    }

    // Interrupted by a crash, which tore a line.
    let torn = whole.len() / 2 + 17;
    fs::write(path("torn.partial"), &whole[..torn]).unwrap();
    let there = whole[..torn].matches('\n').count();
    let answer = export("torn", &["--resume", "--json"]).await.json();
    assert_eq!((&answer["events"], &answer["resumed"]), (&json!(20_000 - there), &json!(true)));
    assert_eq!(fs::read_to_string(path("torn")).unwrap(), whole);
    // Nothing to go on with is no reason not to begin.
    export("new", &["--resume"]).await.said();
    assert_eq!(fs::read_to_string(path("new")).unwrap(), whole);
}

#[tokio::test]
async fn what_is_there_is_not_overwritten_unless_somebody_says_so() {
    let db = with_flights(3).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    let export = async |options: &[&str]| {
        run_with(db.url(), &[&["export", path.to_str().unwrap()][..], options].concat()).await
    };
    fs::write(&path, "mine").unwrap();
    assert!(export(&[]).await.failed(2).contains("--replace"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    export(&["--replace"]).await.said();
    assert_eq!(ids(&fs::read_to_string(&path).unwrap()), [1, 2, 3]);

    let partial = folder.path().join("log.jsonl.partial");
    let other = with_flights(1).await;
    let foreign = run(other.url(), "export").await.out.replace(r#"{"id":1,"#, r#"{"id":2,"#);
    fs::write(&partial, &foreign).unwrap();
    assert!(export(&["--replace", "--resume"]).await.failed(1).contains("it is from another log"));
    assert_eq!(fs::read_to_string(&partial).unwrap(), foreign);
    fs::write(&partial, "nonsense\n").unwrap();
    assert!(export(&["--replace", "--resume"]).await.failed(1).contains("does not end with an event"));
    let held = fs::File::open(&partial).unwrap();
    held.lock().unwrap();
    assert!(export(&["--replace", "--resume"]).await.failed(1).contains("another export writes"));
}

/// I-9: nothing is missed in silence.
#[tokio::test]
async fn what_is_pruned_before_it_is_exported_fails_the_export() {
    let db = with_flights(10).await;
    let all = run(db.url(), "export").await.out;
    let five: String = all.lines().take(5).map(|line| format!("{line}\n")).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    let resume = async || {
        fs::write(folder.path().join("log.jsonl.partial"), &five).unwrap();
        run_with(db.url(), &["export", path.to_str().unwrap(), "--resume", "--replace"]).await
    };
    let prune = async |up_to: i64| {
        let prune = "SELECT inorder.prune(recorded_at) FROM inorder.events WHERE id = $1::bigint + 1";
        db.client().await.execute(prune, &[&up_to]).await.unwrap();
    };
    prune(5).await;
    resume().await.said();
    assert_eq!(fs::read_to_string(&path).unwrap(), all);
    prune(7).await;
    let ran = resume().await;
    assert!(
        ran.failed(1).contains("events above id 5, up to 7, were pruned before they were exported"),
        "{ran:?}"
    );
    let ran = run(db.url(), "export").await;
    assert_eq!((ran.code, ids(&ran.out)), (0, vec![8, 9, 10]));
    assert!(ran.err.contains("what lies up to id 7 was pruned"), "{ran:?}");
}
