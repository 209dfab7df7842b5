//! Types of nodes and edges, with inheritance, and names of attributes.

use crate::error::Error;
use std::collections::HashMap;
use std::sync::Arc;

/// Largest number of node types, of edge types, and of attribute names.
pub const TYPES_MAX: usize = 4096;

macro_rules! number {
    ($(#[$doc:meta] $name:ident;)*) => {$(
        #[$doc]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) u16);
    )*};
}
number! {
    /// A node type of a [`Schema`].
    NodeType;
    /// An edge type of a [`Schema`].
    EdgeType;
    /// The name of an attribute.
    Key;
}

/// A type: its name, and all types that are equal to or below it.
#[derive(Debug, Clone)]
struct Type {
    name: Arc<str>,
    parents: Vec<u16>,
    /// The type itself and its direct and indirect subtypes, in ascending order.
    below: Vec<u16>,
}

/// Types of one kind.
#[derive(Debug, Clone, Default)]
struct Types {
    types: Vec<Type>,
    numbers: HashMap<Arc<str>, u16>,
}

impl Types {
    fn add(&mut self, name: &str, parents: &[u16]) -> Result<u16, Error> {
        if let Some(number) = self.numbers.get(name) {
            let known = &self.types[usize::from(*number)].parents;
            return match parents.iter().all(|parent| known.contains(parent)) {
                true => Ok(*number),
                false => Err(Error::Parents { name: name.into() }),
            };
        }
        if self.types.len() == TYPES_MAX {
            return Err(Error::Full { of: "types or attribute names", limit: TYPES_MAX as u64 });
        }
        let number = self.types.len() as u16;
        let name: Arc<str> = name.into();
        self.numbers.insert(name.clone(), number);
        self.types.push(Type { name, parents: parents.to_vec(), below: vec![number] });
        let mut above = parents.to_vec();
        while let Some(parent) = above.pop() {
            let parent = &mut self.types[usize::from(parent)];
            if !parent.below.contains(&number) {
                parent.below.push(number);
                above.extend(&parent.parents);
            }
        }
        Ok(number)
    }
}

/// The types and attribute names of a graph.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    nodes: Types,
    edges: Types,
    keys: Types,
    /// Other names of edge types that are read in the opposite direction.
    opposites: HashMap<Arc<str>, EdgeType>,
}

impl Schema {
    /// Creates a schema without types.
    pub fn new() -> Schema {
        Schema::default()
    }

    /// Adds a node type below its `parents`, or returns the existing type of that name.
    ///
    /// # Errors
    /// [`Error::Parents`] if a type of that name lacks one of the parents, and [`Error::Full`].
    ///
    /// # Panics
    /// If a parent is of another schema and this schema has fewer types.
    pub fn node_type(&mut self, name: &str, parents: &[NodeType]) -> Result<NodeType, Error> {
        let parents: Vec<u16> = parents.iter().map(|parent| parent.0).collect();
        self.nodes.add(name, &parents).map(NodeType)
    }

    /// Adds an edge type below its `parents`, or returns the existing type of that name.
    ///
    /// # Errors
    /// As [`Schema::node_type`].
    ///
    /// # Panics
    /// As [`Schema::node_type`].
    pub fn edge_type(&mut self, name: &str, parents: &[EdgeType]) -> Result<EdgeType, Error> {
        let parents: Vec<u16> = parents.iter().map(|parent| parent.0).collect();
        self.edges.add(name, &parents).map(EdgeType)
    }

    /// Adds the name of an attribute, or returns the existing one.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn key(&mut self, name: &str) -> Result<Key, Error> {
        self.keys.add(name, &[]).map(Key)
    }

    /// Declares another name for an edge type, read from the target to the source, as an
    /// `eOpposite` of EMF.
    pub fn opposite(&mut self, name: &str, of: EdgeType) {
        self.opposites.insert(name.into(), of);
    }

    /// Returns the node type of a name.
    pub fn find_node_type(&self, name: &str) -> Option<NodeType> {
        self.nodes.numbers.get(name).copied().map(NodeType)
    }

    /// Returns the edge type of a name, and whether the name reads its edges backwards.
    pub fn find_edge_type(&self, name: &str) -> Option<(EdgeType, bool)> {
        let forwards = self.edges.numbers.get(name).map(|number| (EdgeType(*number), false));
        forwards.or_else(|| self.opposites.get(name).map(|of| (*of, true)))
    }

    /// Returns the attribute of a name.
    pub fn find_key(&self, name: &str) -> Option<Key> {
        self.keys.numbers.get(name).copied().map(Key)
    }

    /// The name of a node type.
    pub fn node_name(&self, of: NodeType) -> &str {
        &self.nodes.types[usize::from(of.0)].name
    }

    /// The name of an edge type.
    pub fn edge_name(&self, of: EdgeType) -> &str {
        &self.edges.types[usize::from(of.0)].name
    }

    /// The name of an attribute.
    pub fn key_name(&self, of: Key) -> &str {
        &self.keys.types[usize::from(of.0)].name
    }

    /// The node type and its subtypes.
    pub fn node_types_below(&self, of: NodeType) -> impl Iterator<Item = NodeType> + '_ {
        self.nodes.types[usize::from(of.0)].below.iter().copied().map(NodeType)
    }

    /// The edge type and its subtypes.
    pub fn edge_types_below(&self, of: EdgeType) -> impl Iterator<Item = EdgeType> + '_ {
        self.edges.types[usize::from(of.0)].below.iter().copied().map(EdgeType)
    }

    /// All node types.
    pub fn node_types(&self) -> impl Iterator<Item = NodeType> + use<> {
        (0..self.nodes.types.len() as u16).map(NodeType)
    }

    /// All edge types.
    pub fn edge_types(&self) -> impl Iterator<Item = EdgeType> + use<> {
        (0..self.edges.types.len() as u16).map(EdgeType)
    }

    /// All attribute names.
    pub fn keys(&self) -> impl Iterator<Item = Key> + use<> {
        (0..self.keys.types.len() as u16).map(Key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtypes_are_below_all_their_ancestors() {
        let mut schema = Schema::new();
        let a = schema.node_type("A", &[]).unwrap();
        let b = schema.node_type("B", &[]).unwrap();
        let c = schema.node_type("C", &[a, b]).unwrap();
        let d = schema.node_type("D", &[c, a]).unwrap();
        for (of, below) in [(a, vec![a, c, d]), (b, vec![b, c, d]), (c, vec![c, d])] {
            assert_eq!(schema.node_types_below(of).collect::<Vec<_>>(), below);
        }
        assert_eq!(schema.node_type("C", &[]).unwrap(), c);
        assert!(matches!(schema.node_type("A", &[b]), Err(Error::Parents { .. })));
    }
}
