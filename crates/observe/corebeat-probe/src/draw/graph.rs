//! Dependency graphs.

use super::svg::{LINE, Svg, width};
use super::{Format, clean, dot, mermaid};
use crate::call::Calls;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

/// Draws a dependency graph: operations, and how often each one called another one, on its own line
/// or by handover.
pub fn graph(calls: &Calls, format: Format) -> String {
    let mut edges: BTreeMap<(u16, u16, bool), u64> = BTreeMap::new();
    let mut names: BTreeMap<u16, String> = BTreeMap::new();
    for call in calls.calls() {
        names.entry(call.operation).or_insert_with(|| clean(&calls.operation(call).name));
        if let Some(parent) = call.parent {
            let from = calls.calls()[parent as usize].operation;
            *edges.entry((from, call.operation, call.handed_over)).or_default() += 1;
        }
    }
    match format {
        Format::Text => {
            let mut out = format!("{:>9}  caller and callee\n", "calls");
            for ((from, to, handed_over), calls) in &edges {
                let arrow = if *handed_over { "~>" } else { "->" };
                let _ = writeln!(out, "{calls:>9}  {} {arrow} {}", names[from], names[to]);
            }
            out
        }
        Format::Dot => {
            let mut out = String::from("digraph operations {\n  rankdir=LR; node [shape=box];\n");
            for (number, name) in &names {
                let _ = writeln!(out, "  o{number} [label={}];", dot(name));
            }
            for ((from, to, handed_over), calls) in &edges {
                let style = if *handed_over { ", style=dashed" } else { "" };
                let _ = writeln!(out, "  o{from} -> o{to} [label=\"{calls}\"{style}];");
            }
            out + "}\n"
        }
        Format::Mermaid => {
            let mut out = String::from("flowchart LR\n");
            for (number, name) in &names {
                let _ = writeln!(out, "  o{number}[\"{}\"]", mermaid(name));
            }
            for ((from, to, handed_over), calls) in &edges {
                let arrow = if *handed_over { "-.->" } else { "-->" };
                let _ = writeln!(out, "  o{from} {arrow}|{calls}| o{to}");
            }
            out
        }
        Format::Svg => picture(&names, &edges),
    }
}

/// Columns by the distance of an operation from one without caller.
fn columns(
    names: &BTreeMap<u16, String>,
    edges: &BTreeMap<(u16, u16, bool), u64>,
) -> Vec<Vec<u16>> {
    let mut column: BTreeMap<u16, usize> = BTreeMap::new();
    let is_called = |to: u16| edges.keys().any(|edge| edge.1 == to && edge.0 != to);
    // A cycle of operations without other callers starts a column, too.
    let roots = names.keys().filter(|name| !is_called(**name)).chain(names.keys());
    for root in roots {
        if column.contains_key(root) {
            continue;
        }
        column.insert(*root, 0);
        let mut left = VecDeque::from([*root]);
        while let Some(from) = left.pop_front() {
            let next = column[&from] + 1;
            for (_, to, _) in
                edges.range((from, 0, false)..=(from, u16::MAX, true)).map(|(edge, _)| *edge)
            {
                column.entry(to).or_insert_with(|| {
                    left.push_back(to);
                    next
                });
            }
        }
    }
    let mut columns = vec![Vec::new(); column.values().max().map_or(0, |last| last + 1)];
    column.iter().for_each(|(name, column)| columns[*column].push(*name));
    columns
}

fn picture(names: &BTreeMap<u16, String>, edges: &BTreeMap<(u16, u16, bool), u64>) -> String {
    const GAP: f64 = 90.0;
    let mut svg = Svg::new();
    // Left end, right end and middle of each operation.
    let mut places: BTreeMap<u16, (f64, f64, f64)> = BTreeMap::new();
    let mut x = 10.0;
    for column in columns(names, edges) {
        let wide = column.iter().map(|name| width(&names[name])).fold(0.0, f64::max) + 12.0;
        for (row, name) in column.iter().enumerate() {
            let y = 24.0 + row as f64 * 2.5 * LINE;
            places.insert(*name, (x, x + wide, y));
            svg.boxed(x, y, wide, &names[name], 0.3);
        }
        x += wide + GAP;
    }
    for ((from, to, handed_over), calls) in edges {
        let ((left, right, y), (to_left, to_right, to_y)) = (places[from], places[to]);
        let label = calls.to_string();
        if from == to {
            let (a, b, top) = (right - 24.0, right - 8.0, y - LINE / 2.0);
            let high = top - 14.0;
            svg.path(
                &format!("M{a:.1} {top:.1}C{a:.1} {high:.1} {b:.1} {high:.1} {b:.1} {top:.1}"),
                *handed_over,
                true,
            );
            svg.text(right - 4.0, top - 4.0, &label);
            continue;
        }
        // Forward edges run from right end to left end; backward edges run below the boxes.
        let (x1, x2, bend) =
            if to_left > right { (right, to_left, 0.0) } else { (left, to_right, LINE) };
        let middle = (x1 + x2) / 2.0;
        let (y1, y2) = (y + bend / 3.0, to_y + bend / 3.0);
        let (c1, c2) = (y1 + bend, y2 + bend);
        svg.path(
            &format!("M{x1:.1} {y1:.1}C{middle:.1} {c1:.1} {middle:.1} {c2:.1} {x2:.1} {y2:.1}"),
            *handed_over,
            true,
        );
        svg.text(middle - width(&label) / 2.0, (y1 + y2) / 2.0 - 7.0 + bend, &label);
    }
    svg.end()
}
