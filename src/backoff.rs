//! How long to wait before trying again.

use std::time::Duration;

/// Longer than anybody waits: later times are beyond what a timestamp holds.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Exponential growth from a first pause to a longest one, with jitter.
///
/// ```
/// use std::time::Duration;
/// use inorder::Backoff;
///
/// let backoff = Backoff::exponential(Duration::from_secs(5)).up_to(Duration::from_secs(300)).jitter(0.0);
/// assert_eq!(backoff.pause(1), Duration::from_secs(5));
/// assert_eq!(backoff.pause(3), Duration::from_secs(20));
/// assert_eq!(backoff.pause(99), Duration::from_secs(300));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    jitter: f64,
}

impl Backoff {
    /// Starts at `first` and doubles with each attempt, up to 300 s unless [`up_to`](Self::up_to) says otherwise.
    pub const fn exponential(first: Duration) -> Self {
        Self { first, longest: Duration::from_secs(300), jitter: 0.1 }
    }

    /// The same pause every time.
    pub const fn constant(pause: Duration) -> Self {
        Self { first: pause, longest: pause, jitter: 0.1 }
    }

    /// The longest pause.
    #[must_use]
    pub const fn up_to(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    /// The share, 0 to 1, by which a pause is made shorter or longer at random, so that consumers which failed
    /// together do not come back together. Default 0.1; values outside the range are moved to its ends.
    #[must_use]
    pub const fn jitter(mut self, share: f64) -> Self {
        self.jitter = share.clamp(0.0, 1.0);
        self
    }

    /// The pause after the given number of failures, 1 being the first. Zero counts as one.
    pub fn pause(&self, failures: u32) -> Duration {
        let doubled = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        let pause = self.first.saturating_mul(doubled).min(self.longest.max(self.first));
        if self.jitter == 0.0 {
            return pause;
        }
        pause.mul_f64(1.0 + self.jitter * (2.0 * fastrand::f64() - 1.0))
    }
}

impl Default for Backoff {
    /// 5 s, doubling up to 300 s, 10 % jitter.
    fn default() -> Self {
        Self::exponential(Duration::from_secs(5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_never_overflow() {
        let backoff = Backoff::default().jitter(0.0);
        let seconds: Vec<u64> = (0..9).map(|n| backoff.pause(n).as_secs()).collect();
        assert_eq!(seconds, [5, 5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(backoff.pause(u32::MAX).as_secs(), 300);
    }

    #[test]
    fn jitter_stays_within_its_share() {
        let backoff = Backoff::constant(Duration::from_secs(10)).jitter(0.2);
        for _ in 0..1_000 {
            let pause = backoff.pause(1).as_secs_f64();
            assert!((8.0..=12.0).contains(&pause), "{pause}");
        }
    }
}
