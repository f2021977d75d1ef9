//! Connections: where to, encrypted or not, and always to the primary.
//!
//! Every session of ours begins here: those of the pools, the tracker's own, and the requests that cancel a statement. Hosts are
//! tried in turn, each with the whole time for a connection; one that is a standby is passed over, as it cannot tell who is
//! writing.

use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::{
    ClientWrapper, Connect, Hook, HookError, Manager, ManagerConfig, Pool, QueueMode, RecyclingMethod,
    Runtime,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode as Asked, SslNegotiation};
use tokio_postgres::tls::{NoTlsStream, TlsConnect};
use tokio_postgres::{AsyncMessage, CancelToken, Client};

use crate::error::{Error, ErrorKind, describe};
use crate::pg::{deadline, session};

pub(crate) mod environment;
mod passfile;
pub(crate) mod pooling;
pub(crate) mod sources;
pub(crate) mod target;
#[cfg_attr(not(feature = "tls"), path = "connect/plain.rs")]
mod tls;
mod unclosed;

use pooling::{Pooler, Pooling};
use target::{Encryption, Place, SslMode, Target, Words};
use tls::MakeTls;
use unclosed::Unclosed;

/// How our sessions are made.
#[derive(Clone)]
pub(crate) struct Connector {
    target: Arc<Target>,
    connect_timeout: Duration,
    /// Where the last session was made, which is where the primary is.
    primary: Arc<AtomicUsize>,
    pooling: Pooling,
    /// What the first session is told at its start, to see whether it is ours.
    mark: Arc<str>,
}

/// A session at the server of this URL as it comes: a standby's, too, and with the server's settings.
#[cfg(feature = "testing")]
pub(crate) async fn visit(
    url: &str,
    limit: Duration,
    heard: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Client, Error> {
    let connector = Connector::new(url, "inorder", limit, Pooler::None)?;
    let (place, heard): (_, Heard) = (&connector.target.places[0], Arc::new(heard));
    let what = format!("connecting to {place}/{}", connector.target.database_name());
    let begun =
        deadline(limit, &what, Box::pin(connector.encrypted_or_not(place, &heard, &what, None))).await?;
    // It ends with the client.
    drop(begun.carrier.hand_over());
    Ok(begun.client)
}

/// Who is told the payloads of notifications.
type Heard = Arc<dyn Fn(&str) + Send + Sync>;

impl Connector {
    /// # Errors
    /// [`ErrorKind::Config`] for a URL that does not parse, or whose words do not fit together; the URL, which may hold a
    /// password, is not repeated.
    pub(crate) fn new(
        url: &str,
        application_name: &str,
        connect_timeout: Duration,
        pooler: Pooler,
    ) -> Result<Self, Error> {
        let mut target = Target::from_words(&Words::parse(url)?)?;
        target.application_name.get_or_insert_with(|| application_name.to_owned());
        let mode = target.encryption.mode;
        if !target.places.iter().all(Place::is_socket) && mode != SslMode::Disable {
            if mode >= SslMode::Require && !tls::AVAILABLE {
                return Err(Error::new(
                    ErrorKind::Config,
                    format!("sslmode={} needs the feature `tls`, without which this was built", mode.name()),
                ));
            }
            // Files that are of no use are told now.
            tls::make(&target.encryption)?;
        }
        let connect_timeout = target.connect_timeout.unwrap_or(connect_timeout);
        let (primary, pooling) = (Arc::default(), Pooling::new(pooler));
        let mark = format!("{:032x}", fastrand::u128(..)).into();
        Ok(Self { target: Arc::new(target), connect_timeout, primary, pooling, mark })
    }

    /// Whether each transaction has another session: known with the first connection.
    pub(crate) fn pooling(&self) -> &Pooling {
        &self.pooling
    }

    /// Where it connects to, without secrets.
    pub(crate) fn target(&self) -> String {
        self.target.to_string()
    }

    /// A connection of its own, outside every pool.
    pub(crate) async fn connect(&self) -> Result<ClientWrapper, Error> {
        self.connect_hearing(|_| {}).await
    }

    /// The same, whose notifications are told to `heard`, by their payload.
    pub(crate) async fn connect_hearing(
        &self,
        heard: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<ClientWrapper, Error> {
        let heard: Heard = Arc::new(heard);
        // On the heap: handshakes are large, and rare.
        let (client, carrier) = Box::pin(self.open(&heard)).await?;
        Ok(ClientWrapper::new(client, carrier.hand_over()))
    }

    /// A session on the primary, with what every session of ours relies on.
    async fn open(&self, heard: &Heard) -> Result<(Client, Carrier), Error> {
        let mut order: Vec<usize> = (0..self.target.places.len()).collect();
        if self.target.in_any_order {
            fastrand::shuffle(&mut order);
        }
        let mut passed_over = Vec::new();
        for at in order {
            let place = &self.target.places[at];
            let what = format!("connecting to {place}/{}", self.target.database_name());
            match deadline(self.connect_timeout, &what, self.open_at(place, heard, &what)).await {
                Ok(opened) => {
                    self.primary.store(at, Ordering::Relaxed);
                    return Ok(opened);
                }
                Err(error) => passed_over.push(error),
            }
        }
        Err(in_one(passed_over))
    }

    async fn open_at(&self, place: &Place, heard: &Heard, what: &str) -> Result<(Client, Carrier), Error> {
        let Begun { client, carrier, in_hot_standby } = self.marked_or_not(place, heard, what).await?;
        let is_standby = match in_hot_standby {
            Some(is_standby) if !self.pooling.is_pooled() => is_standby,
            // A pooler tells how it was when it connected.
            _ => session::is_standby(&client).await.map_err(|e| unreached(what, e))?,
        };
        if is_standby {
            return Err(Error::new(
                ErrorKind::Unsafe,
                format!(
                    "{what}: the server is a standby, which cannot tell who is writing: connect to the primary, or name all \
                     hosts, host=a,b, and the primary is found"
                ),
            ));
        }
        if !self.pooling.is_pooled() {
            session::prepare(&client, self.connect_timeout).await?;
        }
        Ok((client, carrier))
    }

    /// The first session finds out whether somebody stands in between who has sessions of his own: he does not take what we say
    /// at the start, or it does not come out at the other end.
    async fn marked_or_not(&self, place: &Place, heard: &Heard, what: &str) -> Result<Begun, Error> {
        if self.pooling.is_known() {
            return self.encrypted_or_not(place, heard, what, None).await;
        }
        match self.encrypted_or_not(place, heard, what, Some(&self.mark)).await {
            Ok(begun) => {
                let mark = session::mark(&begun.client).await.map_err(|e| unreached(what, e))?;
                self.pooling.is_found(mark.as_deref() != Some(&self.mark));
                Ok(begun)
            }
            // A protocol violation, as poolers see it.
            Err(error) if error.sqlstate() == Some("08P01") => {
                let begun = self.encrypted_or_not(place, heard, what, None).await?;
                self.pooling.is_found(true);
                Ok(begun)
            }
            Err(error) => Err(error),
        }
    }

    /// Tries what the `sslmode` has tried, in its order.
    async fn encrypted_or_not(
        &self,
        place: &Place,
        heard: &Heard,
        what: &str,
        mark: Option<&str>,
    ) -> Result<Begun, Error> {
        let (first, second) = match self.target.encryption.mode {
            // It does not leave the machine.
            _ if place.is_socket() => (Asked::Disable, None),
            SslMode::Disable => (Asked::Disable, None),
            SslMode::Allow => (Asked::Disable, Some(Asked::Require)),
            SslMode::Prefer => (Asked::Prefer, Some(Asked::Disable)),
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => (Asked::Require, None),
        };
        let mut config = self.config(place)?;
        if let Some(mark) = mark {
            let said = self.target.options.as_deref().unwrap_or_default();
            config.options(format!("{said} -c inorder.session={mark}").trim_start());
        }
        config.ssl_mode(first);
        let error = match begin(&config, self.tls(first)?, heard).await {
            Ok(begun) => return Ok(begun),
            Err(error) => error,
        };
        let Some(second) = second.filter(|_| is_about_encryption(&error)) else {
            return Err(unreached(what, error));
        };
        tracing::debug!(error = describe(&error), ?second, "trying the other way, encrypted or not");
        config.ssl_mode(second);
        begin(&config, self.tls(second)?, heard).await.map_err(|e| unreached(what, e))
    }

    fn tls(&self, asked: Asked) -> Result<MakeTls, Error> {
        match asked {
            Asked::Disable => tls::make(&Encryption::NONE),
            _ => tls::make(&self.target.encryption),
        }
    }

    /// What the session at one place is asked for.
    fn config(&self, place: &Place) -> Result<tokio_postgres::Config, Error> {
        let target = &*self.target;
        let mut config = tokio_postgres::Config::new();
        match &place.host {
            Host::Tcp(name) => config.host(name),
            #[cfg(unix)]
            Host::Unix(folder) => config.host_path(folder),
        };
        if let Some(address) = place.address {
            config.hostaddr(address);
        }
        config.port(place.port);
        if let Some(user) = &target.user {
            config.user(user);
        }
        if let Some(database) = &target.database {
            config.dbname(database);
        }
        if let Some(password) = self.password(place)? {
            config.password(password);
        }
        if let Some(options) = &target.options {
            config.options(options);
        }
        if let Some(name) = &target.application_name {
            config.application_name(name);
        }
        if target.encryption.direct {
            config.ssl_negotiation(SslNegotiation::Direct);
        }
        config
            .channel_binding(target.channel_binding)
            .connect_timeout(self.connect_timeout)
            .tcp_user_timeout(target.tcp_user_timeout)
            .keepalives(target.keepalives)
            .keepalives_idle(target.keepalives_idle)
            .keepalives_interval(target.keepalives_interval)
            .keepalives_retries(target.keepalives_count);
        Ok(config)
    }

    fn password(&self, place: &Place) -> Result<Option<String>, Error> {
        match (&self.target.password, &self.target.passfile) {
            (None, Some(file)) => {
                let own_name = || environment::variable("USER").unwrap_or_default();
                let user = self.target.user.clone().unwrap_or_else(own_name);
                let database = self.target.database.as_deref().unwrap_or(&user);
                passfile::find(file, place, database, &user)
            }
            (password, _) => Ok(password.clone()),
        }
    }

    /// Ends the statement that a session runs, if it runs one. Returns when the server is through with it, so that it cannot
    /// hit a later one; an error when that cannot be known.
    pub(crate) async fn cancel(&self, token: CancelToken) -> Result<(), Error> {
        let place = &self.target.places[self.primary.load(Ordering::Relaxed)];
        let what = format!("cancelling a statement at {place}");
        let lost = |e: std::io::Error| Error::with_source(ErrorKind::Connection, what.clone(), e);
        let tls = match place.is_socket() {
            true => self.tls(Asked::Disable)?,
            false => self.tls(Asked::Prefer)?,
        };
        match (&place.host, place.address) {
            (Host::Tcp(name), address) => {
                let stream = match address {
                    Some(address) => TcpStream::connect((address, place.port)).await,
                    None => TcpStream::connect((name.as_str(), place.port)).await,
                };
                let stream = stream.and_then(TcpStream::into_std).map_err(lost)?;
                let kept = stream.try_clone().and_then(TcpStream::from_std).map_err(lost)?;
                through(TcpStream::from_std(stream).map_err(lost)?, kept, token, tls, name).await
            }
            #[cfg(unix)]
            (Host::Unix(folder), _) => {
                let socket = folder.join(format!(".s.PGSQL.{}", place.port));
                let stream =
                    UnixStream::connect(socket).await.and_then(UnixStream::into_std).map_err(lost)?;
                let kept = stream.try_clone().and_then(UnixStream::from_std).map_err(lost)?;
                through(UnixStream::from_std(stream).map_err(lost)?, kept, token, tls, "").await
            }
        }
    }

    /// A pool of at most `size` connections; a wait for one ends after `wait`.
    pub(crate) fn pool(&self, size: usize, wait: Duration) -> Result<Pool, Error> {
        self.pool_looking_up(size, wait, Arc::default())
    }

    /// The same, for sessions that run none but our statements, by key.
    pub(crate) fn pool_looking_up(
        &self,
        size: usize,
        wait: Duration,
        terms: Arc<SessionTerms>,
    ) -> Result<Pool, Error> {
        let manager = Manager::from_connect(
            tokio_postgres::Config::new(),
            Opener(self.clone()),
            ManagerConfig { recycling_method: RecyclingMethod::Fast },
        );
        let (limit, pooling) = (self.connect_timeout, self.pooling.clone());
        let made_on = Arc::clone(&terms);
        let places = u32::try_from(self.target.places.len()).unwrap_or(u32::MAX);
        Pool::builder(manager)
            .max_size(size)
            // The one that was used last: what the server keeps for it is at hand.
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(wait))
            // Each place has its own limit.
            .create_timeout(Some(limit.saturating_mul(places.saturating_add(1))))
            .recycle_timeout(Some(limit))
            .pre_recycle(Hook::sync_fn(move |_, metrics| match terms.is_outlived(metrics.created) {
                true => Err(HookError::message("it may lead to a server that was replaced")),
                false => Ok(()),
            }))
            .post_create(Hook::async_fn(move |client: &mut ClientWrapper, _| {
                let planned_once = made_on.planned_once.load(Ordering::Relaxed) && !pooling.is_pooled();
                Box::pin(async move {
                    match planned_once {
                        true => {
                            session::look_up(client, limit).await.map_err(|e| HookError::message(e.report()))
                        }
                        false => Ok(()),
                    }
                })
            }))
            .build()
            .map_err(|e| Error::with_source(ErrorKind::Config, format!("a pool of {size} connections"), e))
    }
}

/// On what terms the sessions of a pool are made, and kept.
#[derive(Debug, Default)]
pub(crate) struct SessionTerms {
    /// Those made while it is true say to the planner that their statements are planned once.
    planned_once: AtomicBool,
    /// When the epoch began: those made before may lead to a server that was replaced, and lives on.
    epoch_began: Mutex<Option<Instant>>,
}

impl SessionTerms {
    pub(crate) fn plan_once(&self, yes: bool) {
        self.planned_once.store(yes, Ordering::Relaxed);
    }

    pub(crate) fn begin_epoch(&self) {
        *self.epoch_began.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_outlived(&self, made_at: Instant) -> bool {
        let began = *self.epoch_began.lock().unwrap_or_else(PoisonError::into_inner);
        began.is_some_and(|began| made_at < began)
    }
}

/// The task that carries a session's messages; it ends when this is dropped.
struct Carrier(Option<JoinHandle<()>>);

impl Carrier {
    /// From here on it is another's.
    fn hand_over(mut self) -> JoinHandle<()> {
        self.0.take().unwrap_or_else(|| tokio::spawn(ready(())))
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// A session that was begun, and whether the server said that it is a standby.
struct Begun {
    client: Client,
    carrier: Carrier,
    in_hot_standby: Option<bool>,
}

async fn begin(
    config: &tokio_postgres::Config,
    tls: MakeTls,
    heard: &Heard,
) -> Result<Begun, tokio_postgres::Error> {
    let (client, mut connection) = config.connect(tls).await?;
    let in_hot_standby = connection.parameter("in_hot_standby").map(|value| value == "on");
    let heard = Arc::clone(heard);
    let task = tokio::spawn(async move {
        let mut messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
        while let Some(message) = futures_util::StreamExt::next(&mut messages).await {
            match message {
                Ok(AsyncMessage::Notification(note)) => heard(note.payload()),
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(error = describe(&error), "connection ended");
                    break;
                }
            }
        }
    });
    Ok(Begun { client, carrier: Carrier(Some(task)), in_hot_standby })
}

/// Did the handshake fail, or does the server not let us in this way?
fn is_about_encryption(error: &tokio_postgres::Error) -> bool {
    match error.code() {
        Some(code) => code.code() == "28000",
        None => error.to_string() == "error performing TLS handshake",
    }
}

fn unreached(what: &str, error: tokio_postgres::Error) -> Error {
    let what = match tls::advice(&error) {
        Some(advice) => format!("{what}: {advice}"),
        None => what.to_owned(),
    };
    Error::with_source(ErrorKind::Connection, what, error)
}

/// Why no host would do. The last error is the cause, in front of it stands what the others said.
fn in_one(mut errors: Vec<Error>) -> Error {
    let Some(last) = errors.pop() else {
        return Error::new(ErrorKind::Config, "no host is named");
    };
    if errors.is_empty() {
        return last;
    }
    let others: Vec<String> = errors.iter().map(Error::report).collect();
    // Where there are several, that may be another in a moment.
    Error::with_source(
        ErrorKind::Connection,
        format!("no host is the primary, or none lets us in: {}", others.join("; ")),
        last,
    )
}

/// Makes the sessions of a pool.
struct Opener(Connector);

impl Connect for Opener {
    fn connect(
        &self,
        _: &tokio_postgres::Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), tokio_postgres::Error>> + Send + '_>>
    {
        Box::pin(async move {
            let heard: Heard = Arc::new(|_| {});
            match self.0.open(&heard).await {
                Ok((client, carrier)) => Ok((client, carrier.hand_over())),
                Err(error) => Err(disguised(error).await),
            }
        })
    }
}

/// A pool takes errors of one type only, which nobody else can make, but which carries whatever a handshake ends with.
/// [`undisguised`] takes it out again.
async fn disguised(error: Error) -> tokio_postgres::Error {
    let mut config = tokio_postgres::Config::new();
    config.ssl_mode(Asked::Require).ssl_negotiation(SslNegotiation::Direct);
    let (socket, _) = tokio::io::duplex(1);
    match config.connect_raw(socket, Disguise(error)).await {
        Err(error) => error,
        Ok((_, _)) => unreachable!("the handshake fails"),
    }
}

/// The error that was [`disguised`], if it was.
pub(crate) fn undisguised(error: tokio_postgres::Error) -> Result<Error, tokio_postgres::Error> {
    if !std::error::Error::source(&error).is_some_and(<dyn std::error::Error>::is::<Error>) {
        return Err(error);
    }
    match error.into_source().map(<dyn std::error::Error + Send + Sync>::downcast::<Error>) {
        Some(Ok(error)) => Ok(*error),
        _ => unreachable!("it was looked at"),
    }
}

struct Disguise(Error);

impl TlsConnect<DuplexStream> for Disguise {
    type Stream = NoTlsStream;
    type Error = Error;
    type Future = Ready<Result<NoTlsStream, Error>>;

    fn connect(self, _: DuplexStream) -> Self::Future {
        ready(Err(self.0))
    }
}

/// Sends a cancel and waits until the server has closed the connection that it came by, which it does afterwards.
async fn through<S>(
    stream: S,
    mut kept: impl AsyncRead + Unpin,
    token: CancelToken,
    tls: MakeTls,
    name: &str,
) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let what = "sending a cancel";
    let tls = tls::unclosed(tls, name);
    token.cancel_query_raw(Unclosed(stream), tls).await.map_err(|e| Error::statement(what, e))?;
    let lost = |e| Error::with_source(ErrorKind::Connection, what, e);
    while kept.read(&mut [0; 64]).await.map_err(lost)? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_error_comes_out_of_a_pool_as_it_went_in() {
        let error = Error::new(ErrorKind::Timeout, "no answer");
        let out = undisguised(disguised(error).await).unwrap();
        assert_eq!((out.kind(), out.to_string().as_str()), (ErrorKind::Timeout, "no answer"));
    }

    #[tokio::test]
    async fn an_error_of_the_handshake_is_told_by_its_words() {
        assert!(is_about_encryption(&disguised(Error::new(ErrorKind::Config, "x")).await));
        let nobody = "host=127.0.0.1 port=1".parse::<tokio_postgres::Config>().unwrap();
        let refused = nobody.connect(tokio_postgres::NoTls).await.err().unwrap();
        assert!(!is_about_encryption(&refused));
    }
}
