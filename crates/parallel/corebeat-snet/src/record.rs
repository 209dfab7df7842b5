//! Records, which flow on streams.

use std::fmt;

use crate::error::Error;
use crate::label::Label;
use crate::shape::Shape;
use crate::value::Value;

/// Fields and tags with their values. A record is one pointer, because records are moved far more
/// often than they are read.
#[derive(Clone, PartialEq)]
pub struct Record(Box<Inner>);

#[derive(Clone)]
struct Inner {
    shape: Shape,
    values: Values,
}

/// Values of the labels of the shape, in its order.
#[derive(Clone)]
enum Values {
    /// Values, followed by tags of 0.
    Few([Value; FEW_MAX]),
    Many(Vec<Value>),
}

/// Values that are stored inline.
const FEW_MAX: usize = 3;

/// With the overhead of the allocator, a record fills a cache line.
const _: () = assert!(size_of::<Inner>() == 56);

/// Memory of a dropped record, for the next record.
#[derive(Default)]
pub(crate) struct Spare(Option<Box<Inner>>);

impl Inner {
    /// Allocates memory for few values.
    fn empty() -> Box<Inner> {
        Box::new(Inner {
            shape: Shape::empty(),
            values: Values::Few([const { Value::Tag(0) }; FEW_MAX]),
        })
    }

    #[inline]
    fn values(&self) -> &[Value] {
        match &self.values {
            Values::Few(few) => &few[..self.shape.len()],
            Values::Many(many) => many,
        }
    }

    #[inline]
    fn values_mut(&mut self) -> &mut [Value] {
        match &mut self.values {
            Values::Few(few) => &mut few[..self.shape.len()],
            Values::Many(many) => many,
        }
    }

    /// Stores another record. All current values must be tags of 0.
    #[inline(always)]
    fn fill(&mut self, shape: Shape, values: impl ExactSizeIterator<Item = Value>) {
        assert_eq!(shape.len(), values.len(), "a record has one value for each label");
        self.shape = shape;
        match &mut self.values {
            Values::Few(few) if shape.len() <= FEW_MAX => {
                few.iter_mut().zip(values).for_each(|(place, value)| *place = value);
            }
            _ => self.fill_many(values),
        }
    }

    #[inline(never)]
    fn fill_many(&mut self, values: impl Iterator<Item = Value>) {
        match &mut self.values {
            Values::Few(_) => self.values = Values::Many(values.collect()),
            Values::Many(many) => {
                many.clear();
                many.extend(values);
            }
        }
    }
}

impl Spare {
    /// Creates a record of this shape with these values, in the order of its labels.
    #[inline(always)]
    pub(crate) fn record(
        &mut self,
        shape: Shape,
        values: impl ExactSizeIterator<Item = Value>,
    ) -> Record {
        let mut inner = self.0.take().unwrap_or_else(Inner::empty);
        inner.fill(shape, values);
        Record(inner)
    }

    /// Stores the memory of this record.
    #[inline(always)]
    pub(crate) fn keep(&mut self, mut record: Record) {
        match &mut record.0.values {
            Values::Few(few) => few.iter_mut().for_each(|value| *value = Value::default()),
            Values::Many(many) => many.clear(),
        }
        self.0 = Some(record.0);
    }
}

impl Record {
    /// Creates a record of this shape with these values, in the order of its labels.
    ///
    /// # Panics
    ///
    /// Panics if the number of values differs from the number of labels, or if a tag has another
    /// value than a [`Value::Tag`], or a field has such a value.
    #[inline]
    pub fn new(
        shape: Shape,
        values: impl IntoIterator<IntoIter: ExactSizeIterator<Item = Value>>,
    ) -> Record {
        let record = Spare::default().record(shape, values.into_iter());
        record.checked().unwrap_or_else(|why| panic!("{why}"))
    }

    /// Returns the record if its values have the kinds of their labels.
    #[inline]
    fn checked(self) -> Result<Record, Error> {
        let unfit = self.iter().find(|(label, value)| !value.fits(label.kind()));
        if let Some((label, value)) = unfit {
            return Err(Error::WrongKind { label, value: value.clone() });
        }
        Ok(self)
    }

    /// Creates a record of these labels and values. The last value of a label counts.
    ///
    /// # Errors
    ///
    /// Returns [`Error::WrongKind`] if a tag has another value than a
    /// [`Value::Tag`], or a field has such a value, and the errors of [`Shape::new`].
    pub fn from_pairs(pairs: impl IntoIterator<Item = (Label, Value)>) -> Result<Record, Error> {
        let mut pairs: Vec<(Label, Value)> = pairs.into_iter().collect();
        pairs.reverse();
        pairs.sort_by_key(|(label, _)| *label); // stable: the later of two comes first
        pairs.dedup_by_key(|(label, _)| *label);
        let shape = Shape::new(pairs.iter().map(|(label, _)| *label))?;
        let values = pairs.into_iter().map(|(_, value)| value);
        Spare::default().record(shape, values).checked()
    }

    /// Shape of the record.
    #[inline]
    pub fn shape(&self) -> Shape {
        self.0.shape
    }

    /// Values in the order of the labels.
    #[inline]
    pub fn values(&self) -> &[Value] {
        self.0.values()
    }

    #[inline]
    pub(crate) fn values_mut(&mut self) -> &mut [Value] {
        self.0.values_mut()
    }

    /// Returns the value of a label.
    pub fn get(&self, label: Label) -> Option<&Value> {
        self.shape().position(label).map(|i| &self.values()[i])
    }

    /// Returns the value of a tag.
    pub fn tag(&self, label: Label) -> Option<i32> {
        match self.get(label) {
            Some(Value::Tag(n)) => Some(*n),
            _ => None,
        }
    }

    /// Labels and values of the record.
    pub fn iter(&self) -> impl Iterator<Item = (Label, &Value)> {
        self.shape().labels().iter().copied().zip(self.values())
    }
}

impl PartialEq for Inner {
    fn eq(&self, other: &Inner) -> bool {
        self.shape == other.shape && self.values() == other.values()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label::Kind;

    #[test]
    fn record_in_reused_memory_equals_a_new_one() {
        let mut spare = Spare::default();
        for labels in [1, 5, 4, 3, 0, 6, 2] {
            let names = (0..labels).map(|i| Label::new(Kind::Tag, &format!("used{i}")).unwrap());
            let shape = Shape::new(names).unwrap();
            let values: Vec<Value> = (0..labels).map(|i| Value::Tag(10 * labels + i)).collect();
            let record = spare.record(shape, values.clone().into_iter());
            assert_eq!(record, Record::new(shape, values.clone()));
            assert_eq!(record.values(), values);
            spare.keep(record.clone());
            assert_eq!(record.values(), values, "a copy has separate memory");
        }
    }

    #[test]
    fn value_of_the_wrong_kind_is_refused_with_the_correction() {
        let (tag, field) =
            (Label::new(Kind::Tag, "t").unwrap(), Label::new(Kind::Field, "f").unwrap());
        let binding = Label::new(Kind::BindingTag, "b").unwrap();
        for (label, value, message) in [
            (tag, Value::from(5), "(int)5 as <t>; <t> is a tag: write `Value::Tag(5)`"),
            (
                binding,
                Value::from(5u64),
                "(unsigned long)5 as <#b>; <#b> is a tag: write `Value::Tag(5)`",
            ),
            (
                tag,
                Value::from("x"),
                "\"x\" as <t>; <t> is a tag: write a number of 32 bits, `Value::Tag(n)`",
            ),
            (
                tag,
                Value::from(1i64 << 31),
                "(long)2147483648 as <t>; <t> is a tag: write a number of 32 bits, `Value::Tag(n)`",
            ),
            (field, Value::Tag(5), "5 as f; f is a field: write `Value::from(5)`"),
        ] {
            let why = Record::from_pairs([(label, value)]).unwrap_err();
            assert_eq!(why.to_string(), format!("a record cannot have {message}"));
        }
    }

    #[test]
    #[should_panic(expected = "<t> is a tag: write `Value::Tag(5)`")]
    fn record_of_a_shape_with_a_value_of_the_wrong_kind_panics() {
        Record::new(Shape::new([Label::new(Kind::Tag, "t").unwrap()]).unwrap(), [Value::from(5)]);
    }

    #[test]
    #[should_panic(expected = "one value for each label")]
    fn record_of_too_few_values_panics() {
        Record::new(Shape::new([Label::new(Kind::Tag, "used0").unwrap()]).unwrap(), []);
    }
}
