//! The names under which everything is measured, through the `metrics` facade; the application chooses the exporter.
//!
//! `docs/metrics.md` has them as a table.

use std::sync::Once;
use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use crate::outcome::{ConsumerReport, Outcome};
use crate::pg::consumers::Key;
#[cfg(feature = "http")]
use crate::pg::consumers::Totals;
use crate::pg::consumers::poll::Standing;
use crate::pg::ledger::Entry;

const LAG_EVENTS: &str = "inorder_consumer_lag_events";
const LAG_SECONDS: &str = "inorder_consumer_lag_seconds";
const POSITION: &str = "inorder_consumer_position";
const STATUS: &str = "inorder_consumer_status";
const ATTEMPTS: &str = "inorder_consumer_attempts";
const FAULTS: &str = "inorder_consumer_faults";
const OPEN_LETTERS: &str = "inorder_dead_letters_open";
const HEAD: &str = "inorder_log_head";
const SAFE_HEAD: &str = "inorder_log_safe_head";
const HOLE_SECONDS: &str = "inorder_log_hole_age_seconds";
const BLOCKERS: &str = "inorder_log_blockers";
const BLOCKER_SECONDS: &str = "inorder_log_blocker_age_seconds";
const LISTENER: &str = "inorder_listener_connected";
const PASSES: &str = "inorder_passes_total";
const PASS_SECONDS: &str = "inorder_pass_duration_seconds";
const PROCESSED: &str = "inorder_events_processed_total";
const FAILED: &str = "inorder_events_failed_total";
const SKIPPED: &str = "inorder_events_skipped_total";
const FREED: &str = "inorder_sessions_freed_total";
const CLAIMS: &str = "inorder_claims_total";
const LEASES_LOST: &str = "inorder_leases_lost_total";
const QUEUE_DEPTH: &str = "inorder_queue_events";
const QUEUE_DUE: &str = "inorder_queue_oldest_due_seconds";
const SWEPT: &str = "inorder_queue_swept_total";
const RECEIVED: &str = "inorder_messages_received_total";
const EPOCHS: &str = "inorder_epochs_total";
const HANDOFFS: &str = "inorder_handoffs_total";
const HANDOFFS_DEGRADED: &str = "inorder_handoffs_degraded_total";
const HANDOFF_TABLE: &str = "inorder_handoff_table_answers";
const HANDOFF_BREAKER: &str = "inorder_handoff_breaker_open";
const HANDOFF_BREAKER_OPENED: &str = "inorder_handoff_breaker_opened_total";
const HANDOFF_ENTRIES: &str = "inorder_handoff_entries";
const HANDOFFS_UNFINISHED: &str = "inorder_handoffs_unfinished";
const HANDOFFS_UNFINISHED_AGE: &str = "inorder_handoffs_oldest_unfinished_seconds";
const HANDOFFS_SWEPT: &str = "inorder_handoffs_swept_total";

const UP: &str = "inorder_up";
const BUILD: &str = "inorder_build_info";
const INSTANCES: &str = "inorder_instances";
const CONSUMER_EVENTS: &str = "inorder_consumer_events_total";
const MISSING: &str = "inorder_consumer_pruned_unread";
const UNSAFE: &str = "inorder_log_unsafe_reasons";
const WRITERS: &str = "inorder_log_writers";
const OLDEST_BLOCKER: &str = "inorder_log_oldest_blocker_info";
const UNFINISHED: &str = "inorder_ledger_unfinished";

/// What a process measures and an exporter samples from the database, too: then the sample is what is shown.
#[cfg(feature = "http")]
pub(crate) const SAMPLED: [&str; 16] = [
    LAG_EVENTS,
    LAG_SECONDS,
    POSITION,
    STATUS,
    ATTEMPTS,
    FAULTS,
    OPEN_LETTERS,
    HEAD,
    SAFE_HEAD,
    HOLE_SECONDS,
    BLOCKERS,
    BLOCKER_SECONDS,
    QUEUE_DEPTH,
    QUEUE_DUE,
    HANDOFFS_UNFINISHED,
    HANDOFFS_UNFINISHED_AGE,
];

/// Bounds of the buckets of durations.
#[cfg(feature = "http")]
pub(crate) const SECONDS: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// A hole that is older is told to the operator, and who holds it open.
pub(crate) const OLD_HOLE: Duration = Duration::from_secs(5);

const STATUSES: [&str; 5] = ["idle", "waiting", "dead", "disabled", "expired"];
const QUEUE_STATES: [&str; 2] = ["pending", "in_progress"];

const GAUGES: [(&str, Unit, &str); 28] = [
    (UP, Unit::Count, "1 if the database was reached and sampled, 0 if not"),
    (BUILD, Unit::Count, "1, with the version of what answers"),
    (INSTANCES, Unit::Count, "Processes that run a dispatcher, by version"),
    (MISSING, Unit::Count, "1 if events were pruned that a consumer had not read: it does not run"),
    (UNSAFE, Unit::Count, "How much of what the safe head rests on does not hold: nothing is delivered then"),
    (WRITERS, Unit::Count, "Transactions that have taken an id and not ended"),
    (
        OLDEST_BLOCKER,
        Unit::Count,
        "1, with who has held an old hole open for longest; absent when there is none",
    ),
    (UNFINISHED, Unit::Count, "Unfinished rows of the ledger, by handler and status, 10,000 at most"),
    (LAG_EVENTS, Unit::Count, "Ids between a consumer's position and the head of the log"),
    (LAG_SECONDS, Unit::Seconds, "Age of the first event that a consumer has not dealt with"),
    (POSITION, Unit::Count, "Id of the last event that a consumer has dealt with"),
    (STATUS, Unit::Count, "1 for the status that a consumer is in, 0 for the others"),
    (ATTEMPTS, Unit::Count, "Failed attempts at the event that a consumer stands at"),
    (FAULTS, Unit::Count, "Faults of server or network at the event that a consumer stands at"),
    (OPEN_LETTERS, Unit::Count, "Dead letters of a consumer that nobody has settled, 1,000 at most"),
    (QUEUE_DEPTH, Unit::Count, "Unfinished events of a queued consumer, by state, 10,000 at most"),
    (
        QUEUE_DUE,
        Unit::Seconds,
        "For how long the event of a queue that was due first has been so, 0 when none is",
    ),
    (HEAD, Unit::Count, "Highest id that is visible"),
    (SAFE_HEAD, Unit::Count, "Highest id below which nothing can appear any more"),
    (HOLE_SECONDS, Unit::Seconds, "For how long the safe head has been waiting at a hole, 0 when at none"),
    (BLOCKERS, Unit::Count, "Transactions that hold an old hole open"),
    (BLOCKER_SECONDS, Unit::Seconds, "Age of the oldest transaction that holds an old hole open"),
    (LISTENER, Unit::Count, "1 while the process listens to the doorbell"),
    (HANDOFF_TABLE, Unit::Count, "1 while the table of hand-offs answers, 0 while memory decides"),
    (HANDOFF_BREAKER, Unit::Count, "1 while decisions about hand-offs do not wait for the table"),
    (HANDOFF_ENTRIES, Unit::Count, "Events that a hand-off holds in memory"),
    (HANDOFFS_UNFINISHED, Unit::Count, "Events that the direct path took and has not run"),
    (
        HANDOFFS_UNFINISHED_AGE,
        Unit::Seconds,
        "Age of the oldest event that the direct path took and has not run",
    ),
];

const COUNTERS: [(&str, Unit, &str); 15] = [
    (
        CONSUMER_EVENTS,
        Unit::Count,
        "Events that a consumer dealt with since it was registered, whoever ran it, by result",
    ),
    (RECEIVED, Unit::Count, "Messages from outside, by what became of them"),
    (CLAIMS, Unit::Count, "Claims that were asked for, by what became of them"),
    (LEASES_LOST, Unit::Count, "Leases that ran out, or were taken, while their events were handled"),
    (SWEPT, Unit::Count, "Events of a queue that were claimed because they were due"),
    (PASSES, Unit::Count, "Passes, by how they ended"),
    (PROCESSED, Unit::Count, "Events handled, their effects committed"),
    (FAILED, Unit::Count, "Attempts that failed"),
    (SKIPPED, Unit::Count, "Events passed over with a dead letter"),
    (FREED, Unit::Count, "Sessions terminated because they held a consumer for too long"),
    (EPOCHS, Unit::Count, "Times that the safe head was begun anew"),
    (HANDOFFS, Unit::Count, "Hand-offs, by what came of them"),
    (HANDOFFS_DEGRADED, Unit::Count, "Decisions about hand-offs that the table does not have yet"),
    (
        HANDOFF_BREAKER_OPENED,
        Unit::Count,
        "Times that decisions about hand-offs stopped waiting for the table",
    ),
    (HANDOFFS_SWEPT, Unit::Count, "Rows of hand-offs that were kept long enough and deleted"),
];

const HISTOGRAMS: [(&str, Unit, &str); 1] =
    [(PASS_SECONDS, Unit::Seconds, "Duration of passes that delivered something")];

/// Describes every metric to the process's recorder, once.
pub(crate) fn describe() {
    static DESCRIBED: Once = Once::new();
    DESCRIBED.call_once(describe_all);
}

/// Describes every metric to the recorder that is in force.
pub(crate) fn describe_all() {
    for (name, unit, what) in GAUGES {
        describe_gauge!(name, unit, what);
    }
    for (name, unit, what) in COUNTERS {
        describe_counter!(name, unit, what);
    }
    for (name, unit, what) in HISTOGRAMS {
        describe_histogram!(name, unit, what);
    }
}

fn labels(key: &Key) -> [(&'static str, String); 3] {
    [
        ("consumer", key.name.clone()),
        ("consumer_instance", key.instance.clone()),
        ("partition", key.partition.to_string()),
    ]
}

/// The same, and one more.
fn labels_and(key: &Key, name: &'static str, value: &str) -> [(&'static str, String); 4] {
    let [consumer, instance, partition] = labels(key);
    [consumer, instance, partition, (name, value.to_owned())]
}

/// Ids and counts as gauges: exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "gauges are f64")]
fn float(n: i64) -> f64 {
    n as f64
}

/// Messages of a source that became `new`, `duplicate` or `mismatch`.
pub(crate) fn received(source: &str, result: &'static str, count: u64) {
    counter!(RECEIVED, "source" => source.to_owned(), "result" => result).increment(count);
}

/// Every registered consumer in every state, whoever runs it.
pub(crate) fn sample(consumers: &[Standing], head: i64) {
    gauge!(HEAD).set(float(head));
    for c in consumers {
        let labels = labels(&c.key);
        gauge!(LAG_EVENTS, &labels).set(float((head - c.position).max(0)));
        gauge!(LAG_SECONDS, &labels).set(c.behind.unwrap_or_default().as_secs_f64());
        gauge!(POSITION, &labels).set(float(c.position));
        gauge!(ATTEMPTS, &labels).set(f64::from(c.attempts));
        gauge!(FAULTS, &labels).set(f64::from(c.faults));
        gauge!(OPEN_LETTERS, &labels).set(float(c.open_letters));
        if let Some(depth) = c.depth {
            for (state, count) in QUEUE_STATES.into_iter().zip([depth.pending, depth.in_progress]) {
                gauge!(QUEUE_DEPTH, &labels_and(&c.key, "state", state)).set(float(count));
            }
            gauge!(QUEUE_DUE, &labels).set(depth.due_for.unwrap_or_default().max(0.0));
        }
        let now = match c.status.as_str() {
            "idle" if c.due_in.is_some_and(|due| !due.is_zero()) => "waiting",
            status => status,
        };
        for status in STATUSES {
            let is = if status == now { 1.0 } else { 0.0 };
            gauge!(STATUS, &labels_and(&c.key, "status", status)).set(is);
        }
    }
}

/// What only an exporter knows: does the database answer?
#[cfg(feature = "http")]
pub(crate) fn up(up: bool) {
    gauge!(UP).set(if up { 1.0 } else { 0.0 });
    gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

/// What consumers have come to, whoever ran them.
#[cfg(feature = "http")]
pub(crate) fn totals(consumers: &[Totals]) {
    for c in consumers {
        for (result, count) in [("processed", c.processed), ("failed", c.failed), ("skipped", c.skipped)] {
            counter!(CONSUMER_EVENTS, &labels_and(&c.key, "result", result)).absolute(count.unsigned_abs());
        }
        gauge!(MISSING, &labels(&c.key)).set(if c.is_missing { 1.0 } else { 0.0 });
    }
}

/// Who is writing, and what does not hold of what the safe head rests on.
#[cfg(feature = "http")]
pub(crate) fn writers(writers: usize, unsafe_reasons: usize) {
    for (name, count) in [(WRITERS, writers), (UNSAFE, unsafe_reasons)] {
        gauge!(name).set(f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
    }
}

/// Names who has held an old hole open for longest.
#[cfg(feature = "http")]
pub(crate) fn oldest_blocker(pid: String, application: String, state: String) {
    let labels = [("pid", pid), ("application", application), ("state", state)];
    gauge!(OLDEST_BLOCKER, &labels).set(1.0);
}

/// Processes by version.
#[cfg(feature = "http")]
pub(crate) fn instances(versions: &[(String, i64)]) {
    for (version, count) in versions {
        gauge!(INSTANCES, "version" => version.clone()).set(float(*count));
    }
}

/// What is unfinished in the ledger, by handler and status, and of the hand-offs, by scope.
#[cfg(feature = "http")]
pub(crate) fn unfinished(ledger: &[(String, String, i64)], handoffs: &[(String, i64, f64)]) {
    for (handler, status, count) in ledger {
        gauge!(UNFINISHED, "handler" => handler.clone(), "status" => status.clone()).set(float(*count));
    }
    for (scope, count, oldest) in handoffs {
        gauge!(HANDOFFS_UNFINISHED, "scope" => scope.clone()).set(float(*count));
        gauge!(HANDOFFS_UNFINISHED_AGE, "scope" => scope.clone()).set(*oldest);
    }
}

/// A consumer that is no longer registered is in no status and behind nothing, and its queue is empty; a gauge cannot be taken back.
pub(crate) fn forget(was: &Standing) {
    let labels = labels(&was.key);
    for name in [LAG_EVENTS, LAG_SECONDS, ATTEMPTS, FAULTS, OPEN_LETTERS] {
        gauge!(name, &labels).set(0.0);
    }
    for status in STATUSES {
        gauge!(STATUS, &labels_and(&was.key, "status", status)).set(0.0);
    }
    if was.depth.is_some() {
        for state in QUEUE_STATES {
            gauge!(QUEUE_DEPTH, &labels_and(&was.key, "state", state)).set(0.0);
        }
        gauge!(QUEUE_DUE, &labels).set(0.0);
    }
}

pub(crate) fn safe_head(head: i64, hole: Option<Duration>) {
    gauge!(SAFE_HEAD).set(float(head));
    gauge!(HOLE_SECONDS).set(hole.unwrap_or_default().as_secs_f64());
}

/// Who holds an old hole open, and the age of the oldest in seconds.
pub(crate) fn blockers(transactions: usize, oldest: f64) {
    gauge!(BLOCKERS).set(f64::from(u32::try_from(transactions).unwrap_or(u32::MAX)));
    gauge!(BLOCKER_SECONDS).set(oldest);
}

/// Does the process listen to the doorbell?
pub(crate) fn listening(connected: bool) {
    gauge!(LISTENER).set(if connected { 1.0 } else { 0.0 });
}

pub(crate) fn pass(key: &Key, report: &ConsumerReport, took: Duration) {
    let outcome = match report.outcome {
        Outcome::CaughtUp => "caught_up",
        Outcome::More => "more",
        Outcome::Waiting { .. } => "waiting",
        Outcome::Dead { .. } => "dead",
        Outcome::Disabled => "disabled",
        Outcome::Expired => "expired",
        Outcome::Busy => "busy",
        Outcome::Unregistered => "unregistered",
        Outcome::Outdated { .. } => "outdated",
        Outcome::Pruned { .. } => "pruned",
        Outcome::Stopped => "stopped",
    };
    counter!(PASSES, &labels_and(key, "outcome", outcome)).increment(1);
    let labels = labels(key);
    for (name, count) in [(PROCESSED, report.processed), (FAILED, report.failed), (SKIPPED, report.skipped)] {
        if count > 0 {
            counter!(name, &labels).increment(count);
        }
    }
    if report.processed + report.failed + report.skipped > 0 {
        histogram!(PASS_SECONDS, &labels).record(took.as_secs_f64());
    }
}

/// A pass that ended in an error of the server or the network.
pub(crate) fn pass_failed(key: &Key) {
    counter!(PASSES, &labels_and(key, "outcome", "error")).increment(1);
}

pub(crate) fn freed(key: &Key) {
    counter!(FREED, &labels(key)).increment(1);
}

pub(crate) fn epoch() {
    counter!(EPOCHS).increment(1);
}

/// What became of a claim of an effect consumer.
pub(crate) fn claim(key: &Key, entry: &Entry) {
    let result = match (entry.token, entry.status.as_deref()) {
        (Some(_), _) => "acquired",
        (None, Some("done")) => "done",
        (None, Some("dead")) => "dead",
        (None, Some(_)) => "held",
        (None, None) => "refused",
    };
    counter!(CLAIMS, &labels_and(key, "result", result)).increment(1);
}

/// A claim, or a row's lease, was no longer ours.
pub(crate) fn lease_lost(key: &Key) {
    counter!(LEASES_LOST, &labels(key)).increment(1);
}

/// What was claimed because it was due.
pub(crate) fn swept(key: &Key, events: usize) {
    counter!(SWEPT, &labels(key)).increment(u64::try_from(events).unwrap_or(u64::MAX));
}

/// What queued events came to.
pub(crate) fn settled(key: &Key, processed: u64, failed: u64, skipped: u64) {
    for (name, count) in [(PROCESSED, processed), (FAILED, failed), (SKIPPED, skipped)] {
        counter!(name, &labels(key)).increment(count);
    }
}

/// Events of a hand-off with the same outcome.
pub(crate) fn handoff(scope: &str, outcome: &'static str, events: usize) {
    if events > 0 {
        counter!(HANDOFFS, "scope" => scope.to_owned(), "outcome" => outcome).increment(events as u64);
    }
}

/// Decisions that the table does not have.
pub(crate) fn handoff_degraded(scope: &str, events: usize) {
    counter!(HANDOFFS_DEGRADED, "scope" => scope.to_owned()).increment(events as u64);
}

/// Did the table of hand-offs answer, and is the breaker open?
pub(crate) fn handoff_table(scope: &str, answers: bool, open: bool) {
    for (name, is) in [(HANDOFF_TABLE, answers), (HANDOFF_BREAKER, open)] {
        gauge!(name, "scope" => scope.to_owned()).set(if is { 1.0 } else { 0.0 });
    }
}

/// The breaker of a hand-off has opened.
pub(crate) fn handoff_opened(scope: &str) {
    counter!(HANDOFF_BREAKER_OPENED, "scope" => scope.to_owned()).increment(1);
}

/// What a hand-off holds in memory.
pub(crate) fn handoff_memory(scope: &str, open: usize, claims: usize) {
    for (state, entries) in [("open", open), ("taken", claims)] {
        gauge!(HANDOFF_ENTRIES, "scope" => scope.to_owned(), "state" => state)
            .set(f64::from(u32::try_from(entries).unwrap_or(u32::MAX)));
    }
}

/// What a sweep of hand-offs deleted and found.
pub(crate) fn handoff_swept(scope: &str, deleted: i64, unfinished: i64, oldest: Duration) {
    counter!(HANDOFFS_SWEPT, "scope" => scope.to_owned()).increment(deleted.unsigned_abs());
    gauge!(HANDOFFS_UNFINISHED, "scope" => scope.to_owned()).set(float(unfinished));
    gauge!(HANDOFFS_UNFINISHED_AGE, "scope" => scope.to_owned()).set(oldest.as_secs_f64());
}
