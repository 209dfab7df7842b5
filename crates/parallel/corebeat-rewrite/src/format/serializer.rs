//! The writer of models of EMF.

use super::ecore::{Data, Feature, Metamodel, fits};
use super::tree::DEPTH_MAX;
use super::write::{GRAPHML, edge_type, inexpressible, is_xml, node_type, xml};
use crate::graph::{Edge, Graph, Node};
use crate::schema::{EdgeType, Key, NodeType};
use crate::value::Value;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{self, Write};
use std::rc::Rc;

/// Writes a model as XMI, which [`read_xmi`](super::read_xmi) reads back with the same metamodel.
/// Objects are inside their containers. A reference names its target by the attribute that the
/// metamodel declares as identifier, if no other object has its value, and otherwise by an
/// `xmi:id`. Of two references that are opposites, one is written.
///
/// The metamodel must have been read into this graph, or into the graph from which it was made.
///
/// # Errors
/// Those of the writer; [`io::ErrorKind::InvalidData`] if the graph is not a model of the
/// metamodel: an element or an attribute that the metamodel does not have, a value of another kind,
/// an empty list, an attribute of an edge, two equal edges between two nodes, several targets of a
/// reference that has one, an object in several containers or in itself, or one that is too deep
/// for the reader (256 containers).
pub fn write_xmi(graph: &Graph, metamodel: &Metamodel, to: &mut impl Write) -> io::Result<()> {
    let is_same =
        |(name, of): (&String, &NodeType)| graph.schema().find_node_type(name) == Some(*of);
    if !metamodel.classes.iter().all(is_same) {
        let why = "the metamodel is of another graph; read it into the graph that is written";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let writer = Serializer::new(graph, metamodel)?;
    writer.write(to)?;
    to.flush()
}

/// A feature with its name.
type Named = Rc<(String, Feature)>;

/// The feature that expresses an edge. It belongs to the target if it is a backwards one.
#[derive(Clone)]
struct Role {
    feature: Named,
    is_backwards: bool,
    is_containment: bool,
    target: NodeType,
}

struct Serializer<'a> {
    graph: &'a Graph,
    metamodel: &'a Metamodel,
    /// All features of a class, inherited ones included.
    features: HashMap<NodeType, Vec<Named>>,
    /// The prefix of the package of a class.
    prefixes: HashMap<NodeType, String>,
    /// Prefixes and addresses of the packages.
    packages: Vec<(String, String)>,
    /// Roles of edges by type, class of the source and class of the target.
    roles: RefCell<HashMap<(EdgeType, NodeType, NodeType), Option<Role>>>,
    contained: HashSet<Node>,
    referenced: HashSet<Node>,
    /// Number of objects by identifier.
    ids: HashMap<String, u32>,
    /// The beginning of each `xmi:id`. No identifier begins with it.
    id_prefix: String,
}

/// A node in a message.
fn named(graph: &Graph, node: Node) -> String {
    format!("node {} ({})", node.0, node_type(graph, node))
}

fn refused<T>(what: impl fmt::Display) -> io::Result<T> {
    Err(inexpressible("XMI", what, GRAPHML))
}

/// Whether a text is a name in XML without a colon.
fn is_name(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let is_inner = |c: char| c.is_alphanumeric() || ['_', '-', '.'].contains(&c);
    begins && text.chars().all(is_inner) && !text.to_lowercase().starts_with("xml")
}

/// The text of a value of a kind, or `None` if it has another kind.
fn scalar(value: &Value, data: Data) -> Option<String> {
    match (value, data) {
        (Value::Int(value), Data::Int(bits)) if fits(*value, bits) => Some(value.to_string()),
        (Value::Bool(value), Data::Bool) => Some(value.to_string()),
        // As Java writes it.
        (Value::Float(value), Data::Float) if value.is_infinite() => {
            Some(if *value > 0.0 { "Infinity" } else { "-Infinity" }.into())
        }
        (Value::Float(value), Data::Float) => Some(format!("{value:?}")),
        (Value::Text(text), Data::Text) if is_xml(text) => Some(text.to_string()),
        _ => None,
    }
}

fn kind(data: Data) -> &'static str {
    match data {
        Data::Int(64) => "an integer",
        Data::Int(_) => "an integer in the range of its type",
        Data::Float => "a floating-point number",
        Data::Bool => "true or false",
        Data::Text => "a text without control characters",
    }
}

impl<'a> Serializer<'a> {
    fn new(graph: &'a Graph, metamodel: &'a Metamodel) -> io::Result<Serializer<'a>> {
        let mut writer = Serializer {
            graph,
            metamodel,
            features: HashMap::new(),
            prefixes: HashMap::new(),
            packages: Vec::new(),
            roles: RefCell::default(),
            contained: HashSet::new(),
            referenced: HashSet::new(),
            ids: HashMap::new(),
            id_prefix: "_".into(),
        };
        writer.name_packages();
        for (class, line) in &metamodel.lines {
            let mut known = HashSet::new();
            let mut features = Vec::new();
            for of in line {
                for name in metamodel.names.get(of).into_iter().flatten() {
                    let Some(feature) = metamodel.features.get(&(*of, name.clone())) else {
                        continue;
                    };
                    if known.insert(name) {
                        features.push(Rc::new((name.clone(), feature.clone())));
                    }
                }
            }
            writer.features.insert(*class, features);
        }
        graph.nodes().try_for_each(|node| writer.examine_node(node))?;
        graph.edges().try_for_each(|edge| writer.examine_edge(edge))?;
        while writer.ids.keys().any(|id| id.starts_with(&writer.id_prefix)) {
            writer.id_prefix.push('_');
        }
        Ok(writer)
    }

    /// Gives each package a prefix that no other package has.
    fn name_packages(&mut self) {
        let mut known: HashMap<_, String> = HashMap::new();
        let mut classes: Vec<NodeType> = self.metamodel.lines.keys().copied().collect();
        classes.sort();
        for class in classes {
            let Some(package) = self.metamodel.packages.get(&class) else { continue };
            let prefix = known.entry(package).or_insert_with(|| {
                let mut prefix = package.prefix.clone();
                let is_taken = |prefix: &String, packages: &[(String, String)]| {
                    packages.iter().any(|(known, _)| known == prefix)
                };
                let is_special = prefix == "xsi" || prefix == "xmi";
                if !is_name(&prefix) || is_special || is_taken(&prefix, &self.packages) {
                    prefix = format!("package{}", self.packages.len());
                }
                while is_taken(&prefix, &self.packages) {
                    prefix.push('_');
                }
                let uri = if package.uri.is_empty() { &prefix } else { &package.uri };
                self.packages.push((prefix.clone(), uri.clone()));
                prefix
            });
            self.prefixes.insert(class, prefix.clone());
        }
    }

    fn class(&self, node: Node) -> Option<NodeType> {
        self.graph.node_type(node)
    }

    fn features_of(&self, class: NodeType) -> &[Named] {
        self.features.get(&class).map_or(&[], |features| features)
    }

    /// Checks the class of a node and its attributes, and counts its identifiers.
    fn examine_node(&mut self, node: Node) -> io::Result<()> {
        let graph = self.graph;
        let Some(class) = self.class(node) else { return Ok(()) };
        let name = graph.schema().node_name(class);
        if !self.metamodel.lines.contains_key(&class) || !is_name(name) {
            let of = named(graph, node);
            return refused(format_args!("{of}, whose class the metamodel does not have"));
        }
        if let Some((_, uri)) = self.packages.iter().find(|(_, uri)| !is_xml(uri)) {
            return refused(format_args!("the address {uri:?} of a package"));
        }
        for key in graph.schema().keys() {
            let value = graph.get(node, key);
            if value == Value::Null {
                continue;
            }
            let of = graph.schema().key_name(key);
            let feature = self.metamodel.feature(class, of);
            let Some(Feature::Attribute { data, many, is_id, .. }) =
                feature.filter(|_| is_name(of))
            else {
                let node = named(graph, node);
                return refused(format_args!("{of} of {node}, which is no attribute of its class"));
            };
            match &value {
                Value::List(values) if *many => {
                    let is_fit = |value| scalar(value, *data).is_some();
                    if values.is_empty() || !values.iter().all(is_fit) {
                        let (node, kind) = (named(graph, node), kind(*data));
                        let what = "is empty, or not each of its values is";
                        return refused(format_args!("the list {of} of {node}: it {what} {kind}"));
                    }
                }
                value => match scalar(value, *data) {
                    Some(text) if *is_id => *self.ids.entry(text).or_default() += 1,
                    Some(_) => {}
                    None => {
                        let (node, kind) = (named(graph, node), kind(*data));
                        let what = format_args!("{of} of {node}, which must be {kind}");
                        return refused(format_args!("{what}, and is {value}"));
                    }
                },
            }
        }
        Ok(())
    }

    /// Checks that a feature expresses an edge.
    fn examine_edge(&mut self, edge: Edge) -> io::Result<()> {
        let graph = self.graph;
        let Some((source, target)) = graph.ends(edge) else { return Ok(()) };
        let what = || {
            let (of, source, target) =
                (edge_type(graph, edge), named(graph, source), named(graph, target));
            format!("the edge {of} from {source} to {target}")
        };
        let Some(role) = self.role(edge) else {
            return refused(format_args!("{}: neither class has such a reference", what()));
        };
        if let Some(key) = graph.schema().keys().find(|key| graph.get(edge, *key) != Value::Null) {
            let key = graph.schema().key_name(key);
            return refused(format_args!("the attribute {key} of {}", what()));
        }
        let to = if role.is_backwards { source } else { target };
        let mut below = graph.schema().node_types_below(role.target);
        if !below.any(|below| Some(below) == self.class(to)) {
            let of = graph.schema().node_name(role.target);
            let name = &role.feature.0;
            return refused(format_args!("{}: {name} refers to {of}", what()));
        }
        if !is_name(&role.feature.0) {
            return refused(format_args!("{}: its name is no name in XML", what()));
        }
        if !role.is_containment {
            self.referenced.insert(to);
        } else if !self.contained.insert(to) {
            return refused(format_args!("{}, which has several containers", named(graph, to)));
        }
        Ok(())
    }

    /// The feature that expresses an edge: a containment, or else one of its source.
    fn role(&self, edge: Edge) -> Option<Role> {
        let of = self.graph.edge_type(edge)?;
        let (source, target) = self.graph.ends(edge)?;
        let (source, target) = (self.class(source)?, self.class(target)?);
        let find = || {
            let found = [(source, false), (target, true)].map(|(class, is_wanted_backwards)| {
                self.features_of(class).iter().find_map(|feature| match &feature.1 {
                    Feature::Reference { edge, backwards, target, is_containment, .. }
                        if *edge == of && *backwards == is_wanted_backwards =>
                    {
                        Some(Role {
                            feature: feature.clone(),
                            is_backwards: *backwards,
                            is_containment: *is_containment,
                            target: *target,
                        })
                    }
                    _ => None,
                })
            });
            let is_containment = |role: &&Role| role.is_containment;
            let containment = found.iter().flatten().find(is_containment);
            containment.or_else(|| found.iter().flatten().next()).cloned()
        };
        self.roles.borrow_mut().entry((of, source, target)).or_insert_with(find).clone()
    }

    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let roots: Vec<Node> =
            self.graph.nodes().filter(|node| !self.contained.contains(node)).collect();
        let mut spaces = "xmi:version=\"2.0\" xmlns:xmi=\"http://www.omg.org/XMI\" \
             xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\""
            .to_owned();
        for (prefix, uri) in &self.packages {
            spaces += &format!(" xmlns:{prefix}=\"{}\"", xml(uri));
        }
        writeln!(to, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
        let mut written = 0;
        match roots[..] {
            [root] if node_type(self.graph, root) != "XMI" => {
                self.object(
                    root,
                    &self.qualified(root),
                    &format!(" {spaces}"),
                    1,
                    &mut written,
                    to,
                )?;
            }
            _ => {
                writeln!(to, "<xmi:XMI {spaces}>")?;
                for root in roots {
                    self.object(root, &self.qualified(root), "", 2, &mut written, to)?;
                }
                writeln!(to, "</xmi:XMI>")?;
            }
        }
        match written == self.graph.node_count() {
            true => Ok(()),
            false => refused("objects that contain each other"),
        }
    }

    /// The name of a node's class with the prefix of its package.
    fn qualified(&self, node: Node) -> String {
        let prefix = self.class(node).and_then(|class| self.prefixes.get(&class));
        let name = node_type(self.graph, node);
        prefix.map_or_else(|| name.to_owned(), |prefix| format!("{prefix}:{name}"))
    }

    /// The name by which references find a node, and whether it is an `xmi:id`.
    fn reference(&self, node: Node) -> (String, bool) {
        let features = self.class(node).map_or(&[][..], |class| self.features_of(class));
        let ids = features.iter().filter_map(|feature| match &feature.1 {
            Feature::Attribute { key, data, is_id: true, .. } if feature.0 != HREF => {
                scalar(&self.graph.get(node, *key), *data)
            }
            _ => None,
        });
        // The characters separate references, or have a meaning inside of them.
        let is_plain = |id: &String| {
            !id.is_empty()
                && !id.contains(|c: char| c.is_whitespace() || ['#', '/', ':'].contains(&c))
        };
        let mut unique = ids.filter(|id| self.ids.get(id) == Some(&1) && is_plain(id));
        match unique.next() {
            Some(id) => (id, false),
            None => (format!("{}{}", self.id_prefix, node.0), true),
        }
    }

    /// Writes an object with all objects that it contains.
    fn object(
        &self,
        node: Node,
        element: &str,
        attributes: &str,
        depth: usize,
        written: &mut u64,
        to: &mut impl Write,
    ) -> io::Result<()> {
        if depth > DEPTH_MAX {
            let node = named(self.graph, node);
            return refused(format_args!("{node}, which is inside more than {DEPTH_MAX} elements"));
        }
        *written += 1;
        let Some(class) = self.class(node) else { return Ok(()) };
        let indent = "  ".repeat(depth - 1);
        write!(to, "{indent}<{element}{attributes}")?;
        if self.referenced.contains(&node)
            && let (id, true) = self.reference(node)
        {
            write!(to, " xmi:id=\"{}\"", xml(&id))?;
        }
        let mut parts: Vec<(&str, NodeType, Node)> = Vec::new();
        let mut texts: Vec<(&str, String)> = Vec::new();
        for feature in self.features_of(class) {
            let name = feature.0.as_str();
            match &feature.1 {
                Feature::Attribute { key, data, .. } => {
                    self.attribute(node, name, (*key, *data), &mut texts, to)?;
                }
                Feature::Reference { edge, backwards, target, many, is_containment } => {
                    let targets = self.targets(node, feature, (*edge, *backwards, *many))?;
                    if *is_containment {
                        parts.extend(targets.into_iter().map(|part| (name, *target, part)));
                    } else if !targets.is_empty() {
                        let names: Vec<String> =
                            targets.iter().map(|target| self.reference(*target).0).collect();
                        write!(to, " {name}=\"{}\"", xml(&names.join(" ")))?;
                    }
                }
            }
        }
        if parts.is_empty() && texts.is_empty() {
            return writeln!(to, "/>");
        }
        writeln!(to, ">")?;
        for (name, text) in texts {
            writeln!(to, "{indent}  <{name}>{}</{name}>", xml(&text))?;
        }
        for (name, target, part) in parts {
            let of = match self.class(part) == Some(target) {
                true => String::new(),
                false => format!(" xsi:type=\"{}\"", self.qualified(part)),
            };
            self.object(part, name, &of, depth + 1, written, to)?;
        }
        writeln!(to, "{indent}</{element}>")
    }

    /// Writes a value as an attribute, or adds the values of a list to the elements.
    fn attribute<'n>(
        &self,
        node: Node,
        name: &'n str,
        (key, data): (Key, Data),
        texts: &mut Vec<(&'n str, String)>,
        to: &mut impl Write,
    ) -> io::Result<()> {
        match self.graph.get(node, key) {
            Value::List(values) => {
                let values = values.iter().filter_map(|value| scalar(value, data));
                texts.extend(values.map(|text| (name, text)));
            }
            value => match scalar(&value, data) {
                // An attribute of this name refers to another file.
                Some(text) if name == HREF => texts.push((name, text)),
                Some(text) => write!(to, " {name}=\"{}\"", xml(&text))?,
                None => {}
            },
        }
        Ok(())
    }

    /// The nodes to which a feature of a node refers, if the feature expresses those edges.
    fn targets(
        &self,
        node: Node,
        feature: &Named,
        (of, backwards, many): (EdgeType, bool, bool),
    ) -> io::Result<Vec<Node>> {
        let edges: Vec<(Edge, Node)> = match backwards {
            true => self.graph.in_edges(node, of).collect(),
            false => self.graph.out_edges(node, of).collect(),
        };
        if edges.len() > 1 && !many {
            let (name, node) = (&feature.0, named(self.graph, node));
            return refused(format_args!("several {name} of {node}: the reference has one target"));
        }
        let is_own = |edge: &(Edge, Node)| {
            self.role(edge.0).is_some_and(|role| {
                role.is_backwards == backwards && Rc::ptr_eq(&role.feature, feature)
            })
        };
        let targets: Vec<Node> =
            edges.into_iter().filter(is_own).map(|(_, target)| target).collect();
        let mut known = HashSet::new();
        match targets.iter().find(|target| !known.insert(**target)) {
            None => Ok(targets),
            Some(target) => {
                let (name, node) = (&feature.0, named(self.graph, node));
                let target = named(self.graph, *target);
                refused(format_args!("two edges {name} between {node} and {target}"))
            }
        }
    }
}

/// The attribute of an element that refers to another file.
const HREF: &str = "href";
