//! Claims of exclusive CPUs.

use crate::error::{Unsigned, failed, invalid, system};
use crate::module::without_interpreter_lock;
use corebeat_claim::{self as claim, Ask, CpuId, CpuSet, Error, Numa, Retreat};
use corebeat_sync::fork::Process;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Exclusive CPUs. `corebeat.claim.Claim` is the public class.
#[pyclass(frozen, module = "corebeat._native")]
pub(crate) struct Claim {
    /// `None` after the end. Locked without the interpreter lock only, because a call may wait.
    claim: Mutex<Option<claim::Claim>>,
    /// The process that created the claim. A child of fork may have inherited a locked mutex.
    process: Process,
}

#[pymethods]
impl Claim {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Claim> {
        let claim = py.detach(claim::Claim::begin).map_err(raise)?;
        Ok(Claim { claim: Mutex::new(Some(claim)), process: Process::current() })
    }

    /// Requests a total number of CPUs, and returns the CPUs of the claim.
    #[pyo3(signature = (min, max, numa=None, within=None))]
    fn invade(
        &self,
        py: Python<'_>,
        min: Unsigned<u32>,
        max: Unsigned<u32>,
        numa: Option<&str>,
        within: Option<&str>,
    ) -> PyResult<Vec<u32>> {
        let numa = match numa {
            None => None,
            Some("scatter") => Some(Numa::Scatter),
            Some("compact") => Some(Numa::Compact),
            Some(other) => {
                return Err(PyValueError::new_err(format!(
                    "'{other}' is no distribution over NUMA nodes: use 'scatter' or 'compact'"
                )));
            }
        };
        let within = within.map(str::parse::<CpuSet>).transpose().map_err(invalid)?;
        let ask = Ask { numa, within, ..Ask::new(min.0, max.0) };
        self.call(py, |claim| claim.invade(ask).map(numbers))
    }

    /// Releases all CPUs except this number, and returns the CPUs of the claim.
    fn retreat(&self, py: Python<'_>, to: Unsigned<u32>) -> PyResult<Vec<u32>> {
        self.call(py, |claim| claim.retreat(Retreat::To(to.0)).map(numbers))
    }

    /// Applies pending requests of the arbiter. Returns whether the claim has changed.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, claim::Claim::poll)
    }

    /// The CPUs, in ascending order. None after the end, and in a child of fork.
    fn cpus(&self, py: Python<'_>) -> Vec<u32> {
        if !self.process.is_current() {
            return vec![];
        }
        py.detach(|| self.lock().as_ref().map_or(vec![], |claim| numbers(claim.cpus())))
    }

    /// Calls a function on a thread of its own when a request of the arbiter is pending.
    fn on_change(&self, py: Python<'_>, call: Py<PyAny>) -> PyResult<()> {
        let notify = move || {
            // Python that has ended handles no request. A thread that attaches while Python ends
            // may block for ever, so all claims end before (`atexit` in claim.py).
            Python::try_attach(|py| {
                if let Err(why) = call.call0(py) {
                    why.write_unraisable(py, None);
                }
            });
        };
        self.call(py, |claim| claim.on_change(notify))
    }

    /// Releases all CPUs.
    fn close(&self, py: Python<'_>) {
        if self.process.is_current() {
            py.detach(|| drop(self.take()));
        }
    }
}

impl Claim {
    fn lock(&self) -> MutexGuard<'_, Option<claim::Claim>> {
        self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the claim out, so that its drop, which may wait, holds no lock.
    fn take(&self) -> Option<claim::Claim> {
        self.lock().take()
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut claim::Claim) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        if !self.process.is_current() {
            return Err(failed(Error::Forked));
        }
        let done = py.detach(|| self.lock().as_mut().map(call));
        match done {
            Some(done) => done.map_err(raise),
            None => Err(crate::error::Error::new_err("this claim has ended: begin another one")),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.process.is_current() {
            without_interpreter_lock(|| drop(self.take()));
        }
    }
}

fn numbers(cpus: &[CpuId]) -> Vec<u32> {
    cpus.iter().map(|cpu| cpu.0).collect()
}

fn raise(why: Error) -> PyErr {
    match &why {
        Error::InvalidArgument(_) => invalid(why),
        Error::System { source, .. } => system(why.to_string(), source),
        _ => failed(why),
    }
}
