//! Which server, and how to speak to it, as people write it; pure.
//!
//! The words are those of PostgreSQL's own clients: `postgres://user:password@host:port/database?word=value`, or
//! `word=value` pairs. No value is ever repeated in an error: any of them may be a secret in the wrong place.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::config::{ChannelBinding, Host};

use crate::error::{Error, ErrorKind};

/// Every word that is understood, and the environment variable of PostgreSQL's clients that says the same.
pub(crate) const WORDS: &[(&str, &str)] = &[
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("dbname", "PGDATABASE"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("application_name", "PGAPPNAME"),
    ("options", "PGOPTIONS"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("sslnegotiation", "PGSSLNEGOTIATION"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS"),
    ("gssencmode", "PGGSSENCMODE"),
    ("keepalives", ""),
    ("keepalives_idle", ""),
    ("keepalives_interval", ""),
    ("keepalives_count", ""),
    ("tcp_user_timeout", ""),
    ("client_encoding", ""),
    ("fallback_application_name", ""),
];

/// Words of other clients, which say what cannot be done here.
const ELSEWHERE: &[&str] = &[
    "service",
    "servicefile",
    "sslpassword",
    "sslcrl",
    "sslcrldir",
    "sslcertmode",
    "sslcompression",
    "sslsni",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
    "min_protocol_version",
    "max_protocol_version",
    "requirepeer",
    "require_auth",
    "krbsrvname",
    "gsslib",
    "gssdelegation",
    "replication",
    "ssl",
    "schema",
    "pgbouncer",
    "connection_limit",
    "pool_timeout",
];

/// What was said about the server, word by word. A word that is not there was not said.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Words(BTreeMap<&'static str, String>);

impl Words {
    /// # Errors
    /// [`ErrorKind::Config`] names the word that is not understood; no value is repeated.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let mut words = Self::default();
        match text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://")) {
            Some(rest) => words.read_url(rest)?,
            None if text.split(['=', ' ']).next().is_some_and(|start| start.contains("://")) => {
                return Err(wrong("it is a URL of another kind than postgres://"));
            }
            None => words.read_pairs(text)?,
        }
        Ok(words)
    }

    pub(crate) fn get(&self, word: &str) -> Option<&str> {
        self.0.get(word).map(String::as_str)
    }

    /// Says it, whatever was said before. An empty value says nothing.
    pub(crate) fn set(&mut self, word: &str, value: &str) -> Result<(), Error> {
        // What others call it.
        let word = if word == "keepalives_retries" { "keepalives_count" } else { word };
        let Some((word, _)) = WORDS.iter().find(|(known, _)| *known == word) else {
            // Anything else may be a piece of a password that needed quotes.
            return Err(wrong(match ELSEWHERE.contains(&word) {
                true => format!("{word} is not understood here"),
                false => {
                    "a word is not understood, and is not repeated as it may be a piece of a password".into()
                }
            }));
        };
        match value.is_empty() {
            true => self.0.remove(word),
            false => self.0.insert(word, value.to_owned()),
        };
        Ok(())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(word, value)| (*word, value.as_str()))
    }

    /// All that was said, as pairs that [`parse`](Self::parse) takes, secrets included.
    pub(crate) fn written(&self) -> String {
        let pair = |(word, value): (&&str, &String)| {
            format!("{word}='{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
        };
        self.0.iter().map(pair).collect::<Vec<_>>().join(" ")
    }

    fn read_url(&mut self, url: &str) -> Result<(), Error> {
        let (url, query) = url.split_once('?').unwrap_or((url, ""));
        let (authority, database) = url.split_once('/').unwrap_or((url, ""));
        let hosts = match authority.rsplit_once('@') {
            None => authority,
            Some((account, hosts)) => {
                let (user, password) = account.split_once(':').unwrap_or((account, ""));
                self.set("user", &decoded(user)?)?;
                self.set("password", &decoded(password)?)?;
                hosts
            }
        };
        let (mut names, mut ports) = (Vec::new(), Vec::new());
        for host in hosts.split(',') {
            // An address of version 6 stands in brackets.
            let at = host.rfind(']').map_or(0, |end| end + 1);
            let (name, port) = match host[at..].find(':') {
                Some(colon) => (&host[..at + colon], &host[at + colon + 1..]),
                None => (host, ""),
            };
            let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
            names.push(decoded(name)?);
            ports.push(port);
        }
        let said = |all: &[&str]| all.iter().any(|one| !one.is_empty());
        if said(&names.iter().map(String::as_str).collect::<Vec<_>>()) {
            self.set("host", &names.join(","))?;
        }
        if said(&ports) {
            self.set("port", &ports.join(","))?;
        }
        if database.contains('@') {
            return Err(wrong("a / in a password is written %2F"));
        }
        self.set("dbname", &decoded(database)?)?;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (word, value) = pair.split_once('=').ok_or_else(|| wrong("after ? come word=value pairs"))?;
            match (word, value) {
                // As JDBC has it.
                ("ssl", "true") => self.set("sslmode", "require")?,
                _ => self.set(&decoded(word)?, &decoded(value)?)?,
            }
        }
        Ok(())
    }

    fn read_pairs(&mut self, text: &str) -> Result<(), Error> {
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let (word, after) = rest.split_once('=').ok_or_else(|| wrong("a word has no ="))?;
            let (value, after) = read_value(after.trim_start())?;
            self.set(word.trim(), &value)?;
            rest = after.trim_start();
        }
        Ok(())
    }
}

impl fmt::Debug for Words {
    /// The words, and none of their values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A value, in quotes or up to a blank; and what comes after it.
fn read_value(text: &str) -> Result<(String, &str), Error> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut chars = text.char_indices().skip(usize::from(quoted));
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            '\'' if quoted => return Ok((value, &text[at + 1..])),
            c if !quoted && c.is_whitespace() => return Ok((value, &text[at..])),
            c => value.push(c),
        }
    }
    match quoted {
        true => Err(wrong("a quote is not closed")),
        false => Ok((value, "")),
    }
}

/// Takes %xx apart.
fn decoded(text: &str) -> Result<String, Error> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
            let digits = digits.filter(|digits| digits.bytes().all(|d| d.is_ascii_hexdigit()));
            let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            bytes.push(byte.ok_or_else(|| {
                wrong("a % is not followed by two hexadecimal digits; a % itself is written %25")
            })?);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).map_err(|_| wrong("what is written with % is not UTF-8"))
}

fn wrong(why: impl fmt::Display) -> Error {
    Error::new(
        ErrorKind::Config,
        format!(
            "the database URL does not parse: {why}; expected postgres://user:password@host:port/database or key=value pairs"
        ),
    )
}

/// How much is known of who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SslMode {
    /// Never encrypted.
    Disable,
    /// Encrypted only where the server wants it.
    Allow,
    /// Encrypted where the server can, with whoever answers.
    Prefer,
    /// Encrypted, with whoever answers.
    Require,
    /// Encrypted, and the certificate is signed by a known CA.
    VerifyCa,
    /// The same, for the name that was asked for.
    VerifyFull,
}

impl SslMode {
    pub(crate) const NAMES: &[(&str, Self)] = &[
        ("disable", Self::Disable),
        ("allow", Self::Allow),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }
}

/// Who signs the certificates of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Roots {
    /// Whom the machine trusts.
    System,
    File(PathBuf),
}

/// What was said about encryption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Encryption {
    pub(crate) mode: SslMode,
    pub(crate) roots: Option<Roots>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    /// Begins with the handshake, without asking for it.
    pub(crate) direct: bool,
}

impl Encryption {
    /// What is needed for none.
    pub(crate) const NONE: Self =
        Self { mode: SslMode::Disable, roots: None, certificate: None, key: None, direct: false };
}

/// One place where the server may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) host: Host,
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
}

impl Place {
    pub(crate) fn is_socket(&self) -> bool {
        !matches!(self.host, Host::Tcp(_))
    }

    /// As it stands in a password file.
    pub(crate) fn name(&self) -> String {
        match &self.host {
            Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            Host::Unix(path) => path.display().to_string(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name(), self.port)
    }
}

/// The server: where, as whom, and how.
#[derive(Clone)]
pub(crate) struct Target {
    /// In the order in which they are tried. At least one.
    pub(crate) places: Vec<Place>,
    pub(crate) in_any_order: bool,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) passfile: Option<PathBuf>,
    pub(crate) database: Option<String>,
    pub(crate) options: Option<String>,
    pub(crate) application_name: Option<String>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) encryption: Encryption,
    pub(crate) channel_binding: ChannelBinding,
    pub(crate) keepalives: bool,
    pub(crate) keepalives_idle: Duration,
    pub(crate) keepalives_interval: Duration,
    pub(crate) keepalives_count: u32,
    pub(crate) tcp_user_timeout: Duration,
}

impl Target {
    /// # Errors
    /// [`ErrorKind::Config`] names the word whose value does not fit, and what would; the value is not repeated.
    pub(crate) fn from_words(words: &Words) -> Result<Self, Error> {
        let owned = |word| words.get(word).map(str::to_owned);
        let seconds = |word| number::<u64>(words, word, "seconds").map(|n| n.map(Duration::from_secs));
        only(
            words,
            "target_session_attrs",
            &["read-write", "primary"],
            "inorder always goes to the primary, as a standby \
            cannot tell who is writing",
        )?;
        only(words, "gssencmode", &["disable", "prefer"], "GSSAPI encryption is not built in")?;
        only(words, "client_encoding", &["UTF8", "UTF-8", "utf8", "utf-8", "auto"], "all text is UTF-8")?;
        let channel_binding = match words.get("channel_binding") {
            None | Some("prefer") => ChannelBinding::Prefer,
            Some("disable") => ChannelBinding::Disable,
            Some("require") => ChannelBinding::Require,
            Some(_) => return Err(unfit("channel_binding", "disable, prefer or require")),
        };
        let in_any_order = match words.get("load_balance_hosts") {
            None | Some("disable") => false,
            Some("random") => true,
            Some(_) => return Err(unfit("load_balance_hosts", "disable or random")),
        };
        Ok(Self {
            places: places(words)?,
            in_any_order,
            user: owned("user"),
            password: owned("password"),
            passfile: words.get("passfile").map(PathBuf::from),
            database: owned("dbname"),
            options: owned("options"),
            application_name: owned("application_name").or_else(|| owned("fallback_application_name")),
            // 0 is for ever, which nothing here is.
            connect_timeout: seconds("connect_timeout")?.filter(|limit| !limit.is_zero()),
            encryption: encryption(words)?,
            channel_binding,
            keepalives: number::<u8>(words, "keepalives", "0 or 1")? != Some(0),
            keepalives_idle: seconds("keepalives_idle")?.unwrap_or(Duration::from_secs(10)),
            keepalives_interval: seconds("keepalives_interval")?.unwrap_or(Duration::from_secs(3)),
            keepalives_count: number(words, "keepalives_count", "a number")?.unwrap_or(3),
            tcp_user_timeout: number(words, "tcp_user_timeout", "milliseconds")?
                .map_or(Duration::from_secs(10), Duration::from_millis),
        })
    }

    /// The database that it ends in.
    pub(crate) fn database_name(&self) -> &str {
        self.database.as_deref().or(self.user.as_deref()).unwrap_or_default()
    }
}

impl fmt::Display for Target {
    /// Where it is, without secrets: `host:port/database`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self.places.iter().map(ToString::to_string).collect();
        write!(f, "{}/{}", places.join(","), self.database_name())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

/// Where sockets are, for whoever names no host.
const SOCKET_FOLDERS: &[&str] = &["/var/run/postgresql", "/run/postgresql", "/tmp"];
const PORT: u16 = 5432;

fn places(words: &Words) -> Result<Vec<Place>, Error> {
    let list = |word| words.get(word).map(|list| list.split(',').map(str::trim).collect::<Vec<_>>());
    let (hosts, addresses) = (list("host").unwrap_or_default(), list("hostaddr").unwrap_or_default());
    let ports = list("port").unwrap_or_default();
    let count = hosts.len().max(addresses.len()).max(1);
    let fits = |length| length == 0 || length == count;
    if !fits(hosts.len()) || !fits(addresses.len()) || !(fits(ports.len()) || ports.len() == 1) {
        let lengths = format!("{} host, {} hostaddr, {} port", hosts.len(), addresses.len(), ports.len());
        return Err(Error::new(
            ErrorKind::Config,
            format!(
                "the lists of hosts do not fit together: {lengths}; give as many of each, or one port for all"
            ),
        ));
    }
    let place = |at: usize| {
        let port = match ports.get(at).or(ports.first()) {
            None | Some(&"") => PORT,
            Some(port) => {
                port.parse().ok().filter(|port| *port > 0).ok_or_else(|| unfit("port", "1 to 65535"))?
            }
        };
        let address = match addresses.get(at) {
            None | Some(&"") => None,
            Some(address) => Some(address.parse::<IpAddr>().map_err(|_| unfit("hostaddr", "an IP address"))?),
        };
        let host = match (hosts.get(at), address) {
            (Some(&name), _) if !name.is_empty() => host(name),
            (_, Some(address)) => Host::Tcp(address.to_string()),
            _ => default_host(port),
        };
        Ok(Place { host, address, port })
    };
    (0..count).map(place).collect()
}

fn host(name: &str) -> Host {
    #[cfg(unix)]
    if name.starts_with('/') {
        return Host::Unix(name.into());
    }
    Host::Tcp(name.to_owned())
}

/// The server's socket on this machine, where there is one.
fn default_host(port: u16) -> Host {
    let found =
        SOCKET_FOLDERS.iter().find(|folder| PathBuf::from(format!("{folder}/.s.PGSQL.{port}")).exists());
    host(found.unwrap_or(&"localhost"))
}

fn encryption(words: &Words) -> Result<Encryption, Error> {
    let path = |word| words.get(word).map(PathBuf::from);
    let roots = match words.get("sslrootcert") {
        None => None,
        Some("system") => Some(Roots::System),
        Some(file) => Some(Roots::File(file.into())),
    };
    let names = || SslMode::NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let mode = match words.get("sslmode") {
        Some(said) => {
            let found = SslMode::NAMES.iter().find(|(name, _)| *name == said);
            found.ok_or_else(|| unfit("sslmode", &format!("one of {}", names())))?.1
        }
        None if roots == Some(Roots::System) => SslMode::VerifyFull,
        None => SslMode::Prefer,
    };
    if roots == Some(Roots::System) && mode != SslMode::VerifyFull {
        return Err(Error::new(
            ErrorKind::Config,
            format!(
                "sslrootcert=system together with sslmode={}: whom the machine trusts can sign for anybody, so only \
                 sslmode=verify-full tells the server from others",
                mode.name()
            ),
        ));
    }
    let direct = match words.get("sslnegotiation") {
        None | Some("postgres") => false,
        Some("direct") if mode >= SslMode::Require => true,
        Some("direct") => {
            return Err(unfit("sslmode", "require, verify-ca or verify-full with sslnegotiation=direct"));
        }
        Some(_) => return Err(unfit("sslnegotiation", "postgres or direct")),
    };
    // As everywhere: a root certificate makes `require` check it.
    let mode = match mode {
        SslMode::Require if roots.is_some() => SslMode::VerifyCa,
        mode => mode,
    };
    Ok(Encryption { mode, roots, certificate: path("sslcert"), key: path("sslkey"), direct })
}

fn only(words: &Words, word: &'static str, accepted: &[&str], why: &str) -> Result<(), Error> {
    match words.get(word) {
        Some(value) if !accepted.contains(&value) => Err(Error::new(
            ErrorKind::Config,
            format!("{word} must be {} or left out: {why}", accepted.join(" or ")),
        )),
        _ => Ok(()),
    }
}

fn number<T: FromStr>(words: &Words, word: &'static str, what: &str) -> Result<Option<T>, Error> {
    words.get(word).map(|value| value.trim().parse().map_err(|_| unfit(word, what))).transpose()
}

fn unfit(word: &str, fits: &str) -> Error {
    Error::new(ErrorKind::Config, format!("{word} is not what it must be: {fits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        Words::parse(text)
            .and_then(|words| Target::from_words(&words))
            .unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    fn refusal(text: &str) -> String {
        let refused = Words::parse(text).and_then(|words| Target::from_words(&words));
        refused.expect_err(text).to_string()
    }

    #[test]
    fn a_url_and_pairs_say_the_same() {
        let url = target(
            "postgres://ada:p%40ss%20w%27@db.example.com:5433/shop?sslmode=verify-full&sslrootcert=/ca.pem",
        );
        let pairs = target(
            r"host=db.example.com port = 5433 user=ada password='p@ss w\'' dbname=shop sslmode=verify-full sslrootcert=/ca.pem",
        );
        for one in [&url, &pairs] {
            assert_eq!(one.to_string(), "db.example.com:5433/shop");
            assert_eq!((one.user.as_deref(), one.password.as_deref()), (Some("ada"), Some("p@ss w'")));
            assert_eq!(one.encryption.mode, SslMode::VerifyFull);
            assert_eq!(one.encryption.roots, Some(Roots::File("/ca.pem".into())));
        }
    }

    #[test]
    fn what_is_written_says_the_same_again() {
        let words = Words::parse(r"postgresql://u:it%27s%5C@[::1],b:7/x?application_name=a%20b").unwrap();
        assert_eq!(Words::parse(&words.written()).unwrap(), words);
        assert_eq!(words.get("password"), Some(r"it's\"));
    }

    #[test]
    fn several_hosts_each_have_a_port() {
        assert_eq!(target("postgres://a:1,b,[::1]:3/d").to_string(), "a:1,b:5432,::1:3/d");
        assert_eq!(target("host=a,b port=7 dbname=d").to_string(), "a:7,b:7/d");
        assert!(refusal("host=a,b,c port=1,2").contains("3 host, 0 hostaddr, 2 port"));
    }

    #[test]
    fn a_socket_is_a_host_that_begins_with_a_slash() {
        let place = target("postgres://%2Ftmp%2Fx:7/d").places.remove(0);
        assert!(place.is_socket() && place.port == 7);
        assert!(target("host=/tmp").places[0].is_socket());
    }

    #[test]
    fn a_root_certificate_makes_require_check_it() {
        assert_eq!(target("host=a sslmode=require").encryption.mode, SslMode::Require);
        assert_eq!(target("host=a sslmode=require sslrootcert=ca").encryption.mode, SslMode::VerifyCa);
        assert_eq!(target("host=a").encryption.mode, SslMode::Prefer);
        assert_eq!(target("host=a sslrootcert=system").encryption.mode, SslMode::VerifyFull);
        assert!(refusal("host=a sslrootcert=system sslmode=require").contains("verify-full"));
    }

    #[test]
    fn a_standby_cannot_be_asked_for() {
        for word in ["any", "read-only", "standby", "prefer-standby"] {
            assert!(refusal(&format!("host=a target_session_attrs={word}")).contains("primary"), "{word}");
        }
        target("host=a target_session_attrs=read-write");
        target("host=a target_session_attrs=primary");
    }

    #[test]
    fn no_refusal_repeats_a_value() {
        for text in [
            "postgres://u:hunter2/x@h/d",
            "postgres://u:100%hunter2@h/d",
            "mysql://u:hunter2@h/d",
            "host=h port=hunter2",
            "host=h hostaddr=hunter2",
            "host=h sslmode=hunter2",
            "host=h password='hunter2",
            "host=h password=x hunter2",
            "host=h channel_binding=hunter2 load_balance_hosts=hunter2",
            "host=h connect_timeout=hunter2",
            "postgres://u@h/d?hunter2",
            "postgres://u:12/hunter2@h/d",
            "postgres://u:12?hunter2=x@h/d",
            "host=h password=x hunter2=3",
        ] {
            let refused = refusal(text);
            assert!(!refused.contains("hunter2"), "{text}: {refused}");
        }
        assert!(!format!("{:?}", Words::parse("password=hunter2").unwrap()).contains("hunter2"));
        assert!(!format!("{:?}", target("host=h password=hunter2")).contains("hunter2"));
    }

    #[test]
    fn a_word_of_another_client_is_named() {
        assert!(refusal("postgres://h/d?service=x").contains("service is not understood"));
        assert!(refusal("host=h sllmode=require").contains("a word is not understood"));
    }
}
