//! Memory of fields that came from other ranks, kept for further ones.
//!
//! The thread that receives a field allocates its memory, and the task of a box frees it. The
//! allocator returns such memory to the system and requests it again, and each of its pages then
//! costs a page fault at the next message: as much time as the copy of the field.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

/// Smallest memory that is kept, in bytes.
pub(crate) const BYTES_MIN: usize = 8 << 10;

/// Bytes that are kept at most: those of the fields that wait on a rank in a window.
const BYTES_MAX: usize = 4 << 20;

/// The memory, the most recent last, and its bytes.
static KEPT: Mutex<Kept> = Mutex::new(Kept { memory: VecDeque::new(), bytes: 0 });

struct Kept {
    memory: VecDeque<Box<[u128]>>,
    bytes: usize,
}

impl Kept {
    fn keep(&mut self, words: Box<[u128]>) {
        let bytes = size_of_val(&words[..]);
        if bytes > BYTES_MAX {
            return;
        }
        self.bytes += bytes;
        self.memory.push_back(words);
        while self.bytes > BYTES_MAX
            && let Some(oldest) = self.memory.pop_front()
        {
            self.bytes -= size_of_val(&oldest[..]);
        }
    }

    /// Takes the most recent memory of this size, because it may be in a cache. The fields of a
    /// stream often have one size.
    fn take(&mut self, words: usize) -> Option<Box<[u128]>> {
        let at = self.memory.iter().rposition(|kept| kept.len() == words)?;
        let kept = self.memory.remove(at)?;
        self.bytes -= size_of_val(&kept[..]);
        Some(kept)
    }
}

fn lock() -> MutexGuard<'static, Kept> {
    KEPT.lock().unwrap_or_else(|e| e.into_inner())
}

/// Keeps memory.
#[cold]
pub(super) fn keep(words: Box<[u128]>) {
    lock().keep(words);
}

/// Takes memory of this number of bytes, rounded up to whole words, if there is any.
pub(crate) fn take(bytes: usize) -> Option<Vec<u128>> {
    if bytes < BYTES_MIN {
        return None;
    }
    lock().take(bytes.div_ceil(size_of::<u128>())).map(Vec::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_up_to_its_bound_and_taken_by_its_size() {
        let mut kept = Kept { memory: VecDeque::new(), bytes: 0 };
        let words = BYTES_MAX / size_of::<u128>() / 4;
        for mark in 0..6 {
            kept.keep(vec![mark; words].into());
        }
        assert_eq!((kept.memory.len(), kept.bytes), (4, BYTES_MAX));
        assert!(kept.take(words - 1).is_none());
        let marks: Vec<u128> = std::iter::from_fn(|| kept.take(words)).map(|w| w[0]).collect();
        assert_eq!((marks, kept.bytes), (vec![5, 4, 3, 2], 0));
        for _ in 0..4 {
            kept.keep(vec![0; words].into());
        }
        // Too large memory does not replace the other.
        kept.keep(vec![0; 5 * words].into());
        assert_eq!((kept.memory.len(), kept.bytes), (4, BYTES_MAX));
    }
}
