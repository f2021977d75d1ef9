//! `inorder verify`: proves the guarantees on a server.

use std::process::ExitCode;

/// Prove the guarantees on a server, in a schema of its own.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args) -> ExitCode {
    ExitCode::FAILURE
}
