//! Asking a site, as a browser, a scraper or an attacker would.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use inorder::http::Site;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::within;

/// A site that is served, at a port of its own.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Served {
    pub(crate) async fn start(site: Site) -> Served {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = site.server(listener).unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(server.run(async {
            stopped.await.ok();
        }));
        Served { address, stop, serving }
    }

    /// Asks it to end, and waits until it has.
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        within("the site ends", self.serving).await.unwrap();
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[]).await
    }

    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        ask(self.address, "GET", path, headers, "").await
    }

    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], form: &str) -> Answer {
        let form_headers = [("content-type", "application/x-www-form-urlencoded")];
        ask(self.address, "POST", path, &[&form_headers, headers].concat(), form).await
    }
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    /// The value of a hidden field of a form on the page.
    pub(crate) fn field(&self, name: &str) -> &str {
        let (_, rest) = self.text.split_once(&format!("name=\"{name}\" value=\"")).unwrap_or_else(|| panic!("{self:?}"));
        rest.split('"').next().unwrap()
    }

    /// The cookie that it sets, as a browser sends it back.
    pub(crate) fn cookie(&self) -> &str {
        self.header("set-cookie").split(';').next().unwrap()
    }

    /// The value of a sample in the text format of Prometheus: the only one whose line begins so.
    pub(crate) fn sample(&self, series: &str) -> Option<f64> {
        let value = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
        let found: Vec<f64> = self.text.lines().filter_map(value).collect();
        assert!(found.len() < 2, "{series} is there {} times", found.len());
        found.first().copied()
    }
}

/// One request on a connection of its own.
pub(crate) async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request = request.header("host", address.to_string());
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
    let response = within("an answer", sender.send_request(request)).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = within("the whole answer", body.collect()).await.unwrap().to_bytes();
    connection.abort();
    Answer { status: parts.status, headers: parts.headers, text: String::from_utf8(body.to_vec()).unwrap() }
}
