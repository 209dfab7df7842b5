//! Rules as they are written: names are not yet resolved. The parser and the builder of rules
//! produce these values, and [`crate::compile`] reads them.

use crate::value::Value;

/// A position in a text: the offset in bytes.
pub(crate) type At = usize;

#[derive(Debug, Clone, Default)]
pub(crate) struct Statement {
    pub(crate) at: At,
    pub(crate) matches: Vec<Match>,
    pub(crate) changes: Vec<(At, Change)>,
    pub(crate) returns: Option<Return>,
}

/// A clause `MATCH`, or the inside of `EXISTS`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Match {
    pub(crate) optional: bool,
    pub(crate) pattern: Pattern,
    /// All of them must be true.
    pub(crate) conditions: Vec<Expression>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Pattern {
    pub(crate) nodes: Vec<NodePattern>,
    pub(crate) edges: Vec<EdgePattern>,
}

#[derive(Debug, Clone)]
pub(crate) struct NodePattern {
    pub(crate) at: At,
    pub(crate) name: Option<String>,
    /// Conjunction of alternatives.
    pub(crate) types: Vec<Vec<(At, String)>>,
    pub(crate) values: Vec<(At, String, Expression)>,
}

#[derive(Debug, Clone)]
pub(crate) struct EdgePattern {
    pub(crate) at: At,
    pub(crate) name: Option<String>,
    /// Alternatives; none stands for all types.
    pub(crate) types: Vec<(At, String)>,
    pub(crate) values: Vec<(At, String, Expression)>,
    /// Indices of nodes of the pattern.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) undirected: bool,
    /// Smallest and largest number of edges of a path.
    pub(crate) length: Option<(u32, u32)>,
}

#[derive(Debug, Clone)]
pub(crate) enum Change {
    Create(Pattern),
    Set { name: String, key: String, value: Expression },
    Retype { name: String, of: String },
    Delete { name: String, detach: bool },
}

#[derive(Debug, Clone)]
pub(crate) struct Return {
    pub(crate) distinct: bool,
    pub(crate) items: Vec<(Expression, String)>,
    /// Expressions, and whether the order is descending.
    pub(crate) order: Vec<(Expression, bool)>,
    pub(crate) skip: u64,
    pub(crate) limit: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Or,
    Xor,
    And,
    Equal,
    Unequal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    StartsWith,
    EndsWith,
    Contains,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// Functions of openCypher that are supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    Id,
    Type,
    Labels,
    Size,
    Coalesce,
    Abs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aggregate {
    Count,
    Sum,
    Average,
    Least,
    Greatest,
    Collect,
}

#[derive(Debug, Clone)]
pub(crate) struct Expression {
    pub(crate) at: At,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Literal(Value),
    Parameter(String),
    Name(String),
    Property(String, String),
    HasType(String, String),
    List(Vec<Expression>),
    Not(Box<Expression>),
    Negate(Box<Expression>),
    IsNull(Box<Expression>),
    Binary(Operator, Box<Expression>, Box<Expression>),
    Call(Function, Vec<Expression>),
    /// The argument of `count(*)` is absent.
    Aggregate {
        function: Aggregate,
        distinct: bool,
        of: Option<Box<Expression>>,
    },
    Exists(Box<Match>),
}
