//! Builds the packages of a release into `target/dist`: `cargo xtask dist`.
//!
//! Equal commits give equal archives: the time of the commit replaces all times, names are sorted,
//! all files belong to root, and no program contains a path of this machine.

mod archive;
mod check;
mod license;
mod tree;

use crate::python;
use crate::step::run_cargo;
use crate::tool::{find, output};
use crate::workspace::Workspace;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The tools that build the packages, and the package of Debian with each.
const TOOLS: [(&str, &str); 8] = [
    ("git", "git"),
    ("cc", "gcc"),
    ("objdump", "binutils"),
    ("tar", "tar"),
    ("gzip", "gzip"),
    ("dpkg-deb", "dpkg"),
    ("md5sum", "coreutils"),
    ("sha256sum", "coreutils"),
];
/// The processor, by its names in Rust and in Debian.
const PROCESSOR: &str = "x86_64";
const DEBIAN_PROCESSOR: &str = "amd64";
/// The program, which has the version of the release.
const PROGRAM: &str = "corebeat-cli";
/// The files of a release, in `target/dist`, which are not archives.
const CONTAINER: &str = "Containerfile";
const SUMS: &str = "SHA256SUMS";

/// A release: what the names and the contents of its packages depend on.
#[derive(Debug)]
struct Release {
    version: String,
    /// Time of the commit in seconds since 1970.
    epoch: String,
    /// Oldest version of glibc that has all functions that the program and the library use.
    glibc: String,
    program: PathBuf,
    library: PathBuf,
    /// The licenses of the crates of other authors.
    licenses: String,
}

impl Release {
    fn abi(&self) -> &str {
        abi(&self.version)
    }
}

/// Major and minor version: before version 1, a new minor version is incompatible.
fn abi(version: &str) -> &str {
    version.rsplit_once('.').map_or(version, |(abi, _)| abi)
}

/// The name by which programs load the library of a version.
fn soname(version: &str) -> String {
    format!("libcorebeat.so.{}", abi(version))
}

/// Builds the packages, and checks them on request: each is installed and used.
pub(crate) fn run(checks: bool) -> Result<(), String> {
    let workspace = Workspace::read()?;
    if let Some((tool, package)) = TOOLS.iter().find(|(tool, _)| find(tool).is_none()) {
        return Err(format!("there is no {tool} (apt-get install {package}, as root)"));
    }
    if !cfg!(target_arch = "x86_64") {
        return Err("packages are built on x86-64 only; 'cargo build --release' builds here".into());
    }
    let is_changed = !git(&workspace, &["status", "--porcelain"])?.is_empty();
    if is_changed {
        println!("dist: the checkout has changes that are in no commit; do not publish the result");
    }
    let release = build(&workspace)?;
    let folder = workspace.target_directory.join("dist");
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .map_err(|e| format!("{} cannot be removed: {e}", folder.display()))?;
    }
    archive::write_all(&workspace, &release, &folder)?;
    package_crates(&workspace, &folder, is_changed)?;
    add_wheel(&workspace, &release, &folder)?;
    sum(&folder)?;
    if checks {
        check::run(&workspace, &release, &folder, is_changed)?;
    }
    let (version, glibc) = (&release.version, &release.glibc);
    println!("\ncorebeat {version}, for glibc {glibc} or later, in {}:", folder.display());
    print!("{}", tree::read(&folder.join(SUMS))?);
    Ok(())
}

/// Adds the Python package, with the program of the release. No check compares it with the package
/// of another build.
fn add_wheel(workspace: &Workspace, release: &Release, folder: &Path) -> Result<(), String> {
    let env = environment(workspace)?;
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    let wheel = python::wheel_with(workspace, &release.program, &env)?;
    let name = wheel.file_name().ok_or("maturin left a file without a name")?;
    let copied = fs::copy(&wheel, folder.join(name));
    copied.map(drop).map_err(|e| format!("{} cannot be copied: {e}", wheel.display()))
}

/// The folder in which cargo builds: the flags differ from those of other builds.
fn build_folder(workspace: &Workspace) -> Result<String, String> {
    let folder = workspace.target_directory.join("dist-build").into_os_string();
    folder.into_string().map_err(|_| "the target folder's name is not UTF-8".into())
}

/// The environment of the builds of a release: no symbols, and no paths of this machine.
fn environment(workspace: &Workspace) -> Result<[(&'static str, String); 4], String> {
    let cargo_home = std::env::var("CARGO_HOME").or_else(|_| {
        std::env::var("HOME")
            .map(|home| home + "/.cargo")
            .map_err(|_| "HOME is not set; set it, or CARGO_HOME")
    })?;
    // The flags are separated by the character 31, because paths may contain spaces.
    let flags = format!(
        "--remap-path-prefix={}=/corebeat\u{1f}--remap-path-prefix={cargo_home}=/cargo",
        workspace.root.display()
    );
    Ok([
        ("CARGO_ENCODED_RUSTFLAGS", flags),
        ("CARGO_TARGET_DIR", build_folder(workspace)?),
        ("CARGO_PROFILE_RELEASE_STRIP", "symbols".into()),
        ("CARGO_INCREMENTAL", "0".into()),
    ])
}

/// Builds the program and the library.
fn build(workspace: &Workspace) -> Result<Release, String> {
    let version = workspace.package(PROGRAM)?.version.clone();
    let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => epoch,
        Err(_) => git(workspace, &["log", "-1", "--format=%ct"])?,
    };
    let env = environment(workspace)?;
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    let soname = format!("link-arg=-Wl,-soname,{}", soname(&version));
    run_cargo(&["build", "--release", "--locked", "-p", PROGRAM], &env)?;
    let library = ["rustc", "--release", "--locked", "-p", "corebeat-c", "--lib"];
    run_cargo(&[&library[..], &["--crate-type", "cdylib", "--", "-C", &soname]].concat(), &env)?;
    let built = Path::new(&build_folder(workspace)?).join("release");
    let (program, library) = (built.join("corebeat"), built.join("libcorebeat.so"));
    let minor = glibc(&program)?.max(glibc(&library)?);
    let licenses = license::texts(workspace)?;
    Ok(Release { version, epoch, glibc: format!("2.{minor}"), program, library, licenses })
}

/// The libraries that a program may need: those of glibc, and the one of gcc that unwinds stacks.
const LIBRARIES: [&str; 4] = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"];

/// The minor version of glibc, 2.x, that a file needs.
fn glibc(file: &Path) -> Result<u32, String> {
    let text = output(Command::new("objdump").arg("-p").arg(file))?;
    minor_of_glibc(&text).map_err(|why| format!("{} {why}", file.display()))
}

/// The minor version of glibc in the output of `objdump -p`.
///
/// # Errors
/// If a file needs a library that is not listed in [`LIBRARIES`]: the packages do not name it.
fn minor_of_glibc(text: &str) -> Result<u32, String> {
    let needed = text.lines().filter_map(|line| line.trim().strip_prefix("NEEDED"));
    if let Some(other) = needed.map(str::trim).find(|name| !LIBRARIES.contains(name)) {
        return Err(format!("needs {other}, not a library of glibc or gcc: link it statically"));
    }
    let minor = |line: &str| {
        let version = line.split_once(" GLIBC_2.")?.1;
        version.split('.').next()?.trim().parse().ok()
    };
    text.lines().filter_map(minor).max().ok_or_else(|| "needs no version of glibc".into())
}

/// Packs the crates that are published, without a build of them.
fn package_crates(workspace: &Workspace, folder: &Path, is_changed: bool) -> Result<(), String> {
    let target = build_folder(workspace)?;
    let packed = Path::new(&target).join("package");
    // Crates of other versions may be there.
    let _ = fs::remove_dir_all(&packed);
    let args = published(workspace, &["package", "--no-verify"], is_changed);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    run_cargo(&args, &[("CARGO_TARGET_DIR", &target)])?;
    for file in crate::workspace::files(&packed, ".crate") {
        let name = file.file_name().ok_or("a crate has no name")?;
        tree::copy(&file, &folder.join("crates").join(name))?;
    }
    Ok(())
}

/// The arguments of cargo for all crates that are published.
fn published(workspace: &Workspace, command: &[&str], is_changed: bool) -> Vec<String> {
    let mut args: Vec<String> =
        command.iter().chain(&["--workspace", "--locked"]).map(|arg| (*arg).into()).collect();
    for package in workspace.packages.iter().filter(|package| !package.is_published()) {
        args.extend(["--exclude".into(), package.name.clone()]);
    }
    args.extend(is_changed.then(|| "--allow-dirty".into()));
    args
}

/// Writes the checksums of all files of a release.
fn sum(folder: &Path) -> Result<(), String> {
    let files = crate::workspace::files(folder, "");
    let names = files.iter().filter_map(|file| file.strip_prefix(folder).ok());
    let sums = output(Command::new("sha256sum").args(names).current_dir(folder))?;
    tree::write(&folder.join(SUMS), sums.as_bytes())
}

/// The output of git in this checkout.
fn git(workspace: &Workspace, args: &[&str]) -> Result<String, String> {
    let line = output(Command::new("git").args(args).current_dir(&workspace.root));
    line.map(|line| line.trim_end().to_owned())
        .map_err(|why| format!("{why}; packages are built in a checkout of the repository"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_the_library_changes_with_the_minor_version() {
        assert_eq!(soname("0.1.2"), "libcorebeat.so.0.1");
    }

    #[test]
    fn needed_libraries_and_versions_are_read() {
        let text = "  NEEDED               libc.so.6\n\n    0x069691b4 0x00 12 GLIBC_2.34\n    \
                    0x09691a75 0x00 17 GLIBC_2.2.5\n    0x0963cf85 0x00 05 GLIBC_PRIVATE\n";
        assert_eq!(minor_of_glibc(text), Ok(34));
        let other = minor_of_glibc(&text.replace("libc.so.6", "libz.so.1")).unwrap_err();
        assert_eq!(other, "needs libz.so.1, not a library of glibc or gcc: link it statically");
    }

    #[test]
    fn crates_of_the_workspace_have_one_version() {
        let workspace = Workspace::read().unwrap();
        let version = &workspace.package(PROGRAM).unwrap().version;
        let manifest = tree::read(&workspace.root.join("Cargo.toml")).unwrap();
        let named = manifest.lines().filter(|line| line.starts_with("corebeat-"));
        let published = named.filter(|line| line.contains("version = ")).map(|line| {
            assert!(line.contains(&format!("version = \"{version}\"")), "{line}: not {version}");
        });
        assert!(published.count() > 30);
    }

    #[test]
    fn published_crates_have_what_crates_io_shows() {
        let workspace = Workspace::read().unwrap();
        for package in workspace.packages.iter().filter(|package| package.is_published()) {
            let manifest = tree::read(&package.manifest_path).unwrap();
            for part in ["description = ", "keywords = ", "categories = ", "metadata.docs.rs]"] {
                assert!(manifest.contains(part), "{} has no '{part}'", package.name);
            }
            for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
                let folder = workspace.root.join(package.folder(&workspace));
                assert!(folder.join(license).is_file(), "{} has no {license}", package.name);
            }
        }
    }

    #[test]
    fn crates_that_are_not_published_are_excluded() {
        let workspace = Workspace::read().unwrap();
        let args = published(&workspace, &["package"], false);
        assert_eq!(args[..3], ["package", "--workspace", "--locked"]);
        assert!(args.contains(&"xtask".into()) && !args.contains(&PROGRAM.into()), "{args:?}");
    }
}
