//! The first lines of an application with a log: `cargo run --example quickstart --features testing`.
//!
//! It runs on a throwaway PostgreSQL server that is gone when it ends; yours would be `Inorder::connect("postgres://…")`.
//! With a URL as its argument it uses that server's database, and goes on as a service does, until Ctrl-C: `docs/first-hour.md` breaks
//! it then, and repairs it.

use inorder::testing::TempPostgres;
use inorder::{
    Append, BatchHandler, Config, Consumer, Dispatcher, Event, ExpectedVersion, Failure, HandlerTx, Inorder,
    NewEvent, TransactionalHandler,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    day: String,
    cents: i64,
}

/// One event at a time.
struct OrdersByCustomer;

impl TransactionalHandler for OrdersByCustomer {
    async fn handle(&self, event: &Event, tx: &HandlerTx<'_>) -> Result<(), Failure> {
        let order: OrderPlaced = event.payload()?; // undecodable: this event's failure
        if order.customer.is_empty() {
            return Err("no customer".into()); // whatever is wrong with it: the same
        }
        tx.execute(
            "INSERT INTO orders_by_customer AS o VALUES ($1, 1)
             ON CONFLICT (customer) DO UPDATE SET orders = o.orders + 1",
            &[&order.customer],
        )
        .await?; // any error: tried again, with back-off
        Ok(())
    }
}

/// Many events at a time: far faster for projections.
struct RevenuePerDay;

impl BatchHandler for RevenuePerDay {
    async fn handle(&self, events: &[Event], tx: &HandlerTx<'_>) -> Result<(), Failure> {
        let orders = events.iter().map(Event::payload).collect::<Result<Vec<OrderPlaced>, _>>()?;
        let days: Vec<&str> = orders.iter().map(|order| order.day.as_str()).collect();
        let cents: Vec<i64> = orders.iter().map(|order| order.cents).collect();
        tx.execute(
            "INSERT INTO revenue_per_day AS r
             SELECT day, sum(cents) FROM unnest($1::text[], $2::bigint[]) AS o (day, cents) GROUP BY day
             ON CONFLICT (day) DO UPDATE SET cents = r.cents + excluded.cents",
            &[&days, &cents],
        )
        .await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(url) = std::env::args().nth(1) {
        let log = Inorder::with_config(Config::with_env(&url)?).await?; // with what PGPASSFILE and the others say
        return run(&log, true).await;
    }
    let server = TempPostgres::start().await?;
    let log = Inorder::connect(server.url()).await?; // a pool, safe defaults
    run(&log, false).await
}

async fn run(log: &Inorder, until_ctrl_c: bool) -> Result<(), Box<dyn std::error::Error>> {
    log.migrate().await?;
    create_tables(log).await?;

    let dispatcher = Dispatcher::builder(log)
        .consumer(Consumer::transactional("orders-by-customer", OrdersByCustomer).max_attempts(3))
        .consumer(Consumer::batch("revenue-per-day", RevenuePerDay).batch_size(1_000))
        .build()?;
    let running = dispatcher.start().await?; // registers every consumer, then runs

    place_orders(log).await?;
    if until_ctrl_c {
        println!("running until Ctrl-C");
        tokio::signal::ctrl_c().await?;
    } else {
        while log.admin().list().await?.iter().any(|consumer| consumer.lag > 0) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    running.stop().await?; // handlers in flight finish, then everything has stopped
    show(log).await
}

/// An order and its event, in one transaction: both or neither.
async fn place_orders(log: &Inorder) -> Result<(), Box<dyn std::error::Error>> {
    let mut client = log.get().await?;
    for (customer, day, cents) in [("ada", "Mon", 9_950), ("grace", "Mon", 500), ("ada", "Tue", 1_200)] {
        let tx = client.transaction().await?;
        let id: i64 = tx.query_one("INSERT INTO orders DEFAULT VALUES RETURNING id", &[]).await?.get(0);
        let payload = OrderPlaced { customer: customer.into(), day: day.into(), cents };
        let placed = NewEvent::new("order.placed", &payload)?.in_stream("order", id);
        match log.append_in(&tx, ExpectedVersion::NoStream, &[placed]).await? {
            Append::Appended(ids) => println!("order {id} is event {}", ids[0]),
            refused => return Err(format!("order {id}: {refused:?}").into()),
        }
        tx.commit().await?;
    }
    Ok(())
}

async fn create_tables(log: &Inorder) -> Result<(), Box<dyn std::error::Error>> {
    let tables = "CREATE TABLE IF NOT EXISTS orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
        CREATE TABLE IF NOT EXISTS orders_by_customer (customer text PRIMARY KEY, orders bigint NOT NULL);
        CREATE TABLE IF NOT EXISTS revenue_per_day (day text PRIMARY KEY, cents numeric NOT NULL)";
    Ok(log.get().await?.batch_execute(tables).await?)
}

async fn show(log: &Inorder) -> Result<(), Box<dyn std::error::Error>> {
    let client = log.get().await?;
    for row in client.query("SELECT customer, orders FROM orders_by_customer ORDER BY 1", &[]).await? {
        println!("{}: {} order(s)", row.get::<_, &str>(0), row.get::<_, i64>(1));
    }
    for row in client.query("SELECT day, cents::bigint FROM revenue_per_day ORDER BY 1", &[]).await? {
        println!("{}: {} cents", row.get::<_, &str>(0), row.get::<_, i64>(1));
    }
    Ok(())
}
