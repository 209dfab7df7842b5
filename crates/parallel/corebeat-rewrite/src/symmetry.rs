//! Symmetries of patterns: of symmetric matches, one is found.
//!
//! # The match that is found
//!
//! A symmetry is a permutation of the nodes and edges of the left side that keeps types, edges and
//! conditions. If `m` is a match, `m` after a symmetry is a match, too. Matches are compared as
//! tuples of numbers, by slot, and the least of the symmetric ones is found. A slot `v` has the
//! *orbit* of the slots to which symmetries that fix all slots before `v` move `v`. The least match
//! has at `v` at most the number that it has at each slot of this orbit, as otherwise such a
//! symmetry leads to a lesser match. These are the pairs, which the search checks as soon as both
//! elements are bound, as in Grochow, Kellis, *Network Motif Discovery Using Subgraph Enumeration
//! and Symmetry-Breaking*, 2007. If the two numbers of every pair differ, the pairs are sufficient:
//! the first slot that a symmetry moves gets a greater number. A match whose elements may be equal
//! is compared with its symmetric ones.

use crate::expression::Expression;
use crate::rule::{
    Binding, Change, ELEMENTS_MAX, EdgeSlot, NodeSlot, Part, Rule, SYMMETRIES_MAX, Slot,
};
use corebeat_cypher::syntax::Operator;
use std::collections::HashMap;

/// Largest number of steps of the search for symmetries.
const STEPS_MAX: u32 = 1 << 18;

/// The slot to which a symmetry moves each slot of the rule.
type Image = [Slot; ELEMENTS_MAX];

/// The symmetries of the left side of a rule, without the one that moves nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Symmetry {
    /// Pairs of slots: the number of the first element is at most that of the second.
    pairs: Vec<(Slot, Slot)>,
    /// The slots of the left side, in ascending order.
    slots: Vec<Slot>,
    images: Vec<Image>,
}

impl Symmetry {
    pub(crate) fn of(rule: &Rule) -> Result<Symmetry, String> {
        let finder = Finder::new(rule);
        let mut slots = finder.slots.clone();
        let images = finder.find()?;
        slots.sort_unstable();
        let mut pairs = Vec::new();
        let mut fixing: Vec<&Image> = images.iter().collect();
        for slot in &slots {
            let orbit = fixing.iter().map(|image| image[usize::from(*slot)]);
            pairs.extend(orbit.filter(|other| other != slot).map(|other| (*slot, other)));
            fixing.retain(|image| image[usize::from(*slot)] == *slot);
        }
        pairs.sort_unstable();
        pairs.dedup();
        let all = pairs.clone();
        // Two other pairs imply such a pair.
        let is_implied = |(first, last): (Slot, Slot)| {
            all.iter().any(|(from, to)| *from == first && all.contains(&(*to, last)))
        };
        pairs.retain(|pair| !is_implied(*pair));
        Ok(Symmetry { pairs, slots, images })
    }

    /// Pairs of slots whose elements are in ascending order.
    pub(crate) fn pairs(&self) -> &[(Slot, Slot)] {
        &self.pairs
    }

    /// Whether a match whose pairs are in order is the least of the symmetric ones.
    pub(crate) fn is_least(&self, binding: &Binding) -> bool {
        let at = |slot: &Slot| binding[usize::from(*slot)];
        let has_equal = self.pairs.iter().any(|(first, second)| at(first) == at(second));
        !has_equal
            || self.images.iter().all(|image| {
                let moved = self.slots.iter().map(|slot| at(&image[usize::from(*slot)]));
                self.slots.iter().map(at).le(moved)
            })
    }
}

/// A search for the symmetries of a rule: it assigns an image to each node and then to each edge.
struct Finder<'a> {
    rule: &'a Rule,
    part: &'a Part,
    /// The slots of the nodes, and then those of the edges.
    slots: Vec<Slot>,
    /// By pair of nodes: equal numbers stand for equal types, edges and conditions of the pair.
    relations: Vec<Vec<usize>>,
    /// By node, the index of its image.
    chosen: Vec<usize>,
    /// The slots that no symmetry moves.
    fixed: Vec<Slot>,
    conditions: Vec<String>,
    image: Image,
    found: Vec<Image>,
    steps: u32,
}

impl<'a> Finder<'a> {
    fn new(rule: &'a Rule) -> Finder<'a> {
        let part = &rule.main;
        let nodes = part.nodes.iter().map(|node| node.slot);
        Finder {
            rule,
            part,
            slots: nodes.chain(part.edges.iter().map(|edge| edge.slot)).collect(),
            relations: relations(rule, part),
            chosen: vec![0; part.nodes.len()],
            fixed: fixed_slots(rule),
            conditions: signed(rule, part, &|slot| slot.to_string(), 0),
            image: std::array::from_fn(|slot| slot as Slot),
            found: Vec::new(),
            steps: 0,
        }
    }

    fn find(mut self) -> Result<Vec<Image>, String> {
        self.assign(0)?;
        let identity: Image = std::array::from_fn(|slot| slot as Slot);
        self.found.retain(|image| *image != identity);
        Ok(self.found)
    }

    /// Assigns images to the slots from an index on.
    fn assign(&mut self, index: usize) -> Result<(), String> {
        self.steps += 1;
        if self.found.len() > SYMMETRIES_MAX || self.steps > STEPS_MAX {
            let why = format!(
                "the pattern has more than {SYMMETRIES_MAX} symmetries, or too many for a search; \
                 distinguish its nodes, or find all matches"
            );
            return Err(why);
        }
        let Some(slot) = self.slots.get(index).copied() else {
            if self.keeps_groups() && self.keeps_conditions() {
                self.found.push(self.image);
            }
            return Ok(());
        };
        let nodes = self.part.nodes.len();
        let candidates = if index < nodes { 0..nodes } else { nodes..self.slots.len() };
        for candidate in candidates {
            let other = self.slots[candidate];
            let is_used = self.slots[..index].iter().any(|s| self.image[usize::from(*s)] == other);
            if is_used || (self.fixed.contains(&slot) && other != slot) {
                continue;
            }
            self.image[usize::from(slot)] = other;
            let fits = match index < nodes {
                true => {
                    self.chosen[index] = candidate;
                    let (own, of_image) = (&self.relations[index], &self.relations[candidate]);
                    (0..=index).all(|before| own[before] == of_image[self.chosen[before]])
                }
                false => {
                    let (edge, other) =
                        (&self.part.edges[index - nodes], &self.part.edges[candidate - nodes]);
                    let is_path = edge.length.is_some();
                    (!is_path || edge.slot == other.slot)
                        && edge_sign(edge, &|slot| self.image[usize::from(slot)].to_string())
                            == edge_sign(other, &|slot| slot.to_string())
                }
            };
            if fits {
                self.assign(index + 1)?;
            }
        }
        self.image[usize::from(slot)] = slot;
        Ok(())
    }

    /// Whether edges that must differ are exchanged with edges that must differ.
    fn keeps_groups(&self) -> bool {
        let edges = &self.part.edges;
        let image = |edge: &EdgeSlot| {
            let slot = self.image[usize::from(edge.slot)];
            edges.iter().find(|other| other.slot == slot).map(|other| other.group)
        };
        edges.iter().all(|a| edges.iter().all(|b| (a.group == b.group) == (image(a) == image(b))))
    }

    fn keeps_conditions(&self) -> bool {
        let name = |slot: Slot| self.image[usize::from(slot)].to_string();
        signed(self.rule, self.part, &name, 0) == self.conditions
    }
}

/// A number for each pair of nodes, and for each node with itself: see [`Finder::relations`].
fn relations(rule: &Rule, part: &Part) -> Vec<Vec<usize>> {
    let mut numbers = HashMap::<String, usize>::new();
    let mut relation = |a: &NodeSlot, b: &NodeSlot| {
        let (a, b, types) = (a.slot, b.slot, (a.slot == b.slot).then_some(&a.types));
        let name = |slot: Slot| if slot == a { "a".to_owned() } else { "b".to_owned() };
        let edges = part
            .edges
            .iter()
            .filter(|edge| (edge.from, edge.to) == (a, b) || (edge.to, edge.from) == (a, b));
        let mut edges: Vec<String> = edges.map(|edge| edge_sign(edge, &name)).collect();
        edges.sort_unstable();
        let conditions = part.conditions.iter().filter(|condition| {
            let slots = rule.slots_of(condition);
            [a, b].iter().all(|slot| slots.contains(slot))
                && slots.iter().all(|slot| [a, b].contains(slot))
        });
        let mut conditions: Vec<String> =
            conditions.map(|condition| sign(rule, condition, &name, 0)).collect();
        conditions.sort_unstable();
        let next = numbers.len();
        *numbers.entry(format!("{types:?} {edges:?} {conditions:?}")).or_insert(next)
    };
    let mut row = |a| part.nodes.iter().map(|b| relation(a, b)).collect();
    part.nodes.iter().map(&mut row).collect()
}

/// The slots that no symmetry moves: those that the rule changes, or that an optional part uses.
fn fixed_slots(rule: &Rule) -> Vec<Slot> {
    let mut fixed: Vec<Slot> = rule.written_slots().collect();
    for change in &rule.changes {
        match change {
            Change::Set { slot, value, .. } => {
                fixed.push(*slot);
                fixed.extend(rule.slots_of(value));
            }
            Change::DeleteEdge { slot } => fixed.push(*slot),
            _ => {}
        }
    }
    for part in &rule.optional {
        fixed.extend(part.given.iter().map(|given| given.slot));
        fixed.extend(part.edges.iter().flat_map(|edge| [edge.from, edge.to]));
        fixed.extend(part.conditions.iter().flat_map(|condition| rule.slots_of(condition)));
    }
    fixed
}

/// A text for the conditions of a part. Equal texts stand for equal conditions. `name` is the name
/// of an element, and `depth` the number of `EXISTS` around the part.
fn signed(rule: &Rule, part: &Part, name: &dyn Fn(Slot) -> String, depth: u32) -> Vec<String> {
    let mut signs: Vec<String> =
        part.conditions.iter().map(|condition| sign(rule, condition, name, depth)).collect();
    signs.sort_unstable();
    signs
}

fn sign(rule: &Rule, of: &Expression, name: &dyn Fn(Slot) -> String, depth: u32) -> String {
    let inner = |of: &Expression| sign(rule, of, name, depth);
    let all = |of: &[Expression]| of.iter().map(inner).collect::<Vec<_>>().join(", ");
    match of {
        Expression::Literal(value) => format!("{value:?}"),
        Expression::Element(slot) => name(*slot),
        Expression::Property(slot, _, key) => format!("{}.{key:?}", name(*slot)),
        Expression::HasType(slot, types) => format!("{}:{types:?}", name(*slot)),
        Expression::List(of) => format!("[{}]", all(of)),
        Expression::Not(of) => format!("not({})", inner(of)),
        Expression::Negate(of) => format!("-({})", inner(of)),
        Expression::IsNull(of) => format!("null({})", inner(of)),
        Expression::Binary(operator, left, right) => {
            let (mut left, mut right, mut operator) = (inner(left), inner(right), *operator);
            use Operator::*;
            let swapped = match operator {
                Greater => Some(Less),
                GreaterEqual => Some(LessEqual),
                Equal | Unequal | And | Or | Xor if right < left => Some(operator),
                _ => None,
            };
            if let Some(swapped) = swapped {
                (left, right, operator) = (right, left, swapped);
            }
            format!("({left} {operator:?} {right})")
        }
        Expression::Call(function, of) => format!("{function:?}({})", all(of)),
        Expression::Exists(index) => exists_sign(rule, &rule.exists[*index], name, depth + 1),
        Expression::Aggregate(index) => format!("aggregate {index}"),
    }
}

/// A text for the inside of `EXISTS`, whose elements are named by their positions.
fn exists_sign(rule: &Rule, part: &Part, name: &dyn Fn(Slot) -> String, depth: u32) -> String {
    let nodes = part.nodes.iter().map(|node| node.slot);
    let own: Vec<Slot> = nodes.chain(part.edges.iter().map(|edge| edge.slot)).collect();
    let name = |slot: Slot| match own.iter().position(|inner| *inner == slot) {
        Some(position) => format!("{depth}.{position}"),
        None => name(slot),
    };
    let given = part.given.iter().map(|given| format!("{}:{:?}", name(given.slot), given.types));
    let mut given: Vec<String> = given.collect();
    given.sort_unstable();
    let nodes: Vec<String> = part.nodes.iter().map(|node| format!("{:?}", node.types)).collect();
    // The order of the edges matters only if conditions name them.
    let edges = part.edges.iter().map(|edge| match part.conditions.is_empty() {
        true => edge_sign(edge, &name),
        false => format!("{} {}", name(edge.slot), edge_sign(edge, &name)),
    });
    let mut edges: Vec<String> = edges.collect();
    edges.sort_unstable();
    let conditions = signed(rule, part, &name, depth);
    format!("exists({given:?} {nodes:?} {edges:?} {conditions:?})")
}

/// A text for an edge: the same for both ways to write an edge without a direction.
fn edge_sign(edge: &EdgeSlot, name: &dyn Fn(Slot) -> String) -> String {
    let way = |from: Slot, to: Slot, is_reversed: bool| {
        let lists = edge.lists.iter().map(|(of, direction)| {
            let direction = if is_reversed { direction.reversed() } else { *direction };
            (of.0, direction as u8)
        });
        let mut lists: Vec<(u16, u8)> = lists.collect();
        lists.sort_unstable();
        format!("{}-{}{lists:?} {:?}", name(from), name(to), edge.length)
    };
    way(edge.from, edge.to, false).min(way(edge.to, edge.from, true))
}
