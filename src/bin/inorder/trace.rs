//! `inorder trace`: how events led to one another.

mod tree;

use std::time::Duration;

use console::{Style, truncate_str};
use indicatif::{ProgressBar, ProgressStyle};
use inorder::{Trace, TraceOf, TracedEvent};

use crate::admin::{EventName, event_named};
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::screen::Screen;
use crate::table::wrapped;
use crate::terminal::Unechoed;
use crate::words::{count, counted, moment, plain};
use tree::{Tree, Turn};

/// Show how events led to one another, as a tree
///
/// Of an event: what it was caused by, back to the first cause, and all that followed from that. Of a correlation: all events that
/// have it, and what they caused. Looking back is quick; looking forward reads the log from the first cause to the safe head, as no
/// index is kept for it, and Ctrl-C shows what was found until then.
///
/// Behind an event stands how long after the first of its tree it was recorded.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder trace 17000
  inorder trace f0e58b37-c935-5d44-a0f2-f7af7ae3d9c5     an event_id, or a correlation_id
  inorder trace 17000 --json | jq '.trees[0].caused[].event_type'")]
pub(crate) struct Args {
    /// An event's id or event_id, or a correlation_id
    #[arg(value_name = "ID|UUID", value_parser = event_named)]
    of: EventName,
    /// At most so many events
    #[arg(long, value_name = "COUNT", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

pub(crate) async fn run(
    args: &Args,
    options: &Options,
    screen: &Screen,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let of = match args.of {
        EventName::Id(id) => TraceOf::Id(id),
        EventName::EventId(name) => TraceOf::Name(name),
    };
    let beginning = async {
        let admin = options.connect_to_log("trace").await?.admin();
        Ok(admin.trace(of).await?.limit(usize::try_from(args.limit).unwrap_or(usize::MAX)))
    };
    let mut trace = interrupt.ends(beginning).await?;
    let searched = search(&mut trace, interrupt).await;
    if trace.events().is_empty() && searched.is_ok() {
        return Err(Failure::new(Exit::Refused, "no event has that event_id or correlation_id"));
    }
    show(&trace, screen)?;
    searched.map_err(|failure| {
        failure.and(format_args!(
            "searched up to id {} of {}",
            count(trace.searched_to()),
            count(trace.end())
        ))
    })
}

async fn search(trace: &mut Trace, interrupt: &Interrupt) -> Result<(), Failure> {
    let (first, end) = (trace.searched_to(), trace.end());
    let _unechoed = Unechoed::begin();
    let bar = bar(end.saturating_sub(first).max(0).unsigned_abs());
    let searching = async {
        while trace.search().await? {
            bar.set_position(trace.searched_to().saturating_sub(first).max(0).unsigned_abs());
            bar.set_message(counted(trace.events().len() as u64, "event"));
        }
        Ok(())
    };
    let searched = interrupt.ends(searching).await;
    bar.finish_and_clear();
    searched
}

/// Seen only when it takes a while, on standard error.
fn bar(ids: u64) -> ProgressBar {
    let bar = ProgressBar::new(ids);
    if let Ok(style) =
        ProgressStyle::with_template("{msg:>18} {wide_bar:.cyan/dim} {percent:>3} %  {eta} left")
    {
        bar.set_style(style.progress_chars("━━─"));
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

fn show(trace: &Trace, screen: &Screen) -> Result<(), Failure> {
    let tree = Tree::of(trace.events());
    if screen.is_json() {
        return Ok(screen.line(json(trace, &tree)?)?);
    }
    let mut text = String::new();
    for turn in tree.walk() {
        if let Turn::Enter { event, place } = turn {
            text.push_str(&line(trace, &tree, event, &place, screen));
            text.push('\n');
        }
    }
    screen.text(&text)?;
    for remark in remarks(trace) {
        for line in wrapped(&remark, "", screen.width().unwrap_or(usize::MAX)) {
            screen.line(screen.styled(&Style::new().dim(), line))?;
        }
    }
    Ok(())
}

fn line(trace: &Trace, tree: &Tree<'_>, event: &TracedEvent, place: &tree::Place, screen: &Screen) -> String {
    let dim = Style::new().dim();
    let mut line = screen.styled(&dim, place.branch(screen.width()));
    let is_start = trace.start() == Some(event.event_id);
    let kind = if is_start { Style::new().cyan().bold() } else { Style::new().cyan() };
    line.push_str(&format!("{}  {}", event.id, screen.styled(&kind, plain(&event.event_type))));
    if let (Some(kind), Some(id)) = (&event.stream_type, &event.stream_id) {
        line.push_str(&format!("  {}/{}", plain(kind), plain(id)));
    }
    let when = match tree.first_of(place) {
        first if first.id == event.id => moment(event.recorded_at),
        first => since(event, first),
    };
    line.push_str(&format!("  {}", screen.styled(&dim, when)));
    if let Some(who) = &event.created_by {
        line.push_str(&screen.styled(&dim, format!("  by {}", plain(who))));
    }
    if is_start {
        line.push_str("  ◀");
    }
    if let Some(cause) = event.causation_id.filter(|_| place.is_root()) {
        let why = if cause == event.event_id {
            "caused by itself".to_owned()
        } else if tree.holds(cause) {
            format!("caused by {cause}, which followed from it")
        } else if trace.missing_causes().contains(&cause) {
            format!("caused by {cause}, which is not in the log")
        } else {
            format!("caused by {cause}, which is not shown")
        };
        line.push_str(&format!("  ({why})"));
    }
    match screen.width() {
        Some(width) => truncate_str(&line, width, "…").into_owned(),
        None => line,
    }
}

/// `+0.250s`: clocks of the same server, so that small differences say something.
fn since(event: &TracedEvent, first: &TracedEvent) -> String {
    let seconds = (event.recorded_at - first.recorded_at).as_seconds_f64();
    match seconds.abs() {
        s if s < 60.0 => format!("{seconds:+.3}s"),
        s => {
            let sign = if seconds < 0.0 { '-' } else { '+' };
            format!("{sign}{}", crate::words::duration(Duration::try_from_secs_f64(s).unwrap_or_default()))
        }
    }
}

fn remarks(trace: &Trace) -> Vec<String> {
    let mut remarks = Vec::new();
    if trace.is_cut() {
        remarks.push(format!(
            "there may be more: only the first {} are shown; --limit shows more",
            counted(trace.events().len() as u64, "event")
        ));
    }
    let start = trace.events().iter().find(|event| trace.start() == Some(event.event_id));
    if let Some(correlation) =
        start.and_then(|event| event.correlation_id).filter(|id| trace.start() != Some(*id))
    {
        remarks.push(format!("all of its correlation: inorder trace {correlation}"));
    }
    remarks
}

/// Nested as the events are, however deep: not by calls that nest.
fn json(trace: &Trace, tree: &Tree<'_>) -> Result<String, Failure> {
    let failed = |e: serde_json::Error| Failure::failed(format!("the trace as JSON: {e}"));
    let mut trees = String::new();
    for turn in tree.walk() {
        match turn {
            Turn::Enter { event, place } => {
                if !place.is_first() {
                    trees.push(',');
                }
                let whole = serde_json::to_string(event).map_err(failed)?;
                trees.push_str(whole.strip_suffix('}').unwrap_or(&whole));
                trees.push_str(r#","caused":["#);
            }
            Turn::Leave => trees.push_str("]}"),
        }
    }
    let start = serde_json::to_string(&trace.start()).map_err(failed)?;
    let missing = serde_json::to_string(trace.missing_causes()).map_err(failed)?;
    Ok(format!(
        r#"{{"start":{start},"events":{},"searched_to":{},"end":{},"cut":{},"missing_causes":{missing},"trees":[{trees}]}}"#,
        trace.events().len(),
        trace.searched_to(),
        trace.end(),
        trace.is_cut(),
    ))
}
