//! Two calls that are the operands of one expression: `fib(n - 1) + fib(n - 2)`,
//! `merge(sort(l), sort(r))`, `(f(), g())`, `Node { left: build(a), right: build(b) }`.
//!
//! The expression becomes a block with a join: `{ let (left, right) = join(..); left + right }`.

use super::{Finder, calls, exit};
use crate::candidate::{Candidate, Pattern, Piece};
use rustc_hir::{Block, Expr, ExprKind, Node, StructTailExpr};
use rustc_span::Span;

pub(super) fn find<'tcx>(finder: &mut Finder<'_, 'tcx>, expr: &'tcx Expr<'tcx>) {
    let Some((first, second)) = pair(finder, expr) else { return };
    // A block at the left of an operator could be read as a statement of its own.
    if let Node::Expr(outer) = finder.tcx.parent_hir_node(expr.hir_id)
        && outer.span.lo() == expr.span.lo()
        && !matches!(outer.kind, ExprKind::Block(..) | ExprKind::DropTemps(_))
    {
        return;
    }
    let recursive = finder.is_recursive(first) && finder.is_recursive(second);
    let pattern = if recursive { Pattern::DivideAndConquer } else { Pattern::ConsecutiveCalls };
    let against = [first, second].into_iter().find_map(|part| {
        let (reason, span) = exit(part)?;
        Some((format!("`{}` {reason}", finder.part(part).shown), span))
    });
    let candidate = Candidate {
        pattern,
        owner: finder.owner,
        span: expr.span,
        pieces: pieces(finder, expr, first.span, second.span, (first, second)),
        parts: vec![finder.part(first), finder.part(second)],
        is_expression: true,
        may_leave: false,
        against,
    };
    finder.found.push(candidate);
}

/// The two operands that are calls, if nothing else is evaluated between and after them.
fn pair<'tcx>(
    finder: &Finder<'_, 'tcx>,
    expr: &'tcx Expr<'tcx>,
) -> Option<(&'tcx Expr<'tcx>, &'tcx Expr<'tcx>)> {
    let (first, second) = match expr.kind {
        // `&&` and `||` evaluate the second operand only sometimes.
        ExprKind::Binary(op, first, second) if !op.node.is_lazy() => {
            let builtin = !finder.typeck.is_method_call(expr);
            builtin.then_some((first, second))?
        }
        ExprKind::Tup([first, second]) | ExprKind::Array([first, second]) => (first, second),
        ExprKind::Call(function, [first, second])
            if matches!(function.kind, ExprKind::Path(_))
                && matches!(
                    finder.typeck.expr_ty(function).kind(),
                    rustc_middle::ty::FnDef(..)
                ) =>
        {
            (first, second)
        }
        ExprKind::Struct(_, [first, second], StructTailExpr::None)
            if !first.is_shorthand && !second.is_shorthand =>
        {
            (first.expr, second.expr)
        }
        _ => return None,
    };
    let plain =
        |part: &Expr<'_>| finder.is_call(part) && finder.typeck.expr_adjustments(part).is_empty();
    (plain(first) && plain(second)).then_some((first, second))
}

fn pieces<'tcx>(
    finder: &Finder<'_, 'tcx>,
    expr: &'tcx Expr<'tcx>,
    first: Span,
    second: Span,
    parts: (&'tcx Expr<'tcx>, &'tcx Expr<'tcx>),
) -> Vec<Piece> {
    let text = |text: &str| Piece::Text(text.to_owned());
    // The last expression of a block needs no braces of its own.
    let is_tail = match finder.tcx.parent_hir_node(expr.hir_id) {
        Node::Block(Block { expr: Some(tail), .. }) => tail.hir_id == expr.hir_id,
        _ => false,
    };
    let outer = finder.indentation(expr.span);
    let map = finder.tcx.sess.source_map();
    let column = map.lookup_char_pos(expr.span.lo()).col.0;
    let begins_line = column == outer.chars().count();
    let indentation = if is_tail && begins_line { outer.clone() } else { format!("{outer}    ") };
    let mut pieces = Vec::new();
    if let ExprKind::Tup(_) = expr.kind {
        // The join itself has the value.
        pieces.extend([Piece::Runtime, text("::join(")]);
        calls::join(finder, &outer, "", [parts.0, parts.1], &mut pieces);
        return pieces;
    }
    match (is_tail, begins_line) {
        (true, true) => {}
        (true, false) => pieces.push(text(&format!("\n{indentation}"))),
        (false, _) => pieces.push(text(&format!("{{\n{indentation}"))),
    }
    pieces.extend([text("let (left, right) = "), Piece::Runtime, text("::join(")]);
    calls::join(finder, &indentation, "", [parts.0, parts.1], &mut pieces);
    pieces.push(text(&format!(";\n{indentation}")));
    let source = |span: Span| (!span.is_empty()).then_some(Piece::Source(span));
    pieces.extend(source(expr.span.until(first)));
    pieces.push(text("left"));
    pieces.extend(source(first.between(second)));
    pieces.push(text("right"));
    pieces.extend(source(expr.span.with_lo(second.hi())));
    match (is_tail, begins_line) {
        (true, true) => {}
        (true, false) => pieces.push(text(&format!("\n{outer}"))),
        (false, _) => pieces.push(text(&format!("\n{outer}}}"))),
    }
    pieces
}
