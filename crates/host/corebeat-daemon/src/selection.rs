//! The programs that the user selects for the policy `auto`, and the limits of its changes.

use corebeat_linux::Listed;
use corebeat_policy::knob::Knob;
use std::convert::Infallible;
use std::str::FromStr;

/// Suffixes of the names of systemd's units that have control groups.
const UNITS: [&str; 3] = [".service", ".scope", ".slice"];

/// Units of the processes that keep a session alive: the display server and its helpers
/// (systemd.special(7)), and the service manager itself.
const SESSION_UNITS: [&str; 2] = ["session.slice", "init.scope"];

/// Which programs the daemon steers by the policy `auto`, and how much it may change.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// Programs to steer; empty for all.
    pub include: Vec<Pattern>,
    /// Programs to leave alone, also if they are included.
    pub exclude: Vec<Pattern>,
    /// CPU time per second from which on a program is steered, in CPUs.
    pub threshold_cpus: f64,
    /// Largest number of programs that are steered at the same time.
    pub programs_max: usize,
    /// Knobs that may be changed.
    pub knobs: Vec<Knob>,
}

impl Default for Selection {
    /// All programs that use half a CPU, 16 at the same time, with all knobs. A program below half
    /// a CPU has little CPU time that a policy could save.
    fn default() -> Selection {
        Selection {
            include: vec![],
            exclude: vec![],
            threshold_cpus: 0.5,
            programs_max: 16,
            knobs: Knob::ALL.to_vec(),
        }
    }
}

/// A selection of processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// The name in the kernel, or the file name of the executable.
    Name(String),
    /// A control group, by its path from the root of its hierarchy, with all groups below it.
    Group(String),
    /// A unit of systemd: `NAME.service`, `NAME.scope` or `NAME.slice`.
    Unit(String),
}

impl FromStr for Pattern {
    type Err = Infallible;

    /// A text that begins with `/` is a control group; a text that ends as a unit is a unit; every
    /// other text is a name.
    fn from_str(text: &str) -> Result<Pattern, Infallible> {
        Ok(match text {
            _ if text.starts_with('/') => Pattern::Group(text.trim_end_matches('/').into()),
            _ if UNITS.iter().any(|suffix| text.ends_with(suffix)) => Pattern::Unit(text.into()),
            _ => Pattern::Name(text.into()),
        })
    }
}

/// Attributes that identify a process for a user. Reading them costs more than a listing.
pub(crate) trait Facts {
    /// See [`Listed::user`].
    fn user(&self, process: &Listed) -> Option<u32>;
    /// See [`Listed::is_named`].
    fn is_named(&self, process: &Listed, name: &str) -> bool;
    /// See [`Listed::control_groups`].
    fn control_groups(&self, process: &Listed) -> Vec<String>;
    /// See [`Listed::arguments`].
    fn arguments(&self, process: &Listed) -> Vec<String>;
    /// Whether this process may change the settings of a process.
    fn may_change(&self, process: &Listed) -> bool;
}

/// The facts in `/proc`.
#[derive(Debug)]
pub(crate) struct ProcFacts;

impl Facts for ProcFacts {
    fn user(&self, process: &Listed) -> Option<u32> {
        process.user()
    }

    fn is_named(&self, process: &Listed, name: &str) -> bool {
        process.is_named(name)
    }

    fn control_groups(&self, process: &Listed) -> Vec<String> {
        process.control_groups()
    }

    fn arguments(&self, process: &Listed) -> Vec<String> {
        process.arguments()
    }

    fn may_change(&self, process: &Listed) -> bool {
        corebeat_linux::may_change(process.id.tid)
    }
}

impl Pattern {
    fn matches(&self, process: &Listed, facts: &impl Facts) -> bool {
        let groups = |is_meant: &dyn Fn(&str) -> bool| {
            facts.control_groups(process).iter().any(|path| is_meant(path))
        };
        match self {
            Pattern::Name(name) => facts.is_named(process, name),
            Pattern::Group(group) => groups(&|path| {
                path.strip_prefix(group.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }),
            Pattern::Unit(unit) => groups(&|path| is_in(path, unit)),
        }
    }
}

/// Whether a control group belongs to a unit or to a unit within it.
fn is_in(path: &str, unit: &str) -> bool {
    path.split('/').any(|part| part == unit)
}

impl Selection {
    /// Whether a process is excluded.
    pub(crate) fn excludes(&self, process: &Listed, facts: &impl Facts) -> bool {
        self.exclude.iter().any(|pattern| pattern.matches(process, facts))
    }

    /// Whether a program may be steered that has these processes; the first one is its root. The
    /// daemon leaves alone what runs by a decision of its user, and what keeps a session alive: a
    /// root with another nice value or class than the default, and a root in a unit of a session
    /// unless it is included.
    pub(crate) fn admits(&self, root: &Listed, members: &[&Listed], facts: &impl Facts) -> bool {
        let is_included =
            members.iter().any(|p| self.include.iter().any(|pattern| pattern.matches(p, facts)));
        let of_session = || {
            let groups = facts.control_groups(root);
            groups.iter().any(|path| SESSION_UNITS.iter().any(|unit| is_in(path, unit)))
        };
        root.nice == 0
            && root.is_normal
            && (is_included || (self.include.is_empty() && !of_session()))
            && !members.iter().any(|p| self.excludes(p, facts))
    }
}
