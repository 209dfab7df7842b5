//! `invasive_computing.h`: Hollmann, Gerndt, *Invasive Computing* (2012), section 2.1.

use crate::why::{Why, answer, words};
use ::corebeat_claim::{Ask, Claim, Error, Numa, Retreat};
use std::ffi::{c_char, c_int, c_uint};
use std::os::fd::{AsFd, AsRawFd};

/// `corebeat_claim`.
pub struct corebeat_claim(Claim);

impl From<Error> for Why {
    fn from(error: Error) -> Why {
        let number = match &error {
            Error::Senseless(_) => libc::EINVAL,
            Error::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EIO,
        };
        Why::new(number, error)
    }
}

/// The claim behind a pointer that C gave.
///
/// # Safety
/// It is null, or from [`corebeat_claim_begin`] and not ended, and nobody else uses it now.
unsafe fn claim<'a>(claim: *mut corebeat_claim) -> Result<&'a mut Claim, Why> {
    // SAFETY: as the caller says.
    let claim = unsafe { claim.as_mut() };
    claim.map(|claim| &mut claim.0).ok_or_else(|| Why::new(libc::EINVAL, "the claim is NULL"))
}

/// See `invasive_computing.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_claim_begin(claim: *mut *mut corebeat_claim) -> c_int {
    answer(|| {
        if claim.is_null() {
            return Err(Why::new(libc::EINVAL, "the pointer for the claim is NULL"));
        }
        let made = Box::new(corebeat_claim(Claim::begin()?));
        // SAFETY: C gives a place for a pointer.
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
                    format!("{numa} is no placement: see enum corebeat_numa"),
                ));
            }
        };
        // SAFETY: a claim of C's.
        unsafe { claim(of) }?.invade(Ask { numa, ..Ask::new(min, max) })?;
        Ok(())
    })
}

/// See `invasive_computing.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_retreat(of: *mut corebeat_claim, keep: c_uint) -> c_int {
    answer(|| {
        // SAFETY: a claim of C's.
        unsafe { claim(of) }?.retreat(Retreat::To(keep))?;
        Ok(())
    })
}

/// See `invasive_computing.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_heed(of: *mut corebeat_claim, changed: *mut c_int) -> c_int {
    answer(|| {
        // SAFETY: a claim of C's.
        let has_changed = unsafe { claim(of) }?.heed()?;
        // SAFETY: null, or a place for an int.
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
    // SAFETY: a claim of C's, or null.
    let Some(claim) = (unsafe { of.as_ref() }) else { return 0 };
    let own = claim.0.cpus();
    if !cpus.is_null() {
        for (at, cpu) in own.iter().take(len).enumerate() {
            // SAFETY: C gives room for `len`.
            unsafe { cpus.add(at).write(cpu.0) };
        }
    }
    own.len()
}

/// See `invasive_computing.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_claim_fd(of: *const corebeat_claim) -> c_int {
    // SAFETY: a claim of C's, or null.
    unsafe { of.as_ref() }.map_or(-1, |claim| claim.0.as_fd().as_raw_fd())
}

/// See `invasive_computing.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_claim_end(of: *mut corebeat_claim) {
    if !of.is_null() {
        answer(|| {
            // SAFETY: from `corebeat_claim_begin`, and C gives it away.
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
