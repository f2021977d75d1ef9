//! What operators do with the tool.

use inorder::{Append, Consumer, Dispatcher, ExpectedVersion, Inorder, NewEvent, Outcome};
use tokio_postgres::NoTls;
use uuid::Uuid;

use super::{program, run, run_with};
use crate::support::database::Database;
use crate::support::{database, empty_database};

/// A log with ten events, and a consumer that dies at the fourth.
pub(super) struct Dead {
    pub(super) db: Database,
    pub(super) log: Inorder,
    pub(super) event_ids: Vec<Uuid>,
}

impl Dead {
    pub(super) async fn new() -> Self {
        let db = database().await;
        let log = Inorder::connect(db.url()).await.unwrap();
        let events: Vec<NewEvent> = (1..=10)
            .map(|n| NewEvent::from_json("counted", n.to_string()).event_id(Uuid::from_u128(n)))
            .collect();
        let Append::Appended(ids) = log.append(ExpectedVersion::Any, &events).await.unwrap() else {
            panic!()
        };
        assert_eq!(ids, (1..=10).collect::<Vec<i64>>());
        let dead = Self { db, log, event_ids: (1..=10).map(Uuid::from_u128).collect() };
        assert_eq!(dead.pass().await, Outcome::Dead { at: 4 });
        dead
    }

    /// One more pass of the consumer.
    pub(super) async fn pass(&self) -> Outcome {
        let consumer = Consumer::transactional_fn("picky", |event, _| {
            Box::pin(async move {
                match event.payload::<i64>()? {
                    4 => Err("four\nis too many".into()),
                    _ => Ok(()),
                }
            })
        });
        let dispatcher = Dispatcher::builder(&self.log).consumer(consumer.max_attempts(1)).build().unwrap();
        let report = dispatcher.register().await.unwrap().drain().await.unwrap();
        report["picky"].outcome.clone()
    }

    pub(super) fn url(&self) -> &str {
        self.db.url()
    }
}

#[tokio::test]
async fn status_shows_a_dead_consumer_and_what_can_be_done() {
    let dead = Dead::new().await;
    let shown = run(dead.url(), "status").await;
    let lines: Vec<Vec<&str>> = shown.said().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["CONSUMER", "STATE", "POSITION", "LAG", "BEHIND", "ATTEMPTS", "LAST", "ERROR"]);
    assert_eq!(lines[1][..4], ["picky", "dead", "3", "7"]);
    assert_eq!(lines[1][5..], ["1/1", "event", "4", "(counted):", "four", "is", "too", "many"]);
    assert!(shown.out.contains("safe head 10 · head 10"), "{}", shown.out);
    assert!(shown.out.contains("inorder skip picky --event 4"), "{}", shown.out);
    assert!(!shown.out.contains('\u{1b}'), "colours are for terminals");

    let json = run(dead.url(), "status --json").await.json();
    assert_eq!(json["consumers"][0]["status"], "dead");
    assert_eq!(json["consumers"][0]["failed_event_id"], dead.event_ids[3].to_string());
    assert_eq!(json["log"]["safe_head"], 10);
    assert!(json["blockers"].as_array().unwrap().is_empty());

    assert!(run(dead.url(), "status --check").await.failed(1).contains("picky"));
    assert!(run(dead.url(), "status nobody").await.failed(4).contains(r#"registered are "picky""#));
}

#[tokio::test]
async fn the_poison_event_is_skipped_by_id_or_by_event_id_and_only_that_one() {
    for by_id in [true, false] {
        let dead = Dead::new().await;
        let event = |n: usize| if by_id { n.to_string() } else { dead.event_ids[n - 1].to_string() };
        let skip = async |n: usize| {
            let event = event(n);
            run_with(dead.url(), &["skip", "picky", "--event", &event, "--why", "a test", "--by", "me"]).await
        };
        let refused = skip(5).await;
        assert!(
            refused.failed(4).starts_with(&format!("inorder: skipping event {} of", event(5))),
            "{refused:?}"
        );
        assert!(refused.err.contains(&format!("cannot skip event 5 ({})", dead.event_ids[4])), "{refused:?}");
        assert!(
            refused.err.contains(&format!("the next event is 4 ({}, counted)", dead.event_ids[3])),
            "{refused:?}"
        );
        assert_eq!(skip(4).await.said(), "picky: dead at 3 → idle at 4");
        assert_eq!(dead.pass().await, Outcome::CaughtUp);

        let audit =
            dead.db.client().await.query_one("SELECT by, why, action FROM inorder.audit", &[]).await.unwrap();
        assert_eq!([0, 1, 2].map(|i| audit.get::<_, String>(i)), ["me", "a test", "skip_poison"]);
        let letters = run(dead.url(), "dead-letters list --json").await.json();
        assert_eq!(letters["dead_letters"][0]["event_id"], dead.event_ids[3].to_string());
    }
    let dead = Dead::new().await;
    let ran = run_with(dead.url(), &["skip", "picky", "--event", "11", "--why", "none"]).await;
    assert!(ran.failed(4).contains("there is no event 11"));
}

#[tokio::test]
async fn the_other_verbs_do_what_they_say() {
    let dead = Dead::new().await;
    let url = dead.url();
    let said = async |arguments: &str| run(url, arguments).await.said().to_owned();
    assert_eq!(said("restart picky").await, "picky: dead at 3 → idle at 3");
    assert_eq!(said("disable picky").await, "picky: idle at 3 → disabled at 3");
    assert_eq!(said("reset picky --to 4 --yes").await, "picky: disabled at 3 → disabled at 4");
    assert_eq!(said("enable picky").await, "picky: disabled at 4 → idle at 4");
    assert_eq!(said("reset picky --to head --yes").await, "picky: idle at 4 → idle at 10");
    let repeating = run(url, "reset picky --to 2 --repeat-effects --yes").await;
    assert!(repeating.failed(4).contains("leave repeat_effects out"), "{repeating:?}");
    assert_eq!(
        said("repartition picky 2").await,
        "picky/0: idle at 10 → idle at 10\npicky/1: not there → idle at 10"
    );
    assert_eq!(said("disable picky/1").await, "picky/1: idle at 10 → disabled at 10");
    assert_eq!(
        said("unregister picky --yes").await,
        "picky/0: idle at 10 → gone\npicky/1: disabled at 10 → gone"
    );
    assert!(run(url, "restart picky").await.failed(4).contains("no consumer"));

    let json = run(Dead::new().await.url(), "restart picky --why ready --json").await.json();
    assert_eq!(json["changes"][0]["why"], "ready");
    assert_eq!(json["changes"][0]["before"]["status"], "dead");
}

#[tokio::test]
async fn dead_letters_are_listed_shown_retried_and_discarded() {
    let dead = Dead::new().await;
    let url = dead.url();
    run_with(url, &["skip", "picky", "--event", "4", "--why", "a test"]).await.said();
    let shown = run(url, "dead-letters show 1").await;
    assert!(shown.said().contains("four is too many") && shown.out.contains(r#""payload":4"#), "{shown:?}");
    let json = run(url, "dead-letters show 1 --json").await.json();
    assert_eq!((&json["dead_letter"]["position"], &json["event"]["payload"]), (&4.into(), &4.into()));

    assert_eq!(
        run(url, "dead-letters retry 1").await.said(),
        "picky: dead letter 1 open → dead letter 1 retry_requested"
    );
    assert_eq!(run(url, "dead-letters list").await.said(), "none");
    let listed = run(url, "dead-letters list --state retry-requested --consumer picky").await;
    assert!(listed.said().lines().nth(1).unwrap().contains("operator_skip"), "{listed:?}");
    let discarded = run(url, "dead-letters discard 1 --yes").await;
    assert_eq!(discarded.said(), "picky: dead letter 1 retry_requested → dead letter 1 discarded");
    assert!(run(url, "dead-letters show 2").await.failed(4).contains("no dead letter 2"));
}

/// Standard output is for what was done.
#[tokio::test]
async fn where_every_dead_letter_is_refused_nothing_is_answered_and_where_some_are_those_before_them() {
    let dead = Dead::new().await;
    let url = dead.url();
    run_with(url, &["skip", "picky", "--event", "4", "--why", "a test"]).await.said();
    let refused = run(url, "dead-letters retry 7 1 --json").await;
    assert!(refused.failed(4).contains("no dead letter 7") && refused.out.is_empty(), "{refused:?}");
    let halfway = run(url, "dead-letters retry 1 7 --json").await;
    assert!(halfway.failed(4).contains("no dead letter 7"), "{halfway:?}");
    let told: serde_json::Value = serde_json::from_str(&halfway.out).unwrap();
    assert_eq!(told["changes"].as_array().unwrap().len(), 1, "{told}");
}

#[tokio::test]
async fn many_dead_letters_are_found_retried_and_discarded() {
    let dead = Dead::new().await;
    let url = dead.url();
    let fill = "INSERT INTO inorder.dead_letters (consumer, position, event_id, event_type, error, reason) \
        SELECT 'picky', id, event_id, event_type, 'connection refused', CASE WHEN id < 6 THEN 'exhausted' ELSE 'rejected' END \
        FROM inorder.events ORDER BY id";
    dead.db.client().await.batch_execute(fill).await.unwrap();
    let listed =
        run(url, "dead-letters list --reason exhausted --error REFUSED --limit 3 --json").await.json();
    assert_eq!(listed["dead_letters"].as_array().unwrap().len(), 3);
    assert_eq!(
        run(url, "dead-letters retry --consumer picky --reason exhausted --limit 3").await.said(),
        "3 dead letters to be retried, 1 to 3\nthere are more: run it again"
    );
    let rest = run(url, "dead-letters retry --reason exhausted --json").await.json();
    assert_eq!(rest, serde_json::json!({"letters": [4, 5], "left_out": 0, "more": false}));
    assert_eq!(run(url, "dead-letters retry --reason exhausted").await.said(), "none");
    for arguments in ["dead-letters retry", "dead-letters retry 1 --all", "dead-letters discard --all"] {
        assert_eq!(run(url, arguments).await.code, 2, "{arguments}");
    }
    assert_eq!(
        run(url, "dead-letters discard --type counted --up-to 8 --yes").await.said(),
        "3 dead letters discarded, 6 to 8"
    );
    assert!(run(url, "dead-letters retry --consumer nobody").await.failed(4).contains("no consumer"));
}

#[tokio::test]
async fn the_ledger_is_shown_released_and_forgotten() {
    let dead = Dead::new().await;
    let url = dead.url();
    let claim =
        async |key: inorder::LedgerKey, handler: &str| match dead.log.ledger().claim(key, handler).await {
            Ok(inorder::Claim::Acquired(claim)) => claim,
            other => panic!("{other:?}"),
        };
    let events = dead.log.read(0, 2).await.unwrap();
    claim((&events[0]).into(), "mail").await.complete().await.unwrap();
    claim("order 42".into(), "payments").await.give_up("no such\ncard").await.unwrap();
    let _held = claim((&events[1]).into(), "mail").await;

    let listed = run(url, "ledger list").await;
    assert_eq!(listed.said().lines().count(), 2, "{listed:?}");
    assert!(listed.out.contains("in progress") && listed.out.contains("held until"), "{listed:?}");
    let all = run(url, "ledger list --status any --json").await.json();
    assert_eq!(all["ledger"].as_array().unwrap().len(), 3);
    assert_eq!(run(url, "ledger list --handler nobody").await.said(), "none");
    let shown = run_with(url, &["ledger", "show", "order 42"]).await;
    assert!(shown.said().contains("payments") && shown.out.contains("no such card"), "{shown:?}");
    let shown = run(url, "ledger show 1 mail --json").await.json();
    assert_eq!((&shown["ledger"][0]["status"], &shown["ledger"][0]["position"]), (&"done".into(), &1.into()));
    assert!(run(url, "ledger show 3").await.failed(4).contains("the ledger has no row"));

    assert!(run(url, "ledger release 2 mail").await.failed(4).contains("run twice at the same time"));
    assert!(run(url, "ledger release 2 mail --force").await.failed(2).contains("--yes"));
    assert_eq!(
        run(url, "ledger release 2 mail --force --yes").await.said(),
        "mail, event 2: in progress → pending"
    );
    assert!(run(url, "ledger forget 1 mail").await.failed(2).contains("runs it a second time"));
    assert_eq!(run(url, "ledger forget 1 mail --yes").await.said(), "mail, event 1: done → forgotten");
    let forgotten =
        run_with(url, &["ledger", "forget", "order 42", "payments", "--yes", "--json"]).await.json();
    assert_eq!(forgotten["changes"][0]["action"], "ledger_forget");
    assert_eq!(run(url, "ledger prune --older-than 30d").await.said(), "0 rows forgotten");
    assert!(run(url, "ledger prune --older-than 1m").await.failed(4).contains("an hour"));
}

#[tokio::test]
async fn prune_shows_first_and_deletes_only_what_nobody_needs() {
    let dead = Dead::new().await;
    let url = dead.url();
    let would = run(url, "prune --older-than 0s --dry-run").await;
    let lines: Vec<&str> = would.said().lines().collect();
    assert_eq!(lines[0], "3 events would go, up to id 3");
    assert!(lines[1].contains("picky"), "{lines:?}");

    assert!(run(url, "prune --older-than 0s").await.err.ends_with("say --yes, or do not\n"));
    let json = run(url, "prune --older-than 0s --yes --step-size 2 --json").await.json();
    assert_eq!((&json["deleted"], &json["up_to"], &json["dry_run"]), (&3.into(), &3.into(), &false.into()));
    assert_eq!(run(url, "prune --older-than 1d").await.said(), "nothing may go");
    assert_eq!(run(url, "tail").await.said().lines().count(), 7);
}

/// Where nobody can be asked, nothing that cannot be undone is done.
#[tokio::test]
async fn what_cannot_be_undone_is_refused_where_nobody_can_say_yes() {
    let dead = Dead::new().await;
    run_with(dead.url(), &["skip", "picky", "--event", "4", "--why", "a test"]).await.said();
    let standing = async || run(dead.url(), "status --json").await.json()["consumers"][0]["position"].clone();
    for arguments in
        ["reset picky --to beginning", "unregister picky", "accept-pruned picky", "dead-letters discard 1"]
    {
        assert!(run(dead.url(), arguments).await.failed(2).contains("--yes"), "{arguments}");
    }
    let ran = run(dead.url(), "prune --older-than 0s").await;
    assert_eq!(ran.code, 2, "{ran:?}");
    assert_eq!(standing().await, 4);
    assert_eq!(run(dead.url(), "tail").await.said().lines().count(), 10);
}

#[tokio::test]
async fn nobody_is_asked_about_what_is_not_there() {
    let dead = Dead::new().await;
    for (arguments, missing) in [
        ("reset nobody --to beginning", "no consumer"),
        ("reset picky/3 --to beginning", "no partition 3"),
        ("unregister picky@node-1", "no instance"),
        ("accept-pruned nobody", "no consumer"),
        ("dead-letters discard 1", "no dead letter 1"),
        ("dead-letters discard --consumer nobody", "no consumer"),
        ("ledger release 1 mail --force", "no row"),
        ("ledger forget 1 mail", "no row"),
    ] {
        assert!(run(dead.url(), arguments).await.failed(4).contains(missing), "{arguments}");
    }
}

#[tokio::test]
async fn blockers_are_shown_while_they_write() {
    let db = database().await;
    let url =
        format!("{}{}application_name=checkout", db.url(), if db.url().contains('?') { '&' } else { '?' });
    let (writer, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    writer.batch_execute("BEGIN; SELECT inorder.append('late', '1')").await.unwrap();
    let log = Inorder::connect(db.url()).await.unwrap();
    let _ = log.append(ExpectedVersion::Any, &[NewEvent::from_json("early", "2")]).await.unwrap();

    let shown = run(db.url(), "blockers").await;
    assert!(shown.said().contains("checkout") && shown.out.contains("idle in transaction"), "{shown:?}");
    let status = run(db.url(), "status").await;
    assert!(status.said().contains("safe head 0 · head 2 · hole at 1 held for "), "{status:?}");
    assert!(status.out.contains(r#"(app "checkout", idle in transaction)"#), "{status:?}");
    let json = run(db.url(), "blockers --json").await.json();
    assert_eq!((&json["log"]["hole"], &json["blockers"][0]["application"]), (&1.into(), &"checkout".into()));
    writer.batch_execute("COMMIT").await.unwrap();
    assert!(run(db.url(), "blockers").await.said().starts_with("nobody is writing"));
}

#[tokio::test]
async fn ids_above_two_to_the_53rd_stay_exact() {
    let db = database().await;
    let client = db.client().await;
    client.batch_execute("ALTER SEQUENCE inorder.events_id_seq RESTART WITH 9007199254740993").await.unwrap();
    client.batch_execute("SELECT inorder.append('far', '1')").await.unwrap();
    let shown = run(db.url(), "tail --json").await;
    assert!(shown.said().starts_with(r#"{"id":9007199254740993,"#), "{shown:?}");
    let status = run(db.url(), "status --json").await;
    assert!(status.said().contains(r#""head":9007199254740993"#), "{status:?}");
}

#[tokio::test]
async fn a_log_that_is_not_there_is_named_and_migrate_makes_it() {
    let db = empty_database().await;
    for arguments in ["status", "append", "tail", "restart x", "prune --older-than 1d", "migrate --check"] {
        assert!(run(db.url(), arguments).await.failed(1).contains("run `inorder migrate`"), "{arguments}");
    }
    assert!(run(db.url(), "migrate").await.said().contains("from version 0 to "));
    assert_eq!(run(db.url(), "migrate --check").await.said(), "nothing to do");
    assert_eq!(run(db.url(), "migrate --json").await.json()["applied"], serde_json::json!([]));
    assert!(run(db.url(), "migrate --schema Weird").await.said().contains(r#"schema "Weird""#));
    assert_eq!(run(db.url(), "tail --schema Weird").await.said(), "");
}

#[tokio::test]
async fn exit_codes_tell_wrong_usage_from_a_server_that_is_not_there() {
    let nowhere = "postgres://postgres@127.0.0.1:1/nowhere";
    let unreachable = run(nowhere, "status").await;
    assert!(unreachable.failed(3).contains("connecting to 127.0.0.1:1/nowhere"), "{unreachable:?}");
    assert!(run("nonsense://", "status").await.failed(2).contains("does not parse"));
    for arguments in
        ["", "nonsense", "skip picky", "tail -n x", "tail --from-head", "reset a --to b", "restart a/b"]
    {
        let ran = run(nowhere, arguments).await;
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{arguments}: {ran:?}");
    }
    let nobody = super::ended(
        program()
            .env_remove("INORDER_DATABASE_URL")
            .env("PGHOST", "/nonexistent")
            .arg("status")
            .spawn()
            .unwrap(),
    )
    .await;
    assert!(nobody.failed(3).contains("--database-url"), "{nobody:?}");
    let file = run(nowhere, "append /nonexistent/file").await;
    assert!(file.failed(1).contains("opening /nonexistent/file"), "{file:?}");
}
