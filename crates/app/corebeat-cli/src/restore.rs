//! `corebeat restore`: undoes what a Corebeat that was killed has left changed.

use crate::failure::Done;
use corebeat_linux::{Restored, restore_all, state_dir};
use std::process::ExitCode;

pub(crate) fn main() -> Done {
    let restored = restore_all(&state_dir()?)?;
    print(&restored);
    if restored.undone.is_empty() && restored.left.is_empty() {
        println!("nothing to restore");
    }
    Ok(ExitCode::SUCCESS)
}

/// Says on standard error what was undone, and what was left alone and why.
pub(crate) fn print(restored: &Restored) {
    for line in &restored.undone {
        eprintln!("corebeat: restored {line}");
    }
    for line in &restored.left {
        eprintln!("corebeat: left alone {line}");
    }
}
