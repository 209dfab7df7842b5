//! Conversion of a net into S-Net source, for messages and for tests of the parser and the checker.

use std::fmt::Write;

use corebeat_snet::Shape;
use corebeat_snet::expression::Expression;
use corebeat_snet::plan::{BoxPlan, Net, Node, OutputPlan, Source};

/// The whole program. `remark` returns a comment for each box.
pub(crate) fn source(net: &Net, remark: impl Fn(&BoxPlan) -> String) -> String {
    let mut text = String::new();
    for plan in net.boxes() {
        writeln!(text, "box {plan}; // {}", remark(plan)).expect("a text has room");
    }
    definition(&mut text, net.name(), Some(net.input()), net.root(), 0);
    text
}

/// A net with its nested nets.
fn definition(
    text: &mut String,
    name: &str,
    declared: Option<&[Shape]>,
    root: &Node,
    depth: usize,
) {
    let indent = "  ".repeat(depth);
    write!(text, "{indent}net {name}").expect("a text has room");
    if let Some(shapes) = declared {
        write!(text, " ({} -> ...)", variants(shapes)).expect("a text has room");
    }
    let mut inner = String::new();
    definitions(&mut inner, root, None, depth + 1);
    if !inner.is_empty() {
        write!(text, " {{\n{inner}{indent}}}").expect("a text has room");
    }
    writeln!(text, " connect {};", topology(root)).expect("a text has room");
}

fn definitions(text: &mut String, node: &Node, declared: Option<&[Shape]>, depth: usize) {
    match node {
        Node::Identity | Node::Box(_) | Node::Filter(_) | Node::Sync(_) => {}
        Node::Serial(parts) => parts.iter().for_each(|part| definitions(text, part, None, depth)),
        Node::Parallel(plan) => {
            for branch in &plan.branches {
                definitions(text, &branch.node, Some(&branch.accepts), depth);
            }
        }
        Node::Star(plan) => definitions(text, &plan.operand, None, depth),
        Node::Split(plan) => definitions(text, &plan.operand, None, depth),
        Node::Feedback(plan) => definitions(text, &plan.operand, None, depth),
        Node::Place(operand, _) => definitions(text, operand, None, depth),
        Node::Net(name, root) => definition(text, name, declared, root, depth),
    }
}

fn topology(node: &Node) -> String {
    match node {
        Node::Identity => "[]".into(),
        Node::Box(plan) => plan.name.clone(),
        Node::Filter(plan) => plan.text.clone(),
        Node::Sync(plan) => format!("[| {} |]", list(&plan.patterns, ", ")),
        Node::Serial(parts) => format!("({})", list(parts.iter().map(topology), " .. ")),
        Node::Parallel(plan) => {
            let branches = plan.branches.iter().map(|branch| topology(&branch.node));
            format!("({})", list(branches, if plan.deterministic { " || " } else { " | " }))
        }
        Node::Star(plan) => {
            let operator = if plan.deterministic { "**" } else { "*" };
            format!("({} {operator} {})", topology(&plan.operand), list(&plan.exits, ", "))
        }
        Node::Split(plan) => {
            let operator = if plan.deterministic { "!!" } else { "!" };
            let at = if plan.placed { "@" } else { "" };
            format!("({} {operator}{at} {})", topology(&plan.operand), plan.tag)
        }
        Node::Feedback(plan) => {
            format!("({} \\ {})", topology(&plan.operand), list(&plan.patterns, ", "))
        }
        Node::Place(operand, place) => format!("({} @ {place})", topology(operand)),
        Node::Net(name, _) => name.to_string(),
    }
}

/// Source text of a filter.
pub(crate) fn filter(pattern: Shape, cases: &[(Option<Expression>, Vec<OutputPlan>)]) -> String {
    let cases = cases.iter().map(|(condition, outputs)| {
        let outputs = list(outputs.iter().map(output), "; ");
        match condition {
            Some(condition) => format!("if <{condition}> then {outputs}"),
            None => outputs,
        }
    });
    format!("[{pattern} -> {}]", list(cases, " else "))
}

fn output(output: &OutputPlan) -> String {
    let entries = output.entries.iter().map(|(label, source)| match source {
        Source::Label(from) if from == label => label.to_string(),
        Source::Label(from) => format!("{label} = {from}"),
        Source::Value(value) => format!("{} = ({value})>", label.to_string().trim_end_matches('>')),
    });
    format!("{{{}}}", list(entries, ", "))
}

fn variants(shapes: &[Shape]) -> String {
    list(shapes, " | ")
}

fn list<T: ToString>(items: impl IntoIterator<Item = T>, between: &str) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(between)
}
