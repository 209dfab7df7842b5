//! A program as a scheduling group: weight, CPU quota and freezing.

/// The period of a CPU quota: Linux' default for `cpu.max`.
pub(crate) const PERIOD_NS: u64 = 100_000_000;

/// The group of a program's threads.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// The group's weight, if one was set; 100 is the default of a Linux control group.
    pub(crate) weight: Option<u32>,
    /// Sum of the weights of its runnable threads.
    pub(crate) runnable: u64,
    /// Quota in CPUs.
    pub(crate) quota: Option<f64>,
    /// CPU time that is left in this period, in nanoseconds; negative after an overrun.
    left: i64,
    /// Threads that wait until the group may run again.
    pub(crate) throttled: Vec<usize>,
    /// A refill event is pending.
    refilling: bool,
    pub(crate) frozen: bool,
}

impl Group {
    /// The effective weight of a thread: its own, or its part of the group's.
    pub(crate) fn weight_of(&self, own: u64) -> u64 {
        match self.weight {
            None => own,
            Some(weight) => (u64::from(weight) * 1024 / 100 * own / self.runnable.max(own)).max(1),
        }
    }

    /// Whether no thread of the group may run.
    pub(crate) fn is_held(&self) -> bool {
        self.frozen || self.quota.is_some() && self.left <= 0
    }

    pub(crate) fn has_quota(&self) -> bool {
        self.quota.is_some()
    }

    /// Charges CPU time to the quota.
    pub(crate) fn charge(&mut self, ran: u64) {
        self.left = self.left.saturating_sub(ran as i64);
    }

    /// Sets a quota in CPUs, or removes it. Returns whether refills must begin.
    pub(crate) fn limit(&mut self, cpus: Option<f64>) -> bool {
        self.quota = cpus;
        self.left = self.per_period().unwrap_or(0);
        self.quota.is_some() && !std::mem::replace(&mut self.refilling, self.quota.is_some())
    }

    /// CPU time per period, in nanoseconds.
    fn per_period(&self) -> Option<i64> {
        self.quota.map(|cpus| ((cpus * PERIOD_NS as f64) as i64).max(1))
    }

    /// Whether the group is refilled after this period; if not, refills end.
    pub(crate) fn continues_refill(&mut self, is_alive: bool) -> bool {
        self.refilling = self.quota.is_some() && is_alive;
        self.refilling
    }

    /// Adds the CPU time of a period. An overrun of the last period is deducted.
    pub(crate) fn refill(&mut self) {
        if let Some(quota) = self.per_period() {
            self.left = self.left.saturating_add(quota).min(quota);
        }
    }
}
