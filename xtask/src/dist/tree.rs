//! The tree of files that a package installs.

use super::{Release, soname};
use crate::tool::output;
use crate::workspace::{Workspace, files};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The places of files in a package.
#[derive(Debug)]
pub(super) struct Layout {
    /// The folder in which the package is installed.
    pub(super) prefix: &'static str,
    /// The folder of libraries, below the prefix.
    pub(super) libraries: String,
    /// The folder of completions for zsh, below the prefix.
    pub(super) zsh: &'static str,
}

/// Writes the files of the program and the library, as they are below the prefix.
pub(super) fn install(
    workspace: &Workspace,
    release: &Release,
    layout: &Layout,
    folder: &Path,
) -> Result<(), String> {
    let contrib = workspace.root.join("contrib");
    copy(&release.program, &folder.join("bin/corebeat"))?;
    install_pages(layout, folder)?;
    install_library(workspace, release, layout, folder)?;
    let units = [
        ("corebeat.service", "lib/systemd/system/corebeat.service"),
        ("corebeat-user.service", "lib/systemd/user/corebeat.service"),
        ("corebeat.sysusers.conf", "lib/sysusers.d/corebeat.conf"),
    ];
    for (unit, place) in units {
        let text = read(&contrib.join("systemd").join(unit))?;
        let text = text.replace("/usr/bin/", &format!("{}/bin/", layout.prefix));
        write(&folder.join(place), text.as_bytes())?;
    }
    write(&folder.join("share/doc/corebeat/THIRD-PARTY.txt"), release.licenses.as_bytes())
}

/// Writes the man pages and the completions, by the program itself.
fn install_pages(layout: &Layout, folder: &Path) -> Result<(), String> {
    let share = folder.join("share");
    output(Command::new(folder.join("bin/corebeat")).arg("generate").arg(&share))?;
    let (made, zsh) = (share.join("zsh/site-functions"), folder.join(layout.zsh));
    if made != zsh {
        fs::rename(&made, &zsh).map_err(|e| failed("moved", &made, &e))?;
    }
    compress(&files(&share.join("man"), ".1"))
}

fn install_library(
    workspace: &Workspace,
    release: &Release,
    layout: &Layout,
    folder: &Path,
) -> Result<(), String> {
    let libraries = folder.join(&layout.libraries);
    let (name, soname) = (format!("libcorebeat.so.{}", release.version), soname(&release.version));
    copy(&release.library, &libraries.join(&name))?;
    // Only programs are executable.
    set_mode(&libraries.join(&name), 0o644)?;
    for link in [&*soname, "libcorebeat.so"] {
        let link = libraries.join(link);
        symlink(&name, &link).map_err(|e| failed("made", &link, &e))?;
    }
    let headers = workspace.root.join("crates/bind/corebeat-c/include");
    for header in files(&headers, ".h") {
        let name = header.strip_prefix(&headers).unwrap_or(&header);
        copy(&header, &folder.join("include/corebeat").join(name))?;
    }
    // From the folder of libraries to the prefix.
    let up = vec![".."; Path::new(&layout.libraries).components().count()].join("/");
    let values = [
        ("@PREFIX@", layout.prefix),
        ("@LIBDIR@", &layout.libraries),
        ("@UP@", &up),
        ("@VERSION@", &release.version),
        ("@ABI@", release.abi()),
        ("@SONAME@", &soname),
    ];
    let templates = [
        ("corebeat.pc", "pkgconfig"),
        ("corebeat-config.cmake", "cmake/corebeat"),
        ("corebeat-config-version.cmake", "cmake/corebeat"),
    ];
    for (file, place) in templates {
        let template = workspace.root.join("contrib/lib").join(format!("{file}.in"));
        write(&libraries.join(place).join(file), filled(&template, &values)?.as_bytes())?;
    }
    Ok(())
}

/// The text of a template with its values.
pub(super) fn filled(template: &Path, values: &[(&str, &str)]) -> Result<String, String> {
    Ok(values.iter().fold(read(template)?, |text, (name, value)| text.replace(name, value)))
}

/// Replaces files by compressed ones that contain neither their names nor their times.
pub(super) fn compress(files: &[PathBuf]) -> Result<(), String> {
    output(Command::new("gzip").env_remove("GZIP").arg("-9n").args(files)).map(drop)
}

pub(super) fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|e| failed("read", file, &e))
}

/// Copies a file. The copy is executable if the file is; other permissions are the usual ones.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let content = fs::read(from).map_err(|e| failed("read", from, &e))?;
    write(to, &content)?;
    let mode = fs::metadata(from).map_err(|e| failed("read", from, &e))?.permissions().mode();
    set_mode(to, if mode & 0o100 != 0 { 0o755 } else { 0o644 })
}

/// Writes a file, and the folders above it.
pub(super) fn write(file: &Path, content: &[u8]) -> Result<(), String> {
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).map_err(|e| failed("made", folder, &e))?;
    fs::write(file, content).map_err(|e| failed("written", file, &e))?;
    set_mode(file, 0o644)
}

pub(super) fn set_mode(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|e| failed("changed", path, &e))
}

/// Gives a folder, all folders below it, and files that programs have written the usual
/// permissions, whatever the umask is.
pub(super) fn set_modes(folder: &Path) -> Result<(), String> {
    set_mode(folder, 0o755)?;
    for entry in fs::read_dir(folder).map_err(|e| failed("read", folder, &e))?.flatten() {
        let (path, metadata) = (entry.path(), entry.metadata());
        let metadata = metadata.map_err(|e| failed("read", &path, &e))?;
        if metadata.is_dir() {
            set_modes(&path)?;
        } else if metadata.is_file() {
            let is_program = metadata.permissions().mode() & 0o100 != 0;
            set_mode(&path, if is_program { 0o755 } else { 0o644 })?;
        }
    }
    Ok(())
}

/// The message about an operation on a file that failed.
fn failed(operation: &str, path: &Path, why: &std::io::Error) -> String {
    format!("{} cannot be {operation}: {why}", path.display())
}
