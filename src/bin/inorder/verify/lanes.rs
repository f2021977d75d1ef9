//! The consumers that are put to the test, and the rows that they are made of.

use std::time::Duration;

use inorder::Event;
use tokio_postgres::Client;

use super::site::Site;
use super::statements::LANE;
use super::trouble::Result;

/// How long a handler may take. A frozen process is taken over after this and a second.
pub(crate) const HANDLER_LIMIT: Duration = Duration::from_secs(1);

/// Events of this type go to few consumers.
pub(crate) const RARE: &str = "rare";
/// Events of this type go to handlers that take a while.
pub(crate) const SLOW: &str = "slow";
/// All others.
pub(crate) const PLAIN: &str = "plain";

/// A consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) name: &'static str,
    /// Only events of this type.
    pub(crate) only: Option<&'static str>,
    pub(crate) partitions: i32,
    pub(crate) per_instance: bool,
}

/// One event at a time.
pub(crate) const EACH: Line = Line { name: "each", only: None, partitions: 1, per_instance: false };
/// Slices of events.
pub(crate) const SLICES: Line = Line { name: "slices", only: None, partitions: 1, per_instance: false };
/// A filter.
pub(crate) const FILTERED: Line =
    Line { name: "filtered", only: Some(RARE), partitions: 1, per_instance: false };
/// A row for every process.
pub(crate) const MINE: Line = Line { name: "mine", only: None, partitions: 1, per_instance: true };
/// Partitions, whose handlers take a while: kills and freezes are aimed at them.
pub(crate) const LINGERING: Line =
    Line { name: "lingering", only: Some(SLOW), partitions: 4, per_instance: false };

const LINES: [Line; 5] = [EACH, SLICES, FILTERED, MINE, LINGERING];

impl Line {
    /// The row that an event goes to, in the process of this name.
    pub(crate) fn lane(&self, event: &Event, process: &str) -> String {
        self.lane_of((event.stream_hash() & i32::MAX) % self.partitions, process)
    }

    fn lane_of(&self, partition: i32, process: &str) -> String {
        let instance = if self.per_instance { format!("@{process}") } else { String::new() };
        let partition = if partition > 0 { format!("/{partition}") } else { String::new() };
        format!("{}{instance}{partition}", self.name)
    }
}

/// The name of a process: also that of its instance of per-instance consumers.
pub(crate) fn process_name(slot: usize) -> String {
    format!("p{}", slot + 1)
}

/// Is it a row whose handlers take a while?
pub(crate) fn is_lingering(lane: &str) -> bool {
    lane.starts_with(LINGERING.name)
}

/// Does every event go to this row?
pub(crate) fn wants_everything(lane: &str) -> bool {
    LINES.iter().any(|line| line.only.is_none() && lane.starts_with(line.name))
}

/// Writes down the rows whose events are to be accounted for.
pub(crate) async fn write_down(client: &Client, site: &Site, processes: usize) -> Result<Vec<String>> {
    let statement = client.prepare(&site.sql(LANE)).await?;
    let mut lanes = Vec::new();
    for line in LINES {
        let instances = if line.per_instance { processes } else { 1 };
        for slot in 0..instances {
            for partition in 0..line.partitions {
                let process = process_name(slot);
                let lane = line.lane_of(partition, &process);
                let instance = if line.per_instance { process.as_str() } else { "" };
                let types = line.only.map(|only| vec![only]);
                client
                    .execute(
                        &statement,
                        &[
                            /* lane */ &lane,
                            /* name */ &line.name,
                            /* instance */ &instance,
                            /* partition */ &partition,
                            /* partitions */ &line.partitions,
                            /* event_types */ &types,
                        ],
                    )
                    .await?;
                lanes.push(lane);
            }
        }
    }
    Ok(lanes)
}
