//! Time shares of a thread between two readings.

use super::parse::{Switches, WaitState};
use crate::counter::Counted;
use corebeat_machine::{Counters, TimeShares};

/// Blocked time up to this share of the span counts as sleep without samples: the method has an
/// error of about one percentage point.
pub(super) const BLOCKED_NOISE: f64 = 0.01;

/// Factor by which each span reduces the weight of earlier samples: the split into lock, park and
/// sleep follows the last few spans.
const SAMPLE_DECAY: f64 = 0.5;

/// Values of a thread at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) at_ns: u64,
    pub(crate) run_ns: u64,
    /// `None` on a kernel without schedstat.
    pub(crate) delay_ns: Option<u64>,
    pub(crate) switches: Switches,
    pub(crate) counted: Counted,
    /// Whether the thread is on a CPU or in a run queue.
    pub(crate) runnable: Option<bool>,
}

impl Reading {
    /// Returns the values of a thread that starts at `at_ns`.
    pub(crate) fn birth(at_ns: u64) -> Self {
        Reading {
            at_ns,
            run_ns: 0,
            delay_ns: Some(0),
            switches: Switches { voluntary: Some(0), involuntary: Some(0), migrations: Some(0) },
            counted: Counted::default(),
            runnable: Some(true),
        }
    }
}

/// Ratios by which the sums of schedstat are split, computed from the last two full readings of a
/// thread.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Rates {
    /// Share of run time in the kernel.
    pub(crate) system_part: f64,
    /// Switches and migrations for each dispatch to a CPU.
    pub(crate) voluntary: Option<f64>,
    involuntary: Option<f64>,
    migrations: Option<f64>,
}

/// Counts of a full reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Full {
    pub(crate) slices: u64,
    pub(crate) user_ticks: u64,
    pub(crate) system_ticks: u64,
    pub(crate) switches: Switches,
}

impl Rates {
    /// Returns the ratios between two full readings.
    ///
    /// The kernel counts user and system time in ticks. If no tick passed between the readings,
    /// the ratio over the lifetime of the thread applies; a thread without any tick counts as
    /// user time, as in the kernel (`cputime_adjust`).
    pub(crate) fn between(before: &Full, after: &Full) -> Rates {
        let ratio = |user: u64, system: u64| {
            let all = user as f64 + system as f64;
            (all > 0.0).then(|| system as f64 / all)
        };
        let user_ticks = after.user_ticks.saturating_sub(before.user_ticks);
        let system_ticks = after.system_ticks.saturating_sub(before.system_ticks);
        let life = || ratio(after.user_ticks, after.system_ticks);
        let slices = after.slices.saturating_sub(before.slices).max(1) as f64;
        let per_slice = |after: Option<u64>, before: Option<u64>| {
            Some(after?.saturating_sub(before.unwrap_or(0)) as f64 / slices)
        };
        Rates {
            system_part: ratio(user_ticks, system_ticks).or_else(life).unwrap_or(0.0),
            voluntary: per_slice(after.switches.voluntary, before.switches.voluntary),
            involuntary: per_slice(after.switches.involuntary, before.switches.involuntary),
            migrations: per_slice(after.switches.migrations, before.switches.migrations),
        }
    }

    /// Returns the estimated switches after `slices` more dispatches. The next full reading
    /// corrects the estimate, because counts are totals.
    pub(crate) fn switches_after(&self, before: &Switches, slices: u64) -> Switches {
        let more = |count: Option<u64>, rate: Option<f64>| {
            Some(count?.saturating_add((rate? * slices as f64).round() as u64))
        };
        Switches {
            voluntary: more(before.voluntary, self.voluntary),
            involuntary: more(before.involuntary, self.involuntary),
            migrations: more(before.migrations, self.migrations),
        }
    }
}

/// Time between two readings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Divided {
    /// The span without the time for which the thread was stopped, in nanoseconds.
    pub(crate) span_ns: u64,
    /// Shares of this span.
    pub(crate) shares: TimeShares,
}

/// Divides the time between two readings. `system_part` is the share of run time in the kernel,
/// `parts` divides the blocked time; a share of the span up to `noise` counts as sleep.
///
/// The kernel reports run time and run-queue wait; the rest of the span is blocked time, with two
/// corrections. A thread that was runnable at both readings and did not switch voluntarily was not
/// blocked: the rest is a wait or a tick that the kernel has not accounted yet, and is attributed
/// to running and waiting in proportion. If the kernel accounts a wait that began before the span,
/// the excess is cut.
pub(crate) fn divide(
    before: &Reading,
    after: &Reading,
    system_part: f64,
    parts: Option<WaitParts>,
    noise: f64,
) -> Divided {
    let none = Divided { span_ns: 0, shares: TimeShares::default() };
    let span = after.at_ns.saturating_sub(before.at_ns) as f64;
    if span == 0.0 {
        return none;
    }
    let since = |a: u64, b: u64| a.saturating_sub(b) as f64;
    let mut running = (since(after.run_ns, before.run_ns) / span).min(1.0);
    let delay = after.delay_ns.zip(before.delay_ns).map(|(a, b)| since(a, b));
    let mut wait = delay.map(|d| (d / span).min(1.0 - running));
    let has_yielded =
        after.switches.voluntary.is_none() || after.switches.voluntary != before.switches.voluntary;
    if let Some(known) = wait.map(|l| running + l)
        && before.runnable == Some(true)
        && after.runnable == Some(true)
        && !has_yielded
    {
        running = if known > 0.0 { running / known } else { 0.0 };
        wait = Some(1.0 - running);
    }
    let mut blocked = wait.map(|l| (1.0 - running - l).max(0.0));
    let is_noise = blocked.is_some_and(|b| b <= noise);
    let parts = if is_noise { Some(WaitParts::SLEEP) } else { parts };

    let stopped = blocked.zip(parts).map_or(0.0, |(b, p)| b * p.stopped);
    let span_ns = (span * (1.0 - stopped)).round() as u64;
    if span_ns == 0 {
        return none;
    }
    let of_rest = |part: f64| (part / (1.0 - stopped)).min(1.0);
    running = of_rest(running);
    wait = wait.map(of_rest);
    blocked = blocked.map(|b| of_rest(b - stopped));

    let system = running * system_part.clamp(0.0, 1.0);
    let futex = blocked.zip(parts).map(|(b, p)| b * p.futex);
    let lock = blocked.zip(parts.and_then(|p| p.lock)).map(|(b, lock)| b * lock);
    let shares = TimeShares {
        user: Some(running - system),
        system: Some(system),
        lock,
        park: futex.zip(lock).map(|(f, l)| f - l),
        wait,
        sleep: blocked.zip(futex).map(|(b, f)| b - f),
        spin: None,
    };
    Divided { span_ns, shares }
}

/// Returns the counts between two readings; `None` for a counter that one reading does not have.
pub(crate) fn counters(before: &Reading, after: &Reading) -> Counters {
    let since = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_sub(b?));
    let (s, t) = (&before.switches, &after.switches);
    let (c, d) = (&before.counted, &after.counted);
    Counters {
        voluntary_switches: since(t.voluntary, s.voluntary),
        involuntary_switches: since(t.involuntary, s.involuntary),
        migrations: since(t.migrations, s.migrations),
        cache_references: since(d.references, c.references),
        cache_misses: since(d.misses, c.misses),
        instructions: since(d.instructions, c.instructions),
    }
}

/// Parts of blocked time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WaitParts {
    /// Time for which the thread was stopped.
    pub(crate) stopped: f64,
    /// Time in futex calls, as a share of the time for which the thread was not stopped.
    pub(crate) futex: f64,
    /// Time in those futex calls that wait for locks, at most `futex`; `None` if the kind of the
    /// calls is unknown.
    pub(crate) lock: Option<f64>,
}

impl WaitParts {
    /// Blocked time that is neither in futex calls nor stopped.
    pub(crate) const SLEEP: WaitParts = WaitParts { stopped: 0.0, futex: 0.0, lock: Some(0.0) };
}

/// Blocked time by cause, from samples that found a thread blocked, in nanoseconds. A sample
/// explains the blocked time since the sample before. Recent samples have a higher weight.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WaitSamples {
    stopped: f64,
    asleep: f64,
    /// In a futex call, and those of them that wait for locks, or for unknown things.
    futex: f64,
    lock: f64,
    unknown: f64,
}

impl WaitSamples {
    /// Adds a sample after this blocked time, in nanoseconds.
    pub(crate) fn add(&mut self, state: WaitState, blocked_ns: u64) {
        // The kernel accounts run time late: a sample may find more blocked time than there was.
        let time = blocked_ns.max(1) as f64;
        match state {
            WaitState::Awake => return,
            WaitState::Stopped => {
                self.stopped += time;
                return;
            }
            WaitState::Asleep => {}
            WaitState::Park(_) => self.futex += time,
            WaitState::Lock(_) => {
                self.futex += time;
                self.lock += time;
            }
            WaitState::Futex => {
                self.futex += time;
                self.unknown += time;
            }
        }
        self.asleep += time;
    }

    /// Returns the parts of blocked time. Old samples lose weight, but count until there are new
    /// ones.
    pub(crate) fn parts(&self) -> Option<WaitParts> {
        let all = self.stopped + self.asleep;
        let of_asleep = |part: f64| if self.asleep > 0.0 { part / self.asleep } else { 0.0 };
        (all > 0.0).then(|| WaitParts {
            stopped: self.stopped / all,
            futex: of_asleep(self.futex),
            lock: (self.unknown == 0.0).then(|| of_asleep(self.lock)),
        })
    }

    /// Reduces the weight of the samples so far. A stop is no sample of later spans: the time for
    /// which a thread is stopped is excluded from the span of the stop.
    pub(crate) fn decay(&mut self) {
        let WaitSamples { stopped, asleep, futex, lock, unknown } = self;
        *stopped = 0.0;
        [asleep, futex, lock, unknown].into_iter().for_each(|time| *time *= SAMPLE_DECAY);
    }

    /// Returns the sum of the samples of two threads.
    pub(crate) fn plus(self, other: WaitSamples) -> WaitSamples {
        WaitSamples {
            stopped: self.stopped + other.stopped,
            asleep: self.asleep + other.asleep,
            futex: self.futex + other.futex,
            lock: self.lock + other.lock,
            unknown: self.unknown + other.unknown,
        }
    }
}
