//! Nets and their topologies.

use std::rc::Rc;

use crate::ast::{Name, Span, Topology, TopologyKind};
use crate::diagnostic::Diagnostic;

use super::super::part::{Kind, NetPart, Part, Signature};
use super::super::scope::{Defined, Symbol, too_deep};
use super::super::{DEPTH_MAX, PARTS_MAX};
use super::{Builder, Built, Reported, State};

impl Builder<'_> {
    pub(super) fn net_of(&mut self, number: usize, depth: usize) -> Built<Rc<NetPart>> {
        if let State::Done(done) = &self.nets[number] {
            return done.clone().ok_or(Reported);
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
        built.ok_or(Reported)
    }

    pub(super) fn part(&mut self, kind: Kind, span: Span) -> Built<Rc<Part>> {
        let part = Part::new(self.parts, span, kind);
        self.parts += 1;
        if part.depth > DEPTH_MAX {
            return Err(self.bound(too_deep(span)));
        }
        if part.size > PARTS_MAX {
            return Err(self.bound(
                Diagnostic::error(
                    format!(
                        "the net has more than {PARTS_MAX} parts, including those of nested nets, \
                         once for each use"
                    ),
                    span,
                    "exceeds the limit",
                )
                .help("repeat with `*` or `!`, which create a part when a record needs it"),
            ));
        }
        Ok(Rc::new(part))
    }

    pub(super) fn topology(
        &mut self,
        topology: &Topology,
        scope: usize,
        depth: usize,
    ) -> Built<Rc<Part>> {
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
                let (operand, exits) =
                    (self.topology(operand, scope, depth + 1), self.patterns(exits));
                Kind::Star { deterministic: *deterministic, operand: operand?, exits: exits? }
            }
            TopologyKind::Split { deterministic, placed, operand, tag } => {
                let (operand, tag) = (self.topology(operand, scope, depth + 1), self.label(tag));
                Kind::Split {
                    deterministic: *deterministic,
                    placed: *placed,
                    operand: operand?,
                    tag: tag?,
                }
            }
            TopologyKind::Feedback { operand, patterns } => {
                let (operand, patterns) =
                    (self.topology(operand, scope, depth + 1), self.patterns(patterns));
                Kind::Feedback { operand: operand?, patterns: patterns? }
            }
            TopologyKind::Place { operand, place } => {
                Kind::Place { operand: self.topology(operand, scope, depth + 1)?, place: *place }
            }
        };
        self.part(kind, topology.span)
    }

    pub(super) fn name(&mut self, name: &Name, scope: usize, depth: usize) -> Built<Kind> {
        match self.scopes.symbol(&name.text, scope) {
            Some(Symbol::Box(number)) => {
                self.scopes.boxes[number].used = true;
                Ok(Kind::Box(self.box_of(number)?))
            }
            Some(Symbol::Net(number)) => {
                self.scopes.nets[number].used = true;
                if matches!(self.nets[number], State::Open) {
                    return Err(self.cycle("net", number, name));
                }
                Ok(Kind::Net(self.net_of(number, depth)?))
            }
            None => Err(self.unknown("box or net", name, scope)),
        }
    }

    /// Builds all parts of a list, so that every error is reported.
    pub(super) fn all(
        &mut self,
        list: &[Topology],
        scope: usize,
        depth: usize,
    ) -> Built<Vec<Rc<Part>>> {
        let mut parts = Vec::with_capacity(list.len());
        let mut ok = true;
        for topology in list {
            match self.topology(topology, scope, depth + 1) {
                Ok(part) => parts.push(part),
                Err(Reported) => ok = false,
            }
        }
        if ok { Ok(parts) } else { Err(Reported) }
    }

    pub(super) fn serial(&mut self, list: &[Topology], scope: usize, depth: usize) -> Built<Kind> {
        let mut flat = Vec::with_capacity(list.len());
        for part in self.all(list, scope, depth)? {
            match &part.kind {
                Kind::Serial(inner) => flat.extend(inner.iter().cloned()),
                _ => flat.push(part),
            }
        }
        Ok(Kind::Serial(flat))
    }

    pub(super) fn parallel(
        &mut self,
        same: bool,
        list: &[Topology],
        scope: usize,
        depth: usize,
    ) -> Built<Kind> {
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
}
