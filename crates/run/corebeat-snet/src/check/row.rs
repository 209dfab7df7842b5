//! Sets of labels while they are judged. Shapes are kept for ever, and most of these are not worth it.

use std::fmt;
use std::rc::Rc;

use crate::ast::Span;
use crate::error::TooMany;
use crate::label::{Kind, Label};
use crate::shape::Shape;

/// A set of labels, in their order, without doubles.
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

    /// Its binding tags.
    pub(super) fn binding(&self) -> &[Label] {
        &self.0[self.0.partition_point(|l| l.kind() != Kind::BindingTag)..]
    }

    pub(super) fn includes(&self, other: &Row) -> bool {
        let mut mine = self.0.iter();
        other.0.len() <= self.0.len() && other.0.iter().all(|label| mine.any(|l| l == label))
    }

    /// As [`Shape::is_subtype_of`].
    pub(super) fn is_subtype_of(&self, general: &Row) -> bool {
        self.includes(general) && self.binding() == general.binding()
    }

    /// Whether it is one of these.
    pub(super) fn is_one_of<'a>(&self, mut variants: impl Iterator<Item = &'a Row>) -> bool {
        variants.any(|v| self.is_subtype_of(v))
    }

    pub(super) fn union(&self, other: &Row) -> Row {
        if self.includes(other) {
            return self.clone();
        }
        let (mut mine, mut others) = (self.0.iter().copied().peekable(), other.0.iter().copied().peekable());
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

    /// What flows past something that takes these labels.
    pub(super) fn past(&self, taken: &Row) -> Row {
        let fields_and_tags = self.0.len() - self.binding().len();
        Row(self.0[..fields_and_tags].iter().copied().filter(|&l| !taken.contains(l)).collect())
    }

    /// How many labels both have.
    pub(super) fn overlap(&self, other: &Row) -> usize {
        self.0.iter().filter(|&&l| other.contains(l)).count()
    }

    pub(super) fn shape(&self) -> Result<Shape, TooMany> {
        Shape::new(self.0.iter().copied())
    }
}

/// `{A, <T>}`: fields, tags, binding tags; each by name, so that a message reads the same in every process.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}}}", Named(self))
    }
}

/// The labels of a set without braces, in the order in which they are shown.
pub(super) struct Named<'a>(pub(super) &'a Row);

/// Labels of one set that a message shows.
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

/// What is known of the records of one row.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    /// Whether there are such records for certain, as far as declarations tell. Of what passes a synchrocell nobody knows: it
    /// depends on how many records come.
    pub(super) certain: bool,
    /// What made them.
    pub(super) origin: Span,
}

/// Different rows, in the order in which they were found.
#[derive(Clone, Default)]
pub(super) struct Rows(Vec<(Row, Mark)>);

impl Rows {
    pub(super) fn one(row: Row, mark: Mark) -> Rows {
        Rows(vec![(row, mark)])
    }

    /// Whether this says something new.
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
