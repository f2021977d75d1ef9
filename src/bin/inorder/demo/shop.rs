//! The shop: who places orders, and who makes something of their events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use inorder::{
    Backoff, BatchHandler, Consumer, Dispatcher, Event, ExpectedVersion, Failure as Refusal, HandlerTx,
    Inorder, NewEvent, TransactionalHandler,
};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

pub(super) const ORDERS_BY_CUSTOMER: &str = "orders-by-customer";
pub(super) const REVENUE_PER_DAY: &str = "revenue-per-day";
/// The one that dies.
pub(super) const RECEIPTS: &str = "receipts";

/// After so many attempts it is dead: soon enough to be watched.
pub(super) const RECEIPT_ATTEMPTS: u32 = 4;

const CUSTOMERS: [&str; 12] = [
    "ada", "alan", "barbara", "donald", "edsger", "frances", "grace", "jim", "leslie", "margaret", "nancy",
    "tony",
];

/// The payload of `order.placed`. Totals are cents.
#[derive(Debug, Serialize, Deserialize)]
struct OrderPlaced {
    order: i64,
    customer: String,
    day: String,
    total: i64,
}

/// Makes the tables.
pub(super) async fn open(log: &Inorder) -> Result<(), Failure> {
    let client = log.get().await?;
    client.batch_execute(include_str!("shop.sql")).await.map_err(|e| sql_failed("opening the shop", &e))
}

/// The three consumers, impatient: what takes minutes in production is to be seen in seconds.
pub(super) fn dispatcher(log: &Inorder) -> Result<Dispatcher, Failure> {
    let backoff = Backoff::exponential(Duration::from_millis(150)).up_to(Duration::from_secs(1));
    let receipts =
        Consumer::transactional(RECEIPTS, Receipts).backoff(backoff).max_attempts(RECEIPT_ATTEMPTS);
    Ok(Dispatcher::builder(log)
        .consumer(Consumer::transactional(ORDERS_BY_CUSTOMER, OrdersByCustomer).backoff(backoff))
        .consumer(Consumer::batch(REVENUE_PER_DAY, RevenuePerDay).backoff(backoff))
        .consumer(receipts)
        .stop_timeout(Duration::from_secs(5))
        .build()?)
}

struct OrdersByCustomer;

impl TransactionalHandler for OrdersByCustomer {
    async fn handle(&self, event: &Event, tx: &HandlerTx<'_>) -> Result<(), Refusal> {
        let OrderPlaced { customer, total, .. } = event.payload()?;
        tx.execute(include_str!("count_order.sql"), &[&customer, &total, &ORDERS_BY_CUSTOMER, &event.id()])
            .await?;
        Ok(())
    }
}

struct RevenuePerDay;

impl BatchHandler for RevenuePerDay {
    async fn handle(&self, events: &[Event], tx: &HandlerTx<'_>) -> Result<(), Refusal> {
        let (mut days, mut totals, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for event in events {
            let OrderPlaced { day, total, .. } = event.payload()?;
            days.push(day);
            totals.push(total);
            ids.push(event.id());
        }
        tx.execute(include_str!("add_revenue.sql"), &[&days, &totals, &REVENUE_PER_DAY, &ids]).await?;
        Ok(())
    }
}

struct Receipts;

impl TransactionalHandler for Receipts {
    async fn handle(&self, event: &Event, tx: &HandlerTx<'_>) -> Result<(), Refusal> {
        let OrderPlaced { order, total, .. } = event.payload()?;
        if total < 0 {
            return Err(format!("a receipt over {total} cents").into());
        }
        tx.execute(include_str!("write_receipt.sql"), &[&order, &total, &RECEIPTS, &event.id()]).await?;
        Ok(())
    }
}

/// What the producers did, and whether they go on.
#[derive(Debug, Default)]
pub(super) struct Trade {
    closed: AtomicBool,
    committed: AtomicU64,
    rolled_back: AtomicU64,
}

impl Trade {
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    pub(super) fn rolled_back(&self) -> u64 {
        self.rolled_back.load(Ordering::Relaxed)
    }
}

/// Places orders until the shop closes; every tenth is rolled back, and some transactions take their time.
pub(super) async fn produce(log: Inorder, trade: Arc<Trade>) -> Result<(), Failure> {
    while !trade.closed.load(Ordering::Relaxed) {
        let hold = Duration::from_millis(if fastrand::u8(..5) == 0 { fastrand::u64(1..20) } else { 0 });
        let kept = fastrand::u8(..10) > 0;
        place_order(&log, fastrand::i64(100..50_000), hold, kept).await?;
        let count = if kept { &trade.committed } else { &trade.rolled_back };
        count.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..6))).await;
    }
    Ok(())
}

/// An order that nobody can write a receipt for. Answers the id of its event.
pub(super) async fn poison(log: &Inorder, trade: &Trade) -> Result<i64, Failure> {
    let id = place_order(log, -1, Duration::ZERO, true).await?;
    trade.committed.fetch_add(1, Ordering::Relaxed);
    Ok(id)
}

/// An order and its event, in one transaction.
async fn place_order(log: &Inorder, total: i64, hold: Duration, kept: bool) -> Result<i64, Failure> {
    let customer = CUSTOMERS[fastrand::usize(..CUSTOMERS.len())].to_owned();
    let day = format!("2024-05-{:02}", fastrand::u8(1..15));
    let failed = |e| sql_failed("placing an order", &e);

    let mut client = log.get().await?;
    let tx = client.transaction().await.map_err(failed)?;
    let place = tx.prepare_cached(include_str!("place.sql")).await.map_err(failed)?;
    let order: i64 = tx.query_one(&place, &[&customer, &day, &total]).await.map_err(failed)?.get(0);
    let placed = NewEvent::new("order.placed", &OrderPlaced { order, customer, day, total })?
        .in_stream("order", order)
        .created_by("inorder demo");
    let appended = log.append_in(&tx, ExpectedVersion::NoStream, &[placed]).await?;
    tokio::time::sleep(hold).await;
    let inorder::Append::Appended(ids) = appended else {
        return Err(Failure::failed(format!("order {order}: {appended:?}")));
    };
    match kept {
        true => tx.commit().await.map_err(failed)?,
        false => tx.rollback().await.map_err(failed)?,
    }
    Ok(ids[0])
}

pub(super) fn sql_failed(what: &str, error: &tokio_postgres::Error) -> Failure {
    let words = error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string);
    Failure::failed(format!("{what}: {words}"))
}
