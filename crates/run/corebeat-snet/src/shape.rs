//! Shapes: sets of labels. A record has one, and a variant of a type is one.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{LazyLock, RwLock};

use crate::error::TooMany;
use crate::label::{Kind, Label};

/// A set of labels, made once: two shapes are the same set if they are the same place in memory, so that whoever has decided
/// what to do with a record of one shape can look the decision up for the next.
#[derive(Clone, Copy)]
pub struct Shape(&'static Inner);

struct Inner {
    /// In the order of labels, without doubles.
    labels: Box<[Label]>,
    /// Where the binding tags begin.
    binding: usize,
    /// A number of its own, for tables.
    number: u32,
}

/// Different shapes in one process. They are kept for ever.
pub const SHAPES_MAX: usize = 1 << 18;

static TABLE: LazyLock<RwLock<HashMap<&'static [Label], Shape>>> = LazyLock::new(RwLock::default);

impl Shape {
    /// The set of these labels, in any order; doubles count once.
    ///
    /// # Errors
    ///
    /// When there are [`SHAPES_MAX`] shapes already.
    pub fn new(labels: impl IntoIterator<Item = Label>) -> Result<Shape, TooMany> {
        let mut labels: Vec<Label> = labels.into_iter().collect();
        labels.sort_unstable();
        labels.dedup();
        if let Some(&shape) = TABLE.read().unwrap_or_else(|e| e.into_inner()).get(&labels[..]) {
            return Ok(shape);
        }
        let mut table = TABLE.write().unwrap_or_else(|e| e.into_inner());
        if let Some(&shape) = table.get(&labels[..]) {
            return Ok(shape);
        }
        if table.len() == SHAPES_MAX {
            return Err(TooMany::Shapes);
        }
        let binding = labels.partition_point(|l| l.kind() != Kind::BindingTag);
        let number = table.len() as u32;
        let inner: &'static Inner = Box::leak(Box::new(Inner { labels: labels.into(), binding, number }));
        table.insert(&inner.labels, Shape(inner));
        Ok(Shape(inner))
    }

    /// The set of no label.
    pub fn empty() -> Shape {
        static EMPTY: LazyLock<Shape> =
            LazyLock::new(|| Shape::new([]).expect("the first shapes are made before there can be too many"));
        *EMPTY
    }

    /// Its labels, in their order.
    pub fn labels(self) -> &'static [Label] {
        &self.0.labels
    }

    /// How many labels it has.
    pub fn len(self) -> usize {
        self.0.labels.len()
    }

    /// Whether it is the set of no label.
    pub fn is_empty(self) -> bool {
        self.0.labels.is_empty()
    }

    /// A number that no other shape has, smaller than [`SHAPES_MAX`].
    pub fn number(self) -> u32 {
        self.0.number
    }

    /// Where a label stands among [`labels`](Self::labels).
    pub fn position(self, label: Label) -> Option<usize> {
        self.0.labels.binary_search(&label).ok()
    }

    /// Whether it has this label.
    pub fn contains(self, label: Label) -> bool {
        self.position(label).is_some()
    }

    /// Whether a record of this shape is one of `general` as well: it has all labels of `general`, and no other binding
    /// tags. (Prokesch 2011, section 2.2.1: the more labels, the more specific.)
    pub fn is_subtype_of(self, general: Shape) -> bool {
        self.0.labels[self.0.binding..] == general.0.labels[general.0.binding..] && self.includes(general)
    }

    /// Whether all labels of `other` are here.
    pub fn includes(self, other: Shape) -> bool {
        let mut mine = self.0.labels.iter();
        other.0.labels.iter().all(|label| mine.any(|l| l == label))
    }
}

impl PartialEq for Shape {
    fn eq(&self, other: &Shape) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Shape {}

impl Hash for Shape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.number.hash(state);
    }
}

/// As it is written in a program: `{A, <T>}`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, label) in self.labels().iter().enumerate() {
            write!(f, "{}{label}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("}")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
