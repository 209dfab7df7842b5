//! Construction of rules in Rust.

use crate::compile::{compile, declare};
use crate::error::Error;
use crate::graph::Graph;
use crate::rule::{Matching, Rule, Semantics};
use corebeat_cypher::Mistake;
use corebeat_cypher::syntax::{
    Change, EdgePattern, Expression, Kind, Match, NodePattern, Pattern, Statement,
};
use std::collections::HashMap;

/// A rule under construction. Elements have names; conditions and values are expressions of
/// openCypher. [`RuleBuilder::build`] reports the first mistake.
///
/// ```
/// use corebeat_rewrite::{Graph, Matching, RuleBuilder};
///
/// let mut graph = Graph::new();
/// let person = graph.schema_mut().node_type("Person", &[])?;
/// let knows = graph.schema_mut().edge_type("KNOWS", &[])?;
/// let [a, b, c] = [graph.add_node(person)?, graph.add_node(person)?, graph.add_node(person)?];
/// graph.add_edge(knows, a, b)?;
/// graph.add_edge(knows, b, c)?;
/// let introduce = RuleBuilder::new("introduce")
///     .node("a", "Person").node("b", "Person").node("c", "Person")
///     .edge("x", "KNOWS", "a", "b").edge("y", "KNOWS", "b", "c")
///     .unless("(a)-[:KNOWS]->(c)")
///     .create_edge("z", "KNOWS", "a", "c")
///     .matching(Matching::Injective)
///     .build(&mut graph)?;
/// assert_eq!(corebeat_rewrite::apply_exhaustively(&mut graph, &introduce, 100)?.rewrites, 1);
/// assert!(graph.out_edges(a, knows).any(|(_, to)| to == c));
/// # Ok::<(), corebeat_rewrite::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct RuleBuilder {
    name: String,
    pattern: Pattern,
    conditions: Vec<Expression>,
    statement: Statement,
    matching: Matching,
    semantics: Semantics,
    mistake: Option<String>,
}

impl RuleBuilder {
    /// Begins a rule with a name for messages.
    pub fn new(name: &str) -> RuleBuilder {
        RuleBuilder {
            name: name.into(),
            pattern: Pattern::default(),
            conditions: Vec::new(),
            statement: Statement::default(),
            matching: Matching::Injective,
            semantics: Semantics::default(),
            mistake: None,
        }
    }

    /// Sets which elements of a match must differ. The default is [`Matching::Injective`].
    pub fn matching(mut self, matching: Matching) -> Self {
        self.matching = matching;
        self
    }

    /// Sets what the deletion of a node does to its edges. The default is [`Semantics::Spo`].
    pub fn semantics(mut self, semantics: Semantics) -> Self {
        self.semantics = semantics;
        self
    }

    /// The left side has a node of a type or one of its subtypes.
    pub fn node(mut self, name: &str, of: &str) -> Self {
        self.pattern.nodes.push(node(name, Some(of)));
        self
    }

    /// The left side has a node of any type.
    pub fn any_node(mut self, name: &str) -> Self {
        self.pattern.nodes.push(node(name, None));
        self
    }

    /// The left side has an edge of a type or one of its subtypes, between two nodes of the left
    /// side.
    pub fn edge(mut self, name: &str, of: &str, from: &str, to: &str) -> Self {
        let edge = self.edge_between(&self.pattern.nodes, name, of, from, to);
        match edge {
            Ok(edge) => self.pattern.edges.push(edge),
            Err(why) => self.fail(why),
        }
        self
    }

    /// An expression must be true.
    pub fn when(mut self, condition: &str) -> Self {
        match corebeat_cypher::expression(condition) {
            Ok(condition) => self.conditions.push(condition),
            Err(mistake) => self.fail(located(condition, mistake)),
        }
        self
    }

    /// A pattern must not be found, given the elements of the left side: a negative application
    /// condition. The pattern may have a condition: `(a)-[:R]->(x) WHERE x.n > 1`. Conditions with
    /// `NOT EXISTS { ... }` inside are nested conditions.
    pub fn unless(mut self, pattern: &str) -> Self {
        match corebeat_cypher::patterns(pattern) {
            Ok(found) => {
                let exists = Expression { at: 0, kind: Kind::Exists(Box::new(found)) };
                self.conditions.push(Expression { at: 0, kind: Kind::Not(Box::new(exists)) });
            }
            Err(mistake) => self.fail(located(pattern, mistake)),
        }
        self
    }

    /// The right side creates a node.
    pub fn create_node(self, name: &str, of: &str) -> Self {
        let nodes = vec![node(name, Some(of))];
        self.change(Change::Create(Pattern { nodes, edges: Vec::new() }))
    }

    /// The right side creates an edge between nodes of the left side or created ones.
    pub fn create_edge(self, name: &str, of: &str, from: &str, to: &str) -> Self {
        let nodes = vec![node(from, None), node(to, None)];
        match self.edge_between(&nodes, name, of, from, to) {
            Ok(edge) => self.change(Change::Create(Pattern { nodes, edges: vec![edge] })),
            Err(_) => self,
        }
    }

    /// The right side sets an attribute. All values are evaluated before the first change.
    pub fn set(mut self, element: &str, key: &str, value: &str) -> Self {
        match corebeat_cypher::expression(value) {
            Ok(value) => self.change(Change::Set { name: element.into(), key: key.into(), value }),
            Err(mistake) => {
                self.fail(located(value, mistake));
                self
            }
        }
    }

    /// The right side gives a node another type.
    pub fn retype(self, node: &str, of: &str) -> Self {
        self.change(Change::Retype { name: node.into(), of: of.into() })
    }

    /// The right side deletes an edge, or a node that has no other edges.
    pub fn delete(self, element: &str) -> Self {
        self.change(Change::Delete { name: element.into(), detach: false })
    }

    /// The right side deletes a node with all its edges.
    pub fn detach_delete(self, node: &str) -> Self {
        self.change(Change::Delete { name: node.into(), detach: true })
    }

    /// The rule is a query. `results` is what follows `RETURN` in openCypher.
    pub fn returns(mut self, results: &str) -> Self {
        match corebeat_cypher::results(results) {
            Ok(found) => self.statement.returns = Some(found),
            Err(mistake) => self.fail(located(results, mistake)),
        }
        self
    }

    /// Resolves the names, and adds the types and attributes that the right side creates to the
    /// schema of the graph.
    ///
    /// # Errors
    /// [`Error::Rule`] with the first mistake.
    pub fn build(mut self, graph: &mut Graph) -> Result<Rule, Error> {
        let (name, options) = (self.name.clone(), (self.matching, self.semantics));
        let error = |why: String| Error::Rule { rule: name.clone(), why };
        if let Some(why) = self.mistake {
            return Err(error(why));
        }
        if !self.pattern.nodes.is_empty() {
            let (pattern, conditions) = (self.pattern, self.conditions);
            self.statement.matches.push(Match { optional: false, pattern, conditions });
        }
        declare(&self.statement, &mut graph.store.schema).map_err(|(_, why)| error(why))?;
        graph.store.fit_to_schema();
        compile(name.clone(), &self.statement, options, &HashMap::new(), graph)
            .map_err(|(_, why)| error(why))
    }

    fn change(mut self, change: Change) -> Self {
        self.statement.changes.push((0, change));
        self
    }

    fn fail(&mut self, why: String) {
        self.mistake.get_or_insert(why);
    }

    fn edge_between(
        &self,
        nodes: &[NodePattern],
        name: &str,
        of: &str,
        from: &str,
        to: &str,
    ) -> Result<EdgePattern, String> {
        let index = |name: &str| {
            let found = nodes.iter().position(|node| node.name.as_deref() == Some(name));
            found.ok_or_else(|| format!("{name} is not defined; define the node before its edges"))
        };
        Ok(EdgePattern {
            at: 0,
            name: Some(name.into()),
            types: vec![(0, of.into())],
            values: Vec::new(),
            from: index(from)?,
            to: index(to)?,
            undirected: false,
            length: None,
        })
    }
}

fn node(name: &str, of: Option<&str>) -> NodePattern {
    let types = of.map(|of| vec![(0, of.to_owned())]).into_iter().collect();
    NodePattern { at: 0, name: Some(name.into()), types, values: Vec::new() }
}

/// A mistake in an expression, with the expression.
fn located(text: &str, (at, why): Mistake) -> String {
    format!("in '{text}', character {}: {why}", 1 + text[..at].chars().count())
}
