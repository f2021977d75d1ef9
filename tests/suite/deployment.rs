//! What docs/deployment says about backups, moving and the service.

use std::process::{Command, Stdio};

use inorder::{Append, ExpectedVersion, Inorder, LedgerRows, LedgerStatus, NewEvent};

use crate::support::{Database, Runs, Stage, dispatcher, empty_database};

/// Runs one of PostgreSQL's own programs.
fn postgres(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// `pg_dump from | psql into`.
async fn dump_and_restore(from: &str, into: &str) {
    let (from, into) = (from.to_owned(), into.to_owned());
    let piped = move || {
        let dump = postgres("pg_dump").args(["--no-owner", "--dbname", &from]).stdout(Stdio::piped()).spawn();
        let mut dump =
            dump.unwrap_or_else(|e| panic!("pg_dump, of PostgreSQL's client programs, is needed: {e}"));
        let restore = Command::new("psql")
            .args(["-qX", "-v", "ON_ERROR_STOP=1", "--dbname", &into])
            .stdin(dump.stdout.take().unwrap())
            .stdout(Stdio::null())
            .output()
            .unwrap_or_else(|e| panic!("psql, of PostgreSQL's client programs, is needed: {e}"));
        let dump = dump.wait_with_output().unwrap();
        let said = [dump.stderr, restore.stderr].concat();
        assert!(dump.status.success() && restore.status.success(), "{}", String::from_utf8_lossy(&said));
    };
    tokio::task::spawn_blocking(piped).await.unwrap();
}

async fn append(log: &Inorder) -> i64 {
    match log.append(ExpectedVersion::Any, &[NewEvent::from_json("counted", "{}")]).await.unwrap() {
        Append::Appended(ids) => ids[0],
        other => panic!("{other:?}"),
    }
}

/// I-1, I-5: log, positions and ledger are of one moment.
#[tokio::test]
async fn a_dump_that_is_restored_elsewhere_goes_on_where_it_stood() {
    let stage = Stage::with_events(5).await;
    let runs = Runs::default();
    stage.register([runs.consumer("mail")]).await.drain().await.unwrap();
    let waiting = stage.append(2).await;
    let restored = empty_database().await;
    dump_and_restore(stage.database.url(), restored.url()).await;

    let log = Inorder::connect(restored.url()).await.unwrap();
    log.check_schema().await.unwrap();
    assert!(!log.migrate().await.unwrap().is_changed());
    let again = Runs::default();
    let registered = dispatcher(&log, [again.consumer("mail")]).build().unwrap().register().await.unwrap();
    let appended = append(&log).await;
    assert_eq!(appended, waiting[1] + 1, "ids go on where they stood");
    registered.drain().await.unwrap();
    let mut ids = again.ids();
    ids.sort_unstable();
    assert_eq!(ids, [waiting[0], waiting[1], appended]);
    let done = log.admin().ledger_rows(&LedgerRows::any().status(LedgerStatus::Done)).await.unwrap();
    assert_eq!(done.len(), 8);
    refuses_changes(&restored).await;
}

async fn refuses_changes(database: &Database) {
    let client = database.client().await;
    let error = client.batch_execute("DELETE FROM inorder.events").await.unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("append"), "{error:?}");
}

/// The unit and the image begin the program with arguments that it takes.
#[test]
fn unit_and_image_name_a_program_that_is_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/deployment");
    let unit = std::fs::read_to_string(root.join("inorder-serve.service")).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/inorder ")).unwrap();
    // `--help` after them: they are parsed, and nothing is run.
    let output =
        Command::new(env!("CARGO_BIN_EXE_inorder")).args(start.split(' ')).arg("--help").output().unwrap();
    assert!(output.status.success(), "{start}: {}", String::from_utf8_lossy(&output.stderr));
    let image = std::fs::read_to_string(root.join("Containerfile")).unwrap();
    assert!(image.contains("--features cli") && image.contains("ENTRYPOINT [\"inorder\"]"), "{image}");
}
