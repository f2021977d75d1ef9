//! Where the proof runs: a server, and a schema of its own on it.

use inorder::testing::TempPostgres;
use inorder::{Config, Inorder};
use tokio_postgres::Client;

use super::statements::{self, EVICT, PREPARED, TABLES, render};
use super::trouble::{CouldNot, Result};

/// Prepared transactions that a throwaway server allows.
const PREPARED_MOST: u32 = 64;

/// A server and a schema.
pub(crate) struct Site {
    throwaway: Option<TempPostgres>,
    url: String,
    schema: String,
    allows_prepared: bool,
}

impl Site {
    /// Connects to the server, or starts a throwaway one where none is named, and makes the schema.
    pub(crate) async fn open(url: Option<String>) -> Result<Self> {
        let (throwaway, url) = match url {
            Some(url) => (None, url),
            None => {
                let server = TempPostgres::builder()
                    .durable()
                    .max_prepared_transactions(PREPARED_MOST)
                    // Writers that prepare turn it off for themselves.
                    .setting("inorder.ring", "on")
                    .start()
                    .await?;
                let url = server.url().to_owned();
                (Some(server), url)
            }
        };
        let schema = format!("inorder_verify_{:08x}", fastrand::u32(..));
        let mut site = Self { throwaway, url, schema, allows_prepared: false };
        let log = site.log(2, "inorder verify").await?;
        let client = site.session().await?;
        let setting = client.query_one("SHOW max_prepared_transactions", &[]).await?;
        site.allows_prepared = setting.get::<_, &str>(0) != "0";
        log.migrate().await?;
        if let Err(error) = client.batch_execute(&site.sql(TABLES)).await {
            site.drop_schema().await?;
            return Err(CouldNot::from(error).while_doing("making the tables of the proof"));
        }
        Ok(site)
    }

    /// The server, where it is ours to crash.
    pub(crate) fn throwaway(&self) -> Option<&TempPostgres> {
        self.throwaway.as_ref()
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    pub(crate) fn allows_prepared(&self) -> bool {
        self.allows_prepared
    }

    /// A statement for this schema.
    pub(crate) fn sql(&self, text: &str) -> String {
        render(text, &self.schema)
    }

    /// The log in this schema.
    pub(crate) async fn log(&self, pool_size: usize, application_name: &str) -> Result<Inorder> {
        let config = Config {
            schema: self.schema.clone(),
            pool_size,
            application_name: application_name.to_owned(),
            ..Config::new(&self.url)
        };
        Ok(Inorder::with_config(config).await?)
    }

    /// A session of its own; it ends when the client is dropped.
    pub(crate) async fn session(&self) -> Result<Client> {
        Ok(inorder::testing::connect(&self.url).await?)
    }

    /// Leaves the server as it was found. A throwaway one goes anyway.
    pub(crate) async fn close(self, keep: bool) -> Result<()> {
        if self.throwaway.is_some() || keep {
            return Ok(());
        }
        self.drop_schema().await
    }

    async fn drop_schema(&self) -> Result<()> {
        let client = self.session().await?;
        for row in client.query(PREPARED, &[&self.schema]).await? {
            let gid: &str = row.get("gid");
            client.batch_execute(&statements::rollback_prepared(gid)).await?;
        }
        let mut tries = 0;
        loop {
            client.query(EVICT, &[&self.schema]).await?;
            let dropping = format!("SET lock_timeout = '2s'; DROP SCHEMA IF EXISTS {} CASCADE", self.schema);
            match client.batch_execute(&dropping).await {
                Err(_) if tries < 10 => tries += 1,
                done => {
                    return done.map_err(|e| {
                        CouldNot::from(e)
                            .while_doing(format!("dropping schema {}; drop it by hand", self.schema))
                    });
                }
            }
        }
    }
}
