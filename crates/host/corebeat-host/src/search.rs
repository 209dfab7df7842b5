//! The search for a thread count (Thread Reinforcer) over trials, with protection against
//! disturbances by other programs.
//!
//! ```text
//!   Reinforcer -- Try(n) --> results --(n unknown)--> Trials::run(n) --> disturbed? --> repeat
//!       ^                       |                                         quiet? --> results
//!       +-- median of profiles -+
//!   Done: a result that is disturbed, compared with the quietest one? --> discard it, search again
//!         the choice rests on single trials? --> repeat the compared counts in turns, search again
//! ```

use crate::clock::now_ns;
use crate::error::Error;
use crate::trial::{TrialResult, Trials, Window};
use corebeat_policy::oversubscription::{Oversubscription, detect};
use corebeat_policy::reinforcer::{
    Limits, Profile, Reason, Reinforcer, Step, Thresholds, Trial, count,
};
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::process::ExitStatus;
use std::time::Duration;

/// CPUs that other programs keep busy, above which a note is worth its line.
pub const OTHERS_BUSY_NOTED: f64 = 0.25;

/// Shortest observation for such a note, in seconds: the kernel accounts in ticks of up to 10 ms.
const OTHERS_MIN_S: f64 = 0.1;

/// A run is disturbed if other programs keep at least this number of CPUs more busy than in the
/// quietest run, or this part of all CPUs if that is more. A smaller difference in a window of
/// 100 ms is within the error of tick accounting.
const DISTURBED_CPUS: f64 = 0.4;
const DISTURBED_PART: f64 = 0.05;

/// Number of immediate repetitions of a disturbed trial.
const REPEATS_MAX: u32 = 3;

/// Number of searches: after each one, disturbed trials are discarded and repeated.
const ROUNDS_MAX: u32 = 3;

/// Number of trials of the chosen count, and of the counts that it was compared with: the search
/// uses their medians, because a single trial may be an outlier.
const CONFIRMATIONS: usize = 3;

/// Longest trial that is repeated as a confirmation, in seconds: a search should take few seconds.
const REPEATED_MAX_S: f64 = 1.0;

/// Pause before the first repetition; twice as long before each further one.
const PAUSE: Duration = Duration::from_millis(200);

/// One trial of a search.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Thread count.
    pub threads: u32,
    /// Time until the program had its threads, in seconds.
    pub serial_s: f64,
    /// Length of the observation, in seconds.
    pub window_s: f64,
    /// Profile or failure.
    pub trial: Trial,
    /// CPUs that other programs kept busy in the window.
    pub others_busy: Option<f64>,
    /// Number of disturbed trials with this count that were repeated.
    pub repeated: u32,
    /// Why the search went on or stopped.
    pub verdict: String,
}

/// The result of a search.
#[derive(Debug, Serialize)]
pub struct Found {
    /// CPUs of the machine.
    pub cpus: u32,
    /// Trials of the last search, in order.
    pub rows: Vec<Row>,
    /// Best thread count; `None` if the program failed with every count.
    pub best: Option<u32>,
    /// Why the search stopped.
    pub reason: String,
    /// Duration of the search, in seconds.
    pub search_s: f64,
    /// Peak of the time for the same work, if there is one (Christmann et al. 2012).
    pub oversubscription: Option<Oversubscription>,
    /// Remarks, one line each.
    pub notes: Vec<String>,
}

impl Found {
    /// Profile of the trial with the best count.
    pub fn best_profile(&self) -> Option<&Profile> {
        let row = self.rows.iter().find(|row| Some(row.threads) == self.best)?;
        profile(&row.trial)
    }
}

/// A search, or the status of the signal that ended it.
pub enum Searched {
    /// The search came to its end.
    Found(Found),
    /// A signal requested the end of Corebeat.
    Interrupted(ExitStatus),
}

/// Profile of a trial that did not fail.
pub fn profile(trial: &Trial) -> Option<&Profile> {
    match trial {
        Trial::Ran(profile) => Some(profile),
        Trial::Failed(_) => None,
    }
}

/// Table with one line for each trial. The first line begins with `title`.
pub fn trial_table(title: &str, rows: &[Row]) -> String {
    let mut text = format!(
        "{title}: threads  CPU use   lock   spin  switches/s  migrations/s  why the search went on \
         or stopped\n"
    );
    for row in rows {
        let rate = |r: Option<f64>| r.map_or_else(|| "-".into(), |r| format!("{r:.0}"));
        let share = |s: Option<f64>| s.map_or_else(|| "-".into(), |s| format!("{:.0}%", s * 100.0));
        let figures = match &row.trial {
            Trial::Ran(p) => format!(
                "{:>7} {:>6} {:>6} {:>11} {:>13}",
                share(Some(p.cpu_util)),
                share(p.lock),
                share(p.spin),
                rate(p.voluntary_rate),
                rate(p.migration_rate)
            ),
            Trial::Failed(_) => format!("{:>47}", "failed"),
        };
        let width = title.len() + 9;
        text += &format!("{:>width$} {figures}  {}\n", row.threads, row.verdict);
    }
    text
}

/// A detector of disturbances: it compares the load of other programs during a run with the load
/// during the quietest run so far. A constant load disturbs no comparison.
#[derive(Debug, Clone)]
pub struct Disturbance {
    /// Difference in CPUs from which on a run is disturbed.
    limit: f64,
    /// Least number of CPUs that other programs kept busy in a run.
    quietest: Option<f64>,
}

impl Disturbance {
    /// Creates a detector for a machine with this number of CPUs.
    pub fn new(cpus: u32) -> Disturbance {
        let limit = DISTURBED_CPUS.max(DISTURBED_PART * f64::from(cpus));
        Disturbance { limit, quietest: None }
    }

    /// Adds the load of other programs during a run.
    pub fn add(&mut self, others_busy: Option<f64>) {
        self.quietest = match (self.quietest, others_busy) {
            (Some(least), Some(busy)) => Some(least.min(busy)),
            (least, busy) => least.or(busy),
        };
    }

    /// Whether other programs were busy even in the quietest run.
    fn is_loaded(&self) -> bool {
        self.quietest.is_some_and(|busy| busy >= OTHERS_BUSY_NOTED)
    }

    /// Whether other programs were considerably busier than in the quietest run.
    pub fn is_disturbed(&self, others_busy: Option<f64>) -> bool {
        others_busy.zip(self.quietest).is_some_and(|(busy, least)| busy - least >= self.limit)
    }
}

/// Results by thread count, with the number of repetitions because of disturbances.
struct Results {
    by_count: BTreeMap<u32, Vec<TrialResult>>,
    repeated: BTreeMap<u32, u32>,
    disturbance: Disturbance,
}

impl Results {
    fn new(cpus: u32) -> Results {
        Results {
            by_count: BTreeMap::new(),
            repeated: BTreeMap::new(),
            disturbance: Disturbance::new(cpus),
        }
    }

    fn of(&self, threads: u32) -> &[TrialResult] {
        self.by_count.get(&threads).map_or(&[], Vec::as_slice)
    }

    fn is_disturbed(&self, threads: u32) -> bool {
        self.of(threads).iter().any(|result| self.disturbance.is_disturbed(result.others_busy))
    }

    /// Discards disturbed results, so that the next search repeats them.
    fn discard_disturbed(&mut self) {
        for (&threads, results) in &mut self.by_count {
            let before = results.len();
            results.retain(|result| !self.disturbance.is_disturbed(result.others_busy));
            if results.len() < before {
                *self.repeated.entry(threads).or_default() += (before - results.len()) as u32;
            }
        }
    }

    /// Returns the first result with this count, with the medians of all results. If the program
    /// failed once, this is the result.
    fn combined(&self, threads: u32) -> Option<TrialResult> {
        let results = self.of(threads);
        let first = results.first()?;
        let mut profiles = Vec::new();
        for result in results {
            match &result.trial {
                Trial::Ran(profile) => profiles.push(*profile),
                Trial::Failed(_) => return Some(result.clone()),
            }
        }
        let trial = Profile::median(&profiles).map_or(first.trial.clone(), Trial::Ran);
        Some(TrialResult { trial, ..first.clone() })
    }
}

/// Searches for the best thread count. `progress` receives a line about each trial before it
/// starts, and an empty line at the end.
///
/// A trial during which other programs are considerably busier than during the quietest trial is
/// disturbed. The search repeats it; a note names the repeated counts, and those that stayed
/// disturbed. If other programs are busy all the time, the search begins again with a longer
/// window.
///
/// # Errors
/// A trial could not be made.
pub fn search(
    trials: &mut impl Trials,
    limits: Limits,
    mut window: Window,
    progress: &mut dyn FnMut(&str),
) -> Result<Searched, Error> {
    let start_ns = now_ns();
    let mut results = Results::new(limits.cpus);
    let mut round = 1;
    let (rows, best, reason, disturbed) = loop {
        let pass = search_once(trials, &mut results, limits, window, progress)?;
        let (rows, best, reason) = match pass {
            ControlFlow::Continue(Pass { rows, best, reason }) => (rows, best, reason),
            ControlFlow::Break(status) => {
                progress("");
                return Ok(Searched::Interrupted(status));
            }
        };
        if results.disturbance.is_loaded() && window.length < window.beside_load {
            window.length = window.beside_load;
            results = Results::new(limits.cpus);
            continue;
        }
        let counts = rows.iter().map(|row| row.threads);
        let disturbed: Vec<u32> = counts.filter(|&n| results.is_disturbed(n)).collect();
        if !disturbed.is_empty() && round < ROUNDS_MAX {
            results.discard_disturbed();
            round += 1;
            continue;
        }
        match next_confirmation(&rows, best, &results) {
            None => break (rows, best, reason, disturbed),
            Some(threads) => {
                if let Some(status) = make(trials, &mut results, threads, limits, window, progress)?
                {
                    progress("");
                    return Ok(Searched::Interrupted(status));
                }
            }
        }
    };
    progress("");
    let times: Vec<(u32, f64)> = rows
        .iter()
        .filter_map(|row| Some((row.threads, 1.0 / profile(&row.trial)?.progress?)))
        .collect();
    let oversubscription = detect(&times, limits.cpus);
    let mut notes = remarks(&rows, &results, limits, window);
    notes.extend(disturbance_notes(&rows, &results, &disturbed));
    notes.extend(best.into_iter().flat_map(|best| choice_notes(&rows, best)));
    if let Some(o) = oversubscription.filter(|o| o.others_max > 0) {
        notes.push(format!(
            "the time for the same work peaks at {} threads: other programs hold {} of {} CPUs \
             (Christmann et al. 2012)",
            o.at, o.others_min, limits.cpus
        ));
    }
    let reason = match reason {
        Reason::AllFailed { .. } => format!("{reason}; run the command by hand to see why"),
        reason => reason.to_string(),
    };
    let search_s = (now_ns() - start_ns) as f64 / 1e9;
    let cpus = limits.cpus;
    let found = Found { cpus, rows, best, reason, search_s, oversubscription, notes };
    Ok(Searched::Found(found))
}

/// One pass of the search.
struct Pass {
    rows: Vec<Row>,
    best: Option<u32>,
    reason: Reason,
}

/// Searches once, or returns the status of the signal that ended the search. Trials whose results
/// are known are not made again.
fn search_once(
    trials: &mut impl Trials,
    results: &mut Results,
    limits: Limits,
    window: Window,
    progress: &mut dyn FnMut(&str),
) -> Result<ControlFlow<ExitStatus, Pass>, Error> {
    let mut search = Reinforcer::new(limits, Thresholds::default());
    let mut rows = Vec::new();
    loop {
        let threads = match search.next() {
            Step::Try(threads) => threads,
            Step::Done { best, reason } => {
                return Ok(ControlFlow::Continue(Pass { rows, best, reason }));
            }
        };
        // A serial start is visible only in a run with several threads. The run with one thread,
        // which leaves the same start out, therefore comes after the first of those.
        let ahead = (threads == 1).then(|| after_one(limits));
        for threads in ahead.into_iter().chain([threads]) {
            if results.of(threads).is_empty()
                && let Some(status) = make(trials, results, threads, limits, window, progress)?
            {
                return Ok(ControlFlow::Break(status));
            }
        }
        let result = results.combined(threads).expect("the trial was made above");
        let verdict = search.record(threads, result.trial.clone()).to_string();
        rows.push(Row {
            threads,
            serial_s: result.serial_s,
            window_s: result.window_s,
            trial: result.trial.clone(),
            others_busy: result.others_busy,
            repeated: results.repeated.get(&threads).copied().unwrap_or(0),
            verdict,
        });
    }
}

/// Returns the count that follows one thread.
fn after_one(limits: Limits) -> u32 {
    1u32.saturating_add(limits.step).min(limits.max)
}

/// Returns the count of the next trial that confirms the choice: the chosen count and the counts
/// that it was compared with take turns.
fn next_confirmation(rows: &[Row], best: Option<u32>, results: &Results) -> Option<u32> {
    let at = rows.iter().position(|row| Some(row.threads) == best)?;
    let compared = &rows[at.saturating_sub(1)..rows.len().min(at + 2)];
    let ran = compared.iter().filter(|row| matches!(row.trial, Trial::Ran(_)));
    let counts: Vec<u32> = ran.map(|row| row.threads).collect();
    let mut trials = counts.iter().flat_map(|&threads| results.of(threads));
    if trials.any(|result| result.serial_s + result.window_s > REPEATED_MAX_S) {
        return None;
    }
    let next = counts.into_iter().min_by_key(|&threads| results.of(threads).len())?;
    (results.of(next).len() < CONFIRMATIONS).then_some(next)
}

/// Makes a trial, and repeats it while it is disturbed. Adds the quietest result. Returns the
/// status of a signal that requested the end.
fn make(
    trials: &mut impl Trials,
    results: &mut Results,
    threads: u32,
    limits: Limits,
    window: Window,
    progress: &mut dyn FnMut(&str),
) -> Result<Option<ExitStatus>, Error> {
    let skip = match (threads, results.of(after_one(limits)).first()) {
        (1, Some(ahead)) if !ahead.stayed_serial => Duration::from_secs_f64(ahead.serial_s),
        _ => window.skip,
    };
    let window = Window { skip, ..window };
    let mut repeats = 0;
    let mut kept: Option<TrialResult> = None;
    loop {
        progress(&match repeats {
            0 if results.of(threads).is_empty() => format!("trying {} ...", count(threads)),
            0 => format!("confirming {} ...", count(threads)),
            _ => format!("trying {} again: other programs disturbed the trial ...", count(threads)),
        });
        let result = trials.run(threads, window)?;
        if result.interrupted.is_some() {
            return Ok(result.interrupted);
        }
        results.disturbance.add(result.others_busy);
        let is_quieter = kept.as_ref().is_none_or(|kept| result.others_busy <= kept.others_busy);
        let kept = match is_quieter {
            true => kept.insert(result),
            false => kept.get_or_insert(result),
        };
        if !results.disturbance.is_disturbed(kept.others_busy) || repeats >= REPEATS_MAX {
            break;
        }
        repeats += 1;
        trials.pause(PAUSE * 2u32.pow(repeats - 1));
    }
    if repeats > 0 {
        *results.repeated.entry(threads).or_default() += repeats;
    }
    results.by_count.entry(threads).or_default().extend(kept);
    Ok(None)
}

/// Remarks on trials with unexpected results.
fn remarks(rows: &[Row], results: &Results, limits: Limits, window: Window) -> Vec<String> {
    let mut notes = Vec::new();
    for row in rows {
        let Some(result) = results.of(row.threads).first() else { continue };
        let with = count(row.threads);
        if let Trial::Failed(why) = &row.trial {
            notes.push(format!("with {with} the program failed ({why}); this count is left out"));
        } else if result.ended && row.window_s < window.length.as_secs_f64() {
            notes.push(format!(
                "with {with} the program ended {:.0} ms after the start of the window of {} ms; the \
                 search uses that part",
                row.window_s * 1e3,
                window.length.as_millis()
            ));
        }
        if result.stayed_serial && !result.ended {
            notes.push(format!(
                "with {with} the program still had one thread after {:.1} s: it has a longer serial \
                 start, or ignores the count; the search uses this window. --serial MS waits longer",
                row.serial_s
            ));
        } else if row.threads > 1 && row.serial_s > 0.2 {
            notes.push(format!(
                "with {with} the program had a serial start of {:.1} s, which the search leaves out",
                row.serial_s
            ));
        }
    }
    let known = rows.iter().filter_map(|row| Some((row.others_busy?, row.window_s)));
    let (busy, span_s) = known.fold((0.0, 0.0), |sums, (busy, s)| (sums.0 + busy * s, sums.1 + s));
    let busy = (busy / span_s).min(f64::from(limits.cpus));
    if span_s >= OTHERS_MIN_S && busy > OTHERS_BUSY_NOTED {
        notes.push(format!(
            "other programs kept {busy:.1} CPUs busy during the search: the count holds for this load"
        ));
    }
    notes
}

/// Notes on repeated trials, and on trials that stayed disturbed.
fn disturbance_notes(rows: &[Row], results: &Results, disturbed: &[u32]) -> Vec<String> {
    let list = |counts: &[u32]| counts.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let repeated: Vec<u32> =
        rows.iter().map(|row| row.threads).filter(|n| results.repeated.contains_key(n)).collect();
    let mut notes = Vec::new();
    if !repeated.is_empty() {
        notes.push(format!(
            "other programs disturbed the short runs with {} threads: Corebeat repeated these runs",
            list(&repeated)
        ));
    }
    if !disturbed.is_empty() {
        notes.push(format!(
            "the short runs with {} threads stayed disturbed: search again when the machine is quiet",
            list(disturbed)
        ));
    }
    notes
}

/// Notes on the choice where the figures of the trials seem to contradict it.
fn choice_notes(rows: &[Row], best: u32) -> Vec<String> {
    let list = |rows: &[(u32, Option<f64>)]| {
        rows.iter().map(|(threads, _)| threads.to_string()).collect::<Vec<_>>().join(", ")
    };
    let progress = |row: &Row| Some((row.threads, profile(&row.trial)?.progress));
    let (known, unknown): (Vec<_>, Vec<_>) =
        rows.iter().filter_map(progress).partition(|(_, progress)| progress.is_some());
    let mut notes = Vec::new();
    if !known.is_empty() && !unknown.is_empty() {
        notes.push(format!(
            "progress was measured with {} threads only, as of runs that end in the window; with \
             {} CPU use decides: give the program more work, or set a longer --window",
            list(&known),
            list(&unknown)
        ));
    }
    let chosen = known.iter().find(|(threads, _)| *threads == best).and_then(|(_, p)| *p);
    let most = known.iter().max_by(|(_, a), (_, b)| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    if let (Some(chosen), Some(&(threads, Some(most)))) = (chosen, most)
        && threads > best
        && (0.0005..Thresholds::default().progress_gain).contains(&(most / chosen - 1.0))
    {
        notes.push(format!(
            "progress with {} was {:.1}% higher than with {best}; short runs differ by up to \
             {:.0}% without a cause, so the smaller count is chosen",
            count(threads),
            (most / chosen - 1.0) * 100.0,
            Thresholds::default().progress_gain * 100.0
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose progress is proportional to the CPUs that other programs leave to it. The
    /// load of other programs depends on the number of trials so far.
    struct Fake<F> {
        cpus: u32,
        load: F,
        made: Vec<u32>,
        windows_ms: Vec<u128>,
        pauses: u32,
        /// Number of a trial with a third of the progress.
        outlier: Option<usize>,
    }

    impl<F: Fn(usize) -> f64> Trials for Fake<F> {
        fn run(&mut self, threads: u32, window: Window) -> Result<TrialResult, Error> {
            let busy = (self.load)(self.made.len());
            let mut useful = f64::from(threads.min(self.cpus)).min(f64::from(self.cpus) - busy);
            if self.outlier == Some(self.made.len()) {
                useful /= 3.0;
            }
            self.made.push(threads);
            self.windows_ms.push(window.length.as_millis());
            let profile = Profile {
                cpu_util: useful / f64::from(self.cpus),
                progress: Some(useful),
                ..Profile::default()
            };
            Ok(TrialResult {
                trial: Trial::Ran(profile),
                serial_s: 0.0,
                window_s: window.length.as_secs_f64(),
                ended: false,
                stayed_serial: false,
                others_busy: Some(busy),
                interrupted: None,
            })
        }

        fn pause(&mut self, _: Duration) {
            self.pauses += 1;
        }
    }

    fn searched<F: Fn(usize) -> f64>(load: F) -> (Found, Fake<F>) {
        searched_with(load, None)
    }

    fn searched_with<F: Fn(usize) -> f64>(load: F, outlier: Option<usize>) -> (Found, Fake<F>) {
        let mut fake = Fake { cpus: 2, load, made: vec![], windows_ms: vec![], pauses: 0, outlier };
        let window = Window::new(2, None, Duration::from_secs(2));
        let found = match search(&mut fake, Limits::of(2), window, &mut |_| {}).unwrap() {
            Searched::Found(found) => found,
            Searched::Interrupted(_) => panic!("the fake has no signals"),
        };
        (found, fake)
    }

    #[test]
    fn quiet_search_confirms_its_choice_in_turns() {
        let (found, fake) = searched(|_| 0.0);
        assert_eq!(
            (found.best, fake.made, fake.pauses),
            (Some(2), vec![2, 1, 3, 1, 2, 3, 1, 2, 3], 0)
        );
        assert!(found.notes.is_empty(), "{:?}", found.notes);
    }

    #[test]
    fn outlier_in_any_trial_does_not_change_the_choice() {
        for outlier in 0..9 {
            let (found, fake) = searched_with(|_| 0.0, Some(outlier));
            assert_eq!(found.best, Some(2), "{outlier}: {:?}", fake.made);
        }
    }

    #[test]
    fn choice_that_the_figures_seem_to_contradict_is_explained() {
        let notes = |progress: [Option<f64>; 2], best| {
            let row = |(threads, progress)| Row {
                threads,
                serial_s: 0.0,
                window_s: 0.1,
                trial: Trial::Ran(Profile { progress, ..Profile::default() }),
                others_busy: None,
                repeated: 0,
                verdict: String::new(),
            };
            choice_notes(&[1, 2].into_iter().zip(progress).map(row).collect::<Vec<_>>(), best)
        };
        let noise = notes([Some(99.2), Some(100.0)], 1);
        assert!(noise[0].starts_with("progress with 2 threads was 0.8% higher"), "{noise:?}");
        let partial = notes([None, Some(1.0)], 1);
        assert!(partial[0].contains("with 2 threads only") && partial.len() == 1, "{partial:?}");
        let clear = [([1.0, 2.0], 2), ([2.0, 1.0], 1), ([1.0, 1.0], 1)];
        for (progress, best) in clear.map(|(progress, best)| (progress.map(Some), best)) {
            assert!(notes(progress, best).is_empty());
        }
        assert!(notes([None, None], 1).is_empty());
    }

    #[test]
    fn burst_during_one_trial_makes_the_search_repeat_the_trial() {
        // The trial with 1 thread, the second one, is quiet; the one with 2 is within the burst.
        let (found, fake) = searched(|made| if made == 0 { 1.0 } else { 0.0 });
        assert_eq!(found.best, Some(2), "{found:?}");
        assert_eq!(fake.made[..3], [2, 1, 2]);
        assert!(found.notes[0].contains("with 2 threads: Corebeat repeated"), "{:?}", found.notes);
        let row = found.rows.iter().find(|row| row.threads == 2).unwrap();
        assert_eq!((row.repeated, row.others_busy), (1, Some(0.0)));
    }

    #[test]
    fn burst_in_the_middle_of_the_search_is_waited_out() {
        let (found, fake) = searched(|made| if (1..4).contains(&made) { 1.5 } else { 0.0 });
        assert_eq!(found.best, Some(2), "{found:?}");
        assert_eq!(fake.made[..5], [2, 1, 1, 1, 1]);
        assert_eq!(fake.pauses, 3);
    }

    #[test]
    fn constant_load_is_noted_and_makes_the_windows_longer() {
        let (found, fake) = searched(|_| 1.0);
        assert_eq!(fake.pauses, 0);
        let (short, long) = fake.windows_ms.split_at(2);
        assert!(short == [100; 2] && long.iter().all(|&ms| ms == 300), "{:?}", fake.windows_ms);
        assert_eq!(found.notes.len(), 1, "{:?}", found.notes);
        assert!(found.notes[0].contains("kept 1.0 CPUs busy"), "{:?}", found.notes);
    }

    #[test]
    fn search_with_endless_bursts_ends_and_reports_the_disturbed_runs() {
        let (found, fake) = searched(|made| if made == 1 { 0.0 } else { 1.5 });
        let bound = (ROUNDS_MAX * (REPEATS_MAX + 1)) as usize * found.rows.len().max(3);
        assert!(fake.made.len() <= bound, "{:?}", fake.made);
        let last = found.notes.last().unwrap();
        assert!(last.contains("stayed disturbed"), "{:?}", found.notes);
    }
}
