//! OpenMP programs with a team channel: their team sizes follow the channel, and their results stay
//! equal.
//!
//! Each test builds its programs with gcc, and also with clang if its OpenMP runtime is installed.

use corebeat_linux::{Allowance, Answer, TeamChannel, answers};
use corebeat_machine::TeamSample;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time to wait for an event; long, because the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A compiler with an OpenMP runtime.
#[derive(Clone, Copy)]
struct Compiler {
    name: &'static str,
    arguments: &'static [&'static str],
}

const GCC: Compiler = Compiler { name: "gcc", arguments: &["-fopenmp", "-DOLD_ENTRY_POINTS"] };
const CLANG: Compiler = Compiler { name: "clang", arguments: &["-fopenmp=libomp"] };

impl Compiler {
    fn build(self, dir: &Path, source: &str, more: &[&str]) -> Option<PathBuf> {
        let file = dir.join(format!(
            "{}-{}{}",
            Path::new(source).file_stem()?.display(),
            self.name,
            more.join("")
        ));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let made = Command::new(self.name)
            .args(["-O1", "-w"])
            .args(self.arguments)
            .args(more)
            .arg(source)
            .arg("-o")
            .arg(&file)
            .args(["-lm", "-ldl"])
            .stderr(Stdio::piped())
            .output();
        match made {
            Ok(output) if output.status.success() => Some(file),
            Ok(output) if self.name == "gcc" => {
                panic!("{}", String::from_utf8_lossy(&output.stderr))
            }
            Err(e) if self.name == "gcc" => panic!("the tests require gcc: {e}"),
            _ => None,
        }
    }
}

/// Returns the available compilers. Prints a line if clang is missing.
fn compilers(dir: &Path) -> Vec<Compiler> {
    if CLANG.build(dir, "tests/team/ask.c", &[]).is_some() {
        return vec![GCC, CLANG];
    }
    println!(
        "skipped: the LLVM runtime (no clang with libomp; on Debian: apt install clang \
             libomp-dev)"
    );
    vec![GCC]
}

/// Returns a command with the channel, in an environment with only these OpenMP variables.
fn command(
    channel: &TeamChannel,
    program: &Path,
    variables: &[(&str, &str)],
    cpus: usize,
) -> Command {
    let current = |name: &str| variables.iter().find(|v| v.0 == name).map(|v| OsString::from(v.1));
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if ["OMP_", "GOMP_", "KMP_"].iter().any(|p| name.to_string_lossy().starts_with(p)) {
            command.env_remove(name);
        }
    }
    // Barriers of libgomp spin for a millisecond in a team that is no larger than the machine,
    // which is very slow on a busy machine.
    command.env("GOMP_SPINCOUNT", "1000");
    command.envs(variables.iter().copied());
    command.envs(channel.environment(current));
    // A quota of `cpus` on eight CPUs.
    let allowance = Allowance { cpus: "0-7".parse().unwrap(), quota: Some(cpus as f64) };
    let answers = answers(&allowance, 8, current, false, false);
    command.envs(answers.iter().map(Answer::variable));
    command
}

/// A program that writes a line for each byte that it reads.
struct Dialog {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Dialog {
    fn start(mut command: Command) -> Dialog {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        Dialog { child, to, from }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn send(&mut self, byte: char) {
        self.to.write_all(&[byte as u8]).unwrap();
    }

    fn receive(&mut self) -> Vec<i32> {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.split_whitespace().filter_map(|n| n.parse().ok()).collect()
    }

    fn request(&mut self, byte: char) -> Vec<i32> {
        self.send(byte);
        self.receive()
    }

    fn end(mut self) {
        drop(self.to);
        assert!(self.child.wait().unwrap().success());
    }
}

/// Runs a check on a program of up to four threads, built by each compiler.
fn with_each_compiler(
    variables: &[(&str, &str)],
    more: &[&str],
    mut talk: impl FnMut(&mut TeamChannel, &mut Dialog),
) {
    let dir = tempfile::tempdir().unwrap();
    for compiler in compilers(dir.path()) {
        println!("{}", compiler.name);
        let program = compiler.build(dir.path(), "tests/team/ask.c", more).unwrap();
        let mut channel = TeamChannel::create().unwrap();
        let mut talking = Dialog::start(command(&channel, &program, variables, 4));
        talk(&mut channel, &mut talking);
        talking.end();
    }
}

fn sample_of(channel: &mut TeamChannel, pid: i32) -> Option<TeamSample> {
    channel.samples().into_iter().find(|s| s.0 == pid).map(|s| s.1)
}

#[test]
fn team_of_a_plain_program_follows_the_size() {
    with_each_compiler(&[("OMP_NUM_THREADS", "8")], &[], |channel, program| {
        assert_eq!(program.request('r'), [4], "lowered at start");
        channel.set_size(None, Some(2)).unwrap();
        assert_eq!(program.request('r'), [2]);
        channel.set_size(Some(program.pid()), Some(1)).unwrap();
        assert_eq!(program.request('r'), [1]);
        channel.set_size(Some(program.pid()), Some(3)).unwrap();
        assert_eq!(program.request('r'), [3]);
        channel.set_size(Some(program.pid()), Some(100)).unwrap();
        assert_eq!(program.request('r'), [4], "never above the size without Corebeat");
        channel.set_size(Some(program.pid()), None).unwrap();
        assert_eq!(program.request('r'), [4]);
        let sample = sample_of(channel, program.pid()).unwrap();
        assert_eq!((sample.size_max, sample.size, sample.fixed), (4, 4, false));
        let count =
            |size| sample.regions.iter().filter(|r| r.size == size).map(|r| r.count).sum::<u64>();
        assert_eq!([count(1), count(2), count(3), count(4)], [1, 1, 1, 3]);
        assert!(sample.regions.iter().all(|r| r.region == sample.regions[0].region));
        assert!(
            sample_of(channel, program.pid()).unwrap().regions.is_empty(),
            "no region since then"
        );
    });
}

#[test]
fn team_of_a_serial_region_is_unchanged() {
    with_each_compiler(&[], &[], |channel, program| {
        channel.set_size(None, Some(2)).unwrap();
        assert_eq!(program.request('i'), [1, 1]);
        assert_eq!(program.request('r'), [2]);
        assert!(!sample_of(channel, program.pid()).unwrap().fixed);
    });
}

#[test]
fn team_nested_in_another_keeps_its_size() {
    let variables = [("OMP_NUM_THREADS", "4,3"), ("OMP_MAX_ACTIVE_LEVELS", "2")];
    with_each_compiler(&variables, &[], |channel, program| {
        assert_eq!(program.request('n'), [4, 3]);
        channel.set_size(None, Some(2)).unwrap();
        assert_eq!(program.request('n'), [2, 3]);
    });
}

#[test]
fn team_of_a_program_that_reads_its_maximum_is_fixed() {
    with_each_compiler(&[], &[], |channel, program| {
        channel.set_size(None, Some(2)).unwrap();
        assert_eq!(program.request('r'), [2]);
        assert_eq!(program.request('m'), [4]);
        assert_eq!(program.request('r'), [4]);
        assert_eq!(program.request('t'), [4, 4]);
        assert!(sample_of(channel, program.pid()).unwrap().fixed);
    });
}

#[test]
fn team_of_a_program_that_reads_its_size_is_fixed() {
    with_each_compiler(&[], &[], |channel, program| {
        channel.set_size(None, Some(2)).unwrap();
        assert_eq!(program.request('t'), [2, 2]);
        channel.set_size(None, Some(3)).unwrap();
        assert_eq!(program.request('r'), [2]);
        channel.set_size(None, None).unwrap();
        assert_eq!(program.request('r'), [2]);
        assert_eq!(program.request('m'), [2], "one count in all places");
        assert!(sample_of(channel, program.pid()).unwrap().fixed);
    });
}

#[test]
fn team_of_a_program_that_stores_its_size_is_fixed() {
    for level in ["-O0", "-O2"] {
        with_each_compiler(&[], &[level], |channel, program| {
            channel.set_size(None, Some(2)).unwrap();
            assert_eq!(program.request('k'), [2]);
            channel.set_size(None, Some(3)).unwrap();
            assert_eq!(program.request('r'), [2], "{level}");
        });
    }
}

/// gcc generates code for static loops in which each thread reads the size of the team.
#[test]
#[cfg(target_arch = "x86_64")]
fn team_of_a_program_with_static_loops_follows_the_size() {
    let codes: [&[&str]; 7] = [
        &["-O0"],
        &["-O1"],
        &["-O2", "-fno-plt"],
        &["-O3", "-Wl,-z,now"],
        &["-Os", "-no-pie", "-fno-pie"],
        &["-O2", "-fcf-protection=full"],
        &["-O2", "-fcf-protection=full", "-Wl,-z,ibtplt", "-Wl,-z,lazy"],
    ];
    for code in codes {
        with_each_compiler(&[], code, |channel, program| {
            assert_eq!(program.request('l'), [4, 1998]);
            channel.set_size(None, Some(2)).unwrap();
            assert_eq!(program.request('l'), [2, 1998], "{code:?}");
            assert!(!sample_of(channel, program.pid()).unwrap().fixed, "{code:?}");
        });
    }
}

#[test]
fn team_of_a_program_that_sets_its_size_is_fixed() {
    with_each_compiler(&[], &[], |channel, program| {
        channel.set_size(None, Some(2)).unwrap();
        assert_eq!(program.request('t'), [2, 2]);
        program.request('s');
        assert_eq!(program.request('r'), [3]);
        assert_eq!(program.request('m'), [3]);
        assert!(sample_of(channel, program.pid()).unwrap().fixed);
    });
}

#[test]
fn team_with_a_clause_is_fixed() {
    with_each_compiler(&[], &[], |channel, program| {
        channel.set_size(None, Some(2)).unwrap();
        assert_eq!(program.request('c'), [3]);
        assert_eq!(program.request('r'), [4], "the program may rely on both counts");
        assert!(sample_of(channel, program.pid()).unwrap().fixed);
    });
}

#[test]
fn team_of_a_program_with_thread_data_is_fixed() {
    with_each_compiler(&[], &["-DTHREAD_DATA"], |channel, program| {
        channel.set_size(None, Some(2)).unwrap();
        assert_eq!(program.request('r'), [4]);
        assert!(sample_of(channel, program.pid()).unwrap().fixed);
    });
}

#[test]
fn team_with_consent_follows_the_size_despite_reads() {
    with_each_compiler(&[("OMP_DYNAMIC", "true")], &["-DTHREAD_DATA"], |channel, program| {
        assert_eq!(program.request('m'), [4]);
        assert_eq!(program.request('r'), [4], "no dynamic adjustment by the runtime");
        channel.set_size(None, Some(2)).unwrap();
        assert_eq!(program.request('t'), [2, 2]);
        assert_eq!(program.request('c'), [2]);
        channel.set_size(None, Some(4)).unwrap();
        assert_eq!(program.request('c'), [3]);
        program.request('s');
        assert_eq!(program.request('r'), [3]);
        assert!(!sample_of(channel, program.pid()).unwrap().fixed);
        assert_eq!(program.request('D'), [0], "consent withdrawn");
        channel.set_size(None, Some(1)).unwrap();
        assert_eq!(program.request('r'), [3]);
        assert!(sample_of(channel, program.pid()).unwrap().fixed);
        assert_eq!(program.request('d'), [1]);
        assert_eq!(program.request('r'), [1]);
    });
}

#[test]
fn team_of_a_forked_child_has_a_separate_slot() {
    with_each_compiler(&[], &[], |channel, program| {
        channel.set_size(None, Some(1)).unwrap();
        assert_eq!(program.request('r'), [1]);
        let child = program.request('f')[0];
        channel.set_size(Some(child), Some(3)).unwrap();
        assert_eq!(program.request('r'), [1], "the first region claims a slot");
        channel.set_size(Some(child), Some(3)).unwrap();
        assert_eq!(program.request('r'), [3]);
        let samples = channel.samples();
        assert_eq!(
            samples.iter().map(|s| s.0).collect::<BTreeSet<_>>(),
            BTreeSet::from([program.pid(), child])
        );
        program.request('q');
        assert_eq!(program.request('r'), [1]);
        assert!(sample_of(channel, child).is_some(), "included one last time");
        assert!(sample_of(channel, child).is_none());
    });
}

#[test]
fn team_after_exec_starts_without_state() {
    with_each_compiler(&[], &[], |channel, program| {
        assert_eq!(program.request('m'), [4]);
        assert!(sample_of(channel, program.pid()).unwrap().fixed);
        program.send('x');
        channel.set_size(None, Some(2)).unwrap();
        assert_eq!(program.request('r'), [2]);
        let samples = channel.samples();
        assert_eq!(samples.len(), 1);
        assert!(!samples[0].1.fixed);
        assert_eq!(samples[0].1.regions.iter().map(|r| r.count).sum::<u64>(), 1);
    });
}

#[test]
fn team_in_a_long_region_is_reported_as_running() {
    with_each_compiler(&[], &[], |channel, program| {
        assert_eq!(channel.running(program.pid()), None);
        program.send('w');
        let begin = Instant::now();
        let running = loop {
            if let Some(region) = channel.running(program.pid()) {
                break region;
            }
            assert!(begin.elapsed() < TIMEOUT);
            std::thread::sleep(Duration::from_millis(2));
        };
        assert_eq!((running.size, running.count), (4, 0));
        program.send('.');
        program.receive();
        assert_eq!(channel.running(program.pid()), None);
    });
}

#[test]
fn team_after_the_end_of_the_channel_has_the_requested_size() {
    with_each_compiler(&[], &[], |channel, program| {
        channel.set_size(None, Some(1)).unwrap();
        assert_eq!(program.request('r'), [1]);
        drop(std::mem::replace(channel, TeamChannel::create().unwrap()));
        assert_eq!(program.request('r'), [4]);
        program.send('x');
        assert_eq!(program.request('r'), [4], "the channel does not exist");
    });
}

#[test]
fn team_of_a_process_without_a_slot_runs() {
    let dir = tempfile::tempdir().unwrap();
    let program = GCC.build(dir.path(), "tests/team/ask.c", &[]).unwrap();
    let mut channel = TeamChannel::create().unwrap();
    channel.set_size(None, Some(1)).unwrap();
    let mut seen = 0;
    for round in 0..2 {
        let start = |_| Dialog::start(command(&channel, &program, &[("OMP_NUM_THREADS", "2")], 4));
        let mut talks: Vec<Dialog> = (0..70).map(start).collect();
        let sizes: Vec<i32> = talks.iter_mut().map(|t| t.request('r')[0]).collect();
        assert_eq!(sizes.iter().filter(|&&s| s == 1).count(), 64, "round {round}");
        assert_eq!(sizes.iter().filter(|&&s| s == 2).count(), 6, "round {round}");
        talks.into_iter().for_each(Dialog::end);
        seen += channel.samples().len();
        assert!(channel.samples().is_empty(), "all slots are free");
    }
    assert_eq!(seen, 128);
}

#[test]
fn teams_of_several_runtimes_follow_the_size() {
    let dir = tempfile::tempdir().unwrap();
    let host = Command::new("gcc")
        .args(["-w", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/team/host.c"), "-ldl", "-o"])
        .arg(dir.path().join("host"))
        .status();
    assert!(host.unwrap().success());
    let library =
        |c: Compiler| c.build(dir.path(), "tests/team/plugin.c", &["-shared", "-fPIC"]).unwrap();
    let libraries: Vec<PathBuf> = compilers(dir.path()).into_iter().map(library).collect();
    let channel = TeamChannel::create().unwrap();
    let mut host = command(&channel, &dir.path().join("host"), &[], 4);
    host.args(&libraries);
    let mut host = Dialog::start(host);
    assert_eq!(host.request('.'), vec![4; libraries.len()]);
    channel.set_size(None, Some(2)).unwrap();
    assert_eq!(host.request('.'), vec![2; libraries.len()]);
    host.end();
}

#[test]
fn library_without_a_channel_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let program = GCC.build(dir.path(), "tests/team/ask.c", &[]).unwrap();
    let channel = TeamChannel::create().unwrap();
    let wrong = dir.path().join("wrong");
    std::fs::write(&wrong, vec![7; 600_000]).unwrap();
    for path in ["", "relative", "/no/such/file", "/dev/null", wrong.to_str().unwrap()] {
        let mut command = command(&channel, &program, &[], 3);
        let mut talk = Dialog::start({
            command.env("COREBEAT_TEAM", path);
            command
        });
        assert_eq!(
            (talk.request('r'), talk.request('c'), talk.request('m')),
            (vec![3], vec![3], vec![3]),
            "{path}"
        );
        talk.end();
    }
}

/// Runs a command while its team sizes change every few milliseconds. Returns its output and its
/// team sizes.
fn run_under_random_sizes(
    channel: &mut TeamChannel,
    mut command: Command,
    seed: u64,
) -> (String, BTreeSet<u32>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let (begin, mut sizes) = (Instant::now(), BTreeSet::new());
    let status = loop {
        let size = random.u32(0..5);
        channel.set_size(None, (size > 0).then_some(size)).unwrap();
        for (_, sample) in channel.samples() {
            assert!(!sample.fixed);
            sizes.extend(sample.regions.iter().map(|r| r.size));
        }
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(
            begin.elapsed() < TIMEOUT,
            "no end; replay with CB_SEED={seed} cargo test -p corebeat-linux --test team"
        );
        std::thread::sleep(Duration::from_millis(random.u64(1..5)));
    };
    let output = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    assert!(
        status.success(),
        "{status}: {output}replay with CB_SEED={seed} cargo test -p corebeat-linux --test team"
    );
    (output, sizes)
}

fn seed() -> u64 {
    let seed = std::env::var("CB_SEED").ok().and_then(|s| s.parse().ok());
    seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64)
}

#[test]
fn results_of_every_construct_hold_under_random_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let seed = seed();
    println!("CB_SEED={seed}");
    for compiler in compilers(dir.path()) {
        let program = compiler.build(dir.path(), "tests/team/check.c", &[]).unwrap();
        for dynamic in ["true", "false"] {
            let mut channel = TeamChannel::create().unwrap();
            let variables = [
                ("OMP_NUM_THREADS", "4,2"),
                ("OMP_MAX_ACTIVE_LEVELS", "2"),
                ("OMP_CANCELLATION", "true"),
                ("OMP_SCHEDULE", "guided,3"),
                ("OMP_DYNAMIC", dynamic),
            ];
            let mut command = command(&channel, &program, &variables, 4);
            command.arg("40");
            let (output, sizes) = run_under_random_sizes(&mut channel, command, seed);
            println!("{} OMP_DYNAMIC={dynamic}: {output}", compiler.name);
            let teams: Vec<u32> =
                output.split_whitespace().filter_map(|n| n.parse().ok()).collect();
            assert!(output.starts_with("right"), "{output}");
            assert!(teams[0] <= 4 && sizes.iter().all(|&s| s <= 4), "{teams:?} {sizes:?}");
            if dynamic == "false" {
                assert_eq!(teams[1..], [2, 2], "inner teams are unchanged");
            }
        }
    }
}

#[test]
fn results_of_the_programs_are_the_same_at_all_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let seed = seed();
    println!("CB_SEED={seed}");
    let checksum = |output: &str| output.lines().next().unwrap_or_default().to_owned();
    for compiler in compilers(dir.path()) {
        // lu spins and takes minutes with more threads than CPUs: use few planes and two threads.
        for (name, size, threads) in [
            ("lu", "4", "2"),
            ("sp", "10", "4"),
            ("cg", "3", "4"),
            ("ep", "300", "4"),
            ("phase", "1", "2"),
        ] {
            let program = compiler
                .build(dir.path(), &format!("../../../bench/programs/{name}.c"), &[])
                .unwrap();
            let alone =
                Command::new(&program).arg(size).env("OMP_NUM_THREADS", "1").output().unwrap();
            let alone = checksum(&String::from_utf8(alone.stdout).unwrap());
            assert!(alone.starts_with("checksum"), "{name}: {alone}");
            for fixed_size in [1, 2] {
                let mut channel = TeamChannel::create().unwrap();
                channel.set_size(None, Some(fixed_size)).unwrap();
                let output = command(&channel, &program, &[("OMP_NUM_THREADS", "8")], 4)
                    .arg(size)
                    .output()
                    .unwrap();
                assert_eq!(
                    checksum(&String::from_utf8(output.stdout).unwrap()),
                    alone,
                    "{name} at {fixed_size}"
                );
                let samples = channel.samples();
                assert_eq!(samples[0].1.fixed, name == "lu", "{name}: lu reads its size");
                assert!(
                    samples[0].1.regions.iter().all(|r| r.size == fixed_size && r.count > 0),
                    "{name}: {samples:?}"
                );
            }
            let mut channel = TeamChannel::create().unwrap();
            let variables = [("OMP_NUM_THREADS", threads), ("OMP_DYNAMIC", "true")];
            let mut command = command(&channel, &program, &variables, 4);
            command.arg(size);
            let (output, _) = run_under_random_sizes(&mut channel, command, seed);
            assert_eq!(checksum(&output), alone, "{name} at random sizes");
        }
    }
}
