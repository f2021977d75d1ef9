//! A dispatcher at work, and how it ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::Settings;
use super::bell::Bell;
use super::board::Board;
use super::housekeeping::keep_house;
use super::lane::LaneLoop;
use super::sweeper::sweep;
use super::watcher::{Parts, Watcher};
use crate::delivery::queue::Queue;
use crate::delivery::{Context, Phase, Runner};
use crate::error::{Error, ErrorKind};
use crate::pg::instances::Identity;
use crate::pg::{self, deadline};

/// A dispatcher at work. Dropping it asks it to stop, without waiting.
#[derive(Debug)]
pub struct Running {
    phase: Arc<watch::Sender<Phase>>,
    stopped: watch::Receiver<Option<Stopped>>,
}

/// How it ended.
#[derive(Clone, Debug)]
enum Stopped {
    Well,
    Panicked(String),
}

impl Running {
    pub(super) fn spawn(
        lanes: Vec<Runner>,
        queues: Vec<Arc<Queue>>,
        cx: Arc<Context>,
        phase: watch::Sender<Phase>,
        who: Identity,
        settings: Settings,
    ) -> Self {
        let (stopped, watched) = watch::channel(None);
        let phase = Arc::new(phase);
        tokio::spawn(supervise(lanes, queues, cx, Arc::clone(&phase), who, settings, stopped));
        Self { phase, stopped: watched }
    }

    /// Stops: handlers in flight finish, up to the stop time-out, and are dropped then; their events cost no attempt.
    /// Returns when everything has stopped. Calling it again is harmless.
    ///
    /// # Cancel safety
    /// Dropped in the middle, stopping goes on; call it again to wait for the end.
    ///
    /// # Errors
    /// [`ErrorKind::Stopped`] when a part of the dispatcher had panicked.
    pub async fn stop(&self) -> Result<(), Error> {
        self.phase.send_if_modified(drain);
        self.stopped().await
    }

    /// Waits until it has stopped, without asking for it.
    ///
    /// # Errors
    /// As for [`stop`](Self::stop).
    pub async fn stopped(&self) -> Result<(), Error> {
        let mut stopped = self.stopped.clone();
        let ended = match stopped.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone(),
            Err(_) => None,
        };
        match ended {
            Some(Stopped::Well) => Ok(()),
            Some(Stopped::Panicked(what)) => {
                Err(Error::new(ErrorKind::Stopped, format!("a part of the dispatcher panicked: {what}")))
            }
            None => Err(Error::new(ErrorKind::Stopped, "the dispatcher went away with its runtime")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.phase.send_if_modified(drain);
    }
}

/// How long lanes may take to end their transactions after the stop time-out.
const TIDY_UP: Duration = Duration::from_secs(1);

/// Asks to stop, where nobody has; true when it was news.
fn drain(phase: &mut Phase) -> bool {
    let running = *phase == Phase::Running;
    if running {
        *phase = Phase::Draining;
    }
    running
}

/// Owns all tasks of a running dispatcher, and ends them in order: lanes, then the watcher and the housekeeping.
async fn supervise(
    runners: Vec<Runner>,
    queues: Vec<Arc<Queue>>,
    cx: Arc<Context>,
    phase: Arc<watch::Sender<Phase>>,
    who: Identity,
    settings: Settings,
    stopped: watch::Sender<Option<Stopped>>,
) {
    let (board, boards) = watch::channel(Board::default());
    let (bell, suspect) = (Arc::new(Bell::default()), Arc::new(Notify::new()));
    let appends = bell.appends.subscribe();
    let mut services = JoinSet::new();
    let parts = Parts {
        cx: Arc::clone(&cx),
        who: who.clone(),
        bell,
        board,
        suspect: Arc::clone(&suspect),
        poll_interval: settings.poll_interval,
        poll_only: settings.poll_only,
        rows: runners.len(),
    };
    services.spawn(Watcher::new(parts).run());
    let keys = runners.iter().map(|runner| runner.key.clone()).collect();
    let Settings { house_interval, expire_after, forget_after, .. } = settings;
    services.spawn(keep_house(Arc::clone(&cx), keys, house_interval, expire_after, forget_after));
    let mut lanes = JoinSet::new();
    for runner in runners {
        let suspect = Arc::clone(&suspect);
        lanes.spawn(LaneLoop::new(runner, Arc::clone(&cx), boards.clone(), appends.clone(), suspect).run());
    }
    for queue in queues {
        lanes.spawn(sweep(Arc::clone(&queue), queue.feed(), boards.clone(), cx.phase.clone()));
        lanes.spawn(queue.work());
    }
    let mut end = Stopped::Well;
    let mut asked = phase.subscribe();
    let out_of_time = async {
        // The sender lives as long as this task.
        let _ = asked.wait_for(|phase| *phase >= Phase::Draining).await;
        tokio::time::sleep(settings.stop_timeout).await;
        tracing::warn!("handlers in flight did not finish within the stop time-out; they are dropped");
        phase.send_replace(Phase::Cancelling);
        tokio::time::sleep(TIDY_UP).await;
    };
    tokio::pin!(out_of_time);
    let mut aborted = false;
    loop {
        tokio::select! {
            ended = lanes.join_next() => match ended {
                None => break,
                Some(Err(error)) if error.is_panic() => {
                    tracing::error!(%error, "a consumer's task panicked; the dispatcher stops");
                    end = Stopped::Panicked(error.to_string());
                    phase.send_if_modified(drain);
                }
                Some(_) => {}
            },
            // They end only when they are asked to.
            Some(Err(error)) = services.join_next() => {
                tracing::error!(%error, "a task of the dispatcher panicked; the dispatcher stops");
                end = Stopped::Panicked(error.to_string());
                phase.send_if_modified(drain);
            },
            () = &mut out_of_time, if !aborted => {
                // They wait for a server that does not answer. Their transactions go with their connections.
                lanes.abort_all();
                aborted = true;
            }
        }
    }
    phase.send_replace(Phase::Cancelling);
    while let Some(ended) = services.join_next().await {
        if let Err(error) = ended {
            end = Stopped::Panicked(error.to_string());
        }
    }
    leave(&cx, &who).await;
    cx.passes.close();
    cx.readers.close();
    cx.leases.close();
    cx.claims.close();
    stopped.send_replace(Some(end));
}

/// Takes the process out of the table, as a courtesy: a row that stays is removed by others in time.
async fn leave(cx: &Context, who: &Identity) {
    let leaving = async {
        let client = cx.log.client("leaving").await?;
        let leaving = pg::instances::leave(&client, cx.log.schema(), who.id);
        let left = deadline(Duration::from_secs(2), "leaving", leaving).await;
        if left.is_err() {
            pg::throw_away(client);
        }
        left
    };
    if let Err(error) = deadline(Duration::from_secs(5), "leaving", leaving).await {
        tracing::debug!(error = error.report(), "leaving");
    }
}
