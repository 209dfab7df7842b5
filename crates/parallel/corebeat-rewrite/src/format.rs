//! Files of graphs: readers and writers.

mod ecore;
mod graphml;
mod gxl;
mod named;
mod pairs;
mod serializer;
mod svg;
mod tree;
mod write;
mod xmi;

use crate::error::Error;
use crate::graph::Graph;
use crate::value::Value;

pub use ecore::{Metamodel, read_metamodel};
pub use graphml::read_graphml;
pub use gxl::read_gxl;
pub use pairs::read_pairs;
pub use serializer::write_xmi;
pub use svg::write_svg;
pub use write::{LeftOut, left_out_of_pairs, write_dot, write_graphml, write_gxl, write_pairs};
pub use xmi::read_xmi;

/// Type of nodes whose file names no type.
const NODE_TYPE: &str = "Node";
/// Type of edges whose file names no type.
const EDGE_TYPE: &str = "EDGE";
/// Attribute with the name that a file gives to a node.
const ID: &str = "id";

/// A mistake in a line of a file.
fn mistake(name: &str, line: usize, why: impl Into<String>) -> Error {
    Error::Read { name: name.into(), line, why: why.into() }
}

/// The value that a text stands for, or `None` if it is not of the type. Without a type, or with
/// another one, it is the text.
fn parsed(text: &str, of: Option<&str>) -> Option<Value> {
    match of {
        Some("int" | "long") => text.trim().parse().ok().map(Value::Int),
        Some("float" | "double") => text.trim().parse().ok().map(Value::Float),
        // Python writes `True`.
        Some("boolean") => text.trim().to_lowercase().parse().ok().map(Value::Bool),
        _ => Some(Value::Text(text.into())),
    }
}

/// The graph is complete: its lists need no more room.
fn finished(mut graph: Graph) -> Graph {
    graph.compact();
    graph
}
