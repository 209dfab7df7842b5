//! A scenario: a machine, and what runs on it.

use crate::error::number;
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
            Error::Text { line, column, what: plain(e.message()) }
        })
    }
}

/// What the reader says, in words of the form instead of those of the program that reads it.
fn plain(message: &str) -> String {
    let what = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if what.contains("recursion") {
        return "too many steps within each other; write fewer levels".to_owned();
    }
    let is_bits = |bits: &str| bits.parse::<u8>().is_ok();
    let (said, expected) = what.split_once(", expected ").unwrap_or((&what, ""));
    let expected = match expected {
        "" => "",
        "f64" => ", expected a number",
        name if name.strip_prefix('u').is_some_and(is_bits) => ", expected a whole number, 0 or above",
        "i8" => ", expected a whole number from -128 to 127",
        "a sequence" => ", expected a list in brackets",
        name if name.starts_with("struct ") => ", expected a table, such as { key = value }",
        _ => return what,
    };
    // A float is said with all its digits.
    let float = said.split_once("floating point `").and_then(|(before, rest)| {
        let value: f64 = rest.strip_suffix('`')?.parse().ok()?;
        Some(format!("{before}floating point `{}`", number(value)))
    });
    float.unwrap_or_else(|| said.to_owned()) + expected
}
