//! Transactions on arbitrary words of memory: the basis of bindings for other languages.
//!
//! Such memory has no room for locks. The locks are in a table, and the address of a word selects
//! its lock:
//!
//! ```text
//!   address   63 ......... 25 24 ............ 5 4 ... 3 2 ... 0
//!             +--------------+-----------------+-------+-------+
//!             |              |   lock index    | word  | byte  |
//!             +--------------+-----------------+-------+-------+
//! ```
//!
//! Four adjacent words share a lock, and so do words 32 MiB apart. Felber, Fetzer, Riegel, *Dynamic
//! performance tuning of word-based software transactional memory*, 2008, section 3: four words per
//! lock and 2^20 locks are TinySTM's sizes, too.
//!
//! This module does not check the order of calls: see the safety section of each function.

use crate::counter::Cause;
pub use crate::descriptor::Front;
use crate::descriptor::{Abort, Current, CurrentPlace, Descriptor, Mode};
use crate::global::GLOBAL;
use crate::lock::{Lock, VERSION_MAX};
use crate::pause::pause;
use crate::place::Place;
use corebeat_sync::asymmetric;
use std::fmt;
use std::ptr::{self, NonNull};

/// Number of locks; few under Miri, which keeps state for each one.
const LOCKS: usize = if cfg!(miri) { 8 } else { 1 << 20 };
/// Number of address bits within the memory of one lock.
const STRIPE_BITS: u32 = 5;

// As in `stm_inline.h` of corebeat-c.
const _: () = assert!(STRIPE_BITS == 5 && (cfg!(miri) || LOCKS - 1 == 0xfffff));

/// All zero: unused pages of the table take no memory.
pub(crate) static TABLE: [Lock; LOCKS] = [const { Lock::new() }; LOCKS];

#[inline(always)]
fn lock_of(word: *const usize) -> &'static Lock {
    &TABLE[(word.addr() >> STRIPE_BITS) % LOCKS]
}

/// Never written.
struct Closed(Front);

// SAFETY: no thread changes it.
unsafe impl Sync for Closed {}

static CLOSED: Closed = Closed(Front::closed());

/// Returns the front of a thread without an open transaction. Code that uses a [`Front`] finds that
/// it must call a function.
pub const fn closed() -> *const Front {
    &raw const CLOSED.0
}

/// Writes to each page of the locks, so that no later transaction waits for the system to supply
/// it: 8 MiB of memory, in large pages if the system has them. The locks stay as they are. The
/// system supplies all pages at once, on the NUMA node of the calling thread unless a policy states
/// otherwise. Without this call, it supplies each page at its first use, on the node of that use.
///
/// Also registers the process for free fences, as the first transaction of a process does. Linux
/// does so at once while the process has one thread. Later it takes some 10 ms, a grace period of
/// the kernel, in which the first transactions of all threads wait.
pub fn prepare() {
    /// At most the size of the system's pages.
    const PAGE: usize = 4096;
    asymmetric::heavy_fence();
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let table = (&raw const TABLE).cast_mut();
        let skipped = table.cast::<u8>().align_offset(PAGE);
        let bytes = size_of_val(&TABLE).saturating_sub(skipped);
        // The system serves the large pages within the range. If it has none, nothing is lost.
        // SAFETY: the range begins at a page and is in the table, whose contents stay.
        unsafe {
            libc::madvise(table.wrapping_byte_add(skipped).cast(), bytes, libc::MADV_HUGEPAGE)
        };
    }
    TABLE.iter().step_by(PAGE / size_of::<Lock>()).for_each(Lock::touch);
}

/// Advances the version clock by one, as a commit of another thread may do.
pub fn advance() {
    GLOBAL.clock.advance_to(time() + 1);
}

/// Returns the time of the version clock: values that are written from now on have newer versions.
pub fn time() -> u64 {
    GLOBAL.clock.now().time()
}

/// Transaction state of a thread. While a transaction is open, the thread must not begin another
/// one, nor call [`atomically`](crate::atomically).
pub struct Words {
    /// Set while a transaction is open.
    descriptor: Option<NonNull<Descriptor>>,
    /// Set since the first transaction.
    current: Option<CurrentPlace>,
}

impl Words {
    /// Creates a state without an open transaction.
    pub const fn new() -> Words {
        Words { descriptor: None, current: None }
    }

    /// Returns whether a transaction is open.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.descriptor.is_some()
    }

    /// Begins a transaction; with `only_reads` as a [`snapshot`](crate::snapshot). Until the
    /// transaction ends, code of other languages may use the result as
    /// [`try_load`](Words::try_load) and [`try_store`](Words::try_store) do, under the same
    /// conditions.
    ///
    /// # Panics
    ///
    /// If the thread is in a transaction.
    #[inline(always)]
    pub fn begin(&mut self, only_reads: bool) -> *mut Front {
        let mut current = Current::take();
        self.current = Some(CurrentPlace::own());
        current.get().start(if only_reads { Mode::Snapshot } else { Mode::Full });
        let descriptor = current.into_raw();
        self.descriptor = Some(descriptor);
        // SAFETY: the descriptor lives as long as the thread. The address is not derived from a
        // reference, so it stays valid while `get` creates others.
        unsafe { &raw mut (*descriptor.as_ptr()).front }
    }

    /// Begins a full transaction as [`begin`](Words::begin) does, if no slow path is needed. The
    /// first transaction of this state needs it.
    ///
    /// # Safety
    ///
    /// The earlier transactions of this state were of this thread.
    #[inline(always)]
    pub unsafe fn try_begin(&mut self) -> Option<*mut Front> {
        // SAFETY: guaranteed by the caller.
        let descriptor = unsafe { self.current?.start_plain()? };
        self.descriptor = Some(descriptor);
        // SAFETY: as in `begin`.
        Some(unsafe { &raw mut (*descriptor.as_ptr()).front })
    }

    /// # Safety
    ///
    /// A transaction is open, and this thread has begun it.
    #[inline(always)]
    unsafe fn get(&mut self) -> &mut Descriptor {
        // SAFETY: the caller guarantees that it is open; the descriptor lives as long as the
        // thread, and this is the only access to it (`Current`).
        unsafe { self.descriptor.unwrap_unchecked().as_mut() }
    }

    /// Returns the value of a word.
    ///
    /// # Errors
    ///
    /// The attempt cannot continue: call [`restart`](Words::restart) or
    /// [`abandon`](Words::abandon).
    ///
    /// # Safety
    ///
    /// A transaction is open, this thread has begun it, and no error was returned in this attempt.
    /// The word is aligned, readable, and valid until the end of the attempt; only transactions on
    /// words write it meanwhile.
    #[inline(always)]
    pub unsafe fn load(&mut self, word: *const usize) -> Result<usize, Abort> {
        // SAFETY: `Place` is a pointer-sized atomic; the caller guarantees the rest.
        let value = unsafe { self.get().read(lock_of(word), &*word.cast::<Place>())? };
        Ok(value.expose_provenance())
    }

    /// Returns the value of a word, if no slow path is needed.
    ///
    /// # Safety
    ///
    /// As for [`load`](Words::load).
    #[inline(always)]
    pub unsafe fn try_load(&mut self, word: *const usize) -> Option<usize> {
        // SAFETY: as in `load`.
        let value = unsafe { self.get().try_read::<false>(lock_of(word), &*word.cast::<Place>())? };
        Some(value.expose_provenance())
    }

    /// Writes the bits of a word that are set in `mask`.
    ///
    /// # Errors
    ///
    /// As for [`load`](Words::load).
    ///
    /// # Safety
    ///
    /// As for [`load`](Words::load); the word is writable.
    #[inline(always)]
    pub unsafe fn store(
        &mut self,
        word: *mut usize,
        value: usize,
        mask: usize,
    ) -> Result<(), Abort> {
        // SAFETY: as in `load`.
        let (descriptor, place) = unsafe { (self.get(), &*word.cast::<Place>()) };
        // SAFETY: as in `load`. This attempt may hold the lock because of another word, so every
        // value is logged.
        let old = unsafe { descriptor.acquire(lock_of(word), place, true)? };
        let value = old.expose_provenance() & !mask | value & mask;
        descriptor.write(place, ptr::with_exposed_provenance_mut(value), None);
        Ok(())
    }

    /// Writes as [`store`](Words::store) does, if no slow path is needed. Returns whether the word
    /// was written.
    ///
    /// # Safety
    ///
    /// As for [`store`](Words::store).
    #[inline(always)]
    pub unsafe fn try_store(&mut self, word: *mut usize, value: usize, mask: usize) -> bool {
        // SAFETY: as in `load`.
        let (descriptor, place) = unsafe { (self.get(), &*word.cast::<Place>()) };
        let Some(old) = descriptor.try_acquire::<true>(lock_of(word), place) else { return false };
        let value = old.expose_provenance() & !mask | value & mask;
        descriptor.write(place, ptr::with_exposed_provenance_mut(value), None);
        true
    }

    /// Gives all words that share the lock of this word a new version, as a write does, without an
    /// access to their memory.
    ///
    /// # Errors
    ///
    /// As for [`load`](Words::load).
    ///
    /// # Safety
    ///
    /// A transaction is open, this thread has begun it, and no error was returned in this attempt.
    pub unsafe fn touch(&mut self, word: *const usize) -> Result<(), Abort> {
        /// Logged in place of the word. An undo writes the null that it contains.
        static DUMMY: Place = Place::new(ptr::null_mut());
        // SAFETY: the caller guarantees it; no other value is ever written to the place.
        unsafe { self.get().acquire(lock_of(word), &DUMMY, false) }.map(drop)
    }

    /// Returns the value of a word and the version of its lock, as a separate transaction does.
    /// Waits while another open transaction has written there. The version is never newer than
    /// [`time`].
    ///
    /// # Safety
    ///
    /// As for [`load`](Words::load), except that no transaction needs to be open.
    pub unsafe fn peek(&self, word: *const usize) -> (usize, u64) {
        // SAFETY: as in `load`.
        let (lock, place) = unsafe { (lock_of(word), &*word.cast::<Place>()) };
        // SAFETY: as in `get`.
        let owner = self.descriptor.map(|descriptor| unsafe { descriptor.as_ref() }.owner());
        loop {
            let observed = lock.load();
            if owner == Some(observed) {
                return (place.load().expose_provenance(), time());
            }
            if observed > VERSION_MAX {
                pause(u32::MAX);
                continue;
            }
            if observed > time() {
                // Before the loads of the lock and of the value: later writes have newer versions
                // (`clock`, 3).
                GLOBAL.clock.advance_to(observed);
                continue;
            }
            let value = place.load();
            if lock.is_unchanged(observed) {
                return (value.expose_provenance(), observed);
            }
        }
    }

    /// Writes the bits of a word that are set in `mask`, as a separate transaction, unless its
    /// version is newer than `version_max`. Returns the new version.
    ///
    /// # Errors
    ///
    /// The version of the word, if it is newer; nothing was written.
    ///
    /// # Panics
    ///
    /// If the thread is in a transaction.
    ///
    /// # Safety
    ///
    /// As for [`load`](Words::load), except that no transaction is open; the word is writable.
    pub unsafe fn poke(
        &mut self,
        word: *mut usize,
        value: usize,
        mask: usize,
        version_max: u64,
    ) -> Result<u64, u64> {
        let newer = || {
            let observed = lock_of(word).load();
            (observed <= VERSION_MAX && observed > version_max).then_some(observed)
        };
        if let Some(version) = newer() {
            GLOBAL.clock.advance_to(version);
            return Err(version);
        }
        self.begin(false);
        loop {
            // SAFETY: a transaction is open; the caller guarantees the rest about the word.
            unsafe {
                self.limit(version_max == u64::MAX, version_max);
                if self.store(word, value, mask).is_ok() && self.commit_with::<true>() {
                    return Ok(Current::take().get().version());
                }
                self.restart();
            }
            if let Some(version) = newer() {
                // SAFETY: a transaction is open.
                unsafe { self.abandon() };
                GLOBAL.clock.advance_to(version);
                return Err(version);
            }
        }
    }

    /// Limits this attempt: it fails if it reads a word that is newer than `version_max`
    /// (`u64::MAX`: no limit) or, without `may_extend`, a word that was written after the attempt
    /// began. Has no effect on an irrevocable transaction.
    ///
    /// # Safety
    ///
    /// A transaction is open, this thread has begun it, and no error was returned in this attempt.
    pub unsafe fn limit(&mut self, may_extend: bool, version_max: u64) {
        // SAFETY: the caller guarantees it.
        unsafe { self.get() }.limit(may_extend, version_max);
    }

    /// Makes the transaction irrevocable: it cannot fail any more, and no other transaction commits
    /// a write until it ends.
    ///
    /// # Errors
    ///
    /// As for [`load`](Words::load).
    ///
    /// # Safety
    ///
    /// A transaction is open, this thread has begun it, and no error was returned in this attempt.
    pub unsafe fn make_irrevocable(&mut self) -> Result<(), Abort> {
        // SAFETY: the caller guarantees it.
        unsafe { self.get().make_irrevocable() }
    }

    /// Returns whether another transaction requests that this attempt ends without success. The
    /// attempt then fails at its commit at the latest, unless it is irrevocable.
    pub fn is_killed(&self) -> bool {
        // SAFETY: as in `get`.
        self.descriptor.is_some_and(|descriptor| unsafe { descriptor.as_ref() }.is_killed())
    }

    /// Returns whether no other transaction commits a write until this one ends, because this one
    /// is irrevocable or has failed many times. In the latter case, [`abort`](Words::abort) and
    /// [`restart`](Words::restart) let others commit.
    pub fn withholds_commits(&self) -> bool {
        // SAFETY: as in `get`.
        self.descriptor.is_some_and(|descriptor| unsafe { descriptor.as_ref() }.withholds_commits())
    }

    /// Returns whether an irrevocable transaction is open.
    pub fn is_irrevocable(&self) -> bool {
        // SAFETY: as in `get`.
        self.descriptor.is_some_and(|descriptor| unsafe { descriptor.as_ref() }.is_irrevocable())
    }

    /// Commits the transaction, if no word that it has read has changed. Returns `false` otherwise,
    /// with the same consequences as an error of [`load`](Words::load), also if the attempt failed
    /// before.
    ///
    /// # Safety
    ///
    /// A transaction is open, and this thread has begun it.
    #[inline(always)]
    pub unsafe fn commit(&mut self) -> bool {
        // SAFETY: the caller guarantees it.
        unsafe { self.commit_with::<false>() }
    }

    /// Commits as [`commit`](Words::commit) does, if no slow path is needed; otherwise the
    /// transaction stays open. Returns whether it has committed.
    ///
    /// # Safety
    ///
    /// As for [`commit`](Words::commit).
    #[inline(always)]
    pub unsafe fn try_commit(&mut self) -> bool {
        let Some(current) = self.current else { return false };
        // SAFETY: the caller guarantees it.
        let descriptor = unsafe { self.get() };
        if !descriptor.commit_plain() {
            return false;
        }
        // SAFETY: the transaction has begun in this thread, and is over.
        unsafe { current.put_back(descriptor.into()) };
        self.descriptor = None;
        true
    }

    /// # Safety
    ///
    /// As for [`commit`](Words::commit).
    #[inline(always)]
    unsafe fn commit_with<const ADVANCES: bool>(&mut self) -> bool {
        // SAFETY: the caller guarantees it.
        let is_committed = unsafe { self.get() }.commit::<ADVANCES>();
        if is_committed {
            self.close();
        }
        is_committed
    }

    /// Commits as [`commit`](Words::commit) does. After the commit calls `ended`, before any
    /// destructor runs, and `drop` for each pointer in `freed` once no attempt can read its memory
    /// any more. About 512 pointers wait for that together, or a mebibyte by the sizes that `bytes`
    /// returns; 128 if it returns none.
    ///
    /// # Safety
    ///
    /// As for [`commit`](Words::commit). After the commit, no transaction finds the pointers in
    /// `freed`, and any thread may call `drop` with them, once.
    pub unsafe fn commit_and_free(
        &mut self,
        freed: &mut Vec<*mut ()>,
        bytes: impl Fn(*mut ()) -> Option<usize>,
        drop: unsafe fn(*mut ()),
        ended: impl FnOnce(),
    ) -> bool {
        // SAFETY: the caller guarantees it.
        let descriptor = unsafe { self.get() };
        if !descriptor.commit::<false>() {
            return false;
        }
        if !freed.is_empty() {
            // SAFETY: the caller guarantees it.
            unsafe { descriptor.retire(freed, bytes, drop) };
        }
        ended();
        self.close();
        true
    }

    #[inline(always)]
    fn close(&mut self) {
        if let Some(descriptor) = self.descriptor.take() {
            // SAFETY: the pointer comes from `into_raw` and was taken out of this state.
            unsafe { Current::from_raw(descriptor) }.finish();
        }
    }

    /// Marks the attempt as aborted by the program.
    ///
    /// # Panics
    ///
    /// If the transaction is irrevocable.
    ///
    /// # Safety
    ///
    /// As for [`make_irrevocable`](Words::make_irrevocable).
    pub unsafe fn abort(&mut self) {
        assert!(!self.is_irrevocable(), "an irrevocable transaction cannot be aborted");
        // SAFETY: the caller guarantees it.
        let _ = unsafe { self.get().fail(Cause::Explicit) };
    }

    /// Undoes a failed attempt and begins the next one after a pause. Returns the cause of the
    /// failure.
    ///
    /// # Safety
    ///
    /// A transaction is open, and this thread has begun it. Words that were written are still
    /// writable.
    pub unsafe fn restart(&mut self) -> Cause {
        // SAFETY: the caller guarantees it.
        let descriptor = unsafe { self.get() };
        let cause = descriptor.cause();
        descriptor.restart();
        cause
    }

    /// Undoes a failed attempt and ends the transaction without success. Returns the cause of the
    /// failure.
    ///
    /// # Safety
    ///
    /// As for [`restart`](Words::restart).
    pub unsafe fn abandon(&mut self) -> Cause {
        // SAFETY: the caller guarantees it.
        let descriptor = unsafe { self.get() };
        let cause = descriptor.cause();
        descriptor.abandon(cause);
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
