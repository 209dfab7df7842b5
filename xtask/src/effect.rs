//! Builds and tests the compiler driver of `cargo autofuture` with its own toolchain.

use crate::page::read;
use crate::step::{Outcome, run_cargo};
use crate::workspace::Workspace;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder of the driver, which is not a member of the workspace.
pub(crate) const FOLDER: &str = "crates/app/corebeat-effect";

/// The nightly toolchain of the driver and of all other steps that need one, or how to get it with
/// this component.
pub(crate) fn nightly(
    workspace: &Workspace,
    component: &str,
) -> Result<Result<String, String>, String> {
    let text = read(&workspace.root.join(FOLDER).join("rust-toolchain.toml"))?;
    let channel = text.lines().find_map(|line| line.strip_prefix("channel = "));
    let name = channel.ok_or("rust-toolchain.toml names no channel")?.trim_matches('"');
    let installed = Command::new("rustup")
        .args(["component", "list", "--installed", "--toolchain", name])
        .stderr(Stdio::null())
        .output();
    let has_component = installed.is_ok_and(|output| {
        output.status.success()
            && String::from_utf8_lossy(&output.stdout).lines().any(|l| l.starts_with(component))
    });
    Ok(if has_component {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "there is no toolchain {name} with {component} (rustup toolchain install {name} \
             --profile minimal --component miri,rustc-dev,llvm-tools,rust-src)"
        ))
    })
}

/// The folder of what is built for the driver.
fn target(workspace: &Workspace) -> PathBuf {
    workspace.target_directory.join("effect")
}

/// Runs tests of the driver with this toolchain, these further arguments and variables.
fn test(
    workspace: &Workspace,
    name: &str,
    more: &[&str],
    variables: &[(&str, &str)],
) -> Result<(), String> {
    let manifest = workspace.root.join(FOLDER).join("Cargo.toml");
    let manifest = manifest.to_str().ok_or("the name of the folder is not UTF-8")?;
    let target = target(workspace);
    let target = target.to_str().ok_or("the target folder's name is not UTF-8")?;
    let toolchain = format!("+{name}");
    let common = [&toolchain, "test", "--locked", "--manifest-path", manifest];
    let variables = [&[("CARGO_TARGET_DIR", target)], variables].concat();
    run_cargo(&[&common[..], more].concat(), &variables)
}

/// Tests the driver with planted faults and without, and the command with the driver.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome, String> {
    let name = match nightly(workspace, "rustc-dev")? {
        Ok(name) => name,
        Err(missing) => return Ok(Outcome::Skipped(missing)),
    };
    test(workspace, &name, &["--features", "fault"], &[])?;
    // Without the feature, the variable that selects a fault has no effect.
    test(workspace, &name, &["--test", "driver", "rejected"], &[])?;
    run_command(&target(workspace).join("debug").join("corebeat-effect"))
}

/// Rewrites many random programs, and runs them with corebeat-future under seeds.
pub(crate) fn soak(workspace: &Workspace, minutes: &str) -> Result<Outcome, String> {
    let name = match nightly(workspace, "rustc-dev")? {
        Ok(name) => name,
        Err(missing) => return Ok(Outcome::Skipped(missing)),
    };
    let arguments = ["--test", "generated", "--", "--nocapture"];
    test(workspace, &name, &arguments, &[("COREBEAT_SOAK", minutes)])?;
    Ok(Outcome::Passed)
}

/// Tests the command with a driver.
fn run_command(driver: &Path) -> Result<Outcome, String> {
    let driver = driver.to_str().ok_or("the name of the driver is not UTF-8")?;
    let tests = ["test", "-p", "cargo-autofuture", "--features", "driver", "--test", "command"];
    run_cargo(&tests, &[("AUTOFUTURE_DRIVER", driver)]).map(|()| Outcome::Passed)
}
