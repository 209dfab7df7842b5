//! The transactions of this thread.
//!
//! Each load and store reads this variable. A `thread_local!` in a library is read by a call,
//! before which the caller must save registers. On x86-64, this module accesses the variable
//! itself, with a descriptor (Drepper, *ELF Handling For Thread-Local Storage*, 2013, section 5):
//! the call preserves registers, and the linker replaces it by one instruction in a program that
//! contains the library. The variable does not need the space that the system reserves for
//! libraries that are loaded later, so `dlopen` of `libcorebeat.so` always succeeds. On
//! x86-64, the inline code of `stm_inline.h` also reads the variable, by its name.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod implementation {
    use crate::stm::stm_tx;
    use corebeat_stm::word::{Front, closed};
    use std::arch::asm;
    use std::mem::offset_of;
    use std::ptr::null_mut;

    #[repr(C)]
    struct ThreadTransaction {
        /// Of the open transaction, or [`closed`].
        front: *const Front,
        /// The result of `stm_init_thread`.
        tx: *mut stm_tx,
    }

    // SAFETY: only the functions below access it, as thread-local data.
    unsafe impl Sync for ThreadTransaction {}

    /// LLVM places sections whose names begin with `.tdata.` in thread-local storage, where this
    /// value is the initial one of each thread. For the compiler it is a usual variable, so only
    /// assembly may access it, and link-time optimization together with C code
    /// (`-Clinker-plugin-lto`) is not supported. `thread_local!` exports no symbol. If the section
    /// were not thread-local, linkers would report that the symbol and its uses do not match.
    ///
    /// The number in the name is that of the layout in `stm_inline.h`: a program with another
    /// layout does not link. Increase it when the layout changes.
    #[unsafe(no_mangle)]
    #[unsafe(link_section = ".tdata.corebeat_stm_self_1")]
    #[used]
    static corebeat_stm_self_1: ThreadTransaction =
        ThreadTransaction { front: closed(), tx: null_mut() };

    /// Returns the position of the variable, relative to the thread pointer.
    #[inline(always)]
    fn position() -> usize {
        let position;
        // SAFETY: the sequence of the ABI, which linkers recognize. It changes `rax` only. Before
        // glibc 2.40 the first call of a thread may also change vector registers (its bug 31372).
        unsafe {
            asm!(
                "leaq corebeat_stm_self_1@TLSDESC(%rip), %rax",
                "callq *corebeat_stm_self_1@TLSCALL(%rax)",
                out("rax") position,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(att_syntax, pure, nomem),
            );
        }
        position
    }

    #[inline(always)]
    pub(crate) fn get() -> *mut stm_tx {
        let tx;
        // SAFETY: it reads a pointer, of this thread only.
        unsafe {
            asm!(
                "mov {tx}, qword ptr fs:[{at} + {field}]",
                at = in(reg) position(),
                field = const offset_of!(ThreadTransaction, tx),
                tx = lateout(reg) tx,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        tx
    }

    pub(crate) fn set(tx: *mut stm_tx) {
        // SAFETY: it writes a pointer, of this thread only.
        unsafe {
            asm!(
                "mov qword ptr fs:[{at} + {field}], {tx}",
                at = in(reg) position(),
                field = const offset_of!(ThreadTransaction, tx),
                tx = in(reg) tx,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Lets the loads and stores in the programs use the front of a transaction.
    #[inline(always)]
    pub(crate) fn open(front: *const Front) {
        // SAFETY: it writes a pointer, of this thread only.
        unsafe {
            asm!(
                "mov qword ptr fs:[{at} + {field}], {front}",
                at = in(reg) position(),
                field = const offset_of!(ThreadTransaction, front),
                front = in(reg) front,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Ends `open`.
    #[inline(always)]
    pub(crate) fn close() {
        open(closed());
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod implementation {
    use crate::stm::stm_tx;
    use corebeat_stm::word::Front;
    use std::cell::Cell;
    use std::ptr::null_mut;

    thread_local! {
        static TRANSACTION: Cell<*mut stm_tx> = const { Cell::new(null_mut()) };
    }

    #[inline(always)]
    pub(crate) fn get() -> *mut stm_tx {
        TRANSACTION.get()
    }

    pub(crate) fn set(tx: *mut stm_tx) {
        TRANSACTION.set(tx);
    }

    /// No program accesses the front here.
    pub(crate) fn open(_: *const Front) {}

    pub(crate) fn close() {}
}

pub(crate) use implementation::{close, get, open, set};
