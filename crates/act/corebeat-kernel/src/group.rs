//! The settings and the state of groups: the layouts of `bpf/decision.h` and `bpf/corebeat.bpf.c`.

use crate::state::{GROUP_BYTES, GROUP_IS_BATCH, GROUP_IS_IDLE, GROUP_IS_SET};

/// Largest number of groups (`GROUPS_MAX`). Group 0 has the threads of no program.
pub(crate) const GROUPS_MAX: u32 = 64;
/// Largest number of CPUs (`CPUS_MAX`).
pub(crate) const CPUS_MAX: u32 = 512;

/// The state of a group in the kernel, from `struct group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupState {
    /// Number of threads that run or wait.
    pub runnable: u64,
    /// CPU time since the scheduler was loaded, in nanoseconds.
    pub ran_ns: u64,
    /// Weight; 0 for that of the threads.
    pub weight: u64,
    /// CPU time in each period of 100 ms, in nanoseconds; 0 for no quota.
    pub quota_ns: u64,
    /// Whether all threads have one priority (class batch).
    pub is_batch: bool,
    /// Whether the group runs only where no other group waits (class idle).
    pub is_idle: bool,
    /// Whether the group is a coscheduled set.
    pub is_set: bool,
}

impl GroupState {
    /// Reads the state of a group from the table of all groups.
    pub(crate) fn read(groups: &[u8], group: u32) -> Option<GroupState> {
        let group = groups.chunks_exact(GROUP_BYTES).nth(group as usize)?;
        let number =
            |at: usize| Some(u64::from_ne_bytes(group.get(at * 8..at * 8 + 8)?.try_into().ok()?));
        let flags = u32::from_ne_bytes(group.get(72..76)?.try_into().ok()?);
        Some(GroupState {
            runnable: number(2)?,
            ran_ns: number(4)?,
            weight: number(5)?,
            quota_ns: number(6)?,
            is_batch: flags & GROUP_IS_BATCH != 0,
            is_idle: flags & GROUP_IS_IDLE != 0,
            is_set: flags & GROUP_IS_SET != 0,
        })
    }
}

/// The settings of a group, as `struct request`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Request {
    pub(crate) flags: u32,
    pub(crate) weight: u64,
    pub(crate) quota_ns: u64,
}

impl Request {
    /// Returns the bytes of the request for a group.
    pub(crate) fn bytes(self, group: u32) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&group.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.weight.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.quota_ns.to_ne_bytes());
        bytes
    }

    /// Sets or clears a flag.
    pub(crate) fn with(self, flag: u32, is_set: bool) -> Request {
        let flags = if is_set { self.flags | flag } else { self.flags & !flag };
        Request { flags, ..self }
    }
}
