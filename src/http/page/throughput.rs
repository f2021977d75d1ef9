//! How fast the log grows and its events are handled, from samples that were taken while somebody looked.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use maud::{Markup, html};

use super::words::rate;

/// How far back it goes.
const KEPT: Duration = Duration::from_secs(300);
/// Over what a rate is taken, if there are samples that are so old.
const OVER: Duration = Duration::from_secs(30);
/// No two samples are closer.
const APART: Duration = Duration::from_millis(900);

/// What was counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Counted {
    /// The highest id.
    pub(super) head: i64,
    /// Events handled, by all consumers together.
    pub(super) handled: i64,
}

/// The samples of the last minutes.
#[derive(Debug, Default)]
pub(super) struct Throughput(Mutex<VecDeque<(Instant, Counted)>>);

/// Events a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// Over the last half minute; `None` with one sample only.
    pub(super) now: Option<f64>,
    /// Sample by sample, with their places between 0 (oldest) and 1 (now).
    pub(super) course: Vec<(f64, f64)>,
}

impl Throughput {
    /// With this sample, how many were appended and how many handled.
    pub(super) fn with(&self, counted: Counted, now: Instant) -> [Rates; 2] {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A log that lost its tail, or consumers that are gone: what was counted before cannot be compared.
        if samples.back().is_some_and(|(_, last)| counted.head < last.head || counted.handled < last.handled)
        {
            samples.clear();
        }
        if samples.back().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= APART) {
            samples.push_back((now, counted));
        }
        while samples.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > KEPT) {
            samples.pop_front();
        }
        let of = |what: fn(&Counted) -> i64| {
            let points: Vec<(Instant, i64)> = samples.iter().map(|(at, c)| (*at, what(c))).collect();
            Rates::of(&points)
        };
        [of(|c| c.head), of(|c| c.handled)]
    }
}

impl Rates {
    fn of(points: &[(Instant, i64)]) -> Self {
        let Some((now, last)) = points.last().copied() else { return Self::default() };
        let between = |(from, a): (Instant, i64), (to, b): (Instant, i64)| {
            #[expect(clippy::cast_precision_loss, reason = "a rate is no exact number")]
            let more = (b - a) as f64;
            more / to.saturating_duration_since(from).as_secs_f64()
        };
        let recent = points.iter().find(|(at, _)| now.saturating_duration_since(*at) <= OVER);
        let first = recent.filter(|(at, _)| *at < now);
        let course = points.windows(2).map(|pair| {
            let before = now.saturating_duration_since(pair[1].0).as_secs_f64() / KEPT.as_secs_f64();
            (1.0 - before, between(pair[0], pair[1]))
        });
        Self { now: first.map(|first| between(*first, (now, last))), course: course.collect() }
    }

    /// A number, and how it came to that.
    pub(super) fn shown(&self, of_what: &str) -> Markup {
        let Some(now) = self.now else { return html! { span.faint { "measuring" } } };
        html! {
            (rate(now)) span.unit { "/s" }
            @if self.course.len() > 2 { (self.line(of_what)) }
        }
    }

    fn line(&self, of_what: &str) -> Markup {
        const WIDTH: f64 = 96.0;
        const HEIGHT: f64 = 20.0;
        let most = self.course.iter().map(|(_, rate)| *rate).fold(1.0, f64::max);
        let start = self.course.first().map_or(0.0, |(place, _)| *place);
        // As wide as what is known, so that a minute is no sliver at the edge.
        let points: Vec<String> = self
            .course
            .iter()
            .map(|(place, rate)| {
                let x = (place - start) / (1.0 - start).max(f64::EPSILON) * WIDTH;
                let y = HEIGHT - 1.0 - rate / most * (HEIGHT - 2.0);
                format!("{x:.1},{y:.1}")
            })
            .collect();
        let name = format!("events {of_what} in the last minutes, at most {} a second", rate(most));
        html! {
            svg.course role="img" aria-label=(name) viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" {
                polyline points=(points.join(" ")) {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(head: i64) -> Counted {
        Counted { head, handled: 2 * head }
    }

    #[test]
    fn a_rate_is_what_came_over_the_time_it_took() {
        let (throughput, start) = (Throughput::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(throughput.with(counted(100), at(0))[0].now, None, "one sample is no rate");
        throughput.with(counted(150), at(5));
        let [appended, handled] = throughput.with(counted(200), at(10));
        assert_eq!((appended.now, handled.now), (Some(10.0), Some(20.0)));
        assert_eq!(appended.course.len(), 2);
        let [later, _] = throughput.with(counted(200), at(40));
        assert_eq!(later.now, Some(0.0), "of the last half minute");
    }

    #[test]
    fn a_log_that_lost_its_tail_is_measured_anew() {
        let (throughput, start) = (Throughput::default(), Instant::now());
        throughput.with(counted(100), start);
        let [appended, _] = throughput.with(counted(90), start + Duration::from_secs(5));
        assert_eq!(appended, Rates::default());
    }
}
