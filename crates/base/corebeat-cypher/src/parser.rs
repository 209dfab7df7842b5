//! Parser of the part of openCypher that describes patterns and changes.

use crate::lexer::{Token, tokens};
use crate::syntax::{
    Aggregate, At, Change, EdgePattern, Expression, Function, Kind, Literal, Match, NodePattern,
    Operator, Pattern, Return, Statement,
};

/// A mistake with its position: what is wrong, and the remedy.
pub type Mistake = (At, String);
type Parsed<T> = Result<T, Mistake>;

/// Deepest nesting of expressions: each level takes stack memory of the parser.
const NESTING_MAX: u32 = 64;
/// Level of NOT among the operators.
const NOT_LEVEL: u8 = 3;
/// Largest number of edges of a path of variable length.
pub const PATH_MAX: u32 = 1 << 16;
/// Clauses of openCypher that are outside the supported part.
const UNSUPPORTED: [&str; 7] = ["WITH", "UNWIND", "MERGE", "CALL", "UNION", "FOREACH", "LOAD"];

/// Parses statements that semicolons separate.
///
/// # Errors
/// The first mistake.
pub fn statements(text: &str) -> Parsed<Vec<Statement>> {
    let mut parser = Parser { text, tokens: tokens(text)?, next: 0, depth: 0 };
    let mut statements = Vec::new();
    while parser.peek() != &Token::End {
        if parser.accept(";") {
            continue;
        }
        statements.push(parser.statement()?);
        if parser.peek() != &Token::End && !parser.accept(";") {
            return Err(parser.expected("';' or a clause such as MATCH, WHERE, SET or RETURN"));
        }
    }
    Ok(statements)
}

/// Parses one expression.
///
/// # Errors
/// The first mistake.
pub fn expression(text: &str) -> Parsed<Expression> {
    let mut parser = Parser { text, tokens: tokens(text)?, next: 0, depth: 0 };
    let expression = parser.expression()?;
    parser.end().map(|()| expression)
}

/// Parses patterns that commas separate, with an optional condition.
///
/// # Errors
/// The first mistake.
pub fn patterns(text: &str) -> Parsed<Match> {
    let mut parser = Parser { text, tokens: tokens(text)?, next: 0, depth: 0 };
    let found = parser.matched(false)?;
    parser.end().map(|()| found)
}

/// Parses what follows RETURN.
///
/// # Errors
/// The first mistake.
pub fn results(text: &str) -> Parsed<Return> {
    let mut parser = Parser { text, tokens: tokens(text)?, next: 0, depth: 0 };
    let returns = parser.returns()?;
    parser.end().map(|()| returns)
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(At, Token)>,
    next: usize,
    depth: u32,
}

/// Tokens.
impl Parser<'_> {
    fn peek(&self) -> &Token {
        &self.tokens[self.next].1
    }

    fn at(&self) -> At {
        self.tokens[self.next].0
    }

    fn advance(&mut self) {
        self.next = (self.next + 1).min(self.tokens.len() - 1);
    }

    fn is(&self, symbol: &str) -> bool {
        matches!(self.peek(), Token::Symbol(found) if *found == symbol)
    }

    fn accept(&mut self, symbol: &str) -> bool {
        let is = self.is(symbol);
        if is {
            self.advance();
        }
        is
    }

    fn require(&mut self, symbol: &str) -> Parsed<()> {
        if self.accept(symbol) { Ok(()) } else { Err(self.expected(&format!("'{symbol}'"))) }
    }

    fn is_keyword(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Word(found, false) if found.eq_ignore_ascii_case(word))
    }

    fn keyword(&mut self, word: &str) -> bool {
        let is = self.is_keyword(word);
        if is {
            self.advance();
        }
        is
    }

    fn require_keyword(&mut self, word: &str) -> Parsed<()> {
        if self.keyword(word) { Ok(()) } else { Err(self.expected(word)) }
    }

    fn name(&mut self, what: &str) -> Parsed<(At, String)> {
        let at = self.at();
        match self.peek().clone() {
            Token::Word(name, _) => {
                self.advance();
                Ok((at, name))
            }
            _ => Err(self.expected(what)),
        }
    }

    fn end(&self) -> Parsed<()> {
        if self.peek() == &Token::End { Ok(()) } else { Err(self.expected("the end")) }
    }

    fn expected(&self, what: &str) -> Mistake {
        let found = match self.peek() {
            Token::End => "the end of the text".to_owned(),
            Token::Symbol(symbol) => format!("'{symbol}'"),
            Token::Word(word, _) => format!("'{word}'"),
            Token::Int(_) | Token::Float(_) | Token::Text(_) => {
                let end = self.tokens.get(self.next + 1).map_or(self.text.len(), |next| next.0);
                self.text[self.at()..end].trim().to_owned()
            }
        };
        (self.at(), format!("expected {what}, found {found}"))
    }
}

/// Clauses.
impl Parser<'_> {
    fn statement(&mut self) -> Parsed<Statement> {
        let mut statement = Statement { at: self.at(), ..Statement::default() };
        loop {
            let at = self.at();
            if statement.returns.is_some() {
                return Ok(statement);
            } else if self.keyword("OPTIONAL") {
                self.require_keyword("MATCH")?;
                self.require_no_change(at, &statement)?;
                statement.matches.push(self.matched(true)?);
            } else if self.keyword("MATCH") {
                self.require_no_change(at, &statement)?;
                statement.matches.push(self.matched(false)?);
            } else if self.keyword("CREATE") {
                statement.changes.push((at, Change::Create(self.pattern()?)));
            } else if self.keyword("SET") {
                self.set(&mut statement.changes)?;
            } else if self.keyword("REMOVE") {
                self.remove(&mut statement.changes)?;
            } else if self.is_keyword("DELETE") || self.is_keyword("DETACH") {
                let detach = self.keyword("DETACH");
                self.require_keyword("DELETE")?;
                loop {
                    let (at, name) = self.name("the name of a node or an edge")?;
                    statement.changes.push((at, Change::Delete { name, detach }));
                    if !self.accept(",") {
                        break;
                    }
                }
            } else if self.keyword("RETURN") {
                statement.returns = Some(self.returns()?);
            } else if let Some(clause) = UNSUPPORTED.iter().find(|clause| self.is_keyword(clause)) {
                return Err((
                    at,
                    format!("{clause} is not supported; write one rule for each step"),
                ));
            } else if statement.matches.is_empty() && statement.changes.is_empty() {
                return Err(self.expected("MATCH or CREATE"));
            } else {
                return Ok(statement);
            }
        }
    }

    fn require_no_change(&self, at: At, statement: &Statement) -> Parsed<()> {
        match statement.changes.is_empty() {
            true => Ok(()),
            false => Err((at, "a rule matches before it changes; move MATCH to the front".into())),
        }
    }

    fn matched(&mut self, optional: bool) -> Parsed<Match> {
        let pattern = self.pattern()?;
        let mut conditions = Vec::new();
        if self.keyword("WHERE") {
            conditions.push(self.expression()?);
        }
        Ok(Match { optional, pattern, conditions })
    }

    fn set(&mut self, changes: &mut Vec<(At, Change)>) -> Parsed<()> {
        loop {
            let (at, name) = self.name("the name of a node or an edge")?;
            if self.accept(":") {
                let (_, of) = self.name("a node type")?;
                changes.push((at, Change::Retype { name, of }));
            } else {
                self.require(".")?;
                let (_, key) = self.name("an attribute")?;
                self.require("=")?;
                changes.push((at, Change::Set { name, key, value: self.expression()? }));
            }
            if !self.accept(",") {
                return Ok(());
            }
        }
    }

    fn remove(&mut self, changes: &mut Vec<(At, Change)>) -> Parsed<()> {
        loop {
            let (at, name) = self.name("the name of a node or an edge")?;
            self.require(".")?;
            let (_, key) = self.name("an attribute")?;
            let value = Expression { at, kind: Kind::Literal(Literal::Null) };
            changes.push((at, Change::Set { name, key, value }));
            if !self.accept(",") {
                return Ok(());
            }
        }
    }

    fn returns(&mut self) -> Parsed<Return> {
        let distinct = self.keyword("DISTINCT");
        let mut items = Vec::new();
        loop {
            let start = self.at();
            let expression = self.expression()?;
            let text = self.text[start..self.at()].trim().to_owned();
            let name = if self.keyword("AS") { self.name("a name")?.1 } else { text };
            items.push((expression, name));
            if !self.accept(",") {
                break;
            }
        }
        let mut order = Vec::new();
        if self.keyword("ORDER") {
            self.require_keyword("BY")?;
            loop {
                let expression = self.expression()?;
                let descending = self.keyword("DESC") || self.keyword("DESCENDING");
                if !descending && !self.keyword("ASC") {
                    self.keyword("ASCENDING");
                }
                order.push((expression, descending));
                if !self.accept(",") {
                    break;
                }
            }
        }
        let skip = if self.keyword("SKIP") { self.count()? } else { 0 };
        let limit = if self.keyword("LIMIT") { Some(self.count()?) } else { None };
        Ok(Return { distinct, items, order, skip, limit })
    }

    fn count(&mut self) -> Parsed<u64> {
        match *self.peek() {
            Token::Int(number) => {
                self.advance();
                Ok(number as u64)
            }
            _ => Err(self.expected("a whole number")),
        }
    }
}

/// Patterns.
impl Parser<'_> {
    fn pattern(&mut self) -> Parsed<Pattern> {
        let mut pattern = Pattern::default();
        loop {
            self.path(&mut pattern)?;
            if !self.accept(",") {
                return Ok(pattern);
            }
        }
    }

    /// A node, and edges with further nodes.
    fn path(&mut self, pattern: &mut Pattern) -> Parsed<()> {
        let mut last = self.node(pattern)?;
        while self.is("-") || self.is("<") {
            let at = self.at();
            let left = self.accept("<");
            self.require("-")?;
            let mut edge = EdgePattern {
                at,
                name: None,
                types: Vec::new(),
                values: Vec::new(),
                from: last,
                to: last,
                undirected: false,
                length: None,
            };
            if self.accept("[") {
                self.edge(&mut edge)?;
                self.require("]")?;
            }
            self.require("-")?;
            let right = self.accept(">");
            let node = self.node(pattern)?;
            edge.undirected = left == right;
            (edge.from, edge.to) = if left && !right { (node, last) } else { (last, node) };
            pattern.edges.push(edge);
            last = node;
        }
        Ok(())
    }

    fn node(&mut self, pattern: &mut Pattern) -> Parsed<usize> {
        let at = self.at();
        self.require("(")?;
        let mut node = NodePattern { at, name: None, types: Vec::new(), values: Vec::new() };
        if let Token::Word(..) = self.peek() {
            node.name = Some(self.name("a name")?.1);
        }
        while self.accept(":") {
            let mut types = vec![self.name("a node type")?];
            while self.accept("|") {
                types.push(self.name("a node type")?);
            }
            node.types.push(types);
        }
        node.values = self.values()?;
        self.require(")")?;
        pattern.nodes.push(node);
        Ok(pattern.nodes.len() - 1)
    }

    fn edge(&mut self, edge: &mut EdgePattern) -> Parsed<()> {
        if let Token::Word(..) = self.peek() {
            edge.name = Some(self.name("a name")?.1);
        }
        if self.accept(":") {
            edge.types.push(self.name("an edge type")?);
            while self.accept("|") {
                self.accept(":");
                edge.types.push(self.name("an edge type")?);
            }
        }
        let at = self.at();
        if self.accept("*") {
            let least = if let Token::Int(_) = self.peek() { Some(self.count()?) } else { None };
            let most = match self.accept("..") {
                true if matches!(self.peek(), Token::Int(_)) => Some(self.count()?),
                true => None,
                false => least,
            };
            let (least, most) = (least.unwrap_or(1), most.unwrap_or(PATH_MAX.into()));
            if most > PATH_MAX.into() || least > most {
                return Err((at, format!("a path has from 0 to {PATH_MAX} edges")));
            }
            edge.length = Some((least as u32, most as u32));
        }
        edge.values = self.values()?;
        Ok(())
    }

    fn values(&mut self) -> Parsed<Vec<(At, String, Expression)>> {
        let mut values = Vec::new();
        if self.accept("{") && !self.accept("}") {
            loop {
                let (at, key) = self.name("an attribute")?;
                self.require(":")?;
                values.push((at, key, self.expression()?));
                if !self.accept(",") {
                    break;
                }
            }
            self.require("}")?;
        }
        Ok(values)
    }
}

/// Expressions.
impl Parser<'_> {
    fn expression(&mut self) -> Parsed<Expression> {
        self.nested(|parser| parser.binary(0))
    }

    fn nested(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Parsed<Expression>,
    ) -> Parsed<Expression> {
        if self.depth >= NESTING_MAX {
            return Err((self.at(), too_deep()));
        }
        let depth = self.depth;
        self.depth += 1;
        let parsed = parse(self);
        self.depth = depth;
        parsed
    }

    /// The binary operator at this position, and its level: a higher level binds more closely.
    fn operator(&self) -> Option<(Operator, u8, usize)> {
        use Operator::*;
        let words = |first: &str, second: &str| {
            let is_second = matches!(self.tokens.get(self.next + 1), Some((_, Token::Word(found, _)))
                if found.eq_ignore_ascii_case(second));
            self.is_keyword(first) && is_second
        };
        let symbol = match self.peek() {
            Token::Symbol(symbol) => *symbol,
            Token::Word(_, false) if self.is_keyword("OR") => return Some((Or, 0, 1)),
            Token::Word(_, false) if self.is_keyword("XOR") => return Some((Xor, 1, 1)),
            Token::Word(_, false) if self.is_keyword("AND") => return Some((And, 2, 1)),
            Token::Word(_, false) if self.is_keyword("IN") => return Some((In, 4, 1)),
            Token::Word(_, false) if self.is_keyword("CONTAINS") => return Some((Contains, 4, 1)),
            _ if words("STARTS", "WITH") => return Some((StartsWith, 4, 2)),
            _ if words("ENDS", "WITH") => return Some((EndsWith, 4, 2)),
            _ => return None,
        };
        let (operator, level) = match symbol {
            "=" => (Equal, 4),
            "<>" => (Unequal, 4),
            "<" => (Less, 4),
            "<=" => (LessEqual, 4),
            ">" => (Greater, 4),
            ">=" => (GreaterEqual, 4),
            "+" => (Add, 5),
            "-" => (Subtract, 5),
            "*" => (Multiply, 6),
            "/" => (Divide, 6),
            "%" => (Remainder, 6),
            _ => return None,
        };
        Some((operator, level, 1))
    }

    /// Parses operators that bind at least as closely as `least`.
    fn binary(&mut self, least: u8) -> Parsed<Expression> {
        let (start, depth) = (self.at(), self.depth);
        let mut left = match self.keyword("NOT") {
            true => {
                let inner = self.nested(|parser| parser.binary(NOT_LEVEL + 1))?;
                Expression { at: start, kind: Kind::Not(Box::new(inner)) }
            }
            false => self.unary()?,
        };
        loop {
            let at = self.at();
            if least <= NOT_LEVEL + 1 && self.keyword("IS") {
                let not = self.keyword("NOT");
                self.require_keyword("NULL")?;
                left = Expression { at, kind: Kind::IsNull(Box::new(left)) };
                if not {
                    left = Expression { at, kind: Kind::Not(Box::new(left)) };
                }
                self.deeper()?;
                continue;
            }
            let found = self.operator().filter(|(_, level, _)| *level >= least);
            let Some((operator, level, words)) = found else {
                self.depth = depth;
                return Ok(left);
            };
            (0..words).for_each(|_| self.advance());
            let right = self.nested(|parser| parser.binary(level + 1))?;
            let kind = Kind::Binary(operator, Box::new(left), Box::new(right));
            left = Expression { at, kind };
            self.deeper()?;
        }
    }

    /// Counts a level of a chain of operators: its tree is as deep as the chain is long.
    fn deeper(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > NESTING_MAX {
            return Err((self.at(), too_deep()));
        }
        Ok(())
    }

    fn unary(&mut self) -> Parsed<Expression> {
        let at = self.at();
        if self.accept("-") {
            let inner = self.nested(Self::unary)?;
            return Ok(Expression { at, kind: Kind::Negate(Box::new(inner)) });
        }
        let kind = match self.peek().clone() {
            Token::Int(number) => self.literal(Literal::Int(number)),
            Token::Float(number) => self.literal(Literal::Float(number)),
            Token::Text(text) => self.literal(Literal::Text(text)),
            Token::Symbol("$") => {
                self.advance();
                Kind::Parameter(self.name("the name of a parameter")?.1)
            }
            Token::Symbol("[") => {
                self.advance();
                Kind::List(self.arguments("]")?)
            }
            Token::Symbol("(") => return self.parenthesis(),
            Token::Word(word, quoted) => self.word(word, quoted)?,
            _ => return Err(self.expected("an expression")),
        };
        Ok(Expression { at, kind })
    }

    fn literal(&mut self, value: Literal) -> Kind {
        self.advance();
        Kind::Literal(value)
    }

    /// Expressions that commas separate, and the closing symbol.
    fn arguments(&mut self, close: &str) -> Parsed<Vec<Expression>> {
        let mut arguments = Vec::new();
        if self.accept(close) {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.expression()?);
            if !self.accept(",") {
                self.require(close)?;
                return Ok(arguments);
            }
        }
    }

    /// A pattern as a condition, or an expression in parentheses.
    fn parenthesis(&mut self) -> Parsed<Expression> {
        let (start, at) = (self.next, self.at());
        let mut pattern = Pattern::default();
        if self.path(&mut pattern).is_ok() && !pattern.edges.is_empty() {
            let inside = Match { optional: false, pattern, conditions: Vec::new() };
            return Ok(Expression { at, kind: Kind::Exists(Box::new(inside)) });
        }
        self.next = start;
        self.require("(")?;
        let inner = self.expression()?;
        self.require(")")?;
        Ok(inner)
    }

    fn word(&mut self, word: String, quoted: bool) -> Parsed<Kind> {
        let at = self.at();
        self.advance();
        let upper = word.to_ascii_uppercase();
        if !quoted {
            match upper.as_str() {
                "TRUE" => return Ok(Kind::Literal(Literal::Bool(true))),
                "FALSE" => return Ok(Kind::Literal(Literal::Bool(false))),
                "NULL" => return Ok(Kind::Literal(Literal::Null)),
                "EXISTS" if self.is("{") || self.is("(") => return self.exists(),
                _ => {}
            }
        }
        if self.accept(".") {
            return Ok(Kind::Property(word, self.name("an attribute")?.1));
        }
        if self.accept(":") {
            return Ok(Kind::HasType(word, self.name("a type")?.1));
        }
        if !self.is("(") {
            return Ok(Kind::Name(word));
        }
        let aggregate = match upper.as_str() {
            "COUNT" => Some(Aggregate::Count),
            "SUM" => Some(Aggregate::Sum),
            "AVG" => Some(Aggregate::Average),
            "MIN" => Some(Aggregate::Least),
            "MAX" => Some(Aggregate::Greatest),
            "COLLECT" => Some(Aggregate::Collect),
            _ => None,
        };
        self.require("(")?;
        if let Some(function) = aggregate {
            let distinct = self.keyword("DISTINCT");
            let is_star = function == Aggregate::Count && self.accept("*");
            let of = if is_star { None } else { Some(Box::new(self.expression()?)) };
            self.require(")")?;
            return Ok(Kind::Aggregate { function, distinct, of });
        }
        let (function, counts) = match upper.as_str() {
            "ID" => (Function::Id, 1..=1),
            "TYPE" => (Function::Type, 1..=1),
            "LABELS" => (Function::Labels, 1..=1),
            "SIZE" => (Function::Size, 1..=1),
            "ABS" => (Function::Abs, 1..=1),
            "COALESCE" => (Function::Coalesce, 1..=usize::MAX),
            _ => {
                let why = "is no function; use id, type, labels, size, abs, coalesce, count, sum, \
                           avg, min, max or collect";
                return Err((at, format!("{word} {why}")));
            }
        };
        let arguments = self.arguments(")")?;
        match counts.contains(&arguments.len()) {
            true => Ok(Kind::Call(function, arguments)),
            false => Err((at, format!("{word} takes {} argument", counts.start()))),
        }
    }

    fn exists(&mut self) -> Parsed<Kind> {
        if self.accept("{") {
            self.keyword("MATCH");
            let inside = self.matched(false)?;
            self.require("}")?;
            return Ok(Kind::Exists(Box::new(inside)));
        }
        self.require("(")?;
        let inner = self.expression()?;
        self.require(")")?;
        match inner.kind {
            Kind::Exists(_) => Ok(inner.kind),
            _ => {
                let at = inner.at;
                let is_null = Expression { at, kind: Kind::IsNull(Box::new(inner)) };
                Ok(Kind::Not(Box::new(is_null)))
            }
        }
    }
}

fn too_deep() -> String {
    format!("an expression has at most {NESTING_MAX} levels; divide the rule, or use IN")
}
