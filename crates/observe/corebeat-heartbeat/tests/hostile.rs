//! Producers that lie: they can spoil the figures of their own group, and nothing else.

use corebeat_heartbeat::{Error, GroupId, GroupInfo, Peer, Registry, SLOTS};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a region is like, said here once more: others may have written one that is not.
const BYTES: usize = 64 << 10;
const MAGIC: u64 = u64::from_be_bytes(*b"CBHBREG1");
const LINE: usize = 8;

const ALL: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

const ME: Peer = Peer { uid: 1000, pid: 7 };
const GROUP: GroupId = GroupId { owner: 1000, number: 1 };
const HONEST: GroupId = GroupId { owner: 1000, number: 2 };

/// A region that its owner writes as it likes.
struct Forged {
    fd: OwnedFd,
    start: NonNull<AtomicU64>,
}

impl Forged {
    fn new() -> Forged {
        let fd = memfd(BYTES as u64);
        fill(&fd);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { mmap(ptr::null_mut(), BYTES, access, MapFlags::SHARED, &fd, 0) }.unwrap();
        fcntl_add_seals(&fd, ALL).unwrap();
        let forged = Forged { fd, start: NonNull::new(start.cast()).unwrap() };
        forged.set(0, MAGIC);
        forged
    }

    fn set(&self, word: usize, value: u64) {
        assert!(word < BYTES / 8);
        // SAFETY: in the mapping, which others look at by atomics.
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
        // SAFETY: mapped by us.
        unsafe { munmap(self.start.as_ptr().cast(), BYTES) }.unwrap();
    }
}

fn memfd(bytes: u64) -> OwnedFd {
    let fd = memfd_create("forged", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fd
}

/// Leaves no holes.
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

/// Why the registry refuses it.
fn refusal(fd: BorrowedFd<'_>) -> String {
    let mut registry = Registry::new();
    let why = registry.join(ME, GROUP, None, Some(fd), 0).expect_err("it is no region");
    assert!(matches!(why, Error::BadMemory { .. }), "{why}");
    assert!(registry.is_empty() && registry.groups().next().is_none());
    why.to_string()
}

fn group(registry: &Registry, id: GroupId) -> GroupInfo {
    registry.groups().find(|group| group.id == id).unwrap()
}

const SECOND_NS: u64 = 1_000_000_000;

#[test]
fn region_with_seals_and_size_and_magic_is_taken() {
    let fd = sealed(BYTES as u64, ALL);
    Registry::new().join(ME, GROUP, None, Some(fd.as_fd()), 0).unwrap();
}

#[test]
fn region_that_lacks_a_seal_is_refused() {
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::FUTURE_WRITE, SealFlags::SEAL, ALL] {
        let why = refusal(sealed(BYTES as u64, ALL.difference(missing)).as_fd());
        assert!(why.contains("lacks seals"), "{missing:?}: {why}");
    }
    // It cannot be written at all, and so is not a producer's; the seals that are asked for are asked for exactly.
    refusal(sealed(BYTES as u64, ALL.difference(SealFlags::FUTURE_WRITE) | SealFlags::WRITE).as_fd());
}

#[test]
fn region_of_another_size_is_refused() {
    for bytes in [0, 1, 4096, BYTES as u64 - 1, BYTES as u64 + 1, 1 << 40] {
        let why = refusal(sealed(bytes, ALL).as_fd());
        assert!(why.contains("another size"), "{bytes}: {why}");
    }
}

#[test]
fn region_with_a_hole_is_refused_and_costs_its_reader_no_page() {
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
    // Nobody makes one later.
    let whole = region(0);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert!(fallocate(&whole, punch, 0, 4096).is_err());
}

#[test]
fn region_of_another_layout_is_refused() {
    let forged = Forged::new();
    for magic in [0, u64::MAX, MAGIC + 1, MAGIC.swap_bytes()] {
        forged.set(0, magic);
        assert!(refusal(forged.fd.as_fd()).contains("another layout"));
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
    // Huge pages are left out where there are none.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    if let Ok(huge) = memfd_create("forged", flags) {
        fcntl_add_seals(&huge, ALL).unwrap();
        assert!(refusal(huge.as_fd()).contains("huge pages"));
    }
}

#[test]
fn counts_that_go_back_or_jump_end_in_figures() {
    let forged = Forged::new();
    let mut registry = Registry::new();
    forged.join(&mut registry, GROUP);
    forged.set_used(2);
    let mut beats = 0;
    for (n, count) in [5, 3, 0, 6, u64::MAX, 0, u64::MAX, 1].into_iter().enumerate() {
        forged.set_count(0, count);
        forged.set_count(1, u64::MAX - count);
        registry.sample(n as u64 * SECOND_NS / 3);
        let status = group(&registry, GROUP).status;
        assert!(status.beats >= beats);
        assert!(status.global_rate.is_finite() && status.global_rate >= 0.0);
        assert!(status.window_rate.is_finite() && status.window_rate >= 0.0);
        beats = status.beats;
    }
    assert_eq!(beats, u64::MAX, "it stops there");
}

#[test]
fn counts_that_go_back_stand_still() {
    let forged = Forged::new();
    let mut registry = Registry::new();
    forged.join(&mut registry, GROUP);
    forged.set_used(1);
    for (count, beats) in [(5, 5), (3, 5), (0, 5), (6, 6)] {
        forged.set_count(0, count);
        registry.sample(count);
        assert_eq!(group(&registry, GROUP).status.beats, beats);
    }
}

#[test]
fn time_that_stands_still_divides_by_nothing() {
    let forged = Forged::new();
    let mut registry = Registry::new();
    forged.join(&mut registry, GROUP);
    forged.set_used(1);
    for (now_ns, count) in [(0, 1), (0, u64::MAX), (7, 3), (7, 4), (3, 9)] {
        forged.set_count(0, count);
        registry.sample(now_ns);
        let status = group(&registry, GROUP).status;
        assert!(status.global_rate.is_finite() && status.window_rate.is_finite());
    }
}

#[test]
fn tids_and_slots_that_cannot_be_are_only_counted() {
    let forged = Forged::new();
    let mut registry = Registry::new();
    forged.join(&mut registry, GROUP);
    for used in [0, 1, SLOTS as u64, u64::MAX] {
        forged.set_used(used);
        (0..SLOTS).for_each(|slot| forged.set_tid(slot, u64::MAX - slot as u64));
        registry.sample(used);
        assert!(group(&registry, GROUP).status.members <= SLOTS as u32);
    }
    assert_eq!(group(&registry, GROUP).pids, [ME.pid], "who is in a group is not theirs to say");
}

#[test]
fn magic_that_goes_away_later_harms_nobody() {
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
fn counts_that_change_all_the_time_are_read() {
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
                // SAFETY: in the mapping, which outlives the scope.
                let word_at = unsafe { &*(start as *const AtomicU64).add(word(n) as usize % (BYTES / 8)) };
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

/// Steele, Lea, Flood, Fast splittable pseudorandom number generators, 2014 (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Something that is more likely to harm than others.
    fn value(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => MAGIC,
            4 => self.below(2000),
            _ => self.next(),
        }
    }
}

/// A descriptor that may be a region's, with content that may be.
fn any_descriptor(random: &mut Random) -> OwnedFd {
    let bytes = [0, 8, 4096, BYTES as u64, BYTES as u64, BYTES as u64, 1 << 50][random.below(7) as usize];
    let file = File::from(memfd(bytes));
    if bytes == BYTES as u64 && random.below(4) > 0 {
        fill(&file);
    }
    for _ in 0..random.below(4) {
        let at = if random.below(2) == 0 { 0 } else { random.below(BYTES as u64) };
        if at + 8 <= bytes {
            std::os::unix::fs::FileExt::write_all_at(&file, &random.value().to_ne_bytes(), at).unwrap();
        }
    }
    let seals =
        if random.below(2) == 0 { ALL } else { SealFlags::from_bits_truncate(random.next() as u32) & ALL };
    fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

/// Any bytes in regions, any descriptors, and any times: nothing breaks, and an honest group beside is measured exactly. It
/// runs for ten million inputs with `COREBEAT_SOAK` set.
#[test]
fn random_memory_spoils_its_own_group_only() {
    let inputs = if std::env::var_os("COREBEAT_SOAK").is_some() { 10_000_000 } else { 20_000 };
    let seed = std::env::var("COREBEAT_SEED").map_or(2012, |seed| seed.parse().expect("a number"));
    println!(
        "{inputs} inputs; again: COREBEAT_SEED={seed} cargo test -p corebeat-heartbeat --test hostile random"
    );
    let mut random = Random(seed);
    let mut registry = Registry::new();
    let (forged, honest) = (Forged::new(), Forged::new());
    honest.set_used(1);
    honest.join(&mut registry, HONEST);
    forged.join(&mut registry, GROUP);
    let (mut now_ns, mut beats) = (0, 0);
    for input in 1..=inputs {
        if random.below(64) == 0 {
            let fd = any_descriptor(&mut random);
            if let Ok((member, _)) = registry.join(ME, GROUP, None, Some(fd.as_fd()), now_ns) {
                registry.sample(now_ns + 1);
                registry.leave(member);
            }
        }
        for _ in 0..random.below(8) {
            let line = if random.below(8) == 0 { 0 } else { random.below(BYTES as u64 / 64) };
            forged.set(line as usize * LINE + random.below(LINE as u64) as usize, random.value());
        }
        honest.set_count(0, input);
        now_ns += 2 + random.below(SECOND_NS);
        registry.sample(now_ns);
        if random.below(4) == 0 {
            registry.sample(now_ns - random.below(now_ns));
        }
        let seen = group(&registry, HONEST).status;
        assert_eq!((seen.beats, seen.global_rate), (input, input as f64 / (now_ns as f64 / 1e9)));
        let status = group(&registry, GROUP).status;
        assert!(status.beats >= beats && status.members <= 2 * SLOTS as u32);
        assert!(status.global_rate.is_finite() && status.global_rate >= 0.0);
        assert!(status.window_rate.is_finite() && status.window_rate >= 0.0);
        beats = status.beats;
        if beats == u64::MAX {
            // What else is there to see?
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
