//! Probes: their state, and the recording of calls.

use crate::count;
use crate::error::Error;
use crate::event::{Declare, Enter, EnterUntimed, Field, Leave, LeaveUntimed, Panic};
use crate::line::log;
use crate::pattern::Pattern;
use corebeat_sync::fork::PerProcess;
use corebeat_trace::Trace;
use std::fmt;
use std::iter::successors;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::panicking;

/// Limit on the number of probes of a program; further probes are always off.
pub const PROBES_MAX: usize = 1 << 16;
/// Bytes of declarations in one stream: the smallest capacity of its buffers.
const DECLARATIONS_BYTES_MAX: usize = 16 << 10;

/// Limit on the number of patterns that are applied to probes that are added later.
const REQUESTS_MAX: usize = 1024;

/// The probes that the linker collects.
#[linkme::distributed_slice]
pub static PROBES: [Probe];

/// The probes of [`PROBES`]. Miri links nothing, so it has none.
fn linked() -> &'static [Probe] {
    if cfg!(miri) { &[] } else { &PROBES }
}

/// The probe that was added last, or null.
static ADDED: AtomicPtr<Added> = AtomicPtr::new(ptr::null_mut());

/// A probe that was added while the program runs. It is never freed.
struct Added {
    probe: Probe,
    number: usize,
    before: Option<&'static Added>,
}

/// Locked while probes are switched or added. A thread of the parent may hold the lock at a fork: a
/// child has its own lock, and applies only its own requests to probes that it adds.
static SWITCHES: PerProcess<Mutex<Switches>> = PerProcess::unset();

/// The state of probes that are added later.
#[derive(Debug, Default)]
struct Switches {
    /// Whether calls are counted.
    is_counted: bool,
    /// The last request for each pattern, in order: later ones override earlier ones.
    requests: Vec<(Pattern, bool)>,
}

/// Bits of a state. The bits from [`NUMBER_SHIFT`] are the probe's number.
const ON: u32 = 1;
/// The user has switched the probe on; a rule may have switched it off.
const WANTED: u32 = 2;
const TIMED: u32 = 4;
/// Calls are counted.
const COUNTED: u32 = 8;
/// In a call's state: its thread was panicking already when the call was entered.
const PANICKING: u32 = 16;
const NUMBER_SHIFT: u32 = 16;

/// An instrumented function or block, created by [`probe`](macro@crate::probe) or
/// [`block!`](crate::block).
#[derive(Debug)]
pub struct Probe {
    state: AtomicU32,
    name: Name,
    file: &'static str,
    line: u32,
    timed: bool,
}

/// The name of a probe. The macros cannot compute the path of a function at compile time.
#[derive(Debug)]
enum Name {
    Computed(fn() -> &'static str),
    Text(&'static str),
}

impl Probe {
    #[doc(hidden)]
    pub const fn new(
        name: fn() -> &'static str,
        file: &'static str,
        line: u32,
        timed: bool,
    ) -> Probe {
        Probe { state: AtomicU32::new(0), name: Name::Computed(name), file, line, timed }
    }

    /// Adds a probe while the program runs, for code that no linker collects, such as that of
    /// scripts. The probe stays until the end of the process: keep it for all calls of one place.
    /// It is on if earlier requests of [`switch`] match its name (of this process: a child of fork
    /// applies no requests of its parent).
    ///
    /// # Errors
    ///
    /// The program has [`PROBES_MAX`] probes ([`Error::TooManyProbes`]).
    pub fn add(name: &str, file: &str, line: u32) -> Result<&'static Probe, Error> {
        let switching = Switching::begin();
        let before = last_added();
        let number = before.map_or(linked().len(), |before| before.number + 1);
        if number >= PROBES_MAX {
            return Err(Error::TooManyProbes);
        }
        let leaked = |text: &str| -> &'static str { String::from(text).leak() };
        let (name, file) = (leaked(name), leaked(file));
        let state = AtomicU32::new(0);
        let probe = Probe { state, name: Name::Text(name), file, line, timed: true };
        let added: &'static Added = Box::leak(Box::new(Added { probe, number, before }));
        let Switches { is_counted, requests } = &*switching.held;
        let last = requests.iter().rev().find(|(pattern, _)| pattern.matches(name));
        let switched = if last.is_some_and(|(_, on)| *on) { ON | WANTED } else { 0 };
        let counted = if *is_counted { COUNTED } else { 0 };
        added.probe.set(number, switched | counted, &switching);
        // Release: pairs with Acquire in `last_added`, so that the probe is initialised. The lock
        // orders the writers.
        ADDED.store(ptr::from_ref(added).cast_mut(), Ordering::Release);
        // The lock orders this event and `record`: one of the two declares the probe.
        corebeat_trace::emit(&added.probe.declaration(number));
        Ok(&added.probe)
    }

    /// The path of the function in its crate, such as `bank::Account::pay`.
    pub fn name(&self) -> &'static str {
        match self.name {
            Name::Computed(name) => name(),
            Name::Text(name) => name,
        }
    }

    /// Path of the source file.
    pub fn file(&self) -> &'static str {
        self.file
    }

    /// Line in the source file, starting at 1.
    pub fn line(&self) -> u32 {
        self.line
    }

    /// Whether calls are recorded.
    pub fn is_on(&self) -> bool {
        self.state() & ON != 0
    }

    /// Whether the user has switched the probe on. A probe that is wanted but off was switched off
    /// by a [`Rule`](crate::Rule).
    pub fn is_wanted(&self) -> bool {
        self.state() & WANTED != 0
    }

    /// Enters a call, which ends when the result is dropped. If the probe is off, the cost is a
    /// load and a branch.
    #[inline(always)]
    pub fn enter(&'static self) -> Entered {
        // Relaxed: no other data depends on the state.
        let state = self.state.load(Ordering::Relaxed);
        let call = if state & ON == 0 { 0 } else { begin(state) };
        Entered { call, stays: PhantomData }
    }

    /// Runs a function as a call. If the probe is off, the cost is a load and a branch.
    ///
    /// The function is inlined twice. Recorded calls use their own out-of-line copy, so that the
    /// other copy reserves no registers for recording.
    #[doc(hidden)]
    #[inline(always)]
    pub fn call<R>(&'static self, call: impl FnOnce() -> R) -> R {
        if self.state() & ON == 0 { call() } else { Recorded { call, probe: self }.run() }
    }

    /// Records a field of the call that follows on this thread, as its `Debug` text of at most
    /// [`TEXT_BYTES_MAX`](corebeat_trace::TEXT_BYTES_MAX) bytes. Does nothing if the probe is off.
    /// `#[probe(fields(..))]` calls this function.
    #[cold]
    #[inline(never)]
    pub fn field(&'static self, field: &str, value: &dyn fmt::Debug) {
        let state = self.state();
        if state & ON != 0 {
            // The value is formatted first: its `Debug` may contain probes.
            let value = format!("{value:?}");
            let probe = (state >> NUMBER_SHIFT) as u16;
            log(&Field { probe, field, value: &value });
        }
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> u32 {
        self.state.load(Ordering::Relaxed)
    }

    fn declaration(&self, number: usize) -> Declare<'static> {
        Declare { probe: number as u16, name: self.name(), file: self.file, line: self.line }
    }

    /// Sets the state. `_switching` proves that this thread is the only writer.
    fn set(&self, number: usize, bits: u32, _switching: &Switching) {
        let timed = if self.timed { TIMED } else { 0 };
        self.state.store((number as u32) << NUMBER_SHIFT | timed | bits, Ordering::Relaxed);
    }
}

/// A call to be recorded. The function and its probe form one object, so that a caller that does
/// not record prepares nothing, and its arguments stay in place.
#[repr(C)]
struct Recorded<F> {
    call: F,
    probe: &'static Probe,
}

impl<F> Recorded<F> {
    #[cold]
    #[inline(never)]
    fn run<R>(self) -> R
    where
        F: FnOnce() -> R,
    {
        let state = self.probe.state();
        // The probe may have been switched off in the meantime.
        let unwinding = Unwinding { call: if state & ON == 0 { 0 } else { enter(state) } };
        let result = (self.call)();
        leave(unwinding.call);
        std::mem::forget(unwinding);
        result
    }
}

/// A call in a copy of its function that is only for recorded calls. The copy ends the call where
/// it returns; a drop of this value ends a call that panics. So neither end tests for a panic.
struct Unwinding {
    /// As in [`Entered`].
    call: u32,
}

impl Drop for Unwinding {
    fn drop(&mut self) {
        if self.call != 0 {
            log(&Panic);
        }
    }
}

/// Logs the enter event. Returns the state.
#[inline(always)]
fn enter(state: u32) -> u32 {
    if state & (TIMED | COUNTED) == TIMED {
        log(&Enter { probe: (state >> NUMBER_SHIFT) as u16 });
    } else {
        enter_other(state);
    }
    state
}

/// Enters a call that is counted or untimed.
#[cold]
#[inline(never)]
fn enter_other(state: u32) {
    let probe = (state >> NUMBER_SHIFT) as u16;
    if state & COUNTED != 0 {
        count::add(probe);
    }
    if state & TIMED != 0 {
        log(&Enter { probe });
    } else {
        log(&EnterUntimed { probe });
    }
}

/// Logs the leave event of a call that returns.
#[inline(always)]
fn leave(call: u32) {
    if call & TIMED != 0 { log(&Leave) } else { leave_other(call) }
}

/// Ends a call that is untimed or not recorded.
#[cold]
#[inline(never)]
fn leave_other(call: u32) {
    if call != 0 {
        log(&LeaveUntimed);
    }
}

/// An open call. The guard cannot leave its thread:
///
/// ```compile_fail
/// fn elsewhere(entered: corebeat_probe::Entered) {
///     std::thread::spawn(move || drop(entered));
/// }
/// ```
#[must_use = "the call ends when this is dropped"]
pub struct Entered {
    /// The probe's state at the enter event, or 0 if nothing is recorded.
    call: u32,
    stays: PhantomData<*const ()>,
}

impl Entered {
    /// Ends the call as one that panicked. For languages whose exceptions are no panics.
    pub fn fail(self) {
        if self.call != 0 {
            log(&Panic);
        }
        std::mem::forget(self);
    }
}

impl Drop for Entered {
    #[inline(always)]
    fn drop(&mut self) {
        if self.call != 0 {
            end(self.call);
        }
    }
}

// Out of line, so that functions with probes stay small.
#[cold]
#[inline(never)]
pub(crate) fn begin(state: u32) -> u32 {
    let call = enter(state);
    if panicking() { call | PANICKING } else { call }
}

#[cold]
#[inline(never)]
pub(crate) fn end(call: u32) {
    if panicking() && call & PANICKING == 0 {
        log(&Panic);
    } else {
        leave(call);
    }
}

fn last_added() -> Option<&'static Added> {
    // Acquire: pairs with Release in `Probe::add`.
    let last = ADDED.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or refers to a probe that is never freed.
    unsafe { last.as_ref() }
}

/// All probes of the program, in the order of their numbers.
pub fn probes() -> impl ExactSizeIterator<Item = &'static Probe> {
    let linked = linked().iter().take(PROBES_MAX);
    let added = successors(last_added(), |added| added.before).map(|added| &added.probe);
    let mut probes: Vec<&'static Probe> = added.chain(linked.rev()).collect();
    probes.reverse();
    probes.into_iter()
}

/// Switches all probes whose names match a pattern on or off. `*` matches any text, `?` any
/// character. An open call is recorded completely or not at all. Returns the number of matching
/// probes. Probes that are added later ([`Probe::add`]) are on if the last matching request is, of
/// the last 1,024 different patterns.
///
/// # Errors
///
/// The pattern is invalid.
pub fn switch(pattern: &str, on: bool) -> Result<usize, Error> {
    let pattern = Pattern::new(pattern)?;
    let mut switching = Switching::begin();
    switching.keep(&pattern, on);
    let mut fit = 0;
    for (number, probe) in probes().enumerate().filter(|(_, probe)| pattern.matches(probe.name())) {
        fit += 1;
        let counted = probe.state() & COUNTED;
        // A probe that a rule has switched off stays off: the rule will try it again.
        match (on, probe.state() & (ON | WANTED)) {
            (true, WANTED) => {}
            (true, _) => probe.set(number, ON | WANTED | counted, &switching),
            (false, _) => probe.set(number, counted, &switching),
        }
    }
    Ok(fit)
}

/// Installs this trace for the events of probes, and writes the declarations of all probes.
///
/// # Errors
///
/// Another trace is installed.
pub fn record(trace: &Trace) -> Result<(), corebeat_trace::Error> {
    let _switching = Switching::begin();
    trace.install()?;
    // Dropping the log writes the declarations, so that they are in the file in any case.
    let (mut log, mut bytes) = (None, 0);
    for (number, probe) in probes().enumerate() {
        let declaration = probe.declaration(number);
        let more_bytes = declaration.bytes_max();
        if log.is_none() || bytes + more_bytes > DECLARATIONS_BYTES_MAX {
            (log, bytes) = (trace.log(), 0);
        }
        bytes += more_bytes;
        if let Some(log) = &log {
            log.emit(&declaration);
        }
    }
    Ok(())
}

/// The exclusive right to switch and to add probes.
pub(crate) struct Switching {
    held: MutexGuard<'static, Switches>,
}

impl Switching {
    pub(crate) fn begin() -> Switching {
        let lock = SWITCHES.get(|_| Mutex::default());
        Switching { held: lock.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Keeps a request for probes that are added later.
    fn keep(&mut self, pattern: &Pattern, on: bool) {
        let requests = &mut self.held.requests;
        requests.retain(|(other, _)| other != pattern);
        if requests.len() == REQUESTS_MAX {
            requests.remove(0);
        }
        requests.push((pattern.clone(), on));
    }

    /// Starts or stops counting of calls. After the stop, probes that a rule has switched off are
    /// on.
    pub(crate) fn count(&mut self, counted: bool) {
        self.held.is_counted = counted;
        for (number, probe) in probes().enumerate() {
            let state = probe.state() & (ON | WANTED);
            match (counted, state & WANTED != 0) {
                (true, _) => probe.set(number, state | COUNTED, self),
                (false, true) => probe.set(number, ON | WANTED, self),
                (false, false) => probe.set(number, 0, self),
            }
        }
    }

    /// Switches a wanted probe on behalf of a rule.
    pub(crate) fn set_by_rule(&self, probe: &Probe, number: usize, on: bool) {
        if probe.is_wanted() {
            let counted = probe.state() & COUNTED;
            probe.set(number, WANTED | counted | if on { ON } else { 0 }, self);
        }
    }
}

/// The path around an item called `Here`, without the parts that the compiler adds.
#[doc(hidden)]
pub fn name_around(here: &'static str) -> &'static str {
    let name = here.strip_suffix("::PROBE::name::Here").unwrap_or(here);
    name.strip_suffix("::{{closure}}").unwrap_or(name)
}
