//! What holds for every session of ours.

use std::time::Duration;

use tokio_postgres::Client;

use super::{deadline, sql};
use crate::error::Error;

/// Sets what every session of ours relies on. One round trip.
pub(crate) async fn prepare(client: &Client, limit: Duration) -> Result<(), Error> {
    deadline(limit, "preparing a session", client.batch_execute(sql!("session/prepare"))).await
}
