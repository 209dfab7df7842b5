//! The map: ARCHITECTURE.md names the crates that there are, and no crate knows one that it must not know.

use crate::workspace::{Package, Workspace, verdict};
use std::collections::BTreeSet;

/// Who may know whom: what crates in a floor may use, by folder; nobody but `app` may use its own.
const FLOORS: [(&str, &[&str]); 6] = [
    ("base", &[]),
    ("observe", &["base"]),
    ("run", &["base", "observe"]),
    ("decide", &["base"]),
    ("act", &["base"]),
    ("app", &["base", "observe", "run", "decide", "act", "app"]),
];

/// The one crate of its own floor that the others there may stand on.
const LAYERS: [(&str, &str); 2] = [("observe", "corebeat-trace"), ("run", "corebeat-lpel")];
/// A crate with this behind its name has the macros of the one without, and is a part of it.
const MACRO: &str = "-macro";

/// Crates outside the floors, and whether they may use those inside.
const TOOLS: [(&str, bool); 3] = [("bench", true), ("tests", true), ("xtask", false)];

/// Checks the map of the workspace.
pub(crate) fn check(workspace: &Workspace) -> Result<(), String> {
    let mut complaints = arrows(workspace);
    let path = workspace.root.join("ARCHITECTURE.md");
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let crates = workspace.packages.iter().map(|p| p.name.as_str()).collect();
            complaints.extend(names(&text, &crates));
        }
        Err(e) => complaints.push(format!("{}: {e}", path.display())),
    }
    verdict(complaints)
}

/// A place in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place<'a> {
    Floor(&'a str),
    Tool { may_use_crates: bool },
}

fn place<'a>(package: &'a Package, workspace: &Workspace) -> Result<Place<'a>, String> {
    let folder = package.folder(workspace);
    let parts: Vec<&str> = folder.iter().filter_map(|part| part.to_str()).collect();
    match parts[..] {
        ["crates", floor, name] if name == package.name && FLOORS.iter().any(|f| f.0 == floor) => {
            Ok(Place::Floor(floor))
        }
        [name] if name == package.name => match TOOLS.iter().find(|t| t.0 == name) {
            Some(tool) => Ok(Place::Tool { may_use_crates: tool.1 }),
            None => Err(format!("{name} is no tool; crates live in crates/FLOOR/NAME")),
        },
        _ => Err(format!("{} lives in {}, not in crates/FLOOR/{0}", package.name, folder.display())),
    }
}

/// All arrows that must not be.
fn arrows(workspace: &Workspace) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in &workspace.packages {
        let from = match place(package, workspace) {
            Ok(place) => place,
            Err(complaint) => {
                complaints.push(complaint);
                continue;
            }
        };
        for dependency in package.dependencies.iter().filter(|d| d.path.is_some()) {
            // Where the other one is misplaced, that is told on its own turn.
            let used = workspace.packages.iter().find(|p| p.name == dependency.name);
            let Some(Ok(to)) = used.map(|p| place(p, workspace)) else { continue };
            if !may_use(from, &package.name, to, &dependency.name) {
                complaints
                    .push(format!("{} must not use {}: {from:?} to {to:?}", package.name, dependency.name));
            }
        }
    }
    complaints
}

fn may_use(from: Place, from_name: &str, to: Place, to_name: &str) -> bool {
    match (from, to) {
        (Place::Tool { may_use_crates }, Place::Floor(_)) => may_use_crates,
        (_, Place::Tool { .. }) => false,
        (Place::Floor(from), Place::Floor(to)) => {
            let listed = FLOORS.iter().any(|f| f.0 == from && f.1.contains(&to));
            let own_macro = from == to && to_name.strip_suffix(MACRO) == Some(from_name);
            let on_layer = from == to
                && LAYERS.contains(&(to, to_name))
                && from_name.strip_suffix(MACRO).unwrap_or(from_name) != to_name;
            listed || own_macro || on_layer
        }
    }
}

/// What ARCHITECTURE.md lacks or has too much: a crate's paragraph begins with its name as **name**.
fn names(text: &str, crates: &BTreeSet<&str>) -> Vec<String> {
    let named: Vec<&str> =
        text.lines().filter_map(|line| Some(line.strip_prefix("**")?.split_once("**")?.0)).collect();
    let missing = crates.iter().filter(|c| !named.contains(c));
    let unknown = named.iter().filter(|n| !crates.contains(*n));
    let again = named.iter().enumerate().filter(|(i, n)| named[..*i].contains(n)).map(|(_, n)| n);
    missing
        .map(|c| format!("ARCHITECTURE.md has no paragraph **{c}**"))
        .chain(unknown.map(|n| format!("ARCHITECTURE.md names **{n}**, which is no crate here")))
        .chain(again.map(|n| format!("ARCHITECTURE.md names **{n}** twice")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    #[test]
    fn map_of_this_workspace_holds() {
        check(&Workspace::read().unwrap()).unwrap_or_else(|why| panic!("{why}"));
    }

    /// A workspace of crates at these folders that use these others.
    fn workspace(packages: &[(&str, &[&str])]) -> Workspace {
        let name = |folder: &str| folder.rsplit('/').next().unwrap().to_owned();
        let packages = packages.iter().map(|(folder, uses)| Package {
            name: name(folder),
            manifest_path: format!("/w/{folder}/Cargo.toml").into(),
            dependencies: uses
                .iter()
                .map(|u| Dependency { name: name(u), path: Some(format!("/w/{u}").into()) })
                .collect(),
        });
        Workspace { packages: packages.collect(), root: "/w".into(), target_directory: "/w/target".into() }
    }

    #[test]
    fn arrows_up_or_sideways_are_told() {
        let bad = workspace(&[
            ("crates/base/m", &["crates/app/cli"]),
            ("crates/decide/policy", &["crates/act/linux", "crates/base/m"]),
            ("crates/act/linux", &["crates/decide/policy"]),
            ("crates/run/corebeat-lpel", &["crates/run/snet"]),
            ("crates/run/snet", &["crates/run/corebeat-lpel", "crates/decide/policy"]),
            ("crates/run/stm", &["crates/run/snet", "crates/observe/probe"]),
            (
                "crates/observe/corebeat-trace",
                &["crates/observe/corebeat-trace-macro", "crates/observe/probe"],
            ),
            ("crates/observe/corebeat-trace-macro", &["crates/observe/corebeat-trace"]),
            (
                "crates/observe/probe",
                &["crates/observe/corebeat-trace", "crates/observe/corebeat-trace-macro"],
            ),
            ("crates/app/cli", &["crates/decide/policy", "crates/app/loop", "bench"]),
            ("crates/app/loop", &[]),
            ("bench", &["crates/app/cli"]),
            ("xtask", &["crates/base/m"]),
        ]);
        let told: Vec<String> = arrows(&bad)
            .iter()
            .map(|c| c.split(':').next().unwrap().replace(" must not use ", ">"))
            .collect();
        assert_eq!(
            told,
            [
                "m>cli",
                "policy>linux",
                "linux>policy",
                "corebeat-lpel>snet",
                "snet>policy",
                "stm>snet",
                "corebeat-trace>probe",
                "corebeat-trace-macro>corebeat-trace",
                "probe>corebeat-trace-macro",
                "cli>bench",
                "xtask>m"
            ]
        );
    }

    #[test]
    fn arrows_from_a_misplaced_crate_name_the_place() {
        for folder in ["crates/cli", "crates/cellar/cli", "other"] {
            assert_eq!(arrows(&workspace(&[(folder, &[])])).len(), 1, "{folder}");
        }
    }

    #[test]
    fn names_missing_unknown_and_twice_are_told() {
        let crates = BTreeSet::from(["a", "b"]);
        assert_eq!(names("**a** is\nnot **c**\n**b** too", &crates), Vec::<String>::new());
        assert_eq!(names("**a**\n**a**\n**c**", &crates).len(), 3);
    }
}
