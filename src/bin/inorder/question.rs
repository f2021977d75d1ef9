//! Asking before something is done that cannot be undone.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::failure::Failure;

/// For verbs that ask.
#[derive(Debug, clap::Args)]
pub(crate) struct Consent {
    /// Do not ask. Needed where there is no terminal to ask on
    #[arg(short, long)]
    yes: bool,
}

impl Consent {
    /// Asks, unless the answer was given with the command. Returns when it is yes.
    pub(crate) async fn ask(&self, question: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Err(Failure::usage(format!(
                "{question} There is no terminal to ask on: say --yes, or do not"
            )));
        }
        let question = question.to_owned();
        // The thread is left behind if the answer is Ctrl-C.
        let answer = tokio::task::spawn_blocking(move || {
            // Not locked while somebody thinks: what an interruption says goes there.
            write!(io::stderr(), "{question} [y/N] ")?;
            io::stderr().flush()?;
            let mut answer = String::new();
            io::stdin().lock().read_line(&mut answer)?;
            io::Result::Ok(answer)
        });
        let unanswered = Unanswered;
        let answer = answer.await;
        std::mem::forget(unanswered);
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(e)) => return Err(Failure::failed(format!("asking on the terminal: {e}"))),
            Err(e) => return Err(Failure::failed(format!("asking on the terminal: {e}"))),
        };
        match answer.trim().to_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Failure::failed("not done, as you did not say yes")),
        }
    }
}

/// A question that somebody interrupts: what comes next begins a line.
struct Unanswered;

impl Drop for Unanswered {
    fn drop(&mut self) {
        // There is nobody left to tell.
        let _ = writeln!(io::stderr());
    }
}
