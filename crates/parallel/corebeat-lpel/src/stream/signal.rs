//! The name of the event that a stream signals.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::{ptr, slice, str};

/// A name that one thread sets, at most once, and others read. A `OnceLock` takes a third word.
pub(crate) struct Signal {
    /// Null before the name is set.
    text: AtomicPtr<u8>,
    bytes: AtomicUsize,
}

impl Signal {
    pub(crate) const fn new() -> Signal {
        Signal { text: AtomicPtr::new(ptr::null_mut()), bytes: AtomicUsize::new(0) }
    }

    /// Sets the name, unless there is one. Only for the reader of the stream.
    pub(crate) fn set(&self, name: &'static str) {
        // Relaxed: only the reader writes, and moving it synchronises its users.
        if self.text.load(Ordering::Relaxed).is_null() {
            self.bytes.store(name.len(), Ordering::Relaxed);
            // Release: pairs with the acquire in `get`, so the length is visible.
            self.text.store(name.as_ptr().cast_mut(), Ordering::Release);
        }
    }

    pub(crate) fn get(&self) -> Option<&'static str> {
        // Acquire: pairs with the release in `set`.
        let text = self.text.load(Ordering::Acquire);
        let bytes = self.bytes.load(Ordering::Relaxed);
        // SAFETY: the pointer and the length are those of one static text, because both are set
        // once.
        (!text.is_null()).then(|| unsafe {
            str::from_utf8_unchecked(slice::from_raw_parts(text.cast_const(), bytes))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn first_name_counts() {
        let signal = Signal::new();
        assert_eq!(signal.get(), None);
        for name in ["first", "the second one"] {
            signal.set(name);
            assert_eq!(signal.get(), Some("first"));
        }
    }
}
