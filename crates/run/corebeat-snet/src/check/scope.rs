//! Names and what they stand for.

use std::collections::HashMap;
use std::collections::hash_map;

use crate::ast::{BoxDefinition, Definition, Module, Name, NetDefinition, SignatureItem, Span, TypeExpr};
use crate::diagnostic::Diagnostic;

use super::DEPTH_MAX;

/// What a name in a topology stands for: a place in [`Scopes::boxes`] or [`Scopes::nets`].
#[derive(Clone, Copy)]
pub(super) enum Thing {
    Box(usize),
    Net(usize),
}

/// A definition, and the scope in which its names are looked up.
pub(super) struct Defined<'a, T: ?Sized> {
    pub(super) name: &'a Name,
    pub(super) value: &'a T,
    pub(super) scope: usize,
    /// How many nets it stands in.
    pub(super) level: usize,
    pub(super) used: bool,
}

/// One level of names.
#[derive(Default)]
struct Scope<'a> {
    outer: Option<usize>,
    things: HashMap<&'a str, (Thing, Span)>,
    types: HashMap<&'a str, (usize, Span)>,
    signatures: HashMap<&'a str, (usize, Span)>,
}

/// All names of a program.
pub(super) struct Scopes<'a> {
    scopes: Vec<Scope<'a>>,
    pub(super) boxes: Vec<Defined<'a, BoxDefinition>>,
    /// `scope` is that of its inside.
    pub(super) nets: Vec<Defined<'a, NetDefinition>>,
    pub(super) types: Vec<Defined<'a, TypeExpr>>,
    pub(super) signatures: Vec<Defined<'a, [SignatureItem]>>,
}

/// Names for which a better one is looked for, so that it does not take long where all are wrong.
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
        // Nets within nets wait in a list, so that their depth does not matter here.
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
                let thing = Thing::Box(self.boxes.len());
                self.boxes.push(Defined { name: &value.name, value, scope, level, used: false });
                (&value.name, insert(&mut names.things, &value.name, thing))
            }
            Definition::Net(value) => {
                if level == DEPTH_MAX {
                    diagnostics.push(too_deep(value.span));
                    return;
                }
                let thing = Thing::Net(self.nets.len());
                let known = insert(&mut names.things, &value.name, thing);
                let inside = self.scopes.len();
                self.scopes.push(Scope { outer: Some(scope), ..Scope::default() });
                self.nets.push(Defined { name: &value.name, value, scope: inside, level, used: false });
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
                self.signatures.push(Defined { name, value: &value[..], scope, level, used: false });
                (name, insert(&mut names.signatures, name, number))
            }
            Definition::Metadata(_) => return,
        };
        if let Some(first) = known {
            diagnostics.push(
                Diagnostic::error(format!("`{}` is defined twice", name.text), name.span, "here again")
                    .and(first, "first here")
                    .help("give one of them another name"),
            );
        }
    }

    pub(super) fn thing(&self, name: &str, scope: usize) -> Option<Thing> {
        self.outward(scope).find_map(|s| s.things.get(name)).map(|(thing, _)| *thing)
    }

    pub(super) fn type_of(&self, name: &str, scope: usize) -> Option<usize> {
        self.outward(scope).find_map(|s| s.types.get(name)).map(|(number, _)| *number)
    }

    pub(super) fn signature(&self, name: &str, scope: usize) -> Option<usize> {
        self.outward(scope).find_map(|s| s.signatures.get(name)).map(|(number, _)| *number)
    }

    /// This scope and those around it.
    fn outward(&self, scope: usize) -> impl Iterator<Item = &Scope<'a>> {
        std::iter::successors(Some(&self.scopes[scope]), |s| s.outer.map(|outer| &self.scopes[outer]))
    }

    /// What to do about a name that nobody knows. `count`: how many of those there were before.
    pub(super) fn advice(&self, what: &str, name: &str, scope: usize, count: usize) -> String {
        let names = self.outward(scope).flat_map(|s| match what {
            "type" => s.types.keys().copied().collect::<Vec<&str>>(),
            "typesig" => s.signatures.keys().copied().collect(),
            _ => s.things.keys().copied().collect(),
        });
        let nearest = names
            .take(if count < SUGGESTIONS_MAX { usize::MAX } else { 0 })
            .map(|known| (distance(name, known), known))
            .filter(|(distance, known)| *distance <= name.chars().count().max(known.chars().count()) / 3)
            .min();
        match nearest {
            Some((_, known)) => format!("did you mean `{known}`?"),
            None if what == "box or net" => format!("define it: `box {name} ((...) -> (...));`, or a net"),
            None => format!("define it: `{what} {name} = ...;`"),
        }
    }
}

fn insert<'a, T>(names: &mut HashMap<&'a str, (T, Span)>, name: &'a Name, value: T) -> Option<Span> {
    match names.entry(&name.text) {
        hash_map::Entry::Occupied(known) => Some(known.get().1),
        hash_map::Entry::Vacant(free) => {
            free.insert((value, name.span));
            None
        }
    }
}

/// The error for what would need unbounded stack to go through.
pub(super) fn too_deep(span: Span) -> Diagnostic {
    Diagnostic::error(
        format!("this is nested more than {DEPTH_MAX} levels deep, through the nets it uses"),
        span,
        "this deep",
    )
    .help("write what is nested one after the other")
}

/// Letters to insert, remove, change or swap with the next to make one name of the other; long names are all different.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.to_lowercase().chars().collect(), b.to_lowercase().chars().collect());
    if a.len() > 64 || b.len() > 64 {
        return usize::MAX;
    }
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut least = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    least = least.min(rows[i - 2][j - 2] + 1);
                }
                least
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn distance_of_names_counts_letters() {
        assert_eq!(distance("compute", "compute"), 0);
        assert_eq!(distance("Compute", "compute"), 0);
        assert_eq!(distance("comptue", "compute"), 1);
        assert_eq!(distance("comput", "compute"), 1);
        assert_eq!(distance("a", "b"), 1);
        assert_eq!(distance("", "abc"), 3);
    }
}
