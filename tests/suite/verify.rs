//! `inorder verify` finds nothing wrong with what is right, and what is broken on purpose: the whole of I-1 to I-4, from
//! outside, with processes that are killed and frozen. A short form of it; the long one is for people.

use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::support::database::Database;
use crate::support::{empty_database, eventually, process};

const LIMIT: Duration = Duration::from_secs(30);

fn verify(database: &Database, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inorder"));
    command
        .args(["verify", "--json", "--database-url", database.url()])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs it to its end; its exit code and its report.
async fn proved(database: &Database, arguments: &[&str]) -> (Option<i32>, Value) {
    let Output { status, stdout, stderr } = verify(database, arguments).output().await.unwrap();
    let report = serde_json::from_slice(&stdout)
        .unwrap_or_else(|e| panic!("{e}: {:?}, {}", status, String::from_utf8_lossy(&stderr)));
    (status.code(), report)
}

/// The schemas that a proof made and did not drop.
async fn left_behind(database: &Database) -> Vec<String> {
    let schemas = "SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname LIKE 'inorder\\_verify\\_%'";
    let rows = database.client().await.query(schemas, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn every_guarantee_holds_while_processes_are_killed_and_frozen() {
    let database = empty_database().await;
    let (code, report) = proved(&database, &["--seconds", "8", "--writers", "6", "--processes", "3"]).await;
    for broken in ["missed", "out_of_order", "duplicated_effects", "lost_effects", "lost_commits"] {
        assert_eq!(report[broken], 0, "{report}");
    }
    assert_eq!(code, Some(0), "{report}");
    for done in ["committed", "holes", "kills", "freezes"] {
        assert!(report[done].as_u64() > Some(0), "{done}: {report}");
    }
    assert!(left_behind(&database).await.is_empty());
}

/// I-5, and nothing is idle in a transaction while such handlers run.
#[tokio::test]
async fn effects_are_run_once_while_processes_are_killed_and_frozen() {
    let database = empty_database().await;
    let (code, report) = proved(&database, &["--effects", "--seconds", "8", "--processes", "3"]).await;
    let nothing = [
        "accepted_twice",
        "started_while_claimed",
        "runs_after_done",
        "never_run",
        "unfenced_writes",
        "out_of_stream_order",
        "unfinished",
        "idle_in_transaction",
    ];
    for broken in nothing {
        assert_eq!(report[broken], 0, "{broken}: {report}");
    }
    assert_eq!(code, Some(0), "{report}");
    for done in ["events", "kills", "freezes", "looks_for_idle_in_transaction"] {
        assert!(report[done].as_u64() > Some(0), "{done}: {report}");
    }
    assert!(left_behind(&database).await.is_empty());
}

#[tokio::test]
async fn delivering_whatever_is_visible_is_found_to_lose_events() {
    let (code, report) = mutant("highest-id").await;
    assert_eq!(code, Some(1), "{report}");
    assert!(report["missed"].as_u64() > Some(0), "{report}");
}

#[tokio::test]
async fn a_position_outside_the_transaction_is_found_to_repeat_effects() {
    let (code, report) = mutant("position-outside").await;
    assert_eq!(code, Some(1), "{report}");
    assert!(report["duplicated_effects"].as_u64() > Some(0), "{report}");
}

/// Ends as soon as it is found.
async fn mutant(name: &str) -> (Option<i32>, Value) {
    let arguments = ["--seconds", "30", "--writers", "8", "--processes", "2", "--mutant", name];
    proved(&empty_database().await, &arguments).await
}

#[tokio::test]
async fn an_interrupted_proof_leaves_neither_processes_nor_a_schema_behind() {
    let database = empty_database().await;
    let mut proof =
        verify(&database, &["--seconds", "600", "--writers", "2", "--processes", "2"]).spawn().unwrap();
    let mut told = BufReader::new(proof.stderr.take().unwrap()).lines();
    let schema = loop {
        let line = told.next_line().await.unwrap().expect("it says where it runs");
        if let Some(schema) = line.strip_prefix("proving it in schema ") {
            break schema.to_owned();
        }
    };
    let client = database.client().await;
    let effects = format!("SELECT count(*) FROM {schema}.verify_effects");
    eventually(LIMIT, "effects are written", async || {
        client.query_one(&effects, &[]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;

    process::signal("INT", proof.id().unwrap().into());

    let status = tokio::time::timeout(LIMIT, proof.wait()).await.expect("it ends").unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(left_behind(&database).await.is_empty());
    eventually(LIMIT, "its processes have ended", async || process::with_command_line(&schema).is_empty())
        .await;
}

#[tokio::test]
async fn a_proof_that_cannot_be_run_says_so_and_proves_nothing() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inorder"));
    command.args(["verify", "--database-url", "postgres://nobody@127.0.0.1:1/nowhere"]);
    let output = command.output().await.unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&output.stderr).contains("127.0.0.1:1"), "{output:?}");
}
