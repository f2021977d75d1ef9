//! Seeing how consumers stand and who blocks the log.

use inorder::testing::TempPostgres;
use inorder::{ConsumerStatus, Inorder};

use super::Scene;
use crate::support::connect;

#[tokio::test]
async fn the_list_says_how_each_row_stands_those_farthest_behind_first() {
    let scene = Scene::with(10).await;
    scene.consumer("up-to-date", 10).await;
    scene.consumer("waiting", 8).await;
    scene.set("waiting", "attempts = 1, next_attempt_at = clock_timestamp() + interval '1 hour'").await;
    scene.dead("dead", 4).await;
    scene.consumer("disabled", 2).await;
    scene.set("disabled", "status = 'disabled'").await;
    scene.consumer("expired", 0).await;
    scene.set("expired", "status = 'expired'").await;
    let list = scene.admin.list().await.unwrap();
    let seen: Vec<_> = list.iter().map(|p| (p.name.as_str(), p.status, p.lag)).collect();
    assert_eq!(
        seen,
        [
            ("expired", ConsumerStatus::Expired, 10),
            ("disabled", ConsumerStatus::Disabled, 8),
            ("dead", ConsumerStatus::Dead, 6),
            ("waiting", ConsumerStatus::Waiting, 2),
            ("up-to-date", ConsumerStatus::Idle, 0),
        ]
    );
    assert!(list[..4].iter().all(|p| p.lag_seconds > 0.0) && list[4].lag_seconds == 0.0, "{list:?}");
    let dead = &list[2];
    assert_eq!((dead.failed_position, dead.failed_event_type.as_deref()), (Some(5), Some("b")));
    assert_eq!(
        (dead.attempts, dead.max_attempts, dead.last_error.as_deref()),
        (10, 10, Some("no such card"))
    );
    assert_eq!(scene.client.query("SELECT * FROM inorder.list_consumers()", &[]).await.unwrap().len(), 5);
}

/// Recorded an hour apart: the age is that of the first event that is not dealt with.
#[tokio::test]
async fn the_lag_in_seconds_is_the_age_of_the_oldest_unread_event() {
    let scene = Scene::with(10).await;
    scene.consumer("search", 6).await;
    let seconds = scene.admin.progress("search").await.unwrap()[0].lag_seconds;
    let age =
        "SELECT extract(epoch FROM clock_timestamp() - recorded_at)::float8 FROM inorder.events WHERE id = 7";
    let age = scene.value(age).await.as_f64().unwrap();
    assert!((age - seconds).abs() < 60.0, "{seconds} is not {age}");
}

#[tokio::test]
async fn an_empty_log_has_no_lag() {
    let scene = Scene::with(0).await;
    scene.consumer("search", 0).await;
    let progress = &scene.admin.list().await.unwrap()[0];
    assert_eq!((progress.lag, progress.lag_seconds), (0, 0.0));
    let log = scene.admin.log_progress().await.unwrap();
    assert_eq!((log.head, log.safe_head, log.hole, log.writers), (0, 0, None, 0));
}

#[tokio::test]
async fn who_holds_a_hole_open_is_named() {
    let scene = Scene::with(4).await;
    let writer = scene.database.client().await;
    writer.batch_execute("SET application_name = 'checkout'; BEGIN").await.unwrap();
    writer
        .batch_execute("INSERT INTO inorder.events (event_type, payload) VALUES ('late', '1')")
        .await
        .unwrap();
    scene.append(1).await;
    let log = scene.admin.log_progress().await.unwrap();
    assert_eq!((log.head, log.safe_head, log.hole, log.writers), (6, 4, Some(5), 1));
    let blockers = scene.admin.blockers().await.unwrap();
    let [blocker] = &blockers[..] else { panic!("{blockers:?}") };
    let pid: i32 = writer.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    assert_eq!((blocker.pid, blocker.application.as_deref()), (Some(pid), Some("checkout")));
    assert_eq!((blocker.state.as_str(), blocker.consumer.as_deref()), ("idle in transaction", None));
    assert!(blocker.age_seconds.is_some_and(|age| age >= 0.0) && blocker.since.is_some());
    writer.batch_execute("COMMIT").await.unwrap();
    assert!(scene.admin.blockers().await.unwrap().is_empty());
    assert_eq!(scene.admin.log_progress().await.unwrap().hole, None);
}

#[tokio::test]
async fn a_pass_that_holds_a_hole_open_is_named_by_consumer_and_event() {
    let scene = Scene::with(10).await;
    scene.consumer("search", 6).await;
    scene.set("search", "event_types = '{b}'").await;
    let (pass, pid) = scene.hold("search").await;
    pass.batch_execute("INSERT INTO inorder.events (event_type, payload) VALUES ('follow-up', '1')")
        .await
        .unwrap();
    let blockers = scene.admin.blockers().await.unwrap();
    let [blocker] = &blockers[..] else { panic!("{blockers:?}") };
    assert_eq!((blocker.pid, blocker.consumer.as_deref()), (Some(pid), Some("search")));
    assert_eq!((blocker.event_position, blocker.event_type.as_deref()), (Some(10), Some("b")));
    assert_eq!(blocker.event_id, Some(scene.event_id(10).await));
}

#[tokio::test]
async fn a_session_that_we_may_not_look_into_is_said_to_be_hidden() {
    let scene = Scene::with(4).await;
    let writer = scene.database.client().await;
    writer
        .batch_execute("BEGIN; INSERT INTO inorder.events (event_type, payload) VALUES ('late', '1')")
        .await
        .unwrap();
    // A role that every server has and that may not see much.
    let allow = "GRANT USAGE ON SCHEMA inorder TO pg_signal_backend; \
        GRANT SELECT ON ALL TABLES IN SCHEMA inorder TO pg_signal_backend; SET ROLE pg_signal_backend";
    scene.client.batch_execute(allow).await.unwrap();
    let row = scene.client.query_one("SELECT state, since FROM inorder.blockers()", &[]).await.unwrap();
    let (state, since): (String, Option<time::OffsetDateTime>) = (row.get(0), row.get(1));
    assert_eq!((state.as_str(), since), ("hidden", None));
}

/// A prepared transaction has no session; its name is what ends it. After a restart of the server it shows under
/// another virtual transaction.
#[tokio::test]
async fn a_prepared_transaction_that_holds_a_hole_open_is_named_also_after_a_restart() {
    let server = TempPostgres::builder().max_prepared_transactions(4).start().await.unwrap();
    let url = server.create_database("prepared").await.unwrap();
    let log = Inorder::connect(&url).await.unwrap();
    log.migrate().await.unwrap();
    let prepare = "BEGIN; INSERT INTO inorder.events (event_type, payload) VALUES ('late', '1'); PREPARE TRANSACTION 'order 17'";
    connect(&url).await.batch_execute(prepare).await.unwrap();
    assert_prepared(&log).await;
    server.restart().await.unwrap();
    let log = Inorder::connect(&url).await.unwrap();
    assert_prepared(&log).await;
}

async fn assert_prepared(log: &Inorder) {
    let blockers = log.admin().blockers().await.unwrap();
    let [blocker] = &blockers[..] else { panic!("{blockers:?}") };
    assert_eq!((blocker.pid, blocker.prepared_gid.as_deref()), (None, Some("order 17")));
    assert_eq!((blocker.state.as_str(), blocker.since.is_some()), ("prepared", true));
}

/// What is written for three in the morning can be typed as it stands.
#[tokio::test]
async fn every_function_that_operations_md_names_is_there() {
    let scene = Scene::with(0).await;
    let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md"));
    let statements = text.lines().filter_map(|line| Some(line.split_once("FROM inorder.")?.1));
    let called: Vec<&str> = statements.filter_map(|rest| Some(rest.split_once('(')?.0)).collect();
    let (_, actions) = text.split_once("| SQL | Rust | tool |").expect("the table of actions");
    let listed = actions
        .lines()
        .skip(2)
        .map_while(|line| line.strip_prefix("| `")?.split_once('('))
        .map(|(name, _)| name);
    let names: Vec<&str> = called.into_iter().chain(listed).filter(|name| !name.contains(' ')).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        let there = format!(
            "SELECT count(*) FROM pg_proc WHERE pronamespace = 'inorder'::regnamespace AND proname = '{name}'"
        );
        assert_ne!(scene.value(&there).await, serde_json::json!(0), "{name}");
    }
}
