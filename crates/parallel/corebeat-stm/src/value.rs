//! The values of cells: types of up to 64 bits in a word, all others behind an `Arc`.

use std::ptr;
use std::sync::Arc;

/// A type that fits into 64 bits. Implement this trait to keep values of a type directly in a
/// [`TCell`](crate::TCell):
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
    /// Converts the value to 64 bits.
    fn into_word(self) -> u64;
    /// Converts the result of [`into_word`](Word::into_word) back to the value.
    fn from_word(word: u64) -> Self;
}

macro_rules! words {
    ($($type:ty: $value:pat => $into:expr, $word:pat => $from:expr;)*) => {$(
        impl Word for $type {
            #[inline(always)]
            fn into_word(self) -> u64 {
                let $value = self;
                $into
            }

            #[inline(always)]
            fn from_word($word: u64) -> Self {
                $from
            }
        }
    )*};
}

macro_rules! integers {
    ($($integer:ty)*) => {
        words! { $($integer: value => value as u64, word => word as $integer;)* }
    };
}

integers!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);

words! {
    (): () => 0, _ => ();
    bool: value => u64::from(value), word => word != 0;
    char: value => u64::from(u32::from(value)),
        word => char::from_u32(word as u32).unwrap_or(char::REPLACEMENT_CHARACTER);
    f64: value => value.to_bits(), word => f64::from_bits(word);
    f32: value => u64::from(value.to_bits()), word => f32::from_bits(word as u32);
    // An optional index.
    Option<u32>: value => value.map_or(u64::MAX, u64::from), word => u32::try_from(word).ok();
}

/// Values that a [`TCell`](crate::TCell) can contain: each [`Word`], [`Arc`], and `Option<Arc>`.
/// Other crates cannot implement this trait.
#[diagnostic::on_unimplemented(
    message = "a cell cannot contain `{Self}`",
    note = "put the value into an `Arc`, or implement `Word` if the type fits into 64 bits"
)]
pub trait Value: form::Form {
    /// Result of a read: a copy of a word, or a reference to the content of an `Arc`, valid until
    /// the end of the attempt.
    type Ref<'t>;

    #[doc(hidden)]
    /// # Safety
    ///
    /// The pointer comes from `into_pointer`, and its value exists for `'t`.
    unsafe fn from_pointer<'t>(pointer: *mut ()) -> Self::Ref<'t>;
}

pub(crate) mod form {
    /// Representation of a value in the size of a pointer.
    pub trait Form: Sized + Send + Sync + 'static {
        /// Whether the value has a destructor.
        const DROPS: bool;

        /// Converts the value to a pointer, which owns the value.
        fn into_pointer(self) -> *mut ();

        /// Clones the value.
        ///
        /// # Safety
        ///
        /// The pointer comes from `into_pointer`, and its value was not dropped.
        unsafe fn clone_from_pointer(pointer: *mut ()) -> Self;

        /// Drops the value.
        ///
        /// # Safety
        ///
        /// The pointer comes from `into_pointer`, nothing uses its value, and this function is
        /// called once for it.
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

    unsafe fn clone_from_pointer(pointer: *mut ()) -> W {
        W::from_word(pointer.addr() as u64)
    }

    unsafe fn drop(_: *mut ()) {}
}

impl<T: Send + Sync + 'static> Value for Arc<T> {
    type Ref<'t> = &'t T;

    #[inline(always)]
    unsafe fn from_pointer<'t>(pointer: *mut ()) -> Self::Ref<'t> {
        // SAFETY: the pointer comes from `Arc::into_raw`, and the caller guarantees its lifetime.
        unsafe { &*pointer.cast::<T>() }
    }
}

impl<T: Send + Sync + 'static> form::Form for Arc<T> {
    const DROPS: bool = true;

    #[inline(always)]
    fn into_pointer(self) -> *mut () {
        Arc::into_raw(self).cast_mut().cast()
    }

    unsafe fn clone_from_pointer(pointer: *mut ()) -> Arc<T> {
        // SAFETY: the pointer comes from `Arc::into_raw`, and owns a reference.
        unsafe {
            Arc::increment_strong_count(pointer.cast::<T>());
            Arc::from_raw(pointer.cast::<T>())
        }
    }

    unsafe fn drop(pointer: *mut ()) {
        // SAFETY: this reverts `Arc::into_raw`.
        drop(unsafe { Arc::from_raw(pointer.cast::<T>()) });
    }
}

impl<T: Send + Sync + 'static> Value for Option<Arc<T>> {
    type Ref<'t> = Option<&'t T>;

    #[inline(always)]
    unsafe fn from_pointer<'t>(pointer: *mut ()) -> Self::Ref<'t> {
        // SAFETY: the pointer is null or comes from `Arc::into_raw`; the caller guarantees its
        // lifetime.
        unsafe { pointer.cast::<T>().as_ref() }
    }
}

impl<T: Send + Sync + 'static> form::Form for Option<Arc<T>> {
    const DROPS: bool = true;

    #[inline(always)]
    fn into_pointer(self) -> *mut () {
        self.map_or(ptr::null_mut(), form::Form::into_pointer)
    }

    unsafe fn clone_from_pointer(pointer: *mut ()) -> Option<Arc<T>> {
        // SAFETY: a pointer that is not null comes from `Arc::into_raw`.
        (!pointer.is_null()).then(|| unsafe { <Arc<T> as form::Form>::clone_from_pointer(pointer) })
    }

    unsafe fn drop(pointer: *mut ()) {
        if !pointer.is_null() {
            // SAFETY: a pointer that is not null comes from `Arc::into_raw`.
            unsafe { <Arc<T> as form::Form>::drop(pointer) };
        }
    }
}
