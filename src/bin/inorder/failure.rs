//! How a verb fails: one line on standard error, and an exit code.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use inorder::{Error, ErrorKind};

/// At the end of `--help`, the exit codes as in the README.
pub(crate) const WHERE_TO_BEGIN: &str = "\
To begin:
  inorder demo                              see it all, on a throwaway server
  inorder config                            which server is meant, and where that was said
  inorder migrate, inorder roles create     the log, and who may do what

When something is wrong:
  inorder status, inorder doctor            what, and what to do
  inorder show CONSUMER                     at which event it failed, and why
  inorder restart CONSUMER                  try again, once the cause is repaired
  inorder skip CONSUMER --event … --why …   pass over an event that is at fault itself

Exit codes:
  0    done
  1    failed, or found something wrong
  2    wrong usage, or nobody there to say yes (see --yes)
  3    no connection, or no answer in time: the same command may work later
  4    refused: no such consumer or event, or it stands otherwise than needed
  5    verify: the proof could not be run to its end
  130  interrupted by Ctrl-C (143: by SIGTERM); what was done so far is done";

/// How the tool ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Whoever read our output has gone: nothing is wrong.
    Quiet,
    /// Failed, or found something wrong.
    Failed,
    /// The command line, or nobody to ask.
    Usage,
    /// The server was not reached, or did not answer.
    Unreachable,
    /// What the command asks for does not fit how things stand.
    Refused,
    /// A proof that says nothing, as it did not come to its end.
    Unproved,
    /// By a signal.
    Interrupted(u8),
}

impl Exit {
    fn code(self) -> u8 {
        match self {
            Self::Quiet => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::Refused => 4,
            Self::Unproved => 5,
            Self::Interrupted(signal) => 128 + signal,
        }
    }
}

/// Why a verb ended before it was done.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// Failed, or found something wrong.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// The command line does not say what is needed.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Puts what was being done in front.
    pub(crate) fn while_doing(mut self, what: impl Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Adds what to do, or how far it came.
    pub(crate) fn and(mut self, more: impl Display) -> Self {
        self.message = format!("{}; {more}", self.message);
        self
    }

    /// Calls a thing what whoever gave the command called it.
    pub(crate) fn calling(mut self, thing: &str, name: &str) -> Self {
        self.message = self.message.replace(thing, name);
        self
    }

    /// How the tool would end.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// The message, in one line.
    pub(crate) fn message(&self) -> String {
        one_line(&self.message)
    }

    /// Tells it on standard error; answers the exit code.
    pub(crate) fn tell(self) -> ExitCode {
        if self.exit != Exit::Quiet {
            tell(format_args!("inorder: {}", self.message()));
        }
        ExitCode::from(self.exit.code())
    }
}

/// A line on standard error. There is nobody left to tell if that fails.
pub(crate) fn tell(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::Connection | ErrorKind::Timeout | ErrorKind::Ambiguous => Exit::Unreachable,
            ErrorKind::Precondition | ErrorKind::NotRegistered | ErrorKind::Busy => Exit::Refused,
            ErrorKind::Config => Exit::Usage,
            _ => Exit::Failed,
        };
        let failure = Self::new(exit, error.report());
        match error.kind() {
            ErrorKind::Connection if error.sqlstate().is_none() => {
                failure.and("is that the right server, and does it run? see --database-url")
            }
            _ => failure,
        }
    }
}

impl From<io::Error> for Failure {
    /// Of our own output.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Exit::Quiet, ""),
            _ => Self::failed(format!("writing to standard output: {error}")),
        }
    }
}

impl From<inorder::testing::Error> for Failure {
    fn from(error: inorder::testing::Error) -> Self {
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            message.push_str(&format!(": {error}"));
            cause = error.source();
        }
        Self::failed(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_the_server_said() {
        let failure = Failure::failed("no such column\n  \"x\"").while_doing("looking").and("look elsewhere");
        assert_eq!(failure.message(), "looking: no such column \"x\"; look elsewhere");
    }

    #[test]
    fn a_reader_that_has_gone_is_no_failure() {
        let gone = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(gone.exit.code(), 0);
        assert_eq!(Exit::Interrupted(2).code(), 130);
    }
}
