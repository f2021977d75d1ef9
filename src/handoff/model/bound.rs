//! Two events, and memories that hold one: what memory lets go of, the table keeps apart.
//!
//! The first process offers both events; it and a second one take deliveries. A claim leaves a memory when the code lets go of it, because
//! of the other event. The table may go away once. Nobody dies, and each attempt and delivery comes once: that is the other model's.

use stateright::Checker;

use super::*;

/// The events' keys.
const KEYS: [Uuid; 2] = [KEY, OTHER];

struct Bound {
    outages: u8,
    /// What has left memory is taken for nobody's: a delivery does not ask the table.
    broken: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scene {
    table: [Option<Claim>; 2],
    away: bool,
    outages: u8,
    queued: [bool; 2],
    drivers: [Offering; 2],
    memories: [Memory; 2],
    deliveries: [Deliveries; 2],
    past: [Happened; 2],
}

/// The program that offers an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Offering {
    Idle,
    Open,
    Ambiguous,
    Asking(Option<Claim>),
    MayRun,
    Done,
}

/// Whoever takes deliveries, one at a time: of which event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Deliveries {
    Nothing,
    Asking(usize, Option<Claim>),
    MayRun(usize),
}

/// What has happened to an event; a bit for each process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Happened {
    direct: u8,
    delivery: u8,
    degraded: bool,
    /// Its claim has left the memory.
    left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Next {
    Open(usize),
    /// How the offer of an event ends: the queue has answered; it has the event and does not say so; it does not have it.
    Answered(usize),
    Unanswered(usize),
    Lost(usize),
    AskDirect(usize),
    CarryOutDirect(usize),
    HearDirect(usize),
    RunDirect(usize),
    /// Of an event, by a process.
    Receive(usize, usize),
    CarryOut(usize),
    Hear(usize),
    Run(usize),
    Record(usize),
    Away,
    Back,
}

impl Scene {
    /// Does something with a memory, and keeps it within its bound, as [`super::super::Handoff`] does. `about` is the event that is
    /// decided about; an answer means that its claim was in memory, if only for a moment.
    fn remembering<T>(
        &mut self,
        at: usize,
        about: usize,
        work: impl FnOnce(&mut Memory) -> Option<T>,
    ) -> Option<T> {
        let memory = &mut self.memories[at];
        let before = KEYS.map(|key| memory.claim(key).is_some());
        let value = work(memory);
        memory.make_room();
        for event in [0, 1] {
            let was = before[event] || event == about && value.is_some();
            if was && memory.claim(KEYS[event]).is_none() {
                self.past[event].left |= 1 << at;
            }
        }
        value
    }

    fn decide(&mut self, at: usize, event: usize, side: Side, told: Option<Claim>) -> Answer {
        self.past[event].degraded |= told.is_none() && self.memories[at].claim(KEYS[event]).is_none();
        let answer = self.remembering(at, event, |memory| memory.decide(KEYS[event], side, told, false));
        answer.expect("memory decides")
    }

    fn hear_direct(&mut self, event: usize, told: Option<Claim>) {
        let answer = self.decide(0, event, Side::Direct, told);
        self.drivers[event] = if answer == Answer::Run { Offering::MayRun } else { Offering::Done };
    }

    fn hear(&mut self, at: usize, event: usize, told: Option<Claim>) {
        let answer = self.decide(at, event, Side::Delivery, told);
        self.queued[event] = answer == Answer::NotYet;
        self.deliveries[at] =
            if answer == Answer::Run { Deliveries::MayRun(event) } else { Deliveries::Nothing };
    }

    fn take(&mut self, event: usize, side: Side) -> Claim {
        *self.table[event].get_or_insert(Claim::of(side))
    }

    fn ran(&mut self, event: usize) -> Claim {
        let row = self.table[event].get_or_insert(Claim::of(Side::Direct));
        row.ran |= row.side == Side::Direct;
        *row
    }

    fn is_quiet(&self) -> bool {
        self.drivers == [Offering::Done; 2]
            && self.queued == [false; 2]
            && self.deliveries == [Deliveries::Nothing; 2]
    }
}

impl Model for Bound {
    type State = Scene;
    type Action = Next;

    fn init_states(&self) -> Vec<Scene> {
        vec![Scene {
            table: [None; 2],
            away: false,
            outages: self.outages,
            queued: [false; 2],
            drivers: [Offering::Idle; 2],
            memories: [(); 2].map(|()| Memory::new(1)),
            deliveries: [Deliveries::Nothing; 2],
            past: [Happened::default(); 2],
        }]
    }

    fn actions(&self, scene: &Scene, steps: &mut Vec<Next>) {
        for event in [0, 1] {
            match scene.drivers[event] {
                // Otherwise as many offers are open as memory may hold.
                Offering::Idle if scene.memories[0].clone().open(KEYS[event]).is_ok() => {
                    steps.push(Next::Open(event));
                }
                Offering::Open => {
                    steps.extend([Next::Answered(event), Next::Unanswered(event), Next::Lost(event)]);
                }
                Offering::Ambiguous => steps.push(Next::AskDirect(event)),
                Offering::Asking(None) if !scene.away => steps.push(Next::CarryOutDirect(event)),
                Offering::Asking(_) => steps.push(Next::HearDirect(event)),
                Offering::MayRun => steps.push(Next::RunDirect(event)),
                Offering::Idle | Offering::Done => {}
            }
        }
        for at in [0, 1] {
            match scene.deliveries[at] {
                Deliveries::Nothing => {
                    steps.extend(
                        [0, 1]
                            .iter()
                            .filter(|event| scene.queued[**event])
                            .map(|event| Next::Receive(*event, at)),
                    );
                }
                Deliveries::Asking(_, None) if !scene.away => steps.push(Next::CarryOut(at)),
                Deliveries::Asking(..) => steps.push(Next::Hear(at)),
                Deliveries::MayRun(_) => steps.push(Next::Run(at)),
            }
            if !scene.away && !scene.memories[at].owed().is_empty() {
                steps.push(Next::Record(at));
            }
        }
        match scene.away {
            true => steps.push(Next::Back),
            false if scene.outages > 0 => steps.push(Next::Away),
            false => {}
        }
    }

    fn next_state(&self, last: &Scene, step: Next) -> Option<Scene> {
        let mut scene = last.clone();
        match step {
            Next::Open(event) => {
                scene.drivers[event] = match scene.remembering(0, event, |memory| {
                    memory.open(KEYS[event]).ok().filter(|o| *o != Offer::Open)
                }) {
                    None => Offering::Open,
                    Some(Offer::RunDirectly) => Offering::MayRun,
                    Some(_) => Offering::Done,
                };
            }
            Next::Answered(event) => {
                scene.queued[event] = true;
                scene.remembering(0, event, |memory| {
                    memory.close(KEYS[event]);
                    None::<()>
                });
                scene.drivers[event] = Offering::Done;
            }
            Next::Unanswered(event) => {
                scene.queued[event] = true;
                scene.drivers[event] = Offering::Ambiguous;
            }
            Next::Lost(event) => scene.drivers[event] = Offering::Ambiguous,
            Next::AskDirect(event) => match scene.memories[0].claim(KEYS[event]) {
                Some(_) => scene.hear_direct(event, None),
                None => scene.drivers[event] = Offering::Asking(None),
            },
            Next::CarryOutDirect(event) => {
                scene.drivers[event] = Offering::Asking(Some(scene.take(event, Side::Direct)));
            }
            Next::HearDirect(event) => {
                let Offering::Asking(told) = scene.drivers[event] else { return None };
                scene.hear_direct(event, told);
            }
            Next::RunDirect(event) => {
                scene.past[event].direct |= 1;
                scene.drivers[event] = Offering::Done;
                let told = if scene.away { None } else { Some(scene.ran(event)) };
                scene.remembering(0, event, |memory| Some(memory.ran(KEYS[event], told)));
            }
            Next::Receive(event, at) => {
                scene.queued[event] = false;
                let forgotten = scene.past[event].left & (1 << at) != 0;
                if scene.memories[at].claim(KEYS[event]).is_some() {
                    scene.hear(at, event, None);
                } else if self.broken && forgotten {
                    scene.deliveries[at] = Deliveries::MayRun(event);
                } else {
                    scene.deliveries[at] = Deliveries::Asking(event, None);
                }
            }
            Next::CarryOut(at) => {
                let Deliveries::Asking(event, _) = scene.deliveries[at] else { return None };
                scene.deliveries[at] = Deliveries::Asking(event, Some(scene.take(event, Side::Delivery)));
            }
            Next::Hear(at) => {
                let Deliveries::Asking(event, told) = scene.deliveries[at] else { return None };
                scene.hear(at, event, told);
            }
            Next::Run(at) => {
                let Deliveries::MayRun(event) = scene.deliveries[at] else { return None };
                scene.past[event].delivery |= 1 << at;
                scene.deliveries[at] = Deliveries::Nothing;
            }
            Next::Record(at) => {
                let (key, claim) = scene.memories[at].owed()[0];
                let event = usize::from(key == OTHER);
                let told = if claim.ran { scene.ran(event) } else { scene.take(event, claim.side) };
                scene.remembering(at, event, |memory| {
                    memory.recorded(key, told);
                    None::<()>
                });
            }
            Next::Away => {
                scene.outages -= 1;
                scene.away = true;
            }
            Next::Back => scene.away = false,
        }
        Some(scene)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_SIDE, |_, scene: &Scene| {
                scene.past.iter().all(|past| past.degraded || past.direct == 0 || past.delivery == 0)
            }),
            Property::always(ONE_SIDE_WITHIN, |_, scene: &Scene| {
                scene.past.iter().all(|past| past.direct & past.delivery & !past.left == 0)
            }),
            Property::always(NONE_LOST, |_, scene: &Scene| {
                !scene.is_quiet() || scene.past.iter().all(|past| past.direct | past.delivery != 0)
            }),
            Property::always(NOTHING_STANDS_STILL, |model: &Bound, scene: &Scene| {
                let mut steps = Vec::new();
                model.actions(scene, &mut steps);
                !steps.is_empty() || scene.is_quiet()
            }),
            Property::always(OPEN_OFFERS_STAY, |_, scene: &Scene| {
                let open = |driver: &&Offering| {
                    matches!(driver, Offering::Open | Offering::Ambiguous | Offering::Asking(_))
                };
                scene.drivers.iter().filter(open).count() == scene.memories[0].open_offers()
            }),
            Property::sometimes(STILL_APART, |_, scene: &Scene| {
                scene.is_quiet()
                    && scene.past.iter().any(|past| past.left != 0 && past.direct != 0 && !past.degraded)
                    && scene.past.iter().all(|past| past.delivery == 0)
            }),
        ]
    }
}

const ONE_SIDE: &str = "one side runs each event while the table answers, though memory lets go of claims";
const ONE_SIDE_WITHIN: &str =
    "one side runs it within a process, table or no table, while memory holds its claim";
const NONE_LOST: &str = "somebody runs each event";
const NOTHING_STANDS_STILL: &str = "nothing stands still before that";
const OPEN_OFFERS_STAY: &str = "an open offer does not leave memory";
const STILL_APART: &str = "a delivery of what has left memory is dropped";

fn check(model: Bound) -> impl Checker<Bound> {
    model.checker().threads(2).spawn_bfs().join()
}

/// I-5.
#[test]
fn handoff_model_of_two_events_holds_though_memory_lets_go_of_claims() {
    for outages in [0, 1] {
        let began = std::time::Instant::now();
        let checker = check(Bound { outages, broken: false });
        println!(
            "hand-off model of two events, {outages} outages: {} states, {} steps between them, {:.1} s",
            checker.unique_state_count(),
            checker.state_count(),
            began.elapsed().as_secs_f64()
        );
        checker.assert_properties();
    }
}

/// A model that finds nothing proves nothing.
#[test]
fn handoff_model_of_two_events_finds_a_memory_that_is_trusted_with_what_it_let_go_of() {
    check(Bound { outages: 0, broken: true }).assert_any_discovery(ONE_SIDE);
}
