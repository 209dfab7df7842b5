//! Edges as pairs of names.

use super::{EDGE_TYPE, ID, NODE_TYPE, finished, mistake};
use crate::error::Error;
use crate::graph::{Graph, Node};
use std::collections::HashMap;

/// Separators of the two names, in the order in which they are tried.
const SEPARATORS: [char; 5] = ['\t', '|', ';', ',', ' '];

/// Reads a graph from lines with the names of a source and a target, such as `3,7`. The separator
/// is a tab, `|`, `;`, `,` or a space, whichever the first line has. Lines that begin with `#`, and
/// a first line that has the word `source`, `sourceId` or `START_ID`, are skipped. A third field is
/// the type of the edge. All nodes have the type `Node` and their name as the attribute `id`; edges
/// without a type have the type `EDGE`.
///
/// # Errors
/// [`Error::Read`] for a line without two names, and [`Error::Full`].
pub fn read_pairs(name: &str, text: &str) -> Result<Graph, Error> {
    let mut graph = Graph::new();
    let node_type = graph.schema_mut().node_type(NODE_TYPE, &[])?;
    let edge_type = graph.schema_mut().edge_type(EDGE_TYPE, &[])?;
    let id = graph.schema_mut().key(ID)?;
    let mut names: HashMap<String, Node> = HashMap::new();
    let mut separator = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start_matches('\u{feff}').trim();
        let is_header = separator.is_none() && is_header(line);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let separator = *separator.get_or_insert_with(|| {
            SEPARATORS.into_iter().find(|c| line.contains(*c)).unwrap_or(',')
        });
        if is_header {
            continue;
        }
        let mut fields = line.split(separator).map(str::trim).filter(|field| !field.is_empty());
        let (Some(from), Some(to)) = (fields.next(), fields.next()) else {
            let why = format!("expected two names with '{separator}' between them");
            return Err(mistake(name, number, why));
        };
        let of = match fields.next() {
            Some(of) => graph.schema_mut().edge_type(of, &[])?,
            None => edge_type,
        };
        if fields.next().is_some() {
            return Err(mistake(name, number, "a line has a source, a target and a type"));
        }
        let mut node = |graph: &mut Graph, name: &str| match names.get(name) {
            Some(node) => Ok(*node),
            None => {
                let node = graph.add_node(node_type)?;
                graph.set(node, id, name)?;
                names.insert(name.into(), node);
                Ok::<_, Error>(node)
            }
        };
        let (from, to) = (node(&mut graph, from)?, node(&mut graph, to)?);
        graph.add_edge(of, from, to)?;
    }
    Ok(finished(graph))
}

/// Whether a first line names columns. A name such as `resource` is not the word `source`.
fn is_header(line: &str) -> bool {
    let mut words = line.split(|c: char| !c.is_alphanumeric());
    line.contains("START_ID")
        || words.any(|word| ["source", "sourceid"].iter().any(|own| word.eq_ignore_ascii_case(own)))
}
