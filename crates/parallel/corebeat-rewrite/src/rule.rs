//! Rules whose names are resolved against the schema of a graph.

use crate::error::Error;
use crate::expression::Expression;
use crate::schema::{EdgeType, Key, NodeType};
use crate::store::Direction;
use crate::symmetry::Symmetry;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Largest number of nodes and edges in a rule.
pub const ELEMENTS_MAX: usize = 64;
/// Largest number of symmetries of which [`Rule::symmetric_once`] finds one match: those of seven
/// nodes that are all alike.
pub const SYMMETRIES_MAX: usize = 5040;
/// Slot of an element that an optional part did not find.
pub(crate) const NONE: u32 = u32::MAX;

/// The elements of a match, by slot.
pub(crate) type Binding = [u32; ELEMENTS_MAX];
/// Index in a [`Binding`].
pub(crate) type Slot = u8;

/// Which elements of a match must differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Matching {
    /// Edges of one `MATCH` differ, and nodes may be equal, as in openCypher.
    #[default]
    Edges,
    /// All nodes differ, and all edges differ (injective).
    Injective,
    /// Elements may be equal (homomorphic).
    Homomorphic,
}

/// The effect of deleting a node on its edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Semantics {
    /// Single push-out. `DETACH DELETE` deletes the edges of the node; `DELETE` requires that no
    /// edge remains, and otherwise the rule does not match. A deletion overrides other changes of
    /// the same element.
    #[default]
    Spo,
    /// Double push-out. No edge of a deleted node may remain (the dangling condition), and no
    /// deleted element may be equal to another element of the match (the identification condition).
    /// Otherwise the rule does not match.
    Dpo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ElementKind {
    Node,
    Edge,
}

/// A node of a pattern.
#[derive(Debug, Clone)]
pub(crate) struct NodeSlot {
    pub(crate) slot: Slot,
    /// The types that match, in ascending order; `None` for all types.
    pub(crate) types: Option<Vec<NodeType>>,
}

/// An edge of a pattern.
#[derive(Debug, Clone)]
pub(crate) struct EdgeSlot {
    pub(crate) slot: Slot,
    /// Slots of the source and the target.
    pub(crate) from: Slot,
    pub(crate) to: Slot,
    /// The lists to follow from the source.
    pub(crate) lists: Vec<(EdgeType, Direction)>,
    /// Smallest and largest length of a path; the slot remains unused.
    pub(crate) length: Option<(u32, u32)>,
    /// Edges of one group differ, unless matching is homomorphic.
    pub(crate) group: u32,
}

/// Nodes and edges that are matched together, with their conditions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    /// The nodes that this part binds.
    pub(crate) nodes: Vec<NodeSlot>,
    /// Nodes that are bound before, with the types that this part requires of them.
    pub(crate) given: Vec<NodeSlot>,
    pub(crate) edges: Vec<EdgeSlot>,
    /// All of them must be true.
    pub(crate) conditions: Vec<Expression>,
}

/// A change of the graph. All values are evaluated before the first change.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    CreateNode { slot: Slot, of: NodeType },
    CreateEdge { slot: Slot, of: EdgeType, from: Slot, to: Slot },
    Set { slot: Slot, kind: ElementKind, key: Key, value: Expression },
    Retype { slot: Slot, of: NodeType },
    DeleteEdge { slot: Slot },
    DeleteNode { slot: Slot, detach: bool },
}

impl Change {
    /// The slot of an element that the change creates.
    pub(crate) fn created(&self) -> Option<Slot> {
        match self {
            Change::CreateNode { slot, .. } | Change::CreateEdge { slot, .. } => Some(*slot),
            _ => None,
        }
    }
}

/// A result of a query: its expression may contain aggregates.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    pub(crate) distinct: bool,
    pub(crate) items: Vec<(Expression, String)>,
    /// Indices of the items without aggregates: rows with equal values of them are one group.
    pub(crate) keys: Vec<usize>,
    pub(crate) order: Vec<(Expression, bool)>,
    pub(crate) skip: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) aggregates: Vec<AggregateOf>,
}

#[derive(Debug, Clone)]
pub(crate) struct AggregateOf {
    pub(crate) function: corebeat_cypher::syntax::Aggregate,
    pub(crate) distinct: bool,
    pub(crate) of: Option<Expression>,
}

/// A rule for the graphs of one schema: a pattern to find, and changes or results.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Identifies the left side: graphs keep plans by this number, which clones share.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) matching: Matching,
    pub(crate) semantics: Semantics,
    /// Name and kind of each slot.
    pub(crate) slots: Vec<(String, ElementKind)>,
    pub(crate) main: Part,
    pub(crate) optional: Vec<Part>,
    /// The insides of `EXISTS`, by the index in [`Expression`].
    pub(crate) exists: Vec<Part>,
    pub(crate) changes: Vec<Change>,
    /// The slots of [`Rule::written_slots`], as bits.
    pub(crate) written: u64,
    pub(crate) output: Option<Output>,
    /// The symmetries of which one match each is found.
    pub(crate) symmetry: Symmetry,
}

/// A number that no rule has yet.
pub(crate) fn new_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only the number counts.
    NEXT.fetch_add(1, Relaxed)
}

impl Rule {
    /// The name: that of the builder, or the place in the text.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the rule changes graphs.
    pub fn changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Whether the rule has a left side. A rule without one matches once.
    pub fn has_pattern(&self) -> bool {
        !self.main.nodes.is_empty()
    }

    /// Whether the rule returns results.
    pub fn returns(&self) -> bool {
        self.output.is_some()
    }

    /// Finds one of the matches that are symmetric, instead of all.
    ///
    /// A symmetry exchanges nodes and edges of the left side so that the left side stays the same,
    /// with its types, edges and conditions. Two matches are symmetric if a symmetry leads from one
    /// to the other: `MATCH (a)-[:R]-(b)` finds each edge twice, and once after this call. The
    /// match that is found has the smallest numbers of elements, in the order in which the rule
    /// names the nodes, and the edges of each `MATCH` after its nodes. So the results depend
    /// neither on the plan nor on the number of threads. Elements that the rule changes, or that an
    /// optional part uses, are not exchanged, and paths of variable length are not. Conditions are
    /// equal if they are written equally, apart from the order of the operands of `=`, `<>`, `<`,
    /// `AND`, `OR` and `XOR`.
    ///
    /// ```
    /// use corebeat_rewrite::{Graph, Options, parse_rules, query, read_pairs};
    /// use std::collections::HashMap;
    ///
    /// let mut graph = read_pairs("triangle", "a,b\nb,c\nc,a")?;
    /// let text = "MATCH (a)--(b)--(c)--(a) RETURN count(*)";
    /// let triangles = parse_rules("triangles", text, &HashMap::new(), &mut graph)?.remove(0);
    /// let table = query(&mut graph, &triangles, &Options::default())?;
    /// assert_eq!(table.rows[0][0].to_string(), "6");
    /// let table = query(&mut graph, &triangles.symmetric_once()?, &Options::default())?;
    /// assert_eq!(table.rows[0][0].to_string(), "1");
    /// # Ok::<(), corebeat_rewrite::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Rule`] if the left side has more than [`SYMMETRIES_MAX`] symmetries.
    pub fn symmetric_once(mut self) -> Result<Rule, Error> {
        let symmetry = Symmetry::of(&self);
        self.symmetry = symmetry.map_err(|why| Error::Rule { rule: self.name.clone(), why })?;
        self.id = new_id();
        Ok(self)
    }

    /// The left side, its optional parts, and the insides of `EXISTS`.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.main).chain(&self.optional).chain(&self.exists)
    }

    /// The types that the pattern node of a slot admits; `None` for all types.
    pub(crate) fn types_of(&self, slot: Slot) -> Option<&[NodeType]> {
        let mut nodes = self.parts().flat_map(|part| &part.nodes);
        nodes.find(|node| node.slot == slot)?.types.as_deref()
    }

    /// The slots that a condition reads, also inside `EXISTS`.
    pub(crate) fn slots_of(&self, condition: &Expression) -> Vec<Slot> {
        let mut slots = Vec::new();
        condition.visit(&mut |inner| match inner {
            Expression::Element(slot)
            | Expression::Property(slot, ..)
            | Expression::HasType(slot, _) => slots.push(*slot),
            Expression::Exists(index) => {
                let part = &self.exists[*index];
                slots.extend(part.given.iter().map(|given| given.slot));
                slots.extend(part.edges.iter().flat_map(|edge| [edge.from, edge.to]));
                slots.extend(part.conditions.iter().flat_map(|inner| self.slots_of(inner)));
            }
            _ => {}
        });
        slots
    }

    /// Calls `f` with the expressions of all conditions and results, and with those inside them.
    pub(crate) fn visit_expressions(&self, f: &mut impl FnMut(&Expression)) {
        self.parts().flat_map(|part| &part.conditions).for_each(|condition| condition.visit(f));
        if let Some(output) = &self.output {
            let aggregates = output.aggregates.iter().filter_map(|aggregate| aggregate.of.as_ref());
            let items = output.items.iter().map(|(item, _)| item).chain(aggregates);
            let order = output.order.iter().map(|(item, _)| item);
            items.chain(order).for_each(|item| item.visit(f));
        }
    }

    /// The slots of the nodes that an application changes: their attributes, types or edges.
    pub(crate) fn written_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        let ends = |slot: Slot| {
            let edge = self.main.edges.iter().find(|edge| edge.slot == slot);
            edge.map(|edge| [edge.from, edge.to])
        };
        self.changes.iter().flat_map(move |change| {
            let slots = match *change {
                Change::CreateNode { .. } => None,
                Change::CreateEdge { from, to, .. } => Some([from, to]),
                Change::Set { slot, kind: ElementKind::Edge, .. } | Change::DeleteEdge { slot } => {
                    ends(slot)
                }
                Change::Set { slot, .. }
                | Change::Retype { slot, .. }
                | Change::DeleteNode { slot, .. } => Some([slot, slot]),
            };
            slots.into_iter().flatten()
        })
    }

    /// The sources of facts that a match relies on are the nodes of the match and their edges. A
    /// thread that has locked these nodes can check the match again. Other rules rely on elements
    /// that are not in the match: paths, conditions on other nodes, types that rules change.
    pub(crate) fn is_local(&self, some_rule_retypes: bool) -> bool {
        let has_path = |part: &Part| part.edges.iter().any(|edge| edge.length.is_some());
        let bound: Vec<Slot> = self.main.nodes.iter().map(|node| node.slot).collect();
        let exists_is_local = |part: &Part| {
            let touches = |edge: &crate::rule::EdgeSlot| {
                bound.contains(&edge.from) || bound.contains(&edge.to)
            };
            let is_typed = part.nodes.iter().any(|node| node.types.is_some());
            part.conditions.is_empty()
                && part.edges.iter().all(touches)
                && part.nodes.iter().all(|node| {
                    part.edges.iter().any(|edge| [edge.from, edge.to].contains(&node.slot))
                })
                && !(is_typed && some_rule_retypes)
        };
        !has_path(&self.main)
            && self.optional.is_empty()
            && !self.exists.iter().any(has_path)
            && self.exists.iter().all(exists_is_local)
    }
}
