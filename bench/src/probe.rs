//! Measures probes on functions beside their peers: the overhead of a call in three portions.
//!
//! The portions follow Waller and Hasselbring, *A Comparison of the Influence of Different
//! Multi-core Processors on the Runtime Overhead for Application-Level Monitoring*, 2012, section
//! 4.1: a function without a probe (T), with a disabled probe (T + I), with a probe that collects
//! without writing (T + I + C), and with a probe whose records are written (T + I + C + W).
//!
//! The value excludes T: the same function runs with and without a probe in turn. One group of
//! benches measures laps of many calls, with a pause after each lap in which writers catch up. The
//! other group (section 4.3) measures periods of 500 µs with one recursive call in each.
//!
//! The subject `limit` is the unavoidable part of a recorded call: it reads the counter twice, and
//! stores the bytes of two events.

mod kieker;
mod lttng;

use crate::Bench;
use crate::apart::{self, Case};
use crate::line::{cpus, pin};
use crate::row::{Better, median};
use crate::session::Session;
use crate::tool::Tool;
use clap::ValueEnum;
use corebeat_probe::{probe, record, switch};
use corebeat_trace::{Options as TraceOptions, ticks};
use fastrace::collector::{Config, Reporter, SpanContext, SpanRecord};
use fastrace::local::LocalSpan;
use opentelemetry::trace::{Tracer, TracerProvider};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, SpanData,
    SpanExporter,
};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Write, sink};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::Subscriber;
use tracing::span::{Attributes, Id};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

pub(crate) const BENCHES: [Bench; 4] = [
    Bench {
        name: "probe.call",
        summary: "cost of a probe for a call, on the calling thread: off (I), collecting (I + C), writing (I + C + W)",
        peers: PEERS,
        tools: TOOLS,
        cases: |_| CALLS.iter().map(|case| case.0.to_owned()).collect(),
        run: |session| run(session, &BENCHES[0], Figure::Caller, &CALLS),
    },
    Bench {
        name: "probe.depth",
        summary: "the same cost for nested calls, by their number in 500 µs",
        peers: RUST_PEERS,
        tools: &[],
        cases: |_| depths().map(|case| case.0).collect(),
        run: |session| run(session, &BENCHES[1], Figure::Period, &depths().collect::<Vec<_>>()),
    },
    Bench {
        name: "probe.cpu",
        summary: "cost of a probe for a call, in CPU time of all threads",
        peers: PEERS,
        tools: TOOLS,
        cases: |_| vec![WRITING.0.to_owned()],
        run: |session| run(session, &BENCHES[2], Figure::Cpu, &[WRITING]),
    },
    Bench {
        name: "probe.bytes",
        summary: "bytes on disk for each of the two events of a call",
        peers: PEERS,
        tools: TOOLS,
        cases: |_| vec![WRITING.0.to_owned()],
        run: |session| run(session, &BENCHES[3], Figure::Bytes, &[WRITING]),
    },
];

const PEERS: &[&str] = &["tracing", "fastrace", "opentelemetry", "LTTng-ust", "Kieker"];
const RUST_PEERS: &[&str] = &["tracing", "fastrace", "opentelemetry"];
const TOOLS: &[Tool] = &[
    lttng::TOOLS[0],
    lttng::TOOLS[1],
    lttng::TOOLS[2],
    lttng::TOOLS[3],
    kieker::TOOLS[0],
    kieker::TOOLS[1],
    kieker::TOOLS[2],
];
/// A case: its name, the stage that the probe reaches, and the depth of nested calls.
type Portion<N = &'static str> = (N, Stage, u32);
const WRITING: Portion = ("writing", Stage::Writing, 1);
/// The last two are columns of figure 3: one CPU for all threads, and no thread except the caller.
const CALLS: [Portion; 6] = [
    ("off", Stage::Off, 1),
    ("off, recursion", Stage::Off, 64),
    ("collecting", Stage::Collecting, 1),
    WRITING,
    ("writing, one CPU", Stage::OneCpu, 1),
    ("writing, synchronous", Stage::Synchronous, 1),
];
/// Figure 4: the cost of a call must not grow with the number of calls.
const DEPTHS: [u32; 5] = [2, 16, 32, 64, 128];

fn depths() -> impl Iterator<Item = Portion<String>> {
    let stages =
        [("off", Stage::Off), ("collecting", Stage::Collecting), ("writing", Stage::Writing)];
    let case = |(name, stage), depth| (format!("{name}, depth {depth}"), stage, depth);
    stages.into_iter().flat_map(move |stage| DEPTHS.map(|depth| case(stage, depth)))
}

/// Calls of a lap, which fit into the buffers.
const CALLS_A_LAP: u32 = 32_768;
/// Measured laps, after one lap that warms up.
const LAPS: u32 = 20;
/// Pause after each lap.
const PAUSE: Duration = Duration::from_millis(20);
/// The interval between recursive calls, and their number. Calls with and without a probe take
/// turns.
const PERIOD: Duration = Duration::from_micros(500);
const PERIODS: usize = 2_000;

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    Corebeat,
    Tracing,
    Fastrace,
    Opentelemetry,
    #[value(name = "LTTng-ust")]
    Lttng,
    #[value(name = "Kieker")]
    Kieker,
    Limit,
}

impl Subject {
    /// Whether the subject supports the stage and the figure, and its tools are installed.
    fn does(self, session: &Session, figure: Figure, stage: Stage) -> bool {
        match self {
            // These two peers write with a separate thread or process, or not at all.
            Subject::Fastrace | Subject::Opentelemetry => stage != Stage::Synchronous,
            Subject::Lttng | Subject::Kieker
                if stage == Stage::Synchronous || figure == Figure::Period =>
            {
                false
            }
            Subject::Lttng => lttng::TOOLS.into_iter().all(|tool| session.has(tool)),
            Subject::Kieker => kieker::TOOLS.into_iter().all(|tool| session.has(tool)),
            Subject::Limit => {
                figure == Figure::Caller && matches!(stage, Stage::Collecting | Stage::Writing)
            }
            Subject::Corebeat | Subject::Tracing => true,
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Stage {
    Off,
    Collecting,
    Writing,
    OneCpu,
    Synchronous,
}

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Figure {
    Caller,
    Period,
    Cpu,
    Bytes,
}

fn run<N: ToString>(
    session: &Session,
    bench: &Bench,
    figure: Figure,
    portions: &[Portion<N>],
) -> Result<(), String> {
    let case = |(name, stage, depth): &Portion<N>| {
        let subjects = Subject::value_variants();
        let does = subjects.iter().filter(|subject| subject.does(session, figure, *stage));
        Case::new(name.to_string(), does, (*stage, *depth))
    };
    let cases: Vec<Case<Subject, (Stage, u32)>> = portions.iter().map(case).collect();
    let unit = match figure {
        Figure::Caller => "ns/call",
        Figure::Period => "ns/500 µs",
        Figure::Cpu => "CPU ns/call",
        Figure::Bytes => "bytes/event",
    };
    let unit = |_: &Case<Subject, (Stage, u32)>| (unit, Better::Lower);
    apart::measure_each(session, bench.name, unit, &cases, |subject, portion| match subject {
        Subject::Lttng => lttng::measure(session, figure, portion),
        Subject::Kieker => kieker::measure(session, figure, portion),
        _ => {
            let (stage, depth) = portion;
            let laps = if session.quick { 1 } else { LAPS };
            let folder = session.folder().to_owned();
            let calls = calls_a_lap(session);
            let options = Options { subject, stage, figure, depth, calls, laps, folder };
            apart::value(apart::command(session, "probe", &options)?)
        }
    })
}

/// Calls of a lap. In a quick session the buffers have room for the calls of all laps, so no record
/// is lost even if the writers run late.
fn calls_a_lap(session: &Session) -> u32 {
    if session.quick { CALLS_A_LAP / 16 } else { CALLS_A_LAP }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    stage: Stage,
    figure: Figure,
    depth: u32,
    calls: u32,
    laps: u32,
    folder: std::path::PathBuf,
}

/// Ends the recording after the given number of calls. At the end all records are written, and the
/// function fails if a record is missing.
type End = Box<dyn FnOnce(f64) -> Result<(), String>>;

/// The main function of the child.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    // Threads inherit the CPU of the thread that starts them.
    let pin_here = || cpus().first().map(|cpu| pin(*cpu));
    if options.stage == Stage::OneCpu {
        pin_here();
    }
    let path = options.folder.join(format!("probe-{}", std::process::id()));
    let (call, end): (Call, End) = match options.subject {
        Subject::Corebeat => (corebeat, set_up_corebeat(options.stage, &path)?),
        Subject::Tracing => (tracing, set_up_tracing(options.stage, &path)?),
        Subject::Fastrace => (fastrace, set_up_fastrace(options.stage, &path)?),
        Subject::Opentelemetry => (opentelemetry, set_up_opentelemetry(options.stage, &path)?),
        Subject::Limit => (limit, set_up_limit()),
        Subject::Lttng | Subject::Kieker => {
            return Err("this subject is a program in another language".into());
        }
    };
    pin_here();
    if options.figure == Figure::Period {
        return measure_periods(options, call, end);
    }
    let calls = f64::from(options.calls / options.depth * options.depth);
    let mut sum = 0;
    // The first pair warms up.
    let mut net_ns = Vec::new();
    let (mut plain_cpu_ns, begin_cpu_ns) = (0.0, cpu_ns());
    for number in 0..=options.laps {
        let (plain_ns, cpu_ns) = lap(options, plain, &mut sum);
        plain_cpu_ns += cpu_ns;
        let (with_ns, _) = lap(options, call, &mut sum);
        if number > 0 || options.laps == 0 {
            net_ns.push((with_ns - plain_ns) / calls);
        }
    }
    let all_calls = calls * f64::from(options.laps + 1);
    end(all_calls)?;
    // The time of laps without probes counts twice: by itself, and as part of laps with probes.
    let net_cpu_ns = (cpu_ns() - begin_cpu_ns - 2.0 * plain_cpu_ns) / all_calls;
    let value = match options.figure {
        Figure::Cpu => net_cpu_ns,
        Figure::Bytes => path.metadata().map_or(0.0, |file| file.len() as f64) / (2.0 * all_calls),
        Figure::Caller | Figure::Period => median(&net_ns).unwrap_or(0.0),
    };
    Ok((value, sum))
}

/// Runs a lap, and then pauses. Returns the time of its calls, and the CPU time of this process
/// during the calls, in nanoseconds.
fn lap(options: &Options, call: Call, sum: &mut u64) -> (f64, f64) {
    let outer = options.calls / options.depth;
    let (mut ns, mut lap_cpu_ns) = (0.0, 0.0);
    let mut part = |calls: u32| {
        let (begin, begin_cpu_ns) = (Instant::now(), cpu_ns());
        for _ in 0..calls {
            *sum += u64::from(call(black_box(options.depth - 1)));
        }
        ns += begin.elapsed().as_nanos() as f64;
        lap_cpu_ns += cpu_ns() - begin_cpu_ns;
    };
    let in_a_root = SPANS_OF_A_ROOT / options.depth;
    let mut left = outer;
    while left > 0 {
        let calls = left.min(in_a_root);
        in_root(options, || part(calls));
        left -= calls;
    }
    std::thread::sleep(PAUSE);
    (ns, lap_cpu_ns)
}

/// Measures one recursive call per period, and returns the time of all its nested calls.
fn measure_periods(options: &Options, call: Call, end: End) -> Result<(f64, u64), String> {
    let periods = if options.laps > 1 { PERIODS } else { PERIODS / 100 };
    let (mut sum, mut plain_ns, mut with_ns) = (0u64, Vec::new(), Vec::new());
    for period in 0..periods {
        let (call, times) =
            if period % 2 == 0 { (plain as Call, &mut plain_ns) } else { (call, &mut with_ns) };
        let start = Instant::now();
        let ns = in_root(options, || {
            let begin = Instant::now();
            sum += u64::from(call(black_box(options.depth - 1)));
            begin.elapsed().as_nanos() as f64
        });
        times.push(ns);
        while start.elapsed() < PERIOD {
            std::hint::spin_loop();
        }
    }
    end((with_ns.len() * options.depth as usize) as f64)?;
    // The first quarter warms up.
    let steady = |times: &[f64]| median(&times[times.len() / 4..]).unwrap_or(0.0);
    Ok((steady(&with_ns) - steady(&plain_ns), sum))
}

/// Spans of a trace of fastrace: it drops further ones without a report.
const SPANS_OF_A_ROOT: u32 = 10_240;

/// Runs a function in a trace of its own, because fastrace limits the spans of a trace.
fn in_root<T>(options: &Options, f: impl FnOnce() -> T) -> T {
    if options.subject != Subject::Fastrace || options.stage == Stage::Off {
        return f();
    }
    let root = fastrace::Span::root("root", SpanContext::random());
    let _parent = root.set_local_parent();
    f()
}

/// CPU time of all threads of this process, in nanoseconds.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// A function whose argument is the depth of its recursion.
type Call = fn(u32) -> u32;

/// The function without a probe. `black_box` hides the recursive result, because the compiler would
/// otherwise turn this function into a loop, but not the functions with probes.
#[inline(never)]
fn plain(depth: u32) -> u32 {
    if depth == 0 { black_box(1) } else { black_box(plain(depth - 1)) + 1 }
}

#[inline(never)]
#[probe(name = "bench::call")]
fn corebeat(depth: u32) -> u32 {
    if depth == 0 { black_box(1) } else { black_box(corebeat(depth - 1)) + 1 }
}

#[inline(never)]
fn tracing(depth: u32) -> u32 {
    let _span = tracing::info_span!("call").entered();
    if depth == 0 { black_box(1) } else { black_box(tracing(depth - 1)) + 1 }
}

#[inline(never)]
fn fastrace(depth: u32) -> u32 {
    let _span = LocalSpan::enter_with_local_parent("call");
    if depth == 0 { black_box(1) } else { black_box(fastrace(depth - 1)) + 1 }
}

/// Bytes of the memory of `limit`: a power of two, and more than the events of a lap take.
const LIMIT_BYTES: usize = 512 << 10;
/// Bytes of the events that `corebeat` writes at the begin and at the end of a call.
const ENTER_BYTES: usize = 6;
const LEAVE_BYTES: usize = 4;
const _: () = assert!(CALLS_A_LAP as usize * (ENTER_BYTES + LEAVE_BYTES) < LIMIT_BYTES);

thread_local! {
    /// The memory of `limit`, and the place in it of the next event.
    static EVENTS: Cell<(*mut u8, usize)> = const { Cell::new((ptr::null_mut(), 0)) };
}

/// The function with the unavoidable part of its recording: two readings of the counter, and two
/// events of the same size as those of `corebeat`. Nothing is checked, and no thread reads them.
#[inline(never)]
fn limit(depth: u32) -> u32 {
    store_event::<ENTER_BYTES>();
    let result = if depth == 0 { black_box(1) } else { black_box(limit(depth - 1)) + 1 };
    store_event::<LEAVE_BYTES>();
    result
}

#[inline(always)]
fn store_event<const BYTES: usize>() {
    let (memory, at) = EVENTS.get();
    let event = ticks().to_le_bytes();
    // SAFETY: `set_up_limit` has allocated `LIMIT_BYTES` and the bytes of an event for this thread,
    // and `at` is less than `LIMIT_BYTES`.
    unsafe { memory.add(at).copy_from_nonoverlapping(event.as_ptr(), BYTES) };
    EVENTS.set((memory, (at + BYTES) % LIMIT_BYTES));
}

fn set_up_limit() -> End {
    let memory = vec![0u8; LIMIT_BYTES + ENTER_BYTES].leak();
    EVENTS.set((memory.as_mut_ptr(), 0));
    Box::new(|_| Ok(()))
}

static TRACER: OnceLock<SdkTracer> = OnceLock::new();

#[inline(never)]
fn opentelemetry(depth: u32) -> u32 {
    let call = |_| if depth == 0 { black_box(1) } else { black_box(opentelemetry(depth - 1)) + 1 };
    TRACER.get().expect("main sets the tracer").in_span("call", call)
}

fn set_up_corebeat(stage: Stage, path: &Path) -> Result<End, String> {
    let trace = match stage {
        Stage::Collecting => TraceOptions::default().discard(),
        Stage::Synchronous => {
            TraceOptions { collectors: 0, ..TraceOptions::default() }.create(path)
        }
        _ => TraceOptions::default().create(path),
    };
    let trace = trace.map_err(|e| e.to_string())?;
    record(&trace).map_err(|e| e.to_string())?;
    switch("bench::call", stage != Stage::Off).map_err(|e| e.to_string())?;
    Ok(Box::new(|_| match trace.finish() {
        Ok(summary) if summary.lost > 0 => Err(format!("{} events were lost", summary.lost)),
        done => done.map(drop).map_err(|e| e.to_string()),
    }))
}

fn set_up_tracing(stage: Stage, path: &Path) -> Result<End, String> {
    fn subscribe(writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static, level: LevelFilter) {
        let subscriber = tracing_subscriber::fmt().with_writer(writer).with_max_level(level);
        // A span writes one line with its duration when it ends.
        subscriber.with_span_events(FmtSpan::CLOSE).with_ansi(false).init();
    }
    match stage {
        Stage::Off => subscribe(sink, LevelFilter::OFF),
        Stage::Collecting => tracing_subscriber::registry().with(Times).init(),
        Stage::Synchronous => {
            subscribe(File::create(path).map_err(|e| e.to_string())?, LevelFilter::INFO)
        }
        Stage::Writing | Stage::OneCpu => {
            let file = File::create(path).map_err(|e| e.to_string())?;
            let builder =
                tracing_appender::non_blocking::NonBlockingBuilder::default().lossy(false);
            let (writer, guard) = builder.finish(file);
            subscribe(writer, LevelFilter::INFO);
            return Ok(Box::new(|_| {
                drop(guard);
                Ok(())
            }));
        }
    }
    Ok(Box::new(|_| Ok(())))
}

/// Measures the duration of spans and discards it.
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

/// Writes spans as text or discards them, and counts those of calls.
struct Lines(Option<BufWriter<File>>, Arc<AtomicU64>);

impl Reporter for Lines {
    fn report(&mut self, spans: Vec<SpanRecord>) {
        let calls = spans.iter().filter(|span| span.name == "call").count();
        // Relaxed: the count is read after the flush, which joins the reporting thread.
        self.1.fetch_add(calls as u64, Ordering::Relaxed);
        let Some(file) = &mut self.0 else { return };
        for span in spans {
            let SpanRecord { span_id, parent_id, begin_time_unix_ns, duration_ns, name, .. } = span;
            let _ = writeln!(
                file,
                "{} {} {begin_time_unix_ns} {duration_ns} {name}",
                span_id.0, parent_id.0
            );
        }
        let _ = file.flush();
    }
}

fn set_up_fastrace(stage: Stage, path: &Path) -> Result<End, String> {
    let file = match stage {
        Stage::Off => return Ok(Box::new(|_| Ok(()))),
        Stage::Collecting => None,
        _ => Some(BufWriter::new(File::create(path).map_err(|e| e.to_string())?)),
    };
    let reported = Arc::new(AtomicU64::new(0));
    let config = Config::default().report_interval(PAUSE);
    fastrace::set_reporter(Lines(file, reported.clone()), config);
    Ok(Box::new(move |calls| {
        fastrace::flush();
        no_missing(calls, &reported)
    }))
}

/// Fails if fewer calls were reported than there were.
fn no_missing(calls: f64, reported: &AtomicU64) -> Result<(), String> {
    let missing = calls - reported.load(Ordering::Relaxed) as f64;
    if missing > 0.0 {
        return Err(format!("{missing} of {calls} spans were lost"));
    }
    Ok(())
}

/// Limit of the queue, which holds the spans of a lap.
const SPANS_MAX: usize = 2 * CALLS_A_LAP as usize;

/// Writes spans as text or discards them, and counts them.
#[derive(Debug)]
struct Spans(Option<Mutex<BufWriter<File>>>, Arc<AtomicU64>);

impl SpanExporter for Spans {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        // Relaxed: the count is read after the shutdown of the provider, which joins the exporting
        // thread.
        self.1.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if let Some(file) = &self.0 {
            let mut file = file.lock().expect("no holder of the lock panics");
            for SpanData { span_context, parent_span_id, name, start_time, end_time, .. } in batch {
                let id = span_context.span_id();
                let ns = |at: SystemTime| {
                    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
                };
                let _ = writeln!(
                    file,
                    "{id} {parent_span_id} {} {} {name}",
                    ns(start_time),
                    ns(end_time)
                );
            }
            let _ = file.flush();
        }
        Ok(())
    }
}

fn set_up_opentelemetry(stage: Stage, path: &Path) -> Result<End, String> {
    let (file, sampler) = match stage {
        Stage::Off => (None, Sampler::AlwaysOff),
        Stage::Collecting => (None, Sampler::AlwaysOn),
        _ => (
            Some(BufWriter::new(File::create(path).map_err(|e| e.to_string())?)),
            Sampler::AlwaysOn,
        ),
    };
    let exported = Arc::new(AtomicU64::new(0));
    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(SPANS_MAX)
        .with_max_export_batch_size(SPANS_MAX / 16)
        .with_scheduled_delay(PAUSE);
    let exporter = Spans(file.map(Mutex::new), exported.clone());
    let processor =
        BatchSpanProcessor::builder(exporter).with_batch_config(batches.build()).build();
    let provider =
        SdkTracerProvider::builder().with_sampler(sampler).with_span_processor(processor).build();
    TRACER.get_or_init(|| provider.tracer("bench"));
    Ok(Box::new(move |calls| {
        provider.shutdown().map_err(|e| e.to_string())?;
        if stage == Stage::Off { Ok(()) } else { no_missing(calls, &exported) }
    }))
}
