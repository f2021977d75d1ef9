//! What the library says through `tracing`.

use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tracing::Dispatch;
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing_subscriber::util::SubscriberInitExt;

use super::eventually;

/// Everything that is said on this thread while it lives. A test on one thread hears all its tasks.
pub(crate) struct Words {
    heard: Heard,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<u8>>>);

impl Write for Heard {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Where there is only one subscriber, whoever reaches a line first decides for all threads whether it is ever said: a test that
/// does not listen would silence it for one that does. So there are always two.
static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));

impl Words {
    pub(crate) fn listen() -> Words {
        LazyLock::force(&ANOTHER);
        let heard = Heard::default();
        let writer = heard.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter("inorder=debug")
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        Words { heard, _guard: subscriber.set_default() }
    }

    /// The lines so far that contain all of these.
    pub(crate) fn with(&self, words: &[&str]) -> Vec<String> {
        let heard = self.heard.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = String::from_utf8_lossy(&heard);
        lines.lines().filter(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned).collect()
    }

    pub(crate) async fn say(&self, limit: Duration, words: &[&str]) {
        eventually(limit, &format!("{words:?} is said"), async || !self.with(words).is_empty()).await;
    }

    /// What was said before is forgotten.
    pub(crate) fn forget(&self) {
        self.heard.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
