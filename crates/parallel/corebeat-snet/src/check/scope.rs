//! Name resolution.

use std::collections::HashMap;
use std::collections::hash_map;

use crate::ast::{
    BoxDefinition, Definition, Module, Name, NetDefinition, SignatureItem, Span, TypeExpr,
};
use crate::diagnostic::Diagnostic;

use super::DEPTH_MAX;

/// Meaning of a name in a topology: an index of [`Scopes::boxes`] or [`Scopes::nets`].
#[derive(Clone, Copy)]
pub(super) enum Symbol {
    Box(usize),
    Net(usize),
}

/// A definition, and the scope in which its names are resolved.
pub(super) struct Defined<'a, T: ?Sized> {
    pub(super) name: &'a Name,
    pub(super) value: &'a T,
    pub(super) scope: usize,
    /// Number of enclosing nets.
    pub(super) level: usize,
    pub(super) used: bool,
}

/// One level of names.
#[derive(Default)]
struct Scope<'a> {
    outer: Option<usize>,
    symbols: HashMap<&'a str, (Symbol, Span)>,
    types: HashMap<&'a str, (usize, Span)>,
    signatures: HashMap<&'a str, (usize, Span)>,
}

/// All scopes and definitions of a program.
pub(super) struct Scopes<'a> {
    scopes: Vec<Scope<'a>>,
    pub(super) boxes: Vec<Defined<'a, BoxDefinition>>,
    /// `scope` is the scope inside the net.
    pub(super) nets: Vec<Defined<'a, NetDefinition>>,
    pub(super) types: Vec<Defined<'a, TypeExpr>>,
    pub(super) signatures: Vec<Defined<'a, [SignatureItem]>>,
}

/// Undefined names for which a similar name is searched. The bound limits the time for programs
/// whose names are all undefined.
const SUGGESTIONS_MAX: usize = 20;

impl<'a> Scopes<'a> {
    pub(super) fn new(module: &'a Module, diagnostics: &mut Vec<Diagnostic>) -> Scopes<'a> {
        let mut scopes = Scopes {
            scopes: vec![Scope::default()],
            boxes: Vec::new(),
            nets: Vec::new(),
            types: Vec::new(),
            signatures: Vec::new(),
        };
        // Nested nets wait in a list, so that their depth needs no stack.
        let mut open = vec![(&module.definitions, 0, 0)];
        while let Some((definitions, scope, level)) = open.pop() {
            for definition in definitions {
                scopes.define(definition, scope, level, &mut open, diagnostics);
            }
        }
        scopes
    }

    fn define(
        &mut self,
        definition: &'a Definition,
        scope: usize,
        level: usize,
        open: &mut Vec<(&'a Vec<Definition>, usize, usize)>,
        diagnostics: &mut Vec<Diagnostic>,
    ) {
        let names = &mut self.scopes[scope];
        let (name, known) = match definition {
            Definition::Box(value) => {
                let symbol = Symbol::Box(self.boxes.len());
                self.boxes.push(Defined { name: &value.name, value, scope, level, used: false });
                (&value.name, insert(&mut names.symbols, &value.name, symbol))
            }
            Definition::Net(value) => {
                if level == DEPTH_MAX {
                    diagnostics.push(too_deep(value.span));
                    return;
                }
                let symbol = Symbol::Net(self.nets.len());
                let known = insert(&mut names.symbols, &value.name, symbol);
                let inside = self.scopes.len();
                self.scopes.push(Scope { outer: Some(scope), ..Scope::default() });
                self.nets.push(Defined {
                    name: &value.name,
                    value,
                    scope: inside,
                    level,
                    used: false,
                });
                open.push((&value.definitions, inside, level + 1));
                (&value.name, known)
            }
            Definition::Type { name, value } => {
                let number = self.types.len();
                self.types.push(Defined { name, value, scope, level, used: false });
                (name, insert(&mut names.types, name, number))
            }
            Definition::Signature { name, value } => {
                let number = self.signatures.len();
                self.signatures.push(Defined {
                    name,
                    value: &value[..],
                    scope,
                    level,
                    used: false,
                });
                (name, insert(&mut names.signatures, name, number))
            }
            Definition::Metadata(_) => return,
        };
        if let Some(first) = known {
            diagnostics.push(
                Diagnostic::error(
                    format!("`{}` is defined twice", name.text),
                    name.span,
                    "second definition",
                )
                .and(first, "first definition")
                .help("rename one of them"),
            );
        }
    }

    pub(super) fn symbol(&self, name: &str, scope: usize) -> Option<Symbol> {
        self.outward(scope).find_map(|s| s.symbols.get(name)).map(|(symbol, _)| *symbol)
    }

    pub(super) fn type_of(&self, name: &str, scope: usize) -> Option<usize> {
        self.outward(scope).find_map(|s| s.types.get(name)).map(|(number, _)| *number)
    }

    pub(super) fn signature(&self, name: &str, scope: usize) -> Option<usize> {
        self.outward(scope).find_map(|s| s.signatures.get(name)).map(|(number, _)| *number)
    }

    /// This scope and the enclosing scopes.
    fn outward(&self, scope: usize) -> impl Iterator<Item = &Scope<'a>> {
        std::iter::successors(Some(&self.scopes[scope]), |s| {
            s.outer.map(|outer| &self.scopes[outer])
        })
    }

    /// Help for an undefined name. `count` is the number of undefined names before it.
    pub(super) fn advice(&self, what: &str, name: &str, scope: usize, count: usize) -> String {
        let names = self.outward(scope).flat_map(|s| match what {
            "type" => s.types.keys().copied().collect::<Vec<&str>>(),
            "typesig" => s.signatures.keys().copied().collect(),
            _ => s.symbols.keys().copied().collect(),
        });
        let nearest = names
            .take(if count < SUGGESTIONS_MAX { usize::MAX } else { 0 })
            .map(|known| (distance(name, known), known))
            .filter(|(distance, known)| {
                *distance <= name.chars().count().max(known.chars().count()) / 3
            })
            .min();
        match nearest {
            Some((_, known)) => format!("did you mean `{known}`?"),
            None if what == "box or net" => {
                format!("define it as a box or a net: `box {name} ((...) -> (...));`")
            }
            None => format!("define it: `{what} {name} = ...;`"),
        }
    }
}

fn insert<'a, T>(
    names: &mut HashMap<&'a str, (T, Span)>,
    name: &'a Name,
    value: T,
) -> Option<Span> {
    match names.entry(&name.text) {
        hash_map::Entry::Occupied(known) => Some(known.get().1),
        hash_map::Entry::Vacant(free) => {
            free.insert((value, name.span));
            None
        }
    }
}

/// The diagnostic for nesting whose traversal would need an unbounded stack.
pub(super) fn too_deep(span: Span) -> Diagnostic {
    Diagnostic::error(
        format!("the nets are nested more than {DEPTH_MAX} levels deep"),
        span,
        "too deep",
    )
    .help("define the inner parts one after the other")
}

/// Edit distance of two names: characters to insert, remove, replace or transpose. The distance of
/// long names is unbounded.
fn distance(a: &str, b: &str) -> usize {
    match a.len().max(b.len()) {
        ..=64 => strsim::osa_distance(&a.to_lowercase(), &b.to_lowercase()),
        _ => usize::MAX,
    }
}
