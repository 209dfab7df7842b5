//! `tinystm/mod_ab.h`, `mod_cb.h`, `mod_log.h`, `mod_order.h` and `mod_print.h`: TinySTM's modules,
//! implemented with the public function `stm_register`.
//!
//! The data of a thread for a module is a box behind a key. A callback of C may abort the
//! transaction, which jumps over the frames of this module. While a callback runs, these frames own
//! no value with a destructor, and the list of callbacks stays in the box.

use crate::stm::{
    Callback, stm_abort, stm_aborted, stm_create_specific, stm_get_attributes, stm_get_specific,
    stm_irrevocable, stm_killed, stm_register, stm_set_specific, withholds_commits,
};
use corebeat_stm::contention::{self, Backoff, ContentionManager, Decision, Standing};
use corebeat_sync::fork::ForkMutex;
use corebeat_trace::ticks;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{
    CStr, c_char, c_double, c_int, c_long, c_short, c_uchar, c_uint, c_ulong, c_ushort, c_void,
};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// The key of a module's data; -1 before the module is set up.
struct Key(AtomicI32);

impl Key {
    const fn new() -> Key {
        Key(AtomicI32::new(-1))
    }

    /// Sets the module up once with these functions. Each thread has a `T`, which is dropped when
    /// the thread exits.
    fn set_up<T: Default>(
        &'static self,
        name: &str,
        exit: unsafe extern "C" fn(*mut c_void),
        [start, commit, abort]: [Callback; 3],
    ) {
        unsafe extern "C" fn init<T: Default>(key: *mut c_void) {
            let data = Box::into_raw(Box::<T>::default());
            // SAFETY: the key is from `set_up`, and the new thread has transactions.
            unsafe { stm_set_specific((*key.cast::<Key>()).0.load(Relaxed), data.cast()) };
        }
        // Relaxed, here and below: as in TinySTM, modules are set up before threads start
        // transactions.
        if self.0.load(Relaxed) >= 0 {
            return;
        }
        let key = stm_create_specific();
        let this = (&raw const *self).cast_mut().cast();
        self.0.store(key, Relaxed);
        if key < 0
            || stm_register(Some(init::<T>), Some(exit), start, None, commit, abort, this) == 0
        {
            eprintln!("corebeat: {name}: the limit of modules is reached");
            std::process::abort();
        }
    }

    /// The data of this thread.
    ///
    /// # Safety
    ///
    /// `T` is the type with which the key was set up; no other reference to the data exists.
    unsafe fn get<'a, T>(&self, name: &str) -> &'a mut T {
        let key = self.0.load(Relaxed);
        let data = if key < 0 {
            None
        } else {
            // SAFETY: the key belongs to this module, and the data is from `init`.
            unsafe { stm_get_specific(key).cast::<T>().as_mut() }
        };
        data.unwrap_or_else(|| {
            eprintln!(
                "corebeat: {name} was not called before stm_init_thread: call it after stm_init"
            );
            std::process::abort()
        })
    }

    /// Drops the data of this thread.
    ///
    /// # Safety
    ///
    /// As for `get`.
    unsafe fn take<T>(&self) -> Box<T> {
        let key = self.0.load(Relaxed);
        // SAFETY: from `init`, and not used afterwards.
        unsafe {
            let data = stm_get_specific(key);
            stm_set_specific(key, null_mut());
            Box::from_raw(data.cast())
        }
    }
}

// mod_ab: durations of transactions.

/// The defaults of TinySTM: one in this many transactions is sampled, and at most this many samples
/// of a position are kept.
const PERIOD: u32 = 1024;
const KEPT_MAX: usize = 1000;

/// Samples of one position in the program.
#[derive(Default)]
struct Block {
    samples: u64,
    mean: f64,
    /// Sum of squared differences from the mean.
    spread: f64,
    min: f64,
    max: f64,
    /// A uniform random sample of at most [`KEPT_MAX`] values.
    kept: Vec<f64>,
}

/// Samples of all threads by `id`.
static BLOCKS: ForkMutex<BTreeMap<c_int, Block>> = ForkMutex::new(BTreeMap::new());

/// The arguments of `mod_ab_init`.
static CHOICE: ForkMutex<(u32, Option<extern "C" fn() -> c_int>)> = ForkMutex::new((PERIOD, None));

static LENGTHS: Key = Key::new();

#[derive(Default)]
struct Lengths {
    begin: u64,
    valid: u32,
    period: u32,
    is_valid: Option<extern "C" fn() -> c_int>,
    random: fastrand::Rng,
}

impl Block {
    /// Welford, *Note on a method for calculating corrected sums of squares and products*, 1962;
    /// Vitter, *Random sampling with a reservoir*, 1985, algorithm R.
    fn add(&mut self, length: f64, random: &mut fastrand::Rng) {
        self.samples += 1;
        if self.samples == 1 {
            (self.min, self.max) = (length, length);
        }
        (self.min, self.max) = (self.min.min(length), self.max.max(length));
        let before = length - self.mean;
        self.mean += before / self.samples as f64;
        self.spread += before * (length - self.mean);
        if self.kept.len() < KEPT_MAX {
            self.kept.push(length);
        } else if let Some(kept) = self.kept.get_mut(random.u64(..self.samples) as usize) {
            *kept = length;
        }
    }

    /// A percentile of the kept values, which must be sorted.
    fn percentile(&self, percent: usize) -> f64 {
        let at = (self.kept.len() * percent + 50) / 100;
        self.kept.get(at).copied().unwrap_or(self.max)
    }
}

/// See `mod_ab.h`.
#[repr(C)]
pub struct stm_ab_stats_t {
    samples: c_ulong,
    mean: c_double,
    variance: c_double,
    min: c_double,
    max: c_double,
    percentile_50: c_double,
    percentile_90: c_double,
    percentile_95: c_double,
    reservoir: *mut c_double,
    reservoir_size: c_uint,
}

unsafe extern "C" fn start_block(_: *mut c_void) {
    // SAFETY: set up with this type.
    let lengths = unsafe { LENGTHS.get::<Lengths>("mod_ab_init") };
    if lengths.period == 0 {
        (lengths.period, lengths.is_valid) = *CHOICE.lock();
        let seed = (&raw const *lengths).addr() as u64;
        lengths.random = fastrand::Rng::with_seed(seed);
    }
    lengths.begin = ticks();
}

unsafe extern "C" fn end_block(_: *mut c_void) {
    // SAFETY: set up with this type; reloaded after a callback of C, which may have used it, too.
    let lengths = || unsafe { LENGTHS.get::<Lengths>("mod_ab_init") };
    let Lengths { begin, is_valid, .. } = *lengths();
    let length = ticks().saturating_sub(begin);
    if is_valid.is_some_and(|is_valid| is_valid() == 0) {
        return;
    }
    let lengths = lengths();
    lengths.valid = lengths.valid.wrapping_add(1);
    if lengths.valid.is_multiple_of(lengths.period) {
        // SAFETY: the thread has transactions.
        let id = unsafe { stm_get_attributes() }.id();
        let mut blocks = BLOCKS.lock();
        blocks.entry(id).or_default().add(length as f64, &mut lengths.random);
    }
}

unsafe extern "C" fn drop_lengths(_: *mut c_void) {
    // SAFETY: set up with this type.
    drop(unsafe { LENGTHS.take::<Lengths>() });
}

/// See `mod_ab.h`.
#[unsafe(no_mangle)]
pub extern "C" fn mod_ab_init(freq: c_int, check: Option<extern "C" fn() -> c_int>) {
    let period = u32::try_from(freq).ok().filter(|period| *period > 0).unwrap_or(PERIOD);
    *CHOICE.lock() = (period, check);
    LENGTHS.set_up::<Lengths>(
        "mod_ab_init",
        drop_lengths,
        [Some(start_block), Some(end_block), Some(start_block)],
    );
}

/// See `mod_ab.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_get_ab_stats(id: c_int, stats: *mut stm_ab_stats_t) -> c_int {
    let mut blocks = BLOCKS.lock();
    let Some(block) = blocks.get_mut(&id) else { return 0 };
    block.kept.sort_by(f64::total_cmp);
    let of_the_rest = block.samples.saturating_sub(1).max(1) as f64;
    let value = stm_ab_stats_t {
        samples: block.samples,
        mean: block.mean,
        variance: block.spread / of_the_rest,
        min: block.min,
        max: block.max,
        percentile_50: block.percentile(50),
        percentile_90: block.percentile(90),
        percentile_95: block.percentile(95),
        reservoir: block.kept.as_mut_ptr(),
        reservoir_size: block.kept.len() as c_uint,
    };
    // SAFETY: C passes a valid address.
    unsafe { stats.write(value) };
    1
}

// mod_cb: callbacks at the end of a transaction.

static ACTIONS: Key = Key::new();

type Action = unsafe extern "C" fn(*mut c_void);

#[derive(Default)]
struct Actions {
    on_commit: Vec<(Action, *mut c_void)>,
    on_abort: Vec<(Action, *mut c_void)>,
}

/// Runs the actions that `chosen` selects, in order.
unsafe fn act(chosen: impl Fn(&mut Actions) -> &mut Vec<(Action, *mut c_void)>) {
    // SAFETY: set up with this type; reloaded each time, because an action may add others.
    let actions = || unsafe { ACTIONS.get::<Actions>("mod_cb_init") };
    let mut at = 0;
    while let Some(&(action, argument)) = chosen(actions()).get(at) {
        at += 1;
        // SAFETY: C has passed both for this purpose.
        unsafe { action(argument) };
    }
    actions().on_commit.clear();
    actions().on_abort.clear();
}

unsafe extern "C" fn act_on_commit(_: *mut c_void) {
    // SAFETY: called as a callback of the module.
    unsafe { act(|actions| &mut actions.on_commit) };
}

unsafe extern "C" fn act_on_abort(_: *mut c_void) {
    // SAFETY: called as a callback of the module.
    unsafe { act(|actions| &mut actions.on_abort) };
}

unsafe extern "C" fn drop_actions(_: *mut c_void) {
    // SAFETY: set up with this type.
    drop(unsafe { ACTIONS.take::<Actions>() });
}

/// See `mod_cb.h`.
#[unsafe(no_mangle)]
pub extern "C" fn mod_cb_init() {
    ACTIONS.set_up::<Actions>(
        "mod_cb_init",
        drop_actions,
        [None, Some(act_on_commit), Some(act_on_abort)],
    );
}

/// See `mod_cb.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_on_commit(action: Action, argument: *mut c_void) -> c_int {
    // SAFETY: set up with this type.
    unsafe { ACTIONS.get::<Actions>("mod_cb_init") }.on_commit.push((action, argument));
    1
}

/// See `mod_cb.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_on_abort(action: Action, argument: *mut c_void) -> c_int {
    // SAFETY: set up with this type.
    unsafe { ACTIONS.get::<Actions>("mod_cb_init") }.on_abort.push((action, argument));
    1
}

// mod_log: memory of a single thread that is restored.

static MEMORY: Key = Key::new();

/// Recorded contents, by address.
#[derive(Default)]
struct Memory(Vec<(*mut u8, Box<[u8]>)>);

unsafe fn log(address: *mut u8, size: usize) {
    if size == 0 {
        // The address may be invalid.
        return;
    }
    // SAFETY: C passes that much memory, which only this thread uses.
    let old = unsafe { std::slice::from_raw_parts(address, size) }.into();
    // SAFETY: set up with this type.
    unsafe { MEMORY.get::<Memory>("mod_log_init") }.0.push((address, old));
}

unsafe extern "C" fn forget(_: *mut c_void) {
    // SAFETY: set up with this type.
    unsafe { MEMORY.get::<Memory>("mod_log_init") }.0.clear();
}

unsafe extern "C" fn put_back(_: *mut c_void) {
    // SAFETY: set up with this type.
    let memory = unsafe { MEMORY.get::<Memory>("mod_log_init") };
    for (address, old) in memory.0.drain(..).rev() {
        // SAFETY: C has passed that much memory, which only this thread uses and which is still
        // mapped.
        unsafe { address.copy_from_nonoverlapping(old.as_ptr(), old.len()) };
    }
}

unsafe extern "C" fn drop_memory(_: *mut c_void) {
    // SAFETY: set up with this type.
    drop(unsafe { MEMORY.take::<Memory>() });
}

/// See `mod_log.h`.
#[unsafe(no_mangle)]
pub extern "C" fn mod_log_init() {
    MEMORY.set_up::<Memory>("mod_log_init", drop_memory, [None, Some(forget), Some(put_back)]);
}

macro_rules! logs {
    ($($name:ident: $type:ty;)*) => {$(
        /// See `mod_log.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(address: *mut $type) {
            // SAFETY: C passes a valid address.
            unsafe { log(address.cast(), size_of::<$type>()) };
        }
    )*};
}

logs! {
    stm_log: usize;
    stm_log_u8: u8;
    stm_log_u16: u16;
    stm_log_u32: u32;
    stm_log_u64: u64;
    stm_log_char: c_char;
    stm_log_uchar: c_uchar;
    stm_log_short: c_short;
    stm_log_ushort: c_ushort;
    stm_log_int: c_int;
    stm_log_uint: c_uint;
    stm_log_long: c_long;
    stm_log_ulong: c_ulong;
    stm_log_float: f32;
    stm_log_double: c_double;
    stm_log_ptr: *mut c_void;
}

/// See `mod_log.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_log_bytes(address: *mut u8, size: usize) {
    // SAFETY: C passes that much memory.
    unsafe { log(address, size) };
}

// mod_order: transactions commit in the order in which they began.

static IS_IN_ORDER: AtomicBool = AtomicBool::new(false);
/// Numbers of transactions that have begun, and that have ended.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Number of the transactions that begin before the one of this thread. `None` also during unit
    /// stores and transactions in Rust, which have no place in the order.
    static TICKET: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Whether all transactions before this one have ended.
fn is_next(ticket: u64) -> bool {
    // Acquire: pairs with the Release in `end_ticket`.
    ENDED.load(Acquire) == ticket
}

fn end_ticket(ticket: u64) {
    TICKET.set(None);
    ENDED.store(ticket + 1, Release);
}

/// The transaction whose turn it is kills the others: they hold their locks until their turns.
struct InOrder;

impl ContentionManager for InOrder {
    fn on_conflict(&self, own: Standing, other: Standing, waits: u32) -> Decision {
        if TICKET.get().is_some_and(is_next) {
            return Decision::Kill;
        }
        Backoff.on_conflict(own, other, waits)
    }

    fn pause_spins(&self, failed: u32) -> u32 {
        Backoff.pause_spins(failed)
    }
}

unsafe extern "C" fn begin_in_order(_: *mut c_void) {
    // Relaxed: only the numbers matter.
    TICKET.set(Some(BEGUN.fetch_add(1, Relaxed)));
}

unsafe extern "C" fn wait_in_order(_: *mut c_void) {
    let Some(ticket) = TICKET.get() else { return };
    // SAFETY: the thread is in a transaction; no value here has a destructor.
    unsafe {
        while !is_next(ticket) {
            if stm_irrevocable() != 0 {
                eprintln!(
                    "corebeat: mod_order: an irrevocable transaction would wait for ever for \
                     earlier ones, which it keeps from committing"
                );
                std::process::abort();
            }
            // Another transaction needs a lock of this one, or this one, after many failures,
            // keeps all others from committing.
            if stm_killed() != 0 || withholds_commits() {
                stm_abort(0);
                return;
            }
            std::thread::yield_now();
        }
    }
}

unsafe extern "C" fn commit_in_order(_: *mut c_void) {
    if let Some(ticket) = TICKET.get() {
        end_ticket(ticket);
    }
}

unsafe extern "C" fn abort_in_order(_: *mut c_void) {
    // SAFETY: the thread has transactions.
    if unsafe { stm_aborted() } != 0
        && let Some(ticket) = TICKET.get()
    {
        // It does not restart, and holds no lock any more.
        while !is_next(ticket) {
            std::thread::yield_now();
        }
        end_ticket(ticket);
    }
}

/// See `mod_order.h`.
#[unsafe(no_mangle)]
pub extern "C" fn mod_order_init() {
    // Relaxed: as in `Key::set_up`.
    if IS_IN_ORDER.swap(true, Relaxed) {
        return;
    }
    let is_registered = stm_register(
        None,
        None,
        Some(begin_in_order),
        Some(wait_in_order),
        Some(commit_in_order),
        Some(abort_in_order),
        null_mut(),
    );
    if is_registered == 0 {
        eprintln!("corebeat: mod_order_init: the limit of modules is reached");
        std::process::abort();
    }
    contention::set(&InOrder);
}

// mod_print: a line for each event.

unsafe extern "C" fn print(line: *mut c_void) {
    // SAFETY: a valid string from `mod_print_init`; null flushes all streams.
    unsafe {
        libc::puts(line.cast());
        libc::fflush(null_mut());
    }
}

/// See `mod_print.h`.
#[unsafe(no_mangle)]
pub extern "C" fn mod_print_init() {
    const LINES: [&CStr; 6] = [
        c"==> on_thread_init()",
        c"==> on_thread_exit()",
        c"==> on_start()",
        c"==> on_precommit()",
        c"==> on_commit()",
        c"==> on_abort()",
    ];
    for (at, line) in LINES.iter().enumerate() {
        let [init, exit, start, precommit, commit, abort] =
            std::array::from_fn(|event| (event == at).then_some(print as Action));
        let line = line.as_ptr().cast_mut().cast();
        if stm_register(init, exit, start, precommit, commit, abort, line) == 0 {
            eprintln!("corebeat: mod_print_init: the limit of modules is reached");
            std::process::abort();
        }
    }
}
