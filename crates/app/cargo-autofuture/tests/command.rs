//! The command on a package: lists, rewrites, and undoes. The driver is the one in
//! AUTOFUTURE_DRIVER; `cargo xtask ci --only effect` builds it.
#![cfg(feature = "driver")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const SOURCE: &str = "\
fn fib(n: u32) -> u64 {
    if n < 2 {
        return (1..=n).map(u64::from).sum();
    }
    // The two calls do not depend on each other.
    fib(n - 1) + fib(n - 2)
}

fn show(n: u32) -> u32 {
    (0..n).for_each(|i| println!(\"{i}\"));
    n
}

fn main() {
    let a = show(1);
    let b = show(2);
    println!(\"{} {a} {b}\", fib(10));
}
";

/// Stands for the runtime: it has the signature of the real one.
const RUNTIME: &str = "\
pub fn join<A, B>(a: impl FnOnce() -> A, b: impl FnOnce() -> B + Send) -> (A, B)
where
    B: Send,
{
    (a(), b())
}
";

fn package(folder: &Path, name: &str, file: &str, source: &str) {
    std::fs::create_dir_all(folder.join("src")).unwrap();
    let manifest =
        format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
    // A workspace of its own, wherever the temporary folder is.
    std::fs::write(folder.join("Cargo.toml"), manifest + "\n[workspace]\n").unwrap();
    std::fs::write(folder.join("src").join(file), source).unwrap();
}

fn autofuture(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cargo-autofuture"))
        .arg("autofuture")
        .arg("--manifest-path")
        .arg(folder.join("example/Cargo.toml"))
        .args(["--offline", "--future-path"])
        .arg(folder.join("future"))
        .args(args)
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .output()
        .unwrap()
}

fn git(folder: &Path, args: &[&str]) {
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(["-c", "user.name=a", "-c", "user.email=a@example.org"])
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    package(&folder.path().join("example"), "example", "main.rs", SOURCE);
    package(&folder.path().join("future"), "corebeat-future", "lib.rs", RUNTIME);
    folder
}

#[test]
fn candidates_are_listed_applied_and_undone() {
    let folder = folder();
    let folder = folder.path();
    let main = folder.join("example/src/main.rs");
    let manifest = folder.join("example/Cargo.toml");
    let old_manifest = std::fs::read_to_string(&manifest).unwrap();

    let listed = autofuture(folder, &[]);
    let out = text(&listed.stdout);
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    assert!(out.contains("candidate [divide-and-conquer]: `fib(n - 1)` and `fib(n - 2)`"), "{out}");
    assert!(out.contains("rejected [consecutive-calls]: `show(1)` and `show(2)`"), "{out}");
    assert!(out.ends_with("1 candidates, 1 rejected\n"), "{out}");
    assert_eq!(std::fs::read_to_string(&main).unwrap(), SOURCE);

    // The second list comes from the messages that cargo has kept.
    assert_eq!(text(&autofuture(folder, &[]).stdout), out);

    let refused = autofuture(folder, &["--apply"]);
    assert_eq!(refused.status.code(), Some(1));
    let why = text(&refused.stderr);
    assert!(why.contains("has changes that are not committed, or is not in a git"), "{why}");

    git(&folder.join("example"), &["init", "-q"]);
    git(&folder.join("example"), &["add", "-A"]);
    git(&folder.join("example"), &["commit", "-q", "-m", "Begin"]);
    let applied = autofuture(folder, &["--apply"]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    let out = text(&applied.stdout);
    assert!(out.contains("--- a/src/main.rs\n+++ b/src/main.rs\n"), "{out}");
    let new = std::fs::read_to_string(&main).unwrap();
    let expected = "    // The two calls do not depend on each other.\n    let (left, right) = \
                    corebeat_future::join(|| fib(n - 1), || fib(n - 2));\n    left + right\n}";
    assert!(new.contains(expected), "{new}");
    assert!(std::fs::read_to_string(&manifest).unwrap().contains("corebeat-future"));
    let patches = std::fs::read_dir(folder.join("target/autofuture/patches")).unwrap().count();
    assert_eq!(patches, 1);

    let undone = autofuture(folder, &["--undo"]);
    assert!(undone.status.success(), "{}", text(&undone.stderr));
    assert_eq!(std::fs::read_to_string(&main).unwrap(), SOURCE);
    assert_eq!(std::fs::read_to_string(&manifest).unwrap(), old_manifest);
    let again = autofuture(folder, &["--undo"]);
    assert!(text(&again.stderr).contains("there is no rewrite to undo"));
}

#[test]
fn a_rewrite_that_does_not_compile_is_undone() {
    let folder = folder();
    let folder = folder.path();
    std::fs::write(folder.join("future/src/lib.rs"), "").unwrap();
    let failed = autofuture(folder, &["--apply", "--allow-dirty"]);
    assert_eq!(failed.status.code(), Some(1));
    let why = text(&failed.stderr);
    assert!(why.contains("the rewritten package does not compile, and all files"), "{why}");
    let main = folder.join("example/src/main.rs");
    assert_eq!(std::fs::read_to_string(main).unwrap(), SOURCE);
    let manifest = std::fs::read_to_string(folder.join("example/Cargo.toml")).unwrap();
    assert!(!manifest.contains("corebeat-future"), "{manifest}");
}

#[test]
fn a_dependency_that_makes_types_ambiguous_is_named() {
    let folder = folder();
    let folder = folder.path();
    let source = SOURCE.replace("fn main() {\n", "fn main() {\n    assert_eq!(&[0u8][1..], []);\n");
    std::fs::write(folder.join("example/src/main.rs"), &source).unwrap();
    let runtime = "pub struct Value;\nimpl PartialEq<Value> for u8 {\n    \
                   fn eq(&self, _: &Value) -> bool {\n        false\n    }\n}\n";
    std::fs::write(folder.join("future/src/lib.rs"), format!("{RUNTIME}{runtime}")).unwrap();
    let failed = autofuture(folder, &["--apply", "--allow-dirty"]);
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed.stdout));
    let why = text(&failed.stderr);
    let expected = "the package does not compile with the dependency corebeat-future, and all \
                    files are restored: error[E0";
    assert!(why.contains(expected), "{why}");
    assert!(why.contains("type annotations needed (src/main.rs:"), "{why}");
    assert_eq!(std::fs::read_to_string(folder.join("example/src/main.rs")).unwrap(), source);
    let manifest = std::fs::read_to_string(folder.join("example/Cargo.toml")).unwrap();
    assert!(!manifest.contains("corebeat-future"), "{manifest}");
}

const WORK: &str = "fn step(n: u64) -> u64 { (0..n).fold(0, |a, b| a ^ b) }\n";

const BOTH: &str = "\
pub fn both() -> u64 {
    let a = step(3);
    let b = step(4);
    a ^ b
}
";

#[test]
fn a_file_of_two_targets_is_rejected() {
    let folder = folder();
    let folder = folder.path();
    let source = folder.join("example/src");
    // The library has no effects. The program has, and there the calls are no work.
    std::fs::write(source.join("shared.rs"), format!("use crate::step;\n{BOTH}")).unwrap();
    std::fs::write(
        source.join("main.rs"),
        format!("mod shared;\n{WORK}fn main() {{ println!(\"{{}}\", shared::both()); }}\n"),
    )
    .unwrap();
    std::fs::create_dir(source.join("bin")).unwrap();
    let other = "#[path = \"../shared.rs\"]\nmod shared;\nfn step(n: u64) -> u64 { println!(\"{n}\"); n }\nfn main() { shared::both(); }\n";
    std::fs::write(source.join("bin/other.rs"), other).unwrap();
    let output = autofuture(folder, &[]);
    let out = text(&output.stdout);
    assert!(out.contains("stay sequential: several targets contain its file"), "{out}");
    assert!(out.ends_with("0 candidates, 1 rejected\n"), "{out}");

    // The same if cargo does not build the other target.
    std::fs::remove_file(source.join("bin/other.rs")).unwrap();
    std::fs::create_dir(folder.join("example/examples")).unwrap();
    let other = other.replace("../shared.rs", "../src/shared.rs");
    std::fs::write(folder.join("example/examples/other.rs"), other).unwrap();
    let output = autofuture(folder, &[]);
    let out = text(&output.stdout);
    assert!(out.contains("may contain its file, and has not been compiled"), "{out}");
}

#[test]
fn code_that_only_releases_have_is_judged() {
    let folder = folder();
    let folder = folder.path();
    let work = WORK.replace("{ (0", "{ #[cfg(not(debug_assertions))] println!(\"{n}\"); (0");
    let main = format!("{work}{BOTH}fn main() {{ println!(\"{{}}\", both()); }}\n");
    std::fs::write(folder.join("example/src/main.rs"), main).unwrap();
    let out = text(&autofuture(folder, &[]).stdout);
    assert!(out.contains("the profile of releases does not have this candidate"), "{out}");
    let json = text(&autofuture(folder, &["--json"]).stdout);
    assert!(!json.contains("\"message\":\"candidate ["), "{json}");
}

#[test]
fn the_configuration_of_the_package_counts_and_not_that_of_the_current_folder() {
    let folder = folder();
    let folder = folder.path();
    let configuration = folder.join("example/.cargo/config.toml");
    std::fs::create_dir_all(configuration.parent().unwrap()).unwrap();
    let aborts = "[profile.dev]\npanic = \"abort\"\n[profile.release]\npanic = \"abort\"\n";
    std::fs::write(configuration, aborts).unwrap();
    let listed = autofuture(folder, &[]);
    let out = text(&listed.stdout);
    assert!(out.contains("a panic ends the process in this profile"), "{out}");
    assert!(out.ends_with("0 candidates, 2 rejected\n"), "{out}");
}

#[test]
fn the_list_has_the_selected_packages_whatever_was_listed_before() {
    let folder = folder();
    let folder = folder.path();
    let part = folder.join("example/part");
    package(&part, "part", "lib.rs", &SOURCE.replace("fn main", "pub fn main"));
    let manifest = std::fs::read_to_string(part.join("Cargo.toml")).unwrap();
    std::fs::write(part.join("Cargo.toml"), manifest.replace("[workspace]", "")).unwrap();
    let root = folder.join("example/Cargo.toml");
    let manifest = std::fs::read_to_string(&root).unwrap();
    let members = "members = [\"part\"]\n[dependencies]\npart = { path = \"part\" }\n";
    std::fs::write(&root, manifest + members).unwrap();
    let [all, one, all_again, one_again] = [&["--workspace"][..], &[], &["--workspace"], &[]]
        .map(|args| text(&autofuture(folder, args).stdout));
    assert!(all.contains("part/src/lib.rs"), "{all}");
    assert!(one.contains("src/main.rs") && !one.contains("part/src/lib.rs"), "{one}");
    assert_eq!((all_again, one_again), (all, one));
    let missing = text(&autofuture(folder, &["--package", "missing"]).stderr);
    assert!(missing.contains("cargo did not compile the package: its message above"), "{missing}");
}

#[test]
fn an_interrupted_rewrite_is_undone() {
    let folder = folder();
    let folder = folder.path();
    let applied = autofuture(folder, &["--apply", "--allow-dirty"]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    let record = folder.join("target/autofuture/undo.json");
    let written = std::fs::read_to_string(&record).unwrap();
    // As the record was when the first file changed.
    let interrupted = written.replace("\"is_complete\":true", "\"is_complete\":false");
    assert_ne!(interrupted, written);
    let main = folder.join("example/src/main.rs");
    let rewritten = std::fs::read_to_string(&main).unwrap();
    // The second text is that of the check whether the dependency alone compiles.
    let checked = format!("{SOURCE}\nextern crate corebeat_future as _;\n");
    for left in [rewritten, checked] {
        std::fs::write(&record, &interrupted).unwrap();
        std::fs::write(&main, left).unwrap();
        let again = autofuture(folder, &["--apply", "--allow-dirty"]);
        let why = text(&again.stderr);
        assert!(why.contains("was interrupted: restore its files with --undo first"), "{why}");
        let undone = autofuture(folder, &["--undo"]);
        assert!(undone.status.success(), "{}", text(&undone.stderr));
        assert_eq!(std::fs::read_to_string(&main).unwrap(), SOURCE);
    }
    std::fs::write(&record, interrupted).unwrap();
    std::fs::write(&main, format!("{SOURCE}// A later line.\n")).unwrap();
    let refused = autofuture(folder, &["--undo"]);
    assert!(text(&refused.stderr).contains("main.rs has changed since the rewrite"));
}

#[test]
fn a_package_that_does_not_compile_is_one_line() {
    let folder = folder();
    let folder = folder.path();
    std::fs::write(folder.join("example/src/main.rs"), "fn main() { 1 }\n").unwrap();
    let failed = autofuture(folder, &[]);
    assert_eq!(failed.status.code(), Some(1));
    let why = text(&failed.stderr);
    assert!(why.contains("error[E0308]: mismatched types"), "{why}");
    assert!(why.lines().last().unwrap().contains("the package does not compile with"), "{why}");
}

#[test]
fn a_build_script_that_fails_is_one_line() {
    let folder = folder();
    let folder = folder.path();
    let script = "fn main() { panic!(\"no compiler for C\") }\n";
    std::fs::write(folder.join("example/build.rs"), script).unwrap();
    let failed = autofuture(folder, &[]);
    assert_eq!(failed.status.code(), Some(1));
    let why = text(&failed.stderr);
    assert!(why.contains("no compiler for C"), "{why}");
    assert!(
        why.lines()
            .last()
            .unwrap()
            .contains("cargo did not compile the package: its message above"),
        "{why}"
    );
}

#[test]
fn a_missing_toolchain_is_one_line_with_the_command() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let folder = folder.path();
    // A rustup that has no toolchain.
    let tools = folder.join("tools");
    std::fs::create_dir(&tools).unwrap();
    std::fs::write(tools.join("rustup"), "#!/bin/sh\nexit 1\n").unwrap();
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(tools.join("rustup"), mode).unwrap();
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let output = Command::new(env!("CARGO_BIN_EXE_cargo-autofuture"))
        .arg("--manifest-path")
        .arg(folder.join("example/Cargo.toml"))
        .env("PATH", path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let why = text(&output.stderr);
    assert_eq!(why.lines().count(), 1, "{why}");
    assert!(why.contains("run 'rustup toolchain install nightly-20"), "{why}");
}

#[test]
fn generated_code_is_not_rewritten() {
    let folder = folder();
    let folder = folder.path();
    let script = format!(
        "fn main() {{ let out = std::env::var(\"OUT_DIR\").unwrap(); \
         std::fs::write(format!(\"{{out}}/made.rs\"), {:?}).unwrap(); }}\n",
        format!("{WORK}{BOTH}")
    );
    std::fs::write(folder.join("example/build.rs"), script).unwrap();
    let main = "include!(concat!(env!(\"OUT_DIR\"), \"/made.rs\"));\nfn main() { both(); }\n";
    std::fs::write(folder.join("example/src/main.rs"), main).unwrap();
    let out = text(&autofuture(folder, &["--apply", "--allow-dirty"]).stdout);
    assert!(out.contains("`include!` has put its file here, and may do so elsewhere"), "{out}");
    assert!(out.ends_with("0 candidates, 1 rejected\n"), "{out}");
}

#[test]
fn line_endings_stay() {
    let folder = folder();
    let folder = folder.path();
    let main = folder.join("example/src/main.rs");
    std::fs::write(&main, SOURCE.replace('\n', "\r\n")).unwrap();
    let applied = autofuture(folder, &["--apply", "--allow-dirty"]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    let new = std::fs::read_to_string(&main).unwrap();
    assert!(new.contains("corebeat_future::join(|| fib(n - 1), || fib(n - 2));\r\n"), "{new}");
    assert_eq!(new.matches('\n').count(), new.matches("\r\n").count(), "{new}");
}

#[test]
fn a_dependency_of_tests_alone_does_not_serve() {
    let folder = folder();
    let folder = folder.path();
    let manifest = folder.join("example/Cargo.toml");
    let old = std::fs::read_to_string(&manifest).unwrap();
    let more = "\n[dev-dependencies]\ncorebeat-future = { path = \"../future\" }\n";
    std::fs::write(&manifest, old + more).unwrap();
    let applied = autofuture(folder, &["--apply", "--allow-dirty"]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    let new = std::fs::read_to_string(&manifest).unwrap();
    assert!(new.contains("[dependencies]\ncorebeat-future"), "{new}");
}

#[test]
fn promises_about_a_library_are_options() {
    let folder = folder();
    let folder = folder.path();
    let source = folder.join("example/src");
    std::fs::remove_file(source.join("main.rs")).unwrap();
    let work = "fn step(n: usize, v: &[u64]) -> u64 { (0..n).fold(0, |a, i| a ^ v[i]) }\n";
    let both = BOTH.replace("both()", "both(v: &[u64])").replace("3)", "3, v)");
    let library = format!("{work}{}", both.replace("4)", "4, v)"));
    std::fs::write(source.join("lib.rs"), library).unwrap();
    let out = text(&autofuture(folder, &[]).stdout);
    assert!(out.contains("a caller in another crate may set a hook"), "{out}");
    // Cargo repeats no message of the other options.
    let promised = ["--assume", "no-panic-hook"];
    let out = text(&autofuture(folder, &promised).stdout);
    assert!(out.contains("assumed: no hook of panics has effects"), "{out}");
    assert!(out.ends_with("1 candidates, 0 rejected\n"), "{out}");
    let out = text(&autofuture(folder, &[]).stdout);
    assert!(out.ends_with("0 candidates, 1 rejected\n"), "{out}");
}

#[test]
fn json_has_the_form_of_cargo() {
    let folder = folder();
    let output = autofuture(folder.path(), &["--json"]);
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_candidate = |line: &&serde_json::Value| {
        line["reason"] == "compiler-message"
            && line["message"]["message"].as_str().unwrap().starts_with("candidate [")
    };
    assert_eq!(lines.iter().filter(is_candidate).count(), 1);
    assert_eq!(lines.last().unwrap()["reason"], "build-finished");
}

/// One pair of calls takes almost all of the time, and another one almost nothing.
const UNEQUAL: &str = "\
fn fib(n: u64) -> u64 {
    if n < 2 {
        return (1..=n).sum();
    }
    fib(n - 1) ^ fib(n - 2)
}

fn step(n: u64) -> u64 { (0..n).fold(0, |a, b| a ^ b) }

fn main() {
    let a = step(3);
    let b = step(4);
    let n = std::env::args().nth(1).unwrap().parse().unwrap();
    println!(\"result {}\", fib(n) ^ a ^ b);
}
";

#[test]
fn candidates_are_ranked_by_a_profile() {
    let folder = folder();
    let folder = folder.path();
    std::fs::write(folder.join("example/src/main.rs"), UNEQUAL).unwrap();
    let output = autofuture(folder, &["--profile", "--", "36"]);
    let (out, why) = (text(&output.stdout), text(&output.stderr));
    if !output.status.success() {
        // A machine without perf.
        assert!(why.contains("needs the program perf") || why.contains("must not sample"), "{why}");
        return;
    }
    assert!(out.starts_with("result "), "the output of the program: {out}");
    let hot = out.find("candidate [divide-and-conquer]: `fib(n - 1)`").unwrap();
    let cold = out.find("rejected [consecutive-calls]: `step(3)` and `step(4)`").unwrap();
    assert!(hot < cold, "{out}");
    assert!(out.contains("% of the time of `example 36`:\nwarning: candidate"), "{out}");
    let reason = "stay sequential: it takes 0.0 % of the time of `example 36`";
    assert!(out.contains(reason), "{out}");
}

#[test]
fn a_profile_without_perf_is_one_line() {
    let folder = folder();
    let folder = folder.path();
    let programs = folder.join("programs");
    std::fs::create_dir(&programs).unwrap();
    let profile = || {
        let output = Command::new(env!("CARGO_BIN_EXE_cargo-autofuture"))
            .arg("--manifest-path")
            .arg(folder.join("example/Cargo.toml"))
            .arg("--profile")
            .env("CARGO_TARGET_DIR", folder.join("target"))
            .env("PATH", &programs)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    let why = profile();
    assert!(why.starts_with("error: --profile needs the program perf"), "{why}");
    assert_eq!(why.lines().count(), 1);

    let perf = programs.join("perf");
    let denied = "#!/bin/sh\necho 'Access limited: see perf_event_paranoid' >&2\nexit 255\n";
    std::fs::write(&perf, denied).unwrap();
    std::fs::set_permissions(&perf, std::fs::Permissions::from_mode(0o755)).unwrap();
    let why = profile();
    assert!(why.starts_with("error: perf must not sample programs of this user"), "{why}");
    assert_eq!(why.lines().count(), 1);
}

#[test]
fn a_profile_needs_one_program() {
    let folder = folder();
    let folder = folder.path();
    std::fs::create_dir(folder.join("example/src/bin")).unwrap();
    std::fs::write(folder.join("example/src/bin/other.rs"), "fn main() {}\n").unwrap();
    let output = autofuture(folder, &["--profile"]);
    let why = text(&output.stderr);
    if !why.contains("needs the program perf") && !why.contains("must not sample") {
        let expected = "--profile needs one program, and there are 2 (example, other): name one";
        assert!(why.contains(expected), "{why}");
    }
}
