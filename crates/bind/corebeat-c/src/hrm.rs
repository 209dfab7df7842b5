//! `hrm.h`: the API of Table 2 in Sironi et al., *Metronome* (2012), appendix A.

use crate::why::{Why, answer, system_number, wire_number, words};
use corebeat_heartbeat::{Consumer, Error, Group, Producer, Status};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{addr_of, null_mut, without_provenance_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `hrm_t`.
#[repr(C)]
pub struct hrm_t {
    counter: *mut u64,
    /// The number of the member, which its thread has in [`Members`]. Not an address: C may keep a
    /// copy that is used after the end of the member or of its thread.
    inner: *mut c_void,
}

/// The members that a thread has attached, by their numbers. They detach at the latest when the
/// thread ends.
#[derive(Default)]
struct Members {
    all: RefCell<BTreeMap<usize, Place>>,
    is_ending: Cell<bool>,
}

/// A member that a thread has attached.
struct Place {
    member: Member,
    /// A child of fork has the members of its parent, but must not use them.
    process: u32,
    /// The address of the `hrm_t`. One that is not attached may have any contents.
    address: usize,
}

impl Members {
    /// The key of the members of each thread. They are no thread-local data of Rust, because
    /// destructors of the program, which run later, may still detach.
    fn key() -> Result<libc::pthread_key_t, Why> {
        static KEY: OnceLock<Result<libc::pthread_key_t, c_int>> = OnceLock::new();
        let made = KEY.get_or_init(|| {
            let mut key = 0;
            // SAFETY: the key is written to a valid address.
            match unsafe { libc::pthread_key_create(&mut key, Some(Members::end)) } {
                0 => Ok(key),
                number => Err(number),
            }
        });
        made.map_err(|number| Why::new(number, "no key for data of threads is left: delete one"))
    }

    /// Calls a function with the members of this thread.
    fn with<T>(call: impl FnOnce(&Members) -> Result<T, Why>) -> Result<T, Why> {
        let key = Members::key()?;
        // SAFETY: the key exists, and its value is null or set below.
        let own = unsafe { libc::pthread_getspecific(key).cast::<Members>().as_ref() };
        let Some(own) = own else {
            let new = Box::into_raw(Box::<Members>::default());
            // SAFETY: the key exists.
            match unsafe { libc::pthread_setspecific(key, new.cast()) } {
                // SAFETY: only `end` frees the value.
                0 => return call(unsafe { &*new }),
                number => {
                    // SAFETY: the value was not passed on.
                    drop(unsafe { Box::from_raw(new) });
                    return Err(Why::new(number, "no memory for data of this thread: free some"));
                }
            }
        };
        call(own)
    }

    /// Detaches the members of a thread that ends, after all destructors of the program: these run
    /// in the first round of destructors, and a value that is set again is destroyed in the next.
    unsafe extern "C" fn end(members: *mut c_void) {
        answer(|| {
            let members = members.cast::<Members>();
            // SAFETY: set by `with`, and not freed yet.
            if !unsafe { &*members }.is_ending.replace(true) {
                // SAFETY: the key exists.
                let again = unsafe { libc::pthread_setspecific(Members::key()?, members.cast()) };
                if again == 0 {
                    return Ok(());
                }
            }
            // SAFETY: created by `with`; the system has set the value of the key to null.
            drop(unsafe { Box::from_raw(members) });
            Ok(())
        });
    }
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

/// Calls a function with the member behind a pointer from C.
///
/// # Safety
/// `hrm` is null, or points to an `hrm_t` that is initialised.
unsafe fn with_member<T>(
    hrm: *const hrm_t,
    call: impl FnOnce(&Member) -> Result<T, Why>,
) -> Result<T, Why> {
    // SAFETY: guaranteed by the caller.
    let number = unsafe { hrm.as_ref() }.map_or(0, |hrm| hrm.inner.addr());
    if number == 0 {
        return Err(Why::new(libc::EINVAL, "this hrm_t is not attached: call hrm_attach first"));
    }
    Members::with(|own| match own.all.borrow().get(&number) {
        None => Err(Why::new(
            libc::EPERM,
            "another thread attached this hrm_t, or a copy of it was detached: attach in this \
             thread, too",
        )),
        Some(place) if place.process != std::process::id() => {
            Err(Why::new(libc::EPERM, Error::Forked))
        }
        Some(place) => call(&place.member),
    })
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
        let (address, process) = (hrm.addr(), std::process::id());
        Members::with(|own| {
            let present = own.all.borrow().get(&inner.addr()).map(|at| (at.address, at.process));
            if present == Some((address, process)) {
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
            static NEXT: AtomicUsize = AtomicUsize::new(1);
            // Relaxed: the numbers only differ.
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            own.all.borrow_mut().insert(number, Place { member, process, address });
            // SAFETY: C passes a writable `hrm_t`.
            unsafe { hrm.write(hrm_t { counter, inner: without_provenance_mut(number) }) };
            Ok(())
        })
    })
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hrm_detach(hrm: *mut hrm_t) -> c_int {
    answer(|| {
        // SAFETY: C passes an initialised `hrm_t` or null.
        unsafe { with_member(hrm, |_| Ok(())) }?;
        // SAFETY: `with_member` has checked the pointer.
        let was = unsafe { hrm.replace(hrm_t { counter: null_mut(), inner: null_mut() }) };
        let place = Members::with(|own| Ok(own.all.borrow_mut().remove(&was.inner.addr())))?;
        drop(place);
        Ok(())
    })
}

/// Sets a part of the goal.
///
/// # Safety
/// As for [`with_member`].
unsafe fn set(hrm: *const hrm_t, change: impl FnOnce(&Producer) -> Result<(), Error>) -> c_int {
    // SAFETY: guaranteed by the caller.
    answer(|| unsafe { with_member(hrm, |member| Ok(change(member.producer()?)?)) })
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
/// As for [`with_member`] and [`put`].
unsafe fn get<T>(hrm: *const hrm_t, to: *mut T, part: impl FnOnce(&Status) -> T) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by the caller.
        let status = unsafe { with_member(hrm, Member::status) }?;
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
        // SAFETY: C passes an initialised `hrm_t` or null.
        unsafe {
            with_member(hrm, |member| match member {
                Member::Producer(producer) => {
                    producer.beat(n);
                    Ok(())
                }
                Member::Consumer(_) => Err(Why::new(
                    libc::EPERM,
                    "a consumer cannot emit heartbeats: attach as a producer",
                )),
            })
        }
    })
}

/// See `hrm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hrm_why() -> *const c_char {
    words()
}
