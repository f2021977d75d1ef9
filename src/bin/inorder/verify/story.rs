//! How the proof is doing, on standard error: one line that changes, where that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::witness::Counts;
use crate::failure::tell;
use crate::words::{count, counted};

/// Tells it.
pub(crate) struct Story(ProgressBar);

impl Story {
    pub(crate) fn begin() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner:.cyan} {elapsed:>3}  {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }

    /// What is being done now.
    pub(crate) fn now(&self, what: &'static str) {
        self.0.set_message(what);
    }

    /// How the storm is doing.
    pub(crate) fn storm(&self, counts: &Counts, kills: usize) {
        let Counts { acknowledged, backlog, freezes, .. } = counts;
        self.0.set_message(format!(
            "{} committed, {} not delivered yet; {} and {}",
            counted(*acknowledged, "event"),
            count(*backlog),
            counted(u64::try_from(kills).unwrap_or(u64::MAX), "kill"),
            counted(u64::try_from(*freezes).unwrap_or(u64::MAX), "freeze"),
        ));
    }

    /// A line that stays, on a terminal or not.
    pub(crate) fn tell(&self, line: &str) {
        self.0.suspend(|| tell(line));
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
