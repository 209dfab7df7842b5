//! Call trees: calls with the same path from the root are one node.

use super::svg::{LINE, Svg, width};
use super::{Format, clean, dot, mermaid, time};
use crate::call::{Calls, Outcome};
use std::collections::HashMap;
use std::fmt::Write;

/// Limit on the number of nodes in a tree; the first nodes are drawn.
pub const NODES_MAX: usize = 2000;

/// All calls with the same path from the root.
#[derive(Default)]
struct Node {
    name: String,
    depth: usize,
    parent: Option<usize>,
    handed_over: bool,
    calls: u64,
    total_ns: u64,
    /// Time without callees on the same line.
    own_ns: u64,
    panicked: u64,
    unfinished: u64,
    /// Callees, in the order of their first calls.
    called: Vec<usize>,
}

/// Draws a call tree: calls with the same path are one node, with their number, their total time,
/// and their time without callees.
pub fn tree(calls: &Calls, format: Format) -> String {
    let nodes = nodes(calls);
    let order = order(&nodes);
    let (drawn, rest) = order.split_at(order.len().min(NODES_MAX));
    let more = (!rest.is_empty()).then(|| format!("{} more", rest.len()));
    match format {
        Format::Text => text(&nodes, drawn, more),
        Format::Dot => {
            let mut out = String::from("digraph calls {\n  rankdir=LR; node [shape=box];\n");
            for (name, node) in drawn.iter().map(|at| (at, &nodes[*at])) {
                let _ = writeln!(out, "  n{name} [label={}];", dot(&label(node, "\n")));
                if let Some(parent) = node.parent {
                    let style = if node.handed_over { ", style=dashed" } else { "" };
                    let _ =
                        writeln!(out, "  n{parent} -> n{name} [label=\"{}\"{style}];", node.calls);
                }
            }
            if let Some(more) = more {
                let _ = writeln!(out, "  more [label={}, shape=plain];", dot(&more));
            }
            out + "}\n"
        }
        Format::Mermaid => {
            let mut out = String::from("flowchart LR\n");
            for (name, node) in drawn.iter().map(|at| (at, &nodes[*at])) {
                let _ = writeln!(out, "  n{name}[\"{}\"]", mermaid(&label(node, "\n")));
                if let Some(parent) = node.parent {
                    let arrow = if node.handed_over { "-.->" } else { "-->" };
                    let _ = writeln!(out, "  n{parent} {arrow}|{}| n{name}", node.calls);
                }
            }
            if let Some(more) = more {
                let _ = writeln!(out, "  more[\"{more}\"]");
            }
            out
        }
        Format::Svg => picture(&nodes, drawn, more),
    }
}

fn nodes(calls: &Calls) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut known: HashMap<(Option<usize>, u16, bool), usize> = HashMap::new();
    // The node of each call. A caller precedes its callees.
    let mut at: Vec<usize> = Vec::with_capacity(calls.calls().len());
    for call in calls.calls() {
        let parent = call.parent.map(|parent| at[parent as usize]);
        let index = *known.entry((parent, call.operation, call.handed_over)).or_insert_with(|| {
            nodes.push(Node {
                name: clean(&calls.operation(call).name),
                depth: parent.map_or(0, |parent| nodes[parent].depth + 1),
                parent,
                handed_over: call.handed_over,
                ..Node::default()
            });
            let index = nodes.len() - 1;
            if let Some(parent) = parent {
                nodes[parent].called.push(index);
            }
            index
        });
        at.push(index);
        let took_ns = call.end_ns - call.begin_ns;
        let node = &mut nodes[index];
        node.calls += 1;
        node.total_ns = node.total_ns.saturating_add(took_ns);
        node.own_ns = node.own_ns.saturating_add(took_ns);
        match call.outcome {
            Outcome::Returned => {}
            Outcome::Panicked => node.panicked += 1,
            Outcome::Open | Outcome::EventsLost => node.unfinished += 1,
        }
        if let Some(parent) = parent.filter(|_| !call.handed_over) {
            nodes[parent].own_ns = nodes[parent].own_ns.saturating_sub(took_ns);
        }
    }
    nodes
}

/// Nodes in the order of first calls, each before its callees.
fn order(nodes: &[Node]) -> Vec<usize> {
    let roots = (0..nodes.len()).filter(|at| nodes[*at].parent.is_none());
    let mut left: Vec<usize> = roots.collect();
    left.reverse();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(next) = left.pop() {
        order.push(next);
        left.extend(nodes[next].called.iter().rev());
    }
    order
}

fn label(node: &Node, between: &str) -> String {
    let mut label = format!("{}{between}{} ×, {}", node.name, node.calls, time(node.total_ns));
    label.push_str(&faults(node));
    label
}

fn faults(node: &Node) -> String {
    let faults = [(node.panicked, "panicked"), (node.unfinished, "unfinished")];
    let faults: Vec<_> =
        faults.iter().filter(|f| f.0 > 0).map(|f| format!("{} {}", f.0, f.1)).collect();
    if faults.is_empty() { String::new() } else { format!("  ({})", faults.join(", ")) }
}

fn text(nodes: &[Node], drawn: &[usize], more: Option<String>) -> String {
    let mut out = format!("{:>9} {:>11} {:>11}  call\n", "calls", "total", "self");
    for node in drawn.iter().map(|at| &nodes[*at]) {
        let handed_over = if node.handed_over { "~ " } else { "" };
        let _ = writeln!(
            out,
            "{:>9} {:>11} {:>11}  {}{handed_over}{}{}",
            node.calls,
            time(node.total_ns),
            time(node.own_ns),
            "  ".repeat(node.depth),
            node.name,
            faults(node)
        );
    }
    if let Some(more) = more {
        let _ = writeln!(out, "... {more}");
    }
    out
}

fn picture(nodes: &[Node], drawn: &[usize], more: Option<String>) -> String {
    const STEP: f64 = 24.0;
    let mut svg = Svg::new();
    let longest_ns = nodes.iter().map(|node| node.total_ns).max().unwrap_or(0).max(1);
    let mut rows: HashMap<usize, usize> = HashMap::new();
    let place =
        |depth: usize, row: usize| (10.0 + depth as f64 * STEP, 10.0 + (row as f64 + 0.5) * LINE);
    for (row, at) in drawn.iter().enumerate() {
        let node = &nodes[*at];
        rows.insert(*at, row);
        let (x, y) = place(node.depth, row);
        let label = label(node, "  ");
        if let Some(row) = node.parent.and_then(|parent| rows.get(&parent)) {
            let from = place(node.depth - 1, *row).1 + LINE / 2.0;
            let left = x - STEP / 2.0;
            svg.path(&format!("M{left:.1} {from:.1}V{y:.1}H{x:.1}"), node.handed_over, false);
        }
        let wide = width(&label) + 12.0;
        svg.boxed(x, y, wide, &label, node.total_ns as f64 / longest_ns as f64);
    }
    more.iter().for_each(|more| svg.text(10.0, place(0, drawn.len()).1, more));
    svg.end()
}
