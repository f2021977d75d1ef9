//! The other side of the effects: a server that lives through whatever happens to the processes that call it.
//!
//! A connection is one run of a handler, from its call to its end: a line `handler event key number started process`, and an
//! answer, `accepted`, `key` (this effect is there already) or `number` (a later attempt has been here). It closes when the
//! handler has come to its end, or its process has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

use super::super::trouble::{CouldNot, Result};

/// One answer in so many is late.
const LATE: u32 = 100;
/// By how much.
const LATE_BY: Duration = Duration::from_millis(300);

/// What came in.
#[derive(Clone, Default)]
pub(crate) struct Books(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    runs: Vec<Run>,
    effects: HashMap<(String, Uuid), Effect>,
    /// Keys that were accepted, by effect: more than one is one too many.
    accepted: HashMap<(String, Uuid), u32>,
    /// When each process was frozen last.
    frozen: HashMap<String, i64>,
    counts: Counts,
}

/// One call of a handler.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) handler: String,
    pub(crate) event_id: Uuid,
    pub(crate) number: i64,
    /// Microseconds, by the caller's clock, which is that of the machine: when the handler was entered.
    pub(crate) started_us: i64,
    pub(crate) accepted: bool,
    process: String,
    open: bool,
}

/// What a good receiver remembers of an effect: by its key.
#[derive(Default)]
struct Effect {
    highest: i64,
    accepted: bool,
    runs: Vec<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) arrived: u64,
    pub(crate) accepted: u64,
    pub(crate) accepted_twice: u64,
    pub(crate) refused_by_key: u64,
    pub(crate) refused_by_number: u64,
    /// Runs that began while another was under way, whose process had been frozen meanwhile, and had not.
    pub(crate) overlapped_with_freeze: u64,
    pub(crate) overlapped: u64,
}

impl Books {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counts(&self) -> Counts {
        self.kept().counts
    }

    pub(crate) fn runs(&self) -> Vec<Run> {
        self.kept().runs.clone()
    }

    /// Is any handler under way?
    pub(crate) fn is_busy(&self) -> bool {
        self.kept().runs.iter().rev().take(200).any(|run| run.open)
    }

    pub(crate) fn froze(&self, process: &str, at_us: i64) {
        self.kept().frozen.insert(process.to_owned(), at_us);
    }

    /// Takes a call, and answers it.
    fn take(&self, line: &str) -> Result<(usize, &'static str)> {
        let words: Vec<&str> = line.split(' ').collect();
        let [handler, event_id, key, number, started_us, process] = words[..] else {
            return Err(CouldNot::new(format!("a handler said {line:?}, which means nothing")));
        };
        let (event_id, key, number): (Uuid, Uuid, i64) = (event_id.parse()?, key.parse()?, number.parse()?);
        let started_us: i64 = started_us.parse()?;
        let mut kept = self.kept();
        let Kept { runs, effects, accepted, frozen, counts } = &mut *kept;
        counts.arrived += 1;
        let effect = effects.entry((handler.to_owned(), key)).or_default();
        for before in effect.runs.iter().map(|run| &runs[*run]).filter(|run| run.open) {
            match frozen.get(&before.process).is_some_and(|at| *at >= before.started_us) {
                true => counts.overlapped_with_freeze += 1,
                false => counts.overlapped += 1,
            }
        }
        let answer = if number < effect.highest {
            counts.refused_by_number += 1;
            "number"
        } else if effect.accepted {
            counts.refused_by_key += 1;
            "key"
        } else {
            counts.accepted += 1;
            "accepted"
        };
        effect.highest = effect.highest.max(number);
        effect.accepted |= answer == "accepted";
        effect.runs.push(runs.len());
        if answer == "accepted" {
            let times = accepted.entry((handler.to_owned(), event_id)).or_default();
            *times += 1;
            counts.accepted_twice += u64::from(*times > 1);
        }
        runs.push(Run {
            handler: handler.to_owned(),
            event_id,
            number,
            started_us,
            accepted: answer == "accepted",
            process: process.to_owned(),
            open: true,
        });
        Ok((runs.len() - 1, answer))
    }

    fn ended(&self, run: usize) {
        self.kept().runs[run].open = false;
    }

    async fn serve(self, stream: TcpStream) -> Result<()> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        // A process that was killed while it called has not called.
        if stream.read_line(&mut line).await? == 0 || !line.ends_with('\n') {
            return Ok(());
        }
        let (run, answer) = self.take(line.trim_end())?;
        if fastrand::u32(..LATE) == 0 {
            tokio::time::sleep(LATE_BY).await;
        }
        // Nobody may be there to hear it; that the run is over shows either way.
        let _ = stream.write_all(format!("{answer}\n").as_bytes()).await;
        let _ = stream.read(&mut [0; 16]).await;
        self.ended(run);
        Ok(())
    }
}

/// Listens until it is dropped.
pub(crate) struct Receiver {
    pub(crate) address: String,
    pub(crate) books: Books,
    task: tokio::task::JoinHandle<()>,
}

impl Receiver {
    pub(crate) async fn listen() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let books = Books::default();
        let serving = books.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let books = serving.clone();
                tokio::spawn(async move { books.serve(stream).await });
            }
        });
        Ok(Self { address, books, task })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}
