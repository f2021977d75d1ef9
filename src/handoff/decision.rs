//! Who has an event: the rules, without I/O. The model in `model.rs` runs this code through every interleaving.

/// Who may run an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    /// The program that offered it, without the queue.
    Direct,
    /// Whoever takes deliveries from the queue.
    Delivery,
}

/// One side has it. The first claim stands; no later one changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    pub(crate) side: Side,
    /// The direct path has run it; whether a delivery did is the queue's to know.
    pub(crate) ran: bool,
}

impl Claim {
    pub(crate) fn of(side: Side) -> Self {
        Self { side, ran: false }
    }

    /// May the side that asks run the event? Again, too: whoever took it may have died before it ran it.
    pub(crate) fn lets_run(self, asking: Side) -> bool {
        self.side == asking && !self.ran
    }
}

/// A claim, and what the table knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Decision {
    pub(crate) claim: Claim,
    pub(crate) standing: Standing,
}

/// What the table knows of a claim that a process has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Standing {
    /// It has it: others see it, and this process when it has been started again.
    Recorded,
    /// It was away. Nobody else knows.
    Owed,
    /// It has one of the other side: both were told to run the event.
    Disputed,
}

/// What the side that asks is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Run,
    /// The other side has it, or it has been run.
    Leave,
    /// The direct path has it, and nobody else would know if this process died before it ran it: the delivery is the only other
    /// trace of the event, and may not be acknowledged.
    NotYet,
}

impl Decision {
    pub(crate) fn answer(self, asking: Side) -> Answer {
        let Self { claim, standing } = self;
        if claim.lets_run(asking) {
            Answer::Run
        } else if claim.lets_run(Side::Direct) && standing != Standing::Recorded {
            Answer::NotYet
        } else {
            Answer::Leave
        }
    }
}

/// Decides with what the table told, which took the event for the side that asks unless the other had it; `None` for a table that
/// did not answer. Without the table nobody can know what other processes did: then whoever asks first in this process has it, or,
/// when that is not enough (`strict`), nobody, and the answer is `None`.
pub(crate) fn decide(told: Option<Claim>, asking: Side, strict: bool) -> Option<Decision> {
    match told {
        Some(claim) => Some(Decision { claim, standing: Standing::Recorded }),
        None if strict => None,
        None => Some(Decision { claim: Claim::of(asking), standing: Standing::Owed }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_claim_stands_whoever_asks_later() {
        for side in [Side::Direct, Side::Delivery] {
            for asking in [Side::Direct, Side::Delivery] {
                let decision = decide(Some(Claim::of(side)), asking, true).expect("the table answered");
                let expected = if side == asking { Answer::Run } else { Answer::Leave };
                assert_eq!(decision.answer(asking), expected);
            }
        }
    }

    #[test]
    fn what_the_direct_path_has_run_nobody_runs_again() {
        for standing in [Standing::Recorded, Standing::Owed, Standing::Disputed] {
            let ran = Decision { claim: Claim { side: Side::Direct, ran: true }, standing };
            assert_eq!(
                (ran.answer(Side::Direct), ran.answer(Side::Delivery)),
                (Answer::Leave, Answer::Leave)
            );
        }
    }

    #[test]
    fn without_the_table_whoever_asks_has_it_unless_that_is_not_enough() {
        let decision = decide(None, Side::Direct, false).expect("memory is enough");
        assert_eq!(decision.answer(Side::Direct), Answer::Run);
        assert_eq!(decision.answer(Side::Delivery), Answer::NotYet);
        assert_eq!(decide(None, Side::Direct, true), None);
    }
}
