//! A place at which somebody waits until the test lets them on.

use std::sync::Arc;

use tokio::sync::watch;

use super::waiting::within;

/// Handlers wait at it, the test sees that they do, and opens it. Clones are the same gate.
#[derive(Clone)]
pub(crate) struct Gate {
    arrived: Arc<watch::Sender<usize>>,
    open: Arc<watch::Sender<bool>>,
}

impl Gate {
    pub(crate) fn closed() -> Gate {
        Gate { arrived: Arc::new(watch::Sender::new(0)), open: Arc::new(watch::Sender::new(false)) }
    }

    /// Waits until it is open. Dropped while waiting, nobody is left standing.
    pub(crate) async fn pass(&self) {
        self.arrived.send_modify(|arrived| *arrived += 1);
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
    }

    /// Waits until somebody has arrived, open or not.
    pub(crate) async fn reached(&self) {
        self.reached_by(1).await;
    }

    /// Waits until so many have arrived since the test began.
    pub(crate) async fn reached_by(&self, count: usize) {
        let mut arrived = self.arrived.subscribe();
        within(&format!("{count} at the gate"), arrived.wait_for(|arrived| *arrived >= count)).await.unwrap();
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }
}
