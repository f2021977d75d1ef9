//! Rows that are held, the audit trail, and the doorbell.

use std::time::{Duration, Instant};

use inorder::{Config, ErrorKind, Inorder};
use serde_json::json;

use super::{LIMIT, Scene, beside, refused};
use crate::support::{Proxy, connect, eventually};

/// I-3: an action waits for the pass that holds the row, and says whose it is.
#[tokio::test]
async fn a_row_that_stays_held_is_busy_and_the_holder_is_named() {
    let scene = Scene::with(10).await;
    scene.dead("search", 4).await;
    let before = scene.row("search").await;
    let (_holder, pid) = scene.hold("search").await;
    let pid = format!("pid {pid}");
    let words = [
        "consumer \"search\" is held by",
        &pid,
        "application \"shop\"",
        "idle in transaction",
        "force",
        "IO005",
    ];
    refused(scene.admin.restart("search").await, ErrorKind::Busy, &words);
    assert_eq!(scene.row("search").await, before);
    assert_eq!(
        scene.admin.progress("search").await.unwrap()[0].holder_pid.map(|p| format!("pid {p}")),
        Some(pid)
    );
}

#[tokio::test]
async fn a_row_that_becomes_free_in_time_is_acted_on_as_it_is_then() {
    let scene = Scene::with(10).await;
    scene.dead("search", 4).await;
    let (holder, _) = scene.hold("search").await;
    let admin = scene.admin.clone();
    let restart = beside(async move { admin.restart("search").await });
    scene.somebody_waits().await;
    holder.batch_execute("UPDATE inorder.consumers SET status = 'disabled'; COMMIT").await.unwrap();
    refused(restart.await.unwrap(), ErrorKind::Precondition, &["it is disabled"]);
}

#[tokio::test]
async fn force_terminates_the_holder_and_what_it_did_is_rolled_back() {
    let scene = Scene::with(10).await;
    scene.dead("search", 4).await;
    let (holder, _) = scene.hold("search").await;
    holder.batch_execute("UPDATE inorder.consumers SET position = 9").await.unwrap();
    let changes = scene.admin.force().restart("search").await.unwrap();
    assert_eq!((&changes[0].before["position"], &changes[0].after["position"]), (&json!(4), &json!(4)));
    let gone = holder.batch_execute("COMMIT").await.unwrap_err();
    assert!(gone.is_closed() || gone.code().is_some_and(|c| c.code() == "57P01"), "{gone:?}");
}

/// A row can be locked by hand, without the advisory lock of a pass.
#[tokio::test]
async fn a_row_that_is_locked_by_hand_has_a_holder_too() {
    let scene = Scene::with(10).await;
    scene.dead("search", 4).await;
    let holder = scene.database.client().await;
    holder.batch_execute("BEGIN; SELECT FROM inorder.consumers FOR UPDATE").await.unwrap();
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    refused(scene.admin.restart("search").await, ErrorKind::Busy, &[&format!("held by pid {pid}")]);
    scene.admin.force().restart("search").await.unwrap();
}

#[tokio::test]
async fn force_leaves_alone_who_holds_other_rows() {
    let scene = Scene::with(10).await;
    scene.dead("search", 4).await;
    scene.consumer("totals", 4).await;
    let (other, _) = scene.hold("totals").await;
    let (_holder, _) = scene.hold("search").await;
    scene.admin.force().restart("search").await.unwrap();
    other.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test]
async fn one_of_two_actions_at_the_same_time_comes_too_late() {
    let scene = Scene::with(10).await;
    scene.dead("search", 4).await;
    let actions: Vec<_> = (0..8)
        .map(|_| {
            let admin = scene.admin.clone();
            beside(async move { admin.restart("search").await })
        })
        .collect();
    let mut done = 0;
    for action in actions {
        match action.await.unwrap() {
            Ok(_) => done += 1,
            refusal => refused(refusal, ErrorKind::Precondition, &["it is idle"]),
        }
    }
    assert_eq!(done, 1);
}

/// Snapshots that do not see what is committed meanwhile would act on what is no longer so.
#[tokio::test]
async fn an_action_above_read_committed_is_refused() {
    let scene = Scene::with(10).await;
    scene.dead("search", 4).await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        scene.client.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}")).await.unwrap();
        let refusal = scene.client.query("SELECT * FROM inorder.restart('search')", &[]).await.unwrap_err();
        assert_eq!(refusal.code().unwrap().code(), "IO004");
        scene.client.batch_execute("ROLLBACK").await.unwrap();
    }
}

#[tokio::test]
async fn every_action_leaves_who_what_why_before_and_after() {
    let scene = Scene::with(30).await;
    let admin = scene.admin.because("tried out");
    scene.dead("search", 4).await;
    admin.restart("search").await.unwrap();
    admin.skip_poison("search", scene.event_id(5).await).await.unwrap();
    let letter = admin.dead_letters(&inorder::DeadLetters::open()).await.unwrap()[0].id;
    admin.retry_dead_letter(letter).await.unwrap();
    admin.discard_dead_letter(letter).await.unwrap();
    admin.disable("search").await.unwrap();
    admin.enable("search").await.unwrap();
    admin.repartition("search", 2).await.unwrap();
    admin.unregister("search").await.unwrap();
    let trail = "SELECT json_agg(action ORDER BY id) FROM inorder.audit \
        WHERE by = 'ops' AND why = 'tried out' AND db_user = session_user AND consumer = 'search'";
    assert_eq!(
        scene.value(trail).await,
        json!([
            "restart",
            "skip_poison",
            "retry_dead_letter",
            "discard_dead_letter",
            "disable",
            "enable",
            "repartition",
            "repartition",
            "unregister",
            "unregister"
        ])
    );
    let broken = "SELECT json_agg(a) FROM inorder.audit AS a WHERE before IS NOT DISTINCT FROM after";
    assert_eq!(scene.value(broken).await, json!(null));
}

#[tokio::test]
async fn nobody_in_particular_is_the_user_of_the_session() {
    let scene = Scene::with(10).await;
    scene.consumer("search", 4).await;
    let changes = scene.log.admin().disable("search").await.unwrap();
    assert_eq!(json!(changes[0].by), scene.value("SELECT session_user").await);
    assert_eq!(changes[0].why, None);
}

#[tokio::test]
async fn an_action_that_fails_leaves_nothing() {
    let scene = Scene::with(10).await;
    scene.dead("search", 4).await;
    scene
        .client
        .batch_execute("ALTER TABLE inorder.audit ADD CONSTRAINT no_audit CHECK (false) NOT VALID")
        .await
        .unwrap();
    let before = scene.row("search").await;
    refused(scene.admin.restart("search").await, ErrorKind::Database, &["no_audit"]);
    refused(
        scene.admin.skip_poison("search", scene.event_id(5).await).await,
        ErrorKind::Database,
        &["no_audit"],
    );
    assert_eq!(scene.row("search").await, before);
    assert_eq!(scene.value("SELECT count(*) FROM inorder.dead_letters").await, json!(0));
}

#[tokio::test]
async fn dispatchers_are_woken_by_an_action() {
    let scene = Scene::with(10).await;
    scene.dead("search", 4).await;
    let heard = heard_on(&scene).await;
    scene.admin.restart("search").await.unwrap();
    eventually(LIMIT, "the notification has arrived", async || !heard.lock().unwrap().is_empty()).await;
    assert_eq!(*heard.lock().unwrap(), ["consumers"]);
}

type Heard = std::sync::Arc<std::sync::Mutex<Vec<String>>>;

/// What is notified on the channel of the doorbell from now on.
async fn heard_on(scene: &Scene) -> Heard {
    let heard = Heard::default();
    let (client, mut connection) =
        tokio_postgres::connect(scene.database.url(), tokio_postgres::NoTls).await.unwrap();
    let told = std::sync::Arc::clone(&heard);
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notification(note) = message {
                told.lock().unwrap().push(note.payload().to_owned());
            }
        }
    });
    let channel = scene.value("SELECT 'inorder_' || md5('inorder')").await;
    client.batch_execute(&format!("LISTEN {}", channel.as_str().unwrap())).await.unwrap();
    // The session lives as long as its client.
    tokio::spawn(async move {
        let _client = client;
        std::future::pending::<()>().await;
    });
    heard
}

#[tokio::test]
async fn an_operator_gets_an_answer_though_the_server_falls_silent() {
    let scene = Scene::with(10).await;
    scene.consumer("search", 4).await;
    let proxy = Proxy::in_front_of(scene.database.url()).await;
    let config = Config { statement_timeout: Duration::from_secs(1), ..Config::new(proxy.url()) };
    let admin = Inorder::with_config(config).await.unwrap().admin();
    admin.list().await.unwrap();
    proxy.black_hole();
    let began = Instant::now();
    refused(admin.list().await, ErrorKind::Timeout, &["listing the consumers", "no answer within 1.0 s"]);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    proxy.heal();
    assert_eq!(admin.list().await.unwrap().len(), 1, "the connection that fell silent is not used again");
}

#[tokio::test]
async fn any_schema_name_will_do() {
    let database = crate::support::empty_database().await;
    for schema in ["We ird", "user", "it's", &"x".repeat(63)] {
        let config = Config { schema: schema.into(), ..Config::new(database.url()) };
        let log = Inorder::with_config(config).await.unwrap();
        log.migrate().await.unwrap();
        let client = connect(database.url()).await;
        let quoted = format!("\"{schema}\"");
        client
            .batch_execute(&format!(
                "INSERT INTO {quoted}.events (event_type, payload) VALUES ('a', '1'), ('a', '2'); \
                 INSERT INTO {quoted}.consumers (name, kind, position) VALUES ('search', 'batch', 0)"
            ))
            .await
            .unwrap();
        let admin = log.admin();
        assert_eq!(admin.list().await.unwrap()[0].lag, 2);
        assert_eq!(admin.log_progress().await.unwrap().head, 2);
        assert!(admin.blockers().await.unwrap().is_empty());
        let event =
            client.query_one(&format!("SELECT event_id FROM {quoted}.events WHERE id = 1"), &[]).await;
        admin.skip_poison("search", event.unwrap().get(0)).await.unwrap();
        let letter = &admin.dead_letters(&inorder::DeadLetters::open()).await.unwrap()[0];
        assert_eq!(admin.dead_letter(letter.id).await.unwrap().1.unwrap().payload_json(), "1");
        admin.discard_dead_letter(letter.id).await.unwrap();
        let prune = inorder::Prune::before(time::OffsetDateTime::now_utc() + time::Duration::hours(1));
        assert_eq!(admin.prune(&prune, |_| ()).await.unwrap().deleted, 1);
        admin.repartition("search", 3).await.unwrap();
        admin.unregister("search").await.unwrap();
    }
}

/// An operator has more rights than whoever may create a function somewhere.
#[tokio::test]
async fn no_function_of_somebody_else_is_called_by_luck() {
    let scene = Scene::with(10).await;
    scene.dead("search", 4).await;
    let trap = "CREATE FUNCTION public.to_jsonb(inorder.consumers) RETURNS jsonb LANGUAGE sql AS $$ SELECT '\"trap\"'::jsonb $$";
    scene.client.batch_execute(trap).await.unwrap();
    let trapped = "SELECT to_jsonb(c) FROM inorder.consumers AS c";
    let trapped: serde_json::Value = scene.client.query_one(trapped, &[]).await.unwrap().get(0);
    assert_eq!(trapped, json!("trap"), "the trap is set");
    let changes = scene.admin.restart("search").await.unwrap();
    assert_eq!(changes[0].after["status"], json!("idle"));
}
