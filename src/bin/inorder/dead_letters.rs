//! `inorder dead-letters`: what was passed over, and what becomes of it.

use std::time::Duration;

use console::Style;
use inorder::{Change, DeadLetter, DeadLetterState, DeadLetters, SettledLetters};
use serde::Serialize;
use time::OffsetDateTime;

use crate::admin::{Note, tell};
use crate::failure::Failure;
use crate::options::Options;
use crate::prune;
use crate::question::Consent;
use crate::screen::Screen;
use crate::table::{Side, Table};
use crate::tail;
use crate::words::{count, counted, duration, moment, plain};

/// Show what was passed over, and decide what becomes of it
///
/// Every event, or range of events, that a consumer passed over leaves a dead letter: by its policy, by an operator, because
/// it was pruned. An open one keeps its event from being pruned.
#[derive(Debug, clap::Args)]
#[command(
    subcommand_required = true,
    after_help = "\
Examples:
  inorder dead-letters list
  inorder dead-letters list --consumer revenue-per-day --state any
  inorder dead-letters show 5
  inorder dead-letters retry 5 6 7
  inorder dead-letters retry --consumer mail --reason exhausted --error refused --limit 1000
  inorder dead-letters discard 5 --why 'test order'"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    List(List),
    Show(Show),
    Retry(Retry),
    Discard(Discard),
}

/// List dead letters, oldest first
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder dead-letters list
  inorder dead-letters list --consumer mail --reason exhausted --state any
  inorder dead-letters list --after 100 --json")]
struct List {
    #[command(flatten)]
    fitting: Fitting,
    /// Only those in this state
    #[arg(long, value_name = "STATE", default_value = "open")]
    state: State,
    #[command(flatten)]
    bounds: Bounds,
}

/// What dead letters are found by.
#[derive(Debug, clap::Args)]
struct Fitting {
    /// Only those of this consumer
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Only those of this instance
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// Only those of events of this type
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Only those for this reason: skip_policy, operator_skip, rejected, exhausted, max_deliveries, pruned
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Only those in whose error this text is
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only those up to this one
    #[arg(long, value_name = "ID")]
    up_to: Option<i64>,
}

#[derive(Debug, clap::Args)]
struct Bounds {
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(i32).range(1..))]
    limit: i32,
    /// Those behind this one: the next part of a long list
    #[arg(long, value_name = "ID", default_value_t = 0)]
    after: i64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum State {
    Open,
    RetryRequested,
    Resolved,
    Discarded,
    Any,
}

/// Show a dead letter and its event
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder dead-letters show 5
  inorder dead-letters show 5 --json | jq .event.payload")]
struct Show {
    /// The dead letter
    #[arg(value_name = "ID")]
    id: i64,
}

/// Have the events of dead letters delivered once more, by their consumers, out of order
///
/// Those that are named, or all that fit.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder dead-letters retry 5 6 7
  inorder dead-letters retry 5 --discarded
  inorder dead-letters retry --consumer mail --reason exhausted --error refused --limit 1000")]
struct Retry {
    #[command(flatten)]
    which: Which,
    /// Those that were discarded, instead of open ones
    #[arg(long)]
    discarded: bool,
    #[command(flatten)]
    note: Note,
}

/// Settle dead letters: their events are not delivered again, and may be pruned
///
/// Those that are named, or all that fit.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder dead-letters discard 5 --why 'test order'
  inorder dead-letters discard --type order.cancelled --up-to 80 --yes")]
struct Discard {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    note: Note,
    #[command(flatten)]
    consent: Consent,
}

/// Dead letters by name, or by what they are found by.
#[derive(Debug, clap::Args)]
struct Which {
    /// The dead letters
    #[arg(value_name = "ID", required_unless_present_any = ["consumer", "event_type", "reason", "error", "up_to", "all"],
        conflicts_with_all = ["consumer", "instance", "event_type", "reason", "error", "up_to", "all", "after", "stop_at"])]
    ids: Vec<i64>,
    #[command(flatten)]
    fitting: Fitting,
    #[command(flatten)]
    bounds: Bounds,
    /// None after this time: 2024-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = prune::moment)]
    stop_at: Option<OffsetDateTime>,
    /// All there are, as far as the limit goes
    #[arg(long)]
    all: bool,
}

pub(crate) async fn run(args: &Args, options: &Options, screen: &Screen) -> Result<(), Failure> {
    let log = options.connect_to_log("dead-letters").await?;
    match &args.verb {
        Verb::List(list) => {
            let letters = log.admin().dead_letters(&list.which()).await?;
            show_list(&letters, screen)
        }
        Verb::Show(show) => {
            let (letter, event) = log.admin().dead_letter(show.id).await?;
            show_one(&letter, event.as_ref(), screen)
        }
        Verb::Retry(retry) => {
            let admin = retry.note.admin(&log);
            if retry.which.ids.is_empty() {
                let state = if retry.discarded { DeadLetterState::Discarded } else { DeadLetterState::Open };
                let settled = admin.retry_dead_letters(&retry.which.fitting(state)).await?;
                return tell_many(&settled, "to be retried", screen);
            }
            settle_each(&retry.which.ids, screen, async |id| admin.retry_dead_letter(id).await).await
        }
        Verb::Discard(discard) => {
            let admin = discard.note.admin(&log);
            if discard.which.ids.is_empty() {
                let which = discard.which.fitting(DeadLetterState::Open);
                // Nobody is asked about letters of a consumer that is not there.
                let fitting = admin.dead_letters(&which).await?.len() as u64;
                let question = format!(
                    "Discard {}? The events are not delivered again.",
                    counted(fitting, "dead letter")
                );
                discard.consent.ask(&question).await?;
                return tell_many(&admin.discard_dead_letters(&which).await?, "discarded", screen);
            }
            for id in &discard.which.ids {
                // Nor about one that is not there.
                admin.dead_letter(*id).await?;
            }
            let named = discard.which.ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let question = format!("Discard dead letter {named}? The events are not delivered again.");
            discard.consent.ask(&question).await?;
            settle_each(&discard.which.ids, screen, async |id| admin.discard_dead_letter(id).await).await
        }
    }
}

/// One after the other, until one is refused. What was done until then is told.
async fn settle_each(
    ids: &[i64],
    screen: &Screen,
    settle: impl AsyncFn(i64) -> Result<Change, inorder::Error>,
) -> Result<(), Failure> {
    let mut changes = Vec::new();
    for id in ids {
        match settle(*id).await {
            Ok(change) => changes.push(change),
            Err(refused) if changes.is_empty() => return Err(refused.into()),
            Err(refused) => return tell(screen, &changes).and(Err(refused.into())),
        }
    }
    tell(screen, &changes)
}

impl List {
    fn which(&self) -> DeadLetters {
        let state = match self.state {
            State::Any => None,
            State::Open => Some(DeadLetterState::Open),
            State::RetryRequested => Some(DeadLetterState::RetryRequested),
            State::Resolved => Some(DeadLetterState::Resolved),
            State::Discarded => Some(DeadLetterState::Discarded),
        };
        let which = self.fitting.narrow(self.bounds.narrow(DeadLetters::any()));
        match state {
            Some(state) => which.state(state),
            None => which,
        }
    }
}

impl Which {
    fn fitting(&self, state: DeadLetterState) -> DeadLetters {
        let which = self.fitting.narrow(self.bounds.narrow(DeadLetters::any())).state(state);
        match self.stop_at {
            Some(time) => which.stop_at(time),
            None => which,
        }
    }
}

impl Bounds {
    fn narrow(&self, which: DeadLetters) -> DeadLetters {
        which.limit(self.limit).after(self.after)
    }
}

impl Fitting {
    fn narrow(&self, mut which: DeadLetters) -> DeadLetters {
        if let Some(consumer) = &self.consumer {
            which = which.of(consumer);
        }
        if let Some(instance) = &self.instance {
            which = which.instance(instance);
        }
        if let Some(event_type) = &self.event_type {
            which = which.event_type(event_type);
        }
        if let Some(reason) = &self.reason {
            which = which.reason(reason);
        }
        if let Some(text) = &self.error {
            which = which.error(text);
        }
        match self.up_to {
            Some(id) => which.up_to(id),
            None => which,
        }
    }
}

/// Tells what became of many.
fn tell_many(settled: &SettledLetters, what: &str, screen: &Screen) -> Result<(), Failure> {
    if screen.is_json() {
        return Ok(screen.json(settled)?);
    }
    let letters = settled.letters.len() as u64;
    let mut lines = match (settled.letters.first(), settled.letters.last()) {
        (Some(first), Some(last)) => {
            vec![format!("{} {what}, {} to {}", counted(letters, "dead letter"), count(*first), count(*last))]
        }
        _ => vec!["none".to_owned()],
    };
    if settled.left_out > 0 {
        lines.push(format!(
            "{} left out: being delivered at the moment, or not to be retried",
            count(settled.left_out)
        ));
    }
    if settled.more {
        lines.push("there are more: run it again".to_owned());
    }
    Ok(screen.text(&(lines.join("\n") + "\n"))?)
}

#[derive(Serialize)]
struct Answer<'a> {
    dead_letters: &'a [DeadLetter],
}

fn show_list(letters: &[DeadLetter], screen: &Screen) -> Result<(), Failure> {
    if screen.is_json() {
        return Ok(screen.json(&Answer { dead_letters: letters })?);
    }
    if letters.is_empty() {
        return Ok(screen.line("none")?);
    }
    let columns = [
        ("ID", Side::Right),
        ("CONSUMER", Side::Left),
        ("EVENT", Side::Right),
        ("REASON", Side::Left),
        ("STATE", Side::Left),
        ("AGE", Side::Right),
    ];
    let mut table = Table::new(columns, "ERROR");
    let now = OffsetDateTime::now_utc();
    for letter in letters {
        let cells = [
            letter.id.to_string(),
            name(letter),
            events(letter),
            letter.reason.clone(),
            letter.state.to_string(),
            duration(Duration::try_from(now - letter.created_at).unwrap_or_default()),
        ];
        let kind = letter.event_type.as_ref().map(|kind| format!("({kind})"));
        let remark = [kind, letter.error.clone()].into_iter().flatten().collect::<Vec<_>>().join(" ");
        table.row(cells.map(|text| (text, Style::new())), &remark);
    }
    Ok(table.show(screen)?)
}

fn show_one(letter: &DeadLetter, event: Option<&inorder::Event>, screen: &Screen) -> Result<(), Failure> {
    let whole = event.map(tail::json).transpose()?;
    if screen.is_json() {
        // The event is JSON text already, exact to the byte.
        let letter = serde_json::to_string(letter).map_err(|e| Failure::failed(e.to_string()))?;
        let event = whole.unwrap_or_else(|| "null".into());
        return Ok(screen.line(format!(r#"{{"dead_letter":{letter},"event":{event}}}"#))?);
    }
    let mut facts = vec![
        ("dead letter", letter.id.to_string()),
        ("consumer", name(letter)),
        ("event", events(letter)),
        ("reason", letter.reason.clone()),
        ("state", letter.state.to_string()),
        ("attempts", letter.attempts.to_string()),
        ("passed over", format!("{} by {}", moment(letter.created_at), letter.created_by)),
    ];
    if let Some(who) = &letter.updated_by {
        facts.push(("changed", format!("{} by {who}", moment(letter.updated_at))));
    }
    if let Some(error) = &letter.error {
        facts.push(("error", error.clone()));
    }
    facts.push(("content", whole.unwrap_or_else(|| "not in the log any more".into())));
    for (title, fact) in facts {
        let title = screen.styled(&Style::new().bold(), format!("{title:<12}"));
        screen.line(format!("{title} {}", plain(&fact)))?;
    }
    Ok(())
}

fn name(letter: &DeadLetter) -> String {
    let mut name = letter.consumer.clone();
    if !letter.instance.is_empty() {
        name.push_str(&format!("@{}", letter.instance));
    }
    if letter.partition > 0 {
        name.push_str(&format!("/{}", letter.partition));
    }
    name
}

fn events(letter: &DeadLetter) -> String {
    match letter.position_to {
        Some(to) => format!("{} to {}", count(letter.position), count(to)),
        None => count(letter.position),
    }
}
