//! Runs `cargo check` with the driver as the compiler, and reads what it reports.

use crate::Options;
use crate::error::Error;
use crate::finding::{Finding, Line, Target, merge};
use crate::toolchain::Toolchain;
use clap::ValueEnum;
use serde::Deserialize;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The package or workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Project {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    pub(crate) target_directory: PathBuf,
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    manifest_path: PathBuf,
    targets: Vec<Target>,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    rename: Option<String>,
    target: Option<String>,
    #[serde(default)]
    optional: bool,
}

impl Project {
    /// Reads the project from `cargo metadata`.
    pub(crate) fn read(options: &Options) -> Result<Project, Error> {
        let mut cargo = Command::new(own_cargo());
        cargo.args(["metadata", "--format-version", "1", "--no-deps"]);
        add_manifest(&mut cargo, options);
        let output =
            cargo.output().map_err(|source| Error::Start { program: "cargo".into(), source })?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
            return Err(Error::Package(line.trim_start_matches("error: ").to_owned()));
        }
        serde_json::from_slice(&output.stdout).map_err(|e| Error::Package(e.to_string()))
    }

    /// Whether the package of this Cargo.toml depends on `corebeat-future` in all its code.
    pub(crate) fn has_runtime(&self, manifest: &Path) -> bool {
        let package = self.packages.iter().find(|package| package.manifest_path == manifest);
        package.is_some_and(|package| {
            package.dependencies.iter().any(|of| {
                of.name == "corebeat-future"
                    && of.kind.is_none()
                    && of.rename.is_none()
                    && of.target.is_none()
                    && !of.optional
            })
        })
    }

    /// The folder for files of this command.
    pub(crate) fn folder(&self) -> PathBuf {
        self.target_directory.join("autofuture")
    }
}

/// The cargo of the user.
pub(crate) fn own_cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

fn add_manifest(cargo: &mut Command, options: &Options) {
    if let Some(path) = &options.manifest_path {
        // Cargo reads its configuration from the current folder. That of the package counts: it may
        // have profiles and flags of the compiler.
        let absolute = path.canonicalize().unwrap_or_else(|_| path.clone());
        if let Some(folder) = absolute.parent().filter(|folder| folder.is_dir()) {
            cargo.current_dir(folder);
        }
        cargo.arg("--manifest-path").arg(absolute);
    }
    if options.offline {
        cargo.arg("--offline");
    }
}

/// Adds the selection of packages and features to a command of cargo.
pub(crate) fn select(cargo: &mut Command, options: &Options) {
    add_manifest(cargo, options);
    for package in &options.package {
        cargo.args(["--package", package]);
    }
    for features in &options.features {
        cargo.args(["--features", features]);
    }
    let flags = [
        (options.workspace, "--workspace"),
        (options.all_features, "--all-features"),
        (options.no_default_features, "--no-default-features"),
    ];
    cargo.args(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag));
}

/// Analyses the selected packages in the profiles of development and of releases: code that `cfg`
/// removes from one of them is judged in the other. With `--json` the messages of the profile of
/// development are printed.
pub(crate) fn run(
    options: &Options,
    project: &Project,
    toolchain: &Toolchain,
    driver: &Path,
) -> Result<Vec<Finding>, Error> {
    let driver = driver.canonicalize().map_err(Error::file(driver))?;
    let lock = project.root.join("Cargo.lock");
    let had_lock = lock.exists();
    let profile = |is_release| check(options, project, toolchain, &driver, is_release);
    let both = if had_lock {
        // At the same time: each profile has a folder, and a lock of cargo, of its own.
        std::thread::scope(|scope| {
            let release = scope.spawn(|| profile(true));
            let dev = profile(false);
            let release = release.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            dev?.succeeded(options, toolchain).and_then(|dev| Ok((release?, dev)))
        })
    } else {
        // The first one writes Cargo.lock, which the other must not read before.
        profile(false)
            .and_then(|dev| dev.succeeded(options, toolchain))
            .and_then(|dev| Ok((profile(true)?, dev)))
    };
    let both = both.and_then(|(release, dev)| Ok((release.succeeded(options, toolchain)?, dev)));
    if !had_lock {
        // Cargo has made it for the analysis. There is none if cargo has failed before.
        let _ = std::fs::remove_file(&lock);
    }
    let (release, dev) = both?;
    let released = merge(release.findings);
    let files = Files::read(project, &dev.artifacts);
    let mut findings = merge(dev.findings);
    for finding in findings.iter_mut().filter(|finding| finding.is_candidate()) {
        let same = released
            .iter()
            .any(|f| f.place() == finding.place() && f.replacement == finding.replacement);
        let path = project.root.join(&finding.span.file_name);
        if let Some(reason) = files.against(project, &path) {
            finding.reject(&reason);
        } else if !same {
            finding.reject("the profile of releases does not have this candidate");
        }
    }
    if options.json {
        for (text, finding) in &dev.lines {
            let is_refused = finding.as_ref().is_some_and(|finding| {
                let same = |f: &&Finding| f.place() == finding.place();
                finding.is_candidate()
                    && findings.iter().find(same).is_some_and(|f| !f.is_candidate())
            });
            // A reader that has ended needs no more lines.
            if !is_refused && writeln!(std::io::stdout(), "{text}").is_err() {
                break;
            }
        }
    }
    Ok(findings)
}

/// The report of one run of `cargo check`.
#[derive(Debug, Default)]
struct Checked {
    findings: Vec<Finding>,
    /// All lines, with the finding in them.
    lines: Vec<(String, Option<Finding>)>,
    artifacts: Vec<Line>,
    /// Errors of the compiler.
    errors: Vec<String>,
    /// Other messages of cargo, if they have not been shown.
    rest: String,
    is_ok: bool,
}

impl Checked {
    /// Shows why the check has failed, if it has.
    fn succeeded(self, options: &Options, toolchain: &Toolchain) -> Result<Checked, Error> {
        if self.is_ok {
            return Ok(self);
        }
        eprint!("{}", self.rest);
        for (text, _) in self.lines.iter().filter(|_| options.json) {
            if writeln!(std::io::stdout(), "{text}").is_err() {
                break;
            }
        }
        if !options.json {
            self.errors.iter().for_each(|error| eprint!("{error}"));
        }
        Err(match self.errors.is_empty() {
            true => Error::Cargo,
            false => Error::Compile { toolchain: toolchain.name.clone() },
        })
    }
}

fn check(
    options: &Options,
    project: &Project,
    toolchain: &Toolchain,
    driver: &Path,
    is_release: bool,
) -> Result<Checked, Error> {
    let mut cargo = toolchain.cargo();
    let has_colours = std::io::stdout().is_terminal() && !options.json;
    cargo.arg("check").arg(if has_colours {
        "--message-format=json-diagnostic-rendered-ansi"
    } else {
        "--message-format=json"
    });
    if is_release {
        // The run of the other profile shows the progress and messages of cargo.
        cargo.args(["--release", "--quiet"]).stderr(Stdio::piped());
    }
    select(&mut cargo, options);
    cargo.arg("--target-dir").arg(target(options, project, driver)?);
    cargo.env("RUSTC_WRAPPER", driver).env("RUSTC_WORKSPACE_WRAPPER", driver);
    cargo.env("COREBEAT_EFFECT_OPTIONS", words(options));
    let mut child = cargo
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|source| Error::Start { program: "rustup".into(), source })?;
    let mut checked = Checked::default();
    let rest = child.stderr.take().map(|mut stderr| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            // A pipe that ends early has shown less.
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    });
    let output = child.stdout.take();
    for text in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
        let Ok(text) = text else { break };
        let mut found = None;
        if let Ok(mut line) = serde_json::from_str::<Line>(&text) {
            if line.reason == "compiler-artifact" {
                checked.artifacts.push(line);
            } else if let Some(message) = line.message.take()
                && line.reason == "compiler-message"
            {
                found = Finding::of(line.manifest_path, &message);
                if found.is_none() && message.level.starts_with("error") {
                    checked.errors.push(message.rendered.unwrap_or(message.message));
                }
            }
        }
        checked.findings.extend(found.clone());
        checked.lines.push((text, found));
    }
    let status = child.wait().map_err(|source| Error::Start { program: "cargo".into(), source })?;
    checked.is_ok = status.success();
    checked.rest = rest.and_then(|rest| rest.join().ok()).unwrap_or_default();
    Ok(checked)
}

/// The options of the analysis itself, for the driver.
fn words(options: &Options) -> String {
    let promises = options.assume.iter().filter_map(ValueEnum::to_possible_value);
    let mut words: Vec<String> = promises.map(|word| word.get_name().to_owned()).collect();
    words.extend(options.reassociate.then(|| "reassociate".to_owned()));
    words.extend(options.small_calls.then(|| "small-calls".to_owned()));
    words.sort();
    words.dedup();
    words.join(",")
}

/// The source files of the targets.
struct Files {
    /// How many compilations have read each file.
    uses: HashMap<PathBuf, usize>,
    /// The root files of the targets that have not been compiled, with their texts.
    others: Vec<(PathBuf, String)>,
}

impl Files {
    fn read(project: &Project, artifacts: &[Line]) -> Files {
        let mut uses = HashMap::new();
        for artifact in artifacts {
            let Some(info) = artifact.filenames.iter().find_map(|path| dependency_file(path))
            else {
                continue;
            };
            for file in std::fs::read_to_string(info).unwrap_or_default().lines() {
                // A file that the compiler has read has a line of its own, without a right side.
                let Some(name) = file.strip_suffix(':').filter(|n| !n.starts_with('#')) else {
                    continue;
                };
                let path = project.root.join(name.replace("\\ ", " "));
                *uses.entry(path.canonicalize().unwrap_or(path)).or_insert(0) += 1;
            }
        }
        let is_built = |path: &PathBuf| {
            artifacts.iter().any(|a| a.target.as_ref().is_some_and(|t| t.src_path == *path))
        };
        let others = project
            .packages
            .iter()
            .flat_map(|package| &package.targets)
            .map(|target| target.src_path.clone())
            .filter(|path| !is_built(path))
            .map(|path| (path.clone(), std::fs::read_to_string(&path).unwrap_or_default()))
            .collect();
        Files { uses, others }
    }

    /// Why a file must not be rewritten.
    fn against(&self, project: &Project, path: &Path) -> Option<String> {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let file = real(path);
        if !file.starts_with(real(&project.root))
            || file.starts_with(real(&project.target_directory))
        {
            return Some("its file is generated, or is not in the folder of the package".into());
        }
        if self.uses.get(&file) != Some(&1) {
            return Some("several targets contain its file".into());
        }
        let other = self.others.iter().find(|(root, text)| {
            // The module of the root file through which this file could be reached.
            let folder = root.parent().map(real).unwrap_or_default();
            let module = file.strip_prefix(folder).ok().and_then(|inner| inner.iter().next());
            let module = module.map(|module| Path::new(module).with_extension(""));
            let mut names = text.split("mod ").skip(1);
            text.contains("#[path")
                || text.contains("include!")
                || real(root) == file
                || module.is_some_and(|module| {
                    let module = module.display().to_string();
                    names.any(|name| name.trim_start().starts_with(&module))
                })
        });
        let (root, _) = other?;
        Some(format!("{} may contain its file, and has not been compiled", root.display()))
    }
}

/// The list of the source files of an artifact, beside it.
fn dependency_file(artifact: &Path) -> Option<PathBuf> {
    let name = artifact.file_stem()?.to_str()?;
    let plain = artifact.with_file_name(format!("{}.d", name.strip_prefix("lib").unwrap_or(name)));
    plain.exists().then_some(plain)
}

/// The target folder of the analysis: another one for each driver and each selection of packages,
/// because cargo repeats the messages of crates that have not changed.
fn target(options: &Options, project: &Project, driver: &Path) -> Result<PathBuf, Error> {
    let hash = |hash: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        hash(&mut hasher);
        hasher.finish()
    };
    let program = std::fs::read(driver).map_err(Error::file(driver))?;
    let of_driver = hash(&|hasher| {
        program.hash(hasher);
        std::env::var_os("COREBEAT_EFFECT_FAULT").hash(hasher);
    });
    let place = options.manifest_path.clone().or_else(|| std::env::current_dir().ok());
    let place = place.and_then(|place| place.canonicalize().ok());
    let selection = hash(&|hasher| (&options.package, options.workspace, &place).hash(hasher));
    let of_driver = format!("check-{of_driver:016x}");
    let folder = project.folder();
    // Removes those of earlier drivers.
    for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
        let old = entry.file_name();
        let old = old.to_string_lossy();
        if old.starts_with("check-") && !old.starts_with(&of_driver) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(folder.join(format!("{of_driver}-{selection:016x}")))
}
