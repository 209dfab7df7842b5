//! The contents of `corebeat._native`.

use pyo3::prelude::*;

/// Native part of the package corebeat.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::claim::Claim;
    #[pymodule_export]
    use crate::error::Error;
    #[pymodule_export]
    use crate::heartbeat::{Beat, Group, check_goal, detach_after_fork};
    #[pymodule_export]
    use crate::net::Network;
    #[pymodule_export]
    use crate::probe::{Probe, Steps, switch};
    #[pymodule_export]
    use crate::stream::Stream;
    #[pymodule_export]
    use crate::trace::{Events, Mark, Recording, calls};
}

/// Runs a part of a destructor without the interpreter lock, which the collector holds.
pub(crate) fn without_interpreter_lock<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    let mut run = Some(run);
    let done = Python::try_attach(|py| py.detach(|| run.take().map(|run| run()))).flatten();
    // Python has ended, or cannot be called while it ends.
    done.unwrap_or_else(|| run.take().expect("it has not run")())
}
