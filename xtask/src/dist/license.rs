//! The licenses of the crates of other authors: programs that contain a crate are distributed with
//! its license.

use crate::tool::output;
use crate::workspace::{Workspace, cargo, files};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate, as `cargo metadata` reports it.
#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    manifest_path: PathBuf,
    /// `None` for the crates of this workspace.
    source: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// The license of each crate that the program and the library contain, and the text of each
/// license, with the names of its crates.
///
/// # Errors
/// If a crate states no license.
pub(super) fn texts(workspace: &Workspace) -> Result<String, String> {
    let tree = ["tree", "--locked", "-p", "corebeat-cli", "-p", "corebeat-c", "-e", "normal"];
    let mut command = Command::new(cargo());
    command.args(tree).args(["--prefix", "none", "--no-dedupe", "-f", "{p}"]);
    let tree = output(command.current_dir(&workspace.root))?;
    // A line: 'NAME vVERSION', and for some crates a remark.
    let contained: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?.strip_prefix('v')?))
        })
        .collect();
    let mut command = Command::new(cargo());
    command.args(["metadata", "--format-version", "1", "--locked"]);
    let text = output(command.current_dir(&workspace.root))?;
    let metadata: Metadata = serde_json::from_str(&text)
        .map_err(|e| format!("the output of cargo metadata cannot be parsed: {e}"))?;
    let mut list = String::new();
    // The crates of each text.
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let others = metadata.packages.iter().filter(|p| p.source.is_some());
    for package in others.filter(|p| contained.contains(&(&p.name, &p.version))) {
        let name = format!("{} {}", package.name, package.version);
        let license = package.license.as_ref();
        let license = license.ok_or_else(|| format!("the crate {name} states no license"))?;
        list += &format!("{name}: {license}\n");
        for text in license_texts(package.manifest_path.parent().unwrap_or(Path::new("."))) {
            texts.entry(text).or_default().insert(name.clone());
        }
    }
    let sections = texts.into_iter().map(|(text, crates)| {
        let crates: Vec<String> = crates.into_iter().collect();
        format!("\n==== {}\n\n{}\n", crates.join(", "), text.trim_end())
    });
    Ok(list + &sections.collect::<String>())
}

/// The texts of the licenses in the folder of a crate, also of sources in C that it contains.
fn license_texts(folder: &Path) -> Vec<String> {
    let is_license = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let begins = |word| name.starts_with(word);
        !name.ends_with(".RS")
            && ["LICENSE", "LICENCE", "COPYING", "NOTICE"].into_iter().any(begins)
    };
    let found = files(folder, "").into_iter().filter(is_license);
    found.filter_map(|file| fs::read_to_string(file).ok()).collect()
}
