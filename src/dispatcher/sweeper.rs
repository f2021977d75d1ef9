//! Sweeps a queue: at the start, when something that failed here is due, when somebody in this process has recorded events for it,
//! and when the poll finds that anything is due.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::board::Board;
use crate::backoff::Backoff;
use crate::delivery::Phase;
use crate::delivery::queue::Queue;
use crate::pg::consumers::poll::Standing;

/// Sweeps until the dispatcher drains.
pub(super) async fn sweep(
    queue: Arc<Queue>,
    board: watch::Receiver<Board>,
    mut phase: watch::Receiver<Phase>,
) {
    tokio::select! {
        () = sweep_when_due(&queue, board) => {}
        _ = phase.wait_for(|phase| *phase >= Phase::Draining) => {}
    }
}

async fn sweep_when_due(queue: &Queue, mut board: watch::Receiver<Board>) {
    let backoff = Backoff::exponential(Duration::from_millis(50)).up_to(Duration::from_secs(5));
    let (mut failures, mut nudges) = (0, queue.nudges());
    loop {
        queue.has_room().await;
        nudges.mark_unchanged();
        match queue.sweep().await {
            Ok(0) => {
                failures = 0;
                tokio::select! {
                    () = queue.due() => {}
                    () = found_due(queue, &mut board) => {}
                    // The sender lives as long as the log.
                    _ = nudges.changed() => {}
                }
            }
            Ok(_) => failures = 0,
            Err(error) => {
                failures += 1;
                let pause = backoff.pause(failures);
                tracing::warn!(consumer = %queue.key, error = error.report(), ?pause, "the queue could not be swept");
                tokio::time::sleep(pause).await;
            }
        }
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
