//! A real Prometheus: its linter, and a server that scrapes.

use std::net::SocketAddr;
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use super::http::ask;
use super::{LIMIT, eventually};

/// A program of Debian's package `prometheus`; without it the test fails.
fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.kill_on_drop(true).stdin(Stdio::null());
    command
}

fn missing(name: &str, error: &std::io::Error) -> ! {
    panic!("{name}: {error}; the test needs Prometheus: script/setup installs it where it can, else apt-get install prometheus")
}

/// What `promtool check metrics` finds wrong with a scrape.
pub(crate) async fn lint(text: &str) -> String {
    let mut promtool = program("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().unwrap_or_else(|e| missing("promtool", &e));
    let mut stdin = promtool.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).await.unwrap();
    drop(stdin);
    let output = promtool.wait_with_output().await.unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() || !said.is_empty(), "promtool failed without a word");
    said
}

/// A server that scrapes one target every second.
pub(crate) struct Prometheus {
    address: SocketAddr,
    _server: Child,
    _folder: TempDir,
}

impl Prometheus {
    /// Scrapes this address, showing the token.
    pub(crate) async fn scraping(target: SocketAddr, token: &str) -> Prometheus {
        let folder = TempDir::new().unwrap();
        let (config, data) = (folder.path().join("prometheus.yml"), folder.path().join("data"));
        let job = format!(
            "scrape_configs:\n- job_name: inorder\n  scrape_interval: 1s\n  scrape_timeout: 1s\n  authorization: {{credentials: {token}}}\n  \
             static_configs: [{{targets: ['{target}']}}]\n"
        );
        std::fs::write(&config, job).unwrap();
        // Freed again for the server to take.
        let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let mut command = program("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", data.display()));
        command.arg(format!("--web.listen-address={address}")).arg("--log.level=error");
        let server = command.spawn().unwrap_or_else(|e| missing("prometheus", &e));
        eventually(LIMIT, "Prometheus is ready", async || {
            TcpStream::connect(address).await.is_ok()
                && ask(address, "GET", "/-/ready", &[], "").await.status == 200
        })
        .await;
        Prometheus { address, _server: server, _folder: folder }
    }

    /// The value of a query that finds one series at most.
    pub(crate) async fn value(&self, query: &str) -> Option<f64> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = ask(self.address, "GET", &format!("/api/v1/query?query={encoded}"), &[], "").await;
        let answer: Value = serde_json::from_str(&answer.text).unwrap_or_else(|e| panic!("{e}: {answer:?}"));
        let found = answer["data"]["result"].as_array().unwrap_or_else(|| panic!("{query}: {answer}"));
        assert!(found.len() < 2, "{query}: {answer}");
        found.first().map(|series| series["value"][1].as_str().unwrap().parse().unwrap())
    }
}
