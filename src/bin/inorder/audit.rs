//! `inorder audit`: what operators did.

use console::Style;
use inorder::{AuditRow, AuditRows};
use serde::Serialize;
use serde_json::Value;

use crate::admin::standing;
use crate::failure::Failure;
use crate::options::Options;
use crate::screen::Screen;
use crate::table::{Side, Table};
use crate::words::moment;

/// Show what operators did, newest first
///
/// Every action, whether by psql, the library, the tool or the admin page, leaves a row: when, who, what, to which consumer, why, and how
/// it stood before and afterwards. With --json, before and after are whole.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder audit
  inorder audit --consumer revenue-per-day --limit 500
  inorder audit --action skip_poison --by ops@example.com
  inorder audit --before 4711            the next part of a long list")]
pub(crate) struct Args {
    /// Only what was done to this consumer
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Only to this instance
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// Only this action: restart, skip_poison, disable, enable, reset, unregister, repartition, accept_pruned, prune, …
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Only what this operator, or this user of the database, did
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(i32).range(1..))]
    limit: i32,
    /// Those before this one
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
}

#[derive(Serialize)]
struct Answer<'a> {
    audit: &'a [AuditRow],
}

pub(crate) async fn run(args: &Args, options: &Options, screen: &Screen) -> Result<(), Failure> {
    let rows = options.connect_to_log("audit").await?.admin().audit(&args.which()).await?;
    if screen.is_json() {
        return Ok(screen.json(&Answer { audit: &rows })?);
    }
    if rows.is_empty() {
        return Ok(screen.line("none")?);
    }
    for line in table(&rows).lines(screen) {
        screen.line(line)?;
    }
    Ok(())
}

impl Args {
    fn which(&self) -> AuditRows {
        let mut which = AuditRows::any().limit(self.limit);
        if let Some(consumer) = &self.consumer {
            which = which.of(consumer);
        }
        if let Some(instance) = &self.instance {
            which = which.instance(instance);
        }
        if let Some(action) = &self.action {
            which = which.action(action);
        }
        if let Some(who) = &self.by {
            which = which.by(who);
        }
        match self.before {
            Some(id) => which.before(id),
            None => which,
        }
    }
}

fn table(rows: &[AuditRow]) -> Table {
    let columns = [
        ("ID", Side::Right),
        ("AT", Side::Left),
        ("BY", Side::Left),
        ("ACTION", Side::Left),
        ("CONSUMER", Side::Left),
    ];
    let mut table = Table::new(columns, "WHAT AND WHY");
    for row in rows {
        let cells = [row.id.to_string(), moment(row.at), row.by.clone(), row.action.clone(), name(row)];
        table.row(cells.map(|text| (text, Style::new())), &remark(row));
    }
    table
}

/// Whom it was done to, as far as a whole consumer is not meant.
fn name(row: &AuditRow) -> String {
    let Some(consumer) = &row.consumer else { return "–".to_owned() };
    let mut name = consumer.clone();
    if let Some(instance) = row.instance.as_deref().filter(|instance| !instance.is_empty()) {
        name.push_str(&format!("@{instance}"));
    }
    let partitions = [&row.after, &row.before].into_iter().find_map(|row| row.get("partitions")?.as_i64());
    if let Some(partition) = row.partition.filter(|_| partitions.is_some_and(|n| n > 1)) {
        name.push_str(&format!("/{partition}"));
    }
    name
}

/// `dead at 3 → idle at 4; test order`.
pub(crate) fn remark(row: &AuditRow) -> String {
    let what = match (standing(&row.before), standing(&row.after)) {
        (None, None) => match &row.after {
            Value::Null => String::new(),
            // Of what is no row, such as a prune, all that is recorded.
            after => after.to_string(),
        },
        (before, after) => format!(
            "{} → {}",
            before.unwrap_or_else(|| "not there".into()),
            after.unwrap_or_else(|| "gone".into())
        ),
    };
    [Some(what).filter(|what| !what.is_empty()), row.why.clone()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("; ")
}
