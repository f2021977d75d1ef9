//! Every interleaving of a hand-off, run through the code that decides: `Memory`, `Breaker` and the rules in `decision.rs`.
//!
//! One event, and two processes. The first has the driver, which offers the event until it is done with; both take deliveries and
//! finish what the direct path left over. The table, the queue, the network and death are the model's: a statement may be carried out
//! and its answer lost, or be carried out long after nobody waits for it; an attempt may arrive at once, late, twice or not at all; the
//! queue delivers again what was not acknowledged; a process may die anywhere and loses its memory; other events may push a claim
//! out of memory; the table may be away, and not be asked though it is back, until it has answered a probe.
//!
//! `steps.rs` has what may happen, `holds.rs` what must hold, and `bound.rs` a model of its own: two events, and a memory that holds one.
//!
//! `cargo test --lib handoff_model -- --nocapture` prints how many states there are.

use stateright::{Model, Property};
use uuid::Uuid;

use super::Offer;
use super::breaker::Breaker;
use super::decision::{Answer, Claim, Side};
use super::memory::Memory;

mod bound;
mod holds;
mod steps;

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
    /// After how many failures the breaker opens. `None`: never.
    open_after: Option<u32>,
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
    /// Statements about other events that are not answered: they count for the breaker, too.
    others: u8,
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
    /// While the breaker is open, the direct path is told that its row is there.
    OpenTakenForAnAnswer,
    /// While the breaker is open, a strict hand-off lets memory decide.
    OpenThoughStrict,
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
    breaker: Option<Breaker>,
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
    OtherUnanswered(usize),
    Probe(usize),
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

impl Process {
    fn is_open(&self) -> bool {
        self.breaker.is_some_and(Breaker::is_open)
    }

    /// The table answered a question, or did not.
    fn note(&mut self, answered: bool) {
        if let Some(breaker) = &mut self.breaker {
            match answered {
                true => breaker.answered(),
                false => breaker.failed(),
            }
        }
    }
}

impl Handing {
    /// The table said this, or nothing.
    fn hear(&self, state: &mut State, at: usize, asked: Asked, told: Option<Claim>) {
        let (driver, past) = (&mut state.driver, &mut state.past);
        let process = &mut state.processes[at];
        let strict = self.strict && !(self.broken == Some(Broken::OpenThoughStrict) && process.is_open());
        match asked {
            Asked::TakeDirect => {
                let told = match self.broken {
                    Some(Broken::AnswerUnread) => told.map(|_| Claim::of(Side::Direct)),
                    _ => told,
                };
                past.degraded |= told.is_none() && !self.strict && process.memory.claim(KEY).is_none();
                match process.memory.decide(KEY, Side::Direct, told, strict) {
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
                let runs = process.memory.decide(KEY, Side::Delivery, told, strict);
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
                if told.is_some() {
                    process.memory.ran(KEY, told);
                }
                if told.is_some() || !self.strict {
                    *driver = Driver::Settled;
                }
            }
            Asked::Finished => {
                if told.is_some() {
                    process.memory.ran(KEY, told);
                }
                process.finishing = Finishing::Nothing;
            }
            Asked::Record(_) => {
                if let Some(told) = told {
                    process.memory.recorded(KEY, told);
                }
            }
        }
    }

    /// Something is asked for. A decision that memory knows needs no statement, and none waits for one while the breaker is open.
    fn ask(&self, state: &mut State, at: usize, asked: Asked) {
        if matches!(asked, Asked::Ran | Asked::Finished) {
            state.processes[at].memory.ran(KEY, None);
        }
        let decides = matches!(asked, Asked::TakeDirect | Asked::Delivering);
        if decides && state.processes[at].memory.claim(KEY).is_some() {
            return self.hear(state, at, asked, None);
        }
        if state.processes[at].is_open() && !matches!(asked, Asked::Record(_)) {
            let taken_for_an_answer =
                self.broken == Some(Broken::OpenTakenForAnAnswer) && asked == Asked::TakeDirect;
            return self.hear(state, at, asked, taken_for_an_answer.then_some(Claim::of(Side::Direct)));
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

    /// How a process begins.
    fn process(&self, at: usize, crashes: u8, late: Option<Asked>) -> Process {
        Process {
            memory: Memory::new(1),
            breaker: self.open_after.map(Breaker::new),
            life: Self::life(at, crashes),
            calls: [None, None, None],
            delivery: Taking::Nothing,
            finishing: Finishing::Nothing,
            late,
        }
    }

    fn life(at: usize, crashes: u8) -> u16 {
        1 << (8 * at + usize::from(crashes))
    }
}

impl Model for Handing {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            table: None,
            away: false,
            queued: 0,
            travelling: 0,
            driver: Driver::Idle,
            processes: [0, 1].map(|at| self.process(at, 0, None)),
            luck: self.luck,
            past: Past::default(),
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        self.possible(state, steps);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        self.after(last, step)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        holds::properties()
    }
}
