//! The answers of `corebeat run` to programs that count CPUs, with real programs.

use crate::*;
use corebeat_linux::{Allowance, topology};
use std::process::Command;

/// Variables that would change the counts of the programs.
const VARIABLES: [&str; 6] = [
    "OMP_NUM_THREADS",
    "GOMAXPROCS",
    "RAYON_NUM_THREADS",
    "PYTHON_CPU_COUNT",
    "OPENBLAS_NUM_THREADS",
    "LD_PRELOAD",
];

/// A way to start a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Unlimited,
    Cpus,
    Taskset,
    Quota,
}

/// Returns the output of a program, without Corebeat for [`Start::Unlimited`] and `is_plain`.
/// `None` if there are no control groups for a quota.
fn output(start: Start, is_plain: bool, program: &[&str]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let cpu = Allowance::of_this_process().cpus.iter().next().unwrap().0.to_string();
    let run = [COREBEAT, "run", "--report", "none"];
    let words = match start {
        Start::Unlimited if is_plain => program.to_vec(),
        Start::Unlimited => [&run[..], &["--"], program].concat(),
        Start::Cpus => [&run[..], &["--cpus", &cpu, "--"], program].concat(),
        Start::Taskset => [&["taskset", "-c", &cpu], &run[..], &["--"], program].concat(),
        Start::Quota => [&run[..], &["--quota", "1", "--"], program].concat(),
    };
    let mut command = command_of(Path::new(words[0]), folder.path(), &words[1..]);
    VARIABLES.iter().for_each(|name| {
        command.env_remove(name);
    });
    let done = command.output().unwrap();
    if start == Start::Quota && done.status.code() == Some(125) {
        println!("skipped: a quota ({})", stderr(&done).trim());
        return None;
    }
    assert!(done.status.success(), "{words:?}: {}", stderr(&done));
    assert_eq!(stderr(&done), "", "{words:?}");
    Some(stdout(&done).trim().to_owned())
}

/// Requires that a program counts one CPU under each limit, and without a limit as many as without
/// Corebeat. `one` is its output on one CPU.
fn assert_counts(one: &str, program: &[&str]) {
    for start in [Start::Cpus, Start::Taskset, Start::Quota] {
        if let Some(output) = output(start, false, program) {
            assert_eq!(output, one, "{program:?} with {start:?}");
        }
    }
    let plain = output(Start::Unlimited, true, program);
    assert_eq!(output(Start::Unlimited, false, program), plain, "{program:?} without a limit");
}

/// Runs a compiler in a folder. Prints a line and returns `false` if the compiler is missing.
fn compiled(folder: &Path, compiler: &str, args: &[&str], source: &str, text: &str) -> bool {
    fs::write(folder.join(source), text).unwrap();
    let mut command = Command::new(compiler);
    command.args(args).arg(source).current_dir(folder);
    match command.env_remove("LD_PRELOAD").output() {
        Ok(done) => {
            assert!(done.status.success(), "{compiler}: {}", stderr(&done));
            true
        }
        Err(_) => {
            println!("skipped: {compiler} is missing");
            false
        }
    }
}

/// Path of a program in a folder.
fn program(folder: &tempfile::TempDir) -> String {
    folder.path().join("count").to_str().unwrap().to_owned()
}

const COUNT_C: &str = "
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <sys/sysinfo.h>
#include <unistd.h>
int main(int argc, char **argv) {
    if (argc > 1) {
        printf(\"%ld %d\\n\", sysconf(_SC_NPROCESSORS_CONF), get_nprocs_conf());
        return argv[1] == 0;
    }
    printf(\"%ld %d\\n\", sysconf(_SC_NPROCESSORS_ONLN), get_nprocs());
}
";

#[test]
fn c_program_counts_the_cpus_that_it_may_use() {
    let folder = tempfile::tempdir().unwrap();
    assert!(compiled(folder.path(), "gcc", &["-o", "count"], "count.c", COUNT_C), "gcc is missing");
    let count = program(&folder);
    assert_counts("1 1", &[&count]);
    // Programs index arrays by the numbers of CPUs.
    let plain = output(Start::Unlimited, true, &[&count, "configured"]).unwrap();
    assert_eq!(output(Start::Cpus, false, &[&count, "configured"]).unwrap(), plain);
}

#[test]
fn cpp_program_counts_the_cpus_that_it_may_use() {
    let folder = tempfile::tempdir().unwrap();
    let text = "#include <thread>\n#include <cstdio>\n\
                int main() { printf(\"%u\\n\", std::thread::hardware_concurrency()); }\n";
    if compiled(folder.path(), "g++", &["-o", "count"], "count.cpp", text) {
        assert_counts("1", &[&program(&folder)]);
    }
}

#[test]
fn openmp_program_counts_the_cpus_that_it_may_use() {
    let folder = tempfile::tempdir().unwrap();
    let text = "#include <omp.h>\n#include <stdio.h>\nint main(void) { \
                printf(\"%d %d\\n\", omp_get_num_procs(), omp_get_max_threads()); }\n";
    assert!(compiled(folder.path(), "gcc", &["-fopenmp", "-o", "count"], "count.c", text));
    assert_counts("1 1", &[&program(&folder)]);
}

#[test]
fn rust_program_counts_the_cpus_that_it_may_use() {
    let folder = tempfile::tempdir().unwrap();
    // rayon counts by RAYON_NUM_THREADS, else by this function.
    let text = "fn main() { let rayon = std::env::var(\"RAYON_NUM_THREADS\").ok(); \
                let known = std::thread::available_parallelism().unwrap().get(); \
                println!(\"{}\", rayon.map_or(known, |n| n.parse().unwrap())); }\n";
    if compiled(folder.path(), "rustc", &["-o", "count"], "count.rs", text) {
        assert_counts("1", &[&program(&folder)]);
    }
}

#[test]
fn go_program_starts_the_threads_that_can_run() {
    let folder = tempfile::tempdir().unwrap();
    let text = "package main\nimport (\"fmt\"; \"runtime\")\n\
                func main() { fmt.Println(runtime.GOMAXPROCS(0)) }\n";
    if compiled(folder.path(), "go", &["build", "-o", "count"], "count.go", text) {
        let count = program(&folder);
        for start in [Start::Cpus, Start::Taskset] {
            assert_eq!(output(start, false, &[&count]).unwrap(), "1", "{start:?}");
        }
        // Go itself counts at least 2 under a quota, before version 1.25 all CPUs.
        let allowed = Allowance::of_this_process().cpus.len().min(2).to_string();
        if let Some(output) = output(Start::Quota, false, &[&count]) {
            assert_eq!(output, allowed);
        }
        let plain = output(Start::Unlimited, true, &[&count]);
        assert_eq!(output(Start::Unlimited, false, &[&count]), plain);
    }
}

#[test]
fn java_program_counts_the_cpus_that_it_may_use() {
    let folder = tempfile::tempdir().unwrap();
    let text = "public class Count { public static void main(String[] a) { \
                System.out.println(Runtime.getRuntime().availableProcessors()); } }\n";
    if compiled(folder.path(), "javac", &[], "Count.java", text) {
        assert_counts("1", &["java", "-cp", folder.path().to_str().unwrap(), "Count"]);
    }
}

#[test]
fn python_program_counts_the_cpus_that_it_may_use() {
    // Python has process_cpu_count from version 3.13 on.
    let text = "import os; c = getattr(os, 'process_cpu_count', os.cpu_count); \
                print(os.cpu_count(), c())";
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: python3 is missing");
        return;
    }
    assert_counts("1 1", &["python3", "-c", text]);
}

#[test]
fn nproc_counts_the_cpus_that_the_program_may_use() {
    assert_counts("1", &["nproc"]);
}

#[test]
fn program_with_a_sanitizer_or_its_own_preloaded_library_runs() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["-fsanitize=address", "-o", "count"];
    if compiled(folder.path(), "gcc", &args, "count.c", COUNT_C) {
        assert_counts("1 1", &[&program(&folder)]);
    }
    let text = "int get_nprocs(void) { return 777; }\n";
    compiled(folder.path(), "gcc", &["-shared", "-fPIC", "-o", "own.so"], "own.c", text);
    compiled(folder.path(), "gcc", &["-o", "count"], "count.c", COUNT_C);
    let mut run = command(folder.path(), &["run", "--report", "none", "--", "./count"]);
    let done = run.env("LD_PRELOAD", folder.path().join("own.so")).output().unwrap();
    let known = Allowance::of_this_process().threads_max() == topology().cpus().len();
    assert!(!known || stdout(&done).ends_with(" 777\n"), "{done:?}");
}

#[test]
fn unlimited_program_keeps_its_environment() {
    let allowance = Allowance::of_this_process();
    if allowance.threads_max() < topology().cpus().len() {
        println!("skipped: this process may not use all CPUs");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let done = command(folder.path(), &["run", "--report", "json", "--", "env"])
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("GOMAXPROCS", "9")])
        .output()
        .unwrap();
    let mut names: Vec<String> =
        stdout(&done).lines().map(|l| l.split('=').next().unwrap().to_owned()).collect();
    names.sort();
    let of_the_library = ["ASAN_OPTIONS", "COREBEAT_TEAM", "GOMP_SPINCOUNT", "LD_PRELOAD"];
    let mut expected = [&of_the_library[..], &["GOMAXPROCS", "PATH"]].concat();
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(report(&done)["answers"], serde_json::json!([]));
}

#[test]
fn counts_of_the_user_stay_unless_they_are_overridden() {
    let cpu = Allowance::of_this_process().cpus.iter().next().unwrap().0.to_string();
    let script = "echo $GOMAXPROCS $RAYON_NUM_THREADS";
    let counts = |options: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let args = [&["run", "--report", "json", "--cpus", &cpu], options].concat();
        let mut run = command(folder.path(), &[&args[..], &["--", "sh", "-c", script]].concat());
        let done = run.envs([("GOMAXPROCS", "3"), ("RAYON_NUM_THREADS", "4")]).output().unwrap();
        let lowered = report(&done)["notes"].to_string().matches("was reduced to 1").count();
        (stdout(&done).trim().to_owned(), lowered)
    };
    assert_eq!(counts(&[]), ("3 4".to_owned(), 0));
    assert_eq!(counts(&["--override"]), ("1 1".to_owned(), 2));
    for options in [["--policy", "none"], ["--no-preload", "--no-class"]] {
        let args = [&["run", "--override"], &options[..], &["--", "true"]].concat();
        assert_refused(&corebeat(&args), 2, "--override applies to the policies auto and team");
    }
}
