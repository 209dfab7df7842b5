//! Runs a trial in a process of its own.

use crate::trial::{Plan, Site, VARIABLE, Verdict};
use serde::Deserialize;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Why a trial has no verdicts.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The compiler refuses these sites, for this reason and at this place.
    Refused(Vec<(usize, String, (PathBuf, u32, u32))>),
    /// The compiler refuses something outside all sites, or did not run.
    Elsewhere(String),
}

/// A diagnostic of the compiler, as far as it matters here.
#[derive(Debug, Deserialize)]
struct Diagnostic {
    message: String,
    level: String,
    spans: Vec<DiagnosticSpan>,
}

#[derive(Debug, Deserialize)]
struct DiagnosticSpan {
    file_name: String,
    byte_start: u32,
    byte_end: u32,
    is_primary: bool,
    expansion: Option<Box<Expansion>>,
}

#[derive(Debug, Deserialize)]
struct Expansion {
    span: DiagnosticSpan,
}

/// Compiles the plan with the arguments of this compilation.
pub(crate) fn run(mut plan: Plan, args: &[String]) -> Result<Vec<Verdict>, Failure> {
    let fail = |what: &str, e: &dyn std::fmt::Display| Failure::Elsewhere(format!("{what}: {e}"));
    let folder = new_folder().map_err(|e| fail("cannot create a folder", &e))?;
    let remove = Remove(folder.clone());
    plan.verdicts = folder.join("verdicts.json");
    let path = folder.join("plan.json");
    let text = serde_json::to_string(&plan).map_err(|e| fail("cannot write the plan", &e))?;
    std::fs::File::create(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|e| fail("cannot write the plan", &e))?;
    let program = std::env::current_exe().map_err(|e| fail("cannot find this program", &e))?;
    let output = Command::new(program)
        .args(arguments(args))
        .env(VARIABLE, &path)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| fail("cannot start the compiler", &e))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let refused = refused(&errors, &plan.sites)?;
    if !refused.is_empty() {
        return Err(Failure::Refused(refused));
    }
    let ended = || {
        let last = errors.lines().last().unwrap_or("no message").to_owned();
        Failure::Elsewhere(format!("the compiler ended without a verdict: {last}"))
    };
    if !output.status.success() {
        return Err(ended());
    }
    let verdicts = std::fs::read_to_string(&plan.verdicts).map_err(|_| ended())?;
    drop(remove);
    serde_json::from_str(&verdicts).map_err(|e| fail("cannot read the verdicts", &e))
}

/// Bound of the folders that other processes with the same number may have left.
const MOST_FOLDERS: u32 = 1000;

/// A folder that was not there before, for this user alone.
fn new_folder() -> std::io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let mut taken = std::io::Error::other("all names are taken");
    for number in 0..MOST_FOLDERS {
        let name = format!("corebeat-effect-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => taken = e,
            Err(e) => return Err(e),
        }
    }
    Err(taken)
}

/// Removes a folder at the end.
struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        // A folder that is left in the temporary folder does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The arguments without outputs, and with errors as JSON.
fn arguments(args: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut args = args.iter().skip(1).peekable();
    while let Some(arg) = args.next() {
        let is_output = ["--emit=", "--out-dir=", "--json=", "--error-format=", "--cap-lints="]
            .iter()
            .any(|start| arg.starts_with(start));
        if is_output || arg.starts_with("-Cincremental=") {
            continue;
        }
        let takes_value = ["--emit", "--out-dir", "-o", "--json", "--error-format", "--cap-lints"];
        if takes_value.contains(&arg.as_str()) {
            args.next();
            continue;
        }
        if arg == "-C" && args.peek().is_some_and(|value| value.starts_with("incremental=")) {
            args.next();
            continue;
        }
        kept.push(arg.clone());
    }
    kept.extend(["--emit=metadata", "--error-format=json", "--cap-lints=allow"].map(String::from));
    kept
}

/// The sites that the errors are about.
fn refused(
    errors: &str,
    sites: &[Site],
) -> Result<Vec<(usize, String, (PathBuf, u32, u32))>, Failure> {
    let mut refused = Vec::new();
    let mut elsewhere = None;
    for line in errors.lines() {
        let Ok(diagnostic) = serde_json::from_str::<Diagnostic>(line) else { continue };
        if !diagnostic.level.starts_with("error") || diagnostic.message.starts_with("aborting") {
            continue;
        }
        let mut places: Vec<(bool, (PathBuf, u32, u32))> = Vec::new();
        for span in &diagnostic.spans {
            let mut at = Some(span);
            while let Some(span) = at {
                if let Ok(file) = PathBuf::from(&span.file_name).canonicalize() {
                    places.push((span.is_primary, (file, span.byte_start, span.byte_end)));
                }
                at = span.expansion.as_ref().map(|expansion| &expansion.span);
            }
        }
        // Errors about borrows may have their main place behind the site.
        places.sort_by_key(|(is_primary, _)| !is_primary);
        let hit = places.iter().find_map(|(_, place)| {
            let site = sites
                .iter()
                .filter(|site| site.file == place.0 && site.start <= place.1 && place.1 < site.end)
                .min_by_key(|site| site.end - site.start)?;
            Some((site.number, place.clone()))
        });
        match hit {
            Some((number, place)) => refused.push((number, diagnostic.message, place)),
            None => elsewhere = elsewhere.or(Some(diagnostic.message)),
        }
    }
    match elsewhere {
        Some(message) if refused.is_empty() => Err(Failure::Elsewhere(message)),
        _ => Ok(refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_left_out() {
        let args = "rustc --crate-name a src/lib.rs --error-format=json --json=x --emit=metadata \
                    -C incremental=/i -C opt-level=0 --out-dir /o --cap-lints warn -L d";
        let args: Vec<String> = args.split_whitespace().map(String::from).collect();
        let kept = arguments(&args).join(" ");
        let expected = "--crate-name a src/lib.rs -C opt-level=0 -L d --emit=metadata \
                        --error-format=json --cap-lints=allow";
        assert_eq!(kept, expected);
    }

    #[test]
    fn folders_are_new_and_for_one_user() {
        use std::os::unix::fs::PermissionsExt;
        let (one, other) = (new_folder().unwrap(), new_folder().unwrap());
        assert_ne!(one, other);
        assert_eq!(std::fs::metadata(&one).unwrap().permissions().mode() & 0o777, 0o700);
        // The verdicts of a killed process are not read: its folder is not used again.
        std::fs::write(one.join("verdicts.json"), "[]").unwrap();
        drop(Remove(one.clone()));
        assert!(!one.exists());
        drop(Remove(other));
    }

    #[test]
    fn a_compiler_that_fails_without_errors_has_no_verdicts() {
        // This program is no compiler, and refuses the arguments.
        let args: Vec<String> = ["rustc", "--no-such-option"].map(String::from).to_vec();
        let Err(Failure::Elsewhere(why)) = run(Plan::default(), &args) else {
            panic!("a failed trial has verdicts");
        };
        assert!(why.starts_with("the compiler ended without a verdict"), "{why}");
    }

    #[test]
    fn an_error_outside_all_sites_is_not_ignored() {
        let line = r#"{"message":"m","level":"error","spans":[],"children":[]}"#;
        assert!(matches!(refused(line, &[]), Err(Failure::Elsewhere(m)) if m == "m"));
        let end = r#"{"message":"aborting due to 1 error","level":"error","spans":[]}"#;
        assert!(refused(end, &[]).unwrap().is_empty());
    }
}
