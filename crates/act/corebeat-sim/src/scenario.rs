//! A scenario: a machine and its programs.

use crate::error::number;
use crate::set::SETS_MAX;
use crate::{Error, Hardware, Program, Set};
use corebeat_machine::CoscheduledSet;
use serde::Deserialize;
use std::str::FromStr;

/// A machine and its programs. The text form is TOML.
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
    /// Duration of the simulation in seconds. Default: until all programs have ended.
    pub duration_s: Option<f64>,
    /// Names of the policies to apply. The simulator does not interpret the names.
    #[serde(default)]
    pub policies: Vec<String>,
}

impl Scenario {
    /// Creates a scenario that runs these programs to their end, without sets and policies.
    pub fn new(machine: Hardware, programs: Vec<Program>) -> Self {
        Scenario { machine, programs, sets: vec![], duration_s: None, policies: vec![] }
    }

    /// Returns the coscheduled sets in the form that a coscheduler requires.
    ///
    /// # Errors
    /// [`Error::Scenario`] if there are too many sets, if the name of a set is used twice or has
    /// control characters, if a set has no CPU or too many, or if its outer set does not precede
    /// it.
    pub fn coscheduled(&self) -> Result<Vec<CoscheduledSet>, Error> {
        let count = self.sets.len();
        if count > SETS_MAX {
            return Err(Error::Scenario(format!("{count} sets; write no more than {SETS_MAX}")));
        }
        (0..count).map(|at| self.coscheduled_set(at)).collect()
    }

    fn coscheduled_set(&self, at: usize) -> Result<CoscheduledSet, Error> {
        let set = &self.sets[at];
        let position = |name: &String| self.sets.iter().position(|s| s.name == *name);
        let error = |what: String| {
            Err(Error::Scenario(format!("set '{}': {what}", set.name.escape_debug())))
        };
        if set.name.contains(char::is_control) {
            return error("name has a control character; write a name of one line".into());
        }
        if position(&set.name) != Some(at) {
            return error("name is used twice; write another".into());
        }
        if set.cpus == 0 {
            return error("cpus is 0; write 1 or more".into());
        }
        let within = match &set.within {
            None => None,
            Some(name) => match position(name).filter(|&outer| outer < at) {
                None => return error(format!("no set '{name}' precedes it; move that set up")),
                outer => outer,
            },
        };
        let most = within.map_or(self.machine.cpus(), |outer| self.sets[outer].cpus);
        if set.cpus > most {
            return error(format!("cpus is {}; write no more than {most}", set.cpus));
        }
        Ok(CoscheduledSet { cpus: set.cpus, within })
    }

    /// The set of each program.
    pub(crate) fn membership(&self) -> Result<Vec<Option<usize>>, Error> {
        self.programs.iter().map(|program| self.set_of(program)).collect()
    }

    fn set_of(&self, program: &Program) -> Result<Option<usize>, Error> {
        let Some(name) = &program.set else { return Ok(None) };
        let error = |what: String| {
            Err(Error::Program { place: format!("program '{}'", program.name), what })
        };
        // Such tasks would starve while their set has other CPUs.
        if program.cpus.is_some() {
            return error(
                "has cpus and a set, whose CPUs the coscheduler chooses; leave one of them out"
                    .into(),
            );
        }
        match self.sets.iter().position(|s| s.name == *name) {
            None => error(format!("set '{name}' does not exist; write a table [[sets]]")),
            at => Ok(at),
        }
    }
}

impl FromStr for Scenario {
    type Err = Error;

    /// Parses TOML. [`SimMachine::new`](crate::SimMachine::new) checks the values.
    fn from_str(text: &str) -> Result<Self, Error> {
        toml::from_str(text).map_err(|e| {
            let before = text.get(..e.span().map_or(0, |s| s.start)).unwrap_or("");
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
            Error::Text { line, column, what: plain(e.message()) }
        })
    }
}

/// The parser's message in terms of the text instead of Rust types.
fn plain(message: &str) -> String {
    let what = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if what.contains("recursion") {
        return "steps are nested too deeply; write fewer levels".to_owned();
    }
    let is_bits = |bits: &str| bits.parse::<u8>().is_ok();
    let (problem, expected) = what.split_once(", expected ").unwrap_or((&what, ""));
    let expected = match expected {
        "" => "",
        "f64" => ", expected a number",
        name if name.strip_prefix('u').is_some_and(is_bits) => {
            ", expected a whole number, 0 or above"
        }
        "i8" => ", expected a whole number from -128 to 127",
        "a sequence" => ", expected a list in brackets",
        name if name.starts_with("struct ") => ", expected a table, such as { key = value }",
        _ => return what,
    };
    // The parser prints all digits of a float.
    let float = problem.split_once("floating point `").and_then(|(before, rest)| {
        let value: f64 = rest.strip_suffix('`')?.parse().ok()?;
        Some(format!("{before}floating point `{}`", number(value)))
    });
    float.unwrap_or_else(|| problem.to_owned()) + expected
}
