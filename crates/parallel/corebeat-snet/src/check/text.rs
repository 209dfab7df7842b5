//! Parts of the syntax tree as source text.

use std::fmt::{self, Display, Formatter};

use crate::ast::{Entry, Expr, ExprKind, Filter, Output, OutputEntry, Variant};
use crate::expression::{CONDITIONAL, UNARY, Unary};
use crate::label::Kind;

/// Displays a part of the syntax tree as source text.
pub(super) struct Text<'a, T>(pub(super) &'a T);

fn list<'a, T: 'a>(
    f: &mut Formatter<'_>,
    items: impl IntoIterator<Item = &'a T>,
    between: &str,
    show: impl Fn(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            f.write_str(between)?;
        }
        show(f, item)?;
    }
    Ok(())
}

impl Display for Text<'_, Entry> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = &self.0.name.text;
        match self.0.kind {
            Kind::Field => f.write_str(name),
            Kind::Tag => write!(f, "<{name}>"),
            Kind::BindingTag => write!(f, "<#{name}>"),
        }
    }
}

impl Display for Text<'_, Variant> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        list(f, &self.0.entries, ", ", |f, entry| Text(entry).fmt(f))?;
        f.write_str("}")
    }
}

impl Display for Text<'_, Filter> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "[{} ->", Text(&self.0.pattern))?;
        let action = |f: &mut Formatter<'_>, outputs: &Vec<Output>| {
            if !outputs.is_empty() {
                f.write_str(" ")?;
            }
            list(f, outputs, "; ", |f, output| Text(output).fmt(f))
        };
        for (condition, outputs) in &self.0.cases {
            write!(f, " if <{}> then", Text(condition))?;
            action(f, outputs)?;
            f.write_str(" else")?;
        }
        action(f, &self.0.otherwise)?;
        f.write_str("]")
    }
}

impl Display for Text<'_, Output> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        list(f, &self.0.entries, ", ", |f, entry| Text(entry).fmt(f))?;
        f.write_str("}")
    }
}

impl Display for Text<'_, OutputEntry> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            OutputEntry::Field { name, from: None } => f.write_str(&name.text),
            OutputEntry::Field { name, from: Some(from) } => {
                write!(f, "{} = {}", name.text, from.text)
            }
            OutputEntry::Tag { entry, value: None } => Text(entry).fmt(f),
            OutputEntry::Tag { entry, value: Some(value) } => {
                let sign = if entry.kind == Kind::BindingTag { "#" } else { "" };
                write!(f, "<{sign}{} = {}>", entry.name.text, Text(value))
            }
        }
    }
}

impl Display for Text<'_, Expr> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        expression(f, self.0, CONDITIONAL)
    }
}

/// Writes an expression as an operand that needs at least the precedence `least`.
fn expression(f: &mut Formatter<'_>, expr: &Expr, least: u8) -> fmt::Result {
    let precedence = match &expr.kind {
        ExprKind::Conditional(..) => CONDITIONAL,
        ExprKind::Binary(operator, ..) => operator.precedence(),
        ExprKind::Unary(..) | ExprKind::Number(_) | ExprKind::Tag(_) => UNARY,
    };
    if precedence < least {
        f.write_str("(")?;
        expression(f, expr, CONDITIONAL)?;
        return f.write_str(")");
    }
    match &expr.kind {
        ExprKind::Number(n) => write!(f, "{n}"),
        ExprKind::Tag(entry) => {
            write!(
                f,
                "{}{}",
                if entry.kind == Kind::BindingTag { "#" } else { "" },
                entry.name.text
            )
        }
        ExprKind::Unary(operator, a) => {
            f.write_str(match operator {
                Unary::Minus => "-",
                Unary::Not => "!",
                Unary::Abs => "abs ",
            })?;
            // `--a` is another operator in other languages, so an operand gets parentheses.
            let bare = matches!(a.kind, ExprKind::Number(0..) | ExprKind::Tag(_));
            expression(f, a, if bare { UNARY } else { UNARY + 1 })
        }
        ExprKind::Binary(operator, a, b) => {
            expression(f, a, precedence)?;
            write!(f, " {} ", operator.sign())?;
            expression(f, b, precedence + 1)
        }
        ExprKind::Conditional(a, b, c) => {
            expression(f, a, CONDITIONAL + 1)?;
            f.write_str(" ? ")?;
            expression(f, b, CONDITIONAL)?;
            f.write_str(" : ")?;
            expression(f, c, CONDITIONAL)
        }
    }
}
