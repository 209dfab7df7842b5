//! Expressions over the tags of a record.

use std::fmt;

use thiserror::Error;

use crate::label::{Kind, Label};
use crate::record::Record;

/// Unary operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `-`
    Minus,
    /// `!`: 1 for 0, 0 for any other value
    Not,
    /// `abs`
    Abs,
}

/// Binary operator. Comparisons have the value 1 or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are descriptive")]
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

/// Expression with resolved names.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// Number.
    Number(i32),
    /// Value of a tag.
    Tag(Label),
    /// Unary operator and its operand.
    Unary(Unary, Box<Expression>),
    /// Binary operator and its operands. `||` and `&&` evaluate the right operand only if the left
    /// operand does not determine the result.
    Binary(Binary, Box<Expression>, Box<Expression>),
    /// `a ? b : c`
    Conditional(Box<Expression>, Box<Expression>, Box<Expression>),
}

/// Reason why an expression has no value.
///
/// This type is separate from [`Error`](crate::Error), because filters evaluate expressions for
/// every record: it is small and `Copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EvaluationError {
    /// Division or remainder by 0.
    #[error("division by zero")]
    DivisionByZero,
    /// The record does not have the tag.
    #[error("the record has no tag {0}")]
    MissingTag(Label),
}

impl Expression {
    /// Evaluates the expression for a record. Numbers have the range of C's `int`, and arithmetic
    /// wraps.
    ///
    /// # Errors
    ///
    /// Returns an error for a division by 0 and for a tag that the record does not have.
    pub fn value(&self, record: &Record) -> Result<i32, EvaluationError> {
        Ok(match self {
            Expression::Number(n) => *n,
            Expression::Tag(label) => {
                record.tag(*label).ok_or(EvaluationError::MissingTag(*label))?
            }
            Expression::Unary(operator, a) => {
                let a = a.value(record)?;
                match operator {
                    Unary::Minus => a.wrapping_neg(),
                    Unary::Not => (a == 0).into(),
                    Unary::Abs => a.wrapping_abs(),
                }
            }
            Expression::Binary(Binary::Or, a, b) => {
                (a.value(record)? != 0 || b.value(record)? != 0).into()
            }
            Expression::Binary(Binary::And, a, b) => {
                (a.value(record)? != 0 && b.value(record)? != 0).into()
            }
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
                    Binary::Divide | Binary::Remainder if b == 0 => {
                        return Err(EvaluationError::DivisionByZero);
                    }
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

    /// Calls `visit` for each tag that the expression reads.
    pub fn tags(&self, visit: &mut impl FnMut(Label)) {
        match self {
            Expression::Number(_) => {}
            Expression::Tag(label) => visit(*label),
            Expression::Unary(_, a) => a.tags(visit),
            Expression::Binary(_, a, b) => {
                a.tags(visit);
                b.tags(visit);
            }
            Expression::Conditional(a, b, c) => {
                a.tags(visit);
                b.tags(visit);
                c.tags(visit);
            }
        }
    }
}

/// The expression in the notation of programs, with as few parentheses as possible:
/// `N > 3 && abs (A - B) < 2`.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, CONDITIONAL)
    }
}

impl Expression {
    /// Writes the expression as an operand of an operator of precedence `around`.
    fn write(&self, f: &mut fmt::Formatter<'_>, around: u8) -> fmt::Result {
        let precedence = match self {
            Expression::Conditional(..) => CONDITIONAL,
            // Written as calls, so neither they nor their operands need parentheses.
            Expression::Binary(Binary::Min | Binary::Max, ..) => UNARY,
            Expression::Binary(operator, ..) => operator.precedence(),
            _ => UNARY,
        };
        if precedence < around {
            f.write_str("(")?;
            self.write(f, CONDITIONAL)?;
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
                // Two adjacent signs could be read as one operator.
                let signed = matches!(&**a, Expression::Unary(..))
                    || matches!(&**a, Expression::Number(n) if *n < 0);
                a.write(f, if signed { UNARY + 1 } else { UNARY })
            }
            Expression::Binary(operator @ (Binary::Min | Binary::Max), a, b) => {
                write!(f, "{}({a}, {b})", operator.sign())
            }
            Expression::Binary(operator, a, b) => {
                a.write(f, precedence)?;
                write!(f, " {} ", operator.sign())?;
                b.write(f, precedence + 1)
            }
            Expression::Conditional(a, b, c) => {
                a.write(f, CONDITIONAL + 1)?;
                write!(f, " ? {b} : {c}")
            }
        }
    }
}

/// Every binary operator, its sign, and its precedence: a higher one binds more tightly.
const OPERATORS: [(Binary, &str, u8); 15] = [
    (Binary::Or, "||", 1),
    (Binary::And, "&&", 2),
    (Binary::Equal, "==", 3),
    (Binary::NotEqual, "!=", 3),
    (Binary::Less, "<", 4),
    (Binary::LessEqual, "<=", 4),
    (Binary::Greater, ">", 4),
    (Binary::GreaterEqual, ">=", 4),
    (Binary::Plus, "+", 5),
    (Binary::Minus, "-", 5),
    (Binary::Times, "*", 6),
    (Binary::Divide, "/", 6),
    (Binary::Remainder, "%", 6),
    (Binary::Min, "min", 7),
    (Binary::Max, "max", 7),
];

/// Precedence of unary operators.
pub(crate) const UNARY: u8 = 8;
/// Precedence of `a ? b : c`.
pub(crate) const CONDITIONAL: u8 = 0;

impl Binary {
    /// Returns the operator with this sign.
    pub(crate) fn of_sign(sign: &str) -> Option<Binary> {
        OPERATORS.iter().find(|(_, known, _)| *known == sign).map(|(operator, ..)| *operator)
    }

    /// Sign of the operator in a program.
    pub(crate) fn sign(self) -> &'static str {
        OPERATORS[self as usize].1
    }

    /// Precedence of the operator: a higher one binds more tightly.
    pub(crate) fn precedence(self) -> u8 {
        OPERATORS[self as usize].2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(name: &str) -> Box<Expression> {
        Box::new(Expression::Tag(Label::new(Kind::Tag, name).unwrap()))
    }

    #[test]
    fn expression_as_text_has_only_necessary_parentheses() {
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

    #[test]
    fn operator_table_is_indexed_by_operator() {
        for (i, (operator, sign, _)) in OPERATORS.into_iter().enumerate() {
            assert_eq!(operator as usize, i);
            assert_eq!(Binary::of_sign(sign), Some(operator));
        }
    }
}
