//! Boxes in Rust: functions with typed arguments.

use std::fmt::Display;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use super::signature::Signature;
use crate::body::{BoxBody, Out};
use crate::label::{Kind, Label};
use crate::value::{Array, Element, Value};

/// Value of a tag as an argument or an output of a box.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub i32);

/// Field with a value of a Rust type, shared by all records that contain the field.
pub struct Shared<T> {
    /// Native value of that type.
    value: Value,
    kind: PhantomData<Arc<T>>,
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// Creates a field of this value.
    pub fn new(value: T) -> Shared<T> {
        Shared { value: Value::native(value), kind: PhantomData }
    }

    /// Returns the value if no other record shares it.
    ///
    /// # Errors
    ///
    /// Returns the field unchanged if another record shares the value.
    pub fn into_inner(self) -> Result<T, Shared<T>> {
        self.value.downcast().map_err(|value| Shared { value, kind: PhantomData })
    }
}

impl<T: 'static> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.downcast_ref().expect("the constructor checks the type")
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared { value: self.value.clone(), kind: PhantomData }
    }
}

/// Type of an argument of a box function.
#[diagnostic::on_unimplemented(
    message = "a box function cannot take a `{Self}`",
    label = "not an `Argument`",
    note = "take a number of a fixed size, a `String`, a `Vec` of numbers, a `Tag`, a `Value`, or \
            any other type in a `Shared`"
)]
pub trait Argument: Sized {
    /// Kind of label: `false` for a field, `true` for a tag, `None` for any.
    const TAG: Option<bool>;

    /// Name of the type in messages.
    fn name() -> String {
        std::any::type_name::<Self>().replace("alloc::string::", "").replace("alloc::vec::", "")
    }

    /// Moves the value out of `value` if it has this type.
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

/// Whole number of any C type whose value fits.
macro_rules! integer {
    ($($rust:ty => $element:ident),*) => {$(
        impl Argument for $rust {
            const TAG: Option<bool> = Some(false);

            #[inline]
            fn take(value: &mut Value) -> Option<$rust> {
                let Value::Scalar(scalar) = value else { return None };
                if scalar.element() == Element::$element {
                    let bytes = scalar.bytes();
                    return Some(<$rust>::from_ne_bytes(*bytes.first_chunk().expect("no number is \
                        longer than eight bytes")));
                }
                scalar.integer()?.try_into().ok()
            }
        }
    )*};
}

integer!(
    u8 => UChar, i8 => Char, u16 => UShort, i16 => Short, u32 => UInt, i32 => Int, u64 => ULong,
    i64 => Long
);

impl Argument for f32 {
    const TAG: Option<bool> = Some(false);

    fn take(value: &mut Value) -> Option<f32> {
        match value {
            Value::Scalar(s) if s.element() == Element::Float => s.real().map(|x| x as f32),
            _ => None,
        }
    }
}

/// A `double`, a `float`, or a whole number that a `double` represents exactly.
impl Argument for f64 {
    const TAG: Option<bool> = Some(false);

    fn take(value: &mut Value) -> Option<f64> {
        const EXACT_MAX: i128 = 1 << 53;
        let Value::Scalar(scalar) = value else { return None };
        scalar.real().or_else(|| {
            scalar.integer().filter(|n| (-EXACT_MAX..=EXACT_MAX).contains(n)).map(|n| n as f64)
        })
    }
}

impl Argument for String {
    const TAG: Option<bool> = Some(false);

    fn take(value: &mut Value) -> Option<String> {
        value.as_str().map(str::to_owned)
    }
}

/// Array without a copy.
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

/// `Vec` of elements from an array or a scalar, and the reverse. Bytes are also taken from text.
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

        #[doc = concat!("A field of `", stringify!($rust), "`s: an array, or a scalar for a \
            single element.")]
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

array!(
    u8 => UChar or Char, i8 => Char, u16 => UShort, i16 => Short, u32 => UInt, i32 => Int,
    u64 => ULong, i64 => Long, f32 => Float, f64 => Double
);

/// Arguments of a box function: a tuple of up to eight [`Argument`]s.
#[diagnostic::on_unimplemented(
    message = "a box function cannot take `{Self}` as its arguments",
    label = "not a tuple of arguments",
    note = "take one tuple of up to eight arguments, with a comma after a single one: `|(n,): \
            (i32,), out|`"
)]
pub trait Arguments: Sized {
    /// Kind of label and name of each argument.
    fn types() -> Vec<(Option<bool>, String)>;

    /// Moves the arguments out of the values.
    ///
    /// # Errors
    ///
    /// Returns the index of the first value with another type, and the name of the expected type.
    fn take(values: &mut [Value]) -> Result<Self, (usize, String)>;
}

/// Output of a box function: a tuple of values.
#[diagnostic::on_unimplemented(
    message = "a box cannot output `{Self}`",
    label = "not a tuple of values",
    note = "pass a tuple of up to eight values that convert into `Value`, with a comma after a \
            single one: `out.emit(1, (n,))`"
)]
pub trait Row {
    /// Calls `put` with the values.
    fn with<R>(self, put: impl FnOnce(&mut [Value]) -> R) -> R;
}

macro_rules! tuple {
    ($($argument:ident $at:tt),*) => {
        impl<$($argument: Argument),*> Arguments for ($($argument,)*) {
            fn types() -> Vec<(Option<bool>, String)> {
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
    /// Outputs a record like [`put`](Self::put): a tuple of the values of output `variant`, counted
    /// from 1, in the order of the declaration.
    ///
    /// # Errors
    ///
    /// Returns the errors of `put`.
    #[inline]
    pub fn emit(&mut self, variant: usize, values: impl Row) -> Result<bool, String> {
        values.with(|values| self.put(variant, values))
    }
}

/// Return type of a box function: `()`, or a `Result` whose error is the error of the box. The `Ok`
/// value is ignored, so that a function can end with [`emit`](Out::emit).
#[diagnostic::on_unimplemented(
    message = "a box function cannot return `{Self}`",
    label = "neither `()` nor a `Result`",
    note = "end with `out.emit(...)`, with `;`, or with a `Result` whose error can be printed"
)]
pub trait Ending {
    /// Converts the error to text.
    ///
    /// # Errors
    ///
    /// Returns the error of the function.
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

/// Returns the reason why arguments do not match the labels of a signature.
pub(super) fn unfit<A: Arguments>(signature: &Signature) -> Option<String> {
    let wanted = A::types();
    let labels = signature.input.as_deref().unwrap_or_default();
    if wanted.len() != labels.len() {
        let names: Vec<String> = wanted.into_iter().map(|(_, name)| name).collect();
        let comma = if names.len() == 1 { "," } else { "" };
        return Some(format!(
            "the function takes {} values, ({}{comma}), but the signature has {}",
            names.len(),
            names.join(", "),
            labels.len()
        ));
    }
    let wrong = |(label, (tag, _)): &(&Label, (Option<bool>, String))| {
        tag.is_some_and(|tag| tag != (label.kind() != Kind::Field))
    };
    labels.iter().zip(wanted).find(wrong).map(|(label, (tag, name))| match tag {
        Some(true) => format!("{label} is a field, but the function takes a Tag: use a field type"),
        _ => format!("{label} is a tag, but the function takes {name}: use Tag"),
    })
}

/// Function with the type of its arguments.
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
            format!("expected {wanted} for {}, found {value:?}: {}", entry.label, out.plan())
        }
        _ => format!("the function takes more values than it receives: {}", out.plan()),
    }
}
