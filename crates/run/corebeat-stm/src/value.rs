//! What cells hold: numbers and the like in a word, everything else behind an `Arc`.

use std::ptr;
use std::sync::Arc;

/// Something that fits into 64 bits. Implement it for types of your own to keep them in a [`TCell`](crate::TCell):
///
/// ```
/// use corebeat_stm::Word;
///
/// #[derive(Debug, Clone, Copy, PartialEq)]
/// enum Light { Red, Green }
///
/// impl Word for Light {
///     fn into_word(self) -> u64 { self as u64 }
///     fn from_word(word: u64) -> Self { if word == 0 { Light::Red } else { Light::Green } }
/// }
/// assert_eq!(Light::from_word(Light::Green.into_word()), Light::Green);
/// ```
pub trait Word: Copy + Send + Sync + 'static {
    /// As 64 bits.
    fn into_word(self) -> u64;
    /// Back again: only what [`into_word`](Word::into_word) gave is asked for.
    fn from_word(word: u64) -> Self;
}

macro_rules! words {
    ($($integer:ty)*) => {$(
        impl Word for $integer {
            #[inline(always)]
            fn into_word(self) -> u64 {
                self as u64
            }

            #[inline(always)]
            fn from_word(word: u64) -> Self {
                word as $integer
            }
        }
    )*};
}

words!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);

impl Word for bool {
    #[inline(always)]
    fn into_word(self) -> u64 {
        u64::from(self)
    }

    #[inline(always)]
    fn from_word(word: u64) -> Self {
        word != 0
    }
}

impl Word for char {
    fn into_word(self) -> u64 {
        u64::from(u32::from(self))
    }

    fn from_word(word: u64) -> Self {
        char::from_u32(word as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
    }
}

impl Word for f64 {
    #[inline(always)]
    fn into_word(self) -> u64 {
        self.to_bits()
    }

    #[inline(always)]
    fn from_word(word: u64) -> Self {
        f64::from_bits(word)
    }
}

impl Word for f32 {
    #[inline(always)]
    fn into_word(self) -> u64 {
        u64::from(self.to_bits())
    }

    #[inline(always)]
    fn from_word(word: u64) -> Self {
        f32::from_bits(word as u32)
    }
}

impl Word for () {
    fn into_word(self) -> u64 {
        0
    }

    fn from_word(_: u64) -> Self {}
}

/// An index, or none.
impl Word for Option<u32> {
    fn into_word(self) -> u64 {
        self.map_or(u64::MAX, u64::from)
    }

    fn from_word(word: u64) -> Self {
        u32::try_from(word).ok()
    }
}

/// What a [`TCell`](crate::TCell) may hold: each [`Word`], [`Arc`], and `Option<Arc>`. Nobody else implements it.
#[diagnostic::on_unimplemented(
    message = "a cell cannot hold `{Self}`",
    note = "put it into an `Arc`, or implement `Word` for it if it fits into 64 bits"
)]
pub trait Value: form::Form {
    /// What a transaction reads: a copy of a word, and a reference to what is in an `Arc`, for as long as the attempt lasts.
    type Ref<'t>;

    #[doc(hidden)]
    /// # Safety
    ///
    /// The pointer is from `into_pointer`, and what it stands for stays for `'t`.
    unsafe fn from_pointer<'t>(pointer: *mut ()) -> Self::Ref<'t>;
}

pub(crate) mod form {
    /// How a value is kept, as something of a pointer's size.
    pub trait Form: Sized + Send + Sync + 'static {
        /// Whether it is to be dropped.
        const DROPS: bool;

        /// As a pointer, which owns what is to be dropped.
        fn into_pointer(self) -> *mut ();

        /// Another like the one in there.
        ///
        /// # Safety
        ///
        /// The pointer is from `into_pointer`, and was not dropped.
        unsafe fn another(pointer: *mut ()) -> Self;

        /// Drops it.
        ///
        /// # Safety
        ///
        /// The pointer is from `into_pointer`, and this is done once, when nobody uses it.
        unsafe fn drop(pointer: *mut ());
    }
}

impl<W: Word> Value for W {
    type Ref<'t> = W;

    #[inline(always)]
    unsafe fn from_pointer<'t>(pointer: *mut ()) -> Self::Ref<'t> {
        W::from_word(pointer.addr() as u64)
    }
}

impl<W: Word> form::Form for W {
    const DROPS: bool = false;

    #[inline(always)]
    fn into_pointer(self) -> *mut () {
        ptr::without_provenance_mut(self.into_word() as usize)
    }

    unsafe fn another(pointer: *mut ()) -> W {
        W::from_word(pointer.addr() as u64)
    }

    unsafe fn drop(_: *mut ()) {}
}

impl<T: Send + Sync + 'static> Value for Arc<T> {
    type Ref<'t> = &'t T;

    #[inline(always)]
    unsafe fn from_pointer<'t>(pointer: *mut ()) -> Self::Ref<'t> {
        // SAFETY: from `Arc::into_raw`; the caller vouches that it stays.
        unsafe { &*pointer.cast::<T>() }
    }
}

impl<T: Send + Sync + 'static> form::Form for Arc<T> {
    const DROPS: bool = true;

    #[inline(always)]
    fn into_pointer(self) -> *mut () {
        Arc::into_raw(self).cast_mut().cast()
    }

    unsafe fn another(pointer: *mut ()) -> Arc<T> {
        // SAFETY: from `Arc::into_raw`, and the one that the pointer owns is there.
        unsafe {
            Arc::increment_strong_count(pointer.cast::<T>());
            Arc::from_raw(pointer.cast::<T>())
        }
    }

    unsafe fn drop(pointer: *mut ()) {
        // SAFETY: from `Arc::into_raw`, which this undoes.
        drop(unsafe { Arc::from_raw(pointer.cast::<T>()) });
    }
}

impl<T: Send + Sync + 'static> Value for Option<Arc<T>> {
    type Ref<'t> = Option<&'t T>;

    #[inline(always)]
    unsafe fn from_pointer<'t>(pointer: *mut ()) -> Self::Ref<'t> {
        // SAFETY: null, or from `Arc::into_raw`; the caller vouches that it stays.
        unsafe { pointer.cast::<T>().as_ref() }
    }
}

impl<T: Send + Sync + 'static> form::Form for Option<Arc<T>> {
    const DROPS: bool = true;

    #[inline(always)]
    fn into_pointer(self) -> *mut () {
        self.map_or(ptr::null_mut(), form::Form::into_pointer)
    }

    unsafe fn another(pointer: *mut ()) -> Option<Arc<T>> {
        // SAFETY: null is none; else as there.
        (!pointer.is_null()).then(|| unsafe { <Arc<T> as form::Form>::another(pointer) })
    }

    unsafe fn drop(pointer: *mut ()) {
        if !pointer.is_null() {
            // SAFETY: as there.
            unsafe { <Arc<T> as form::Form>::drop(pointer) };
        }
    }
}
