//! Go: `peers/lpel.go`. It prints the same as the others.

use super::load::Load;
use crate::apart::name;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Becomes that program. Returns only if that does not work.
pub(crate) fn become_it(program: Option<&Path>, load: &Load) -> String {
    match program {
        Some(program) => {
            let arguments = [
                name(&load.work),
                format!("--workers={}", load.workers),
                format!("--count={}", load.count),
                format!("--depth={}", load.depth),
                format!("--least-ms={}", load.least_ms),
            ];
            let failed = Command::new(program).args(arguments).exec();
            format!("cannot start {}: {failed}", program.display())
        }
        None => "--program is the path of the program".into(),
    }
}
