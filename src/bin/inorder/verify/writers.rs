//! Writers: every way of appending, in every shape of transaction.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Object, Transaction};
use futures_util::SinkExt;
use inorder::{Append, ExpectedVersion, Inorder, NewEvent};
use tokio::sync::watch;
use tokio_postgres::IsolationLevel;
use uuid::Uuid;

use super::lanes::{PLAIN, RARE, SLOW};
use super::site::Site;
use super::statements::{self, APPEND, BUSINESS, COPY, INSERT, PREPARED};
use super::trouble::{CouldNot, Result};
use super::witness::Witness;

/// How far behind the slowest consumer may be before writers wait for it: the proof has an end.
const BACKLOG: i64 = 3_000;

/// What all writers share.
pub(crate) struct Desk {
    log: Inorder,
    witness: Arc<Witness>,
    quiet: watch::Receiver<bool>,
    over: watch::Receiver<bool>,
    allows_prepared: bool,
    manner: Manner,
    schema: String,
    sql: Sql,
}

/// What a commit means, and what may happen to a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// An acknowledged commit stays, and a lost connection is trouble.
    Kept,
    /// An acknowledged commit stays; the server is restarted meanwhile.
    Cut,
    /// An acknowledged commit may be lost in a crash, and there are crashes. Nothing is prepared: that would bring
    /// everything to the disk.
    Promised,
}

struct Sql {
    business: String,
    insert: String,
    copy: String,
    append: String,
}

/// An event to be appended, by whichever way.
#[derive(Clone, Debug)]
struct Draft {
    event_id: Uuid,
    event_type: &'static str,
    /// Some are in one of a few streams.
    stream: Option<u32>,
    payload: String,
}

/// How a transaction goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Commit,
    RollBack,
    CommitPrepared,
    RollBackPrepared,
}

/// What came of a transaction.
enum Came {
    Committed,
    RolledBack,
    /// It waits, without a session, for somebody to end it.
    Prepared,
}

impl Desk {
    pub(crate) async fn open(
        site: &Site,
        writers: u32,
        witness: &Arc<Witness>,
        manner: Manner,
        quiet: watch::Receiver<bool>,
        over: watch::Receiver<bool>,
    ) -> Result<Arc<Self>> {
        let connections = usize::try_from(writers)?;
        let log = site.log(connections, "inorder verify writer").await?;
        let sql = Sql {
            business: site.sql(BUSINESS),
            insert: site.sql(INSERT),
            copy: site.sql(COPY),
            append: site.sql(APPEND),
        };
        Ok(Arc::new(Self {
            log,
            witness: Arc::clone(witness),
            quiet,
            over,
            allows_prepared: site.allows_prepared() && manner != Manner::Promised,
            manner,
            schema: site.schema().to_owned(),
            sql,
        }))
    }

    /// One writer, until it is over.
    pub(crate) async fn write(self: Arc<Self>, number: u32, rng: fastrand::Rng) -> Result<()> {
        let mut writer = Writer { desk: self, number: i32::try_from(number)?, n: 0, rng };
        let mut over = writer.desk.over.clone();
        let mut quiet = writer.desk.quiet.clone();
        while !*over.borrow() {
            tokio::select! {
                _ = over.wait_for(|over| *over) => break,
                _ = quiet.wait_for(|quiet| !*quiet) => {}
            }
            if writer.desk.witness.backlog() > BACKLOG {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            writer.transaction().await.map_err(|e| e.while_doing(format!("writer {number}")))?;
            writer.hold(20).await;
        }
        Ok(())
    }
}

struct Writer {
    desk: Arc<Desk>,
    number: i32,
    n: i64,
    rng: fastrand::Rng,
}

impl Writer {
    async fn transaction(&mut self) -> Result<()> {
        self.n += 1;
        if self.rng.u32(..12) == 0 {
            return self.alone().await;
        }
        let object = match self.desk.log.get().await {
            Ok(object) => object,
            Err(error) if self.is_excused(error.is_retryable()) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        self.shaped(object).await
    }

    /// Through the library alone, in a transaction of its own; sometimes many.
    async fn alone(&mut self) -> Result<()> {
        let count = if self.rng.bool() { 1 } else { self.rng.usize(2..30) };
        let drafts = self.drafts(count);
        let events: Vec<NewEvent> = drafts.iter().map(Draft::event).collect();
        let ids = event_ids(&drafts);
        match self.desk.log.append(ExpectedVersion::Any, &events).await {
            Ok(Append::Appended(places)) => self.committed(&ids, places.into_iter().max().unwrap_or(0)),
            Ok(other) => return Err(CouldNot::new(format!("new events were answered with {other:?}"))),
            Err(error) if error.is_ambiguous() => {
                self.desk.witness.unknown(&ids);
                if !self.is_excused(true) {
                    return Err(error.into());
                }
            }
            Err(error) if self.is_excused(error.is_retryable()) || is_passing(error.sqlstate()) => {
                self.desk.witness.rolled_back(&ids, true);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// A transaction of a shape that is drawn.
    async fn shaped(&mut self, mut object: Object) -> Result<()> {
        let end = self.end();
        let mut events = Vec::new();
        let mut highest = 0;
        let repeatable = self.rng.u32(..6) == 0;
        let isolation =
            if repeatable { IsolationLevel::RepeatableRead } else { IsolationLevel::ReadCommitted };
        let gid = format!("{}_{}_{}", self.desk.schema, self.number, self.n);
        let came = async {
            let tx = object.build_transaction().isolation_level(isolation).start().await?;
            self.fill(&tx, end, repeatable, &mut events, &mut highest).await?;
            match end {
                End::Commit => tx.commit().await.map(|()| Came::Committed).map_err(Into::into),
                End::RollBack => tx.rollback().await.map(|()| Came::RolledBack).map_err(Into::into),
                End::CommitPrepared | End::RollBackPrepared => {
                    tx.batch_execute(&statements::prepare_transaction(&gid)).await?;
                    // The session is out of it; the transaction goes on without one.
                    tx.rollback().await?;
                    self.hold(20).await;
                    Ok::<_, CouldNot>(Came::Prepared)
                }
            }
        };
        let came = came.await;
        let came = match came {
            Ok(Came::Prepared) => self.finish(&object, &gid, end == End::CommitPrepared).await,
            came => came,
        };
        match came {
            Ok(Came::Committed) => self.committed(&events, highest),
            Ok(Came::RolledBack | Came::Prepared) => self.desk.witness.rolled_back(&events, true),
            Err(error) if is_passing(error.sqlstate()) => self.desk.witness.rolled_back(&events, true),
            Err(_) if self.is_excused(true) => {
                self.desk.witness.unknown(&events);
                // All of them may be here at once, and forgetting takes another connection.
                drop(object);
                self.forget(&gid).await;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn end(&mut self) -> End {
        let prepares = self.desk.allows_prepared && self.rng.u32(..8) == 0;
        match (self.rng.u32(..10) == 0, prepares) {
            (false, false) => End::Commit,
            (true, false) => End::RollBack,
            (false, true) => End::CommitPrepared,
            (true, true) => End::RollBackPrepared,
        }
    }

    /// Everything between begin and end.
    async fn fill(
        &mut self,
        tx: &Transaction<'_>,
        end: End,
        repeatable: bool,
        events: &mut Vec<Uuid>,
        highest: &mut i64,
    ) -> Result<()> {
        if matches!(end, End::CommitPrepared | End::RollBackPrepared) {
            // A transaction that has notified cannot be prepared.
            tx.batch_execute("SET LOCAL inorder.ring = off").await?;
        }
        if repeatable {
            // The snapshot is taken long before the first id.
            tx.batch_execute("SELECT 1").await?;
            self.hold(5).await;
        }
        let business_first = self.rng.bool();
        if business_first {
            self.business(tx).await?;
            self.hold(10).await;
        }
        let count = self.rng.usize(1..=3);
        let drafts = self.drafts(count);
        if self.rng.u32(..6) == 0 {
            // What is given up takes ids with it.
            tx.batch_execute("SAVEPOINT attempt").await?;
            let given_up = self.drafts(1);
            self.append(tx, &given_up).await?;
            self.hold(3).await;
            match self.rng.u32(..3) {
                0 => {
                    tx.batch_execute("RELEASE SAVEPOINT attempt").await?;
                    events.extend(event_ids(&given_up));
                }
                _ => {
                    tx.batch_execute("ROLLBACK TO SAVEPOINT attempt").await?;
                    self.desk.witness.rolled_back(&event_ids(&given_up), false);
                }
            }
        }
        events.extend(event_ids(&drafts));
        let (first, rest) = drafts.split_at(self.rng.usize(..=drafts.len()));
        *highest = self.append(tx, first).await?;
        self.hold(20).await;
        *highest = self.append(tx, rest).await?.max(*highest);
        if !business_first {
            self.business(tx).await?;
        }
        Ok(())
    }

    async fn business(&self, tx: &Transaction<'_>) -> Result<()> {
        let statement = tx.prepare_cached(&self.desk.sql.business).await?;
        tx.execute(&statement, &[/* writer */ &self.number, /* n */ &self.n]).await?;
        Ok(())
    }

    /// Appends by one of the ways. Answers the highest id where the way tells, or 0.
    async fn append(&mut self, tx: &Transaction<'_>, drafts: &[Draft]) -> Result<i64> {
        if drafts.is_empty() {
            return Ok(0);
        }
        let raw = drafts.iter().all(|draft| draft.stream.is_none());
        match self.rng.u32(..4) {
            0 if raw => self.insert(tx, drafts).await,
            1 if raw => self.copy(tx, drafts).await,
            2 => self.call(tx, drafts).await,
            _ => {
                let events: Vec<NewEvent> = drafts.iter().map(Draft::event).collect();
                match self.desk.log.append_in(tx, ExpectedVersion::Any, &events).await? {
                    Append::Appended(ids) => Ok(ids.into_iter().max().unwrap_or(0)),
                    other => Err(CouldNot::new(format!("new events were answered with {other:?}"))),
                }
            }
        }
    }

    async fn insert(&self, tx: &Transaction<'_>, drafts: &[Draft]) -> Result<i64> {
        let types: Vec<&str> = drafts.iter().map(|d| d.event_type).collect();
        let payloads: Vec<&str> = drafts.iter().map(|d| d.payload.as_str()).collect();
        let statement = tx.prepare_cached(&self.desk.sql.insert).await?;
        let rows = tx
            .query(
                &statement,
                &[
                    /* event_ids */ &event_ids(drafts),
                    /* event_types */ &types,
                    /* payloads */ &payloads,
                ],
            )
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).max().unwrap_or(0))
    }

    async fn copy(&self, tx: &Transaction<'_>, drafts: &[Draft]) -> Result<i64> {
        let sink = tx.copy_in::<_, Cursor<Vec<u8>>>(&self.desk.sql.copy).await?;
        tokio::pin!(sink);
        for draft in drafts {
            let line = format!("{}\t{}\t{}\n", draft.event_id, draft.event_type, draft.payload);
            sink.send(Cursor::new(line.into_bytes())).await?;
        }
        sink.finish().await?;
        Ok(0)
    }

    async fn call(&self, tx: &Transaction<'_>, drafts: &[Draft]) -> Result<i64> {
        let statement = tx.prepare_cached(&self.desk.sql.append).await?;
        let mut highest = 0;
        for draft in drafts {
            let stream_type = draft.stream.map(|_| "account");
            let stream_id = draft.stream.map(|n| n.to_string());
            let row = tx
                .query_one(
                    &statement,
                    &[
                        /* event_type */ &draft.event_type,
                        /* payload */ &draft.payload,
                        /* event_id */ &draft.event_id,
                        /* stream_type */ &stream_type,
                        /* stream_id */ &stream_id,
                    ],
                )
                .await?;
            match row.get("outcome") {
                "appended" => highest = highest.max(row.get("id")),
                other => return Err(CouldNot::new(format!("a new event was answered with {other:?}"))),
            }
        }
        Ok(highest)
    }

    /// The second half of a prepared transaction.
    async fn finish(&self, session: &Object, gid: &str, commit: bool) -> Result<Came> {
        let (statement, came) = match commit {
            true => (statements::commit_prepared(gid), Came::Committed),
            false => (statements::rollback_prepared(gid), Came::RolledBack),
        };
        session.batch_execute(&statement).await?;
        Ok(came)
    }

    /// A crash may have left a transaction prepared: nothing behind it would ever be delivered.
    async fn forget(&self, gid: &str) {
        for _ in 0..100 {
            let forgetting = async {
                let session = self.desk.log.get().await?;
                for row in session.query(PREPARED, &[&gid]).await? {
                    let gid: &str = row.get("gid");
                    session.batch_execute(&statements::rollback_prepared(gid)).await?;
                }
                Ok::<_, CouldNot>(())
            };
            if forgetting.await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn committed(&self, events: &[Uuid], highest: i64) {
        self.desk.witness.committed(events, highest, self.desk.manner != Manner::Promised);
    }

    /// A lost connection is to be expected while the server is crashed on purpose.
    fn is_excused(&self, lost: bool) -> bool {
        lost && self.desk.manner != Manner::Kept
    }

    fn drafts(&mut self, count: usize) -> Vec<Draft> {
        (0..count)
            .map(|_| {
                let event_type = match self.rng.u32(..100) {
                    0..=2 => SLOW,
                    3..=12 => RARE,
                    _ => PLAIN,
                };
                let event_id = uuid::Builder::from_random_bytes(self.rng.u128(..).to_le_bytes()).into_uuid();
                let stream = (self.rng.u32(..4) == 0).then(|| self.rng.u32(..64));
                let payload = format!(r#"{{"writer": {}, "n": {}}}"#, self.number, self.n);
                Draft { event_id, event_type, stream, payload }
            })
            .collect()
    }

    /// Holds the transaction open for up to `ms` milliseconds; often not at all.
    async fn hold(&mut self, ms: u64) {
        let pause = if self.rng.u32(..4) == 0 { 0 } else { self.rng.u64(..=ms * 1_000) };
        tokio::time::sleep(Duration::from_micros(pause)).await;
    }
}

impl Draft {
    fn event(&self) -> NewEvent {
        let event = NewEvent::from_json(self.event_type, self.payload.as_str()).event_id(self.event_id);
        match self.stream {
            Some(stream) => event.in_stream("account", stream),
            None => event,
        }
    }
}

fn event_ids(drafts: &[Draft]) -> Vec<Uuid> {
    drafts.iter().map(|draft| draft.event_id).collect()
}

/// Other transactions were in the way: the transaction is rolled back, and that is all.
fn is_passing(sqlstate: Option<&str>) -> bool {
    matches!(sqlstate, Some("40001" | "40P01"))
}
