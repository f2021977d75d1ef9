//! Waiting for something to become true.

use std::time::{Duration, Instant};

/// Looks at the condition every few milliseconds until it holds; fails the test when it does not within `limit`.
pub(crate) async fn eventually(limit: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
