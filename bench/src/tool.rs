//! Programs of others that benches use.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Something that may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tool {
    /// What it is called; a program is started as that.
    pub(crate) program: &'static str,
    pub(crate) origin: Origin,
}

/// Where one gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A program of this Debian package.
    Package(&'static str),
    /// Source in the folder that this variable of the environment names.
    Source(&'static str),
}

pub(crate) const TOP: Tool = Tool::package("top", "procps");
pub(crate) const PIDSTAT: Tool = Tool::package("pidstat", "sysstat");
pub(crate) const PERF: Tool = Tool::package("perf", "linux-perf");
pub(crate) const GCC: Tool = Tool::package("gcc", "gcc");
pub(crate) const GPP: Tool = Tool::package("g++", "g++");
pub(crate) const GO: Tool = Tool::package("go", "golang-go");
pub(crate) const XZ: Tool = Tool::package("xz", "xz-utils");
pub(crate) const PBZIP2: Tool = Tool::package("pbzip2", "pbzip2");
pub(crate) const SEVEN_ZIP: Tool = Tool::package("7z", "p7zip-full");
pub(crate) const SYSBENCH: Tool = Tool::package("sysbench", "sysbench");

/// Version 1.0.4 or later.
pub(crate) const TINYSTM: Tool =
    Tool { program: "TinySTM", origin: Origin::Source("COREBEAT_TINYSTM_SOURCE") };

impl Tool {
    pub(crate) const fn package(program: &'static str, package: &'static str) -> Tool {
        Tool { program, origin: Origin::Package(package) }
    }

    /// Where it is, if it is here.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        if let Origin::Source(variable) = self.origin {
            return std::env::var_os(variable).map(PathBuf::from).filter(|folder| folder.is_dir());
        }
        let folders = std::env::var_os("PATH")?;
        let is_program = |path: &PathBuf| {
            path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        };
        std::env::split_paths(&folders).map(|folder| folder.join(self.program)).find(is_program)
    }

    /// How to get it.
    pub(crate) fn advice(&self) -> String {
        match self.origin {
            Origin::Package(package) => format!("{} is not here (apt install {package})", self.program),
            Origin::Source(variable) => {
                format!("{} is not here (set {variable} to the folder with its source)", self.program)
            }
        }
    }
}
