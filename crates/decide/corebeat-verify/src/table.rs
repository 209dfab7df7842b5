//! Task sets as tables of comma-separated values.
//!
//! The first line names the columns. Times have a unit, such as `1.5 ms`, unless the name of their
//! column ends with one, such as `period_us`.

use crate::error::Error;
use crate::model::{
    Activation, Core, Cost, Effect, Model, Policy, Preemption, Range, Section, TASKS_MAX, Task,
    named,
};
use crate::time::Time;
use std::fmt::Write as _;

/// The columns, without units.
const COLUMNS: [&str; 11] = [
    "name",
    "period",
    "offset",
    "jitter",
    "deadline",
    "best",
    "worst",
    "priority",
    "core",
    "preemption",
    "resources",
];

/// The values of the column `preemption`.
const PREEMPTIONS: [(&str, Preemption); 4] = [
    ("preemptive", Preemption::Preemptive),
    ("cooperative", Preemption::Cooperative),
    ("between-runnables", Preemption::BetweenRunnables),
    ("non-preemptive", Preemption::NonPreemptive),
];

/// A row with the place for errors.
struct Row<'a> {
    place: String,
    cells: Vec<(&'a str, &'a str, &'a str)>,
}

impl Row<'_> {
    fn text(&self, column: &str) -> Option<&str> {
        let cell = self.cells.iter().find(|(name, ..)| *name == column)?;
        Some(cell.2).filter(|text| !text.is_empty())
    }

    fn time(&self, column: &str) -> Result<Option<u64>, Error> {
        let Some(&(_, unit, text)) = self.cells.iter().find(|(name, ..)| *name == column) else {
            return Ok(None);
        };
        if text.is_empty() {
            return Ok(None);
        }
        // To the side from which no result becomes too low.
        let up = !["period", "deadline", "best"].contains(&column);
        let time = if unit.is_empty() { text.parse() } else { Time::of(text, unit, up) };
        time.map(|t| Some(t.ns)).map_err(|e| self.error(format!("{column}: {e}")))
    }

    fn error(&self, what: impl std::fmt::Display) -> Error {
        Error::new(&self.place, what)
    }
}

/// Reads a table. A task without a core runs on a core named `core`. A byte order mark at the begin
/// is skipped: spreadsheets write it.
///
/// # Errors
/// The first mistake, with its line and task.
pub fn read_csv(text: &str) -> Result<Model, Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty());
    let Some((number, header)) = lines.next() else {
        return Err(Error::new("line 1", "no columns; begin with a line such as 'name,period_ms'"));
    };
    let columns: Vec<(&str, &str)> = header.split(',').map(|c| column(c.trim())).collect();
    for (at, (name, _)) in columns.iter().enumerate() {
        let place = format!("line {number}");
        if !COLUMNS.contains(name) {
            let what = format!("no column is named '{name}'; use {}", COLUMNS.join(", "));
            return Err(Error::new(place, what));
        }
        if columns[..at].iter().any(|(other, _)| other == name) {
            return Err(Error::new(place, format!("column '{name}' occurs twice; keep one")));
        }
    }
    let mut model = Model::default();
    for (number, line) in lines {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let place = format!("line {number}, task '{}'", cells.first().unwrap_or(&""));
        if cells.len() != columns.len() {
            let what = format!("{} cells, but {} columns", cells.len(), columns.len());
            return Err(Error::new(place, what + "; write one cell for each column"));
        }
        if model.tasks.len() == TASKS_MAX {
            return Err(Error::new(place, "more than 10,000 tasks; divide the model"));
        }
        let cells = columns.iter().zip(cells).map(|(&(name, unit), cell)| (name, unit, cell));
        task(&Row { place, cells: cells.collect() }, &mut model)?;
    }
    model.check()?;
    Ok(model)
}

/// The name of a column and its unit.
fn column(text: &str) -> (&str, &str) {
    match text.rsplit_once('_') {
        Some((name, unit @ ("s" | "ms" | "us" | "ns"))) => (name, unit),
        _ => (text, ""),
    }
}

/// The index of a name, which is added if it is new.
fn index(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|n| n == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    })
}

fn task(row: &Row<'_>, model: &mut Model) -> Result<(), Error> {
    let lacks = |what: &str| row.error(format!("no {what}; write one"));
    let name = row.text("name").ok_or_else(|| lacks("name"))?;
    let period_ns = row.time("period")?.ok_or_else(|| lacks("period"))?;
    let worst = row.time("worst")?.ok_or_else(|| lacks("worst"))?;
    let best = row.time("best")?.unwrap_or(worst);
    let priority = row.text("priority").map(|text| {
        let wrong = || row.error(format!("priority '{text}'; write a whole number from 0"));
        text.parse::<u32>().map_err(|_| wrong())
    });
    let core = row.text("core").unwrap_or("core");
    let core = model.cores.iter().position(|c| c.name == core).unwrap_or_else(|| {
        model.cores.push(Core { name: core.to_owned(), ..Core::default() });
        model.cores.len() - 1
    });
    let preemption = match row.text("preemption") {
        None => Preemption::Preemptive,
        Some(text) => PREEMPTIONS.iter().find(|p| p.0 == text).map(|p| p.1).ok_or_else(|| {
            let what = "write preemptive, cooperative, between-runnables or non-preemptive";
            row.error(format!("preemption '{text}'; {what}"))
        })?,
    };
    let mut sections = Vec::new();
    for text in row.text("resources").unwrap_or("").split(';').filter(|t| !t.trim().is_empty()) {
        let wrong = || row.error(format!("resource '{text}'; write 'NAME: 20 us'"));
        let (name, time) = text.split_once(':').ok_or_else(wrong)?;
        let worst_ns = time.parse::<Time>().map_err(|e| row.error(format!("resources: {e}")))?.ns;
        sections.push(Section { resource: index(&mut model.resources, name.trim()), worst_ns });
    }
    model.tasks.push(Task {
        activation: Some(Activation::Periodic {
            period_ns,
            offset_ns: row.time("offset")?,
            jitter_ns: row.time("jitter")?.unwrap_or(0),
        }),
        deadline_ns: row.time("deadline")?,
        sections,
        preemption,
        priority: priority.transpose()?,
        core: Some(core),
        cost: Cost { time_ns: Range { best, worst }, ..Cost::default() },
        ..Task::new(name, period_ns, Range::default(), 0)
    });
    Ok(())
}

/// Writes a table of periodic tasks, with the execution times on their cores. The table lacks parts
/// that do not affect times, such as safety levels and components.
///
/// # Errors
/// An element that a table cannot express, with the remedy to write TOML.
pub fn write_csv(model: &Model) -> Result<String, Error> {
    let wrong =
        |place: &str, what: &str| Error::new(place, format!("{what}; write the TOML form instead"));
    if let Some(note) = model.notes.iter().find(|n| n.effect == Effect::Optimistic) {
        return Err(wrong(&note.place, "a table cannot express that it is not supported"));
    }
    // Without their limits, the verdict about the table could be another one.
    if let Some(chain) = model.chains.first() {
        return Err(wrong(&named("chain", &chain.name), "a table has no chains"));
    }
    if let Some(memory) = model.memories.iter().find(|m| m.size_bytes.is_some()) {
        return Err(wrong(&named("memory", &memory.name), "a table has no memories"));
    }
    let mut text = COLUMNS.join(",") + "\n";
    for task in &model.tasks {
        let place = format!("task '{}'", task.name);
        let Some(Activation::Periodic { period_ns, offset_ns, jitter_ns }) = task.activation else {
            return Err(wrong(&place, "a table has only periodic tasks"));
        };
        let Some(core) = task.core else { return Err(wrong(&place, "the task has no core")) };
        let time = model.execution(task, &model.cores[core], Some(core));
        let time = time.map_err(|e| wrong(&place, &format!("it has {e}")))?;
        if !task.modes.is_empty() || model.cores[core].policy != Policy::FixedPriority {
            return Err(wrong(&place, "a table has only fixed priorities without modes"));
        }
        let is_divided =
            matches!(task.preemption, Preemption::Cooperative | Preemption::BetweenRunnables);
        if is_divided && task.runnables.len() > 1 {
            return Err(wrong(&place, "a table has no runnables, between which tasks preempt"));
        }
        let preemption = PREEMPTIONS.iter().find(|p| p.1 == task.preemption).map_or("", |p| p.0);
        let section =
            |s: &Section| format!("{}: {}", model.resources[s.resource], Time::from(s.worst_ns));
        let names = [&task.name, &model.cores[core].name].into_iter();
        let resources: Vec<String> = task.sections.iter().map(section).collect();
        if names.chain(&resources).any(|n| n.contains([',', '\n', '\r']) || n.trim() != n) {
            return Err(wrong(&place, "a name with a comma or with white space at an end"));
        }
        let time_or_none =
            |ns: Option<u64>| ns.map_or(String::new(), |n| Time::from(n).to_string());
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{},{}",
            task.name,
            Time::from(period_ns),
            time_or_none(offset_ns),
            Time::from(jitter_ns),
            time_or_none(task.deadline_ns),
            Time::from(time.best),
            Time::from(time.worst),
            task.priority.map_or(String::new(), |p| p.to_string()),
            model.cores[core].name,
            preemption,
            resources.join("; "),
        );
    }
    Ok(text)
}
