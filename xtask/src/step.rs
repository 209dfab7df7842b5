//! The steps of `cargo xtask ci`.

use crate::workspace::{Workspace, cargo, files};
use crate::{book, citation, effect, failures, map, python, remaining, style, vm};
use rustix::process::getpriority_process;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Instant;

/// A check: it passes, is skipped for a reason, or fails.
type Check = fn(&Workspace) -> Result<Outcome, String>;

/// How a step that did not fail ended.
pub(crate) enum Outcome {
    Passed,
    /// A tool that the check needs is not installed. Holds how to get it.
    Skipped(String),
}

const STEPS: [(&str, Check); 15] = [
    ("fmt", |_| step(&["fmt", "--all", "--check"], &[])),
    ("clippy", |_| {
        let all = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
        step(&all, &[])?;
        // Tests may have long tables of cases; other functions have at most 80 lines (clippy.toml).
        let long = ["clippy", "--workspace", "--locked", "--", "-D", "clippy::too_many_lines"];
        step(&long, &[])?;
        // The build of `cargo demo`.
        let few = ["clippy", "-p", "corebeat-cli", "--no-default-features", "--locked", "--"];
        step(&[&few[..], &["-D", "warnings"]].concat(), &[])?;
        let rayon = ["clippy", "-p", "corebeat-future", "--no-default-features", "--features"];
        let rules = ["rayon", "--all-targets", "--locked", "--", "-D", "warnings"];
        step(&[&rayon[..], &rules].concat(), &[])
    }),
    ("build", |_| step(&["build", "--workspace"], &[])),
    ("test", |_| {
        remaining::files(|folder| {
            let args = ["test", "--workspace", "--no-fail-fast"];
            run_with(&args, &[("TMPDIR", folder)], failures::repeated)
        })
        .map(|()| Outcome::Passed)
    }),
    ("doc", |_| step(&["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])),
    ("map", |w| verdict(map::check(w))),
    ("citation", |w| verdict(citation::check(w))),
    ("style", |w| verdict(style::check(w))),
    ("book", |w| verdict(book::check(w))),
    ("python", python::check),
    ("mpi", mpi),
    ("loom", loom),
    ("miri", miri),
    ("effect", effect::check),
    ("vm", vm::check),
];

/// The names of the steps.
pub(crate) const NAMES: [&str; STEPS.len()] = {
    let mut names = [""; STEPS.len()];
    let mut i = 0;
    while i < STEPS.len() {
        names[i] = STEPS[i].0;
        i += 1;
    }
    names
};

/// The tests that run under Miri: arguments of cargo, and additional flags. Other crates have no
/// unsafe code and no threads, or make system calls that Miri does not have. Most tests compute for
/// too long.
const MIRI: [(&[&str], &str); 13] = [
    (&["-p", "corebeat-workload", "--lib", "queue"], ""),
    (&["-p", "corebeat-heartbeat", "--lib", "page::"], ""),
    (&["-p", "corebeat-trace", "--test", "small"], ""),
    (&["-p", "corebeat-lpel", "--lib", "monitor::watch"], ""),
    (&["-p", "corebeat-snet", "--lib", "boxes::"], ""),
    (&["-p", "corebeat-snet", "--lib", "value::", "--", "--skip", "format::"], ""),
    // crossbeam violates the default rules for pointers, and does not free its data of a thread.
    // Tokens have tags in their lowest bits.
    (
        &["-p", "corebeat-lpel", "--test", "small"],
        "-Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks",
    ),
    (
        &["-p", "corebeat-scoop", "--test", "small"],
        "-Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks",
    ),
    (
        &["-p", "corebeat-future", "--test", "result", "each_future_runs_once"],
        "-Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks",
    ),
    // A test leaks the payload of a panic that cannot be dropped.
    (&["-p", "corebeat-reclaim", "--lib"], "-Zmiri-ignore-leaks"),
    // A held lock contains the address of its holder.
    (
        &[
            "-p",
            "corebeat-stm",
            "--test",
            "small",
            "--test",
            "collection",
            "--test",
            "word",
            "--test",
            "trace",
        ],
        "-Zmiri-permissive-provenance -Zmiri-ignore-leaks",
    ),
    (&["-p", "corebeat-clustered", "--test", "small", "--test", "load"], ""),
    // The tasks of two threads would compute for minutes.
    (
        &["-p", "corebeat-rewrite", "--test", "small", "one_thread"],
        "-Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks",
    ),
];

/// Runs the step of this name, or all steps up to the first failure.
pub(crate) fn run(only: Option<&str>) -> Result<(), String> {
    let workspace = Workspace::read()?;
    remaining::keep_orphans()?;
    if only.is_none_or(|name| name == "test") {
        require_normal_priority()?;
    }
    for (name, check) in STEPS.iter().filter(|(name, _)| only.is_none_or(|o| o == *name)) {
        println!("\n==== {name}");
        let start = Instant::now();
        let outcome = check(&workspace);
        let remaining = remaining::check();
        match outcome.and_then(|outcome| remaining.map(|()| outcome)) {
            Ok(Outcome::Passed) => {
                println!("==== {name}: passed in {:.1} s", start.elapsed().as_secs_f64())
            }
            Ok(Outcome::Skipped(why)) => println!("==== {name}: skipped: {why}"),
            Err(why) => {
                return Err(format!("{name} failed: {why}\n(again: cargo xtask ci --only {name})"));
            }
        }
    }
    Ok(())
}

/// Fails under another nice value than 0: tests of conformance and restoration lower nice values to
/// it.
pub(crate) fn require_normal_priority() -> Result<(), String> {
    match getpriority_process(None) {
        Ok(0) => Ok(()),
        Ok(nice) => Err(format!(
            "the tests require the nice value 0, and this process has {nice}: start it without \
             'nice', or run 'renice -n 0 -p $$' as root before"
        )),
        Err(e) => Err(format!("cannot read the nice value: {e}")),
    }
}

/// The outcome of a check of texts. Each complaint is a line.
fn verdict(complaints: Result<Vec<String>, String>) -> Result<Outcome, String> {
    let complaints = complaints?;
    if complaints.is_empty() { Ok(Outcome::Passed) } else { Err(complaints.join("\n       ")) }
}

fn step(args: &[&str], env: &[(&str, &str)]) -> Result<Outcome, String> {
    run_cargo(args, env).map(|()| Outcome::Passed)
}

/// Runs cargo with its output shown.
pub(crate) fn run_cargo(args: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
    run_with(args, env, |command| {
        command.status().map_err(|e| format!("cargo could not be started: {e}"))
    })
}

/// Runs cargo by a function that waits for its end.
fn run_with(
    args: &[&str],
    env: &[(&str, &str)],
    run: fn(&mut Command) -> Result<ExitStatus, String>,
) -> Result<(), String> {
    let shown: String = env.iter().map(|(key, value)| format!("{key}='{value}' ")).collect();
    println!("{shown}cargo {}", args.join(" "));
    let mut command = match args.first() {
        // Only the cargo of rustup accepts the name of a toolchain, not the one that runs this.
        Some(first) if first.starts_with('+') => Command::new("cargo"),
        _ => Command::new(cargo()),
    };
    let status = run(command.args(args).envs(env.iter().copied()))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {}: {status}", args.join(" "))) }
}

/// Checks the networks on several ranks, whose feature needs an MPI library.
fn mpi(_: &Workspace) -> Result<Outcome, String> {
    let packages = "install openmpi-bin, libopenmpi-dev and libclang-dev";
    for tool in ["mpirun", "mpicc"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return Ok(Outcome::Skipped(format!("{tool} does not start: {packages}")));
        }
    }
    if !has_libclang() {
        return Ok(Outcome::Skipped(format!("there is no libclang.so: {packages}")));
    }
    let crates = ["corebeat-mpi", "corebeat-command-net", "corebeat-cli", "bench"];
    let crates = crates.map(|name| ["-p", name]).concat();
    let rules = ["--features", "mpi", "--all-targets", "--locked", "--", "-D", "warnings"];
    step(&[&["clippy"][..], &crates, &rules].concat(), &[])?;
    step(&["test", "-p", "corebeat-mpi", "--features", "mpi"], &[])?;
    step(&["test", "-p", "corebeat-command-net", "--features", "mpi", "--lib"], &[])?;
    step(&["test", "-p", "corebeat-cli", "--features", "mpi", "--test", "mpi"], &[])?;
    step(&["test", "-p", "bench", "--features", "mpi", "--test", "quick", "rank"], &[])
}

/// Whether the library libclang, which reads the headers of MPI, is where its user clang-sys looks
/// for it.
fn has_libclang() -> bool {
    if let Some(path) = std::env::var_os("LIBCLANG_PATH").map(PathBuf::from)
        && (is_libclang(&path) && path.is_file() || holds_libclang(&path, 0))
    {
        return true;
    }
    let asked = Command::new("llvm-config").arg("--libdir").output();
    let folder = asked.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    folder.is_some_and(|folder| holds_libclang(Path::new(folder.trim()), 0))
        || ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"]
            .iter()
            .any(|folder| holds_libclang(Path::new(folder), 2))
}

/// Whether the folder, or a folder in it up to this depth, has the library.
fn holds_libclang(folder: &Path, depth: u32) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let path = entry.path();
        // A link may end at a file that was removed.
        is_libclang(&path) && path.exists() || depth > 0 && holds_libclang(&path, depth - 1)
    })
}

/// Whether a file has a name of the library: `libclang.so`, `libclang-14.so.1`. The C++ interface
/// `libclang-cpp.so` comes with the compiler and is another library.
fn is_libclang(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(rest) = name.strip_prefix("libclang") else { return false };
    let (version, suffix) = rest.split_once(".so").unwrap_or(("no library", ""));
    let is_version = version.is_empty()
        || version.strip_prefix('-').is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit()));
    is_version && (suffix.is_empty() || suffix.starts_with('.'))
}

/// Runs the loom models: unit tests with `loom` in their name.
fn loom(workspace: &Workspace) -> Result<Outcome, String> {
    run_models(workspace, &[])
}

/// As [`loom`], with additional environment variables.
pub(crate) fn run_models(workspace: &Workspace, more: &[(&str, &str)]) -> Result<Outcome, String> {
    let has_models = |source: &PathBuf| {
        std::fs::read_to_string(source).is_ok_and(|text| {
            ["loom::model", "fault::model", "fault::check"].iter().any(|model| text.contains(model))
        })
    };
    let modelled =
        workspace.packages.iter().filter(|p| p.name != env!("CARGO_PKG_NAME")).filter(|p| {
            files(&workspace.root.join(p.folder(workspace)), ".rs").iter().any(has_models)
        });
    let mut args = vec!["test", "--release", "--lib"];
    modelled.for_each(|p| args.extend(["-p", p.name.as_str()]));
    if args.len() == 3 {
        return Ok(Outcome::Skipped("no crate has models".into()));
    }
    args.push("loom");
    let target = workspace.target_directory.join("loom");
    let mut env = vec![
        ("RUSTFLAGS", "--cfg loom"),
        ("LOOM_MAX_PREEMPTIONS", "3"),
        ("CARGO_TARGET_DIR", target.to_str().ok_or("the target folder's name is not UTF-8")?),
    ];
    env.extend(more);
    step(&args, &env)
}

/// Runs tests under Miri, which detects undefined behaviour.
fn miri(workspace: &Workspace) -> Result<Outcome, String> {
    let nightly = match effect::nightly(workspace, "miri")? {
        Ok(name) => format!("+{name}"),
        Err(missing) => return Ok(Outcome::Skipped(missing)),
    };
    let target = workspace.target_directory.join("miri");
    let target = target.to_str().ok_or("the target folder's name is not UTF-8")?;
    for (tests, flags) in MIRI {
        // proptest reads the current folder.
        let flags = format!("-Zmiri-disable-isolation {flags}");
        let env = [
            ("MIRIFLAGS", flags.trim_end()),
            ("PROPTEST_CASES", "4"),
            ("CARGO_TARGET_DIR", target),
        ];
        run_cargo(&[&[nightly.as_str(), "miri", "test"], tests].concat(), &env)?;
    }
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_of_the_compiler_is_not_taken_for_libclang() {
        for name in ["libclang.so", "libclang.so.1", "libclang-14.so", "libclang-14.so.14.0.6"] {
            assert!(is_libclang(&Path::new("/usr/lib/llvm-14/lib").join(name)), "{name}");
        }
        for name in ["libclang-cpp.so.14", "libclang-cpp.so", "libclang.a", "libclangAST.so", "so"]
        {
            assert!(!is_libclang(&Path::new("/usr/lib/llvm-14/lib").join(name)), "{name}");
        }
    }

    #[test]
    fn texts_of_this_workspace_keep_the_rules() {
        let workspace = Workspace::read().unwrap();
        for check in [map::check, citation::check, style::check, book::check] {
            verdict(check(&workspace)).unwrap_or_else(|why| panic!("{why}"));
        }
    }
}
