//! Values of attributes.

use crate::array::Array;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

/// A value of an attribute.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Value {
    /// No value: the element has no such attribute.
    #[default]
    Null,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A text.
    Text(Arc<str>),
    /// A list.
    List(Arc<[Value]>),
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}
impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Int(value)
    }
}
impl From<f64> for Value {
    fn from(value: f64) -> Value {
        Value::Float(value)
    }
}
impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Text(value.into())
    }
}
impl From<Vec<Value>> for Value {
    fn from(value: Vec<Value>) -> Value {
        Value::List(value.into())
    }
}

/// Writes a value as openCypher does: texts are in single quotes.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Int(value) => write!(f, "{value}"),
            Value::Float(value) => write!(f, "{value:?}"),
            Value::Text(text) => {
                write!(f, "'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
            }
            Value::List(values) => {
                f.write_str("[")?;
                for (i, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
        }
    }
}

impl Value {
    /// Position of the type in the order of values of different types.
    fn rank(&self) -> u8 {
        match self {
            Value::List(_) => 0,
            Value::Text(_) => 1,
            Value::Bool(_) => 2,
            Value::Int(_) | Value::Float(_) => 3,
            Value::Null => 4,
        }
    }

    /// Total order for `ORDER BY`, `min` and `max`: lists, texts, truth values, numbers, null. NaN
    /// follows all other numbers.
    pub fn order(&self, other: &Value) -> Ordering {
        match (self, other) {
            (Value::Int(a), Value::Int(b)) => a.cmp(b),
            (Value::Int(a), Value::Float(b)) => int_with_float(*a, *b),
            (Value::Float(a), Value::Int(b)) => int_with_float(*b, *a).reverse(),
            (Value::Float(a), Value::Float(b)) => {
                a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
            }
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::Text(a), Value::Text(b)) => a.cmp(b),
            (Value::List(a), Value::List(b)) => {
                let differs = a.iter().zip(b.iter()).map(|(a, b)| a.order(b));
                differs.into_iter().find(|o| o.is_ne()).unwrap_or(a.len().cmp(&b.len()))
            }
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

/// Compares exactly: a conversion of a large integer to a float would round it.
fn int_with_float(a: i64, b: f64) -> Ordering {
    if b.is_nan() || b >= 9_223_372_036_854_775_808.0 {
        return Ordering::Less;
    }
    if b < -9_223_372_036_854_775_808.0 {
        return Ordering::Greater;
    }
    let whole = b.trunc();
    a.cmp(&(whole as i64)).then_with(|| 0.0.partial_cmp(&(b - whole)).unwrap_or(Ordering::Equal))
}

/// A value inside a graph: texts and lists are numbers of [`Literals`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) enum Scalar {
    #[default]
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(u32),
    List(u32),
}

impl Scalar {
    /// The type and the content of the value as numbers.
    pub(crate) fn encode(self) -> (u8, u64) {
        match self {
            Scalar::Null => (0, 0),
            Scalar::Bool(value) => (1, value.into()),
            Scalar::Int(value) => (2, value as u64),
            Scalar::Float(value) => (3, value.to_bits()),
            Scalar::Text(number) => (4, number.into()),
            Scalar::List(number) => (5, number.into()),
        }
    }

    pub(crate) fn from_encoded((tag, word): (u8, u64)) -> Scalar {
        match tag {
            1 => Scalar::Bool(word != 0),
            2 => Scalar::Int(word as i64),
            3 => Scalar::Float(f64::from_bits(word)),
            4 => Scalar::Text(word as u32),
            5 => Scalar::List(word as u32),
            _ => Scalar::Null,
        }
    }
}

/// The values of one attribute, by element. A read during a write may combine an old type with a
/// new word; rewriters re-check under locks.
#[derive(Default)]
pub(crate) struct Column {
    tags: Array<AtomicU8>,
    words: Array<AtomicU64>,
}

impl Column {
    #[inline]
    pub(crate) fn get(&self, element: u32) -> Scalar {
        let tag = self.tags.get(element).map_or(0, |tag| tag.load(Relaxed));
        if tag == 0 {
            return Scalar::Null;
        }
        let word = self.words.get(element).map_or(0, |word| word.load(Relaxed));
        Scalar::from_encoded((tag, word))
    }

    pub(crate) fn set(&self, element: u32, value: Scalar) {
        let (tag, word) = value.encode();
        if tag != 0 {
            self.words.make(element).store(word, Relaxed);
            self.tags.make(element).store(tag, Relaxed);
        } else if let Some(tag) = self.tags.get(element) {
            tag.store(0, Relaxed);
        }
    }
}

/// Number of buckets of [`Table`].
const BUCKETS: usize = 32;

/// A part of a table, allocated at once.
type Bucket<T> = Box<[OnceLock<Arc<T>>]>;

/// Texts and lists by number. Entries never move and are never removed.
struct Table<T: ?Sized> {
    buckets: [OnceLock<Bucket<T>>; BUCKETS],
}

impl<T: ?Sized> Default for Table<T> {
    fn default() -> Self {
        Table { buckets: [const { OnceLock::new() }; BUCKETS] }
    }
}

impl<T: ?Sized> Table<T> {
    fn place(number: u32) -> (usize, usize) {
        let log = (number + 1).ilog2();
        (log as usize, ((number + 1) ^ (1 << log)) as usize)
    }

    fn get(&self, number: u32) -> Option<&Arc<T>> {
        let (bucket, offset) = Self::place(number.min(u32::MAX - 1));
        self.buckets[bucket].get()?.get(offset)?.get()
    }

    fn set(&self, number: u32, value: Arc<T>) {
        let (bucket, offset) = Self::place(number);
        let new = || (0..1_usize << bucket).map(|_| OnceLock::new()).collect();
        let _ = self.buckets[bucket].get_or_init(new)[offset].set(value);
    }
}

/// Number of lists that an expression puts inside of each other, at most.
pub(crate) const LIST_DEPTH_MAX: u32 = 64;
/// Number of values in all of these lists, at most. Equal lists are stored once, but a use of one
/// follows all of them: `[x, x]`, repeated, doubles the number.
pub(crate) const LIST_VALUES_MAX: u64 = 1 << 20;

/// The texts and lists of a graph, each stored once.
#[derive(Default)]
pub(crate) struct Literals {
    texts: Table<str>,
    lists: Table<[Scalar]>,
    numbers: Mutex<Numbers>,
}

#[derive(Default)]
struct Numbers {
    texts: HashMap<Arc<str>, u32>,
    lists: HashMap<Vec<(u8, u64)>, u32>,
    /// By number of the list: how many lists are inside of each other, and the number of all values
    /// inside.
    extents: Vec<(u32, u64)>,
}

impl Literals {
    /// Returns the number of a text, and stores the text if it is new.
    pub(crate) fn text(&self, text: &str) -> Scalar {
        let mut numbers = lock(&self.numbers);
        if let Some(number) = numbers.texts.get(text) {
            return Scalar::Text(*number);
        }
        let (number, text) = (numbers.texts.len() as u32, Arc::<str>::from(text));
        self.texts.set(number, text.clone());
        numbers.texts.insert(text, number);
        Scalar::Text(number)
    }

    /// Returns the number of a list, and stores the list if it is new.
    pub(crate) fn list(&self, values: &[Scalar]) -> Scalar {
        let Numbers { lists, extents, .. } = &mut *lock(&self.numbers);
        let key: Vec<_> = values.iter().map(|value| value.encode()).collect();
        let next = lists.len() as u32;
        let number = *lists.entry(key).or_insert_with(|| {
            let inner = values.iter().map(|value| match value {
                Scalar::List(number) => extents[*number as usize],
                _ => (0, 1),
            });
            let extent = inner.fold((0, 0), |(depth, count): (u32, u64), (inner, own)| {
                (depth.max(inner), count.saturating_add(own))
            });
            extents.push((extent.0 + 1, extent.1));
            self.lists.set(next, values.into());
            next
        });
        Scalar::List(number)
    }

    /// Whether a list of lists is deeper than [`LIST_DEPTH_MAX`], or has more than
    /// [`LIST_VALUES_MAX`] values.
    pub(crate) fn is_too_large(&self, list: Scalar) -> bool {
        let Scalar::List(number) = list else { return false };
        let (depth, count) = lock(&self.numbers).extents[number as usize];
        depth > LIST_DEPTH_MAX || count > LIST_VALUES_MAX
    }

    pub(crate) fn get_text(&self, number: u32) -> &str {
        self.texts.get(number).map_or("", |text| text)
    }

    pub(crate) fn get_list(&self, number: u32) -> &[Scalar] {
        self.lists.get(number).map_or(&[], |list| list)
    }

    /// The same for all values that [`Value::order`] finds equal, such as 1 and 1.0.
    pub(crate) fn normal(&self, value: Scalar) -> Scalar {
        match value {
            Scalar::Float(float) if float.is_nan() => Scalar::Float(f64::NAN),
            Scalar::Float(float) => match int_with_float(float as i64, float) {
                Ordering::Equal => Scalar::Int(float as i64),
                _ => value,
            },
            Scalar::List(number) => {
                let values = self.get_list(number).iter().map(|value| self.normal(*value));
                self.list(&values.collect::<Vec<Scalar>>())
            }
            _ => value,
        }
    }

    pub(crate) fn encode(&self, value: &Value) -> Scalar {
        match value {
            Value::Null => Scalar::Null,
            Value::Bool(value) => Scalar::Bool(*value),
            Value::Int(value) => Scalar::Int(*value),
            Value::Float(value) => Scalar::Float(*value),
            Value::Text(text) => self.text(text),
            Value::List(values) => {
                let values: Vec<Scalar> = values.iter().map(|value| self.encode(value)).collect();
                self.list(&values)
            }
        }
    }

    pub(crate) fn decode(&self, value: Scalar) -> Value {
        match value {
            Scalar::Null => Value::Null,
            Scalar::Bool(value) => Value::Bool(value),
            Scalar::Int(value) => Value::Int(value),
            Scalar::Float(value) => Value::Float(value),
            Scalar::Text(number) => {
                self.texts.get(number).map_or(Value::Null, |text| Value::Text(text.clone()))
            }
            Scalar::List(number) => {
                Value::List(self.get_list(number).iter().map(|value| self.decode(*value)).collect())
            }
        }
    }
}

/// Locks a mutex whose data is consistent whenever it is free.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_the_encoding() {
        let literals = Literals::default();
        let list = Value::from(vec![Value::from(1), Value::from("a"), Value::Null]);
        for value in [Value::Null, true.into(), (-5).into(), 2.5.into(), "it's".into(), list] {
            let scalar = literals.encode(&value);
            assert_eq!(literals.decode(scalar), value);
            assert_eq!(literals.encode(&value), scalar);
        }
    }

    #[test]
    fn large_integers_are_compared_with_floats_exactly() {
        let (int, float) = (Value::Int((1 << 53) + 1), Value::Float((1_u64 << 53) as f64));
        assert_eq!(int.order(&float), Ordering::Greater);
        assert_eq!(float.order(&int), Ordering::Less);
        assert_eq!(Value::Int(-1).order(&Value::Float(-1.5)), Ordering::Greater);
        assert_eq!(Value::Int(1).order(&Value::Float(f64::NAN)), Ordering::Less);
    }
}
