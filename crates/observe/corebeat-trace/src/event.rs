//! Events and their encoding.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};

/// Limit on the number of kinds of a process.
pub const KINDS_MAX: usize = (1 << crate::packet::KIND_BITS) - 1;
/// Limit on the number of fields of a kind.
pub const FIELDS_MAX: usize = 32;
/// Limit on the bytes of a name or a text; longer texts are truncated.
pub const TEXT_BYTES_MAX: usize = 255;
/// Limit on the bytes of an event.
pub(crate) const EVENT_BYTES_MAX: usize = 4 + FIELDS_MAX * (TEXT_BYTES_MAX + 1);

/// An event, whose kind is declared once by a derive.
///
/// ```
/// use corebeat_trace::Event;
///
/// #[derive(Event)]
/// struct Paid {
///     account: u32,
///     cents: i64,
/// }
///
/// #[derive(Event)]
/// #[event(name = "stm.read", untimed)] // ordered, but without a time stamp
/// struct Read<'a> {
///     #[event(hex)] // shown as 0x...
///     address: u64,
///     place: &'a str,
/// }
///
/// #[derive(Event)]
/// #[event(untimed, kept)] // later events depend on it: every part of the trace includes it
/// struct Account<'a> {
///     account: u32,
///     name: &'a str,
/// }
/// ```
///
/// The struct has named fields or none, and no generic parameters except lifetimes.
pub trait Event {
    /// Whether events of this kind have a time stamp. An untimed event costs much less; its order
    /// is still known.
    const TIMED: bool;

    /// The fields, nested: `(first, (second, ()))`.
    type Fields<'a>: Fields
    where
        Self: 'a;

    /// The declaration, shared by all events of this type.
    fn kind() -> &'static Kind;

    /// The fields' values.
    fn fields(&self) -> Self::Fields<'_>;
}

/// The type of a field: integers, floating-point numbers, `bool`, and texts of at most
/// [`TEXT_BYTES_MAX`] bytes. Types that convert to one of these may implement it.
pub trait Field {
    /// The type that is written.
    type Plain<'a>: Plain
    where
        Self: 'a;

    /// Converts to the type that is written.
    fn plain(&self) -> Self::Plain<'_>;
}

/// A type that is written directly: numbers, `bool`, `&str`. The trait is sealed.
pub trait Plain: Copy + sealed::Encode {
    /// The type in the file.
    const TYPE: Type;
}

/// The fields of an event: `()`, or a [`Plain`] and the other fields. The trait is sealed.
pub trait Fields: Copy + sealed::Encode {}

impl Fields for () {}
impl<P: Plain, F: Fields> Fields for (P, F) {}

pub(crate) mod sealed {
    /// Writes a value into a buffer. The trait is sealed, so that no user code runs while an event
    /// is written.
    pub trait Encode {
        /// Number of bytes that `encode` writes.
        fn bytes(&self) -> usize;

        /// Writes the value in little-endian order. Returns the end.
        ///
        /// # Safety
        ///
        /// That many bytes are free at `at`.
        unsafe fn encode(&self, at: *mut u8) -> *mut u8;
    }
}

use sealed::Encode;

impl Encode for () {
    #[inline(always)]
    fn bytes(&self) -> usize {
        0
    }

    #[inline(always)]
    unsafe fn encode(&self, at: *mut u8) -> *mut u8 {
        at
    }
}

impl<P: Encode, F: Encode> Encode for (P, F) {
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.0.bytes() + self.1.bytes()
    }

    #[inline(always)]
    unsafe fn encode(&self, at: *mut u8) -> *mut u8 {
        // SAFETY: both values fit, by the contract of this function.
        unsafe { self.1.encode(self.0.encode(at)) }
    }
}

/// Types of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names describe the variants")]
pub enum Type {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
    Bool,
    /// UTF-8, preceded by a byte with the length.
    Text,
}

impl Type {
    /// All types, indexed by their number in files.
    pub(crate) const ALL: [Type; 12] = [
        Type::U8,
        Type::U16,
        Type::U32,
        Type::U64,
        Type::I8,
        Type::I16,
        Type::I32,
        Type::I64,
        Type::F32,
        Type::F64,
        Type::Bool,
        Type::Text,
    ];

    /// Size in bytes, or `None` for variable size.
    pub(crate) fn bytes(self) -> Option<usize> {
        Some(match self {
            Type::U8 | Type::I8 | Type::Bool => 1,
            Type::U16 | Type::I16 => 2,
            Type::U32 | Type::I32 | Type::F32 => 4,
            Type::U64 | Type::I64 | Type::F64 => 8,
            Type::Text => return None,
        })
    }
}

/// The declaration of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldKind {
    pub(crate) name: &'static str,
    pub(crate) of: Type,
    pub(crate) hex: bool,
}

impl FieldKind {
    /// A field with this name. `hex` requests display in base 16.
    pub const fn new(name: &'static str, of: Type, hex: bool) -> FieldKind {
        FieldKind { name, of, hex }
    }
}

/// The declaration of a kind, a static. Its number in this process is assigned at its first use.
#[derive(Debug)]
pub struct Kind {
    pub(crate) name: &'static str,
    pub(crate) timed: bool,
    pub(crate) kept: bool,
    pub(crate) fields: &'static [FieldKind],
    /// Starts at 1; 0: not assigned yet.
    number: AtomicU16,
}

/// All kinds that have a number, in the order of numbers.
static KINDS: Mutex<Vec<&'static Kind>> = Mutex::new(Vec::new());

impl Kind {
    /// A kind with this name. [`Cut`](crate::Cut) includes all events of a `kept` kind.
    pub const fn new(
        name: &'static str,
        timed: bool,
        kept: bool,
        fields: &'static [FieldKind],
    ) -> Kind {
        assert!(fields.len() <= FIELDS_MAX, "a kind has too many fields");
        Kind { name, timed, kept, fields, number: AtomicU16::new(0) }
    }

    /// The number, if assigned.
    #[inline(always)]
    pub(crate) fn number(&self) -> Option<u16> {
        // Relaxed: no other data depends on the number.
        match self.number.load(Ordering::Relaxed) {
            0 => None,
            number => Some(number),
        }
    }

    /// Assigns a number. Returns `None` if [`KINDS_MAX`] kinds exist.
    pub(crate) fn register(&'static self) -> Option<u16> {
        let mut kinds = KINDS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = self.number() {
            return Some(number);
        }
        if kinds.len() == KINDS_MAX {
            return None;
        }
        kinds.push(self);
        let number = kinds.len() as u16;
        // Relaxed: the writer of an event with this number takes the lock before it writes the
        // declaration (`after`).
        self.number.store(number, Ordering::Relaxed);
        Some(number)
    }

    /// The kinds whose number is greater than this.
    pub(crate) fn after(number: usize) -> Vec<&'static Kind> {
        KINDS.lock().unwrap_or_else(PoisonError::into_inner)[number..].to_vec()
    }
}

macro_rules! number {
    ($($type:ty: $of:ident as $as:ty),*) => {$(
        impl Field for $type {
            type Plain<'a> = $type;

            #[inline(always)]
            fn plain(&self) -> $type {
                *self
            }
        }

        impl Plain for $type {
            const TYPE: Type = Type::$of;
        }

        impl Encode for $type {
            #[inline(always)]
            fn bytes(&self) -> usize {
                size_of::<$as>()
            }

            #[inline(always)]
            unsafe fn encode(&self, at: *mut u8) -> *mut u8 {
                // SAFETY: the value fits, by the contract of this function.
                unsafe { write(at, &(*self as $as).to_le_bytes()) }
            }
        }
    )*};
}

number!(
    u8: U8 as u8, u16: U16 as u16, u32: U32 as u32, u64: U64 as u64, usize: U64 as u64,
    i8: I8 as i8, i16: I16 as i16, i32: I32 as i32, i64: I64 as i64, isize: I64 as i64,
    f32: F32 as f32, f64: F64 as f64, bool: Bool as u8
);

/// Writes bytes. Returns their end.
///
/// # Safety
///
/// That many bytes are free at `at`.
#[inline(always)]
unsafe fn write(at: *mut u8, bytes: &[u8]) -> *mut u8 {
    // SAFETY: guaranteed by the caller; the buffer is not borrowed elsewhere.
    unsafe {
        at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        at.add(bytes.len())
    }
}

impl Field for str {
    type Plain<'a> = &'a str;

    #[inline(always)]
    fn plain(&self) -> &str {
        self
    }
}

impl Field for String {
    type Plain<'a> = &'a str;

    #[inline(always)]
    fn plain(&self) -> &str {
        self
    }
}

impl<F: Field + ?Sized> Field for &F {
    type Plain<'a>
        = F::Plain<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn plain(&self) -> F::Plain<'_> {
        F::plain(self)
    }
}

impl Plain for &str {
    const TYPE: Type = Type::Text;
}

impl Encode for &str {
    #[inline(always)]
    fn bytes(&self) -> usize {
        1 + cut(self).len()
    }

    #[inline(always)]
    unsafe fn encode(&self, at: *mut u8) -> *mut u8 {
        let text = cut(self).as_bytes();
        // SAFETY: length and text fit, by the contract of this function.
        unsafe { write(write(at, &[text.len() as u8]), text) }
    }
}

/// The longest prefix of a text within the limit.
#[inline]
pub(crate) fn cut(text: &str) -> &str {
    if text.len() <= TEXT_BYTES_MAX {
        return text;
    }
    let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}
