//! `corebeat status`: the Corebeats that run, and their changes.

use corebeat_command::{Done, Failure, print};
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
    problem: Option<String>,
}

pub(crate) fn main(options: Options) -> Done {
    let mut all: Vec<Corebeat> = journals(&state_dir()?)?.into_iter().map(Corebeat::from).collect();
    for pid in running() {
        if !all.iter().any(|corebeat| corebeat.pid == pid) {
            let (changes, problem) = (vec![], None);
            all.push(Corebeat { pid, command: command(pid), is_running: true, changes, problem });
        }
    }
    all.sort_by_key(|corebeat| corebeat.pid);
    for corebeat in &all {
        print(match options.json {
            true => serde_json::to_string(corebeat).map_err(Failure::internal)? + "\n",
            false => corebeat.text(),
        })?;
    }
    if all.is_empty() && !options.json {
        print("no Corebeat runs, and no change is left\n")?;
    }
    Ok(ExitCode::SUCCESS)
}

impl From<JournalSummary> for Corebeat {
    fn from(journal: JournalSummary) -> Corebeat {
        let JournalSummary { pid, is_live: is_running, changes, problem } = journal;
        let command = if is_running { command(pid) } else { String::new() };
        Corebeat { pid, command, is_running, changes, problem }
    }
}

impl Corebeat {
    fn text(&self) -> String {
        let mut text = match (&self.problem, self.is_running) {
            (Some(why), _) => {
                format!("{:>7}  unusable journal {why}; inspect and remove it", self.pid)
            }
            (None, true) => format!("{:>7}  {}", self.pid, self.command),
            (None, false) => {
                format!("{:>7}  has ended; 'corebeat restore' undoes its changes", self.pid)
            }
        };
        text += match self.changes.len() {
            0 if self.problem.is_none() => "\n         no changes\n",
            _ => "\n",
        };
        self.changes.iter().for_each(|change| text += &format!("         {change}\n"));
        text
    }
}

/// Words of a command line, separated by blanks.
fn command(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = bytes.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
    words.join(" ").trim_end().to_owned()
}

/// Processes of this user, for root of all users, that observe or steer programs.
fn running() -> Vec<i32> {
    const COMMANDS: [&[u8]; 6] = [b"run", b"tune", b"train", b"top", b"demo", b"daemon"];
    let me = rustix::process::geteuid().as_raw();
    let observes = |pid: &i32| {
        let own = fs::metadata(format!("/proc/{pid}"));
        let is_own = own.is_ok_and(|m| me == 0 || std::os::unix::fs::MetadataExt::uid(&m) == me);
        let is_corebeat =
            fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name == b"corebeat\n");
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let word = command.split(|b| *b == 0).nth(1);
        is_own && is_corebeat && word.is_some_and(|word| COMMANDS.contains(&word))
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(observes).collect()
}
