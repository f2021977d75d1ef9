//! Handlers that keep what they are handed, and do at some events what the test tells them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use inorder::{BoxFuture, Consumer, Event, ExpectedVersion, Failure, HandlerTx, NewEvent};

use super::Gate;

/// A handler that puts each event into the table `effects`, in the transaction of the pass.
#[derive(Clone)]
pub(crate) struct Actor {
    name: String,
    script: HashMap<i64, (usize, Act)>,
    heard: Heard,
}

/// Everything that a handler was handed, also what was rolled back.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<i64>>>);

impl Heard {
    pub(crate) fn all(&self) -> Vec<i64> {
        self.0.lock().unwrap().clone()
    }

    /// How often it was handed this event.
    pub(crate) fn times(&self, event: i64) -> usize {
        self.0.lock().unwrap().iter().filter(|id| **id == event).count()
    }
}

type Deed =
    Arc<dyn for<'a> Fn(&'a Event, &'a HandlerTx<'a>) -> BoxFuture<'a, Result<(), Failure>> + Send + Sync>;

/// What a handler does at an event. Its effect is written before, unless it says otherwise.
#[derive(Clone)]
pub(crate) enum Act {
    /// Any error.
    Fail(&'static str),
    Defer(Option<Duration>),
    Reject(&'static str),
    Skip(&'static str),
    Panic(&'static str),
    /// Waits for something that never comes.
    Hang,
    /// Reads the payload as a number.
    Decode,
    /// Runs SQL; its error is the handler's.
    Sql(&'static str),
    /// Runs SQL and does not look at the answer.
    Swallow(&'static str),
    /// Appends an event of this type.
    Append(&'static str),
    /// Waits at the gate, before its effect is written.
    MeetBefore(Gate),
    /// Waits at the gate.
    Meet(Gate),
    Do(Deed),
}

impl Act {
    pub(crate) fn custom<F>(deed: F) -> Act
    where
        F: for<'a> Fn(&'a Event, &'a HandlerTx<'a>) -> BoxFuture<'a, Result<(), Failure>>
            + Send
            + Sync
            + 'static,
    {
        Act::Do(Arc::new(deed))
    }

    pub(crate) async fn play(&self, event: &Event, tx: &HandlerTx<'_>) -> Result<(), Failure> {
        match self {
            Act::Fail(why) => return Err((*why).into()),
            Act::Defer(None) => return Err(Failure::defer("the other side is down")),
            Act::Defer(Some(pause)) => return Err(Failure::defer_for(*pause, "the other side is down")),
            Act::Reject(why) => return Err(Failure::reject(*why)),
            Act::Skip(why) => return Err(Failure::skip(*why)),
            Act::Panic(why) => panic!("{why}"),
            Act::Hang => std::future::pending().await,
            Act::Decode => drop(event.payload::<i32>()?),
            Act::Sql(sql) => tx.batch_execute(sql).await?,
            Act::Swallow(sql) => drop(tx.batch_execute(sql).await),
            Act::Append(kind) => {
                drop(tx.append(ExpectedVersion::Any, &[NewEvent::from_json(*kind, "{}")]).await?);
            }
            Act::MeetBefore(_) => {}
            Act::Meet(gate) => gate.pass().await,
            Act::Do(deed) => deed(event, tx).await?,
        }
        Ok(())
    }
}

impl Actor {
    pub(crate) fn new(name: &str) -> Actor {
        Actor { name: name.into(), script: HashMap::new(), heard: Heard::default() }
    }

    /// Whenever it is handed this event.
    pub(crate) fn at(self, event: i64, act: Act) -> Actor {
        self.at_first(event, usize::MAX, act)
    }

    /// The first so many times that it is handed this event.
    pub(crate) fn at_first(mut self, event: i64, times: usize, act: Act) -> Actor {
        self.script.insert(event, (times, act));
        self
    }

    pub(crate) fn heard(&self) -> Heard {
        self.heard.clone()
    }

    pub(crate) fn transactional(self) -> Consumer {
        let (name, actor) = (self.name.clone(), Arc::new(self));
        Consumer::transactional_fn(name, move |event, tx| {
            let actor = Arc::clone(&actor);
            Box::pin(async move { actor.handle(event, tx).await })
        })
    }

    pub(crate) fn batch(self) -> Consumer {
        let (name, actor) = (self.name.clone(), Arc::new(self));
        Consumer::batch_fn(name, move |events, tx| {
            let actor = Arc::clone(&actor);
            Box::pin(async move {
                for event in events {
                    actor.handle(event, tx).await?;
                }
                Ok(())
            })
        })
    }

    async fn handle(&self, event: &Event, tx: &HandlerTx<'_>) -> Result<(), Failure> {
        let id = event.id();
        let time = {
            let mut heard = self.heard.0.lock().unwrap();
            heard.push(id);
            heard.iter().filter(|heard| **heard == id).count()
        };
        let act = self.script.get(&id).filter(|(times, _)| time <= *times).map(|(_, act)| act);
        if let Some(Act::MeetBefore(gate)) = act {
            gate.pass().await;
        }
        tx.execute("INSERT INTO effects (consumer, event) VALUES ($1, $2)", &[&self.name, &id]).await?;
        match act {
            Some(act) => act.play(event, tx).await,
            None => Ok(()),
        }
    }
}
