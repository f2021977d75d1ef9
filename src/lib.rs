//! Every event, in order, once: a PostgreSQL table as a dependable event log with consumers.

mod backoff;
mod consumer;
mod delivery;
mod error;
mod event;
mod migrate;
mod outcome;
mod pg;
mod safe_head;
mod store;
#[cfg(feature = "testing")]
pub mod testing;

pub use backoff::Backoff;
pub use consumer::{BatchHandler, BoxFuture, Consumer, HandlerTx, Kind, Start, TransactionalHandler};
pub use error::{Error, ErrorKind};
pub use event::{Append, Event, ExpectedVersion, NewEvent, Undecodable};
pub use migrate::Migrated;
pub use outcome::{ConsumerReport, Failure, Outcome, Report, Verdict};
pub use store::{Config, Inorder};
