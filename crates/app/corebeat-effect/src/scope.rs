//! Names that the rewritten code uses, and to which the crate may give another meaning.

use rustc_hir::def::DefKind;
use rustc_hir::{Item, ItemKind, LangItem, UseKind};
use rustc_middle::metadata::ModChild;
use rustc_middle::ty::TyCtxt;
use rustc_span::def_id::DefId;
use rustc_span::{Span, Symbol};

/// An item or import of the crate that gives the name of the runtime another meaning somewhere.
pub(crate) fn other_runtime(tcx: TyCtxt<'_>, name: &str) -> Option<Span> {
    other_meaning(tcx, name, |id| id.is_crate_root() && tcx.crate_name(id.krate).as_str() == name)
}

/// An item or import of the crate that gives `Some` or `None` another meaning somewhere.
pub(crate) fn other_option(tcx: TyCtxt<'_>) -> Option<Span> {
    let lang = [LangItem::OptionSome, LangItem::OptionNone].map(|item| tcx.lang_items().get(item));
    let of_core = |id: DefId| {
        let variant = match tcx.def_kind(id) {
            DefKind::Ctor(..) => tcx.parent(id),
            _ => id,
        };
        lang.contains(&Some(variant))
    };
    ["Some", "None"].iter().find_map(|name| other_meaning(tcx, name, of_core))
}

/// An item or import with this name, unless it means what is expected. It may be out of the scope
/// of the rewritten code: few programs have one.
fn other_meaning(tcx: TyCtxt<'_>, name: &str, is_expected: impl Fn(DefId) -> bool) -> Option<Span> {
    let name = Symbol::intern(name);
    let is_other = |id: Option<DefId>| id.is_none_or(|id| !is_expected(id));
    let gives = |item: &Item<'_>| match item.kind {
        ItemKind::Use(path, UseKind::Single(ident)) => {
            ident.name == name && path.res.present_items().any(|res| is_other(res.opt_def_id()))
        }
        // From a module or an enum.
        ItemKind::Use(path, UseKind::Glob) => {
            let modules = path.res.present_items().filter_map(|res| res.opt_def_id());
            modules
                .flat_map(|module| children(tcx, module))
                .any(|child| child.ident.name == name && is_other(child.res.opt_def_id()))
        }
        ItemKind::ExternCrate(original, ident) => {
            ident.name == name && original.is_some_and(|original| original != name)
        }
        _ => item.kind.ident().is_some_and(|ident| ident.name == name),
    };
    let items = tcx.hir_crate_items(()).free_items();
    items.map(|id| tcx.hir_item(id)).find(|item| gives(item)).map(|item| item.span)
}

fn children<'tcx>(tcx: TyCtxt<'tcx>, module: DefId) -> &'tcx [ModChild] {
    match module.as_local() {
        Some(module) => tcx.module_children_local(module),
        None => tcx.module_children(module),
    }
}
