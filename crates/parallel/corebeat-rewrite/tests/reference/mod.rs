//! A naive matcher and a naive rewriter, and random graphs and rules for them.

pub(crate) mod queries;

use corebeat_rewrite::{
    Edge, Graph, Matching, Node, Options, Rule, RuleBuilder, Semantics, Value, query,
};
use std::collections::{BTreeMap, BTreeSet};

/// Names of node types. B is below A.
const NODE_TYPES: [&str; 3] = ["A", "B", "C"];
/// Names of edge types. S is below R.
const EDGE_TYPES: [&str; 3] = ["R", "S", "T"];

/// The seeds of random cases: `COREBEAT_SEED` repeats one case.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("COREBEAT_SEED") {
        Ok(seed) => vec![seed.parse().expect("COREBEAT_SEED must be a number")],
        Err(_) => (0..count).collect(),
    }
}

/// A graph as plain data: nodes with type and attribute, edges with type and ends. Created elements
/// have no numbers in comparisons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plain {
    pub nodes: BTreeMap<u32, (usize, i64)>,
    pub edges: BTreeMap<u32, (usize, u32, u32)>,
}

pub(crate) fn random_graph(random: &mut fastrand::Rng, nodes: usize, edges: usize) -> Graph {
    let mut graph = Graph::new();
    let schema = graph.schema_mut();
    let a = schema.node_type("A", &[]).unwrap();
    let types = [a, schema.node_type("B", &[a]).unwrap(), schema.node_type("C", &[]).unwrap()];
    let r = schema.edge_type("R", &[]).unwrap();
    let edge_types = [r, schema.edge_type("S", &[r]).unwrap(), schema.edge_type("T", &[]).unwrap()];
    let x = schema.key("x").unwrap();
    let mut all = Vec::new();
    for _ in 0..nodes {
        let node = graph.add_node(types[random.usize(..3)]).unwrap();
        graph.set(node, x, random.i64(0..4)).unwrap();
        all.push(node);
    }
    for _ in 0..edges {
        let (from, to) = (all[random.usize(..nodes)], all[random.usize(..nodes)]);
        graph.add_edge(edge_types[random.usize(..3)], from, to).unwrap();
    }
    if random.bool() {
        graph.compact();
    }
    graph
}

pub(crate) fn plain(graph: &Graph) -> Plain {
    let x = graph.schema().find_key("x").unwrap();
    let index = |names: &[&str], name: &str| names.iter().position(|own| *own == name).unwrap();
    let node = |node: Node| {
        let of = graph.schema().node_name(graph.node_type(node).unwrap());
        let Value::Int(value) = graph.get(node, x) else { panic!("x is an integer") };
        (node.0, (index(&NODE_TYPES, of), value))
    };
    let edge = |edge: Edge| {
        let of = graph.schema().edge_name(graph.edge_type(edge).unwrap());
        let (from, to) = graph.ends(edge).unwrap();
        (edge.0, (index(&EDGE_TYPES, of), from.0, to.0))
    };
    Plain { nodes: graph.nodes().map(node).collect(), edges: graph.edges().map(edge).collect() }
}

#[derive(Debug, Clone)]
pub(crate) enum Condition {
    Less(usize, i64),
    Equal(usize, usize),
    /// There is no such edge between the two nodes.
    NoEdge(usize, usize, usize),
    /// There is no such edge from the node to a node of this type.
    NoNeighbour(usize, usize, usize),
    /// There is no such edge from the node to a node with this value.
    NoValue(usize, usize, i64),
}

#[derive(Debug, Clone)]
pub(crate) enum Change {
    DeleteEdge(usize),
    DeleteNode(usize),
    CreateNode(usize),
    /// An edge between nodes; the number of pattern nodes stands for the created node.
    CreateEdge(usize, usize, usize),
    Set(usize, usize),
    Retype(usize, usize),
}

#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    pub matching: Matching,
    pub semantics: Semantics,
    pub nodes: Vec<Option<usize>>,
    pub edges: Vec<(usize, usize, usize)>,
    pub conditions: Vec<Condition>,
    pub changes: Vec<Change>,
}

pub(crate) fn random_pattern(random: &mut fastrand::Rng, can_retype: bool) -> Pattern {
    let count = random.usize(1..=4);
    let matchings = [Matching::Edges, Matching::Injective, Matching::Homomorphic];
    let nodes = (0..count).map(|_| random.bool().then(|| random.usize(..3))).collect();
    let mut edges: Vec<_> =
        (1..count).map(|to| (random.usize(..3), random.usize(..to), to)).collect();
    for edge in &mut edges {
        if random.bool() {
            *edge = (edge.0, edge.2, edge.1);
        }
    }
    for _ in 0..random.usize(..3) {
        edges.push((random.usize(..3), random.usize(..count), random.usize(..count)));
    }
    let conditions = (0..random.usize(..3)).map(|_| {
        let (node, other) = (random.usize(..count), random.usize(..count));
        match random.u8(..5) {
            0 => Condition::Less(node, random.i64(1..4)),
            1 => Condition::Equal(node, other),
            2 => Condition::NoEdge(random.usize(..3), node, other),
            3 => Condition::NoNeighbour(random.usize(..3), node, random.usize(..3)),
            _ => Condition::NoValue(random.usize(..3), node, random.i64(..4)),
        }
    });
    let conditions = conditions.collect();
    let mut changes = Vec::new();
    let created = random.bool();
    if created {
        changes.push(Change::CreateNode(random.usize(..3)));
    }
    if random.bool() {
        let limit = count + usize::from(created);
        let (from, to) = (random.usize(..limit), random.usize(..limit));
        changes.push(Change::CreateEdge(random.usize(..3), from, to));
    }
    if random.bool() {
        changes.push(Change::Set(random.usize(..count), random.usize(..count)));
    }
    if can_retype && random.u8(..4) == 0 {
        changes.push(Change::Retype(random.usize(..count), random.usize(..3)));
    }
    if !edges.is_empty() && random.bool() {
        changes.push(Change::DeleteEdge(random.usize(..edges.len())));
    }
    if random.u8(..4) == 0 {
        changes.push(Change::DeleteNode(random.usize(..count)));
    }
    let semantics = [Semantics::Spo, Semantics::Dpo][random.usize(..2)];
    let matching = matchings[random.usize(..3)];
    Pattern { matching, semantics, nodes, edges, conditions, changes }
}

impl Pattern {
    pub(crate) fn build(&self, graph: &mut Graph, is_query: bool) -> Rule {
        let name = |node: usize| format!("n{node}");
        let mut rule = RuleBuilder::new("random").matching(self.matching).semantics(self.semantics);
        for (index, of) in self.nodes.iter().enumerate() {
            rule = match of {
                Some(of) => rule.node(&name(index), NODE_TYPES[*of]),
                None => rule.any_node(&name(index)),
            };
        }
        for (index, (of, from, to)) in self.edges.iter().enumerate() {
            rule = rule.edge(&format!("e{index}"), EDGE_TYPES[*of], &name(*from), &name(*to));
        }
        for condition in &self.conditions {
            rule = match *condition {
                Condition::Less(node, limit) => rule.when(&format!("n{node}.x < {limit}")),
                Condition::Equal(node, other) => rule.when(&format!("n{node}.x = n{other}.x")),
                Condition::NoEdge(of, from, to) => {
                    rule.unless(&format!("(n{from})-[:{}]->(n{to})", EDGE_TYPES[of]))
                }
                Condition::NoNeighbour(of, from, to) => {
                    rule.unless(&format!("(n{from})-[:{}]->(:{})", EDGE_TYPES[of], NODE_TYPES[to]))
                }
                Condition::NoValue(of, from, value) => rule
                    .unless(&format!("(n{from})-[:{}]->(y) WHERE y.x = {value}", EDGE_TYPES[of])),
            };
        }
        if is_query {
            return rule.returns("count(*)").build(graph).unwrap();
        }
        for change in &self.changes {
            rule = match *change {
                Change::CreateNode(of) => rule
                    .create_node(&name(self.nodes.len()), NODE_TYPES[of])
                    .set(&name(self.nodes.len()), "x", "1"),
                Change::CreateEdge(of, from, to) => {
                    rule.create_edge("new", EDGE_TYPES[of], &name(from), &name(to))
                }
                Change::Set(node, other) => {
                    rule.set(&name(node), "x", &format!("(n{other}.x + 1) % 4"))
                }
                Change::Retype(node, of) => rule.retype(&name(node), NODE_TYPES[of]),
                Change::DeleteEdge(edge) => rule.delete(&format!("e{edge}")),
                Change::DeleteNode(node) => rule.detach_delete(&name(node)),
            };
        }
        rule.build(graph).unwrap()
    }

    /// Number of matches by the matcher of the crate.
    pub(crate) fn count(&self, graph: &mut Graph, threads: usize, symmetric_once: bool) -> i64 {
        let rule = self.build(graph, true);
        let rule = if symmetric_once { rule.symmetric_once().unwrap() } else { rule };
        let table = query(graph, &rule, &Options { threads, ..Options::default() }).unwrap();
        match table.rows[0][0] {
            Value::Int(count) => count,
            _ => panic!("count is an integer"),
        }
    }

    /// All matches, by trial of all nodes and edges.
    pub(crate) fn matches(&self, graph: &Plain) -> Vec<(Vec<u32>, Vec<u32>)> {
        let mut found = Vec::new();
        self.assign(graph, &mut Vec::new(), &mut Vec::new(), &mut found);
        found
    }

    fn assign(
        &self,
        graph: &Plain,
        nodes: &mut Vec<u32>,
        edges: &mut Vec<u32>,
        found: &mut Vec<(Vec<u32>, Vec<u32>)>,
    ) {
        if let Some(of) = self.nodes.get(nodes.len()) {
            for (node, (own, _)) in &graph.nodes {
                let is_new = self.matching != Matching::Injective || !nodes.contains(node);
                if is_new && of.is_none_or(|of| is_node_below(*own, of)) {
                    nodes.push(*node);
                    self.assign(graph, nodes, edges, found);
                    nodes.pop();
                }
            }
        } else if let Some((of, from, to)) = self.edges.get(edges.len()) {
            for (edge, (own, own_from, own_to)) in &graph.edges {
                let is_new = self.matching == Matching::Homomorphic || !edges.contains(edge);
                let has_ends = (nodes[*from], nodes[*to]) == (*own_from, *own_to);
                if is_new && has_ends && is_edge_below(*own, *of) {
                    edges.push(*edge);
                    self.assign(graph, nodes, edges, found);
                    edges.pop();
                }
            }
        } else if self.conditions.iter().all(|condition| holds(condition, graph, nodes)) {
            found.push((nodes.clone(), edges.clone()));
        }
    }

    /// The symmetries by trial of all permutations: the images of the nodes, and of the edges.
    pub(crate) fn symmetries(&self) -> Vec<(Vec<usize>, Vec<usize>)> {
        let mut found = Vec::new();
        for nodes in permutations(self.nodes.len()) {
            let moved = |condition: &Condition| {
                let n = |node: &usize| nodes[*node];
                match condition {
                    Condition::Less(a, limit) => Condition::Less(n(a), *limit),
                    Condition::Equal(a, b) => Condition::Equal(n(a).min(n(b)), n(a).max(n(b))),
                    Condition::NoEdge(of, a, b) => Condition::NoEdge(*of, n(a), n(b)),
                    Condition::NoNeighbour(of, a, to) => Condition::NoNeighbour(*of, n(a), *to),
                    Condition::NoValue(of, a, value) => Condition::NoValue(*of, n(a), *value),
                }
            };
            let described = |moved: &dyn Fn(&Condition) -> Condition| {
                let texts =
                    self.conditions.iter().map(|condition| format!("{:?}", moved(condition)));
                let mut texts: Vec<String> = texts.collect();
                texts.sort_unstable();
                texts
            };
            let ordered = |condition: &Condition| match condition {
                Condition::Equal(a, b) => Condition::Equal(*a.min(b), *a.max(b)),
                other => other.clone(),
            };
            let keeps_types = (0..nodes.len()).all(|i| self.nodes[i] == self.nodes[nodes[i]]);
            if !keeps_types || described(&moved) != described(&ordered) {
                continue;
            }
            found.extend(permutations(self.edges.len()).into_iter().filter_map(|edges| {
                let keeps = |edge: usize| {
                    let (of, from, to) = self.edges[edge];
                    self.edges[edges[edge]] == (of, nodes[from], nodes[to])
                };
                (0..edges.len()).all(keeps).then(|| (nodes.clone(), edges.clone()))
            }));
        }
        found
    }

    /// The matches to which the rule can be applied.
    pub(crate) fn applicable(&self, graph: &Plain) -> Vec<(Vec<u32>, Vec<u32>)> {
        let mut found = self.matches(graph);
        if self.semantics == Semantics::Dpo {
            found.retain(|(nodes, edges)| {
                let deleted: Vec<u32> = self
                    .changes
                    .iter()
                    .filter_map(|change| match change {
                        Change::DeleteEdge(edge) => Some(edges[*edge]),
                        _ => None,
                    })
                    .collect();
                self.changes.iter().all(|change| match change {
                    Change::DeleteEdge(edge) => {
                        edges.iter().filter(|other| **other == edges[*edge]).count() == 1
                    }
                    Change::DeleteNode(node) => {
                        let own = nodes[*node];
                        let dangles = graph.edges.iter().any(|(edge, (_, from, to))| {
                            (*from == own || *to == own) && !deleted.contains(edge)
                        });
                        !dangles && nodes.iter().filter(|other| **other == own).count() == 1
                    }
                    _ => true,
                })
            });
        }
        found
    }

    /// The graph after an application, with the number `NEW` for a created node.
    pub(crate) fn applied(&self, graph: &Plain, (nodes, edges): &(Vec<u32>, Vec<u32>)) -> Shape {
        let mut after = graph.clone();
        let number = |node: usize| nodes.get(node).copied().unwrap_or(NEW);
        let mut created = Vec::new();
        for change in &self.changes {
            match *change {
                Change::CreateNode(of) => drop(after.nodes.insert(NEW, (of, 1))),
                Change::CreateEdge(of, from, to) => created.push((of, number(from), number(to))),
                Change::Set(node, other) => {
                    let value = (graph.nodes[&number(other)].1 + 1) % 4;
                    after.nodes.get_mut(&number(node)).unwrap().1 = value;
                }
                Change::Retype(node, of) => after.nodes.get_mut(&number(node)).unwrap().0 = of,
                Change::DeleteEdge(edge) => drop(after.edges.remove(&edges[edge])),
                Change::DeleteNode(node) => {
                    let own = number(node);
                    after.nodes.remove(&own);
                    after.edges.retain(|_, (_, from, to)| *from != own && *to != own);
                    created.retain(|(_, from, to)| *from != own && *to != own);
                }
            }
        }
        shape(graph, &after, &created)
    }
}

/// All permutations of the numbers below `count`.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..count {
        let longer = all.iter().flat_map(|start: &Vec<usize>| {
            let rest = (0..count).filter(|number| !start.contains(number));
            rest.map(|number| [&start[..], &[number]].concat()).collect::<Vec<_>>()
        });
        all = longer.collect();
    }
    all
}

/// Number of a created node in a [`Shape`].
const NEW: u32 = u32::MAX;

/// Nodes, edges that existed before, and new edges without their numbers.
pub(crate) type Shape = (BTreeMap<u32, (usize, i64)>, BTreeSet<u32>, Vec<(usize, u32, u32)>);

fn shape(before: &Plain, after: &Plain, created: &[(usize, u32, u32)]) -> Shape {
    let old = after.edges.keys().filter(|edge| before.edges.contains_key(edge)).copied();
    (after.nodes.clone(), old.collect(), created.to_vec())
}

/// The shape of a graph after one application. An element with an old number that is not the old
/// element counts as created: the numbers of deleted elements are used again.
pub(crate) fn actual_shape(
    before: &Plain,
    after: &Plain,
    deleted_nodes: &[u32],
    deleted_edges: &[u32],
) -> Shape {
    let is_new = |node: u32| !before.nodes.contains_key(&node) || deleted_nodes.contains(&node);
    let rename = |node: u32| if is_new(node) { NEW } else { node };
    let nodes = after.nodes.iter().map(|(node, data)| (rename(*node), *data)).collect();
    let (mut old, mut created) = (BTreeSet::new(), Vec::new());
    for (edge, (of, from, to)) in &after.edges {
        let is_old = before.edges.get(edge) == Some(&(*of, *from, *to));
        if is_old && !deleted_edges.contains(edge) && !is_new(*from) && !is_new(*to) {
            old.insert(*edge);
        } else {
            created.push((*of, rename(*from), rename(*to)));
        }
    }
    (nodes, old, created)
}

fn is_node_below(own: usize, of: usize) -> bool {
    own == of || (own, of) == (1, 0)
}

fn is_edge_below(own: usize, of: usize) -> bool {
    own == of || (own, of) == (1, 0)
}

fn holds(condition: &Condition, graph: &Plain, nodes: &[u32]) -> bool {
    let value = |node: usize| graph.nodes[&nodes[node]].1;
    let leads = |of: usize, from: usize, test: &dyn Fn(u32) -> bool| {
        graph.edges.values().any(|(own, own_from, to)| {
            is_edge_below(*own, of) && *own_from == nodes[from] && test(*to)
        })
    };
    match *condition {
        Condition::Less(node, limit) => value(node) < limit,
        Condition::Equal(node, other) => value(node) == value(other),
        Condition::NoEdge(of, from, to) => !leads(of, from, &|node| node == nodes[to]),
        Condition::NoNeighbour(of, from, to) => {
            !leads(of, from, &|node| is_node_below(graph.nodes[&node].0, to))
        }
        Condition::NoValue(of, from, x) => !leads(of, from, &|node| graph.nodes[&node].1 == x),
    }
}
