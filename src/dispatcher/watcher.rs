//! Follows the head of the log for all consumers of the process, and sleeps without missing anything.
//!
//! ```text
//!            quiet or calm for a moment          every appender that was in flight
//!   awake ──────────────────────▶ falling asleep ──────────────────────▶ asleep
//!   looks at short intervals      marked; keeps looking                  waits for the bell, and polls slowly
//!     ▲                                │                                    │
//!     └── events come fast, or from several at once: the mark is taken away ┘
//! ```
//!
//! A NOTIFY in every appending transaction would serialise commits, so appenders ring only while a row of `instances` is
//! marked as sleeping. An appender whose statement began before the mark was visible does not ring; it is in flight when
//! the mark is committed, so it holds the identity sequence, and the watcher keeps looking until all who held it then are
//! gone. Light traffic rings (that is cheap), so the mark stays; it is written at most about once a second. How fast events
//! come does not tell alone whether ringing is cheap: where several appenders write at once, the bell itself slows them down.
//!
//! The connection that looks is the one that listens: its session is awake when the bell has rung, and as it is asked for
//! something at every tick, one that has gone deaf is noticed and replaced.
//!
//! At each tick there is one statement, and asleep there is no other: the poll, which is a look at the highest id, at every
//! consumer and at all that the safe head rests on; instead of it, now and then, the renewal of the mark, or, where polls are
//! rare, the bare question for the epoch. So an appender that did not see the mark costs a moment and no event.
//!
//! Invariants: I-1 (no wake-up is lost), I-8 (appenders ring only while that costs them next to nothing), I-10 (no tick, pause
//! or mark decides what is delivered).
//!
//! Failure handling: any error throws the tracker away, epoch, LISTEN and all, and begins another, with back-off; until then
//! the lanes have no head and deliver nothing.
//!
//! Not its job: what is safe (the module `safe_head`), and delivering it.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use super::bell::Bell;
use super::board::Board;
use crate::backoff::Backoff;
use crate::delivery::{Context, Head, Phase};
use crate::error::{Error, ErrorKind};
use crate::metrics;
use crate::pg::consumers::poll;
use crate::pg::instances::Identity;
use crate::pg::{self, deadline};
use crate::safe_head::{Pace, Step, Tracker};

mod blockers;
mod flow;

use blockers::Blockers;
use flow::Flow;

/// The first pause between two looks while awake; each one without news is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The pause between two looks while events come fast, for each consumer row that they lead to a pass of: each look, and
/// each pass, takes more of them, and what all passes cost together stays the same.
const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// That pause for few and for many rows.
const BUSY_PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));
/// Without news for so long, it falls asleep.
const QUIET: Duration = Duration::from_millis(100);
/// Without being busy for so long, it falls asleep although events come.
const CALM: Duration = Duration::from_secs(1);
/// The longest pause between two looks while something is waited for: a hole, or appenders that have not seen the mark.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// How soon after the mark was written it may be set again. Taking it away does not wait.
const MARK_EVERY: Duration = Duration::from_secs(2);
/// How often a mark, which holds for 60 s, is renewed.
const RENEW_EVERY: Duration = Duration::from_secs(30);
/// A mark that is renewed so late may have lapsed meanwhile: appenders that did not see it must be waited for again.
const LAPSED_AFTER: Duration = Duration::from_secs(50);
/// How often the server is asked at least, so that a connection which fell silent is noticed.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(10);
/// The watcher of a process.
pub(crate) struct Watcher {
    cx: Arc<Context>,
    who: Identity,
    bell: Arc<Bell>,
    board: watch::Sender<Board>,
    /// A pass found another epoch.
    suspect: Arc<Notify>,
    poll_interval: Duration,
    poll_only: bool,
    busy_pause: Duration,
}

/// What a watcher is made of.
pub(crate) struct Parts {
    pub(crate) cx: Arc<Context>,
    pub(crate) who: Identity,
    pub(crate) bell: Arc<Bell>,
    pub(crate) board: watch::Sender<Board>,
    pub(crate) suspect: Arc<Notify>,
    pub(crate) poll_interval: Duration,
    pub(crate) poll_only: bool,
    /// How many consumer rows go by what it sees.
    pub(crate) rows: usize,
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
    poll: pg::statement::Ready,
    rings: bool,
    sleep: Sleep,
    marked_at: Option<Instant>,
    renewed_at: Instant,
    heard_at: Instant,
    pause: Duration,
    flow: Flow,
    polled_at: Option<Instant>,
    next_tick: Instant,
    blockers: Blockers,
}

/// Why the watcher stopped waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    /// There may be news: the bell, a pass that found another epoch, or the pause is over.
    Look,
    /// It is time for a tick, and for nothing else.
    Tick,
}

impl Watcher {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { cx, who, bell, board, suspect, poll_interval, poll_only, rows } = parts;
        let (shortest, longest) = BUSY_PAUSES;
        let busy_pause =
            BUSY_PAUSE.saturating_mul(u32::try_from(rows).unwrap_or(u32::MAX)).clamp(shortest, longest);
        Self { cx, who, bell, board, suspect, poll_interval, poll_only, busy_pause }
    }

    /// Watches until the dispatcher has stopped.
    pub(crate) async fn run(self) {
        let backoff = Backoff::exponential(Duration::from_millis(50)).up_to(Duration::from_secs(5));
        let mut phase = self.cx.phase.clone();
        let mut failures = 0;
        loop {
            let ended = tokio::select! {
                ended = self.epoch(&mut failures) => ended,
                _ = phase.wait_for(|phase| *phase == Phase::Cancelling) => break,
            };
            self.board.send_modify(|board| board.head = None);
            metrics::listening(false);
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
                _ = phase.wait_for(|phase| *phase == Phase::Cancelling) => break,
            }
        }
        metrics::listening(false);
    }

    /// One epoch, until something fails.
    async fn epoch(&self, failures: &mut u32) -> Result<Infallible, Error> {
        let mut watch = self.begin().await?;
        let mut woken = Woken::Look;
        loop {
            let news = match self.bell.acted.swap(false, Ordering::Relaxed) {
                true => self.poll(&mut watch).await?,
                false => Instant::now() >= watch.next_tick && self.tick(&mut watch).await?,
            };
            if news {
                woken = Woken::Look;
            }
            if woken == Woken::Tick {
                woken = self.wait(None, watch.next_tick).await;
                continue;
            }
            let step = watch.tracker.step(Pace::Paced).await?;
            *failures = 0;
            let now = Instant::now();
            self.publish(&watch.tracker, &step);
            watch.flow.count(step.events.len(), now);
            if !step.events.is_empty() {
                watch.heard_at = now;
                watch.pause = FIRST_PAUSE;
            }
            if step.more {
                continue;
            }
            if watch.flow.is_in_doubt(now) {
                let given = watch.tracker.given().await?;
                watch.flow.found(given.last - given.visible);
            }
            match step.hole {
                Some(age) => watch.blockers.tell(&self.cx.log, watch.tracker.head(), age),
                None => watch.blockers.are_gone(),
            }
            let pause = self.settle_down(&mut watch, step.hole).await?;
            self.publish_whether_rung_for(step.hole.is_none() && !matches!(watch.sleep, Sleep::Awake));
            woken = self.wait(pause, watch.next_tick).await;
            if pause.is_some() {
                // A tick that came first does not put off the look.
                woken = Woken::Look;
            }
        }
    }

    async fn begin(&self) -> Result<Watch, Error> {
        let (log, who, mutant) = (&self.cx.log, &self.who, self.cx.mutant);
        let tracker = match self.poll_only {
            true => Tracker::begin(log, who, mutant, LONGEST_PAUSE).await?,
            false => {
                let bell = Arc::clone(&self.bell);
                let heard = move |payload: &str| bell.heard(payload);
                Tracker::begin_listening(log, who, mutant, LONGEST_PAUSE, heard).await?
            }
        };
        // What leases, claims and settles goes to where the head is seen.
        self.cx.terms.begin_epoch();
        metrics::listening(!self.poll_only);
        if !self.poll_only {
            tracing::debug!("listening");
        }
        let limit = self.cx.log.limit();
        let poll =
            deadline(limit, "preparing to poll", poll::prepare(tracker.session(), self.cx.log.schema()))
                .await?;
        let now = Instant::now();
        let mut watch = Watch {
            tracker,
            poll,
            rings: true,
            sleep: Sleep::Awake,
            marked_at: None,
            renewed_at: now,
            heard_at: now,
            pause: FIRST_PAUSE,
            flow: Flow::new(now),
            polled_at: None,
            next_tick: now,
            blockers: Blockers::default(),
        };
        self.poll(&mut watch).await?;
        Ok(watch)
    }

    /// What a step brought, to the lanes and the metrics.
    fn publish(&self, tracker: &Tracker, step: &Step) {
        let head = Head { id: tracker.head(), epoch: tracker.epoch() };
        self.cx.window.extend(head.epoch, step, head.id);
        self.cx.hold_ups.set(tracker.in_front());
        // After the window: a lane that sees the head finds the events.
        self.board.send_if_modified(|board| board.head.replace(head) != Some(head));
        metrics::safe_head(head.id, step.hole);
    }

    fn publish_whether_rung_for(&self, rung_for: bool) {
        self.board.send_if_modified(|board| {
            board.rung_for = rung_for;
            // Nobody waits for that.
            false
        });
    }

    /// Decides how long to wait for the next look, and moves between awake and asleep. `None`: until the bell, or until a tick
    /// finds something.
    async fn settle_down(
        &self,
        watch: &mut Watch,
        hole: Option<Duration>,
    ) -> Result<Option<Duration>, Error> {
        if watch.flow.is_busy() {
            if !matches!(watch.sleep, Sleep::Awake) {
                self.mark(watch, false).await?;
                watch.sleep = Sleep::Awake;
                tracing::debug!(safe_head = watch.tracker.head(), "awake: events come fast");
            }
            return Ok(Some(self.busy_pause));
        }
        if let Some(age) = hole {
            return Ok(Some((age / 4).clamp(FIRST_PAUSE, LONGEST_PAUSE)));
        }
        if !watch.rings || self.poll_only {
            // Nobody would hear the bell.
            watch.pause = (watch.pause * 2).min(self.poll_interval);
            return Ok(Some(watch.pause).filter(|pause| *pause < self.poll_interval));
        }
        match &watch.sleep {
            Sleep::Awake if watch.is_sleepy(Instant::now()) => {
                self.mark(watch, true).await?;
                watch.sleep = Sleep::Falling(watch.tracker.writers().await?);
                watch.pause = FIRST_PAUSE;
                Ok(Some(Duration::ZERO))
            }
            Sleep::Awake => {
                watch.pause = (watch.pause * 2).min(QUIET / 4);
                Ok(Some(watch.pause))
            }
            // They were gone before the last look began.
            Sleep::Falling(before) if before.is_empty() => {
                watch.sleep = Sleep::Asleep;
                tracing::debug!(safe_head = watch.tracker.head(), "asleep");
                Ok(None)
            }
            Sleep::Falling(before) => {
                let now = watch.tracker.writers().await?;
                watch.sleep = Sleep::Falling(before.intersection(&now).cloned().collect());
                watch.pause = (watch.pause * 2).min(LONGEST_PAUSE);
                Ok(Some(watch.pause))
            }
            Sleep::Asleep => Ok(None),
        }
    }

    /// Until the bell, the pause or the tick, whichever is first.
    async fn wait(&self, pause: Option<Duration>, next_tick: Instant) -> Woken {
        let pause = pause.map(|pause| Instant::now() + pause).filter(|at| *at < next_tick);
        tokio::select! {
            biased;
            () = self.bell.rung.notified() => Woken::Look,
            () = self.suspect.notified() => Woken::Look,
            () = tokio::time::sleep_until(pause.unwrap_or(next_tick).into()) => match pause {
                Some(_) => Woken::Look,
                None => Woken::Tick,
            },
        }
    }

    /// One statement at most. A little apart each time, so that processes do not tick together. True when it found news.
    async fn tick(&self, watch: &mut Watch) -> Result<bool, Error> {
        let asleep = !matches!(watch.sleep, Sleep::Awake);
        let mut news = false;
        let since_renewal = watch.renewed_at.elapsed();
        if since_renewal >= LAPSED_AFTER && asleep {
            self.mark(watch, false).await?;
            watch.sleep = Sleep::Awake;
            news = true;
        } else if since_renewal >= RENEW_EVERY {
            self.mark(watch, asleep).await?;
        } else if watch.polled_at.is_none_or(|at| at.elapsed() >= self.poll_interval) {
            news = self.poll(watch).await?;
        } else {
            watch.tracker.ask().await?;
        }
        watch.next_tick = Instant::now() + self.tick_pause();
        Ok(news)
    }

    fn tick_pause(&self) -> Duration {
        self.poll_interval.min(HEARTBEAT_EVERY).mul_f64(1.0 + 0.2 * fastrand::f64())
    }

    /// Looks at the highest id and at every consumer. True when there are events above the head.
    async fn poll(&self, watch: &mut Watch) -> Result<bool, Error> {
        let polled = Instant::now();
        let asking = poll::poll(watch.tracker.session(), &watch.poll, self.cx.process);
        let poll = deadline(self.cx.log.limit(), "polling", asking).await?;
        watch.tracker.accept(poll.epoch, &poll.unsafe_reasons)?;
        watch.hear_whether_it_rings(poll.rings, self.poll_only);
        metrics::sample(&poll.consumers, poll.top);
        let standings: HashMap<_, _> = poll.consumers.into_iter().map(|c| (c.key.clone(), c)).collect();
        self.board
            .borrow()
            .standings
            .values()
            .filter(|was| !standings.contains_key(&was.key))
            .for_each(metrics::forget);
        let standings = Arc::new(standings);
        self.board.send_modify(|board| {
            board.standings = standings;
            board.polled = Some(polled);
        });
        watch.polled_at = Some(polled);
        watch.next_tick = Instant::now() + self.tick_pause();
        Ok(poll.top > watch.tracker.head())
    }

    async fn mark(&self, watch: &mut Watch, asleep: bool) -> Result<(), Error> {
        let marking =
            pg::instances::mark(watch.tracker.session(), self.cx.log.schema(), self.cx.process, asleep);
        let epoch = deadline(self.cx.log.limit(), "marking this process", marking).await?;
        watch.tracker.accept(epoch, &[])?;
        watch.renewed_at = Instant::now();
        watch.marked_at = Some(watch.renewed_at);
        Ok(())
    }
}

impl Watch {
    /// Is it time to fall asleep?
    fn is_sleepy(&self, now: Instant) -> bool {
        self.marked_at.is_none_or(|at| now - at >= MARK_EVERY)
            && (now - self.heard_at >= QUIET || self.flow.calm_for(now) >= CALM)
    }

    fn hear_whether_it_rings(&mut self, rings: bool, poll_only: bool) {
        if !rings && self.rings && !poll_only {
            tracing::info!(
                "appends do not ring on this server, as `inorder.ring` is off or it allows prepared transactions; polling. \
                 `inorder.ring = on` in its configuration changes that"
            );
        }
        self.rings = rings;
    }
}
