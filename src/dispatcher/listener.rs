//! The LISTEN connection: hears the doorbell, notices when it went deaf, and comes back.
//!
//! ```text
//!  connecting ──▶ listening ──▶ silent, cut off, or no answer to a heartbeat
//!      ▲                                       │
//!      └────────────── back-off ◀──────────────┘
//! ```
//!
//! Nothing rests on it: what is missed while it is away is found by the look that every reconnect forces, and by the poll.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::backoff::Backoff;
use crate::delivery::Phase;
use crate::error::{Error, ErrorKind};
use crate::metrics;
use crate::pg::{self, deadline};
use crate::store::Inorder;

/// What the listener and the watcher tell each other.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    /// Somebody appended, or an operator acted: look.
    pub(crate) rung: Notify,
    /// An operator acted, or may have while nobody listened: look at the consumers, too.
    pub(crate) acted: AtomicBool,
    /// The listener is to make sure that it still hears.
    pub(crate) heartbeat: Notify,
}

/// How long the answer to a heartbeat may take.
const ANSWER: Duration = Duration::from_secs(5);

/// Listens until the dispatcher has stopped. `connected` tells the watcher whether the bell can be relied on.
pub(crate) async fn listen(
    log: Inorder,
    bell: Arc<Bell>,
    connected: watch::Sender<bool>,
    mut phase: watch::Receiver<Phase>,
) {
    tokio::select! {
        () = come_back(&log, &bell, &connected) => {}
        _ = phase.wait_for(|phase| *phase == Phase::Cancelling) => {}
    }
    metrics::listener(false);
}

/// Listens, again and again.
async fn come_back(log: &Inorder, bell: &Arc<Bell>, connected: &watch::Sender<bool>) {
    let backoff = Backoff::exponential(Duration::from_millis(100)).up_to(Duration::from_secs(10));
    let mut failures = 0;
    loop {
        let Err(error) = session(log, bell, connected, &mut failures).await;
        connected.send_replace(false);
        metrics::listener(false);
        failures += 1;
        let pause = backoff.pause(failures);
        tracing::warn!(error = error.report(), ?pause, "the listener is away; polling goes on");
        tokio::time::sleep(pause).await;
    }
}

/// One connection, until it ends.
async fn session(
    log: &Inorder,
    bell: &Arc<Bell>,
    connected: &watch::Sender<bool>,
    failures: &mut u32,
) -> Result<Infallible, Error> {
    let heard = Arc::clone(bell);
    let heard = move |payload: String| {
        // Appends ring with an empty one.
        if !payload.is_empty() {
            heard.acted.store(true, Ordering::Relaxed);
        }
        heard.rung.notify_one();
    };
    let (client, mut messages) = log.connector().listen(heard).await?;
    let ended = hear(log, bell, connected, failures, &client, &mut messages).await;
    // Whoever is at the other end may not answer any more, not even to a farewell.
    messages.abort();
    ended
}

async fn hear(
    log: &Inorder,
    bell: &Bell,
    connected: &watch::Sender<bool>,
    failures: &mut u32,
    client: &Client,
    messages: &mut JoinHandle<()>,
) -> Result<Infallible, Error> {
    let listening = pg::session::listen(client, log.schema());
    deadline(log.limit(), "listening", listening).await?;
    *failures = 0;
    connected.send_replace(true);
    metrics::listener(true);
    tracing::debug!("listening");
    // Whatever was appended, or done, while nobody listened.
    bell.acted.store(true, Ordering::Relaxed);
    bell.rung.notify_one();
    loop {
        tokio::select! {
            _ = &mut *messages => return Err(Error::new(ErrorKind::Connection, "the listener's connection ended")),
            () = bell.heartbeat.notified() => {
                deadline(ANSWER.min(log.limit()), "the listener's heartbeat", client.batch_execute("SELECT 1")).await?;
            }
        }
    }
}
