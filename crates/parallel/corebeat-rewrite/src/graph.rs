//! The public face of a graph.

use crate::change::Reader;
use crate::error::Error;
use crate::plan::Plan;
use crate::schema::{EdgeType, Key, NodeType, Schema};
use crate::store::{Direction, Space, Store};
use crate::value::Value;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A node of a [`Graph`]. The number of a deleted node is used again for a later node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(pub u32);

/// An edge of a [`Graph`]. The number of a deleted edge is used again for a later edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge(pub u32);

/// A typed graph with attributes, directed edges and parallel edges.
///
/// ```
/// use corebeat_rewrite::{Graph, Value};
///
/// let mut graph = Graph::new();
/// let person = graph.schema_mut().node_type("Person", &[])?;
/// let likes = graph.schema_mut().edge_type("LIKES", &[])?;
/// let name = graph.schema_mut().key("name")?;
/// let (ada, bob) = (graph.add_node(person)?, graph.add_node(person)?);
/// let edge = graph.add_edge(likes, ada, bob)?;
/// graph.set(ada, name, "Ada")?;
/// assert_eq!(graph.get(ada, name), Value::from("Ada"));
/// assert_eq!(graph.out_edges(ada, likes).collect::<Vec<_>>(), [(edge, bob)]);
/// # Ok::<(), corebeat_rewrite::Error>(())
/// ```
#[derive(Default)]
pub struct Graph {
    pub(crate) store: Store,
    pub(crate) space: Space,
    /// Sequence number of the locks of the last phase.
    pub(crate) sequence: u32,
    /// The live queries.
    pub(crate) readers: Vec<Reader>,
    /// The plans of the rules that were applied, by [`Rule::id`](crate::Rule).
    pub(crate) plans: HashMap<u64, Arc<Plan>>,
}

/// A node or an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// A node.
    Node(Node),
    /// An edge.
    Edge(Edge),
}

impl From<Node> for Element {
    fn from(node: Node) -> Element {
        Element::Node(node)
    }
}

impl From<Edge> for Element {
    fn from(edge: Edge) -> Element {
        Element::Edge(edge)
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({} nodes, {} edges)", self.node_count(), self.edge_count())
    }
}

impl Graph {
    /// Creates an empty graph without types.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// The types and attribute names.
    pub fn schema(&self) -> &Schema {
        &self.store.schema
    }

    /// The types and attribute names, to add more of them.
    pub fn schema_mut(&mut self) -> &mut Schema {
        &mut self.store.schema
    }

    /// Adds a node.
    ///
    /// # Errors
    /// [`Error::Full`].
    ///
    /// # Panics
    /// If the type is of another graph's schema and this schema has fewer types.
    pub fn add_node(&mut self, of: NodeType) -> Result<Node, Error> {
        self.store.require_room(1, 0)?;
        self.store.fit_to_schema();
        let node = self.store.take_node(&mut self.space);
        self.store.create_node(&mut self.space, node, of);
        self.store.settle(&mut self.space);
        Ok(Node(node))
    }

    /// Adds an edge.
    ///
    /// # Errors
    /// [`Error::Missing`] if a node does not exist, and [`Error::Full`].
    ///
    /// # Panics
    /// As [`Graph::add_node`].
    pub fn add_edge(&mut self, of: EdgeType, from: Node, to: Node) -> Result<Edge, Error> {
        self.store.require_room(0, 1)?;
        self.require(from.into())?;
        self.require(to.into())?;
        self.store.fit_to_schema();
        Ok(Edge(self.store.create_edge(&mut self.space, of, from.0, to.0)))
    }

    /// Deletes an edge.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn delete_edge(&mut self, edge: Edge) -> Result<(), Error> {
        self.require(edge.into())?;
        self.store.delete_edge(&mut self.space, edge.0);
        Ok(())
    }

    /// Deletes a node without edges.
    ///
    /// # Errors
    /// [`Error::Missing`], and [`Error::Dangling`] if the node has edges.
    pub fn delete_node(&mut self, node: Node) -> Result<(), Error> {
        self.require(node.into())?;
        let mut is_free = true;
        self.store.each_edge(node.0, |_, _, _, _| is_free = false);
        if !is_free {
            return Err(Error::Dangling { node: node.0 });
        }
        self.store.delete_node(&mut self.space, node.0);
        Ok(())
    }

    /// Sets an attribute of a node or an edge. [`Value::Null`] removes the attribute.
    ///
    /// # Errors
    /// [`Error::Missing`].
    ///
    /// # Panics
    /// If the key is of another graph's schema and this schema has fewer keys.
    pub fn set(
        &mut self,
        element: impl Into<Element>,
        key: Key,
        value: impl Into<Value>,
    ) -> Result<(), Error> {
        let element = element.into();
        self.require(element)?;
        self.store.fit_to_schema();
        let value = self.store.literals.encode(&value.into());
        let space = &mut self.space;
        match element {
            Element::Node(node) => self.store.set_node_value(space, node.0, key, value),
            Element::Edge(edge) => self.store.set_edge_value(space, edge.0, key, value),
        }
        Ok(())
    }

    /// The value of an attribute: [`Value::Null`] if the element does not exist or has no such
    /// attribute.
    pub fn get(&self, element: impl Into<Element>, key: Key) -> Value {
        self.store.literals.decode(match element.into() {
            Element::Node(node) => self.store.node_value(node.0, key),
            Element::Edge(edge) => self.store.edge_value(edge.0, key),
        })
    }

    /// The type of a node that exists.
    pub fn node_type(&self, node: Node) -> Option<NodeType> {
        self.store.node_type(node.0)
    }

    /// The type of an edge that exists.
    pub fn edge_type(&self, edge: Edge) -> Option<EdgeType> {
        self.store.edge_type(edge.0)
    }

    /// Source and target of an edge that exists.
    pub fn ends(&self, edge: Edge) -> Option<(Node, Node)> {
        self.store.ends(edge.0).map(|(from, to)| (Node(from), Node(to)))
    }

    /// All nodes, in the order of their numbers.
    pub fn nodes(&self) -> impl Iterator<Item = Node> + '_ {
        let exists = |node: &Node| self.node_type(*node).is_some();
        (0..self.store.node_limit()).map(Node).filter(exists)
    }

    /// All edges, in the order of their numbers.
    pub fn edges(&self) -> impl Iterator<Item = Edge> + '_ {
        let exists = |edge: &Edge| self.edge_type(*edge).is_some();
        (0..self.store.edge_limit()).map(Edge).filter(exists)
    }

    /// The nodes of a type and of its subtypes.
    pub fn nodes_of(&self, of: NodeType) -> impl Iterator<Item = Node> + '_ {
        self.schema().node_types_below(of).flat_map(move |of| {
            let count = self.store.member_limit(of);
            (0..count).filter_map(move |index| self.store.member(of, index)).map(Node)
        })
    }

    /// The outgoing edges of a type and of its subtypes, with their targets.
    pub fn out_edges(&self, node: Node, of: EdgeType) -> impl Iterator<Item = (Edge, Node)> + '_ {
        self.linked(node, of, Direction::Out)
    }

    /// The incoming edges of a type and of its subtypes, with their sources.
    pub fn in_edges(&self, node: Node, of: EdgeType) -> impl Iterator<Item = (Edge, Node)> + '_ {
        self.linked(node, of, Direction::In)
    }

    fn linked(
        &self,
        node: Node,
        of: EdgeType,
        direction: Direction,
    ) -> impl Iterator<Item = (Edge, Node)> + '_ {
        let lists = self.schema().edge_types_below(of);
        lists.flat_map(move |of| self.store.list(of, direction, node.0)).map(|entry| {
            let entry = entry.load(Relaxed);
            (Edge((entry >> 32) as u32), Node(entry as u32))
        })
    }

    /// Number of nodes.
    pub fn node_count(&self) -> u64 {
        self.space.node_counts.iter().sum::<i64>() as u64
    }

    /// Number of edges.
    pub fn edge_count(&self) -> u64 {
        self.space.edge_counts.iter().sum::<i64>() as u64
    }

    /// Number of nodes of exactly this type.
    pub fn node_count_of(&self, of: NodeType) -> u64 {
        self.space.node_counts.get(usize::from(of.0)).map_or(0, |count| *count as u64)
    }

    /// Number of edges of exactly this type.
    pub fn edge_count_of(&self, of: EdgeType) -> u64 {
        self.space.edge_counts.get(usize::from(of.0)).map_or(0, |count| *count as u64)
    }

    /// Stores the edges of each node next to each other, without room for more edges. Matching
    /// becomes faster. Do this after a graph has been constructed; the readers do it.
    pub fn compact(&mut self) {
        self.store.compact(&mut self.space);
    }

    fn require(&self, element: Element) -> Result<(), Error> {
        let exists = match element {
            Element::Node(node) => self.node_type(node).is_some(),
            Element::Edge(edge) => self.edge_type(edge).is_some(),
        };
        let element = || match element {
            Element::Node(node) => format!("node {}", node.0),
            Element::Edge(edge) => format!("edge {}", edge.0),
        };
        if exists { Ok(()) } else { Err(Error::Missing { element: element() }) }
    }
}
