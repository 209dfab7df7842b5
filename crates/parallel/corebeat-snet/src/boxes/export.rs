//! Libraries of boxes in Rust: [`export_boxes!`](crate::export_boxes) exports [`Boxes`] from a
//! library, and [`Boxes::load_library`] finds their functions.
//!
//! The library contains a copy of this crate, with separate labels and values. Therefore, the
//! program and the library exchange only what boxes in C exchange: declarations as text, tags, and
//! handles of fields (see [`c`](super::c)).
//!
//! ```text
//!   program                                         library
//!   Library::find --- corebeat_snet_find(text) ---> Export::find: checks the signature
//!   Function::call -- corebeat_snet_call(words) --> Export::call: fields to values
//!   struct Call <---- Functions::out(words) ------- Remote::put: values to fields
//! ```

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, LazyLock};

use super::Boxes;
use super::c::{C_ENTRIES_MAX, CView, Call, Functions, VERSION, Word, value_of};
use super::field::Handle;
use crate::body::{BoxBody, Out, Sink, invoke};
use crate::error::Error;
use crate::label::Kind;
use crate::plan::BoxPlan;
use crate::value::{Element, Value};

/// Exports the boxes of a library in Rust, so that [`Boxes::load_library`] and `corebeat net run
/// -b` can load them. The argument is an expression of type `Result<Boxes, Error>`, which is
/// evaluated once. A library has one such export.
///
/// ```
/// use corebeat_snet::body::Out;
/// use corebeat_snet::{Boxes, export_boxes};
///
/// export_boxes!(Boxes::new().with("down", "(A) -> (A) | (B)", |(a,): (i32,), out: &mut Out| {
///     if a > 0 { out.emit(1, (a - 1,)) } else { out.emit(2, ("done",)) }
/// }));
/// ```
///
/// The crate of the library has the type `cdylib`. Fields are copied into and out of the library. A
/// Rust value ([`Shared`](crate::Shared)) cannot leave the library, and a field that has no text
/// can only be passed on, as a [`Value`]. The functions run outside of `corebeat-lpel`: they can
/// use threads, but not tasks and streams.
#[macro_export]
macro_rules! export_boxes {
    ($boxes:expr) => {
        const _: () = {
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals, reason = "the interface of C has this name")]
            static corebeat_snet_api: $crate::Export = $crate::Export::new(|| $boxes);

            #[unsafe(no_mangle)]
            unsafe extern "C" fn corebeat_snet_find(
                plan: *const ::std::ffi::c_char,
                error: *mut *const ::std::ffi::c_char,
            ) -> *const ::std::ffi::c_void {
                // SAFETY: the caller guarantees the conditions of `find`.
                unsafe { corebeat_snet_api.find(plan, error) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn corebeat_snet_call(
                found: *const ::std::ffi::c_void,
                hnd: *mut ::std::ffi::c_void,
                words: *const u64,
            ) {
                // SAFETY: the caller guarantees the conditions of `call`.
                unsafe { corebeat_snet_api.call(found, hnd, words) }
            }
        };
    };
}

/// The boxes of a library, for [`export_boxes!`](crate::export_boxes). It begins like `struct
/// corebeat_snet_link` in the header for C.
#[doc(hidden)]
#[repr(C)]
pub struct Export {
    version: c_uint,
    /// The program that loads the library sets it.
    functions: AtomicPtr<Functions>,
    boxes: LazyLock<Result<Boxes, Error>>,
}

/// A box of the library and its declaration in the program.
struct Found {
    plan: Arc<BoxPlan>,
    body: Arc<dyn BoxBody>,
}

impl Export {
    /// Exports the boxes that the function returns.
    pub const fn new(boxes: fn() -> Result<Boxes, Error>) -> Export {
        Export {
            version: VERSION,
            functions: AtomicPtr::new(null_mut()),
            boxes: LazyLock::new(boxes),
        }
    }

    /// Returns the box with the declaration `plan`, a text of the program. Returns a null pointer
    /// if there is none, and sets `error` to the reason if that is a mistake. Boxes and reasons are
    /// never freed.
    ///
    /// # Safety
    ///
    /// `plan` is a string that ends with 0, and `error` can be written.
    pub unsafe fn find(&self, plan: *const c_char, error: *mut *const c_char) -> *const c_void {
        // SAFETY: the caller passes such a string.
        let plan = unsafe { CStr::from_ptr(plan) }.to_string_lossy();
        match self.found(&plan) {
            Ok(found) => Box::leak(Box::new(found)) as *const Found as *const c_void,
            Err(Error::MissingFunction { .. }) => null(),
            Err(why) => {
                // SAFETY: the caller passes such an address.
                unsafe { error.write(c_text(&why.to_string()).into_raw()) };
                null()
            }
        }
    }

    fn found(&self, plan: &str) -> Result<Found, Error> {
        let invalid = || Error::Signature {
            name: "of the program".into(),
            signature: plan.into(),
            why: "this library cannot read it".into(),
        };
        let name = plan.split([' ', '(']).next().unwrap_or(plan);
        let program = format!("box {plan}; net {name}_ connect {name};");
        let module = crate::parse(&program).map_err(|_| invalid())?;
        let net = crate::check(&module, None).net.ok_or_else(invalid)?;
        let plan = net.boxes().first().ok_or_else(invalid)?.clone();
        let boxes = self.boxes.as_ref().map_err(|why| Error::Export(why.to_string()))?;
        Ok(Found { body: boxes.find(&plan)?, plan })
    }

    /// Calls a box.
    ///
    /// # Safety
    ///
    /// `found` is from [`find`](Self::find), `hnd` is a call of the program that loads this
    /// library, and `words` has a word for each argument of the box.
    pub unsafe fn call(&self, found: *const c_void, hnd: *mut c_void, words: *const u64) {
        // SAFETY: `find` never frees its result.
        let Found { plan, body } = unsafe { &*found.cast::<Found>() };
        // Acquire: pairs with the program, which has set the functions before the first call.
        // SAFETY: the program sets the functions, and never changes or frees them.
        let functions: &'static Functions = unsafe { &*self.functions.load(Ordering::Acquire) };
        let entries = plan.input.as_deref().unwrap_or_default();
        let words = match entries.len() {
            0 => &[],
            // SAFETY: the caller passes a word for each argument.
            count => unsafe { std::slice::from_raw_parts(words, count) },
        };
        let arguments = entries.iter().zip(words).map(|(entry, word)| match entry.label.kind() {
            Kind::Field => argument(functions, Handle(*word)),
            Kind::Tag | Kind::BindingTag => Value::Tag(*word as c_int),
        });
        let mut arguments: Vec<Value> = arguments.collect();
        let mut remote = Remote { functions, hnd: hnd.cast() };
        if let Err(why) = invoke(&**body, &mut arguments, &mut Out::new(plan, &mut remote)) {
            remote.fail(&why);
        }
    }
}

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).expect("every 0 byte is replaced")
}

/// Field of the program that this library cannot read. It is released when the value is dropped.
struct Opaque(&'static Functions, Handle);

impl Drop for Opaque {
    fn drop(&mut self) {
        (self.0.release)(self.1);
    }
}

/// Copies a field of the program, and releases it.
fn argument(functions: &'static Functions, field: Handle) -> Value {
    let mut view = CView { data: null_mut(), count: 0, element: 0, size: 0 };
    // SAFETY: the address is valid.
    unsafe { (functions.look)(field, &mut view) };
    let element = usize::try_from(view.element).ok().and_then(|n| Element::ALL.get(n));
    match element {
        Some(element) if !view.data.is_null() => {
            let bytes = match view.count {
                0 => &[],
                // SAFETY: the program returns the address of this number of elements, which stay
                // unchanged until the release.
                count => unsafe {
                    std::slice::from_raw_parts(view.data.cast(), count * element.size())
                },
            };
            let value = value_of(*element, bytes, (functions.is_scalar)(field) != 0);
            (functions.release)(field);
            value
        }
        _ => Value::native(Opaque(functions, field)),
    }
}

/// Output to the program.
struct Remote {
    functions: &'static Functions,
    hnd: *mut Call<'static, 'static>,
}

impl Remote {
    fn fail(&self, why: &str) {
        // SAFETY: the call is running, and the text ends with 0.
        unsafe { (self.functions.fail)(self.hnd, c_text(why).as_ptr()) };
    }

    /// Creates a field in the program. Returns `None` for a Rust value of this library.
    fn field(&self, value: &Value) -> Option<Handle> {
        Some(match value {
            Value::Scalar(scalar) => {
                let bytes = scalar.bytes();
                (self.functions.create)(scalar.element() as c_int, 1, bytes.as_ptr().cast())
            }
            Value::Array(array) => {
                let bytes = array.bytes().as_ptr().cast();
                (self.functions.array)(array.element() as c_int, array.len(), bytes)
            }
            Value::Tag(_) | Value::Native(_) => {
                (self.functions.copy)(value.downcast_ref::<Opaque>()?.1, 0)
            }
        })
    }
}

impl Sink for Remote {
    fn put(&mut self, variant: usize, values: &mut [Value]) -> bool {
        let mut words = [Word { tag: 0 }; C_ENTRIES_MAX];
        for (word, value) in words.iter_mut().zip(&*values) {
            match (value, self.field(value)) {
                (Value::Tag(n), _) => word.tag = *n,
                (_, Some(field)) => word.field = field,
                (_, None) => self.fail(&format!(
                    "{value:?} cannot leave the library of the box: convert it into text or \
                     numbers"
                )),
            }
        }
        // SAFETY: the call is running, and there is a word for each value of the variant. The
        // program has checked that no variant has more than `C_ENTRIES_MAX` values.
        unsafe {
            (self.functions.out)(self.hnd, variant as c_int + 1, words.as_ptr());
            (self.functions.wanted)(self.hnd) != 0
        }
    }
}
