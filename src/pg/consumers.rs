//! Statements on `consumers`.

use std::fmt;
use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use time::OffsetDateTime;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use uuid::Uuid;

use super::statement::Ready;
use super::{Schema, sql};

pub(crate) mod leased;
pub(crate) mod poll;

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
    let row = schema.whole(sql!("consumers/register")).query_one(client, &params).await?;
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
pub(crate) async fn prepare_lock(client: &ClientWrapper, schema: &Schema) -> Result<Ready> {
    schema.prepare(client, sql!("consumers/lock")).await
}

/// `None` when there is no such row, somebody else holds it, or there is nothing to do.
pub(crate) async fn lock(
    client: &ClientWrapper,
    statement: &Ready,
    key: &Key,
    process: Uuid,
    revision: i32,
    head: i64,
) -> Result<Option<Locked>> {
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
    let statement = schema.prepare(client, sql!("consumers/stand")).await?;
    let row = statement
        .query_opt(
            client,
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
pub(crate) async fn prepare_settle(client: &ClientWrapper, schema: &Schema) -> Result<Ready> {
    schema.prepare(client, sql!("consumers/settle")).await
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
    statement: &Ready,
    key: &Key,
    transaction_id: &str,
    owner: Uuid,
    to: &Settlement,
) -> Result<Option<Settled>> {
    let row = statement
        .query_opt(
            client,
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

/// Fails, in the place of a statement that would end the pass's transaction.
pub(crate) async fn refuse_end(client: &ClientWrapper, schema: &Schema) -> Result<()> {
    schema.whole(sql!("consumers/refuse_end")).execute(client, &[]).await?;
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
    let statement = schema.prepare(client, sql!("consumers/free")).await?;
    let row = statement
        .query_opt(
            client,
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

/// What a consumer has come to since it was registered.
#[cfg(feature = "http")]
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    pub(crate) key: Key,
    pub(crate) processed: i64,
    pub(crate) failed: i64,
    pub(crate) skipped: i64,
    /// Were events pruned that it had not read?
    pub(crate) is_missing: bool,
}

#[cfg(feature = "http")]
pub(crate) async fn totals(client: &ClientWrapper, schema: &Schema) -> Result<Vec<Totals>> {
    let statement = schema.prepare(client, sql!("consumers/totals")).await?;
    let rows = statement.query(client, &[]).await?;
    let totals = |row: &tokio_postgres::Row| Totals {
        key: Key { name: row.get("name"), instance: row.get("instance"), partition: row.get("partition") },
        processed: row.get("processed"),
        failed: row.get("failed"),
        skipped: row.get("skipped"),
        is_missing: row.get("is_missing"),
    };
    Ok(rows.iter().map(totals).collect())
}

/// Says that these rows are run by somebody.
pub(crate) async fn touch(client: &ClientWrapper, schema: &Schema, keys: &[Key]) -> Result<u64> {
    let names: Vec<&str> = keys.iter().map(|k| k.name.as_str()).collect();
    let instances: Vec<&str> = keys.iter().map(|k| k.instance.as_str()).collect();
    let statement = schema.prepare(client, sql!("consumers/touch")).await?;
    statement.execute(client, &[/* names */ &names, /* instances */ &instances]).await
}

/// Expires the rows of instances that nobody has run for so long, and names them.
pub(crate) async fn expire(client: &ClientWrapper, schema: &Schema, after: Duration) -> Result<Vec<Key>> {
    let statement = schema.prepare(client, sql!("consumers/expire")).await?;
    let rows = statement.query(client, &[/* after */ &after.as_secs_f64()]).await?;
    let key = |r: &tokio_postgres::Row| Key { name: r.get(0), instance: r.get(1), partition: r.get(2) };
    Ok(rows.iter().map(key).collect())
}

/// Times that have passed already are zero, and endless ones end: they are added to the present.
pub(super) fn seconds(seconds: Option<f64>) -> Option<Duration> {
    const YEARS: f64 = 10.0 * 365.0 * 86_400.0;
    seconds.map(|s| Duration::try_from_secs_f64(s.clamp(0.0, YEARS)).unwrap_or_default())
}
