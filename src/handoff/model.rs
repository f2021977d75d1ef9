//! Every interleaving of a hand-off, run through the code that decides: `Memory` and the rules in `decision.rs`.
//!
//! One event, and two processes. The first has the driver, which offers the event until it is done with; both take deliveries and
//! finish what the direct path left over. The table, the queue, the network and death are the model's: a statement may be carried out
//! and its answer lost, or be carried out long after nobody waits for it; an attempt may arrive at once, late, twice or not at all; the
//! queue delivers again what was not acknowledged; a process may die anywhere and loses its memory; other events may push a claim
//! out of memory; the table may be away.
//!
//! `cargo test --lib handoff_model -- --nocapture` prints how many states there are.

use stateright::{Checker, HasDiscoveries, Model, Property};
use uuid::Uuid;

use super::Offer;
use super::decision::{Answer, Claim, Side};
use super::memory::Memory;

const KEY: Uuid = Uuid::from_u128(1);
const OTHER: Uuid = Uuid::from_u128(2);

/// A hand-off, and how much may go wrong.
struct Handing {
    strict: bool,
    /// Attempts to offer the event before the driver gives up.
    attempts: u8,
    /// Messages that the queue and the network hold at most.
    messages: u8,
    /// Is what was decided without the table written down later?
    sweeps: bool,
    luck: Luck,
    broken: Option<Broken>,
}

/// What may still go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Luck {
    crashes: u8,
    /// Times that the table goes away.
    outages: u8,
    /// Statements that nobody hears of, carried out or not.
    silences: u8,
    /// Handlers that fail, and acknowledgements that are lost.
    failures: u8,
    /// Times that other events push this one out of a memory.
    evictions: u8,
}

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// A delivery looks for the direct path's row and writes none.
    DeliveriesOnlyRead,
    /// The direct path runs the event and writes its row afterwards.
    RowAfterwards,
    /// The direct path does not look at what its statement answered.
    AnswerUnread,
    /// A delivery is acknowledged as soon as this process knows that the direct path has the event.
    DroppedTooSoon,
    /// A delivery without the table leaves nothing in memory.
    DeliveriesForgotten,
    /// What memory has decided meanwhile is not looked at when the table answers.
    MemoryUnread,
    /// Nobody runs what the direct path took and did not run.
    NobodyFinishes,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    table: Option<Claim>,
    away: bool,
    /// Messages that wait in the queue, and attempts that are on their way there.
    queued: u8,
    travelling: u8,
    driver: Driver,
    processes: [Process; 2],
    luck: Luck,
    past: Past,
}

/// What the program does that offers the event. It goes on, or begins anew when it was killed, until it is `Done`, durably.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Driver {
    Idle,
    Offering {
        attempts: u8,
    },
    /// The queue has answered.
    Answered,
    /// Every attempt was ambiguous.
    Ambiguous,
    /// It was told to run the event, and then has.
    Running,
    Ran,
    /// Nothing is left to be done, but that is written nowhere yet.
    Settled,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    memory: Memory,
    /// A bit for each life of each process.
    life: u16,
    /// What is asked of the table: by the direct path, by a delivery, by the sweep.
    calls: [Option<Call>; 3],
    delivery: Taking,
    finishing: Finishing,
    /// A statement that nobody waits for any more and that the server may still carry out.
    late: Option<Asked>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Taking {
    Nothing,
    Asking,
    MayRun,
    Through,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Finishing {
    Nothing,
    MayRun,
    Ran,
}

/// A statement, and what it answered when it was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    asked: Asked,
    told: Option<Claim>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Asked {
    TakeDirect,
    Delivering,
    /// The driver has run it; whoever finishes has.
    Ran,
    Finished,
    /// The sweep writes down what was decided without the table.
    Record(Claim),
}

/// What has happened, for the properties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Past {
    /// Lives in which the direct path, and a delivery, ran the event.
    direct: u16,
    delivery: u16,
    /// Something was decided without the table.
    degraded: bool,
    /// A claim was pushed out of a memory.
    pushed_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Open,
    Attempt(Attempt),
    Close,
    AskDirect,
    RunDirect,
    DirectFails,
    AskRan,
    Keep,
    Arrive,
    Receive(usize),
    RunDelivery(usize),
    DeliveryFails(usize),
    Acknowledge(usize),
    AcknowledgementLost(usize),
    FindUnfinished(usize),
    RunUnfinished(usize),
    AskFinished(usize),
    AskRecord(usize),
    CarryOut(usize, usize),
    Answer(usize, usize),
    NoAnswer(usize, usize),
    Silence(usize, usize),
    CarryOutLate(usize),
    PushOut(usize),
    Crash(usize),
    Away,
    Back,
}

/// How an attempt to offer the event ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Attempt {
    Answered,
    /// The queue has it, and does not say so.
    Unanswered,
    /// It arrives later.
    Travelling,
    Lost,
}

impl State {
    fn is_quiet(&self) -> bool {
        let unfinished = self.table.is_some_and(|claim| claim.lets_run(Side::Direct))
            && self.processes.iter().any(|p| !p.memory.clone().unfinished(vec![KEY]).is_empty());
        self.driver == Driver::Done
            && (self.queued, self.travelling) == (0, 0)
            && !unfinished
            && self.processes.iter().all(|p| {
                p.calls == [None, None, None]
                    && p.delivery == Taking::Nothing
                    && p.finishing == Finishing::Nothing
            })
    }

    /// What the statements of the table do: the first row stands.
    fn carry_out(&mut self, asked: Asked, broken: Option<Broken>) -> Claim {
        let ran = Claim { side: Side::Direct, ran: true };
        match asked {
            Asked::Delivering if broken == Some(Broken::DeliveriesOnlyRead) => {
                self.table.unwrap_or(Claim::of(Side::Delivery))
            }
            Asked::TakeDirect => *self.table.get_or_insert(Claim::of(Side::Direct)),
            Asked::Delivering => *self.table.get_or_insert(Claim::of(Side::Delivery)),
            Asked::Record(claim) if !claim.ran => *self.table.get_or_insert(claim),
            Asked::Ran | Asked::Finished | Asked::Record(_) => {
                let row = self.table.get_or_insert(ran);
                row.ran |= row.side == Side::Direct;
                *row
            }
        }
    }
}

impl Handing {
    /// The table said this, or nothing.
    fn hear(&self, state: &mut State, at: usize, asked: Asked, told: Option<Claim>) {
        let (driver, past) = (&mut state.driver, &mut state.past);
        let process = &mut state.processes[at];
        match asked {
            Asked::TakeDirect => {
                let told = match self.broken {
                    Some(Broken::AnswerUnread) => told.map(|_| Claim::of(Side::Direct)),
                    _ => told,
                };
                past.degraded |= told.is_none() && !self.strict && process.memory.claim(KEY).is_none();
                match process.memory.decide(KEY, Side::Direct, told, self.strict) {
                    Some(Answer::Run) => *driver = Driver::Running,
                    Some(Answer::Leave | Answer::NotYet) => *driver = Driver::Settled,
                    None => {}
                }
            }
            Asked::Delivering => {
                past.degraded |= told.is_none() && !self.strict && process.memory.claim(KEY).is_none();
                let forgotten = process.memory.clone();
                if told.is_some() && self.broken == Some(Broken::MemoryUnread) {
                    process.memory = Memory::new(1);
                }
                let runs = process.memory.decide(KEY, Side::Delivery, told, self.strict);
                if told.is_none() && self.broken == Some(Broken::DeliveriesForgotten) {
                    process.memory = forgotten;
                }
                let runs = match runs {
                    Some(Answer::NotYet) if self.broken == Some(Broken::DroppedTooSoon) => {
                        Some(Answer::Leave)
                    }
                    runs => runs,
                };
                process.delivery = match runs {
                    Some(Answer::Run) => Taking::MayRun,
                    Some(Answer::Leave) => Taking::Through,
                    Some(Answer::NotYet) | None => {
                        state.queued += 1;
                        Taking::Nothing
                    }
                };
            }
            Asked::Ran => {
                process.memory.ran(KEY, told);
                if told.is_some() || !self.strict {
                    *driver = Driver::Settled;
                }
            }
            Asked::Finished => {
                process.memory.ran(KEY, told);
                process.finishing = Finishing::Nothing;
            }
            Asked::Record(_) => {
                if let Some(told) = told {
                    process.memory.recorded(KEY, told);
                }
            }
        }
    }

    /// A decision is asked for. What memory knows needs no statement.
    fn ask(&self, state: &mut State, at: usize, asked: Asked) {
        let decides = matches!(asked, Asked::TakeDirect | Asked::Delivering);
        if decides && state.processes[at].memory.claim(KEY).is_some() {
            return self.hear(state, at, asked, None);
        }
        if asked == Asked::TakeDirect && self.broken == Some(Broken::RowAfterwards) {
            state.driver = Driver::Running;
            return;
        }
        let side = match asked {
            Asked::TakeDirect | Asked::Ran | Asked::Finished => 0,
            Asked::Delivering => 1,
            Asked::Record(_) => 2,
        };
        state.processes[at].calls[side] = Some(Call { asked, told: None });
    }

    fn life(at: usize, crashes: u8) -> u16 {
        1 << (8 * at + usize::from(crashes))
    }
}

impl Model for Handing {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let process = |at| Process {
            memory: Memory::new(1),
            life: Self::life(at, 0),
            calls: [None, None, None],
            delivery: Taking::Nothing,
            finishing: Finishing::Nothing,
            late: None,
        };
        vec![State {
            table: None,
            away: false,
            queued: 0,
            travelling: 0,
            driver: Driver::Idle,
            processes: [process(0), process(1)],
            luck: self.luck,
            past: Past::default(),
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let luck = state.luck;
        let full = state.queued + state.travelling >= self.messages;
        let free = state.processes[0].calls[0].is_none();
        match state.driver {
            Driver::Idle => steps.push(Step::Open),
            Driver::Offering { .. } => {
                steps.push(Step::Attempt(Attempt::Lost));
                if !full {
                    let arriving = [Attempt::Answered, Attempt::Unanswered, Attempt::Travelling];
                    steps.extend(arriving.map(Step::Attempt));
                }
            }
            Driver::Answered => steps.push(Step::Close),
            Driver::Ambiguous if free => steps.push(Step::AskDirect),
            Driver::Running => {
                steps.push(Step::RunDirect);
                if luck.failures > 0 {
                    steps.push(Step::DirectFails);
                }
            }
            Driver::Ran if free => steps.push(Step::AskRan),
            Driver::Settled => steps.push(Step::Keep),
            Driver::Ambiguous | Driver::Ran | Driver::Done => {}
        }
        if state.travelling > 0 {
            steps.push(Step::Arrive);
        }
        for (at, process) in state.processes.iter().enumerate() {
            match process.delivery {
                Taking::Nothing if state.queued > 0 && process.calls[1].is_none() => {
                    steps.push(Step::Receive(at));
                }
                Taking::MayRun => {
                    steps.push(Step::RunDelivery(at));
                    if luck.failures > 0 {
                        steps.push(Step::DeliveryFails(at));
                    }
                }
                Taking::Through => {
                    steps.push(Step::Acknowledge(at));
                    if luck.failures > 0 {
                        steps.push(Step::AcknowledgementLost(at));
                    }
                }
                Taking::Nothing | Taking::Asking => {}
            }
            let unfinished = state.table.is_some_and(|claim| claim.lets_run(Side::Direct));
            let nobody_does = state.processes.iter().all(|p| p.finishing == Finishing::Nothing);
            let finishes =
                !state.away && unfinished && nobody_does && self.broken != Some(Broken::NobodyFinishes);
            match process.finishing {
                Finishing::Nothing if finishes => {
                    if !process.memory.clone().unfinished(vec![KEY]).is_empty() {
                        steps.push(Step::FindUnfinished(at));
                    }
                }
                Finishing::MayRun => steps.push(Step::RunUnfinished(at)),
                Finishing::Ran if process.calls[0].is_none() => steps.push(Step::AskFinished(at)),
                Finishing::Nothing | Finishing::Ran => {}
            }
            if self.sweeps && !process.memory.owed().is_empty() && process.calls[2].is_none() && !state.away {
                steps.push(Step::AskRecord(at));
            }
            for (side, call) in process.calls.iter().enumerate() {
                match call {
                    Some(Call { told: Some(_), .. }) => steps.push(Step::Answer(at, side)),
                    Some(_) if state.away => steps.push(Step::NoAnswer(at, side)),
                    Some(_) => steps.push(Step::CarryOut(at, side)),
                    None => {}
                }
                if call.is_some() && luck.silences > 0 {
                    steps.push(Step::Silence(at, side));
                }
            }
            if process.late.is_some() && !state.away {
                steps.push(Step::CarryOutLate(at));
            }
            if luck.evictions > 0 && process.memory.claims() > 0 {
                steps.push(Step::PushOut(at));
            }
            if luck.crashes > 0 {
                steps.push(Step::Crash(at));
            }
        }
        match state.away {
            true => steps.push(Step::Back),
            false if luck.outages > 0 => steps.push(Step::Away),
            false => {}
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Open => {
                state.driver = match state.processes[0].memory.open(KEY).expect("there is room for one offer")
                {
                    Offer::Open => Driver::Offering { attempts: self.attempts },
                    Offer::RunDirectly => Driver::Running,
                    Offer::Taken => Driver::Settled,
                };
            }
            Step::Attempt(attempt) => {
                state.queued += u8::from(matches!(attempt, Attempt::Answered | Attempt::Unanswered));
                state.travelling += u8::from(attempt == Attempt::Travelling);
                state.driver = match state.driver {
                    _ if attempt == Attempt::Answered => Driver::Answered,
                    Driver::Offering { attempts } if attempts > 1 => {
                        Driver::Offering { attempts: attempts - 1 }
                    }
                    _ => Driver::Ambiguous,
                };
            }
            Step::Close => {
                state.processes[0].memory.close(KEY);
                state.driver = Driver::Settled;
            }
            Step::AskDirect => self.ask(&mut state, 0, Asked::TakeDirect),
            Step::RunDirect => {
                state.past.direct |= state.processes[0].life;
                state.driver = Driver::Ran;
            }
            Step::DirectFails => {
                state.luck.failures -= 1;
                state.driver = Driver::Idle;
            }
            Step::AskRan => self.ask(&mut state, 0, Asked::Ran),
            Step::Keep => state.driver = Driver::Done,
            Step::Arrive => {
                state.travelling -= 1;
                state.queued += 1;
            }
            Step::Receive(at) => {
                state.queued -= 1;
                state.processes[at].delivery = Taking::Asking;
                self.ask(&mut state, at, Asked::Delivering);
            }
            Step::RunDelivery(at) => {
                state.past.delivery |= state.processes[at].life;
                state.processes[at].delivery = Taking::Through;
            }
            Step::DeliveryFails(at) | Step::AcknowledgementLost(at) => {
                state.luck.failures -= 1;
                state.queued += 1;
                state.processes[at].delivery = Taking::Nothing;
            }
            Step::Acknowledge(at) => state.processes[at].delivery = Taking::Nothing,
            Step::FindUnfinished(at) => {
                let found = state.processes[at].memory.unfinished(vec![KEY]);
                state.processes[at].memory.make_room();
                assert_eq!(found, [KEY]);
                state.processes[at].finishing = Finishing::MayRun;
            }
            Step::RunUnfinished(at) => {
                state.past.direct |= state.processes[at].life;
                state.processes[at].finishing = Finishing::Ran;
            }
            Step::AskFinished(at) => self.ask(&mut state, at, Asked::Finished),
            Step::AskRecord(at) => {
                let (_, claim) = state.processes[at].memory.owed()[0];
                self.ask(&mut state, at, Asked::Record(claim));
            }
            Step::CarryOut(at, side) => {
                let mut call = state.processes[at].calls[side]?;
                call.told = Some(state.carry_out(call.asked, self.broken));
                state.processes[at].calls[side] = Some(call);
            }
            Step::Answer(at, side) | Step::NoAnswer(at, side) => {
                let call = state.processes[at].calls[side].take()?;
                self.hear(&mut state, at, call.asked, call.told);
            }
            Step::Silence(at, side) => {
                state.luck.silences -= 1;
                let call = state.processes[at].calls[side].take()?;
                if call.told.is_none() {
                    state.processes[at].late = Some(call.asked);
                }
                self.hear(&mut state, at, call.asked, None);
            }
            Step::CarryOutLate(at) => {
                let asked = state.processes[at].late.take()?;
                state.carry_out(asked, self.broken);
            }
            Step::PushOut(at) => {
                state.luck.evictions -= 1;
                state.past.pushed_out = true;
                let memory = &mut state.processes[at].memory;
                let _ = memory.open(OTHER);
                memory.make_room();
                memory.close(OTHER);
            }
            Step::Crash(at) => {
                state.luck.crashes -= 1;
                let crashes = self.luck.crashes - state.luck.crashes;
                let process = &mut state.processes[at];
                let under_way = process.calls.iter().flatten().find(|call| call.told.is_none());
                state.queued += u8::from(process.delivery != Taking::Nothing);
                *process = Process {
                    memory: Memory::new(1),
                    life: Self::life(at, crashes),
                    calls: [None, None, None],
                    delivery: Taking::Nothing,
                    finishing: Finishing::Nothing,
                    late: under_way.map(|call| call.asked).or(process.late),
                };
                if at == 0 && state.driver != Driver::Done {
                    state.driver = Driver::Idle;
                }
            }
            Step::Away => {
                state.luck.outages -= 1;
                state.away = true;
            }
            Step::Back => state.away = false,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
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
            Property::sometimes("what a process left over is run by the other", |_, s: &State| {
                s.is_quiet() && s.past.delivery == 0 && s.past.direct & 0xff == 0
            }),
        ]
    }
}

const ONE_SIDE: &str = "one side runs it, whatever dies, while the table answers";
const ONE_SIDE_WITHIN: &str = "one side runs it within the life of a process, table or no table";
const NONE_LOST: &str = "somebody runs it";
const NOTHING_STANDS_STILL: &str = "nothing stands still before that";

const NO_LUCK: Luck = Luck { crashes: 0, outages: 0, silences: 0, failures: 0, evictions: 0 };

impl Handing {
    /// As many attempts, and messages at a time, as `attempts`.
    fn new(attempts: u8, luck: Luck) -> Handing {
        Handing { strict: false, attempts, messages: attempts, sweeps: true, luck, broken: None }
    }

    fn check(self) -> impl Checker<Handing> {
        let finish = if self.broken.is_some() { HasDiscoveries::AnyFailures } else { HasDiscoveries::All };
        self.checker().threads(2).finish_when(finish).spawn_bfs().join()
    }

    fn holds(self) {
        let (began, luck, strict) = (std::time::Instant::now(), self.luck, self.strict);
        let checker = self.check();
        println!(
            "hand-off model, strict: {strict}, {luck:?}: {} states, {} steps between them, {:.1} s",
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
    }
}

/// I-5.
#[test]
fn handoff_model_holds_in_every_state() {
    Handing::new(1, Luck { outages: 1, silences: 1, ..NO_LUCK }).holds();
    Handing::new(1, Luck { outages: 1, evictions: 1, ..NO_LUCK }).holds();
    Handing::new(1, Luck { crashes: 1, failures: 1, ..NO_LUCK }).holds();
    Handing { sweeps: false, ..Handing::new(1, Luck { crashes: 1, outages: 1, ..NO_LUCK }) }.holds();
}

/// I-5.
#[test]
fn handoff_model_holds_in_every_state_when_strict() {
    let strict = |luck| Handing { strict: true, sweeps: false, ..Handing::new(1, luck) };
    strict(Luck { outages: 1, silences: 1, failures: 1, ..NO_LUCK }).holds();
    strict(Luck { crashes: 1, outages: 1, ..NO_LUCK }).holds();
}

/// I-5, with more going wrong in one run.
#[test]
#[ignore = "five million states: cargo test --release --lib handoff_model -- --ignored --nocapture"]
fn handoff_model_holds_in_every_state_of_bad_days() {
    Handing::new(2, Luck { outages: 1, silences: 1, ..NO_LUCK }).holds();
    Handing::new(2, Luck { crashes: 1, failures: 1, ..NO_LUCK }).holds();
    Handing::new(1, Luck { crashes: 1, outages: 1, ..NO_LUCK }).holds();
    let no_sweeps = |luck| Handing { sweeps: false, ..Handing::new(1, luck) };
    no_sweeps(Luck { crashes: 1, outages: 1, failures: 1, ..NO_LUCK }).holds();
    let strict = |luck| Handing { strict: true, ..no_sweeps(luck) };
    strict(Luck { crashes: 1, outages: 1, silences: 1, failures: 1, ..NO_LUCK }).holds();
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
    ] {
        let checker = Handing { broken: Some(broken), sweeps: false, ..Handing::new(1, luck) };
        let checker = checker.check();
        let found = checker.unique_state_count();
        let path =
            checker.discovery(violated).unwrap_or_else(|| panic!("{broken:?} is not found in {found}"));
        println!("{broken:?}, found in {found} states: {:?}", path.into_actions());
    }
}
