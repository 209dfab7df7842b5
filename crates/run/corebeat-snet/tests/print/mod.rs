//! Programs as text again.

use corebeat_snet::Kind;
use corebeat_snet::ast::*;
use corebeat_snet::expression::{Binary, Unary};

/// Which operands stand in brackets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Brackets {
    /// All that have operands of their own.
    All,
    /// Those that need them.
    Few,
}

/// Makes a list of words and signs.
pub(crate) struct Printer {
    brackets: Brackets,
    words: Vec<String>,
}

/// How tight things bind; operands that are no operators bind tightest.
const TIGHTEST: u8 = 9;

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

    /// Brackets around what binds less tight than it must, and, if they are wanted, around all operators.
    fn bracketed(&mut self, tightness: u8, least: u8, inside: impl FnOnce(&mut Printer)) {
        let with = tightness < least || self.brackets == Brackets::All && tightness < TIGHTEST;
        self.put(if with { "(" } else { "" });
        inside(self);
        self.put(if with { ")" } else { "" });
    }

    fn topology(&mut self, topology: &Topology, least: u8) {
        let tightness = match &topology.kind {
            TopologyKind::Parallel { deterministic: false, .. } => 0,
            TopologyKind::Parallel { deterministic: true, .. } => 1,
            TopologyKind::Serial(_) => 2,
            TopologyKind::Star { .. }
            | TopologyKind::Split { .. }
            | TopologyKind::Feedback { .. }
            | TopologyKind::Place { .. } => 3,
            _ => TIGHTEST,
        };
        let twice = |twice: &bool, sign: &str| sign.repeat(1 + usize::from(*twice));
        self.bracketed(tightness, least, |p| match &topology.kind {
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
                p.list(&twice(deterministic, "|"), branches, |p, branch| p.topology(branch, tightness + 1));
            }
            TopologyKind::Star { deterministic, operand, exits } => {
                p.topology(operand, tightness);
                p.put(&twice(deterministic, "*"));
                p.list(",", exits, Printer::pattern);
            }
            TopologyKind::Split { deterministic, placed, operand, tag } => {
                p.topology(operand, tightness);
                p.put(&twice(deterministic, "!"));
                p.put(if *placed { "@" } else { "" });
                p.entry(tag);
            }
            TopologyKind::Feedback { operand, patterns } => {
                p.topology(operand, tightness);
                p.put("\\");
                p.list(",", patterns, Printer::pattern);
            }
            TopologyKind::Place { operand, place } => {
                p.topology(operand, tightness);
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
        let tightness = match &expression.kind {
            ExprKind::Number(_) | ExprKind::Tag(_) => TIGHTEST,
            ExprKind::Unary(..) => 8,
            ExprKind::Binary(operator, ..) => binary(*operator).1,
            ExprKind::Conditional(..) => 0,
        };
        self.bracketed(tightness, least, |p| match &expression.kind {
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
                p.expression(a, tightness);
                p.put(binary(*operator).0);
                p.expression(b, tightness + 1);
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

fn binary(operator: Binary) -> (&'static str, u8) {
    match operator {
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
        Binary::Min => ("min", 7),
        Binary::Max => ("max", 7),
    }
}

fn element(element: &Element, text: &mut String) {
    let escaped = |text: &str| {
        text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
    };
    text.push_str(&format!("<x:{}", element.name));
    for (name, value) in &element.attributes {
        text.push_str(&format!(" {name}=\"{}\"", escaped(value)));
    }
    text.push_str(&format!(">{}", escaped(&element.text)));
    element.children.iter().for_each(|child| self::element(child, text));
    text.push_str(&format!("</x:{}>", element.name));
}
