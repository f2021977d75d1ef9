//! The ledger by itself: what is claimed by key is run once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use inorder::{Claim, Claimed, ErrorKind, Inorder, Ledger};
use time::OffsetDateTime;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{LIMIT, Writer, connect, database, eventually};

const HOUR: Duration = Duration::from_secs(3_600);

struct Scene {
    log: Inorder,
    ledger: Ledger,
    client: Client,
}

/// A row of the ledger.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    status: String,
    attempts: i32,
    faults: i32,
    token: i64,
    error: Option<String>,
}

impl Scene {
    async fn new() -> Scene {
        let db = database().await;
        let log = Inorder::connect(db.url()).await.unwrap();
        Scene { ledger: log.ledger(), log, client: connect(db.url()).await }
    }

    async fn claim(&self, key: &str) -> Claim {
        self.ledger.claim(key, "mail").await.unwrap()
    }

    async fn acquire(&self, key: &str) -> Claimed {
        acquired(self.claim(key).await)
    }

    async fn row(&self) -> Row {
        let select = "SELECT status, attempts, faults, token, last_error FROM inorder.ledger";
        let row = self.client.query_one(select, &[]).await.unwrap();
        Row {
            status: row.get("status"),
            attempts: row.get("attempts"),
            faults: row.get("faults"),
            token: row.get("token"),
            error: row.get("last_error"),
        }
    }

    async fn sql(&self, statement: &str) {
        self.client.batch_execute(statement).await.unwrap_or_else(|e| panic!("{statement}: {e:?}"));
    }

    /// Nobody renewed the claims in time.
    async fn leases_run_out(&self) {
        self.sql("UPDATE inorder.ledger SET lease_until = clock_timestamp() WHERE lease_until IS NOT NULL")
            .await;
    }
}

#[track_caller]
fn acquired(claim: Claim) -> Claimed {
    match claim {
        Claim::Acquired(claim) => claim,
        other => panic!("it is not ours: {other:?}"),
    }
}

/// I-5.
#[tokio::test]
async fn what_is_completed_is_never_claimed_again() {
    let scene = Scene::new().await;
    let claim = scene.acquire("order 42").await;
    assert_eq!(claim.attempt(), 1);
    assert!(claim.complete().await.unwrap());
    assert!(matches!(scene.claim("order 42").await, Claim::Done));
    let daring = scene.log.ledger().accept_repeats();
    assert!(matches!(daring.claim("order 42", "mail").await.unwrap(), Claim::Done), "done is done");
    assert_eq!(scene.row().await.status, "done");
}

/// I-5.
#[tokio::test]
async fn a_valid_claim_is_held_until_its_lease_ends() {
    let scene = Scene::new().await;
    let before = OffsetDateTime::now_utc();
    let claim = scene.acquire("order 42").await;
    let Claim::Held { until } = scene.claim("order 42").await else { panic!("it is held") };
    assert!((before + Duration::from_secs(29)..=before + LIMIT).contains(&until), "{until}");
    assert!(claim.extend().await.unwrap());
    let Claim::Held { until: later } = scene.claim("order 42").await else { panic!("it is held") };
    assert!(later > until);
    assert!(claim.release().await.unwrap());
}

/// I-5. The number grows; the former holder changes nothing, and is told so.
#[tokio::test]
async fn an_expired_claim_is_taken_over_and_its_former_holder_changes_nothing() {
    let scene = Scene::new().await;
    let mut former = Vec::new();
    for _ in 0..5 {
        former.push(scene.acquire("order 42").await);
        scene.leases_run_out().await;
    }
    let holder = scene.acquire("order 42").await;
    assert!(former.windows(2).all(|pair| pair[0].fencing_number() < pair[1].fencing_number()), "{former:?}");
    assert!(former.last().unwrap().fencing_number() < holder.fencing_number());
    let before = scene.row().await;
    assert_eq!((before.status.as_str(), before.attempts, before.faults), ("in_progress", 0, 5));
    assert_eq!(before.token, holder.fencing_number());

    let mut former = former.into_iter();
    let mut next = || former.next().unwrap();
    assert!(!next().complete().await.unwrap());
    assert!(!next().fail(Duration::ZERO, "late").await.unwrap());
    assert!(!next().give_up("late").await.unwrap());
    let lost = next();
    assert!(!lost.extend().await.unwrap());
    assert!(!lost.release().await.unwrap());
    assert_eq!(scene.row().await, before);
    // Dropped, the last one is released in the background: that changes nothing either.
    drop(next());
    assert!(holder.complete().await.unwrap());
    assert_eq!(scene.row().await.status, "done");
}

/// Nobody took it: what was run in time or late was run.
#[tokio::test]
async fn a_claim_that_ran_out_and_was_not_taken_over_can_still_be_settled() {
    let scene = Scene::new().await;
    let claim = scene.acquire("order 42").await;
    scene.leases_run_out().await;
    assert!(claim.extend().await.unwrap());
    assert!(matches!(scene.claim("order 42").await, Claim::Held { .. }));
    scene.leases_run_out().await;
    assert!(claim.complete().await.unwrap());
    assert!(matches!(scene.claim("order 42").await, Claim::Done));
}

#[tokio::test]
async fn a_failed_attempt_counts_and_waits_for_its_pause() {
    let scene = Scene::new().await;
    assert!(scene.acquire("order 42").await.fail(HOUR, "no\0answer").await.unwrap());
    let row = scene.row().await;
    assert_eq!((row.status.as_str(), row.attempts), ("pending", 1));
    assert_eq!(row.error.as_deref(), Some("no\u{fffd}answer"));
    let Claim::Held { until } = scene.claim("order 42").await else { panic!("it waits") };
    assert!(until > OffsetDateTime::now_utc() + HOUR / 2, "{until}");
    scene.sql("UPDATE inorder.ledger SET next_attempt_at = clock_timestamp()").await;
    let claim = scene.acquire("order 42").await;
    assert_eq!(claim.attempt(), 2);
    // A pause beyond all calendars is a long one.
    assert!(claim.fail(Duration::MAX, "x".repeat(100_000)).await.unwrap());
    assert!(scene.row().await.error.unwrap().chars().count() < 3_000);
}

#[tokio::test]
async fn what_is_given_up_is_dead_until_an_operator_accepts_repeats() {
    let scene = Scene::new().await;
    assert!(scene.acquire("order 42").await.give_up("no such card").await.unwrap());
    assert!(matches!(scene.claim("order 42").await, Claim::Dead));
    let row = scene.row().await;
    assert_eq!((row.status.as_str(), row.attempts, row.error.as_deref()), ("dead", 1, Some("no such card")));
    let again = acquired(scene.log.ledger().accept_repeats().claim("order 42", "mail").await.unwrap());
    assert_eq!((again.attempt(), again.fencing_number() > row.token), (2, true));
    assert!(again.complete().await.unwrap());
}

#[tokio::test]
async fn a_released_claim_costs_no_attempt_and_is_free_at_once() {
    let scene = Scene::new().await;
    let first = scene.acquire("order 42").await;
    let number = first.fencing_number();
    assert!(first.release().await.unwrap());
    let second = scene.acquire("order 42").await;
    assert_eq!((second.attempt(), second.fencing_number() > number), (1, true));
    assert_eq!(scene.row().await.faults, 0);
}

#[tokio::test]
async fn a_claim_that_is_dropped_is_released() {
    let scene = Scene::new().await;
    drop(scene.acquire("order 42").await);
    eventually(LIMIT, "it is free again", async || scene.row().await.status == "pending").await;
    assert_eq!(scene.acquire("order 42").await.attempt(), 1);
}

/// I-5. Of many that ask for the same key at the same time one has it; over all attempts the numbers grow.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_concurrent_claimers_one_has_it_and_the_numbers_grow() {
    let scene = Scene::new().await;
    let mut numbers = Vec::new();
    for round in 0..20 {
        let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(16));
        let claims = (0..16).map(|_| {
            let (ledger, barrier) = (scene.ledger.clone(), barrier.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                ledger.claim("order 42", "mail").await.unwrap()
            })
        });
        let claims: Vec<_> = claims.collect();
        let mut ours = Vec::new();
        for claim in claims {
            match claim.await.unwrap() {
                Claim::Acquired(claim) => ours.push(claim),
                Claim::Held { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(ours.len(), 1, "round {round}: {ours:?}");
        let claim = ours.remove(0);
        numbers.push(claim.fencing_number());
        // The next holder comes by another way each time.
        let gone = match round % 3 {
            0 => claim.release().await.unwrap(),
            1 => claim.fail(Duration::ZERO, "once more").await.unwrap(),
            _ => {
                scene.leases_run_out().await;
                std::mem::forget(claim);
                true
            }
        };
        assert!(gone);
    }
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
}

/// I-5. Dropped at any moment of its life, polled or not, a settlement is never overtaken by a release.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_is_dropped_in_the_middle_never_leads_to_a_second_run() {
    let scene = Scene::new().await;
    let keys: Vec<String> = (0..60).map(|n| format!("order {n}")).collect();
    for (n, key) in keys.iter().enumerate() {
        let completing = scene.acquire(key).await.complete();
        match n {
            0 => drop(completing),
            _ => drop(tokio::time::timeout(Duration::from_micros(n as u64 * 20), completing).await),
        }
        match scene.claim(key).await {
            Claim::Done | Claim::Held { .. } => {}
            other => panic!("{key} would run again: {other:?}"),
        }
    }
    let done = "SELECT count(*) FROM inorder.ledger WHERE status = 'done'";
    eventually(LIMIT, "all are recorded", async || {
        scene.client.query_one(done, &[]).await.unwrap().get::<_, i64>(0) == 60
    })
    .await;
}

#[tokio::test]
async fn several_keys_are_claimed_at_once_and_answered_in_their_order() {
    let scene = Scene::new().await;
    assert!(scene.acquire("done").await.complete().await.unwrap());
    assert!(scene.acquire("dead").await.give_up("never").await.unwrap());
    let held = scene.acquire("held").await;
    let keys = ["new", "done", "twice", "held", "twice", "dead", "new"];
    let claims = scene.ledger.claim_all(keys, "mail").await.unwrap();
    let [
        Claim::Acquired(new),
        Claim::Done,
        Claim::Acquired(twice),
        Claim::Held { .. },
        Claim::Held { .. },
        Claim::Dead,
        Claim::Held { .. },
    ] = &claims[..]
    else {
        panic!("{claims:?}")
    };
    assert_ne!(new.event_id(), twice.event_id());
    assert!(scene.ledger.claim_all::<&str>([], "mail").await.unwrap().is_empty());
    drop(held);
}

/// The other way round, in each other's way: nobody waits for ever, and each key has one holder.
#[tokio::test(flavor = "multi_thread")]
async fn claims_of_the_same_keys_in_any_order_neither_block_nor_share() {
    let scene = Scene::new().await;
    let keys: Vec<String> = (0..200).map(|n| format!("order {n}")).collect();
    let claimers = (0..8).map(|n| {
        let (ledger, mut keys) = (scene.ledger.clone(), keys.clone());
        tokio::spawn(async move {
            fastrand::Rng::with_seed(n).shuffle(&mut keys);
            ledger.claim_all(keys, "mail").await.unwrap()
        })
    });
    let claimers: Vec<_> = claimers.collect();
    let mut held = Vec::new();
    for claimer in claimers {
        let claims = claimer.await.unwrap();
        held.extend(claims.into_iter().filter_map(|claim| match claim {
            Claim::Acquired(claim) => Some(claim),
            Claim::Held { .. } => None,
            other => panic!("{other:?}"),
        }));
    }
    let distinct: BTreeSet<Uuid> = held.iter().map(Claimed::event_id).collect();
    assert_eq!((held.len(), distinct.len()), (200, 200));
    assert_eq!(scene.ledger.complete_all(held).await.unwrap(), 200);
}

#[tokio::test]
async fn of_several_settled_at_once_those_that_were_lost_change_nothing() {
    let scene = Scene::new().await;
    let claims = |claims: Vec<Claim>| claims.into_iter().map(acquired).collect::<Vec<_>>();
    let ours = claims(scene.ledger.claim_all(["a", "b", "c", "d"], "mail").await.unwrap());
    let other = claims(scene.ledger.claim_all(["a"], "bill").await.unwrap());
    let lost = [ours[1].event_id(), ours[2].event_id()];
    scene
        .client
        .execute(
            "UPDATE inorder.ledger SET lease_until = clock_timestamp() WHERE event_id = ANY ($1)",
            &[&&lost[..]],
        )
        .await
        .unwrap();
    let successors = claims(scene.ledger.claim_all(["b", "c"], "mail").await.unwrap());
    let completed = scene.ledger.complete_all(ours.into_iter().chain(other).collect()).await.unwrap();
    assert_eq!(completed, 3, "a and d of mail, a of bill");
    assert_eq!(scene.ledger.fail_all(successors, Duration::ZERO, "both").await.unwrap(), 2);
    let again = claims(scene.ledger.claim_all(["b", "c"], "mail").await.unwrap());
    assert_eq!(again.iter().map(Claimed::attempt).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(scene.ledger.release_all(again).await.unwrap(), 2);
    let free = claims(scene.ledger.claim_all(["b", "c"], "mail").await.unwrap());
    assert_eq!(free.iter().map(Claimed::attempt).collect::<Vec<_>>(), [2, 2], "a release costs nothing");
}

#[tokio::test]
async fn a_key_is_an_event_a_uuid_or_a_text_and_belongs_to_its_handler() {
    let scene = Scene::new().await;
    Writer::on(scene.log.config().url.as_str()).await.append_many(1).await;
    let event = scene.log.read(0, 1).await.unwrap().remove(0);
    let by_event = acquired(scene.ledger.claim(&event, "mail").await.unwrap());
    assert!(matches!(scene.ledger.claim(event.event_id(), "mail").await.unwrap(), Claim::Held { .. }));
    let bill = acquired(scene.ledger.claim(event.event_id(), "bill").await.unwrap());
    assert_ne!(by_event.idempotency_key(), bill.idempotency_key());
    let position = "SELECT position FROM inorder.ledger WHERE handler = $1";
    let position = async |handler| -> Option<i64> {
        scene.client.query_one(position, &[&handler]).await.unwrap().get(0)
    };
    assert_eq!((position("mail").await, position("bill").await), (Some(1), None));

    let text = scene.acquire("order 42").await;
    assert!(matches!(scene.claim("order 42").await, Claim::Held { .. }));
    let owned = String::from("order 43");
    assert_ne!(acquired(scene.ledger.claim(owned, "mail").await.unwrap()).event_id(), text.event_id());
    assert!(matches!(scene.ledger.claim(text.event_id(), "mail").await.unwrap(), Claim::Held { .. }));
}

#[tokio::test]
async fn names_and_leases_that_cannot_be_are_refused_before_anything_is_written() {
    let scene = Scene::new().await;
    for handler in ["", "a\0b", &"x".repeat(501)] {
        let error = scene.ledger.claim("order 42", handler).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
    for lease in [Duration::ZERO, Duration::from_secs(86_401), Duration::MAX] {
        let error = scene.log.ledger().lease(lease).claim("order 42", "mail").await.unwrap_err();
        assert!(error.to_string().contains("10 ms to 24 h"), "{error}");
    }
    assert!(scene.client.query("SELECT FROM inorder.ledger", &[]).await.unwrap().is_empty());
}

/// A lease is as long as it was asked for.
#[tokio::test]
async fn a_short_lease_is_over_soon_and_a_long_one_is_not() {
    let scene = Scene::new().await;
    let short = scene.log.ledger().lease(Duration::from_millis(50));
    let _first = acquired(short.claim("order 42", "mail").await.unwrap());
    let began = Instant::now();
    let mut second = None;
    eventually(LIMIT, "the lease is over", async || {
        if let Claim::Acquired(claim) = scene.claim("order 42").await {
            second = Some(claim);
        }
        second.is_some()
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(matches!(scene.claim("order 42").await, Claim::Held { .. }));
}

/// I-5. Below the floor nobody knows any more what was done; a row that is there is as it says.
#[tokio::test]
async fn below_the_floor_only_what_has_a_row_is_claimed() {
    let scene = Scene::new().await;
    Writer::on(scene.log.config().url.as_str()).await.append_many(6).await;
    let events = scene.log.read(0, 10).await.unwrap();
    let claims = scene.ledger.claim_all(&events[..4], "mail").await.unwrap();
    let mut claims = claims.into_iter().map(acquired);
    let mut next = || claims.next().unwrap();
    assert!(next().complete().await.unwrap());
    assert!(next().fail(Duration::ZERO, "not yet").await.unwrap());
    assert!(next().give_up("never").await.unwrap());
    let _held = next();
    scene.sql("INSERT INTO inorder.ledger_floors (handler, floor) VALUES ('mail', 5)").await;

    let claim = async |n: usize| scene.ledger.claim(&events[n - 1], "mail").await;
    assert!(matches!(claim(1).await.unwrap(), Claim::Done));
    assert_eq!(acquired(claim(2).await.unwrap()).attempt(), 2);
    assert!(matches!(claim(3).await.unwrap(), Claim::Dead));
    assert!(matches!(claim(4).await.unwrap(), Claim::Held { .. }));
    let refused = claim(5).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Precondition, "{refused}");
    let by_uuid = scene.ledger.claim(events[4].event_id(), "mail").await.unwrap_err();
    assert_eq!(by_uuid.kind(), ErrorKind::Precondition, "the event is known by its uuid, too");
    acquired(claim(6).await.unwrap()).complete().await.unwrap();
    acquired(scene.ledger.claim(&events[4], "bill").await.unwrap()).complete().await.unwrap();
    acquired(scene.claim("a text has no place in the log").await).complete().await.unwrap();
    let daring = scene.log.ledger().accept_repeats();
    acquired(daring.claim(&events[4], "mail").await.unwrap()).complete().await.unwrap();
}
