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
        } else {
            metrics::describe();
            let memory = Mutex::new(Memory::new(settings.max_entries));
            let table =
                Table::new(log, scope, settings.table_timeout, (settings.keep, settings.keep_deliveries));
            return Ok(Handoff { inner: Arc::new(Inner { settings, table, memory }) });
        };
        Err(Error::new(ErrorKind::Config, format!("hand-off {scope:?}: {wrong}")))
    }
}
