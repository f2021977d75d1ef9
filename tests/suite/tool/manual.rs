//! `inorder completions` and `inorder man`.

use std::fs;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::{ended, program, run, run_with};

const NOWHERE: &str = "postgres://postgres@127.0.0.1:1/nowhere";

#[tokio::test]
async fn completions_know_every_verb_and_its_options_and_no_hidden_one() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(NOWHERE, &format!("completions {shell}")).await;
        for word in ["dead-letters", "accept-pruned", "trace", "repeat-effects", "older-than"] {
            assert!(ran.said().contains(word), "{shell}: {word}");
        }
        assert!(!ran.out.contains("verify-worker"), "{shell}");
    }
    assert_eq!(run(NOWHERE, "completions tcsh").await.code, 2);
}

/// As a shell takes them: what is typed is completed.
#[tokio::test]
async fn bash_completes_a_verb() {
    let script = run(NOWHERE, "completions bash").await.out;
    let ask = format!(
        "{script}\nCOMP_WORDS=(inorder dead-l); COMP_CWORD=1; _inorder inorder dead-l inorder; echo \"${{COMPREPLY[*]}}\"\n"
    );
    let mut bash = Command::new("bash")
        .args(["--norc", "-s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    bash.stdin.take().unwrap().write_all(ask.as_bytes()).await.unwrap();
    let ran = ended(bash).await;
    assert_eq!((ran.out.trim(), ran.err.as_str()), ("dead-letters", ""));
}

#[tokio::test]
async fn every_verb_has_a_page_of_the_manual() {
    let folder = tempfile::tempdir().unwrap();
    run_with(NOWHERE, &["man", "--to", folder.path().to_str().unwrap()]).await.said();
    let read =
        |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    for page in ["inorder.1", "inorder-status.1", "inorder-accept-pruned.1", "inorder-dead-letters-retry.1"] {
        assert!(read(page).contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(read("inorder.1").contains("Exit codes:") && !read("inorder.1").contains("verify-worker"));
    assert!(!folder.path().join("inorder-verify-worker.1").exists());
    assert_eq!(run(NOWHERE, "man").await.said(), read("inorder.1").trim_end());
    assert_eq!(
        run(NOWHERE, "man dead-letters retry").await.said(),
        read("inorder-dead-letters-retry.1").trim_end()
    );
    assert!(run(NOWHERE, "man nonsense").await.failed(2).contains("there is no verb"));
    // Without a server, and without one being named.
    let ran = ended(program().env_remove("INORDER_DATABASE_URL").arg("man").spawn().unwrap()).await;
    assert_eq!(ran.code, 0, "{ran:?}");
}
