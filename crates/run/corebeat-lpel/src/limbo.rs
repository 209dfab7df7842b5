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
//! pointer. Who is not looked at pays for one load. Only one looks at a time: else what is left could grow as long as looks
//! overlap.

use crate::runtime::lock;
use crate::task::quietly;
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::{Mutex, MutexGuard, asymmetric};
use std::any::Any;

struct Limbo {
    /// Held by who looks.
    turn: Mutex<()>,
    /// How many look: 0 or 1.
    looking: AtomicUsize,
    /// What is freed when that is done.
    left: Mutex<Vec<Left>>,
}

impl Limbo {
    #[cfg(not(loom))]
    const fn new() -> Self {
        Limbo { turn: Mutex::new(()), looking: AtomicUsize::new(0), left: Mutex::new(Vec::new()) }
    }

    #[cfg(loom)]
    fn new() -> Self {
        Limbo { turn: Mutex::new(()), looking: AtomicUsize::new(0), left: Mutex::new(Vec::new()) }
    }
}

#[cfg(not(loom))]
static LIMBO: Limbo = Limbo::new();
#[cfg(loom)]
corebeat_sync::loom::lazy_static! {
    static ref LIMBO: Limbo = Limbo::new();
}

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
    // That who began to look before is counted, is by the fences, see above. Acquire: pairs with the release of who has
    // looked, so that we free after it has read.
    if LIMBO.looking.load(Ordering::Acquire) == 0 { drop(owned) } else { leave(Box::new(owned)) }
}

#[cold]
fn leave(owned: Box<dyn Any>) {
    let mut left = lock(&LIMBO.left);
    left.push(Left(owned));
    drop(left);
    // Whoever looked may have swept in between. Outside the lock: dropping may retire more.
    let left = take_left();
    drop(left);
}

/// As long as it lives, what it finds is not freed. Nobody's code but ours runs meanwhile: it might want to look as well.
pub(crate) struct Look(Option<MutexGuard<'static, ()>>);

impl Look {
    pub(crate) fn new() -> Self {
        let turn = lock(&LIMBO.turn);
        // Relaxed: the fence orders it.
        LIMBO.looking.fetch_add(1, Ordering::Relaxed);
        asymmetric::heavy();
        Look(Some(turn))
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        // Release: what was found has been read before it may be freed.
        LIMBO.looking.fetch_sub(1, Ordering::Release);
        let left = take_left();
        self.0 = None;
        // After our turn: dropping runs destructors of others.
        left.into_iter().for_each(|left| quietly(|| drop(left)));
    }
}

/// What may be freed: all that is left, if nobody looks.
fn take_left() -> Vec<Left> {
    let mut left = lock(&LIMBO.left);
    // Whoever left something here had a `light` after it was out of sight. The lock brings us behind that, so this is as if
    // that owner asked again. Acquire: as in `retire`.
    if LIMBO.looking.load(Ordering::Acquire) == 0 { std::mem::take(&mut *left) } else { Vec::new() }
}
