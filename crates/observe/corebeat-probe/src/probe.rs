//! A probe: its state, and what a call does with it.

use crate::count;
use crate::error::Error;
use crate::event::{Declare, Enter, EnterUntimed, Leave, LeaveUntimed, Panic};
use crate::line::log;
use crate::pattern::Pattern;
use corebeat_trace::Trace;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::panicking;

/// Probes that a program may have; more are never on.
pub const PROBES_MAX: usize = 1 << 16;
/// Bytes of declarations in one stream: the least that its buffers have room for.
const DECLARATIONS_BYTES_MAX: usize = 16 << 10;

/// All probes of the program. The linker puts them here.
#[linkme::distributed_slice]
pub static PROBES: [Probe];

/// Who switches probes.
static SWITCHING: Mutex<()> = Mutex::new(());

/// Bits of a state. What is above [`NUMBER_SHIFT`] is the probe's number.
const ON: u32 = 1;
/// The user wants it on, whatever a rule made of it.
const WANTED: u32 = 2;
const TIMED: u32 = 4;
/// Calls are counted.
const COUNTED: u32 = 8;
/// Of a call: its thread panicked already.
const PANICKING: u32 = 16;
const NUMBER_SHIFT: u32 = 16;

/// A place that can be watched. [`probe`](macro@crate::probe) and [`block!`](crate::block) make them.
#[derive(Debug)]
pub struct Probe {
    state: AtomicU32,
    name: fn() -> &'static str,
    file: &'static str,
    line: u32,
    timed: bool,
}

impl Probe {
    #[doc(hidden)]
    pub const fn new(name: fn() -> &'static str, file: &'static str, line: u32, timed: bool) -> Probe {
        Probe { state: AtomicU32::new(0), name, file, line, timed }
    }

    /// The path of the function in its crate, such as `bank::Account::pay`.
    pub fn name(&self) -> &'static str {
        (self.name)()
    }

    /// The source file.
    pub fn file(&self) -> &'static str {
        self.file
    }

    /// The line in it, from 1.
    pub fn line(&self) -> u32 {
        self.line
    }

    /// Whether calls are recorded.
    pub fn is_on(&self) -> bool {
        self.state() & ON != 0
    }

    /// Whether it is wanted on: one that is not, but wanted, was switched off by a [`Rule`](crate::Rule).
    pub fn is_wanted(&self) -> bool {
        self.state() & WANTED != 0
    }

    /// Begins a call, which ends when what this returns is dropped. Where the probe is off, this is a load and a branch.
    #[inline(always)]
    pub fn enter(&'static self) -> Entered {
        // Relaxed: all that is known by it is in it.
        let state = self.state.load(Ordering::Relaxed);
        let call = if state & ON == 0 { 0 } else { begin(state) };
        Entered { call, stays: PhantomData }
    }

    /// Runs what is a call, all of it. Where the probe is off, this is a load and a branch.
    ///
    /// What is called is here twice, if it is inlined: calls that are recorded have their own, out of the way, so that
    /// others keep nothing for them.
    #[doc(hidden)]
    #[inline(always)]
    pub fn call<R>(&'static self, call: impl FnOnce() -> R) -> R {
        if self.state() & ON == 0 { call() } else { Recorded { call, probe: self }.run() }
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> u32 {
        self.state.load(Ordering::Relaxed)
    }

    /// What it is to be; `_switching` is the only one who says so.
    fn set(&self, number: usize, bits: u32, _switching: &Switching) {
        let timed = if self.timed { TIMED } else { 0 };
        self.state.store((number as u32) << NUMBER_SHIFT | timed | bits, Ordering::Relaxed);
    }
}

/// A call that is recorded. One thing with all that it needs, so that a caller that does not record it puts nothing in order
/// for this, and its arguments stay where they are.
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
        let _entered = self.probe.enter();
        (self.call)()
    }
}

/// A call that goes on. It stays with its thread:
///
/// ```compile_fail
/// fn elsewhere(entered: corebeat_probe::Entered) {
///     std::thread::spawn(move || drop(entered));
/// }
/// ```
#[must_use = "the call ends when this is dropped"]
pub struct Entered {
    /// The probe's state when it was entered, or 0: nothing is to be logged.
    call: u32,
    stays: PhantomData<*const ()>,
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
    let probe = (state >> NUMBER_SHIFT) as u16;
    if state & COUNTED != 0 {
        count::add(probe);
    }
    if state & TIMED != 0 {
        log(&Enter { probe });
    } else {
        log(&EnterUntimed { probe });
    }
    if panicking() { state | PANICKING } else { state }
}

#[cold]
#[inline(never)]
pub(crate) fn end(call: u32) {
    if panicking() && call & PANICKING == 0 {
        log(&Panic);
    } else if call & TIMED != 0 {
        log(&Leave);
    } else {
        log(&LeaveUntimed);
    }
}

/// All probes of the program, in no order.
pub fn probes() -> impl ExactSizeIterator<Item = &'static Probe> {
    PROBES[..PROBES.len().min(PROBES_MAX)].iter()
}

/// Switches probes on or off whose names fit a pattern: `*` is any text, `?` any character. Calls that go on are recorded to their end, or
/// not at all. How many fit.
///
/// # Errors
///
/// The pattern is too long.
pub fn switch(pattern: &str, on: bool) -> Result<usize, Error> {
    let pattern = Pattern::new(pattern)?;
    let switching = Switching::begin();
    let mut fit = 0;
    for (number, probe) in probes().enumerate().filter(|(_, probe)| pattern.fits(probe.name())) {
        fit += 1;
        let counted = probe.state() & COUNTED;
        // One that a rule has switched off stays so: the rule tries it again by itself.
        match (on, probe.state() & (ON | WANTED)) {
            (true, WANTED) => {}
            (true, _) => probe.set(number, ON | WANTED | counted, &switching),
            (false, _) => probe.set(number, counted, &switching),
        }
    }
    Ok(fit)
}

/// Records what probes see in this trace: installs it, and writes down which probes there are.
///
/// # Errors
///
/// Another trace is installed.
pub fn record(trace: &Trace) -> Result<(), corebeat_trace::Error> {
    trace.install()?;
    // Written when it goes, so that it is in the file whatever happens later.
    let (mut log, mut bytes) = (None, 0);
    for (number, probe) in probes().enumerate() {
        let declaration =
            Declare { probe: number as u16, name: probe.name(), file: probe.file, line: probe.line };
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

/// The right to switch probes.
pub(crate) struct Switching {
    _held: MutexGuard<'static, ()>,
}

impl Switching {
    pub(crate) fn begin() -> Switching {
        Switching { _held: SWITCHING.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Has calls counted, or no more; those that are off for a rule's sake are on again then.
    pub(crate) fn count(&self, counted: bool) {
        for (number, probe) in probes().enumerate() {
            let state = probe.state() & (ON | WANTED);
            match (counted, state & WANTED != 0) {
                (true, _) => probe.set(number, state | COUNTED, self),
                (false, true) => probe.set(number, ON | WANTED, self),
                (false, false) => probe.set(number, 0, self),
            }
        }
    }

    /// Switches one that the user wants on, for a rule.
    pub(crate) fn thin(&self, number: usize, on: bool) {
        let Some(probe) = PROBES.get(number) else { return };
        if probe.is_wanted() {
            let counted = probe.state() & COUNTED;
            probe.set(number, WANTED | counted | if on { ON } else { 0 }, self);
        }
    }
}

/// The path around an item called `Here`, without what the compiler puts in.
#[doc(hidden)]
pub fn name_around(here: &'static str) -> &'static str {
    let name = here.strip_suffix("::PROBE::name::Here").unwrap_or(here);
    name.strip_suffix("::{{closure}}").unwrap_or(name)
}
