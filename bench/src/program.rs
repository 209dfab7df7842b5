//! The measured programs: the embedded workloads, OpenMP programs from `bench/programs`, and
//! programs from Debian.

use crate::child::{Running, last_line};
use crate::input;
use crate::round::Measured;
use crate::session::Session;
use crate::tool::{
    FFMPEG, GCC, GM, LBZIP2, PBZIP2, PIGZ, POVRAY, SEVEN_ZIP, SYSBENCH, Tool, XZ, ZSTD, make,
};
use corebeat_workload::{SCALE_MAX, Workload};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

/// The placeholder of the thread count in a command, as in `corebeat tune`.
const PLACEHOLDER: &str = "{threads}";

/// The smallest side of an image, in pixels. The median filter of `gm` needs more than its radius.
const SIDE_MIN: f64 = 16.0;

/// The OpenMP programs, by the names of their sources.
pub(crate) const OPENMP: [&str; 5] = ["ep", "cg", "sp", "lu", "phase"];

/// A program from Debian that accepts a thread count.
pub(crate) struct Debian {
    pub(crate) tool: Tool,
    /// The size of the work of one second on one core of the reference machine.
    per_core_s: f64,
    /// `FILE` is a path without an ending, and `FILE.txt` a text of the size, in bytes. `SIZE` is
    /// the size, `SIDE` its square root, and `PROGRAMS` the folder `bench/programs`. A command with
    /// a semicolon is for the shell. A command without the thread count reads `OMP_NUM_THREADS`.
    command: &'static str,
    proof: DebianProof,
}

enum DebianProof {
    /// The word after this text on standard output.
    Word(&'static str),
    /// The content of `FILE` with this ending.
    File(&'static str),
}

impl Debian {
    const fn new(tool: Tool, per_core_s: f64, command: &'static str, proof: DebianProof) -> Debian {
        Debian { tool, per_core_s, command, proof }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.tool.program
    }
}

/// The programs from Debian.
pub(crate) const DEBIAN: [Debian; 10] = {
    use DebianProof::{File, Word};
    [
        Debian::new(PBZIP2, 14e6, "pbzip2 -kfp{threads} FILE.txt", File("txt.bz2")),
        // 7z adds to an existing archive, and fails on the temporary files of a killed run.
        Debian::new(
            SEVEN_ZIP,
            16e6,
            "rm -f FILE.7z FILE.7z.tmp*; exec 7z a -bd -y -mx=1 -mmt={threads} FILE.7z FILE.txt",
            File("7z"),
        ),
        Debian::new(XZ, 8e6, "xz -kf -1 -T{threads} FILE.txt", File("txt.xz")),
        Debian::new(ZSTD, 9e6, "zstd -qkf -12 -T{threads} FILE.txt", File("txt.zst")),
        Debian::new(PIGZ, 45e6, "pigz -nkf -9 -p{threads} FILE.txt", File("txt.gz")),
        Debian::new(LBZIP2, 20e6, "lbzip2 -kf -n{threads} FILE.txt", File("txt.bz2")),
        // Frames.
        Debian::new(
            FFMPEG,
            160.0,
            "ffmpeg -v error -nostdin -y -f lavfi -i testsrc2=size=640x360 -frames:v SIZE \
             -threads {threads} -c:v libx264 -f h264 FILE.h264",
            File("h264"),
        ),
        // Pixels. Of its formats, BMP does not contain the time.
        Debian::new(
            POVRAY,
            180_000.0,
            "povray -D -GA +IPROGRAMS/spheres.pov +WSIDE +HSIDE +WT{threads} +FB +OFILE.bmp",
            File("bmp"),
        ),
        // Pixels.
        Debian::new(
            GM,
            1_750_000.0,
            "gm convert -size SIDExSIDE gradient:red-blue -median 5 FILE.ppm",
            File("ppm"),
        ),
        // Events.
        Debian::new(
            SYSBENCH,
            4_000.0,
            "sysbench cpu --threads={threads} --events=SIZE --time=0 run",
            Word("total number of events:"),
        ),
    ]
};

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
        let program = DEBIAN.iter().find(|program| program.name() == name);
        let program = program.ok_or("there is no such program")?;
        if !session.has(program.tool) {
            return Ok(None);
        }
        let size = (program.per_core_s * core_s).round().clamp(10.0, 1e9);
        let file = session.folder().join(name);
        let text = file.with_extension("txt");
        if program.command.contains("FILE.txt") && !text.exists() {
            input::write(&text, size.max(1e5) as u64)
                .map_err(|e| format!("cannot write {}: {e}", text.display()))?;
        }
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let command = program
            .command
            .replace("PROGRAMS", &programs.to_string_lossy())
            .replace("SIZE", &size.to_string())
            .replace("SIDE", &size.sqrt().round().max(SIDE_MIN).to_string())
            .replace("FILE", &file.to_string_lossy());
        let is_by_argument = command.contains(PLACEHOLDER);
        Ok(Some(Program {
            name,
            thread_setting: match is_by_argument {
                true => ThreadSetting::ByArgument,
                false => ThreadSetting::ByOpenMp,
            },
            command: match command.contains(';') {
                true => vec!["sh".to_owned(), "-c".into(), command],
                false => command.split(' ').map(str::to_owned).collect(),
            },
            proof: match program.proof {
                DebianProof::Word(before) => Proof::Word(before),
                DebianProof::File(ending) => Proof::File(file.with_extension(ending)),
            },
        }))
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
        self.prepare();
        let ended = Running::start(self.command(launcher, threads), false)?.wait(limit)?;
        if ended.status.is_none() {
            return Ok(Measured::Over(ended.wall_s));
        }
        ended.check()?;
        self.verify(&ended.stdout, threads, agreement)?;
        Ok(Measured::Value(ended.wall_s))
    }

    /// Removes the result of an earlier run.
    pub(crate) fn prepare(&self) {
        if let Proof::File(path) = &self.proof {
            // The file may not exist yet.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Compares the result of a run with the earlier results. The output may also contain the lines
    /// of other programs.
    pub(crate) fn verify(
        &self,
        stdout: &str,
        threads: usize,
        agreement: &Agreement,
    ) -> Result<(), String> {
        match &self.proof {
            Proof::Word(before) => {
                // A program that runs twice prints two lines.
                let label = format!("{}:", self.name);
                let mut places: Vec<usize> =
                    stdout.match_indices(&label).map(|(at, _)| at).collect();
                if places.is_empty() {
                    places.push(0);
                }
                for at in places {
                    let missing = || {
                        format!(
                            "the program did not print '{before}'; its last line is: {}",
                            last_line(stdout)
                        )
                    };
                    agreement.admit(0, word_after(&stdout[at..], before).ok_or_else(missing)?)?;
                }
                Ok(())
            }
            Proof::File(path) => {
                let read = |e| format!("cannot read the output file {}: {e}", path.display());
                agreement.admit(threads, hash(path).map_err(read)?)
            }
        }
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
