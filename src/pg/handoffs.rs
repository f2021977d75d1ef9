//! Statements on `handoffs`.

use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{Schema, sql};

type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// Who has an event.
pub(crate) struct Taken {
    pub(crate) key: Uuid,
    /// `direct` or `delivery`.
    pub(crate) taken_by: String,
    /// The direct path has run it.
    pub(crate) ran: bool,
}

impl Taken {
    fn from_row(row: &Row) -> Self {
        Self { key: row.get("key"), taken_by: row.get("taken_by"), ran: row.get("ran") }
    }
}

/// What a sweep came to.
pub(crate) struct Swept {
    pub(crate) deleted: i64,
    pub(crate) unfinished: i64,
}

/// One row for each different key.
pub(crate) async fn take(
    client: &ClientWrapper,
    schema: &Schema,
    scope: &str,
    taken_by: &str,
    keys: &[Uuid],
) -> Result<Vec<Taken>> {
    let statement = client.prepare_cached(&schema.sql(sql!("handoffs/take"))).await?;
    let rows =
        client.query(&statement, &[/* scope */ &scope, /* taken_by */ &taken_by, /* keys */ &keys]).await?;
    Ok(rows.iter().map(Taken::from_row).collect())
}

/// One row for each different key.
pub(crate) async fn ran(
    client: &ClientWrapper,
    schema: &Schema,
    scope: &str,
    keys: &[Uuid],
) -> Result<Vec<Taken>> {
    let statement = client.prepare_cached(&schema.sql(sql!("handoffs/ran"))).await?;
    let rows = client.query(&statement, &[/* scope */ &scope, /* keys */ &keys]).await?;
    Ok(rows.iter().map(Taken::from_row).collect())
}

pub(crate) async fn unfinished(
    client: &ClientWrapper,
    schema: &Schema,
    scope: &str,
    older_than: Duration,
    limit: i64,
) -> Result<Vec<Uuid>> {
    let statement = client.prepare_cached(&schema.sql(sql!("handoffs/unfinished"))).await?;
    let seconds = older_than.as_secs_f64();
    let rows = client
        .query(&statement, &[/* scope */ &scope, /* older than */ &seconds, /* limit */ &limit])
        .await?;
    Ok(rows.iter().map(|row| row.get("key")).collect())
}

pub(crate) async fn sweep(
    client: &ClientWrapper,
    schema: &Schema,
    scope: &str,
    keep: Duration,
    keep_deliveries: Duration,
    limit: i64,
) -> Result<Swept> {
    let statement = client.prepare_cached(&schema.sql(sql!("handoffs/sweep"))).await?;
    let row = client
        .query_one(
            &statement,
            &[
                /* scope */ &scope,
                /* keep */ &keep.as_secs_f64(),
                /* keep_deliveries */ &keep_deliveries.as_secs_f64(),
                /* limit */ &limit,
            ],
        )
        .await?;
    Ok(Swept { deleted: row.get("deleted"), unfinished: row.get("unfinished") })
}
