//! Expressions on the elements of a match.

use crate::matcher::Matcher;
use crate::rule::{Binding, ElementKind, NONE, Slot};
use crate::schema::{Key, NodeType};
use crate::value::{LIST_DEPTH_MAX, LIST_VALUES_MAX, Scalar};
use corebeat_cypher::syntax::{Function, Operator};
use std::cmp::Ordering;

/// An expression whose names are resolved.
#[derive(Debug, Clone)]
pub(crate) enum Expression {
    Literal(Scalar),
    /// The number of a node or an edge.
    Element(Slot),
    Property(Slot, ElementKind, Key),
    HasType(Slot, Vec<NodeType>),
    List(Vec<Expression>),
    Not(Box<Expression>),
    Negate(Box<Expression>),
    IsNull(Box<Expression>),
    Binary(Operator, Box<Expression>, Box<Expression>),
    Call(Function, Vec<Expression>),
    /// Index in the parts of the rule.
    Exists(usize),
    /// Index in the aggregates of the output.
    Aggregate(usize),
}

/// The reason why an expression has no value.
pub(crate) type Fault = String;

impl Expression {
    /// Calls `f` with this expression and all expressions inside.
    pub(crate) fn visit(&self, f: &mut impl FnMut(&Expression)) {
        f(self);
        match self {
            Expression::List(inner) | Expression::Call(_, inner) => {
                inner.iter().for_each(|inner| inner.visit(f));
            }
            Expression::Not(inner) | Expression::Negate(inner) | Expression::IsNull(inner) => {
                inner.visit(f);
            }
            Expression::Binary(_, left, right) => {
                left.visit(f);
                right.visit(f);
            }
            _ => {}
        }
    }
}

impl Expression {
    /// Whether the value depends on all rows of a group.
    pub(crate) fn has_aggregate(&self) -> bool {
        let mut found = false;
        self.visit(&mut |inner| found |= matches!(inner, Expression::Aggregate(_)));
        found
    }

    /// Whether the value depends on elements of a match.
    pub(crate) fn reads_elements(&self) -> bool {
        let mut found = false;
        self.visit(&mut |inner| {
            found |= matches!(
                inner,
                Expression::Element(_)
                    | Expression::Property(..)
                    | Expression::HasType(..)
                    | Expression::Exists(_)
            );
        });
        found
    }
}

/// Values that take part in the evaluation of a result.
pub(crate) struct Results<'a> {
    pub(crate) aggregates: &'a [Scalar],
}

impl Matcher<'_> {
    /// Whether a condition is true. Null is not.
    pub(crate) fn is_true(&self, of: &Expression, binding: &mut Binding) -> Result<bool, Fault> {
        match self.evaluate(of, binding, &Results { aggregates: &[] })? {
            Scalar::Bool(value) => Ok(value),
            Scalar::Null => Ok(false),
            _ => Err("a condition is neither true nor false".into()),
        }
    }

    pub(crate) fn evaluate(
        &self,
        of: &Expression,
        binding: &mut Binding,
        results: &Results,
    ) -> Result<Scalar, Fault> {
        Ok(match of {
            Expression::Literal(value) => *value,
            Expression::Property(slot, kind, key) => match (binding[usize::from(*slot)], kind) {
                (NONE, _) => Scalar::Null,
                (node, ElementKind::Node) => self.store.node_value(node, *key),
                (edge, ElementKind::Edge) => self.store.edge_value(edge, *key),
            },
            Expression::Element(slot) => match binding[usize::from(*slot)] {
                NONE => Scalar::Null,
                number => Scalar::Int(number.into()),
            },
            Expression::HasType(slot, types) => match binding[usize::from(*slot)] {
                NONE => Scalar::Null,
                node => {
                    let of = self.store.node_type(node);
                    Scalar::Bool(of.is_some_and(|of| types.contains(&of)))
                }
            },
            Expression::List(inner) => {
                let values: Result<Vec<Scalar>, Fault> =
                    inner.iter().map(|inner| self.evaluate(inner, binding, results)).collect();
                let values = values?;
                let list = self.store.literals.list(&values);
                let is_nested = values.iter().any(|value| matches!(value, Scalar::List(_)));
                if is_nested && self.store.literals.is_too_large(list) {
                    return Err(format!(
                        "lists are nested more than {LIST_DEPTH_MAX} deep, or have more than \
                         {LIST_VALUES_MAX} values"
                    ));
                }
                list
            }
            Expression::Not(inner) => match self.evaluate(inner, binding, results)? {
                Scalar::Bool(value) => Scalar::Bool(!value),
                Scalar::Null => Scalar::Null,
                _ => return Err("NOT requires a truth value".into()),
            },
            Expression::Negate(inner) => match self.evaluate(inner, binding, results)? {
                Scalar::Int(value) => Scalar::Int(value.checked_neg().ok_or_else(overflow)?),
                Scalar::Float(value) => Scalar::Float(-value),
                Scalar::Null => Scalar::Null,
                _ => return Err("'-' requires a number".into()),
            },
            Expression::IsNull(inner) => {
                Scalar::Bool(self.evaluate(inner, binding, results)? == Scalar::Null)
            }
            Expression::Binary(operator, left, right) => {
                return self.binary(*operator, left, right, binding, results);
            }
            Expression::Call(function, inner) => {
                return self.call(*function, inner, binding, results);
            }
            Expression::Exists(index) => Scalar::Bool(self.exists(*index, binding)?),
            Expression::Aggregate(index) => {
                results.aggregates.get(*index).copied().unwrap_or(Scalar::Null)
            }
        })
    }

    fn binary(
        &self,
        operator: Operator,
        left: &Expression,
        right: &Expression,
        binding: &mut Binding,
        results: &Results,
    ) -> Result<Scalar, Fault> {
        use Operator::*;
        let left = self.evaluate(left, binding, results)?;
        if let (And, Scalar::Bool(false)) | (Or, Scalar::Bool(true)) = (operator, left) {
            return Ok(left);
        }
        let right = self.evaluate(right, binding, results)?;
        match operator {
            And | Or | Xor => logic(operator, left, right),
            Add | Subtract | Multiply | Divide | Remainder => self.compute(operator, left, right),
            In => Ok(match (left, right) {
                (_, Scalar::Null) => Scalar::Null,
                (value, Scalar::List(number)) => {
                    let list = self.store.literals.get_list(number);
                    let has_null = value == Scalar::Null || list.contains(&Scalar::Null);
                    let found = list
                        .iter()
                        .any(|other| self.compare(value, *other) == Some(Ordering::Equal));
                    if !found && has_null && !list.is_empty() {
                        Scalar::Null
                    } else {
                        Scalar::Bool(found)
                    }
                }
                _ => return Err("IN requires a list".into()),
            }),
            StartsWith | EndsWith | Contains => Ok(match (left, right) {
                (Scalar::Text(left), Scalar::Text(right)) => {
                    let literals = &self.store.literals;
                    let (left, right) = (literals.get_text(left), literals.get_text(right));
                    Scalar::Bool(match operator {
                        StartsWith => left.starts_with(right),
                        EndsWith => left.ends_with(right),
                        _ => left.contains(right),
                    })
                }
                _ => Scalar::Null,
            }),
            Equal | Unequal if left != Scalar::Null && right != Scalar::Null => {
                let is_equal = self.compare(left, right) == Some(Ordering::Equal);
                Ok(Scalar::Bool(is_equal == (operator == Equal)))
            }
            Equal | Unequal => Ok(Scalar::Null),
            Less | LessEqual | Greater | GreaterEqual => {
                let Some(order) = self.compare(left, right) else { return Ok(Scalar::Null) };
                Ok(Scalar::Bool(match operator {
                    Less => order.is_lt(),
                    LessEqual => order.is_le(),
                    Greater => order.is_gt(),
                    _ => order.is_ge(),
                }))
            }
        }
    }

    /// The order of two values of comparable types.
    fn compare(&self, left: Scalar, right: Scalar) -> Option<Ordering> {
        let literals = &self.store.literals;
        match (left, right) {
            (Scalar::Int(a), Scalar::Int(b)) => Some(a.cmp(&b)),
            (Scalar::Float(a), Scalar::Float(b)) => a.partial_cmp(&b),
            (Scalar::Int(_), Scalar::Float(b)) | (Scalar::Float(b), Scalar::Int(_))
                if b.is_nan() =>
            {
                None
            }
            (Scalar::Int(_), Scalar::Float(_)) | (Scalar::Float(_), Scalar::Int(_)) => {
                Some(literals.decode(left).order(&literals.decode(right)))
            }
            (Scalar::Text(a), Scalar::Text(b)) if a == b => Some(Ordering::Equal),
            (Scalar::Text(a), Scalar::Text(b)) => {
                Some(literals.get_text(a).cmp(literals.get_text(b)))
            }
            (Scalar::Bool(a), Scalar::Bool(b)) => Some(a.cmp(&b)),
            (Scalar::List(a), Scalar::List(b)) if a == b => Some(Ordering::Equal),
            (Scalar::List(_), Scalar::List(_)) => {
                Some(literals.decode(left).order(&literals.decode(right)))
            }
            _ => None,
        }
    }

    fn compute(&self, operator: Operator, left: Scalar, right: Scalar) -> Result<Scalar, Fault> {
        use Operator::*;
        let literals = &self.store.literals;
        let float = |a: f64, b: f64| {
            Scalar::Float(match operator {
                Add => a + b,
                Subtract => a - b,
                Multiply => a * b,
                Divide => a / b,
                _ => a % b,
            })
        };
        match (left, right) {
            (Scalar::Null, _) | (_, Scalar::Null) => Ok(Scalar::Null),
            (Scalar::Int(_), Scalar::Int(0)) if matches!(operator, Divide | Remainder) => {
                Err("division by zero".into())
            }
            (Scalar::Int(a), Scalar::Int(b)) => match operator {
                Add => a.checked_add(b),
                Subtract => a.checked_sub(b),
                Multiply => a.checked_mul(b),
                Divide => a.checked_div(b),
                _ => a.checked_rem(b),
            }
            .map(Scalar::Int)
            .ok_or_else(overflow),
            (Scalar::Float(a), Scalar::Float(b)) => Ok(float(a, b)),
            (Scalar::Int(a), Scalar::Float(b)) => Ok(float(a as f64, b)),
            (Scalar::Float(a), Scalar::Int(b)) => Ok(float(a, b as f64)),
            (Scalar::Text(a), Scalar::Text(b)) if operator == Add => {
                Ok(literals.text(&format!("{}{}", literals.get_text(a), literals.get_text(b))))
            }
            (Scalar::List(a), Scalar::List(b)) if operator == Add => {
                Ok(literals.list(&[literals.get_list(a), literals.get_list(b)].concat()))
            }
            _ => {
                let (left, right) = (literals.decode(left), literals.decode(right));
                Err(format!("cannot compute with {left} and {right}"))
            }
        }
    }

    fn call(
        &self,
        function: Function,
        inner: &[Expression],
        binding: &mut Binding,
        results: &Results,
    ) -> Result<Scalar, Fault> {
        let literals = &self.store.literals;
        let schema = &self.store.schema;
        if let (Function::Type | Function::Labels, [Expression::Element(slot)]) = (function, inner)
        {
            let element = binding[usize::from(*slot)];
            return Ok(match function {
                _ if element == NONE => Scalar::Null,
                Function::Type => {
                    let of = self.store.edge_type(element);
                    of.map_or(Scalar::Null, |of| literals.text(schema.edge_name(of)))
                }
                _ => {
                    let of = self.store.node_type(element);
                    of.map_or(Scalar::Null, |of| {
                        literals.list(&[literals.text(schema.node_name(of))])
                    })
                }
            });
        }
        let mut last = Scalar::Null;
        for inner in inner {
            last = self.evaluate(inner, binding, results)?;
            if last != Scalar::Null {
                break;
            }
        }
        match (function, last) {
            (Function::Id | Function::Coalesce, value) => Ok(value),
            (_, Scalar::Null) => Ok(Scalar::Null),
            (Function::Size, Scalar::Text(number)) => {
                Ok(Scalar::Int(literals.get_text(number).chars().count() as i64))
            }
            (Function::Size, Scalar::List(number)) => {
                Ok(Scalar::Int(literals.get_list(number).len() as i64))
            }
            (Function::Abs, Scalar::Int(value)) => {
                value.checked_abs().map(Scalar::Int).ok_or_else(overflow)
            }
            (Function::Abs, Scalar::Float(value)) => Ok(Scalar::Float(value.abs())),
            (Function::Size, value) => {
                Err(format!("size requires a text or a list, not {}", literals.decode(value)))
            }
            (_, value) => Err(format!("abs requires a number, not {}", literals.decode(value))),
        }
    }
}

fn overflow() -> Fault {
    "the result of an integer operation is too large".into()
}

fn logic(operator: Operator, left: Scalar, right: Scalar) -> Result<Scalar, Fault> {
    let truth = |value| match value {
        Scalar::Bool(value) => Ok(Some(value)),
        Scalar::Null => Ok(None),
        _ => Err("AND, OR and XOR require truth values".to_owned()),
    };
    let (left, right) = (truth(left)?, truth(right)?);
    let result = match (operator, left, right) {
        (Operator::And, Some(false), _) | (Operator::And, _, Some(false)) => Some(false),
        (Operator::Or, Some(true), _) | (Operator::Or, _, Some(true)) => Some(true),
        (_, Some(left), Some(right)) => Some(match operator {
            Operator::And => left && right,
            Operator::Or => left || right,
            _ => left != right,
        }),
        _ => None,
    };
    Ok(result.map_or(Scalar::Null, Scalar::Bool))
}
