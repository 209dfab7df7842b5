//! The treatment of panics by the whole program: whether any code could observe memory after
//! a panic has left a function, and whether the program may have a hook of panics.
//!
//! If the first of two overlapping calls panics, the second has perhaps written memory that it had
//! not written in the sequential program. That matters only if code runs afterwards that reads this
//! memory: code that catches the panic, another thread, or a destructor with effects.
//!
//! If the second call panics, the hook runs on another thread. It is code of the program, with
//! effects, and is in no closure.
//!
//! In a program (not a library) all of that code is known: the functions that the functions,
//! closures, statics and constants of the crate reach. Generic functions are reached with their
//! type arguments. Code that the analysis cannot follow might do anything.
//!
//! The user may promise for a library that its callers do not do these things. Then only its own
//! code is searched, generic functions without knowledge of their type arguments. The same promises
//! about a program cover only its code that the analysis cannot follow.

use crate::body::summary_of;
use crate::effect::Kind;
use crate::fault;
use crate::graph::Graph;
use crate::option;
use crate::summary::Summary;
use rustc_data_structures::fx::{FxHashSet, FxIndexMap};
use rustc_hir::def::DefKind;
use rustc_hir::def_id::DefId;
use rustc_middle::ty::{self, GenericArgs, Instance, InstanceKind, TypeVisitableExt};

/// The treatment of panics by the program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Program {
    /// The reason for which memory might be read after a panic.
    pub(crate) observer: Option<String>,
    /// The reason for which there might be a hook of panics.
    pub(crate) hook: Option<String>,
    /// That no observer is found rests on a promise of the user, and the same for hooks.
    pub(crate) trusts_no_catch: bool,
    pub(crate) trusts_no_hook: bool,
}

/// Searches the program. Changes the context of the graph.
pub(crate) fn search(graph: &mut Graph<'_>) -> Program {
    let tcx = graph.tcx;
    let is_library = tcx.entry_fn(()).is_none();
    let mut program =
        Program { trusts_no_catch: is_library, trusts_no_hook: is_library, ..Program::default() };
    if is_library {
        let is_promised = |name| option::is_set(name) || fault::is_planted("library");
        let may = |promise, text: &str| (!is_promised(promise)).then(|| text.to_owned());
        program.observer = may(option::NO_CATCH, "a caller in another crate may catch the panic");
        program.hook = may(option::NO_PANIC_HOOK, "a caller in another crate may set a hook");
        if program.observer.is_some() && program.hook.is_some() {
            return program;
        }
    }
    let mut roots = Vec::new();
    // The generic functions of a library, which its callers give their type arguments.
    let mut generic: FxIndexMap<DefId, Vec<Instance<'_>>> = FxIndexMap::default();
    for owner in tcx.mir_keys(()).iter().map(|owner| owner.to_def_id()) {
        let outer = tcx.typeck_root_def_id(owner);
        if !tcx.generics_of(outer).requires_monomorphization(tcx) {
            roots.extend(root(graph, owner));
        } else if is_library && !fault::is_planted("generic") {
            generic.entry(outer).or_default().extend(root(graph, owner));
        }
    }
    if let Some(&main) = roots.first() {
        graph.enter(tcx.typeck_root_def_id(main.def_id()));
    }
    let mut known = FxHashSet::default();
    read(graph, roots, &mut known, &mut program);
    for (outer, roots) in generic {
        graph.enter(outer);
        read(graph, roots, &mut known, &mut program);
    }
    program
}

/// Reads the code that these functions reach. `known`: code without type parameters that has been
/// read already.
fn read<'tcx>(
    graph: &mut Graph<'tcx>,
    roots: Vec<Instance<'tcx>>,
    known: &mut FxHashSet<Instance<'tcx>>,
    program: &mut Program,
) {
    let Some(reached) = graph.reached_besides(roots, known) else {
        let text = || Some("the program is too large for this question".to_owned());
        program.observer = program.observer.take().or_else(text);
        program.hook = program.hook.take().or_else(text);
        return;
    };
    known.extend(reached.iter().filter(|node| !node.args.has_param()));
    for node in reached {
        // A promise covers the code that the analysis cannot follow. In a library there is such
        // code in any case: that of its callers.
        let unknown = opaque(graph, node);
        if program.observer.is_none() {
            let rest = unpromised(&unknown, option::NO_CATCH, &mut program.trusts_no_catch);
            program.observer = observes(graph, node).or(rest);
        }
        if program.hook.is_none() {
            let rest = unpromised(&unknown, option::NO_PANIC_HOOK, &mut program.trusts_no_hook);
            program.hook = sets_hook(graph, node).or(rest);
        }
    }
}

/// The reason that unknown code gives, unless a promise covers it, on which then the result rests.
fn unpromised(unknown: &Option<String>, promise: &str, is_trusted: &mut bool) -> Option<String> {
    if unknown.is_some() && option::is_set(promise) {
        *is_trusted = true;
    }
    if *is_trusted { None } else { unknown.clone() }
}

/// The node of a body of this crate.
fn root<'tcx>(graph: &Graph<'tcx>, owner: DefId) -> Option<Instance<'tcx>> {
    let tcx = graph.tcx;
    let args = match tcx.def_kind(owner) {
        DefKind::Fn
        | DefKind::AssocFn
        | DefKind::Static { .. }
        | DefKind::Const { .. }
        | DefKind::AssocConst { .. } => GenericArgs::identity_for_item(tcx, owner),
        DefKind::Closure => {
            match *tcx.type_of(owner).instantiate_identity().skip_norm_wip().kind() {
                ty::Closure(_, args) => args,
                _ => return None,
            }
        }
        _ => return None,
    };
    tcx.is_mir_available(owner)
        .then(|| Instance::new_raw(owner, tcx.erase_and_anonymize_regions(args)))
}

/// Code that might do anything, in this function.
fn opaque<'tcx>(graph: &mut Graph<'tcx>, node: Instance<'tcx>) -> Option<String> {
    if let InstanceKind::DropGlue(_, Some(ty)) = node.def
        && ty.is_trait()
    {
        // The destructors of trait objects are added where the objects are made.
        return None;
    }
    let facts = graph.facts(node);
    // Functions of the standard library that start threads, catch panics or set hooks have
    // summaries. Others without code run functions of the program only if they receive them, and
    // these are added where their pointers are made.
    let is_standard = graph.is_standard(node.def_id().krate);
    let finding = facts.findings.iter().find(|finding| {
        finding.kind.is_opaque() && !(is_standard && finding.kind == Kind::Unknown)
    })?;
    Some(format!("`{}` {}", graph.tcx.def_path_str(node.def_id()), finding.text))
}

fn sets_hook<'tcx>(graph: &mut Graph<'tcx>, node: Instance<'tcx>) -> Option<String> {
    match summary_of(graph, node) {
        Summary::Effect(Kind::Hook, _) => {
            Some(format!("`{}` is called", graph.tcx.def_path_str(node.def_id())))
        }
        _ => None,
    }
}

fn observes<'tcx>(graph: &mut Graph<'tcx>, node: Instance<'tcx>) -> Option<String> {
    let tcx = graph.tcx;
    let name = || tcx.def_path_str(node.def_id());
    match summary_of(graph, node) {
        Summary::Effect(Kind::Catch, _) => return Some(format!("`{}` catches panics", name())),
        Summary::Effect(Kind::Hook, _) => {
            return Some(format!("`{}` sets code that runs in a panic", name()));
        }
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
    if graph.is_own_destructor(node) {
        let effects = graph.effects([(node, tcx.def_span(node.def_id()))]);
        // Code that callers of a library give as type arguments is a part of their promise, as code
        // is that the analysis cannot follow.
        let is_generic = node.args.has_param();
        let is_promised = option::is_set(option::NO_CATCH);
        let is_covered =
            |kind: Kind| is_generic && kind == Kind::Dynamic || is_promised && kind.is_opaque();
        if let Some(finding) = effects.findings.iter().find(|of| !is_covered(of.kind)) {
            return Some(format!("the destructor `{}` {}", name(), finding.text));
        }
    }
    None
}
