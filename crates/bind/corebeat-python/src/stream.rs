//! Runs of networks: an iterable of records in, an iterator of records out.
//!
//! ```text
//!   iterable --thread of the input--> network --thread of the output--> channel --> caller
//!      |                              (tasks)                                         |
//!      +--- exception ------------------- raised at the end ------------------------->+
//! ```
//!
//! Each arrow holds a bounded number of records: a caller that reads no records blocks the network,
//! which blocks its input. The input runs on a thread of its own, so that outputs arrive while the
//! input waits.

use crate::error::{Error, failed};
use crate::net::STACK_BYTES;
use crate::record::{dictionary, pairs};
use corebeat_lpel::Runtime;
use corebeat_snet::{CAPACITY, Input, Network, Output, Record, Report, Running};
use corebeat_sync::fork::Process;
use corebeat_sync::quiet;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator};
use std::mem;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Time between two checks for signals, such as Ctrl-C, while a call waits.
const SIGNAL_PERIOD: Duration = Duration::from_millis(100);
/// An exception of a box, with the entity and the message of the fault that it causes.
pub(crate) struct Raised {
    pub(crate) entity: Arc<str>,
    pub(crate) message: String,
    pub(crate) why: PyErr,
}

/// The first exception of a box in the present run of a network.
#[derive(Default)]
pub(crate) struct First(Mutex<Option<Raised>>);

impl First {
    /// Keeps an exception, if it is the first one. Others are dropped without the lock, because
    /// their drop may run code in Python.
    pub(crate) fn keep(&self, raised: Raised) {
        let mut first = lock(&self.0);
        if first.is_none() {
            *first = Some(raised);
        }
    }

    pub(crate) fn take(&self) -> Option<Raised> {
        lock(&self.0).take()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Runs,
    /// The caller reads no more records.
    Abandoned,
    Ended,
}

/// A run of a network: what the network, the input and the caller share.
pub(crate) struct Run {
    phase: Mutex<Phase>,
    ended: Condvar,
    /// The exception that ended the input.
    raised: Mutex<Option<PyErr>>,
}

impl Run {
    fn phase(&self) -> Phase {
        *lock(&self.phase)
    }

    fn abandon(&self) {
        let mut phase = lock(&self.phase);
        if *phase == Phase::Runs {
            *phase = Phase::Abandoned;
        }
    }

    /// Waits for the end, and checks for signals meanwhile.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let has_ended = || {
            let runs = |phase: &mut Phase| *phase != Phase::Ended;
            let waited = self.ended.wait_timeout_while(lock(&self.phase), SIGNAL_PERIOD, runs);
            !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
        };
        while !py.detach(has_ended) {
            py.check_signals()?;
        }
        Ok(())
    }
}

/// Ends a run when it is dropped, after the tasks and the threads of the run.
struct Ends(Arc<Run>);

impl Drop for Ends {
    fn drop(&mut self) {
        *lock(&self.0.phase) = Phase::Ended;
        self.0.ended.notify_all();
    }
}

/// The last run of a network, which has one run at a time.
///
/// Locked by threads that hold the interpreter lock only. A locked section does not wait.
#[derive(Default)]
pub(crate) struct Turn(Mutex<Option<Arc<Run>>>);

impl Turn {
    /// Begins the next run. Waits for the end of the last one if that was abandoned.
    pub(crate) fn begin(&self, py: Python<'_>) -> PyResult<Arc<Run>> {
        loop {
            let last = {
                let mut last = lock(&self.0);
                match &*last {
                    Some(run) if run.phase() != Phase::Ended => run.clone(),
                    _ => {
                        let (phase, raised) = (Mutex::new(Phase::Runs), Mutex::default());
                        let run = Arc::new(Run { phase, ended: Condvar::new(), raised });
                        *last = Some(run.clone());
                        return Ok(run);
                    }
                }
            };
            if last.phase() == Phase::Runs {
                return Err(Error::new_err(
                    "the network runs already: create another one, or close its stream",
                ));
            }
            last.wait(py)?;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Entity, message and record of a fault.
type Fault = (String, String, Option<Py<PyDict>>);

/// The output of a run. `corebeat.net.Stream` is the public class.
#[pyclass(frozen, module = "corebeat._native")]
pub(crate) struct Stream {
    run: Arc<Run>,
    report: Report,
    /// The first exception of a box, if a fault stops the network.
    first: Option<Arc<First>>,
    /// `None` after the end. Locked without the interpreter lock only, because a call waits.
    records: Mutex<Option<Receiver<Record>>>,
    process: Process,
}

impl Stream {
    /// Starts a network for a run.
    pub(crate) fn start(
        py: Python<'_>,
        network: &Network,
        workers: usize,
        input: Py<PyIterator>,
        run: Arc<Run>,
        first: Option<Arc<First>>,
    ) -> PyResult<Stream> {
        let ends = Ends(run.clone());
        let start = || {
            // The functions run on other threads, so no worker needs a CPU of its own.
            let runtime = Runtime::builder().workers(workers).pin(false).build()?;
            let running = network.start(&runtime);
            Ok((runtime, running))
        };
        let started: Result<_, corebeat_lpel::Error> = py.detach(start);
        let (runtime, Running { input: entry, output, report }) = started.map_err(failed)?;
        let (sender, receiver) = sync_channel(CAPACITY);
        quiet::spawn("corebeat-out", move || pass_out(output, runtime, sender, ends))?;
        let of_input = Builder::new().name("corebeat-in".into()).stack_size(STACK_BYTES);
        let shared = run.clone();
        of_input.spawn(move || pass_in(input, entry, &shared))?;
        let (records, process) = (Mutex::new(Some(receiver)), Process::current());
        Ok(Stream { run, report, first, records, process })
    }

    /// Stops the network. Its functions are not called any more.
    fn abandon(&self) {
        self.run.abandon();
        self.report.abandon();
    }

    /// The error of a network that a fault has stopped. Its cause is the exception of the box.
    fn stopped(&self, py: Python<'_>) -> Option<PyErr> {
        let first = self.first.as_ref()?;
        let fault = self.report.faults().into_iter().next()?;
        let why = Error::new_err(format!(
            "the network stopped at a fault: {}: {}; use on_fault='continue' to continue after \
             faults",
            fault.entity, fault.message
        ));
        // Boxes may fail at the same time: the first exception need not belong to the first fault.
        let is_of_fault =
            |raised: &Raised| *fault.entity == *raised.entity && fault.message == raised.message;
        let cause = first.take().filter(is_of_fault).map(|raised| raised.why);
        why.set_cause(py, cause);
        Some(why)
    }
}

#[pymethods]
impl Stream {
    /// The next output record; `None` after the last one. Raises the exception of the input, or the
    /// error of a network that a fault has stopped, once and after the last record.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Py<PyDict>>> {
        if !self.process.is_current() {
            return Err(Error::new_err(
                "this run belongs to the parent process: create another network in the child",
            ));
        }
        let receive = || match &*lock(&self.records) {
            Some(records) => records.recv_timeout(SIGNAL_PERIOD).map(Some),
            None => Ok(None),
        };
        loop {
            match py.detach(receive) {
                Ok(Some(record)) => return dictionary(py, &record).map(Some),
                Ok(None) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    py.check_signals().inspect_err(|_| self.abandon())?;
                }
            }
        }
        drop(py.detach(|| lock(&self.records).take()));
        let raised = lock(&self.run.raised).take();
        raised.or_else(|| self.stopped(py)).map_or(Ok(None), Err)
    }

    /// The faults so far, at most 1,000.
    fn faults(&self, py: Python<'_>) -> PyResult<Vec<Fault>> {
        let fault = |fault: corebeat_snet::Fault| {
            let record = fault.record.as_ref().map(|record| dictionary(py, record)).transpose()?;
            Ok((fault.entity, fault.message, record))
        };
        self.report.faults().into_iter().map(fault).collect()
    }

    fn fault_count(&self) -> usize {
        self.report.fault_count()
    }

    /// Number of records that waited in synchrocells when these ended.
    fn kept(&self) -> usize {
        self.report.kept()
    }

    /// Stops the network, if it has not ended, and waits until its functions have returned.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.process.is_current() {
            return Ok(());
        }
        self.abandon();
        // Without a receiver, the thread of the output waits no more.
        let records = py.detach(|| lock(&self.records).take());
        drop(records);
        self.run.wait(py)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.process.is_current() {
            self.abandon();
        } else if let Ok(records) = self.records.get_mut() {
            // The threads do not exist in a child of fork, and may have held locks.
            mem::forget(records.take());
        }
    }
}

/// Passes the records of an iterator to a network, which ends after the last one.
fn pass_in(records: Py<PyIterator>, mut input: Input, run: &Run) {
    Python::try_attach(|py| {
        // The iterator is released while the thread is attached: a generator runs its last code.
        let records = records.into_bound(py);
        if let Err(why) = write_all(py, &records, &mut input) {
            *lock(&run.raised) = Some(why);
        }
    });
}

fn write_all(py: Python<'_>, records: &Bound<'_, PyIterator>, input: &mut Input) -> PyResult<()> {
    for record in records {
        let record = record?;
        let record = record.cast::<PyDict>().map_err(|_| {
            let name = record.get_type().to_string();
            PyTypeError::new_err(format!("an input record is a dictionary, not {name}"))
        })?;
        let record = Record::from_pairs(pairs(record)?).map_err(failed)?;
        if py.detach(|| input.write(record)).is_err() {
            // The network has stopped.
            break;
        }
    }
    Ok(())
}

/// Passes the records of a network to the caller, until one of the two ends.
fn pass_out(output: Output, runtime: Runtime, records: SyncSender<Record>, ends: Ends) {
    for record in output {
        if records.send(record).is_err() {
            break;
        }
    }
    // Waits for the tasks.
    drop(runtime);
    // The run ends before the channel: a caller that has received all records may begin another.
    drop(ends);
    drop(records);
}
