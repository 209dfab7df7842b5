//! Control groups for the weight, the quota and the freezing of a program, in version 1 and 2.
//!
//! The processes of the program move into a child of their group, so that all their limits still
//! hold. In version 2 the child is a *threaded* group: processes may then stay in
//! the parent although the cpu controller is on for its children (Linux,
//! Documentation/admin-guide/cgroup-v2.rst, "Threads").

use crate::Error;
use crate::file::{field, lock_within, read_text};
use rustix::fs::{Access, FsWord, Mode, OFlags, access, statfs};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Prefix of the names of Corebeat's groups. No other group is ever emptied or removed.
const PREFIX: &str = "corebeat-";
/// `CGROUP_SUPER_MAGIC` and `CGROUP2_SUPER_MAGIC` of linux/magic.h.
const MAGIC: FsWord = 0x0027_e0eb;
const MAGIC_V2: FsWord = 0x6367_7270;
/// Feature that is unavailable without control groups.
const WHAT: &str = "setting the weight or quota of a program, or freezing a program";
/// Time to wait for the lock of a group: longer than a Corebeat holds the lock. Every process may
/// open a group and lock it forever.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of attempts to empty a group: a process may fork while it is moved.
const ROUNDS_MAX: u32 = 64;
/// Number of groups below a group of Corebeat that are examined at once.
const BELOW_MAX: usize = 10_000;

/// Files that freeze groups.
const FREEZE: &str = "freezer.state";
const FREEZE_V2: &str = "cgroup.freeze";
/// File that lists the controllers of the children of a group of version 2.
const CHILDREN: &str = "cgroup.subtree_control";

/// Weight of a new group.
pub(crate) const WEIGHT_DEFAULT: u32 = 100;
/// Period of quotas, in microseconds: the default of the kernel.
const QUOTA_PERIOD_US: u64 = 100_000;
/// Smallest quota that the kernel accepts, in microseconds for each period (`min_cfs_quota_period`,
/// kernel/sched/core.c).
const QUOTA_US_MIN: u64 = 1_000;
/// CPU time of the largest machine, in microseconds for each period.
const QUOTA_US_MAX: u64 = corebeat_machine::CPU_MAX as u64 * QUOTA_PERIOD_US;

/// Purpose of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Weights and quotas: the cpu controller.
    Cpu,
    /// Freezing: the freezer of version 1, or any group of version 2.
    Freeze,
}

impl Use {
    /// Returns the controller of version 1.
    fn controller(self) -> &'static str {
        match self {
            Use::Cpu => "cpu",
            Use::Freeze => "freezer",
        }
    }
}

/// A mounted hierarchy that has the required controller.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    /// Group that is visible at `point`.
    root: String,
    v2: bool,
    /// Whether the cpuset controller is in the same hierarchy: new groups of version 1 then start
    /// without CPUs.
    cpuset: bool,
}

/// Group of a process, in which a group of Corebeat can be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    dir: PathBuf,
    wanted: Use,
    v2: bool,
    cpuset: bool,
}

/// A group of Corebeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    path: PathBuf,
    place: Place,
}

impl Place {
    /// Returns the group of a process in the cpu controller. `Ok(None)` if the process has ended.
    pub(crate) fn of(pid: i32) -> Result<Option<Place>, Error> {
        Place::find(pid, Use::Cpu)
    }

    /// Returns the group of a process in the hierarchy for freezing. `Ok(None)` if the process has
    /// ended.
    pub(crate) fn to_freeze(pid: i32) -> Result<Option<Place>, Error> {
        Place::find(pid, Use::Freeze)
    }

    fn find(pid: i32, wanted: Use) -> Result<Option<Place>, Error> {
        let missing = |how: &str| Error::Unsupported { what: WHAT.into(), how: how.into() };
        let path = "/proc/self/mountinfo";
        let mounts = read_text(path).map_err(|source| Error::Read { path: path.into(), source })?;
        let mount = find_mount(&mounts, wanted).ok_or_else(|| {
            let controller = wanted.controller();
            missing(&format!(
                "control groups with the {controller} controller are not mounted: mount cgroup2 at \
                 /sys/fs/cgroup"
            ))
        })?;
        let Ok(groups) = read_text(format!("/proc/{pid}/cgroup")) else { return Ok(None) };
        let group = group_in(&groups, mount.v2, wanted).ok_or_else(|| {
            missing(&format!(
                "the process is in no group of the {} controller",
                wanted.controller()
            ))
        })?;
        // The journal is text.
        if group.contains(char::REPLACEMENT_CHARACTER) {
            return Err(missing("the name of its control group is not valid UTF-8: rename it"));
        }
        let below = Path::new(group).strip_prefix(&mount.root).ok();
        let below = below.filter(|p| !p.components().any(|c| c == std::path::Component::ParentDir));
        let below = below.ok_or_else(|| {
            missing(
                "the control group of the program is not mounted: run Corebeat outside the \
                 container",
            )
        })?;
        Ok(Some(Place { dir: mount.point.join(below), wanted, v2: mount.v2, cpuset: mount.cpuset }))
    }

    /// Returns the folder of the group.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the smallest quota of this group and of those around it, in CPUs.
    pub(crate) fn quota(&self) -> Option<f64> {
        let quota = |dir: &Path| {
            let read = |file: &str| fs::read_to_string(dir.join(file)).ok();
            match self.v2 {
                true => parse_quota(&read("cpu.max")?),
                false => {
                    parse_quota(&(read("cpu.cfs_quota_us")? + " " + &read("cpu.cfs_period_us")?))
                }
            }
        };
        let groups = self.dir.ancestors().take_while(|dir| is_group(dir));
        groups.filter_map(quota).reduce(f64::min)
    }

    /// Returns for how long the quota has stopped this group, in seconds. `None` without a quota.
    pub(crate) fn throttled_s(&self) -> Option<f64> {
        self.quota()?;
        let text = fs::read_to_string(self.dir.join("cpu.stat")).ok()?;
        let number = |name: &str| field(&text, name)?.parse::<f64>().ok();
        number("throttled_usec ")
            .map(|us| us / 1e6)
            .or(number("throttled_time ").map(|ns| ns / 1e9))
    }

    /// Returns the version of control groups: 1 or 2.
    pub(crate) fn version(&self) -> u32 {
        if self.v2 { 2 } else { 1 }
    }

    /// Returns the group with this name below this group, or this group itself if it has the name:
    /// in version 2 one group serves all purposes.
    pub(crate) fn group(mut self, name: &str) -> Group {
        let name = format!("{PREFIX}{name}");
        if self.dir.file_name().is_some_and(|own| *own == *name) {
            self.dir.pop();
        }
        Group { path: self.dir.join(name), place: self }
    }

    /// Returns the folder for whose children Corebeat must enable the cpu controller, and disable
    /// it in the end.
    pub(crate) fn to_enable(&self) -> Option<&Path> {
        // Another Corebeat may have enabled the controller: the last one to end disables it.
        (self.v2
            && self.wanted == Use::Cpu
            && (!is_on(&self.dir) || !own_children(&self.dir).is_empty()))
        .then_some(self.dir.as_path())
    }

    /// Prevents other Corebeats from creating and removing groups here, until the lock is dropped.
    ///
    /// # Errors
    /// Same as [`Lock::of`].
    pub(crate) fn lock(&self, lock_timeout: Duration) -> Result<Option<Lock>, Error> {
        Lock::of(&self.dir, lock_timeout)
    }
}

/// Lock of a control group in which Corebeat creates or removes groups. The lock protects the
/// decision whether the cpu controller must be enabled or disabled.
pub(crate) struct Lock(#[expect(dead_code, reason = "held, not used")] OwnedFd);

impl Lock {
    /// Locks a group. `None` if there is no group, or if it cannot be locked: later steps then
    /// fail, or most likely have no competitor.
    ///
    /// # Errors
    /// [`Error::Refused`] if another process holds the lock until the timeout.
    pub(crate) fn of(dir: &Path, lock_timeout: Duration) -> Result<Option<Lock>, Error> {
        // A journal may name any folder.
        if !is_group(dir) {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(fd) = rustix::fs::open(dir, flags, Mode::empty()) else { return Ok(None) };
        match lock_within(&fd, lock_timeout) {
            Ok(()) => Ok(Some(Lock(fd))),
            Err(e @ Errno::WOULDBLOCK) => Err(Error::Refused {
                what: format!("lock the control group {}", dir.display()),
                source: e.into(),
            }),
            Err(_) => Ok(None),
        }
    }
}

impl Group {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the group in which this group is.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Returns whether a process is in this group or below.
    pub(crate) fn holds(&self, pid: i32) -> bool {
        Place::find(pid, self.place.wanted)
            .ok()
            .flatten()
            .is_none_or(|p| p.dir.starts_with(&self.path))
    }

    /// Creates the group unless it exists.
    pub(crate) fn make(&self) -> Result<(), Error> {
        let dir = &self.place.dir;
        match fs::create_dir(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(explain(dir, e)),
            _ => {}
        }
        if self.place.v2 {
            // The type comes first: only with threaded children can the parent keep processes.
            put(&self.path, "cgroup.type", "threaded")?;
            if self.place.wanted == Use::Cpu {
                put(dir, CHILDREN, "+cpu")?;
            }
        }
        if self.place.cpuset {
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let parents = fs::read_to_string(dir.join(file)).map_err(|e| explain(dir, e))?;
                put(&self.path, file, parents.trim())?;
            }
        }
        Ok(())
    }

    /// Sets the weight.
    pub(crate) fn set_weight(&self, weight: u32) -> Result<(), Error> {
        match self.place.v2 {
            true => put(&self.path, "cpu.weight", &weight.to_string()),
            false => put(&self.path, "cpu.shares", &shares(weight).to_string()),
        }
    }

    /// Returns for how long the quota of this group has stopped it, in seconds. `None` without a
    /// quota.
    pub(crate) fn throttled_s(&self) -> Option<f64> {
        Place { dir: self.path.clone(), ..self.place.clone() }.throttled_s()
    }

    /// Sets the quota, in CPUs; `None` for no quota.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the kernel refuses a quota that exceeds that of an enclosing
    /// group, as version 1 does.
    pub(crate) fn limit(&self, cpus: Option<f64>) -> Result<(), Error> {
        self.put_quota(cpus).map_err(|e| {
            let around = self.place.quota();
            excess(cpus, around).map_or(e, Error::InvalidArgument)
        })
    }

    fn put_quota(&self, cpus: Option<f64>) -> Result<(), Error> {
        let quota_us = cpus.map(quota_us);
        if self.place.v2 {
            let quota = quota_us.map_or_else(|| "max".into(), |us| us.to_string());
            return put(&self.path, "cpu.max", &format!("{quota} {QUOTA_PERIOD_US}"));
        }
        put(&self.path, "cpu.cfs_period_us", &QUOTA_PERIOD_US.to_string())?;
        put(
            &self.path,
            "cpu.cfs_quota_us",
            &quota_us.map_or_else(|| "-1".into(), |us| us.to_string()),
        )
    }

    /// Freezes or thaws all processes in the group.
    pub(crate) fn freeze(&self, frozen: bool) -> Result<(), Error> {
        match (self.place.v2, frozen) {
            (true, _) => put(&self.path, FREEZE_V2, if frozen { "1" } else { "0" }),
            (false, true) => put(&self.path, FREEZE, "FROZEN"),
            (false, false) => put(&self.path, FREEZE, "THAWED"),
        }
    }

    /// Moves a process into the group. A process that has ended is no error.
    pub(crate) fn take(&self, pid: i32) -> Result<(), Error> {
        match fs::write(self.path.join("cgroup.procs"), pid.to_string()) {
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other.map_err(|e| explain(&self.path, e)),
        }
    }
}

/// Returns why a quota is too large, if it exceeds that of the enclosing groups.
fn excess(cpus: Option<f64>, around: Option<f64>) -> Option<String> {
    let (cpus, around) = cpus.zip(around).filter(|(cpus, around)| cpus > around)?;
    // Rounded up, the quota would be refused again.
    let most = (around * 100.0).floor() / 100.0;
    Some(format!(
        "the quota of {cpus} CPUs exceeds that of the enclosing control group, {around:.2} CPUs: \
         choose a quota of at most {most} CPUs, or none"
    ))
}

/// Returns the shares of version 1 for a weight: 1,024 for the weight 100.
fn shares(weight: u32) -> u64 {
    (u64::from(weight) * 1024 / 100).clamp(2, 262_144)
}

/// Returns the CPU time for each period, in microseconds.
fn quota_us(cpus: f64) -> u64 {
    ((cpus * QUOTA_PERIOD_US as f64).round() as u64).clamp(QUOTA_US_MIN, QUOTA_US_MAX)
}

/// Returns the processes in a group of Corebeat, without groups below.
pub(crate) fn members(path: &Path) -> Vec<i32> {
    tasks(path).unwrap_or_default()
}

fn tasks(path: &Path) -> io::Result<Vec<i32>> {
    let text = fs::read_to_string(path.join(threads_file(path)))?;
    Ok(text.split_ascii_whitespace().filter_map(|n| n.parse().ok()).collect())
}

fn threads_file(path: &Path) -> &'static str {
    if magic(path) == Some(MAGIC_V2) { "cgroup.threads" } else { "tasks" }
}

/// Parses a quota and its period, as in the file `cpu.max` of version 2. Returns the quota in CPUs.
fn parse_quota(text: &str) -> Option<f64> {
    let mut numbers = text.split_ascii_whitespace().map(|n| n.parse::<f64>().ok());
    let (quota, period) = (numbers.next()??, numbers.next()??);
    // Version 1 has -1 for no quota.
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

fn is_group(path: &Path) -> bool {
    matches!(magic(path), Some(MAGIC | MAGIC_V2))
}

fn magic(path: &Path) -> Option<FsWord> {
    statfs(path).ok().map(|s| s.f_type)
}

/// Returns the parent of a group of Corebeat. `None` if the group does not exist.
///
/// The path may come from a journal and is validated: it must be a control group with the prefix of
/// Corebeat's names. A path where no control groups are mounted is an error: the group may exist.
pub(crate) fn parent_of_own(path: &Path) -> Result<Option<&Path>, String> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.to_string()),
        Err(_) if path.ancestors().find(|dir| dir.exists()).is_some_and(is_group) => {
            return Ok(None);
        }
        Err(_) => {
            return Err("control groups are not mounted there; mount them, then run 'corebeat \
                        restore'"
                .into());
        }
    };
    let is_group = meta.is_dir() && is_group(path);
    let parent = path.parent().filter(|_| is_named_as_own(path) && is_group);
    parent.map(Some).ok_or_else(|| "the path is not a control group of Corebeat".into())
}

/// Returns whether a group of Corebeat exists, or why [`remove`] would not remove it after the
/// groups `removed`.
pub(crate) fn is_removable(path: &Path, removed: &[PathBuf]) -> Result<bool, String> {
    let exists = parent_of_own(path)?.is_some();
    occupied(path, removed).map_or(Ok(exists), Err)
}

/// Returns the groups that a program has created below its group, each before those in it.
fn below(path: &Path) -> Vec<PathBuf> {
    let mut groups = vec![path.to_owned()];
    let mut next = 0;
    while next < groups.len() && groups.len() < BELOW_MAX {
        let entries = fs::read_dir(&groups[next]).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        groups.extend(folders.map(|entry| entry.path()));
        next += 1;
    }
    groups.split_off(1)
}

/// Returns why a group cannot be removed after the groups `removed`, if a process is in a group
/// below it.
fn occupied(path: &Path, removed: &[PathBuf]) -> Option<String> {
    below(path).into_iter().filter(|group| !removed.contains(group)).find_map(|group| {
        let tid = *members(&group).first()?;
        let name = read_text(format!("/proc/{tid}/comm")).unwrap_or_default();
        let (creator, remedy) = match is_named_as_own(&group) {
            true => ("Corebeat", "end that Corebeat"),
            false => ("program", "end the process or move it to another group"),
        };
        Some(format!(
            "process {tid} ({}) is in the group {} below it, which another {creator} created; \
             {remedy}, then run 'corebeat restore'",
            name.trim_end(),
            group.display()
        ))
    })
}

fn is_named_as_own(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
}

/// Returns whether a group of Corebeat is in another one.
pub(crate) fn is_nested(path: &Path) -> bool {
    path.ancestors().skip(1).any(is_named_as_own)
}

/// Moves all processes of a group of Corebeat to the parent group and removes the group, with empty
/// groups that a program has created below it. Processes in such groups stay there: only the
/// program's manager of groups can choose another group. Returns whether the group existed.
/// Validates the path as [`parent_of_own`] does.
pub(crate) fn remove(path: &Path) -> Result<bool, String> {
    let Some(parent) = parent_of_own(path)? else { return Ok(false) };
    // No process may stay frozen if a later step fails. If this step fails, moving a process to a
    // group that is not frozen thaws the process as well.
    let mut problem = None;
    for (file, text) in [(FREEZE_V2, "0"), (FREEZE, "THAWED")] {
        if path.join(file).exists() {
            problem = fs::write(path.join(file), text).err().or(problem);
        }
    }
    for round in 0..ROUNDS_MAX {
        for tid in tasks(path).map_err(|e| e.to_string())? {
            match fs::write(parent.join(threads_file(path)), tid.to_string()) {
                Err(e) if e.raw_os_error() != Some(libc::ESRCH) => problem = Some(e),
                _ => {}
            }
        }
        below(path).iter().rev().for_each(|group| drop(fs::remove_dir(group)));
        match fs::remove_dir(path) {
            Ok(()) => return Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(e) if e.raw_os_error() != Some(libc::EBUSY) => return Err(e.to_string()),
            // A process forked meanwhile, or has ended but still exists.
            Err(e) => problem = problem.or(Some(e)),
        }
        std::thread::sleep(Duration::from_millis(round.min(20).into()));
    }
    let cause = occupied(path, &[]).or(problem.map(|e| e.to_string()));
    Err(cause.unwrap_or_else(|| "the group does not become empty".into()))
}

/// Returns whether the cpu controller is enabled for the children of this group, and no Corebeat
/// uses it after these groups are removed. Without permission to disable the controller, this
/// Corebeat cannot have enabled it.
pub(crate) fn is_unused(path: &Path, removed: &[PathBuf]) -> bool {
    magic(path) == Some(MAGIC_V2)
        && is_on(path)
        && !own_children(path).iter().any(|child| !removed.contains(child))
        && access(path.join(CHILDREN), Access::WRITE_OK).is_ok()
}

/// Disables the cpu controller for the children of this group. The caller holds the [`Lock`] of
/// the group.
pub(crate) fn disable(path: &Path) -> Result<(), String> {
    fs::write(path.join(CHILDREN), "-cpu").map_err(|e| e.to_string())
}

/// Returns whether the cpu controller is enabled for the children of a group of version 2.
fn is_on(dir: &Path) -> bool {
    let text = fs::read_to_string(dir.join(CHILDREN)).unwrap_or_default();
    text.split_ascii_whitespace().any(|c| c == "cpu")
}

/// Returns the groups of Corebeats in a group.
fn own_children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| e.path()).filter(|path| is_named_as_own(path)).collect()
}

fn put(dir: &Path, file: &str, text: &str) -> Result<(), Error> {
    fs::write(dir.join(file), text).map_err(|e| explain(&dir.join(file), e))
}

fn explain(path: &Path, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem => Error::Unsupported {
            what: WHAT.into(),
            how: format!(
                "the control groups at {} are mounted read-only: remount them rw",
                path.display()
            ),
        },
        _ => Error::of_call(format!("change the control group {}", path.display()), source),
    }
}

/// Returns the hierarchy for a purpose. The cpu controller is in one version only: version 1 if a
/// mount of version 1 has it. Both versions can freeze; version 2 is preferred, because a frozen
/// process can be killed there.
fn find_mount(mountinfo: &str, wanted: Use) -> Option<Mount> {
    let first = |v2| mountinfo.lines().filter_map(|l| mount(l, wanted)).find(|m| m.v2 == v2);
    let prefers_v2 = wanted == Use::Freeze;
    first(prefers_v2).or_else(|| first(!prefers_v2))
}

/// Parses one line of mountinfo (proc_pid_mountinfo(5)). `None` if the line is not a control group
/// mount for this purpose.
fn mount(line: &str, wanted: Use) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, options) = (right.next()?, right.nth(1)?);
    let has = |name: &str| options.split(',').any(|o| o == name);
    let v2 = kind == "cgroup2";
    (v2 || kind == "cgroup" && has(wanted.controller())).then(|| Mount {
        point: unescape(point).into(),
        root: unescape(root),
        v2,
        cpuset: !v2 && has("cpuset"),
    })
}

/// Decodes a path: the kernel writes blanks and backslashes as three octal digits.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(char::from(code));
                out.push_str(&part[3..]);
            }
            None => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

/// Returns the path of the group in the text of `/proc/PID/cgroup`.
fn group_in(text: &str, v2: bool, wanted: Use) -> Option<&str> {
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let right = if v2 {
            controllers.is_empty()
        } else {
            controllers.split(',').any(|c| c == wanted.controller())
        };
        right.then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
32 31 0:29 /here /sys/fs/cgroup/cpu\\040x rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuset
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn cpu_mount_in_a_hybrid_setup_is_version_1() {
        let mount = find_mount(HYBRID, Use::Cpu).unwrap();
        assert_eq!(mount.point, Path::new("/sys/fs/cgroup/cpu x"));
        assert_eq!((mount.root.as_str(), mount.v2, mount.cpuset), ("/here", false, true));
        assert_eq!(
            group_in("4:memory:/m\n2:cpu,cpuacct:/a:b\n0::/u\n", false, Use::Cpu),
            Some("/a:b")
        );
    }

    #[test]
    fn cpu_mount_without_version_1_is_version_2() {
        let only = HYBRID.lines().last().unwrap();
        assert!(find_mount(only, Use::Cpu).unwrap().v2);
        assert_eq!(group_in("4:memory:/m\n0::/u\n", true, Use::Cpu), Some("/u"));
        assert_eq!(find_mount("nonsense\n1 2 3 - \n - - -", Use::Cpu), None);
    }

    #[test]
    fn shares_of_the_default_weight_are_the_default() {
        assert_eq!((shares(100), shares(1), shares(10_000)), (1024, 10, 102_400));
    }

    #[test]
    fn quota_stays_within_the_limits_of_the_kernel() {
        let extremes = [quota_us(1e-9), quota_us(f64::MAX)];
        assert_eq!(
            (quota_us(1.0), quota_us(0.25), extremes),
            (100_000, 25_000, [QUOTA_US_MIN, QUOTA_US_MAX])
        );
    }

    #[test]
    fn quota_above_the_enclosing_one_is_explained() {
        let why = excess(Some(1.5), Some(2.0 / 3.0)).unwrap();
        assert!(why.contains("1.5 CPUs") && why.ends_with("at most 0.66 CPUs, or none"), "{why}");
        for (cpus, around) in [(Some(0.5), Some(0.5)), (Some(9.0), None), (None, Some(0.5))] {
            assert_eq!(excess(cpus, around), None);
        }
    }

    #[test]
    fn quota_without_a_limit_is_none() {
        let quotas =
            ["50000 100000\n", "max 100000\n", "-1\n 100000\n", "250000\n 100000\n", "", "x"];
        assert_eq!(quotas.map(parse_quota), [Some(0.5), None, None, Some(2.5), None, None]);
    }

    #[test]
    fn remove_of_an_unrelated_folder_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("corebeat-1");
        fs::create_dir(&path).unwrap();
        assert!(remove(&path).is_err());
        assert!(remove(Path::new("/sys/fs/cgroup")).is_err());
        let why = remove(&dir.path().join("corebeat-none")).unwrap_err();
        assert!(why.starts_with("control groups are not mounted there"), "{why}");
        assert!(path.exists());
    }
}
