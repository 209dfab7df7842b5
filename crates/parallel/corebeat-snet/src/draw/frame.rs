//! Drawings of nets, stars, splits and feedback: frames around a piece.

use std::num::NonZeroU32;

use super::pen::{Font, Ink, POINT, cut};
use super::{HEAD, HEAD_COLUMNS, PAD, Piece, hint, joined};
use crate::plan::{FeedbackPlan, SplitPlan, StarPlan};

/// Begins a frame: its rectangle and its head.
fn open_frame(ink: &mut Ink, class: &str, head: &str, about: &str, width: i32, height: i32) {
    ink.open(class, &hint(about));
    ink.rect(0, 0, width, height, 8);
    ink.text(
        if class == "net" { Font::Name } else { Font::Head },
        PAD,
        17,
        &cut(head, HEAD_COLUMNS),
    );
}

/// Width of a frame's head in pixels.
fn head_width(class: &str, head: &str) -> i32 {
    let font = if class == "net" { Font::Name } else { Font::Head };
    font.width(&cut(head, HEAD_COLUMNS)) + 2 * PAD
}

/// Draws a frame around a piece.
pub(super) fn frame(class: &str, head: &str, about: &str, inside: Piece) -> Piece {
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

/// Draws `operand * {exit}`. Leaving records pass above; the others pass through the operand and
/// its future replicas.
pub(super) fn star_piece(plan: &StarPlan, inside: Piece) -> Piece {
    const POINT_X: i32 = 20;
    const LEFT: i32 = 52;
    const RAIL: i32 = HEAD + 8;
    const TOP: i32 = RAIL + 14;
    const AGAIN: i32 = 34; // outline of the next replica
    let operator = if plan.deterministic { "**" } else { "*" };
    let head = format!("{operator} {}", joined(&plan.exits, ", "));
    let order = if plan.deterministic {
        "; records leave in the order of the records that caused them"
    } else {
        ""
    };
    let about = format!("{head}\nrepeated until a record matches{order}");
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

/// Draws `operand ! <T>`: the operand as the first of several cards.
pub(super) fn split_piece(plan: &SplitPlan, ranks: Option<NonZeroU32>, inside: Piece) -> Piece {
    const POINT_X: i32 = 20;
    const CARD: i32 = 46;
    const OFFSET: i32 = 10; // visible width of the other cards
    const TOP: i32 = HEAD + OFFSET + 4;
    let operator = if plan.deterministic { "!!" } else { "!" };
    let head = format!("{operator}{} {}", if plan.placed { "@" } else { "" }, plan.tag);
    let order = if plan.deterministic {
        "; records leave in the order of the records that caused them"
    } else {
        ""
    };
    let place = match ranks {
        _ if !plan.placed => "",
        Some(_) => "; the value, modulo the number of ranks, selects the rank",
        None => "; the value selects the worker",
    };
    let about = format!("{head}\none replica for each value of {}{place}{order}", plan.tag);
    let (card_width, card_height) = (inside.width + 2 * PAD, inside.height + 2 * PAD);
    let width = (CARD + card_width + OFFSET + 46).max(head_width("split", &head));
    let meet = width - POINT_X;
    let height = TOP + card_height + PAD;
    let (enter, leave) = (TOP + PAD + inside.enter, TOP + PAD + inside.leave);
    let right = CARD + card_width;
    let mut ink = Ink::default();
    open_frame(&mut ink, "split", &head, &about, width, height);
    for out in [OFFSET, OFFSET / 2] {
        // Only the upper and right edges of the other cards are visible.
        ink.path(
            "again",
            format_args!(
                "M{} {}V{}H{}V{}H{}",
                CARD + out,
                TOP - out + OFFSET / 2,
                TOP - out,
                right + out,
                TOP + card_height - out,
                right + out - OFFSET / 2
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

/// Draws `operand \ {again}`: records that enter again return below.
pub(super) fn feedback_piece(plan: &FeedbackPlan, inside: Piece) -> Piece {
    const POINT_X: i32 = 20;
    const LEFT: i32 = 52;
    let head = format!("\\ {}", joined(&plan.patterns, ", "));
    let about = format!("{head}\nmatching records enter again");
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
