//! Planted bugs, for models only: a model that would not notice them proves nothing.
//!
//! A fault weakens the memory ordering of accesses, or leaves fences out. It needs no change to the code that is modelled,
//! which goes through this crate for both; it is named by what is missing, and where:
//!
//! ```text
//!   light stream.rs          no light fence in that file is there
//!   release inbox.rs:57      what that line would release is relaxed
//! ```

use loom::sync::atomic::Ordering;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;
use std::str::FromStr;
use std::time::Duration;

/// What can be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Loads, and the loads of exchanges, acquire nothing.
    Acquire,
    /// Stores, and the stores of exchanges, release nothing.
    Release,
    /// Fences are not there.
    Fence,
    /// Light fences are not there.
    Light,
    /// Heavy fences are not there.
    Heavy,
}

const KINDS: [(Kind, &str); 5] = [
    (Kind::Acquire, "acquire"),
    (Kind::Release, "release"),
    (Kind::Fence, "fence"),
    (Kind::Light, "light"),
    (Kind::Heavy, "heavy"),
];

/// Something that is missing somewhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// What.
    pub kind: Kind,
    /// The file's name, without folders.
    pub file: String,
    /// Where in the file; `None` is everywhere.
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
        let wrong = || format!("'{text}' is no fault: write 'KIND FILE' or 'KIND FILE:LINE'");
        let (kind, place) = text.split_once(' ').ok_or_else(wrong)?;
        let kind = KINDS.iter().find(|(_, name)| *name == kind).ok_or_else(wrong)?.0;
        let (file, line) = match place.split_once(':') {
            Some((file, line)) => (file, Some(line.parse().map_err(|_| wrong())?)),
            None => (place, None),
        };
        Ok(Fault { kind, file: file.into(), line })
    }
}

// A model runs on one thread of the system.
thread_local! {
    static PLANTED: RefCell<Option<Fault>> = const { RefCell::new(None) };
    static SURVEYED: Cell<bool> = const { Cell::new(false) };
    static MET: RefCell<BTreeSet<(Kind, &'static str, u32)>> = const { RefCell::new(BTreeSet::new()) };
}

/// Plants a fault for the models of this thread, in the place of another.
pub fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

/// Runs models, and lists where they could have had faults.
pub fn survey(models: impl FnOnce()) -> Vec<Fault> {
    SURVEYED.set(true);
    models();
    SURVEYED.set(false);
    let met = MET.take();
    met.into_iter()
        .map(|(kind, file, line)| Fault { kind, file: name(file).into(), line: Some(line) })
        .collect()
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Names a fault for the models of a process.
const FAULT: &str = "COREBEAT_FAULT";
/// For how many minutes `cargo xtask soak` runs: models have one preemption more then, as far as they get. One that is expected to
/// fail need not.
const SOAK: &str = "COREBEAT_SOAK";
/// What a model may take of each of these minutes.
const MORE_TIME: Duration = Duration::from_secs(2);
/// Has models tell where there could be faults.
const SURVEY: &str = "COREBEAT_SURVEY";

/// How a model is run: beside the switches where a thread cannot go on, each execution has at most so many. What
/// `COREBEAT_FAULT` names is planted.
///
/// # Panics
///
/// If it names no fault, or `COREBEAT_SOAK` no number of minutes.
pub fn model(preemptions: usize) -> loom::model::Builder {
    plant_named();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    if let Ok(minutes) = std::env::var(SOAK) {
        let minutes: u32 = minutes.parse().expect("a number of minutes");
        builder.preemption_bound = Some(preemptions + 1);
        builder.max_duration = Some(MORE_TIME * minutes);
    }
    builder
}

/// Runs a model; where `COREBEAT_SURVEY` is set, tells where there could be faults in it.
pub fn run(model: impl FnOnce()) {
    if std::env::var_os(SURVEY).is_some() {
        survey(model).iter().for_each(|fault| println!("SITE {fault}"));
    } else {
        model();
    }
}

/// Plants what `COREBEAT_FAULT` names, or nothing.
fn plant_named() {
    plant(std::env::var(FAULT).ok().map(|fault| fault.parse().expect("a fault")));
}

/// Whether a model, by its path in the crate's module `model`, fails with a planted bug. It runs in a process of its own, because
/// one that has failed cannot always clear up.
///
/// # Panics
///
/// If this program has no such test.
pub fn is_noticed(model: &str, fault: &str) -> bool {
    let test = format!("model::{model}");
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", &test]).env(FAULT, fault).env_remove(SOAK);
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("running 1 test"), "there is no {test}: {said}");
    !output.status.success()
}

/// Whether it is missing here.
pub(crate) fn is_planted(kind: Kind, place: &'static Location<'static>) -> bool {
    if SURVEYED.get() {
        MET.with_borrow_mut(|met| met.insert((kind, place.file(), place.line())));
    }
    PLANTED.with_borrow(|planted| {
        planted.as_ref().is_some_and(|fault| {
            fault.kind == kind
                && fault.line.is_none_or(|line| line == place.line())
                && fault.file == name(place.file())
        })
    })
}

/// What is left of the ordering of an access.
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
