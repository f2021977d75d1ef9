//! Follows the head of the log for all consumers of the process, and sleeps without missing anything.
//!
//! ```text
//!            quiet for a moment                  every appender that was in flight
//!   awake ──────────────────────▶ falling asleep ──────────────────────▶ asleep
//!   looks at short intervals      marked; keeps looking                  waits for the bell, and polls slowly
//!     ▲                                │                                    │
//!     └───────── events come fast: the mark is taken away ◀────────────────┘
//! ```
//!
//! A NOTIFY in every appending transaction would serialise commits, so appenders ring only while a row of `instances` is
//! marked as sleeping. An appender whose statement began before the mark was visible does not ring; it is in flight when
//! the mark is committed, so it holds the identity sequence, and the watcher keeps looking until all who held it then are
//! gone. Light traffic rings (that is cheap), so the mark stays; it is written at most about once a second.
//!
//! Failure handling: any error throws the tracker away, epoch and all, and begins another, with back-off.
//!
//! Not its job: delivering.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use super::board::Board;
use super::listener::Bell;
use crate::backoff::Backoff;
use crate::delivery::{Context, Head, Phase};
use crate::error::{Error, ErrorKind};
use crate::metrics;
use crate::pg::consumers::prepare_poll;
use crate::pg::instances::Identity;
use crate::pg::{self, deadline};
use crate::safe_head::{Pace, Tracker};

/// The first pause between two looks while awake; each one without news is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The pause between two looks while events come fast: each look, and each pass, takes more of them.
const FAST_PAUSE: Duration = Duration::from_millis(20);
/// Without news for so long, it falls asleep.
const QUIET: Duration = Duration::from_millis(100);
/// How often the mark is written at most.
const MARK_EVERY: Duration = Duration::from_secs(1);
/// How often a mark, which holds for 60 s, is renewed.
const RENEW_EVERY: Duration = Duration::from_secs(30);
/// From so many events a second on, ringing would cost the appenders more than looking costs us.
const FAST: f64 = 500.0;
/// How often the listener is asked whether it still hears, in polls.
const HEARTBEAT_POLLS: u32 = 10;
/// A hole that is older is told to the operator.
const OLD_HOLE: Duration = Duration::from_secs(5);
/// How often it is asked who holds it open.
const BLOCKERS_EVERY: Duration = Duration::from_secs(5);

/// The watcher of a process.
pub(crate) struct Watcher {
    cx: Arc<Context>,
    who: Identity,
    bell: Arc<Bell>,
    connected: watch::Receiver<bool>,
    board: watch::Sender<Board>,
    /// A pass found another epoch.
    suspect: Arc<Notify>,
    poll_interval: Duration,
    poll_only: bool,
}

/// What a watcher is made of.
pub(crate) struct Parts {
    pub(crate) cx: Arc<Context>,
    pub(crate) who: Identity,
    pub(crate) bell: Arc<Bell>,
    pub(crate) connected: watch::Receiver<bool>,
    pub(crate) board: watch::Sender<Board>,
    pub(crate) suspect: Arc<Notify>,
    pub(crate) poll_interval: Duration,
    pub(crate) poll_only: bool,
}

/// How deep the sleep is.
#[derive(Debug)]
enum Sleep {
    Awake,
    /// Marked; these appenders may not have seen the mark.
    Falling(HashSet<String>),
    Asleep,
}

/// What one epoch of watching knows.
struct Watch {
    tracker: Tracker,
    poll: tokio_postgres::Statement,
    rings: bool,
    sleep: Sleep,
    marked_at: Option<Instant>,
    renewed_at: Instant,
    heard_at: Instant,
    pause: Duration,
    flow: Flow,
    next_poll: Instant,
    polls: u32,
    told_hole: bool,
    blockers_at: Instant,
}

/// Events a second, over the last moments.
#[derive(Debug)]
struct Flow {
    since: Instant,
    events: usize,
    rate: f64,
}

impl Flow {
    const OVER: Duration = Duration::from_millis(200);

    fn count(&mut self, events: usize, now: Instant) {
        self.events += events;
        let past = now.duration_since(self.since);
        if past >= Self::OVER {
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            let events = self.events as f64;
            *self = Self { since: now, events: 0, rate: events / past.as_secs_f64() };
        }
    }

    fn is_fast(&self) -> bool {
        self.rate >= FAST
    }
}

impl Watcher {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { cx, who, bell, connected, board, suspect, poll_interval, poll_only } = parts;
        Self { cx, who, bell, connected, board, suspect, poll_interval, poll_only }
    }

    /// Watches until the dispatcher has stopped.
    pub(crate) async fn run(self) {
        let backoff = Backoff::exponential(Duration::from_millis(50)).up_to(Duration::from_secs(5));
        let mut phase = self.cx.phase.clone();
        let mut failures = 0;
        loop {
            let ended = tokio::select! {
                ended = self.epoch(&mut failures) => ended,
                _ = phase.wait_for(|phase| *phase == Phase::Cancelling) => return,
            };
            self.board.send_modify(|board| board.head = None);
            metrics::epoch();
            failures += 1;
            let pause = backoff.pause(failures);
            let Err(error) = ended;
            match error.kind() {
                ErrorKind::Unsafe => tracing::error!(error = error.report(), "delivery stands still"),
                _ => tracing::warn!(error = error.report(), ?pause, "the head of the log is out of sight"),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = phase.wait_for(|phase| *phase == Phase::Cancelling) => return,
            }
        }
    }

    /// One epoch, until something fails.
    async fn epoch(&self, failures: &mut u32) -> Result<std::convert::Infallible, Error> {
        let mut watch = self.begin().await?;
        loop {
            let step = watch.tracker.step(Pace::Paced).await?;
            *failures = 0;
            let now = Instant::now();
            let head = Head { id: watch.tracker.head(), epoch: watch.tracker.epoch() };
            self.cx.window.extend(head.epoch, &step, head.id);
            self.board.send_if_modified(|board| board.head.replace(head) != Some(head));
            metrics::safe_head(head.id, step.hole);
            watch.flow.count(step.events.len(), now);
            if !step.events.is_empty() {
                watch.heard_at = now;
                watch.pause = FIRST_PAUSE;
            }
            if now >= watch.next_poll {
                self.poll(&mut watch).await?;
            }
            if step.more {
                continue;
            }
            if let Some(age) = step.hole {
                self.tell_hole(&mut watch, age).await;
                let pause = match watch.flow.is_fast() {
                    true => FAST_PAUSE,
                    false => (age / 4).clamp(FIRST_PAUSE, Duration::from_millis(50)),
                };
                self.wait(pause, watch.next_poll).await;
                continue;
            }
            if std::mem::take(&mut watch.told_hole) {
                metrics::blockers(0, 0.0);
            }
            let pause = self.settle_down(&mut watch).await?;
            self.wait(pause, watch.next_poll).await;
        }
    }

    async fn begin(&self) -> Result<Watch, Error> {
        let tracker = Tracker::begin(&self.cx.log, &self.who, self.cx.mutant).await?;
        let limit = self.cx.log.limit();
        let poll =
            deadline(limit, "preparing to poll", prepare_poll(tracker.session(), self.cx.log.schema()))
                .await?;
        let rings = !self.poll_only
            && deadline(limit, "asking whether appends ring", pg::session::rings(tracker.session())).await?;
        if !rings && !self.poll_only {
            tracing::info!(
                "appends do not ring on this server, as it allows prepared transactions; polling. `inorder.ring = on` in its \
                 configuration changes that"
            );
        }
        let now = Instant::now();
        Ok(Watch {
            tracker,
            poll,
            rings,
            sleep: Sleep::Awake,
            marked_at: None,
            renewed_at: now,
            heard_at: now,
            pause: FIRST_PAUSE,
            flow: Flow { since: now, events: 0, rate: 0.0 },
            next_poll: now,
            polls: 0,
            told_hole: false,
            blockers_at: now,
        })
    }

    /// Decides how long to wait for the next look when there is no hole, and moves between awake and asleep.
    async fn settle_down(&self, watch: &mut Watch) -> Result<Duration, Error> {
        let now = Instant::now();
        let may_mark = watch.marked_at.is_none_or(|at| now - at >= MARK_EVERY);
        let bell = watch.rings && *self.connected.borrow();
        if !bell || matches!(watch.sleep, Sleep::Awake) {
            if bell && may_mark && now - watch.heard_at >= QUIET && !watch.flow.is_fast() {
                self.mark(watch, true).await?;
                watch.sleep = Sleep::Falling(watch.tracker.writers().await?);
                watch.pause = FIRST_PAUSE;
                return Ok(Duration::ZERO);
            }
            if watch.flow.is_fast() {
                return Ok(FAST_PAUSE);
            }
            let longest = if bell { QUIET / 4 } else { self.poll_interval };
            watch.pause = (watch.pause * 2).min(longest);
            return Ok(watch.pause);
        }
        if watch.flow.is_fast() && may_mark {
            self.mark(watch, false).await?;
            watch.sleep = Sleep::Awake;
            return Ok(FAST_PAUSE);
        }
        if let Sleep::Falling(before) = &watch.sleep {
            // What they committed was looked for after they were gone only if they were gone before this look: so once more.
            if before.is_empty() {
                watch.sleep = Sleep::Asleep;
                return Ok(self.poll_interval);
            }
            let now = watch.tracker.writers().await?;
            watch.sleep = Sleep::Falling(before.intersection(&now).cloned().collect());
            watch.pause = (watch.pause * 2).min(QUIET / 2);
            return Ok(watch.pause);
        }
        Ok(self.poll_interval)
    }

    /// Until the bell, the pause or the poll, whichever is first.
    async fn wait(&self, pause: Duration, next_poll: Instant) {
        let until = (Instant::now() + pause).min(next_poll);
        tokio::select! {
            () = self.bell.rung.notified() => {}
            () = self.suspect.notified() => {}
            () = tokio::time::sleep_until(until.into()) => {}
        }
    }

    /// At each interval one statement: a look at everything, the renewal of the mark, or the listener's heartbeat. A little
    /// apart each time, so that processes do not poll together.
    async fn poll(&self, watch: &mut Watch) -> Result<(), Error> {
        watch.polls += 1;
        let asleep = !matches!(watch.sleep, Sleep::Awake);
        if watch.renewed_at.elapsed() >= RENEW_EVERY {
            self.mark(watch, asleep).await?;
        } else if asleep && watch.polls.is_multiple_of(HEARTBEAT_POLLS) {
            self.bell.heartbeat.notify_one();
        } else {
            let polled = Instant::now();
            let asking = pg::consumers::poll(watch.tracker.session(), &watch.poll, self.cx.process);
            let poll = deadline(self.cx.log.limit(), "polling", asking).await?;
            if poll.epoch != Some(watch.tracker.epoch()) {
                return Err(Error::new(
                    ErrorKind::Connection,
                    "the server was restarted or replaced; its state is read anew",
                ));
            }
            metrics::sample(&poll.consumers, poll.top);
            let standings = Arc::new(poll.consumers.into_iter().map(|c| (c.key.clone(), c)).collect());
            self.board.send_modify(|board| {
                board.standings = standings;
                board.polled = Some(polled);
            });
        }
        watch.next_poll = Instant::now() + self.poll_interval.mul_f64(1.0 + 0.2 * fastrand::f64());
        Ok(())
    }

    /// Names who holds a hole open for long, once, and measures them.
    async fn tell_hole(&self, watch: &mut Watch, age: Duration) {
        if age < OLD_HOLE || watch.told_hole && watch.blockers_at.elapsed() < BLOCKERS_EVERY {
            return;
        }
        watch.blockers_at = Instant::now();
        let blockers = match self.cx.log.admin().blockers().await {
            Ok(blockers) => blockers,
            Err(error) => {
                tracing::debug!(error = error.report(), "asking who holds a hole open");
                return;
            }
        };
        metrics::blockers(blockers.len(), blockers.iter().filter_map(|b| b.age_seconds).fold(0.0, f64::max));
        if !std::mem::replace(&mut watch.told_hole, true) {
            let blockers = blockers.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            let safe_head = watch.tracker.head();
            tracing::warn!(
                safe_head,
                ?age,
                blockers,
                "a transaction took an id and has not ended: nothing behind it can be delivered"
            );
        }
    }

    async fn mark(&self, watch: &mut Watch, asleep: bool) -> Result<(), Error> {
        let marking =
            pg::instances::mark(watch.tracker.session(), self.cx.log.schema(), self.cx.process, asleep);
        let epoch = deadline(self.cx.log.limit(), "marking this process", marking).await?;
        if epoch != Some(watch.tracker.epoch()) {
            return Err(Error::new(
                ErrorKind::Connection,
                "the server was restarted or replaced; its state is read anew",
            ));
        }
        watch.renewed_at = Instant::now();
        watch.marked_at = Some(watch.renewed_at);
        Ok(())
    }
}
