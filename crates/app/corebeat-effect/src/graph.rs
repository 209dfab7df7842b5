//! The functions that a call reaches, and what each of them does on its own.
//!
//! A node is an [`Instance`]: a function with its type arguments, so that calls through traits are
//! resolved wherever the types are known. The effects of a call are the union of those of the
//! reachable nodes: the least fixpoint over the call graph. [`Graph::effects`] searches in breadth,
//! so that the nearest cause is reported.

use crate::effect::{Effects, Finding, Kind, Place};
use crate::join;
use crate::summary::{self, Summary};
use rustc_data_structures::fx::{FxHashMap, FxHashSet};
use rustc_hir::def::DefKind;
use rustc_hir::def_id::{CrateNum, DefId, LOCAL_CRATE};
use rustc_middle::mir;
use rustc_middle::ty::{self, EarlyBinder, Instance, InstanceKind, Ty, TyCtxt, TypingEnv};
use rustc_span::{DUMMY_SP, Span};
use std::collections::VecDeque;
use std::rc::Rc;

/// Bound of the functions that one call may reach.
const MOST_NODES: usize = 40_000;

/// Most statements of the MIR of a small function, with the functions that it calls. A statement
/// takes less than a nanosecond, and a join that is switched off about two.
const MOST_SMALL: usize = 150;

/// The effects of a function on its own, and its calls.
#[derive(Debug, Default)]
pub(crate) struct Facts<'tcx> {
    pub(crate) findings: Vec<Finding>,
    pub(crate) panic: Option<Place>,
    pub(crate) calls: Vec<(Instance<'tcx>, Span)>,
    pub(crate) has_loop: bool,
    /// A place at which the program itself decides not to return.
    pub(crate) stop: Option<Place>,
    /// A loop whose bound is not known.
    pub(crate) unbounded: Option<Place>,
    /// One that may not end.
    pub(crate) endless: Option<Place>,
    /// A place whose time or memory a number gives.
    pub(crate) sized: Option<Place>,
    /// Statements of the MIR.
    statements: usize,
    /// It allocates or frees memory, or its code is not read: it may take long without a loop.
    is_long: bool,
}

impl<'tcx> Facts<'tcx> {
    pub(crate) fn report(&mut self, kind: Kind, text: impl Into<String>, span: Span) {
        self.findings.push(Finding { kind, text: text.into(), span });
    }

    pub(crate) fn stop(&mut self, text: &str, span: Span) {
        if self.stop.is_none() {
            self.stop = Some(Place { text: text.into(), span });
        }
    }

    pub(crate) fn sized(&mut self, text: &str, span: Span) {
        if self.sized.is_none() {
            self.sized = Some(Place { text: text.into(), span });
        }
    }

    pub(crate) fn may_panic(&mut self, text: &str, span: Span) {
        if self.panic.is_none() {
            self.panic = Some(Place { text: text.into(), span });
        }
    }
}

/// The parts of a cycle of calls.
enum Cycle {
    /// Functions of the program.
    Calls,
    /// Destructors of a recursive type.
    Destructors,
}

/// The call graph of the crate and of the crates that it uses, built on demand.
pub(crate) struct Graph<'tcx> {
    pub(crate) tcx: TyCtxt<'tcx>,
    env: TypingEnv<'tcx>,
    facts: FxHashMap<(Instance<'tcx>, ty::ParamEnv<'tcx>), Rc<Facts<'tcx>>>,
    standard: FxHashMap<CrateNum, bool>,
    allocator: Option<String>,
}

impl<'tcx> Graph<'tcx> {
    pub(crate) fn new(tcx: TyCtxt<'tcx>) -> Graph<'tcx> {
        let all = std::iter::once(LOCAL_CRATE).chain(tcx.crates(()).iter().copied());
        let allocator = all
            .filter(|&krate| tcx.has_global_allocator(krate))
            .map(|krate| tcx.crate_name(krate).to_string())
            .next();
        Graph {
            tcx,
            env: TypingEnv::fully_monomorphized(),
            facts: FxHashMap::default(),
            standard: FxHashMap::default(),
            allocator,
        }
    }

    /// Selects the generic function whose type parameters the following instances mention.
    pub(crate) fn enter(&mut self, owner: DefId) {
        let generic = self.tcx.generics_of(owner).requires_monomorphization(self.tcx);
        self.env = if generic {
            TypingEnv::post_analysis(self.tcx, owner)
        } else {
            TypingEnv::fully_monomorphized()
        };
    }

    pub(crate) fn env(&self) -> TypingEnv<'tcx> {
        self.env
    }

    /// Whether a crate belongs to the standard library of the toolchain.
    pub(crate) fn is_standard(&mut self, krate: CrateNum) -> bool {
        let tcx = self.tcx;
        *self.standard.entry(krate).or_insert_with(|| {
            krate != LOCAL_CRATE && {
                let root = tcx.sess.opts.sysroot.path().join("lib").join("rustlib");
                let root = root.canonicalize().unwrap_or(root);
                tcx.used_crate_source(krate)
                    .paths()
                    .any(|path| path.canonicalize().is_ok_and(|path| path.starts_with(&root)))
            }
        })
    }

    /// Whether a macro of the standard library has made this code. The arguments of the macro do
    /// not count.
    pub(crate) fn is_of_standard_macro(&mut self, span: Span) -> bool {
        let made_by = span.ctxt().outer_expn_data().macro_def_id;
        made_by.is_some_and(|made_by| self.is_standard(made_by.krate))
    }

    /// Whether a macro of the standard library has made this code, unsafe parts of which are
    /// trusted: its arguments are evaluated on their own. (Code such as `&*pointer`, of which
    /// `assert_eq!` makes a part and its argument the rest, counts as unsafe code.)
    pub(crate) fn is_of_trusted_macro(&mut self, span: Span) -> bool {
        let Some(made_by) = span.ctxt().outer_expn_data().macro_def_id else { return false };
        let name = self.tcx.item_name(made_by);
        let is_trusted = name.as_str() == "vec" || name.as_str().starts_with("thread_local");
        is_trusted && self.is_standard(made_by.krate)
    }

    /// The path of a function without the implementations on it.
    pub(crate) fn path(&self, def: DefId) -> String {
        let mut path = self.tcx.crate_name(def.krate).to_string();
        for part in &self.tcx.def_path(def).data {
            if let Some(name) = part.data.get_opt_name() {
                path.push_str("::");
                path.push_str(name.as_str());
            }
        }
        path
    }

    /// The summary of a function of the standard library.
    pub(crate) fn summary(&mut self, def: DefId) -> Summary {
        if !self.is_standard(def.krate) {
            return Summary::Read;
        }
        summary::of(&self.path(def), self.tcx.is_mir_available(def))
    }

    /// The function that a call of `def` with these type arguments runs, if that is known.
    pub(crate) fn resolve(
        &self,
        def: DefId,
        args: ty::GenericArgsRef<'tcx>,
    ) -> Option<Instance<'tcx>> {
        Instance::try_resolve(self.tcx, self.env, def, args).ok().flatten()
    }

    /// The effects of a call of these functions.
    pub(crate) fn effects(
        &mut self,
        roots: impl IntoIterator<Item = (Instance<'tcx>, Span)>,
    ) -> Effects {
        self.effects_besides(roots, &[])
    }

    /// The effects of a call of these functions, without those of the calls of `left_out`.
    pub(crate) fn effects_besides(
        &mut self,
        roots: impl IntoIterator<Item = (Instance<'tcx>, Span)>,
        left_out: &[Instance<'tcx>],
    ) -> Effects {
        let mut effects = Effects::default();
        let mut queue: VecDeque<(Instance<'tcx>, Span)> = roots.into_iter().collect();
        let mut seen: FxHashSet<Instance<'tcx>> = queue.iter().map(|(node, _)| *node).collect();
        seen.extend(left_out);
        let first = queue.front().map(|(_, span)| *span);
        let (mut loops, mut own) = (false, false);
        while let Some((node, from)) = queue.pop_front() {
            if seen.len() > MOST_NODES {
                let text = format!("reaches more than {MOST_NODES} functions");
                effects.findings.push(Finding { kind: Kind::Unknown, text, span: from });
                break;
            }
            let facts = self.facts(node);
            let is_local = node.def_id().is_local() && matches!(node.def, InstanceKind::Item(_));
            let at = |span: Span| if is_local { span.source_callsite() } else { from };
            for finding in &facts.findings {
                if !effects.findings.iter().any(|known| known.kind == finding.kind) {
                    let span = at(finding.span);
                    effects.findings.push(Finding { span, ..finding.clone() });
                }
            }
            if let (None, Some(panic)) = (&effects.panic, &facts.panic) {
                effects.panic = Some(Place { text: panic.text.clone(), span: at(panic.span) });
            }
            for (known, new) in [
                (&mut effects.stop, &facts.stop),
                (&mut effects.unbounded, &facts.unbounded),
                (&mut effects.endless, &facts.endless),
                (&mut effects.sized, &facts.sized),
            ] {
                if let (None, Some(place)) = (&known, new) {
                    *known = Some(Place { text: place.text.clone(), span: at(place.span) });
                }
            }
            loops |= facts.has_loop;
            own |=
                !self.is_standard(node.def_id().krate) && matches!(node.def, InstanceKind::Item(_));
            for &(callee, span) in &facts.calls {
                // A function that reaches itself repeats, too.
                loops |= callee == node;
                if seen.insert(callee) {
                    queue.push_back((callee, at(span)));
                }
            }
        }
        left_out.iter().for_each(|node| {
            seen.remove(node);
        });
        let cycle = self.cycle(&seen);
        effects.is_work = loops && own || matches!(cycle, Some(Cycle::Calls));
        let recursive = Place { text: "is recursive".into(), span: first.unwrap_or(DUMMY_SP) };
        if let (None, Some(Cycle::Calls)) = (&effects.endless, &cycle) {
            effects.endless = Some(recursive.clone());
        }
        if let (None, Some(_)) = (&effects.unbounded, cycle) {
            effects.unbounded = Some(recursive);
        }
        effects
    }

    /// Whether a call of this function takes a few instructions, without the recursion through
    /// it: it and the functions that it calls have no loop, no other recursion, no allocation, and
    /// little code.
    pub(crate) fn is_small(&mut self, function: Instance<'tcx>) -> bool {
        let mut list = vec![function];
        let mut next = 0;
        let mut statements = 0;
        // The bound of the statements is one of the functions, too: each has a terminator.
        while let Some(&node) = list.get(next) {
            next += 1;
            let facts = self.facts(node);
            statements += facts.statements.max(1);
            if facts.has_loop || facts.is_long || statements > MOST_SMALL {
                return false;
            }
            for (callee, _) in &facts.calls {
                if callee.def_id() != function.def_id() && !list.contains(callee) {
                    list.push(*callee);
                }
            }
        }
        // Those that call the function again are parts of its recursion.
        let mut others: FxHashSet<Instance<'tcx>> = list.into_iter().skip(1).collect();
        loop {
            let count = others.len();
            let known = others.clone();
            others.retain(|node| {
                let facts = self.facts(*node);
                let mut callees = facts.calls.iter().map(|(callee, _)| callee);
                callees.all(|callee| callee.def_id() != function.def_id() && known.contains(callee))
            });
            if others.len() == count {
                return self.cycle(&others).is_none();
            }
        }
    }

    /// A cycle of calls with a part outside the standard library. Its own cycles are bounded by
    /// the sizes of collections.
    fn cycle(&mut self, nodes: &FxHashSet<Instance<'tcx>>) -> Option<Cycle> {
        let list: Vec<Instance<'tcx>> = nodes.iter().copied().collect();
        let number: FxHashMap<Instance<'tcx>, usize> =
            list.iter().enumerate().map(|(i, node)| (*node, i)).collect();
        let mut callees: Vec<Vec<usize>> = Vec::with_capacity(list.len());
        let mut callers: Vec<Vec<usize>> = vec![Vec::new(); list.len()];
        for (i, node) in list.iter().enumerate() {
            let facts = self.facts.get(&(*node, self.env.param_env));
            let calls = facts.into_iter().flat_map(|facts| &facts.calls);
            let to: Vec<usize> = calls.filter_map(|(to, _)| number.get(to).copied()).collect();
            to.iter().for_each(|&to| callers[to].push(i));
            callees.push(to);
        }
        // Functions that call none of the rest are in no cycle, nor are those that none calls.
        let mut is_left = vec![true; list.len()];
        for (from, to) in [(&callees, &callers), (&callers, &callees)] {
            let count = |i: usize| from[i].iter().filter(|&&other| is_left[other]).count();
            let mut open: Vec<usize> = (0..list.len()).map(count).collect();
            let mut ends: Vec<usize> =
                (0..list.len()).filter(|&i| is_left[i] && open[i] == 0).collect();
            while let Some(end) = ends.pop() {
                is_left[end] = false;
                for &other in &to[end] {
                    open[other] -= 1;
                    if is_left[other] && open[other] == 0 {
                        ends.push(other);
                    }
                }
            }
        }
        let rest: Vec<Instance<'tcx>> =
            list.into_iter().zip(is_left).filter(|(_, left)| *left).map(|(node, _)| node).collect();
        if rest.iter().any(|node| !self.is_standard(node.def_id().krate)) {
            return Some(Cycle::Calls);
        }
        let is_glue = |node: &Instance<'_>| matches!(node.def, InstanceKind::DropGlue(..));
        rest.iter().any(is_glue).then_some(Cycle::Destructors)
    }

    /// All functions that these functions reach; `None` if there are too many.
    pub(crate) fn reached(
        &mut self,
        roots: impl IntoIterator<Item = Instance<'tcx>>,
    ) -> Option<Vec<Instance<'tcx>>> {
        self.reached_besides(roots, &FxHashSet::default())
    }

    /// The same without those that are known already, and what only these reach.
    pub(crate) fn reached_besides(
        &mut self,
        roots: impl IntoIterator<Item = Instance<'tcx>>,
        known: &FxHashSet<Instance<'tcx>>,
    ) -> Option<Vec<Instance<'tcx>>> {
        let mut list: Vec<Instance<'tcx>> =
            roots.into_iter().filter(|root| !known.contains(root)).collect();
        let mut seen: FxHashSet<Instance<'tcx>> = list.iter().chain(known).copied().collect();
        let mut next = 0;
        while next < list.len() {
            if list.len() > 4 * MOST_NODES {
                return None;
            }
            let facts = self.facts(list[next]);
            next += 1;
            list.extend(facts.calls.iter().map(|(callee, _)| *callee).filter(|c| seen.insert(*c)));
        }
        Some(list)
    }

    /// The functions that a drop of a value of this type runs.
    pub(crate) fn drop_of(&self, ty: Ty<'tcx>, span: Span) -> Option<(Instance<'tcx>, Span)> {
        let def = self.tcx.require_lang_item(rustc_hir::LangItem::DropGlue, DUMMY_SP);
        let def = InstanceKind::DropGlue(def, Some(ty));
        ty.needs_drop(self.tcx, self.env)
            .then(|| (Instance { def, args: self.tcx.mk_args(&[ty.into()]) }, span))
    }

    pub(crate) fn facts(&mut self, node: Instance<'tcx>) -> Rc<Facts<'tcx>> {
        let key = (node, self.env.param_env);
        if let Some(known) = self.facts.get(&key) {
            return Rc::clone(known);
        }
        let facts = Rc::new(self.compute(node));
        self.facts.insert(key, Rc::clone(&facts));
        facts
    }

    fn compute(&mut self, node: Instance<'tcx>) -> Facts<'tcx> {
        let tcx = self.tcx;
        let mut facts = Facts::default();
        match node.def {
            InstanceKind::Item(def) => self.item(node, def, &mut facts),
            InstanceKind::Intrinsic(def) => self.intrinsic(node, def, &mut facts),
            InstanceKind::DropGlue(_, None) => {}
            InstanceKind::DropGlue(_, Some(ty)) => self.drop_glue(ty, &mut facts),
            InstanceKind::ReifyShim(def, _) | InstanceKind::VTableShim(def) => {
                facts.calls.push((Instance::new_raw(def, node.args), DUMMY_SP));
            }
            InstanceKind::ClosureOnceShim { .. } => {
                let closure = node.args.type_at(0);
                if let ty::Closure(def, args) = *closure.kind() {
                    facts.calls.push((Instance::new_raw(def, args), DUMMY_SP));
                } else {
                    facts.report(Kind::Async, "calls asynchronous code", DUMMY_SP);
                }
                facts.calls.extend(self.drop_of(closure, DUMMY_SP));
            }
            InstanceKind::FnPtrShim(_, ty) => match *ty.kind() {
                ty::FnDef(def, args) => {
                    crate::body::call(self, def, args, None, DUMMY_SP, &mut facts);
                }
                _ => facts.report(Kind::Dynamic, "calls through a pointer to a function", DUMMY_SP),
            },
            InstanceKind::CloneShim(_, ty) => self.clone_shim(ty, &mut facts),
            InstanceKind::Virtual(def, _) => {
                facts.is_long = true;
                match join::methods(self, def, node.args) {
                    Ok(methods) => {
                        facts.calls.extend(methods.into_iter().map(|method| (method, DUMMY_SP)));
                    }
                    Err(why) => {
                        let name = tcx.def_path_str(def);
                        let text = format!("calls `{name}` of a trait object, and {why}");
                        facts.report(Kind::Dynamic, text, DUMMY_SP);
                    }
                }
            }
            InstanceKind::ThreadLocalShim(_) => {
                facts.report(Kind::ThreadLocal, "uses a thread-local variable", DUMMY_SP);
            }
            InstanceKind::FnPtrAddrShim(..) => {
                facts.report(Kind::Address, "uses the address of a function", DUMMY_SP);
            }
            InstanceKind::ConstructCoroutineInClosureShim { .. }
            | InstanceKind::FutureDropPollShim(..)
            | InstanceKind::AsyncDropGlueCtorShim(..)
            | InstanceKind::AsyncDropGlue(..) => {
                facts.report(Kind::Async, "uses asynchronous code", DUMMY_SP);
            }
        }
        facts
    }

    fn item(&mut self, node: Instance<'tcx>, def: DefId, facts: &mut Facts<'tcx>) {
        let tcx = self.tcx;
        let name = || format!("`{}`", tcx.def_path_str(def));
        if matches!(tcx.def_kind(def), DefKind::Ctor(..)) {
            return;
        }
        let standard = self.is_standard(def.krate);
        let name_of = tcx.opt_item_name(def);
        if standard && name_of.is_some_and(|name| name.as_str() == "precondition_check") {
            // The conditions of unsafe functions, which the standard library keeps.
            return;
        }
        match self.summary(def) {
            Summary::Effect(kind, text) => {
                facts.is_long = true;
                facts.report(kind, format!("{text} ({})", name()), DUMMY_SP);
                return self.handed_over(node, facts);
            }
            Summary::Panics => {
                // The destructor of the value that the panic carries runs later.
                for ty in node.args.types() {
                    facts.calls.extend(self.drop_of(ty, DUMMY_SP));
                }
                return facts.may_panic("may panic", DUMMY_SP);
            }
            Summary::Pure => {
                facts.is_long = true;
                facts.may_panic(&format!("may panic in {}", name()), DUMMY_SP);
                return;
            }
            Summary::Read => {}
        }
        if tcx.is_foreign_item(def) {
            facts.is_long = true;
            let path = self.path(def);
            if standard && is_allocator(tcx, def) {
                if let Some(owner) = &self.allocator {
                    let text = format!("allocates with the allocator of the crate `{owner}`");
                    facts.report(Kind::Allocator, text, DUMMY_SP);
                }
            } else if !(standard && path.contains("::libm::")) {
                facts.report(Kind::Foreign, format!("calls the foreign {}", name()), DUMMY_SP);
            }
            return;
        }
        if tcx.is_coroutine(def) {
            return facts.report(Kind::Async, "runs asynchronous code", DUMMY_SP);
        }
        if !tcx.is_mir_available(def) {
            facts.is_long = true;
            let text = format!("calls {}, whose code is not available", name());
            return facts.report(Kind::Unknown, text, DUMMY_SP);
        }
        let body = tcx.instance_mir(node.def);
        facts.statements = body.basic_blocks.iter().map(|block| block.statements.len() + 1).sum();
        crate::body::read(self, node, body, standard, facts);
    }

    /// Adds code of the program that a function of the standard library may run, which is not
    /// followed itself.
    fn handed_over(&mut self, node: Instance<'tcx>, facts: &mut Facts<'tcx>) {
        facts.may_panic("may panic in the standard library", DUMMY_SP);
        for ty in node.args.types() {
            let mut parts = ty.walk();
            while let Some(part) = parts.next() {
                let Some(part) = part.as_type() else { continue };
                match *part.kind() {
                    ty::Closure(def, args) => {
                        parts.skip_current_subtree();
                        facts.calls.push((Instance::new_raw(def, args), DUMMY_SP));
                    }
                    ty::FnDef(def, args) => {
                        crate::body::call(self, def, args, None, DUMMY_SP, facts);
                    }
                    ty::Adt(adt, _) if self.is_standard(adt.did().krate) => {}
                    ty::Adt(..)
                    | ty::Param(_)
                    | ty::Alias(..)
                    | ty::Dynamic(..)
                    | ty::FnPtr(..)
                    | ty::Coroutine(..)
                    | ty::CoroutineClosure(..) => {
                        let text = format!("hands a `{part}` to `{}`", {
                            self.tcx.def_path_str(node.def_id())
                        });
                        facts.report(Kind::Dynamic, text, DUMMY_SP);
                    }
                    _ => {}
                }
            }
        }
    }

    fn intrinsic(&mut self, node: Instance<'tcx>, def: DefId, facts: &mut Facts<'tcx>) {
        let name = self.tcx.item_name(def);
        if name.as_str() == "abort" {
            // Unstable: only the standard library uses it, for conditions that cannot occur.
            facts.may_panic("may abort", DUMMY_SP);
        }
        if let Some(kind) = summary::of_intrinsic(name.as_str()) {
            facts.report(kind, format!("uses the intrinsic `{name}`"), DUMMY_SP);
        }
        // Runs its third argument, a function, when it does not run in the compiler.
        if name.as_str() == "const_eval_select" {
            match *node.args.type_at(2).kind() {
                ty::FnDef(def, args) => {
                    crate::body::call(self, def, args, None, DUMMY_SP, facts);
                }
                _ => facts.report(Kind::Dynamic, "selects a function at run time", DUMMY_SP),
            }
        }
    }

    /// Follows the fields of a value that is dropped.
    fn drop_glue(&mut self, ty: Ty<'tcx>, facts: &mut Facts<'tcx>) {
        let tcx = self.tcx;
        let mut inner: Vec<Ty<'tcx>> = Vec::new();
        match *ty.kind() {
            ty::Adt(adt, args) => {
                if adt.is_manually_drop() {
                    return;
                }
                if let Some(destructor) = adt.destructor(tcx) {
                    // The parameters of the implementation may have another order than those of
                    // the type, so the method of the trait is resolved.
                    match tcx.associated_item(destructor.did).trait_item_def_id() {
                        Some(method) => {
                            let args = tcx.mk_args(&[ty.into()]);
                            crate::body::call(self, method, args, None, DUMMY_SP, facts);
                        }
                        None => facts.report(Kind::Dynamic, "runs a destructor", DUMMY_SP),
                    }
                }
                if adt.is_box() {
                    inner.push(args.type_at(0));
                }
                if !adt.is_union() {
                    inner.extend(adt.all_fields().map(|field| {
                        self.normal(EarlyBinder::bind(field.ty(tcx, args).skip_norm_wip()))
                    }));
                }
            }
            ty::Tuple(parts) => inner.extend(parts),
            ty::Closure(_, args) => inner.extend(args.as_closure().upvar_tys()),
            ty::Array(element, _) | ty::Slice(element) => inner.push(element),
            ty::Dynamic(..) => match join::destructors(self, ty) {
                Ok(destructors) => facts.calls.extend(destructors),
                Err(why) => {
                    let text = format!("drops a trait object, and {why}");
                    facts.report(Kind::Dynamic, text, DUMMY_SP);
                }
            },
            ty::Param(_) | ty::Alias(..) => {
                let text = format!("drops a value of the type `{ty}`, which is not known here");
                facts.report(Kind::Dynamic, text, DUMMY_SP);
            }
            ty::Coroutine(..) | ty::CoroutineClosure(..) | ty::CoroutineWitness(..) => {
                facts.report(Kind::Async, "drops asynchronous code", DUMMY_SP);
            }
            _ => {}
        }
        for part in inner {
            facts.calls.extend(self.drop_of(part, DUMMY_SP));
        }
    }

    fn clone_shim(&mut self, ty: Ty<'tcx>, facts: &mut Facts<'tcx>) {
        let parts: Vec<Ty<'tcx>> = match *ty.kind() {
            ty::Tuple(parts) => parts.to_vec(),
            ty::Closure(_, args) => args.as_closure().upvar_tys().to_vec(),
            ty::Array(element, _) => vec![element],
            _ if ty.is_trivially_pure_clone_copy() => Vec::new(),
            _ => return facts.report(Kind::Dynamic, format!("clones a `{ty}`"), DUMMY_SP),
        };
        let clone = self.tcx.require_lang_item(rustc_hir::LangItem::Clone, DUMMY_SP);
        let method = self.tcx.associated_item_def_ids(clone)[0];
        for part in parts {
            let args = self.tcx.mk_args(&[part.into()]);
            crate::body::call(self, method, args, None, DUMMY_SP, facts);
        }
    }

    /// A type with its aliases resolved.
    pub(crate) fn normal(&self, ty: EarlyBinder<'tcx, Ty<'tcx>>) -> Ty<'tcx> {
        let ty = ty.instantiate_identity();
        let plain = ty.skip_norm_wip();
        self.tcx.try_normalize_erasing_regions(self.env, ty).unwrap_or(plain)
    }

    /// Whether values of this type may hold a mutable reference. Raw pointers do not count: unsafe
    /// code, which writes through them, is reported, or belongs to a collection that owns the
    /// memory.
    pub(crate) fn may_write(&self, ty: Ty<'tcx>) -> bool {
        self.holds(ty, false, &mut FxHashSet::default(), &|ty| {
            matches!(ty.kind(), ty::Ref(_, _, ty::Mutability::Mut))
                || matches!(ty.kind(), ty::Dynamic(..) | ty::Param(_) | ty::Alias(..))
        })
    }

    /// Whether a type or its parts pass the test. `through`: parts behind references count.
    fn holds(
        &self,
        ty: Ty<'tcx>,
        through: bool,
        seen: &mut FxHashSet<Ty<'tcx>>,
        test: &dyn Fn(Ty<'tcx>) -> bool,
    ) -> bool {
        if !seen.insert(ty) {
            return false;
        }
        if test(ty) || seen.len() > 2000 {
            return true;
        }
        match *ty.kind() {
            ty::Adt(adt, args) => {
                args.types().any(|arg| self.holds(arg, through, seen, test))
                    || adt.all_fields().any(|field| {
                        let ty = EarlyBinder::bind(field.ty(self.tcx, args).skip_norm_wip());
                        self.holds(self.normal(ty), through, seen, test)
                    })
            }
            ty::Tuple(parts) => parts.iter().any(|part| self.holds(part, through, seen, test)),
            ty::Closure(_, args) => {
                let mut parts = args.as_closure().upvar_tys().iter();
                parts.any(|part| self.holds(part, through, seen, test))
            }
            ty::Array(element, _) | ty::Slice(element) => self.holds(element, through, seen, test),
            ty::Ref(_, to, _) | ty::RawPtr(to, _) if through => self.holds(to, through, seen, test),
            // Behind a shared reference nothing can be written.
            _ => false,
        }
    }

    /// Whether a type has a formatter in it, which holds a trait object that no type shows.
    pub(crate) fn holds_formatter(&self, ty: Ty<'tcx>) -> bool {
        self.holds(ty, true, &mut FxHashSet::default(), &|ty| {
            ty.ty_adt_def().is_some_and(|adt| {
                self.tcx.lang_items().get(rustc_hir::LangItem::FormatArguments) == Some(adt.did())
                    || self.path(adt.did()).starts_with("core::fmt::")
                        && self.path(adt.did()) != "core::fmt::Error"
            })
        })
    }

    /// Whether a type shows a raw pointer or a pointer to a function.
    pub(crate) fn shows_pointer(&self, ty: Ty<'tcx>) -> bool {
        self.shows(ty, true)
    }

    /// `functions`: pointers to functions count.
    fn shows(&self, ty: Ty<'tcx>, functions: bool) -> bool {
        let mut parts = ty.walk();
        while let Some(part) = parts.next() {
            match part.as_type().map(Ty::kind) {
                Some(ty::RawPtr(..)) => return true,
                Some(ty::FnPtr(..)) if functions => return true,
                Some(ty::Adt(adt, _)) if self.path(adt.did()).starts_with("core::ptr::") => {
                    return true;
                }
                Some(ty::Closure(..)) => parts.skip_current_subtree(),
                _ => {}
            }
        }
        false
    }

    /// Whether a function with these type arguments returns a raw pointer.
    pub(crate) fn returns_pointer(&self, def: DefId, args: ty::GenericArgsRef<'tcx>) -> bool {
        let output = self.tcx.fn_sig(def).instantiate(self.tcx, args).skip_norm_wip().output();
        let output = self.tcx.instantiate_bound_regions_with_erased(output);
        self.shows(self.normal(EarlyBinder::bind(output)), false)
    }

    /// Whether this is a destructor that a crate outside the standard library defines.
    pub(crate) fn is_own_destructor(&mut self, node: Instance<'tcx>) -> bool {
        let tcx = self.tcx;
        let is_drop = match node.def {
            InstanceKind::Item(def) => tcx
                .opt_associated_item(def)
                .and_then(|item| item.trait_item_def_id())
                .and_then(|method| tcx.trait_of_assoc(method))
                .is_some_and(|of| Some(of) == tcx.lang_items().drop_trait()),
            _ => false,
        };
        is_drop && !self.is_standard(node.def_id().krate)
    }

    /// Whether an iterator ends after a number of steps that its creation fixes.
    pub(crate) fn is_finite(&mut self, ty: Ty<'tcx>) -> bool {
        let ty::Adt(adt, args) = *ty.kind() else { return false };
        if self.path(adt.did()).ends_with(&format!("::{}::Results", crate::trial::MODULE)) {
            // The loop of a pipeline, which goes on as long as the loop of the original.
            return true;
        }
        let is_known =
            self.is_standard(adt.did().krate) && summary::is_finite(&self.path(adt.did()));
        // The arguments of adapters are iterators, those of others are elements.
        let is_adapter = self.path(adt.did()).starts_with("core::iter::");
        is_known && (!is_adapter || args.types().all(|inner| self.is_finite(inner)))
    }

    /// Whether the loops of a function of the standard library end if the functions that it calls
    /// do: its types have no iterator that may not end.
    pub(crate) fn ends(&mut self, node: Instance<'tcx>) -> bool {
        let tcx = self.tcx;
        let next = tcx.require_lang_item(rustc_hir::LangItem::IteratorNext, DUMMY_SP);
        for ty in self.types_of(node) {
            let mut parts = ty.walk();
            while let Some(part) = parts.next() {
                let Some(part) = part.as_type() else { continue };
                if let ty::Closure(..) | ty::FnPtr(..) | ty::FnDef(..) | ty::Dynamic(..) =
                    part.kind()
                {
                    parts.skip_current_subtree();
                    continue;
                }
                let is_iterator = self.resolve(next, tcx.mk_args(&[part.into()])).is_some();
                if matches!(part.kind(), ty::Param(_) | ty::Alias(..))
                    || is_iterator && !self.is_finite(part)
                {
                    return false;
                }
            }
        }
        true
    }

    /// The types that a function mentions in its arguments, and that of its implementation.
    fn types_of(&self, node: Instance<'tcx>) -> Vec<Ty<'tcx>> {
        let tcx = self.tcx;
        let mut types: Vec<Ty<'tcx>> = node.args.types().collect();
        if let Some(of) = tcx.impl_of_assoc(node.def_id()) {
            types.push(tcx.type_of(of).instantiate(tcx, node.args).skip_norm_wip());
        }
        types
    }

    /// Whether a function of the standard library may go through a range of integers.
    pub(crate) fn mentions_range(&self, node: Instance<'tcx>) -> bool {
        self.types_of(node).into_iter().any(|ty| self.has_range(ty))
    }

    /// Whether a range is a part of this type.
    pub(crate) fn has_range(&self, ty: Ty<'tcx>) -> bool {
        let mut parts = ty.walk();
        while let Some(part) = parts.next() {
            match part.as_type().map(Ty::kind) {
                Some(ty::Adt(adt, _)) if summary::is_range(&self.path(adt.did())) => return true,
                Some(ty::Closure(..)) => parts.skip_current_subtree(),
                _ => {}
            }
        }
        false
    }

    /// Whether a value of this type shows that it holds something that the standard library might
    /// call: a trait object, or a pointer to a function. It calls no methods of traits of other
    /// crates.
    pub(crate) fn holds_values(&mut self, ty: Ty<'tcx>) -> bool {
        let mut parts = ty.walk();
        while let Some(part) = parts.next() {
            match part.as_type().map(Ty::kind) {
                // The one method of `Any` has one implementation.
                Some(ty::Dynamic(predicates, ..))
                    if predicates.principal_def_id().is_some_and(|of| {
                        self.path(of) == "core::any::Any" || !self.is_standard(of.krate)
                    }) => {}
                Some(ty::Dynamic(..) | ty::FnPtr(..)) => return true,
                // The arguments of a closure contain its signature as a pointer to a function.
                Some(ty::Closure(_, args)) => {
                    parts.skip_current_subtree();
                    if args.as_closure().upvar_tys().iter().any(|ty| self.holds_values(ty)) {
                        return true;
                    }
                }
                _ => {}
            }
        }
        false
    }
}

/// Whether a foreign function is a part of the interface to the allocator.
fn is_allocator(tcx: TyCtxt<'_>, def: DefId) -> bool {
    let name = tcx.item_name(def);
    name.as_str().starts_with("__rust_") || name.as_str().starts_with("__rdl_")
}

/// The body of a function of this crate, if it has one.
pub(crate) fn body_of<'tcx>(tcx: TyCtxt<'tcx>, def: DefId) -> Option<&'tcx mir::Body<'tcx>> {
    let is_function =
        matches!(tcx.def_kind(def), DefKind::Fn | DefKind::AssocFn | DefKind::Closure);
    (is_function && tcx.is_mir_available(def)).then(|| tcx.instance_mir(InstanceKind::Item(def)))
}
