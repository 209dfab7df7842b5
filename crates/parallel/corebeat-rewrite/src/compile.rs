//! From written rules to rules whose names are resolved.

use crate::error::Error;
use crate::expression::Expression;
use crate::graph::Graph;
use crate::rule::{
    AggregateOf, Change, ELEMENTS_MAX, EdgeSlot, ElementKind, Matching, NodeSlot, Output, Part,
    Rule, Semantics, Slot, new_id,
};
use crate::schema::{EdgeType, Key, NodeType, Schema};
use crate::store::Direction;
use crate::symmetry::Symmetry;
use crate::value::{Literals, Scalar, Value};
use corebeat_cypher::syntax::{self, At, Function, Kind, Literal, Match, Operator, Statement};
use corebeat_cypher::{Mistake, position};
use std::collections::HashMap;

/// Number of names that a message lists.
const LISTED_MAX: usize = 8;

/// Parses rules in openCypher, resolves their names, and adds the types and attributes that the
/// rules create to the schema of the graph.
///
/// `name` is the name of the text for messages. `parameters` has the values of `$name`.
///
/// # Errors
/// [`Error::Text`] with the place of the mistake.
pub fn parse_rules(
    name: &str,
    text: &str,
    parameters: &HashMap<String, Value>,
    graph: &mut Graph,
) -> Result<Vec<Rule>, Error> {
    let place = |(at, why): Mistake| {
        let (line, column) = position(text, at);
        Error::Text { name: name.into(), line, column, why }
    };
    let statements = corebeat_cypher::statements(text).map_err(place)?;
    for statement in &statements {
        declare(statement, &mut graph.store.schema).map_err(place)?;
    }
    graph.store.fit_to_schema();
    let compile = |statement: &Statement| {
        let rule = format!("{name}:{}", position(text, statement.at).0);
        let options = (Matching::default(), Semantics::default());
        compile(rule, statement, options, parameters, graph).map_err(place)
    };
    statements.iter().map(compile).collect()
}

/// Adds the types and attributes that a rule creates.
pub(crate) fn declare(statement: &Statement, schema: &mut Schema) -> Result<(), Mistake> {
    let full = |at| move |e: Error| (at, e.to_string());
    for (at, change) in &statement.changes {
        match change {
            syntax::Change::Create(pattern) => {
                for node in &pattern.nodes {
                    for (at, of) in node.types.iter().flatten() {
                        schema.node_type(of, &[]).map_err(full(*at))?;
                    }
                    for (at, key, _) in &node.values {
                        schema.key(key).map_err(full(*at))?;
                    }
                }
                for edge in &pattern.edges {
                    for (at, of) in &edge.types {
                        // The name may be that of an opposite.
                        if schema.find_edge_type(of).is_none() {
                            schema.edge_type(of, &[]).map_err(full(*at))?;
                        }
                    }
                    for (at, key, _) in &edge.values {
                        schema.key(key).map_err(full(*at))?;
                    }
                }
            }
            syntax::Change::Set { key, .. } => drop(schema.key(key).map_err(full(*at))?),
            syntax::Change::Retype { of, .. } => {
                schema.node_type(of, &[]).map_err(full(*at))?;
            }
            syntax::Change::Delete { .. } => {}
        }
    }
    Ok(())
}

/// Resolves the names of one rule.
pub(crate) fn compile(
    name: String,
    statement: &Statement,
    (matching, semantics): (Matching, Semantics),
    parameters: &HashMap<String, Value>,
    graph: &Graph,
) -> Result<Rule, Mistake> {
    let mut compiler = Compiler {
        schema: &graph.store.schema,
        literals: &graph.store.literals,
        parameters,
        slots: Vec::new(),
        names: HashMap::new(),
        exists: Vec::new(),
        groups: 0,
        aggregates: None,
        aliases: HashMap::new(),
    };
    let (mut main, mut optional) = (Part::default(), Vec::new());
    for found in &statement.matches {
        compiler.groups += 1;
        if found.optional {
            let mut part = Part::default();
            compiler.part(found, &mut part)?;
            optional.push(part);
        } else if optional.is_empty() {
            compiler.part(found, &mut main)?;
        } else {
            let why = "MATCH after OPTIONAL MATCH is not supported; move MATCH to the front".into();
            return Err((statement.at, why));
        }
    }
    let mut changes = Vec::new();
    for (at, change) in &statement.changes {
        compiler.change(*at, change, &mut changes)?;
    }
    order(&mut changes);
    let output = match &statement.returns {
        Some(returns) => {
            let output = compiler.output(returns, &changes)?;
            if let Some((at, _)) = statement.changes.first() {
                let why = "a rule changes the graph or returns results; write two rules".into();
                return Err((*at, why));
            }
            Some(output)
        }
        None => None,
    };
    let Compiler { slots, exists, .. } = compiler;
    let symmetry = Symmetry::default();
    let mut rule = Rule {
        id: new_id(),
        name,
        matching,
        semantics,
        slots,
        main,
        optional,
        exists,
        changes,
        written: 0,
        output,
        symmetry,
    };
    rule.written = rule.written_slots().fold(0, |bits, slot| bits | 1 << slot);
    Ok(rule)
}

/// Matched elements are set while they exist. Edges are deleted before edges are created, which
/// take their numbers and their room in lists. Nodes are deleted last, with all edges that they
/// have.
fn order(changes: &mut [Change]) {
    let created: Vec<Slot> = changes.iter().filter_map(Change::created).collect();
    changes.sort_by_key(|change| match change {
        Change::Set { slot, .. } if !created.contains(slot) => 0,
        Change::DeleteEdge { .. } => 1,
        Change::CreateNode { .. } => 2,
        Change::CreateEdge { .. } => 3,
        Change::Set { .. } | Change::Retype { .. } => 4,
        Change::DeleteNode { .. } => 5,
    });
}

struct Compiler<'a> {
    schema: &'a Schema,
    literals: &'a Literals,
    parameters: &'a HashMap<String, Value>,
    slots: Vec<(String, ElementKind)>,
    names: HashMap<String, Slot>,
    exists: Vec<Part>,
    groups: u32,
    /// The aggregates of the output, while expressions of the output are compiled.
    aggregates: Option<Vec<AggregateOf>>,
    /// The columns of the output, while `ORDER BY` is compiled. They hide names of the pattern.
    aliases: HashMap<String, Expression>,
}

/// Patterns.
impl Compiler<'_> {
    fn slot(&mut self, at: At, name: Option<&str>, kind: ElementKind) -> Result<Slot, Mistake> {
        if self.slots.len() == ELEMENTS_MAX {
            let why = format!("a rule has at most {ELEMENTS_MAX} nodes and edges; divide the rule");
            return Err((at, why));
        }
        let slot = self.slots.len() as Slot;
        self.slots.push((name.unwrap_or_default().to_owned(), kind));
        if let Some(name) = name {
            self.names.insert(name.to_owned(), slot);
        }
        Ok(slot)
    }

    fn find(&self, at: At, name: &str) -> Result<(Slot, ElementKind), Mistake> {
        let slot = match (self.aliases.get(name), self.names.get(name)) {
            (Some(Expression::Element(slot)), _) | (None, Some(slot)) => *slot,
            (Some(_), _) => {
                let why = "is a column with a value here, not a node or an edge; give the column \
                           another name";
                return Err((at, format!("{name} {why}")));
            }
            (None, None) => {
                let known = listed(self.names.keys().map(String::as_str));
                return Err((at, format!("{name} is not defined; this rule defines {known}")));
            }
        };
        Ok((slot, self.slots[usize::from(slot)].1))
    }

    fn find_kind(&self, at: At, name: &str, kind: ElementKind) -> Result<Slot, Mistake> {
        let (slot, found) = self.find(at, name)?;
        match found == kind {
            true => Ok(slot),
            false if kind == ElementKind::Node => {
                Err((at, format!("{name} is an edge, not a node")))
            }
            false => Err((at, format!("{name} is a node, not an edge"))),
        }
    }

    fn part(&mut self, found: &Match, part: &mut Part) -> Result<(), Mistake> {
        let mut slots = Vec::new();
        for node in &found.pattern.nodes {
            slots.push(self.node(node, part)?);
        }
        for edge in &found.pattern.edges {
            let name = edge.name.as_deref();
            if let Some(name) = name.filter(|name| self.names.contains_key(*name)) {
                return Err((edge.at, format!("{name} is defined twice; rename one of the two")));
            }
            if edge.length.is_some() && (name.is_some() || !edge.values.is_empty()) {
                let why = "a path of a variable length has neither name nor attributes".into();
                return Err((edge.at, why));
            }
            let slot = self.slot(edge.at, name, ElementKind::Edge)?;
            part.edges.push(EdgeSlot {
                slot,
                from: slots[edge.from],
                to: slots[edge.to],
                lists: self.lists(edge)?,
                length: edge.length,
                group: self.groups,
            });
            self.values(slot, ElementKind::Edge, &edge.values, part)?;
        }
        for condition in &found.conditions {
            self.conjunction(condition, part)?;
        }
        Ok(())
    }

    fn node(&mut self, node: &syntax::NodePattern, part: &mut Part) -> Result<Slot, Mistake> {
        let types = self.node_types(&node.types)?;
        let name = node.name.as_deref();
        let slot = match name.filter(|name| self.names.contains_key(*name)) {
            Some(name) => {
                let slot = self.find_kind(node.at, name, ElementKind::Node)?;
                let own = part.nodes.iter_mut().chain(&mut part.given).find(|own| own.slot == slot);
                match own {
                    Some(own) => own.types = both(own.types.take(), types),
                    None => part.given.push(NodeSlot { slot, types }),
                }
                slot
            }
            None => {
                let slot = self.slot(node.at, name, ElementKind::Node)?;
                part.nodes.push(NodeSlot { slot, types });
                slot
            }
        };
        let own = part.nodes.iter().chain(&part.given).find(|own| own.slot == slot);
        if own.is_some_and(|own| own.types.as_ref().is_some_and(Vec::is_empty)) {
            let why = "no node type is below all types of this node, so the rule cannot match";
            return Err((node.at, why.into()));
        }
        self.values(slot, ElementKind::Node, &node.values, part)?;
        Ok(slot)
    }

    fn node_types(&self, types: &[Vec<(At, String)>]) -> Result<Option<Vec<NodeType>>, Mistake> {
        let mut all = None;
        for alternatives in types {
            let mut found: Vec<NodeType> = Vec::new();
            for (at, name) in alternatives {
                found.extend(self.schema.node_types_below(self.find_node_type(*at, name)?));
            }
            found.sort_unstable();
            found.dedup();
            all = both(all, Some(found));
        }
        Ok(all)
    }

    fn find_node_type(&self, at: At, name: &str) -> Result<NodeType, Mistake> {
        self.schema.find_node_type(name).ok_or_else(|| {
            let known = listed(self.schema.node_types().map(|of| self.schema.node_name(of)));
            (at, format!("no node has type {name}; the types are {known}"))
        })
    }

    fn find_edge_type(&self, at: At, name: &str) -> Result<(EdgeType, bool), Mistake> {
        self.schema.find_edge_type(name).ok_or_else(|| {
            let known = listed(self.schema.edge_types().map(|of| self.schema.edge_name(of)));
            (at, format!("no edge has type {name}; the types are {known}"))
        })
    }

    /// The lists in which the edges of a pattern are found, from the source.
    fn lists(&self, edge: &syntax::EdgePattern) -> Result<Vec<(EdgeType, Direction)>, Mistake> {
        let mut lists = Vec::new();
        let mut add = |of: EdgeType, backwards: bool| {
            let direction = if backwards { Direction::In } else { Direction::Out };
            lists.push((of, direction));
            if edge.undirected {
                lists.push((of, direction.reversed()));
            }
        };
        for (at, name) in &edge.types {
            let (of, backwards) = self.find_edge_type(*at, name)?;
            self.schema.edge_types_below(of).for_each(|of| add(of, backwards));
        }
        if edge.types.is_empty() {
            self.schema.edge_types().for_each(|of| add(of, false));
        }
        let mut seen = Vec::new();
        lists.retain(|list| {
            let is_new = !seen.contains(list);
            seen.push(*list);
            is_new
        });
        Ok(lists)
    }

    fn values(
        &mut self,
        slot: Slot,
        kind: ElementKind,
        values: &[(At, String, syntax::Expression)],
        part: &mut Part,
    ) -> Result<(), Mistake> {
        for (at, key, value) in values {
            let property = Expression::Property(slot, kind, self.key(*at, key)?);
            let value = self.expression(value)?;
            part.conditions.push(Expression::Binary(
                Operator::Equal,
                Box::new(property),
                Box::new(value),
            ));
        }
        Ok(())
    }

    /// Adds the parts of a conjunction as separate conditions, each of which is checked early.
    fn conjunction(&mut self, of: &syntax::Expression, part: &mut Part) -> Result<(), Mistake> {
        if let Kind::Binary(Operator::And, left, right) = &of.kind {
            self.conjunction(left, part)?;
            return self.conjunction(right, part);
        }
        let condition = self.expression(of)?;
        part.conditions.push(condition);
        Ok(())
    }
}

/// Expressions.
impl Compiler<'_> {
    fn key(&self, at: At, name: &str) -> Result<Key, Mistake> {
        self.schema.find_key(name).ok_or_else(|| {
            let known = listed(self.schema.keys().map(|key| self.schema.key_name(key)));
            (at, format!("no element has attribute {name}; the attributes are {known}"))
        })
    }

    fn expressions(&mut self, of: &[syntax::Expression]) -> Result<Vec<Expression>, Mistake> {
        of.iter().map(|inner| self.expression(inner)).collect()
    }

    fn boxed(&mut self, of: &syntax::Expression) -> Result<Box<Expression>, Mistake> {
        self.expression(of).map(Box::new)
    }

    fn expression(&mut self, of: &syntax::Expression) -> Result<Expression, Mistake> {
        let at = of.at;
        Ok(match &of.kind {
            Kind::Literal(literal) => Expression::Literal(self.literal(literal)),
            Kind::Parameter(name) => {
                let value = self.parameters.get(name);
                let value = value.ok_or_else(|| (at, format!("parameter ${name} has no value")))?;
                Expression::Literal(self.literals.encode(value))
            }
            Kind::Name(name) => match self.aliases.get(name).cloned() {
                Some(column) => column,
                None => Expression::Element(self.find(at, name)?.0),
            },
            Kind::Property(name, key) => {
                let (slot, kind) = self.find(at, name)?;
                Expression::Property(slot, kind, self.key(at, key)?)
            }
            Kind::HasType(name, of) => {
                let slot = self.find_kind(at, name, ElementKind::Node)?;
                let types = self.schema.node_types_below(self.find_node_type(at, of)?);
                Expression::HasType(slot, types.collect())
            }
            Kind::List(inner) => {
                let inner = self.expressions(inner)?;
                self.list(inner)
            }
            Kind::Not(inner) => Expression::Not(self.boxed(inner)?),
            Kind::Negate(inner) => Expression::Negate(self.boxed(inner)?),
            Kind::IsNull(inner) => Expression::IsNull(self.boxed(inner)?),
            Kind::Binary(operator, left, right) => {
                Expression::Binary(*operator, self.boxed(left)?, self.boxed(right)?)
            }
            Kind::Call(function, inner) => {
                let inner = self.expressions(inner)?;
                self.require_kind(at, *function, &inner)?;
                Expression::Call(*function, inner)
            }
            Kind::Aggregate { function, distinct, of } => {
                let Some(outer) = self.aggregates.take() else {
                    return Err((at, "an aggregate is only possible in RETURN".into()));
                };
                let of = of.as_ref().map(|of| self.expression(of)).transpose()?;
                let mut aggregates = outer;
                aggregates.push(AggregateOf { function: *function, distinct: *distinct, of });
                let index = aggregates.len() - 1;
                self.aggregates = Some(aggregates);
                Expression::Aggregate(index)
            }
            Kind::Exists(inside) => {
                let names = self.names.clone();
                self.groups += 1;
                let mut part = Part::default();
                self.part(inside, &mut part)?;
                self.names = names;
                self.exists.push(part);
                Expression::Exists(self.exists.len() - 1)
            }
        })
    }

    fn literal(&self, of: &Literal) -> Scalar {
        match of {
            Literal::Null => Scalar::Null,
            Literal::Bool(value) => Scalar::Bool(*value),
            Literal::Int(value) => Scalar::Int(*value),
            Literal::Float(value) => Scalar::Float(*value),
            Literal::Text(text) => self.literals.text(text),
        }
    }

    /// A list: one of constants is stored once, and not again by each evaluation.
    fn list(&self, inner: Vec<Expression>) -> Expression {
        let constant = |inner: &Expression| match inner {
            Expression::Literal(value) => Some(*value),
            _ => None,
        };
        match inner.iter().map(constant).collect::<Option<Vec<Scalar>>>() {
            Some(values) => Expression::Literal(self.literals.list(&values)),
            None => Expression::List(inner),
        }
    }

    /// Nodes have labels, and edges have a type: the numbers of both are from the same range.
    fn require_kind(
        &self,
        at: At,
        function: Function,
        inner: &[Expression],
    ) -> Result<(), Mistake> {
        let (kind, why) = match function {
            Function::Type => (ElementKind::Edge, "type requires an edge; use labels for a node"),
            Function::Labels => (ElementKind::Node, "labels requires a node; use type for an edge"),
            _ => return Ok(()),
        };
        match inner {
            [Expression::Element(slot)] if self.slots[usize::from(*slot)].1 == kind => Ok(()),
            _ => Err((at, why.into())),
        }
    }

    fn output(&mut self, returns: &syntax::Return, changes: &[Change]) -> Result<Output, Mistake> {
        self.aggregates = Some(Vec::new());
        let mut items = Vec::new();
        for (item, name) in &returns.items {
            let expression = self.expression(item)?;
            require_not_deleted(item.at, &expression, changes, &self.slots)?;
            if items.iter().any(|(_, other)| other == name) {
                let why = format!("two columns are named {name}; rename one with AS");
                return Err((item.at, why));
            }
            items.push((expression, name.clone()));
        }
        self.aliases = items.iter().map(|(item, name)| (name.clone(), item.clone())).collect();
        let mut order = Vec::new();
        for (item, descending) in &returns.order {
            let expression = self.expression(item)?;
            require_not_deleted(item.at, &expression, changes, &self.slots)?;
            order.push((expression, *descending));
        }
        let is_key = |(_, (item, _)): &(usize, &(Expression, String))| !item.has_aggregate();
        let keys = items.iter().enumerate().filter(is_key).map(|(index, _)| index).collect();
        Ok(Output {
            keys,
            distinct: returns.distinct,
            items,
            order,
            skip: returns.skip,
            limit: returns.limit,
            aggregates: self.aggregates.take().unwrap_or_default(),
        })
    }
}

/// Changes.
impl Compiler<'_> {
    fn change(
        &mut self,
        at: At,
        change: &syntax::Change,
        changes: &mut Vec<Change>,
    ) -> Result<(), Mistake> {
        match change {
            syntax::Change::Create(pattern) => self.create(pattern, changes),
            syntax::Change::Set { name, key, value } => {
                let (slot, kind) = self.find(at, name)?;
                let (key, value) = (self.key(at, key)?, self.expression(value)?);
                changes.push(Change::Set { slot, kind, key, value });
                Ok(())
            }
            syntax::Change::Retype { name, of } => {
                let slot = self.find_kind(at, name, ElementKind::Node)?;
                changes.push(Change::Retype { slot, of: self.find_node_type(at, of)? });
                Ok(())
            }
            syntax::Change::Delete { name, detach } => {
                let (slot, kind) = self.find(at, name)?;
                changes.push(match kind {
                    ElementKind::Edge => Change::DeleteEdge { slot },
                    ElementKind::Node => Change::DeleteNode { slot, detach: *detach },
                });
                Ok(())
            }
        }
    }

    fn create(
        &mut self,
        pattern: &syntax::Pattern,
        changes: &mut Vec<Change>,
    ) -> Result<(), Mistake> {
        let mut slots = Vec::new();
        for node in &pattern.nodes {
            let known = node.name.as_deref().filter(|name| self.names.contains_key(*name));
            if let Some(name) = known {
                if !node.types.is_empty() || !node.values.is_empty() {
                    return Err((node.at, format!("{name} exists; use SET to change it")));
                }
                slots.push(self.find_kind(node.at, name, ElementKind::Node)?);
                continue;
            }
            let [types] = &node.types[..] else {
                return Err((node.at, "a new node needs one type: write (name:Type)".into()));
            };
            let [(at, of)] = &types[..] else {
                return Err((node.at, "a new node has one type; write no alternatives".into()));
            };
            let of = self.find_node_type(*at, of)?;
            let slot = self.slot(node.at, node.name.as_deref(), ElementKind::Node)?;
            changes.push(Change::CreateNode { slot, of });
            self.created(slot, ElementKind::Node, &node.values, changes)?;
            slots.push(slot);
        }
        for edge in &pattern.edges {
            let [(at, of)] = &edge.types[..] else {
                return Err((edge.at, "a new edge needs one type: write -[:TYPE]->".into()));
            };
            if edge.undirected || edge.length.is_some() {
                return Err((edge.at, "a new edge has one direction: write -[:TYPE]->".into()));
            }
            if let Some(name) = edge.name.as_ref().filter(|name| self.names.contains_key(*name)) {
                return Err((edge.at, format!("{name} is defined twice; rename one of the two")));
            }
            let (of, backwards) = self.find_edge_type(*at, of)?;
            let (from, to) = (slots[edge.from], slots[edge.to]);
            let (from, to) = if backwards { (to, from) } else { (from, to) };
            let slot = self.slot(edge.at, edge.name.as_deref(), ElementKind::Edge)?;
            changes.push(Change::CreateEdge { slot, of, from, to });
            self.created(slot, ElementKind::Edge, &edge.values, changes)?;
        }
        Ok(())
    }

    fn created(
        &mut self,
        slot: Slot,
        kind: ElementKind,
        values: &[(At, String, syntax::Expression)],
        changes: &mut Vec<Change>,
    ) -> Result<(), Mistake> {
        for (at, key, value) in values {
            let (key, value) = (self.key(*at, key)?, self.expression(value)?);
            changes.push(Change::Set { slot, kind, key, value });
        }
        Ok(())
    }
}

fn require_not_deleted(
    at: At,
    of: &Expression,
    changes: &[Change],
    slots: &[(String, ElementKind)],
) -> Result<(), Mistake> {
    let mut deleted = None;
    of.visit(&mut |inner| {
        if let Expression::Element(slot) | Expression::Property(slot, ..) = inner {
            let is_deleted = changes.iter().any(|change| {
                matches!(change, Change::DeleteEdge { slot: of } | Change::DeleteNode { slot: of, .. }
                    if of == slot)
            });
            deleted = deleted.or(is_deleted.then_some(*slot));
        }
    });
    match deleted {
        Some(slot) => {
            let name = &slots[usize::from(slot)].0;
            Err((at, format!("the rule deletes {name}, so it cannot return {name}")))
        }
        None => Ok(()),
    }
}

/// The types that two restrictions allow together.
fn both(a: Option<Vec<NodeType>>, b: Option<Vec<NodeType>>) -> Option<Vec<NodeType>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.into_iter().filter(|of| b.contains(of)).collect()),
        (a, b) => a.or(b),
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    match names.len() {
        0 => "none".into(),
        count if count > LISTED_MAX => {
            format!("{} and {} more", names[..LISTED_MAX].join(", "), count - LISTED_MAX)
        }
        _ => names.join(", "),
    }
}
