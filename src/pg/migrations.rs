//! The text of the schema, and the statements on `migrations`.

use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio_postgres::types::Json;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, IsolationLevel, Row, Transaction};

use super::{Schema, deadline, sql};
use crate::error::{Error, ErrorKind};

include!(concat!(env!("OUT_DIR"), "/schema_files.rs"));

/// One step from one version of the schema to the next. Never edited once released.
pub(crate) struct Migration {
    pub(crate) version: i32,
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

impl Migration {
    /// Of the text as it is in the file: the same in every schema, and after a schema was renamed.
    pub(crate) fn checksum(&self) -> String {
        checksum(self.text)
    }
}

/// All functions and triggers for one schema: the text of each file by its name, and the checksum of them all.
pub(crate) fn functions(schema: &Schema) -> (Vec<(&'static str, String)>, String) {
    let files: Vec<_> = FUNCTIONS.iter().map(|(name, text)| (*name, schema.render(text))).collect();
    let checksum = checksum(&files.iter().map(|(_, text)| text.as_str()).collect::<String>());
    (files, checksum)
}

fn checksum(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every part of the schema, by name, and what matters about it, in words.
pub(crate) type Structure = BTreeMap<String, String>;

/// A row of `migrations`.
pub(crate) struct Recorded {
    pub(crate) version: i32,
    pub(crate) name: String,
    pub(crate) checksum: String,
    pub(crate) library: String,
    pub(crate) structure: Option<Structure>,
}

/// The server, the database, and what the schema's name stands for there.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) server_version: i32,
    pub(crate) server_version_text: String,
    pub(crate) encoding: String,
    pub(crate) standby: bool,
    pub(crate) database: String,
    pub(crate) role: String,
    pub(crate) schema_exists: bool,
    pub(crate) schema_owner: Option<String>,
    pub(crate) may_create: bool,
    pub(crate) has_migrations: bool,
    pub(crate) migrations_is_ours: bool,
    /// Those of our tables that are there.
    pub(crate) tables: Vec<String>,
}

/// Begins the transaction of a migration: READ COMMITTED, as what was done while waiting for the lock must be seen.
pub(crate) async fn begin<'a>(
    client: &'a mut deadpool_postgres::ClientWrapper,
    limit: Duration,
    what: &str,
) -> Result<Transaction<'a>, Error> {
    let begin = tokio_postgres::Client::build_transaction(client)
        .isolation_level(IsolationLevel::ReadCommitted)
        .start();
    deadline(limit, what, begin).await
}

/// Bounds the waits of the transaction.
pub(crate) async fn settings(
    tx: &Transaction<'_>,
    limit: Duration,
    what: &str,
    lock_timeout: Duration,
    statement_timeout: Duration,
) -> Result<(), Error> {
    let millis = |limit: Duration| limit.as_millis().max(1).to_string();
    let values = [
        /* lock_timeout */ millis(lock_timeout),
        /* statement_timeout */ millis(statement_timeout),
    ];
    deadline(limit, what, tx.query_one(sql!("migrations/settings"), &[&values[0], &values[1]])).await?;
    Ok(())
}

/// Waits until no other process migrates the schema.
pub(crate) async fn lock(
    tx: &Transaction<'_>,
    schema: &Schema,
    limit: Duration,
    what: &str,
) -> Result<(), Error> {
    deadline(limit, what, tx.query_one(sql!("migrations/lock"), &[/* schema */ &schema.name()])).await?;
    Ok(())
}

/// Who is in the way of a migration, in words; whoever is migrating first.
pub(crate) async fn blockers(
    client: &impl GenericClient,
    schema: &Schema,
    limit: Duration,
    what: &str,
) -> Result<Vec<String>, Error> {
    let rows = deadline(
        limit,
        what,
        client.query_typed(sql!("migrations/blockers"), &[(/* schema */ &schema.name(), Type::TEXT)]),
    )
    .await?;
    rows.iter().map(|row| get(row, "blocker", what)).collect()
}

/// What a statement answers, whose one parameter is the schema's name. Nothing is prepared: the session may be a pooler's.
async fn of_schema(
    client: &impl GenericClient,
    statement: &str,
    schema: &Schema,
    limit: Duration,
    what: &str,
) -> Result<Row, Error> {
    let params = [(/* schema */ &schema.name() as &(dyn ToSql + Sync), Type::TEXT)];
    deadline(limit, what, client.query_typed_one(statement, &params)).await
}

/// The server and what the schema's name stands for there.
pub(crate) async fn site(
    client: &impl GenericClient,
    schema: &Schema,
    limit: Duration,
    what: &str,
) -> Result<Site, Error> {
    let row = of_schema(client, sql!("migrations/site"), schema, limit, what).await?;
    Ok(Site {
        server_version: get(&row, "server_version", what)?,
        server_version_text: get(&row, "server_version_text", what)?,
        encoding: get(&row, "encoding", what)?,
        standby: get(&row, "standby", what)?,
        database: get(&row, "database", what)?,
        role: get(&row, "role", what)?,
        schema_exists: get(&row, "schema_exists", what)?,
        schema_owner: get(&row, "schema_owner", what)?,
        may_create: get(&row, "may_create", what)?,
        has_migrations: get(&row, "has_migrations", what)?,
        migrations_is_ours: get(&row, "migrations_is_ours", what)?,
        tables: get(&row, "tables", what)?,
    })
}

/// Creates the schema. Asked for only where it is missing: IF NOT EXISTS would need the right to create one anyway.
pub(crate) async fn create_schema(
    tx: &Transaction<'_>,
    schema: &Schema,
    limit: Duration,
    what: &str,
) -> Result<(), Error> {
    let text = format!("-- inorder migrations/create_schema\nCREATE SCHEMA {}", schema.quoted());
    deadline(limit, what, tx.batch_execute(&text)).await
}

/// Creates the table of migrations.
pub(crate) async fn create(
    tx: &Transaction<'_>,
    schema: &Schema,
    limit: Duration,
    what: &str,
) -> Result<(), Error> {
    deadline(limit, what, tx.batch_execute(&schema.sql(sql!("migrations/create")))).await
}

/// What was applied, in the order of versions.
pub(crate) async fn list(
    client: &impl GenericClient,
    schema: &Schema,
    limit: Duration,
    what: &str,
) -> Result<Vec<Recorded>, Error> {
    let rows = deadline(limit, what, client.query_typed(&schema.sql(sql!("migrations/list")), &[])).await?;
    rows.iter()
        .map(|row| {
            Ok(Recorded {
                version: get(row, "version", what)?,
                name: get(row, "name", what)?,
                checksum: get(row, "checksum", what)?,
                library: get(row, "library", what)?,
                structure: get::<Option<Json<Structure>>>(row, "structure", what)?.map(|Json(s)| s),
            })
        })
        .collect()
}

/// Runs the text of a migration or the bundle of functions, already rendered.
pub(crate) async fn apply(
    tx: &Transaction<'_>,
    text: &str,
    limit: Duration,
    what: &str,
) -> Result<(), Error> {
    deadline(limit, what, tx.batch_execute(text)).await
}

/// Records what was applied.
pub(crate) async fn record(
    tx: &Transaction<'_>,
    schema: &Schema,
    limit: Duration,
    what: &str,
    row: Recorded,
) -> Result<(), Error> {
    let statement = schema.sql(sql!("migrations/record"));
    let structure = row.structure.map(Json);
    let params: [&(dyn ToSql + Sync); 5] = [
        /* version */ &row.version,
        /* name */ &row.name,
        /* checksum */ &row.checksum,
        /* library */ &row.library,
        /* structure */ &structure,
    ];
    match deadline(limit, what, tx.execute(&*statement, &params)).await? {
        1 => Ok(()),
        n => Err(Error::new(
            ErrorKind::Migration,
            format!("{what}: recording version {} changed {n} rows; it is recorded already", row.version),
        )),
    }
}

/// The schema as it is.
pub(crate) async fn structure(
    client: &impl GenericClient,
    schema: &Schema,
    limit: Duration,
    what: &str,
) -> Result<Structure, Error> {
    let row = of_schema(client, sql!("migrations/structure"), schema, limit, what).await?;
    let Json(structure) = get(&row, "structure", what)?;
    Ok(structure)
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: &str,
    what: &str,
) -> Result<T, Error> {
    row.try_get(column).map_err(|e| Error::statement(what, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A migration or function file that the build left out would be missed only by those who call it.
    #[test]
    fn the_lists_hold_every_file() {
        let files = |folder: &str| {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("sql").join(folder);
            let mut files: Vec<String> = std::fs::read_dir(folder)
                .expect("the folder is there")
                .map(|entry| entry.expect("it can be read").file_name().into_string().expect("an ASCII name"))
                .collect();
            files.sort();
            files
        };
        let migrations: Vec<_> =
            MIGRATIONS.iter().map(|m| format!("{:04}_{}.sql", m.version, m.name)).collect();
        assert_eq!(migrations, files("migrations"));
        let functions: Vec<_> = FUNCTIONS.iter().map(|(name, _)| format!("{name}.sql")).collect();
        assert_eq!(functions, files("functions"));
    }

    /// CREATE OR REPLACE alone can be applied again and again.
    #[test]
    fn every_function_and_trigger_is_created_or_replaced() {
        for (name, text) in FUNCTIONS {
            for line in text.lines().filter(|line| line.starts_with("CREATE")) {
                assert!(line.starts_with("CREATE OR REPLACE "), "sql/functions/{name}.sql: {line}");
            }
        }
    }
}
