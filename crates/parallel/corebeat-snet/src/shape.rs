//! Shapes: sets of labels. A record has a shape, and a variant of a type is a shape.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{LazyLock, RwLock};

use crate::error::Error;
use crate::label::{Kind, Label};

/// Unique set of labels. Equal shapes have the same address, so that an entity can cache its
/// decisions by shape.
#[derive(Clone, Copy)]
pub struct Shape(&'static Inner);

struct Inner {
    /// In the order of labels, without duplicates.
    labels: Box<[Label]>,
    /// Index of the first binding tag.
    binding: usize,
    /// Unique number, for tables.
    number: u32,
}

/// Different shapes in one process. Shapes are never freed.
pub const SHAPES_MAX: usize = 1 << 18;

static TABLE: LazyLock<RwLock<HashMap<&'static [Label], Shape>>> = LazyLock::new(RwLock::default);

impl Shape {
    /// Returns the set of these labels, in any order. Duplicates count once.
    ///
    /// # Errors
    ///
    /// Returns an error if the set is new and the process has [`SHAPES_MAX`] shapes.
    pub fn new(labels: impl IntoIterator<Item = Label>) -> Result<Shape, Error> {
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
            return Err(Error::TooManyShapes);
        }
        let binding = labels.partition_point(|l| l.kind() != Kind::BindingTag);
        let number = table.len() as u32;
        let inner: &'static Inner =
            Box::leak(Box::new(Inner { labels: labels.into(), binding, number }));
        table.insert(&inner.labels, Shape(inner));
        Ok(Shape(inner))
    }

    /// Returns the empty set.
    pub fn empty() -> Shape {
        static EMPTY: LazyLock<Shape> =
            LazyLock::new(|| Shape::new([]).expect("the empty set is within the limit"));
        *EMPTY
    }

    /// Labels in their order.
    pub fn labels(self) -> &'static [Label] {
        &self.0.labels
    }

    /// Number of labels.
    pub fn len(self) -> usize {
        self.0.labels.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0.labels.is_empty()
    }

    /// Unique number, less than [`SHAPES_MAX`].
    pub fn number(self) -> u32 {
        self.0.number
    }

    /// Index of a label in [`labels`](Self::labels).
    pub fn position(self, label: Label) -> Option<usize> {
        self.0.labels.binary_search(&label).ok()
    }

    /// Whether the set contains this label.
    pub fn contains(self, label: Label) -> bool {
        self.position(label).is_some()
    }

    /// Whether a record of this shape also has the type `general`: the shape has all labels of
    /// `general` and no other binding tags. (Prokesch 2011, section 2.2.1: more labels are more
    /// specific.)
    pub fn is_subtype_of(self, general: Shape) -> bool {
        self.0.labels[self.0.binding..] == general.0.labels[general.0.binding..]
            && self.includes(general)
    }

    /// Whether the set contains all labels of `other`.
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

/// Notation of programs: `{A, <T>}`.
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
