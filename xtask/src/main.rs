//! The checks of the project, one command: `cargo xtask ci`.
//!
//! `cargo xtask soak` is for long runs: the same tests with many more cases, again and again.

mod book;
mod map;
mod soak;
mod step;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask ci [--only STEP]      all checks, in order, up to the first that fails; or one of them
       cargo xtask soak [--minutes N]    tests with many cases, and again until N minutes are over (default 30)";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["ci"] => step::run(None),
        ["ci", "--only", name] if step::NAMES.contains(&name) => step::run(Some(name)),
        ["ci", "--only", name] => return usage(&format!("there is no step '{name}'")),
        ["soak"] => soak::run(30),
        ["soak", "--minutes", n] => match n.parse() {
            Ok(minutes) => soak::run(minutes),
            Err(_) => return usage(&format!("'{n}' is not a number of minutes")),
        },
        [] => return usage("say what to do"),
        _ => return usage(&format!("'{}' is not understood", args.join(" "))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

fn usage(wrong: &str) -> ExitCode {
    eprintln!("xtask: {wrong}\n{USAGE}\nsteps: {}", step::NAMES.join(" "));
    ExitCode::from(2)
}
