//! `inorder demo`: everything at once, on a throwaway server: producers, consumers, one event that kills a consumer, an operator,
//! and an audit.

mod audit;
mod shop;
mod stage;

use std::sync::Arc;
use std::time::Duration;

use console::Style;
use inorder::testing::{Server, TempPostgres};
use inorder::{Admin, Config, ConsumerStatus, Inorder, Progress};
use serde::Serialize;
use time::OffsetDateTime;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::screen::Screen;
use crate::status::Status;
use crate::words::count;
use audit::Audit;
use shop::{ORDERS_BY_CUSTOMER, RECEIPT_ATTEMPTS, RECEIPTS, REVENUE_PER_DAY, Trade};
use stage::Stage;

/// Show everything at once, on a throwaway server, and prove it at the end
///
/// Producers place orders, each with its event in one transaction, and roll some of them back. Three consumers receive every
/// event. One event kills one of them; an operator sees it and passes over the event. At the end an audit compares, in SQL,
/// what was committed with what was delivered and with every effect.
///
/// PostgreSQL is started from the programs on this machine and removed at the end, also after Ctrl-C. With --database-url or
/// INORDER_DATABASE_URL that server is used instead, in a database of its own, which is dropped at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder demo
  inorder demo --seconds 60
  inorder demo --json         only the audit; exit code 1 if it finds anything")]
pub(crate) struct Args {
    /// For how long producers place orders
    #[arg(long, value_name = "SECONDS", default_value_t = 12, value_parser = clap::value_parser!(u64).range(2..=3_600))]
    seconds: u64,
    /// How many producers place orders at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=64))]
    producers: u64,
}

const OPERATOR: &str = "demo operator";
const WHY: &str = "a test order";
/// How long anything that must happen may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn run(
    args: &Args,
    options: &Options,
    screen: &Screen,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let mut stage = Stage::new(screen, Duration::from_secs(args.seconds));
    let bold = Style::new().bold();
    stage.say([screen.styled(&bold, "inorder demo: every event, in order, once"), String::new()])?;
    let house = interrupt.ends(House::open(options)).await?;
    stage.tell(&house.in_words())?;
    stage.say([format!("  psql {}", house.address()), String::new()])?;
    let played = tokio::select! {
        played = play(args, &house, &mut stage) => played,
        () = interrupt.wait() => Err(interrupt.failure("interrupted")),
    };
    stage.end();
    let closing = house.is_throwaway();
    house.close().await?;
    let audit = played.map_err(|failure| match closing {
        true => failure.and("the throwaway server is removed"),
        false => failure.and("the demonstration's database is dropped"),
    })?;
    if screen.is_json() {
        screen.json(&Answer { seconds: args.seconds, throwaway: closing, audit: &audit })?;
    }
    match audit.ok {
        true => Ok(()),
        false => Err(Failure::failed("the audit found something wrong")),
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    seconds: u64,
    throwaway: bool,
    #[serde(flatten)]
    audit: &'a Audit,
}

/// The database that all of it happens in.
struct House {
    server: Server,
    database: String,
    url: String,
}

impl House {
    async fn open(options: &Options) -> Result<Self, Failure> {
        let (server, database) = match options.given_server()? {
            Some(url) => (Server::Existing(url), format!("inorder_demo_{:08x}", fastrand::u32(..))),
            None => (Server::Throwaway(TempPostgres::start().await?), "demo".into()),
        };
        let url = server.create_database(&database).await?;
        Ok(Self { server, database, url })
    }

    fn is_throwaway(&self) -> bool {
        self.server.is_throwaway()
    }

    fn in_words(&self) -> String {
        match self.server.throwaway() {
            Some(server) => {
                format!("A throwaway PostgreSQL runs on port {}, and is removed at the end:", server.port())
            }
            None => "A database of its own was made on the given server, and is dropped at the end:".into(),
        }
    }

    /// What `psql` takes; of a server that was given not more than the database's name, as its URL may hold a password.
    fn address(&self) -> &str {
        if self.is_throwaway() { &self.url } else { &self.database }
    }

    async fn close(self) -> Result<(), Failure> {
        if !self.is_throwaway() {
            self.server.drop_database(&self.database).await?;
        }
        Ok(())
    }
}

/// From the first order to the audit.
async fn play(args: &Args, house: &House, stage: &mut Stage<'_>) -> Result<Audit, Failure> {
    let producers = usize::try_from(args.producers).unwrap_or(1);
    let config = Config {
        application_name: "inorder demo".into(),
        pool_size: producers + 4,
        ..Config::new(&house.url)
    };
    let log = Inorder::with_config(config).await?;
    log.migrate().await?;
    shop::open(&log).await?;
    let running = shop::dispatcher(&log)?.start().await?;
    stage.say(cast(stage.screen, producers))?;
    stage.begin(&[ORDERS_BY_CUSTOMER, REVENUE_PER_DAY, RECEIPTS]);

    let trade = Arc::new(Trade::default());
    // Dropped with this future, they end.
    let mut tasks = JoinSet::new();
    for _ in 0..producers {
        tasks.spawn(shop::produce(log.clone(), Arc::clone(&trade)));
    }
    let story = Story { log: &log, admin: log.admin().by(OPERATOR), trade: &trade, stage };
    tokio::select! {
        told = story.tell(args, &mut tasks) => told?,
        failed = story.watch() => return Err(failed),
    }
    running.stop().await?;
    let audit = Audit::take(&log, 1).await?;
    stage.end();
    stage.say(verdict(&audit, stage.screen))?;
    Ok(audit)
}

fn cast(screen: &Screen, producers: usize) -> Vec<String> {
    let producers = match producers {
        1 => "1 producer places orders, each".to_owned(),
        n => format!("{n} producers place orders, each"),
    };
    let consumer = |name: &str, kind: &str, what: &str| {
        format!("  {} {kind:<14} {what}", screen.styled(&Style::new().cyan(), format!("{name:<19}")))
    };
    vec![
        format!("{producers} with its event in one transaction."),
        "Every tenth rolls back. 3 consumers receive every event:".into(),
        consumer(ORDERS_BY_CUSTOMER, "transactional", "counts the orders of each customer"),
        consumer(REVENUE_PER_DAY, "batch", "sums up days, many events at a time"),
        consumer(RECEIPTS, "transactional", "writes receipts, but none below zero"),
        String::new(),
    ]
}

struct Story<'a> {
    log: &'a Inorder,
    admin: Admin,
    trade: &'a Trade,
    stage: &'a Stage<'a>,
}

impl Story<'_> {
    /// What happens, in its order.
    async fn tell(&self, args: &Args, producers: &mut JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
        let length = Duration::from_secs(args.seconds);
        self.at(length.mul_f64(0.25)).await;
        let poison = shop::poison(self.log, self.trade).await?;
        self.stage.happens(&format!("Event {} is poison: an order with a total of -0.01.", count(poison)))?;

        let dead =
            self.wait_for("the poison event kills receipts", |c| c.status == ConsumerStatus::Dead).await?;
        self.stage.happens(&format!(
            "receipts has tried it {RECEIPT_ATTEMPTS} times and halts, dead; it never skips by itself. The others go on."
        ))?;
        self.at(length.mul_f64(0.4)).await;
        self.stage.command("inorder status")?;
        self.stage.say(self.status().await?.lines(self.stage.screen, OffsetDateTime::now_utc()))?;

        self.at(length.mul_f64(0.6)).await;
        self.stage.happens("An operator looks at the event, and passes over it. A dead letter keeps it.")?;
        self.stage.command(&format!("inorder skip {RECEIPTS} --event {poison} --why \"{WHY}\""))?;
        let event_id =
            dead.failed_event_id.ok_or_else(|| Failure::failed("a dead consumer names no event"))?;
        let change = self.admin.because(WHY).skip_poison(RECEIPTS, event_id).await?;
        self.stage.say([crate::admin::in_words(&change)])?;

        self.at(length).await;
        self.trade.close();
        while let Some(producer) = producers.join_next().await {
            producer.map_err(|e| Failure::failed(format!("a producer: {e}")))??;
        }
        self.stage.happens(&format!(
            "The shop closes: {} orders committed, {} rolled back.",
            count(self.trade.committed()),
            count(self.trade.rolled_back())
        ))?;
        self.wait_until_all_are_at_the_head().await?;
        self.stage.happens("Every consumer is at the head.")?;
        self.stage.say([String::new()])
    }

    /// Keeps the stage up to date until it fails.
    async fn watch(&self) -> Failure {
        loop {
            let shown = match self.admin.list().await {
                Ok(progress) => self.stage.update(self.trade, &progress),
                Err(error) => Err(error.into()),
            };
            if let Err(failure) = shown {
                return failure;
            }
            tokio::time::sleep(Duration::from_millis(120)).await;
        }
    }

    /// Waits for a time since the beginning.
    async fn at(&self, time: Duration) {
        tokio::time::sleep(time.saturating_sub(self.stage.elapsed())).await;
    }

    async fn status(&self) -> Result<Status, Failure> {
        let (admin, consumers) = (&self.admin, self.admin.list().await?);
        Ok(Status { consumers, log: admin.log_progress().await?, blockers: admin.blockers().await? })
    }

    /// Waits until the consumer of receipts stands so.
    async fn wait_for(&self, what: &str, stands: impl Fn(&Progress) -> bool) -> Result<Progress, Failure> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(c) = self.admin.progress(RECEIPTS).await?.into_iter().find(&stands) {
                return Ok(c);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(Failure::failed(format!("not within {PATIENCE:?}: {what}")))
    }

    async fn wait_until_all_are_at_the_head(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if self.admin.list().await?.iter().all(|c| c.lag == 0) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(Failure::failed(format!("not within {PATIENCE:?}: every consumer is at the head")))
    }
}

fn verdict(audit: &Audit, screen: &Screen) -> Vec<String> {
    let mut lines = vec![
        screen.styled(&Style::new().bold(), "The audit: what the log holds, beside what the handlers wrote"),
        String::new(),
    ];
    lines.extend(audit.lines(screen));
    lines.push(String::new());
    lines.push(match audit.ok {
        true => screen.styled(
            &Style::new().green().bold(),
            format!(
                "Every event, in order, once: {} events, {} holes, 1 dead letter.",
                count(audit.events),
                count(audit.holes)
            ),
        ),
        false => screen.styled(&Style::new().red().bold(), "Something is wrong."),
    });
    lines
}
