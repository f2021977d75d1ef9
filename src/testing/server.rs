//! A throwaway server, or one that is there already.

use super::url::with_database;
use super::{Error, TempPostgres, create_database};

/// The server that tests, benches or a demonstration run on: a throwaway one, or the one that `INORDER_DATABASE_URL` names.
///
/// ```no_run
/// # async fn run() -> Result<(), inorder::testing::Error> {
/// let server = inorder::testing::Server::obtain().await?;
/// let url = server.create_database("shop_tests").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum Server {
    /// Started by us, and gone when this is dropped.
    Throwaway(TempPostgres),
    /// Somebody else's, by its connection string. Only databases are made there, and none is dropped unless asked.
    Existing(String),
}

impl Server {
    /// The server that the environment variable `INORDER_DATABASE_URL` names, otherwise a throwaway one with default settings.
    ///
    /// [`TempPostgresBuilder::start_or_existing`](super::TempPostgresBuilder::start_or_existing) does the same with settings.
    ///
    /// # Errors
    ///
    /// As [`TempPostgres::start`]. An existing server is not contacted.
    pub async fn obtain() -> Result<Server, Error> {
        TempPostgres::builder().start_or_existing().await
    }

    /// The connection string: of the database `postgres` of a throwaway server; of the database that was named of an existing one.
    pub fn url(&self) -> &str {
        match self {
            Server::Throwaway(server) => server.url(),
            Server::Existing(url) => url,
        }
    }

    /// The connection string of another database of this server, whether it exists or not.
    pub fn url_for(&self, database: &str) -> String {
        with_database(self.url(), database)
    }

    /// Creates an empty database; answers its connection string.
    ///
    /// # Errors
    ///
    /// A database of this name exists, the account may not create one, or the server cannot be reached.
    pub async fn create_database(&self, name: &str) -> Result<String, Error> {
        create_database(self.url(), name, None).await
    }

    /// Creates a copy of the database `template`, which nobody may be connected to; answers its connection string.
    ///
    /// # Errors
    ///
    /// As [`create_database`](Server::create_database); and somebody is connected to the template.
    pub async fn create_database_from(&self, name: &str, template: &str) -> Result<String, Error> {
        create_database(self.url(), name, Some(template)).await
    }

    /// Drops a database if it exists, ending the sessions that use it.
    ///
    /// # Errors
    ///
    /// The account may not drop it, or the server cannot be reached.
    pub async fn drop_database(&self, name: &str) -> Result<(), Error> {
        super::drop_database(self.url(), name).await
    }

    /// Whether the server was started by us and goes away with this value.
    pub fn is_throwaway(&self) -> bool {
        self.throwaway().is_some()
    }

    /// The server if it was started by us: only that one may be crashed or restarted.
    pub fn throwaway(&self) -> Option<&TempPostgres> {
        match self {
            Server::Throwaway(server) => Some(server),
            Server::Existing(_) => None,
        }
    }
}
