//! Calling a handler that runs outside of any transaction: for no longer than it may take, and not beyond its claims.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use tracing::Instrument;

use super::Context;
use super::handling::{cancelling, panic_message};
use crate::consumer::{Consumer, Effect, Work, saturated};
use crate::event::Event;
use crate::outcome::Failure;
use crate::pg::consumers::Key;

/// What calling a handler came to.
pub(super) enum Called {
    Done,
    Failed(Failure),
    /// The dispatcher drops what is in flight.
    Cancelled,
    /// Another may be running it.
    Lost,
}

/// Calls the handler of `consumer` with events and what is known of each run. It is dropped as soon as `lost` ends: its claims are
/// not ours any more.
pub(super) async fn call(
    cx: &Context,
    consumer: &Consumer,
    key: &Key,
    events: &[Event],
    effects: &[Effect],
    lost: impl Future<Output = ()>,
) -> Called {
    let Work::Outside(handler) = &consumer.work else {
        unreachable!("what runs inside a transaction is called with one")
    };
    let (event, effect, limit) = (&events[0], &effects[0], consumer.options.handler_timeout);
    let span = tracing::debug_span!(
        "handle",
        consumer = %key,
        event = event.id(),
        event_id = %event.event_id(),
        event_type = event.event_type(),
        correlation_id = event.correlation_id().map(tracing::field::display),
        causation_id = event.causation_id().map(tracing::field::display),
        attempt = effect.attempt(),
        fencing_number = effect.fencing_number(),
        events = events.len(),
    );
    // Called inside, so that a panic before the first await is caught, too.
    let handling = async { handler.handle(events, effects).await };
    tokio::select! {
        biased;
        handled = AssertUnwindSafe(handling.instrument(span)).catch_unwind() => match handled {
            Ok(Ok(())) => Called::Done,
            Ok(Err(failure)) => Called::Failed(failure),
            Err(panic) => {
                Called::Failed(Failure::retry(format!("the handler panicked: {}", panic_message(&*panic))))
            }
        },
        () = tokio::time::sleep(limit) => Called::Failed(Failure::timed_out(limit)),
        () = cancelling(cx.phase.clone()) => Called::Cancelled,
        () = lost => Called::Lost,
    }
}

/// Why an event is not run again whose lease ran out too often: its handler ends the process that runs it.
pub(super) fn heard_of_no_more(consumer: &Consumer, faults: i32) -> Option<Failure> {
    let options = &consumer.options;
    let most = saturated(options.max_faults).saturating_add(saturated(options.max_attempts));
    let why = || format!("its lease ran out {faults} times: whoever handles it is heard of no more");
    (faults > most).then(|| Failure::reject(why()))
}

/// Which attempt the next run is: a run that was cut short by a fault was one, too.
pub(super) fn next_attempt(attempts: i32, faults: i32) -> u32 {
    u32::try_from(attempts + faults + 1).unwrap_or(1)
}
