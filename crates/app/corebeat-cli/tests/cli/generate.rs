//! `corebeat generate` and `corebeat --version`.

use super::{corebeat, stderr, stdout};
use std::fs;

#[test]
fn version_names_commit_features_and_target() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(stdout(&corebeat(&["-V"])), format!("corebeat {version}\n"));
    let long = stdout(&corebeat(&["--version"]));
    let lines: Vec<&str> = long.lines().collect();
    let [name, commit, features, target] = lines[..] else { panic!("{long}") };
    assert_eq!(name, format!("corebeat {version}"));
    let commit = commit.strip_prefix("commit: ").unwrap();
    let is_hash = commit.len() == 12 && commit.bytes().all(|b| b.is_ascii_hexdigit());
    assert!(is_hash || commit == "unknown", "{long}");
    assert!(features.starts_with("features: ") && target.starts_with("target: "), "{long}");
}

#[test]
fn every_command_has_a_page_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    let done = corebeat(&["generate", folder.path().to_str().unwrap()]);
    assert!(done.status.success(), "{}", stderr(&done));
    let completions = ["bash-completion/completions/corebeat.bash", "zsh/site-functions/_corebeat"]
        .map(|file| fs::read_to_string(folder.path().join(file)).unwrap());
    let fish = folder.path().join("fish/vendor_completions.d/corebeat.fish");
    let fish = fs::read_to_string(fish).unwrap();
    let help = stdout(&corebeat(&["--help"]));
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| !line.is_empty());
    // A line of a long description begins with more spaces.
    let names = commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names: Vec<&str> = names.filter(|name| !name.is_empty() && *name != "help").collect();
    assert!(names.len() > 10, "{help}");
    for name in names {
        let page = folder.path().join(format!("man/man1/corebeat-{name}.1"));
        let page = fs::read_to_string(&page).unwrap_or_else(|e| panic!("{page:?}: {e}"));
        assert!(page.contains(&format!("corebeat\\-{name}")), "{page}");
        assert!(completions.iter().chain([&fish]).all(|text| text.contains(name)), "{name}");
    }
    // Pages of nested commands, and of nothing else.
    assert!(folder.path().join("man/man1/corebeat-sim-run.1").is_file());
    assert!(!folder.path().join("man/man1/corebeat-help.1").exists());
}

#[test]
fn folder_that_cannot_be_made_is_one_line() {
    let done = corebeat(&["generate", "/dev/null"]);
    assert_eq!(done.status.code(), Some(2));
    let line = stderr(&done);
    assert!(line.starts_with("corebeat: cannot write /dev/null/man/man1: "), "{line}");
    assert!(line.ends_with("; name another folder\n") && line.lines().count() == 1, "{line}");
}
