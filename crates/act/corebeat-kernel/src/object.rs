//! Loading of BPF objects, with the messages of the kernel.

use crate::Error;
use libbpf_rs::{PrintLevel, set_print};
use std::sync::{Mutex, PoisonError};

/// Largest number of bytes of messages of the kernel in an error.
const MESSAGES_MAX: usize = 2500;

/// Messages of libbpf while an object is loaded.
static MESSAGES: Mutex<String> = Mutex::new(String::new());
/// Held while an object is loaded: the function for messages is one for the whole process.
static LOADING: Mutex<()> = Mutex::new(());

fn collect(_: PrintLevel, message: String) {
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner).push_str(&message);
}

/// Loads an object. An error includes the last messages of the kernel.
pub(crate) fn explained<T>(
    load: impl FnOnce() -> libbpf_rs::Result<T>,
    error: impl FnOnce(String) -> Error,
) -> Result<T, Error> {
    let _loading = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let before = set_print(Some((PrintLevel::Warn, collect)));
    let loaded = load();
    set_print(before);
    loaded.map_err(|e| {
        let messages = MESSAGES.lock().unwrap_or_else(PoisonError::into_inner);
        // The last messages state the reason; those before are the trace of the verifier.
        let start = messages.len().saturating_sub(MESSAGES_MAX);
        let start = (start..=messages.len()).find(|at| messages.is_char_boundary(*at));
        let last = messages[start.unwrap_or(messages.len())..].trim().replace('\n', "; ");
        match last.is_empty() {
            true => error(e.to_string()),
            false => error(format!("{e}: {last}")),
        }
    })
}

pub(crate) fn missing(name: &str) -> libbpf_rs::Error {
    std::io::Error::other(format!("the object has no {name}")).into()
}
