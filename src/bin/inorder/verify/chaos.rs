//! What is done to the processes while writers write.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::crew::Crew;
use super::lanes::process_name;
use super::site::Site;
use super::statements::{CUT, WATCHERS};
use super::trouble::Result;
use super::worker::now_us;

/// How soon to look again when no process may be struck, in milliseconds.
const SOON: u64 = 100;

/// How many blows fell.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) kills: AtomicUsize,
    /// Watchers' sessions that were ended.
    pub(crate) watchers: AtomicUsize,
    /// Any sessions that were ended.
    pub(crate) sessions: AtomicUsize,
}

/// Kills a process now and then; half of the times inside a handler.
pub(crate) async fn kill(
    crew: &Crew,
    tally: &Tally,
    mut rng: fastrand::Rng,
    mut over: watch::Receiver<bool>,
) -> Result<()> {
    let mut wait = rng.u64(900..2_100);
    while pause(&mut over, wait).await {
        wait = SOON;
        let inside = rng.bool();
        let Some(victim) = crew.victim(&mut rng, inside).await else { continue };
        wait = rng.u64(900..2_100);
        if crew.kill(victim) {
            tally.kills.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Freezes a process now and then, mostly inside a handler, for longer than the handler's limit and a second, so that
/// another one takes over, and lets it go on then.
pub(crate) async fn freeze(crew: &Crew, rng: fastrand::Rng, over: watch::Receiver<bool>) -> Result<()> {
    freeze_noting(crew, rng, over, |_, _| {}).await
}

/// The same; `froze` is told which process, and when, in microseconds.
pub(crate) async fn freeze_noting(
    crew: &Crew,
    mut rng: fastrand::Rng,
    mut over: watch::Receiver<bool>,
    froze: impl Fn(&str, i64),
) -> Result<()> {
    // Of two processes one frozen leaves none that may be killed.
    let rest = if crew.processes() > 2 { 500..2_000 } else { 1_500..4_000 };
    let mut wait = rng.u64(rest.clone());
    while pause(&mut over, wait).await {
        wait = SOON;
        let inside = rng.u32(..5) > 0;
        let Some(victim) = crew.victim(&mut rng, inside).await else { continue };
        wait = rng.u64(rest.clone());
        let long = rng.u64(2_200..3_200);
        crew.freeze(victim, async {
            froze(&process_name(victim), now_us());
            pause(&mut over, long).await;
        })
        .await?;
    }
    Ok(())
}

/// Ends a session of a process now and then, in turn a watcher's and any. Our own may go, too, where the server crashes meanwhile.
pub(crate) async fn cut(
    site: &Site,
    tally: &Tally,
    mut rng: fastrand::Rng,
    mut over: watch::Receiver<bool>,
    crashes: bool,
) -> Result<()> {
    let mut session = Some(site.session().await?);
    loop {
        for (statement, ended) in [(WATCHERS, &tally.watchers), (CUT, &tally.sessions)] {
            if !pause(&mut over, rng.u64(300..1_500)).await {
                return Ok(());
            }
            let client = match session.take() {
                Some(client) => client,
                None => match site.session().await {
                    Ok(client) => client,
                    Err(_) if crashes => continue,
                    Err(error) => return Err(error),
                },
            };
            match client.query(statement, &[&site.schema()]).await {
                Ok(rows) => _ = ended.fetch_add(rows.len(), Ordering::Relaxed),
                Err(_) if crashes && client.is_closed() => continue,
                Err(error) => return Err(error.into()),
            }
            session = Some(client);
        }
    }
}

/// Now and then everybody stops writing, long enough for the processes to fall asleep.
pub(crate) async fn hush(
    quiet: &watch::Sender<bool>,
    mut rng: fastrand::Rng,
    mut over: watch::Receiver<bool>,
) -> Result<()> {
    while pause(&mut over, rng.u64(5_000..9_000)).await {
        quiet.send_replace(true);
        pause(&mut over, rng.u64(1_200..2_500)).await;
        quiet.send_replace(false);
    }
    Ok(())
}

/// False when it is over.
async fn pause(over: &mut watch::Receiver<bool>, ms: u64) -> bool {
    let ended = over.wait_for(|over| *over);
    tokio::time::timeout(Duration::from_millis(ms), ended).await.is_err()
}
