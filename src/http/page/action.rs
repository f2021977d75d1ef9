//! Acting on a consumer. What cannot be taken back is asked about first, on a page that says what it means.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State as Of;
use axum::http::StatusCode;
use axum::response::{Html, Response};
use maud::{Markup, html};
use serde::Deserialize;
use uuid::Uuid;

use super::consumer::{Which, content, failed_at, quoted};
use super::frame::{Frame, csrf};
use super::overview::Memory;
use super::words::{count, state};
use super::{Asked, failed, filled, given, to};
use crate::admin::{Admin, Change, Reset};
use crate::consumer::Start;
use crate::error::Error;
use crate::http::access::{Checked, Operator, Reader, Refused};
use crate::http::{Shared, State};

/// What acting needs besides a form.
pub(super) type Kept = Extension<Arc<Memory>>;

/// A state row, and why.
#[derive(Deserialize)]
pub(super) struct Wanted {
    #[serde(flatten)]
    which: Named,
    #[serde(default)]
    why: String,
}

/// As [`Which`], whose numbers a flattened form cannot hold.
#[derive(Deserialize)]
struct Named {
    #[serde(alias = "consumer")]
    name: String,
    #[serde(default)]
    instance: String,
    #[serde(default, deserialize_with = "filled")]
    partition: Option<i32>,
}

impl From<Named> for Which {
    fn from(named: Named) -> Self {
        Self { name: named.name, instance: named.instance, partition: named.partition, did: None }
    }
}

/// The operator, and why he acts.
pub(super) fn because(operator: &Operator, why: &str) -> Admin {
    match given(why) {
        Some(why) => operator.admin.because(why),
        None => operator.admin.clone(),
    }
}

/// Back to the consumer, with what was done or why not.
fn answer(which: &Which, memory: &Memory, done: Result<Vec<Change>, Error>) -> Result<Response, Refused> {
    memory.forget_findings();
    match done {
        Ok(changes) => {
            let did = changes.last().map_or_else(String::new, |change| change.id.to_string());
            Ok(to(&which.link("consumer", &[("did", &did)])))
        }
        Err(error) => Err(failed(&error).back_to("Back to the consumer", which.link("consumer", &[]))),
    }
}

pub(super) async fn restart(
    Extension(memory): Kept,
    Checked { operator, form, .. }: Checked<Wanted>,
) -> Result<Response, Refused> {
    let which = Which::from(form.which);
    answer(&which, &memory, because(&operator, &form.why).restart(which.target()).await)
}

pub(super) async fn enable(
    Extension(memory): Kept,
    Checked { operator, form, .. }: Checked<Wanted>,
) -> Result<Response, Refused> {
    let which = Which::from(form.which);
    answer(&which, &memory, because(&operator, &form.why).enable(which.target()).await)
}

pub(super) async fn accept_pruned(
    Extension(memory): Kept,
    Checked { operator, form, .. }: Checked<Wanted>,
) -> Result<Response, Refused> {
    let which = Which::from(form.which);
    answer(&which, &memory, because(&operator, &form.why).accept_pruned(which.target()).await)
}

pub(super) async fn disable(
    Extension(memory): Kept,
    Checked { operator, form, .. }: Checked<Wanted>,
) -> Result<Response, Refused> {
    let which = Which::from(form.which);
    answer(&which, &memory, because(&operator, &form.why).disable(which.target()).await)
}

/// Skips this event and no other.
#[derive(Deserialize)]
pub(super) struct Skip {
    #[serde(flatten)]
    which: Named,
    event: Uuid,
    #[serde(default)]
    why: String,
}

pub(super) async fn skip(
    Extension(memory): Kept,
    Checked { operator, form, .. }: Checked<Skip>,
) -> Result<Response, Refused> {
    let which = Which::from(form.which);
    let skipped = because(&operator, &form.why).skip_poison(which.target(), form.event).await;
    answer(&which, &memory, skipped.map(|change| vec![change]))
}

#[derive(Deserialize)]
pub(super) struct AskedSkip {
    #[serde(flatten)]
    which: Named,
    event: Option<String>,
}

/// Names the event, with all that there is to judge it by.
pub(super) async fn ask_skip(
    Of(shared): State,
    reader: Reader,
    Asked(asked): Asked<AskedSkip>,
) -> Result<Html<String>, Refused> {
    let which = Which::from(asked.which);
    let rows = which.rows(&shared.log.admin()).await.map_err(|e| failed(&e))?;
    let back = which.link("consumer", &[]);
    let Some(row) = failed_at(&rows, asked.event.as_deref()) else {
        return Err(Refused::new(StatusCode::CONFLICT, "the consumer does not stand at that event any more")
            .back_to("Back to the consumer", back));
    };
    let c = &row.progress;
    let event_id = c.failed_event_id.map_or_else(String::new, |id| id.to_string());
    let about = html! {
        dl.facts {
            dt { "Consumer" } dd { (which.shown()) " " (state(&c.status)) }
            dt { "Event" }
            dd {
                @if let Some(id) = c.failed_position { strong { (count(id)) } " " }
                code.faint { (event_id) }
            }
            @if let Some(kind) = &c.failed_event_type { dt { "Type" } dd { code { (kind) } } }
            dt { "Attempts" } dd { (c.attempts) " of " (c.max_attempts) }
        }
        @if let Some(error) = &c.last_error { (quoted("Error", error)) }
        @match &row.failed_event {
            Some(event) => (content(event)),
            None => p.faint { "The event's content is not shown: this site's role may not read it, or it is not in the log any more." },
        }
    };
    let question = Question {
        title: "Skip this event?",
        means: html! {
            "The consumer goes on behind it. What its handler would have done is not done; a dead letter keeps the event, "
            "and it can be retried from there until that is settled."
        },
        about,
        action: "skip",
        fields: html! { (which.fields()) input type="hidden" name="event" value=(event_id); },
        button: "Skip the event",
        back,
    };
    Ok(question.page(&shared, &reader, "overview"))
}

pub(super) async fn ask_disable(
    Of(shared): State,
    reader: Reader,
    Asked(which): Asked<Which>,
) -> Result<Html<String>, Refused> {
    let rows = which.rows(&shared.log.admin()).await.map_err(|e| failed(&e))?;
    let question = Question {
        title: "Disable the consumer?",
        means: html! { "It stops, at every process, until somebody enables it. Meanwhile it does not hold back prune: events that it has not read may be deleted." },
        about: html! {
            dl.facts {
                dt { "Consumer" } dd { (which.shown()) }
                @for row in &rows { dt { "Position" } dd { (count(row.progress.position)) " " (state(&row.progress.status)) } }
            }
        },
        action: "disable",
        fields: which.fields(),
        button: "Disable",
        back: which.link("consumer", &[]),
    };
    Ok(question.page(&shared, &reader, "overview"))
}

/// Where to.
#[derive(Deserialize)]
pub(super) struct Moved {
    #[serde(flatten)]
    which: Named,
    to: String,
    #[serde(default, deserialize_with = "filled")]
    id: Option<i64>,
    #[serde(default)]
    repeat_effects: String,
    #[serde(default)]
    accept_pruned: String,
    #[serde(default)]
    why: String,
}

pub(super) async fn reset(
    Extension(memory): Kept,
    Checked { operator, form, .. }: Checked<Moved>,
) -> Result<Response, Refused> {
    let which = Which::from(form.which);
    let place = match (form.to.as_str(), form.id) {
        ("beginning", _) => Start::Beginning,
        ("head", _) => Start::Head,
        ("after", Some(id)) => Start::After(id),
        _ => {
            return Err(Refused::new(
                StatusCode::BAD_REQUEST,
                "say where to: the beginning, the head, or an id",
            )
            .back_to("Back to the question", which.link("reset", &[])));
        }
    };
    let mut reset = Reset::to(place);
    if !form.repeat_effects.is_empty() {
        reset = reset.repeat_effects();
    }
    if !form.accept_pruned.is_empty() {
        reset = reset.accept_pruned();
    }
    answer(&which, &memory, because(&operator, &form.why).reset(which.target(), reset).await)
}

pub(super) async fn ask_reset(
    Of(shared): State,
    reader: Reader,
    Asked(which): Asked<Which>,
) -> Result<Html<String>, Refused> {
    let admin = shared.log.admin();
    let (rows, log) = tokio::join!(which.rows(&admin), admin.log_progress());
    let (rows, log) = (rows.map_err(|e| failed(&e))?, log.map_err(|e| failed(&e))?);
    let has_ledger = rows.iter().any(|row| row.pending.is_some());
    let position = rows.iter().map(|row| row.progress.position).min().unwrap_or_default();
    let question = Question {
        title: "Reset the consumer?",
        means: html! {
            "It forgets its failure and goes on from the place that you name: further back, it is given events again that it was given before; "
            "further on, it passes over events, and a dead letter keeps the range."
        },
        about: html! {
            dl.facts {
                dt { "Consumer" } dd { (which.shown()) }
                @for row in &rows { dt { "Position" } dd { (count(row.progress.position)) " " (state(&row.progress.status)) } }
                dt { "Log" } dd { "safe head " (count(log.safe_head)) @if log.pruned_to > 0 { ", pruned to " (count(log.pruned_to)) } }
            }
        },
        action: "reset",
        fields: html! {
            (which.fields())
            fieldset {
                legend { "Where to" }
                label.choice { input type="radio" name="to" value="beginning" required; " the beginning: every event again" }
                label.choice { input type="radio" name="to" value="head"; " the head: only what comes from now on" }
                label.choice { input type="radio" name="to" value="after"; " behind the event with the id " }
                input name="id" type="number" min="0" value=(position) aria-label="The id behind which it goes on";
            }
            @if has_ledger {
                label.choice { input type="checkbox" name="repeat_effects" value="yes"; " Forget what it did above that place: its effects are done again." }
            }
            label.choice { input type="checkbox" name="accept_pruned" value="yes"; " Accept that events above that place were pruned." }
        },
        button: "Reset",
        back: which.link("consumer", &[]),
    };
    Ok(question.page(&shared, &reader, "overview"))
}

/// A page that asks before something is done.
pub(super) struct Question {
    pub(super) title: &'static str,
    /// What happens then.
    pub(super) means: Markup,
    /// What it is about.
    pub(super) about: Markup,
    pub(super) action: &'static str,
    pub(super) fields: Markup,
    pub(super) button: &'static str,
    pub(super) back: String,
}

impl Question {
    pub(super) fn page(&self, shared: &Shared, reader: &Reader, below: &'static str) -> Html<String> {
        let body = html! {
            h1 { (self.title) }
            p.means { (self.means) }
            (self.about)
            @if reader.operator.is_some() {
                form.fields.question method="post" action=(self.action) {
                    (csrf(reader))
                    (self.fields)
                    label for="why" { "Why, for the audit" }
                    input #why name="why" maxlength="1000";
                    div.buttons {
                        button.main { (self.button) }
                        a.button href=(self.back) { "Leave it as it is" }
                    }
                }
            } @else {
                p.notice.quiet { "You may read, not act." }
                p.ways { a href=(self.back) { "Back" } }
            }
        };
        Frame::new(shared, reader, below).around(self.title, &body)
    }
}
