//! Hostile producers can corrupt the figures of their own group, and nothing else.

use corebeat_heartbeat::{Error, GroupId, GroupInfo, Peer, Registry, SLOTS};
use fastrand::Rng;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate,
    memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// The layout of a region, repeated here because hostile processes may create deviating ones.
const BYTES: usize = 64 << 10;
const MAGIC: u64 = u64::from_be_bytes(*b"CBHBREG1");
const LINE: usize = 8;

const ALL: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

const ME: Peer = Peer { uid: 1000, pid: 7 };
const GROUP: GroupId = GroupId { owner: 1000, number: 1 };
const HONEST: GroupId = GroupId { owner: 1000, number: 2 };

/// A region with arbitrary contents.
struct Forged {
    fd: OwnedFd,
    start: NonNull<AtomicU64>,
}

impl Forged {
    fn new() -> Forged {
        let fd = memfd(BYTES as u64);
        fill(&fd);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused address for the new mapping.
        let start =
            unsafe { mmap(ptr::null_mut(), BYTES, access, MapFlags::SHARED, &fd, 0) }.unwrap();
        fcntl_add_seals(&fd, ALL).unwrap();
        let forged = Forged { fd, start: NonNull::new(start.cast()).unwrap() };
        forged.set(0, MAGIC);
        forged
    }

    fn set(&self, word: usize, value: u64) {
        assert!(word < BYTES / 8);
        // SAFETY: the address is within the mapping, which is only accessed by atomics.
        unsafe { self.start.add(word).as_ref() }.store(value, Ordering::Relaxed);
    }

    fn set_count(&self, slot: usize, count: u64) {
        self.set((slot + 1) * LINE, count);
    }

    fn set_tid(&self, slot: usize, tid: u64) {
        self.set((slot + 1) * LINE + 1, tid);
    }

    fn set_used(&self, used: u64) {
        self.set(1, used);
    }

    fn join(&self, registry: &mut Registry, group: GroupId) {
        registry.join(ME, group, None, Some(self.fd.as_fd()), 0).unwrap();
    }
}

impl Drop for Forged {
    fn drop(&mut self) {
        // SAFETY: this type has mapped the memory.
        unsafe { munmap(self.start.as_ptr().cast(), BYTES) }.unwrap();
    }
}

fn memfd(bytes: u64) -> OwnedFd {
    let fd = memfd_create("forged", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fd
}

/// Allocates all blocks, so that there are no holes.
fn fill(fd: impl AsFd) {
    fallocate(fd, FallocateFlags::empty(), 0, BYTES as u64).unwrap();
}

fn sealed(bytes: u64, seals: SealFlags) -> OwnedFd {
    let mut file = File::from(memfd(bytes));
    if bytes == BYTES as u64 {
        fill(&file);
    }
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(&MAGIC.to_ne_bytes()[..bytes.min(8) as usize]).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

/// The reason for which the registry refuses a descriptor.
fn refusal(fd: BorrowedFd<'_>) -> String {
    let mut registry = Registry::new();
    let why = registry.join(ME, GROUP, None, Some(fd), 0).expect_err("the region is invalid");
    assert!(matches!(why, Error::BadMemory { .. }), "{why}");
    assert!(registry.is_empty() && registry.groups().next().is_none());
    why.to_string()
}

fn group(registry: &Registry, id: GroupId) -> GroupInfo {
    registry.groups().find(|group| group.id == id).unwrap()
}

const SECOND_NS: u64 = 1_000_000_000;

#[test]
fn valid_region_is_accepted() {
    let fd = sealed(BYTES as u64, ALL);
    Registry::new().join(ME, GROUP, None, Some(fd.as_fd()), 0).unwrap();
}

#[test]
fn region_that_lacks_a_seal_is_refused() {
    for missing in
        [SealFlags::SHRINK, SealFlags::GROW, SealFlags::FUTURE_WRITE, SealFlags::SEAL, ALL]
    {
        let why = refusal(sealed(BYTES as u64, ALL.difference(missing)).as_fd());
        assert!(why.contains("seals are missing"), "{missing:?}: {why}");
    }
    // With the seal WRITE no process can write the memory, so it cannot be a producer's. The
    // required seals must be set exactly.
    refusal(
        sealed(BYTES as u64, ALL.difference(SealFlags::FUTURE_WRITE) | SealFlags::WRITE).as_fd(),
    );
}

#[test]
fn region_of_another_size_is_refused() {
    for bytes in [0, 1, 4096, BYTES as u64 - 1, BYTES as u64 + 1, 1 << 40] {
        let why = refusal(sealed(bytes, ALL).as_fd());
        assert!(why.contains("wrong size"), "{bytes}: {why}");
    }
}

#[test]
fn region_with_a_hole_is_refused_without_reading_it() {
    let region = |from: u64| {
        let file = File::from(memfd(BYTES as u64));
        fallocate(&file, FallocateFlags::empty(), from, BYTES as u64 - from).unwrap();
        fcntl_add_seals(&file, ALL).unwrap();
        file
    };
    for from in [4096, 8192, BYTES as u64 - 4096] {
        let file = region(from);
        let blocks = fstat(&file).unwrap().st_blocks;
        assert!(refusal(file.as_fd()).contains("has holes"));
        assert_eq!(fstat(&file).unwrap().st_blocks, blocks);
    }
    // The seals prevent later holes.
    let whole = region(0);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert!(fallocate(&whole, punch, 0, 4096).is_err());
}

#[test]
fn region_of_another_layout_is_refused() {
    let forged = Forged::new();
    for magic in [0, u64::MAX, MAGIC + 1, MAGIC.swap_bytes()] {
        forged.set(0, magic);
        assert!(refusal(forged.fd.as_fd()).contains("wrong layout"));
    }
}

#[test]
fn region_that_is_no_memfd_is_refused() {
    let (pipe, _other_end) = rustix::pipe::pipe().unwrap();
    let file = std::env::temp_dir().join(format!("corebeat-heartbeat-{}", std::process::id()));
    let ordinary = File::create_new(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    ordinary.set_len(BYTES as u64).unwrap();
    let null = File::open("/dev/null").unwrap();
    let folder = File::open("/proc").unwrap();
    for fd in [pipe.as_fd(), ordinary.as_fd(), null.as_fd(), folder.as_fd()] {
        refusal(fd);
    }
    // The case is skipped on systems without huge pages.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    if let Ok(huge) = memfd_create("forged", flags) {
        fcntl_add_seals(&huge, ALL).unwrap();
        assert!(refusal(huge.as_fd()).contains("huge pages"));
    }
}

#[test]
fn decreasing_counts_are_treated_as_unchanged_and_sums_saturate() {
    let forged = Forged::new();
    let mut registry = Registry::new();
    forged.join(&mut registry, GROUP);
    forged.set_used(2);
    for (now_ns, counts, beats) in [
        (1, [5, 0], 5),
        (2, [3, 0], 5),
        (3, [0, 1], 6),
        // Without elapsed time, and backwards.
        (3, [6, 1], 7),
        (2, [7, 1], 8),
        (4, [u64::MAX, 1], u64::MAX),
        (5, [0, u64::MAX], u64::MAX),
        (6, [u64::MAX, 1], u64::MAX),
    ] {
        forged.set_count(0, counts[0]);
        forged.set_count(1, counts[1]);
        registry.sample(now_ns * SECOND_NS / 3);
        let status = group(&registry, GROUP).status;
        assert_eq!(status.beats, beats, "{counts:?}");
        assert!(status.global_rate.is_finite() && status.global_rate >= 0.0);
        assert!(status.window_rate.is_finite() && status.window_rate >= 0.0);
    }
}

#[test]
fn invalid_thread_ids_and_slots_are_only_counted() {
    let forged = Forged::new();
    let mut registry = Registry::new();
    forged.join(&mut registry, GROUP);
    for used in [0, 1, SLOTS as u64, u64::MAX] {
        forged.set_used(used);
        (0..SLOTS).for_each(|slot| forged.set_tid(slot, u64::MAX - slot as u64));
        registry.sample(used);
        assert!(group(&registry, GROUP).status.members <= SLOTS as u32);
    }
    assert_eq!(group(&registry, GROUP).pids, [ME.pid], "the region must not determine the PIDs");
}

#[test]
fn magic_that_disappears_later_is_harmless() {
    let forged = Forged::new();
    let mut registry = Registry::new();
    forged.join(&mut registry, GROUP);
    forged.set(0, 0);
    forged.set_used(1);
    forged.set_count(0, 3);
    registry.sample(SECOND_NS);
    assert_eq!(group(&registry, GROUP).status.global_rate, 3.0);
}

#[test]
fn permanently_changing_counts_can_be_read() {
    let forged = Forged::new();
    let mut registry = Registry::new();
    forged.join(&mut registry, GROUP);
    let word = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    std::thread::scope(|scope| {
        let (to_writer, stopped) = std::sync::mpsc::channel::<()>();
        let start = forged.start.as_ptr() as usize;
        scope.spawn(move || {
            let mut n = 0;
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                n += 1;
                // SAFETY: the address is within the mapping, which outlives the scope.
                let word_at =
                    unsafe { &*(start as *const AtomicU64).add(word(n) as usize % (BYTES / 8)) };
                word_at.store(word(!n), Ordering::Relaxed);
            }
        });
        for now_ns in 1..200 {
            registry.sample(now_ns);
            let status = group(&registry, GROUP).status;
            assert!(status.global_rate.is_finite() && status.window_rate.is_finite());
        }
        drop(to_writer);
    });
}

/// A value that is likely to cause harm.
fn harmful_value(random: &mut Rng) -> u64 {
    match random.u8(..6) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << random.u8(..64),
        3 => MAGIC,
        4 => random.u64(..2000),
        _ => random.u64(..),
    }
}

/// A descriptor with a random size, random contents and random seals.
fn any_descriptor(random: &mut Rng) -> OwnedFd {
    let bytes = [0, 8, 4096, BYTES as u64, BYTES as u64, BYTES as u64, 1 << 50][random.usize(..7)];
    let file = File::from(memfd(bytes));
    if bytes == BYTES as u64 && random.u64(..4) > 0 {
        fill(&file);
    }
    for _ in 0..random.u64(..4) {
        let at = if random.u64(..2) == 0 { 0 } else { random.u64(..BYTES as u64) };
        if at + 8 <= bytes {
            std::os::unix::fs::FileExt::write_all_at(
                &file,
                &harmful_value(random).to_ne_bytes(),
                at,
            )
            .unwrap();
        }
    }
    let seals = if random.u64(..2) == 0 {
        ALL
    } else {
        SealFlags::from_bits_truncate(random.u32(..)) & ALL
    };
    fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

/// Arbitrary bytes in regions, arbitrary descriptors and arbitrary times: nothing fails, and an
/// honest group is measured exactly. With `COREBEAT_SOAK` the test runs ten million inputs.
#[test]
fn random_memory_corrupts_only_its_own_group() {
    let inputs = if std::env::var_os("COREBEAT_SOAK").is_some() { 10_000_000 } else { 20_000 };
    let seed = std::env::var("COREBEAT_SEED")
        .map_or(2012, |seed| seed.parse().expect("COREBEAT_SEED must be a number"));
    println!(
        "{inputs} inputs; to repeat: COREBEAT_SEED={seed} cargo test -p corebeat-heartbeat \
         --test hostile random"
    );
    let mut random = Rng::with_seed(seed);
    let mut registry = Registry::new();
    let (forged, honest) = (Forged::new(), Forged::new());
    honest.set_used(1);
    honest.join(&mut registry, HONEST);
    forged.join(&mut registry, GROUP);
    let (mut now_ns, mut beats) = (0, 0);
    for input in 1..=inputs {
        if random.u64(..64) == 0 {
            let fd = any_descriptor(&mut random);
            if let Ok((member, _)) = registry.join(ME, GROUP, None, Some(fd.as_fd()), now_ns) {
                registry.sample(now_ns + 1);
                registry.leave(member);
            }
        }
        for _ in 0..random.u64(..8) {
            let line = if random.u64(..8) == 0 { 0 } else { random.u64(..BYTES as u64 / 64) };
            forged.set(line as usize * LINE + random.usize(..LINE), harmful_value(&mut random));
        }
        honest.set_count(0, input);
        now_ns += 2 + random.u64(..SECOND_NS);
        registry.sample(now_ns);
        if random.u64(..4) == 0 {
            registry.sample(now_ns - random.u64(..now_ns));
        }
        let seen = group(&registry, HONEST).status;
        assert_eq!((seen.beats, seen.global_rate), (input, input as f64 / (now_ns as f64 / 1e9)));
        let status = group(&registry, GROUP).status;
        assert!(status.beats >= beats && status.members <= 2 * SLOTS as u32);
        assert!(status.global_rate.is_finite() && status.global_rate >= 0.0);
        assert!(status.window_rate.is_finite() && status.window_rate >= 0.0);
        beats = status.beats;
        if beats == u64::MAX {
            // The other public methods must not fail, either.

            let all: Vec<_> = registry.groups().map(|group| group.id).collect();
            assert_eq!(all, [GROUP, HONEST]);
            beats = 0;
            registry = Registry::new();
            honest.set_count(0, 0);
            honest.join(&mut registry, HONEST);
            forged.set(0, MAGIC);
            forged.join(&mut registry, GROUP);
        }
    }
}
