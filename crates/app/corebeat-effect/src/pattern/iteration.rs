//! Loops with independent iterations.
//!
//! - `for x in v.iter_mut() { .. }` and `for x in &mut v { .. }` become `for_each(&mut v, |x| ..)`.
//! - `v.iter().map(f).collect()` into a vector becomes `map(&v, f)`, also over a range of integers.
//! - `chunks` and `chunks_mut` of slices in place of `iter` and `iter_mut`.
//! - Reductions: see [`reduction`]. Loops whose rest stays sequential: see [`pipeline`].

use super::{Finder, exit, pipeline, reduction, written};
use crate::candidate::{Candidate, Pattern, Piece};
use rustc_hir::def::DefKind;
use rustc_hir::{BorrowKind, Expr, ExprKind, LoopSource, MatchSource, Mutability, Pat, PatKind};
use rustc_hir::{StmtKind, StructTailExpr};
use rustc_middle::ty::{self, Ty};
use rustc_span::Span;

pub(super) fn find<'tcx>(finder: &mut Finder<'_, 'tcx>, expr: &'tcx Expr<'tcx>) {
    match read(expr) {
        Some(whole) => {
            let all = reduction::for_loop(finder, &whole).or_else(|| for_loop(finder, &whole));
            // Tried where the whole of an iteration is not independent.
            let stage = pipeline::propose(finder, &whole);
            finder.found.extend(all.into_iter().chain(stage));
        }
        None => {
            let found = reduction::chain(finder, expr).or_else(|| chain(finder, expr));
            finder.found.extend(found);
        }
    }
}

/// `for pat in iterator { body }`
pub(super) struct For<'tcx> {
    pub(super) span: Span,
    pub(super) pat: &'tcx Pat<'tcx>,
    pub(super) iterator: &'tcx Expr<'tcx>,
    pub(super) body: &'tcx Expr<'tcx>,
}

fn read<'tcx>(expr: &'tcx Expr<'tcx>) -> Option<For<'tcx>> {
    let ExprKind::Match(into, [arm], MatchSource::ForLoopDesugar) = expr.kind else { return None };
    let ExprKind::Call(_, [iterator]) = into.kind else { return None };
    let ExprKind::Loop(block, None, LoopSource::ForLoop, _) = arm.body.kind else { return None };
    let next = block.expr.or_else(|| match block.stmts {
        [statement] => match statement.kind {
            StmtKind::Expr(next) | StmtKind::Semi(next) => Some(next),
            _ => None,
        },
        _ => None,
    })?;
    let ExprKind::Match(_, [_, some], _) = next.kind else { return None };
    let pat = payload(some.pat)?;
    if written(iterator.span).is_none() || pat.span.from_expansion() {
        return None;
    }
    Some(For { span: written(expr.span)?, pat, iterator, body: some.body })
}

/// A loop that changes its elements.
fn for_loop<'tcx>(finder: &Finder<'_, 'tcx>, whole: &For<'tcx>) -> Option<Candidate<'tcx>> {
    let For { span, pat, iterator, body } = *whole;
    let items = changed_items(finder, iterator)?;
    let against = exit(body).map(|(reason, span)| (format!("an iteration {reason}"), span));
    let text = |text: &str| Piece::Text(text.to_owned());
    let pieces = vec![Piece::Runtime, text("::for_each(")]
        .into_iter()
        .chain(items)
        .chain([
            text(", |"),
            Piece::Source(pat.span),
            text("| "),
            Piece::Source(body.span),
            text(");"),
        ])
        .collect();
    Some(Candidate {
        pattern: Pattern::Loop,
        owner: finder.owner,
        span,
        pieces,
        parts: vec![finder.part(body)],
        is_expression: false,
        may_leave: false,
        against,
    })
}

/// The elements of a slice, or parts of it, to change them.
fn changed_items<'tcx>(
    finder: &Finder<'_, 'tcx>,
    iterator: &'tcx Expr<'tcx>,
) -> Option<Vec<Piece>> {
    match iterator.kind {
        ExprKind::MethodCall(_, of, [], _) if is_of_slice(finder, iterator, "iter_mut") => {
            slice(finder, of, Mutability::Mut)
        }
        ExprKind::MethodCall(_, of, [size], _) if is_of_slice(finder, iterator, "chunks_mut") => {
            chunks("chunks_mut", slice(finder, of, Mutability::Mut)?, size)
        }
        ExprKind::AddrOf(BorrowKind::Ref, Mutability::Mut, of) => {
            slice(finder, of, Mutability::Mut)
        }
        _ => None,
    }
}

/// The elements of a slice, parts of it, or a range of integers, without a change.
pub(super) fn items<'tcx>(
    finder: &Finder<'_, 'tcx>,
    iterator: &'tcx Expr<'tcx>,
) -> Option<Vec<Piece>> {
    match iterator.kind {
        ExprKind::MethodCall(_, of, [], _) if is_of_slice(finder, iterator, "iter") => {
            slice(finder, of, Mutability::Not)
        }
        ExprKind::MethodCall(_, of, [size], _) if is_of_slice(finder, iterator, "chunks") => {
            chunks("chunks", slice(finder, of, Mutability::Not)?, size)
        }
        ExprKind::AddrOf(BorrowKind::Ref, Mutability::Not, of) => {
            slice(finder, of, Mutability::Not)
        }
        // A reference to a list, which a `for` or an adapter takes.
        ExprKind::Path(_) => match *finder.typeck.expr_ty(iterator).kind() {
            ty::Ref(_, inner, Mutability::Not) if is_list(finder, inner) => {
                slice(finder, iterator, Mutability::Not)
            }
            _ => None,
        },
        _ => range(finder, iterator),
    }
}

/// Parts of a slice, with the same panic if their size is 0.
fn chunks(name: &str, of: Vec<Piece>, size: &Expr<'_>) -> Option<Vec<Piece>> {
    if size.span.from_expansion() {
        return None;
    }
    let mut pieces = vec![Piece::Runtime, Piece::Text(format!("::{name}("))];
    pieces.extend(of);
    pieces.extend([Piece::Text(", ".into()), Piece::Source(size.span), Piece::Text(")".into())]);
    Some(pieces)
}

/// The pattern in `Some(pattern)`.
fn payload<'tcx>(pat: &'tcx Pat<'tcx>) -> Option<&'tcx Pat<'tcx>> {
    match pat.kind {
        PatKind::TupleStruct(_, [inner], _) => Some(inner),
        PatKind::Struct(_, [field], _) => Some(field.pat),
        _ => None,
    }
}

/// A borrow of all elements of a vector, an array or a slice.
fn slice<'tcx>(
    finder: &Finder<'_, 'tcx>,
    of: &'tcx Expr<'tcx>,
    mutability: Mutability,
) -> Option<Vec<Piece>> {
    let is_place = matches!(
        of.kind,
        ExprKind::Path(_) | ExprKind::Field(..) | ExprKind::Index(..) | ExprKind::Unary(..)
    );
    if !is_place || of.span.from_expansion() {
        return None;
    }
    let ty = finder.typeck.expr_ty(of);
    let borrow = mutability.prefix_str();
    let text = match *ty.kind() {
        ty::Ref(_, inner, _) if is_list(finder, inner) => format!("&{borrow}*"),
        _ if is_list(finder, ty) => format!("&{borrow}"),
        _ => return None,
    };
    Some(vec![Piece::Text(text), Piece::Source(of.span)])
}

/// Whether a call is one of the slice's own method with this name, not of a trait's.
fn is_of_slice(finder: &Finder<'_, '_>, call: &Expr<'_>, name: &str) -> bool {
    let tcx = finder.tcx;
    finder.typeck.type_dependent_def_id(call.hir_id).is_some_and(|method| {
        let is_core = tcx.lang_items().sized_trait().is_some_and(|of| of.krate == method.krate);
        let is_inherent =
            matches!(tcx.def_kind(tcx.parent(method)), DefKind::Impl { of_trait: false });
        (is_core && is_inherent || crate::fault::is_planted("iter"))
            && tcx.item_name(method).as_str() == name
    })
}

fn is_list<'tcx>(finder: &Finder<'_, 'tcx>, ty: Ty<'tcx>) -> bool {
    match *ty.kind() {
        ty::Array(..) | ty::Slice(_) => true,
        ty::Adt(adt, _) => finder.tcx.is_diagnostic_item(rustc_span::sym::Vec, adt.did()),
        _ => false,
    }
}

/// `items.map(f).collect()` into a vector.
fn chain<'tcx>(finder: &Finder<'_, 'tcx>, expr: &'tcx Expr<'tcx>) -> Option<Candidate<'tcx>> {
    let ExprKind::MethodCall(end, source, [], _) = expr.kind else { return None };
    let ty = finder.typeck.expr_ty(expr);
    let is_vector = matches!(ty.kind(), ty::Adt(..)) && is_list(finder, ty);
    if end.ident.as_str() != "collect" || !is_iterator(finder, expr) || !is_vector {
        return None;
    }
    let (items, function, body) = mapped(finder, source)?;
    let text = |text: &str| Piece::Text(text.to_owned());
    let mut pieces = vec![Piece::Runtime, text("::map(")];
    pieces.extend(items);
    pieces.extend([text(", "), Piece::Source(function.span), text(")")]);
    Some(Candidate {
        pattern: Pattern::Map,
        owner: finder.owner,
        span: expr.span,
        pieces,
        parts: vec![finder.part(body)],
        is_expression: false,
        may_leave: false,
        against: None,
    })
}

/// `items.map(function)`: the items, the function and its body.
pub(super) fn mapped<'tcx>(
    finder: &Finder<'_, 'tcx>,
    mapped: &'tcx Expr<'tcx>,
) -> Option<(Vec<Piece>, &'tcx Expr<'tcx>, &'tcx Expr<'tcx>)> {
    let ExprKind::MethodCall(name, source, [function], _) = mapped.kind else { return None };
    if name.ident.as_str() != "map" || !is_iterator(finder, mapped) {
        return None;
    }
    let body = match function.kind {
        ExprKind::Closure(closure) => finder.tcx.hir_body(closure.body).value,
        ExprKind::Path(_) => function,
        _ => return None,
    };
    Some((items(finder, source)?, function, body))
}

/// The type of the results of a function.
pub(super) fn result<'tcx>(finder: &Finder<'_, 'tcx>, function: &Expr<'_>) -> Option<Ty<'tcx>> {
    let output = match *finder.typeck.expr_ty(function).kind() {
        ty::Closure(_, args) => args.as_closure().sig().output(),
        ty::FnDef(def, args) => {
            finder.tcx.fn_sig(def).instantiate(finder.tcx, args).skip_norm_wip().output()
        }
        _ => return None,
    };
    output.no_bound_vars()
}

/// Whether a method is one of `Iterator`.
pub(super) fn is_iterator(finder: &Finder<'_, '_>, call: &Expr<'_>) -> bool {
    finder
        .typeck
        .type_dependent_def_id(call.hir_id)
        .and_then(|method| finder.tcx.trait_of_assoc(method))
        .is_some_and(|of| finder.tcx.is_diagnostic_item(rustc_span::sym::Iterator, of))
}

/// A range of integers, without the parentheses around it.
fn range<'tcx>(finder: &Finder<'_, 'tcx>, items: &'tcx Expr<'tcx>) -> Option<Vec<Piece>> {
    let ExprKind::Struct(_, [start, end], StructTailExpr::None) = items.kind else { return None };
    let ty::Adt(adt, args) = finder.typeck.expr_ty(items).kind() else { return None };
    let is_range = finder.tcx.lang_items().range_struct() == Some(adt.did());
    if !is_range || !args.type_at(0).is_integral() || written(items.span).is_none() {
        return None;
    }
    Some(vec![Piece::Source(start.expr.span.to(end.expr.span))])
}
