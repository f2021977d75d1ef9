//! What the proof came to.

use std::fmt;

use serde::Serialize;

use super::audit::Findings;

/// Everything that is told at the end.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) seconds: f64,
    pub(crate) writers: u32,
    pub(crate) processes: u32,
    /// Events in the log.
    pub(crate) committed: u64,
    /// Events that were written and rolled back.
    pub(crate) rolled_back: u64,
    pub(crate) transactions: u64,
    /// Ids below the head that no event has.
    pub(crate) holes: u64,
    pub(crate) kills: usize,
    pub(crate) kills_in_handler: usize,
    pub(crate) freezes: usize,
    pub(crate) freezes_in_handler: usize,
    pub(crate) watcher_terminations: usize,
    /// Of any session of a process.
    pub(crate) session_terminations: usize,
    /// The longest time that a consumer of everything had something to do and was handed nothing.
    pub(crate) longest_stall_ms: f64,
    pub(crate) handler_limit_ms: u64,
    pub(crate) takeover_ms: Takeovers,
    /// `null` where the server is not ours to crash.
    pub(crate) crashes: Option<Crashes>,
    #[serde(flatten)]
    pub(crate) findings: Findings,
}

/// From the blow to the first delivery by another process.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Takeovers {
    pub(crate) killed: Spread,
    pub(crate) frozen: Spread,
}

/// How measurements are spread.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Spread {
    pub(crate) count: usize,
    pub(crate) median: Option<f64>,
    pub(crate) max: Option<f64>,
}

/// What was done to the server.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Crashes {
    /// Immediate stops under asynchronous commit.
    pub(crate) crashes: u64,
    /// Restarts with prepared transactions open.
    pub(crate) restarts: u64,
    pub(crate) prepared_over_restart: u64,
    /// Events that were acknowledged and lost with the tail, as asynchronous commit allows.
    pub(crate) tail_lost: u64,
    /// Ids that were handed to a consumer for two different events.
    pub(crate) ids_used_again: u64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let median = values.get(values.len() / 2).copied();
        Self { count: values.len(), median, max: values.last().copied() }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.median, self.max) {
            (Some(median), Some(max)) => {
                write!(f, "{} times, median {median:.0} ms, at most {max:.0} ms", self.count)
            }
            _ => f.write_str("never"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { findings: found, .. } = self;
        writeln!(
            f,
            "{} writers and {} processes over {:.0} s, seed {}",
            self.writers, self.processes, self.seconds, self.seed
        )?;
        writeln!(
            f,
            "committed            {} events in {} transactions; {} more rolled back, {} holes",
            self.committed, self.transactions, self.rolled_back, self.holes
        )?;
        writeln!(
            f,
            "killed               {} processes, {} inside a handler",
            self.kills, self.kills_in_handler
        )?;
        writeln!(
            f,
            "frozen               {} processes, {} inside a handler",
            self.freezes, self.freezes_in_handler
        )?;
        writeln!(
            f,
            "cut off              {} watchers, {} other sessions",
            self.watcher_terminations, self.session_terminations
        )?;
        if let Some(crashes) = &self.crashes {
            writeln!(
                f,
                "server crashed       {} times under asynchronous commit: {} events of the tail lost, {} ids used again",
                crashes.crashes, crashes.tail_lost, crashes.ids_used_again
            )?;
            writeln!(
                f,
                "server restarted     {} times, with {} prepared transactions open",
                crashes.restarts, crashes.prepared_over_restart
            )?;
        }
        writeln!(f, "taken over           after a kill {}", self.takeover_ms.killed)?;
        writeln!(
            f,
            "                     after a freeze {} (a handler may take {} ms)",
            self.takeover_ms.frozen, self.handler_limit_ms
        )?;
        writeln!(f, "longest stall        {:.0} ms", self.longest_stall_ms)?;
        for (what, count) in [
            ("missed", found.missed),
            ("out of order", found.out_of_order),
            ("duplicated effects", found.duplicated_effects),
            ("lost effects", found.lost_effects),
            ("strange effects", found.strange_effects),
            ("lost commits", found.lost_commits),
            ("strange events", found.strange_events),
            ("stuck consumers", found.stuck),
        ] {
            writeln!(f, "{what:<20} {count}")?;
        }
        for which in &found.which {
            writeln!(f, "  {which}")?;
        }
        f.write_str(match found.is_clean() {
            true => "every event was delivered, in order, once",
            false => "a guarantee is broken",
        })
    }
}
