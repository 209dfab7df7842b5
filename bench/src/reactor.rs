//! Measures servers that echo messages over loopback: CPU time of the server for a request,
//! requests per second, latencies, and memory of idle connections; and the two examples of servers
//! beside those of others.
//!
//! Each subject is a server in a separate process. The client is a thread of this process: it has
//! 512 connections with at most one outstanding request each, as in Strebelow and Prehofer,
//! *Analysis of Event Processing Design Patterns and Their Performance Dependency on I/O
//! Notification Mechanisms*, 2012, section 4. It compares each answer with its request.

mod client;
mod hand;
mod peer;
mod product;
mod server;
mod several;

use crate::Bench;
use crate::apart::{self, RUN_MAX, name, names, thread_counts};
use crate::child::Running;
use crate::go;
use crate::line::{cpus, pin};
use crate::memory::resident_bytes_of;
use crate::program::{threads, word_after};
use crate::round::Measured;
use crate::row::Better;
use crate::session::Session;
use crate::tool::{GO, NODE};
use clap::ValueEnum;
use client::{Load, SATURATED, Served};
use corebeat_reactor::{Mechanism, check_mechanism};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use several::Quantity;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Size of a message in bytes.
const MESSAGE_BYTES: usize = 64;

pub(crate) const BENCHES: [Bench; 8] = [
    Bench {
        name: "reactor.cpu",
        summary: "CPU time of an echo server for a request, with 512 connections",
        peers: &PEERS,
        tools: &[GO, NODE],
        cases: |session| names(&cases(session)),
        run: |session| measure(session, "reactor.cpu", Value::Cpu),
    },
    Bench {
        name: "reactor.rate",
        summary: "requests per second of an echo server with 512 connections",
        peers: &PEERS,
        tools: &[GO, NODE],
        cases: |session| names(&cases(session)),
        run: |session| measure(session, "reactor.rate", Value::Rate),
    },
    Bench {
        name: "reactor.latency",
        summary: "latency of an echo server at 20,000 requests per second, from when each is due",
        peers: &PEERS,
        tools: &[GO, NODE],
        cases: |session| LATENCY.names(&cases(session)),
        run: |session| LATENCY.measure(session, &cases(session)),
    },
    Bench {
        name: "reactor.auto",
        summary: "CPU time and latency of an echo server while the load changes by a factor of 100",
        peers: &["corebeat", "corebeat, leader/followers"],
        tools: &[],
        cases: |session| AUTO.names(&steps(session)),
        run: |session| AUTO.measure(session, &steps(session)),
    },
    Bench {
        name: "reactor.idle",
        summary: "memory of an echo server for an idle connection",
        peers: &PEERS,
        tools: &[GO, NODE],
        cases: |session| names(&idle(session)),
        run: |session| {
            let run = |subject, threads| memory(session, &Options { subject, threads });
            let unit = |_: &_| ("bytes", Better::Lower);
            apart::measure_each(session, "reactor.idle", unit, &idle(session), run)
        },
    },
    Bench {
        name: "reactor.crowd",
        summary: "CPU time of an echo server for a request, with 512 active connections of many",
        peers: &PEERS,
        tools: &[GO, NODE],
        cases: |session| names(&crowd(session)),
        run: |session| {
            let run = |subject, idle| {
                let load = Load { idle, ..load(session, &[SATURATED], STEP) };
                let served = serve(session, &Options { subject, threads: 1 }, &load)?;
                Ok(Measured::Value(served.cpu_ns()))
            };
            let unit = |_: &_| ("ns/request", Better::Lower);
            apart::measure_each(session, "reactor.crowd", unit, &crowd(session), run)
        },
    },
    product::CACHE,
    product::WEB,
];

const PEERS: [&str; 7] = ["epoll by hand", "tokio", "mio", "may", "monoio", "go", "node"];

/// Time of a step under full load.
const STEP: Duration = Duration::from_millis(500);
/// Number of idle connections whose memory is measured.
const IDLE: usize = 10_000;
/// Number of idle connections beside the active ones, as far as the limit of descriptors permits.
const CROWD: usize = 20_000;

/// Benches of loads at fixed rates: the CPU time, and latencies.
struct Paced {
    bench: &'static str,
    /// Requests per second of the steps.
    rates: &'static [f64],
    step: Duration,
    /// Shares of the requests, with their names, whose latency is measured.
    shares: &'static [(&'static str, f64)],
}

const LATENCY: Paced = Paced {
    bench: "reactor.latency",
    rates: &[20_000.0],
    step: Duration::from_secs(1),
    shares: &[("50%", 0.5), ("99%", 0.99), ("99.9%", 0.999)],
};

const AUTO: Paced = Paced {
    bench: "reactor.auto",
    rates: &[
        300.0, 30_000.0, 300.0, 30_000.0, 300.0, 30_000.0, 300.0, 30_000.0, 300.0, 30_000.0, 300.0,
        30_000.0,
    ],
    step: Duration::from_secs(1),
    shares: &[("99%", 0.99)],
};

impl Paced {
    fn quantities(&self) -> Vec<Quantity> {
        let latency = |(name, _): &(&str, f64)| Quantity {
            name: format!("latency of {name}"),
            unit: "µs",
            better: Better::Lower,
        };
        let cpu = Quantity { name: "CPU".into(), unit: "ns/request", better: Better::Lower };
        [cpu].into_iter().chain(self.shares.iter().map(latency)).collect()
    }

    fn names(&self, cases: &[Case]) -> Vec<String> {
        let quantities = self.quantities();
        cases.iter().flat_map(|case| several::names(&case.name, &quantities)).collect()
    }

    fn measure(&self, session: &Session, cases: &[Case]) -> Result<(), String> {
        for case in cases {
            let turn = |(name, subject, threads): &(String, Subject, usize)| {
                let options = Options { subject: *subject, threads: *threads };
                let run = move || -> Result<Vec<f64>, String> {
                    let served = serve(session, &options, &load(session, self.rates, self.step))?;
                    let shares = self.shares.iter().map(|(_, share)| served.latency_us(*share));
                    [Ok(served.cpu_ns())].into_iter().chain(shares).collect()
                };
                several::Subject { name: name.clone(), run: Box::new(run) }
            };
            let subjects = case.subjects.iter().map(turn).collect();
            several::measure(session, self.bench, &case.name, &self.quantities(), subjects);
        }
        Ok(())
    }
}

/// The measured quantity.
#[derive(Clone, Copy)]
enum Value {
    Cpu,
    Rate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    Corebeat,
    #[value(name = "corebeat, adaptive")]
    Adaptive,
    #[value(name = "corebeat, leader/followers")]
    Leader,
    #[value(name = "corebeat, half-sync")]
    HalfSync,
    #[value(name = "corebeat, one-shot")]
    OneShot,
    #[value(name = "corebeat, poll")]
    Poll,
    #[value(name = "corebeat, io_uring")]
    IoUring,
    #[value(name = "corebeat, stackful tasks")]
    Stackful,
    #[value(name = "corebeat, async tasks")]
    Async,
    #[value(name = "epoll by hand")]
    Hand,
    Tokio,
    Mio,
    May,
    Monoio,
    Go,
    Node,
}

/// One subject, with its number of threads.
#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    threads: usize,
}

type Case = apart::Case<Subject, usize>;

/// Returns whether this machine can run a subject with this number of threads.
fn is_there(session: &Session, subject: Subject, threads: usize) -> bool {
    match subject {
        // Half-Sync/Half-Async has no variant with one thread.
        Subject::HalfSync => threads > 1,
        Subject::Go => session.has(GO),
        // Its programs run on one thread.
        Subject::Node => threads == 1 && session.has(NODE),
        Subject::IoUring | Subject::Monoio => check_mechanism(Mechanism::IoUring).is_ok(),
        _ => true,
    }
}

fn cases(session: &Session) -> Vec<Case> {
    let case = |count| {
        let subjects = Subject::value_variants().iter();
        let subjects = subjects.filter(|subject| is_there(session, **subject, count));
        Case::new(threads(count), subjects, count)
    };
    thread_counts(session).map(case).collect()
}

/// The load changes for servers that may use all CPUs.
fn steps(session: &Session) -> Vec<Case> {
    let subjects = [Subject::Adaptive, Subject::Corebeat, Subject::Leader];
    let most = thread_counts(session).max();
    most.map(|count| Case::new(threads(count), subjects.iter(), count)).into_iter().collect()
}

/// Connections without traffic, of servers with one thread. Each connection of `poll` is in each
/// call, so that it shows nothing more than the others.
fn idle(session: &Session) -> Vec<Case> {
    let variants = [Subject::Adaptive, Subject::Leader, Subject::OneShot, Subject::Poll];
    let subjects = Subject::value_variants().iter();
    let is_chosen =
        |subject: &&Subject| !variants.contains(subject) && is_there(session, **subject, 1);
    vec![Case::new("idle connection", subjects.filter(is_chosen), 1)]
}

/// Active connections among idle ones, of servers with one thread.
fn crowd(session: &Session) -> Vec<Case> {
    let idle = if session.quick { 100 } else { CROWD.min(descriptors().saturating_sub(1000)) };
    let subjects = [
        Subject::Corebeat,
        Subject::IoUring,
        Subject::Stackful,
        Subject::Async,
        Subject::Hand,
        Subject::Tokio,
        Subject::Go,
        Subject::Node,
    ];
    let subjects = subjects.into_iter().filter(|subject| is_there(session, *subject, 1));
    let pair = |subject: Subject| {
        let name = name(&subject);
        [(name.clone(), subject, idle), (format!("{name}, none idle"), subject, 0)]
    };
    let name = format!("512 active, {idle} idle");
    vec![Case { name, subjects: subjects.flat_map(pair).collect() }]
}

fn measure(session: &Session, bench: &'static str, value: Value) -> Result<(), String> {
    let unit = match value {
        Value::Cpu => ("ns/request", Better::Lower),
        Value::Rate => ("requests/s", Better::Higher),
    };
    let run = |subject, threads| {
        let load = load(session, &[SATURATED], STEP);
        let served = serve(session, &Options { subject, threads }, &load)?;
        Ok(Measured::Value(match value {
            Value::Cpu => served.cpu_ns(),
            Value::Rate => served.requests as f64 / served.wall_s,
        }))
    };
    apart::measure_each(session, bench, |_| unit, &cases(session), run)
}

/// Returns a load without idle connections.
fn load(session: &Session, rates: &'static [f64], step: Duration) -> Load {
    match session.quick {
        true => Load { connections: 8, idle: 0, rates, step: Duration::from_millis(20) },
        false => Load { connections: 512, idle: 0, rates, step },
    }
}

/// Runs a server once, and `client` beside it, with the port.
fn run<T: Send>(
    session: &Session,
    options: &Options,
    client: impl FnOnce(u16, &Running) -> Result<T, String> + Send,
) -> Result<T, String> {
    descriptors();
    let mut server = Running::start(command(session, options)?, true)?;
    server.wait_for(READY, RUN_MAX)?;
    let port = word_after(&server.printed(), READY)
        .and_then(|port| port.parse().ok())
        .ok_or("the server printed no port")?;
    let is_alone = options.threads == 1;
    let result = std::thread::scope(|scope| {
        let server = &server;
        let client = scope.spawn(move || {
            if let (true, Some(&cpu)) = (is_alone, cpus().get(1)) {
                pin(cpu);
            }
            client(port, server)
        });
        client.join().map_err(|_| "the client panicked".to_owned())?
    })?;
    server.close_input();
    server.wait(RUN_MAX)?.check()?;
    Ok(result)
}

/// Runs a server once under load.
fn serve(session: &Session, options: &Options, load: &Load) -> Result<Served, String> {
    run(session, options, |port, server| client::run(port, load, || server.cpu_s()))
}

/// Returns the memory of a server for an idle connection, in bytes.
fn memory(session: &Session, options: &Options) -> Result<Measured, String> {
    let (first, count) = if session.quick { (10, 200) } else { (1000, IDLE) };
    run(session, options, |port, server| {
        // The first connections cause memory that does not depend on their number.
        let _first = client::connect_idle(port, first)?;
        let before = resident_bytes_of(server.pid())?;
        let _idle = client::connect_idle(port, count)?;
        let after = resident_bytes_of(server.pid())?;
        Ok(Measured::Value((after as f64 - before as f64) / count as f64))
    })
}

/// Raises the limit of descriptors of this process, and of those that it starts, as far as the
/// system permits. Returns the limit.
fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // A failure leaves the limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize)
}

/// The command that starts a server.
fn command(session: &Session, options: &Options) -> Result<Command, String> {
    match options.subject {
        Subject::Go => {}
        Subject::Node => {
            let mut command = product::pinned(NODE.program, options.threads);
            command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/reactor.js"));
            return Ok(command);
        }
        _ => return apart::command(session, "reactor", options),
    }
    let program = go::program(session, "reactor")?.ok_or("go is missing")?;
    let mut command = Command::new(program);
    command.env("GOMAXPROCS", options.threads.to_string());
    if let (1, Some(&cpu)) = (options.threads, cpus().first()) {
        command.arg(cpu.to_string());
    }
    Ok(command)
}

/// Text that a server prints before its port.
const READY: &str = "port ";

/// The main function of the child.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    if options.threads == 1 {
        cpus().first().map(|&cpu| pin(cpu));
    }
    server::run(options)?;
    Ok((0.0, 0))
}
