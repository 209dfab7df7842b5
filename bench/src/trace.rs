//! Measures the cost of trace events: for the thread that logs, for all threads, and in the file.
//!
//! Each subject runs in a separate process. After each lap of events a pause follows, in which the
//! logged events are written.

use crate::Bench;
use crate::apart::{self, Case};
use crate::line::{cpus, pin};
use crate::round::Measured;
use crate::row::Better;
use crate::session::Session;
use clap::ValueEnum;
use corebeat_trace::{Compression, Event, Reader, Trace, WhenFull, emit};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub(crate) const BENCHES: [Bench; 1] = [Bench {
    name: "trace.event",
    summary: "cost of an event with a number and a time",
    peers: &["tracing"],
    tools: &[],
    cases: |_| Figure::value_variants().iter().map(apart::name).collect(),
    run,
}];

/// Events of a lap, which fit into the buffers of a thread.
const EVENTS: u64 = 50_000;
/// Measured laps, after one lap that warms up.
const LAPS: u64 = 40;
/// Pause after each lap, in which the writer catches up.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    Corebeat,
    #[value(name = "corebeat, not compressed")]
    Plain,
    #[value(name = "corebeat, zstd")]
    Zstd,
    #[value(name = "corebeat, untimed")]
    Untimed,
    Tracing,
}

/// The measured quantity.
#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Figure {
    #[value(name = "on the caller")]
    Caller,
    #[value(name = "CPU time of all threads")]
    All,
    #[value(name = "in the file")]
    File,
}

fn run(session: &Session) -> Result<(), String> {
    let case = |figure| Case::new(apart::name(figure), Subject::value_variants(), *figure);
    let cases: Vec<Case<Subject, Figure>> = Figure::value_variants().iter().map(case).collect();
    apart::measure_each(
        session,
        BENCHES[0].name,
        |case| match case.subjects[0].2 {
            Figure::Caller | Figure::All => ("ns/event", Better::Lower),
            Figure::File => ("bytes/event", Better::Lower),
        },
        &cases,
        |subject, figure| measure(session, subject, figure),
    )
}

fn measure(session: &Session, subject: Subject, figure: Figure) -> Result<Measured, String> {
    let (events, laps) = if session.quick { (500, 1) } else { (EVENTS, LAPS) };
    // The subject checks the number of events itself.
    apart::value(apart::command(session, "trace", &Options { subject, figure, events, laps })?)
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    figure: Figure,
    /// Events of a lap.
    events: u64,
    /// Measured laps.
    laps: u64,
}

#[derive(Event)]
struct Entered {
    function: u32,
}

#[derive(Event)]
#[event(untimed)]
struct Passed {
    function: u32,
}

/// The main function of the child.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let path = folder.path().join("trace");
    let before = cpu_time();
    let caller = match options.subject {
        Subject::Tracing => trace_with_tracing(options, &path)?,
        subject => {
            let compression = match subject {
                Subject::Plain => Compression::None,
                Subject::Zstd => Compression::Zstd,
                _ => Compression::Lz4,
            };
            let recorded = corebeat_trace::Options {
                compression,
                when_full: WhenFull::Wait,
                ..corebeat_trace::Options::default()
            };
            let trace = recorded.create(&path).map_err(|e| e.to_string())?;
            trace.install().map_err(|e| e.to_string())?;
            let caller = match subject {
                Subject::Untimed => laps(options, |function| emit(&Passed { function })),
                _ => laps(options, |function| emit(&Entered { function })),
            };
            finish(trace)?;
            caller
        }
    };
    let all = cpu_time() - before;
    let counted = count(options.subject, &path)?;
    let expected = (options.laps + 1) * options.events;
    if counted != expected {
        return Err(format!("the file contains {counted} events instead of {expected}"));
    }
    let bytes = path.metadata().map_err(|e| e.to_string())?.len();
    let value = match options.figure {
        Figure::Caller => caller.as_nanos() as f64 / (options.laps * options.events) as f64,
        Figure::All => all.as_nanos() as f64 / expected as f64,
        Figure::File => bytes as f64 / expected as f64,
    };
    Ok((value, counted))
}

fn finish(trace: Trace) -> Result<(), String> {
    trace.finish().map(drop).map_err(|e| e.to_string())
}

/// The time of all laps except the first, on one CPU.
fn laps(options: &Options, event: impl Fn(u32) + Sync) -> Duration {
    let work = || {
        cpus().first().copied().map(pin);
        let mut time = Duration::ZERO;
        for lap in 0..=options.laps {
            let begin = Instant::now();
            (0..options.events as u32).for_each(&event);
            time += if lap > 0 { begin.elapsed() } else { Duration::ZERO };
            std::thread::sleep(PAUSE);
        }
        time
    };
    std::thread::scope(|scope| {
        scope.spawn(work).join().expect("the measuring thread does not panic")
    })
}

/// The alternative that writes its events as lines of text: `tracing`.
fn trace_with_tracing(options: &Options, path: &Path) -> Result<Duration, String> {
    let file = File::create(path).map_err(|e| e.to_string())?;
    let file: &'static Lines = Box::leak(Box::new(Lines(Mutex::new(BufWriter::new(file)))));
    let to_file = tracing_subscriber::fmt().with_ansi(false).with_writer(move || file).finish();
    tracing::subscriber::set_global_default(to_file).map_err(|e| e.to_string())?;
    let caller = laps(options, |function| tracing::info!(function, "entered"));
    file.0.lock().expect("no holder of the lock panics").flush().map_err(|e| e.to_string())?;
    Ok(caller)
}

/// A file to which threads write lines.
struct Lines(Mutex<BufWriter<File>>);

impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no holder of the lock panics").write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Number of events in the file.
fn count(subject: Subject, path: &Path) -> Result<u64, String> {
    let file = BufReader::new(File::open(path).map_err(|e| e.to_string())?);
    if subject == Subject::Tracing {
        return Ok(file.lines().count() as u64);
    }
    let mut reader = Reader::new(file).map_err(|e| e.to_string())?;
    let mut events = 0;
    while let Some(packet) = reader.next_packet().map_err(|e| e.to_string())? {
        events += packet.events().len() as u64;
    }
    Ok(events)
}

/// CPU time of all threads of this process, in user mode and in the kernel.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
