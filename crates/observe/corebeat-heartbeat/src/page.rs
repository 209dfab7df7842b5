//! The status page: the measurements of a group, written by the monitor and read by all members.
//!
//! ```text
//!     byte 0      8       16                                88
//!     | sequence | magic | status, 8 bytes per value       |  the rest of the page is unused
//! ```
//!
//! A sequence lock makes copies consistent (Boehm, *Can seqlocks get along with programming
//! language memory models?*, 2012). The sequence is odd while the monitor writes:
//!
//! ```text
//!     monitor                              reader
//!     sequence = odd    (Relaxed)          before = sequence  (Relaxed, then an Acquire fence)
//!     Release fence                        copy the words     (Relaxed)
//!     write the words   (Relaxed)          Acquire fence
//!     sequence = even   (Release)          after = sequence   (Relaxed)
//! ```
//!
//! A copy with `before == after`, even, is consistent. First, it contains no word of a later write:
//! such a word is stored after the Release fence, so the reader's Acquire fence makes the reader
//! read that write's odd sequence or a later one, and `after` differs. Second, it contains no word
//! of an earlier write: `before` is even, its fence pairs with the Release store of that sequence,
//! and all words of that write precede the store. Readers use Relaxed loads with fences, because
//! pages that are mapped read-only permit no other atomic loads.
//!
//! Readers write nothing and never block: they fail after [`TRIES_MAX`] inconsistent copies.

use crate::goal::Goal;
use crate::raw::Layout;
use corebeat_sync::atomic::{AtomicU64, Ordering, fence};
use std::{array, hint};

/// Limit on the attempts of a reader. A write takes about 20 ns, once per period.
const TRIES_MAX: usize = if cfg!(any(loom, miri)) { 2 } else { 1_000 };

/// "CBHBSTA" and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"CBHBSTA1");
const WORDS: usize = 9;

/// The state of a group.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Status {
    /// The target of the group.
    pub goal: Goal,
    /// Beats of all members, including past ones. The count saturates.
    pub beats: u64,
    /// Number of threads that beat for the group.
    pub members: u32,
    /// Number of samples.
    pub samples: u64,
    /// Beats per second since the group was created (Sironi et al., *Metronome*, 2012, equation 6);
    /// 0 before the first sample.
    pub global_rate: f64,
    /// Beats per second over the goal's window, or since the first beat if that is shorter
    /// (equation 7).
    pub window_rate: f64,
}

impl Status {
    fn words(&self) -> [u64; WORDS] {
        let rate = |rate: Option<f64>| rate.unwrap_or(f64::NAN).to_bits();
        let Goal { rate_min, rate_max, window, hold } = self.goal;
        [
            MAGIC,
            rate(rate_min),
            rate(rate_max),
            u64::from(window) | u64::from(hold) << 32,
            self.beats,
            u64::from(self.members),
            self.samples,
            self.global_rate.to_bits(),
            self.window_rate.to_bits(),
        ]
    }

    /// Returns `None` for words that no monitor writes.
    fn from_words(words: [u64; WORDS]) -> Option<Status> {
        let [magic, rate_min, rate_max, window, beats, members, samples, global_rate, window_rate] =
            words;
        let option = |bits| Some(f64::from_bits(bits)).filter(|rate: &f64| !rate.is_nan());
        let rate =
            |bits| Some(f64::from_bits(bits)).filter(|rate: &f64| rate.is_finite() && *rate >= 0.0);
        let goal = Goal {
            rate_min: option(rate_min),
            rate_max: option(rate_max),
            window: u32::try_from(window & !(1 << 32)).ok()?,
            hold: window >> 32 == 1,
        };
        goal.check().ok().filter(|()| magic == MAGIC)?;
        Some(Status {
            goal,
            beats,
            members: u32::try_from(members).ok()?,
            samples,
            global_rate: rate(global_rate)?,
            window_rate: rate(window_rate)?,
        })
    }
}

/// The reason why a page cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The page was written during every attempt.
    Unsettled,
    /// The page has invalid contents.
    Damaged,
}

/// Words protected by a sequence lock.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Locked<const N: usize> {
    sequence: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> Locked<N> {
    /// In the initial state of memory from the system.
    #[cfg(test)]
    pub(crate) fn zeroed() -> Self {
        Locked { sequence: AtomicU64::new(0), words: array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Writes the words. The caller ensures that there is one writer at a time.
    pub(crate) fn write(&self, values: [u64; N]) {
        // Relaxed: only this process writes here, under a lock. The sequence is odd already if a
        // writer died.
        let odd = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(odd, Ordering::Relaxed);
        // Pairs with the second fence of a reader: a reader that reads a word of this write also
        // reads the odd sequence.
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        // Pairs with the first fence of a reader: a reader that reads this sequence reads all
        // words.
        self.sequence.store(odd.wrapping_add(1), Ordering::Release);
    }

    /// Returns a consistent copy, or `None`. The function uses only Relaxed loads, so the page may
    /// be mapped read-only.
    pub(crate) fn read(&self) -> Option<[u64; N]> {
        for _ in 0..TRIES_MAX {
            let before = self.sequence.load(Ordering::Relaxed);
            // Pairs with the Release store of this sequence.
            fence(Ordering::Acquire);
            let words = array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
            // Pairs with the Release fence of the writer of any word that was read.
            fence(Ordering::Acquire);
            let after = self.sequence.load(Ordering::Relaxed);
            if before == after && before.is_multiple_of(2) {
                return Some(words);
            }
            hint::spin_loop();
        }
        None
    }
}

/// The page. Every bit pattern is a valid value.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Page(Locked<WORDS>);

// SAFETY: the page contains only atomics, which accept every bit pattern. (The types of loom
// differ, but models map no memory.)
unsafe impl Layout for Page {
    const NAME: &'static str = "status page";
    const BYTES: usize = 4096;
}

impl Page {
    /// Writes the status. The caller ensures that there is one writer at a time.
    pub(crate) fn write(&self, status: &Status) {
        self.0.write(status.words());
    }

    /// Returns a consistent and valid status. The function uses only Relaxed loads.
    pub(crate) fn read(&self) -> Result<Status, Unreadable> {
        Status::from_words(self.0.read().ok_or(Unreadable::Unsettled)?).ok_or(Unreadable::Damaged)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn written_page_is_read_back() {
        let page = Page(Locked::zeroed());
        assert_eq!(page.read(), Err(Unreadable::Damaged));
        let goal = Goal { rate_min: Some(0.5), rate_max: None, window: 3, hold: false };
        let held = Goal { rate_max: Some(1e9), hold: true, ..goal };
        for goal in [goal, held, Goal::default()] {
            let status = Status {
                goal,
                beats: u64::MAX,
                members: 3,
                samples: 7,
                global_rate: 0.25,
                window_rate: 1e18,
            };
            page.write(&status);
            assert_eq!(page.read(), Ok(status));
        }
    }

    #[test]
    fn reader_gives_up_on_an_unfinished_write() {
        let page = Page(Locked::zeroed());
        page.write(&Status::default());
        page.0.sequence.store(7, Ordering::Relaxed);
        assert_eq!(page.read(), Err(Unreadable::Unsettled));
        page.write(&Status::default());
        assert_eq!(page.read(), Ok(Status::default()));
    }

    #[test]
    fn readers_never_obtain_mixed_statuses() {
        let page = Page(Locked::zeroed());
        let status =
            |n: u64| Status { beats: n, samples: n, global_rate: n as f64, ..Status::default() };
        page.write(&status(0));
        std::thread::scope(|scope| {
            let read = || {
                let mut last = 0;
                while last < 40 {
                    let Ok(seen) = page.read() else { continue };
                    assert_eq!(seen, status(seen.beats));
                    assert!(seen.beats >= last);
                    last = seen.beats;
                }
            };
            scope.spawn(read);
            scope.spawn(read);
            (1..=40).for_each(|n| page.write(&status(n)));
        });
    }

    proptest! {
        #[test]
        fn page_with_arbitrary_content_is_read_safely(
            content in any::<[u64; WORDS]>(),
            sequence: u64,
            right: bool,
        ) {
            let page = Page(Locked::zeroed());
            page.0.sequence.store(sequence, Ordering::Relaxed);
            for (word, value) in page.0.words.iter().zip(&content) {
                word.store(*value, Ordering::Relaxed);
            }
            if right {
                page.0.words[0].store(MAGIC, Ordering::Relaxed);
            }
            if let Ok(status) = page.read() {
                prop_assert!(status.goal.check().is_ok());
                prop_assert!(status.global_rate.is_finite() && status.window_rate.is_finite());
            }
        }
    }
}
