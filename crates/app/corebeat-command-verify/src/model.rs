//! Model files, by their endings.

use corebeat_command::{Failure, open_regular, read_text};
use corebeat_verify::{Effect, Model, contend, read_amalthea, read_csv, read_toml};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// Largest size of a model, in bytes.
const MODEL_MAX: u64 = 1 << 30;

/// Reads a model. Its ending states the form.
pub(crate) fn open(path: &Path) -> Result<Model, Failure> {
    let shown = path.display();
    let read = match path.extension().and_then(|e| e.to_str()) {
        Some("amxmi") => read_amalthea,
        Some("toml") => read_toml,
        Some("csv") => read_csv,
        _ => {
            let line = "has no ending .amxmi, .toml or .csv, which states the form of a model";
            return Err(Failure::usage(format!("{shown} {line}; rename the file")));
        }
    };
    let text = read_text(&shown.to_string(), open_regular(path), MODEL_MAX, "model of tasks")?;
    read(&text).map_err(|e| Failure::data(format!("{shown}: {e}")))
}

/// The model with the waiting of its cores for each other at memories, if it is requested.
pub(crate) fn with_contention(model: Model, is_requested: bool) -> Model {
    if is_requested { contend(&model) } else { model }
}

/// The name of an effect.
fn name(effect: Effect) -> &'static str {
    match effect {
        Effect::None => "no effect",
        Effect::Pessimistic => "pessimistic",
        Effect::Optimistic => "optimistic",
    }
}

/// The notes of a model, one in a line.
pub(crate) fn notes(model: &Model) -> String {
    let mut text = String::new();
    if !model.notes.is_empty() {
        text += "\nnotes (optimistic: the true times may be longer)\n";
    }
    for note in &model.notes {
        let _ = writeln!(text, "  {:<11}  {}: {}", name(note.effect), note.place, note.what);
    }
    text
}

/// The notes of a model as JSON.
pub(crate) fn notes_json(model: &Model) -> Vec<Value> {
    let note = |n: &corebeat_verify::Note| {
        let task = n.task.map(|t| &model.tasks[t].name);
        json!({ "place": n.place, "what": n.what, "effect": name(n.effect), "task": task })
    };
    model.notes.iter().map(note).collect()
}

/// The name of a mode.
pub(crate) fn mode(model: &Model, mode: Option<usize>) -> Option<&String> {
    mode.map(|m| &model.modes[m])
}
