//! Deadlines and chains.

use super::code::Flow;
use super::xml::Element;
use super::{Reader, key, value};
use crate::error::Error;
use crate::model::{Chain, Communication, Effect, Model};
use std::collections::HashMap;

/// Deepest nesting of chains in chains.
const DEPTH_MAX: usize = 20;
/// Largest number of parts of a chain. A part may occur many times, by several ways.
const PARTS_MAX: usize = 10_000;

impl Reader<'_> {
    /// Reads deadlines of tasks, chains, and latencies of chains.
    pub(super) fn requirements(
        &mut self,
        parts: &[&Element],
        events: &[&Element],
        flows: &[Flow],
        model: &mut Model,
    ) -> Result<(), Error> {
        let handled = ["requirements", "eventChains", "timingConstraints"];
        let harmless = ["runnableSequencingConstraints", "affinityConstraints"];
        let events: HashMap<String, &Element> = events
            .iter()
            .flat_map(|part| part.all("events"))
            .map(|event| (event.get("name").to_owned(), event))
            .collect();
        for part in parts {
            self.rest(part, &handled, &harmless);
            for requirement in part.all("requirements") {
                self.deadline(requirement, model)?;
            }
            let chains: HashMap<&str, &Element> =
                part.all("eventChains").map(|c| (c.get("name"), c)).collect();
            for chain in part.all("eventChains") {
                self.chain(chain, &chains, &events, flows, model)?;
            }
            for constraint in part.all("timingConstraints") {
                self.latency(constraint, model)?;
            }
        }
        Ok(())
    }

    fn deadline(&mut self, requirement: &Element, model: &mut Model) -> Result<(), Error> {
        let limit = requirement.child("limit");
        let is_deadline = requirement.kind() == "ProcessRequirement"
            && limit.is_some_and(|l| {
                l.get("limitType") == "UpperLimit" && l.get("metric") == "ResponseTime"
            });
        let time = limit.map(|l| value::time(l, "limitValue", false)).transpose()?.flatten();
        match time.filter(|_| is_deadline) {
            Some(ns) => {
                let id = self.find("task", requirement, requirement.get("process"))?;
                let deadline = &mut model.tasks[id].deadline_ns;
                *deadline = Some(deadline.map_or(ns, |old| old.min(ns)));
            }
            None => {
                let what = format!("a {} of this kind is not checked", requirement.kind());
                self.repeat(requirement, Effect::Optimistic, &what);
            }
        }
        Ok(())
    }

    fn chain(
        &mut self,
        element: &Element,
        chains: &HashMap<&str, &Element>,
        events: &HashMap<String, &Element>,
        flows: &[Flow],
        model: &mut Model,
    ) -> Result<(), Error> {
        let mut names = Vec::new();
        let mut tasks = Vec::new();
        let mut parts_left = PARTS_MAX;
        let found = collect(element, chains, &mut names, &mut parts_left, 0).and_then(|()| {
            for event in &names {
                let event =
                    events.get(event).ok_or_else(|| format!("no event '{event}' exists"))?;
                let Some(task) = self.task_of(event, flows, model)? else { continue };
                if tasks.last() != Some(&task) {
                    tasks.push(task);
                }
            }
            if tasks.is_empty() { Err("its events name no task".to_owned()) } else { Ok(()) }
        });
        match found {
            Ok(()) => model.chains.push(Chain {
                name: self.define("chain", element, model.chains.len())?,
                tasks,
                communication: Communication::Implicit,
                reaction_max_ns: None,
                age_max_ns: None,
            }),
            Err(why) => {
                let what = format!("the chain is not analysed: {why}");
                self.note(&element.place(), Effect::Optimistic, what, None);
            }
        }
        Ok(())
    }

    /// The task of an event; `None` for events outside of tasks.
    fn task_of(
        &self,
        event: &Element,
        flows: &[Flow],
        model: &Model,
    ) -> Result<Option<usize>, String> {
        let find = |kind, name: &str| self.find(kind, event, name).map_err(|e| e.to_string());
        match event.kind() {
            "ProcessEvent" => find("task", event.get("entity")).map(Some),
            "RunnableEvent" => self.caller(find("runnable", event.get("entity"))?, flows, event),
            "LabelEvent" if !event.get("process").is_empty() => {
                find("task", event.get("process")).map(Some)
            }
            "LabelEvent" if !event.get("runnable").is_empty() => {
                self.caller(find("runnable", event.get("runnable"))?, flows, event)
            }
            "StimulusEvent" => {
                let stimulus = key(event.get("entity"));
                let by =
                    |t: &&Element| t.get("stimuli").split_whitespace().any(|s| key(s) == stimulus);
                let tasks: Vec<usize> =
                    (0..model.tasks.len()).filter(|&t| by(&self.tasks[t])).collect();
                match tasks[..] {
                    [one] => Ok(Some(one)),
                    _ => Ok(None),
                }
            }
            kind => Err(format!("{kind} '{}' names no task", event.get("name"))),
        }
    }

    /// The only task that calls a runnable.
    fn caller(
        &self,
        runnable: usize,
        flows: &[Flow],
        event: &Element,
    ) -> Result<Option<usize>, String> {
        let calls = |t: &usize| flows[*t].runnables.contains(&runnable);
        let tasks: Vec<usize> = (0..flows.len()).filter(calls).collect();
        match tasks[..] {
            [one] => Ok(Some(one)),
            _ => Err(format!(
                "{} tasks call the runnable of event '{}'",
                tasks.len(),
                event.get("name")
            )),
        }
    }

    fn latency(&mut self, constraint: &Element, model: &mut Model) -> Result<(), Error> {
        let max = value::time(constraint, "maximum", false)?;
        let chain = key(constraint.get("scope"));
        let chain = self.names.get(&("chain", chain)).copied();
        match (constraint.kind(), max, chain, constraint.get("type")) {
            ("EventChainLatencyConstraint", Some(max), Some(chain), "Reaction") => {
                model.chains[chain].reaction_max_ns = Some(max);
            }
            ("EventChainLatencyConstraint", Some(max), Some(chain), "Age") => {
                model.chains[chain].age_max_ns = Some(max);
            }
            (kind, ..) => {
                let what = format!("a {kind} of this kind is not checked");
                self.repeat(constraint, Effect::Optimistic, &what);
            }
        }
        Ok(())
    }
}

/// The keys of the events of a chain and of its parts, in order.
fn collect(
    element: &Element,
    chains: &HashMap<&str, &Element>,
    names: &mut Vec<String>,
    parts_left: &mut usize,
    depth: usize,
) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err("chains form a cycle".into());
    }
    *parts_left = parts_left.checked_sub(1).ok_or("it has more than 10,000 parts")?;
    let event = |attribute: &str| Some(key(element.get(attribute))).filter(|name| !name.is_empty());
    names.extend(event("stimulus"));
    if element.child("strands").is_some() || element.get("itemType") == "parallel" {
        return Err("it has parallel strands".into());
    }
    for part in element.all("segments").chain(element.all("items")) {
        let referenced = key(part.get("eventChain"));
        let inner = match chains.get(referenced.as_str()) {
            Some(chain) => chain,
            None => part.child("eventChain").ok_or("one of its parts is no chain")?,
        };
        collect(inner, chains, names, parts_left, depth + 1)?;
    }
    names.extend(event("response"));
    Ok(())
}
