//! Syntax tree: output of the parser and input of the checker.

use crate::expression::{Binary, Unary};
use crate::label::Kind;

/// Range of bytes in a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// Byte after the last.
    pub end: usize,
}

impl Span {
    /// Range from the beginning of `self` to the end of `end`.
    pub fn to(self, end: Span) -> Span {
        Span { start: self.start, end: end.end }
    }
}

/// Name with its place.
#[derive(Clone, Debug)]
pub struct Name {
    /// Text of the name.
    pub text: String,
    /// Place in the source.
    pub span: Span,
}

/// Label: `A`, `<T>`, `<#B>`.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Field, tag or binding tag.
    pub kind: Kind,
    /// Name without brackets.
    pub name: Name,
}

/// Source: `def+`.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// In the order of the source.
    pub definitions: Vec<Definition>,
}

/// `def`
#[derive(Clone, Debug)]
pub enum Definition {
    /// `box ...`
    Box(BoxDefinition),
    /// `net ...`
    Net(NetDefinition),
    /// `type NAME = ...;`
    Type {
        /// Name of the definition.
        name: Name,
        /// Value of the definition.
        value: TypeExpr,
    },
    /// `typesig NAME = ...;`
    Signature {
        /// Name of the definition.
        name: Name,
        /// Value of the definition.
        value: Vec<SignatureItem>,
    },
    /// `<metadata> ... </metadata>`
    Metadata(Metadata),
}

/// `box NAME (input -> output | output);`
#[derive(Clone, Debug)]
pub struct BoxDefinition {
    /// Name of the box and of its function.
    pub name: Name,
    /// Arguments. `None` for an initialiser, which runs once, without a record.
    pub input: Option<Vec<BoxInput>>,
    /// Output variants.
    pub outputs: Vec<Vec<Entry>>,
    /// Code in the source, if any.
    pub body: Option<Body>,
    /// From `box` to the end.
    pub span: Span,
}

/// Argument of a box: `A`, or `A =`, which also flows past.
#[derive(Clone, Debug)]
pub struct BoxInput {
    /// The label.
    pub entry: Entry,
    /// Whether `=` follows.
    pub passes: bool,
}

/// `{<<< LANGUAGE | code >>>}`
#[derive(Clone, Debug)]
pub struct Body {
    /// Text between `<<<` and `|`, trimmed.
    pub language: Name,
    /// Text between `|` and `>>>`.
    pub code: String,
    /// Place of the code.
    pub span: Span,
}

/// `net NAME (signature) { definitions } connect topology;`
#[derive(Clone, Debug)]
pub struct NetDefinition {
    /// Its name.
    pub name: Name,
    /// Declared signature, if any.
    pub signature: Option<Vec<SignatureItem>>,
    /// Definitions inside the net.
    pub definitions: Vec<Definition>,
    /// After `connect`.
    pub topology: Topology,
    /// From `net` to the end.
    pub span: Span,
}

/// One part of a signature.
#[derive(Clone, Debug)]
pub enum SignatureItem {
    /// The name of a `typesig`.
    Name(Name),
    /// `type -> type`
    Mapping {
        /// Before the arrow; empty: no record is taken.
        input: TypeExpr,
        /// After the arrow.
        output: OutputType,
        /// Place in the source.
        span: Span,
    },
}

/// The part of a signature after the arrow.
#[derive(Clone, Debug)]
pub enum OutputType {
    /// A type; empty: nothing comes out.
    Type(TypeExpr),
    /// `...`: to be inferred.
    Infer,
}

/// `{A} | name | ...`
pub type TypeExpr = Vec<TypeItem>;

/// One variant of a type, or the name of a type.
#[derive(Clone, Debug)]
pub enum TypeItem {
    /// The name of a `type`.
    Name(Name),
    /// `{A, <T>}`
    Variant(Variant),
}

/// `{A, <T>, <#B>}`
#[derive(Clone, Debug)]
pub struct Variant {
    /// Its labels.
    pub entries: Vec<Entry>,
    /// Place, including the braces.
    pub span: Span,
}

/// `{A, <T>} if <T > 3>`
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The labels a record must have.
    pub variant: Variant,
    /// An additional condition.
    pub guard: Option<Expr>,
    /// Place of the whole construct.
    pub span: Span,
}

/// How things are connected.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Kind of topology.
    pub kind: TopologyKind,
    /// Place in the source.
    pub span: Span,
}

/// The kinds of `topo`.
#[derive(Clone, Debug)]
pub enum TopologyKind {
    /// A box or a net by its name.
    Name(Name),
    /// `[| p, q |]`
    Sync(Vec<Pattern>),
    /// `[]`
    Identity,
    /// `[{A} -> ...]`
    Filter(Filter),
    /// `a .. b .. c`, flat.
    Serial(Vec<Topology>),
    /// `a | b | c`, flat; `||` if deterministic.
    Parallel {
        /// `||`
        deterministic: bool,
        /// Two or more branches.
        branches: Vec<Topology>,
    },
    /// `a * p`, `a ** p`
    Star {
        /// `**`
        deterministic: bool,
        /// Repeated part.
        operand: Box<Topology>,
        /// Patterns of records that leave.
        exits: Vec<Pattern>,
    },
    /// `a ! <T>`, `a !! <T>`, `a !@ <T>`, `a !!@ <T>`
    Split {
        /// `!!`
        deterministic: bool,
        /// `@`: the tag also selects the worker.
        placed: bool,
        /// Replicated part.
        operand: Box<Topology>,
        /// The tag (or binding tag).
        tag: Entry,
    },
    /// `a \ p`
    Feedback {
        /// Body of the loop.
        operand: Box<Topology>,
        /// Patterns of records that return.
        patterns: Vec<Pattern>,
    },
    /// `a @ 3`
    Place {
        /// Placed part.
        operand: Box<Topology>,
        /// Number of the worker.
        place: u32,
    },
}

/// `[{A, <T>} -> if <T> then ... else ...]`
#[derive(Clone, Debug)]
pub struct Filter {
    /// Labels that records must have.
    pub pattern: Variant,
    /// Cases with a condition, in order.
    pub cases: Vec<(Expr, Action)>,
    /// Outputs if no condition holds.
    pub otherwise: Action,
}

/// Outputs of a filter: one list of entries for each record.
pub type Action = Vec<Output>;

/// `{A, B = C, <T = T + 1>}`
#[derive(Clone, Debug)]
pub struct Output {
    /// Entries of the record.
    pub entries: Vec<OutputEntry>,
    /// Place, including the braces.
    pub span: Span,
}

/// One entry of a filter's output.
#[derive(Clone, Debug)]
pub enum OutputEntry {
    /// `A`, or `A = B`
    Field {
        /// Field of the output record.
        name: Name,
        /// Field of the input record, if its name differs.
        from: Option<Name>,
    },
    /// `<T>`, `<T = expression>`, or with `#`
    Tag {
        /// Tag or binding tag.
        entry: Entry,
        /// Value, if present.
        value: Option<Expr>,
    },
}

/// An expression over tags.
#[derive(Clone, Debug)]
pub struct Expr {
    /// Kind of expression.
    pub kind: ExprKind,
    /// Place in the source.
    pub span: Span,
}

/// Kind of an expression.
#[derive(Clone, Debug)]
pub enum ExprKind {
    /// A number.
    Number(i32),
    /// A tag by its name; `#name` for a binding tag.
    Tag(Entry),
    /// `-a`, `!a`, `abs a`
    Unary(Unary, Box<Expr>),
    /// `a + b` and the like.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `a ? b : c`
    Conditional(Box<Expr>, Box<Expr>, Box<Expr>),
}

/// Content between `<metadata>` and `</metadata>` (also with a prefix, as in `<snet:metadata>`).
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    /// `box`, `net`, `boxdefault`, `netdefault`, `default`, and any other elements.
    pub elements: Vec<Element>,
    /// Place of the whole construct.
    pub span: Span,
}

/// Element of metadata: its name without prefix, its attributes, its text and its children.
#[derive(Clone, Debug, Default)]
pub struct Element {
    /// `box`, `interface`, ...
    pub name: String,
    /// In the order of the source.
    pub attributes: Vec<(String, String)>,
    /// Text content, trimmed.
    pub text: String,
    /// Child elements.
    pub children: Vec<Element>,
}
