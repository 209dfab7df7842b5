//! Verification of a net: sends rows through the net and reports what fails.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::ast::Span;
use crate::diagnostic::{Diagnostic, Severity};
use crate::label::Label;

use super::VARIANTS_MAX;
use super::flow::{Failure, Flow, Mode, Note, branch, taken};
use super::infer::infer;
use super::part::{FilterPart, Kind, NetPart, Part, PatternPart, Signature, visit};
use super::row::{Mark, Named, Row, Rows};

/// Inferred type of a net, and diagnostics.
pub(super) struct Verification {
    pub(super) input: Vec<Row>,
    pub(super) output: Vec<Row>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

/// Infers the types in a net, and sends every possible row through the net.
pub(super) fn verify(net: &NetPart) -> Verification {
    let mut inference = Flow::new(Mode::Infer);
    infer(&mut inference, &net.body);
    let input = inputs(&mut inference, net);
    let mut verifier = Verifier {
        net,
        flow: Flow::new(Mode::Verify),
        diagnostics: Vec::new(),
        consumed: HashMap::new(),
        produced: HashSet::new(),
    };
    let mut output = Rows::default();
    if inference.gave_up.is_none() {
        output = verifier.flow.inside(net, Rows::certain(&input));
        verifier.declared();
        verifier.failures();
        if verifier.flow.gave_up.is_none()
            && !verifier.diagnostics.iter().any(|d| d.severity == Severity::Error)
        {
            verifier.warnings();
        }
    }
    if let Some(span) = inference.gave_up.or(verifier.flow.gave_up) {
        verifier.diagnostics.push(
            Diagnostic::warning(
                "the types in this net are too large to check: records may be unroutable at run \
                 time",
                span,
                "too large",
            )
            .help(format!(
                "use types of at most {VARIANTS_MAX} variants: split the net, and declare the \
                 signatures of its parts"
            )),
        );
    }
    Verification {
        input: input.into_iter().map(|(row, _)| row).collect(),
        output: output.into_iter().map(|(row, _)| row).collect(),
        diagnostics: verifier.diagnostics,
    }
}

/// Input of a net: the declared input, or the inferred input without optional variants that fail.
fn inputs(inference: &mut Flow, net: &NetPart) -> Vec<(Row, Span)> {
    if let Some(declared) = &net.declared {
        let mut seen = HashSet::new();
        return declared.inputs().filter(|(row, _)| seen.insert(row.clone())).cloned().collect();
    }
    let mut input = Vec::new();
    for variant in &taken(&net.body).accepts {
        if variant.optional && inference.gave_up.is_none() {
            inference.failed = false;
            let mark = Mark { certain: true, origin: net.name_span };
            inference.inside(net, Rows::one(variant.row.clone(), mark));
            if inference.failed {
                continue;
            }
        }
        input.push((variant.row.clone(), net.name_span));
    }
    input
}

struct Verifier<'a> {
    net: &'a NetPart,
    flow: Flow,
    diagnostics: Vec<Diagnostic>,
    /// Number of parts that consume each label, and labels that some part produces. Filled before
    /// warnings.
    consumed: HashMap<Label, usize>,
    produced: HashSet<Label>,
}

/// Variants that a message lists.
const SHOWN_MAX: usize = 6;

fn show<'a>(rows: impl Iterator<Item = &'a Row>, between: &str) -> String {
    let mut shown: Vec<String> = rows.take(SHOWN_MAX + 1).map(|row| row.to_string()).collect();
    if shown.len() > SHOWN_MAX {
        shown[SHOWN_MAX] = "...".into();
    }
    if shown.is_empty() { "nothing".into() } else { shown.join(between) }
}

impl<'a> Verifier<'a> {
    /// Checks the declared type of each net, independent of its use in this program.
    fn declared(&mut self) {
        let mut nets: Vec<&'a NetPart> = vec![self.net];
        let mut visited = HashSet::from([self.net.number]);
        visit(&self.net.body, &mut |part| {
            if let Kind::Net(net) = &part.kind
                && net.declared.is_some()
                && visited.insert(net.number)
            {
                nets.push(net);
            }
        });
        for net in nets {
            if let Some(signature) = &net.declared {
                self.signature(net, signature);
            }
        }
    }

    fn signature(&mut self, net: &NetPart, signature: &Signature) {
        let mappings = &signature.mappings;
        let output = self.flow.inside(net, Rows::certain(signature.inputs()));
        let mut reported = Vec::new();
        if net.body.syncs || mappings.len() == 1 {
            // The output for one mapping depends on the input of the others.
            if mappings.iter().all(|m| m.output.is_some()) {
                let declared: Vec<&Row> =
                    mappings.iter().flat_map(|m| m.output.iter().flatten()).collect();
                let span =
                    mappings.iter().map(|m| m.span).reduce(Span::to).unwrap_or(net.name_span);
                self.undeclared(net, span, &output, &declared, &mut reported);
            }
            return;
        }
        for mapping in mappings {
            let Some(declared) = &mapping.output else {
                continue;
            };
            let output = self.flow.inside(net, Rows::certain(&mapping.input));
            let declared: Vec<&Row> = declared.iter().collect();
            self.undeclared(net, mapping.span, &output, &declared, &mut reported);
        }
    }

    fn undeclared(
        &mut self,
        net: &NetPart,
        span: Span,
        output: &Rows,
        declared: &[&Row],
        reported: &mut Vec<Row>,
    ) {
        for certain in [true, false] {
            let rows: Vec<&(Row, Mark)> = output
                .iter()
                .filter(|(row, mark)| {
                    mark.certain == certain && !row.is_one_of(declared.iter().copied())
                })
                .filter(|(row, _)| !reported.contains(row))
                .collect();
            let Some(first) = rows.first() else {
                continue;
            };
            let puts = if certain { "outputs" } else { "may output" };
            let which = show(rows.iter().map(|(row, _)| row), " and ");
            let message =
                format!("net `{}` {puts} {which}, which its signature does not declare", net.name);
            let declares = format!("declares {}", show(declared.iter().copied(), " | "));
            // Not an error: routing depends on the actual output, and the first implementation of
            // S-Net accepts such nets (`examples/fibonacci/fibonacci6.snet` of its run-time system
            // is one).
            let help = if certain {
                "add it to the signature, or convert it before the end of the net"
            } else {
                PASSES
            };
            let diagnostic = Diagnostic::warning(message, span, declares).help(help);
            reported.extend(rows.iter().map(|(row, _)| row.clone()));
            self.diagnostics
                .push(diagnostic.and(first.1.origin, format!("{} is produced here", first.0)));
        }
    }

    /// Reports every part that cannot take a row, in the order of the program.
    fn failures(&mut self) {
        let mut diagnostics = Vec::new();
        visit(&self.net.body, &mut |part| {
            let note = self.flow.notes.get(&part.number);
            diagnostics.extend(
                note.and_then(|n| n.failure.as_ref()).map(|failure| unroutable(part, failure)),
            );
            if let (Kind::Filter(filter), Some(lack)) =
                (&part.kind, note.and_then(|n| n.lack.as_ref()))
            {
                diagnostics.push(lacking(part, filter, lack));
            }
        });
        self.diagnostics.append(&mut diagnostics);
    }

    fn warnings(&mut self) {
        let body: &'a Part = &self.net.body;
        let mut parts = Vec::new();
        visit(body, &mut |part| {
            parts.push(part);
            let outputs = match &part.kind {
                Kind::Box(box_part) => &box_part.outputs,
                Kind::Filter(filter) => &filter.outputs,
                _ => return,
            };
            self.produced.extend(outputs.iter().flat_map(|row| row.labels()));
        });
        self.consumed = consumed(body);
        for part in parts {
            let Some(note) = self.flow.notes.get(&part.number).filter(|note| !note.came.is_empty())
            else {
                continue;
            };
            let mut found = Vec::new();
            match &part.kind {
                Kind::Parallel { branches, .. } => {
                    for i in (0..branches.len()).filter(|i| !note.hit[*i]) {
                        found.extend(self.unreached(branches, i, note));
                    }
                }
                Kind::Sync(sync) => {
                    let missed = (0..sync.patterns.len()).find(|i| !note.hit[*i]);
                    found.extend(missed.and_then(|i| self.unfilled(part, &sync.patterns[i], note)));
                }
                Kind::Star { exits, .. } if !note.hit[0] => {
                    let exit = show(exits.iter().map(|e| &e.row), " or ");
                    let mut diagnostic = Diagnostic::warning(
                        "no record ever leaves this star",
                        part.span,
                        format!("{} enters", show(note.came.iter(), " and ")),
                    )
                    .help(format!("output {exit} inside the star, or change the exit pattern"));
                    if let Some(exit) = exits.first() {
                        diagnostic = diagnostic.and(exit.span, "no output matches");
                    }
                    found.push(diagnostic);
                }
                Kind::Feedback { patterns, .. } if !note.hit[0] => {
                    let mut diagnostic = Diagnostic::warning(
                        "no record ever leaves this feedback",
                        part.span,
                        format!("{} enters again", show(note.came.iter(), " and ")),
                    )
                    .help("add a condition to the pattern, or output other records");
                    for pattern in patterns.iter().filter(|pattern| !pattern.guarded()) {
                        diagnostic = diagnostic.and(pattern.span, "always matches");
                    }
                    found.push(diagnostic);
                }
                _ => {}
            }
            self.diagnostics.append(&mut found);
        }
    }

    fn unreached(&self, branches: &[Rc<Part>], i: usize, note: &Note) -> Option<Diagnostic> {
        let part = &branches[i];
        let takes = taken(part);
        // An initialiser needs no input.
        if takes.accepts.is_empty()
            || self.may_bring(part, takes.rows(), note, |row| branch(branches, row) == Some(i))
        {
            return None;
        }
        let mut diagnostic = Diagnostic::warning(
            "no record reaches this branch",
            part.span,
            format!("takes {}", show(takes.rows(), " | ")),
        );
        let rival = takes
            .rows()
            .find_map(|row| branch(branches, row).filter(|j| *j != i).map(|j| (j, row)));
        let (help, taker) = match rival {
            Some((j, row)) => (
                "remove one of the branches, or let one take more labels".to_string(),
                Some((j, row)),
            ),
            None => {
                let nearest = note.came.iter().filter_map(|s| Some((branch(branches, s)?, s)));
                let nearest = nearest.max_by_key(|(_, s)| takes.rows().map(|v| v.overlap(s)).max());
                let help = match nearest.and_then(|(_, s)| Some((s, closest(takes.rows(), s)?))) {
                    Some((s, v)) if !s.includes(v) => format!(
                        "no record here has {}: remove the branch, or add the label to the \
                         records (and to the declared signature of the net)",
                        Named(&v.without(s))
                    ),
                    _ => "remove it".to_string(),
                };
                (help, nearest)
            }
        };
        if let Some((j, row)) = taker {
            diagnostic = diagnostic.and(branches[j].span, format!("{row} is routed here"));
        }
        Some(diagnostic.help(help))
    }

    fn unfilled(&self, part: &Part, pattern: &PatternPart, note: &Note) -> Option<Diagnostic> {
        if self.may_bring(part, std::iter::once(&pattern.row), note, |_| true) {
            return None;
        }
        Some(
            Diagnostic::warning(
                "this synchrocell can never merge records",
                pattern.span,
                format!("no record here matches {}", pattern.row),
            )
            .and(part.span, format!("{} arrives here", show(note.came.iter(), " and ")))
            .help("change the pattern, or output such records before"),
        )
    }

    /// Labels of a row that a part of the net produces.
    fn certain(&self, row: &Row) -> Row {
        Row::new(row.labels().iter().copied().filter(|l| self.produced.contains(l)).collect())
    }

    /// Whether one of these variants can reach a part although no part of the net produces it. The
    /// input of a net without a signature may have more labels, unless a part consumes them before.
    fn may_bring<'r>(
        &self,
        part: &Part,
        mut variants: impl Iterator<Item = &'r Row>,
        note: &Note,
        goes: impl Fn(&Row) -> bool,
    ) -> bool {
        if self.net.declared.is_some() {
            return false;
        }
        let inside = consumed(part);
        let free = |label: &Label| self.consumed.get(label) == inside.get(label);
        variants.any(|variant| {
            note.came.iter().any(|came| {
                came.binding() == variant.binding()
                    && variant.without(came).labels().iter().all(free)
                    && !came.includes(variant)
                    && goes(&variant.union(&self.certain(came)))
            })
        })
    }
}

/// Number of parts that consume each label.
fn consumed(part: &Part) -> HashMap<Label, usize> {
    let mut consumed = HashMap::new();
    visit(part, &mut |part| {
        let row = match &part.kind {
            Kind::Box(box_part) => &box_part.keeps,
            Kind::Filter(filter) => &filter.pattern,
            _ => return,
        };
        row.labels().iter().for_each(|label| *consumed.entry(*label).or_insert(0) += 1);
    });
    consumed
}

/// Variant with the most labels in common with a row.
fn closest<'r>(variants: impl Iterator<Item = &'r Row>, row: &Row) -> Option<&'r Row> {
    variants.min_by_key(|v| (std::cmp::Reverse(v.overlap(row)), v.len()))
}

/// Help for rows that may pass a synchrocell.
const PASSES: &str = "a synchrocell passes records on whose pattern has a record already, and all \
                      records after the merge; for more records, put it into a star: \
                      `[|{A}, {B}|] * {A, B}`";

fn unroutable(part: &Part, failure: &Failure) -> Diagnostic {
    let row = &failure.row;
    let (what, wants): (String, Vec<&Row>) = match &part.kind {
        Kind::Box(box_part) => {
            (format!("box `{}`", box_part.plan.name), box_part.input.iter().collect())
        }
        Kind::Filter(filter) => {
            (format!("filter `{}`", brief(&filter.plan.text)), vec![&filter.needs])
        }
        Kind::Net(net) => {
            let inputs = net.declared.iter().flat_map(|d| d.inputs().map(|(row, _)| row));
            (format!("net `{}`", net.name), inputs.collect())
        }
        Kind::Parallel { branches, .. } => {
            ("no branch".into(), branches.iter().flat_map(|b| taken(b).rows()).collect())
        }
        _ => ("this split".into(), Vec::new()),
    };
    let none = matches!(part.kind, Kind::Parallel { .. });
    let verb = match (none, failure.mark.certain) {
        (true, true) => "takes",
        (true, false) => "would take",
        (false, true) => "cannot take",
        (false, false) => "could not take",
    };
    let (mut reason, mut help);
    let label;
    if let Kind::Split { tag, .. } = &part.kind {
        reason = format!("it has no {tag}");
        help = format!("add {tag} before, or pass such records on: `(... ! {tag} | [])`");
        label = format!("selects by the value of {tag}");
    } else if let Some(want) = closest(wants.iter().copied(), row) {
        let missing = want.without(row);
        let besides: Vec<String> =
            row.binding().iter().filter(|l| !want.contains(**l)).map(|l| l.to_string()).collect();
        (reason, help) = if missing.len() > 0 {
            (format!("it has no {}", Named(&missing)), format!("add {} before", Named(&missing)))
        } else {
            let besides = besides.join(", ");
            (
                format!("it also has {besides}"),
                format!("take {besides} here: a binding tag never flows past"),
            )
        };
        if none {
            reason = String::new();
            match want.overlap(row) {
                0 => help.clear(),
                _ => help.push_str(", or "),
            }
            help.push_str("add a branch for such records");
            help.push_str(if row.binding().is_empty() { "; `[]` takes every record" } else { "" });
        } else if missing.len() > 0 && row.binding().is_empty() {
            help.push_str(", or pass such records on: `(... | [])`");
        }
        label = match &part.kind {
            Kind::Filter(filter) => format!("takes {}", filter.pattern),
            _ => format!("takes {}", show(wants.iter().copied(), " | ")),
        };
    } else {
        // Initialiser.
        (reason, help) = (
            "it takes no records".into(),
            "put it in parallel to the part that does: `(... | ...)`".into(),
        );
        label = "runs once, without a record".into();
    }
    if !reason.is_empty() {
        reason.insert_str(0, ": ");
    }
    let message = format!("{what} {verb} {row}{reason}");
    let diagnostic = if failure.mark.certain {
        Diagnostic::error(message, part.span, label).help(help)
    } else {
        Diagnostic::warning(message, part.span, label).help(PASSES)
    };
    diagnostic.and(failure.mark.origin, format!("{row} is produced here"))
}

/// Reports a filter that removes a label that a record does not have. The filter passes the record
/// on, as in the first implementation of S-Net, whose programs rely on it.
fn lacking(part: &Part, filter: &FilterPart, Failure { row, mark }: &Failure) -> Diagnostic {
    let missing = filter.pattern.without(row);
    let reaches = if mark.certain { "reaches" } else { "may reach" };
    let message = format!(
        "{row} {reaches} filter `{}` without {}",
        brief(&filter.plan.text),
        Named(&missing)
    );
    Diagnostic::warning(message, part.span, format!("removes {}", Named(&missing)))
        .help("the filter removes nothing then; to pass such records on, write `(... | [])`")
        .and(mark.origin, format!("{row} is produced here"))
}

/// Shortens a text for the middle of a message.
fn brief(text: &str) -> String {
    const LETTERS_MAX: usize = 60;
    match text.char_indices().nth(LETTERS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}
