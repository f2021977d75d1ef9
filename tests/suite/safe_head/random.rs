//! Random interleavings of writers, under fixed seeds.

use fastrand::Rng;
use inorder::Registered;

use super::drain;
use crate::support::database::Database;
use crate::support::{Recording, Writer, versatile_database};

/// A session, and how far its transaction is.
struct Session {
    writer: Writer,
    in_transaction: bool,
    savepoints: u32,
}

impl Session {
    async fn on(db: &Database) -> Session {
        Session { writer: Writer::on(db.url()).await, in_transaction: false, savepoints: 0 }
    }

    async fn end(&mut self, how: &str) {
        self.writer.run(how).await;
        (self.in_transaction, self.savepoints) = (false, 0);
    }
}

/// Writers, prepared transactions, and two dispatchers that share one consumer.
struct Interleaving {
    rng: Rng,
    db: Database,
    seen: Recording,
    sessions: Vec<Session>,
    prepared: Vec<String>,
    dispatchers: Vec<Registered>,
}

impl Interleaving {
    async fn of(seed: u64) -> Interleaving {
        let db = versatile_database().await;
        let seen = Recording::on(db.url()).await;
        let mut sessions = Vec::new();
        for _ in 0..5 {
            sessions.push(Session::on(&db).await);
        }
        sessions[0].writer.run("CREATE TABLE business (n int)").await;
        let dispatchers = vec![seen.register().await, seen.register().await];
        Interleaving { rng: Rng::with_seed(seed), db, seen, sessions, prepared: Vec::new(), dispatchers }
    }

    async fn step(&mut self, n: usize) {
        match self.rng.u32(..20) {
            0..5 => {
                let one = self.rng.usize(..self.dispatchers.len());
                drain(&self.dispatchers[one]).await;
            }
            5 => {
                let one = self.rng.usize(..self.dispatchers.len());
                self.dispatchers[one] = self.seen.register().await;
            }
            6 | 7 if !self.prepared.is_empty() => {
                let gid = self.prepared.swap_remove(self.rng.usize(..self.prepared.len()));
                let end = self.rng.choice(["COMMIT", "COMMIT", "ROLLBACK"]).unwrap();
                self.db.client().await.batch_execute(&format!("{end} PREPARED '{gid}'")).await.unwrap();
            }
            _ => self.write(n).await,
        }
    }

    async fn write(&mut self, n: usize) {
        let rng = &mut self.rng;
        let session = rng.usize(..self.sessions.len());
        let session = &mut self.sessions[session];
        if !session.in_transaction {
            match rng.u32(..4) {
                0 => drop(session.writer.append().await),
                _ => {
                    let level = rng.choice(["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]).unwrap();
                    session.writer.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
                    session.in_transaction = true;
                }
            }
            return;
        }
        match rng.u32(..16) {
            0..5 => drop(session.writer.append().await),
            5 => drop(session.writer.append_many(rng.i32(2..5)).await),
            6 => session.writer.run("SELECT nextval('inorder.events_id_seq')").await,
            7 => session.writer.run("INSERT INTO business VALUES (1)").await,
            8 => {
                session.savepoints += 1;
                session.writer.run(&format!("SAVEPOINT s{}", session.savepoints)).await;
            }
            9 if session.savepoints > 0 => {
                session.writer.run(&format!("ROLLBACK TO s{}", session.savepoints)).await;
                session.savepoints -= 1;
            }
            10 if self.prepared.len() < 5 => {
                let gid = format!("{} {n}", self.db.url());
                session.end(&format!("PREPARE TRANSACTION '{gid}'")).await;
                self.prepared.push(gid);
            }
            11 | 12 => session.end("ROLLBACK").await,
            _ => session.end("COMMIT").await,
        }
    }

    async fn finish(mut self) -> Recording {
        for session in &mut self.sessions {
            if session.in_transaction {
                session.end(if self.rng.bool() { "COMMIT" } else { "ROLLBACK" }).await;
            }
        }
        for gid in &self.prepared {
            self.db.client().await.batch_execute(&format!("COMMIT PREPARED '{gid}'")).await.unwrap();
        }
        for dispatcher in &self.dispatchers {
            drain(dispatcher).await;
        }
        self.seen
    }
}

/// I-1, I-2: what was delivered is what was committed, in order, whatever was interleaved how.
#[tokio::test]
async fn every_interleaving_is_delivered_whole_and_in_order() {
    for seed in 1..=6 {
        let mut interleaving = Interleaving::of(seed).await;
        for n in 0..250 {
            interleaving.step(n).await;
        }
        let seen = interleaving.finish().await;
        seen.assert_complete().await;
        assert!(seen.ids().await.len() > 20, "seed {seed} commits next to nothing");
    }
}
