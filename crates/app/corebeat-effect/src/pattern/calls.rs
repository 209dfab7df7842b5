//! Two calls in consecutive statements (Molitorisz, Schimmel and Otto, "Automatic Parallelization
//! Using AutoFutures", 2012, figure 1).
//!
//! `let a = f(); let b = g();` becomes `let (a, b) = join(|| f(), || g());`. With `?` behind both
//! calls the errors are passed on behind the join, the first one first.

use super::{Finder, exit, locals, written};
use crate::candidate::{Candidate, Pattern, Piece};
use crate::fault;
use rustc_hir::{Block, Expr, ExprKind, MatchSource, Pat, PatKind, Stmt, StmtKind};
use rustc_span::Span;

/// A statement that consists of a call.
pub(super) struct Statement<'tcx> {
    pub(super) span: Span,
    /// The pattern and the type of a `let`.
    pub(super) binding: Option<(&'tcx Pat<'tcx>, Option<Span>)>,
    pub(super) call: &'tcx Expr<'tcx>,
    /// The whole of `call?`.
    pub(super) tried: Option<Span>,
}

pub(super) fn find<'tcx>(finder: &mut Finder<'_, 'tcx>, block: &'tcx Block<'tcx>) {
    let mut pairs = Vec::new();
    for pair in block.stmts.windows(2) {
        if let (Some(first), Some(second)) = (read(finder, &pair[0]), read(finder, &pair[1])) {
            pairs.push((first, second));
        }
    }
    for (first, second) in pairs {
        if let Some(candidate) = propose(finder, &first, &second) {
            finder.found.push(candidate);
        }
    }
}

/// The statement as a call, if it is one.
pub(super) fn read<'tcx>(
    finder: &Finder<'_, 'tcx>,
    statement: &'tcx Stmt<'tcx>,
) -> Option<Statement<'tcx>> {
    let attributes = finder.tcx.hir_attrs(statement.hir_id);
    if statement.span.from_expansion() || !attributes.is_empty() {
        return None;
    }
    let (binding, whole) = match statement.kind {
        StmtKind::Let(binding) => {
            let has_attributes = !finder.tcx.hir_attrs(binding.hir_id).is_empty();
            if binding.els.is_some()
                || binding.super_.is_some()
                || binding.pat.span.from_expansion()
                || has_attributes
            {
                return None;
            }
            (Some((binding.pat, binding.ty.map(|ty| ty.span))), binding.init?)
        }
        StmtKind::Semi(whole) => (None, whole),
        _ => return None,
    };
    let (call, tried) = match whole.kind {
        ExprKind::Match(scrutinee, _, MatchSource::TryDesugar(_)) => match scrutinee.kind {
            // `Try::branch(call)`
            ExprKind::Call(_, [call]) => (call, Some(written(whole.span)?)),
            _ => return None,
        },
        _ => (whole, None),
    };
    // Parts of a value without a name are dropped at once, and would be dropped after the join.
    let ty = finder.typeck.expr_ty(whole);
    let env = rustc_middle::ty::TypingEnv::post_analysis(finder.tcx, finder.owner.to_def_id());
    if binding.is_some_and(|(pat, _)| !names_all(pat)) && ty.needs_drop(finder.tcx, env) {
        return None;
    }
    let is_unit = finder.typeck.expr_ty(whole).is_unit();
    if !finder.is_call(call) || binding.is_none() && !is_unit {
        return None;
    }
    Some(Statement { span: statement.span, binding, call, tried })
}

/// Whether a pattern moves the whole value to variables.
pub(super) fn names_all(pat: &Pat<'_>) -> bool {
    match pat.kind {
        PatKind::Binding(mode, _, _, None) => mode.0 == rustc_hir::ByRef::No,
        PatKind::Tuple(parts, rest) => rest.as_opt_usize().is_none() && parts.iter().all(names_all),
        _ => false,
    }
}

fn propose<'tcx>(
    finder: &Finder<'_, 'tcx>,
    first: &Statement<'tcx>,
    second: &Statement<'tcx>,
) -> Option<Candidate<'tcx>> {
    if first.tried.is_some() != second.tried.is_some() {
        return None;
    }
    let recursive = finder.is_recursive(first.call) && finder.is_recursive(second.call);
    let pattern = if recursive { Pattern::DivideAndConquer } else { Pattern::ConsecutiveCalls };
    let mut against = None;
    if let Some((pat, _)) = first.binding {
        let mut bound = Vec::new();
        pat.each_binding(|_, id, _, _| bound.push(id));
        if locals(finder.tcx, second.call).iter().any(|used| bound.contains(used)) {
            // Needs the result: not even worth a line.
            return None;
        }
    }
    for part in [first.call, second.call] {
        if let (None, Some((reason, span))) = (&against, exit(part)) {
            against = Some((format!("`{}` {reason}", finder.part(part).shown), span));
        }
    }
    if first.tried.is_some() && !fault::is_planted("question") {
        let shown = finder.part(second.call).shown;
        let reason = format!("`?` may exit before `{shown}`, which then must not have run");
        against = against.or(Some((reason, first.tried?)));
    }
    Some(Candidate {
        pattern,
        owner: finder.owner,
        span: first.span.to(second.span),
        pieces: pieces(finder, first, second),
        parts: vec![finder.part(first.call), finder.part(second.call)],
        is_expression: false,
        may_leave: false,
        against,
    })
}

/// The rewritten text.
fn pieces(finder: &Finder<'_, '_>, first: &Statement<'_>, second: &Statement<'_>) -> Vec<Piece> {
    let text = |text: &str| Piece::Text(text.to_owned());
    let mut pieces = Vec::new();
    if first.binding.is_some() || second.binding.is_some() {
        let name = |statement: &Statement<'_>| match statement.binding {
            Some((pat, _)) => Piece::Source(pat.span),
            None => text("()"),
        };
        pieces.extend([text("let ("), name(first), text(", "), name(second), text(")")]);
        if let (false, [Some(_), _] | [_, Some(_)]) = (first.tried.is_some(), types(first, second))
        {
            let ty = |ty: Option<Span>| ty.map_or(text("_"), Piece::Source);
            let [a, b] = types(first, second);
            pieces.extend([text(": ("), ty(a), text(", "), ty(b), text(")")]);
        }
        pieces.push(text(" = "));
    }
    pieces.extend([Piece::Runtime, text("::join(")]);
    let between = finder.snippet(first.span.between(second.span));
    let comments = comments(&between, &finder.indentation(first.span));
    let indentation = finder.indentation(first.span);
    join(finder, &indentation, &comments, [first.call, second.call], &mut pieces);
    pieces.push(text(";"));
    if first.tried.is_some() {
        let indentation = finder.indentation(first.span);
        for statement in [first, second] {
            if let Some((pat, _)) = statement.binding {
                pieces.extend([
                    text(&format!("\n{indentation}let ")),
                    Piece::Source(pat.span),
                    text(" = "),
                    Piece::Source(pat.span),
                    text("?;"),
                ]);
            }
        }
    }
    pieces
}

fn types(first: &Statement<'_>, second: &Statement<'_>) -> [Option<Span>; 2] {
    [first, second].map(|statement| statement.binding.and_then(|(_, ty)| ty))
}

/// The lines of comments between two statements.
fn comments(between: &str, indentation: &str) -> String {
    let lines = between.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| format!("{indentation}    {line}\n")).collect()
}

/// The arguments of a join and its closing parenthesis: on one line if they fit.
pub(super) fn join(
    finder: &Finder<'_, '_>,
    indentation: &str,
    comments: &str,
    [first, second]: [&Expr<'_>; 2],
    pieces: &mut Vec<Piece>,
) {
    let [a, b] = [first, second].map(|part| finder.snippet(part.span));
    let before: usize = pieces
        .iter()
        .map(|piece| match piece {
            Piece::Text(text) => text.len(),
            Piece::Source(span) => finder.snippet(*span).len(),
            Piece::Runtime => crate::candidate::RUNTIME.len(),
        })
        .sum();
    let width = indentation.len() + before + a.len() + b.len() + "|| , || );".len();
    let fits = width <= WIDTH && comments.is_empty() && !a.contains('\n') && !b.contains('\n');
    let text = |text: String| Piece::Text(text);
    if fits {
        pieces.extend([
            text("|| ".into()),
            Piece::Source(first.span),
            text(", || ".into()),
            Piece::Source(second.span),
            text(")".into()),
        ]);
    } else {
        pieces.extend([
            text(format!("\n{indentation}    || ")),
            Piece::Source(first.span),
            text(format!(",\n{comments}{indentation}    || ")),
            Piece::Source(second.span),
            text(format!(",\n{indentation})")),
        ]);
    }
}

/// The longest line of rewritten code, as of rustfmt.
const WIDTH: usize = 100;
