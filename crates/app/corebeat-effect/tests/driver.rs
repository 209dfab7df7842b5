//! Runs the driver on the programs in `tests/ui`: its messages, the behaviour of the rewritten
//! programs, and, with the feature `fault`, that every class of effects is needed.
//!
//! `BLESS=1 cargo test` writes the expected messages anew.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder for the files of one test.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn cases(kind: &str) -> Vec<PathBuf> {
    let mut cases: Vec<PathBuf> = std::fs::read_dir(folder().join("tests/ui").join(kind))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect();
    cases.sort();
    assert!(!cases.is_empty());
    cases
}

/// The first line of a case: `//@ WORD..`.
struct Head {
    /// `lib`: it is analysed as a library. It has a function `main`, and runs as a program.
    is_library: bool,
    /// `options=WORDS`: what the user has chosen.
    options: String,
    /// Other words are arguments for the compiler.
    arguments: Vec<String>,
}

impl Head {
    fn of(case: &Path) -> Head {
        let text = std::fs::read_to_string(case).unwrap();
        let line = text.lines().next().and_then(|line| line.strip_prefix("//@ "));
        let mut head = Head { is_library: false, options: String::new(), arguments: Vec::new() };
        for word in line.unwrap_or_default().split_whitespace() {
            match word.strip_prefix("options=") {
                Some(options) => head.options = options.into(),
                None if word == "lib" => head.is_library = true,
                None => head.arguments.push(word.into()),
            }
        }
        if !head.arguments.iter().any(|word| word.starts_with("--edition")) {
            head.arguments.push("--edition=2024".into());
        }
        head
    }
}

/// Runs the driver as cargo would, in the folder of the tests.
fn drive(case: &Path, format: &str, fault: Option<&str>, out: &Path) -> Output {
    let driver = env!("CARGO_BIN_EXE_corebeat-effect");
    let head = Head::of(case);
    let mut command = Command::new(driver);
    command
        .current_dir(folder().join("tests"))
        .args([driver, "rustc", "--crate-name", "case", "--crate-type"])
        .arg(if head.is_library { "lib" } else { "bin" })
        .args(["--emit=metadata", "-Cdebug-assertions=on"])
        .args(head.arguments)
        .arg(format!("--error-format={format}"))
        .arg("--out-dir")
        .arg(out)
        .arg(case.strip_prefix(folder().join("tests")).unwrap())
        .env("CARGO_PRIMARY_PACKAGE", "1")
        .env("COREBEAT_EFFECT_OPTIONS", head.options)
        .env_remove("COREBEAT_EFFECT_FAULT");
    if let Some(fault) = fault {
        command.env("COREBEAT_EFFECT_FAULT", fault);
    }
    command.output().unwrap()
}

/// The source with all candidates applied, and their number.
fn rewritten(case: &Path, fault: Option<&str>, out: &Path) -> (String, usize) {
    let output = drive(case, "json", fault, out);
    let mut edits: Vec<(usize, usize, String)> = Vec::new();
    for line in String::from_utf8(output.stderr).unwrap().lines() {
        let message: Value = serde_json::from_str(line).unwrap();
        if !message["message"].as_str().unwrap().starts_with("candidate [") {
            continue;
        }
        for child in message["children"].as_array().unwrap() {
            for span in child["spans"].as_array().unwrap() {
                let number = |name: &str| span[name].as_u64().unwrap() as usize;
                let text = span["suggested_replacement"].as_str().unwrap();
                edits.push((number("byte_start"), number("byte_end"), text.to_owned()));
            }
        }
    }
    edits.sort();
    let mut source = std::fs::read_to_string(case).unwrap();
    for (start, end, text) in edits.iter().rev() {
        source.replace_range(*start..*end, text);
    }
    (source, edits.len())
}

fn rustc(arguments: &[&str], out: &Path, source: &Path) {
    let output = Command::new("rustc")
        .args(["--edition=2024", "-Awarnings", "-Cdebug-assertions=on", "--cfg=run", "-L"])
        .arg(out)
        .arg("--out-dir")
        .arg(out)
        .args(arguments)
        .arg(source)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The behaviour of a program.
#[derive(Debug, PartialEq)]
struct Behaviour {
    output: String,
    status: Option<i32>,
    /// A program that panics anyway may print more messages of panics.
    messages: usize,
}

fn run(program: &Path) -> Behaviour {
    let output = Command::new(program).output().unwrap();
    let status = output.status.code();
    let messages = String::from_utf8_lossy(&output.stderr).matches(" panicked at ").count();
    Behaviour {
        output: String::from_utf8(output.stdout).unwrap(),
        status,
        messages: if status == Some(101) { 1 } else { messages },
    }
}

/// The behaviour of the original and of the rewritten program.
fn behaviours(case: &Path, source: &str, out: &Path) -> [Behaviour; 2] {
    rustc(&["--crate-type=lib"], out, &folder().join("tests/runtime/corebeat_future.rs"));
    let path = out.join("rewritten.rs");
    std::fs::write(&path, source).unwrap();
    let head = Head::of(case);
    let options = head.arguments.iter().map(String::as_str).filter(|w| w.starts_with("-Cpanic="));
    let original: Vec<&str> = options.chain(["--crate-name=original"]).collect();
    rustc(&original, out, case);
    let names = ["--crate-name=rewritten", "--extern=corebeat_future"];
    rustc(&[&original[..original.len() - 1], &names[..]].concat(), out, &path);
    [run(&out.join("original")), run(&out.join("rewritten"))]
}

#[test]
fn messages_are_as_expected() {
    let out = scratch("messages");
    let mut wrong = Vec::new();
    for case in [cases("accept"), cases("reject")].concat() {
        let output = drive(&case, "human", None, &out);
        assert!(output.status.success(), "{case:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        let expected = case.with_extension("stderr");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&expected, &text).unwrap();
        }
        if std::fs::read_to_string(&expected).unwrap_or_default() != text {
            wrong.push(format!("{}:\n{text}", case.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn accepted_programs_behave_as_before() {
    for case in cases("accept") {
        let out = scratch(case.file_stem().unwrap().to_str().unwrap());
        let (source, count) = rewritten(&case, None, &out);
        assert!(count > 0, "{case:?}");
        let [before, after] = behaviours(&case, &source, &out);
        assert_eq!(before, after, "{case:?}:\n{source}");
    }
}

#[test]
fn rejected_programs_have_no_candidates() {
    let out = scratch("rejected");
    for case in cases("reject") {
        let (_, count) = rewritten(&case, None, &out);
        assert_eq!(count, 0, "{case:?}");
    }
}

/// Each case is accepted if the analysis overlooks one class of effects, and its behaviour changes.
#[cfg(feature = "fault")]
#[test]
fn planted_faults_are_detected() {
    let faults = [
        ("mutex", "mutex"),
        ("static", "static"),
        ("thread_local", "thread-local"),
        ("output", "output"),
        ("once_lock", "once-lock"),
        ("panic", "panic"),
        ("question", "question"),
        ("current_dir", "current-dir"),
        ("file_offset", "file-offset"),
        ("count", "count"),
        ("type_name", "location"),
        ("box_move", "capture"),
        ("hook_thread", "hook"),
        ("overflow_stack", "end"),
        ("own_iter", "iter"),
        ("own_iter_mut", "iter"),
        ("stringify", "macro"),
        ("profile", "profile"),
        ("library_catch", "library"),
        ("library_hook", "library"),
        ("overtake", "overtake"),
        ("early_drop", "early-drop"),
        ("product", "associative"),
        ("temporary_life", "early-drop"),
        ("fold_move", "move"),
        ("fold_return", "return"),
        ("fold_first", "first"),
        ("destructor_index", "destructor"),
        ("abort", "abort"),
        ("library_generic", "generic"),
        ("object_static", "implementation"),
        ("object_alias", "implementation"),
        ("stage_taking", "items"),
        ("stage_ahead", "items"),
        ("stage_leave", "leave"),
        ("stage_message", "leave"),
        ("stage_exit", "leave"),
        ("stage_size", "leave"),
        ("stage_result", "results"),
        ("stage_end", "end"),
        ("stage_output", "output"),
        ("stage_hook", "hook"),
    ];
    for (name, fault) in faults {
        let case = folder().join("tests/ui/reject").join(name).with_extension("rs");
        let out = scratch(&format!("fault-{name}"));
        let (source, count) = rewritten(&case, Some(fault), &out);
        assert!(count > 0, "{name} is rejected with the fault, too");
        let [before, after] = behaviours(&case, &source, &out);
        assert_ne!(before, after, "the fault {fault} changes nothing:\n{source}");
    }
}
