//! `inorder serve`.

use std::net::SocketAddr;
use std::process::Stdio;

use inorder::testing::TempPostgres;
use tokio::process::Child;

use super::{Ran, ended, inorder_with, interrupt, program, read_until, run_with};
use crate::support::http::{Answer, ask};
use crate::support::process::signal;
use crate::support::{LIMIT, database, eventually};

const ACT: &str = "a-token-for-acting!";
const OPERATOR: (&str, &str) = ("authorization", "Bearer a-token-for-acting!");

/// Serves at a port of its own, and says so.
async fn serving(command: &mut tokio::process::Command) -> (Child, SocketAddr) {
    let mut child = command.args(["serve", "--listen", "127.0.0.1:0"]).spawn().unwrap();
    let said = read_until(&mut child, "\n").await;
    let address = said.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let address = address.unwrap_or_else(|| panic!("it says where it listens: {said}"));
    (child, address.parse().unwrap())
}

async fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
    ask(address, "GET", path, headers, "").await
}

async fn restart(address: SocketAddr, consumer: &str, headers: &[(&str, &str)]) -> u16 {
    let kind = [("content-type", "application/x-www-form-urlencoded")];
    let form = format!("consumer={consumer}");
    ask(address, "POST", "/restart", &[&kind, headers].concat(), &form).await.status.as_u16()
}

/// Started before the database, it says that it is down; when there is one it is ready; and at SIGTERM it ends well.
#[tokio::test]
async fn serve_starts_while_the_database_is_down_and_recovers() {
    let server = TempPostgres::start().await.unwrap();
    let log = inorder::Inorder::connect(server.url()).await.unwrap();
    log.migrate().await.unwrap();
    server.stop_fast().await.unwrap();
    let (child, address) = serving(program().env("INORDER_DATABASE_URL", server.url())).await;
    let up = async || get(address, "/metrics", &[]).await.sample("inorder_up");
    let ready = async || get(address, "/readyz", &[]).await.status.as_u16();
    assert_eq!((up().await, ready().await), (Some(0.0), 503));
    assert_eq!(get(address, "/healthz", &[]).await.status, 200);
    assert_eq!(get(address, "/overview", &[]).await.status, 503);
    server.start_again().await.unwrap();
    eventually(LIMIT, "it recovers", async || (up().await, ready().await) == (Some(1.0), 200)).await;
    assert_eq!(get(address, "/overview", &[]).await.status, 200);
    signal("TERM", i64::from(child.id().unwrap()));
    let ran = ended(child).await;
    assert_eq!(ran.code, 0, "{ran:?}");
}

/// Tokens come from files and variables; nobody sees them in a list of processes, in what is said, or in what is logged.
#[tokio::test]
async fn tokens_come_from_files_and_variables_and_are_told_to_nobody() {
    let db = database().await;
    let register =
        "INSERT INTO inorder.consumers (name, kind, position, status) VALUES ('dead', 'batch', 0, 'dead')";
    db.client().await.execute(register, &[]).await.unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("act");
    std::fs::write(&file, format!("{ACT}\n")).unwrap();
    let mut command = inorder_with(db.url(), &["-vv"]);
    let command =
        command.env("INORDER_READ_TOKEN", "a-token-for-reading").env("INORDER_ACT_TOKEN_FILE", &file);
    let (child, address) = serving(command).await;
    assert_eq!(get(address, "/metrics", &[]).await.status, 401);
    assert_eq!(
        get(address, "/metrics", &[("authorization", "Bearer a-token-for-reading")]).await.status,
        200
    );
    assert_eq!(restart(address, "dead", &[("authorization", "Bearer a-token-for-reading")]).await, 403);
    assert_eq!(restart(address, "dead", &[OPERATOR]).await, 303);
    assert_eq!(restart(address, "dead", &[OPERATOR]).await, 409, "it is not dead any more");
    assert_eq!(restart(address, "nobody", &[OPERATOR]).await, 404);
    interrupt(&child);
    let Ran { code, out, err } = ended(child).await;
    assert_eq!(code, 0, "{err}");
    assert!(!out.contains("a-token") && !err.contains("a-token"), "{out}{err}");
}

#[tokio::test]
async fn serve_refuses_what_would_let_strangers_in() {
    let db = database().await;
    let everywhere = run_with(db.url(), &["serve", "--listen", "0.0.0.0:0"]).await;
    assert!(everywhere.failed(2).contains("token"), "{everywhere:?}");
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("read");
    for (token, says) in [
        (Some("short"), "at least 16"),
        (Some("a token with blanks in it"), "white space"),
        (None, "No such file"),
    ] {
        token.iter().for_each(|token| std::fs::write(&file, token).unwrap());
        let path = if token.is_some() { file.clone() } else { folder.path().join("not-there") };
        let refused = run_with(db.url(), &["serve", "--read-token-file", path.to_str().unwrap()]).await;
        let said = refused.failed(2);
        assert!(said.contains(says) && said.contains(path.to_str().unwrap()), "{said}");
        assert!(!said.contains("short;") && !said.contains("blanks"), "{said}");
    }
    let mut both = program();
    both.env("INORDER_DATABASE_URL", db.url()).args(["serve", "--listen", "127.0.0.1:0"]);
    both.env("INORDER_READ_TOKEN", ACT).env("INORDER_ACT_TOKEN", ACT).stderr(Stdio::piped());
    assert!(ended(both.spawn().unwrap()).await.failed(2).contains("the same"));
}

/// What the configuration file says counts where no flag and no variable does.
#[tokio::test]
async fn serve_goes_by_the_configuration_file() {
    let db = database().await;
    let folder = tempfile::TempDir::new().unwrap();
    let (config, act) = (folder.path().join("inorder.toml"), folder.path().join("act"));
    std::fs::write(&act, ACT).unwrap();
    let said = "[serve]\nread_token = \"a-token-of-the-file\"\nact_token_file = \"act\"\nhosts = [\"ops.example.com\"]\n";
    std::fs::write(&config, said).unwrap();
    let bearer = ("authorization", "Bearer a-token-of-the-file");
    let elsewhere = ("host", "ops.example.com");

    let (child, address) = serving(inorder_with(db.url(), &[]).env("INORDER_CONFIG", &config)).await;
    assert_eq!(get(address, "/metrics", &[]).await.status, 401);
    assert_eq!(get(address, "/metrics", &[bearer, elsewhere]).await.status, 200);
    assert_eq!(get(address, "/metrics", &[OPERATOR]).await.status, 200);
    interrupt(&child);
    assert_eq!(ended(child).await.code, 0);

    let mut command = inorder_with(db.url(), &[]);
    let command = command.env("INORDER_CONFIG", &config).env("INORDER_READ_TOKEN", "a-token-for-reading");
    let (child, address) = serving(command).await;
    assert_eq!(get(address, "/metrics", &[bearer]).await.status, 401);
    interrupt(&child);
    assert_eq!(ended(child).await.code, 0);
}
