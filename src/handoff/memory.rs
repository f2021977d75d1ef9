//! What one process knows of its hand-offs. Deterministic and without I/O; bounded.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::Offer;
use super::decision::{Answer, Claim, Decision, Side, Standing, decide};

/// The offers that are open, and the claims that were made here.
///
/// A claim in memory is final within the process: deliveries and the direct path get the same answer from it, table or no table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    max_entries: usize,
    entries: BTreeMap<Uuid, Entry>,
    /// Claims of which no offer is open, in the order in which they leave: what the table has, then the rest; oldest first.
    leaving: BTreeSet<(bool, u64, Uuid)>,
    /// Claims so far.
    age: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// Of this process, between `open` and `close` or `take_direct`. Such an entry never leaves.
    offered: bool,
    claim: Option<(Decision, u64)>,
}

/// As many offers are open as memory may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Entry {
    fn leaving(&self, key: Uuid) -> Option<(bool, u64, Uuid)> {
        let (decision, age) = self.claim.filter(|_| !self.offered)?;
        Some((decision.standing != Standing::Recorded, age, key))
    }
}

impl Memory {
    pub(crate) fn new(max_entries: usize) -> Self {
        Self { max_entries, entries: BTreeMap::new(), leaving: BTreeSet::new(), age: 0 }
    }

    /// An offer begins, unless the event is somebody's already.
    pub(crate) fn open(&mut self, key: Uuid) -> Result<Offer, Full> {
        match self.claim(key) {
            Some(claim) if claim.lets_run(Side::Direct) => return Ok(Offer::RunDirectly),
            Some(_) => return Ok(Offer::Taken),
            None => {}
        }
        if !self.entries.contains_key(&key) {
            if self.open_offers() >= self.max_entries {
                return Err(Full);
            }
            self.change(key, |entry| entry.offered = true);
        }
        Ok(Offer::Open)
    }

    /// The offer is over.
    pub(crate) fn close(&mut self, key: Uuid) {
        if self.entries.contains_key(&key) {
            self.change(key, |entry| entry.offered = false);
        }
    }

    /// Whose the event is, if that was decided here.
    pub(crate) fn claim(&self, key: Uuid) -> Option<Claim> {
        self.decision(key).map(|decision| decision.claim)
    }

    fn decision(&self, key: Uuid) -> Option<Decision> {
        self.entries.get(&key)?.claim.map(|(decision, _)| decision)
    }

    /// May the side that asks run the event, if that was decided here?
    pub(crate) fn at_hand(&mut self, key: Uuid, asking: Side) -> Option<Answer> {
        self.claim(key)?;
        self.decide(key, asking, None, true)
    }

    /// May the side that asks run the event? `told` is what the table said, `None` for nothing; it is looked at only where this process
    /// has not decided before. `None` is the answer when that is not enough to decide.
    pub(crate) fn decide(
        &mut self,
        key: Uuid,
        asking: Side,
        told: Option<Claim>,
        strict: bool,
    ) -> Option<Answer> {
        let decision = match self.decision(key) {
            Some(decision) => decision,
            None => {
                let decision = decide(told, asking, strict)?;
                self.settle(key, decision);
                decision
            }
        };
        if asking == Side::Direct {
            self.close(key);
        }
        Some(decision.answer(asking))
    }

    /// Keeps a decision, also where no offer is open: one may be opened later, and the table be away then.
    fn settle(&mut self, key: Uuid, decision: Decision) {
        self.age += 1;
        let claim = (decision, self.age);
        self.change(key, |entry| {
            entry.claim.get_or_insert(claim);
        });
    }

    /// The direct path has run the event. `told` is what the table said when that was recorded, `None` for nothing.
    /// False when it is the other side's: both were told to run it.
    pub(crate) fn ran(&mut self, key: Uuid, told: Option<Claim>) -> bool {
        let claim = Claim { side: Side::Direct, ran: true };
        let decision = Decision { claim, standing: standing(claim, told) };
        self.settle(key, decision);
        self.change(key, |entry| {
            if let Some((now, _)) = &mut entry.claim {
                *now = decision;
            }
        });
        decision.standing != Standing::Disputed
    }

    /// Claims that the table does not have yet, oldest first.
    pub(crate) fn owed(&self) -> Vec<(Uuid, Claim)> {
        let mut owed: Vec<_> = self
            .entries
            .iter()
            .filter_map(|(key, entry)| entry.claim.map(|(decision, age)| (age, *key, decision)))
            .filter(|(_, _, decision)| decision.standing == Standing::Owed)
            .collect();
        owed.sort_unstable_by_key(|(age, ..)| *age);
        owed.into_iter().map(|(_, key, decision)| (key, decision.claim)).collect()
    }

    /// The table has a claim of this event now. False when it is the other side's: both were told to run it.
    pub(crate) fn recorded(&mut self, key: Uuid, told: Claim) -> bool {
        let Some(ours) = self.claim(key) else { return true };
        let standing = standing(ours, Some(told));
        self.change(key, |entry| {
            if let Some((decision, _)) = &mut entry.claim {
                decision.standing = standing;
            }
        });
        standing != Standing::Disputed
    }

    /// Of the events that the table says the direct path still has to run, those of which this process knows no better. They are the
    /// direct path's here, too, from now on.
    pub(crate) fn unfinished(&mut self, told: Vec<Uuid>) -> Vec<Uuid> {
        let mut keys = told;
        let claim = Claim::of(Side::Direct);
        keys.retain(|key| self.decide(*key, Side::Direct, Some(claim), false) == Some(Answer::Run));
        keys
    }

    /// Lets go of the oldest claims until there is room. Answers how many of them the table does not have: those are forgotten.
    pub(crate) fn make_room(&mut self) -> usize {
        let mut forgotten = 0;
        while self.entries.len() > self.max_entries {
            let Some((owed, _, key)) = self.leaving.pop_first() else { break };
            self.entries.remove(&key);
            forgotten += usize::from(owed);
        }
        forgotten
    }

    pub(crate) fn open_offers(&self) -> usize {
        self.entries.len() - self.leaving.len()
    }

    pub(crate) fn claims(&self) -> usize {
        self.leaving.len()
    }

    fn change(&mut self, key: Uuid, change: impl FnOnce(&mut Entry)) {
        let entry = self.entries.entry(key).or_default();
        if let Some(place) = entry.leaving(key) {
            self.leaving.remove(&place);
        }
        change(entry);
        if let Some(place) = entry.leaving(key) {
            self.leaving.insert(place);
        } else if !entry.offered {
            self.entries.remove(&key);
        }
    }
}

/// How a claim stands when the table has said this, or nothing.
fn standing(ours: Claim, told: Option<Claim>) -> Standing {
    match told {
        None => Standing::Owed,
        Some(told) if told.side != ours.side => Standing::Disputed,
        // That it has run since the statement was sent is still owed.
        Some(told) if ours.ran && !told.ran => Standing::Owed,
        Some(_) => Standing::Recorded,
    }
}

/// For the models, which visit a state once however many claims there were before: of their ages only the order decides anything.
#[cfg(test)]
impl std::hash::Hash for Memory {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        for (key, entry) in &self.entries {
            (key, entry.offered, entry.claim.map(|(decision, _)| decision)).hash(state);
        }
        self.entries.len().hash(state);
        let ages = self.entries.iter().filter_map(|(key, entry)| Some((entry.claim?.1, key)));
        let oldest_first: BTreeSet<_> = ages.collect();
        oldest_first.iter().for_each(|(_, key)| key.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [Uuid; 3] = [Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3)];
    const ROOM: usize = 2;

    /// What is done with a memory.
    #[derive(Clone, Copy, Debug)]
    enum Work {
        Open,
        Close,
        /// Decided without the table, and by it.
        Alone,
        Told,
        /// The table has it now.
        Recorded,
    }

    /// The same as a list, oldest entry first, in the plainest words.
    #[derive(Clone, Default)]
    struct Plain {
        offers: Vec<usize>,
        /// Which event, and does the table have it?
        claims: Vec<(usize, bool)>,
        forgotten: usize,
    }

    impl Plain {
        fn claim(&self, event: usize) -> Option<bool> {
            self.claims.iter().find(|(claimed, _)| *claimed == event).map(|(_, recorded)| *recorded)
        }

        fn after(&self, work: Work, event: usize) -> Plain {
            let mut plain = self.clone();
            let claimed = self.claim(event).is_some();
            match work {
                Work::Open if claimed || self.offers.contains(&event) || self.offers.len() >= ROOM => {}
                Work::Open => plain.offers.push(event),
                Work::Close => plain.offers.retain(|open| *open != event),
                Work::Alone | Work::Told => {
                    plain.offers.retain(|open| *open != event);
                    if !claimed {
                        plain.claims.push((event, matches!(work, Work::Told)));
                    }
                }
                Work::Recorded => {
                    for claim in plain.claims.iter_mut().filter(|(claimed, _)| *claimed == event) {
                        claim.1 = true;
                    }
                }
            }
            loop {
                let held = (0..KEYS.len()).filter(|e| plain.offers.contains(e) || plain.claim(*e).is_some());
                if held.count() <= ROOM {
                    return plain;
                }
                let leaves = |recorded| {
                    let mut claims = plain.claims.iter();
                    claims.position(|(e, is)| *is == recorded && !plain.offers.contains(e))
                };
                let Some(place) = leaves(true).or_else(|| leaves(false)) else { return plain };
                let (_, recorded) = plain.claims.remove(place);
                plain.forgotten += usize::from(!recorded);
            }
        }
    }

    fn work(memory: &mut Memory, work: Work, key: Uuid) -> usize {
        let told = Claim::of(Side::Direct);
        match work {
            Work::Open => drop(memory.open(key)),
            Work::Close => memory.close(key),
            Work::Alone => drop(memory.decide(key, Side::Direct, None, false)),
            Work::Told => drop(memory.decide(key, Side::Direct, Some(told), false)),
            Work::Recorded => drop(memory.recorded(key, told)),
        }
        memory.make_room()
    }

    /// Whatever is done, five steps deep: open offers stay, then the claims that the table does not have, then the younger ones.
    #[test]
    fn claims_leave_memory_in_their_order_and_open_offers_never() {
        let all = [Work::Open, Work::Close, Work::Alone, Work::Told, Work::Recorded];
        let mut scenes = vec![(Memory::new(ROOM), Plain::default(), 0)];
        let (mut compared, mut forgetting) = (0, 0);
        for _ in 0..5 {
            let mut next = Vec::new();
            for (memory, plain, forgotten) in scenes {
                for (step, event) in
                    all.iter().flat_map(|step| (0..KEYS.len()).map(move |event| (*step, event)))
                {
                    let (mut memory, plain) = (memory.clone(), plain.after(step, event));
                    let forgotten = forgotten + work(&mut memory, step, KEYS[event]);
                    for (event, key) in KEYS.iter().enumerate() {
                        assert_eq!(
                            memory.claim(*key).is_some(),
                            plain.claim(event).is_some(),
                            "{step:?} {event}"
                        );
                    }
                    assert_eq!(memory.open_offers(), plain.offers.len(), "{step:?} {event}");
                    assert_eq!(forgotten, plain.forgotten, "{step:?} {event}");
                    compared += 1;
                    forgetting += usize::from(forgotten > 0);
                    next.push((memory, plain, forgotten));
                }
            }
            scenes = next;
        }
        println!("memory: {compared} sequences compared, of which {forgetting} made it forget");
        assert!(forgetting > 0);
    }
}
