//! A program as it is written: what the parser makes and the checker reads.

use crate::expression::{Binary, Unary};
use crate::label::Kind;

/// A place in a source: bytes from, bytes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

impl Span {
    /// From the begin of this to the end of that.
    pub fn to(self, end: Span) -> Span {
        Span { start: self.start, end: end.end }
    }
}

/// A name, and where it stands.
#[derive(Clone, Debug)]
pub struct Name {
    /// What it says.
    pub text: String,
    /// Where it stands.
    pub span: Span,
}

/// A label as written: `A`, `<T>`, `<#B>`.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Field, tag or binding tag.
    pub kind: Kind,
    /// Its name, without brackets.
    pub name: Name,
}

/// A whole source: `def+`.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// In the order they are written.
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
        /// Its name.
        name: Name,
        /// What it stands for.
        value: TypeExpr,
    },
    /// `typesig NAME = ...;`
    Signature {
        /// Its name.
        name: Name,
        /// What it stands for.
        value: Vec<SignatureItem>,
    },
    /// `<metadata> ... </metadata>`
    Metadata(Metadata),
}

/// `box NAME (input -> output | output);`
#[derive(Clone, Debug)]
pub struct BoxDefinition {
    /// Its name, which is that of the function behind it.
    pub name: Name,
    /// `None` for an initialiser box, which is called once, without a record.
    pub input: Option<Vec<BoxInput>>,
    /// What it may put out.
    pub outputs: Vec<Vec<Entry>>,
    /// Its code, if it stands in the source.
    pub body: Option<Body>,
    /// From `box` to the end.
    pub span: Span,
}

/// What a box takes: `A`, or `A =`, which it passes on as well.
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
    /// All between `<<<` and `|`, trimmed.
    pub language: Name,
    /// All between `|` and `>>>`.
    pub code: String,
    /// Where the code stands.
    pub span: Span,
}

/// `net NAME (signature) { definitions } connect topology;`
#[derive(Clone, Debug)]
pub struct NetDefinition {
    /// Its name.
    pub name: Name,
    /// What it says of its type, if it does.
    pub signature: Option<Vec<SignatureItem>>,
    /// What is defined inside.
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
        /// Where it stands.
        span: Span,
    },
}

/// What follows the arrow of a signature.
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
    /// With its braces.
    pub span: Span,
}

/// `{A, <T>} if <T > 3>`
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The labels a record must have.
    pub variant: Variant,
    /// What must hold besides.
    pub guard: Option<Expr>,
    /// All of it.
    pub span: Span,
}

/// How things are connected.
#[derive(Clone, Debug)]
pub struct Topology {
    /// What it is.
    pub kind: TopologyKind,
    /// Where it stands.
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
        /// Two or more.
        branches: Vec<Topology>,
    },
    /// `a * p`, `a ** p`
    Star {
        /// `**`
        deterministic: bool,
        /// What is repeated.
        operand: Box<Topology>,
        /// Whose records leave.
        exits: Vec<Pattern>,
    },
    /// `a ! <T>`, `a !! <T>`, `a !@ <T>`, `a !!@ <T>`
    Split {
        /// `!!`
        deterministic: bool,
        /// `@`: the tag says where it runs as well.
        placed: bool,
        /// What there is one of for each value.
        operand: Box<Topology>,
        /// The tag (or binding tag).
        tag: Entry,
    },
    /// `a \ p`
    Feedback {
        /// What is gone through again.
        operand: Box<Topology>,
        /// Whose records go back.
        patterns: Vec<Pattern>,
    },
    /// `a @ 3`
    Place {
        /// What is placed.
        operand: Box<Topology>,
        /// Where.
        place: u32,
    },
}

/// `[{A, <T>} -> if <T> then ... else ...]`
#[derive(Clone, Debug)]
pub struct Filter {
    /// What records must have.
    pub pattern: Variant,
    /// Those with a condition, in order.
    pub cases: Vec<(Expr, Action)>,
    /// What is done if no condition holds.
    pub otherwise: Action,
}

/// What a filter puts out: one list of entries for each record.
pub type Action = Vec<Output>;

/// `{A, B = C, <T = T + 1>}`
#[derive(Clone, Debug)]
pub struct Output {
    /// What the record gets.
    pub entries: Vec<OutputEntry>,
    /// With its braces.
    pub span: Span,
}

/// One entry of a filter's output.
#[derive(Clone, Debug)]
pub enum OutputEntry {
    /// `A`, or `A = B`
    Field {
        /// The field of the new record.
        name: Name,
        /// The field of the old one, if it is another.
        from: Option<Name>,
    },
    /// `<T>`, `<T = expression>`, or with `#`
    Tag {
        /// Tag or binding tag.
        entry: Entry,
        /// Its value, if one is given.
        value: Option<Expr>,
    },
}

/// An expression over tags.
#[derive(Clone, Debug)]
pub struct Expr {
    /// What it is.
    pub kind: ExprKind,
    /// Where it stands.
    pub span: Span,
}

/// The kinds of `expr`.
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

/// What stands between `<metadata>` and `</metadata>` (also with a prefix, as `<snet:metadata>`).
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    /// `box`, `net`, `boxdefault`, `netdefault`, `default`, and what else is there.
    pub elements: Vec<Element>,
    /// All of it.
    pub span: Span,
}

/// An element of metadata: its name without prefix, its attributes, its text, and the elements inside.
#[derive(Clone, Debug, Default)]
pub struct Element {
    /// `box`, `interface`, ...
    pub name: String,
    /// In the order they are written.
    pub attributes: Vec<(String, String)>,
    /// The text inside, trimmed.
    pub text: String,
    /// The elements inside.
    pub children: Vec<Element>,
}
