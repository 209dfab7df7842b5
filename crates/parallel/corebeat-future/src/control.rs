//! Granularity control: whether a site gains from running its closures concurrently.
//!
//! The control is a pure function of measured times, and reads no clock. It has one record for each
//! depth of joins, because a recursive function has calls of all sizes at one site: those near the
//! root pay, and those near the leaves do not.
//!
//! A join can gain at most the time of the shorter of its two closures: the *overlap*. It costs a
//! job and three readings of the clock even if no other thread takes the job, which is 1 to 2 % of
//! [`PAYS_NS`], and some microseconds if another thread must be woken. So a depth is switched off
//! if its mean overlap is shorter than [`PAYS_NS`]. It is also switched off if its joins wait for
//! longer than the closures would have taken in place, because the closures disturb each other.
//!
//! A depth that is plain is also *small* if both closures are short: then all joins inside it are
//! plain without a look at their own records. Times are those of the clock on the wall, so a sample
//! contains the time for which the system runs another thread instead: some milliseconds, a
//! thousand times as long as a short closure. Each outer sample contains them as well. Therefore
//! the mean decides only if it does not depend on the longest [`OUTLIERS`] samples. If it does, the
//! depth stays parallel for up to [`DOUBTS`] samples. If no more of them are long by then, the long
//! ones were interrupted. The overlap needs no such rule: it is the time of the shorter closure,
//! and if both were interrupted, the depth stays parallel for one more window only.
//!
//! No decision is final. A depth that was switched off is tried again after [`RETRY_FIRST`], and
//! later after doubled times. If no depth of a site pays, the whole site is switched off and tried
//! again in the same way.

use std::time::Duration;

/// Shortest overlap for which a join pays, in nanoseconds.
pub(crate) const PAYS_NS: u64 = 20_000;
/// Samples of a depth before a decision.
const WINDOW: u32 = 32;
/// Samples before an early decision against a depth whose overlap is far too short.
const FEW: u32 = 8;
/// The overlap is far too short if it is shorter than this part of [`PAYS_NS`].
const FAR: u64 = 16;
/// Samples that may be long because the system has interrupted a closure.
const OUTLIERS: usize = 4;
/// Samples after which so many long ones count as interruptions.
const DOUBTS: u32 = 4 * WINDOW;
/// Taken jobs in a window before the waits count.
const TAKEN_MIN: u32 = WINDOW / 4;
/// Depths with records of their own. Deeper joins share the last one.
pub(crate) const DEPTHS: usize = 32;
/// Time after which a depth or a site that was switched off is tried again, the first time.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Most doublings of that time: about a minute.
const RETRY_DOUBLINGS: u32 = 6;

/// Times of one join: the first closure stays on the calling thread, the second one is its job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) first_ns: u64,
    pub(crate) second_ns: u64,
    /// Time for which the owner waited for the second closure; `None` if it ran the closure.
    pub(crate) idle_ns: Option<u64>,
}

impl Sample {
    /// Times of a future. The code that follows the future stays on the calling thread until it
    /// needs the result, after `needed_ns`; the closure is the job.
    pub(crate) fn of_future(needed_ns: u64, job_ns: u64, idle_ns: Option<u64>) -> Sample {
        Sample { first_ns: needed_ns, second_ns: job_ns, idle_ns }
    }
}

/// Decision about a depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// No decision, or joins continue to run in parallel.
    Parallel,
    /// Joins become plain calls.
    Plain {
        /// Whether both closures are short, so that joins inside them do not pay either.
        is_small: bool,
        /// Time until the depth is tried again.
        retry: Duration,
    },
}

/// Records of a site.
#[derive(Default)]
pub(crate) struct Control {
    depths: [Record; DEPTHS],
    /// Decisions against each depth since it paid last.
    refusals: [u32; DEPTHS],
    /// Depths that have paid since the last restart.
    paying: u32,
    /// Times that the site was switched off since one of its depths paid last.
    failures: u32,
}

/// Time until the next trial, after so many failures.
fn retry_after(failures: &mut u32) -> Duration {
    let doublings = (*failures).min(RETRY_DOUBLINGS);
    *failures = failures.saturating_add(1);
    RETRY_FIRST * 2u32.pow(doublings)
}

/// The depth in bit sets.
pub(crate) fn depth_bit(depth: u32) -> u32 {
    1 << depth.min(DEPTHS as u32 - 1)
}

#[derive(Default, Clone, Copy)]
struct Record {
    samples: u32,
    overlap_ns: u64,
    total_ns: u64,
    /// The longest totals of one sample, the longest one first.
    longest_ns: [u64; OUTLIERS],
    /// Jobs that the owner ran, and their time.
    own: u32,
    own_ns: u64,
    /// Jobs that a thief ran, their time, and the time for which the owner waited.
    taken: u32,
    taken_ns: u64,
    idle_ns: u64,
}

impl Record {
    fn add(&mut self, sample: Sample) {
        let Sample { first_ns, second_ns, idle_ns } = sample;
        self.samples += 1;
        let add = |sum: &mut u64, ns: u64| *sum = sum.saturating_add(ns);
        add(&mut self.overlap_ns, first_ns.min(second_ns));
        let mut total_ns = first_ns.saturating_add(second_ns);
        add(&mut self.total_ns, total_ns);
        for longest_ns in &mut self.longest_ns {
            if total_ns > *longest_ns {
                std::mem::swap(&mut total_ns, longest_ns);
            }
        }
        match idle_ns {
            None => {
                self.own += 1;
                add(&mut self.own_ns, second_ns);
            }
            Some(idle_ns) => {
                self.taken += 1;
                add(&mut self.taken_ns, second_ns);
                add(&mut self.idle_ns, idle_ns);
            }
        }
    }

    /// Whether owners waited for taken jobs for longer than these would have taken in place.
    fn waits_too_long(&self) -> bool {
        if self.taken < TAKEN_MIN {
            return false;
        }
        let in_place_ns = match self.own {
            // The job would have taken as long here.
            0 => self.taken_ns,
            own => (self.own_ns / u64::from(own)).saturating_mul(u64::from(self.taken)),
        };
        self.idle_ns > in_place_ns.min(self.taken_ns)
    }

    /// Whether the mean overlap is shorter.
    fn is_short(&self, ns: u64) -> bool {
        self.overlap_ns < ns.saturating_mul(self.samples.into())
    }

    /// Whether both closures are short, if so many of the longest samples do not count.
    fn is_small_without(&self, outliers: usize) -> bool {
        let others = u64::from(self.samples).saturating_sub(outliers as u64);
        let longest_ns =
            self.longest_ns[..outliers].iter().fold(0, |a: u64, b| a.saturating_add(*b));
        self.total_ns.saturating_sub(longest_ns) < others.saturating_mul(2 * PAYS_NS)
    }

    /// Whether the samples speak against joins in parallel.
    fn is_against(&self) -> bool {
        match self.samples {
            WINDOW.. => self.is_short(PAYS_NS) || self.waits_too_long(),
            FEW.. => self.is_short(PAYS_NS / FAR),
            _ => false,
        }
    }

    /// Whether both closures are short; `None` if a few samples contradict all others.
    fn is_small(&self) -> Option<bool> {
        if self.is_small_without(0) {
            return Some(true);
        }
        if !self.is_small_without(OUTLIERS) {
            return Some(false);
        }
        (self.samples >= DOUBTS).then_some(true)
    }
}

impl Control {
    /// Adds a sample, and decides about its depth.
    pub(crate) fn record(&mut self, depth: usize, sample: Sample) -> Verdict {
        let depth = depth.min(DEPTHS - 1);
        let bit = depth_bit(depth as u32);
        let record = &mut self.depths[depth];
        record.add(sample);
        if record.is_against() {
            let Some(is_small) = record.is_small() else { return Verdict::Parallel };
            *record = Record::default();
            self.paying &= !bit;
            return Verdict::Plain { is_small, retry: retry_after(&mut self.refusals[depth]) };
        }
        if record.samples >= WINDOW {
            *record = Record::default();
            self.paying |= bit;
            self.refusals[depth] = 0;
            self.failures = 0;
        }
        Verdict::Parallel
    }

    /// Whether no depth pays, after a decision against one of them: each depth that was called is
    /// plain, or has only short samples until now. A depth without samples has calls that run.
    pub(crate) fn is_hopeless(&self, called: u32, plain: u32) -> bool {
        let open = called & !plain;
        let has_short = |record: &Record| record.samples > 0 && record.is_short(PAYS_NS);
        let is_open = |depth: usize| open & depth_bit(depth as u32) != 0;
        called & plain != 0
            && open & self.paying == 0
            && (0..DEPTHS).filter(|depth| is_open(*depth)).all(|d| has_short(&self.depths[d]))
    }

    /// Notes that the whole site was switched off. Returns the time until it is tried again.
    pub(crate) fn fail(&mut self) -> Duration {
        retry_after(&mut self.failures)
    }

    /// Discards all samples, so that the site is tried again.
    pub(crate) fn restart(&mut self) {
        self.depths = [Record::default(); DEPTHS];
        self.paying = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(first_ns: u64, second_ns: u64) -> Sample {
        Sample { first_ns, second_ns, idle_ns: None }
    }

    /// Adds equal samples, and returns the first decision against the depth with its number.
    fn run(control: &mut Control, sample: Sample, samples: u32) -> Option<(u32, bool)> {
        (1..=samples).find_map(|n| match control.record(0, sample) {
            Verdict::Plain { is_small, .. } => Some((n, is_small)),
            Verdict::Parallel => None,
        })
    }

    #[test]
    fn long_overlaps_stay_parallel() {
        assert_eq!(run(&mut Control::default(), own(PAYS_NS, PAYS_NS), 1000), None);
    }

    #[test]
    fn short_overlaps_become_plain() {
        assert_eq!(run(&mut Control::default(), own(100, 100), 100), Some((FEW, true)));
        let almost = own(PAYS_NS - 1, PAYS_NS - 1);
        assert_eq!(run(&mut Control::default(), almost, 100), Some((WINDOW, true)));
    }

    #[test]
    fn long_closure_beside_a_short_one_is_not_small() {
        let one_sided = own(1_000_000, 100);
        assert_eq!(run(&mut Control::default(), one_sided, 100), Some((FEW, false)));
    }

    #[test]
    fn interrupted_closures_do_not_make_a_depth_large() {
        let interrupted = |control: &mut Control, places: &[u32]| {
            (0..DOUBTS).find_map(|n| {
                let first_ns = if places.contains(&n) { 20_000_000 } else { 100 };
                match control.record(0, own(first_ns, 100)) {
                    Verdict::Plain { is_small, .. } => Some((n + 1, is_small)),
                    Verdict::Parallel => None,
                }
            })
        };
        assert_eq!(interrupted(&mut Control::default(), &[9]), Some((FEW, true)));
        // The first samples do not decide, because a few of them contradict the others.
        assert_eq!(interrupted(&mut Control::default(), &[0]), Some((DOUBTS, true)));
        assert_eq!(interrupted(&mut Control::default(), &[0, 5, 20, 100]), Some((DOUBTS, true)));
        // Calls that are long more often are no interruptions: joins inside them may pay.
        let often = interrupted(&mut Control::default(), &[5, 16, 28, 60, 70]);
        assert_eq!(often, Some((71, false)));
    }

    /// Fibonacci numbers by their definition: 2 ns for a call, and a sample for each join of depths
    /// that are not plain, as the sites take them. One interruption delays all open samples.
    fn deepest_slow_depth(interrupted_join: u32) -> Option<usize> {
        struct Run {
            control: Control,
            plain: u32,
            small: u32,
            now_ns: u64,
            joins: u32,
            interrupted_join: u32,
        }
        fn call(run: &mut Run, n: u32, depth: u32) {
            run.now_ns += 2;
            if n < 2 {
                return;
            }
            let bit = depth_bit(depth);
            if run.plain & run.small & bit != 0 {
                // Joins inside are plain: about the golden ratio to the power of n calls.
                run.now_ns += 2 * 1.618f64.powi(n as i32) as u64;
                return;
            }
            let is_parallel = run.plain & bit == 0;
            run.joins += u32::from(is_parallel);
            let start_ns = run.now_ns;
            call(run, n - 1, depth + 1);
            if is_parallel && run.joins >= run.interrupted_join {
                run.interrupted_join = u32::MAX;
                run.now_ns += 10_000_000;
            }
            let middle_ns = run.now_ns;
            call(run, n - 2, depth + 1);
            if is_parallel {
                let sample = own(middle_ns - start_ns, run.now_ns - middle_ns);
                if let Verdict::Plain { is_small, .. } = run.control.record(depth as usize, sample)
                {
                    run.plain |= bit;
                    run.small |= if is_small { bit } else { 0 };
                }
            }
        }
        let control = Control::default();
        let (plain, small, now_ns, joins) = (0, 0, 0, 0);
        let mut run = Run { control, plain, small, now_ns, joins, interrupted_join };
        call(&mut run, 30, 0);
        // Depths that are plain, and whose calls look at their records each time.
        let slow = run.plain & !run.small;
        (slow != 0).then(|| 31 - slow.leading_zeros() as usize)
    }

    #[test]
    fn recursion_has_no_slow_leaves_after_an_interruption() {
        // Closures of the depths 0 to 10 take longer than 20 us.
        let slow = deepest_slow_depth(u32::MAX);
        assert!(slow.is_none_or(|depth| depth <= 10), "{slow:?}");
        for interrupted_join in 1..200 {
            let slow = deepest_slow_depth(interrupted_join);
            assert!(slow.is_none_or(|depth| depth <= 10), "{interrupted_join}: {slow:?}");
        }
    }

    #[test]
    fn few_long_calls_among_short_ones_stay_parallel() {
        let mut control = Control::default();
        for n in 0..1000 {
            let ns = if n % 8 == 7 { 100 * PAYS_NS } else { PAYS_NS / FAR };
            assert_eq!(control.record(0, own(ns, ns)), Verdict::Parallel);
        }
    }

    #[test]
    fn closures_that_disturb_each_other_become_plain() {
        let mut control = Control::default();
        // In place a closure takes 50 us; on another thread the owner waits for it for 60 us.
        let slow = Sample { first_ns: 50_000, second_ns: 110_000, idle_ns: Some(60_000) };
        let verdicts: Vec<_> = (0..WINDOW)
            .map(|n| control.record(0, if n % 2 == 0 { own(50_000, 50_000) } else { slow }))
            .collect();
        let last = Verdict::Plain { is_small: false, retry: RETRY_FIRST };
        assert_eq!(verdicts.last(), Some(&last));
    }

    #[test]
    fn future_that_outlasts_the_code_after_it_stays_parallel() {
        // In place: 1.4 ms. On another thread: 1 ms, of which the owner waits 0.6 ms.
        let sample = Sample::of_future(400_000, 1_000_000, Some(600_000));
        assert_eq!(run(&mut Control::default(), sample, 1000), None);
        // The closure needs 1 ms more if it runs beside the code: then it does not pay.
        let mut control = Control::default();
        let verdicts: Vec<_> = (0..WINDOW)
            .map(|n| match n % 2 {
                0 => Sample::of_future(400_000, 1_000_000, None),
                _ => Sample::of_future(400_000, 2_000_000, Some(1_600_000)),
            })
            .map(|sample| control.record(0, sample))
            .collect();
        assert!(matches!(verdicts.last(), Some(Verdict::Plain { is_small: false, .. })));
    }

    #[test]
    fn depth_is_tried_again_beside_one_that_pays() {
        let mut control = Control::default();
        let long = own(PAYS_NS, PAYS_NS);
        let refuse = |control: &mut Control| {
            (0..WINDOW).find_map(|_| match control.record(1, own(100, 100)) {
                Verdict::Plain { retry, .. } => Some(retry.as_secs()),
                Verdict::Parallel => None,
            })
        };
        assert_eq!(run(&mut control, long, WINDOW), None);
        assert_eq!(refuse(&mut control), Some(1));
        assert!(!control.is_hopeless(0b11, 0b10), "depth 0 pays");
        assert_eq!(refuse(&mut control), Some(2));
        // Larger inputs: the depth pays, and the next decision against it holds for a second again.
        (0..WINDOW).for_each(|_| assert_eq!(control.record(1, long), Verdict::Parallel));
        assert_eq!(refuse(&mut control), Some(1));
    }

    #[test]
    fn site_is_hopeless_if_no_depth_pays() {
        let mut control = Control::default();
        assert!(!control.is_hopeless(0b1, 0), "nothing is known");
        run(&mut control, own(100, 100), FEW);
        assert!(control.is_hopeless(0b1, 0b1));
        assert!(!control.is_hopeless(0b11, 0b1), "a call of depth 1 runs");
        control.record(1, own(100, 100));
        assert!(control.is_hopeless(0b11, 0b1), "depth 1 is rare and short");
        control.record(1, own(100 * PAYS_NS, 100 * PAYS_NS));
        assert!(!control.is_hopeless(0b11, 0b1), "depth 1 is rare and long");
        assert!(!control.is_hopeless(0, 0b1), "a call that is late after a restart");
    }

    #[test]
    fn failures_before_a_gain_do_not_count() {
        let mut control = Control::default();
        assert_eq!([control.fail().as_secs(), control.fail().as_secs()], [1, 2]);
        run(&mut control, own(PAYS_NS, PAYS_NS), WINDOW);
        assert_eq!(control.fail().as_secs(), 1);
    }

    #[test]
    fn depths_are_independent() {
        let mut control = Control::default();
        assert_eq!(run(&mut control, own(100, 100), 100), Some((FEW, true)));
        assert_eq!(control.record(1, own(100, 100)), Verdict::Parallel);
        // Deeper ones share the last record.
        for depth in 0..FEW as usize {
            control.record(DEPTHS + depth, own(100, 100));
        }
        assert_eq!(control.depths[DEPTHS - 1].samples, 0);
    }

    #[test]
    fn retries_become_rare() {
        let mut control = Control::default();
        let waits: Vec<u64> = (0..8).map(|_| control.fail().as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64]);
    }
}
