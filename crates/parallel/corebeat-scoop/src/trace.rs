//! Tracing: objects report their handles to the collector.

use crate::handle::{At, Gc, Link};
use crate::pool::{Marks, Objects};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::num::NonZeroU32;

/// Types of objects and of their fields, which report their handles to the collector.
///
/// `#[derive(Trace)]` implements the trait if all fields do: handles, numbers, strings, and
/// collections and options of those. Wrap other types in a [`Plain`]. (The `Trace` of
/// `corebeat-trace` is a different type: events in a file.)
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
/// Types that are not `Send` cannot be a part of an object:
///
/// ```compile_fail
/// #[derive(corebeat_scoop::Trace)]
/// struct Wrong { shared: std::rc::Rc<u64> } // `Rc<u64>` cannot be a part of an object
/// ```
///
/// A destructor (`Drop`) is the object's finaliser. It runs when a sweep finds the object dead, in
/// no particular order, and cannot reach another object, because it has no [`Here`](crate::Here).
/// So no object is ever revived (Meyer, Kogtenkov, Akhi, *Processors and their collection*, 2012,
/// section 4.5).
///
/// # Safety
///
/// All parts except [`Gc`] and [`Link`] are `Send`; `trace` reports each of those, and does not
/// panic.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of an object of a processor",
    label = "not `Trace`",
    note = "derive `Trace` for a type with handles, put a `Send` type without handles into a \
            `Plain`, and refer to objects by a `Gc` or a `Link` instead of a `Separate`"
)]
pub unsafe trait Trace: 'static {
    /// Calls `trace` of each field that may contain handles.
    fn trace(&self, tracer: &mut Tracer);
}

/// A field without handles, of any `Send` type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Plain<T>(pub T);

// SAFETY: the type is `Send`; handles are not, so it contains none.
unsafe impl<T: Send + 'static> Trace for Plain<T> {
    fn trace(&self, _: &mut Tracer) {}
}

// SAFETY: the handle reports itself.
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
    ($($type:ty;)*) => {
        $(
            // SAFETY: the type is `Send` and has no handles.
            unsafe impl Trace for $type {
                #[inline(always)]
                fn trace(&self, _: &mut Tracer) {}
            }
        )*
    };
}

plain! {
    (); bool; char; f32; f64; String; &'static str;
    u8; u16; u32; u64; u128; usize; i8; i16; i32; i64; i128; isize;
}

macro_rules! iterated {
    ($([$($generics:tt)*] $type:ty),* $(,)?) => {
        $(
            // SAFETY: all elements are traced, and implement the contract.
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
unsafe impl<K: Trace + Eq + Hash, V: Trace, S: BuildHasher + Send + 'static> Trace
    for HashMap<K, V, S>
{
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

/// Receiver of reported handles: the marks of the held pools, and a list of references to others.
#[derive(Default)]
pub struct Tracer {
    /// By number of the pool: its index in `views` plus 1; 0 if the pool is not held.
    places: Vec<u32>,
    views: Vec<View>,
    /// The pool whose objects are being traced, or 0; and its view.
    pool: u32,
    view: usize,
    /// Views with reached, untraced objects.
    active: Vec<usize>,
    /// Reached objects in pools that are not held.
    pub(crate) foreign: Vec<At>,
}

/// A held pool.
struct View {
    pool: u32,
    marks: Marks,
    objects: Objects,
    /// Whether the view is in `active`, or is being traced.
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

    /// Holds a pool: the tracer owns its marks until `let_go`. Pools are released in reverse order.
    ///
    /// # Safety
    ///
    /// The marks belong to the pool of these objects, which does not change until then.
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

    /// Returns the marks of the pool that was held last.
    pub(crate) fn let_go(&mut self) -> Marks {
        let view = self.views.pop().expect("a pool is held");
        self.places[view.pool as usize] = 0;
        view.marks
    }

    /// Traces reached objects of one view, up to `budget`, which it decrements; the others follow
    /// in later calls. Returns `false` if no object was reached.
    #[inline]
    pub(crate) fn trace(&mut self, budget: &mut usize) -> bool {
        let Some(number) = self.active.pop() else { return false };
        let View { pool, objects, .. } = self.views[number];
        (self.pool, self.view) = (pool, number);
        // SAFETY: the caller of `hold` guarantees it.
        unsafe { objects.trace(number, self, budget) };
        self.pool = 0;
        let view = &mut self.views[number];
        view.queued = view.marks.is_pending();
        if view.queued {
            self.active.push(number);
        }
        true
    }

    /// Resets the list of active views, when no pool is held.
    pub(crate) fn forget_active(&mut self) {
        debug_assert!(self.views.is_empty());
        self.active.clear();
    }

    /// Returns the next reached object of this view, and one that follows soon after.
    #[inline(always)]
    pub(crate) fn next_of(&mut self, view: usize) -> Option<(u32, Option<u32>)> {
        self.views[view].marks.next_pending()
    }
}
