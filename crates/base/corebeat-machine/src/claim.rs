//! Claims: CPUs that programs ask for, have for themselves, and give back (Hollmann and Gerndt, *Invasive Computing: An Application
//! Assisted Resource Management Approach*, 2012, section 2).

use crate::{CpuSet, ProgramId};

/// Says which CPUs each program that asks for some has. Pure: what it says follows from what it was told.
pub trait Arbiter {
    /// A program asks for CPUs: `min` at least, 1 or more and `max` at most. It may have fewer, and more when others give some back. Who
    /// has asked before asks for this instead.
    fn claim(&mut self, program: ProgramId, min: u32, max: u32);

    /// A program gives back all but so many; with 0 it has no claim any more.
    fn release(&mut self, program: ProgramId, to: u32);

    /// A program's time to give back what it was asked for is over: it has that no more.
    fn take(&mut self, program: ProgramId);

    /// What a program has; nothing where it has not asked.
    fn cpus_of(&self, program: ProgramId) -> CpuSet;

    /// What a program is to keep, if it is asked to give something back.
    fn keeps(&self, program: ProgramId) -> Option<CpuSet>;
}
