//! Builds and tests the compiler driver of `cargo autofuture` with its own toolchain.

use crate::page::read;
use crate::step::{Outcome, run_cargo};
use crate::workspace::Workspace;
use std::path::Path;
use std::process::{Command, Stdio};

/// The folder of the driver, which is not a member of the workspace.
pub(crate) const FOLDER: &str = "crates/app/corebeat-effect";

/// The toolchain of the driver, or how to get it.
pub(crate) fn toolchain(workspace: &Workspace) -> Result<Result<String, String>, String> {
    let text = read(&workspace.root.join(FOLDER).join("rust-toolchain.toml"))?;
    let channel = text.lines().find_map(|line| line.strip_prefix("channel = "));
    let name = channel.ok_or("rust-toolchain.toml names no channel")?.trim_matches('"');
    let installed = Command::new("rustup")
        .args(["component", "list", "--installed", "--toolchain", name])
        .stderr(Stdio::null())
        .output();
    let has_compiler = installed.is_ok_and(|output| {
        output.status.success()
            && String::from_utf8_lossy(&output.stdout).lines().any(|l| l.starts_with("rustc-dev"))
    });
    Ok(if has_compiler {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "there is no toolchain {name} with rustc-dev (rustup toolchain install {name} \
             --profile minimal --component rustc-dev,llvm-tools,rust-src)"
        ))
    })
}

/// Tests the driver with planted faults and without, and the command with the driver.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome, String> {
    let name = match toolchain(workspace)? {
        Ok(name) => name,
        Err(missing) => return Ok(Outcome::Skipped(missing)),
    };
    let manifest = workspace.root.join(FOLDER).join("Cargo.toml");
    let manifest = manifest.to_str().ok_or("the name of the folder is not UTF-8")?;
    let target = workspace.target_directory.join("effect");
    let target_text = target.to_str().ok_or("the target folder's name is not UTF-8")?;
    let toolchain = format!("+{name}");
    let test = |more: &[&str]| {
        let common = [&toolchain, "test", "--locked", "--manifest-path", manifest];
        run_cargo(&[&common[..], more].concat(), &[("CARGO_TARGET_DIR", target_text)])
    };
    test(&["--features", "fault"])?;
    // Without the feature, the variable that selects a fault has no effect.
    test(&["--test", "driver", "rejected"])?;
    let driver = target.join("debug").join("corebeat-effect");
    run_command(&driver)
}

/// Rewrites many random programs, and runs them with corebeat-future under seeds.
pub(crate) fn soak(workspace: &Workspace, minutes: &str) -> Result<Outcome, String> {
    let name = match toolchain(workspace)? {
        Ok(name) => name,
        Err(missing) => return Ok(Outcome::Skipped(missing)),
    };
    let manifest = workspace.root.join(FOLDER).join("Cargo.toml");
    let manifest = manifest.to_str().ok_or("the name of the folder is not UTF-8")?;
    let target = workspace.target_directory.join("effect");
    let target = target.to_str().ok_or("the target folder's name is not UTF-8")?;
    let toolchain = format!("+{name}");
    let args = [&toolchain, "test", "--locked", "--manifest-path", manifest];
    let test = ["--test", "generated", "--", "--nocapture"];
    let variables = [("CARGO_TARGET_DIR", target), ("COREBEAT_SOAK", minutes)];
    run_cargo(&[&args[..], &test].concat(), &variables).map(|()| Outcome::Passed)
}

/// Tests the command with a driver.
fn run_command(driver: &Path) -> Result<Outcome, String> {
    let driver = driver.to_str().ok_or("the name of the driver is not UTF-8")?;
    let tests = ["test", "-p", "cargo-autofuture", "--features", "driver", "--test", "command"];
    run_cargo(&tests, &[("AUTOFUTURE_DRIVER", driver)]).map(|()| Outcome::Passed)
}
