//! What may happen next, and what comes of it.

use super::*;

impl Handing {
    pub(super) fn possible(&self, state: &State, steps: &mut Vec<Step>) {
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
            if luck.others > 0 && process.breaker.is_some() && !process.is_open() {
                steps.push(Step::OtherUnanswered(at));
            }
            if process.is_open() && !state.away {
                steps.push(Step::Probe(at));
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

    pub(super) fn after(&self, last: &State, step: Step) -> Option<State> {
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
                state.processes[at].note(true);
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
                state.processes[at].note(call.told.is_some());
                self.hear(&mut state, at, call.asked, call.told);
            }
            Step::Silence(at, side) => {
                state.luck.silences -= 1;
                let call = state.processes[at].calls[side].take()?;
                if call.told.is_none() {
                    state.processes[at].late = Some(call.asked);
                }
                state.processes[at].note(false);
                self.hear(&mut state, at, call.asked, None);
            }
            Step::CarryOutLate(at) => {
                let asked = state.processes[at].late.take()?;
                state.carry_out(asked, self.broken);
            }
            Step::OtherUnanswered(at) => {
                state.luck.others -= 1;
                state.processes[at].note(false);
            }
            Step::Probe(at) => state.processes[at].note(true),
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
                *process = self.process(at, crashes, under_way.map(|call| call.asked).or(process.late));
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
}
