//! Builder of parts from definitions: resolves names, creates labels, and checks each definition by
//! itself.

mod net;
mod pattern;
mod signature;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use crate::ast::{BoxDefinition, BoxInput, Entry, Module, Name, Span};
use crate::diagnostic::Diagnostic;
use crate::error::Error;
use crate::label::Kind as LabelKind;
use crate::plan;

use super::part::{BoxPart, Mapping, NetPart, Type};
use super::row::Row;
use super::scope::{Defined, Scopes};
use super::text::Text;

/// Progress of a definition.
enum State<T> {
    /// Not yet built.
    New,
    /// Being built. A use in this state is a cycle.
    Open,
    /// Built. `None` after a reported error.
    Done(Option<T>),
}

/// Variants of a type, with their places.
type Variants = Rc<[(Row, Span)]>;

/// Mappings of a signature, each identified by its address.
type Mappings = Rc<[Rc<Mapping>]>;

pub(super) struct Builder<'a> {
    scopes: Scopes<'a>,
    pub(super) diagnostics: Vec<Diagnostic>,
    boxes: Vec<State<Rc<BoxPart>>>,
    nets: Vec<State<Rc<NetPart>>>,
    types: Vec<State<Variants>>,
    signatures: Vec<State<Mappings>>,
    /// Number of parts built.
    parts: usize,
    /// Undefined names, with their scopes.
    unknown: HashSet<(String, usize)>,
    /// Whether an exceeded bound has been reported.
    bounded: bool,
}

/// Failure that a diagnostic reports.
struct Reported;

type Built<T> = Result<T, Reported>;

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

    /// Builds every definition. Returns the outermost net with the name `wanted`, or else the last
    /// outermost net.
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
                    Diagnostic::error(
                        "the program defines no net",
                        Span::default(),
                        "expected a net",
                    )
                    .help("add one: `net main connect ...;`"),
                );
                None
            }
        }
    }

    fn error(&mut self, diagnostic: Diagnostic) -> Reported {
        self.diagnostics.push(diagnostic);
        Reported
    }

    /// Reports the first exceeded bound.
    fn bound(&mut self, diagnostic: Diagnostic) -> Reported {
        if !std::mem::replace(&mut self.bounded, true) {
            self.diagnostics.push(diagnostic);
        }
        Reported
    }

    fn too_many(&mut self, error: Error, span: Span) -> Reported {
        self.bound(Diagnostic::error(error.to_string(), span, "exceeds the limit"))
    }

    fn unknown(&mut self, what: &str, name: &Name, scope: usize) -> Reported {
        let count = self.unknown.len();
        if self.unknown.insert((format!("{what} {}", name.text), scope)) {
            let help = self.scopes.advice(what, &name.text, scope, count);
            self.diagnostics.push(
                Diagnostic::error(
                    format!("undefined {what} `{}`", name.text),
                    name.span,
                    "not defined in this scope",
                )
                .help(help),
            );
        }
        Reported
    }

    fn warn_of_unused(&mut self) {
        let boxes = self.scopes.boxes.iter().filter(|b| !b.used).map(|b| ("box", b.name));
        let nets =
            self.scopes.nets.iter().filter(|n| !n.used && n.level > 0).map(|n| ("net", n.name));
        for (what, name) in boxes.chain(nets) {
            self.diagnostics.push(
                Diagnostic::warning(
                    format!("{what} `{}` is never used", name.text),
                    name.span,
                    "unused",
                )
                .help("use it in a net, or remove it"),
            );
        }
    }

    fn box_of(&mut self, number: usize) -> Built<Rc<BoxPart>> {
        if let State::Done(done) = &self.boxes[number] {
            return done.clone().ok_or(Reported);
        }
        let definition = self.scopes.boxes[number].value;
        let built = self.box_part(definition).ok().map(Rc::new);
        self.boxes[number] = State::Done(built.clone());
        built.ok_or(Reported)
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
                            format!(
                                "the binding tag of `{} =` never flows past a box",
                                Text(entry)
                            ),
                            entry.name.span,
                            "does not flow past",
                        )
                        .help("add the tag to the outputs, or remove the `=`"),
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

    /// Reports labels that occur twice in a list.
    fn once<'b>(&mut self, entries: impl Iterator<Item = &'b Entry>, of: &str) -> Built<()> {
        let mut known: HashMap<(LabelKind, &str), Span> = Default::default();
        let mut built = Ok(());
        for entry in entries {
            if let Some(first) = known.insert((entry.kind, &entry.name.text), entry.name.span) {
                built = Err(self.error(
                    Diagnostic::error(
                        format!("{} occurs twice in {of}", Text(entry)),
                        entry.name.span,
                        "second occurrence",
                    )
                    .and(first, "first occurrence")
                    .help("remove one of them, or rename it"),
                ));
            }
        }
        built
    }
}
