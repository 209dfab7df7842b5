//! Traces: reading events and calls of any trace, and recording events of Python programs.

use crate::error::{Error, failed, system};
use crate::module::without_interpreter_lock;
use corebeat_probe::{Calls, Line, Outcome};
use corebeat_trace::{self as trace, Ending, Summary, Timeline, emit};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// A value of a field, independent of the packet that contains it.
#[derive(IntoPyObject)]
enum Value {
    Unsigned(u64),
    Signed(i64),
    Real(f64),
    Bool(bool),
    Text(String),
}

/// Time and its bound in nanoseconds, time since 1970, kind, stream, and values.
type Event = (u64, u32, u64, u16, u32, Vec<Value>);
/// Name of each field.
type Fields = Vec<String>;

/// All events of a trace by time. `corebeat.trace.Trace` is the public class.
#[pyclass(frozen, module = "corebeat._native")]
pub(crate) struct Events {
    /// Locked without the interpreter lock only, because reading may wait.
    timeline: Mutex<Timeline<BufReader<File>>>,
}

#[pymethods]
impl Events {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Events> {
        let timeline = py
            .detach(|| {
                let file = File::open(&path).map_err(trace::Error::Read)?;
                Timeline::new(BufReader::new(file))
            })
            .map_err(raise)?;
        Ok(Events { timeline: Mutex::new(timeline) })
    }

    /// The next events, up to this number; none at the end.
    fn next(&self, py: Python<'_>, count: usize) -> PyResult<Vec<Event>> {
        let read = || {
            let mut timeline = self.timeline.lock().unwrap_or_else(PoisonError::into_inner);
            let mut events = Vec::new();
            while events.len() < count
                && let Some(event) = timeline.next_event()?
            {
                events.push((
                    event.time_ns(),
                    event.bound_ns(),
                    event.real_time_ns(),
                    event.kind().number(),
                    event.thread().stream,
                    event.values().map(value).collect(),
                ));
            }
            Ok(events)
        };
        py.detach(read).map_err(raise)
    }

    /// Process ID, name of the program, and name of the counter.
    fn process(&self, py: Python<'_>) -> (u32, String, String) {
        self.read(py, |timeline| {
            let process = timeline.process();
            (process.pid, process.program.clone(), process.counter.clone())
        })
    }

    /// The kinds of events with their fields, by number from 1.
    fn kinds(&self, py: Python<'_>) -> Vec<(u16, String, Fields)> {
        self.read(py, |timeline| {
            let fields = |kind: &trace::ReadKind| {
                kind.fields().iter().map(|field| field.name.clone()).collect()
            };
            let kinds = timeline.kinds().iter();
            kinds.map(|kind| (kind.number(), kind.name().to_owned(), fields(kind))).collect()
        })
    }

    /// The threads: stream, thread ID and name.
    fn threads(&self, py: Python<'_>) -> Vec<(u32, u32, String)> {
        self.read(py, |timeline| {
            let threads = timeline.threads();
            threads.map(|thread| (thread.stream, thread.tid, thread.name.clone())).collect()
        })
    }

    /// Begin and end of the trace, in nanoseconds.
    fn span_ns(&self, py: Python<'_>) -> Option<(u64, u64)> {
        self.read(py, |timeline| timeline.span_ns())
    }

    /// The end of the file: state, lost events, and text.
    fn ending(&self, py: Python<'_>) -> (&'static str, u64, String) {
        self.read(py, |timeline| ending(timeline.ending()))
    }
}

impl Events {
    fn read<T: Send>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&Timeline<BufReader<File>>) -> T + Send,
    ) -> T {
        py.detach(|| read(&self.timeline.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn value(value: trace::Value<'_>) -> Value {
    match value {
        trace::Value::U64(number) => Value::Unsigned(number),
        trace::Value::I64(number) => Value::Signed(number),
        trace::Value::F32(number) => Value::Real(number.into()),
        trace::Value::F64(number) => Value::Real(number),
        trace::Value::Bool(is_true) => Value::Bool(is_true),
        trace::Value::Text(text) => Value::Text(text.to_owned()),
    }
}

fn ending(ending: &Ending) -> (&'static str, u64, String) {
    let state = match ending {
        Ending::Complete { .. } => "complete",
        Ending::Unfinished { .. } => "unfinished",
        _ => "damaged",
    };
    (state, ending.lost(), ending.to_string())
}

/// Name, file and line of the probe; index of the caller; run; line of execution; thread ID and
/// name; begin and end in nanoseconds; outcome; fields.
type Call = (
    (String, String, u32),
    Option<u32>,
    u32,
    (&'static str, u64),
    (u32, String),
    (u64, u64),
    &'static str,
    Vec<(String, String)>,
);

/// The calls that probes recorded, in the order of their begin.
#[pyfunction]
pub(crate) fn calls(py: Python<'_>, path: PathBuf) -> PyResult<Vec<Call>> {
    let read = || -> Result<Vec<Call>, corebeat_probe::Error> {
        let file = File::open(&path).map_err(trace::Error::Read)?;
        let calls = Calls::read(BufReader::new(file))?;
        let all = calls.calls().iter().enumerate();
        Ok(all.map(|(number, call)| entry(&calls, number as u32, call)).collect())
    };
    py.detach(read).map_err(|why| match why {
        corebeat_probe::Error::Trace(why) => raise(why),
        why => failed(why),
    })
}

fn entry(calls: &Calls, number: u32, call: &corebeat_probe::Call) -> Call {
    let operation = calls.operation(call);
    let (tid, thread) = calls.thread(call.thread);
    let outcome = match call.outcome {
        Outcome::Returned => "returned",
        Outcome::Panicked => "panicked",
        Outcome::Open => "open",
        Outcome::EventsLost => "events_lost",
    };
    let line = match call.line {
        Line::Thread(stream) => ("thread", stream.into()),
        Line::Task(task) => ("task", task),
        Line::HandedOver(line) => ("handed_over", line),
    };
    let fields = calls.fields(number);
    (
        (operation.name.clone(), operation.file.clone(), operation.line),
        call.parent,
        call.trace,
        line,
        (tid, thread.to_owned()),
        (call.begin_ns, call.end_ns),
        outcome,
        fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
    )
}

/// A trace that this process records. `corebeat.trace.Recording` is the public class.
#[pyclass(frozen, module = "corebeat._native")]
pub(crate) struct Recording {
    /// `None` after the end. Not locked while a call waits.
    trace: Mutex<Option<trace::Trace>>,
}

#[pymethods]
impl Recording {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Recording> {
        let begin = || {
            let trace = trace::Trace::create(&path)?;
            corebeat_probe::record(&trace)?;
            Ok(trace)
        };
        let trace = py.detach(begin).map_err(raise)?;
        Ok(Recording { trace: Mutex::new(Some(trace)) })
    }

    /// Path of the file.
    fn path(&self) -> Option<PathBuf> {
        let trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        trace.as_ref().and_then(trace::Trace::path)
    }

    /// Ends the trace. Returns bytes of the file, threads, and lost events; `None` if it has ended.
    fn finish(&self, py: Python<'_>) -> PyResult<Option<(u64, u32, u64)>> {
        let Some(trace) = self.take() else { return Ok(None) };
        let Summary { file_bytes, threads, lost, .. } =
            py.detach(|| trace.finish()).map_err(raise)?;
        Ok(Some((file_bytes, threads, lost)))
    }
}

impl Recording {
    fn take(&self) -> Option<trace::Trace> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let trace = self.take();
        without_interpreter_lock(|| drop(trace));
    }
}

/// An event of a Python program without a value.
#[derive(trace::Event)]
#[event(name = "python.event")]
struct PlainEvent<'a> {
    name: &'a str,
}

/// An event of a Python program with a value.
#[derive(trace::Event)]
#[event(name = "python.value")]
struct ValueEvent<'a> {
    name: &'a str,
    value: f64,
}

/// An event that the program emits repeatedly. `corebeat.trace.Mark` is the public name.
#[pyclass(frozen, module = "corebeat.trace")]
pub(crate) struct Mark {
    /// The stable ABI of Python 3.9 gives no access to the UTF-8 text of a `str` without a copy.
    #[pyo3(get)]
    name: String,
}

#[pymethods]
impl Mark {
    #[new]
    fn new(name: String) -> PyResult<Mark> {
        if name.len() > trace::TEXT_BYTES_MAX {
            let (bytes, limit) = (name.len(), trace::TEXT_BYTES_MAX);
            return Err(PyValueError::new_err(format!(
                "the name of an event has {bytes} bytes: use at most {limit}"
            )));
        }
        Ok(Mark { name })
    }

    /// Records the event in the trace of this process, with a value or without. Without a trace
    /// that is being recorded, the call has no effect.
    #[pyo3(signature = (value=None, /))]
    fn emit(&self, value: Option<f64>) {
        match value {
            None => emit(&PlainEvent { name: &self.name }),
            Some(value) => emit(&ValueEvent { name: &self.name, value }),
        }
    }
}

fn raise(why: trace::Error) -> PyErr {
    use trace::Error as Trace;
    match &why {
        Trace::File { source, .. } | Trace::Read(source) | Trace::Thread(source) => {
            system(why.to_string(), source)
        }
        _ => Error::new_err(why.to_string()),
    }
}
