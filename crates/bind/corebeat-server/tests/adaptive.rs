//! Adaptive servers with thresholds by which any load adds threads.

use corebeat_heartbeat::{Goal, Group};
use corebeat_policy::server::ServerPolicy;
use corebeat_reactor::Exchange;
use corebeat_server::{AdaptiveServer, Error, Heartbeat, Options};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Limit of each wait, which only a failing test reaches.
const LIMIT: Duration = Duration::from_secs(60);

fn echo(exchange: &mut Exchange<'_>) {
    let input = exchange.input();
    exchange.output().extend_from_slice(input);
    exchange.consume(input.len());
}

/// Any load adds threads up to `workers`, however busy the host is. No load ends them.
fn eager(workers: usize) -> ServerPolicy {
    let mut policy = ServerPolicy::new(workers);
    policy.saturated = 0.0;
    policy.comfortable = 1e-9;
    policy.crowded = 1.0;
    policy.idle = 0.0;
    policy.kept = 0.0;
    policy.rest_ns = 0;
    policy
}

fn start(options: Options) -> (AdaptiveServer, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (AdaptiveServer::start(options, listener, || echo).unwrap(), address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

fn talk(stream: &mut TcpStream) {
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
}

/// Repeats `step` until it returns true.
fn until(what: &str, mut step: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !step() {
        assert!(begin.elapsed() < LIMIT, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn threads_follow_the_load() {
    let (server, address) = start(Options { policy: Some(eager(3)), ..Options::default() });
    assert_eq!(server.variant().threads, 1);
    let mut stream = connect(address);
    until("the threads grow", || {
        talk(&mut stream);
        server.variant().workers() == 3
    });
    assert!(server.why().unwrap().starts_with("the workers are busy"));
    until("the threads end", || server.variant().threads == 1);
    talk(&mut stream);
    server.stop(LIMIT);
}

#[test]
fn each_request_is_a_beat() {
    const REQUESTS: u64 = 200;
    let goal = Goal { rate_min: Some(100.0), ..Goal::default() };
    let group = Group::new(4711);
    let heartbeat = Some(Heartbeat { group, goal: Some(goal) });
    let (server, address) = start(Options { heartbeat, ..Options::default() });
    let consumer = group.consume().unwrap();
    assert_eq!(consumer.goal().unwrap(), goal);
    let mut stream = connect(address);
    (0..REQUESTS).for_each(|_| talk(&mut stream));
    until("the beats arrive", || consumer.status().unwrap().beats == REQUESTS);
    assert_eq!(server.stats().requests, REQUESTS);
}

#[test]
fn workers_stay_within_the_claimed_cpus() {
    let policy = Some(eager(4));
    let (server, address) = start(Options { policy, claim: true, ..Options::default() });
    let mut stream = connect(address);
    for _ in 0..5000 {
        talk(&mut stream);
        assert!(server.variant().workers() <= server.cpus().len().max(1));
    }
    server.stop(LIMIT);
}

#[test]
fn refused_heartbeat_fails_the_start() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let goal = Some(Goal { rate_min: Some(-1.0), ..Goal::default() });
    let heartbeat = Some(Heartbeat { group: Group::new(4712), goal });
    let refused =
        AdaptiveServer::start(Options { heartbeat, ..Options::default() }, listener, || echo);
    assert!(matches!(refused, Err(Error::Heartbeat(_))));
}

#[test]
fn handler_may_end_its_server() {
    let own = Arc::new(Mutex::new(None::<AdaptiveServer>));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let of_handler = own.clone();
    let server = AdaptiveServer::start(Options::default(), listener, move || {
        let own = of_handler.clone();
        move |exchange: &mut Exchange<'_>| {
            echo(exchange);
            drop(own.lock().unwrap().take());
        }
    });
    *own.lock().unwrap() = Some(server.unwrap());
    let mut stream = connect(address);
    talk(&mut stream);
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}
