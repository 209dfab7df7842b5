//! The Python package: its wheel, and the tests of the wheel in an environment of its own.

use crate::remaining;
use crate::step::{Outcome, run_cargo};
use crate::workspace::Workspace;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crate of the native module, with the rest of the package.
const CRATE: &str = "crates/bind/corebeat-python";
/// Folder in the package whose files maturin installs. Git ignores it, and it exists only while the
/// wheel is built.
const DATA: &str = "corebeat.data";
/// Strips the program of the wheel. The wheel of the tests is built faster with its symbols.
const STRIP: (&str, &str) = ("CARGO_PROFILE_RELEASE_STRIP", "symbols");
const TARGET: &str = "CARGO_TARGET_DIR";
/// Packages that build the wheel, and packages that its tests use.
const TOOLS: [&str; 2] = ["maturin>=1.9,<2", "mypy"];
const TEST_TOOLS: [&str; 6] =
    ["pytest", "pytest-timeout", "pandas", "threadpoolctl", "nbclient", "ipykernel"];
/// Seconds after which a test counts as blocked.
const TEST_LIMIT_S: &str = "120";

/// The Python environments of this workspace.
struct Python {
    /// Below the target folder.
    folder: PathBuf,
}

/// A tool is missing (how to get it), or failed.
enum Failed {
    Missing(String),
    Other(String),
}

impl From<String> for Failed {
    fn from(why: String) -> Failed {
        Failed::Other(why)
    }
}

/// Builds the wheel for use, optimised, and prints its path.
pub(crate) fn wheel(workspace: &Workspace) -> Result<(), String> {
    // Tools that are missing are reported before the long build.
    Python::new(workspace)?.tools()?;
    let target = workspace.target_directory.to_string_lossy();
    let env = [STRIP, (TARGET, &target)];
    let program = build_program(workspace, "release", &env)?;
    println!("{}", wheel_with(workspace, &program, &env)?.display());
    Ok(())
}

/// Builds the wheel for use with this program and the environment of its build. Returns the path.
pub(crate) fn wheel_with(
    workspace: &Workspace,
    program: &Path,
    env: &[(&str, &str)],
) -> Result<PathBuf, String> {
    let tools = Python::new(workspace)?.tools()?;
    let folder = workspace.target_directory.join("wheels");
    build(workspace, &tools, "release", program, env, &folder)
}

/// Checks the module, builds the wheel, installs it in a new environment, and runs its tests there.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome, String> {
    let python = Python::new(workspace)?;
    match python.check(workspace) {
        Ok(()) => Ok(Outcome::Passed),
        Err(Failed::Missing(why)) => Ok(Outcome::Skipped(why)),
        Err(Failed::Other(why)) => Err(why),
    }
}

impl Python {
    fn new(workspace: &Workspace) -> Result<Python, String> {
        let folder = workspace.target_directory.join("python");
        fs::create_dir_all(&folder)
            .map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
        Ok(Python { folder })
    }

    /// The folder with the programs that build the wheel.
    fn tools(&self) -> Result<PathBuf, String> {
        self.environment("tools", &TOOLS).map_err(|failed| match failed {
            Failed::Missing(why) | Failed::Other(why) => why,
        })
    }

    fn check(&self, workspace: &Workspace) -> Result<(), Failed> {
        let tools = self.environment("tools", &TOOLS)?;
        let _ = fs::remove_dir_all(self.folder.join("tests"));
        let tests = self.environment("tests", &TEST_TOOLS)?;
        let lint = ["clippy", "-p", "corebeat-python", "--features", "module", "--locked", "--"];
        let rules = ["-D", "warnings", "-D", "clippy::too_many_lines"];
        run_cargo(&[&lint[..], &rules].concat(), &[])?;
        let target = workspace.target_directory.to_string_lossy();
        let program = build_program(workspace, "dev", &[])?;
        let (env, folder) = ([(TARGET, &*target)], self.folder.join("wheels"));
        let wheel = build(workspace, &tools, "dev", &program, &env, &folder)?;
        let package = workspace.root.join(CRATE);
        let mut mypy = Command::new(tools.join("mypy"));
        mypy.arg("--cache-dir").arg(self.folder.join("mypy")).arg("python/corebeat");
        run(mypy.current_dir(&package))?;
        let mut install = pip(&tests);
        run(install.args(["install", "--quiet", "--no-deps", "--no-index"]).arg(&wheel))?;
        // Calls for the tests, from a program in Rust.
        let calls = self.folder.join("calls.cbt");
        let shop = ["run", "--quiet", "-p", "corebeat-probe", "--example", "shop", "--"];
        run_cargo(&[&shop[..], &[&calls.to_string_lossy()]].concat(), &[])?;
        remaining::files(|folder| {
            let mut pytest = Command::new(tests.join("pytest"));
            pytest.args(["-q", "-p", "no:cacheprovider", "--timeout", TEST_LIMIT_S, "tests"]);
            pytest.arg("--basetemp").arg(self.folder.join("files"));
            pytest.current_dir(&package);
            run(pytest
                .env("TMPDIR", folder)
                .env("COREBEAT_TEST_CALLS", &calls)
                .env("PYTHONDONTWRITEBYTECODE", "1"))
        })?;
        Ok(())
    }

    /// The folder with the programs of an environment that contains these packages.
    fn environment(&self, name: &str, packages: &[&str]) -> Result<PathBuf, Failed> {
        let folder = self.folder.join(name);
        let programs = folder.join("bin");
        if !programs.join("python").exists() {
            let created = Command::new("python3").args(["-m", "venv"]).arg(&folder).output();
            if !created.is_ok_and(|output| output.status.success()) {
                let _ = fs::remove_dir_all(&folder);
                let get = "apt-get install python3-venv";
                return Err(Failed::Missing(format!("python3 cannot create environments ({get})")));
            }
        }
        let mut install = pip(&programs);
        let output = install.args(["install", "--quiet"]).args(packages).output();
        let output = output.map_err(|e| format!("pip could not be started: {e}"))?;
        if output.status.success() {
            return Ok(programs);
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
        Err(Failed::Missing(format!("pip cannot install {}: {last}", packages.join(", "))))
    }
}

/// Builds the program with this profile in the target folder, and returns its path.
fn build_program(
    workspace: &Workspace,
    profile: &str,
    env: &[(&str, &str)],
) -> Result<PathBuf, String> {
    run_cargo(&["build", "-p", "corebeat-cli", "--profile", profile, "--locked"], env)?;
    // Cargo calls the folder of the profile dev differently.
    let built = if profile == "dev" { "debug" } else { profile };
    Ok(workspace.target_directory.join(built).join("corebeat"))
}

/// Builds the wheel with this profile, program and environment, and returns its path.
fn build(
    workspace: &Workspace,
    tools: &Path,
    profile: &str,
    program: &Path,
    env: &[(&str, &str)],
    folder: &Path,
) -> Result<PathBuf, String> {
    let package = workspace.root.join(CRATE);
    let data = package.join(DATA);
    // Programs in this folder are installed beside the interpreter.
    let scripts = data.join("scripts");
    let failed = |e: std::io::Error| format!("cannot write {}: {e}", scripts.display());
    fs::create_dir_all(&scripts).map_err(failed)?;
    fs::copy(program, scripts.join("corebeat")).map_err(failed)?;
    let _ = fs::remove_dir_all(folder);
    let mut maturin = Command::new(tools.join("maturin"));
    maturin.args(["build", "--locked", "--strip", "--profile", profile]);
    // A tag such as manylinux_2_34 would hold for the module only, and not for the program.
    maturin.args(["--compatibility", "linux", "--interpreter"]);
    // The wheel serves later versions as well: the module uses the stable ABI.
    maturin.arg(tools.join("python")).arg("--out").arg(folder).current_dir(&package);
    let done = run(maturin.envs(env.iter().copied()));
    fs::remove_dir_all(&data).map_err(|e| format!("cannot remove {}: {e}", data.display()))?;
    done?;
    let wheels = crate::workspace::files(folder, ".whl");
    wheels.into_iter().next().ok_or_else(|| format!("maturin left no wheel in {folder:?}"))
}

fn pip(programs: &Path) -> Command {
    let mut pip = Command::new(programs.join("python"));
    pip.args(["-m", "pip", "--disable-pip-version-check"]);
    pip
}

/// Runs a program with its output shown.
fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    // The environment of a caller must not select another interpreter or other packages.
    let status = command.env_remove("VIRTUAL_ENV").env_remove("PYTHONPATH").status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name}: {status}")),
        Err(e) => Err(format!("{name} could not be started: {e}")),
    }
}
