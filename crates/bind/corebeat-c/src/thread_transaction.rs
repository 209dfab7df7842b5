//! The transactions of this thread.
//!
//! Each load and store reads this pointer. A `thread_local!` in a library is read by a call, before
//! which the caller must save registers. On x86-64, this module declares the variable itself, with
//! a descriptor (Drepper, *ELF Handling For Thread-Local Storage*, 2013, section 5): the call
//! preserves registers, and the linker replaces it by one instruction in a program that contains
//! the library. The variable does not need the space that the system reserves for libraries that
//! are loaded later, so `dlopen` of `libcorebeat.so` always succeeds.

use crate::stm::stm_tx;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod implementation {
    use super::stm_tx;
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss.corebeat_stm_transaction,\"awT\",@nobits",
        ".balign 8",
        ".globl corebeat_stm_transaction",
        ".hidden corebeat_stm_transaction",
        ".type corebeat_stm_transaction,@tls_object",
        ".size corebeat_stm_transaction,8",
        "corebeat_stm_transaction:",
        ".zero 8",
        ".popsection",
    );

    /// Returns the position of the variable, relative to the thread pointer.
    #[inline(always)]
    fn position() -> usize {
        let position;
        // SAFETY: the sequence of the ABI, which linkers recognize. It changes `rax` only. Before
        // glibc 2.40 the first call of a thread may also change vector registers (its bug 31372).
        unsafe {
            asm!(
                "leaq corebeat_stm_transaction@TLSDESC(%rip), %rax",
                "callq *corebeat_stm_transaction@TLSCALL(%rax)",
                out("rax") position,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(att_syntax, pure, readonly),
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
                "mov {tx}, qword ptr fs:[{at}]",
                at = in(reg) position(),
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
                "mov qword ptr fs:[{at}], {tx}",
                at = in(reg) position(),
                tx = in(reg) tx,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod implementation {
    use super::stm_tx;
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
}

pub(crate) use implementation::{get, set};
