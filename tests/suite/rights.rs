//! Who may do what: each kind of role does its work, and is refused what is not its own.

use std::time::Duration;

use futures_util::FutureExt as _;
use inorder::uuid::Uuid;
use inorder::{
    AuditRows, Claim, Config, Consumer, DeadLetters, ErrorKind, Failure, HandoffRows, Inorder, LedgerRows,
    Offer, Prune, Reset, Start,
};
use time::OffsetDateTime;

use super::tool::inorder;
use crate::support::{LIMIT, Role, Runs, Stage, database, dispatcher, eventually};

fn every_kind(runs: &Runs) -> [Consumer; 6] {
    [
        Consumer::transactional_fn("one", |_, tx| {
            async { tx.execute("SELECT 1", &[]).await.map(drop).map_err(Failure::from) }.boxed()
        }),
        Consumer::transactional_fn("skipper", |event, _| {
            let second = event.id() == 2;
            async move { if second { Err(Failure::from("no")) } else { Ok(()) } }.boxed()
        })
        .skip_errors(),
        Consumer::batch_fn("many", |_, _| async { Ok(()) }.boxed()),
        Consumer::effect_fn("effect", |_, _| async { Ok(()) }.boxed()),
        runs.consumer("queue"),
        Consumer::batch_fn("here", |_, _| async { Ok(()) }.boxed()).per_instance(),
    ]
}

/// A role with the rights of a consumer runs consumers of every kind, standing ledgers and hand-offs.
#[tokio::test]
async fn a_consumer_does_what_dispatchers_ledgers_and_hand_offs_do() {
    let stage = Stage::with_events(3).await;
    let role = Role::of("consumer", &stage.database).await;
    let (log, runs) = (role.log().await, Runs::default());
    log.migrate().await.unwrap();
    let running = dispatcher(&log, every_kind(&runs)).instance("i").build().unwrap().start().await.unwrap();
    let behind = "SELECT count(*) FROM inorder.consumers WHERE position < 3";
    eventually(LIMIT, "every consumer is at the head", || async {
        stage.client.query_one(behind, &[]).await.unwrap().get::<_, i64>(0) == 0 && runs.count() == 3
    })
    .await;
    let [letter] = &stage.log.admin().dead_letters(&DeadLetters::open()).await.unwrap()[..] else {
        panic!("one was skipped")
    };
    stage.log.admin().retry_dead_letter(letter.id).await.unwrap();
    eventually(LIMIT, "the retry failed again", || async {
        let (letter, _) = stage.log.admin().dead_letter(letter.id).await.unwrap();
        letter.attempts == 2
    })
    .await;
    running.stop().await.unwrap();

    let key = Uuid::now_v7();
    let Claim::Acquired(claim) = log.ledger().claim(key, "by hand").await.unwrap() else {
        panic!("nobody has it")
    };
    assert!(claim.extend().await.unwrap());
    assert!(claim.complete().await.unwrap());
    let Claim::Acquired(claim) = log.ledger().claim(Uuid::now_v7(), "by hand").await.unwrap() else {
        panic!("nobody has it")
    };
    assert!(claim.fail(Duration::ZERO, "no").await.unwrap());
    assert_eq!(log.admin().ledger_prune(Duration::from_secs(86_400)).await.unwrap(), 0);

    let handoff = log.handoff("mail").build().unwrap();
    assert_eq!(handoff.open(key).unwrap(), Offer::Open);
    assert!(handoff.take_direct(key).await.unwrap());
    handoff.ran_directly(key).await.unwrap();
    handoff.run_once().await.unwrap();
    log.admin().handoff_prune(None, None).await.unwrap();
    drop((log, handoff));
    role.drop().await;
}

#[tokio::test]
async fn a_consumer_may_do_nothing_else() {
    let stage = Stage::with_events(1).await;
    let role = Role::of("consumer", &stage.database).await;
    role.may_not(&[
        "INSERT INTO inorder.events (event_type, payload) VALUES ('x', '1')",
        "SELECT inorder.append('x', '1')",
        "UPDATE inorder.events SET event_type = 'y'",
        "DELETE FROM inorder.events",
        "TRUNCATE inorder.events",
        "SELECT nextval('inorder.events_id_seq')",
        "SELECT setval('inorder.events_id_seq', 1)",
        "DELETE FROM inorder.consumers",
        "DELETE FROM inorder.dead_letters",
        "SELECT * FROM inorder.audit",
        "UPDATE inorder.audit SET by = 'somebody'",
        "DELETE FROM inorder.audit",
        "DELETE FROM inorder.ledger_floors",
        "UPDATE inorder.log_state SET pruned_to = 1",
        "UPDATE inorder.log_state SET pruning = pg_current_xact_id()",
        "DELETE FROM inorder.migrations",
        "SELECT setval('inorder.doorbell', 1)",
        "CREATE TABLE inorder.mine ()",
        "ALTER TABLE inorder.events DISABLE TRIGGER ALL",
        "SELECT inorder.restart('x')",
        "SELECT inorder.skip_poison('x', gen_random_uuid())",
        "SELECT inorder.reset('x', 0)",
        "SELECT inorder.prune(now())",
        "SELECT inorder.ledger_forget(gen_random_uuid(), 'x')",
        "SELECT inorder.grant_admin(current_user)",
    ])
    .await;
    role.drop().await;
}

#[tokio::test]
async fn a_monitor_sees_how_everything_stands() {
    let stage = Stage::with_events(3).await;
    stage.register(every_kind(&Runs::default()).into_iter().take(5)).await.run_once().await.unwrap();
    let role = Role::of("monitor", &stage.database).await;
    let log = role.log().await;
    log.check_schema().await.unwrap();
    let admin = log.admin();
    assert_eq!(admin.list().await.unwrap().len(), 5);
    assert_eq!(admin.progress("one").await.unwrap()[0].position, 3);
    assert_eq!(admin.log_progress().await.unwrap().head, 3);
    assert!(admin.blockers().await.unwrap().is_empty());
    assert_eq!(admin.instances().await.unwrap().len(), 1);
    assert!(admin.audit(&AuditRows::any()).await.unwrap().is_empty());
    assert_eq!(admin.dead_letters(&DeadLetters::open()).await.unwrap().len(), 1);
    assert_eq!(admin.ledger_rows(&LedgerRows::any()).await.unwrap().len(), 6);
    let nobodys = admin.ledger_rows(&LedgerRows::any().key(Uuid::nil()).of("mail")).await.unwrap_err();
    assert_eq!(nobodys.kind(), ErrorKind::NotRegistered, "{nobodys:?}");
    assert!(admin.handoff_rows(&HandoffRows::unfinished()).await.unwrap().is_empty());
    let nobodys = admin.handoff_rows(&HandoffRows::any().key(Uuid::nil())).await.unwrap_err();
    assert_eq!(nobodys.kind(), ErrorKind::NotRegistered, "{nobodys:?}");
    drop((admin, log));
    role.drop().await;
}

#[tokio::test]
async fn a_monitor_may_do_nothing_else() {
    let stage = Stage::with_events(1).await;
    let role = Role::of("monitor", &stage.database).await;
    role.may_not(&[
        "SELECT payload FROM inorder.events",
        "SELECT metadata FROM inorder.events",
        "SELECT * FROM inorder.events",
        "SELECT epoch FROM inorder.instances",
        "INSERT INTO inorder.events (event_type, payload) VALUES ('x', '1')",
        "SELECT inorder.append('x', '1')",
        "DELETE FROM inorder.events",
        "UPDATE inorder.consumers SET position = 0",
        "INSERT INTO inorder.consumers (name, kind, position) VALUES ('x', 'batch', 0)",
        "UPDATE inorder.dead_letters SET state = 'discarded'",
        "UPDATE inorder.ledger SET status = 'done', lease_until = NULL",
        "INSERT INTO inorder.ledger (event_id, handler, status) VALUES (gen_random_uuid(), 'x', 'done')",
        "DELETE FROM inorder.handoffs",
        "INSERT INTO inorder.audit (by, action) VALUES ('me', 'x')",
        "SELECT nextval('inorder.fencing')",
        "SELECT nextval('inorder.events_id_seq')",
        "SELECT inorder.restart('x')",
        "SELECT inorder.disable('x')",
        "SELECT inorder.retry_dead_letter(1)",
        "SELECT inorder.ledger_release(gen_random_uuid(), 'x')",
        "SELECT inorder.prune(now(), dry_run => true)",
        "SELECT inorder.ledger_prune(interval '30 days')",
        "SELECT inorder.handoff_prune()",
        "SELECT inorder.handoff_forget('mail', gen_random_uuid())",
        "CREATE TABLE inorder.mine ()",
    ])
    .await;
    role.drop().await;
}

#[tokio::test]
async fn an_admin_sees_and_acts_and_the_audit_says_so() {
    let stage = Stage::with_events(3).await;
    let fails = || Consumer::transactional_fn("fails", |_, _| async { Err(Failure::reject("no")) }.boxed());
    stage.register([fails(), Runs::default().consumer("queue")]).await.run_once().await.unwrap();
    let role = Role::of("admin", &stage.database).await;
    let log = role.log().await;
    let admin = log.admin().by("ops").because("trying");
    let first = "SELECT event_id FROM inorder.events WHERE id = 1";
    let failed: Uuid = stage.client.query_one(first, &[]).await.unwrap().get(0);
    admin.restart("fails").await.unwrap();
    stage.register([fails()]).await.run_once().await.unwrap();
    admin.skip_poison("fails", failed).await.unwrap();
    admin.disable("fails").await.unwrap();
    admin.reset("fails", Reset::to(Start::Beginning)).await.unwrap();
    admin.enable("fails").await.unwrap();
    let [letter] = &admin.dead_letters(&DeadLetters::open()).await.unwrap()[..] else {
        panic!("one was skipped")
    };
    let (_, event) = admin.dead_letter(letter.id).await.unwrap();
    assert_eq!(event.expect("it is in the log").event_id(), failed);
    admin.retry_dead_letter(letter.id).await.unwrap();
    admin.discard_dead_letter(letter.id).await.unwrap();
    admin.ledger_forget(failed, "queue").await.unwrap();
    assert!(stage.log.handoff("mail").build().unwrap().take_direct(failed).await.unwrap());
    admin.force().handoff_forget("mail", failed).await.unwrap();
    assert_eq!(admin.handoffs_forget(&HandoffRows::any()).await.unwrap().forgotten, 0);
    assert_eq!(admin.handoff_prune(None, None).await.unwrap(), 0);
    admin.repartition("fails", 2).await.unwrap();
    admin.unregister("fails").await.unwrap();
    assert_eq!(admin.prune(&Prune::before(OffsetDateTime::now_utc()), |_| {}).await.unwrap().deleted, 3);
    let audit =
        "SELECT string_agg(action, ' ' ORDER BY id) FROM inorder.audit WHERE by = 'ops' AND why = 'trying'";
    assert_eq!(
        stage.client.query_one(audit, &[]).await.unwrap().get::<_, &str>(0),
        "restart skip_poison disable reset enable retry_dead_letter discard_dead_letter ledger_forget handoff_forget repartition repartition unregister unregister prune"
    );
    drop((admin, log));
    role.drop().await;
}

/// What an operator does goes through the functions, which leave a trace.
#[tokio::test]
async fn an_admin_changes_nothing_by_hand() {
    let stage = Stage::with_events(1).await;
    let role = Role::of("admin", &stage.database).await;
    role.may_not(&[
        "INSERT INTO inorder.events (event_type, payload) VALUES ('x', '1')",
        "SELECT inorder.append('x', '1')",
        "UPDATE inorder.events SET payload = '2'",
        "DELETE FROM inorder.events",
        "TRUNCATE inorder.events",
        "UPDATE inorder.consumers SET position = 7",
        "DELETE FROM inorder.consumers",
        "UPDATE inorder.dead_letters SET state = 'discarded'",
        "DELETE FROM inorder.ledger",
        "UPDATE inorder.log_state SET pruning = pg_current_xact_id()",
        "INSERT INTO inorder.audit (by, action) VALUES ('somebody else', 'restart')",
        "UPDATE inorder.audit SET by = 'somebody else'",
        "DELETE FROM inorder.audit",
        "SELECT epoch FROM inorder.instances",
        "UPDATE inorder.migrations SET checksum = ''",
        "SELECT setval('inorder.events_id_seq', 1)",
        "CREATE TABLE inorder.mine ()",
    ])
    .await;
    role.drop().await;
}

/// A function that acts, and was forgotten, would let nobody act who has no right on the tables.
#[tokio::test]
async fn every_action_runs_with_the_owners_rights_and_is_not_for_everybody() {
    let stage = Stage::with_events(0).await;
    let actions =
        "SELECT p.oid::regprocedure::text, p.prosecdef, has_function_privilege('public', p.oid, 'EXECUTE')
        FROM pg_proc AS p
        WHERE p.pronamespace = 'inorder'::regnamespace
            AND p.proname NOT LIKE 'admin\\_%'
            AND p.prosrc ~ '\\madmin_(record|settle_letters|hold)\\M'
        ORDER BY 1";
    let actions = stage.client.query(actions, &[]).await.unwrap();
    assert!(actions.len() >= 15, "{}", actions.len());
    for row in actions {
        assert!(
            row.get::<_, bool>(1) && !row.get::<_, bool>(2),
            "{}: add it to admin_actions()",
            row.get::<_, &str>(0)
        );
    }
}

#[tokio::test]
async fn the_four_roles_are_named_after_the_schema_and_keep_up_with_it() {
    let stage = Stage::with_events(0).await;
    let schema = format!("s{}", fastrand::u64(..));
    let log = Inorder::with_config(Config { schema: schema.clone(), ..Config::new(stage.database.url()) })
        .await
        .unwrap();
    log.migrate().await.unwrap();
    let roles = async || {
        let select = format!("SELECT role, is_there, array_to_string(lacking, '; ') FROM {schema}.roles()");
        let rows = stage.client.query(&select, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect::<Vec<(String, bool, String)>>()
    };
    let named = |is_there: bool| {
        ["producer", "consumer", "monitor", "admin"]
            .map(|kind| (format!("{schema}_{kind}"), is_there, String::new()))
    };
    assert_eq!(roles().await, named(false));
    let create = format!("SELECT {schema}.create_roles()");
    stage.client.batch_execute(&create).await.unwrap();
    assert_eq!(roles().await, named(true));
    // A log of the same name in another database of the cluster, which granted them nothing.
    let elsewhere = database().await;
    let config = Config { schema: schema.clone(), ..Config::new(elsewhere.url()) };
    let other = Inorder::with_config(config).await.unwrap();
    other.migrate().await.unwrap();
    assert!(other.admin().roles().await.unwrap().iter().all(|role| !role.is_there));
    let granted = format!("SELECT has_schema_privilege('{schema}_admin', '{schema}', 'USAGE')");
    assert!(!elsewhere.client().await.query_one(&granted, &[]).await.unwrap().get::<_, bool>(0));
    drop(other);
    // As after an upgrade to a version that asks for more.
    let upgrade = format!(
        "REVOKE SELECT ON {schema}.consumers FROM {schema}_monitor; REVOKE EXECUTE ON FUNCTION {schema}.restart FROM {schema}_admin;
        UPDATE {schema}.migrations SET checksum = 'another' WHERE version = 0"
    );
    stage.client.batch_execute(&upgrade).await.unwrap();
    let lacking = roles().await;
    assert_eq!(lacking[2].2, format!("SELECT on table {schema}.consumers"));
    assert!(lacking[3].2.starts_with(&format!("EXECUTE on function {schema}.restart(")), "{}", lacking[3].2);
    assert!(log.migrate().await.unwrap().functions_replaced);
    assert_eq!(roles().await, named(true));
    for (role, ..) in named(true) {
        stage.client.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
    }
}

/// The tool says what is there, and makes what is missing.
#[tokio::test]
async fn the_tool_creates_the_roles_and_says_who_has_them() {
    let stage = Stage::with_events(0).await;
    let schema = format!("s{}", fastrand::u64(..));
    let tool = async |arguments: &str| {
        let arguments = format!("--json --schema {schema} {arguments}");
        let output = inorder(stage.database.url(), &arguments).output().await.unwrap();
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    tool("migrate").await;
    assert_eq!(tool("roles").await["roles"][3]["is_there"], false);
    let made = tool("roles create").await;
    assert_eq!(made["created"].as_array().unwrap().len(), 4);
    let me: &str =
        &stage.client.query_one("SELECT session_user::text", &[]).await.unwrap().get::<_, String>(0);
    stage.client.batch_execute(&format!("GRANT {schema}_admin TO \"{me}\"")).await.unwrap();
    let shown = tool("roles").await;
    assert_eq!(shown["created"], serde_json::json!([]));
    assert_eq!(
        shown["roles"][3],
        serde_json::json!({
            "kind": "admin", "role": format!("{schema}_admin"), "is_there": true, "lacking": [], "members": [me]
        })
    );
    for kind in ["producer", "consumer", "monitor", "admin"] {
        let drop = format!("DROP OWNED BY {schema}_{kind}; DROP ROLE {schema}_{kind}");
        stage.client.batch_execute(&drop).await.unwrap();
    }
}

#[tokio::test]
async fn nobody_but_the_owner_grants() {
    let stage = Stage::with_events(0).await;
    let role = Role::of("admin", &stage.database).await;
    role.may_not(&[
        "SELECT inorder.grant_admin(current_user)",
        "SELECT inorder.grant_monitor(current_user)",
        "SELECT inorder.create_roles()",
        "SELECT inorder.admin_secure_actions()",
    ])
    .await;
    let error = role.log().await.admin().force().restart("nobody").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotRegistered, "{error:?}");
    role.drop().await;
}
