//! Servers that switch their variant while they are used.

mod client;
mod refusal;

use client::{MINUTE, connect, echo, mechanisms, start};
use corebeat_reactor::{
    Config, Control, Error, Exchange, Mechanism, Pattern, Server, Variant, check_mechanism,
};
use corebeat_test_group::in_child;
use proptest::prelude::*;
use refusal::refuse;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Every pattern and mechanism with this number of workers.
fn variants(workers: usize) -> impl Iterator<Item = Variant> {
    Pattern::ALL.into_iter().flat_map(move |pattern| {
        mechanisms().map(move |mechanism| Variant {
            pattern,
            mechanism,
            threads: workers + pattern.detectors(),
        })
    })
}

/// Sends data in random parts, and reads what comes back meanwhile. With `is_reset`, the client
/// resets the connection somewhere.
fn exchange(address: SocketAddr, data: &[u8], is_reset: bool, random: &mut fastrand::Rng) {
    let mut stream = connect(address);
    let mut writer = stream.try_clone().unwrap();
    let end = if is_reset { random.usize(..data.len()) } else { data.len() };
    let mut parts = random.fork();
    let part_max = random.choice([10, 1000, 100_000]).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut rest = &data[..end];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(parts.usize(1..=part_max).min(rest.len()));
                writer.write_all(now).unwrap();
                rest = later;
            }
            if !is_reset {
                writer.shutdown(Shutdown::Write).unwrap();
            }
        });
        let (mut received, mut buffer) = (0, vec![0; part_max]);
        while received < end || !is_reset {
            let count = stream.read(&mut buffer).unwrap();
            if count == 0 {
                break;
            }
            assert!(data[received..end].starts_with(&buffer[..count]), "at byte {received}");
            received += count;
        }
        assert_eq!(received, end);
    });
    if is_reset {
        stream.write_all(&data[..data.len().min(100)]).unwrap();
        // The end of the connection, with unread data, resets it.
        let linger = Some(Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&stream, linger).unwrap();
    }
}

/// Switches to random variants until the flag is set.
fn switch_until(control: &Control, is_done: &AtomicBool, random: &mut fastrand::Rng) {
    let variants: Vec<Variant> = (1..=3).flat_map(variants).collect();
    while !is_done.load(Ordering::SeqCst) {
        control.switch(*random.choice(&variants).unwrap()).unwrap();
        // The period of the switches, and not a wait for an effect.
        thread::sleep(Duration::from_micros(random.u64(..4000)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn switches_lose_no_byte_and_close_no_connection(seed: u64) {
        const CLIENTS: u64 = 6;
        const SWITCHES: u64 = 100;
        let (server, address) = start(&Config::default(), || echo);
        let is_done = AtomicBool::new(false);
        let mut idle = connect(address);
        let passed = thread::scope(|scope| {
            let (control, is_done) = (server.control(), &is_done);
            scope.spawn(move || {
                switch_until(&control, is_done, &mut fastrand::Rng::with_seed(seed));
            });
            let server = &server;
            let clients: Vec<_> = (1..=CLIENTS).map(|client| scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed.wrapping_add(client));
                while server.stats().switches < SWITCHES {
                    let bytes = random.choice([100, 10_000, 300_000]).unwrap();
                    let bytes = std::iter::repeat_with(|| random.u8(..)).take(bytes);
                    let data: Vec<u8> = bytes.collect();
                    exchange(address, &data, random.u8(..4) == 0, &mut random);
                }
            })).collect();
            let passed = clients.into_iter().all(|client| client.join().is_ok());
            is_done.store(true, Ordering::SeqCst);
            passed
        });
        if !passed {
            // The end of the server would wait for a connection that a switch has left behind.
            std::mem::forget(server);
            panic!("a client failed");
        }
        // A connection without traffic has moved as well.
        idle.write_all(b"idle").unwrap();
        idle.read_exact(&mut [0; 4]).unwrap();
        let stats = server.stats();
        prop_assert_eq!((stats.panics, stats.idle_closed, stats.too_large), (0, 0, 0));
        server.stop(MINUTE);
    }
}

#[test]
fn output_and_requests_in_progress_move() {
    for from in variants(2) {
        for to in variants(1).filter(|to| to.pattern != from.pattern) {
            let Variant { pattern, mechanism, threads } = from;
            let config = Config { pattern, mechanism, threads: Some(threads), ..Config::default() };
            // Answers a request of four bytes by more than a socket takes.
            const BYTES: usize = 8 << 20;
            static ANSWER: [u8; BYTES] = [7; BYTES];
            let (server, address) = start(&config, || {
                |exchange: &mut Exchange<'_>| {
                    if exchange.input().len() >= 4 {
                        exchange.consume(4);
                        exchange.output().extend_from_slice(&ANSWER);
                    }
                }
            });
            let (mut pending, mut partial) = (connect(address), connect(address));
            pending.write_all(b"full").unwrap();
            partial.write_all(b"ha").unwrap();
            pending.read_exact(&mut [0; 1]).unwrap();
            server.control().switch(to).unwrap();
            partial.write_all(b"lf").unwrap();
            for (stream, left) in [(&mut pending, BYTES - 1), (&mut partial, BYTES)] {
                stream.shutdown(Shutdown::Write).unwrap();
                let mut received = Vec::new();
                stream.read_to_end(&mut received).unwrap();
                assert_eq!(received.len(), left, "{from:?} to {to:?}");
                assert!(received == ANSWER[..left], "{from:?} to {to:?}");
            }
            assert_eq!(server.control().variant(), to);
            server.stop(MINUTE);
        }
    }
}

/// The only thread runs a handler that waits. The switch adds a thread, which serves the rest.
#[test]
fn added_thread_serves_connections_while_a_handler_runs() {
    for to in variants(2).filter(|to| to.pattern != Pattern::ThreadPerCore) {
        let (go, may_go) = channel::<()>();
        let may_go = Arc::new(std::sync::Mutex::new(may_go));
        let (entered, has_entered) = channel();
        let (server, address) =
            start(&Config { threads: Some(1), ..Config::default() }, move || {
                let (may_go, entered) = (may_go.clone(), entered.clone());
                move |exchange: &mut Exchange<'_>| {
                    if exchange.input() == b"long" {
                        entered.send(()).unwrap();
                        may_go.lock().unwrap().recv_timeout(MINUTE).unwrap();
                    }
                    echo(exchange);
                }
            });
        let (mut long, mut short) = (connect(address), connect(address));
        long.write_all(b"long").unwrap();
        has_entered.recv_timeout(MINUTE).unwrap();
        server.control().switch(to).unwrap();
        short.write_all(b"short").unwrap();
        short.read_exact(&mut [0; 5]).unwrap_or_else(|e| panic!("{e} {to:?}"));
        go.send(()).unwrap();
        long.read_exact(&mut [0; 4]).unwrap();
        server.stop(MINUTE);
    }
}

#[test]
fn server_stops_while_it_switches() {
    for seed in 0..20 {
        let (server, address) = start(&Config::default(), || echo);
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let (control, is_done) = (server.control(), &is_done);
            scope.spawn(move || {
                switch_until(&control, is_done, &mut fastrand::Rng::with_seed(seed));
                assert!(control.is_over());
                // A switch of a server that has ended has no effect.
                control.switch(variants(3).next().unwrap()).unwrap();
            });
            let mut stream = connect(address);
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0; 1]).unwrap();
            server.stop(MINUTE);
            is_done.store(true, Ordering::SeqCst);
            assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
        });
    }
}

#[test]
fn load_counts_events_and_requests_of_the_present_threads() {
    for variant in variants(2) {
        let (server, address) = start(&Config { threads: Some(1), ..Config::default() }, || {
            |exchange: &mut Exchange<'_>| {
                if exchange.input().starts_with(b"3") {
                    exchange.count(3);
                }
                echo(exchange);
            }
        });
        let mut control = server.control();
        let mut stream = connect(address);
        let mut talk = |message: &[u8]| {
            stream.write_all(message).unwrap();
            stream.read_exact(&mut [0; 1]).unwrap();
        };
        (0..10).for_each(|_| talk(b"x"));
        let sum = |control: &mut Control| {
            let load = control.load();
            let numbers = load.threads.iter().map(|thread| (thread.requests, thread.events));
            (load.variant, numbers.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1)))
        };
        let (old, (requests, events)) = sum(&mut control);
        assert_eq!((old.threads, requests), (1, 10));
        assert!(events > 0);
        control.switch(variant).unwrap();
        while control.load().threads.len() < variant.threads {
            thread::yield_now();
        }
        (0..10).for_each(|_| talk(b"3"));
        let (new, (requests, events)) = sum(&mut control);
        assert_eq!((new, requests), (variant, 30));
        assert!(events > 0);
        assert_eq!(server.stats().requests, 40);
        let times = control.load().threads;
        assert!(times.iter().all(|thread| thread.ran_ns.is_some() && thread.waited_ns.is_some()));
        server.stop(MINUTE);
    }
}

#[test]
fn waits_without_events_do_not_count() {
    for pattern in Pattern::ALL {
        let idle_timeout = Some(Duration::from_millis(10));
        let threads = Some(1 + pattern.detectors());
        let config = Config { pattern, threads, idle_timeout, ..Config::default() };
        let (server, address) = start(&config, || echo);
        // Several sweeps end waits before one of them closes the connection.
        assert_eq!(connect(address).read(&mut [0; 1]).unwrap(), 0);
        let threads = server.control().load().threads;
        assert!(threads.iter().all(|thread| thread.waits <= thread.events), "{threads:?}");
        assert!(threads[0].waits > 0);
    }
}

#[test]
fn control_in_a_child_of_fork_has_no_effect_and_takes_no_lock() {
    let (entered, has_entered) = channel();
    let (server, address) = start(&Config { threads: Some(1), ..Config::default() }, move || {
        let entered = entered.clone();
        move |exchange: &mut Exchange<'_>| {
            echo(exchange);
            let _ = entered.send(());
        }
    });
    let mut stream = connect(address);
    stream.write_all(b"x").unwrap();
    has_entered.recv_timeout(MINUTE).unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    let (is_over, control) = (AtomicBool::new(false), server.control());
    thread::scope(|scope| {
        // The threads of the parent take the locks of the server all the time, so that many of the
        // children begin with locks that no thread releases.
        for _ in 0..2 {
            scope.spawn(|| {
                let mut control = server.control();
                while !is_over.load(Ordering::SeqCst) {
                    let _ = (control.load(), control.variant(), server.stats(), control.tids());
                }
            });
        }
        let passed = (0..30).all(|_| {
            in_child(|| {
                let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
                let is_inert = |mut control: Control| {
                    control.switch(Variant { threads: 2, ..control.variant() }).unwrap();
                    let is_idle = control.load().threads.is_empty() && control.tids().is_empty();
                    is_idle && control.is_over() && control.stats() == server.stats()
                };
                is_inert(server.control()) && control.variant().threads == 1 && threads() == 1
            })
        });
        is_over.store(true, Ordering::SeqCst);
        assert!(passed);
    });
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    assert_eq!((server.stats().switches, server.stats().requests), (0, 2));
}

/// Returns the names of the threads of a server in the system, in alphabetical order.
fn names(control: &Control) -> Vec<String> {
    let name = |tid| std::fs::read_to_string(format!("/proc/self/task/{tid}/comm")).unwrap();
    let mut names: Vec<String> =
        control.tids().into_iter().map(|tid| name(tid).trim_end().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn threads_have_the_names_of_their_roles() {
    let (server, _) = start(&Config { threads: Some(3), ..Config::default() }, || echo);
    let control = server.control();
    let expect = |pattern, expected: [&str; 3]| {
        let mechanism = Mechanism::Edge;
        let threads = if pattern == Pattern::LeaderFollowers { 2 } else { 3 };
        control.switch(Variant { pattern, mechanism, threads }).unwrap();
        let begin = Instant::now();
        while names(&control) != expected {
            assert!(begin.elapsed() < MINUTE, "{:?}", names(&control));
            thread::yield_now();
        }
    };
    expect(Pattern::ThreadPerCore, ["reactor core"; 3]);
    let halves = ["reactor detect", "reactor process", "reactor process"];
    expect(Pattern::HalfSyncHalfAsync, halves);
    expect(Pattern::LeaderFollowers, ["reactor idle", "reactor pool", "reactor pool"]);
    expect(Pattern::HalfSyncHalfAsync, halves);
}

#[test]
fn forbidden_io_uring_is_an_error_and_the_server_continues() {
    let (server, address) = start(&Config { threads: Some(1), ..Config::default() }, || echo);
    let mut stream = connect(address);
    let control = server.control();
    let before = control.variant();
    // The filter applies to this thread only, and to those that it starts.
    let refuses = |call| {
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    refuse(call, libc::EPERM);
                    let mechanism = Mechanism::IoUring;
                    let refused = check_mechanism(mechanism).unwrap_err();
                    let Error::IoUring(why) = &refused else { panic!("{refused}") };
                    assert_eq!(why.kind(), std::io::ErrorKind::PermissionDenied);
                    assert!(refused.to_string().contains("corebeat doctor"), "{refused}");
                    let refused = control.switch(Variant { mechanism, ..before });
                    assert!(matches!(refused, Err(Error::IoUring(_))));
                    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
                    let config = Config { mechanism, ..Config::default() };
                    let refused = Server::start(config, listener, || echo);
                    assert!(matches!(refused, Err(Error::IoUring(_))));
                    check_mechanism(Mechanism::Edge).unwrap();
                })
                .join()
                .unwrap()
        });
    };
    refuses(libc::SYS_io_uring_setup);
    if check_mechanism(Mechanism::IoUring).is_ok() {
        refuses(libc::SYS_io_uring_enter);
    }
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    assert_eq!((control.variant(), server.stats().switches), (before, 0));
}

#[test]
fn invalid_variant_changes_nothing() {
    let (server, _) = start(&Config { threads: Some(1), ..Config::default() }, || echo);
    let control = server.control();
    let before = control.variant();
    for (pattern, threads) in [(Pattern::HalfSyncHalfAsync, 1), (Pattern::LeaderFollowers, 0)] {
        let refused = control.switch(Variant { pattern, mechanism: Mechanism::Edge, threads });
        assert!(matches!(refused, Err(Error::TooFewThreads { .. })));
    }
    assert_eq!(control.variant(), before);
    assert_eq!(server.stats().switches, 0);
}
