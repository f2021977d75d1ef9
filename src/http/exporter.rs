//! `/metrics`: what is sampled from the database, and what the process itself measured, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State as Of;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use super::State;
use super::access::Reader;
use super::sampler::Sample;
use crate::error::{Error, ErrorKind};
use crate::metrics;

/// The text format, in the version that everybody reads.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// How often what was recorded is gathered while nobody scrapes.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

pub(super) async fn metrics(Of(shared): State, _: Reader) -> Response {
    let sample = shared.sampler.sample().await;
    let mut families = Families::of(&sampled(sample.as_ref().as_ref().ok()));
    if let Some(render) = &shared.process_metrics {
        families.add_process(&render());
    }
    ([(CONTENT_TYPE, TEXT_FORMAT)], families.render()).into_response()
}

/// The sample in the text format. It is measured by the same code that measures for the process's own recorder, with a recorder that
/// is there for this one sample: whatever is gone from the database is gone from the text.
fn sampled(sample: Option<&Sample>) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    ::metrics::with_local_recorder(&recorder, || {
        metrics::describe_all();
        metrics::up(sample.is_some());
        if let Some(sample) = sample {
            measure(sample);
        }
    });
    recorder.handle().render()
}

fn measure(sample: &Sample) {
    let Sample { poll, totals, safe_head, hole, blockers, instances, ledger, handoffs } = sample;
    metrics::sample(&poll.consumers, poll.top);
    metrics::totals(totals);
    metrics::safe_head(*safe_head, *hole);
    metrics::writers(blockers.len(), poll.unsafe_reasons.len());
    metrics::instances(instances);
    metrics::unfinished(ledger, handoffs);
    match hole {
        Some(age) if *age >= metrics::OLD_HOLE => {
            metrics::blockers(
                blockers.len(),
                blockers.iter().filter_map(|b| b.age_seconds).fold(0.0, f64::max),
            );
            // They come with the longest transaction first.
            if let Some(oldest) = blockers.first() {
                let pid = oldest.pid.map(|pid| pid.to_string());
                metrics::oldest_blocker(
                    pid.or_else(|| oldest.prepared_gid.clone()).unwrap_or_default(),
                    oldest.application.clone().unwrap_or_default(),
                    oldest.state.clone(),
                );
            }
        }
        _ => metrics::blockers(0, 0.0),
    }
}

/// Families of metrics by name, each with its lines.
#[derive(Debug, Default)]
struct Families(BTreeMap<String, String>);

impl Families {
    fn of(text: &str) -> Self {
        let mut families = Self::default();
        let mut name = String::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let comment = line.strip_prefix("# ").and_then(|rest| rest.split_once(' '));
            if let Some(("HELP" | "TYPE" | "UNIT", rest)) = comment {
                name = rest.split(' ').next().unwrap_or_default().to_owned();
            } else if name.is_empty() {
                // Nobody said of what kind it is.
                name = line.split(['{', ' ']).next().unwrap_or_default().to_owned();
            }
            let lines = families.0.entry(name.clone()).or_default();
            lines.push_str(line);
            lines.push('\n');
        }
        families
    }

    /// Adds what the process measured, except what is sampled: of that the process knows no more, and may be late.
    fn add_process(&mut self, text: &str) {
        for (name, lines) in Self::of(text).0 {
            if !metrics::SAMPLED.contains(&name.as_str()) {
                self.0.entry(name).or_insert(lines);
            }
        }
    }

    /// In the order of their names, and of their labels where the order of lines says nothing, so that people find their way.
    fn render(self) -> String {
        let mut text = String::new();
        for lines in self.0.into_values() {
            let (comments, mut samples): (Vec<&str>, Vec<&str>) =
                lines.lines().partition(|line| line.starts_with('#'));
            if !comments.iter().any(|line| line.ends_with(" histogram") || line.ends_with(" summary")) {
                samples.sort_unstable();
            }
            for line in comments.iter().chain(&samples) {
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }
}

/// What this process measures through the `metrics` facade, kept for `/metrics`: passes, durations, hand-offs, and whatever the
/// application measures itself.
///
/// An application that has a recorder of its own gives that one's text to [`Site::process_metrics`](super::Site::process_metrics).
#[derive(Clone, Debug)]
pub struct ProcessMetrics(PrometheusHandle);

impl ProcessMetrics {
    /// Installs a recorder for the whole process. Needs to run within a Tokio runtime, and before the first dispatcher is built: what
    /// was measured before is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if there is a recorder already.
    pub fn record() -> Result<Self, Error> {
        let failed = |e| Error::with_source(ErrorKind::Config, "recording what the process measures", e);
        let handle = PrometheusBuilder::new()
            .set_buckets(&metrics::SECONDS)
            .and_then(PrometheusBuilder::install_recorder)
            .map_err(failed)?;
        let upkeep = handle.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP_EVERY).await;
                upkeep.run_upkeep();
            }
        });
        metrics::describe_all();
        Ok(Self(handle))
    }

    /// In the text format of Prometheus.
    pub fn render(&self) -> String {
        self.0.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: &str = "\
# HELP inorder_consumer_lag_events Late.
# TYPE inorder_consumer_lag_events gauge
inorder_consumer_lag_events{consumer=\"a\"} 7

# TYPE inorder_pass_duration_seconds histogram
inorder_pass_duration_seconds_bucket{le=\"0.5\"} 1
inorder_pass_duration_seconds_bucket{le=\"+Inf\"} 1
inorder_pass_duration_seconds_sum 0.1
inorder_pass_duration_seconds_count 1

# HELP mine What the application measures.
# TYPE mine gauge
mine{b=\"2\"} 2
mine{b=\"1\"} 1
";

    #[test]
    fn what_is_sampled_is_there_once_and_what_the_process_measured_follows() {
        let mut families = Families::of(
            "# TYPE inorder_consumer_lag_events gauge\ninorder_consumer_lag_events{consumer=\"a\"} 9\n",
        );
        families.add_process(PROCESS);
        let text = families.render();
        assert!(
            text.starts_with(
                "# TYPE inorder_consumer_lag_events gauge\ninorder_consumer_lag_events{consumer=\"a\"} 9\n"
            ),
            "{text}"
        );
        assert!(!text.contains("} 7"), "{text}");
        assert!(
            text.contains("le=\"0.5\"} 1\ninorder_pass_duration_seconds_bucket{le=\"+Inf\"} 1\n"),
            "{text}"
        );
        assert!(text.ends_with("# TYPE mine gauge\nmine{b=\"1\"} 1\nmine{b=\"2\"} 2\n"), "{text}");
    }

    /// What the process saw last of a database that is down would look as if all were well.
    #[test]
    fn what_cannot_be_sampled_is_not_there() {
        let mut families = Families::of(&sampled(None));
        families.add_process(PROCESS);
        let text = families.render();
        assert!(
            text.contains("\ninorder_up 0\n") && text.contains("inorder_pass_duration_seconds_sum 0.1"),
            "{text}"
        );
        assert!(!text.contains("inorder_consumer_lag_events"), "{text}");
    }
}
