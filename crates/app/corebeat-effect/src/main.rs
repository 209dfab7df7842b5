//! The compiler driver behind `cargo autofuture`: finds calls and loops that can run at the same
//! time without a change of behaviour.
//!
//! Cargo starts this program instead of `rustc`. It compiles dependencies as `rustc` does, but
//! keeps the MIR of all their functions. In a crate of the workspace it also
//!
//! 1. finds proposals in the syntax tree ([`pattern`]);
//! 2. estimates their effects and drops those that are refused ([`estimate`], with [`graph`],
//!    [`body`], [`join`] and [`summary`]);
//! 3. compiles the crate with all remaining proposals applied, in memory, and judges the closures
//!    of that program ([`trial`], [`rule`], [`unwinding`]);
//! 4. reports candidates and rejections as diagnostics ([`session`]).
//!
//! ```text
//!   syntax tree --pattern--> proposals --graph--> survivors --trial--> candidates + rewrites
//!                                |                   |  ^ compile errors: drop and repeat
//!                                +--- rejected, because ... (span) ---+
//! ```
//!
//! Invariants (the tests are in `tests/`):
//!
//! 1. Code that the analysis does not understand is rejected (`ui`).
//! 2. A candidate's rewritten form has been compiled and analysed itself (`ui`).
//! 3. The classes of effects and the rules in `fault` are needed: with one of them left out, a test
//!    finds a changed behaviour.
//! 4. The original output of the compiler and its files are not changed (`ui`).
//!
//! Limits: `docs/autofuture.md` lists what is rejected and what is trusted.

#![feature(rustc_private)]

extern crate rustc_data_structures;
extern crate rustc_driver;
extern crate rustc_errors;
extern crate rustc_hir;
extern crate rustc_interface;
extern crate rustc_lexer;
extern crate rustc_middle;
extern crate rustc_session;
extern crate rustc_span;

mod attempt;
mod body;
mod candidate;
mod effect;
mod estimate;
mod fault;
mod graph;
mod join;
mod option;
mod pattern;
mod rule;
mod scope;
mod session;
mod summary;
mod trial;
mod unwinding;

use crate::trial::{Loader, Plan};
use rustc_driver::{Callbacks, Compilation};
use rustc_interface::interface::{Compiler, Config};
use rustc_middle::ty::TyCtxt;
use rustc_span::Symbol;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Compiles with the settings that the analysis needs.
fn configure(config: &mut Config) {
    // Optimised MIR hides which functions are called.
    config.opts.unstable_opts.mir_opt_level = Some(0);
    config.opts.unstable_opts.always_encode_mir = true;
    // Without the checks of pointers that debug builds add: they look like unsafe code.
    config.opts.unstable_opts.ub_checks = Some(false);
    // The profile of the analysis may lack the checks that the profile of the program has.
    if !fault::is_planted("profile") {
        config.opts.cg.overflow_checks = Some(true);
    }
}

/// Analyses the crate after the compiler has checked it.
struct Analysis {
    args: Vec<String>,
}

impl Callbacks for Analysis {
    fn config(&mut self, config: &mut Config) {
        configure(config);
        // Cargo repeats its messages of a crate until a file or one of these variables changes.
        config.track_state = Some(Box::new(|session| {
            let words = std::env::var(option::VARIABLE).ok();
            let words = words.map(|words| Symbol::intern(&words));
            session.env_depinfo.borrow_mut().insert((Symbol::intern(option::VARIABLE), words));
        }));
    }

    fn after_analysis<'tcx>(&mut self, _: &Compiler, tcx: TyCtxt<'tcx>) -> Compilation {
        if tcx.dcx().has_errors().is_none() {
            session::analyse(tcx, &self.args);
        }
        Compilation::Continue
    }
}

/// Judges the rewritten crate.
struct Trial {
    plan: Plan,
}

impl Callbacks for Trial {
    fn config(&mut self, config: &mut Config) {
        configure(config);
        config.file_loader = Some(Box::new(Loader(std::mem::take(&mut self.plan.files))));
    }

    fn after_analysis<'tcx>(&mut self, _: &Compiler, tcx: TyCtxt<'tcx>) -> Compilation {
        if tcx.dcx().has_errors().is_none() {
            let verdicts = trial::judge(tcx, &self.plan);
            let written = serde_json::to_string(&verdicts)
                .map_err(std::io::Error::other)
                .and_then(|text| std::fs::write(&self.plan.verdicts, text));
            if let Err(e) = written {
                eprintln!("cannot write the verdicts: {e}");
            }
        }
        Compilation::Stop
    }
}

/// A crate of the workspace without an analysis: its MIR is kept.
struct Plain;

impl Callbacks for Plain {
    fn config(&mut self, config: &mut Config) {
        configure(config);
    }
}

/// Options of `rustc` for dependencies.
const KEEP_MIR: [&str; 4] =
    ["-Zalways-encode-mir", "-Zmir-opt-level=0", "-Zub-checks=no", "-Coverflow-checks=yes"];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let Some(plan) = Plan::of_this_process() {
        return compile(&args, &mut Trial { plan });
    }
    let own = |arg: &String| {
        let name = |path: &str| Path::new(path).file_stem().map(|name| name.to_owned());
        name(arg) == name(&args[0])
    };
    match args.get(1) {
        // Cargo: RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER rustc ARGUMENTS, both wrappers this program.
        Some(second) if own(second) => {
            let args = &args[2..];
            if is_analysed(args) {
                compile(args, &mut Analysis { args: args.to_vec() })
            } else {
                compile(args, &mut Plain)
            }
        }
        // A crate of another workspace or registry.
        Some(rustc) if !rustc.starts_with('-') => {
            let is_compilation = args.iter().any(|arg| arg == "--crate-name");
            let more: &[&str] = if is_compilation { &KEEP_MIR } else { &[] };
            let status = Command::new(rustc).args(&args[2..]).args(more).status();
            match status.map(|status| status.code()) {
                Ok(Some(code)) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
                Ok(None) => ExitCode::FAILURE,
                Err(e) => {
                    eprintln!("error: {rustc} could not be started: {e}");
                    ExitCode::FAILURE
                }
            }
        }
        _ => compile(&args, &mut Plain),
    }
}

/// Whether this compilation is of a library or a program that the user has selected.
fn is_analysed(args: &[String]) -> bool {
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1).map(String::as_str)
    };
    let is_build_script = value("--crate-name").is_some_and(|n| n.starts_with("build_script_"));
    let is_test = args.iter().any(|arg| arg == "--test");
    let is_macro = args.windows(2).any(|pair| pair[0] == "--crate-type" && pair[1] == "proc-macro");
    value("--crate-name").is_some()
        && std::env::var_os("CARGO_PRIMARY_PACKAGE").is_some()
        && !(is_build_script || is_test || is_macro)
}

fn compile(args: &[String], callbacks: &mut (dyn Callbacks + Send)) -> ExitCode {
    rustc_driver::catch_with_exit_code(|| rustc_driver::run_compiler(args, callbacks))
}
