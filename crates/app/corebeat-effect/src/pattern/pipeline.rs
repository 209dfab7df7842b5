//! Loops in stages: the first statements of an iteration are independent, and its rest keeps its
//! order and its thread.
//!
//! ```text
//! for line in text.lines() {            pipeline(
//!     let word = parse(line);               text.lines(),
//!     count += 1;                           |line| parse(line),
//!     println!("{count} {word}");           |results| {
//! }                                             for word in results {
//!                                                   count += 1;
//!                                                   println!("{count} {word}");
//!                                               }
//!                                           },
//!                                       );
//! ```
//!
//! Molitorisz, Schimmel and Otto, "Automatic Parallelization Using AutoFutures", 2012, section 5:
//! loop parallelization with in-order execution, and master and worker. The rest is code of the
//! same loop as before, so `break` and `continue` stay; `?` is repeated behind the loop.

use super::iteration::For;
use super::statements::{self, Bound, Changes, Member};
use super::{Finder, locals, locals_of, shorten, written};
use crate::candidate::{Candidate, Part, Pattern, Piece};
use rustc_hir::def::DefKind;
use rustc_hir::intravisit::{self, Visitor};
use rustc_hir::{Block, ByRef, Expr, ExprKind, FnRetTy, GenericArg, HirId, LetExpr, MatchSource};
use rustc_hir::{Pat, PatKind, QPath, Stmt, StmtKind, StructTailExpr, TyKind, UnOp};
use rustc_middle::ty::adjustment::Adjust;
use rustc_span::{BytePos, Span};

/// The first stage of an iteration.
struct Stage<'tcx> {
    members: Vec<Member<'tcx>>,
    /// Its place, from behind the opening brace.
    span: Span,
    /// A reason against it.
    against: Option<(String, Span)>,
}

/// A loop with its first stage, if it has one.
pub(super) fn propose<'tcx>(
    finder: &Finder<'_, 'tcx>,
    whole: &For<'tcx>,
) -> Option<Candidate<'tcx>> {
    let ExprKind::Block(block, None) = whole.body.kind else { return None };
    if block.span.from_expansion() {
        return None;
    }
    let mut own = Vec::new();
    statements::each_bound(whole.pat, &mut own);
    let stage = stage(finder, block, &own)?;
    let rest = &block.stmts[stage.members.len()..];
    let all: Vec<Bound> =
        stage.members.iter().flat_map(|member| &member.bound).chain(&own).copied().collect();
    if all.iter().any(|bound| bound.mode.0 != ByRef::No || bound.name.span.from_expansion()) {
        return None;
    }
    let mut later: Vec<HirId> = rest.iter().flat_map(|s| locals_of(finder.tcx, s)).collect();
    later.extend(block.expr.iter().flat_map(|tail| locals(finder.tcx, tail)));
    let mut changes = Changes::new(finder);
    rest.iter().for_each(|statement| changes.visit_stmt(statement));
    block.expr.iter().for_each(|tail| changes.visit_expr(tail));
    let results: Vec<Bound> = all
        .into_iter()
        .filter(|bound| later.contains(&bound.id))
        .map(|bound| Bound { changes: changes.found.contains(&bound.id), ..bound })
        .collect();
    if results.is_empty() {
        return None;
    }
    let exits = Exits::of(finder, rest, block.expr);
    if exits.is_recursive {
        // Most of the work is in the recursion, which is no stage.
        return None;
    }
    let ending = if exits.is_tried { ending(finder) } else { Some(None) };
    let against = stage.against.clone().or(exits.against).or_else(|| {
        let text = "`?` does not leave a function whose type shows its result".to_owned();
        ending.is_none().then_some((text, whole.span))
    });
    let against = against.or_else(|| temporary(finder, whole.iterator)).or_else(|| item(block));
    let rest_span = stage.span.with_lo(stage.span.hi()).with_hi(block.span.hi());
    let start = |statement: &Stmt<'_>| statement.span.source_callsite().lo();
    let first =
        rest.first().map(start).or_else(|| Some(block.expr?.span.source_callsite().lo()))?;
    let last = rest.last().map(|statement| statement.span).filter(|_| block.expr.is_none());
    let last = last.or_else(|| Some(block.expr?.span))?.source_callsite().hi();
    let exprs = |statement: &Stmt<'tcx>| match statement.kind {
        StmtKind::Let(binding) => binding.init,
        StmtKind::Expr(expr) | StmtKind::Semi(expr) => Some(expr),
        StmtKind::Item(_) => None,
    };
    let part = |exprs: Vec<&'tcx Expr<'tcx>>, span: Span| Part {
        exprs,
        span,
        shown: shorten(&finder.snippet(span)),
    };
    Some(Candidate {
        pattern: Pattern::Pipeline,
        owner: finder.owner,
        span: whole.span,
        pieces: pieces(finder, whole, &stage, &results, (ending.flatten(), rest_span))?,
        parts: vec![
            part(
                block.stmts[..stage.members.len()].iter().filter_map(exprs).collect(),
                stage.span.with_lo(start(&block.stmts[0])),
            ),
            part(
                rest.iter().filter_map(exprs).chain(block.expr).collect(),
                whole.span.with_lo(first).with_hi(last),
            ),
        ],
        is_expression: false,
        may_leave: exits.may_leave,
        against,
    })
}

/// The first statements of an iteration without effects, up to the last one with a loop or
/// recursion. They change only variables of the iteration, and need none that the rest changes.
fn stage<'tcx>(
    finder: &Finder<'_, 'tcx>,
    block: &'tcx Block<'tcx>,
    own: &[Bound],
) -> Option<Stage<'tcx>> {
    let mut changes = Changes::new(finder);
    changes.visit_block(block);
    let mut inner: Vec<HirId> = own.iter().map(|bound| bound.id).collect();
    let mut members = Vec::new();
    let (mut count, mut against) = (0, None);
    for (i, statement) in block.stmts.iter().enumerate() {
        let Some(member) = statements::read(finder, statement) else { break };
        inner.extend(member.bound.iter().map(|bound| bound.id));
        let is_carried = member.mentioned.iter().any(|id| {
            !inner.contains(id) && (changes.found.contains(id) || member.changed.contains(id))
        });
        if member.span.is_none() || is_carried || !finder.tcx.hir_attrs(statement.hir_id).is_empty()
        {
            break;
        }
        let (is_work, finding) = (member.is_work, member.effects.first().cloned());
        members.push(member);
        let Some(finding) = finding else {
            count = if is_work { i + 1 } else { count };
            continue;
        };
        if is_work && count == 0 && matches!(statement.kind, StmtKind::Let(_)) {
            // Hot code that must stay: its reason is worth a line.
            let shown = shorten(&finder.snippet(statement.span));
            against = Some((format!("`{shown}` {}", finding.text), finding.span));
            count = i + 1;
        }
        break;
    }
    members.truncate(count);
    let is_whole = count == block.stmts.len() && block.expr.is_none();
    let end = members.last()?.span?;
    let span = block.span.with_lo(block.span.lo() + BytePos(1)).with_hi(end.hi());
    (!is_whole).then_some(Stage { members, span, against })
}

/// The ways in which the rest of an iteration may end it.
struct Exits<'a, 'b, 'tcx> {
    finder: &'a Finder<'b, 'tcx>,
    /// It calls the function around the loop.
    is_recursive: bool,
    /// One that a closure around the loop does not allow.
    against: Option<(String, Span)>,
    may_leave: bool,
    is_tried: bool,
    /// Loops around the present place.
    loops: usize,
}

impl<'a, 'b, 'tcx> Exits<'a, 'b, 'tcx> {
    fn of(
        finder: &'a Finder<'b, 'tcx>,
        rest: &'tcx [Stmt<'tcx>],
        tail: Option<&'tcx Expr<'tcx>>,
    ) -> Self {
        let mut exits = Exits {
            finder,
            is_recursive: false,
            against: None,
            may_leave: false,
            is_tried: false,
            loops: 0,
        };
        rest.iter().for_each(|statement| exits.visit_stmt(statement));
        tail.into_iter().for_each(|tail| exits.visit_expr(tail));
        exits
    }
}

impl<'tcx> Visitor<'tcx> for Exits<'_, '_, 'tcx> {
    fn visit_expr(&mut self, expr: &'tcx Expr<'tcx>) {
        let reason = match expr.kind {
            ExprKind::Match(tried, _, MatchSource::TryDesugar(_)) => {
                self.is_tried = true;
                self.may_leave = true;
                // The other parts are the return that the compiler adds.
                return intravisit::walk_expr(self, tried);
            }
            ExprKind::Ret(_) => Some("returns from the function"),
            ExprKind::Become(_) => Some("leaves the function"),
            ExprKind::Break(to, _) | ExprKind::Continue(to) if to.label.is_some() => {
                Some("leaves a loop by its label")
            }
            ExprKind::Yield(..) | ExprKind::Match(_, _, MatchSource::AwaitDesugar) => {
                Some("waits as asynchronous code")
            }
            _ => None,
        };
        self.is_recursive |= self.finder.is_recursive(expr);
        self.may_leave |= matches!(expr.kind, ExprKind::Break(..)) && self.loops == 0;
        if let (None, Some(reason)) = (&self.against, reason) {
            let text = format!("the rest of an iteration {reason}");
            self.against = Some((text, expr.span.source_callsite()));
        }
        let is_loop = matches!(expr.kind, ExprKind::Loop(..));
        self.loops += usize::from(is_loop);
        intravisit::walk_expr(self, expr);
        self.loops -= usize::from(is_loop);
    }
}

/// The type of a closure around a loop with `?`, and its last value: those of the function, with
/// the result `()`.
type Ending = Option<(String, &'static str)>;

fn ending(finder: &Finder<'_, '_>) -> Option<Ending> {
    let tcx = finder.tcx;
    if !matches!(tcx.def_kind(finder.owner), DefKind::Fn | DefKind::AssocFn) {
        return None;
    }
    let output = tcx.hir_fn_decl_by_hir_id(tcx.local_def_id_to_hir_id(finder.owner))?.output;
    let FnRetTy::Return(ty) = output else { return None };
    let TyKind::Path(QPath::Resolved(None, path)) = ty.kind else { return None };
    let Some(GenericArg::Type(result)) = path.segments.last()?.args?.args.first() else {
        return None;
    };
    let of = tcx.fn_sig(finder.owner).skip_binder().skip_binder().output().ty_adt_def()?;
    let value = match tcx.get_diagnostic_name(of.did())?.as_str() {
        "Result" => "Ok(())",
        "Option" => "Some(())",
        _ => return None,
    };
    if ty.span.from_expansion() || result.span.from_expansion() {
        return None;
    }
    let head = finder.snippet(ty.span.with_hi(result.span.lo()));
    let tail = finder.snippet(ty.span.with_lo(result.span.hi()));
    Some(Some((format!("{head}(){tail}"), value)))
}

/// A reason against a body with an item: all of the body can name it, also the stage before it.
fn item(block: &Block<'_>) -> Option<(String, Span)> {
    let found = block.stmts.iter().find(|statement| matches!(statement.kind, StmtKind::Item(_)))?;
    Some(("the body of the loop has an item of its own".into(), found.span.source_callsite()))
}

/// A reason against a list that borrows a value with a destructor, or a part of one: it would end
/// at another place if the loop is the last expression of its block.
fn temporary<'tcx>(finder: &Finder<'_, 'tcx>, list: &'tcx Expr<'tcx>) -> Option<(String, Span)> {
    struct Search<'a, 'b, 'tcx> {
        finder: &'a Finder<'b, 'tcx>,
        found: Option<Span>,
    }
    impl<'tcx> Search<'_, '_, 'tcx> {
        fn borrowed(&mut self, expr: &Expr<'tcx>) {
            let mut base = expr;
            while let ExprKind::Field(inner, _)
            | ExprKind::Index(inner, ..)
            | ExprKind::Unary(UnOp::Deref, inner)
            | ExprKind::DropTemps(inner) = base.kind
            {
                base = inner;
            }
            let finder = self.finder;
            let owner = finder.owner.to_def_id();
            let env = rustc_middle::ty::TypingEnv::post_analysis(finder.tcx, owner);
            let needs_drop = finder.typeck.expr_ty(base).needs_drop(finder.tcx, env);
            if !base.is_syntactic_place_expr() && needs_drop {
                self.found = self.found.or(Some(base.span.source_callsite()));
            }
        }
    }
    impl<'tcx> Visitor<'tcx> for Search<'_, '_, 'tcx> {
        fn visit_expr(&mut self, expr: &'tcx Expr<'tcx>) {
            match expr.kind {
                ExprKind::AddrOf(_, _, of)
                | ExprKind::Field(of, _)
                | ExprKind::Index(of, ..)
                | ExprKind::Unary(UnOp::Deref, of)
                | ExprKind::Let(&LetExpr { init: of, .. })
                | ExprKind::Struct(_, _, StructTailExpr::Base(of)) => self.borrowed(of),
                // `?` takes the whole value.
                ExprKind::Match(of, _, source) if !matches!(source, MatchSource::TryDesugar(_)) => {
                    self.borrowed(of);
                }
                _ => {}
            }
            let adjustments = self.finder.typeck.expr_adjustments(expr);
            if adjustments.iter().any(|of| matches!(of.kind, Adjust::Borrow(_) | Adjust::Deref(_)))
            {
                self.borrowed(expr);
            }
            intravisit::walk_expr(self, expr);
        }
    }
    let mut search = Search { finder, found: None };
    search.visit_expr(list);
    let span = search.found?;
    let text = "the list uses a part of a value with a destructor: make the value a variable";
    Some((text.into(), span))
}

/// The only statement of a stage, if it is a `let` of one variable without a comment.
fn only<'tcx>(finder: &Finder<'_, 'tcx>, stage: &Stage<'tcx>) -> Option<(&'tcx Expr<'tcx>, HirId)> {
    let [member] = &stage.members[..] else { return None };
    let (init, ty, pat) = member.binding()?;
    let Pat { kind: PatKind::Binding(_, id, _, None), .. } = pat else { return None };
    let before = finder.snippet(stage.span.with_hi(member.span?.lo()));
    let is_plain = ty.is_none() && before.trim().is_empty() && !init.span.from_expansion();
    is_plain.then_some((init, *id))
}

fn pieces<'tcx>(
    finder: &Finder<'_, 'tcx>,
    whole: &For<'tcx>,
    stage: &Stage<'tcx>,
    results: &[Bound],
    (ending, rest): (Ending, Span),
) -> Option<Vec<Piece>> {
    let text = |text: String| Piece::Text(text);
    let outer = finder.indentation(whole.span);
    let all = finder.snippet(whole.span);
    let list = statements::free(&all, &["results", "stage", "ahead"])?;
    let names = results.iter().map(|bound| statements::binding(finder, bound)).collect();
    let value = |bound: &Bound| vec![text(statements::name(finder, bound))];
    let mut pieces = vec![Piece::Runtime, text(format!("::pipeline(\n{outer}    "))];
    pieces.extend(statements::indented(finder, written(whole.iterator.span)?, "    "));
    pieces.push(text(format!(",\n{outer}    |")));
    pieces.push(Piece::Source(whole.pat.span));
    match only(finder, stage).filter(|(_, id)| results[0].id == *id) {
        Some((init, _)) => {
            pieces.push(text("| ".into()));
            let first = statements::indented(finder, init.span, "");
            let values = std::iter::once(first).chain(results[1..].iter().map(value));
            pieces.extend(statements::tuple(values.collect()));
        }
        None => {
            pieces.push(text("| {".into()));
            pieces.extend(statements::indented(finder, stage.span, "    "));
            pieces.push(text(format!("\n{outer}        ")));
            pieces.extend(statements::tuple(results.iter().map(value).collect()));
            pieces.push(text(format!("\n{outer}    }}")));
        }
    }
    let ty = ending.as_ref().map_or(String::new(), |(ty, _)| format!("-> {ty} "));
    pieces.push(text(format!(",\n{outer}    |{list}| {ty}{{\n{outer}        for ")));
    pieces.extend(statements::tuple(names));
    pieces.push(text(format!(" in {list} {{")));
    pieces.extend(statements::indented(finder, rest, "        "));
    if let Some((_, value)) = &ending {
        pieces.push(text(format!("\n{outer}        {value}")));
    }
    let tried = if ending.is_some() { "?" } else { "" };
    pieces.push(text(format!("\n{outer}    }},\n{outer}){tried};")));
    Some(pieces)
}
