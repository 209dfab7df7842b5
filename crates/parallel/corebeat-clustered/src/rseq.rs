//! The CPU and the memory node of a thread, which the kernel maintains in the thread's memory.
//!
//! glibc (2.35) registers an area for restartable sequences for each thread, at `__rseq_offset`
//! from the thread pointer. The kernel writes the area before a thread continues on another CPU, so
//! that reading the CPU is one load. The kernel also reads the area: a thread that was interrupted
//! within the sequence of instructions that the area describes continues at the abort handler of
//! the sequence. (Desnoyers, *Restartable sequences system call*, Linux 4.18, 2018; `rseq(2)`.)

#[cfg(all(target_os = "linux", target_arch = "x86_64", not(any(miri, loom))))]
mod imp {
    use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};

    /// Offsets in the area, in bytes.
    const CPU: isize = 4;
    const SEQUENCE: isize = 8;
    const NODE: isize = 20;
    /// Size of an area without features, and minimum size with nodes, in bytes.
    const SIZE: usize = 20;
    const NODE_SIZE: usize = 24;
    /// Key of `getauxval` for the size of the area that the kernel supports.
    const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;
    /// No area, or not detected yet.
    const NONE: isize = 0;

    /// Offsets of the CPU and the node from the thread pointer.
    static CPU_AT: AtomicIsize = AtomicIsize::new(NONE);
    static NODE_AT: AtomicIsize = AtomicIsize::new(NONE);

    #[cold]
    pub(crate) fn detect() {
        // SAFETY: the names end with 0. If glibc defines these symbols, they have these types and
        // are constant.
        let area = unsafe {
            let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
            let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
            offset.as_ref().copied().zip(size.as_ref().copied())
        };
        // The size is 0 if the registration failed.
        let Some((offset, size)) = area.filter(|area| area.1 as usize >= SIZE) else { return };
        // SAFETY: the call takes a number.
        let known = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) } as usize;
        // Relaxed: the offsets alone are sufficient to access the thread's own memory.
        if known >= NODE_SIZE && size as usize >= SIZE {
            NODE_AT.store(offset + NODE, Ordering::Relaxed);
        }
        CPU_AT.store(offset + CPU, Ordering::Relaxed);
    }

    #[inline(always)]
    fn read(at: &AtomicIsize) -> Option<usize> {
        let at = at.load(Ordering::Relaxed);
        if at == NONE {
            return None;
        }
        let number: i32;
        // SAFETY: the area exists as long as the thread, at this offset from the address in `fs`.
        // The kernel writes the area, so one opaque instruction reads it.
        unsafe {
            std::arch::asm!(
                "mov {0:e}, fs:[{1}]",
                out(reg) number,
                in(reg) at,
                options(nostack, readonly, preserves_flags)
            );
        }
        // Negative: this thread has no area.
        usize::try_from(number).ok()
    }

    #[inline(always)]
    pub(crate) fn cpu() -> Option<usize> {
        read(&CPU_AT)
    }

    /// Adds to a number that only this function writes, and only on this CPU. Returns `false` if
    /// nothing was added: the thread is on another CPU, was interrupted, or has no area.
    ///
    /// ```text
    ///   the area describes the sequence
    ///   begin -> +---------------------+
    ///            | is this the CPU?    |  interrupted: continues at `abort`, and nothing was added
    ///            | add                 |  one instruction: the commit of the sequence
    ///   end ---> +---------------------+
    ///   the area describes no sequence
    /// ```
    #[inline(always)]
    pub(crate) fn add(cpu: usize, number: &AtomicU64, n: u64) -> bool {
        let at = CPU_AT.load(Ordering::Relaxed);
        if at == NONE {
            return false;
        }
        // SAFETY: the area exists as long as the thread, and `at` is the offset of its CPU field.
        // The code writes only the description of the sequence, and the number, which is valid. The
        // description is removed (the code may be unloaded), also by the kernel when it continues
        // at `abort`. The addition begins and ends between two interruptions of this CPU, and only
        // this code writes the number, so no addition is lost. Readers load the old number or the
        // new one, because it is aligned. The bytes before `abort` are the signature that glibc has
        // registered; they are never executed.
        unsafe {
            std::arch::asm!(
                ".pushsection __rseq_cs, \"aw\", @progbits",
                ".balign 32",
                "77: .long 0, 0",
                ".quad 78f, 79f - 78f, 76f",
                ".popsection",
                "lea {description}, [rip + 77b]",
                "mov fs:[{at} + {to_sequence}], {description}",
                "78:",
                "cmp fs:[{at}], {cpu:e}",
                "jne {elsewhere}",
                "add qword ptr [{number}], {n}",
                "79:",
                "mov qword ptr fs:[{at} + {to_sequence}], 0",
                ".pushsection __rseq_failure, \"ax\", @progbits",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "76: jmp {elsewhere}",
                ".popsection",
                at = in(reg) at,
                to_sequence = const SEQUENCE - CPU,
                description = out(reg) _,
                cpu = in(reg) cpu,
                number = in(reg) number.as_ptr(),
                n = in(reg) n,
                elsewhere = label {
                    clear_description(at);
                    return false;
                },
                options(nostack),
            );
        }
        true
    }

    #[cold]
    fn clear_description(at: isize) {
        // SAFETY: as in `add`.
        unsafe {
            std::arch::asm!(
                "mov qword ptr fs:[{at} + {to_sequence}], 0",
                at = in(reg) at,
                to_sequence = const SEQUENCE - CPU,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    pub(crate) fn node() -> Option<usize> {
        read(&NODE_AT)
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64", not(any(miri, loom)))))]
mod imp {
    pub(crate) fn detect() {}

    pub(crate) fn cpu() -> Option<usize> {
        None
    }

    pub(crate) fn add(_cpu: usize, _number: &corebeat_sync::atomic::AtomicU64, _n: u64) -> bool {
        false
    }

    pub(crate) fn node() -> Option<usize> {
        None
    }
}

pub(crate) use imp::{add, cpu, detect, node};

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn addition_succeeds_only_on_its_cpu() {
        detect();
        let number = AtomicU64::new(5);
        // No thread runs on this CPU.
        assert!(!add(1 << 20, &number, 1));
        assert_eq!(number.load(Ordering::Relaxed), 5);
        // The thread may migrate or be interrupted between the two calls.
        let is_done = || cpu().is_some_and(|cpu| add(cpu, &number, 2));
        let done = (0..1000).filter(|_| is_done()).count() as u64;
        assert_eq!(number.load(Ordering::Relaxed), 5 + 2 * done);
        assert_eq!(done > 0, cpu().is_some());
    }
}
