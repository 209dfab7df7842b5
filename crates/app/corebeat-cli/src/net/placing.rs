//! Which worker a task goes to: as it comes, by kind, or by what was measured.

use crate::failure::Failure;
use crate::output::Output;
use corebeat_lpel::Builder;
use corebeat_lpel::placement::{Balanced, Measured};
use corebeat_lpel::scheduler::Prioritised;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Bytes of a file of costs.
const FILE_MAX: u64 = 16 << 20;

/// Names in it, and the cost of each: all together fit 64 bits.
const NAMES_MAX: usize = 10_000;
const COST_NS_MAX: u64 = 1_000_000_000_000_000;

/// What a user may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Placing {
    /// Where they are spawned, or on a worker that has nothing to do.
    Nearby,
    /// Tasks of one name in equal numbers on all workers.
    Balanced,
    /// By the costs in this file.
    Measured(PathBuf),
}

impl FromStr for Placing {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Placing, Infallible> {
        Ok(match text {
            "nearby" => Placing::Nearby,
            "balanced" => Placing::Balanced,
            file => Placing::Measured(file.into()),
        })
    }
}

impl Placing {
    /// Whether boxes give way to what keeps others waiting: where tasks have their workers (Prokesch 2011, section 6.2.2).
    pub(crate) fn puts_boxes_last(&self) -> bool {
        *self != Placing::Nearby
    }

    pub(crate) fn apply(&self, builder: Builder) -> Result<Builder, Failure> {
        let prioritised = |builder: Builder| builder.scheduler(|_| Box::new(Prioritised::default()));
        Ok(match self {
            Placing::Nearby => builder,
            Placing::Balanced => prioritised(builder).placement(Balanced::default()),
            Placing::Measured(file) => prioritised(builder).placement(Measured::new(load(file)?)),
        })
    }
}

/// What a task of each name costs, as a file has it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Costs {
    cost_ns: HashMap<String, u64>,
}

/// Writes costs.
pub(crate) fn save(cost_ns: HashMap<String, u64>, to: Output) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(&Costs { cost_ns }).map_err(Failure::own)?;
    to.write(&(text + "\n"))
}

fn load(file: &Path) -> Result<HashMap<String, u64>, Failure> {
    let name = file.display();
    let unreadable = |e| {
        Failure::usage(format!(
            "cannot read costs from {name}: {e}; --placement takes nearby, balanced, or a file of 'net profile --save'"
        ))
    };
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::wrong(format!("{name} has no costs: {why}; write it with 'corebeat net profile --save'"))
    };
    let mut text = Vec::new();
    File::open(file).map_err(unreadable)?.take(FILE_MAX + 1).read_to_end(&mut text).map_err(unreadable)?;
    if text.len() as u64 > FILE_MAX {
        return Err(wrong(&format!("it is longer than {FILE_MAX} bytes")));
    }
    let Costs { cost_ns } = serde_json::from_slice(&text).map_err(|e| wrong(&e))?;
    if cost_ns.len() > NAMES_MAX {
        return Err(wrong(&format!("it has more than {NAMES_MAX} names")));
    }
    match cost_ns.iter().find(|(_, cost)| **cost > COST_NS_MAX) {
        Some((name, _)) => Err(wrong(&format!("that of {name:?} is more than {COST_NS_MAX} ns"))),
        None => Ok(cost_ns),
    }
}
