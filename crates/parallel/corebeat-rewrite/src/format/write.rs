//! Writers.

use super::{ID, NODE_TYPE};
use crate::graph::{Edge, Element, Graph, Node};
use crate::value::Value;
use quick_xml::escape::escape;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{self, Write};

/// The remedy for a graph that another format cannot express.
pub(super) const GRAPHML: &str = "write GraphML instead";

/// Writes a line for each edge: source, target and type. Nodes are named by their attribute `id`,
/// or by a number that no other node has where they have none. Quotes enclose names that need them,
/// as [`read_pairs`](super::read_pairs) expects. [`left_out_of_pairs`] counts what is not written.
///
/// # Errors
/// Those of the writer; [`io::ErrorKind::InvalidData`] if two nodes have one name.
pub fn write_pairs(graph: &Graph, to: &mut impl Write) -> io::Result<()> {
    let names = distinct_names(graph)?;
    writeln!(to, "source,target,type")?;
    for edge in graph.edges() {
        let Some((source, target)) = graph.ends(edge) else { continue };
        let [source, target, of] =
            [&names[&source], &names[&target], edge_type(graph, edge)].map(field);
        writeln!(to, "{source},{target},{of}")?;
    }
    to.flush()
}

/// A field of a line, in quotes if a reader would change it otherwise.
fn field(text: &str) -> Cow<'_, str> {
    let is_changed = text.is_empty() || text.starts_with('#') || text.trim() != text;
    match is_changed || text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")).into(),
        false => text.into(),
    }
}

/// Counts of what [`write_pairs`] leaves out of a graph. `Display` names the counts that are not 0,
/// such as `2 nodes without edges`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftOut {
    /// Nodes without edges.
    pub nodes: usize,
    /// Types of written nodes other than `Node`, the type of all nodes of such a file.
    pub types: usize,
    /// Attributes of written nodes and of edges, except the attribute `id` of nodes.
    pub attributes: usize,
}

impl LeftOut {
    /// Whether the file has the whole graph.
    pub fn is_nothing(&self) -> bool {
        *self == LeftOut::default()
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.nodes, "node without edges", "nodes without edges"),
            (self.types, "type of a node", "types of nodes"),
            (self.attributes, "attribute", "attributes"),
        ];
        let mut separator = "";
        for (count, one, many) in counts.into_iter().filter(|(count, ..)| *count > 0) {
            write!(f, "{separator}{count} {}", if count == 1 { one } else { many })?;
            separator = ", ";
        }
        Ok(())
    }
}

/// Counts what [`write_pairs`] leaves out of a graph.
pub fn left_out_of_pairs(graph: &Graph) -> LeftOut {
    let id = graph.schema().find_key(ID);
    let attributes = |element: Element, except| {
        let keys = graph.schema().keys().filter(|key| Some(*key) != except);
        keys.filter(|key| graph.get(element, *key) != Value::Null).count()
    };
    let mut left_out = LeftOut::default();
    let mut written = HashSet::new();
    for edge in graph.edges() {
        let Some((source, target)) = graph.ends(edge) else { continue };
        written.extend([source, target]);
        left_out.attributes += attributes(edge.into(), None);
    }
    for node in graph.nodes() {
        if !written.contains(&node) {
            left_out.nodes += 1;
            continue;
        }
        left_out.types += usize::from(node_type(graph, node) != NODE_TYPE);
        left_out.attributes += attributes(node.into(), id);
    }
    left_out
}

/// A name for each node that has an edge. Different nodes have different names.
fn distinct_names(graph: &Graph) -> io::Result<HashMap<Node, String>> {
    let ends =
        || graph.edges().filter_map(|edge| graph.ends(edge)).flat_map(|ends| [ends.0, ends.1]);
    let mut names = HashMap::new();
    let mut owners = HashMap::new();
    for node in ends() {
        let Some(name) = id(graph, node) else { continue };
        let owner = *owners.entry(name.clone()).or_insert(node);
        if owner != node {
            let what = format_args!("two nodes with the name {name:?}");
            return Err(inexpressible("a file of pairs", what, GRAPHML));
        }
        names.insert(node, name);
    }
    // Numbers of nodes first. If such a number is taken, a larger one than all of them.
    let mut spare = graph.nodes().map(|node| node.0 + 1).max().unwrap_or(0);
    for node in ends() {
        names.entry(node).or_insert_with(|| {
            let mut name = node.0.to_string();
            while owners.contains_key(&name) {
                name = spare.to_string();
                spare += 1;
            }
            name
        });
    }
    Ok(names)
}

pub(super) fn inexpressible(format: &str, what: impl fmt::Display, remedy: &str) -> io::Error {
    let why = format!("{format} cannot express {what}; {remedy}");
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Writes GraphML, which [`read_graphml`](super::read_graphml) reads back: types are in the
/// attribute `label`. Lists are written as text.
///
/// # Errors
/// Those of the writer; [`io::ErrorKind::InvalidData`] if a type is empty, begins with `:`, or has
/// white space at an end, and for control characters, which XML cannot express.
pub fn write_graphml(graph: &Graph, to: &mut impl Write) -> io::Result<()> {
    writeln!(to, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(to, "<graphml xmlns=\"http://graphml.graphdrawing.org/xmlns\">")?;
    writeln!(to, "<key id=\"label\" for=\"all\" attr.name=\"label\" attr.type=\"string\"/>")?;
    for key in graph.schema().keys() {
        let name = exact_xml("GraphML", graph.schema().key_name(key))?;
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
        writeln!(to, "<data key=\"label\">{}</data>", xml_type(node_type(graph, node))?)?;
        write_values(graph, node.into(), to)?;
        writeln!(to, "</node>")?;
    }
    for edge in graph.edges() {
        let Some((source, target)) = graph.ends(edge) else { continue };
        writeln!(to, "<edge source=\"{}\" target=\"{}\">", source.0, target.0)?;
        writeln!(to, "<data key=\"label\">{}</data>", xml_type(edge_type(graph, edge))?)?;
        write_values(graph, edge.into(), to)?;
        writeln!(to, "</edge>")?;
    }
    writeln!(to, "</graph>\n</graphml>")?;
    to.flush()
}

/// Writes GXL 1.0, which [`read_gxl`](super::read_gxl) reads back.
///
/// # Errors
/// Those of the writer; [`io::ErrorKind::InvalidData`] if a type is empty, or a list contains null.
pub fn write_gxl(graph: &Graph, to: &mut impl Write) -> io::Result<()> {
    writeln!(to, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(to, "<gxl xmlns:xlink=\"http://www.w3.org/1999/xlink\">")?;
    writeln!(to, "<graph id=\"graph\" edgeids=\"false\" edgemode=\"directed\">")?;
    for node in graph.nodes() {
        writeln!(to, "<node id=\"n{}\">", node.0)?;
        write_gxl_element(graph, node.into(), node_type(graph, node), to)?;
        writeln!(to, "</node>")?;
    }
    for edge in graph.edges() {
        let Some((source, target)) = graph.ends(edge) else { continue };
        writeln!(to, "<edge from=\"n{}\" to=\"n{}\">", source.0, target.0)?;
        write_gxl_element(graph, edge.into(), edge_type(graph, edge), to)?;
        writeln!(to, "</edge>")?;
    }
    writeln!(to, "</graph>\n</gxl>")?;
    to.flush()
}

/// Writes the type and the attributes of an element.
fn write_gxl_element(
    graph: &Graph,
    element: Element,
    of: &str,
    to: &mut impl Write,
) -> io::Result<()> {
    if of.is_empty() {
        return Err(inexpressible("GXL", "an empty type", "rename the type"));
    }
    writeln!(to, "<type xlink:href=\"#{}\"/>", exact_xml("GXL", of)?)?;
    for key in graph.schema().keys() {
        let value = graph.get(element, key);
        if value != Value::Null {
            let name = exact_xml("GXL", graph.schema().key_name(key))?;
            writeln!(to, "<attr name=\"{name}\">{}</attr>", gxl_value(&value)?)?;
        }
    }
    Ok(())
}

fn gxl_value(value: &Value) -> io::Result<String> {
    Ok(match value {
        Value::Null => return Err(inexpressible("GXL", "null in a list", GRAPHML)),
        Value::Int(value) => format!("<int>{value}</int>"),
        Value::Float(value) => format!("<float>{value}</float>"),
        Value::Bool(value) => format!("<bool>{value}</bool>"),
        Value::Text(text) => format!("<string>{}</string>", exact_xml("GXL", text)?),
        Value::List(values) => {
            let values = values.iter().map(gxl_value).collect::<io::Result<String>>()?;
            format!("<seq>{values}</seq>")
        }
    })
}

/// Whether XML 1.0 can express all characters, with references where necessary.
pub(super) fn is_xml(text: &str) -> bool {
    text.chars().all(is_xml_character)
}

fn is_xml_character(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r') || c >= ' ' && !['\u{fffe}', '\u{ffff}'].contains(&c)
}

/// Text of an element or an attribute. Characters that XML cannot express are replaced.
pub(super) fn xml(text: &str) -> String {
    escaped(&text.replace(|c| !is_xml_character(c), "\u{fffd}"))
}

/// Text that XML can express, with references: readers replace other white space by spaces in
/// attributes, and `\r\n` by `\n`.
fn escaped(text: &str) -> String {
    escape(text).replace('\t', "&#9;").replace('\n', "&#10;").replace('\r', "&#13;")
}

/// Text as [`xml`] has it, for a format that must not lose a character.
fn exact_xml(format: &str, text: &str) -> io::Result<String> {
    if is_xml(text) {
        return Ok(escaped(text));
    }
    let remedy = "remove its control characters";
    Err(inexpressible(format, format_args!("the text {text:?}"), remedy))
}

fn xml_type(of: &str) -> io::Result<String> {
    if of.is_empty() || of.starts_with(':') || of.trim() != of {
        return Err(inexpressible("GraphML", format_args!("the type {of:?}"), "rename the type"));
    }
    exact_xml("GraphML", of)
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
        let (name, text) = (xml(graph.schema().key_name(key)), exact_xml("GraphML", &text)?);
        writeln!(to, "<data key=\"{name}.{of}\">{text}</data>")?;
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
pub(super) fn name(graph: &Graph, node: Node) -> String {
    id(graph, node).unwrap_or_else(|| node.0.to_string())
}

/// The attribute `id` of a node as text, if the node has one.
fn id(graph: &Graph, node: Node) -> Option<String> {
    match graph.get(node, graph.schema().find_key(ID)?) {
        Value::Null => None,
        Value::Text(text) => Some(text.to_string()),
        value => Some(value.to_string()),
    }
}

pub(super) fn node_type(graph: &Graph, node: Node) -> &str {
    graph.node_type(node).map_or("", |of| graph.schema().node_name(of))
}

pub(super) fn edge_type(graph: &Graph, edge: Edge) -> &str {
    graph.edge_type(edge).map_or("", |of| graph.schema().edge_name(of))
}
