//! Builds the program `corebeat`, and the C library of the same name, from this tree.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds the program with the profile of this program, and returns its path.
pub(crate) fn build() -> Result<PathBuf, String> {
    let features: &[&str] =
        if cfg!(feature = "kernel") { &["--features", "corebeat-cli/kernel"] } else { &[] };
    let what = [&["--package", "corebeat-cli", "--bin", "corebeat"], features].concat();
    let messages = cargo_build(&what)?;
    executable(&messages, "corebeat")
        .ok_or_else(|| "cargo did not report the path of corebeat".into())
}

/// Builds the library with the profile of this program, and returns its folder.
pub(crate) fn build_library() -> Result<PathBuf, String> {
    let messages = cargo_build(&["--package", "corebeat-c"])?;
    library(&messages).ok_or_else(|| "cargo did not report the path of libcorebeat.so".into())
}

/// Builds an example with the profile of this program, and returns its path.
pub(crate) fn build_example(package: &str, name: &str) -> Result<PathBuf, String> {
    let messages = cargo_build(&["--package", package, "--example", name])?;
    let path = executable(&messages, name);
    path.ok_or_else(|| format!("cargo did not report the path of the example {name}"))
}

fn cargo_build(what: &[&str]) -> Result<String, String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.arg("build").args(what);
    cargo.arg("--message-format=json-render-diagnostics");
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let built = cargo.current_dir(root).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let built = built.map_err(|e| format!("cannot start cargo: {e}"))?;
    if !built.status.success() {
        return Err("cannot build corebeat; cargo prints the reason above".into());
    }
    Ok(String::from_utf8_lossy(&built.stdout).into_owned())
}

/// The artifacts with this name in the messages of cargo.
fn artifacts(messages: &str, name: &str) -> impl Iterator<Item = serde_json::Value> {
    let message = |line| serde_json::from_str::<serde_json::Value>(line).ok();
    let is_ours = move |m: &serde_json::Value| {
        m["reason"] == "compiler-artifact" && m["target"]["name"] == name
    };
    messages.lines().filter_map(message).filter(is_ours)
}

/// The path of a program.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    artifacts(messages, name).find_map(|m| Some(PathBuf::from(m["executable"].as_str()?)))
}

/// The folder of the library.
fn library(messages: &str) -> Option<PathBuf> {
    let shared = |m: serde_json::Value| {
        let files =
            m["filenames"].as_array()?.iter().filter_map(|name| name.as_str().map(PathBuf::from));
        files
            .into_iter()
            .find(|file| file.ends_with("libcorebeat.so"))?
            .parent()
            .map(Path::to_owned)
    };
    artifacts(messages, "corebeat").find_map(shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_is_found_among_other_messages() {
        let messages = r#"
not json
{"reason":"compiler-artifact","target":{"name":"clap"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"corebeat"},"executable":"/t/release/corebeat"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "corebeat"), Some("/t/release/corebeat".into()));
        assert_eq!(executable("", "corebeat"), None);
    }

    #[test]
    fn library_is_found_by_its_file() {
        let message = r#"{"reason":"compiler-artifact","target":{"name":"corebeat"},"executable":null,
            "filenames":["/t/release/libcorebeat.a","/t/release/libcorebeat.so"]}"#;
        assert_eq!(library(&message.replace('\n', "")), Some("/t/release".into()));
        assert_eq!(library(""), None);
    }
}
