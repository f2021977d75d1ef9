//! Handlers whose effects no transaction can undo.

use std::future::Future;
use std::sync::Arc;

use uuid::Uuid;

use super::BoxFuture;
use crate::event::Event;
use crate::ledger::idempotency_key;
use crate::outcome::Failure;

/// What an effect handler is given beside the event, so that the other side can tell repetitions.
#[derive(Clone, Debug)]
pub struct Effect {
    handler: Arc<str>,
    event_id: Uuid,
    fencing_number: i64,
    attempt: u32,
}

impl Effect {
    pub(crate) fn new(handler: &Arc<str>, event_id: Uuid, fencing_number: i64, attempt: u32) -> Self {
        Self { handler: Arc::clone(handler), event_id, fencing_number, attempt }
    }

    /// The same at every attempt, and at no other effect; derived from the handler's name and the event. A receiver that
    /// remembers it does nothing the second time.
    pub fn idempotency_key(&self) -> Uuid {
        idempotency_key(&self.handler, self.event_id)
    }

    /// Greater than at every attempt before. A receiver that remembers the greatest it has seen for a key refuses the call
    /// of a process that was frozen in the middle of an earlier attempt.
    pub fn fencing_number(&self) -> i64 {
        self.fencing_number
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

/// Handles one event outside of any transaction: a mail, a payment, a call to another service.
///
/// It is not started while another's claim on the event is valid, nor once it is recorded done. What was run and could not be
/// recorded, because the process died in between, is run again, with the same idempotency key and a greater fencing number.
/// The future is dropped when the handler's time is up, when its claim is lost, or when the dispatcher must stop; the latter
/// costs no attempt.
pub trait EffectHandler: Send + Sync + 'static {
    /// # Errors
    /// Any error is a retry; [`Failure`] has the other meanings.
    fn handle(&self, event: &Event, effect: &Effect) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Handles a slice of events, in id order, outside of any transaction: for receivers that take several at once. An effect for
/// each event, in the same order.
///
/// When a slice fails, all of it is tried again, in halves until the failing event stands alone: so the receiver must go by the
/// keys.
pub trait EffectBatchHandler: Send + Sync + 'static {
    /// # Errors
    /// Any error is a retry; [`Failure`] has the other meanings. They take effect when the slice has one event.
    fn handle(
        &self,
        events: &[Event],
        effects: &[Effect],
    ) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// The private twin that can be a trait object.
pub(crate) trait OutsideHandler: Send + Sync {
    fn handle<'a>(&'a self, events: &'a [Event], effects: &'a [Effect])
    -> BoxFuture<'a, Result<(), Failure>>;
}

/// Handed one at a time.
pub(super) struct One<H>(pub(super) H);

impl<H: EffectHandler> OutsideHandler for One<H> {
    fn handle<'a>(
        &'a self,
        events: &'a [Event],
        effects: &'a [Effect],
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            for (event, effect) in events.iter().zip(effects) {
                self.0.handle(event, effect).await?;
            }
            Ok(())
        })
    }
}

pub(super) struct Slice<H>(pub(super) H);

impl<H: EffectBatchHandler> OutsideHandler for Slice<H> {
    fn handle<'a>(
        &'a self,
        events: &'a [Event],
        effects: &'a [Effect],
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(self.0.handle(events, effects))
    }
}

pub(super) struct Closure<F>(pub(super) F);

impl<F> EffectHandler for Closure<F>
where
    F: for<'a> Fn(&'a Event, &'a Effect) -> BoxFuture<'a, Result<(), Failure>> + Send + Sync + 'static,
{
    async fn handle(&self, event: &Event, effect: &Effect) -> Result<(), Failure> {
        (self.0)(event, effect).await
    }
}
