//! Freezing and resuming processes. The standard library sends no signals but SIGKILL; a shell, started once, does.
//!
//! However our process ends, the shell's input ends with it: it then resumes what is frozen, so that nobody stays behind
//! stopped. It has a process group of its own, so that a Ctrl-C does not reach it.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;

use super::trouble::{CouldNot, Result};

/// Each line that is read is a signal and a pid; each answer, whether it was sent.
const SCRIPT: &str = r#"
trap '' HUP INT TERM QUIT
frozen=
while read -r signal pid; do
    case $signal in
        STOP) frozen="$frozen $pid" ;;
        CONT) frozen=${frozen% "$pid"} ;;
    esac
    if kill -s "$signal" "$pid" 2>/dev/null; then echo sent; else echo gone; fi
done
for pid in $frozen; do kill -s CONT "$pid" 2>/dev/null; done
"#;

/// The shell.
pub(crate) struct Signals(Mutex<Shell>);

struct Shell {
    stdin: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Signals {
    pub(crate) fn start() -> Result<Self> {
        let mut child = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "inorder-signals"])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| CouldNot::from(e).while_doing("starting /bin/sh, which freezes processes"))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(CouldNot::new("starting /bin/sh: it has no input and output"));
        };
        let answers = BufReader::new(stdout).lines();
        Ok(Self(Mutex::new(Shell { stdin, answers, _child: child })))
    }

    pub(crate) async fn freeze(&self, pid: u32) -> Result<bool> {
        self.send("STOP", pid).await
    }

    pub(crate) async fn resume(&self, pid: u32) -> Result<bool> {
        self.send("CONT", pid).await
    }

    /// False when there is no such process any more.
    async fn send(&self, signal: &str, pid: u32) -> Result<bool> {
        let mut shell = self.0.lock().await;
        shell.stdin.write_all(format!("{signal} {pid}\n").as_bytes()).await?;
        match shell.answers.next_line().await? {
            Some(answer) => Ok(answer == "sent"),
            None => Err(CouldNot::new(format!(
                "sending {signal} to process {pid}: the shell that does it has ended"
            ))),
        }
    }
}
