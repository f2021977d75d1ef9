//! Other processes.

use std::fs;
use std::path::Path;
use std::process::Command;

/// This program again, running only the function of this name, which is marked `#[ignore]`; in a process group of its own, so
/// that a signal to ours does not reach it.
pub(crate) fn this_program(function: &str) -> Command {
    use std::os::unix::process::CommandExt;

    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", function, "--ignored", "--nocapture"]).process_group(0);
    command
}

/// The command lines of the running processes that contain `text`.
pub(crate) fn with_command_line(text: &str) -> Vec<String> {
    let lines = if Path::new("/proc/self/cmdline").exists() { from_proc() } else { from_ps() };
    assert!(!lines.is_empty(), "at least this process has a command line");
    lines.into_iter().filter(|line| line.contains(text)).collect()
}

/// Linux, where `ps` may not be installed. A process that has ended, even if nobody reaped it, has an empty command line.
fn from_proc() -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| !line.is_empty()).map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect()
}

fn from_ps() -> Vec<String> {
    let listed = Command::new("ps").args(["-A", "-ww", "-o", "args="]).output().unwrap();
    String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect()
}

/// Sends a signal (`KILL`, `STOP`, `CONT`, …) to a process, or to a process group if `pid` is negative.
pub(crate) fn signal(name: &str, pid: i64) {
    let pid = pid.to_string();
    let sent = Command::new("/bin/sh").args(["-c", "kill -s \"$1\" -- \"$2\"", "sh", name, &pid]).status();
    assert!(sent.unwrap().success(), "could not send {name} to {pid}");
}
