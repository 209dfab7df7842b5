//! The parts of a statement. Names are not resolved.

/// A position in a text: the offset in bytes.
pub type At = usize;

/// A rule: patterns, and changes or results.
#[derive(Debug, Clone, Default)]
pub struct Statement {
    /// Position of the first clause.
    pub at: At,
    /// The clauses `MATCH` and `OPTIONAL MATCH`.
    pub matches: Vec<Match>,
    /// The changes, each with its position.
    pub changes: Vec<(At, Change)>,
    /// The clause `RETURN`.
    pub returns: Option<Return>,
}

/// A clause `MATCH`, or the inside of `EXISTS`.
#[derive(Debug, Clone, Default)]
pub struct Match {
    /// Whether the clause is `OPTIONAL MATCH`.
    pub optional: bool,
    /// The pattern to find.
    pub pattern: Pattern,
    /// All of them must be true.
    pub conditions: Vec<Expression>,
}

/// Nodes, and edges between them.
#[derive(Debug, Clone, Default)]
pub struct Pattern {
    /// The nodes, as they are written: a name may appear several times.
    pub nodes: Vec<NodePattern>,
    /// The edges.
    pub edges: Vec<EdgePattern>,
}

/// A node of a pattern: `(name:Type {key: value})`.
#[derive(Debug, Clone)]
pub struct NodePattern {
    /// Position of the parenthesis.
    pub at: At,
    /// The name, if the node has one.
    pub name: Option<String>,
    /// Conjunction of alternatives.
    pub types: Vec<Vec<(At, String)>>,
    /// Required values of attributes, or those of a new node.
    pub values: Vec<(At, String, Expression)>,
}

/// An edge of a pattern: `-[name:TYPE {key: value}]->`.
#[derive(Debug, Clone)]
pub struct EdgePattern {
    /// Position of the first character.
    pub at: At,
    /// The name, if the edge has one.
    pub name: Option<String>,
    /// Alternatives; none stands for all types.
    pub types: Vec<(At, String)>,
    /// Required values of attributes, or those of a new edge.
    pub values: Vec<(At, String, Expression)>,
    /// Index of the source among the nodes of the pattern.
    pub from: usize,
    /// Index of the target.
    pub to: usize,
    /// Whether both directions match.
    pub undirected: bool,
    /// Smallest and largest number of edges of a path.
    pub length: Option<(u32, u32)>,
}

/// A change of a graph.
#[derive(Debug, Clone)]
pub enum Change {
    /// Creates the nodes without an earlier name, and all edges.
    Create(Pattern),
    /// Sets an attribute; null removes it.
    Set {
        /// Name of the element.
        name: String,
        /// Name of the attribute.
        key: String,
        /// The new value.
        value: Expression,
    },
    /// Gives a node another type.
    Retype {
        /// Name of the node.
        name: String,
        /// The new type.
        of: String,
    },
    /// Deletes an element.
    Delete {
        /// Name of the element.
        name: String,
        /// Whether the edges of a node are deleted with it.
        detach: bool,
    },
}

/// A clause `RETURN`.
#[derive(Debug, Clone)]
pub struct Return {
    /// Whether equal rows count once.
    pub distinct: bool,
    /// Expressions with the names of their columns.
    pub items: Vec<(Expression, String)>,
    /// Expressions, and whether the order is descending.
    pub order: Vec<(Expression, bool)>,
    /// Number of rows to leave out.
    pub skip: u64,
    /// Largest number of rows.
    pub limit: Option<u64>,
}

/// An operator with two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of openCypher")]
pub enum Operator {
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

/// A function of openCypher that is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of openCypher")]
pub enum Function {
    Id,
    Type,
    Labels,
    Size,
    Coalesce,
    Abs,
}

/// A function of all rows of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregate {
    /// `count`.
    Count,
    /// `sum`.
    Sum,
    /// `avg`.
    Average,
    /// `min`.
    Least,
    /// `max`.
    Greatest,
    /// `collect`.
    Collect,
}

/// An expression with its position.
#[derive(Debug, Clone)]
pub struct Expression {
    /// Position of the expression, or of its operator.
    pub at: At,
    /// The expression.
    pub kind: Kind,
}

/// A constant.
#[derive(Debug, Clone, PartialEq)]
pub enum Literal {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a point or an exponent.
    Float(f64),
    /// A text in quotes.
    Text(String),
}

/// The kinds of expressions.
#[derive(Debug, Clone)]
pub enum Kind {
    /// A constant.
    Literal(Literal),
    /// A parameter: `$name`.
    Parameter(String),
    /// An element of the pattern, or a column.
    Name(String),
    /// An attribute: the name of its element, and its own.
    Property(String, String),
    /// Whether a node, by its name, has a type.
    HasType(String, String),
    /// A list.
    List(Vec<Expression>),
    /// `NOT`.
    Not(Box<Expression>),
    /// A minus sign before a number.
    Negate(Box<Expression>),
    /// `IS NULL`.
    IsNull(Box<Expression>),
    /// An operator with its operands.
    Binary(Operator, Box<Expression>, Box<Expression>),
    /// A function with its arguments.
    Call(Function, Vec<Expression>),
    /// A function of all rows of a group.
    Aggregate {
        /// The function.
        function: Aggregate,
        /// Whether equal values count once.
        distinct: bool,
        /// The argument; absent in `count(*)`.
        of: Option<Box<Expression>>,
    },
    /// `EXISTS`, or a pattern as a condition.
    Exists(Box<Match>),
}
