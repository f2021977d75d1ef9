//! How fast events come, and from how many appenders at once: is ringing cheap for them?

use std::time::{Duration, Instant};

/// From so many events a second on, ringing would cost the appenders more than looking costs us.
const FAST: f64 = 500.0;
/// From so many events a second on, it would where several appenders write at once: each that rings commits alone, and so
/// they do not become fast.
const SOME: f64 = 25.0;

/// How events have been coming, over the last moments.
#[derive(Debug)]
pub(super) struct Flow {
    since: Instant,
    events: usize,
    rate: f64,
    /// How often it was asked how many appenders are in flight, and how often there was more than one.
    asked: u32,
    crowded: u32,
    busy: bool,
    /// Since when it has not been busy.
    calm_since: Instant,
}

impl Flow {
    /// How long a moment is: the rate is that of the last one which is over.
    const OVER: Duration = Duration::from_millis(200);

    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, events: 0, rate: 0.0, asked: 0, crowded: 0, busy: false, calm_since: now }
    }

    /// A look brought so many.
    pub(super) fn count(&mut self, events: usize, now: Instant) {
        self.events += events;
        let past = now.duration_since(self.since);
        if past < Self::OVER {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = self.events as f64 / past.as_secs_f64();
        let crowded = self.asked > 2 && self.crowded * 2 >= self.asked;
        let busy = rate >= FAST || rate >= SOME && crowded;
        let calm_since = if busy { now } else { self.calm_since };
        *self = Self { rate, busy, calm_since, ..Self::new(now) };
    }

    /// Is it worth while to ask how many appenders are in flight?
    pub(super) fn is_in_doubt(&self, now: Instant) -> bool {
        (SOME..FAST).contains(&self.rate) && now.duration_since(self.since) >= self.asked * (Self::OVER / 8)
    }

    /// So many ids were given that are not visible.
    pub(super) fn found(&mut self, in_flight: i64) {
        self.asked += 1;
        self.crowded += u32::from(in_flight > 1);
    }

    /// For how long it has not been busy.
    pub(super) fn calm_for(&self, now: Instant) -> Duration {
        now - self.calm_since
    }

    /// Would ringing cost the appenders more than looking costs us?
    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy_after(looks: usize, events: usize, in_flight: i64, apart: Duration) -> bool {
        let mut now = Instant::now();
        let mut flow = Flow::new(now);
        for _ in 0..looks {
            now += apart;
            flow.count(events, now);
            if flow.is_in_doubt(now) {
                flow.found(in_flight);
            }
        }
        flow.is_busy()
    }

    #[test]
    fn a_bell_that_keeps_several_appenders_slow_is_taken_away() {
        let apart = Duration::from_millis(5);
        assert!(busy_after(100, 1, 31, apart), "200 events a second, as each that rings commits alone");
        assert!(!busy_after(100, 1, 1, apart), "200 events a second by one appender");
        assert!(busy_after(100, 5, 1, apart), "1,000 events a second, whoever writes them");
        assert!(!busy_after(100, 0, 31, apart), "31 ids were rolled back long ago, and nothing comes");
        assert!(!busy_after(100, 1, 31, Duration::from_millis(500)), "two events a second cost nothing");
    }
}
