//! The handlers of the processes: they call the receiver, and fail, hang, panic and are slow now and then.

use std::sync::Arc;
use std::time::Duration;

use inorder::{Backoff, Consumer, Dispatcher, Effect, EffectHandler, Event, Inorder, Running, Start};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::super::MutantName;
use super::super::lanes::SLOW;
use super::super::worker::{Inside, ON_PURPOSE, Scribe, now_us};
use super::{HANDLERS, LEASE, LIMIT};

/// Starts the consumers whose effects are calls to the receiver at `address`.
pub(crate) async fn start(
    log: &Inorder,
    scribe: Arc<Scribe>,
    address: &str,
    mutant: Option<MutantName>,
) -> Result<Running, inorder::Error> {
    let mut dispatcher = Dispatcher::builder(log).mutant(mutant.map(Into::into));
    for (name, only) in HANDLERS {
        let hand = Hand { scribe: Arc::clone(&scribe), name, address: address.to_owned() };
        let consumer = match name {
            "mail" | "lingering" => Consumer::effect(name, hand),
            "ordered" => Consumer::queued(name, hand).in_stream_order(),
            _ => Consumer::queued(name, hand),
        };
        let consumer = match only {
            Some(only) => consumer.only([only]),
            None => consumer,
        };
        let consumer = consumer
            .start(Start::Beginning)
            .lease(LEASE)
            .handler_timeout(LIMIT)
            .concurrency(8)
            .backoff(Backoff::exponential(Duration::from_millis(20)).up_to(Duration::from_millis(200)))
            .max_attempts(10_000);
        dispatcher = dispatcher.consumer(consumer);
    }
    dispatcher.build()?.start().await
}

struct Hand {
    scribe: Arc<Scribe>,
    name: &'static str,
    address: String,
}

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    None,
    FailsBefore,
    FailsAfter,
    Panics,
    Hangs,
}

impl Mishap {
    fn draw() -> Self {
        match fastrand::u32(..1_000) {
            0..=4 => Self::FailsBefore,
            5..=9 => Self::FailsAfter,
            10..=12 => Self::Panics,
            13 => Self::Hangs,
            _ => Self::None,
        }
    }
}

impl EffectHandler for Hand {
    async fn handle(&self, event: &Event, effect: &Effect) -> Result<(), inorder::Failure> {
        let started = now_us();
        let mishap = Mishap::draw();
        let _inside = Inside::enter(&self.scribe, self.name, std::slice::from_ref(event));
        if matches!(mishap, Mishap::FailsBefore) {
            return Err(inorder::Failure::retry("a failure on purpose, before the call"));
        }
        if event.event_type() == SLOW && self.name.starts_with("lingering") {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(20..100))).await;
        }
        let mut stream = BufReader::new(TcpStream::connect(&self.address).await?);
        let call = format!(
            "{} {} {} {} {started} {}\n",
            self.name,
            event.event_id(),
            effect.idempotency_key(),
            effect.fencing_number(),
            self.scribe.process(),
        );
        stream.write_all(call.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_line(&mut answer).await?;
        match mishap {
            Mishap::FailsAfter => {
                return Err(inorder::Failure::retry("a failure on purpose, after the call"));
            }
            Mishap::Panics => std::panic::panic_any(ON_PURPOSE),
            Mishap::Hangs => std::future::pending().await,
            Mishap::None | Mishap::FailsBefore => {}
        }
        match answer.trim_end() {
            "accepted" | "key" => Ok(()),
            refused => Err(inorder::Failure::retry(format!("the receiver answered {refused:?}"))),
        }
    }
}
