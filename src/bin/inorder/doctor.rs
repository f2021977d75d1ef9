//! `inorder doctor`: what is wrong, and what to do.

use std::time::Duration;

use console::Style;
use inorder::{Doctor, Finding, Severity};
use serde::Serialize;

use crate::failure::Failure;
use crate::options::Options;
use crate::screen::Screen;
use crate::words;

/// Look for everything that goes wrong in practice, and say what to do
///
/// What the safe head rests on, missing triggers, transactions that hold a hole, prepared ones left behind, poolers, vacuum and bloat, the queue of
/// notifications, times from a wrong clock, consumers that are dead or that nobody runs, dead letters, the ledger, hand-offs, processes of
/// different versions, roles that lack a right, durability. Changes nothing. docs/operations.md says more about each.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit code 1 if something hurts now; with --strict also if something will.

Examples:
  inorder doctor
  inorder doctor --patience 10
  inorder doctor --strict --json")]
pub(crate) struct Args {
    /// From which age on something that usually passes by itself is trouble
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(..86_400_000))]
    patience: u64,
    /// Exit code 1 for warnings, too
    #[arg(long)]
    strict: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    healthy: bool,
    findings: &'a [Finding],
}

pub(crate) async fn run(args: &Args, options: &Options, screen: &Screen) -> Result<(), Failure> {
    let admin = options.connect_to_log("doctor").await?.admin();
    let findings = admin.doctor(&Doctor::default().patience(Duration::from_secs(args.patience))).await?;
    if screen.is_json() {
        screen.json(&Answer { healthy: findings.is_empty(), findings: &findings })?;
    } else if findings.is_empty() {
        screen.line("all is well")?;
    } else {
        for finding in &findings {
            tell(finding, screen)?;
        }
    }
    let bad = findings.iter().filter(|f| args.strict || f.severity == Severity::Error).count();
    match bad {
        0 => Ok(()),
        1 => Err(Failure::failed("something is wrong, see above")),
        many => Err(Failure::failed(format!("{many} things are wrong, see above"))),
    }
}

/// The finding, and what to do about it below.
fn tell(finding: &Finding, screen: &Screen) -> std::io::Result<()> {
    let (word, style) = match finding.severity {
        Severity::Error => ("error", Style::new().red().bold()),
        Severity::Warning => ("warning", Style::new().yellow()),
    };
    screen.line(format!(
        "{}  {}: {}",
        screen.styled(&style, word),
        finding.looked_for,
        words::plain(&finding.finding)
    ))?;
    screen.line(format!("         {}", words::plain(&finding.advice)))
}
