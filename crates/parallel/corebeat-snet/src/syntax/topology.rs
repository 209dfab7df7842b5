//! Parser of topologies, with an explicit stack.

use super::NESTING_MAX;
use super::lexer::Token;
use super::parser::{Failed, Parsed, Parser};
use crate::ast::{Entry, Pattern, Span, Topology, TopologyKind};
use crate::diagnostic::Diagnostic;

/// Operands of one infix operator.
#[derive(Default)]
struct Chain {
    items: Vec<Topology>,
    /// Depth of the deepest operand.
    depth: usize,
}

impl Chain {
    fn push(&mut self, (topology, depth): (Topology, usize)) {
        self.items.push(topology);
        self.depth = self.depth.max(depth);
    }

    /// Joins all operands into one topology, which leaves the chain empty.
    fn join(&mut self, kind: impl FnOnce(Vec<Topology>) -> TopologyKind) -> (Topology, usize) {
        let depth = std::mem::take(&mut self.depth);
        let mut items = std::mem::take(&mut self.items);
        if let [_] = items[..] {
            return (items.remove(0), depth);
        }
        let span = items[0].span.to(items[items.len() - 1].span);
        (Topology { kind: kind(items), span }, depth + 1)
    }
}

/// Parsed content of a bracket: one chain for each infix operator. Each chain is an operand of the
/// chain above it.
#[derive(Default)]
struct Level {
    /// The bracket. `None` for the outermost level.
    open: Option<Span>,
    /// `a | b`
    branches: Chain,
    /// `a || b`
    ordered: Chain,
    /// `a .. b`
    steps: Chain,
}

impl Level {
    fn end_steps(&mut self) {
        let joined = self.steps.join(TopologyKind::Serial);
        self.ordered.push(joined);
    }

    fn end_ordered(&mut self) {
        self.end_steps();
        let joined =
            self.ordered.join(|branches| TopologyKind::Parallel { deterministic: true, branches });
        self.branches.push(joined);
    }

    fn end(&mut self) -> (Topology, usize) {
        self.end_ordered();
        self.branches.join(|branches| TopologyKind::Parallel { deterministic: false, branches })
    }
}

impl Parser<'_> {
    /// Parses a topology up to the first token that cannot belong to it.
    pub(super) fn topology(&mut self) -> Parsed<Topology> {
        let mut outer: Vec<Level> = Vec::new();
        let mut level = Level::default();
        loop {
            if self.at("(") {
                if outer.len() == NESTING_MAX {
                    return Err(self.too_deep(self.span));
                }
                let open = Some(self.bump());
                outer.push(std::mem::replace(&mut level, Level { open, ..Level::default() }));
                continue;
            }
            let mut operand = (self.atom()?, 1);
            loop {
                operand = self.postfixes(operand)?;
                level.steps.push(operand);
                match self.token {
                    Token::Fixed("..") => {}
                    Token::Fixed("||") => level.end_steps(),
                    Token::Fixed("|") => level.end_ordered(),
                    _ => {
                        let (mut topology, depth) = level.end();
                        if depth > NESTING_MAX {
                            return Err(self.too_deep(self.span));
                        }
                        let (Some(open), Some(parent)) = (level.open, outer.pop()) else {
                            return Ok(topology);
                        };
                        self.expect_closing(")", open)?;
                        topology.span = self.since(open);
                        (operand, level) = ((topology, depth), parent);
                        continue;
                    }
                }
                self.bump();
                break;
            }
        }
    }

    /// Parses an operand without its operators.
    fn atom(&mut self) -> Parsed<Topology> {
        let start = self.span;
        let kind = match self.token {
            Token::Name(_) => TopologyKind::Name(self.name("a box or a net")?),
            Token::Fixed("[|") => {
                self.bump();
                TopologyKind::Sync(self.synchrocell(start)?)
            }
            Token::Fixed("[") => {
                self.bump();
                if self.at("|") {
                    self.report(
                        Diagnostic::error(
                            "a synchrocell begins with `[|`, without a space",
                            start.to(self.span),
                            "expected `[|`",
                        )
                        .help("remove the space"),
                    );
                    self.bump();
                    TopologyKind::Sync(self.synchrocell(start)?)
                } else if self.take("]") {
                    TopologyKind::Identity
                } else {
                    TopologyKind::Filter(self.filter(start)?)
                }
            }
            _ => {
                let help = "write a name, a filter `[{A} -> {B}]`, a synchrocell \
                            `[|{A}, {B}|]`, or `(...)`";
                return Err(self.expected("a box or a net", help));
            }
        };
        Ok(Topology { kind, span: self.since(start) })
    }

    /// Parses a synchrocell after its `[|`.
    fn synchrocell(&mut self, open: Span) -> Parsed<Vec<Pattern>> {
        let mut patterns = vec![self.pattern()?];
        while self.take(",") {
            patterns.push(self.pattern()?);
        }
        if self.at_any(&["|", "]"]) {
            let mut wrong = self.bump();
            if self.source[wrong.start..].starts_with('|') && self.at("]") {
                wrong = wrong.to(self.bump());
            }
            self.report(
                Diagnostic::error("a synchrocell ends with `|]`", wrong, "expected `|]`")
                    .and(open, "begins here")
                    .help("write `|]`, without a space"),
            );
        } else {
            self.expect_closing("|]", open)?;
        }
        if patterns.len() < 2 {
            let span = self.since(open);
            self.report(
                Diagnostic::error(
                    "a synchrocell needs at least two patterns",
                    span,
                    "has one pattern",
                )
                .help("write `[|{A}, {B}|]`"),
            );
        }
        Ok(patterns)
    }

    /// Parses the postfix operators of an operand.
    fn postfixes(
        &mut self,
        (mut topology, mut depth): (Topology, usize),
    ) -> Parsed<(Topology, usize)> {
        while let Token::Fixed(sign @ ("*" | "**" | "!" | "!!" | "\\" | "@")) = self.token {
            depth += 1;
            let start = topology.span;
            let sign_span = self.bump();
            if depth > NESTING_MAX {
                return Err(self.too_deep(sign_span));
            }
            let operand = Box::new(topology);
            let kind = match sign {
                "*" | "**" => TopologyKind::Star {
                    deterministic: sign == "**",
                    operand,
                    exits: self.patterns()?,
                },
                "\\" => TopologyKind::Feedback { operand, patterns: self.patterns()? },
                "!" | "!!" => {
                    let placed = self.take("@");
                    TopologyKind::Split {
                        deterministic: sign == "!!",
                        placed,
                        operand,
                        tag: self.split_tag()?,
                    }
                }
                _ => TopologyKind::Place { operand, place: self.place()? },
            };
            topology = Topology { kind, span: self.since(start) };
        }
        Ok((topology, depth))
    }

    /// `{A} if <T>, {B}`, optionally in parentheses.
    fn patterns(&mut self) -> Parsed<Vec<Pattern>> {
        if self.at("(") {
            let open = self.bump();
            if self.at(")") {
                return Err(self.expected("a pattern", "write `{A}`"));
            }
            return self.list(open, ")", Parser::pattern);
        }
        let mut patterns = vec![self.pattern()?];
        while self.take(",") {
            patterns.push(self.pattern()?);
        }
        Ok(patterns)
    }

    /// `{A} if <T>`
    fn pattern(&mut self) -> Parsed<Pattern> {
        let start = self.span;
        if !self.at("{") {
            return Err(self.expected("a pattern", "write `{A, <T>}`"));
        }
        let variant = self.variant()?;
        let guard = if self.take("if") { Some(self.condition()?) } else { None };
        Ok(Pattern { variant, guard, span: self.since(start) })
    }

    /// `<T>`, optionally in parentheses.
    fn split_tag(&mut self) -> Parsed<Entry> {
        let open = self.at("(").then(|| self.bump());
        let tag = self.tag()?;
        if let Some(open) = open {
            self.expect_closing(")", open)?;
        }
        Ok(tag)
    }

    fn place(&mut self) -> Parsed<u32> {
        match self.token {
            Token::Number(place) => {
                self.bump();
                Ok(place.unsigned_abs())
            }
            _ => Err(self.expected("the number of a place", "write `@ 1`")),
        }
    }

    fn too_deep(&mut self, span: Span) -> Failed {
        let error = Diagnostic::error("the topology is nested too deeply", span, "too deep");
        self.fail(error.help(format!(
            "nest at most {NESTING_MAX} levels; define inner parts as separate nets"
        )))
    }
}
