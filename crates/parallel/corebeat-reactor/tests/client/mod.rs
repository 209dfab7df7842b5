//! Servers on a free port, their clients, and the handler that returns its input.

use corebeat_reactor::{Config, Exchange, Handler, Mechanism, Server, check_mechanism};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Limit of each wait of a client, which only a failing test reaches.
pub(crate) const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Returns the mechanisms that the system permits, and prints a line for each other one.
pub(crate) fn mechanisms() -> impl Iterator<Item = Mechanism> {
    let is_permitted = |mechanism: &Mechanism| {
        check_mechanism(*mechanism).inspect_err(|why| eprintln!("skipped: {why}")).is_ok()
    };
    Mechanism::ALL.into_iter().filter(is_permitted)
}

pub(crate) fn start<H: Handler>(
    config: &Config,
    make: impl Fn() -> H + Send + Sync + 'static,
) -> (Server, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (Server::start(config.clone(), listener, make).unwrap(), address)
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(LIMIT).unwrap();
    stream.set_write_timeout(LIMIT).unwrap();
    stream
}

pub(crate) fn echo(exchange: &mut Exchange<'_>) {
    let input = exchange.input();
    exchange.output().extend_from_slice(input);
    exchange.consume(input.len());
}
