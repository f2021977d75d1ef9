//! `inorder roles`: who may do what.

use console::Style;
use inorder::Role;
use serde::Serialize;

use crate::failure::Failure;
use crate::options::Options;
use crate::screen::Screen;
use crate::table::{Side, Table};

/// Show the four roles of the log and who has them, or create them
///
/// producer: appends and receives, reads nothing. consumer: runs dispatchers. monitor: sees how everything stands, but no payload.
/// admin: sees everything, and acts through the functions that write the audit trail. The roles are named after the schema
/// (inorder_producer, …) and cannot log in; make your own roles members of them: GRANT inorder_consumer TO shop.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder roles
  inorder roles create
  psql -c 'GRANT inorder_producer, inorder_consumer TO shop'")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create those that are missing, and give each what it needs; for the owner of the schema, who may create roles
    #[command(after_help = "Examples:\n  inorder roles create")]
    Create,
}

#[derive(Serialize)]
struct Answer {
    created: Vec<String>,
    roles: Vec<Role>,
}

pub(crate) async fn run(args: &Args, options: &Options, screen: &Screen) -> Result<(), Failure> {
    let admin = options.connect_to_log("roles").await?.admin();
    let created = match args.verb {
        Some(Verb::Create) => admin.create_roles().await?,
        None => Vec::new(),
    };
    let roles = admin.roles().await?;
    if screen.is_json() {
        return Ok(screen.json(&Answer { created, roles })?);
    }
    for line in table(&roles, &created).lines(screen) {
        screen.line(line)?;
    }
    if roles.iter().any(|role| !role.is_there) {
        screen.line("`inorder roles create` creates those that are missing")?;
    }
    Ok(())
}

fn table(roles: &[Role], created: &[String]) -> Table {
    let columns = [("ROLE", Side::Left), ("STATE", Side::Left), ("MEMBERS", Side::Left)];
    let mut table = Table::new(columns, "LACKS");
    for role in roles {
        let state = match (role.is_there, created.contains(&role.role)) {
            (false, _) => "missing",
            (true, true) => "created",
            (true, false) => "there",
        };
        let members = if role.members.is_empty() { "–".to_owned() } else { role.members.join(", ") };
        let cells = [role.role.clone(), state.to_owned(), members];
        table.row(cells.map(|text| (text, Style::new())), &role.lacking.join("; "));
    }
    table
}
