//! Statements on `dead_letters`.

use deadpool_postgres::ClientWrapper;

use super::consumers::Key;
use super::{Schema, sql};
use crate::event::Event;

type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// An event that is passed over, and why.
pub(crate) struct DeadLetter<'a> {
    pub(crate) event: &'a Event,
    pub(crate) attempts: i32,
    pub(crate) error: &'a str,
    pub(crate) reason: &'static str,
}

pub(crate) async fn add(
    client: &ClientWrapper,
    schema: &Schema,
    key: &Key,
    letter: &DeadLetter<'_>,
) -> Result<()> {
    let statement = schema.prepare(client, sql!("dead_letters/add")).await?;
    statement
        .execute(
            client,
            &[
                /* consumer */ &key.name,
                /* instance */ &key.instance,
                /* partition */ &key.partition,
                /* position */ &letter.event.id(),
                /* event_id */ &letter.event.event_id(),
                /* event_type */ &letter.event.event_type(),
                /* attempts */ &letter.attempts,
                /* error */ &letter.error,
                /* reason */ &letter.reason,
            ],
        )
        .await?;
    Ok(())
}

/// The event of a dead letter; `None` when it was pruned.
pub(crate) async fn event(client: &ClientWrapper, schema: &Schema, id: i64) -> Result<Option<Event>> {
    let statement = schema.prepare(client, sql!("dead_letters/event")).await?;
    Ok(statement.query_opt(client, &[/* id */ &id]).await?.map(Event::from_row))
}

/// False when the retry is asked for no more: another process, or an operator, was faster.
pub(crate) async fn settle(
    client: &ClientWrapper,
    schema: &Schema,
    id: i64,
    state: &str,
    error: Option<&str>,
) -> Result<bool> {
    let statement = schema.prepare(client, sql!("dead_letters/settle")).await?;
    let settled = statement.execute(client, &[/* id */ &id, /* state */ &state, /* error */ &error]).await?;
    Ok(settled == 1)
}
