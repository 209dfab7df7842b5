//! Records: what flows on streams.

use std::fmt;

use crate::label::Label;
use crate::shape::Shape;
use crate::value::Value;

/// Fields and tags with their values.
#[derive(Clone, PartialEq)]
pub struct Record {
    shape: Shape,
    /// One for each label of the shape, in its order.
    values: Vec<Value>,
}

impl Record {
    /// A record of this shape with these values, in the order of its labels.
    ///
    /// # Panics
    ///
    /// If there are not as many values as labels.
    pub fn new(shape: Shape, values: Vec<Value>) -> Record {
        assert_eq!(shape.len(), values.len(), "a record has one value for each label");
        Record { shape, values }
    }

    /// A record of these labels and values. Of two values for one label the later one counts.
    ///
    /// # Errors
    ///
    /// As [`Shape::new`].
    pub fn from_pairs(
        pairs: impl IntoIterator<Item = (Label, Value)>,
    ) -> Result<Record, crate::error::TooMany> {
        let mut pairs: Vec<(Label, Value)> = pairs.into_iter().collect();
        pairs.reverse();
        pairs.sort_by_key(|(label, _)| *label); // stable: the later of two comes first
        pairs.dedup_by_key(|(label, _)| *label);
        let shape = Shape::new(pairs.iter().map(|(label, _)| *label))?;
        Ok(Record { shape, values: pairs.into_iter().map(|(_, value)| value).collect() })
    }

    /// Its labels.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Its values, in the order of its labels.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    pub(crate) fn values_mut(&mut self) -> &mut [Value] {
        &mut self.values
    }

    /// What it holds under a label.
    pub fn get(&self, label: Label) -> Option<&Value> {
        self.shape.position(label).map(|i| &self.values[i])
    }

    /// The number under a tag.
    pub fn tag(&self, label: Label) -> Option<i32> {
        match self.get(label) {
            Some(Value::Tag(n)) => Some(*n),
            _ => None,
        }
    }

    /// Its labels and values.
    pub fn iter(&self) -> impl Iterator<Item = (Label, &Value)> {
        self.shape.labels().iter().copied().zip(&self.values)
    }

    /// Its shape and values, to be made into another record.
    pub fn into_parts(self) -> (Shape, Vec<Value>) {
        (self.shape, self.values)
    }
}

/// `{A: (int)1, <T>: 2}`
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, (label, value)) in self.iter().enumerate() {
            write!(f, "{}{label}: {value:?}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("}")
    }
}
