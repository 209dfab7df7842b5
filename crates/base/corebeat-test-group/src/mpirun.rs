//! Programs and tests on several ranks of MPI.

use std::process::{Command, Output};

/// Time in seconds after which a run on several ranks counts as hanging, and is ended. The exit
/// status is then [`MPIRUN_LATE`].
pub const MPIRUN_MAX_S: u32 = 120;

/// Exit status of a run that was ended at its limit.
pub const MPIRUN_LATE: i32 = 124;

/// Seconds from the signal that ends a run to the one that kills its starter.
const KILL_AFTER_S: &str = "10";

/// Returns a command that starts a program on this number of ranks. The caller adds the program.
///
/// # Errors
///
/// Returns the reason if there is no `mpirun`.
pub fn mpirun(ranks: usize) -> Result<Command, String> {
    let version = Command::new("mpirun").arg("--version").output();
    let missing = |e| format!("mpirun does not start ({e}): install openmpi-bin or mpich");
    let version = version.map_err(missing)?.stdout;
    let version = String::from_utf8_lossy(&version);
    let mut command = Command::new("timeout");
    command.args(["-k", KILL_AFTER_S, &MPIRUN_MAX_S.to_string(), "mpirun"]);
    // MPICH starts any number of ranks, binds none to a CPU, and runs as root.
    if version.contains("Open MPI") || version.contains("OpenRTE") {
        command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
    }
    command.args(["-n", &ranks.to_string()]);
    Ok(command)
}

/// Runs the test of this name of this program again, once on each rank. Returns `None`, after a
/// line that states the reason, if there is no `mpirun`.
///
/// # Panics
///
/// Panics if the run cannot be started, or was ended at its limit.
pub fn test_on_ranks(test: &str, ranks: usize) -> Option<Output> {
    let mut command = match mpirun(ranks) {
        Ok(command) => command,
        Err(why) => {
            println!("skipped: {why}");
            return None;
        }
    };
    command.arg(std::env::current_exe().expect("the program of a test has a path"));
    let output = command.args(["--exact", test, "--nocapture"]).output().expect("timeout starts");
    let texts = texts(&output);
    assert_ne!(output.status.code(), Some(MPIRUN_LATE), "{test} takes too long: {texts}");
    Some(output)
}

/// The texts of an output, for the messages of assertions.
pub fn texts(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}\n{err}")
}
