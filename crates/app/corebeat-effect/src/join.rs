//! Calls of methods whose implementation is not known: all implementations that may be meant.

use crate::fault;
use crate::graph::Graph;
use rustc_hir::def_id::DefId;
use rustc_middle::ty::{
    self, GenericArgsRef, ImplPolarity, Instance, Ty, TypeVisitableExt, TypingEnv,
};
use rustc_session::config::CrateType;
use rustc_span::{DUMMY_SP, Span};

/// The implementations that a call of this method of a trait may run, whatever the type of the
/// value is, or why they are not known, as the end of a sentence.
pub(crate) fn methods<'tcx>(
    graph: &mut Graph<'tcx>,
    method: DefId,
    args: GenericArgsRef<'tcx>,
) -> Result<Vec<Instance<'tcx>>, String> {
    let tcx = graph.tcx;
    let of = tcx.trait_of_assoc(method).ok_or("is not a method of a trait")?;
    let mut found = Vec::new();
    for ty in implementors(graph, of, args)? {
        let rest = args.iter().skip(1);
        let args = tcx.mk_args_from_iter(std::iter::once(ty.into()).chain(rest));
        if tcx.instantiate_and_check_impossible_predicates((method, args)) {
            // The bounds of the method exclude this type.
            continue;
        }
        let instance = graph.resolve(method, args);
        found.push(instance.ok_or_else(|| format!("its implementation for `{ty}` is not known"))?);
    }
    Ok(found)
}

/// The functions that a drop of a trait object of this type may run.
pub(crate) fn destructors<'tcx>(
    graph: &mut Graph<'tcx>,
    object: Ty<'tcx>,
) -> Result<Vec<(Instance<'tcx>, Span)>, String> {
    let tcx = graph.tcx;
    let principal = match object.kind() {
        ty::Dynamic(predicates, ..) => predicates.principal(),
        _ => None,
    };
    let principal = principal.ok_or("any type may be behind it")?;
    let of = tcx.instantiate_bound_regions_with_erased(principal.with_self_ty(tcx, object));
    let types = implementors(graph, of.def_id, of.args)?;
    Ok(types.into_iter().filter_map(|ty| graph.drop_of(ty, DUMMY_SP)).collect())
}

/// The types that implement a trait with these arguments, the first of which is any type.
fn implementors<'tcx>(
    graph: &mut Graph<'tcx>,
    of: DefId,
    args: GenericArgsRef<'tcx>,
) -> Result<Vec<Ty<'tcx>>, String> {
    let tcx = graph.tcx;
    if graph.is_standard(of.krate) {
        // Closures and types of any crate implement them.
        return Err("its trait belongs to the standard library".into());
    }
    let is_program = tcx.crate_types().iter().all(|kind| *kind == CrateType::Executable);
    let is_hidden =
        || of.as_local().is_some_and(|of| !tcx.effective_visibilities(()).is_reachable(of));
    if !is_program && !is_hidden() {
        return Err("crates that use this one may implement its trait".into());
    }
    let mut types = Vec::new();
    for implementation in tcx.all_impls(of) {
        if tcx.impl_polarity(implementation) == ImplPolarity::Negative {
            continue;
        }
        let found = tcx.impl_trait_ref(implementation).instantiate_identity();
        let plain = found.skip_norm_wip();
        if tcx.generics_of(implementation).requires_monomorphization(tcx) {
            return Err(format!("an implementation has type parameters (`{plain}`)"));
        }
        let found = tcx
            .try_normalize_erasing_regions(TypingEnv::fully_monomorphized(), found)
            .map_err(|_| format!("the types of an implementation are not known (`{plain}`)"))?;
        // The trait with other arguments is another trait.
        let is_other = found.args.iter().zip(args).skip(1).any(|(found, wanted)| {
            let wanted = tcx.erase_and_anonymize_regions(wanted);
            found != wanted && !wanted.has_param() && !wanted.has_aliases()
        });
        if !is_other {
            types.push(found.self_ty());
        }
    }
    if fault::is_planted("implementation") {
        types.clear();
    }
    Ok(types)
}
