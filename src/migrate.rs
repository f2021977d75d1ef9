//! Bringing a schema to the version of this library.
//!
//! Everything happens in one transaction, READ COMMITTED, under an advisory lock that is taken before the first look that
//! counts and before the first DDL: of any number of processes that start together one applies and the others find it
//! done, and a process that is killed anywhere leaves nothing behind.
//!
//! What was applied is recorded in the table `migrations`: a row per numbered migration, and a row 0 for the functions and
//! triggers, which are replaced as one bundle whenever their text differs and the recorded one does not come from a
//! newer version of the library. Row 0 also records the structure of the schema as it was left; a schema from which
//! something has gone since is refused.
//!
//! A function whose arguments or result change is dropped by a migration first: CREATE OR REPLACE would refuse it, or
//! leave the old one beside the new.
//!
//! # The lock
//!
//! `pg_advisory_xact_lock(1768845165, k)`: the class is `inom` in ASCII, `k` the first 32 bits of the MD5 of the schema's name.
//!
//! # Rights
//!
//! No superuser: CREATE on the database while the schema is missing, ownership of the schema's tables afterwards. Who finds
//! nothing to do needs no more than SELECT on `migrations`.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use tokio_postgres::{GenericClient, Transaction};

use crate::error::{Error, ErrorKind};
use crate::pg::Schema;
use crate::pg::migrations::{self as table, MIGRATIONS, Migration, Recorded, Site, Structure};
use crate::store::Inorder;

/// The row of the bundle of functions and triggers.
const BUNDLE: i32 = 0;
/// The version that the bundle is recorded as coming from.
const LIBRARY: &str = env!("CARGO_PKG_VERSION");
/// How long a lock on one of our tables is waited for at a time: appends queue up behind a lock that is waited for.
const TABLE_LOCK: Duration = Duration::from_millis(500);
/// How long appends have the tables to themselves before the next try.
const PAUSE: Duration = Duration::from_millis(500);
/// How much later than the wait for a lock a statement ends, and we stop waiting for its answer.
const MARGIN: Duration = Duration::from_secs(1);

/// What [`Inorder::migrate`] did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Migrated {
    /// The version that was found; 0 where there was nothing.
    pub from: i32,
    /// The version that the schema has now.
    pub to: i32,
    /// The migrations that were applied, in order, as `0001_name`.
    pub applied: Vec<String>,
    /// Were the functions and triggers replaced?
    pub functions_replaced: bool,
}

impl Migrated {
    /// Was there anything to do?
    pub fn is_changed(&self) -> bool {
        !self.applied.is_empty() || self.functions_replaced
    }
}

impl fmt::Display for Migrated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.applied.as_slice(), self.functions_replaced) {
            ([], false) => write!(f, "at version {}, nothing to do", self.to),
            ([], true) => write!(f, "at version {}, functions replaced", self.to),
            (applied, _) => {
                write!(f, "from version {} to {}: applied {}", self.from, self.to, applied.join(", "))
            }
        }
    }
}

impl Inorder {
    /// Brings the schema to the version of this library; creates it where it is missing. Any number of processes may call
    /// this at the same time, and at every start.
    ///
    /// Each statement, and the wait for another process that migrates, takes at most [`Config::statement_timeout`]. A wait
    /// for tables in use is cut into short ones, so that appends do not queue up behind it, and ends after the same time.
    ///
    /// Cancel safety: a cancelled call leaves nothing, unless it was about to commit; calling again is always right.
    ///
    /// [`Config::statement_timeout`]: crate::Config::statement_timeout
    ///
    /// # Errors
    /// [`ErrorKind::Migration`] for a schema that is newer than this library or was altered, for a migration that was
    /// altered, and for a server that is too old, a standby, or not UTF-8. [`ErrorKind::Busy`] for tables in use and
    /// for another process that does not come to an end. [`ErrorKind::Ambiguous`] when the answer to the commit was lost.
    /// [`ErrorKind::Database`] where rights are missing.
    pub async fn migrate(&self) -> Result<Migrated, Error> {
        let what = format!("migrating schema {:?}", self.schema().name());
        let patience = Instant::now() + self.limit();
        let migrated = loop {
            match Migrator::new(self, &what).attempt(self).await {
                Err(e) if is_passing(&e) && Instant::now() < patience => {
                    tracing::info!(error = %e.report(), "{what}: in use, trying again");
                    tokio::time::sleep(PAUSE).await;
                }
                Err(e) if is_passing(&e) => return Err(self.in_use(&what, e).await),
                outcome => break outcome?,
            }
        };
        if migrated.is_changed() {
            tracing::info!("{what}: {migrated}");
        }
        Ok(migrated)
    }

    /// Why the locks were not to be had.
    async fn in_use(&self, what: &str, error: Error) -> Error {
        let blockers = match self.client(what).await {
            Ok(client) => table::blockers(&**client, self.schema(), self.limit(), what).await,
            Err(e) => Err(e),
        };
        let blockers = match blockers {
            Ok(found) if found.is_empty() => "nobody any more".to_owned(),
            Ok(found) => found.join(", "),
            Err(e) => format!("unknown: {}", e.report()),
        };
        Error::with_source(
            ErrorKind::Busy,
            format!(
                "{what}: gave up after {:.1} s, the schema is in use (by {blockers}); wait for these or end them, then call again",
                self.limit().as_secs_f64()
            ),
            error,
        )
    }

    /// Makes sure, without changing anything, that the schema is there and neither older nor newer than this library.
    ///
    /// # Errors
    /// [`ErrorKind::Migration`] if it is not, saying what to do.
    pub async fn check_schema(&self) -> Result<(), Error> {
        let what = format!("checking schema {:?}", self.schema().name());
        let client = self.client(&what).await?;
        self.check_schema_on(&**client, self.limit(), &what).await
    }

    /// The same, on a connection of the caller's.
    pub(crate) async fn check_schema_on(
        &self,
        client: &impl GenericClient,
        limit: Duration,
        what: &str,
    ) -> Result<(), Error> {
        let look = Look::take(client, self.schema(), limit, what).await?;
        look.refuse(what)?;
        if look.is_current() {
            return Ok(());
        }
        let found = match look.version() {
            0 => "there is no log in it".to_owned(),
            version if look.pending().is_empty() => {
                format!("the functions of its version {version} are not those of inorder {LIBRARY}")
            }
            version => {
                format!("it has version {version}, inorder {LIBRARY} needs version {}", MIGRATIONS.len())
            }
        };
        Err(refusal(what, format_args!("{found}; run `inorder migrate` or call migrate()")))
    }
}

/// Worth another try at once: a lock that was not to be had, a deadlock.
fn is_passing(error: &Error) -> bool {
    matches!(error.sqlstate(), Some("55P03" | "40P01"))
}

fn refusal(what: &str, why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Migration, format!("{what}: {why}"))
}

/// What there is, and what it should be.
struct Look {
    site: Site,
    recorded: Vec<Recorded>,
    bundle: Vec<(&'static str, String)>,
    bundle_checksum: String,
    schema: String,
}

impl Look {
    async fn take(
        client: &impl GenericClient,
        schema: &Schema,
        limit: Duration,
        what: &str,
    ) -> Result<Self, Error> {
        let site = table::site(client, schema, limit, what).await?;
        let recorded = if site.migrations_is_ours {
            table::list(client, schema, limit, what).await?
        } else {
            Vec::new()
        };
        let (bundle, bundle_checksum) = table::functions(schema);
        Ok(Self { site, recorded, bundle, bundle_checksum, schema: schema.quoted().to_owned() })
    }

    /// The version that was found; 0 for none.
    fn version(&self) -> i32 {
        self.recorded.last().map_or(0, |r| r.version)
    }

    fn pending(&self) -> &'static [Migration] {
        let done = usize::try_from(self.version()).unwrap_or(0);
        MIGRATIONS.get(done..).unwrap_or_default()
    }

    fn is_current(&self) -> bool {
        self.pending().is_empty() && self.bundle_is_current()
    }

    fn nothing_to_do(&self) -> Migrated {
        let version = self.version();
        Migrated { from: version, to: version, applied: Vec::new(), functions_replaced: false }
    }

    fn recorded_bundle(&self) -> Option<&Recorded> {
        self.recorded.first().filter(|r| r.version == BUNDLE)
    }

    /// Are the functions ours, or those of a newer version, which are left alone?
    fn bundle_is_current(&self) -> bool {
        self.recorded_bundle()
            .is_some_and(|r| r.checksum == self.bundle_checksum || order(&r.library) > order(LIBRARY))
    }

    fn structure(&self) -> Option<&Structure> {
        self.recorded_bundle()?.structure.as_ref()
    }

    /// Everything that makes migrating wrong whatever is to be done.
    fn refuse(&self, what: &str) -> Result<(), Error> {
        refuse_site(&self.site, &self.schema, what)?;
        refuse_records(MIGRATIONS, &self.recorded, &self.schema, what)
    }

    /// What may be created, and by whom.
    fn refuse_rights(&self, what: &str) -> Result<(), Error> {
        let Site { role, database, schema_exists, schema_owner, may_create, .. } = &self.site;
        let schema = &self.schema;
        if *may_create {
            return Ok(());
        }
        Err(refusal(
            what,
            match (schema_exists, schema_owner) {
                (true, Some(owner)) => format!(
                    "role {role:?} may not create anything in the schema; run it as {owner:?}, which owns it, or GRANT ALL ON SCHEMA {schema} TO {role:?}"
                ),
                _ => format!(
                    "the schema is missing and role {role:?} may not create one in database {database:?}; GRANT CREATE ON DATABASE {database:?} TO {role:?}, or CREATE SCHEMA {schema} AUTHORIZATION {role:?}"
                ),
            },
        ))
    }
}

fn refuse_site(site: &Site, schema: &str, what: &str) -> Result<(), Error> {
    let why = if site.server_version < 140_000 {
        format!("the server is PostgreSQL {}; 14 or later is needed", site.server_version_text)
    } else if site.standby {
        "the server is a standby, which takes no writes; connect to the primary".to_owned()
    } else if site.encoding != "UTF8" {
        format!(
            "database {:?} has encoding {}; a log needs UTF8: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
            site.database, site.encoding
        )
    } else if site.has_migrations && !site.migrations_is_ours {
        format!("{schema}.migrations is a table of somebody else; choose another schema")
    } else if !site.has_migrations && !site.tables.is_empty() {
        format!(
            "it holds {} but no table migrations, so nobody knows what was applied; choose another schema, or restore {schema}.migrations from a backup",
            site.tables.join(", ")
        )
    } else {
        return Ok(());
    };
    Err(refusal(what, why))
}

fn refuse_records(ours: &[Migration], recorded: &[Recorded], schema: &str, what: &str) -> Result<(), Error> {
    let numbered = || recorded.iter().filter(|r| r.version != BUNDLE);
    if let Some(newest) = numbered().next_back()
        && usize::try_from(newest.version).is_ok_and(|version| version > ours.len())
    {
        return Err(refusal(
            what,
            format_args!(
                "it has version {} ({}), applied by inorder {}; inorder {LIBRARY} knows versions up to {}: use the newer library",
                newest.version,
                newest.name,
                newest.library,
                ours.len()
            ),
        ));
    }
    for (ours, theirs) in ours.iter().zip(numbered()) {
        if ours.version != theirs.version {
            return Err(refusal(
                what,
                format_args!(
                    "migration {} ({}) is not recorded in {schema}.migrations though a later one is; restore that row",
                    ours.version, ours.name
                ),
            ));
        }
        if ours.checksum() != theirs.checksum {
            return Err(refusal(
                what,
                format_args!(
                    "migration {} ({}) was altered after it was applied: recorded checksum {}…, ours {}…; restore the file or use inorder {}, which applied it",
                    ours.version,
                    ours.name,
                    short(&theirs.checksum),
                    short(&ours.checksum()),
                    theirs.library
                ),
            ));
        }
    }
    Ok(())
}

/// What was recorded and is not there as it was. What was added is somebody else's, and welcome.
fn difference(recorded: &Structure, found: &Structure, schema: &str) -> Option<String> {
    const SHOWN: usize = 8;
    let is_table_gone = |part: &str| {
        let table = part.split([' ', '.']).nth(1).map(|table| format!("table {table}"));
        table.is_some_and(|table| {
            table != part && recorded.contains_key(&table) && !found.contains_key(&table)
        })
    };
    let mut differences: Vec<String> = recorded
        .iter()
        .filter(|(part, _)| !is_table_gone(part))
        .filter_map(|(part, was)| match found.get(part) {
            None => Some(format!("{part} is missing")),
            Some(is) if is != was => Some(format!("{part} is now `{is}`, was `{was}`")),
            Some(_) => None,
        })
        .collect();
    if differences.is_empty() {
        return None;
    }
    if let Some(more) = differences.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        differences.truncate(SHOWN);
        differences.push(format!("{more} more"));
    }
    Some(format!(
        "it was altered since it was migrated: {}; put that back, or, to have functions and triggers put back and accept the rest as it is, DELETE FROM {schema}.migrations WHERE version = 0 and migrate again",
        differences.join("; ")
    ))
}

/// One attempt on a connection of its own, whose end is also the end of whatever was left open.
struct Migrator<'a> {
    schema: &'a Schema,
    what: &'a str,
    /// How long the server waits for another migrator; everything else follows from it.
    wait: Duration,
    /// How long we wait for an answer.
    limit: Duration,
}

impl<'a> Migrator<'a> {
    fn new(log: &'a Inorder, what: &'a str) -> Self {
        Self { schema: log.schema(), what, wait: log.limit(), limit: log.limit() + 2 * MARGIN }
    }

    async fn attempt(&self, log: &Inorder) -> Result<Migrated, Error> {
        let mut client = log.connector().connect().await?;
        let tx = table::begin(&mut client, self.limit, self.what).await?;
        table::settings(&tx, self.limit, self.what, self.wait, self.wait + MARGIN).await?;
        let look = self.look(&tx).await?;
        // A difference may be the work of another process between two of our looks: decided under the lock.
        if look.is_current() && self.difference(&tx, &look).await?.is_none() {
            return Ok(look.nothing_to_do());
        }
        table::lock(&tx, self.schema, self.limit, self.what).await?;
        table::settings(&tx, self.limit, self.what, TABLE_LOCK.min(self.wait), self.wait + MARGIN).await?;
        let look = self.look(&tx).await?;
        if let Some(difference) = self.difference(&tx, &look).await? {
            return Err(refusal(self.what, difference));
        }
        if look.is_current() {
            return Ok(look.nothing_to_do());
        }
        let migrated = self.apply(&tx, &look).await?;
        self.commit(tx).await?;
        Ok(migrated)
    }

    async fn look(&self, tx: &Transaction<'_>) -> Result<Look, Error> {
        let look = Look::take(tx, self.schema, self.limit, self.what).await?;
        look.refuse(self.what)?;
        Ok(look)
    }

    /// What was altered since it was recorded.
    async fn difference(&self, tx: &Transaction<'_>, look: &Look) -> Result<Option<String>, Error> {
        let Some(recorded) = look.structure() else { return Ok(None) };
        let found = table::structure(tx, self.schema, self.limit, self.what).await?;
        Ok(difference(recorded, &found, &look.schema))
    }

    async fn apply(&self, tx: &Transaction<'_>, look: &Look) -> Result<Migrated, Error> {
        let from = look.version();
        let mut migrated = Migrated { from, to: from, applied: Vec::new(), functions_replaced: true };
        look.refuse_rights(self.what)?;
        if !look.site.schema_exists {
            table::create_schema(tx, self.schema, self.limit, self.what).await?;
        }
        let before = table::structure(tx, self.schema, self.limit, self.what).await?;
        if !look.site.has_migrations {
            table::create(tx, self.schema, self.limit, self.what).await?;
        }
        for migration in look.pending() {
            let name = format!("{:04}_{}", migration.version, migration.name);
            let what = format!("{}: applying migration {name}", self.what);
            table::apply(tx, &self.schema.render(migration.text), self.limit, &what).await?;
            let row = record(migration.version, migration.name, migration.checksum(), None);
            table::record(tx, self.schema, self.limit, &what, row).await?;
            migrated.to = migration.version;
            migrated.applied.push(name);
        }
        // A migration may have changed what functions and triggers hang on, so they follow it in any case.
        for (name, text) in &look.bundle {
            let what = format!("{}: replacing the functions and triggers of {name}", self.what);
            table::apply(tx, text, self.limit, &what).await?;
        }
        let what = format!("{}: recording the functions and triggers", self.what);
        let mut structure = table::structure(tx, self.schema, self.limit, &what).await?;
        structure.retain(|part, _| !is_foreign(part, &before, look));
        let row = record(BUNDLE, "functions", look.bundle_checksum.clone(), Some(structure));
        table::record(tx, self.schema, self.limit, &what, row).await?;
        Ok(migrated)
    }

    /// A commit whose answer was lost may have happened. Also one that was answered by the end of the session: a
    /// server that waits for its standbys has committed by then.
    async fn commit(&self, tx: Transaction<'_>) -> Result<(), Error> {
        let what = format!("{}: committing", self.what);
        crate::pg::deadline(self.limit, &what, tx.commit()).await.map_err(|e| match e.kind() {
            ErrorKind::Connection | ErrorKind::Timeout => Error::with_source(
                ErrorKind::Ambiguous,
                format!(
                    "{what}: no answer came, so it is done or not done; call migrate() again, which finds out"
                ),
                e,
            ),
            _ => e,
        })
    }
}

fn record(version: i32, name: &str, checksum: String, structure: Option<Structure>) -> Recorded {
    Recorded { version, name: name.to_owned(), checksum, library: LIBRARY.to_owned(), structure }
}

/// Was this there before, without being ours? Where nothing was recorded but something applied, an operator has accepted
/// what is there.
fn is_foreign(part: &str, before: &Structure, look: &Look) -> bool {
    let ours = match look.structure() {
        Some(recorded) => recorded.contains_key(part),
        None => look.version() > 0,
    };
    before.contains_key(part) && !ours
}

fn short(checksum: &str) -> &str {
    checksum.get(..8).unwrap_or(checksum)
}

/// A version of the library as something that can be compared.
fn order(version: &str) -> Vec<u64> {
    let release = version.split(['-', '+']).next().unwrap_or_default();
    release.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &[Migration] = &[
        Migration { version: 1, name: "one", text: "CREATE TABLE one" },
        Migration { version: 2, name: "two", text: "CREATE TABLE two" },
        Migration { version: 3, name: "three", text: "CREATE TABLE three" },
    ];

    fn recorded(versions: &[usize]) -> Vec<Recorded> {
        let bundle = record(BUNDLE, "functions", "x".into(), None);
        let row = |version: &usize| {
            let migration = &OURS[version - 1];
            record(migration.version, migration.name, migration.checksum(), None)
        };
        std::iter::once(bundle).chain(versions.iter().map(row)).collect()
    }

    fn refused(recorded: &[Recorded]) -> String {
        refuse_records(OURS, recorded, "\"shop\"", "migrating schema \"shop\"")
            .map_or_else(|e| e.to_string(), |()| String::new())
    }

    #[test]
    fn what_was_applied_so_far_is_in_order() {
        for versions in [&[][..], &[1], &[1, 2], &[1, 2, 3]] {
            assert_eq!(refused(&recorded(versions)), "", "{versions:?}");
        }
    }

    #[test]
    fn a_migration_that_was_left_out_is_named() {
        let message = refused(&recorded(&[1, 3]));
        assert!(message.contains("migration 2 (two) is not recorded in \"shop\".migrations"), "{message}");
    }

    #[test]
    fn an_altered_migration_is_named_with_both_checksums() {
        let mut rows = recorded(&[1, 2, 3]);
        rows[2].checksum = "ab12".repeat(16);
        let ours = OURS[1].checksum();
        assert_eq!(
            refused(&rows),
            format!(
                "migrating schema \"shop\": migration 2 (two) was altered after it was applied: recorded checksum ab12ab12…, ours {}…; restore the file or use inorder {LIBRARY}, which applied it",
                &ours[..8]
            )
        );
    }

    #[test]
    fn a_server_older_than_14_is_refused() {
        let mut site = Site {
            server_version: 140_000,
            server_version_text: "14.0".into(),
            encoding: "UTF8".into(),
            standby: false,
            database: "shop".into(),
            role: "shop".into(),
            schema_exists: false,
            schema_owner: None,
            may_create: true,
            has_migrations: false,
            migrations_is_ours: false,
            tables: Vec::new(),
        };
        assert!(refuse_site(&site, "\"shop\"", "migrating").is_ok());
        (site.server_version, site.server_version_text) = (130_014, "13.14".into());
        let message = refuse_site(&site, "\"shop\"", "migrating").expect_err("13 is too old").to_string();
        assert_eq!(message, "migrating: the server is PostgreSQL 13.14; 14 or later is needed");
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(order("0.10.0") > order("0.9.9"));
        assert!(order("1.0.0") > order("0.10.0"));
        assert_eq!(order("1.0.0-rc.1"), order("1.0.0"));
    }
}
