//! Measures servers that echo messages over loopback: CPU time of the server for a request, and
//! requests per second.
//!
//! Each subject is a server in a separate process. The client is a thread of this process: it has
//! 512 connections with at most one outstanding request each, as in Strebelow and Prehofer,
//! *Analysis of Event Processing Design Patterns and Their Performance Dependency on I/O
//! Notification Mechanisms*, 2012, section 4. It compares each answer with its request.

mod client;
mod hand;
mod peer;
mod server;

use crate::Bench;
use crate::apart::{self, RUN_MAX, names, thread_counts};
use crate::child::Running;
use crate::go;
use crate::line::{cpus, pin};
use crate::program::{threads, word_after};
use crate::round::Measured;
use crate::row::Better;
use crate::session::Session;
use crate::tool::GO;
use clap::ValueEnum;
use client::{Load, SATURATED};
use corebeat_reactor::{Mechanism, check_mechanism};
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::time::Duration;

/// Size of a message in bytes.
const MESSAGE_BYTES: usize = 64;

pub(crate) const BENCHES: [Bench; 3] = [
    Bench {
        name: "reactor.cpu",
        summary: "CPU time of an echo server for a request, with 512 connections",
        peers: &PEERS,
        tools: &[GO],
        cases: |session| names(&cases(session)),
        run: |session| measure(session, "reactor.cpu", Value::Cpu),
    },
    Bench {
        name: "reactor.rate",
        summary: "requests per second of an echo server with 512 connections",
        peers: &PEERS,
        tools: &[GO],
        cases: |session| names(&cases(session)),
        run: |session| measure(session, "reactor.rate", Value::Rate),
    },
    Bench {
        name: "reactor.auto",
        summary: "CPU time of an echo server for a request while the load changes by a factor of 100",
        peers: &["corebeat", "corebeat, leader/followers"],
        tools: &[],
        cases: |session| names(&steps(session)),
        run: |session| {
            let run = |subject, threads| run(session, &Options { subject, threads }, Value::Steps);
            let unit = |_: &_| ("ns/request", Better::Lower);
            apart::measure_each(session, "reactor.auto", unit, &steps(session), run)
        },
    },
];

const PEERS: [&str; 6] = ["epoll by hand", "tokio", "mio", "may", "monoio", "go"];

/// Requests per second of the steps of `reactor.auto`.
const STEPS: [f64; 4] = [300.0, 30_000.0, 300.0, 30_000.0];

/// The measured quantity.
#[derive(Clone, Copy)]
enum Value {
    Cpu,
    Rate,
    /// CPU time of a request, while the load changes.
    Steps,
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
}

/// One subject, with its number of threads.
#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    threads: usize,
}

type Case = apart::Case<Subject, usize>;

fn cases(session: &Session) -> Vec<Case> {
    let case = |count| {
        let is_there = |subject: &&Subject| match subject {
            // Half-Sync/Half-Async has no variant with one thread.
            Subject::HalfSync => count > 1,
            Subject::Go => session.has(GO),
            Subject::IoUring | Subject::Monoio => check_mechanism(Mechanism::IoUring).is_ok(),
            _ => true,
        };
        Case::new(threads(count), Subject::value_variants().iter().filter(is_there), count)
    };
    thread_counts(session).map(case).collect()
}

/// The load changes for servers that may use all CPUs.
fn steps(session: &Session) -> Vec<Case> {
    let subjects = [Subject::Adaptive, Subject::Corebeat, Subject::Leader];
    let most = thread_counts(session).max();
    most.map(|count| Case::new(threads(count), subjects.iter(), count)).into_iter().collect()
}

fn measure(session: &Session, bench: &'static str, value: Value) -> Result<(), String> {
    let unit = match value {
        Value::Cpu | Value::Steps => ("ns/request", Better::Lower),
        Value::Rate => ("requests/s", Better::Higher),
    };
    let run = |subject, threads| run(session, &Options { subject, threads }, value);
    apart::measure_each(session, bench, |_| unit, &cases(session), run)
}

/// Runs a server once under load.
fn run(session: &Session, options: &Options, value: Value) -> Result<Measured, String> {
    let mut server = Running::start(command(session, options)?, true)?;
    server.wait_for(READY, RUN_MAX)?;
    let port = word_after(&server.printed(), READY)
        .and_then(|port| port.parse().ok())
        .ok_or("the server printed no port")?;
    let rates: &[f64] = match value {
        Value::Cpu | Value::Rate => &[SATURATED],
        Value::Steps => &STEPS,
    };
    let load = match session.quick {
        true => Load { connections: 8, rates, step: Duration::from_millis(20) },
        false => Load { connections: 512, rates, step: Duration::from_millis(500) },
    };
    let is_alone = options.threads == 1;
    let served = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            if let (true, Some(&cpu)) = (is_alone, cpus().get(1)) {
                pin(cpu);
            }
            client::run(port, &load, || server.cpu_s())
        });
        client.join().map_err(|_| "the client panicked".to_owned())?
    })?;
    server.close_input();
    server.wait(RUN_MAX)?.check()?;
    Ok(Measured::Value(match value {
        Value::Cpu | Value::Steps => served.cpu_s * 1e9 / served.requests as f64,
        Value::Rate => served.requests as f64 / served.wall_s,
    }))
}

/// The command that starts a server.
fn command(session: &Session, options: &Options) -> Result<Command, String> {
    if options.subject != Subject::Go {
        return apart::command(session, "reactor", options);
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
