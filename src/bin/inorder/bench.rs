//! `inorder bench`: measures inorder and its floor alternately in one run.

use std::process::ExitCode;

/// Measure inorder beside its floor.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args) -> ExitCode {
    ExitCode::FAILURE
}
