//! Values of fields and tags.

pub(crate) mod spare;

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::sync::Arc;

use crate::label::{Kind, Label};

/// Value of a field or a tag. Copies are cheap, because large values are shared.
#[derive(Clone)]
pub enum Value {
    /// Value of a tag, and of no field. Networks compute with it like C with an `int`.
    Tag(i32),
    /// Field of one element of a type other than `long double`.
    Scalar(Scalar),
    /// Field of any number of elements, or of `long double`.
    Array(Arc<Array>),
    /// Field that only boxes in Rust can read.
    Native(Arc<Native>),
}

/// C types of fields, with the numbers of the interface of C boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Element {
    /// `unsigned char`
    UChar,
    /// `char`, usually text in UTF-8
    Char,
    /// `unsigned short`
    UShort,
    /// `short`
    Short,
    /// `unsigned int`
    UInt,
    /// `int`
    Int,
    /// `unsigned long`
    ULong,
    /// `long`
    Long,
    /// `float`
    Float,
    /// `double`
    Double,
    /// `long double`
    LongDouble,
    /// `void *`: an address for boxes in C, which has no text
    Pointer,
}

impl Element {
    /// All types in the order of their numbers.
    pub const ALL: [Element; 12] = {
        use Element::*;
        [UChar, Char, UShort, Short, UInt, Int, ULong, Long, Float, Double, LongDouble, Pointer]
    };

    /// Name of the type in C.
    pub fn name(self) -> &'static str {
        match self {
            Element::UChar => "unsigned char",
            Element::Char => "char",
            Element::UShort => "unsigned short",
            Element::Short => "short",
            Element::UInt => "unsigned int",
            Element::Int => "int",
            Element::ULong => "unsigned long",
            Element::Long => "long",
            Element::Float => "float",
            Element::Double => "double",
            Element::LongDouble => "long double",
            Element::Pointer => "void *",
        }
    }

    /// Size of one element in bytes.
    #[inline]
    pub fn size(self) -> usize {
        match self {
            Element::UChar | Element::Char => 1,
            Element::UShort | Element::Short => 2,
            Element::UInt | Element::Int | Element::Float => 4,
            Element::ULong | Element::Long | Element::Double | Element::Pointer => 8,
            Element::LongDouble => 16,
        }
    }
}

/// One element of a C type.
#[derive(Clone, Copy)]
#[repr(align(8))] // two words are moved with one instruction
pub struct Scalar {
    element: Element,
    /// Bytes of the element, from index 0.
    bytes: [u8; 8],
}

impl Scalar {
    /// Creates an element from the first [`Element::size`] bytes.
    ///
    /// # Panics
    ///
    /// Panics for a `long double`, which has more bytes.
    #[inline]
    pub fn new(element: Element, bytes: [u8; 8]) -> Scalar {
        assert!(element.size() <= 8, "a long double is an array of one");
        Scalar { element, bytes }
    }

    /// Type of the element.
    #[inline]
    pub fn element(self) -> Element {
        self.element
    }

    /// Bytes of the element, of which the first [`Element::size`] are valid.
    #[inline]
    pub fn bytes(self) -> [u8; 8] {
        self.bytes
    }

    /// Returns the value if the type is a whole number.
    pub fn integer(self) -> Option<i128> {
        let b = self.bytes;
        Some(match self.element {
            Element::UChar => b[0].into(),
            Element::Char => (b[0] as i8).into(),
            Element::UShort => u16::from_ne_bytes([b[0], b[1]]).into(),
            Element::Short => i16::from_ne_bytes([b[0], b[1]]).into(),
            Element::UInt => u32::from_ne_bytes([b[0], b[1], b[2], b[3]]).into(),
            Element::Int => i32::from_ne_bytes([b[0], b[1], b[2], b[3]]).into(),
            Element::ULong => u64::from_ne_bytes(b).into(),
            Element::Long => i64::from_ne_bytes(b).into(),
            _ => return None,
        })
    }

    /// Returns the value if the type is a real number.
    pub fn real(self) -> Option<f64> {
        let b = self.bytes;
        match self.element {
            Element::Float => Some(f32::from_ne_bytes([b[0], b[1], b[2], b[3]]).into()),
            Element::Double => Some(f64::from_ne_bytes(b)),
            _ => None,
        }
    }
}

/// Elements of one C type, in the memory layout of C.
pub struct Array(Elements);

/// The last bytes of each variant may be unused. Boxes in C can write to shared elements.
enum Elements {
    /// Inline elements, so that short texts need no second allocation.
    Few { element: Element, len: u8, words: [UnsafeCell<u64>; FEW_BYTES / 8] },
    /// Aligned for the largest element. `is_spare` if the memory is kept after the drop.
    Many { element: Element, is_spare: bool, len: usize, words: Box<[UnsafeCell<u128>]> },
}

/// Copies bytes into words. The last word has zeros after the last byte.
#[doc(hidden)]
pub fn words(bytes: &[u8]) -> Vec<u128> {
    let (whole, rest) = bytes.as_chunks();
    let mut words = Vec::with_capacity(bytes.len().div_ceil(16));
    words.extend(whole.iter().map(|word| u128::from_ne_bytes(*word)));
    if !rest.is_empty() {
        let mut last = [0; 16];
        last[..rest.len()].copy_from_slice(rest);
        words.push(u128::from_ne_bytes(last));
    }
    words
}

/// Words that C may write to.
fn cells(words: Vec<u128>) -> Box<[UnsafeCell<u128>]> {
    let words = Box::into_raw(words.into_boxed_slice());
    // SAFETY: a cell has the memory layout of its content.
    unsafe { Box::from_raw(words as *mut [UnsafeCell<u128>]) }
}

/// With the overhead of `Arc` and the allocator, a short array fills a cache line.
const FEW_BYTES: usize = 32;
const _: () = assert!(size_of::<Array>() == 40);

// SAFETY: Rust writes only through `&mut`. Boxes in C write through `as_ptr`, and only to fields
// that they have created and not yet output (`C4SNet.h`), which no other thread can access.
unsafe impl Sync for Array {}

impl Array {
    /// Creates an array of `len` elements with all bytes 0.
    pub fn zeroed(element: Element, len: usize) -> Array {
        let bytes =
            element.size().checked_mul(len).expect("an array is smaller than the address space");
        if Self::is_few(element, bytes) {
            return Array::few(element, len);
        }
        let words = cells(vec![0; bytes.div_ceil(16)]);
        Array(Elements::Many { element, is_spare: false, len, words })
    }

    /// Creates an array of the elements in these bytes.
    ///
    /// # Panics
    ///
    /// Panics if the bytes are not a whole number of elements.
    pub fn from_bytes(element: Element, bytes: &[u8]) -> Array {
        assert!(bytes.len().is_multiple_of(element.size()), "an array consists of whole elements");
        let len = bytes.len() / element.size();
        if Self::is_few(element, bytes.len()) {
            let mut array = Array::few(element, len);
            array.bytes_mut().copy_from_slice(bytes);
            return array;
        }
        Array(Elements::Many { element, is_spare: false, len, words: cells(words(bytes)) })
    }

    /// Creates an array of the elements in these words, without a copy of a long one. The memory of
    /// a large one is kept for further messages of other ranks (the module `spare`). Returns `None`
    /// if this number of elements does not need this number of words.
    pub(crate) fn from_words(element: Element, len: usize, words: Vec<u128>) -> Option<Array> {
        let bytes = element.size().checked_mul(len)?;
        if words.len() != bytes.div_ceil(16) {
            return None;
        }
        let (is_spare, words) = (bytes >= spare::BYTES_MIN, cells(words));
        let many = Array(Elements::Many { element, is_spare, len, words });
        let is_few = Self::is_few(element, bytes);
        Some(if is_few { Array::from_bytes(element, many.bytes()) } else { many })
    }

    /// Whether this number of bytes is stored inline. A `long double` needs a larger alignment.
    #[inline]
    fn is_few(element: Element, bytes: usize) -> bool {
        bytes <= FEW_BYTES && element != Element::LongDouble
    }

    /// Creates an inline array with all bytes 0.
    #[inline]
    fn few(element: Element, len: usize) -> Array {
        let words = [const { UnsafeCell::new(0) }; FEW_BYTES / 8];
        Array(Elements::Few { element, len: len as u8, words })
    }

    /// Type of the elements.
    pub fn element(&self) -> Element {
        match self.0 {
            Elements::Few { element, .. } | Elements::Many { element, .. } => element,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self.0 {
            Elements::Few { len, .. } => len.into(),
            Elements::Many { len, .. } => len,
        }
    }

    /// Whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of the elements, for C code that may write to them.
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.0 {
            Elements::Few { words, .. } => words.as_ptr().cast_mut().cast(),
            Elements::Many { words, .. } => words.as_ptr().cast_mut().cast(),
        }
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the words have at least this number of initialised bytes, and bytes need no
        // alignment.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len() * self.element().size()) }
    }

    /// Mutable bytes of the elements.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the same as in `bytes`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len() * self.element().size()) }
    }
}

/// Keeps the memory of a field that came from another rank.
impl Drop for Array {
    #[inline]
    fn drop(&mut self) {
        if let Elements::Many { is_spare: true, words, .. } = &mut self.0 {
            let words = Box::into_raw(std::mem::take(words)) as *mut [u128];
            // SAFETY: a cell has the memory layout of its content, and nothing else refers to it.
            spare::keep(unsafe { Box::from_raw(words) });
        }
    }
}

/// Value of a Rust type.
pub struct Native {
    value: Box<dyn Any + Send + Sync>,
    type_name: &'static str,
}

impl Native {
    /// Name of the type.
    pub fn type_name(&self) -> &'static str {
        self.type_name
    }
}

impl Value {
    /// Creates a value of any Rust type, for boxes in Rust. Copies of a record share the value.
    pub fn native<T: Any + Send + Sync>(value: T) -> Value {
        Value::Native(Arc::new(Native {
            value: Box::new(value),
            type_name: std::any::type_name::<T>(),
        }))
    }

    /// Returns the Rust value if it has this type.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        match self {
            Value::Native(native) => native.value.downcast_ref(),
            _ => None,
        }
    }

    /// Whether records with this value can be written as text. Rust values and pointers have none.
    pub fn has_text(&self) -> bool {
        match self {
            Value::Tag(_) => true,
            Value::Scalar(scalar) => scalar.element() != Element::Pointer,
            Value::Array(array) => array.element() != Element::Pointer,
            Value::Native(_) => false,
        }
    }

    /// Whether labels of this kind have such values.
    #[inline]
    pub(crate) fn fits(&self, kind: Kind) -> bool {
        (kind == Kind::Field) != matches!(self, Value::Tag(_))
    }

    /// The correction for a value that does not fit the kind of its label.
    #[cold]
    pub(crate) fn cure(&self, label: Label) -> String {
        let whole = self.integer().and_then(|n| i32::try_from(n).ok());
        match (label.kind(), whole) {
            (Kind::Field, Some(n)) => format!("{label} is a field: write `Value::from({n})`"),
            (Kind::Field, None) => format!("{label} is a field: write no `Value::Tag`"),
            (_, Some(n)) => format!("{label} is a tag: write `Value::Tag({n})`"),
            (_, None) => format!("{label} is a tag: write a number of 32 bits, `Value::Tag(n)`"),
        }
    }

    /// Moves the Rust value out if it has this type and is not shared.
    ///
    /// # Errors
    ///
    /// Returns the value unchanged otherwise.
    pub fn downcast<T: Any>(self) -> Result<T, Value> {
        match self {
            Value::Native(native) if native.value.is::<T>() => match Arc::try_unwrap(native) {
                Ok(native) => Ok(*native.value.downcast().expect("the type was checked")),
                Err(native) => Err(Value::Native(native)),
            },
            other => Err(other),
        }
    }

    /// Creates a field of bytes.
    pub fn bytes(bytes: &[u8]) -> Value {
        Value::Array(Arc::new(Array::from_bytes(Element::UChar, bytes)))
    }

    /// Returns the bytes of a text or a field of bytes, or `None` for other values.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Array(a) if matches!(a.element(), Element::Char | Element::UChar) => {
                Some(a.bytes())
            }
            Value::Scalar(s) if matches!(s.element, Element::Char | Element::UChar) => {
                Some(&s.bytes[..1])
            }
            _ => None,
        }
    }

    /// Returns the text, or `None` if the value is not a `char` field in UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Array(a) if a.element() == Element::Char => std::str::from_utf8(a.bytes()).ok(),
            Value::Scalar(s) if s.element == Element::Char => {
                std::str::from_utf8(&s.bytes[..1]).ok()
            }
            _ => None,
        }
    }

    /// Returns the whole number of a tag or a field.
    pub fn integer(&self) -> Option<i128> {
        match self {
            Value::Tag(n) => Some((*n).into()),
            Value::Scalar(s) => s.integer(),
            _ => None,
        }
    }

    /// Returns the real number of a field.
    pub fn real(&self) -> Option<f64> {
        match self {
            Value::Scalar(s) => s.real(),
            _ => None,
        }
    }
}

/// A tag of 0, which replaces a value that was moved out.
impl Default for Value {
    fn default() -> Value {
        Value::Tag(0)
    }
}

/// Creates a `char` array.
impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Array(Arc::new(Array::from_bytes(Element::Char, text.as_bytes())))
    }
}

macro_rules! scalar {
    ($($rust:ty => $element:ident),*) => {$(
        #[doc = concat!("Creates a field of one `", stringify!($rust), "`.")]
        impl From<$rust> for Value {
            #[inline]
            fn from(n: $rust) -> Value {
                let mut bytes = [0; 8];
                bytes[..size_of::<$rust>()].copy_from_slice(&n.to_ne_bytes());
                Value::Scalar(Scalar { element: Element::$element, bytes })
            }
        }
    )*};
}

scalar!(
    u8 => UChar, i8 => Char, u16 => UShort, i16 => Short, u32 => UInt, i32 => Int, u64 => ULong,
    i64 => Long, f32 => Float, f64 => Double
);

/// Equal bytes of the same type. Rust values are equal only if they are shared.
impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Tag(a), Value::Tag(b)) => a == b,
            (Value::Scalar(a), Value::Scalar(b)) => {
                let n = a.element.size();
                a.element == b.element && a.bytes[..n] == b.bytes[..n]
            }
            (Value::Array(a), Value::Array(b)) => {
                a.element() == b.element() && a.bytes() == b.bytes()
            }
            (Value::Native(a), Value::Native(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// Number of a tag, or the value with its type as in textual records, shortened.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Tag(n) => write!(f, "{n}"),
            Value::Scalar(s) => match (s.integer(), s.real()) {
                (Some(n), _) => write!(f, "({}){n}", s.element.name()),
                (_, Some(x)) => write!(f, "({}){x}", s.element.name()),
                _ => write!(f, "({})", s.element.name()),
            },
            Value::Array(a) => match self.as_str() {
                Some(text) if text.len() <= 60 => write!(f, "{text:?}"),
                _ => write!(f, "({}[{}])", a.element().name(), a.len()),
            },
            Value::Native(native) => write!(f, "({})", native.type_name),
        }
    }
}

/// Values are moved between tasks very often: two words.
const _: () = assert!(size_of::<Value>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_of_any_length_holds_mutable_bytes() {
        for element in Element::ALL {
            for len in [0, 1, 2, 3, 4, 5, 8, 16, 31, 32, 33, 50] {
                let bytes: Vec<u8> = (0..len * element.size()).map(|i| i as u8).collect();
                let mut array = Array::from_bytes(element, &bytes);
                assert_eq!(
                    (array.element(), array.len(), array.bytes()),
                    (element, len, &bytes[..])
                );
                assert!(array.as_ptr().addr().is_multiple_of(element.size()));
                array.bytes_mut().fill(7);
                for i in 0..bytes.len() / 2 {
                    // SAFETY: the address is inside the array, which is not shared.
                    unsafe { array.as_ptr().add(i).write(9) };
                }
                assert!(
                    array
                        .bytes()
                        .iter()
                        .enumerate()
                        .all(|(i, b)| *b == if i < bytes.len() / 2 { 9 } else { 7 })
                );
                assert_eq!(Array::zeroed(element, len).bytes(), vec![0; bytes.len()]);
                let words = words(&bytes);
                let more = [&words[..], &[0]].concat();
                assert!(Array::from_words(element, len, more).is_none());
                let array = Array::from_words(element, len, words).unwrap();
                assert_eq!((array.len(), array.bytes()), (len, &bytes[..]));
            }
        }
    }
}
