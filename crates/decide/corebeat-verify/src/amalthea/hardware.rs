//! Cores, memories and the times of accesses.

use super::xml::Element;
use super::{Reader, key, value};
use crate::error::Error;
use crate::model::{Core, Effect, Latency, Memory, Model};

/// Bytes of an access from a core without cache and port.
const WORD_BYTES: u64 = 4;

/// A processing unit, with the structure that contains it.
struct Found<'a> {
    module: &'a Element,
    structure: &'a Element,
    unit: String,
}

impl Reader<'_> {
    /// Reads the hardware.
    pub(super) fn hardware(&mut self, parts: &[&Element], model: &mut Model) -> Result<(), Error> {
        let mut found = Vec::new();
        for part in parts {
            self.rest(
                part,
                &["structures", "domains", "definitions"],
                &["featureCategories", "accessPaths"],
            );
            for structure in part.all("structures") {
                collect(structure, "", &mut found);
            }
        }
        for unit in &found {
            match unit.module.kind() {
                "ProcessingUnit" => {
                    let name = self.define("core", unit.module, model.cores.len())?;
                    let kind = key(unit.module.get("definition"));
                    let frequency_hz = frequency(parts, unit.module)?;
                    let core = Core {
                        name,
                        unit: unit.unit.clone(),
                        kind,
                        frequency_hz,
                        ..Core::default()
                    };
                    model.cores.push(core);
                }
                "Memory" => {
                    let name = self.define("memory", unit.module, model.memories.len())?;
                    let definition = definition(parts, unit.module);
                    let size_bytes = definition.map(value::size).transpose()?.flatten();
                    model.memories.push(Memory { name, size_bytes });
                }
                "Cache" => self.repeat(
                    unit.module,
                    Effect::Pessimistic,
                    "Cache: every access of a label goes to its memory, in cache lines",
                ),
                "ConnectionHandler" => self.has_connections = true,
                kind => {
                    let what = format!("module of kind {kind} is ignored");
                    self.repeat(unit.module, Effect::Optimistic, &what);
                }
            }
        }
        for unit in found.iter().filter(|u| u.module.kind() == "ProcessingUnit") {
            self.latencies(parts, unit, model)?;
        }
        Ok(())
    }

    /// Reads the times of accesses from a core.
    fn latencies(
        &mut self,
        parts: &[&Element],
        unit: &Found<'_>,
        model: &mut Model,
    ) -> Result<(), Error> {
        let core = self.find("core", unit.module, &escape(unit.module.get("name")))?;
        for access in unit.module.all("accessElements") {
            let memory = self.find("memory", access, access.get("destination"))?;
            let (read, write) = (access.child("readLatency"), access.child("writeLatency"));
            let (Some(read), Some(write)) = (read, write) else {
                let what = "access without readLatency and writeLatency takes no time";
                self.repeat(access, Effect::Optimistic, what);
                continue;
            };
            let (Some(read), Some(write)) = (value::range(read)?, value::range(write)?) else {
                self.repeat(access, Effect::Optimistic, "latency without upper bound is ignored");
                continue;
            };
            let Some(hz) = model.cores[core].frequency_hz else {
                let what = "latency in cycles of a core without frequency is ignored";
                self.repeat(access, Effect::Optimistic, what);
                continue;
            };
            let access_bytes = access_bytes(parts, unit)?;
            let transfer = match value::data_rate(access)? {
                Some(rate) if rate > 0.0 => (access_bytes as f64 * 1e9 / rate).ceil() as u64,
                _ => 0,
            };
            let ns = |cycles: u64| {
                let ns = (u128::from(cycles) * 1_000_000_000).div_ceil(u128::from(hz));
                u64::try_from(ns).unwrap_or(u64::MAX).saturating_add(transfer)
            };
            let (read_ns, write_ns) = (ns(read.worst), ns(write.worst));
            let latency = Latency { core, memory, read_ns, write_ns, access_bytes, wait_ns: 0 };
            model.latencies.push(latency);
        }
        Ok(())
    }
}

/// Encodes a name as references encode it.
fn escape(name: &str) -> String {
    name.replace('%', "%25").replace('+', "%2B").replace('?', "%3F")
}

/// Collects the modules of a structure and of those inside, with the control unit around them.
fn collect<'a>(structure: &'a Element, unit: &str, found: &mut Vec<Found<'a>>) {
    let is_unit = structure.get("structureType") == "ECU";
    let unit = if is_unit { structure.get("name") } else { unit };
    for module in structure.all("modules") {
        found.push(Found { module, structure, unit: unit.to_owned() });
    }
    structure.all("structures").for_each(|inner| collect(inner, unit, found));
}

/// The definition of a module.
fn definition<'a>(parts: &[&'a Element], module: &Element) -> Option<&'a Element> {
    let name = key(module.get("definition"));
    let all = parts.iter().flat_map(|p| p.all("definitions"));
    all.into_iter().find(|d| !name.is_empty() && d.get("name") == name)
}

fn frequency(parts: &[&Element], module: &Element) -> Result<Option<u64>, Error> {
    let name = key(module.get("frequencyDomain"));
    let mut domains = parts.iter().flat_map(|p| p.all("domains"));
    let domain = domains.find(|d| !name.is_empty() && d.get("name") == name);
    let Some(domain) = domain else { return Ok(None) };
    match value::frequency(domain)? {
        Some(0) => Err(Error::new(domain.place(), "a frequency below 1 Hz; correct it")),
        hz => Ok(hz),
    }
}

/// Instructions per cycle of a core: the feature of the category Instructions.
pub(super) fn instructions_per_cycle(parts: &[&Element], kind: &str) -> Option<f64> {
    let definitions = parts.iter().flat_map(|p| p.all("definitions"));
    let definition = definitions.into_iter().find(|d| d.get("name") == kind)?;
    let features = definition.get("features").split_whitespace().map(key);
    let names: Vec<String> =
        features.filter_map(|f| Some(f.strip_prefix("Instructions/")?.to_owned())).collect();
    let categories = parts.iter().flat_map(|p| p.all("featureCategories"));
    let instructions = categories.into_iter().find(|c| c.get("name") == "Instructions")?;
    let feature =
        instructions.all("features").find(|f| names.iter().any(|n| n == f.get("name")))?;
    feature.get("value").parse().ok().filter(|ipc| *ipc > 0.0)
}

/// Bytes of an access: a cache line of the structure around the core, or the width of its port.
fn access_bytes(parts: &[&Element], unit: &Found<'_>) -> Result<u64, Error> {
    let caches = unit.structure.all("modules").chain(unit.module.all("caches"));
    for cache in caches.filter(|m| m.kind() == "Cache" || m.name == "caches") {
        let line = definition(parts, cache).and_then(|d| d.child("lineSize"));
        if let Some(line) = line {
            return Ok(value::number(line, "value", false)?.unwrap_or(WORD_BYTES).max(1));
        }
    }
    let width = unit.module.child("ports").map(|p| value::number(p, "bitWidth", false));
    let bits = width.transpose()?.flatten().unwrap_or(WORD_BYTES * 8);
    Ok((bits / 8).max(1))
}
