//! Probes: is the process alive, and can it do its work?

use axum::Json;
use axum::extract::State as Of;
use axum::http::StatusCode;
use serde::Serialize;

use super::State;
use super::access::{Access, Visitor};
use crate::error::ErrorKind;

/// Whoever gets this answer has reached a living process.
pub(super) async fn alive() -> &'static str {
    "alive\n"
}

/// What `/readyz` answers.
#[derive(Debug, Serialize)]
pub(super) struct Readiness {
    ready: bool,
    reasons: Vec<String>,
}

/// Is the database reached, and does the schema fit? Errors name hosts and roles, so strangers are told their kinds only.
pub(super) async fn ready(
    Of(shared): State,
    axum::Extension(visitor): axum::Extension<Visitor>,
) -> (StatusCode, Json<Readiness>) {
    let reasons = match &*shared.sampler.readiness().await {
        Ok(()) => Vec::new(),
        Err(error) if visitor.access != Access::None => vec![error.report()],
        Err(error) => vec![in_short(error.kind()).to_owned()],
    };
    let (status, ready) = match reasons.is_empty() {
        true => (StatusCode::OK, true),
        false => (StatusCode::SERVICE_UNAVAILABLE, false),
    };
    (status, Json(Readiness { ready, reasons }))
}

fn in_short(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Migration => "the schema does not fit this version",
        ErrorKind::Connection => "the database is not reached",
        ErrorKind::Timeout => "the database does not answer in time",
        _ => "the database refuses to answer",
    }
}
