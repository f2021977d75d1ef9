//! Every gate of a pass × every fault, for both kinds of consumers. Whatever happens, wherever: every event in order (I-1, I-2),
//! its effects once (I-4), nothing passed over (I-6), by one process at a time (I-3).
//!
//! A pass of a dispatcher, the victim, is held at the gate; the fault strikes; the gate opens. Another dispatcher, which no
//! fault strikes, must be able to go on while the first is still struck; then the first is healed, and both go on.

use std::fmt::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use inorder::testing::TempPostgres;
use inorder::{Registered, Running};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::support::database::{Database, fill_template};
use crate::support::{
    Act, Actor, Gate, LIMIT, Proxy, Stage, at_once, connect, dispatcher, eventually, within,
};

/// Where the pass is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// The row is locked, the answer is not there yet.
    Lock,
    /// In the handler, before it has done anything.
    BeforeStatement,
    /// In a statement of the handler.
    InStatement,
    /// In the handler, after it has done everything.
    AfterStatement,
    /// Where deferred constraints are checked.
    Constraints,
    /// Where the position is written.
    Settle,
    /// It is committed, and the server has not said so.
    Commit,
    /// Where the failure of an event is written.
    Failure,
    /// Where a failure whose transaction is lost is written in another.
    Charge,
}

const GATES: [At; 9] = [
    At::Lock,
    At::BeforeStatement,
    At::InStatement,
    At::AfterStatement,
    At::Constraints,
    At::Settle,
    At::Commit,
    At::Failure,
    At::Charge,
];

/// What happens to it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The network resets all its connections.
    Cut,
    /// Nothing arrives any more, in either direction.
    BlackHole,
    /// Statements arrive, answers do not.
    SwallowedAnswers,
    /// The server ends its session.
    Terminated,
    /// The server crashes and comes back.
    Crash,
    /// Nothing, for longer than anybody waits.
    Delay,
    /// The future of the pass is dropped.
    Dropped,
    /// The dispatcher is stopped, without patience.
    Stopped,
}

/// The event at which it happens, and how many there are before and after the fault.
const EVENT: i64 = 5;
const BEFORE: usize = 8;
const AFTER: usize = 2;

/// Everybody's patience: shorter than the fault lasts.
const PATIENCE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_cut_connection_anywhere_in_a_pass() {
    strike(server().await, Fault::Cut).await;
}

#[tokio::test]
async fn a_black_hole_anywhere_in_a_pass() {
    strike(server().await, Fault::BlackHole).await;
}

#[tokio::test]
async fn swallowed_answers_anywhere_in_a_pass() {
    strike(server().await, Fault::SwallowedAnswers).await;
}

#[tokio::test]
async fn a_terminated_session_anywhere_in_a_pass() {
    strike(server().await, Fault::Terminated).await;
}

#[tokio::test]
async fn a_server_crash_anywhere_in_a_pass() {
    strike(&start_server().await, Fault::Crash).await;
}

#[tokio::test]
async fn a_long_delay_anywhere_in_a_pass() {
    strike(server().await, Fault::Delay).await;
}

#[tokio::test]
async fn a_pass_dropped_anywhere() {
    strike(server().await, Fault::Dropped).await;
}

#[tokio::test]
async fn a_dispatcher_stopped_anywhere_in_a_pass() {
    strike(server().await, Fault::Stopped).await;
}

async fn strike(server: &TempPostgres, fault: Fault) {
    let cells = GATES.into_iter().flat_map(|at| [(at, false), (at, true)]);
    let reaching = cells.map(|(at, batch)| Cell::reach(server, at, fault, batch));
    let mut cells: Vec<Cell> = futures_util::stream::iter(reaching).buffered(6).collect().await;
    if fault == Fault::Crash {
        server.crash().await.unwrap();
        server.start_again().await.unwrap();
    }
    join_all(cells.iter_mut().map(|cell| cell.strike(fault))).await;
    let outcomes: Vec<String> = join_all(cells.into_iter().map(Cell::recover)).await;
    let wrong: Vec<_> = outcomes.into_iter().filter(|outcome| !outcome.is_empty()).collect();
    assert!(wrong.is_empty(), "{fault:?}:\n{}", wrong.join("\n"));
}

/// A server on which a commit can be held: it waits for a standby that does not exist, where a transaction asks for that.
async fn start_server() -> TempPostgres {
    let builder = TempPostgres::builder().max_connections(800).setting("synchronous_standby_names", "nobody");
    let server = builder.start().await.unwrap_or_else(|e| panic!("{e:?}"));
    fill_template(&server.create_database("template").await.unwrap()).await;
    server
}

async fn server() -> &'static TempPostgres {
    static SERVER: OnceCell<TempPostgres> = OnceCell::const_new();
    SERVER.get_or_init(start_server).await
}

/// The process that is struck.
enum Victim {
    Running(Running),
    /// Passes run by hand.
    Passes(JoinHandle<()>),
}

/// One gate, one fault, a database of its own.
struct Cell {
    name: String,
    stage: Stage,
    proxy: Proxy,
    /// Holds the lock that is the gate, where it is in the server.
    keeper: Client,
    keeper_pid: i32,
    /// The gate, where it is in the handler.
    gate: Gate,
    victim: Victim,
    other: Option<Registered>,
}

impl Cell {
    /// Runs the victim up to the gate.
    async fn reach(server: &TempPostgres, at: At, fault: Fault, batch: bool) -> Cell {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("cell_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let database = Database::of(server.create_database_from(&name, "template").await.unwrap());
        let stage = Stage::on(database, 0).await;
        let proxy = Proxy::in_front_of(stage.database.url()).await;
        let gate = Gate::closed();

        let consumer = |actor: Actor| {
            let consumer = if batch { actor.batch() } else { actor.transactional() };
            let consumer = consumer.max_attempts(10_000).max_faults(10_000);
            consumer.backoff(at_once()).handler_timeout(PATIENCE / 2)
        };
        let log = Stage::log_through(proxy.url(), PATIENCE).await;
        let victim = dispatcher(&log, [consumer(actor(at, &gate))]).stop_timeout(Duration::ZERO);
        let victim = victim.build().unwrap().register().await.unwrap();
        let other = stage.register([consumer(Actor::new("c"))]).await;

        let keeper = stage.database.client().await;
        let keeper_pid = keeper.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        stage.sql(&hold(at)).await;
        keeper.batch_execute("SELECT pg_advisory_lock(1)").await.unwrap();
        if at == At::Lock {
            let lock = "SELECT pg_advisory_lock('inorder.consumers'::regclass::oid::int, lock_key) FROM inorder.consumers";
            keeper.batch_execute(lock).await.unwrap();
        }
        stage.append(BEFORE).await;
        // What is there already survives a crash.
        stage.sql("CHECKPOINT").await;

        let victim = match fault {
            Fault::Dropped => Victim::Passes(tokio::spawn(async move {
                loop {
                    drop(victim.run_once().await);
                }
            })),
            _ => Victim::Running(victim.start()),
        };
        let cell = Cell {
            name: format!("{at:?} ({})", if batch { "batch" } else { "transactional" }),
            stage,
            proxy,
            keeper,
            keeper_pid,
            gate,
            victim,
            other: Some(other),
        };
        match at {
            At::BeforeStatement | At::AfterStatement => cell.gate.reached().await,
            _ => eventually(LIMIT, &format!("{at:?} is reached"), async || cell.waiting().await > 0).await,
        }
        cell
    }

    /// How many sessions wait at a gate in the server.
    async fn waiting(&self) -> i64 {
        let waiting = "SELECT count(*) FROM pg_stat_activity \
            WHERE datname = current_database() AND (wait_event_type, wait_event) IN (('Lock', 'advisory'), ('IPC', 'SyncRep'))";
        self.stage.count(waiting).await
    }

    async fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Cut => self.proxy.cut(),
            Fault::BlackHole => self.proxy.black_hole(),
            Fault::SwallowedAnswers => self.proxy.swallow_answers(),
            Fault::Terminated => {
                let holders = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 \
                    AND classid = 'inorder.consumers'::regclass AND pid <> $1";
                self.stage.client.query(holders, &[&self.keeper_pid]).await.unwrap();
            }
            Fault::Crash => {
                self.stage.client = connect(self.stage.database.url()).await;
                self.keeper = connect(self.stage.database.url()).await;
            }
            // Not a wait for anything: this is the fault.
            Fault::Delay => tokio::time::sleep(PATIENCE + Duration::from_millis(500)).await,
            Fault::Dropped => {
                let Victim::Passes(task) = &self.victim else { unreachable!() };
                task.abort();
            }
            Fault::Stopped => {
                let Victim::Running(running) = &self.victim else { unreachable!() };
                within("the victim stops", running.stop()).await.unwrap();
            }
        }
        self.open().await;
    }

    async fn open(&self) {
        self.gate.open();
        // Whoever waits for a pass for too long ends its session, and takes the keeper of its lock for one.
        let _ = self.keeper.batch_execute("SELECT pg_advisory_unlock_all()").await;
        // A commit that waits for a standby and is cancelled is a commit.
        let commits = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'";
        self.stage.client.batch_execute(commits).await.unwrap();
    }

    /// The other goes on, then the victim is healed and goes on, too. Answers what is wrong.
    async fn recover(mut self) -> String {
        let mut wrong = String::new();
        let other = self.other.take().unwrap().start();
        let all = |count: usize| (1..=i64::try_from(count).unwrap()).collect::<Vec<_>>();
        self.delivered(BEFORE, &mut wrong).await;
        self.proxy.heal();
        self.stage.append(AFTER).await;
        self.delivered(BEFORE + AFTER, &mut wrong).await;
        if let Victim::Running(running) = &self.victim {
            running.stop().await.unwrap();
        }
        other.stop().await.unwrap();

        let effects = self.stage.effects("c").await;
        if effects != all(BEFORE + AFTER) {
            write!(wrong, "effects {effects:?} ").unwrap();
        }
        let standing = self.stage.standing("c").await;
        if standing.position != 10 || standing.status != "idle" || standing.attempts + standing.faults != 0 {
            write!(wrong, "{standing:?} ").unwrap();
        }
        let letters = self.stage.dead_letters().await;
        if !letters.is_empty() {
            write!(wrong, "{letters:?} ").unwrap();
        }
        let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL";
        eventually(LIMIT, &format!("{}: no transaction is left open", self.name), async || {
            self.stage.count(open).await == 0
        })
        .await;
        if wrong.is_empty() { wrong } else { format!("{}: {wrong}", self.name) }
    }

    async fn delivered(&self, events: usize, wrong: &mut String) {
        let deadline = tokio::time::Instant::now() + LIMIT;
        let position = i64::try_from(events).unwrap();
        while self.stage.standing("c").await.position < position {
            if tokio::time::Instant::now() > deadline {
                write!(wrong, "{events} events are not delivered within {LIMIT:?}: ").unwrap();
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The victim's handler.
fn actor(at: At, gate: &Gate) -> Actor {
    let act = match at {
        At::BeforeStatement => Act::MeetBefore(gate.clone()),
        At::AfterStatement => Act::Meet(gate.clone()),
        At::Commit => until_open(gate, Act::Sql("SET LOCAL synchronous_commit = on")),
        At::Failure => until_open(gate, Act::Fail("no luck")),
        At::Charge => until_open(gate, Act::Sql("SELECT pg_terminate_backend(pg_backend_pid())")),
        _ => return Actor::new("c"),
    };
    Actor::new("c").at(EVENT, act)
}

fn until_open(gate: &Gate, act: Act) -> Act {
    let gate = gate.clone();
    Act::custom(move |event, tx| {
        let (gate, act) = (gate.clone(), act.clone());
        Box::pin(async move { if gate.is_open() { Ok(()) } else { act.play(event, tx).await } })
    })
}

/// What holds it in the server: a lock that the test has.
fn hold(at: At) -> String {
    let gate = "CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        PERFORM pg_advisory_lock_shared(1); PERFORM pg_advisory_unlock_shared(1); RETURN NEW; END $$;";
    let trigger = match at {
        At::InStatement => {
            format!("TRIGGER gate BEFORE INSERT ON effects FOR EACH ROW WHEN (NEW.event = {EVENT})")
        }
        At::Constraints => format!(
            "CONSTRAINT TRIGGER gate AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.event = {EVENT})"
        ),
        At::Settle => {
            "TRIGGER gate BEFORE UPDATE ON inorder.consumers FOR EACH ROW WHEN (NEW.position > OLD.position)"
                .into()
        }
        At::Failure | At::Charge => {
            "TRIGGER gate BEFORE UPDATE ON inorder.consumers FOR EACH ROW WHEN (NEW.failed > OLD.failed)"
                .into()
        }
        At::Lock | At::BeforeStatement | At::AfterStatement | At::Commit => return String::new(),
    };
    format!("{gate} CREATE {trigger} EXECUTE FUNCTION gate()")
}
