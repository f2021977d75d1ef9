//! Statements on `handoffs`.

use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use tokio_postgres::Row;
use uuid::Uuid;

use super::admin::Note;
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
    /// How long ago the oldest of them was taken.
    pub(crate) oldest_unfinished: Duration,
}

/// Which hand-offs.
pub(crate) struct Fitting<'a> {
    pub(crate) key: Option<Uuid>,
    pub(crate) scope: Option<&'a str>,
    pub(crate) state: Option<&'a str>,
    pub(crate) older_than: Option<Duration>,
    pub(crate) limit: i32,
    pub(crate) after: Option<&'a (String, Uuid)>,
}

/// Longer than that the server's calendar does not reach.
const LONGEST: f64 = 36_500.0 * 86_400.0;

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64().min(LONGEST)
}

/// One row for each different key.
pub(crate) async fn take(
    client: &ClientWrapper,
    schema: &Schema,
    scope: &str,
    taken_by: &str,
    keys: &[Uuid],
) -> Result<Vec<Taken>> {
    let statement = schema.prepare(client, sql!("handoffs/take")).await?;
    let rows =
        statement.query(client, &[/* scope */ &scope, /* taken_by */ &taken_by, /* keys */ &keys]).await?;
    Ok(rows.iter().map(Taken::from_row).collect())
}

/// One row for each different key.
pub(crate) async fn ran(
    client: &ClientWrapper,
    schema: &Schema,
    scope: &str,
    keys: &[Uuid],
) -> Result<Vec<Taken>> {
    let statement = schema.prepare(client, sql!("handoffs/ran")).await?;
    let rows = statement.query(client, &[/* scope */ &scope, /* keys */ &keys]).await?;
    Ok(rows.iter().map(Taken::from_row).collect())
}

pub(crate) async fn unfinished(
    client: &ClientWrapper,
    schema: &Schema,
    scope: &str,
    older_than: Duration,
    limit: i64,
) -> Result<Vec<Uuid>> {
    let statement = schema.prepare(client, sql!("handoffs/unfinished")).await?;
    let older_than = seconds(older_than);
    let rows = statement
        .query(client, &[/* scope */ &scope, /* older than */ &older_than, /* limit */ &limit])
        .await?;
    Ok(rows.iter().map(|row| row.get("key")).collect())
}

/// Says how long rows are kept.
pub(crate) async fn keep(
    client: &ClientWrapper,
    schema: &Schema,
    scope: &str,
    keep: Duration,
    keep_deliveries: Duration,
) -> Result<()> {
    let statement = schema.prepare(client, sql!("handoffs/keep")).await?;
    let (keep, keep_deliveries) = (seconds(keep), seconds(keep_deliveries));
    statement
        .execute(client, &[/* scope */ &scope, /* keep */ &keep, /* keep_deliveries */ &keep_deliveries])
        .await?;
    Ok(())
}

pub(crate) async fn sweep(client: &ClientWrapper, schema: &Schema, scope: &str, limit: i32) -> Result<Swept> {
    let statement = schema.prepare(client, sql!("handoffs/sweep")).await?;
    let row = statement.query_one(client, &[/* scope */ &scope, /* limit */ &limit]).await?;
    // The clock may have been set back.
    let oldest_unfinished = Duration::try_from_secs_f64(row.get("oldest_unfinished")).unwrap_or_default();
    Ok(Swept { deleted: row.get("deleted"), unfinished: row.get("unfinished"), oldest_unfinished })
}

pub(crate) async fn rows(client: &ClientWrapper, schema: &Schema, which: &Fitting<'_>) -> Result<Vec<Row>> {
    let statement = schema.prepare(client, sql!("admin/handoff_rows")).await?;
    statement
        .query(
            client,
            &[
                /* key */ &which.key,
                /* scope */ &which.scope,
                /* state */ &which.state,
                /* older_than */ &which.older_than.map(seconds),
                /* max_rows */ &which.limit,
                /* after_scope */ &which.after.map(|after| &after.0),
                /* after_key */ &which.after.map(|after| after.1),
            ],
        )
        .await
}

pub(crate) async fn forget(
    client: &ClientWrapper,
    schema: &Schema,
    scope: &str,
    key: Uuid,
    note: Note<'_>,
    force: bool,
) -> Result<Vec<Row>> {
    let statement = schema.prepare(client, sql!("admin/handoff_forget")).await?;
    statement
        .query(
            client,
            &[
                /* scope */ &scope, /* key */ &key, /* by */ &note.by,
                /* why */ &note.why, /* force */ &force,
            ],
        )
        .await
}

pub(crate) async fn forget_fitting(
    client: &ClientWrapper,
    schema: &Schema,
    which: &Fitting<'_>,
    note: Note<'_>,
    force: bool,
) -> Result<Row> {
    let statement = schema.prepare(client, sql!("admin/handoffs_forget")).await?;
    statement
        .query_one(
            client,
            &[
                /* scope */ &which.scope,
                /* state */ &which.state,
                /* older_than */ &which.older_than.map(seconds),
                /* max_rows */ &which.limit,
                /* after_scope */ &which.after.map(|after| &after.0),
                /* after_key */ &which.after.map(|after| after.1),
                /* by */ &note.by,
                /* why */ &note.why,
                /* force */ &force,
            ],
        )
        .await
}

/// How many rows went, and whether there are more that may.
pub(crate) async fn prune(
    client: &ClientWrapper,
    schema: &Schema,
    scope: Option<&str>,
    older_than: Option<Duration>,
    note: Note<'_>,
) -> Result<(i64, bool)> {
    let statement = schema.prepare(client, sql!("admin/handoff_prune")).await?;
    let older_than = older_than.map(seconds);
    let row = statement
        .query_one(
            client,
            &[
                /* scope */ &scope,
                /* older_than */ &older_than,
                /* by */ &note.by,
                /* why */ &note.why,
            ],
        )
        .await?;
    Ok((row.get("deleted"), row.get("more")))
}

/// How many events the direct path took and has not run, by scope; 10,000 at most.
#[cfg(feature = "http")]
pub(crate) async fn count_unfinished(
    client: &ClientWrapper,
    schema: &Schema,
) -> Result<Vec<(String, i64, f64)>> {
    let statement = schema.prepare(client, sql!("handoffs/count_unfinished")).await?;
    let rows = statement.query(client, &[]).await?;
    Ok(rows.iter().map(|r| (r.get(0), r.get(1), r.get(2))).collect())
}
