//! Whether the daemon keeps up with itself. Where it does not, it takes back what it has done and only watches.
//!
//! A turn that begins late says that this host has no time for the daemon, or that the daemon asks too much of it: whatever
//! was decided then came from old news. Time that the host slept through (suspend) is nobody's fault: the clock that stands
//! still meanwhile does the measuring, and the other one only tells that there was such a time.

/// A turn that begins so long after it was due is too late.
const LATE_NS: u64 = 2_000_000_000;
/// So many turns in a row that begin a whole period late are too many.
const LATE_TURNS_MAX: u32 = 4;
/// So many turns in a row have to be in time before the daemon acts again.
const GOOD_TURNS: u32 = 10;
/// The clocks differ by less than this if the host did not sleep.
const SLEEP_NS: u64 = 100_000_000;

/// What a turn is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// In time: act.
    Act,
    /// The host slept: what is seen now is of two times. Only look.
    Slept,
    /// The daemon fell behind just now: take everything back.
    Fell,
    /// It is still behind. Only look.
    Behind,
    /// It has caught up just now: act.
    CaughtUp,
}

/// The two clocks, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Now {
    /// Stands still while the host sleeps.
    pub(crate) awake_ns: u64,
    /// Goes on while the host sleeps.
    pub(crate) boot_ns: u64,
}

/// Looks at when turns begin.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    /// How long the host has slept so far.
    slept_ns: Option<u64>,
    late: u32,
    good: u32,
    is_behind: bool,
}

impl Watchdog {
    /// Takes note of a turn that was due at a time of the clock that stands still, and begins now.
    pub(crate) fn turn(&mut self, due_ns: u64, period_ns: u64, now: Now) -> Verdict {
        let slept_ns = now.boot_ns.saturating_sub(now.awake_ns);
        let before_ns = self.slept_ns.replace(slept_ns).unwrap_or(slept_ns);
        if slept_ns > before_ns + SLEEP_NS {
            return Verdict::Slept;
        }
        let late_ns = now.awake_ns.saturating_sub(due_ns);
        self.late = if late_ns >= period_ns { self.late + 1 } else { 0 };
        self.good = if self.late == 0 { self.good + 1 } else { 0 };
        let falls = late_ns >= LATE_NS || self.late >= LATE_TURNS_MAX;
        match (self.is_behind, falls) {
            (false, false) => Verdict::Act,
            (false, true) => {
                self.is_behind = true;
                self.good = 0;
                Verdict::Fell
            }
            (true, _) if self.good >= GOOD_TURNS => {
                self.is_behind = false;
                Verdict::CaughtUp
            }
            (true, _) => Verdict::Behind,
        }
    }

    /// Whether the daemon keeps up.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_NS: u64 = 500_000_000;

    /// A daemon whose turns are late by so much, in nanoseconds, and which slept before some of them.
    fn verdicts(turns: &[(u64, u64)]) -> Vec<Verdict> {
        let mut watchdog = Watchdog::default();
        let (mut awake_ns, mut slept_ns) = (1_000, 5_000);
        let mut turn = |&(late_ns, sleep_ns): &(u64, u64)| {
            let due_ns = awake_ns + PERIOD_NS;
            awake_ns = due_ns + late_ns;
            slept_ns += sleep_ns;
            watchdog.turn(due_ns, PERIOD_NS, Now { awake_ns, boot_ns: awake_ns + slept_ns })
        };
        turns.iter().map(&mut turn).collect()
    }

    #[test]
    fn watchdog_lets_a_daemon_act_that_is_in_time() {
        assert_eq!(verdicts(&[(0, 0), (PERIOD_NS - 1, 0), (1, 0)]), [Verdict::Act; 3]);
    }

    #[test]
    fn watchdog_takes_back_after_one_long_delay_or_several_short_ones() {
        assert_eq!(verdicts(&[(0, 0), (LATE_NS, 0), (0, 0)]), [Verdict::Act, Verdict::Fell, Verdict::Behind]);
        let mut several = vec![Verdict::Act; 3];
        several.push(Verdict::Fell);
        assert_eq!(verdicts(&[(PERIOD_NS, 0); 4]), several);
    }

    #[test]
    fn watchdog_lets_it_act_again_after_turns_in_time() {
        let mut turns = vec![(LATE_NS, 0)];
        turns.extend([(0, 0); 5]);
        turns.push((PERIOD_NS, 0));
        turns.extend([(0, 0); GOOD_TURNS as usize + 1]);
        let verdicts = verdicts(&turns);
        let back = verdicts.iter().position(|v| *v == Verdict::CaughtUp).unwrap();
        assert_eq!(back, 6 + GOOD_TURNS as usize, "the late turn in between counts");
        assert_eq!(verdicts[back + 1..], [Verdict::Act]);
    }

    #[test]
    fn watchdog_forgives_the_hosts_sleep() {
        let hour_ns = 3_600_000_000_000;
        assert_eq!(
            verdicts(&[(0, 0), (LATE_NS, hour_ns), (0, 0)]),
            [Verdict::Act, Verdict::Slept, Verdict::Act]
        );
    }
}
