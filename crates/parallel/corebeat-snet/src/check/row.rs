//! Sets of labels during the check. They are separate from shapes, because the process keeps every
//! shape, and most of these sets are temporary.

use std::fmt;
use std::rc::Rc;

use crate::ast::Span;
use crate::error::Error;
use crate::label::{Kind, Label};
use crate::shape::Shape;

/// Set of labels, in their order, without duplicates.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Row(Rc<[Label]>);

impl Row {
    pub(super) fn new(mut labels: Vec<Label>) -> Row {
        labels.sort_unstable();
        labels.dedup();
        Row(labels.into())
    }

    pub(super) fn empty() -> Row {
        Row(Rc::from([]))
    }

    pub(super) fn labels(&self) -> &[Label] {
        &self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn contains(&self, label: Label) -> bool {
        self.0.binary_search(&label).is_ok()
    }

    /// Binding tags of the row.
    pub(super) fn binding(&self) -> &[Label] {
        &self.0[self.0.partition_point(|l| l.kind() != Kind::BindingTag)..]
    }

    pub(super) fn includes(&self, other: &Row) -> bool {
        let mut mine = self.0.iter();
        other.0.len() <= self.0.len() && other.0.iter().all(|label| mine.any(|l| l == label))
    }

    /// Same relation as [`Shape::is_subtype_of`].
    pub(super) fn is_subtype_of(&self, general: &Row) -> bool {
        self.includes(general) && self.binding() == general.binding()
    }

    /// Whether the row is a subtype of one of these variants.
    pub(super) fn is_one_of<'a>(&self, mut variants: impl Iterator<Item = &'a Row>) -> bool {
        variants.any(|v| self.is_subtype_of(v))
    }

    pub(super) fn union(&self, other: &Row) -> Row {
        if self.includes(other) {
            return self.clone();
        }
        let (mut mine, mut others) =
            (self.0.iter().copied().peekable(), other.0.iter().copied().peekable());
        let mut union = Vec::with_capacity(self.len() + other.len());
        while let (Some(&a), Some(&b)) = (mine.peek(), others.peek()) {
            union.push(a.min(b));
            mine.next_if(|_| a <= b);
            others.next_if(|_| b <= a);
        }
        union.extend(mine.chain(others));
        Row(union.into())
    }

    pub(super) fn without(&self, other: &Row) -> Row {
        Row(self.0.iter().copied().filter(|&l| !other.contains(l)).collect())
    }

    /// Labels that flow past a part that takes `taken`.
    pub(super) fn past(&self, taken: &Row) -> Row {
        let fields_and_tags = self.0.len() - self.binding().len();
        Row(self.0[..fields_and_tags].iter().copied().filter(|&l| !taken.contains(l)).collect())
    }

    /// Number of common labels.
    pub(super) fn overlap(&self, other: &Row) -> usize {
        self.0.iter().filter(|&&l| other.contains(l)).count()
    }

    pub(super) fn shape(&self) -> Result<Shape, Error> {
        Shape::new(self.0.iter().copied())
    }
}

/// `{A, <T>}`: fields, tags, binding tags, each sorted by name, so that messages are deterministic.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}}}", Named(self))
    }
}

/// Labels of a set without braces, in the order of messages.
pub(super) struct Named<'a>(pub(super) &'a Row);

/// Labels of one set that a message lists.
const SHOWN_MAX: usize = 24;

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut labels = self.0.labels().to_vec();
        labels.sort_by_key(|l| (l.kind(), l.name()));
        for (i, label) in labels.iter().take(SHOWN_MAX).enumerate() {
            write!(f, "{}{label}", if i == 0 { "" } else { ", " })?;
        }
        if labels.len() > SHOWN_MAX {
            write!(f, " and {} more", labels.len() - SHOWN_MAX)?;
        }
        Ok(())
    }
}

/// Information about the records of one row.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    /// Whether such records certainly occur, according to declarations. Whether a record passes a
    /// synchrocell is uncertain, because it depends on the number of records.
    pub(super) certain: bool,
    /// Part that produces the records.
    pub(super) origin: Span,
}

/// Different rows, in the order of insertion.
#[derive(Clone, Default)]
pub(super) struct Rows(Vec<(Row, Mark)>);

impl Rows {
    /// Rows that certainly occur, with their origins.
    pub(super) fn certain<'a>(rows: impl IntoIterator<Item = &'a (Row, Span)>) -> Rows {
        let mut certain = Rows::default();
        for (row, origin) in rows {
            certain.add(row.clone(), Mark { certain: true, origin: *origin });
        }
        certain
    }

    pub(super) fn one(row: Row, mark: Mark) -> Rows {
        Rows(vec![(row, mark)])
    }

    /// Adds a row. Returns whether the row or its certainty is new.
    pub(super) fn add(&mut self, row: Row, mark: Mark) -> bool {
        match self.0.iter_mut().find(|(r, _)| *r == row) {
            Some((_, known)) if known.certain || !mark.certain => false,
            Some((_, known)) => {
                *known = mark;
                true
            }
            None => {
                self.0.push((row, mark));
                true
            }
        }
    }

    pub(super) fn add_all(&mut self, rows: Rows) {
        if self.0.is_empty() {
            *self = rows;
        } else {
            rows.0.into_iter().for_each(|(row, mark)| {
                self.add(row, mark);
            });
        }
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, (Row, Mark)> {
        self.0.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl IntoIterator for Rows {
    type Item = (Row, Mark);
    type IntoIter = std::vec::IntoIter<(Row, Mark)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
