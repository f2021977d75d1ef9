//! Restarting, skipping, disabling, enabling, moving, removing and splitting consumers.

use inorder::{DeadLetters, ErrorKind, Start, Target};
use serde_json::json;

use super::{Scene, refused};

#[tokio::test]
async fn a_dead_consumer_starts_afresh_at_the_event_at_which_it_died() {
    let scene = Scene::with(10).await;
    scene.dead("search", 4).await;
    let changes = scene.admin.because("card added").restart("search").await.unwrap();
    let [change] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(
        (change.before["status"].clone(), change.after["status"].clone()),
        (json!("dead"), json!("idle"))
    );
    let row = scene.row("search").await;
    assert_eq!(row, change.after);
    for counter in ["attempts", "faults", "rearms"] {
        assert_eq!(row[counter], json!(0), "{counter}");
    }
    assert_eq!(row["next_attempt_at"], json!(null));
    assert_eq!(row["position"], json!(4));
    assert_eq!(row["last_error"], json!("no such card"), "the operator still sees at what it died");
}

#[tokio::test]
async fn only_a_dead_consumer_is_restarted() {
    let scene = Scene::with(10).await;
    scene.consumer("search", 4).await;
    refused(scene.admin.restart("search").await, ErrorKind::Precondition, &["it is idle", "IO004"]);
    for status in ["disabled", "expired"] {
        scene.set("search", &format!("status = '{status}'")).await;
        let words = [format!("it is {status}"), "enable()".into()];
        refused(
            scene.admin.restart("search").await,
            ErrorKind::Precondition,
            &words.each_ref().map(String::as_str),
        );
    }
    scene
        .set(
            "search",
            "status = 'idle', attempts = 3, next_attempt_at = clock_timestamp() + interval '1 hour'",
        )
        .await;
    let words = ["it is waiting", "3 of 10 attempts"];
    refused(scene.admin.restart("search").await, ErrorKind::Precondition, &words);
    assert_eq!(scene.value("SELECT count(*) FROM inorder.audit").await, json!(0));
}

#[tokio::test]
async fn of_many_partitions_those_that_are_dead_are_restarted() {
    let scene = Scene::with(10).await;
    scene.partitioned("search", 4, 4).await;
    scene.set("search", "status = CASE WHEN partition IN (1, 3) THEN 'dead' ELSE 'idle' END").await;
    // Nobody waits for a partition that is none of the action's business.
    let (_pass, _) = scene.hold("search").await;
    let changes = scene.admin.restart("search").await.unwrap();
    assert_eq!(changes.iter().map(|c| c.partition).collect::<Vec<_>>(), [1, 3]);
    let words = ["partition 0 is idle, partition 1 is idle"];
    refused(scene.admin.restart("search").await, ErrorKind::Precondition, &words);
}

#[tokio::test]
async fn names_that_nobody_has_are_answered_with_those_there_are() {
    let scene = Scene::with(10).await;
    refused(scene.admin.restart("serach").await, ErrorKind::NotRegistered, &["none is"]);
    scene.consumer("search", 4).await;
    scene.partitioned("totals", 2, 4).await;
    for node in ["node-1", "node-2"] {
        let insert =
            "INSERT INTO inorder.consumers (name, instance, kind, position) VALUES ('cache', $1, 'batch', 4)";
        scene.client.execute(insert, &[&node]).await.unwrap();
    }
    let event = scene.event_id(5).await;
    let admin = &scene.admin;
    for (target, words) in [
        (Target::consumer("serach"), ["no consumer \"serach\"", "\"cache\", \"search\", \"totals\""]),
        (Target::consumer("cache"), ["no instance \"\"", "\"node-1\", \"node-2\""]),
        (Target::consumer("cache").instance("node-3"), ["no instance \"node-3\"", "\"node-1\", \"node-2\""]),
        (Target::consumer("search").instance("node-3"), ["no instance \"node-3\"", "the shared one"]),
        (Target::consumer("totals").partition(2), ["no partition 2", "0, 1"]),
    ] {
        refused(admin.restart(target.clone()).await, ErrorKind::NotRegistered, &words);
        refused(admin.disable(target.clone()).await, ErrorKind::NotRegistered, &words);
        refused(admin.enable(target.clone()).await, ErrorKind::NotRegistered, &words);
        refused(admin.accept_pruned(target.clone()).await, ErrorKind::NotRegistered, &words);
        refused(admin.skip_poison(target, event).await, ErrorKind::NotRegistered, &words);
    }
    refused(admin.unregister("serach").await, ErrorKind::NotRegistered, &["IO003"]);
    refused(admin.repartition("serach", 2).await, ErrorKind::NotRegistered, &["IO003"]);
    refused(admin.progress("serach").await, ErrorKind::NotRegistered, &["IO003"]);
    assert_eq!(
        admin.progress("cache").await.unwrap().len(),
        2,
        "a consumer's name stands for all its instances"
    );
}

/// I-6: what is passed over leaves a dead letter.
#[tokio::test]
async fn the_poison_event_is_passed_over_and_kept() {
    let scene = Scene::with(10).await;
    scene.dead("search", 4).await;
    let poison = scene.event_id(5).await;
    let change = scene.admin.skip_poison("search", poison).await.unwrap();
    let row = scene.row("search").await;
    assert_eq!(row, change.after);
    assert_eq!((&row["position"], &row["status"], &row["skipped"]), (&json!(5), &json!("idle"), &json!(1)));
    for cleared in ["next_attempt_at", "failed_event_id", "last_error", "last_error_at"] {
        assert_eq!(row[cleared], json!(null), "{cleared}");
    }
    let letters = scene.admin.dead_letters(&DeadLetters::open()).await.unwrap();
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!((letter.position, letter.event_id, letter.attempts), (5, Some(poison), 10));
    assert_eq!((letter.reason.as_str(), letter.error.as_deref()), ("operator_skip", Some("no such card")));
    assert_eq!((letter.event_type.as_deref(), letter.created_by.as_str()), (Some("b"), "ops"));
}

#[tokio::test]
async fn the_next_event_of_a_consumer_that_never_failed_can_be_skipped_and_a_disabled_one_stays_disabled() {
    let scene = Scene::with(10).await;
    scene.consumer("search", 4).await;
    // Only events of type b: the next is 5, the one after it 10.
    scene.set("search", "event_types = '{b}', status = 'disabled'").await;
    scene.admin.skip_poison("search", scene.event_id(5).await).await.unwrap();
    let row = scene.row("search").await;
    assert_eq!((&row["position"], &row["status"]), (&json!(5), &json!("disabled")));
    scene
        .set(
            "search",
            "status = 'idle', attempts = 2, next_attempt_at = clock_timestamp() + interval '1 hour'",
        )
        .await;
    scene.admin.skip_poison("search", scene.event_id(10).await).await.unwrap();
    assert_eq!(scene.admin.progress("search").await.unwrap()[0].status.as_str(), "idle");
}

#[tokio::test]
async fn no_event_is_skipped_but_the_expected_one() {
    let scene = Scene::with(10).await;
    scene.dead("search", 4).await;
    let before = scene.row("search").await;
    for (id, words) in [(6, "the next event is"), (4, "it is behind, at position 4"), (1, "behind")] {
        let event = scene.event_id(id).await;
        refused(scene.admin.skip_poison("search", event).await, ErrorKind::Precondition, &[words]);
    }
    let nobody = uuid::Uuid::nil();
    refused(scene.admin.skip_poison("search", nobody).await, ErrorKind::Precondition, &["no such event"]);
    scene.set("search", "event_types = '{b}'").await;
    let unwanted = scene.event_id(6).await;
    scene.set("search", "position = 5").await;
    let words = ["does not want events of type a"];
    refused(scene.admin.skip_poison("search", unwanted).await, ErrorKind::Precondition, &words);
    scene.set("search", "event_types = NULL, position = 4").await;
    assert_eq!(scene.row("search").await, before);
    assert_eq!(scene.value("SELECT count(*) FROM inorder.dead_letters").await, json!(0));
}

#[tokio::test]
async fn the_partition_of_an_event_that_is_skipped_is_found() {
    let scene = Scene::with(20).await;
    scene.partitioned("search", 3, 0).await;
    let first_of_2 = "SELECT min(id) FROM inorder.events WHERE (stream_hash & 2147483647) % 3 = 2";
    let id = scene.value(first_of_2).await.as_i64().unwrap();
    let event = scene.event_id(id).await;
    let wrong = scene.admin.skip_poison(Target::consumer("search").partition(0), event).await;
    refused(wrong, ErrorKind::Precondition, &["belongs to partition 2"]);
    let change = scene.admin.skip_poison("search", event).await.unwrap();
    assert_eq!((change.partition, &change.after["position"]), (2, &json!(id)));
}

#[tokio::test]
async fn an_event_beyond_the_safe_head_is_skipped_only_if_it_was_delivered() {
    let scene = Scene::with(4).await;
    scene.consumer("search", 4).await;
    let writer = scene.database.client().await;
    let insert = "BEGIN; INSERT INTO inorder.events (event_type, payload) VALUES ('late', '1')";
    writer.batch_execute(insert).await.unwrap();
    scene.append(1).await;
    let event = scene.event_id(6).await;
    let refusal = scene.admin.skip_poison("search", event).await;
    refused(refusal, ErrorKind::Precondition, &["beyond the safe head 4"]);
    scene.set("search", &format!("status = 'dead', failed_event_id = '{event}'")).await;
    scene.admin.skip_poison("search", event).await.unwrap();
}

#[tokio::test]
async fn a_disabled_consumer_is_enabled_where_it_stands_and_with_a_fresh_start() {
    let scene = Scene::with(10).await;
    scene.dead("search", 4).await;
    let changes = scene.admin.disable("search").await.unwrap();
    assert_eq!(
        (&changes[0].after["status"], &changes[0].after["attempts"]),
        (&json!("disabled"), &json!(10))
    );
    refused(scene.admin.disable("search").await, ErrorKind::Precondition, &["it is disabled"]);
    scene.admin.enable("search").await.unwrap();
    let row = scene.row("search").await;
    let now = (&row["status"], &row["attempts"], &row["next_attempt_at"], &row["position"]);
    assert_eq!(now, (&json!("idle"), &json!(0), &json!(null), &json!(4)));
    refused(scene.admin.enable("search").await, ErrorKind::Precondition, &["it is idle"]);
}

#[tokio::test]
async fn an_expired_consumer_that_is_enabled_counts_as_seen() {
    let scene = Scene::with(10).await;
    scene.consumer("cache", 4).await;
    scene.set("cache", "status = 'expired', seen_at = '2026-01-01'").await;
    scene.admin.enable("cache").await.unwrap();
    let seen =
        "SELECT status = 'idle' AND seen_at > clock_timestamp() - interval '1 minute' FROM inorder.consumers";
    assert_eq!(scene.value(seen).await, json!(true));
}

/// I-6: what is passed over leaves a dead letter, for a range too.
#[tokio::test]
async fn a_consumer_that_is_moved_goes_on_behind_the_place() {
    let scene = Scene::with(20).await;
    scene.dead("search", 12).await;
    scene.admin.reset("search", Start::After(4)).await.unwrap();
    let row = scene.row("search").await;
    assert_eq!((&row["position"], &row["status"], &row["attempts"]), (&json!(4), &json!("idle"), &json!(0)));
    for cleared in ["next_attempt_at", "failed_event_id", "last_error", "last_error_at"] {
        assert_eq!(row[cleared], json!(null), "{cleared}");
    }
    scene.admin.reset("search", Start::Beginning).await.unwrap();
    assert_eq!(scene.row("search").await["position"], json!(0));
    let nothing_passed_over = scene.admin.dead_letters(&DeadLetters::any()).await.unwrap();
    assert!(nothing_passed_over.is_empty(), "{nothing_passed_over:?}");
    scene.admin.reset("search", Start::Head).await.unwrap();
    assert_eq!(scene.row("search").await["position"], json!(20));
    let letters = scene.admin.dead_letters(&DeadLetters::any()).await.unwrap();
    let ranges: Vec<_> = letters.iter().map(|l| (l.position, l.position_to, l.reason.as_str())).collect();
    assert_eq!(ranges, [(1, Some(20), "operator_skip")]);
    assert_eq!(letters[0].state.as_str(), "discarded", "nobody needs to decide on it");
}

#[tokio::test]
async fn a_range_without_an_event_that_the_consumer_wants_is_not_passed_over() {
    let scene = Scene::with(20).await;
    scene.consumer("search", 11).await;
    scene.set("search", "event_types = '{b}', status = 'disabled'").await;
    scene.admin.reset("search", Start::After(14)).await.unwrap();
    assert_eq!(scene.row("search").await["status"], json!("disabled"));
    assert!(scene.admin.dead_letters(&DeadLetters::any()).await.unwrap().is_empty());
    scene.admin.reset("search", Start::After(15)).await.unwrap();
    assert_eq!(scene.admin.dead_letters(&DeadLetters::any()).await.unwrap().len(), 1);
}

/// I-1: beyond the safe head lies what is not settled.
#[tokio::test]
async fn no_consumer_is_moved_beyond_the_safe_head() {
    let scene = Scene::with(4).await;
    scene.consumer("search", 2).await;
    scene.consumer("totals", 4).await;
    let writer = scene.database.client().await;
    let insert = "BEGIN; INSERT INTO inorder.events (event_type, payload) VALUES ('late', '1')";
    writer.batch_execute(insert).await.unwrap();
    scene.append(1).await;
    for id in [5, 6, 7] {
        let refusal = scene.admin.reset("search", Start::After(id)).await;
        refused(refusal, ErrorKind::Precondition, &["the safe head, 4"]);
    }
    refused(scene.admin.reset("search", Start::After(-1)).await, ErrorKind::Precondition, &["-1"]);
    scene.admin.reset("search", Start::Head).await.unwrap();
    assert_eq!(scene.row("search").await["position"], json!(4));
    writer.batch_execute("COMMIT").await.unwrap();
    scene.admin.reset("search", Start::Head).await.unwrap();
    assert_eq!(scene.row("search").await["position"], json!(6));
}

#[tokio::test]
async fn every_partition_is_moved() {
    let scene = Scene::with(20).await;
    scene.partitioned("search", 3, 7).await;
    assert_eq!(scene.admin.reset("search", Start::After(2)).await.unwrap().len(), 3);
    scene.admin.reset(Target::consumer("search").partition(1), Start::After(9)).await.unwrap();
    let positions = "SELECT json_agg(position ORDER BY partition) FROM inorder.consumers";
    assert_eq!(scene.value(positions).await, json!([2, 9, 2]));
}

/// psql has the same, by id and by name of the place.
#[tokio::test]
async fn places_are_named_in_sql() {
    let scene = Scene::with(20).await;
    scene.consumer("search", 7).await;
    for (place, position) in [("3", 3), ("'4'", 4), ("'head'", 20), ("'beginning'", 0)] {
        let reset = format!("SELECT (after ->> 'position')::int FROM inorder.reset('search', {place})");
        assert_eq!(scene.value(&reset).await, json!(position), "{place}");
    }
    for place in ["'tail'", "''", "NULL::text", "NULL::bigint", "21", "-1", "'-1'"] {
        let reset = format!("SELECT * FROM inorder.reset('search', {place})");
        let refusal = scene.client.query(&reset, &[]).await.unwrap_err();
        assert_eq!(refusal.code().unwrap().code(), "IO004", "{place}");
    }
}

#[tokio::test]
async fn unregistering_removes_every_partition_and_settles_the_dead_letters() {
    let scene = Scene::with(20).await;
    scene.partitioned("search", 3, 0).await;
    scene.consumer("totals", 0).await;
    scene.admin.skip_poison("search", scene.event_id(1).await).await.unwrap();
    scene.admin.skip_poison("totals", scene.event_id(1).await).await.unwrap();
    let one = scene.admin.unregister(Target::consumer("search").partition(1)).await;
    refused(one, ErrorKind::Config, &["only the whole consumer"]);
    let changes = scene.admin.unregister("search").await.unwrap();
    assert_eq!(changes.len(), 3);
    assert!(changes.iter().all(|c| c.after.is_null() && c.before["name"] == json!("search")), "{changes:?}");
    let left = "SELECT json_agg(name ORDER BY name) FROM inorder.consumers";
    assert_eq!(scene.value(left).await, json!(["totals"]));
    let open = scene.admin.dead_letters(&DeadLetters::open()).await.unwrap();
    assert_eq!(open.iter().map(|l| l.consumer.as_str()).collect::<Vec<_>>(), ["totals"]);
    let kept = scene.admin.dead_letters(&DeadLetters::any().of("search")).await.unwrap();
    assert_eq!(kept[0].state.as_str(), "discarded");
}

/// I-1, I-2: after a split every event above the position belongs to one partition that has not read it.
#[tokio::test]
async fn a_consumer_is_split_at_one_position() {
    let scene = Scene::with(30).await;
    scene.consumer("search", 7).await;
    scene.set("search", "processed = 7, event_types = '{a}', revision = 3, max_attempts = 4").await;
    let changes = scene.admin.repartition("search", 4).await.unwrap();
    assert_eq!(
        changes.iter().map(|c| (c.partition, c.before.is_null())).collect::<Vec<_>>(),
        [(0, false), (1, true), (2, true), (3, true)]
    );
    let alike = "SELECT count(*) = 4 AND bool_and(position = 7 AND partitions = 4 AND event_types = '{a}' AND revision = 4 \
        AND max_attempts = 4 AND kind = 'transactional' AND status = 'idle') AND sum(processed) = 7 FROM inorder.consumers";
    assert_eq!(scene.value(alike).await, json!(true));
    refused(scene.admin.repartition("search", 4).await, ErrorKind::Precondition, &["has 4 already"]);
    refused(scene.admin.repartition("search", 0).await, ErrorKind::Precondition, &["1 to 1,024"]);

    // A dead letter follows its event.
    let event = "SELECT id FROM inorder.events WHERE id > 7 AND event_type = 'a' ORDER BY id LIMIT 1";
    let poison = scene.event_id(scene.value(event).await.as_i64().unwrap()).await;
    let skipped = scene.admin.skip_poison("search", poison).await.unwrap();
    let differ = scene.admin.repartition("search", 2).await;
    refused(
        differ,
        ErrorKind::Precondition,
        &["positions differ", &format!("partition {} is at 8", skipped.partition)],
    );
    scene.set("search", "position = 8").await;
    scene.admin.repartition("search", 2).await.unwrap();
    let home = format!(
        "SELECT d.partition = (e.stream_hash & 2147483647) % 2 FROM inorder.dead_letters AS d \
         JOIN inorder.events AS e USING (event_id) WHERE event_id = '{poison}'"
    );
    assert_eq!(scene.value(&home).await, json!(true));
    let whole = "SELECT array_agg(partition ORDER BY partition) = '{0,1}' AND min(partitions) = 2 AND max(partitions) = 2 \
        AND sum(processed) = 7 AND sum(skipped) = 1 FROM inorder.consumers";
    assert_eq!(scene.value(whole).await, json!(true));
}

#[tokio::test]
async fn a_consumer_that_waits_or_is_dead_is_not_split() {
    let scene = Scene::with(30).await;
    scene.partitioned("search", 2, 7).await;
    for (state, words) in [
        ("status = CASE partition WHEN 1 THEN 'dead' ELSE 'idle' END", "partition 1 is dead"),
        ("status = CASE partition WHEN 1 THEN 'disabled' ELSE 'idle' END", "partition 1 is disabled"),
        ("status = 'expired'", "partition 0 is expired"),
        (
            "status = 'idle', next_attempt_at = clock_timestamp() + interval '1 hour'",
            "partition 0 is waiting",
        ),
    ] {
        scene.set("search", state).await;
        refused(scene.admin.repartition("search", 3).await, ErrorKind::Precondition, &[words]);
    }
    scene.set("search", "status = 'disabled', next_attempt_at = NULL").await;
    scene.admin.repartition("search", 3).await.unwrap();
    let all = "SELECT count(*) = 3 AND bool_and(status = 'disabled') FROM inorder.consumers";
    assert_eq!(scene.value(all).await, json!(true), "a disabled consumer stays disabled");
}
