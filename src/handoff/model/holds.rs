//! What must hold in every state, and that the model would find it if it did not.

use stateright::{Checker, HasDiscoveries};

use super::*;

pub(super) fn properties() -> Vec<Property<Handing>> {
    vec![
        Property::always(ONE_SIDE, |model: &Handing, s: &State| {
            // Without the table, only what one process decides in one life can be one side's.
            let excused = !model.strict && s.past.degraded;
            excused || s.past.direct == 0 || s.past.delivery == 0
        }),
        Property::always(ONE_SIDE_WITHIN, |_, s: &State| {
            s.past.pushed_out || s.past.direct & s.past.delivery == 0
        }),
        Property::always(NONE_LOST, |_, s: &State| !s.is_quiet() || s.past.direct | s.past.delivery != 0),
        Property::always(NOTHING_STANDS_STILL, |model: &Handing, s: &State| {
            let mut steps = Vec::new();
            model.actions(s, &mut steps);
            !steps.is_empty() || s.is_quiet()
        }),
        Property::sometimes("a delivery is dropped", |_, s: &State| {
            s.past.delivery == 0 && s.processes.iter().any(|p| p.delivery == Taking::Through)
        }),
        Property::sometimes("the direct path leaves it to a delivery", |_, s: &State| {
            let claim = s.processes[0].memory.claim(KEY);
            s.driver == Driver::Settled && claim == Some(Claim::of(Side::Delivery))
        }),
        Property::sometimes(NOT_ASKED, |_, s: &State| {
            !s.away
                && s.table.is_some()
                && s.processes.iter().any(|p| {
                    p.is_open()
                        && p.memory
                            .claim(KEY)
                            .is_some_and(|claim| Some(claim.side) != s.table.map(|t| t.side))
                })
        }),
        Property::sometimes("what a process left over is run by the other", |_, s: &State| {
            s.is_quiet() && s.past.delivery == 0 && s.past.direct & 0xff == 0
        }),
    ]
}

const ONE_SIDE: &str = "one side runs it, whatever dies, while the table answers";
const ONE_SIDE_WITHIN: &str = "one side runs it within the life of a process, table or no table";
const NONE_LOST: &str = "somebody runs it";
const NOTHING_STANDS_STILL: &str = "nothing stands still before that";

/// The other side has it, and the table would say so.
const NOT_ASKED: &str = "an open breaker decides though the table is back";

const NO_LUCK: Luck = Luck { crashes: 0, outages: 0, silences: 0, others: 0, failures: 0, evictions: 0 };

impl Handing {
    /// As many attempts, and messages at a time, as `attempts`.
    fn new(attempts: u8, luck: Luck) -> Handing {
        Handing {
            strict: false,
            attempts,
            messages: attempts,
            sweeps: true,
            open_after: None,
            luck,
            broken: None,
        }
    }

    fn check(self) -> impl Checker<Handing> {
        let finish = if self.broken.is_some() { HasDiscoveries::AnyFailures } else { HasDiscoveries::All };
        self.checker().threads(2).finish_when(finish).spawn_bfs().join()
    }

    fn holds(self) {
        let (began, luck, strict) = (std::time::Instant::now(), self.luck, self.strict);
        let open_after = self.open_after;
        let checker = self.check();
        println!(
            "hand-off model, strict: {strict}, open after: {open_after:?}, {luck:?}: {} states, {} steps between them, {:.1} s",
            checker.unique_state_count(),
            checker.state_count(),
            began.elapsed().as_secs_f64()
        );
        for property in [ONE_SIDE, ONE_SIDE_WITHIN, NONE_LOST, NOTHING_STANDS_STILL] {
            checker.assert_no_discovery(property);
        }
        for example in ["a delivery is dropped", "the direct path leaves it to a delivery"] {
            checker.assert_any_discovery(example);
        }
        if luck.crashes > 0 {
            checker.assert_any_discovery("what a process left over is run by the other");
        }
        if open_after.is_some() && !strict {
            checker.assert_any_discovery(NOT_ASKED);
        }
    }
}

/// I-5.
#[test]
fn handoff_model_holds_in_every_state() {
    let no_sweeps = |luck| Handing { sweeps: false, ..Handing::new(1, luck) };
    no_sweeps(Luck { outages: 1, silences: 1, ..NO_LUCK }).holds();
    no_sweeps(Luck { crashes: 1, failures: 1, ..NO_LUCK }).holds();
    no_sweeps(Luck { crashes: 1, outages: 1, ..NO_LUCK }).holds();
    Handing::new(1, Luck { outages: 1, evictions: 1, ..NO_LUCK }).holds();
}

/// I-5.
#[test]
fn handoff_model_holds_in_every_state_when_strict() {
    let strict = |luck| Handing { strict: true, sweeps: false, ..Handing::new(1, luck) };
    strict(Luck { outages: 1, silences: 1, failures: 1, ..NO_LUCK }).holds();
    strict(Luck { crashes: 1, outages: 1, ..NO_LUCK }).holds();
}

/// I-5, also where no decision waits for a table that did not answer before.
#[test]
fn handoff_model_holds_in_every_state_with_a_breaker() {
    let breaker = |luck| Handing { open_after: Some(1), sweeps: false, ..Handing::new(1, luck) };
    breaker(Luck { outages: 1, others: 1, ..NO_LUCK }).holds();
    breaker(Luck { crashes: 1, others: 1, ..NO_LUCK }).holds();
    Handing { sweeps: true, ..breaker(Luck { others: 1, ..NO_LUCK }) }.holds();
    Handing { strict: true, ..breaker(Luck { outages: 1, others: 1, failures: 1, ..NO_LUCK }) }.holds();
}

/// I-5, with more going wrong in one run.
#[test]
#[ignore = "sixteen million states: cargo test --release --lib handoff_model -- --ignored --nocapture"]
fn handoff_model_holds_in_every_state_of_bad_days() {
    Handing::new(1, Luck { outages: 1, silences: 1, ..NO_LUCK }).holds();
    Handing::new(1, Luck { crashes: 1, failures: 1, ..NO_LUCK }).holds();
    Handing::new(1, Luck { crashes: 1, outages: 1, ..NO_LUCK }).holds();
    let no_sweeps = |attempts, luck| Handing { sweeps: false, ..Handing::new(attempts, luck) };
    no_sweeps(2, Luck { outages: 1, silences: 1, ..NO_LUCK }).holds();
    no_sweeps(2, Luck { crashes: 1, failures: 1, ..NO_LUCK }).holds();
    no_sweeps(1, Luck { crashes: 1, outages: 1, failures: 1, ..NO_LUCK }).holds();
    let strict = |luck| Handing { strict: true, ..no_sweeps(1, luck) };
    strict(Luck { crashes: 1, outages: 1, silences: 1, failures: 1, ..NO_LUCK }).holds();
    let breaker = |open_after, handing| Handing { open_after: Some(open_after), ..handing };
    let other = Luck { others: 1, ..NO_LUCK };
    breaker(1, Handing::new(1, Luck { outages: 1, ..other })).holds();
    breaker(1, Handing::new(1, Luck { silences: 1, evictions: 1, ..other })).holds();
    breaker(2, no_sweeps(1, Luck { outages: 1, silences: 1, others: 2, ..NO_LUCK })).holds();
    breaker(1, no_sweeps(1, Luck { crashes: 1, outages: 1, ..other })).holds();
    breaker(1, strict(Luck { crashes: 1, outages: 1, silences: 1, ..other })).holds();
}

/// A model that finds nothing proves nothing.
#[test]
fn handoff_model_finds_every_broken_rule() {
    let outage = Luck { outages: 1, ..NO_LUCK };
    let crash = Luck { crashes: 1, ..NO_LUCK };
    let crash_and_outage = Luck { crashes: 1, outages: 1, ..NO_LUCK };
    for (broken, luck, violated) in [
        (Broken::DeliveriesOnlyRead, NO_LUCK, ONE_SIDE),
        (Broken::RowAfterwards, NO_LUCK, ONE_SIDE),
        (Broken::AnswerUnread, NO_LUCK, ONE_SIDE),
        (Broken::DeliveriesForgotten, outage, ONE_SIDE_WITHIN),
        (Broken::MemoryUnread, outage, ONE_SIDE_WITHIN),
        (Broken::NobodyFinishes, crash, NOTHING_STANDS_STILL),
        (Broken::DroppedTooSoon, crash_and_outage, NONE_LOST),
        (Broken::OpenTakenForAnAnswer, Luck { others: 1, ..NO_LUCK }, ONE_SIDE),
        (Broken::OpenThoughStrict, Luck { others: 1, ..NO_LUCK }, ONE_SIDE),
    ] {
        let open_after =
            matches!(broken, Broken::OpenTakenForAnAnswer | Broken::OpenThoughStrict).then_some(1);
        let strict = broken == Broken::OpenThoughStrict;
        let model = Handing { broken: Some(broken), sweeps: false, ..Handing::new(1, luck) };
        let checker = Handing { open_after, strict, ..model };
        let checker = checker.check();
        let found = checker.unique_state_count();
        let path =
            checker.discovery(violated).unwrap_or_else(|| panic!("{broken:?} is not found in {found}"));
        println!("{broken:?}, found in {found} states: {:?}", path.into_actions());
    }
}
