//! The archive for all systems, and the package for Debian.

use super::tree::{self, Layout, compress, copy, filled, install, read, set_mode, write};
use super::{CONTAINER, DEBIAN_PROCESSOR, PROCESSOR, Release};
use crate::tool::output;
use crate::workspace::{Workspace, files};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The scripts that dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Writes both into a folder, with the description of a container.
pub(super) fn write_all(
    workspace: &Workspace,
    release: &Release,
    folder: &Path,
) -> Result<(), String> {
    write_tarball(workspace, release, folder)?;
    write_debian(workspace, release, folder)?;
    copy(&workspace.root.join("contrib").join(CONTAINER), &folder.join(CONTAINER))
}

/// The folder in which a package is put together. The folder is removed when the package is
/// complete.
fn stage(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let stage = folder.join("stage").join(name);
    fs::create_dir_all(&stage).map_err(|e| format!("{} cannot be made: {e}", stage.display()))?;
    Ok(stage)
}

fn unstage(folder: &Path) -> Result<(), String> {
    let stage = folder.join("stage");
    fs::remove_dir_all(&stage).map_err(|e| format!("{} cannot be removed: {e}", stage.display()))
}

fn write_tarball(workspace: &Workspace, release: &Release, folder: &Path) -> Result<(), String> {
    let name = format!("corebeat-{}-{}-linux", release.version, PROCESSOR);
    let stage = stage(folder, &name)?;
    let layout =
        Layout { prefix: "/usr/local", libraries: "lib".into(), zsh: "share/zsh/site-functions" };
    install(workspace, release, &layout, &stage)?;
    let values = [("@ARCH@", PROCESSOR), ("@GLIBC@", &*release.glibc)];
    let note = filled(&workspace.root.join("contrib/INSTALL.md"), &values)?;
    write(&stage.join("INSTALL.md"), note.as_bytes())?;
    for file in ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&workspace.root.join(file), &stage.join("share/doc/corebeat").join(file))?;
    }
    tree::set_modes(&stage)?;
    let archive = folder.join(format!("{name}.tar"));
    let mut tar = Command::new("tar");
    tar.env_remove("TAR_OPTIONS");
    tar.args(["--sort=name", "--format=gnu", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{}", release.epoch)).arg("-C").arg(folder.join("stage"));
    output(tar.arg("-cf").arg(&archive).arg(&name))?;
    compress(&[archive])?;
    unstage(folder)
}

fn write_debian(workspace: &Workspace, release: &Release, folder: &Path) -> Result<(), String> {
    let stage = stage(folder, "debian")?;
    let contrib = workspace.root.join("contrib/debian");
    let layout = Layout {
        prefix: "/usr",
        libraries: format!("lib/{PROCESSOR}-linux-gnu"),
        zsh: "share/zsh/vendor-completions",
    };
    let usr = stage.join("usr");
    install(workspace, release, &layout, &usr)?;
    let documents = usr.join("share/doc/corebeat");
    // The text of the license MIT, indented, with a dot for an empty line.
    let license = read(&workspace.root.join("LICENSE-MIT"))?;
    let indented =
        license.lines().map(|line| format!(" {}\n", if line.is_empty() { "." } else { line }));
    let copyright = read(&contrib.join("copyright"))? + &indented.collect::<String>();
    write(&documents.join("copyright"), copyright.as_bytes())?;
    copy(&workspace.root.join("CHANGELOG.md"), &documents.join("changelog"))?;
    write(&documents.join("changelog.Debian"), debian_changelog(release)?.as_bytes())?;
    compress(&["changelog", "changelog.Debian", "THIRD-PARTY.txt"].map(|n| documents.join(n)))?;
    copy(&contrib.join("lintian-overrides"), &usr.join("share/lintian/overrides/corebeat"))?;
    let control = stage.join("DEBIAN");
    let is_file = |file: &PathBuf| file.symlink_metadata().is_ok_and(|m| m.is_file());
    let installed: Vec<PathBuf> = files(&usr, "").into_iter().filter(is_file).collect();
    let size = installed.iter().filter_map(|file| fs::metadata(file).ok()).map(|m| m.len()).sum();
    let size = u64::div_ceil(size, 1024).to_string();
    let values = [
        ("@VERSION@", &*release.version),
        ("@ARCHITECTURE@", DEBIAN_PROCESSOR),
        ("@SIZE@", &size),
        ("@GLIBC@", &release.glibc),
    ];
    let text = filled(&contrib.join("control.in"), &values)?;
    write(&control.join("control"), text.as_bytes())?;
    let names = installed.iter().filter_map(|file| file.strip_prefix(&stage).ok());
    let sums = output(Command::new("md5sum").args(names).current_dir(&stage))?;
    write(&control.join("md5sums"), sums.as_bytes())?;
    let shlibs = format!("libcorebeat {} corebeat (>= {})\n", release.abi(), release.version);
    write(&control.join("shlibs"), shlibs.as_bytes())?;
    write(&control.join("triggers"), b"activate-noawait ldconfig\n")?;
    for script in SCRIPTS {
        copy(&contrib.join(script), &control.join(script))?;
    }
    tree::set_modes(&stage)?;
    for script in SCRIPTS {
        set_mode(&control.join(script), 0o755)?;
    }
    // Several threads of xz write other bytes than one.
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.env("SOURCE_DATE_EPOCH", &release.epoch).env("DPKG_DEB_THREADS_MAX", "1");
    output(dpkg.args(["--root-owner-group", "-Zxz", "--build"]).arg(&stage).arg(folder))?;
    unstage(folder)
}

/// The changelog that Debian requires beside the one of the project.
fn debian_changelog(release: &Release) -> Result<String, String> {
    let mut date = Command::new("date");
    date.env("LC_ALL", "C").args(["--utc", "--rfc-email", "-d", &format!("@{}", release.epoch)]);
    Ok(format!(
        "corebeat ({}-1) unstable; urgency=medium\n\n  * A release of the project; changelog.gz lists \
         its changes.\n\n -- The Corebeat developers <corebeat@users.noreply.github.com>  {}",
        release.version,
        output(&mut date)?
    ))
}
