//! A throwaway PostgreSQL server for tests, benches and examples (feature `testing`).
//!
//! [`TempPostgres`] is a server of its own: its own data folder, its own port on 127.0.0.1, its own processes. It is started in
//! about a second from the PostgreSQL that is installed on the machine, and it is gone, processes and files, when the value is
//! dropped, and also after a panic, `exit`, Ctrl-C or SIGKILL of the process that started it.
//!
//! ```no_run
//! use inorder::testing::TempPostgres;
//!
//! # async fn run() -> Result<(), inorder::testing::Error> {
//! let server = TempPostgres::start().await?;
//! let url = server.create_database("shop").await?;
//! // … connect to `url`, run the test …
//! # Ok(())
//! # }
//! ```
//!
//! [`Server`] is either such a server or an existing one that `INORDER_DATABASE_URL` names, for machines on which
//! PostgreSQL already runs, for instance in a container.
//!
//! # Where PostgreSQL is looked for
//!
//! In the folder that `INORDER_PG_BIN` names; where `pg_config --bindir` points; in the folders into which the packages of
//! Debian, Ubuntu, Fedora, Red Hat, Homebrew and Postgres.app install, the newest version first; in `PATH`. Version 14 or later
//! is needed. If there is none, the error says what to install ([`Error::is_missing`]).
//!
//! # Who may connect
//!
//! Everybody on the same machine, as the superuser `postgres` and without a password: keep no secrets in it.
//!
//! # As root
//!
//! PostgreSQL refuses to run as root; the server then runs as the account `postgres`, or `nobody` where there is none.

#[cfg(not(unix))]
compile_error!("the feature `testing` needs a Unix system; use an existing server elsewhere");

mod account;
mod binaries;
mod cluster;
mod error;
mod server;
mod settings;
mod site;
mod url;
mod watchdog;

use std::fmt::Display;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Client;

pub use self::error::Error;
pub use self::server::Server;

use self::cluster::{Cluster, Stop};
use self::settings::Settings;
use self::url::with_database;

/// The environment variable that names an existing server.
const EXISTING: &str = "INORDER_DATABASE_URL";

/// A connection to a server on the same machine takes milliseconds.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// A throwaway PostgreSQL server; dropping it stops the server and deletes its files.
///
/// See the [module](self) for what it is, where its programs are found and who may connect.
///
/// Every method may be called from several tasks at once. Dropping a future of this type leaves the step that it was waiting
/// for to finish in the background.
#[derive(Debug)]
pub struct TempPostgres {
    cluster: Arc<Cluster>,
    url: String,
}

impl TempPostgres {
    /// Starts a server with default settings: fast, and careless about power failures.
    ///
    /// # Errors
    ///
    /// No PostgreSQL was found ([`Error::is_missing`]), or it did not start; the error then quotes its log.
    pub async fn start() -> Result<TempPostgres, Error> {
        TempPostgres::builder().start().await
    }

    /// A server with settings of its own.
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), inorder::testing::Error> {
    /// use inorder::testing::TempPostgres;
    ///
    /// let server = TempPostgres::builder()
    ///     .durable()
    ///     .max_prepared_transactions(10)
    ///     .setting("log_min_duration_statement", "100ms")
    ///     .start()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> TempPostgresBuilder {
        TempPostgresBuilder { settings: Settings::default() }
    }

    /// The connection string of the database `postgres`, as the superuser `postgres`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The connection string of another database, whether it exists or not.
    pub fn url_for(&self, database: &str) -> String {
        with_database(&self.url, database)
    }

    /// Creates an empty database; answers its connection string.
    ///
    /// # Errors
    ///
    /// A database of this name exists, or the server does not run.
    pub async fn create_database(&self, name: &str) -> Result<String, Error> {
        create_database(&self.url, name, None).await
    }

    /// Creates a copy of the database `template`, which nobody may be connected to; answers its connection string.
    ///
    /// # Errors
    ///
    /// As [`create_database`](TempPostgres::create_database); and somebody is connected to the template.
    pub async fn create_database_from(&self, name: &str, template: &str) -> Result<String, Error> {
        create_database(&self.url, name, Some(template)).await
    }

    /// Stops the server as a crash does: at once, without a checkpoint, sessions cut off. What was committed with
    /// `synchronous_commit` off, which is the default here, may be lost. [`start_again`](TempPostgres::start_again) recovers.
    ///
    /// # Errors
    ///
    /// The server could not be stopped.
    pub async fn crash(&self) -> Result<(), Error> {
        self.blocking(|cluster| cluster.stop(Stop::Immediate)).await
    }

    /// Stops the server in good order, ending all sessions. Does nothing if it is stopped.
    ///
    /// # Errors
    ///
    /// The server could not be stopped.
    pub async fn stop_fast(&self) -> Result<(), Error> {
        self.blocking(|cluster| cluster.stop(Stop::Fast)).await
    }

    /// Starts the server on the same port after [`crash`](TempPostgres::crash) or [`stop_fast`](TempPostgres::stop_fast).
    /// Does nothing if it runs.
    ///
    /// # Errors
    ///
    /// The server did not start; the error quotes its log.
    pub async fn start_again(&self) -> Result<(), Error> {
        self.blocking(Cluster::start).await
    }

    /// [`stop_fast`](TempPostgres::stop_fast), then [`start_again`](TempPostgres::start_again).
    ///
    /// # Errors
    ///
    /// As those two.
    pub async fn restart(&self) -> Result<(), Error> {
        self.blocking(|cluster| {
            cluster.stop(Stop::Fast)?;
            cluster.start()
        })
        .await
    }

    /// A second server: a hot standby that streams from this one, with the same settings.
    ///
    /// # Errors
    ///
    /// The copy could not be made, or the standby did not start; the error quotes what was said.
    pub async fn standby(&self) -> Result<TempPostgres, Error> {
        self.blocking(Cluster::standby).await.map(TempPostgres::around)
    }

    /// Cuts a standby off from its primary: what the primary commits from now on does not arrive, so that a promotion then
    /// loses it. Returns when the stream has ended.
    ///
    /// # Errors
    ///
    /// The server is no standby, or does not run.
    pub async fn stop_streaming(&self) -> Result<(), Error> {
        let client = connect(&self.url).await?;
        let attempted = "could not cut the standby off from its primary";
        client
            .batch_execute("ALTER SYSTEM SET primary_conninfo = ''")
            .await
            .map_err(|e| Error::postgres(attempted, e))?;
        client
            .batch_execute("SELECT pg_catalog.pg_reload_conf()")
            .await
            .map_err(|e| Error::postgres(attempted, e))?;
        let deadline = tokio::time::Instant::now() + CONNECT_LIMIT;
        loop {
            let streams = client
                .query("SELECT pid FROM pg_catalog.pg_stat_wal_receiver", &[])
                .await
                .map_err(|e| Error::postgres(attempted, e))?;
            if streams.is_empty() {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                return Err(Error::failed(format!("{attempted}: it still streams after {CONNECT_LIMIT:?}")));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Makes a standby a server of its own; returns when it accepts writes.
    ///
    /// # Errors
    ///
    /// The server is no standby, or does not run.
    pub async fn promote(&self) -> Result<(), Error> {
        self.blocking(Cluster::promote).await
    }

    /// The port on 127.0.0.1; it stays the same through crashes and restarts.
    pub fn port(&self) -> u16 {
        self.cluster.port()
    }

    /// The process id of the server (the postmaster); `None` while it is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.cluster.pid()
    }

    /// The data folder.
    pub fn data_dir(&self) -> PathBuf {
        self.cluster.data()
    }

    /// The file that the server logs to; it goes with the server.
    pub fn log_file(&self) -> PathBuf {
        self.cluster.site().log_file()
    }

    /// The folder with `psql`, `pg_dump` and the others that fit this server.
    pub fn bin_dir(&self) -> &Path {
        self.cluster.site().bin_dir()
    }

    fn around(cluster: Cluster) -> TempPostgres {
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", cluster.port());
        TempPostgres { cluster: Arc::new(cluster), url }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        step: impl FnOnce(&Cluster) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let cluster = Arc::clone(&self.cluster);
        off_the_runtime(move || step(&cluster)).await
    }
}

/// How a [`TempPostgres`] is to be; made by [`TempPostgres::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder starts nothing until `start` is called"]
pub struct TempPostgresBuilder {
    settings: Settings,
}

impl TempPostgresBuilder {
    /// A line for `postgresql.conf`, as in `.setting("work_mem", "64MB")`; it wins over everything else here. The address and
    /// the port cannot be set.
    pub fn setting(mut self, name: impl Into<String>, value: impl Display) -> TempPostgresBuilder {
        self.settings.more.push((name.into(), value.to_string()));
        self
    }

    /// A server as in production: a commit is on disk when it is acknowledged, and memory and WAL are sized for real load
    /// (`shared_buffers` 512 MB, `max_wal_size` 4 GB). For measuring. The default is a server that never waits for the disk.
    pub fn durable(mut self) -> TempPostgresBuilder {
        self.settings.durable = true;
        self
    }

    /// How many connections the server takes. Default: 200.
    pub fn max_connections(mut self, count: u32) -> TempPostgresBuilder {
        self.settings.max_connections = count;
        self
    }

    /// How many transactions may be prepared (`PREPARE TRANSACTION`) at the same time. Default: 0, none.
    pub fn max_prepared_transactions(mut self, count: u32) -> TempPostgresBuilder {
        self.settings.max_prepared_transactions = count;
        self
    }

    /// Makes and starts the server.
    ///
    /// # Errors
    ///
    /// No PostgreSQL was found ([`Error::is_missing`]), or it did not start, for instance because of a setting; the error then
    /// quotes its log.
    pub async fn start(self) -> Result<TempPostgres, Error> {
        off_the_runtime(move || Cluster::create(&self.settings)).await.map(TempPostgres::around)
    }

    /// The server that `INORDER_DATABASE_URL` names, whatever its settings; otherwise [`start`](TempPostgresBuilder::start).
    ///
    /// # Errors
    ///
    /// As [`start`](TempPostgresBuilder::start). An existing server is not contacted.
    pub async fn start_or_existing(self) -> Result<Server, Error> {
        match std::env::var(EXISTING) {
            Ok(url) if !url.is_empty() => Ok(Server::Existing(url)),
            _ => self.start().await.map(Server::Throwaway),
        }
    }
}

/// The steps wait for processes; the runtime's own threads do not.
async fn off_the_runtime<T: Send + 'static>(
    step: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(step).await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => panic::resume_unwind(panic),
        Err(error) => Err(Error::failed(format!("the runtime ended in the middle of a step: {error}"))),
    })
}

async fn create_database(server: &str, name: &str, template: Option<&str>) -> Result<String, Error> {
    let template = template.map_or(String::new(), |template| format!(" TEMPLATE {}", quoted(template)));
    connect(server)
        .await?
        .batch_execute(&format!("CREATE DATABASE {}{template}", quoted(name)))
        .await
        .map_err(|e| Error::postgres(format!("could not create the database {name:?}"), e))?;
    Ok(with_database(server, name))
}

async fn drop_database(server: &str, name: &str) -> Result<(), Error> {
    connect(server)
        .await?
        .batch_execute(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", quoted(name)))
        .await
        .map_err(|e| Error::postgres(format!("could not drop the database {name:?}"), e))
}

/// A session that ends when the client is dropped: encrypted where the URL says so, and a standby's, too.
///
/// # Errors
///
/// The server cannot be reached, or does not let us in.
#[doc(hidden)]
pub async fn connect(url: &str) -> Result<Client, Error> {
    connect_hearing(url, |_| {}).await
}

/// The same, whose notifications are told to `heard`, by their payload.
///
/// # Errors
///
/// As for [`connect`].
#[doc(hidden)]
pub async fn connect_hearing(
    url: &str,
    heard: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Client, Error> {
    let visiting = crate::connect::visit(url, CONNECT_LIMIT, heard);
    visiting.await.map_err(|e| Error::failed(format!("could not connect to the server: {}", e.report())))
}

fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}
