//! `inorder bench`: measures inorder and its floor alternately in one run, with the same client code.
//!
//! A floor is what the same work costs without inorder: bare inserts, a bare read, a bare LISTEN. Both sides of a pair run
//! right after each other, in turns as to which goes first, after a checkpoint. The ratio is the median of the ratios of
//! the pairs, so that a machine which gets slower or faster in the course of the run does not matter.

use clap::{Args as ClapArgs, ValueEnum};

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::screen::Screen;

mod append;
mod arena;
mod deliver;
mod effect;
mod fanout;
mod figures;
mod idle;
mod latency;
mod queue;
mod sql;

use arena::Arena;
use figures::{Case, Sheet};

/// What a measurement ends with when it could not be made.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measure inorder beside its floor.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  inorder bench append
  inorder bench latency --case awake --repetitions 3 --json
  inorder --database-url postgres://localhost/scratch bench deliver --events 200000")]
pub(crate) struct Args {
    /// What to measure.
    #[arg(value_enum)]
    what: What,
    /// How many pairs of measurements make up a case; each bench has a default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repetitions: Option<u32>,
    /// How long the clock runs in each measurement, where a bench goes by time (append, latency, idle).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: Option<u32>,
    /// How many events are delivered, where a bench goes by events (deliver, fanout, effect, queue).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    events: Option<u32>,
    /// Only cases whose name contains this.
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Events appended a second by 32 writers, with consumers attached, beside bare inserts.
    Append,
    /// Stored events delivered a second, beside a bare read of them.
    Deliver,
    /// From the commit to the handler, beside a bare LISTEN and a SELECT.
    Latency,
    /// What 100 consumers with nothing to do cost.
    Idle,
    /// Rows read from the log for ten consumers, beside those read for one.
    Fanout,
    /// Events an effect consumer gets through a second, beside two committed statements each by hand.
    Effect,
    /// Events a queued consumer gets through a second, beside a queue by hand, and beside an effect consumer.
    Queue,
    /// All of them.
    All,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Deliver => "deliver",
            Self::Latency => "latency",
            Self::Idle => "idle",
            Self::Fanout => "fanout",
            Self::Effect => "effect",
            Self::Queue => "queue",
            Self::All => "all",
        }
    }
}

pub(crate) async fn run(
    args: Args,
    options: &Options,
    screen: &Screen,
    interrupt: &Interrupt,
) -> std::result::Result<(), Failure> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        Failure::failed(arena::describe(&*error)).while_doing(format_args!("bench {}", args.what.name()))
    };
    let arena = Arena::open(options.given_server()?).await.map_err(failed)?;
    let measuring = async { measure(&args, &arena).await.map_err(failed) };
    let measured = interrupt.ends(measuring).await;
    let closed = arena.close().await.map_err(failed);
    let sheet = measured?;
    closed?;
    if screen.is_json() {
        return Ok(screen.json(&sheet.to_json())?);
    }
    for line in sheet.lines(screen) {
        screen.line(line)?;
    }
    Ok(())
}

async fn measure(args: &Args, arena: &Arena) -> Result<Sheet> {
    let mut sheet = Sheet::new(args.what.name(), arena.about().await?);
    let all =
        [What::Append, What::Deliver, What::Latency, What::Idle, What::Fanout, What::Effect, What::Queue];
    for what in all.into_iter().filter(|what| args.what == *what || args.what == What::All) {
        sheet.add(what.name(), measure_one(args, what, arena).await?);
    }
    match sheet.is_empty() {
        true => Err("no case has such a name".into()),
        false => Ok(sheet),
    }
}

async fn measure_one(args: &Args, what: What, arena: &Arena) -> Result<Vec<Case>> {
    match what {
        What::Append => append::measure(args, arena).await,
        What::Deliver => deliver::measure(args, arena).await,
        What::Latency => latency::measure(args, arena).await,
        What::Idle => idle::measure(args, arena).await,
        What::Fanout => fanout::measure(args, arena).await,
        What::Effect => effect::measure(args, arena).await,
        What::Queue => queue::measure(args, arena).await,
        What::All => Ok(Vec::new()),
    }
}

impl Args {
    /// Is a case of this name asked for?
    fn wants(&self, case: &str) -> bool {
        self.case.as_deref().is_none_or(|part| case.contains(part))
    }

    fn repetitions(&self, default: u32) -> u32 {
        self.repetitions.unwrap_or(default)
    }

    fn seconds(&self, default: u32) -> std::time::Duration {
        std::time::Duration::from_secs(self.seconds.unwrap_or(default).into())
    }
}

/// Which side of a pair goes first: in turns.
fn ours_first(repetition: u32) -> bool {
    repetition.is_multiple_of(2)
}
