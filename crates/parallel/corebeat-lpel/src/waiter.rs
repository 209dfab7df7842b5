//! Tokens of waiting tasks and threads, and how they are woken.
//!
//! A task that waits leaves a *token* where the event will happen: in a word of a stream, of a set,
//! or of another task. One thread takes the token out of the word, by compare-and-swap or, if no
//! other thread can take it, by a store, and must wake the owner of the token. This is the poll
//! token of the thesis, generalised to every kind of waiting (Prokesch, A Light-Weight Parallel
//! Execution Layer for Shared-Memory Stream Processing, 2011, 4.4.5). A wake-up may precede the
//! suspension of the owner, but the owner does not run before it has suspended (4.4.3): on the same
//! worker because the worker is busy with the owner, and from another worker because the inbox is
//! read between two tasks.
//!
//! | word | meaning |
//! | --- | --- |
//! | 0 | empty: no task waits here |
//! | [`CLOSED`] | the side that would wait or work here was dropped |
//! | [`DETACHED`] | no joiner will wait (only in the word of a task) |
//! | [`ARMED`] | a set requests an announcement (only in the word of a reader) |
//! | address | this task or thread is blocked |
//! | address + 1 | this async task awaits; the word owns a reference to the task |
//! | address + 2 | a waker of another executor, in a box that the word owns |

use crate::current;
use crate::task::{Header, TaskRef, discard_panic};
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use std::ptr;
use std::task::Waker;

/// Content of a word.
pub(crate) type Token = *mut Header;
/// Place for a token.
pub(crate) type Word = AtomicPtr<Header>;

pub(crate) const EMPTY: Token = ptr::null_mut();
pub(crate) const CLOSED: Token = ptr::without_provenance_mut(2);
pub(crate) const DETACHED: Token = ptr::without_provenance_mut(3);
pub(crate) const ARMED: Token = ptr::without_provenance_mut(4);
/// Tag of the address of an awaiting task.
const AWAITS: usize = 1;
/// Tag of the address of a boxed waker.
const FOREIGN: usize = 2;
const TAGS: usize = AWAITS | FOREIGN;

/// Returns whether the content of a word is a token.
#[inline(always)]
pub(crate) fn is_token(word: Token) -> bool {
    word.addr() > ARMED.addr()
}

/// Returns whether a token is that of a blocked task or thread.
#[inline(always)]
pub(crate) fn is_blocking(token: Token) -> bool {
    token.addr() & TAGS == 0
}

/// Returns the task or thread of a blocking token.
#[inline(always)]
pub(crate) fn blocked(token: Token) -> *const Header {
    debug_assert!(is_token(token) && is_blocking(token));
    token
}

/// Returns the token for a future that is polled with `waker`.
pub(crate) fn awaiting_token(waker: &Waker) -> Token {
    match TaskRef::of_waker(waker) {
        Some(task) => task.into_raw().cast_mut().map_addr(|a| a | AWAITS),
        None => Box::into_raw(Box::new(waker.clone())).cast::<Header>().map_addr(|a| a | FOREIGN),
    }
}

/// Returns whether this is the awaiting token of that task.
pub(crate) fn is_awaiting(token: Token, task: *const Header) -> bool {
    token.addr() == task.addr() | AWAITS
}

/// Object that a token owns or refers to.
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
            // SAFETY: `awaiting_token` counted a reference for the token.
            let task = unsafe { TaskRef::from_raw(address) };
            task.header().forget_await();
            Owner::Awaits(task)
        }
        // SAFETY: `awaiting_token` made the token from a box.
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
    if is_blocking(token) {
        // SAFETY: a blocked task cannot continue, and thus not end, before it is woken.
        unsafe { current::deliver(token) };
    } else {
        // SAFETY: by the contract of this function.
        unsafe { wake_owner(token) };
    }
}

/// # Safety
///
/// As for [`wake`].
#[cold]
#[inline(never)]
unsafe fn wake_owner(token: Token) {
    // SAFETY: by the contract of this function.
    match unsafe { owner(token) } {
        // SAFETY: a blocked task cannot continue, and thus not end, before it is woken.
        Owner::Blocked(task) => unsafe { current::deliver(task) },
        Owner::Awaits(task) => task.notify(),
        Owner::Foreign(waker) => discard_panic(|| waker.wake()),
    }
}

/// Drops the object that a token owns, without a wake-up.
///
/// # Safety
///
/// As for [`wake`].
pub(crate) unsafe fn forget(token: Token) {
    if is_token(token) {
        // SAFETY: by the contract of this function.
        drop(unsafe { owner(token) });
    }
}

/// Takes a token out of its word if it is still there, so that its owner no longer waits there.
/// Returns false if another thread has taken the token, and so wakes the owner.
pub(crate) fn withdraw(word: &Word, token: Token) -> bool {
    // Only the waiter leaves this token, so it stays away once it was taken. Acquire: as below.
    if word.load(Ordering::Acquire) != token {
        return false;
    }
    // AcqRel: the effects of the thread that left a token are visible to the thread that takes it.
    let taken = word.compare_exchange(token, EMPTY, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if taken {
        // SAFETY: the exchange took the token.
        unsafe { forget(token) };
    }
    taken
}

/// Leaves a token, which replaces an older one of the same waiter. Returns false, and drops the
/// token, if the word is closed.
pub(crate) fn leave(word: &Word, token: Token) -> bool {
    let mut old = word.load(Ordering::Acquire);
    while old != CLOSED {
        // AcqRel: see `withdraw`.
        match word.compare_exchange(old, token, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: the exchange took the old token, which is of the same waiter.
                unsafe { forget(old) };
                return true;
            }
            Err(newer) => old = newer,
        }
    }
    // SAFETY: the token was never left.
    unsafe { forget(token) };
    false
}

/// Takes `token` out of a word, if it is still there, and wakes its owner.
#[inline(never)]
pub(crate) fn wake_at(word: &Word, token: Token) -> bool {
    // AcqRel: see `withdraw`.
    let taken = word.compare_exchange(token, EMPTY, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if taken {
        // SAFETY: the exchange took the token.
        unsafe { wake(token) };
    }
    taken
}
