//! `inorder export`: writes events to a file that `inorder append` takes.

mod file;

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use inorder::{Admin, Event, Inorder, LogProgress};
use serde::Serialize;
use serde_json::Value;

use crate::failure::{Exit, Failure, tell};
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::screen::Screen;
use crate::tail;
use crate::terminal::Unechoed;
use crate::words::{count, counted, plain};
use file::Unfinished;

/// Write events to a file that `inorder append` takes, one JSON object a line
///
/// From the beginning of the log, or behind an id, to the safe head as it is at the start. What is written is exact: another log that
/// appends the file has the same events, with ids, versions in streams and times of its own; and whatever is appended twice is
/// there once. Memory does not grow with the log.
///
/// A file appears under its name when it is complete and safe on disk; until then it is called FILE.partial. After an interruption
/// --resume goes on behind the last event in that. What is pruned while it is being exported is not missed in silence: the export
/// fails.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder export log.jsonl
  inorder export log.jsonl --resume                  goes on after an interruption
  inorder export --after 17000 --up-to 20000 part.jsonl
  inorder export --only order.placed,order.paid | gzip > orders.jsonl.gz
  inorder export | inorder append --database-url postgres://elsewhere/shop")]
pub(crate) struct Args {
    /// The file; - or nothing is standard output
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// From the first event above this id on
    #[arg(long, value_name = "ID", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    after: i64,
    /// Up to the event with this id. Default: the safe head
    #[arg(long, value_name = "ID")]
    up_to: Option<i64>,
    /// Only events of these types
    #[arg(long, value_name = "TYPE", num_args = 1.., value_delimiter = ',')]
    only: Vec<String>,
    /// Go on with FILE.partial where there is one; give the same range and types as before
    #[arg(long, requires = "file")]
    resume: bool,
    /// Replace FILE if it is there already
    #[arg(long, requires = "file")]
    replace: bool,
}

/// Events that are read at a time.
const PAGE: usize = 1_000;
/// For how long a server that is away is waited for.
const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) async fn run(
    args: Args,
    options: &Options,
    screen: &Screen,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let mut out = Out::open(&args)?;
    let connecting = async {
        let log = options.connect_to_log("export").await?;
        let began = log.admin().log_progress().await?;
        let after = match out.last() {
            Some(last) => go_on_behind(&log, &began, last).await?,
            None => args.after,
        };
        Ok((log, began, after))
    };
    let (log, mut began, after) = interrupt.ends(connecting).await?;
    let only = (!args.only.is_empty()).then(|| args.only.iter().cloned().collect());
    let up_to = args.up_to.map_or(began.safe_head, |id| id.min(began.safe_head));
    let begins = args.after.max(began.pruned_to);
    if out.last().is_some() {
        // Whatever was pruned behind that event was pruned before it was exported.
        (began.pruned_to, began.pruned_types) = (0, Value::Null);
    } else if began.pruned_to > args.after {
        tell(format_args!(
            "inorder: what lies up to id {} was pruned, and is not exported",
            count(began.pruned_to)
        ));
    }
    let sum = Sum {
        events: 0,
        after: begins,
        written_to: after,
        up_to,
        resumed: out.last().is_some(),
        complete: false,
    };
    let _unechoed = Unechoed::begin();
    let bar = bar(up_to.saturating_sub(after).max(0).unsigned_abs());
    let mut run = Run { admin: log.admin(), log, only, began, bar, sum };
    let ended = run.write(&mut out, interrupt).await;
    run.bar.finish_and_clear();
    let ended = match ended {
        Ok(()) => out.finish().map(|()| run.sum.complete = true),
        Err(failure) => Err(out.leave(failure, run.sum.written_to)),
    };
    match (&out, screen.is_json()) {
        (Out::Stdout(_), _) if ended.as_ref().is_err_and(|f| f.exit() == Exit::Quiet) => {}
        (Out::Stdout(_), _) => tell(run.sum.in_words()),
        (Out::File(_), true) => screen.json(&run.sum)?,
        (Out::File(_), false) => screen.line(run.sum.in_words())?,
    }
    ended
}

/// Whether the last event of an unfinished file is one of this log; then what is behind it comes next.
async fn go_on_behind(log: &Inorder, began: &LogProgress, last: &file::Last) -> Result<i64, Failure> {
    let there = log.event(last.event_id).await?.map(|event| event.id());
    match there {
        Some(id) if id == last.id => Ok(id),
        None if last.id <= began.pruned_to => Ok(last.id),
        _ => Err(Failure::failed(format!(
            "the last event of the unfinished file, {} with id {}, is not in this log under that id; it is from another log: \
             remove it",
            last.event_id,
            count(last.id)
        ))),
    }
}

/// What was done.
#[derive(Debug, Serialize)]
struct Sum {
    /// Events written now.
    events: u64,
    /// What lies up to this id was not asked for, or had been pruned.
    after: i64,
    /// What lies up to this id is written.
    written_to: i64,
    /// Where the export ends.
    up_to: i64,
    /// Were there events in the file already?
    resumed: bool,
    complete: bool,
}

impl Sum {
    fn in_words(&self) -> String {
        let more = if self.resumed { " more" } else { "" };
        format!(
            "{} written{more}, all above id {} up to {}",
            counted(self.events, "event"),
            count(self.after),
            count(self.written_to)
        )
    }
}

struct Run {
    log: Inorder,
    admin: Admin,
    only: Option<HashSet<String>>,
    /// How the log stood at the start.
    began: LogProgress,
    bar: ProgressBar,
    sum: Sum,
}

impl Run {
    /// Until the end of the range, or somebody interrupts: then whole lines are written.
    async fn write(&mut self, out: &mut Out, interrupt: &Interrupt) -> Result<(), Failure> {
        let first = self.sum.written_to;
        while self.sum.written_to < self.sum.up_to {
            let page = interrupt.ends(self.page()).await?;
            let Some(last) = page.last().map(Event::id) else {
                self.sum.written_to = self.sum.up_to;
                break;
            };
            for event in page.iter().take_while(|event| event.id() <= self.sum.up_to) {
                if self.only.as_ref().is_none_or(|only| only.contains(event.event_type())) {
                    out.line(&tail::exact(event)?)?;
                    self.sum.events += 1;
                }
            }
            self.sum.written_to = last.min(self.sum.up_to);
            self.bar.set_position(self.sum.written_to.saturating_sub(first).max(0).unsigned_abs());
            self.bar.set_message(counted(self.sum.events, "event"));
        }
        Ok(())
    }

    /// The next events. Waits a while for a server that is away.
    async fn page(&self) -> Result<Vec<Event>, Failure> {
        let began = Instant::now();
        let mut pause = Duration::from_millis(100);
        loop {
            let error = match self.try_page().await {
                Ok((page, now)) => {
                    return self.what_is_missing(&now).map_or(Ok(page), |what| Err(Failure::failed(what)));
                }
                Err(error) => error,
            };
            if !error.is_retryable() || began.elapsed() + pause >= PATIENCE {
                return Err(error.into());
            }
            tracing::warn!(error = error.report(), "trying again in {pause:?}");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    /// First the page: what was pruned until the look at the log may be missing in it, what is pruned later is not.
    async fn try_page(&self) -> Result<(Vec<Event>, LogProgress), inorder::Error> {
        let page = self.log.read(self.sum.written_to, PAGE).await?;
        Ok((page, self.admin.log_progress().await?))
    }

    fn what_is_missing(&self, now: &LogProgress) -> Option<String> {
        let here = self.sum.written_to;
        let pruned = |was: i64, is: i64| is > was && is > here;
        if pruned(self.began.pruned_to, now.pruned_to) {
            return Some(format!(
                "events above id {}, up to {}, were pruned before they were exported",
                count(here),
                count(now.pruned_to)
            ));
        }
        let up_to = |types: &Value, kind: &str| types.get(kind).and_then(Value::as_i64).unwrap_or(0);
        let types = now.pruned_types.as_object().into_iter().flat_map(|types| types.keys());
        for kind in types.filter(|kind| self.only.as_ref().is_none_or(|only| only.contains(*kind))) {
            let is = up_to(&now.pruned_types, kind);
            if pruned(up_to(&self.began.pruned_types, kind), is) {
                return Some(plain(&format!(
                    "events of type {kind} above id {}, up to {}, were pruned before they were exported",
                    count(here),
                    count(is)
                )));
            }
        }
        (now.safe_head < here).then(|| {
            format!(
                "the log ends at id {} now, and had more events when the export began",
                count(now.safe_head)
            )
        })
    }
}

/// Where the lines go.
enum Out {
    Stdout(io::BufWriter<io::Stdout>),
    File(Unfinished),
}

impl Out {
    fn open(args: &Args) -> Result<Self, Failure> {
        match args.file.as_deref().filter(|path| *path != Path::new("-")) {
            None => Ok(Self::Stdout(io::BufWriter::with_capacity(1 << 16, io::stdout()))),
            Some(path) => Ok(Self::File(Unfinished::open(path, args.resume, args.replace)?)),
        }
    }

    /// The last event that is in it already.
    fn last(&self) -> Option<&file::Last> {
        match self {
            Self::Stdout(_) => None,
            Self::File(file) => file.last(),
        }
    }

    fn line(&mut self, line: &str) -> Result<(), Failure> {
        match self {
            Self::Stdout(out) => Ok(writeln!(out, "{line}")?),
            Self::File(file) => file.line(line),
        }
    }

    fn finish(&mut self) -> Result<(), Failure> {
        match self {
            Self::Stdout(out) => Ok(out.flush()?),
            Self::File(file) => file.finish(),
        }
    }

    /// It ends before its time: what is written is kept, and how to go on is said.
    fn leave(&mut self, failure: Failure, written_to: i64) -> Failure {
        if failure.exit() == Exit::Quiet {
            return failure;
        }
        match self {
            Self::Stdout(out) => match out.flush() {
                Ok(()) => failure.and(format_args!("--after {written_to} goes on")),
                Err(error) => error.into(),
            },
            Self::File(file) => match file.keep() {
                Ok(()) => failure.and(format_args!("{} is kept; --resume goes on with it", file.name())),
                Err(error) => failure.and(error.message()),
            },
        }
    }
}

/// On standard error, and only if that is a terminal.
fn bar(ids: u64) -> ProgressBar {
    let bar = ProgressBar::new(ids);
    if let Ok(style) =
        ProgressStyle::with_template("{msg:>18} {wide_bar:.cyan/dim} {percent:>3} %  {eta} left")
    {
        bar.set_style(style.progress_chars("━━─"));
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}
