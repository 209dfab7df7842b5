//! `corebeat paper`: reproduces tables and figures of the papers, and prints the papers' values
//! beside them.

use corebeat_command::{Done, Failure, print};
use corebeat_paper::{EXPERIMENTS, Experiment, Report};
use serde::Serialize;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Options of the command.
#[derive(clap::Args)]
pub struct Options {
    /// Tables and figures to reproduce; 'list' lists them, 'all' runs all of them
    #[arg(value_name = "NAME", default_value = "list")]
    names: Vec<String>,
    /// Print one JSON object for each table or figure
    #[arg(long)]
    json: bool,
}

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    source: &'a str,
    title: &'a str,
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    report: Option<Report>,
}

impl Line<'_> {
    fn new(experiment: &Experiment, report: Option<Report>) -> Line<'_> {
        Line { name: experiment.name, source: experiment.source, title: experiment.title, report }
    }

    fn print(&self) -> Result<(), Failure> {
        let text = serde_json::to_string(self).map_err(Failure::internal)?;
        print(text + "\n")
    }
}

/// Runs the command.
///
/// # Errors
/// A [`Failure`] with its exit status.
pub fn main(options: Options) -> Done {
    let names: Vec<&str> = options.names.iter().map(String::as_str).collect();
    match names[..] {
        ["list"] => list(options.json)?,
        ["all"] => EXPERIMENTS.iter().try_for_each(|experiment| show(experiment, options.json))?,
        _ => {
            let known = |name: &&str| {
                let why = match *name {
                    "list" | "all" => {
                        format!("'{name}' excludes other names; leave it out, or the others")
                    }
                    _ => format!("no table or figure is named '{name}'; see 'corebeat paper list'"),
                };
                corebeat_paper::find(name).ok_or_else(|| Failure::usage(why))
            };
            let chosen = names.iter().map(known).collect::<Result<Vec<_>, _>>()?;
            chosen.into_iter().try_for_each(|experiment| show(experiment, options.json))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(json: bool) -> Result<(), Failure> {
    if json {
        return EXPERIMENTS.iter().try_for_each(|experiment| Line::new(experiment, None).print());
    }
    let width = EXPERIMENTS.iter().map(|e| e.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for e in &EXPERIMENTS {
        let _ = writeln!(text, "{:width$}  {}", e.name, e.title);
    }
    print(text)
}

fn show(experiment: &Experiment, json: bool) -> Result<(), Failure> {
    let report = experiment.run();
    match json {
        true => Line::new(experiment, Some(report)).print(),
        false => print(format!("{}: {}\n\n{report}\n", experiment.source, experiment.title)),
    }
}
