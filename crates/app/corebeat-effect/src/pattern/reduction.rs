//! Reductions: loops whose iterations change one variable by an operation that does not depend on
//! the order.
//!
//! - `for x in &v { total += f(x); }` becomes `total = sum(total, &v, |x| f(x), |a, b| a + b);`,
//!   and `v.iter().map(f).sum()` of integers becomes `sum(0, &v, f, |a, b| a + b)`. The runtime
//!   finds an overflow where the loop finds it.
//! - `&`, `|`, `^`, `wrapping_add`, `wrapping_mul`, `min` and `max` of integers become `reduce`, in
//!   loops, in `fold`, and in `v.iter().map(f).max()`.
//! - `v.iter().filter(p).count()` becomes a sum.
//!
//! A product of integers is no reduction: whether it overflows depends on the order, because of
//! factors that are 0. Sums and products of floating-point numbers depend on the order; they are
//! reductions if the user allows that. `any`, `all`, `find` and `position` end early, and would
//! compute all elements.

use super::iteration::{For, is_iterator, items};
use super::statements::is_lent;
use super::{Finder, exit, locals};
use crate::candidate::{Candidate, Pattern, Piece};
use crate::{option, scope};
use rustc_hir::def::{DefKind, Res};
use rustc_hir::{BinOpKind, Block, ByRef, CaptureBy, Closure, Expr, ExprKind, HirId, PatKind};
use rustc_hir::{Stmt, StmtKind};
use rustc_middle::ty::Ty;

/// An operation that combines an accumulated value with a new one.
struct Operation<'tcx> {
    /// The new value.
    value: &'tcx Expr<'tcx>,
    /// The function of the runtime.
    function: &'static str,
    /// The text of the operation on `a` and `b`.
    text: String,
}

/// The operation that `op` is for values of this type.
fn binary(op: BinOpKind, ty: Ty<'_>) -> Option<(&'static str, String)> {
    let is_bits = ty.is_integral() || ty.is_bool();
    let is_float = ty.is_floating_point() && option::is_set(option::REASSOCIATE);
    let (function, text) = match op {
        BinOpKind::Add if ty.is_integral() => ("sum", "a + b"),
        BinOpKind::Add if is_float => ("reduce", "a + b"),
        BinOpKind::Mul if is_float => ("reduce", "a * b"),
        BinOpKind::BitAnd if is_bits => ("reduce", "a & b"),
        BinOpKind::BitOr if is_bits => ("reduce", "a | b"),
        BinOpKind::BitXor if is_bits => ("reduce", "a ^ b"),
        BinOpKind::Mul | BinOpKind::Sub if crate::fault::is_planted("associative") => {
            ("reduce", if op == BinOpKind::Mul { "a * b" } else { "a - b" })
        }
        _ => return None,
    };
    Some((function, text.into()))
}

/// Methods of integers that are associative.
const METHODS: [&str; 4] = ["wrapping_add", "wrapping_mul", "min", "max"];

/// The variable that an expression names.
fn variable(expr: &Expr<'_>) -> Option<HirId> {
    let ExprKind::Path(rustc_hir::QPath::Resolved(None, path)) = expr.kind else { return None };
    match path.res {
        rustc_hir::def::Res::Local(id) => Some(id),
        _ => None,
    }
}

/// `acc OP value` or `acc.method(value)`.
fn operation<'tcx>(
    finder: &Finder<'_, 'tcx>,
    acc: HirId,
    expr: &'tcx Expr<'tcx>,
) -> Option<Operation<'tcx>> {
    let ty = finder.typeck.expr_ty(expr);
    let (value, (function, text)) = match expr.kind {
        ExprKind::Binary(op, left, value)
            if variable(left) == Some(acc) && !finder.typeck.is_method_call(expr) =>
        {
            (value, binary(op.node, ty)?)
        }
        ExprKind::MethodCall(name, left, [value], _)
            if variable(left) == Some(acc)
                && ty.is_integral()
                && METHODS.contains(&name.ident.as_str())
                && is_of_core(finder, expr) =>
        {
            (value, ("reduce", format!("a.{}(b)", name.ident)))
        }
        _ => return None,
    };
    is_plain(finder, acc, ty, value).then_some(Operation { value, function, text })
}

/// Whether a value has the type of the variable, and does not use the variable.
fn is_plain<'tcx>(
    finder: &Finder<'_, 'tcx>,
    acc: HirId,
    ty: Ty<'tcx>,
    value: &'tcx Expr<'tcx>,
) -> bool {
    finder.typeck.expr_ty(value) == ty
        && finder.typeck.expr_adjustments(value).is_empty()
        && !value.span.from_expansion()
        && !locals(finder.tcx, value).contains(&acc)
}

/// Whether a method is one of the crate `core`.
fn is_of_core(finder: &Finder<'_, '_>, call: &Expr<'_>) -> bool {
    let core = finder.tcx.lang_items().sized_trait().map(|of| of.krate);
    let method = finder.typeck.type_dependent_def_id(call.hir_id);
    method.is_some_and(|method| Some(method.krate) == core)
}

/// `for pat in items { .. acc OP= value; }`
pub(super) fn for_loop<'tcx>(
    finder: &Finder<'_, 'tcx>,
    whole: &For<'tcx>,
) -> Option<Candidate<'tcx>> {
    let ExprKind::Block(body, None) = whole.body.kind else { return None };
    let (before, last, end) = last_of(body)?;
    let (acc, ty, operation) = match last.kind {
        ExprKind::AssignOp(op, acc, value) if !finder.typeck.is_method_call(last) => {
            let (id, ty) = (variable(acc)?, finder.typeck.expr_ty(acc));
            let (function, text) = binary(op.node.into(), ty)?;
            is_plain(finder, id, ty, value).then_some(())?;
            (acc, ty, Operation { value, function, text })
        }
        ExprKind::Assign(acc, value, _) => {
            let ty = finder.typeck.expr_ty(acc);
            (acc, ty, operation(finder, variable(acc)?, value)?)
        }
        _ => return None,
    };
    let id = variable(acc)?;
    // A variable of another function could be read after a panic. One of the loop ends with it, and
    // its name means another variable outside.
    let is_own = finder.tcx.hir_enclosing_body_owner(id) == finder.owner
        && !whole.span.contains(finder.tcx.hir_span(id).source_callsite());
    let is_used =
        before.iter().any(|statement| super::locals_of(finder.tcx, statement).contains(&id))
            || locals(finder.tcx, whole.iterator).contains(&id);
    let is_made = acc.span.from_expansion() || last.span.from_expansion();
    if !is_own || is_used || is_made || finder.typeck.expr_ty(operation.value) != ty {
        return None;
    }
    let source = items(finder, whole.iterator)?;
    let text = |text: String| Piece::Text(text);
    let name = finder.snippet(acc.span);
    let mut pieces = vec![
        text(format!("{name} = ")),
        Piece::Runtime,
        text(format!("::{}({name}, ", operation.function)),
    ];
    pieces.extend(source);
    pieces.extend([text(", |".into()), Piece::Source(whole.pat.span), text("| ".into())]);
    let head = whole.body.span.with_hi(last.span.lo());
    let tail = whole.body.span.with_lo(end);
    let is_single = finder.snippet(head).trim() == "{" && finder.snippet(tail).trim() == "}";
    if is_single {
        pieces.push(Piece::Source(operation.value.span));
    } else {
        pieces.extend([
            Piece::Source(head),
            Piece::Source(operation.value.span),
            Piece::Source(tail),
        ]);
    }
    pieces.push(text(format!(", |a, b| {});", operation.text)));
    let mut against =
        exit(whole.body).map(|(reason, span)| (format!("an iteration {reason}"), span));
    if is_lent(finder, id) {
        // A pointer could show a part of the result, or change the variable.
        against = Some((format!("other code may hold a pointer to `{name}`"), acc.span));
    }
    Some(Candidate {
        pattern: Pattern::Reduction,
        owner: finder.owner,
        span: whole.span,
        pieces,
        parts: vec![finder.part(whole.body)],
        is_expression: false,
        may_leave: false,
        against,
    })
}

/// The last expression of a block, the statements before it, and the end of its statement.
fn last_of<'tcx>(
    block: &'tcx Block<'tcx>,
) -> Option<(&'tcx [Stmt<'tcx>], &'tcx Expr<'tcx>, rustc_span::BytePos)> {
    if let Some(last) = block.expr {
        return Some((block.stmts, last, last.span.hi()));
    }
    let (last, before) = block.stmts.split_last()?;
    match last.kind {
        StmtKind::Semi(expr) => Some((before, expr, last.span.hi())),
        _ => None,
    }
}

/// The ends of chains: `sum`, `product`, `min`, `max`, `fold` and `count`.
pub(super) fn chain<'tcx>(
    finder: &Finder<'_, 'tcx>,
    expr: &'tcx Expr<'tcx>,
) -> Option<Candidate<'tcx>> {
    let ExprKind::MethodCall(end, source, arguments, _) = expr.kind else { return None };
    if !is_iterator(finder, expr) {
        return None;
    }
    let ty = finder.typeck.expr_ty(expr);
    let is_float = ty.is_floating_point() && option::is_set(option::REASSOCIATE);
    let text = |text: &str| Piece::Text(text.to_owned());
    // A closure that is taken apart: what it returns early would have another meaning.
    let leaves = |body| {
        let (reason, span) = exit(body).filter(|_| !crate::fault::is_planted("return"))?;
        Some((format!("the closure {reason}"), span))
    };
    let mut against = None;
    let (pieces, body) = match (end.ident.as_str(), arguments) {
        ("sum", []) if ty.is_integral() => {
            let (list, function, body) = mapped(finder, source, ty)?;
            (call("sum", "0", list, vec![Piece::Source(function.span)], "a + b"), body)
        }
        ("sum", []) if is_float => {
            let (list, function, body) = mapped(finder, source, ty)?;
            (call("reduce", "-0.0", list, vec![Piece::Source(function.span)], "a + b"), body)
        }
        ("product", []) if is_float => {
            let (list, function, body) = mapped(finder, source, ty)?;
            (call("reduce", "1.0", list, vec![Piece::Source(function.span)], "a * b"), body)
        }
        ("min" | "max", []) => {
            let rustc_middle::ty::Adt(_, args) = ty.kind() else { return None };
            let element = args.types().next().filter(|ty| ty.is_integral())?;
            let (list, function, body) = mapped(finder, source, element)?;
            let name = "the program gives the name `Some` or `None` another meaning".to_owned();
            against = scope::other_option(finder.tcx).map(|span| (name, span));
            let some = match function.kind {
                ExprKind::Closure(_) => {
                    against = against.or(leaves(body));
                    vec![
                        Piece::Source(function.span.with_hi(body.span.lo())),
                        text("Some("),
                        Piece::Source(body.span),
                        text(")"),
                    ]
                }
                _ => vec![text("|x| Some("), Piece::Source(function.span), text("(x))")],
            };
            let operation = match end.ident.as_str() {
                "max" => "a.max(b)",
                _ => "match (a, b) { (Some(a), Some(b)) => Some(a.min(b)), (a, b) => a.or(b) }",
            };
            (call("reduce", "None", list, some, operation), body)
        }
        ("fold", [first, function]) => {
            let ExprKind::Closure(closure) = function.kind else { return None };
            let body = finder.tcx.hir_body(closure.body);
            let [acc, item] = body.params else { return None };
            let PatKind::Binding(mode, id, _, None) = acc.pat.kind else { return None };
            let made = [first.span, item.pat.span, function.span];
            let is_value = match first.kind {
                ExprKind::Unary(_, inner) => matches!(inner.kind, ExprKind::Lit(_)),
                _ => matches!(first.kind, ExprKind::Lit(_) | ExprKind::Path(_)),
            };
            if mode.0 != ByRef::No || !is_value || made.iter().any(|span| span.from_expansion()) {
                return None;
            }
            let inner = Finder {
                tcx: finder.tcx,
                owner: closure.def_id,
                typeck: finder.typeck,
                graph: finder.graph,
                found: &mut Vec::new(),
            };
            let operation = operation(&inner, id, body.value)?;
            let list = items(finder, source)?;
            against = leaves(body.value);
            if !is_fixed(finder, first, source) {
                // The list comes before the first value, and behind it in the rewritten code.
                let text = "the first value may change while the list is made";
                against = Some((text.into(), first.span));
            }
            let function = vec![
                text(head(closure)),
                Piece::Source(item.pat.span),
                text("| "),
                Piece::Source(operation.value.span),
            ];
            let first = finder.snippet(first.span);
            (call(operation.function, &first, list, function, &operation.text), operation.value)
        }
        ("count", []) => {
            let ExprKind::MethodCall(name, inner, [function], _) = source.kind else {
                return None;
            };
            let ExprKind::Closure(closure) = function.kind else { return None };
            let body = finder.tcx.hir_body(closure.body);
            let [item] = body.params else { return None };
            let is_filter = name.ident.as_str() == "filter" && is_iterator(finder, source);
            if !is_filter || function.span.from_expansion() || item.pat.span.from_expansion() {
                return None;
            }
            let all = finder.snippet(function.span);
            let name = super::statements::free(&all, &["item", "element", "each"])?;
            against = leaves(body.value);
            let function = vec![
                text(&format!("{}{name}| {{ let ", head(closure))),
                Piece::Source(item.pat.span),
                text(&format!(" = &{name}; usize::from(")),
                Piece::Source(body.value.span),
                text(") }"),
            ];
            (call("sum", "0", items(finder, inner)?, function, "a + b"), body.value)
        }
        _ => return None,
    };
    Some(Candidate {
        pattern: Pattern::Reduction,
        owner: finder.owner,
        span: expr.span,
        pieces,
        parts: vec![finder.part(body)],
        is_expression: false,
        may_leave: false,
        against,
    })
}

/// The begin of a closure. Without its `move`, what it takes would end later.
fn head(closure: &Closure<'_>) -> &'static str {
    let is_by_reference = matches!(closure.capture_clause, CaptureBy::Ref);
    if is_by_reference || crate::fault::is_planted("move") { "|" } else { "move |" }
}

/// Whether the first value of `fold`, a literal or a path, is the same before and behind the list.
fn is_fixed<'tcx>(finder: &Finder<'_, 'tcx>, first: &Expr<'_>, source: &'tcx Expr<'tcx>) -> bool {
    match first.kind {
        ExprKind::Path(path) => match finder.typeck.qpath_res(&path, first.hir_id) {
            Res::Def(DefKind::Const { .. } | DefKind::AssocConst { .. }, _) => true,
            Res::Local(_) if crate::fault::is_planted("first") => true,
            Res::Local(id) => !locals(finder.tcx, source).contains(&id) && !is_lent(finder, id),
            _ => false,
        },
        // A literal.
        _ => true,
    }
}

/// `FUNCTION(first, list, function, |a, b| operation)`
fn call(
    name: &str,
    first: &str,
    list: Vec<Piece>,
    function: Vec<Piece>,
    operation: &str,
) -> Vec<Piece> {
    let text = |text: String| Piece::Text(text);
    let mut pieces = vec![Piece::Runtime, text(format!("::{name}({first}, "))];
    pieces.extend(list);
    pieces.push(text(", ".into()));
    pieces.extend(function);
    pieces.push(text(format!(", |a, b| {operation})")));
    pieces
}

/// `items.map(function)` with results of this type: the items, the function and its body.
fn mapped<'tcx>(
    finder: &Finder<'_, 'tcx>,
    source: &'tcx Expr<'tcx>,
    ty: Ty<'tcx>,
) -> Option<(Vec<Piece>, &'tcx Expr<'tcx>, &'tcx Expr<'tcx>)> {
    let (list, function, body) = super::iteration::mapped(finder, source)?;
    (super::iteration::result(finder, function) == Some(ty)).then_some((list, function, body))
}
