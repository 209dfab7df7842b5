//! Results on standard output.

use corebeat_command::{Failure, print};
use corebeat_rewrite::{Graph, Outcome, Table, Value};
use serde_json::{Map, Number, json};
use std::fmt::Write;
use std::time::Duration;

/// Prints a table: its columns aligned, or a JSON object for each row.
pub(crate) fn table(table: &Table, is_json: bool) -> Result<(), Failure> {
    let mut text = String::new();
    if is_json {
        for row in &table.rows {
            let _ = writeln!(text, "{}", object(&table.columns, row));
        }
        return print(text);
    }
    let cells: Vec<Vec<String>> =
        table.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    let width = |column: usize| {
        let cells = cells.iter().map(|row| row[column].chars().count());
        cells.chain([table.columns[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    for row in std::iter::once(&table.columns).chain(&cells) {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    print(text)
}

/// Prints the rows that a change has removed from the results of a query and added to them. The
/// first argument has the names of both rules; without a change, the rows are the first results.
pub(crate) fn difference(
    (query, change): (&str, Option<&str>),
    columns: &[String],
    gone: &[&[Value]],
    added: &[&[Value]],
    is_json: bool,
) -> Result<(), Failure> {
    let rows = gone.iter().map(|row| (false, row)).chain(added.iter().map(|row| (true, row)));
    let mut text = String::new();
    if let Some(change) = change.filter(|_| !is_json) {
        let _ = writeln!(text, "{query} after {change}");
    }
    for (appears, row) in rows {
        let _ = match is_json {
            true => {
                let row = object(columns, row);
                let line =
                    json!({ "query": query, "change": change, "appears": appears, "row": row });
                writeln!(text, "{line}")
            }
            false => {
                let cells: Vec<String> = row.iter().map(cell).collect();
                writeln!(text, "{} {}", if appears { '+' } else { '-' }, cells.join("  "))
            }
        };
    }
    print(text)
}

/// A row as an object of JSON.
fn object(columns: &[String], row: &[Value]) -> serde_json::Value {
    let pairs = columns.iter().cloned().zip(row.iter().map(to_json));
    serde_json::Value::Object(pairs.collect())
}

/// A value in a table: a text without quotes, in one line.
fn cell(value: &Value) -> String {
    match value {
        Value::Text(text) => text.chars().flat_map(visible).collect(),
        other => other.to_string().chars().flat_map(visible).collect(),
    }
}

/// A character, escaped if it is a control character.
fn visible(c: char) -> Box<dyn Iterator<Item = char>> {
    match c.is_control() {
        true => Box::new(c.escape_default()),
        false => Box::new(std::iter::once(c)),
    }
}

fn to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(value) => json!(value),
        Value::Int(value) => json!(value),
        // JSON has no infinity and no NaN.
        Value::Float(value) => Number::from_f64(*value).map_or(json!(null), |number| json!(number)),
        Value::Text(text) => json!(&**text),
        Value::List(values) => values.iter().map(to_json).collect(),
    }
}

/// Prints the numbers of a run.
pub(crate) fn outcome(
    outcome: &Outcome,
    time: Duration,
    graph: &Graph,
    is_json: bool,
) -> Result<(), Failure> {
    let seconds = time.as_secs_f64();
    let rate = outcome.rewrites as f64 / seconds.max(1e-9);
    let (nodes, edges) = (graph.node_count(), graph.edge_count());
    if is_json {
        let object = json!({
            "rewrites": outcome.rewrites, "passes": outcome.passes,
            "conflicts": outcome.conflicts, "reached_max": outcome.reached_max,
            "stopped": outcome.stopped, "nodes": nodes, "edges": edges, "time_s": seconds,
        });
        return print(format_args!("{object}\n"));
    }
    let end = match (outcome.stopped, outcome.reached_max) {
        (true, _) => "; stopped",
        (_, true) => "; stopped at the limit of --max",
        _ => "",
    };
    print(format_args!(
        "{} rewrites in {seconds:.3} s ({rate:.0} per second), {} passes, {} conflicts{end}\n\
         the graph has {nodes} nodes and {edges} edges\n",
        outcome.rewrites, outcome.passes, outcome.conflicts
    ))
}

/// Prints the numbers of elements by type.
pub(crate) fn stats(graph: &Graph, is_json: bool) -> Result<(), Failure> {
    let schema = graph.schema();
    let nodes = schema.node_types().map(|of| (schema.node_name(of), graph.node_count_of(of)));
    let edges = schema.edge_types().map(|of| (schema.edge_name(of), graph.edge_count_of(of)));
    if is_json {
        let nodes: Map<String, serde_json::Value> =
            nodes.map(|(name, count)| (name.to_owned(), json!(count))).collect();
        let edges: Map<String, serde_json::Value> =
            edges.map(|(name, count)| (name.to_owned(), json!(count))).collect();
        return print(format_args!("{}\n", json!({ "nodes": nodes, "edges": edges })));
    }
    let mut text = format!("{:>12} nodes\n", graph.node_count());
    for (name, count) in nodes {
        let _ = writeln!(text, "{count:>12}   {name}");
    }
    let _ = writeln!(text, "{:>12} edges", graph.edge_count());
    for (name, count) in edges {
        let _ = writeln!(text, "{count:>12}   {name}");
    }
    print(text)
}
