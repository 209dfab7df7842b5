//! S-Net networks whose boxes are Python functions of this process.
//!
//! ```text
//!   task of a box --arguments--> thread of Python: calls the function
//!   (coroutine)   <--records----
//! ```
//!
//! A box runs on the stack of a coroutine. CPython checks the stack pointer against the stack of
//! the thread, and its states belong to threads, so functions run on threads of their own. There is
//! one such thread for each worker, because a worker waits while a function runs.

use crate::error::{Error, failed};
use corebeat_lpel::Runtime;
use corebeat_snet::body::{BoxBody, Out};
use corebeat_snet::diagnostic::{Diagnostic, Severity};
use corebeat_snet::{
    Boxes, Kind, Label, NetworkOptions, OnFault, Outcome, Record, RunError, Value, draw,
};
use corebeat_sync::fork::Process;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pyclass::{PyTraverseError, PyVisit};
use pyo3::types::{PyBytes, PyDict, PyFloat, PyInt, PyString, PyTuple};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Stack of the threads that call functions, as that of the first thread of most processes.
const STACK_BYTES: usize = 8 << 20;
/// Time between two checks for signals, such as Ctrl-C, while a network runs.
const SIGNAL_PERIOD: Duration = Duration::from_millis(100);

/// The labels and values of a record.
type Pairs = Vec<(Label, Value)>;

/// A call of a function.
struct Call {
    /// The box, as faults name it.
    entity: Arc<str>,
    function: Arc<Py<PyAny>>,
    arguments: Vec<Value>,
    /// Receives the output records, or the reason of the failure in one line.
    answer: SyncSender<Result<Vec<Pairs>, String>>,
}

/// An exception of a box, with the entity and the message of the fault that it causes.
struct Raised {
    entity: Arc<str>,
    message: String,
    why: PyErr,
}

/// State of the present run, which the boxes share.
#[derive(Default)]
struct Run {
    is_running: AtomicBool,
    is_interrupted: AtomicBool,
    /// The first exception of a box.
    raised: Mutex<Option<Raised>>,
}

impl Run {
    fn raised(&self) -> MutexGuard<'_, Option<Raised>> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an exception, if it is the first one. Others are dropped without the lock, because
    /// their drop may run code in Python.
    fn keep(&self, raised: Raised) {
        let mut first = self.raised();
        if first.is_none() {
            *first = Some(raised);
        }
    }
}

/// A box that is a Python function.
struct PythonBox {
    entity: Arc<str>,
    function: Arc<Py<PyAny>>,
    calls: Sender<Call>,
    run: Arc<Run>,
}

impl BoxBody for PythonBox {
    fn call(&self, input: &mut [Value], out: &mut Out<'_>) -> Result<(), String> {
        // Relaxed: no other data depends on the flag.
        if self.run.is_interrupted.load(Ordering::Relaxed) {
            return Err("the run was interrupted".into());
        }
        let arguments = input.to_vec();
        let (answer, answered) = sync_channel(1);
        let ended = || "Python has ended: keep the network until its run ends".to_owned();
        let (entity, function) = (self.entity.clone(), self.function.clone());
        let call = Call { entity, function, arguments, answer };
        self.calls.send(call).map_err(|_| ended())?;
        for pairs in answered.recv().map_err(|_| ended())?? {
            let (variant, mut values) = variant(pairs, out)?;
            if !out.put(variant, &mut values)? {
                break;
            }
        }
        Ok(())
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
fn serve(calls: &Mutex<Receiver<Call>>, run: &Run) {
    let next = || calls.lock().unwrap_or_else(PoisonError::into_inner).recv();
    // Python that has ended calls no functions. A thread that returns from `detach` while Python
    // ends blocks for ever, as threads of Python do.
    Python::try_attach(|py| {
        while let Ok(Call { entity, function, arguments, answer }) = py.detach(next) {
            let done = call_function(py, &function, &arguments);
            // The references are released while the thread is attached.
            drop((function, arguments));
            let done = done.map_err(|why| {
                let message = one_line(&why.to_string());
                run.keep(Raised { entity, message: message.clone(), why });
                message
            });
            // A box that does not wait any more needs no answer. The channel has room for it.
            let _ = answer.send(done);
        }
    });
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn call_function(
    py: Python<'_>,
    function: &Py<PyAny>,
    arguments: &[Value],
) -> PyResult<Vec<Pairs>> {
    let arguments =
        arguments.iter().map(|value| object(py, value)).collect::<PyResult<Vec<_>>>()?;
    let returned = function.bind(py).call1(PyTuple::new(py, arguments)?)?;
    if returned.is_none() {
        return Ok(vec![]);
    }
    if let Ok(record) = returned.cast::<PyDict>() {
        return Ok(vec![pairs(record)?]);
    }
    let records = returned.try_iter().map_err(|_| no_record(&returned))?;
    records
        .map(|record| {
            let record = record?;
            pairs(record.cast::<PyDict>().map_err(|_| no_record(&record))?)
        })
        .collect()
}

fn no_record(value: &Bound<'_, PyAny>) -> PyErr {
    let name = value.get_type().to_string();
    PyTypeError::new_err(format!("a box returns dictionaries or None, not {name}"))
}

/// The labels and values of a dictionary: `"a"` is a field, `"<t>"` a tag, `"<#b>"` a binding tag.
fn pairs(record: &Bound<'_, PyDict>) -> PyResult<Pairs> {
    record
        .iter()
        .map(|(key, value)| {
            let name: String = key.extract().map_err(|_| {
                PyTypeError::new_err(format!("the key {key} of a record is no text"))
            })?;
            let label: Label = name.parse().map_err(failed)?;
            Ok((label, value_of(label, &value)?))
        })
        .collect()
}

fn value_of(label: Label, object: &Bound<'_, PyAny>) -> PyResult<Value> {
    if label.kind() != Kind::Field {
        let number = object.extract::<i32>().map_err(|_| {
            PyValueError::new_err(format!(
                "{label} is a tag, and {} is no integer of 32 bits",
                object.repr().map_or_else(|_| "its value".into(), |text| text.to_string())
            ))
        })?;
        return Ok(Value::Tag(number));
    }
    // Only values that return unchanged; others stay Python objects.
    if object.is_exact_instance_of::<PyString>()
        && let Ok(text) = object.extract::<String>()
    {
        return Ok(Value::from(text.as_str()));
    }
    if object.is_exact_instance_of::<PyInt>()
        && let Ok(number) = object.extract::<i64>()
    {
        return Ok(Value::from(number));
    }
    if object.is_exact_instance_of::<PyFloat>() {
        return Ok(Value::from(object.extract::<f64>()?));
    }
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        return Ok(Value::bytes(bytes.as_bytes()));
    }
    Ok(Value::native(object.clone().unbind()))
}

fn object(py: Python<'_>, value: &Value) -> PyResult<Py<PyAny>> {
    if let Some(object) = value.downcast_ref::<Py<PyAny>>() {
        return Ok(object.clone_ref(py));
    }
    if let Some(text) = value.as_str() {
        return Ok(PyString::new(py, text).into_any().unbind());
    }
    if let Some(bytes) = value.as_bytes() {
        return Ok(PyBytes::new(py, bytes).into_any().unbind());
    }
    if let Some(number) = value.integer() {
        return Ok(match i64::try_from(number) {
            Ok(number) => number.into_pyobject(py)?.into_any().unbind(),
            // The largest type of C has 64 bits.
            Err(_) => (number as u64).into_pyobject(py)?.into_any().unbind(),
        });
    }
    match value.real() {
        Some(number) => Ok(PyFloat::new(py, number).into_any().unbind()),
        None => Err(Error::new_err(format!(
            "the field {value:?} of another language has no equivalent in Python: output a number, \
             a text or bytes"
        ))),
    }
}

fn dictionary(py: Python<'_>, record: &Record) -> PyResult<Py<PyDict>> {
    let dictionary = PyDict::new(py);
    for (label, value) in record.iter() {
        dictionary.set_item(label.to_string(), object(py, value)?)?;
    }
    Ok(dictionary.unbind())
}

/// Entity, message and record of a fault.
type Fault = (String, String, Option<Py<PyDict>>);
/// Output records, faults, their number, number of kept records, whether a fault has stopped the
/// network, and the exception that caused the first fault.
type Ran = (Vec<Py<PyDict>>, Vec<Fault>, usize, usize, bool, Option<Py<PyAny>>);

/// A network. `corebeat.net.Network` is the public class.
#[pyclass(frozen, module = "corebeat._native")]
pub(crate) struct Network {
    network: corebeat_snet::Network,
    /// The functions of the boxes, for the garbage collector. The boxes share these references.
    functions: Vec<Arc<Py<PyAny>>>,
    workers: usize,
    run: Arc<Run>,
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
        let (net, warnings) = plan(&program, name.as_deref())?;
        let run = Arc::new(Run::default());
        let (calls, received) = channel();
        let mut boxes = Boxes::new();
        let (names, functions): (Vec<_>, Vec<_>) =
            functions.into_iter().map(|(name, function)| (name, Arc::new(function))).unzip();
        for (name, function) in names.iter().zip(&functions) {
            let (function, calls, run) = (function.clone(), calls.clone(), run.clone());
            let entity = format!("box {name}").into();
            let body = Arc::new(PythonBox { entity, function, calls, run });
            boxes = boxes.with_body(name, body).map_err(failed)?;
        }
        // Code of boxes in other languages is compiled.
        let found = py.detach(|| corebeat_snet::Network::new(net, |plan| boxes.find(plan)));
        let on_fault = if stops { OnFault::Stop } else { OnFault::Continue };
        let options = NetworkOptions { on_fault, ..NetworkOptions::default() };
        let network = found.map_err(failed)?.with_options(options);
        let received = Arc::new(Mutex::new(received));
        for _ in 0..workers {
            let (received, run) = (received.clone(), run.clone());
            let thread = std::thread::Builder::new().name("corebeat-net".into());
            thread.stack_size(STACK_BYTES).spawn(move || serve(&received, &run))?;
        }
        Ok(Network { network, functions, workers, run, process: Process::current(), warnings })
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

    /// Runs records through the network, and waits for all outputs.
    fn run(&self, py: Python<'_>, records: Vec<Bound<'_, PyDict>>) -> PyResult<Ran> {
        let record =
            |record: &Bound<'_, PyDict>| Record::from_pairs(pairs(record)?).map_err(failed);
        let records = records.iter().map(record).collect::<PyResult<Vec<_>>>()?;
        if !self.process.is_current() {
            return Err(Error::new_err(
                "this network belongs to the parent process: create another one in the child",
            ));
        }
        // SeqCst: the flag also orders the state of two runs.
        if self.run.is_running.swap(true, Ordering::SeqCst) {
            return Err(Error::new_err("the network runs already: create another one"));
        }
        let ran = self.run_on_thread(py, records);
        let raised = self.run.raised().take();
        self.run.is_interrupted.store(false, Ordering::SeqCst);
        self.run.is_running.store(false, Ordering::SeqCst);
        let (outcome, has_stopped) = match ran? {
            Ok(outcome) => (outcome, false),
            Err(RunError::Stopped(outcome)) => (outcome, true),
            Err(why) => return Err(failed(why)),
        };
        let Outcome { records, faults, fault_count, kept } = outcome;
        // Boxes may fail at the same time: the first exception need not belong to the first fault.
        let is_first = |raised: &Raised| {
            let first = faults.first();
            first.is_some_and(|f| *f.entity == *raised.entity && f.message == raised.message)
        };
        let cause = raised.filter(is_first).map(|raised| raised.why.into_value(py).into_any());
        let records =
            records.iter().map(|record| dictionary(py, record)).collect::<PyResult<_>>()?;
        let fault = |fault: &corebeat_snet::Fault| {
            let record = fault.record.as_ref().map(|record| dictionary(py, record)).transpose()?;
            Ok((fault.entity.clone(), fault.message.clone(), record))
        };
        let faults = faults.iter().map(fault).collect::<PyResult<_>>()?;
        Ok((records, faults, fault_count, kept, has_stopped, cause))
    }
}

impl Network {
    /// Runs the records on another thread, and checks for signals meanwhile.
    fn run_on_thread(
        &self,
        py: Python<'_>,
        records: Vec<Record>,
    ) -> PyResult<Result<Outcome, RunError>> {
        let (ended, mut outcome) = channel();
        let network = &self.network;
        // The functions run on other threads, so no worker needs a CPU of its own.
        let run = move || -> PyResult<Result<Outcome, RunError>> {
            let runtime =
                Runtime::builder().workers(self.workers).pin(false).build().map_err(failed)?;
            Ok(network.run(&runtime, records))
        };
        std::thread::scope(|scope| {
            scope.spawn(move || ended.send(run()));
            let mut interrupt = None;
            loop {
                let received;
                (outcome, received) = py.detach(move || {
                    let received = outcome.recv_timeout(SIGNAL_PERIOD);
                    (outcome, received)
                });
                match received {
                    Ok(ran) => return interrupt.map_or(ran, Err),
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(Error::new_err("the thread of the network has panicked"));
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        if let Err(why) = py.check_signals() {
                            // The boxes fail from now on, and the network comes to its end.
                            self.run.is_interrupted.store(true, Ordering::SeqCst);
                            interrupt.get_or_insert(why);
                        }
                    }
                }
            }
        })
    }
}

/// The plan of a program, and warnings.
fn plan(program: &str, name: Option<&str>) -> PyResult<(corebeat_snet::plan::Net, Vec<String>)> {
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
    match checked.net {
        Some(net) => Ok((net, checked.diagnostics.iter().map(line).collect())),
        None => Err(first(&checked.diagnostics)),
    }
}
