//! Seeing all of a consumer, the processes at work, and what operators did.

use inorder::{AuditRows, Consumer, ErrorKind, InstanceState, Target};
use serde_json::json;

use super::{LIMIT, Scene, refused};
use crate::support::role::Role;
use crate::support::{Act, Actor, Gate, Stage, eventually, within};

#[tokio::test]
async fn all_that_is_known_of_a_consumer_is_shown_with_the_event_at_which_it_failed() {
    let scene = Scene::with(10).await;
    scene.dead("dead", 4).await;
    let rows = scene.admin.consumer("dead").await.unwrap();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    let event = row.failed_event.as_ref().unwrap();
    assert_eq!((event.id(), event.event_type(), event.payload_json()), (5, "b", r#"{"n" : 5}"#));
    assert_eq!(Some(event.event_id()), row.progress.failed_event_id);
    assert_eq!((row.progress.name.as_str(), row.progress.lag), ("dead", 6));
    assert_eq!(row.progress.last_error.as_deref(), Some("no such card"));
    assert_eq!((row.owner, row.owner_gone, row.pending), (None, None, None));
    let json = serde_json::to_value(row).unwrap();
    assert_eq!((&json["status"], &json["accepted_to"]), (&json!("dead"), &json!(0)));

    scene.consumer("well", 10).await;
    assert!(scene.admin.consumer("well").await.unwrap()[0].failed_event.is_none());
    refused(
        scene.admin.consumer("nobody").await,
        ErrorKind::NotRegistered,
        &[r#"registered are "dead", "well""#],
    );
}

/// A monitor may read no payload, and sees the rest.
#[tokio::test]
async fn who_may_not_read_payloads_is_shown_a_consumer_without_the_event() {
    let scene = Scene::with(10).await;
    scene.dead("dead", 4).await;
    for (kind, sees) in [("monitor", false), ("admin", true)] {
        let role = Role::of(kind, &scene.database).await;
        let log = role.log().await;
        let row = log.admin().consumer("dead").await.unwrap().remove(0);
        assert_eq!((row.failed_event.is_some(), row.progress.failed_position), (sees, Some(5)), "{kind}");
        assert_eq!(log.admin().trace(5).await.is_ok(), sees, "{kind}");
        drop(log);
        role.drop().await;
    }
}

#[tokio::test]
async fn a_consumer_is_shown_by_instance_and_by_partition() {
    let scene = Scene::with(10).await;
    scene.partitioned("search", 3, 2).await;
    let insert = "INSERT INTO inorder.consumers (name, instance, kind, position) \
        SELECT 'cache', 'node-' || n, 'effect', n FROM generate_series(1, 3) AS n";
    scene.client.batch_execute(insert).await.unwrap();
    let wait = "INSERT INTO inorder.ledger (event_id, handler, status) \
        SELECT event_id, 'cache@node-2', 'pending' FROM inorder.events WHERE id > 8";
    scene.client.batch_execute(wait).await.unwrap();
    let seen = async |which: Target| {
        let rows = scene.admin.consumer(which).await.unwrap();
        rows.iter()
            .map(|r| (r.progress.instance.clone(), r.progress.partition, r.pending))
            .collect::<Vec<_>>()
    };
    let of = |n: i32, pending| (format!("node-{n}"), 0, Some(pending));
    assert_eq!(seen("cache".into()).await, [of(1, 0), of(2, 2), of(3, 0)]);
    assert_eq!(seen(Target::consumer("cache").instance("node-2")).await, [of(2, 2)]);
    assert_eq!(seen("search".into()).await.len(), 3);
    assert_eq!(seen(Target::consumer("search").partition(1)).await, [(String::new(), 1, None)]);
    let nobody = Target::consumer("cache").instance("node-9");
    refused(
        scene.admin.consumer(nobody).await,
        ErrorKind::NotRegistered,
        &[r#""node-1", "node-2", "node-3""#],
    );
    let none = Target::consumer("search").partition(7);
    refused(scene.admin.consumer(none).await, ErrorKind::NotRegistered, &["its partitions are 0, 1, 2"]);
}

/// A page with a hundred poison events of a megabyte would be no help.
#[tokio::test]
async fn the_failed_events_that_are_shown_have_a_bound_and_the_first_is_there() {
    let scene = Scene::with(0).await;
    let large = "INSERT INTO inorder.events (event_type, payload) \
        SELECT 'large', to_json((SELECT string_agg(gen_random_uuid()::text, '') FROM generate_series(1, 150000) WHERE n > 0)) \
        FROM generate_series(1, 4) AS n";
    scene.client.batch_execute(large).await.unwrap();
    scene.partitioned("search", 4, 0).await;
    let fail = "UPDATE inorder.consumers AS c SET failed_event_id = e.event_id FROM inorder.events AS e WHERE e.id = c.partition + 1";
    scene.client.batch_execute(fail).await.unwrap();
    let rows = scene.admin.consumer("search").await.unwrap();
    let there = rows.iter().filter(|row| row.failed_event.is_some()).count();
    assert_eq!((rows.len(), there), (4, 2));
    assert!(rows[0].failed_event.is_some());
}

#[tokio::test]
async fn processes_are_listed_with_what_they_run_and_hold() {
    let stage = Stage::with_events(1).await;
    let (gate, called) = (Gate::closed(), Gate::closed());
    let inside = Actor::new("inside").at(2, Act::Meet(gate.clone())).transactional();
    let at_the_gate = called.clone();
    let outside = Consumer::effect_fn("outside", move |event, _| {
        let gate = (event.id() == 2).then(|| at_the_gate.clone());
        Box::pin(async move {
            if let Some(gate) = gate {
                gate.pass().await;
            }
            Ok(())
        })
    });
    let running = stage.dispatcher([inside, outside]).build().unwrap().start().await.unwrap();
    let admin = stage.log.admin();
    let held = async || {
        let instances = admin.instances().await.unwrap();
        let [process] = &instances[..] else { panic!("{instances:?}") };
        process.consumers.iter().map(|c| (c.name.clone(), c.holds)).collect::<Vec<_>>()
    };
    let both = |holds| [("inside".to_owned(), holds), ("outside".to_owned(), holds)];
    eventually(LIMIT, "it ran both", async || held().await == both(false)).await;
    stage.append(1).await;
    gate.reached().await;
    called.reached().await;
    assert_eq!(held().await, both(true));
    let process = admin.instances().await.unwrap().remove(0);
    assert_eq!(process.pid, i32::try_from(std::process::id()).unwrap());
    assert_eq!(process.version, env!("CARGO_PKG_VERSION"));
    assert!(matches!(process.state, InstanceState::Awake | InstanceState::Sleeping), "{process:?}");
    assert!((0.0..60.0).contains(&process.heartbeat_age) && process.started_at <= process.heartbeat_at);
    let row = admin.consumer("outside").await.unwrap().remove(0);
    assert_eq!(
        (row.owner, row.owner_pid, row.owner_gone),
        (Some(process.id), Some(process.pid), Some(false))
    );
    assert!(row.lease_until.is_some());
    gate.open();
    called.open();
    eventually(LIMIT, "it let both go", async || held().await == both(false)).await;
    within("it stops", running.stop()).await.unwrap();
    assert!(admin.instances().await.unwrap().is_empty());
    assert_eq!(admin.consumer("outside").await.unwrap()[0].owner_gone, Some(true));
}

#[tokio::test]
async fn a_process_that_is_gone_or_silent_is_said_to_be() {
    let scene = Scene::with(0).await;
    let enter = "INSERT INTO inorder.instances (id, epoch, host, pid, version, heartbeat_at, sleeping_until, session_lock)
        SELECT gen_random_uuid(), gen_random_uuid(), host, 1, '0.1.0', clock_timestamp() - age, clock_timestamp() + sleeps, lock
        FROM (VALUES ('a', interval '1 second', interval '1 minute', NULL::int), ('b', '1 second', '-1 second', NULL),
                     ('c', '3 minutes', '-2 minutes', NULL), ('d', '1 second', '1 minute', 17)) AS i (host, age, sleeps, lock)";
    scene.client.batch_execute(enter).await.unwrap();
    let instances = scene.admin.instances().await.unwrap();
    let seen: Vec<_> = instances.iter().map(|i| (i.host.as_str(), i.state)).collect();
    use InstanceState::{Awake, Gone, Silent, Sleeping};
    assert_eq!(seen, [("a", Sleeping), ("b", Awake), ("c", Silent), ("d", Gone)]);
    assert!((180.0..240.0).contains(&instances[2].heartbeat_age), "{instances:?}");
}

#[tokio::test]
async fn what_operators_did_is_listed_newest_first_and_in_parts() {
    let scene = Scene::with(10).await;
    scene.dead("mail", 4).await;
    scene.consumer("search", 10).await;
    scene.admin.because("try again").restart("mail").await.unwrap();
    let other = scene.admin.by("else");
    other.disable("search").await.unwrap();
    other.enable("search").await.unwrap();
    other.disable("mail").await.unwrap();
    other.unregister("mail").await.unwrap();
    let seen = async |which: AuditRows| {
        let rows = scene.admin.audit(&which).await.unwrap();
        rows.iter().map(|row| (row.id, row.action.clone())).collect::<Vec<_>>()
    };
    let row = |id: i64, action: &str| (id, action.to_owned());
    let all =
        [row(5, "unregister"), row(4, "disable"), row(3, "enable"), row(2, "disable"), row(1, "restart")];
    assert_eq!(seen(AuditRows::any()).await, all);
    assert_eq!(seen(AuditRows::any().limit(2)).await, all[..2]);
    assert_eq!(seen(AuditRows::any().limit(2).before(4)).await, all[2..4]);
    assert_eq!(seen(AuditRows::any().before(1)).await, []);
    assert_eq!(seen(AuditRows::any().of("search")).await, all[2..4]);
    assert_eq!(seen(AuditRows::any().of("search").instance("node-1")).await, []);
    assert_eq!(
        seen(AuditRows::any().action("disable").by("else")).await,
        [row(4, "disable"), row(2, "disable")]
    );
    assert_eq!(seen(AuditRows::any().by("ops")).await, all[4..]);
    // The database user finds what was done under whatever name.
    let user: String = scene.client.query_one("SELECT session_user::text", &[]).await.unwrap().get(0);
    assert_eq!(seen(AuditRows::any().by(user)).await, all);

    let first = scene.admin.audit(&AuditRows::any().of("mail").before(2)).await.unwrap().remove(0);
    assert_eq!((first.by.as_str(), first.why.as_deref()), ("ops", Some("try again")));
    assert_eq!((first.consumer.as_deref(), first.partition), (Some("mail"), Some(0)));
    assert_eq!((&first.before["status"], &first.after["status"]), (&json!("dead"), &json!("idle")));
    refused(scene.admin.audit(&AuditRows::any().of("nobody")).await, ErrorKind::NotRegistered, &["nobody"]);
}
