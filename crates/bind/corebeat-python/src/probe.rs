//! Probes on functions and blocks in Python, recorded as those of `#[probe]` in Rust.

use crate::error::failed;
use corebeat_probe::{Entered, SuspendedCall};
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use pyo3::pyclass::{PyTraverseError, PyVisit};
use pyo3::types::PyTuple;
use std::cell::RefCell;
use std::mem::{self, ManuallyDrop};
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// Largest number of open blocks of a thread. Blocks that begin on one thread and end on another
/// one, such as those of generators, stay in the list of the first thread.
const OPEN_MAX: usize = 1 << 16;

thread_local! {
    /// The blocks that this thread has begun and not ended, the innermost last.
    static OPEN: RefCell<Vec<Open>> = const { RefCell::new(Vec::new()) };
}

/// A block, recorded or not. The end of its thread does not end it.
struct Open {
    probe: &'static corebeat_probe::Probe,
    entered: ManuallyDrop<Entered>,
}

/// A probe. `corebeat.probe.Probe` is the public class.
#[pyclass(frozen, subclass, module = "corebeat._native")]
pub(crate) struct Probe {
    probe: &'static corebeat_probe::Probe,
}

#[pymethods]
impl Probe {
    #[new]
    fn new(name: &str, file: &str, line: u32) -> PyResult<Probe> {
        let probe = corebeat_probe::Probe::add(name, file, line).map_err(failed)?;
        Ok(Probe { probe })
    }

    #[getter]
    fn name(&self) -> &'static str {
        self.probe.name()
    }

    #[getter]
    fn is_on(&self) -> bool {
        self.probe.is_on()
    }

    fn __enter__(&self) {
        let entered = ManuallyDrop::new(self.probe.enter());
        OPEN.with_borrow_mut(|open| {
            if open.len() == OPEN_MAX {
                open.clear();
            }
            open.push(Open { probe: self.probe, entered });
        });
    }

    fn __exit__(
        &self,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        OPEN.with_borrow_mut(|open| {
            let is_own = |open: &Open| ptr::eq(open.probe, self.probe);
            let Some(at) = open.iter().rposition(is_own) else { return };
            // Blocks within this one that end later: a call encloses its callees.
            for inner in open.drain(at + 1..).rev() {
                drop(ManuallyDrop::into_inner(inner.entered));
            }
            let own = open.pop().map(|own| ManuallyDrop::into_inner(own.entered));
            match own {
                Some(own) if !kind.is_none() => own.fail(),
                own => drop(own),
            }
        });
    }

    /// Makes the steps of a coroutine or of a generator a call of this probe.
    fn steps(&self, of: Py<PyAny>) -> Steps {
        Steps { of, call: Mutex::new(Progress::New(self.probe)) }
    }
}

/// A coroutine or a generator that is recorded as a call on a line of its own, from its first step
/// to its end.
#[pyclass(frozen, module = "corebeat._native")]
pub(crate) struct Steps {
    of: Py<PyAny>,
    call: Mutex<Progress>,
}

enum Progress {
    New(&'static corebeat_probe::Probe),
    Suspended(SuspendedCall),
    /// A step runs, or the call has ended.
    Taken,
}

#[pymethods]
impl Steps {
    fn __await__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.send(py, py.None())
    }

    fn send(&self, py: Python<'_>, value: Py<PyAny>) -> PyResult<Py<PyAny>> {
        self.step(|| self.of.call_method1(py, "send", (value,)), py)
    }

    #[pyo3(signature = (*arguments))]
    fn throw(&self, py: Python<'_>, arguments: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
        self.step(|| self.of.call_method1(py, "throw", arguments), py)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let call = match self.take() {
            Progress::Suspended(call) => Some(call.resume()),
            Progress::New(_) | Progress::Taken => None,
        };
        let closed = self.of.call_method0(py, "close");
        match (call, &closed) {
            (Some(call), Err(_)) => call.fail(),
            (call, _) => drop(call),
        }
        closed.map(drop)
    }

    /// Passes the generator to the garbage collector. `__clear__` is not necessary: the collector
    /// clears the frames of the generator.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.of)
    }
}

impl Steps {
    /// Runs a step as a part of the call.
    fn step(
        &self,
        step: impl FnOnce() -> PyResult<Py<PyAny>>,
        py: Python<'_>,
    ) -> PyResult<Py<PyAny>> {
        let call = match self.take() {
            Progress::New(probe) => Some(probe.begin()),
            Progress::Suspended(call) => Some(call.resume()),
            Progress::Taken => None,
        };
        let done = step();
        match (call, &done) {
            (Some(call), Ok(_)) => drop(self.put(Progress::Suspended(call.suspend()))),
            (Some(call), Err(why)) if !why.is_instance_of::<PyStopIteration>(py) => call.fail(),
            (call, _) => drop(call),
        }
        done
    }

    fn take(&self) -> Progress {
        self.put(Progress::Taken)
    }

    /// Replaces the state. Locked by threads that hold the interpreter lock only.
    fn put(&self, progress: Progress) -> Progress {
        mem::replace(&mut self.call.lock().unwrap_or_else(PoisonError::into_inner), progress)
    }
}

/// Switches all probes whose names match a pattern. Returns their number.
#[pyfunction]
pub(crate) fn switch(pattern: &str, on: bool) -> PyResult<usize> {
    corebeat_probe::switch(pattern, on).map_err(crate::error::invalid)
}
