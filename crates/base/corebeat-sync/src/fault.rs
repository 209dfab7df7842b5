//! Planted faults for models: a model that does not detect them proves nothing.
//!
//! A fault weakens the memory ordering of accesses or removes fences. The modelled code needs no
//! change, because it uses this crate for both. A fault is named by its kind and its place:
//!
//! ```text
//!   light stream.rs          removes every light fence in that file
//!   release inbox.rs:57      makes the releasing access in that line relaxed
//!   step recheck             omits the step of a model that is named so
//! ```

use loom::sync::atomic::Ordering;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;
use std::str::FromStr;
use std::time::Duration;

/// Kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Loads, and the loads of read-modify-write operations, do not acquire.
    Acquire,
    /// Stores, and the stores of read-modify-write operations, do not release.
    Release,
    /// Fences are removed.
    Fence,
    /// Light fences are removed.
    Light,
    /// Heavy fences are removed.
    Heavy,
    /// A step that a model names is omitted ([`omits`]).
    Step,
}

const KINDS: [(Kind, &str); 6] = [
    (Kind::Acquire, "acquire"),
    (Kind::Release, "release"),
    (Kind::Fence, "fence"),
    (Kind::Light, "light"),
    (Kind::Heavy, "heavy"),
    (Kind::Step, "step"),
];

/// A fault: its kind and its place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Kind of the fault.
    pub kind: Kind,
    /// Name of the source file, without folders.
    pub file: String,
    /// Line in the file; `None` means every line.
    pub line: Option<u32>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or("", |(_, name)| name);
        write!(f, "{name} {}", self.file)?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let invalid = || format!("'{text}' is not a fault: write 'KIND FILE' or 'KIND FILE:LINE'");
        let (kind, place) = text.split_once(' ').ok_or_else(invalid)?;
        let kind = KINDS.iter().find(|(_, name)| *name == kind).ok_or_else(invalid)?.0;
        let (file, line) = match place.split_once(':') {
            Some((file, line)) => (file, Some(line.parse().map_err(|_| invalid())?)),
            None => (place, None),
        };
        Ok(Fault { kind, file: file.into(), line })
    }
}

// loom runs a model on one thread of the system.
thread_local! {
    static PLANTED: RefCell<Option<Fault>> = const { RefCell::new(None) };
    static SURVEYED: Cell<bool> = const { Cell::new(false) };
    static SITES: RefCell<BTreeSet<(Kind, &'static str, u32)>> =
        const { RefCell::new(BTreeSet::new()) };
}

/// Plants a fault for the models of this thread. It replaces the previous fault.
pub fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

/// Runs models and returns the places where faults can be planted.
pub fn survey(models: impl FnOnce()) -> Vec<Fault> {
    SURVEYED.set(true);
    models();
    SURVEYED.set(false);
    let sites = SITES.take();
    sites
        .into_iter()
        .map(|(kind, file, line)| Fault { kind, file: name(file).into(), line: Some(line) })
        .collect()
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Environment variable that names a fault for the models of a process.
const FAULT: &str = "COREBEAT_FAULT";
/// Environment variable with the duration of `cargo xtask soak` in minutes. Models then allow one
/// more preemption, within a time limit. Models that are expected to fail do not need that.
const SOAK: &str = "COREBEAT_SOAK";
/// Time limit of one model for each of these minutes.
const MORE_TIME: Duration = Duration::from_secs(2);
/// Environment variable that makes models print the places where faults can be planted.
const SURVEY: &str = "COREBEAT_SURVEY";

/// Returns a builder for a model. Besides the switches at which a thread cannot continue, each
/// execution has at most `preemptions` switches. Plants the fault that `COREBEAT_FAULT` names.
///
/// # Panics
///
/// If `COREBEAT_FAULT` is not a fault, or `COREBEAT_SOAK` is not a number of minutes.
pub fn model(preemptions: usize) -> loom::model::Builder {
    plant_named();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    if let Ok(minutes) = std::env::var(SOAK) {
        let minutes: u32 = minutes.parse().expect("COREBEAT_SOAK must be a number of minutes");
        builder.preemption_bound = Some(preemptions + 1);
        builder.max_duration = Some(MORE_TIME * minutes);
    }
    builder
}

/// Checks a model whose threads have thread-local data with destructors. Besides the switches at
/// which a thread cannot continue, each execution has at most `preemptions` switches. `leave` ends
/// a thread of the model: see [`spawn`].
pub fn check(preemptions: usize, leave: fn(), model: impl Fn() + Sync + Send + 'static) {
    let mut builder = self::model(preemptions);
    builder.max_branches = 10_000;
    let model = std::sync::Arc::new(model);
    run(|| {
        builder.check(move || {
            crate::asymmetric::heavy_fence();
            let model = model.clone();
            spawn(leave, move || model()).join().expect("a panic ends the model earlier");
        });
    });
}

/// Spawns a thread of a model, which calls `leave` at its end: loom drops thread-local data after
/// the statics, which is too late for destructors that use them.
pub fn spawn<T: 'static>(
    leave: fn(),
    f: impl FnOnce() -> T + 'static,
) -> crate::thread::JoinHandle<T> {
    crate::thread::spawn(move || {
        let result = f();
        leave();
        result
    })
}

/// A value whose end a model observes: loom reports a use at the same time as the destruction.
pub struct Watched(crate::cell::UnsafeCell<u32>);

// SAFETY: loom checks the accesses.
unsafe impl Sync for Watched {}

impl Watched {
    /// Content of a value that was not dropped.
    const ALIVE: u32 = 7;

    /// Creates a value.
    #[expect(clippy::new_without_default, reason = "a default would not state its value")]
    pub fn new() -> Watched {
        Watched(crate::cell::UnsafeCell::new(Watched::ALIVE))
    }

    /// Uses the value.
    ///
    /// # Panics
    ///
    /// If the value was dropped.
    pub fn check(&self) {
        // SAFETY: loom checks that no thread writes the value.
        let value = self.0.with(|value| unsafe { *value });
        assert_eq!(value, Watched::ALIVE, "the value was dropped");
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: as above. The value changes so that a failing model, which reads freed memory,
        // detects it.
        self.0.with_mut(|value| unsafe { *value = 0 });
    }
}

/// Runs a model. If `COREBEAT_SURVEY` is set, prints the places where faults can be planted.
pub fn run(model: impl FnOnce()) {
    if std::env::var_os(SURVEY).is_some() {
        survey(model).iter().for_each(|fault| println!("SITE {fault}"));
    } else {
        model();
    }
}

/// Plants the fault that `COREBEAT_FAULT` names, if the variable is set.
fn plant_named() {
    let parse = |fault: String| fault.parse().unwrap_or_else(|why| panic!("{FAULT}: {why}"));
    plant(std::env::var(FAULT).ok().map(parse));
}

/// Returns whether a model fails with a planted fault. `model` is the path of the test in the
/// crate's module `model`. The model runs in a separate process, because a failed model cannot
/// always release its resources.
///
/// # Panics
///
/// If this test program has no such test.
pub fn is_noticed(model: &str, fault: &str) -> bool {
    let test = format!("model::{model}");
    let mut command =
        std::process::Command::new(std::env::current_exe().expect("the test program has a path"));
    command.args(["--exact", &test]).env(FAULT, fault).env_remove(SOAK);
    let output = command.output().expect("the test program starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("running 1 test"), "no test is named {test}: {printed}");
    !output.status.success()
}

/// Asserts that models fail with planted faults: pairs of a model and a fault of
/// [`is_noticed`].
///
/// # Panics
///
/// If a model does not detect its fault.
pub fn assert_noticed(faults: &[(&str, &str)]) {
    let missed: Vec<_> = faults.iter().filter(|(model, fault)| !is_noticed(model, fault)).collect();
    assert!(missed.is_empty(), "models do not detect these planted faults: {missed:?}");
}

/// Returns whether a model omits the step with this name, because the fault `step NAME` is planted.
pub fn omits(step: &str) -> bool {
    let is_step = |fault: &Fault| fault.kind == Kind::Step && fault.file == step;
    PLANTED.with_borrow(|planted| planted.as_ref().is_some_and(is_step))
}

/// Returns whether a fault of this kind is planted at this place.
pub(crate) fn is_planted(kind: Kind, place: &'static Location<'static>) -> bool {
    if SURVEYED.get() {
        SITES.with_borrow_mut(|sites| sites.insert((kind, place.file(), place.line())));
    }
    PLANTED.with_borrow(|planted| {
        planted.as_ref().is_some_and(|fault| {
            fault.kind == kind
                && fault.line.is_none_or(|line| line == place.line())
                && fault.file == name(place.file())
        })
    })
}

/// Returns the ordering that an access keeps with the planted fault.
pub(crate) fn weaken(ordering: Ordering, place: &'static Location<'static>) -> Ordering {
    use Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
    let acquires = matches!(ordering, Acquire | AcqRel | SeqCst);
    let releases = matches!(ordering, Release | AcqRel | SeqCst);
    let still_acquires = acquires && !is_planted(Kind::Acquire, place);
    let still_releases = releases && !is_planted(Kind::Release, place);
    match (still_acquires, still_releases) {
        _ if (acquires, releases) == (still_acquires, still_releases) => ordering,
        (true, _) => Acquire,
        (_, true) => Release,
        _ => Relaxed,
    }
}
