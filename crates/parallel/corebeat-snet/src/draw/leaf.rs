//! Drawings of boxes, filters and synchrocells.

use super::pen::{Font, Ink, cut, one_line, wrap};
use super::{At, COLUMNS, LINES, PAD, Piece, hint, joined};
use crate::label::Label;
use crate::plan::{BoxPlan, FilterPlan, Node, SyncPlan};

/// Draws a rectangle with a name and lines of text.
pub(super) fn leaf(class: &str, hint: &str, name: Option<&str>, lines: &[String]) -> Piece {
    const LINE: i32 = 15;
    let named = name.map_or(0, |name| Font::Name.width(name));
    let width = lines.iter().map(|l| Font::Plain.width(l)).max().unwrap_or(0).max(named) + 2 * PAD;
    let name_height = if name.is_some() { 18 } else { 0 };
    let height = (name_height + lines.len() as i32 * LINE + 14).max(32);
    let mut ink = Ink::default();
    ink.open(class, hint);
    ink.rect(0, 0, width, height, if class == "filter" { 12 } else { 4 });
    if class == "sync" {
        ink.path("bar", format_args!("M5 0V{height}M{} 0V{height}", width - 5));
    }
    if let Some(name) = name {
        ink.centred(Font::Name, width / 2, 20, name);
    }
    let first = (height - name_height - lines.len() as i32 * LINE) / 2 + name_height + 11;
    for (i, line) in lines.iter().enumerate() {
        ink.centred(Font::Plain, width / 2, first + i as i32 * LINE, line);
    }
    ink.close();
    Piece { width, height, enter: height / 2, leave: height / 2, tip: true, svg: ink.0 }
}

/// Draws a box, with its rank if it runs on ranks.
pub(super) fn box_piece(plan: &BoxPlan, at: Option<&At>) -> Piece {
    let list = |labels: &mut dyn Iterator<Item = String>| {
        format!("({})", labels.collect::<Vec<_>>().join(", "))
    };
    let outputs: Vec<String> =
        plan.outputs.iter().map(|o| list(&mut o.iter().map(Label::to_string))).collect();
    let input = plan.input.as_ref().map(|input| {
        list(&mut input.iter().map(|e| format!("{}{}", e.label, if e.passes { " =" } else { "" })))
    });
    let mut lines = vec![
        format!("{} → {}", input.as_deref().unwrap_or(""), outputs.join(" | ")).trim().to_owned(),
    ];
    if lines[0].chars().count() as i32 > COLUMNS {
        lines.clear();
        lines.extend(input.iter().flat_map(|input| wrap(input, COLUMNS, LINES / 2)));
        let shown = if outputs.len() > LINES { LINES - 1 } else { outputs.len() };
        for (i, output) in outputs[..shown].iter().enumerate() {
            let output = format!("{} {output}", if i == 0 { "→" } else { "|" });
            lines.extend(wrap(&output, COLUMNS, LINES / 2));
        }
        if shown < outputs.len() {
            lines.push(format!("| … {} more", outputs.len() - shown));
        }
    }
    let body = plan
        .body
        .as_ref()
        .map_or(String::new(), |b| format!("\ncode in the program, in {}", b.language.text));
    lines.extend(at.map(|at| cut(&at.to_string(), COLUMNS)));
    let class = at.map_or("box".into(), At::class);
    leaf(&class, &hint(&format!("box {plan}{body}")), Some(&cut(&plan.name, COLUMNS)), &lines)
}

pub(super) fn filter_piece(plan: &FilterPlan) -> Piece {
    let text = one_line(&plan.text);
    leaf("filter", &hint(&format!("filter {text}")), None, &wrap(&text, COLUMNS, LINES))
}

pub(super) fn sync_piece(plan: &SyncPlan) -> Piece {
    let shown = if plan.patterns.len() > LINES { LINES - 1 } else { plan.patterns.len() };
    let mut lines: Vec<String> =
        plan.patterns[..shown].iter().map(|p| cut(&p.to_string(), COLUMNS)).collect();
    if shown < plan.patterns.len() {
        lines.push(format!("… {} more", plan.patterns.len() - shown));
    }
    let text = format!(
        "synchrocell [| {} |]: stores one record for each pattern and merges them",
        joined(&plan.patterns, ", ")
    );
    leaf("sync", &hint(&text), None, &lines)
}

/// Draws a placeholder for an omitted part.
pub(super) fn folded(text: &str, why: &str) -> Piece {
    leaf("folded", &hint(why), None, &[cut(text, COLUMNS)])
}

pub(super) fn more(count: usize) -> Piece {
    folded(&format!("… {count} more"), &format!("{count} omitted parts"))
}

/// Short name of a node.
pub(super) fn brief(node: &Node) -> String {
    match node {
        Node::Net(name, _) => format!("net {name} …"),
        Node::Box(plan) => format!("{} …", plan.name),
        _ => "…".into(),
    }
}
