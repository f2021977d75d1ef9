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

/// Begins a pass's transaction: a handler's statements end after `statement`, and a client that fell silent after `idle`.
pub(crate) fn begin(statement: Duration, idle: Duration) -> String {
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = {}; \
         SET LOCAL idle_in_transaction_session_timeout = {}",
        statement.as_millis().max(1),
        idle.as_millis().max(1),
    )
}

/// Listens to the doorbell of the schema.
pub(crate) async fn listen(client: &Client, schema: &super::Schema) -> Result<(), tokio_postgres::Error> {
    let row = client.query_one(sql!("session/channel"), &[/* schema */ &schema.name()]).await?;
    let channel: &str = row.get("channel");
    client.batch_execute(&format!("LISTEN {channel}")).await
}
