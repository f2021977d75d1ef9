//! Other processes.

use std::process::Command;

/// This program again, running only the function of this name, which is marked `#[ignore]`; in a process group of its own, so
/// that a signal to ours does not reach it.
pub(crate) fn this_program(function: &str) -> Command {
    use std::os::unix::process::CommandExt;

    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", function, "--ignored", "--nocapture"]).process_group(0);
    command
}

/// The command lines, with pid, of the running processes that contain `text`.
pub(crate) fn with_command_line(text: &str) -> Vec<String> {
    let listed = Command::new("ps").args(["-A", "-ww", "-o", "pid=,args="]).output();
    let listed = listed.expect("`ps` lists the processes (package procps)");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let lines = String::from_utf8_lossy(&listed.stdout);
    lines.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
}

/// Sends a signal (`KILL`, `STOP`, `CONT`, …) to a process, or to a process group if `pid` is negative.
pub(crate) fn signal(name: &str, pid: i64) {
    let pid = pid.to_string();
    let sent = Command::new("/bin/sh").args(["-c", "kill -s \"$1\" -- \"$2\"", "sh", name, &pid]).status();
    assert!(sent.unwrap().success(), "could not send {name} to {pid}");
}
