//! Probes on functions beside their peers: the overhead of a call in three portions.
//!
//! After Waller and Hasselbring, *A Comparison of the Influence of Different Multi-core Processors on the Runtime Overhead for
//! Application-Level Monitoring*, 2012, section 4.1: a function without a probe (T), with one that is off (T + I), with one
//! that collects what nobody writes (T + I + C), and with one whose records are written (T + I + C + W). What is shown is without T. Laps with probes
//! and laps without take turns, with a pause after each in which writers catch up, as the paper has 500 µs between calls.

use crate::Bench;
use crate::apart::{self, Case};
use crate::line::{cpus, pin};
use crate::round::{Measured, Subject as Turn};
use crate::row::{Better, median};
use crate::session::Session;
use clap::ValueEnum;
use corebeat_probe::{probe, record, switch};
use corebeat_trace::{Compression, Options as TraceOptions};
use fastrace::collector::{Config, Reporter, SpanContext, SpanRecord};
use fastrace::local::LocalSpan;
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Write, sink};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tracing::Subscriber;
use tracing::span::{Attributes, Id};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

pub(crate) const BENCHES: [Bench; 3] = [
    Bench {
        name: "probe.call",
        summary: "what a probe adds to a call, on the thread that makes it: off (I), collecting (I + C), writing (I + C + W)",
        peers: PEERS,
        tools: &[],
        cases: |_| CALLS.iter().map(|case| case.0.to_owned()).collect(),
        run: |session| run(session, &BENCHES[0], Figure::Caller, &CALLS),
    },
    Bench {
        name: "probe.cpu",
        summary: "the same in CPU time of all threads",
        peers: PEERS,
        tools: &[],
        cases: |_| vec![WRITING.0.to_owned()],
        run: |session| run(session, &BENCHES[1], Figure::Cpu, &[WRITING]),
    },
    Bench {
        name: "probe.bytes",
        summary: "bytes on disk for each of a call's two events",
        peers: PEERS,
        tools: &[],
        cases: |_| vec![WRITING.0.to_owned()],
        run: |session| run(session, &BENCHES[2], Figure::Bytes, &[WRITING]),
    },
];

const PEERS: &[&str] = &["tracing", "fastrace"];
/// A case: its name, how far the probe goes, and how deep calls are nested.
type Portion = (&'static str, Stage, u32);
const WRITING: Portion = ("writing", Stage::Writing, 1);
/// The last three are figure 4: what a call costs must not grow with depth.
const CALLS: [Portion; 6] = [
    ("off", Stage::Off, 1),
    ("collecting", Stage::Collecting, 1),
    WRITING,
    ("writing, depth 4", Stage::Writing, 4),
    ("writing, depth 16", Stage::Writing, 16),
    ("writing, depth 64", Stage::Writing, 64),
];
/// A run is ended after this.
const RUN_MAX: Duration = Duration::from_secs(60);
/// Calls of a lap: as many as buffers have room for.
const CALLS_A_LAP: u32 = 32_768;
/// After each lap.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Subject {
    Corebeat,
    Tracing,
    Fastrace,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Stage {
    Off,
    Collecting,
    Writing,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Figure {
    Caller,
    Cpu,
    Bytes,
}

fn run(session: &Session, bench: &Bench, figure: Figure, portions: &[Portion]) -> Result<(), String> {
    let case = |portion: &Portion| {
        let subjects = Subject::value_variants().iter().map(|s| (apart::word(*s), *s, *portion));
        Case { name: portion.0.to_owned(), subjects: subjects.collect() }
    };
    let cases: Vec<Case<Subject, Portion>> = portions.iter().map(case).collect();
    let unit = match figure {
        Figure::Caller => "ns/call",
        Figure::Cpu => "CPU ns/call",
        Figure::Bytes => "bytes/event",
    };
    apart::measure(
        session,
        bench.name,
        |_| (unit, Better::Lower),
        &cases,
        |case| {
            let turn = |(name, subject, portion): &'_ (String, Subject, Portion)| {
                let (subject, portion) = (*subject, *portion);
                Turn::new(name, move || measure(session, subject, figure, portion))
            };
            Ok(case.subjects.iter().map(turn).collect())
        },
    )
}

fn measure(
    session: &Session,
    subject: Subject,
    figure: Figure,
    (_, stage, depth): Portion,
) -> Result<Measured, String> {
    let mut command = apart::command(session, "probe", subject)?;
    command.arg(format!("--stage={}", apart::word(stage))).arg(format!("--figure={}", apart::word(figure)));
    command.arg(format!("--depth={depth}")).arg(format!("--laps={}", if session.quick { 1 } else { 20 }));
    command.arg("--folder").arg(session.folder());
    apart::value(command, RUN_MAX)
}

/// One subject.
#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    subject: Subject,
    #[arg(long)]
    stage: Stage,
    #[arg(long)]
    figure: Figure,
    #[arg(long)]
    depth: u32,
    #[arg(long)]
    laps: u32,
    #[arg(long)]
    folder: std::path::PathBuf,
}

/// Ends what was set up: everything is written then. How many records are missing.
type End = Box<dyn FnOnce() -> Result<u64, String>>;

/// The child's side.
pub(crate) fn main(options: &Options) -> Result<ExitCode, String> {
    cpus().first().map(|cpu| pin(*cpu));
    let path = options.folder.join(format!("probe-{}", std::process::id()));
    let (call, end): (fn(u32) -> u32, End) = match options.subject {
        Subject::Corebeat => (corebeat, set_up_corebeat(options.stage, &path)?),
        Subject::Tracing => (tracing, set_up_tracing(options.stage, &path)?),
        Subject::Fastrace => (fastrace, set_up_fastrace(options.stage, &path)?),
    };
    let outer = CALLS_A_LAP / options.depth;
    let calls = f64::from(outer * options.depth);
    let mut sum = 0u64;
    let mut lap = |call: fn(u32) -> u32| {
        let (begin, cpu) = (Instant::now(), cpu_ns());
        for _ in 0..outer {
            sum += u64::from(call(black_box(options.depth - 1)));
        }
        let (ns, cpu_ns) = (begin.elapsed().as_nanos() as f64, cpu_ns() - cpu);
        std::thread::sleep(PAUSE);
        (ns, cpu_ns)
    };
    // The first pair warms up.
    let (mut with_ns, mut net_ns) = (0.0, Vec::new());
    let (mut plain_cpu_ns, begin_cpu_ns) = (0.0, cpu_ns());
    for number in 0..=options.laps {
        let (plain_ns, cpu_ns) = lap(plain);
        plain_cpu_ns += cpu_ns;
        with_ns = match options.subject {
            // A trace of its own for as many spans as fastrace keeps of one.
            Subject::Fastrace if options.stage != Stage::Off => {
                let root = fastrace::Span::root("root", SpanContext::random());
                let _parent = root.set_local_parent();
                lap(call).0
            }
            _ => lap(call).0,
        };
        if number > 0 || options.laps == 0 {
            net_ns.push((with_ns - plain_ns) / calls);
        }
    }
    let missing = end()?;
    let all_calls = calls * f64::from(options.laps + 1);
    // What laps without probes take is twice there: once as itself, once in those with.
    let net_cpu_ns = (cpu_ns() - begin_cpu_ns - 2.0 * plain_cpu_ns) / all_calls;
    black_box(with_ns);
    if missing > 0 {
        return Err(format!("{missing} of {} records were lost", all_calls));
    }
    let value = match options.figure {
        Figure::Caller => median(&net_ns).unwrap_or(0.0),
        Figure::Cpu => net_cpu_ns,
        Figure::Bytes => path.metadata().map_or(0.0, |file| file.len() as f64) / (2.0 * all_calls),
    };
    println!("value {value}\nchecksum {sum:016x}");
    Ok(ExitCode::SUCCESS)
}

/// CPU time of all threads of this process, in nanoseconds.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// The function that is called, without a probe: it calls itself so often.
#[inline(never)]
fn plain(depth: u32) -> u32 {
    if depth == 0 { black_box(1) } else { plain(depth - 1) + 1 }
}

#[inline(never)]
#[probe(name = "bench::call")]
fn corebeat(depth: u32) -> u32 {
    if depth == 0 { black_box(1) } else { corebeat(depth - 1) + 1 }
}

#[inline(never)]
fn tracing(depth: u32) -> u32 {
    let _span = tracing::info_span!("call").entered();
    if depth == 0 { black_box(1) } else { tracing(depth - 1) + 1 }
}

#[inline(never)]
fn fastrace(depth: u32) -> u32 {
    let _span = LocalSpan::enter_with_local_parent("call");
    if depth == 0 { black_box(1) } else { fastrace(depth - 1) + 1 }
}

fn set_up_corebeat(stage: Stage, path: &Path) -> Result<End, String> {
    let trace = match stage {
        // What is collected goes nowhere, and nobody works on it.
        Stage::Collecting => TraceOptions::default().compression(Compression::None).create("/dev/null"),
        _ => TraceOptions::default().create(path),
    };
    let trace = trace.map_err(|e| e.to_string())?;
    record(&trace).map_err(|e| e.to_string())?;
    switch("bench::call", stage != Stage::Off).map_err(|e| e.to_string())?;
    Ok(Box::new(|| trace.finish().map(|summary| summary.lost).map_err(|e| e.to_string())))
}

fn set_up_tracing(stage: Stage, path: &Path) -> Result<End, String> {
    fn subscribe(writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static, level: LevelFilter) {
        let subscriber = tracing_subscriber::fmt().with_writer(writer).with_max_level(level);
        // One line for a span, when it is over, with how long it was.
        subscriber.with_span_events(FmtSpan::CLOSE).with_ansi(false).init();
    }
    match stage {
        Stage::Off => subscribe(sink, LevelFilter::OFF),
        Stage::Collecting => tracing_subscriber::registry().with(Times).init(),
        Stage::Writing => {
            let file = File::create(path).map_err(|e| e.to_string())?;
            let builder = tracing_appender::non_blocking::NonBlockingBuilder::default().lossy(false);
            let (writer, guard) = builder.finish(file);
            subscribe(writer, LevelFilter::INFO);
            return Ok(Box::new(|| {
                drop(guard);
                Ok(0)
            }));
        }
    }
    Ok(Box::new(|| Ok(0)))
}

/// Takes the time of spans, and nothing else.
struct Times;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Times {
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Instant::now());
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id);
        black_box(span.and_then(|span| span.extensions().get::<Instant>().map(Instant::elapsed)));
    }
}

/// Writes spans as text, or leaves it.
struct Lines(Option<BufWriter<File>>);

impl Reporter for Lines {
    fn report(&mut self, spans: Vec<SpanRecord>) {
        let Some(file) = &mut self.0 else { return };
        for span in spans {
            let SpanRecord { span_id, parent_id, begin_time_unix_ns, duration_ns, name, .. } = span;
            let _ = writeln!(file, "{} {} {begin_time_unix_ns} {duration_ns} {name}", span_id.0, parent_id.0);
        }
        let _ = file.flush();
    }
}

fn set_up_fastrace(stage: Stage, path: &Path) -> Result<End, String> {
    let file = match stage {
        Stage::Off => return Ok(Box::new(|| Ok(0))),
        Stage::Collecting => None,
        Stage::Writing => Some(BufWriter::new(File::create(path).map_err(|e| e.to_string())?)),
    };
    fastrace::set_reporter(Lines(file), Config::default().report_interval(PAUSE));
    Ok(Box::new(|| {
        fastrace::flush();
        Ok(0)
    }))
}
