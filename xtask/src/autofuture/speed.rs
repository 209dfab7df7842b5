//! `cargo xtask autofuture --speed`: the time of sequential programs, of what `cargo autofuture`
//! makes of them, and of what people make of them.
//!
//! Each folder of [`PROGRAMS`] has a sequential program, `main.rs`, and patches with the changes
//! that an expert makes by hand: with rayon, and with threads of the standard library. All versions
//! run in turns, in one run of this command, and must have equal outputs. A figure is the ratio of
//! the sequential time and the time of a version in the same round; the median of the rounds is
//! printed with the least and the greatest one.

use super::limited;
use crate::effect;
use crate::step::run_cargo;
use crate::tool::output;
use crate::workspace::{Workspace, cargo};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The folder of the programs.
const FOLDER: &str = "bench/programs/autofuture";

/// A program, and the argument for which it runs a few milliseconds, to compare outputs only.
const PROGRAMS: [(&str, &str); 10] = [
    ("merge_sort", "3000"),
    ("matrix", "40"),
    ("blur", "60"),
    ("bodies", "300"),
    ("compress", "300000"),
    ("fib", "22"),
    ("queens", "8"),
    ("ray_tracer", "60"),
    ("site", "60"),
    ("expressions", "2000"),
];

/// The programs of the paper, for which the share of the gain by hand is a goal.
const OF_THE_PAPER: [&str; 2] = ["merge_sort", "matrix"];

/// Rounds of a measurement, an odd number.
const ROUNDS: usize = 7;
/// Rounds in which the analysis is timed, an odd number.
const CHECKS: usize = 3;
/// Threads of the measurement.
const THREADS: [&str; 2] = ["1", "2"];

/// Options of the compiler for all versions. Without them, the place of a loop in memory differs
/// between versions: `merge_sort` took 22% longer where its inner loop crossed two cache lines.
const ALIGNED: &str = "-C llvm-args=-align-loops=64";

const RAYON: &str = "rayon = \"=1.12.0\"\n";

/// A version of a program.
#[derive(Clone, Copy, PartialEq)]
enum Version {
    Sequential,
    /// The result of `cargo autofuture --apply`.
    Ours,
    Rayon,
    /// With threads of the standard library.
    Hand,
}

impl Version {
    const ALL: [Version; 4] = [Version::Sequential, Version::Ours, Version::Rayon, Version::Hand];

    fn name(self) -> &'static str {
        match self {
            Version::Sequential => "sequential",
            Version::Ours => "ours",
            Version::Rayon => "rayon",
            Version::Hand => "hand",
        }
    }

    /// The variable that sets the number of threads.
    fn variable(self) -> Option<&'static str> {
        match self {
            Version::Sequential => None,
            Version::Ours => Some("COREBEAT_FUTURE_THREADS"),
            Version::Rayon => Some("RAYON_NUM_THREADS"),
            Version::Hand => Some("HAND_THREADS"),
        }
    }
}

/// A program that runs with a number of threads.
struct Subject {
    version: Version,
    threads: Option<&'static str>,
    path: PathBuf,
    /// Seconds in each round.
    times: Vec<f64>,
}

impl Subject {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if let (Some(variable), Some(threads)) = (self.version.variable(), self.threads) {
            command.env(variable, threads);
        }
        command.stdin(Stdio::null());
        command
    }

    fn run(&mut self) -> Result<(), String> {
        let mut command = self.command();
        command.stdout(Stdio::null());
        let begin = Instant::now();
        let status = command.status().map_err(|e| format!("{}: {e}", self.path.display()))?;
        self.times.push(begin.elapsed().as_secs_f64());
        if status.success() { Ok(()) } else { Err(format!("{}: {status}", self.path.display())) }
    }
}

/// Median, least and greatest value.
#[derive(Clone, Copy)]
pub(super) struct Spread {
    pub(super) median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        Spread {
            median: values[values.len() / 2],
            least: values[0],
            most: values[values.len() - 1],
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median, self.least, self.most)
    }
}

/// A program whose versions are built.
struct Built {
    name: &'static str,
    quick: &'static str,
    candidates: String,
    subjects: Vec<Subject>,
}

/// The folders of this evaluation.
struct Place {
    programs: PathBuf,
    folder: PathBuf,
    /// The target folder of all versions.
    target: PathBuf,
    autofuture: PathBuf,
}

/// Builds all programs, or those with these names, compares their outputs, and measures them
/// unless `is_quick`.
pub(crate) fn run(names: &[&str], is_quick: bool) -> Result<(), String> {
    let workspace = Workspace::read()?;
    if let Err(missing) = effect::nightly(&workspace, "rustc-dev")? {
        println!("skipped: {missing}");
        return Ok(());
    }
    let unknown = names.iter().find(|name| !PROGRAMS.iter().any(|(known, _)| known == *name));
    if let Some(name) = unknown {
        return Err(format!("there is no program '{name}' in {FOLDER}"));
    }
    let folder = workspace.target_directory.join("autofuture-evaluation").join("speed");
    let place = Place {
        programs: workspace.root.join(FOLDER),
        target: folder.join("target"),
        folder,
        autofuture: workspace.target_directory.join("debug/cargo-autofuture"),
    };
    run_cargo(&["build", "--quiet", "-p", "cargo-autofuture"], &[])?;
    let mut built = Vec::new();
    for (name, quick) in PROGRAMS {
        if names.is_empty() || names.contains(&name) {
            built.push(build(&place, name, quick)?);
        }
    }
    for program in &built {
        compare(program, &[program.quick])?;
        if !is_quick {
            compare(program, &[])?;
        }
    }
    println!("All versions of {} programs have equal outputs.", built.len());
    if is_quick {
        return Ok(());
    }
    for _ in 0..ROUNDS {
        for program in &mut built {
            program.subjects.iter_mut().try_for_each(Subject::run)?;
        }
    }
    report(&built);
    peers(&place, names)?;
    let mut times = Vec::new();
    for program in &built {
        times.push((program.name, analysis(&place, program.name)?));
    }
    report_analysis(&times);
    Ok(())
}

/// Writes and builds the versions of a program.
fn build(place: &Place, name: &'static str, quick: &'static str) -> Result<Built, String> {
    let source = place.programs.join(name);
    let mut candidates = String::new();
    let mut subjects = Vec::new();
    for version in Version::ALL {
        let patch = source.join(format!("{}.patch", version.name()));
        if matches!(version, Version::Rayon | Version::Hand) && !patch.exists() {
            continue;
        }
        let own = format!("{name}-{}", version.name());
        let package = place.folder.join(&own);
        write_package(&package, &own, &source.join("main.rs"), version)?;
        match version {
            Version::Sequential => {}
            Version::Ours => candidates = apply(place, &package)?,
            Version::Rayon | Version::Hand => {
                let file = package.join("src/main.rs");
                output(Command::new("patch").arg("--quiet").arg(file).arg(&patch))?;
            }
        }
        let mut command = Command::new(cargo());
        command
            .args(["build", "--release", "--quiet"])
            .current_dir(&package)
            .env("CARGO_TARGET_DIR", &place.target)
            .env("RUSTFLAGS", ALIGNED);
        match limited(&mut command)? {
            (true, _) => {}
            (false, text) => return Err(format!("{own} does not compile: {text}")),
        }
        let path = place.target.join("release").join(&own);
        let threads = match version {
            Version::Sequential => vec![None],
            _ => THREADS.map(Some).to_vec(),
        };
        let subject = |threads| Subject { version, threads, path: path.clone(), times: Vec::new() };
        subjects.extend(threads.into_iter().map(subject));
    }
    Ok(Built { name, quick, candidates, subjects })
}

/// A package with one source file, in a workspace of its own.
fn write_package(
    package: &Path,
    name: &str,
    source: &Path,
    version: Version,
) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", package.display());
    let _ = std::fs::remove_dir_all(package);
    std::fs::create_dir_all(package.join("src")).map_err(failed)?;
    std::fs::copy(source, package.join("src/main.rs")).map_err(failed)?;
    let rayon = if version == Version::Rayon { RAYON } else { "" };
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\n{rayon}"
    );
    std::fs::write(package.join("Cargo.toml"), manifest).map_err(failed)
}

/// Rewrites a package, and returns the number of candidates.
fn apply(place: &Place, package: &Path) -> Result<String, String> {
    let mut command = Command::new(&place.autofuture);
    command
        .args(["--apply", "--allow-dirty", "--candidates", "--manifest-path"])
        .arg(package.join("Cargo.toml"))
        .env_remove("CARGO_TARGET_DIR")
        .env("CARGO_BUILD_TARGET_DIR", &place.target);
    let (is_ok, text) = limited(&mut command)?;
    if !is_ok {
        return Err(format!("{}: {text}", package.display()));
    }
    let counts = text.lines().find_map(|line| line.split_once(" candidates, "));
    Ok(counts.map_or("0", |(candidates, _)| candidates).to_owned())
}

/// Compares the outputs of all versions.
fn compare(program: &Built, args: &[&str]) -> Result<(), String> {
    let mut expected: Option<Vec<u8>> = None;
    for subject in &program.subjects {
        let result = subject.command().args(args).output();
        let result = result.map_err(|e| format!("{}: {e}", subject.path.display()))?;
        if !result.status.success() {
            return Err(format!("{}: {}", subject.path.display(), result.status));
        }
        match &expected {
            None => expected = Some(result.stdout),
            Some(expected) if *expected == result.stdout => {}
            Some(_) => {
                let threads = subject.threads.unwrap_or("1");
                let version = subject.version.name();
                return Err(format!(
                    "{}: the output of {version} with {threads} threads is another one",
                    program.name
                ));
            }
        }
    }
    Ok(())
}

impl Built {
    fn subject(&self, version: Version, threads: &str) -> Option<&Subject> {
        let is_it = |s: &&Subject| s.version == version && s.threads.is_none_or(|t| t == threads);
        self.subjects.iter().find(is_it)
    }

    /// How many times as fast as the sequential program, in the same round.
    fn ratio(&self, version: Version, threads: &str) -> Option<Spread> {
        let (sequential, other) =
            (self.subject(Version::Sequential, "1")?, self.subject(version, threads)?);
        Some(Spread::of(sequential.times.iter().zip(&other.times).map(|(a, b)| a / b)))
    }

    /// The time that the rewrite saves, as a part of what the version by hand saves.
    fn share(&self) -> Option<f64> {
        let saved = |version| self.ratio(version, "2").map(|ratio| 1.0 - 1.0 / ratio.median);
        Some(saved(Version::Ours)? / saved(Version::Hand)?)
    }
}

fn report(built: &[Built]) {
    println!(
        "\nSpeed relative to the sequential program: medians of {ROUNDS} rounds (least to most)."
    );
    println!(
        "\n| program | s | sites | ours, 1 thread | ours, 2 | rayon, 1 | rayon, 2 | by hand, 1 | \
         by hand, 2 | saved of by hand |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for program in built {
        let times = &program.subjects[0].times;
        let seconds = Spread::of(times.iter().copied());
        print!("| {} | {:.2} | {} |", program.name, seconds.median, program.candidates);
        for version in [Version::Ours, Version::Rayon, Version::Hand] {
            for threads in THREADS {
                match program.ratio(version, threads) {
                    Some(ratio) => print!(" {ratio} |"),
                    None => print!(" |"),
                }
            }
        }
        match program.share() {
            Some(share) => println!(" {:.0} % |", 100.0 * share),
            None => println!(" |"),
        }
    }
    println!();
    let median = |program: &Built, version, threads| -> Option<f64> {
        program.ratio(version, threads).map(|ratio| ratio.median)
    };
    let with_hand = built.iter().filter(|program| program.share().is_some());
    let pairs: Vec<(f64, f64)> = with_hand
        .filter_map(|p| Some((median(p, Version::Ours, "2")?, median(p, Version::Hand, "2")?)))
        .collect();
    if !pairs.is_empty() {
        let mean = |value: fn(&(f64, f64)) -> f64| {
            pairs.iter().map(value).sum::<f64>() / pairs.len() as f64
        };
        let (ours, hand) = (mean(|pair| pair.0), mean(|pair| pair.1));
        println!("mean on 2 threads: ours {ours:.2}, by hand {hand:.2} (goal for ours: 1.60)");
    }
    for program in built.iter().filter(|program| OF_THE_PAPER.contains(&program.name)) {
        if let Some(share) = program.share() {
            println!("{}: {:.0} % of the time saved (goal: 90 %)", program.name, 100.0 * share);
        }
    }
    for threads in THREADS {
        let slowest = built
            .iter()
            .filter_map(|program| Some((program.name, median(program, Version::Ours, threads)?)))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((name, ratio)) = slowest {
            println!("slowest on {threads} threads: {name}, {ratio:.2} (goal: 0.98)");
        }
    }
}

// ---- the time of the analysis

/// Seconds of `cargo check` and of the list of candidates, in new target folders.
struct Analysis {
    check: Spread,
    list: Spread,
}

fn analysis(place: &Place, name: &str) -> Result<Analysis, String> {
    let package = place.folder.join(format!("{name}-sequential"));
    let target = place.folder.join("new-target");
    let timed = |command: &mut Command| -> Result<f64, String> {
        let _ = std::fs::remove_dir_all(&target);
        let begin = Instant::now();
        command.env_remove("CARGO_TARGET_DIR").env("CARGO_BUILD_TARGET_DIR", &target);
        let (is_ok, text) = limited(command)?;
        if is_ok { Ok(begin.elapsed().as_secs_f64()) } else { Err(format!("{name}: {text}")) }
    };
    let (mut check, mut list) = (Vec::new(), Vec::new());
    for _ in 0..CHECKS {
        check.push(timed(Command::new(cargo()).args(["check", "--quiet"]).current_dir(&package))?);
        let manifest = package.join("Cargo.toml");
        list.push(timed(Command::new(&place.autofuture).arg("--manifest-path").arg(manifest))?);
    }
    let _ = std::fs::remove_dir_all(&target);
    Ok(Analysis { check: Spread::of(check.into_iter()), list: Spread::of(list.into_iter()) })
}

fn report_analysis(times: &[(&str, Analysis)]) {
    println!("\nTime of the analysis, in seconds: medians of {CHECKS} rounds (least to most).\n");
    println!("| program | cargo check | cargo autofuture | ratio (goal: 3) |");
    println!("| --- | --- | --- | --- |");
    for (name, Analysis { check, list }) in times {
        println!("| {name} | {check} | {list} | {:.1} |", list.median / check.median);
    }
}

// ---- other languages

/// Compilers that find parallel loops in C, with their arguments without and with that.
const COMPILERS: [(&str, &[&str], &[&str]); 2] = [
    ("gcc", &["-O3"], &["-O3", "-ftree-parallelize-loops=2", "-floop-parallelize-all"]),
    ("clang", &["-O3"], &["-O3", "-mllvm", "-polly", "-mllvm", "-polly-parallel", "-lgomp"]),
];

/// Java with sequential and parallel streams.
const JAVA: &str = "java, streams";
/// The main classes of the programs of the paper.
const CLASSES: [&str; 2] = ["MergeSort", "Matrix"];
/// Arguments of the virtual machine: a collector without threads of its own, and one thread of
/// streams beside the main thread.
const MACHINE: [&str; 2] =
    ["-XX:+UseSerialGC", "-Djava.util.concurrent.ForkJoinPool.common.parallelism=1"];

/// A program and its arguments.
type Line = Vec<String>;

/// Measures versions of the paper's programs in other languages: those of compilers of C that
/// search for parallel loops, and streams of Java.
fn peers(place: &Place, names: &[&str]) -> Result<(), String> {
    println!("\nOther languages, on 2 threads, relative to the same without parallelism:\n");
    println!("| program | peer | s | speed |");
    println!("| --- | --- | --- | --- |");
    for (name, class) in OF_THE_PAPER.into_iter().zip(CLASSES) {
        if !names.is_empty() && !names.contains(&name) {
            continue;
        }
        let c = COMPILERS.map(|compiler| (compiler.0, in_c(place, name, compiler)));
        for (peer, lines) in c.into_iter().chain([(JAVA, in_java(place, name, class))]) {
            let Some(lines) = lines else {
                println!("| {name} | {peer}: not here, or without this option | | |");
                continue;
            };
            let (time, ratio) =
                compare_lines(&lines).map_err(|e| format!("{name}, {peer}: {e}"))?;
            println!("| {name} | {peer} | {:.2} | {ratio} |", time.median);
        }
    }
    Ok(())
}

/// The program in C without and with the search, if there is this compiler.
fn in_c(
    place: &Place,
    name: &str,
    (compiler, plain, parallel): (&str, &[&str], &[&str]),
) -> Option<[Line; 2]> {
    let source = place.programs.join(name).join("main.c");
    let build = |kind: &str, args: &[&str]| {
        let path = place.folder.join(format!("{name}-{compiler}-{kind}"));
        let mut command = Command::new(compiler);
        command.arg("-o").arg(&path).arg(&source).args(args);
        matches!(limited(&mut command), Ok((true, _))).then(|| vec![path.display().to_string()])
    };
    Some([build("plain", plain)?, build("parallel", parallel)?])
}

/// The program in Java with sequential and parallel streams, if there is a compiler of Java.
fn in_java(place: &Place, name: &str, class: &str) -> Option<[Line; 2]> {
    let source = place.programs.join(name).join("main.java");
    let classes = place.folder.join(format!("{name}-java"));
    let mut command = Command::new("javac");
    command.arg("-d").arg(&classes).arg(&source);
    if !matches!(limited(&mut command), Ok((true, _))) {
        return None;
    }
    let classes = classes.display().to_string();
    let line = |way: &str| {
        let rest = ["-cp", &classes, class, way];
        ["java"].into_iter().chain(MACHINE).chain(rest).map(String::from).collect()
    };
    Some([line("sequential"), line("parallel")])
}

/// Runs two commands in turns. Returns the time of the first one, and the speed of the second one
/// relative to it in the same round. Fails if their outputs differ.
fn compare_lines([plain, parallel]: &[Line; 2]) -> Result<(Spread, Spread), String> {
    let timed = |line: &Line| -> Result<(f64, String), String> {
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).env("OMP_NUM_THREADS", "2");
        let begin = Instant::now();
        let text = output(&mut command)?;
        Ok((begin.elapsed().as_secs_f64(), text))
    };
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (first, second) = (timed(plain)?, timed(parallel)?);
        if first.1 != second.1 {
            return Err("the outputs differ".into());
        }
        times.push(first.0);
        ratios.push(first.0 / second.0);
    }
    Ok((Spread::of(times.into_iter()), Spread::of(ratios.into_iter())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(version: Version, threads: Option<&'static str>, times: &[f64]) -> Subject {
        Subject { version, threads, path: PathBuf::new(), times: times.to_vec() }
    }

    #[test]
    fn ratios_are_those_of_each_round() {
        let built = Built {
            name: "a",
            quick: "1",
            candidates: "1".into(),
            subjects: vec![
                subject(Version::Sequential, None, &[2.0, 8.0, 2.0]),
                subject(Version::Ours, Some("1"), &[2.0, 8.0, 4.0]),
                subject(Version::Ours, Some("2"), &[1.0, 4.0, 2.0]),
                subject(Version::Hand, Some("2"), &[1.0, 4.0, 1.0]),
            ],
        };
        let ratio = built.ratio(Version::Ours, "2").unwrap();
        assert_eq!((ratio.least, ratio.median, ratio.most), (1.0, 2.0, 2.0));
        assert_eq!(built.ratio(Version::Ours, "1").unwrap().to_string(), "1.00 (0.50 to 1.00)");
        assert_eq!(built.share(), Some(1.0));
        assert!(built.ratio(Version::Rayon, "2").is_none());
    }

    #[test]
    fn each_program_has_its_files() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(FOLDER);
        let mut names: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let mut known = PROGRAMS.map(|(name, _)| name.to_owned()).to_vec();
        known.sort();
        assert_eq!(names, known);
        for name in names {
            assert!(folder.join(&name).join("main.rs").exists(), "{name}");
        }
        for (name, class) in OF_THE_PAPER.into_iter().zip(CLASSES) {
            assert!(folder.join(name).join("main.c").exists(), "{name}");
            let java = std::fs::read_to_string(folder.join(name).join("main.java")).unwrap();
            assert!(java.contains(&format!("final class {class} {{")), "{name}");
        }
    }
}
