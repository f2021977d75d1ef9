//! `inorder blockers`: who is writing, and so may hold the safe head.

use std::time::Duration;

use console::Style;
use inorder::{Blocker, LogProgress};
use serde::Serialize;

use crate::failure::Failure;
use crate::options::Options;
use crate::screen::Screen;
use crate::status::log_in_words;
use crate::table::{Side, Table};
use crate::words::duration;

/// Show who is writing, and so may hold back the delivery of everything behind a hole
///
/// An id is taken before its event is committed. While a transaction that may still fill a hole is open, nothing behind that
/// hole is delivered. The oldest transaction comes first; to end it is for you to decide: COMMIT or ROLLBACK in its session,
/// `SELECT pg_terminate_backend(PID)`, or for a prepared transaction `ROLLBACK PREPARED 'GID'`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder blockers
  inorder blockers --json")]
pub(crate) struct Args {}

#[derive(Serialize)]
struct Answer {
    log: LogProgress,
    blockers: Vec<Blocker>,
}

pub(crate) async fn run(_args: &Args, options: &Options, screen: &Screen) -> Result<(), Failure> {
    let admin = options.connect_to_log("blockers").await?.admin();
    let (blockers, log) = (admin.blockers().await?, admin.log_progress().await?);
    if screen.is_json() {
        return Ok(screen.json(&Answer { log, blockers })?);
    }
    match blockers.is_empty() {
        true => screen.line("nobody is writing")?,
        false => {
            for line in table(&blockers).lines(screen) {
                screen.line(line)?;
            }
        }
    }
    // Who holds it stands above.
    Ok(screen.line(screen.styled(&Style::new().dim(), log_in_words(&log, &[])))?)
}

fn table(blockers: &[Blocker]) -> Table {
    let columns = [
        ("PID", Side::Right),
        ("OPEN FOR", Side::Right),
        ("STATE", Side::Left),
        ("APPLICATION", Side::Left),
        ("USER", Side::Left),
    ];
    let mut table = Table::new(columns, "WHAT");
    for blocker in blockers {
        let known =
            |text: &Option<String>| text.clone().filter(|t| !t.is_empty()).unwrap_or_else(|| "–".into());
        let age = blocker.age_seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
        let cells = [
            blocker.pid.map_or("–".into(), |pid| pid.to_string()),
            age.map_or("–".into(), duration),
            blocker.state.clone(),
            known(&blocker.application),
            known(&blocker.username),
        ];
        table.row(cells.map(|text| (text, Style::new())), &what(blocker));
    }
    table
}

fn what(blocker: &Blocker) -> String {
    let mut parts = Vec::new();
    if let Some(gid) = &blocker.prepared_gid {
        parts.push(format!("ROLLBACK PREPARED '{}'", gid.replace('\'', "''")));
    }
    if let Some(consumer) = &blocker.consumer {
        let mut pass = format!("a pass of {consumer}");
        if let (Some(id), Some(kind)) = (blocker.event_position, &blocker.event_type) {
            pass.push_str(&format!(" at event {id} ({kind})"));
        }
        parts.push(pass);
    }
    parts.join("; ")
}
