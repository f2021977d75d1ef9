//! Statements on `consumers`.

use std::fmt;
use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::dead_letters::DeadLetter;
use super::{Schema, sql};

type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// Names a state row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) instance: String,
    pub(crate) partition: i32,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if !self.instance.is_empty() {
            write!(f, "@{}", self.instance)?;
        }
        if self.partition > 0 {
            write!(f, "/{}", self.partition)?;
        }
        Ok(())
    }
}

/// What is registered.
pub(crate) struct Registration<'a> {
    pub(crate) key: &'a Key,
    pub(crate) kind: &'static str,
    pub(crate) revision: i32,
    pub(crate) event_types: Option<&'a [String]>,
    pub(crate) partitions: i32,
    pub(crate) max_attempts: i32,
    pub(crate) start_after: i64,
    /// Where a row that had expired goes on; `None` for where it was.
    pub(crate) rejoin_at: Option<i64>,
}

/// What came of it, in the words of the SQL function.
pub(crate) struct Registered {
    pub(crate) outcome: String,
    pub(crate) revision: i32,
    pub(crate) was: Option<String>,
    pub(crate) position: i64,
}

pub(crate) async fn register(
    client: &Client,
    schema: &Schema,
    what: &Registration<'_>,
) -> Result<Registered> {
    let params: [&(dyn ToSql + Sync); 10] = [
        /* consumer */ &what.key.name,
        /* instance */ &what.key.instance,
        /* partition */ &what.key.partition,
        /* kind */ &what.kind,
        /* revision */ &what.revision,
        /* event_types */ &what.event_types,
        /* partitions */ &what.partitions,
        /* max_attempts */ &what.max_attempts,
        /* start_after */ &what.start_after,
        /* rejoin_at */ &what.rejoin_at,
    ];
    let row = client.query_one(&*schema.sql(sql!("consumers/register")), &params).await?;
    Ok(Registered {
        outcome: row.get("outcome"),
        revision: row.get("registered"),
        was: row.get("was"),
        position: row.get("was_position"),
    })
}

/// A state row that we hold.
#[derive(Clone, Debug)]
pub(crate) struct Locked {
    /// The name of the transaction that holds it.
    pub(crate) transaction_id: String,
    /// The pid of our session.
    pub(crate) backend: i32,
    pub(crate) epoch: Option<Uuid>,
    pub(crate) position: i64,
    pub(crate) revision: i32,
    /// Who wrote the row last, as the server names it; see [`Settled`].
    pub(crate) written_by: String,
}

/// How a state row stood when, or right after, its lock was asked for.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// Do we hold it?
    pub(crate) is_locked: bool,
    pub(crate) position: i64,
    pub(crate) status: String,
    pub(crate) attempts: i32,
    pub(crate) faults: i32,
    pub(crate) rearms: i32,
    pub(crate) revision: i32,
    pub(crate) failed_event_id: Option<Uuid>,
    /// The id of that event.
    pub(crate) failed_at: Option<i64>,
    pub(crate) last_error: Option<String>,
    pub(crate) next_attempt_at: Option<OffsetDateTime>,
    /// Until the next attempt is due; `None` when nothing waits.
    pub(crate) due_in: Option<Duration>,
    /// Unread events that are gone.
    pub(crate) pruned: Option<(i64, i64)>,
    /// A dead letter that is to be retried.
    pub(crate) retry: Option<i64>,
    pub(crate) epoch: Option<Uuid>,
}

impl State {
    /// A row that is held, and nothing is special about it.
    pub(crate) fn plain(locked: &Locked) -> Self {
        Self {
            is_locked: true,
            position: locked.position,
            status: "idle".to_owned(),
            attempts: 0,
            faults: 0,
            rearms: 0,
            revision: locked.revision,
            failed_event_id: None,
            failed_at: None,
            last_error: None,
            next_attempt_at: None,
            due_in: None,
            pruned: None,
            retry: None,
            epoch: locked.epoch,
        }
    }

    /// Is it as it was, whoever holds it?
    pub(crate) fn stands_as(&self, before: &Self) -> bool {
        let fence = |s: &Self| (s.epoch, s.position, s.attempts, s.faults, s.rearms, s.revision, s.retry);
        fence(self) == fence(before)
    }
}

/// The statement of [`lock`].
pub(crate) async fn prepare_lock(client: &ClientWrapper, schema: &Schema) -> Result<Statement> {
    client.prepare_cached(&schema.sql(sql!("consumers/lock"))).await
}

/// `None` when there is no such row, somebody else holds it, or there is nothing to do.
pub(crate) async fn lock(
    client: &ClientWrapper,
    statement: &Statement,
    key: &Key,
    process: Uuid,
    revision: i32,
    head: i64,
) -> Result<Option<Locked>> {
    let row = client
        .query_opt(
            statement,
            &[
                /* consumer */ &key.name,
                /* instance */ &key.instance,
                /* partition */ &key.partition,
                /* process */ &process,
                /* revision */ &revision,
                /* head */ &head,
            ],
        )
        .await?;
    Ok(row.map(|row| Locked {
        transaction_id: row.get("transaction_id"),
        backend: row.get("backend"),
        epoch: row.get("epoch"),
        position: row.get("position"),
        revision: row.get("revision"),
        written_by: row.get("written_by"),
    }))
}

/// How a row stands; `None` when there is no such row.
pub(crate) async fn stand(
    client: &ClientWrapper,
    schema: &Schema,
    key: &Key,
    process: Uuid,
    is_locked: bool,
) -> Result<Option<State>> {
    let statement = client.prepare_cached(&schema.sql(sql!("consumers/stand"))).await?;
    let row = client
        .query_opt(
            &statement,
            &[
                /* consumer */ &key.name,
                /* instance */ &key.instance,
                /* partition */ &key.partition,
                /* process */ &process,
            ],
        )
        .await?;
    Ok(row.map(|row| State {
        is_locked,
        position: row.get("position"),
        status: row.get("status"),
        attempts: row.get("attempts"),
        faults: row.get("faults"),
        rearms: row.get("rearms"),
        revision: row.get("revision"),
        failed_event_id: row.get("failed_event_id"),
        failed_at: row.get("failed_at"),
        last_error: row.get("last_error"),
        next_attempt_at: row.get("next_attempt_at"),
        due_in: seconds(row.get("due_in")),
        pruned: row.get::<_, Option<i64>>("pruned_from").zip(row.get("pruned_to")),
        retry: row.get("retry"),
        epoch: row.get("epoch"),
    }))
}

/// What a row is to hold from now on.
#[derive(Clone, Debug)]
pub(crate) struct Settlement {
    pub(crate) position: i64,
    pub(crate) status: &'static str,
    pub(crate) attempts: i32,
    pub(crate) faults: i32,
    pub(crate) rearms: i32,
    pub(crate) due_in: Option<Duration>,
    pub(crate) failed_event_id: Option<Uuid>,
    pub(crate) last_error: Option<String>,
    pub(crate) processed: i64,
    pub(crate) failed: i64,
    pub(crate) skipped: i64,
}

/// The statement of [`settle`].
pub(crate) async fn prepare_settle(client: &ClientWrapper, schema: &Schema) -> Result<Statement> {
    client.prepare_cached(&schema.sql(sql!("consumers/settle"))).await
}

/// What settling a row answered.
#[derive(Debug)]
pub(crate) struct Settled {
    /// When the next attempt is due, if one is.
    pub(crate) next_attempt_at: Option<OffsetDateTime>,
    /// As long as a [`Locked`] row names the same writer, nobody has touched it since.
    pub(crate) written_by: String,
}

/// `None` when the row is gone.
pub(crate) async fn settle(
    client: &ClientWrapper,
    statement: &Statement,
    key: &Key,
    transaction_id: &str,
    owner: Uuid,
    to: &Settlement,
) -> Result<Option<Settled>> {
    let row = client
        .query_opt(
            statement,
            &[
                /* consumer */ &key.name,
                /* instance */ &key.instance,
                /* partition */ &key.partition,
                /* transaction_id */ &transaction_id,
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
                /* owner */ &owner,
            ],
        )
        .await?;
    Ok(row.map(|row| Settled {
        next_attempt_at: row.get("next_attempt_at"),
        written_by: row.get("written_by"),
    }))
}

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
    let statement = client.prepare_cached(&schema.sql(sql!("consumers/lease"))).await?;
    let row = client
        .query_opt(
            &statement,
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

impl LeasedWork<'_> {
    fn columns(&self) -> (Vec<Uuid>, Vec<i64>) {
        sorted(self.claims)
    }
}

/// Claims in the order in which rows of the ledger are locked.
pub(super) fn sorted(claims: &[(Uuid, i64)]) -> (Vec<Uuid>, Vec<i64>) {
    let mut claims = claims.to_vec();
    claims.sort_unstable();
    claims.into_iter().unzip()
}

/// Renews the lease of the row and of the claims. Is the row still held, and how many of the claims?
pub(crate) async fn renew(
    client: &ClientWrapper,
    schema: &Schema,
    work: LeasedWork<'_>,
    lease: Duration,
) -> Result<(bool, usize)> {
    let (event_ids, tokens) = work.columns();
    let statement = client.prepare_cached(&schema.sql(sql!("consumers/renew"))).await?;
    let row = client
        .query_one(
            &statement,
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

/// Settles claims, the row, and the dead letter of an event that is passed over, together; `keep` holds the lease on.
pub(crate) async fn settle_leased(
    client: &ClientWrapper,
    schema: &Schema,
    work: LeasedWork<'_>,
    to: &Settlement,
    claims_to: ClaimsTo,
    letter: Option<&DeadLetter<'_>>,
    keep: bool,
) -> Result<SettledLease> {
    let (event_ids, tokens) = work.columns();
    let statement = client.prepare_cached(&schema.sql(sql!("consumers/settle_leased"))).await?;
    let row = client
        .query_one(
            &statement,
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
    Ok(SettledLease {
        settled: usize::try_from(row.get::<_, i64>("settled")).unwrap_or(0),
        moved: row.get("moved"),
        next_attempt_at: row.get("next_attempt_at"),
    })
}

/// Settles claims as done, and moves the row on; the lease is held on.
pub(crate) async fn move_leased(
    client: &ClientWrapper,
    schema: &Schema,
    work: LeasedWork<'_>,
    position: i64,
    processed: i64,
) -> Result<SettledLease> {
    let (event_ids, tokens) = work.columns();
    let statement = client.prepare_cached(&schema.sql(sql!("consumers/move_leased"))).await?;
    let row = client
        .query_one(
            &statement,
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
    Ok(SettledLease {
        settled: usize::try_from(row.get::<_, i64>("settled")).unwrap_or(0),
        moved: row.get("moved"),
        next_attempt_at: None,
    })
}

/// Lets others have the row, and releases the claims.
pub(crate) async fn give_lease_back(
    client: &ClientWrapper,
    schema: &Schema,
    work: LeasedWork<'_>,
) -> Result<()> {
    let (event_ids, tokens) = work.columns();
    let statement = client.prepare_cached(&schema.sql(sql!("consumers/give_lease_back"))).await?;
    client
        .execute(
            &statement,
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

/// Fails, in the place of a statement that would end the pass's transaction.
pub(crate) async fn refuse_end(client: &ClientWrapper, schema: &Schema) -> Result<()> {
    client.execute(&*schema.sql(sql!("consumers/refuse_end")), &[]).await?;
    Ok(())
}

/// A session that held a row for too long.
pub(crate) struct Freed {
    pub(crate) pid: i32,
    pub(crate) application: String,
    pub(crate) stuck_for: Duration,
}

/// Terminates the session that holds the row, if it has been in the same state for longer than `limit` and, where a
/// `backend` is given, is that one.
pub(crate) async fn free(
    client: &ClientWrapper,
    schema: &Schema,
    key: &Key,
    limit: Duration,
    backend: Option<i32>,
) -> Result<Option<Freed>> {
    let statement = client.prepare_cached(&schema.sql(sql!("consumers/free"))).await?;
    let row = client
        .query_opt(
            &statement,
            &[
                /* consumer */ &key.name,
                /* instance */ &key.instance,
                /* partition */ &key.partition,
                /* limit */ &limit.as_secs_f64(),
                /* backend */ &backend,
            ],
        )
        .await?;
    Ok(row.map(|r| Freed {
        pid: r.get("pid"),
        application: r.get("application_name"),
        stuck_for: seconds(r.get("stuck_for")).unwrap_or_default(),
    }))
}

/// How a registered consumer stands, as every process sees it.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) key: Key,
    pub(crate) position: i64,
    pub(crate) status: String,
    pub(crate) revision: i32,
    pub(crate) attempts: i32,
    pub(crate) faults: i32,
    pub(crate) due_in: Option<Duration>,
    /// Age of the first unread event.
    pub(crate) behind: Option<Duration>,
    /// A dead letter is to be retried.
    pub(crate) retry: bool,
    /// Dead letters that nobody has settled, 1,000 at most.
    pub(crate) open_letters: i64,
    /// Of a queued consumer, on its first partition.
    pub(crate) depth: Option<Depth>,
}

/// What a queue holds, 10,000 rows at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    pub(crate) pending: i64,
    pub(crate) in_progress: i64,
    /// Seconds since the first of them was due; negative until then, `None` where nothing is in it.
    pub(crate) due_for: Option<f64>,
}

impl Standing {
    /// Is anything in the queue due?
    pub(crate) fn is_due(&self) -> bool {
        self.depth.is_some_and(|depth| depth.due_for.is_some_and(|due_for| due_for >= 0.0))
    }
}

/// How everything stands.
#[derive(Clone, Debug)]
pub(crate) struct Poll {
    pub(crate) epoch: Option<Uuid>,
    /// The highest id that is visible.
    pub(crate) top: i64,
    /// What the safe head rests on and does not hold.
    pub(crate) unsafe_reasons: Vec<String>,
    /// Do appends ring?
    pub(crate) rings: bool,
    pub(crate) consumers: Vec<Standing>,
}

pub(crate) async fn poll(client: &Client, statement: &Statement, process: Uuid) -> Result<Poll> {
    let rows = client.query(statement, &[/* process */ &process]).await?;
    let consumers = Vec::with_capacity(rows.len());
    let mut poll = Poll { epoch: None, top: 0, unsafe_reasons: Vec::new(), rings: false, consumers };
    if let Some(row) = rows.first() {
        poll.epoch = row.get("epoch");
        poll.top = row.get("top");
        poll.unsafe_reasons = row.get("unsafe");
        poll.rings = row.get("rings");
    }
    for row in &rows {
        let Some(name) = row.get("name") else { continue };
        poll.consumers.push(Standing {
            key: Key { name, instance: row.get("instance"), partition: row.get("partition") },
            position: row.get("position"),
            status: row.get("status"),
            revision: row.get("revision"),
            attempts: row.get("attempts"),
            faults: row.get("faults"),
            due_in: seconds(row.get("due_in")),
            behind: seconds(row.get("behind")),
            retry: row.get("retry"),
            open_letters: row.get("open_letters"),
            depth: row.get::<_, Option<i64>>("pending").map(|pending| Depth {
                pending,
                in_progress: row.get("in_progress"),
                due_for: row.get("due_for"),
            }),
        });
    }
    Ok(poll)
}

/// The statement of [`poll`], for whichever session runs it.
pub(crate) async fn prepare_poll(client: &Client, schema: &Schema) -> Result<Statement> {
    client.prepare(&schema.sql(sql!("consumers/poll"))).await
}

/// Says that these rows are run by somebody.
pub(crate) async fn touch(client: &ClientWrapper, schema: &Schema, keys: &[Key]) -> Result<u64> {
    let names: Vec<&str> = keys.iter().map(|k| k.name.as_str()).collect();
    let instances: Vec<&str> = keys.iter().map(|k| k.instance.as_str()).collect();
    let statement = client.prepare_cached(&schema.sql(sql!("consumers/touch"))).await?;
    client.execute(&statement, &[/* names */ &names, /* instances */ &instances]).await
}

/// Expires the rows of instances that nobody has run for so long, and names them.
pub(crate) async fn expire(client: &ClientWrapper, schema: &Schema, after: Duration) -> Result<Vec<Key>> {
    let statement = client.prepare_cached(&schema.sql(sql!("consumers/expire"))).await?;
    let rows = client.query(&statement, &[/* after */ &after.as_secs_f64()]).await?;
    let key = |r: &tokio_postgres::Row| Key { name: r.get(0), instance: r.get(1), partition: r.get(2) };
    Ok(rows.iter().map(key).collect())
}

/// Times that have passed already are zero, and endless ones end: they are added to the present.
pub(super) fn seconds(seconds: Option<f64>) -> Option<Duration> {
    const YEARS: f64 = 10.0 * 365.0 * 86_400.0;
    seconds.map(|s| Duration::try_from_secs_f64(s.clamp(0.0, YEARS)).unwrap_or_default())
}
