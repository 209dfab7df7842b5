//! What an event is, and how it becomes bytes.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};

/// Kinds of events that a process may have.
pub const KINDS_MAX: usize = (1 << crate::packet::KIND_BITS) - 1;
/// Fields that a kind may have.
pub const FIELDS_MAX: usize = 32;
/// Bytes of a kind's or field's name, and of a text in an event: longer texts are cut.
pub const TEXT_BYTES_MAX: usize = 255;
/// Bytes of an event.
pub(crate) const EVENT_BYTES_MAX: usize = 4 + FIELDS_MAX * (TEXT_BYTES_MAX + 1);

/// Something that happened, of a kind that is declared once: derive it.
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
/// #[event(name = "stm.read", untimed)] // in order, without a time stamp of its own
/// struct Read<'a> {
///     #[event(hex)] // shown as 0x...
///     address: u64,
///     place: &'a str,
/// }
///
/// #[derive(Event)]
/// #[event(untimed, kept)] // said once, for all that comes: also a piece of the trace has it
/// struct Account<'a> {
///     account: u32,
///     name: &'a str,
/// }
/// ```
///
/// A struct has named fields, or none, and no parameters but lifetimes.
pub trait Event {
    /// Whether events of this kind have a time stamp. Where order is enough, most of the cost can be saved.
    const TIMED: bool;

    /// The fields, one in the other: `(first, (second, ()))`.
    type Fields<'a>: Fields
    where
        Self: 'a;

    /// The declaration, one for all events of this type.
    fn kind() -> &'static Kind;

    /// The fields' values.
    fn fields(&self) -> Self::Fields<'_>;
}

/// What a field may be: integers, floating-point numbers, `bool`, and texts of at most [`TEXT_BYTES_MAX`] bytes. Types that
/// are one of these in the end may implement it.
pub trait Field {
    /// What it is in the end.
    type Plain<'a>: Plain
    where
        Self: 'a;

    /// Makes it that.
    fn plain(&self) -> Self::Plain<'_>;
}

/// What is written as it is: numbers, `bool`, `&str`. No other type can be.
pub trait Plain: Copy + sealed::Encode {
    /// As what it is read.
    const TYPE: Type;
}

/// The fields of an event: `()`, or a [`Plain`] and the others. No other type can be.
pub trait Fields: Copy + sealed::Encode {}

impl Fields for () {}
impl<P: Plain, F: Fields> Fields for (P, F) {}

pub(crate) mod sealed {
    /// What can be written into a buffer. All that does is here: no code of others runs while an event is written.
    pub trait Encode {
        /// Bytes that `encode` writes.
        fn bytes(&self) -> usize;

        /// Writes them, least significant byte first. Where they end.
        ///
        /// # Safety
        ///
        /// There is room for that many bytes.
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
        // SAFETY: there is room for both.
        unsafe { self.1.encode(self.0.encode(at)) }
    }
}

/// Types of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are what they are called")]
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
    /// UTF-8 behind a byte that says how long.
    Text,
}

impl Type {
    /// All, where each has its number in files.
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

    /// Bytes of one; `None`: as many as it says itself.
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

/// A field's declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldKind {
    pub(crate) name: &'static str,
    pub(crate) of: Type,
    pub(crate) hex: bool,
}

impl FieldKind {
    /// A field of this name. `hex`: to be shown in base 16.
    pub const fn new(name: &'static str, of: Type, hex: bool) -> FieldKind {
        FieldKind { name, of, hex }
    }
}

/// A kind's declaration, a static: it gets its number in this process when it is used first.
#[derive(Debug)]
pub struct Kind {
    pub(crate) name: &'static str,
    pub(crate) timed: bool,
    pub(crate) kept: bool,
    pub(crate) fields: &'static [FieldKind],
    /// From 1; 0: it has none yet.
    number: AtomicU16,
}

/// All that have a number, by that.
static KINDS: Mutex<Vec<&'static Kind>> = Mutex::new(Vec::new());

impl Kind {
    /// A kind of this name. `kept`: [`Cut`](crate::Cut) leaves none of its events out.
    pub const fn new(name: &'static str, timed: bool, kept: bool, fields: &'static [FieldKind]) -> Kind {
        assert!(fields.len() <= FIELDS_MAX, "a kind has too many fields");
        Kind { name, timed, kept, fields, number: AtomicU16::new(0) }
    }

    /// Its number, if it has one.
    #[inline(always)]
    pub(crate) fn number(&self) -> Option<u16> {
        // Relaxed: the number is all that is known by it.
        match self.number.load(Ordering::Relaxed) {
            0 => None,
            number => Some(number),
        }
    }

    /// Gives it one. `None`: there are [`KINDS_MAX`] already.
    pub(crate) fn enlist(&'static self) -> Option<u16> {
        let mut kinds = KINDS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = self.number() {
            return Some(number);
        }
        if kinds.len() == KINDS_MAX {
            return None;
        }
        kinds.push(self);
        let number = kinds.len() as u16;
        // Relaxed: who writes what has this number down takes the lock first (`after`).
        self.number.store(number, Ordering::Relaxed);
        Some(number)
    }

    /// Those whose number is greater than this.
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
                // SAFETY: there is room for it.
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

/// Writes bytes; where they end.
///
/// # Safety
///
/// There is room for them.
#[inline(always)]
unsafe fn write(at: *mut u8, bytes: &[u8]) -> *mut u8 {
    // SAFETY: there is room, in a buffer that is nowhere else borrowed.
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
        // SAFETY: there is room for both.
        unsafe { write(write(at, &[text.len() as u8]), text) }
    }
}

/// As much of a text as there is room for.
#[inline]
pub(crate) fn cut(text: &str) -> &str {
    if text.len() <= TEXT_BYTES_MAX {
        return text;
    }
    let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}
