//! Who waits: a task, or a thread that is no task; and how it is woken.
//!
//! Whoever waits leaves a *token* where the event will happen: in a word of a stream, of a set, or of another task. The
//! one who takes the token out (by compare-and-swap, so there is exactly one) wakes its owner, and must: this is the
//! thesis' poll token, for every kind of waiting (Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory
//! Stream Processing, 2011, 4.4.5). Wake-up may come before the owner has even suspended; it is not run before it has
//! (4.4.3): on the same worker because that worker is busy, from another because mail is read between tasks.
//!
//! | word | means |
//! | --- | --- |
//! | 0 | nobody waits |
//! | [`CLOSED`] | whoever would wait or work here is gone |
//! | [`ARMED`] | a set wants to be told (reader's word of a stream) |
//! | address | that task or thread is blocked |
//! | address + 1 | that async task awaits; the word owns a reference to it |
//! | address + 2 | a waker of somebody else's, in a box that the word owns |

use crate::current;
use crate::task::{Header, TaskRef, quietly};
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use std::ptr;
use std::task::Waker;

/// What a word holds.
pub(crate) type Token = *mut Header;
/// Where tokens are left.
pub(crate) type Word = AtomicPtr<Header>;

pub(crate) const NOBODY: Token = ptr::null_mut();
pub(crate) const CLOSED: Token = ptr::without_provenance_mut(2);
pub(crate) const ARMED: Token = ptr::without_provenance_mut(4);
/// Added to the address of a task that awaits.
const AWAITS: usize = 1;
/// Added to the address of a waker in a box.
const FOREIGN: usize = 2;
const TAGS: usize = AWAITS | FOREIGN;

/// Whether a word's content is somebody's token.
#[inline(always)]
pub(crate) fn is_token(word: Token) -> bool {
    word.addr() > ARMED.addr()
}

/// The token of the running task or thread, which is going to block.
#[inline]
pub(crate) fn blocking_token() -> Token {
    current::waiter().cast_mut()
}

/// The task or thread of a blocking token.
pub(crate) fn blocked(token: Token) -> *const Header {
    debug_assert!(is_token(token) && token.addr() & TAGS == 0);
    token
}

/// The token of whoever polls a future with this waker.
pub(crate) fn awaiting_token(waker: &Waker) -> Token {
    match TaskRef::of_waker(waker) {
        Some(task) => task.into_raw().cast_mut().map_addr(|a| a | AWAITS),
        None => Box::into_raw(Box::new(waker.clone())).cast::<Header>().map_addr(|a| a | FOREIGN),
    }
}

/// Whether this is the token of that task, awaiting.
pub(crate) fn is_awaiting(token: Token, task: *const Header) -> bool {
    token.addr() == task.addr() | AWAITS
}

/// What a token owns.
enum Owner {
    Blocked(*const Header),
    Awaits(TaskRef),
    Foreign(Box<Waker>),
}

/// # Safety
///
/// The caller has taken the token out of its word, or never left it there.
unsafe fn owner(token: Token) -> Owner {
    let address = token.map_addr(|a| a & !TAGS);
    match token.addr() & TAGS {
        AWAITS => {
            // SAFETY: made by `awaiting_token`, which counted a reference.
            let task = unsafe { TaskRef::from_raw(address) };
            task.header().forget_await();
            Owner::Awaits(task)
        }
        // SAFETY: made by `awaiting_token` from a box.
        FOREIGN => Owner::Foreign(unsafe { Box::from_raw(address.cast()) }),
        _ => Owner::Blocked(address),
    }
}

/// Wakes the owner of a token.
///
/// # Safety
///
/// The caller has taken the token out of its word.
#[inline(always)]
pub(crate) unsafe fn wake(token: Token) {
    if token.addr() & TAGS == 0 {
        // SAFETY: whoever is blocked cannot go on, and so not end, before it is woken.
        unsafe { current::deliver(token) };
    } else {
        // SAFETY: the caller's word.
        unsafe { wake_owner(token) };
    }
}

/// # Safety
///
/// As for [`wake`].
#[cold]
#[inline(never)]
unsafe fn wake_owner(token: Token) {
    // SAFETY: the caller's word.
    match unsafe { owner(token) } {
        // SAFETY: whoever is blocked cannot go on, and so not end, before it is woken.
        Owner::Blocked(task) => unsafe { current::deliver(task) },
        Owner::Awaits(task) => task.notify(),
        Owner::Foreign(waker) => {
            quietly(|| waker.wake());
        }
    }
}

/// Drops what a word or token holds without waking anybody.
///
/// # Safety
///
/// As for [`wake`].
pub(crate) unsafe fn forget(token: Token) {
    if is_token(token) {
        // SAFETY: the caller's word.
        drop(unsafe { owner(token) });
    }
}

/// Takes a token out of its word if it is still there: its owner waits there no longer. False if somebody has taken it,
/// and so wakes the owner.
pub(crate) fn withdraw(word: &Word, token: Token) -> bool {
    // AcqRel: what the one who left a token did before is visible to the one who takes it, as always with tokens.
    let taken = word.compare_exchange(token, NOBODY, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if taken {
        // SAFETY: taken just now.
        unsafe { forget(token) };
    }
    taken
}

/// Leaves a token, in the place of an older one of the same waiter. False, and it is dropped, if the word is closed.
pub(crate) fn leave(word: &Word, token: Token) -> bool {
    let mut old = word.load(Ordering::Acquire);
    while old != CLOSED {
        // AcqRel: see `withdraw`.
        match word.compare_exchange(old, token, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: taken just now; it was the same waiter's.
                unsafe { forget(old) };
                return true;
            }
            Err(now) => old = now,
        }
    }
    // SAFETY: it was never left.
    unsafe { forget(token) };
    false
}

/// Takes `token` out of a word, if it is still there, and wakes its owner.
#[inline]
pub(crate) fn wake_at(word: &Word, token: Token) -> bool {
    // AcqRel: see `withdraw`.
    let taken = word.compare_exchange(token, NOBODY, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if taken {
        // SAFETY: taken just now.
        unsafe { wake(token) };
    }
    taken
}
