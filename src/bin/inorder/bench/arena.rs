//! Where it is measured: a server, a database of its own, and a schema of its own for each side of each repetition.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use inorder::testing::{Server, TempPostgres};
use inorder::{Config, Inorder};
use tokio::time::Instant;
use tokio_postgres::Client;

use super::figures::About;
use super::{Result, sql};
use crate::failure::tell;

/// More than any single step takes on a machine that is good for measuring.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// A database that is used for nothing else.
pub(crate) struct Arena {
    server: Server,
    database: String,
    /// In another database, so that it does not count there.
    admin: Client,
    schemas: AtomicU32,
    statements: bool,
}

impl Arena {
    pub(crate) async fn open(url: Option<String>) -> Result<Self> {
        let server = match url {
            Some(url) => Server::Existing(url),
            None => Server::Throwaway(throwaway().await?),
        };
        let admin = connect(server.url()).await?;
        let about = about(&admin).await?;
        if let Some(server) = server.throwaway() {
            tell(format_args!(
                "measuring on a throwaway server, PostgreSQL {}, port {}, fsync on",
                about.server,
                server.port()
            ));
        } else if !about.fsync || about.synchronous_commit == "off" {
            tell(format_args!(
                "fsync or synchronous_commit is off on this server: commits cost nothing there, and the figures say little"
            ));
        }
        let statements = admin.batch_execute(sql::TRACK_STATEMENTS).await.is_ok()
            && admin.batch_execute(sql::TRY_STATEMENTS).await.is_ok();
        let database = format!("inorder_bench_{}", std::process::id());
        server.create_database(&database).await?;
        Ok(Self { server, database, admin, schemas: AtomicU32::new(0), statements })
    }

    pub(crate) async fn about(&self) -> Result<About> {
        about(&self.admin).await
    }

    /// A session in another database of the server.
    pub(crate) fn outside(&self) -> &Client {
        &self.admin
    }

    pub(crate) fn database(&self) -> &str {
        &self.database
    }

    /// Ends what a server of our own does by itself: its vacuuming writes more than is measured.
    pub(super) async fn hush(&self) -> Result<()> {
        if self.server.is_throwaway() {
            self.admin.batch_execute("ALTER SYSTEM SET autovacuum = off").await?;
            self.admin.batch_execute("SELECT pg_reload_conf()").await?;
        }
        Ok(())
    }

    /// Has the server count the statements of our sessions to come; false where it has no module for that.
    pub(crate) async fn count_statements(&self) -> Result<bool> {
        if self.statements && self.server.is_throwaway() {
            self.admin.batch_execute(&sql::count_statements(&self.database)).await?;
        }
        Ok(self.statements)
    }

    pub(crate) fn url(&self) -> String {
        self.server.url_for(&self.database)
    }

    pub(crate) async fn connect(&self) -> Result<Client> {
        connect(&self.url()).await
    }

    /// A log of its own, migrated and empty.
    pub(crate) async fn log(&self) -> Result<Inorder> {
        let schema = format!("bench_{}", self.schemas.fetch_add(1, Ordering::Relaxed));
        let log = Inorder::with_config(Config { schema, ..Config::new(self.url()) }).await?;
        log.migrate().await?;
        Ok(log)
    }

    /// The same tables without triggers: where the floor writes.
    pub(crate) async fn bare(&self) -> Result<Inorder> {
        let log = self.log().await?;
        let client = self.connect().await?;
        client.batch_execute(&sql::drop_triggers(&log.config().schema)).await?;
        Ok(log)
    }

    pub(crate) async fn drop(&self, log: Inorder) -> Result<()> {
        self.drop_schema(&log.config().schema).await
    }

    pub(crate) async fn drop_schema(&self, schema: &str) -> Result<()> {
        self.connect().await?.batch_execute(&sql::drop_schema(schema)).await?;
        Ok(())
    }

    /// Both sides of a pair start with nothing left to be written.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        if let Err(error) = self.admin.batch_execute("CHECKPOINT").await {
            tell(format_args!("measuring without checkpoints in between: {}", describe(&error)));
        }
        Ok(())
    }

    pub(crate) async fn close(self) -> Result<()> {
        if !self.server.is_throwaway() {
            self.server.drop_database(&self.database).await?;
        }
        Ok(())
    }
}

/// Able to count statements, where the server's packages have the module for it; it does not before it is asked to.
async fn throwaway() -> Result<TempPostgres> {
    let durable = || TempPostgres::builder().durable();
    let counting = durable()
        .setting("shared_preload_libraries", "pg_stat_statements")
        .setting("pg_stat_statements.track", "none");
    match counting.start().await {
        Err(error) if !error.is_missing() => Ok(durable().start().await?),
        started => Ok(started?),
    }
}

async fn about(client: &Client) -> Result<About> {
    let row = client.query_one(sql::ABOUT, &[]).await?;
    Ok(About {
        server: row.get("server"),
        fsync: row.get("fsync"),
        synchronous_commit: row.get("synchronous_commit"),
        shared_buffers: row.get("shared_buffers"),
    })
}

pub(crate) async fn connect(url: &str) -> Result<Client> {
    Ok(inorder::testing::connect(url).await?)
}

/// Waits until `there` answers true.
///
/// # Errors
/// It did not within the limit.
pub(crate) async fn until(what: &str, mut there: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !there().await? {
        if Instant::now() > deadline {
            return Err(format!("{what}: not within {LIMIT:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// The chain of causes in one line, with the server's own words.
pub(crate) fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let links = std::iter::successors(Some(error), |e| e.source());
    let words: Vec<String> = links.map(ToString::to_string).filter(|words| words != "db error").collect();
    words.join(": ")
}
