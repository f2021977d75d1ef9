//! The log: connecting, appending, reading.

mod append;
mod read;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Object, Pool};

use crate::connect::Connector;
use crate::connect::environment::{self, variable};
use crate::connect::pooling::Pooler;
use crate::connect::sources::{Gathered, Layer};
use crate::connect::target::Words;
use crate::error::{Error, ErrorKind};
use crate::pg::{self, Schema};
use crate::queue::Nudges;

pub(crate) use append::{check_sendable, to_int};
pub use read::StreamReader;

/// Compiles what the page says.
#[cfg(doctest)]
#[doc = include_str!("../docs/events.md")]
struct EventsPage;

/// Compiles what the page says.
#[cfg(doctest)]
#[doc = include_str!("../docs/connecting.md")]
struct ConnectingPage;

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
    /// Where the server is: `postgres://user:password@host:port/database?sslmode=verify-full&sslrootcert=ca.pem`, or
    /// `key=value` pairs, with the words of PostgreSQL's own clients; `docs/connecting.md` lists them. Several hosts may be
    /// named, `host=a,b`: it is always the primary that is connected to. Without `sslmode` connections are encrypted where the
    /// server can, with whoever answers; `verify-full` is what tells the server from others.
    ///
    /// What it leaves open is *not* taken from the environment; see [`from_env`](Self::from_env) and [`with_env`](Self::with_env).
    pub url: String,
    /// The schema that holds the log. Default `inorder`.
    pub schema: String,
    /// Connections for appending, reading and admin actions. A dispatcher has its own besides. Default 8.
    pub pool_size: usize,
    /// How long a new connection may take, at each host; `connect_timeout` in the URL goes before. Default 10 s.
    pub connect_timeout: Duration,
    /// How long a wait for a free connection may take. Default 30 s.
    pub wait_timeout: Duration,
    /// How long a statement of ours may take before its connection counts as lost. Default 30 s.
    pub statement_timeout: Duration,
    /// The name under which our sessions show at the server. Default `inorder`.
    pub application_name: String,
    /// The largest payload, in bytes of JSON text. Default 1 MiB.
    pub max_payload_bytes: usize,
    /// What stands between us and the server. Default: it is found out.
    pub pooler: Pooler,
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
            pooler: Pooler::Detect,
        }
    }

    /// What the environment says: the server that `INORDER_DATABASE_URL` names, else `DATABASE_URL`, else what PostgreSQL's own
    /// clients go by, `PGHOST` and the other `PG…` variables, and without them the server's socket on this machine. What the
    /// URL leaves open, a password or a certificate, is taken from the `PG…` variables and from `~/.pgpass`. `INORDER_SCHEMA`
    /// and the others that `docs/connecting.md` lists set the other fields; what is not said has its default.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] names the variable that does not parse, or does not fit together with the others; and `PGSERVICE`,
    /// which is not supported. No value is repeated.
    pub fn from_env() -> Result<Self, Error> {
        Self::gathered(&Gathered::gather(Layer::default(), Layer::default(), &variable)?)
    }

    /// The defaults, for the server at `url`; what that leaves open is taken from the `PG…` variables and from `~/.pgpass`.
    ///
    /// # Errors
    /// As for [`from_env`](Self::from_env).
    pub fn with_env(url: &str) -> Result<Self, Error> {
        let mut words = Words::parse(url)?;
        environment::fill(&mut words, &variable)?;
        Ok(Self::new(words.written()))
    }

    pub(crate) fn gathered(all: &Gathered) -> Result<Self, Error> {
        let mut config = Self::new(all.words().written());
        if let Some(schema) = all.get("schema") {
            config.schema.clone_from(&schema.value);
        }
        if let Some(size) =
            all.parsed("pool_size", "a number, 1 or more", |text| text.parse().ok().filter(|n| *n > 0))?
        {
            config.pool_size = size;
        }
        let known =
            |text: &str| Pooler::NAMES.iter().find(|(name, _)| *name == text).map(|(_, pooler)| *pooler);
        if let Some(pooler) = all.parsed("pooler", "detect, none, session or transaction", known)? {
            config.pooler = pooler;
        }
        if let Some(limit) = all.seconds("statement_timeout")? {
            config.statement_timeout = limit;
        }
        Ok(config)
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
        let log = Self::unconnected(config)?;
        drop(log.client("opening the log").await?);
        Ok(log)
    }

    /// The same without asking the server: connections are made when they are needed. For programs that start, and say so, while
    /// the server is down.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], as for [`connect`](Self::connect).
    pub fn unconnected(config: Config) -> Result<Self, Error> {
        if config.pool_size == 0 {
            return Err(Error::new(ErrorKind::Config, "pool_size is 0; it must be at least 1"));
        }
        let connector =
            Connector::new(&config.url, &config.application_name, config.connect_timeout, config.pooler)?;
        let schema = Arc::new(Schema::new(&config.schema)?.reached(connector.pooling()));
        let pool = connector.pool(config.pool_size, config.wait_timeout)?;
        Ok(Self { inner: Arc::new(Inner { config, schema, connector, pool, nudges: Nudges::default() }) })
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
    #[cfg(feature = "cli")]
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
