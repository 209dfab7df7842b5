//! The map: ARCHITECTURE.md describes exactly the crates of the workspace, and each crate depends
//! only on crates that its layer may use.

use crate::page::read;
use crate::workspace::{Package, Workspace};
use std::collections::BTreeSet;

/// The layers by folder, and the layers that the crates of each may use. Tests are exempt: a
/// development dependency may cross layers.
const LAYERS: [(&str, &[&str]); 9] = [
    ("base", &[]),
    ("observe", &["base"]),
    ("parallel", &["base", "observe"]),
    ("decide", &["base"]),
    ("act", &["base"]),
    ("host", &["base", "observe", "decide", "act"]),
    ("bind", &["base", "observe", "parallel", "decide"]),
    ("lab", &["base", "observe", "parallel", "decide", "act", "host"]),
    ("app", &["base", "observe", "parallel", "decide", "act", "host", "bind", "lab"]),
];

/// The crates that the other crates of their own layer may use.
const GROUND: [(&str, &str); 9] = [
    ("base", "corebeat-machine"),
    ("base", "corebeat-sync"),
    ("observe", "corebeat-trace"),
    ("parallel", "corebeat-lpel"),
    ("host", "corebeat-host"),
    ("host", "corebeat-web"),
    ("bind", "corebeat-claim"),
    ("lab", "corebeat-train"),
    ("app", "corebeat-command"),
];
/// The program itself: nothing uses it, and it may use every crate.
const PROGRAM: &str = "corebeat-cli";

/// Suffix of a crate of procedural macros, which is a part of the crate without the suffix.
const MACRO: &str = "-macro";

/// Crates outside the layers, and whether they may use crates of the layers.
const TOOLS: [(&str, bool); 2] = [("bench", true), ("xtask", false)];

/// Checks the map of the workspace.
pub(crate) fn check(workspace: &Workspace) -> Result<Vec<String>, String> {
    let text = read(&workspace.root.join("ARCHITECTURE.md"))?;
    let crates = workspace.packages.iter().map(|p| p.name.as_str()).collect();
    Ok([arrows(workspace), names(&text, &crates), rows(&text)].concat())
}

/// Position of a crate in the tree of folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place<'a> {
    Layer(&'a str),
    Tool { may_use_crates: bool },
}

fn place<'a>(package: &'a Package, workspace: &Workspace) -> Result<Place<'a>, String> {
    let folder = package.folder(workspace);
    let parts: Vec<&str> = folder.iter().filter_map(|part| part.to_str()).collect();
    match parts[..] {
        ["crates", layer, name] if name == package.name && LAYERS.iter().any(|f| f.0 == layer) => {
            Ok(Place::Layer(layer))
        }
        [name] if name == package.name => match TOOLS.iter().find(|t| t.0 == name) {
            Some(tool) => Ok(Place::Tool { may_use_crates: tool.1 }),
            None => Err(format!("{name} is not a tool; put crates in crates/LAYER/NAME")),
        },
        _ => {
            Err(format!("{} lives in {}, not in crates/LAYER/{0}", package.name, folder.display()))
        }
    }
}

/// Returns the dependencies that the layers forbid.
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
        for dependency in
            package.dependencies.iter().filter(|d| d.path.is_some() && !d.is_for_tests())
        {
            // A misplaced dependency is reported as a package of its own.
            let used = workspace.packages.iter().find(|p| p.name == dependency.name);
            let Some(Ok(to)) = used.map(|p| place(p, workspace)) else { continue };
            if !may_use(from, &package.name, to, &dependency.name) {
                complaints.push(format!(
                    "{} must not use {}: {from:?} to {to:?}",
                    package.name, dependency.name
                ));
            }
        }
    }
    complaints
}

fn may_use(from: Place, from_name: &str, to: Place, to_name: &str) -> bool {
    match (from, to) {
        (Place::Tool { may_use_crates }, Place::Layer(_)) => may_use_crates,
        (_, Place::Tool { .. }) => false,
        (Place::Layer("app"), Place::Layer("app")) if from_name == PROGRAM => true,
        (Place::Layer(from), Place::Layer(to)) => {
            let listed = LAYERS.iter().any(|f| f.0 == from && f.1.contains(&to));
            let own_macro = from == to && to_name.strip_suffix(MACRO) == Some(from_name);
            let on_ground = from == to
                && GROUND.contains(&(to, to_name))
                && from_name.strip_suffix(MACRO).unwrap_or(from_name) != to_name;
            listed || own_macro || on_ground
        }
    }
}

/// The layers whose row in the table of ARCHITECTURE.md differs from [`LAYERS`] and [`GROUND`].
fn rows(text: &str) -> Vec<String> {
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches(['|', ' ']).split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let table: Vec<Vec<String>> =
        text.lines().filter(|line| line.starts_with("| ")).map(cells).collect();
    let is_wrong = |(layer, uses): &&(&str, &[&str])| {
        let ground = GROUND.iter().filter(|(of, _)| of == layer);
        let ground: Vec<&str> =
            ground.map(|(_, name)| name.trim_start_matches("corebeat-")).collect();
        !table.iter().any(|row| {
            let cell = |i: usize| row.get(i).map_or("", String::as_str);
            let own = cell(2).split(';').next().unwrap_or("");
            cell(0) == *layer && cell(1) == uses.join(", ") && own == ground.join(", ")
        })
    };
    LAYERS
        .iter()
        .filter(is_wrong)
        .map(|(layer, _)| {
            format!("the row of {layer} in ARCHITECTURE.md differs from xtask/src/map.rs")
        })
        .collect()
}

/// The missing and superfluous paragraphs of ARCHITECTURE.md: a paragraph begins with the name as
/// **name**.
fn names(text: &str, crates: &BTreeSet<&str>) -> Vec<String> {
    let named: Vec<&str> = text
        .lines()
        .filter_map(|line| Some(line.strip_prefix("**")?.split_once("**")?.0))
        .collect();
    let missing = crates.iter().filter(|c| !named.contains(c));
    let unknown = named.iter().filter(|n| !crates.contains(*n));
    let again = named.iter().enumerate().filter(|(i, n)| named[..*i].contains(n)).map(|(_, n)| n);
    missing
        .map(|c| format!("ARCHITECTURE.md has no paragraph **{c}**"))
        .chain(unknown.map(|n| format!("ARCHITECTURE.md names **{n}**, which is not a crate")))
        .chain(again.map(|n| format!("ARCHITECTURE.md names **{n}** twice")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    /// A workspace of crates at these folders that use these others.
    fn workspace(packages: &[(&str, &[&str])]) -> Workspace {
        let name = |folder: &str| folder.rsplit('/').next().unwrap().to_owned();
        let packages = packages.iter().map(|(folder, uses)| Package {
            name: name(folder),
            manifest_path: format!("/w/{folder}/Cargo.toml").into(),
            dependencies: uses
                .iter()
                .map(|u| Dependency {
                    name: name(u),
                    path: Some(format!("/w/{u}").into()),
                    kind: None,
                })
                .collect(),
            ..Package::default()
        });
        Workspace {
            packages: packages.collect(),
            root: "/w".into(),
            target_directory: "/w/target".into(),
        }
    }

    #[test]
    fn arrows_up_or_sideways_are_reported() {
        let bad = workspace(&[
            ("crates/base/m", &["crates/app/cli"]),
            ("crates/decide/policy", &["crates/act/linux", "crates/base/m"]),
            ("crates/act/linux", &["crates/decide/policy"]),
            ("crates/parallel/corebeat-lpel", &["crates/parallel/snet"]),
            ("crates/parallel/snet", &["crates/parallel/corebeat-lpel", "crates/decide/policy"]),
            ("crates/parallel/stm", &["crates/parallel/snet", "crates/observe/probe"]),
            (
                "crates/observe/corebeat-trace",
                &["crates/observe/corebeat-trace-macro", "crates/observe/probe"],
            ),
            ("crates/observe/corebeat-trace-macro", &["crates/observe/corebeat-trace"]),
            (
                "crates/observe/probe",
                &["crates/observe/corebeat-trace", "crates/observe/corebeat-trace-macro"],
            ),
            ("crates/app/cli", &["crates/decide/policy", "crates/host/loop", "bench"]),
            ("crates/host/loop", &[]),
            ("bench", &["crates/app/cli"]),
            ("xtask", &["crates/base/m"]),
        ]);
        let found: Vec<String> = arrows(&bad)
            .iter()
            .map(|c| c.split(':').next().unwrap().replace(" must not use ", ">"))
            .collect();
        assert_eq!(
            found,
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
    fn rows_that_differ_are_reported() {
        let reported = rows("| base | | machine, sync |\n| observe | base, act | trace |\n");
        assert_eq!(reported.len(), LAYERS.len() - 1, "{reported:?}");
        assert!(!reported.iter().any(|row| row.contains("base in")), "{reported:?}");
    }

    #[test]
    fn arrows_from_a_misplaced_crate_name_the_place() {
        for folder in ["crates/cli", "crates/cellar/cli", "other"] {
            assert_eq!(arrows(&workspace(&[(folder, &[])])).len(), 1, "{folder}");
        }
    }

    #[test]
    fn names_missing_unknown_and_twice_are_reported() {
        let crates = BTreeSet::from(["a", "b"]);
        assert_eq!(names("**a** is\nnot **c**\n**b** too", &crates), Vec::<String>::new());
        assert_eq!(names("**a**\n**a**\n**c**", &crates).len(), 3);
    }
}
