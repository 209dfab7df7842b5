//! The toolchain of the driver, and the driver itself.

use crate::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder of the driver in the checkout from which this program was built.
const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../corebeat-effect");

/// The pinned toolchain of the driver.
#[derive(Debug)]
pub(crate) struct Toolchain {
    pub(crate) name: String,
}

/// The channel in the text of a `rust-toolchain.toml`.
fn channel(text: &str) -> Option<&str> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("channel"))?;
    Some(line.trim_start().strip_prefix('=')?.trim().trim_matches('"'))
}

const PINNED: &str = include_str!("../../corebeat-effect/rust-toolchain.toml");

impl Toolchain {
    /// Finds the toolchain among the installed ones.
    pub(crate) fn find() -> Result<Toolchain, Error> {
        let toolchain = Toolchain { name: channel(PINNED).unwrap_or("nightly").to_owned() };
        let installed = Command::new("rustup")
            .args(["component", "list", "--installed", "--toolchain", &toolchain.name])
            .stderr(Stdio::null())
            .output();
        let has_compiler = installed.is_ok_and(|output| {
            output.status.success()
                && String::from_utf8_lossy(&output.stdout)
                    .lines()
                    .any(|line| line.starts_with("rustc-dev"))
        });
        if has_compiler { Ok(toolchain) } else { Err(Error::Toolchain { name: toolchain.name }) }
    }

    /// Cargo of this toolchain, without what a cargo that runs this program has set.
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = Command::new("rustup");
        cargo.args(["run", &self.name, "cargo"]);
        let own = ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "RUSTDOC", "LD_LIBRARY_PATH"];
        for name in own.into_iter().chain(["RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"]) {
            cargo.env_remove(name);
        }
        cargo
    }

    /// Builds the driver in the target folder of the checkout, unless it is there.
    pub(crate) fn build_driver(&self) -> Result<PathBuf, Error> {
        let folder = PathBuf::from(DRIVER);
        let manifest = folder.join("Cargo.toml");
        if !manifest.exists() {
            return Err(Error::NoDriver(folder));
        }
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) => PathBuf::from(target),
            None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target"),
        };
        let target = target.join("effect");
        let target = std::path::absolute(&target).map_err(Error::file(&target))?;
        // The configuration and the flags of the package are not for the driver.
        let mut cargo = self.cargo();
        cargo.current_dir(&folder);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let starts = ["CARGO_PROFILE_", "CARGO_BUILD_", "CARGO_TARGET_", "CARGO_ENCODED_"];
            if text == "RUSTFLAGS" || starts.iter().any(|start| text.starts_with(start)) {
                cargo.env_remove(&name);
            }
        }
        let status = cargo
            .args(["build", "--release", "--locked", "--quiet", "--manifest-path"])
            .arg(&manifest)
            .arg("--target-dir")
            .arg(&target)
            .status()
            .map_err(|source| Error::Start { program: "rustup".into(), source })?;
        if !status.success() {
            return Err(Error::Driver(folder));
        }
        let driver = target.join("release").join("corebeat-effect");
        driver.canonicalize().map_err(Error::file(driver))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_toolchain_of_the_driver_is_pinned() {
        let name = channel(PINNED).unwrap();
        assert!(name.starts_with("nightly-20"), "{name}");
        assert_eq!(channel("[toolchain]\nchannel = \"x\"\n"), Some("x"));
        assert_eq!(channel("profile = \"x\""), None);
    }
}
