//! Graphs whose file names each node.

use super::tree::Element;
use super::{ID, mistake};
use crate::error::Error;
use crate::graph::{Edge, Graph, Node};
use std::collections::HashMap;

/// A graph under construction from elements of XML.
pub(super) struct Named<'a> {
    /// Name of the file.
    pub(super) file: &'a str,
    pub(super) graph: Graph,
    nodes: HashMap<String, Node>,
}

impl<'a> Named<'a> {
    pub(super) fn new(file: &'a str) -> Named<'a> {
        Named { file, graph: Graph::new(), nodes: HashMap::new() }
    }

    /// Adds a node of a type, with its name as the attribute `id`.
    pub(super) fn node(&mut self, element: &Element, of: &str) -> Result<Node, Error> {
        self.check_flat(element)?;
        let id = self.required(element, "id")?;
        let of = self.graph.schema_mut().node_type(of, &[])?;
        let node = self.graph.add_node(of)?;
        if self.nodes.insert(id.to_owned(), node).is_some() {
            return Err(mistake(self.file, element.line, format!("node {id} exists already")));
        }
        let key = self.graph.schema_mut().key(ID)?;
        self.graph.set(node, key, id)?;
        Ok(node)
    }

    /// Adds an edge of a type. `ends` are the attributes with the names of its nodes.
    pub(super) fn edge(
        &mut self,
        element: &Element,
        ends: [&str; 2],
        of: &str,
    ) -> Result<Edge, Error> {
        self.check_flat(element)?;
        let end = |attribute| {
            let id = self.required(element, attribute)?;
            let node = self.nodes.get(id).copied();
            node.ok_or_else(|| {
                let why = format!("the {attribute} {id} is no node of the file; add the node");
                mistake(self.file, element.line, why)
            })
        };
        let (from, to) = (end(ends[0])?, end(ends[1])?);
        let of = self.graph.schema_mut().edge_type(of, &[])?;
        self.graph.add_edge(of, from, to)
    }

    /// Refuses an element that contains a graph.
    pub(super) fn check_flat(&self, element: &Element) -> Result<(), Error> {
        match element.all("graph").next() {
            Some(inner) => Err(mistake(self.file, inner.line, "nested graphs are not supported")),
            None => Ok(()),
        }
    }

    /// The value of an attribute that an element needs.
    pub(super) fn required<'e>(
        &self,
        element: &'e Element,
        attribute: &str,
    ) -> Result<&'e str, Error> {
        element.get(attribute).ok_or_else(|| {
            mistake(self.file, element.line, format!("<{}> needs a {attribute}", element.name))
        })
    }
}
