//! The log: connecting, appending, reading.

mod append;
mod read;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Object, Pool};

use crate::error::{Error, ErrorKind};
use crate::pg::{self, Connector, Schema};
use crate::queue::Nudges;

pub(crate) use append::{check_sendable, to_int};
pub use read::StreamReader;

/// Compiles what the page says.
#[cfg(doctest)]
#[doc = include_str!("../docs/events.md")]
struct EventsPage;

/// The log in a PostgreSQL database: where events are appended and read, and what dispatchers and admins start from.
///
/// Cloning is cheap; clones share their connections.
#[derive(Clone)]
pub struct Inorder {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    schema: Arc<Schema>,
    connector: Connector,
    pool: Pool,
    nudges: Nudges,
}

/// What [`Inorder::with_config`] takes; the fields' documentation names the defaults.
///
/// ```
/// use inorder::Config;
///
/// let config = Config { schema: "shop_events".into(), ..Config::new("postgres://localhost/shop") };
/// ```
#[derive(Clone)]
pub struct Config {
    /// Where the server is: `postgres://user:password@host:port/database`, or `key=value` pairs. Connections are not
    /// encrypted: what leaves the machine needs a private network or a tunnel; `sslmode=require` is an error.
    pub url: String,
    /// The schema that holds the log. Default `inorder`.
    pub schema: String,
    /// Connections for appending, reading and admin actions. A dispatcher has its own besides. Default 8.
    pub pool_size: usize,
    /// How long a new connection may take. Default 10 s.
    pub connect_timeout: Duration,
    /// How long a wait for a free connection may take. Default 30 s.
    pub wait_timeout: Duration,
    /// How long a statement of ours may take before its connection counts as lost. Default 30 s.
    pub statement_timeout: Duration,
    /// The name under which our sessions show at the server. Default `inorder`.
    pub application_name: String,
    /// The largest payload, in bytes of JSON text. Default 1 MiB.
    pub max_payload_bytes: usize,
}

impl Config {
    /// The defaults, for the server at `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            schema: "inorder".into(),
            pool_size: 8,
            connect_timeout: Duration::from_secs(10),
            wait_timeout: Duration::from_secs(30),
            statement_timeout: Duration::from_secs(30),
            application_name: "inorder".into(),
            max_payload_bytes: 1024 * 1024,
        }
    }
}

impl fmt::Debug for Config {
    /// Leaves the URL out: it may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("schema", &self.schema)
            .field("pool_size", &self.pool_size)
            .finish_non_exhaustive()
    }
}

impl Inorder {
    /// Connects with the defaults, and makes sure that the server answers.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a URL that does not parse, [`ErrorKind::Connection`] or [`ErrorKind::Timeout`] for a
    /// server that does not answer.
    pub async fn connect(url: impl Into<String>) -> Result<Self, Error> {
        Self::with_config(Config::new(url)).await
    }

    /// Connects with the given configuration, and makes sure that the server answers.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn with_config(config: Config) -> Result<Self, Error> {
        if config.pool_size == 0 {
            return Err(Error::new(ErrorKind::Config, "pool_size is 0; it must be at least 1"));
        }
        let schema = Arc::new(Schema::new(&config.schema)?);
        let connector = Connector::new(&config.url, &config.application_name, config.connect_timeout)?;
        let pool = connector.pool(config.pool_size, config.wait_timeout)?;
        let log =
            Self { inner: Arc::new(Inner { config, schema, connector, pool, nudges: Nudges::default() }) };
        let what = format!("connecting to {}", log.inner.connector.target());
        drop(log.client(&what).await?);
        Ok(log)
    }

    /// The configuration it was connected with.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// A connection of the log's own pool, for business data and events in one transaction.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] when none becomes free, [`ErrorKind::Connection`] when none can be made.
    pub async fn get(&self) -> Result<Object, Error> {
        self.client("taking a connection").await
    }

    pub(crate) fn schema(&self) -> &Arc<Schema> {
        &self.inner.schema
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.inner.connector
    }

    /// What wakes the sweepers of this process.
    pub(crate) fn nudges(&self) -> &Nudges {
        &self.inner.nudges
    }

    /// The same log, with pieces of our statements broken on purpose.
    pub(crate) fn broken(&self, pieces: &'static [(&'static str, &'static str)]) -> Self {
        let Inner { config, schema, connector, pool, .. } = &*self.inner;
        let schema = Arc::new(schema.broken(pieces));
        let (config, connector, pool) = (config.clone(), connector.clone(), pool.clone());
        Self { inner: Arc::new(Inner { config, schema, connector, pool, nudges: Nudges::default() }) }
    }

    /// How long a statement of ours may take.
    pub(crate) fn limit(&self) -> Duration {
        self.inner.config.statement_timeout
    }

    pub(crate) async fn client(&self, what: &str) -> Result<Object, Error> {
        pg::checkout(&self.inner.pool, what).await
    }

    /// Asks something on a connection of the pool, within the limit.
    pub(crate) async fn asking<T>(
        &self,
        what: &str,
        question: impl AsyncFnOnce(&Object) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Error> {
        let client = self.client(what).await?;
        let answer = pg::deadline(self.limit(), what, question(&client)).await;
        if answer.as_ref().is_err_and(|e| e.kind() == ErrorKind::Timeout) {
            // Its answer may still come; nobody else shall wait for it.
            pg::throw_away(client);
        }
        answer
    }
}

impl fmt::Debug for Inorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inorder({}, schema {:?})", self.inner.connector.target(), self.inner.config.schema)
    }
}
