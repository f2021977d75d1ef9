//! Every event, in order, once: a PostgreSQL table as a dependable event log with consumers.

mod backoff;
mod consumer;
mod delivery;
mod dispatcher;
mod error;
mod event;
mod metrics;
mod migrate;
mod outcome;
mod pg;
mod safe_head;
mod store;
#[cfg(feature = "testing")]
pub mod testing;

pub use backoff::Backoff;
pub use consumer::{BatchHandler, BoxFuture, Consumer, HandlerTx, Kind, Start, TransactionalHandler};
pub use dispatcher::{Dispatcher, DispatcherBuilder, Registered, Running};
pub use error::{Error, ErrorKind};
pub use event::{Append, Event, ExpectedVersion, NewEvent, Undecodable};
pub use migrate::Migrated;
pub use outcome::{ConsumerReport, Failure, Outcome, Report, Verdict};
#[doc(hidden)]
#[cfg(feature = "cli")]
pub use safe_head::Mutant;
pub use store::{Config, Inorder};
