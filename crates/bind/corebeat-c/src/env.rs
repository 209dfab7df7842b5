//! The place at which a program restarts a transaction.
//!
//! A program calls `sigsetjmp` in each transaction, and this library jumps only after a failure.
//! The function of glibc protects the saved registers from programs that overwrite them, by a key,
//! and may save the mask of signals. So on 64-bit x86 with glibc, `stm_inline.h` replaces
//! `sigsetjmp` by `corebeat_stm_sigsetjmp`. With a buffer of transactions and without the mask,
//! that only saves the registers that glibc saves. With all other arguments it is the function of
//! glibc. A program that was compiled otherwise calls that directly. The last call before a failure
//! determines the jump.

use std::ffi::c_int;

/// Space for a `sigjmp_buf`, and for the registers of `corebeat_stm_sigsetjmp`; `stm.h` checks that
/// the former suffices.
#[repr(C, align(16))]
pub(crate) struct Env {
    /// On x86-64, glibc and musl save the return address in word 7. It is 0 if the registers are in
    /// the other field. In glibc, words 9 to 24 are for the mask of signals, of which the kernel
    /// writes the first, and shadow stacks use the next ones. The last one marks the buffer.
    of_c: [u64; 56],
    /// `rbx`, `rbp`, `r12` to `r15`, the stack pointer and the return address.
    registers: [u64; 8],
}

unsafe extern "C" {
    fn siglongjmp(env: *mut Env, value: c_int) -> !;
}

impl Env {
    pub(crate) const fn new() -> Env {
        Env { of_c: [0; 56], registers: [0; 8] }
    }

    /// Lets `corebeat_stm_sigsetjmp` save the registers, from this address on.
    pub(crate) fn mark(&mut self) {
        #[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
        if !glibc::has_shadow_stack() {
            self.of_c[glibc::MARK] = !((&raw const *self).addr() as u64);
        }
    }

    /// Continues where the program has saved its registers.
    ///
    /// # Safety
    ///
    /// The program has called `sigsetjmp` or `corebeat_stm_sigsetjmp` with this buffer, the last
    /// time in a function that has not returned. No frame from here to that function owns a value
    /// with a destructor.
    pub(crate) unsafe fn jump(env: *mut Env, value: c_int) -> ! {
        #[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
        // SAFETY: guaranteed by the caller.
        if unsafe { (*env).of_c[glibc::RETURN] == 0 && (*env).registers[glibc::RETURN] != 0 } {
            // SAFETY: guaranteed by the caller.
            unsafe { glibc::restore(env, value) };
        }
        // SAFETY: guaranteed by the caller.
        unsafe { siglongjmp(env, value) }
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod glibc {
    use super::Env;
    use std::ffi::c_int;
    use std::mem::offset_of;

    const REGISTERS: usize = offset_of!(Env, registers);
    /// Index of the return address in both fields.
    pub(super) const RETURN: usize = 7;
    /// Index of the word that contains the complement of the buffer's address.
    pub(super) const MARK: usize = 24;

    // The field for the C library is at the beginning.
    const _: () = assert!(offset_of!(Env, of_c) == 0);

    /// Whether returns are checked by a shadow stack, which only glibc restores. It never begins
    /// later.
    pub(super) fn has_shadow_stack() -> bool {
        let mut pointer = 0_u64;
        // SAFETY: the instruction reads the pointer to the shadow stack. Without one, it changes
        // nothing.
        unsafe {
            std::arch::asm!(
                "rdsspq {pointer}",
                pointer = inout(reg) pointer,
                options(nomem, nostack, preserves_flags),
            );
        }
        pointer != 0
    }

    /// See `stm_inline.h`.
    ///
    /// # Safety
    ///
    /// Only a compiler that has been informed of the second return may call this.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn corebeat_stm_sigsetjmp(env: *mut Env, saves_mask: c_int) -> c_int {
        std::arch::naked_asm!(
            "testl %esi, %esi",
            "jnz 2f",
            "movq %rdi, %rax",
            "notq %rax",
            "cmpq %rax, 8*{mark}(%rdi)",
            "jne 2f",
            "movq %rbx, {to}(%rdi)",
            "movq %rbp, {to}+8(%rdi)",
            "movq %r12, {to}+16(%rdi)",
            "movq %r13, {to}+24(%rdi)",
            "movq %r14, {to}+32(%rdi)",
            "movq %r15, {to}+40(%rdi)",
            // As after the return.
            "leaq 8(%rsp), %rdx",
            "movq %rdx, {to}+48(%rdi)",
            "movq (%rsp), %rdx",
            "movq %rdx, {to}+56(%rdi)",
            "xorl %eax, %eax",
            "movq %rax, 8*{pc}(%rdi)",
            "retq",
            "2: jmp __sigsetjmp@PLT",
            mark = const MARK,
            to = const REGISTERS,
            pc = const RETURN,
            options(att_syntax),
        )
    }

    /// # Safety
    ///
    /// As for [`Env::jump`], after `corebeat_stm_sigsetjmp` has saved the registers.
    pub(super) unsafe fn restore(env: *mut Env, value: c_int) -> ! {
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
}
