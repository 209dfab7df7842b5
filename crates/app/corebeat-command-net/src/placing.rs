//! Placement of tasks on workers: nearby, balanced, or by measured costs.

use corebeat_command::{Failure, Output, read_text};
use corebeat_lpel::Builder;
use corebeat_lpel::placement::{Balanced, Measured};
use corebeat_lpel::scheduler::Prioritised;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Largest size of a cost file in bytes.
const FILE_MAX: u64 = 16 << 20;

/// Largest number of names in a cost file, and largest cost of each: their sum fits 64 bits.
const NAMES_MAX: usize = 10_000;
const COST_NS_MAX: u64 = 1_000_000_000_000_000;

/// A placement that the user can choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Placing {
    /// On the spawning worker, or on an idle one.
    Nearby,
    /// In equal numbers of each name on all workers.
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
    /// The file of costs, if tasks are placed by costs.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Placing::Measured(file) => Some(file),
            Placing::Nearby | Placing::Balanced => None,
        }
    }

    /// Whether boxes run at the lowest priority: where tasks are bound to workers (Prokesch 2011,
    /// section 6.2.2).
    pub(crate) fn puts_boxes_last(&self) -> bool {
        *self != Placing::Nearby
    }

    pub(crate) fn apply(&self, builder: Builder) -> Result<Builder, Failure> {
        let prioritised =
            |builder: Builder| builder.scheduler(|_| Box::new(Prioritised::default()));
        Ok(match self {
            Placing::Nearby => builder,
            Placing::Balanced => prioritised(builder).placement(Balanced::default()),
            Placing::Measured(file) => prioritised(builder).placement(Measured::new(load(file)?)),
        })
    }
}

/// A cost file: the mean cost of a task of each name.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Costs {
    cost_ns: HashMap<String, u64>,
}

/// Writes a cost file.
pub(crate) fn save(cost_ns: HashMap<String, u64>, to: Output) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(&Costs { cost_ns }).map_err(Failure::internal)?;
    to.write(&(text + "\n"))
}

fn load(file: &Path) -> Result<HashMap<String, u64>, Failure> {
    let name = format!("costs from {}", file.display());
    let expected =
        "cost file of 'net profile --save'; --placement takes nearby, balanced, or a file";
    let text = read_text(&name, File::open(file), FILE_MAX, expected)?;
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::data(format!(
            "{} is not a cost file: {why}; write it with 'corebeat net profile --save'",
            file.display()
        ))
    };
    let Costs { cost_ns } = serde_json::from_str(&text).map_err(|e| wrong(&e))?;
    if cost_ns.len() > NAMES_MAX {
        return Err(wrong(&format!("the file has more than {NAMES_MAX} names")));
    }
    match cost_ns.iter().find(|(_, cost)| **cost > COST_NS_MAX) {
        Some((name, _)) => {
            Err(wrong(&format!("the cost of {name:?} is more than {COST_NS_MAX} ns")))
        }
        None => Ok(cost_ns),
    }
}
