//! Programs that append.

use tokio_postgres::Client;

use super::connect;

/// One program that appends: a session, at first outside a transaction.
pub(crate) struct Writer {
    client: Client,
}

impl Writer {
    pub(crate) async fn on(url: &str) -> Writer {
        Writer { client: connect(url).await }
    }

    /// A writer that has begun a transaction.
    pub(crate) async fn in_transaction(url: &str) -> Writer {
        let writer = Writer::on(url).await;
        writer.run("BEGIN").await;
        writer
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    /// Appends an event in the transaction that is open, or in one of its own; its id.
    pub(crate) async fn append(&self) -> i64 {
        let insert = "INSERT INTO inorder.events (event_type, payload) VALUES ('written', '{}') RETURNING id";
        self.client.query_one(insert, &[]).await.unwrap().get(0)
    }

    /// Appends so many events in one statement; their ids.
    pub(crate) async fn append_many(&self, count: i32) -> Vec<i64> {
        let insert = "INSERT INTO inorder.events (event_type, payload) \
            SELECT 'written', json_build_object('n', n) FROM generate_series(1, $1) AS n RETURNING id";
        self.client.query(insert, &[&count]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }

    pub(crate) async fn commit(&self) {
        self.run("COMMIT").await;
    }

    pub(crate) async fn roll_back(&self) {
        self.run("ROLLBACK").await;
    }
}
