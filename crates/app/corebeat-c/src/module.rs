//! `tinystm/mod_ab.h`, `mod_cb.h`, `mod_log.h` and `mod_print.h`: TinySTM's modules, made with `stm_register` as anybody makes them.
//!
//! What a thread has of a module is a box behind one of its keys. A callback of C's may abort the transaction, which jumps over our
//! frames: while it runs they own nothing, and what it was called from stays in the box.

use crate::stm::{
    Callback, stm_create_specific, stm_get_attributes, stm_get_specific, stm_register, stm_set_specific,
};
use corebeat_trace::ticks;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_double, c_int, c_long, c_short, c_uchar, c_uint, c_ulong, c_ushort, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The key of a module's data; -1 before it is set up.
struct Key(AtomicI32);

impl Key {
    const fn new() -> Key {
        Key(AtomicI32::new(-1))
    }

    /// Sets the module up, once, with these functions: each thread gets a `T`, and gives it back.
    fn set_up<T: Default>(
        &'static self,
        name: &str,
        exit: unsafe extern "C" fn(*mut c_void),
        [start, commit, abort]: [Callback; 3],
    ) {
        unsafe extern "C" fn init<T: Default>(key: *mut c_void) {
            let data = Box::into_raw(Box::<T>::default());
            // SAFETY: from `set_up`; in the thread that begins, which has transactions.
            unsafe { stm_set_specific((*key.cast::<Key>()).0.load(Relaxed), data.cast()) };
        }
        // Relaxed, here and below: as TinySTM's, modules are set up before there are threads with transactions.
        if self.0.load(Relaxed) >= 0 {
            return;
        }
        let key = stm_create_specific();
        let this = (&raw const *self).cast_mut().cast();
        self.0.store(key, Relaxed);
        if key < 0 || stm_register(Some(init::<T>), Some(exit), start, None, commit, abort, this) == 0 {
            eprintln!("corebeat: {name}: there is no room for one more module");
            std::process::abort();
        }
    }

    /// This thread's.
    ///
    /// # Safety
    ///
    /// `T` is what the key was set up with; nobody else has it.
    unsafe fn get<'a, T>(&self, name: &str) -> &'a mut T {
        let key = self.0.load(Relaxed);
        // SAFETY: a key of ours; the data is from `init`.
        let data = if key < 0 { None } else { unsafe { stm_get_specific(key).cast::<T>().as_mut() } };
        data.unwrap_or_else(|| {
            eprintln!("corebeat: {name} was not called before stm_init_thread: call it after stm_init");
            std::process::abort()
        })
    }

    /// Ends what the thread has.
    ///
    /// # Safety
    ///
    /// As for `get`.
    unsafe fn take<T>(&self) -> Box<T> {
        let key = self.0.load(Relaxed);
        // SAFETY: from `init`, and forgotten.
        unsafe {
            let data = stm_get_specific(key);
            stm_set_specific(key, null_mut());
            Box::from_raw(data.cast())
        }
    }
}

// How long transactions take: mod_ab.

/// As TinySTM has them: of so many transactions one is looked at, and of so many of a place each is kept.
const PERIOD: u32 = 1024;
const KEPT_MAX: usize = 1000;

/// Some transactions of one place of the program.
#[derive(Default)]
struct Block {
    samples: u64,
    mean: f64,
    /// Sum of squared differences from the mean.
    spread: f64,
    min: f64,
    max: f64,
    /// A choice of [`KEPT_MAX`] at most, each as likely as any other.
    kept: Vec<f64>,
}

/// By `id`, of all threads.
static BLOCKS: Mutex<BTreeMap<c_int, Block>> = Mutex::new(BTreeMap::new());

/// `mod_ab_init` was given these.
static CHOICE: Mutex<(u32, Option<extern "C" fn() -> c_int>)> = Mutex::new((PERIOD, None));

static LENGTHS: Key = Key::new();

#[derive(Default)]
struct Lengths {
    begin: u64,
    valid: u32,
    period: u32,
    is_valid: Option<extern "C" fn() -> c_int>,
    random: u64,
}

impl Block {
    /// Welford, *Note on a method for calculating corrected sums of squares and products*, 1962; Vitter, *Random sampling with a
    /// reservoir*, 1985, algorithm R.
    fn add(&mut self, length: f64, random: u64) {
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
        } else if let Some(kept) = self.kept.get_mut((random % self.samples) as usize) {
            *kept = length;
        }
    }

    /// Of what is kept, which is in order.
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
        (lengths.period, lengths.is_valid) = *CHOICE.lock().unwrap_or_else(PoisonError::into_inner);
        lengths.random = (&raw const *lengths).addr() as u64 | 1;
    }
    lengths.begin = ticks();
}

unsafe extern "C" fn end_block(_: *mut c_void) {
    // SAFETY: set up with this type; anew after code of C's, which may have come here as well.
    let lengths = || unsafe { LENGTHS.get::<Lengths>("mod_ab_init") };
    let Lengths { begin, is_valid, .. } = *lengths();
    let length = ticks().saturating_sub(begin);
    if is_valid.is_some_and(|is_valid| is_valid() == 0) {
        return;
    }
    let lengths = lengths();
    lengths.valid = lengths.valid.wrapping_add(1);
    if lengths.valid.is_multiple_of(lengths.period) {
        // Marsaglia, *Xorshift RNGs*, 2003.
        lengths.random ^= lengths.random << 13;
        lengths.random ^= lengths.random >> 7;
        lengths.random ^= lengths.random << 17;
        // SAFETY: in a thread with transactions.
        let id = unsafe { stm_get_attributes() }.id();
        let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.entry(id).or_default().add(length as f64, lengths.random);
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
    *CHOICE.lock().unwrap_or_else(PoisonError::into_inner) = (period, check);
    LENGTHS.set_up::<Lengths>(
        "mod_ab_init",
        drop_lengths,
        [Some(start_block), Some(end_block), Some(start_block)],
    );
}

/// See `mod_ab.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stm_get_ab_stats(id: c_int, stats: *mut stm_ab_stats_t) -> c_int {
    let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
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
    // SAFETY: C gives a place.
    unsafe { stats.write(value) };
    1
}

// What is to be done when a transaction is over: mod_cb.

static ACTIONS: Key = Key::new();

type Action = unsafe extern "C" fn(*mut c_void);

#[derive(Default)]
struct Actions {
    on_commit: Vec<(Action, *mut c_void)>,
    on_abort: Vec<(Action, *mut c_void)>,
}

/// Does what `chosen` has, in its order.
unsafe fn act(chosen: impl Fn(&mut Actions) -> &mut Vec<(Action, *mut c_void)>) {
    // SAFETY: set up with this type; anew each time, as an action may add others.
    let actions = || unsafe { ACTIONS.get::<Actions>("mod_cb_init") };
    let mut at = 0;
    while let Some(&(action, argument)) = chosen(actions()).get(at) {
        at += 1;
        // SAFETY: C gave both, for this.
        unsafe { action(argument) };
    }
    actions().on_commit.clear();
    actions().on_abort.clear();
}

unsafe extern "C" fn act_on_commit(_: *mut c_void) {
    // SAFETY: a callback of the module.
    unsafe { act(|actions| &mut actions.on_commit) };
}

unsafe extern "C" fn act_on_abort(_: *mut c_void) {
    // SAFETY: a callback of the module.
    unsafe { act(|actions| &mut actions.on_abort) };
}

unsafe extern "C" fn drop_actions(_: *mut c_void) {
    // SAFETY: set up with this type.
    drop(unsafe { ACTIONS.take::<Actions>() });
}

/// See `mod_cb.h`.
#[unsafe(no_mangle)]
pub extern "C" fn mod_cb_init() {
    ACTIONS.set_up::<Actions>("mod_cb_init", drop_actions, [None, Some(act_on_commit), Some(act_on_abort)]);
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

// Memory of one thread that is put back: mod_log.

static MEMORY: Key = Key::new();

/// What stood where.
#[derive(Default)]
struct Memory(Vec<(*mut u8, Box<[u8]>)>);

unsafe fn log(address: *mut u8, size: usize) {
    if size == 0 {
        // There need not even be an address.
        return;
    }
    // SAFETY: C gives so much memory, which is this thread's.
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
        // SAFETY: C gave so much memory, which is this thread's and there still.
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
            // SAFETY: C gives one.
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
    // SAFETY: C gives so much.
    unsafe { log(address, size) };
}

// A line for each thing that happens: mod_print.

unsafe extern "C" fn print(line: *mut c_void) {
    // SAFETY: a string, from `mod_print_init`; null stands for all streams.
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
            eprintln!("corebeat: mod_print_init: there is no room for one more module");
            std::process::abort();
        }
    }
}
