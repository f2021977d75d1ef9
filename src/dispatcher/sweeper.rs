//! Sweeps a queue: at the start, when something that failed here is due, when somebody in this process has recorded events for it,
//! and when the poll finds that anything is due.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::board::Board;
use crate::backoff::Backoff;
use crate::delivery::Phase;
use crate::delivery::queue::{Feeder, Queue};
use crate::pg::consumers::poll::Standing;

/// Sweeps until the dispatcher drains. A sweep is never dropped in the middle: what it claims would wait out its lease.
pub(super) async fn sweep(
    queue: Arc<Queue>,
    _feeder: Feeder,
    mut board: watch::Receiver<Board>,
    phase: watch::Receiver<Phase>,
) {
    let backoff = Backoff::exponential(Duration::from_millis(50)).up_to(Duration::from_secs(5));
    let (mut failures, mut nudges) = (0, queue.nudges());
    while unless_draining(&phase, queue.has_room()).await.is_some() {
        nudges.mark_unchanged();
        match queue.sweep().await {
            Ok(0) => {
                failures = 0;
                let something_is_due = async {
                    tokio::select! {
                        () = queue.due() => {}
                        () = found_due(&queue, &mut board) => {}
                        // The sender lives as long as the log.
                        _ = nudges.changed() => {}
                    }
                };
                unless_draining(&phase, something_is_due).await;
            }
            Ok(_) => failures = 0,
            Err(error) => {
                failures += 1;
                let pause = backoff.pause(failures);
                tracing::warn!(consumer = %queue.key, error = error.report(), ?pause, "the queue could not be swept");
                unless_draining(&phase, tokio::time::sleep(pause)).await;
            }
        }
    }
}

async fn unless_draining<T>(phase: &watch::Receiver<Phase>, future: impl Future<Output = T>) -> Option<T> {
    let mut phase = phase.clone();
    tokio::select! {
        biased;
        _ = phase.wait_for(|phase| *phase >= Phase::Draining) => None,
        ended = future => Some(ended),
    }
}

/// Waits until a poll that began since finds something due.
async fn found_due(queue: &Queue, board: &mut watch::Receiver<Board>) {
    let before = board.borrow().polled;
    let found = board.wait_for(|board| {
        board.polled > before && board.standings.get(&queue.key).is_some_and(Standing::is_due)
    });
    if found.await.is_err() {
        // The watcher is gone: so will the dispatcher be.
        std::future::pending::<()>().await;
    }
}
