//! The one statement by which a process sees how every consumer stands.

use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use tokio_postgres::Client;
use uuid::Uuid;

use super::{Key, Result, seconds};
use crate::pg::statement::Ready;
use crate::pg::{Schema, sql};

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

pub(crate) async fn poll(client: &Client, statement: &Ready, process: Uuid) -> Result<Poll> {
    let rows = statement.query(client, &[/* process */ &process]).await?;
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
pub(crate) async fn prepare(client: &ClientWrapper, schema: &Schema) -> Result<Ready> {
    schema.prepare(client, sql!("consumers/poll")).await
}

/// Where the statement asks for the epoch of a process, which nobody else may see.
#[cfg(feature = "http")]
const EPOCH: &str = "(SELECT epoch FROM inorder.instances WHERE id = $1::uuid)";

/// The same as [`poll`], for who has no process of his own, and need not have the right to see one.
#[cfg(feature = "http")]
pub(crate) async fn look(client: &ClientWrapper, schema: &Schema) -> Result<Poll> {
    let text = schema.render(&sql!("consumers/poll").replace(EPOCH, "$1::uuid"));
    let statement = schema.prepare_text(client, &text).await?;
    poll(client, &statement, Uuid::nil()).await
}
