//! The tool `inorder`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod verify;

/// Every event, in order, once: a PostgreSQL table as a dependable event log with consumers.
#[derive(Debug, Parser)]
#[command(name = "inorder", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Verify(verify::Args),
    Bench(bench::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::parse().verb {
        Verb::Verify(args) => verify::run(args).await,
        Verb::Bench(args) => bench::run(args).await,
    }
}
