//! Parser of expressions over tags, by operator precedence with an explicit stack.

use super::NESTING_MAX;
use super::lexer::{Token, scan};
use super::parser::{Failed, Parsed, Parser};
use crate::ast::{Expr, ExprKind, Span};
use crate::diagnostic::Diagnostic;
use crate::expression::{Binary, CONDITIONAL, UNARY, Unary};

/// An expression and its depth.
type Operand = (Expr, usize);

/// An operator or a bracket that waits for an operand on its right.
enum Pending {
    Unary(Unary, Span),
    /// `a +`
    Binary(Binary, Operand),
    /// `a ?`
    Question(Operand),
    /// `a ? b :`
    Colon(Operand, Operand),
    /// `(`
    Bracket(Span),
    /// `min(`: the operator, the word and the bracket
    First(Binary, Span, Span),
    /// `min(a,`
    Second(Binary, Span, Span, Operand),
}

/// Operators and brackets that wait for an operand.
#[derive(Default)]
struct Stack {
    pending: Vec<Pending>,
    /// Brackets among them.
    brackets: usize,
}

const MIN_FORM: &str = "write `min(a, b)` or `a min b`";

impl Pending {
    fn precedence(&self) -> Option<u8> {
        match self {
            Pending::Unary(..) => Some(UNARY),
            Pending::Binary(operator, _) => Some(operator.precedence()),
            Pending::Colon(..) => Some(CONDITIONAL),
            _ => None,
        }
    }
}

impl Parser<'_> {
    /// Parses an expression up to the first token that cannot belong to it, such as a closing `>`.
    pub(super) fn expression(&mut self) -> Parsed<Expr> {
        let mut stack = Stack::default();
        loop {
            let operand = self.operand(&mut stack)?;
            if let Some(whole) = self.operator(&mut stack, operand)? {
                return self.whole(whole);
            }
        }
    }

    /// Parses prefix operators and opening brackets, and then a number or a tag.
    fn operand(&mut self, stack: &mut Stack) -> Parsed<Operand> {
        loop {
            if stack.pending.len() > NESTING_MAX {
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
                    stack.pending.push(Pending::Unary(operator, start));
                    if sign == "!!" {
                        let second = Span { start: start.start + 1, ..start };
                        stack.pending.push(Pending::Unary(operator, second));
                    }
                    continue;
                }
                Token::Fixed("(") => {
                    stack.pending.push(Pending::Bracket(self.bump()));
                    stack.brackets += 1;
                    continue;
                }
                Token::Fixed(word @ ("min" | "max")) => {
                    self.bump();
                    let operator = if word == "min" { Binary::Min } else { Binary::Max };
                    let open = self.expect("(", MIN_FORM)?;
                    stack.pending.push(Pending::First(operator, start, open));
                    stack.brackets += 1;
                    continue;
                }
                Token::Number(value) => {
                    self.bump();
                    ExprKind::Number(value)
                }
                Token::Name(_) | Token::Fixed("#") => ExprKind::Tag(self.tag_name()?),
                Token::Fixed("<") => {
                    let help = "in an expression, write a tag without brackets: `T`, `#T`";
                    return Err(self.expected("a number or the name of a tag", help));
                }
                _ => return Err(self.expected("a number or the name of a tag", "")),
            };
            return Ok((Expr { kind, span: self.since(start) }, 1));
        }
    }

    /// Parses closing brackets and one infix operator after an operand. Returns the whole
    /// expression if no operator follows.
    fn operator(&mut self, stack: &mut Stack, mut operand: Operand) -> Parsed<Option<Expr>> {
        loop {
            if let Token::Fixed(sign) = self.token
                && let Some(operator) = Binary::of_sign(sign)
                && (stack.brackets > 0 || !self.at(">") || self.is_operand_next())
            {
                operand = self.reduce(stack, operand, operator.precedence())?;
                self.bump();
                stack.pending.push(Pending::Binary(operator, operand));
                return Ok(None);
            }
            if self.at("?") {
                operand = self.reduce(stack, operand, CONDITIONAL + 1)?;
                self.bump();
                stack.pending.push(Pending::Question(operand));
                return Ok(None);
            }
            // Any other token ends the innermost bracket, `?` or the expression.
            operand = self.reduce(stack, operand, CONDITIONAL)?;
            match stack.pending.pop() {
                None => return Ok(Some(operand.0)),
                Some(Pending::Question(condition)) => {
                    if !self.at(":") {
                        let question = condition.0.span;
                        let error =
                            self.expected_here("`:`").and(question, "condition of this `?`");
                        return Err(self.fail(error.help("write `a ? b : c`")));
                    }
                    self.bump();
                    stack.pending.push(Pending::Colon(condition, operand));
                    return Ok(None);
                }
                Some(Pending::First(operator, start, open)) => {
                    if !self.at(",") {
                        let error = self.expected_here("`,`").and(open, "unclosed `(`");
                        return Err(self.fail(error.help(MIN_FORM)));
                    }
                    self.bump();
                    stack.pending.push(Pending::Second(operator, start, open, operand));
                    return Ok(None);
                }
                Some(Pending::Bracket(open)) => {
                    self.expect_closing(")", open)?;
                    operand.0.span = self.since(open);
                    stack.brackets -= 1;
                }
                Some(Pending::Second(operator, start, open, first)) => {
                    self.expect_closing(")", open)?;
                    let depth = first.1.max(operand.1) + 1;
                    let kind = ExprKind::Binary(operator, Box::new(first.0), Box::new(operand.0));
                    operand = self.bounded((Expr { kind, span: self.since(start) }, depth))?;
                    stack.brackets -= 1;
                }
                Some(Pending::Unary(..) | Pending::Binary(..) | Pending::Colon(..)) => {
                    unreachable!("`reduce` has taken every operator of at least this precedence")
                }
            }
        }
    }

    /// Applies all waiting operators of at least this precedence to the operand.
    fn reduce(
        &mut self,
        stack: &mut Stack,
        mut operand: Operand,
        precedence: u8,
    ) -> Parsed<Operand> {
        let binds = |top: &mut Pending| top.precedence().is_some_and(|p| p >= precedence);
        while let Some(top) = stack.pending.pop_if(binds) {
            let (right, depth) = operand;
            let end = right.span;
            let right = Box::new(right);
            let (kind, start, depth) = match top {
                Pending::Unary(operator, start) => (ExprKind::Unary(operator, right), start, depth),
                Pending::Binary(operator, (left, other)) => {
                    let start = left.span;
                    (ExprKind::Binary(operator, Box::new(left), right), start, depth.max(other))
                }
                Pending::Colon((condition, a), (then, b)) => {
                    let start = condition.span;
                    let [condition, then] = [condition, then].map(Box::new);
                    (ExprKind::Conditional(condition, then, right), start, depth.max(a).max(b))
                }
                _ => unreachable!("brackets have no precedence"),
            };
            operand = self.bounded((Expr { kind, span: start.to(end) }, depth + 1))?;
        }
        Ok(operand)
    }

    fn bounded(&mut self, operand: Operand) -> Parsed<Operand> {
        if operand.1 > NESTING_MAX {
            Err(self.too_deep_expression(operand.0.span))
        } else {
            Ok(operand)
        }
    }

    /// Checks the token after an expression.
    fn whole(&mut self, expression: Expr) -> Parsed<Expr> {
        if self.at("=") {
            let error = Diagnostic::error(
                "`=` is not a comparison",
                self.span,
                "expected an operator or `>`",
            );
            return Err(self.fail(error.help("write `==`")));
        }
        Ok(expression)
    }

    /// Whether an operand follows the current `>`. Only then is the `>` an operator.
    fn is_operand_next(&self) -> bool {
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
        let error = Diagnostic::error("the expression is nested too deeply", span, "too deep");
        self.fail(error.help(format!("nest at most {NESTING_MAX} operators and brackets")))
    }
}
