//! Handing events to the handler: slice by slice, each for no longer than it may take, and once more when one of them fails.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Instant;

use futures_util::FutureExt;
use tokio::sync::watch;
use tracing::Instrument;

use super::session::PassSession;
use super::{Context, Phase, Runner};
use crate::consumer::{HandlerTx, Kind, Work};
use crate::error::ErrorKind;
use crate::event::Event;
use crate::outcome::Failure;

/// What a delivery came to that can be committed.
pub(super) struct Delivered<'e> {
    /// Events handled, from the first.
    pub(super) handled: usize,
    /// The event behind them, where it failed by itself.
    pub(super) failure: Option<(&'e Event, Failure)>,
}

/// Why a delivery came to nothing: its transaction is of no use any more.
pub(super) enum Broken {
    /// The dispatcher drops what is in flight.
    Cancelled,
    /// The session is gone, at the slice behind so many events.
    Lost { before: usize, slice: usize, cause: Failure },
}

/// Why events were not handed to the handler any more.
pub(super) enum Stopped {
    /// It came to the end, the time of the pass is up, the dispatcher drains, or a handler appended.
    No,
    Cancelled,
    /// The slice behind the handled events, of so many events, failed.
    Failed(usize, Failed),
}

/// What calling a handler came to.
pub(super) enum Called {
    Done,
    Cancelled,
    Failed(Failed),
}

pub(super) struct Failed {
    pub(super) cause: Failure,
    /// The transaction was aborted before the handler was called: the one before it swallowed an error.
    aborted_before: bool,
    /// A prepared statement no longer fits the tables.
    stale: bool,
}

impl Runner {
    /// Delivers events in order. When one fails, everything is undone and what comes before it is delivered again.
    pub(super) async fn deliver_what_works<'e>(
        &mut self,
        cx: &Context,
        session: &mut PassSession<'_>,
        events: &'e [Event],
    ) -> Result<Delivered<'e>, Broken> {
        let until = Instant::now() + self.consumer.options.pass_timeout;
        let (mut events, mut failure, mut prepared_anew) = (events, None, false);
        loop {
            let (handled, stopped) = self.handle(cx, session, events, until).await;
            let (slice, failed) = match stopped {
                Stopped::Failed(slice, failed) => (slice, failed),
                Stopped::Cancelled => return Err(Broken::Cancelled),
                // Cut short, what is behind is for the next pass, and so is its failure.
                Stopped::No => {
                    return Ok(Delivered { handled, failure: failure.filter(|_| handled == events.len()) });
                }
            };
            let Failed { mut cause, stale, .. } = failed;
            if let Err(error) = session.roll_back().await {
                tracing::debug!(consumer = %self.key, error = error.report(), "the session is lost");
                // No such savepoint: it could not be set, and whatever the handler met afterwards is not its doing.
                if matches!(error.kind(), ErrorKind::Connection | ErrorKind::Timeout)
                    || error.sqlstate() == Some("3B001")
                {
                    cause = cause.of_a_lost_session();
                }
                return Err(Broken::Lost { before: handled, slice, cause });
            }
            if stale && !prepared_anew {
                session.forget_statements();
                prepared_anew = true;
                continue;
            }
            failure = match slice {
                1 => Some((&events[handled], cause)),
                _ => {
                    self.narrow = Some(slice / 2);
                    None
                }
            };
            events = &events[..handled];
        }
    }

    /// Hands events to the handler, slice by slice, until one fails or it is time to stop. Answers how many were handled.
    async fn handle(
        &self,
        cx: &Context,
        session: &mut PassSession<'_>,
        events: &[Event],
        until: Instant,
    ) -> (usize, Stopped) {
        let size = match self.consumer.kind {
            Kind::Batch => self.consumer.options.batch_size,
            _ => 1,
        };
        let mut handled = 0;
        for slice in events.chunks(size) {
            if handled > 0 && (Instant::now() >= until || *cx.phase.borrow() >= Phase::Draining) {
                break;
            }
            match self.call(cx, session, slice).await {
                Called::Done => handled += slice.len(),
                Called::Cancelled => return (handled, Stopped::Cancelled),
                // One of the two: which one shows when they are apart.
                Called::Failed(failed) if failed.aborted_before && handled > 0 => {
                    return (handled - size, Stopped::Failed(size + slice.len(), failed));
                }
                Called::Failed(failed) => return (handled, Stopped::Failed(slice.len(), failed)),
            }
            if session.appended() || cx.hold_ups.contains(session.backend()) {
                break;
            }
        }
        (handled, Stopped::No)
    }

    /// Calls the handler, for no longer than it may take; a panic is a failure that carries its message.
    pub(super) async fn call(&self, cx: &Context, session: &mut PassSession<'_>, slice: &[Event]) -> Called {
        let limit = self.consumer.options.handler_timeout;
        let began = Instant::now();
        let handled = {
            let cause = (self.consumer.kind == Kind::Transactional).then(|| &slice[0]);
            let tx = HandlerTx::new(session.client(), &cx.log, cause, session.traces());
            let span = tracing::debug_span!(
                "handle",
                consumer = %self.key,
                event = slice[0].id(),
                event_id = %slice[0].event_id(),
                event_type = slice[0].event_type(),
                correlation_id = slice[0].correlation_id().map(tracing::field::display),
                causation_id = slice[0].causation_id().map(tracing::field::display),
                events = slice.len(),
            );
            // Called inside, so that a panic before the first await is caught, too.
            let Work::Inside(handler) = &self.consumer.work else {
                unreachable!("only what runs inside a transaction is called with one")
            };
            let handling = async { handler.handle(slice, &tx).await };
            let handling = handling.instrument(span);
            tokio::select! {
                biased;
                handled = AssertUnwindSafe(handling).catch_unwind() => Some(handled),
                () = tokio::time::sleep(limit) => None,
                () = cancelling(cx.phase.clone()) => return Called::Cancelled,
            }
        };
        let first = session.traces().take_error();
        let cause = match handled {
            Some(Ok(Ok(()))) => match session.swallowed(first.as_ref()).await {
                None => return Called::Done,
                Some(swallowed) => swallowed,
            },
            // The server was faster with the same limit.
            Some(Ok(Err(failure))) if failure.is_cancelled() && began.elapsed() >= limit => {
                Failure::timed_out(limit)
            }
            Some(Ok(Err(failure))) => failure,
            Some(Err(panic)) => Failure::retry(format!("the handler panicked: {}", panic_message(&*panic))),
            None => {
                session.interrupt().await;
                Failure::timed_out(limit)
            }
        };
        let (aborted_before, stale) =
            first.map_or((false, false), |first| (first.aborted_before, first.stale));
        Called::Failed(Failed { cause, aborted_before, stale })
    }
}

/// Ends when the dispatcher cancels what is in flight; never where there is none.
pub(super) async fn cancelling(mut phase: watch::Receiver<Phase>) {
    if phase.wait_for(|phase| *phase >= Phase::Cancelling).await.is_err() {
        std::future::pending::<()>().await;
    }
}

pub(super) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
