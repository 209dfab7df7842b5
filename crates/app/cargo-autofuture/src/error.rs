//! The reasons for which the command ends without a result.

use std::path::PathBuf;

/// Why `cargo autofuture` ends without a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pinned toolchain of the driver is not installed.
    #[error(
        "the analysis needs the toolchain {name} with the component rustc-dev: run 'rustup \
         toolchain install {name} --profile minimal --component rustc-dev,llvm-tools,rust-src'"
    )]
    Toolchain {
        /// The name of the toolchain.
        name: String,
    },
    /// The source of the driver is not where it was when this program was built.
    #[error(
        "the source of the compiler driver is not in {0}: run this program in a checkout of \
         Corebeat, or name a driver with --driver"
    )]
    NoDriver(PathBuf),
    /// The driver does not compile.
    #[error("the compiler driver in {0} does not compile: its errors are above")]
    Driver(PathBuf),
    /// A program could not be started.
    #[error("{program} could not be started: {source}")]
    Start {
        /// The program.
        program: String,
        /// The reason.
        source: std::io::Error,
    },
    /// The package could not be read.
    #[error("cargo cannot read the package: {0}")]
    Package(String),
    /// The package does not compile.
    #[error("the package does not compile with {toolchain}: correct the errors above first")]
    Compile {
        /// The toolchain of the analysis.
        toolchain: String,
    },
    /// Cargo has failed before it compiled the package.
    #[error("cargo did not compile the package: its message above has the reason")]
    Cargo,
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A file has changed since the analysis.
    #[error("{0} has changed since the analysis: run the command again")]
    Changed(PathBuf),
    /// Files have changes that are not committed.
    #[error(
        "{0} has changes that are not committed, or is not in a git repository: commit them, or \
         add --allow-dirty"
    )]
    Dirty(PathBuf),
    /// An earlier rewrite was interrupted.
    #[error("an earlier rewrite of {0} was interrupted: restore its files with --undo first")]
    Interrupted(PathBuf),
    /// The dependency could not be added.
    #[error("the dependency corebeat-future could not be added, and all files are restored: {0}")]
    Dependency(String),
    /// The rewritten package does not compile.
    #[error("the rewritten package does not compile, and all files are restored: {0}")]
    Rewritten(String),
    /// The package compiles, but not if it depends on the runtime. Trait implementations of the
    /// crates that the runtime uses may make types ambiguous.
    #[error(
        "the package does not compile with the dependency corebeat-future, and all files are \
         restored: {0}; if a type is ambiguous, write it, and run the command again"
    )]
    Runtime(String),
    /// The rewrite failed, and a file could not be restored.
    #[error("{reason}; but {failed}: correct this and run the command with --undo")]
    NotRestored {
        /// Why the rewrite failed.
        reason: Box<Error>,
        /// Why a file could not be restored.
        failed: Box<Error>,
    },
    /// The program `perf` is not installed.
    #[error("--profile needs the program perf: install it (Debian: apt install linux-perf)")]
    NoPerf,
    /// The system lets this user not sample programs.
    #[error(
        "perf must not sample programs of this user: set kernel.perf_event_paranoid to 2 or less \
         (sysctl), or allow the system call perf_event_open in this container"
    )]
    PerfDenied,
    /// perf has no samples for another reason.
    #[error("the program could not be profiled: {0}")]
    Perf(String),
    /// The program to profile does not compile.
    #[error("the program to profile does not compile: its errors are above")]
    ProfileBuild,
    /// The package has no program, or several.
    #[error("--profile needs one program, and there are {}: name one with --bin", programs(.0))]
    Programs(Vec<String>),
    /// There is nothing to undo.
    #[error("there is no rewrite to undo in {0}")]
    NothingToUndo(PathBuf),
    /// A file was changed after the rewrite.
    #[error(
        "{0} has changed since the rewrite, and no file is restored: take its changes back first, \
         or restore the files with git"
    )]
    ChangedSince(PathBuf),
}

/// The number and the names of programs.
fn programs(names: &[String]) -> String {
    match names {
        [] => "none".into(),
        names => format!("{} ({})", names.len(), names.join(", ")),
    }
}

impl Error {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { path, source }
    }
}
