//! `inorder consumers`: what is registered.

use std::collections::BTreeMap;
use std::time::Duration;

use console::Style;
use inorder::Progress;
use serde::Serialize;
use time::OffsetDateTime;

use crate::failure::Failure;
use crate::options::Options;
use crate::screen::Screen;
use crate::table::{Side, Table};
use crate::words::{counted, duration};

/// Show which consumers are registered, and how
///
/// What they are, where `inorder status` shows how they stand: one line for each consumer, however many partitions and instances it
/// has, with what the application registered: the kind, the revision of its configuration, the partitions, the attempts that an event
/// has, and the event types that it wants. A consumer that is registered in two ways, as in the middle of a deployment, has two
/// lines. Other options, such as time limits and back-off, are the application's alone and are not in the database.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder consumers
  inorder consumers --json | jq -r '.consumers[] | select(.kind == \"effect\") | .name'")]
pub(crate) struct Args {}

/// A consumer, as it is registered in one way.
#[derive(Debug, Serialize)]
struct Registered {
    name: String,
    kind: String,
    revision: i32,
    partitions: i32,
    max_attempts: i32,
    /// `None`: every type.
    event_types: Option<Vec<String>>,
    /// Those of a consumer that runs once per instance.
    instances: Vec<String>,
    /// When a process last had one of its rows, give or take an hour.
    #[serde(with = "time::serde::rfc3339")]
    seen_at: OffsetDateTime,
}

#[derive(Serialize)]
struct Answer<'a> {
    consumers: &'a [Registered],
}

pub(crate) async fn run(_args: &Args, options: &Options, screen: &Screen) -> Result<(), Failure> {
    let rows = options.connect_to_log("consumers").await?.admin().list().await?;
    let consumers = registered(rows);
    if screen.is_json() {
        return Ok(screen.json(&Answer { consumers: &consumers })?);
    }
    if consumers.is_empty() {
        return Ok(
            screen.line("no consumer is registered; a dispatcher registers its consumers when it starts")?
        );
    }
    for line in table(&consumers, OffsetDateTime::now_utc()).lines(screen) {
        screen.line(line)?;
    }
    Ok(())
}

/// The rows, those that are registered alike as one, by name.
fn registered(rows: Vec<Progress>) -> Vec<Registered> {
    let mut consumers: BTreeMap<_, Registered> = BTreeMap::new();
    for row in rows {
        let way = (
            row.name.clone(),
            row.revision,
            row.kind.clone(),
            row.partitions,
            row.max_attempts,
            row.event_types.clone(),
        );
        let consumer = consumers.entry(way).or_insert_with(|| Registered {
            name: row.name,
            kind: row.kind,
            revision: row.revision,
            partitions: row.partitions,
            max_attempts: row.max_attempts,
            event_types: row.event_types,
            instances: Vec::new(),
            seen_at: row.seen_at,
        });
        consumer.seen_at = consumer.seen_at.max(row.seen_at);
        if !row.instance.is_empty() && !consumer.instances.contains(&row.instance) {
            consumer.instances.push(row.instance);
        }
    }
    let mut consumers: Vec<Registered> = consumers.into_values().collect();
    consumers.iter_mut().for_each(|consumer| consumer.instances.sort());
    consumers
}

fn table(consumers: &[Registered], now: OffsetDateTime) -> Table {
    let columns = [
        ("CONSUMER", Side::Left),
        ("KIND", Side::Left),
        ("REVISION", Side::Right),
        ("PARTITIONS", Side::Right),
        ("ATTEMPTS", Side::Right),
        ("SEEN", Side::Right),
    ];
    let mut table = Table::new(columns, "EVENT TYPES");
    for c in consumers {
        let cells = [
            c.name.clone(),
            c.kind.clone(),
            c.revision.to_string(),
            c.partitions.to_string(),
            c.max_attempts.to_string(),
            duration(Duration::try_from(now - c.seen_at).unwrap_or_default()),
        ];
        table.row(cells.map(|text| (text, Style::new())), &remark(c));
    }
    table
}

fn remark(c: &Registered) -> String {
    let types = match &c.event_types {
        None => "every type".to_owned(),
        Some(types) => types.join(", "),
    };
    match c.instances.as_slice() {
        [] => types,
        instances => {
            format!("{types}; {}: {}", counted(instances.len() as u64, "instance"), instances.join(", "))
        }
    }
}
