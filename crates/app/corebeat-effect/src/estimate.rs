//! A first estimate of the effects of code: those of the functions that it names. Effects of the
//! code itself are found when its rewritten form is judged.

use crate::effect::Effects;
use crate::graph::Graph;
use rustc_hir::intravisit::{self, Visitor};
use rustc_hir::{Expr, ExprKind};
use rustc_middle::ty::{self, Instance, TypeckResults};
use rustc_span::Span;

/// The effects of the functions that these expressions name.
pub(crate) fn effects<'tcx>(
    graph: &mut Graph<'tcx>,
    typeck: &'tcx TypeckResults<'tcx>,
    exprs: &[&'tcx Expr<'tcx>],
) -> Effects {
    let roots: Vec<(Instance<'tcx>, Span)> =
        exprs.iter().flat_map(|expr| roots(graph, typeck, expr)).collect();
    let mut effects = graph.effects(roots);
    effects.is_work |= exprs.iter().any(|expr| has_loop(expr));
    effects
}

/// Whether code has a loop outside its closures.
fn has_loop<'tcx>(expr: &'tcx Expr<'tcx>) -> bool {
    struct Search(bool);
    impl<'tcx> Visitor<'tcx> for Search {
        fn visit_expr(&mut self, expr: &'tcx Expr<'tcx>) {
            self.0 |= matches!(expr.kind, ExprKind::Loop(..));
            intravisit::walk_expr(self, expr);
        }
    }
    let mut search = Search(false);
    search.visit_expr(expr);
    search.0
}

/// The functions that an expression names: calls, methods, operators, closures.
fn roots<'tcx>(
    graph: &Graph<'tcx>,
    typeck: &'tcx TypeckResults<'tcx>,
    expr: &'tcx Expr<'tcx>,
) -> Vec<(Instance<'tcx>, Span)> {
    struct Roots<'a, 'tcx> {
        graph: &'a Graph<'tcx>,
        typeck: &'tcx TypeckResults<'tcx>,
        found: Vec<(Instance<'tcx>, Span)>,
    }
    impl<'tcx> Visitor<'tcx> for Roots<'_, 'tcx> {
        fn visit_expr(&mut self, expr: &'tcx Expr<'tcx>) {
            let span = expr.span.source_callsite();
            if let ExprKind::Path(_) = expr.kind
                && let ty::FnDef(def, args) = *self.typeck.expr_ty(expr).kind()
            {
                self.add(def, args, span);
            }
            if let Some(def) = self.typeck.type_dependent_def_id(expr.hir_id)
                && self.typeck.is_method_call(expr)
            {
                self.add(def, self.typeck.node_args(expr.hir_id), span);
            }
            if let ty::Closure(def, args) = *self.typeck.expr_ty(expr).kind()
                && matches!(expr.kind, ExprKind::Closure(_))
            {
                self.found.push((Instance::new_raw(def, args), span));
            }
            intravisit::walk_expr(self, expr);
        }
    }
    impl<'tcx> Roots<'_, 'tcx> {
        fn add(
            &mut self,
            def: rustc_hir::def_id::DefId,
            args: ty::GenericArgsRef<'tcx>,
            span: Span,
        ) {
            let tcx = self.graph.tcx;
            if matches!(tcx.def_kind(def), rustc_hir::def::DefKind::Ctor(..)) {
                return;
            }
            let args = tcx.erase_and_anonymize_regions(args);
            self.found.extend(self.graph.resolve(def, args).map(|callee| (callee, span)));
        }
    }
    let mut search = Roots { graph, typeck, found: Vec::new() };
    search.visit_expr(expr);
    search.found
}
