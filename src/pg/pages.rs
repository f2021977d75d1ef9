//! Pages of events, for consumers that are far behind.

use deadpool_postgres::ClientWrapper;
use futures_util::{StreamExt, pin_mut};
use tokio_postgres::types::ToSql;

use super::{Schema, sql};
use crate::event::Event;

/// Which events to read.
#[derive(Clone, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) after: i64,
    /// Never beyond the safe head.
    pub(crate) up_to: i64,
    pub(crate) event_types: Option<&'a [String]>,
    pub(crate) partitions: i32,
    pub(crate) partition: i32,
}

/// The events, and whether the page ended before `up_to` was reached: at `rows` events, or at `bytes` of memory.
pub(crate) async fn read(
    client: &ClientWrapper,
    schema: &Schema,
    wanted: &Wanted<'_>,
    rows: i64,
    bytes: usize,
) -> Result<(Vec<Event>, bool), tokio_postgres::Error> {
    let statement = schema.prepare(client, sql!("events/page")).await?;
    let params: [&(dyn ToSql + Sync); 6] = [
        /* after */ &wanted.after,
        /* up_to */ &wanted.up_to,
        /* event_types */ &wanted.event_types,
        /* partitions */ &wanted.partitions,
        /* partition */ &wanted.partition,
        /* rows */ &rows,
    ];
    let stream = statement.query_raw(client, &params).await?;
    pin_mut!(stream);
    let mut events = Vec::with_capacity(usize::try_from(rows).unwrap_or(0));
    let mut held = 0;
    while let Some(row) = stream.next().await {
        let event = Event::from_row(row?);
        held += event.size();
        events.push(event);
        if held > bytes {
            return Ok((events, true));
        }
    }
    let full = i64::try_from(events.len()) == Ok(rows);
    Ok((events, full))
}
