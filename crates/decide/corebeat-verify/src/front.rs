//! Partitions that no other one exceeds in the number of units, the power and the latency at once.

use crate::analysis::{Report, Verdict, analyse};
use crate::error::Error;
use crate::model::{Cost, Effect, Model, named};
use crate::partition::{Partition, PartitionOptions, partition, spread};

/// Units more than the least number that are tried.
const UNITS_MORE: usize = 4;

/// A partition with its figures.
#[derive(Debug, Clone, PartialEq)]
pub struct FrontPoint {
    /// The partition.
    pub partition: Partition,
    /// Ticks per second of the cores; `None` if the model has none.
    pub frequency_hz: Option<u64>,
    /// Power of all units in the mode with the largest one, in milliwatts.
    pub power_mw: u64,
    /// Mean bound of the reactions of all chains, or of the response times of all tasks if there
    /// are no chains, in nanoseconds.
    pub latency_ns: u64,
}

impl FrontPoint {
    /// Whether no figure is worse than that of another point.
    fn covers(&self, other: &FrontPoint) -> bool {
        self.partition.units <= other.partition.units
            && self.power_mw <= other.power_mw
            && self.latency_ns <= other.latency_ns
    }
}

/// Partitions onto different numbers of units and with each frequency of the unit, as far as no
/// other one found is at least as good in all three figures (the Pareto front of what was found),
/// by units and power. Each of them is schedulable by the analysis. The least number of units is
/// that of [`partition`]; partitions with more units come from a heuristic, so that better ones may
/// exist.
///
/// # Errors
/// As [`partition`]; or the unit has several frequencies, but a task has an execution time that is
/// not in ticks; or the analysis proves no partition schedulable, with the reason for the first.
pub fn front(model: &Model, options: &PartitionOptions) -> Result<Vec<FrontPoint>, Error> {
    let Some(unit) = &model.unit else {
        return Err(Error::new("model", crate::partition::NO_UNIT));
    };
    let mut frequencies: Vec<Option<u64>> = unit.frequencies_hz.iter().copied().map(Some).collect();
    if frequencies.is_empty() {
        frequencies.push(unit.frequency_hz);
    } else {
        require_ticks(model)?;
    }
    let (mut points, mut failure) = (Vec::new(), None);
    for frequency_hz in frequencies {
        let mut scaled = model.clone();
        if let Some(unit) = &mut scaled.unit {
            unit.frequency_hz = frequency_hz;
        }
        let least = match partition(&scaled, options) {
            Ok(least) => least,
            // With a low frequency, a component may fit on no core.
            Err(e) => {
                failure = failure.or(Some(e));
                continue;
            }
        };
        let units = least.units;
        let mut found = vec![least];
        for units in units..=units + UNITS_MORE {
            found.extend(spread(&scaled, options, units)?);
        }
        for partition in found {
            match point(&scaled, partition, unit.frequency_hz) {
                Ok(point) => points.push(point),
                Err(e) => failure = failure.or(Some(e)),
            }
        }
    }
    if let Some(e) = failure.filter(|_| points.is_empty()) {
        return Err(e);
    }
    let is_kept = |at: usize| {
        let mut others = points.iter().enumerate().filter(|(other, _)| *other != at);
        let beats = |(other, p): (usize, &FrontPoint)| {
            p.covers(&points[at]) && (other < at || !points[at].covers(p))
        };
        !others.any(beats)
    };
    let kept: Vec<bool> = (0..points.len()).map(is_kept).collect();
    let mut front: Vec<FrontPoint> =
        points.into_iter().zip(kept).filter(|(_, kept)| *kept).map(|(point, _)| point).collect();
    front.sort_by_key(|p| (p.partition.units, p.power_mw, p.latency_ns));
    Ok(front)
}

fn require_ticks(model: &Model) -> Result<(), Error> {
    let is_timed = |cost: &Cost| cost.time_ns.worst > 0;
    let timed = |&t: &usize| {
        let task = &model.tasks[t];
        is_timed(&task.cost) || task.runnables.iter().any(|&r| is_timed(&model.runnables[r].cost))
    };
    match (0..model.tasks.len()).find(timed) {
        None => Ok(()),
        Some(task) => Err(Error::new(
            named("task", &model.tasks[task].name),
            "an execution time that does not depend on the frequency; write ticks, or leave \
             frequencies_hz out",
        )),
    }
}

/// The figures of a partition, or the reason why the analysis does not prove it schedulable. The
/// use of a core costs power with the cube of the frequency, because its voltage follows the
/// frequency (Aydin, Melhem, Mossé, Mejía-Alvarez, *Power-Aware Scheduling for Periodic Real-Time
/// Tasks*, 2004).
fn point(model: &Model, partition: Partition, base_hz: Option<u64>) -> Result<FrontPoint, Error> {
    let unit = model.unit.as_ref().ok_or_else(|| Error::new("model", crate::partition::NO_UNIT))?;
    let mapped = partition.apply(model);
    let report = analyse(&mapped);
    if report.verdict != Verdict::Schedulable {
        return Err(rejection(&mapped, &report));
    }
    let latencies: Option<Vec<u64>> = match report.chains.is_empty() {
        false => report.chains.iter().map(|c| c.reaction_ns).collect(),
        true => report.tasks.iter().map(|t| t.response_ns).collect(),
    };
    let latencies =
        latencies.ok_or_else(|| Error::new("model", "a chain or a task has no latency"))?;
    let sum: u128 = latencies.iter().map(|&ns| u128::from(ns)).sum();
    let latency_ns = (sum / latencies.len().max(1) as u128) as u64;
    let ratio = match (unit.frequency_hz, base_hz) {
        (Some(hz), Some(base)) => hz as f64 / base as f64,
        _ => 1.0,
    };
    let modes = partition.components.first().map_or(0, |c| c.shares.len());
    let used = |mode: usize| partition.components.iter().map(|c| c.shares[mode]).sum::<f64>();
    let most = (0..modes).map(used).fold(0.0, f64::max);
    let power_mw = unit.idle_mw as f64 * partition.units as f64
        + unit.core_mw as f64 * most * ratio * ratio * ratio;
    let frequency_hz = unit.frequency_hz;
    Ok(FrontPoint { partition, frequency_hz, power_mw: power_mw.round() as u64, latency_ns })
}

/// The first part of a report that is not schedulable, with its reason.
fn rejection(model: &Model, report: &Report) -> Error {
    let advice = "correct it, or leave --front out";
    let is_bad = |verdict: Verdict| verdict != Verdict::Schedulable;
    let (place, why) = if let Some(t) = report.tasks.iter().find(|t| is_bad(t.verdict)) {
        (named("task", &model.tasks[t.task].name), t.why.clone())
    } else if let Some(c) = report.chains.iter().find(|c| is_bad(c.verdict)) {
        (named("chain", &model.chains[c.chain].name), c.why.clone())
    } else if let Some(m) = report.memories.iter().find(|m| !m.fits || !m.is_complete) {
        let name = &model.memories[m.memory].name;
        (named("memory", name), "its labels do not fit, or have unknown sizes".to_owned())
    } else {
        let note = model.notes.iter().find(|n| n.effect == Effect::Optimistic);
        let place = note.map_or_else(|| "model".to_owned(), |n| n.place.clone());
        (place, note.map_or_else(|| "nothing is proven".to_owned(), |n| n.what.clone()))
    };
    let what = format!("no partition is proven schedulable: {why}; {advice}");
    Error::new(place, what)
}
