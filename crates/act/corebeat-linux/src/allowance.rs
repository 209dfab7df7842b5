//! CPUs and CPU time that this process, and programs that it starts, may use.

use crate::actuator::setting::read_cpus;
use crate::cgroup::Place;
use corebeat_machine::CpuSet;

/// CPUs and CPU time that this process, and programs that it starts, may use.
#[derive(Debug, Clone, PartialEq)]
pub struct Allowance {
    /// CPUs of the affinity mask that are also in the cpuset and online. Programs may extend their
    /// affinity mask within the cpuset.
    pub cpus: CpuSet,
    /// Smallest quota of the enclosing control groups, in CPUs; `None` without a quota, and if the
    /// control groups cannot be read.
    pub quota: Option<f64>,
}

impl Allowance {
    /// Returns the present allowance of this process.
    pub fn of_this_process() -> Allowance {
        let online = || corebeat_topology::topology().cpu_set();
        let cpus = read_cpus(0).ok().filter(|cpus| !cpus.is_empty()).unwrap_or_else(online);
        let place = Place::of(std::process::id() as i32).ok().flatten();
        Allowance { cpus, quota: place.and_then(|place| place.quota()) }
    }

    /// Returns the number of threads that can run all the time, at least 1. Part of a CPU of the
    /// quota does not count.
    pub fn threads_max(&self) -> usize {
        let quota = self.quota.map_or(usize::MAX, |quota| quota as usize);
        self.cpus.len().min(quota).max(1)
    }
}

/// Returns for how long the quota has stopped the control group of this process, in seconds.
/// `None` without a control group or a quota.
pub fn throttled_s() -> Option<f64> {
    Place::of(std::process::id() as i32).ok()??.throttled_s()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_max_is_the_smaller_of_cpus_and_quota() {
        let threads =
            |cpus: &str, quota| Allowance { cpus: cpus.parse().unwrap(), quota }.threads_max();
        assert_eq!(
            [threads("0-3", None), threads("0-3", Some(2.5)), threads("0", None)],
            [4, 2, 1]
        );
        assert_eq!([threads("0-3", Some(0.5)), threads("0-1", Some(16.0))], [1, 2]);
    }

    #[test]
    fn allowance_agrees_with_the_standard_library() {
        // Other tests change the affinity of threads of this process.
        let _alone = crate::actuator::tests::alone();
        let known = std::thread::available_parallelism().unwrap().get();
        assert_eq!(Allowance::of_this_process().threads_max(), known);
    }
}
