//! `inorder migrate`: brings the schema to the version of this tool.

use crate::failure::Failure;
use crate::options::Options;
use crate::screen::Screen;

/// Create the log, or bring it to the version of this tool
///
/// Safe to run at any time, by any number of processes at once, and to interrupt: it is one transaction.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder migrate --database-url postgres://localhost/shop
  inorder migrate --schema shop_events      a log in a schema of another name
  inorder migrate --check                   exit code 0 if there is nothing to do, 1 if there is")]
pub(crate) struct Args {
    /// Change nothing; fail unless the schema is there and has the version of this tool
    #[arg(long)]
    check: bool,
}

pub(crate) async fn run(args: &Args, options: &Options, screen: &Screen) -> Result<(), Failure> {
    let log = options.connect("migrate").await?;
    if args.check {
        log.check_schema().await?;
        return Ok(screen.answer(&serde_json::json!({"current": true}), "nothing to do")?);
    }
    let migrated = log.migrate().await?;
    let schema = &log.config().schema;
    Ok(screen.answer(&migrated, format!("schema {schema:?}: {migrated}"))?)
}
