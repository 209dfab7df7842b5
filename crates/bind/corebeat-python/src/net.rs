//! S-Net networks whose boxes are Python functions of this process.
//!
//! ```text
//!   task of a box --arguments-----------> thread of Python: calls the function, or continues
//!   (coroutine)   <--records, iterator--- its iterator
//! ```
//!
//! A box runs on the stack of a coroutine. CPython checks the stack pointer against the stack of
//! the thread, and its states belong to threads, so functions run on threads of their own. There is
//! one such thread for each worker, because a worker waits while a function runs.
//!
//! An iterator that a function returns, such as a generator, advances by [`BATCH`] records at a
//! time. The thread does not wait until the network has accepted them: it may be the only one, and
//! the network may need it for a box that comes after this one.

use crate::error::{Error, failed};
use crate::record::{Pairs, object, pairs};
use crate::stream::{First, Raised, Stream, Turn};
use corebeat_snet::ast::Definition;
use corebeat_snet::body::{BoxBody, Out};
use corebeat_snet::diagnostic::{Diagnostic, Severity};
use corebeat_snet::{Boxes, Label, NetworkOptions, OnFault, Value, draw};
use corebeat_sync::fork::Process;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pyclass::{PyTraverseError, PyVisit};
use pyo3::types::{PyDict, PyIterator, PyTuple};
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Stack of the threads that run code in Python, as that of the first thread of most processes.
pub(crate) const STACK_BYTES: usize = 8 << 20;
/// Largest number of records by which an iterator advances before the network receives them, and
/// the time after which fewer are sufficient.
const BATCH: usize = 64;
const BATCH_TIME: Duration = Duration::from_millis(1);

/// A part of a call of a function.
struct Call {
    /// The box, as faults name it.
    entity: Arc<str>,
    function: Arc<Py<PyAny>>,
    work: Work,
    answer: SyncSender<Answer>,
}

enum Work {
    /// Calls the function with these arguments.
    Begin(Vec<Value>),
    /// Advances the iterator that the function returned.
    Continue(Py<PyIterator>),
}

/// Output records, and the iterator if it has not ended; or the reason of the failure in one line.
struct Answer {
    records: Vec<Pairs>,
    rest: Result<Option<Py<PyIterator>>, String>,
}

/// A box that is a Python function.
struct PythonBox {
    entity: Arc<str>,
    function: Arc<Py<PyAny>>,
    calls: Sender<Call>,
}

impl BoxBody for PythonBox {
    fn call(&self, input: &mut [Value], out: &mut Out<'_>) -> Result<(), String> {
        let ended = || "Python has ended: keep the network until its run ends".to_owned();
        let mut work = Work::Begin(input.to_vec());
        loop {
            let (answer, answered) = sync_channel(1);
            let (entity, function) = (self.entity.clone(), self.function.clone());
            let call = Call { entity, function, work, answer };
            self.calls.send(call).map_err(|_| ended())?;
            let Answer { records, rest } = answered.recv().map_err(|_| ended())?;
            for pairs in records {
                let (variant, mut values) = variant(pairs, out)?;
                if !out.put(variant, &mut values)? {
                    return Ok(());
                }
            }
            match rest? {
                Some(iterator) => work = Work::Continue(iterator),
                None => return Ok(()),
            }
        }
    }
}

/// The number of the variant that has the labels of a record, and the values in its order.
fn variant(mut pairs: Pairs, out: &Out<'_>) -> Result<(usize, Vec<Value>), String> {
    let has = |label: &Label| pairs.iter().any(|(own, _)| own == label);
    let is_variant = |labels: &Vec<Label>| labels.len() == pairs.len() && labels.iter().all(has);
    let Some(at) = out.plan().outputs.iter().position(is_variant) else {
        let labels: Vec<String> = pairs.iter().map(|(label, _)| label.to_string()).collect();
        return Err(format!(
            "the box output a record {{{}}}, which it does not declare: {}",
            labels.join(", "),
            out.plan()
        ));
    };
    let labels = &out.plan().outputs[at];
    pairs.sort_by_key(|(label, _)| labels.iter().position(|declared| declared == label));
    Ok((at + 1, pairs.into_iter().map(|(_, value)| value).collect()))
}

/// Calls functions until the network is dropped.
///
/// The thread is attached once, and detached while it waits: Python keeps the state of a thread,
/// such as the values of `threading.local`, for as long as the thread is attached.
fn serve(calls: &Mutex<Receiver<Call>>, first: &First) {
    let next = || calls.lock().unwrap_or_else(PoisonError::into_inner).recv();
    // Python that has ended calls no functions. A thread that returns from `detach` while Python
    // ends blocks for ever, as threads of Python do.
    Python::try_attach(|py| {
        while let Ok(Call { entity, function, work, answer }) = py.detach(next) {
            let mut records = Vec::new();
            let rest = compute(py, &function, work, &mut records);
            // The reference is released while the thread is attached.
            drop(function);
            let rest = rest.map_err(|why| {
                let message = one_line(&why.to_string());
                first.keep(Raised { entity, message: message.clone(), why });
                message
            });
            // A box that does not wait any more needs no answer. The channel has room for it.
            let _ = answer.send(Answer { records, rest });
        }
    });
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Adds the next output records of a call. Returns the iterator if it may have more.
fn compute(
    py: Python<'_>,
    function: &Py<PyAny>,
    work: Work,
    records: &mut Vec<Pairs>,
) -> PyResult<Option<Py<PyIterator>>> {
    let iterator = match work {
        Work::Begin(arguments) => {
            let arguments = arguments.iter().map(|value| object(py, value));
            let arguments = PyTuple::new(py, arguments.collect::<PyResult<Vec<_>>>()?)?;
            let returned = function.bind(py).call1(arguments)?;
            if returned.is_none() {
                return Ok(None);
            }
            if let Ok(record) = returned.cast::<PyDict>() {
                records.push(pairs(record)?);
                return Ok(None);
            }
            returned.try_iter().map_err(|_| no_record(&returned))?
        }
        Work::Continue(iterator) => iterator.into_bound(py),
    };
    let begin = Instant::now();
    for record in &iterator {
        let record = record?;
        records.push(pairs(record.cast::<PyDict>().map_err(|_| no_record(&record))?)?);
        if records.len() == BATCH || begin.elapsed() > BATCH_TIME {
            return Ok(Some(iterator.unbind()));
        }
    }
    Ok(None)
}

fn no_record(value: &Bound<'_, PyAny>) -> PyErr {
    let name = value.get_type().to_string();
    PyTypeError::new_err(format!("a box returns dictionaries or None, not {name}"))
}

/// A network. `corebeat.net.Network` is the public class.
#[pyclass(frozen, module = "corebeat._native")]
pub(crate) struct Network {
    network: corebeat_snet::Network,
    /// The functions of the boxes, for the garbage collector. The boxes share these references.
    functions: Vec<Arc<Py<PyAny>>>,
    workers: usize,
    stops: bool,
    first: Arc<First>,
    turn: Turn,
    /// The process that has the threads.
    process: Process,
    #[pyo3(get)]
    warnings: Vec<String>,
}

#[pymethods]
impl Network {
    #[new]
    fn new(
        py: Python<'_>,
        program: String,
        functions: Vec<(String, Py<PyAny>)>,
        name: Option<String>,
        workers: usize,
        stops: bool,
    ) -> PyResult<Network> {
        let (net, warnings) = plan(&program, name.as_deref(), &functions)?;
        let first = Arc::new(First::default());
        let (calls, received) = channel();
        let mut boxes = Boxes::new();
        let (names, functions): (Vec<_>, Vec<_>) =
            functions.into_iter().map(|(name, function)| (name, Arc::new(function))).unzip();
        for (name, function) in names.iter().zip(&functions) {
            let (function, calls) = (function.clone(), calls.clone());
            let entity = format!("box {name}").into();
            let body = Arc::new(PythonBox { entity, function, calls });
            boxes = boxes.with_body(name, body).map_err(failed)?;
        }
        // Code of boxes in other languages is compiled.
        let found = py.detach(|| corebeat_snet::Network::new(net, |plan| boxes.find(plan)));
        let on_fault = if stops { OnFault::Stop } else { OnFault::Continue };
        let options = NetworkOptions { on_fault, ..NetworkOptions::default() };
        let network = found.map_err(failed)?.with_options(options);
        let received = Arc::new(Mutex::new(received));
        for _ in 0..workers {
            let (received, first) = (received.clone(), first.clone());
            let thread = std::thread::Builder::new().name("corebeat-net".into());
            thread.stack_size(STACK_BYTES).spawn(move || serve(&received, &first))?;
        }
        let (turn, process) = (Turn::default(), Process::current());
        Ok(Network { network, functions, workers, stops, first, turn, process, warnings })
    }

    /// Passes the functions to the garbage collector, which finds objects that hold the network and
    /// whose methods are boxes. `__clear__` is not necessary: each cycle contains the network of
    /// the public class, whose attributes the collector clears.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Calls that run hold references as well, but then the network is in use.
        self.functions.iter().try_for_each(|function| visit.call(&**function))
    }

    /// A drawing of the network, as SVG.
    fn svg(&self, py: Python<'_>) -> String {
        py.detach(|| draw::svg(self.network.net()))
    }

    /// Begins to run the records of an iterable through the network.
    fn stream(&self, py: Python<'_>, records: &Bound<'_, PyAny>) -> PyResult<Stream> {
        let input = records.try_iter()?.unbind();
        if !self.process.is_current() {
            return Err(Error::new_err(
                "this network belongs to the parent process: create another one in the child",
            ));
        }
        let run = self.turn.begin(py)?;
        // An exception of the last run.
        drop(self.first.take());
        Stream::start(py, &self.network, self.workers, input, run, self.first_of_stop())
    }
}

impl Network {
    /// The first exception of a box, if a fault stops the network.
    fn first_of_stop(&self) -> Option<Arc<First>> {
        self.stops.then(|| self.first.clone())
    }
}

/// The names of all boxes that definitions contain.
fn box_names<'a>(definitions: &'a [Definition], names: &mut BTreeSet<&'a str>) {
    for definition in definitions {
        match definition {
            Definition::Box(own) => {
                names.insert(&own.name.text);
            }
            Definition::Net(net) => box_names(&net.definitions, names),
            _ => {}
        }
    }
}

/// The plan of a program, and warnings. Each function must be one of a box in the program.
fn plan(
    program: &str,
    name: Option<&str>,
    functions: &[(String, Py<PyAny>)],
) -> PyResult<(corebeat_snet::plan::Net, Vec<String>)> {
    let line = |diagnostic: &Diagnostic| {
        let (line, column) = diagnostic.position(program);
        let help = diagnostic.help.as_ref().map_or(String::new(), |help| format!("; {help}"));
        format!("line {line}, column {column}: {}{help}", diagnostic.message)
    };
    let first = |diagnostics: &[Diagnostic]| {
        let mut errors = diagnostics.iter().filter(|d| d.severity == Severity::Error);
        PyValueError::new_err(errors.next().map_or("the program has no net".into(), line))
    };
    let module = corebeat_snet::parse(program).map_err(|diagnostics| first(&diagnostics))?;
    let checked = corebeat_snet::check(&module, name);
    let mut names = BTreeSet::new();
    box_names(&module.definitions, &mut names);
    let unknown = functions.iter().find(|(name, _)| !names.contains(name.as_str()));
    if let (Some((name, _)), Some(_)) = (unknown, &checked.net) {
        let names: Vec<&str> = names.into_iter().collect();
        return Err(PyValueError::new_err(format!(
            "the program has no box '{name}' for the function: its boxes are {}",
            names.join(", ")
        )));
    }
    match checked.net {
        Some(net) => Ok((net, checked.diagnostics.iter().map(line).collect())),
        None => Err(first(&checked.diagnostics)),
    }
}
