//! Stimuli, and the activation of tasks by them.

use super::code::Flow;
use super::xml::Element;
use super::{Reader, key, value};
use crate::error::Error;
use crate::model::{Activation, Effect, Model};
use crate::time::TIME_MAX_NS;
use std::collections::HashMap;

/// A stimulus.
pub(super) enum Stimulus {
    /// A timer or a source outside of the model.
    Source(Activation),
    /// Tasks trigger it.
    InterProcess,
    /// Not supported, with the reason.
    Unknown(String),
}

impl Reader<'_> {
    /// Reads the stimuli by their keys.
    pub(super) fn stimuli(
        &mut self,
        parts: &[&Element],
    ) -> Result<HashMap<String, Stimulus>, Error> {
        let mut stimuli = HashMap::new();
        for part in parts {
            self.rest(part, &["stimuli"], &["clocks"]);
            for element in part.all("stimuli") {
                let index = stimuli.len();
                let name = self.define("stimulus", element, index)?;
                let stimulus = stimulus(element)?;
                for list in ["setModeValueList", "enablingModeValueList", "executionCondition"] {
                    if element.child(list).is_some() {
                        let what = format!("<{list}> of a stimulus: it is active in all modes");
                        self.repeat(element, Effect::Pessimistic, &what);
                    }
                }
                stimuli.insert(name, stimulus);
            }
        }
        Ok(stimuli)
    }

    /// Activates the tasks by their stimuli.
    pub(super) fn activations(
        &mut self,
        flows: &[Flow],
        stimuli: &HashMap<String, Stimulus>,
        model: &mut Model,
    ) {
        for (id, element) in self.tasks.clone().into_iter().enumerate() {
            let names: Vec<String> = element.get("stimuli").split_whitespace().map(key).collect();
            let place = element.place();
            let mut unknown = |what: String| self.note(&place, Effect::Optimistic, what, Some(id));
            let Some(name) = names.first() else {
                unknown("no stimulus activates the task".into());
                continue;
            };
            if names.len() > 1 {
                unknown(format!("{} stimuli; only '{name}' is considered", names.len()));
            }
            match stimuli.get(name) {
                None => unknown(format!("stimulus '{name}' does not exist")),
                Some(Stimulus::Unknown(what)) => unknown(format!("stimulus '{name}' {what}")),
                Some(Stimulus::Source(activation)) => {
                    model.tasks[id].activation = Some(activation.clone());
                }
                Some(Stimulus::InterProcess) => {
                    let triggers = |flow: &&Flow| flow.triggers.iter().any(|t| t == name);
                    let by: Vec<usize> =
                        (0..flows.len()).filter(|&f| triggers(&&flows[f])).collect();
                    match by[..] {
                        [one] if flows[one].triggers.iter().filter(|t| *t == name).count() == 1 => {
                            model.tasks[id].activation = Some(Activation::After(one));
                        }
                        [] => unknown(format!("no task triggers stimulus '{name}'")),
                        _ => unknown(format!("stimulus '{name}' is triggered more than once")),
                    }
                }
            }
        }
    }
}

fn stimulus(element: &Element) -> Result<Stimulus, Error> {
    let lacks = |what: &str| Error::new(element.place(), format!("no {what}; write one"));
    let unknown = |what: &str| Ok(Stimulus::Unknown(what.to_owned()));
    let source = |activation| Ok(Stimulus::Source(activation));
    match element.kind() {
        "PeriodicStimulus" | "Periodic" => {
            let period_ns =
                value::time(element, "recurrence", false)?.ok_or_else(|| lacks("recurrence"))?;
            let offset_ns = value::time(element, "offset", false)?;
            let jitter_ns = match element.child("jitter") {
                None => 0,
                Some(jitter) => match jitter_bound(jitter)? {
                    Some(ns) => ns,
                    None => return unknown("has a jitter without upper bound"),
                },
            };
            source(Activation::Periodic { period_ns, offset_ns, jitter_ns })
        }
        "RelativePeriodicStimulus" | "SporadicStimulus" | "Sporadic" => {
            let next = element.child("nextOccurrence").or(element.child("recurrence"));
            let distance =
                next.map(|n| value::time_of(n, "lowerBound", false)).transpose()?.flatten();
            match distance {
                Some(ns) if ns > 0 => source(Activation::Sporadic { distance_ns: ns }),
                _ => unknown("has no smallest distance of occurrences"),
            }
        }
        "SingleStimulus" => source(Activation::Sporadic { distance_ns: TIME_MAX_NS }),
        "ArrivalCurveStimulus" | "ArrivalCurve" => arrival_curve(element),
        "InterProcessStimulus" | "InterProcess" => Ok(Stimulus::InterProcess),
        kind => unknown(&format!("is a {kind}, which is not supported")),
    }
}

/// The upper bound of a jitter, whose distribution has attributes or children with units.
fn jitter_bound(jitter: &Element) -> Result<Option<u64>, Error> {
    match value::time_of(jitter, "upperBound", true)? {
        None => value::time_of(jitter, "value", true),
        some => Ok(some),
    }
}

/// Entries state the smallest span of a number of occurrences.
fn arrival_curve(element: &Element) -> Result<Stimulus, Error> {
    let mut known: Vec<(u64, u64)> = Vec::new();
    for entry in element.all("entries") {
        let count = value::number(entry, "numberOfOccurrences", true)?.unwrap_or(0);
        let span = value::time(entry, "lowerTimeBorder", false)?.unwrap_or(0);
        if (2..=1_000).contains(&count) {
            known.push((count, span));
        }
    }
    known.sort_unstable();
    // An entry that is missing takes the span of the smaller count, which is a lower bound.
    let mut spans: Vec<u64> = Vec::new();
    for (count, span) in known {
        let last = spans.last().copied().unwrap_or(0);
        spans.resize((count as usize - 1).max(spans.len()), last);
        if let Some(end) = spans.last_mut() {
            *end = span.max(last);
        }
    }
    match spans.last() {
        Some(last) if *last > 0 => Ok(Stimulus::Source(Activation::Curve(spans))),
        _ => Ok(Stimulus::Unknown("has no entry with a lowerTimeBorder above 0".into())),
    }
}
