//! The ring that the kernel writes samples into, and the events that feed it.

use crate::Error;
use perf_event_open_sys::{bindings as sys, ioctls};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the instruction pointer was, and whose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Record {
    /// A thread was running user code here.
    Sample { pid: i32, tid: i32, ip: u64 },
    /// The process runs another program now, or its first thread has ended: its addresses mean something else.
    Forget { pid: i32 },
    /// So many records did not fit into the ring.
    Lost(u64),
}

/// Whom an event samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whom {
    /// One thread, on every CPU; 0 is the caller.
    Thread(i32),
    /// Everybody on a CPU.
    Cpu(u32),
}

/// One event and its ring.
///
/// ```text
///   | control page | data: a power of two of bytes            |
///                    ^ tail: we have read up to here
///                              ^ head: the kernel wrote up to here
/// ```
///
/// Both run on for ever; the place in the data is their value modulo its size. The kernel writes only outside of
/// tail..head, and we read only inside.
#[derive(Debug)]
pub(super) struct Ring {
    /// Sampling ends when this is closed.
    fd: OwnedFd,
    base: *mut u8,
    mapped_bytes: usize,
    data_offset_bytes: usize,
    data_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and nothing about it is tied to a thread.
unsafe impl Send for Ring {}

impl Ring {
    /// Starts sampling `hz` times for each second that is spent running, with room for `pages` (a power of two) of data.
    pub(super) fn open(whom: Whom, hz: u64, pages: usize) -> Result<Ring, Error> {
        let (tid, cpu) = match whom {
            Whom::Thread(tid) => (tid, -1),
            Whom::Cpu(cpu) => (-1, cpu as i32),
        };
        let mut attr = sys::perf_event_attr {
            type_: sys::PERF_TYPE_SOFTWARE,
            size: size_of::<sys::perf_event_attr>() as u32,
            config: u64::from(sys::PERF_COUNT_SW_CPU_CLOCK),
            sample_type: u64::from(sys::PERF_SAMPLE_IP | sys::PERF_SAMPLE_TID),
            ..Default::default()
        };
        attr.__bindgen_anon_1.sample_period = period_ns(hz);
        attr.set_exclude_kernel(1);
        attr.set_exclude_hv(1);
        attr.set_comm(1);
        attr.set_comm_exec(1);
        attr.set_task(1);
        // SAFETY: attr is a full perf_event_attr that lives through the call; the kernel only reads it.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &attr,
                tid,
                cpu,
                -1,
                sys::PERF_FLAG_FD_CLOEXEC as libc::c_ulong,
            )
        };
        if fd < 0 {
            return Err(explain(io::Error::last_os_error(), tid));
        }
        // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };

        let page_bytes = rustix::param::page_size();
        let mapped_bytes = (1 + pages) * page_bytes;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else can be there.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }
        .map_err(|e| explain(e.into(), tid))?
        .cast();
        // The kernel tells where its data is, but what is mapped is known here.
        Ok(Ring { fd, base, mapped_bytes, data_offset_bytes: page_bytes, data_bytes: pages * page_bytes })
    }

    /// Samples so many times a second from now on. Where the kernel refuses, the rate stays.
    pub(super) fn set_rate(&self, hz: u64) {
        let period_ns = period_ns(hz);
        // SAFETY: the kernel takes the argument for the address of a number, which it only reads, and which lives through
        // the call; the descriptor is this event's.
        let _ = unsafe { ioctls::PERIOD(self.fd.as_raw_fd(), (&raw const period_ns) as u64) };
    }

    /// Takes everything out of the ring, and appends it to `into`. Returns `false` if the ring made no sense.
    pub(super) fn take(&mut self, into: &mut Vec<u8>) -> bool {
        let page = self.base.cast::<sys::perf_event_mmap_page>();
        // SAFETY: the control page is mapped for as long as self lives, and the field is an aligned u64 which the
        // kernel writes in one piece.
        let head = unsafe { AtomicU64::from_ptr(&raw mut (*page).data_head) };
        // SAFETY: as above; the kernel reads this one.
        let tail = unsafe { AtomicU64::from_ptr(&raw mut (*page).data_tail) };
        // Acquire pairs with the barrier that the kernel puts between a record and the new head: what lies before the
        // head has been written.
        let until = head.load(Ordering::Acquire);
        // Only we write the tail.
        let from = tail.load(Ordering::Relaxed);
        let fits = until.wrapping_sub(from) <= self.data_bytes as u64;
        if fits {
            let bytes = until.wrapping_sub(from) as usize;
            let at = (from % self.data_bytes as u64) as usize;
            let first = bytes.min(self.data_bytes - at);
            for (offset, count) in [(at, first), (0, bytes - first)] {
                // SAFETY: offset + count <= data_bytes, so this lies within the mapping; the kernel does not write
                // between tail and head.
                into.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(self.base.add(self.data_offset_bytes + offset), count)
                });
            }
        }
        // Release: our reads above are done before the kernel sees the room and writes over it.
        tail.store(until, Ordering::Release);
        fits
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped in open with this length, and no reference into it outlives a call of take.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.mapped_bytes) };
    }
}

fn period_ns(hz: u64) -> u64 {
    1_000_000_000 / hz.max(1)
}

fn explain(source: io::Error, tid: i32) -> Error {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => Error::Missing {
            what: "spin time (samples of the instruction pointer)".into(),
            how: "allow it with 'sysctl kernel.perf_event_paranoid=2', or give CAP_PERFMON; programs of others need \
                  CAP_PERFMON in any case"
                .into(),
        },
        Some(libc::ENOENT | libc::ENOSYS | libc::EOPNOTSUPP) => Error::Missing {
            what: "spin time (samples of the instruction pointer)".into(),
            how: "it wants a kernel with CONFIG_PERF_EVENTS".into(),
        },
        Some(libc::ESRCH) => Error::NoProcess { pid: tid },
        _ => Error::Refused { what: "sample the instruction pointer (perf_event_open)".into(), source },
    }
}

/// Takes records apart. Nothing in `bytes` is believed: what does not add up ends the reading.
pub(super) fn records(mut bytes: &[u8], mut sink: impl FnMut(Record)) {
    // struct perf_event_header: u32 type, u16 misc, u16 size; then what the type says.
    while let Some((header, rest)) = bytes.split_first_chunk::<8>() {
        let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let misc = u16::from_ne_bytes([header[4], header[5]]);
        let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
        let Some(body) = size.checked_sub(8).and_then(|n| rest.get(..n)) else { return };
        bytes = &rest[body.len()..];
        let u32_at = |at: usize| body.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b));
        let u64_at = |at: usize| body.get(at..)?.first_chunk().map(|b| u64::from_ne_bytes(*b));
        let record = match kind {
            // u64 ip; u32 pid, tid
            sys::PERF_RECORD_SAMPLE => {
                (|| Some(Record::Sample { ip: u64_at(0)?, pid: u32_at(8)? as i32, tid: u32_at(12)? as i32 }))(
                )
            }
            // u64 id, lost
            sys::PERF_RECORD_LOST => u64_at(8).map(Record::Lost),
            // u32 pid, tid; name
            sys::PERF_RECORD_COMM if u32::from(misc) & sys::PERF_RECORD_MISC_COMM_EXEC != 0 => {
                u32_at(0).map(|pid| Record::Forget { pid: pid as i32 })
            }
            // u32 pid, ppid, tid, ptid; u64 time
            sys::PERF_RECORD_EXIT if u32_at(0) == u32_at(8) => {
                u32_at(0).map(|pid| Record::Forget { pid: pid as i32 })
            }
            _ => None,
        };
        record.into_iter().for_each(&mut sink);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let size = (8 + body.len()) as u16;
        [&kind.to_ne_bytes()[..], &misc.to_ne_bytes(), &size.to_ne_bytes(), body].concat()
    }

    fn all(bytes: &[u8]) -> Vec<Record> {
        let mut all = Vec::new();
        records(bytes, |r| all.push(r));
        all
    }

    #[test]
    fn records_of_every_kind_are_taken_apart() {
        let sample = [&7u64.to_ne_bytes()[..], &1u32.to_ne_bytes(), &2u32.to_ne_bytes()].concat();
        let lost = [9u64.to_ne_bytes(), 3u64.to_ne_bytes()].concat();
        let exec = [5u32.to_ne_bytes(), 5u32.to_ne_bytes(), *b"sh\0\0"].concat();
        let bytes = [
            record(sys::PERF_RECORD_SAMPLE, 0, &sample),
            record(sys::PERF_RECORD_LOST, 0, &lost),
            record(sys::PERF_RECORD_COMM, 0, &exec),
            record(sys::PERF_RECORD_COMM, sys::PERF_RECORD_MISC_COMM_EXEC as u16, &exec),
            record(sys::PERF_RECORD_EXIT, 0, &[5, 4, 6, 4, 0, 0].map(u32::to_ne_bytes).concat()),
            record(sys::PERF_RECORD_EXIT, 0, &[7, 4, 7, 4, 0, 0].map(u32::to_ne_bytes).concat()),
            record(12345, 0, &[]),
        ]
        .concat();
        assert_eq!(
            all(&bytes),
            [
                Record::Sample { ip: 7, pid: 1, tid: 2 },
                Record::Lost(3),
                Record::Forget { pid: 5 },
                Record::Forget { pid: 7 }
            ]
        );
    }

    #[test]
    fn records_cut_short_end_the_reading() {
        let whole = record(sys::PERF_RECORD_SAMPLE, 0, &[0; 16]);
        for bytes in 0..whole.len() {
            assert_eq!(all(&whole[..bytes]), []);
        }
        assert_eq!(all(&record(sys::PERF_RECORD_SAMPLE, 0, &[0; 3])), []);
        assert_eq!(
            all(&[9, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]),
            [],
            "a record of size 0 must not be read for ever"
        );
    }

    proptest! {
        #[test]
        fn records_of_random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            prop_assert!(all(&bytes).len() <= bytes.len() / 8);
        }
    }
}
