//! Refusal of system calls.

/// Lets the system refuse this system call with this error to the calling thread, and to those that
/// it starts, for ever, as a container may do.
pub(crate) fn refuse(call: libc::c_long, error: i32) {
    let instruction = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        // Loads the number of the system call, the first field of `struct seccomp_data`.
        instruction((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
        instruction((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, call as u32, 0, 1),
        instruction(
            (libc::BPF_RET | libc::BPF_K) as u16,
            libc::SECCOMP_RET_ERRNO | error as u32,
            0,
            0,
        ),
        instruction((libc::BPF_RET | libc::BPF_K) as u16, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the calls read the program and its instructions, which outlive them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}
