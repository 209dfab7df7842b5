//! What is to be said of a net after rows went through it.

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

/// What a net takes and what comes out of it.
pub(super) struct Verdict {
    pub(super) input: Vec<Row>,
    pub(super) output: Vec<Row>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

/// Infers the types in a net, and lets all that may come flow through.
pub(super) fn judge(net: &NetPart) -> Verdict {
    let mut inference = Flow::new(Mode::Infer);
    infer(&mut inference, &net.body);
    let input = inputs(&mut inference, net);
    let mut judge = Judge {
        net,
        flow: Flow::new(Mode::Judge),
        diagnostics: Vec::new(),
        consumed: HashMap::new(),
        made: HashSet::new(),
    };
    let mut output = Rows::default();
    if inference.gave_up.is_none() {
        let rows = input.iter().fold(Rows::default(), |mut rows, (row, origin)| {
            rows.add(row.clone(), Mark { certain: true, origin: *origin });
            rows
        });
        output = judge.flow.inside(net, rows);
        judge.declared();
        judge.failures();
        if judge.flow.gave_up.is_none() && !judge.diagnostics.iter().any(|d| d.severity == Severity::Error) {
            judge.warnings();
        }
    }
    if let Some(span) = inference.gave_up.or(judge.flow.gave_up) {
        judge.diagnostics.push(
            Diagnostic::warning(
                "the types in this net are too large to follow: whether records can go their ways was not checked",
                span,
                "too large here",
            )
            .help(format!("types of more than {VARIANTS_MAX} variants are; make nets smaller, and declare what they take")),
        );
    }
    Verdict {
        input: input.into_iter().map(|(row, _)| row).collect(),
        output: output.into_iter().map(|(row, _)| row).collect(),
        diagnostics: judge.diagnostics,
    }
}

/// What goes into a net: what it declares, or what was inferred, but for what may be left out and gets stuck.
fn inputs(inference: &mut Flow, net: &NetPart) -> Vec<(Row, Span)> {
    if let Some(declared) = &net.declared {
        let mut seen = HashSet::new();
        return declared.inputs().filter(|(row, _)| seen.insert(row.clone())).cloned().collect();
    }
    let mut input = Vec::new();
    for variant in &taken(&net.body).accepts {
        if variant.optional && inference.gave_up.is_none() {
            inference.stuck = false;
            let mark = Mark { certain: true, origin: net.name_span };
            inference.inside(net, Rows::one(variant.row.clone(), mark));
            if inference.stuck {
                continue;
            }
        }
        input.push((variant.row.clone(), net.name_span));
    }
    input
}

struct Judge<'a> {
    net: &'a NetPart,
    flow: Flow,
    diagnostics: Vec<Diagnostic>,
    /// How many parts take away a label, and which labels some part makes. Filled where they are needed.
    consumed: HashMap<Label, usize>,
    made: HashSet<Label>,
}

/// Variants that a message shows.
const SHOWN_MAX: usize = 6;

fn show<'a>(rows: impl Iterator<Item = &'a Row>, between: &str) -> String {
    let mut shown: Vec<String> = rows.take(SHOWN_MAX + 1).map(|row| row.to_string()).collect();
    if shown.len() > SHOWN_MAX {
        shown[SHOWN_MAX] = "...".into();
    }
    if shown.is_empty() { "nothing".into() } else { shown.join(between) }
}

impl<'a> Judge<'a> {
    /// Each net that declares a type must hold it, whatever comes to it in this program.
    fn declared(&mut self) {
        let mut nets: Vec<&'a NetPart> = vec![self.net];
        let mut seen = HashSet::from([self.net.number]);
        visit(&self.net.body, &mut |part| {
            if let Kind::Net(net) = &part.kind
                && net.declared.is_some()
                && seen.insert(net.number)
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
        let mut input = Rows::default();
        signature.inputs().for_each(|(row, origin)| {
            input.add(row.clone(), Mark { certain: true, origin: *origin });
        });
        let output = self.flow.inside(net, input);
        let mut told = Vec::new();
        if net.body.syncs || mappings.len() == 1 {
            // What comes for one mapping depends on what comes for the others.
            if mappings.iter().all(|m| m.output.is_some()) {
                let declared: Vec<&Row> = mappings.iter().flat_map(|m| m.output.iter().flatten()).collect();
                let span = mappings.iter().map(|m| m.span).reduce(Span::to).unwrap_or(net.name_span);
                self.undeclared(net, span, &output, &declared, &mut told);
            }
            return;
        }
        for mapping in mappings {
            let Some(declared) = &mapping.output else {
                continue;
            };
            let mut input = Rows::default();
            for (row, origin) in &mapping.input {
                input.add(row.clone(), Mark { certain: true, origin: *origin });
            }
            let output = self.flow.inside(net, input);
            self.undeclared(net, mapping.span, &output, &declared.iter().collect::<Vec<_>>(), &mut told);
        }
    }

    fn undeclared(
        &mut self,
        net: &NetPart,
        span: Span,
        output: &Rows,
        declared: &[&Row],
        told: &mut Vec<Row>,
    ) {
        for certain in [true, false] {
            let rows: Vec<&(Row, Mark)> = output
                .iter()
                .filter(|(row, mark)| mark.certain == certain && !row.is_one_of(declared.iter().copied()))
                .filter(|(row, _)| !told.contains(row))
                .collect();
            let Some(first) = rows.first() else {
                continue;
            };
            let puts = if certain { "puts out" } else { "may put out" };
            let which = show(rows.iter().map(|(row, _)| row), " and ");
            let message = format!("net `{}` {puts} {which}, which it does not declare", net.name);
            let declares = format!("it declares {}", show(declared.iter().copied(), " | "));
            // No error: where records go is judged by what does come, and the original lets nets put out more than they
            // declare (`examples/fibonacci/fibonacci6.snet` beside its run-time does).
            let help = if certain { "declare it as well, or make it fit before the end" } else { PASSES };
            let diagnostic = Diagnostic::warning(message, span, declares).help(help);
            told.extend(rows.iter().map(|(row, _)| row.clone()));
            self.diagnostics.push(diagnostic.and(first.1.origin, format!("{} comes from here", first.0)));
        }
    }

    /// All parts that could not take what came to them, in the order of the program.
    fn failures(&mut self) {
        let mut diagnostics = Vec::new();
        visit(&self.net.body, &mut |part| {
            let note = self.flow.notes.get(&part.number);
            diagnostics
                .extend(note.and_then(|n| n.failure.as_ref()).map(|failure| unroutable(part, failure)));
            if let (Kind::Filter(filter), Some(lack)) = (&part.kind, note.and_then(|n| n.lack.as_ref())) {
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
            self.made.extend(outputs.iter().flat_map(|row| row.labels()));
        });
        self.consumed = consumed(body);
        for part in parts {
            let Some(note) = self.flow.notes.get(&part.number).filter(|note| !note.came.is_empty()) else {
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
                        "nothing that is in this star ever leaves it",
                        part.span,
                        format!("{} goes in", show(note.came.iter(), " and ")),
                    )
                    .help(format!("let what is in it put out {exit}, or let others leave"));
                    if let Some(exit) = exits.first() {
                        diagnostic = diagnostic.and(exit.span, "nothing that comes out of it fits");
                    }
                    found.push(diagnostic);
                }
                Kind::Feedback { patterns, .. } if !note.hit[0] => {
                    let mut diagnostic = Diagnostic::warning(
                        "nothing ever leaves this feedback",
                        part.span,
                        format!("{} comes out, and goes in again", show(note.came.iter(), " and ")),
                    )
                    .help("give what goes in again a condition, or let it put out others");
                    for pattern in patterns.iter().filter(|pattern| !pattern.guarded()) {
                        diagnostic = diagnostic.and(pattern.span, "fits always");
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
        // An initialiser waits for nothing.
        if takes.accepts.is_empty()
            || self.may_bring(part, takes.rows(), note, |row| branch(branches, row) == Some(i))
        {
            return None;
        }
        let mut diagnostic = Diagnostic::warning(
            "no record gets to this branch",
            part.span,
            format!("it takes {}", show(takes.rows(), " | ")),
        );
        let rival = takes.rows().find_map(|row| branch(branches, row).filter(|j| *j != i).map(|j| (j, row)));
        let (help, taker) = match rival {
            Some((j, row)) => ("take one of them out, or let it take more".to_string(), Some((j, row))),
            None => {
                let nearest = note.came.iter().filter_map(|s| Some((branch(branches, s)?, s)));
                let nearest = nearest.max_by_key(|(_, s)| takes.rows().map(|v| v.overlap(s)).max());
                let help = match nearest.and_then(|(_, s)| Some((s, closest(takes.rows(), s)?))) {
                    Some((s, v)) if !s.includes(v) => format!(
                        "records that get here have no {}: take the branch out, or let them bring it (a net that declares what \
                         it takes declares that too)",
                        Named(&v.without(s))
                    ),
                    _ => "take it out".to_string(),
                };
                (help, nearest)
            }
        };
        if let Some((j, row)) = taker {
            diagnostic = diagnostic.and(branches[j].span, format!("{row} goes here"));
        }
        Some(diagnostic.help(help))
    }

    fn unfilled(&self, part: &Part, pattern: &PatternPart, note: &Note) -> Option<Diagnostic> {
        if self.may_bring(part, std::iter::once(&pattern.row), note, |_| true) {
            return None;
        }
        Some(
            Diagnostic::warning(
                "this synchrocell can never fire",
                pattern.span,
                format!("no record that gets here fits {}", pattern.row),
            )
            .and(part.span, format!("{} gets here", show(note.came.iter(), " and ")))
            .help("change the pattern, or let such records come"),
        )
    }

    /// What of a row is not just brought along.
    fn certain(&self, row: &Row) -> Row {
        Row::new(row.labels().iter().copied().filter(|l| self.made.contains(l)).collect())
    }

    /// Whether one of these variants might come to a part though nobody in the net makes it: where the net does not say what
    /// it takes, its input may bring more along, if it is not consumed on the way.
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

/// How many parts take away each label.
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

/// The variant that has most in common with a row.
fn closest<'r>(variants: impl Iterator<Item = &'r Row>, row: &Row) -> Option<&'r Row> {
    variants.min_by_key(|v| (std::cmp::Reverse(v.overlap(row)), v.len()))
}

/// What to do about what may come past a synchrocell.
const PASSES: &str = "a synchrocell lets pass what comes when its place is taken, and all once it has fired; \
                      if more records come, put it into a star: `[|{A}, {B}|] * {A, B}`";

fn unroutable(part: &Part, failure: &Failure) -> Diagnostic {
    let row = &failure.row;
    let (what, wants): (String, Vec<&Row>) = match &part.kind {
        Kind::Box(box_part) => (format!("box `{}`", box_part.plan.name), box_part.input.iter().collect()),
        Kind::Filter(filter) => (format!("filter `{}`", brief(&filter.plan.text)), vec![&filter.needs]),
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
        help = format!("put {tag} out before, or let such records past: `(... ! {tag} | [])`");
        label = format!("goes by the value of {tag}");
    } else if let Some(want) = closest(wants.iter().copied(), row) {
        let missing = want.without(row);
        let besides: Vec<String> =
            row.binding().iter().filter(|l| !want.contains(**l)).map(|l| l.to_string()).collect();
        (reason, help) = if missing.len() > 0 {
            (format!("it has no {}", Named(&missing)), format!("put {} out before", Named(&missing)))
        } else {
            let besides = besides.join(", ");
            (
                format!("it has {besides} besides"),
                format!("name {besides} here: a binding tag never flows past"),
            )
        };
        if none {
            reason = String::new();
            match want.overlap(row) {
                0 => help.clear(),
                _ => help.push_str(", or "),
            }
            help.push_str("add a branch for such records");
            help.push_str(if row.binding().is_empty() { "; `[]` takes all" } else { "" });
        } else if missing.len() > 0 && row.binding().is_empty() {
            help.push_str(", or let such records past: `(... | [])`");
        }
        label = match &part.kind {
            Kind::Filter(filter) => format!("takes {}", filter.pattern),
            _ => format!("takes {}", show(wants.iter().copied(), " | ")),
        };
    } else {
        // An initialiser.
        (reason, help) =
            ("it takes no records".into(), "put it beside what they go to: `(... | ...)`".into());
        label = "called once, without a record".into();
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
    diagnostic.and(failure.mark.origin, format!("{row} comes from here"))
}

/// A filter that takes away what is not there lets the rest pass. Programs that were written for the original compiler do
/// so: it never looks.
fn lacking(part: &Part, filter: &FilterPart, Failure { row, mark }: &Failure) -> Diagnostic {
    let missing = filter.pattern.without(row);
    let comes = if mark.certain { "comes" } else { "may come" };
    let message =
        format!("{row} {comes} to filter `{}` without {}", brief(&filter.plan.text), Named(&missing));
    Diagnostic::warning(message, part.span, format!("takes away {}", Named(&missing)))
        .help("nothing is taken away then; let such records past, if that is meant: `(... | [])`")
        .and(mark.origin, format!("{row} comes from here"))
}

/// A text cut short, for the middle of a message.
fn brief(text: &str) -> String {
    const LETTERS_MAX: usize = 60;
    match text.char_indices().nth(LETTERS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}
