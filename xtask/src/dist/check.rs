//! Installs each package where nothing else of Corebeat is, and uses its parts.

use super::{Release, archive, build_folder, published, tree};
use crate::step::run_cargo;
use crate::tool::{find, output};
use crate::workspace::{Workspace, files};
use rustix::process::geteuid;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The scripts of the check, and the program in C that is built with the installed library.
const ENTER: &str = include_str!("enter.sh");
const CHECK: &str = include_str!("check.sh");
const PROGRAM: &str = "crates/bind/corebeat-c/examples/heartbeat.c";
/// The name of the container's image, which is removed after the check.
const IMAGE: &str = "corebeat-dist-check";

pub(super) fn run(
    workspace: &Workspace,
    release: &Release,
    folder: &Path,
    is_changed: bool,
) -> Result<(), String> {
    println!("\n==== equal archives");
    compare(workspace, release, folder)?;
    println!("\n==== packages in an empty environment");
    install(workspace, release, folder)?;
    println!("\n==== lintian");
    match find("lintian") {
        Some(_) => print!("{}", lint(folder)?),
        None => println!("skipped: there is no lintian (apt-get install lintian, as root)"),
    }
    println!("\n==== container");
    container(release, folder)?;
    println!("\n==== crates");
    let args = published(workspace, &["publish", "--dry-run"], is_changed);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let target = build_folder(workspace)?;
    // Debug information would take most of the time and of the disk.
    run_cargo(&args, &[("CARGO_TARGET_DIR", &target), ("CARGO_PROFILE_DEV_DEBUG", "0")])
}

/// Writes the archives again, and compares their bytes.
fn compare(workspace: &Workspace, release: &Release, folder: &Path) -> Result<(), String> {
    let again = workspace.target_directory.join("dist-again");
    let _ = fs::remove_dir_all(&again);
    archive::write_all(workspace, release, &again)?;
    let pairs = files(&again, "");
    let differs = |file: &&std::path::PathBuf| {
        let first = folder.join(file.file_name().unwrap_or_default());
        fs::read(first).ok() != fs::read(file).ok()
    };
    let different = pairs.iter().find(differs);
    if let Some(file) = different {
        return Err(format!("{} differs from the file of the first build", file.display()));
    }
    println!("{} files are equal", pairs.len());
    let _ = fs::remove_dir_all(&again);
    Ok(())
}

/// Installs the archive and the package for Debian, each in namespaces of its own.
fn install(workspace: &Workspace, release: &Release, folder: &Path) -> Result<(), String> {
    if !geteuid().is_root() {
        println!("skipped: a copy of this system needs root (sudo -E cargo xtask dist --check)");
        return Ok(());
    }
    let given = workspace.target_directory.join("dist-given");
    let _ = fs::remove_dir_all(&given);
    for name in [".tar.gz", ".deb"] {
        for file in files(folder, name) {
            tree::copy(&file, &given.join(file.file_name().unwrap_or_default()))?;
        }
    }
    tree::copy(&workspace.root.join(PROGRAM), &given.join("heartbeat.c"))?;
    tree::write(&given.join("enter.sh"), ENTER.as_bytes())?;
    tree::write(&given.join("check.sh"), CHECK.as_bytes())?;
    for kind in ["archive", "debian"] {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child"]);
        unshare.arg("sh").arg(given.join("enter.sh")).arg(&workspace.root).arg(&given);
        unshare.args([kind, &release.version]).stdin(Stdio::null());
        let status = unshare.status().map_err(|e| format!("unshare could not be started: {e}"))?;
        if !status.success() {
            return Err(format!("the package '{kind}' failed its check, see above ({status})"));
        }
    }
    let _ = fs::remove_dir_all(&given);
    Ok(())
}

/// The remarks of lintian about the package for Debian.
///
/// # Errors
/// If one is an error.
fn lint(folder: &Path) -> Result<String, String> {
    output(Command::new("lintian").args(["--fail-on", "error"]).args(files(folder, ".deb")))
}

/// Builds the container, and runs the program in it.
fn container(release: &Release, folder: &Path) -> Result<(), String> {
    let works = |tool: &&str| output(Command::new(tool).arg("info")).is_ok();
    let Some(tool) = ["podman", "docker"].into_iter().find(works) else {
        println!("skipped: neither podman nor docker runs here (apt-get install podman, as root)");
        return Ok(());
    };
    let file = folder.join(super::CONTAINER);
    output(Command::new(tool).args(["build", "-t", IMAGE, "-f"]).arg(file).arg(folder))?;
    let version = output(Command::new(tool).args(["run", "--rm", IMAGE, "--version"]));
    let _ = output(Command::new(tool).args(["rmi", IMAGE]));
    let version = version?;
    if !version.starts_with(&format!("corebeat {}\n", release.version)) {
        return Err(format!("the container runs another version: {version}"));
    }
    print!("{version}");
    Ok(())
}
