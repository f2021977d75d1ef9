//! How a person comes to a session: a token, and a name for the audit.

use axum::Extension;
use axum::extract::Query;
use axum::extract::State as Of;
use axum::http::StatusCode;
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::access::{Access, Refused, Sent, Visitor, operator_name};
use super::guard::{is_encrypted, mounted_at};
use super::page::{self, LoginPage};
use super::session::Session;
use super::{Shared, State};

#[derive(Deserialize)]
pub(super) struct Wanted {
    /// Where to go afterwards: a path below the site's root.
    #[serde(default)]
    next: String,
}

#[derive(Deserialize)]
pub(super) struct Credentials {
    #[serde(default)]
    token: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    next: String,
}

/// A form without fields of its own.
#[derive(Deserialize)]
pub(super) struct Nothing {}

pub(super) async fn form(
    Of(shared): State,
    Extension(visitor): Extension<Visitor>,
    Query(wanted): Query<Wanted>,
) -> Response {
    show(&shared, &visitor, StatusCode::OK, "", &wanted.next, None)
}

pub(super) async fn log_in(
    Of(shared): State,
    Extension(visitor): Extension<Visitor>,
    parts: Parts,
    Sent(given): Sent<Credentials>,
) -> Response {
    let again = |why| show(&shared, &visitor, StatusCode::FORBIDDEN, &given.name, &given.next, Some(why));
    let name = operator_name(&given.name);
    let access = match shared.tokens.access(given.token.trim(), name.clone()) {
        Access::None => {
            tracing::warn!("a login with a token that is none of ours was refused");
            return again("That is none of the tokens of this site.");
        }
        Access::Act { .. } if name.is_none() => {
            return again("The token lets you act: give your name, for the audit. Up to 100 characters.");
        }
        access => access,
    };
    if let Access::Act { by } = &access {
        tracing::info!(by, "logged in, and may act");
    }
    let cookie = shared.signer.cookie(&Session::of(access), &mounted_at(&parts), is_encrypted(&parts));
    let next = if given.next.is_empty() { "overview" } else { given.next.trim_start_matches('/') };
    // With the dots in front it stays below the root, whatever it is.
    to(&format!("{}{next}", visitor.root), &cookie)
}

pub(super) async fn log_out(
    Of(shared): State,
    Extension(visitor): Extension<Visitor>,
    parts: Parts,
    _: Sent<Nothing>,
) -> Response {
    // A new session of nobody in its place.
    let cookie = shared.signer.cookie(&Session::of(Access::None), &mounted_at(&parts), is_encrypted(&parts));
    to(&format!("{}login", visitor.root), &cookie)
}

fn to(place: &str, cookie: &str) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    for (name, value) in [(LOCATION, place), (SET_COOKIE, cookie)] {
        match value.parse() {
            Ok(value) => response.headers_mut().insert(name, value),
            Err(_) => return Refused::new(StatusCode::BAD_REQUEST, "that is no path").into_response(),
        };
    }
    response
}

fn show(
    shared: &Shared,
    visitor: &Visitor,
    status: StatusCode,
    name: &str,
    next: &str,
    problem: Option<&str>,
) -> Response {
    let page = LoginPage {
        root: visitor.root,
        form_token: shared.signer.form_token(&visitor.session),
        may_log_in: shared.has_login(),
        may_act_then: shared.has_act_token(),
        name,
        next,
        problem,
    };
    (status, page::login(&page)).into_response()
}
