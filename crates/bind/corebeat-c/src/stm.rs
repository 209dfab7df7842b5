//! `tinystm/stm.h` and its companions: the API of TinySTM on the transactions of corebeat-stm.
//!
//! Felber, Fetzer, Riegel, *Dynamic performance tuning of word-based software transactional
//! memory*, 2008. Names and prototypes are those of its version 1.0.4 and later.
//!
//! # Jumping
//!
//! When an attempt fails, the program continues at its call of `sigsetjmp`. `lost` jumps there
//! (`env`), which discards the frames of C, and the frames of this crate from the exported
//! function to `lost`. At that time the latter own no values with destructors, only numbers and
//! references, and the engine and the allocator have returned. No destructor is skipped, as Rust
//! requires (Reference, *Behavior considered undefined*, on the Rust runtime).

use crate::block;
use crate::env::Env;
use crate::thread_transaction;
use corebeat_stm::contention::{self, Backoff, ContentionManager, Greedy, Karma, Suicide};
use corebeat_stm::word::{Words, advance, prepare, time};
use corebeat_stm::{Aborts, Cause, reclaim};
use corebeat_sync::fork::ForkMutex;
use std::ffi::{
    CStr, c_char, c_double, c_int, c_long, c_short, c_uchar, c_uint, c_ulong, c_ushort, c_void,
};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

#[cfg(not(target_endian = "little"))]
compile_error!("parts of words are supported only on little-endian processors");

/// Limit on the callbacks for one event, and on the keys; the same as in TinySTM.
const MODULES_MAX: usize = 7;

/// `stm_tx_attr_t`: bits.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct stm_tx_attr_t(i32);

impl stm_tx_attr_t {
    const READ_ONLY: i32 = 1 << 16;
    const NO_RETRY: i32 = 1 << 18;

    /// The position in the program.
    pub(crate) fn id(self) -> c_int {
        self.0 & 0xffff
    }
}

/// The result of `sigsetjmp` after a failed attempt.
mod reason {
    use super::{Cause, c_int};

    pub(super) const EXPLICIT: c_int = 1 << 5;
    pub(super) const NO_RETRY: c_int = EXPLICIT | 1 << 8;
    const IMPLICIT: c_int = 1 << 6;
    /// The instrumented code path is used; there is no other one.
    const INSTRUMENTED: c_int = 1;

    pub(super) fn of(cause: Cause) -> c_int {
        let detail = match cause {
            Cause::Explicit => return EXPLICIT | INSTRUMENTED,
            Cause::ReadConflict => 0x3,
            Cause::WriteConflict => 0x4,
            Cause::Extension => 0x5,
            Cause::Validation => 0x7,
            Cause::Gate => 0x9,
            Cause::Killed => 0xa,
            _ => 0xf,
        };
        IMPLICIT | detail << 8 | INSTRUMENTED
    }
}

/// `struct stm_tx`: the transactions of a thread.
pub struct stm_tx {
    env: Env,
    words: Words,
    attr: stm_tx_attr_t,
    /// Nesting depth.
    nesting: c_uint,
    /// Whether the last transaction failed without a restart.
    is_aborted: bool,
    /// Whether callbacks on_start are running, before the program calls `sigsetjmp`.
    is_starting: bool,
    /// Blocks that this attempt has allocated and freed.
    allocated: Vec<*mut ()>,
    freed: Vec<*mut ()>,
    /// For each freed block, the arguments of `stm_free2`: the number of words at its begin that
    /// keep their version, and its size in bytes.
    parts: Vec<(usize, usize)>,
    data: [*mut c_void; MODULES_MAX],
    stats: Stats,
}

#[derive(Default)]
struct Stats {
    commits: u64,
    /// The retries among them.
    late_commits: u64,
    aborts: u64,
    /// Transactions that failed at least once and at least twice.
    aborted: u64,
    aborted_twice: u64,
    causes: Aborts,
    /// Retries of this transaction.
    retries: u64,
    retries_max: u64,
    /// The minimum over transactions with retries; 0 without any.
    late_retries_min: u64,
}

/// Whether a thread has used a unit load or the clock.
static HAS_UNITS: AtomicBool = AtomicBool::new(false);
/// The same, after the fence that makes it visible to all threads that free blocks.
static IS_KNOWN: AtomicBool = AtomicBool::new(false);

/// Totals of ended threads.
static COMMITS: AtomicU64 = AtomicU64::new(0);
static ABORTS: AtomicU64 = AtomicU64::new(0);
static RETRIES_MAX: AtomicU64 = AtomicU64::new(0);

/// Ends the process because of misuse that cannot be reported.
#[cold]
pub(crate) fn die(what: &str) -> ! {
    eprintln!("corebeat: {what}");
    std::process::abort()
}

/// The transaction of this thread. Returns `None` after a failure without a restart that the
/// program has not handled yet.
///
/// # Safety
///
/// `tx` is null, or the result of `stm_init_thread` on this thread.
#[inline(always)]
unsafe fn inside<'a>(tx: *mut stm_tx) -> Option<&'a mut stm_tx> {
    // SAFETY: guaranteed by the caller.
    match unsafe { tx.as_mut() } {
        Some(tx) if tx.words.is_open() => Some(tx),
        other => outside(other),
    }
}

#[cold]
fn outside(tx: Option<&mut stm_tx>) -> Option<&mut stm_tx> {
    match tx {
        None => die("this thread has no transactions: call stm_init_thread first"),
        Some(tx) if tx.is_aborted => None,
        Some(_) => die("transactional access outside a transaction: call stm_start first"),
    }
}

/// Handles a failed attempt. Returns only if the transaction is not restarted.
///
/// # Safety
///
/// As for [`inside`]. The thread is in a transaction. The function that called `sigsetjmp`, if any,
/// has not returned. No frame from here to that function owns a value with a destructor.
#[cold]
#[inline(never)]
unsafe fn lost(tx: *mut stm_tx, why: c_int) {
    // SAFETY: guaranteed by the caller.
    let (retries, why) = unsafe { (*tx).prepare(why) };
    tell(Event::Abort);
    if retries {
        // SAFETY: guaranteed by the caller.
        if unsafe { (*tx).is_starting } {
            die("a transaction failed in a callback on_start, before sigsetjmp: do not access \
                 transactional memory there");
        }
        // SAFETY: see the documentation of this module.
        unsafe { Env::jump(&raw mut (*tx).env, why) };
    }
}

impl stm_tx {
    /// Counts a commit, and ends the transaction.
    #[inline(always)]
    fn end_committed(&mut self) {
        self.nesting = 0;
        self.allocated.clear();
        self.stats.commits += 1;
    }

    /// Undoes the attempt and starts the next one, if any. Returns the result of `sigsetjmp`.
    ///
    /// # Safety
    ///
    /// The thread is in this transaction.
    unsafe fn prepare(&mut self, why: c_int) -> (bool, c_int) {
        let retries = self.attr.0 & stm_tx_attr_t::NO_RETRY == 0
            && why & reason::NO_RETRY != reason::NO_RETRY;
        if !retries {
            // Before destructors run.
            thread_transaction::close();
        }
        // SAFETY: guaranteed by the caller. Words that the attempt has written or allocated are
        // still mapped.
        let cause = unsafe { if retries { self.words.restart() } else { self.words.abandon() } };
        if cause == Cause::Snapshot {
            // The transaction is not read-only.
            self.attr.0 &= !stm_tx_attr_t::READ_ONLY;
        }
        // SAFETY: from `stm_malloc`; no other thread has obtained the address.
        self.allocated.drain(..).for_each(|block| unsafe { block::free(block) });
        self.freed.clear();
        self.parts.clear();
        self.nesting = c_uint::from(retries);
        self.is_aborted = !retries;
        self.stats.abort(cause);
        (retries, why | reason::of(cause))
    }

    /// Assigns a new version to freed blocks if the program uses [`stm_unit_load`]: such a load may
    /// have obtained a block before it was unlinked, and it checks only the version. Returns
    /// whether this succeeded.
    ///
    /// # Safety
    ///
    /// The thread is in this transaction.
    unsafe fn outdate(&mut self) -> bool {
        // This thread holds the lock of the link to the block; otherwise it must not free it.
        // SeqCst: either this fence or the fence in `unit` comes first. Either this thread reads
        // that unit loads exist, or they find the lock held and wait.
        fence(SeqCst);
        if HAS_UNITS.load(Relaxed) {
            for (block, (index, size)) in self.freed.iter().zip(&self.parts) {
                for at in (*index..*size).step_by(size_of::<usize>()) {
                    // SAFETY: guaranteed by the caller.
                    if unsafe { self.words.touch(block.cast::<usize>().wrapping_byte_add(at)) }
                        .is_err()
                    {
                        return false;
                    }
                }
            }
        }
        self.parts.clear();
        true
    }
}

impl Stats {
    fn abort(&mut self, cause: Cause) {
        self.aborts += 1;
        self.retries += 1;
        self.aborted += u64::from(self.retries == 1);
        self.aborted_twice += u64::from(self.retries == 2);
        self.retries_max = self.retries_max.max(self.retries);
        self.causes.add(cause, 1);
    }

    /// Counts a commit after failed attempts.
    fn commit_late(&mut self) {
        let is_first = self.late_commits == 0;
        self.late_retries_min =
            if is_first { self.retries } else { self.late_retries_min.min(self.retries) };
        self.late_commits += 1;
        self.retries = 0;
    }

    fn retries_min(&self) -> u64 {
        if self.late_commits < self.commits { 0 } else { self.late_retries_min }
    }

    /// By the names of TinySTM.
    fn named(&self, name: &[u8]) -> Option<u64> {
        Some(match name {
            b"nb_commits" => self.commits,
            b"nb_aborts" => self.aborts,
            b"nb_aborts_1" => self.aborted,
            b"nb_aborts_2" => self.aborted_twice,
            b"nb_aborts_locked_read" => self.causes.read_conflict,
            b"nb_aborts_locked_write" => self.causes.write_conflict,
            b"nb_aborts_validate_read" => self.causes.extension,
            b"nb_aborts_validate_commit" => self.causes.validation,
            b"nb_aborts_killed" => self.causes.killed,
            b"max_retries" | b"nb_retries_max" => self.retries_max,
            b"nb_retries_min" => self.retries_min(),
            _ => return None,
        })
    }
}

/// Events that modules can register for.
#[derive(Clone, Copy)]
enum Event {
    ThreadInit,
    ThreadExit,
    Start,
    Precommit,
    Commit,
    Abort,
}

pub(crate) type Callback = Option<unsafe extern "C" fn(*mut c_void)>;

#[derive(Clone, Copy)]
struct Call {
    function: Callback,
    argument: *mut c_void,
}

// SAFETY: the header permits calls from any thread.
unsafe impl Send for Call {}

const NONE: Call = Call { function: None, argument: null_mut() };

static MODULES: ForkMutex<[[Call; MODULES_MAX]; 6]> = ForkMutex::new([[NONE; MODULES_MAX]; 6]);
static HAS_MODULES: AtomicBool = AtomicBool::new(false);
static KEYS: AtomicUsize = AtomicUsize::new(0);

#[inline(always)]
fn tell(event: Event) {
    // Relaxed: modules are registered before threads start transactions.
    if HAS_MODULES.load(Relaxed) {
        tell_modules(event);
    }
}

/// # Safety
///
/// `tx` is the result of `stm_init_thread` on this thread.
#[cold]
unsafe fn tell_start(tx: *mut stm_tx) {
    // SAFETY: guaranteed by the caller.
    unsafe { (*tx).is_starting = true };
    tell_modules(Event::Start);
    // SAFETY: as above.
    unsafe { (*tx).is_starting = false };
}

#[cold]
fn tell_modules(event: Event) {
    // A copy, because no lock may be held while a callback of C aborts the transaction.
    let calls: [Call; MODULES_MAX] = MODULES.lock()[event as usize];
    for call in calls {
        if let Some(function) = call.function {
            // SAFETY: C has passed both to `stm_register` for this purpose.
            unsafe { function(call.argument) };
        }
    }
}

/// See `stm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stm_init() {
    prepare();
}

/// See `stm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stm_exit() {
    let tx = thread_transaction::get();
    // SAFETY: null or a result of `stm_init_thread`.
    if !tx.is_null() && unsafe { (*tx).words.is_open() } {
        die("stm_exit in a transaction: call stm_commit first");
    }
    reclaim();
    block::free_kept();
}

/// See `stm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stm_init_thread() -> *mut stm_tx {
    if thread_transaction::get().is_null() {
        let mut tx = Box::new(stm_tx {
            env: Env::new(),
            words: Words::new(),
            attr: stm_tx_attr_t(0),
            nesting: 0,
            is_aborted: false,
            is_starting: false,
            allocated: Vec::new(),
            freed: Vec::new(),
            parts: Vec::new(),
            data: [null_mut(); MODULES_MAX],
            stats: Stats::default(),
        });
        tx.env.mark();
        thread_transaction::set(Box::into_raw(tx));
        tell(Event::ThreadInit);
    }
    thread_transaction::get()
}

/// See `stm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stm_current_tx() -> *mut stm_tx {
    thread_transaction::get()
}

unsafe fn exit_thread(tx: *mut stm_tx) {
    if tx.is_null() {
        return;
    }
    // SAFETY: a result of `stm_init_thread`.
    if unsafe { (*tx).words.is_open() } {
        die("stm_exit_thread in a transaction: call stm_commit first");
    }
    tell(Event::ThreadExit);
    thread_transaction::set(null_mut());
    // SAFETY: a result of `stm_init_thread` that is not used afterwards.
    let tx = unsafe { Box::from_raw(tx) };
    COMMITS.fetch_add(tx.stats.commits, Relaxed);
    ABORTS.fetch_add(tx.stats.aborts, Relaxed);
    RETRIES_MAX.fetch_max(tx.stats.retries_max, Relaxed);
    block::free_kept();
}

#[inline(always)]
unsafe fn start(tx: *mut stm_tx, attr: stm_tx_attr_t) -> *mut c_void {
    // SAFETY: null or a result of `stm_init_thread`.
    if let Some(it) = unsafe { tx.as_mut() }
        && it.nesting == 0
        && attr.0 & stm_tx_attr_t::READ_ONLY == 0
        && !HAS_MODULES.load(Relaxed)
        // SAFETY: all transactions of the object are of this thread.
        && let Some(front) = unsafe { it.words.try_begin() }
    {
        thread_transaction::open(front);
        it.nesting = 1;
        it.attr = attr;
        it.is_aborted = false;
        return (&raw mut it.env).cast();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { start_slowly(tx, attr) }
}

/// Starts with callbacks, in another transaction, or with an unusual state of the thread. Read-only
/// transactions always start here.
#[inline(never)]
unsafe extern "C" fn start_slowly(tx: *mut stm_tx, attr: stm_tx_attr_t) -> *mut c_void {
    // SAFETY: null or a result of `stm_init_thread`.
    let Some(it) = (unsafe { tx.as_mut() }) else {
        die("stm_start before stm_init_thread: call that first, in each thread")
    };
    it.nesting += 1;
    if it.nesting > 1 {
        return null_mut();
    }
    it.attr = attr;
    it.is_aborted = false;
    thread_transaction::open(it.words.begin(attr.0 & stm_tx_attr_t::READ_ONLY != 0));
    if HAS_MODULES.load(Relaxed) {
        // SAFETY: not null; the reference is not used after a callback of C, which may use the same
        // object.
        unsafe { tell_start(tx) };
    }
    // SAFETY: as above.
    unsafe { (&raw mut (*tx).env).cast() }
}

#[inline(always)]
unsafe fn commit(tx: *mut stm_tx) -> c_int {
    // SAFETY: null or a result of `stm_init_thread`.
    if let Some(it) = unsafe { tx.as_mut() }
        && it.nesting == 1
        && it.freed.is_empty()
        && it.stats.retries == 0
        && !HAS_MODULES.load(Relaxed)
        // SAFETY: the nesting depth implies that the thread is in a transaction.
        && unsafe { it.words.try_commit() }
    {
        thread_transaction::close();
        it.end_committed();
        return 1;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { commit_slowly(tx) }
}

/// Commits with callbacks or freed blocks, in another transaction, after failed attempts, or if the
/// reads need a validation.
#[inline(never)]
unsafe extern "C" fn commit_slowly(tx: *mut stm_tx) -> c_int {
    // SAFETY: null or a result of `stm_init_thread`.
    let Some(it) = (unsafe { inside(tx) }) else { return 0 };
    if it.nesting > 1 {
        it.nesting -= 1;
        return 1;
    }
    tell(Event::Precommit);
    // Reloaded, because a callback of C may have used and aborted the transaction.
    // SAFETY: null or a result of `stm_init_thread`.
    let Some(it) = (unsafe { inside(tx) }) else { return 0 };
    // SAFETY: the thread is in a transaction; freed blocks are from `malloc` and no longer used.
    let is_committed = unsafe {
        (it.freed.is_empty() || it.outdate())
            && it.words.commit_and_free(
                &mut it.freed,
                |block| block::usable(block),
                block::free,
                thread_transaction::close,
            )
    };
    if is_committed {
        it.end_committed();
        if it.stats.retries != 0 {
            it.stats.commit_late();
        }
        tell(Event::Commit);
        return 1;
    }
    // SAFETY: no value in this frame has a destructor.
    unsafe { lost(tx, 0) };
    0
}

unsafe fn abort(tx: *mut stm_tx, why: c_int) {
    // SAFETY: null or a result of `stm_init_thread`.
    let Some(it) = (unsafe { inside(tx) }) else { return };
    if it.words.is_irrevocable() {
        die("stm_abort in an irrevocable transaction, which cannot be undone");
    }
    // SAFETY: the thread is in a transaction; no value in this frame has a destructor.
    unsafe {
        it.words.abort();
        lost(tx, why);
    }
}

// The slow paths of loads and stores are separate functions of C, which never unwind: so calls of
// them can be jumps, and the fast paths need no stack frame.

/// Reads a word, if no slow path is needed.
#[inline(always)]
unsafe fn try_load(tx: *mut stm_tx, word: *const usize) -> Option<usize> {
    // SAFETY: C passes null or a result of `stm_init_thread`, and a word of transactional memory.
    unsafe {
        match tx.as_mut() {
            Some(it) if it.words.is_open() => it.words.try_load(word),
            _ => None,
        }
    }
}

#[inline(always)]
unsafe fn load(tx: *mut stm_tx, word: *const usize) -> usize {
    // SAFETY: as there.
    unsafe {
        match try_load(tx, word) {
            Some(value) => value,
            None => load_slowly(tx, word),
        }
    }
}

#[inline(never)]
unsafe extern "C" fn load_slowly(tx: *mut stm_tx, word: *const usize) -> usize {
    // SAFETY: null or a result of `stm_init_thread`.
    let Some(it) = (unsafe { inside(tx) }) else { return 0 };
    // SAFETY: C passes a word of transactional memory.
    match unsafe { it.words.load(word) } {
        Ok(value) => value,
        Err(_) => {
            // SAFETY: no value in this frame has a destructor.
            unsafe { lost(tx, 0) };
            0
        }
    }
}

/// Writes the bits of a word that are set in `mask`, if no slow path is needed. Returns whether
/// the word was written.
#[inline(always)]
unsafe fn try_store(tx: *mut stm_tx, word: *mut usize, value: usize, mask: usize) -> bool {
    // SAFETY: C passes null or a result of `stm_init_thread`, and a word of transactional memory.
    unsafe {
        match tx.as_mut() {
            Some(it) if it.words.is_open() => it.words.try_store(word, value, mask),
            _ => false,
        }
    }
}

#[inline(always)]
unsafe fn store2(tx: *mut stm_tx, word: *mut usize, value: usize, mask: usize) {
    // SAFETY: as there.
    unsafe {
        if !try_store(tx, word, value, mask) {
            store_slowly(tx, word, value, mask);
        }
    }
}

#[inline(never)]
unsafe extern "C" fn store_slowly(tx: *mut stm_tx, word: *mut usize, value: usize, mask: usize) {
    // SAFETY: null or a result of `stm_init_thread`.
    let Some(it) = (unsafe { inside(tx) }) else { return };
    // SAFETY: C passes a word of transactional memory.
    if unsafe { it.words.store(word, value, mask) }.is_err() {
        // SAFETY: no value in this frame has a destructor.
        unsafe { lost(tx, 0) };
    }
}

#[inline(always)]
unsafe fn store(tx: *mut stm_tx, word: *mut usize, value: usize) {
    // SAFETY: as there.
    unsafe { store2(tx, word, value, usize::MAX) };
}

/// See `stm_inline.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_stm_load(word: *const usize) -> usize {
    // SAFETY: C passes a word of transactional memory.
    unsafe { load_slowly(thread_transaction::get(), word) }
}

/// See `stm_inline.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_stm_store2(word: *mut usize, value: usize, mask: usize) {
    // SAFETY: C passes a word of transactional memory.
    unsafe { store_slowly(thread_transaction::get(), word, value, mask) }
}

/// To be called before a read outside transactions.
fn unit() {
    // Acquire: pairs with Release below, so that the fence of whichever thread precedes everything
    // that follows.
    if !IS_KNOWN.load(Acquire) {
        HAS_UNITS.store(true, Relaxed);
        // SeqCst: pairs with the fence in `outdate`. The locks are read afterwards.
        fence(SeqCst);
        IS_KNOWN.store(true, Release);
    }
}

/// See `stm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stm_get_clock() -> usize {
    unit();
    time() as usize
}

/// See `stm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stm_inc_clock() {
    advance();
}

/// See `stm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_unit_load(word: *const usize, timestamp: *mut usize) -> usize {
    unit();
    let none = Words::new();
    // SAFETY: null or a result of `stm_init_thread`.
    let words = unsafe { thread_transaction::get().as_ref() }.map_or(&none, |tx| &tx.words);
    // SAFETY: C passes a word of transactional memory.
    let (value, version) = unsafe { words.peek(word) };
    if !timestamp.is_null() {
        // SAFETY: C passes a valid address or null.
        unsafe { timestamp.write(version as usize) };
    }
    value
}

/// See `stm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_unit_store2(
    word: *mut usize,
    value: usize,
    mask: usize,
    timestamp: *mut usize,
) -> c_int {
    unit();
    // SAFETY: null or a result of `stm_init_thread`.
    if unsafe { active(thread_transaction::get()) } != 0 {
        die("stm_unit_store in a transaction: use stm_store there");
    }
    // SAFETY: C passes a valid address or null.
    let version_max = unsafe { timestamp.as_ref() }.map_or(u64::MAX, |version| *version as u64);
    // SAFETY: C passes a word of transactional memory; the thread is in no transaction.
    let done = unsafe { Words::new().poke(word, value, mask, version_max) };
    if !timestamp.is_null() {
        // SAFETY: C passes a valid address or null.
        unsafe { timestamp.write(done.unwrap_or_else(|newer| newer) as usize) };
    }
    done.is_ok().into()
}

/// See `stm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_unit_store(
    word: *mut usize,
    value: usize,
    timestamp: *mut usize,
) -> c_int {
    // SAFETY: as there.
    unsafe { stm_unit_store2(word, value, usize::MAX, timestamp) }
}

unsafe fn set_extension(tx: *mut stm_tx, enable: c_int, timestamp: *mut usize) {
    // SAFETY: null or a result of `stm_init_thread`.
    let Some(it) = (unsafe { inside(tx) }) else { return };
    // SAFETY: C passes a valid address or null.
    let version_max = unsafe { timestamp.as_ref() }.map_or(u64::MAX, |version| *version as u64);
    // SAFETY: the thread is in a transaction.
    unsafe { it.words.limit(enable != 0, version_max) };
}

unsafe fn active(tx: *mut stm_tx) -> c_int {
    // SAFETY: null or a result of `stm_init_thread`.
    unsafe { tx.as_ref() }.is_some_and(|tx| tx.words.is_open()).into()
}

unsafe fn aborted(tx: *mut stm_tx) -> c_int {
    // SAFETY: null or a result of `stm_init_thread`.
    unsafe { tx.as_ref() }.is_some_and(|tx| tx.is_aborted).into()
}

unsafe fn killed(tx: *mut stm_tx) -> c_int {
    // SAFETY: null or a result of `stm_init_thread`.
    unsafe { tx.as_ref() }.is_some_and(|tx| tx.words.is_killed()).into()
}

unsafe fn irrevocable(tx: *mut stm_tx) -> c_int {
    // SAFETY: null or a result of `stm_init_thread`.
    unsafe { tx.as_ref() }.is_some_and(|tx| tx.words.is_irrevocable()).into()
}

/// Whether the transaction of this thread, which has failed many times, keeps all others from
/// committing.
pub(crate) fn withholds_commits() -> bool {
    // SAFETY: null or a result of `stm_init_thread`.
    unsafe { thread_transaction::get().as_ref() }.is_some_and(|tx| tx.words.withholds_commits())
}

unsafe fn set_irrevocable(tx: *mut stm_tx, serial: c_int) -> c_int {
    if serial != 0 {
        die("stm_set_irrevocable(1): others can be kept from committing, not from running; use 0");
    }
    // SAFETY: null or a result of `stm_init_thread`.
    let Some(it) = (unsafe { inside(tx) }) else { return 0 };
    // SAFETY: the thread is in a transaction.
    if unsafe { it.words.make_irrevocable() }.is_ok() {
        return 1;
    }
    // SAFETY: no value in this frame has a destructor.
    unsafe { lost(tx, 0) };
    0
}

unsafe fn get_env(tx: *mut stm_tx) -> *mut c_void {
    // SAFETY: null or a result of `stm_init_thread`.
    match unsafe { tx.as_mut() } {
        Some(tx) if tx.nesting == 0 => (&raw mut tx.env).cast(),
        _ => null_mut(),
    }
}

unsafe fn get_attributes(tx: *mut stm_tx) -> stm_tx_attr_t {
    // SAFETY: null or a result of `stm_init_thread`.
    unsafe { tx.as_ref() }.map_or(stm_tx_attr_t(0), |tx| tx.attr)
}

/// A name from C; null matches no name.
///
/// # Safety
///
/// The pointer is null or a valid string.
unsafe fn text<'a>(name: *const c_char) -> &'a [u8] {
    // SAFETY: guaranteed by the caller.
    if name.is_null() { b"" } else { unsafe { CStr::from_ptr(name) }.to_bytes() }
}

/// Writes a named value to an address from C. Returns 1, or 0 for an unknown name or a null
/// address.
unsafe fn put<T>(to: *mut c_void, value: Option<T>) -> c_int {
    let Some(value) = value.filter(|_| !to.is_null()) else { return 0 };
    // SAFETY: C passes a valid address of this type.
    unsafe { to.cast::<T>().write(value) };
    1
}

/// # Safety
///
/// As for [`inside`].
unsafe fn statistic(tx: *mut stm_tx, name: &[u8]) -> Option<u64> {
    // SAFETY: guaranteed by the caller.
    unsafe { tx.as_ref() }?.stats.named(name)
}

unsafe fn get_stats(tx: *mut stm_tx, name: *const c_char, to: *mut c_void) -> c_int {
    // SAFETY: C passes a valid string and a valid address.
    unsafe { put(to, statistic(tx, text(name)).map(|value| value as c_uint)) }
}

/// Checks a key from C.
fn key(key: c_int) -> usize {
    match usize::try_from(key) {
        Ok(key) if key < KEYS.load(Relaxed) => key,
        _ => die("invalid key: use a result of stm_create_specific"),
    }
}

unsafe fn get_specific(tx: *mut stm_tx, which: c_int) -> *mut c_void {
    // SAFETY: null or a result of `stm_init_thread`.
    unsafe { tx.as_ref() }.map_or(null_mut(), |tx| tx.data[key(which)])
}

unsafe fn set_specific(tx: *mut stm_tx, which: c_int, data: *mut c_void) {
    // SAFETY: null or a result of `stm_init_thread`.
    match unsafe { tx.as_mut() } {
        Some(tx) => tx.data[key(which)] = data,
        None => die("stm_set_specific before stm_init_thread"),
    }
}

/// Rounds to whole words, because the words at both ends are accessed as a whole.
fn whole(size: usize) -> usize {
    size.checked_next_multiple_of(8).unwrap_or(usize::MAX)
}

unsafe fn malloc(tx: *mut stm_tx, size: usize) -> *mut c_void {
    // SAFETY: any size is valid.
    unsafe { keep(tx, block::allocate(whole(size))) }
}

unsafe fn calloc(tx: *mut stm_tx, count: usize, size: usize) -> *mut c_void {
    // SAFETY: any size is valid.
    unsafe { keep(tx, libc::calloc(1, count.checked_mul(size).map_or(usize::MAX, whole))) }
}

/// Records an allocation, which is freed if the transaction fails. Outside transactions nothing is
/// recorded.
unsafe fn keep(tx: *mut stm_tx, block: *mut c_void) -> *mut c_void {
    // SAFETY: null or a result of `stm_init_thread`.
    if let Some(tx) = unsafe { tx.as_mut() }
        && tx.words.is_open()
        && !block.is_null()
    {
        tx.allocated.push(block.cast());
    }
    block
}

unsafe fn free2(tx: *mut stm_tx, block: *mut c_void, index: usize, size: usize) {
    if block.is_null() {
        return;
    }
    // SAFETY: null or a result of `stm_init_thread`.
    match unsafe { tx.as_mut() } {
        Some(tx) if tx.words.is_open() => {
            tx.freed.push(block.cast());
            tx.parts.push((index, size));
        }
        // A failed transaction must restore the contents.
        Some(tx) if tx.is_aborted => {}
        // SAFETY: C does not use the block afterwards.
        _ => unsafe { libc::free(block) },
    }
}

unsafe fn free1(tx: *mut stm_tx, block: *mut c_void, size: usize) {
    // SAFETY: as there.
    unsafe { free2(tx, block, 0, size) };
}

/// Defines each function twice: for the transaction of this thread, and for an explicit one.
macro_rules! calls {
    ($(
        $name:ident, $name_tx:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $does:ident;
    )*) => {$(
        /// See `stm.h` and `mod_mem.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: the transaction belongs to this thread.
            unsafe { $does(thread_transaction::get(), $($argument),*) }
        }

        /// The same for an explicit transaction.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name_tx(tx: *mut stm_tx, $($argument: $type),*) $(-> $result)? {
            // SAFETY: C passes the transaction of this thread.
            unsafe { $does(tx, $($argument),*) }
        }
    )*};
}

calls! {
    stm_exit_thread, stm_exit_thread_tx() = exit_thread;
    stm_start, stm_start_tx(attr: stm_tx_attr_t) -> *mut c_void = start;
    stm_commit, stm_commit_tx() -> c_int = commit;
    stm_abort, stm_abort_tx(reason: c_int) = abort;
    stm_load, stm_load_tx(word: *const usize) -> usize = load;
    stm_store, stm_store_tx(word: *mut usize, value: usize) = store;
    stm_store2, stm_store2_tx(word: *mut usize, value: usize, mask: usize) = store2;
    stm_set_extension, stm_set_extension_tx(enable: c_int, timestamp: *mut usize) = set_extension;
    stm_active, stm_active_tx() -> c_int = active;
    stm_aborted, stm_aborted_tx() -> c_int = aborted;
    stm_killed, stm_killed_tx() -> c_int = killed;
    stm_irrevocable, stm_irrevocable_tx() -> c_int = irrevocable;
    stm_set_irrevocable, stm_set_irrevocable_tx(serial: c_int) -> c_int = set_irrevocable;
    stm_get_env, stm_get_env_tx() -> *mut c_void = get_env;
    stm_get_attributes, stm_get_attributes_tx() -> stm_tx_attr_t = get_attributes;
    stm_get_stats, stm_get_stats_tx(name: *const c_char, to: *mut c_void) -> c_int = get_stats;
    stm_get_specific, stm_get_specific_tx(key: c_int) -> *mut c_void = get_specific;
    stm_set_specific, stm_set_specific_tx(key: c_int, data: *mut c_void) = set_specific;
    stm_malloc, stm_malloc_tx(size: usize) -> *mut c_void = malloc;
    stm_calloc, stm_calloc_tx(count: usize, size: usize) -> *mut c_void = calloc;
    stm_free, stm_free_tx(block: *mut c_void, size: usize) = free1;
    stm_free2, stm_free2_tx(block: *mut c_void, index: usize, size: usize) = free2;
}

/// The low `size` bytes, 1 to 8.
const fn low(size: usize) -> usize {
    usize::MAX >> (64 - 8 * size)
}

/// Splits an address into that of its word and the offset in bytes.
#[inline(always)]
fn split(address: *const c_void) -> (*const usize, usize) {
    let offset = address.addr() % 8;
    (address.wrapping_byte_sub(offset).cast(), offset)
}

/// Reads a part of one or two words.
#[inline(always)]
unsafe fn load_part<const SIZE: usize>(address: *const c_void) -> usize {
    let (word, offset) = split(address);
    if offset + SIZE <= 8 {
        // SAFETY: a whole word of transactional memory.
        if let Some(value) = unsafe { try_load(thread_transaction::get(), word) } {
            return value >> (offset * 8) & low(SIZE);
        }
    }
    // SAFETY: as above.
    unsafe { corebeat_stm_load_part(address, SIZE) }
}

/// See `stm_inline.h`.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn corebeat_stm_load_part(address: *const c_void, size: usize) -> usize {
    let (word, offset) = split(address);
    // SAFETY: whole words of transactional memory.
    let mut value = unsafe { load_slowly(thread_transaction::get(), word) } >> (offset * 8);
    if offset + size > 8 {
        // SAFETY: as above.
        value |= unsafe { load_slowly(thread_transaction::get(), word.wrapping_add(1)) }
            << ((8 - offset) * 8);
    }
    value & low(size)
}

#[inline(always)]
unsafe fn store_part<const SIZE: usize>(address: *mut c_void, value: usize) {
    let (word, offset) = split(address);
    let shift = offset * 8;
    // SAFETY: a whole word of transactional memory.
    let is_stored = offset + SIZE <= 8
        && unsafe {
            try_store(
                thread_transaction::get(),
                word.cast_mut(),
                value << shift,
                low(SIZE) << shift,
            )
        };
    if !is_stored {
        // SAFETY: as above.
        unsafe { corebeat_stm_store_part(address, value, SIZE) };
    }
}

/// See `stm_inline.h`.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn corebeat_stm_store_part(address: *mut c_void, value: usize, size: usize) {
    let (word, offset) = split(address);
    let (word, shift) = (word.cast_mut(), offset * 8);
    // SAFETY: whole words of transactional memory.
    unsafe { store_slowly(thread_transaction::get(), word, value << shift, low(size) << shift) };
    if offset + size > 8 {
        let shift = (8 - offset) * 8;
        let (value, mask) = (value >> shift, low(size) >> shift);
        // SAFETY: as above.
        unsafe { store_slowly(thread_transaction::get(), word.wrapping_add(1), value, mask) };
    }
}

macro_rules! parts {
    ($($load:ident, $store:ident: $type:ty, $value:ident => $bits:expr, $back:expr;)*) => {$(
        /// See `wrappers.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $load(address: *const $type) -> $type {
            // SAFETY: C passes transactional memory.
            let $value = unsafe { load_part::<{ size_of::<$type>() }>(address.cast()) };
            $back
        }

        /// See `wrappers.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $store(address: *mut $type, $value: $type) {
            // SAFETY: C passes transactional memory.
            unsafe { store_part::<{ size_of::<$type>() }>(address.cast(), $bits) }
        }
    )*};
}

parts! {
    stm_load_u8, stm_store_u8: u8, value => value as usize, value as u8;
    stm_load_u16, stm_store_u16: u16, value => value as usize, value as u16;
    stm_load_u32, stm_store_u32: u32, value => value as usize, value as u32;
    stm_load_u64, stm_store_u64: u64, value => value as usize, value as u64;
    stm_load_char, stm_store_char: c_char, value => value as u8 as usize, value as c_char;
    stm_load_uchar, stm_store_uchar: c_uchar, value => value as usize, value as c_uchar;
    stm_load_short, stm_store_short: c_short, value => value as c_ushort as usize, value as c_short;
    stm_load_ushort, stm_store_ushort: c_ushort, value => value as usize, value as c_ushort;
    stm_load_int, stm_store_int: c_int, value => value as c_uint as usize, value as c_int;
    stm_load_uint, stm_store_uint: c_uint, value => value as usize, value as c_uint;
    stm_load_long, stm_store_long: c_long, value => value as usize, value as c_long;
    stm_load_ulong, stm_store_ulong: c_ulong, value => value as usize, value as c_ulong;
    stm_load_float, stm_store_float: f32,
        value => value.to_bits() as usize, f32::from_bits(value as u32);
    stm_load_double, stm_store_double: c_double,
        value => value.to_bits() as usize, c_double::from_bits(value as u64);
    stm_load_ptr, stm_store_ptr: *mut c_void,
        value => value.expose_provenance(), std::ptr::with_exposed_provenance_mut(value);
}

/// See `wrappers.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_load_bytes(address: *const u8, to: *mut u8, size: usize) {
    let mut at = 0;
    while at < size {
        let from = address.wrapping_add(at);
        // SAFETY: C passes that much transactional memory, and a buffer of that size.
        unsafe {
            if size - at >= 8 && from.addr() % 8 == 0 {
                to.add(at)
                    .cast::<usize>()
                    .write_unaligned(load(thread_transaction::get(), from.cast()));
                at += 8;
            } else {
                to.add(at).write(load_part::<1>(from.cast()) as u8);
                at += 1;
            }
        }
    }
}

/// Writes `size` bytes from an address on: complete words by `word(at)`, bytes of incomplete words
/// by `byte(at)`.
#[inline(always)]
unsafe fn store_each(
    address: *mut u8,
    size: usize,
    byte: impl Fn(usize) -> u8,
    word: impl Fn(usize) -> usize,
) {
    let mut at = 0;
    while at < size {
        let to = address.wrapping_add(at);
        // SAFETY: C passes that much transactional memory.
        unsafe {
            if size - at >= 8 && to.addr() % 8 == 0 {
                store(thread_transaction::get(), to.cast(), word(at));
                at += 8;
            } else {
                store_part::<1>(to.cast(), byte(at).into());
                at += 1;
            }
        }
    }
}

/// See `wrappers.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_store_bytes(address: *mut u8, from: *const u8, size: usize) {
    // SAFETY: C passes a buffer of that size.
    let byte = |at: usize| unsafe { from.add(at).read() };
    // SAFETY: C passes a buffer of that size.
    let word = |at: usize| unsafe { from.add(at).cast::<usize>().read_unaligned() };
    // SAFETY: C passes that much transactional memory.
    unsafe { store_each(address, size, byte, word) };
}

/// See `wrappers.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_set_bytes(address: *mut u8, byte: u8, count: usize) {
    // SAFETY: C passes that much transactional memory.
    unsafe { store_each(address, count, |_| byte, |_| usize::from_ne_bytes([byte; 8])) };
}

/// Contention managers by their names in TinySTM.
const MANAGERS: [(&CStr, &dyn ContentionManager); 4] =
    [(c"BACKOFF", &Backoff), (c"SUICIDE", &Suicide), (c"KARMA", &Karma), (c"GREEDY", &Greedy)];

static MANAGER: AtomicUsize = AtomicUsize::new(0);

/// See `stm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_get_parameter(name: *const c_char, to: *mut c_void) -> c_int {
    // SAFETY: C passes a valid string.
    let value = match unsafe { text(name) } {
        b"contention_manager" => Some(MANAGERS[MANAGER.load(Relaxed)].0.as_ptr()),
        b"design" => Some(c"WRITE-THROUGH".as_ptr()),
        b"compile_flags" => Some(c"corebeat".as_ptr()),
        _ => None,
    };
    // SAFETY: C passes a valid address for a string.
    unsafe { put(to, value) }
}

/// See `stm.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_set_parameter(name: *const c_char, value: *mut c_void) -> c_int {
    // SAFETY: C passes a valid string.
    if unsafe { text(name) } != b"cm_policy" {
        return 0;
    }
    // SAFETY: C passes a valid string as this parameter.
    let wanted = unsafe { text(value.cast()) };
    let Some(at) =
        MANAGERS.iter().position(|(name, _)| name.to_bytes().eq_ignore_ascii_case(wanted))
    else {
        return 0;
    };
    MANAGER.store(at, Relaxed);
    contention::set(MANAGERS[at].1);
    1
}

/// See `stm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stm_create_specific() -> c_int {
    let next = |keys| (keys < MODULES_MAX).then_some(keys + 1);
    KEYS.fetch_update(Relaxed, Relaxed, next).map_or(-1, |key| key as c_int)
}

/// See `stm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stm_register(
    on_thread_init: Callback,
    on_thread_exit: Callback,
    on_start: Callback,
    on_precommit: Callback,
    on_commit: Callback,
    on_abort: Callback,
    argument: *mut c_void,
) -> c_int {
    let functions = [on_thread_init, on_thread_exit, on_start, on_precommit, on_commit, on_abort];
    let mut modules = MODULES.lock();
    let is_full = |calls: &[Call; MODULES_MAX]| calls.iter().all(|call| call.function.is_some());
    if functions
        .iter()
        .zip(modules.iter())
        .any(|(function, calls)| function.is_some() && is_full(calls))
    {
        return 0;
    }
    for (function, calls) in functions.into_iter().zip(modules.iter_mut()) {
        if let Some(free) = calls.iter_mut().find(|call| call.function.is_none()) {
            *free = Call { function, argument };
        }
    }
    HAS_MODULES.store(true, Relaxed);
    1
}

/// See `mod_mem.h`.
#[unsafe(no_mangle)]
pub extern "C" fn mod_mem_init(_gc: c_int) {}

/// See `mod_stats.h`.
#[unsafe(no_mangle)]
pub extern "C" fn mod_stats_init() {}

/// See `mod_stats.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_get_global_stats(name: *const c_char, to: *mut c_void) -> c_int {
    // SAFETY: C passes a valid string.
    let total = match unsafe { text(name) } {
        b"global_nb_commits" => Some(&COMMITS),
        b"global_nb_aborts" => Some(&ABORTS),
        b"global_max_retries" => Some(&RETRIES_MAX),
        _ => None,
    };
    // SAFETY: C passes a valid address.
    unsafe { put(to, total.map(|total| total.load(Relaxed) as c_ulong)) }
}

/// See `mod_stats.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_get_local_stats(name: *const c_char, to: *mut c_void) -> c_int {
    // SAFETY: C passes a valid string and a valid address.
    unsafe {
        if text(name) == b"nb_retries_avg" {
            let commits = statistic(thread_transaction::get(), b"nb_commits");
            let aborts = statistic(thread_transaction::get(), b"nb_aborts").unwrap_or(0);
            return put(to, commits.map(|commits| aborts as c_double / commits as c_double));
        }
        put(to, statistic(thread_transaction::get(), text(name)).map(|value| value as c_ulong))
    }
}
