//! A second server that the tests of the process share, always one of our own: it allows prepared transactions, decodes its
//! WAL, and its log can be read. Everybody is superuser on it.

use std::sync::atomic::{AtomicU32, Ordering};

use inorder::testing::TempPostgres;
use tokio::sync::OnceCell;

use super::database::{Database, fill_template};

/// The server; nobody may stop it.
pub(crate) async fn versatile_server() -> &'static TempPostgres {
    static SERVER: OnceCell<TempPostgres> = OnceCell::const_new();
    SERVER
        .get_or_init(async || {
            let builder = TempPostgres::builder().max_prepared_transactions(50).setting("wal_level", "logical");
            let server = builder.start().await.unwrap_or_else(|e| panic!("{e:?}"));
            fill_template(&server.create_database("template").await.unwrap()).await;
            server
        })
        .await
}

/// A database with the schema in place, on that server.
pub(crate) async fn versatile_database() -> Database {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let name = format!("versatile_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    Database::of(versatile_server().await.create_database_from(&name, "template").await.unwrap())
}
