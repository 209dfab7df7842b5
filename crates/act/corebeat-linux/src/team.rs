//! Size of OpenMP teams in running, unmodified programs, by a preloaded library and shared memory.
//!
//! [`TeamChannel::environment`] starts a program with `preload/team.c` in front of its OpenMP
//! runtime. [`TeamChannel::set_size`] then limits the size of later teams, and
//! [`TeamChannel::samples`] returns the times of the parallel regions by team size.
//!
//! ```text
//!  Corebeat                    a file in memory                 the program
//!  TeamChannel -- size, beat -> header | slot 0 | slot 1 | ...
//!              <- counters ---           per process    <- preloaded library -> libgomp, libomp
//! ```
//!
//! Correctness of programs: a size is only lowered below the size that the program would get, or
//! restored up to that size. Only outermost teams change. A program that has read or set its thread
//! count keeps that count ([`TeamSample::fixed`]), unless the program or its user permits any size
//! (`OMP_DYNAMIC=true`). `preload/team.c` lists the rules.
//!
//! Robustness of Corebeat: every value that a program writes into its slot is read as a plain
//! number; every loop over the memory has a fixed bound. Restoration of the host: dropping the
//! channel removes the file. After a kill, [`restore_all`](crate::restore_all) does so: the journal
//! names the file. If Corebeat does not renew the channel for 30 s, a program gets the sizes that
//! it requests.
//!
//! # Limits
//!
//! - Programs with a statically linked OpenMP runtime, setuid programs, and the 65th simultaneous
//!   process of one channel are not supported: they run unchanged.
//! - A program counts as relying on the result of `omp_get_num_threads`, except for the calls that
//!   gcc itself generates for static loops. These are detected by their code, on x86-64 only. A
//!   program that stores the result in exactly the same way and uses it for a later region is not
//!   detected.
//! - The dynamic linker prints one line to stderr in a 32-bit program: it ignores the library.
//! - A program that detects OpenMP by the address of a weak `omp_get_max_threads` finds the symbol.
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | why |
//! | --- | --- | --- | --- |
//! | `owner` by the library | acquire-release exchange | acquire load here | one process per slot |
//! | `generation` by the library | release add | acquire load here | later reads: new process |
//! | `owner` = 0 here | release store | the library's exchange | `size` is cleared before a claim |
//! | `region` by the library | release store | acquire load here | `size` of the entry is written |
//! | `fixed` by the library | release or | acquire load here | `frozen` is written |
//! | all others | relaxed | | independent numbers |

mod undo;

use crate::Error;
use crate::thread::now_ns;
use corebeat_machine::{RegionSample, TeamSample};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, linkat, open,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Pid, geteuid, getpid, test_kill_process};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

pub(crate) use undo::{is_channel_name, undo};

/// The preloaded library, built by `build.rs`.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/team.so"));
const LIBRARY_PREFIX: &str = "libcorebeat-team-";
const CHANNEL_PREFIX: &str = "corebeat-team-";

// The layout of preload/channel.h.
const MAGIC: u32 = 0x6d61_6574;
const VERSION: u32 = 1;
const SLOTS: usize = 64;
const ENTRIES: usize = 256;
/// Number of times that a thread of the gcc runtime polls before it sleeps in a barrier: a few
/// microseconds, about the cost of a wake-up. The default of 300,000 takes a millisecond, during
/// which other threads, possibly the awaited one, cannot run. Beside other load, barriers took 2 to
/// 15 times as long with the default; on an idle host, they took equally long.
const SPIN_COUNT: &str = "1000";
const SIZE_AS_ASKED: u32 = u32::MAX;
/// Time without a renewal by Corebeat after which programs get the sizes that they request:
/// `LEASE_NS` of preload/team.c.
const LEASE_NS: u64 = 30_000_000_000;

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

impl Channel {
    /// Sets the size for all present and later processes. Only Corebeat writes sizes, so both
    /// stores are effective for a process that starts meanwhile.
    fn set_size_of_all(&self, size: Option<u32>) {
        self.header.size.store(size.unwrap_or(0), Relaxed);
        self.slots.iter().for_each(|s| s.size.store(0, Relaxed));
    }

    /// Returns whether programs get the sizes that they request, because Corebeat does not renew
    /// the channel.
    fn is_expired(&self) -> bool {
        now_ns().saturating_sub(self.header.beat_ns.load(Relaxed)) > LEASE_NS
    }
}

impl Slot {
    /// Returns whether the program relies on the size of its teams.
    fn is_fixed(&self) -> bool {
        self.fixed.load(Acquire) != 0 && self.consent.load(Relaxed) == 0
    }
}

const LEN: usize = size_of::<Channel>();
const _: () = {
    assert!(size_of::<Header>() == 64);
    assert!(size_of::<Entry>() == 32);
    assert!(std::mem::offset_of!(Slot, rest) == 64);
    assert!(std::mem::offset_of!(Slot, entries) == 128);
};

/// Mapping of the channel in this process.
struct Map(NonNull<Channel>);

// SAFETY: the memory is mapped until `Map` is dropped, is independent of threads, and holds only
// atomics.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn new(file: &OwnedFd) -> io::Result<Map> {
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other memory.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                LEN,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        NonNull::new(at.cast()).map(Map).ok_or_else(|| io::Error::other("mapped at address 0"))
    }

    fn channel(&self) -> &Channel {
        // SAFETY: LEN bytes are mapped, page-aligned, as long as `self` lives. `Channel` consists
        // of atomics, for which any bit pattern is valid and which other processes may change.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no reference outlives `self`.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), LEN) };
    }
}

/// Counters of a slot at the last reading.
#[derive(Default)]
struct LastRead {
    owner: u32,
    generation: u32,
    /// Count and time, by region and size.
    counters: HashMap<(u64, u32), (u64, u64)>,
}

/// Channel to the OpenMP teams of one program with all its processes.
pub struct TeamChannel {
    map: Map,
    path: PathBuf,
    /// Locked as long as the channel exists, so that abandoned files are detectable.
    _file: OwnedFd,
    library: PathBuf,
    last: Vec<LastRead>,
}

impl TeamChannel {
    /// Creates a channel: a file in memory (in `$XDG_RUNTIME_DIR`, `/dev/shm`, or the temporary
    /// folder), which is removed when the channel is dropped, and the library in a cache folder.
    ///
    /// The library stays there: later children of the program have its name in `LD_PRELOAD`, and
    /// the dynamic linker reports a missing file.
    ///
    /// # Errors
    /// [`Error::Refused`] if file or library cannot be written.
    pub fn create() -> Result<Self, Error> {
        let library = library_path()?;
        // For root the folder may belong to a user, who could replace the file.
        let is_own = |dir: &OsString| is_own_folder(Path::new(dir)).unwrap_or(false);
        let run = std::env::var_os("XDG_RUNTIME_DIR").filter(is_own).map(PathBuf::from);
        let others = ["/dev/shm".into(), std::env::temp_dir()];
        let dirs: Vec<PathBuf> = run.into_iter().chain(others).collect();
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        // The journal, which names the file, is text.
        for dir in dirs.iter().filter(|d| d.is_absolute() && d.to_str().is_some()) {
            match Self::create_in(dir, &library) {
                Ok(channel) => return Ok(channel),
                Err(e) => last = e,
            }
        }
        Err(Error::Refused {
            what: format!("create the team channel in any of {dirs:?}"),
            source: last,
        })
    }

    /// Creates a channel in a folder, with the path of the library.
    fn create_in(dir: &Path, library: &Path) -> io::Result<Self> {
        sweep(dir);
        let (path, file) = channel_file(dir)?;
        let map = Map::new(&file)?;
        let header = &map.channel().header;
        header.beat_ns.store(now_ns(), Relaxed);
        header.version.store(VERSION, Relaxed);
        header.magic.store(MAGIC, Relaxed);
        let last = (0..SLOTS).map(|_| LastRead::default()).collect();
        Ok(TeamChannel { map, path, _file: file, library: library.to_owned(), last })
    }

    /// Returns the environment variables with which the teams of a program can be observed and
    /// sized. `current` returns the present value of a variable.
    ///
    /// - `LD_PRELOAD` keeps its entries.
    /// - `GOMP_SPINCOUNT` is set if neither it nor `OMP_WAIT_POLICY` is set: barriers must not
    ///   occupy CPUs that other threads need.
    /// - `ASAN_OPTIONS` keeps its entries. AddressSanitizer ends a program that loads a library
    ///   before its own; the added entry permits this.
    /// - Other variables are kept. `OMP_DYNAMIC=true` is the consent of the user to any size; the
    ///   library reads this variable.
    pub fn environment(
        &self,
        current: impl Fn(&str) -> Option<OsString>,
    ) -> Vec<(OsString, OsString)> {
        let preload = preload_with(current("LD_PRELOAD").as_deref(), &self.library);
        let mut set: Vec<(OsString, OsString)> = vec![
            ("LD_PRELOAD".into(), preload),
            ("COREBEAT_TEAM".into(), self.path.clone().into()),
        ];
        if current("GOMP_SPINCOUNT").is_none() && current("OMP_WAIT_POLICY").is_none() {
            set.push(("GOMP_SPINCOUNT".into(), SPIN_COUNT.into()));
        }
        set.extend(sanitizer_options(current("ASAN_OPTIONS")).map(|v| ("ASAN_OPTIONS".into(), v)));
        set
    }

    /// Sets the largest size of outermost teams that start from now on, for one process or for all
    /// present and later processes. `None` permits the sizes that programs request. A missing
    /// process is no error.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a size of 0.
    pub fn set_size(&self, pid: Option<i32>, size: Option<u32>) -> Result<(), Error> {
        if size == Some(0) {
            return Err(Error::InvalidArgument(
                "a team of 0 threads is invalid: use 1 or more".into(),
            ));
        }
        let channel = self.map.channel();
        channel.header.beat_ns.store(now_ns(), Relaxed);
        match pid {
            None => channel.set_size_of_all(size),
            Some(pid) => {
                let mine = |s: &&Slot| pid > 0 && s.owner.load(Acquire) == pid as u32;
                if let Some(slot) = channel.slots.iter().find(mine) {
                    slot.size.store(size.unwrap_or(SIZE_AS_ASKED), Relaxed);
                }
            }
        }
        Ok(())
    }

    /// Returns the file of the channel.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size that [`set_size`](Self::set_size) has set for all processes.
    pub(crate) fn size(&self) -> Option<u32> {
        Some(self.map.channel().header.size.load(Relaxed)).filter(|&size| size > 0)
    }

    /// Returns what the teams of every process did since the last call. A process that has ended is
    /// included one last time.
    ///
    /// Call this function at least every few seconds: the call also renews the channel. Without a
    /// renewal for 30 s, programs get the sizes that they request.
    pub fn samples(&mut self) -> Vec<(i32, TeamSample)> {
        let channel = self.map.channel();
        channel.header.beat_ns.store(now_ns(), Relaxed);
        let mut samples = Vec::new();
        for (slot, last) in channel.slots.iter().zip(&mut self.last) {
            let owner = slot.owner.load(Acquire);
            let Some(pid) = i32::try_from(owner).ok().and_then(Pid::from_raw) else {
                if owner != 0 {
                    slot.owner.store(0, Release);
                }
                continue;
            };
            // Checked before the counters are read, so that the last counts are included.
            let ended = test_kill_process(pid) == Err(Errno::SRCH);
            samples.push((pid.as_raw_nonzero().get(), sample(slot, last, owner)));
            if ended {
                *last = LastRead::default();
                slot.size.store(0, Relaxed);
                slot.owner.store(0, Release);
            }
        }
        samples
    }

    /// Returns the present region of a process, with its size, the time since its start as
    /// `time_ns`, and a count of 0. `None` between regions. Only this function reports a region
    /// that never ends.
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
    /// Permits running programs the sizes that they request, and removes the file.
    fn drop(&mut self) {
        let _ = self.set_size(None, None);
        let _ = fs::remove_file(&self.path);
    }
}

/// Reads a slot, and returns the increase of its counters since the last reading.
fn sample(slot: &Slot, last: &mut LastRead, owner: u32) -> TeamSample {
    let generation = slot.generation.load(Acquire);
    if last.generation != generation || last.owner != owner {
        *last = LastRead { owner, generation, counters: HashMap::new() };
    }
    let mut regions = Vec::new();
    // A new map each time: a program with invalid entries cannot make the map grow.
    let before = std::mem::take(&mut last.counters);
    for entry in slot.entries.iter().chain([&slot.rest]) {
        let region = entry.region.load(Acquire);
        let (size, count, time_ns) =
            (entry.size.load(Relaxed), entry.count.load(Relaxed), entry.time_ns.load(Relaxed));
        if count == 0 {
            continue;
        }
        last.counters.insert((region, size), (count, time_ns));
        let (count_before, time_before) = before.get(&(region, size)).copied().unwrap_or_default();
        // Counters that decrease are invalid, or restarted during the reading.
        let gained = count.checked_sub(count_before).zip(time_ns.checked_sub(time_before));
        if let Some((count, time_ns)) = gained.filter(|g| g.0 > 0) {
            regions.push(RegionSample { region, size, count, time_ns });
        }
    }
    TeamSample {
        size_max: slot.size_max.load(Relaxed),
        size: slot.size_last.load(Relaxed),
        fixed: slot.is_fixed(),
        regions,
    }
}

/// Returns `LD_PRELOAD` with the library in front, because some users preload an OpenMP runtime.
/// Removes another version of the library, from an outer Corebeat: only one may act.
fn preload_with(current: Option<&OsStr>, library: &Path) -> OsString {
    let is_ours = |name: &[u8]| {
        name.rsplit(|&b| b == b'/')
            .next()
            .is_some_and(|file| file.starts_with(LIBRARY_PREFIX.as_bytes()))
    };
    let mut list = library.as_os_str().to_owned();
    // The dynamic linker accepts both separators.
    for name in current.unwrap_or_default().as_bytes().split(|b| b": ".contains(b)) {
        if !name.is_empty() && !is_ours(name) {
            list.push(":");
            list.push(OsStr::from_bytes(name));
        }
    }
    list
}

/// Returns `ASAN_OPTIONS` with the check of the library order off; `None` if the user has set it.
fn sanitizer_options(current: Option<OsString>) -> Option<OsString> {
    const OPTION: &str = "verify_asan_link_order";
    let mut options = current.unwrap_or_default();
    if options.as_bytes().windows(OPTION.len()).any(|part| part == OPTION.as_bytes()) {
        return None;
    }
    if !options.is_empty() {
        options.push(":");
    }
    options.push(OPTION);
    options.push("=0");
    Some(options)
}

/// Creates the file of a channel in `dir`, locked and fully allocated: a program that writes to
/// unallocated memory of a full file system would be killed.
fn channel_file(dir: &Path) -> io::Result<(PathBuf, OwnedFd)> {
    let mut number = now_ns();
    // The file gets its name last: a process that is killed before (by a limit of file sizes, for
    // example) leaves nothing.
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = open(dir, flags, Mode::RUSR | Mode::WUSR)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    fallocate(&file, FallocateFlags::empty(), 0, LEN as u64)?;
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    loop {
        let path = dir.join(format!("{CHANNEL_PREFIX}{}-{number:x}", getpid().as_raw_nonzero()));
        match linkat(CWD, &*unnamed, CWD, &path, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => return Ok((path, file)),
            Err(Errno::EXIST) => number = number.wrapping_add(1),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Removes channels of killed owners, and permits programs the sizes that they request. Their
/// journals may be lost: a boot invalidates a journal, but keeps a file on disk.
///
/// Only the lock decides: an owner holds the lock from before the file has its name to its own
/// end. The time of the last renewal may be of another boot.
fn sweep(dir: &Path) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries.filter(|e| e.file_name().as_bytes().starts_with(CHANNEL_PREFIX.as_bytes()))
    {
        let Ok(Some((map, file))) = undo::open_file(&entry.path()) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            map.channel().set_size_of_all(None);
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns the path of the library, in a folder that the dynamic linker can name and map. Writes
/// the library if it is missing.
fn library_path() -> Result<PathBuf, Error> {
    let mut hasher = DefaultHasher::new();
    hasher.write(LIBRARY);
    let name = format!("{LIBRARY_PREFIX}{:016x}.so", hasher.finish());
    let uid = geteuid().as_raw();
    let home = |variable: &str, below: &str| {
        std::env::var_os(variable).filter(|v| !v.is_empty()).map(|v| Path::new(&v).join(below))
    };
    let own = match uid {
        // Never a folder of a user, who could replace it.
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
                // Remove an empty folder that was created in vain.
                let _ = fs::remove_dir(dir);
                last = e;
            }
        }
    }
    Err(Error::Refused { what: format!("write the team library to any of {dirs:?}"), source: last })
}

/// Returns whether a folder belongs to this user, and no other user may write to it.
fn is_own_folder(dir: &Path) -> io::Result<bool> {
    let meta = fs::symlink_metadata(dir)?;
    Ok(meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o022 == 0)
}

fn library_in(dir: &Path, name: &str) -> io::Result<PathBuf> {
    let refuse = |why: &str| Err(io::Error::other(format!("{}: {why}", dir.display())));
    if !dir.is_absolute() || dir.as_os_str().as_bytes().iter().any(|b| b": $".contains(b)) {
        return refuse("LD_PRELOAD cannot contain this path");
    }
    // Processes that programs of root start as other users also load the library, and report an
    // error if they may not read it.
    let (dir_mode, mode) = if geteuid().is_root() { (0o755, 0o644) } else { (0o700, 0o600) };
    fs::DirBuilder::new().recursive(true).mode(dir_mode).create(dir)?;
    if !is_own_folder(dir)? {
        return refuse("other users may write to the folder");
    }
    if rustix::fs::statvfs(dir)?.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
        return refuse("mounted noexec");
    }
    let path = dir.join(name);
    if fs::read(&path).is_ok_and(|bytes| bytes == LIBRARY) {
        return Ok(path);
    }
    // Rename a complete file: other Corebeats may start programs with the library.
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
    fn unusable_folder_for_the_library_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        fs::create_dir(&old).unwrap();
        fs::write(old.join("kept"), "").unwrap();
        assert!(library_in_one_of(&[new.clone(), old.clone()], "no/such.so").is_err());
        assert!(!new.exists() && old.join("kept").exists());
        assert_eq!(
            library_in_one_of(std::slice::from_ref(&new), "a.so").unwrap(),
            new.join("a.so")
        );
    }

    #[test]
    fn sanitizer_options_of_the_user_are_kept() {
        let with = |text: &str| sanitizer_options(Some(text.into()));
        assert_eq!(sanitizer_options(None).unwrap(), "verify_asan_link_order=0");
        assert_eq!(with("a=1").unwrap(), "a=1:verify_asan_link_order=0");
        assert_eq!(with("verify_asan_link_order=1"), None);
    }

    #[test]
    fn preload_keeps_other_libraries_behind() {
        let with = |text: Option<&str>| {
            preload_with(text.map(OsStr::new), Path::new("/c/libcorebeat-team-2.so"))
        };
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
    fn abandoned_channel_of_any_age_is_removed_but_one_in_effect_stays() {
        let dir = tempfile::tempdir().unwrap();
        let create = |beat_ns| {
            let channel = TeamChannel::create_in(dir.path(), Path::new("library")).unwrap();
            channel.set_size(None, Some(2)).unwrap();
            channel.map.channel().header.beat_ns.store(beat_ns, Relaxed);
            channel
        };
        // A channel in effect, even if its Corebeat was stopped for longer than the lease.
        let living = create(0);
        // Left by a killed Corebeat, which renewed the channel never, just now, or in an earlier
        // boot after the present time: a copy, which is not locked. A program has mapped the file.
        for beat_ns in [0, now_ns(), u64::MAX] {
            let path = dir.path().join(format!("{CHANNEL_PREFIX}left"));
            fs::write(&path, fs::read(create(beat_ns).path()).unwrap()).unwrap();
            let (program, _) = undo::open_file(&path).unwrap().unwrap();
            assert_eq!(program.channel().header.size.load(Relaxed), 2);
            drop(TeamChannel::create_in(dir.path(), Path::new("library")).unwrap());
            assert!(!path.exists(), "renewed at {beat_ns}");
            assert_eq!(program.channel().header.size.load(Relaxed), 0, "{beat_ns}");
            assert!(living.path().exists() && living.size() == Some(2), "{beat_ns}");
        }
    }

    #[test]
    fn library_in_an_unnameable_folder_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(library_in(&dir.path().join("with space"), "x.so").is_err());
        let path = library_in(&dir.path().join("plain"), "x.so").unwrap();
        assert_eq!(fs::read(path).unwrap(), LIBRARY);
    }

    #[test]
    fn set_size_of_zero_is_invalid() {
        let channel = TeamChannel::create().unwrap();
        assert!(matches!(channel.set_size(None, Some(0)), Err(Error::InvalidArgument(_))));
        assert!(channel.set_size(Some(-7), Some(1)).is_ok());
    }

    proptest! {
        #[test]
        fn samples_of_corrupt_memory_never_panic(
            words in proptest::collection::vec(any::<u64>(), 64), at in 0usize..LEN / 8,
            rounds in 1usize..4
        ) {
            let mut channel = TeamChannel::create().unwrap();
            for round in 0..rounds {
                for (i, &word) in words.iter().enumerate() {
                    let index = (at + i * (round + 1) * 37) % (LEN / 8);
                    // SAFETY: within the mapping, aligned, and an atomic like all other contents.
                    let cell = unsafe { &*channel.map.0.as_ptr().cast::<AtomicU64>().add(index) };
                    cell.store(word, Relaxed);
                }
                prop_assert!(channel.samples().len() <= SLOTS);
                let _ = channel.running(1);
            }
        }
    }
}
