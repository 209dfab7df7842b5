//! Models of EMF as XMI.

use super::ecore::{Data, Feature, Metamodel, fits};
use super::tree::{self, Element};
use super::{finished, mistake};
use crate::error::Error;
use crate::graph::{Graph, Node};
use crate::schema::{EdgeType, Key, NodeType};
use crate::value::Value;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Reads a model into a graph that has the types of its metamodel. Each object is a node; each
/// reference, containments included, is an edge. References are resolved by identifiers and by
/// paths such as `//@posts.0`.
///
/// # Errors
/// [`Error::Read`] with the line of the mistake, such as a reference to an object that does not
/// exist, and [`Error::Full`].
pub fn read_xmi(
    name: &str,
    text: &str,
    metamodel: &Metamodel,
    graph: Graph,
) -> Result<Graph, Error> {
    let root = tree::read(name, text)?;
    let mut reader = Reader {
        name,
        metamodel,
        graph,
        ids: HashMap::new(),
        paths: HashMap::new(),
        pending: Vec::new(),
        known: HashSet::new(),
    };
    let roots: Vec<&Element> = match root.name.as_str() {
        "XMI" => root.children.iter().collect(),
        _ => vec![&root],
    };
    for (index, element) in roots.iter().enumerate() {
        let of = reader.class(element, None)?;
        let path = if roots.len() == 1 { "/".to_owned() } else { format!("/{index}") };
        reader.object(element, of, path)?;
    }
    reader.resolve()?;
    Ok(finished(reader.graph))
}

/// A reference whose target may follow in the file.
struct Pending {
    from: Node,
    edge: EdgeType,
    backwards: bool,
    target: NodeType,
    reference: String,
    line: usize,
}

struct Reader<'a> {
    name: &'a str,
    metamodel: &'a Metamodel,
    graph: Graph,
    /// Nodes by identifier. Objects of different classes may have equal identifiers.
    ids: HashMap<String, Vec<Node>>,
    paths: HashMap<String, Node>,
    pending: Vec<Pending>,
    /// Links that exist: both sides of a pair of opposites may state a link.
    known: HashSet<(EdgeType, Node, Node)>,
}

impl Reader<'_> {
    fn class(&self, element: &Element, default: Option<NodeType>) -> Result<NodeType, Error> {
        let stated = element.get("xsi:type").or_else(|| element.get("xmi:type"));
        let name = match (stated, default) {
            (Some(stated), _) => stated.rsplit(':').next().unwrap_or(stated),
            (None, Some(default)) => return Ok(default),
            (None, None) => element.name.as_str(),
        };
        self.metamodel.classes.get(name).copied().ok_or_else(|| {
            mistake(self.name, element.line, format!("the metamodel has no class {name}"))
        })
    }

    /// Adds an object with all objects that it contains.
    fn object(&mut self, element: &Element, of: NodeType, path: String) -> Result<Node, Error> {
        let node = self.graph.add_node(of)?;
        if let Some(id) = element.get("xmi:id") {
            self.ids.entry(id.to_owned()).or_default().push(node);
        }
        let is_plain = |name: &str| !name.starts_with("xmlns") && !name.contains(':');
        for (name, value) in element.attributes.iter().filter(|(name, _)| is_plain(name)) {
            self.attribute(node, of, name, value, element.line)?;
        }
        let mut counts: HashMap<&str, usize> = HashMap::new();
        let mut lists: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
        for child in &element.children {
            let index = counts.entry(child.name.as_str()).or_default();
            let child_path = format!("{path}/@{}.{index}", child.name);
            *index += 1;
            self.child(node, of, child, child_path, &mut lists)?;
        }
        // Once for each list: a graph stores every list that an attribute has had.
        for (key, values) in lists {
            self.graph.set(node, key, values)?;
        }
        self.paths.insert(path, node);
        Ok(node)
    }

    fn feature(&self, of: NodeType, name: &str, line: usize) -> Result<Feature, Error> {
        self.metamodel.feature(of, name).cloned().ok_or_else(|| {
            let class = self.graph.schema().node_name(of);
            mistake(self.name, line, format!("the class {class} has no feature {name}"))
        })
    }

    fn attribute(
        &mut self,
        node: Node,
        of: NodeType,
        name: &str,
        text: &str,
        line: usize,
    ) -> Result<(), Error> {
        match self.feature(of, name, line)? {
            Feature::Attribute { key, data, is_id, .. } => {
                if is_id {
                    self.ids.entry(text.to_owned()).or_default().push(node);
                }
                let value = self.value(data, text, line)?;
                self.graph.set(node, key, value)
            }
            Feature::Reference { edge, backwards, target, .. } => {
                // A type such as `social:User` may precede a reference into another file.
                let parts: Vec<&str> = text.split_whitespace().collect();
                let is_type = |index: usize, part: &str| {
                    part.contains(':')
                        && !part.contains(['#', '/'])
                        && parts.get(index + 1).is_some_and(|next| next.contains('#'))
                };
                for (_, part) in parts.iter().enumerate().filter(|(i, part)| !is_type(*i, part)) {
                    let reference = (*part).to_owned();
                    let from = node;
                    self.pending.push(Pending { from, edge, backwards, target, reference, line });
                }
                Ok(())
            }
        }
    }

    fn child(
        &mut self,
        node: Node,
        of: NodeType,
        child: &Element,
        path: String,
        lists: &mut BTreeMap<Key, Vec<Value>>,
    ) -> Result<(), Error> {
        match self.feature(of, &child.name, child.line)? {
            Feature::Attribute { key, data, many, .. } => {
                let value = self.value(data, &child.text, child.line)?;
                if many {
                    lists.entry(key).or_default().push(value);
                    return Ok(());
                }
                self.graph.set(node, key, value)
            }
            Feature::Reference { edge, backwards, target, .. } => {
                if let Some(reference) = child.get("href") {
                    let (reference, line) = (reference.to_owned(), child.line);
                    let from = node;
                    self.pending.push(Pending { from, edge, backwards, target, reference, line });
                    return Ok(());
                }
                let class = self.class(child, Some(target))?;
                let inner = self.object(child, class, path)?;
                self.link(node, edge, backwards, inner)
            }
        }
    }

    fn value(&self, data: Data, text: &str, line: usize) -> Result<Value, Error> {
        let value = match data {
            Data::Int(bits) => {
                let number = text.trim().parse().ok().filter(|number| fits(*number, bits));
                number.map(Value::Int)
            }
            Data::Float => text.trim().parse().ok().map(Value::Float),
            Data::Bool => text.trim().parse().ok().map(Value::Bool),
            Data::Text => Some(Value::from(text)),
        };
        value.ok_or_else(|| {
            let expected = match data {
                Data::Int(64) => "an integer",
                Data::Int(_) => "an integer in the range of its type",
                Data::Float => "a number",
                _ => "true or false",
            };
            mistake(self.name, line, format!("'{text}' is not {expected}"))
        })
    }

    fn link(&mut self, from: Node, edge: EdgeType, backwards: bool, to: Node) -> Result<(), Error> {
        let (from, to) = if backwards { (to, from) } else { (from, to) };
        if self.known.insert((edge, from, to)) {
            self.graph.add_edge(edge, from, to)?;
        }
        Ok(())
    }

    fn resolve(&mut self) -> Result<(), Error> {
        for pending in std::mem::take(&mut self.pending) {
            let reference = pending.reference.rsplit('#').next().unwrap_or_default();
            let is_target = |node: &&Node| {
                let of = self.graph.node_type(**node);
                let mut below = self.graph.schema().node_types_below(pending.target);
                of.is_some_and(|of| below.any(|own| own == of))
            };
            let by_id = self.ids.get(reference).and_then(|nodes| nodes.iter().find(is_target));
            let found = by_id.or_else(|| self.paths.get(reference)).copied();
            let to = found.ok_or_else(|| {
                let why = format!("the reference {} leads to no object", pending.reference);
                mistake(self.name, pending.line, why)
            })?;
            self.link(pending.from, pending.edge, pending.backwards, to)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_metamodel;
    use super::*;

    #[test]
    fn a_list_is_stored_once_and_not_once_for_each_value() {
        let ecore = r#"<EPackage xmlns:xsi="x"><eClassifiers xsi:type="ecore:EClass" name="A">
            <eStructuralFeatures xsi:type="ecore:EAttribute" name="tags" upperBound="-1"/>
            </eClassifiers></EPackage>"#;
        let mut graph = Graph::new();
        let metamodel = read_metamodel("m", ecore, &mut graph).unwrap();
        let text = "<A><tags>a</tags><tags>b</tags><tags>c</tags></A>";
        let graph = read_xmi("x", text, &metamodel, graph).unwrap();
        let tags = graph.schema().find_key("tags").unwrap();
        let expected = Value::from(vec!["a".into(), "b".into(), "c".into()]);
        assert_eq!(graph.get(Node(0), tags), expected);
        assert!(graph.store.literals.get_list(1).is_empty());
    }
}
