//! Go: `peers/lpel.go`. It is given and prints the same as the others.

use super::load::Load;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Becomes that program. Returns only if that does not work.
pub(crate) fn become_it(program: Option<&Path>, load: &Load) -> String {
    match program {
        Some(program) => {
            let failed = Command::new(program).args(load.arguments()).exec();
            format!("cannot start {}: {failed}", program.display())
        }
        None => "--program says where the program is".into(),
    }
}
