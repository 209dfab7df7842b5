//! Measures the eight applications of STAMP with `libcorebeat` and with TinySTM.
//!
//! The source is that of the user. Its own makefiles compile a copy, and `programs/stamp/stm.h`
//! has the macros that its `lib/tm.h` expects of a library.

use crate::Bench;
use crate::apart::{self, Case, RUN_MAX};
use crate::child::Running;
use crate::program::{threads, word_after};
use crate::round::Measured;
use crate::row::Better;
use crate::session::Session;
use crate::stm::{Library, MAKE};
use crate::tool::{GCC, GPP, GZIP, STAMP, TINYSTM, make};
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const BENCHES: [Bench; 1] = [Bench {
    name: "stm.stamp",
    summary: "times of the eight applications of STAMP, unchanged, with two libraries",
    peers: &["TinySTM"],
    tools: &[GCC, GPP, MAKE, GZIP, STAMP, TINYSTM],
    cases: |session| apart::names(&cases(session)),
    run,
}];

/// An application of STAMP (Cao Minh et al., *STAMP: Stanford Transactional Applications for
/// Multi-processing*, 2008) with an input that takes about a second.
#[derive(Clone, Copy)]
struct Application {
    name: &'static str,
    /// Arguments for a measurement, and for a quick run.
    arguments: [&'static str; 2],
    /// The option for the number of threads.
    threads: &'static str,
    /// The text before the time, in seconds.
    time: &'static str,
    /// The text that a correct run prints.
    correct: &'static str,
}

const APPLICATIONS: [Application; 8] = [
    Application {
        name: "bayes",
        arguments: ["-v32 -r1024 -n10 -p40 -i2 -e8 -s1", "-v32 -r1024 -n2 -p20 -s0 -i2 -e2"],
        threads: "-t",
        time: "Learn time = ",
        correct: "Learn score",
    },
    Application {
        name: "genome",
        arguments: ["-g8192 -s64 -n2097152", "-g256 -s16 -n16384"],
        threads: "-t",
        time: "Time = ",
        correct: "Sequence matches gene: yes",
    },
    Application {
        name: "intruder",
        arguments: ["-a10 -l128 -n16384 -s1", "-a10 -l4 -n2038 -s1"],
        threads: "-t",
        time: "Elapsed time    = ",
        correct: "Num attack",
    },
    Application {
        name: "kmeans",
        arguments: [
            "-m40 -n40 -t0.0001 -i inputs/random-n16384-d24-c16.txt",
            "-m15 -n15 -t0.05 -i inputs/random-n2048-d16-c16.txt",
        ],
        threads: "-p",
        time: "Time: ",
        correct: "Time: ",
    },
    Application {
        name: "labyrinth",
        arguments: [
            "-i inputs/random-x256-y256-z3-n256.txt",
            "-i inputs/random-x48-y48-z3-n48.txt",
        ],
        threads: "-t",
        time: "Elapsed time    = ",
        correct: "Verification passed.",
    },
    Application {
        name: "ssca2",
        arguments: ["-s17 -i1.0 -u1.0 -l3 -p3", "-s13 -i1.0 -u1.0 -l3 -p3"],
        threads: "-t",
        time: "Time taken for all is ",
        correct: "Time taken for all is ",
    },
    Application {
        name: "vacation",
        arguments: ["-n4 -q60 -u90 -r65536 -t131072", "-n4 -q60 -u90 -r16384 -t4096"],
        threads: "-c",
        time: "Time = ",
        correct: "Checking tables... done.",
    },
    Application {
        name: "yada",
        arguments: ["-a20 -i inputs/ttimeu10000.2", "-a20 -i inputs/633.2"],
        threads: "-t",
        time: "Elapsed time                    = ",
        correct: "Final mesh is valid.",
    },
];

/// Threads for each CPU, in addition to one thread and one for each CPU.
const MOST_THREADS_A_CPU: usize = 4;

fn cases(session: &Session) -> Vec<Case<Library, (Application, usize)>> {
    let is_available = |library: &Library| library.is_available(session);
    let libraries: Vec<Library> =
        Library::value_variants().iter().copied().filter(is_available).collect();
    let counts = apart::thread_counts(session).chain([session.cpus * MOST_THREADS_A_CPU]);
    let case = |application: Application, count: usize| {
        let name = format!("{}, {}", application.name, threads(count));
        Case::new(name, &libraries, (application, count))
    };
    let all = |&application: &Application| counts.clone().map(move |n| (application, n));
    APPLICATIONS.iter().flat_map(all).map(|(application, n)| case(application, n)).collect()
}

fn run(session: &Session) -> Result<(), String> {
    if ![GPP, MAKE, GZIP, STAMP].iter().all(|tool| session.has(*tool)) {
        return Ok(());
    }
    apart::measure_each(
        session,
        BENCHES[0].name,
        |_| ("s", Better::Lower),
        &cases(session),
        |library, (application, count)| measure(session, library, application, count),
    )
}

fn measure(
    session: &Session,
    library: Library,
    application: Application,
    count: usize,
) -> Result<Measured, String> {
    let program = compile(session, library, application)?;
    let [full, quick] = application.arguments;
    let mut command = Command::new(&program);
    command.current_dir(program.parent().unwrap_or(Path::new(".")));
    command.args(if session.quick { quick } else { full }.split_whitespace());
    command.arg(format!("{}{count}", application.threads));
    let ended = Running::start(command, false)?.wait(RUN_MAX)?;
    if ended.status.is_none() {
        return Ok(Measured::Over(RUN_MAX.as_secs_f64()));
    }
    ended.check()?;
    if !ended.stdout.contains(application.correct) {
        return Err(format!("the program did not print '{}'", application.correct));
    }
    let time = word_after(&ended.stdout, application.time).and_then(|word| word.parse().ok());
    time.map(Measured::Value).ok_or_else(|| "the program did not print its time".into())
}

/// Compiles an application by its own makefile, in a copy of the source for each library, and
/// returns the program.
fn compile(
    session: &Session,
    library: Library,
    application: Application,
) -> Result<PathBuf, String> {
    let source = STAMP.path().ok_or_else(|| STAMP.advice())?;
    let copy = session.folder().join(format!("stamp-{}", library.name()));
    let folder = copy.join(application.name);
    let program = folder.join(application.name);
    if program.exists() {
        return Ok(program);
    }
    let name = format!("{} of STAMP", application.name);
    if !copy.exists() {
        let mut command = Command::new("cp");
        command.arg("-R").arg(source).arg(&copy);
        make(command, "a copy of STAMP")?;
    }
    // The inputs that exist only compressed.
    let mut unpack = Command::new("sh");
    unpack.current_dir(&folder).args(["-c", "find . -name '*.gz' -exec gzip -dkf {} +"]);
    make(unpack, &name)?;
    let (include, archive) = library.files(session)?;
    let macros = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/stamp");
    let mut build = Command::new(MAKE.program);
    build.current_dir(&folder).args(["-f", "Makefile.stm"]);
    build.arg(format!("STM={}", macros.display()));
    build.arg(format!("LIBS={} -lpthread -lm", archive.display()));
    build.env("CFLAGS", format!("-I{} -I{}", macros.display(), include.display()));
    make(build, &name)?;
    Ok(program)
}
