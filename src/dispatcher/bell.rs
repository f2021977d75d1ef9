//! The doorbell, as this process hears it: appenders ring while the process is marked as sleeping, operators after they acted.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, watch};

/// What the connection that listens tells the watcher and the lanes.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    /// Somebody appended, or an operator acted: look.
    pub(crate) rung: Notify,
    /// How often somebody appended: those who are at the head get ready.
    pub(crate) appends: watch::Sender<u64>,
    /// An operator acted: look at the consumers, too.
    pub(crate) acted: AtomicBool,
}

impl Bell {
    /// Appends ring with an empty payload.
    pub(crate) fn heard(&self, payload: &str) {
        if !payload.is_empty() {
            self.acted.store(true, Ordering::Relaxed);
        }
        self.rung.notify_one();
        if payload.is_empty() {
            self.appends.send_modify(|appends| *appends += 1);
        }
    }
}
