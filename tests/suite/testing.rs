//! A throwaway server does what it says, and leaves nothing behind.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use inorder::testing::TempPostgres;

use crate::support::{connect, eventually, process};

const LIMIT: Duration = Duration::from_secs(30);

/// What a server occupies.
struct Traces {
    folder: PathBuf,
    port: u16,
}

impl Traces {
    fn of(server: &TempPostgres) -> Traces {
        Traces { folder: server.data_dir().parent().unwrap().to_path_buf(), port: server.port() }
    }

    fn server_answers(&self) -> bool {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok()
    }

    /// The server, `initdb`, the shell that cleans up: all name the folder on their command line.
    fn processes(&self) -> Vec<String> {
        process::with_command_line(self.folder.to_str().unwrap())
    }

    async fn assert_gone(&self) {
        eventually(LIMIT, "the server has ended", async || !self.server_answers()).await;
        eventually(LIMIT, "its processes have ended", async || self.processes().is_empty()).await;
        eventually(LIMIT, "the folder is gone", async || !self.folder.exists()).await;
    }
}

async fn show(server: &TempPostgres, setting: &str) -> String {
    connect(server.url()).await.query_one(&format!("SHOW {setting}"), &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_server_starts_and_is_gone_when_dropped() {
    let server = TempPostgres::start().await.unwrap();
    let traces = Traces::of(&server);
    assert_eq!(show(&server, "server_encoding").await, "UTF8");
    assert_eq!(show(&server, "timezone").await, "UTC");
    let collation = "SELECT datcollate FROM pg_database WHERE datname = current_database()";
    let client = connect(server.url()).await;
    assert_eq!(client.query_one(collation, &[]).await.unwrap().get::<_, String>(0), "C");
    assert_eq!(show(&server, "fsync").await, "off");
    assert_eq!(show(&server, "max_connections").await, "200");
    assert!(traces.server_answers() && traces.folder.exists());

    drop(server);

    assert!(!traces.server_answers());
    assert!(!traces.folder.exists());
}

#[tokio::test]
async fn settings_reach_the_server() {
    let server = TempPostgres::builder()
        .durable()
        .max_connections(37)
        .max_prepared_transactions(5)
        .setting("wal_buffers", "16MB")
        .setting("application_name", "it's")
        .start()
        .await
        .unwrap();
    assert_eq!(show(&server, "fsync").await, "on");
    assert_eq!(show(&server, "synchronous_commit").await, "on");
    assert_eq!(show(&server, "max_wal_size").await, "4GB");
    assert_eq!(show(&server, "max_connections").await, "37");
    assert_eq!(show(&server, "max_prepared_transactions").await, "5");
    assert_eq!(show(&server, "shared_buffers").await, "512MB");
    assert_eq!(show(&server, "wal_buffers").await, "16MB", "the caller's setting wins");
    assert_eq!(show(&server, "application_name").await, "it's");
}

#[tokio::test]
async fn a_server_that_does_not_start_quotes_its_log_and_leaves_nothing() {
    let error = TempPostgres::builder().setting("no_such_setting", 1).start().await.unwrap_err();
    assert!(
        error.to_string().contains("unrecognized configuration parameter \"no_such_setting\""),
        "{error}"
    );
    assert!(!error.is_missing());
}

#[tokio::test]
async fn databases_are_created_and_copied() {
    let server = TempPostgres::start().await.unwrap();
    let template = server.create_database("a \"template\"").await.unwrap();
    connect(&template).await.batch_execute("CREATE TABLE t AS SELECT 42 AS answer").await.unwrap();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'a \"template\"'";
    let postgres = connect(server.url()).await;
    eventually(LIMIT, "nobody uses the template", async || {
        postgres.query_one(sessions, &[]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;

    let copy = server.create_database_from("copy", "a \"template\"").await.unwrap();

    assert_eq!(copy, server.url_for("copy"));
    let answer: i32 = connect(&copy).await.query_one("SELECT answer FROM t", &[]).await.unwrap().get(0);
    assert_eq!(answer, 42);
    let error = server.create_database("copy").await.unwrap_err();
    assert!(error.to_string().contains("SQLSTATE 42P04"), "{error}");
}

#[tokio::test]
async fn a_crashed_server_recovers_on_the_same_port() {
    let server = TempPostgres::builder().setting("synchronous_commit", "on").start().await.unwrap();
    let (port, pid) = (server.port(), server.pid());
    let client = connect(server.url()).await;
    client
        .batch_execute("CREATE TABLE logged (n int); CREATE UNLOGGED TABLE unlogged (n int)")
        .await
        .unwrap();
    client.batch_execute("INSERT INTO logged VALUES (1); INSERT INTO unlogged VALUES (1)").await.unwrap();

    server.crash().await.unwrap();
    assert_eq!(server.pid(), None);
    assert!(client.batch_execute("SELECT 1").await.is_err(), "sessions are cut off");
    server.start_again().await.unwrap();

    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    let count = "SELECT (SELECT count(*) FROM logged), (SELECT count(*) FROM unlogged)";
    let row = connect(server.url()).await.query_one(count, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (1, 0), "a crash empties an unlogged table");
}

#[tokio::test]
async fn a_restarted_server_keeps_everything() {
    let server = TempPostgres::start().await.unwrap();
    connect(server.url()).await.batch_execute("CREATE UNLOGGED TABLE t AS SELECT 1 AS n").await.unwrap();

    server.restart().await.unwrap();

    let count: i64 =
        connect(server.url()).await.query_one("SELECT count(*) FROM t", &[]).await.unwrap().get(0);
    assert_eq!(count, 1);
    server.start_again().await.expect("starting a server that runs does nothing");
    server.stop_fast().await.unwrap();
    server.stop_fast().await.expect("stopping a server that is stopped does nothing");
}

#[tokio::test]
async fn a_promoted_standby_lacks_what_was_committed_after_it_was_cut_off() {
    let primary = TempPostgres::start().await.unwrap();
    let client = connect(primary.url()).await;
    client.batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)").await.unwrap();
    let standby = primary.standby().await.unwrap();
    let reader = connect(standby.url()).await;
    let rows = async || match reader.query("SELECT n FROM t", &[]).await {
        Ok(rows) => rows.len(),
        Err(_) => 0,
    };
    client.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();
    eventually(LIMIT, "the standby streams", async || rows().await == 2).await;
    assert!(reader.batch_execute("INSERT INTO t VALUES (9)").await.is_err(), "a standby takes no writes");

    standby.stop_streaming().await.unwrap();
    client.batch_execute("INSERT INTO t VALUES (3)").await.unwrap();
    drop(primary);
    standby.promote().await.unwrap();

    assert_eq!(rows().await, 2);
    reader.batch_execute("INSERT INTO t VALUES (4)").await.unwrap();
}

#[tokio::test]
async fn a_start_again_while_somebody_has_the_port_fails_and_can_be_repeated() {
    let server = TempPostgres::start().await.unwrap();
    server.stop_fast().await.unwrap();
    let somebody = TcpListener::bind((Ipv4Addr::LOCALHOST, server.port())).unwrap();
    let error = server.start_again().await.unwrap_err();
    assert!(error.to_string().contains("could not bind"), "{error}");
    drop(somebody);
    server.start_again().await.unwrap();
    assert_eq!(show(&server, "port").await, server.port().to_string());
}

#[tokio::test]
async fn nothing_is_left_after_a_panic() {
    let (tell, told) = std::sync::mpsc::channel();
    let outcome = tokio::spawn(async move {
        let server = TempPostgres::start().await.unwrap();
        tell.send(Traces::of(&server)).unwrap();
        panic!("as a failing test does");
    });
    assert!(outcome.await.unwrap_err().is_panic());
    told.recv().unwrap().assert_gone().await;
}

#[tokio::test]
async fn nothing_is_left_after_the_process_was_killed() {
    let mut holder = Holder::start("wait").await;
    holder.process.kill().unwrap();
    holder.assert_gone().await;
}

#[tokio::test]
async fn nothing_is_left_after_ctrl_c() {
    let holder = Holder::start("wait").await;
    // As a terminal does: to every process of the group.
    process::signal("INT", -i64::from(holder.process.id()));
    holder.assert_gone().await;
}

#[tokio::test]
async fn nothing_is_left_after_an_exit_without_destructors() {
    let holder = Holder::start("exit").await;
    holder.assert_gone().await;
}

#[tokio::test]
async fn nothing_is_left_when_the_process_is_killed_while_it_starts_a_server() {
    let temp = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(temp.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let folders = || std::fs::read_dir(temp.path()).unwrap().count();
    let mut process = Holder::command("wait").env("TMPDIR", temp.path()).spawn().unwrap();
    eventually(LIMIT, "initdb has begun", async || {
        std::fs::read_dir(temp.path()).unwrap().any(|found| found.unwrap().path().join("data").exists())
    })
    .await;
    process.kill().unwrap();
    process.wait().unwrap();
    eventually(LIMIT, "the folder is gone", async || folders() == 0).await;
    eventually(LIMIT, "nothing runs", async || {
        process::with_command_line(temp.path().to_str().unwrap()).is_empty()
    })
    .await;
}

/// How the process that holds a server ends.
const HOLDER: &str = "INORDER_TEST_HOLDER";

/// Another process that holds a server.
struct Holder {
    process: Child,
    traces: Traces,
}

impl Holder {
    fn command(end: &str) -> Command {
        let mut command = process::this_program("suite::testing::holds_a_server");
        command.env(HOLDER, end).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    async fn start(end: &str) -> Holder {
        let mut process = Holder::command(end).spawn().unwrap();
        let stdout = process.stdout.take().unwrap();
        let traces = tokio::task::spawn_blocking(|| {
            BufReader::new(stdout).lines().map(Result::unwrap).find_map(|line| {
                let (folder, port) = line.strip_prefix("holding ")?.rsplit_once(' ')?;
                Some(Traces { folder: PathBuf::from(folder), port: port.parse().ok()? })
            })
        });
        let traces = traces.await.unwrap().expect("the other process started a server");
        Holder { process, traces }
    }

    async fn assert_gone(mut self) {
        let ended = self.process.wait().unwrap();
        assert!(!ended.success(), "{ended}");
        self.traces.assert_gone().await;
    }
}

#[tokio::test]
#[ignore = "no test: runs in a process of its own, started by other tests"]
async fn holds_a_server() {
    let Ok(end) = std::env::var(HOLDER) else { return };
    let server = TempPostgres::start().await.unwrap();
    let traces = Traces::of(&server);
    assert!(traces.server_answers());
    println!("\nholding {} {}", traces.folder.display(), traces.port);
    if end == "exit" {
        std::process::exit(7);
    }
    // Ends with the test that holds the other end, if not before.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}
