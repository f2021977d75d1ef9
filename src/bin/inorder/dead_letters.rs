//! `inorder dead-letters`: what was passed over, and what becomes of it.

use std::time::Duration;

use console::Style;
use inorder::{DeadLetter, DeadLetterState, DeadLetters};
use serde::Serialize;
use time::OffsetDateTime;

use crate::admin::{Note, tell};
use crate::failure::Failure;
use crate::options::Options;
use crate::question::Consent;
use crate::screen::Screen;
use crate::table::{Side, Table};
use crate::tail;
use crate::words::{count, duration, moment, plain};

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
struct List {
    /// Only those of this consumer
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Only those in this state
    #[arg(long, value_name = "STATE", default_value = "open")]
    state: State,
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
struct Show {
    /// The dead letter
    #[arg(value_name = "ID")]
    id: i64,
}

/// Have the events of dead letters delivered once more, by their consumers, out of order
#[derive(Debug, clap::Args)]
struct Retry {
    /// The dead letters
    #[arg(value_name = "ID", required = true)]
    ids: Vec<i64>,
    #[command(flatten)]
    note: Note,
}

/// Settle dead letters: their events are not delivered again, and may be pruned
#[derive(Debug, clap::Args)]
struct Discard {
    /// The dead letters
    #[arg(value_name = "ID", required = true)]
    ids: Vec<i64>,
    #[command(flatten)]
    note: Note,
    #[command(flatten)]
    consent: Consent,
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
            let mut changes = Vec::new();
            for id in &retry.ids {
                match admin.retry_dead_letter(*id).await {
                    Ok(change) => changes.push(change),
                    // What was done until then is told.
                    Err(error) => return tell(screen, &changes).and(Err(error.into())),
                }
            }
            tell(screen, &changes)
        }
        Verb::Discard(discard) => {
            let which = discard.ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            discard
                .consent
                .ask(&format!("Discard dead letter {which}? The events are not delivered again."))
                .await?;
            let admin = discard.note.admin(&log);
            let mut changes = Vec::new();
            for id in &discard.ids {
                match admin.discard_dead_letter(*id).await {
                    Ok(change) => changes.push(change),
                    Err(error) => return tell(screen, &changes).and(Err(error.into())),
                }
            }
            tell(screen, &changes)
        }
    }
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
        let mut which = DeadLetters::any().limit(self.limit).after(self.after);
        if let Some(state) = state {
            which = which.state(state);
        }
        match &self.consumer {
            Some(consumer) => which.of(consumer),
            None => which,
        }
    }
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
    for line in table.lines(screen) {
        screen.line(line)?;
    }
    Ok(())
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
