//! The measured programs: the embedded workloads, OpenMP programs from `bench/programs`, and
//! programs from Debian.

use crate::child::{Running, last_line};
use crate::input;
use crate::round::Measured;
use crate::session::Session;
use crate::tool::{GCC, PBZIP2, SEVEN_ZIP, SYSBENCH, Tool, XZ, make};
use corebeat_workload::{SCALE_MAX, Workload};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

/// The placeholder of the thread count in a command, as in `corebeat tune`.
const PLACEHOLDER: &str = "{threads}";

/// The OpenMP programs, by the names of their sources.
pub(crate) const OPENMP: [&str; 5] = ["ep", "cg", "sp", "lu", "phase"];

/// The programs from Debian, and the tools that contain them.
pub(crate) const DEBIAN: [(&str, Tool); 4] =
    [("pbzip2", PBZIP2), ("7z", SEVEN_ZIP), ("xz", XZ), ("sysbench", SYSBENCH)];

/// The way in which a program receives its thread count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadSetting {
    ByArgument,
    /// In `OMP_NUM_THREADS`. Corebeat can change the count while the program runs.
    ByOpenMp,
}

/// The evidence that a run computed the right result.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Proof {
    /// The word after this text on standard output.
    Word(&'static str),
    /// The content of a file, which is deleted before each run. The content may depend on the
    /// thread count, because compressors divide their input.
    File(PathBuf),
}

/// The results of runs, of which those with the same key must be equal.
#[derive(Debug, Default)]
pub(crate) struct Agreement(Mutex<BTreeMap<usize, String>>);

impl Agreement {
    /// Compares a result with the first result of its kind.
    pub(crate) fn admit(&self, kind: usize, proof: String) -> Result<(), String> {
        let mut known = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let first = known.entry(kind).or_insert_with(|| proof.clone());
        if *first == proof {
            Ok(())
        } else {
            Err(format!("the result of the program is {proof}, the first was {first}"))
        }
    }
}

/// A program that can be started with any thread count.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) thread_setting: ThreadSetting,
    command: Vec<String>,
    proof: Proof,
}

impl Program {
    /// An embedded workload that keeps one core busy for about `core_s` seconds.
    pub(crate) fn workload(
        session: &Session,
        name: &'static str,
        core_s: f64,
    ) -> Result<Program, String> {
        let corebeat = session.corebeat()?.to_string_lossy().into_owned();
        let scale = scale(core_s).to_string();
        let command = [&corebeat, "workload", name, "--threads", PLACEHOLDER, "--scale", &scale];
        Ok(Program {
            name,
            thread_setting: ThreadSetting::ByArgument,
            command: command.map(str::to_owned).into(),
            proof: Proof::Word("checksum "),
        })
    }

    /// A compiled program of [`OPENMP`]. `None` without a compiler.
    pub(crate) fn openmp(
        session: &Session,
        name: &'static str,
        core_s: f64,
    ) -> Result<Option<Program>, String> {
        if !session.has(GCC) {
            return Ok(None);
        }
        let binary = session.folder().join(name);
        if !binary.exists() {
            let source =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(format!("{name}.c"));
            let mut gcc = Command::new(GCC.program);
            gcc.args(["-O2", "-fopenmp"]).arg(source).arg("-o").arg(&binary).arg("-lm");
            make(gcc, &format!("{name}.c"))?;
        }
        // The work of one second on one core of the reference machine.
        let size = match name {
            "ep" => 32_000.0 * core_s,
            "cg" => 95.0 * core_s,
            "sp" => 40.0 * core_s.cbrt(),
            "lu" => 40.0 * core_s.cbrt(),
            // With two threads, the shared phases of this program take five times as long as with
            // one.
            _ => (1.0 * core_s).min(100_000.0),
        };
        // The programs accept no larger sizes. On very large machines the runs are therefore
        // shorter.
        let size_max = match name {
            "cg" => 6_000.0,
            "sp" | "lu" => 500.0,
            _ => 100_000_000.0,
        };
        let size = size.min(size_max).round().max(2.0);
        Ok(Some(Program {
            name,
            thread_setting: ThreadSetting::ByOpenMp,
            command: vec![binary.to_string_lossy().into_owned(), size.to_string()],
            proof: Proof::Word("checksum "),
        }))
    }

    /// A program of [`DEBIAN`]. `None` if the program is not installed.
    pub(crate) fn debian(
        session: &Session,
        name: &'static str,
        core_s: f64,
    ) -> Result<Option<Program>, String> {
        let tool = DEBIAN.iter().find(|d| d.0 == name).ok_or("there is no such program")?.1;
        if !session.has(tool) {
            return Ok(None);
        }
        // Bytes that a core compresses in a second.
        let rate = match name {
            "pbzip2" => 14e6,
            "7z" => 16e6,
            _ => 8e6,
        };
        let file = session.folder().join(format!("{name}.txt"));
        let made = |ending| PathBuf::from(format!("{}.{ending}", file.display()));
        let (command, proof): (String, Proof) = match name {
            "pbzip2" => (format!("pbzip2 -kfp{PLACEHOLDER} FILE"), Proof::File(made("bz2"))),
            // 7z adds to an existing archive, and fails on the temporary files of a killed run.
            "7z" => {
                let compress = format!("exec 7z a -bd -y -mx=1 -mmt={PLACEHOLDER} FILE.7z FILE");
                (format!("rm -f FILE.7z FILE.7z.tmp*; {compress}"), Proof::File(made("7z")))
            }
            "xz" => (format!("xz -kf -1 -T{PLACEHOLDER} FILE"), Proof::File(made("xz"))),
            _ => {
                let events = (4_000.0 * core_s).round().clamp(10.0, 1e9);
                let command =
                    format!("sysbench cpu --threads={PLACEHOLDER} --events={events} --time=0 run");
                (command, Proof::Word("total number of events:"))
            }
        };
        if matches!(proof, Proof::File(_)) && !file.exists() {
            let size = (rate * core_s).clamp(1e5, 1e9) as u64;
            input::write(&file, size)
                .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        }
        let command = command.replace("FILE", &file.to_string_lossy());
        let command = match name {
            "7z" => vec!["sh".to_owned(), "-c".into(), command],
            _ => command.split(' ').map(str::to_owned).collect(),
        };
        Ok(Some(Program { name, thread_setting: ThreadSetting::ByArgument, command, proof }))
    }

    /// The command with the placeholder `{threads}`, for `corebeat tune`.
    pub(crate) fn template(&self) -> &[String] {
        &self.command
    }

    /// The command that runs the program with a thread count, after the words of its launcher.
    pub(crate) fn command(&self, launcher: &[String], threads: usize) -> Command {
        let words = self.command.iter().map(|a| a.replace(PLACEHOLDER, &threads.to_string()));
        let mut words = launcher.iter().cloned().chain(words);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        if self.thread_setting == ThreadSetting::ByOpenMp {
            command.env("OMP_NUM_THREADS", threads.to_string());
        }
        command
    }

    /// Times a run. The result must agree with the earlier results.
    pub(crate) fn timed(
        &self,
        launcher: &[String],
        threads: usize,
        limit: Duration,
        agreement: &Agreement,
    ) -> Result<Measured, String> {
        if let Proof::File(path) = &self.proof {
            // The file may not exist yet.
            let _ = std::fs::remove_file(path);
        }
        let ended = Running::start(self.command(launcher, threads), false)?.wait(limit)?;
        if ended.status.is_none() {
            return Ok(Measured::Over(ended.wall_s));
        }
        ended.check()?;
        let (kind, proof) = match &self.proof {
            Proof::Word(before) => {
                let word = word_after(&ended.stdout, before);
                (
                    0,
                    word.ok_or_else(|| {
                        format!(
                            "the program did not print '{before}'; its last line is: {}",
                            last_line(&ended.stdout)
                        )
                    })?,
                )
            }
            Proof::File(path) => (
                threads,
                hash(path)
                    .map_err(|e| format!("cannot read the output file {}: {e}", path.display()))?,
            ),
        };
        agreement.admit(kind, proof)?;
        Ok(Measured::Value(ended.wall_s))
    }
}

/// The scale of a workload that keeps one core busy for `core_s` seconds, within the valid range.
pub(crate) fn scale(core_s: f64) -> f64 {
    (core_s / 9.0).clamp(1e-6, SCALE_MAX)
}

/// The names of the workloads.
pub(crate) fn workloads() -> impl Iterator<Item = &'static str> {
    Workload::all().iter().map(|w| w.name)
}

/// A thread count in words.
pub(crate) fn threads(count: usize) -> String {
    if count == 1 { "1 thread".into() } else { format!("{count} threads") }
}

/// The word after the first occurrence of a text.
pub(crate) fn word_after(text: &str, before: &str) -> Option<String> {
    let rest = text.split_once(before)?.1;
    let word = rest.trim_start().split(|c: char| c.is_whitespace() || c == ',').next()?;
    (!word.is_empty()).then(|| word.to_owned())
}

fn hash(path: &Path) -> std::io::Result<String> {
    let mut hasher = DefaultHasher::new();
    hasher.write(&std::fs::read(path)?);
    Ok(format!("{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_that_differs_is_refused() {
        let agreement = Agreement::default();
        agreement.admit(0, "a".into()).unwrap();
        agreement.admit(2, "b".into()).unwrap();
        agreement.admit(0, "a".into()).unwrap();
        assert!(agreement.admit(0, "b".into()).unwrap_err().contains("the first was a"));
    }

    #[test]
    fn word_after_stops_at_blanks_and_commas() {
        assert_eq!(word_after("triad: checksum 00ff, 3 x", "checksum ").as_deref(), Some("00ff"));
        assert_eq!(word_after("events:    \t 100\n", "events:").as_deref(), Some("100"));
        assert_eq!(word_after("nothing", "checksum "), None);
    }
}
