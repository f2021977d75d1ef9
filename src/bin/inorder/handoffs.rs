//! `inorder handoffs`: which side has an event whose offer was ambiguous, and what an operator may do about it.

use std::time::Duration;

use console::Style;
use inorder::{Change, ForgottenHandoffs, HandoffRow, HandoffRows, HandoffState, Inorder};
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

/// Show which side has an event whose offer to a queue was ambiguous, and forget it
///
/// Programs that hand off record which side has an event: the direct path, which is the program that offered it, or a delivery of the
/// queue. What the direct path took and has not run is unfinished: it is at it, or has died, and its deliveries are dropped.
#[derive(Debug, clap::Args)]
#[command(
    subcommand_required = true,
    after_help = "\
Examples:
  inorder handoffs list --older-than 5m
  inorder handoffs list --scope mail --state any --limit 1000
  inorder handoffs show 17000
  inorder handoffs forget 17000 mail --why 'the mail never arrived'
  inorder handoffs forget 17000 mail --force --why 'run by hand'
  inorder handoffs forget --scope mail --older-than 7d --limit 10000
  inorder handoffs prune"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    List(List),
    Show(Show),
    Forget(Forget),
    Prune(Prune),
}

/// List hand-offs, in the order of scope and event
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder handoffs list --older-than 5m
  inorder handoffs list --scope mail --state any --limit 1000")]
struct List {
    /// Only those in this scope
    #[arg(long, value_name = "NAME")]
    scope: Option<String>,
    /// Only those in this state: taken by the direct path and not run, run by it, taken by a delivery
    #[arg(long, value_name = "STATE", default_value = "unfinished")]
    state: State,
    /// Only those that were taken at least so long ago: 5m, 12h, 30d
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<Duration>,
    #[command(flatten)]
    bounds: Bounds,
}

#[derive(Debug, clap::Args)]
struct Bounds {
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(i32).range(1..))]
    limit: i32,
    /// Those behind this event: the next part of a long list
    #[arg(long, value_name = "UUID")]
    after: Option<Uuid>,
    /// And in this scope or behind it. Default: that of --scope
    #[arg(long, value_name = "NAME", requires = "after")]
    after_scope: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum State {
    Unfinished,
    RanDirectly,
    Delivery,
    Any,
}

/// Show which side has an event
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder handoffs show 17000
  inorder handoffs show 17000 mail --json")]
struct Show {
    /// The event, by its id or its event_id
    #[arg(value_name = "ID|UUID")]
    key: String,
    /// In which scope; in all of them without
    scope: Option<String>,
}

/// Forget which side has an event, so that whoever asks next has it
///
/// One event, or all that fit. What was run may then be run again: by its next delivery, or by a program that offers it anew. Programs
/// that run answer by their memory until they are started anew. With --force also what the direct path took and has not said that it
/// ran: if it has not, and the queue has dropped its deliveries, nobody runs that any more but who offers it anew.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder handoffs forget 17000 mail --why 'the mail never arrived'
  inorder handoffs forget --scope mail --older-than 7d --limit 10000")]
struct Forget {
    /// The event, by its id or its event_id
    #[arg(value_name = "ID|UUID", requires = "of_scope", required_unless_present_any = ["scope", "state", "older_than", "all"],
        conflicts_with_all = ["scope", "state", "older_than", "all", "after", "after_scope"])]
    key: Option<String>,
    /// In which scope
    #[arg(value_name = "SCOPE")]
    of_scope: Option<String>,
    /// Those in this scope
    #[arg(long, value_name = "NAME")]
    scope: Option<String>,
    /// Those in this state
    #[arg(long, value_name = "STATE")]
    state: Option<State>,
    /// Those that were taken at least so long ago: 5m, 12h, 30d
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<Duration>,
    /// All there are, as far as the limit goes
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    bounds: Bounds,
    /// Also what the direct path took and has not said that it ran
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    note: Note,
    #[command(flatten)]
    consent: Consent,
}

/// Delete what was kept long enough, as a running dispatcher does every hour
///
/// For how long that is, the programs of a scope say; 30 days where none has. What the direct path still has to run stays.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder handoffs prune")]
struct Prune {
    /// Only in this scope
    #[arg(long, value_name = "NAME")]
    scope: Option<String>,
    /// What was kept for so long, an hour at least, whatever the programs say: 7d, 12h
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<Duration>,
    #[command(flatten)]
    note: Note,
    #[command(flatten)]
    consent: Consent,
}

pub(crate) async fn run(args: &Args, options: &Options, screen: &Screen) -> Result<(), Failure> {
    let log = options.connect_to_log("handoffs").await?;
    match &args.verb {
        Verb::List(list) => {
            let rows = log.admin().handoff_rows(&list.which()).await?;
            show(&rows, screen)
        }
        Verb::Show(one) => {
            let mut which = HandoffRows::any().key(key(&log, &one.key).await?);
            if let Some(scope) = &one.scope {
                which = which.in_scope(scope);
            }
            let rows = log.admin().handoff_rows(&which).await?;
            show(&rows, screen)
        }
        Verb::Forget(forget) => match (&forget.key, &forget.of_scope) {
            (Some(event), Some(scope)) => forget.one(&log, event, scope, screen).await,
            _ => forget.many(&log, screen).await,
        },
        Verb::Prune(prune) => prune.run(&log, screen).await,
    }
}

/// A number is the id of an event, and a UUID an event_id.
async fn key(log: &Inorder, text: &str) -> Result<Uuid, Failure> {
    if let Ok(id) = text.replace(',', "").parse() {
        return find(log, id).await;
    }
    text.parse().map_err(|_| {
        Failure::usage(format!("{text:?} names no event; name its id, or its event_id, which is a UUID"))
    })
}

impl State {
    fn state(self) -> Option<HandoffState> {
        match self {
            Self::Unfinished => Some(HandoffState::Unfinished),
            Self::RanDirectly => Some(HandoffState::RanDirectly),
            Self::Delivery => Some(HandoffState::Delivery),
            Self::Any => None,
        }
    }
}

impl Bounds {
    /// Those in the scope and the state, of the age, as far as the bounds go.
    fn which(&self, scope: Option<&str>, state: Option<HandoffState>, age: Option<Duration>) -> HandoffRows {
        let mut which = HandoffRows::any().limit(self.limit);
        if let Some(scope) = scope {
            which = which.in_scope(scope);
        }
        if let Some(state) = state {
            which = which.state(state);
        }
        if let Some(age) = age {
            which = which.older_than(age);
        }
        if let Some(event) = self.after {
            which = which.after(self.after_scope.as_deref().or(scope).unwrap_or_default(), event);
        }
        which
    }
}

impl List {
    fn which(&self) -> HandoffRows {
        self.bounds.which(self.scope.as_deref(), self.state.state(), self.older_than)
    }
}

impl Forget {
    async fn one(&self, log: &Inorder, event: &str, scope: &str, screen: &Screen) -> Result<(), Failure> {
        let key = key(log, event).await?;
        let rows = log.admin().handoff_rows(&HandoffRows::any().key(key).in_scope(scope)).await?;
        let mut admin = self.note.admin(log);
        match rows.as_slice() {
            // Refused by the database, which says what to do.
            [HandoffRow { state: HandoffState::Unfinished, .. }] if !self.force => {}
            rows => self.consent.ask(&consequence(rows)).await?,
        }
        if self.force {
            admin = admin.force();
        }
        tell(screen, &admin.handoff_forget(scope, key).await?)
    }

    async fn many(&self, log: &Inorder, screen: &Screen) -> Result<(), Failure> {
        let state = self.state.and_then(State::state);
        let which = self.bounds.which(self.scope.as_deref(), state, self.older_than);
        let mut admin = self.note.admin(log);
        let unfinished = match self.force {
            true => {
                " What the direct path took and did not run is run by nobody any more, unless it is offered anew."
            }
            false => "",
        };
        let question = format!(
            "Forget all hand-offs that fit, at most {}? What was run may then be run again, by a delivery that comes once more or by a \
             program that offers it anew.{unfinished}",
            count(self.bounds.limit)
        );
        self.consent.ask(&question).await?;
        if self.force {
            admin = admin.force();
        }
        tell_many(&admin.handoffs_forget(&which).await?, screen)
    }
}

impl Prune {
    async fn run(&self, log: &Inorder, screen: &Screen) -> Result<(), Failure> {
        if let Some(age) = self.older_than {
            let question = format!(
                "Delete what was run or delivered more than {} ago? An event that its queue still delivers, or that a program still \
                 offers, may then be run again.",
                duration(age)
            );
            self.consent.ask(&question).await?;
        }
        let deleted = self.note.admin(log).handoff_prune(self.scope.as_deref(), self.older_than).await?;
        let line = format!("{} deleted", counted(deleted.unsigned_abs(), "row"));
        Ok(screen.answer(&Deleted { deleted }, line)?)
    }
}

#[derive(Serialize)]
struct Deleted {
    deleted: i64,
}

/// What may run again, as a question.
fn consequence(rows: &[HandoffRow]) -> String {
    let what = match rows {
        [HandoffRow { state: HandoffState::RanDirectly, .. }] => {
            "The direct path has run it; should the queue deliver it once more, it is run a second time."
        }
        [HandoffRow { state: HandoffState::Delivery, .. }] => {
            "A delivery has it; should a program offer it anew and get no answer, it runs it a second time."
        }
        _ => {
            "The direct path has it. If that runs it at the moment, a delivery may run it a second time; if it died, and the queue has \
             dropped its deliveries, nobody runs it any more, unless it is offered anew."
        }
    };
    format!("Forget it? {what}")
}

#[derive(Serialize)]
struct Answer<'a> {
    handoffs: &'a [HandoffRow],
}

fn show(rows: &[HandoffRow], screen: &Screen) -> Result<(), Failure> {
    if screen.is_json() {
        return Ok(screen.json(&Answer { handoffs: rows })?);
    }
    if rows.is_empty() {
        return Ok(screen.line("none")?);
    }
    let columns = [
        ("SCOPE", Side::Left),
        ("KEY", Side::Left),
        ("EVENT", Side::Right),
        ("STATE", Side::Left),
        ("AGE", Side::Right),
    ];
    let mut table = Table::new(columns, "REMARK");
    let now = OffsetDateTime::now_utc();
    for row in rows {
        let cells = [
            row.scope.clone(),
            row.event_id.to_string(),
            row.position.map(count).unwrap_or_default(),
            word(row.state.as_str()),
            duration(Duration::try_from(now - row.taken_at).unwrap_or_default()),
        ];
        let ran = row.ran_at.map(|at| format!("run at {}", moment(at)));
        let kind = row.event_type.as_ref().map(|kind| format!("({kind})"));
        let remark = [ran, kind].into_iter().flatten().collect::<Vec<_>>().join(" ");
        table.row(cells.map(|text| (text, Style::new())), &remark);
    }
    Ok(table.show(screen)?)
}

fn word(state: &str) -> String {
    state.replace('_', " ")
}

/// `mail, 0190…: ran directly → forgotten`.
fn tell(screen: &Screen, change: &Change) -> Result<(), Failure> {
    if screen.is_json() {
        return Ok(screen.json(&Changed { changes: [change] })?);
    }
    let text = |name: &str| change.before.get(name).and_then(Value::as_str).unwrap_or_default();
    let line = format!("{}, {}: {} → forgotten", text("scope"), text("key"), word(text("state")));
    Ok(screen.line(plain(&line))?)
}

#[derive(Serialize)]
struct Changed<'a> {
    changes: [&'a Change; 1],
}

/// Tells what became of many.
fn tell_many(forgotten: &ForgottenHandoffs, screen: &Screen) -> Result<(), Failure> {
    if screen.is_json() {
        return Ok(screen.json(forgotten)?);
    }
    let mut lines = match forgotten.forgotten {
        0 => vec!["none".to_owned()],
        many => vec![format!("{} forgotten", counted(many.unsigned_abs(), "hand-off"))],
    };
    if forgotten.left_out > 0 {
        lines.push(format!("{} left out: being decided at the moment", count(forgotten.left_out)));
    }
    if forgotten.more {
        lines.push("there are more: run it again".to_owned());
    }
    Ok(screen.text(&(lines.join("\n") + "\n"))?)
}
