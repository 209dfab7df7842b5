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

    /// Returns the allowance of a program with its own CPUs and its own quota, where it has them.
    pub fn of_program(mut self, cpus: Option<&CpuSet>, quota: Option<f64>) -> Allowance {
        if let Some(cpus) = cpus {
            self.cpus.clone_from(cpus);
        }
        self.quota = self.quota.into_iter().chain(quota).reduce(f64::min);
        self
    }

    /// Returns the smallest number of threads that can use all of the CPU time, at least 1: the
    /// number of CPUs, at most the quota, rounded up. With a thread less, a part of the quota would
    /// remain unused. (Measured with an OpenMP program on two CPUs, medians of three runs: under
    /// quotas of 1.1, 1.25 and 1.5 CPUs, two threads take 0.88, 0.79 and 0.66 of the time of one;
    /// with regions of 67 µs 0.93, 0.82 and 0.69.)
    pub fn threads_max(&self) -> usize {
        let quota = self.quota.map_or(usize::MAX, |quota| quota.ceil() as usize);
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
            [threads("0-3", None), threads("0-3", Some(2.0)), threads("0", None)],
            [4, 2, 1]
        );
        assert_eq!([threads("0-3", Some(0.5)), threads("0-1", Some(16.0))], [1, 2]);
        assert_eq!([threads("0-3", Some(1.1)), threads("0-3", Some(2.5))], [2, 3], "rounded up");
    }

    #[test]
    fn program_has_its_own_cpus_and_the_smaller_quota() {
        let own = |quota| Allowance { cpus: "0-3".parse().unwrap(), quota };
        let cpus: CpuSet = "1-2".parse().unwrap();
        assert_eq!(own(None).of_program(Some(&cpus), None), Allowance { cpus, quota: None });
        assert_eq!(own(Some(1.5)).of_program(None, Some(3.0)), own(Some(1.5)));
        assert_eq!(own(Some(3.0)).of_program(None, Some(1.5)), own(Some(1.5)));
    }

    #[test]
    fn allowance_agrees_with_the_standard_library() {
        // Other tests change the affinity of threads of this process.
        let _alone = crate::actuator::tests::alone();
        let known = std::thread::available_parallelism().unwrap().get();
        let own = Allowance::of_this_process();
        // The standard library rounds a quota down.
        let whole = Allowance { quota: own.quota.map(f64::floor), ..own };
        assert_eq!(whole.threads_max(), known);
    }
}
