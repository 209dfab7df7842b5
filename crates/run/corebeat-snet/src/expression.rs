//! Expressions over the tags of a record.

use thiserror::Error;

use crate::label::Label;
use crate::record::Record;

/// Operators of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `-`
    Minus,
    /// `!`: 1 for 0, 0 for all else
    Not,
    /// `abs`
    Abs,
}

/// Operators of two operands. Comparisons are 1 or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Binary {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Plus,
    Minus,
    Times,
    Divide,
    Remainder,
    Min,
    Max,
}

/// An expression whose names are resolved.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// A number.
    Number(i32),
    /// What a tag holds.
    Tag(Label),
    /// An operator and its operand.
    Unary(Unary, Box<Expression>),
    /// An operator and its operands. `||` and `&&` look at the right one only where the left one does not decide.
    Binary(Binary, Box<Expression>, Box<Expression>),
    /// `a ? b : c`
    Conditional(Box<Expression>, Box<Expression>, Box<Expression>),
}

/// Why an expression has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoValue {
    /// A division, or a remainder, by 0.
    #[error("division by zero")]
    Zero,
    /// The record has no such tag.
    #[error("there is no {0} in the record")]
    Missing(Label),
}

impl Expression {
    /// Its value for a record. Numbers are those of C's `int`; what leaves their range wraps.
    ///
    /// # Errors
    ///
    /// [`NoValue`], for a division by 0 and for a tag that is not there.
    pub fn value(&self, record: &Record) -> Result<i32, NoValue> {
        Ok(match self {
            Expression::Number(n) => *n,
            Expression::Tag(label) => record.tag(*label).ok_or(NoValue::Missing(*label))?,
            Expression::Unary(operator, a) => {
                let a = a.value(record)?;
                match operator {
                    Unary::Minus => a.wrapping_neg(),
                    Unary::Not => (a == 0).into(),
                    Unary::Abs => a.wrapping_abs(),
                }
            }
            Expression::Binary(Binary::Or, a, b) => (a.value(record)? != 0 || b.value(record)? != 0).into(),
            Expression::Binary(Binary::And, a, b) => (a.value(record)? != 0 && b.value(record)? != 0).into(),
            Expression::Binary(operator, a, b) => {
                let (a, b) = (a.value(record)?, b.value(record)?);
                match operator {
                    Binary::Or | Binary::And => unreachable!("decided above"),
                    Binary::Equal => (a == b).into(),
                    Binary::NotEqual => (a != b).into(),
                    Binary::Less => (a < b).into(),
                    Binary::LessEqual => (a <= b).into(),
                    Binary::Greater => (a > b).into(),
                    Binary::GreaterEqual => (a >= b).into(),
                    Binary::Plus => a.wrapping_add(b),
                    Binary::Minus => a.wrapping_sub(b),
                    Binary::Times => a.wrapping_mul(b),
                    Binary::Divide | Binary::Remainder if b == 0 => return Err(NoValue::Zero),
                    Binary::Divide => a.wrapping_div(b),
                    Binary::Remainder => a.wrapping_rem(b),
                    Binary::Min => a.min(b),
                    Binary::Max => a.max(b),
                }
            }
            Expression::Conditional(a, b, c) => {
                if a.value(record)? != 0 {
                    b.value(record)?
                } else {
                    c.value(record)?
                }
            }
        })
    }

    /// Calls `see` for each tag it names.
    pub fn tags(&self, see: &mut impl FnMut(Label)) {
        match self {
            Expression::Number(_) => {}
            Expression::Tag(label) => see(*label),
            Expression::Unary(_, a) => a.tags(see),
            Expression::Binary(_, a, b) => {
                a.tags(see);
                b.tags(see);
            }
            Expression::Conditional(a, b, c) => {
                a.tags(see);
                b.tags(see);
                c.tags(see);
            }
        }
    }
}
