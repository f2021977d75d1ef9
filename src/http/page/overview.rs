//! How everything stands, on one page: the worst first.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State as Of;
use axum::response::Html;
use maud::{Markup, html};

use super::consumer::place_of;
use super::frame::Frame;
use super::table::{Table, name, number, text, wide};
use super::throughput::{Counted, Throughput};
use super::words::{age, behind, count, counted, name_of, nothing, state, with_code};
use super::{failed, link};
use crate::admin::{Admin, Blocker, ConsumerStatus, Doctor, Finding, Progress, Severity};
use crate::error::Error;
use crate::http::State;
use crate::http::access::{Reader, Refused};
use crate::http::sampler::Sample;

/// The doctor looks at much, so not at every look of ours.
const DOCTOR_EVERY: Duration = Duration::from_secs(15);

/// What is kept from one look to the next.
#[derive(Default)]
pub(super) struct Memory {
    throughput: Throughput,
    findings: Mutex<Option<(Instant, Findings)>>,
}

type Findings = Arc<Result<Vec<Finding>, Error>>;

impl Memory {
    /// What the doctor finds, or found a moment ago.
    async fn findings(&self, admin: &Admin) -> Findings {
        let kept = self.findings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, found)) = kept.filter(|(at, _)| at.elapsed() < DOCTOR_EVERY) {
            return found;
        }
        let found = Arc::new(admin.doctor(&Doctor::default()).await);
        *self.findings.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Instant::now(), Arc::clone(&found)));
        found
    }

    /// Somebody acted: what was found may be no more.
    pub(super) fn forget_findings(&self) {
        *self.findings.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

pub(super) async fn page(
    Of(shared): State,
    Extension(memory): Extension<Arc<Memory>>,
    reader: Reader,
) -> Result<Html<String>, Refused> {
    let admin = shared.log.admin();
    let (consumers, sample, findings, instances) =
        tokio::join!(admin.list(), shared.sampler.sample(), memory.findings(&admin), admin.instances());
    let mut consumers = consumers.map_err(|e| failed(&e))?;
    consumers.sort_by(|a, b| {
        (urgency(a), &a.name, &a.instance, a.partition).cmp(&(urgency(b), &b.name, &b.instance, b.partition))
    });
    let running = instances.as_ref().map(|all| all.iter().filter(|i| i.state.as_str() != "gone").count());
    let body = html! {
        h1 { "Overview" }
        (verdict(&consumers, &findings))
        (log(&memory.throughput, &sample))
        (table(&consumers))
        @if let Ok(sample) = sample.as_ref() { (writers(sample)) }
        (doctor(&findings))
        @if let Ok(sample) = sample.as_ref() {
            (rest(&consumers, sample, running.ok()))
        }
    };
    Ok(Frame::new(&shared, &reader, "overview").live().around("Overview", &body))
}

/// What needs somebody comes first; otherwise rows keep their places from look to look.
fn urgency(row: &Progress) -> u8 {
    match row.status {
        ConsumerStatus::Dead => 0,
        ConsumerStatus::Expired => 1,
        ConsumerStatus::Waiting => 2,
        ConsumerStatus::Disabled => 3,
        _ => 4,
    }
}

/// In one sentence: does anything need somebody?
fn verdict(consumers: &[Progress], findings: &Findings) -> Markup {
    let number = |status| consumers.iter().filter(|c| c.status == status).count();
    let (dead, waiting) = (number(ConsumerStatus::Dead), number(ConsumerStatus::Waiting));
    let is = |n: usize, noun: &str| {
        let n = i64::try_from(n).unwrap_or(i64::MAX);
        format!("{} {}", counted(n, noun), if n == 1 { "is" } else { "are" })
    };
    let worst = findings.as_ref().as_ref().ok().and_then(|found| found.iter().map(|f| f.severity).max());
    let farthest = consumers.iter().map(|c| c.lag_seconds).fold(0.0, f64::max);
    let (tone, words) = match (dead, worst, waiting) {
        (1.., ..) => ("bad", format!("{} dead and needs somebody", is(dead, "consumer"))),
        (0, Some(Severity::Error), _) => ("bad", "Something is wrong, see what the doctor found".to_owned()),
        (0, _, 1..) => ("warn", format!("{} waiting to try again", is(waiting, "consumer"))),
        (0, Some(Severity::Warning), 0) => {
            ("warn", "Something will need somebody, see what the doctor found".to_owned())
        }
        (0, None, 0) if consumers.is_empty() => ("quiet", "No consumer is registered yet".to_owned()),
        (0, None, 0) if farthest > 1.0 => (
            "good",
            format!("All is well; the last of {} is {} behind", counted_rows(consumers), age(farthest)),
        ),
        (0, None, 0) => ("good", format!("All is well; {} up to date", is(consumers.len(), "consumer"))),
    };
    html! { p.verdict.(tone) { (words) } }
}

fn counted_rows(consumers: &[Progress]) -> String {
    counted(i64::try_from(consumers.len()).unwrap_or(i64::MAX), "consumer")
}

/// Head, safe head, and how fast it all goes.
fn log(throughput: &Throughput, sample: &Result<Sample, Error>) -> Markup {
    let sample = match sample {
        Ok(sample) => sample,
        Err(error) => return html! { p.notice.bad.said role="alert" { (error.report()) } },
    };
    let handled = sample.totals.iter().map(|row| row.processed).sum();
    let [appended, handled] = throughput.with(Counted { head: sample.poll.top, handled }, Instant::now());
    html! {
        section aria-label="The log" {
            dl.figures {
                div { dt { "Head" } dd { (count(sample.poll.top)) } }
                div { dt { "Safe head" } dd { (count(sample.safe_head)) } }
                div {
                    dt { "Hole" }
                    dd {
                        @match sample.hole {
                            Some(open) => { "at " (count(sample.safe_head + 1)) " " span.unit { "for " (age(open.as_secs_f64())) } },
                            None => span.faint { "none" },
                        }
                    }
                }
                div { dt { "Appended" } dd { (appended.shown("appended")) } }
                div { dt { "Handled" } dd { (handled.shown("handled")) } }
            }
            @for reason in &sample.poll.unsafe_reasons {
                p.notice.bad.said role="alert" { "Nothing is delivered: " (reason) }
            }
        }
    }
}

fn table(consumers: &[Progress]) -> Markup {
    let columns = [
        name("Consumer"),
        text("State"),
        number("Position"),
        number("Lag"),
        number("Behind"),
        number("Attempts"),
        wide("Last error"),
    ];
    let mut table =
        Table::new("Consumers", columns).or("None is registered: a dispatcher does that when it starts.");
    for row in consumers {
        let failing = row.attempts > 0 || row.failed_event_id.is_some();
        table.row(
            format!("{}\n{}\n{}", row.name, row.instance, row.partition),
            [
                html! { a href=(place_of(row)) { (name_of(&row.name, &row.instance, row.partition, row.partitions)) } },
                state(&row.status),
                html! { (count(row.position)) },
                html! { (count(row.lag)) },
                behind(row),
                html! { @if failing { (row.attempts) "/" (row.max_attempts) } @else { (nothing()) } },
                last_error(row, failing),
            ],
        );
    }
    html! { (table) }
}

/// What it failed with, if it still fails.
fn last_error(row: &Progress, failing: bool) -> Markup {
    html! {
        @if let (Some(from), Some(to)) = (row.missing_from, row.missing_to) {
            "events " (count(from)) " to " (count(to)) " were pruned unread"
        } @else if failing {
            span.excerpt {
                @if let Some(id) = row.failed_position { span.faint { "event " (count(id)) ": " } }
                (row.last_error.as_deref().unwrap_or_default())
            }
        } @else {
            (nothing())
        }
    }
}

/// Who may hold the hole open.
fn writers(sample: &Sample) -> Markup {
    if sample.hole.is_none() || sample.blockers.is_empty() {
        return html! {};
    }
    let columns = [
        text("Session"),
        text("Application"),
        text("Role"),
        text("State"),
        number("Open for"),
        wide("What it is"),
    ];
    let caption = format!(
        "Who is writing: one of them may still commit event {}, and what is behind it waits",
        count(sample.safe_head + 1)
    );
    let mut table = Table::new(caption, columns);
    for blocker in &sample.blockers {
        let said = |text: &Option<String>| html! { @match text { Some(text) => bdi { (text) }, None => (nothing()) } };
        table.row(
            blocker.pid.map_or_else(String::new, |pid| pid.to_string()),
            [
                html! {
                    @if let Some(pid) = blocker.pid { "pid " (pid) } @else { "prepared transaction" }
                },
                said(&blocker.application),
                said(&blocker.username),
                html! { (blocker.state) },
                html! { @match blocker.age_seconds { Some(seconds) => (age(seconds)), None => (nothing()) } },
                what_it_is(blocker),
            ],
        );
    }
    html! { (table) }
}

fn what_it_is(blocker: &Blocker) -> Markup {
    html! {
        @if let Some(consumer) = &blocker.consumer {
            "a pass of " a href=(link("consumer", &[("name", consumer)])) { bdi { (consumer) } }
            @if let Some(id) = blocker.event_position { " at event " (count(id)) }
        } @else if let Some(gid) = &blocker.prepared_gid {
            code { (gid) }
        } @else {
            "a producer"
        }
    }
}

/// What the doctor found.
fn doctor(findings: &Findings) -> Markup {
    let found = match findings.as_ref() {
        Ok(found) => found,
        Err(error) => return html! { p.notice.warn.said { "The doctor could not look: " (error.report()) } },
    };
    html! {
        section aria-labelledby="doctor" {
            h2 #doctor { "What the doctor found" }
            @if found.is_empty() {
                p.faint { "Nothing." }
            } @else {
                ul.findings {
                    @for finding in found {
                        @let (tone, word) = match finding.severity {
                            Severity::Error => ("bad", "error"),
                            Severity::Warning => ("warn", "warning"),
                        };
                        li {
                            p { span.state.(tone) { (word) } " " span.faint { (finding.looked_for) ": " } (with_code(&finding.finding)) }
                            p.advice { (with_code(&finding.advice)) }
                        }
                    }
                }
            }
        }
    }
}

/// What has pages of its own, in numbers.
fn rest(consumers: &[Progress], sample: &Sample, running: Option<usize>) -> Markup {
    let open: i64 = consumers.iter().map(|c| c.open_dead_letters).sum();
    let of =
        |status: &str| -> i64 { sample.ledger.iter().filter(|(_, s, _)| s == status).map(|(.., n)| n).sum() };
    let unfinished: i64 = sample.handoffs.iter().map(|(_, n, _)| n).sum();
    let (pending, in_progress) = (of("pending"), of("in_progress"));
    html! {
        section aria-label="Further pages" {
            dl.figures {
                div { dt { "Dead letters to settle" } dd { a href="dead-letters" { (count(open)) } } }
                div { dt { "Ledger, pending" } dd { a href="ledger?status=pending" { (count(pending)) } } }
                div { dt { "Ledger, in progress" } dd { a href="ledger?status=in_progress" { (count(in_progress)) } } }
                div { dt { "Hand-offs unfinished" } dd { a href="handoffs?state=unfinished" { (count(unfinished)) } } }
                div {
                    dt { "Processes" }
                    dd { a href="instances" { @match running { Some(n) => (n), None => "?" } } }
                }
            }
        }
    }
}
