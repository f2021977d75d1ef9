//! Hand-offs: which side has which event.

use axum::extract::State as Of;
use axum::http::StatusCode;
use axum::response::Html;
use maud::html;
use serde::Deserialize;
use uuid::Uuid;

use super::frame::Frame;
use super::table::{Table, kind, name, number, text};
use super::words::{count, moment, nothing, state};
use super::{Asked, failed, filled, given, link};
use crate::admin::{HandoffRows, HandoffState};
use crate::http::State;
use crate::http::access::{Reader, Refused};

/// Rows on a page.
const PAGE: i32 = 50;

const STATES: [HandoffState; 3] =
    [HandoffState::Unfinished, HandoffState::RanDirectly, HandoffState::Delivery];

#[derive(Deserialize)]
pub(super) struct Which {
    #[serde(default)]
    scope: String,
    /// `any`, or one of [`STATES`]; any unless said.
    #[serde(default)]
    state: String,
    /// The last row of the page before.
    #[serde(default, deserialize_with = "filled")]
    after: Option<Uuid>,
    #[serde(default)]
    after_scope: String,
}

impl Which {
    fn rows(&self) -> Result<HandoffRows, Refused> {
        let mut rows = match given(&self.state).unwrap_or("any") {
            "any" => HandoffRows::any(),
            word => match STATES.into_iter().find(|state| state.as_str() == word) {
                Some(state) => HandoffRows::any().state(state),
                None => {
                    return Err(Refused::new(
                        StatusCode::BAD_REQUEST,
                        format!("no hand-off is ever {word:?}"),
                    ));
                }
            },
        };
        if let Some(scope) = given(&self.scope) {
            rows = rows.in_scope(scope);
        }
        if let Some(after) = self.after {
            rows = rows.after(&self.after_scope, after);
        }
        Ok(rows.limit(PAGE))
    }
}

pub(super) async fn list(
    Of(shared): State,
    reader: Reader,
    Asked(which): Asked<Which>,
) -> Result<Html<String>, Refused> {
    let rows = shared.log.admin().handoff_rows(&which.rows()?).await.map_err(|e| failed(&e))?;
    let columns =
        [name("Event"), text("Scope"), text("State"), number("Id"), kind("Type"), text("Taken"), text("Run")];
    let mut table =
        Table::new("Which side has which event, by scope", columns).or("There are none of these.");
    for row in &rows {
        table.row(
            format!("{}\n{}", row.scope, row.event_id),
            [
                html! { code { (row.event_id) } },
                html! { bdi { (row.scope) } },
                state(&row.state),
                html! { @match row.position { Some(id) => (count(id)), None => (nothing()) } },
                html! { @match &row.event_type { Some(kind) => code { (kind) }, None => (nothing()) } },
                moment(row.taken_at),
                html! { @match row.ran_at { Some(at) => (moment(at)), None => (nothing()) } },
            ],
        );
    }
    let last = rows.last().filter(|_| i32::try_from(rows.len()) == Ok(PAGE));
    let query = [("scope", which.scope.as_str()), ("state", &which.state)];
    let chosen = given(&which.state).unwrap_or("any");
    let body = html! {
        h1 { "Hand-offs" }
        form.filter method="get" action="handoffs" {
            label { "Scope" input name="scope" value=(which.scope); }
            label { "State"
                select name="state" {
                    @for word in ["any"].into_iter().chain(STATES.map(HandoffState::as_str)) {
                        option value=(word) selected[word == chosen] { (word.replace('_', " ")) }
                    }
                }
            }
            button { "Show" }
        }
        (table)
        p.ways {
            @if which.after.is_some() { a href=(link("handoffs", &query)) { "First" } " " }
            @if let Some(last) = last {
                a rel="next" href=(link("handoffs", &[&query[..], &[("after", &last.event_id.to_string()), ("after_scope", &last.scope)]].concat())) { "Next" }
            }
        }
    };
    Ok(Frame::new(&shared, &reader, "handoffs").live().around("Hand-offs", &body))
}
