//! `inorder demo`.

use std::path::PathBuf;
use std::process::Stdio;

use inorder::testing::Server;

use super::{LIMIT, ended, interrupt, program, read_until};
use crate::support::process::with_command_line;
use crate::support::{connect, eventually};

#[tokio::test]
async fn the_demonstration_ends_with_an_audit_that_finds_nothing() {
    // On the server that the tests were given, if they were.
    let ran =
        ended(program().args(["demo", "--seconds", "2", "--producers", "3", "--json"]).spawn().unwrap())
            .await;
    let audit = ran.json();
    assert_eq!(audit["ok"], true, "{audit}");
    assert!(audit["events"].as_i64().unwrap() > 1, "{audit}");
    let consumers = audit["consumers"].as_array().unwrap();
    assert_eq!(consumers.len(), 3);
    for consumer in consumers {
        let skipped = i64::from(consumer["name"] == "receipts");
        assert_eq!(consumer["skipped"], skipped);
        assert_eq!(consumer["delivered"], audit["events"].as_i64().unwrap() - skipped);
        assert_eq!(
            (&consumer["missed"], &consumer["out_of_order"], &consumer["too_many"]),
            (&0.into(), &0.into(), &0.into())
        );
    }
    no_database_is_left().await;
}

#[tokio::test]
async fn an_interrupted_demonstration_leaves_nothing_behind() {
    let mut child = program().args(["demo", "--seconds", "60"]).stdin(Stdio::null()).spawn().unwrap();
    // The story has begun, and everybody is at work.
    let shown = read_until(&mut child, " orders · ").await;
    let server = shown.split_once("on port ").map(|(_, rest)| rest.split_once(',').unwrap().0.to_owned());
    let folder = server.as_ref().map(|port| {
        let running = with_command_line(&format!("port={port}"));
        let postgres =
            running.iter().find(|line| line.contains(" -D ")).unwrap_or_else(|| panic!("{running:?}"));
        PathBuf::from(postgres.split_once(" -D ").unwrap().1.split_whitespace().next().unwrap())
    });

    interrupt(&child);
    let ran = ended(child).await;
    let said = ran.failed(130);
    match (server, folder) {
        (Some(port), Some(folder)) => {
            assert!(said.contains("the throwaway server is removed"), "{said}");
            eventually(LIMIT, "the server is gone", async || {
                with_command_line(&format!("port={port}")).is_empty()
            })
            .await;
            assert!(!folder.exists(), "{}", folder.display());
        }
        _ => no_database_is_left().await,
    }
}

/// On a server that was given. A throwaway one is gone as a whole.
async fn no_database_is_left() {
    let Ok(url) = std::env::var("INORDER_DATABASE_URL") else { return };
    let server = Server::Existing(url);
    let client = connect(server.url()).await;
    eventually(LIMIT, "demonstrations' databases are dropped", async || {
        let left = "SELECT count(*) FROM pg_catalog.pg_database WHERE starts_with(datname, 'inorder_demo_')";
        client.query_one(left, &[]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
}
