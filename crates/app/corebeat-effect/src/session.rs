//! The analysis of one crate: proposals, a first estimate, trials, and the report.

use crate::candidate::{Candidate, Kept, Pattern, RUNTIME};
use crate::effect::Effects;
use crate::graph::Graph;
use crate::trial::{self, Plan, Site, Verdict};
use crate::{attempt, estimate, option, pattern, rule, scope};
use rustc_errors::Applicability;
use rustc_middle::ty::{self, TyCtxt};
use rustc_span::edition::Edition;
use rustc_span::{SourceFile, Span};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Bound of the trials of a crate: each drops the proposals that the compiler refuses.
const MOST_TRIALS: usize = 12;

/// A proposal and what has been decided about it.
struct Proposal<'tcx> {
    candidate: Candidate<'tcx>,
    refusal: Option<(String, Option<Span>)>,
    /// Its rewritten form has compiled and passed the analysis.
    is_accepted: bool,
    /// The assumptions of its acceptance.
    assumed: Vec<String>,
}

impl Proposal<'_> {
    fn is_open(&self) -> bool {
        self.refusal.is_none() && !self.is_accepted
    }
}

/// Analyses the crate and reports what it finds as diagnostics of the compiler.
pub(crate) fn analyse(tcx: TyCtxt<'_>, args: &[String]) {
    let graph = RefCell::new(Graph::new(tcx));
    let found = pattern::find(tcx, &graph);
    let mut graph = graph.into_inner();
    let general = general_refusal(tcx).map(|text| (text, None)).or_else(|| {
        let text = format!("the program gives the name `{RUNTIME}` another meaning");
        scope::other_runtime(tcx, RUNTIME).map(|span| (text, Some(span)))
    });
    let mut proposals = Vec::new();
    for candidate in found {
        let (is_work, refusal) = estimate(&mut graph, &candidate);
        if !is_work {
            continue;
        }
        let refusal = general.clone().or(refusal);
        proposals.push(Proposal { candidate, refusal, is_accepted: false, assumed: Vec::new() });
    }
    let mut round = 0;
    while proposals.iter().any(Proposal::is_open) {
        round += 1;
        if round > MOST_TRIALS {
            let text = "the compiler refuses the rewritten crate for a reason elsewhere";
            refuse_rest(&mut proposals, text);
            break;
        }
        let chosen = choose(tcx, &mut proposals);
        if !chosen.is_empty() {
            attempt_all(tcx, args, &mut proposals, &chosen);
        }
    }
    let accepted: Vec<Span> =
        proposals.iter().filter(|p| p.is_accepted).map(|p| p.candidate.span).collect();
    for proposal in &proposals {
        // Another form of an accepted loop is not worth a line.
        if proposal.is_accepted || !accepted.contains(&proposal.candidate.span) {
            report(tcx, proposal);
        }
    }
}

/// A reason against any rewrite of this crate.
fn general_refusal(tcx: TyCtxt<'_>) -> Option<String> {
    if tcx.sess.edition() == Edition::Edition2015 {
        return Some(
            "crates of the edition 2015 are not supported: paths have another form".into(),
        );
    }
    let has_std = tcx.crates(()).iter().any(|&krate| tcx.crate_name(krate).as_str() == "std");
    (!has_std).then(|| "the crate is `no_std`, and the runtime of futures needs threads".into())
}

/// A first estimate from the functions that the parts name: whether it is worth while, and why not.
fn estimate<'tcx>(
    graph: &mut Graph<'tcx>,
    candidate: &Candidate<'tcx>,
) -> (bool, Option<(String, Option<Span>)>) {
    let tcx = graph.tcx;
    graph.enter(candidate.owner.to_def_id());
    let typeck = tcx.typeck(candidate.owner);
    let effects: Vec<Effects> =
        candidate.parts.iter().map(|part| estimate::effects(graph, typeck, &part.exprs)).collect();
    // The pattern of statements has estimated them.
    let is_known = candidate.pattern.is_group();
    let is_work = is_known || effects.iter().all(|effects| effects.is_work);
    if candidate.loses_comments(tcx) {
        let text = "a comment would be lost: move it before the statement".into();
        return (is_work, Some((text, None)));
    }
    if let Some((text, span)) = &candidate.against {
        return (is_work, Some((text.clone(), Some(*span))));
    }
    let shown: Vec<&str> = candidate.parts.iter().map(|part| part.shown.as_str()).collect();
    let refusal = match (&effects[..], &shown[..]) {
        _ if is_known => None,
        ([a, b], [a_shown, b_shown]) => rule::pair(a, a_shown, b, b_shown).err(),
        ([one], [shown]) => {
            one.first().map(|f| rule::Refusal::new(format!("`{shown}` {}", f.text), f.span))
        }
        _ => None,
    };
    let refusal = refusal.map(|refusal| (refusal.text, refusal.span));
    (is_work, refusal.or_else(|| small(graph, candidate)))
}

/// Refuses a recursion whose calls take a few instructions each: most of them are near its leaves,
/// where a join that is switched off takes as long as a call.
fn small<'tcx>(
    graph: &mut Graph<'tcx>,
    candidate: &Candidate<'tcx>,
) -> Option<(String, Option<Span>)> {
    let tcx = graph.tcx;
    let owner = tcx.typeck_root_def_id(candidate.owner.to_def_id());
    let args = ty::GenericArgs::identity_for_item(tcx, owner);
    if option::is_set(option::SMALL_CALLS) || candidate.parts.len() < 2 {
        return None;
    }
    // The parts have work of their own: without a loop this is the recursion of the owner.
    let function = graph.resolve(owner, tcx.erase_and_anonymize_regions(args))?;
    graph.is_small(function).then(|| {
        let name = tcx.item_name(owner);
        let text = format!(
            "a call of `{name}` takes a few instructions besides its recursion, less than a join \
             (`--small-calls` proposes it)"
        );
        (text, None)
    })
}

/// The open proposals that a trial can apply together. Those that overlap an accepted one are
/// refused: a later run of the program may accept one of them.
fn choose(tcx: TyCtxt<'_>, proposals: &mut [Proposal<'_>]) -> Vec<usize> {
    let accepted: Vec<Span> = proposals
        .iter()
        .filter(|proposal| proposal.is_accepted)
        .map(|proposal| proposal.candidate.span)
        .collect();
    let mut taken: Vec<Span> = Vec::new();
    let mut chosen = Vec::new();
    for rank in 0..=Pattern::LAST_RANK {
        for (number, proposal) in proposals.iter_mut().enumerate() {
            if !proposal.is_open() || proposal.candidate.pattern.rank() != rank {
                continue;
            }
            let span = proposal.candidate.span;
            if let Some(other) = accepted.iter().find(|other| other.overlaps(span)) {
                let line = tcx.sess.source_map().lookup_char_pos(other.lo()).line;
                let text = format!("overlaps the candidate at line {line}: apply that one first");
                proposal.refusal = Some((text, None));
            } else if !taken.iter().any(|other| other.overlaps(span)) {
                taken.push(span);
                chosen.push(number);
            }
        }
    }
    // In the order of the source.
    chosen.sort_unstable();
    chosen
}

fn refuse_rest(proposals: &mut [Proposal<'_>], text: &str) {
    for proposal in proposals.iter_mut().filter(|proposal| proposal.is_open()) {
        proposal.refusal = Some((text.into(), None));
    }
}

/// One changed file.
struct Changed {
    file: Arc<SourceFile>,
    text: String,
    /// The rewritten places in it, in order.
    edits: Vec<Edit>,
}

struct Edit {
    old: (u32, u32),
    new: (u32, u32),
    kept: Vec<Kept>,
}

impl Changed {
    /// The place in the original that corresponds to an offset in the changed text.
    fn origin(&self, at: u32) -> Option<rustc_span::BytePos> {
        let mut shift = 0i64;
        for edit in &self.edits {
            if at < edit.new.0 {
                break;
            }
            if at < edit.new.1 {
                let within = at - edit.new.0;
                let part = edit.kept.iter().find(|kept| {
                    let length = (kept.old.hi() - kept.old.lo()).0;
                    (kept.new_start..=kept.new_start + length).contains(&within)
                })?;
                return Some(part.old.lo() + rustc_span::BytePos(within - part.new_start));
            }
            shift = i64::from(edit.old.1) - i64::from(edit.new.1);
        }
        let old = u32::try_from(i64::from(at) + shift).ok()?;
        Some(self.file.start_pos + rustc_span::BytePos(old))
    }
}

/// Compiles the crate with the chosen proposals applied, and decides them, or at least one of them.
fn attempt_all(tcx: TyCtxt<'_>, args: &[String], proposals: &mut [Proposal<'_>], chosen: &[usize]) {
    let refuse = |proposals: &mut [Proposal<'_>], text: &str| {
        for &number in chosen {
            if proposals[number].is_open() {
                proposals[number].refusal = Some((text.into(), None));
            }
        }
    };
    let Some((changed, sites)) = change(tcx, proposals, chosen) else {
        return refuse(proposals, "its source cannot be read");
    };
    let files =
        changed.iter().map(|(path, changed)| (path.clone(), changed.text.clone())).collect();
    let plan = Plan { files, sites, verdicts: PathBuf::new() };
    let origin = |place: &(PathBuf, u32, u32)| -> Option<Span> {
        let changed = changed.get(&place.0)?;
        let (lo, hi) = (changed.origin(place.1)?, changed.origin(place.2)?);
        (lo <= hi).then(|| Span::with_root_ctxt(lo, hi))
    };
    match attempt::run(plan, args) {
        Ok(verdicts) => {
            for Verdict { number, reason, place, assumed } in verdicts {
                let proposal = &mut proposals[number];
                match reason {
                    Some(text) => {
                        proposal.refusal = Some((text, place.as_ref().and_then(origin)));
                    }
                    None => {
                        proposal.is_accepted = true;
                        proposal.assumed = assumed;
                    }
                }
            }
            refuse(proposals, "the rewritten code is never compiled");
        }
        Err(attempt::Failure::Refused(refused)) => {
            for (number, text, place) in refused {
                let proposal = &mut proposals[number];
                if proposal.is_open() {
                    let text = format!("the compiler refuses the rewritten code: {text}");
                    proposal.refusal = Some((text, origin(&place)));
                }
            }
        }
        // One of them is the reason: halves find it.
        Err(attempt::Failure::Elsewhere(_)) if chosen.len() > 1 => {
            let (first, second) = chosen.split_at(chosen.len() / 2);
            attempt_all(tcx, args, proposals, first);
            attempt_all(tcx, args, proposals, second);
        }
        Err(attempt::Failure::Elsewhere(text)) => {
            refuse(proposals, &format!("the rewritten crate does not compile: {text}"));
        }
    }
}

/// The changed files, and the rewritten places in them.
fn change(
    tcx: TyCtxt<'_>,
    proposals: &[Proposal<'_>],
    chosen: &[usize],
) -> Option<(HashMap<PathBuf, Changed>, Vec<Site>)> {
    let map = tcx.sess.source_map();
    let path = |file: &SourceFile| match &file.name {
        rustc_span::FileName::Real(name) => name.local_path()?.canonicalize().ok(),
        _ => None,
    };
    let root = tcx.sess.local_crate_source_file()?;
    let root = root.local_path()?.canonicalize().ok()?;
    let mut changed: HashMap<PathBuf, Changed> = HashMap::new();
    let mut sites = Vec::new();
    let open = |file: Arc<SourceFile>| Changed { file, text: String::new(), edits: Vec::new() };
    let files: Vec<Arc<SourceFile>> = map.files().iter().cloned().collect();
    let root_file = files.iter().find(|file| path(file).is_some_and(|p| p == root))?;
    changed.insert(root.clone(), open(Arc::clone(root_file)));
    let trial = format!("crate::{}", trial::MODULE);
    for &number in chosen {
        let proposal = &proposals[number];
        let file = map.lookup_source_file(proposal.candidate.span.lo());
        let path = path(&file)?;
        let entry = changed.entry(path.clone()).or_insert_with(|| open(Arc::clone(&file)));
        let source = file.src.as_ref()?;
        let done = entry.edits.last().map_or(0, |edit| edit.old.1);
        let offset = |at: rustc_span::BytePos| (at - file.start_pos).0;
        let old = (offset(proposal.candidate.span.lo()), offset(proposal.candidate.span.hi()));
        entry.text.push_str(source.get(done as usize..old.0 as usize)?);
        let (text, kept) = proposal.candidate.text(tcx, &trial)?;
        let start = u32::try_from(entry.text.len()).ok()?;
        entry.text.push_str(&text);
        let new = (start, u32::try_from(entry.text.len()).ok()?);
        entry.edits.push(Edit { old, new, kept });
        sites.push(Site {
            number,
            pattern: proposal.candidate.pattern.name().into(),
            file: path,
            start: new.0,
            end: new.1,
            shown: proposal.candidate.parts.iter().map(|part| part.shown.clone()).collect(),
            is_expression: proposal.candidate.is_expression,
            may_leave: proposal.candidate.may_leave,
        });
    }
    for (path, entry) in &mut changed {
        let done = entry.edits.last().map_or(0, |edit| edit.old.1);
        entry.text.push_str(entry.file.src.as_ref()?.get(done as usize..)?);
        if *path == root {
            entry.text.push_str(trial::RUNTIME);
        }
    }
    Some((changed, sites))
}

/// Reports a proposal as a diagnostic. `cargo autofuture` reads the beginning of its message.
fn report(tcx: TyCtxt<'_>, proposal: &Proposal<'_>) {
    let candidate = &proposal.candidate;
    let name = candidate.pattern.name();
    let shown: Vec<String> =
        candidate.parts.iter().map(|part| format!("`{}`", part.shown)).collect();
    let subject = match candidate.pattern {
        Pattern::Loop | Pattern::Map | Pattern::Reduction => "the iterations of this loop".into(),
        Pattern::Pipeline => format!("{} of later iterations and {}", shown[0], shown[1]),
        _ => shown.join(" and "),
    };
    match &proposal.refusal {
        Some((text, place)) => {
            let title = format!("rejected [{name}]: {subject} stay sequential: {text}");
            let mut note = tcx.dcx().struct_span_note(candidate.span, title);
            if let Some(place) = place.filter(|place| *place != candidate.span) {
                note.span_label(place, "because of this");
            }
            note.emit();
        }
        None => {
            let title = format!("candidate [{name}]: {subject} can run at the same time");
            let Some((text, _)) = candidate.text(tcx, RUNTIME) else { return };
            let mut warning = tcx.dcx().struct_span_warn(candidate.span, title);
            for part in candidate.parts.iter().filter(|_| candidate.parts.len() > 1) {
                warning.span_label(part.span, "runs at the same time as the other");
            }
            for assumed in &proposal.assumed {
                warning.note(format!("assumed: {assumed}"));
            }
            warning.span_suggestion_verbose(
                candidate.span,
                "rewrite it",
                text,
                Applicability::MachineApplicable,
            );
            warning.emit();
        }
    }
}
