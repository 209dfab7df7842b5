//! GraphML.

use super::named::Named;
use super::tree::{self, Element};
use super::{EDGE_TYPE, NODE_TYPE, finished, mistake, parsed};
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
    let mut reader = Reader { keys, named: Named::new(name) };
    for graph in root.all("graph") {
        reader.named.check_flat(graph)?;
        for node in graph.all("node") {
            let of = reader.type_of(node);
            let added = reader.named.node(node, of.unwrap_or(NODE_TYPE))?;
            reader.values(node, added.into())?;
        }
    }
    // An edge may connect nodes of other graphs of the file.
    for graph in root.all("graph") {
        for edge in graph.all("edge") {
            let of = reader.type_of(edge);
            let added = reader.named.edge(edge, ["source", "target"], of.unwrap_or(EDGE_TYPE))?;
            reader.values(edge, added.into())?;
        }
        if let Some(other) = graph.all("hyperedge").next() {
            return Err(mistake(name, other.line, "hyperedges are not supported"));
        }
    }
    Ok(finished(reader.named.graph))
}

struct Reader<'a> {
    keys: HashMap<&'a str, Key<'a>>,
    named: Named<'a>,
}

impl Reader<'_> {
    fn type_of<'e>(&self, element: &'e Element) -> Option<&'e str> {
        let own = TYPE_KEYS.iter().find_map(|key| element.get(key));
        let text = self.type_data(element).map(|data| data.text.trim()).or(own)?;
        let text = text.trim_start_matches(':');
        (!text.is_empty()).then_some(text)
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
                mistake(self.named.file, data.line, format!("no <key> declares '{key}'"))
            })?;
            let value = parsed(&data.text, key.of).ok_or_else(|| {
                let expected = key.of.unwrap_or_default();
                let why = format!("'{}' is no {expected}", data.text.trim());
                mistake(self.named.file, data.line, why)
            })?;
            let key = self.named.graph.schema_mut().key(key.name)?;
            self.named.graph.set(of, key, value)?;
        }
        Ok(())
    }
}
