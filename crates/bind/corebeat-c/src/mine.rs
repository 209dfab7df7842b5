//! The transactions of this thread.
//!
//! Each load and store reads this pointer. A `thread_local!` in a library is read by a call, which
//! also makes its caller save registers. On x86-64, this module declares the variable itself, in
//! the model of TLS that reads it by two instructions (Drepper, *ELF Handling For Thread-Local
//! Storage*, 2013, section 4.3.6, initial exec), also in `libcorebeat.so`. A program that loads the
//! library by `dlopen` needs eight bytes of the TLS that the system reserves for this.

use crate::stm::stm_tx;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod implementation {
    use super::stm_tx;
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss.corebeat_stm_mine,\"awT\",@nobits",
        ".balign 8",
        ".globl corebeat_stm_mine",
        ".hidden corebeat_stm_mine",
        ".type corebeat_stm_mine,@tls_object",
        ".size corebeat_stm_mine,8",
        "corebeat_stm_mine:",
        ".zero 8",
        ".popsection",
    );

    #[inline(always)]
    pub(crate) fn get() -> *mut stm_tx {
        let tx;
        // SAFETY: it reads a pointer, of this thread only.
        unsafe {
            asm!(
                "mov {tx}, qword ptr [rip + corebeat_stm_mine@GOTTPOFF]",
                "mov {tx}, qword ptr fs:[{tx}]",
                tx = out(reg) tx,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        tx
    }

    pub(crate) fn set(tx: *mut stm_tx) {
        // SAFETY: it writes a pointer, of this thread only.
        unsafe {
            asm!(
                "mov {at}, qword ptr [rip + corebeat_stm_mine@GOTTPOFF]",
                "mov qword ptr fs:[{at}], {tx}",
                at = out(reg) _,
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
        static MINE: Cell<*mut stm_tx> = const { Cell::new(null_mut()) };
    }

    #[inline(always)]
    pub(crate) fn get() -> *mut stm_tx {
        MINE.get()
    }

    pub(crate) fn set(tx: *mut stm_tx) {
        MINE.set(tx);
    }
}

pub(crate) use implementation::{get, set};
