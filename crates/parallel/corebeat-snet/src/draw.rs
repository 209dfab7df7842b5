//! Drawings of nets in SVG.
//!
//! Streams flow from left to right. Every part of a net becomes a `Piece`: its size, the heights at
//! which its stream enters and leaves, and its drawing. Pieces are measured and combined from the
//! innermost outward, so that nothing overlaps:
//!
//! ```text
//!  serial          parallel            star                      split                feedback
//!
//!  -[a]->[b]-      .-[a]-.       .------->-------.          .---------.
//!               --o       o--  --o->[a]..>(...)..o--    --o-[a]      |-o--          --o->[a]-o--
//!                  `-[b]-'                                 `----------'               `--<---'
//! ```
//!
//! The drawing is bounded. A long list shows its beginning, its end and the number of omitted
//! parts; a part that is nested too deeply shows its name. (Named nets can contain each other many
//! times, so a short program can define a net of any size.)
//!
//! For a run on several ranks, each box has the number of its rank, and one of eight colours
//! by this number.

mod frame;
mod leaf;
mod pen;

use std::fmt::{self, Display};
use std::num::NonZeroU32;

use crate::label::Label;
use crate::plan::{Net, Node, ParallelPlan};
use crate::shape::Shape;
use frame::{feedback_piece, frame, split_piece, star_piece};
use leaf::{box_piece, brief, filter_piece, folded, leaf, more, sync_piece};
use pen::{Font, Ink, POINT, cut, elbow, wrap};

/// Parts of a serial or parallel composition that are drawn. A longer composition shows its
/// beginning and [`TAIL`] parts at its end.
const LIST_MAX: usize = 48;

/// Parts drawn at the end of a list that is too long.
const TAIL: usize = 4;

/// Depth of nested frames.
const DEPTH_MAX: usize = 24;

/// Parts of a drawing.
const PARTS_MAX: usize = 4_000;

/// Pixels after which a chain continues in another row.
const ROW: i32 = 1_200;

/// Lower bound of [`ROW`] in deep frames.
const ROW_MIN: i32 = 420;

/// Columns of a line of a signature, a filter or a type.
const COLUMNS: i32 = 34;

/// Lines of a filter, and drawn parts of a signature or a synchrocell.
const LINES: usize = 6;

/// Characters of a tooltip.
const HINT_MAX: usize = 2_000;

/// Pixels between adjacent parts of a chain.
const GAP: i32 = 36;

/// Pixels from a frame to its content.
const PAD: i32 = 14;

/// Height of the head of a frame in pixels.
const HEAD: i32 = 24;

/// Columns of the text in the head of a frame.
const HEAD_COLUMNS: i32 = 60;

/// Colours of boxes on ranks. Their classes are in `style.css`.
const COLOURS: u32 = 8;

/// Draws a net as SVG for light and dark backgrounds. Equal nets have equal drawings.
pub fn svg(net: &Net) -> String {
    draw(net, None)
}

/// Draws a net as [`svg`] does, with the rank of each box in a run on this number of ranks: as a
/// number in the box, and as a colour, which repeats after eight ranks. Filters and synchrocells
/// have neither, because they run on the rank that holds the record.
pub fn svg_on_ranks(net: &Net, ranks: NonZeroU32) -> String {
    draw(net, Some(ranks))
}

fn draw(net: &Net, ranks: Option<NonZeroU32>) -> String {
    let at = ranks.map(|_| At::Rank(0));
    let piece = Drawer { parts: PARTS_MAX, ranks, at }.node(&net.root, 0, ROW);
    let signature =
        format!("{} -> {}", variants(&net.input), variants(&net.output)).replace("->", "→");
    let lines = wrap(&signature, 100, LINES);
    let on = ranks.map_or(String::new(), |ranks| format!(" on {ranks} ranks"));
    let title = format!("net {}{on}", cut(&net.name, HEAD_COLUMNS));

    const MARGIN: i32 = 24;
    const LEAD: i32 = 34;
    let line = 15;
    let top = MARGIN + 24 + lines.len() as i32 * line + 12;
    let text_width = lines
        .iter()
        .map(|l| Font::Plain.width(l))
        .max()
        .unwrap_or(0)
        .max(Font::Title.width(&title));
    let width = (piece.width + 2 * LEAD).max(text_width) + 2 * MARGIN;
    let height = top + piece.height + MARGIN;

    let mut ink = Ink::default();
    ink.raw(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n"
    ));
    ink.hint(&title);
    ink.raw(format_args!("<style>\n{}</style>\n", include_str!("draw/style.css")));
    ink.raw(
        "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7.5\" refY=\"4\" markerWidth=\"8\" \
         markerHeight=\"8\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">\
         <path class=\"tip\" d=\"M0 0.5L8 4L0 7.5z\"/></marker></defs>\n",
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

/// Part of the drawing, with its upper left corner at 0. Its stream enters at the left edge and
/// leaves at the right edge.
struct Piece {
    width: i32,
    height: i32,
    /// Height at which the stream enters, from the top.
    enter: i32,
    /// Height at which the stream leaves, from the top.
    leave: i32,
    /// Whether the entering stream ends at the edge with an arrow tip. Otherwise it continues
    /// inside.
    tip: bool,
    svg: String,
}

impl Piece {
    /// Class of the line that leads into the piece.
    fn inward(&self) -> &'static str {
        if self.tip { "flow" } else { "wire" }
    }
}

/// Rank of a part.
#[derive(Clone)]
enum At {
    Rank(u32),
    /// The value of this tag, modulo the number of ranks.
    Tag(Label),
}

impl At {
    /// Class of a box.
    fn class(&self) -> String {
        match self {
            At::Rank(rank) => format!("box rank{}", rank % COLOURS),
            At::Tag(_) => "box ranks".into(),
        }
    }
}

impl Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Rank(rank) => write!(f, "rank {rank}"),
            At::Tag(tag) => write!(f, "rank {tag}"),
        }
    }
}

struct Drawer {
    /// Number of parts that may still be drawn.
    parts: usize,
    /// Number of ranks, in a drawing for a run on ranks.
    ranks: Option<NonZeroU32>,
    /// Rank of the next part, in such a drawing.
    at: Option<At>,
}

impl Drawer {
    /// Draws the operand of a part with a place.
    fn placed(&mut self, at: Option<At>, operand: &Node, depth: usize, room: i32) -> Piece {
        let around = std::mem::replace(&mut self.at, at);
        let piece = self.node(operand, depth, room);
        self.at = around;
        piece
    }

    /// Draws a node inside `depth` frames, in about `room` pixels.
    fn node(&mut self, node: &Node, depth: usize, room: i32) -> Piece {
        let framed =
            !matches!(node, Node::Identity | Node::Box(_) | Node::Filter(_) | Node::Sync(_));
        if self.parts == 0 || framed && depth == DEPTH_MAX {
            return folded(&brief(node), "omitted: the drawing has too many parts");
        }
        self.parts -= 1;
        let (deeper, less) = (depth + 1, (room - 6 * PAD).max(ROW_MIN));
        match node {
            Node::Identity => {
                leaf("filter", "identity: passes every record on", None, &["[]".into()])
            }
            Node::Box(plan) => box_piece(plan, self.at.as_ref()),
            Node::Filter(plan) => filter_piece(plan),
            Node::Sync(plan) => sync_piece(plan),
            Node::Serial(nodes) => self.serial(nodes, deeper, room),
            Node::Parallel(plan) => self.parallel(plan, deeper, less),
            Node::Star(plan) => star_piece(plan, self.node(&plan.operand, deeper, less)),
            Node::Split(plan) => {
                let at = match &self.at {
                    Some(_) if plan.placed => Some(At::Tag(plan.tag)),
                    around => around.clone(),
                };
                split_piece(plan, self.ranks, self.placed(at, &plan.operand, deeper, less))
            }
            Node::Feedback(plan) => feedback_piece(plan, self.node(&plan.operand, deeper, less)),
            Node::Place(operand, place) => {
                let at = self.ranks.map(|ranks| At::Rank(*place % ranks));
                let (on, about) = match &at {
                    Some(at) => (format!(" ({at})"), format!("boxes run on {at}")),
                    None => (String::new(), format!("runs at place {place}")),
                };
                let inside = self.placed(at, operand, deeper, less);
                frame("place", &format!("@ {place}{on}"), &about, inside)
            }
            Node::Net(name, operand) => {
                let head = format!("net {name}");
                frame("net", &head, &head, self.node(operand, deeper, less))
            }
        }
    }

    /// Draws a list of nodes, each with its index. One piece without an index represents omitted
    /// nodes in the middle.
    fn list<'a>(
        &mut self,
        nodes: impl ExactSizeIterator<Item = &'a Node>,
        depth: usize,
        room: i32,
    ) -> Vec<(Option<usize>, Piece)> {
        let len = nodes.len();
        let mut pieces = Vec::new();
        let mut omitted = 0;
        for (i, node) in nodes.enumerate() {
            let between = len > LIST_MAX && (LIST_MAX - TAIL..len - TAIL).contains(&i);
            if between || self.parts == 0 {
                omitted += 1;
                continue;
            }
            if omitted > 0 {
                pieces.push((None, more(omitted)));
                omitted = 0;
            }
            pieces.push((Some(i), self.node(node, depth, room)));
        }
        if omitted > 0 {
            pieces.push((None, more(omitted)));
        }
        pieces
    }

    /// Draws a chain in as many rows as necessary.
    fn serial(&mut self, nodes: &[Node], depth: usize, room: i32) -> Piece {
        const TURN: i32 = 16; // space beside the rows, where the stream turns to the next row
        const BETWEEN: i32 = 40; // space between rows
        let mut rows: Vec<Vec<Piece>> = vec![vec![]];
        let mut used = 0;
        for (_, piece) in self.list(nodes.iter(), depth, room) {
            if used > 0 && used + GAP + piece.width > room {
                rows.push(vec![]);
                used = 0;
            }
            used += piece.width + if used > 0 { GAP } else { 0 };
            rows.last_mut().expect("the list of rows is never empty").push(piece);
        }
        let rows: Vec<Piece> = rows.into_iter().map(row).collect();
        let [_, _, ..] = &rows[..] else {
            return rows.into_iter().next().expect("the list of rows is never empty");
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
                    // Down on the right, back between the rows, down on the left.
                    let middle = y + row.height + BETWEEN / 2;
                    let target = y + row.height + BETWEEN + next.enter;
                    let x = end + 8;
                    ink.path(
                        "wire",
                        format_args!(
                            "M{end} {to}Q{x} {to} {x} {}V{}Q{x} {middle} {} {middle}\
                             H8Q0 {middle} 0 {}V{}Q0 {target} 8 {target}",
                            to + 8,
                            middle - 8,
                            x - 8,
                            middle + 8,
                            target - 8
                        ),
                    );
                }
            }
            y += row.height + BETWEEN;
        }
        Piece { width, height: y - BETWEEN, enter, leave, tip: false, svg: ink.0 }
    }

    /// Draws branches below each other, between the point where records part and the point where
    /// they meet.
    fn parallel(&mut self, plan: &ParallelPlan, depth: usize, room: i32) -> Piece {
        const BETWEEN: i32 = 20;
        const TRUNK: i32 = 26; // distance from the left edge to the turn into a branch
        let nodes: Vec<&Node> = plan.branches.iter().map(|b| &b.node).collect();
        let pieces = self.list(nodes.into_iter(), depth, room);
        let accepts: Vec<String> = pieces
            .iter()
            .map(|(i, _)| i.map_or(String::new(), |i| variants(&plan.branches[i].accepts)))
            .collect();
        let labels: Vec<String> = accepts.iter().map(|text| cut(text, COLUMNS)).collect();
        let label_width = labels.iter().map(|l| Font::Label.width(l)).max().unwrap_or(0);
        let left = TRUNK + 12 + label_width + 16;
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
        // The middle between the first and the last, or the height of a branch close to the middle.
        let middle = |of: &[i32]| {
            let middle = (of.first().unwrap_or(&0) + of.last().unwrap_or(&0)) / 2;
            let near = of.iter().copied().min_by_key(|y| (y - middle).abs());
            near.filter(|y| (y - middle).abs() < 28).unwrap_or(middle)
        };
        let (enter, leave) = (middle(&enters), middle(&leaves));

        let operator = if plan.deterministic { "||" } else { "|" };
        let order = if plan.deterministic {
            "; records leave in the order of the records that caused them"
        } else {
            ""
        };
        let mut ink = Ink::default();
        ink.open(
            "parallel",
            &format!("{operator}: one of {} branches for each record{order}", plan.branches.len()),
        );
        for (i, (_, piece)) in pieces.iter().enumerate() {
            let x = left + (inside - piece.width) / 2;
            ink.path(piece.inward(), elbow((8 + POINT, enter), TRUNK, (x, enters[i])));
            ink.path(
                "wire",
                elbow((x + piece.width, leaves[i]), trunk, (width - 8 - POINT, leave)),
            );
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

/// Draws one row of a chain. Each piece enters at the height at which the piece before leaves.
fn row(pieces: Vec<Piece>) -> Piece {
    let mut tops = Vec::new();
    let mut level = 0; // height of the stream
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

/// `{A} | {B}`
fn variants(shapes: &[Shape]) -> String {
    joined(shapes, " | ")
}

/// Joins the items by `between`, up to a bounded length.
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

/// Cuts a text to the length of a tooltip.
fn hint(text: &str) -> String {
    match text.char_indices().nth(HINT_MAX) {
        None => text.to_owned(),
        Some((end, _)) => text[..end].to_owned() + "…",
    }
}
