//! Detection of an overloaded host. While the daemon is late, all changes are undone, and the
//! daemon only observes.
//!
//! A late cycle means that the host has too little CPU time for the daemon, or that the daemon has
//! too much work: decisions would use old observations. Time in suspend is not a delay: the
//! watchdog measures with the clock that stops in suspend, and uses the other clock only to detect
//! a suspend.

/// Delay from which on one cycle is too late.
const LATE_NS: u64 = 2_000_000_000;
/// Number of consecutive cycles, each late by a whole period, after which the daemon is late.
const LATE_CYCLES_MAX: u32 = 4;
/// Number of consecutive cycles in time after which the daemon acts again.
const GOOD_CYCLES: u32 = 10;
/// Largest difference of the clocks without a suspend.
const SLEEP_NS: u64 = 100_000_000;

/// Assessment of a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// In time: act.
    Act,
    /// The host was suspended within the span: observe only.
    Slept,
    /// The daemon has become late: undo all changes.
    BecameLate,
    /// The daemon is still late: observe only.
    Late,
    /// The daemon is in time again: act.
    CaughtUp,
}

/// Times of the two clocks, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Now {
    /// Clock that stops in suspend.
    pub(crate) awake_ns: u64,
    /// Clock that continues in suspend.
    pub(crate) boot_ns: u64,
}

/// Measures the delays of cycles.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    /// Time in suspend so far, in nanoseconds.
    slept_ns: Option<u64>,
    late: u32,
    good: u32,
    is_late: bool,
}

impl Watchdog {
    /// Assesses a cycle that starts now. `due_ns` is a time of the clock that stops in suspend.
    pub(crate) fn cycle(&mut self, due_ns: u64, period_ns: u64, now: Now) -> Verdict {
        let slept_ns = now.boot_ns.saturating_sub(now.awake_ns);
        let before_ns = self.slept_ns.replace(slept_ns).unwrap_or(slept_ns);
        if slept_ns > before_ns + SLEEP_NS {
            return Verdict::Slept;
        }
        let late_ns = now.awake_ns.saturating_sub(due_ns);
        self.late = if late_ns >= period_ns { self.late + 1 } else { 0 };
        self.good = if self.late == 0 { self.good + 1 } else { 0 };
        let too_late = late_ns >= LATE_NS || self.late >= LATE_CYCLES_MAX;
        match (self.is_late, too_late) {
            (false, false) => Verdict::Act,
            (false, true) => {
                self.is_late = true;
                self.good = 0;
                Verdict::BecameLate
            }
            (true, _) if self.good >= GOOD_CYCLES => {
                self.is_late = false;
                Verdict::CaughtUp
            }
            (true, _) => Verdict::Late,
        }
    }

    /// Whether the daemon is late.
    pub(crate) fn is_late(&self) -> bool {
        self.is_late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_NS: u64 = 500_000_000;

    /// Assessments of cycles with these delays in nanoseconds, some of them after a suspend.
    fn verdicts(cycles: &[(u64, u64)]) -> Vec<Verdict> {
        let mut watchdog = Watchdog::default();
        let (mut awake_ns, mut slept_ns) = (1_000, 5_000);
        let mut cycle = |&(late_ns, sleep_ns): &(u64, u64)| {
            let due_ns = awake_ns + PERIOD_NS;
            awake_ns = due_ns + late_ns;
            slept_ns += sleep_ns;
            watchdog.cycle(due_ns, PERIOD_NS, Now { awake_ns, boot_ns: awake_ns + slept_ns })
        };
        cycles.iter().map(&mut cycle).collect()
    }

    #[test]
    fn watchdog_permits_actions_of_a_daemon_in_time() {
        assert_eq!(verdicts(&[(0, 0), (PERIOD_NS - 1, 0), (1, 0)]), [Verdict::Act; 3]);
    }

    #[test]
    fn watchdog_detects_a_late_daemon_after_one_long_delay_or_several_short_ones() {
        assert_eq!(
            verdicts(&[(0, 0), (LATE_NS, 0), (0, 0)]),
            [Verdict::Act, Verdict::BecameLate, Verdict::Late]
        );
        let mut several = vec![Verdict::Act; 3];
        several.push(Verdict::BecameLate);
        assert_eq!(verdicts(&[(PERIOD_NS, 0); 4]), several);
    }

    #[test]
    fn watchdog_permits_actions_again_after_cycles_in_time() {
        let mut cycles = vec![(LATE_NS, 0)];
        cycles.extend([(0, 0); 5]);
        cycles.push((PERIOD_NS, 0));
        cycles.extend([(0, 0); GOOD_CYCLES as usize + 1]);
        let verdicts = verdicts(&cycles);
        let back = verdicts.iter().position(|v| *v == Verdict::CaughtUp).unwrap();
        assert_eq!(back, 6 + GOOD_CYCLES as usize, "the late cycle in between counts");
        assert_eq!(verdicts[back + 1..], [Verdict::Act]);
    }

    #[test]
    fn watchdog_ignores_time_in_suspend() {
        let hour_ns = 3_600_000_000_000;
        assert_eq!(
            verdicts(&[(0, 0), (LATE_NS, hour_ns), (0, 0)]),
            [Verdict::Act, Verdict::Slept, Verdict::Act]
        );
    }
}
