//! Transactions on words of memory that belongs to others: what a library for another language is made of.
//!
//! Such memory has no room for locks. They stand in a table, and a word's address says which one it has:
//!
//! ```text
//!   address   63 ......... 25 24 ............ 5 4 ... 3 2 ... 0
//!             +--------------+-----------------+-------+-------+
//!             |              |   which lock    | word  | byte  |     four words in a row have the same lock,
//!             +--------------+-----------------+-------+-------+     and so have those that are 32 MiB apart
//! ```
//!
//! Felber, Fetzer, Riegel, *Dynamic performance tuning of word-based software transactional memory*, 2008, section 3: four words
//! a lock and 2^20 locks are TinySTM's sizes, too.
//!
//! Nothing here looks whether it is used in the right order: see each function's safety section.

use crate::counter::Cause;
use crate::descriptor::{Abort, Descriptor, Mine, Mode};
use crate::global::GLOBAL;
use crate::lock::{Lock, VERSION_MAX};
use crate::pause::pause;
use crate::place::Place;
use std::fmt;
use std::ptr::{self, NonNull};

/// Few under Miri: it keeps books on each.
const LOCKS: usize = if cfg!(miri) { 8 } else { 1 << 20 };
/// So many bits of an address say where in the memory of one lock it is.
const STRIPE_BITS: u32 = 5;

/// Zeroes: pages of it that nobody uses take no memory.
static TABLE: [Lock; LOCKS] = [const { Lock::new() }; LOCKS];

#[inline(always)]
fn lock_of(word: *const usize) -> &'static Lock {
    &TABLE[(word.addr() >> STRIPE_BITS) % LOCKS]
}

/// The time of all transactions: what is written from now on has a version beyond this one.
pub fn time() -> u64 {
    GLOBAL.clock.now().time
}

/// A thread's transaction, if it is in one. The thread must not be in another one meanwhile, also not by
/// [`atomically`](crate::atomically).
pub struct Words {
    /// While it is in one.
    descriptor: Option<NonNull<Descriptor>>,
}

impl Words {
    /// In no transaction.
    pub const fn new() -> Words {
        Words { descriptor: None }
    }

    /// Whether it is in one.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.descriptor.is_some()
    }

    /// Begins one; with `only_reads` as a [`snapshot`](crate::snapshot).
    ///
    /// # Panics
    ///
    /// The thread is in a transaction.
    #[inline(always)]
    pub fn begin(&mut self, only_reads: bool) {
        let mut mine = Mine::take();
        mine.get().start(if only_reads { Mode::Snapshot } else { Mode::Full });
        self.descriptor = Some(mine.keep());
    }

    /// # Safety
    ///
    /// It is in a transaction, which this thread has begun.
    #[inline(always)]
    unsafe fn get(&mut self) -> &mut Descriptor {
        // SAFETY: as the caller says; it lives as long as the thread, and we are the only way there (`Mine`).
        unsafe { self.descriptor.unwrap_unchecked().as_mut() }
    }

    /// What a word holds.
    ///
    /// # Errors
    ///
    /// The attempt cannot go on: [`again`](Words::again), or [`give_up`](Words::give_up).
    ///
    /// # Safety
    ///
    /// It is in a transaction, which this thread has begun, and no error was returned in this attempt. The word is aligned, may be
    /// read, stays as long as the attempt, and is written by nobody meanwhile but by transactions on words.
    #[inline(always)]
    pub unsafe fn load(&mut self, word: *const usize) -> Result<usize, Abort> {
        // SAFETY: `Place` is a pointer-sized atomic; the caller vouches for the rest.
        let value = unsafe { self.get().read(lock_of(word), &*word.cast::<Place>())? };
        Ok(value.expose_provenance())
    }

    /// As [`load`](Words::load), if that can be told at once.
    ///
    /// # Safety
    ///
    /// As for [`load`](Words::load).
    #[inline(always)]
    pub unsafe fn load_at_once(&mut self, word: *const usize) -> Option<usize> {
        // SAFETY: as in `load`.
        let value = unsafe { self.get().read_at_once(lock_of(word), &*word.cast::<Place>())? };
        Some(value.expose_provenance())
    }

    /// Writes those bits of a word that are set in `mask`.
    ///
    /// # Errors
    ///
    /// As for [`load`](Words::load).
    ///
    /// # Safety
    ///
    /// As for [`load`](Words::load); the word may be written.
    #[inline(always)]
    pub unsafe fn store(&mut self, word: *mut usize, value: usize, mask: usize) -> Result<(), Abort> {
        // SAFETY: as in `load`.
        let (descriptor, place) = unsafe { (self.get(), &*word.cast::<Place>()) };
        // SAFETY: as in `load`. The lock may be ours because of another word: so each value is noted.
        let old = unsafe { descriptor.own(lock_of(word), place, true)? };
        let value = old.expose_provenance() & !mask | value & mask;
        descriptor.put(place, ptr::with_exposed_provenance_mut(value), None);
        Ok(())
    }

    /// As [`store`](Words::store), if that can be done at once. Whether it was.
    ///
    /// # Safety
    ///
    /// As for [`store`](Words::store).
    #[inline(always)]
    pub unsafe fn store_at_once(&mut self, word: *mut usize, value: usize, mask: usize) -> bool {
        // SAFETY: as in `load`.
        let (descriptor, place) = unsafe { (self.get(), &*word.cast::<Place>()) };
        let Some(old) = descriptor.own_at_once(lock_of(word), place) else { return false };
        let value = old.expose_provenance() & !mask | value & mask;
        descriptor.put(place, ptr::with_exposed_provenance_mut(value), None);
        true
    }

    /// Gives the words that share this one's lock a new version, as if it had been written. Memory is not touched.
    ///
    /// # Errors
    ///
    /// As for [`load`](Words::load).
    ///
    /// # Safety
    ///
    /// It is in a transaction, which this thread has begun, and no error was returned in this attempt.
    pub unsafe fn renew(&mut self, word: *const usize) -> Result<(), Abort> {
        /// Written with what it holds, which is nothing, where the attempt is undone.
        static NOWHERE: Place = Place::new(ptr::null_mut());
        // SAFETY: as the caller says; nobody puts anything else there.
        unsafe { self.get().own(lock_of(word), &NOWHERE, false) }.map(drop)
    }

    /// What a word holds, and the version of the words that it shares its lock with, as if this were a transaction by itself:
    /// waits while one is open that has written there, but for our own. The version is never beyond [`time`].
    ///
    /// # Safety
    ///
    /// As for [`load`](Words::load), but that it need not be in a transaction.
    pub unsafe fn peek(&self, word: *const usize) -> (usize, u64) {
        // SAFETY: as in `load`.
        let (lock, place) = unsafe { (lock_of(word), &*word.cast::<Place>()) };
        // SAFETY: as in `get`.
        let owner = self.descriptor.map(|descriptor| unsafe { descriptor.as_ref() }.owner());
        loop {
            let seen = lock.look();
            let value = place.get();
            if owner == Some(seen) {
                return (value.expose_provenance(), time());
            }
            if seen > VERSION_MAX {
                pause(u32::MAX);
            } else if lock.is_still(seen) {
                GLOBAL.clock.bring_to(seen);
                return (value.expose_provenance(), seen);
            }
        }
    }

    /// Writes those bits of a word that are set in `mask`, as a transaction by itself, unless its version is beyond
    /// `version_max`.
    ///
    /// # Errors
    ///
    /// The version, which is beyond; nothing was written.
    ///
    /// # Panics
    ///
    /// The thread is in a transaction.
    ///
    /// # Safety
    ///
    /// As for [`load`](Words::load), but that it is in no transaction; the word may be written.
    pub unsafe fn poke(
        &mut self,
        word: *mut usize,
        value: usize,
        mask: usize,
        version_max: u64,
    ) -> Result<u64, u64> {
        let newer = || {
            let seen = lock_of(word).look();
            (seen <= VERSION_MAX && seen > version_max).then_some(seen)
        };
        if let Some(version) = newer() {
            GLOBAL.clock.bring_to(version);
            return Err(version);
        }
        self.begin(false);
        loop {
            // SAFETY: it is in a transaction; the caller vouches for the word.
            unsafe {
                self.bound(version_max == u64::MAX, version_max);
                if self.store(word, value, mask).is_ok() && self.commit(&mut Vec::new(), |_| {}) {
                    return Ok(Mine::take().get().version());
                }
                self.again();
            }
            if let Some(version) = newer() {
                // SAFETY: it is in a transaction.
                unsafe { self.give_up() };
                GLOBAL.clock.bring_to(version);
                return Err(version);
            }
        }
    }

    /// From here on, this attempt reads nothing that is newer than `version_max` (`u64::MAX`: no such bound); and without
    /// `may_extend` nothing that was written after it had begun. Where it would, it fails. One that cannot fail is left as it is.
    ///
    /// # Safety
    ///
    /// It is in a transaction, which this thread has begun, and no error was returned in this attempt.
    pub unsafe fn bound(&mut self, may_extend: bool, version_max: u64) {
        // SAFETY: as the caller says.
        unsafe { self.get() }.bound(may_extend, version_max);
    }

    /// From here on it cannot fail, and nobody else commits a write.
    ///
    /// # Errors
    ///
    /// As for [`load`](Words::load).
    ///
    /// # Safety
    ///
    /// It is in a transaction, which this thread has begun, and no error was returned in this attempt.
    pub unsafe fn make_irrevocable(&mut self) -> Result<(), Abort> {
        // SAFETY: as the caller says.
        unsafe { self.get().make_irrevocable() }
    }

    /// Whether it is in a transaction that cannot fail.
    pub fn is_irrevocable(&self) -> bool {
        // SAFETY: as in `get`.
        self.descriptor.is_some_and(|descriptor| unsafe { descriptor.as_ref() }.is_irrevocable())
    }

    /// Ends the transaction, if nothing that it has read was changed since. Else as an error of [`load`](Words::load). From when
    /// it has ended nobody finds what is in `freed`: each is dropped once no attempt can be reading there.
    ///
    /// # Safety
    ///
    /// As for [`make_irrevocable`](Words::make_irrevocable). What is in `freed` may be dropped by any thread with `drop`.
    #[inline(always)]
    pub unsafe fn commit(&mut self, freed: &mut Vec<*mut ()>, drop: unsafe fn(*mut ())) -> bool {
        // SAFETY: as the caller says.
        let descriptor = unsafe { self.get() };
        if !descriptor.commit() {
            return false;
        }
        if !freed.is_empty() {
            descriptor.bury(freed, drop);
        }
        self.close();
        true
    }

    #[inline(always)]
    fn close(&mut self) {
        if let Some(descriptor) = self.descriptor.take() {
            // SAFETY: from `keep`, and we have forgotten it.
            unsafe { Mine::kept(descriptor) }.done();
        }
    }

    /// The attempt is to come to nothing, because the program wants so.
    ///
    /// # Panics
    ///
    /// It is irrevocable.
    ///
    /// # Safety
    ///
    /// As for [`make_irrevocable`](Words::make_irrevocable).
    pub unsafe fn refuse(&mut self) {
        assert!(!self.is_irrevocable(), "an irrevocable transaction cannot be aborted");
        // SAFETY: as the caller says.
        let _ = unsafe { self.get().lose(Cause::Explicit) };
    }

    /// After an attempt has failed: undoes it, and begins the next one after a pause. Why it has failed.
    ///
    /// # Safety
    ///
    /// It is in a transaction, which this thread has begun. Words that were written are there still.
    pub unsafe fn again(&mut self) -> Cause {
        // SAFETY: as the caller says.
        let descriptor = unsafe { self.get() };
        let cause = descriptor.cause();
        descriptor.again();
        cause
    }

    /// After an attempt has failed: undoes it, and ends the transaction without success. Why it has failed.
    ///
    /// # Safety
    ///
    /// As for [`again`](Words::again).
    pub unsafe fn give_up(&mut self) -> Cause {
        // SAFETY: as the caller says.
        let descriptor = unsafe { self.get() };
        let cause = descriptor.cause();
        descriptor.give_up(cause);
        self.close();
        cause
    }
}

impl Default for Words {
    fn default() -> Self {
        Words::new()
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Words").field("is_open", &self.is_open()).finish()
    }
}
