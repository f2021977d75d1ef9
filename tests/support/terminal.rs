//! A terminal with a shell in it, as somebody sits before it: `tmux`.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::eventually;

/// Longer than anything that is typed takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Gone when dropped.
pub(crate) struct Terminal {
    socket: String,
}

impl Terminal {
    /// A terminal of this size, whose shell has these variables.
    pub(crate) async fn open(columns: u32, rows: u32, variables: &[(&str, &str)]) -> Terminal {
        let terminal = Terminal { socket: format!("inorder-{}-{}", std::process::id(), fastrand::u64(..)) };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        // It does not outlive a test that was killed for long.
        let shell = "timeout --foreground 600 sh";
        terminal.tmux(&["new-session", "-d", "-x", &columns, "-y", &rows, shell]);
        // Shells differ in their prompts, and some take none from outside.
        terminal.shows_that("a prompt", |screen| !screen.trim().is_empty()).await;
        let variables = variables.iter().map(|(name, value)| format!("export {name}='{value}'; "));
        terminal.line(&format!("{}PS1='ready> '; clear", variables.collect::<String>()));
        terminal.shows_that("our prompt", |screen| screen.trim() == "ready>").await;
        terminal
    }

    /// What is on the screen.
    pub(crate) fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until this is on the screen, and answers all of it.
    pub(crate) async fn shows(&self, what: &str) -> String {
        self.shows_that(what, |screen| screen.contains(what)).await
    }

    /// Waits until the screen is so.
    pub(crate) async fn shows_that(&self, what: &str, so: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        let waiting = eventually(LIMIT, what, async || {
            screen = self.screen();
            so(&screen)
        });
        if tokio::time::timeout(LIMIT - Duration::from_secs(1), waiting).await.is_err() {
            panic!("never on the screen: {what}; it shows\n{screen}");
        }
        screen
    }

    /// Types a line.
    pub(crate) fn line(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
        self.key("Enter");
    }

    /// Presses a key: `q`, `C-c`, `Enter`.
    pub(crate) fn key(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    pub(crate) fn resize(&self, columns: u32, rows: u32) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
    }

    /// Is the other screen shown, which has no history; is there a cursor?
    pub(crate) fn modes(&self) -> (bool, bool) {
        let modes = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        let flag = |word: Option<&str>| word == Some("1");
        let mut words = modes.split_whitespace();
        (flag(words.next()), flag(words.next()))
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = self.command().args(arguments).output().unwrap_or_else(|e| {
            panic!("running tmux: {e}; install it (Debian, Ubuntu: apt-get install tmux), or run script/setup")
        });
        assert!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-u", "-L", &self.socket, "-f", "/dev/null"]).env("LC_ALL", "C.UTF-8").env_remove("TMUX");
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.command().arg("kill-server").output();
    }
}
