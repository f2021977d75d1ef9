//! One consumer: how it stands, where it failed and with what, and what an operator can do about it.

use axum::extract::State as Of;
use axum::response::Html;
use maud::{Markup, html};
use serde::Deserialize;
use time::OffsetDateTime;

use super::audit::{done, history};
use super::frame::{Frame, csrf};
use super::table::{Table, name, number, text, wide};
use super::words::{age, behind, count, counted, indented, moment, name_of, nothing, state};
use super::{Asked, failed, filled, given, link};
use crate::admin::{Admin, AuditRows, ConsumerRow, ConsumerStatus, Progress, Target};
use crate::error::Error;
use crate::event::Event;
use crate::http::State;
use crate::http::access::{Reader, Refused};

/// How many of the last actions are shown.
const ACTIONS: i32 = 10;
/// How much of a payload is shown, in bytes.
const SHOWN: usize = 64 * 1024;

/// A state row, or all of a consumer's, as links and forms name it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Which {
    #[serde(alias = "consumer")]
    pub(super) name: String,
    #[serde(default)]
    pub(super) instance: String,
    #[serde(default, deserialize_with = "filled")]
    pub(super) partition: Option<i32>,
    /// The audit row of what was done just now.
    #[serde(default, deserialize_with = "filled")]
    pub(super) did: Option<i64>,
}

impl Which {
    pub(super) fn target(&self) -> Target {
        let target = Target::consumer(&self.name).instance(&self.instance);
        match self.partition {
            Some(partition) => target.partition(partition),
            None => target,
        }
    }

    /// A page or an action about it.
    pub(super) fn link(&self, page: &str, more: &[(&str, &str)]) -> String {
        let partition = self.partition.map_or_else(String::new, |p| p.to_string());
        let own = [("name", self.name.as_str()), ("instance", &self.instance), ("partition", &partition)];
        link(page, &[&own, more].concat())
    }

    /// The fields of a form by which it is named.
    pub(super) fn fields(&self) -> Markup {
        html! {
            input type="hidden" name="name" value=(self.name);
            @if !self.instance.is_empty() { input type="hidden" name="instance" value=(self.instance); }
            @if let Some(partition) = self.partition { input type="hidden" name="partition" value=(partition); }
        }
    }

    /// As narrow as it needs to be to name this row.
    pub(super) fn of(row: &Progress) -> Self {
        Self {
            name: row.name.clone(),
            instance: row.instance.clone(),
            partition: (row.partitions > 1).then_some(row.partition),
            did: None,
        }
    }

    /// For headings.
    pub(super) fn shown(&self) -> Markup {
        html! {
            bdi { (self.name) }
            @if !self.instance.is_empty() { span.faint { " @ " bdi { (self.instance) } } }
            @if let Some(partition) = self.partition { span.faint { " partition " (partition) } }
        }
    }

    pub(super) async fn rows(&self, admin: &Admin) -> Result<Vec<ConsumerRow>, Error> {
        admin.consumer(self.target()).await
    }
}

/// The page of a state row.
pub(super) fn place_of(row: &Progress) -> String {
    Which::of(row).link("consumer", &[])
}

pub(super) async fn page(
    Of(shared): State,
    reader: Reader,
    Asked(which): Asked<Which>,
) -> Result<Html<String>, Refused> {
    let admin = shared.log.admin();
    let done_here = AuditRows::any().of(&which.name).limit(ACTIONS);
    let (rows, audit, did) =
        tokio::join!(which.rows(&admin), admin.audit(&done_here), done(&admin, which.did));
    let rows = rows.map_err(|e| failed(&e))?;
    let body = html! {
        h1 { span.faint { "Consumer " } (which.shown()) }
        (did)
        @match rows.as_slice() {
            [row] => (one(row, &reader)),
            rows => (all(&which, rows, &reader)),
        }
        @if let Ok(audit) = &audit { (history("What operators did with it", audit, false)) }
        p.ways { a href=(link("audit", &[("consumer", &which.name)])) { "All of its audit" } }
    };
    Ok(Frame::new(&shared, &reader, "overview").live().around(&format!("Consumer {}", which.name), &body))
}

/// Partitions, or instances.
fn all(which: &Which, rows: &[ConsumerRow], reader: &Reader) -> Markup {
    let columns = [
        name("Row"),
        text("State"),
        number("Position"),
        number("Lag"),
        number("Behind"),
        number("Attempts"),
        wide("Last error"),
    ];
    let mut table = Table::new("Its rows", columns);
    for ConsumerRow { progress: row, .. } in rows {
        table.row(
            format!("{}\n{}", row.instance, row.partition),
            [
                html! { a href=(place_of(row)) { (name_of(&row.name, &row.instance, row.partition, row.partitions)) } },
                state(&row.status),
                html! { (count(row.position)) },
                html! { (count(row.lag)) },
                behind(row),
                html! { (row.attempts) "/" (row.max_attempts) },
                html! { @match &row.last_error { Some(error) => span.excerpt { (error) }, None => (nothing()) } },
            ],
        );
    }
    // An action is done to one instance, or to all partitions of a shared consumer.
    let together = rows.iter().all(|row| row.progress.instance == which.instance);
    let standing: Vec<&ConsumerRow> = rows.iter().collect();
    html! {
        (table)
        @if together && reader.operator.is_some() { (ways(which, &standing, reader)) }
    }
}

fn one(row: &ConsumerRow, reader: &Reader) -> Markup {
    let which = Which::of(&row.progress);
    let about = html! {
        (facts(row))
        (failure(row))
    };
    html! {
        @if reader.operator.is_some() {
            div.sides { div { (about) } (ways(&which, &[row], reader)) }
        } @else {
            (about)
        }
    }
}

fn facts(row: &ConsumerRow) -> Markup {
    let c = &row.progress;
    html! {
        dl.facts {
            dt { "State" } dd { (state(&c.status)) }
            dt { "Position" } dd { (count(c.position)) ", lag " (count(c.lag)) @if c.lag_seconds > 0.0 { ", " (age(c.lag_seconds)) " behind" } }
            @if let (Some(from), Some(to)) = (c.missing_from, c.missing_to) {
                dt { "Missing" } dd { "events " (count(from)) " to " (count(to)) " were pruned unread" }
            }
            dt { "So far" } dd { (count(c.processed)) " handled, " (count(c.failed)) " failed, " (count(c.skipped)) " passed over" }
            @if let (Some(pending), Some(in_progress)) = (row.pending, row.in_progress) {
                dt { "Ledger" }
                dd {
                    a href=(link("ledger", &[("handler", &handler(c)), ("status", "unfinished")])) {
                        (count(pending)) " pending, " (count(in_progress)) " in progress"
                    }
                }
            }
            @if c.open_dead_letters > 0 {
                dt { "Dead letters" }
                dd {
                    a href=(link("dead-letters", &[("consumer", &c.name), ("instance", &c.instance)])) {
                        (counted(c.open_dead_letters, "dead letter")) " to settle"
                    }
                }
            }
            dt { "Kind" } dd { (c.kind) ", revision " (c.revision) @if c.partitions > 1 { ", partition " (c.partition) " of " (c.partitions) } }
            dt { "Wants" }
            dd { @match &c.event_types { Some(types) => @for (n, kind) in types.iter().enumerate() { @if n > 0 { ", " } code { (kind) } }, None => "every type" } }
            dt { "Run by" } dd { (runner(row)) }
            dt { "Registered" } dd { (moment(row.created_at)) }
        }
    }
}

/// As the ledger calls it.
fn handler(row: &Progress) -> String {
    match row.instance.as_str() {
        "" => row.name.clone(),
        instance => format!("{}@{instance}", row.name),
    }
}

/// Who runs it, as far as anybody knows.
fn runner(row: &ConsumerRow) -> Markup {
    html! {
        @match (row.owner, &row.owner_host, row.owner_pid) {
            (None, ..) => "nobody so far",
            (Some(_), Some(host), Some(pid)) => {
                "pid " (pid) " on " bdi { (host) }
                @if row.owner_gone == Some(true) { ", which is gone" }
            },
            (Some(id), ..) => { "process " code { (id) } ", which has stopped" },
        }
        @if let Some(pid) = row.progress.holder_pid { "; held by the server's process " (pid) }
        @if let Some(until) = row.lease_until { "; leased until " (moment(until)) }
        "; seen " (moment(row.progress.seen_at))
    }
}

/// Where it failed, with what, and the event.
fn failure(row: &ConsumerRow) -> Markup {
    let c = &row.progress;
    let fails = c.attempts > 0 || c.faults > 0 || c.failed_event_id.is_some();
    if !fails && c.last_error.is_none() {
        return html! {};
    }
    html! {
        section aria-labelledby="failure" {
            h2 #failure { @if fails { "Where it fails" } @else { "What failed last" } }
            dl.facts {
                @if fails {
                    dt { "Attempts" }
                    dd {
                        (c.attempts) " of " (c.max_attempts)
                        @if c.faults > 0 { ", and " (counted(i64::from(c.faults), "fault")) }
                        @if let Some(next) = c.next_attempt_at { "; next " @if next > OffsetDateTime::now_utc() { "at " (moment(next)) } @else { "now" } }
                    }
                }
                @if let Some(event_id) = c.failed_event_id {
                    dt { "Event" }
                    dd {
                        @match (c.failed_position, &c.failed_event_type) {
                            (Some(id), Some(kind)) => { (count(id)) " " code { (kind) } " " },
                            _ => "not in the log any more: ",
                        }
                        code.faint { (event_id) }
                    }
                }
                @if let Some(at) = c.last_error_at { dt { "When" } dd { (moment(at)) } }
            }
            @if let Some(error) = &c.last_error { (quoted("Error", error)) }
            @if let Some(event) = &row.failed_event { (content(event)) }
        }
    }
}

/// Somebody else's words, as they are.
pub(super) fn quoted(name: &str, text: &str) -> Markup {
    let most = text.len().min(SHOWN);
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    html! {
        figure.quote {
            figcaption { (name) }
            pre tabindex="0" { code { (text[..end]) } }
            @if end < text.len() { p.faint { "The first " (SHOWN / 1024) " KiB of " (text.len() / 1024) "." } }
        }
    }
}

/// What an event holds.
pub(super) fn content(event: &Event) -> Markup {
    html! {
        dl.facts {
            dt { "Recorded" } dd { (moment(event.recorded_at())) }
            @if let (Some(kind), Some(id)) = (event.stream_type(), event.stream_id()) {
                dt { "Stream" } dd { code { (kind) } " " code { (id) } @if let Some(version) = event.stream_version() { ", version " (version) } }
            }
            @if !event.tenant_id().is_empty() { dt { "Tenant" } dd { code { (event.tenant_id()) } } }
            @if let Some(id) = event.correlation_id() { dt { "Correlation" } dd { code { (id) } } }
            @if let Some(id) = event.causation_id() { dt { "Cause" } dd { code { (id) } } }
            @if let Some(who) = event.created_by() { dt { "Appended by" } dd { bdi { (who) } } }
        }
        (quoted("Payload", &indented(event.payload_json())))
        @if event.metadata_json().trim() != "{}" { (quoted("Metadata", &indented(event.metadata_json()))) }
    }
}

/// What an operator can do about it.
fn ways(which: &Which, rows: &[&ConsumerRow], reader: &Reader) -> Markup {
    let any = |status| rows.iter().any(|row| row.progress.status == status);
    let stopped = any(ConsumerStatus::Disabled) || any(ConsumerStatus::Expired);
    let stands = match rows {
        [row] => row.progress.failed_event_id,
        _ => None,
    };
    let form = |action: &str, button: &str, main: bool| {
        html! {
            form.way method="post" action=(action) {
                (csrf(reader)) (which.fields())
                input name="why" maxlength="1000" placeholder="why (for the audit)" aria-label={ "Why " (action) ", for the audit" };
                button.main[main] { (button) }
            }
        }
    };
    let asked = |page: &str, more: &[(&str, &str)], name: &str| {
        html! { div.way { a.button href=(which.link(page, more)) { (name) } } }
    };
    html! {
        section.ways-out aria-labelledby="ways" {
            h2 #ways { "What you can do" }
            @if any(ConsumerStatus::Dead) {
                p { "Try the event again, when what was at fault is repaired." }
                (form("restart", "Restart", true))
            }
            @if let Some(event) = stands {
                p { "Go on without this event. A dead letter keeps it." }
                (asked("skip", &[("event", &event.to_string())], "Skip the event…"))
            }
            @if stopped {
                p { "Let it run again from where it stands." }
                (form("enable", "Enable", true))
            }
            @if rows.iter().any(|row| row.progress.missing_from.is_some()) {
                p { "Accept that events which it had not read were pruned: it runs again, behind them. A dead letter keeps the range." }
                (form("accept-pruned", "Accept", false))
            }
            @if !any(ConsumerStatus::Disabled) {
                p { "Stop it, until somebody enables it." }
                (asked("disable", &[], "Disable…"))
            }
            p { "Move it to another place of the log." }
            (asked("reset", &[], "Reset…"))
        }
    }
}

/// The event at which one of the rows stands and failed.
pub(super) fn failed_at<'a>(rows: &'a [ConsumerRow], event: Option<&str>) -> Option<&'a ConsumerRow> {
    let asked = event.and_then(given);
    rows.iter().find(|row| {
        row.progress.failed_event_id.is_some_and(|id| asked.is_none_or(|asked| id.to_string() == asked))
    })
}
