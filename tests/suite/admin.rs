//! Operators see how consumers stand, and stop, repair and restart them; every action has its conditions and leaves a trace.

mod consumers;
mod handoffs;
mod ledger;
mod letters;
mod looking;
mod prune;
mod pruned;
mod rows;
mod running;
mod trace;
mod trail;

use std::future::Future;
use std::time::Duration;

use inorder::{Admin, Error, ErrorKind, Inorder};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::database::Database;
use crate::support::{connect, database, eventually};

const LIMIT: Duration = Duration::from_secs(20);

/// A log with an operator at it.
struct Scene {
    database: Database,
    log: Inorder,
    admin: Admin,
    client: Client,
    /// Never in a transaction, in which it would see no news of other sessions.
    watcher: Client,
}

impl Scene {
    /// With events 1 to `events`: every fifth of type `b`, the others of type `a`; recorded an hour apart since 2026.
    async fn with(events: i32) -> Self {
        let database = database().await;
        let log = Inorder::connect(database.url()).await.unwrap();
        let admin = log.admin().by("ops");
        let (client, watcher) = (connect(database.url()).await, connect(database.url()).await);
        let scene = Self { database, log, admin, client, watcher };
        scene.append(events).await;
        scene
    }

    async fn append(&self, events: i32) {
        let insert = "INSERT INTO inorder.events (event_type, payload, recorded_at) \
            SELECT CASE WHEN n % 5 = 0 THEN 'b' ELSE 'a' END, json_build_object('n', n), \
                   timestamptz '2026-01-01' + n * interval '1 hour' \
            FROM (SELECT g + coalesce((SELECT max(id) FROM inorder.events), 0) AS n FROM generate_series(1, $1::int) AS g) AS n";
        self.client.execute(insert, &[&events]).await.unwrap();
    }

    /// A consumer's row.
    async fn consumer(&self, name: &str, position: i64) {
        let insert = "INSERT INTO inorder.consumers (name, kind, position) VALUES ($1, 'transactional', $2)";
        self.client.execute(insert, &[&name, &position]).await.unwrap();
    }

    async fn partitioned(&self, name: &str, partitions: i32, position: i64) {
        let insert = "INSERT INTO inorder.consumers (name, kind, position, partitions, partition) \
            SELECT $1, 'transactional', $2, $3, p FROM generate_series(0, $3 - 1) AS p";
        self.client.execute(insert, &[&name, &position, &partitions]).await.unwrap();
    }

    /// Changes the row of a consumer.
    async fn set(&self, name: &str, what: &str) {
        let update = format!("UPDATE inorder.consumers SET {what} WHERE name = $1");
        assert_ne!(self.client.execute(&update, &[&name]).await.unwrap(), 0, "{name}");
    }

    /// A consumer that died at the event above its position.
    async fn dead(&self, name: &str, position: i64) {
        self.consumer(name, position).await;
        let event = self.event_id(position + 1).await;
        self.set(
            name,
            &format!(
                "status = 'dead', attempts = 10, faults = 2, rearms = 1, next_attempt_at = clock_timestamp() + interval '1 hour', \
                 failed_event_id = '{event}', last_error = 'no such card', last_error_at = clock_timestamp()"
            ),
        )
        .await;
    }

    async fn event_id(&self, id: i64) -> Uuid {
        self.client
            .query_one("SELECT event_id FROM inorder.events WHERE id = $1", &[&id])
            .await
            .unwrap()
            .get(0)
    }

    /// One value, as JSON.
    async fn value(&self, sql: &str) -> Value {
        let sql = format!("SELECT to_jsonb(q) FROM ({sql}) AS q (value)");
        let row = self.client.query_one(&sql, &[]).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        row.get::<_, Value>(0)["value"].take()
    }

    /// The row of a consumer with one row.
    async fn row(&self, name: &str) -> Value {
        self.value(&format!("SELECT to_jsonb(c) FROM inorder.consumers AS c WHERE name = '{name}'")).await
    }

    /// The ids that are there.
    async fn ids(&self) -> Vec<i64> {
        let rows = self.client.query("SELECT id FROM inorder.events ORDER BY id", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// A session that holds the row of a consumer, or the first of its partitions, as a pass does.
    async fn hold(&self, name: &str) -> (Client, i32) {
        let client = self.database.client().await;
        client.batch_execute("SET application_name = 'shop'; BEGIN").await.unwrap();
        let lock = "SELECT pg_advisory_xact_lock('inorder.consumers'::regclass::oid::int, c.lock_key), pg_backend_pid() \
            FROM (SELECT lock_key FROM inorder.consumers WHERE name = $1 ORDER BY partition LIMIT 1 FOR NO KEY UPDATE) AS c";
        let pid = client.query_one(lock, &[&name]).await.unwrap().get(1);
        (client, pid)
    }

    /// Waits until a session of this database waits for a lock.
    async fn somebody_waits(&self) {
        eventually(LIMIT, "a session waits for a lock", async || {
            let waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')";
            self.watcher.query_one(waiting, &[]).await.unwrap().get(0)
        })
        .await;
    }
}

/// Runs beside the test.
fn beside<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(work)
}

/// The refusal is of this kind, and its words say this.
#[track_caller]
fn refused<T>(result: Result<T, Error>, kind: ErrorKind, words: &[&str]) {
    let error = result.err().expect("it is refused");
    let report = error.report();
    assert_eq!(error.kind(), kind, "{report}");
    for word in words {
        assert!(report.contains(word), "{word:?} is not in: {report}");
    }
}
