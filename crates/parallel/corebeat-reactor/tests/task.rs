//! Sockets of tasks: stackful and async, over TCP and Unix sockets, on workers that detect
//! readiness themselves and on others.

use corebeat_lpel::{Failure, Runtime, Scope, spawn, spawn_async, timeout, yield_now};
use corebeat_reactor::{Socket, Stream, TcpListener, TcpStream, UdpSocket, UnixListener};
use corebeat_reactor::{UnixStream, attach};
use corebeat_test_group::in_child;
use proptest::prelude::*;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const SECOND: Duration = Duration::from_secs(1);

/// Tests of this program count descriptors, or use very many. One of them runs at a time.
static DESCRIPTORS: Mutex<()> = Mutex::new(());

/// Builds a runtime whose workers detect readiness, or one whose workers do not.
fn runtime(workers: usize, is_attached: bool) -> Runtime {
    let builder = Runtime::builder().workers(workers).pin(false);
    if is_attached { attach(builder) } else { builder }.build().unwrap()
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = std::net::TcpListener::bind(LOCAL).unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    (TcpStream::from_std(client).unwrap(), TcpStream::from_std(server).unwrap())
}

/// Sends back what arrives, until the end of the data.
fn echo<S: Socket>(mut stream: Stream<S>, buffer: usize) -> io::Result<()> {
    let mut buffer = vec![0; buffer];
    loop {
        match stream.read(&mut buffer)? {
            0 => return stream.shutdown(Shutdown::Write),
            read => stream.write_all(&buffer[..read])?,
        }
    }
}

async fn echo_async<S: Socket>(mut stream: Stream<S>, buffer: usize) -> io::Result<()> {
    let mut buffer = vec![0; buffer];
    loop {
        match futures_util::AsyncReadExt::read(&mut stream, &mut buffer).await? {
            0 => return futures_util::AsyncWriteExt::close(&mut stream).await,
            read => futures_util::AsyncWriteExt::write_all(&mut stream, &buffer[..read]).await?,
        }
    }
}

/// Parts of data that one call writes or reads.
#[derive(Debug, Clone)]
struct Case {
    data: Vec<u8>,
    writes: Vec<usize>,
    reads: Vec<usize>,
    echo_buffer: usize,
    is_attached: bool,
    workers: usize,
    /// Whether the tasks of the server and of the client are async.
    is_async: (bool, bool),
}

fn case() -> impl Strategy<Value = Case> {
    // Small parts of little data, and large parts of much data.
    let scale = prop_oneof![Just((2_000_usize, 20_usize)), Just((300_000, 70_000))];
    scale.prop_flat_map(|(bytes, part)| case_of(bytes, part))
}

fn case_of(bytes: usize, part: usize) -> impl Strategy<Value = Case> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..bytes);
    let sizes = move || proptest::collection::vec(1..part, 1..8);
    let kinds = (any::<bool>(), 1..3_usize, any::<(bool, bool)>());
    (bytes, sizes(), sizes(), 1..part, kinds).prop_map(
        |(data, writes, reads, echo_buffer, (is_attached, workers, is_async))| Case {
            data,
            writes,
            reads,
            echo_buffer,
            is_attached,
            workers,
            is_async,
        },
    )
}

/// Sends the data of a case, ends its direction, and returns what came back until the end.
fn exchange<S: Socket>(client: Stream<S>, case: &Case) -> Vec<u8> {
    let (mut reader, mut writer) = client.split();
    let Case { data, writes, reads, .. } = case.clone();
    let reading = move |read: &mut dyn FnMut(&mut [u8]) -> usize| {
        let mut echoed = Vec::new();
        let mut buffer = vec![0; 70_000];
        for &size in reads.iter().cycle() {
            match read(&mut buffer[..size]) {
                0 => break,
                count => echoed.extend_from_slice(&buffer[..count]),
            }
        }
        echoed
    };
    let parts = move || {
        let mut rest = &data[..];
        let mut sizes = writes.iter().cycle();
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
            parts.push(part.to_vec());
            rest = after;
        }
        parts
    };
    if case.is_async.1 {
        spawn_async(async move {
            for part in parts() {
                futures_util::AsyncWriteExt::write_all(&mut writer, &part).await.unwrap();
            }
        });
        let mut sizes = case.reads.clone().into_iter().cycle();
        let result = spawn_async(async move {
            let (mut echoed, mut buffer) = (Vec::new(), vec![0; 70_000]);
            loop {
                let size = sizes.next().unwrap();
                match futures_util::AsyncReadExt::read(&mut reader, &mut buffer[..size])
                    .await
                    .unwrap()
                {
                    0 => break echoed,
                    count => echoed.extend_from_slice(&buffer[..count]),
                }
            }
        });
        return result.join().unwrap();
    }
    spawn(move || parts().iter().for_each(|part| writer.write_all(part).unwrap()));
    spawn(move || reading(&mut |buffer| reader.read(buffer).unwrap())).join().unwrap()
}

/// Returns the data after an echo of each case.
fn run_case<S: Socket>(case: &Case, pair: fn() -> (Stream<S>, Stream<S>)) -> Vec<u8> {
    let own = case.clone();
    let result = runtime(case.workers, case.is_attached).run(move || {
        let (client, server) = pair();
        let buffer = own.echo_buffer;
        let echoing = match own.is_async.0 {
            true => spawn_async(echo_async(server, buffer)),
            false => spawn(move || echo(server, buffer)),
        };
        let echoed = exchange(client, &own);
        echoing.join().unwrap().unwrap();
        echoed
    });
    result.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn echo_through_random_splits_returns_the_same_bytes(case in case()) {
        let _descriptors = DESCRIPTORS.lock().unwrap_or_else(|e| e.into_inner());
        prop_assert!(run_case(&case, tcp_pair) == case.data);
        prop_assert!(run_case(&case, || UnixStream::pair().unwrap()) == case.data);
    }
}

/// Runs a test on runtimes with and without own detection, with one worker.
fn on_runtimes<T: Send + 'static>(f: impl Fn() -> T + Clone + Send + 'static) {
    let _descriptors = DESCRIPTORS.lock().unwrap_or_else(|e| e.into_inner());
    for is_attached in [true, false] {
        runtime(1, is_attached).run(f.clone()).unwrap();
    }
}

#[test]
fn waiting_tasks_do_not_block_their_worker() {
    const CONNECTIONS: usize = 200;
    on_runtimes(|| {
        let mut listener = TcpListener::bind(LOCAL).unwrap();
        let address = listener.get_ref().local_addr().unwrap();
        let accepting = spawn(move || {
            for _ in 0..CONNECTIONS {
                let stream = listener.accept().unwrap();
                spawn(|| echo(stream, 64));
            }
        });
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|n| {
                spawn(move || {
                    let mut stream = TcpStream::connect(address).unwrap();
                    let mut answer = [0; 8];
                    for round in 0..3 {
                        stream.write_all(&(n * round).to_ne_bytes()).unwrap();
                        stream.read_exact(&mut answer).unwrap();
                        assert_eq!(usize::from_ne_bytes(answer), n * round);
                    }
                })
            })
            .collect();
        accepting.join().unwrap();
        assert!(clients.into_iter().all(|client| client.join().is_ok()));
    });
}

#[test]
fn unix_listener_serves_async_tasks() {
    on_runtimes(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let mut listener = UnixListener::bind(&path).unwrap();
        let serving =
            spawn_async(async move { echo_async(listener.accept_async().await.unwrap(), 7).await });
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"as sent").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "as sent");
        assert!(serving.join().unwrap().is_ok());
        assert_eq!(UnixListener::bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
    });
}

#[test]
fn copy_of_std_and_of_futures_transfers_everything() {
    const BYTES: usize = 1 << 20;
    on_runtimes(|| {
        let ((mut from, mut one), (mut two, mut to)) = (tcp_pair(), tcp_pair());
        let ((mut three, mut last), data) = (tcp_pair(), vec![7; BYTES]);
        let sent = data.clone();
        spawn(move || {
            from.write_all(&sent).unwrap();
            from.shutdown(Shutdown::Write).unwrap();
        });
        // The connections form a chain: a stackful and an async task copy.
        let stackful = spawn(move || {
            let copied = io::copy(&mut one, &mut two).unwrap();
            two.shutdown(Shutdown::Write).unwrap();
            copied
        });
        let copying = spawn_async(async move {
            let copied = futures_util::io::copy(&mut to, &mut three).await.unwrap();
            futures_util::AsyncWriteExt::close(&mut three).await.unwrap();
            copied
        });
        let mut received = Vec::new();
        last.read_to_end(&mut received).unwrap();
        assert!(received == data);
        assert_eq!(stackful.join().unwrap(), BYTES as u64);
        assert_eq!(copying.join().unwrap(), BYTES as u64);
    });
}

#[test]
fn drop_of_the_write_half_ends_the_data_and_the_other_half_still_reads() {
    on_runtimes(|| {
        let (client, mut server) = tcp_pair();
        let (mut reader, mut writer) = client.split();
        writer.write_all(b"question").unwrap();
        drop(writer);
        let mut question = String::new();
        server.read_to_string(&mut question).unwrap();
        server.write_all(b"answer").unwrap();
        drop(server);
        let mut answer = String::new();
        reader.read_to_string(&mut answer).unwrap();
        assert_eq!((&*question, &*answer), ("question", "answer"));
    });
}

#[test]
fn reset_connection_ends_waits_with_an_error() {
    on_runtimes(|| {
        let (client, server) = tcp_pair();
        let (mut reader, mut writer) = server.split();
        let reading = spawn(move || reader.read(&mut [0; 8]));
        let writing = spawn(move || {
            let data = vec![0; 1 << 20];
            loop {
                if let Err(why) = writer.write(&data) {
                    return why.kind();
                }
            }
        });
        // Unread data makes the system reset a connection when it is closed.
        let mut some = [0; 16];
        let mut client = client;
        client.read_exact(&mut some).unwrap();
        drop(client);
        let kind = reading.join().unwrap().map_err(|why| why.kind());
        assert_eq!(kind, Err(ErrorKind::ConnectionReset));
        let kind = writing.join().unwrap();
        assert!(matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{kind}");
    });
}

#[test]
fn refused_connection_is_an_error() {
    on_runtimes(|| {
        let unused = std::net::TcpListener::bind(LOCAL).unwrap().local_addr().unwrap();
        let refused = TcpStream::connect(unused).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let connecting = spawn_async(async move { TcpStream::connect_async(unused).await.err() });
        let refused = connecting.join().unwrap().unwrap();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn limits_end_waits() {
    on_runtimes(|| {
        let (mut client, mut server) = tcp_pair();
        client.set_read_timeout(Some(Duration::from_millis(2)));
        assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::TimedOut);
        // As in the standard library, a read of nothing does not wait.
        assert_eq!(client.read(&mut []).unwrap(), 0);
        client.set_write_timeout(Some(Duration::from_millis(2)));
        let late = (0..).find_map(|_| client.write(&[0; 1 << 16]).err()).unwrap();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        // The connection still works.
        server.write_all(b"x").unwrap();
        client.set_read_timeout(None);
        client.read_exact(&mut [0; 1]).unwrap();
        // Data that have arrived are received, although their report may be late.
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.set_read_timeout(Some(Duration::ZERO));
        for _ in 0..1000 {
            far.write_all(b"x").unwrap();
            assert_eq!(near.read(&mut [0; 8]).unwrap(), 1);
        }
        let mut listener = TcpListener::bind(LOCAL).unwrap();
        listener.set_timeout(Some(Duration::from_millis(2)));
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::TimedOut);
        let late = spawn_async(async move {
            let mut buffer = [0; 8];
            let read = futures_util::AsyncReadExt::read(&mut client, &mut buffer);
            timeout(Duration::from_millis(2), read).await.is_err()
        });
        assert!(late.join().unwrap());
    });
}

#[test]
fn aborted_tasks_close_their_connections() {
    on_runtimes(|| {
        for is_async in [true, false] {
            let (client, mut server) = tcp_pair();
            let (mut reader, _writer) = client.split();
            let waiting = match is_async {
                true => spawn_async(async move {
                    let _kept = _writer;
                    futures_util::AsyncReadExt::read(&mut reader, &mut [0; 1]).await.map(drop)
                }),
                false => spawn(move || {
                    let _kept = _writer;
                    reader.read(&mut [0; 1]).map(drop)
                }),
            };
            yield_now();
            waiting.abort();
            assert!(matches!(waiting.join(), Err(Failure::Aborted)));
            assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
        }
    });
}

#[test]
fn scope_that_is_cancelled_ends_its_waiting_tasks() {
    on_runtimes(|| {
        let (mut client, server) = tcp_pair();
        let scope: Scope = corebeat_lpel::scope().unwrap();
        let task = corebeat_lpel::Task::new().scope(&scope);
        task.spawn(move || echo(server, 8)).unwrap();
        client.write_all(b"echo").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
        scope.cancel();
        scope.wait();
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    });
}

#[test]
fn wait_for_a_peer_outside_is_no_deadlock() {
    let runtime = runtime(1, true);
    let (mut client, mut server) = tcp_pair();
    let peer = std::thread::spawn(move || {
        // The check for deadlocks follows after 5 ms.
        std::thread::sleep(Duration::from_millis(20));
        server.write_all(b"late")
    });
    let mut data = [0; 4];
    let read = runtime.run(move || client.read_exact(&mut data).map(|()| data));
    assert_eq!(&read.unwrap().unwrap(), b"late");
    peer.join().unwrap().unwrap();
}

#[test]
fn stream_moves_between_runtimes_and_threads() {
    let (mut client, mut server) = tcp_pair();
    for (n, is_attached) in [true, false, true].into_iter().enumerate() {
        // The worker that reported the socket before has ended.
        let data = [n as u8; 3];
        let (received, back) = runtime(1, is_attached)
            .run(move || {
                let reading = spawn(move || {
                    let mut received = [0; 3];
                    client.read_exact(&mut received).unwrap();
                    (received, client)
                });
                yield_now();
                server.write_all(&data).unwrap();
                let (received, client) = reading.join().unwrap();
                (received, (client, server))
            })
            .unwrap();
        assert_eq!(received, data);
        (client, server) = back;
    }
    let thread = std::thread::spawn(move || client.read_exact(&mut [0; 3]).map(|()| client));
    server.write_all(b"end").unwrap();
    let mut client = thread.join().unwrap().unwrap();
    client.set_read_timeout(Some(Duration::from_millis(2)));
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn halves_work_on_two_workers() {
    const ROUNDS: u64 = 200;
    let _descriptors = DESCRIPTORS.lock().unwrap_or_else(|e| e.into_inner());
    let runtime = runtime(2, true);
    let sum = runtime.run(|| {
        let (client, server) = tcp_pair();
        corebeat_lpel::Task::new().worker(0).spawn(move || echo(server, 16)).unwrap();
        let (mut reader, mut writer) = client.split();
        let place = |worker| corebeat_lpel::Task::new().worker(worker);
        place(1)
            .spawn(move || (0..ROUNDS).for_each(|n| writer.write_all(&n.to_ne_bytes()).unwrap()))
            .unwrap();
        let reading = place(0).spawn(move || {
            let mut number = [0; 8];
            let mut next = || reader.read_exact(&mut number).map(|()| u64::from_ne_bytes(number));
            (0..ROUNDS).map(|_| next().unwrap()).sum::<u64>()
        });
        reading.unwrap().join().unwrap()
    });
    assert_eq!(sum.unwrap(), ROUNDS * (ROUNDS - 1) / 2);
}

#[test]
fn datagrams_arrive_whole() {
    on_runtimes(|| {
        let bind = || UdpSocket::bind(LOCAL).unwrap();
        let (mut one, mut two) = (bind(), bind());
        let address = two.get_ref().local_addr().unwrap();
        let mut sender = one.try_clone().unwrap();
        let answering = spawn_async(async move {
            let mut buffer = [0; 16];
            for _ in 0..100 {
                let (length, from) = two.recv_from_async(&mut buffer).await.unwrap();
                two.send_to_async(&buffer[..length], from).await.unwrap();
            }
        });
        for n in 0..100_usize {
            let data = [n as u8; 16];
            sender.send_to(&data[..n % 17], address).unwrap();
            let mut buffer = [1; 16];
            assert_eq!(one.recv_from(&mut buffer).unwrap(), (n % 17, address));
            assert_eq!(buffer[..n % 17], data[..n % 17]);
        }
        answering.join().unwrap();
        one.set_timeout(Some(Duration::from_millis(2)));
        assert_eq!(one.recv_from(&mut [0; 1]).unwrap_err().kind(), ErrorKind::TimedOut);
        let mut clone = one.try_clone().unwrap();
        assert_eq!(clone.recv_from(&mut [0; 1]).unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn thousands_of_connections_wait_while_others_work() {
    const IDLE: usize = 3000;
    on_runtimes(|| {
        let served = Arc::new(AtomicUsize::new(0));
        let mut listener = TcpListener::bind(LOCAL).unwrap();
        let address = listener.get_ref().local_addr().unwrap();
        let count = served.clone();
        let accepting = spawn_async(async move {
            for _ in 0..=IDLE {
                let stream = listener.accept_async().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                spawn_async(echo_async(stream, 64));
            }
        });
        let idle: Vec<_> = (0..IDLE).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut active = TcpStream::connect(address).unwrap();
        for n in 0..100_u32 {
            active.write_all(&n.to_ne_bytes()).unwrap();
            let mut answer = [0; 4];
            active.read_exact(&mut answer).unwrap();
            assert_eq!(u32::from_ne_bytes(answer), n);
        }
        accepting.join().unwrap();
        assert_eq!(served.load(Ordering::Relaxed), IDLE + 1);
        drop(idle);
    });
}

#[test]
fn ten_thousand_connections_leave_no_descriptor() {
    const ROUNDS: usize = 5000;
    on_runtimes(|| {
        let mut listener = TcpListener::bind(LOCAL).unwrap();
        let address = listener.get_ref().local_addr().unwrap();
        let serving = spawn(move || {
            for _ in 0..ROUNDS {
                echo(listener.accept().unwrap(), 8).unwrap();
            }
        });
        let round = move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"round").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            assert_eq!(answer, b"round");
        };
        round();
        let before = open_descriptors();
        (1..ROUNDS).for_each(|_| round());
        // The listener ends with its task.
        serving.join().unwrap();
        assert!(open_descriptors() < before + 4, "{before} before, {}", open_descriptors());
    });
}

#[test]
fn missing_descriptors_fail_a_call_and_keep_the_connection() {
    let passed = in_child(|| {
        let listener = std::net::TcpListener::bind(LOCAL).unwrap();
        let address = listener.local_addr().unwrap();
        attach(Runtime::builder().workers(1))
            .build()
            .unwrap()
            .run(move || {
                let mut listener = TcpListener::from_std(listener).unwrap();
                let mut client = TcpStream::connect(address).unwrap();
                let mut taken = Vec::new();
                let limit = rustix::process::Resource::Nofile;
                let few = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
                rustix::process::setrlimit(limit, few).unwrap();
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    taken.push(file);
                }
                let (errors, error) = mpsc::channel();
                let accepting = spawn(move || {
                    loop {
                        match listener.accept() {
                            Ok(stream) => return stream,
                            Err(why) => errors.send(why.raw_os_error()).unwrap(),
                        }
                    }
                });
                // Another task of the worker runs while the acceptor pauses.
                let first = std::iter::repeat_with(yield_now).find_map(|()| error.try_recv().ok());
                drop(taken);
                let server = accepting.join().unwrap();
                spawn(move || echo(server, 8));
                client.write_all(b"kept").unwrap();
                let mut answer = [0; 4];
                client.read_exact(&mut answer).unwrap();
                // One error for each pause, and not as many as a loop would find.
                first == Some(Some(rustix::io::Errno::MFILE.raw_os_error()))
                    && error.try_iter().count() < 1000
                    && &answer == b"kept"
            })
            .unwrap()
    });
    assert!(passed);
}

#[test]
fn inherited_socket_fails_in_the_child_and_works_in_the_parent() {
    let _descriptors = DESCRIPTORS.lock().unwrap_or_else(|e| e.into_inner());
    let (mut client, mut server) = tcp_pair();
    // Registers the socket.
    client.set_read_timeout(Some(Duration::from_millis(1)));
    assert!(client.read(&mut [0; 1]).is_err());
    let fails = in_child(|| {
        let (mut own, mut peer) = tcp_pair();
        let thread = std::thread::spawn(move || own.read(&mut [0; 8]).unwrap());
        peer.write_all(b"own").unwrap();
        let why = client.read(&mut [0; 1]).unwrap_err();
        thread.join().unwrap() == 3 && why.to_string().contains("before a fork")
    });
    assert!(fails);
    client.set_read_timeout(Some(30 * SECOND));
    let thread = std::thread::spawn(move || client.read(&mut [0; 8]));
    server.write_all(b"parent").unwrap();
    assert_eq!(thread.join().unwrap().unwrap(), 6);
}
