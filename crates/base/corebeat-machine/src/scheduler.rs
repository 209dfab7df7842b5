//! A scheduler in the kernel that carries out actions exactly.

use crate::{Action, Coscheduler, CpuId, Effect, ProgramId, ThreadId};

/// A scheduler that schedules the threads of some programs in place of the default scheduler of the
/// system. A machine with such a scheduler passes actions to it, and carries out only the other
/// actions itself.
///
/// Actions concern programs that were [admitted](Scheduler::admit). Dropping the scheduler returns
/// all threads to the default scheduler.
pub trait Scheduler: Send {
    /// Returns the scheduling policy, by the number of the kernel, that a thread must have to be
    /// scheduled by this scheduler. `None` if it schedules all threads of the host, whether their
    /// programs are admitted or not.
    fn policy(&self) -> Option<u32>;

    /// Adds a program with its present threads, which includes their later children. Call this
    /// function before the threads get the [policy](Scheduler::policy), if they need one.
    ///
    /// # Errors
    /// [`SchedulerError`] if there are too many programs, or the kernel has removed the scheduler.
    fn admit(&mut self, program: ProgramId, threads: &[ThreadId]) -> Result<(), SchedulerError>;

    /// Carries out an action on an admitted program, which has this number of threads. Returns
    /// `None` if the machine must carry out the action itself.
    ///
    /// # Errors
    /// [`SchedulerError`] if the scheduler does not support the action, or the kernel has removed
    /// the scheduler.
    fn act(
        &mut self,
        action: &Action,
        program: ProgramId,
        threads: u32,
    ) -> Result<Option<Effect>, SchedulerError>;

    /// Runs the programs as coscheduled sets on these CPUs. The coscheduler has one set for each
    /// program, in order, and the CPUs in order; turns last for `slice_ns` nanoseconds.
    ///
    /// # Errors
    /// [`SchedulerError`] if a program was not admitted, or turns are so long that the kernel would
    /// remove the scheduler.
    fn coschedule(
        &mut self,
        programs: &[ProgramId],
        cpus: &[CpuId],
        coscheduler: Box<dyn Coscheduler + Send>,
        slice_ns: u64,
    ) -> Result<(), SchedulerError>;

    /// Returns the turns of a coscheduled program so far. `None` if the program is in no set.
    fn turns(&self, program: ProgramId) -> Option<Turns>;

    /// Undoes all settings of a program.
    fn release(&mut self, program: ProgramId);

    /// Undoes all settings of all programs. No program is admitted after this call.
    fn restore(&mut self);

    /// Returns the reason for which the kernel has removed the scheduler, if it has.
    fn failure(&self) -> Option<String>;
}

/// Turns of a coscheduled set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Turns {
    /// Time for which the set had CPUs and a runnable thread, in nanoseconds.
    pub on_ns: u64,
    /// Part of this time in which no thread of the set waited while a CPU of the set did anything
    /// else, in nanoseconds.
    pub together_ns: u64,
}

/// Reason why a scheduler does not carry out a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {how}")]
pub struct SchedulerError {
    /// The feature that is missing.
    pub what: String,
    /// The reason, and what the user can do.
    pub how: String,
}
