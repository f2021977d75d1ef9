//! The processes that consume: started, listened to, killed, frozen, and started again.

use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::MutantName;
use super::lanes::{is_lingering, process_name};
use super::signals::Signals;
use super::site::Site;
use super::trouble::{CouldNot, Result};
use super::witness::{Blow, Said, Witness, Worker};

/// How long a process may take to start, and to stop.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a handler that lingers is waited for, to strike inside it.
const AIM: Duration = Duration::from_secs(2);

/// All processes.
pub(crate) struct Crew {
    slots: Vec<Arc<Slot>>,
    signals: Arc<Signals>,
    witness: Arc<Witness>,
    watchers: Mutex<JoinSet<()>>,
    /// Where a handler that lingers was entered last.
    lingering: Arc<watch::Sender<usize>>,
    stopping: watch::Sender<bool>,
    trouble: Arc<Mutex<Option<String>>>,
}

/// Where one process runs after the other, under one name.
struct Slot {
    state: watch::Sender<State>,
    /// Kills the process of the moment.
    kill: Notify,
    kills_inside: Mutex<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting,
    Up { incarnation: u32, pid: u32 },
    Frozen { incarnation: u32, pid: u32 },
    Stopped,
}

/// How the processes are started.
struct Recipe {
    url: String,
    schema: String,
    mutant: Option<MutantName>,
    /// Whom their effects call, where they have such.
    receiver: Option<String>,
}

impl Crew {
    /// Starts the processes and waits until all of them consume.
    pub(crate) async fn start(
        site: &Site,
        processes: usize,
        mutant: Option<MutantName>,
        receiver: Option<&str>,
        witness: &Arc<Witness>,
        signals: &Arc<Signals>,
    ) -> Result<Self> {
        let crew = Self {
            slots: (0..processes)
                .map(|_| {
                    Arc::new(Slot {
                        state: watch::Sender::new(State::Starting),
                        kill: Notify::new(),
                        kills_inside: Mutex::new(0),
                    })
                })
                .collect(),
            signals: Arc::clone(signals),
            witness: Arc::clone(witness),
            watchers: Mutex::default(),
            lingering: Arc::new(watch::Sender::new(0)),
            stopping: watch::Sender::new(false),
            trouble: Arc::default(),
        };
        let recipe = Arc::new(Recipe {
            url: site.url().into(),
            schema: site.schema().into(),
            mutant,
            receiver: receiver.map(Into::into),
        });
        for (number, slot) in crew.slots.iter().enumerate() {
            let keeper = Keeper {
                number,
                slot: Arc::clone(slot),
                recipe: Arc::clone(&recipe),
                witness: Arc::clone(witness),
                lingering: Arc::clone(&crew.lingering),
                stopping: crew.stopping.subscribe(),
                trouble: Arc::clone(&crew.trouble),
            };
            lock(&crew.watchers).spawn(keeper.keep());
        }
        crew.all_up().await?;
        Ok(crew)
    }

    pub(crate) fn processes(&self) -> usize {
        self.slots.len()
    }

    /// Waits until every process is up.
    pub(crate) async fn all_up(&self) -> Result<()> {
        for (number, slot) in self.slots.iter().enumerate() {
            let mut state = slot.state.subscribe();
            let up = state.wait_for(|state| matches!(state, State::Up { .. } | State::Stopped));
            let up = tokio::time::timeout(PATIENCE, up).await;
            self.check()?;
            if up.is_err() {
                return Err(CouldNot::new(format!(
                    "process {} was not up after {PATIENCE:?}; RUST_LOG=inorder=debug shows what it does",
                    process_name(number)
                )));
            }
        }
        Ok(())
    }

    /// # Errors
    /// A process ended that nobody had killed.
    pub(crate) fn check(&self) -> Result<()> {
        match &*lock(&self.trouble) {
            Some(trouble) => Err(CouldNot::new(trouble.clone())),
            None => Ok(()),
        }
    }

    /// A process that may be struck: it is up, and where there are several another one is, too, to take over. With
    /// `inside` one that has just entered a handler that lingers, if there is one within a while.
    pub(crate) async fn victim(&self, rng: &mut fastrand::Rng, inside: bool) -> Option<usize> {
        if inside {
            let mut entered = self.lingering.subscribe();
            let aiming = async {
                loop {
                    if entered.changed().await.is_err() {
                        return None;
                    }
                    let victim = *entered.borrow();
                    if self.may_strike().contains(&victim) {
                        return Some(victim);
                    }
                }
            };
            if let Ok(victim) = tokio::time::timeout(AIM, aiming).await {
                return victim;
            }
        }
        rng.choice(self.may_strike())
    }

    fn may_strike(&self) -> Vec<usize> {
        let up = |slot: &Slot| matches!(*slot.state.borrow(), State::Up { .. });
        let all: Vec<usize> = (0..self.slots.len()).filter(|number| up(&self.slots[*number])).collect();
        if all.len() < self.slots.len().min(2) { Vec::new() } else { all }
    }

    /// SIGKILL. False when it was not up any more.
    pub(crate) fn kill(&self, victim: usize) -> bool {
        let slot = &self.slots[victim];
        let mut struck = None;
        slot.state.send_if_modified(|state| {
            if let State::Up { incarnation, .. } = *state {
                struck = Some(Worker { slot: victim, incarnation });
                *state = State::Starting;
            }
            struck.is_some()
        });
        let Some(worker) = struck else { return false };
        self.witness.struck(worker, Blow::Killed);
        slot.kill.notify_one();
        true
    }

    /// SIGSTOP, and SIGCONT when `until` is over. False when it was not up any more.
    pub(crate) async fn freeze(&self, victim: usize, until: impl Future<Output = ()>) -> Result<bool> {
        let slot = &self.slots[victim];
        let mut struck = None;
        slot.state.send_if_modified(|state| {
            if let State::Up { incarnation, pid } = *state {
                struck = Some((Worker { slot: victim, incarnation }, pid));
                *state = State::Frozen { incarnation, pid };
            }
            struck.is_some()
        });
        let Some((worker, pid)) = struck else { return Ok(false) };
        let sent = self.signals.freeze(pid).await?;
        if sent {
            self.witness.struck(worker, Blow::Frozen);
            until.await;
            // The time first: what is left afterwards was inside.
            self.witness.resumed(worker);
            self.signals.resume(pid).await?;
        }
        slot.state.send_if_modified(|state| {
            let frozen = *state == State::Frozen { incarnation: worker.incarnation, pid };
            if frozen {
                *state = State::Up { incarnation: worker.incarnation, pid };
            }
            frozen
        });
        Ok(sent)
    }

    /// How many processes were inside a handler when they were killed.
    pub(crate) fn kills_inside(&self) -> usize {
        self.slots.iter().map(|slot| *lock(&slot.kills_inside)).sum()
    }

    /// Has all processes stop in good order.
    pub(crate) async fn stop(&self) -> Result<()> {
        self.stopping.send_replace(true);
        for (number, slot) in self.slots.iter().enumerate() {
            let mut state = slot.state.subscribe();
            let stopped = state.wait_for(|state| *state == State::Stopped);
            if tokio::time::timeout(PATIENCE, stopped).await.is_err() {
                return Err(CouldNot::new(format!(
                    "process {} had not stopped {PATIENCE:?} after it was asked to",
                    process_name(number)
                )));
            }
        }
        self.check()
    }
}

/// Keeps a slot occupied.
struct Keeper {
    number: usize,
    slot: Arc<Slot>,
    recipe: Arc<Recipe>,
    witness: Arc<Witness>,
    lingering: Arc<watch::Sender<usize>>,
    stopping: watch::Receiver<bool>,
    trouble: Arc<Mutex<Option<String>>>,
}

impl Keeper {
    async fn keep(self) {
        for incarnation in 1.. {
            if *self.stopping.borrow() {
                break;
            }
            let worker = Worker { slot: self.number, incarnation };
            if let Err(error) = self.run(worker).await {
                let name = process_name(self.number);
                lock(&self.trouble).get_or_insert(format!("process {name}: {error}"));
                break;
            }
        }
        self.slot.state.send_replace(State::Stopped);
    }

    /// One process, from its start to its end.
    async fn run(&self, worker: Worker) -> Result<()> {
        self.slot.state.send_replace(State::Starting);
        let mut child = self.spawn(worker)?;
        let (Some(stdin), Some(stdout), Some(pid)) = (child.stdin.take(), child.stdout.take(), child.id())
        else {
            return Err(CouldNot::new("it has no input and output"));
        };
        let (mut stdin, mut killed) = (Some(stdin), false);
        let mut out = BufReader::with_capacity(64 * 1024, stdout);
        let mut line = Vec::new();
        let mut stopping = self.stopping.clone();
        loop {
            tokio::select! {
                // A line that is read in part stays in `line`.
                read = out.read_until(b'\n', &mut line) => {
                    if read? == 0 {
                        break;
                    }
                    // What a killed process was about to say has no end.
                    if line.last() == Some(&b'\n') {
                        self.hear(worker, pid, std::str::from_utf8(&line)?.trim_end())?;
                        line.clear();
                    }
                }
                () = self.slot.kill.notified(), if !killed => {
                    killed = true;
                    child.start_kill()?;
                }
                _ = stopping.wait_for(|stopping| *stopping), if stdin.is_some() => stdin = None,
            }
        }
        let status = child.wait().await?;
        let inside = self.witness.gone(worker);
        match killed {
            true => *lock(&self.slot.kills_inside) += usize::from(inside),
            false if stdin.is_none() && status.success() => {}
            false => return Err(CouldNot::new(format!("it ended by itself, with {status}"))),
        }
        Ok(())
    }

    fn hear(&self, worker: Worker, pid: u32, line: &str) -> Result<()> {
        match self.witness.hear(worker, line) {
            Said::Ready => {
                self.slot.state.send_replace(State::Up { incarnation: worker.incarnation, pid });
            }
            Said::Entered { lane } if is_lingering(&lane) => {
                self.lingering.send_replace(self.number);
            }
            Said::Entered { .. } | Said::Left => {}
            Said::Nonsense => return Err(CouldNot::new(format!("it said {line:?}, which means nothing"))),
        }
        Ok(())
    }

    fn spawn(&self, worker: Worker) -> Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["verify-worker", "--schema", &self.recipe.schema])
            .args(["--process", &process_name(self.number)])
            .args(["--incarnation", &worker.incarnation.to_string()])
            // Not an argument: it may hold a password, and arguments are for all to see.
            .env("INORDER_DATABASE_URL", &self.recipe.url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Out of reach of a Ctrl-C in our terminal.
            .process_group(0)
            .kill_on_drop(true);
        if std::env::var_os("RUST_LOG").is_none() {
            // What happens to them makes them complain.
            command.env("RUST_LOG", "off");
        }
        if let Some(mutant) = self.recipe.mutant {
            command.args(["--mutant", mutant.name()]);
        }
        if let Some(receiver) = &self.recipe.receiver {
            command.args(["--receiver", receiver]);
        }
        command.spawn().map_err(|e| CouldNot::from(e).while_doing("starting it"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
