//! Growing arrays of atomic words whose elements never move.
//!
//! ```text
//!   bucket 0: 64 elements | bucket 1: 128 elements | bucket 2: 256 elements | ...
//! ```
//!
//! Threads read an array while other threads extend it. The memory of an array stays of one type
//! until the array is dropped: a thread that follows an outdated index reads an outdated word, and
//! never freed memory. For this reason the graph needs no reclamation of memory: see
//! [`crate::lock`] for how outdated words are detected.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Number of elements in the first bucket.
const FIRST: u32 = 64;
/// Number of buckets: enough for [`INDEX_MAX`].
const BUCKETS: usize = 26;
/// Largest index. It leaves room for the offset of the first bucket.
pub(crate) const INDEX_MAX: u32 = (1 << 31) - 1;

/// Types of which an array can allocate a bucket of zeros.
pub(crate) trait Atom: Sized {
    /// Allocates `count` zeros. Pages of the system that no thread writes take no memory.
    fn zeros(count: usize) -> Box<[Self]>;
}

macro_rules! atom {
    ($($atomic:ty, $plain:ty;)*) => {$(
        impl Atom for $atomic {
            fn zeros(count: usize) -> Box<[Self]> {
                const { assert!(align_of::<$atomic>() == align_of::<$plain>()) };
                let plain: Box<[$plain]> = vec![0; count].into_boxed_slice();
                // SAFETY: the atomic type has the size and the bit validity of the plain type, and
                // its alignment, as asserted above. The box is the only owner of the memory.
                unsafe { Box::from_raw(Box::into_raw(plain) as *mut [$atomic]) }
            }
        }
    )*};
}
atom! { AtomicU8, u8; AtomicU16, u16; AtomicU32, u32; AtomicU64, u64; }

/// The locks of a model are loom's atomics.
#[cfg(loom)]
impl Atom for corebeat_sync::atomic::AtomicU64 {
    fn zeros(count: usize) -> Box<[Self]> {
        (0..count).map(|_| Self::new(0)).collect()
    }
}

/// A growing array. Of a dense one, all elements are used in the order of their indices: its large
/// buckets take large pages, of which the system clears fewer, with less time for each byte.
pub(crate) struct Array<A, const DENSE: bool = false> {
    buckets: [OnceLock<Box<[A]>>; BUCKETS],
}

impl<A, const DENSE: bool> Default for Array<A, DENSE> {
    fn default() -> Self {
        Array { buckets: [const { OnceLock::new() }; BUCKETS] }
    }
}

/// Returns the bucket of an index and the offset in the bucket.
#[inline(always)]
fn place(index: u32) -> (usize, usize) {
    let shifted = u64::from(index) + u64::from(FIRST);
    let log = shifted.ilog2();
    ((log - FIRST.ilog2()) as usize, (shifted ^ (1 << log)) as usize)
}

/// Returns whether `count` elements from `index` on are in one bucket.
pub(crate) fn is_in_one_bucket(index: u32, count: u32) -> bool {
    place(index).0 == place(index + count - 1).0
}

/// Size of a page of the system, and of a large page, in bytes.
const PAGE: usize = 1 << 12;
const LARGE_PAGE: usize = 1 << 21;

/// Asks the system for large pages, if it has them.
fn use_large_pages<A>(bucket: &[A]) {
    let size = size_of_val(bucket);
    if size < 2 * LARGE_PAGE || cfg!(miri) {
        return;
    }
    let begin = bucket.as_ptr().addr().next_multiple_of(PAGE) - bucket.as_ptr().addr();
    let count = (size - begin) / PAGE * PAGE;
    let pages = bucket.as_ptr().cast::<u8>().wrapping_add(begin) as *mut std::ffi::c_void;
    // SAFETY: the pages are inside the memory of the bucket, and the advice changes no content. A
    // system without large pages returns an error, and the bucket is as usable as before.
    let _ = unsafe { rustix::mm::madvise(pages, count, rustix::mm::Advice::LinuxHugepage) };
}

impl<A: Atom, const DENSE: bool> Array<A, DENSE> {
    /// Returns an element whose bucket exists.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> Option<&A> {
        let (bucket, offset) = place(index);
        self.buckets.get(bucket)?.get()?.get(offset)
    }

    /// Returns the elements from `index` to the end of the bucket of `index`.
    #[inline(always)]
    pub(crate) fn rest(&self, index: u32) -> &[A] {
        let (bucket, offset) = place(index);
        let bucket = self.buckets.get(bucket).and_then(OnceLock::get);
        bucket.and_then(|bucket| bucket.get(offset..)).unwrap_or(&[])
    }

    /// Returns an element, and allocates its bucket on first use.
    #[inline]
    pub(crate) fn make(&self, index: u32) -> &A {
        let (bucket, offset) = place(index);
        let new = || {
            let elements = A::zeros((FIRST as usize) << bucket);
            if DENSE {
                use_large_pages(&elements);
            }
            elements
        };
        &self.buckets[bucket].get_or_init(new)[offset]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_dense_array_has_zeros_and_keeps_its_elements() {
        let array: Array<AtomicU64, true> = Array::default();
        // A bucket of several large pages.
        let index = (4 * LARGE_PAGE / size_of::<u64>()) as u32;
        assert_eq!(array.make(index).load(Relaxed), 0);
        array.make(index).store(7, Relaxed);
        assert_eq!(array.rest(index)[0].load(Relaxed), 7);
        assert_eq!(array.rest(index)[1].load(Relaxed), 0);
    }

    #[test]
    fn elements_of_all_buckets_are_distinct() {
        let array: Array<AtomicU32> = Array::default();
        assert!(array.get(0).is_none());
        (0..1000).for_each(|i| array.make(i).store(i + 1, Relaxed));
        assert!((0..1000).all(|i| array.get(i).unwrap().load(Relaxed) == i + 1));
        assert_eq!(place(INDEX_MAX).0, BUCKETS - 1);
        assert!(array.get(u32::MAX).is_none() && array.rest(u32::MAX).is_empty());
        assert!(is_in_one_bucket(0, 64) && !is_in_one_bucket(0, 65) && is_in_one_bucket(64, 128));
    }
}
