//! GXL.

use super::named::Named;
use super::tree::{self, Element};
use super::{EDGE_TYPE, NODE_TYPE, finished, mistake, parsed};
use crate::error::Error;
use crate::graph::{self, Graph};
use crate::value::Value;

/// Reads a graph from GXL 1.0. The type of an element is what follows `#` in its `<type>`, or
/// `Node` and `EDGE`. Each node has its name as the attribute `id`, unless it has such an
/// attribute. Sequences, sets, bags and tuples are lists. All edges count as directed. Nested
/// graphs, relations (hyperedges) and edges between edges are not supported.
///
/// # Errors
/// [`Error::Read`] with the line of the mistake, and [`Error::Full`].
pub fn read_gxl(name: &str, text: &str) -> Result<Graph, Error> {
    let root = tree::read(name, text)?;
    if root.name != "gxl" {
        return Err(mistake(name, root.line, format!("expected <gxl>, found <{}>", root.name)));
    }
    let mut named = Named::new(name);
    for graph in root.all("graph") {
        named.check_flat(graph)?;
        for node in graph.all("node") {
            let added = named.node(node, type_of(node).unwrap_or(NODE_TYPE))?;
            values(&mut named, node, added.into())?;
        }
    }
    // An edge may connect nodes of other graphs of the file.
    for graph in root.all("graph") {
        for edge in graph.all("edge") {
            let of = type_of(edge).unwrap_or(EDGE_TYPE);
            let added = named.edge(edge, ["from", "to"], of)?;
            values(&mut named, edge, added.into())?;
        }
        if let Some(other) = graph.all("rel").next() {
            return Err(mistake(name, other.line, "relations are not supported"));
        }
    }
    Ok(finished(named.graph))
}

fn type_of(element: &Element) -> Option<&str> {
    let reference = element.all("type").next()?.get("xlink:href")?;
    let of = reference.split_once('#').map_or(reference, |(_, of)| of);
    (!of.is_empty()).then_some(of)
}

fn values(named: &mut Named, element: &Element, of: graph::Element) -> Result<(), Error> {
    for attribute in element.all("attr") {
        let key = named.required(attribute, "name")?;
        let Some(content) = attribute.children.first() else {
            let why = format!("the attribute {key} has no value; write <string>, for example");
            return Err(mistake(named.file, attribute.line, why));
        };
        let value = value(named.file, content)?;
        let key = named.graph.schema_mut().key(key)?;
        named.graph.set(of, key, value)?;
    }
    Ok(())
}

fn value(file: &str, content: &Element) -> Result<Value, Error> {
    let of = match content.name.as_str() {
        "seq" | "set" | "bag" | "tup" => {
            let values = content.children.iter().map(|inner| value(file, inner));
            return Ok(values.collect::<Result<Vec<Value>, Error>>()?.into());
        }
        "bool" => "boolean",
        "locator" => return Ok(content.get("xlink:href").unwrap_or_default().into()),
        of @ ("int" | "float" | "string" | "enum") => of,
        other => {
            let why = format!("<{other}> is no value of GXL; write <string>, for example");
            return Err(mistake(file, content.line, why));
        }
    };
    parsed(&content.text, Some(of)).ok_or_else(|| {
        let why = format!("'{}' is no {of}", content.text.trim());
        mistake(file, content.line, why)
    })
}
