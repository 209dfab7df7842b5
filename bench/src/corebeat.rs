//! The program `corebeat`, built from this tree.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds it as this program was built, and says where it is.
pub(crate) fn build() -> Result<PathBuf, String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--package", "corebeat-cli", "--bin", "corebeat"]);
    cargo.arg("--message-format=json-render-diagnostics");
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let built = cargo.current_dir(root).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let built = built.map_err(|e| format!("cargo could not be started: {e}"))?;
    if !built.status.success() {
        return Err("corebeat could not be built; cargo says why above".into());
    }
    let told = String::from_utf8_lossy(&built.stdout);
    executable(&told).ok_or_else(|| "cargo did not say where it put corebeat".into())
}

/// Where cargo's messages say that the program is.
fn executable(messages: &str) -> Option<PathBuf> {
    let message = |line| serde_json::from_str::<serde_json::Value>(line).ok();
    messages
        .lines()
        .filter_map(message)
        .filter(|m| m["reason"] == "compiler-artifact" && m["target"]["name"] == "corebeat")
        .find_map(|m| Some(PathBuf::from(m["executable"].as_str()?)))
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
        assert_eq!(executable(messages), Some("/t/release/corebeat".into()));
        assert_eq!(executable(""), None);
    }
}
