//! The rules by which two regions may overlap, and by which the iterations of a loop may.
//!
//! A region is a closure of the rewritten program. The compiler has accepted it: no region writes
//! memory that another accesses through references, and values that change threads are `Send`. In
//! addition:
//!
//! 1. The second region, which may run on another thread and before its turn, has no effects
//!    besides memory that it owns or borrows. The first may have effects, which then keep their
//!    order, unless they are opaque. Iterations of a loop have none.
//!    The first of two operands of an expression has none, because its temporaries end earlier.
//!    No region has code that shows the closure around it (the place or name of code, addresses)
//!    or that handles panics. The values that the first one takes are dropped without effects.
//! 2. If the first region may panic, the second leaves no trace: it writes only memory that no code
//!    reads after the panic, and its result has a destructor without effects. The runtime passes on
//!    the first panic in the order of the sequential program.
//! 3. If the first region decides not to return, the second has only loops with known bounds.
//! 4. If the region that another thread may run may panic, the program has no hook of panics.
//!
//! In a pipeline the first region is what later iterations run early. The second one is the rest of
//! the loop, which stays on its thread, may have effects, and may end the loop in any iteration.
//!
//! In a scope the first region is a future, which another thread may run, and after its turn. The
//! second one stays on its thread. So the first has no effects, and the second may have effects if
//! the first returns, in any case.

use crate::effect::{Effects, Place};
use crate::fault;
use crate::graph::{Graph, body_of};
use crate::trial::Site;
use crate::unwinding::{self, Program};
use rustc_hir::LangItem;
use rustc_hir::def_id::DefId;

use rustc_middle::hir::place::{PlaceBase, ProjectionKind};
use rustc_middle::mir::TerminatorKind;
use rustc_middle::ty::{self, GenericArgsRef, Instance, Ty, UpvarCapture};
use rustc_span::Span;

/// Why regions must stay sequential.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) text: String,
    pub(crate) span: Option<Span>,
}

impl Refusal {
    pub(crate) fn new(text: String, span: Span) -> Refusal {
        Refusal { text, span: Some(span) }
    }
}

/// The treatment of panics by the program: computed once for a crate.
pub(crate) type Observer = Option<Program>;

/// A region of the program that would run.
struct Region<'a, 'tcx> {
    closure: Ty<'tcx>,
    effects: Effects,
    shown: &'a str,
}

/// Judges a call of a function of the runtime with these type arguments. Returns what is assumed.
pub(crate) fn judge<'tcx>(
    graph: &mut Graph<'tcx>,
    owner: DefId,
    name: &str,
    args: GenericArgsRef<'tcx>,
    site: &Site,
    span: Span,
    observer: &mut Observer,
) -> Result<Vec<String>, Refusal> {
    let types: Vec<Ty<'tcx>> = args.types().collect();
    match (name, &types[..], &site.shown[..]) {
        ("join", [first, second, _, result], [a, b]) => {
            let a = Region { closure: *first, effects: region(graph, *first, span)?, shown: a };
            let b = Region { closure: *second, effects: region(graph, *second, span)?, shown: b };
            pair(&a.effects, a.shown, &b.effects, b.shown)?;
            if site.is_expression
                && let Some(finding) = a.effects.first()
            {
                // Temporaries of an operand live until the end of the statement, those of a closure
                // until its end.
                let text = format!("`{}` {}", a.shown, finding.text);
                return Err(Refusal::new(text, finding.span));
            }
            taken(graph, &a, span)?;
            let assumed = ends(&a, &b);
            if fault::is_planted("panic") {
                return Ok(assumed);
            }
            steady(graph, &b, span)?;
            let promised = hook(graph, owner, &b.effects, b.shown, observer)?;
            bounded(&a.effects, a.shown, &b.effects, b.shown)?;
            let hidden = unseen(graph, owner, (&a, &b), Some(*result), observer)?;
            Ok([assumed, promised, hidden].concat())
        }
        ("scope", [_, body], [a, b]) => {
            let (first, own) = future_in(graph, *body)
                .ok_or_else(|| Refusal::new("is not a scope with one future".into(), span))?;
            let a = Region { closure: first, effects: region(graph, first, span)?, shown: a };
            let effects = region_besides(graph, *body, span, &own)?;
            let b = Region { closure: *body, effects, shown: b };
            // The future may run on another thread, and after the statements behind it.
            pair(&b.effects, b.shown, &a.effects, a.shown)?;
            overtaken(&a.effects, a.shown, &b.effects)?;
            taken(graph, &b, span)?;
            let assumed = ends(&a, &b);
            if fault::is_planted("panic") {
                return Ok(assumed);
            }
            steady(graph, &a, span)?;
            let mut promised = hook(graph, owner, &a.effects, a.shown, observer)?;
            if a.effects.panic.is_some() {
                // The variables of the group are dropped while that panic leaves it.
                steady(graph, &b, span)?;
            }
            if let Some(end) = end_of(&a.effects) {
                // A panic of the group runs the hook although the future does not return.
                let place = format!("before `{}` ends, which {}", a.shown, end.text);
                let again = observed(graph, owner, &b.effects, b.shown, observer, &place)?;
                promised.extend(again.into_iter().filter(|_| a.effects.panic.is_none()));
            }
            bounded(&a.effects, a.shown, &b.effects, b.shown)?;
            let hidden = unseen(graph, owner, (&a, &b), None, observer)?;
            Ok([assumed, promised, hidden].concat())
        }
        ("pipeline", [list, items, item, result, _, first, rest], [a, b]) => {
            let types = [*list, *items, *item, *result];
            let first = Region { closure: *first, effects: region(graph, *first, span)?, shown: a };
            let rest = Region { closure: *rest, effects: region(graph, *rest, span)?, shown: b };
            pipeline(graph, owner, types, (&first, &rest), site, span, observer)
        }
        ("map", [items, _, function], _)
        | ("for_each", [items, function], _)
        | ("sum" | "reduce", [items, _, function, _], _) => {
            let shown = site.shown.first().map_or("the loop", String::as_str);
            let mut effects = region(graph, *function, span)?;
            if let ("reduce", [.., operation]) = (name, &types[..]) {
                effects.append(region(graph, *operation, span)?);
            }
            if let Some(finding) = effects.first() {
                let text = format!("`{shown}` {}", finding.text);
                return Err(Refusal::new(text, finding.span));
            }
            let when = "also in iterations behind one that panics or does not return";
            let mut assumed = if effects.unbounded.is_some() {
                vec![format!("`{shown}` ends, and does not overflow its stack, {when}")]
            } else {
                numbers(&effects, &effects, shown, when)
            };
            if types[1].is_floating_point() {
                let text = "a sum or product of floating-point numbers in another order, which also \
                            depends on the number of threads and their load (`--reassociate`)";
                assumed.push(text.into());
            }
            if fault::is_planted("panic") {
                return Ok(assumed);
            }
            let iteration = Region { closure: *function, effects: effects.clone(), shown };
            steady(graph, &iteration, span)?;
            assumed.extend(hook(graph, owner, &effects, shown, observer)?);
            bounded(&effects, shown, &effects, shown)?;
            let Some(panic) = effects.panic else { return Ok(assumed) };
            if let "map" | "reduce" = name {
                discarded(graph, types[1], shown, &panic)?;
            }
            if matches!(items.kind(), ty::Ref(_, _, ty::Mutability::Mut)) || writes(graph, *items) {
                let program = search(graph, owner, observer);
                if let Some(reason) = program.observer {
                    let text = format!(
                        "`{shown}` {}, and later elements would be changed already: {reason}",
                        panic.text
                    );
                    return Err(Refusal::new(text, panic.span));
                }
                assumed.extend(program.trusts_no_catch.then(|| NO_CATCH.to_owned()));
            }
            Ok(assumed)
        }
        _ => Err(Refusal::new("is not a known form".into(), span)),
    }
}

/// Judges a loop whose iterations have a first part, which may run on another thread and before the
/// rest of earlier iterations. Items are taken then, too.
fn pipeline<'tcx>(
    graph: &mut Graph<'tcx>,
    owner: DefId,
    [list, items, item, result]: [Ty<'tcx>; 4],
    (first, rest): (&Region<'_, 'tcx>, &Region<'_, 'tcx>),
    site: &Site,
    span: Span,
    observer: &mut Observer,
) -> Result<Vec<String>, Refusal> {
    pair(&rest.effects, rest.shown, &first.effects, first.shown)?;
    taken(graph, first, span)?;
    taken(graph, rest, span)?;
    let taking = taking(graph, list, items, span)?;
    if let Some(finding) = taking.first().filter(|_| !fault::is_planted("items")) {
        let text = format!("taking the next item {}", finding.text);
        return Err(Refusal::new(text, finding.span));
    }
    // An iteration may be the last one, by a panic, too: items behind it have been taken.
    let may_write = graph.may_write(items) || graph.may_write(item);
    if may_write && !fault::is_planted("items") {
        let text = "the iterator changes memory outside, and would be ahead of the loop".into();
        return Err(Refusal::new(text, span));
    }
    for (ty, what) in [(items, "the iterator"), (item, "an item"), (result, "a result")] {
        let reason = destructor(graph, ty).filter(|_| !fault::is_planted("results"));
        if let Some(reason) = reason {
            let text = format!("{what} of `{}` has a destructor that {reason}", first.shown);
            return Err(Refusal::new(text, span));
        }
    }
    let mut early = first.effects.clone();
    early.append(taking);
    // Later ones may be dropped in vain.
    let drops: Vec<_> = [item, result].iter().filter_map(|ty| graph.drop_of(*ty, span)).collect();
    early.append(graph.effects(drops));
    let mut all = rest.effects.clone();
    all.append(early.clone());
    if fault::is_planted("panic") {
        return Ok(Vec::new());
    }
    steady(graph, first, span)?;
    let promised = hook(graph, owner, &early, first.shown, observer)?;
    bounded(&all, rest.shown, &early, first.shown)?;
    let mut assumed = lost(&early, first.shown, &rest.effects, site)?;
    assumed.extend(early.unbounded.iter().map(|_| {
        format!(
            "`{}` ends, and does not overflow its stack, also in iterations behind one that \
             leaves the loop, panics or does not return",
            first.shown
        )
    }));
    Ok([assumed, promised].concat())
}

/// Checks code that runs before its turn, and in vain if an iteration leaves the loop or decides
/// not to return: it ends, in a time and with memory that no number of an item gives, and the
/// program has no panic for it. Returns what is assumed.
fn lost(early: &Effects, shown: &str, rest: &Effects, site: &Site) -> Result<Vec<String>, Refusal> {
    let end = rest.end().or_else(|| rest.endless.clone()).filter(|_| !fault::is_planted("end"));
    let reason = match (site.may_leave, end) {
        _ if fault::is_planted("leave") => return Ok(Vec::new()),
        (true, _) => "an iteration may leave the loop".to_owned(),
        (false, Some(end)) => format!("the rest of an iteration {}", end.text),
        (false, None) => return Ok(Vec::new()),
    };
    let against = [&early.endless, &early.stop, &early.sized].into_iter().flatten().next();
    if let Some(place) = against {
        let text = format!("`{shown}` {}, and {reason}", place.text);
        return Err(Refusal::new(text, place.span));
    }
    let assumed = early.panic.iter().map(|_| {
        format!(
            "`{shown}` does not panic in iterations behind one that leaves the loop, or the \
             message of such a panic does no harm"
        )
    });
    Ok(assumed.collect())
}

/// The effects of the iterator of a loop: its creation, its steps, and its destructor.
fn taking<'tcx>(
    graph: &mut Graph<'tcx>,
    list: Ty<'tcx>,
    items: Ty<'tcx>,
    span: Span,
) -> Result<Effects, Refusal> {
    let tcx = graph.tcx;
    let mut roots: Vec<(Instance<'tcx>, Span)> = graph.drop_of(items, span).into_iter().collect();
    for (item, ty) in [(LangItem::IntoIterIntoIter, list), (LangItem::IteratorNext, items)] {
        let method = tcx.require_lang_item(item, span);
        match graph.resolve(method, tcx.mk_args(&[ty.into()])) {
            Some(function) => roots.push((function, span)),
            None => {
                let text = format!("takes its items from a `{ty}`, which is not known here");
                return Err(Refusal::new(text, span));
            }
        }
    }
    match panicking(graph, roots.clone()) {
        Some(reason) => Err(Refusal::new(format!("its iterator runs {reason}"), span)),
        None => Ok(graph.effects(roots)),
    }
}

/// The promises on which a judgement of a library rests.
const NO_HOOK: &str = "no hook of panics has effects (`--assume no-panic-hook`)";
const NO_CATCH: &str =
    "no code reads memory that this crate was changing when it panicked (`--assume no-catch`)";

/// Whether the elements of a loop may be changed through this value.
fn writes<'tcx>(graph: &Graph<'tcx>, items: Ty<'tcx>) -> bool {
    !matches!(items.kind(), ty::Ref(_, _, ty::Mutability::Not)) && graph.may_write(items)
}

/// The assumption that the second region ends, if no bound is known, or if the first one may refuse
/// the number that gives the bound.
fn ends(a: &Region<'_, '_>, b: &Region<'_, '_>) -> Vec<String> {
    let first = format!("also where `{}` panics or does not return", a.shown);
    if b.effects.unbounded.is_some() {
        vec![format!("`{}` ends, and does not overflow its stack, {first}", b.shown)]
    } else {
        numbers(&a.effects, &b.effects, b.shown, &first)
    }
}

/// The assumption that numbers which the first region may refuse are not too large for the second.
fn numbers(a: &Effects, b: &Effects, shown: &str, when: &str) -> Vec<String> {
    let may_end = a.end().is_some() || a.panic.is_some();
    let Some(sized) = b.sized.as_ref().filter(|_| may_end) else { return Vec::new() };
    vec![format!("`{shown}` has time and memory for its numbers, {when}: it {}", sized.text)]
}

/// The closure of the future in the body of a scope, and the call of the runtime that runs it.
fn future_in<'tcx>(
    graph: &mut Graph<'tcx>,
    body: Ty<'tcx>,
) -> Option<(Ty<'tcx>, Vec<Instance<'tcx>>)> {
    let tcx = graph.tcx;
    let ty::Closure(def, _) = *body.kind() else { return None };
    let body = body_of(tcx, def)?;
    let mut found = Vec::new();
    for block in body.basic_blocks.iter() {
        let TerminatorKind::Call { func, .. } = &block.terminator().kind else { continue };
        let ty::FnDef(callee, args) = *func.ty(body, tcx).kind() else { continue };
        let is_of_scope = callee.is_local()
            && graph.path(callee).ends_with(&format!("::{}::future", crate::trial::MODULE));
        if is_of_scope {
            let args = tcx.erase_and_anonymize_regions(args);
            found.push((args.types().next()?, graph.resolve(callee, args)?));
        }
    }
    match &found[..] {
        [(closure, call)] => Some((*closure, vec![*call])),
        _ => None,
    }
}

/// Checks that effects of the second region, which stays on its thread, do not come before an end
/// of the first one.
fn overtaken(a: &Effects, a_shown: &str, b: &Effects) -> Result<(), Refusal> {
    let Some(finding) = b.first() else { return Ok(()) };
    if fault::is_planted("overtake") {
        return Ok(());
    }
    match end_of(a) {
        Some(place) => {
            let text = format!(
                "`{a_shown}` {}, and the statements behind it have effects: the nearest one {}",
                place.text, finding.text
            );
            Err(Refusal::new(text, place.span))
        }
        None => Ok(()),
    }
}

/// A place at which a region may end without a result, or does not end.
fn end_of(effects: &Effects) -> Option<Place> {
    effects.end().or(effects.panic.clone()).or(effects.unbounded.clone())
}

/// Checks that the second region leaves no trace if the first one panics.
fn unseen<'tcx>(
    graph: &mut Graph<'tcx>,
    owner: DefId,
    (a, b): (&Region<'_, 'tcx>, &Region<'_, 'tcx>),
    result: Option<Ty<'tcx>>,
    observer: &mut Observer,
) -> Result<Vec<String>, Refusal> {
    let Some(panic) = &a.effects.panic else { return Ok(Vec::new()) };
    if let Some(result) = result {
        discarded(graph, result, b.shown, panic)?;
    }
    let mut promised = Vec::new();
    for written in written(graph, owner, b.closure) {
        for promise in hidden(graph, owner, &written, (a, b), panic, observer)? {
            if !promised.contains(&promise) {
                promised.push(promise);
            }
        }
    }
    Ok(promised)
}

/// The effects of a region.
fn region<'tcx>(graph: &mut Graph<'tcx>, ty: Ty<'tcx>, span: Span) -> Result<Effects, Refusal> {
    region_besides(graph, ty, span, &[])
}

/// The effects of a region without those of the calls of `left_out`.
fn region_besides<'tcx>(
    graph: &mut Graph<'tcx>,
    ty: Ty<'tcx>,
    span: Span,
    left_out: &[Instance<'tcx>],
) -> Result<Effects, Refusal> {
    let roots = roots_of(graph, ty, span)?;
    Ok(graph.effects_besides(roots, left_out))
}

/// The code of a region.
fn roots_of<'tcx>(
    graph: &mut Graph<'tcx>,
    ty: Ty<'tcx>,
    span: Span,
) -> Result<Vec<(Instance<'tcx>, Span)>, Refusal> {
    let root = match *ty.kind() {
        ty::Closure(def, args) => {
            let captured = args.as_closure().upvar_tys();
            if captured.iter().any(|ty| graph.holds_formatter(ty)) {
                let text = "uses a formatter, whose output is not known here".into();
                return Err(Refusal::new(text, span));
            }
            Instance::new_raw(def, args)
        }
        ty::FnDef(def, args) => match graph.resolve(def, args) {
            Some(function) => function,
            None => return Err(Refusal::new(format!("calls `{ty}`, which is not known"), span)),
        },
        _ => return Err(Refusal::new(format!("calls a value of the type `{ty}`"), span)),
    };
    let mut roots = vec![(root, span)];
    // The captured values of a region are dropped with it.
    roots.extend(graph.drop_of(ty, span));
    Ok(roots)
}

/// Checks that a region that another region may overtake, or that may run in vain, has no
/// destructor that panics: a panic during a panic ends the process.
fn steady<'tcx>(
    graph: &mut Graph<'tcx>,
    region: &Region<'_, 'tcx>,
    span: Span,
) -> Result<(), Refusal> {
    if fault::is_planted("destructor") {
        return Ok(());
    }
    let roots = roots_of(graph, region.closure, span)?;
    match panicking(graph, roots) {
        Some(reason) => Err(Refusal::new(format!("`{}` runs {reason}", region.shown), span)),
        None => Ok(()),
    }
}

/// A destructor outside the standard library that may panic, among the functions that these reach.
fn panicking<'tcx>(graph: &mut Graph<'tcx>, roots: Vec<(Instance<'tcx>, Span)>) -> Option<String> {
    let Some(nodes) = graph.reached(roots.into_iter().map(|(root, _)| root)) else {
        return Some("too many functions".into());
    };
    for node in nodes {
        if graph.is_own_destructor(node)
            && let Some(panic) = graph.effects([(node, rustc_span::DUMMY_SP)]).panic
        {
            let name = graph.tcx.def_path_str(node.def_id());
            return Some(format!("the destructor `{name}`, which {}", panic.text));
        }
    }
    None
}

/// Why a value of this type must be dropped where it is dropped now.
pub(crate) fn destructor<'tcx>(graph: &mut Graph<'tcx>, ty: Ty<'tcx>) -> Option<String> {
    let roots: Vec<_> = graph.drop_of(ty, rustc_span::DUMMY_SP).into_iter().collect();
    let effects = graph.effects(roots.clone());
    if let Some(finding) = effects.first() {
        return Some(finding.text.clone());
    }
    let panic = effects.panic?;
    if effects.stop.is_some() {
        return Some(panic.text);
    }
    if fault::is_planted("destructor") {
        return None;
    }
    panicking(graph, roots).map(|reason| format!("runs {reason}"))
}

pub(crate) fn pair(a: &Effects, a_shown: &str, b: &Effects, b_shown: &str) -> Result<(), Refusal> {
    if let Some(finding) = b.first() {
        let also = match a.first() {
            Some(other) if other.kind == finding.kind => format!(", as `{a_shown}` does"),
            _ => String::new(),
        };
        let text = format!("`{b_shown}` {}{also}", finding.text);
        return Err(Refusal::new(text, finding.span));
    }
    match a.confined() {
        Some(finding) => Err(Refusal::new(format!("`{a_shown}` {}", finding.text), finding.span)),
        None => Ok(()),
    }
}

/// Checks that values that a region takes are dropped without effects: a call drops some of
/// them later than its closure does.
fn taken<'tcx>(
    graph: &mut Graph<'tcx>,
    region: &Region<'_, 'tcx>,
    span: Span,
) -> Result<(), Refusal> {
    let ty::Closure(_, args) = *region.closure.kind() else { return Ok(()) };
    let shown = region.shown;
    if fault::is_planted("capture") {
        return Ok(());
    }
    for ty in args.as_closure().upvar_tys() {
        if let Some(reason) = destructor(graph, ty) {
            let text = format!("`{shown}` takes a value, whose destructor {reason}");
            return Err(Refusal::new(text, span));
        }
    }
    Ok(())
}

/// Checks that no hook of the program runs on another thread.
fn hook(
    graph: &mut Graph<'_>,
    owner: DefId,
    effects: &Effects,
    shown: &str,
    program: &mut Observer,
) -> Result<Vec<String>, Refusal> {
    observed(graph, owner, effects, shown, program, "on another thread")
}

/// Checks that no hook runs for a panic of a region, at a place where it did not run before, and
/// that the process goes on until the turn of the panic.
fn observed(
    graph: &mut Graph<'_>,
    owner: DefId,
    effects: &Effects,
    shown: &str,
    program: &mut Observer,
    place: &str,
) -> Result<Vec<String>, Refusal> {
    let Some(panic) = &effects.panic else { return Ok(Vec::new()) };
    if fault::is_planted("hook") {
        return Ok(Vec::new());
    }
    let refuse = |reason: &str| {
        let text = format!("`{shown}` {}, and {reason}", panic.text);
        Err(Refusal::new(text, panic.span))
    };
    if !graph.tcx.sess.panic_strategy().unwinds() && !fault::is_planted("abort") {
        return refuse("a panic ends the process in this profile");
    }
    let program = search(graph, owner, program);
    match program.hook {
        Some(reason) => refuse(&format!("a hook of panics would run {place}: {reason}")),
        None => Ok(program.trusts_no_hook.then(|| NO_HOOK.to_owned()).into_iter().collect()),
    }
}

/// Checks that the second region ends if the first decides not to return: the runtime might wait.
fn bounded(a: &Effects, a_shown: &str, b: &Effects, b_shown: &str) -> Result<(), Refusal> {
    let (Some(end), Some(unbounded)) = (a.end(), &b.unbounded) else { return Ok(()) };
    if fault::is_planted("end") {
        return Ok(());
    }
    let text = format!("`{a_shown}` {}, and `{b_shown}` {}", end.text, unbounded.text);
    Err(Refusal::new(text, end.span))
}

/// Checks that a result whose turn never comes is dropped without effects.
fn discarded<'tcx>(
    graph: &mut Graph<'tcx>,
    result: Ty<'tcx>,
    shown: &str,
    panic: &Place,
) -> Result<(), Refusal> {
    match destructor(graph, result) {
        Some(reason) => {
            let text = format!(
                "the first part {}, and dropping the result of `{shown}` then {reason}",
                panic.text
            );
            Err(Refusal::new(text, panic.span))
        }
        None => Ok(()),
    }
}

/// Memory outside a closure that the closure may write.
enum Written<'tcx> {
    /// A variable of the function that contains the closure.
    Variable(Ty<'tcx>),
    /// Memory behind a reference, with what is captured.
    Behind(String),
}

fn written<'tcx>(graph: &Graph<'tcx>, owner: DefId, closure: Ty<'tcx>) -> Vec<Written<'tcx>> {
    let tcx = graph.tcx;
    let ty::Closure(def, args) = *closure.kind() else { return Vec::new() };
    let Some(def) = def.as_local() else { return vec![Written::Behind("a value".into())] };
    let mut found = Vec::new();
    let types = args.as_closure().upvar_tys();
    for (capture, ty) in tcx.closure_captures(def).iter().zip(types) {
        let shown = capture.to_string(tcx);
        let by_value = match capture.info.capture_kind {
            UpvarCapture::ByValue | UpvarCapture::ByUse => true,
            UpvarCapture::ByRef(ty::BorrowKind::Immutable) => continue,
            UpvarCapture::ByRef(_) => false,
        };
        if by_value {
            if graph.may_write(ty) {
                found.push(Written::Behind(shown));
            }
            continue;
        }
        let is_own = match capture.place.base {
            PlaceBase::Upvar(id) => {
                tcx.hir_enclosing_body_owner(id.var_path.hir_id).to_def_id() == owner
            }
            _ => false,
        };
        let behind = capture.place.projections.iter().enumerate().any(|(i, part)| {
            let base = capture.place.ty_before_projection(i);
            part.kind == ProjectionKind::Deref && !base.is_box()
        });
        // A variable that holds mutable references gives access to what they point to.
        let inner = ty.builtin_deref(true).unwrap_or(ty);
        if is_own && !behind && !graph.may_write(inner) {
            found.push(Written::Variable(capture.place.base_ty));
        } else {
            found.push(Written::Behind(shown));
        }
    }
    found
}

/// Checks that no code reads this memory after a panic of the first region.
fn hidden<'tcx>(
    graph: &mut Graph<'tcx>,
    owner: DefId,
    written: &Written<'tcx>,
    (a, b): (&Region<'_, 'tcx>, &Region<'_, 'tcx>),
    panic: &Place,
    observer: &mut Observer,
) -> Result<Vec<String>, Refusal> {
    let refuse = |what: &str, reason: &str| {
        let text = format!(
            "`{}` {}, and `{}` would have changed {what} already: {reason}",
            a.shown, panic.text, b.shown
        );
        Err(Refusal::new(text, panic.span))
    };
    match written {
        // The variable ends with the panic. Its destructor might read it.
        Written::Variable(ty) => match destructor(graph, *ty) {
            Some(reason) => refuse("a variable", &format!("its destructor {reason}")),
            None => Ok(Vec::new()),
        },
        Written::Behind(shown) => {
            let program = search(graph, owner, observer);
            match program.observer {
                Some(reason) => refuse(&format!("`{shown}`"), &reason),
                None => {
                    Ok(program.trusts_no_catch.then(|| NO_CATCH.to_owned()).into_iter().collect())
                }
            }
        }
    }
}

fn search(graph: &mut Graph<'_>, owner: DefId, program: &mut Observer) -> Program {
    if let Some(known) = program {
        return known.clone();
    }
    let found = unwinding::search(graph);
    graph.enter(owner);
    program.insert(found).clone()
}
