//! Boxes in Rust: functions with typed arguments.

use std::fmt::Display;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use super::signature::Signature;
use crate::body::{BoxBody, Out};
use crate::label::{Kind, Label};
use crate::value::{Array, Element, Value};

/// The number under a tag, as a box takes it and puts it out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub i32);

/// A field with a value of a Rust type, shared by all records that it is in.
pub struct Shared<T> {
    /// A native value of that type.
    value: Value,
    kind: PhantomData<Arc<T>>,
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// A field of this value.
    pub fn new(value: T) -> Shared<T> {
        Shared { value: Value::native(value), kind: PhantomData }
    }

    /// The value, if no other record shares it.
    ///
    /// # Errors
    ///
    /// The field as it is, if one does.
    pub fn into_inner(self) -> Result<T, Shared<T>> {
        self.value.downcast().map_err(|value| Shared { value, kind: PhantomData })
    }
}

impl<T: 'static> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.downcast_ref().expect("its type is looked at when it is made")
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared { value: self.value.clone(), kind: PhantomData }
    }
}

/// What a function can take for a label.
pub trait Argument: Sized {
    /// The kind of label it can stand for: `false` a field, `true` a tag, `None` any.
    const TAG: Option<bool>;

    /// How messages call it.
    fn name() -> String {
        std::any::type_name::<Self>().replace("alloc::string::", "").replace("alloc::vec::", "")
    }

    /// The value, taken out of its place if it is of this type.
    fn take(value: &mut Value) -> Option<Self>;
}

impl Argument for Tag {
    const TAG: Option<bool> = Some(true);

    fn name() -> String {
        "Tag".into()
    }

    #[inline]
    fn take(value: &mut Value) -> Option<Tag> {
        match value {
            Value::Tag(n) => Some(Tag(*n)),
            _ => None,
        }
    }
}

impl Argument for Value {
    const TAG: Option<bool> = None;

    fn name() -> String {
        "Value".into()
    }

    fn take(value: &mut Value) -> Option<Value> {
        Some(std::mem::take(value))
    }
}

/// A whole number of any type of C that fits.
macro_rules! integer {
    ($($rust:ty => $element:ident),*) => {$(
        impl Argument for $rust {
            const TAG: Option<bool> = Some(false);

            #[inline]
            fn take(value: &mut Value) -> Option<$rust> {
                let Value::Scalar(scalar) = value else { return None };
                if scalar.element() == Element::$element {
                    let bytes = scalar.bytes();
                    return Some(<$rust>::from_ne_bytes(*bytes.first_chunk().expect("no number is longer")));
                }
                scalar.integer()?.try_into().ok()
            }
        }
    )*};
}

integer!(u8 => UChar, i8 => Char, u16 => UShort, i16 => Short, u32 => UInt, i32 => Int, u64 => ULong, i64 => Long);

impl Argument for f32 {
    const TAG: Option<bool> = Some(false);

    fn take(value: &mut Value) -> Option<f32> {
        match value {
            Value::Scalar(s) if s.element() == Element::Float => s.real().map(|x| x as f32),
            _ => None,
        }
    }
}

/// A `double`, a `float`, or a whole number that is the same as a real one.
impl Argument for f64 {
    const TAG: Option<bool> = Some(false);

    fn take(value: &mut Value) -> Option<f64> {
        const EXACT_MAX: i128 = 1 << 53;
        let Value::Scalar(scalar) = value else { return None };
        scalar
            .real()
            .or_else(|| scalar.integer().filter(|n| (-EXACT_MAX..=EXACT_MAX).contains(n)).map(|n| n as f64))
    }
}

impl Argument for String {
    const TAG: Option<bool> = Some(false);

    fn take(value: &mut Value) -> Option<String> {
        value.as_str().map(str::to_owned)
    }
}

/// An array as it is, without a copy.
impl Argument for Arc<Array> {
    const TAG: Option<bool> = Some(false);

    fn name() -> String {
        "Arc<Array>".into()
    }

    fn take(value: &mut Value) -> Option<Arc<Array>> {
        match std::mem::take(value) {
            Value::Array(array) => Some(array),
            other => {
                *value = other;
                None
            }
        }
    }
}

impl From<Arc<Array>> for Value {
    fn from(array: Arc<Array>) -> Value {
        Value::Array(array)
    }
}

impl<T: Send + Sync + 'static> Argument for Shared<T> {
    const TAG: Option<bool> = Some(false);

    fn name() -> String {
        format!("Shared<{}>", std::any::type_name::<T>())
    }

    fn take(value: &mut Value) -> Option<Shared<T>> {
        value.downcast_ref::<T>()?;
        Some(Shared { value: std::mem::take(value), kind: PhantomData })
    }
}

impl From<Tag> for Value {
    fn from(tag: Tag) -> Value {
        Value::Tag(tag.0)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::from(text.as_str())
    }
}

impl<T> From<Shared<T>> for Value {
    fn from(shared: Shared<T>) -> Value {
        shared.value
    }
}

/// An array of these elements, or a scalar of the one there is; and `Vec` from both. Bytes are taken from text as well.
macro_rules! array {
    ($($rust:ty => $element:ident $(or $other:ident)?),*) => {$(
        impl Argument for Vec<$rust> {
            const TAG: Option<bool> = Some(false);

            fn take(value: &mut Value) -> Option<Vec<$rust>> {
                let scalar;
                let (element, bytes) = match value {
                    Value::Array(array) => (array.element(), array.bytes()),
                    Value::Scalar(s) => {
                        scalar = s.bytes();
                        (s.element(), &scalar[..s.element().size()])
                    }
                    _ => return None,
                };
                if !matches!(element, Element::$element $(| Element::$other)?) {
                    return None;
                }
                let (elements, _) = bytes.as_chunks::<{ size_of::<$rust>() }>();
                Some(elements.iter().map(|bytes| <$rust>::from_ne_bytes(*bytes)).collect())
            }
        }

        #[doc = concat!("A field of `", stringify!($rust), "`s: an array, or a scalar if there is one.")]
        impl From<Vec<$rust>> for Value {
            fn from(elements: Vec<$rust>) -> Value {
                if let [one] = elements[..] {
                    return Value::from(one);
                }
                let mut array = Array::zeroed(Element::$element, elements.len());
                let (places, _) = array.bytes_mut().as_chunks_mut::<{ size_of::<$rust>() }>();
                for (place, element) in places.iter_mut().zip(elements) {
                    *place = element.to_ne_bytes();
                }
                Value::Array(Arc::new(array))
            }
        }
    )*};
}

array!(u8 => UChar or Char, i8 => Char, u16 => UShort, i16 => Short, u32 => UInt, i32 => Int, u64 => ULong, i64 => Long, f32 => Float, f64 => Double);

/// What a function takes: a tuple of up to eight [`Argument`]s.
pub trait Arguments: Sized {
    /// For each, whether it stands for a tag, and how messages call it.
    fn wanted() -> Vec<(Option<bool>, String)>;

    /// The values, taken out of their places.
    ///
    /// # Errors
    ///
    /// The place of the first that is of another type, and the name of the one that is wanted.
    fn take(values: &mut [Value]) -> Result<Self, (usize, String)>;
}

/// What a function can put out: a tuple of values.
pub trait Row {
    /// Calls `put` with the values.
    fn with<R>(self, put: impl FnOnce(&mut [Value]) -> R) -> R;
}

macro_rules! tuple {
    ($($argument:ident $at:tt),*) => {
        impl<$($argument: Argument),*> Arguments for ($($argument,)*) {
            fn wanted() -> Vec<(Option<bool>, String)> {
                vec![$(($argument::TAG, $argument::name())),*]
            }

            #[inline]
            fn take(values: &mut [Value]) -> Result<Self, (usize, String)> {
                let _ = &values;
                Ok(($(
                    match values.get_mut($at).and_then($argument::take) {
                        Some(value) => value,
                        None => return Err(($at, $argument::name())),
                    },
                )*))
            }
        }

        impl<$($argument: Into<Value>),*> Row for ($($argument,)*) {
            #[inline]
            fn with<R>(self, put: impl FnOnce(&mut [Value]) -> R) -> R {
                put(&mut [$(self.$at.into()),*])
            }
        }
    };
}

tuple!();
tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

impl Out<'_> {
    /// Puts out a record, as [`put`](Self::put) does: a tuple of the values of output `variant`, counted from 1, in the order
    /// of the declaration.
    ///
    /// # Errors
    ///
    /// As `put`.
    #[inline]
    pub fn emit(&mut self, variant: usize, values: impl Row) -> Result<bool, String> {
        values.with(|values| self.put(variant, values))
    }
}

/// How a function ends: with nothing, or with a result whose error is the box's. What a good result holds does not matter, so
/// that a function may end with an [`emit`](Out::emit).
pub trait Ending {
    /// The result with its error as text.
    ///
    /// # Errors
    ///
    /// The function's.
    fn result(self) -> Result<(), String>;
}

impl Ending for () {
    #[inline]
    fn result(self) -> Result<(), String> {
        Ok(())
    }
}

impl<T, E: Display> Ending for Result<T, E> {
    #[inline]
    fn result(self) -> Result<(), String> {
        match self {
            Ok(_) => Ok(()),
            Err(why) => Err(why.to_string()),
        }
    }
}

/// Why arguments cannot stand for the labels of a signature.
pub(super) fn unfit<A: Arguments>(signature: &Signature) -> Option<String> {
    let wanted = A::wanted();
    let labels = signature.input.as_deref().unwrap_or_default();
    if wanted.len() != labels.len() {
        let names: Vec<String> = wanted.into_iter().map(|(_, name)| name).collect();
        let comma = if names.len() == 1 { "," } else { "" };
        return Some(format!(
            "the function takes {} values, ({}{comma}), and the signature has {}",
            names.len(),
            names.join(", "),
            labels.len()
        ));
    }
    let wrong = |(label, (tag, _)): &(&Label, (Option<bool>, String))| {
        tag.is_some_and(|tag| tag != (label.kind() != Kind::Field))
    };
    labels.iter().zip(wanted).find(wrong).map(|(label, (tag, name))| match tag {
        Some(true) => format!("{label} is a field, and the function takes a Tag for it"),
        _ => format!("{label} is a tag, and the function takes {name} for it: let it take a Tag"),
    })
}

/// A function with what it takes.
pub(super) struct Function<F, A> {
    pub(super) function: F,
    pub(super) arguments: PhantomData<fn(A)>,
}

impl<F, A, R> BoxBody for Function<F, A>
where
    A: Arguments,
    R: Ending,
    F: Fn(A, &mut Out<'_>) -> R + Send + Sync,
{
    fn call(&self, input: &mut [Value], out: &mut Out<'_>) -> Result<(), String> {
        match A::take(input) {
            Ok(arguments) => (self.function)(arguments, out).result(),
            Err((at, wanted)) => Err(mismatch(at, &wanted, input, out)),
        }
    }
}

#[cold]
fn mismatch(at: usize, wanted: &str, input: &[Value], out: &Out<'_>) -> String {
    let label = out.plan().input.as_ref().and_then(|input| input.get(at));
    match (label, input.get(at)) {
        (Some(entry), Some(value)) => {
            format!("{} is to be {wanted}, and is {value:?}: {}", entry.label, out.plan())
        }
        _ => format!("it takes more values than it is given: {}", out.plan()),
    }
}
