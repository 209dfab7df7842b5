//! From definitions to parts: names resolved, labels made, and each definition looked at for itself.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use crate::ast::{
    BoxDefinition, BoxInput, Entry, Expr, ExprKind, Filter, Module, Name, OutputEntry, OutputType, Pattern,
    SignatureItem, Span, Topology, TopologyKind, TypeItem, Variant,
};
use crate::diagnostic::Diagnostic;
use crate::error::TooMany;
use crate::expression::{Binary, Expression};
use crate::label::{Kind as LabelKind, Label};
use crate::plan;
use crate::record::Record;
use crate::shape::Shape;

use super::part::{
    BoxPart, FilterPart, Kind, Mapping, NetPart, Part, PatternPart, Signature, SyncPart, Type,
};
use super::row::Row;
use super::scope::{Defined, Scopes, Thing, too_deep};
use super::text::Text;
use super::{DEPTH_MAX, PARTS_MAX};

/// What a definition became.
enum State<T> {
    /// Not looked at yet.
    New,
    /// Being looked at: who gets here again is defined through itself.
    Open,
    /// `None`: it is wrong, and that was said.
    Done(Option<T>),
}

/// The variants of a type, and where they stand.
type Variants = Rc<[(Row, Span)]>;

/// The mappings of a signature; each is known by its place in memory.
type Mappings = Rc<[Rc<Mapping>]>;

pub(super) struct Builder<'a> {
    scopes: Scopes<'a>,
    pub(super) diagnostics: Vec<Diagnostic>,
    boxes: Vec<State<Rc<BoxPart>>>,
    nets: Vec<State<Rc<NetPart>>>,
    types: Vec<State<Variants>>,
    signatures: Vec<State<Mappings>>,
    /// Parts made so far.
    parts: usize,
    /// Names that nobody knows, and where.
    unknown: HashSet<(String, usize)>,
    /// Whether one of the bounds was told of.
    bounded: bool,
}

/// Nothing: what is wrong was said.
struct Said;

type Built<T> = Result<T, Said>;

impl<'a> Builder<'a> {
    pub(super) fn new(module: &'a Module) -> Builder<'a> {
        let mut diagnostics = Vec::new();
        let scopes = Scopes::new(module, &mut diagnostics);
        fn new<T, D: ?Sized>(of: &[Defined<'_, D>]) -> Vec<State<T>> {
            of.iter().map(|_| State::New).collect()
        }
        Builder {
            boxes: new(&scopes.boxes),
            nets: new(&scopes.nets),
            types: new(&scopes.types),
            signatures: new(&scopes.signatures),
            scopes,
            diagnostics,
            parts: 0,
            unknown: HashSet::new(),
            bounded: false,
        }
    }

    /// Builds all that is defined, and gives the net that is wanted: the outermost one of that name, else the last.
    pub(super) fn build(&mut self, wanted: Option<&str>) -> Option<Rc<NetPart>> {
        for number in 0..self.types.len() {
            let _ = self.type_of(number, 0);
        }
        for number in 0..self.signatures.len() {
            let _ = self.signature_of(number, 0);
        }
        for number in 0..self.boxes.len() {
            let _ = self.box_of(number);
        }
        for number in 0..self.nets.len() {
            let _ = self.net_of(number, 0);
        }
        self.warn_of_unused();
        let outermost = || (0..self.scopes.nets.len()).filter(|n| self.scopes.nets[*n].level == 0);
        let named = outermost().find(|n| wanted == Some(&self.scopes.nets[*n].name.text));
        match named.or_else(|| outermost().next_back()) {
            Some(number) => self.net_of(number, 0).ok(),
            None => {
                self.diagnostics.push(
                    Diagnostic::error("there is no net in this program", Span::default(), "here it begins")
                        .help("write one: `net main connect ...;`"),
                );
                None
            }
        }
    }

    fn error(&mut self, diagnostic: Diagnostic) -> Said {
        self.diagnostics.push(diagnostic);
        Said
    }

    /// One error for a bound, however often it is met.
    fn bound(&mut self, diagnostic: Diagnostic) -> Said {
        if !std::mem::replace(&mut self.bounded, true) {
            self.diagnostics.push(diagnostic);
        }
        Said
    }

    fn too_many(&mut self, error: TooMany, span: Span) -> Said {
        self.bound(Diagnostic::error(error.to_string(), span, "one too many"))
    }

    fn unknown(&mut self, what: &str, name: &Name, scope: usize) -> Said {
        let count = self.unknown.len();
        if self.unknown.insert((format!("{what} {}", name.text), scope)) {
            let help = self.scopes.advice(what, &name.text, scope, count);
            self.diagnostics.push(
                Diagnostic::error(format!("there is no {what} `{}`", name.text), name.span, "not known here")
                    .help(help),
            );
        }
        Said
    }

    fn warn_of_unused(&mut self) {
        let boxes = self.scopes.boxes.iter().filter(|b| !b.used).map(|b| ("box", b.name));
        let nets = self.scopes.nets.iter().filter(|n| !n.used && n.level > 0).map(|n| ("net", n.name));
        for (what, name) in boxes.chain(nets) {
            self.diagnostics.push(
                Diagnostic::warning(
                    format!("{what} `{}` is never used", name.text),
                    name.span,
                    "defined here",
                )
                .help("connect it, or take it out"),
            );
        }
    }

    // ---- labels and types

    fn label(&mut self, entry: &Entry) -> Built<Label> {
        Label::new(entry.kind, &entry.name.text).map_err(|e| self.too_many(e, entry.name.span))
    }

    fn labels(&mut self, entries: &[Entry]) -> Built<Vec<Label>> {
        entries.iter().map(|entry| self.label(entry)).collect()
    }

    fn row(&mut self, variant: &Variant) -> Built<Row> {
        Ok(Row::new(self.labels(&variant.entries)?))
    }

    fn shape(&mut self, row: &Row, span: Span) -> Built<Shape> {
        row.shape().map_err(|e| self.too_many(e, span))
    }

    fn type_expression(&mut self, items: &[TypeItem], scope: usize, depth: usize) -> Built<Vec<(Row, Span)>> {
        let (mut rows, mut seen, mut ok) = (Vec::new(), HashSet::new(), true);
        for item in items {
            let found: Variants = match item {
                TypeItem::Variant(variant) => match self.row(variant) {
                    Ok(row) => Rc::from([(row, variant.span)]),
                    Err(Said) => {
                        ok = false;
                        continue;
                    }
                },
                TypeItem::Name(name) => match self.type_name(name, scope, depth) {
                    Ok(rows) => rows,
                    Err(Said) => {
                        ok = false;
                        continue;
                    }
                },
            };
            for (row, span) in found.iter() {
                if seen.insert(row.clone()) {
                    rows.push((row.clone(), *span));
                }
            }
        }
        if ok { Ok(rows) } else { Err(Said) }
    }

    fn type_name(&mut self, name: &Name, scope: usize, depth: usize) -> Built<Variants> {
        match self.scopes.type_of(&name.text, scope) {
            Some(number) if matches!(self.types[number], State::Open) => {
                Err(self.circle("type", number, name))
            }
            Some(number) => self.type_of(number, depth + 1),
            None => Err(self.unknown("type", name, scope)),
        }
    }

    fn type_of(&mut self, number: usize, depth: usize) -> Built<Variants> {
        if let State::Done(done) = &self.types[number] {
            return done.clone().ok_or(Said);
        }
        let Defined { name, value, scope, .. } = self.scopes.types[number];
        if depth > DEPTH_MAX {
            return Err(self.bound(too_deep(name.span)));
        }
        self.types[number] = State::Open;
        let built = self.type_expression(value, scope, depth).ok().map(Rc::from);
        self.types[number] = State::Done(built.clone());
        built.ok_or(Said)
    }

    fn circle(&mut self, what: &str, number: usize, name: &Name) -> Said {
        let first = match what {
            "type" => self.scopes.types[number].name.span,
            "typesig" => self.scopes.signatures[number].name.span,
            _ => self.scopes.nets[number].name.span,
        };
        let (message, help) = match what {
            "net" => {
                ("used within itself", "repeat with a star, `a * {...}`, or with feedback, `a \\ {...}`")
            }
            _ => ("defined through itself", "write out what it stands for"),
        };
        self.error(
            Diagnostic::error(format!("{what} `{}` is {message}", name.text), name.span, "used here")
                .and(first, "defined here")
                .help(help),
        )
    }

    fn mappings(&mut self, items: &[SignatureItem], scope: usize, depth: usize) -> Built<Vec<Rc<Mapping>>> {
        let (mut mappings, mut seen, mut ok) = (Vec::new(), HashSet::new(), true);
        for item in items {
            let found = match item {
                SignatureItem::Name(name) => self.signature_name(name, scope, depth),
                SignatureItem::Mapping { input, output, span } => {
                    self.mapping(input, output, *span, scope, depth).map(|m| Rc::from([Rc::new(m)]))
                }
            };
            match found {
                // A mapping is known by its place: names may lead to it in many ways.
                Ok(found) => mappings.extend(found.iter().filter(|m| seen.insert(Rc::as_ptr(m))).cloned()),
                Err(Said) => ok = false,
            }
        }
        if ok { Ok(mappings) } else { Err(Said) }
    }

    fn mapping(
        &mut self,
        input: &[TypeItem],
        output: &OutputType,
        span: Span,
        scope: usize,
        depth: usize,
    ) -> Built<Mapping> {
        let input = self.type_expression(input, scope, depth);
        let output = match output {
            OutputType::Infer => Ok(None),
            OutputType::Type(items) => self.type_expression(items, scope, depth).map(Some),
        };
        let output = output?.map(|rows| rows.into_iter().map(|(row, _)| row).collect());
        Ok(Mapping { input: input?, output, span })
    }

    fn signature_name(&mut self, name: &Name, scope: usize, depth: usize) -> Built<Mappings> {
        match self.scopes.signature(&name.text, scope) {
            Some(n) if matches!(self.signatures[n], State::Open) => Err(self.circle("typesig", n, name)),
            Some(n) => self.signature_of(n, depth + 1),
            None => Err(self.unknown("typesig", name, scope)),
        }
    }

    fn signature_of(&mut self, number: usize, depth: usize) -> Built<Mappings> {
        if let State::Done(done) = &self.signatures[number] {
            return done.clone().ok_or(Said);
        }
        let Defined { name, value, scope, .. } = self.scopes.signatures[number];
        if depth > DEPTH_MAX {
            return Err(self.bound(too_deep(name.span)));
        }
        self.signatures[number] = State::Open;
        let built = self.mappings(value, scope, depth).ok().map(Rc::from);
        self.signatures[number] = State::Done(built.clone());
        built.ok_or(Said)
    }

    // ---- boxes

    fn box_of(&mut self, number: usize) -> Built<Rc<BoxPart>> {
        if let State::Done(done) = &self.boxes[number] {
            return done.clone().ok_or(Said);
        }
        let definition = self.scopes.boxes[number].value;
        let built = self.box_part(definition).ok().map(Rc::new);
        self.boxes[number] = State::Done(built.clone());
        built.ok_or(Said)
    }

    fn box_part(&mut self, definition: &BoxDefinition) -> Built<BoxPart> {
        let name = &definition.name.text;
        let mut input = None;
        if let Some(written) = &definition.input {
            self.once(written.iter().map(|i| &i.entry), &format!("the input of box `{name}`"))?;
            let mut entries = Vec::new();
            for BoxInput { entry, passes } in written {
                let label = self.label(entry)?;
                if *passes && entry.kind == LabelKind::BindingTag {
                    self.diagnostics.push(
                        Diagnostic::warning(
                            format!("`{} =`: a binding tag never flows past a box", Text(entry)),
                            entry.name.span,
                            "does not pass",
                        )
                        .help("put it out as well, or leave the `=` out"),
                    );
                }
                entries.push(plan::BoxEntry { label, passes: *passes });
            }
            input = Some(entries);
        }
        let mut outputs = Vec::new();
        for (i, output) in definition.outputs.iter().enumerate() {
            self.once(output.iter(), &format!("output {} of box `{name}`", i + 1))?;
            outputs.push(self.labels(output)?);
        }
        let entries = input.as_deref().unwrap_or(&[]);
        let row = Row::new(entries.iter().map(|e| e.label).collect());
        let plan = plan::BoxPlan {
            name: name.clone(),
            accepts: self.shape(&row, definition.name.span)?,
            outputs: outputs.clone(),
            body: definition.body.clone(),
            input: input.clone(),
        };
        Ok(BoxPart {
            name_span: definition.name.span,
            keeps: Row::new(entries.iter().filter(|e| !e.passes).map(|e| e.label).collect()),
            takes: Rc::new(Type::of(input.is_some().then(|| row.clone()))),
            input: input.is_some().then_some(row),
            outputs: outputs.into_iter().map(Row::new).collect(),
            plan: Arc::new(plan),
        })
    }

    /// Says what stands twice in a list.
    fn once<'b>(&mut self, entries: impl Iterator<Item = &'b Entry>, of: &str) -> Built<()> {
        let mut seen: std::collections::HashMap<(LabelKind, &str), Span> = Default::default();
        let mut built = Ok(());
        for entry in entries {
            if let Some(first) = seen.insert((entry.kind, &entry.name.text), entry.name.span) {
                built = Err(self.error(
                    Diagnostic::error(
                        format!("{} stands twice in {of}", Text(entry)),
                        entry.name.span,
                        "again here",
                    )
                    .and(first, "first here")
                    .help("take one of them out, or give it another name"),
                ));
            }
        }
        built
    }

    // ---- nets

    fn net_of(&mut self, number: usize, depth: usize) -> Built<Rc<NetPart>> {
        if let State::Done(done) = &self.nets[number] {
            return done.clone().ok_or(Said);
        }
        let Defined { name, value, scope, .. } = self.scopes.nets[number];
        if depth > DEPTH_MAX {
            return Err(self.bound(too_deep(name.span)));
        }
        self.nets[number] = State::Open;
        let declared = match &value.signature {
            Some(items) => self.mappings(items, scope, 0).map(Some),
            None => Ok(None),
        };
        let body = self.topology(&value.topology, scope, depth + 1);
        let built = match (declared, body) {
            (Ok(declared), Ok(body)) => Some(Rc::new(NetPart {
                number,
                name: name.text.as_str().into(),
                name_span: name.span,
                body,
                declared: declared.map(|mappings| Signature { mappings }),
            })),
            _ => None,
        };
        self.nets[number] = State::Done(built.clone());
        built.ok_or(Said)
    }

    fn part(&mut self, kind: Kind, span: Span) -> Built<Rc<Part>> {
        let part = Part::new(self.parts, span, kind);
        self.parts += 1;
        if part.depth > DEPTH_MAX {
            return Err(self.bound(too_deep(span)));
        }
        if part.size > PARTS_MAX {
            return Err(self.bound(
                Diagnostic::error(
                    format!("this net has more than {PARTS_MAX} parts, those of the nets in it counted once for each use"),
                    span,
                    "with this",
                )
                .help("repeat with `*` or `!`, which make a part when a record comes for it"),
            ));
        }
        Ok(Rc::new(part))
    }

    fn topology(&mut self, topology: &Topology, scope: usize, depth: usize) -> Built<Rc<Part>> {
        if depth > DEPTH_MAX {
            return Err(self.bound(too_deep(topology.span)));
        }
        let kind = match &topology.kind {
            TopologyKind::Name(name) => self.name(name, scope, depth)?,
            TopologyKind::Identity => Kind::Identity,
            TopologyKind::Filter(filter) => Kind::Filter(self.filter(filter)?),
            TopologyKind::Sync(patterns) => Kind::Sync(self.sync(patterns)?),
            TopologyKind::Serial(parts) => self.serial(parts, scope, depth)?,
            TopologyKind::Parallel { deterministic, branches } => {
                self.parallel(*deterministic, branches, scope, depth)?
            }
            TopologyKind::Star { deterministic, operand, exits } => {
                let (operand, exits) = (self.topology(operand, scope, depth + 1), self.patterns(exits));
                Kind::Star { deterministic: *deterministic, operand: operand?, exits: exits? }
            }
            TopologyKind::Split { deterministic, placed, operand, tag } => {
                let (operand, tag) = (self.topology(operand, scope, depth + 1), self.label(tag));
                Kind::Split { deterministic: *deterministic, placed: *placed, operand: operand?, tag: tag? }
            }
            TopologyKind::Feedback { operand, patterns } => {
                let (operand, patterns) = (self.topology(operand, scope, depth + 1), self.patterns(patterns));
                Kind::Feedback { operand: operand?, patterns: patterns? }
            }
            TopologyKind::Place { operand, place } => {
                Kind::Place { operand: self.topology(operand, scope, depth + 1)?, place: *place }
            }
        };
        self.part(kind, topology.span)
    }

    fn name(&mut self, name: &Name, scope: usize, depth: usize) -> Built<Kind> {
        match self.scopes.thing(&name.text, scope) {
            Some(Thing::Box(number)) => {
                self.scopes.boxes[number].used = true;
                Ok(Kind::Box(self.box_of(number)?))
            }
            Some(Thing::Net(number)) => {
                self.scopes.nets[number].used = true;
                if matches!(self.nets[number], State::Open) {
                    return Err(self.circle("net", number, name));
                }
                Ok(Kind::Net(self.net_of(number, depth)?))
            }
            None => Err(self.unknown("box or net", name, scope)),
        }
    }

    /// All of a list, though some may be wrong.
    fn all(&mut self, list: &[Topology], scope: usize, depth: usize) -> Built<Vec<Rc<Part>>> {
        let mut parts = Vec::with_capacity(list.len());
        let mut ok = true;
        for topology in list {
            match self.topology(topology, scope, depth + 1) {
                Ok(part) => parts.push(part),
                Err(Said) => ok = false,
            }
        }
        if ok { Ok(parts) } else { Err(Said) }
    }

    fn serial(&mut self, list: &[Topology], scope: usize, depth: usize) -> Built<Kind> {
        let mut flat = Vec::with_capacity(list.len());
        for part in self.all(list, scope, depth)? {
            match &part.kind {
                Kind::Serial(inner) => flat.extend(inner.iter().cloned()),
                _ => flat.push(part),
            }
        }
        Ok(Kind::Serial(flat))
    }

    fn parallel(&mut self, same: bool, list: &[Topology], scope: usize, depth: usize) -> Built<Kind> {
        let mut flat = Vec::with_capacity(list.len());
        for part in self.all(list, scope, depth)? {
            match &part.kind {
                Kind::Parallel { deterministic, branches } if *deterministic == same => {
                    flat.extend(branches.iter().cloned());
                }
                _ => flat.push(part),
            }
        }
        Ok(Kind::Parallel { deterministic: same, branches: flat })
    }

    // ---- patterns, filters, expressions

    fn patterns(&mut self, patterns: &[Pattern]) -> Built<Vec<PatternPart>> {
        let mut ok = true;
        let mut parts = Vec::with_capacity(patterns.len());
        for pattern in patterns {
            match self.pattern(pattern) {
                Ok(part) => parts.push(part),
                Err(Said) => ok = false,
            }
        }
        if ok { Ok(parts) } else { Err(Said) }
    }

    fn pattern(&mut self, pattern: &Pattern) -> Built<PatternPart> {
        let row = self.row(&pattern.variant)?;
        let shape = self.shape(&row, pattern.span)?;
        let guard = match &pattern.guard {
            Some(guard) => Some(self.expression(guard, &pattern.variant, &row)?),
            None => None,
        };
        Ok(PatternPart { row, plan: plan::Guarded { shape, guard }, span: pattern.span })
    }

    fn sync(&mut self, patterns: &[Pattern]) -> Built<SyncPart> {
        let patterns = self.patterns(patterns)?;
        let all = patterns.iter().flat_map(|p| p.row.labels().iter().copied()).collect();
        let plan = plan::SyncPlan { patterns: patterns.iter().map(|p| p.plan.clone()).collect() };
        Ok(SyncPart { plan: Arc::new(plan), all: Row::new(all), patterns })
    }

    fn filter(&mut self, filter: &Filter) -> Built<FilterPart> {
        let pattern = self.row(&filter.pattern)?;
        let shape = self.shape(&pattern, filter.pattern.span)?;
        let (mut cases, mut rows, mut ok) = (Vec::new(), Vec::new(), true);
        let last = std::iter::once((None, &filter.otherwise));
        for (condition, action) in filter.cases.iter().map(|(c, a)| (Some(c), a)).chain(last) {
            let condition = condition.map(|c| self.expression(c, &filter.pattern, &pattern)).transpose();
            let mut outputs = Vec::new();
            for output in action {
                match self.output(&output.entries, &filter.pattern, &pattern) {
                    Ok(entries) => {
                        let row = Row::new(entries.iter().map(|(label, _)| *label).collect());
                        if !rows.contains(&row) {
                            rows.push(row);
                        }
                        outputs.push(plan::OutputPlan { entries });
                    }
                    Err(Said) => ok = false,
                }
            }
            match condition {
                Ok(condition) => cases.push((condition, outputs)),
                Err(Said) => ok = false,
            }
        }
        if !ok {
            return Err(Said);
        }
        let plan = plan::FilterPlan { pattern: shape, cases, text: Text(filter).to_string() };
        let needs = Row::new(plan.needs());
        Ok(FilterPart { plan: Arc::new(plan), pattern, needs, outputs: rows })
    }

    fn output(
        &mut self,
        entries: &[OutputEntry],
        pattern: &Variant,
        row: &Row,
    ) -> Built<Vec<(Label, plan::Source)>> {
        let made: Vec<Entry> = entries
            .iter()
            .map(|entry| match entry {
                OutputEntry::Field { name, .. } => Entry { kind: LabelKind::Field, name: name.clone() },
                OutputEntry::Tag { entry, .. } => entry.clone(),
            })
            .collect();
        let once = self.once(made.iter(), "one output of the filter");
        let (mut output, mut ok) = (Vec::new(), once.is_ok());
        for (entry, made) in entries.iter().zip(&made) {
            match self.source(entry, pattern, row) {
                Ok(source) => output.push((self.label(made)?, source)),
                Err(Said) => ok = false,
            }
        }
        if ok { Ok(output) } else { Err(Said) }
    }

    fn source(&mut self, entry: &OutputEntry, pattern: &Variant, row: &Row) -> Built<plan::Source> {
        match entry {
            OutputEntry::Field { name, from } => {
                let from = Entry { kind: LabelKind::Field, name: from.as_ref().unwrap_or(name).clone() };
                let label = self.label(&from)?;
                if !row.contains(label) {
                    return Err(self.outside(&from, pattern, "copies"));
                }
                Ok(plan::Source::Label(label))
            }
            OutputEntry::Tag { entry, value: None } => {
                let label = self.label(entry)?;
                Ok(match row.contains(label) {
                    true => plan::Source::Label(label),
                    false => plan::Source::Value(Expression::Number(0)),
                })
            }
            OutputEntry::Tag { value: Some(value), .. } => {
                Ok(plan::Source::Value(self.expression(value, pattern, row)?))
            }
        }
    }

    /// The error for a label that a pattern lacks.
    fn outside(&mut self, entry: &Entry, pattern: &Variant, does: &str) -> Said {
        let mut wider = pattern.clone();
        wider.entries.push(entry.clone());
        self.error(
            Diagnostic::error(
                format!("this {does} {}, which the pattern {} does not have", Text(entry), Text(pattern)),
                entry.name.span,
                "not in the pattern",
            )
            .and(pattern.span, "the pattern")
            .help(format!("let the pattern take it: {}", Text(&wider))),
        )
    }

    fn expression(&mut self, expr: &Expr, pattern: &Variant, row: &Row) -> Built<Expression> {
        Ok(match &expr.kind {
            ExprKind::Number(n) => Expression::Number(*n),
            ExprKind::Tag(entry) => {
                let label = self.label(entry)?;
                if !row.contains(label) {
                    return Err(self.outside(entry, pattern, "reads"));
                }
                Expression::Tag(label)
            }
            ExprKind::Unary(operator, a) => {
                Expression::Unary(*operator, Box::new(self.expression(a, pattern, row)?))
            }
            ExprKind::Binary(operator, a, b) => {
                let a = self.expression(a, pattern, row);
                let right = self.expression(b, pattern, row)?;
                if matches!(operator, Binary::Divide | Binary::Remainder) && is_zero(&right) {
                    self.diagnostics.push(
                        Diagnostic::warning("this divides by 0, always", b.span, "is 0")
                            .help("a record that gets here ends with an error; divide by something else"),
                    );
                }
                Expression::Binary(*operator, Box::new(a?), Box::new(right))
            }
            ExprKind::Conditional(a, b, c) => {
                let a = self.expression(a, pattern, row);
                let b = self.expression(b, pattern, row);
                let c = self.expression(c, pattern, row)?;
                Expression::Conditional(Box::new(a?), Box::new(b?), Box::new(c))
            }
        })
    }
}

/// Whether an expression is 0 whatever the record.
fn is_zero(expression: &Expression) -> bool {
    let mut constant = true;
    expression.tags(&mut |_| constant = false);
    constant && expression.value(&Record::new(Shape::empty(), Vec::new())) == Ok(0)
}
