//! Runs the checks of the project with one command: `cargo xtask ci`.
//!
//! `cargo xtask soak` repeats the same tests for a long time, with many more cases.
//! `cargo xtask dist` builds the packages of a release.
//! `cargo xtask vm` runs a command in a virtual machine that has two NUMA nodes.
//! `cargo xtask wheel` builds the Python package.

mod autofuture;
mod book;
mod citation;
mod dist;
mod effect;
mod failures;
mod map;
mod page;
mod python;
mod remaining;
mod soak;
mod step;
mod style;
mod tool;
mod vm;
mod workspace;

use autofuture::{program, speed};
use std::process::ExitCode;
use workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask ci [--only STEP]      run all checks up to the first failure, or one of them
       cargo xtask soak [--minutes N]    run the long checks, at least N minutes (default 30)
       cargo xtask autofuture [CRATE...] rewrite crates of the registry, and compare their tests
       cargo xtask autofuture --programs [--seeds N] [NAME...]
                                         rewrite programs of the registry, and compare their outputs
                                         and times, with inputs from N seeds (default 3)
       cargo xtask autofuture --speed [--quick] [PROGRAM...]
                                         measure rewritten programs beside those that people wrote
                                         (--quick: only compare their outputs)
       cargo xtask dist [--check]        build the packages into target/dist, and check them
       cargo xtask vm [--groups v1|v2] [--sched-ext] [--minutes N] -- COMMAND...
                                         run a command in a virtual machine of 8 CPUs and 2
                                         nodes (default: cgroup v2, 10 minutes); with
                                         --sched-ext, or --kernel in the command, its kernel
                                         loads schedulers
       cargo xtask wheel                 build the Python package, in target/wheels";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut own = args.iter().take_while(|arg| **arg != "--");
    if own.any(|arg| matches!(*arg, "-h" | "--help")) {
        println!("{}", usage());
        return ExitCode::SUCCESS;
    }
    let done = match args[..] {
        ["ci"] => step::run(None),
        ["ci", "--only", name] if step::NAMES.contains(&name) => step::run(Some(name)),
        ["ci", "--only", name] => return refuse(&format!("there is no step '{name}'")),
        ["soak"] => soak::run(30),
        ["soak", "--minutes", n] => match n.parse() {
            Ok(minutes) => soak::run(minutes),
            Err(_) => return refuse(&format!("'{n}' is not a number of minutes")),
        },
        ["autofuture", "--programs", "--seeds", n, ref names @ ..] => match n.parse() {
            Ok(seeds) => program::run(names, seeds),
            Err(_) => return refuse(&format!("'{n}' is not a number of seeds")),
        },
        ["autofuture", "--programs", ref names @ ..] => program::run(names, program::SEEDS),
        ["autofuture", "--speed", "--quick", ref names @ ..] => speed::run(names, true),
        ["autofuture", "--speed", ref names @ ..] => speed::run(names, false),
        ["autofuture", ref names @ ..] => autofuture::run(names),
        ["dist"] => dist::run(false),
        ["dist", "--check"] => dist::run(true),
        ["wheel"] => Workspace::read().and_then(|workspace| python::wheel(&workspace)),
        ["vm", ..] => match vm(&args[1..]) {
            Ok((groups, loads, minutes, command)) => match vm::run(groups, loads, minutes, command)
            {
                Ok(code) => return ExitCode::from(code),
                Err(why) => Err(why),
            },
            Err(wrong) => return refuse(&wrong),
        },
        [] => return refuse("a command is missing"),
        _ => return refuse(&format!("'{}' is not a command", args.join(" "))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The control groups, whether the kernel loads schedulers, minutes and command of `vm`.
fn vm<'a>(mut args: &'a [&'a str]) -> Result<(vm::Groups, bool, u32, &'a [&'a str]), String> {
    let (mut groups, mut loads, mut minutes) = (vm::Groups::V2, false, vm::MINUTES);
    loop {
        args = match args {
            ["--", command @ ..] if !command.is_empty() => {
                return Ok((groups, loads, minutes, command));
            }
            ["--sched-ext", rest @ ..] => {
                loads = true;
                rest
            }
            ["--groups", version @ ("v1" | "v2"), rest @ ..] => {
                groups = if *version == "v1" { vm::Groups::V1 } else { vm::Groups::V2 };
                rest
            }
            ["--groups", other, ..] => {
                return Err(format!(
                    "'{other}' is not a version of control groups; write v1 or v2"
                ));
            }
            ["--minutes", n, rest @ ..] => {
                let parsed = n.parse().ok().filter(|n| *n > 0);
                minutes = parsed.ok_or_else(|| format!("'{n}' is not a number of minutes"))?;
                rest
            }
            [] | ["--"] => return Err(
                "a command is missing; write the command to run in the virtual machine after '--'"
                    .into(),
            ),
            [other, ..] => {
                return Err(format!("'{other}' is not an option; write the command after '--'"));
            }
        }
    }
}

fn usage() -> String {
    format!("{USAGE}\nsteps: {}", step::NAMES.join(" "))
}

fn refuse(wrong: &str) -> ExitCode {
    eprintln!("xtask: {wrong}\n{}", usage());
    ExitCode::from(2)
}
