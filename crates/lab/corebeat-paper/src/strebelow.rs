//! Throughput of servers by pattern, notification mechanism and number of threads, on this host.
//! Strebelow, Prehofer, *Analysis of Event Processing Design Patterns and Their Performance
//! Dependency on I/O Notification Mechanisms*, 2012, Figures 3 to 5. [`breakdown`] has Figures 6,
//! 7, 9 and 10.
//!
//! As in section 4 of the paper, 512 connections have at most one outstanding request each, and the
//! server answers without further work. The client runs in the same process, on the same CPUs.

pub(crate) mod breakdown;

use crate::report::{Figure, Report, Row};
use corebeat_reactor::{Config, Exchange, Mechanism, Pattern, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// A curve of the figures.
type Curve = (Pattern, Mechanism);

const HALF: Pattern = Pattern::HalfSyncHalfAsync;
const LEADER: Pattern = Pattern::LeaderFollowers;

/// The curves of Figure 3. `poll` replaces `select`.
const CURVES: [(Curve, &str); 6] = [
    ((HALF, Mechanism::Poll), "HS/HA, poll"),
    ((HALF, Mechanism::OneShot), "HS/HA, level"),
    ((HALF, Mechanism::Edge), "HS/HA, edge"),
    ((LEADER, Mechanism::Poll), "L/F, poll"),
    ((LEADER, Mechanism::OneShot), "L/F, level"),
    ((LEADER, Mechanism::Edge), "L/F, edge"),
];

/// Size of a message in bytes.
const MESSAGE_BYTES: usize = 64;
/// Descriptors beside those of the connections, each of which has two in this process.
const DESCRIPTORS: u64 = 100;
/// The paper's largest number of threads.
const THREADS_MAX: usize = 16;

/// Size of a measurement.
struct Scale {
    connections: usize,
    /// Measured time of each point. The client runs for a fifth of this time before.
    time: Duration,
    threads: Vec<usize>,
}

impl Scale {
    /// Up to twice as many threads as CPUs: the paper's curves fall when threads are too many.
    fn of_host() -> Scale {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let most = (2 * cpus).clamp(2, THREADS_MAX);
        Scale { connections: 512, time: Duration::from_millis(250), threads: (2..=most).collect() }
    }
}

pub(crate) fn throughput() -> Report {
    let notes = vec![
        "The paper has curves without numbers: both patterns peak with edge-triggered epoll,",
        "Half-Sync/Half-Async with 10 threads, Leader/Followers with 13 and lower.",
    ];
    curves(&Scale::of_host(), |_| true, false, notes)
}

pub(crate) fn scaling() -> Report {
    let notes = vec![
        "In the paper, Half-Sync/Half-Async loses beyond 11 threads, and Leader/Followers hardly.",
    ];
    curves(&Scale::of_host(), |(_, mechanism)| mechanism == Mechanism::Edge, true, notes)
}

pub(crate) fn half_sync() -> Report {
    let notes = vec![
        "In the paper, select is faster than level-triggered epoll, and slower than edge-triggered.",
    ];
    curves(&Scale::of_host(), |(pattern, _)| pattern == HALF, false, notes)
}

/// Measures the chosen curves, in thousands of messages per second, or relative to the smallest
/// number of threads.
fn curves(
    scale: &Scale,
    is_chosen: impl Fn(Curve) -> bool,
    is_relative: bool,
    notes: Vec<&'static str>,
) -> Report {
    let curves: Vec<_> = CURVES.into_iter().filter(|(curve, _)| is_chosen(*curve)).collect();
    let measure = |threads: usize| -> io::Result<Vec<f64>> {
        curves.iter().map(|(curve, _)| rate(*curve, threads, scale)).collect()
    };
    let rows = scale.threads.iter().map(|threads| Ok((*threads, measure(*threads)?)));
    let rows: Vec<(usize, Vec<f64>)> = rows
        .collect::<io::Result<_>>()
        .unwrap_or_else(|e| panic!("loopback connections work: {e}"));
    let first = rows.first().map_or_else(Vec::new, |(_, rates)| rates.clone());
    let row = |(threads, rates): &(usize, Vec<f64>)| {
        let bases = first.iter().map(|first| if is_relative { *first } else { 1000.0 });
        let figures = rates.iter().zip(bases).map(|(rate, base)| Figure::shown(None, rate / base));
        Row { name: format!("{threads} threads"), figures: figures.collect() }
    };
    Report {
        what: if is_relative { "speed relative to 2 threads" } else { "1000 messages/s" },
        columns: curves.iter().map(|(_, name)| *name).collect(),
        rows: rows.iter().map(row).collect(),
        notes,
    }
}

/// Returns the messages per second of a server.
fn rate((pattern, mechanism): Curve, threads: usize, scale: &Scale) -> io::Result<f64> {
    let (descriptors, limit) = (2 * scale.connections as u64 + DESCRIPTORS, Resource::Nofile);
    let Rlimit { current, maximum } = getrlimit(limit);
    if current.is_some_and(|current| current < descriptors) {
        setrlimit(limit, Rlimit { current: Some(descriptors), maximum })?;
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let config = Config { pattern, mechanism, threads: Some(threads), ..Config::default() };
    let echo = |exchange: &mut Exchange<'_>| {
        let input = exchange.input();
        exchange.output().extend_from_slice(input);
        exchange.consume(input.len());
    };
    let server = Server::start(config, listener, move || echo).map_err(io::Error::other)?;
    let clients = thread::available_parallelism().map_or(1, usize::from).div_ceil(2);
    let rates = thread::scope(|scope| {
        let client = |n: usize| {
            let own = scale.connections / clients + usize::from(n < scale.connections % clients);
            scope.spawn(move || client(address, own, scale.time))
        };
        let clients: Vec<_> = (0..clients).map(client).collect();
        let rate = |client: thread::ScopedJoinHandle<'_, io::Result<f64>>| {
            client.join().unwrap_or_else(|_| Err(io::Error::other("the client panicked")))
        };
        clients.into_iter().map(rate).sum::<io::Result<f64>>()
    });
    drop(server);
    rates
}

/// Returns the messages per second of some connections.
fn client(address: SocketAddr, connections: usize, time: Duration) -> io::Result<f64> {
    let mut message = [7; MESSAGE_BYTES];
    let connect = |_| {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.write_all(&message)?;
        Ok(stream)
    };
    let mut streams = (0..connections).map(connect).collect::<io::Result<Vec<_>>>()?;
    let mut serve = |time: Duration| -> io::Result<f64> {
        let (begin, mut count) = (Instant::now(), 0_u64);
        while begin.elapsed() < time {
            for stream in &mut streams {
                stream.read_exact(&mut message)?;
                stream.write_all(&message)?;
                count += 1;
            }
        }
        Ok(count as f64 / begin.elapsed().as_secs_f64())
    };
    serve(time / 5)?;
    serve(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_has_a_figure_for_each_number_of_threads() {
        let _recording = breakdown::RECORDING.lock().unwrap_or_else(|e| e.into_inner());
        let time = Duration::from_millis(2);
        let scale = Scale { connections: 5, time, threads: vec![2, 3] };
        let report = curves(&scale, |_| true, true, vec![]);
        assert_eq!((report.columns.len(), report.rows.len()), (6, 2));
        let figures = report.rows.iter().flat_map(|row| &row.figures);
        assert!(figures.clone().all(|figure| figure.ours > 0.0));
        assert!(report.rows[0].figures.iter().all(|figure| figure.ours == 1.0));
        assert_eq!(figures.count(), 12);
    }
}
