//! `corebeat restore`: undoes the changes of a killed Corebeat.

use corebeat_command::{Done, Failure, print, print_line, printable};
use corebeat_linux::{RestoredJournals, restorable, restore_all, state_dir};
use corebeat_machine::Restored;
use std::path::Path;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Print what would be undone, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn main(options: Options) -> Done {
    if options.dry_run {
        return dry_run();
    }
    let folder = state_dir()?;
    let restored = restore_all(&folder)?;
    report(&restored.restored);
    if let Some(line) = summary(&restored, &folder) {
        print(line)?;
    }
    match restored.kept {
        0 => Ok(ExitCode::SUCCESS),
        _ => Err(Failure::internal(
            "some changes are not undone, and their journals are kept: remove the causes above, and \
             run 'corebeat restore' again",
        )),
    }
}

/// Prints what a restoration would print now.
fn dry_run() -> Done {
    let folder = state_dir()?;
    let journals = restorable(&folder)?;
    let Restored { undone, left } = &journals.restored;
    let undone = undone.iter().map(|line| format!("would restore {}\n", printable(line)));
    let left = left.iter().map(|line| format!("would not restore: {}\n", printable(line)));
    print(undone.chain(left).chain(summary(&journals, &folder)).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

/// A line about the changes of running Corebeat processes, or about the absence of changes.
fn summary(journals: &RestoredJournals, folder: &Path) -> Option<String> {
    let restored = &journals.restored;
    let had_some = !restored.undone.is_empty() || !restored.left.is_empty();
    match journals.live {
        0 => (!had_some).then(|| {
            format!(
                "nothing to restore: no journal in {}\n",
                printable(&folder.display().to_string())
            )
        }),
        live => {
            let none = if had_some { "" } else { "nothing to restore: " };
            Some(match live {
                1 => format!("{none}a running Corebeat will undo its changes when it ends\n"),
                _ => format!(
                    "{none}{live} running Corebeats will undo their changes at their ends\n"
                ),
            })
        }
    }
}

/// Prints the undone changes, and those that could not be undone, on standard error.
fn report(restored: &Restored) {
    for line in &restored.undone {
        print_line(format_args!("restored {line}"));
    }
    for line in &restored.left {
        print_line(format_args!("not restored: {line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_running_processes_are_reported() {
        let line = |undone: &[&str], live| {
            let undone = undone.iter().map(|line| (*line).to_owned()).collect();
            let restored = Restored { undone, left: vec![] };
            summary(&RestoredJournals { restored, live, kept: 0 }, Path::new("/state"))
        };
        assert_eq!(line(&[], 0).unwrap(), "nothing to restore: no journal in /state\n");
        assert_eq!(line(&["nice of 7"], 0), None);
        let one = "nothing to restore: a running Corebeat will undo its changes when it ends\n";
        assert_eq!(line(&[], 1).unwrap(), one);
        assert!(line(&["nice of 7"], 2).unwrap().starts_with("2 running Corebeats"));
    }
}
