//! What goes wrong in practice is found, each by its name and with what to do; a healthy log is left in peace.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use inorder::testing::TempPostgres;
use inorder::{Consumer, Doctor, Finding, Inorder, Severity};
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio_postgres::Client;

use super::tool::inorder;
use crate::support::database::fill_template;
use crate::support::{Database, LIMIT, Role, Runs, Stage, Writer, dispatcher, eventually};

/// As for production, but that it allows prepared transactions.
async fn healthy_server() -> &'static TempPostgres {
    static SERVER: OnceCell<TempPostgres> = OnceCell::const_new();
    SERVER
        .get_or_init(async || {
            let server = TempPostgres::builder().durable().max_prepared_transactions(10).start().await;
            let server = server.unwrap_or_else(|e| panic!("{e:?}"));
            fill_template(&server.create_database("template").await.unwrap()).await;
            server
        })
        .await
}

/// With that many events.
async fn healthy(events: usize) -> Stage {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let name = format!("patient_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let url = healthy_server().await.create_database_from(&name, "template").await.unwrap();
    Stage::on(Database::of(url), events).await
}

fn impatient() -> Doctor {
    Doctor::default().patience(Duration::ZERO)
}

async fn findings(log: &Inorder, doctor: &Doctor) -> Vec<Finding> {
    log.admin().doctor(doctor).await.unwrap_or_else(|e| panic!("{e:?}"))
}

/// The one thing that is wrong, and what is said of it.
async fn the_finding(stage: &Stage, doctor: &Doctor) -> (String, Severity, String) {
    match &findings(&stage.log, doctor).await[..] {
        [one] => (one.looked_for.clone(), one.severity, format!("{}; {}", one.finding, one.advice)),
        other => panic!("not one thing is wrong: {other:#?}"),
    }
}

/// Asserts that this alone is found, and that it is said with these words.
async fn assert_found(stage: &Stage, looked_for: &str, severity: Severity, words: &[&str]) {
    let (found, how_bad, said) = the_finding(stage, &impatient()).await;
    assert_eq!((found.as_str(), how_bad), (looked_for, severity), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
}

async fn run(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
}

fn consumer(name: &str) -> Consumer {
    Consumer::transactional_fn(name, |_, _| Box::pin(async { Ok(()) }))
}

/// Also while events come and consumers of every kind are at work.
#[tokio::test]
async fn a_healthy_log_is_left_in_peace() {
    let stage = healthy(0).await;
    assert_eq!(findings(&stage.log, &impatient()).await, []);
    let runs = Runs::default();
    let effect = Consumer::effect_fn("effect", |_, _| Box::pin(async { Ok(()) }));
    let running = dispatcher(&stage.log, [consumer("one"), runs.consumer("queue"), effect]).build().unwrap();
    let running = running.start().await.unwrap();
    for _ in 0..5 {
        stage.append(100).await;
        assert_eq!(findings(&stage.log, &Doctor::default()).await, []);
    }
    eventually(LIMIT, "everybody is at the head", || async {
        stage.log.admin().list().await.unwrap().iter().all(|c| c.position == 500)
    })
    .await;
    running.stop().await.unwrap();
    assert_eq!(findings(&stage.log, &Doctor::default()).await, []);
}

#[tokio::test]
async fn a_sequence_that_hands_out_ids_late_is_found() {
    let stage = healthy(1).await;
    run(&stage.client, "ALTER SEQUENCE inorder.events_id_seq CACHE 20").await;
    assert_found(
        &stage,
        "safe head",
        Severity::Error,
        &["has CACHE 20", "ALTER SEQUENCE inorder.events_id_seq CACHE 1"],
    )
    .await;
}

#[tokio::test]
async fn a_position_beyond_the_log_is_found() {
    let stage = healthy(1).await;
    run(&stage.client, "INSERT INTO inorder.consumers (name, kind, position) VALUES ('one', 'batch', 7)")
        .await;
    assert_found(&stage, "safe head", Severity::Error, &["'one' is at 7", "reset the consumer"]).await;
}

#[tokio::test]
async fn a_trigger_that_is_missing_or_disabled_is_found() {
    let stage = healthy(1).await;
    run(&stage.client, "ALTER TABLE inorder.events DISABLE TRIGGER events_append_only").await;
    let advice = "ALTER TABLE inorder.events ENABLE ALWAYS TRIGGER events_append_only";
    assert_found(&stage, "triggers", Severity::Error, &["is disabled", advice]).await;
    run(&stage.client, advice).await;
    run(&stage.client, "DROP TRIGGER events_ring ON inorder.events").await;
    assert_found(
        &stage,
        "triggers",
        Severity::Error,
        &["events_ring of inorder.events is missing", "inorder migrate"],
    )
    .await;
    run(&stage.client, "DELETE FROM inorder.migrations WHERE version = 0").await;
    stage.log.migrate().await.unwrap();
    assert_eq!(findings(&stage.log, &impatient()).await, []);
}

#[tokio::test]
async fn a_transaction_that_holds_a_hole_is_found() {
    let stage = healthy(0).await;
    let writer = Writer::in_transaction(stage.database.url()).await;
    writer.append().await;
    stage.append(3).await;
    assert_found(
        &stage,
        "holes",
        Severity::Error,
        &["stands at 0, 4 below the head", "idle in transaction", "pg_terminate_backend("],
    )
    .await;
    assert_eq!(findings(&stage.log, &Doctor::default()).await, [], "it is young");
}

#[tokio::test]
async fn a_prepared_transaction_that_was_left_behind_is_found() {
    let stage = healthy(0).await;
    let prepare =
        "CREATE TABLE t (n int); BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'left''behind'";
    run(&stage.client, prepare).await;
    assert_found(&stage, "prepared transactions", Severity::Warning, &["ROLLBACK PREPARED 'left''behind'"])
        .await;
    run(&stage.client, "ROLLBACK PREPARED 'left''behind'").await;
}

#[tokio::test]
async fn an_old_snapshot_is_found() {
    let stage = healthy(0).await;
    let other = stage.database.client().await;
    run(&other, "SET application_name = 'report'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
    assert_found(
        &stage,
        "old snapshots",
        Severity::Warning,
        &["application \"report\", idle in transaction"],
    )
    .await;
}

#[tokio::test]
async fn a_table_that_is_not_vacuumed_and_dead_rows_are_found() {
    let stage = healthy(0).await;
    run(&stage.client, "ALTER TABLE inorder.consumers SET (autovacuum_enabled = false)").await;
    assert_found(
        &stage,
        "vacuum",
        Severity::Warning,
        &["ALTER TABLE inorder.consumers RESET (autovacuum_enabled)"],
    )
    .await;
    run(
        &stage.client,
        "INSERT INTO inorder.ledger (event_id, handler, status) SELECT gen_random_uuid(), 'x', 'done' FROM generate_series(1, 11000);
        ALTER TABLE inorder.ledger SET (autovacuum_enabled = false);
        DELETE FROM inorder.ledger; ALTER TABLE inorder.consumers RESET (autovacuum_enabled)",
    )
    .await;
    eventually(LIMIT, "the dead rows are counted", || async {
        let found = findings(&stage.log, &impatient()).await;
        found
            .iter()
            .any(|f| f.looked_for == "bloat" && f.finding.starts_with("inorder.ledger has 11000 dead rows"))
    })
    .await;
}

/// A listener that reads nothing keeps everybody's notifications.
#[tokio::test]
async fn a_queue_of_notifications_that_fills_up_is_found() {
    let stage = healthy(0).await;
    let listener = stage.database.client().await;
    run(&listener, "SET application_name = 'deaf'; LISTEN elsewhere").await;
    run(&listener, "BEGIN; SELECT 1").await;
    run(
        &stage.client,
        "SELECT pg_notify('elsewhere', repeat('x', 7000) || g) FROM generate_series(1, 1000) AS g",
    )
    .await;
    let said = eventually_found(&stage, &Doctor::default().notifications(0.000_1), "notifications").await;
    assert!(said.contains("% full") && said.contains("application \"deaf\""), "{said}");
    assert_eq!(findings(&stage.log, &Doctor::default()).await, [], "there is room");
}

/// What takes a moment to show.
async fn eventually_found(stage: &Stage, doctor: &Doctor, looked_for: &str) -> String {
    let mut said = String::new();
    eventually(LIMIT, looked_for, async || {
        let found = findings(&stage.log, doctor).await;
        said = found.iter().map(|f| format!("{}: {}; {}", f.looked_for, f.finding, f.advice)).collect();
        found.iter().any(|f| f.looked_for == looked_for) && said.contains("deaf")
    })
    .await;
    said
}

#[tokio::test]
async fn a_producer_with_a_wrong_clock_or_zone_is_found() {
    let stage = healthy(3).await;
    let insert = "INSERT INTO inorder.events (event_type, payload, recorded_at) VALUES ('x', '1', now() + interval '2 hours')";
    run(&stage.client, insert).await;
    assert_found(&stage, "times", Severity::Warning, &["event 4 (x)", "wrong clock or zone"]).await;
}

#[tokio::test]
async fn consumers_that_are_dead_disabled_or_run_by_nobody_are_found() {
    let stage = healthy(3).await;
    let fails = Consumer::transactional_fn("fails", |_, _| Box::pin(async { Err("no such card".into()) }));
    stage.register([fails.max_attempts(1)]).await.drain().await.unwrap();
    assert_found(
        &stage,
        "consumers",
        Severity::Error,
        &["dead at event 1 (counted): no such card", "inorder skip fails --event 1 --why"],
    )
    .await;
    stage.log.admin().unregister("fails").await.unwrap();

    drop(stage.register([consumer("one")]).await);
    assert_found(
        &stage,
        "consumers",
        Severity::Warning,
        &["\"one\" is 3 events behind and nobody has run it"],
    )
    .await;
    assert_eq!(findings(&stage.log, &Doctor::default()).await, [], "it may just be starting");
    stage.log.admin().disable("one").await.unwrap();
    assert_found(
        &stage,
        "consumers",
        Severity::Warning,
        &["is disabled, 3 events behind", "inorder enable one"],
    )
    .await;
}

#[tokio::test]
async fn open_dead_letters_are_found() {
    let stage = healthy(3).await;
    let skips = Consumer::transactional_fn("skips", |_, _| Box::pin(async { Err("no".into()) }));
    stage.register([skips.skip_errors()]).await.drain().await.unwrap();
    assert_found(
        &stage,
        "dead letters",
        Severity::Warning,
        &["3 of consumer \"skips\" are open", "inorder dead-letters list"],
    )
    .await;
}

#[tokio::test]
async fn due_rows_and_hand_offs_that_nobody_takes_are_found() {
    let stage = healthy(1).await;
    let insert = "INSERT INTO inorder.ledger (event_id, handler, status) VALUES (gen_random_uuid(), 'mail', 'pending')";
    run(&stage.client, insert).await;
    assert_found(&stage, "ledger", Severity::Warning, &["1 rows of \"mail\" have been due"]).await;
    run(&stage.client, "DELETE FROM inorder.ledger").await;
    let insert =
        "INSERT INTO inorder.handoffs (scope, key, taken_by) VALUES ('mail', gen_random_uuid(), 'direct')";
    run(&stage.client, insert).await;
    assert_found(&stage, "hand-offs", Severity::Warning, &["1 events of scope \"mail\"", "inorder handoffs"])
        .await;
}

#[tokio::test]
async fn processes_of_different_versions_are_found() {
    let stage = healthy(0).await;
    let insert = "INSERT INTO inorder.instances (id, epoch, host, pid, version)
        SELECT gen_random_uuid(), gen_random_uuid(), 'here', 1, v FROM unnest('{0.1.0,0.2.0}'::text[]) AS v";
    run(&stage.client, insert).await;
    assert_found(&stage, "versions", Severity::Warning, &["1 of 0.1.0, 1 of 0.2.0"]).await;
    run(
        &stage.client,
        "DELETE FROM inorder.instances; UPDATE inorder.migrations SET library = '99.0.0' WHERE version = 0",
    )
    .await;
    assert_found(&stage, "versions", Severity::Warning, &["come from inorder 99.0.0"]).await;
}

#[tokio::test]
async fn a_role_that_lacks_a_right_and_one_that_sees_too_little_are_found() {
    let stage = healthy(0).await;
    let role = Role::of("monitor", &stage.database).await;
    let log = role.log().await;
    let found = findings(&log, &impatient()).await;
    assert!(found.len() == 1 && found[0].looked_for == "hidden sessions", "{found:#?}");
    assert!(found[0].advice.contains("GRANT pg_read_all_stats TO"), "{found:#?}");
    drop(log);
    role.drop().await;
    // Roles are the server's: those of this schema name are nobody else's on this server.
    run(
        &stage.client,
        "SELECT inorder.create_roles(); REVOKE SELECT ON inorder.ledger FROM inorder_consumer",
    )
    .await;
    let (found, _, said) = the_finding(&stage, &impatient()).await;
    run(&stage.client, "DROP OWNED BY inorder_producer, inorder_consumer, inorder_monitor, inorder_admin; DROP ROLE inorder_producer, inorder_consumer, inorder_monitor, inorder_admin").await;
    assert_eq!(found, "roles");
    assert!(said.contains("role inorder_consumer lacks SELECT on table inorder.ledger"), "{said}");
}

#[tokio::test]
async fn a_server_that_may_lose_commits_is_found() {
    let stage = healthy(0).await;
    let alter = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$";
    run(&stage.client, alter).await;
    let log = Inorder::connect(stage.database.url()).await.unwrap();
    let found = findings(&log, &impatient()).await;
    assert!(found.len() == 1 && found[0].looked_for == "durability", "{found:#?}");
    assert!(found[0].advice.contains("ALTER SYSTEM SET synchronous_commit = on"), "{found:#?}");
}

#[tokio::test]
async fn the_tool_says_what_hurts_and_what_to_do_and_tells_it_by_its_exit_code() {
    let stage = healthy(3).await;
    let doctor = async |arguments: &str| {
        let output = inorder(stage.database.url(), &format!("doctor {arguments}")).output().await.unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(doctor("").await, (0, "all is well\n".into()));
    drop(stage.register([consumer("one")]).await);
    let (code, said) = doctor("--patience 0").await;
    assert!(
        code == 0 && said.starts_with("warning  consumers: consumer \"one\" is 3 events behind"),
        "{code}: {said}"
    );
    assert_eq!(doctor("--patience 0 --strict").await.0, 1);
    run(&stage.client, "ALTER SEQUENCE inorder.events_id_seq CACHE 20").await;
    let (code, said) = doctor("--json").await;
    let answer: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (code, &answer["healthy"], &answer["findings"][0]["looked_for"]),
        (1, &Value::Bool(false), &Value::from("safe head"))
    );
}
