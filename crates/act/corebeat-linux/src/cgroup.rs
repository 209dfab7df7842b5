//! Control groups for a program's weight and its limit of CPU time, and for freezing it: found, made, left and removed, in version 1
//! and 2.
//!
//! The program's processes move into a child of the group where they are, so that every limit they live under still
//! holds. In version 2 the child is a *threaded* group: processes may then stay in the parent although the cpu controller
//! is on for its children (Linux, Documentation/admin-guide/cgroup-v2.rst, "Threads").

use crate::Error;
use crate::file::lock_within;
use rustix::fs::{FsWord, Mode, OFlags, statfs};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the names of our groups begin with: no other group is ever emptied or removed.
const PREFIX: &str = "corebeat-";
/// `CGROUP_SUPER_MAGIC` and `CGROUP2_SUPER_MAGIC` of linux/magic.h.
const MAGIC: FsWord = 0x0027_e0eb;
const MAGIC_V2: FsWord = 0x6367_7270;
/// What cannot be had without them.
const WHAT: &str = "a program's weight or limit of CPU time, or freezing it";
/// Longer than a Corebeat holds the lock of a group. Everybody may open groups, and so lock them for ever.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Rounds of emptying a group: a process may fork while it is moved.
const ROUNDS_MAX: u32 = 64;

/// The files by which groups are frozen.
const FREEZE: &str = "freezer.state";
const FREEZE_V2: &str = "cgroup.freeze";

/// What a group has that was given none.
pub(crate) const WEIGHT_DEFAULT: u32 = 100;
/// Over what limits of CPU time are counted, in microseconds: the kernel's default.
const QUOTA_PERIOD_US: u64 = 100_000;
/// The kernel takes no limit below this, in microseconds a period (`min_cfs_quota_period`, kernel/sched/core.c).
const QUOTA_US_MIN: u64 = 1_000;
/// As much as the largest machine has.
const QUOTA_US_MAX: u64 = corebeat_machine::CPU_MAX as u64 * QUOTA_PERIOD_US;

/// What a group is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Weights and limits: the cpu controller.
    Cpu,
    /// Freezing: the freezer of version 1, or any group of version 2.
    Freeze,
}

impl Use {
    /// The controller in version 1.
    fn controller(self) -> &'static str {
        match self {
            Use::Cpu => "cpu",
            Use::Freeze => "freezer",
        }
    }
}

/// A mounted hierarchy that has what is needed.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    /// The group that is seen at `point`.
    root: String,
    v2: bool,
    /// The cpuset controller is in the same hierarchy, and new groups of version 1 start without CPUs.
    cpuset: bool,
}

/// Where a process is, and so where a group of ours would be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    dir: PathBuf,
    wanted: Use,
    v2: bool,
    cpuset: bool,
}

/// A group of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    path: PathBuf,
    place: Place,
}

impl Place {
    /// The group of the cpu controller that a process is in. `Ok(None)` if the process has ended.
    pub(crate) fn of(pid: i32) -> Result<Option<Place>, Error> {
        Place::find(pid, Use::Cpu)
    }

    /// The group that a process is in where it could be frozen. `Ok(None)` if the process has ended.
    pub(crate) fn to_freeze(pid: i32) -> Result<Option<Place>, Error> {
        Place::find(pid, Use::Freeze)
    }

    fn find(pid: i32, wanted: Use) -> Result<Option<Place>, Error> {
        let missing = |how: &str| Error::Missing { what: WHAT.into(), how: how.into() };
        let path = "/proc/self/mountinfo";
        let mounts = fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
        let mount = find_mount(&mounts, wanted).ok_or_else(|| {
            let controller = wanted.controller();
            missing(&format!(
                "no control groups with the {controller} controller are mounted; mount cgroup2 at /sys/fs/cgroup"
            ))
        })?;
        let Ok(groups) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { return Ok(None) };
        let group = group_in(&groups, mount.v2, wanted)
            .ok_or_else(|| missing(&format!("the process is in no {} group", wanted.controller())))?;
        let below = Path::new(group).strip_prefix(&mount.root).ok();
        let below = below.filter(|p| !p.components().any(|c| c == std::path::Component::ParentDir));
        let below = below.ok_or_else(|| {
            missing("the program's control group is not mounted here; run Corebeat outside the container")
        })?;
        Ok(Some(Place { dir: mount.point.join(below), wanted, v2: mount.v2, cpuset: mount.cpuset }))
    }

    /// The directory of the group.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// 1 or 2.
    pub(crate) fn version(&self) -> u32 {
        if self.v2 { 2 } else { 1 }
    }

    /// The group of this name below; or the place itself, if it is that: in version 2 one group is for all uses.
    pub(crate) fn group(mut self, name: &str) -> Group {
        let name = format!("{PREFIX}{name}");
        if self.dir.file_name().is_some_and(|own| *own == *name) {
            self.dir.pop();
        }
        Group { path: self.dir.join(name), place: self }
    }

    /// The directory for whose children the cpu controller has to be switched on by us, and off in the end.
    pub(crate) fn to_enable(&self) -> Option<&Path> {
        // Another Corebeat may have switched it on: the last to leave switches it off.
        (self.v2 && self.wanted == Use::Cpu && (!is_on(&self.dir) || has_our_children(&self.dir)))
            .then_some(self.dir.as_path())
    }

    /// Keeps other Corebeats from making and removing groups here, until dropped.
    ///
    /// # Errors
    /// As [`Lock::of`].
    pub(crate) fn lock(&self, patience: Duration) -> Result<Option<Lock>, Error> {
        Lock::of(&self.dir, patience)
    }
}

/// The lock of a control group in which groups of ours are made or removed: whether the cpu controller is on there and
/// who else wants it must not change in between.
pub(crate) struct Lock(#[expect(dead_code, reason = "held, not used")] OwnedFd);

impl Lock {
    /// `None` where there is no group, or none that can be locked: what follows then fails, or is alone in all likelihood.
    ///
    /// # Errors
    /// [`Error::Refused`] where somebody else holds it all the time.
    pub(crate) fn of(dir: &Path, patience: Duration) -> Result<Option<Lock>, Error> {
        // A journal may name any directory.
        if magic(dir).is_none_or(|m| ![MAGIC, MAGIC_V2].contains(&m)) {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(fd) = rustix::fs::open(dir, flags, Mode::empty()) else { return Ok(None) };
        match lock_within(&fd, patience) {
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

    /// Where it is.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Whether a process is in it, or below.
    pub(crate) fn holds(&self, pid: i32) -> bool {
        Place::find(pid, self.place.wanted).ok().flatten().is_none_or(|p| p.dir.starts_with(&self.path))
    }

    /// Makes it. It may be there.
    pub(crate) fn make(&self) -> Result<(), Error> {
        let dir = &self.place.dir;
        match fs::create_dir(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(explain(dir, e)),
            _ => {}
        }
        if self.place.v2 {
            // First the type: only threaded children leave the parent free to keep its processes.
            put(&self.path, "cgroup.type", "threaded")?;
            if self.place.wanted == Use::Cpu {
                put(dir, "cgroup.subtree_control", "+cpu")?;
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

    /// Sets its weight.
    pub(crate) fn weigh(&self, weight: u32) -> Result<(), Error> {
        match self.place.v2 {
            true => put(&self.path, "cpu.weight", &weight.to_string()),
            false => put(&self.path, "cpu.shares", &shares(weight).to_string()),
        }
    }

    /// Limits its CPU time, in CPUs; `None` takes the limit away.
    pub(crate) fn limit(&self, cpus: Option<f64>) -> Result<(), Error> {
        let quota_us = cpus.map(quota_us);
        if self.place.v2 {
            let quota = quota_us.map_or_else(|| "max".into(), |us| us.to_string());
            return put(&self.path, "cpu.max", &format!("{quota} {QUOTA_PERIOD_US}"));
        }
        put(&self.path, "cpu.cfs_period_us", &QUOTA_PERIOD_US.to_string())?;
        put(&self.path, "cpu.cfs_quota_us", &quota_us.map_or_else(|| "-1".into(), |us| us.to_string()))
    }

    /// Freezes all in it, or thaws them.
    pub(crate) fn freeze(&self, frozen: bool) -> Result<(), Error> {
        match (self.place.v2, frozen) {
            (true, _) => put(&self.path, FREEZE_V2, if frozen { "1" } else { "0" }),
            (false, true) => put(&self.path, FREEZE, "FROZEN"),
            (false, false) => put(&self.path, FREEZE, "THAWED"),
        }
    }

    /// Moves a process in. One that has ended is no error.
    pub(crate) fn take(&self, pid: i32) -> Result<(), Error> {
        match fs::write(self.path.join("cgroup.procs"), pid.to_string()) {
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other.map_err(|e| explain(&self.path, e)),
        }
    }
}

/// Version 1 counts in shares, and gives a group 1,024 where version 2 gives a weight of 100.
fn shares(weight: u32) -> u64 {
    (u64::from(weight) * 1024 / 100).clamp(2, 262_144)
}

/// Microseconds of CPU time a period.
fn quota_us(cpus: f64) -> u64 {
    ((cpus * QUOTA_PERIOD_US as f64).round() as u64).clamp(QUOTA_US_MIN, QUOTA_US_MAX)
}

/// The processes in a group of ours, and in no group below it.
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

fn magic(path: &Path) -> Option<FsWord> {
    statfs(path).ok().map(|s| s.f_type)
}

/// Moves everybody in a group of ours to its parent, and removes it. Returns whether it was there.
///
/// The path may come out of a journal, so it is not believed: it must be a control group, and one with our name.
pub(crate) fn dissolve(path: &Path) -> Result<bool, String> {
    let Ok(meta) = fs::symlink_metadata(path) else { return Ok(false) };
    let is_ours = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(PREFIX));
    let is_group = meta.is_dir() && matches!(magic(path), Some(MAGIC | MAGIC_V2));
    let Some(parent) = path.parent().filter(|_| is_ours && is_group) else {
        return Err("it is no control group of Corebeat's".into());
    };
    // Nobody is to be left frozen, whatever comes of the rest; and who is moved to a group that is not frozen is thawed, also
    // where this fails.
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
        match fs::remove_dir(path) {
            Ok(()) => return Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(e) if e.raw_os_error() != Some(libc::EBUSY) => return Err(e.to_string()),
            // Somebody forked meanwhile, or has ended and is not quite gone.
            Err(e) => problem = problem.or(Some(e)),
        }
        std::thread::sleep(Duration::from_millis(round.min(20).into()));
    }
    Err(problem.map_or_else(|| "it does not become empty".into(), |e| e.to_string()))
}

/// Switches the cpu controller off again for the children of this group, unless somebody's Corebeat still wants it.
/// Returns whether it was on. The caller holds the group's [`Lock`].
pub(crate) fn disable(path: &Path) -> Result<bool, String> {
    if magic(path) != Some(MAGIC_V2) || !is_on(path) || has_our_children(path) {
        return Ok(false);
    }
    match fs::write(path.join("cgroup.subtree_control"), "-cpu") {
        // Then it was not us who switched it on.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        other => other.map(|()| true).map_err(|e| e.to_string()),
    }
}

/// Whether the children of a group of version 2 have the cpu controller.
fn is_on(dir: &Path) -> bool {
    let text = fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap_or_default();
    text.split_ascii_whitespace().any(|c| c == "cpu")
}

fn has_our_children(dir: &Path) -> bool {
    let ours = |e: fs::DirEntry| e.file_name().to_string_lossy().starts_with(PREFIX);
    fs::read_dir(dir).is_ok_and(|all| all.flatten().any(ours))
}

fn put(dir: &Path, file: &str, text: &str) -> Result<(), Error> {
    fs::write(dir.join(file), text).map_err(|e| explain(&dir.join(file), e))
}

fn explain(path: &Path, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem => Error::Missing {
            what: WHAT.into(),
            how: format!("the control groups at {} are mounted read-only; remount them rw", path.display()),
        },
        io::ErrorKind::PermissionDenied => {
            Error::Denied { what: format!("change the control group {}", path.display()), source }
        }
        _ => Error::Refused { what: format!("change the control group {}", path.display()), source },
    }
}

/// The hierarchy for this use. The cpu controller can be in one version only: if a version 1 mount has it, that. Freezing is in both, and
/// better in version 2, where who is frozen can be killed.
fn find_mount(mountinfo: &str, wanted: Use) -> Option<Mount> {
    let first = |v2| mountinfo.lines().filter_map(|l| mount(l, wanted)).find(|m| m.v2 == v2);
    let better = wanted == Use::Freeze;
    first(better).or_else(|| first(!better))
}

/// One line of mountinfo (proc_pid_mountinfo(5)), if it is a control group mount that may be used so.
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

/// The kernel writes blanks and backslashes in paths as three octal digits.
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

/// The group's path in the text of `/proc/PID/cgroup`.
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
        assert_eq!(group_in("4:memory:/m\n2:cpu,cpuacct:/a:b\n0::/u\n", false, Use::Cpu), Some("/a:b"));
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
    fn quota_stays_within_what_the_kernel_takes() {
        let far = [quota_us(1e-9), quota_us(f64::MAX)];
        assert_eq!((quota_us(1.0), quota_us(0.25), far), (100_000, 25_000, [QUOTA_US_MIN, QUOTA_US_MAX]));
    }

    #[test]
    fn dissolve_of_a_strange_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("corebeat-1");
        fs::create_dir(&path).unwrap();
        assert!(dissolve(&path).is_err());
        assert!(dissolve(Path::new("/sys/fs/cgroup")).is_err());
        assert_eq!(dissolve(&dir.path().join("corebeat-none")), Ok(false));
        assert!(path.exists());
    }
}
