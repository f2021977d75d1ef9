//! `inorder config`: what the tool goes by, and where that was said.

use console::Style;
use inorder::settings::Setting;
use serde::Serialize;

use crate::failure::Failure;
use crate::options::Options;
use crate::screen::Screen;
use crate::table::{Side, Table};

/// Show what the tool goes by, and where that was said
///
/// Nothing is connected to. Passwords are not shown.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Where the same is said twice, the first of these counts: flags, INORDER_… variables, the configuration file, DATABASE_URL,
the PG… variables of PostgreSQL's own clients, defaults.

Examples:
  inorder config
  inorder config --config /etc/shop/inorder.toml --json")]
pub(crate) struct Args {}

#[derive(Serialize)]
struct Answer<'a> {
    file: Option<String>,
    settings: &'a [Setting],
}

pub(crate) fn run(_args: &Args, options: &Options, screen: &Screen) -> Result<(), Failure> {
    let settings = options.settings()?;
    if screen.is_json() {
        let file = settings.file().map(|file| file.display().to_string());
        return Ok(screen.json(&Answer { file, settings: settings.each() })?);
    }
    let mut table = Table::new([("SETTING", Side::Left), ("VALUE", Side::Left), ("SAID BY", Side::Left)], "");
    for Setting { name, value, source, .. } in settings.each() {
        let value = value.as_deref().unwrap_or("(not shown)");
        let plain = Style::new();
        table.row(
            [(name.to_string(), plain.clone()), (value.to_owned(), plain.clone()), (source.clone(), plain)],
            "",
        );
    }
    for line in table.lines(screen) {
        screen.line(line)?;
    }
    Ok(())
}
