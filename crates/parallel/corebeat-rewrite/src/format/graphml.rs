//! GraphML.

use super::tree::{self, Element};
use super::{EDGE_TYPE, ID, NODE_TYPE, Names, finished, mistake, parsed};
use crate::error::Error;
use crate::graph::{self, Graph};
use std::collections::HashMap;

/// Names of attributes that state the type of an element.
const TYPE_KEYS: [&str; 3] = ["label", "labels", "type"];

/// A declaration `<key>`: the name and the type of an attribute.
struct Key<'a> {
    name: &'a str,
    of: Option<&'a str>,
}

/// Reads a graph from GraphML. The type of an element is its first attribute with the name `label`,
/// `labels` or `type` (`labels=":Person"` as well), or `Node` and `EDGE`. Each node has its name as
/// the attribute `id`, unless it has such an attribute. All edges count as directed. Nested graphs,
/// hyperedges and ports are not supported.
///
/// # Errors
/// [`Error::Read`] with the line of the mistake, and [`Error::Full`].
pub fn read_graphml(name: &str, text: &str) -> Result<Graph, Error> {
    let root = tree::read(name, text)?;
    if root.name != "graphml" {
        let why = format!("expected <graphml>, found <{}>", root.name);
        return Err(mistake(name, root.line, why));
    }
    let mut keys = HashMap::new();
    for key in root.all("key") {
        let id = key.get("id").ok_or_else(|| mistake(name, key.line, "<key> needs an id"))?;
        let own = key.get("attr.name").unwrap_or(id);
        keys.insert(id, Key { name: own, of: key.get("attr.type") });
    }
    let mut reader = Reader { name, keys, graph: Graph::new(), names: Names::new() };
    for graph in root.all("graph") {
        for node in graph.all("node") {
            reader.node(node)?;
        }
        for edge in graph.all("edge") {
            reader.edge(edge)?;
        }
        if let Some(other) = graph.all("hyperedge").next() {
            return Err(mistake(name, other.line, "hyperedges are not supported"));
        }
    }
    Ok(finished(reader.graph))
}

struct Reader<'a> {
    name: &'a str,
    keys: HashMap<&'a str, Key<'a>>,
    graph: Graph,
    names: Names,
}

impl Reader<'_> {
    fn node(&mut self, element: &Element) -> Result<(), Error> {
        if let Some(inner) = element.all("graph").next() {
            return Err(mistake(self.name, inner.line, "nested graphs are not supported"));
        }
        let id = self.required(element, "id")?;
        let of = self.type_of(element).unwrap_or(NODE_TYPE.into());
        let of = self.graph.schema_mut().node_type(&of, &[])?;
        let node = self.graph.add_node(of)?;
        if self.names.insert(id.clone(), node).is_some() {
            return Err(mistake(self.name, element.line, format!("node {id} exists already")));
        }
        let key = self.graph.schema_mut().key(ID)?;
        self.graph.set(node, key, id.as_str())?;
        self.values(element, node.into())
    }

    fn edge(&mut self, element: &Element) -> Result<(), Error> {
        let end = |attribute| {
            let id = self.required(element, attribute)?;
            let node = self.names.get(&id).copied();
            node.ok_or_else(|| {
                let why = format!("the {attribute} {id} does not exist; nodes precede edges");
                mistake(self.name, element.line, why)
            })
        };
        let (from, to) = (end("source")?, end("target")?);
        let of = self.type_of(element).unwrap_or(EDGE_TYPE.into());
        let of = self.graph.schema_mut().edge_type(&of, &[])?;
        let edge = self.graph.add_edge(of, from, to)?;
        self.values(element, edge.into())
    }

    fn required(&self, element: &Element, attribute: &str) -> Result<String, Error> {
        element.get(attribute).map(str::to_owned).ok_or_else(|| {
            mistake(self.name, element.line, format!("<{}> needs a {attribute}", element.name))
        })
    }

    fn type_of(&self, element: &Element) -> Option<String> {
        let own = TYPE_KEYS.iter().find_map(|key| element.get(key));
        let text = self.type_data(element).map(|data| data.text.trim()).or(own)?;
        let text = text.trim_start_matches(':');
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// The first data with the name of a type. Others with such a name are attributes.
    fn type_data<'e>(&self, element: &'e Element) -> Option<&'e Element> {
        element.all("data").find(|data| {
            let key = data.get("key").and_then(|key| self.keys.get(key));
            key.is_some_and(|key| TYPE_KEYS.contains(&key.name))
        })
    }

    fn values(&mut self, element: &Element, of: graph::Element) -> Result<(), Error> {
        let of_type = self.type_data(element);
        for data in element.all("data") {
            if of_type.is_some_and(|own| std::ptr::eq(own, data)) {
                continue;
            }
            let key = data.get("key").unwrap_or_default();
            let key = self.keys.get(key).ok_or_else(|| {
                mistake(self.name, data.line, format!("no <key> declares '{key}'"))
            })?;
            let value = parsed(&data.text, key.of).ok_or_else(|| {
                let expected = key.of.unwrap_or_default();
                let why = format!("'{}' is no {expected}", data.text.trim());
                mistake(self.name, data.line, why)
            })?;
            let key = self.graph.schema_mut().key(key.name)?;
            self.graph.set(of, key, value)?;
        }
        Ok(())
    }
}
