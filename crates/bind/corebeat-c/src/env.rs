//! The place at which a program restarts a transaction.
//!
//! A program calls `sigsetjmp` in each transaction, and this library jumps only after a failure.
//! The function of glibc protects the saved registers from programs that overwrite them, by a key,
//! and may save the mask of signals. So on 64-bit x86 with glibc, `stm_inline.h` replaces
//! `sigsetjmp` where its argument is the buffer of a transaction: it calls `corebeat_stm_save`,
//! which only saves the registers that the ABI requires (*System V Application Binary Interface,
//! AMD64 supplement*, section 3.2.1). All other calls, also in programs that were compiled
//! otherwise, are those of the C library, and so is the jump then.

use std::ffi::c_int;

/// Space for a `sigjmp_buf`, and for the registers of `corebeat_stm_save`; `stm.h` checks that the
/// former suffices.
#[repr(C, align(16))]
pub(crate) struct Env {
    of_c: [u64; 56],
    /// `rbx`, `rbp`, `r12` to `r15`, the stack pointer and the return address; the last one is 0 if
    /// the program has called the function of the C library.
    registers: [u64; 8],
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
const REGISTERS: usize = std::mem::offset_of!(Env, registers);

unsafe extern "C" {
    fn siglongjmp(env: *mut Env, value: c_int) -> !;
}

impl Env {
    pub(crate) const fn new() -> Env {
        Env { of_c: [0; 56], registers: [0; 8] }
    }

    /// To be called before the program calls `sigsetjmp` or `corebeat_stm_save`.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.registers[7] = 0;
    }

    /// Continues where the program has saved its registers.
    ///
    /// # Safety
    ///
    /// The program has called `sigsetjmp` or `corebeat_stm_save` with this buffer after the last
    /// [`clear`](Env::clear), in a function that has not returned. No frame from here to that
    /// function owns a value with a destructor.
    pub(crate) unsafe fn jump(env: *mut Env, value: c_int) -> ! {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        // SAFETY: guaranteed by the caller.
        if unsafe { (*env).registers[7] } != 0 {
            // SAFETY: guaranteed by the caller.
            unsafe { restore(env, value) };
        }
        // SAFETY: guaranteed by the caller.
        unsafe { siglongjmp(env, value) }
    }
}

/// See `stm_inline.h`.
///
/// # Safety
///
/// Only a compiler that has been informed of the second return may call this.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn corebeat_stm_save(env: *mut Env) -> c_int {
    std::arch::naked_asm!(
        "mov [rdi + {at}], rbx",
        "mov [rdi + {at} + 8], rbp",
        "mov [rdi + {at} + 16], r12",
        "mov [rdi + {at} + 24], r13",
        "mov [rdi + {at} + 32], r14",
        "mov [rdi + {at} + 40], r15",
        // As after the return.
        "lea rdx, [rsp + 8]",
        "mov [rdi + {at} + 48], rdx",
        "mov rdx, [rsp]",
        "mov [rdi + {at} + 56], rdx",
        "xor eax, eax",
        "ret",
        at = const REGISTERS,
    )
}

/// # Safety
///
/// As for [`Env::jump`], with `corebeat_stm_save`.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
unsafe fn restore(env: *mut Env, value: c_int) -> ! {
    // SAFETY: the caller guarantees that these are the registers of a function that has not
    // returned.
    unsafe {
        std::arch::asm!(
            "mov rbx, [rdi + {at}]",
            "mov rbp, [rdi + {at} + 8]",
            "mov r12, [rdi + {at} + 16]",
            "mov r13, [rdi + {at} + 24]",
            "mov r14, [rdi + {at} + 32]",
            "mov r15, [rdi + {at} + 40]",
            "mov rsp, [rdi + {at} + 48]",
            "jmp qword ptr [rdi + {at} + 56]",
            at = const REGISTERS,
            in("rdi") env,
            in("eax") value,
            options(noreturn),
        )
    }
}
