//! Values: what a record holds under a label.

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::sync::Arc;

/// What a field or a tag holds. Cheap to copy: what is large is shared.
#[derive(Clone)]
pub enum Value {
    /// What a tag holds. Networks compute with it as C does with an `int`.
    Tag(i32),
    /// A field of one element, but for `long double`.
    Scalar(Scalar),
    /// A field of many elements, or none, or of `long double`.
    Array(Arc<Array>),
    /// A field that only boxes in Rust can look into.
    Native(Arc<Native>),
}

/// The types of C that a field can be made of, as the interface of C boxes numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Element {
    /// `unsigned char`
    UChar,
    /// `char`: text, as a rule, in UTF-8
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
    /// `void *`: an address that means something to boxes in C; it cannot be written as text
    Pointer,
}

impl Element {
    /// All of them, in the order of their numbers.
    pub const ALL: [Element; 12] = {
        use Element::*;
        [UChar, Char, UShort, Short, UInt, Int, ULong, Long, Float, Double, LongDouble, Pointer]
    };

    /// How C calls it.
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

    /// Bytes of one.
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

/// One element of a type of C.
#[derive(Clone, Copy)]
#[repr(align(8))] // two words are moved at a stroke
pub struct Scalar {
    element: Element,
    /// Its bytes, at the front.
    bytes: [u8; 8],
}

impl Scalar {
    /// An element of this type from its bytes: the first [`Element::size`] of them.
    ///
    /// # Panics
    ///
    /// For a `long double`, which has more bytes.
    #[inline]
    pub fn new(element: Element, bytes: [u8; 8]) -> Scalar {
        assert!(element.size() <= 8, "a long double is an array of one");
        Scalar { element, bytes }
    }

    /// Its type.
    #[inline]
    pub fn element(self) -> Element {
        self.element
    }

    /// Its bytes: the first [`Element::size`] mean something.
    #[inline]
    pub fn bytes(self) -> [u8; 8] {
        self.bytes
    }

    /// It as a whole number, if its type is one.
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

    /// It as a real number, if its type is one.
    pub fn real(self) -> Option<f64> {
        let b = self.bytes;
        match self.element {
            Element::Float => Some(f32::from_ne_bytes([b[0], b[1], b[2], b[3]]).into()),
            Element::Double => Some(f64::from_ne_bytes(b)),
            _ => None,
        }
    }
}

/// Elements of one type of C, in memory as C has them.
pub struct Array(Elements);

/// In each, the last bytes may be spare. Boxes in C may write into what they share.
enum Elements {
    /// In the array's own place: short texts need no more memory than this.
    Few { element: Element, len: u8, words: [UnsafeCell<u64>; FEW_BYTES / 8] },
    /// Aligned as the largest element wants it.
    Many { element: Element, len: usize, words: Box<[UnsafeCell<u128>]> },
}

/// With what `Arc` and the allocator add, a short array is a line of the cache.
const FEW_BYTES: usize = 32;
const _: () = assert!(size_of::<Array>() == 40);

// SAFETY: Rust writes only through `&mut`. Boxes in C write through `as_ptr`, and it is for them, as for all memory that they
// share between threads, not to do so while others look.
unsafe impl Sync for Array {}

impl Array {
    /// An array of this many elements, all bytes 0.
    pub fn zeroed(element: Element, len: usize) -> Array {
        let bytes = element.size().checked_mul(len).expect("an array is smaller than the address space");
        if Self::is_few(element, bytes) {
            return Array::few(element, len);
        }
        let words: Box<[u128]> = vec![0; bytes.div_ceil(16)].into();
        // SAFETY: a cell is in memory as what it holds.
        let words = unsafe { Box::from_raw(Box::into_raw(words) as *mut [UnsafeCell<u128>]) };
        Array(Elements::Many { element, len, words })
    }

    /// An array of the elements that these bytes are.
    ///
    /// # Panics
    ///
    /// If the bytes are no whole number of elements.
    pub fn from_bytes(element: Element, bytes: &[u8]) -> Array {
        assert!(bytes.len().is_multiple_of(element.size()), "an array is made of whole elements");
        let len = bytes.len() / element.size();
        if Self::is_few(element, bytes.len()) {
            let mut array = Array::few(element, len);
            array.bytes_mut().copy_from_slice(bytes);
            return array;
        }
        let (whole, rest) = bytes.as_chunks();
        let mut words = Vec::with_capacity(bytes.len().div_ceil(16));
        words.extend(whole.iter().map(|word| UnsafeCell::new(u128::from_ne_bytes(*word))));
        if !rest.is_empty() {
            let mut last = [0; 16];
            last[..rest.len()].copy_from_slice(rest);
            words.push(UnsafeCell::new(u128::from_ne_bytes(last)));
        }
        Array(Elements::Many { element, len, words: words.into() })
    }

    /// Whether so many bytes stand in the array's own place. A `long double` is aligned in a larger way.
    #[inline]
    fn is_few(element: Element, bytes: usize) -> bool {
        bytes <= FEW_BYTES && element != Element::LongDouble
    }

    /// All bytes 0.
    #[inline]
    fn few(element: Element, len: usize) -> Array {
        let words = [const { UnsafeCell::new(0) }; FEW_BYTES / 8];
        Array(Elements::Few { element, len: len as u8, words })
    }

    /// The type of its elements.
    pub fn element(&self) -> Element {
        match self.0 {
            Elements::Few { element, .. } | Elements::Many { element, .. } => element,
        }
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        match self.0 {
            Elements::Few { len, .. } => len.into(),
            Elements::Many { len, .. } => len,
        }
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where its elements stand, for code in C that may write there.
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.0 {
            Elements::Few { words, .. } => words.as_ptr().cast_mut().cast(),
            Elements::Many { words, .. } => words.as_ptr().cast_mut().cast(),
        }
    }

    /// Its elements, byte by byte.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the words are at least this many initialised bytes, and bytes have no alignment.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len() * self.element().size()) }
    }

    /// Its elements, byte by byte, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`; nobody else has them, because `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len() * self.element().size()) }
    }
}

/// A value of a Rust type.
pub struct Native {
    value: Box<dyn Any + Send + Sync>,
    type_name: &'static str,
}

impl Native {
    /// The name of its type.
    pub fn type_name(&self) -> &'static str {
        self.type_name
    }
}

impl Value {
    /// A value of any Rust type, for boxes in Rust. It is shared, not copied, where a record is copied.
    pub fn native<T: Any + Send + Sync>(value: T) -> Value {
        Value::Native(Arc::new(Native { value: Box::new(value), type_name: std::any::type_name::<T>() }))
    }

    /// The value of a Rust type in it, if it is one of that type.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        match self {
            Value::Native(native) => native.value.downcast_ref(),
            _ => None,
        }
    }

    /// The value of a Rust type in it, taken out if nobody shares it.
    pub fn downcast<T: Any>(self) -> Result<T, Value> {
        match self {
            Value::Native(native) if native.value.is::<T>() => match Arc::try_unwrap(native) {
                Ok(native) => Ok(*native.value.downcast().expect("its type was looked at")),
                Err(native) => Err(Value::Native(native)),
            },
            other => Err(other),
        }
    }

    /// A field of bytes.
    pub fn bytes(bytes: &[u8]) -> Value {
        Value::Array(Arc::new(Array::from_bytes(Element::UChar, bytes)))
    }

    /// The bytes of a text or of bytes; `None` for other values.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Array(a) if matches!(a.element(), Element::Char | Element::UChar) => Some(a.bytes()),
            Value::Scalar(s) if matches!(s.element, Element::Char | Element::UChar) => Some(&s.bytes[..1]),
            _ => None,
        }
    }

    /// The text in it; `None` if it is no `char` array in UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Array(a) if a.element() == Element::Char => std::str::from_utf8(a.bytes()).ok(),
            Value::Scalar(s) if s.element == Element::Char => std::str::from_utf8(&s.bytes[..1]).ok(),
            _ => None,
        }
    }

    /// The whole number in it, a tag's or a field's.
    pub fn integer(&self) -> Option<i128> {
        match self {
            Value::Tag(n) => Some((*n).into()),
            Value::Scalar(s) => s.integer(),
            _ => None,
        }
    }

    /// The real number in it.
    pub fn real(&self) -> Option<f64> {
        match self {
            Value::Scalar(s) => s.real(),
            _ => None,
        }
    }
}

/// A tag of 0: what is left where a value was taken out.
impl Default for Value {
    fn default() -> Value {
        Value::Tag(0)
    }
}

/// A `char` array.
impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Array(Arc::new(Array::from_bytes(Element::Char, text.as_bytes())))
    }
}

macro_rules! scalar {
    ($($rust:ty => $element:ident),*) => {$(
        #[doc = concat!("A field of one `", stringify!($rust), "`.")]
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

scalar!(u8 => UChar, i8 => Char, u16 => UShort, i16 => Short, u32 => UInt, i32 => Int, u64 => ULong, i64 => Long, f32 => Float, f64 => Double);

/// Equal bytes of an equal type; for Rust values, the same value.
impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Tag(a), Value::Tag(b)) => a == b,
            (Value::Scalar(a), Value::Scalar(b)) => {
                let n = a.element.size();
                a.element == b.element && a.bytes[..n] == b.bytes[..n]
            }
            (Value::Array(a), Value::Array(b)) => a.element() == b.element() && a.bytes() == b.bytes(),
            (Value::Native(a), Value::Native(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// A tag's number, or the value with its type as in records of text, cut short.
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

/// Values travel between tasks all the time: two words.
const _: () = assert!(size_of::<Value>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_of_any_length_holds_its_bytes_where_they_may_be_changed() {
        for element in Element::ALL {
            for len in [0, 1, 2, 3, 4, 5, 8, 16, 31, 32, 33, 50] {
                let bytes: Vec<u8> = (0..len * element.size()).map(|i| i as u8).collect();
                let mut array = Array::from_bytes(element, &bytes);
                assert_eq!((array.element(), array.len(), array.bytes()), (element, len, &bytes[..]));
                assert!(array.as_ptr().addr().is_multiple_of(element.size()));
                array.bytes_mut().fill(7);
                for i in 0..bytes.len() / 2 {
                    // SAFETY: within the array, which nobody else looks at.
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
            }
        }
    }
}
