//! The names that a statement defines and uses.

use crate::parser::Mistake;
use crate::syntax::{At, Change, Expression, Kind, Match, Pattern, Statement};
use std::collections::HashSet;

/// The names that are defined at a place.
#[derive(Clone, Default)]
pub(crate) struct Scope<'a>(HashSet<&'a str>);

impl<'a> Scope<'a> {
    /// Requires that a statement defines the names that it uses.
    pub(crate) fn check(statement: &'a Statement) -> Result<(), Mistake> {
        let mut scope = Scope::default();
        statement.matches.iter().try_for_each(|found| scope.matched(found))?;
        for (at, change) in &statement.changes {
            match change {
                Change::Create(pattern) => scope.pattern(pattern)?,
                Change::Set { name, value, .. } => {
                    scope.require(*at, name)?;
                    scope.expression(value)?;
                }
                Change::Retype { name, .. } | Change::Delete { name, .. } => {
                    scope.require(*at, name)?;
                }
            }
        }
        let Some(returns) = &statement.returns else { return Ok(()) };
        returns.items.iter().try_for_each(|(item, _)| scope.expression(item))?;
        scope.0.extend(returns.items.iter().map(|(_, name)| name.as_str()));
        returns.order.iter().try_for_each(|(item, _)| scope.expression(item))
    }

    fn require(&self, at: At, name: &str) -> Result<(), Mistake> {
        match self.0.contains(name) {
            true => Ok(()),
            false => Err((at, format!("{name} is not defined; define it in MATCH or CREATE"))),
        }
    }

    fn matched(&mut self, found: &'a Match) -> Result<(), Mistake> {
        self.pattern(&found.pattern)?;
        found.conditions.iter().try_for_each(|condition| self.expression(condition))
    }

    fn pattern(&mut self, pattern: &'a Pattern) -> Result<(), Mistake> {
        for node in &pattern.nodes {
            self.0.extend(node.name.as_deref());
            node.values.iter().try_for_each(|(_, _, value)| self.expression(value))?;
        }
        for edge in &pattern.edges {
            self.0.extend(edge.name.as_deref());
            edge.values.iter().try_for_each(|(_, _, value)| self.expression(value))?;
        }
        Ok(())
    }

    fn expression(&self, of: &'a Expression) -> Result<(), Mistake> {
        match &of.kind {
            Kind::Literal(_) | Kind::Parameter(_) => Ok(()),
            Kind::Name(name) | Kind::Property(name, _) | Kind::HasType(name, _) => {
                self.require(of.at, name)
            }
            Kind::List(inner) | Kind::Call(_, inner) => {
                inner.iter().try_for_each(|inner| self.expression(inner))
            }
            Kind::Not(inner) | Kind::Negate(inner) | Kind::IsNull(inner) => self.expression(inner),
            Kind::Binary(_, left, right) => {
                self.expression(left)?;
                self.expression(right)
            }
            Kind::Aggregate { of, .. } => of.as_ref().map_or(Ok(()), |of| self.expression(of)),
            Kind::Exists(inside) => self.clone().matched(inside),
        }
    }
}
