//! The size of OpenMP teams in running, unmodified programs: a preloaded library, and the memory shared with it.
//!
//! [`TeamChannel::environment`] starts a program with `preload/team.c` in front of its OpenMP runtime. From then on
//! [`TeamChannel::set_size`] says how large the program's next teams may be, and [`TeamChannel::samples`] how long its
//! parallel regions took at which size.
//!
//! ```text
//!  Corebeat                    a file in memory                 the program
//!  TeamChannel -- size, beat -> header | slot 0 | slot 1 | ...
//!              <- counters ---           one slot a process  <- preloaded library -> libgomp, libomp
//! ```
//!
//! What keeps a program's results right: a size is only ever lowered below what the program would get, or restored up
//! to it; only outermost teams are touched; and a program that was told its thread count, or sets it, keeps it
//! ([`TeamSample::fixed`]) unless it or its user allows any size (`OMP_DYNAMIC=true`). `preload/team.c` has the rules.
//!
//! What keeps Corebeat well: whatever a program writes into its slot is read as numbers without meaning; every loop
//! over the memory has a fixed bound. What keeps the host as it was: the file is removed when the channel is dropped,
//! and a program that hears nothing from Corebeat for 30 s (it was killed) gets what it asks for again.
//!
//! # Limits
//!
//! - Programs that carry an OpenMP runtime inside (linked statically) and setuid programs are not reached, nor is the
//!   65th process at a time of one channel: they run as they would alone.
//! - What `omp_get_num_threads` told is taken to be relied upon, but for the calls that gcc itself puts into static
//!   loops: those are known by their code, on x86-64 only. A program that keeps what it asked for in the very same way
//!   and cuts the work of a later region by it is not noticed.
//! - A 32-bit program gets a line of the dynamic linker's on stderr that it ignores the library.
//! - A program that looks whether OpenMP is there by the address of a weak `omp_get_max_threads` finds it.
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | why |
//! | --- | --- | --- | --- |
//! | `owner` by the library | acquire-release exchange | acquire load here | one process a slot |
//! | `generation` by the library | release add | acquire load here | counters read after it are the new process' |
//! | `owner` = 0 here | release store | the library's exchange | `size` is cleared before anybody claims the slot |
//! | `region` by the library | release store | acquire load here | `size` of the entry is there |
//! | all else | relaxed | | numbers, each for itself |

use crate::Error;
use crate::thread::now_ns;
use corebeat_machine::{RegionSample, TeamSample};
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, open};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Pid, geteuid, getpid, test_kill_process};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// The preloaded library, built by `build.rs`.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/team.so"));
const LIBRARY_PREFIX: &str = "libcorebeat-team-";
const CHANNEL_PREFIX: &str = "corebeat-team-";

// The layout of preload/channel.h.
const MAGIC: u32 = 0x6d61_6574;
const VERSION: u32 = 1;
const SLOTS: usize = 64;
const ENTRIES: usize = 256;
/// How often a thread of gcc's runtime looks again before it sleeps in a barrier: a few microseconds, about what it costs to
/// be woken. The runtime's own 300,000 are a millisecond that others could run in, whoever it is that all are waiting for;
/// measured beside other load, barriers took 2 to 15 times as long with them, and on an idle host as long.
const SPIN_COUNT: &str = "1000";
const SIZE_AS_ASKED: u32 = u32::MAX;

#[repr(C)]
struct Header {
    magic: AtomicU32,
    version: AtomicU32,
    size: AtomicU32,
    pad: AtomicU32,
    beat_ns: AtomicU64,
    rest: [AtomicU64; 5],
}

#[repr(C)]
struct Entry {
    region: AtomicU64,
    size: AtomicU32,
    pad: AtomicU32,
    count: AtomicU64,
    time_ns: AtomicU64,
}

#[repr(C)]
struct Slot {
    owner: AtomicU32,
    size: AtomicU32,
    generation: AtomicU32,
    fixed: AtomicU32,
    consent: AtomicU32,
    frozen: AtomicU32,
    size_max: AtomicU32,
    size_last: AtomicU32,
    active: AtomicU32,
    pad: AtomicU32,
    entered: AtomicU64,
    now_region: AtomicU64,
    now_ns: AtomicU64,
    rest: Entry,
    gap: [AtomicU64; 4],
    entries: [Entry; ENTRIES],
}

#[repr(C)]
struct Channel {
    header: Header,
    slots: [Slot; SLOTS],
}

const LEN: usize = size_of::<Channel>();
const _: () = {
    assert!(size_of::<Header>() == 64);
    assert!(size_of::<Entry>() == 32);
    assert!(std::mem::offset_of!(Slot, rest) == 64);
    assert!(std::mem::offset_of!(Slot, entries) == 128);
};

/// The channel's memory in this process.
struct Map(NonNull<Channel>);

// SAFETY: the memory is mapped until `Map` is dropped, belongs to no thread, and holds nothing but atomics.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn new(file: &OwnedFd) -> io::Result<Map> {
        // SAFETY: a new mapping at an address of the kernel's choice takes no memory from anybody.
        let at = unsafe {
            mmap(std::ptr::null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        }?;
        NonNull::new(at.cast()).map(Map).ok_or_else(|| io::Error::other("mapped at address 0"))
    }

    fn channel(&self) -> &Channel {
        // SAFETY: LEN bytes are mapped, page-aligned, for as long as `self` lives; `Channel` is made of atomics alone,
        // for which any bit pattern is valid and which other processes may change at any time.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no reference outlives `self`.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), LEN) };
    }
}

/// What a slot's counters were when they were read last.
#[derive(Default)]
struct Seen {
    owner: u32,
    generation: u32,
    /// By region and size: count and time.
    counters: HashMap<(u64, u32), (u64, u64)>,
}

/// The way to the OpenMP teams of one program: all processes that it starts.
pub struct TeamChannel {
    map: Map,
    path: PathBuf,
    /// Locked as long as the channel lives, so that others can tell a file that was left behind.
    _file: OwnedFd,
    library: PathBuf,
    seen: Vec<Seen>,
}

impl TeamChannel {
    /// Makes a channel: a file in memory (in `$XDG_RUNTIME_DIR` but for root, `/dev/shm`, or where temporary files go) that
    /// is removed when the channel is dropped, and the library in a cache directory, where it stays: late children of the program
    /// still name it in `LD_PRELOAD`, and the dynamic linker complains about a file that is missing.
    ///
    /// # Errors
    /// Where neither can be written.
    pub fn create() -> Result<Self, Error> {
        let library = library_path()?;
        // For root it may be a user's, who may swap the file for another.
        let run = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !geteuid().is_root());
        let dirs = [run.unwrap_or_default(), "/dev/shm".into()];
        let mut dirs: Vec<PathBuf> = dirs.into_iter().map(PathBuf::from).collect();
        dirs.push(std::env::temp_dir());
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for dir in dirs.iter().filter(|d| d.is_absolute()) {
            match channel_file(dir).and_then(|(path, file)| Ok((Map::new(&file)?, path, file))) {
                Ok((map, path, file)) => {
                    let header = &map.channel().header;
                    header.beat_ns.store(now_ns(), Relaxed);
                    header.version.store(VERSION, Relaxed);
                    header.magic.store(MAGIC, Relaxed);
                    let seen = (0..SLOTS).map(|_| Seen::default()).collect();
                    return Ok(TeamChannel { map, path, _file: file, library, seen });
                }
                Err(e) => last = e,
            }
        }
        Err(Error::Refused { what: format!("make the team channel in any of {dirs:?}"), source: last })
    }

    /// The variables to set for a program so that its teams can be seen and sized. `current` looks up what the program
    /// would get otherwise, `cpus` is how many threads there should be at most from the start on.
    ///
    /// - `LD_PRELOAD` keeps what it has.
    /// - `OMP_NUM_THREADS` is lowered to `cpus` where it is larger, and set to it where it is not set: the program sees
    ///   the lower count consistently from its beginning. Only the first number of a list is for outermost teams; a
    ///   text that is no list is left alone, so that the runtime complains about it as usual.
    /// - `GOMP_SPINCOUNT` is set where neither it nor `OMP_WAIT_POLICY` is: barriers are not to keep CPUs that others want.
    /// - Everything else is left alone: `OMP_DYNAMIC=true` is the user's consent to any size, and is read by the library.
    pub fn environment(
        &self,
        current: impl Fn(&str) -> Option<OsString>,
        cpus: usize,
    ) -> Vec<(OsString, OsString)> {
        let preload = preload_with(current("LD_PRELOAD").as_deref(), &self.library);
        let mut set: Vec<(OsString, OsString)> =
            vec![("LD_PRELOAD".into(), preload), ("COREBEAT_TEAM".into(), self.path.clone().into())];
        if let Some(threads) = threads_lowered(current("OMP_NUM_THREADS").as_deref(), cpus) {
            set.push(("OMP_NUM_THREADS".into(), threads.into()));
        }
        if current("GOMP_SPINCOUNT").is_none() && current("OMP_WAIT_POLICY").is_none() {
            set.push(("GOMP_SPINCOUNT".into(), SPIN_COUNT.into()));
        }
        set
    }

    /// Sets the largest size of the outermost teams that start from now on: of one process, or of all that are there
    /// and will come. `None` gives them what they ask for. A process that is not there is no error.
    ///
    /// # Errors
    /// A size of 0.
    pub fn set_size(&self, pid: Option<i32>, size: Option<u32>) -> Result<(), Error> {
        if size == Some(0) {
            return Err(Error::Senseless("a team needs at least 1 thread".into()));
        }
        let channel = self.map.channel();
        channel.header.beat_ns.store(now_ns(), Relaxed);
        match pid {
            // Only this side writes sizes, so none of the two stores can be lost to a process that comes meanwhile.
            None => {
                channel.header.size.store(size.unwrap_or(0), Relaxed);
                channel.slots.iter().for_each(|s| s.size.store(0, Relaxed));
            }
            Some(pid) => {
                let mine = |s: &&Slot| pid > 0 && s.owner.load(Acquire) == pid as u32;
                if let Some(slot) = channel.slots.iter().find(mine) {
                    slot.size.store(size.unwrap_or(SIZE_AS_ASKED), Relaxed);
                }
            }
        }
        Ok(())
    }

    /// What the teams of every process did since the last call. A process that has ended is there one last time.
    ///
    /// Call it at least every few seconds: it is also the sign of life without which programs get what they ask for
    /// again after 30 s.
    pub fn samples(&mut self) -> Vec<(i32, TeamSample)> {
        let channel = self.map.channel();
        channel.header.beat_ns.store(now_ns(), Relaxed);
        let mut samples = Vec::new();
        for (slot, seen) in channel.slots.iter().zip(&mut self.seen) {
            let owner = slot.owner.load(Acquire);
            let Some(pid) = i32::try_from(owner).ok().and_then(Pid::from_raw) else {
                if owner != 0 {
                    slot.owner.store(0, Release);
                }
                continue;
            };
            // Before the counters are read, so that the last ones are in.
            let ended = test_kill_process(pid) == Err(Errno::SRCH);
            samples.push((pid.as_raw_nonzero().get(), sample(slot, seen, owner)));
            if ended {
                *seen = Seen::default();
                slot.size.store(0, Relaxed);
                slot.owner.store(0, Release);
            }
        }
        samples
    }

    /// The region that a process is in, with its size and the time since it was entered as `time_ns`, and a count of 0.
    /// `None` between regions. A region that never ends shows here only.
    pub fn running(&self, pid: i32) -> Option<RegionSample> {
        let mut slots = self.map.channel().slots.iter();
        let slot = slots.find(|s| pid > 0 && s.owner.load(Acquire) == pid as u32)?;
        (slot.active.load(Relaxed) > 0).then(|| RegionSample {
            region: slot.now_region.load(Relaxed),
            size: slot.size_last.load(Relaxed),
            count: 0,
            time_ns: now_ns().saturating_sub(slot.now_ns.load(Relaxed)),
        })
    }
}

impl Drop for TeamChannel {
    /// Programs that are still there get what they ask for again.
    fn drop(&mut self) {
        let _ = self.set_size(None, None);
        let _ = fs::remove_file(&self.path);
    }
}

/// Reads a slot, and what its counters gained since `seen`.
fn sample(slot: &Slot, seen: &mut Seen, owner: u32) -> TeamSample {
    let generation = slot.generation.load(Acquire);
    if seen.generation != generation || seen.owner != owner {
        *seen = Seen { owner, generation, counters: HashMap::new() };
    }
    let mut regions = Vec::new();
    // A new map each time, so that a program that spoils its entries cannot make it grow.
    let before = std::mem::take(&mut seen.counters);
    for entry in slot.entries.iter().chain([&slot.rest]) {
        let region = entry.region.load(Acquire);
        let (size, count, time_ns) =
            (entry.size.load(Relaxed), entry.count.load(Relaxed), entry.time_ns.load(Relaxed));
        if count == 0 {
            continue;
        }
        seen.counters.insert((region, size), (count, time_ns));
        let (count_before, time_before) = before.get(&(region, size)).copied().unwrap_or_default();
        // Counters that went back were spoilt, or began again while they were read.
        let gained = count.checked_sub(count_before).zip(time_ns.checked_sub(time_before));
        if let Some((count, time_ns)) = gained.filter(|g| g.0 > 0) {
            regions.push(RegionSample { region, size, count, time_ns });
        }
    }
    TeamSample {
        size_max: slot.size_max.load(Relaxed),
        size: slot.size_last.load(Relaxed),
        fixed: slot.fixed.load(Relaxed) != 0 && slot.consent.load(Relaxed) == 0,
        regions,
    }
}

/// `LD_PRELOAD` with the library in front: some users preload an OpenMP runtime. Another version of the library, of a
/// Corebeat around this one, gives way: one of them must act.
fn preload_with(current: Option<&OsStr>, library: &Path) -> OsString {
    let is_ours = |name: &[u8]| {
        name.rsplit(|&b| b == b'/').next().is_some_and(|file| file.starts_with(LIBRARY_PREFIX.as_bytes()))
    };
    let mut list = library.as_os_str().to_owned();
    // The dynamic linker separates by both.
    for name in current.unwrap_or_default().as_bytes().split(|b| b": ".contains(b)) {
        if !name.is_empty() && !is_ours(name) {
            list.push(":");
            list.push(OsStr::from_bytes(name));
        }
    }
    list
}

/// `OMP_NUM_THREADS` with its first number lowered to `cpus`; `None` where it stays as it is.
fn threads_lowered(current: Option<&OsStr>, cpus: usize) -> Option<String> {
    let cpus = cpus.max(1);
    let Some(current) = current else { return Some(cpus.to_string()) };
    let text = current.to_str()?;
    let numbers: Option<Vec<u64>> =
        text.split(',').map(|n| n.trim().parse().ok().filter(|&n: &u64| n > 0)).collect();
    match numbers?.as_slice() {
        [first, rest @ ..] if *first > cpus as u64 => {
            Some(rest.iter().fold(cpus.to_string(), |list, n| format!("{list},{n}")))
        }
        _ => None,
    }
}

/// A new file for the channel in `dir`, locked, with all its memory taken: a program that writes to memory that is not
/// there any more dies.
fn channel_file(dir: &Path) -> io::Result<(PathBuf, OwnedFd)> {
    sweep(dir);
    let mut number = now_ns();
    loop {
        let path = dir.join(format!("{CHANNEL_PREFIX}{}-{number:x}", getpid().as_raw_nonzero()));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match open(&path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => file,
            Err(Errno::EXIST) => {
                number = number.wrapping_add(1);
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        let prepared = flock(&file, FlockOperation::NonBlockingLockExclusive)
            .and_then(|()| fallocate(&file, FallocateFlags::empty(), 0, LEN as u64));
        if let Err(e) = prepared {
            let _ = fs::remove_file(&path);
            return Err(e.into());
        }
        return Ok((path, file));
    }
}

/// Removes channels whose owner was killed: nobody holds their lock.
fn sweep(dir: &Path) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries.filter(|e| e.file_name().as_bytes().starts_with(CHANNEL_PREFIX.as_bytes())) {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let Ok(file) = open(entry.path(), flags, Mode::empty()) else { continue };
        // An empty file is just being made.
        let made =
            rustix::fs::fstat(&file).is_ok_and(|s| s.st_size == LEN as i64 && s.st_uid == geteuid().as_raw());
        if made && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The library in a place that the dynamic linker can name and map: written there if it is not yet.
fn library_path() -> Result<PathBuf, Error> {
    let mut hasher = DefaultHasher::new();
    hasher.write(LIBRARY);
    let name = format!("{LIBRARY_PREFIX}{:016x}.so", hasher.finish());
    let uid = geteuid().as_raw();
    let home = |variable: &str, below: &str| {
        std::env::var_os(variable).filter(|v| !v.is_empty()).map(|v| Path::new(&v).join(below))
    };
    let own = match uid {
        // Never a user's directory, which that user may swap for another.
        0 => [Some(PathBuf::from("/var/cache/corebeat")), None],
        _ => [home("XDG_CACHE_HOME", "corebeat"), home("HOME", ".cache/corebeat")],
    };
    let mut dirs: Vec<PathBuf> = own.into_iter().flatten().collect();
    dirs.push(PathBuf::from(format!("/tmp/corebeat-{uid}")));
    library_in_one_of(&dirs, &name)
}

fn library_in_one_of(dirs: &[PathBuf], name: &str) -> Result<PathBuf, Error> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for dir in dirs {
        match library_in(dir, name) {
            Ok(path) => return Ok(path),
            Err(e) => {
                // One that was made for nothing does not stay; one with something in it does.
                let _ = fs::remove_dir(dir);
                last = e;
            }
        }
    }
    Err(Error::Refused { what: format!("write the team library to any of {dirs:?}"), source: last })
}

fn library_in(dir: &Path, name: &str) -> io::Result<PathBuf> {
    let refuse = |why: &str| Err(io::Error::other(format!("{}: {why}", dir.display())));
    if !dir.is_absolute() || dir.as_os_str().as_bytes().iter().any(|b| b": $".contains(b)) {
        return refuse("LD_PRELOAD cannot name it");
    }
    // Processes that root's programs start as other users are told of the library as well, and complain if they may not
    // read it.
    let (dir_mode, mode) = if geteuid().is_root() { (0o755, 0o644) } else { (0o700, 0o600) };
    fs::DirBuilder::new().recursive(true).mode(dir_mode).create(dir)?;
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() || meta.uid() != geteuid().as_raw() || meta.mode() & 0o022 != 0 {
        return refuse("others may write to it");
    }
    if rustix::fs::statvfs(dir)?.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
        return refuse("mounted noexec");
    }
    let path = dir.join(name);
    if fs::read(&path).is_ok_and(|bytes| bytes == LIBRARY) {
        return Ok(path);
    }
    // Whole or not at all: others may be starting programs with it.
    let part = dir.join(format!("{name}.{}-{:x}", getpid().as_raw_nonzero(), now_ns()));
    let write = || {
        fs::write(&part, LIBRARY)?;
        fs::set_permissions(&part, Permissions::from_mode(mode))?;
        fs::rename(&part, &path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&part);
    })?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn folder_that_cannot_have_the_library_is_not_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        fs::create_dir(&old).unwrap();
        fs::write(old.join("kept"), "").unwrap();
        assert!(library_in_one_of(&[new.clone(), old.clone()], "no/such.so").is_err());
        assert!(!new.exists() && old.join("kept").exists());
        assert_eq!(library_in_one_of(std::slice::from_ref(&new), "a.so").unwrap(), new.join("a.so"));
    }

    #[test]
    fn threads_lowered_above_the_cpus_is_cut() {
        let lowered = |text: &str| threads_lowered(Some(OsStr::new(text)), 2);
        assert_eq!(lowered("8").as_deref(), Some("2"));
        assert_eq!(lowered(" 8 , 3").as_deref(), Some("2,3"));
        assert_eq!(lowered("2"), None);
        assert_eq!(lowered("1,9"), None);
        assert_eq!(lowered("many"), None);
        assert_eq!(lowered("0"), None);
        assert_eq!(lowered(""), None);
        assert_eq!(threads_lowered(None, 2).as_deref(), Some("2"));
        assert_eq!(threads_lowered(None, 0).as_deref(), Some("1"));
    }

    #[test]
    fn preload_with_others_keeps_them_behind() {
        let with =
            |text: Option<&str>| preload_with(text.map(OsStr::new), Path::new("/c/libcorebeat-team-2.so"));
        assert_eq!(with(None), "/c/libcorebeat-team-2.so");
        assert_eq!(with(Some("a.so b.so:")), "/c/libcorebeat-team-2.so:a.so:b.so");
        assert_eq!(with(Some("/x/libcorebeat-team-1.so:a.so")), "/c/libcorebeat-team-2.so:a.so");
    }

    #[test]
    fn channel_dropped_leaves_no_file() {
        let channel = TeamChannel::create().unwrap();
        let path = channel.path.clone();
        assert!(path.exists());
        drop(channel);
        assert!(!path.exists());
    }

    #[test]
    fn channel_left_behind_is_swept_but_a_living_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (living, _lock) = channel_file(dir.path()).unwrap();
        let (left, lock) = channel_file(dir.path()).unwrap();
        drop(lock);
        sweep(dir.path());
        assert!(living.exists());
        assert!(!left.exists());
    }

    #[test]
    fn library_in_a_place_that_cannot_be_named_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(library_in(&dir.path().join("with space"), "x.so").is_err());
        let path = library_in(&dir.path().join("plain"), "x.so").unwrap();
        assert_eq!(fs::read(path).unwrap(), LIBRARY);
    }

    #[test]
    fn set_size_of_zero_is_senseless() {
        let channel = TeamChannel::create().unwrap();
        assert!(matches!(channel.set_size(None, Some(0)), Err(Error::Senseless(_))));
        assert!(channel.set_size(Some(-7), Some(1)).is_ok());
    }

    proptest! {
        #[test]
        fn samples_of_spoilt_memory_are_numbers_and_no_panic(
            words in proptest::collection::vec(any::<u64>(), 64), at in 0usize..LEN / 8, rounds in 1usize..4
        ) {
            let mut channel = TeamChannel::create().unwrap();
            for round in 0..rounds {
                for (i, &word) in words.iter().enumerate() {
                    let index = (at + i * (round + 1) * 37) % (LEN / 8);
                    // SAFETY: within the mapping, aligned, and an atomic like all that lies there.
                    let cell = unsafe { &*channel.map.0.as_ptr().cast::<AtomicU64>().add(index) };
                    cell.store(word, Relaxed);
                }
                prop_assert!(channel.samples().len() <= SLOTS);
                let _ = channel.running(1);
            }
        }
    }
}
