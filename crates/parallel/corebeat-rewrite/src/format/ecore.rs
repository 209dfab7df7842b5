//! Metamodels of EMF.

use super::mistake;
use super::tree::{self, Element};
use crate::error::Error;
use crate::graph::Graph;
use crate::schema::{EdgeType, Key, NodeType};
use std::collections::{HashMap, HashSet};

/// Kind of an attribute's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Data {
    /// With the number of bits.
    Int(u32),
    Float,
    Bool,
    Text,
}

/// Whether a number has this number of bits.
pub(super) fn fits(number: i64, bits: u32) -> bool {
    [0, -1].contains(&(number >> (bits - 1)))
}

/// A feature of a class.
#[derive(Debug, Clone)]
pub(super) enum Feature {
    Attribute {
        key: Key,
        data: Data,
        many: bool,
        is_id: bool,
    },
    Reference {
        edge: EdgeType,
        /// The reference is the opposite of another one: its edges lead to the referring node.
        backwards: bool,
        target: NodeType,
        /// A node may have several such edges.
        many: bool,
        /// The target is a part of the referring node.
        is_containment: bool,
    },
}

/// The package of a class.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Package {
    pub(super) prefix: String,
    pub(super) uri: String,
}

impl Package {
    fn new(element: &Element) -> Package {
        let text = |names: [&str; 2]| {
            names.iter().find_map(|name| element.get(name)).unwrap_or_default().to_owned()
        };
        Package { prefix: text(["nsPrefix", "name"]), uri: text(["nsURI", "name"]) }
    }
}

/// A metamodel: classes with their features. [`read_metamodel`] reads it.
#[derive(Debug, Clone, Default)]
pub struct Metamodel {
    pub(super) classes: HashMap<String, NodeType>,
    pub(super) packages: HashMap<NodeType, Package>,
    /// Own features by class and name.
    pub(super) features: HashMap<(NodeType, String), Feature>,
    /// The names of the own features of a class, in their order.
    pub(super) names: HashMap<NodeType, Vec<String>>,
    /// A class and all of its supertypes, in the order in which their features are searched.
    pub(super) lines: HashMap<NodeType, Vec<NodeType>>,
}

impl Metamodel {
    /// The feature of a class, which may be inherited.
    pub(super) fn feature(&self, of: NodeType, name: &str) -> Option<&Feature> {
        let line = self.lines.get(&of)?;
        line.iter().find_map(|of| self.features.get(&(*of, name.to_owned())))
    }
}

/// Reads an Ecore metamodel, and adds its types to a graph: a node type for each class below its
/// supertypes, an edge type for each reference, and an attribute name for each attribute. Of a pair
/// of references that are opposites, the first is the edge type, and the second is another name for
/// it in the opposite direction. A reference whose name several classes use is named `Class.name`.
///
/// # Errors
/// [`Error::Read`] with the line of the mistake.
pub fn read_metamodel(name: &str, text: &str, graph: &mut Graph) -> Result<Metamodel, Error> {
    let root = tree::read(name, text)?;
    let mut found = Vec::new();
    collect(&root, &mut found, 0);
    let classes: Vec<&Element> = found.iter().map(|(class, _)| *class).collect();
    if classes.is_empty() {
        return Err(mistake(name, root.line, "the file has no classes; is it an Ecore metamodel?"));
    }
    let mut metamodel = Metamodel::default();
    let mut by_name: HashMap<&str, &Element> = HashMap::new();
    for class in &classes {
        let other = class.get("name").and_then(|own| by_name.insert(own, class));
        if let Some(other) = other {
            let why = format!("line {} has a class of this name, too; rename one", other.line);
            return Err(mistake(name, class.line, why));
        }
    }
    for class in &classes {
        add_class(name, class, &by_name, graph, &mut metamodel, 0)?;
    }
    for (class, package) in found {
        let of = class.get("name").and_then(|name| metamodel.classes.get(name));
        metamodel.packages.extend(of.map(|of| (*of, Package::new(package))));
    }
    add_features(name, &classes, graph, &mut metamodel)?;
    graph.store.fit_to_schema();
    Ok(metamodel)
}

/// Deepest inheritance and deepest nesting of packages.
const DEPTH_MAX: usize = 64;

/// Adds the classes of a package, each with its package.
fn collect<'a>(package: &'a Element, classes: &mut Vec<(&'a Element, &'a Element)>, depth: usize) {
    let is_class = |element: &&Element| element.get("xsi:type") == Some("ecore:EClass");
    let own = package.all("eClassifiers").filter(is_class);
    classes.extend(own.map(|class| (class, package)));
    if depth < DEPTH_MAX {
        let packages = package.children.iter();
        let packages = packages.filter(|p| ["eSubpackages", "EPackage"].contains(&&*p.name));
        packages.for_each(|package| collect(package, classes, depth + 1));
    }
}

/// The name at the end of a reference such as `#//User` or `other.ecore#//sub/User`.
fn last(reference: &str) -> &str {
    reference.rsplit(['/', '#']).next().unwrap_or(reference)
}

fn add_class(
    name: &str,
    class: &Element,
    by_name: &HashMap<&str, &Element>,
    graph: &mut Graph,
    metamodel: &mut Metamodel,
    depth: usize,
) -> Result<NodeType, Error> {
    let own = class.get("name").ok_or_else(|| mistake(name, class.line, "a class needs a name"))?;
    if let Some(known) = metamodel.classes.get(own) {
        return Ok(*known);
    }
    if depth == DEPTH_MAX {
        let why = format!("{own} inherits from itself, or over more than {DEPTH_MAX} classes");
        return Err(mistake(name, class.line, why));
    }
    let mut parents = Vec::new();
    let supertypes = class.get("eSuperTypes").unwrap_or_default().split_whitespace();
    for parent in supertypes.filter(|parent| parent.contains('#')) {
        let parent = by_name.get(last(parent)).ok_or_else(|| {
            mistake(name, class.line, format!("the supertype {parent} of {own} does not exist"))
        })?;
        parents.push(add_class(name, parent, by_name, graph, metamodel, depth + 1)?);
    }
    let of = graph.schema_mut().node_type(own, &parents)?;
    metamodel.classes.insert(own.into(), of);
    // Each class once: the number of ways to a class may be exponential.
    let mut line = vec![of];
    let mut known = HashSet::from([of]);
    let above = parents.iter().filter_map(|parent| metamodel.lines.get(parent)).flatten();
    line.extend(above.filter(|above| known.insert(**above)));
    metamodel.lines.insert(of, line);
    Ok(of)
}

fn add_features(
    name: &str,
    classes: &[&Element],
    graph: &mut Graph,
    metamodel: &mut Metamodel,
) -> Result<(), Error> {
    let is_reference = |feature: &&Element| feature.get("xsi:type") == Some("ecore:EReference");
    let mut uses: HashMap<&str, u32> = HashMap::new();
    for class in classes {
        for reference in class.all("eStructuralFeatures").filter(is_reference) {
            *uses.entry(reference.get("name").unwrap_or_default()).or_default() += 1;
        }
    }
    let edge_name = |class: &str, feature: &str| match uses.get(feature) {
        Some(1) => feature.to_owned(),
        _ => format!("{class}.{feature}"),
    };
    // Edge types of references whose opposites follow.
    let mut opposites: HashMap<String, EdgeType> = HashMap::new();
    for class in classes {
        let class_name = class.get("name").unwrap_or_default();
        let Some(of) = metamodel.classes.get(class_name).copied() else { continue };
        for feature in class.all("eStructuralFeatures") {
            let required = |attribute: &str| {
                feature.get(attribute).ok_or_else(|| {
                    mistake(name, feature.line, format!("the feature needs a {attribute}"))
                })
            };
            let own = required("name")?;
            let many = feature.get("upperBound").is_some_and(|bound| bound != "1");
            let added = if is_reference(&feature) {
                let target = last(required("eType")?);
                // A type of another metamodel stands for any node.
                let target = metamodel.classes.get(target).copied().unwrap_or(of);
                let edge_name = edge_name(class_name, own);
                let (edge, backwards) = match opposites.get(&edge_name) {
                    Some(edge) => {
                        graph.schema_mut().opposite(&edge_name, *edge);
                        (*edge, true)
                    }
                    None => (graph.schema_mut().edge_type(&edge_name, &[])?, false),
                };
                if let Some(opposite) = feature.get("eOpposite").filter(|_| !backwards) {
                    let mut parts = opposite.rsplit(['/', '#']);
                    let (theirs, class) = (parts.next(), parts.next());
                    let theirs = self::opposite(class, theirs, &uses);
                    if theirs != edge_name {
                        opposites.insert(theirs, edge);
                    }
                }
                let is_containment = feature.get("containment") == Some("true");
                Feature::Reference { edge, backwards, target, many, is_containment }
            } else {
                let key = graph.schema_mut().key(own)?;
                let data = data(last(feature.get("eType").unwrap_or_default()));
                let is_id = feature.get("iD") == Some("true");
                Feature::Attribute { key, data, many, is_id }
            };
            metamodel.names.entry(of).or_default().push(own.to_owned());
            metamodel.features.insert((of, own.to_owned()), added);
        }
    }
    Ok(())
}

/// The name of the edge type of an opposite.
fn opposite(class: Option<&str>, feature: Option<&str>, uses: &HashMap<&str, u32>) -> String {
    let (class, feature) = (class.unwrap_or_default(), feature.unwrap_or_default());
    match uses.get(feature) {
        Some(1) => feature.to_owned(),
        _ => format!("{class}.{feature}"),
    }
}

fn data(of: &str) -> Data {
    match of {
        "EByte" | "EByteObject" => Data::Int(8),
        "EShort" | "EShortObject" => Data::Int(16),
        "EInt" | "EIntegerObject" => Data::Int(32),
        "ELong" | "ELongObject" | "EBigInteger" => Data::Int(64),
        "EDouble" | "EFloat" | "EDoubleObject" | "EFloatObject" => Data::Float,
        "EBoolean" | "EBooleanObject" => Data::Bool,
        _ => Data::Text,
    }
}
