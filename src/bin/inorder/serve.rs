//! `inorder serve`: metrics, probes and the admin page by HTTP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use inorder::http::{ProcessMetrics, Site, Token};
use serde::Serialize;
use tokio::net::TcpListener;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::options::{Options, variable};
use crate::screen::Screen;

/// Where to listen, unless somebody says otherwise.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7878);

/// Serve metrics for Prometheus, probes, and the admin page
///
/// Starts whether or not the database answers, and goes on when it is down: /metrics says inorder_up 0 then, /readyz says why. Runs
/// until Ctrl-C or SIGTERM.
///
/// At a loopback address everybody on the machine may read. Any other address needs a token: scrapers send it as
/// `Authorization: Bearer …`, people enter it at /login. Nobody may act without the token for acting. What is done is in the audit
/// under the name given at login, or in the header Inorder-Operator.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Tokens are read from files, or from the environment variables INORDER_READ_TOKEN and
INORDER_ACT_TOKEN, or from the section [serve] of the configuration file (read_token_file,
act_token_file, read_token, act_token, listen, hosts); never from the command line, which
everybody on the machine can see. Make one with: openssl rand -hex 32

Paths:
  /          the admin page
  /metrics   for Prometheus
  /healthz   200 while the process lives
  /readyz    200 while the database is reached and its schema fits, else 503 and why

Examples:
  inorder serve
  inorder serve --act-token-file /run/secrets/inorder-act
  inorder serve --listen 0.0.0.0:7878 --read-token-file read --act-token-file act
  curl -s http://127.0.0.1:7878/metrics | promtool check metrics
  curl -H \"Authorization: Bearer $(cat read)\" http://db.example.com:7878/metrics")]
pub(crate) struct Args {
    /// Where to listen [default: 127.0.0.1:7878]
    #[arg(long, value_name = "ADDRESS:PORT", env = "INORDER_LISTEN")]
    listen: Option<SocketAddr>,
    /// A file with the token for reading
    #[arg(long, value_name = "FILE", env = "INORDER_READ_TOKEN_FILE")]
    read_token_file: Option<PathBuf>,
    /// A file with the token for acting; it is good for reading, too
    #[arg(long, value_name = "FILE", env = "INORDER_ACT_TOKEN_FILE")]
    act_token_file: Option<PathBuf>,
    /// Another name under which the site is reached, as through a proxy on this machine; may be given several times. At a loopback
    /// address requests for other names are refused; at others, only if a name is given
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
}

#[derive(Serialize)]
struct Serving {
    listening: SocketAddr,
    url: String,
    may_act: bool,
}

pub(crate) async fn run(
    args: Args,
    options: &Options,
    screen: &Screen,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let settings = options.settings()?;
    let file = settings.serve().clone();
    let log = options.connect_later("serve")?;
    let metrics = ProcessMetrics::record()?;
    let mut site = Site::new(&log).process_metrics(move || metrics.render());
    let read = token(args.read_token_file, "INORDER_READ_TOKEN", file.read_token_file, file.read_token)?;
    if let Some(token) = read {
        site = site.read_token(token);
    }
    let act = token(args.act_token_file, "INORDER_ACT_TOKEN", file.act_token_file, file.act_token)?;
    let may_act = act.is_some();
    if let Some(token) = act {
        site = site.act_token(token);
    }
    let hosts = if args.hosts.is_empty() { file.hosts } else { args.hosts };
    if !hosts.is_empty() {
        site = site.hosts(hosts);
    }
    let listen = args.listen.or(file.listen).unwrap_or(LISTEN);
    let failed = |e| Failure::failed(format!("listening at {listen}: {e}"));
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let listening = listener.local_addr().map_err(failed)?;
    let server = site.server(listener)?;
    let url = format!("http://{listening}/");
    let hint = if may_act { "" } else { "; nobody may act: see --act-token-file" };
    screen.answer(&Serving { listening, url: url.clone(), may_act }, format!("listening at {url}{hint}"))?;
    server.run(interrupt.wait()).await;
    Ok(())
}

/// The first that is said: the file of a flag or a variable, a variable, the configuration file.
fn token(
    flag: Option<PathBuf>,
    name: &str,
    file: Option<PathBuf>,
    text: Option<String>,
) -> Result<Option<Token>, Failure> {
    let read = |by: &str, text: String| {
        Token::new(text).map_err(|e| Failure::from(e).while_doing(format!("reading the token of {by}")))
    };
    Ok(match (flag, variable(name), file, text) {
        (Some(path), ..) | (None, None, Some(path), _) => Some(Token::from_file(path)?),
        (None, Some(text), ..) => Some(read(name, text)?),
        (None, None, None, Some(text)) => Some(read("the configuration file", text)?),
        (None, None, None, None) => None,
    })
}
