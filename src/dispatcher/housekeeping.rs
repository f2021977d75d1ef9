//! What is done once in a while: saying that our consumers are run, expiring instances that nobody runs, and forgetting what was done
//! and handed off long ago.

use std::sync::Arc;
use std::time::Duration;

use crate::delivery::{Context, Phase};
use crate::error::Error;
use crate::pg::admin::{self, Note};
use crate::pg::consumers::{self, Key};
use crate::pg::handoffs;

/// Soon after the start, so that processes which live for minutes only keep house, too.
const FIRST: Duration = Duration::from_secs(300);
/// How many steps of the walk through the ledger, and of what was handed off, are made at a time; all processes go on with the same.
const STEPS: usize = 100;

/// Keeps house until the dispatcher has stopped.
pub(super) async fn keep_house(
    cx: Arc<Context>,
    keys: Vec<Key>,
    interval: Duration,
    expire_after: Duration,
    forget_after: Duration,
) {
    let mut phase = cx.phase.clone();
    tokio::select! {
        () = now_and_then(&cx, &keys, interval, expire_after, forget_after) => {}
        _ = phase.wait_for(|phase| *phase == Phase::Cancelling) => {}
    }
}

async fn now_and_then(
    cx: &Context,
    keys: &[Key],
    interval: Duration,
    expire_after: Duration,
    forget_after: Duration,
) {
    let mut pause = FIRST.min(interval);
    loop {
        tokio::time::sleep(pause.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
        pause = interval;
        match run_once(cx, keys, expire_after).await {
            Ok(expired) => {
                for key in expired {
                    tracing::warn!(consumer = %key, "expired: nobody has run this instance for long");
                }
            }
            Err(error) => tracing::warn!(error = error.report(), "keeping house; the next time is as good"),
        }
        match forget(cx, forget_after).await {
            Ok(0) => {}
            Ok(forgotten) => tracing::info!(forgotten, "the ledger has forgotten what was done long ago"),
            // Another may be at it, or at prune.
            Err(error) => {
                tracing::info!(error = error.report(), "forgetting what was done; the next time is as good");
            }
        }
        match forget_handoffs(cx).await {
            Ok(0) => {}
            Ok(forgotten) => tracing::info!(forgotten, "hand-offs that were kept long enough are forgotten"),
            Err(error) => {
                tracing::info!(error = error.report(), "forgetting hand-offs; the next time is as good");
            }
        }
    }
}

/// Names the rows that expired.
async fn run_once(cx: &Context, keys: &[Key], expire_after: Duration) -> Result<Vec<Key>, Error> {
    let schema = cx.log.schema();
    cx.log
        .asking("touching our consumers", async |client| consumers::touch(client, schema, keys).await)
        .await?;
    cx.log
        .asking("expiring instances", async |client| consumers::expire(client, schema, expire_after).await)
        .await
}

/// How much was forgotten.
async fn forget(cx: &Context, after: Duration) -> Result<i64, Error> {
    let (schema, note) = (cx.log.schema(), Note { by: Some("inorder"), why: None });
    let mut forgotten = 0;
    for _ in 0..STEPS {
        let step = cx.log.asking("forgetting what was done", async |client| {
            admin::ledger_prune(client, schema, after, note).await
        });
        let (deleted, more) = step.await?;
        forgotten += deleted;
        if !more {
            break;
        }
    }
    Ok(forgotten)
}

/// Those of all scopes, also where no program hands off any more. How many were forgotten.
async fn forget_handoffs(cx: &Context) -> Result<i64, Error> {
    let (schema, note) = (cx.log.schema(), Note { by: Some("inorder"), why: None });
    let mut forgotten = 0;
    for _ in 0..STEPS {
        let step = cx.log.asking("forgetting hand-offs", async |client| {
            handoffs::prune(client, schema, None, None, note).await
        });
        let (deleted, more) = step.await?;
        forgotten += deleted;
        if !more {
            break;
        }
    }
    Ok(forgotten)
}
