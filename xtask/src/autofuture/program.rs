//! `cargo xtask autofuture --programs`: rewrites programs of other people, and compares their
//! outputs and times before and after.
//!
//! For each program: its sources and those of its own libraries from the registry, a build, their
//! tests, the list of candidates with the share of time of each place, the rewrite, and another
//! build. The tests run again, on the default number of threads and with orders of the closures
//! that are drawn from seeds, and must have the same results. Both programs run with equal inputs,
//! which seeds determine: on 1, 2 and 8 threads, and with an order of the closures that is drawn
//! from the seed. Standard output, the file that the program writes, and the exit status must be
//! equal, byte by byte. Prints one row of a table for each program, and writes the list of its
//! candidates and rejections to `target/autofuture-evaluation/programs/NAME.list`.
//!
//! A library is rewritten under the promises of `cargo autofuture --assume` only if no source file
//! of the program and of its dependencies contains a word by which a promise could be broken
//! ([`HOOKS`], [`CATCHES`]).

use super::input::{self, Kind};
use super::speed::Spread;
use super::{limited, writable_copy};
use crate::effect;
use crate::step::run_cargo;
use crate::tool::output;
use crate::workspace::{Workspace, cargo};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A program of the registry.
struct Program {
    package: &'static str,
    version: &'static str,
    what: &'static str,
    binary: &'static str,
    /// Arguments of cargo that select its features.
    features: &'static [&'static str],
    /// Its own libraries, which are analysed and rewritten with it.
    libraries: &'static [&'static str],
    kind: Kind,
    /// Sizes of the input: for comparisons, and for times.
    sizes: [u64; 2],
    /// With [`INPUT`], [`OTHER`] and [`OUTPUT`]; without the first, the input is standard input.
    arguments: &'static [&'static str],
    /// Lines of standard output with this prefix contain times, and are not compared.
    comment: Option<&'static str>,
}

/// The input file, a second one from the next seed, and the file that the program writes.
const INPUT: &str = "INPUT";
const OTHER: &str = "OTHER";
const OUTPUT: &str = "OUTPUT";

const fn program(
    [package, version, what, binary]: [&'static str; 4],
    (kind, sizes): (Kind, [u64; 2]),
    arguments: &'static [&'static str],
) -> Program {
    let (features, libraries): (&[&str], &[&str]) = (&[], &[]);
    let comment = None;
    Program { package, version, what, binary, features, libraries, kind, sizes, arguments, comment }
}

const PROGRAMS: [Program; 13] = [
    Program {
        features: &["--no-default-features"],
        ..program(
            ["artem", "3.0.0", "image to text", "artem"],
            (Kind::Picture, [60, 1200]),
            &["--size", "300", INPUT],
        )
    },
    Program {
        features: &["--no-default-features"],
        ..program(["csview", "1.3.4", "tables", "csview"], (Kind::Table, [200, 100_000]), &[INPUT])
    },
    Program {
        // Without its feature of threads, dssim-core 3.5.1 does not compile.
        libraries: &["dssim-core"],
        ..program(
            ["dssim", "3.5.1", "image comparison", "dssim"],
            (Kind::Picture, [60, 700]),
            &[INPUT, OTHER],
        )
    },
    Program {
        features: &["--no-default-features"],
        libraries: &["fend-core"],
        ..program(
            ["fend", "1.5.9", "calculator", "fend"],
            (Kind::Expressions, [3, 100]),
            &["--file", INPUT],
        )
    },
    Program {
        libraries: &["grass_compiler"],
        ..program(
            ["grass", "0.13.4", "style sheets", "grass"],
            (Kind::Stylesheet, [6, 1500]),
            &[INPUT],
        )
    },
    program(
        ["kmeans_colors", "0.7.1", "clustering", "kmeans_colors"],
        (Kind::Picture, [40, 500]),
        &["-i", INPUT, "-o", OUTPUT, "--seed", "7"],
    ),
    Program {
        features: &["--no-default-features", "--features", "binary"],
        ..program(
            ["oxipng", "10.2.1", "image compression", "oxipng"],
            (Kind::Picture, [40, 300]),
            &["--opt", "3", "--out", OUTPUT, INPUT],
        )
    },
    program(
        ["pulldown-cmark", "0.13.6", "Markdown", "pulldown-cmark"],
        (Kind::Markdown, [40, 100_000]),
        &["--enable-tables"],
    ),
    Program {
        libraries: &["usvg", "tiny-skia"],
        ..program(
            ["resvg", "0.49.0", "vector graphics", "resvg"],
            (Kind::Vector, [12, 400]),
            &[INPUT, OUTPUT],
        )
    },
    Program {
        comment: Some("c "),
        ..program(
            ["splr", "0.17.2", "SAT solver", "splr"],
            (Kind::Clauses, [60, 200]),
            &["-q", "-r", "-", INPUT],
        )
    },
    Program {
        libraries: &["svgbob"],
        ..program(
            ["svgbob_cli", "0.7.6", "diagrams", "svgbob_cli"],
            (Kind::Drawing, [3, 60]),
            &[INPUT],
        )
    },
    Program {
        libraries: &["varisat"],
        comment: Some("c "),
        ..program(
            ["varisat-cli", "0.2.1", "SAT solver", "varisat"],
            (Kind::Clauses, [60, 200]),
            &[INPUT],
        )
    },
    program(["zopfli", "0.8.4", "compression", "zopfli"], (Kind::Prose, [100, 20_000]), &[INPUT]),
];

/// Words of sources that may set a hook of panics.
const HOOKS: [&str; 2] = ["set_hook", "take_hook"];
/// Words of sources that may catch a panic, also at the end of a thread.
const CATCHES: [&str; 5] =
    ["catch_unwind", "thread::spawn", "thread::scope", "thread::Builder", "panic::catch"];

/// Rounds of a measurement, an odd number.
const ROUNDS: usize = 7;
const THREADS: [&str; 3] = ["1", "2", "8"];
/// Longest time of one run of a program, in seconds.
const RUN_S: &str = "120";
/// Most seeds of the schedules of the rewritten tests.
const TESTED: u64 = 3;
/// Seeds without an option.
pub(crate) const SEEDS: u64 = 3;

/// The folders of this evaluation.
struct Place {
    folder: PathBuf,
    target: PathBuf,
    /// The target folder of profiled programs.
    profiled: PathBuf,
    autofuture: PathBuf,
}

/// The results for a program.
#[derive(Default)]
struct Row {
    /// Candidates without promises, and with those that hold.
    exact: usize,
    candidates: usize,
    rejected: usize,
    promises: Vec<&'static str>,
    /// The tests of the program and its libraries, and how they are after the rewrite.
    tests: String,
    /// The most frequent reason.
    frequent: String,
    /// The rejected place with the greatest share of time, with its reason.
    hottest: String,
    outputs: String,
    has_changed: bool,
    seconds: Option<Spread>,
    /// Speed after the rewrite on 1 and 2 threads.
    speeds: Vec<Spread>,
}

/// Evaluates all programs, or those with these names, with inputs from so many seeds.
pub(crate) fn run(names: &[&str], seeds: u64) -> Result<(), String> {
    let workspace = Workspace::read()?;
    if let Err(missing) = effect::nightly(&workspace, "rustc-dev")? {
        println!("skipped: {missing}");
        return Ok(());
    }
    if let Some(name) = names.iter().find(|name| PROGRAMS.iter().all(|p| p.package != **name)) {
        return Err(format!("there is no program '{name}' in the list"));
    }
    let folder = workspace.target_directory.join("autofuture-evaluation").join("programs");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    run_cargo(&["build", "--quiet", "-p", "cargo-autofuture"], &[])?;
    let target = folder.join("target");
    let place = Place {
        profiled: target.join("autofuture").join("profile"),
        target,
        folder,
        autofuture: workspace.target_directory.join("debug/cargo-autofuture"),
    };
    println!(
        "{seeds} seeds; speeds are medians of {ROUNDS} rounds of interleaved runs (least to most)\n"
    );
    println!(
        "| program | what | candidates | promised | rejected | most frequent reason | \
         hottest rejection | tests | outputs | s | 1 thread | 2 threads |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut changed = Vec::new();
    for program in PROGRAMS.iter().filter(|p| names.is_empty() || names.contains(&p.package)) {
        let row = evaluate(&place, program, seeds);
        if row.as_ref().is_ok_and(|row| row.has_changed) {
            changed.push(program.package);
        }
        let cells = match row {
            Ok(row) => cells(&row),
            Err(why) => format!(" {} | | | | | | | | | |", cell(why.trim())),
        };
        println!("| {} {} | {} |{cells}", program.package, program.version, program.what);
    }
    if changed.is_empty() {
        return Ok(());
    }
    Err(format!("the outputs or tests of these programs changed: {}", changed.join(", ")))
}

/// The cells of a row behind the names.
fn cells(row: &Row) -> String {
    let promises = match row.promises.len() {
        0 => "no".to_owned(),
        _ => format!("{} ({})", row.candidates, row.promises.join(", ")),
    };
    let seconds = row.seconds.map_or(String::new(), |spread| format!("{:.2}", spread.median));
    let mut cells = vec![
        row.exact.to_string(),
        promises,
        row.rejected.to_string(),
        cell(&row.frequent),
        cell(&row.hottest),
        cell(&row.tests),
        cell(&row.outputs),
        seconds,
    ];
    cells.extend(row.speeds.iter().map(Spread::to_string));
    cells.resize(10, String::new());
    format!(" {} |", cells.join(" | "))
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.lines().next().unwrap_or("").replace('|', "\\|")
}

fn evaluate(place: &Place, program: &Program, seeds: u64) -> Result<Row, String> {
    let sources = fetch(place, program)?;
    let before = build(place, program, &sources, "before")?;
    let timed = place.inputs(program, 0, program.sizes[1])?;
    // A program whose output differs between two runs of its own cannot be compared.
    if place.result(program, &before, &timed, &[])?
        != place.result(program, &before, &timed, &[])?
    {
        return Err("two runs of the original program have different outputs".into());
    }
    let mut row = Row::default();
    let exact = list(place, program, &sources.root, &[], None)?;
    row.exact = candidates(&exact).0;
    row.promises = sources.promises.clone();
    let assumed: Vec<&str> = row.promises.iter().flat_map(|name| ["--assume", name]).collect();
    let ranked = list(place, program, &sources.root, &assumed, Some(&timed))?;
    let file = place.folder.join(format!("{}.list", program.package));
    // The output of the program comes before its profile.
    let ranked = &ranked[ranked.find(SHARE).map_or(0, |at| line_start(&ranked, at))..];
    std::fs::write(&file, ranked).map_err(|e| format!("{}: {e}", file.display()))?;
    row.frequent = frequent(ranked);
    row.hottest = hottest(ranked);
    (row.candidates, row.rejected) = planned(ranked);
    if row.candidates == 0 {
        row.tests = "not run".into();
        row.outputs = "not rewritten".into();
        return Ok(row);
    }
    // Tests that do not compile, or do not pass before, are no reason to leave the program out.
    let tests_before = steady(|| tests(place, program, &sources, None));
    row.tests = tests_before.as_ref().map_or_else(String::clone, |results| super::summary(results));
    let apply = [&["--apply", "--allow-dirty"], &assumed[..]].concat();
    match list(place, program, &sources.root, &apply, None) {
        Ok(applied) => (row.candidates, row.rejected) = candidates(&applied),
        Err(why) => {
            row.outputs = format!("not rewritten: {}", why.trim_start_matches("error: "));
            return Ok(row);
        }
    }
    let after = match build(place, program, &sources, "after") {
        Ok(after) => after,
        Err(why) => {
            row.outputs = format!("**{why}** after");
            row.has_changed = true;
            return Ok(row);
        }
    };
    if let Ok(expected) = &tests_before {
        let mut ways = [None].into_iter().chain((0..seeds.min(TESTED)).map(Some));
        let found = ways.find_map(|way| {
            let difference = difference(expected, tests(place, program, &sources, way))?;
            let way = way.map_or("without a seed".into(), |seed| format!("for seed {seed}"));
            Some(format!("**{difference}** after, {way}"))
        });
        row.has_changed = found.is_some();
        row.tests += &format!(", {}", found.unwrap_or("the same after".into()));
    }
    let compared = compare(place, program, [&before, &after], seeds)?;
    row.has_changed |= compared.is_err();
    row.outputs = compared.map_or_else(|why| why, |runs| format!("equal in {runs} runs"));
    measure(place, program, [&before, &after], &timed, &mut row)?;
    Ok(row)
}

/// How the results of tests after the rewrite differ from those before, if they do.
fn difference(before: &[String], after: Result<Vec<String>, String>) -> Option<String> {
    match after {
        Ok(after) if after == before => None,
        Ok(_) => Some("different".into()),
        Err(why) => Some(why),
    }
}

/// Runs both programs with inputs from seeds. The inner result has the number of runs, or the first
/// run of the rewritten program that differs or fails.
fn compare(
    place: &Place,
    program: &Program,
    [before, after]: [&Path; 2],
    seeds: u64,
) -> Result<Result<usize, String>, String> {
    let mut runs = 0;
    for seed in 0..seeds {
        let files = place.inputs(program, seed, program.sizes[0])?;
        let expected = place.result(program, before, &files, &[])?;
        let number = seed.to_string();
        let ways = THREADS.map(|threads| ("COREBEAT_FUTURE_THREADS", threads));
        for (name, value) in ways.into_iter().chain([("COREBEAT_FUTURE_SEED", number.as_str())]) {
            runs += 1;
            let why = match place.result(program, after, &files, &[(name, value)]) {
                Ok(shown) if shown == expected => continue,
                Ok(_) => "different".into(),
                Err(why) => why,
            };
            return Ok(Err(format!("**{why}** for seed {seed}, {name}={value}")));
        }
    }
    Ok(Ok(runs))
}

// ---- sources

/// The sources of a program, in a workspace of its own.
struct Sources {
    root: PathBuf,
    promises: Vec<&'static str>,
}

fn fetch(place: &Place, program: &Program) -> Result<Sources, String> {
    let root = super::copy(&place.folder, program.package, program.version)?;
    // With the newest versions of all dependencies, most are equal, and are built once.
    let _ = std::fs::remove_file(root.join("Cargo.lock"));
    let metadata = metadata(&root)?;
    let mut patches = String::new();
    for library in program.libraries {
        let package = packages(&metadata).find(|package| package["name"] == *library);
        let manifest = package.and_then(|package| package["manifest_path"].as_str());
        let folder = manifest.and_then(|path| Path::new(path).parent());
        let folder = folder.ok_or_else(|| format!("{library} is no dependency"))?;
        writable_copy(folder, &root.join("libraries").join(library))?;
        patches.push_str(&format!("{library} = {{ path = \"libraries/{library}\" }}\n"));
    }
    let manifest = root.join("Cargo.toml");
    let failed = |e: std::io::Error| format!("{}: {e}", manifest.display());
    let mut text = std::fs::read_to_string(&manifest).map_err(failed)?;
    if !patches.is_empty() {
        text.push_str(&format!("members = [\"libraries/*\"]\n\n[patch.crates-io]\n{patches}"));
    }
    std::fs::write(&manifest, text).map_err(failed)?;
    let words = words(&metadata)?;
    let has_none = |names: &[&str]| names.iter().all(|name| !words.contains(*name));
    let mut promises = Vec::new();
    if has_none(&HOOKS) {
        promises.push("no-panic-hook");
    }
    if has_none(&CATCHES) {
        promises.push("no-catch");
    }
    Ok(Sources { root, promises })
}

fn metadata(root: &Path) -> Result<Value, String> {
    let text = output(Command::new(cargo()).current_dir(root).args([
        "metadata",
        "--format-version",
        "1",
        "--filter-platform",
        "x86_64-unknown-linux-gnu",
    ]))?;
    serde_json::from_str(&text).map_err(|e| format!("cargo metadata: {e}"))
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

/// The words of [`HOOKS`] and [`CATCHES`] in the sources of the program and of the dependencies
/// that are a part of it.
fn words(metadata: &Value) -> Result<HashSet<&'static str>, String> {
    let nodes = metadata["resolve"]["nodes"].as_array().ok_or("cargo metadata has no graph")?;
    let by_id: HashMap<&str, &Value> =
        nodes.iter().filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let is_macro = |package: &Value| {
        let targets = package["targets"].as_array().into_iter().flatten();
        targets.flat_map(|t| t["kind"].as_array().into_iter().flatten()).any(|k| k == "proc-macro")
    };
    let folders: HashMap<&str, PathBuf> = packages(metadata)
        .filter(|package| !is_macro(package))
        .filter_map(|package| {
            let folder = Path::new(package["manifest_path"].as_str()?).parent()?;
            Some((package["id"].as_str()?, folder.join("src")))
        })
        .collect();
    let mut open: Vec<&str> = metadata["resolve"]["root"].as_str().into_iter().collect();
    let mut reached = HashSet::new();
    let mut found = HashSet::new();
    // Each package is visited once.
    while let Some(id) = open.pop() {
        let Some(folder) = folders.get(id).filter(|_| reached.insert(id)) else { continue };
        search(folder, &mut found)?;
        let dependencies = by_id.get(id).and_then(|node| node["deps"].as_array());
        for dependency in dependencies.into_iter().flatten() {
            let kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
            if kinds.into_iter().any(|kind| kind["kind"].is_null()) {
                open.extend(dependency["pkg"].as_str());
            }
        }
    }
    Ok(found)
}

/// Adds the words in the source files of a folder.
fn search(folder: &Path, found: &mut HashSet<&'static str>) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            search(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read(&path).map_err(failed)?;
            let text = String::from_utf8_lossy(&text);
            found.extend(HOOKS.into_iter().chain(CATCHES).filter(|word| text.contains(word)));
        }
    }
    Ok(())
}

/// The results of tests that are equal in two runs.
fn steady(tests: impl Fn() -> Result<Vec<String>, String>) -> Result<Vec<String>, String> {
    let first = tests()?;
    match tests()? == first {
        true => Ok(first),
        false => Err("two runs of the original tests have different results".into()),
    }
}

/// The results of the tests of the program and its libraries, under schedules from a seed.
fn tests(
    place: &Place,
    program: &Program,
    sources: &Sources,
    seed: Option<u64>,
) -> Result<Vec<String>, String> {
    let mut command = Command::new(cargo());
    command
        .args(["test", "--no-fail-fast", "--tests", "--package", program.package])
        .args(program.libraries.iter().flat_map(|library| ["--package", library]))
        .args(program.features)
        .current_dir(&sources.root)
        .env("CARGO_PROFILE_DEV_DEBUG", "none")
        .env("CARGO_TARGET_DIR", place.target.join("tests"));
    if let Some(seed) = seed {
        command.env("COREBEAT_FUTURE_SEED", seed.to_string());
    }
    super::results(limited(&mut command)?)
}

/// Builds a program as `cargo autofuture --profile` does, so that dependencies are built once.
/// Returns the path of a copy, whose name ends with `name`.
fn build(
    place: &Place,
    program: &Program,
    sources: &Sources,
    name: &str,
) -> Result<PathBuf, String> {
    let mut command = Command::new(cargo());
    command
        .args(["build", "--release", "--package", program.package, "--bin", program.binary])
        // The libraries have the features that they have in the analysis and in the profile.
        .args(program.libraries.iter().flat_map(|library| ["--package", library]))
        .args(program.features)
        .current_dir(&sources.root)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only")
        .env("CARGO_PROFILE_RELEASE_STRIP", "none")
        .env("RUSTFLAGS", "-Cforce-frame-pointers=yes")
        .env("CARGO_TARGET_DIR", &place.profiled);
    let (is_ok, text) = limited(&mut command)?;
    if !is_ok {
        let error = text.lines().find(|line| line.starts_with("error"));
        return Err(format!("it does not compile: {}", error.unwrap_or("no message")));
    }
    let copy = place.folder.join(format!("{}-{name}", program.package));
    let built = place.profiled.join("release").join(program.binary);
    std::fs::copy(&built, &copy).map_err(|e| format!("{}: {e}", built.display()))?;
    Ok(copy)
}

// ---- candidates

/// The list of the candidates, by their shares of the time if there are inputs.
fn list(
    place: &Place,
    program: &Program,
    root: &Path,
    more: &[&str],
    profiled: Option<&Files>,
) -> Result<String, String> {
    let mut command = Command::new(&place.autofuture);
    command
        .args(["--package", program.package])
        .args(program.libraries.iter().flat_map(|library| ["--package", library]))
        .args(program.features)
        .args(more)
        .current_dir(root)
        .env_remove("CARGO_TARGET_DIR")
        .env("CARGO_BUILD_TARGET_DIR", &place.target);
    let mut input = Stdio::null();
    if let Some(files) = profiled {
        command.args(["--profile", "--bin", program.binary, "--"]);
        command.args(program.arguments.iter().map(|argument| files.argument(argument)));
        input = files.standard_input(program)?;
    }
    let (is_ok, text) = super::limited_with(&mut command, input)?;
    let _ = profiled.map(|files| std::fs::remove_file(&files.output));
    if is_ok {
        return Ok(text);
    }
    let error = text.lines().rev().find(|line| line.starts_with("error"));
    Err(error.or(text.lines().last()).unwrap_or("no message").to_owned())
}

/// The numbers of candidates and rejections in a list.
fn candidates(list: &str) -> (usize, usize) {
    let counts = list.lines().find_map(|line| {
        let (candidates, rest) = line.split_once(" candidates, ")?;
        let rejected = rest.strip_suffix(" rejected")?;
        Some((candidates.parse().ok()?, rejected.parse().ok()?))
    });
    counts.unwrap_or_default()
}

/// The numbers of candidates and rejections without a profile, from a list with one: it rejects
/// candidates for their small shares, and `--apply` without a profile rewrites these, too.
fn planned(ranked: &str) -> (usize, usize) {
    let is_small = |line: &&str| {
        let reason = line.split_once(STAY).map_or("", |(_, reason)| reason);
        line.starts_with("note: rejected [")
            && reason.starts_with("it takes ")
            && reason.contains(SHARE)
    };
    let small = ranked.lines().filter(is_small).count();
    let (candidates, rejected) = candidates(ranked);
    (candidates + small, rejected.saturating_sub(small))
}

/// Text between what is rejected and the reason.
const STAY: &str = " stay sequential: ";
/// Text of the lines of a profile.
const SHARE: &str = " % of the time of ";

/// Where the line of this place begins.
fn line_start(text: &str, place: usize) -> usize {
    text[..place].rfind('\n').map_or(0, |end| end + 1)
}

/// The most frequent reason of the rejections of a list, with its number. Code in a reason is left
/// out.
fn frequent(list: &str) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for line in list.lines().filter(|line| line.starts_with("note: rejected [")) {
        let Some((_, reason)) = line.split_once(STAY) else { continue };
        let parts = reason.split('`').enumerate();
        let parts: Vec<&str> =
            parts.map(|(number, part)| if number % 2 == 1 { ".." } else { part }).collect();
        *counts.entry(parts.join("`")).or_default() += 1;
    }
    let most = counts.iter().max_by_key(|(_, count)| **count);
    most.map_or(String::new(), |(reason, count)| format!("{count}: {reason}"))
}

/// The first rejection of a list that is ordered by shares of the time.
fn hottest(list: &str) -> String {
    let lines: Vec<&str> = list.lines().collect();
    let found = lines.windows(2).find_map(|pair| {
        let (share, _) = pair[0].split_once(SHARE)?;
        let (name, rest) = pair[1].strip_prefix("note: rejected [")?.split_once("]: ")?;
        let (_, reason) = rest.split_once(STAY)?;
        (share.parse::<f64>().ok()? >= 1.0).then(|| format!("{share} %, {name}: {reason}"))
    });
    found.unwrap_or_else(|| "none with 1 % of the time".into())
}

// ---- runs

/// The files of a run.
#[derive(Debug)]
struct Files {
    input: PathBuf,
    other: PathBuf,
    output: PathBuf,
}

impl Files {
    fn argument(&self, argument: &str) -> PathBuf {
        match argument {
            INPUT => self.input.clone(),
            OTHER => self.other.clone(),
            OUTPUT => self.output.clone(),
            other => other.into(),
        }
    }

    fn standard_input(&self, program: &Program) -> Result<Stdio, String> {
        if program.arguments.contains(&INPUT) {
            return Ok(Stdio::null());
        }
        let file = File::open(&self.input).map_err(|e| format!("{}: {e}", self.input.display()))?;
        Ok(file.into())
    }
}

/// The result of a run: exit status, standard output, and the file that the program writes.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    status: Option<i32>,
    text: Vec<u8>,
    file: Option<Vec<u8>>,
}

impl Place {
    /// Writes the inputs of a seed.
    fn inputs(&self, program: &Program, seed: u64, size: u64) -> Result<Files, String> {
        let extension = match program.kind {
            Kind::Drawing | Kind::Expressions | Kind::Prose => "txt",
            Kind::Markdown => "md",
            Kind::Picture => "png",
            Kind::Clauses => "cnf",
            Kind::Stylesheet => "scss",
            Kind::Table => "csv",
            Kind::Vector => "svg",
        };
        let path = |name: &str, extension: &str| {
            self.folder.join(format!("{}-{name}-{size}.{extension}", program.package))
        };
        let write = |path: &Path, seed| {
            let bytes = input::bytes(program.kind, size, seed);
            std::fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()))
        };
        let (input, other) = (path("input", extension), path("other", extension));
        write(&input, seed)?;
        write(&other, seed + 1)?;
        let is_named = program.arguments.contains(&OUTPUT);
        let output = match is_named {
            true => path("output", "png"),
            false => input.with_extension("txt.gz"),
        };
        Ok(Files { input, other, output })
    }

    /// A run of the program at this path.
    fn command(
        &self,
        program: &Program,
        path: &Path,
        files: &Files,
        variables: &[(&str, &str)],
    ) -> Result<Command, String> {
        let mut command = Command::new("timeout");
        command
            .args(["-s", "KILL", RUN_S])
            .arg(path)
            .args(program.arguments.iter().map(|argument| files.argument(argument)))
            .envs(variables.iter().copied())
            .current_dir(&self.folder)
            .stdin(files.standard_input(program)?)
            .stderr(Stdio::null());
        Ok(command)
    }

    /// Runs the program once. Fails if it does not end in time.
    fn result(
        &self,
        program: &Program,
        path: &Path,
        files: &Files,
        variables: &[(&str, &str)],
    ) -> Result<Shown, String> {
        let failed = |e: std::io::Error| format!("{}: {e}", path.display());
        let _ = std::fs::remove_file(&files.output);
        let run = self.command(program, path, files, variables)?.output().map_err(failed)?;
        if run.status.code().is_none_or(|code| code == 137) {
            return Err(format!("{} does not end in {RUN_S} s", path.display()));
        }
        let is_compared = |line: &&[u8]| {
            program.comment.is_none_or(|comment| !line.starts_with(comment.as_bytes()))
        };
        let lines: Vec<&[u8]> = run.stdout.split(|b| *b == b'\n').filter(is_compared).collect();
        let file = std::fs::read(&files.output).ok();
        let shown = Shown { status: run.status.code(), text: lines.join(&b'\n'), file };
        let is_empty = shown.text.is_empty() && shown.file.as_ref().is_none_or(Vec::is_empty);
        if is_empty { Err(format!("{} writes nothing", path.display())) } else { Ok(shown) }
    }
}

/// Times both programs in turns.
fn measure(
    place: &Place,
    program: &Program,
    [before, after]: [&Path; 2],
    files: &Files,
    row: &mut Row,
) -> Result<(), String> {
    let ways = [(before, "1"), (after, "1"), (after, "2")];
    let mut times = ways.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for ((path, threads), times) in ways.iter().zip(&mut times) {
            let variables = [("COREBEAT_FUTURE_THREADS", *threads)];
            let mut command = place.command(program, path, files, &variables)?;
            let begin = Instant::now();
            let status = command.stdout(Stdio::null()).status();
            status.map_err(|e| format!("{}: {e}", path.display()))?;
            times.push(begin.elapsed().as_secs_f64());
        }
    }
    let [before, rest @ ..] = &times;
    row.seconds = Some(Spread::of(before.iter().copied()));
    row.speeds = rest
        .iter()
        .map(|times| Spread::of(before.iter().zip(times).map(|(before, after)| before / after)))
        .collect();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_counts_and_a_hottest_rejection() {
        let list = "91.0 % of the time of `a b`:\nwarning: candidate [map]: the iterations\n\
                    45.5 % of the time of `a b`:\n\
                    note: rejected [loop]: the iterations of this loop stay sequential: `x|y`\n\
                    1 candidates, 12 rejected\n";
        assert_eq!(candidates(list), (1, 12));
        assert_eq!(cell(&hottest(list)), "45.5 %, loop: `x\\|y`");
        assert_eq!(frequent(list), "1: `..`");
        assert_eq!(line_start(list, list.find("45.5").unwrap() + 3), list.find("45.5").unwrap());
        let cold = list.replace("45.5", "0.5");
        assert_eq!(hottest(&cold), "none with 1 % of the time");
    }

    #[test]
    fn candidates_with_small_shares_are_planned() {
        let ranked = "note: rejected [map]: the iterations stay sequential: it takes 0.0 % of the \
                      time of `a b`\n --> src/a.rs:214\n\n\
                      0.0 % of the time of `a b`:\n\
                      note: rejected [loop]: the iterations stay sequential: `x` may exit by `?`\n\
                      1 candidates, 2 rejected\n";
        assert_eq!(candidates(ranked), (1, 2));
        assert_eq!(planned(ranked), (2, 1));
    }

    #[test]
    fn failures_after_the_rewrite_have_their_reasons() {
        let before = ["test a ... ok".to_owned()];
        assert_eq!(difference(&before, Ok(before.to_vec())), None);
        assert_eq!(difference(&before, Ok(Vec::new())).unwrap(), "different");
        let late = "cargo does not end in 1800 s".to_owned();
        assert_eq!(difference(&before, Err(late.clone())), Some(late));
        let row = Row { exact: 1, outputs: "not rewritten: `a|b`\nmore".into(), ..Row::default() };
        assert_eq!(cells(&row), " 1 | no | 0 |  |  |  | not rewritten: `a\\|b` |  |  |  |");
    }

    #[test]
    fn tests_with_changing_results_are_not_compared() {
        let runs = std::cell::Cell::new(0);
        let changing = || {
            runs.set(runs.get() + 1);
            Ok(vec![format!("test a ... {}", runs.get())])
        };
        assert!(steady(changing).unwrap_err().contains("different results"));
        assert_eq!(steady(|| Ok(Vec::new())), Ok(Vec::new()));
    }

    #[test]
    fn programs_have_names_of_their_own() {
        let names: HashSet<&str> = PROGRAMS.iter().map(|program| program.package).collect();
        assert_eq!(names.len(), PROGRAMS.len());
        assert!(PROGRAMS.iter().all(|program| program.sizes[0] < program.sizes[1]));
    }

    #[test]
    fn words_that_break_a_promise_are_found() {
        let mut found = HashSet::new();
        // This file contains them.
        search(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut found).unwrap();
        assert_eq!(found.len(), HOOKS.len() + CATCHES.len());
    }
}
