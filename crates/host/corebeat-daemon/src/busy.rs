//! The search for programs that use the CPU: which ones the daemon begins to steer, and which ones
//! it releases. No time and no process is read here, except through [`Facts`].
//!
//! ```text
//!   listing ----> CPU time since the last listing, by process
//!                    | a process above the threshold, no ancestor of which is steered
//!                    v
//!   left alone? ---> program = the process with its descendants ---> released: quiet for 10 s,
//!                                                                    ended, or left alone
//! ```

use crate::selection::{Facts, Selection};
use corebeat_linux::Listed;
use corebeat_machine::ThreadId;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Time below the threshold after which a program is released: programs pause for input and
/// output, and a change for a program that is released and found again is measured anew.
pub(crate) const QUIET_NS: u64 = 10_000_000_000;

/// Commands of Corebeat that steer or measure programs: those that they start, and those that
/// they attach to.
const STEERING_COMMANDS: [&str; 4] = ["run", "tune", "train", "demo"];

/// Name of Corebeat in the kernel.
const COREBEAT: &str = "corebeat";

/// Programs that begin to be steered or are released. A program is identified by its first process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) begin: Vec<ThreadId>,
    /// With the reason.
    pub(crate) end: Vec<(ThreadId, &'static str)>,
}

/// The search, with the programs that are steered.
#[derive(Debug)]
pub(crate) struct Search<F> {
    selection: Selection,
    /// User whose programs are steered; `None` for all users.
    user: Option<u32>,
    /// Number of this process.
    own: i32,
    facts: F,
    /// Time and CPU times of the last listing.
    before: Option<(u64, HashMap<ThreadId, u64>)>,
    /// Time at which each program was last above the threshold.
    programs: BTreeMap<ThreadId, u64>,
    /// Processes that cannot be steered.
    refused: BTreeSet<ThreadId>,
}

/// A listing with the relations of its processes.
struct Family<'a> {
    all: &'a [Listed],
    by_pid: HashMap<i32, &'a Listed>,
    children: HashMap<i32, Vec<&'a Listed>>,
}

impl<'a> Family<'a> {
    fn new(all: &'a [Listed]) -> Self {
        let by_pid = all.iter().map(|p| (p.id.tid, p)).collect();
        let mut children: HashMap<i32, Vec<&Listed>> = HashMap::new();
        all.iter().for_each(|p| children.entry(p.parent).or_default().push(p));
        Family { all, by_pid, children }
    }

    /// Returns a process and its ancestors. Numbers that are reused during a listing may form a
    /// cycle.
    fn line(&self, pid: i32) -> impl Iterator<Item = &'a Listed> {
        let of = |pid: i32| self.by_pid.get(&pid).copied();
        std::iter::successors(of(pid), move |p| of(p.parent)).take(self.all.len())
    }

    /// Returns a process and its descendants, except other roots with their descendants.
    fn members(&self, root: ThreadId, roots: &BTreeMap<ThreadId, u64>) -> Vec<&'a Listed> {
        let root = self.by_pid.get(&root.tid).filter(|p| p.id == root);
        let mut members: Vec<&Listed> = root.copied().into_iter().collect();
        let mut known: HashSet<ThreadId> = members.iter().map(|p| p.id).collect();
        let mut next = 0;
        while let Some(process) = members.get(next) {
            let children = self.children.get(&process.id.tid).into_iter().flatten();
            let children = children.filter(|p| !roots.contains_key(&p.id) && known.insert(p.id));
            members.extend(children.copied().collect::<Vec<_>>());
            next += 1;
        }
        members
    }
}

impl<F: Facts> Search<F> {
    pub(crate) fn new(selection: Selection, user: Option<u32>, own: i32, facts: F) -> Self {
        Search {
            selection,
            user,
            own,
            facts,
            before: None,
            programs: BTreeMap::new(),
            refused: BTreeSet::new(),
        }
    }

    /// Records that a program cannot be steered.
    pub(crate) fn refuse(&mut self, program: ThreadId) {
        self.programs.remove(&program);
        self.refused.insert(program);
    }

    /// Decides after a listing. `apart` are processes that the daemon serves in another way.
    pub(crate) fn search(&mut self, all: &[Listed], apart: &BTreeSet<i32>, now_ns: u64) -> Found {
        let times = all.iter().map(|p| (p.id, p.cpu_ns)).collect();
        let Some((before_ns, before)) = self.before.replace((now_ns, times)) else {
            return Found::default();
        };
        let used = |p: &Listed| p.cpu_ns.saturating_sub(before.get(&p.id).copied().unwrap_or(0));
        let span_ns = now_ns.saturating_sub(before_ns);
        let least_ns = (self.selection.threshold_cpus * span_ns as f64).max(1.0) as u64;
        let family = Family::new(all);
        let left = self.left_alone(&family, apart);
        let is_left = |p: &Listed| family.line(p.id.tid).any(|p| left.contains(&p.id.tid));
        self.refused.retain(|id| family.by_pid.get(&id.tid).is_some_and(|p| p.id == *id));

        let mut found = Found::default();
        let mut steered = HashSet::new();
        for root in self.programs.keys().copied().collect::<Vec<_>>() {
            let members = family.members(root, &self.programs);
            let cpu_ns: u64 = members.iter().map(|p| used(p)).sum();
            if cpu_ns >= least_ns {
                self.programs.insert(root, now_ns);
            }
            let quiet_ns = now_ns.saturating_sub(self.programs[&root]);
            let why = match () {
                () if members.is_empty() => "it has ended",
                () if members.iter().any(|p| is_left(p)) => "it is served in another way",
                () if members.iter().any(|p| self.selection.excludes(p, &self.facts)) => {
                    "one of its processes is excluded"
                }
                () if quiet_ns >= QUIET_NS => "it uses little CPU time",
                () => {
                    steered.extend(members.iter().map(|p| p.id));
                    continue;
                }
            };
            self.programs.remove(&root);
            found.end.push((root, why));
        }

        let own_line: HashSet<i32> = family.line(self.own).map(|p| p.id.tid).collect();
        let mut candidates: Vec<&Listed> = all
            .iter()
            .filter(|p| used(p) >= least_ns && !p.is_kernel && !own_line.contains(&p.id.tid))
            .filter(|p| !steered.contains(&p.id) && !self.refused.contains(&p.id))
            .collect();
        // Ancestors come first: their descendants belong to their programs.
        let generation = |p: &Listed| family.line(p.id.tid).filter(|p| used(p) >= least_ns).count();
        candidates.sort_by_cached_key(|p| (generation(p), std::cmp::Reverse(used(p))));
        for root in candidates {
            let members = family.members(root.id, &self.programs);
            let is_part = || family.line(root.id.tid).any(|p| self.programs.contains_key(&p.id));
            if self.programs.len() < self.selection.programs_max
                && !is_part()
                && !members.iter().any(|p| is_left(p))
                && self.is_permitted(root)
                && self.selection.admits(root, &members, &self.facts)
            {
                self.programs.insert(root.id, now_ns);
                found.begin.push(root.id);
            }
        }
        found
    }

    /// Whether a process belongs to the users that are served, and its settings may be changed.
    fn is_permitted(&self, process: &Listed) -> bool {
        let user = self.facts.user(process);
        user.is_some_and(|user| self.user.is_none_or(|served| served == user))
            && self.facts.may_change(process)
    }

    /// Returns the processes that are left alone with all their descendants: those apart, the
    /// Corebeats that steer or measure programs, and the processes that these attached to. Only
    /// Corebeats of root and of the user of a process count: other users cannot withdraw the
    /// process.
    fn left_alone(&self, family: &Family<'_>, apart: &BTreeSet<i32>) -> HashSet<i32> {
        let mut left: HashSet<i32> = apart.iter().copied().collect();
        let is_corebeat = |p: &&Listed| p.name == COREBEAT && p.id.tid != self.own;
        for corebeat in family.all.iter().filter(is_corebeat) {
            let arguments = self.facts.arguments(corebeat);
            let Some((command, arguments)) = arguments.get(1..).and_then(<[_]>::split_first) else {
                continue;
            };
            if !STEERING_COMMANDS.contains(&command.as_str()) {
                continue;
            }
            left.insert(corebeat.id.tid);
            let subjects = attached(arguments);
            let user = self.facts.user(corebeat);
            let is_attached = |p: &&Listed| {
                subjects.iter().any(|subject| match subject.parse::<i32>() {
                    Ok(pid) => pid == p.id.tid,
                    Err(_) => self.facts.is_named(p, subject),
                }) && (user == Some(0) || user == self.facts.user(p))
            };
            left.extend(family.all.iter().filter(is_attached).map(|p| p.id.tid));
        }
        left
    }
}

/// Returns the numbers and names of the processes that `corebeat run` attaches to.
fn attached(arguments: &[String]) -> Vec<&str> {
    let mut subjects = vec![];
    let mut arguments = arguments.iter().map(String::as_str).take_while(|&word| word != "--");
    while let Some(word) = arguments.next() {
        let joined = || word.strip_prefix("--pid=").or_else(|| word.strip_prefix("-p"));
        subjects.extend(match word {
            "-p" | "--pid" => arguments.next(),
            _ => joined().map(|subject| subject.strip_prefix('=').unwrap_or(subject)),
        });
    }
    subjects
}

#[cfg(test)]
mod tests;
