//! Random programs: the driver rewrites them, and the rewritten programs print what the original
//! ones print, in whatever order closures run. With the feature `fault`, two classes of effects are
//! found in this way if the analysis overlooks them.
//!
//! The normal tests use the runtime in `tests/runtime`, which reverses the order. With the variable
//! `COREBEAT_SOAK` there are many programs, which run with corebeat-future under seeds. A failure
//! prints the seed of its batch and the source; `COREBEAT_BATCH=SEED` runs that batch only.

#[path = "generated/program.rs"]
mod program;

use program::{Random, generate};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs of a batch, which are compiled together.
const BATCH: usize = 100;
/// Time limit of a program, in seconds.
const LIMIT_S: &str = "60";
/// Batches of a soak.
const BATCHES: u64 = 100;
/// Seeds under which a program of a soak runs.
const SEEDS: u64 = 20;
/// Programs of a batch with one class of effects.
#[cfg(feature = "fault")]
const FAULT_BATCH: usize = 20;
/// Most batches until a planted fault is found.
#[cfg(feature = "fault")]
const FAULT_BATCHES: u64 = 4;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files of one batch.
struct Batch {
    folder: PathBuf,
    source: String,
    seed: u64,
    programs: usize,
}

impl Batch {
    fn new(name: &str, seed: u64, programs: usize, class: Option<&str>) -> Batch {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{seed}"));
        std::fs::create_dir_all(folder.join("a")).unwrap();
        let data = folder.join("data");
        let bytes: Vec<u8> = (0..5000u32).map(|n| (n * n % 251) as u8).collect();
        std::fs::write(&data, bytes).unwrap();
        let paths = [folder.to_str().unwrap(), data.to_str().unwrap()];
        let source = generate(&mut Random::new(seed), programs, class, paths[0], paths[1]);
        std::fs::write(folder.join("original.rs"), &source).unwrap();
        Batch { folder, source, seed, programs }
    }

    /// The source with all candidates applied, and their number.
    fn rewritten(&self, fault: Option<&str>) -> (String, usize) {
        let driver = env!("CARGO_BIN_EXE_corebeat-effect");
        let mut command = Command::new(driver);
        command
            .current_dir(&self.folder)
            .args([driver, "rustc", "--crate-name", "case", "--edition=2024"])
            .args(["--crate-type", "bin", "--emit=metadata", "-Cdebug-assertions=on"])
            .args(["--error-format=json", "--out-dir", ".", "original.rs"])
            .env("CARGO_PRIMARY_PACKAGE", "1")
            .env("COREBEAT_EFFECT_OPTIONS", "small-calls")
            .env_remove("COREBEAT_EFFECT_FAULT");
        if let Some(fault) = fault {
            command.env("COREBEAT_EFFECT_FAULT", fault);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{}: {text}", self.folder.display());
        let messages = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let is_candidate =
            |m: &Value| m["message"].as_str().is_some_and(|m| m.starts_with("candidate ["));
        let mut edits: Vec<(usize, usize, String)> = Vec::new();
        for message in messages.filter(is_candidate) {
            let children = message["children"].as_array().unwrap();
            for span in children.iter().flat_map(|child| child["spans"].as_array().unwrap()) {
                let number = |name: &str| span[name].as_u64().unwrap() as usize;
                let text = span["suggested_replacement"].as_str().unwrap();
                edits.push((number("byte_start"), number("byte_end"), text.to_owned()));
            }
        }
        edits.sort();
        let mut source = self.source.clone();
        for (start, end, text) in edits.iter().rev() {
            source.replace_range(*start..*end, text);
        }
        std::fs::write(self.folder.join("rewritten.rs"), &source).unwrap();
        (source, edits.len())
    }

    /// Compiles one of the two sources.
    fn compile(&self, name: &str, more: &[String]) {
        let output = Command::new("rustc")
            .current_dir(&self.folder)
            .args(["--edition=2024", "-Awarnings", "-Cdebug-assertions=on", "-Cincremental=no"])
            .arg("--cfg=shown")
            .args(["--crate-name=case", "-o", name])
            .args(more)
            .arg(format!("{name}.rs"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}/{name}.rs: {text}", self.folder.display());
    }

    /// The output of a program, with the panic that surfaces, and its exit status; `None` if it
    /// does not end.
    fn run(&self, name: &str, program: usize, seed: u64) -> Option<String> {
        let output = Command::new("timeout")
            .args(["-s", "KILL", LIMIT_S, &format!("./{name}"), &program.to_string()])
            .current_dir(&self.folder)
            .env("COREBEAT_FUTURE_SEED", seed.to_string())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        output.status.code().map(|code| format!("{text}status {code}"))
    }

    /// The first program that prints something else than the original, with both outputs.
    fn difference(&self, seeds: u64) -> Option<String> {
        (0..self.programs).find_map(|program| {
            let expected = self.run("original", program, 0).expect("the original program ends");
            (0..seeds).find_map(|seed| {
                let found = self.run("rewritten", program, seed);
                (found.as_ref() != Some(&expected)).then(|| {
                    let (batch, folder) = (self.seed, self.folder.display());
                    format!(
                        "batch {batch} in {folder}, program {program}, seed {seed}:\n{found:?}\n\
                         instead of\n{expected}\n\
                         (again: COREBEAT_BATCH={batch} cargo test --test generated)"
                    )
                })
            })
        })
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::fs::remove_dir_all(&self.folder).ok();
        }
    }
}

/// Arguments of the compiler for the runtime that reverses the order.
fn reversing(test: &str) -> Vec<String> {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("reversing").join(test);
    std::fs::create_dir_all(&out).unwrap();
    let status = Command::new("rustc")
        .args(["--edition=2024", "-Awarnings", "--crate-type=lib", "--out-dir"])
        .arg(&out)
        .arg(folder().join("tests/runtime/corebeat_future.rs"))
        .status();
    assert!(status.unwrap().success());
    vec!["--extern=corebeat_future".into(), format!("-L{}", out.display())]
}

/// Arguments of the compiler for corebeat-future, which this function builds.
fn real() -> Vec<String> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("runtime");
    let status = Command::new("cargo")
        .args(["build", "--locked", "-p", "corebeat-future", "--target-dir"])
        .arg(&target)
        .current_dir(folder().join("../../.."))
        .status();
    assert!(status.unwrap().success());
    let debug = target.join("debug");
    vec![
        format!("--extern=corebeat_future={}/libcorebeat_future.rlib", debug.display()),
        format!("-Ldependency={}/deps", debug.display()),
    ]
}

/// The batches of this run.
fn batches(last: u64) -> std::ops::RangeInclusive<u64> {
    match std::env::var("COREBEAT_BATCH") {
        Ok(seed) => {
            let seed = seed.parse().expect("COREBEAT_BATCH is the number of a batch");
            seed..=seed
        }
        Err(_) => 1..=last,
    }
}

#[test]
fn generated_programs_behave_as_before() {
    let is_soak = std::env::var_os("COREBEAT_SOAK").is_some();
    let (runtime, last, seeds) =
        if is_soak { (real(), BATCHES, SEEDS) } else { (reversing("sound"), 1, 1) };
    let mut edits = 0;
    for seed in batches(last) {
        let batch = Batch::new("sound", seed, BATCH, None);
        let (_, count) = batch.rewritten(None);
        edits += count;
        batch.compile("original", &[]);
        batch.compile("rewritten", &runtime);
        if let Some(difference) = batch.difference(seeds) {
            panic!("{difference}");
        }
        if is_soak {
            println!("batch {seed}: {BATCH} programs, {count} edits, {seeds} seeds");
        }
    }
    assert!(edits > 0, "no program was rewritten");
}

#[cfg(feature = "fault")]
#[test]
fn generated_programs_detect_planted_faults() {
    // The programs of four batches with one of the other faults are not rewritten, because other
    // rules refuse them, or print the same: after a panic, only its message is compared. The
    // programs in `tests/ui` have all faults.
    let faults = ["static"];
    let runtime = reversing("faults");
    let is_found = |fault: &&str| {
        batches(FAULT_BATCHES).any(|seed| {
            let batch = Batch::new(fault, seed, FAULT_BATCH, Some(fault));
            batch.rewritten(Some(fault));
            batch.compile("original", &[]);
            batch.compile("rewritten", &runtime);
            batch.difference(1).is_some()
        })
    };
    let missed: Vec<&str> = faults.into_iter().filter(|fault| !is_found(fault)).collect();
    assert!(missed.is_empty(), "no generated program detects these faults: {missed:?}");
}
