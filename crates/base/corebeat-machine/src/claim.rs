//! Claims: CPUs that programs request, use exclusively, and return (Hollmann and Gerndt, *Invasive
//! Computing: An Application Assisted Resource Management Approach*, 2012, section 2).

use crate::{CpuSet, ProgramId};

/// Assignment of CPUs to programs that request them. Pure: the assignment depends on the calls
/// only.
pub trait Arbiter {
    /// Requests `min` (1 or more) to `max` CPUs for a program. The program may receive fewer, and
    /// more later when other programs return some. Replaces an earlier request of the program.
    fn claim(&mut self, program: ProgramId, min: u32, max: u32);

    /// Returns CPUs of a program down to `to`; 0 ends its claim.
    fn release(&mut self, program: ProgramId, to: u32);

    /// Ends the time within which a program returns requested CPUs: takes these CPUs.
    fn take(&mut self, program: ProgramId);

    /// Returns the CPUs of a program; empty without a request.
    fn cpus_of(&self, program: ProgramId) -> CpuSet;

    /// Returns the CPUs that a program keeps, if it is requested to return others.
    fn keeps(&self, program: ProgramId) -> Option<CpuSet>;
}
