//! The patterns: each module finds one form of code in the syntax tree. Its result is only
//! a proposal; the analysis decides.

mod calls;
mod iteration;
mod macros;
mod operands;
mod pipeline;
mod reduction;
mod statements;

use crate::candidate::{Candidate, Part};
use crate::graph::Graph;
use macros::Maker;
use rustc_hir::def_id::LocalDefId;
use rustc_hir::intravisit::{self, Visitor};
use rustc_hir::{Block, Expr, ExprKind, HirId, MatchSource, Stmt};
use rustc_middle::ty::{TyCtxt, TypeckResults};
use rustc_span::Span;
use std::cell::RefCell;

/// All proposals in the bodies of the crate, in the order of the source.
pub(crate) fn find<'tcx>(tcx: TyCtxt<'tcx>, graph: &RefCell<Graph<'tcx>>) -> Vec<Candidate<'tcx>> {
    let mut found = Vec::new();
    for owner in tcx.hir_body_owners() {
        let is_function = matches!(
            tcx.def_kind(owner),
            rustc_hir::def::DefKind::Fn
                | rustc_hir::def::DefKind::AssocFn
                | rustc_hir::def::DefKind::Closure
        );
        if !is_function {
            continue;
        }
        let body = tcx.hir_body_owned_by(owner);
        let typeck = tcx.typeck(owner);
        let maker = macros::maker(tcx, owner);
        let is_async = tcx.is_coroutine(owner.to_def_id());
        let is_made = body.value.span.from_expansion() && !is_async;
        if maker == Maker::Macro || is_made || typeck.tainted_by_errors.is_some() {
            continue;
        }
        graph.borrow_mut().enter(owner.to_def_id());
        let mut own = Vec::new();
        let mut finder = Finder { tcx, owner, typeck, graph, found: &mut own };
        finder.visit_expr(body.value);
        let against = match maker {
            Maker::Include => Some("`include!` has put its file here, and may do so elsewhere"),
            _ if is_async => Some("it is asynchronous code, which may move to another thread"),
            _ => None,
        };
        if let Some(reason) = against {
            own.iter_mut().for_each(|of| of.against = Some((reason.to_owned(), of.span)));
        }
        found.append(&mut own);
    }
    let mut arguments = macros::Arguments::default();
    found.retain(|candidate| !arguments.contain(tcx, candidate.span));
    found.sort_by_key(|candidate| (candidate.span.lo(), std::cmp::Reverse(candidate.span.hi())));
    found
}

/// The context of a body.
pub(crate) struct Finder<'a, 'tcx> {
    pub(crate) tcx: TyCtxt<'tcx>,
    pub(crate) owner: LocalDefId,
    pub(crate) typeck: &'tcx TypeckResults<'tcx>,
    /// For estimates. It has the context of the owner.
    pub(crate) graph: &'a RefCell<Graph<'tcx>>,
    pub(crate) found: &'a mut Vec<Candidate<'tcx>>,
}

impl<'tcx> Visitor<'tcx> for Finder<'_, 'tcx> {
    fn visit_block(&mut self, block: &'tcx Block<'tcx>) {
        if !block.span.from_expansion() {
            calls::find(self, block);
            statements::find(self, block);
        }
        intravisit::walk_block(self, block);
    }

    fn visit_expr(&mut self, expr: &'tcx Expr<'tcx>) {
        if !expr.span.from_expansion() {
            operands::find(self, expr);
        }
        if written(expr.span).is_some() {
            iteration::find(self, expr);
        }
        intravisit::walk_expr(self, expr);
    }
}

impl<'tcx> Finder<'_, 'tcx> {
    pub(crate) fn snippet(&self, span: Span) -> String {
        self.tcx.sess.source_map().span_to_snippet(span).unwrap_or_default()
    }

    /// The column at which the line of this place is indented.
    pub(crate) fn indentation(&self, span: Span) -> String {
        let map = self.tcx.sess.source_map();
        map.indentation_before(span).unwrap_or_default()
    }

    pub(crate) fn part(&self, expr: &'tcx Expr<'tcx>) -> Part<'tcx> {
        Part { exprs: vec![expr], span: expr.span, shown: shorten(&self.snippet(expr.span)) }
    }

    /// Whether a call of this function goes back to the function that contains this body.
    pub(crate) fn is_recursive(&self, call: &Expr<'_>) -> bool {
        let root = self.tcx.typeck_root_def_id(self.owner.to_def_id());
        self.callee(call) == Some(root)
    }

    /// The function that is called, as far as its path shows.
    fn callee(&self, call: &Expr<'_>) -> Option<rustc_hir::def_id::DefId> {
        match call.kind {
            ExprKind::Call(function, _) => match *self.typeck.expr_ty(function).kind() {
                rustc_middle::ty::FnDef(def, _) => Some(def),
                _ => None,
            },
            ExprKind::MethodCall(..) => self.typeck.type_dependent_def_id(call.hir_id),
            _ => None,
        }
    }

    /// Whether this is a call of a function, not of the constructor of a value.
    pub(crate) fn is_call(&self, expr: &Expr<'_>) -> bool {
        if expr.span.from_expansion() {
            return false;
        }
        match expr.kind {
            ExprKind::MethodCall(..) => true,
            ExprKind::Call(..) => !self.callee(expr).is_some_and(|def| {
                matches!(self.tcx.def_kind(def), rustc_hir::def::DefKind::Ctor(..))
            }),
            _ => false,
        }
    }
}

/// The place of code that a person wrote, also if the compiler has replaced its syntax (`for`,
/// `?`).
pub(crate) fn written(span: Span) -> Option<Span> {
    let site = match span.desugaring_kind() {
        Some(_) => span.ctxt().outer_expn_data().call_site,
        None => span,
    };
    (!site.from_expansion()).then_some(site)
}

/// Text on one line, of at most 40 characters.
pub(crate) fn shorten(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= 40 {
        return line;
    }
    line.chars().take(38).chain("..".chars()).collect()
}

/// The first place that would leave the surrounding function or loop, or wait.
pub(crate) fn exit<'tcx>(expr: &'tcx Expr<'tcx>) -> Option<(&'static str, Span)> {
    let mut search = Exit(None, 0);
    search.visit_expr(expr);
    search.0
}

/// The same in a statement.
pub(crate) fn exit_of<'tcx>(statement: &'tcx Stmt<'tcx>) -> Option<(&'static str, Span)> {
    let mut search = Exit(None, 0);
    search.visit_stmt(statement);
    search.0
}

/// The first exit, and the number of loops around the present place.
struct Exit(Option<(&'static str, Span)>, usize);

impl<'tcx> Visitor<'tcx> for Exit {
    fn visit_expr(&mut self, expr: &'tcx Expr<'tcx>) {
        let reason = match expr.kind {
            ExprKind::Ret(_) => Some("returns from the function"),
            ExprKind::Become(_) => Some("leaves the function"),
            // The loops of the part itself may be left.
            ExprKind::Break(..) | ExprKind::Continue(_) if self.1 == 0 => Some("leaves the loop"),
            ExprKind::Break(to, _) | ExprKind::Continue(to) if to.label.is_some() => {
                Some("leaves a loop by its label")
            }
            ExprKind::Yield(..) => Some("waits as asynchronous code"),
            ExprKind::Match(_, _, MatchSource::TryDesugar(_)) => Some("may exit by `?`"),
            ExprKind::Match(_, _, MatchSource::AwaitDesugar) => Some("waits for a future"),
            _ => None,
        };
        if let (None, Some(reason)) = (self.0, reason) {
            self.0 = Some((reason, expr.span.source_callsite()));
        }
        let is_loop = matches!(expr.kind, ExprKind::Loop(..));
        self.1 += usize::from(is_loop);
        intravisit::walk_expr(self, expr);
        self.1 -= usize::from(is_loop);
    }
}

/// The local variables that an expression mentions, also in its closures.
pub(crate) fn locals<'tcx>(tcx: TyCtxt<'tcx>, expr: &'tcx Expr<'tcx>) -> Vec<HirId> {
    let mut search = Locals(tcx, Vec::new());
    search.visit_expr(expr);
    search.1
}

/// The same in a statement.
pub(crate) fn locals_of<'tcx>(tcx: TyCtxt<'tcx>, statement: &'tcx Stmt<'tcx>) -> Vec<HirId> {
    let mut search = Locals(tcx, Vec::new());
    search.visit_stmt(statement);
    search.1
}

struct Locals<'tcx>(TyCtxt<'tcx>, Vec<HirId>);

impl<'tcx> Visitor<'tcx> for Locals<'tcx> {
    type NestedFilter = rustc_middle::hir::nested_filter::OnlyBodies;
    fn maybe_tcx(&mut self) -> TyCtxt<'tcx> {
        self.0
    }
    fn visit_path(&mut self, path: &rustc_hir::Path<'tcx>, _: HirId) {
        if let rustc_hir::def::Res::Local(id) = path.res {
            self.1.push(id);
        }
        intravisit::walk_path(self, path);
    }
}
