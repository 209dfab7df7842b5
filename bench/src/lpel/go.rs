//! The subject Go: `peers/lpel.go`. Its output has the format of the other subjects.

use super::load::Load;
use crate::apart::name;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Replaces this process by the program. Returns only on failure, with the reason.
pub(crate) fn exec(program: Option<&Path>, load: &Load) -> String {
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
        None => "the options lack the path of the Go program".into(),
    }
}
