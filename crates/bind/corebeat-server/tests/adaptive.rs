//! Adaptive servers with thresholds by which any load adds threads.

use corebeat_heartbeat::{Goal, Group};
use corebeat_machine::server::Report;
use corebeat_reactor::{Config, Exchange, Mechanism, Pattern};
use corebeat_server::{AdaptiveServer, Error, Heartbeat, Options, ServerPolicy};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Limit of each wait, which only a failing test reaches.
const LIMIT: Duration = Duration::from_secs(60);

/// Held by tests that claim CPUs: the claims of a process take CPUs from each other.
static CLAIMS: Mutex<()> = Mutex::new(());

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
    let _claims = CLAIMS.lock().unwrap_or_else(|e| e.into_inner());
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
fn handlers_run_on_the_claimed_cpus() {
    let _claims = CLAIMS.lock().unwrap_or_else(|e| e.into_inner());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let cpus = || std::thread::available_parallelism().unwrap().get();
    // Answers by the number of CPUs of its thread.
    let count = move |exchange: &mut Exchange<'_>| {
        exchange.output().push(u8::try_from(cpus()).unwrap_or(u8::MAX));
        exchange.consume(exchange.input().len());
    };
    let policy = Some(ServerPolicy::new(1));
    let options = Options { policy, claim: true, ..Options::default() };
    let server = AdaptiveServer::start(options, listener, move || count).unwrap();
    let has_cpu = server.cpus().len() == 1;
    let mut stream = connect(address);
    let mut answer = || {
        let mut answer = [0; 1];
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut answer).unwrap();
        usize::from(answer[0])
    };
    // Other programs may have claimed all CPUs. A claim that has one keeps it.
    assert!(!has_cpu || answer() == 1);
    until("the thread is on the CPU of the claim", || {
        answer() == if server.cpus().is_empty() { cpus().min(255) } else { 1 }
    });
    server.stop(LIMIT);
}

#[test]
fn refused_start_serves_nobody() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut stream = connect(listener.local_addr().unwrap());
    stream.write_all(b"x").unwrap();
    let handlers = Arc::new(AtomicUsize::new(0));
    let goal = Some(Goal { rate_min: Some(-1.0), ..Goal::default() });
    let heartbeat = Some(Heartbeat { group: Group::new(4712), goal });
    let of_server = handlers.clone();
    let refused =
        AdaptiveServer::start(Options { heartbeat, ..Options::default() }, listener, move || {
            of_server.fetch_add(1, Ordering::SeqCst);
            echo
        });
    assert!(matches!(refused, Err(Error::Heartbeat(_))));
    assert_eq!(handlers.load(Ordering::SeqCst), 0);
}

#[test]
fn largest_number_of_threads_holds() {
    let config = Config { threads: Some(2), ..Config::default() };
    let (server, address) = start(Options { config, policy: Some(eager(4)), ..Options::default() });
    let mut stream = connect(address);
    until("the threads grow", || {
        talk(&mut stream);
        server.variant().workers() == 2
    });
    // The policy of an unlimited server doubles the threads again after a few periods.
    for _ in 0..20_000 {
        talk(&mut stream);
        assert!(server.variant().workers() <= 2);
    }
}

#[test]
fn parameters_without_effect_are_refused() {
    let start = |config| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        AdaptiveServer::start(Options { config, ..Options::default() }, listener, || echo)
    };
    let pattern = Config { pattern: Pattern::LeaderFollowers, ..Config::default() };
    assert!(matches!(start(pattern), Err(Error::Adaptive { name: "pattern" })));
    let mechanism = Config { mechanism: Mechanism::Poll, ..Config::default() };
    assert!(matches!(start(mechanism), Err(Error::Adaptive { name: "mechanism" })));
    let none = Config { threads: Some(0), ..Config::default() };
    assert!(matches!(start(none), Err(Error::Server(_))));
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

/// Returns what the servers of this process show.
fn reports() -> Vec<Report> {
    let report = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        let target = std::fs::read_link(&path).ok()?;
        target.to_str()?.starts_with(&format!("/memfd:{} ", Report::FILE)).then_some(())?;
        Report::from_bytes(std::fs::read(path).ok()?[..].first_chunk()?)
    };
    std::fs::read_dir("/proc/self/fd").unwrap().filter_map(report).collect()
}

#[test]
fn server_shows_itself_on_request() {
    let policy = Some(ServerPolicy::new(1));
    let (hidden, hidden_address) = start(Options { policy: policy.clone(), ..Options::default() });
    let (server, address) = start(Options { policy, shown: true, ..Options::default() });
    let mut streams: Vec<_> = (0..3).map(|_| connect(address)).collect();
    streams.iter_mut().for_each(talk);
    talk(&mut connect(hidden_address));
    let mut report = None;
    until("the server shows its requests", || {
        // Servers of other tests show nothing.
        let all = reports();
        assert!(all.len() <= 1, "{all:?}");
        report = all.first().copied();
        report.is_some_and(|report| report.requests == 3 && report.requests_per_s > 0.0)
    });
    let report = report.unwrap();
    assert_eq!((report.connections, report.variant), (3, server.variant()));
    server.stop(LIMIT);
    assert!(reports().is_empty());
    hidden.stop(LIMIT);
}
