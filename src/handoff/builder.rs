//! Options of a hand-off.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::memory::Memory;
use super::table::Table;
use super::{Handoff, Inner};
use crate::error::{Error, ErrorKind};
use crate::metrics;
use crate::store::Inorder;

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// What stands behind the builder, with its defaults.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) max_entries: usize,
    pub(super) keep: Duration,
    pub(super) keep_deliveries: Duration,
    pub(super) table_timeout: Duration,
    pub(super) strict: bool,
    pub(super) open_after: u32,
    pub(super) probe_interval: Duration,
    /// `None`: only by hand.
    pub(super) sweep_interval: Option<Duration>,
}

/// Puts a [`Handoff`] together.
#[derive(Debug)]
#[must_use = "nothing is decided before it is built"]
pub struct HandoffBuilder {
    log: Inorder,
    scope: String,
    settings: Settings,
}

impl HandoffBuilder {
    pub(super) fn new(log: Inorder, scope: String) -> Self {
        let settings = Settings {
            max_entries: 10_000,
            keep: 30 * DAY,
            keep_deliveries: 30 * DAY,
            table_timeout: Duration::from_secs(5),
            strict: false,
            open_after: 3,
            probe_interval: Duration::from_secs(1),
            sweep_interval: Some(Duration::from_secs(60)),
        };
        Self { log, scope, settings }
    }

    /// How many events memory holds. Of those, open offers stay, so there can be no more of them; claims leave when there is no room,
    /// the oldest first, and those that the table has before those that it does not have. Default 10,000.
    pub fn max_entries(mut self, events: usize) -> Self {
        self.settings.max_entries = events;
        self
    }

    /// How long the table keeps that the direct path has run an event, from when it ran it: longer than the queue may still deliver
    /// it. What the direct path has not run is kept until it has. The same in all processes of a scope: whoever says it last is
    /// heeded. Default 30 days.
    pub fn keep(mut self, time: Duration) -> Self {
        self.settings.keep = time;
        self
    }

    /// How long the table keeps that a delivery took an event: longer than an offer of it may still be open, or be made again after
    /// a crash. There is one such row, of about 150 bytes with its indexes, for each event that is delivered. Default 30 days.
    pub fn keep_deliveries(mut self, time: Duration) -> Self {
        self.settings.keep_deliveries = time;
        self
    }

    /// How long the table may take to answer before it counts as away. Default 5 s.
    pub fn table_timeout(mut self, time: Duration) -> Self {
        self.settings.table_timeout = time;
        self
    }

    /// Nothing is decided without the table: while it does not answer, the answer is its error.
    pub fn strict(mut self) -> Self {
        self.settings.strict = true;
        self
    }

    /// After how many questions in a row that the table did not answer the breaker opens: decisions do not wait for it any more, and are
    /// made at once as if it had not answered. Until it answers a probe. Default 3.
    pub fn open_after(mut self, failures: u32) -> Self {
        self.settings.open_after = failures;
        self
    }

    /// How long after a probe that was not answered the next is made, while the breaker is open. Default 1 s.
    pub fn probe_interval(mut self, time: Duration) -> Self {
        self.settings.probe_interval = time;
        self
    }

    /// How often the hand-off does what [`run_once`](Handoff::run_once) does, by itself, from its first question to the table until its
    /// last clone is dropped. Default 60 s.
    pub fn sweep_interval(mut self, time: Duration) -> Self {
        self.settings.sweep_interval = Some(time);
        self
    }

    /// Nothing is swept but by [`run_once`](Handoff::run_once), and by the probes of an open breaker.
    pub fn sweep_by_hand(mut self) -> Self {
        self.settings.sweep_interval = None;
        self
    }

    /// # Errors
    /// [`ErrorKind::Config`] names the option and what it may be.
    pub fn build(self) -> Result<Handoff, Error> {
        let Self { log, scope, settings } = self;
        let wrong = if scope.is_empty() || scope.len() > 200 || scope.contains('\0') {
            format!("the scope is {} bytes; it must be 1 to 200, without U+0000", scope.len())
        } else if settings.max_entries == 0 {
            "max_entries is 0; it must be at least 1".into()
        } else if settings.table_timeout.is_zero() {
            "table_timeout is 0; it must be longer".into()
        } else if let Some((name, time)) =
            [("keep", settings.keep), ("keep_deliveries", settings.keep_deliveries)]
                .into_iter()
                .find(|(_, time)| *time < Duration::from_secs(1) || *time > 36_500 * DAY)
        {
            format!("{name} is {time:?}; it must be 1 s to 36,500 days")
        } else if settings.open_after == 0 {
            "open_after is 0; it must be at least 1".into()
        } else if let Some((name, time)) =
            [("probe_interval", Some(settings.probe_interval)), ("sweep_interval", settings.sweep_interval)]
                .into_iter()
                .filter_map(|(name, time)| Some((name, time?)))
                .find(|(_, time)| !(Duration::from_millis(10)..=DAY).contains(time))
        {
            format!("{name} is {time:?}; it must be 10 ms to 1 day")
        } else {
            metrics::describe();
            let memory = Mutex::new(Memory::new(settings.max_entries));
            let table = Table::new(log, scope, &settings);
            let (sweeping, housekeeping) = Default::default();
            return Ok(Handoff {
                inner: Arc::new(Inner { settings, table, memory, sweeping, housekeeping }),
            });
        };
        Err(Error::new(ErrorKind::Config, format!("hand-off {scope:?}: {wrong}")))
    }
}
