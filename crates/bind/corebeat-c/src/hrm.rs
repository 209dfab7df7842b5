//! `hrm.h`: the API of Table 2 in Sironi et al., *Metronome* (2012), appendix A.

use crate::why::{Why, answer, system_number, wire_number, words};
use corebeat_heartbeat::{Consumer, Error, Group, Producer, Status};
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
    /// Addresses of the `hrm_t` that this thread has attached, with the process (a child of fork
    /// attaches again) and their contents. An `hrm_t` that is not attached may have any contents.
    static ATTACHED: RefCell<BTreeMap<usize, (u32, usize)>> =
        const { RefCell::new(BTreeMap::new()) };
}

/// The target of `inner`: the member and the thread that attached it.
struct Place {
    member: Member,
    thread: ThreadId,
    process: u32,
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

    /// The producer. Consumers may not set the goal.
    fn producer(&self) -> Result<&Producer, Why> {
        match self {
            Member::Producer(producer) => Ok(producer),
            Member::Consumer(_) => {
                Err(Why::new(libc::EPERM, "only producers may set the goal: attach as a producer"))
            }
        }
    }
}

impl From<Error> for Why {
    fn from(error: Error) -> Why {
        let number = match &error {
            Error::AlreadyAttached => libc::EBUSY,
            Error::NotAllowed(_) | Error::Forked => libc::EPERM,
            Error::NoSuchGroup(_) => libc::ENOENT,
            Error::TooMany { .. } => libc::ENOSPC,
            Error::BadRate(_)
            | Error::EmptyGoal { .. }
            | Error::BadWindow(_)
            | Error::HoldWithoutMax => libc::EINVAL,
            Error::Daemon(why) => wire_number(why),
            Error::System { source, .. } => system_number(source),
            _ => libc::EIO,
        };
        Why::new(number, error)
    }
}

/// The member behind a pointer from C.
///
/// # Safety
/// `hrm` is null, or points to an `hrm_t` that is zeroed or was last written by [`hrm_attach`] or
/// [`hrm_detach`].
unsafe fn member<'a>(hrm: *const hrm_t) -> Result<&'a Member, Why> {
    // SAFETY: guaranteed by the caller; `inner` is null or the result of `hrm_attach`.
    let place = unsafe { hrm.as_ref().and_then(|hrm| hrm.inner.cast::<Place>().as_ref()) };
    match place {
        None => Err(Why::new(libc::EINVAL, "this hrm_t is not attached: call hrm_attach first")),
        Some(place) if place.thread != thread::current().id() => Err(Why::new(
            libc::EPERM,
            "another thread attached this hrm_t: attach in this thread, too",
        )),
        Some(place) if place.process != std::process::id() => {
            Err(Why::new(libc::EPERM, Error::Forked))
        }
        Some(place) => Ok(&place.member),
    }
}

/// Writes a result to an address from C.
///
/// # Safety
/// `to` is null or valid for writes.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Why> {
    if to.is_null() {
        return Err(Why::new(
            libc::EINVAL,
            "the pointer for the result is NULL: pass the address of a variable",
        ));
    }
    // SAFETY: guaranteed by the caller.
    unsafe { to.write(value) };
    Ok(())
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hrm_attach(hrm: *mut hrm_t, gid: c_int, consumer: c_int) -> c_int {
    answer(|| {
        if hrm.is_null() {
            return Err(Why::new(libc::EINVAL, "the hrm_t is NULL: pass the address of an hrm_t"));
        }
        // SAFETY: C passes a readable `hrm_t` with arbitrary contents; the read is volatile,
        // because its bytes may be uninitialised.
        let inner = unsafe { addr_of!((*hrm).inner).read_volatile() };
        let (place, process) = (hrm.addr(), std::process::id());
        let is_attached = |all: &RefCell<BTreeMap<_, _>>| {
            all.borrow().get(&place) == Some(&(process, inner.addr()))
        };
        if ATTACHED.try_with(is_attached) == Ok(true) {
            return Err(Why::new(
                libc::EBUSY,
                "this hrm_t is attached already: call hrm_detach first",
            ));
        }
        // After a failure below, the `hrm_t` is marked as not attached.
        // SAFETY: C passes a writable `hrm_t`.
        unsafe { hrm.write(hrm_t { counter: null_mut(), inner: null_mut() }) };
        let number = u32::try_from(gid).map_err(|_| {
            Why::new(libc::EINVAL, format!("invalid group {gid}: use a number from 0"))
        })?;
        let group = Group::new(number);
        let (counter, member) = match consumer {
            0 => {
                let producer = group.produce()?;
                (producer.counter().as_ptr().cast(), Member::Producer(producer))
            }
            _ => (null_mut(), Member::Consumer(group.consume()?)),
        };
        let inner =
            Box::into_raw(Box::new(Place { member, thread: thread::current().id(), process }));
        // Without thread-local data, a thread that ends cannot attach the same `hrm_t` twice.
        let _ = ATTACHED.try_with(|all| all.borrow_mut().insert(place, (process, inner.addr())));
        // SAFETY: C passes a writable `hrm_t`.
        unsafe { hrm.write(hrm_t { counter, inner: inner.cast() }) };
        Ok(())
    })
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hrm_detach(hrm: *mut hrm_t) -> c_int {
    answer(|| {
        // SAFETY: C passes an attached `hrm_t`.
        unsafe { member(hrm) }?;
        // SAFETY: `member` has checked the pointer.
        let was = unsafe { hrm.replace(hrm_t { counter: null_mut(), inner: null_mut() }) };
        // By contents, not by address: C may have copied the `hrm_t`.
        let is_other = |_: &usize, attached: &mut (u32, usize)| attached.1 != was.inner.addr();
        let _ = ATTACHED.try_with(|all| all.borrow_mut().retain(is_other));
        // SAFETY: created by `hrm_attach`, and no other reference is left.
        drop(unsafe { Box::from_raw(was.inner.cast::<Place>()) });
        Ok(())
    })
}

/// Sets a part of the goal.
///
/// # Safety
/// As for [`member`].
unsafe fn set(hrm: *const hrm_t, change: impl FnOnce(&Producer) -> Result<(), Error>) -> c_int {
    // SAFETY: guaranteed by the caller.
    answer(|| Ok(change(unsafe { member(hrm) }?.producer()?)?))
}

macro_rules! setters {
    ($($name:ident($value:ident: $type:ty) = $change:expr;)*) => {$(
        /// See `hrm.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(hrm: *mut hrm_t, $value: $type) -> c_int {
            // SAFETY: C passes a valid `hrm_t`.
            unsafe { set(hrm, $change) }
        }
    )*};
}

setters! {
    hrm_set_min_heart_rate(min: u32) = |producer| producer.set_rate_min(rate(min)?);
    hrm_set_max_heart_rate(max: u32) = |producer| producer.set_rate_max(rate(max)?);
    // Values that do not fit exceed the limit, too.
    hrm_set_window_size(size: usize) =
        |producer| producer.set_window(u32::try_from(size).unwrap_or(u32::MAX));
}

/// A missing bound is 0 for C. C converts negative numbers to large ones.
fn rate(bound: u32) -> Result<Option<f64>, Error> {
    match i32::try_from(bound) {
        Ok(0) => Ok(None),
        Ok(bound) => Ok(Some(bound.into())),
        Err(_) => Err(Error::BadRate((bound as i32).into())),
    }
}

/// Returns a part of the measurements or of the goal.
///
/// # Safety
/// As for [`member`] and [`put`].
unsafe fn get<T>(hrm: *const hrm_t, to: *mut T, part: impl FnOnce(&Status) -> T) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by the caller.
        let status = unsafe { member(hrm) }?.status()?;
        // SAFETY: guaranteed by the caller.
        unsafe { put(to, part(&status)) }
    })
}

macro_rules! getters {
    ($($name:ident: $type:ty = $part:expr;)*) => {$(
        /// See `hrm.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(hrm: *mut hrm_t, result: *mut $type) -> c_int {
            // SAFETY: C passes a valid `hrm_t` and a valid address for the result.
            unsafe { get(hrm, result, $part) }
        }
    )*};
}

// `as` saturates.
getters! {
    hrm_get_min_heart_rate: u32 = |status| status.goal.rate_min.unwrap_or(0.0) as u32;
    hrm_get_max_heart_rate: u32 = |status| status.goal.rate_max.unwrap_or(0.0) as u32;
    hrm_get_window_size: usize = |status| status.goal.window as usize;
    hrm_get_global_heart_rate: u32 = |status| status.global_rate as u32;
    hrm_get_window_heart_rate: u32 = |status| status.window_rate as u32;
}

/// See `hrm.h`, which contains the same as an inline function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heartbeat(hrm: *mut hrm_t, n: u64) -> c_int {
    answer(|| {
        // SAFETY: C passes a valid `hrm_t`.
        match unsafe { member(hrm) }? {
            Member::Producer(producer) => {
                producer.beat(n);
                Ok(())
            }
            Member::Consumer(_) => Err(Why::new(
                libc::EPERM,
                "a consumer cannot emit heartbeats: attach as a producer",
            )),
        }
    })
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hrm_why() -> *const c_char {
    words()
}
