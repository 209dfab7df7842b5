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
//! 4. If the second region may panic, the program has no hook of panics.

use crate::effect::{Effects, Place};
use crate::fault;
use crate::graph::Graph;
use crate::trial::Site;
use crate::unwinding::{self, Program};
use rustc_hir::def_id::DefId;
use rustc_middle::hir::place::{PlaceBase, ProjectionKind};
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

/// Judges a call of a function of the runtime with these type arguments.
pub(crate) fn judge<'tcx>(
    graph: &mut Graph<'tcx>,
    owner: DefId,
    name: &str,
    args: GenericArgsRef<'tcx>,
    site: &Site,
    span: Span,
    observer: &mut Observer,
) -> Result<Option<String>, Refusal> {
    let shown = &site.shown;
    let types: Vec<Ty<'tcx>> = args.types().collect();
    match (name, &types[..]) {
        ("join", [first, second, _, result]) => {
            let [first_shown, second_shown] = &shown[..] else {
                return Err(Refusal::new("is not a pair of calls".into(), span));
            };
            let a = region(graph, *first, span)?;
            let b = region(graph, *second, span)?;
            pair(&a, first_shown, &b, second_shown)?;
            if site.is_expression
                && let Some(finding) = a.first()
            {
                // Temporaries of an operand live until the end of the statement, those of a closure
                // until its end.
                let text = format!("`{first_shown}` {}", finding.text);
                return Err(Refusal::new(text, finding.span));
            }
            taken(graph, *first, first_shown, span)?;
            let assumed = b.unbounded.as_ref().map(|_| {
                format!(
                    "`{second_shown}` ends, and does not overflow its stack, also where \
                     `{first_shown}` panics or does not return"
                )
            });
            if fault::is_planted("panic") {
                return Ok(assumed);
            }
            hook(graph, owner, &b, second_shown, observer)?;
            bounded(&a, first_shown, &b, second_shown)?;
            let Some(panic) = a.panic else { return Ok(assumed) };
            discarded(graph, *result, second_shown, &panic, span)?;
            for capture in written(graph, owner, *second) {
                hidden(graph, owner, &capture, second_shown, first_shown, &panic, observer)?;
            }
            Ok(assumed)
        }
        ("map", [items, _, function])
        | ("for_each", [items, function])
        | ("sum", [items, _, function, _]) => {
            let shown = shown.first().map_or("the loop", String::as_str);
            let effects = region(graph, *function, span)?;
            if let Some(finding) = effects.first() {
                let text = format!("`{shown}` {}", finding.text);
                return Err(Refusal::new(text, finding.span));
            }
            let assumed = effects.unbounded.as_ref().map(|_| {
                format!(
                    "`{shown}` ends, and does not overflow its stack, also in iterations behind \
                     one that panics or does not return"
                )
            });
            if fault::is_planted("panic") {
                return Ok(assumed);
            }
            hook(graph, owner, &effects, shown, observer)?;
            bounded(&effects, shown, &effects, shown)?;
            let Some(panic) = effects.panic else { return Ok(assumed) };
            if name == "map" {
                discarded(graph, types[1], shown, &panic, span)?;
            }
            let writes = matches!(items.kind(), ty::Ref(_, _, ty::Mutability::Mut));
            if writes && let Some(reason) = observe(graph, owner, observer) {
                let text = format!(
                    "`{shown}` {}, and later elements would be changed already: {reason}",
                    panic.text
                );
                return Err(Refusal::new(text, panic.span));
            }
            Ok(assumed)
        }
        _ => Err(Refusal::new("is not a known form".into(), span)),
    }
}

/// The effects of a region.
fn region<'tcx>(graph: &mut Graph<'tcx>, ty: Ty<'tcx>, span: Span) -> Result<Effects, Refusal> {
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
    Ok(graph.effects(roots))
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

/// Checks that values that the first region takes are dropped without effects: a call drops some of
/// them later than its closure does.
fn taken<'tcx>(
    graph: &mut Graph<'tcx>,
    closure: Ty<'tcx>,
    shown: &str,
    span: Span,
) -> Result<(), Refusal> {
    let ty::Closure(_, args) = *closure.kind() else { return Ok(()) };
    if fault::is_planted("capture") {
        return Ok(());
    }
    for ty in args.as_closure().upvar_tys() {
        let drop = graph.drop_of(ty, span);
        let effects = graph.effects(drop);
        let reason = match (effects.first(), &effects.panic) {
            (Some(finding), _) => &finding.text,
            (None, Some(panic)) if effects.stop.is_some() => &panic.text,
            _ => continue,
        };
        let text = format!("`{shown}` takes a value, whose destructor {reason}");
        return Err(Refusal::new(text, span));
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
) -> Result<(), Refusal> {
    let Some(panic) = &effects.panic else { return Ok(()) };
    if fault::is_planted("hook") {
        return Ok(());
    }
    match search(graph, owner, program).hook {
        Some(reason) => {
            let text = format!(
                "`{shown}` {}, and a hook of panics would run on another thread: {reason}",
                panic.text
            );
            Err(Refusal::new(text, panic.span))
        }
        None => Ok(()),
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
    span: Span,
) -> Result<(), Refusal> {
    let drop = graph.drop_of(result, span);
    match graph.effects(drop).first() {
        Some(finding) => {
            let text = format!(
                "the first part {}, and dropping the result of `{shown}` then {}",
                panic.text, finding.text
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
    second: &str,
    first: &str,
    panic: &Place,
    observer: &mut Observer,
) -> Result<(), Refusal> {
    let refuse = |what: &str, reason: &str| {
        let text = format!(
            "`{first}` {}, and `{second}` would have changed {what} already: {reason}",
            panic.text
        );
        Err(Refusal::new(text, panic.span))
    };
    match written {
        // The variable ends with the panic. Its destructor might read it.
        Written::Variable(ty) => {
            let drop = graph.drop_of(*ty, panic.span);
            let effects = graph.effects(drop);
            match effects.first() {
                Some(finding) => refuse("a variable", &format!("its destructor {}", finding.text)),
                None => Ok(()),
            }
        }
        Written::Behind(shown) => match observe(graph, owner, observer) {
            Some(reason) => refuse(&format!("`{shown}`"), &reason),
            None => Ok(()),
        },
    }
}

fn observe(graph: &mut Graph<'_>, owner: DefId, program: &mut Observer) -> Option<String> {
    search(graph, owner, program).observer
}

fn search(graph: &mut Graph<'_>, owner: DefId, program: &mut Observer) -> Program {
    if let Some(known) = program {
        return known.clone();
    }
    let found = unwinding::search(graph);
    graph.enter(owner);
    program.insert(found).clone()
}
