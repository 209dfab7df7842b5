//! Memory that a look from outside may still read.
//!
//! A dump, or the search for a deadlock, walks tasks and streams of workers that go on running. It may read what it found
//! a pointer to, although the owner has taken the pointer away meanwhile. So whoever frees such memory asks first whether
//! anybody looks, and if so leaves it here until nobody does:
//!
//! | owner | who looks |
//! | --- | --- |
//! | takes the pointer away | counts itself in |
//! | `light` | `heavy` |
//! | reads the count: 0, frees | reads the pointer |
//!
//! One of the two fences is first (see [`asymmetric`]): either the owner sees the count, or the one who looks sees no
//! pointer. Who is not looked at pays for one load.

use corebeat_sync::asymmetric;
use std::any::Any;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// How many look.
static LOOKING: AtomicUsize = AtomicUsize::new(0);
/// What is freed when the last of them is done.
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

/// What was left.
struct Left(#[expect(dead_code, reason = "it is there to be dropped")] Box<dyn Any>);

// SAFETY: what is left is only dropped, by whoever looked last, and its owner allowed that (`retire`).
unsafe impl Send for Left {}

/// Frees `owned`, now or when nobody looks any more.
///
/// # Safety
///
/// No pointer to it can be found any more, and it may be dropped by any thread.
#[inline]
pub(crate) unsafe fn retire<T: 'static>(owned: T) {
    asymmetric::light();
    // Relaxed: ordered by the fences, see above.
    if LOOKING.load(Ordering::Relaxed) == 0 { drop(owned) } else { leave(Box::new(owned)) }
}

#[cold]
fn leave(owned: Box<dyn Any>) {
    let mut left = LEFT.lock().unwrap_or_else(|e| e.into_inner());
    left.push(Left(owned));
    drop(left);
    // Whoever looked may have swept in between.
    sweep();
}

/// As long as it lives, what it finds is not freed.
pub(crate) struct Look(());

impl Look {
    pub(crate) fn new() -> Self {
        LOOKING.fetch_add(1, Ordering::SeqCst);
        asymmetric::heavy();
        Look(())
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        LOOKING.fetch_sub(1, Ordering::SeqCst);
        sweep();
    }
}

/// Frees what is left if nobody looks.
fn sweep() {
    let freed = {
        let mut left = LEFT.lock().unwrap_or_else(|e| e.into_inner());
        // What is in the list was taken out of sight before. Pairs with the fence in `heavy`: if we read 0, whoever
        // starts to look after that finds none of it.
        fence(Ordering::SeqCst);
        if LOOKING.load(Ordering::SeqCst) == 0 { std::mem::take(&mut *left) } else { Vec::new() }
    };
    // Outside the lock: dropping may retire more.
    drop(freed);
}
