//! `corebeat restore`: undoes what a Corebeat that was killed has left changed.

use crate::failure::{Done, print, tell};
use corebeat_linux::{Restored, restore_all, state_dir};
use std::process::ExitCode;

pub(crate) fn main() -> Done {
    let restored = restore_all(&state_dir()?)?;
    say(&restored);
    if restored.undone.is_empty() && restored.left.is_empty() {
        print("nothing to restore\n")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Says on standard error what was undone, and what was left alone and why.
fn say(restored: &Restored) {
    for line in &restored.undone {
        tell(format_args!("corebeat: restored {line}\n"));
    }
    for line in &restored.left {
        tell(format_args!("corebeat: left alone {line}\n"));
    }
}
