//! What was seen from outside: what writers were told, and what processes announced.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use uuid::Uuid;

use super::lanes::wants_everything;
use super::worker::now_us;

/// One process: where it runs, and which one there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Worker {
    pub(crate) slot: usize,
    pub(crate) incarnation: u32,
}

/// What was done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    Killed,
    Frozen,
}

/// What a line of a process said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Ready,
    Entered { lane: String },
    Left,
    Nonsense,
}

/// A take-over that takes longer is timed, whatever else happens.
const OVERLAP_US: i64 = 1_000_000;

/// Sees everything; shared by all.
#[derive(Default)]
pub(crate) struct Witness(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    lanes: HashMap<String, Lane>,
    /// By lane: what was handed to a handler, whatever became of it.
    delivered: HashMap<String, HashSet<Uuid>>,
    calls: HashMap<(Worker, u64), Call>,
    freezes: Vec<Freeze>,
    journal: Journal,
    takeovers: Vec<(Blow, f64)>,
    deliveries: u64,
    /// Which event an id was delivered as: ids can be used again after a crash.
    names: HashMap<i64, Uuid>,
    ids_used_again: u64,
}

#[derive(Default)]
struct Lane {
    last: Option<Worker>,
    /// The highest id handed over.
    reached: i64,
    /// Since when there has been something to deliver that was not.
    waiting_since: Option<Instant>,
    longest_stall_ms: f64,
    /// Blows to the holder that nobody has taken over from yet.
    pending: Vec<(Blow, Worker, i64)>,
}

struct Call {
    lane: String,
    entered_us: i64,
}

struct Freeze {
    worker: Worker,
    stopped_us: i64,
    resumed_us: Option<i64>,
    inside: bool,
}

/// What the writers were told.
#[derive(Clone, Default)]
pub(crate) struct Journal {
    /// Committed, and on disk.
    pub(crate) acknowledged: HashSet<Uuid>,
    /// Committed, and lost if the server crashes.
    pub(crate) promised: HashSet<Uuid>,
    pub(crate) rolled_back: HashSet<Uuid>,
    /// The answer never came.
    pub(crate) unknown: HashSet<Uuid>,
    pub(crate) acknowledged_events: u64,
    pub(crate) acknowledged_transactions: u64,
    pub(crate) rolled_back_transactions: u64,
    highest: i64,
}

/// Numbers of the whole.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Events whose commit was acknowledged.
    pub(crate) acknowledged: u64,
    /// How many ids the slowest consumer of everything is behind what was acknowledged.
    pub(crate) backlog: i64,
    pub(crate) freezes: usize,
    pub(crate) freezes_in_handler: usize,
    pub(crate) longest_stall_ms: f64,
    pub(crate) ids_used_again: u64,
}

impl Witness {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        // What is inside stays true whoever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Knows the rows from the beginning, so that one that nothing is ever delivered to stalls visibly.
    pub(crate) fn expect_lanes(&self, lanes: &[String]) {
        let mut seen = self.seen();
        for lane in lanes {
            seen.lanes.entry(lane.clone()).or_default();
        }
    }

    /// A commit was acknowledged. `highest` is the highest id of it, where it is known.
    pub(crate) fn committed(&self, events: &[Uuid], highest: i64, durable: bool) {
        let mut seen = self.seen();
        let journal = &mut seen.journal;
        journal.acknowledged_transactions += 1;
        journal.acknowledged_events += u64::try_from(events.len()).unwrap_or(0);
        let set = if durable { &mut journal.acknowledged } else { &mut journal.promised };
        set.extend(events);
        journal.highest = journal.highest.max(highest);
        let now = Instant::now();
        for (name, lane) in &mut seen.lanes {
            if lane.waiting_since.is_none() && highest > lane.reached && wants_everything(name) {
                lane.waiting_since = Some(now);
            }
        }
    }

    pub(crate) fn rolled_back(&self, events: &[Uuid], whole: bool) {
        let journal = &mut self.seen().journal;
        journal.rolled_back_transactions += u64::from(whole);
        journal.rolled_back.extend(events);
    }

    pub(crate) fn unknown(&self, events: &[Uuid]) {
        self.seen().journal.unknown.extend(events);
    }

    pub(crate) fn journal(&self) -> Journal {
        self.seen().journal.clone()
    }

    /// A line that a process wrote.
    pub(crate) fn hear(&self, worker: Worker, line: &str) -> Said {
        if line == "ready" {
            return Said::Ready;
        }
        let mut words = line.split(' ');
        let mut next = || words.next();
        let (Some(sign), Some(lane), Some(call), Some(at)) = (next(), next(), next(), next()) else {
            return Said::Nonsense;
        };
        let (Ok(call), Ok(at)) = (call.parse(), at.parse()) else { return Said::Nonsense };
        match sign {
            ">" => {
                let Some(last) = words.next().and_then(|last| last.parse().ok()) else {
                    return Said::Nonsense;
                };
                let events = words.filter_map(|word| {
                    let (id, event_id) = word.split_once(':')?;
                    Some((id.parse().ok()?, Uuid::parse_str(event_id).ok()?))
                });
                self.seen().entered(worker, lane, call, at, last, events);
                Said::Entered { lane: lane.to_owned() }
            }
            "<" => {
                self.seen().left(worker, call, at);
                Said::Left
            }
            _ => Said::Nonsense,
        }
    }

    /// A process is about to be killed or was just frozen: whoever goes on with its rows takes over.
    pub(crate) fn struck(&self, worker: Worker, blow: Blow) {
        let at = now_us();
        let mut seen = self.seen();
        let Seen { lanes, calls, journal, freezes, .. } = &mut *seen;
        if blow == Blow::Frozen {
            // It may just have taken over a row, and not said so yet: that one is taken over twice, and not timed.
            for lane in lanes.values_mut() {
                lane.pending.retain(|(_, of, since)| *of == worker || at - since > OVERLAP_US);
            }
        }
        let anybody_frozen = freezes.iter().any(|freeze| freeze.resumed_us.is_none());
        for (name, lane) in lanes.iter_mut().filter(|(_, lane)| lane.last == Some(worker)) {
            // A row of one instance has nobody else.
            let inside = calls.iter().any(|((of, _), call)| *of == worker && call.lane == *name);
            // Between two passes a row may have gone to one that is frozen by now and has not said so.
            let lags = wants_everything(name) && journal.highest > lane.reached && !anybody_frozen;
            if (inside || lags) && !name.contains('@') {
                lane.pending.push((blow, worker, at));
            }
        }
        if blow == Blow::Frozen {
            freezes.push(Freeze { worker, stopped_us: at, resumed_us: None, inside: false });
        }
    }

    pub(crate) fn resumed(&self, worker: Worker) {
        let at = now_us();
        let mut seen = self.seen();
        for freeze in seen.freezes.iter_mut().filter(|f| f.worker == worker && f.resumed_us.is_none()) {
            freeze.resumed_us = Some(at);
        }
    }

    /// A process is gone. Was it inside a handler?
    pub(crate) fn gone(&self, worker: Worker) -> bool {
        let mut seen = self.seen();
        let before = seen.calls.len();
        seen.calls.retain(|(of, _), _| *of != worker);
        seen.calls.len() < before
    }

    pub(crate) fn was_delivered(&self, lane: &str, event: Uuid) -> bool {
        self.seen().delivered.get(lane).is_some_and(|events| events.contains(&event))
    }

    /// How many times an event was handed to a consumer for the first time.
    pub(crate) fn deliveries(&self) -> u64 {
        self.seen().deliveries
    }

    /// How many ids the slowest consumer of everything is behind what was acknowledged.
    pub(crate) fn backlog(&self) -> i64 {
        let seen = self.seen();
        let reached =
            seen.lanes.iter().filter(|(name, _)| wants_everything(name)).map(|(_, lane)| lane.reached);
        seen.journal.highest - reached.min().unwrap_or(0)
    }

    /// After a crash under asynchronous commit ids are used again, and the highest that was acknowledged may be gone.
    pub(crate) fn forget_places(&self) {
        let mut seen = self.seen();
        seen.journal.highest = 0;
        for lane in seen.lanes.values_mut() {
            (lane.reached, lane.waiting_since) = (0, None);
            lane.pending.clear();
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let seen = self.seen();
        Counts {
            acknowledged: seen.journal.acknowledged_events,
            backlog: seen.backlog(),
            freezes: seen.freezes.len(),
            freezes_in_handler: seen.freezes.iter().filter(|f| f.inside).count(),
            longest_stall_ms: seen.lanes.values().map(|lane| lane.longest_stall_ms).fold(0.0, f64::max),
            ids_used_again: seen.ids_used_again,
        }
    }

    /// Milliseconds from each blow to the first delivery by another process.
    pub(crate) fn takeovers(&self, of: Blow) -> Vec<f64> {
        self.seen().takeovers.iter().filter(|(blow, _)| *blow == of).map(|(_, ms)| *ms).collect()
    }
}

impl Seen {
    fn backlog(&self) -> i64 {
        // One that was handed nothing yet (since ids were used again) may have nothing to do.
        let lanes = self.lanes.iter().filter(|(name, lane)| lane.reached > 0 && wants_everything(name));
        let reached = lanes.map(|(_, lane)| lane.reached).min();
        reached.map_or(0, |reached| (self.journal.highest - reached).max(0))
    }

    fn entered(
        &mut self,
        worker: Worker,
        name: &str,
        call: u64,
        at: i64,
        last: i64,
        events: impl Iterator<Item = (i64, Uuid)>,
    ) {
        let delivered = self.delivered.entry(name.to_owned()).or_default();
        for (id, event_id) in events {
            self.deliveries += u64::from(delivered.insert(event_id));
            if *self.names.entry(id).or_insert(event_id) != event_id {
                self.names.insert(id, event_id);
                self.ids_used_again += 1;
            }
        }
        self.calls.insert((worker, call), Call { lane: name.to_owned(), entered_us: at });
        let now = Instant::now();
        let lane = self.lanes.entry(name.to_owned()).or_default();
        // A row of one instance stands still while its process does.
        if let Some(since) = lane.waiting_since.filter(|_| !name.contains('@')) {
            lane.longest_stall_ms = lane.longest_stall_ms.max((now - since).as_secs_f64() * 1e3);
        }
        lane.reached = lane.reached.max(last);
        lane.waiting_since = (wants_everything(name) && self.journal.highest > lane.reached).then_some(now);
        lane.last = Some(worker);
        for (blow, struck, blow_us) in lane.pending.drain(..) {
            if worker != struck && at >= blow_us {
                #[expect(clippy::cast_precision_loss, reason = "a time of minutes, in microseconds")]
                let ms = (at - blow_us) as f64 / 1e3;
                tracing::debug!(lane = name, ?blow, ?struck, ?worker, ms, "taken over");
                self.takeovers.push((blow, ms));
            }
        }
    }

    fn left(&mut self, worker: Worker, call: u64, at: i64) {
        let Some(call) = self.calls.remove(&(worker, call)) else { return };
        for freeze in self.freezes.iter_mut().filter(|f| f.worker == worker) {
            let across = call.entered_us <= freeze.stopped_us
                && freeze.resumed_us.is_some_and(|resumed| at >= resumed);
            freeze.inside |= across;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Worker = Worker { slot: 0, incarnation: 1 };
    const B: Worker = Worker { slot: 1, incarnation: 1 };

    fn enter(witness: &Witness, worker: Worker, call: u64, id: i64) {
        let event = Uuid::from_u128(u128::try_from(id).unwrap()).simple();
        let line = format!("> each {call} {} {id} {id}:{event}", now_us());
        assert_eq!(witness.hear(worker, &line), Said::Entered { lane: "each".into() });
    }

    fn leave(witness: &Witness, worker: Worker, call: u64) {
        assert_eq!(witness.hear(worker, &format!("< each {call} {}", now_us())), Said::Left);
    }

    #[test]
    fn a_freeze_counts_as_inside_a_handler_only_when_the_handler_was_entered_before_and_left_after() {
        let witness = Witness::default();
        enter(&witness, A, 1, 1);
        leave(&witness, A, 1);
        witness.struck(A, Blow::Frozen);
        witness.resumed(A);
        enter(&witness, A, 2, 2);
        leave(&witness, A, 2);
        assert_eq!(witness.counts().freezes_in_handler, 0);
        enter(&witness, A, 3, 3);
        witness.struck(A, Blow::Frozen);
        witness.resumed(A);
        leave(&witness, A, 3);
        assert_eq!((witness.counts().freezes, witness.counts().freezes_in_handler), (2, 1));
    }

    #[test]
    fn a_takeover_is_timed_to_the_first_delivery_by_another_process() {
        let witness = Witness::default();
        enter(&witness, A, 1, 1);
        witness.struck(A, Blow::Killed);
        assert!(witness.gone(A), "inside a handler");
        enter(&witness, B, 1, 1);
        assert_eq!(witness.takeovers(Blow::Killed).len(), 1);
        leave(&witness, B, 1);
        witness.struck(B, Blow::Killed);
        enter(&witness, A, 2, 2);
        assert_eq!(witness.takeovers(Blow::Killed).len(), 1, "there was nothing to take over");
    }

    #[test]
    fn a_takeover_by_a_process_that_is_frozen_before_it_delivers_is_not_timed() {
        let witness = Witness::default();
        enter(&witness, A, 1, 1);
        witness.struck(A, Blow::Killed);
        witness.struck(B, Blow::Frozen);
        enter(&witness, Worker { slot: 2, incarnation: 1 }, 1, 1);
        assert!(witness.takeovers(Blow::Killed).is_empty());
    }

    #[test]
    fn a_broken_line_is_nonsense() {
        let witness = Witness::default();
        for line in ["", "> each", "> each 1", "> each x 1 1", "hello"] {
            assert_eq!(witness.hear(A, line), Said::Nonsense, "{line:?}");
        }
    }
}
