//! Every event, in order, once: a PostgreSQL table as a dependable event log with consumers.
//!
//! Programs append events in the same transaction as their business data. Consumers receive every committed event in
//! id order, each at its own pace, on any number of processes; what a consumer does in the database happens exactly once.
//!
//! ```no_run
//! use inorder::{Consumer, Dispatcher, Event, ExpectedVersion, Failure, HandlerTx, Inorder, NewEvent, TransactionalHandler};
//!
//! struct OrdersByCustomer;
//!
//! impl TransactionalHandler for OrdersByCustomer {
//!     async fn handle(&self, event: &Event, tx: &HandlerTx<'_>) -> Result<(), Failure> {
//!         let order: serde_json::Value = event.payload()?;
//!         let customer = order["customer"].as_str().ok_or("no customer")?;
//!         tx.execute(
//!             "INSERT INTO orders_by_customer AS o VALUES ($1, 1)
//!              ON CONFLICT (customer) DO UPDATE SET orders = o.orders + 1",
//!             &[&customer],
//!         )
//!         .await?;
//!         Ok(())
//!     }
//! }
//!
//! # async fn run() -> Result<(), inorder::Error> {
//! let log = Inorder::connect("postgres://localhost/shop").await?;
//! log.migrate().await?;
//!
//! let dispatcher = Dispatcher::builder(&log)
//!     .consumer(Consumer::transactional("orders-by-customer", OrdersByCustomer))
//!     .build()?;
//! let running = dispatcher.start().await?; // registers every consumer, then runs
//!
//! let placed = NewEvent::new("order.placed", &serde_json::json!({"customer": "ada"}))?.in_stream("order", 42);
//! let _ = log.append(ExpectedVersion::NoStream, &[placed]).await?;
//!
//! running.stop().await?; // handlers in flight finish, then everything has stopped
//! # Ok(())
//! # }
//! ```
//!
//! # What is guaranteed
//!
//! | | |
//! |---|---|
//! | no loss | every committed event is delivered, however transactions overlap, roll back, stall or crash |
//! | order | a consumer (each partition of one) receives events in strictly increasing id order |
//! | one at a time | at any moment one process holds a consumer; a former holder can write nothing |
//! | exactly once in the database | a handler's effects through its [`HandlerTx`] and the advance of the position commit together |
//! | halt, never skip in silence | a failing event stops its consumer; whatever is passed over leaves a dead letter |
//! | independence | a slow, dead or disabled consumer delays no other |
//! | appending is free | with consumers attached an append costs what a plain `INSERT` costs |
//!
//! `docs/invariants.md` numbers them and names the test that pins each.
//!
//! # When things go wrong
//!
//! - **A process is killed**: its transactions are rolled back by the server, and another process goes on within a second.
//! - **A process is stopped** ([`Running::stop`]): handlers in flight finish up to a limit, and are dropped then; their events cost no attempt.
//! - **The connection is lost**: it is made anew with back-off. A commit whose answer never came is told apart
//!   ([`Error::is_ambiguous`]); a consumer reads its position and knows.
//! - **A handler fails**: it is tried again with back-off ([`Failure`] says otherwise), and after `max_attempts` the consumer is dead
//!   until an operator restarts it or skips the event.
//!
//! # Features
//!
//! - `tls` (on by default): encrypted connections, with rustls; see `docs/connecting.md`.
//! - `testing`: a throwaway PostgreSQL cluster for tests, benches and examples.
//! - `http`: the exporter for Prometheus and the admin page, as a router to be mounted and by themselves.
//! - `cli`: the tool `inorder`.
//!
//! # Where to read next
//!
//! [`Inorder`] to append and read, [`Inbound`] to receive, [`Consumer`] and [`Dispatcher`] to consume, [`Failure`] for what a handler may answer; the pages in `docs/` for the rest.

mod admin;
mod backoff;
mod connect;
mod consumer;
mod delivery;
mod dispatcher;
mod error;
mod event;
mod handoff;
#[cfg(feature = "http")]
pub mod http;
mod inbound;
mod ledger;
mod metrics;
mod migrate;
mod outcome;
mod pg;
mod queue;
mod safe_head;
#[cfg(feature = "cli")]
pub mod settings;
mod store;
#[cfg(feature = "testing")]
pub mod testing;

pub use admin::{
    Admin, AuditRow, AuditRows, Blocker, Change, ConsumerRow, ConsumerStatus, DeadLetter, DeadLetterState,
    DeadLetters, Doctor, Finding, ForgottenHandoffs, HandoffRow, HandoffRows, HandoffState, Instance,
    InstanceConsumer, InstanceState, LedgerRow, LedgerRows, LedgerStatus, LogProgress, Progress, Prune,
    Pruned, Reset, Role, SettledLetters, Severity, Target, Trace, TraceOf, TracedEvent,
};
/// The crates whose types stand in this one's signatures, in the versions that fit.
#[cfg(feature = "http")]
pub use axum;
pub use backoff::Backoff;
pub use connect::pooling::Pooler;
pub use consumer::{
    BatchHandler, BoxFuture, Consumer, Effect, EffectBatchHandler, EffectHandler, HandlerTx, Start,
    TransactionalHandler,
};
pub use dispatcher::{Dispatcher, DispatcherBuilder, Registered, Running};
pub use error::{Error, ErrorKind};
pub use event::{Append, Event, ExpectedVersion, NewEvent, Undecodable};
pub use handoff::{Delivery, Handoff, HandoffBuilder, HandoffSweep, Offer, Sifted};
pub use inbound::{Inbound, Received};
pub use ledger::{Claim, Claimed, Ledger, LedgerKey};
pub use migrate::Migrated;
pub use outcome::{ConsumerReport, Failure, Outcome, Report, Verdict};
pub use queue::Pending;
pub use safe_head::Follower;
#[doc(hidden)]
#[cfg(feature = "cli")]
pub use safe_head::Mutant;
pub use store::{Config, Inorder, StreamReader};
pub use {deadpool_postgres, time, tokio_postgres, uuid};

/// The code in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
