//! A log with events, and what its consumers made of them.

use std::time::Duration;

use inorder::{
    Append, Backoff, Config, Consumer, Dispatcher, DispatcherBuilder, ExpectedVersion, Inorder, NewEvent,
    Registered,
};
use serde_json::json;
use tokio_postgres::{Client, Row};

use super::{Database, database};

/// A log in a database of its own. Its events have the ids 1, 2, 3, …
pub(crate) struct Stage {
    pub(crate) database: Database,
    pub(crate) log: Inorder,
    /// The test's own session, through no proxy.
    pub(crate) client: Client,
}

/// How a consumer's row stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) position: i64,
    pub(crate) status: String,
    pub(crate) attempts: i32,
    pub(crate) faults: i32,
    pub(crate) rearms: i32,
    pub(crate) waits: bool,
    pub(crate) last_error: Option<String>,
}

impl Standing {
    pub(crate) fn error(&self) -> &str {
        self.last_error.as_deref().unwrap_or_default()
    }
}

/// An event that was passed over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DeadLetter {
    pub(crate) id: i64,
    pub(crate) consumer: String,
    pub(crate) event: i64,
    pub(crate) reason: String,
    pub(crate) state: String,
    pub(crate) attempts: i32,
    pub(crate) error: String,
}

impl Stage {
    /// With events 1 to `events`.
    pub(crate) async fn with_events(events: usize) -> Stage {
        Stage::on(database().await, events).await
    }

    pub(crate) async fn on(database: Database, events: usize) -> Stage {
        let log = Inorder::connect(database.url()).await.unwrap();
        let client = database.client().await;
        let effects =
            "CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, consumer text, event bigint)";
        client.batch_execute(effects).await.unwrap();
        let stage = Stage { database, log, client };
        stage.append(events).await;
        stage
    }

    /// Another handle on the log, through `url`, that waits for an answer no longer than `limit`.
    pub(crate) async fn log_through(url: &str, limit: Duration) -> Inorder {
        let config = Config { connect_timeout: limit, statement_timeout: limit, ..Config::new(url) };
        Inorder::with_config(config).await.unwrap()
    }

    /// Appends so many events of type `counted`, in one transaction; their ids.
    pub(crate) async fn append(&self, count: usize) -> Vec<i64> {
        self.append_types(&vec!["counted"; count]).await
    }

    /// Appends events of these types, in one transaction; their ids.
    pub(crate) async fn append_types(&self, types: &[&str]) -> Vec<i64> {
        let events = types.iter().enumerate().map(|(n, kind)| NewEvent::new(*kind, &json!({"n": n})).unwrap());
        self.append_events(&events.collect::<Vec<_>>()).await
    }

    pub(crate) async fn append_events(&self, events: &[NewEvent]) -> Vec<i64> {
        if events.is_empty() {
            return Vec::new();
        }
        match self.log.append(ExpectedVersion::Any, events).await.unwrap() {
            Append::Appended(ids) => ids,
            other => panic!("{other:?}"),
        }
    }

    /// A dispatcher that polls often, so that no test waits for a poll.
    pub(crate) fn dispatcher(&self, consumers: impl IntoIterator<Item = Consumer>) -> DispatcherBuilder {
        dispatcher(&self.log, consumers)
    }

    pub(crate) async fn register(&self, consumers: impl IntoIterator<Item = Consumer>) -> Registered {
        self.dispatcher(consumers).build().unwrap().register().await.unwrap()
    }

    /// The ids of the events whose effects of this consumer are committed, in the order in which it had them.
    pub(crate) async fn effects(&self, consumer: &str) -> Vec<i64> {
        let select = "SELECT event FROM effects WHERE consumer = $1 ORDER BY n";
        self.client.query(select, &[&consumer]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }

    pub(crate) async fn standing(&self, consumer: &str) -> Standing {
        self.standings(consumer).await.pop().unwrap_or_else(|| panic!("no row of consumer {consumer}"))
    }

    /// Of all its instances and partitions.
    pub(crate) async fn standings(&self, consumer: &str) -> Vec<Standing> {
        let select = "SELECT position, status, attempts, faults, rearms, next_attempt_at > clock_timestamp() AS waits, last_error \
            FROM inorder.consumers WHERE name = $1 ORDER BY instance, partition";
        let standing = |row: &Row| Standing {
            position: row.get("position"),
            status: row.get("status"),
            attempts: row.get("attempts"),
            faults: row.get("faults"),
            rearms: row.get("rearms"),
            waits: row.get::<_, Option<bool>>("waits").unwrap_or(false),
            last_error: row.get("last_error"),
        };
        self.client.query(select, &[&consumer]).await.unwrap().iter().map(standing).collect()
    }

    /// The pause before the next attempt is over.
    pub(crate) async fn due_now(&self, consumer: &str) {
        let update =
            "UPDATE inorder.consumers SET next_attempt_at = clock_timestamp() WHERE name = $1 AND next_attempt_at IS NOT NULL";
        assert_eq!(self.client.execute(update, &[&consumer]).await.unwrap(), 1, "{consumer} waits for nothing");
    }

    pub(crate) async fn dead_letters(&self) -> Vec<DeadLetter> {
        let select = "SELECT id, consumer, position, reason, state, attempts, error FROM inorder.dead_letters ORDER BY id";
        let letter = |row: &Row| DeadLetter {
            id: row.get("id"),
            consumer: row.get("consumer"),
            event: row.get("position"),
            reason: row.get("reason"),
            state: row.get("state"),
            attempts: row.get("attempts"),
            error: row.get("error"),
        };
        self.client.query(select, &[]).await.unwrap().iter().map(letter).collect()
    }

    /// Runs SQL in the test's own session.
    pub(crate) async fn sql(&self, statements: &str) {
        self.client.batch_execute(statements).await.unwrap_or_else(|e| panic!("{statements}: {e:?}"));
    }

    pub(crate) async fn count(&self, query: &str) -> i64 {
        self.client.query_one(query, &[]).await.unwrap_or_else(|e| panic!("{query}: {e:?}")).get(0)
    }
}

/// A dispatcher that polls often.
pub(crate) fn dispatcher(log: &Inorder, consumers: impl IntoIterator<Item = Consumer>) -> DispatcherBuilder {
    let builder = Dispatcher::builder(log).poll_interval(Duration::from_millis(100));
    consumers.into_iter().fold(builder, DispatcherBuilder::consumer)
}

/// No pause that a test would feel.
pub(crate) fn at_once() -> Backoff {
    Backoff::constant(Duration::from_millis(1))
}
