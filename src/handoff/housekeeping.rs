//! What a hand-off does by itself, as long as one of its clones lives: it sweeps now and then, and looks whether a table that does not
//! answer has come back.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{Handoff, Inner};

/// Soon after the start, so that it is known early what a former process has left over.
const FIRST: Duration = Duration::from_secs(5);
/// How many sweeps are made at a time.
const STEPS: usize = 100;
/// What the direct path has not run for so long is told of.
const LONG: Duration = Duration::from_secs(300);

impl Handoff {
    /// Sees to it that house is kept. The task ends with the last clone, or with the runtime; the next call on another begins anew.
    pub(super) fn keep_house(&self) {
        let mut task = self.inner.housekeeping.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(AbortHandle::is_finished) {
            *task = Some(tokio::spawn(housekeeping(Arc::downgrade(&self.inner))).abort_handle());
        }
    }

    async fn sweep(&self) -> Option<super::HandoffSweep> {
        for _ in 0..STEPS {
            match self.run_once().await {
                Ok(swept) if swept.more => {}
                Ok(swept) => return Some(swept),
                Err(error) => {
                    tracing::debug!(scope = self.scope(), error = error.report(), "sweeping hand-offs");
                    return None;
                }
            }
        }
        None
    }
}

async fn housekeeping(inner: Weak<Inner>) {
    let mut next = Instant::now();
    let mut told = false;
    if let Some(inner) = inner.upgrade() {
        next += inner.settings.sweep_interval.unwrap_or(FIRST).min(FIRST).mul_f64(fastrand::f64());
    }
    while let Some(wait) = inner.upgrade().map(|inner| Wait::of(&inner)) {
        let Some(why) = wait.until(next).await else { continue };
        let Some(handoff) = inner.upgrade().map(|inner| Handoff { inner }) else { return };
        let swept = handoff.sweep().await;
        if why == Why::Due {
            next =
                Instant::now() + wait.sweep_interval.unwrap_or_default().mul_f64(0.9 + 0.2 * fastrand::f64());
        }
        let Some(swept) = swept else { continue };
        let long = swept.oldest_unfinished >= LONG;
        if long && !told {
            tracing::warn!(
                scope = handoff.scope(),
                unfinished = swept.unfinished,
                oldest_seconds = swept.oldest_unfinished.as_secs(),
                "the direct path took events and has not run them; their deliveries are dropped, so run what unfinished() answers"
            );
        }
        told = long;
    }
}

/// What is waited for, without keeping the hand-off alive.
struct Wait {
    opened: Arc<tokio::sync::Notify>,
    is_open: bool,
    sweep_interval: Option<Duration>,
    probe_interval: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// A sweep is due.
    Due,
    /// The table is not asked: so a sweep asks it.
    Probe,
}

impl Wait {
    fn of(inner: &Inner) -> Self {
        Self {
            opened: Arc::clone(&inner.table.opened),
            is_open: inner.table.is_open(),
            sweep_interval: inner.settings.sweep_interval,
            probe_interval: inner.settings.probe_interval,
        }
    }

    /// `None`: look again.
    async fn until(&self, next: Instant) -> Option<Why> {
        let due = async {
            match self.sweep_interval {
                Some(_) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        if self.is_open {
            tokio::time::sleep(self.probe_interval.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
            return Some(Why::Probe);
        }
        tokio::select! {
            () = due => Some(Why::Due),
            () = self.opened.notified() => None,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let task = self.housekeeping.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}
