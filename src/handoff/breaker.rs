//! Whether the table is asked at all. Without I/O and without a clock.
//!
//! ```text
//!   closed ── limit failures in a row ──▶ open ── an answer, to whatever was asked all the same ──▶ closed
//! ```
//!
//! While it is open no decision waits for the table; it is made as if the table had not answered. So an open breaker can tell nobody
//! anything that a table which is away could not.

/// Counts questions that were not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Breaker {
    limit: u32,
    failures: u32,
}

impl Breaker {
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit, failures: 0 }
    }

    /// Was the last question not answered?
    pub(crate) fn is_away(self) -> bool {
        self.failures > 0
    }

    /// Shall no decision ask?
    pub(crate) fn is_open(self) -> bool {
        self.failures >= self.limit
    }

    pub(crate) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1).min(self.limit);
    }

    pub(crate) fn answered(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_closes_with_any_answer() {
        let mut breaker = Breaker::new(3);
        for failures in [2, 2] {
            for _ in 0..failures {
                breaker.failed();
            }
            assert!(breaker.is_away() && !breaker.is_open());
            breaker.answered();
            assert!(!breaker.is_away());
        }
        for _ in 0..5 {
            breaker.failed();
        }
        assert!(breaker.is_open());
        breaker.answered();
        assert!(!breaker.is_open() && !breaker.is_away());
    }
}
