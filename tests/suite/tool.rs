//! The tool `inorder`, run as a program.

mod append;
mod demo;
mod export;
mod handoffs;
mod help;
mod look;
mod manual;
mod operate;
mod serve;
mod tail;
mod terminal;
mod trace;

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use crate::support::process::signal;

/// How long a run may take on a machine that does something else as well.
const LIMIT: Duration = Duration::from_secs(120);

/// How a run ended.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) code: i32,
    pub(super) out: String,
    pub(super) err: String,
}

impl Ran {
    /// Standard output, which is one JSON object.
    pub(super) fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Standard output of a run that went well, without the last line end.
    pub(super) fn said(&self) -> &str {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{self:?}");
        self.out.trim_end()
    }

    /// Standard error of a run that did not go well: one line.
    pub(super) fn failed(&self, code: i32) -> &str {
        assert_eq!(self.code, code, "{self:?}");
        let line = self.err.trim_end();
        assert!(line.starts_with("inorder: ") && line.lines().count() == 1, "{self:?}");
        line
    }
}

/// The tool on a database, its arguments separated by blanks.
pub(super) fn inorder(url: &str, arguments: &str) -> Command {
    inorder_with(url, &arguments.split_whitespace().collect::<Vec<_>>())
}

fn inorder_with(url: &str, arguments: &[&str]) -> Command {
    let mut command = program();
    command.env("INORDER_DATABASE_URL", url).args(arguments);
    command
}

/// The tool, on no database.
pub(super) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inorder"));
    for (name, _) in std::env::vars_os() {
        let is = |prefix: &str| name.to_str().is_some_and(|name| name.starts_with(prefix));
        if is("PG") || is("DATABASE_URL") || is("INORDER_CONFIG") || is("RUST_LOG") {
            command.env_remove(name);
        }
    }
    // A group of its own: a signal to ours does not reach it.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    command
}

/// Runs it to its end.
pub(super) async fn run(url: &str, arguments: &str) -> Ran {
    ended(inorder(url, arguments).spawn().unwrap()).await
}

async fn run_with(url: &str, arguments: &[&str]) -> Ran {
    ended(inorder_with(url, arguments).spawn().unwrap()).await
}

/// Waits for the end of a run.
pub(super) async fn ended(child: Child) -> Ran {
    let output = tokio::time::timeout(LIMIT, child.wait_with_output()).await.expect("it ends").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap_or_else(|| panic!("ended by a signal: {:?}", output.status));
    Ran { code, out: text(output.stdout), err: text(output.stderr) }
}

/// What a terminal does at Ctrl-C.
fn interrupt(child: &Child) {
    signal("INT", i64::from(child.id().expect("it runs")));
}

/// Reads standard output until it holds this text.
async fn read_until(child: &mut Child, text: &str) -> String {
    let out = child.stdout.as_mut().unwrap();
    let mut read = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&read).contains(text) {
            let mut piece = [0; 4_096];
            match out.read(&mut piece).await.unwrap() {
                0 => panic!("it ended before it said {text:?}; it said {:?}", String::from_utf8_lossy(&read)),
                n => read.extend_from_slice(&piece[..n]),
            }
        }
    };
    tokio::time::timeout(LIMIT, reading).await.unwrap_or_else(|_| panic!("it never said {text:?}"));
    String::from_utf8_lossy(&read).into_owned()
}

/// A file of events in the form of real data: flights that landed.
pub(super) fn flights(count: usize) -> String {
    let airports = ["MCI", "STL", "ONT", "HOU", "ABQ", "BHM", "LAS"];
    let line = |n: usize| {
        let id = uuid::Uuid::from_u128(0x5eed_0000_0000_4000_8000_0000_0000_0000 + n as u128);
        let (origin, destination) = (airports[n % 7], airports[(n / 7 + 1) % 7]);
        format!(
            r#"{{"event_id":"{id}","event_type":"flight.landed","stream_type":"airport","stream_id":"{destination}","payload":{{"date":"2001/01/{:02} 06:20","delay": {},"distance":{},"origin":"{origin}","destination":"{destination}"}}}}"#,
            n % 28 + 1,
            (n * 37) as i64 % 90 - 20,
            n * 13 % 2_000
        ) + "\n"
    };
    (1..=count).map(line).collect()
}

/// A file with this content, gone when dropped.
pub(super) fn file(content: &str) -> tempfile::NamedTempFile {
    use std::io::Write as _;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content.as_bytes()).unwrap();
    file
}
