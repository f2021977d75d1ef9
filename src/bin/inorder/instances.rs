//! `inorder instances`: the processes at work.

use std::collections::BTreeMap;
use std::time::Duration;

use console::Style;
use inorder::{Instance, InstanceConsumer, InstanceState};
use serde::Serialize;
use time::OffsetDateTime;

use crate::failure::Failure;
use crate::options::Options;
use crate::screen::Screen;
use crate::table::{Side, Table};
use crate::words::duration;

/// Show the processes that run dispatchers, and what they run
///
/// HEARD is how long ago a process last said that it lives, which it does twice a minute. A consumer stands with the process that was
/// the last to run it; `runs` are those that it runs at this moment. Processes that follow the log, as `inorder tail --follow`
/// does, run nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
States:
  awake     looks at the log
  sleeping  waits for an append to ring
  silent    nothing was heard of it for two minutes: hung, or without a connection
  gone      its session at the server has ended

Examples:
  inorder instances
  inorder instances --json | jq '.instances[] | {host, pid, state}'")]
pub(crate) struct Args {}

#[derive(Serialize)]
struct Answer<'a> {
    instances: &'a [Instance],
}

pub(crate) async fn run(_args: &Args, options: &Options, screen: &Screen) -> Result<(), Failure> {
    let instances = options.connect_to_log("instances").await?.admin().instances().await?;
    if screen.is_json() {
        return Ok(screen.json(&Answer { instances: &instances })?);
    }
    if instances.is_empty() {
        return Ok(screen.line("no process runs a dispatcher")?);
    }
    for line in table(&instances, OffsetDateTime::now_utc()).lines(screen) {
        screen.line(line)?;
    }
    Ok(())
}

fn table(instances: &[Instance], now: OffsetDateTime) -> Table {
    let columns = [
        ("HOST", Side::Left),
        ("PID", Side::Right),
        ("VERSION", Side::Left),
        ("STATE", Side::Left),
        ("UP", Side::Right),
        ("HEARD", Side::Right),
    ];
    let mut table = Table::new(columns, "CONSUMERS");
    for i in instances {
        let plain = Style::new();
        table.row(
            [
                (i.host.clone(), plain.clone()),
                (i.pid.to_string(), plain.clone()),
                (i.version.clone(), plain.clone()),
                (i.state.to_string(), style_of(i.state)),
                (duration(Duration::try_from(now - i.started_at).unwrap_or_default()), plain.clone()),
                (duration(Duration::try_from_secs_f64(i.heartbeat_age).unwrap_or_default()), plain),
            ],
            &remark(&i.consumers),
        );
    }
    table
}

fn style_of(state: InstanceState) -> Style {
    match state {
        InstanceState::Awake | InstanceState::Sleeping => Style::new().green(),
        InstanceState::Silent => Style::new().yellow(),
        InstanceState::Gone => Style::new().red(),
        _ => Style::new().dim(),
    }
}

/// `runs search-index/0,3; ran cache@node-1, search-index/1`.
fn remark(consumers: &[InstanceConsumer]) -> String {
    let parts = [("runs", true), ("ran", false)].map(|(verb, holds)| {
        let names = names(consumers.iter().filter(|c| c.holds == holds));
        (!names.is_empty()).then(|| format!("{verb} {names}"))
    });
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// As `inorder status` names them, the partitions of one together.
fn names<'a>(consumers: impl Iterator<Item = &'a InstanceConsumer>) -> String {
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for c in consumers {
        let name = match c.instance.as_str() {
            "" => c.name.clone(),
            instance => format!("{}@{instance}", c.name),
        };
        let partitions = names.entry(name).or_default();
        if c.partitions > 1 {
            partitions.push(c.partition.to_string());
        }
    }
    let named = names.into_iter().map(|(name, partitions)| match partitions.is_empty() {
        true => name,
        false => format!("{name}/{}", partitions.join(",")),
    });
    named.collect::<Vec<_>>().join(", ")
}
