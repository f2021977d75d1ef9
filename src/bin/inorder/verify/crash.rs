//! What is done to a server of our own: crashes under asynchronous commit, and a restart with prepared transactions open.
//! The processes live through it.
//!
//! What survives is what the database holds afterwards. A commit that was acknowledged asynchronously may be lost with the
//! tail, and ids are used again then; but never an event whose effects survive, nor effects of an event that does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use inorder::testing::TempPostgres;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::Client;
use uuid::Uuid;

use super::audit;
use super::lanes::PLAIN;
use super::report::Crashes;
use super::signals::Signals;
use super::site::Site;
use super::statements::{self, INSERT, WAITS, WAL_WRITER};
use super::trouble::{CouldNot, Result};
use super::witness::Witness;
use super::writers::{Desk, Manner};

/// How many times the server crashes.
const CRASHES: u64 = 3;
/// How long delivery may take to begin again after the server is back.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is needed to crash a server under load.
pub(crate) struct Wrecker<'a> {
    pub(crate) site: &'a Site,
    pub(crate) server: &'a TempPostgres,
    pub(crate) witness: &'a Arc<Witness>,
    pub(crate) signals: &'a Signals,
    pub(crate) writers: u32,
    pub(crate) rng: fastrand::Rng,
}

impl Wrecker<'_> {
    /// Crashes it while writers write.
    pub(crate) async fn crash(&mut self) -> Result<Crashes> {
        self.commits("off").await?;
        let mut load = self.load(Manner::Promised).await?;
        let mut done = Crashes::default();
        for _ in 0..CRASHES {
            tokio::time::sleep(Duration::from_millis(self.rng.u64(1_000..2_500))).await;
            self.lose_tail().await?;
            self.witness.forget_places();
            let delivered = self.witness.deliveries();
            self.server.start_again().await?;
            self.delivering(delivered, &mut load).await?;
            done.crashes += 1;
        }
        load.end().await?;
        self.commits("on").await?;
        Ok(done)
    }

    /// Restarts it while two transactions are prepared, one to be committed and one to be rolled back.
    pub(crate) async fn restart(&mut self, done: &mut Crashes) -> Result<()> {
        let mut load = self.load(Manner::Cut).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (kept, kept_events) = self.prepare("kept").await?;
        let (given_up, given_up_events) = self.prepare("given_up").await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.server.restart().await?;
        // Nothing behind the holes can be delivered meanwhile; whoever does loses an event.
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        let session = self.site.session().await?;
        session.batch_execute(&statements::commit_prepared(&kept)).await?;
        self.witness.committed(&kept_events, 0, true);
        let delivered = self.witness.deliveries();
        session.batch_execute(&statements::rollback_prepared(&given_up)).await?;
        self.witness.rolled_back(&given_up_events, true);
        self.delivering(delivered, &mut load).await?;
        load.end().await?;
        done.restarts += 1;
        done.prepared_over_restart += 2;
        Ok(())
    }

    async fn load(&mut self, manner: Manner) -> Result<Load> {
        let (over, is_over) = watch::channel(false);
        let (quiet, is_quiet) = watch::channel(false);
        let desk = Desk::open(self.site, self.writers, self.witness, manner, is_quiet, is_over).await?;
        let mut writers = JoinSet::new();
        for number in 0..self.writers {
            writers.spawn(Arc::clone(&desk).write(number, self.rng.fork()));
        }
        Ok(Load { writers, over, _quiet: quiet })
    }

    /// Leaves a transaction with events of its own prepared.
    async fn prepare(&mut self, name: &str) -> Result<(String, Vec<Uuid>)> {
        let gid = format!("{}_{name}", self.site.schema());
        let events = vec![Uuid::new_v4(), Uuid::new_v4()];
        let session = self.site.session().await?;
        session.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL inorder.ring = off").await?;
        insert(&session, self.site, &events).await?;
        session.batch_execute(&statements::prepare_transaction(&gid)).await?;
        Ok((gid, events))
    }

    /// Waits until something is delivered that was not before.
    async fn delivering(&self, before: u64, load: &mut Load) -> Result<()> {
        let since = Instant::now();
        while self.witness.deliveries() == before {
            load.check()?;
            if since.elapsed() > PATIENCE {
                let session = self.site.session().await?;
                let mut standings = audit::standings(&session, self.site).await?.join("; ");
                if standings.is_empty() {
                    let waits = session.query(WAITS, &[]).await?;
                    let waits: Vec<&str> = waits.iter().map(|row| row.get("waits")).collect();
                    standings = format!(
                        "every consumer has what there is, and nobody appends; sessions: {}",
                        waits.join("; ")
                    );
                }
                return Err(CouldNot::new(format!(
                    "nothing was delivered within {PATIENCE:?} after the server was back: {standings}"
                )));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Stops the server at once, and with it whatever was committed since its WAL writer was frozen.
    async fn lose_tail(&mut self) -> Result<()> {
        let session = self.site.session().await?;
        let pid: i32 = session.query_one(WAL_WRITER, &[]).await?.get("pid");
        let pid = u32::try_from(pid)?;
        self.signals.freeze(pid).await?;
        tokio::time::sleep(Duration::from_millis(self.rng.u64(200..800))).await;
        let (crashed, resumed) = tokio::join!(self.server.crash(), async {
            // It is told to end while it is frozen, and so does nothing else when it goes on.
            tokio::time::sleep(Duration::from_millis(200)).await;
            self.signals.resume(pid).await
        });
        crashed?;
        resumed?;
        Ok(())
    }

    async fn commits(&self, synchronous: &str) -> Result<()> {
        let session = self.site.session().await?;
        session.batch_execute(&format!("ALTER SYSTEM SET synchronous_commit = {synchronous}")).await?;
        session.batch_execute("SELECT pg_reload_conf()").await?;
        Ok(())
    }
}

/// Writers at work.
struct Load {
    writers: JoinSet<Result<()>>,
    over: watch::Sender<bool>,
    _quiet: watch::Sender<bool>,
}

impl Load {
    /// # Errors
    /// A writer ended that should not have.
    fn check(&mut self) -> Result<()> {
        while let Some(ended) = self.writers.try_join_next() {
            ended??;
        }
        Ok(())
    }

    async fn end(mut self) -> Result<()> {
        self.over.send_replace(true);
        while let Some(ended) = self.writers.join_next().await {
            ended??;
        }
        Ok(())
    }
}

async fn insert(session: &Client, site: &Site, events: &[Uuid]) -> Result<()> {
    let types = vec![PLAIN; events.len()];
    let payloads = vec!["{}"; events.len()];
    session
        .query(
            &site.sql(INSERT),
            &[/* event_ids */ &events, /* event_types */ &types, /* payloads */ &payloads],
        )
        .await?;
    Ok(())
}
