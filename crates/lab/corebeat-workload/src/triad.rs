//! The triad of McCalpin's STREAM (*Memory Bandwidth and Machine Balance in Current High
//! Performance Computers*, 1995): a = b + s c over arrays far larger than any cache, here 96 MiB in
//! all.
//!
//! The arrays change roles from pass to pass, so that each pass depends on the last one. Threads
//! wait at a barrier after each pass.
//!
//! A simple loop is optimal, because it waits for memory. The naive version uses an index, and is
//! slower only by its bounds checks. (Several passes over a part of the arrays that fits into the
//! cache would be faster, but would not be bound by memory.)

use crate::random::mix;
use crate::{Size, Tally, WorkloadError, heartbeat, team};
use std::hint::black_box;
use std::sync::{Barrier, Mutex};

/// Number of elements of an array.
const ELEMENTS: usize = 4 << 20;
/// Number of passes at full size.
const PASSES: usize = 2_200;
/// With b the newest array, c the one before and s = -1, an element cycles through six integers.
const SCALAR: f64 = -1.0;

fn elements(size: Size) -> usize {
    size.count(ELEMENTS * 32).min(ELEMENTS)
}

fn passes(size: Size) -> usize {
    size.count(PASSES).max(5)
}

/// Initial values of the three arrays at `index`.
fn initial(index: usize) -> [f64; 3] {
    [0.0, (index % 1021) as f64, (index % 509) as f64]
}

/// Contribution of the element at `index` of array `which` to the checksum.
fn digest(index: usize, which: usize, value: f64) -> u64 {
    mix(value.to_bits() ^ mix((index * 3 + which) as u64))
}

pub(crate) fn run(threads: usize, size: Size) -> Result<Tally, WorkloadError> {
    let (elements, passes) = (elements(size), passes(size));
    let barrier = Barrier::new(threads);
    let checksum = Mutex::new(0u64);
    team::run_ranks("triad", threads, |rank| {
        // Each thread touches its part first, so that the pages are on its node.
        let range = team::share(rank, threads, elements);
        let mut arrays: [Vec<f64>; 3] =
            [0, 1, 2].map(|which| range.clone().map(|i| initial(i)[which]).collect());
        let s = black_box(SCALAR);
        for _ in 0..passes {
            let [a, b, c] = &mut arrays;
            for ((a, b), c) in a.iter_mut().zip(&*b).zip(&*c) {
                *a = b + s * c;
            }
            arrays.rotate_right(1);
            barrier.wait();
            heartbeat::beat(1);
        }
        let mut mine = 0u64;
        for (which, array) in arrays.iter().enumerate() {
            for (i, value) in range.clone().zip(array) {
                mine = mine.wrapping_add(digest(i, which, *value));
            }
        }
        let mut sum = checksum.lock().unwrap();
        *sum = sum.wrapping_add(mine);
    })?;
    Ok(Tally { checksum: checksum.into_inner().unwrap(), work: (elements * passes) as u64 })
}

/// The naive version: loops with an index, as in C.
pub(crate) fn naive(size: Size) -> Tally {
    let (elements, passes) = (elements(size), passes(size));
    let mut arrays: [Vec<f64>; 3] = Default::default();
    for i in 0..elements {
        for which in 0..3 {
            arrays[which].push(initial(i)[which]);
        }
    }
    let s = black_box(SCALAR);
    for _ in 0..passes {
        let [a, b, c] = &mut arrays;
        for i in 0..elements {
            a[i] = b[i] + s * c[i];
        }
        arrays.rotate_right(1);
    }
    let mut checksum = 0u64;
    for which in 0..3 {
        for i in 0..elements {
            checksum = checksum.wrapping_add(digest(i, which, arrays[which][i]));
        }
    }
    Tally { checksum, work: (elements * passes) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_follows_its_recurrence() {
        let (elements, passes) = (elements(Size::QUICK), passes(Size::QUICK));
        let mut expected = 0u64;
        for i in 0..elements {
            let mut x = initial(i);
            for _ in 0..passes {
                x = [x[2], x[1] + SCALAR * x[2], x[1]];
            }
            for (which, value) in x.into_iter().enumerate() {
                expected = expected.wrapping_add(digest(i, which, value));
            }
        }
        assert_eq!(run(3, Size::QUICK).unwrap().checksum, expected);
    }
}
