//! Programs of others that benches use.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A program that may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tool {
    /// What it is started as.
    pub(crate) program: &'static str,
    /// The Debian package that it comes from.
    pub(crate) package: &'static str,
}

pub(crate) const TOP: Tool = Tool { program: "top", package: "procps" };
pub(crate) const PIDSTAT: Tool = Tool { program: "pidstat", package: "sysstat" };
pub(crate) const PERF: Tool = Tool { program: "perf", package: "linux-perf" };
pub(crate) const GCC: Tool = Tool { program: "gcc", package: "gcc" };
pub(crate) const GPP: Tool = Tool { program: "g++", package: "g++" };
pub(crate) const GO: Tool = Tool { program: "go", package: "golang-go" };
pub(crate) const XZ: Tool = Tool { program: "xz", package: "xz-utils" };
pub(crate) const PBZIP2: Tool = Tool { program: "pbzip2", package: "pbzip2" };
pub(crate) const SEVEN_ZIP: Tool = Tool { program: "7z", package: "p7zip-full" };
pub(crate) const SYSBENCH: Tool = Tool { program: "sysbench", package: "sysbench" };

impl Tool {
    /// Where it is, if it is here.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let folders = std::env::var_os("PATH")?;
        let is_program = |path: &PathBuf| {
            path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        };
        std::env::split_paths(&folders).map(|folder| folder.join(self.program)).find(is_program)
    }

    /// How to get it.
    pub(crate) fn advice(&self) -> String {
        format!("{} is not here (apt install {})", self.program, self.package)
    }
}
