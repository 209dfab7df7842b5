//! Exceptions: each error of a crate becomes one exception with the message of that error.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError, PyOverflowError, PyValueError};
use pyo3::prelude::*;

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

/// An argument that is an unsigned number. A number outside of its range is an invalid argument.
pub(crate) struct Unsigned<T>(pub(crate) T);

impl<'a, 'py, T: FromPyObject<'a, 'py>> FromPyObject<'a, 'py> for Unsigned<T> {
    type Error = PyErr;

    fn extract(number: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        T::extract(number).map(Unsigned).map_err(|why| {
            let why: PyErr = why.into();
            if why.is_instance_of::<PyOverflowError>(number.py()) {
                let bits = 8 * size_of::<T>();
                return PyValueError::new_err(format!(
                    "invalid number {}: use a number from 0 to 2**{bits} - 1",
                    &*number
                ));
            }
            why
        })
    }
}
