//! The types and attributes that a text declares, and those that other texts use.

use crate::parser::{Mistake, statements};
use crate::scope::Scope;
use crate::syntax::{At, Change, Expression, Kind, Match, Pattern, Statement};
use std::collections::BTreeSet;

/// Types of nodes and edges, and attributes.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    nodes: BTreeSet<String>,
    edges: BTreeSet<String>,
    keys: BTreeSet<String>,
}

impl Schema {
    /// The types and attributes of the elements that a text creates:
    /// `CREATE (:Person {name: ''})-[:KNOWS {since: 0}]->(:Person)`.
    ///
    /// # Errors
    /// The first mistake, or the first statement that does not only create.
    pub fn of(text: &str) -> Result<Schema, Mistake> {
        let mut schema = Schema::default();
        for statement in &statements(text)? {
            Scope::check(statement)?;
            let creates = |(_, change): &(At, Change)| matches!(change, Change::Create(_));
            if !statement.matches.is_empty() || !statement.changes.iter().all(creates) {
                return Err((statement.at, "a schema has only the clause CREATE".into()));
            }
            for (_, change) in &statement.changes {
                if let Change::Create(pattern) = change {
                    schema.declare(pattern);
                }
            }
        }
        Ok(schema)
    }

    fn declare(&mut self, pattern: &Pattern) {
        let node_types = pattern.nodes.iter().flat_map(|node| node.types.iter().flatten());
        self.nodes.extend(node_types.map(|(_, of)| of.clone()));
        let edge_types = pattern.edges.iter().flat_map(|edge| &edge.types);
        self.edges.extend(edge_types.map(|(_, of)| of.clone()));
        let node_values = pattern.nodes.iter().flat_map(|node| &node.values);
        let values = node_values.chain(pattern.edges.iter().flat_map(|edge| &edge.values));
        self.keys.extend(values.map(|(_, key, _)| key.clone()));
    }

    /// Requires that a text has valid rules, with types and attributes of the schema only.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self, text: &str) -> Result<(), Mistake> {
        for statement in &statements(text)? {
            Scope::check(statement)?;
            self.statement(statement)?;
        }
        Ok(())
    }

    fn statement(&self, statement: &Statement) -> Result<(), Mistake> {
        statement.matches.iter().try_for_each(|found| self.matched(found))?;
        for (at, change) in &statement.changes {
            match change {
                Change::Create(pattern) => self.pattern(pattern)?,
                Change::Set { key, value, .. } => {
                    require(&self.keys, "attribute", *at, key)?;
                    self.expression(value)?;
                }
                Change::Retype { of, .. } => require(&self.nodes, "node type", *at, of)?,
                Change::Delete { .. } => {}
            }
        }
        let Some(returns) = &statement.returns else { return Ok(()) };
        let order = returns.order.iter().map(|(item, _)| item);
        let mut items = returns.items.iter().map(|(item, _)| item).chain(order);
        items.try_for_each(|item| self.expression(item))
    }

    fn matched(&self, found: &Match) -> Result<(), Mistake> {
        self.pattern(&found.pattern)?;
        found.conditions.iter().try_for_each(|condition| self.expression(condition))
    }

    fn pattern(&self, pattern: &Pattern) -> Result<(), Mistake> {
        for node in &pattern.nodes {
            for (at, of) in node.types.iter().flatten() {
                require(&self.nodes, "node type", *at, of)?;
            }
            self.values(&node.values)?;
        }
        for edge in &pattern.edges {
            for (at, of) in &edge.types {
                require(&self.edges, "edge type", *at, of)?;
            }
            self.values(&edge.values)?;
        }
        Ok(())
    }

    fn values(&self, values: &[(At, String, Expression)]) -> Result<(), Mistake> {
        values.iter().try_for_each(|(at, key, value)| {
            require(&self.keys, "attribute", *at, key)?;
            self.expression(value)
        })
    }

    fn expression(&self, of: &Expression) -> Result<(), Mistake> {
        match &of.kind {
            Kind::Literal(_) | Kind::Parameter(_) | Kind::Name(_) => Ok(()),
            Kind::Property(_, key) => require(&self.keys, "attribute", of.at, key),
            Kind::HasType(_, name) => require(&self.nodes, "node type", of.at, name),
            Kind::List(inner) | Kind::Call(_, inner) => {
                inner.iter().try_for_each(|inner| self.expression(inner))
            }
            Kind::Not(inner) | Kind::Negate(inner) | Kind::IsNull(inner) => self.expression(inner),
            Kind::Binary(_, left, right) => {
                self.expression(left)?;
                self.expression(right)
            }
            Kind::Aggregate { of, .. } => of.as_ref().map_or(Ok(()), |of| self.expression(of)),
            Kind::Exists(inside) => self.matched(inside),
        }
    }
}

fn require(known: &BTreeSet<String>, what: &str, at: At, name: &str) -> Result<(), Mistake> {
    if known.contains(name) {
        return Ok(());
    }
    let known = match known.is_empty() {
        true => "none".to_owned(),
        false => known.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
    };
    Err((at, format!("the schema has no {what} {name}; it has {known}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEOPLE: &str = "CREATE (:Person {name: ''})-[:KNOWS {since: 0}]->(:Person);
        CREATE (:City {name: ''})";

    fn mistake(rules: &str) -> String {
        let mistake = Schema::of(PEOPLE).unwrap().check(rules).err();
        mistake.map_or_else(String::new, |(at, why)| format!("{at}: {why}"))
    }

    #[test]
    fn rules_use_types_and_attributes_of_the_schema_only() {
        for rules in [
            "MATCH (a:Person {name: 'Ada'})-[k:KNOWS]->(b) WHERE k.since > 1 RETURN a.name, count(b)",
            "MATCH (a) WHERE NOT (a)-[:KNOWS]->(:City) SET a:City, a.name = 'x'",
            "CREATE (:City)-[:KNOWS {since: 1}]->(:Person)",
        ] {
            assert_eq!(mistake(rules), "", "{rules}");
        }
        for (rules, expected) in [
            (
                "MATCH (a:Persn) RETURN a",
                "9: the schema has no node type Persn; it has City, Person",
            ),
            ("MATCH (a)-[:R]->() RETURN a", "12: the schema has no edge type R; it has KNOWS"),
            ("CREATE (:Town)", "9: the schema has no node type Town; it has City, Person"),
        ] {
            assert_eq!(mistake(rules), expected);
        }
        // In each place where a name can stand.
        for rules in [
            "MATCH (a {x: 1}) RETURN a",
            "MATCH (a)-[{x: 1}]->() RETURN a",
            "MATCH (a) WHERE 1 + a.x IN [2] RETURN a",
            "MATCH (a) WHERE a:X RETURN a",
            "MATCH (a) WHERE EXISTS { MATCH (a)-[:X]->() } RETURN a",
            "MATCH (a) WHERE NOT a.x IS NULL RETURN a",
            "MATCH (a) RETURN sum(abs(-a.x))",
            "MATCH (a) RETURN a ORDER BY a.x",
            "MATCH (a) SET a.x = 1",
            "MATCH (a) SET a.name = a.x",
            "MATCH (a) SET a:X",
            "MATCH (a) REMOVE a.x",
            "MATCH (a) CREATE (a)-[:X]->(:City)",
            "MATCH (a) OPTIONAL MATCH (a)-[:X]->() RETURN a",
        ] {
            assert!(mistake(rules).contains("the schema has no"), "{rules}");
        }
    }

    #[test]
    fn a_schema_only_creates() {
        for text in
            ["MATCH (a) RETURN a", "MATCH (a) CREATE (:A)", "MATCH (a) SET a.x = 1", "CREATE (a"]
        {
            assert!(Schema::of(text).is_err(), "{text}");
        }
    }
}
