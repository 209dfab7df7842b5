//! Ring buffer into which the kernel writes samples, and the events that feed the buffer.

use crate::Error;
use crate::perf::{self, Scope};
use perf_event_open_sys::{bindings as sys, ioctls};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// A record of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Record {
    /// A thread ran user code at this address.
    Sample { pid: i32, tid: i32, ip: u64 },
    /// The process executed another program, or its first thread has ended: its addresses are
    /// invalid.
    Forget { pid: i32 },
    /// This number of records did not fit into the ring.
    Lost(u64),
}

/// One event and its ring.
///
/// ```text
///   | control page | data: a power of two of bytes            |
///                    ^ tail: end of what was read
///                              ^ head: end of what was written
/// ```
///
/// Both positions grow without bound; the offset in the data is the position modulo the size. The
/// kernel writes outside of tail..head only, and the reader reads inside only.
#[derive(Debug)]
pub(super) struct Ring {
    /// Descriptor of the event; closing it ends the sampling.
    fd: File,
    base: *mut u8,
    mapped_bytes: usize,
    data_offset_bytes: usize,
    data_bytes: usize,
}

// SAFETY: this value owns the mapping exclusively, and the mapping is independent of threads.
unsafe impl Send for Ring {}

impl Ring {
    /// Starts to sample `hz` times per second of run time, into a ring of `pages` pages (a power of
    /// two).
    pub(super) fn open(scope: Scope, hz: u64, pages: usize) -> Result<Ring, Error> {
        let mut attr = sys::perf_event_attr {
            type_: sys::PERF_TYPE_SOFTWARE,
            config: u64::from(sys::PERF_COUNT_SW_CPU_CLOCK),
            sample_type: u64::from(sys::PERF_SAMPLE_IP | sys::PERF_SAMPLE_TID),
            ..Default::default()
        };
        attr.__bindgen_anon_1.sample_period = period_ns(hz);
        attr.set_comm(1);
        attr.set_comm_exec(1);
        attr.set_task(1);
        let fd = perf::open(attr, scope, None).map_err(explain)?;

        let page_bytes = rustix::param::page_size();
        let mapped_bytes = (1 + pages) * page_bytes;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other memory.
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
        .map_err(|e| explain(e.into()))?
        .cast();
        // The offset of the data is known from the mapping, not read from the control page.
        Ok(Ring {
            fd,
            base,
            mapped_bytes,
            data_offset_bytes: page_bytes,
            data_bytes: pages * page_bytes,
        })
    }

    /// Changes the rate of samples per second. If the kernel refuses, the rate stays.
    pub(super) fn set_rate(&self, hz: u64) {
        let period_ns = period_ns(hz);
        // SAFETY: the argument is the address of a number that lives through the call; the kernel
        // only reads it. The descriptor belongs to this event.
        let _ = unsafe { ioctls::PERIOD(self.fd.as_raw_fd(), (&raw const period_ns) as u64) };
    }

    /// Moves all records from the ring to the end of `into`. Returns `false` if the ring is
    /// inconsistent.
    pub(super) fn take(&mut self, into: &mut Vec<u8>) -> bool {
        let page = self.base.cast::<sys::perf_event_mmap_page>();
        // SAFETY: the control page is mapped as long as `self` lives, and the field is an aligned
        // u64 that the kernel writes atomically.
        let head = unsafe { AtomicU64::from_ptr(&raw mut (*page).data_head) };
        // SAFETY: as above; the kernel reads this field.
        let tail = unsafe { AtomicU64::from_ptr(&raw mut (*page).data_tail) };
        // Acquire pairs with the barrier of the kernel between a record and the new head: records
        // before the head are complete.
        let until = head.load(Ordering::Acquire);
        // Only this side writes the tail.
        let from = tail.load(Ordering::Relaxed);
        let fits = until.wrapping_sub(from) <= self.data_bytes as u64;
        if fits {
            let bytes = until.wrapping_sub(from) as usize;
            let at = (from % self.data_bytes as u64) as usize;
            let first = bytes.min(self.data_bytes - at);
            for (offset, count) in [(at, first), (0, bytes - first)] {
                // SAFETY: offset + count <= data_bytes, so the range is within the mapping; the
                // kernel does not write between tail and head.
                into.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(
                        self.base.add(self.data_offset_bytes + offset),
                        count,
                    )
                });
            }
        }
        // Release: the reads above complete before the kernel reuses the space.
        tail.store(until, Ordering::Release);
        fits
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this length; no reference outlives a call of `take`.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.mapped_bytes) };
    }
}

fn period_ns(hz: u64) -> u64 {
    1_000_000_000 / hz.max(1)
}

fn explain(source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => Error::Unsupported {
            what: "spin time (samples of the instruction pointer)".into(),
            how: "run 'sysctl kernel.perf_event_paranoid=2', or grant CAP_PERFMON, which programs \
                  of other users always require"
                .into(),
        },
        Some(libc::ENOENT | libc::ENOSYS | libc::EOPNOTSUPP) => Error::Unsupported {
            what: "spin time (samples of the instruction pointer)".into(),
            how: "it requires a kernel with CONFIG_PERF_EVENTS".into(),
        },
        _ => Error::Refused { what: "sample code (perf_event_open)".into(), source },
    }
}

/// Parses records. All contents of `bytes` are validated: parsing ends at an inconsistency.
pub(super) fn records(mut bytes: &[u8], mut sink: impl FnMut(Record)) {
    // struct perf_event_header: u32 type, u16 misc, u16 size; then fields by type.
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
            sys::PERF_RECORD_SAMPLE => (|| {
                Some(Record::Sample {
                    ip: u64_at(0)?,
                    pid: u32_at(8)? as i32,
                    tid: u32_at(12)? as i32,
                })
            })(),
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
    fn records_of_every_kind_are_parsed() {
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
    fn truncated_records_end_the_parsing() {
        let whole = record(sys::PERF_RECORD_SAMPLE, 0, &[0; 16]);
        for bytes in 0..whole.len() {
            assert_eq!(all(&whole[..bytes]), []);
        }
        assert_eq!(all(&record(sys::PERF_RECORD_SAMPLE, 0, &[0; 3])), []);
        assert_eq!(
            all(&[9, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]),
            [],
            "a record of size 0 must not cause an endless loop"
        );
    }

    proptest! {
        #[test]
        fn records_of_random_bytes_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..512),
        ) {
            prop_assert!(all(&bytes).len() <= bytes.len() / 8);
        }
    }
}
