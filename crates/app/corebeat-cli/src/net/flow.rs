//! Records through a network, from where they come from to where they go.
//!
//! ```text
//!  source --(thread)--> network --(thread)--> events --(who calls `write`)--> sink
//!                          `-----faults---------^
//! ```
//!
//! What comes out is handed to the sink at once where nothing more waits, so that a user who types records sees answers.

use crate::failure::{Done, Failure, tell};
use crate::net::meter::Meter;
use crate::net::observer::{self, Observers, Wanted};
use crate::net::placing::Placing;
use crate::net::program::Which;
use crate::net::source::{Source, find_form, with_host};
use corebeat_lpel::{Runtime, STACK_MAX, STACK_MIN};
use corebeat_snet::format::{Format, FormatError, Reader, Writer};
use corebeat_snet::{
    Boxes, Fault, Input, Kind, Label, LinkError, Network, OnFault, Record, Report, Running, Value,
};
use std::fs::File;
use std::io::{self, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Instant;

/// Records and faults on their way to the sink.
const EVENTS: usize = 1_024;

/// Faults that are told one by one.
const TOLD_MAX: usize = 20;

/// The field of an error record that says what was wrong.
const ERROR: &str = "error";

/// Records that a stream may have room for.
const CAPACITY_MAX: u32 = 1 << 20;

/// How a network is to run.
#[derive(clap::Args, Default)]
pub(crate) struct How {
    /// Functions of boxes: a shared library, or a source file in C, C++ or Python; may be repeated
    #[arg(short, long, value_name = "LIB|FILE.c|FILE.py")]
    boxes: Vec<PathBuf>,
    /// The form of records, in and out: json (one object a line) or xml; if nothing is said, found out by the input's
    /// first byte
    #[arg(short, long, value_name = "json|xml")]
    format: Option<Format>,
    /// Read records from this file; else from standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "listen")]
    input: Option<PathBuf>,
    /// Read records from the first who connects to this port; of this machine, unless another host is named
    #[arg(short = 'I', long, value_name = "[HOST:]PORT")]
    listen: Option<String>,
    /// Write records to this port
    #[arg(short = 'O', long, value_name = "[HOST:]PORT", conflicts_with = "output")]
    connect: Option<String>,
    /// Threads; one a CPU if nothing is said
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// What a record that cannot go on does: stop the network (if nothing is said), or come out with a field 'error' while
    /// all goes on
    #[arg(long, value_name = "WHAT", value_enum)]
    on_error: Option<OnError>,
    /// Which worker a task goes to: nearby (as it comes; if nothing is said), balanced (equal numbers of each box on all
    /// workers), or by the costs in a file of 'net profile --save'. The latter two run boxes after all else
    #[arg(long, value_name = "nearby|balanced|FILE")]
    placement: Option<Placing>,
    /// Records that a stream has room for
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(CAPACITY_MAX)))]
    capacity: Option<u32>,
    /// Bytes of stack for each box, such as 300000, 512K or 8M: for boxes in C that keep much there
    #[arg(long, value_name = "BYTES", value_parser = stack_size)]
    stack: Option<usize>,
    /// Write each record that goes into ('before') or comes out of ('after', or both if nothing is said) the boxes or nets of
    /// this name to standard error, a file, or a socket; may be repeated
    #[arg(long, value_name = "NAME[:before|:after][=FILE|=HOST:PORT|=-]")]
    observe: Vec<Wanted>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum OnError {
    #[default]
    Stop,
    Record,
}

/// Bytes, with K, M or G after them if one likes.
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

/// Where records go.
pub(crate) enum To<'a> {
    /// Where the command line says; this is its file.
    Output(Option<&'a Path>),
    /// Nowhere, unless the command line says more.
    Nowhere(Option<&'a Path>),
}

/// The form of records, which may not be known before the first has come.
#[derive(Clone, Default)]
pub(crate) struct Form(Arc<OnceLock<Format>>);

impl Form {
    /// It is this, unless it is known already.
    fn settle(&self, form: Format) {
        let _ = self.0.set(form);
    }

    /// The form, when it is known.
    pub(crate) fn wait(&self) -> Format {
        *self.0.wait()
    }
}

/// Who tells a user something while a network runs.
#[derive(Clone)]
pub(crate) struct Teller(Arc<dyn Fn(String) + Send + Sync>);

impl Teller {
    pub(crate) fn new(tell: impl Fn(String) + Send + Sync + 'static) -> Teller {
        Teller(Arc::new(tell))
    }

    /// On standard error.
    pub(crate) fn plain() -> Teller {
        Teller::new(tell)
    }

    pub(crate) fn tell(&self, text: String) {
        (self.0)(text);
    }
}

/// What went through so far.
#[derive(Default)]
pub(crate) struct Tally {
    /// Records into the network.
    pub(crate) given: AtomicU64,
    /// Records out of it.
    pub(crate) put: AtomicU64,
    /// Records that could not go on.
    pub(crate) faults: AtomicU64,
}

impl Tally {
    fn add(count: &AtomicU64) {
        // Relaxed: only the number counts.
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// What comes to the sink.
enum Event {
    Record(Record),
    Fault(Fault),
    /// The input has something that is no record.
    Unread(FormatError),
    /// The input cannot be read any more.
    Broken(Failure),
    /// The network has ended, with this many records in synchrocells.
    End {
        kept: usize,
    },
}

/// A network at work. Somebody has to `write` what comes out.
pub(crate) struct Flow {
    coming: Receiver<Event>,
    sink: Sink,
    on_error: OnError,
    stop: Stop,
    teller: Teller,
    observers: Observers,
    scene: Scene,
}

/// What there is to see of a network at work.
#[derive(Clone)]
pub(crate) struct Scene {
    /// The net's name.
    pub(crate) net: String,
    /// Its boxes' names.
    pub(crate) boxes: Vec<String>,
    /// How many records a stream has room for at first.
    pub(crate) capacity: usize,
    pub(crate) workers: usize,
    pub(crate) tally: Arc<Tally>,
    /// When it began.
    pub(crate) begin: Instant,
    /// Gone when the network has ended.
    pub(crate) runtime: Weak<Runtime>,
}

/// Stops a network in order.
#[derive(Clone)]
pub(crate) struct Stop {
    report: Report,
    form: Form,
}

impl Stop {
    /// No more records are taken in; those inside go on to their end.
    pub(crate) fn stop(&self) {
        self.report.stop();
        // Records may wait to be written who nobody has told the form, and nobody will.
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

    /// Whether somebody observes on standard error.
    pub(crate) fn observes_on_standard_error(&self) -> bool {
        self.observe.iter().any(Wanted::is_on_standard_error)
    }

    /// Starts a network.
    pub(crate) fn start(
        &self,
        which: &Which,
        to: To,
        meter: Option<&Meter>,
        teller: Teller,
    ) -> Result<Flow, Failure> {
        if which.is_standard_input() && self.reads_standard_input() {
            return Err(Failure::usage(
                "the program and the records cannot both come from standard input; give one as a file",
            ));
        }
        let net = which.read()?.tell()?;
        observer::known(&net, &self.observe)?;
        let mut boxes = load(&self.boxes)?;
        boxes.compile_bodies(net.boxes()).map_err(unlinked)?;

        let form = Form::default();
        self.format.iter().for_each(|format| form.settle(*format));
        let on_error = self.on_error.unwrap_or_default();
        let placing = self.placement.clone().unwrap_or(Placing::Nearby);
        let capacity = self.capacity.map_or(corebeat_snet::CAPACITY, |n| n as usize);
        let names = (net.name().to_owned(), net.boxes().iter().map(|plan| plan.name.clone()).collect());
        let tally = Arc::new(Tally::default());
        let (events, coming) = sync_channel(EVENTS);
        let of_faults = (events.clone(), tally.clone(), form.clone());
        let mut network = Network::new(net, |plan| boxes.find(plan))
            .map_err(unlinked)?
            .on_fault(match on_error {
                OnError::Stop => OnFault::Stop,
                OnError::Record => OnFault::GoOn,
            })
            .capacity(capacity)
            .tell(move |fault| {
                let (events, tally, form) = &of_faults;
                Tally::add(&tally.faults);
                if on_error == OnError::Stop {
                    form.settle(Format::Json); // as in `Stop::stop`
                }
                // Nobody listens any more only where the sink has failed.
                drop(events.send(Event::Fault(fault.clone())));
            });
        if let Some(bytes) = self.stack {
            network = network.stack_size(bytes);
        }
        if placing.puts_boxes_last() {
            network = network.boxes_last();
        }
        let mut runtime = placing.apply(Runtime::builder().stack_option("--stack"))?;
        if let Some(workers) = self.workers {
            runtime = runtime.workers(workers.into());
        }
        if let Some(meter) = meter {
            runtime = runtime.monitor(meter.clone());
        }
        let source = Source::open(self.input.as_deref(), self.listen.as_deref())?;
        let sink = self.sink(to, &form)?;
        let (network, observers) = Observers::attach(network, &self.observe, &form, &teller)?;
        let runtime = Arc::new(runtime.build().map_err(Failure::own)?);

        let begin = Instant::now();
        let Running { input, output, report } = network.start(&runtime);
        let (net, boxes) = names;
        let scene = Scene {
            net,
            boxes,
            capacity,
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
            // A network that nobody listens to comes down; else the runtime would wait for one that never ends.
            drop(records);
            let kept = report.kept();
            drop(runtime);
            // As with faults.
            let _ = sent.and_then(|()| events.send(Event::End { kept }));
        });
        Ok(Flow { coming, sink, on_error, stop, teller, observers, scene })
    }

    fn sink(&self, to: To, form: &Form) -> Result<Sink, Failure> {
        let (To::Output(file) | To::Nowhere(file)) = to;
        let (name, opened): (_, io::Result<Option<Box<dyn Write + Send>>>) = match (file, &self.connect) {
            (Some(path), _) => {
                (path.display().to_string(), File::create(path).map(|file| Some(Box::new(file) as _)))
            }
            (None, Some(address)) => {
                let address = with_host(address);
                let connected = TcpStream::connect(&address).map(|stream| Some(Box::new(stream) as _));
                (address, connected)
            }
            (None, None) => match to {
                To::Output(_) => ("standard output".into(), Ok(Some(Box::new(io::stdout())))),
                To::Nowhere(_) => ("nowhere".into(), Ok(None)),
            },
        };
        match opened {
            Ok(to) => Ok(Sink { name, to, form: form.clone(), writer: None }),
            Err(e) => Err(Failure::usage(format!("cannot write records to {name}: {e}"))),
        }
    }
}

/// All functions that are given. Sources are compiled together, so that they may call each other.
fn load(files: &[PathBuf]) -> Result<Boxes, Failure> {
    let mut boxes = Boxes::new();
    let is_source = |path: &&PathBuf| {
        let extension = path.extension().and_then(|e| e.to_str());
        extension.is_some_and(|e| ["c", "cc", "cpp", "cxx", "py"].contains(&e))
    };
    for path in files {
        File::open(path).map_err(|e| {
            Failure::usage(format!("cannot read boxes from {}: {e}; name another file", path.display()))
        })?;
    }
    let (sources, libraries): (Vec<_>, Vec<_>) = files.iter().partition(is_source);
    for library in libraries {
        boxes.load_library(library).map_err(unlinked)?;
    }
    boxes.compile(sources).map_err(unlinked)?;
    Ok(boxes)
}

/// A box without a function is the program's fault, a machine that cannot compile is not.
fn unlinked(why: LinkError) -> Failure {
    match why {
        LinkError::Compiler { .. } | LinkError::Folder { .. } => Failure::own(why),
        _ => Failure::wrong(why),
    }
}

/// Reads all records and gives them in. Where it ends, the network does, too.
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
        // Nobody listens any more only where the sink has failed.
        drop(events.send(Event::Broken(Failure::own(format!("cannot read records from {name}: {why}")))));
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
                // If it is refused, the network has stopped, and that was told.
                if input.write(record).is_err() {
                    return;
                }
                Tally::add(&tally.given);
            }
            Err(FormatError::Read { source, .. }) => return broken(source),
            Err(wrong) => {
                Tally::add(&tally.faults);
                if events.send(Event::Unread(wrong)).is_err() || on_error == OnError::Stop {
                    return;
                }
            }
        }
    }
}

/// Where records go; it is begun when their form is known.
struct Sink {
    /// What it is called.
    name: String,
    /// Nowhere, if there is none, or it has been given to the writer.
    to: Option<Box<dyn Write + Send>>,
    form: Form,
    writer: Option<Writer<Box<dyn Write + Send>>>,
}

impl Sink {
    fn write(&mut self, record: &Record) -> Result<(), FormatError> {
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
        let begun = to.map(|to| Writer::new(to, self.form.0.get().copied().unwrap_or(Format::Json)));
        let writer = begun.or(self.writer.take());
        writer.map_or(Ok(()), |writer| writer.finish().map(drop)).map_err(|e| self.failed(e))
    }

    /// What to say where it takes no more.
    fn failed(&self, why: FormatError) -> Failure {
        let why = match why {
            FormatError::Write(e) => e.to_string(),
            other => other.to_string(),
        };
        Failure::own(format!("cannot write records to {}: {why}", self.name))
    }
}

impl Flow {
    pub(crate) fn scene(&self) -> &Scene {
        &self.scene
    }

    /// What stops it.
    pub(crate) fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Writes all that comes, until the network has ended, and says how that was.
    pub(crate) fn write(self) -> Done {
        let Flow { coming, mut sink, on_error, stop, teller, observers, scene } = self;
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
            let (mistake, record) = match event {
                None => return Err(Failure::own("the network was lost; please report this")),
                Some(Event::End { kept }) => break kept,
                Some(Event::Record(record)) => match sink.write(&record) {
                    Ok(()) => continue,
                    Err(why @ FormatError::Write(_)) => return Err(sink.failed(why)),
                    Err(unwritable) => {
                        Tally::add(&scene.tally.faults);
                        if on_error == OnError::Stop {
                            stop.stop();
                        }
                        (format!("output: {unwritable}"), None)
                    }
                },
                // Those that were read go on to their end.
                Some(Event::Broken(why)) => {
                    broken = Some(why);
                    continue;
                }
                Some(Event::Unread(why)) => (format!("input: {why}"), None),
                Some(Event::Fault(fault)) => (format!("{}: {}", fault.entity, fault.message), fault.record),
            };
            wrong += 1;
            match on_error {
                OnError::Record => {
                    sink.write(&error_record(&mistake, record)).map_err(|e| sink.failed(e))?;
                }
                OnError::Stop if wrong <= TOLD_MAX => {
                    let record = record.map_or(String::new(), |r| format!("; the record is {r:?}"));
                    teller.tell(format!("corebeat: {mistake}{record}\n"));
                }
                OnError::Stop => {}
            }
        };
        sink.finish()?;
        observers.finish();
        if kept > 0 {
            teller.tell(format!(
                "corebeat: warning: {} in synchrocells at the end, and lost: what they were to be joined with did not come\n",
                count(kept, "record was", "records were")
            ));
        }
        if let Some(broken) = broken {
            return Err(broken);
        }
        if wrong == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        let what = count(wrong, "record could not go on", "records could not go on");
        Err(Failure::wrong(match on_error {
            OnError::Stop => {
                format!("{what}, and the network was stopped; '--on-error record' goes on with the others")
            }
            OnError::Record => format!("{what}: in the output they have a field '{ERROR}'"),
        }))
    }
}

/// A number of things.
pub(crate) fn count(n: usize, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}

/// What there still is of a record that could not go on, with what was wrong.
fn error_record(mistake: &str, record: Option<Record>) -> Record {
    let label = Label::new(Kind::Field, ERROR);
    let said = label.map(|label| (label, Value::from(mistake)));
    let kept = record.iter().flat_map(|r| r.iter().map(|(label, value)| (label, value.clone())));
    // Only where there are too many labels in all is there less to say.
    let whole =
        said.clone().and_then(|said| Record::from_pairs(kept.filter(|(_, v)| has_text(v)).chain([said])));
    whole
        .or_else(|_| said.and_then(|said| Record::from_pairs([said])))
        .unwrap_or_else(|_| Record::new(corebeat_snet::Shape::empty(), vec![]))
}

/// Whether a value can be written.
fn has_text(value: &Value) -> bool {
    !matches!(value, Value::Native(_))
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
        for wrong in ["", "K", "1", "2G", "-1M", "1.5M", "8m", "99999999999999999999G", "17179869184G"] {
            assert!(stack_size(wrong).is_err(), "{wrong}");
        }
    }
}
