//! The admin page: what an operator sees, and the forms by which he acts. Rendered here, no script needed.
//!
//! Everything comes from [`Admin`](crate::Admin), and every action is its own: nothing is decided here, and what it refuses is shown as
//! it says it. Every page lies directly below the site's root and names what it is about in the query, so that links are names of pages
//! and hold wherever the site is mounted. What was done is named by its row of the audit (`did=4711`), not by words in an address that
//! anybody could have written.
//!
//! A page that says `data-refreshed` is refreshed by `live.js`, which loads it again and changes what is different.

mod action;
mod asset;
mod audit;
mod consumer;
mod frame;
mod handoffs;
mod instances;
mod ledger;
mod letters;
mod overview;
mod table;
mod throughput;
mod words;

use std::sync::Arc;

use axum::extract::{FromRequestParts, OriginalUri, Query};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

pub(super) use self::frame::{LoginPage, login, refused};

use super::Shared;
use super::access::{Refused, encoded};
use crate::error::{Error, ErrorKind};

/// The tree of pages.
pub(super) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/", get(to_overview))
        .route("/overview", get(overview::page))
        .route("/consumer", get(consumer::page))
        .route("/dead-letters", get(letters::list))
        .route("/dead-letter", get(letters::one))
        .route("/ledger", get(ledger::list))
        .route("/ledger-row", get(ledger::one))
        .route("/handoffs", get(handoffs::list))
        .route("/instances", get(instances::page))
        .route("/audit", get(audit::page))
        .route("/restart", post(action::restart))
        .route("/enable", post(action::enable))
        .route("/accept-pruned", post(action::accept_pruned))
        .route("/skip", get(action::ask_skip).post(action::skip))
        .route("/disable", get(action::ask_disable).post(action::disable))
        .route("/reset", get(action::ask_reset).post(action::reset))
        .route("/retry", post(letters::retry))
        .route("/discard", post(letters::discard))
        .route("/ledger-release", get(ledger::ask_release).post(ledger::release))
        .route("/ledger-forget", get(ledger::ask_forget).post(ledger::forget))
        .route("/style.css", get(asset::style))
        .route("/live.js", get(asset::script))
        .route("/icon.svg", get(asset::icon))
        .layer(Extension(Arc::new(overview::Memory::default())))
}

/// The overview has a name of its own, so that relative links from it lead to the same places whether the site was asked for with a
/// slash at the end or without.
async fn to_overview(OriginalUri(asked): OriginalUri) -> Response {
    let path = asked.path();
    let last = path.rsplit('/').next().unwrap_or_default();
    let place = if last.is_empty() { "overview".to_owned() } else { format!("{last}/overview") };
    to(&place)
}

/// Loading the page again then sends nothing again.
fn to(place: &str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, format!("./{place}"))]).into_response()
}

pub(super) async fn not_found() -> Refused {
    Refused::new(StatusCode::NOT_FOUND, "there is no such page")
}

/// What an error of an action or a question is to whoever asked.
fn failed(error: &Error) -> Refused {
    let status = match error.kind() {
        ErrorKind::NotRegistered => StatusCode::NOT_FOUND,
        ErrorKind::Config | ErrorKind::Refused => StatusCode::BAD_REQUEST,
        ErrorKind::Precondition | ErrorKind::Busy => StatusCode::CONFLICT,
        ErrorKind::Connection | ErrorKind::Timeout => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Refused::new(status, error.report())
}

/// A link to a page about something: those fields that say something, in its query.
fn link(page: &str, fields: &[(&str, &str)]) -> String {
    let said = fields.iter().filter(|(_, value)| !value.is_empty());
    let query: Vec<String> = said.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    if query.is_empty() { page.to_owned() } else { format!("{page}?{}", query.join("&")) }
}

/// What a page is asked about, in its query.
struct Asked<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(asked)) => Ok(Self(asked)),
            Err(e) => Err(Refused::new(e.status(), e.body_text())),
        }
    }
}

/// A field of a form that was left empty is not there.
fn filled<'de, D: Deserializer<'de>, T: std::str::FromStr>(field: D) -> Result<Option<T>, D::Error>
where
    T::Err: std::fmt::Display,
{
    let text = String::deserialize(field)?;
    match text.trim() {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(serde::de::Error::custom),
    }
}

/// Is there anything in it?
fn given(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}
