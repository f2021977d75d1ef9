//! Sessions of PostgreSQL.

use std::time::Duration;

use tokio_postgres::{Client, NoTls};

/// A session; it ends when the client is dropped. Fails the test if there is none within ten seconds.
pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) =
        tokio::time::timeout(Duration::from_secs(10), tokio_postgres::connect(url, NoTls))
            .await
            .unwrap_or_else(|_| panic!("no connection to {url} within 10 s"))
            .unwrap_or_else(|e| panic!("no connection to {url}: {e:?}"));
    tokio::spawn(async move { connection.await.ok() });
    client
}
