//! `inorder ledger`: who ran what, and what an operator may do about it.

use std::time::Duration;

use console::Style;
use inorder::{Change, Inorder, LedgerKey, LedgerRow, LedgerRows, LedgerStatus};
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::admin::{Note, find};
use crate::failure::Failure;
use crate::options::Options;
use crate::prune::age;
use crate::question::Consent;
use crate::screen::Screen;
use crate::table::{Side, Table};
use crate::words::{count, counted, duration, moment, plain};

/// Show who ran what once, and take back or forget a claim
///
/// Effect and queued consumers, and programs of their own, record in the ledger what they run, so that it is run once. A key is an
/// event's id or event_id, or the text that a program claims by.
#[derive(Debug, clap::Args)]
#[command(
    subcommand_required = true,
    after_help = "\
Examples:
  inorder ledger list --handler mail --status unfinished
  inorder ledger show 17000
  inorder ledger show 'charge order 42' payments
  inorder ledger release 17000 mail --why 'node-1 is gone'
  inorder ledger forget 17000 mail --why 'the mail never arrived'
  inorder ledger prune --older-than 30d"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    List(List),
    Show(Show),
    Release(Release),
    Forget(Forget),
    Prune(Prune),
}

/// List rows of the ledger, in the order of their keys
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder ledger list
  inorder ledger list --handler mail --status dead
  inorder ledger list --status done --limit 1000 --json")]
struct List {
    /// Only those of this handler: a consumer's name, name@instance, or what a program of its own claims for
    #[arg(long, value_name = "NAME")]
    handler: Option<String>,
    /// Only those in this status; `unfinished` is pending or in progress
    #[arg(long, value_name = "STATUS", default_value = "unfinished")]
    status: Status,
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(i32).range(1..))]
    limit: i32,
    /// Those behind this key: the next part of a long list
    #[arg(long, value_name = "UUID")]
    after: Option<Uuid>,
    /// And behind this handler of that key
    #[arg(long, value_name = "NAME", requires = "after", default_value = "")]
    after_handler: String,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Status {
    Unfinished,
    Pending,
    InProgress,
    Done,
    Dead,
    Any,
}

/// Show what the ledger knows of a key
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder ledger show 17000
  inorder ledger show 17000 mail
  inorder ledger show 'charge order 42' payments")]
struct Show {
    /// An event's id or event_id, or the text that is claimed by
    key: String,
    /// Whose effect; all of them without
    handler: Option<String>,
}

/// Take back a claim whose holder is gone, before its lease runs out
///
/// It may then be claimed by another at once. Only a claim in progress, and only if its holder's process is known to be gone; with --force
/// also if that is not known. If the holder lives after all, both may run the effect at the same time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder ledger release 17000 mail --why 'node-1 is gone'
  inorder ledger release 'charge order 42' payments --force --yes")]
struct Release {
    #[command(flatten)]
    row: Row,
    /// Also if the holder is not known to be gone
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    note: Note,
    #[command(flatten)]
    consent: Consent,
}

/// Forget what the ledger knows of an effect, so that it may be run again
///
/// Whoever claims it next runs it: a consumer that is reset to a place below it, the retry of its dead letter, a program that claims it by
/// key. What a queue had not finished is passed over, and leaves a dead letter.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder ledger forget 17000 mail --why 'the mail never arrived'
  inorder ledger forget 'charge order 42' payments --yes")]
struct Forget {
    #[command(flatten)]
    row: Row,
    #[command(flatten)]
    note: Note,
    #[command(flatten)]
    consent: Consent,
}

#[derive(Debug, clap::Args)]
struct Row {
    /// An event's id or event_id, or the text that is claimed by
    key: String,
    /// Whose effect: a consumer's name, name@instance, or what a program of its own claims for
    handler: String,
}

/// Forget what was done long ago, as a running dispatcher does every hour
///
/// What a consumer may be given again stays. A reset to below what is forgotten is refused unless effects may repeat.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder ledger prune --older-than 30d")]
struct Prune {
    /// What was done before so long, an hour at least: 30d, 12h
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Duration,
    #[command(flatten)]
    note: Note,
}

pub(crate) async fn run(args: &Args, options: &Options, screen: &Screen) -> Result<(), Failure> {
    let log = options.connect_to_log("ledger").await?;
    match &args.verb {
        Verb::List(list) => {
            let rows = log.admin().ledger_rows(&list.which()).await?;
            show(&rows, screen)
        }
        Verb::Show(one) => {
            let mut which = LedgerRows::any().key(key(&log, &one.key).await?);
            if let Some(handler) = &one.handler {
                which = which.of(handler);
            }
            let rows = log.admin().ledger_rows(&which).await?;
            show(&rows, screen)
        }
        Verb::Release(release) => {
            let key = key(&log, &release.row.key).await?;
            let mut admin = release.note.admin(&log);
            if release.force {
                known(&log, key, &release.row.handler).await?;
                let question = "Release it, whether or not its holder is gone? If that lives after all, the effect may be run twice at the same time.";
                release.consent.ask(question).await?;
                admin = admin.force();
            }
            tell(screen, &admin.ledger_release(key, &release.row.handler).await?)
        }
        Verb::Forget(forget) => {
            let key = key(&log, &forget.row.key).await?;
            let handler = &forget.row.handler;
            forget.consent.ask(&consequence(&known(&log, key, handler).await?, handler)).await?;
            tell(screen, &forget.note.admin(&log).ledger_forget(key, handler).await?)
        }
        Verb::Prune(prune) => {
            let forgotten = prune.note.admin(&log).ledger_prune(prune.older_than).await?;
            let line = format!("{} forgotten", counted(forgotten.unsigned_abs(), "row"));
            Ok(screen.answer(&Forgotten { forgotten }, line)?)
        }
    }
}

#[derive(Serialize)]
struct Forgotten {
    forgotten: i64,
}

/// A number is the id of an event, a UUID an event_id, and everything else a text.
async fn key(log: &Inorder, text: &str) -> Result<LedgerKey, Failure> {
    if let Ok(id) = text.replace(',', "").parse() {
        return Ok(find(log, id).await?.into());
    }
    Ok(text.parse::<Uuid>().map_or_else(|_| LedgerKey::from(text), LedgerKey::from))
}

/// The row of a key and a handler: nobody is asked about one that is not there.
async fn known(log: &Inorder, key: LedgerKey, handler: &str) -> Result<Vec<LedgerRow>, Failure> {
    Ok(log.admin().ledger_rows(&LedgerRows::any().key(key).of(handler)).await?)
}

/// What may run again, as a question.
fn consequence(rows: &[LedgerRow], handler: &str) -> String {
    let what = match rows {
        [LedgerRow { status: LedgerStatus::Done, .. }] => {
            format!("It is done; whoever claims it for {handler} next runs it a second time.")
        }
        [LedgerRow { status: LedgerStatus::Dead, .. }] => {
            format!("It was given up; whoever claims it for {handler} next runs it again.")
        }
        [LedgerRow { attempts: 0, .. }] => {
            format!(
                "Nobody has finished it; a queue passes over it with that, others of {handler} run it when they come to it."
            )
        }
        _ => format!(
            "It was tried; a queue passes over it with that, others of {handler} run it again when they come to it."
        ),
    };
    format!("Forget it? {what}")
}

impl List {
    fn which(&self) -> LedgerRows {
        let status = match self.status {
            Status::Unfinished | Status::Any => None,
            Status::Pending => Some(LedgerStatus::Pending),
            Status::InProgress => Some(LedgerStatus::InProgress),
            Status::Done => Some(LedgerStatus::Done),
            Status::Dead => Some(LedgerStatus::Dead),
        };
        let mut which = match (self.status, status) {
            (Status::Unfinished, _) => LedgerRows::unfinished(),
            (_, Some(status)) => LedgerRows::any().status(status),
            (_, None) => LedgerRows::any(),
        };
        if let Some(handler) = &self.handler {
            which = which.of(handler);
        }
        if let Some(key) = self.after {
            which = which.after(key, &self.after_handler);
        }
        which.limit(self.limit)
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    ledger: &'a [LedgerRow],
}

fn show(rows: &[LedgerRow], screen: &Screen) -> Result<(), Failure> {
    if screen.is_json() {
        return Ok(screen.json(&Answer { ledger: rows })?);
    }
    if rows.is_empty() {
        return Ok(screen.line("none")?);
    }
    let columns = [
        ("KEY", Side::Left),
        ("EVENT", Side::Right),
        ("HANDLER", Side::Left),
        ("STATUS", Side::Left),
        ("ATTEMPTS", Side::Right),
        ("AGE", Side::Right),
    ];
    let mut table = Table::new(columns, "REMARK");
    let now = OffsetDateTime::now_utc();
    for row in rows {
        let cells = [
            row.event_id.to_string(),
            row.position.map(count).unwrap_or_default(),
            row.handler.clone(),
            row.status.to_string().replace('_', " "),
            (row.attempts + row.faults).to_string(),
            duration(Duration::try_from(now - row.updated_at).unwrap_or_default()),
        ];
        table.row(cells.map(|text| (text, Style::new())), &remark(row));
    }
    Ok(table.show(screen)?)
}

/// Until when it is held, and by whom, or when it is due, and what went wrong last.
fn remark(row: &LedgerRow) -> String {
    let mut remark = Vec::new();
    if let Some(until) = row.lease_until {
        let holder = match (&row.owner_host, row.owner_pid) {
            (Some(host), Some(pid)) => format!(" by pid {pid} on {host}"),
            _ => String::new(),
        };
        let gone = if row.owner_gone == Some(true) { ", which is gone" } else { "" };
        remark.push(format!("held{holder}{gone} until {}", moment(until)));
    }
    if let Some(due) = row.next_attempt_at {
        remark.push(format!("due at {}", moment(due)));
    }
    remark.extend(row.event_type.as_ref().map(|kind| format!("({kind})")));
    remark.extend(row.last_error.clone());
    remark.join(" ")
}

/// `mail, event 17,000: in progress → pending`.
fn tell(screen: &Screen, change: &Change) -> Result<(), Failure> {
    if screen.is_json() {
        return Ok(screen.json(&Changed { changes: [change] })?);
    }
    let status = |row: &Value| row.get("status").and_then(Value::as_str).map(|word| word.replace('_', " "));
    let text = |name: &str| change.before.get(name).and_then(Value::as_str).unwrap_or_default();
    let what = match change.before.get("position").and_then(Value::as_i64) {
        Some(id) => format!("event {}", count(id)),
        None => text("event_id").to_owned(),
    };
    let before = status(&change.before).unwrap_or_default();
    let after = status(&change.after).unwrap_or_else(|| "forgotten".into());
    Ok(screen.line(plain(&format!("{}, {what}: {before} → {after}", text("handler"))))?)
}

#[derive(Serialize)]
struct Changed<'a> {
    changes: [&'a Change; 1],
}
