//! Serving a site by itself: connections whose headers must come in time, and an end in peace.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

/// How long the headers of a request may take to come, and a connection may idle between requests.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// How long requests in flight have at the end.
const FINISH_WITHIN: Duration = Duration::from_secs(10);
/// After a connection that could not be taken, as when there are too many: not to spin.
const PAUSE: Duration = Duration::from_millis(100);

/// A [`Site`](super::Site) at a listener, ready to run.
#[derive(Debug)]
pub struct Server {
    pub(super) listener: TcpListener,
    pub(super) router: Router,
}

impl Server {
    /// Answers until `until` is there, and then for as long as requests in flight take, ten seconds at most.
    ///
    /// Cancel safety: requests in flight go on by themselves.
    pub async fn run(self, until: impl Future<Output = ()> + Send) {
        serve(self.listener, self.router, until).await;
    }
}

async fn serve(listener: TcpListener, router: Router, until: impl Future<Output = ()>) {
    let mut until = pin!(until);
    let connections = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            () = &mut until => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "taking a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_WITHIN)
            .serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(FINISH_WITHIN, connections.shutdown()).await.is_err() {
        tracing::warn!("requests in flight did not end within {} s", FINISH_WITHIN.as_secs());
    }
}
