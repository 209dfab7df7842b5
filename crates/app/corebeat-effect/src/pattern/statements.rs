//! A statement, and a group of independent statements behind it.
//!
//! The paper's figure 1: a call becomes a future, and its result is joined where it is first
//! needed. `let a = f(); let b = ..; for .. {} g(a, b)` becomes
//!
//! ```text
//! let (a, b) = scope(|s| {
//!     let a = s.future(|| f());
//!     let b = ..; for .. {}          // the statements stay on this thread, and may have effects
//!     (a.join(), b)
//! });
//! g(a, b)
//! ```
//!
//! Its section 5, method extraction: a loop, or another statement that is not a call, becomes
//! a closure of its own: `join(|| { for .. {} }, || { let b = ..; for .. {} b })`. This form also
//! serves where a call has effects and the statements behind it have none.
//!
//! The group ends before the first statement that needs the result, or that conflicts with the
//! first one as far as an estimate shows.

use super::{Finder, calls, exit_of, locals_of, shorten, written};
use crate::candidate::{Candidate, Part, Pattern, Piece};
use crate::effect::Effects;
use crate::estimate;
use crate::fault;
use crate::rule;
use rustc_hir::intravisit::{self, Visitor};
use rustc_hir::{
    BindingMode, Block, BorrowKind, ByRef, Expr, ExprKind, HirId, Mutability, Stmt, StmtKind,
};
use rustc_hir::{LetStmt, Pat, PatKind, UnOp};
use rustc_middle::ty::adjustment::{Adjust, AutoBorrow, AutoBorrowMutability};
use rustc_middle::ty::{TyCtxt, TypeckResults};
use rustc_span::{BytePos, Ident, Span, Symbol};

/// Bound of the statements of a block that are estimated.
const MOST_STATEMENTS: usize = 200;

/// A statement that may be a part of a group.
pub(super) struct Member<'tcx> {
    statement: &'tcx Stmt<'tcx>,
    /// Its place, unless a macro has made it.
    pub(super) span: Option<Span>,
    pub(super) effects: Effects,
    pub(super) is_work: bool,
    pub(super) mentioned: Vec<HirId>,
    pub(super) changed: Vec<HirId>,
    pub(super) bound: Vec<Bound>,
}

impl<'tcx> Member<'tcx> {
    /// The value, the type and the pattern of a `let`.
    pub(super) fn binding(&self) -> Option<(&'tcx Expr<'tcx>, Option<Span>, &'tcx Pat<'tcx>)> {
        match self.statement.kind {
            StmtKind::Let(binding) => {
                Some((binding.init?, binding.ty.map(|ty| ty.span), binding.pat))
            }
            _ => None,
        }
    }
}

/// A variable that a `let` binds.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    pub(super) id: HirId,
    pub(super) mode: BindingMode,
    pub(super) name: Ident,
    /// Later statements change it, as far as an estimate shows.
    pub(super) changes: bool,
}

pub(super) fn find<'tcx>(finder: &mut Finder<'_, 'tcx>, block: &'tcx Block<'tcx>) {
    if block.stmts.len() > MOST_STATEMENTS
        || block.stmts.iter().filter(|statement| may_work(statement)).count() < 2
    {
        return;
    }
    let members: Vec<Option<Member<'tcx>>> =
        block.stmts.iter().map(|statement| read(finder, statement)).collect();
    for first in 0..members.len() {
        if let Some(candidate) = propose(finder, block, &members, first) {
            finder.found.push(candidate);
        }
    }
}

/// Whether a statement has calls or loops.
fn may_work<'tcx>(statement: &'tcx Stmt<'tcx>) -> bool {
    struct Search(bool);
    impl<'tcx> Visitor<'tcx> for Search {
        fn visit_expr(&mut self, expr: &'tcx Expr<'tcx>) {
            self.0 |= matches!(
                expr.kind,
                ExprKind::Call(..) | ExprKind::MethodCall(..) | ExprKind::Loop(..)
            );
            intravisit::walk_expr(self, expr);
        }
    }
    let mut search = Search(false);
    search.visit_stmt(statement);
    search.0
}

pub(super) fn read<'tcx>(
    finder: &Finder<'_, 'tcx>,
    statement: &'tcx Stmt<'tcx>,
) -> Option<Member<'tcx>> {
    let mut bound = Vec::new();
    let expr = match statement.kind {
        StmtKind::Item(_) => return None,
        StmtKind::Expr(expr) | StmtKind::Semi(expr) => expr,
        StmtKind::Let(binding) => {
            if binding.super_.is_some() || binding.els.is_some() {
                return None;
            }
            each_bound(binding.pat, &mut bound);
            let init = binding.init?;
            let by_reference = bound.iter().any(|of| of.mode.0 != ByRef::No);
            if by_reference || lives_longer(finder, init) {
                return None;
            }
            init
        }
    };
    if exit_of(statement).is_some() {
        return None;
    }
    let mut changes = Changes::new(finder);
    changes.visit_expr(expr);
    let effects = estimate::effects(&mut finder.graph.borrow_mut(), finder.typeck, &[expr]);
    let span = match statement.kind {
        StmtKind::Expr(expr) => written(expr.span),
        _ => (!statement.span.from_expansion()).then_some(statement.span),
    };
    Some(Member {
        statement,
        span,
        is_work: effects.is_work,
        effects,
        mentioned: locals_of(finder.tcx, statement),
        changed: changes.found,
        bound,
    })
}

pub(super) fn each_bound(pat: &Pat<'_>, bound: &mut Vec<Bound>) {
    pat.walk(|pat| {
        if let PatKind::Binding(mode, id, name, _) = pat.kind {
            bound.push(Bound { id, mode, name, changes: false });
        }
        true
    });
}

/// Whether a `let` with this value keeps a temporary value with a destructor.
fn lives_longer<'tcx>(finder: &Finder<'_, 'tcx>, init: &'tcx Expr<'tcx>) -> bool {
    if fault::is_planted("early-drop") {
        return false;
    }
    let needs_drop = |expr: &Expr<'tcx>| {
        let env = rustc_middle::ty::TypingEnv::post_analysis(finder.tcx, finder.owner.to_def_id());
        finder.typeck.expr_ty(expr).needs_drop(finder.tcx, env)
    };
    // Any borrow of a value that is not in a call: the compiler gives some of them a longer life.
    struct Search<'a, 'b, 'tcx> {
        finder: &'a Finder<'b, 'tcx>,
        needs_drop: &'a dyn Fn(&Expr<'tcx>) -> bool,
        found: bool,
    }
    impl<'tcx> Visitor<'tcx> for Search<'_, '_, 'tcx> {
        fn visit_expr(&mut self, expr: &'tcx Expr<'tcx>) {
            if self.finder.is_call(expr) {
                return;
            }
            if let ExprKind::AddrOf(_, _, of) = expr.kind {
                let mut base = of;
                while let ExprKind::Field(inner, _)
                | ExprKind::Index(inner, ..)
                | ExprKind::Unary(UnOp::Deref, inner)
                | ExprKind::AddrOf(_, _, inner)
                | ExprKind::DropTemps(inner) = base.kind
                {
                    base = inner;
                }
                self.found |= !matches!(base.kind, ExprKind::Path(_)) && (self.needs_drop)(base);
            }
            intravisit::walk_expr(self, expr);
        }
        // A value that a macro such as `pin!` keeps.
        fn visit_local(&mut self, local: &'tcx LetStmt<'tcx>) {
            self.found |=
                local.super_.is_some() && local.init.is_some_and(|init| (self.needs_drop)(init));
            intravisit::walk_local(self, local);
        }
    }
    let mut search = Search { finder, needs_drop: &needs_drop, found: false };
    search.visit_expr(init);
    search.found
}

/// The local variables that code assigns or borrows to change them, without those that a pattern
/// borrows. An estimate: the compiler decides.
pub(super) struct Changes<'tcx> {
    tcx: TyCtxt<'tcx>,
    typeck: &'tcx TypeckResults<'tcx>,
    pub(super) found: Vec<HirId>,
}

impl<'tcx> Changes<'tcx> {
    pub(super) fn new(finder: &Finder<'_, 'tcx>) -> Changes<'tcx> {
        Changes { tcx: finder.tcx, typeck: finder.typeck, found: Vec::new() }
    }
}

impl<'tcx> Visitor<'tcx> for Changes<'tcx> {
    type NestedFilter = rustc_middle::hir::nested_filter::OnlyBodies;

    fn maybe_tcx(&mut self) -> TyCtxt<'tcx> {
        self.tcx
    }

    fn visit_expr(&mut self, expr: &'tcx Expr<'tcx>) {
        match expr.kind {
            ExprKind::Assign(to, ..) | ExprKind::AssignOp(_, to, _) => self.found.extend(base(to)),
            ExprKind::AddrOf(_, Mutability::Mut, of) => self.found.extend(base(of)),
            _ => {}
        }
        let changes = self.typeck.expr_adjustments(expr).iter().any(|adjustment| {
            matches!(
                adjustment.kind,
                Adjust::Borrow(AutoBorrow::Ref(AutoBorrowMutability::Mut { .. }))
            )
        });
        self.found.extend(base(expr).filter(|_| changes));
        intravisit::walk_expr(self, expr);
    }
}

/// Whether code of the surrounding function borrows a variable to change it.
pub(super) fn is_lent(finder: &Finder<'_, '_>, id: HirId) -> bool {
    struct Lent<'tcx> {
        tcx: TyCtxt<'tcx>,
        typeck: &'tcx TypeckResults<'tcx>,
        id: HirId,
        found: bool,
    }
    impl<'tcx> Visitor<'tcx> for Lent<'tcx> {
        type NestedFilter = rustc_middle::hir::nested_filter::OnlyBodies;
        fn maybe_tcx(&mut self) -> TyCtxt<'tcx> {
            self.tcx
        }
        fn visit_expr(&mut self, expr: &'tcx Expr<'tcx>) {
            let shared = matches!(expr.kind, ExprKind::AddrOf(BorrowKind::Ref, Mutability::Not, _));
            if let ExprKind::AddrOf(_, _, of) = expr.kind {
                self.found |= !shared && base(of) == Some(self.id);
            }
            let changes = self.typeck.expr_adjustments(expr).iter().any(|adjustment| {
                let Adjust::Borrow(borrow) = &adjustment.kind else { return false };
                !matches!(borrow, AutoBorrow::Ref(AutoBorrowMutability::Not))
            });
            self.found |= changes && base(expr) == Some(self.id);
            intravisit::walk_expr(self, expr);
        }
        fn visit_pat(&mut self, pat: &'tcx Pat<'tcx>) {
            self.found |= matches!(
                pat.kind,
                PatKind::Binding(BindingMode(ByRef::Yes(_, Mutability::Mut), _), ..)
            );
            intravisit::walk_pat(self, pat);
        }
    }
    let tcx = finder.tcx;
    let root = tcx.typeck_root_def_id_local(finder.owner);
    let mut search = Lent { tcx, typeck: finder.typeck, id, found: false };
    search.visit_expr(tcx.hir_body_owned_by(root).value);
    search.found
}

/// The variable of which an expression is a part.
fn base(mut expr: &Expr<'_>) -> Option<HirId> {
    loop {
        expr = match expr.kind {
            ExprKind::Field(of, _) | ExprKind::Index(of, ..) | ExprKind::Unary(_, of) => of,
            ExprKind::Path(rustc_hir::QPath::Resolved(None, path)) => {
                return match path.res {
                    rustc_hir::def::Res::Local(id) => Some(id),
                    _ => None,
                };
            }
            _ => return None,
        };
    }
}

/// The first statement of a candidate.
struct First<'tcx> {
    span: Span,
    pat: Option<&'tcx Pat<'tcx>>,
    ty: Option<Span>,
    /// A call, or the value of a `let`; none for other statements.
    value: Option<&'tcx Expr<'tcx>>,
}

fn first_of<'tcx>(finder: &Finder<'_, 'tcx>, member: &Member<'tcx>) -> Option<First<'tcx>> {
    let statement = member.statement;
    if let Some(call) = calls::read(finder, statement) {
        let (pat, ty) = call.binding.map_or((None, None), |(pat, ty)| (Some(pat), ty));
        return Some(First { span: call.span, pat, ty, value: Some(call.call) });
    }
    if !finder.tcx.hir_attrs(statement.hir_id).is_empty() {
        return None;
    }
    let span = member.span?;
    match statement.kind {
        StmtKind::Let(binding) => {
            let init = binding.init?;
            let is_plain = finder.tcx.hir_attrs(binding.hir_id).is_empty()
                && calls::names_all(binding.pat)
                && !binding.pat.span.from_expansion()
                && !init.span.from_expansion();
            let ty = binding.ty.map(|ty| ty.span);
            is_plain.then_some(First { span, pat: Some(binding.pat), ty, value: Some(init) })
        }
        _ => Some(First { span, pat: None, ty: None, value: None }),
    }
}

fn propose<'tcx>(
    finder: &Finder<'_, 'tcx>,
    block: &'tcx Block<'tcx>,
    members: &[Option<Member<'tcx>>],
    at: usize,
) -> Option<Candidate<'tcx>> {
    let member = members[at].as_ref()?;
    if !member.is_work {
        return None;
    }
    let first = first_of(finder, member)?;
    let call = first.value.filter(|value| finder.is_call(value));
    let next = &block.stmts.get(at + 1)?;
    if call.is_some() && calls::read(finder, next).is_some() {
        // Two calls one after the other are a pattern of their own.
        return None;
    }
    let a = &member.effects;
    // A call that may run later must not have effects.
    let is_future = call.is_some() && a.first().is_none();
    let may_end = a.panic.is_some() || a.unbounded.is_some() || a.end().is_some();
    let is_strict = !is_future || may_end && !fault::is_planted("overtake");
    let mut last = None;
    let mut against = None;
    for (i, next) in members.iter().enumerate().skip(at + 1) {
        let Some(next) = next else { break };
        let shares = |a: &[HirId], b: &[HirId]| a.iter().any(|id| b.contains(id));
        let bound: Vec<HirId> = member.bound.iter().map(|of| of.id).collect();
        if shares(&bound, &next.mentioned)
            || shares(&member.changed, &next.mentioned)
            || shares(&member.mentioned, &next.changed)
        {
            break;
        }
        let finding = if is_strict { next.effects.first() } else { next.effects.confined() };
        if let Some(finding) = finding {
            if i == at + 1 && next.is_work && next.span.is_some() && a.first().is_none() {
                let shown = shown(finder, next.statement.span.source_callsite());
                against = Some((format!("`{shown}` {}", finding.text), finding.span));
                last = Some(i);
            }
            break;
        }
        if next.is_work && next.span.is_some() {
            last = Some(i);
        }
    }
    let last = last?;
    let group: Vec<&Member<'tcx>> = members[at + 1..=last].iter().flatten().collect();
    let end = group.last()?.span?;
    let rest = &block.stmts[last + 1..];
    let mut later: Vec<HirId> = rest.iter().flat_map(|s| locals_of(finder.tcx, s)).collect();
    later.extend(block.expr.iter().flat_map(|tail| super::locals(finder.tcx, tail)));
    let mut changes = Changes::new(finder);
    rest.iter().for_each(|statement| changes.visit_stmt(statement));
    block.expr.iter().for_each(|tail| changes.visit_expr(tail));
    let mut results = Vec::new();
    for bound in group.iter().flat_map(|member| &member.bound) {
        if later.contains(&bound.id) || ends_with_effects(finder, bound.id) {
            // Behind the group, its name must mean this variable.
            let named = group.iter().flat_map(|member| &member.bound);
            let is_hidden = named.filter(|of| of.name.name == bound.name.name).count() > 1;
            if bound.name.span.from_expansion() || is_hidden {
                return None;
            }
            results.push(Bound { changes: changes.found.contains(&bound.id), ..*bound });
        }
    }
    let span = first.span.to(end);
    let group_span = group.first()?.statement.span.source_callsite().to(end);
    let pieces = if is_future {
        let names = group.iter().flat_map(|member| &member.bound);
        let names: Vec<Symbol> = names.map(|bound| bound.name.name).collect();
        future(finder, &first, call?, end, (&results, &names))
    } else {
        blocks(finder, &first, end, &results)
    };
    let head = member.statement;
    let expr = |statement: &'tcx Stmt<'tcx>| match statement.kind {
        StmtKind::Let(binding) => binding.init,
        StmtKind::Expr(expr) | StmtKind::Semi(expr) => Some(expr),
        StmtKind::Item(_) => None,
    };
    Some(Candidate {
        pattern: if is_future { Pattern::Future } else { Pattern::StatementBlocks },
        owner: finder.owner,
        span,
        pieces,
        parts: vec![
            match call {
                Some(call) => finder.part(call),
                None => Part {
                    exprs: expr(head).into_iter().collect(),
                    span: first.span,
                    shown: shown(finder, first.span),
                },
            },
            Part {
                exprs: group.iter().filter_map(|member| expr(member.statement)).collect(),
                span: group_span,
                shown: shown(finder, group_span),
            },
        ],
        is_expression: false,
        may_leave: false,
        against,
    })
}

fn shown(finder: &Finder<'_, '_>, span: Span) -> String {
    shorten(&finder.snippet(span))
}

/// Whether the destructor of a variable has effects or may panic, so that it must run where it runs
/// now.
fn ends_with_effects(finder: &Finder<'_, '_>, id: HirId) -> bool {
    if fault::is_planted("early-drop") {
        return false;
    }
    let mut graph = finder.graph.borrow_mut();
    let ty = finder.tcx.erase_and_anonymize_regions(finder.typeck.node_type(id));
    let drop = graph.drop_of(ty, rustc_span::DUMMY_SP);
    !graph.effects(drop).findings.is_empty() || rule::destructor(&mut graph, ty).is_some()
}

/// The pattern of a `let` and the value for it: one name, or a tuple.
pub(super) fn tuple(parts: Vec<Vec<Piece>>) -> Vec<Piece> {
    let text = |text: &str| Piece::Text(text.to_owned());
    if parts.len() == 1 {
        return parts.into_iter().flatten().collect();
    }
    let mut all = vec![text("(")];
    for (i, part) in parts.into_iter().enumerate() {
        all.extend((i > 0).then(|| text(", ")));
        all.extend(part);
    }
    all.push(text(")"));
    all
}

pub(super) fn name(finder: &Finder<'_, '_>, bound: &Bound) -> String {
    finder.snippet(bound.name.span)
}

/// The name of a variable, with the `mut` of its first binding if it changes later.
pub(super) fn binding(finder: &Finder<'_, '_>, bound: &Bound) -> Vec<Piece> {
    let mutable = if bound.mode.1 == Mutability::Mut && bound.changes { "mut " } else { "" };
    vec![Piece::Text(format!("{mutable}{}", name(finder, bound)))]
}

/// A name that does not occur in a text.
pub(super) fn free(text: &str, names: &[&str]) -> Option<String> {
    let is_used = |name: &str| {
        text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name)
    };
    names.iter().find(|name| !is_used(name)).map(|name| (*name).to_owned())
}

/// The form with a future.
fn future(
    finder: &Finder<'_, '_>,
    first: &First<'_>,
    call: &Expr<'_>,
    end: Span,
    (results, taken): (&[Bound], &[Symbol]),
) -> Vec<Piece> {
    let text = |text: String| Piece::Text(text);
    let all = finder.snippet(first.span.to(end));
    let scope = free(&all, &["s", "scope", "futures"]).unwrap_or_else(|| "scope_".into());
    let own = match first.pat.map(|pat| &pat.kind) {
        Some(PatKind::Binding(_, _, own, None)) if !taken.contains(&own.name) => {
            Some(finder.snippet(own.span))
        }
        _ => None,
    };
    let future = own
        .or_else(|| free(&all, &["first", "future", "pending"]))
        .unwrap_or_else(|| "future_".into());
    let outer = finder.indentation(first.span);
    let mut names: Vec<Vec<Piece>> =
        first.pat.iter().map(|pat| vec![Piece::Source(pat.span)]).collect();
    names.extend(results.iter().map(|bound| binding(finder, bound)));
    let mut values: Vec<Vec<Piece>> =
        first.pat.iter().map(|_| vec![text(format!("{future}.join()"))]).collect();
    values.extend(results.iter().map(|bound| vec![text(name(finder, bound))]));
    let mut pieces = bind(names, first.ty, results.len());
    pieces.extend([
        Piece::Runtime,
        text(format!("::scope(|{scope}| {{\n{outer}    let {future} = {scope}.future(|| ")),
    ]);
    pieces.extend(indented(finder, call.span, "    "));
    pieces.push(text(");".into()));
    pieces.extend(indented(finder, first.span.between(end).to(end), "    "));
    if first.pat.is_none() {
        pieces.push(text(format!("\n{outer}    {future}.join();")));
    }
    if !values.is_empty() {
        pieces.push(text(format!("\n{outer}    ")));
        pieces.extend(tuple(values));
    }
    pieces.push(text(format!("\n{outer}}});")));
    pieces
}

/// `let NAMES: TYPE = `, or nothing without names.
fn bind(names: Vec<Vec<Piece>>, ty: Option<Span>, others: usize) -> Vec<Piece> {
    let text = |text: &str| Piece::Text(text.to_owned());
    if names.is_empty() {
        return Vec::new();
    }
    let mut pieces = vec![text("let ")];
    pieces.extend(tuple(names));
    if let Some(ty) = ty {
        pieces.push(text(": "));
        let mut types = vec![vec![Piece::Source(ty)]];
        types.extend((0..others).map(|_| vec![text("_")]));
        pieces.extend(tuple(types));
    }
    pieces.push(text(" = "));
    pieces
}

/// Text of the original whose further lines are indented by `more`, except in literals.
pub(super) fn indented(finder: &Finder<'_, '_>, span: Span, more: &str) -> Vec<Piece> {
    let source = finder.snippet(span);
    let mut pieces = Vec::new();
    let (mut at, mut done) = (0, 0);
    let place = |at: usize| span.lo() + BytePos(u32::try_from(at).unwrap_or(u32::MAX));
    for token in rustc_lexer::tokenize(&source, rustc_lexer::FrontmatterAllowed::No) {
        let end = at + token.len as usize;
        let shown = &source[at..end];
        // The last line of the space, if code follows.
        if token.kind == rustc_lexer::TokenKind::Whitespace
            && let Some(line) = shown.rfind('\n')
        {
            let line = at + line + 1;
            pieces.push(Piece::Source(span.with_lo(place(done)).with_hi(place(line))));
            pieces.push(Piece::Text(more.to_owned()));
            done = line;
        }
        at = end;
    }
    pieces.push(Piece::Source(span.with_lo(place(done))));
    pieces
}

/// The form with two closures.
fn blocks(finder: &Finder<'_, '_>, first: &First<'_>, end: Span, results: &[Bound]) -> Vec<Piece> {
    let text = |text: String| Piece::Text(text);
    let outer = finder.indentation(first.span);
    let group: Vec<Vec<Piece>> = results.iter().map(|bound| binding(finder, bound)).collect();
    let values: Vec<Vec<Piece>> =
        results.iter().map(|bound| vec![text(name(finder, bound))]).collect();
    let mut pieces = Vec::new();
    if first.pat.is_some() || !results.is_empty() {
        let head = match first.pat {
            Some(pat) => vec![Piece::Source(pat.span)],
            None => vec![text("()".into())],
        };
        pieces.extend(bind(vec![head, tuple(group)], first.ty, 1));
    }
    pieces.extend([Piece::Runtime, text(format!("::join(\n{outer}    || "))]);
    match first.value {
        Some(value) => pieces.extend(indented(finder, value.span, "    ")),
        None => {
            pieces.push(text(format!("{{\n{outer}        ")));
            pieces.extend(indented(finder, first.span, "        "));
            pieces.push(text(format!("\n{outer}    }}")));
        }
    }
    pieces.push(text(format!(",\n{outer}    || {{")));
    pieces.extend(indented(finder, first.span.between(end).to(end), "        "));
    if !values.is_empty() {
        pieces.push(text(format!("\n{outer}        ")));
        pieces.extend(tuple(values));
    }
    pieces.push(text(format!("\n{outer}    }},\n{outer});")));
    pieces
}
