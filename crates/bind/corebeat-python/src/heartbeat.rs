//! Heartbeats: groups whose producers belong to the threads that beat.

use crate::error::{Unsigned, failed, invalid, system};
use crate::module::without_interpreter_lock;
use corebeat_heartbeat::{self as heartbeat, Consumer, Error, Goal, Mode, Producer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

thread_local! {
    /// The producer of this thread. A thread beats for one group at a time.
    static PRODUCER: RefCell<Option<Producer>> = const { RefCell::new(None) };
}

/// A goal: minimum and maximum rate, window, and whether the maximum is held.
type GoalTuple = (Option<f64>, Option<f64>, u32, bool);

/// A group of heartbeats. `corebeat.heartbeat.Group` is the public class.
#[pyclass(frozen, subclass, module = "corebeat._native")]
pub(crate) struct Group {
    group: heartbeat::Group,
    /// Locked by threads that hold the interpreter lock only, as a fork does: no child of fork
    /// inherits a locked mutex. A locked section does not wait.
    consumer: Mutex<Option<Arc<Consumer>>>,
    #[pyo3(get)]
    number: u32,
    #[pyo3(get)]
    owner: u32,
}

#[pymethods]
impl Group {
    #[new]
    #[pyo3(signature = (number, *, owner=None, mode=None, period_s=None))]
    fn new(
        number: Unsigned<u32>,
        owner: Option<Unsigned<u32>>,
        mode: Option<Unsigned<u32>>,
        period_s: Option<f64>,
    ) -> PyResult<Group> {
        let number = number.0;
        let mut group = heartbeat::Group::new(number);
        let owner = owner.map_or_else(|| rustix::process::geteuid().as_raw(), |owner| owner.0);
        group = group.owner(owner);
        if let Some(Unsigned(bits)) = mode {
            group = group.mode(Mode::from_bits(bits).map_err(raise)?);
        }
        if let Some(seconds) = period_s {
            let period = Duration::try_from_secs_f64(seconds).map_err(|why| {
                PyValueError::new_err(format!("invalid period of {seconds} s: {why}"))
            })?;
            group = group.period(period);
        }
        Ok(Group { group, consumer: Mutex::new(None), number, owner })
    }

    /// Emits n heartbeats of the calling thread, which attaches to the group with its first beat.
    #[pyo3(signature = (n=Unsigned(1)), text_signature = "($self, n=1)")]
    fn beat(&self, py: Python<'_>, n: Unsigned<u64>) -> PyResult<()> {
        self.emit(py, n.0)
    }

    /// Attaches the calling thread to the group, if it is not attached.
    fn attach(&self, py: Python<'_>) -> PyResult<()> {
        // A producer cannot leave its thread, and the closure runs on this thread.
        py.detach(|| {
            PRODUCER.with_borrow_mut(|own| {
                if !own.as_ref().is_some_and(|producer| self.is_of(producer)) {
                    *own = Some(self.group.produce()?);
                }
                Ok(())
            })
        })
        .map_err(raise)
    }

    /// Detaches the calling thread from the group, if it is attached to this group.
    fn detach(&self, py: Python<'_>) {
        py.detach(|| {
            let own = PRODUCER.with_borrow_mut(|own| own.take_if(|p| self.is_of(p)));
            drop(own);
        });
    }

    /// Sets the goal of the group. The calling thread attaches to the group, if it is not attached.
    fn set_goal(
        &self,
        py: Python<'_>,
        goal: (Option<f64>, Option<f64>, Unsigned<u32>, bool),
    ) -> PyResult<()> {
        let goal = checked(goal)?;
        self.attach(py)?;
        py.detach(|| {
            PRODUCER.with_borrow(|own| own.as_ref().map_or(Ok(()), |own| own.set_goal(goal)))
        })
        .map_err(raise)
    }

    /// The measurements: the goal, beats, members, samples, global rate and window rate.
    fn read(&self, py: Python<'_>) -> PyResult<(GoalTuple, u64, u32, u64, f64, f64)> {
        let read = || {
            let consumer = self.consumer(py)?;
            py.detach(|| consumer.status())
        };
        let status = match read() {
            // The consumer of the parent process.
            Err(Error::Forked) => {
                self.forget();
                read()
            }
            status => status,
        };
        let status = status.map_err(raise)?;
        let Goal { rate_min, rate_max, window, hold } = status.goal;
        let goal = (rate_min, rate_max, window, hold);
        let (beats, members, samples) = (status.beats, status.members, status.samples);
        Ok((goal, beats, members, samples, status.global_rate, status.window_rate))
    }

    /// Ends the measurements by this object. The next reading attaches again.
    fn close(&self, py: Python<'_>) {
        let consumer = self.forget();
        py.detach(|| drop(consumer));
    }
}

impl Group {
    fn emit(&self, py: Python<'_>, n: u64) -> PyResult<()> {
        let is_attached = PRODUCER.with_borrow(|producer| match producer {
            Some(producer) if self.is_of(producer) => {
                producer.beat(n);
                true
            }
            _ => false,
        });
        if is_attached {
            return Ok(());
        }
        self.attach(py)?;
        PRODUCER.with_borrow(|producer| producer.iter().for_each(|producer| producer.beat(n)));
        Ok(())
    }

    fn is_of(&self, producer: &Producer) -> bool {
        let id = producer.group();
        id.number == self.number && id.owner == self.owner
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Consumer>>> {
        self.consumer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn consumer(&self, py: Python<'_>) -> Result<Arc<Consumer>, Error> {
        let present = self.lock().clone();
        if let Some(consumer) = present {
            return Ok(consumer);
        }
        let attached = Arc::new(py.detach(|| self.group.consume())?);
        // Another thread may have attached first. Its consumer is replaced, and detaches when that
        // thread has read.
        let replaced = self.lock().replace(attached.clone());
        py.detach(|| drop(replaced));
        Ok(attached)
    }

    fn forget(&self) -> Option<Arc<Consumer>> {
        self.lock().take()
    }
}

/// A block that emits heartbeats at its end. `corebeat.heartbeat.beat` is the public class.
#[pyclass(frozen, subclass, module = "corebeat._native")]
pub(crate) struct Beat {
    #[pyo3(get)]
    group: Py<Group>,
    #[pyo3(get)]
    n: u64,
}

#[pymethods]
impl Beat {
    #[new]
    #[pyo3(signature = (group, n=Unsigned(1)), text_signature = "(group, n=1)")]
    fn new(group: Py<Group>, n: Unsigned<u64>) -> Beat {
        Beat { group, n: n.0 }
    }

    fn __enter__(&self, py: Python<'_>) -> Py<Group> {
        self.group.clone_ref(py)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if kind.is_none() { self.group.get().emit(py, self.n) } else { Ok(()) }
    }
}

/// Raises an exception for an invalid goal.
#[pyfunction]
pub(crate) fn check_goal(goal: (Option<f64>, Option<f64>, Unsigned<u32>, bool)) -> PyResult<()> {
    checked(goal).map(drop)
}

fn checked(goal: (Option<f64>, Option<f64>, Unsigned<u32>, bool)) -> PyResult<Goal> {
    let (rate_min, rate_max, Unsigned(window), hold) = goal;
    let goal = Goal { rate_min, rate_max, window, hold };
    goal.check().map_err(raise)?;
    Ok(goal)
}

/// Drops the producer that a child of fork has inherited from its parent, so that the thread
/// attaches again with its next beat.
#[pyfunction]
pub(crate) fn detach_after_fork() {
    drop(PRODUCER.take());
}

impl Drop for Group {
    fn drop(&mut self) {
        let consumer = self.forget();
        without_interpreter_lock(|| drop(consumer));
    }
}

fn raise(why: Error) -> PyErr {
    match &why {
        Error::BadMode(_)
        | Error::BadRate(_)
        | Error::EmptyGoal { .. }
        | Error::BadWindow(_)
        | Error::HoldWithoutMax
        | Error::BadPeriod(_) => invalid(why),
        Error::System { source, .. } => system(why.to_string(), source),
        _ => failed(why),
    }
}
