//! Plans as graphs, for pictures.

use crate::error::Error;
use crate::expression::Expression;
use crate::graph::{Graph, Node};
use crate::plan::{Plan, Planned, Step};
use crate::rule::Rule;

/// A plan that is added to a graph: a node for each step, in their order, and an edge with the
/// numbers of partial matches between two steps.
pub(crate) struct Diagram<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) plan: &'a Plan,
    /// The graph for which the plan was computed.
    pub(crate) graph: &'a Graph,
    /// The actual numbers of partial matches after the steps of the main part.
    pub(crate) actual: &'a [u64],
    pub(crate) matches: u64,
    pub(crate) drawing: &'a mut Graph,
}

impl Diagram<'_> {
    /// Adds the whole plan.
    pub(crate) fn draw(mut self) -> Result<(), Error> {
        let begin = self.node("rule", self.rule.name())?;
        let end = self.node("matches", &self.matches.to_string())?;
        let optional = self.parts("optional part", self.plan.optional.len())?;
        let exists = self.parts("EXISTS", self.plan.exists.len())?;
        let plan = self.plan;
        let mut steps = self.steps(&plan.main, self.actual, [begin, end])?;
        for (part, ends) in plan.optional.iter().zip(&optional) {
            steps.extend(self.steps(part, &[], *ends)?);
        }
        for (part, ends) in plan.exists.iter().zip(&exists) {
            steps.extend(self.steps(part, &[], *ends)?);
        }
        for (planned, node) in steps {
            for [begin, _] in used(&planned.step, [&optional, &exists]) {
                self.edge("uses", node, begin)?;
            }
        }
        Ok(())
    }

    /// The first and the last node of each part of a kind.
    fn parts(&mut self, kind: &str, count: usize) -> Result<Vec<[Node; 2]>, Error> {
        let part = |index: usize| {
            let begin = self.node(kind, &index.to_string())?;
            Ok([begin, self.node("found", &format!("{kind} {index}"))?])
        };
        (0..count).map(part).collect()
    }

    /// Adds the steps of a part between two nodes. Returns the steps with their nodes.
    fn steps<'p>(
        &mut self,
        steps: &'p [Planned],
        actual: &[u64],
        [begin, end]: [Node; 2],
    ) -> Result<Vec<(&'p Planned, Node)>, Error> {
        let (mut last, mut label, mut nodes) = (begin, "begins".to_owned(), Vec::new());
        for (index, planned) in steps.iter().enumerate() {
            let text = self.rule.describe_step(&planned.step, self.graph);
            let node = self.node(&(index + 1).to_string(), &text)?;
            self.edge(&label, last, node)?;
            nodes.push((planned, node));
            (last, label) = (node, format!("expected {:.0}", planned.expected));
            if let Some(actual) = actual.get(index) {
                label += &format!(", actual {actual}");
            }
        }
        self.edge(&label, last, end)?;
        Ok(nodes)
    }

    fn node(&mut self, of: &str, text: &str) -> Result<Node, Error> {
        let of = self.drawing.schema_mut().node_type(of, &[])?;
        let key = self.drawing.schema_mut().key("id")?;
        let node = self.drawing.add_node(of)?;
        self.drawing.set(node, key, text)?;
        Ok(node)
    }

    fn edge(&mut self, label: &str, from: Node, to: Node) -> Result<(), Error> {
        let of = self.drawing.schema_mut().edge_type(label, &[])?;
        self.drawing.add_edge(of, from, to).map(drop)
    }
}

/// The parts that a step uses: optional parts and those of `EXISTS`.
fn used(step: &Step, [optional, exists]: [&[[Node; 2]]; 2]) -> Vec<[Node; 2]> {
    let mut found = Vec::new();
    match step {
        Step::Optional(index) => found.extend(optional.get(*index)),
        Step::Filter(condition) => condition.visit(&mut |inner| {
            if let Expression::Exists(index) = inner {
                found.extend(exists.get(*index));
            }
        }),
        _ => {}
    }
    found
}
