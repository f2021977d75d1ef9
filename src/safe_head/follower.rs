//! Follows the log without being a consumer: nothing is kept of how far it came.
//!
//! Invariants: I-1, I-2. What the tracker knows is thrown away with it, when its connection is lost and when a call is dropped
//! in the middle; the next call begins another and reads on behind the last event that was handed out.
//!
//! Not its job: wake-ups. It looks at growing intervals, up to a quarter of a second.

use std::fmt;
use std::time::{Duration, Instant};

use super::{Pace, Tracker};
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::event::Event;
use crate::pg::instances::Identity;
use crate::pg::{self, deadline};
use crate::store::Inorder;

/// Events that are read at a time while it is far behind.
const PAGE: i64 = 1_000;
/// The pauses between looks.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);
/// How often the process says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(60);

/// Follows the log; made by [`Inorder::follow`].
///
/// It is no consumer: it holds nothing back, nobody waits for it, and how far it came is known to it alone.
#[must_use = "reads nothing until it is asked to"]
pub struct Follower {
    log: Inorder,
    who: Identity,
    /// `None` before the first call, and after one that failed or was dropped.
    tracker: Option<Tracker>,
    /// Is this process in the table of processes, as far as we know?
    entered: bool,
    after: i64,
    seen: Instant,
}

impl Inorder {
    /// Follows the log from the first event above the id `after`, in id order, never past the safe head: what is handed out is
    /// never followed by an event with a lower id. On a busy log it gets further than [`read`](Self::read), which looks only
    /// once and stops at the first hole.
    ///
    /// ```no_run
    /// # async fn example(log: inorder::Inorder) -> Result<(), inorder::Error> {
    /// let mut follower = log.follow(log.safe_head().await?);
    /// loop {
    ///     for event in follower.next().await? {
    ///         println!("{} {}", event.id(), event.event_type());
    ///     }
    /// }
    /// # }
    /// ```
    pub fn follow(&self, after: i64) -> Follower {
        let who = Identity::of_this_process();
        Follower { log: self.clone(), who, tracker: None, entered: false, after, seen: Instant::now() }
    }
}

impl Follower {
    /// The id of the last event that was handed out; every event up to it was.
    pub fn position(&self) -> i64 {
        self.after
    }

    /// The next events, at least one. Waits for it as long as it takes.
    ///
    /// Cancel safety: when the future is dropped, no event is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Unsafe`] when the log does not satisfy what the safe head rests on; [`ErrorKind::Connection`] when the
    /// connection was lost: the same call may be made again.
    pub async fn next(&mut self) -> Result<Vec<Event>, Error> {
        let mut pause = SHORTEST;
        loop {
            // Dropped or failed from here on, the tracker is gone, and with it what it had read.
            let mut tracker = match self.tracker.take() {
                Some(tracker) => tracker,
                None => {
                    self.entered = true;
                    Tracker::begin(&self.log, &self.who, None, Duration::ZERO).await?
                }
            };
            let events = match tracker.head() > self.after {
                true => self.page(tracker.head()).await?,
                false => self.step(&mut tracker).await?,
            };
            self.tracker = Some(tracker);
            if let Some(last) = events.last() {
                self.after = last.id();
                return Ok(events);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Takes this process out of the table of processes, as a courtesy: others do it an hour after it was last seen.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn stop(self) -> Result<(), Error> {
        if !self.entered {
            return Ok(());
        }
        // The tracker's own connection may be in the middle of something that nobody waits for any more.
        let schema = self.log.schema();
        self.log
            .asking("leaving", async |client| pg::instances::leave(client, schema, self.who.id).await)
            .await
    }

    /// What lies below the tracker's head; behind the last of it, the tracker goes on.
    async fn page(&mut self, head: i64) -> Result<Vec<Event>, Error> {
        let what = format!("reading the log above id {}", self.after);
        let (schema, after) = (self.log.schema(), self.after);
        let page = self
            .log
            .asking(&what, async |client| pg::events::read(client, schema, after, head, PAGE).await)
            .await?;
        if page.events.is_empty() {
            self.after = head;
        }
        Ok(page.events)
    }

    /// What has become safe since the last look.
    async fn step(&mut self, tracker: &mut Tracker) -> Result<Vec<Event>, Error> {
        if self.seen.elapsed() >= HEARTBEAT {
            let alive = pg::instances::mark(tracker.session(), self.log.schema(), self.who.id, false);
            let epoch = deadline(self.log.limit(), "saying that this process lives", alive).await?;
            super::same_epoch(tracker.epoch(), epoch)?;
            self.seen = Instant::now();
        }
        let mut events = tracker.step(Pace::Eager).await?.events;
        // It was asked to begin beyond the head.
        events.retain(|event| event.id() > self.after);
        Ok(events)
    }
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").field("after", &self.after).finish_non_exhaustive()
    }
}
