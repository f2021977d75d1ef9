//! The outside by HTTP: an exporter for Prometheus, probes, and the admin page.
//!
//! A [`Site`] is built from a log. It becomes a [`Router`], to be mounted in an application of one's own, under any
//! path, or it is served by itself, which is what `inorder serve` does.
//!
//! | path | for | who may |
//! |---|---|---|
//! | `/metrics` | Prometheus | readers |
//! | `/healthz` | is the process alive? | everybody |
//! | `/readyz` | is the database reached, and does the schema fit? | everybody; the reasons in full are for readers |
//! | `/overview` and further | people: the admin page | readers; to act, operators |
//! | `/login`, `/logout` | people | everybody |
//!
//! ```no_run
//! # async fn run(log: inorder::Inorder, dispatcher: inorder::Dispatcher) -> Result<(), Box<dyn std::error::Error>> {
//! use inorder::http::{ProcessMetrics, Site, Token};
//!
//! let metrics = ProcessMetrics::record()?;            // what this process measures: passes, durations, …
//! let running = dispatcher.start().await?;
//!
//! let site = Site::new(&log)
//!     .read_token(Token::from_file("/run/secrets/inorder-read")?)
//!     .act_token(Token::from_file("/run/secrets/inorder-act")?)
//!     .process_metrics(move || metrics.render())
//!     .build()?;
//! let application: axum::Router = axum::Router::new().nest_service("/inorder", site);
//! # let _ = application;
//! # running.stop().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Who may what
//!
//! A program shows a token: `Authorization: Bearer …`. A person enters it in a form, and then has a session: a cookie that scripts
//! cannot read and that other sites cannot send, signed with a key that is made of the tokens. So a session lives through a restart,
//! holds at every process that has the same tokens, and ends with the token by which it was opened; otherwise after twelve hours.
//! A token for acting is one for reading, too. Acting always needs one (or [`Site::access`]); reading does not where
//! [`Site::open_to_readers`] says so, and where the site is served to its own machine only.
//!
//! Who acts is named in the audit: the name given at login, or in the header `Inorder-Operator` beside a token. A token that many share
//! proves no name.
//!
//! # What is refused
//!
//! - a request for another host than [`Site::hosts`], so that a name that is made to point to this machine leads nowhere;
//! - a POST that another site caused (`Sec-Fetch-Site`, `Origin`), and one by a session without the token of its form;
//! - a body over 64 KiB, headers that do not come within ten seconds, a request that takes longer than [`Site::time_limit`].
//!
//! # Not its job
//!
//! TLS: a proxy in front does that. Rules: those are in [`Admin`](crate::Admin) and below it.

mod access;
mod exporter;
mod guard;
mod health;
mod login;
mod page;
mod sampler;
mod server;
mod session;
mod token;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::request::Parts;
use axum::routing::get;
use tokio::net::TcpListener;

pub use self::access::Access;
pub use self::exporter::ProcessMetrics;
pub use self::server::Server;
pub use self::token::Token;

use self::access::{Open, Tokens};
use self::sampler::Sampler;
use self::session::Signer;
use crate::error::{Error, ErrorKind};
use crate::store::Inorder;

/// Compiles what the page says.
#[cfg(doctest)]
#[doc = include_str!("../docs/metrics.md")]
struct MetricsPage;

/// The largest body of a request.
const MAX_BODY: usize = 64 * 1024;

/// A site about one log: exporter, probes and admin page.
pub struct Site {
    log: Inorder,
    read_token: Option<Token>,
    act_token: Option<Token>,
    open: Open,
    access: Option<AccessOf>,
    hosts: Option<Vec<String>>,
    process_metrics: Option<Render>,
    sample_at_most_every: Duration,
    sample_limit: Duration,
    time_limit: Duration,
}

type AccessOf = Arc<dyn Fn(&Parts) -> Access + Send + Sync>;
type Render = Arc<dyn Fn() -> String + Send + Sync>;

impl Site {
    /// A site about this log. It may be of a log whose database is down; see [`Inorder::unconnected`].
    pub fn new(log: &Inorder) -> Self {
        Self {
            log: log.clone(),
            read_token: None,
            act_token: None,
            open: Open::Nobody,
            access: None,
            hosts: None,
            process_metrics: None,
            sample_at_most_every: Duration::from_secs(1),
            sample_limit: Duration::from_secs(5),
            time_limit: Duration::from_secs(30),
        }
    }

    /// Who shows this may read.
    #[must_use]
    pub fn read_token(self, token: Token) -> Self {
        Self { read_token: Some(token), ..self }
    }

    /// Who shows this may act, and read. Without it nobody may act, unless [`access`](Self::access) says otherwise.
    #[must_use]
    pub fn act_token(self, token: Token) -> Self {
        Self { act_token: Some(token), ..self }
    }

    /// Whoever reaches the site may read: payloads of dead letters, errors, names. For a site that is reached by friends only.
    #[must_use]
    pub fn open_to_readers(self) -> Self {
        Self { open: Open::Everybody, ..self }
    }

    /// Lets the application that the site is mounted in say who may what, for a request that shows no token of ours: it knows its
    /// people, whom it put into the request's extensions, say.
    ///
    /// ```
    /// # fn site(log: &inorder::Inorder) -> inorder::http::Site {
    /// use inorder::http::{Access, Site};
    ///
    /// #[derive(Clone)]
    /// struct User { email: String, on_duty: bool }
    ///
    /// Site::new(log).access(|request| match request.extensions.get::<User>() {
    ///     Some(user) if user.on_duty => Access::Act { by: user.email.clone() },
    ///     Some(_) => Access::Read,
    ///     None => Access::None,
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn access(self, access: impl Fn(&Parts) -> Access + Send + Sync + 'static) -> Self {
        Self { access: Some(Arc::new(access)), ..self }
    }

    /// Under which names the site is reached, without ports; requests for others are refused. Default: any, and where
    /// a [`server`](Self::server) listens to its own machine only, that machine's names.
    #[must_use]
    pub fn hosts(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { hosts: Some(names.into_iter().map(Into::into).collect()), ..self }
    }

    /// What else `/metrics` shows, in the text format of Prometheus: what the process's recorder has, as a rule. What is sampled
    /// from the database is left out of it, so that no name is there twice.
    #[must_use]
    pub fn process_metrics(self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { process_metrics: Some(Arc::new(render)), ..self }
    }

    /// How old a sample may be that `/metrics` answers with: so many scrapers cost the database no more than one. Default 1 s.
    #[must_use]
    pub fn sample_at_most_every(self, time: Duration) -> Self {
        Self { sample_at_most_every: time, ..self }
    }

    /// How long a sample may take, connecting included; after it the database counts as down. Default 5 s, as Prometheus gives up
    /// after 10 s.
    #[must_use]
    pub fn sample_limit(self, limit: Duration) -> Self {
        Self { sample_limit: limit, ..self }
    }

    /// How long a request may take. Default 30 s.
    #[must_use]
    pub fn time_limit(self, limit: Duration) -> Self {
        Self { time_limit: limit, ..self }
    }

    /// The routes, to be mounted in an application under a path: with [`Router::nest_service`], which [`Router::nest`] differs from in
    /// that it does not know the path with a slash at its end.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if nobody could read: neither a token, nor [`open_to_readers`](Self::open_to_readers), nor
    /// [`access`](Self::access) was given; for two tokens that are the same; for a limit of no time.
    pub fn build(self) -> Result<Router, Error> {
        let wrong = |what: &str| Err(Error::new(ErrorKind::Config, format!("building the site: {what}")));
        let has_token = self.read_token.is_some() || self.act_token.is_some();
        if !has_token && self.open == Open::Nobody && self.access.is_none() {
            return wrong("nobody could read it; give read_token, access or open_to_readers");
        }
        if matches!((&self.read_token, &self.act_token), (Some(read), Some(act)) if read == act) {
            return wrong("read_token and act_token are the same: whoever may read could act; make another");
        }
        for (name, limit) in [("sample_limit", self.sample_limit), ("time_limit", self.time_limit)] {
            if limit.is_zero() {
                return wrong(&format!("{name} is 0; it must be longer"));
            }
        }
        Ok(self.router())
    }

    /// The site by itself, at this listener.
    ///
    /// A listener on a loopback address needs no token: whoever is on the machine may read, and nobody else by way of a proxy that says
    /// so, as they do (`X-Forwarded-For`). Any other address is refused without a token.
    ///
    /// # Errors
    /// As for [`build`](Self::build), and [`ErrorKind::Config`] for an address that other machines reach, without a token.
    pub fn server(mut self, listener: TcpListener) -> Result<Server, Error> {
        let address = listener
            .local_addr()
            .map_err(|e| Error::with_source(ErrorKind::Config, "asking where the site listens", e))?;
        let has_token = self.read_token.is_some() || self.act_token.is_some();
        if address.ip().is_loopback() {
            let own = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).into_iter();
            let given = self.hosts.take().unwrap_or_default();
            self.hosts = Some(own.chain([guard::host_of(address)]).chain(given).collect());
            if self.open == Open::Nobody && self.read_token.is_none() && self.access.is_none() {
                self.open = Open::ThisMachine;
            }
        } else if !has_token && self.access.is_none() {
            return Err(Error::new(
                ErrorKind::Config,
                format!(
                    "serving at {address}, which other machines reach, without a token: give a token for reading, or listen at 127.0.0.1"
                ),
            ));
        }
        Ok(Server { listener, router: self.build()? })
    }

    fn router(self) -> Router {
        let signer = Signer::new(self.read_token.as_ref(), self.act_token.as_ref());
        let sampler = Sampler::new(&self.log, self.sample_at_most_every, self.sample_limit);
        let shared = Arc::new(Shared {
            log: self.log,
            tokens: Tokens { read: self.read_token, act: self.act_token },
            open: self.open,
            access: self.access,
            hosts: self.hosts.map(|hosts| hosts.iter().map(|h| h.to_ascii_lowercase()).collect()),
            process_metrics: self.process_metrics,
            sampler,
            time_limit: self.time_limit,
            signer,
        });
        Router::new()
            .route("/metrics", get(exporter::metrics))
            .route("/healthz", get(health::alive))
            .route("/readyz", get(health::ready))
            .route("/login", get(login::form).post(login::log_in))
            .route("/logout", axum::routing::post(login::log_out))
            .merge(page::routes())
            .fallback(page::not_found)
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .layer(axum::middleware::from_fn_with_state(Arc::clone(&shared), guard::guard))
            .with_state(shared)
    }
}

impl fmt::Debug for Site {
    /// Without the tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("log", &self.log).field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// What every route has at hand.
pub(crate) struct Shared {
    pub(crate) log: Inorder,
    tokens: Tokens,
    open: Open,
    access: Option<AccessOf>,
    /// In lower case.
    hosts: Option<Vec<String>>,
    process_metrics: Option<Render>,
    sampler: Sampler,
    time_limit: Duration,
    signer: Signer,
}

impl Shared {
    /// Could anybody act by entering a token?
    pub(crate) fn has_login(&self) -> bool {
        self.tokens.read.is_some() || self.tokens.act.is_some()
    }

    /// Is there a token for acting?
    pub(crate) fn has_act_token(&self) -> bool {
        self.tokens.act.is_some()
    }
}

type State = axum::extract::State<Arc<Shared>>;
