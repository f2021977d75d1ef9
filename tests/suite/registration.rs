//! Consumers are registered before they run, and whoever may not run one is told why.

use std::time::Duration;

use inorder::{Consumer, DispatcherBuilder, ErrorKind, Inorder, Outcome, Registered, Start};

use crate::support::{Act, Actor, Gate, LIMIT, Stage, empty_database, eventually, within};

fn plain(name: &str) -> Consumer {
    Actor::new(name).transactional()
}

/// What building says; it knows nothing of a server.
async fn refused_to_build(adjust: impl FnOnce(DispatcherBuilder) -> DispatcherBuilder) -> String {
    let stage = Stage::with_events(0).await;
    let error = adjust(inorder::Dispatcher::builder(&stage.log)).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert_eq!(stage.count("SELECT count(*) FROM inorder.consumers").await, 0);
    error.to_string()
}

async fn refused_to_register(stage: &Stage, consumers: Vec<Consumer>) -> String {
    let error = stage.dispatcher(consumers).build().unwrap().register().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error:?}");
    error.report()
}

async fn outcome(consumers: &Registered, name: &str) -> Outcome {
    consumers.run_once().await.unwrap()[name].outcome.clone()
}

/// I-1.
#[tokio::test]
async fn registering_again_touches_no_position() {
    let stage = Stage::with_events(3).await;
    stage.register([plain("c")]).await.drain().await.unwrap();
    for start in [Start::Beginning, Start::Head, Start::After(1)] {
        let consumers = stage.register([plain("c").start(start)]).await;
        assert_eq!(stage.standing("c").await.position, 3);
        assert_eq!(consumers.drain().await.unwrap()["c"].processed, 0);
    }
    assert_eq!(stage.count("SELECT count(*) FROM inorder.consumers").await, 1);
}

/// I-1: twenty processes at once make one row, and none of them fails.
#[tokio::test]
async fn processes_that_start_together_register_one_row() {
    let stage = Stage::with_events(2).await;
    let dispatchers: Vec<_> = (0..20)
        .map(|_| stage.dispatcher([plain("a"), plain("b").partitions(3)]).max_passes(1).build().unwrap())
        .collect();
    let all = dispatchers.iter().map(inorder::Dispatcher::register);
    for registered in within("all are registered", futures_util::future::join_all(all)).await {
        registered.unwrap();
    }
    assert_eq!(stage.count("SELECT count(*) FROM inorder.consumers").await, 4);
}

#[tokio::test]
async fn a_consumer_begins_where_it_is_told() {
    let stage = Stage::with_events(5).await;
    let consumers = stage
        .register([
            plain("beginning"),
            plain("head").start(Start::Head),
            plain("after").start(Start::After(3)),
            plain("nothing").start(Start::After(0)),
        ])
        .await;
    consumers.drain().await.unwrap();
    stage.append(1).await;
    consumers.drain().await.unwrap();
    assert_eq!(stage.effects("beginning").await, [1, 2, 3, 4, 5, 6]);
    assert_eq!(stage.effects("nothing").await, [1, 2, 3, 4, 5, 6]);
    assert_eq!(stage.effects("after").await, [4, 5, 6]);
    assert_eq!(stage.effects("head").await, [6]);
}

/// I-1: an id that nobody has yet could be anybody's.
#[tokio::test]
async fn a_start_beyond_the_head_is_refused_and_nothing_is_registered() {
    let stage = Stage::with_events(5).await;
    let refusal = refused_to_register(&stage, vec![plain("a"), plain("b").start(Start::After(6))]).await;
    for words in ["consumer b", "after id 6", "the safe head 5"] {
        assert!(refusal.contains(words), "{refusal}");
    }
    assert_eq!(stage.count("SELECT count(*) FROM inorder.consumers").await, 0);
}

/// I-1: an event that is being appended while `Head` is looked for is not lost.
#[tokio::test]
async fn head_is_behind_whoever_is_writing() {
    let stage = Stage::with_events(2).await;
    let writer = crate::support::Writer::in_transaction(stage.database.url()).await;
    assert_eq!(writer.append().await, 3);
    stage.append(1).await;
    let asking = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND query LIKE '-- inorder safe_head/writers%'";
    let late = async {
        eventually(LIMIT, "it waits for whoever is writing", async || stage.count(asking).await > 0).await;
        writer.commit().await;
    };
    let (consumers, ()) = tokio::join!(stage.register([plain("c").start(Start::Head)]), late);
    let begins = stage.standing("c").await.position;
    assert!([2, 4].contains(&begins), "{begins}");
    consumers.drain().await.unwrap();
    let expected: Vec<i64> = (begins + 1..=4).collect();
    assert_eq!(stage.effects("c").await, expected);
}

#[tokio::test]
async fn per_instance_consumers_give_every_instance_every_event() {
    let stage = Stage::with_events(2).await;
    let instance = async |name: &str, start: Option<Start>| {
        let mut consumer = Actor::new("cache").transactional().per_instance();
        if let Some(start) = start {
            consumer = consumer.start(start);
        }
        stage.dispatcher([consumer]).instance(name).build().unwrap().register().await.unwrap()
    };
    let (a, b) = (instance("a", None).await, instance("b", Some(Start::Beginning)).await);
    stage.append(2).await;

    let (of_a, of_b) = tokio::join!(a.drain(), b.drain());

    assert_eq!((of_a.unwrap()["cache@a"].processed, of_b.unwrap()["cache@b"].processed), (2, 4));
    let mut all = stage.effects("cache").await;
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3, 3, 4, 4], "from the head by default");
    // The same instance comes back where it was.
    let again = instance("a", None).await;
    stage.append(1).await;
    assert_eq!(again.drain().await.unwrap()["cache@a"].processed, 1);
    assert_eq!(stage.standings("cache").await.len(), 2);
}

#[tokio::test]
async fn what_is_out_of_range_is_refused_by_name_and_value() {
    let cases: Vec<(Consumer, &[&str])> = vec![
        (plain(""), &["name is \"\"", "1 to 200 bytes"]),
        (plain(&"x".repeat(201)), &["name", "1 to 200 bytes"]),
        (plain("a/b"), &["name is \"a/b\"", "free of / and @"]),
        (plain("a@b"), &["name is \"a@b\"", "free of / and @"]),
        (plain("a\0b"), &["name", "free of"]),
        (plain("inorder.relay"), &["inorder.relay", "reserved"]),
        (plain("c").batch_size(0), &["\"c\"", "batch_size is 0", "1 to 100,000"]),
        (plain("c").batch_size(100_001), &["batch_size is 100001"]),
        (plain("c").handler_timeout(Duration::ZERO), &["handler_timeout is 0ns", "1 ms to 24 h"]),
        (plain("c").pass_timeout(Duration::from_secs(100_000)), &["pass_timeout is 100000s", "24 h"]),
        (plain("c").max_attempts(0), &["max_attempts is 0", "at least 1"]),
        (plain("c").max_faults(u32::MAX), &["max_faults is 4294967295"]),
        (plain("c").partitions(0), &["partitions is 0", "1 to 1,024"]),
        (plain("c").partitions(2_000), &["partitions is 2000"]),
        (plain("c").revision(0), &["revision is 0", "at least 1"]),
        (plain("c").only(Vec::<String>::new()), &["only is []", "at least one event type"]),
        (plain("c").start(Start::After(-1)), &["start is -1", "at least 0"]),
        (plain("c").per_instance(), &["\"c\" is per instance", "instance("]),
    ];
    for (consumer, words) in cases {
        let refusal = refused_to_build(|builder| builder.consumer(consumer)).await;
        assert!(words.iter().all(|word| refusal.contains(word)), "{refusal}: {words:?}");
    }
    type Adjust = fn(DispatcherBuilder) -> DispatcherBuilder;
    let cases: Vec<(Adjust, &[&str])> = vec![
        (|b| b, &["no consumer"]),
        (|b| b.consumer(plain("twice")).consumer(plain("twice")), &["\"twice\" is there twice"]),
        (|b| b.consumer(plain("c")).max_passes(0), &["max_passes is 0", "1 to 1,000"]),
        (|b| b.consumer(plain("c")).poll_interval(Duration::ZERO), &["poll_interval is 0ns", "10 ms to 1 h"]),
        (|b| b.consumer(plain("c")).read_ahead_bytes(1), &["read_ahead_bytes is 1", "1 MiB"]),
        (|b| b.consumer(plain("c").per_instance()).instance(""), &["per instance"]),
        (|b| b.consumer(plain("c")).instance("a/b"), &["instance is \"a/b\""]),
    ];
    for (adjust, words) in cases {
        let refusal = refused_to_build(adjust).await;
        assert!(words.iter().all(|word| refusal.contains(word)), "{refusal}: {words:?}");
    }
}

#[tokio::test]
async fn a_changed_kind_is_refused_under_any_revision() {
    let stage = Stage::with_events(1).await;
    stage.register([plain("c")]).await;
    for revision in [1, 2] {
        let changed = Actor::new("c").batch().revision(revision);
        let refusal = refused_to_register(&stage, vec![changed]).await;
        for words in ["consumer c", "registered as transactional", "asked for as batch"] {
            assert!(refusal.contains(words), "{refusal}");
        }
    }
}

#[tokio::test]
async fn another_number_of_partitions_is_refused() {
    let stage = Stage::with_events(1).await;
    stage.register([plain("c").partitions(2)]).await;
    for partitions in [1, 3] {
        let refusal = refused_to_register(&stage, vec![plain("c").partitions(partitions).revision(2)]).await;
        assert!(refusal.contains("2 partition(s)"), "{refusal}");
        assert!(refusal.contains("repartition()"), "{refusal}");
    }
    assert_eq!(stage.standings("c").await.len(), 2);
}

#[tokio::test]
async fn another_filter_under_the_same_revision_is_refused_with_a_hint() {
    let stage = Stage::with_events(1).await;
    stage.register([plain("c").only(["a", "b"])]).await;
    for changed in [plain("c"), plain("c").only(["a"]), plain("c").only(["a", "b", "c"])] {
        let refusal = refused_to_register(&stage, vec![plain("other"), changed]).await;
        for words in ["consumer c", "revision 1", "raise the revision"] {
            assert!(refusal.contains(words), "{refusal}");
        }
    }
    assert_eq!(stage.count("SELECT count(*) FROM inorder.consumers").await, 1, "all or none");
    stage.register([plain("c").only(["b", "a", "b"])]).await;
}

/// I-1: a rolling deploy. The higher revision wins, the lower one says so and keeps away, and a wider filter holds from the
/// position at which it was recorded.
#[tokio::test]
async fn the_higher_revision_runs_a_consumer_and_the_lower_one_says_so() {
    let stage = Stage::with_events(0).await;
    stage.append_types(&["a", "b"]).await;
    let old = stage.register([plain("c").only(["a"])]).await;
    old.drain().await.unwrap();
    assert_eq!(stage.effects("c").await, [1]);

    stage.append_types(&["a", "b"]).await;
    let new = stage.register([plain("c").only(["a", "b"]).revision(2)]).await;
    assert_eq!(outcome(&old, "c").await, Outcome::Outdated { registered: 2, ours: 1 });
    // Also one that starts now, although it asks for something else.
    let late = stage.register([plain("c").only(["a"])]).await;
    assert_eq!(outcome(&late, "c").await, Outcome::Outdated { registered: 2, ours: 1 });

    new.drain().await.unwrap();
    assert_eq!(stage.effects("c").await, [1, 3, 4]);
}

/// I-1: the old version is in the middle of a pass when the new one comes: nobody delivers by the old filter afterwards.
#[tokio::test]
async fn a_new_revision_waits_for_the_pass_of_the_old_one() {
    let stage = Stage::with_events(0).await;
    stage.append_types(&["a", "b"]).await;
    let gate = Gate::closed();
    let old = Actor::new("c").at(1, Act::Meet(gate.clone())).transactional().only(["a"]);
    let old = stage.dispatcher([old]).build().unwrap().start().await.unwrap();
    gate.reached().await;
    let dispatcher = stage.dispatcher([plain("c").revision(2)]).build().unwrap();
    let starting = tokio::spawn(async move { dispatcher.start().await });
    eventually(LIMIT, "it waits", async || {
        stage.count("SELECT count(*) FROM pg_locks WHERE NOT granted").await > 0
    })
    .await;

    stage.append_types(&["b"]).await;
    gate.open();
    let new = within("the new one starts", starting).await.unwrap().unwrap();
    stage.append_types(&["a", "b"]).await;

    eventually(LIMIT, "all is delivered", async || stage.standing("c").await.position == 5).await;
    let effects = stage.effects("c").await;
    // Whether 3 came with the old filter is a matter of moments; what comes after the registration did not.
    assert!(effects == [1, 3, 4, 5] || effects == [1, 4, 5], "{effects:?}");
    new.stop().await.unwrap();
    old.stop().await.unwrap();
}

/// I-1: two versions that come together with the same revision and different filters: one of them is refused, however close
/// they are.
#[tokio::test]
async fn of_two_filters_under_one_new_revision_only_one_is_registered() {
    let stage = Stage::with_events(1).await;
    stage.register([plain("c").only(["a"])]).await;
    // Both have read the row, and wait for each other behind this.
    let mut held = stage.database.client().await;
    let hold = held.transaction().await.unwrap();
    hold.batch_execute("SELECT FROM inorder.consumers FOR UPDATE").await.unwrap();
    let dispatchers = [["a", "b"], ["a", "c"]]
        .map(|only| stage.dispatcher([plain("c").only(only).revision(2)]).build().unwrap());
    let both = dispatchers.map(|dispatcher| tokio::spawn(async move { dispatcher.register().await }));
    eventually(LIMIT, "both wait", async || {
        stage.count("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").await == 2
    })
    .await;
    hold.commit().await.unwrap();

    let mut refusals = Vec::new();
    for registering in both {
        refusals.extend(within("it is decided", registering).await.unwrap().err());
    }

    assert_eq!(refusals.len(), 1, "{refusals:?}");
    assert!(refusals[0].to_string().contains("raise the revision"), "{refusals:?}");
}

/// Why a consumer does not run, told apart.
#[tokio::test]
async fn every_reason_for_not_running_has_its_own_name() {
    let stage = Stage::with_events(4).await;
    let gate = Gate::closed();
    let consumers = stage.register([Actor::new("c").at(2, Act::Reject("never")).transactional()]).await;
    assert_eq!(outcome(&consumers, "c").await, Outcome::Dead { at: 2 });
    assert_eq!(outcome(&consumers, "c").await, Outcome::Dead { at: 2 });

    stage.sql("UPDATE inorder.consumers SET status = 'disabled'").await;
    assert_eq!(outcome(&consumers, "c").await, Outcome::Disabled);

    stage.sql("UPDATE inorder.consumers SET status = 'expired'").await;
    assert_eq!(outcome(&consumers, "c").await, Outcome::Expired);

    stage.sql("UPDATE inorder.consumers SET status = 'idle', position = 1; UPDATE inorder.log_state SET pruned_to = 3").await;
    assert_eq!(outcome(&consumers, "c").await, Outcome::Pruned { from: 2, to: 3 });
    stage.sql("UPDATE inorder.log_state SET pruned_to = 0").await;

    stage.sql("UPDATE inorder.consumers SET next_attempt_at = clock_timestamp() + interval '1 hour'").await;
    assert!(matches!(outcome(&consumers, "c").await, Outcome::Waiting { at: 2, .. }));

    stage.sql("UPDATE inorder.consumers SET next_attempt_at = NULL, revision = 7").await;
    assert_eq!(outcome(&consumers, "c").await, Outcome::Outdated { registered: 7, ours: 1 });

    stage.sql("UPDATE inorder.consumers SET revision = 1").await;
    let holder = stage.register([Actor::new("c").at(2, Act::Meet(gate.clone())).transactional()]).await;
    let pass = tokio::spawn(async move { holder.run_once().await });
    gate.reached().await;
    assert_eq!(outcome(&consumers, "c").await, Outcome::Busy);
    gate.open();
    pass.await.unwrap().unwrap();
    assert_eq!(outcome(&consumers, "c").await, Outcome::CaughtUp);

    stage.sql("DELETE FROM inorder.consumers").await;
    assert_eq!(outcome(&consumers, "c").await, Outcome::Unregistered);
}

/// I-7: the others go on, and it does too once somebody registers it again.
#[tokio::test]
async fn a_row_that_goes_away_behind_our_back_stops_only_its_consumer() {
    let stage = Stage::with_events(1).await;
    let running = stage.dispatcher([plain("gone"), plain("stays")]).build().unwrap().start().await.unwrap();
    eventually(LIMIT, "both have run", async || {
        stage.effects("gone").await.len() + stage.effects("stays").await.len() == 2
    })
    .await;

    stage.sql("DELETE FROM inorder.consumers WHERE name = 'gone'").await;
    stage.append(2).await;
    eventually(LIMIT, "the other one goes on", async || stage.effects("stays").await == [1, 2, 3]).await;
    assert_eq!(stage.effects("gone").await, [1]);
    assert_eq!(
        stage.count("SELECT count(*) FROM inorder.consumers").await,
        1,
        "nobody registers it by itself"
    );

    stage.register([plain("gone").start(Start::After(1))]).await;
    eventually(LIMIT, "it is run again", async || stage.effects("gone").await == [1, 2, 3]).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn an_expired_instance_that_comes_back_goes_on_where_it_was_or_at_the_head_as_it_says() {
    let stage = Stage::with_events(4).await;
    let instance = async |consumer: Consumer| {
        let consumer = consumer.per_instance().start(Start::Beginning);
        stage.dispatcher([consumer]).instance("i").build().unwrap().register().await.unwrap()
    };
    instance(plain("stays")).await;
    instance(plain("moves")).await;
    stage.sql("UPDATE inorder.consumers SET status = 'expired'").await;

    let (stays, moves) = (instance(plain("stays")).await, instance(plain("moves").rejoin_at_head()).await);

    stage.append(1).await;
    stays.drain().await.unwrap();
    moves.drain().await.unwrap();
    assert_eq!(stage.effects("stays").await, [1, 2, 3, 4, 5]);
    assert_eq!(stage.effects("moves").await, [5]);
    // What it passed over is kept.
    let range = "SELECT count(*) FROM inorder.dead_letters WHERE consumer = 'moves' AND position = 1 AND position_to = 4";
    assert_eq!(stage.count(range).await, 1);
}

#[tokio::test]
async fn a_schema_that_is_missing_is_said_before_anything_is_registered() {
    let database = empty_database().await;
    let log = Inorder::connect(database.url()).await.unwrap();
    let dispatcher = inorder::Dispatcher::builder(&log).consumer(plain("c")).build().unwrap();
    let error = dispatcher.register().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Migration, "{error:?}");
}
