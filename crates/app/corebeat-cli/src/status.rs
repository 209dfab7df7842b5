//! `corebeat status`: the changes of Corebeats that run, or have been killed, by their journals.

use corebeat_command::{Done, Failure, print, printable};
use corebeat_linux::{JournalSummary, journals, state_dir};
use serde::Serialize;
use std::fs;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write one JSON object for each Corebeat
    #[arg(long)]
    json: bool,
}

/// A Corebeat that runs, or that has ended and left changes.
#[derive(Debug, Serialize)]
struct Corebeat {
    pid: i32,
    /// Command line; empty after the end.
    command: String,
    is_running: bool,
    changes: Vec<String>,
    left: Vec<String>,
    problem: Option<String>,
}

pub(crate) fn main(options: Options) -> Done {
    let mut all: Vec<Corebeat> = journals(&state_dir()?)?.into_iter().map(Corebeat::from).collect();
    all.sort_by_key(|corebeat| corebeat.pid);
    for corebeat in &all {
        print(match options.json {
            true => serde_json::to_string(corebeat).map_err(Failure::internal)? + "\n",
            false => corebeat.text(),
        })?;
    }
    if all.is_empty() && !options.json {
        print("no Corebeat has changed anything\n")?;
    }
    Ok(ExitCode::SUCCESS)
}

impl From<JournalSummary> for Corebeat {
    fn from(journal: JournalSummary) -> Corebeat {
        let JournalSummary { pid, is_live: is_running, changes, left, problem } = journal;
        let command = if is_running { command(pid) } else { String::new() };
        Corebeat { pid, command, is_running, changes, left, problem }
    }
}

impl Corebeat {
    fn text(&self) -> String {
        let state = match self.is_running {
            true => self.command.as_str(),
            false => "has ended; 'corebeat restore' undoes its changes",
        };
        let lines: Vec<&String> =
            self.changes.iter().chain(&self.left).chain(&self.problem).collect();
        let lines: String = match lines[..] {
            [] => "         no changes\n".into(),
            _ => lines.iter().map(|line| format!("         {}\n", printable(line))).collect(),
        };
        format!("{:>7}  {}\n{lines}", self.pid, printable(state))
    }
}

/// Words of a command line, separated by blanks.
fn command(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = bytes.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
    words.join(" ").trim_end().to_owned()
}
