//! Pictures of nets, in SVG.
//!
//! Streams flow from left to right. Every part of a net becomes a `Piece`: its size, the heights at which its stream
//! comes in and leaves, and its drawing. Pieces are measured and put together from the innermost out, so that nothing
//! overlaps:
//!
//! ```text
//!  serial          parallel            star                      split                feedback
//!
//!  -[a]->[b]-      .-[a]-.       .------->-------.          .---------.
//!               --o       o--  --o->[a]..>(...)..o--    --o-[a]      |-o--          --o->[a]-o--
//!                  `-[b]-'                                 `----------'               `--<---'
//! ```
//!
//! What is drawn is bounded: a long list shows its begin, its end and how many are between, and what is nested too deeply
//! shows its name. (Named nets may stand in each other many times: a short program can be a net of any size.)

mod pen;

use std::fmt::Display;

use crate::label::Label;
use crate::plan::{
    BoxPlan, FeedbackPlan, FilterPlan, Net, Node, ParallelPlan, SplitPlan, StarPlan, SyncPlan,
};
use crate::shape::Shape;
use pen::{Font, Ink, POINT, cut, elbow, one_line, wrap};

/// Parts of a serial or parallel composition that are drawn; of longer ones the begin, and [`TAIL`] at the end.
const LIST_MAX: usize = 48;

/// Parts drawn at the end of a list that is too long.
const TAIL: usize = 4;

/// Frames in frames.
const DEPTH_MAX: usize = 24;

/// Parts of a picture in all.
const PARTS_MAX: usize = 4_000;

/// Pixels after which a chain goes on in another row.
const ROW: i32 = 1_200;

/// The least of that, in deep frames.
const ROW_MIN: i32 = 420;

/// Columns of a signature, a filter or a type in a line.
const COLUMNS: i32 = 34;

/// Lines of a filter, and parts of a signature or a synchrocell.
const LINES: usize = 6;

/// Characters of a text that is shown where the mouse rests.
const HINT_MAX: usize = 2_000;

/// Pixels between one part of a chain and the next.
const GAP: i32 = 36;

/// Pixels from a frame to what is inside.
const PAD: i32 = 14;

/// Pixels for the text at the head of a frame.
const HEAD: i32 = 24;

/// Columns of the text at the head of a frame.
const HEAD_COLUMNS: i32 = 60;

/// A picture of a net, as SVG, for light and dark backgrounds. The same net gives the same picture.
pub fn svg(net: &Net) -> String {
    let piece = Drawer { parts: PARTS_MAX }.node(&net.root, 0, ROW);
    let signature = format!("{} -> {}", variants(&net.input), variants(&net.output)).replace("->", "→");
    let lines = wrap(&signature, 100, LINES);
    let title = format!("net {}", cut(&net.name, HEAD_COLUMNS));

    const MARGIN: i32 = 24;
    const LEAD: i32 = 34;
    let line = 15;
    let top = MARGIN + 24 + lines.len() as i32 * line + 12;
    let said = lines.iter().map(|l| Font::Plain.width(l)).max().unwrap_or(0).max(Font::Title.width(&title));
    let width = (piece.width + 2 * LEAD).max(said) + 2 * MARGIN;
    let height = top + piece.height + MARGIN;

    let mut ink = Ink::default();
    ink.raw(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n"
    ));
    ink.hint(&title);
    ink.raw(format_args!("<style>\n{}</style>\n", include_str!("draw/style.css")));
    ink.raw(
        "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7.5\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
         markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path class=\"tip\" d=\"M0 0.5L8 4L0 7.5z\"/></marker></defs>\n",
    );
    ink.raw(format_args!("<rect class=\"back\" width=\"{width}\" height=\"{height}\"/>\n"));
    ink.text(Font::Title, MARGIN, MARGIN + 14, &title);
    ink.open("signature", &hint(&signature));
    for (i, text) in lines.iter().enumerate() {
        ink.text(Font::Plain, MARGIN, MARGIN + 36 + i as i32 * line, text);
    }
    ink.close();
    let (enter, leave) = (top + piece.enter, top + piece.leave);
    ink.path(piece.inward(), format_args!("M{MARGIN} {enter}H{}", MARGIN + LEAD));
    let right = MARGIN + LEAD + piece.width;
    ink.path("flow", format_args!("M{right} {leave}H{}", right + LEAD));
    ink.place(MARGIN + LEAD, top, &piece.svg);
    ink.raw("</svg>\n");
    ink.0
}

/// A part of the picture, with its left upper corner at 0. Its stream comes in at the left edge and leaves at the right.
struct Piece {
    width: i32,
    height: i32,
    /// Where the stream comes in, from the top.
    enter: i32,
    /// Where the stream leaves, from the top.
    leave: i32,
    /// Whether the stream that comes in ends at the edge, with a tip; else it goes on inside.
    tip: bool,
    svg: String,
}

impl Piece {
    /// The class of the line that leads into it.
    fn inward(&self) -> &'static str {
        if self.tip { "flow" } else { "wire" }
    }
}

struct Drawer {
    /// How many parts may still be drawn.
    parts: usize,
}

impl Drawer {
    /// A node `depth` frames deep, in about `room` pixels.
    fn node(&mut self, node: &Node, depth: usize, room: i32) -> Piece {
        let framed = !matches!(node, Node::Identity | Node::Box(_) | Node::Filter(_) | Node::Sync(_));
        if self.parts == 0 || framed && depth == DEPTH_MAX {
            return folded(&brief(node), "too much to be drawn");
        }
        self.parts -= 1;
        let (deeper, less) = (depth + 1, (room - 6 * PAD).max(ROW_MIN));
        match node {
            Node::Identity => leaf("filter", "identity: passes all on", None, &["[]".into()]),
            Node::Box(plan) => box_piece(plan),
            Node::Filter(plan) => filter_piece(plan),
            Node::Sync(plan) => sync_piece(plan),
            Node::Serial(nodes) => self.serial(nodes, deeper, room),
            Node::Parallel(plan) => self.parallel(plan, deeper, less),
            Node::Star(plan) => star_piece(plan, self.node(&plan.operand, deeper, less)),
            Node::Split(plan) => split_piece(plan, self.node(&plan.operand, deeper, less)),
            Node::Feedback(plan) => feedback_piece(plan, self.node(&plan.operand, deeper, less)),
            Node::Place(operand, place) => {
                let head = format!("@ {place}");
                frame("place", &head, &format!("runs at place {place}"), self.node(operand, deeper, less))
            }
            Node::Net(name, operand) => {
                let head = format!("net {name}");
                frame("net", &head, &head, self.node(operand, deeper, less))
            }
        }
    }

    /// Pieces of a list, of which the middle may be left out: what stands there says of how many. With each its index.
    fn list<'a>(
        &mut self,
        nodes: impl ExactSizeIterator<Item = &'a Node>,
        depth: usize,
        room: i32,
    ) -> Vec<(Option<usize>, Piece)> {
        let len = nodes.len();
        let mut pieces = Vec::new();
        let mut left_out = 0;
        for (i, node) in nodes.enumerate() {
            let between = len > LIST_MAX && (LIST_MAX - TAIL..len - TAIL).contains(&i);
            if between || self.parts == 0 {
                left_out += 1;
                continue;
            }
            if left_out > 0 {
                pieces.push((None, more(left_out)));
                left_out = 0;
            }
            pieces.push((Some(i), self.node(node, depth, room)));
        }
        if left_out > 0 {
            pieces.push((None, more(left_out)));
        }
        pieces
    }

    /// One after the other, in as many rows as it takes.
    fn serial(&mut self, nodes: &[Node], depth: usize, room: i32) -> Piece {
        const TURN: i32 = 16; // beside the rows, where the stream turns to the next
        const BETWEEN: i32 = 40; // rows
        let mut rows: Vec<Vec<Piece>> = vec![vec![]];
        let mut used = 0;
        for (_, piece) in self.list(nodes.iter(), depth, room) {
            if used > 0 && used + GAP + piece.width > room {
                rows.push(vec![]);
                used = 0;
            }
            used += piece.width + if used > 0 { GAP } else { 0 };
            rows.last_mut().expect("there is a row from the begin").push(piece);
        }
        let rows: Vec<Piece> = rows.into_iter().map(row).collect();
        let [_, _, ..] = &rows[..] else {
            return rows.into_iter().next().expect("there is a row from the begin");
        };

        let inside = rows.iter().map(|r| r.width).max().unwrap_or(0);
        let width = inside + 2 * TURN;
        let mut ink = Ink::default();
        let (mut y, mut enter, mut leave) = (0, 0, 0);
        for (i, row) in rows.iter().enumerate() {
            ink.place(TURN, y, &row.svg);
            let (from, to) = (y + row.enter, y + row.leave);
            let end = TURN + row.width;
            match i {
                0 => {
                    enter = from;
                    ink.path(row.inward(), format_args!("M0 {from}H{TURN}"));
                }
                _ => ink.path(row.inward(), format_args!("M8 {from}H{TURN}")),
            }
            match rows.get(i + 1) {
                None => {
                    leave = to;
                    ink.path("wire", format_args!("M{end} {to}H{width}"));
                }
                Some(next) => {
                    // Down at the right, back between the rows, down at the left.
                    let middle = y + row.height + BETWEEN / 2;
                    let target = y + row.height + BETWEEN + next.enter;
                    let x = end + 8;
                    ink.path(
                        "wire",
                        format_args!(
                            "M{end} {to}Q{x} {to} {x} {}V{}Q{x} {middle} {} {middle}H8Q0 {middle} 0 {}V{}Q0 {target} 8 {target}",
                            to + 8, middle - 8, x - 8, middle + 8, target - 8
                        ),
                    );
                }
            }
            y += row.height + BETWEEN;
        }
        Piece { width, height: y - BETWEEN, enter, leave, tip: false, svg: ink.0 }
    }

    /// One below the other, between the point where records part and the one where they meet.
    fn parallel(&mut self, plan: &ParallelPlan, depth: usize, room: i32) -> Piece {
        const BETWEEN: i32 = 20;
        const TRUNK: i32 = 26; // where the stream turns to its branch, from the left edge
        let nodes: Vec<&Node> = plan.branches.iter().map(|b| &b.node).collect();
        let pieces = self.list(nodes.into_iter(), depth, room);
        let accepts: Vec<String> = pieces
            .iter()
            .map(|(i, _)| i.map_or(String::new(), |i| variants(&plan.branches[i].accepts)))
            .collect();
        let labels: Vec<String> = accepts.iter().map(|text| cut(text, COLUMNS)).collect();
        let said = labels.iter().map(|l| Font::Label.width(l)).max().unwrap_or(0);
        let left = TRUNK + 12 + said + 16;
        let inside = pieces.iter().map(|(_, p)| p.width).max().unwrap_or(0);
        let trunk = left + inside + 18;
        let width = trunk + TRUNK;

        let mut tops = Vec::new();
        let mut y = 0;
        for (_, piece) in &pieces {
            tops.push(y);
            y += piece.height + BETWEEN;
        }
        let height = y - BETWEEN;
        let heights = |of: fn(&Piece) -> i32| -> Vec<i32> {
            pieces.iter().zip(&tops).map(|((_, piece), top)| top + of(piece)).collect()
        };
        let (enters, leaves) = (heights(|p| p.enter), heights(|p| p.leave));
        // Between the first and the last, but with no small step to one that is near.
        let middle = |of: &[i32]| {
            let middle = (of.first().unwrap_or(&0) + of.last().unwrap_or(&0)) / 2;
            let near = of.iter().copied().min_by_key(|y| (y - middle).abs());
            near.filter(|y| (y - middle).abs() < 28).unwrap_or(middle)
        };
        let (enter, leave) = (middle(&enters), middle(&leaves));

        let operator = if plan.deterministic { "||" } else { "|" };
        let order = if plan.deterministic { ", which leave in the order of their causes" } else { "" };
        let mut ink = Ink::default();
        ink.open("parallel", &format!("{operator}: one of {} for each record{order}", plan.branches.len()));
        for (i, (_, piece)) in pieces.iter().enumerate() {
            let x = left + (inside - piece.width) / 2;
            ink.path(piece.inward(), elbow((8 + POINT, enter), TRUNK, (x, enters[i])));
            ink.path("wire", elbow((x + piece.width, leaves[i]), trunk, (width - 8 - POINT, leave)));
            if !labels[i].is_empty() {
                ink.open("accepts", &hint(&format!("takes {}", accepts[i])));
                ink.text(Font::Label, TRUNK + 12, enters[i] - 5, &labels[i]);
                ink.close();
            }
            ink.place(x, tops[i], &piece.svg);
        }
        ink.path("wire", format_args!("M0 {enter}H{}", 8 - POINT));
        ink.path("wire", format_args!("M{} {leave}H{width}", width - 8 + POINT));
        ink.point(8, enter, plan.deterministic);
        ink.point(width - 8, leave, plan.deterministic);
        ink.centred(Font::Name, 8, enter - POINT - 6, operator);
        ink.close();
        Piece { width, height, enter, leave, tip: true, svg: ink.0 }
    }
}

/// One row of a chain: where one leaves the next comes in.
fn row(pieces: Vec<Piece>) -> Piece {
    let mut tops = Vec::new();
    let mut level = 0; // of the stream
    for piece in &pieces {
        tops.push(level - piece.enter);
        level += piece.leave - piece.enter;
    }
    let top = tops.iter().copied().min().unwrap_or(0);
    let bottom = pieces.iter().zip(&tops).map(|(p, t)| t + p.height).max().unwrap_or(0);
    let mut ink = Ink::default();
    let mut x = 0;
    for (i, (piece, at)) in pieces.iter().zip(&tops).enumerate() {
        if i > 0 {
            ink.path(piece.inward(), format_args!("M{} {}H{x}", x - GAP, at + piece.enter - top));
        }
        ink.place(x, at - top, &piece.svg);
        x += piece.width + GAP;
    }
    let tip = pieces.first().is_some_and(|p| p.tip);
    Piece { width: x - GAP, height: bottom - top, enter: -top, leave: level - top, tip, svg: ink.0 }
}

/// A rectangle with a name and lines of text.
fn leaf(class: &str, hint: &str, name: Option<&str>, lines: &[String]) -> Piece {
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

fn box_piece(plan: &BoxPlan) -> Piece {
    let list =
        |labels: &mut dyn Iterator<Item = String>| format!("({})", labels.collect::<Vec<_>>().join(", "));
    let outputs: Vec<String> =
        plan.outputs.iter().map(|o| list(&mut o.iter().map(Label::to_string))).collect();
    let input = plan.input.as_ref().map(|input| {
        list(&mut input.iter().map(|e| format!("{}{}", e.label, if e.passes { " =" } else { "" })))
    });
    let mut lines =
        vec![format!("{} → {}", input.as_deref().unwrap_or(""), outputs.join(" | ")).trim().to_owned()];
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
    let body =
        plan.body.as_ref().map_or(String::new(), |b| format!("\nits code is here, in {}", b.language.text));
    leaf("box", &hint(&format!("box {plan}{body}")), Some(&cut(&plan.name, COLUMNS)), &lines)
}

fn filter_piece(plan: &FilterPlan) -> Piece {
    let text = one_line(&plan.text);
    leaf("filter", &hint(&format!("filter {text}")), None, &wrap(&text, COLUMNS, LINES))
}

fn sync_piece(plan: &SyncPlan) -> Piece {
    let shown = if plan.patterns.len() > LINES { LINES - 1 } else { plan.patterns.len() };
    let mut lines: Vec<String> =
        plan.patterns[..shown].iter().map(|p| cut(&p.to_string(), COLUMNS)).collect();
    if shown < plan.patterns.len() {
        lines.push(format!("… {} more", plan.patterns.len() - shown));
    }
    let text = format!(
        "synchrocell [| {} |]: keeps one record for each, and makes one of all",
        joined(&plan.patterns, ", ")
    );
    leaf("sync", &hint(&text), None, &lines)
}

/// Stands for what is not drawn.
fn folded(text: &str, why: &str) -> Piece {
    leaf("folded", &hint(why), None, &[cut(text, COLUMNS)])
}

fn more(count: usize) -> Piece {
    folded(&format!("… {count} more"), &format!("{count} parts between, which are not drawn"))
}

/// What a node is, in a word or two.
fn brief(node: &Node) -> String {
    match node {
        Node::Net(name, _) => format!("net {name} …"),
        Node::Box(plan) => format!("{} …", plan.name),
        _ => "…".into(),
    }
}

/// The begin of a frame: its rectangle and its head.
fn open_frame(ink: &mut Ink, class: &str, head: &str, about: &str, width: i32, height: i32) {
    ink.open(class, &hint(about));
    ink.rect(0, 0, width, height, 8);
    ink.text(if class == "net" { Font::Name } else { Font::Head }, PAD, 17, &cut(head, HEAD_COLUMNS));
}

/// Pixels that a frame must be wide for its head.
fn head_width(class: &str, head: &str) -> i32 {
    let font = if class == "net" { Font::Name } else { Font::Head };
    font.width(&cut(head, HEAD_COLUMNS)) + 2 * PAD
}

/// A frame around a piece.
fn frame(class: &str, head: &str, about: &str, inside: Piece) -> Piece {
    const LEAD: i32 = 24;
    let width = (inside.width + 2 * LEAD).max(head_width(class, head));
    let height = HEAD + inside.height + PAD;
    let (enter, leave) = (HEAD + inside.enter, HEAD + inside.leave);
    let mut ink = Ink::default();
    open_frame(&mut ink, class, head, about, width, height);
    ink.path(inside.inward(), format_args!("M0 {enter}H{LEAD}"));
    ink.path("wire", format_args!("M{} {leave}H{width}", LEAD + inside.width));
    ink.place(LEAD, HEAD, &inside.svg);
    ink.close();
    Piece { width, height, enter, leave, tip: false, svg: ink.0 }
}

/// `operand * {exit}`: what leaves goes above, the rest through the operand and those that will come after it.
fn star_piece(plan: &StarPlan, inside: Piece) -> Piece {
    const POINT_X: i32 = 20;
    const LEFT: i32 = 52;
    const RAIL: i32 = HEAD + 8;
    const TOP: i32 = RAIL + 14;
    const AGAIN: i32 = 34; // the operand's next one, hinted at
    let operator = if plan.deterministic { "**" } else { "*" };
    let head = format!("{operator} {}", joined(&plan.exits, ", "));
    let order = if plan.deterministic { "; they leave in the order of their causes" } else { "" };
    let about = format!("{head}\nrepeated until a record fits{order}");
    let after = LEFT + inside.width;
    let width = (after + 20 + AGAIN + 42).max(head_width("star", &head));
    let meet = width - POINT_X;
    let height = TOP + inside.height + PAD;
    let (enter, leave) = (TOP + inside.enter, TOP + inside.leave);
    let mut ink = Ink::default();
    open_frame(&mut ink, "star", &head, &about, width, height);
    ink.path("flow", format_args!("M0 {enter}H{}", POINT_X - POINT));
    ink.path(
        "flow",
        format_args!(
            "M{POINT_X} {}V{}Q{POINT_X} {RAIL} {} {RAIL}H{}Q{meet} {RAIL} {meet} {}V{}",
            enter - POINT,
            RAIL + 8,
            POINT_X + 8,
            meet - 8,
            RAIL + 8,
            leave - POINT
        ),
    );
    ink.path(inside.inward(), format_args!("M{} {enter}H{LEFT}", POINT_X + POINT));
    ink.path("flow later", format_args!("M{after} {leave}H{}", after + 20));
    ink.path("again later", format_args!("M{} {}h{AGAIN}v24h-{AGAIN}z", after + 20, leave - 12));
    ink.centred(Font::Plain, after + 20 + AGAIN / 2, leave + 3, "…");
    ink.path("flow later", format_args!("M{} {leave}H{}", after + 20 + AGAIN, meet - POINT));
    ink.path("wire", format_args!("M{} {leave}H{width}", meet + POINT));
    ink.point(POINT_X, enter, plan.deterministic);
    ink.point(meet, leave, plan.deterministic);
    ink.place(LEFT, TOP, &inside.svg);
    ink.close();
    Piece { width, height, enter, leave, tip: false, svg: ink.0 }
}

/// `operand ! <T>`: the operand as the first card of many.
fn split_piece(plan: &SplitPlan, inside: Piece) -> Piece {
    const POINT_X: i32 = 20;
    const CARD: i32 = 46;
    const BEHIND: i32 = 10; // how far the cards behind look out
    const TOP: i32 = HEAD + BEHIND + 4;
    let operator = if plan.deterministic { "!!" } else { "!" };
    let head = format!("{operator}{} {}", if plan.placed { "@" } else { "" }, plan.tag);
    let order = if plan.deterministic { "; records leave in the order of their causes" } else { "" };
    let place = if plan.placed { "; the value says where it runs" } else { "" };
    let about = format!("{head}\none for each value of {}{place}{order}", plan.tag);
    let (card_width, card_height) = (inside.width + 2 * PAD, inside.height + 2 * PAD);
    let width = (CARD + card_width + BEHIND + 46).max(head_width("split", &head));
    let meet = width - POINT_X;
    let height = TOP + card_height + PAD;
    let (enter, leave) = (TOP + PAD + inside.enter, TOP + PAD + inside.leave);
    let right = CARD + card_width;
    let mut ink = Ink::default();
    open_frame(&mut ink, "split", &head, &about, width, height);
    for out in [BEHIND, BEHIND / 2] {
        // Of a card behind, only its upper and right edges are to be seen.
        ink.path(
            "again",
            format_args!(
                "M{} {}V{}H{}V{}H{}",
                CARD + out,
                TOP - out + BEHIND / 2,
                TOP - out,
                right + out,
                TOP + card_height - out,
                right + out - BEHIND / 2
            ),
        );
    }
    ink.path("again", format_args!("M{CARD} {TOP}h{card_width}v{card_height}h-{card_width}z"));
    ink.path("flow", format_args!("M0 {enter}H{}", POINT_X - POINT));
    ink.path(inside.inward(), format_args!("M{} {enter}H{}", POINT_X + POINT, CARD + PAD));
    ink.path("wire", format_args!("M{} {leave}H{}", right - PAD, meet - POINT));
    ink.path("wire", format_args!("M{} {leave}H{width}", meet + POINT));
    ink.point(POINT_X, enter, plan.deterministic);
    ink.point(meet, leave, plan.deterministic);
    ink.place(CARD + PAD, TOP + PAD, &inside.svg);
    ink.close();
    Piece { width, height, enter, leave, tip: false, svg: ink.0 }
}

/// `operand \ {again}`: what goes in again goes back below.
fn feedback_piece(plan: &FeedbackPlan, inside: Piece) -> Piece {
    const POINT_X: i32 = 20;
    const LEFT: i32 = 52;
    let head = format!("\\ {}", joined(&plan.patterns, ", "));
    let about = format!("{head}\nwhat fits goes in again");
    let width = (LEFT + inside.width + 52).max(head_width("feedback", &head));
    let part = width - POINT_X;
    let back = HEAD + inside.height + 16;
    let height = back + PAD;
    let (enter, leave) = (HEAD + inside.enter, HEAD + inside.leave);
    let mut ink = Ink::default();
    open_frame(&mut ink, "feedback", &head, &about, width, height);
    ink.path("flow", format_args!("M0 {enter}H{}", POINT_X - POINT));
    ink.path(inside.inward(), format_args!("M{} {enter}H{LEFT}", POINT_X + POINT));
    ink.path("wire", format_args!("M{} {leave}H{}", LEFT + inside.width, part - POINT));
    ink.path("wire", format_args!("M{} {leave}H{width}", part + POINT));
    ink.path(
        "flow",
        format_args!(
            "M{part} {}V{}Q{part} {back} {} {back}H{}Q{POINT_X} {back} {POINT_X} {}V{}",
            leave + POINT,
            back - 8,
            part - 8,
            POINT_X + 8,
            back - 8,
            enter + POINT
        ),
    );
    ink.point(POINT_X, enter, false);
    ink.point(part, leave, false);
    ink.place(LEFT, HEAD, &inside.svg);
    ink.close();
    Piece { width, height, enter, leave, tip: false, svg: ink.0 }
}

/// `{A} | {B}`
fn variants(shapes: &[Shape]) -> String {
    joined(shapes, " | ")
}

/// The items with this between; not all of too many.
fn joined(items: &[impl Display], between: &str) -> String {
    let mut text = String::new();
    for (i, item) in items.iter().enumerate() {
        if text.len() > HINT_MAX {
            return text + "…";
        }
        text += if i == 0 { "" } else { between };
        text += &item.to_string();
    }
    text
}

/// A text as it is shown where the mouse rests: not without bound.
fn hint(text: &str) -> String {
    match text.char_indices().nth(HINT_MAX) {
        None => text.to_owned(),
        Some((end, _)) => text[..end].to_owned() + "…",
    }
}
