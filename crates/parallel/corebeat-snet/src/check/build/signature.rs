//! Labels, types and signatures.

use std::collections::HashSet;
use std::rc::Rc;

use crate::ast::{Entry, Name, OutputType, SignatureItem, Span, TypeItem, Variant};
use crate::diagnostic::Diagnostic;
use crate::label::Label;
use crate::shape::Shape;

use super::super::DEPTH_MAX;
use super::super::part::Mapping;
use super::super::row::Row;
use super::super::scope::{Defined, too_deep};
use super::{Builder, Built, Mappings, Reported, State, Variants};

impl Builder<'_> {
    pub(super) fn label(&mut self, entry: &Entry) -> Built<Label> {
        Label::new(entry.kind, &entry.name.text).map_err(|e| self.too_many(e, entry.name.span))
    }

    pub(super) fn labels(&mut self, entries: &[Entry]) -> Built<Vec<Label>> {
        entries.iter().map(|entry| self.label(entry)).collect()
    }

    pub(super) fn row(&mut self, variant: &Variant) -> Built<Row> {
        Ok(Row::new(self.labels(&variant.entries)?))
    }

    pub(super) fn shape(&mut self, row: &Row, span: Span) -> Built<Shape> {
        row.shape().map_err(|e| self.too_many(e, span))
    }

    pub(super) fn type_expression(
        &mut self,
        items: &[TypeItem],
        scope: usize,
        depth: usize,
    ) -> Built<Vec<(Row, Span)>> {
        let (mut rows, mut known, mut ok) = (Vec::new(), HashSet::new(), true);
        for item in items {
            let found: Variants = match item {
                TypeItem::Variant(variant) => match self.row(variant) {
                    Ok(row) => Rc::from([(row, variant.span)]),
                    Err(Reported) => {
                        ok = false;
                        continue;
                    }
                },
                TypeItem::Name(name) => match self.type_name(name, scope, depth) {
                    Ok(rows) => rows,
                    Err(Reported) => {
                        ok = false;
                        continue;
                    }
                },
            };
            for (row, span) in found.iter() {
                if known.insert(row.clone()) {
                    rows.push((row.clone(), *span));
                }
            }
        }
        if ok { Ok(rows) } else { Err(Reported) }
    }

    pub(super) fn type_name(&mut self, name: &Name, scope: usize, depth: usize) -> Built<Variants> {
        match self.scopes.type_of(&name.text, scope) {
            Some(number) if matches!(self.types[number], State::Open) => {
                Err(self.cycle("type", number, name))
            }
            Some(number) => self.type_of(number, depth + 1),
            None => Err(self.unknown("type", name, scope)),
        }
    }

    pub(super) fn type_of(&mut self, number: usize, depth: usize) -> Built<Variants> {
        if let State::Done(done) = &self.types[number] {
            return done.clone().ok_or(Reported);
        }
        let Defined { name, value, scope, .. } = self.scopes.types[number];
        if depth > DEPTH_MAX {
            return Err(self.bound(too_deep(name.span)));
        }
        self.types[number] = State::Open;
        let built = self.type_expression(value, scope, depth).ok().map(Rc::from);
        self.types[number] = State::Done(built.clone());
        built.ok_or(Reported)
    }

    /// Reports a definition that uses itself.
    pub(super) fn cycle(&mut self, what: &str, number: usize, name: &Name) -> Reported {
        let first = match what {
            "type" => self.scopes.types[number].name.span,
            "typesig" => self.scopes.signatures[number].name.span,
            _ => self.scopes.nets[number].name.span,
        };
        let (message, help) = match what {
            "net" => (
                "used inside itself",
                "to repeat a net, use a star, `a * {...}`, or feedback, `a \\ {...}`",
            ),
            _ => ("defined by itself", "write its variants or mappings out"),
        };
        self.error(
            Diagnostic::error(
                format!("{what} `{}` is {message}", name.text),
                name.span,
                "used here",
            )
            .and(first, "defined here")
            .help(help),
        )
    }

    pub(super) fn mappings(
        &mut self,
        items: &[SignatureItem],
        scope: usize,
        depth: usize,
    ) -> Built<Vec<Rc<Mapping>>> {
        let (mut mappings, mut known, mut ok) = (Vec::new(), HashSet::new(), true);
        for item in items {
            let found = match item {
                SignatureItem::Name(name) => self.signature_name(name, scope, depth),
                SignatureItem::Mapping { input, output, span } => {
                    self.mapping(input, output, *span, scope, depth).map(|m| Rc::from([Rc::new(m)]))
                }
            };
            match found {
                // Several names can lead to one mapping, which its address identifies.
                Ok(found) => {
                    mappings.extend(found.iter().filter(|m| known.insert(Rc::as_ptr(m))).cloned())
                }
                Err(Reported) => ok = false,
            }
        }
        if ok { Ok(mappings) } else { Err(Reported) }
    }

    pub(super) fn mapping(
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

    pub(super) fn signature_name(
        &mut self,
        name: &Name,
        scope: usize,
        depth: usize,
    ) -> Built<Mappings> {
        match self.scopes.signature(&name.text, scope) {
            Some(n) if matches!(self.signatures[n], State::Open) => {
                Err(self.cycle("typesig", n, name))
            }
            Some(n) => self.signature_of(n, depth + 1),
            None => Err(self.unknown("typesig", name, scope)),
        }
    }

    pub(super) fn signature_of(&mut self, number: usize, depth: usize) -> Built<Mappings> {
        if let State::Done(done) = &self.signatures[number] {
            return done.clone().ok_or(Reported);
        }
        let Defined { name, value, scope, .. } = self.scopes.signatures[number];
        if depth > DEPTH_MAX {
            return Err(self.bound(too_deep(name.span)));
        }
        self.signatures[number] = State::Open;
        let built = self.mappings(value, scope, depth).ok().map(Rc::from);
        self.signatures[number] = State::Done(built.clone());
        built.ok_or(Reported)
    }
}
