//! Sequences of items that loops divide among threads.

use std::ops::Range;

/// A sequence that [`map`](crate::map) and the other loops divide: slices, vectors and arrays by
/// reference or mutable reference, ranges of integers, and [`chunks`] and [`chunks_mut`]. This
/// trait is sealed.
pub trait Split: Sized {
    /// The argument of the closure of the loop.
    type Item;
    /// The sequence, as the loop divides it.
    #[doc(hidden)]
    type Parts: Parts<Item = Self::Item>;
    #[doc(hidden)]
    fn into_parts(self) -> Self::Parts;
}

/// A sequence of known length that can be divided.
#[doc(hidden)]
pub trait Parts: Send + Sized {
    type Item;
    type Iter: Iterator<Item = Self::Item>;
    fn length(&self) -> usize;
    /// The first `at` items, at most all, and the others.
    fn divide(self, at: usize) -> (Self, Self);
    fn items(self) -> Self::Iter;
}

impl<'a, T: Sync> Parts for &'a [T] {
    type Item = &'a T;
    type Iter = std::slice::Iter<'a, T>;

    fn length(&self) -> usize {
        self.len()
    }

    fn divide(self, at: usize) -> (Self, Self) {
        self.split_at(at.min(self.len()))
    }

    fn items(self) -> Self::Iter {
        self.iter()
    }
}

impl<'a, T: Send> Parts for &'a mut [T] {
    type Item = &'a mut T;
    type Iter = std::slice::IterMut<'a, T>;

    fn length(&self) -> usize {
        self.len()
    }

    fn divide(self, at: usize) -> (Self, Self) {
        let at = at.min(self.len());
        self.split_at_mut(at)
    }

    fn items(self) -> Self::Iter {
        self.iter_mut()
    }
}

impl<'a, T: Sync> Split for &'a [T] {
    type Item = &'a T;
    type Parts = &'a [T];

    fn into_parts(self) -> Self::Parts {
        self
    }
}

impl<'a, T: Sync> Split for &'a Vec<T> {
    type Item = &'a T;
    type Parts = &'a [T];

    fn into_parts(self) -> Self::Parts {
        self
    }
}

impl<'a, T: Sync, const N: usize> Split for &'a [T; N] {
    type Item = &'a T;
    type Parts = &'a [T];

    fn into_parts(self) -> Self::Parts {
        self
    }
}

impl<'a, T: Send> Split for &'a mut [T] {
    type Item = &'a mut T;
    type Parts = &'a mut [T];

    fn into_parts(self) -> Self::Parts {
        self
    }
}

impl<'a, T: Send> Split for &'a mut Vec<T> {
    type Item = &'a mut T;
    type Parts = &'a mut [T];

    fn into_parts(self) -> Self::Parts {
        self
    }
}

impl<'a, T: Send, const N: usize> Split for &'a mut [T; N] {
    type Item = &'a mut T;
    type Parts = &'a mut [T];

    fn into_parts(self) -> Self::Parts {
        self
    }
}

/// Parts of a slice, see [`chunks`].
#[derive(Debug, Clone)]
pub struct Chunks<'a, T> {
    items: &'a [T],
    size: usize,
}

/// Parts of a mutable slice, see [`chunks_mut`].
#[derive(Debug)]
pub struct ChunksMut<'a, T> {
    items: &'a mut [T],
    size: usize,
}

/// Divides a slice into parts of `size` items, of which the last one may be shorter, as
/// `slice::chunks` does.
///
/// # Panics
///
/// If `size` is 0.
pub fn chunks<T>(items: &[T], size: usize) -> Chunks<'_, T> {
    assert!(size > 0, "chunk size must be non-zero");
    Chunks { items, size }
}

/// Divides a mutable slice, as [`chunks`] does.
///
/// # Panics
///
/// If `size` is 0.
pub fn chunks_mut<T>(items: &mut [T], size: usize) -> ChunksMut<'_, T> {
    assert!(size > 0, "chunk size must be non-zero");
    ChunksMut { items, size }
}

impl<'a, T: Sync> Split for Chunks<'a, T> {
    type Item = &'a [T];
    type Parts = Self;

    fn into_parts(self) -> Self {
        self
    }
}

impl<'a, T: Sync> Parts for Chunks<'a, T> {
    type Item = &'a [T];
    type Iter = std::slice::Chunks<'a, T>;

    fn length(&self) -> usize {
        self.items.len().div_ceil(self.size)
    }

    fn divide(self, at: usize) -> (Self, Self) {
        let at = at.saturating_mul(self.size).min(self.items.len());
        let (left, right) = self.items.split_at(at);
        (Chunks { items: left, ..self }, Chunks { items: right, ..self })
    }

    fn items(self) -> Self::Iter {
        self.items.chunks(self.size)
    }
}

impl<'a, T: Send> Split for ChunksMut<'a, T> {
    type Item = &'a mut [T];
    type Parts = Self;

    fn into_parts(self) -> Self {
        self
    }
}

impl<'a, T: Send> Parts for ChunksMut<'a, T> {
    type Item = &'a mut [T];
    type Iter = std::slice::ChunksMut<'a, T>;

    fn length(&self) -> usize {
        self.items.len().div_ceil(self.size)
    }

    fn divide(self, at: usize) -> (Self, Self) {
        let at = at.saturating_mul(self.size).min(self.items.len());
        let (left, right) = self.items.split_at_mut(at);
        (ChunksMut { items: left, size: self.size }, ChunksMut { items: right, size: self.size })
    }

    fn items(self) -> Self::Iter {
        self.items.chunks_mut(self.size)
    }
}

/// Integers of ranges. One implementation of [`Split`] for all ranges lets the compiler infer the
/// type of `0..10` from the closure.
#[doc(hidden)]
pub trait Whole: Copy + PartialOrd + Send {
    /// The distance to a number that is not less.
    fn distance(self, end: Self) -> usize;
    fn plus(self, distance: usize) -> Self;
}

impl<T: Whole> Split for Range<T>
where
    Range<T>: Iterator<Item = T>,
{
    type Item = T;
    type Parts = Self;

    fn into_parts(self) -> Self {
        self
    }
}

impl<T: Whole> Parts for Range<T>
where
    Range<T>: Iterator<Item = T>,
{
    type Item = T;
    type Iter = Self;

    fn length(&self) -> usize {
        if self.is_empty() { 0 } else { self.start.distance(self.end) }
    }

    fn divide(self, at: usize) -> (Self, Self) {
        let middle = self.start.plus(at.min(self.length()));
        (self.start..middle, middle..self.end)
    }

    fn items(self) -> Self {
        self
    }
}

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl Whole for $integer {
            fn distance(self, end: Self) -> usize {
                // A loop cannot reach the end of a longer range.
                usize::try_from(end.abs_diff(self)).unwrap_or(usize::MAX)
            }

            fn plus(self, distance: usize) -> Self {
                // At most the end of the range, although the distance may exceed the positive half
                // of the type.
                self.wrapping_add(distance as $integer)
            }
        }
    )*};
}

integers!(i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize);
