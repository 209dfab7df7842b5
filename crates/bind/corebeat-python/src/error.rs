//! Exceptions: each error of a crate becomes one exception with the message of that error.

use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError, PyValueError};

create_exception!(
    corebeat,
    Error,
    PyException,
    "An operation of Corebeat failed. The message states the reason and a remedy."
);

/// The exception for an invalid argument.
pub(crate) fn invalid(why: impl std::error::Error) -> PyErr {
    PyValueError::new_err(why.to_string())
}

/// The exception for a state in which the operation is impossible.
pub(crate) fn failed(why: impl std::error::Error) -> PyErr {
    Error::new_err(why.to_string())
}

/// The exception for a failed system call, with its error number.
pub(crate) fn system(message: String, why: &std::io::Error) -> PyErr {
    match why.raw_os_error() {
        Some(number) => PyOSError::new_err((number, message)),
        None => PyOSError::new_err(message),
    }
}
