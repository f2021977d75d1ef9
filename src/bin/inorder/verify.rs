//! `inorder verify`: proves the guarantees on a server.

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::screen::Screen;

/// Prove the guarantees on a server, in a schema of its own.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(
    _args: Args,
    _options: &Options,
    _screen: &Screen,
    _interrupt: &Interrupt,
) -> Result<(), Failure> {
    Err(Failure::failed("verify is not there yet"))
}
