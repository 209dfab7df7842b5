//! Compiles and runs the examples as a user would.

mod stopped;

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder of libcorebeat.so.
fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // Cargo does not build a library that the tests cannot link. A build from here has the same
        // profile and flags.
        let exe = std::env::current_exe().unwrap();
        let folder =
            exe.ancestors().find(|p| p.join("deps").is_dir()).expect("target/PROFILE").to_owned();
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

/// Standard output of a program that must succeed. It does not use the machine's daemon.
fn run(command: &mut Command) -> String {
    let output = command
        .env("LD_LIBRARY_PATH", library())
        .env("COREBEAT_SOCKET", "/nonexistent/socket")
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Compiles an example. Returns its output.
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
    let output = compile_and_run("cc", "heartbeat.c", &["-pthread", "-pedantic"]);
    assert!(
        output.starts_with("goal: 1000 to 2000000 heartbeats per second over 5 samples"),
        "{output}"
    );
}

#[test]
fn c_example_counts_and_answers_from_a_cache_with_threads() {
    let output = compile_and_run("cc", "clustered.c", &["-pthread", "-pedantic"]);
    // Each thread has created 1563 pages, in addition to the initial 100.
    assert_eq!(
        output,
        "400000 requests served, 0 open, half of the sizes up to 49 of 400000, page 5 is gone\n\
         6352 pages released\n"
    );
}

#[test]
fn cpp_example_beats_in_an_openmp_loop() {
    let output = compile_and_run("c++", "heartbeat.cpp", &["-fopenmp"]);
    assert!(output.contains("with a goal of 1000 or more"), "{output}");
}

#[test]
fn python_example_beats_through_ctypes() {
    let mut python = Command::new("python3");
    let output = run(python
        .arg(example("heartbeat.py"))
        .env("COREBEAT_LIBRARY", library().join("libcorebeat.so")));
    assert!(output.trim_end().ends_with("heartbeats per second"), "{output}");
}

#[test]
fn listing_of_the_paper_runs_one_thread_per_claimed_cpu() {
    let output = compile_and_run("c++", "invasive.cpp", &["-fopenmp"]);
    let cpus = std::thread::available_parallelism().unwrap().get().min(8);
    let expected = format!("a claim of {cpus} CPUs\n{cpus} threads, sum 1571328, 1 CPU left\n");
    assert_eq!(output, expected);
}

#[test]
fn child_of_fork_ends_a_claim_of_its_parent_whose_cpus_run_openmp() {
    let output = compile_and_run("c++", "../tests/fork.cpp", &["-fopenmp"]);
    let cpus = std::thread::available_parallelism().unwrap().get().min(8);
    assert_eq!(output, format!("a claim of {cpus} CPUs\n"));
}

/// Compiles a test in C, and runs it without and with a daemon.
fn run_without_and_with_daemon(source: &str, expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "cc", source, &["-pthread"]);
    assert_eq!(run(&mut Command::new(&program)), expected);
    let daemon = stopped::Child::daemon(folder.path());
    let output = Command::new(&program)
        .env("LD_LIBRARY_PATH", library())
        .env("COREBEAT_SOCKET", folder.path().join("socket"))
        .output()
        .unwrap();
    drop(daemon);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "with a daemon: {}\n{errors}", output.status);
}

#[test]
fn misuse_in_c_returns_documented_errors() {
    run_without_and_with_daemon("../tests/misuse.c", "the header is correct\n");
}

#[test]
fn library_opens_no_standard_descriptor() {
    let expected = "the standard descriptors are free\n";
    run_without_and_with_daemon("../tests/standard.c", expected);
}

#[test]
fn static_library_links_with_a_program_that_has_names_of_zstd() {
    let folder = tempfile::tempdir().unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let program = folder.path().join("program");
    let mut command = Command::new("cc");
    command.args(["-Wall", "-Wextra", "-Werror"]).arg(example("../tests/static.c"));
    command.arg("-I").arg(include.join("tinystm")).arg("-I").arg(include);
    command.arg(library().join("libcorebeat.a")).args(["-pthread", "-lm", "-o"]).arg(&program);
    run(&mut command);
    assert_eq!(run(&mut Command::new(program)), "3\n");
}

#[test]
fn threads_that_end_leave_their_groups() {
    run_without_and_with_daemon("../tests/thread.c", "no descriptor is left\n");
}

#[test]
fn library_can_be_loaded_late_and_stays_loaded_for_threads_that_end_later() {
    let dynamic = run(Command::new("readelf").arg("-d").arg(library().join("libcorebeat.so")));
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    // A running program can load it, however large its thread-local data is.
    assert!(!dynamic.contains("STATIC_TLS"), "{dynamic}");
}

#[test]
fn thread_is_not_cancelled_within_a_call() {
    run_without_and_with_daemon("../tests/cancel.c", "the thread has ended\n");
}

/// Returns those of these compilers that are installed.
fn installed<const N: usize>(compilers: [&'static str; N]) -> impl Iterator<Item = &'static str> {
    compilers.into_iter().filter(|compiler| {
        let is_installed = Command::new(compiler).arg("--version").output().is_ok();
        if !is_installed {
            eprintln!("skipped: {compiler} is not installed (apt install gcc g++ clang)");
        }
        is_installed
    })
}

#[test]
fn transactions_in_c_agree_with_their_headers() {
    for compiler in installed(["gcc", "clang"]) {
        // Loads and stores inline, and in the library.
        for way in ["-UCOREBEAT_STM_CALLS", "-DCOREBEAT_STM_CALLS"] {
            let folder = tempfile::tempdir().unwrap();
            let flags = ["-pthread", "-pedantic", way];
            let program = compile(folder.path(), compiler, "../tests/stm.c", &flags);
            let is_inline = way.starts_with("-U") && HAS_INLINE;
            assert_eq!(symbols(&program).contains(SELF), is_inline, "{compiler} {way}");
            let output = run(&mut Command::new(program));
            assert_eq!(output, "the headers are correct\n", "{compiler} {way}");
        }
    }
}

/// Whether the headers contain loads and stores for this processor and system.
const HAS_INLINE: bool = cfg!(all(target_arch = "x86_64", target_os = "linux"));

/// The variable that inline loads and stores read.
const SELF: &str = "corebeat_stm_self_";

fn symbols(object: &Path) -> String {
    run(Command::new("readelf").arg("-sW").arg(object))
}

#[test]
fn variable_of_inline_loads_is_thread_local() {
    let symbols = symbols(&library().join("libcorebeat.so"));
    let types: Vec<&str> = symbols
        .lines()
        .filter(|line| line.contains(SELF))
        .filter_map(|line| line.split_whitespace().nth(3))
        .collect();
    assert_eq!(!types.is_empty(), HAS_INLINE, "{symbols}");
    assert!(types.iter().all(|kind| *kind == "TLS"), "{types:?}");
}

#[test]
fn sanitizers_turn_inline_loads_off() {
    for compiler in installed(["gcc", "clang"]) {
        for sanitizer in ["address", "thread"] {
            let folder = tempfile::tempdir().unwrap();
            // The library is unused without linking.
            let no_link = "-Wno-unused-command-line-argument";
            let flags = [&format!("-fsanitize={sanitizer}"), "-c", no_link];
            let object = compile(folder.path(), compiler, "../tests/stm.c", &flags);
            assert!(!symbols(&object).contains(SELF), "{compiler} {sanitizer}");
        }
    }
}

#[test]
fn modules_and_unit_loads_in_c_agree_with_their_headers() {
    let folder = tempfile::tempdir().unwrap();
    for compiler in installed(["gcc", "clang"]) {
        let program = compile(folder.path(), compiler, "../tests/module.c", &["-pthread"]);
        assert_eq!(run(&mut Command::new(&program)), "the headers are correct\n", "{compiler}");
        assert_eq!(run(Command::new(&program).arg("order")), "in order\n", "{compiler}");
        let output = run(Command::new(&program).arg("print"));
        let words: Vec<&str> =
            output.lines().map(|line| line.trim_matches(['=', '>', ' ', '(', ')'])).collect();
        let once = ["on_precommit", "on_commit", "on_thread_exit"];
        assert_eq!(
            words,
            [&["on_thread_init", "on_start", "on_abort"][..], &once].concat(),
            "{compiler}"
        );
        let misuse =
            [("late", "mod_cb_init was not called"), ("early", "failed in a callback on_start")];
        for (misuse, line) in misuse {
            let ended = Command::new(&program)
                .arg(misuse)
                .env("LD_LIBRARY_PATH", library())
                .output()
                .unwrap();
            let output = String::from_utf8(ended.stderr).unwrap();
            assert!(!ended.status.success() && output.contains(line), "{misuse}: {output}");
        }
    }
}

#[test]
fn child_of_fork_runs_transactions_whatever_locks_of_modules_were_held() {
    let output = compile_and_run("cc", "../tests/fork.c", &["-pthread"]);
    assert_eq!(output, "every child has committed\n");
}

#[test]
fn blocks_of_another_malloc_have_unknown_sizes() {
    for compiler in installed(["gcc", "clang"]) {
        let flags = ["-pthread", "-fno-builtin"];
        let output = compile_and_run(compiler, "../tests/malloc.c", &flags);
        assert_eq!(output, "every block is large enough\n", "{compiler}");
    }
}

/// The functions of a header whose names start with one of these prefixes.
fn functions(header: &str, prefixes: &[&str]) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include").join(header);
    let text = std::fs::read_to_string(path).unwrap();
    // Prototypes start in the first column with their type.
    let prototypes = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    let names = prototypes.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
    let is_own = |name: &&str| prefixes.iter().any(|prefix| name.starts_with(prefix));
    names.filter(is_own).map(str::to_owned).collect()
}

#[test]
fn functions_in_the_headers_of_transactions_are_exported() {
    let path = CString::new(library().join("libcorebeat.so").as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is a valid string; loading the library has no side effects.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    let mut count = 0;
    let headers = [
        "stm.h",
        "mod_ab.h",
        "mod_cb.h",
        "mod_log.h",
        "mod_mem.h",
        "mod_order.h",
        "mod_print.h",
        "mod_stats.h",
        "wrappers.h",
    ];
    for header in headers {
        for name in functions(&format!("tinystm/{header}"), &["stm_", "mod_"]) {
            let symbol = CString::new(name.as_str()).unwrap();
            // SAFETY: the library is open, and the name is a valid string.
            let address = unsafe { libc::dlsym(library, symbol.as_ptr()) };
            assert!(!address.is_null(), "{header} has {name}");
            count += 1;
        }
    }
    assert!(count > 110, "{count}");
}

/// The page on libraries lists the error numbers of each function as the headers do, and the
/// dependency lines of all libraries.
#[test]
fn page_on_libraries_agrees_with_headers_and_crates() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let page = std::fs::read_to_string(root.join("docs/library.md")).unwrap();
    let numbers = |text: &str| -> Vec<String> {
        let is_number = |word: &&str| word.len() > 2 && word.starts_with('E');
        let words = text.split(|c: char| !c.is_ascii_uppercase()).filter(is_number);
        words.map(str::to_owned).collect()
    };
    let mut count = 0;
    for header in ["hrm.h", "invasive_computing.h"] {
        let text =
            std::fs::read_to_string(root.join("crates/bind/corebeat-c/include").join(header))
                .unwrap();
        let mut documented = Vec::new();
        for line in text.lines() {
            if let Some((_, errors)) = line.split_once("Errors: ") {
                documented = numbers(errors);
            }
            let Some((name, _)) = line
                .strip_prefix("static inline ")
                .unwrap_or(line)
                .strip_prefix("int ")
                .and_then(|prototype| prototype.split_once('('))
            else {
                continue;
            };
            if name != "corebeat_claim_fd" {
                let row = page.lines().find_map(|l| l.strip_prefix(&format!("| `{name}` |")));
                assert_eq!(row.map(numbers), Some(documented.clone()), "{name}");
                count += 1;
            }
        }
    }
    assert_eq!(count, page.lines().filter(|line| line.ends_with("`EIO` |")).count() + 2);
    for layer in ["parallel", "observe"] {
        for entry in std::fs::read_dir(root.join("crates").join(layer)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let line = format!("{name} = {{ path = \"PATH/crates/{layer}/{name}\" }}");
            assert!(name.ends_with("-macro") || page.contains(&line), "{line}");
        }
    }
}

#[test]
fn headers_of_transactions_compile_as_cpp() {
    for compiler in installed(["g++", "clang++"]) {
        let folder = tempfile::tempdir().unwrap();
        let program = compile(folder.path(), compiler, "../tests/stm.cpp", &["-std=c++11"]);
        assert_eq!(symbols(&program).contains(SELF), HAS_INLINE, "{compiler}");
        assert_eq!(
            run(&mut Command::new(program)),
            "3 attempts, 1 commits and 1.5\n",
            "{compiler}"
        );
    }
}

#[test]
fn misused_transactions_end_the_process_with_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "gcc", "../tests/stm.c", &["-pthread"]);
    for (what, advice) in
        [("start", "stm_init_thread"), ("load", "stm_start"), ("free", "stm_free")]
    {
        let output =
            Command::new(&program).arg(what).env("LD_LIBRARY_PATH", library()).output().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(6));
        let output = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.starts_with("corebeat: ")
                && output.contains(advice)
                && output.lines().count() == 1,
            "{output}"
        );
    }
}
