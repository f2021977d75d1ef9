//! Consumers that are registered: passes run by hand, or in the background.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use super::Settings;
use super::running::Running;
use crate::delivery::queue::Queue;
use crate::delivery::{Context, Head, Lookout, Phase, Runner};
use crate::error::{Error, ErrorKind};
use crate::metrics;
use crate::outcome::{ConsumerReport, Outcome, Report};
use crate::pg::instances::Identity;
use crate::safe_head::{Pace, Tracker};

/// Consumers that are registered: for tests, crons and scripts that run passes themselves, and to be started.
pub struct Registered {
    pub(super) runners: Vec<Mutex<Runner>>,
    pub(super) queues: Vec<Arc<Queue>>,
    pub(super) tracker: Mutex<Option<Tracker>>,
    pub(super) cx: Arc<Context>,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) who: Identity,
    pub(super) settings: Settings,
}

impl Registered {
    /// Looks at the log once and runs one pass of every consumer, up to the safe head. A pass delivers up to a batch, ten
    /// where the consumer is far behind; [`Outcome::More`] says that there is more.
    ///
    /// # Errors
    /// Of the server and the network. A handler's failures are in the report.
    pub async fn run_once(&self) -> Result<Report, Error> {
        let head = self.look().await?;
        let passes = join_all(self.runners.iter().map(|runner| async move {
            let mut runner = runner.lock().await;
            // Nobody polls here: the pass itself asks whether a dead letter is to be retried.
            runner.look_closely();
            let pass = runner.pass(&self.cx, Lookout::Known(head)).await?;
            metrics::pass(&runner.key, &pass.report, runner.began.elapsed());
            Ok::<_, Error>((runner.key.to_string(), pass.report))
        }));
        let _working: JoinSet<()> = self.queues.iter().map(|queue| Arc::clone(queue).work()).collect();
        let before: Vec<[u64; 3]> = self.queues.iter().map(|queue| queue.counts.now()).collect();
        let passes = passes.await;
        let sweeps = join_all(self.queues.iter().map(|queue| async {
            let swept = queue.sweep().await;
            queue.idle().await;
            swept
        }));
        let sweeps = sweeps.await;
        let mut report = BTreeMap::new();
        for pass in passes {
            let (name, one) = pass?;
            report.insert(name, one);
        }
        for ((queue, before), swept) in self.queues.iter().zip(before).zip(sweeps) {
            swept?;
            let [processed, failed, skipped] = queue.counts.since(before);
            if let Some(one) = report.get_mut(&queue.key.to_string()) {
                one.processed += processed;
                one.failed += failed;
                one.skipped += skipped;
            }
        }
        Ok(Report(report))
    }

    /// Runs passes until every consumer is caught up with the safe head, dead, or waiting. The counts are those of all
    /// passes. A row that another process holds is waited for.
    ///
    /// # Errors
    /// As for [`run_once`](Self::run_once).
    pub async fn drain(&self) -> Result<Report, Error> {
        let mut total = Report::default();
        loop {
            let report = self.run_once().await?;
            let busy = report.0.values().any(|r| r.outcome == Outcome::Busy);
            // What was done may have appended events.
            let more = report.processed() > 0 || report.0.values().any(|r| r.outcome == Outcome::More);
            for (name, one) in report.0 {
                total.0.entry(name).or_insert_with(|| ConsumerReport::new(Outcome::More)).add(&one);
            }
            if !more && !busy {
                return Ok(total);
            }
            if !more {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// Runs the consumers in the background.
    pub fn start(self) -> Running {
        let Self { runners, queues, tracker, cx, phase, who, mut settings } = self;
        // The watcher makes one of its own, under a new epoch.
        drop(tracker);
        if cx.log.schema().is_pooled() && !settings.poll_only {
            settings.poll_only = true;
            tracing::warn!(
                server = cx.log.connector().target(),
                poll_interval = ?settings.poll_interval,
                "a pooler gives each transaction another session: nobody can listen there, so events are polled for; everything else \
                 works. Connect to the server itself to be rung for at once, or say pooler = \"session\" if each connection has a \
                 session of its own"
            );
        }
        // Whoever listens has sessions of its own: behind a pooler, others would find them with these settings.
        cx.terms.plan_once(!settings.poll_only);
        let lanes = runners.into_iter().map(Mutex::into_inner).collect();
        Running::spawn(lanes, queues, cx, phase, who, settings)
    }

    /// The safe head now. A connection that was lost meanwhile is made anew.
    async fn look(&self) -> Result<Head, Error> {
        let mut slot = self.tracker.lock().await;
        for fresh in [false, true] {
            let mut tracker = match slot.take() {
                Some(tracker) => tracker,
                None => {
                    let tracker =
                        Tracker::begin(&self.cx.log, &self.who, self.cx.mutant, Duration::ZERO).await?;
                    self.cx.terms.begin_epoch();
                    tracker
                }
            };
            match self.follow(&mut tracker).await {
                Ok(head) => {
                    *slot = Some(tracker);
                    return Ok(head);
                }
                Err(error) if fresh || error.kind() != ErrorKind::Connection => return Err(error),
                Err(error) => tracing::debug!(error = error.report(), "looking again over a new connection"),
            }
        }
        Err(Error::new(ErrorKind::Connection, "the log was lost sight of twice in a row"))
    }

    async fn follow(&self, tracker: &mut Tracker) -> Result<Head, Error> {
        loop {
            let step = tracker.step(Pace::Eager).await?;
            let head = Head { id: tracker.head(), epoch: tracker.epoch() };
            self.cx.window.extend(head.epoch, &step, head.id);
            if !step.more {
                return Ok(head);
            }
        }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("rows", &self.runners.len()).finish_non_exhaustive()
    }
}
