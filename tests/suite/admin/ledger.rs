//! The ledger under an operator's hands: what is kept and what is forgotten, released, repeated.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use inorder::{
    Claim, Claimed, Consumer, DeadLetterState, DeadLetters, Dispatcher, ErrorKind, Failure, LedgerRows,
    LedgerStatus, Outcome, Prune, Registered, Reset, Start,
};
use serde_json::json;
use time::OffsetDateTime;

use super::{LIMIT, Scene, refused};
use crate::support::{at_once, eventually};

const MONTH: Duration = Duration::from_secs(30 * 86_400);

fn everything() -> Prune {
    Prune::before(OffsetDateTime::now_utc() + time::Duration::days(9_000))
}

type Runs = Arc<Mutex<Vec<i64>>>;

/// A consumer whose effect is to write down the event, and which fails at those that are in `poison`.
fn mail(kind: &str, runs: &Runs, poison: &'static [i64]) -> Consumer {
    let note = move |runs: &Runs, id: i64| {
        runs.lock().unwrap().push(id);
        match poison.contains(&id) {
            true => Err(Failure::skip("no such address")),
            false => Ok(()),
        }
    };
    let runs = Arc::clone(runs);
    match kind {
        "effect" => Consumer::effect_fn("mail", move |event, _| {
            let answer = note(&runs, event.id());
            Box::pin(async move { answer })
        }),
        _ => Consumer::queued_fn("mail", move |event, _| {
            let answer = note(&runs, event.id());
            Box::pin(async move { answer })
        }),
    }
    .backoff(at_once())
}

fn sorted(runs: &Runs) -> Vec<i64> {
    let mut ids = std::mem::take(&mut *runs.lock().unwrap());
    ids.sort_unstable();
    ids
}

impl Scene {
    async fn mail(&self, kind: &str, runs: &Runs, poison: &'static [i64]) -> Registered {
        let consumer = mail(kind, runs, poison);
        let dispatcher = Dispatcher::builder(&self.log).consumer(consumer).build().unwrap();
        dispatcher.register().await.unwrap_or_else(|e| panic!("{e:?}"))
    }

    /// The row of a consumer of this kind, without one that runs.
    async fn outside(&self, name: &str, kind: &str, position: i64) {
        let insert = "INSERT INTO inorder.consumers (name, kind, position) VALUES ($1, $2, $3)";
        self.client.execute(insert, &[&name, &kind, &position]).await.unwrap();
    }

    async fn claim(&self, id: i64, handler: &str) -> Claimed {
        let event = self.log.read(id - 1, 1).await.unwrap().remove(0);
        match self.log.ledger().claim(&event, handler).await.unwrap() {
            Claim::Acquired(claim) => claim,
            other => panic!("{id} is not ours: {other:?}"),
        }
    }

    /// Done, so many days ago.
    async fn done(&self, ids: impl IntoIterator<Item = i64>, handler: &str, days: i32) {
        for id in ids {
            assert!(self.claim(id, handler).await.complete().await.unwrap());
        }
        let age = "UPDATE inorder.ledger SET updated_at = updated_at - $1 * interval '1 day' WHERE handler = $2 AND status = 'done'";
        self.client.execute(age, &[&f64::from(days), &handler]).await.unwrap();
    }

    /// Which events the ledger has rows of, for a handler.
    async fn remembered(&self, handler: &str) -> Vec<i64> {
        let rows = "SELECT position FROM inorder.ledger WHERE handler = $1 ORDER BY position";
        self.client.query(rows, &[&handler]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }

    async fn floor(&self, handler: &str) -> Option<i64> {
        let floor = "SELECT floor FROM inorder.ledger_floors WHERE handler = $1";
        self.client.query_opt(floor, &[&handler]).await.unwrap().map(|row| row.get(0))
    }
}

/// I-9. What is not finished keeps its event; what is, goes with it.
#[tokio::test]
async fn what_the_ledger_has_not_finished_keeps_its_event_and_is_named() {
    let scene = Scene::with(30).await;
    scene.done(1..=6, "mail", 0).await;
    scene.claim(5, "bill").await.give_up("never").await.unwrap();
    let held = scene.claim(7, "mail").await;
    scene.claim(10, "mail").await.fail(Duration::ZERO, "not yet").await.unwrap();
    scene.log.ledger().claim("a text", "mail").await.map(std::mem::forget).unwrap();
    let pruned = scene.admin.prune(&everything(), |_| ()).await.unwrap();
    assert_eq!(
        pruned.blocked_by,
        ["the ledger, 2 not finished by \"mail\", the first in progress at position 7"]
    );
    assert_eq!((pruned.deleted, scene.ids().await[0]), (6, 7));
    let count = scene.value("SELECT count(*) FROM inorder.ledger").await;
    assert_eq!(count, json!(3), "what was done, or given up, went with its event");

    assert_eq!(
        scene.admin.prunable(&everything().only(["b"])).await.unwrap().deleted,
        0,
        "event 10 is of type b"
    );
    held.complete().await.unwrap();
    let pruned = scene.admin.prune(&everything(), |_| ()).await.unwrap();
    assert_eq!(
        pruned.blocked_by,
        ["the ledger, 1 not finished by \"mail\", the first pending at position 10"]
    );
    scene.claim(10, "mail").await.complete().await.unwrap();
    let pruned = scene.admin.prune(&everything(), |_| ()).await.unwrap();
    assert_eq!(
        (pruned.blocked_by.len(), scene.ids().await.len()),
        (0, 0),
        "a key without a position keeps nothing"
    );
}

/// I-5. It is forgotten after a time, and the floor remembers up to where.
#[tokio::test]
async fn what_was_done_long_ago_is_forgotten_and_raises_the_floor() {
    let scene = Scene::with(10).await;
    scene.outside("mail", "effect", 4).await;
    scene.done(1..=6, "mail", 31).await;
    scene.done(7..=8, "bill", 29).await;
    scene.done([9], "sms", 31).await;
    scene.claim(10, "sms").await.give_up("never").await.unwrap();
    let Claim::Acquired(text) = scene.log.ledger().claim("a text", "web").await.unwrap() else { panic!() };
    text.complete().await.unwrap();
    scene
        .client
        .execute(
            "UPDATE inorder.ledger SET updated_at = updated_at - interval '31 days' WHERE handler = 'web'",
            &[],
        )
        .await
        .unwrap();
    let event = scene.log.read(2, 1).await.unwrap().remove(0);
    let by_uuid = scene.log.ledger().claim(event.event_id(), "uuid").await.unwrap();
    let Claim::Acquired(by_uuid) = by_uuid else { panic!() };
    by_uuid.complete().await.unwrap();
    scene
        .client
        .execute(
            "UPDATE inorder.ledger SET updated_at = updated_at - interval '31 days' WHERE handler = 'uuid'",
            &[],
        )
        .await
        .unwrap();

    assert_eq!(scene.admin.ledger_prune(MONTH).await.unwrap(), 7);
    assert_eq!(scene.remembered("mail").await, [5, 6], "the consumer may be given them again");
    assert_eq!(scene.remembered("bill").await, [7, 8], "not long ago");
    assert_eq!(scene.remembered("sms").await, [10], "what was given up waits for an operator");
    assert_eq!(scene.floor("mail").await, Some(4));
    assert_eq!((scene.floor("bill").await, scene.floor("sms").await), (None, Some(9)));
    assert_eq!(scene.floor("web").await, None, "a text has no place in the log");
    assert_eq!(scene.floor("uuid").await, Some(3), "an event is known by its uuid, too");
    assert_eq!(scene.admin.ledger_prune(MONTH).await.unwrap(), 0);
    let trail = "SELECT after FROM inorder.audit WHERE action = 'ledger_prune' AND by = 'ops'";
    let trail = scene.value(trail).await;
    assert_eq!((&trail["deleted"], &trail["floors"]["mail"]), (&json!(7), &json!(4)));

    let event = scene.log.read(1, 1).await.unwrap().remove(0);
    refused(scene.log.ledger().claim(&event, "mail").await, ErrorKind::Precondition, &["forgotten"]);
    refused(scene.admin.ledger_prune(Duration::from_secs(60)).await, ErrorKind::Precondition, &["an hour"]);
}

/// One step is bounded, and the walk goes on where the last step ended, whoever made it.
#[tokio::test]
async fn the_ledger_is_walked_through_in_steps() {
    let scene = Scene::with(1).await;
    let fill = "INSERT INTO inorder.ledger (event_id, handler, status, updated_at) \
        SELECT gen_random_uuid(), 'mail', 'done', clock_timestamp() - interval '31 days' FROM generate_series(1, 2000)";
    scene.client.batch_execute(fill).await.unwrap();
    let step = "SELECT deleted, more FROM inorder.ledger_prune(blocks => 10)";
    let (mut steps, mut sum) = (0, 0);
    loop {
        let row = scene.client.query_one(step, &[]).await.unwrap();
        steps += 1;
        sum += row.get::<_, i64>("deleted");
        assert!(row.get::<_, i64>("deleted") < 2_000);
        if !row.get::<_, bool>("more") {
            break;
        }
    }
    assert_eq!(sum, 2_000);
    assert!(steps > 2, "{steps}");
    assert_eq!(scene.value("SELECT ledger_block FROM inorder.log_state").await, json!(0));
}

/// I-5.
#[tokio::test]
async fn a_reset_does_not_repeat_effects_unless_it_is_asked_to() {
    for kind in ["effect", "queued"] {
        let scene = Scene::with(6).await;
        let runs = Runs::default();
        let registered = scene.mail(kind, &runs, &[3]).await;
        registered.drain().await.unwrap();
        assert_eq!(sorted(&runs), [1, 2, 3, 4, 5, 6], "{kind}");

        scene.admin.reset("mail", Start::Beginning).await.unwrap();
        let report = registered.drain().await.unwrap();
        assert_eq!((&report["mail"].outcome, sorted(&runs)), (&Outcome::CaughtUp, vec![]), "{kind}");

        let few = Reset::to(Start::After(2)).repeat_effects().max_effects(3);
        refused(scene.admin.reset("mail", few).await, ErrorKind::Precondition, &["more than 3 effects"]);
        let again = Reset::to(Start::After(2)).repeat_effects().max_effects(4);
        let change = scene.admin.reset("mail", again).await.unwrap().remove(0);
        assert_eq!((&change.after["effects_to_repeat"], &change.after["position"]), (&json!(4), &json!(2)));
        registered.drain().await.unwrap();
        assert_eq!(sorted(&runs), [3, 4, 5, 6], "{kind}: with what was given up");
        let letters =
            "SELECT string_agg(state, ' ' ORDER BY id) FROM inorder.dead_letters WHERE position = 3";
        assert_eq!(scene.value(letters).await, json!("discarded open"), "{kind}: the new one counts");
    }
}

/// I-5.
#[tokio::test]
async fn a_reset_to_below_what_is_forgotten_is_refused_unless_effects_may_repeat() {
    let scene = Scene::with(6).await;
    let runs = Runs::default();
    let registered = scene.mail("effect", &runs, &[]).await;
    registered.drain().await.unwrap();
    scene
        .client
        .batch_execute(
            "UPDATE inorder.ledger SET updated_at = updated_at - interval '31 days' WHERE position <= 4",
        )
        .await
        .unwrap();
    assert_eq!(scene.admin.ledger_prune(MONTH).await.unwrap(), 4);
    sorted(&runs);

    let reset = scene.admin.reset("mail", Start::After(3)).await;
    refused(reset, ErrorKind::Precondition, &["up to 4 is forgotten", "repeat_effects"]);
    scene.admin.reset("mail", Start::After(4)).await.unwrap();
    registered.drain().await.unwrap();
    assert_eq!(sorted(&runs), [0; 0]);
    scene.admin.reset("mail", Reset::to(Start::After(1)).repeat_effects()).await.unwrap();
    assert_eq!(scene.floor("mail").await, Some(1));
    registered.drain().await.unwrap();
    assert_eq!(sorted(&runs), [2, 3, 4, 5, 6]);

    scene.consumer("totals", 6).await;
    let reset = scene.admin.reset("totals", Reset::to(Start::Beginning).repeat_effects()).await;
    refused(reset, ErrorKind::Precondition, &["transactional", "leave repeat_effects out"]);
}

#[tokio::test]
async fn of_one_partition_only_its_own_effects_are_repeated_and_only_above_the_floor() {
    let scene = Scene::with(40).await;
    scene.partitioned("mail", 2, 40).await;
    scene.set("mail", "kind = 'queued'").await;
    scene.done(1..=40, "mail", 0).await;
    let change = scene
        .admin
        .reset(inorder::Target::consumer("mail").partition(1), Reset::to(Start::Beginning).repeat_effects())
        .await
        .unwrap();
    let ours =
        scene.value("SELECT count(*) FROM inorder.events WHERE (stream_hash & 2147483647) % 2 = 1").await;
    assert_eq!(change[0].after["effects_to_repeat"], ours);
    assert_eq!(scene.remembered("mail").await.len() as i64, 40 - ours.as_i64().unwrap());
    scene
        .client
        .batch_execute("INSERT INTO inorder.ledger_floors (handler, floor) VALUES ('mail', 20)")
        .await
        .unwrap();
    let one = inorder::Target::consumer("mail").partition(0);
    let reset = scene.admin.reset(one, Reset::to(Start::After(10)).repeat_effects()).await;
    refused(reset, ErrorKind::Precondition, &["all partitions together"]);
    scene.admin.reset("mail", Reset::to(Start::After(10)).repeat_effects()).await.unwrap();
    assert_eq!(scene.floor("mail").await, Some(10));
}

/// I-5. Under a name whose past is forgotten, nothing begins in that past.
#[tokio::test]
async fn a_consumer_is_not_registered_below_what_is_forgotten_under_its_name() {
    let scene = Scene::with(6).await;
    scene
        .client
        .batch_execute("INSERT INTO inorder.ledger_floors (handler, floor) VALUES ('mail', 4)")
        .await
        .unwrap();
    let register = async |start| {
        let consumer = mail("queued", &Runs::default(), &[]).start(start);
        Dispatcher::builder(&scene.log).consumer(consumer).build().unwrap().register().await
    };
    refused(register(Start::Beginning).await, ErrorKind::Config, &["below id 4", "forgotten"]);
    register(Start::After(4)).await.unwrap();
    register(Start::Beginning).await.unwrap();
}

#[tokio::test]
async fn unregistering_forgets_what_waits_and_keeps_what_is_done() {
    let scene = Scene::with(6).await;
    scene.outside("mail", "queued", 6).await;
    scene.done(1..=2, "mail", 0).await;
    scene.claim(3, "mail").await.fail(Duration::ZERO, "not yet").await.unwrap();
    scene.claim(4, "mail").await.give_up("never").await.unwrap();
    let held = scene.claim(5, "mail").await;
    scene.claim(6, "bill").await.release().await.unwrap();
    scene.admin.unregister("mail").await.unwrap();
    assert_eq!(scene.remembered("mail").await, [1, 2, 4, 5]);
    assert_eq!(scene.remembered("bill").await, [6]);
    assert!(held.complete().await.unwrap());
}

#[tokio::test]
async fn the_ledger_is_listed_by_key_handler_and_status_and_in_parts() {
    let scene = Scene::with(6).await;
    scene.done(1..=3, "mail", 0).await;
    scene.claim(3, "bill").await.give_up("no such card").await.unwrap();
    let _held = scene.claim(4, "mail").await;
    let count = async |which: LedgerRows| scene.admin.ledger_rows(&which).await.unwrap().len();
    assert_eq!(count(LedgerRows::any()).await, 5);
    assert_eq!(count(LedgerRows::unfinished()).await, 1);
    assert_eq!(count(LedgerRows::any().of("mail")).await, 4);
    assert_eq!(count(LedgerRows::any().of("mail").status(LedgerStatus::Done)).await, 3);
    assert_eq!(count(LedgerRows::any().of("nobody")).await, 0);

    let event = scene.log.read(2, 1).await.unwrap().remove(0);
    let of_event = scene.admin.ledger_rows(&LedgerRows::any().key(&event)).await.unwrap();
    let shown: Vec<_> = of_event.iter().map(|row| (row.handler.as_str(), row.status, row.position)).collect();
    assert_eq!(shown, [("bill", LedgerStatus::Dead, Some(3)), ("mail", LedgerStatus::Done, Some(3))]);
    assert_eq!(of_event[0].last_error.as_deref(), Some("no such card"));
    assert_eq!(of_event[0].event_type.as_deref(), Some("a"));

    let (mut which, mut parts) = (LedgerRows::any().limit(2), Vec::new());
    loop {
        let part = scene.admin.ledger_rows(&which).await.unwrap();
        let Some(last) = part.last() else { break };
        which = which.after(last.event_id, &last.handler);
        parts.extend(part);
    }
    assert_eq!(parts, scene.admin.ledger_rows(&LedgerRows::any()).await.unwrap());

    let unknown = scene.admin.ledger_rows(&LedgerRows::any().key("order 42")).await;
    refused(unknown, ErrorKind::NotRegistered, &["no row of"]);
    let other = scene.admin.ledger_rows(&LedgerRows::any().key(&event).of("sms")).await;
    refused(other, ErrorKind::NotRegistered, &["it has rows for \"bill\", \"mail\""]);
}

/// I-5. What may run twice is said before, and the former holder changes nothing.
#[tokio::test]
async fn a_claim_is_released_only_when_its_holder_is_gone_or_with_force() {
    let scene = Scene::with(3).await;
    let (admin, key) = (&scene.admin, scene.event_id(1).await);
    refused(admin.ledger_release(key, "mail").await, ErrorKind::NotRegistered, &["nobody has claimed it"]);
    let held = scene.claim(1, "mail").await;
    refused(
        admin.ledger_release(key, "mail").await,
        ErrorKind::Precondition,
        &["it is held by", "until", "run twice at the same time"],
    );
    let change = admin.force().ledger_release(key, "mail").await.unwrap();
    assert_eq!((change.consumer.as_str(), &change.before["status"]), ("mail", &json!("in_progress")));
    assert_eq!((&change.after["status"], &change.after["attempts"]), (&json!("pending"), &json!(0)));
    refused(admin.ledger_release(key, "mail").await, ErrorKind::Precondition, &["it is pending"]);
    let successor = scene.claim(1, "mail").await;
    assert!(successor.fencing_number() > held.fencing_number());
    assert!(!held.complete().await.unwrap());

    // A process that had a session of its own, and has it no more.
    let gone = "WITH process AS ( \
            INSERT INTO inorder.instances (id, epoch, host, pid, version, session_lock) \
            VALUES (gen_random_uuid(), gen_random_uuid(), 'node-1', 4711, 'test', 99) RETURNING id \
        ) UPDATE inorder.ledger SET owner = process.id FROM process";
    scene.client.batch_execute(gone).await.unwrap();
    let row = scene.admin.ledger_rows(&LedgerRows::any()).await.unwrap().remove(0);
    assert_eq!((row.owner_host.as_deref(), row.owner_gone), (Some("node-1"), Some(true)));
    let change = admin.ledger_release(key, "mail").await.unwrap();
    assert_eq!(change.after["status"], json!("pending"));
    assert!(!successor.complete().await.unwrap());

    scene.claim(1, "mail").await.complete().await.unwrap();
    refused(admin.force().ledger_release(key, "mail").await, ErrorKind::Precondition, &["it is done"]);
    let expired = scene.claim(2, "mail").await;
    scene
        .client
        .batch_execute(
            "UPDATE inorder.ledger SET lease_until = clock_timestamp() WHERE lease_until IS NOT NULL",
        )
        .await
        .unwrap();
    admin.ledger_release(expired.event_id(), "mail").await.unwrap();
}

#[tokio::test]
async fn what_is_forgotten_may_run_again_and_no_valid_claim_is_forgotten() {
    let scene = Scene::with(3).await;
    let (admin, key) = (&scene.admin, scene.event_id(1).await);
    let held = scene.claim(1, "mail").await;
    refused(
        admin.ledger_forget(key, "mail").await,
        ErrorKind::Precondition,
        &["held by", "ledger_release()"],
    );
    held.complete().await.unwrap();
    let change = admin.because("it never arrived").ledger_forget(key, "mail").await.unwrap();
    assert_eq!((change.action.as_str(), &change.before["status"]), ("ledger_forget", &json!("done")));
    assert_eq!((change.after, change.why.as_deref()), (json!(null), Some("it never arrived")));
    refused(admin.ledger_forget(key, "mail").await, ErrorKind::NotRegistered, &["no row of"]);
    assert_eq!(scene.claim(1, "mail").await.attempt(), 1);

    let Claim::Acquired(text) = scene.log.ledger().claim("order 42", "web").await.unwrap() else { panic!() };
    text.complete().await.unwrap();
    admin.ledger_forget("order 42", "web").await.unwrap();
    assert!(matches!(scene.log.ledger().claim("order 42", "web").await.unwrap(), Claim::Acquired(_)));
}

/// I-6. The consumer has passed it: nobody would ever run it.
#[tokio::test]
async fn what_a_queue_had_not_finished_leaves_a_dead_letter_when_it_is_forgotten() {
    let scene = Scene::with(3).await;
    scene.outside("mail", "queued", 3).await;
    scene.claim(2, "mail").await.fail(Duration::ZERO, "not yet").await.unwrap();
    scene.admin.ledger_forget(scene.event_id(2).await, "mail").await.unwrap();
    let letters = scene.admin.dead_letters(&DeadLetters::any()).await.unwrap();
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!((letter.position, letter.state, letter.attempts), (2, DeadLetterState::Discarded, 1));
    assert_eq!((letter.reason.as_str(), letter.created_by.as_str()), ("operator_skip", "ops"));

    let runs = Runs::default();
    let registered = scene.mail("queued", &runs, &[]).await;
    scene.admin.retry_dead_letter(letter.id).await.unwrap();
    eventually(LIMIT, "it is run after all", async || {
        registered.run_once().await.unwrap();
        scene.admin.dead_letter(letter.id).await.unwrap().0.state == DeadLetterState::Resolved
    })
    .await;
    assert_eq!(sorted(&runs), [2]);
}

/// An event that is skipped before it came into the queue has no row there yet.
#[tokio::test]
async fn an_event_that_was_skipped_before_it_came_into_the_queue_is_retried() {
    let scene = Scene::with(3).await;
    let runs = Runs::default();
    let registered = scene.mail("queued", &runs, &[]).await;
    scene.admin.skip_poison("mail", scene.event_id(1).await).await.unwrap();
    registered.drain().await.unwrap();
    assert_eq!(sorted(&runs), [2, 3]);
    scene.admin.retry_dead_letter(1).await.unwrap();
    eventually(LIMIT, "it is run", async || {
        registered.run_once().await.unwrap();
        scene.admin.dead_letter(1).await.unwrap().0.state == DeadLetterState::Resolved
    })
    .await;
    assert_eq!(sorted(&runs), [1]);
}

#[tokio::test]
async fn a_queued_letter_is_retried_only_while_its_event_is_not_done_and_given_up_when_discarded() {
    let scene = Scene::with(4).await;
    let runs = Runs::default();
    let registered = scene.mail("queued", &runs, &[2, 3]).await;
    registered.drain().await.unwrap();
    assert_eq!(sorted(&runs), [1, 2, 3, 4]);
    // To be retried, and then not.
    scene.admin.retry_dead_letter(1).await.unwrap();
    scene.admin.discard_dead_letter(1).await.unwrap();
    registered.run_once().await.unwrap();
    assert_eq!(sorted(&runs), [0; 0], "it is given up");
    // Done by another way meanwhile.
    scene.client.batch_execute("UPDATE inorder.ledger SET status = 'done' WHERE position = 3").await.unwrap();
    let retry = scene.admin.retry_dead_letter(2).await;
    refused(retry, ErrorKind::Precondition, &["handled since", "discard_dead_letter()"]);
}
