//! `hrm.h`: the API of Table 2 in Sironi et al., *Metronome* (2012), appendix A.

use crate::why::{Why, answer, words};
use corebeat_heartbeat::{Consumer, Error, Goal, Group, Producer, Status};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{addr_of, null_mut};
use std::thread::{self, ThreadId};

/// `hrm_t`.
#[repr(C)]
pub struct hrm_t {
    counter: *mut u64,
    inner: *mut c_void,
}

thread_local! {
    /// The `hrm_t` that this thread has attached: where they are, with the process (a child of fork attaches anew) and what they
    /// hold. One that is to be attached may hold anything.
    static ATTACHED: RefCell<BTreeMap<usize, (u32, usize)>> = const { RefCell::new(BTreeMap::new()) };
}

/// What `inner` points to: who is attached, and in which thread.
struct Place {
    member: Member,
    thread: ThreadId,
}

enum Member {
    Producer(Producer),
    Consumer(Consumer),
}

impl Member {
    fn status(&self) -> Result<Status, Why> {
        Ok(match self {
            Member::Producer(producer) => producer.status(),
            Member::Consumer(consumer) => consumer.status(),
        }?)
    }

    /// Consumers see the goal, and set none.
    fn producer(&self) -> Result<&Producer, Why> {
        match self {
            Member::Producer(producer) => Ok(producer),
            Member::Consumer(_) => Err(Why::new(libc::EPERM, "only producers set the goal: attach as one")),
        }
    }
}

impl From<Error> for Why {
    fn from(error: Error) -> Why {
        let number = match &error {
            Error::AlreadyAttached => libc::EBUSY,
            Error::NotAllowed(_) => libc::EPERM,
            Error::NoSuchGroup(_) => libc::ENOENT,
            Error::TooMany { .. } => libc::ENOSPC,
            Error::BadRate(_) | Error::EmptyGoal { .. } | Error::BadWindow(_) | Error::HoldWithoutMax => {
                libc::EINVAL
            }
            Error::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EIO,
        };
        Why::new(number, error)
    }
}

/// The member behind a pointer that C gave.
///
/// # Safety
/// `hrm` is null, or points to an `hrm_t` that is zeroed or was last written by [`hrm_attach`] or [`hrm_detach`].
unsafe fn member<'a>(hrm: *const hrm_t) -> Result<&'a Member, Why> {
    // SAFETY: as the caller says; `inner` is null or from `hrm_attach`.
    let place = unsafe { hrm.as_ref().and_then(|hrm| hrm.inner.cast::<Place>().as_ref()) };
    match place {
        None => Err(Why::new(libc::EINVAL, "this hrm_t is not attached: call hrm_attach first")),
        Some(place) if place.thread != thread::current().id() => Err(Why::new(
            libc::EPERM,
            "this hrm_t belongs to the thread that attached it: attach in this one, too",
        )),
        Some(place) => Ok(&place.member),
    }
}

/// Writes what was found to where C wants it.
///
/// # Safety
/// `to` is null, or may be written.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Why> {
    if to.is_null() {
        return Err(Why::new(libc::EINVAL, "the pointer for the answer is NULL"));
    }
    // SAFETY: as the caller says.
    unsafe { to.write(value) };
    Ok(())
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hrm_attach(hrm: *mut hrm_t, gid: c_int, consumer: c_int) -> c_int {
    answer(|| {
        if hrm.is_null() {
            return Err(Why::new(libc::EINVAL, "the hrm_t is NULL"));
        }
        // SAFETY: C gives an `hrm_t` that may be read, in whatever state: volatile, for its bytes may never have been written.
        let inner = unsafe { addr_of!((*hrm).inner).read_volatile() };
        let (place, process) = (hrm.addr(), std::process::id());
        let is_attached =
            |all: &RefCell<BTreeMap<_, _>>| all.borrow().get(&place) == Some(&(process, inner.addr()));
        if ATTACHED.try_with(is_attached) == Ok(true) {
            return Err(Why::new(libc::EBUSY, "this hrm_t is attached already: call hrm_detach first"));
        }
        // Whatever happens now, it is one that `heartbeat` and the others know not to be attached.
        // SAFETY: C gives an `hrm_t` that may be written, in whatever state.
        unsafe { hrm.write(hrm_t { counter: null_mut(), inner: null_mut() }) };
        let number = u32::try_from(gid)
            .map_err(|_| Why::new(libc::EINVAL, format!("there is no group {gid}: numbers start at 0")))?;
        let group = Group::new(number);
        let (counter, member) = match consumer {
            0 => {
                let producer = group.produce()?;
                (producer.counter().as_ptr().cast(), Member::Producer(producer))
            }
            _ => (null_mut(), Member::Consumer(group.consume()?)),
        };
        let inner = Box::into_raw(Box::new(Place { member, thread: thread::current().id() }));
        // A thread that ends attaches nothing twice.
        let _ = ATTACHED.try_with(|all| all.borrow_mut().insert(place, (process, inner.addr())));
        // SAFETY: C gives an `hrm_t` that may be written, in whatever state.
        unsafe { hrm.write(hrm_t { counter, inner: inner.cast() }) };
        Ok(())
    })
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hrm_detach(hrm: *mut hrm_t) -> c_int {
    answer(|| {
        // SAFETY: C gives an `hrm_t` that was attached.
        unsafe { member(hrm) }?;
        // SAFETY: it is one, as `member` has found.
        let was = unsafe { hrm.replace(hrm_t { counter: null_mut(), inner: null_mut() }) };
        // Wherever it was attached: C may have copied it.
        let is_other = |_: &usize, attached: &mut (u32, usize)| attached.1 != was.inner.addr();
        let _ = ATTACHED.try_with(|all| all.borrow_mut().retain(is_other));
        // SAFETY: made by `hrm_attach`, and not there for anybody else any more.
        drop(unsafe { Box::from_raw(was.inner.cast::<Place>()) });
        Ok(())
    })
}

/// Sets a part of the goal.
///
/// # Safety
/// As for [`member`].
unsafe fn set(hrm: *const hrm_t, change: impl FnOnce(&Producer) -> Result<(), Error>) -> c_int {
    // SAFETY: as the caller says.
    answer(|| Ok(change(unsafe { member(hrm) }?.producer()?)?))
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hrm_set_min_heart_rate(hrm: *mut hrm_t, min_heart_rate: u32) -> c_int {
    // SAFETY: an `hrm_t` of C's.
    unsafe { set(hrm, |producer| producer.set_rate_min(rate(min_heart_rate))) }
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hrm_set_max_heart_rate(hrm: *mut hrm_t, max_heart_rate: u32) -> c_int {
    // SAFETY: an `hrm_t` of C's.
    unsafe { set(hrm, |producer| producer.set_rate_max(rate(max_heart_rate))) }
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hrm_set_window_size(hrm: *mut hrm_t, window_size: usize) -> c_int {
    // Too many is too many, however many.
    // SAFETY: an `hrm_t` of C's.
    unsafe { set(hrm, |producer| producer.set_window(u32::try_from(window_size).unwrap_or(u32::MAX))) }
}

/// A bound that is not there is 0 for C.
fn rate(bound: u32) -> Option<f64> {
    (bound > 0).then_some(bound.into())
}

/// Tells a part of what is measured or wanted.
///
/// # Safety
/// As for [`member`] and [`put`].
unsafe fn get<T>(hrm: *const hrm_t, to: *mut T, part: impl FnOnce(&Status) -> T) -> c_int {
    answer(|| {
        // SAFETY: as the caller says.
        let status = unsafe { member(hrm) }?.status()?;
        // SAFETY: as the caller says.
        unsafe { put(to, part(&status)) }
    })
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hrm_get_min_heart_rate(hrm: *mut hrm_t, min_heart_rate: *mut u32) -> c_int {
    // SAFETY: an `hrm_t` of C's, and a place for the answer.
    unsafe { get(hrm, min_heart_rate, |status| bound(status.goal, |goal| goal.rate_min)) }
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hrm_get_max_heart_rate(hrm: *mut hrm_t, max_heart_rate: *mut u32) -> c_int {
    // SAFETY: an `hrm_t` of C's, and a place for the answer.
    unsafe { get(hrm, max_heart_rate, |status| bound(status.goal, |goal| goal.rate_max)) }
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hrm_get_window_size(hrm: *mut hrm_t, window_size: *mut usize) -> c_int {
    // SAFETY: an `hrm_t` of C's, and a place for the answer.
    unsafe { get(hrm, window_size, |status| status.goal.window as usize) }
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hrm_get_global_heart_rate(hrm: *mut hrm_t, global_heart_rate: *mut u32) -> c_int {
    // SAFETY: an `hrm_t` of C's, and a place for the answer.
    unsafe { get(hrm, global_heart_rate, |status| status.global_rate as u32) }
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hrm_get_window_heart_rate(hrm: *mut hrm_t, window_heart_rate: *mut u32) -> c_int {
    // SAFETY: an `hrm_t` of C's, and a place for the answer.
    unsafe { get(hrm, window_heart_rate, |status| status.window_rate as u32) }
}

/// A rate in C's whole numbers, which `as` cuts to what fits.
fn bound(goal: Goal, part: impl FnOnce(Goal) -> Option<f64>) -> u32 {
    part(goal).unwrap_or(0.0) as u32
}

/// See `hrm.h`, which has the same as an inline function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heartbeat(hrm: *mut hrm_t, n: u64) -> c_int {
    answer(|| {
        // SAFETY: an `hrm_t` of C's.
        match unsafe { member(hrm) }? {
            Member::Producer(producer) => {
                producer.beat(n);
                Ok(())
            }
            Member::Consumer(_) => {
                Err(Why::new(libc::EPERM, "a consumer has no heartbeat: attach as a producer"))
            }
        }
    })
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hrm_why() -> *const c_char {
    words()
}
