//! Hand-offs under an operator's hands: who has which event, what is forgotten, and that nothing is kept for ever.

use std::time::Duration;

use inorder::uuid::Uuid;
use inorder::{Consumer, Delivery, Dispatcher, ErrorKind, Handoff, HandoffRows, HandoffState};
use serde_json::json;

use super::{LIMIT, Scene, refused};
use crate::support::eventually;

const DAY: Duration = Duration::from_secs(86_400);

/// In each scope an event that the direct path took, one that it ran, and one of a delivery, in the order of their keys.
struct Handed {
    scene: Scene,
    keys: [Uuid; 3],
}

const SCOPES: [&str; 2] = ["mail", "push"];

impl Handed {
    async fn new() -> Handed {
        let scene = Scene::with(3).await;
        let client = scene.database.client().await;
        let known = client.query("SELECT event_id FROM inorder.events ORDER BY event_id", &[]).await.unwrap();
        let keys: Vec<Uuid> = known.iter().map(|row| row.get(0)).collect();
        let handed = Handed { scene, keys: keys.try_into().unwrap() };
        for scope in SCOPES {
            let process = handed.process(scope);
            let [unfinished, ran, delivered] = handed.keys;
            assert!(process.take_direct(unfinished).await.unwrap());
            assert!(process.take_direct(ran).await.unwrap());
            process.ran_directly(ran).await.unwrap();
            assert_eq!(process.delivering(delivered).await.unwrap(), Delivery::Deliver);
        }
        handed
    }

    /// One that has just been started.
    fn process(&self, scope: &str) -> Handoff {
        self.scene.log.handoff(scope).build().unwrap()
    }

    /// What is listed, as scopes and states.
    async fn listed(&self, which: &HandoffRows) -> Vec<(String, HandoffState)> {
        let rows = self.scene.admin.handoff_rows(which).await.unwrap();
        rows.into_iter().map(|row| (row.scope, row.state)).collect()
    }

    async fn age(&self, condition: &str, age: &str) {
        let older = format!(
            "UPDATE inorder.handoffs SET taken_at = clock_timestamp() - interval '{age}', \
             ran_at = CASE WHEN ran_at IS NOT NULL THEN clock_timestamp() - interval '{age}' END WHERE {condition}"
        );
        self.scene.database.client().await.batch_execute(&older).await.unwrap();
    }

    async fn actions(&self) -> Vec<String> {
        let select = "SELECT action FROM inorder.audit ORDER BY id";
        let rows = self.scene.database.client().await.query(select, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

#[tokio::test]
async fn hand_offs_are_found_by_scope_state_age_and_event() {
    use HandoffState::{Delivery, RanDirectly, Unfinished};
    let handed = Handed::new().await;
    let [first, second, third] = [Unfinished, RanDirectly, Delivery].map(|state| ("mail".to_owned(), state));
    let any = HandoffRows::any;
    assert_eq!(handed.listed(&any()).await.len(), 6);
    assert_eq!(handed.listed(&any().in_scope("mail")).await, [first.clone(), second.clone(), third.clone()]);
    assert_eq!(handed.listed(&HandoffRows::unfinished().in_scope("mail")).await[0], first);
    assert_eq!(handed.listed(&any().in_scope("mail").state(RanDirectly)).await, vec![second.clone()]);
    assert_eq!(handed.listed(&any().in_scope("mail").state(Delivery)).await, [third]);
    handed.age("scope = 'mail' AND ran_at IS NOT NULL", "2 days").await;
    assert_eq!(handed.listed(&any().older_than(DAY)).await, [second]);
    assert!(handed.listed(&any().older_than(Duration::MAX)).await.is_empty());

    let of_one = handed.scene.admin.handoff_rows(&any().key(handed.keys[0])).await.unwrap();
    assert_eq!(of_one.iter().map(|row| row.scope.as_str()).collect::<Vec<_>>(), SCOPES);
    assert!(of_one.iter().all(|row| row.event_id == handed.keys[0] && row.position.is_some()));
    assert!(of_one[0].event_type.is_some() && of_one[0].ran_at.is_none());

    // In parts.
    let (mut parts, mut which) = (Vec::new(), any().limit(4));
    loop {
        let part = handed.scene.admin.handoff_rows(&which).await.unwrap();
        let Some(last) = part.last() else { break };
        which = which.after(&last.scope, last.event_id);
        parts.push(part.len());
    }
    assert_eq!(parts, [4, 2]);
    let rest = any().in_scope("mail").after("mail", handed.keys[0]);
    assert_eq!(handed.listed(&rest).await.len(), 2, "of that scope only");
}

#[tokio::test]
async fn what_nobody_took_and_states_that_are_none_are_refused() {
    let handed = Handed::new().await;
    let admin = &handed.scene.admin;
    let nobodys = Uuid::nil();
    let wanted = admin.handoff_rows(&HandoffRows::any().key(nobodys)).await.map(drop);
    refused(wanted, ErrorKind::NotRegistered, &["no hand-off of 0000", "neither side"]);
    let elsewhere = admin.handoff_forget("fax", handed.keys[1]).await.map(drop);
    refused(elsewhere, ErrorKind::NotRegistered, &["in scope \"fax\"", "\"mail\", \"push\""]);
    let client = handed.scene.database.client().await;
    let wrong = client.query("SELECT inorder.handoff_rows(in_state => 'done')", &[]).await.unwrap_err();
    let wrong = wrong.as_db_error().unwrap().clone();
    assert_eq!(wrong.code().code(), "IO004");
    assert!(wrong.hint().unwrap().contains("ran_directly"), "{wrong:?}");
}

/// I-5: until then the other side does not.
#[tokio::test]
async fn what_is_forgotten_is_whose_that_asks_next() {
    let handed = Handed::new().await;
    let [unfinished, ran, delivered] = handed.keys;
    let admin = handed.scene.admin.by("ops").because("never arrived");
    let early = admin.handoff_forget("mail", unfinished).await.map(drop);
    refused(early, ErrorKind::Precondition, &["has not said that it ran it", "with force"]);

    let change = admin.handoff_forget("mail", ran).await.unwrap();
    assert_eq!((change.action.as_str(), change.by.as_str()), ("handoff_forget", "ops"));
    assert_eq!((&change.before["state"], &change.before["scope"]), (&json!("ran_directly"), &json!("mail")));
    assert!(change.after.is_null() && change.why.is_some());
    assert_eq!(handed.process("mail").delivering(ran).await.unwrap(), Delivery::Deliver);
    assert_eq!(handed.process("push").delivering(ran).await.unwrap(), Delivery::HandledDirectly);

    admin.handoff_forget("mail", delivered).await.unwrap();
    assert!(handed.process("mail").take_direct(delivered).await.unwrap());
    assert_eq!(handed.process("mail").delivering(unfinished).await.unwrap(), Delivery::HandledDirectly);
    admin.force().handoff_forget("mail", unfinished).await.unwrap();
    assert_eq!(handed.process("mail").delivering(unfinished).await.unwrap(), Delivery::Deliver);
    assert_eq!(handed.actions().await, ["handoff_forget"; 3]);
}

#[tokio::test]
async fn many_are_forgotten_by_what_they_are_found_by_and_never_in_silence_what_is_unfinished() {
    let handed = Handed::new().await;
    let admin = &handed.scene.admin;
    let any = HandoffRows::any;
    let all_unfinished = admin.handoffs_forget(&HandoffRows::unfinished()).await.map(drop);
    refused(all_unfinished, ErrorKind::Precondition, &["still has to run", "with force"]);

    let first = admin.handoffs_forget(&any().limit(3)).await.unwrap();
    assert_eq!((first.forgotten, first.left_out, first.more), (3, 0, true));
    let (scope, event_id) = first.last.unwrap();
    let second = admin.handoffs_forget(&any().limit(3).after(scope, event_id)).await.unwrap();
    assert_eq!((second.forgotten, second.more), (1, false));
    let unfinished = SCOPES.map(|scope| (scope.to_owned(), HandoffState::Unfinished));
    assert_eq!(handed.listed(&any()).await, unfinished);

    let forced = admin.force().handoffs_forget(&HandoffRows::unfinished().in_scope("push")).await.unwrap();
    assert_eq!((forced.forgotten, forced.more), (1, false));
    assert_eq!(handed.listed(&any()).await, unfinished[..1]);
    let none = admin.handoffs_forget(&any()).await.unwrap();
    assert_eq!((none.forgotten, none.more, none.last), (0, false, None));
    assert_eq!(handed.actions().await, ["handoffs_forget"; 3], "nothing was done the last time");
}

#[tokio::test]
async fn a_hand_off_that_is_being_decided_is_left_out_or_busy() {
    let handed = Handed::new().await;
    let holder = handed.scene.database.client().await;
    holder
        .batch_execute(
            "BEGIN; SELECT FROM inorder.handoffs WHERE scope = 'mail' AND ran_at IS NOT NULL FOR UPDATE",
        )
        .await
        .unwrap();
    let many = handed.scene.admin.handoffs_forget(&HandoffRows::any().in_scope("mail")).await.unwrap();
    assert_eq!((many.forgotten, many.left_out), (1, 1));
    let one = handed.scene.admin.handoff_forget("mail", handed.keys[1]).await.map(drop);
    refused(one, ErrorKind::Busy, &["held by another session"]);
}

#[tokio::test]
async fn each_scope_keeps_its_rows_as_its_programs_say() {
    let handed = Handed::new().await;
    let (log, admin) = (&handed.scene.log, &handed.scene.admin);
    // Who only decides says it, too.
    let patient = log.handoff("push").keep(90 * DAY).keep_deliveries(60 * DAY).build().unwrap();
    assert_eq!(patient.delivering(handed.keys[2]).await.unwrap(), Delivery::Deliver);
    let mut left = Vec::new();
    for age in ["29 days", "31 days", "61 days", "91 days"] {
        handed.age("true", age).await;
        let deleted = admin.handoff_prune(None, None).await.unwrap();
        left.push((deleted, handed.listed(&HandoffRows::any().in_scope("push")).await.len()));
    }
    assert_eq!(left, [(0, 3), (2, 3), (1, 2), (1, 1)]);
    assert_eq!(handed.listed(&HandoffRows::any()).await.len(), 2, "what is unfinished stays");

    let soon = admin.handoff_prune(None, Some(Duration::from_secs(60))).await.map(drop);
    refused(soon, ErrorKind::Precondition, &["an hour at least"]);
    let [_, ran, _] = handed.keys;
    for scope in SCOPES {
        handed.process(scope).ran_directly(ran).await.unwrap();
    }
    handed.age("true", "2 hours").await;
    assert_eq!(admin.handoff_prune(Some("push"), Some(Duration::from_secs(3_600))).await.unwrap(), 1);
    assert_eq!(handed.listed(&HandoffRows::any().in_scope("mail")).await.len(), 2);
}

/// What the direct path took and ran long after that is kept from then on: it may have been offered anew meanwhile.
#[tokio::test]
async fn what_was_run_late_is_kept_from_when_it_was_run() {
    let handed = Handed::new().await;
    let [late, ..] = handed.keys;
    handed.age("true", "40 days").await;
    let process = handed.process("mail");
    process.ran_directly(late).await.unwrap();
    assert_eq!(process.run_once().await.unwrap().deleted, 2);
    assert_eq!(handed.process("mail").delivering(late).await.unwrap(), Delivery::HandledDirectly);
}

/// Nobody hands off any more, in whichever scope.
#[tokio::test]
async fn a_running_dispatcher_deletes_what_was_kept_long_enough() {
    let handed = Handed::new().await;
    handed.age("true", "31 days").await;
    let consumer = Consumer::transactional_fn("nothing", |_, _| Box::pin(async { Ok(()) }));
    let dispatcher = Dispatcher::builder(&handed.scene.log).consumer(consumer);
    let running = dispatcher.keep_house_every(Duration::from_secs(1)).build().unwrap().start().await.unwrap();
    eventually(LIMIT, "what was kept long enough is gone", async || {
        handed.listed(&HandoffRows::any()).await.len() == 2
    })
    .await;
    running.stop().await.unwrap();
    assert_eq!(handed.listed(&HandoffRows::unfinished()).await.len(), 2);
    assert!(handed.actions().await.contains(&"handoff_prune".to_owned()));
}
