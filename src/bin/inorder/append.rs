//! `inorder append`: appends the events of a file, and can be run again.

mod line;
mod reader;

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use inorder::{Append, Config, Error, ErrorKind, ExpectedVersion, Inorder, NewEvent};
use serde::Serialize;
use tokio::sync::mpsc::Receiver;

use crate::failure::{Failure, tell};
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::screen::Screen;
use crate::terminal::Unechoed;
use crate::words::{count, counted};
use reader::{Batch, Piece};

/// Append the events of a file, one JSON object a line
///
/// The file can be appended again, after an interruption or by mistake: an event whose event_id is in the log already is
/// passed over. Events become part of the log in the order of the lines, up to 500 in one transaction.
///
/// A line that is no event, or that the log refuses, ends it: everything before that line is appended, nothing behind it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Fields of a line:
  event_type                required
  payload                   required, any JSON; stored byte for byte
  event_id                  a UUID, the key by which an event is known to be there already; see --ids
  stream_type, stream_id    both or neither
  metadata, tenant_id, schema_version, correlation_id, causation_id, created_by
  payload_text, metadata_text
                            instead of payload, metadata: JSON in a string, for what a line cannot hold
What `inorder export` and `inorder tail --json` write has the same form.

Examples:
  inorder append events.jsonl
  zcat events.jsonl.gz | inorder append
  inorder append --ids derive export.jsonl        lines without an event_id
  inorder append --skip-bad export.jsonl          bad lines are told and passed over")]
pub(crate) struct Args {
    /// The file; - or nothing is standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The event_id of lines that have none. `derive`: made from the line's number and text, so that a second run of the
    /// same file appends nothing twice. `new`: a new one, so that a second run appends them again. Otherwise such a line is bad
    #[arg(long, value_name = "HOW")]
    ids: Option<Ids>,
    /// Tell bad lines, pass over them and go on; they change nothing about the exit code
    #[arg(long)]
    skip_bad: bool,
    /// The largest payload, in bytes of JSON
    #[arg(long, value_name = "BYTES", default_value_t = 1024 * 1024)]
    max_payload_bytes: usize,
}

/// What a line without an event_id gets.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Ids {
    Derive,
    New,
}

pub(crate) async fn run(
    args: Args,
    options: &Options,
    screen: &Screen,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let source = Source::open(args.file.as_deref())?;
    let connecting = async {
        let adjust = |config| Config { max_payload_bytes: args.max_payload_bytes, ..config };
        let log = options.connect_with("append", adjust).await?;
        log.check_schema().await?;
        Ok(log)
    };
    let log = interrupt.ends(connecting).await?;
    let (bar, _unechoed) = match source.typed {
        true => (ProgressBar::hidden(), None),
        false => (bar(source.length), Some(Unechoed::begin())),
    };
    let mut run = Run { log, name: source.name, skip_bad: args.skip_bad, bar, sum: Sum::default() };
    let pieces = reader::read(source.from, source.length.is_none(), args.ids);
    let ended = run.take(pieces, interrupt).await;
    run.bar.finish_and_clear();
    screen.answer(&run.sum, run.sum.in_words())?;
    ended.map_err(|failure| match run.sum.last_line {
        0 => failure.and(format_args!("nothing of {} was appended", run.name)),
        line => failure.and(format_args!(
            "{} is appended up to line {}; run it again to go on, what is there is passed over",
            run.name,
            count(line)
        )),
    })
}

/// Where the events come from.
struct Source {
    name: String,
    from: Box<dyn Read + Send>,
    /// Of a regular file.
    length: Option<u64>,
    /// By somebody at a terminal, where a bar would be in the way.
    typed: bool,
}

impl Source {
    fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path.filter(|path| *path != Path::new("-")) else {
            let typed = io::stdin().is_terminal();
            if typed {
                tell("reading events from the terminal, one JSON object a line; Ctrl-D ends it");
            }
            let name = "standard input".into();
            return Ok(Self { name, from: Box::new(io::stdin()), length: None, typed });
        };
        let name = path.display().to_string();
        let open = || {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            if metadata.is_dir() {
                return Err(io::Error::from(io::ErrorKind::IsADirectory));
            }
            Ok((file, metadata.is_file().then_some(metadata.len())))
        };
        let (file, length) = open().map_err(|e| Failure::failed(format!("opening {name}: {e}")))?;
        Ok(Self { name, from: Box::new(file), length, typed: false })
    }
}

/// What was done.
#[derive(Debug, Default, Serialize)]
struct Sum {
    /// Events that are in the log now.
    events: u64,
    appended: u64,
    already_there: u64,
    bad_lines: u64,
    /// Everything up to this line is dealt with.
    last_line: u64,
}

impl Sum {
    fn in_words(&self) -> String {
        let mut words = format!(
            "{}: {} appended, {} already there",
            counted(self.events, "event"),
            count(self.appended),
            count(self.already_there)
        );
        if self.bad_lines > 0 {
            words.push_str(&format!(", {}", counted(self.bad_lines, "bad line")));
        }
        words
    }
}

/// What became of some events.
enum Fate {
    Appended(u64),
    AlreadyThere(u64),
    Completed {
        appended: u64,
        already_there: u64,
    },
    /// One of them cannot be appended, and so none was.
    Bad(String),
}

struct Run {
    log: Inorder,
    name: String,
    skip_bad: bool,
    bar: ProgressBar,
    sum: Sum,
}

impl Run {
    /// Until the file ends, a line is bad, or somebody interrupts: then what is under way is still finished.
    async fn take(&mut self, mut pieces: Receiver<Piece>, interrupt: &Interrupt) -> Result<(), Failure> {
        loop {
            let piece = tokio::select! {
                biased;
                () = interrupt.wait() => return Err(interrupt.failure("interrupted")),
                piece = pieces.recv() => piece,
            };
            match piece {
                None => return Ok(()),
                Some(Piece::Batch(batch)) => {
                    self.append(&batch, interrupt).await?;
                    self.bar.set_position(batch.read_to);
                    self.bar.set_message(counted(self.sum.events, "event"));
                }
                Some(Piece::Bad { line, why }) => self.bad(line, &why)?,
                Some(Piece::Failed(error)) => {
                    return Err(Failure::failed(format!("reading {}: {error}", self.name)));
                }
            }
        }
    }

    /// Appends a batch. One that has a bad line in it is halved until that line stands alone, so that everything before it
    /// is appended.
    async fn append(&mut self, batch: &Batch, interrupt: &Interrupt) -> Result<(), Failure> {
        let mut parts = vec![(0, batch.events.len())];
        while let Some((start, end)) = parts.pop() {
            let fate = self.append_part(&batch.events[start..end], interrupt).await?;
            let (appended, already_there) = match fate {
                Fate::Appended(n) => (n, 0),
                Fate::AlreadyThere(n) => (0, n),
                Fate::Completed { appended, already_there } => (appended, already_there),
                Fate::Bad(why) if end - start == 1 => {
                    self.bad(batch.lines[start], &why)?;
                    continue;
                }
                Fate::Bad(_) => {
                    let middle = usize::midpoint(start, end);
                    parts.push((middle, end));
                    parts.push((start, middle));
                    continue;
                }
            };
            self.sum.events += appended + already_there;
            self.sum.appended += appended;
            self.sum.already_there += already_there;
            self.sum.last_line = batch.lines[end - 1];
        }
        Ok(())
    }

    /// Tries again while the server is away: what went through is already there then.
    async fn append_part(&self, events: &[NewEvent], interrupt: &Interrupt) -> Result<Fate, Failure> {
        const PATIENCE: Duration = Duration::from_secs(15);
        let began = Instant::now();
        let mut pause = Duration::from_millis(100);
        loop {
            let error = match self.log.append(ExpectedVersion::Any, events).await {
                Ok(append) => return fate(append),
                Err(error) if error.kind() == ErrorKind::Refused => return Ok(Fate::Bad(refusal(&error))),
                Err(error) => error,
            };
            if !(error.is_retryable() || error.is_ambiguous()) || began.elapsed() + pause >= PATIENCE {
                return Err(error.into());
            }
            tracing::warn!(error = error.report(), "trying again in {pause:?}");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = interrupt.wait() => return Err(Failure::from(error).while_doing("interrupted")),
            }
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    fn bad(&mut self, line: u64, why: &str) -> Result<(), Failure> {
        let what = format!("line {} of {}: {why}", count(line), self.name);
        self.sum.bad_lines += 1;
        if !self.skip_bad {
            return Err(Failure::failed(what));
        }
        self.sum.last_line = line;
        self.bar.suspend(|| tell(format_args!("inorder: passed over {what}")));
        Ok(())
    }
}

fn fate(append: Append) -> Result<Fate, Failure> {
    let fate = match append {
        Append::Appended(ids) => Fate::Appended(ids.len() as u64),
        Append::AlreadyAppended(ids) => Fate::AlreadyThere(ids.len() as u64),
        Append::Completed { ids, already } => {
            Fate::Completed { appended: (ids.len() - already) as u64, already_there: already as u64 }
        }
        Append::Mismatch { event_id, id } => Fate::Bad(format!(
            "event_id {event_id} is in the log already, as event {id}, with other content; give it another event_id if it is \
             another event"
        )),
        Append::Conflict { actual, .. } => {
            return Err(Failure::failed(format!(
                "a stream was at version {actual} and refused an event, though none was expected of it"
            )));
        }
    };
    Ok(fate)
}

/// The library's words without the place in the batch: the line says it.
fn refusal(error: &Error) -> String {
    let report = error.report();
    match report.split_once("'): ") {
        Some((place, why)) if place.starts_with("append refused: event ") => why.to_owned(),
        _ => report,
    }
}

/// On standard error, and only if that is a terminal.
fn bar(length: Option<u64>) -> ProgressBar {
    let (bar, template) = match length {
        Some(length) => (
            ProgressBar::new(length),
            "{msg:>18} {wide_bar:.cyan/dim} {percent:>3} %  {bytes_per_sec}, {eta} left",
        ),
        None => (ProgressBar::new_spinner(), "{spinner:.cyan} {msg}  {elapsed}"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━━─"));
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}
