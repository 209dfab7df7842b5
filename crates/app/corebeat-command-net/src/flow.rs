//! The flow of records from a source through a network to a sink.
//!
//! ```text
//!  source --(thread)--> network --(thread)--> events --(caller of `write`)--> sink
//!                          `-----faults---------^
//! ```
//!
//! The sink is flushed whenever no event is waiting, so that the results appear at once when a user
//! types records.

use crate::meter::Meter;
use crate::observer::{self, Observers, Wanted};
use crate::placing::Placing;
#[cfg(not(feature = "mpi"))]
use crate::profile;
use crate::program::{STANDARD_INPUT, STANDARD_OUTPUT, Which};
use crate::source::{Source, find_form, with_host};
#[cfg(feature = "mpi")]
use crate::team::Team;
use corebeat_command::{Done, Failure, print_error, printable, require_distinct, unprintable};
use corebeat_lpel::{Builder, Runtime, STACK_MAX, STACK_MIN};
use corebeat_snet::Error;
use corebeat_snet::format::{Format, Reader, Writer};
use corebeat_snet::plan::Net;
use corebeat_snet::{
    Boxes, Fault, Input, Network, NetworkOptions, OnFault, Record, Report, ReportFault, Running,
};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Instant;

/// Largest number of records and faults between the network and the sink.
const EVENTS: usize = 1_024;

/// Largest number of faults that are reported one by one.
const REPORTED_MAX: usize = 20;

/// Largest capacity of a stream, in records.
const CAPACITY_MAX: u32 = 1 << 20;

/// Options of a run.
#[derive(clap::Args, Default)]
pub(crate) struct How {
    /// Load box functions from a shared library, a source file in C, C++ or Python, or the folder
    /// of a crate in Rust; may be repeated
    #[arg(short, long, value_name = "LIB|FILE.c|FILE.py|CRATE")]
    boxes: Vec<PathBuf>,
    /// Read and write records as json (one object per line) or xml [default: by the first byte of
    /// the input]
    #[arg(short, long, value_name = "json|xml")]
    format: Option<Format>,
    /// Read records from this file [default: standard input]
    #[arg(short, long, value_name = "FILE", conflicts_with = "listen")]
    input: Option<PathBuf>,
    /// Read records from the first connection to this port [default host: 127.0.0.1]
    #[arg(short = 'I', long, value_name = "[HOST:]PORT")]
    listen: Option<String>,
    /// Connect to this port and write records there [default host: 127.0.0.1]
    #[arg(short = 'O', long, value_name = "[HOST:]PORT", conflicts_with = "output")]
    connect: Option<String>,
    /// Number of worker threads [default: one per CPU]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Choose the effect of a record that fails: stop the network, continue without the record, or
    /// output the record with a field 'error' and continue [default: stop]
    #[arg(long, value_name = "WHAT", value_enum)]
    on_error: Option<OnError>,
    /// Place tasks nearby (on the spawning or an idle worker), balanced (equal numbers of each box
    /// on all workers), or by the costs in a file of 'net profile --save'; the latter two run boxes
    /// at the lowest priority [default: nearby]
    #[arg(long, value_name = "nearby|balanced|FILE")]
    placement: Option<Placing>,
    /// Capacity of each stream, in records [default: 64; between ranks of MPI 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(CAPACITY_MAX)))]
    capacity: Option<u32>,
    /// Stack size of each box in bytes, such as 300000, 512K or 8M
    #[arg(long, value_name = "BYTES", value_parser = stack_size)]
    stack: Option<usize>,
    /// Write each record that enters ('before') or leaves ('after') the boxes or nets of this name
    /// to standard error, a file, or a socket; may be repeated [default: both]
    #[arg(long, value_name = "NAME[:before|:after][=FILE|=HOST:PORT|=-]")]
    observe: Vec<Wanted>,
    /// On several ranks of MPI: move larger fields only to the ranks whose boxes read them
    /// [default: 65536]
    #[arg(long, value_name = "BYTES")]
    eager: Option<usize>,
}

/// Effect of a record that fails. `Stop` and `Continue` are those of [`OnFault`].
#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum OnError {
    #[default]
    Stop,
    Continue,
    Record,
}

/// Parses a number of bytes with an optional suffix K, M or G.
fn stack_size(text: &str) -> Result<usize, String> {
    let (number, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        None => (text, 0),
        Some(number) if text.ends_with('K') => (number, 10),
        Some(number) if text.ends_with('M') => (number, 20),
        Some(number) => (number, 30),
    };
    let bytes = number.parse::<usize>().ok().and_then(|n| n.checked_mul(1 << shift));
    let bytes = bytes.filter(|bytes| (STACK_MIN..=STACK_MAX).contains(bytes));
    bytes.ok_or_else(|| format!("expected a number from {STACK_MIN} to {STACK_MAX}"))
}

/// The destination of the records that leave the network.
pub(crate) enum To<'a> {
    /// This file, the socket of the command line, or else standard output.
    Output(Option<&'a Path>),
    /// This file, the socket of the command line, or else none.
    Nowhere(Option<&'a Path>),
}

/// The format of records. It may be unknown until the first record is read.
#[derive(Clone, Default)]
pub(crate) struct Form(Arc<OnceLock<Format>>);

impl Form {
    /// Sets the format unless it is already set.
    fn settle(&self, form: Format) {
        let _ = self.0.set(form);
    }

    /// Waits until the format is set, and returns it.
    pub(crate) fn wait(&self) -> Format {
        *self.0.wait()
    }
}

/// Prints messages to the user while a network runs.
#[derive(Clone)]
pub(crate) struct Reporter(Arc<dyn Fn(String) + Send + Sync>);

impl Reporter {
    pub(crate) fn new(report: impl Fn(String) + Send + Sync + 'static) -> Reporter {
        Reporter(Arc::new(report))
    }

    /// Prints on standard error.
    pub(crate) fn plain() -> Reporter {
        Reporter::new(print_error)
    }

    pub(crate) fn report(&self, text: String) {
        (self.0)(text);
    }
}

/// Counts of records so far.
#[derive(Default)]
pub(crate) struct Tally {
    /// Records that entered the network.
    pub(crate) given: AtomicU64,
    /// Records that left the network.
    pub(crate) put: AtomicU64,
    /// Records that failed.
    pub(crate) faults: AtomicU64,
}

impl Tally {
    fn add(count: &AtomicU64) {
        // Relaxed: the count orders no other memory access.
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// An event for the sink.
enum Event {
    Record(Record),
    Fault(Fault),
    /// The input can no longer be read.
    Broken(Failure),
    /// The network has ended, with this many records in synchrocells.
    End {
        kept: usize,
    },
}

/// A running network. The owner must call [`write`](Flow::write) to consume its output.
pub(crate) struct Flow {
    coming: Receiver<Event>,
    sink: Sink,
    on_error: OnError,
    stop: Stop,
    reporter: Reporter,
    observers: Observers,
    scene: Scene,
}

/// The parts of a running network that views display.
#[derive(Clone)]
pub(crate) struct Scene {
    /// Name of the net.
    pub(crate) net: String,
    /// Names of its boxes.
    pub(crate) boxes: Vec<String>,
    /// Initial capacity of a stream, in records.
    pub(crate) capacity: usize,
    pub(crate) workers: usize,
    pub(crate) tally: Arc<Tally>,
    /// Start of the run.
    pub(crate) begin: Instant,
    /// The runtime; dropped at the end of the network.
    pub(crate) runtime: Weak<Runtime>,
}

/// Stops a network in an orderly way.
#[derive(Clone)]
pub(crate) struct Stop {
    report: Report,
    form: Form,
}

impl Stop {
    /// Closes the input. Records inside the network are still processed.
    pub(crate) fn stop(&self) {
        self.report.stop();
        // Writers may wait for a format that no further input can determine.
        self.form.settle(Format::Json);
    }
}

impl How {
    /// Whether records come from standard input.
    pub(crate) fn reads_standard_input(&self) -> bool {
        self.input.is_none() && self.listen.is_none()
    }

    /// Whether records go to a socket.
    pub(crate) fn connects(&self) -> bool {
        self.connect.is_some()
    }

    /// The file to which records go, if any.
    fn output<'a>(&self, to: &To<'a>) -> Option<&'a Path> {
        match to {
            To::Output(None) if !self.connects() => Some(Path::new(STANDARD_OUTPUT)),
            To::Output(file) | To::Nowhere(file) => *file,
        }
    }

    /// Whether an observer writes to standard error.
    pub(crate) fn observes_on_standard_error(&self) -> bool {
        self.observe.iter().any(Wanted::is_on_standard_error)
    }

    /// Requires that no output of the command replaces one of its inputs or another output. The
    /// files that the shell opened as standard input and as standard output count, too: a network
    /// that appends its records to its input never ends.
    ///
    /// # Errors
    /// A usage failure if two of the files are one, or if standard input is the program and the
    /// records.
    pub(crate) fn require_distinct<'a>(
        &'a self,
        which: &'a Which,
        to: &To<'a>,
        other: Option<&'a Path>,
    ) -> Result<(), Failure> {
        if which.is_standard_input() && self.reads_standard_input() {
            return Err(Failure::usage(
                "the program and the records cannot both come from standard input; \
                 name a file for one of them",
            ));
        }
        let input = match &self.listen {
            Some(_) => None,
            None => Some(self.input.as_deref().unwrap_or(Path::new(STANDARD_INPUT))),
        };
        let inputs = self.boxes.iter().map(PathBuf::as_path).chain([which.file()]).chain(input);
        // Several observers may write to one target.
        let observed: BTreeSet<&Path> = self.observe.iter().filter_map(Wanted::file).collect();
        let placement = self.placement.as_ref().and_then(Placing::file);
        let files = inputs.chain(placement).chain(observed);
        require_distinct(files.chain(self.output(to)).chain(other))
    }

    /// Joins the other ranks, if this process is one of several. One rank has all fields, so that
    /// `--eager` has no effect there.
    #[cfg(feature = "mpi")]
    pub(crate) fn team(&self) -> Result<Option<Team>, Failure> {
        Team::join(self)
    }

    /// Requires one rank: a build without MPI has no teams.
    #[cfg(not(feature = "mpi"))]
    pub(crate) fn team(&self) -> Result<Option<Team>, Failure> {
        corebeat_mpi::require_alone().map_err(Failure::usage)?;
        self.require_alone().map(|()| None)
    }

    /// Requires that this command and its options do not belong to several ranks.
    ///
    /// # Errors
    /// A usage failure otherwise.
    pub(crate) fn require_alone(&self) -> Result<(), Failure> {
        match self.eager {
            _ if corebeat_mpi::expected() > 1 => Err(Failure::usage(
                "'net draw --live' does not run on several ranks; start it without mpirun, or use \
                 'net profile', which has the costs of all ranks",
            )),
            None => Ok(()),
            Some(_) if cfg!(feature = "mpi") => Err(Failure::usage(
                "--eager is for a run on several ranks; start it as 'mpirun -n RANKS corebeat net \
                 run'",
            )),
            Some(_) => Err(Failure::usage(
                "--eager is for a run on several ranks, and this program was built without MPI; \
                 build it with the feature 'mpi'",
            )),
        }
    }

    /// Reads the program and loads its boxes. Prints the remarks on the program only if `is_first`.
    pub(crate) fn load(&self, which: &Which, is_first: bool) -> Result<Loaded, Failure> {
        let program = which.read()?;
        let net = if is_first { program.report_remarks()? } else { program.sound()? };
        observer::require_known(&net, &self.observe)?;
        let mut boxes = load(&self.boxes)?;
        boxes.compile_bodies(net.boxes()).map_err(unlinked)?;
        Ok(Loaded { net, boxes })
    }

    /// Starts a network.
    pub(crate) fn start(
        &self,
        which: &Which,
        to: To,
        meter: Option<&Meter>,
        reporter: Reporter,
    ) -> Result<Flow, Failure> {
        let loaded = self.load(which, true)?;
        self.start_loaded(loaded, to, meter, reporter, None)
    }

    /// Creates a network and the configuration of its runtime.
    fn network(
        &self,
        loaded: Loaded,
        report: Option<ReportFault>,
        meter: Option<&Meter>,
    ) -> Result<(Network, Builder), Failure> {
        let placing = self.placement.clone().unwrap_or(Placing::Nearby);
        let options = NetworkOptions {
            capacity: self.capacity(),
            stack_size: self.stack.unwrap_or(corebeat_snet::STACK_SIZE),
            boxes_last: placing.puts_boxes_last(),
            // A profile counts the tasks of each box.
            move_boxes: meter.is_none(),
            on_fault: match self.on_error.unwrap_or_default() {
                OnError::Stop => OnFault::Stop,
                OnError::Continue | OnError::Record => OnFault::Continue,
            },
            report_fault: report,
        };
        let Loaded { net, boxes } = loaded;
        let network = Network::new(net, |plan| boxes.find(plan)).map_err(unlinked)?;
        let mut runtime = placing.apply(Runtime::builder().stack_option("--stack"))?;
        if let Some(workers) = self.workers {
            runtime = runtime.workers(workers.into());
        }
        if let Some(meter) = meter {
            runtime = runtime.monitor(meter.clone());
        }
        Ok((network.with_options(options), runtime))
    }

    /// Capacity of a stream, in records.
    fn capacity(&self) -> usize {
        self.capacity.map_or(corebeat_snet::CAPACITY, |n| n as usize)
    }

    /// Starts a network, on rank 0 of a team.
    pub(crate) fn start_loaded(
        &self,
        loaded: Loaded,
        to: To,
        meter: Option<&Meter>,
        reporter: Reporter,
        team: Option<&Team>,
    ) -> Result<Flow, Failure> {
        let net = &loaded.net;
        let form = Form::default();
        self.format.iter().for_each(|format| form.settle(*format));
        let on_error = self.on_error.unwrap_or_default();
        let names =
            (net.name().to_owned(), net.boxes().iter().map(|plan| plan.name.clone()).collect());
        let tally = Arc::new(Tally::default());
        let (events, coming) = sync_channel(EVENTS);
        let of_faults = (events.clone(), tally.clone(), form.clone());
        let report: ReportFault = Arc::new(move |fault| {
            let (events, tally, form) = &of_faults;
            Tally::add(&tally.faults);
            if on_error == OnError::Stop {
                form.settle(Format::Json); // as in `Stop::stop`
            }
            // Sending fails only after the sink has failed.
            drop(events.send(Event::Fault(fault.clone())));
        });
        let (network, runtime) = self.network(loaded, Some(report), meter)?;
        let source = Source::open(self.input.as_deref(), self.listen.as_deref())?;
        let sink = self.sink(to, &form)?;
        let (network, observers) = Observers::attach(network, &self.observe, &form, &reporter)?;
        let runtime = Arc::new(runtime.build().map_err(Failure::internal)?);

        let begin = Instant::now();
        let Running { input, output, report } = begin_on(&network, &runtime, team)?;
        let (net, boxes) = names;
        let scene = Scene {
            net,
            boxes,
            capacity: self.capacity(),
            workers: runtime.workers(),
            tally: tally.clone(),
            begin,
            runtime: Arc::downgrade(&runtime),
        };
        let stop = Stop { report: report.clone(), form: form.clone() };
        let (of_reader, counts) = (events.clone(), tally.clone());
        thread::spawn(move || read(source, &form, on_error, input, &of_reader, &counts));
        thread::spawn(move || {
            let mut records = output.inspect(|_| Tally::add(&tally.put)).map(Event::Record);
            let sent = records.try_for_each(|record| events.send(record));
            // Dropping the output ends a network whose sink has failed; otherwise the runtime would
            // wait for ever.
            drop(records);
            let kept = report.kept();
            drop(runtime);
            // Sending fails only after the sink has failed.
            let _ = sent.and_then(|()| events.send(Event::End { kept }));
        });
        Ok(Flow { coming, sink, on_error, stop, reporter, observers, scene })
    }

    fn sink(&self, to: To, form: &Form) -> Result<Sink, Failure> {
        let (To::Output(file) | To::Nowhere(file)) = to;
        let (name, to): (_, Option<Box<dyn Write + Send>>) = match (file, &self.connect) {
            (Some(path), _) => {
                let name = path.display().to_string();
                let file = File::create(path).map_err(|e| Failure::usage(cannot_write(&name, &e)));
                (Some(name), Some(Box::new(file?)))
            }
            (None, Some(address)) => {
                let name = with_host(address);
                let stream = TcpStream::connect(&name);
                let stream = stream.map_err(|e| Failure::usage(cannot_write(&name, &e)));
                (Some(name), Some(Box::new(stream?)))
            }
            (None, None) => match to {
                To::Output(_) => (None, Some(Box::new(standard_output()?))),
                To::Nowhere(_) => (None, None),
            },
        };
        Ok(Sink { name, to, form: form.clone(), writer: None })
    }
}

/// A program and the functions of its boxes.
pub(crate) struct Loaded {
    net: Net,
    boxes: Boxes,
}

/// Starts the network, here or on rank 0 of a team.
#[cfg(feature = "mpi")]
fn begin_on(
    network: &Network,
    runtime: &Arc<Runtime>,
    team: Option<&Team>,
) -> Result<Running, Failure> {
    let Some(team) = team else { return Ok(network.start(runtime)) };
    let running = network.start_on_ranks(runtime, team.node());
    team.exchange(runtime).map(|()| running)
}

/// A build without MPI has no teams.
#[cfg(not(feature = "mpi"))]
pub(crate) enum Team {}

#[cfg(not(feature = "mpi"))]
impl Team {
    pub(crate) fn run(self, _: &Which, _: &How, _: To, _: Option<profile::Wanted>) -> Done {
        match self {}
    }
}

/// Starts the network.
#[cfg(not(feature = "mpi"))]
fn begin_on(
    network: &Network,
    runtime: &Arc<Runtime>,
    _: Option<&Team>,
) -> Result<Running, Failure> {
    Ok(network.start(runtime))
}

#[cfg(feature = "mpi")]
impl How {
    /// Bound of the messages of a channel that wait on a rank.
    pub(crate) fn window(&self) -> corebeat_snet::rank::Window {
        self.capacity.map_or_else(Default::default, corebeat_snet::rank::Window::of)
    }

    /// Requires that observers do not write to one file from several ranks.
    pub(crate) fn require_observers_on_standard_error(&self) -> Result<(), Failure> {
        match self.observe.iter().all(Wanted::is_on_standard_error) {
            true => Ok(()),
            false => Err(Failure::usage(
                "on several ranks, --observe writes to standard error only; write the option \
                 without a target",
            )),
        }
    }

    /// Largest field in bytes that moves with its record.
    pub(crate) fn eager_bytes(&self) -> usize {
        self.eager.unwrap_or(corebeat_snet::rank::EAGER_BYTES)
    }

    /// Names and digests of the files, and values of the options, that all ranks must have.
    pub(crate) fn digests(&self, which: &Which) -> Result<crate::team::Digests, Failure> {
        let boxes = self.boxes.iter().map(|path| ("file of boxes", path.as_path()));
        let mut made = crate::team::digests([("program", which.file())].into_iter().chain(boxes))?;
        // Without the option, streams within a rank and those between ranks differ.
        made.push(("value of --capacity".into(), self.capacity.map_or(0, u64::from)));
        made.push(("value of --eager".into(), self.eager_bytes() as u64));
        Ok(made)
    }

    /// Requires a file with the program: only rank 0 has the standard input of `mpirun`.
    pub(crate) fn require_program_in_file(&self, which: &Which) -> Result<(), Failure> {
        match which.is_standard_input() {
            false => Ok(()),
            true => Err(Failure::usage(
                "on several ranks, each rank reads the program, and only rank 0 has the standard \
                 input; name a file",
            )),
        }
    }

    /// Runs the parts of a network that are placed on this rank, which is not rank 0. Returns the
    /// number of its workers.
    pub(crate) fn serve(
        &self,
        loaded: Loaded,
        meter: Option<&Meter>,
        team: &Team,
    ) -> Result<usize, Failure> {
        let (network, runtime) = self.network(loaded, None, meter)?;
        let form = Form::default();
        // The format of the input is known only on rank 0.
        form.settle(self.format.unwrap_or(Format::Json));
        let attached = Observers::attach(network, &self.observe, &form, &Reporter::plain());
        let (network, observers) = attached?;
        let runtime = Arc::new(runtime.build().map_err(Failure::internal)?);
        let serving = network.serve(&runtime, team.node());
        team.exchange(&runtime)?;
        serving.wait();
        let workers = runtime.workers();
        drop(runtime);
        observers.finish();
        Ok(workers)
    }
}

/// A descriptor of standard output that no box closes with its own (`close(1)`). The standard
/// library takes a write to a closed standard output for a successful one.
fn standard_output() -> Result<File, Failure> {
    io::stdout().as_fd().try_clone_to_owned().map(File::from).map_err(unprintable)
}

fn cannot_write(name: &str, why: &io::Error) -> String {
    format!("cannot write records to {name}: {why}")
}

/// Loads all box functions. Sources are compiled together, so that they may call each other.
fn load(files: &[PathBuf]) -> Result<Boxes, Failure> {
    let mut boxes = Boxes::new();
    let is_source = |path: &&PathBuf| {
        let extension = path.extension().and_then(|e| e.to_str());
        path.is_dir() || extension.is_some_and(|e| ["c", "cc", "cpp", "cxx", "py"].contains(&e))
    };
    for path in files {
        File::open(path).map_err(|e| {
            Failure::usage(format!(
                "cannot read boxes from {}: {e}; name another file",
                path.display()
            ))
        })?;
    }
    let (sources, libraries): (Vec<_>, Vec<_>) = files.iter().partition(is_source);
    for library in libraries {
        boxes.load_library(library).map_err(unlinked)?;
    }
    boxes.compile(sources).map_err(unlinked)?;
    Ok(boxes)
}

/// A box without a function is a mistake in the program; a compiler that fails is not.
fn unlinked(why: Error) -> Failure {
    match why {
        // The messages have several lines.
        Error::Compilation { messages } => {
            for line in messages.lines() {
                print_error(printable(line) + "\n");
            }
            Failure::data("the boxes do not compile; correct the errors above")
        }
        Error::Compiler { .. } | Error::TemporaryFolder { .. } => Failure::internal(why),
        _ => Failure::data(why),
    }
}

/// Feeds all records of the source to the network. The network ends when this function returns.
fn read(
    source: Source,
    form: &Form,
    on_error: OnError,
    mut input: Input,
    events: &SyncSender<Event>,
    tally: &Tally,
) {
    let name = source.name.clone();
    let broken = |why: io::Error| {
        // Sending fails only after the sink has failed.
        drop(events.send(Event::Broken(Failure::internal(format!(
            "cannot read records from {name}: {why}"
        )))));
    };
    let records = source.wait().and_then(|source| {
        let source: Box<dyn std::io::Read + Send> = match form.0.get() {
            Some(_) => source,
            None => {
                let (found, source) = find_form(source)?;
                form.settle(found);
                Box::new(source)
            }
        };
        Ok(Reader::new(source, form.wait()))
    });
    let records = match records {
        Ok(records) => records,
        Err(why) => {
            form.settle(Format::Json);
            return broken(why);
        }
    };
    for record in records {
        match record {
            Ok(record) => {
                // The network refuses a record after it has stopped and has reported the reason.
                if input.write(record).is_err() {
                    return;
                }
                Tally::add(&tally.given);
            }
            Err(Error::Read { source, .. }) => return broken(source),
            Err(wrong) => {
                Tally::add(&tally.faults);
                let fault = Event::Fault(without_record("input", &wrong));
                if events.send(fault).is_err() || on_error == OnError::Stop {
                    return;
                }
            }
        }
    }
}

/// The destination of records. Its writer starts when the format is known.
struct Sink {
    /// Name of the destination in messages. `None` for standard output.
    name: Option<String>,
    /// `None` without a destination, and after the writer has taken it.
    to: Option<Box<dyn Write + Send>>,
    form: Form,
    writer: Option<Writer<Box<dyn Write + Send>>>,
}

impl Sink {
    fn write(&mut self, record: &Record) -> Result<(), Error> {
        if let Some(to) = self.to.take() {
            self.writer = Some(Writer::new(to, self.form.wait()));
        }
        self.writer.as_mut().map_or(Ok(()), |writer| writer.write(record))
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let flushed = self.writer.as_mut().map_or(Ok(()), Writer::flush);
        flushed.map_err(|e| self.failed(e))
    }

    fn finish(mut self) -> Result<(), Failure> {
        let to = self.to.take();
        let begun =
            to.map(|to| Writer::new(to, self.form.0.get().copied().unwrap_or(Format::Json)));
        let writer = begun.or(self.writer.take());
        writer.map_or(Ok(()), |writer| writer.finish().map(drop)).map_err(|e| self.failed(e))
    }

    /// The failure of a destination that can no longer be written.
    fn failed(&self, why: Error) -> Failure {
        match (why, &self.name) {
            (Error::Write(why), None) => unprintable(why),
            (Error::Write(why), Some(name)) => Failure::internal(cannot_write(name, &why)),
            (why, _) => Failure::internal(why),
        }
    }
}

impl Flow {
    pub(crate) fn scene(&self) -> &Scene {
        &self.scene
    }

    /// Returns a handle that stops the network.
    pub(crate) fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Writes all output until the network has ended, and returns how it ended.
    pub(crate) fn write(self) -> Done {
        let Flow { coming, mut sink, on_error, stop, reporter, observers, scene } = self;
        let mut wrong = 0;
        let mut broken = None;
        let kept = loop {
            let event = match coming.try_recv() {
                Err(TryRecvError::Empty) => {
                    sink.flush()?;
                    coming.recv().ok()
                }
                event => event.ok(),
            };
            let fault = match event {
                None => return Err(Failure::internal("the network was lost; please report this")),
                Some(Event::End { kept }) => break kept,
                Some(Event::Record(record)) => match sink.write(&record) {
                    Ok(()) => continue,
                    Err(why @ Error::Write(_)) => return Err(sink.failed(why)),
                    Err(unwritable) => {
                        Tally::add(&scene.tally.faults);
                        if on_error == OnError::Stop {
                            stop.stop();
                        }
                        without_record("output", &unwritable)
                    }
                },
                // The records that were read are still processed.
                Some(Event::Broken(why)) => {
                    broken = Some(why);
                    continue;
                }
                Some(Event::Fault(fault)) => fault,
            };
            wrong += 1;
            match on_error {
                OnError::Record => {
                    sink.write(&fault.to_record()).map_err(|e| sink.failed(e))?;
                }
                _ if wrong <= REPORTED_MAX => reporter.report(format!("corebeat: {fault}\n")),
                _ => {}
            }
        };
        sink.finish()?;
        observers.finish();
        if kept > 0 {
            reporter.report(format!(
                "corebeat: warning: {} in synchrocells at the end and lost: no matching record arrived\n",
                count(kept, "record was", "records were")
            ));
        }
        if let Some(broken) = broken {
            return Err(broken);
        }
        if wrong == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        let what = count(wrong, "record failed", "records failed");
        Err(Failure::data(match on_error {
            OnError::Stop => {
                format!(
                    "{what}, and the network was stopped; use '--on-error record' to continue with \
                     the other records"
                )
            }
            OnError::Continue => format!("{what}, and the output lacks them"),
            OnError::Record => {
                format!("{what}; the output has them with a field '{}'", Fault::FIELD)
            }
        }))
    }
}

/// A fault outside of the network: text that is not a record, or a record without text.
fn without_record(entity: &str, why: &Error) -> Fault {
    Fault { entity: entity.into(), message: why.to_string(), record: None }
}

/// A number with its noun.
pub(crate) fn count(n: usize, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_size_is_read_with_its_unit() {
        assert_eq!(stack_size("300000"), Ok(300_000));
        assert_eq!(stack_size("512K"), Ok(512 << 10));
        assert_eq!(stack_size("8M"), Ok(8 << 20));
        assert_eq!(stack_size("1G"), Ok(1 << 30));
        for wrong in
            ["", "K", "1", "2G", "-1M", "1.5M", "8m", "99999999999999999999G", "17179869184G"]
        {
            assert!(stack_size(wrong).is_err(), "{wrong}");
        }
    }
}
