//! Landings and total delay per airport: kept by a consumer, and folded from the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use inorder::{
    Append, Consumer, Dispatcher, Event, ExpectedVersion, Failure, HandlerTx, Inorder, NewEvent, Outcome,
    TransactionalHandler,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What is kept for an airport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Landed {
    pub(crate) count: i64,
    /// In minutes; early flights make it smaller.
    pub(crate) delay: i64,
}

pub(crate) type Airports = BTreeMap<String, Landed>;

#[derive(Deserialize)]
struct Line<'a> {
    event_id: Uuid,
    event_type: String,
    stream_type: String,
    stream_id: String,
    #[serde(borrow)]
    payload: &'a RawValue,
}

#[derive(Deserialize)]
struct Flight {
    destination: String,
    delay: i64,
}

fn lines(file: &Path) -> Result<impl Iterator<Item = std::io::Result<String>>> {
    let opened = File::open(file).map_err(|e| format!("opening {}: {e}", file.display()))?;
    Ok(BufReader::new(opened).lines())
}

/// Appends the file, 500 events at a time. Answers how many were new and how many there already.
pub(crate) async fn append(log: &Inorder, file: &Path) -> Result<(usize, usize)> {
    let mut events = Vec::new();
    for line in lines(file)? {
        let line = line?;
        let line: Line<'_> = serde_json::from_str(&line)?;
        let event = NewEvent::from_json(line.event_type, line.payload.get());
        events.push(event.event_id(line.event_id).in_stream(line.stream_type, line.stream_id));
    }
    let (mut appended, mut already_there) = (0, 0);
    for batch in events.chunks(500) {
        match log.append(ExpectedVersion::Any, batch).await? {
            Append::Appended(ids) => appended += ids.len(),
            Append::AlreadyAppended(ids) => already_there += ids.len(),
            Append::Completed { ids, already } => {
                appended += ids.len() - already;
                already_there += already;
            }
            refused => return Err(format!("{refused:?}").into()),
        }
    }
    Ok((appended, already_there))
}

struct Landings;

impl TransactionalHandler for Landings {
    async fn handle(&self, event: &Event, tx: &HandlerTx<'_>) -> std::result::Result<(), Failure> {
        let flight: Flight = event.payload()?;
        tx.execute(
            "INSERT INTO landings AS l (airport, landings, delay) VALUES ($1, 1, $2)
             ON CONFLICT (airport) DO UPDATE SET landings = l.landings + 1, delay = l.delay + excluded.delay",
            &[&flight.destination, &flight.delay],
        )
        .await?;
        Ok(())
    }
}

/// Runs the consumer until its lag is 0. Answers how many events it handled.
pub(crate) async fn project(log: &Inorder) -> Result<u64> {
    let table = "CREATE TABLE IF NOT EXISTS landings (airport text PRIMARY KEY, landings bigint NOT NULL, delay bigint NOT NULL)
        WITH (fillfactor = 50)";
    log.get().await?.batch_execute(table).await?;
    let landings = Consumer::transactional("landings", Landings).only(["flight.landed"]);
    let dispatcher = Dispatcher::builder(log).consumer(landings).build()?;
    let report = dispatcher.register().await?.drain().await?;
    match report["landings"].outcome {
        Outcome::CaughtUp => Ok(report.processed()),
        ref other => Err(format!("the consumer is {other:?}: inorder status tells why").into()),
    }
}

/// What the consumer made of the log.
pub(crate) async fn projected(log: &Inorder) -> Result<Airports> {
    let rows = log.get().await?.query("SELECT airport, landings, delay FROM landings", &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), Landed { count: row.get(1), delay: row.get(2) })).collect())
}

/// The same, from the file alone.
pub(crate) fn fold(file: &Path) -> Result<Airports> {
    let mut airports = Airports::new();
    for line in lines(file)? {
        let line = line?;
        let line: Line<'_> = serde_json::from_str(&line)?;
        let flight: Flight = serde_json::from_str(line.payload.get())?;
        let landed = airports.entry(flight.destination).or_default();
        landed.count += 1;
        landed.delay += flight.delay;
    }
    Ok(airports)
}
