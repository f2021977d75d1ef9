//! The tool `inorder`.
//!
//! `main` parses, runs one verb, and turns how it ended into an exit code. A verb is a module with its arguments and `run`,
//! which answers `Ok` or a [`Failure`]; what it prints goes through a [`Screen`].

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};

mod admin;
mod append;
mod audit;
mod bench;
mod blockers;
mod config;
mod consumers;
mod dead_letters;
mod demo;
mod doctor;
mod export;
mod facts;
mod failure;
mod handoffs;
mod instances;
mod interrupt;
mod ledger;
mod manual;
mod migrate;
mod options;
mod prune;
mod question;
mod roles;
mod screen;
mod serve;
mod show;
mod status;
mod table;
mod tail;
mod terminal;
mod trace;
mod verify;
mod words;

use failure::{Exit, Failure};
use interrupt::Interrupt;
use options::Options;
use screen::Screen;

/// Every event, in order, once: a PostgreSQL table as a dependable event log with consumers.
#[derive(Debug, Parser)]
#[command(name = "inorder", version, after_help = failure::WHERE_TO_BEGIN, max_term_width = 100, subcommand_required = true)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Demo(demo::Args),
    Migrate(migrate::Args),
    Append(append::Args),
    Tail(tail::Args),
    Export(export::Args),
    Status(status::Args),
    Doctor(doctor::Args),
    Consumers(consumers::Args),
    Show(show::Args),
    Blockers(blockers::Args),
    Instances(instances::Args),
    Audit(audit::Args),
    Trace(trace::Args),
    Restart(admin::Restart),
    Skip(admin::Skip),
    Disable(admin::Disable),
    Enable(admin::Enable),
    Reset(admin::Reset),
    Unregister(admin::Unregister),
    Repartition(admin::Repartition),
    AcceptPruned(admin::AcceptPruned),
    Prune(prune::Args),
    DeadLetters(dead_letters::Args),
    Ledger(ledger::Args),
    Handoffs(handoffs::Args),
    Roles(roles::Args),
    Serve(serve::Args),
    Verify(verify::Args),
    #[command(hide = true)]
    VerifyWorker(verify::worker::Args),
    Bench(bench::Args),
    Config(config::Args),
    Completions(manual::Completions),
    Man(manual::Man),
}

impl Verb {
    /// What is logged when nobody says: the demonstration lets a consumer fail on purpose, and shows it in its own way.
    fn log_level(&self) -> &'static str {
        match self {
            Self::Demo(_) => "off",
            _ => "inorder=warn",
        }
    }
}

/// The command line. `help` knows no options of its own: who asks it for `--help` is given what `help` says.
fn command_line() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| {
        let asks_help = |word: &str| matches!(word, "--help" | "-h");
        match error.get(ContextKind::InvalidSubcommand) {
            Some(ContextValue::String(word)) if asks_help(word) => {
                let words = std::env::args_os().filter(|word| !word.to_str().is_some_and(asks_help));
                Cli::parse_from(words)
            }
            _ => error.exit(),
        }
    })
}

fn main() -> ExitCode {
    let Cli { options, verb } = command_line();
    options.log_to_stderr(verb.log_level());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::new(Exit::Failed, format!("starting the runtime: {error}")).tell(),
    };
    let exit = runtime.block_on(async {
        // On the heap: verbs are large, and differently so.
        match Box::pin(run(&options, verb)).await {
            Ok(exit) => exit,
            Err(failure) => failure.tell(),
        }
    });
    // Threads that still read a terminal or a pipe are not waited for.
    runtime.shutdown_background();
    exit
}

async fn run(options: &Options, verb: Verb) -> Result<ExitCode, Failure> {
    let screen = Screen::new(options.json());
    let interrupt = Interrupt::listen()?;
    let done = match verb {
        Verb::Demo(args) => demo::run(&args, options, &screen, &interrupt).await,
        Verb::Migrate(args) => interrupt.ends(migrate::run(&args, options, &screen)).await,
        Verb::Append(args) => append::run(args, options, &screen, &interrupt).await,
        Verb::Tail(args) => tail::run(args, options, &screen, &interrupt).await,
        Verb::Export(args) => export::run(args, options, &screen, &interrupt).await,
        Verb::Status(args) => status::run(&args, options, &screen, &interrupt).await,
        Verb::Doctor(args) => interrupt.ends(doctor::run(&args, options, &screen)).await,
        Verb::Consumers(args) => interrupt.ends(consumers::run(&args, options, &screen)).await,
        Verb::Show(args) => interrupt.ends(show::run(&args, options, &screen)).await,
        Verb::Blockers(args) => interrupt.ends(blockers::run(&args, options, &screen)).await,
        Verb::Instances(args) => interrupt.ends(instances::run(&args, options, &screen)).await,
        Verb::Audit(args) => interrupt.ends(audit::run(&args, options, &screen)).await,
        Verb::Trace(args) => trace::run(&args, options, &screen, &interrupt).await,
        Verb::Restart(args) => interrupt.acts(args.run(options, &screen)).await,
        Verb::Skip(args) => interrupt.acts(args.run(options, &screen)).await,
        Verb::Disable(args) => interrupt.acts(args.run(options, &screen)).await,
        Verb::Enable(args) => interrupt.acts(args.run(options, &screen)).await,
        Verb::Reset(args) => interrupt.acts(args.run(options, &screen)).await,
        Verb::Unregister(args) => interrupt.acts(args.run(options, &screen)).await,
        Verb::Repartition(args) => interrupt.acts(args.run(options, &screen)).await,
        Verb::AcceptPruned(args) => interrupt.acts(args.run(options, &screen)).await,
        Verb::Prune(args) => prune::run(&args, options, &screen, &interrupt).await,
        Verb::DeadLetters(args) => interrupt.acts(dead_letters::run(&args, options, &screen)).await,
        Verb::Ledger(args) => interrupt.acts(ledger::run(&args, options, &screen)).await,
        Verb::Handoffs(args) => interrupt.acts(handoffs::run(&args, options, &screen)).await,
        Verb::Roles(args) => interrupt.acts(roles::run(&args, options, &screen)).await,
        Verb::Serve(args) => serve::run(args, options, &screen, &interrupt).await,
        Verb::Verify(args) => verify::run(args, options, &screen, &interrupt).await,
        Verb::VerifyWorker(args) => verify::worker::run(args, options, &interrupt).await,
        Verb::Config(args) => config::run(&args, options, &screen),
        Verb::Bench(args) => bench::run(args, options, &screen, &interrupt).await,
        Verb::Completions(args) => args.run::<Cli>(&screen),
        Verb::Man(args) => args.run::<Cli>(&screen),
    };
    done.map(|()| ExitCode::SUCCESS)
}
