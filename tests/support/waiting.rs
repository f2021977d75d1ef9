//! Waiting for something to become true.

use std::time::{Duration, Instant};

/// Longer than anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Looks at the condition every few milliseconds until it holds; fails the test when it does not within `limit`.
pub(crate) async fn eventually(limit: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for something that may never come; fails the test then.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("not within {LIMIT:?}: {what}"))
}
