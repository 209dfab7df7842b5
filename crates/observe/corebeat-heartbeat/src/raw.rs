//! Shared memory: made, sealed, handed over, checked, and mapped. The unsafe core of this crate.
//!
//! A page has one writing process. It makes a memfd, maps it writable, and then seals it: its size is fixed for ever, nobody
//! can map it writable again or write to its descriptor, and no seal can be taken away. The descriptor is handed over; who
//! receives it checks all that before mapping it, because memory that somebody truncates kills its readers.
//!
//! ```text
//!     owner                                      receiver
//!     memfd_create, fallocate
//!     mmap PROT_READ | PROT_WRITE
//!     seal SHRINK GROW FUTURE_WRITE SEAL
//!     descriptor ----------------------------->  seals? size? tmpfs? no holes?
//!                                                mmap PROT_READ
//! ```
//!
//! Who reads a hole of a mapped file has a page put there, and pays for it: so there must be none. The seals let nobody make one
//! later (`fallocate(2)`, FALLOC_FL_PUNCH_HOLE).

mod fork;

use crate::Error;
use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::process::Pid;
use std::ffi::c_void;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

/// What every memory that is handed over has: no new size, no new writer, and no change of that.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// `statfs` calls the memory behind a memfd this. Huge pages have another number: where there is none, touching them kills.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// What `fstat` counts memory in, whatever its blocks are.
const STAT_BLOCK_BYTES: u64 = 512;

/// What lies in shared memory.
///
/// # Safety
///
/// Any bytes are one, zeros too; it is made of nothing but atomics (and room), so that it may change at any time; it has no
/// more than `BYTES` bytes, and an alignment of at most a page.
pub(crate) unsafe trait Layout {
    /// What people call it.
    const NAME: &'static str;
    /// Size of the memory, in bytes; whole pages.
    const BYTES: usize;
}

/// A mapping, until it is dropped.
#[derive(Debug)]
struct Mapping<L: Layout>(NonNull<L>);

// SAFETY: it may be used and unmapped from any thread; what is in there is atomics.
unsafe impl<L: Layout> Send for Mapping<L> {}
// SAFETY: as above.
unsafe impl<L: Layout> Sync for Mapping<L> {}

impl<L: Layout> Mapping<L> {
    fn new(fd: BorrowedFd<'_>, access: ProtFlags) -> Result<Mapping<L>, Error> {
        const { assert!(size_of::<L>() <= L::BYTES && align_of::<L>() <= 4096) };
        // SAFETY: a new mapping where there was none.
        let start = unsafe { mm::mmap(ptr::null_mut(), L::BYTES, access, MapFlags::SHARED, fd, 0) };
        let start = start.map_err(|why| Error::system("no room for shared memory", why))?;
        let start = NonNull::new(start.cast::<L>());
        start.map(Mapping).ok_or(Error::BadMemory { what: L::NAME, why: "it came to lie at address 0" })
    }
}

impl<L: Layout> Drop for Mapping<L> {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this size, and nobody has a reference any more. It cannot fail for a whole mapping.
        let _ = unsafe { mm::munmap(self.0.as_ptr().cast::<c_void>(), L::BYTES) };
    }
}

/// Memory of which this process is the writer. In a child of fork it is the child's own.
#[derive(Debug)]
pub(crate) struct Own<L: Layout> {
    mapping: Mapping<L>,
    fd: OwnedFd,
}

impl<L: Layout> Own<L> {
    /// New memory, all zeros.
    pub(crate) fn new() -> Result<Own<L>, Error> {
        let name = L::NAME.replace(' ', "-");
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Linux before 6.3 does not know that it could be executed.
        let fd = fs::memfd_create(name.as_str(), flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| fs::memfd_create(name.as_str(), flags))
            .map_err(|why| Error::system("no shared memory", why))?;
        fs::fallocate(&fd, FallocateFlags::empty(), 0, L::BYTES as u64)
            .map_err(|why| Error::system("no shared memory", why))?;
        let mapping = Mapping::new(fd.as_fd(), ProtFlags::READ | ProtFlags::WRITE)?;
        fs::fcntl_add_seals(&fd, SEALS)
            .map_err(|why| Error::system("shared memory cannot be sealed (this needs Linux 5.1)", why))?;
        fork::keep(mapping.0.addr().get(), L::BYTES)?;
        Ok(Own { mapping, fd })
    }
}

impl<L: Layout> Drop for Own<L> {
    fn drop(&mut self) {
        fork::forget(self.mapping.0.addr().get());
    }
}

impl<L: Layout> Deref for Own<L> {
    type Target = L;

    fn deref(&self) -> &L {
        // SAFETY: mapped as long as this lives, large enough, and of any bytes that are in there `L` is made.
        unsafe { self.mapping.0.as_ref() }
    }
}

impl<L: Layout> AsFd for Own<L> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Memory that another process writes, or another part of this one.
#[derive(Debug)]
pub(crate) struct View<L: Layout>(Mapping<L>);

impl<L: Layout> View<L> {
    /// Looks at what was handed over. The descriptor is not needed afterwards.
    ///
    /// # Errors
    /// [`Error::BadMemory`], if reading it could do harm.
    pub(crate) fn new(fd: BorrowedFd<'_>) -> Result<View<L>, Error> {
        let bad = |why| Error::BadMemory { what: L::NAME, why };
        let seals = fs::fcntl_get_seals(fd).map_err(|_| bad("it is no memfd"))?;
        if !seals.contains(SEALS) {
            return Err(bad("it lacks seals: SHRINK, GROW, FUTURE_WRITE and SEAL must be set"));
        }
        let kind = fs::fstatfs(fd).map_err(|_| bad("it is no memfd"))?.f_type;
        if u64::try_from(kind).ok() != Some(TMPFS_MAGIC) {
            return Err(bad("it is made of huge pages"));
        }
        let stat = fs::fstat(fd).map_err(|_| bad("it is no memfd"))?;
        if usize::try_from(stat.st_size).ok() != Some(L::BYTES) {
            return Err(bad("it has another size"));
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        if blocks.saturating_mul(STAT_BLOCK_BYTES) < L::BYTES as u64 {
            return Err(bad("it has holes: fallocate all of it"));
        }
        Mapping::new(fd, ProtFlags::READ).map(View)
    }

    /// What is in there, and may change at any time.
    ///
    /// # Safety
    /// The memory is mapped read-only: nothing but Relaxed loads.
    pub(crate) unsafe fn get(&self) -> &L {
        // SAFETY: as for `Own`.
        unsafe { self.0.0.as_ref() }
    }
}

/// Whether a thread of this process still runs; a number that is used again is taken for the same.
pub(crate) fn is_alive(tid: Pid) -> bool {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: signal 0 is none.
    unsafe { libc::tgkill(process, tid.as_raw_nonzero().get(), 0) == 0 }
}
