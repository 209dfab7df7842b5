//! `invasive_computing.h`: Hollmann, Gerndt, *Invasive Computing* (2012), section 2.1.

use crate::why::{Why, answer, system_number, wire_number, words};
use ::corebeat_claim::{Ask, Claim, ClaimError, Error, Numa, Retreat};
use std::ffi::{c_char, c_int, c_uint};
use std::os::fd::{AsFd, AsRawFd};

/// `corebeat_claim`.
pub struct corebeat_claim(Claim);

impl From<Error> for Why {
    fn from(error: Error) -> Why {
        let number = match &error {
            Error::InvalidArgument(ClaimError::NoSuchClaim(_)) => libc::ENOENT,
            Error::TooMany { .. } => libc::ENOSPC,
            Error::Forked => libc::EPERM,
            Error::InvalidArgument(_) => libc::EINVAL,
            Error::Daemon(why) => wire_number(why),
            Error::System { source, .. } => system_number(source),
            _ => libc::EIO,
        };
        Why::new(number, error)
    }
}

/// The claim behind a pointer from C.
///
/// # Safety
/// `of` is null, or the result of [`corebeat_claim_begin`], not ended, and not in use by another
/// thread.
unsafe fn claim<'a>(claim: *mut corebeat_claim) -> Result<&'a mut Claim, Why> {
    // SAFETY: guaranteed by the caller.
    let claim = unsafe { claim.as_mut() };
    claim
        .map(|claim| &mut claim.0)
        .ok_or_else(|| Why::new(libc::EINVAL, "the claim is NULL: call corebeat_claim_begin first"))
}

/// See `invasive_computing.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_claim_begin(claim: *mut *mut corebeat_claim) -> c_int {
    answer(|| {
        if claim.is_null() {
            return Err(Why::new(
                libc::EINVAL,
                "the pointer for the claim is NULL: pass the address of a pointer",
            ));
        }
        let made = Box::new(corebeat_claim(Claim::begin()?));
        // SAFETY: C passes a valid address for the pointer.
        unsafe { claim.write(Box::into_raw(made)) };
        Ok(())
    })
}

/// See `invasive_computing.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_invade(
    of: *mut corebeat_claim,
    min: c_uint,
    max: c_uint,
    numa: c_int,
) -> c_int {
    answer(|| {
        let numa = match numa {
            0 => None,
            1 => Some(Numa::Scatter),
            2 => Some(Numa::Compact),
            _ => {
                return Err(Why::new(
                    libc::EINVAL,
                    format!("invalid placement {numa}: use a value of enum corebeat_numa"),
                ));
            }
        };
        // SAFETY: C passes a valid claim or null.
        unsafe { claim(of) }?.invade(Ask { numa, ..Ask::new(min, max) })?;
        Ok(())
    })
}

/// See `invasive_computing.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_retreat(of: *mut corebeat_claim, keep: c_uint) -> c_int {
    answer(|| {
        // SAFETY: C passes a valid claim or null.
        unsafe { claim(of) }?.retreat(Retreat::To(keep))?;
        Ok(())
    })
}

/// See `invasive_computing.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_heed(of: *mut corebeat_claim, changed: *mut c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { corebeat_claim_poll(of, changed) }
}

/// See `invasive_computing.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_claim_poll(
    of: *mut corebeat_claim,
    changed: *mut c_int,
) -> c_int {
    answer(|| {
        // SAFETY: C passes a valid claim or null.
        let has_changed = unsafe { claim(of) }?.poll()?;
        // SAFETY: C passes a valid address or null.
        if let Some(changed) = unsafe { changed.as_mut() } {
            *changed = has_changed.into();
        }
        Ok(())
    })
}

/// See `invasive_computing.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_claim_cpus(
    of: *const corebeat_claim,
    cpus: *mut c_uint,
    len: usize,
) -> usize {
    // SAFETY: C passes a valid claim or null.
    let Some(claim) = (unsafe { of.as_ref() }) else { return 0 };
    let own = claim.0.cpus();
    if !cpus.is_null() {
        for (at, cpu) in own.iter().take(len).enumerate() {
            // SAFETY: C passes an array of `len` numbers.
            unsafe { cpus.add(at).write(cpu.0) };
        }
    }
    own.len()
}

/// See `invasive_computing.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_claim_fd(of: *const corebeat_claim) -> c_int {
    // SAFETY: C passes a valid claim or null.
    unsafe { of.as_ref() }.map_or(-1, |claim| claim.0.as_fd().as_raw_fd())
}

/// See `invasive_computing.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_claim_end(of: *mut corebeat_claim) {
    if !of.is_null() {
        answer(|| {
            // SAFETY: C passes the result of `corebeat_claim_begin` and does not use it afterwards.
            drop(unsafe { Box::from_raw(of) });
            Ok(())
        });
    }
}

/// See `invasive_computing.h`.
#[unsafe(no_mangle)]
pub extern "C" fn corebeat_why() -> *const c_char {
    words()
}
