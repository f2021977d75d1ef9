//! Statements on `instances`.

use deadpool_postgres::ClientWrapper;
use uuid::Uuid;

use super::{Schema, sql};

type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// Who a process is.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) id: Uuid,
    pub(crate) host: String,
    pub(crate) pid: i32,
}

impl Identity {
    /// This process, under a new id.
    pub(crate) fn of_this_process() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map(|name| name.trim().to_owned())
            .or_else(|_| std::env::var("HOSTNAME"))
            .unwrap_or_else(|_| "unknown".into());
        Self { id: Uuid::new_v4(), host, pid: i32::try_from(std::process::id()).unwrap_or(i32::MAX) }
    }
}

pub(crate) async fn enter(
    client: &ClientWrapper,
    schema: &Schema,
    who: &Identity,
    epoch: Uuid,
) -> Result<()> {
    let statement = schema.prepare(client, sql!("instances/enter")).await?;
    let version = env!("CARGO_PKG_VERSION");
    statement
        .execute(
            client,
            &[
                /* id */ &who.id, /* epoch */ &epoch, /* host */ &who.host,
                /* pid */ &who.pid, /* version */ &version,
            ],
        )
        .await?;
    Ok(())
}

/// The epoch of the process, `None` when it is not entered.
pub(crate) async fn mark(
    client: &ClientWrapper,
    schema: &Schema,
    id: Uuid,
    asleep: bool,
) -> Result<Option<Uuid>> {
    let statement = schema.prepare(client, sql!("instances/mark")).await?;
    let row = statement.query_opt(client, &[/* id */ &id, /* asleep */ &asleep]).await?;
    Ok(row.map(|r| r.get("epoch")))
}

/// Holds this process's lock for as long as the session lives.
pub(crate) async fn be_present(client: &ClientWrapper, schema: &Schema, id: Uuid) -> Result<()> {
    client.execute(&*schema.sql(sql!("instances/be_present")), &[/* id */ &id]).await?;
    Ok(())
}

pub(crate) async fn leave(client: &ClientWrapper, schema: &Schema, id: Uuid) -> Result<()> {
    let statement = schema.prepare(client, sql!("instances/leave")).await?;
    statement.execute(client, &[/* id */ &id]).await?;
    Ok(())
}

/// The epoch of the process on the server behind this session, `None` when it is not entered.
pub(crate) async fn epoch(client: &ClientWrapper, schema: &Schema, id: Uuid) -> Result<Option<Uuid>> {
    let statement = schema.prepare(client, sql!("instances/epoch")).await?;
    Ok(statement.query_opt(client, &[/* id */ &id]).await?.map(|r| r.get("epoch")))
}

/// How many processes live, by version.
#[cfg(feature = "http")]
pub(crate) async fn count(client: &ClientWrapper, schema: &Schema) -> Result<Vec<(String, i64)>> {
    let statement = schema.prepare(client, sql!("instances/count")).await?;
    let rows = statement.query(client, &[]).await?;
    Ok(rows.iter().map(|r| (r.get(0), r.get(1))).collect())
}
