//! Errors of loading the scheduler.

use corebeat_machine::SchedulerError;
use std::io;

/// Reasons why the scheduler cannot be loaded, or does not carry out a request. The messages
/// include what the user can do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This program was built without the scheduler.
    #[error(
        "this program was built without the parts for the kernel: build it with 'cargo build --features \
         kernel', which needs clang, libelf-dev, zlib1g-dev, pkg-config and make"
    )]
    NotBuilt,
    /// The kernel has no sched_ext.
    #[error(
        "the kernel does not load schedulers: use Linux 6.13 or later with \
         CONFIG_SCHED_CLASS_EXT, as in Debian forky, Fedora and Arch"
    )]
    NoSchedExt,
    /// The kernel does not describe its types.
    #[error("the kernel has no /sys/kernel/btf/vmlinux: use a kernel with CONFIG_DEBUG_INFO_BTF")]
    NoTypes,
    /// Another scheduler is loaded.
    #[error("the scheduler '{0}' is loaded, and the kernel accepts one: stop its program first")]
    Busy(String),
    /// The process may not load a scheduler.
    #[error("loading a scheduler requires CAP_SYS_ADMIN: run Corebeat as root")]
    Denied,
    /// The process is in a container.
    #[error(
        "this process is in a PID namespace of its own, in which numbers of threads differ from \
         those of the kernel: run Corebeat outside of the container"
    )]
    Namespace,
    /// The process has clocks of its own.
    #[error(
        "this process is in a time namespace of its own, whose clocks differ from those of the \
         kernel: run Corebeat outside of the container"
    )]
    Clock,
    /// The kernel refused the scheduler.
    #[error("the kernel refused the scheduler: {0}")]
    Load(String),
    /// The process may not trace the kernel.
    #[error(
        "counting threads in the kernel requires CAP_BPF and CAP_PERFMON: run Corebeat as root"
    )]
    TracingDenied,
    /// The processor is not supported.
    #[error("threads are counted in the kernel on x86-64 only")]
    Processor,
    /// The kernel refused the programs that count threads.
    #[error(
        "the kernel refused the programs that count threads: use Linux 6.10 or later without \
         kernel lockdown; its reason: {0}"
    )]
    LoadTable(String),
    /// The thread that plans turns cannot be started.
    #[error("cannot start the thread that plans turns: {0}")]
    Thread(io::Error),
    /// There are too many programs.
    #[error("the scheduler has {0} programs already, its largest number: steer fewer programs")]
    Many(usize),
    /// A program was not admitted.
    #[error("program {0} is not scheduled by this scheduler: admit it first")]
    Unknown(u32),
    /// Turns are too long for the kernel.
    #[error(
        "{sets} programs would wait for up to {wait_ms} ms for their turns, and the scheduler \
         lets no thread wait for more than {most_ms} ms: use turns of at most {slice_ms} ms"
    )]
    Turns {
        /// Number of programs.
        sets: usize,
        /// Longest wait, in milliseconds.
        wait_ms: u64,
        /// Longest permitted wait, in milliseconds.
        most_ms: u64,
        /// Longest turn for this number of programs, in milliseconds.
        slice_ms: u64,
    },
    /// The action is not supported.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The kernel has removed the scheduler.
    #[error("the kernel has removed the scheduler ({0}): its threads are scheduled as before")]
    Removed(String),
    /// A call of the kernel failed.
    #[error("a request to the scheduler failed: {0}")]
    Request(String),
}

impl From<Error> for SchedulerError {
    fn from(error: Error) -> SchedulerError {
        SchedulerError { what: "the scheduler in the kernel".into(), how: error.to_string() }
    }
}
