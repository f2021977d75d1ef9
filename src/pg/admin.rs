//! The functions of operators, as statements.

use deadpool_postgres::ClientWrapper;
use time::OffsetDateTime;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{Schema, sql};

type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// What the actions on a consumer have in common.
pub(crate) struct Action<'a> {
    pub(crate) consumer: &'a str,
    pub(crate) instance: &'a str,
    /// `None`: every partition.
    pub(crate) partition: Option<i32>,
    pub(crate) note: Note<'a>,
    /// Terminate who holds the rows.
    pub(crate) force: bool,
}

/// What the audit row says of an action.
#[derive(Clone, Copy)]
pub(crate) struct Note<'a> {
    pub(crate) by: Option<&'a str>,
    pub(crate) why: Option<&'a str>,
}

/// Actions that need to know no more than what they are done to.
#[derive(Clone, Copy)]
pub(crate) enum Verb {
    Restart,
    Disable,
    Enable,
    AcceptPruned,
}

pub(crate) async fn act(
    client: &ClientWrapper,
    schema: &Schema,
    verb: Verb,
    action: &Action<'_>,
) -> Result<Vec<Row>> {
    let statement = match verb {
        Verb::Restart => sql!("admin/restart"),
        Verb::Disable => sql!("admin/disable"),
        Verb::Enable => sql!("admin/enable"),
        Verb::AcceptPruned => sql!("admin/accept_pruned"),
    };
    query(client, schema, statement, &common(action)).await
}

pub(crate) async fn skip_poison(
    client: &ClientWrapper,
    schema: &Schema,
    action: &Action<'_>,
    expected_event_id: Uuid,
) -> Result<Vec<Row>> {
    let [consumer, instance, partition, by, why, force] = common(action);
    let params =
        [consumer, instance, partition, by, why, force, /* expected_event_id */ &expected_event_id];
    query(client, schema, sql!("admin/skip_poison"), &params).await
}

pub(crate) async fn reset(
    client: &ClientWrapper,
    schema: &Schema,
    action: &Action<'_>,
    to_place: &str,
    accept_pruned: bool,
) -> Result<Vec<Row>> {
    let [consumer, instance, partition, by, why, force] = common(action);
    let params: [Param<'_>; 8] = [
        consumer,
        instance,
        partition,
        by,
        why,
        force,
        /* to_place */ &to_place,
        /* accept_pruned */ &accept_pruned,
    ];
    query(client, schema, sql!("admin/reset"), &params).await
}

pub(crate) async fn unregister(
    client: &ClientWrapper,
    schema: &Schema,
    action: &Action<'_>,
) -> Result<Vec<Row>> {
    let [consumer, instance, _, by, why, force] = common(action);
    query(client, schema, sql!("admin/unregister"), &[consumer, instance, by, why, force]).await
}

pub(crate) async fn repartition(
    client: &ClientWrapper,
    schema: &Schema,
    action: &Action<'_>,
    partitions: i32,
) -> Result<Vec<Row>> {
    let [consumer, instance, _, by, why, force] = common(action);
    let params: [Param<'_>; 6] = [consumer, instance, by, why, force, /* partitions */ &partitions];
    query(client, schema, sql!("admin/repartition"), &params).await
}

pub(crate) async fn progress(
    client: &ClientWrapper,
    schema: &Schema,
    consumer: Option<&str>,
) -> Result<Vec<Row>> {
    query(client, schema, sql!("admin/progress"), &[/* consumer */ &consumer]).await
}

pub(crate) async fn log_progress(client: &ClientWrapper, schema: &Schema) -> Result<Row> {
    let statement = client.prepare_cached(&schema.sql(sql!("admin/log_progress"))).await?;
    client.query_one(&statement, &[]).await
}

pub(crate) async fn blockers(client: &ClientWrapper, schema: &Schema) -> Result<Vec<Row>> {
    query(client, schema, sql!("admin/blockers"), &[]).await
}

/// What may go in a step of prune.
pub(crate) struct Step<'a> {
    pub(crate) before: OffsetDateTime,
    pub(crate) types: Option<&'a [String]>,
    pub(crate) dry_run: bool,
    pub(crate) max_events: i32,
}

pub(crate) async fn prune(
    client: &ClientWrapper,
    schema: &Schema,
    step: &Step<'_>,
    note: Note<'_>,
) -> Result<Row> {
    let statement = client.prepare_cached(&schema.sql(sql!("admin/prune"))).await?;
    client
        .query_one(
            &statement,
            &[
                /* before */ &step.before,
                /* types */ &step.types,
                /* dry_run */ &step.dry_run,
                /* max_events */ &step.max_events,
                /* by */ &note.by,
                /* why */ &note.why,
            ],
        )
        .await
}

pub(crate) async fn dead_letters(
    client: &ClientWrapper,
    schema: &Schema,
    consumer: Option<&str>,
    state: Option<&str>,
    max_rows: i32,
    after_id: i64,
) -> Result<Vec<Row>> {
    let params: [Param<'_>; 4] = [
        /* consumer */ &consumer, /* state */ &state, /* max_rows */ &max_rows,
        /* after_id */ &after_id,
    ];
    query(client, schema, sql!("admin/dead_letters"), &params).await
}

pub(crate) async fn dead_letter(client: &ClientWrapper, schema: &Schema, id: i64) -> Result<Row> {
    let statement = client.prepare_cached(&schema.sql(sql!("admin/dead_letter"))).await?;
    client.query_one(&statement, &[/* letter_id */ &id]).await
}

pub(crate) async fn retry_dead_letter(
    client: &ClientWrapper,
    schema: &Schema,
    id: i64,
    note: Note<'_>,
) -> Result<Vec<Row>> {
    let params: [Param<'_>; 3] = [/* letter_id */ &id, /* by */ &note.by, /* why */ &note.why];
    query(client, schema, sql!("admin/retry_dead_letter"), &params).await
}

pub(crate) async fn discard_dead_letter(
    client: &ClientWrapper,
    schema: &Schema,
    id: i64,
    note: Note<'_>,
) -> Result<Vec<Row>> {
    let params: [Param<'_>; 3] = [/* letter_id */ &id, /* by */ &note.by, /* why */ &note.why];
    query(client, schema, sql!("admin/discard_dead_letter"), &params).await
}

type Param<'a> = &'a (dyn ToSql + Sync);

fn common<'a>(action: &'a Action<'_>) -> [Param<'a>; 6] {
    [
        /* consumer */ &action.consumer,
        /* instance */ &action.instance,
        /* partition */ &action.partition,
        /* by */ &action.note.by,
        /* why */ &action.note.why,
        /* force */ &action.force,
    ]
}

async fn query(
    client: &ClientWrapper,
    schema: &Schema,
    statement: &'static str,
    params: &[Param<'_>],
) -> Result<Vec<Row>> {
    let statement = client.prepare_cached(&schema.sql(statement)).await?;
    client.query(&statement, params).await
}
