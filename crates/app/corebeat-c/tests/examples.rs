//! The examples, as a user would compile and run them.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where cargo has put libcorebeat.so: it is built with the tests of its package.
fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // Tests do not build a library that they cannot link; a build from here has the same profile and flags as ours.
        let exe = std::env::current_exe().unwrap();
        let folder = exe.ancestors().find(|p| p.join("deps").is_dir()).expect("target/PROFILE").to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "corebeat-c"]);
        if folder.file_name() == Some(OsStr::new("release")) {
            cargo.arg("--release");
        }
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
        assert!(
            built.success() && folder.join("libcorebeat.so").is_file(),
            "no libcorebeat.so in {folder:?}"
        );
        folder
    })
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// Standard output of a program that must end well. No daemon of the machine takes part.
fn run(command: &mut Command) -> String {
    let output = command
        .env("LD_LIBRARY_PATH", library())
        .env("COREBEAT_SOCKET", "/nonexistent/socket")
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Compiles an example, and gives what it prints.
fn compile_and_run(compiler: &str, source: &str, flags: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    run(&mut Command::new(compile(folder.path(), compiler, source, flags)))
}

fn compile(folder: &Path, compiler: &str, source: &str, flags: &[&str]) -> PathBuf {
    let program = folder.join("program");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut command = Command::new(compiler);
    command.args(["-O2", "-Wall", "-Wextra", "-Werror"]).args(flags).arg(example(source));
    command
        .arg("-I")
        .arg(include.join("tinystm"))
        .arg("-I")
        .arg(include)
        .arg("-L")
        .arg(library())
        .args(["-lcorebeat", "-o"])
        .arg(&program);
    run(&mut command);
    program
}

#[test]
fn c_example_beats_with_threads_and_reads_its_goal() {
    let said = compile_and_run("cc", "heartbeat.c", &["-pthread", "-pedantic"]);
    assert!(said.starts_with("goal 1000 to 2000000 heartbeats a second over 5 samples"), "{said}");
}

#[test]
fn c_example_counts_and_answers_from_a_cache_with_threads() {
    let said = compile_and_run("cc", "clustered.c", &["-pthread", "-pedantic"]);
    // Each thread has made 1563 pages, and 100 were there before.
    assert_eq!(
        said,
        "400000 requests served, 0 open, half of the sizes up to 49 of 400000, page 5 is gone\n\
         6352 pages released\n"
    );
}

#[test]
fn cpp_example_beats_in_an_openmp_loop() {
    let said = compile_and_run("c++", "heartbeat.cpp", &["-fopenmp"]);
    assert!(said.contains("with a goal of 1000 or more"), "{said}");
}

#[test]
fn python_example_beats_through_ctypes() {
    let mut python = Command::new("python3");
    let said =
        run(python.arg(example("heartbeat.py")).env("COREBEAT_LIBRARY", library().join("libcorebeat.so")));
    assert!(said.trim_end().ends_with("heartbeats a second"), "{said}");
}

#[test]
fn listing_of_the_paper_computes_with_as_many_threads_as_its_claim_has_cpus() {
    let said = compile_and_run("c++", "invasive.cpp", &["-fopenmp"]);
    let cpus = std::thread::available_parallelism().unwrap().get().min(8);
    let expected = format!("a claim of {cpus} CPUs\n{cpus} threads, sum 1571328, 1 CPU left\n");
    assert_eq!(said, expected);
}

#[test]
fn misuse_in_c_is_an_error_number_with_words() {
    let said = compile_and_run("cc", "../tests/misuse.c", &["-pthread"]);
    assert_eq!(said, "as the header says\n");
}

#[test]
fn transactions_in_c_do_what_their_headers_say() {
    for compiler in ["gcc", "clang"] {
        if Command::new(compiler).arg("--version").output().is_err() {
            eprintln!("{compiler} is not here (apt install {compiler})");
            continue;
        }
        let said = compile_and_run(compiler, "../tests/stm.c", &["-pthread", "-pedantic"]);
        assert_eq!(said, "as the headers say\n", "{compiler}");
    }
}

#[test]
fn modules_and_units_in_c_do_what_their_headers_say() {
    let folder = tempfile::tempdir().unwrap();
    for compiler in ["gcc", "clang"] {
        if Command::new(compiler).arg("--version").output().is_err() {
            eprintln!("{compiler} is not here (apt install {compiler})");
            continue;
        }
        let program = compile(folder.path(), compiler, "../tests/module.c", &["-pthread"]);
        assert_eq!(run(&mut Command::new(&program)), "as the headers say\n", "{compiler}");
        let said = run(Command::new(&program).arg("print"));
        let words: Vec<&str> =
            said.lines().map(|line| line.trim_matches(['=', '>', ' ', '(', ')'])).collect();
        let once = ["on_precommit", "on_commit", "on_thread_exit"];
        assert_eq!(words, [&["on_thread_init", "on_start", "on_abort"][..], &once].concat(), "{compiler}");
        let misuse = [("late", "mod_cb_init was not called"), ("early", "failed in a callback on_start")];
        for (misuse, line) in misuse {
            let ended =
                Command::new(&program).arg(misuse).env("LD_LIBRARY_PATH", library()).output().unwrap();
            let said = String::from_utf8(ended.stderr).unwrap();
            assert!(!ended.status.success() && said.contains(line), "{misuse}: {said}");
        }
    }
}

#[test]
fn functions_that_headers_of_transactions_name_are_exported() {
    let path = CString::new(library().join("libcorebeat.so").as_os_str().as_bytes()).unwrap();
    // SAFETY: a string; the library does nothing when it is loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    let mut count = 0;
    let headers = [
        "stm.h",
        "mod_ab.h",
        "mod_cb.h",
        "mod_log.h",
        "mod_mem.h",
        "mod_print.h",
        "mod_stats.h",
        "wrappers.h",
    ];
    for header in headers {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/tinystm");
        let text = std::fs::read_to_string(folder.join(header)).unwrap();
        // Prototypes begin at the left, with their type.
        let prototypes = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
        let names = prototypes.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
        for name in names.filter(|name| name.starts_with("stm_") || name.starts_with("mod_")) {
            let symbol = CString::new(name).unwrap();
            // SAFETY: the library is open, and a string.
            assert!(!unsafe { libc::dlsym(library, symbol.as_ptr()) }.is_null(), "{header} has {name}");
            count += 1;
        }
    }
    assert!(count > 110, "{count}");
}

#[test]
fn headers_of_transactions_are_cpp_too() {
    let said = compile_and_run("c++", "../tests/stm.cpp", &[]);
    assert_eq!(said, "1 and 1.5\n");
}

#[test]
fn transactions_in_c_that_are_misused_end_the_process_with_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "gcc", "../tests/stm.c", &["-pthread"]);
    for (what, advice) in [("start", "stm_init_thread"), ("load", "stm_start")] {
        let output = Command::new(&program).arg(what).env("LD_LIBRARY_PATH", library()).output().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(6));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.starts_with("corebeat: ") && said.contains(advice) && said.lines().count() == 1,
            "{said}"
        );
    }
}
