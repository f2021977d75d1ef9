//! Dead letters: what was passed over, why, and what becomes of it.

use axum::Extension;
use axum::extract::State as Of;
use axum::http::StatusCode;
use axum::response::{Html, Response};
use maud::{Markup, html};
use serde::Deserialize;

use super::action::{Kept, because};
use super::audit::done;
use super::consumer::{content, quoted};
use super::frame::{Frame, csrf};
use super::table::{Table, kind, number, text, wide};
use super::words::{State as _, count, moment, nothing, state};
use super::{Asked, failed, filled, given, link, to};
use crate::admin::{Change, DeadLetter, DeadLetterState, DeadLetters};
use crate::error::Error;
use crate::http::State;
use crate::http::access::{Checked, Reader, Refused};

/// Rows on a page.
const PAGE: i32 = 50;

const STATES: [DeadLetterState; 4] = [
    DeadLetterState::Open,
    DeadLetterState::RetryRequested,
    DeadLetterState::Resolved,
    DeadLetterState::Discarded,
];
const REASONS: [&str; 6] =
    ["skip_policy", "operator_skip", "rejected", "exhausted", "max_deliveries", "pruned"];

#[derive(Deserialize)]
pub(super) struct Which {
    #[serde(default)]
    consumer: String,
    #[serde(default)]
    instance: String,
    /// `any`, or one of [`STATES`]; open ones unless said.
    #[serde(default)]
    state: String,
    #[serde(default)]
    reason: String,
    #[serde(default, rename = "type")]
    event_type: String,
    #[serde(default)]
    error: String,
    #[serde(default, deserialize_with = "filled")]
    after: Option<i64>,
}

impl Which {
    fn letters(&self) -> Result<DeadLetters, Refused> {
        let mut letters = match given(&self.state).unwrap_or("open") {
            "any" => DeadLetters::any(),
            word => match STATES.into_iter().find(|state| state.as_str() == word) {
                Some(state) => DeadLetters::any().state(state),
                None => {
                    return Err(Refused::new(
                        StatusCode::BAD_REQUEST,
                        format!("no dead letter is ever {word:?}"),
                    ));
                }
            },
        };
        letters = letters.limit(PAGE).after(self.after.unwrap_or_default());
        type With = fn(DeadLetters, &str) -> DeadLetters;
        let filters: [(&str, With); 5] = [
            (&self.consumer, |l, text| l.of(text)),
            (&self.instance, |l, text| l.instance(text)),
            (&self.reason, |l, text| l.reason(text)),
            (&self.event_type, |l, text| l.event_type(text)),
            (&self.error, |l, text| l.error(text)),
        ];
        Ok(filters.into_iter().fold(letters, |letters, (said, with)| match given(said) {
            Some(text) => with(letters, text),
            None => letters,
        }))
    }

    fn query(&self) -> [(&str, &str); 6] {
        [
            ("consumer", &self.consumer),
            ("instance", &self.instance),
            ("state", &self.state),
            ("reason", &self.reason),
            ("type", &self.event_type),
            ("error", &self.error),
        ]
    }
}

pub(super) async fn list(
    Of(shared): State,
    reader: Reader,
    Asked(which): Asked<Which>,
) -> Result<Html<String>, Refused> {
    let letters = shared
        .log
        .admin()
        .dead_letters(&which.letters()?)
        .await
        .map_err(|e| failed(&e).back_to("Dead letters", "dead-letters"))?;
    let columns = [
        text("Dead letter"),
        text("Consumer"),
        number("Event"),
        kind("Type"),
        text("State"),
        text("Reason"),
        text("Passed over"),
        wide("Error"),
    ];
    let mut table = Table::new("Dead letters, the oldest first", columns).or("There are none of these.");
    for letter in &letters {
        table.row(
            letter.id.to_string(),
            [
                html! { a href=(place_of(letter.id)) { (count(letter.id)) } },
                whose(letter),
                html! { (place(letter)) },
                html! { @match &letter.event_type { Some(kind) => code { (kind) }, None => (nothing()) } },
                state(&letter.state),
                html! { (letter.reason.replace('_', " ")) },
                moment(letter.created_at),
                html! { @match &letter.error { Some(error) => span.excerpt { (error) }, None => (nothing()) } },
            ],
        );
    }
    let next =
        letters.last().filter(|_| i32::try_from(letters.len()) == Ok(PAGE)).map(|last| last.id.to_string());
    let body = html! {
        h1 { "Dead letters" }
        (filter(&which))
        (table)
        p.ways {
            @if which.after.is_some() { a href=(link("dead-letters", &which.query())) { "Oldest" } " " }
            @if let Some(next) = next {
                a href=(link("dead-letters", &[&which.query()[..], &[("after", &next)]].concat())) rel="next" { "Newer" }
            }
        }
    };
    Ok(Frame::new(&shared, &reader, "dead-letters").live().around("Dead letters", &body))
}

fn filter(which: &Which) -> Markup {
    let chosen = given(&which.state).unwrap_or("open");
    html! {
        form.filter method="get" action="dead-letters" {
            label { "Consumer" input name="consumer" value=(which.consumer); }
            label { "State"
                select name="state" {
                    @for word in STATES.map(DeadLetterState::as_str).into_iter().chain(["any"]) {
                        option value=(word) selected[word == chosen] { (word.replace('_', " ")) }
                    }
                }
            }
            label { "Reason"
                select name="reason" {
                    option value="" { "any" }
                    @for word in REASONS { option value=(word) selected[word == which.reason] { (word.replace('_', " ")) } }
                }
            }
            label { "Type" input name="type" value=(which.event_type); }
            label { "In the error" input name="error" value=(which.error); }
            @if !which.instance.is_empty() { input type="hidden" name="instance" value=(which.instance); }
            button { "Show" }
        }
    }
}

fn place_of(id: i64) -> String {
    format!("dead-letter?id={id}")
}

/// Its id, or the range.
fn place(letter: &DeadLetter) -> String {
    match letter.position_to {
        Some(to) => format!("{} to {}", count(letter.position), count(to)),
        None => count(letter.position),
    }
}

fn whose(letter: &DeadLetter) -> Markup {
    let place = link("consumer", &[("name", &letter.consumer), ("instance", &letter.instance)]);
    html! {
        a href=(place) { bdi { (letter.consumer) } }
        @if !letter.instance.is_empty() { span.faint { " @ " bdi { (letter.instance) } } }
    }
}

#[derive(Deserialize)]
pub(super) struct One {
    id: i64,
    #[serde(default, deserialize_with = "filled")]
    did: Option<i64>,
}

pub(super) async fn one(
    Of(shared): State,
    reader: Reader,
    Asked(asked): Asked<One>,
) -> Result<Html<String>, Refused> {
    let admin = shared.log.admin();
    let (found, did) = tokio::join!(admin.dead_letter(asked.id), done(&admin, asked.did));
    let (letter, event) = found.map_err(|e| failed(&e).back_to("Dead letters", "dead-letters"))?;
    let about = html! {
        dl.facts {
            dt { "State" } dd { (state(&letter.state)) }
            dt { "Consumer" } dd { (whose(&letter)) }
            dt { @if letter.position_to.is_some() { "Events" } @else { "Event" } }
            dd { (place(&letter)) @if let Some(id) = letter.event_id { " " code.faint { (id) } } }
            @if let Some(kind) = &letter.event_type { dt { "Type" } dd { code { (kind) } } }
            dt { "Reason" } dd { (letter.reason.replace('_', " ")) ", after " (letter.attempts) " attempts" }
            dt { "Passed over" } dd { (moment(letter.created_at)) " by " bdi { (letter.created_by) } }
            @if let Some(by) = &letter.updated_by { dt { "Changed" } dd { (moment(letter.updated_at)) " by " bdi { (by) } } }
        }
        @if let Some(error) = &letter.error { (quoted("Error", error)) }
        @match &event {
            Some(event) => (content(event)),
            None if letter.event_id.is_some() => p.faint { "The event's content is not shown: this site's role may not read it, or it is not in the log any more." },
            None => {},
        }
    };
    let body = html! {
        h1 { "Dead letter " (count(letter.id)) }
        (did)
        @if reader.operator.is_some() {
            div.sides { div { (about) } (ways(&letter, &reader)) }
        } @else {
            (about)
        }
    };
    Ok(Frame::new(&shared, &reader, "dead-letters")
        .live()
        .around(&format!("Dead letter {}", letter.id), &body))
}

fn ways(letter: &DeadLetter, reader: &Reader) -> Markup {
    let form = |action: &str, button: &str| {
        html! {
            form.way method="post" action=(action) {
                (csrf(reader)) input type="hidden" name="id" value=(letter.id);
                input name="why" maxlength="1000" placeholder="why (for the audit)" aria-label={ "Why " (action) ", for the audit" };
                button { (button) }
            }
        }
    };
    let is = |state| letter.state == state;
    html! {
        section.ways-out aria-labelledby="ways" {
            h2 #ways { "What you can do" }
            @if is(DeadLetterState::Open) || is(DeadLetterState::Discarded) {
                p { "Deliver it once more: the consumer's own next pass does, out of order." }
                (form("retry", "Retry"))
            }
            @if is(DeadLetterState::Open) || is(DeadLetterState::RetryRequested) {
                p { "Settle it: it will not be delivered again, and no longer holds back prune." }
                (form("discard", "Discard"))
            }
            @if is(DeadLetterState::Resolved) { p.faint { "Nothing: it was " (letter.state.word()) "." } }
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Settled {
    id: i64,
    #[serde(default)]
    why: String,
}

fn answer(id: i64, Extension(memory): &Kept, done: Result<Change, Error>) -> Result<Response, Refused> {
    memory.forget_findings();
    match done {
        Ok(change) => Ok(to(&format!("{}&did={}", place_of(id), change.id))),
        Err(error) => Err(failed(&error).back_to("Back to the dead letter", place_of(id))),
    }
}

pub(super) async fn retry(
    memory: Kept,
    Checked { operator, form, .. }: Checked<Settled>,
) -> Result<Response, Refused> {
    answer(form.id, &memory, because(&operator, &form.why).retry_dead_letter(form.id).await)
}

pub(super) async fn discard(
    memory: Kept,
    Checked { operator, form, .. }: Checked<Settled>,
) -> Result<Response, Refused> {
    answer(form.id, &memory, because(&operator, &form.why).discard_dead_letter(form.id).await)
}
