//! Whether any code could observe memory after a panic has left a function.
//!
//! If the first of two overlapping calls panics, the second has perhaps written memory that it had
//! not written in the sequential program. That matters only if code runs afterwards that reads this
//! memory: code that catches the panic, another thread, or a destructor with effects. In a program
//! (not a library) all of that code is known: the functions that any function of the crate reaches.

use crate::body::summary_of;
use crate::effect::Kind;
use crate::graph::{Graph, body_of, is_generic};
use crate::summary::Summary;
use rustc_hir::def_id::DefId;
use rustc_middle::ty::{GenericArgs, Instance, InstanceKind};

/// The reason for which memory might be read after a panic, or `None` if no code could.
pub(crate) fn observer(graph: &mut Graph<'_>) -> Option<String> {
    let tcx = graph.tcx;
    if tcx.entry_fn(()).is_none() {
        return Some("a caller in another crate may catch the panic".into());
    }
    let owners: Vec<DefId> = tcx
        .mir_keys(())
        .iter()
        .map(|owner| owner.to_def_id())
        .filter(|&owner| body_of(tcx, owner).is_some())
        .collect();
    for owner in owners {
        if tcx.is_closure_like(owner) {
            // Reached from the function that contains it.
            continue;
        }
        graph.enter(owner);
        let args = tcx.erase_and_anonymize_regions(GenericArgs::identity_for_item(tcx, owner));
        let root = Instance::new_raw(owner, args);
        let Some(reached) = graph.reached([root]) else {
            return Some("the program is too large for this question".into());
        };
        for node in reached {
            if let Some(reason) = observes(graph, node) {
                return Some(reason);
            }
        }
    }
    None
}

fn observes<'tcx>(graph: &mut Graph<'tcx>, node: Instance<'tcx>) -> Option<String> {
    let tcx = graph.tcx;
    let name = || tcx.def_path_str(node.def_id());
    match summary_of(graph, node) {
        Summary::Effect(Kind::Catch, _) => return Some(format!("`{}` catches panics", name())),
        Summary::Effect(Kind::Thread, _) => {
            return Some(format!("other threads may run (`{}`)", name()));
        }
        _ => {}
    }
    if let InstanceKind::Intrinsic(def) = node.def
        && tcx.item_name(def).as_str() == "catch_unwind"
    {
        return Some("panics are caught".into());
    }
    // A destructor runs while the panic leaves the function.
    let is_destructor = match node.def {
        InstanceKind::Item(def) => tcx
            .opt_associated_item(def)
            .and_then(|item| item.trait_item_def_id())
            .and_then(|method| tcx.trait_of_assoc(method))
            .is_some_and(|of| Some(of) == tcx.lang_items().drop_trait()),
        _ => false,
    };
    if is_destructor && !graph.is_standard(node.def_id().krate) {
        let effects = graph.effects([(node, tcx.def_span(node.def_id()))]);
        if let Some(finding) = effects.findings.first() {
            return Some(format!("the destructor `{}` {}", name(), finding.text));
        }
        if is_generic(node) {
            return Some(format!("the destructor `{}` is generic", name()));
        }
    }
    None
}
