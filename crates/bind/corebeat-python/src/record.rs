//! Records as dictionaries: `"a"` is a field, `"<t>"` a tag, `"<#b>"` a binding tag.

use crate::error::{Error, failed};
use corebeat_snet::{Kind, Label, Record, Value};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyInt, PyString};

/// The labels and values of a record.
pub(crate) type Pairs = Vec<(Label, Value)>;

/// The labels and values of a dictionary.
pub(crate) fn pairs(record: &Bound<'_, PyDict>) -> PyResult<Pairs> {
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

pub(crate) fn object(py: Python<'_>, value: &Value) -> PyResult<Py<PyAny>> {
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

pub(crate) fn dictionary(py: Python<'_>, record: &Record) -> PyResult<Py<PyDict>> {
    let dictionary = PyDict::new(py);
    for (label, value) in record.iter() {
        dictionary.set_item(label.to_string(), object(py, value)?)?;
    }
    Ok(dictionary.unbind())
}
