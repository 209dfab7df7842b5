//! Servers with every pattern and every mechanism.

mod client;

use client::{LIMIT, MINUTE, connect, echo, mechanisms, start};
use corebeat_reactor::{Config, Error, Exchange, Handler, Pattern, Server};
use corebeat_test_group::in_child;
use proptest::prelude::*;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Tests of this program count descriptors, or use very many. One of them runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static DESCRIPTORS: Mutex<()> = Mutex::new(());
    DESCRIPTORS.lock().unwrap_or_else(|e| e.into_inner())
}

fn combinations() -> impl Iterator<Item = Config> {
    Pattern::ALL.into_iter().flat_map(|pattern| {
        mechanisms().map(move |mechanism| Config {
            pattern,
            mechanism,
            threads: Some(2),
            ..Config::default()
        })
    })
}

/// Answers a frame, whose first byte is the length of the rest, by the rest. Closes the connection
/// after an empty frame.
fn frames(exchange: &mut Exchange<'_>) {
    while let Some((&length, rest)) = exchange.input().split_first()
        && let Some(frame) = rest.get(..usize::from(length))
    {
        exchange.output().extend_from_slice(frame);
        exchange.consume(1 + frame.len());
        if frame.is_empty() {
            exchange.close();
        }
    }
}

/// Sends data in parts, ends it, and returns what comes back until the end.
fn exchange(address: SocketAddr, data: &[u8], parts: &[usize], buffer: usize) -> Vec<u8> {
    let mut stream = connect(address);
    let mut writer = stream.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut rest = data;
            for &part in parts.iter().cycle() {
                let (now, later) = rest.split_at(part.min(rest.len()));
                writer.write_all(now).unwrap();
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let (mut received, mut buffer) = (Vec::new(), vec![0; buffer]);
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => break received,
                count => received.extend_from_slice(&buffer[..count]),
            }
        }
    })
}

#[derive(Debug, Clone)]
struct Case {
    data: Vec<u8>,
    parts: Vec<usize>,
    buffer: usize,
    threads: usize,
}

fn case() -> impl Strategy<Value = Case> {
    let scale = prop_oneof![Just((2_000_usize, 20_usize)), Just((400_000, 100_000))];
    scale.prop_flat_map(|(bytes, part)| {
        let data = proptest::collection::vec(any::<u8>(), 1..bytes);
        let parts = proptest::collection::vec(1..part, 1..8);
        (data, parts, 1..part, 2..4_usize).prop_map(|(data, parts, buffer, threads)| Case {
            data,
            parts,
            buffer,
            threads,
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn echo_through_random_splits_returns_the_same_bytes(case in case()) {
        let _alone = alone();
        for config in combinations() {
            let config = Config { threads: Some(case.threads), ..config };
            let (server, address) = start(&config, || echo);
            let Case { data, parts, buffer, .. } = &case;
            thread::scope(|scope| {
                let clients: Vec<_> = (0..3)
                    .map(|_| scope.spawn(|| exchange(address, data, parts, *buffer) == *data))
                    .collect();
                assert!(clients.into_iter().all(|client| client.join().unwrap()));
            });
            let stats = server.stats();
            prop_assert_eq!((stats.accepted, stats.panics), (3, 0));
            server.stop(MINUTE);
        }
    }

    #[test]
    fn frames_through_random_splits_are_answered_once(case in case()) {
        let _alone = alone();
        let chunks = case.data.chunks(case.buffer.min(255));
        let framed: Vec<u8> =
            chunks.flat_map(|c| std::iter::once(c.len() as u8).chain(c.iter().copied())).collect();
        for config in combinations() {
            let (server, address) = start(&config, || frames);
            let answer = exchange(address, &framed, &case.parts, case.buffer);
            prop_assert!(answer == case.data);
            drop(server);
        }
    }
}

#[test]
fn many_connections_exchange_messages() {
    const CLIENTS: usize = 8;
    const CONNECTIONS: usize = 32;
    const ROUNDS: usize = 20;
    let _alone = alone();
    for config in combinations() {
        let (server, address) = start(&Config { threads: Some(3), ..config }, || echo);
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| connect(address)).collect();
                    for round in 0..ROUNDS {
                        let message = |n: usize| (client * n + round).to_ne_bytes();
                        for (n, stream) in streams.iter_mut().enumerate() {
                            stream.write_all(&message(n)).unwrap();
                        }
                        for (n, stream) in streams.iter_mut().enumerate() {
                            let mut answer = [0; 8];
                            stream.read_exact(&mut answer).unwrap();
                            assert_eq!(answer, message(n));
                        }
                    }
                });
            }
        });
        assert_eq!(server.stats().accepted as usize, CLIENTS * CONNECTIONS);
        server.stop(MINUTE);
    }
}

/// Writes until the server does not read any more. Returns the number of bytes.
fn fill(stream: &mut TcpStream) -> usize {
    stream.set_nonblocking(true).unwrap();
    let block = [7; 1 << 14];
    let mut written = 0;
    let mut idle = 0;
    // The server has stopped if the buffers stay full.
    while idle < 50 {
        match stream.write(&block) {
            Ok(count) => (written, idle) = (written + count, 0),
            Err(why) if why.kind() == ErrorKind::WouldBlock => {
                idle += 1;
                thread::sleep(Duration::from_millis(1));
            }
            Err(why) => panic!("{why}"),
        }
    }
    stream.set_nonblocking(false).unwrap();
    written
}

#[test]
fn peer_that_does_not_read_is_not_read_from() {
    let _alone = alone();
    for config in combinations() {
        let (server, address) = start(&config, || echo);
        let mut stream = connect(address);
        let written = fill(&mut stream);
        // Another connection is served meanwhile.
        assert_eq!(exchange(address, b"other", &[2], 3), b"other");
        stream.shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), written);
        assert!(received.iter().all(|byte| *byte == 7));
        server.stop(MINUTE);
    }
}

/// Asserts that the server closes a connection.
fn assert_closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(why) => assert_eq!(why.kind(), ErrorKind::ConnectionReset),
    }
}

#[test]
fn connections_without_progress_are_closed() {
    let _alone = alone();
    for config in combinations() {
        let idle_timeout = Some(Duration::from_millis(40));
        let (server, address) = start(&Config { idle_timeout, ..config }, || frames);
        let (mut silent, mut slow) = (connect(address), connect(address));
        // A request that arrives byte by byte is no progress.
        let mut bytes = std::iter::repeat(200_u8);
        while slow.write_all(&[bytes.next().unwrap()]).is_ok() && server.stats().idle_closed < 2 {
            thread::sleep(Duration::from_millis(1));
        }
        assert_closed(&mut silent);
        assert_closed(&mut slow);
        assert_eq!(server.stats().idle_closed, 2);
        server.stop(MINUTE);
    }
}

#[test]
fn incomplete_requests_are_closed_although_others_were_answered() {
    let _alone = alone();
    for config in combinations() {
        let request_timeout = Some(Duration::from_millis(40));
        let config = Config { request_timeout, idle_timeout: None, ..config };
        let (server, address) = start(&config, || frames);
        let (mut idle, mut slow) = (connect(address), connect(address));
        slow.write_all(&[1, b'a', 200]).unwrap();
        slow.read_exact(&mut [0; 1]).unwrap();
        while slow.write_all(&[7]).is_ok() && server.stats().idle_closed == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        assert_closed(&mut slow);
        // A connection without an incomplete request stays.
        idle.write_all(&[1, b'a']).unwrap();
        idle.read_exact(&mut [0; 1]).unwrap();
        assert_eq!(server.stats().idle_closed, 1);
        server.stop(MINUTE);
    }
}

#[test]
fn rate_of_accepted_connections_is_limited() {
    const COUNT: usize = 30;
    let _alone = alone();
    for config in combinations() {
        let accept_rate = NonZeroU32::new(100);
        let begin = Instant::now();
        let (server, address) = start(&Config { accept_rate, ..config }, || echo);
        let mut streams: Vec<_> = (0..COUNT).map(|_| connect(address)).collect();
        for stream in &mut streams {
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0; 1]).unwrap();
        }
        // Those of a tenth of a second come at once. The others take at least their time.
        assert!(begin.elapsed() >= Duration::from_millis(10 * (COUNT as u64 - 12)));
        let stats = server.stats();
        assert_eq!(stats.accepted as usize, COUNT);
        assert!(stats.pauses > 0);
        server.stop(MINUTE);
    }
}

#[test]
fn peer_that_never_reads_is_closed() {
    let _alone = alone();
    let idle_timeout = Some(Duration::from_millis(100));
    let config = Config { idle_timeout, ..Config::default() };
    let (server, address) = start(&config, || echo);
    let mut stream = connect(address);
    let block = [7; 1 << 16];
    while stream.write_all(&block).is_ok() {}
    assert_eq!(server.stats().idle_closed, 1);
}

#[test]
fn busy_server_closes_no_connection_of_a_peer_that_waits_for_it() {
    let _alone = alone();
    thread::scope(|scope| {
        for config in combinations() {
            scope.spawn(move || wait_for_a_busy_server(config));
        }
    });
}

/// The handler answers `a` at once, and `b` after more than the idle time, with more bytes than a
/// socket accepts at once.
fn wait_for_a_busy_server(config: Config) {
    const IDLE: Duration = Duration::from_secs(3);
    const LONG: usize = 12 << 20;
    let pattern = format!("{:?} {:?}", config.pattern, config.mechanism);
    let threads = 1 + usize::from(config.pattern == Pattern::HalfSyncHalfAsync);
    let config = Config { idle_timeout: Some(IDLE), threads: Some(threads), ..config };
    let (begin, begun) = channel();
    let (server, address) = start(&config, move || {
        let begin = begin.clone();
        move |exchange: &mut Exchange<'_>| {
            if exchange.input() == b"b" {
                begin.send(()).unwrap();
                thread::sleep(IDLE + IDLE / 4);
                exchange.output().resize(LONG, b'b');
            } else {
                exchange.output().push(b'a');
            }
            exchange.consume(exchange.input().len());
        }
    });
    let (mut short, mut long) = (connect(address), connect(address));
    short.write_all(b"a").unwrap();
    short.read_exact(&mut [0; 1]).unwrap();
    long.write_all(b"b").unwrap();
    begun.recv().unwrap();
    short.write_all(b"a").unwrap();
    long.read_exact(&mut vec![0; LONG]).expect(&pattern);
    short.read_exact(&mut [0; 1]).unwrap();
    server.stop(MINUTE);
}

/// A client without the rest of its request does not hold a server that stops.
#[test]
fn limits_close_connections_of_a_server_that_stops() {
    let _alone = alone();
    for config in combinations() {
        let idle_timeout = Some(Duration::from_millis(40));
        let (server, address) = start(&Config { idle_timeout, ..config }, || frames);
        let mut half = connect(address);
        half.write_all(&[2, 2, 2, 200, 7]).unwrap();
        half.read_exact(&mut [0; 2]).unwrap();
        server.stop(Duration::MAX);
        assert_closed(&mut half);
    }
}

#[test]
fn limit_of_connections_delays_further_ones() {
    let _alone = alone();
    for config in combinations() {
        let (server, address) = start(&Config { connections: 2, ..config }, || echo);
        let talk = |stream: &mut TcpStream| {
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0; 1])
        };
        let mut streams: Vec<_> = (0..2).map(|_| connect(address)).collect();
        streams.iter_mut().for_each(|stream| talk(stream).unwrap());
        let mut third = connect(address);
        third.write_all(b"y").unwrap();
        while server.stats().pauses == 0 {
            thread::yield_now();
        }
        assert_eq!(server.stats().connections, 2);
        drop(streams.pop());
        third.read_exact(&mut [0; 1]).unwrap();
        assert_eq!(server.stats().accepted, 3);
        server.stop(MINUTE);
    }
}

#[test]
fn request_that_exceeds_the_limit_closes_its_connection() {
    let _alone = alone();
    for config in combinations() {
        let wait_for_all = || |exchange: &mut Exchange<'_>| assert!(!exchange.is_end());
        let (server, address) = start(&Config { buffered_bytes: 1000, ..config }, wait_for_all);
        let mut stream = connect(address);
        while stream.write_all(&[1; 100]).is_ok() && server.stats().too_large == 0 {}
        assert_closed(&mut stream);
        let stats = server.stats();
        assert_eq!((stats.too_large, stats.panics), (1, 0));
        server.stop(MINUTE);
    }
}

#[test]
fn panic_of_a_handler_closes_its_connection_only() {
    let _alone = alone();
    for config in combinations() {
        let (server, address) = start(&config, || {
            |exchange: &mut Exchange<'_>| {
                assert!(!exchange.input().starts_with(b"panic"), "as planned");
                echo(exchange);
            }
        });
        let (mut failing, mut other) = (connect(address), connect(address));
        failing.write_all(b"panic").unwrap();
        assert_closed(&mut failing);
        other.write_all(b"other").unwrap();
        other.read_exact(&mut [0; 5]).unwrap();
        assert_eq!(server.stats().panics, 1);
        server.stop(MINUTE);
    }
}

/// Answers once. Its destructor panics.
struct Fragile;

impl Handler for Fragile {
    fn handle(&mut self, exchange: &mut Exchange<'_>) {
        echo(exchange);
        exchange.close();
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        panic!("as planned");
    }
}

#[test]
fn panic_of_a_destructor_ends_no_thread() {
    let _alone = alone();
    for config in combinations() {
        let (server, address) = start(&config, || Fragile);
        for served in 1..=3 {
            let mut client = connect(address);
            client.write_all(b"x").unwrap();
            client.read_exact(&mut [0; 1]).unwrap();
            assert_closed(&mut client);
            assert_eq!(server.stats().panics, served);
        }
        server.stop(MINUTE);
    }
}

#[test]
fn stop_finishes_requests_in_progress() {
    let _alone = alone();
    for config in combinations() {
        let (server, address) = start(&config, || frames);
        let (mut idle, mut busy) = (connect(address), connect(address));
        for stream in [&mut idle, &mut busy] {
            stream.write_all(&[1, b'a']).unwrap();
            stream.read_exact(&mut [0; 1]).unwrap();
        }
        busy.write_all(&[3, b'x']).unwrap();
        let stopping = thread::spawn(move || server.stop(MINUTE));
        assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
        busy.write_all(b"yz").unwrap_or_else(|e| panic!("{e} {config:?}"));
        let mut answer = Vec::new();
        busy.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"xyz");
        stopping.join().unwrap();
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}

#[test]
fn drop_closes_requests_in_progress() {
    let _alone = alone();
    for config in combinations() {
        let (server, address) = start(&config, || frames);
        let mut busy = connect(address);
        busy.write_all(&[1, b'a', 3, b'x']).unwrap();
        busy.read_exact(&mut [0; 1]).unwrap();
        drop(server);
        assert_closed(&mut busy);
    }
}

/// A call, made by a thread of the server, that ends the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Constructor,
    Call,
    Destructor,
}

/// Echoes in one request, and ends its own server in this place.
struct Last {
    place: Place,
    end: fn(Server),
    server: Arc<Mutex<Option<Server>>>,
}

impl Last {
    fn reach(&self, place: Place) {
        let server = self.server.lock().unwrap().take_if(|_| self.place == place);
        if let Some(server) = server {
            (self.end)(server);
        }
    }
}

impl Handler for Last {
    fn handle(&mut self, exchange: &mut Exchange<'_>) {
        self.reach(Place::Call);
        echo(exchange);
        exchange.close();
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        self.reach(Place::Destructor);
    }
}

/// Starts a server that ends in `place`. The sender is dropped when the last thread of the server
/// has ended.
fn start_last(config: &Config, place: Place, end: fn(Server), ended: Sender<()>) -> SocketAddr {
    let server = Arc::new(Mutex::new(None));
    let (started, address) = start(config, {
        let server = server.clone();
        move || {
            let _ended = &ended;
            let last = Last { place, end, server: server.clone() };
            last.reach(Place::Constructor);
            last
        }
    });
    *server.lock().unwrap() = Some(started);
    address
}

const ENDS: [fn(Server); 2] = [drop, |server| server.stop(MINUTE)];

#[test]
fn server_that_a_handler_ends_sends_the_response() {
    let _alone = alone();
    for config in combinations() {
        let places = [Place::Call, Place::Destructor].into_iter();
        for (place, end) in places.flat_map(|place| ENDS.map(|end| (place, end))) {
            let (ended, is_over) = channel();
            let mut client = connect(start_last(&config, place, end, ended));
            client.write_all(b"last").unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap_or_else(|e| panic!("{e} {config:?}"));
            assert_eq!(answer, "last");
            assert_eq!(is_over.recv_timeout(MINUTE), Err(RecvTimeoutError::Disconnected));
        }
    }
}

#[test]
fn server_that_the_constructor_of_a_handler_ends_has_no_thread_left() {
    let _alone = alone();
    for config in combinations() {
        for end in ENDS {
            let (ended, is_over) = channel();
            let mut client = connect(start_last(&config, Place::Constructor, end, ended));
            assert_closed(&mut client);
            assert_eq!(is_over.recv_timeout(MINUTE), Err(RecvTimeoutError::Disconnected));
        }
    }
}

#[test]
fn stop_by_a_handler_finishes_requests_of_other_connections() {
    let _alone = alone();
    for config in combinations() {
        let own = Arc::new(Mutex::new(None::<Server>));
        let (server, address) = start(&config, {
            let own = own.clone();
            move || {
                let own = own.clone();
                move |exchange: &mut Exchange<'_>| {
                    let is_last = exchange.input() == [1, b'q'];
                    frames(exchange);
                    if is_last && let Some(server) = own.lock().unwrap().take() {
                        server.stop(MINUTE);
                    }
                }
            }
        });
        *own.lock().unwrap() = Some(server);
        let (mut busy, mut last) = (connect(address), connect(address));
        busy.write_all(&[1, b'a']).unwrap();
        busy.read_exact(&mut [0; 1]).unwrap();
        busy.write_all(&[3, b'x']).unwrap();
        last.write_all(&[1, b'q']).unwrap();
        let mut answer = Vec::new();
        last.read_to_end(&mut answer).unwrap_or_else(|e| panic!("{e} {config:?}"));
        assert_eq!(answer, b"q");
        busy.write_all(b"yz").unwrap();
        answer.clear();
        busy.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"xyz");
    }
}

#[test]
fn unix_listener_is_served() {
    let _alone = alone();
    for config in combinations() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let server = Server::start(config, UnixListener::bind(&path).unwrap(), || frames).unwrap();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(LIMIT).unwrap();
        stream.write_all(&[2, b'o', b'k', 0]).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "ok");
        server.stop(MINUTE);
    }
}

#[test]
fn invalid_parameters_are_errors() {
    let _alone = alone();
    let start = |config| {
        Server::start(config, TcpListener::bind(LOCAL).unwrap(), || echo).unwrap_err().to_string()
    };
    let pattern = Pattern::HalfSyncHalfAsync;
    assert_eq!(
        start(Config { threads: Some(1), pattern, ..Config::default() }),
        "a server with 1 threads cannot use HalfSyncHalfAsync: set `threads` to 2 or more"
    );
    assert!(matches!(
        Server::start(
            Config { threads: Some(0), ..Config::default() },
            TcpListener::bind(LOCAL).unwrap(),
            || echo
        ),
        Err(Error::TooFewThreads { threads: 0, min: 1, .. })
    ));
    for config in [
        Config { connections: 0, ..Config::default() },
        Config { buffered_bytes: 0, ..Config::default() },
        Config { idle_timeout: Some(Duration::ZERO), ..Config::default() },
        Config { request_timeout: Some(Duration::ZERO), ..Config::default() },
    ] {
        assert!(start(config).ends_with("of 0 could serve nothing: set it to more than 0"));
    }
    let stream = connect(TcpListener::bind(LOCAL).unwrap().local_addr().unwrap());
    let refused = Server::start(Config::default(), stream, || echo);
    assert!(matches!(refused, Err(Error::System(_))));
}

#[test]
fn as_many_handlers_as_cpus_run_at_once_by_default() {
    let _alone = alone();
    let cpus = thread::available_parallelism().unwrap().get();
    for pattern in Pattern::ALL {
        let running = Arc::new((Mutex::new(0), Condvar::new()));
        let config = Config { pattern, ..Config::default() };
        let (server, address) = start(&config, move || {
            let running = running.clone();
            move |exchange: &mut Exchange<'_>| {
                let (count, has_grown) = &*running;
                let mut count = count.lock().unwrap();
                *count += 1;
                has_grown.notify_all();
                // Only a failing test reaches the limit.
                let limit = Duration::from_secs(10);
                let waited = has_grown.wait_timeout_while(count, limit, |count| *count < cpus);
                exchange.output().push(u8::from(!waited.unwrap().1.timed_out()));
                exchange.consume(exchange.input().len());
            }
        });
        let mut clients: Vec<_> = (0..cpus).map(|_| connect(address)).collect();
        clients.iter_mut().for_each(|client| client.write_all(b"x").unwrap());
        for client in &mut clients {
            let mut answer = [0];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [1], "{pattern:?}");
        }
        server.stop(MINUTE);
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn ten_thousand_connections_leave_no_descriptor() {
    const ROUNDS: usize = 10_000 / 9 + 1;
    let _alone = alone();
    for config in combinations() {
        let before = open_descriptors();
        let (server, address) = start(&config, || echo);
        for _ in 0..ROUNDS {
            let mut stream = connect(address);
            stream.write_all(b"round").unwrap();
            stream.read_exact(&mut [0; 5]).unwrap();
        }
        assert_eq!(server.stats().accepted as usize, ROUNDS);
        server.stop(MINUTE);
        // Threads of an earlier test may have closed theirs since.
        assert!(open_descriptors() <= before, "{before} before, {}", open_descriptors());
    }
}

/// Takes all descriptors of this process but `left`.
fn take_descriptors(left: usize) -> Vec<std::fs::File> {
    let limit = rustix::process::Resource::Nofile;
    let few = rustix::process::Rlimit { current: Some(100), maximum: Some(100) };
    rustix::process::setrlimit(limit, few).unwrap();
    let open = || std::fs::File::open("/dev/null");
    let mut taken: Vec<_> = std::iter::repeat_with(open).map_while(io::Result::ok).collect();
    taken.truncate(taken.len() - left);
    taken
}

#[test]
fn missing_descriptors_delay_a_connection_without_spinning() {
    let _alone = alone();
    for config in combinations() {
        let passed = in_child(|| {
            let (server, address) = start(&config, || echo);
            let mut first = connect(address);
            first.write_all(b"1").unwrap();
            first.read_exact(&mut [0; 1]).unwrap();
            let taken = take_descriptors(1);
            let mut second = connect(address);
            second.write_all(b"2").unwrap();
            while server.stats().pauses < 2 {
                thread::yield_now();
            }
            // The served connection continues.
            first.write_all(b"3").unwrap();
            first.read_exact(&mut [0; 1]).unwrap();
            let paused = server.stats().pauses;
            drop(taken);
            second.read_exact(&mut [0; 1]).unwrap();
            server.stop(MINUTE);
            // One pause takes 10 ms.
            paused < 1000
        });
        assert!(passed, "{config:?}");
    }
}

/// A client closes its connection, with an answer in its buffer, while the handler runs. The server
/// then sends to a connection that has been reset.
#[test]
fn signal_of_a_closed_connection_does_not_end_the_process() {
    let _alone = alone();
    for config in combinations() {
        let passed = in_child(|| {
            // The runtime of Rust ignores the signal. A program may undo that.
            // SAFETY: the default action is no function.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            let (go, may_go) = channel::<()>();
            let may_go = Arc::new(Mutex::new(may_go));
            let (server, address) = start(&config, move || {
                let may_go = may_go.clone();
                move |exchange: &mut Exchange<'_>| {
                    if exchange.input() == b"wait" {
                        may_go.lock().unwrap().recv().unwrap();
                    }
                    echo(exchange);
                }
            });
            let mut first = connect(address);
            first.write_all(b"x").unwrap();
            first.peek(&mut [0; 1]).unwrap();
            first.write_all(b"wait").unwrap();
            // Unread data makes the end of the connection a reset.
            drop(first);
            go.send(()).unwrap();
            let mut second = connect(address);
            second.write_all(b"y").unwrap();
            second.read_exact(&mut [0; 1]).unwrap();
            server.stop(MINUTE);
            true
        });
        assert!(passed, "{config:?}");
    }
}

/// Clients that connect all at once, and some of which leave without a request.
#[test]
fn flood_of_connections_delays_no_served_one_for_ever() {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 100;
    let _alone = alone();
    for config in combinations() {
        let config = Config { connections: 20, ..config };
        let (server, address) = start(&config, || echo);
        let mut served = connect(address);
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let mut streams: Vec<_> = (0..3).map(|_| connect(address)).collect();
                        if (client + round) % 2 == 0 {
                            streams[0].write_all(b"x").unwrap();
                            streams[0].read_exact(&mut [0; 1]).unwrap();
                        }
                    }
                });
            }
            for _ in 0..ROUNDS {
                served.write_all(b"served").unwrap();
                served.read_exact(&mut [0; 6]).unwrap();
            }
        });
        assert!(server.stats().connections <= 20);
        server.stop(MINUTE);
    }
}

/// Starts a program whose first action waits until a file is opened for writing. The caller waits
/// meanwhile, and nothing but the end of this process interrupts it: as after `vfork`, and as in a
/// wait for a disk.
fn wait_uninterrupted(fifo: &std::path::Path) {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(fifo.as_os_str().as_bytes()).unwrap();
    let mut actions = std::mem::MaybeUninit::<libc::posix_spawn_file_actions_t>::uninit();
    let program = c"/bin/true";
    let arguments = [program.as_ptr().cast_mut(), std::ptr::null_mut()];
    let mut pid = 0;
    // SAFETY: the first call initialises the actions, and all pointers are valid during the calls.
    unsafe {
        assert_eq!(libc::posix_spawn_file_actions_init(actions.as_mut_ptr()), 0);
        let actions = actions.as_mut_ptr();
        let flags = libc::O_RDONLY;
        assert_eq!(libc::posix_spawn_file_actions_addopen(actions, 0, path.as_ptr(), flags, 0), 0);
        let environment = [std::ptr::null_mut()];
        let spawned = libc::posix_spawn(
            &mut pid,
            program.as_ptr(),
            actions,
            std::ptr::null(),
            arguments.as_ptr(),
            environment.as_ptr(),
        );
        assert_eq!(spawned, 0);
        libc::posix_spawn_file_actions_destroy(actions);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

#[test]
fn handler_that_nothing_interrupts_delays_no_connection_of_another_thread() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let shared = |config: &Config| config.pattern != Pattern::ThreadPerCore;
    for (n, config) in combinations().filter(shared).enumerate() {
        let fifo = folder.path().join(n.to_string());
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let config = Config { threads: Some(3), ..config };
        let (entered, has_entered) = channel();
        let path = fifo.clone();
        let (server, address) = start(&config, move || {
            let (entered, path) = (entered.clone(), path.clone());
            move |exchange: &mut Exchange<'_>| {
                if exchange.input() == b"wait" {
                    entered.send(()).unwrap();
                    wait_uninterrupted(&path);
                }
                echo(exchange);
            }
        });
        // Each thread has taken its turn, so that each may have submitted requests.
        let mut streams: Vec<_> = (0..30).map(|_| connect(address)).collect();
        for stream in &mut streams {
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0; 1]).unwrap();
        }
        let (long, others) = streams.split_first_mut().unwrap();
        long.write_all(b"wait").unwrap();
        has_entered.recv_timeout(MINUTE).unwrap();
        for stream in others {
            stream.write_all(b"y").unwrap();
            stream.read_exact(&mut [0; 1]).unwrap_or_else(|why| panic!("{why}: {config:?}"));
        }
        drop(std::fs::OpenOptions::new().write(true).open(&fifo).unwrap());
        long.read_exact(&mut [0; 4]).unwrap();
        server.stop(MINUTE);
    }
}

#[test]
fn child_drops_an_inherited_server() {
    let _alone = alone();
    let (server, address) = start(&Config::default(), || echo);
    let mut server = Some(server);
    assert!(in_child(|| {
        drop(server.take());
        true
    }));
    assert_eq!(exchange(address, b"parent", &[1], 2), b"parent");
    assert_eq!(server.unwrap().stats().accepted, 1);
}
