//! Ring buffer into which the kernel writes samples, and the events that feed the buffer.

use crate::Error;
use crate::perf::{self, Scope};
use perf_event_open_sys::{bindings as sys, ioctls};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Registers in a sample: bits 0 to 7 (`PERF_REG_X86_AX` to `PERF_REG_X86_SP`), 9
/// (`PERF_REG_X86_FLAGS`), and 16 to 23 (`PERF_REG_X86_R8` to `PERF_REG_X86_R15`).
#[cfg(target_arch = "x86_64")]
const REGISTERS: u64 = 0x00ff_02ff;

/// Number of general registers in a sample.
pub(super) const REGISTER_COUNT: usize = 16;

/// Position of the stack pointer among the registers of a sample.
pub(super) const STACK_POINTER: usize = 7;

/// Registers and stack of a thread at a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Context<'r> {
    /// AX, BX, CX, DX, SI, DI, BP, SP, and R8 to R15.
    pub(super) registers: [u64; REGISTER_COUNT],
    pub(super) flags: u64,
    /// Memory from the stack pointer upwards.
    pub(super) stack: &'r [u8],
}

/// A record of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Record<'r> {
    /// A thread ran user code at this address. `context` is `None` if the ring has no stacks.
    Sample { pid: i32, tid: i32, ip: u64, context: Option<Context<'r>> },
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
    /// two). Each sample has the registers and `stack_bytes` of the stack (a multiple of 8), or
    /// neither if `stack_bytes` is 0.
    pub(super) fn open(
        scope: Scope,
        hz: u64,
        pages: usize,
        stack_bytes: u32,
    ) -> Result<Ring, Error> {
        let mut attr = sys::perf_event_attr {
            type_: sys::PERF_TYPE_SOFTWARE,
            config: u64::from(sys::PERF_COUNT_SW_CPU_CLOCK),
            sample_type: u64::from(sys::PERF_SAMPLE_IP | sys::PERF_SAMPLE_TID),
            ..Default::default()
        };
        attr.__bindgen_anon_1.sample_period = period_ns(hz);
        #[cfg(target_arch = "x86_64")]
        if stack_bytes > 0 {
            attr.sample_type |= u64::from(sys::PERF_SAMPLE_REGS_USER | sys::PERF_SAMPLE_STACK_USER);
            attr.sample_regs_user = REGISTERS;
            attr.sample_stack_user = stack_bytes;
        }
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
pub(super) fn records(mut bytes: &[u8], mut sink: impl FnMut(Record<'_>)) {
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
            // u64 ip; u32 pid, tid; then the context
            sys::PERF_RECORD_SAMPLE => (|| {
                Some(Record::Sample {
                    ip: u64_at(0)?,
                    pid: u32_at(8)? as i32,
                    tid: u32_at(12)? as i32,
                    context: context(body.get(16..)?),
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

/// Parses u64 abi, registers (unless the abi is 0), u64 size, stack, u64 valid bytes of the stack
/// (unless the size is 0).
fn context(bytes: &[u8]) -> Option<Context<'_>> {
    const ABI_64: u64 = 2;
    let number = |at: usize| bytes.get(at..)?.first_chunk().map(|b| u64::from_ne_bytes(*b));
    if number(0)? != ABI_64 {
        return None;
    }
    // The flags are between SP and R8.
    let flags_at = STACK_POINTER + 1;
    let mut registers = [0; REGISTER_COUNT];
    for (i, register) in registers.iter_mut().enumerate() {
        *register = number(8 + 8 * (i + usize::from(i >= flags_at)))?;
    }
    let flags = number(8 + 8 * flags_at)?;
    let at = 8 + 8 * (REGISTER_COUNT + 1);
    let size = usize::try_from(number(at)?).ok()?;
    let stack = bytes.get(at + 8..)?.get(..size)?;
    let valid = if size > 0 { usize::try_from(number(at + 8 + size)?).ok()? } else { 0 };
    Some(Context { registers, flags, stack: stack.get(..valid)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let size = (8 + body.len()) as u16;
        [&kind.to_ne_bytes()[..], &misc.to_ne_bytes(), &size.to_ne_bytes(), body].concat()
    }

    /// The records, in text: a record borrows from the bytes.
    fn all(bytes: &[u8]) -> Vec<String> {
        let mut all = Vec::new();
        records(bytes, |r| all.push(format!("{r:?}")));
        all
    }

    fn texts(records: &[Record<'_>]) -> Vec<String> {
        records.iter().map(|r| format!("{r:?}")).collect()
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
            texts(&[
                Record::Sample { ip: 7, pid: 1, tid: 2, context: None },
                Record::Lost(3),
                Record::Forget { pid: 5 },
                Record::Forget { pid: 7 }
            ])
        );
    }

    #[test]
    fn context_of_a_sample_is_parsed_up_to_the_valid_bytes_of_the_stack() {
        let head = [&7u64.to_ne_bytes()[..], &1u32.to_ne_bytes(), &2u32.to_ne_bytes()].concat();
        let words = |words: &[u64]| words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>();
        let numbers: Vec<u64> = (100..117).collect();
        let whole = [&head[..], &words(&[2]), &words(&numbers), &words(&[16, 1, 2, 8])].concat();
        let registers = [&numbers[..8], &numbers[9..]].concat().try_into().unwrap();
        let flags = numbers[8];
        let sample = |context| Record::Sample { ip: 7, pid: 1, tid: 2, context };
        let stack = words(&[1]);
        assert_eq!(
            all(&record(sys::PERF_RECORD_SAMPLE, 0, &whole)),
            texts(&[sample(Some(Context { registers, flags, stack: &stack }))])
        );
        // A truncated context is none, and neither is one of 32-bit code.
        for bytes in 16..whole.len() {
            let cut = record(sys::PERF_RECORD_SAMPLE, 0, &whole[..bytes]);
            assert_eq!(all(&cut), texts(&[sample(None)]), "{bytes}");
        }
        let other = [&head[..], &words(&[1]), &whole[24..]].concat();
        assert_eq!(all(&record(sys::PERF_RECORD_SAMPLE, 0, &other)), texts(&[sample(None)]));
    }

    #[test]
    fn truncated_records_end_the_parsing() {
        let whole = record(sys::PERF_RECORD_SAMPLE, 0, &[0; 16]);
        for bytes in 0..whole.len() {
            assert!(all(&whole[..bytes]).is_empty());
        }
        assert!(all(&record(sys::PERF_RECORD_SAMPLE, 0, &[0; 3])).is_empty());
        assert!(
            all(&[9, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]).is_empty(),
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
