//! What the kernel keeps about a thread in its memory: the CPU and the node it runs on.
//!
//! glibc (2.35) registers an area for restartable sequences for each thread, and says where: `__rseq_offset` from the thread
//! pointer. The kernel writes there before a thread goes on elsewhere, so that a look is one load. And it looks there: a thread that
//! it has interrupted within a sequence of instructions that is told of there goes on at another place than where it was.
//! (Desnoyers, *Restartable sequences system call*, Linux 4.18, 2018; `rseq(2)`.)

#[cfg(all(target_os = "linux", target_arch = "x86_64", not(any(miri, loom))))]
mod imp {
    use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};

    /// Where in the area.
    const CPU: isize = 4;
    const SEQUENCE: isize = 8;
    const NODE: isize = 20;
    /// An area without features has these bytes; with nodes, at least so many.
    const SIZE: usize = 20;
    const NODE_SIZE: usize = 24;
    /// `getauxval`: how many bytes of the area the kernel knows.
    const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;
    /// There is none; or nobody has looked.
    const NONE: isize = 0;

    /// Where both are, from the thread pointer.
    static CPU_AT: AtomicIsize = AtomicIsize::new(NONE);
    static NODE_AT: AtomicIsize = AtomicIsize::new(NONE);

    #[cold]
    pub(crate) fn look() {
        // SAFETY: the names end with 0, and these two of glibc's, if they are there, are of these types and constant.
        let area = unsafe {
            let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
            let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
            offset.as_ref().copied().zip(size.as_ref().copied())
        };
        // glibc says 0 where the registration failed.
        let Some((offset, size)) = area.filter(|area| area.1 as usize >= SIZE) else { return };
        // SAFETY: it takes a number.
        let known = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) } as usize;
        // Relaxed: whoever sees them may use them: they say where in a thread's own memory something is.
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
        // SAFETY: the area is there as long as the thread, at this distance from what `fs` points to. The kernel writes it, so it is
        // read by one instruction that the compiler knows nothing of.
        unsafe {
            std::arch::asm!("mov {0:e}, fs:[{1}]", out(reg) number, in(reg) at, options(nostack, readonly, preserves_flags));
        }
        // Negative: this thread has none.
        usize::try_from(number).ok()
    }

    #[inline(always)]
    pub(crate) fn cpu() -> Option<usize> {
        read(&CPU_AT)
    }

    /// Adds to a number that is written on this CPU only, and only so. `false`: it was not done, as the thread is on another CPU, or was
    /// interrupted, or the kernel does not know of its area.
    ///
    /// ```text
    ///   the area tells of the sequence
    ///   begin -> +---------------------+
    ///            | is this the CPU?    |  interrupted, in any way: goes on at `abort`, and nothing was added
    ///            | add (one instruction: what is done is done)
    ///   end ---> +---------------------+
    ///   the area tells of none
    /// ```
    #[inline(always)]
    pub(crate) fn add(cpu: usize, number: &AtomicU64, n: u64) -> bool {
        let at = CPU_AT.load(Ordering::Relaxed);
        if at == NONE {
            return false;
        }
        // SAFETY: the area is there as long as the thread, and `at` says where in it the CPU is. Nothing is written but what is told of
        // there, which is taken back (the code may be unloaded) also by the kernel when it goes on at `abort`, and a number that is there for
        // long enough. `add` begins and ends between two interruptions of this CPU, and all who write the number do so here: none
        // is lost. Readers see the old number or the new one: it is aligned. The bytes before `abort` are what glibc has
        // registered; they are never run.
        unsafe {
            std::arch::asm!(
                ".pushsection __rseq_cs, \"aw\", @progbits",
                ".balign 32",
                "77: .long 0, 0",
                ".quad 78f, 79f - 78f, 76f",
                ".popsection",
                "lea {told}, [rip + 77b]",
                "mov fs:[{at} + {to_sequence}], {told}",
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
                told = out(reg) _,
                cpu = in(reg) cpu,
                number = in(reg) number.as_ptr(),
                n = in(reg) n,
                elsewhere = label {
                    tell_of_none(at);
                    return false;
                },
                options(nostack),
            );
        }
        true
    }

    #[cold]
    fn tell_of_none(at: isize) {
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
    pub(crate) fn look() {}

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

pub(crate) use imp::{add, cpu, look, node};

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn addition_is_done_on_its_cpu_alone() {
        look();
        let number = AtomicU64::new(5);
        // Nobody is on this one.
        assert!(!add(1 << 20, &number, 1));
        assert_eq!(number.load(Ordering::Relaxed), 5);
        // Between the two, the thread may move, or be interrupted.
        let is_done = || cpu().is_some_and(|cpu| add(cpu, &number, 2));
        let done = (0..1000).filter(|_| is_done()).count() as u64;
        assert_eq!(number.load(Ordering::Relaxed), 5 + 2 * done);
        assert_eq!(done > 0, cpu().is_some());
    }
}
