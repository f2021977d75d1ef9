//! The whole terminal, for a view that is drawn again and again, and giving it back however the tool ends.
//!
//! Keys are read as they are typed, without echo; Ctrl-C stays a signal, and Ctrl-Z does nothing.

use std::io::{self, IsTerminal, Read, Write};
use std::sync::{Mutex, Once, PoisonError};

use console::{Term, truncate_str};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

/// How the terminal was; `None` while it is not taken.
static BEFORE: Mutex<Option<Before>> = Mutex::new(None);

struct Before {
    /// Of standard input, where that is the terminal.
    modes: Option<Termios>,
    /// Is it the other screen that is shown?
    whole: bool,
}

/// The other screen, without a cursor; and back. What was on the first is there again.
const TAKE: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const GIVE_BACK: &str = "\x1b[?25h\x1b[?1049l";

/// Can a view be drawn on standard output?
pub(crate) fn is_there() -> bool {
    let dumb = std::env::var("TERM").map_or(true, |term| term.is_empty() || term == "dumb");
    io::stdout().is_terminal() && !dumb
}

/// The terminal, until it is dropped.
#[derive(Debug)]
pub(crate) struct FullScreen(());

impl FullScreen {
    pub(crate) fn take() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let told = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                told(panic);
            }));
        });
        let modes = if io::stdin().is_terminal() { Some(tcgetattr(io::stdin())?) } else { None };
        let keys = modes.clone();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(Before { modes, whole: true });
        let taken = Self(());
        if let Some(mut keys) = keys {
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            keys.special_codes[SpecialCodeIndex::VSUSP] = 0;
            tcsetattr(io::stdin(), OptionalActions::Flush, &keys)?;
        }
        print(TAKE)?;
        Ok(taken)
    }

    /// Draws lines over what is there: the first, as many as fit, each as long as fits.
    pub(crate) fn draw(&self, lines: &[String]) -> io::Result<()> {
        let (rows, columns) = size();
        let mut text = String::from("\x1b[H");
        for (n, line) in lines.iter().take(rows).enumerate() {
            if n > 0 {
                text.push_str("\r\n");
            }
            text.push_str(&truncate_str(line, columns, "…"));
            text.push_str("\x1b[K");
        }
        text.push_str("\x1b[J");
        print(&text)
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        give_back();
    }
}

/// While a bar is drawn, the terminal does not write `^C`: that would begin a new line, and the bar in the line above would stay.
#[derive(Debug)]
pub(crate) struct Unechoed(());

impl Unechoed {
    pub(crate) fn begin() -> Self {
        if io::stdin().is_terminal()
            && io::stderr().is_terminal()
            && let Ok(modes) = tcgetattr(io::stdin())
        {
            let mut quiet = modes.clone();
            quiet.local_modes.remove(LocalModes::ECHOCTL);
            *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(Before { modes: Some(modes), whole: false });
            // If it is not to be had, the bar stays.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &quiet);
        }
        Self(())
    }
}

impl Drop for Unechoed {
    fn drop(&mut self) {
        give_back();
    }
}

/// Rows and columns.
pub(crate) fn size() -> (usize, usize) {
    let (rows, columns) = Term::stdout().size_checked().unwrap_or((24, 80));
    (rows.into(), columns.into())
}

/// Gives the terminal back, if it is taken. Whoever ends the process past all destructors calls it.
pub(crate) fn give_back() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    // There is nobody left to tell what fails.
    if let Some(Before { modes, whole }) = before {
        if whole {
            let _ = print(GIVE_BACK);
        }
        if let Some(modes) = modes {
            // Keys that were meant for the view are not for the shell.
            let when = if whole { OptionalActions::Flush } else { OptionalActions::Now };
            let _ = tcsetattr(io::stdin(), when, &modes);
        }
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// What is typed, where standard input is a terminal; nothing ever where it is not. The thread that reads is left behind.
pub(crate) fn keys() -> mpsc::Receiver<u8> {
    let (send, receive) = mpsc::channel(16);
    if io::stdin().is_terminal() {
        std::thread::spawn(move || {
            let mut key = [0];
            while matches!(io::stdin().read(&mut key), Ok(1)) && send.blocking_send(key[0]).is_ok() {}
        });
    }
    receive
}
