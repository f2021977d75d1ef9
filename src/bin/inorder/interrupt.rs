//! Ctrl-C, and SIGTERM: the first asks, the second insists.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::failure::{Exit, Failure, tell};

/// Whether we were asked to end.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(watch::Receiver<Option<u8>>);

impl Interrupt {
    /// Listens from now on. The first signal is only told; at the second the process ends at once.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let failed = |e| Failure::failed(format!("listening for Ctrl-C: {e}"));
        let mut int = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut term = signal(SignalKind::terminate()).map_err(failed)?;
        let (sender, receiver) = watch::channel(None);
        tokio::spawn(async move {
            loop {
                let number: u8 = tokio::select! {
                    _ = int.recv() => 2,
                    _ = term.recv() => 15,
                };
                if sender.send_replace(Some(number)).is_some() {
                    crate::terminal::give_back();
                    tell("inorder: interrupted twice, ending at once");
                    std::process::exit(128 + i32::from(number));
                }
            }
        });
        Ok(Self(receiver))
    }

    /// Were we?
    pub(crate) fn happened(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Waits for it.
    pub(crate) async fn wait(&self) {
        let mut receiver = self.0.clone();
        if receiver.wait_for(Option::is_some).await.is_err() {
            // Nobody listens any more.
            std::future::pending::<()>().await;
        }
    }

    /// How the tool ends then.
    pub(crate) fn failure(&self, what: impl Into<String>) -> Failure {
        Failure::new(Exit::Interrupted(self.0.borrow().unwrap_or(2)), what)
    }

    /// Runs something that may be dropped at any time and leaves nothing then.
    pub(crate) async fn ends<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::select! {
            done = work => done,
            () = self.wait() => Err(self.failure("interrupted")),
        }
    }

    /// Runs something that may be dropped at any time, and may have been done all the same.
    pub(crate) async fn acts<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::select! {
            done = work => done,
            () = self.wait() => {
                Err(self.failure("interrupted; if it had begun it may have been done: inorder status tells"))
            }
        }
    }
}
