//! The share of a program's time that each place of the source takes.
//!
//! `perf record` samples the call chains of one run of the program, which is built with the profile
//! of releases, with the lines of its code and with frame pointers. A place takes the samples whose
//! chain has a frame, also an inlined one, on its lines: its own time and that of all calls in it.
//! The clock of the CPU is the event, which needs no hardware counter.

use crate::Options;
use crate::analysis::{Project, own_cargo, select};
use crate::error::Error;
use crate::finding::Finding;
use addr2line::Loader;
use object::read::{Object, ObjectSegment};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Samples in a second of CPU time. A prime number: a program may have a rhythm of milliseconds.
const SAMPLES_HZ: &str = "997";
/// The time that a thread uses a CPU outside the kernel, an event that all machines and most users
/// have.
const EVENT: &str = "cpu-clock:u";
/// Least part of the samples for which `--apply` rewrites a candidate.
pub(crate) const LEAST_SHARE: f64 = 0.01;

/// The samples of a run.
#[derive(Debug)]
pub(crate) struct Profile {
    /// The program with its arguments.
    pub(crate) command: String,
    /// The lines of each sample's chain, each file by its real path.
    samples: Vec<Vec<(PathBuf, usize)>>,
}

impl Profile {
    /// The part of the samples in which the code of this finding runs, from 0 to 1.
    pub(crate) fn share(&self, project: &Project, finding: &Finding) -> f64 {
        let path = real(&project.root.join(&finding.span.file_name));
        let lines = finding.span.line_start..=finding.span.line_end;
        let is_in = |chain: &&Vec<(PathBuf, usize)>| {
            chain.iter().any(|(file, line)| lines.contains(line) && *file == path)
        };
        let count = self.samples.iter().filter(is_in).count();
        count as f64 / self.samples.len().max(1) as f64
    }
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Requires that perf is there and may sample.
pub(crate) fn require_perf(project: &Project) -> Result<(), Error> {
    let folder = project.folder();
    std::fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
    let data = folder.join("perf-trial.data");
    let output = record(&data).args(["--", "true"]).stdin(Stdio::null()).output();
    let _ = std::fs::remove_file(&data);
    let output = match output {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(Error::NoPerf),
        Err(source) => return Err(Error::Start { program: "perf".into(), source }),
        Ok(output) => output,
    };
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    if ["perf_event_paranoid", "ermission", "permitted"].iter().any(|part| text.contains(part)) {
        return Err(Error::PerfDenied);
    }
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && *line != "Error:");
    Err(Error::Perf(line.unwrap_or("no message").to_owned()))
}

fn record(data: &Path) -> Command {
    let mut perf = Command::new("perf");
    perf.args(["record", "--quiet", "--call-graph", "fp", "-e", EVENT, "-F", SAMPLES_HZ, "-o"]);
    perf.arg(data);
    perf
}

/// Builds the program, runs it once with the arguments, and reads its samples.
pub(crate) fn run(options: &Options, project: &Project) -> Result<Profile, Error> {
    let program = build(options, project)?;
    let data = project.folder().join("perf.data");
    let _ = std::fs::remove_file(&data);
    let mut perf = record(&data);
    perf.arg("--").arg(&program).args(&options.arguments);
    let status = perf.status().map_err(|source| Error::Start { program: "perf".into(), source })?;
    if !data.exists() {
        return Err(Error::Perf(format!("perf record has written no samples ({status})")));
    }
    if !status.success() {
        eprintln!("warning: the profiled run did not succeed ({status})");
    }
    let script = Command::new("perf")
        .args(["script", "--no-inline", "-F", "ip,dso", "-i"])
        .arg(&data)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Start { program: "perf".into(), source })?;
    if !script.status.success() {
        let text = String::from_utf8_lossy(&script.stderr);
        return Err(Error::Perf(text.lines().next().unwrap_or("no message").to_owned()));
    }
    let chains = chains(&String::from_utf8_lossy(&script.stdout), &program);
    if chains.is_empty() {
        return Err(Error::Perf("the run was too short for a sample".into()));
    }
    let mut lines = Lines::open(&program)?;
    let samples = chains.iter().map(|chain| lines.of(chain)).collect();
    let words = options.arguments.iter().map(|word| word.to_string_lossy());
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let command = std::iter::once(name).chain(words).collect::<Vec<_>>().join(" ");
    Ok(Profile { command, samples })
}

/// A line of the output of `cargo build --message-format=json`.
#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
}

/// Builds the program with the toolchain of the user.
fn build(options: &Options, project: &Project) -> Result<PathBuf, Error> {
    let mut cargo = Command::new(own_cargo());
    cargo.args(["build", "--release", "--quiet", "--message-format=json-render-diagnostics"]);
    select(&mut cargo, options);
    match &options.bin {
        Some(bin) => cargo.args(["--bin", bin]),
        None => cargo.arg("--bins"),
    };
    cargo.arg("--target-dir").arg(project.folder().join("profile"));
    cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "none");
    let pointers = "-Cforce-frame-pointers=yes";
    match std::env::var("CARGO_ENCODED_RUSTFLAGS") {
        Ok(flags) => cargo.env("CARGO_ENCODED_RUSTFLAGS", format!("{flags}\x1f{pointers}")),
        Err(_) => {
            let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
            cargo.env("RUSTFLAGS", format!("{flags} {pointers}"))
        }
    };
    let output = cargo
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| Error::Start { program: "cargo".into(), source })?;
    if !output.status.success() {
        return Err(Error::ProfileBuild);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut programs: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok()?.executable)
        .collect();
    if programs.len() == 1 {
        return Ok(programs.remove(0));
    }
    // cargo reports them as their builds end.
    programs.sort();
    let name = |program: &PathBuf| program.file_name().unwrap_or_default().display().to_string();
    Err(Error::Programs(programs.iter().map(name).collect()))
}

/// The chains in the output of `perf script`, of each the offsets in the file of the program; the
/// innermost frame is the first one. Frames of other files are left out, but their samples count.
fn chains(text: &str, program: &Path) -> Vec<Vec<u64>> {
    let end = format!("({})", program.display());
    let mut chains = Vec::new();
    for sample in text.split("\n\n") {
        let mut frames = sample.lines().filter(|line| !line.trim().is_empty()).peekable();
        if frames.peek().is_none() {
            continue;
        }
        let offset = |(depth, line): (usize, &str)| -> Option<u64> {
            let line = line.trim();
            if !line.ends_with(&end) {
                return None;
            }
            let offset = u64::from_str_radix(line.split_whitespace().next()?, 16).ok()?;
            // A caller's frame has the address behind its call.
            Some(if depth == 0 { offset } else { offset.saturating_sub(1) })
        };
        chains.push(frames.enumerate().filter_map(offset).collect());
    }
    chains
}

/// The lines of the code of a program.
struct Lines {
    loader: Loader,
    /// Offset in the file, length and address of each segment.
    segments: Vec<(u64, u64, u64)>,
    known: HashMap<u64, Vec<(PathBuf, usize)>>,
    /// Real paths of the files.
    files: HashMap<String, PathBuf>,
}

impl Lines {
    fn open(program: &Path) -> Result<Lines, Error> {
        let data = std::fs::read(program).map_err(Error::file(program))?;
        let unreadable = |e: &dyn std::fmt::Display| {
            Error::Perf(format!("the lines of {} cannot be read: {e}", program.display()))
        };
        let file = object::File::parse(&*data).map_err(|e| unreadable(&e))?;
        let segments = file
            .segments()
            .map(|segment| {
                let (offset, length) = segment.file_range();
                (offset, length, segment.address())
            })
            .collect();
        let loader = Loader::new(program).map_err(|e| unreadable(&e))?;
        Ok(Lines { loader, segments, known: HashMap::new(), files: HashMap::new() })
    }

    /// The lines of a chain.
    fn of(&mut self, chain: &[u64]) -> Vec<(PathBuf, usize)> {
        chain.iter().flat_map(|offset| self.at(*offset)).collect()
    }

    fn at(&mut self, offset: u64) -> Vec<(PathBuf, usize)> {
        if let Some(known) = self.known.get(&offset) {
            return known.clone();
        }
        let mut lines = Vec::new();
        let segment = self
            .segments
            .iter()
            .find(|(start, length, _)| (*start..start.saturating_add(*length)).contains(&offset));
        if let Some((start, _, address)) = segment
            && let Ok(mut frames) = self.loader.find_frames(offset - start + address)
        {
            while let Ok(Some(frame)) = frames.next() {
                let Some(place) = frame.location else { continue };
                let (Some(file), Some(line)) = (place.file, place.line) else { continue };
                let path = match self.files.get(file) {
                    Some(path) => path.clone(),
                    None => {
                        let path = real(Path::new(file));
                        self.files.insert(file.to_owned(), path.clone());
                        path
                    }
                };
                lines.push((path, line as usize));
            }
        }
        self.known.insert(offset, lines.clone());
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_have_the_offsets_of_the_program() {
        let text = "\n\t  13606 (/a/program)\n\t  13700 (/a/program)\n\t 26000 (/lib/libc.so.6)\n\n\
                    \n\t  99 (/lib/libc.so.6)\n\n";
        assert_eq!(chains(text, Path::new("/a/program")), [vec![0x13606, 0x136ff], vec![]]);
        assert!(chains("\n\n", Path::new("/a/program")).is_empty());
    }
}
