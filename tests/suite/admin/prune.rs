//! Retention: what is needed stays, what is not may go, whoever else is at it.

use std::collections::{BTreeMap, BTreeSet};

use inorder::{ErrorKind, Prune, Pruned};
use serde_json::json;
use time::{Duration, OffsetDateTime};

use super::{Scene, beside, refused};

/// Recorded an hour apart since 2026: everything before event `id`.
fn before_event(id: i64) -> Prune {
    Prune::before(time::macros::datetime!(2026-01-01 0:00 UTC) + Duration::hours(id))
}

fn everything() -> Prune {
    Prune::before(OffsetDateTime::now_utc() + Duration::days(9_000))
}

async fn prune(scene: &Scene, what: &Prune) -> Pruned {
    scene.admin.prune(what, |_| ()).await.unwrap()
}

#[tokio::test]
async fn what_is_old_enough_goes_in_bounded_steps() {
    let scene = Scene::with(30).await;
    let would = scene.admin.prunable(&before_event(21)).await.unwrap();
    assert_eq!((would.deleted, would.up_to, would.more), (20, Some(20), false));
    assert_eq!(scene.ids().await.len(), 30, "a count deletes nothing");
    let mut told = Vec::new();
    let pruned =
        scene.admin.prune(&before_event(21).step_size(8), |so_far| told.push(so_far.deleted)).await.unwrap();
    assert_eq!(told, [8, 16, 20]);
    assert_eq!((pruned.deleted, pruned.up_to, pruned.more), (20, Some(20), false));
    assert!(pruned.blocked_by.is_empty(), "{pruned:?}");
    assert_eq!(scene.ids().await, (21..=30).collect::<Vec<_>>());
    assert_eq!(scene.admin.log_progress().await.unwrap().pruned_to, 20);
    let trail = "SELECT json_agg(after ->> 'pruned_to' ORDER BY id) FROM inorder.audit WHERE action = 'prune' AND by = 'ops'";
    assert_eq!(scene.value(trail).await, json!(["8", "16", "20"]));
}

#[tokio::test]
async fn a_step_that_fits_exactly_is_the_last() {
    let scene = Scene::with(30).await;
    let step = scene.admin.prune_step(&before_event(21).step_size(20)).await.unwrap();
    assert_eq!((step.deleted, step.more), (20, false));
    let nothing = scene.admin.prune_step(&before_event(21)).await.unwrap();
    assert_eq!((nothing.deleted, nothing.up_to, nothing.more), (0, None, false));
    assert_eq!(
        scene.value("SELECT count(*) FROM inorder.audit").await,
        json!(1),
        "what did nothing leaves no trace"
    );
}

/// A transaction may have been open for long: an old event behind a younger one stays.
#[tokio::test]
async fn prune_goes_by_positions_not_by_times_alone() {
    let scene = Scene::with(10).await;
    let insert = "INSERT INTO inorder.events (event_type, payload, recorded_at) VALUES \
        ('a', '11', '2026-01-09'), ('b', '12', '2026-01-01 12:00'), ('a', '13', '2026-01-01 12:00')";
    scene.client.batch_execute(insert).await.unwrap();
    prune(&scene, &before_event(30)).await;
    assert_eq!(scene.ids().await, [11, 12, 13]);
    prune(&scene, &before_event(30).only(["b"])).await;
    assert_eq!(scene.ids().await, [11, 13], "of one type, the other does not count");
}

/// I-9: who still needs what was old enough is named, and keeps it.
#[tokio::test]
async fn a_consumer_keeps_what_it_has_not_read_unless_it_is_disabled_or_expired() {
    let scene = Scene::with(30).await;
    scene.consumer("search", 12).await;
    for status in ["idle", "dead"] {
        scene.set("search", &format!("status = '{status}'")).await;
        let pruned = prune(&scene, &before_event(21)).await;
        assert_eq!(pruned.blocked_by, [format!("consumer \"search\", {status} at position 12")]);
    }
    assert_eq!(scene.ids().await, (13..=30).collect::<Vec<_>>());
    scene.set("search", "status = 'idle', next_attempt_at = clock_timestamp() + interval '1 hour'").await;
    assert_eq!(
        prune(&scene, &everything()).await.blocked_by,
        ["consumer \"search\", waiting at position 12"]
    );
    for status in ["disabled", "expired"] {
        scene.set("search", &format!("status = '{status}'")).await;
        let would = scene.admin.prunable(&before_event(21)).await.unwrap();
        assert_eq!((would.deleted, would.blocked_by.len()), (8, 0), "{status}");
    }
}

#[tokio::test]
async fn of_some_types_only_consumers_that_want_one_of_them_keep_them() {
    let scene = Scene::with(30).await;
    scene.consumer("wants-a", 2).await;
    scene.set("wants-a", "event_types = '{a}'").await;
    scene.consumer("wants-b", 12).await;
    scene.set("wants-b", "event_types = '{b,c}'").await;
    let pruned = prune(&scene, &everything().only(["b"])).await;
    assert_eq!((pruned.deleted, pruned.up_to), (2, Some(10)));
    assert_eq!(pruned.blocked_by, ["consumer \"wants-b\", idle at position 12"]);
    let log = scene.admin.log_progress().await.unwrap();
    assert_eq!((log.pruned_to, log.pruned_types), (0, json!({"b": 10})));
    let pruned = prune(&scene, &everything()).await;
    assert_eq!(pruned.deleted, 2);
    assert_eq!(pruned.blocked_by.len(), 2);
    scene.client.execute("DELETE FROM inorder.consumers", &[]).await.unwrap();
    prune(&scene, &everything()).await;
    let log = scene.admin.log_progress().await.unwrap();
    assert_eq!((log.pruned_to, log.pruned_types), (30, json!({})), "what holds for all types holds for each");
}

#[tokio::test]
async fn an_unfinished_dead_letter_keeps_its_event() {
    let scene = Scene::with(30).await;
    scene.consumer("search", 6).await;
    scene.admin.skip_poison("search", scene.event_id(7).await).await.unwrap();
    scene.set("search", "position = 30").await;
    for state in ["open", "retry_requested"] {
        let update = format!("UPDATE inorder.dead_letters SET state = '{state}'");
        scene.client.batch_execute(&update).await.unwrap();
        let pruned = prune(&scene, &before_event(21)).await;
        assert_eq!(
            pruned.blocked_by,
            [format!("dead letter 1 of consumer \"search\", {state} at position 7")]
        );
        assert_eq!(scene.ids().await, (7..=30).collect::<Vec<_>>());
    }
    assert_eq!(
        scene.admin.prunable(&everything().only(["b"])).await.unwrap().deleted,
        5,
        "it is an event of type a"
    );
    scene.admin.discard_dead_letter(1).await.unwrap();
    assert_eq!(prune(&scene, &before_event(21)).await.deleted, 14);
}

#[tokio::test]
async fn nothing_goes_beyond_the_safe_head() {
    let scene = Scene::with(10).await;
    scene.consumer("search", 10).await;
    let writer = scene.database.client().await;
    writer
        .batch_execute("BEGIN; INSERT INTO inorder.events (event_type, payload) VALUES ('late', '1')")
        .await
        .unwrap();
    scene.append(5).await;
    let would = scene.admin.prunable(&everything()).await.unwrap();
    assert_eq!((would.deleted, would.blocked_by.len()), (10, 1), "{would:?}");
    let pruned = prune(&scene, &everything()).await;
    assert_eq!((pruned.deleted, pruned.up_to), (10, Some(10)));
    assert!(pruned.blocked_by[0].contains("the safe head, at 10"), "{pruned:?}");
    writer.batch_execute("COMMIT").await.unwrap();
    scene.set("search", "status = 'disabled'").await;
    assert_eq!(prune(&scene, &everything()).await.deleted, 6);
    assert_eq!(scene.admin.log_progress().await.unwrap().safe_head, 16, "an empty log knows where it stands");
}

#[tokio::test]
async fn nobody_but_prune_deletes() {
    let scene = Scene::with(10).await;
    prune(&scene, &before_event(6)).await;
    let refusal = scene.client.execute("DELETE FROM inorder.events", &[]).await.unwrap_err();
    assert_eq!(refusal.code().unwrap().code(), "IO001");
    // Not even in the transaction that prunes.
    let both = "BEGIN; SELECT inorder.prune('2026-01-01 08:00'); DELETE FROM inorder.events";
    let refusal = scene.client.batch_execute(both).await.unwrap_err();
    assert_eq!(refusal.code().unwrap().code(), "IO001");
}

#[tokio::test]
async fn arguments_that_mean_nothing_are_refused() {
    let scene = Scene::with(10).await;
    let none: [&str; 0] = [];
    refused(
        scene.admin.prune_step(&everything().only(none)).await,
        ErrorKind::Precondition,
        &["types is {}"],
    );
    refused(
        scene.admin.prune_step(&everything().step_size(0)).await,
        ErrorKind::Precondition,
        &["max_events is 0"],
    );
    assert_eq!(scene.ids().await.len(), 10);
    assert_eq!(prune(&scene, &everything().only(["nobody's"])).await, Pruned::default());
}

const REGISTER: &str = "SELECT inorder.register('new', '', 0, 'batch', 1, NULL, 1, 10, 0, NULL)";

/// I-9: a registration that came first is waited for, and seen.
#[tokio::test]
async fn prune_waits_for_a_consumer_that_is_registering_and_leaves_it_everything() {
    let scene = Scene::with(30).await;
    scene.client.batch_execute(&format!("BEGIN; {REGISTER}")).await.unwrap();
    let admin = scene.admin.clone();
    let pruned = beside(async move { admin.prune(&everything(), |_| ()).await });
    scene.somebody_waits().await;
    scene.client.batch_execute("COMMIT").await.unwrap();
    let pruned = pruned.await.unwrap().unwrap();
    assert_eq!((pruned.deleted, pruned.more), (0, false));
    assert_eq!(pruned.blocked_by, ["consumer \"new\", idle at position 0"]);
    assert_eq!(scene.ids().await.len(), 30);
}

/// I-9: a registration that comes second waits, and is told what is gone.
#[tokio::test]
async fn a_consumer_that_registers_while_prune_is_under_way_is_told_what_is_gone() {
    let scene = Scene::with(30).await;
    scene.client.batch_execute("BEGIN; SELECT inorder.prune('2026-01-01 20:30')").await.unwrap();
    let newcomer = scene.database.client().await;
    let registered = beside(async move { newcomer.batch_execute(REGISTER).await });
    scene.somebody_waits().await;
    scene.client.batch_execute("COMMIT").await.unwrap();
    registered.await.unwrap().unwrap();
    let progress = &scene.admin.progress("new").await.unwrap()[0];
    assert_eq!((progress.missing_from, progress.missing_to), (Some(1), Some(20)));
}

/// I-9: prune goes past a row that has expired, and past one that wants other types; a registration that changes that waits,
/// or a pass could begin before prune is done and read after it.
#[tokio::test]
async fn a_row_that_comes_back_or_wants_more_waits_for_prune_and_is_told_what_is_gone() {
    for (row, types, revision) in [("status = 'expired'", "NULL", 1), ("event_types = '{b}'", "'{a}'", 2)] {
        let scene = Scene::with(30).await;
        scene.consumer("search", 4).await;
        scene.set("search", row).await;
        scene
            .client
            .batch_execute(&format!("BEGIN; SELECT inorder.prune('2026-01-01 19:30', {types})"))
            .await
            .unwrap();
        let register = format!(
            "SELECT inorder.register('search', '', 0, 'transactional', {revision}, NULL, 1, 10, 0, NULL)"
        );
        let other = scene.database.client().await;
        let registered = beside(async move { other.batch_execute(&register).await });
        scene.somebody_waits().await;
        scene.client.batch_execute("COMMIT").await.unwrap();
        registered.await.unwrap().unwrap();
        let progress = &scene.admin.progress("search").await.unwrap()[0];
        assert_eq!((progress.status.as_str(), progress.event_types.as_deref()), ("idle", None), "{row}");
        assert_eq!((progress.missing_from, progress.missing_to), (Some(5), Some(19)), "{row}");
    }
}

/// I-9: whoever is about to need old events again keeps prune away, as a registration does.
#[tokio::test]
async fn who_needs_old_events_again_waits_for_prune_and_prune_for_them() {
    let scene = Scene::with(30).await;
    scene.consumer("search", 4).await;
    scene.admin.skip_poison("search", scene.event_id(5).await).await.unwrap();
    scene.admin.discard_dead_letter(1).await.unwrap();
    for action in
        ["enable('search')", "reset('search', 3)", "accept_pruned('search')", "retry_dead_letter(1)"]
    {
        scene.set("search", "status = 'disabled', position = 28").await;
        scene.client.batch_execute("BEGIN; SELECT inorder.prune('2026-01-01 01:00')").await.unwrap();
        scene.client.batch_execute("SELECT FROM inorder.log_state FOR UPDATE").await.unwrap();
        let other = scene.database.client().await;
        let acted = beside(async move { other.batch_execute(&format!("SELECT inorder.{action}")).await });
        scene.somebody_waits().await;
        assert!(!acted.is_finished(), "{action}");
        scene.client.batch_execute("ROLLBACK").await.unwrap();
        // Refused or done, but not before.
        let _ = acted.await.unwrap();
    }
    // The other way round.
    scene.set("search", "status = 'disabled', position = 28").await;
    scene
        .client
        .batch_execute("BEGIN; SELECT inorder.reset('search', 3); SELECT inorder.enable('search')")
        .await
        .unwrap();
    let admin = scene.admin.clone();
    let pruned = beside(async move { admin.prune(&everything(), |_| ()).await });
    scene.somebody_waits().await;
    scene.client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(pruned.await.unwrap().unwrap().up_to, Some(3));
}

#[tokio::test]
async fn a_prune_that_cannot_begin_says_who_is_in_the_way() {
    let scene = Scene::with(10).await;
    let other = scene.database.client().await;
    other
        .batch_execute("SET application_name = 'shop'; BEGIN; SELECT FROM inorder.log_state FOR SHARE")
        .await
        .unwrap();
    let refusal = scene.admin.prune_step(&everything()).await;
    refused(refusal, ErrorKind::Busy, &["the log is held by pid", "application \"shop\""]);
    assert_eq!(scene.ids().await.len(), 10);
}

/// I-9, against an oracle that knows only what the rules say: what goes is what may go, and all of it.
#[tokio::test]
async fn exactly_what_nobody_needs_goes() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let scene = Scene::with(0).await;
    let writer = scene.database.client().await;
    for round in 0..25 {
        let writes = random.u8(..3) == 0;
        shuffle(&scene, &mut random, writes.then_some(&writer)).await;
        let types = match random.u8(..3) {
            0 => Some(vec!["a".to_owned(), "c".to_owned()]),
            1 => Some(vec!["b".to_owned()]),
            _ => None,
        };
        let age = Duration::hours(random.i64(0..200));
        let before = time::macros::datetime!(2026-01-01 0:00 UTC) + age;
        let oracle = Oracle::look(&scene).await;
        let may_go = oracle.may_go(before, types.as_deref());
        let mut what = Prune::before(before).step_size(random.i32(1..40));
        if let Some(types) = &types {
            what = what.only(types);
        }
        let context = format!("seed {seed}, round {round}, {what}, {oracle:?}");
        let would = scene.admin.prunable(&what).await.unwrap();
        let went = prune(&scene, &what).await;
        let left: BTreeSet<i64> = scene.ids().await.into_iter().collect();
        let gone: BTreeSet<i64> = oracle.events.keys().copied().filter(|id| !left.contains(id)).collect();
        assert_eq!(gone, may_go, "{context}");
        assert_eq!(usize::try_from(went.deleted).unwrap(), gone.len(), "{context}");
        assert_eq!((would.deleted, would.up_to), (went.deleted, went.up_to), "{context}");
        oracle.assert_nobody_misses(&gone, &context);
        writer.batch_execute("COMMIT").await.unwrap();
    }
}

/// More events, and other consumers and dead letters.
async fn shuffle(scene: &Scene, random: &mut fastrand::Rng, writer: Option<&tokio_postgres::Client>) {
    let mut writer = writer;
    for _ in 0..random.u8(10..60) {
        let event = format!(
            "INSERT INTO inorder.events (event_type, payload, recorded_at) \
             SELECT '{}', '1', timestamptz '2026-01-01' + (coalesce(max(id), 0) / 2.0 + {}) * interval '1 hour' FROM inorder.events",
            random.choice(["a", "b", "c"]).unwrap(),
            random.i8(-3..3)
        );
        let (session, event) = match (random.u8(..10), &mut writer) {
            (0, _) => (&scene.client, format!("BEGIN; {event}; ROLLBACK")),
            (1, writer @ Some(_)) => (writer.take().unwrap(), format!("BEGIN; {event}")),
            _ => (&scene.client, event),
        };
        session.batch_execute(&event).await.unwrap();
    }
    scene
        .client
        .batch_execute("DELETE FROM inorder.consumers; DELETE FROM inorder.dead_letters")
        .await
        .unwrap();
    let safe_head = scene.value("SELECT inorder.safe_head()").await.as_i64().unwrap();
    for name in 0..random.u8(..5) {
        let filter = ["NULL", "'{a}'", "'{b,c}'", "'{d}'"];
        let insert = format!(
            "INSERT INTO inorder.consumers (name, kind, position, status, event_types) VALUES ('c{name}', 'batch', {}, '{}', {})",
            random.i64(safe_head / 2..=safe_head),
            random.choice(["idle", "idle", "dead", "disabled", "expired"]).unwrap(),
            random.choice(filter).unwrap()
        );
        scene.client.batch_execute(&insert).await.unwrap();
    }
    for _ in 0..random.u8(..3) {
        let insert = format!(
            "INSERT INTO inorder.dead_letters (consumer, position, event_id, event_type, reason, state) \
             SELECT 'c0', id, event_id, event_type, 'operator_skip', '{}' FROM inorder.events \
             WHERE id <= {safe_head} ORDER BY id OFFSET {} LIMIT 1",
            random.choice(["open", "retry_requested", "resolved", "discarded"]).unwrap(),
            random.u8(..40)
        );
        scene.client.batch_execute(&insert).await.unwrap();
    }
}

/// The state of a log, and what the rules say about it.
#[derive(Debug)]
struct Oracle {
    safe_head: i64,
    /// By id: type, and when it was recorded.
    events: BTreeMap<i64, (String, OffsetDateTime)>,
    /// Position and filter of those that count.
    consumers: Vec<(i64, Option<Vec<String>>)>,
    /// Position and type of those that are unfinished.
    letters: Vec<(i64, String)>,
}

impl Oracle {
    async fn look(scene: &Scene) -> Self {
        let query = async |sql: &str| scene.client.query(sql, &[]).await.unwrap();
        let events = query("SELECT id, event_type, recorded_at FROM inorder.events").await;
        let consumers =
            query("SELECT position, event_types FROM inorder.consumers WHERE status IN ('idle', 'dead')")
                .await;
        let letters = query(
            "SELECT position, event_type FROM inorder.dead_letters WHERE state IN ('open', 'retry_requested')",
        )
        .await;
        Self {
            safe_head: query("SELECT inorder.safe_head()").await[0].get(0),
            events: events.iter().map(|r| (r.get(0), (r.get(1), r.get(2)))).collect(),
            consumers: consumers.iter().map(|r| (r.get(0), r.get(1))).collect(),
            letters: letters.iter().map(|r| (r.get(0), r.get(1))).collect(),
        }
    }

    fn may_go(&self, before: OffsetDateTime, types: Option<&[String]>) -> BTreeSet<i64> {
        let meant = |event_type: &String| types.is_none_or(|types| types.contains(event_type));
        let mut may_go = BTreeSet::new();
        for (id, (event_type, recorded_at)) in &self.events {
            if !meant(event_type) {
                continue;
            }
            let needed = |&(position, ref filter): &(i64, Option<Vec<String>>)| {
                position < *id
                    && filter.as_ref().is_none_or(|f| types.is_none_or(|t| f.iter().any(|w| t.contains(w))))
            };
            let kept = |(position, event_type): &(i64, String)| *position <= *id && meant(event_type);
            if *recorded_at >= before
                || *id > self.safe_head
                || self.consumers.iter().any(needed)
                || self.letters.iter().any(kept)
            {
                break;
            }
            may_go.insert(*id);
        }
        may_go
    }

    fn assert_nobody_misses(&self, gone: &BTreeSet<i64>, context: &str) {
        for id in gone {
            let event_type = &self.events[id].0;
            let unread = |(position, filter): &(i64, Option<Vec<String>>)| {
                position < id && filter.as_ref().is_none_or(|f| f.contains(event_type))
            };
            assert!(!self.consumers.iter().any(unread), "event {id} was not read; {context}");
            assert!(
                !self.letters.iter().any(|(position, _)| position == id),
                "event {id} has a letter; {context}"
            );
        }
    }
}

/// I-9, with everybody at it at the same time: what is open or unread is there at every moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_an_operator_skips_while_prune_runs_is_kept() {
    let scene = Scene::with(400).await;
    scene.consumer("search", 0).await;
    let (pruner, retrier) = (scene.admin.clone(), scene.admin.clone());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let (stopped_too, prune) = (stopped.clone(), everything().step_size(5));
    let pruning = beside(async move {
        let mut deleted = 0;
        while !*stopped.borrow() {
            deleted += pruner.prune_step(&prune).await.unwrap().deleted;
        }
        deleted
    });
    let discarding = beside(async move {
        let mut last = 0;
        while !*stopped_too.borrow() {
            for letter in
                retrier.dead_letters(&inorder::DeadLetters::open().after(last).limit(3)).await.unwrap()
            {
                last = letter.id;
                retrier.discard_dead_letter(letter.id).await.unwrap();
                // Taken back where its event is still there.
                if let Err(e) = retrier.retry_dead_letter(letter.id).await {
                    assert!(e.report().contains("no longer in the log"), "{e:?}");
                } else {
                    assert!(
                        retrier.dead_letter(letter.id).await.unwrap().1.is_some(),
                        "a letter lost its event"
                    );
                    retrier.discard_dead_letter(letter.id).await.unwrap();
                }
            }
        }
    });
    for id in 1..=400 {
        scene.admin.skip_poison("search", scene.event_id(id).await).await.unwrap();
        let lost = "SELECT count(*) FROM inorder.dead_letters AS d WHERE d.state IN ('open', 'retry_requested') \
            AND NOT EXISTS (SELECT FROM inorder.events AS e WHERE e.event_id = d.event_id)";
        assert_eq!(scene.value(lost).await, json!(0), "at {id}");
    }
    stop.send(true).unwrap();
    discarding.await.unwrap();
    assert!(pruning.await.unwrap() > 0, "both were at it at the same time");
}
