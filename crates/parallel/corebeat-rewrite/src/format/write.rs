//! Writers.

use super::ID;
use crate::graph::{Edge, Element, Graph, Node};
use crate::value::Value;
use quick_xml::escape::escape;
use std::io::{self, Write};

/// Writes a line for each edge: source, target and type. Nodes are named by their attribute `id`,
/// or by their number where they have none. Nodes without edges are not written.
///
/// # Errors
/// Those of the writer; [`io::ErrorKind::InvalidData`] if a name is one that
/// [`read_pairs`](super::read_pairs) does not read back: it is empty, begins with `#`, contains a
/// comma or a line break, or has white space at an end.
pub fn write_pairs(graph: &Graph, to: &mut impl Write) -> io::Result<()> {
    let is_plain = |text: &str| {
        let is_changed = text.is_empty() || text.starts_with('#') || text.trim() != text;
        !is_changed && !text.contains([',', '\n', '\r'])
    };
    let field = |text: String| match is_plain(&text) {
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a line cannot express the name {text:?}; write GraphML instead"),
        )),
        true => Ok(text),
    };
    writeln!(to, "source,target,type")?;
    for edge in graph.edges() {
        let Some((source, target)) = graph.ends(edge) else { continue };
        let (source, target) = (field(name(graph, source))?, field(name(graph, target))?);
        writeln!(to, "{source},{target},{}", field(edge_type(graph, edge).into())?)?;
    }
    to.flush()
}

/// Writes GraphML, which [`read_graphml`](super::read_graphml) reads back: types are in the
/// attribute `label`. Lists are written as text.
///
/// # Errors
/// Those of the writer.
pub fn write_graphml(graph: &Graph, to: &mut impl Write) -> io::Result<()> {
    writeln!(to, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(to, "<graphml xmlns=\"http://graphml.graphdrawing.org/xmlns\">")?;
    writeln!(to, "<key id=\"label\" for=\"all\" attr.name=\"label\" attr.type=\"string\"/>")?;
    for key in graph.schema().keys() {
        let name = escape(graph.schema().key_name(key));
        for of in ["string", "long", "double", "boolean"] {
            writeln!(
                to,
                "<key id=\"{name}.{of}\" for=\"all\" attr.name=\"{name}\" attr.type=\"{of}\"/>"
            )?;
        }
    }
    writeln!(to, "<graph edgedefault=\"directed\">")?;
    for node in graph.nodes() {
        writeln!(to, "<node id=\"{}\">", node.0)?;
        writeln!(to, "<data key=\"label\">{}</data>", escape(node_type(graph, node)))?;
        write_values(graph, node.into(), to)?;
        writeln!(to, "</node>")?;
    }
    for edge in graph.edges() {
        let Some((source, target)) = graph.ends(edge) else { continue };
        writeln!(to, "<edge source=\"{}\" target=\"{}\">", source.0, target.0)?;
        writeln!(to, "<data key=\"label\">{}</data>", escape(edge_type(graph, edge)))?;
        write_values(graph, edge.into(), to)?;
        writeln!(to, "</edge>")?;
    }
    writeln!(to, "</graph>\n</graphml>")?;
    to.flush()
}

fn write_values(graph: &Graph, element: Element, to: &mut impl Write) -> io::Result<()> {
    for key in graph.schema().keys() {
        let (of, text) = match graph.get(element, key) {
            Value::Null => continue,
            Value::Int(value) => ("long", value.to_string()),
            Value::Float(value) => ("double", value.to_string()),
            Value::Bool(value) => ("boolean", value.to_string()),
            Value::Text(text) => ("string", text.to_string()),
            list @ Value::List(_) => ("string", list.to_string()),
        };
        let name = escape(graph.schema().key_name(key));
        writeln!(to, "<data key=\"{name}.{of}\">{}</data>", escape(&text))?;
    }
    Ok(())
}

/// Writes a drawing for Graphviz: `dot -Tsvg` turns it into a picture.
///
/// # Errors
/// Those of the writer.
pub fn write_dot(graph: &Graph, to: &mut impl Write) -> io::Result<()> {
    writeln!(to, "digraph {{")?;
    for node in graph.nodes() {
        let label = format!("{} {}", node_type(graph, node), name(graph, node));
        writeln!(to, "  {} [label={:?}];", node.0, label)?;
    }
    for edge in graph.edges() {
        let Some((source, target)) = graph.ends(edge) else { continue };
        let label = edge_type(graph, edge);
        writeln!(to, "  {} -> {} [label={label:?}];", source.0, target.0)?;
    }
    writeln!(to, "}}")?;
    to.flush()
}

/// The attribute `id` of a node, or its number.
fn name(graph: &Graph, node: Node) -> String {
    match graph.schema().find_key(ID).map(|key| graph.get(node, key)) {
        Some(Value::Text(text)) => text.to_string(),
        Some(Value::Int(number)) => number.to_string(),
        _ => node.0.to_string(),
    }
}

fn node_type(graph: &Graph, node: Node) -> &str {
    graph.node_type(node).map_or("", |of| graph.schema().node_name(of))
}

fn edge_type(graph: &Graph, edge: Edge) -> &str {
    graph.edge_type(edge).map_or("", |of| graph.schema().edge_name(of))
}
