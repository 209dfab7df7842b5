//! Printer of syntax trees.

use corebeat_snet::Kind;
use corebeat_snet::ast::*;
use corebeat_snet::expression::{Binary, Expression, Unary};

/// Operands that get brackets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Brackets {
    /// Every operand that is an operator.
    All,
    /// Operands that need brackets.
    Few,
}

/// Builder of a list of words and signs.
pub(crate) struct Printer {
    brackets: Brackets,
    words: Vec<String>,
}

/// Precedence of operands that are not operators.
const HIGHEST: u8 = 9;

impl Printer {
    pub(crate) fn new(brackets: Brackets) -> Printer {
        Printer { brackets, words: Vec::new() }
    }

    pub(crate) fn module(mut self, module: &Module) -> Vec<String> {
        for definition in &module.definitions {
            self.definition(definition);
        }
        self.words
    }

    fn put(&mut self, words: &str) {
        self.words.extend(words.split_whitespace().map(str::to_owned));
    }

    fn list<T>(&mut self, between: &str, items: &[T], mut each: impl FnMut(&mut Printer, &T)) {
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.put(between);
            }
            each(self, item);
        }
    }

    fn definition(&mut self, definition: &Definition) {
        match definition {
            Definition::Box(f) => {
                self.put(&format!("box {} (", f.name.text));
                if let Some(input) = &f.input {
                    self.put("(");
                    self.list(",", input, |p, input| {
                        p.entry(&input.entry);
                        p.put(if input.passes { "=" } else { "" });
                    });
                    self.put(")");
                }
                self.put("->");
                self.list("|", &f.outputs, |p, output| {
                    p.put("(");
                    p.list(",", output, Printer::entry);
                    p.put(")");
                });
                self.put(")");
                match &f.body {
                    Some(body) => {
                        self.words.push(format!("{{<<<{}|{}>>>}}", body.language.text, body.code));
                    }
                    None => self.put(";"),
                }
            }
            Definition::Net(n) => {
                self.put(&format!("net {}", n.name.text));
                if let Some(signature) = &n.signature {
                    self.put("(");
                    self.list(",", signature, Printer::signature);
                    self.put(")");
                }
                if !n.definitions.is_empty() {
                    self.put("{");
                    self.list("", &n.definitions, Printer::definition);
                    self.put("}");
                }
                self.put("connect");
                self.topology(&n.topology, 0);
                self.put(";");
            }
            Definition::Type { name, value } => {
                self.put(&format!("type {} =", name.text));
                self.types(value);
                self.put(";");
            }
            Definition::Signature { name, value } => {
                self.put(&format!("typesig {} =", name.text));
                self.list(",", value, Printer::signature);
                self.put(";");
            }
            Definition::Metadata(metadata) => {
                let mut text = "<metadata>".to_owned();
                metadata.elements.iter().for_each(|e| element(e, &mut text));
                self.words.push(text + "</metadata>");
            }
        }
    }

    fn entry(&mut self, entry: &Entry) {
        match entry.kind {
            Kind::Field => self.put(&entry.name.text),
            Kind::Tag => self.put(&format!("< {} >", entry.name.text)),
            Kind::BindingTag => self.put(&format!("< # {} >", entry.name.text)),
        }
    }

    fn variant(&mut self, variant: &Variant) {
        self.put("{");
        self.list(",", &variant.entries, Printer::entry);
        self.put("}");
    }

    fn types(&mut self, types: &TypeExpr) {
        self.list("|", types, |p, item| match item {
            TypeItem::Name(name) => p.put(&name.text),
            TypeItem::Variant(variant) => p.variant(variant),
        });
    }

    fn signature(&mut self, item: &SignatureItem) {
        match item {
            SignatureItem::Name(name) => self.put(&name.text),
            SignatureItem::Mapping { input, output, .. } => {
                self.types(input);
                self.put("->");
                match output {
                    OutputType::Type(types) => self.types(types),
                    OutputType::Infer => self.put("..."),
                }
            }
        }
    }

    fn pattern(&mut self, pattern: &Pattern) {
        self.variant(&pattern.variant);
        if let Some(guard) = &pattern.guard {
            self.put("if");
            self.condition(guard);
        }
    }

    fn condition(&mut self, condition: &Expr) {
        self.put("<");
        self.expression(condition, 0);
        self.put(">");
    }

    /// Writes brackets around an operand of lower precedence than `least`, and around every
    /// operator if [`Brackets::All`] is set.
    fn bracketed(&mut self, precedence: u8, least: u8, inside: impl FnOnce(&mut Printer)) {
        let with = precedence < least || self.brackets == Brackets::All && precedence < HIGHEST;
        self.put(if with { "(" } else { "" });
        inside(self);
        self.put(if with { ")" } else { "" });
    }

    fn topology(&mut self, topology: &Topology, least: u8) {
        let precedence = match &topology.kind {
            TopologyKind::Parallel { deterministic: false, .. } => 0,
            TopologyKind::Parallel { deterministic: true, .. } => 1,
            TopologyKind::Serial(_) => 2,
            TopologyKind::Star { .. }
            | TopologyKind::Split { .. }
            | TopologyKind::Feedback { .. }
            | TopologyKind::Place { .. } => 3,
            _ => HIGHEST,
        };
        let twice = |twice: &bool, sign: &str| sign.repeat(1 + usize::from(*twice));
        self.bracketed(precedence, least, |p| match &topology.kind {
            TopologyKind::Name(name) => p.put(&name.text),
            TopologyKind::Identity => p.put("[ ]"),
            TopologyKind::Sync(patterns) => {
                p.put("[|");
                p.list(",", patterns, Printer::pattern);
                p.put("|]");
            }
            TopologyKind::Filter(filter) => {
                p.put("[");
                p.variant(&filter.pattern);
                p.put("->");
                for (condition, action) in &filter.cases {
                    p.put("if");
                    p.condition(condition);
                    p.put("then");
                    p.action(action);
                    p.put("else");
                }
                p.action(&filter.otherwise);
                p.put("]");
            }
            TopologyKind::Serial(steps) => p.list("..", steps, |p, step| p.topology(step, 3)),
            TopologyKind::Parallel { deterministic, branches } => {
                p.list(&twice(deterministic, "|"), branches, |p, branch| {
                    p.topology(branch, precedence + 1)
                });
            }
            TopologyKind::Star { deterministic, operand, exits } => {
                p.topology(operand, precedence);
                p.put(&twice(deterministic, "*"));
                p.list(",", exits, Printer::pattern);
            }
            TopologyKind::Split { deterministic, placed, operand, tag } => {
                p.topology(operand, precedence);
                p.put(&twice(deterministic, "!"));
                p.put(if *placed { "@" } else { "" });
                p.entry(tag);
            }
            TopologyKind::Feedback { operand, patterns } => {
                p.topology(operand, precedence);
                p.put("\\");
                p.list(",", patterns, Printer::pattern);
            }
            TopologyKind::Place { operand, place } => {
                p.topology(operand, precedence);
                p.put(&format!("@ {place}"));
            }
        });
    }

    fn action(&mut self, action: &Action) {
        self.list(";", action, |p, output| {
            p.put("{");
            p.list(",", &output.entries, |p, entry| match entry {
                OutputEntry::Field { name, from: None } => p.put(&name.text),
                OutputEntry::Field { name, from: Some(from) } => {
                    p.put(&format!("{} = {}", name.text, from.text))
                }
                OutputEntry::Tag { entry, value } => {
                    p.put(if entry.kind == Kind::BindingTag { "< #" } else { "<" });
                    p.put(&entry.name.text);
                    if let Some(value) = value {
                        p.put("=");
                        p.expression(value, 0);
                    }
                    p.put(">");
                }
            });
            p.put("}");
        });
    }

    fn expression(&mut self, expression: &Expr, least: u8) {
        let precedence = match &expression.kind {
            ExprKind::Number(_) | ExprKind::Tag(_) => HIGHEST,
            ExprKind::Unary(..) => 8,
            ExprKind::Binary(operator, ..) => binary(*operator).1,
            ExprKind::Conditional(..) => 0,
        };
        self.bracketed(precedence, least, |p| match &expression.kind {
            ExprKind::Number(n) => p.put(&n.to_string()),
            ExprKind::Tag(entry) => {
                p.put(if entry.kind == Kind::BindingTag { "#" } else { "" });
                p.put(&entry.name.text);
            }
            ExprKind::Unary(operator, a) => {
                p.put(match operator {
                    Unary::Minus => "-",
                    Unary::Not => "!",
                    Unary::Abs => "abs",
                });
                p.expression(a, 8);
            }
            ExprKind::Binary(operator, a, b) => {
                p.expression(a, precedence);
                p.put(&binary(*operator).0);
                p.expression(b, precedence + 1);
            }
            ExprKind::Conditional(a, b, c) => {
                p.expression(a, 1);
                p.put("?");
                p.expression(b, 0);
                p.put(":");
                p.expression(c, 0);
            }
        });
    }
}

/// Binary operators by increasing precedence.
pub(crate) const PRECEDENCE: [&[Binary]; 7] = [
    &[Binary::Or],
    &[Binary::And],
    &[Binary::Equal, Binary::NotEqual],
    &[Binary::Less, Binary::LessEqual, Binary::Greater, Binary::GreaterEqual],
    &[Binary::Plus, Binary::Minus],
    &[Binary::Times, Binary::Divide, Binary::Remainder],
    &[Binary::Min, Binary::Max],
];

/// Sign and precedence of an operator.
fn binary(operator: Binary) -> (String, u8) {
    let number = |n| Box::new(Expression::Number(n));
    let text = Expression::Binary(operator, number(0), number(0)).to_string();
    let sign = text.trim_matches(|c: char| "0(), ".contains(c)).to_owned();
    let level = PRECEDENCE.iter().position(|level| level.contains(&operator));
    (sign, level.expect("the table has every operator") as u8 + 1)
}

fn element(element: &Element, text: &mut String) {
    let escaped = |text: &str| quick_xml::escape::escape(text).into_owned();
    text.push_str(&format!("<x:{}", element.name));
    for (name, value) in &element.attributes {
        text.push_str(&format!(" {name}=\"{}\"", escaped(value)));
    }
    text.push_str(&format!(">{}", escaped(&element.text)));
    element.children.iter().for_each(|child| self::element(child, text));
    text.push_str(&format!("</x:{}>", element.name));
}
