//! `inorder completions` and `inorder man`: what a package installs besides the program.
//!
//! Both are made from the definition of the command line, so that they cannot say anything else than `--help`.

use std::io;
use std::path::PathBuf;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::screen::Screen;

/// Print completions for a shell
///
/// They are to be where the shell looks for them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder completions bash > ~/.local/share/bash-completion/completions/inorder
  inorder completions zsh > ~/.zfunc/_inorder        with ~/.zfunc in $fpath
  inorder completions fish > ~/.config/fish/completions/inorder.fish")]
pub(crate) struct Completions {
    /// The shell
    shell: Shells,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Shells {
    Bash,
    Zsh,
    Fish,
}

/// Print the manual page, of the tool or of one verb
///
/// For `man -l -`, or into a folder, a page for each verb, where `man` finds them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder man | man -l -
  inorder man dead-letters retry | man -l -
  inorder man --to ~/.local/share/man/man1")]
pub(crate) struct Man {
    /// The verb
    #[arg(value_name = "VERB")]
    verb: Vec<String>,
    /// Write the pages of all verbs into this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "verb")]
    to: Option<PathBuf>,
}

impl Completions {
    pub(crate) fn run<C: CommandFactory>(&self, screen: &Screen) -> Result<(), Failure> {
        let shell = match self.shell {
            Shells::Bash => Shell::Bash,
            Shells::Zsh => Shell::Zsh,
            Shells::Fish => Shell::Fish,
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut visible(&C::command()), "inorder", &mut script);
        print(screen, &script)
    }
}

impl Man {
    pub(crate) fn run<C: CommandFactory>(&self, screen: &Screen) -> Result<(), Failure> {
        let mut command = C::command().disable_help_subcommand(true);
        command.build();
        if let Some(folder) = &self.to {
            let failed = |e: io::Error| Failure::failed(format!("writing into {}: {e}", folder.display()));
            std::fs::create_dir_all(folder).map_err(failed)?;
            return clap_mangen::generate_to(command, folder).map_err(failed);
        }
        let mut page = &command;
        for word in &self.verb {
            page = page.find_subcommand(word).ok_or_else(|| {
                Failure::usage(format!(
                    "there is no verb {:?}; inorder --help lists them",
                    self.verb.join(" ")
                ))
            })?;
        }
        let mut text = Vec::new();
        clap_mangen::Man::new(page.clone()).render(&mut text)?;
        print(screen, &text)
    }
}

/// The same without verbs that are nobody's business, which completions would offer.
fn visible(command: &Command) -> Command {
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    Command::new("inorder").args(command.get_arguments()).subcommands(verbs)
}

fn print(screen: &Screen, text: &[u8]) -> Result<(), Failure> {
    Ok(screen.text(&String::from_utf8_lossy(text))?)
}
