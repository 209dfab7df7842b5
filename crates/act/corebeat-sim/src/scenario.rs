//! A scenario: a machine, and what runs on it.

use crate::{Error, Hardware, Program, Set};
use serde::Deserialize;
use std::str::FromStr;

/// A machine and what runs on it. Its text form is TOML.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The machine.
    pub machine: Hardware,
    /// The programs.
    pub programs: Vec<Program>,
    /// The coscheduled sets that programs name.
    #[serde(default)]
    pub sets: Vec<Set>,
    /// How long to simulate, in seconds; until all programs have ended if left out.
    pub duration_s: Option<f64>,
    /// Names of the policies that are to act. Who runs the scenario knows what they mean.
    #[serde(default)]
    pub policies: Vec<String>,
}

impl Scenario {
    /// These programs on this machine until they have ended, without sets and policies.
    pub fn new(machine: Hardware, programs: Vec<Program>) -> Self {
        Scenario { machine, programs, sets: vec![], duration_s: None, policies: vec![] }
    }
}

impl FromStr for Scenario {
    type Err = Error;

    /// Reads TOML. Whether it makes sense is seen when a machine is made of it.
    fn from_str(text: &str) -> Result<Self, Error> {
        toml::from_str(text).map_err(|e| {
            let before = text.get(..e.span().map_or(0, |s| s.start)).unwrap_or("");
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
            let what = e.message().split_whitespace().collect::<Vec<_>>().join(" ");
            Error::Text { line, column, what }
        })
    }
}
