//! `idle`: what a process with 100 consumers costs a server while there is nothing to do.

use std::time::{Duration, Instant};

use super::append::counting;
use super::arena::{Arena, until};
use super::figures::{Bar, Case};
use super::{Args, Result, ours_first, sql};
use crate::failure::tell;

const CONSUMERS: usize = 100;
/// Events that are there, and delivered, before.
const EVENTS: i64 = 1_000;
const REPETITIONS: u32 = 2;
const SECONDS: u32 = 30;
/// Until everybody is asleep.
const SETTLING: Duration = Duration::from_secs(3);

pub(super) async fn measure(args: &Args, arena: &Arena) -> Result<Vec<Case>> {
    let mut statements = Case::new("statements per second", "statements/s", Bar::OursAtMost(1.0));
    let mut wal = Case::new("wal bytes", "bytes", Bar::OursAtMost(1_024.0));
    if !args.wants(statements.name()) && !args.wants(wal.name()) {
        return Ok(Vec::new());
    }
    arena.hush().await?;
    let counted = arena.count_statements().await?;
    if !counted {
        tell(format_args!(
            "  no pg_stat_statements on this server: transactions are counted in the place of statements"
        ));
    }
    let clock = args.seconds(SECONDS);
    for repetition in 0..args.repetitions(REPETITIONS) {
        let (ours, floor);
        if ours_first(repetition) {
            ours = with_consumers(arena, counted, clock).await?;
            floor = cost(arena, counted, clock).await?;
        } else {
            floor = cost(arena, counted, clock).await?;
            ours = with_consumers(arena, counted, clock).await?;
        }
        statements.add(ours.statements_a_second, floor.statements_a_second);
        wal.add(ours.wal_bytes, floor.wal_bytes);
    }
    Ok(vec![statements, wal])
}

struct Cost {
    statements_a_second: f64,
    /// Of the whole server: some of it is its own.
    wal_bytes: f64,
}

async fn with_consumers(arena: &Arena, counted: bool, clock: Duration) -> Result<Cost> {
    let log = arena.log().await?;
    let client = arena.connect().await?;
    client.execute(&sql::fill(&log.config().schema), &[&EVENTS]).await?;
    client.batch_execute(&sql::vacuum(&log.config().schema)).await?;
    drop(client);
    let (running, delivered) = counting(&log, CONSUMERS).await?;
    until("every consumer is caught up", async || {
        Ok(delivered.iter().all(|n| n.load(std::sync::atomic::Ordering::Relaxed) >= EVENTS.unsigned_abs()))
    })
    .await?;
    let cost = cost(arena, counted, clock).await?;
    running.stop().await?;
    arena.drop(log).await?;
    Ok(cost)
}

/// What happens in our database, and in the server's WAL, while the clock runs.
async fn cost(arena: &Arena, counted: bool, clock: Duration) -> Result<Cost> {
    tokio::time::sleep(SETTLING).await;
    arena.checkpoint().await?;
    let (began, statements, wal) = (Instant::now(), statements(arena, counted).await?, wal(arena).await?);
    tokio::time::sleep(clock).await;
    let (statements_after, wal_after) = (self::statements(arena, counted).await?, self::wal(arena).await?);
    Ok(Cost {
        statements_a_second: (statements_after - statements) / began.elapsed().as_secs_f64(),
        wal_bytes: wal_after - wal,
    })
}

async fn statements(arena: &Arena, counted: bool) -> Result<f64> {
    let counting = if counted { sql::STATEMENTS } else { sql::TRANSACTIONS };
    let count: i64 = arena.outside().query_one(counting, &[&arena.database()]).await?.get("statements");
    #[expect(clippy::cast_precision_loss, reason = "a count of statements")]
    Ok(count as f64)
}

async fn wal(arena: &Arena) -> Result<f64> {
    Ok(arena.outside().query_one(sql::WAL, &[]).await?.get("bytes"))
}
