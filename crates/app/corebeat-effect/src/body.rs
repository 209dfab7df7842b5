//! The effects of the MIR of one function.
//!
//! Memory that safe code reads and writes through references is not reported: the borrow checker
//! judges the rewritten program, and accepts it only if no closure writes what another accesses.
//! Everything that the borrow checker does not see is reported: values that change behind a shared
//! reference, statics, thread-local variables, unsafe operations, foreign and unknown code.

use crate::effect::{Kind, Place};
use crate::graph::{Facts, Graph};
use crate::join;
use crate::summary::{self, Summary};
use rustc_data_structures::fx::FxHashSet;
use rustc_hir::def_id::DefId;
use rustc_middle::mir::visit::{PlaceContext, Visitor};
use rustc_middle::mir::{
    self, AssertKind, BasicBlock, CastKind, Local, Location, NonDivergingIntrinsic, Operand,
    ProjectionElem, Rvalue, StatementKind, TerminatorKind,
};
use rustc_middle::ty::adjustment::PointerCoercion;
use rustc_middle::ty::vtable::VtblEntry;
use rustc_middle::ty::{self, EarlyBinder, GenericArgsRef, Instance, InstanceKind, Ty, TyCtxt};
use rustc_span::Span;

/// Adds what the body of `node` does to `facts`. `standard`: it belongs to the standard library,
/// whose unsafe code is trusted.
pub(crate) fn read<'tcx>(
    graph: &mut Graph<'tcx>,
    node: Instance<'tcx>,
    body: &'tcx mir::Body<'tcx>,
    standard: bool,
    facts: &mut Facts<'tcx>,
) {
    let boxes = if standard { FxHashSet::default() } else { pointers_of_boxes(graph.tcx, body) };
    let mut reader = Reader { graph, node, body, standard, boxes, facts, cells: None };
    reader.loops();
    reader.visit_body(body);
    if let Some(span) = reader.cells {
        let text = "uses a cell inside the standard library";
        reader.facts.report(Kind::Cell, text, span);
    }
}

/// The locals that hold the pointer of a `Box`: the compiler has replaced `*b` by a dereference of
/// them, which is as safe as the box.
fn pointers_of_boxes<'tcx>(tcx: TyCtxt<'tcx>, body: &mir::Body<'tcx>) -> FxHashSet<Local> {
    let mut found = FxHashSet::default();
    let mut other = FxHashSet::default();
    for block in body.basic_blocks.iter() {
        for statement in &block.statements {
            let StatementKind::Assign(assign) = &statement.kind else { continue };
            let (to, value) = &**assign;
            let Some(local) = to.as_local() else { continue };
            if !body.local_decls[local].ty.is_raw_ptr() {
                continue;
            }
            let of_box = match value {
                Rvalue::Cast(CastKind::Transmute, Operand::Copy(from) | Operand::Move(from), _) => {
                    is_pointer_of_box(tcx, body, *from)
                }
                _ => false,
            };
            if of_box {
                found.insert(local);
            } else {
                other.insert(local);
            }
        }
    }
    found.retain(|local| !other.contains(local));
    found
}

/// Whether a place is the `NonNull` in the `Unique` of a box.
fn is_pointer_of_box<'tcx>(
    tcx: TyCtxt<'tcx>,
    body: &mir::Body<'tcx>,
    place: mir::Place<'tcx>,
) -> bool {
    let count = place.projection.len();
    let Some(outer) = count.checked_sub(2) else { return false };
    let fields = place.projection[outer..]
        .iter()
        .all(|part| matches!(part, ProjectionElem::Field(index, _) if index.as_u32() == 0));
    let base = mir::PlaceRef { local: place.local, projection: &place.projection[..outer] };
    fields && base.ty(body, tcx).ty.is_box()
}

struct Reader<'a, 'tcx> {
    graph: &'a mut Graph<'tcx>,
    node: Instance<'tcx>,
    body: &'tcx mir::Body<'tcx>,
    standard: bool,
    boxes: FxHashSet<Local>,
    facts: &'a mut Facts<'tcx>,
    cells: Option<Span>,
}

impl<'tcx> Reader<'_, 'tcx> {
    /// The type with the type arguments of the node.
    fn exact(&self, ty: Ty<'tcx>) -> Ty<'tcx> {
        let bound = EarlyBinder::bind(ty);
        self.node
            .try_instantiate_mir_and_normalize_erasing_regions(
                self.graph.tcx,
                self.graph.env(),
                bound,
            )
            .unwrap_or(ty)
    }

    fn span(&self, location: Location) -> Span {
        self.body.source_info(location).span
    }

    /// Whether functions that come as values may be called here: see [`summary::formats`].
    fn may_call_values(&self) -> bool {
        self.standard
            && self.node.args.types().next().is_none()
            && summary::formats(&self.graph.path(self.node.def_id()))
    }

    /// Finds loops, those without a known bound, and those without an end.
    fn loops(&mut self) {
        let body = self.body;
        let path = self.graph.path(self.node.def_id());
        if path.contains(&format!("::{}::", crate::trial::MODULE)) {
            // Stands for the runtime, whose loops end.
            return;
        }
        let dominators = body.basic_blocks.dominators();
        let mut returns: FxHashSet<BasicBlock> = FxHashSet::default();
        let mut queue: Vec<BasicBlock> = Vec::new();
        for (block, data) in body.basic_blocks.iter_enumerated() {
            if let TerminatorKind::Return | TerminatorKind::TailCall { .. } = data.terminator().kind
            {
                returns.insert(block);
                queue.push(block);
            }
        }
        while let Some(block) = queue.pop() {
            let before = &body.basic_blocks.predecessors()[block];
            queue.extend(before.iter().copied().filter(|block| returns.insert(*block)));
        }
        for (from, block) in mir::traversal::reachable(body) {
            // A back edge goes to a block that dominates its source.
            for to in block.terminator().successors().filter(|to| dominators.dominates(*to, from)) {
                let span = block.terminator().source_info.span;
                self.facts.has_loop = true;
                if !returns.contains(&from) && !block.is_cleanup && !self.standard {
                    self.facts.stop("contains a loop without an end", span);
                }
                let bound = self.bound(to);
                let is_sized = match bound {
                    Some(iterator) => self.graph.has_range(iterator),
                    None => self.graph.mentions_range(self.node),
                };
                if is_sized && (self.standard || bound.is_some()) {
                    let text = "contains a loop over a range of numbers";
                    self.facts.sized(text, span);
                }
                if self.facts.endless.is_none() && bound.is_none() {
                    let text = "contains a loop whose bound is not known".into();
                    let place = Place { text, span };
                    if !self.standard || !self.graph.ends(self.node) {
                        self.facts.endless = Some(place.clone());
                    }
                    self.facts.unbounded.get_or_insert(place);
                }
            }
        }
        // Cycles that no block dominates: only the compiler of another language makes them.
    }

    /// The iterator of the loop with this head, if it is `for` over one that ends.
    fn bound(&mut self, mut head: BasicBlock) -> Option<Ty<'tcx>> {
        let tcx = self.graph.tcx;
        for _ in 0..8 {
            let terminator = self.body.basic_blocks[head].terminator();
            match &terminator.kind {
                TerminatorKind::Goto { target } => head = *target,
                TerminatorKind::Call { func, args, .. } => {
                    let next = tcx.lang_items().get(rustc_hir::LangItem::IteratorNext);
                    let is_next = match *func.ty(self.body, tcx).kind() {
                        ty::FnDef(def, _) => Some(def) == next,
                        _ => false,
                    };
                    let is_for = terminator.source_info.span.desugaring_kind()
                        == Some(rustc_span::DesugaringKind::ForLoop);
                    let [iterator] = &args[..] else { return None };
                    let ty = self.exact(iterator.node.ty(self.body, tcx));
                    let ty = ty.builtin_deref(true).unwrap_or(ty);
                    return (is_next && is_for && self.graph.is_finite(ty)).then_some(ty);
                }
                _ => return None,
            }
        }
        None
    }

    fn call(&mut self, func: &Operand<'tcx>, args: &[Ty<'tcx>], span: Span) {
        let tcx = self.graph.tcx;
        match *self.exact(func.ty(self.body, tcx)).kind() {
            ty::FnDef(def, generics) => {
                let caller = Caller { standard: self.standard, values: self.may_call_values() };
                let is_derived = self.graph.is_of_standard_macro(span)
                    && summary::is_derived(&self.graph.path(def));
                if !self.standard && !is_derived {
                    let inputs: Vec<Ty<'tcx>> = args.iter().map(|ty| self.exact(*ty)).collect();
                    self.hand_over(def, &inputs, span);
                }
                call(self.graph, def, generics, Some(caller), span, self.facts);
            }
            _ if self.may_call_values() => {
                self.facts.may_panic("may panic in a function that it receives", span);
            }
            _ => {
                let text = "calls through a pointer to a function";
                self.facts.report(Kind::Dynamic, text, span);
            }
        }
    }

    /// Reports values that the standard library might call.
    fn hand_over(&mut self, def: DefId, inputs: &[Ty<'tcx>], span: Span) {
        let tcx = self.graph.tcx;
        if self.graph.is_standard(def.krate)
            && summary::may_call_values(tcx.crate_name(def.krate).as_str())
            && inputs.iter().any(|ty| self.graph.holds_values(*ty))
        {
            let text = format!(
                "passes a trait object or a pointer to a function to `{}`",
                tcx.def_path_str(def)
            );
            self.facts.report(Kind::Dynamic, text, span);
        }
    }

    /// Adds the methods of a trait object that is created here: other code may call them.
    fn unsize(&mut self, from: Ty<'tcx>, to: Ty<'tcx>, span: Span) {
        let tcx = self.graph.tcx;
        let (from, to) = tails(self.graph, from, to);
        let ty::Dynamic(predicates, ..) = to.kind() else { return };
        if from.is_trait() {
            return;
        }
        if let Some(principal) = predicates.principal() {
            let of = principal.with_self_ty(tcx, from);
            let of = tcx.instantiate_bound_regions_with_erased(of);
            if ty::TypeVisitableExt::has_param(&of) {
                let text = format!("makes a trait object of `{from}`, which is not known here");
                return self.facts.report(Kind::Dynamic, text, span);
            }
            for entry in tcx.vtable_entries(of) {
                if let VtblEntry::Method(method) = entry {
                    self.facts.calls.push((*method, span));
                }
            }
        }
        self.facts.calls.extend(self.graph.drop_of(from, span));
    }

    fn reject_unsafe(&mut self, text: &str, span: Span) {
        if !self.standard && !self.graph.is_of_trusted_macro(span) {
            self.facts.report(Kind::Unsafe, text, span);
        }
    }

    fn static_used(&mut self, def: DefId, span: Span) {
        let tcx = self.graph.tcx;
        let name = tcx.item_name(def);
        if tcx.is_thread_local_static(def) {
            let text = format!("uses the thread-local variable `{name}`");
            return self.facts.report(Kind::ThreadLocal, text, span);
        }
        if tcx.is_foreign_item(def) {
            let text = format!("uses the foreign static `{name}`");
            return self.facts.report(Kind::Foreign, text, span);
        }
        let ty = tcx.type_of(def).instantiate_identity().skip_norm_wip();
        let env = ty::TypingEnv::fully_monomorphized();
        if tcx.is_mutable_static(def) || !ty.is_freeze(tcx, env) {
            let text = format!("uses the static `{name}`, which can change");
            self.facts.report(Kind::Static, text, span);
        }
    }
}

/// The unsized parts in which the pointees of two pointers differ.
fn tails<'tcx>(graph: &Graph<'tcx>, from: Ty<'tcx>, to: Ty<'tcx>) -> (Ty<'tcx>, Ty<'tcx>) {
    let tcx = graph.tcx;
    match (from.builtin_deref(true), to.builtin_deref(true)) {
        (Some(a), Some(b)) => tcx.struct_lockstep_tails_for_codegen(a, b, graph.env()),
        _ => match (from.kind(), to.kind()) {
            // A smart pointer: the one field that differs.
            (ty::Adt(a, args_a), ty::Adt(b, args_b)) if a == b => {
                let field = |field: &ty::FieldDef, args| {
                    graph.normal(EarlyBinder::bind(field.ty(tcx, args).skip_norm_wip()))
                };
                let pairs = a.all_fields().map(|f| (field(f, args_a), field(f, args_b)));
                match pairs.into_iter().find(|(a, b)| a != b) {
                    Some((a, b)) => tails(graph, a, b),
                    None => (from, to),
                }
            }
            _ => (from, to),
        },
    }
}

/// The calling code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    /// The standard library, whose unsafe code is trusted.
    standard: bool,
    /// Code that may call functions that it receives as values.
    values: bool,
}

/// Adds a call of `def` to `facts`. Without a caller, the compiler itself inserts the call.
pub(crate) fn call<'tcx>(
    graph: &mut Graph<'tcx>,
    def: DefId,
    args: GenericArgsRef<'tcx>,
    caller: Option<Caller>,
    span: Span,
    facts: &mut Facts<'tcx>,
) {
    let tcx = graph.tcx;
    let is_safe = match tcx.def_kind(def) {
        rustc_hir::def::DefKind::Ctor(..) => return,
        _ => tcx.fn_sig(def).skip_binder().skip_binder().safety().is_safe(),
    };
    if !is_safe
        && caller.is_some_and(|caller| !caller.standard)
        && !graph.is_of_trusted_macro(span)
        && !(graph.is_standard(def.krate) && summary::is_inserted(&graph.path(def)))
    {
        let text = format!("calls the unsafe `{}`", tcx.def_path_str(def));
        return facts.report(Kind::Unsafe, text, span);
    }
    let Some(callee) = graph.resolve(def, args) else {
        match join::methods(graph, def, args) {
            Ok(methods) => facts.calls.extend(methods.into_iter().map(|method| (method, span))),
            Err(why) => {
                let name = tcx.def_path_str_with_args(def, args);
                let text = format!("calls `{name}`, whose implementation is not known here: {why}");
                facts.report(Kind::Dynamic, text, span);
            }
        }
        return;
    };
    if caller.is_some_and(|caller| !caller.standard) {
        // The callee, and functions that it receives as values of types of their own.
        limits(graph, callee.def_id(), span, facts);
        for part in args.types().flat_map(Ty::walk) {
            if let Some(ty::FnDef(handed, _)) = part.as_type().map(Ty::kind) {
                limits(graph, *handed, span, facts);
            }
        }
    }
    if caller.is_some_and(|caller| !caller.standard) && graph.is_standard(def.krate) {
        let path = graph.path(callee.def_id());
        if path.starts_with("core::ptr::") || args.types().any(|ty| graph.shows_pointer(ty)) {
            let text = format!("may use an address (`{}`)", tcx.def_path_str(def));
            facts.report(Kind::Address, text, span);
        } else if graph.returns_pointer(def, args) && !graph.is_of_trusted_macro(span) {
            let text = format!("creates a raw pointer (`{}`)", tcx.def_path_str(def));
            facts.report(Kind::Address, text, span);
        }
    }
    if let InstanceKind::Virtual(..) = callee.def
        && caller.is_some_and(|caller| caller.values)
    {
        return facts.may_panic("may panic in a trait object", span);
    }
    facts.calls.push((callee, span));
}

/// Adds what a call of this function of the standard library by the program decides.
fn limits<'tcx>(graph: &mut Graph<'tcx>, def: DefId, span: Span, facts: &mut Facts<'tcx>) {
    if !graph.is_standard(def.krate) {
        return;
    }
    let path = graph.path(def);
    if summary::is_check(&path) {
        facts.stop("may panic at a check of the program", span);
    }
    if summary::is_sized(&path) {
        let text = format!("needs memory by a number (`{}`)", graph.tcx.def_path_str(def));
        facts.sized(&text, span);
    }
}

impl<'tcx> Visitor<'tcx> for Reader<'_, 'tcx> {
    fn visit_place(&mut self, place: &mir::Place<'tcx>, context: PlaceContext, at: Location) {
        let tcx = self.graph.tcx;
        for (base, part) in place.iter_projections() {
            let ty = base.ty(self.body, tcx).ty;
            match part {
                ProjectionElem::Deref if ty.is_raw_ptr() => {
                    let of_box = base.as_local().is_some_and(|local| self.boxes.contains(&local));
                    if !of_box {
                        self.reject_unsafe("dereferences a raw pointer", self.span(at));
                    }
                }
                ProjectionElem::Field(..) if ty.is_union() => {
                    self.reject_unsafe("accesses a field of a union", self.span(at));
                }
                ProjectionElem::Field(_, field) if self.standard => self.cell(field, at),
                _ => {}
            }
        }
        self.super_place(place, context, at);
    }

    fn visit_local(&mut self, local: Local, _: PlaceContext, at: Location) {
        if self.standard {
            let ty = self.body.local_decls[local].ty;
            self.cell(ty.builtin_deref(true).unwrap_or(ty), at);
        }
    }

    fn visit_rvalue(&mut self, value: &Rvalue<'tcx>, at: Location) {
        let tcx = self.graph.tcx;
        let span = self.span(at);
        match value {
            Rvalue::ThreadLocalRef(def) => {
                let text = format!("uses the thread-local variable `{}`", tcx.item_name(*def));
                self.facts.report(Kind::ThreadLocal, text, span);
            }
            Rvalue::Cast(CastKind::Transmute, from, _) => {
                let of_box = from.place().is_some_and(|p| is_pointer_of_box(tcx, self.body, p));
                if !of_box {
                    self.reject_unsafe("transmutes a value", span);
                }
            }
            Rvalue::Cast(CastKind::PointerCoercion(kind, _), from, to) => {
                let from = self.exact(from.ty(self.body, tcx));
                match (kind, from.kind()) {
                    (PointerCoercion::Unsize, _) => {
                        let to = self.exact(*to);
                        self.unsize(from, to, span);
                    }
                    (PointerCoercion::ReifyFnPointer(_), ty::FnDef(def, args)) => {
                        call(self.graph, *def, args, None, span, self.facts);
                    }
                    (PointerCoercion::ClosureFnPointer(_), ty::Closure(def, args)) => {
                        self.facts.calls.push((Instance::new_raw(*def, args), span));
                    }
                    _ => {}
                }
            }
            Rvalue::RawPtr(kind, _)
                if !self.standard
                    && *kind != mir::RawPtrKind::FakeForPtrMetadata
                    && !self.graph.is_of_trusted_macro(span) =>
            {
                // Lifetimes do not bound it: a closure could end its target too early.
                self.facts.report(Kind::Address, "creates a raw pointer", span);
            }
            Rvalue::Cast(CastKind::PointerExposeProvenance, ..) if !self.standard => {
                self.facts.report(Kind::Address, "uses the address of a value", span);
            }
            Rvalue::BinaryOp(_, operands) if !self.standard => {
                let ty = self.exact(operands.0.ty(self.body, tcx));
                if let ty::RawPtr(..) | ty::FnPtr(..) = ty.kind() {
                    self.facts.report(Kind::Address, "compares addresses", span);
                }
            }
            Rvalue::WrapUnsafeBinder(..) => self.reject_unsafe("wraps an unsafe binder", span),
            Rvalue::Aggregate(kind, _) => {
                if let mir::AggregateKind::Coroutine(..)
                | mir::AggregateKind::CoroutineClosure(..) = **kind
                {
                    self.facts.report(Kind::Async, "creates asynchronous code", span);
                }
            }
            _ => {}
        }
        self.super_rvalue(value, at);
    }

    fn visit_const_operand(&mut self, constant: &mir::ConstOperand<'tcx>, at: Location) {
        if let Some(def) = constant.check_static_ptr(self.graph.tcx) {
            self.static_used(def, self.span(at));
        }
    }

    fn visit_statement(&mut self, statement: &mir::Statement<'tcx>, at: Location) {
        if let StatementKind::Intrinsic(intrinsic) = &statement.kind
            && let NonDivergingIntrinsic::CopyNonOverlapping(_) = **intrinsic
        {
            self.reject_unsafe("copies memory through raw pointers", self.span(at));
        }
        self.super_statement(statement, at);
    }

    fn visit_terminator(&mut self, terminator: &mir::Terminator<'tcx>, at: Location) {
        let tcx = self.graph.tcx;
        let span = terminator.source_info.span;
        match &terminator.kind {
            TerminatorKind::Call { func, args, .. }
            | TerminatorKind::TailCall { func, args, .. } => {
                let args: Vec<Ty<'tcx>> =
                    args.iter().map(|arg| arg.node.ty(self.body, tcx)).collect();
                self.call(func, &args, span);
            }
            TerminatorKind::Drop { place, .. } => {
                let ty = self.exact(place.ty(self.body, tcx).ty);
                self.facts.calls.extend(self.graph.drop_of(ty, span));
            }
            TerminatorKind::Assert { msg, .. } => {
                let text = match **msg {
                    AssertKind::BoundsCheck { .. } => "may panic: the index may be out of bounds",
                    AssertKind::Overflow(..) | AssertKind::OverflowNeg(_) => {
                        "may panic: the arithmetic may overflow"
                    }
                    AssertKind::DivisionByZero(_) | AssertKind::RemainderByZero(_) => {
                        "may panic: the divisor may be zero"
                    }
                    _ => "may panic",
                };
                self.facts.may_panic(text, span);
            }
            TerminatorKind::InlineAsm { .. } => {
                self.facts.report(Kind::Unsafe, "runs assembly code", span);
            }
            TerminatorKind::Yield { .. } | TerminatorKind::CoroutineDrop => {
                self.facts.report(Kind::Async, "runs asynchronous code", span);
            }
            _ => {}
        }
        self.super_terminator(terminator, at);
    }
}

impl<'tcx> Reader<'_, 'tcx> {
    /// Detects that the standard library handles a cell outside the modules that
    /// [`summary`](crate::summary) names. `ty` has no type arguments of the caller: a cell in a
    /// vector is not accessed by the code of the vector.
    fn cell(&mut self, ty: Ty<'tcx>, at: Location) {
        let ty::Adt(adt, _) = ty.kind() else { return };
        let is_cell = adt.is_unsafe_cell() || {
            let path = self.graph.path(adt.did());
            ["core::cell::", "core::sync::", "std::sync::"].iter().any(|m| path.starts_with(m))
        };
        if is_cell && self.cells.is_none() {
            self.cells = Some(self.span(at));
        }
    }
}

/// The summary of the callee, for searches that look for functions by their path.
pub(crate) fn summary_of<'tcx>(graph: &mut Graph<'tcx>, node: Instance<'tcx>) -> Summary {
    match node.def {
        InstanceKind::Item(def) => graph.summary(def),
        _ => Summary::Read,
    }
}
