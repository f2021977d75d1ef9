//! The ledger and the queues in it: who ran what, what waits, what was given up.

use axum::Extension;
use axum::extract::State as Of;
use axum::http::StatusCode;
use axum::response::{Html, Response};
use maud::{Markup, html};
use serde::Deserialize;
use uuid::Uuid;

use super::action::{Kept, Question, because};
use super::audit::done;
use super::consumer::quoted;
use super::frame::Frame;
use super::table::{Table, kind, name, short, text, wide};
use super::words::{count, counted, moment, nothing, state};
use super::{Asked, failed, filled, given, link, to};
use crate::admin::{Admin, LedgerRow, LedgerRows, LedgerStatus};
use crate::error::{Error, ErrorKind};
use crate::http::State;
use crate::http::access::{Checked, Reader, Refused};

/// Rows on a page.
const PAGE: i32 = 50;

const STATES: [LedgerStatus; 4] =
    [LedgerStatus::Pending, LedgerStatus::InProgress, LedgerStatus::Done, LedgerStatus::Dead];

#[derive(Deserialize)]
pub(super) struct Which {
    #[serde(default)]
    handler: String,
    /// `any`, `unfinished`, or one of [`STATES`]; unfinished ones unless said.
    #[serde(default)]
    status: String,
    #[serde(default)]
    key: String,
    /// The last row of the page before.
    #[serde(default, deserialize_with = "filled")]
    after: Option<Uuid>,
    #[serde(default)]
    after_handler: String,
}

impl Which {
    fn status(&self) -> &str {
        match (given(&self.status), given(&self.key)) {
            (Some(status), _) => status,
            (None, Some(_)) => "any",
            (None, None) => "unfinished",
        }
    }

    fn rows(&self) -> Result<LedgerRows, Refused> {
        let mut rows = match self.status() {
            "any" => LedgerRows::any(),
            "unfinished" => LedgerRows::unfinished(),
            word => match STATES.into_iter().find(|status| status.as_str() == word) {
                Some(status) => LedgerRows::any().status(status),
                None => {
                    return Err(Refused::new(
                        StatusCode::BAD_REQUEST,
                        format!("no row of the ledger is ever {word:?}"),
                    ));
                }
            },
        };
        if let Some(key) = given(&self.key) {
            rows = match key.parse::<Uuid>() {
                Ok(event) => rows.key(event),
                Err(_) => rows.key(key),
            };
        }
        if let Some(handler) = given(&self.handler) {
            rows = rows.of(handler);
        }
        if let Some(after) = self.after {
            rows = rows.after(after, &self.after_handler);
        }
        Ok(rows.limit(PAGE))
    }
}

pub(super) async fn list(
    Of(shared): State,
    reader: Reader,
    Asked(which): Asked<Which>,
) -> Result<Html<String>, Refused> {
    let rows = match shared.log.admin().ledger_rows(&which.rows()?).await {
        Ok(rows) => rows,
        Err(error) if error.kind() == ErrorKind::NotRegistered => Vec::new(),
        Err(error) => return Err(failed(&error)),
    };
    let columns = [
        name("Key"),
        short("Handler"),
        text("State"),
        kind("Event"),
        text("Due, leased until"),
        wide("Last error"),
    ];
    let mut table =
        Table::new("The ledger, in the order of its keys", columns).or("There is nothing of that.");
    for row in &rows {
        table.row(
            format!("{}\n{}", row.event_id, row.handler),
            [
                html! { a href=(place_of(row.event_id, &row.handler)) { code { (row.event_id) } } },
                html! { bdi { (row.handler) } },
                state(&row.status),
                html! {
                    @if let Some(id) = row.position { (count(id)) " " } @else { (nothing()) }
                    @if let Some(kind) = &row.event_type { code { (kind) } }
                },
                when(row),
                html! { @match &row.last_error { Some(error) => span.excerpt { (error) }, None => (nothing()) } },
            ],
        );
    }
    let last = rows.last().filter(|_| i32::try_from(rows.len()) == Ok(PAGE));
    let query = [("handler", which.handler.as_str()), ("status", &which.status), ("key", &which.key)];
    let body = html! {
        h1 { "Ledger" }
        form.filter method="get" action="ledger" {
            label { "Handler" input name="handler" value=(which.handler); }
            label { "State"
                select name="status" {
                    @for word in ["unfinished"].into_iter().chain(STATES.map(LedgerStatus::as_str)).chain(["any"]) {
                        option value=(word) selected[word == which.status()] { (word.replace('_', " ")) }
                    }
                }
            }
            label { "Key" input name="key" value=(which.key) placeholder="event id, or a program's own key"; }
            button { "Show" }
        }
        (table)
        p.ways {
            @if which.after.is_some() { a href=(link("ledger", &query)) { "First" } " " }
            @if let Some(last) = last {
                a rel="next" href=(link("ledger", &[&query[..], &[("after", &last.event_id.to_string()), ("after_handler", &last.handler)]].concat())) { "Next" }
            }
        }
    };
    Ok(Frame::new(&shared, &reader, "ledger").live().around("Ledger", &body))
}

fn when(row: &LedgerRow) -> Markup {
    match (row.status, row.next_attempt_at, row.lease_until) {
        (LedgerStatus::Pending, Some(at), _) | (LedgerStatus::InProgress, _, Some(at)) => moment(at),
        (LedgerStatus::Pending, None, _) => html! { "at once" },
        _ => nothing(),
    }
}

fn place_of(key: Uuid, handler: &str) -> String {
    named("ledger-row", key, handler)
}

fn named(page: &str, key: Uuid, handler: &str) -> String {
    link(page, &[("key", &key.to_string()), ("handler", handler)])
}

#[derive(Deserialize)]
pub(super) struct One {
    key: Uuid,
    handler: String,
    #[serde(default, deserialize_with = "filled")]
    did: Option<i64>,
}

async fn find(admin: &Admin, asked: &One) -> Result<LedgerRow, Refused> {
    let wanted = LedgerRows::any().key(asked.key).of(&asked.handler).limit(1);
    let found = admin.ledger_rows(&wanted).await.map_err(|e| failed(&e).back_to("Ledger", "ledger"))?;
    found.into_iter().next().ok_or_else(|| {
        Refused::new(
            StatusCode::NOT_FOUND,
            format!("the ledger knows nothing of {} and handler {:?}", asked.key, asked.handler),
        )
        .back_to("Ledger", "ledger")
    })
}

pub(super) async fn one(
    Of(shared): State,
    reader: Reader,
    Asked(asked): Asked<One>,
) -> Result<Html<String>, Refused> {
    let admin = shared.log.admin();
    let (row, did) = tokio::join!(find(&admin, &asked), done(&admin, asked.did));
    let row = row?;
    let body = html! {
        h1 { span.faint { "Effect of " } bdi { (row.handler) } }
        (did)
        (facts(&row))
        @if let Some(error) = &row.last_error { (quoted("Last error", error)) }
        @if reader.operator.is_some() {
            section.ways-out aria-labelledby="ways" {
                h2 #ways { "What you can do" }
                @if row.status == LedgerStatus::InProgress {
                    p { "Take the claim back before its lease runs out." }
                    div.way { a.button href=(named("ledger-release", row.event_id, &row.handler)) { "Release…" } }
                }
                p { "Forget what the ledger knows of it: it may run again." }
                div.way { a.button href=(named("ledger-forget", row.event_id, &row.handler)) { "Forget…" } }
            }
        }
    };
    Ok(Frame::new(&shared, &reader, "ledger").live().around("Ledger", &body))
}

fn facts(row: &LedgerRow) -> Markup {
    html! {
        dl.facts {
            dt { "State" } dd { (state(&row.status)) }
            dt { "Key" } dd { code { (row.event_id) } }
            dt { "Handler" } dd { bdi { (row.handler) } }
            @if let Some(id) = row.position { dt { "Event" } dd { (count(id)) @if let Some(kind) = &row.event_type { " " code { (kind) } } } }
            @if let Some(stream) = &row.stream { dt { "Stream" } dd { code { (stream) } } }
            dt { "Attempts" } dd { (row.attempts) @if row.faults > 0 { ", and " (counted(i64::from(row.faults), "fault")) } }
            @if let Some(at) = row.next_attempt_at { dt { "Due" } dd { (moment(at)) } }
            @if let Some(at) = row.lease_until { dt { "Leased until" } dd { (moment(at)) } }
            dt { "Fencing number" } dd { (row.token) }
            @if let Some(owner) = row.owner {
                dt { "Claimed by" }
                dd {
                    @match (&row.owner_host, row.owner_pid) {
                        (Some(host), Some(pid)) => { "pid " (pid) " on " bdi { (host) } },
                        _ => { "process " code { (owner) } },
                    }
                    @if row.owner_gone == Some(true) { ", which is gone" }
                }
            }
            dt { "Made" } dd { (moment(row.created_at)) }
            dt { "Changed" } dd { (moment(row.updated_at)) }
        }
    }
}

pub(super) async fn ask_release(
    Of(shared): State,
    reader: Reader,
    Asked(asked): Asked<One>,
) -> Result<Html<String>, Refused> {
    let row = find(&shared.log.admin(), &asked).await?;
    let question = Question {
        title: "Release this claim?",
        means: html! {
            "It may be claimed at once, and what its former holder says of it changes nothing any more. If that lives after all, "
            strong { "the effect may run twice, at the same time" } "."
        },
        about: facts(&row),
        action: "ledger-release",
        fields: html! {
            (fields(&row))
            label.choice { input type="checkbox" name="force" value="yes"; " Also if its holder is not known to be gone." }
        },
        button: "Release the claim",
        back: place_of(row.event_id, &row.handler),
    };
    Ok(question.page(&shared, &reader, "ledger"))
}

pub(super) async fn ask_forget(
    Of(shared): State,
    reader: Reader,
    Asked(asked): Asked<One>,
) -> Result<Html<String>, Refused> {
    let row = find(&shared.log.admin(), &asked).await?;
    let question = Question {
        title: "Forget this effect?",
        means: html! {
            "Nobody knows any more whether it was done: " strong { "it may run again" }
            ", by whoever claims it. What a queue had not finished is passed over with that, and leaves a dead letter."
        },
        about: facts(&row),
        action: "ledger-forget",
        fields: fields(&row),
        button: "Forget it",
        back: place_of(row.event_id, &row.handler),
    };
    Ok(question.page(&shared, &reader, "ledger"))
}

fn fields(row: &LedgerRow) -> Markup {
    html! {
        input type="hidden" name="key" value=(row.event_id);
        input type="hidden" name="handler" value=(row.handler);
    }
}

#[derive(Deserialize)]
pub(super) struct Settled {
    key: Uuid,
    handler: String,
    #[serde(default)]
    force: String,
    #[serde(default)]
    why: String,
}

impl Settled {
    fn refused(&self, error: &Error) -> Refused {
        failed(error).back_to("Back to the ledger's row", place_of(self.key, &self.handler))
    }
}

pub(super) async fn release(
    Extension(memory): Kept,
    Checked { operator, form, .. }: Checked<Settled>,
) -> Result<Response, Refused> {
    memory.forget_findings();
    let admin = because(&operator, &form.why);
    let admin = if form.force.is_empty() { admin } else { admin.force() };
    let change = admin.ledger_release(form.key, &form.handler).await.map_err(|e| form.refused(&e))?;
    Ok(to(&format!("{}&did={}", place_of(form.key, &form.handler), change.id)))
}

pub(super) async fn forget(
    Extension(memory): Kept,
    Checked { operator, form, .. }: Checked<Settled>,
) -> Result<Response, Refused> {
    memory.forget_findings();
    let admin = because(&operator, &form.why);
    admin.ledger_forget(form.key, &form.handler).await.map_err(|e| form.refused(&e))?;
    Ok(to(&link("ledger", &[("handler", &form.handler)])))
}
