//! Cleaning up after a process that had no chance to.
//!
//! A small shell waits on a pipe whose write end only we hold. However our process ends (a panic, `exit`, Ctrl-C,
//! SIGKILL), the kernel closes the pipe; the shell then stops the server that it was last told of and deletes the folder.
//! It has a process group of its own, so that a signal to ours does not reach it.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use super::Error;

/// `$1` is the folder. Each line that is read is the pid of the server that runs now, or `0`.
///
/// The pid cannot have been given to another process: as long as we live we do not reap it without saying `0`, and when we
/// are gone the shell acts at once. The server removes its lock file as its last act; a pid alone does not tell, since nobody
/// may be there to reap it. The folder is deleted until it stays deleted: a program that was still starting may write to it.
const SCRIPT: &str = r#"
trap '' HUP INT TERM QUIT
pid=0
while read -r line; do pid=$line; done
if [ "$pid" -gt 0 ] && kill -s QUIT "$pid" 2>/dev/null; then
    tries=0
    while [ -e "$1/data/postmaster.pid" ] && kill -s 0 "$pid" 2>/dev/null; do
        tries=$((tries + 1))
        if [ "$tries" -eq 500 ]; then kill -s KILL "$pid"; break; fi
        sleep 0.02
    done
fi
tries=0
while rm -rf "$1" 2>/dev/null; [ -e "$1" ] && [ "$tries" -lt 500 ]; do
    tries=$((tries + 1))
    sleep 0.02
done
"#;

#[derive(Debug)]
pub(super) struct Watchdog {
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl Watchdog {
    pub(super) fn over(folder: &Path) -> Result<Watchdog, Error> {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "inorder-watchdog"])
            .arg(folder)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| {
                Error::io("could not start /bin/sh, which cleans up when this process is killed", e)
            })?;
        let pipe = shell.stdin.take();
        Ok(Watchdog { shell, pipe })
    }

    /// The server that has to be stopped from now on, when we are gone.
    pub(super) fn watch(&mut self, pid: u32) -> Result<(), Error> {
        self.tell(pid)
    }

    /// There is nothing to stop any more.
    pub(super) fn forget(&mut self) -> Result<(), Error> {
        self.tell(0)
    }

    fn tell(&mut self, pid: u32) -> Result<(), Error> {
        let pipe = self.pipe.as_mut().ok_or_else(|| Error::failed("the watchdog's pipe is closed"))?;
        // One write, shorter than a pipe's buffer: it arrives whole or not at all.
        pipe.write_all(format!("{pid}\n").as_bytes()).map_err(|e| {
            Error::io("could not reach the shell that cleans up when this process is killed; did it end?", e)
        })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.pipe.take());
        // It has little left to do, and a zombie would stay behind. An error means that it is gone already.
        let _ = self.shell.wait();
    }
}
