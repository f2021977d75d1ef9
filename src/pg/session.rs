//! What holds for every session of ours.

use std::time::Duration;

use tokio_postgres::Client;

use super::{deadline, sql};
use crate::error::{Error, ErrorKind};

/// Sets what every session of ours relies on. One round trip.
pub(crate) async fn prepare(client: &Client, limit: Duration) -> Result<(), Error> {
    let prepared = client.batch_execute(sql!("session/prepare"));
    deadline(limit, "preparing a session", prepared).await.map_err(|e| match e.sqlstate() {
        // An unknown setting.
        Some("42704") => Error::with_source(
            ErrorKind::Migration,
            "preparing a session: the server is too old; PostgreSQL 14 or later is needed",
            e,
        ),
        _ => e,
    })
}

/// Does the server stand by for another?
pub(crate) async fn is_standby(client: &Client) -> Result<bool, tokio_postgres::Error> {
    let rows = client.query_typed(sql!("session/is_standby"), &[]).await?;
    Ok(rows.first().is_some_and(|row| row.get("is_standby")))
}

/// What was set at the session's start, if this is the session that was started.
pub(crate) async fn mark(client: &Client) -> Result<Option<String>, tokio_postgres::Error> {
    let rows = client.query_typed(sql!("session/mark"), &[]).await?;
    Ok(rows.first().and_then(|row| row.get("mark")))
}

/// Has the server plan the session's statements once each; for sessions that run none but ours.
pub(crate) async fn plan_once(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(sql!("session/plan_once")).await
}

/// Has the server plan the session's statements once each, and find every row by its key; for sessions that run none but ours.
pub(crate) async fn look_up(client: &Client, limit: Duration) -> Result<(), Error> {
    let settings = async {
        plan_once(client).await?;
        client.batch_execute(sql!("session/look_up")).await
    };
    deadline(limit, "preparing a session", settings).await
}

/// Begins a pass's transaction.
pub(crate) async fn begin(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(sql!("session/begin")).await
}

/// Begins a transaction that only looks; no statement in it takes longer than `limit`.
#[cfg(feature = "http")]
pub(crate) async fn look(client: &Client, limit: Duration) -> Result<(), tokio_postgres::Error> {
    let begin = sql!("session/look");
    client
        .batch_execute(&format!("{begin}; SET LOCAL statement_timeout = {}", limit.as_millis().max(1)))
        .await
}

/// From here on a pass's transaction is the handlers': their statements end after `statement`, a client that fell silent
/// after `idle`, and [`back_to_guard`] undoes what they did.
pub(crate) async fn guard(
    client: &Client,
    statement: Duration,
    idle: Duration,
) -> Result<(), tokio_postgres::Error> {
    let limits = format!(
        "SET LOCAL statement_timeout = {}; SET LOCAL idle_in_transaction_session_timeout = {}; {}",
        statement.as_millis().max(1),
        idle.as_millis().max(1),
        sql!("session/guard"),
    );
    client.batch_execute(&limits).await
}

/// Undoes everything since [`guard`].
pub(crate) async fn back_to_guard(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(sql!("session/back_to_guard")).await
}

/// Checks what was deferred to the end of the transaction.
pub(crate) async fn check_constraints(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(sql!("session/check_constraints")).await
}

/// Commits the transaction.
pub(crate) async fn commit(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(sql!("session/commit")).await
}

/// Ends the transaction, and nothing of it is kept.
pub(crate) async fn roll_back(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(sql!("session/roll_back")).await
}

/// Does the session answer, and can its transaction go on?
pub(crate) async fn ask(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(sql!("session/ask")).await
}

/// The name of the transaction, which it gets by being asked.
pub(crate) async fn transaction_id(client: &Client) -> Result<String, tokio_postgres::Error> {
    Ok(client.query_one(sql!("session/transaction_id"), &[]).await?.get("transaction_id"))
}

/// Listens to the doorbell of the schema.
pub(crate) async fn listen(client: &Client, schema: &super::Schema) -> Result<(), tokio_postgres::Error> {
    let row = client.query_one(sql!("session/channel"), &[/* schema */ &schema.name()]).await?;
    let channel: &str = row.get("channel");
    client.batch_execute(&format!("LISTEN {channel}")).await
}
