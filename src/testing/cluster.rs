//! One server: its life from `initdb` to the deletion of its folder. Blocking; [`super::TempPostgres`] is the face.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Error;
use super::settings::Settings;
use super::site::Site;
use super::watchdog::Watchdog;

/// Below the range from which Linux, macOS and the BSDs take the ports of outgoing connections: those neither occupy the
/// port while the server is down, nor does a client that keeps trying connect to itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// How many ports are tried.
const PORT_TRIES: u32 = 20;

/// Crash recovery on a loaded machine is the slowest start.
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How a server is stopped.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stop {
    /// Ends all sessions, writes a checkpoint.
    Fast,
    /// At once, without a checkpoint: the next start recovers as after a crash.
    Immediate,
}

impl Stop {
    fn signal(self) -> &'static str {
        match self {
            Stop::Fast => "INT",
            Stop::Immediate => "QUIT",
        }
    }
}

#[derive(Debug)]
pub(super) struct Cluster {
    // Dropped in this order: `Drop` stops the server, then the folder goes, then the watchdog, who finds nothing to do.
    site: Site,
    port: u16,
    running: Mutex<Running>,
}

#[derive(Debug)]
struct Running {
    server: Option<Child>,
    watchdog: Watchdog,
}

impl Cluster {
    /// A new cluster, started.
    pub(super) fn create(settings: &Settings) -> Result<Cluster, Error> {
        Cluster::create_on(free_port, settings)
    }

    fn create_on(port: impl FnMut() -> Result<u16, Error>, settings: &Settings) -> Result<Cluster, Error> {
        let lines = settings.lines()?;
        Cluster::filled_by(port, |site| {
            let mut initdb = site.command("initdb");
            initdb.args([
                "--no-sync",
                "--auth=trust",
                "--username=postgres",
                "--encoding=UTF8",
                "--locale=C",
            ]);
            site.run(initdb.arg("-D").arg(site.data()))?;
            let conf = site.data().join("postgresql.conf");
            OpenOptions::new()
                .append(true)
                .open(&conf)
                .and_then(|mut file| file.write_all(lines.as_bytes()))
                .map_err(|e| Error::io(format!("could not write {}", conf.display()), e))
        })
    }

    /// A hot standby that streams from this server, started.
    pub(super) fn standby(&self) -> Result<Cluster, Error> {
        let from = format!("host=127.0.0.1 port={} user=postgres", self.port);
        Cluster::filled_by(free_port, |site| {
            let mut copy = site.command("pg_basebackup");
            copy.args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]);
            site.run(copy.arg("-d").arg(from).arg("-D").arg(site.data()))
        })
    }

    fn filled_by(
        port: impl FnMut() -> Result<u16, Error>,
        fill: impl FnOnce(&Site) -> Result<(), Error>,
    ) -> Result<Cluster, Error> {
        let site = Site::new()?;
        let watchdog = Watchdog::over(site.folder())?;
        let running = Mutex::new(Running { server: None, watchdog });
        let mut cluster = Cluster { site, port: 0, running };
        fill(&cluster.site)?;
        cluster.start_on_one_of(port)?;
        Ok(cluster)
    }

    /// Somebody may take a port between our look and the server's.
    fn start_on_one_of(&mut self, mut port: impl FnMut() -> Result<u16, Error>) -> Result<(), Error> {
        let mut tries = 1;
        loop {
            self.port = port()?;
            match self.start() {
                Err(e) if e.is_port_taken() && tries < PORT_TRIES => tries += 1,
                done => return done,
            }
        }
    }

    /// Starts the server unless it runs; returns when it accepts connections.
    pub(super) fn start(&self) -> Result<(), Error> {
        let mut running = self.running();
        if running.server.is_some() {
            return Ok(());
        }
        let logged = self.site.log_length();
        let mut postgres = self.site.command("postgres");
        let mut server = postgres
            .arg("-D")
            .arg(self.site.data())
            .args(["-c", "listen_addresses=127.0.0.1", "-c", &format!("port={}", self.port)])
            .stdout(self.site.open_log()?)
            .stderr(self.site.open_log()?)
            .spawn()
            .map_err(|e| self.site.not_run(&postgres, e))?;
        let outcome =
            running.watchdog.watch(server.id()).and_then(|()| self.wait_until_ready(&mut server, logged));
        running.server = Some(server);
        if outcome.is_err() {
            // The first error is the one that tells what happened.
            let _ = self.end(&mut running, Stop::Immediate);
        }
        outcome
    }

    fn wait_until_ready(&self, server: &mut Child, logged: u64) -> Result<(), Error> {
        let deadline = Instant::now() + START_LIMIT;
        while !self.is_ready(server.id()) {
            let exited = server.try_wait().map_err(|e| Error::io("could not look after the server", e))?;
            if let Some(status) = exited {
                return Err(self.did_not_start(&format!("ended with {status}"), logged));
            }
            if Instant::now() > deadline {
                return Err(self.did_not_start(&format!("was not ready after {START_LIMIT:?}"), logged));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn did_not_start(&self, what: &str, logged: u64) -> Error {
        let log = self.site.log_since(logged);
        let message = format!("the server on port {} {what}; its log says\n{log}", self.port);
        if log.contains("could not bind") || log.contains("could not create any TCP/IP sockets") {
            Error::port_taken(message)
        } else {
            Error::failed(message)
        }
    }

    /// The server keeps its pid on the first line of its lock file, and its state on the eighth.
    fn is_ready(&self, pid: u32) -> bool {
        let Ok(lock) = fs::read_to_string(self.site.data().join("postmaster.pid")) else { return false };
        let mut lines = lock.lines();
        lines.next() == Some(pid.to_string().as_str()) && lines.nth(6).is_some_and(|s| s.trim() == "ready")
    }

    /// Stops the server if it runs; returns when it has ended.
    pub(super) fn stop(&self, how: Stop) -> Result<(), Error> {
        self.end(&mut self.running(), how)
    }

    fn end(&self, running: &mut Running, how: Stop) -> Result<(), Error> {
        let Some(mut server) = running.server.take() else { return Ok(()) };
        // Until it is reaped, the pid is its own, even if it ended by itself.
        let signalled = self.signal(&server, how);
        let ended =
            wait_until_ended(&mut server, if signalled.is_ok() { STOP_LIMIT } else { Duration::ZERO });
        if ended.is_err() {
            // Its children notice and end by themselves.
            let _ = server.kill();
            let _ = server.wait();
        }
        running.watchdog.forget()?;
        // A server that had ended before the signal cannot be signalled: that is no error.
        if ended.is_ok() { Ok(()) } else { signalled.and(ended) }
    }

    /// There is no other way to send a signal without unsafe code than to run a program, and this one is there.
    fn signal(&self, server: &Child, how: Stop) -> Result<(), Error> {
        let pid = server.id().to_string();
        self.site.run(self.site.command("pg_ctl").args(["kill", how.signal(), &pid]))
    }

    pub(super) fn promote(&self) -> Result<(), Error> {
        self.site.run(self.site.command("pg_ctl").args(["promote", "--wait", "-D"]).arg(self.site.data()))
    }

    pub(super) fn site(&self) -> &Site {
        &self.site
    }

    pub(super) fn data(&self) -> PathBuf {
        self.site.data()
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.running().server.as_ref().map(Child::id)
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        // What is inside stays true whoever panicked.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Nobody is left to be told; the watchdog tries again.
        let _ = self.stop(Stop::Immediate);
    }
}

fn wait_until_ended(server: &mut Child, limit: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + limit;
    loop {
        let exited = server.try_wait().map_err(|e| Error::io("could not look after the server", e))?;
        if exited.is_some() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::failed(format!("the server had not ended after {limit:?} and was killed")));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// A port that nobody listens on at this moment; somebody else may be faster.
fn free_port() -> Result<u16, Error> {
    let mut last = None;
    for _ in 0..200 {
        let port = fastrand::u16(PORTS);
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(e) => last = Some(e),
        }
    }
    let message = format!("found no free port on 127.0.0.1 in {PORTS:?}");
    Err(last.map_or_else(|| Error::failed(message.clone()), |e| Error::io(message.clone(), e)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_in_between_is_passed_over() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut ports = vec![free_port().unwrap(), taken.local_addr().unwrap().port()];
        let cluster = Cluster::create_on(|| Ok(ports.pop().expect("two are enough")), &Settings::default());
        assert_ne!(cluster.unwrap().port(), taken.local_addr().unwrap().port());
        assert!(ports.is_empty(), "both were tried");
    }
}
