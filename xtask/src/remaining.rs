//! Processes and files that a step leaves behind.

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time for processes to end that their test has killed, or that detect the end of their test.
const GRACE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// Makes orphans of later steps children of this process, so that [`check`] finds them.
pub(crate) fn keep_orphans() -> Result<(), String> {
    set_child_subreaper(Some(getpid())).map_err(|e| format!("cannot adopt orphans: {e}"))
}

/// Fails if descendants of this process remain, and kills them. Only for a caller that waits for
/// no child.
pub(crate) fn check() -> Result<(), String> {
    let end = Instant::now() + GRACE;
    let mut remaining;
    loop {
        // Reap orphans that have ended.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        remaining = descendants(getpid());
        if remaining.is_empty() {
            return Ok(());
        }
        if Instant::now() > end {
            break;
        }
        sleep(PAUSE);
    }
    let names: Vec<String> = remaining.iter().map(|&pid| describe(pid)).collect();
    // They may fork meanwhile.
    while !remaining.is_empty() {
        for &pid in &remaining {
            let _ = kill_process(pid, Signal::KILL);
        }
        sleep(PAUSE);
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        remaining = descendants(getpid());
    }
    Err(format!(
        "processes remained, and were killed: {}; start them in a TestGroup of corebeat-test-group",
        names.join(", ")
    ))
}

/// Places for files that do not depend on `TMPDIR`, and how names of ours begin there.
const PLACES: [&str; 2] = ["/dev/shm", "/tmp"];
const OURS: &str = "corebeat";

/// Mount point of the control groups, and the greatest depth of ours below.
const GROUPS: &str = "/sys/fs/cgroup";
const DEPTH_MAX: u32 = 8;

/// Runs a step that has a folder for its temporary files. Fails if files remain there, or new files
/// or control groups of ours elsewhere.
pub(crate) fn files(step: impl FnOnce(&str) -> Result<(), String>) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("no folder for temporary files: {e}");
    // Names of sockets are short: the folder is not below the target folder.
    let folder = std::env::temp_dir().join(format!("xtask-{}", std::process::id()));
    fs::create_dir(&folder).map_err(failed)?;
    // Some tests start programs of another user.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).map_err(failed)?;
    let elsewhere = || -> Vec<PathBuf> {
        let files = PLACES.iter().flat_map(|place| ours(place));
        files.chain(groups(Path::new(GROUPS), DEPTH_MAX)).collect()
    };
    let before = elsewhere();
    let done = step(&folder.to_string_lossy());
    let mut remaining = entries(&folder);
    remaining.extend(elsewhere().into_iter().filter(|path| !before.contains(path)));
    let _ = fs::remove_dir_all(&folder);
    done?;
    if remaining.is_empty() {
        Ok(())
    } else {
        Err(format!("files or control groups remained: {remaining:?}"))
    }
}

fn ours(place: &str) -> Vec<PathBuf> {
    let is_ours = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(OURS))
    };
    entries(Path::new(place)).into_iter().filter(is_ours).collect()
}

/// Control groups of processes that have ended. Their names are `corebeat-PID-...`.
fn groups(folder: &Path, depth: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in entries(folder) {
        if depth == 0 || path.is_symlink() || !path.is_dir() {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let owner = name.strip_prefix(OURS).and_then(|rest| rest.split('-').nth(1));
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            found.push(path.clone());
        }
        found.extend(groups(&path, depth - 1));
    }
    found
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Returns the number and the command line of a process.
fn describe(pid: Pid) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    format!("{pid} ({})", line.trim())
}

/// Returns all descendants of a process.
fn descendants(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        // A name may be any bytes.
        let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
        let parent = fields.and_then(|f| f.split(' ').nth(1)?.parse().ok());
        if let Some(parent) = parent.and_then(Pid::from_raw) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};

    #[test]
    fn files_that_remain_fail_the_step() {
        let leave =
            |folder: &str| fs::write(Path::new(folder).join("a"), "").map_err(|e| e.to_string());
        let why = files(leave).unwrap_err();
        assert!(why.contains("/a\""), "{why}");
        let remove = |folder: &str| {
            leave(folder)?;
            fs::remove_file(Path::new(folder).join("a")).map_err(|e| e.to_string())
        };
        assert_eq!(files(remove), Ok(()));
        assert_eq!(files(|_| Err("failed".into())), Err("failed".into()));
    }

    #[test]
    fn groups_of_ended_processes_remain() {
        let folder = std::env::temp_dir().join(format!("xtask-groups-{}", std::process::id()));
        let own = format!("a/corebeat-{}-1-0-0", std::process::id());
        let ended = "a/b/corebeat-4194305-88012-0-0";
        for name in [&own, ended, "a/other-7"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        let found = groups(&folder, 3);
        let too_deep = groups(&folder, 2);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [folder.join(ended)]);
        assert!(too_deep.is_empty());
    }

    #[test]
    fn descendants_include_those_in_another_session() {
        // No process starts after the line: none escapes between the search and the kill.
        let script = "setsid sh -c 'sleep 600 & echo a; wait' & wait";
        let mut shell =
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        shell.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let found = descendants(Pid::from_child(&shell));
        let names: Vec<String> = found.iter().map(|&pid| describe(pid)).collect();
        for pid in found {
            let _ = kill_process(pid, Signal::KILL);
        }
        shell.wait().unwrap();
        assert!(
            names.iter().any(|name| name.contains("sh -c sleep 600 & echo a; wait")),
            "{names:?}"
        );
    }
}
