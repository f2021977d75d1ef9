//! `inorder bench`: measures inorder and its floor alternately in one run.

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::screen::Screen;

/// Measure inorder beside its floor.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(
    _args: Args,
    _options: &Options,
    _screen: &Screen,
    _interrupt: &Interrupt,
) -> Result<(), Failure> {
    Err(Failure::failed("bench is not there yet"))
}
