//! The safe head: the highest id such that every id at or below it is visible or never will be.
//!
//! Ids are taken from a sequence before commit, so a lower id can become visible after a higher one, and a reader that
//! goes by `id > position` alone loses events. The safe head advances in two ways:
//!
//! - **Contiguity.** Visible ids directly above it, without a hole, are safe.
//! - **Drained writers.** At a hole, let `top` be the highest id seen. Every transaction that could still fill a hole
//!   below `top` has called `nextval` and so holds `RowExclusiveLock` on the identity sequence until after its commit
//!   is visible. Once all that held it *after* the rows were read are gone, a statement with a new snapshot reads up to
//!   `top`; what is still missing was rolled back.
//!
//! ```text
//!            rows without a hole                      holders gone
//!   settled ────────────────────▶ settled    waiting ─────────────▶ drained
//!      │                                        ▲                      │
//!      └── a hole: top, then holders ───────────┘                      └── read again: settled up to top
//! ```
//!
//! Invariants: I-1, I-2, I-10. The order is the proof: rows, then locks, then rows again in a later snapshot, each a
//! statement of its own under READ COMMITTED. No clock decides that a hole may be passed; clocks only pace the looks.
//!
//! What is known belongs to an *epoch*: one connection, and the random token of this process's row in the unlogged table
//! `instances`, which a crash and a promotion empty. A reconnect, a missing row or another token throws it all away.
//!
//! Not its job: who reads the events, and when to look again.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use deadpool_postgres::ClientWrapper;
use uuid::Uuid;

use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::pg::instances::Identity;
use crate::pg::safe_head::Given;
use crate::pg::{self, deadline};
use crate::store::Inorder;

mod follower;

pub use follower::Follower;

/// What is known of the head of the log; pure.
#[derive(Debug)]
pub(crate) struct Horizon {
    head: i64,
    /// Ids at or below it are settled: a snapshot taken from now on shows all of them that will ever be.
    settled: i64,
    hole: Option<Hole>,
}

/// The first hole above the head.
#[derive(Debug)]
struct Hole {
    since: Instant,
    locks_read: Option<Instant>,
    /// The highest id seen before the holders were read, and those of them that are not gone yet.
    waiting: Option<(i64, HashSet<String>)>,
}

impl Horizon {
    pub(crate) fn new(head: i64) -> Self {
        Self { head, settled: head, hole: None }
    }

    pub(crate) fn head(&self) -> i64 {
        self.head
    }

    /// Takes the ids above the head that one snapshot shows, ascending. Answers how many of them are safe.
    ///
    /// `settled` may only have been raised *before* that snapshot was taken.
    pub(crate) fn saw(&mut self, ids: &[i64], more: bool, now: Instant) -> usize {
        let before = self.head;
        let mut safe = 0;
        for &id in ids {
            if id > self.settled {
                // What is settled and not shown was rolled back, or is pruned.
                self.head = self.head.max(self.settled);
                if id != self.head + 1 {
                    break;
                }
            }
            self.head = id;
            safe += 1;
        }
        if safe == ids.len() && !more {
            self.head = self.head.max(self.settled);
        }
        if safe == ids.len() {
            self.hole = None;
        } else if self.hole.is_none() || self.head != before {
            // Who was waited for at the last hole can fill this one too, as long as it lies below what was seen then.
            let waiting = self.hole.take().and_then(|hole| hole.waiting).filter(|(top, _)| *top > self.head);
            self.hole = Some(Hole { since: now, locks_read: None, waiting });
        }
        safe
    }

    /// Takes who holds the lock, read after the snapshot whose highest id is `top`. True when a new snapshot is due.
    pub(crate) fn held_by(
        &mut self,
        top: i64,
        holders: impl IntoIterator<Item = String>,
        now: Instant,
    ) -> bool {
        let Some(hole) = &mut self.hole else { return false };
        hole.locks_read = Some(now);
        let holders: HashSet<String> = holders.into_iter().collect();
        let (top, left) = match hole.waiting.take() {
            None => (top, holders),
            Some((top, waiting)) => (top, still_waited_for(&waiting, holders)),
        };
        let drained = left.is_empty();
        if drained {
            self.settled = self.settled.max(top);
        } else {
            hole.waiting = Some((top, left));
        }
        drained
    }

    /// The highest id that had been seen when those who are waited for were found.
    fn waits_below(&self) -> Option<i64> {
        self.hole.as_ref()?.waiting.as_ref().map(|(top, _)| *top)
    }

    /// For how long the head has been standing before a hole.
    pub(crate) fn hole_age(&self, now: Instant) -> Option<Duration> {
        self.hole.as_ref().map(|hole| now.saturating_duration_since(hole.since))
    }

    /// Most holes are filled by a commit within milliseconds; the locks are read for those that are not, less often as
    /// the hole ages.
    fn locks_are_due(&self, now: Instant) -> bool {
        let Some(hole) = &self.hole else { return false };
        let age = now.saturating_duration_since(hole.since);
        let pause = (age / 10).clamp(Duration::from_millis(5), Duration::from_millis(250));
        now.saturating_duration_since(hole.locks_read.unwrap_or(hole.since)) >= pause
    }
}

/// Who of them is still there.
///
/// PostgreSQL 14.0 renames a transaction that is prepared, and a restart renames all that are; behind a pooler that may go
/// unnoticed. A name of that kind may stand for one that is waited for.
fn still_waited_for(waiting: &HashSet<String>, holders: impl IntoIterator<Item = String>) -> HashSet<String> {
    holders.into_iter().filter(|holder| waiting.contains(holder) || holder.starts_with("-1/")).collect()
}

/// How a step treats a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Reads the locks at once: whoever called looks only now and then.
    Eager,
    /// Gives a hole a few milliseconds to fill by itself.
    Paced,
}

/// What one step brought.
#[derive(Debug)]
pub(crate) struct Step {
    /// The events are all that lie above this id, up to the head.
    pub(crate) from: i64,
    /// The events that became safe, in id order.
    pub(crate) events: Vec<Event>,
    /// There are more: look again at once.
    pub(crate) more: bool,
    /// For how long the head has been standing before a hole.
    pub(crate) hole: Option<Duration>,
}

/// How the safe head is broken on purpose, so that `inorder verify` can be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "cli"),
    expect(dead_code, unreachable_pub, reason = "only the tool breaks it, and only the tool is given it")
)]
#[doc(hidden)]
pub enum Mutant {
    /// No safe head: whatever is visible is delivered.
    HighestId,
    /// A hole is skipped after 20 ms.
    HoleTimeout,
    /// Rows are not read again after the holders are gone.
    ReadBeforeDrain,
    /// A filter by the snapshot's xmin instead.
    Xmin,
    /// The position is written outside the pass's transaction.
    PositionOutside,
    /// What another has claimed is claimed all the same.
    ClaimsWithoutToken,
    /// Claims, and rows that were leased, are settled by whoever wants to.
    SettleWithoutFencing,
    /// Leases are renewed only when they have run out, and nobody minds.
    LateRenewal,
    /// What others are running is swept up.
    SweeperIgnoresLeases,
}

impl Mutant {
    /// What it breaks in our statements: pieces of their text, and what stands in their place.
    #[cfg(feature = "cli")]
    pub(crate) fn in_statements(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::ClaimsWithoutToken => &[(
                "l.status = 'in_progress' AND l.lease_until <= clock_timestamp()",
                "l.status = 'in_progress'",
            )],
            Self::SettleWithoutFencing => &[
                (" AND l.token = s.token", ""),
                (" AND lease_token = $4::bigint", " AND $4::bigint > 0"),
                (" AND lease_until IS NOT NULL", ""),
            ],
            Self::SweeperIgnoresLeases => {
                &[("coalesce(l.lease_until, l.next_attempt_at, l.created_at) <= clock_timestamp()", "true")]
            }
            _ => &[],
        }
    }
}

/// Follows the safe head over a connection of its own. One per process serves all consumers.
pub(crate) struct Tracker {
    log: Inorder,
    process: Uuid,
    session: ClientWrapper,
    epoch: Uuid,
    horizon: Horizon,
    /// Who held the identity sequence when the locks were read last, by pid.
    in_front: Vec<i32>,
    /// Rows of the next look: all that are asked for come over the wire, however large they are.
    rows: i64,
    /// The last look found the head before a hole, and no event to move it.
    stuck: bool,
    mutant: Option<Mutant>,
}

/// Rows of one look at least and at most; memory is bounded by bytes besides.
const FEWEST_ROWS: i64 = 16;
const MOST_ROWS: i64 = 2_000;
/// Rows of a look while the head is stuck: enough to see whether the hole was filled.
const PEEK_ROWS: i64 = 32;
/// Bytes of one look.
const LOOK_BYTES: usize = 4 * 1024 * 1024;

impl Tracker {
    /// Connects, enters the process under a new epoch, and finds a safe head to begin with: the highest id, if those who are
    /// writing are gone within `patience`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsafe`] names what the safe head rests on and does not hold.
    pub(crate) async fn begin(
        log: &Inorder,
        who: &Identity,
        mutant: Option<Mutant>,
        patience: Duration,
    ) -> Result<Self, Error> {
        let session = log.connector().connect().await?;
        let mut tracker = Self::enter(session, log, who, mutant).await?;
        tracker.horizon = Horizon::new(tracker.find_head(patience).await?);
        Ok(tracker)
    }

    /// The same, over a connection that listens to the doorbell as well: `heard` is told every payload.
    pub(crate) async fn begin_listening(
        log: &Inorder,
        who: &Identity,
        mutant: Option<Mutant>,
        patience: Duration,
        heard: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let session = log.connector().connect_hearing(heard).await?;
        let mut tracker = Self::enter(session, log, who, mutant).await?;
        // Whoever listens has a session of its own: behind a pooler, others would find it with these settings.
        let planning = pg::session::plan_once(&tracker.session);
        deadline(log.limit(), "preparing the tracker's session", planning).await?;
        let listening = pg::session::listen(&tracker.session, log.schema());
        deadline(log.limit(), "listening to the doorbell", listening).await?;
        let being = pg::instances::be_present(&tracker.session, log.schema(), who.id);
        deadline(log.limit(), "showing that this process is there", being).await?;
        tracker.horizon = Horizon::new(tracker.find_head(patience).await?);
        Ok(tracker)
    }

    async fn enter(
        session: ClientWrapper,
        log: &Inorder,
        who: &Identity,
        mutant: Option<Mutant>,
    ) -> Result<Self, Error> {
        let epoch = Uuid::new_v4();
        let (schema, limit) = (log.schema(), log.limit());
        // First of all: a standby takes no other statement of ours.
        let reasons = pg::safe_head::unsafe_reasons(&session, schema);
        refuse_unsafe(&deadline(limit, "asking whether events can be delivered safely", reasons).await?)?;
        deadline(limit, "entering this process", pg::instances::enter(&session, schema, who, epoch)).await?;
        let (log, process, horizon) = (log.clone(), who.id, Horizon::new(0));
        let (in_front, rows, stuck) = (Vec::new(), FEWEST_ROWS, false);
        Ok(Self { log, process, session, epoch, horizon, in_front, rows, stuck, mutant })
    }

    /// The highest id first, then who is writing; nothing changes below it when they are gone. A writer that stays leaves a
    /// lower head, in front of the hole that he may fill.
    async fn find_head(&self, patience: Duration) -> Result<i64, Error> {
        let (schema, limit) = (self.log.schema(), self.log.limit());
        let finding = pg::safe_head::top(&self.session, schema, self.process);
        let (top, epoch) = deadline(limit, "finding the highest id", finding).await?;
        same_epoch(self.epoch, epoch)?;
        let began = Instant::now();
        let mut waiting = self.writers().await?;
        while !waiting.is_empty() && began.elapsed() < patience {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let writing = self.writers().await?;
            waiting = still_waited_for(&waiting, writing);
        }
        if waiting.is_empty() {
            return Ok(top);
        }
        let finding = pg::safe_head::begin(&self.session, schema, self.process);
        let (head, epoch) = deadline(limit, "finding a safe head", finding).await?;
        same_epoch(self.epoch, epoch)?;
        Ok(head)
    }

    pub(crate) fn head(&self) -> i64 {
        self.horizon.head()
    }

    pub(crate) fn epoch(&self) -> Uuid {
        self.epoch
    }

    /// The connection, for other statements of the same epoch; [`accept`](Self::accept) judges what they answer.
    pub(crate) fn session(&self) -> &ClientWrapper {
        &self.session
    }

    /// The sessions of those who could fill the hole that the head stands before, as far as is known.
    pub(crate) fn in_front(&self) -> &[i32] {
        if self.horizon.hole.is_some() { &self.in_front } else { &[] }
    }

    /// Looks once, and where writers in front of a hole are gone, once more.
    ///
    /// # Errors
    /// After any error the tracker is of no use: begin another. Dropped in the middle, the head may have moved past events
    /// that were handed to nobody; [`Step::from`] tells.
    pub(crate) async fn step(&mut self, pace: Pace) -> Result<Step, Error> {
        let from = self.horizon.head();
        let mut events = Vec::new();
        let mut stale = None;
        loop {
            let mut look = match stale.take() {
                None => self.look().await?,
                Some(look) => look,
            };
            let ids: Vec<i64> = look.events.iter().map(Event::id).collect();
            let safe = self.saw(&ids, look.more);
            self.stuck = safe == 0 && self.horizon.hole.is_some();
            events.extend(look.events.drain(..safe));
            let now = Instant::now();
            let due = match pace {
                Pace::Eager => self.horizon.hole.is_some(),
                Pace::Paced => self.horizon.locks_are_due(now),
            };
            if !(due && self.drained().await?) {
                let more = look.more && self.horizon.hole.is_none();
                return Ok(Step { from, events, more, hole: self.horizon.hole_age(now) });
            }
            if self.mutant == Some(Mutant::ReadBeforeDrain) {
                stale = Some(look);
            }
        }
    }

    /// Asks for the epoch, and for nothing else.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    pub(crate) async fn ask(&self) -> Result<(), Error> {
        let asking = pg::instances::epoch(&self.session, self.log.schema(), self.process);
        same_epoch(self.epoch, deadline(self.log.limit(), "asking for the epoch", asking).await?)
    }

    /// Who holds the identity sequence now: every appender in flight.
    pub(crate) async fn writers(&self) -> Result<HashSet<String>, Error> {
        Ok(self.holders().await?.into_iter().map(|(transaction, _)| transaction).collect())
    }

    async fn holders(&self) -> Result<Vec<(String, Option<i32>)>, Error> {
        let found = pg::safe_head::writers(&self.session, self.log.schema(), self.process);
        let found = deadline(self.log.limit(), "reading who writes", found).await?;
        self.accept(found.epoch, &found.unsafe_reasons)?;
        Ok(found.holders)
    }

    /// What another statement of the same connection answered about epoch and assumptions.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin); after any error the tracker is of no use.
    pub(crate) fn accept(&self, epoch: Option<Uuid>, unsafe_reasons: &[String]) -> Result<(), Error> {
        same_epoch(self.epoch, epoch)?;
        refuse_unsafe(unsafe_reasons)
    }

    async fn look(&mut self) -> Result<pg::safe_head::Look, Error> {
        let (schema, head) = (self.log.schema(), self.horizon.head());
        let rows = if self.stuck { self.rows.min(PEEK_ROWS) } else { self.rows };
        #[cfg(feature = "cli")]
        if self.mutant == Some(Mutant::Xmin) {
            let look =
                pg::safe_head::look_below_xmin(&self.session, schema, self.process, head, rows, LOOK_BYTES);
            return deadline(self.log.limit(), "looking for events", look).await;
        }
        let look = pg::safe_head::look(&self.session, schema, self.process, head, rows, LOOK_BYTES);
        let look = deadline(self.log.limit(), "looking for events", look).await?;
        same_epoch(self.epoch, look.epoch)?;
        let seen = i64::try_from(look.events.len()).unwrap_or(i64::MAX);
        let cut = look.more && seen < rows;
        if cut {
            self.rows = seen.max(1);
        } else if !self.stuck {
            self.rows = (seen * 2).clamp(FEWEST_ROWS, MOST_ROWS);
        }
        Ok(look)
    }

    /// The last id that was given, and the highest one that is visible.
    pub(crate) async fn given(&self) -> Result<Given, Error> {
        let given = pg::safe_head::given(&self.session, self.log.schema(), self.process);
        let given = deadline(self.log.limit(), "asking which ids were given", given).await?;
        same_epoch(self.epoch, given.epoch)?;
        Ok(given)
    }

    /// Reads the locks, and says whether everybody in front of the hole is gone.
    async fn drained(&mut self) -> Result<bool, Error> {
        // Seen before the holders are read, so that they are all who can fill a hole below it.
        let top = match self.horizon.waits_below() {
            Some(top) => top,
            None => self.given().await?.visible,
        };
        let holders = self.holders().await?;
        self.in_front = holders.iter().filter_map(|(_, pid)| *pid).collect();
        let holders = holders.into_iter().map(|(transaction, _)| transaction);
        Ok(self.horizon.held_by(top, holders, Instant::now()))
    }

    fn saw(&mut self, ids: &[i64], more: bool) -> usize {
        let now = Instant::now();
        let last = ids.last().copied().unwrap_or(0);
        match self.mutant {
            Some(Mutant::HighestId | Mutant::Xmin) => self.horizon.settled = last,
            Some(Mutant::HoleTimeout) if self.horizon.hole_age(now) > Some(Duration::from_millis(20)) => {
                self.horizon.settled = last;
            }
            _ => {}
        }
        self.horizon.saw(ids, more, now)
    }
}

fn same_epoch(ours: Uuid, seen: Option<Uuid>) -> Result<(), Error> {
    if seen == Some(ours) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Connection,
        "the server was restarted or replaced, or this process was taken out of the table of processes; what was known is \
         thrown away and read anew",
    ))
}

fn refuse_unsafe(reasons: &[String]) -> Result<(), Error> {
    if reasons.is_empty() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsafe, format!("no event can be delivered safely: {}", reasons.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names<const N: usize>(names: [&str; N]) -> Vec<String> {
        names.map(str::to_owned).to_vec()
    }

    #[test]
    fn ids_without_a_hole_are_safe_and_a_hole_stops_the_head() {
        let now = Instant::now();
        let mut horizon = Horizon::new(10);
        assert_eq!(horizon.saw(&[11, 12, 14, 15], false, now), 2);
        assert_eq!(horizon.head(), 12);
        assert!(horizon.hole_age(now).is_some());
        assert_eq!(horizon.saw(&[13, 14, 15], false, now), 3);
        assert_eq!((horizon.head(), horizon.hole_age(now)), (15, None));
    }

    #[test]
    fn a_hole_is_passed_only_by_a_snapshot_taken_after_all_its_holders_were_gone() {
        let now = Instant::now();
        let mut horizon = Horizon::new(0);
        assert_eq!(horizon.saw(&[2], false, now), 0);
        assert!(!horizon.held_by(2, names(["3/1", "4/1"]), now));
        assert!(!horizon.held_by(5, names(["4/1", "5/9"]), now), "4/1 may still fill it");
        assert_eq!(horizon.saw(&[2, 4], false, now), 0);
        assert!(horizon.held_by(7, names(["5/9"]), now), "5/9 came later and does not matter");
        assert_eq!(horizon.saw(&[1, 2, 4], false, now), 2, "settled up to 2, and 3 is a hole of its own");
        assert_eq!(horizon.head(), 2);
        assert!(!horizon.held_by(7, names(["5/9"]), now));
        assert!(horizon.held_by(7, names([]), now));
        assert_eq!(horizon.saw(&[4], false, now), 1);
        assert_eq!(horizon.head(), 7, "5 to 7 were rolled back");
    }

    #[test]
    fn who_was_waited_for_at_one_hole_is_waited_for_at_the_next_below_the_same_top() {
        let now = Instant::now();
        let mut horizon = Horizon::new(0);
        assert_eq!(horizon.saw(&[3, 5], false, now), 0);
        assert!(!horizon.held_by(5, names(["3/1", "4/1"]), now));
        assert_eq!(horizon.saw(&[1, 2, 3, 5, 6], false, now), 3);
        assert!(!horizon.held_by(6, names(["4/1", "5/9"]), now));
        assert_eq!(horizon.saw(&[5, 6, 8], false, now), 0);
        assert!(horizon.held_by(8, names(["5/9"]), now), "5/9 came after 5 was seen");
        assert_eq!(horizon.saw(&[5, 6, 8], false, now), 2);
        assert!(!horizon.held_by(8, names(["5/9"]), now), "but it may fill 7");
    }

    #[test]
    fn a_transaction_that_was_prepared_meanwhile_may_have_another_name() {
        let now = Instant::now();
        let mut horizon = Horizon::new(0);
        assert_eq!(horizon.saw(&[2], false, now), 0);
        assert!(!horizon.held_by(2, names(["3/1"]), now));
        assert!(!horizon.held_by(2, names(["-1/733"]), now));
        assert!(horizon.held_by(2, names(["3/2"]), now));
    }

    #[test]
    fn what_is_settled_and_pruned_is_passed_up_to_the_next_hole() {
        let now = Instant::now();
        let mut horizon = Horizon::new(5);
        assert_eq!(horizon.saw(&[7], false, now), 0);
        assert!(horizon.held_by(7, names([]), now));
        assert_eq!(horizon.saw(&[9], false, now), 0, "6 and 7 are pruned, and 8 is a hole");
        assert_eq!(horizon.head(), 7);
        assert!(horizon.hole_age(now).is_some());
        assert_eq!(horizon.saw(&[8, 9], false, now), 2);
    }

    #[test]
    fn a_page_that_ends_early_settles_only_what_it_shows() {
        let now = Instant::now();
        let mut horizon = Horizon::new(0);
        assert_eq!(horizon.saw(&[5, 6], true, now), 0);
        assert!(horizon.held_by(100, names([]), now));
        assert_eq!(horizon.saw(&[5, 6], true, now), 2);
        assert_eq!(horizon.head(), 6);
        assert_eq!(horizon.saw(&[], false, now), 0);
        assert_eq!(horizon.head(), 100);
    }
}
