//! The status page: what the monitor tells of a group, written by it alone and read by all.
//!
//! ```text
//!     byte 0      8       16                                80
//!     | sequence | magic | status, 8 bytes for each value  |  the rest of the page is empty
//! ```
//!
//! A sequence lock keeps it consistent (Boehm, *Can seqlocks get along with programming language memory models?*, 2012). The
//! sequence is odd while the monitor writes:
//!
//! ```text
//!     monitor                                  reader
//!     sequence = odd        (Relaxed)          before = sequence    (Relaxed, then an Acquire fence)
//!     Release fence                            copy the words       (Relaxed)
//!     write the words       (Relaxed)          Acquire fence
//!     sequence = even       (Release)          after = sequence     (Relaxed)
//! ```
//!
//! Why a copy with `before == after`, even, is whole. A word of a later write was stored after the Release fence; if the
//! reader saw one, its Acquire fence makes it see that write's odd sequence as well, or a later one: `after` differs. A word of
//! an earlier write it cannot have seen: `before` is even, its fence pairs with the Release store of it, and all words of that
//! write come before. Loads are Relaxed with fences, because only Relaxed loads may be made from pages that are mapped
//! read-only.
//!
//! Readers write nothing and wait for nobody: after [`TRIES_MAX`] copies that were not whole they give up.

use crate::goal::Goal;
use crate::raw::Layout;
use corebeat_sync::atomic::{AtomicU64, Ordering, fence};
use std::{array, hint};

/// How often a reader tries to get a whole copy. A write takes some 20 ns, once a period.
const TRIES_MAX: usize = if cfg!(any(loom, miri)) { 2 } else { 1_000 };

/// "CBHBSTA" and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"CBHBSTA1");
const WORDS: usize = 9;

/// What is known of a group.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Status {
    /// What it wants.
    pub goal: Goal,
    /// Beats of all its members, past ones included. It stops at the largest number there is.
    pub beats: u64,
    /// How many threads beat for it.
    pub members: u32,
    /// How often it was measured.
    pub samples: u64,
    /// Beats a second since it was made (Sironi et al., *Metronome*, 2012, equation 6); 0 before the first sample.
    pub global_rate: f64,
    /// Beats a second over the goal's window, or since its first beat if that is shorter (equation 7).
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

    /// `None` for what no monitor writes.
    fn from_words(words: [u64; WORDS]) -> Option<Status> {
        let [magic, rate_min, rate_max, window, beats, members, samples, global_rate, window_rate] = words;
        let option = |bits| Some(f64::from_bits(bits)).filter(|rate: &f64| !rate.is_nan());
        let rate = |bits| Some(f64::from_bits(bits)).filter(|rate: &f64| rate.is_finite() && *rate >= 0.0);
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

/// Why there is no copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It was written all the time.
    Unsettled,
    /// It is no status page.
    Damaged,
}

/// Words under a sequence lock.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Locked<const N: usize> {
    sequence: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> Locked<N> {
    /// As memory from the system is.
    #[cfg(test)]
    pub(crate) fn zeroed() -> Self {
        Locked { sequence: AtomicU64::new(0), words: array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// There is one writer at a time.
    pub(crate) fn write(&self, values: [u64; N]) {
        // Relaxed: this process alone writes here, under a lock. The sequence is odd already if a writer died.
        let odd = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(odd, Ordering::Relaxed);
        // Pairs with the second fence of a reader: one that sees a word from below sees the odd sequence too.
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        // Pairs with the first fence of a reader: one that sees this sequence sees all words.
        self.sequence.store(odd.wrapping_add(1), Ordering::Release);
    }

    /// A whole copy, or none. It only loads, Relaxed, and so may be called where the page is read-only.
    pub(crate) fn read(&self) -> Option<[u64; N]> {
        for _ in 0..TRIES_MAX {
            let before = self.sequence.load(Ordering::Relaxed);
            // Pairs with the Release store of this sequence.
            fence(Ordering::Acquire);
            let words = array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
            // Pairs with the Release fence of whoever wrote a word that we saw.
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

/// The page. Of all bytes that there can be, each is one.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Page(Locked<WORDS>);

// SAFETY: atomics alone, which have no bytes that they cannot be. (loom's are something else; models map no memory.)
unsafe impl Layout for Page {
    const NAME: &'static str = "status page";
    const BYTES: usize = 4096;
}

impl Page {
    /// Tells this. There is one writer at a time.
    pub(crate) fn write(&self, status: &Status) {
        self.0.write(status.words());
    }

    /// A copy that is whole and makes sense. It only loads, Relaxed.
    pub(crate) fn read(&self) -> Result<Status, Unreadable> {
        Status::from_words(self.0.read().ok_or(Unreadable::Unsettled)?).ok_or(Unreadable::Damaged)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn page_gives_back_what_was_written() {
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
    fn page_in_the_middle_of_a_write_is_given_up() {
        let page = Page(Locked::zeroed());
        page.write(&Status::default());
        page.0.sequence.store(7, Ordering::Relaxed);
        assert_eq!(page.read(), Err(Unreadable::Unsettled));
        page.write(&Status::default());
        assert_eq!(page.read(), Ok(Status::default()));
    }

    #[test]
    fn page_readers_never_see_halves() {
        let page = Page(Locked::zeroed());
        let status = |n: u64| Status { beats: n, samples: n, global_rate: n as f64, ..Status::default() };
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
        fn page_with_any_content_is_read_without_harm(content in any::<[u64; WORDS]>(), sequence: u64, right: bool) {
            let page = Page(Locked::zeroed());
            page.0.sequence.store(sequence, Ordering::Relaxed);
            page.0.words.iter().zip(&content).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
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
