//! The scheduler and the table of a program that was built without them.

use crate::Error;
use corebeat_machine::{
    Action, Coscheduler, CpuId, Effect, ProgramId, Scheduler, SchedulerError, ThreadId, ThreadRow,
    ThreadTable, Turns,
};

/// The scheduler in the kernel. This program was built without it, so there is no value of this
/// type.
#[derive(Debug)]
pub enum KernelScheduler {}

impl KernelScheduler {
    /// Loads the scheduler.
    ///
    /// # Errors
    /// [`Error::NotBuilt`], always.
    pub fn load(_: bool) -> Result<KernelScheduler, Error> {
        Err(Error::NotBuilt)
    }
}

impl Scheduler for KernelScheduler {
    fn policy(&self) -> Option<u32> {
        match *self {}
    }

    fn admit(&mut self, _: ProgramId, _: &[ThreadId]) -> Result<(), SchedulerError> {
        match *self {}
    }

    fn act(&mut self, _: &Action, _: ProgramId, _: u32) -> Result<Option<Effect>, SchedulerError> {
        match *self {}
    }

    fn coschedule(
        &mut self,
        _: &[ProgramId],
        _: &[CpuId],
        _: Box<dyn Coscheduler + Send>,
        _: u64,
    ) -> Result<(), SchedulerError> {
        match *self {}
    }

    fn turns(&self, _: ProgramId) -> Option<Turns> {
        match *self {}
    }

    fn release(&mut self, _: ProgramId) {
        match *self {}
    }

    fn restore(&mut self) {
        match *self {}
    }

    fn failure(&self) -> Option<String> {
        match *self {}
    }
}

/// The table of threads in the kernel. This program was built without it, so there is no value of
/// this type.
#[derive(Debug)]
pub enum KernelTable {}

impl KernelTable {
    /// Loads the table.
    ///
    /// # Errors
    /// [`Error::NotBuilt`], always.
    pub fn load() -> Result<KernelTable, Error> {
        Err(Error::NotBuilt)
    }

    /// Whether the causes of blocked time are counted.
    pub fn has_causes(&self) -> bool {
        match *self {}
    }

    /// Lets the kernel check the programs of the table.
    ///
    /// # Errors
    /// [`Error::NotBuilt`], always.
    pub fn check_load() -> Result<(), Error> {
        Err(Error::NotBuilt)
    }
}

impl ThreadTable for KernelTable {
    fn add(&mut self, _: i32) -> Result<Box<dyn ThreadRow>, String> {
        match *self {}
    }

    fn refresh(&mut self) -> Result<(), String> {
        match *self {}
    }
}
