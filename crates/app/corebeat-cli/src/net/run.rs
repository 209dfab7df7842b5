//! `corebeat net run`: records through a network.
//!
//! ```text
//!  source --(thread)--> network --(thread)--> events --(this thread)--> sink
//!                          `-----faults---------^
//! ```
//!
//! What comes out is handed to the sink at once where nothing more waits, so that a user who types records sees answers.

use crate::failure::{Done, Failure, tell};
use crate::net::program::Which;
use corebeat_lpel::Runtime;
use corebeat_snet::format::{Format, FormatError, Reader, Writer};
use corebeat_snet::{Boxes, Fault, Input, Kind, Label, Network, OnFault, Record, Running, Value};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Records and faults on their way to the sink.
const EVENTS: usize = 1_024;

/// Faults that are told one by one.
const TOLD_MAX: usize = 20;

/// The field of an error record that says what was wrong.
const ERROR: &str = "error";

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,
    /// Functions of boxes: a shared library, or a source file in C, C++ or Python; may be repeated
    #[arg(short, long, value_name = "LIB|FILE.c|FILE.py")]
    boxes: Vec<PathBuf>,
    /// The form of records, in and out: json (one object a line) or xml
    #[arg(short, long, value_name = "json|xml", default_value_t = Format::Json)]
    format: Format,
    /// Read records from this file; else from standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "listen")]
    input: Option<PathBuf>,
    /// Write records to this file; else to standard output
    #[arg(short, long, value_name = "FILE", conflicts_with = "connect")]
    output: Option<PathBuf>,
    /// Read records from the first who connects to this port; of this machine, unless another host is named
    #[arg(short = 'I', long, value_name = "[HOST:]PORT")]
    listen: Option<String>,
    /// Write records to this port
    #[arg(short = 'O', long, value_name = "[HOST:]PORT")]
    connect: Option<String>,
    /// Threads; one a CPU if nothing is said
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// What a record that cannot go on does: stop the network, or come out with a field 'error' while all goes on
    #[arg(long, value_name = "WHAT", value_enum, default_value = "stop")]
    on_error: OnError,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OnError {
    Stop,
    Record,
}

/// What comes to the sink.
enum Event {
    Record(Record),
    Fault(Fault),
    /// The input has something that is no record.
    Unread(FormatError),
    /// The network has ended, with this many records in synchrocells.
    End {
        kept: usize,
    },
}

/// The way into the network. Whoever takes it out ends the network.
type Entry = Arc<Mutex<Option<Input>>>;

pub(crate) fn main(options: Options) -> Done {
    if options.which.is_standard_input() && options.input.is_none() && options.listen.is_none() {
        return Err(Failure::usage(
            "the program and the records cannot both come from standard input; give one as a file",
        ));
    }
    let net = options.which.read()?.tell()?;
    let mut boxes = load(&options.boxes)?;
    boxes.compile_bodies(&net.boxes).map_err(Failure::wrong)?;
    let (events, coming) = sync_channel(EVENTS);
    let of_faults = events.clone();
    let network = Network::new(net, |plan| boxes.find(plan))
        .map_err(Failure::wrong)?
        .on_fault(match options.on_error {
            OnError::Stop => OnFault::Stop,
            OnError::Record => OnFault::GoOn,
        })
        // Nobody listens any more only where the sink has failed.
        .tell(move |fault| drop(of_faults.send(Event::Fault(fault.clone()))));
    let sink = sink(&options)?;
    let source = source(&options)?;
    let mut runtime = Runtime::builder();
    if let Some(workers) = options.workers {
        runtime = runtime.workers(workers.into());
    }
    let runtime = runtime.build().map_err(Failure::own)?;

    let Running { input, output, report } = network.start(&runtime);
    let entry = Arc::new(Mutex::new(Some(input)));
    let (of_reader, format, on_error) = ((entry.clone(), events.clone()), options.format, options.on_error);
    thread::spawn(move || read(source, format, on_error, &of_reader.0, &of_reader.1));
    thread::spawn(move || {
        let sent = output.map(Event::Record).try_for_each(|record| events.send(record));
        let kept = report.kept();
        drop(runtime);
        // As with faults.
        let _ = sent.and_then(|()| events.send(Event::End { kept }));
    });
    write(&coming, &entry, Writer::new(sink, options.format), on_error)
}

/// All functions that are given. Sources are compiled together, so that they may call each other.
fn load(files: &[PathBuf]) -> Result<Boxes, Failure> {
    let mut boxes = Boxes::new();
    let is_source = |path: &&PathBuf| {
        let extension = path.extension().and_then(|e| e.to_str());
        extension.is_some_and(|e| ["c", "cc", "cpp", "cxx", "py"].contains(&e))
    };
    let (sources, libraries): (Vec<_>, Vec<_>) = files.iter().partition(is_source);
    for library in libraries {
        boxes.load_library(library).map_err(Failure::wrong)?;
    }
    boxes.compile(sources).map_err(Failure::wrong)?;
    Ok(boxes)
}

/// Where records come from; who listens waits only in the thread that reads.
enum Source {
    Ready(Box<dyn Read + Send>),
    Listener(TcpListener),
}

fn source(options: &Options) -> Result<Source, Failure> {
    let refused =
        |what: &dyn std::fmt::Display, e| Failure::usage(format!("cannot read records from {what}: {e}"));
    Ok(match (&options.input, &options.listen) {
        (Some(path), _) => {
            Source::Ready(Box::new(File::open(path).map_err(|e| refused(&path.display(), e))?))
        }
        (None, Some(address)) => {
            let address = with_host(address);
            let listener = TcpListener::bind(&address).map_err(|e| refused(&address, e))?;
            let address = listener.local_addr().map_err(|e| refused(&address, e))?;
            tell(format_args!("listening on {address}\n"));
            Source::Listener(listener)
        }
        (None, None) => Source::Ready(Box::new(std::io::stdin())),
    })
}

fn sink(options: &Options) -> Result<Box<dyn Write>, Failure> {
    let refused =
        |what: &dyn std::fmt::Display, e| Failure::usage(format!("cannot write records to {what}: {e}"));
    Ok(match (&options.output, &options.connect) {
        (Some(path), _) => Box::new(File::create(path).map_err(|e| refused(&path.display(), e))?),
        (None, Some(address)) => {
            let address = with_host(address);
            Box::new(TcpStream::connect(&address).map_err(|e| refused(&address, e))?)
        }
        (None, None) => Box::new(std::io::stdout()),
    })
}

/// An address; of this machine, if it is only a port.
fn with_host(address: &str) -> String {
    if address.contains(':') { address.to_owned() } else { format!("127.0.0.1:{address}") }
}

/// Reads all records and gives them in.
fn read(source: Source, format: Format, on_error: OnError, entry: &Entry, events: &SyncSender<Event>) {
    let source: std::io::Result<Box<dyn Read + Send>> = match source {
        Source::Ready(source) => Ok(source),
        Source::Listener(listener) => listener.accept().map(|(stream, _)| Box::new(stream) as _),
    };
    let records = match source {
        Ok(source) => Reader::new(source, format),
        Err(source) => {
            let failed = FormatError::Read { line: 1, column: 1, source };
            let _ = events.send(Event::Unread(failed));
            return drop(take(entry));
        }
    };
    for record in records {
        match record {
            Ok(record) => {
                let mut entry = entry.lock().unwrap_or_else(PoisonError::into_inner);
                // It has stopped, and that was told.
                if entry.as_mut().is_none_or(|input| input.write(record).is_err()) {
                    return;
                }
            }
            Err(wrong) => {
                let last = on_error == OnError::Stop;
                if events.send(Event::Unread(wrong)).is_err() || last {
                    break;
                }
            }
        }
    }
    drop(take(entry));
}

fn take(entry: &Entry) -> Option<Input> {
    entry.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Writes all that comes, until the network has ended.
fn write(
    coming: &Receiver<Event>,
    entry: &Entry,
    mut sink: Writer<Box<dyn Write>>,
    on_error: OnError,
) -> Done {
    let mut wrong = 0;
    let kept = loop {
        let event = match coming.try_recv() {
            Err(TryRecvError::Empty) => {
                sink.flush().map_err(Failure::own)?;
                coming.recv().ok()
            }
            event => event.ok(),
        };
        let (mistake, record) = match event {
            None => return Err(Failure::own("the network was lost; please report this")),
            Some(Event::End { kept }) => break kept,
            Some(Event::Record(record)) => match sink.write(&record) {
                Ok(()) => continue,
                Err(FormatError::Write(e)) => return Err(Failure::own(format!("cannot write records: {e}"))),
                Err(unwritable) => (format!("output: {unwritable}"), None),
            },
            Some(Event::Unread(why)) => (format!("input: {why}"), None),
            Some(Event::Fault(fault)) => (format!("{}: {}", fault.entity, fault.message), fault.record),
        };
        wrong += 1;
        match on_error {
            OnError::Record => sink.write(&error_record(&mistake, record)).map_err(Failure::own)?,
            OnError::Stop => {
                if wrong <= TOLD_MAX {
                    let record = record.map_or(String::new(), |r| format!("; the record is {r:?}"));
                    tell(format_args!("corebeat: {mistake}{record}\n"));
                }
                if wrong == 1 {
                    // Who reads may wait for input with no end, and who writes for this thread: another one waits for both.
                    let entry = entry.clone();
                    thread::spawn(move || drop(take(&entry)));
                }
            }
        }
    };
    sink.finish().map_err(Failure::own)?;
    if kept > 0 {
        tell(format_args!(
            "corebeat: warning: {} in synchrocells at the end, and lost: what they were to be joined with did not come\n",
            count(kept, "record was", "records were")
        ));
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

fn count(n: usize, one: &str, many: &str) -> String {
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
