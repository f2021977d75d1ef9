//! A network that fails: a TCP proxy in front of the server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_postgres::config::Host;

/// How many pieces of up to 64 kB may be on the way in one direction of one connection.
const ON_THE_WAY: usize = 64;

/// A TCP proxy in front of a server. It runs on a thread of its own, and is gone with all its connections when dropped.
pub(crate) struct Proxy {
    url: String,
    network: watch::Sender<Network>,
    connections: watch::Receiver<usize>,
    refused: Arc<AtomicUsize>,
}

/// The state of the network.
#[derive(Clone, Copy, Default)]
struct Network {
    /// Nothing that the client sends arrives, nor does the end of a connection.
    deaf: bool,
    /// Nothing that the server answers arrives, nor does the end of a connection.
    mute: bool,
    refusing: bool,
    latency: Duration,
    /// Where new connections lead to.
    server: Option<SocketAddr>,
    /// How many times all connections were cut.
    cuts: u64,
    /// How many times those that were open were silenced.
    silences: u64,
    ended: bool,
}

impl Proxy {
    /// In front of the server of this URL (`postgres://…`), passing everything.
    pub(crate) async fn in_front_of(url: &str) -> Proxy {
        let server = address_of(url).await;
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let network = watch::Sender::new(Network::default());
        let (count, connections) = watch::channel(0);
        let refused = Arc::new(AtomicUsize::new(0));
        let (seen, refusals) = (network.subscribe(), Arc::clone(&refused));
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(accept(listener, server, seen, count, refusals));
        });
        Proxy { url: behind(url, port), network, connections, refused }
    }

    /// The URL to connect to.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// How many connections are open.
    pub(crate) fn connections(&self) -> usize {
        *self.connections.borrow()
    }

    /// How many new connections were refused.
    pub(crate) fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    /// Resets all connections, on both sides. New ones go through.
    pub(crate) fn cut(&self) {
        self.network.send_modify(|network| network.cuts += 1);
    }

    /// Resets all connections, and new ones at once, until [`heal`](Proxy::heal).
    pub(crate) fn refuse(&self) {
        self.network.send_modify(|network| {
            network.cuts += 1;
            network.refusing = true;
        });
    }

    /// Nothing arrives any more, in either direction, on existing connections and on new ones, which are accepted. Neither side
    /// sees an error. After [`heal`](Proxy::heal) everything arrives late, as when a cable is put back.
    pub(crate) fn black_hole(&self) {
        self.network.send_modify(|network| (network.deaf, network.mute) = (true, true));
    }

    /// Nothing arrives any more on the connections that are open now, for ever, in either direction and without an error. New ones
    /// go through.
    pub(crate) fn silence(&self) {
        self.network.send_modify(|network| network.silences += 1);
    }

    /// New connections lead to the server of this URL, those that are open to where they led.
    pub(crate) async fn lead_to(&self, url: &str) {
        let server = address_of(url).await;
        self.network.send_modify(|network| network.server = Some(server));
    }

    /// What the client sends arrives, but no answer does: so a commit goes through and nobody learns of it.
    pub(crate) fn swallow_answers(&self) {
        self.network.send_modify(|network| network.mute = true);
    }

    /// Everything takes this much longer, in each direction.
    pub(crate) fn delay(&self, latency: Duration) {
        self.network.send_modify(|network| network.latency = latency);
    }

    /// Everything passes again, without delay.
    pub(crate) fn heal(&self) {
        self.network.send_modify(|network| {
            let Network { server, cuts, silences, .. } = *network;
            *network = Network { server, cuts, silences, ..Network::default() };
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.network.send_modify(|network| {
            network.cuts += 1;
            network.ended = true;
        });
    }
}

async fn address_of(url: &str) -> SocketAddr {
    let config: tokio_postgres::Config = url.parse().unwrap();
    let [Host::Tcp(host)] = config.get_hosts() else { panic!("{url} names no single TCP host") };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    tokio::net::lookup_host((host.as_str(), port)).await.unwrap().next().expect("the host has an address")
}

/// The URL with another host and port.
fn behind(url: &str, port: u16) -> String {
    let (scheme, rest) = url.split_once("://").expect("the proxy needs a URL, not `key=value` pairs");
    let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let account = authority.rsplit_once('@').map_or(String::new(), |(account, _)| format!("{account}@"));
    format!("{scheme}://{account}127.0.0.1:{port}{rest}")
}

async fn accept(
    listener: std::net::TcpListener,
    server: SocketAddr,
    network: watch::Receiver<Network>,
    count: watch::Sender<usize>,
    refused: Arc<AtomicUsize>,
) {
    let listener = TcpListener::from_std(listener).unwrap();
    let ended = until(network.clone(), |network| network.ended);
    tokio::pin!(ended);
    loop {
        let client = tokio::select! {
            () = &mut ended => return,
            accepted = listener.accept() => accepted.unwrap().0,
        };
        let (network, count) = (network.clone(), count.clone());
        if network.borrow().refusing {
            refused.fetch_add(1, Ordering::Relaxed);
        }
        tokio::spawn(async move {
            count.send_modify(|open| *open += 1);
            serve(client, server, network).await;
            count.send_modify(|open| *open -= 1);
        });
    }
}

async fn serve(mut client: TcpStream, server: SocketAddr, network: watch::Receiver<Network>) {
    let now = *network.borrow();
    if now.refusing {
        return reset(&client);
    }
    let cut = until(network.clone(), |network| network.cuts != now.cuts);
    tokio::pin!(cut);
    let opened = tokio::select! {
        () = &mut cut => return reset(&client),
        opened = open(now.server.unwrap_or(server), network.clone()) => opened,
    };
    let Ok(mut server) = opened else { return reset(&client) };
    tokio::select! {
        () = cut => {}
        ended = relay(&mut client, &mut server, &network) => if ended.is_ok() { return },
    }
    reset(&client);
    reset(&server);
}

/// Through a black hole not even a connection is made.
async fn open(server: SocketAddr, network: watch::Receiver<Network>) -> io::Result<TcpStream> {
    until(network, |network| !network.deaf).await;
    TcpStream::connect(server).await
}

/// A socket that is dropped after this sends RST, not FIN.
fn reset(socket: &TcpStream) {
    // The other side may have been faster.
    let _ = socket.set_zero_linger();
}

async fn relay(
    client: &mut TcpStream,
    server: &mut TcpStream,
    network: &watch::Receiver<Network>,
) -> io::Result<()> {
    let silences = network.borrow().silences;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::try_join!(
        carry(from_client, to_server, network.clone(), |network| network.deaf || network.silences != silences),
        carry(from_server, to_client, network.clone(), |network| network.mute || network.silences != silences),
    )?;
    Ok(())
}

/// One direction: until the sender closes, which is passed on.
async fn carry(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    network: watch::Receiver<Network>,
    is_lost: impl Fn(&Network) -> bool,
) -> io::Result<()> {
    let (send, mut receive) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let seen = network.clone();
    let take = async move {
        let mut buffer = vec![0; 65_536];
        loop {
            let length = from.read(&mut buffer).await?;
            let due = Instant::now() + seen.borrow().latency;
            if send.send((due, buffer[..length].to_vec())).await.is_err() || length == 0 {
                return io::Result::Ok(());
            }
        }
    };
    let give = async move {
        while let Some((due, piece)) = receive.recv().await {
            tokio::time::sleep_until(due).await;
            until(network.clone(), |network| !is_lost(network)).await;
            if piece.is_empty() {
                return to.shutdown().await;
            }
            to.write_all(&piece).await?;
        }
        Ok(())
    };
    tokio::try_join!(take, give)?;
    Ok(())
}

async fn until(mut network: watch::Receiver<Network>, holds: impl Fn(&Network) -> bool) {
    // An error: the proxy is gone, and with it, in a moment, its connections.
    let _ = network.wait_for(|network| holds(network)).await;
}
