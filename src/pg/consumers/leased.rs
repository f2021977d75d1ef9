//! Statements on a row of `consumers` that is leased, and on the claims of what is run for it.

use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use time::OffsetDateTime;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{Key, Result, Settlement};
use crate::pg::dead_letters::DeadLetter;
use crate::pg::ledger::sorted;
use crate::pg::{Schema, sql};

/// Leases a row for what is run outside of any transaction. `None` when there is no such row, somebody else has it, or there is
/// nothing to do; otherwise the token that every later write names.
pub(crate) async fn lease(
    client: &ClientWrapper,
    schema: &Schema,
    key: &Key,
    process: Uuid,
    revision: i32,
    head: i64,
    lease: Duration,
) -> Result<Option<i64>> {
    let statement = schema.prepare(client, sql!("consumers/lease")).await?;
    let row = statement
        .query_opt(
            client,
            &[
                /* consumer */ &key.name,
                /* instance */ &key.instance,
                /* partition */ &key.partition,
                /* process */ &process,
                /* revision */ &revision,
                /* head */ &head,
                /* lease */ &lease.as_secs_f64(),
            ],
        )
        .await?;
    Ok(row.map(|row| row.get(0)))
}

/// A leased row, and what is being run for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeasedWork<'a> {
    pub(crate) key: &'a Key,
    pub(crate) lease_token: i64,
    pub(crate) handler: &'a str,
    /// Of the claims, by event.
    pub(crate) claims: &'a [(Uuid, i64)],
}

/// Renews the lease of the row and of the claims. Is the row still held, and how many of the claims?
pub(crate) async fn renew(
    client: &ClientWrapper,
    schema: &Schema,
    work: LeasedWork<'_>,
    lease: Duration,
) -> Result<(bool, usize)> {
    let (event_ids, tokens) = sorted(work.claims);
    let statement = schema.prepare(client, sql!("consumers/renew")).await?;
    let row = statement
        .query_one(
            client,
            &[
                /* consumer */ &work.key.name,
                /* instance */ &work.key.instance,
                /* partition */ &work.key.partition,
                /* lease_token */ &work.lease_token,
                /* lease */ &lease.as_secs_f64(),
                /* handler */ &work.handler,
                /* event_ids */ &event_ids,
                /* tokens */ &tokens,
            ],
        )
        .await?;
    Ok((row.get("row_held"), usize::try_from(row.get::<_, i64>("claims_held")).unwrap_or(0)))
}

/// What claims are from now on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClaimsTo {
    pub(crate) status: &'static str,
    /// To be added.
    pub(crate) attempts: i32,
}

/// What settling leased work answered.
#[derive(Debug)]
pub(crate) struct SettledLease {
    /// Claims that were still ours.
    pub(crate) settled: usize,
    /// Was the row still ours?
    pub(crate) moved: bool,
    pub(crate) next_attempt_at: Option<OffsetDateTime>,
}

impl SettledLease {
    fn of(row: &Row) -> Self {
        Self {
            settled: usize::try_from(row.get::<_, i64>("settled")).unwrap_or(0),
            moved: row.get("moved"),
            next_attempt_at: None,
        }
    }
}

/// Settles claims, the row, and the dead letter of an event that is passed over, together; `keep` holds the lease on.
pub(crate) async fn settle(
    client: &ClientWrapper,
    schema: &Schema,
    work: LeasedWork<'_>,
    to: &Settlement,
    claims_to: ClaimsTo,
    letter: Option<&DeadLetter<'_>>,
    keep: bool,
) -> Result<SettledLease> {
    let (event_ids, tokens) = sorted(work.claims);
    let statement = schema.prepare(client, sql!("consumers/settle_leased")).await?;
    let row = statement
        .query_one(
            client,
            &[
                /* consumer */ &work.key.name,
                /* instance */ &work.key.instance,
                /* partition */ &work.key.partition,
                /* lease_token */ &work.lease_token,
                /* position */ &to.position,
                /* status */ &to.status,
                /* attempts */ &to.attempts,
                /* faults */ &to.faults,
                /* rearms */ &to.rearms,
                /* due_in */ &to.due_in.map(|d| d.as_secs_f64()),
                /* failed_event_id */ &to.failed_event_id,
                /* last_error */ &to.last_error,
                /* processed */ &to.processed,
                /* failed */ &to.failed,
                /* skipped */ &to.skipped,
                /* keep */ &keep,
                /* handler */ &work.handler,
                /* event_ids */ &event_ids,
                /* tokens */ &tokens,
                /* claim_status */ &claims_to.status,
                /* claim_attempts */ &claims_to.attempts,
                /* letter_position */ &letter.map(|l| l.event.id()),
                /* letter_event_id */ &letter.map(|l| l.event.event_id()),
                /* letter_event_type */ &letter.map(|l| l.event.event_type()),
                /* letter_attempts */ &letter.map(|l| l.attempts),
                /* letter_reason */ &letter.map(|l| l.reason),
            ],
        )
        .await?;
    Ok(SettledLease { next_attempt_at: row.get("next_attempt_at"), ..SettledLease::of(&row) })
}

/// Settles claims as done, and moves the row on; the lease is held on.
pub(crate) async fn move_on(
    client: &ClientWrapper,
    schema: &Schema,
    work: LeasedWork<'_>,
    position: i64,
    processed: i64,
) -> Result<SettledLease> {
    let (event_ids, tokens) = sorted(work.claims);
    let statement = schema.prepare(client, sql!("consumers/move_leased")).await?;
    let row = statement
        .query_one(
            client,
            &[
                /* consumer */ &work.key.name,
                /* instance */ &work.key.instance,
                /* partition */ &work.key.partition,
                /* lease_token */ &work.lease_token,
                /* position */ &position,
                /* processed */ &processed,
                /* handler */ &work.handler,
                /* event_ids */ &event_ids,
                /* tokens */ &tokens,
            ],
        )
        .await?;
    Ok(SettledLease::of(&row))
}

/// Lets others have the row, and releases the claims.
pub(crate) async fn give_back(client: &ClientWrapper, schema: &Schema, work: LeasedWork<'_>) -> Result<()> {
    let (event_ids, tokens) = sorted(work.claims);
    let statement = schema.prepare(client, sql!("consumers/give_lease_back")).await?;
    statement
        .execute(
            client,
            &[
                /* consumer */ &work.key.name,
                /* instance */ &work.key.instance,
                /* partition */ &work.key.partition,
                /* lease_token */ &work.lease_token,
                /* handler */ &work.handler,
                /* event_ids */ &event_ids,
                /* tokens */ &tokens,
            ],
        )
        .await?;
    Ok(())
}
