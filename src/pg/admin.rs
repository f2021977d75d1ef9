//! The functions of operators, as statements.

use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use time::OffsetDateTime;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
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

/// What a reset may do.
#[derive(Clone, Debug)]
pub(crate) struct ResetTerms {
    pub(crate) accept_pruned: bool,
    pub(crate) repeat_effects: bool,
    pub(crate) max_effects: i32,
}

pub(crate) async fn reset(
    client: &ClientWrapper,
    schema: &Schema,
    action: &Action<'_>,
    to_place: &str,
    terms: &ResetTerms,
) -> Result<Vec<Row>> {
    let [consumer, instance, partition, by, why, force] = common(action);
    let params: [Param<'_>; 10] = [
        consumer,
        instance,
        partition,
        by,
        why,
        force,
        /* to_place */ &to_place,
        /* accept_pruned */ &terms.accept_pruned,
        /* repeat_effects */ &terms.repeat_effects,
        /* max_effects */ &terms.max_effects,
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

/// The most state rows of a consumer that are shown with all that is known of them.
const MOST_ROWS: i32 = 100;
/// How many bytes the events at which they failed may take, as stored.
const EVENTS_BUDGET: i64 = 8 * 1024 * 1024;
/// The most processes.
const MOST_INSTANCES: i32 = 1_000;

pub(crate) async fn consumer_rows(
    client: &ClientWrapper,
    schema: &Schema,
    consumer: &str,
    instance: &str,
    partition: Option<i32>,
) -> Result<Vec<Row>> {
    let instance = Some(instance).filter(|instance| !instance.is_empty());
    let which: [Param<'_>; 4] = [
        /* consumer */ &consumer, /* instance */ &instance, /* partition */ &partition,
        /* max_rows */ &MOST_ROWS,
    ];
    let [consumer, instance, partition, max_rows] = which;
    let params = [consumer, instance, partition, max_rows, /* budget */ &EVENTS_BUDGET];
    match query(client, schema, sql!("admin/consumer_rows"), &params).await {
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            query(client, schema, sql!("admin/consumer_rows_alone"), &which).await
        }
        answer => answer,
    }
}

pub(crate) async fn list_instances(client: &ClientWrapper, schema: &Schema) -> Result<Vec<Row>> {
    query(client, schema, sql!("admin/list_instances"), &[/* max_rows */ &MOST_INSTANCES]).await
}

/// Which actions of operators.
pub(crate) struct Done<'a> {
    pub(crate) consumer: Option<&'a str>,
    pub(crate) instance: Option<&'a str>,
    pub(crate) action: Option<&'a str>,
    pub(crate) by: Option<&'a str>,
    pub(crate) limit: i32,
    pub(crate) before: Option<i64>,
}

pub(crate) async fn audit_rows(
    client: &ClientWrapper,
    schema: &Schema,
    which: &Done<'_>,
) -> Result<Vec<Row>> {
    let params: [Param<'_>; 6] = [
        /* consumer */ &which.consumer,
        /* instance */ &which.instance,
        /* action */ &which.action,
        /* done_by */ &which.by,
        /* max_rows */ &which.limit,
        /* before_id */ &which.before,
    ];
    query(client, schema, sql!("admin/audit_rows"), &params).await
}

pub(crate) async fn trace_back(
    client: &ClientWrapper,
    schema: &Schema,
    of_event: Uuid,
    limit: usize,
) -> Result<Vec<Row>> {
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let params: [Param<'_>; 2] = [/* of_event */ &of_event, /* max_events */ &limit];
    query(client, schema, sql!("admin/trace_back"), &params).await
}

/// The id at which a part of the log ends that has so many events; `to` where there are fewer.
pub(crate) async fn part_end(
    client: &ClientWrapper,
    schema: &Schema,
    after: i64,
    to: i64,
    events: i64,
) -> Result<i64> {
    let params: [Param<'_>; 3] = [/* after */ &after, /* to */ &to, /* events */ &events];
    let rows = query(client, schema, sql!("admin/part_end"), &params).await?;
    Ok(rows.first().map_or(to, |row| row.get("id")))
}

/// A part of the log, in which to look for what followed.
pub(crate) struct Part<'a> {
    pub(crate) event_ids: &'a [Uuid],
    pub(crate) correlation: Option<Uuid>,
    pub(crate) after: i64,
    pub(crate) to: i64,
    pub(crate) limit: usize,
}

pub(crate) async fn trace_forward(
    client: &ClientWrapper,
    schema: &Schema,
    part: &Part<'_>,
) -> Result<Vec<Row>> {
    let limit = i32::try_from(part.limit).unwrap_or(i32::MAX);
    let params: [Param<'_>; 5] = [
        /* event_ids */ &part.event_ids,
        /* correlation */ &part.correlation,
        /* after_id */ &part.after,
        /* to_id */ &part.to,
        /* max_events */ &limit,
    ];
    query(client, schema, sql!("admin/trace_forward"), &params).await
}

pub(crate) async fn not_there(
    client: &ClientWrapper,
    schema: &Schema,
    event_ids: &[Uuid],
) -> Result<Vec<Uuid>> {
    let rows = query(client, schema, sql!("admin/not_there"), &[/* event_ids */ &event_ids]).await?;
    Ok(rows.iter().map(|row| row.get("event_id")).collect())
}

pub(crate) async fn log_progress(client: &ClientWrapper, schema: &Schema) -> Result<Row> {
    let statement = schema.prepare(client, sql!("admin/log_progress")).await?;
    statement.query_one(client, &[]).await
}

pub(crate) async fn blockers(client: &ClientWrapper, schema: &Schema) -> Result<Vec<Row>> {
    query(client, schema, sql!("admin/blockers"), &[]).await
}

pub(crate) async fn roles(client: &ClientWrapper, schema: &Schema) -> Result<Vec<Row>> {
    query(client, schema, sql!("admin/roles"), &[]).await
}

pub(crate) async fn create_roles(client: &ClientWrapper, schema: &Schema) -> Result<Vec<Row>> {
    query(client, schema, sql!("admin/create_roles"), &[]).await
}

pub(crate) async fn doctor(
    client: &ClientWrapper,
    schema: &Schema,
    patience: Duration,
    notifications: f64,
) -> Result<Vec<Row>> {
    let params: [&(dyn ToSql + Sync); 2] =
        [/* patience */ &patience.as_secs_f64(), /* notifications */ &notifications];
    query(client, schema, sql!("admin/doctor"), &params).await
}

pub(crate) async fn seen_from_here(client: &ClientWrapper, schema: &Schema) -> Result<Row> {
    let statement = schema.prepare(client, sql!("admin/seen_from_here")).await?;
    statement.query_one(client, &[]).await
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
    let statement = schema.prepare(client, sql!("admin/prune")).await?;
    statement
        .query_one(
            client,
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

/// Which dead letters.
pub(crate) struct Fitting<'a> {
    pub(crate) consumer: Option<&'a str>,
    pub(crate) instance: Option<&'a str>,
    pub(crate) event_type: Option<&'a str>,
    pub(crate) reason: Option<&'a str>,
    pub(crate) error: Option<&'a str>,
    pub(crate) state: Option<&'a str>,
    pub(crate) after: i64,
    pub(crate) up_to: Option<i64>,
    pub(crate) limit: i32,
    pub(crate) stop_at: Option<OffsetDateTime>,
}

pub(crate) async fn dead_letters(
    client: &ClientWrapper,
    schema: &Schema,
    which: &Fitting<'_>,
) -> Result<Vec<Row>> {
    let params: [Param<'_>; 9] = [
        /* consumer */ &which.consumer,
        /* state */ &which.state,
        /* max_rows */ &which.limit,
        /* after_id */ &which.after,
        /* instance */ &which.instance,
        /* event_type */ &which.event_type,
        /* reason */ &which.reason,
        /* error */ &which.error,
        /* to_id */ &which.up_to,
    ];
    query(client, schema, sql!("admin/dead_letters"), &params).await
}

/// What becomes of dead letters.
#[derive(Clone, Copy)]
pub(crate) enum Settling {
    Retry,
    Discard,
}

pub(crate) async fn settle_dead_letters(
    client: &ClientWrapper,
    schema: &Schema,
    settling: Settling,
    which: &Fitting<'_>,
    note: Note<'_>,
) -> Result<Row> {
    let statement = match settling {
        Settling::Retry => sql!("admin/retry_dead_letters"),
        Settling::Discard => sql!("admin/discard_dead_letters"),
    };
    let statement = schema.prepare(client, statement).await?;
    statement
        .query_one(
            client,
            &[
                /* consumer */ &which.consumer,
                /* instance */ &which.instance,
                /* event_type */ &which.event_type,
                /* reason */ &which.reason,
                /* error */ &which.error,
                /* from_id */ &which.after.saturating_add(1),
                /* to_id */ &which.up_to,
                /* state */ &which.state,
                /* max_letters */ &which.limit,
                /* stop_at */ &which.stop_at,
                /* by */ &note.by,
                /* why */ &note.why,
            ],
        )
        .await
}

/// `None` only for a role that may not read payloads, and is not told by the function that there is no such letter.
pub(crate) async fn dead_letter(client: &ClientWrapper, schema: &Schema, id: i64) -> Result<Option<Row>> {
    let of = async |statement| {
        let statement = schema.prepare(client, statement).await?;
        statement.query_opt(client, &[/* letter_id */ &id]).await
    };
    match of(sql!("admin/dead_letter")).await {
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            of(sql!("admin/dead_letter_alone")).await
        }
        answer => answer,
    }
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

/// Which rows of the ledger.
pub(crate) struct Entries<'a> {
    pub(crate) key: Option<Uuid>,
    pub(crate) handler: Option<&'a str>,
    pub(crate) status: Option<&'a str>,
    pub(crate) limit: i32,
    pub(crate) after: Option<&'a (Uuid, String)>,
}

pub(crate) async fn ledger_rows(
    client: &ClientWrapper,
    schema: &Schema,
    which: &Entries<'_>,
) -> Result<Vec<Row>> {
    let params: [Param<'_>; 6] = [
        /* key */ &which.key,
        /* handler */ &which.handler,
        /* status */ &which.status,
        /* max_rows */ &which.limit,
        /* after_key */ &which.after.map(|after| after.0),
        /* after_handler */ &which.after.map(|after| &after.1),
    ];
    query(client, schema, sql!("admin/ledger_rows"), &params).await
}

pub(crate) async fn ledger_release(
    client: &ClientWrapper,
    schema: &Schema,
    key: Uuid,
    handler: &str,
    note: Note<'_>,
    force: bool,
) -> Result<Vec<Row>> {
    let params: [Param<'_>; 5] = [
        /* key */ &key, /* handler */ &handler, /* by */ &note.by, /* why */ &note.why,
        /* force */ &force,
    ];
    query(client, schema, sql!("admin/ledger_release"), &params).await
}

pub(crate) async fn ledger_forget(
    client: &ClientWrapper,
    schema: &Schema,
    key: Uuid,
    handler: &str,
    note: Note<'_>,
) -> Result<Vec<Row>> {
    let params: [Param<'_>; 4] =
        [/* key */ &key, /* handler */ &handler, /* by */ &note.by, /* why */ &note.why];
    query(client, schema, sql!("admin/ledger_forget"), &params).await
}

/// How many rows were forgotten, and whether the walk through the table goes on.
pub(crate) async fn ledger_prune(
    client: &ClientWrapper,
    schema: &Schema,
    older_than: Duration,
    note: Note<'_>,
) -> Result<(i64, bool)> {
    let statement = schema.prepare(client, sql!("admin/ledger_prune")).await?;
    let older_than = older_than.as_secs_f64();
    let row = statement
        .query_one(client, &[/* older_than */ &older_than, /* by */ &note.by, /* why */ &note.why])
        .await?;
    Ok((row.get("deleted"), row.get("more")))
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
    let statement = schema.prepare(client, statement).await?;
    statement.query(client, params).await
}
