//! The model of the policy adapt in a file.

use crate::{Failure, read_text};
use corebeat_policy::adapt::{Identity, Model};
use std::fs::File;
use std::path::Path;

/// Largest size of a model, in bytes.
const MODEL_MAX: u64 = 16 << 20;

/// Reads a model for a machine from a file.
///
/// # Errors
/// The file cannot be read, or the model is for another machine.
pub fn read_model(path: Option<&Path>, machine: &Identity) -> Result<Model, Failure> {
    let path = path.ok_or_else(|| {
        Failure::usage(
            "the policy adapt requires a model; write --model FILE, and train one with \
             'corebeat train'",
        )
    })?;
    let shown = path.display();
    let what = "model that 'corebeat train' wrote";
    let text =
        read_text(&shown.to_string(), File::open(path), MODEL_MAX, what).map_err(Failure::usage)?;
    // Exit status 2: the model is the value of an option, and no user writes it by hand.
    let refusal = |e: &dyn std::fmt::Display| Failure::usage(format!("{shown}: {e}"));
    let model = Model::parse(&text).map_err(|e| refusal(&e))?;
    model.check(machine).map_err(|e| refusal(&e))?;
    Ok(model)
}

/// Name of this host in a model: that of its processor.
pub fn host_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| "unknown processor".to_owned(), |(_, name)| name.trim().to_owned())
}
