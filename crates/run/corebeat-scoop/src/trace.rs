//! What the collector finds objects by: each tells which handles it has.

use crate::handle::{At, Gc, Link};
use crate::pool::{Marks, Objects};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::num::NonZeroU32;

/// What objects, and fields of objects, are: they tell the collector of their handles.
///
/// `#[derive(Trace)]` writes it, where all fields have it: handles, numbers, texts, collections and options of those. Everything else
/// goes into a [`Plain`]. (The `Trace` of `corebeat-trace` is another thing: events in a file.)
///
/// ```
/// use corebeat_scoop::{Gc, Link, Plain, Trace};
///
/// #[derive(Trace)]
/// struct Account {
///     owner: String,
///     entries: Vec<Gc<u64>>,
///     bank: Option<Link<Account>>,
///     opened: Plain<std::time::Instant>,
/// }
/// ```
///
/// What is another thread's business as well is no part of an object:
///
/// ```compile_fail
/// #[derive(corebeat_scoop::Trace)]
/// struct Wrong { shared: std::rc::Rc<u64> } // `Rc<u64>: Trace` is not satisfied
/// ```
///
/// A destructor (`Drop`) is the object's finaliser. It runs where the object is found dead, in no particular order, and has no way to
/// reach another object: that takes a [`Here`](crate::Here), and it gets none. So nothing is ever revived (Meyer, Kogtenkov, Akhi, *Processors
/// and their collection*, 2012, section 4.5).
///
/// # Safety
///
/// Everything in it but [`Gc`] and [`Link`] may be sent to another thread, and `trace` tells of each of those, and does not panic.
pub unsafe trait Trace: 'static {
    /// Calls `trace` of each field that may have handles in it.
    fn trace(&self, tracer: &mut Tracer);
}

/// A field without handles, of any type that may be sent to another thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Plain<T>(pub T);

// SAFETY: it may be sent; and handles may not, so it has none.
unsafe impl<T: Send + 'static> Trace for Plain<T> {
    fn trace(&self, _: &mut Tracer) {}
}

// SAFETY: it tells of itself.
unsafe impl<T: 'static> Trace for Gc<T> {
    #[inline(always)]
    fn trace(&self, tracer: &mut Tracer) {
        tracer.reach(self.at);
    }
}

// SAFETY: as above.
unsafe impl<T: 'static> Trace for Link<T> {
    #[inline(always)]
    fn trace(&self, tracer: &mut Tracer) {
        tracer.reach(self.at);
    }
}

macro_rules! plain {
    ($($type:ty),*) => {
        $(
            // SAFETY: it may be sent, and has no handles.
            unsafe impl Trace for $type {
                #[inline(always)]
                fn trace(&self, _: &mut Tracer) {}
            }
        )*
    };
}

plain!(
    (),
    bool,
    char,
    u8,
    u16,
    u32,
    u64,
    u128,
    usize,
    i8,
    i16,
    i32,
    i64,
    i128,
    isize,
    f32,
    f64,
    String,
    &'static str
);

macro_rules! iterated {
    ($([$($generics:tt)*] $type:ty),* $(,)?) => {
        $(
            // SAFETY: all that is in it is told of, and keeps the contract.
            unsafe impl<$($generics)*> Trace for $type {
                #[inline]
                fn trace(&self, tracer: &mut Tracer) {
                    self.iter().for_each(|part| part.trace(tracer));
                }
            }
        )*
    };
}

iterated!(
    [T: Trace] Option<T>,
    [T: Trace] Vec<T>,
    [T: Trace] VecDeque<T>,
    [T: Trace] Box<[T]>,
    [T: Trace] BTreeSet<T>,
    [T: Trace, S: BuildHasher + Send + 'static] HashSet<T, S>,
    [T: Trace, const N: usize] [T; N],
);

// SAFETY: as above.
unsafe impl<T: Trace> Trace for Box<T> {
    #[inline]
    fn trace(&self, tracer: &mut Tracer) {
        (**self).trace(tracer);
    }
}

// SAFETY: as above.
unsafe impl<K: Trace + Eq + Hash, V: Trace, S: BuildHasher + Send + 'static> Trace for HashMap<K, V, S> {
    fn trace(&self, tracer: &mut Tracer) {
        self.iter().for_each(|(key, value)| (key.trace(tracer), value.trace(tracer)).1);
    }
}

// SAFETY: as above.
unsafe impl<K: Trace, V: Trace> Trace for BTreeMap<K, V> {
    fn trace(&self, tracer: &mut Tracer) {
        self.iter().for_each(|(key, value)| (key.trace(tracer), value.trace(tracer)).1);
    }
}

macro_rules! tuple {
    ($($name:ident)*) => {
        // SAFETY: as above.
        unsafe impl<$($name: Trace),*> Trace for ($($name,)*) {
            #[inline]
            #[allow(non_snake_case, reason = "types and fields have the same names")]
            fn trace(&self, tracer: &mut Tracer) {
                let ($($name,)*) = self;
                $($name.trace(tracer);)*
            }
        }
    };
}

tuple!(A);
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);

/// What is told of handles: marks of the pools that are held just now, and a list of what is elsewhere.
#[derive(Default)]
pub struct Tracer {
    /// By number of pool: 1 more than its place in `views`; 0 if it is not held.
    places: Vec<u32>,
    views: Vec<View>,
    /// The pool whose objects are traced just now, or 0; and its view.
    pool: u32,
    view: usize,
    /// Views with objects that were reached and not traced.
    active: Vec<usize>,
    /// Reached, in pools that are not held.
    pub(crate) foreign: Vec<At>,
}

/// A pool that is held.
struct View {
    pool: u32,
    marks: Marks,
    objects: Objects,
    /// It stands in `active`, or is traced.
    queued: bool,
}

impl Tracer {
    #[inline(always)]
    pub(crate) fn reach(&mut self, at: At) {
        let number = if at.pool.get() == self.pool {
            self.view
        } else {
            let place = self.places.get(at.pool.get() as usize).map_or(0, |&place| place as usize);
            place.wrapping_sub(1)
        };
        let Some(view) = self.views.get_mut(number) else {
            self.foreign.push(at);
            return;
        };
        if view.marks.mark(at.index) && !view.queued {
            view.queued = true;
            self.active.push(number);
        }
    }

    pub(crate) fn holds(&self, pool: NonZeroU32) -> bool {
        self.places.get(pool.get() as usize).is_some_and(|&place| place != 0)
    }

    /// Holds a pool: its marks are here until `let_go`, which must come in the opposite order.
    ///
    /// # Safety
    ///
    /// The marks are those of the pool of these objects, which does not change until then.
    pub(crate) unsafe fn hold(&mut self, pool: u32, marks: Marks, objects: Objects) -> usize {
        let number = pool as usize;
        if self.places.len() <= number {
            self.places.resize(number + 1, 0);
        }
        let view = self.views.len();
        let queued = marks.is_pending();
        self.views.push(View { pool, marks, objects, queued });
        self.places[number] = view as u32 + 1;
        if queued {
            self.active.push(view);
        }
        view
    }

    /// Gives the marks back of the pool that was held last.
    pub(crate) fn let_go(&mut self) -> Marks {
        let view = self.views.pop().expect("as many as were held");
        self.places[view.pool as usize] = 0;
        view.marks
    }

    /// Traces what was reached of some view, up to `budget` objects, which it counts down; what is left of it comes later. False if nothing
    /// was reached.
    #[inline]
    pub(crate) fn trace(&mut self, budget: &mut usize) -> bool {
        let Some(number) = self.active.pop() else { return false };
        let View { pool, objects, .. } = self.views[number];
        (self.pool, self.view) = (pool, number);
        // SAFETY: of who held it.
        unsafe { objects.trace(number, self, budget) };
        self.pool = 0;
        let view = &mut self.views[number];
        view.queued = view.marks.is_pending();
        if view.queued {
            self.active.push(number);
        }
        true
    }

    /// Nothing is held now, so nothing is to be traced.
    pub(crate) fn forget_active(&mut self) {
        debug_assert!(self.views.is_empty());
        self.active.clear();
    }

    /// An object of this view that was reached, and is traced now; and one that is soon.
    #[inline(always)]
    pub(crate) fn next_of(&mut self, view: usize) -> Option<(u32, Option<u32>)> {
        self.views[view].marks.next_pending()
    }
}
