//! What every verb takes: which server, which schema, in what form to answer.

use std::convert::Infallible;
use std::fmt;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::str::FromStr;

use inorder::settings::{Flags, Settings};
use inorder::{Config, Inorder};
use tracing_subscriber::EnvFilter;

use crate::failure::Failure;

/// What every verb takes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Options {
    /// The server: postgres://user@host:port/database, or key=value pairs, with the words of psql (sslmode, sslrootcert, …).
    /// Without it INORDER_DATABASE_URL, then the configuration file, then DATABASE_URL, then PGHOST and the others, then the
    /// server's socket on this machine
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<Url>,
    /// A configuration file in TOML form. Without it the one that INORDER_CONFIG names
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The schema that holds the log. Without it INORDER_SCHEMA, then `inorder`
    #[arg(long, global = true, value_name = "NAME")]
    schema: Option<String>,
    /// How long a new connection may take, at each host [default: 10]
    #[arg(long, global = true, value_name = "SECONDS")]
    connect_timeout: Option<String>,
    /// How long a statement may take [default: 30]
    #[arg(long, global = true, value_name = "SECONDS")]
    statement_timeout: Option<String>,
    /// What stands between us and the server: detect, none, session, transaction [default: detect]
    #[arg(long, global = true, value_name = "KIND")]
    pooler: Option<String>,
    /// Answer in JSON, one object (`tail`, `export`: one a line). Ids are integers and stay exact above 2^53, where a reader lets them
    #[arg(long, global = true)]
    json: bool,
    /// Log to standard error: -v what happens, -vv details, -vvv everything. RUST_LOG says it finer
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

/// Where a server is, and perhaps a password.
#[derive(Clone)]
struct Url(String);

impl FromStr for Url {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Url(…)")
    }
}

impl Options {
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// The server that was named for inorder, by flag or variable. Verbs that otherwise start a throwaway one go by this:
    /// DATABASE_URL is somebody's application, and so may be what stands in a file.
    pub(crate) fn given_server(&self) -> Result<Option<String>, Failure> {
        let given =
            self.database_url.as_ref().map(|url| url.0.clone()).or_else(|| variable("INORDER_DATABASE_URL"));
        Ok(given.map(|url| Config::with_env(&url)).transpose()?.map(|config| config.url))
    }

    /// All that is said of the server, and where.
    pub(crate) fn settings(&self) -> Result<Settings, Failure> {
        let mut flags = Flags::default();
        flags.database_url = self.database_url.as_ref().map(|url| url.0.clone());
        flags.config.clone_from(&self.config);
        flags.schema.clone_from(&self.schema);
        flags.connect_timeout.clone_from(&self.connect_timeout);
        flags.statement_timeout.clone_from(&self.statement_timeout);
        flags.pooler.clone_from(&self.pooler);
        Ok(Settings::gather(&flags)?)
    }

    /// Connects to the log, under a name that says which verb it is.
    pub(crate) async fn connect(&self, verb: &str) -> Result<Inorder, Failure> {
        self.connect_with(verb, |config| config).await
    }

    /// Connects to a log that is there and fits this tool.
    pub(crate) async fn connect_to_log(&self, verb: &str) -> Result<Inorder, Failure> {
        let log = self.connect(verb).await?;
        log.check_schema().await?;
        Ok(log)
    }

    /// As [`connect`](Self::connect), with more to be said about the configuration.
    pub(crate) async fn connect_with(
        &self,
        verb: &str,
        adjust: impl FnOnce(Config) -> Config,
    ) -> Result<Inorder, Failure> {
        Ok(Inorder::with_config(adjust(self.config(verb)?)).await?)
    }

    /// Without asking the server, which may be down.
    pub(crate) fn connect_later(&self, verb: &str) -> Result<Inorder, Failure> {
        Ok(Inorder::unconnected(self.config(verb)?)?)
    }

    fn config(&self, verb: &str) -> Result<Config, Failure> {
        let settings = self.settings()?;
        Ok(Config { application_name: format!("inorder {verb}"), ..settings.config().clone() })
    }

    /// Sends log lines to standard error: warnings, unless more is asked for.
    pub(crate) fn log_to_stderr(&self, default: &str) {
        let filter = match variable("RUST_LOG").filter(|_| self.verbose == 0) {
            Some(filter) => EnvFilter::new(filter),
            None => EnvFilter::new(match self.verbose {
                0 => default,
                1 => "inorder=info",
                2 => "inorder=debug",
                _ => "trace",
            }),
        };
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal() && console::colors_enabled_stderr())
            .init();
    }
}

/// An environment variable, unless it is empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
