//! Opening events of `perf_event_open(2)`.

use corebeat_machine::CpuId;
use perf_event_open_sys::bindings::{PERF_FLAG_FD_CLOEXEC, perf_event_attr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

/// Scope of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// One thread on all CPUs; 0 is the calling thread.
    Thread(i32),
    /// A CPU with all threads.
    Cpu(CpuId),
}

/// Opens an event of user mode: `perf_event_paranoid` 2 permits no more without privileges.
/// `leader` is the first event of the group to which the event belongs.
pub(crate) fn open(
    mut attr: perf_event_attr,
    scope: Scope,
    leader: Option<&File>,
) -> io::Result<File> {
    attr.size = size_of::<perf_event_attr>() as u32;
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    const ANY: i32 = -1;
    let (tid, cpu) = match scope {
        Scope::Thread(tid) => (tid, ANY),
        Scope::Cpu(cpu) => (ANY, cpu.0 as i32),
    };
    let group = leader.map_or(-1, AsRawFd::as_raw_fd);
    let flags = u64::from(PERF_FLAG_FD_CLOEXEC);
    // SAFETY: `attr` is valid during the call and contains its own size.
    let fd = checked(unsafe {
        perf_event_open_sys::perf_event_open(&mut attr, tid, cpu, group, flags as _)
    })?;
    // SAFETY: the kernel has just opened this descriptor, which nothing else owns.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Returns the error of a call that has failed.
pub(crate) fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
