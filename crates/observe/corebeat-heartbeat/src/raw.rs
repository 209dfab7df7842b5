//! Shared memory: creation, sealing, transfer, checks and mapping. This module contains the unsafe
//! core of the crate.
//!
//! Every shared memory has one writing process. That process creates a memfd, maps it writable, and
//! then seals it: the size is fixed forever, no process can map it writable again or write to its
//! descriptor, and no seal can be removed. The process then passes the descriptor on. The receiver
//! checks all of this before it maps the memory, because truncated memory kills its readers.
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
//! Reading a hole of a mapped file allocates a page at the reader's expense, so holes are refused.
//! The seals prevent later holes (`fallocate(2)`, FALLOC_FL_PUNCH_HOLE).

use crate::Error;
use corebeat_sync::descriptor::above_standard;
use corebeat_sync::fork::KeptOut;
use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::process::Pid;
use std::ffi::c_void;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

/// The seals of all shared memory: fixed size, no new writer, and no further change of seals.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// The file system type of a memfd. Huge pages have another type; touching them kills the process
/// if none are available.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// The unit of `st_blocks`, independent of the block size.
const STAT_BLOCK_BYTES: u64 = 512;

/// The layout of shared memory.
///
/// # Safety
///
/// Every bit pattern is a valid value, including zeros. The type consists only of atomics and
/// padding, so that its contents may change at any time. Its size is at most `BYTES`, its alignment
/// at most a page.
pub(crate) unsafe trait Layout {
    /// Name for messages.
    const NAME: &'static str;
    /// Size of the memory in bytes, a multiple of the page size.
    const BYTES: usize;
}

/// A mapping, which is removed on drop.
#[derive(Debug)]
struct Mapping<L: Layout>(NonNull<L>);

// SAFETY: any thread may use and unmap the memory; it contains only atomics.
unsafe impl<L: Layout> Send for Mapping<L> {}
// SAFETY: as above.
unsafe impl<L: Layout> Sync for Mapping<L> {}

impl<L: Layout> Mapping<L> {
    fn new(fd: BorrowedFd<'_>, access: ProtFlags) -> Result<Mapping<L>, Error> {
        const { assert!(size_of::<L>() <= L::BYTES && align_of::<L>() <= 4096) };
        // SAFETY: the kernel chooses an unused address for the new mapping.
        let start = unsafe { mm::mmap(ptr::null_mut(), L::BYTES, access, MapFlags::SHARED, fd, 0) };
        let start = start.map_err(|why| Error::system("cannot map shared memory", why))?;
        let start = NonNull::new(start.cast::<L>());
        start
            .map(Mapping)
            .ok_or(Error::BadMemory { what: L::NAME, why: "it was mapped at address 0" })
    }
}

impl<L: Layout> Drop for Mapping<L> {
    fn drop(&mut self) {
        // SAFETY: this type has mapped the memory with this size, and no reference to it is left.
        // Unmapping a whole mapping cannot fail.
        let _ = unsafe { mm::munmap(self.0.as_ptr().cast::<c_void>(), L::BYTES) };
    }
}

/// Memory that this process writes. In a child of fork it becomes private to the child.
#[derive(Debug)]
pub(crate) struct Own<L: Layout> {
    /// Dropped before the mapping.
    _kept: KeptOut,
    mapping: Mapping<L>,
    fd: OwnedFd,
}

impl<L: Layout> Own<L> {
    /// New memory, filled with zeros.
    pub(crate) fn new() -> Result<Own<L>, Error> {
        let name = L::NAME.replace(' ', "-");
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Linux before 6.3 does not support the flag.
        let fd = fs::memfd_create(name.as_str(), flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| fs::memfd_create(name.as_str(), flags))
            .map_err(io::Error::from)
            .and_then(above_standard)
            .map_err(|why| Error::system("cannot create shared memory", why))?;
        fs::fallocate(&fd, FallocateFlags::empty(), 0, L::BYTES as u64)
            .map_err(|why| Error::system("cannot allocate shared memory", why))?;
        let mapping = Mapping::new(fd.as_fd(), ProtFlags::READ | ProtFlags::WRITE)?;
        fs::fcntl_add_seals(&fd, SEALS)
            .map_err(|why| Error::system("cannot seal shared memory (requires Linux 5.1)", why))?;
        // SAFETY: the mapping has this size and is removed after the returned value is dropped. It
        // contains only atomics, and zeros are valid.
        let kept = unsafe { KeptOut::memory(mapping.0.addr().get(), L::BYTES) };
        let _kept = kept.map_err(|why| Error::system("cannot register handlers for fork", why))?;
        Ok(Own { _kept, mapping, fd })
    }
}

impl<L: Layout> Deref for Own<L> {
    type Target = L;

    fn deref(&self) -> &L {
        // SAFETY: the memory is mapped while `self` exists and is large enough, and every bit
        // pattern is a valid `L`.
        unsafe { self.mapping.0.as_ref() }
    }
}

impl<L: Layout> AsFd for Own<L> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Memory that another process, or another part of this process, writes.
#[derive(Debug)]
pub(crate) struct View<L: Layout>(Mapping<L>);

impl<L: Layout> View<L> {
    /// Checks and maps received memory. The descriptor is not needed afterwards.
    ///
    /// # Errors
    /// [`Error::BadMemory`] if reading the memory could cause harm.
    pub(crate) fn new(fd: BorrowedFd<'_>) -> Result<View<L>, Error> {
        let bad = |why| Error::BadMemory { what: L::NAME, why };
        let seals = fs::fcntl_get_seals(fd).map_err(|_| bad("it is not a memfd"))?;
        if !seals.contains(SEALS) {
            return Err(bad("seals are missing: SHRINK, GROW, FUTURE_WRITE and SEAL must be set"));
        }
        let kind = fs::fstatfs(fd).map_err(|_| bad("it is not a memfd"))?.f_type;
        if u64::try_from(kind).ok() != Some(TMPFS_MAGIC) {
            return Err(bad("it consists of huge pages"));
        }
        let stat = fs::fstat(fd).map_err(|_| bad("it is not a memfd"))?;
        if usize::try_from(stat.st_size).ok() != Some(L::BYTES) {
            return Err(bad("it has the wrong size"));
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        if blocks.saturating_mul(STAT_BLOCK_BYTES) < L::BYTES as u64 {
            return Err(bad("it has holes: allocate all of it with fallocate"));
        }
        Mapping::new(fd, ProtFlags::READ).map(View)
    }

    /// The contents, which may change at any time.
    ///
    /// # Safety
    /// The memory is mapped read-only: the caller uses only Relaxed loads.
    pub(crate) unsafe fn get(&self) -> &L {
        // SAFETY: as for `Own`.
        unsafe { self.0.0.as_ref() }
    }
}

/// Whether a thread of this process is running. A reused thread ID counts as the same thread.
pub(crate) fn is_alive(tid: Pid) -> bool {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: signal 0 has no effect.
    unsafe { libc::tgkill(process, tid.as_raw_nonzero().get(), 0) == 0 }
}
