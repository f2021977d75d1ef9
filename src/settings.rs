//! What the tool goes by, gathered from its flags, the environment and a file (feature `cli`).
//!
//! In this order, the first that says something counts: flags, `INORDER_…` variables, the file, `DATABASE_URL`, the `PG…`
//! variables, defaults. `docs/connecting.md` tells what can be said where.

mod serve;

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::Spanned;

pub use self::serve::Serve;

use crate::connect::environment::variable;
use crate::connect::sources::{Gathered, Layer, MORE};
use crate::connect::target::{Place, Target, WORDS};
use crate::error::{Error, ErrorKind};
use crate::store::Config;

/// What a person gave on the command line; `None` leaves it to others.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Flags {
    /// `--database-url`: the server.
    pub database_url: Option<String>,
    /// `--config`: a file in TOML form.
    pub config: Option<PathBuf>,
    /// `--schema`: the schema that holds the log.
    pub schema: Option<String>,
    /// `--connect-timeout`: in seconds.
    pub connect_timeout: Option<String>,
    /// `--statement-timeout`: in seconds.
    pub statement_timeout: Option<String>,
    /// `--pooler`: `detect`, `none`, `session` or `transaction`.
    pub pooler: Option<String>,
}

impl fmt::Debug for Flags {
    /// Leaves the URL out: it may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flags")
            .field("config", &self.config)
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

/// All that is said, and by whom.
#[derive(Debug)]
pub struct Settings {
    config: Config,
    file: Option<PathBuf>,
    each: Vec<Setting>,
    serve: Serve,
}

/// One thing that is set.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Setting {
    /// Its name, as in a configuration file.
    pub name: &'static str,
    /// Its value; `None` where it is a secret.
    pub value: Option<String>,
    /// Where it was said: a flag, a variable, a line of the file, or `default`.
    pub source: String,
}

impl Settings {
    /// Gathers all that is said.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] names the flag, the variable, or the line of the file that is wrong, and no value.
    pub fn gather(flags: &Flags) -> Result<Self, Error> {
        let mut given = Layer::default();
        if let Some(url) = &flags.database_url {
            given.say_url(url, "--database-url")?;
        }
        for (name, flag, value) in [
            ("schema", "--schema", &flags.schema),
            ("connect_timeout", "--connect-timeout", &flags.connect_timeout),
            ("statement_timeout", "--statement-timeout", &flags.statement_timeout),
            ("pooler", "--pooler", &flags.pooler),
        ] {
            if let Some(value) = value {
                given.say(name, value, flag);
            }
        }
        let file = flags.config.clone().or_else(|| variable("INORDER_CONFIG").map(PathBuf::from));
        let (said, serve) = match &file {
            Some(file) => File::read(file)?,
            None => Default::default(),
        };
        let gathered = Gathered::gather(given, said, &variable)?;
        let config = Config::gathered(&gathered)?;
        let each = each(&gathered, &config)?;
        Ok(Self { config, file, each, serve })
    }

    /// What to connect with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The configuration file, where there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// What the file says of the site that `inorder serve` serves.
    pub fn serve(&self) -> &Serve {
        &self.serve
    }

    /// Everything that is set, without secrets.
    pub fn each(&self) -> &[Setting] {
        &self.each
    }
}

/// What is not said has a default, which is worth telling where it decides something.
fn each(gathered: &Gathered, config: &Config) -> Result<Vec<Setting>, Error> {
    let target = Target::from_words(&gathered.words())?;
    let places = |part: fn(&Place) -> String| target.places.iter().map(part).collect::<Vec<_>>().join(",");
    let defaults = |name: &str| match name {
        "host" => Some(places(Place::name)),
        "port" => Some(places(|place| place.port.to_string())),
        "sslmode" => Some(target.encryption.mode.name().to_owned()),
        "schema" => Some(config.schema.clone()),
        "connect_timeout" => Some(config.connect_timeout.as_secs().to_string()),
        "statement_timeout" => Some(config.statement_timeout.as_secs().to_string()),
        "pool_size" => Some(config.pool_size.to_string()),
        "pooler" => Some("detect".to_owned()),
        _ => None,
    };
    let setting = |name: &'static str| match gathered.get(name) {
        Some(said) if !said.value.is_empty() => {
            let value = (name != "password").then(|| said.value.clone());
            Some(Setting { name, value, source: said.by.clone() })
        }
        _ => defaults(name).map(|value| Setting { name, value: Some(value), source: "default".into() }),
    };
    Ok(WORDS.iter().chain(MORE).filter_map(|(name, _)| setting(name)).collect())
}

/// The form of the file. Every part that reads it has a section of its own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    database: Database,
    #[serde(default)]
    serve: Serve,
}

/// The section `[database]`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Database {
    url: Option<Spanned<String>>,
    host: Option<Spanned<Text>>,
    hostaddr: Option<Spanned<Text>>,
    port: Option<Spanned<Text>>,
    dbname: Option<Spanned<Text>>,
    user: Option<Spanned<Text>>,
    password: Option<Spanned<Text>>,
    passfile: Option<Spanned<PathBuf>>,
    options: Option<Spanned<Text>>,
    application_name: Option<Spanned<Text>>,
    sslmode: Option<Spanned<Text>>,
    sslrootcert: Option<Spanned<PathBuf>>,
    sslcert: Option<Spanned<PathBuf>>,
    sslkey: Option<Spanned<PathBuf>>,
    sslnegotiation: Option<Spanned<Text>>,
    channel_binding: Option<Spanned<Text>>,
    load_balance_hosts: Option<Spanned<Text>>,
    connect_timeout: Option<Spanned<Text>>,
    statement_timeout: Option<Spanned<Text>>,
    schema: Option<Spanned<Text>>,
    pool_size: Option<Spanned<Text>>,
    pooler: Option<Spanned<Text>>,
}

/// A text, or a number that stands for one.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text or a number")]
enum Text {
    Words(String),
    Whole(i64),
    Broken(f64),
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Words(text) => f.write_str(text),
            Self::Whole(number) => write!(f, "{number}"),
            Self::Broken(number) => write!(f, "{number}"),
        }
    }
}

impl File {
    fn read(path: &Path) -> Result<(Layer, Serve), Error> {
        let name = path.display();
        let text = fs::read_to_string(path).map_err(|e| {
            Error::with_source(ErrorKind::Config, format!("the configuration file {name}"), e)
        })?;
        let line = |span: Range<usize>| text[..span.start.min(text.len())].matches('\n').count() + 1;
        let file: Self = toml::from_str(&text).map_err(|e| {
            let at = e.span().map_or(String::new(), |span| format!(":{}", line(span)));
            // Of the message only: the line itself may hold a secret.
            Error::new(ErrorKind::Config, format!("{name}{at}: {}", one_line(e.message())))
        })?;
        let by = |span: Range<usize>| format!("{name}:{}", line(span));
        let folder = path.parent().unwrap_or(Path::new(""));
        Ok((file.database.said(folder, by)?, file.serve.beside(folder)))
    }
}

impl Database {
    /// Names of files are those beside the file that names them.
    fn said(self, folder: &Path, by: impl Fn(Range<usize>) -> String) -> Result<Layer, Error> {
        let mut layer = Layer::default();
        if let Some(url) = self.url {
            layer.say_url(url.as_ref(), &by(url.span()))?;
        }
        for (name, said) in [
            ("host", self.host),
            ("hostaddr", self.hostaddr),
            ("port", self.port),
            ("dbname", self.dbname),
            ("user", self.user),
            ("password", self.password),
            ("options", self.options),
            ("application_name", self.application_name),
            ("sslmode", self.sslmode),
            ("sslnegotiation", self.sslnegotiation),
            ("channel_binding", self.channel_binding),
            ("load_balance_hosts", self.load_balance_hosts),
            ("connect_timeout", self.connect_timeout),
            ("statement_timeout", self.statement_timeout),
            ("schema", self.schema),
            ("pool_size", self.pool_size),
            ("pooler", self.pooler),
        ] {
            if let Some(said) = said {
                layer.say(name, said.as_ref().to_string(), by(said.span()));
            }
        }
        for (name, said) in [
            ("passfile", self.passfile),
            ("sslrootcert", self.sslrootcert),
            ("sslcert", self.sslcert),
            ("sslkey", self.sslkey),
        ] {
            if let Some(said) = said {
                let file = match said.as_ref() {
                    system if name == "sslrootcert" && system == Path::new("system") => system.clone(),
                    file => folder.join(file),
                };
                layer.say(name, file.display().to_string(), by(said.span()));
            }
        }
        Ok(layer)
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn read(text: &str) -> Result<(Layer, Serve), Error> {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("it is written");
        File::read(file.path())
    }

    fn refusal(text: &str) -> String {
        read(text).map(drop).expect_err(text).to_string()
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named_with_its_line_and_without_its_value() {
        let unknown = refusal("[database]\nhost = \"h\"\nsllmode = \"hunter2\"\n");
        assert!(unknown.contains(":3: unknown field `sllmode`"), "{unknown}");
        let section = refusal("[databse]\npassword = \"hunter2\"\n");
        assert!(section.contains(":1: unknown field `databse`"), "{section}");
        let form = refusal("[database]\n\npassword = [\"hunter2\"]\n");
        assert!(form.contains(":3: a text or a number"), "{form}");
        let open = refusal("[database]\npassword = \"hunter2\n");
        assert!(open.contains(":2: "), "{open}");
        let url = refusal("[database]\nurl = \"postgres://u:100%hunter2@h\"\n");
        assert!(url.contains(":2: the database URL does not parse"), "{url}");
        for refused in [unknown, section, form, open, url] {
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }
}
