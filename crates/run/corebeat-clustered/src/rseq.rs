//! What the kernel keeps about a thread in its memory: the CPU and the node it runs on.
//!
//! glibc (2.35) registers an area for restartable sequences for each thread, and says where: `__rseq_offset` from the thread
//! pointer. The kernel writes there before a thread goes on elsewhere, so that a look is one load.

#[cfg(all(target_os = "linux", target_arch = "x86_64", not(any(miri, loom))))]
mod imp {
    use std::sync::atomic::{AtomicIsize, Ordering};

    /// Where in the area.
    const CPU: isize = 4;
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

    pub(crate) fn node() -> Option<usize> {
        None
    }
}

pub(crate) use imp::{cpu, look, node};

/// How many CPUs there are to be used; in doubt, 1.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
