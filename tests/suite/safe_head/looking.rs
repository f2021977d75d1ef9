//! Looks are pages: bounded in rows and in bytes, whatever lies behind a hole.

use super::{Scene, drain};
use crate::support::Writer;

/// More rows than one look takes, before and behind a hole.
#[tokio::test]
async fn more_events_than_one_look_takes_are_delivered_up_to_the_hole() {
    let scene = Scene::new().await;
    let writer = scene.writer().await;
    writer.append_many(2_500).await;
    let (late, 2_501) = scene.open_writer().await else { panic!() };
    writer.append_many(2_500).await;
    assert_eq!(scene.delivered().await, (1..=2_500).collect::<Vec<_>>());
    late.commit().await;
    assert_eq!(scene.delivered().await, (1..=5_001).collect::<Vec<_>>());
}

/// More holes than one look takes rows.
#[tokio::test]
async fn thousands_of_holes_are_passed_at_once() {
    let scene = Scene::new().await;
    let sparse = "DO $$ BEGIN FOR n IN 1..3000 LOOP
        INSERT INTO inorder.events (event_type, payload) VALUES ('x', '{}');
        PERFORM nextval('inorder.events_id_seq');
        END LOOP; END $$";
    scene.writer().await.run(sparse).await;
    assert_eq!(scene.delivered().await, (1..=3_000).map(|n| 2 * n - 1).collect::<Vec<_>>());
}

/// Events so large that a look takes only a few, with a hole among them.
#[tokio::test]
async fn large_events_come_in_looks_bounded_in_bytes() {
    let scene = Scene::new().await;
    let writer = scene.writer().await;
    let large = "INSERT INTO inorder.events (event_type, payload) \
        SELECT 'large', to_json(repeat('x', 900 * 1024)) FROM generate_series(1, 7)";
    writer.run(large).await;
    let late = Writer::in_transaction(scene.db.url()).await;
    assert_eq!(late.append().await, 8);
    writer.run(large).await;
    writer.append_many(1_500).await;
    assert_eq!(scene.delivered().await, (1..=7).collect::<Vec<_>>());
    late.roll_back().await;
    let expected: Vec<i64> = (1..=7).chain(9..=1_515).collect();
    assert_eq!(scene.delivered().await, expected);
}

/// The same for a consumer that is far behind, and so reads pages of its own.
#[tokio::test]
async fn large_events_far_behind_the_head_come_in_pages_bounded_in_bytes() {
    let scene = Scene::new().await;
    let large = "INSERT INTO inorder.events (event_type, payload) \
        SELECT 'large', to_json(repeat('x', 300 * 1024)) FROM generate_series(1, 20)";
    scene.writer().await.run(large).await;
    scene.writer().await.append_many(10).await;
    scene.writer().await.run(large).await;
    let dispatcher = scene.seen.builder().read_ahead_bytes(1024 * 1024).build().unwrap();
    drain(&dispatcher.register().await.unwrap()).await;
    assert_eq!(scene.seen.ids().await, (1..=50).collect::<Vec<_>>());
}

/// Everything that was there is gone, below the head and in front of a hole.
#[tokio::test]
async fn a_log_of_which_everything_was_pruned_goes_on() {
    let scene = Scene::new().await;
    let writer = scene.writer().await;
    writer.append_many(3).await;
    scene.delivered().await;
    prune(&writer).await;
    assert_eq!(scene.safe_head().await, 3);
    drain(&scene.seen.register().await).await;
    let (late, 4) = scene.open_writer().await else { panic!() };
    assert_eq!(scene.append().await, 5);
    assert_eq!(scene.delivered().await, [1, 2, 3]);
    late.roll_back().await;
    assert_eq!(scene.delivered().await, [1, 2, 3, 5]);
    prune(&writer).await;

    // The next dispatcher finds nothing but numbers.
    let registered = scene.seen.register().await;
    let (gone, 6) = scene.open_writer().await else { panic!() };
    gone.roll_back().await;
    assert_eq!(scene.append().await, 7);
    drain(&registered).await;
    assert_eq!(scene.seen.ids().await, [1, 2, 3, 5, 7]);
}

/// Ids above the head that another process has delivered and an operator has pruned are no hole for ever.
#[tokio::test]
async fn what_was_pruned_above_the_head_of_a_slow_process_is_passed() {
    let scene = Scene::new().await;
    let writer = scene.writer().await;
    scene.append().await;
    assert_eq!(scene.delivered().await, [1]);
    writer.append_many(3).await;
    drain(&scene.seen.register().await).await;
    prune(&writer).await;
    writer.append().await;
    assert_eq!(scene.delivered().await, [1, 2, 3, 4, 5]);
    writer.append_many(2).await;
    drain(&scene.seen.register().await).await;
    prune(&writer).await;
    assert_eq!(drain(&scene.registered).await["all"].outcome, inorder::Outcome::CaughtUp);
}

async fn prune(writer: &Writer) {
    writer.client().query("SELECT * FROM inorder.prune('infinity')", &[]).await.unwrap();
}

/// A plan outlives the moment for which it was the best: the tracker's statements are planned once, perhaps when the log was as
/// good as empty, and nobody may have analysed it since.
#[tokio::test]
async fn the_trackers_statements_go_by_the_index_however_few_events_there_were_when_they_were_planned() {
    let scene = Scene::new().await;
    scene.writer().await.append_many(3).await;
    let client = scene.db.client().await;
    client.batch_execute("VACUUM ANALYZE inorder.events").await.unwrap();
    client.batch_execute(include_str!("../../../sql/query/session/plan_once.sql")).await.unwrap();
    let of = "'00000000-0000-0000-0000-000000000000'";
    for (statement, types, values) in [
        (include_str!("../../../sql/query/events/look.sql"), "uuid, bigint, bigint", format!("{of}, 0, 16")),
        (include_str!("../../../sql/query/safe_head/given.sql"), "uuid", of.to_owned()),
        (include_str!("../../../sql/query/consumers/poll.sql"), "uuid", of.to_owned()),
    ] {
        let explain =
            format!("PREPARE it ({types}) AS {statement}; EXPLAIN EXECUTE it ({values}); DEALLOCATE it");
        let plan = client.simple_query(&explain).await.unwrap();
        let plan: Vec<_> = plan
            .iter()
            .filter_map(|line| match line {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            })
            .collect();
        assert!(plan.iter().any(|line| line.contains("using events_pkey on events")), "{plan:#?}");
        assert!(!plan.iter().any(|line| line.contains("Seq Scan on events ")), "{plan:#?}");
    }
}
