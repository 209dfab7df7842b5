//! Expressions over the tags of a record.

use std::fmt;

use thiserror::Error;

use crate::label::{Kind, Label};
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

/// As it is written in a program, with no more parentheses than it needs: `N > 3 && abs (A - B) < 2`.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, LOOSEST)
    }
}

const LOOSEST: u8 = 0; // a ? b : c
const TIGHTEST: u8 = 7; // operators of one operand

impl Expression {
    /// Writes it where an operator around it binds as tightly as `around`.
    fn write(&self, f: &mut fmt::Formatter<'_>, around: u8) -> fmt::Result {
        let own = match self {
            Expression::Conditional(..) => LOOSEST,
            Expression::Binary(operator, ..) => operator.spelling().1,
            _ => TIGHTEST,
        };
        if own < around {
            f.write_str("(")?;
            self.write(f, LOOSEST)?;
            return f.write_str(")");
        }
        match self {
            Expression::Number(n) => write!(f, "{n}"),
            Expression::Tag(label) => {
                f.write_str(if label.kind() == Kind::BindingTag { "#" } else { "" })?;
                f.write_str(label.name())
            }
            Expression::Unary(operator, a) => {
                f.write_str(match operator {
                    Unary::Minus => "-",
                    Unary::Not => "!",
                    Unary::Abs => "abs ",
                })?;
                // Two signs side by side could be taken for one operator.
                let signed =
                    matches!(&**a, Expression::Unary(..)) || matches!(&**a, Expression::Number(n) if *n < 0);
                a.write(f, if signed { TIGHTEST + 1 } else { TIGHTEST })
            }
            Expression::Binary(operator @ (Binary::Min | Binary::Max), a, b) => {
                write!(f, "{}({a}, {b})", operator.spelling().0)
            }
            Expression::Binary(operator, a, b) => {
                a.write(f, own)?;
                write!(f, " {} ", operator.spelling().0)?;
                b.write(f, own + 1)
            }
            Expression::Conditional(a, b, c) => {
                a.write(f, LOOSEST + 1)?;
                write!(f, " ? {b} : {c}")
            }
        }
    }
}

impl Binary {
    /// How it is written, and how tightly it binds.
    fn spelling(self) -> (&'static str, u8) {
        match self {
            Binary::Or => ("||", 1),
            Binary::And => ("&&", 2),
            Binary::Equal => ("==", 3),
            Binary::NotEqual => ("!=", 3),
            Binary::Less => ("<", 4),
            Binary::LessEqual => ("<=", 4),
            Binary::Greater => (">", 4),
            Binary::GreaterEqual => (">=", 4),
            Binary::Plus => ("+", 5),
            Binary::Minus => ("-", 5),
            Binary::Times => ("*", 6),
            Binary::Divide => ("/", 6),
            Binary::Remainder => ("%", 6),
            // Written as calls: their operands need no parentheses, nor do they.
            Binary::Min => ("min", TIGHTEST),
            Binary::Max => ("max", TIGHTEST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(name: &str) -> Box<Expression> {
        Box::new(Expression::Tag(Label::new(Kind::Tag, name).unwrap()))
    }

    #[test]
    fn expression_as_text_has_the_parentheses_it_needs() {
        use Expression::{Binary as B, Conditional, Number, Unary as U};
        let (a, b, c) = (|| tag("a"), || tag("b"), || tag("c"));
        let minus = |x, y| Box::new(B(Binary::Minus, x, y));
        for (expression, text) in [
            (*minus(minus(a(), b()), c()), "a - b - c"),
            (*minus(a(), minus(b(), c())), "a - (b - c)"),
            (B(Binary::Times, minus(a(), b()), c()), "(a - b) * c"),
            (B(Binary::Or, a(), Box::new(B(Binary::And, b(), c()))), "a || b && c"),
            (B(Binary::And, Box::new(B(Binary::Or, a(), b())), c()), "(a || b) && c"),
            (B(Binary::Min, minus(a(), b()), c()), "min(a - b, c)"),
            (U(Unary::Abs, minus(a(), b())), "abs (a - b)"),
            (U(Unary::Minus, Box::new(Number(-1))), "-(-1)"),
            (U(Unary::Minus, Box::new(U(Unary::Minus, a()))), "-(-a)"),
            (Conditional(Box::new(Conditional(a(), b(), c())), b(), c()), "(a ? b : c) ? b : c"),
        ] {
            assert_eq!(expression.to_string(), text);
        }
    }
}
