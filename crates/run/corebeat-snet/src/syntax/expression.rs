//! Expressions over tags.

use super::NESTING_MAX;
use super::lexer::{Token, scan};
use super::parser::{Failed, Parsed, Parser};
use crate::ast::{Expr, ExprKind, Span};
use crate::diagnostic::Diagnostic;
use crate::expression::{Binary, Unary};

/// An expression and its depth.
type Operand = (Expr, usize);

/// What waits for an operand to its right.
enum Pending {
    Unary(Unary, Span),
    /// With how tight it binds.
    Binary(Binary, u8, Operand),
    /// `a ?`
    Question(Operand),
    /// `a ? b :`
    Colon(Operand, Operand),
    /// `(`
    Bracket(Span),
    /// `min(`: the word and the bracket
    First(Binary, Span, Span),
    /// `min(a,`
    Second(Binary, Span, Span, Operand),
}

/// How tight things bind.
const TERNARY: u8 = 0;
const UNARY: u8 = 8;

fn infix(token: Token<'_>) -> Option<(Binary, u8)> {
    let Token::Fixed(sign) = token else { return None };
    Some(match sign {
        "||" => (Binary::Or, 1),
        "&&" => (Binary::And, 2),
        "==" => (Binary::Equal, 3),
        "!=" => (Binary::NotEqual, 3),
        "<" => (Binary::Less, 4),
        "<=" => (Binary::LessEqual, 4),
        ">" => (Binary::Greater, 4),
        ">=" => (Binary::GreaterEqual, 4),
        "+" => (Binary::Plus, 5),
        "-" => (Binary::Minus, 5),
        "*" => (Binary::Times, 6),
        "/" => (Binary::Divide, 6),
        "%" => (Binary::Remainder, 6),
        "min" => (Binary::Min, 7),
        "max" => (Binary::Max, 7),
        _ => return None,
    })
}

impl Pending {
    fn tightness(&self) -> Option<u8> {
        match self {
            Pending::Unary(..) => Some(UNARY),
            Pending::Binary(_, tightness, _) => Some(*tightness),
            Pending::Colon(..) => Some(TERNARY),
            _ => None,
        }
    }
}

impl Parser<'_> {
    /// All up to a sign that cannot belong to it, as the `>` behind it.
    pub(super) fn expression(&mut self) -> Parsed<Expr> {
        let mut pending: Vec<Pending> = Vec::new();
        // Brackets among them.
        let mut brackets = 0;
        loop {
            if pending.len() > NESTING_MAX {
                return Err(self.too_deep_expression(self.span));
            }
            let start = self.span;
            let kind = match self.token {
                Token::Fixed(sign @ ("-" | "!" | "!!" | "abs")) => {
                    self.bump();
                    let operator = match sign {
                        "-" => Unary::Minus,
                        "abs" => Unary::Abs,
                        _ => Unary::Not,
                    };
                    pending.push(Pending::Unary(operator, start));
                    if sign == "!!" {
                        pending.push(Pending::Unary(operator, Span { start: start.start + 1, ..start }));
                    }
                    continue;
                }
                Token::Fixed("(") => {
                    pending.push(Pending::Bracket(self.bump()));
                    brackets += 1;
                    continue;
                }
                Token::Fixed(word @ ("min" | "max")) => {
                    self.bump();
                    let operator = if word == "min" { Binary::Min } else { Binary::Max };
                    let open = self.expect("(", "write `min(a, b)` or `a min b`")?;
                    pending.push(Pending::First(operator, start, open));
                    brackets += 1;
                    continue;
                }
                Token::Number(value) => {
                    self.bump();
                    ExprKind::Number(value)
                }
                Token::Name(_) | Token::Fixed("#") => ExprKind::Tag(self.tag_name()?),
                Token::Fixed("<") => {
                    let help = "in expressions tags stand without brackets: `T`, `#T`";
                    return Err(self.expected("a number or the name of a tag", help));
                }
                _ => return Err(self.expected("a number or the name of a tag", "")),
            };
            let mut operand = (Expr { kind, span: self.since(start) }, 1);
            loop {
                if let Some((operator, tightness)) = infix(self.token)
                    && (brackets > 0 || !self.at(">") || self.is_operand_behind())
                {
                    operand = self.reduce(&mut pending, operand, tightness)?;
                    self.bump();
                    pending.push(Pending::Binary(operator, tightness, operand));
                    break;
                }
                if self.at("?") {
                    operand = self.reduce(&mut pending, operand, TERNARY + 1)?;
                    self.bump();
                    pending.push(Pending::Question(operand));
                    break;
                }
                // All else ends what is open.
                operand = self.reduce(&mut pending, operand, TERNARY)?;
                match pending.pop() {
                    None => return self.whole(operand.0),
                    Some(Pending::Question(condition)) => {
                        if !self.at(":") {
                            let question = condition.0.span;
                            let error = self.expected_here("`:`").and(question, "the condition of this `?`");
                            return Err(self.fail(error.help("write `a ? b : c`")));
                        }
                        self.bump();
                        pending.push(Pending::Colon(condition, operand));
                        break;
                    }
                    Some(Pending::First(operator, start, open)) => {
                        if !self.at(",") {
                            let error = self.expected_here("`,`").and(open, "this `(` is open");
                            return Err(self.fail(error.help("write `min(a, b)` or `a min b`")));
                        }
                        self.bump();
                        pending.push(Pending::Second(operator, start, open, operand));
                        break;
                    }
                    Some(Pending::Bracket(open)) => {
                        self.expect_closing(")", open)?;
                        operand.0.span = self.since(open);
                        brackets -= 1;
                    }
                    Some(Pending::Second(operator, start, open, first)) => {
                        self.expect_closing(")", open)?;
                        let depth = first.1.max(operand.1) + 1;
                        let kind = ExprKind::Binary(operator, Box::new(first.0), Box::new(operand.0));
                        operand = self.bounded((Expr { kind, span: self.since(start) }, depth))?;
                        brackets -= 1;
                    }
                    Some(Pending::Unary(..) | Pending::Binary(..) | Pending::Colon(..)) => {
                        unreachable!("these bind at least as tight as `TERNARY`, and so are reduced")
                    }
                }
            }
        }
    }

    /// Gives the operand to all that wait for it and bind at least as tight.
    fn reduce(&mut self, pending: &mut Vec<Pending>, operand: Operand, tightness: u8) -> Parsed<Operand> {
        let mut operand = operand;
        while let Some(top) = pending.pop_if(|top| top.tightness().is_some_and(|t| t >= tightness)) {
            let (right, depth) = operand;
            let end = right.span;
            let right = Box::new(right);
            let (kind, start, depth) = match top {
                Pending::Unary(operator, start) => (ExprKind::Unary(operator, right), start, depth),
                Pending::Binary(operator, _, (left, other)) => {
                    let start = left.span;
                    (ExprKind::Binary(operator, Box::new(left), right), start, depth.max(other))
                }
                Pending::Colon((condition, a), (then, b)) => {
                    let start = condition.span;
                    let [condition, then] = [condition, then].map(Box::new);
                    (ExprKind::Conditional(condition, then, right), start, depth.max(a).max(b))
                }
                _ => unreachable!("the others do not bind"),
            };
            operand = self.bounded((Expr { kind, span: start.to(end) }, depth + 1))?;
        }
        Ok(operand)
    }

    fn bounded(&mut self, operand: Operand) -> Parsed<Operand> {
        if operand.1 > NESTING_MAX { Err(self.too_deep_expression(operand.0.span)) } else { Ok(operand) }
    }

    /// The expression, if what stands behind it may stand there.
    fn whole(&mut self, expression: Expr) -> Parsed<Expr> {
        if self.at("=") {
            let error = Diagnostic::error("`=` compares nothing", self.span, "expected an operator or `>`");
            return Err(self.fail(error.help("write `==`")));
        }
        Ok(expression)
    }

    /// Whether the `>` here compares: only an operator can have an operand behind it.
    fn is_operand_behind(&self) -> bool {
        let mut at = self.span.end;
        loop {
            let next = scan(self.source, at);
            at = next.span.end;
            match next.token {
                Token::Name(_) | Token::Number(_) | Token::Fixed("#") => return true,
                Token::Fixed("(" | "-" | "!" | "!!" | "abs" | "min" | "max") => {}
                _ => return false,
            }
        }
    }

    fn too_deep_expression(&mut self, span: Span) -> Failed {
        let error = Diagnostic::error("the expression is nested too deeply", span, "here");
        self.fail(error.help(format!("nest at most {NESTING_MAX} operators and brackets")))
    }
}
