//! `cargo autofuture` finds calls and loops of a package that can run at the same time, explains
//! why others cannot, and rewrites the source.
//!
//! Place in the loop: app. The analysis is the compiler driver `corebeat-effect` beside this crate;
//! the rewritten code uses `corebeat-future`.
//!
//! # Example
//!
//! ```text
//! $ cargo run -p cargo-autofuture -- --manifest-path EXAMPLE/Cargo.toml
//! warning: candidate [divide-and-conquer]: `sort(left)` and `sort(right)` can run at the same
//!          time
//! note: rejected [consecutive-calls]: `log(a)` and `log(b)` stay sequential: `log(b)` uses
//!       standard input, output or error (`std::io::_print`), as `log(a)` does
//! $ cargo run -p cargo-autofuture -- --manifest-path EXAMPLE/Cargo.toml --apply
//! ```
//!
//! # Model
//!
//! ```text
//!   perf (with --profile) ------ shares of the time --------------.
//!                                                                  v
//!   toolchain --> driver --> analysis (cargo check with the driver) --> findings --> printed
//!                                                                          |
//!              undo <-- dependency <-- files <-- edit + patches <-----------+ with --apply
//!                ^------------------------ cargo check: undo if the result does not compile
//! ```
//!
//! # Invariants
//!
//! 1. Without `--apply` and `--undo` no file of the package changes (`tests/command.rs`).
//! 2. A file is replaced as a whole, or not at all (`edit`).
//! 3. A file that has changed since the analysis is not rewritten (`edit`).
//! 4. The rewritten package compiles with the toolchain of the user, or all files are restored
//!    (`tests/command.rs`).
//! 5. A file that several targets contain, or may contain, is not rewritten; both profiles accept
//!    each candidate (`tests/command.rs`).
//! 6. A profile orders the findings by their measured shares, and rejects candidates with almost
//!    none (`tests/command.rs`).
//! 7. `--undo` restores the files also after an interrupted `--apply` (`tests/command.rs`).
//!
//! # Failure
//!
//! Exit status 1 with one line: no toolchain, a package that does not compile, files with changes
//! that are not committed, no perf for `--profile`. Exit status 2: a mistake on the command line.
//!
//! # Limits
//!
//! `docs/autofuture.md` lists what the analysis rejects and what it trusts.

mod analysis;
mod apply;
mod edit;
mod error;
mod finding;
mod profile;
mod toolchain;

pub use error::Error;

use analysis::Project;
use clap::{Parser, ValueEnum};
use finding::Finding;
use profile::Profile;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;

/// Find calls and loops that can run at the same time, and rewrite them.
#[derive(Debug, Parser)]
#[command(name = "cargo autofuture", version)]
pub struct Options {
    /// Analyse the package of this Cargo.toml
    #[arg(long, value_name = "PATH")]
    pub manifest_path: Option<PathBuf>,
    /// Analyse only these packages of a workspace
    #[arg(short, long, value_name = "SPEC")]
    pub package: Vec<String>,
    /// Analyse all packages of the workspace
    #[arg(long)]
    pub workspace: bool,
    /// Enable these features
    #[arg(short = 'F', long, value_name = "FEATURES")]
    pub features: Vec<String>,
    /// Enable all features
    #[arg(long)]
    pub all_features: bool,
    /// Do not enable the default feature
    #[arg(long)]
    pub no_default_features: bool,
    /// Use no network
    #[arg(long)]
    pub offline: bool,
    /// Rely on a promise about the programs that use a library, or about unsafe code of a program
    #[arg(long, value_enum, value_name = "PROMISE")]
    pub assume: Vec<Promise>,
    /// Add and multiply floating-point numbers in another order
    #[arg(long)]
    pub reassociate: bool,
    /// Propose recursions whose calls take a few instructions each, too
    #[arg(long)]
    pub small_calls: bool,
    /// Print messages as JSON, as `cargo check --message-format=json`
    #[arg(long, conflicts_with_all = ["apply", "undo"])]
    pub json: bool,
    /// Print candidates only
    #[arg(long)]
    pub candidates: bool,
    /// Rewrite the source, after showing the difference
    #[arg(long, conflicts_with = "undo")]
    pub apply: bool,
    /// Rewrite files with changes that are not committed, and folders without git
    #[arg(long, requires = "apply")]
    pub allow_dirty: bool,
    /// Restore the files that the last --apply has rewritten
    #[arg(long)]
    pub undo: bool,
    /// Run the program once under perf, with the arguments after --, and rank by measured time
    #[arg(long, conflicts_with_all = ["json", "undo"])]
    pub profile: bool,
    /// Profile the program of this name
    #[arg(long, value_name = "NAME", requires = "profile")]
    pub bin: Option<String>,
    /// Arguments of the profiled program
    #[arg(last = true, value_name = "ARGS", requires = "profile")]
    pub arguments: Vec<OsString>,
    /// Depend on the crate corebeat-future in this folder
    #[arg(long, value_name = "DIR")]
    pub future_path: Option<PathBuf>,
    /// Use this compiler driver instead of building one (also the variable AUTOFUTURE_DRIVER)
    #[arg(long, value_name = "FILE")]
    pub driver: Option<PathBuf>,
}

/// A promise of the user about all programs that use a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Promise {
    /// No hook of panics has effects besides messages to standard error
    NoPanicHook,
    /// No code reads memory that the library was changing when it panicked
    NoCatch,
}

/// Runs the command.
///
/// # Errors
///
/// [`Error`] has one variant for each reason for which the command ends without a result.
pub fn run(options: &Options) -> Result<(), Error> {
    let project = Project::read(options)?;
    if options.undo {
        return apply::undo(&project);
    }
    if options.apply {
        apply::require_complete(&project)?;
    }
    if options.apply && !options.allow_dirty {
        apply::require_clean(&project)?;
    }
    if options.profile {
        profile::require_perf(&project)?;
    }
    let toolchain = toolchain::Toolchain::find()?;
    let named = options.driver.clone();
    let driver = match named.or_else(|| std::env::var_os("AUTOFUTURE_DRIVER").map(PathBuf::from)) {
        Some(driver) => driver,
        None => toolchain.build_driver()?,
    };
    let mut findings = analysis::run(options, &project, &toolchain, &driver)?;
    if options.json {
        return Ok(());
    }
    if options.profile {
        let profile = profile::run(options, &project)?;
        findings = ranked(&project, &profile, findings);
    }
    print(options, &findings);
    if options.apply { apply::apply(options, &project, &findings) } else { Ok(()) }
}

/// Orders the findings by their shares of the measured time, and adds these to their texts. A
/// candidate with almost no share is rejected.
fn ranked(project: &Project, profile: &Profile, findings: Vec<Finding>) -> Vec<Finding> {
    let with_share = |finding: Finding| (profile.share(project, &finding), finding);
    let mut ranked: Vec<(f64, Finding)> = findings.into_iter().map(with_share).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let described = |(share, mut finding): (f64, Finding)| {
        let text = format!("{:.1} % of the time of `{}`", 100.0 * share, profile.command);
        if finding.is_candidate() && share < profile::LEAST_SHARE {
            finding.reject(&format!("it takes {text}"));
        } else {
            finding.rendered = format!("{text}:\n{}", finding.rendered);
        }
        finding
    };
    ranked.into_iter().map(described).collect()
}

/// Prints the findings as the compiler would.
fn print(options: &Options, findings: &[Finding]) {
    let shown = findings.iter().filter(|finding| finding.is_candidate() || !options.candidates);
    for finding in shown {
        print!("{}", finding.rendered);
    }
    let candidates = findings.iter().filter(|finding| finding.is_candidate()).count();
    let rejected = findings.len() - candidates;
    println!("{candidates} candidates, {rejected} rejected");
    if candidates > 0 && !options.apply && std::io::stdout().is_terminal() {
        println!("To rewrite the candidates: cargo autofuture --apply");
    }
}
