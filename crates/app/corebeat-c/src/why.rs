//! Error numbers, and the words to them.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static WHY: RefCell<CString> = RefCell::default();
}

/// What went wrong: a number of errno.h, and words.
pub(crate) struct Why {
    pub(crate) number: c_int,
    pub(crate) words: String,
}

impl Why {
    pub(crate) fn new(number: c_int, words: impl ToString) -> Why {
        Why { number, words: words.to_string() }
    }
}

/// Makes what C wants of a result. A panic goes no further.
pub(crate) fn answer(call: impl FnOnce() -> Result<(), Why>) -> c_int {
    let why = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return 0,
        Ok(Err(why)) => why,
        Err(_) => Why::new(libc::EIO, "Corebeat failed; what it said is on stderr. Please report this"),
    };
    // A NUL ends the words for C.
    let words = CString::new(why.words.replace('\0', " ")).unwrap_or_default();
    // While a thread ends, its words may be gone already.
    let _ = WHY.try_with(|kept| kept.replace(words));
    why.number
}

/// The words to this thread's last error.
pub(crate) fn words() -> *const c_char {
    WHY.try_with(|kept| kept.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
