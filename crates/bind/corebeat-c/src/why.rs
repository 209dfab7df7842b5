//! Error numbers and their reasons.

use corebeat_wire::Refusal;
use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes of a reason, with the zero byte at its end; longer reasons are truncated.
const REASON_BYTES: usize = 1024;

thread_local! {
    /// The reason of this thread's last error. The address stays the same until the thread ends,
    /// because C may evaluate `hrm_why()` before the call that fails:
    /// `printf("%d %s", hrm_attach(..), hrm_why())`.
    static REASON: [Cell<u8>; REASON_BYTES] = const { [const { Cell::new(0) }; REASON_BYTES] };
}

/// An error: a number of errno.h and its reason.
pub(crate) struct Why {
    pub(crate) number: c_int,
    pub(crate) words: String,
}

impl Why {
    pub(crate) fn new(number: c_int, words: impl ToString) -> Why {
        Why { number, words: words.to_string() }
    }
}

unsafe extern "C" {
    // Not in libc.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The value of `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: c_int = 1;

/// A request to cancel this thread waits until this value is dropped. A cancelled thread unwinds
/// from a system call by an exception that Rust cannot pass on.
struct Uncancelled(c_int);

impl Uncancelled {
    fn new() -> Uncancelled {
        let mut old = 0;
        // SAFETY: the old state is written to a valid address.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut old) };
        Uncancelled(old)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut own = 0;
        // SAFETY: as above. The call acts on no request, because the function that was called
        // permits only deferred requests, which the next cancellation point acts on.
        unsafe { pthread_setcancelstate(self.0, &mut own) };
    }
}

/// Converts a result to an error number for C, and records the reason. Catches panics. The thread
/// is not cancelled in the meantime.
pub(crate) fn answer(call: impl FnOnce() -> Result<(), Why>) -> c_int {
    let _uncancelled = Uncancelled::new();
    let why = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return 0,
        Ok(Err(why)) => why,
        Err(_) => {
            Why::new(libc::EIO, "Corebeat panicked: please report the message on standard error")
        }
    };
    set_reason(&why.words);
    why.number
}

fn set_reason(words: &str) {
    let end = (0..REASON_BYTES.min(words.len() + 1)).rev().find(|at| words.is_char_boundary(*at));
    let words = &words.as_bytes()[..end.unwrap_or(0)];
    // A zero byte would end the text for C.
    let bytes = words.iter().map(|byte| if *byte == 0 { b' ' } else { *byte });
    REASON.with(|reason| {
        reason.iter().zip(bytes.chain([0])).for_each(|(kept, byte)| kept.set(byte));
    });
}

/// The reason of this thread's last error.
pub(crate) fn words() -> *const c_char {
    REASON.with(|reason| reason.as_ptr().cast())
}

/// The error number of a failed call of the daemon. A refusal has the number that the same mistake
/// has without a daemon.
pub(crate) fn wire_number(error: &corebeat_wire::Error) -> c_int {
    use corebeat_wire::Error;
    match error {
        Error::Refused(refusal) => match refusal {
            Refusal::BadRequest { .. } | Refusal::InvalidParameter { .. } => libc::EINVAL,
            Refusal::NotAllowed { .. } | Refusal::PermissionDenied {} => libc::EPERM,
            Refusal::NoSuchGroup { .. } | Refusal::NoSuchClaim { .. } => libc::ENOENT,
            Refusal::TooMany { .. } => libc::ENOSPC,
            _ => libc::EIO,
        },
        Error::Relative(_) => libc::EINVAL,
        Error::TimedOut => libc::ETIMEDOUT,
        Error::TooManyDescriptors => libc::EMFILE,
        Error::System { source, .. } => system_number(source),
        _ => libc::EIO,
    }
}

/// The error number of a failed system call.
pub(crate) fn system_number(error: &std::io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_that_panics_is_an_error() {
        assert_eq!(answer(|| panic!("on purpose")), libc::EIO);
        assert_eq!(answer(|| Ok(())), 0);
    }

    #[test]
    fn reason_keeps_its_address_and_is_truncated_between_characters() {
        let words = words();
        let read = || {
            // SAFETY: the thread has not ended.
            unsafe { std::ffi::CStr::from_ptr(words) }.to_str().unwrap().to_owned()
        };
        for (given, kept) in [
            ("first".to_owned(), "first".to_owned()),
            ("a\0b".to_owned(), "a b".to_owned()),
            ("ä".repeat(REASON_BYTES), "ä".repeat(REASON_BYTES / 2 - 1)),
            (String::new(), String::new()),
        ] {
            assert_eq!(answer(|| Err(Why::new(libc::EIO, given))), libc::EIO);
            assert_eq!(read(), kept);
        }
    }
}
