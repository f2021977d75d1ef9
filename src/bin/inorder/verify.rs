//! `inorder verify`: proves the guarantees on a server.
//!
//! Writers append in every way there is; processes consume, and are killed and frozen meanwhile; a server of our own
//! crashes besides. At the end what was committed is compared with what was delivered and with the effects in the
//! database.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;

mod audit;
mod chaos;
mod crash;
mod crew;
mod effects;
mod lanes;
mod report;
mod signals;
mod site;
mod statements;
mod story;
mod trouble;
mod witness;
pub(crate) mod worker;
mod writers;

use crate::failure::{Exit, Failure, tell};
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::screen::Screen;
use audit::{Patrol, audit, drained};
use chaos::Tally;
use crash::Wrecker;
use crew::Crew;
use lanes::HANDLER_LIMIT;
use report::{Crashes, Report, Spread, Takeovers};
use signals::Signals;
use site::Site;
use story::Story;
use trouble::{CouldNot, Result as Proof};
use witness::{Blow, Witness};
use writers::{Desk, Manner};

/// Prove the guarantees on a server, in a schema of its own
///
/// Writers append in every way there is; processes consume, and are killed and frozen meanwhile. At the end what was
/// committed is compared with what was delivered and with the effects in the database. Without a server a throwaway one is
/// started, which is also crashed and restarted.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder verify                                   on a throwaway server
  inorder verify --seconds 60 --writers 16 --json
  inorder verify --seed 7                          the same chances again
  inorder verify --effects --processes 3           effects outside of the database instead

Exit codes:
  0  every guarantee held
  1  a guarantee is broken: the report says at which events
  5  the proof could not be run to its end")]
pub(crate) struct Args {
    /// How long writers write; what comes afterwards takes a little longer
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Writers, each with a connection of its own
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    writers: u32,
    /// Processes that consume
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    processes: u32,
    /// Draw the same transactions and blows again; without it, a seed is drawn and told
    #[arg(long)]
    seed: Option<u64>,
    /// Do not crash and restart the server, also where it is a throwaway one
    #[arg(long)]
    no_crashes: bool,
    /// Prove what is said of effects outside of the database: effect and queued consumers, the ledger
    #[arg(long)]
    effects: bool,
    /// Leave the schema behind
    #[arg(long)]
    keep: bool,
    /// Break one thing, to see whether the proof finds it
    #[arg(long, hide = true)]
    mutant: Option<MutantName>,
}

/// How the library is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MutantName {
    HighestId,
    HoleTimeout,
    ReadBeforeDrain,
    Xmin,
    PositionOutside,
    ClaimsWithoutToken,
    SettleWithoutFencing,
    LateRenewal,
    SweeperIgnoresLeases,
}

impl MutantName {
    fn name(self) -> &'static str {
        match self {
            Self::HighestId => "highest-id",
            Self::HoleTimeout => "hole-timeout",
            Self::ReadBeforeDrain => "read-before-drain",
            Self::Xmin => "xmin",
            Self::PositionOutside => "position-outside",
            Self::ClaimsWithoutToken => "claims-without-token",
            Self::SettleWithoutFencing => "settle-without-fencing",
            Self::LateRenewal => "late-renewal",
            Self::SweeperIgnoresLeases => "sweeper-ignores-leases",
        }
    }
}

impl From<MutantName> for inorder::Mutant {
    fn from(name: MutantName) -> Self {
        match name {
            MutantName::HighestId => Self::HighestId,
            MutantName::HoleTimeout => Self::HoleTimeout,
            MutantName::ReadBeforeDrain => Self::ReadBeforeDrain,
            MutantName::Xmin => Self::Xmin,
            MutantName::PositionOutside => Self::PositionOutside,
            MutantName::ClaimsWithoutToken => Self::ClaimsWithoutToken,
            MutantName::SettleWithoutFencing => Self::SettleWithoutFencing,
            MutantName::LateRenewal => Self::LateRenewal,
            MutantName::SweeperIgnoresLeases => Self::SweeperIgnoresLeases,
        }
    }
}

pub(crate) async fn run(
    args: Args,
    options: &Options,
    screen: &Screen,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let server = options.given_server()?;
    if server.is_none() {
        tell("no server is named: starting a throwaway one, with fsync on");
    }
    let site = Site::open(server).await?;
    tell(format_args!("proving it in schema {}", site.schema()));
    let story = Story::begin();
    let proved = tokio::select! {
        proved = proof(&args, &site, &story) => proved.map_err(Failure::from),
        () = interrupt.wait() => Err(interrupt.failure("interrupted")),
    };
    drop(story);
    let closed = site.close(args.keep).await;
    let proved = proved?;
    match screen.is_json() {
        true => screen.json(&proved.json)?,
        false => screen.line(proved.text)?,
    }
    closed?;
    if !proved.is_clean {
        return Err(Failure::failed("a guarantee is broken"));
    }
    Ok(())
}

/// What is told at the end.
struct Proved {
    json: serde_json::Value,
    text: String,
    is_clean: bool,
}

async fn proof(args: &Args, site: &Site, story: &Story) -> Proof<Proved> {
    if args.effects {
        let report = effects::prove(args, site, story).await?;
        let json = serde_json::to_value(&report)?;
        return Ok(Proved { json, text: report.to_string(), is_clean: report.is_clean() });
    }
    let report = prove(args, site, story).await?;
    let json = serde_json::to_value(&report)?;
    Ok(Proved { json, text: report.to_string(), is_clean: report.findings.is_clean() })
}

impl From<CouldNot> for Failure {
    fn from(could_not: CouldNot) -> Self {
        Self::new(Exit::Unproved, could_not.to_string())
    }
}

/// The whole proof. Dropped in the middle, it takes its processes with it.
async fn prove(args: &Args, site: &Site, story: &Story) -> Proof<Report> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut rng = fastrand::Rng::with_seed(seed);
    let witness = Arc::new(Witness::default());
    let processes = usize::try_from(args.processes)?;
    let lanes = lanes::write_down(&site.session().await?, site, processes).await?;
    witness.expect_lanes(&lanes);
    let signals = Arc::new(Signals::start()?);
    story.now("starting processes");
    let crew = Crew::start(site, processes, args.mutant, None, &witness, &signals).await?;
    let began = Instant::now();
    let tally = Tally::default();
    let broken = storm(args, site, &crew, &witness, &tally, story, &mut rng).await?;
    let seconds = began.elapsed().as_secs_f64();
    story.now("waiting for the consumers to catch up");
    crew.all_up().await?;
    drained(site).await?;
    let counts = witness.counts();
    let wrecked = match site.throwaway() {
        Some(server) if !args.no_crashes && !broken => {
            let mut wrecker = Wrecker {
                site,
                server,
                witness: &witness,
                signals: &signals,
                writers: args.writers,
                rng: rng.fork(),
            };
            story.now("crashing the server under asynchronous commit");
            let mut crashes = wrecker.crash().await?;
            drained(site).await?;
            story.now("restarting the server with prepared transactions open");
            wrecker.restart(&mut crashes).await?;
            drained(site).await?;
            Some(crashes)
        }
        _ => None,
    };
    story.now("comparing what was committed with what was delivered");
    crew.stop().await?;
    let (findings, log) = audit(site, &witness).await?;
    let journal = witness.journal();
    let ids_used_again = witness.counts().ids_used_again;
    let crashes = wrecked.map(|done| Crashes { tail_lost: log.tail_lost, ids_used_again, ..done });
    Ok(Report {
        seed,
        seconds,
        writers: args.writers,
        processes: args.processes,
        committed: log.committed,
        rolled_back: u64::try_from(journal.rolled_back.len())?,
        transactions: journal.acknowledged_transactions,
        holes: log.holes,
        kills: tally.kills.load(Ordering::Relaxed),
        kills_in_handler: crew.kills_inside(),
        freezes: counts.freezes,
        freezes_in_handler: counts.freezes_in_handler,
        watcher_terminations: tally.watchers.load(Ordering::Relaxed),
        session_terminations: tally.sessions.load(Ordering::Relaxed),
        longest_stall_ms: counts.longest_stall_ms,
        handler_limit_ms: u64::try_from(HANDLER_LIMIT.as_millis())?,
        takeover_ms: Takeovers {
            killed: Spread::of(witness.takeovers(Blow::Killed)),
            frozen: Spread::of(witness.takeovers(Blow::Frozen)),
        },
        crashes,
        findings,
    })
}

/// Writers write while processes are struck, for as long as was asked for or until a guarantee is seen broken, which it
/// answers.
async fn storm(
    args: &Args,
    site: &Site,
    crew: &Crew,
    witness: &Arc<Witness>,
    tally: &Tally,
    story: &Story,
    rng: &mut fastrand::Rng,
) -> Proof<bool> {
    let (over, is_over) = watch::channel(false);
    let (quiet, is_quiet) = watch::channel(false);
    let desk = Desk::open(site, args.writers, witness, Manner::Kept, is_quiet, is_over.clone()).await?;
    let mut writers = JoinSet::new();
    for number in 0..args.writers {
        writers.spawn(Arc::clone(&desk).write(number, rng.fork()));
    }
    let writing = async {
        while let Some(written) = writers.join_next().await {
            written??;
        }
        Ok::<_, CouldNot>(())
    };
    let ending = async {
        let ended = watch_over(args, site, crew, witness, tally, story).await;
        quiet.send_replace(false);
        over.send_replace(true);
        ended
    };
    let ((), broken, ..) = tokio::try_join!(
        writing,
        ending,
        chaos::kill(crew, tally, rng.fork(), is_over.clone()),
        chaos::freeze(crew, rng.fork(), is_over.clone()),
        chaos::cut(site, tally, rng.fork(), is_over.clone(), false),
        chaos::hush(&quiet, rng.fork(), is_over),
    )?;
    Ok(broken)
}

/// Waits for the end of the storm: its time is up, or a guarantee is broken.
async fn watch_over(
    args: &Args,
    site: &Site,
    crew: &Crew,
    witness: &Witness,
    tally: &Tally,
    story: &Story,
) -> Proof<bool> {
    let until = Instant::now() + Duration::from_secs(args.seconds);
    let mut patrol = Patrol::begin(site).await?;
    while Instant::now() < until {
        let pause = Duration::from_secs(1).min(until.saturating_duration_since(Instant::now()));
        tokio::time::sleep(pause).await;
        crew.check()?;
        if patrol.finds().await? {
            story.tell("a guarantee is broken; no need to go on");
            return Ok(true);
        }
        story.storm(&witness.counts(), tally.kills.load(Ordering::Relaxed));
    }
    Ok(false)
}
