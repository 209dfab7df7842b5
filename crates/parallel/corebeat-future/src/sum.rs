//! Reductions whose result does not depend on the order of evaluation.

use crate::map::{At, divide};
use crate::site;
use crate::split::{Parts, Split};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

/// Integers that [`sum`] adds up. This trait is sealed.
pub trait Integer: Copy + Send + Sync + sealed::Wide {}

mod sealed {
    /// Conversions to a type in which no sum of a loop overflows.
    pub trait Wide: Sized {
        const LEAST: i128;
        const MOST: i128;
        const ONE: Self;
        /// -1, for signed types.
        const MINUS_ONE: Option<Self>;
        fn widen(self) -> i128;
        /// The number modulo the size of the type.
        fn wrap(number: i128) -> Self;
    }
}

use sealed::Wide;

macro_rules! integers {
    ($($integer:ty: $minus_one:expr;)*) => {$(
        impl Wide for $integer {
            const LEAST: i128 = <$integer>::MIN as i128;
            const MOST: i128 = <$integer>::MAX as i128;
            const ONE: Self = 1;
            const MINUS_ONE: Option<Self> = $minus_one;

            fn widen(self) -> i128 {
                self as i128
            }

            fn wrap(number: i128) -> Self {
                number as $integer
            }
        }

        impl Integer for $integer {}
    )*};
}

integers! {
    i8: Some(-1); i16: Some(-1); i32: Some(-1); i64: Some(-1); isize: Some(-1);
    u8: None; u16: None; u32: None; u64: None; usize: None;
}

/// Sum of consecutive items, with the least and the greatest sum on the way.
#[derive(Clone, Copy, Default)]
struct Partial {
    sum: i128,
    least: i128,
    most: i128,
}

impl Partial {
    fn add(&mut self, number: i128) {
        self.sum += number;
        self.least = self.least.min(self.sum);
        self.most = self.most.max(self.sum);
    }

    /// Appends the items of `next`.
    fn append(&mut self, next: Partial) {
        self.least = self.least.min(self.sum + next.least);
        self.most = self.most.max(self.sum + next.most);
        self.sum += next.sum;
    }
}

/// Returns the result of `let mut total = first; for item in items { total = add(total, f(item)) }`
/// for an `add` that is `|a, b| a + b` or `|a, b| a.wrapping_add(b)`.
///
/// The result is exact, also if additions overflow: if a sum on the way leaves the type, `add` is
/// called with two numbers whose sum does so, too. Where the program checks additions, it panics as
/// before; where it does not, or where it wraps, the result wraps.
///
/// ```
/// let total = corebeat_future::sum(0, &[1u64, 2, 3], |x| x * x, |a, b| a + b);
/// assert_eq!(total, 14);
/// ```
///
/// # Panics
///
/// If `f` panics, as [`map`](crate::map::map); or if `add` panics, whichever comes first in order.
#[track_caller]
#[inline]
pub fn sum<I: Split, T: Integer>(
    first: T,
    items: I,
    f: impl Fn(I::Item) -> T + Sync,
    add: impl Fn(T, T) -> T,
) -> T {
    let (place, items) = (Location::caller(), items.into_parts());
    if site::is_plain(place) {
        items.items().fold(first, |total, item| add(total, f(item)))
    } else {
        sum_divided(place, first, items, &f, &add)
    }
}

fn sum_divided<P: Parts, T: Integer>(
    place: &'static Location<'static>,
    first: T,
    items: P,
    f: &(impl Fn(P::Item) -> T + Sync),
    add: &impl Fn(T, T) -> T,
) -> T {
    // By position. A part whose closure panicked has the items before.
    let partials = Mutex::new(BTreeMap::new());
    let run = |part: At<P>| {
        let mut partial = Partial::default();
        let add_up = || part.parts.items().for_each(|item| partial.add(f(item).widen()));
        let result = catch_unwind(AssertUnwindSafe(add_up));
        let mut partials = partials.lock().unwrap_or_else(PoisonError::into_inner);
        partials.insert(part.position, (partial, result.is_err()));
        drop(partials);
        result.unwrap_or_else(|payload| resume_unwind(payload));
    };
    let whole = At { parts: items, position: 0 };
    let result = catch_unwind(AssertUnwindSafe(|| divide(place, whole, &run)));
    // Parts before a panic have ended; those after it do not count.
    let mut total = Partial { sum: first.widen(), least: first.widen(), most: first.widen() };
    let partials = partials.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (partial, has_failed) in partials.into_values() {
        total.append(partial);
        if has_failed {
            break;
        }
    }
    if total.most > T::MOST {
        add(T::wrap(T::MOST), T::ONE);
    }
    if let Some(minus_one) = T::MINUS_ONE
        && total.least < T::LEAST
    {
        add(T::wrap(T::LEAST), minus_one);
    }
    result.unwrap_or_else(|payload| resume_unwind(payload));
    T::wrap(total.sum)
}

/// Returns the result of `let mut total = first; for item in items { total = op(total, f(item)) }`
/// for an associative `op`, such as `min`, `max`, `&`, `|`, `^`, `wrapping_add`, `wrapping_mul`.
/// Not for additions and multiplications of floats, whose results depend on their order.
///
/// ```
/// let highest = corebeat_future::reduce(0, &["a", "bbb", "cc"], |word| word.len(), usize::max);
/// assert_eq!(highest, 3);
/// ```
///
/// # Panics
///
/// If `f` or `op` panics, as [`map`](crate::map::map).
#[track_caller]
#[inline]
pub fn reduce<I: Split, T: Send>(
    first: T,
    items: I,
    f: impl Fn(I::Item) -> T + Sync,
    op: impl Fn(T, T) -> T + Sync,
) -> T {
    let (place, items) = (Location::caller(), items.into_parts());
    if site::is_plain(place) {
        items.items().map(f).fold(first, op)
    } else {
        let run = |part: I::Parts| part.items().map(&f).reduce(&op);
        divide(place, items, &run).into_iter().flatten().fold(first, op)
    }
}
