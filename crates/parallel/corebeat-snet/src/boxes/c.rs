//! Boxes in C: functions of shared libraries compiled with `C4SNet.h`, and the part of libraries in
//! Rust that is the same.

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::ptr::null;

use super::compile::C_HEADERS;
use super::field::Handle;
use super::one_line;
use crate::body::{BoxBody, Out, undeclared};
use crate::error::Error;
use crate::label::{Kind, Label};
use crate::plan::BoxPlan;
use crate::value::{Array, Element, Scalar, Value};

/// Fields and tags that a box in C can take, and that it can output in one record. The header has
/// the same number.
pub const C_ENTRIES_MAX: usize = 24;

/// Version of the interface. The header has the same number.
pub(super) const VERSION: c_uint = 1;

/// Functions that libraries call. It begins like `struct corebeat_snet_functions` in the header.
#[repr(C)]
pub(super) struct Functions {
    pub(super) create: extern "C" fn(c_int, usize, *const c_void) -> Handle,
    pub(super) release: extern "C" fn(Handle),
    pub(super) copy: extern "C" fn(Handle, c_int) -> Handle,
    pub(super) look: unsafe extern "C" fn(Handle, *mut CView),
    variant: unsafe extern "C" fn(*mut Call<'_, '_>, c_int) -> *const c_char,
    pub(super) out: unsafe extern "C" fn(*mut Call<'_, '_>, c_int, *const Word),
    pub(super) wanted: unsafe extern "C" fn(*mut Call<'_, '_>) -> c_int,
    pub(super) fail: unsafe extern "C" fn(*mut Call<'_, '_>, *const c_char),
    // Functions for libraries in Rust, which distinguish a scalar from an array of one element.
    pub(super) array: extern "C" fn(c_int, usize, *const c_void) -> Handle,
    pub(super) is_scalar: extern "C" fn(Handle) -> c_int,
}

static FUNCTIONS: Functions =
    Functions { create, release, copy, look, variant, out, wanted, fail, array, is_scalar };

/// `struct corebeat_snet_link` in the header.
#[repr(C)]
struct Link {
    version: c_uint,
    call: *const Functions,
}

/// `struct corebeat_snet_view` in the header.
#[repr(C)]
pub(super) struct CView {
    pub(super) data: *mut c_void,
    pub(super) count: usize,
    pub(super) element: c_int,
    pub(super) size: c_int,
}

/// `union corebeat_snet_value` in the header.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Word {
    pub(super) field: Handle,
    pub(super) tag: c_int,
}

/// A shared library. It is never unloaded, because threads and values of its boxes may still use
/// it.
pub(super) struct Library {
    pub(super) path: PathBuf,
    /// Handle of `dlopen`.
    handle: *mut c_void,
    /// Address of its link variable, which distinguishes its functions from those of its
    /// dependencies.
    link: usize,
    /// Functions of a library in Rust (see [`export`](super::export)).
    rust: Option<(FindBox, CallBox)>,
}

/// `corebeat_snet_find`
type FindBox = unsafe extern "C" fn(*const c_char, *mut *const c_char) -> *const c_void;
/// `corebeat_snet_call`
type CallBox = unsafe extern "C" fn(*const c_void, *mut c_void, *const u64);

// SAFETY: handles of the loader may be used on any thread.
unsafe impl Send for Library {}
// SAFETY: handles of the loader may be used on several threads at a time.
unsafe impl Sync for Library {}

/// The correction for a symbol that no library defines.
fn undefined(symbol: &str) -> String {
    let is_interface = |name: &&str| name.starts_with("C4SNet") || name.starts_with("SNetMem");
    if !is_interface(&symbol) {
        return "; check its spelling, or link the library that defines it (for sources compiled \
                here, set LDLIBS, for example LDLIBS=-lz)"
            .into();
    }
    let functions = || {
        let words = C_HEADERS[0].1.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
        words.filter(is_interface)
    };
    if functions().any(|name| name == symbol) {
        return "; the library was compiled with another C4SNet.h: compile it with the header of \
                `corebeat net header`"
            .into();
    }
    match functions().min_by_key(|name| strsim::osa_distance(name, symbol)) {
        Some(near) => format!("; C4SNet.h has no such function: did you mean {near}?"),
        None => String::new(),
    }
}

impl Library {
    /// Loads a library of boxes.
    pub(super) fn load(path: &Path) -> Result<Library, Error> {
        let fault = |why: String| Error::Library { path: path.to_owned(), why };
        if !cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))) {
            return Err(fault(
                "boxes in C are supported only on Linux on x86-64 and AArch64".into(),
            ));
        }
        // The path contains a slash, so that the loader does not search other folders.
        let whole = path.canonicalize().map_err(|e| fault(format!("cannot read the file: {e}")))?;
        if !whole.is_file() {
            return Err(fault("not a file".into()));
        }
        let name = CString::new(whole.as_os_str().as_bytes()).expect("a path contains no 0 byte");
        // SAFETY: the documentation of `Boxes::load_library` states that the library runs inside
        // the process.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: the message of the loader for the last call of this thread.
            let why = unsafe {
                libc::dlerror().as_ref().map(|why| CStr::from_ptr(why).to_string_lossy())
            };
            let why = one_line(&why.unwrap_or_default());
            let why = why.strip_prefix(&format!("{}: ", whole.display())).unwrap_or(&why);
            let cure = match why.strip_prefix("undefined symbol: ") {
                Some(rest) => undefined(rest.split([' ', ',']).next().unwrap_or(rest)),
                None => String::new(),
            };
            return Err(fault(format!("cannot load the library: {why}{cure}")));
        }
        // SAFETY: the library is open, and only the address is used here.
        let link = unsafe { libc::dlsym(handle, c"corebeat_snet_api".as_ptr()) }.cast::<Link>();
        if link.is_null() {
            return Err(fault(
                "the library contains no boxes: include C4SNet.h in its sources".into(),
            ));
        }
        // SAFETY: the header defines a variable of this name, whose first part is the version in
        // all versions.
        let version = unsafe { (*link).version };
        if version != VERSION {
            return Err(fault(format!(
                "the library was compiled with version {version} of C4SNet.h, but this program has \
                 version {VERSION}: compile it again"
            )));
        }
        // SAFETY: the variable exists, as above. No box of the library runs before this write, or
        // the library was loaded before and the same value is written.
        unsafe { (&raw mut (*link).call).write(&FUNCTIONS) };
        let mut library =
            Library { path: path.to_owned(), handle, link: link as usize, rust: None };
        library.rust = library
            .function("corebeat_snet_find")
            .zip(library.function("corebeat_snet_call"))
            // SAFETY: only `export_boxes!` defines functions of these names, with these signatures,
            // and the version of the interface is this one.
            .map(|(find, call)| unsafe {
                (
                    std::mem::transmute::<*const c_void, FindBox>(find),
                    std::mem::transmute::<*const c_void, CallBox>(call),
                )
            });
        Ok(library)
    }

    /// Returns the address of a function that the library itself defines.
    fn function(&self, name: &str) -> Option<*const c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the library is open, and only the address is used here.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) }.cast_const();
        is_code_of(self.link, address as usize).then_some(address)
    }

    /// Returns the function of this library for a box, if there is one.
    pub(super) fn find(&self, plan: &BoxPlan) -> Result<Option<Function>, Error> {
        let found = match self.rust {
            Some((find, call)) => self.find_rust(plan, find)?.map(|found| Code::Rust(call, found)),
            None => self.function(&plan.name).map(Code::C),
        };
        let Some(code) = found else { return Ok(None) };
        let kinds = |labels: &mut dyn Iterator<Item = Label>| -> Result<CString, Error> {
            let kinds: Vec<u8> = labels.map(kind).collect();
            if kinds.len() > C_ENTRIES_MAX {
                return Err(Error::TooManyEntries { plan: plan.to_string() });
            }
            Ok(CString::new(kinds).expect("kinds are letters"))
        };
        kinds(&mut plan.input.iter().flatten().map(|entry| entry.label))?;
        let variants = plan.outputs.iter().map(|output| kinds(&mut output.iter().copied()));
        let name = format!("box {}", plan.name);
        Ok(Some(Function { name, code, variants: variants.collect::<Result<_, _>>()? }))
    }

    fn find_rust(&self, plan: &BoxPlan, find: FindBox) -> Result<Option<*const c_void>, Error> {
        let text = CString::new(plan.to_string()).expect("a name contains no 0 byte");
        let mut error = null();
        // SAFETY: the text ends with 0, and the address is valid.
        let found = unsafe { find(text.as_ptr(), &mut error) };
        if error.is_null() {
            return Ok((!found.is_null()).then_some(found));
        }
        // SAFETY: the library sets the address of a text that ends with 0 and is never freed.
        let why = one_line(&unsafe { CStr::from_ptr(error) }.to_string_lossy());
        Err(Error::Library { path: self.path.clone(), why })
    }
}

fn kind(label: Label) -> u8 {
    match label.kind() {
        Kind::Field => b'f',
        Kind::Tag => b't',
        Kind::BindingTag => b'b',
    }
}

/// Whether an address is code of the object that contains `link`.
fn is_code_of(link: usize, address: usize) -> bool {
    struct Search {
        link: usize,
        address: usize,
        found: bool,
    }
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: `dl_iterate_phdr` passes a valid object and the search below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        // SAFETY: the program headers of a loaded object are valid.
        let parts = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let has = |address: usize, flags: u32| {
            parts.iter().any(|part| {
                let start = (info.dlpi_addr as usize).wrapping_add(part.p_vaddr as usize);
                part.p_type == libc::PT_LOAD
                    && part.p_flags & flags == flags
                    && address.wrapping_sub(start) < part.p_memsz as usize
            })
        };
        if has(search.link, 0) {
            search.found = has(search.address, libc::PF_X);
            return 1;
        }
        0
    }
    let mut search = Search { link, address, found: false };
    // SAFETY: `visit` has the required signature, and the search lives until this call returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// Code of a function.
enum Code {
    /// Address of a function in C.
    C(*const c_void),
    /// Caller of a function in Rust, and the function.
    Rust(CallBox, *const c_void),
}

/// Function of a library.
pub(super) struct Function {
    /// `box foo`
    name: String,
    code: Code,
    /// Letters for the kinds of values of each variant.
    variants: Vec<CString>,
}

// SAFETY: the address is code that stays loaded, and a box may be called on any thread by
// definition.
unsafe impl Send for Function {}
// SAFETY: a box may be called on several threads at a time by definition.
unsafe impl Sync for Function {}

impl BoxBody for Function {
    fn call(&self, input: &mut [Value], out: &mut Out<'_>) -> Result<(), String> {
        if input.len() > C_ENTRIES_MAX {
            return Err(format!("a box in C takes at most {C_ENTRIES_MAX} values: {}", out.plan()));
        }
        let mut words = [0; C_ENTRIES_MAX];
        for (word, value) in words.iter_mut().zip(input.iter_mut()) {
            *word = match std::mem::take(value) {
                Value::Tag(n) => n as i64 as u64,
                value => Handle::new(value).0,
            };
        }
        let words = &words[..input.len()];
        let mut call = Call {
            out,
            variants: &self.variants,
            input: words,
            input_sent: 0,
            recent: ([Handle::NONE; C_ENTRIES_MAX], 0),
            fault: None,
            payload: None,
            accepts_more: true,
        };
        let hnd = (&raw mut call).cast();
        corebeat_lpel::doing(&self.name, || match self.code {
            // SAFETY: the function is a box of this library with the arguments that the program
            // declares. Any other function violates the contract of `Boxes::load_library`.
            Code::C(address) => unsafe { call_with(address, hnd, words) },
            // SAFETY: the library has checked that its function has these arguments.
            Code::Rust(call, found) => unsafe { call(found, hnd, words.as_ptr()) },
        });
        // The box has given up the fields that it has output. It owns the others.
        for (i, word) in words.iter().enumerate() {
            if call.input_sent & 1 << i != 0 {
                Handle(*word).free();
            }
        }
        let (recent, n) = call.recent;
        for field in &recent[..n] {
            field.free();
        }
        match (call.payload, call.fault) {
            (Some(payload), _) => resume_unwind(payload),
            (None, Some(why)) => Err(why),
            (None, None) => Ok(()),
        }
    }
}

/// One call of a box. `hnd` points to this value.
pub(super) struct Call<'a, 'o> {
    out: &'a mut Out<'o>,
    variants: &'a [CString],
    /// Arguments of the call. (No tag equals the handle of a field, because handles have a
    /// generation in their upper half.)
    input: &'a [u64],
    /// One bit for each argument that the box has output.
    input_sent: u32,
    /// New fields in the last output record, and their number.
    recent: ([Handle; C_ENTRIES_MAX], usize),
    /// First failure.
    fault: Option<String>,
    /// Panic payload. A panic must not unwind through C, so it resumes after the function returns.
    payload: Option<Box<dyn Any + Send>>,
    /// Whether the network accepts more records.
    accepts_more: bool,
}

const _: () =
    assert!(C_ENTRIES_MAX <= u32::BITS as usize, "`input_sent` has one bit for each argument");

impl Call<'_, '_> {
    fn fail(&mut self, why: impl FnOnce() -> String) {
        if self.fault.is_none() {
            self.fault = Some(why());
        }
    }

    /// Outputs a record of at most `N` values.
    fn put<const N: usize>(&mut self, variant: c_int, words: &[Word]) {
        let plan = self.out.plan();
        let labels = &plan.outputs[variant as usize - 1];
        let mut fields = [Handle::NONE; N];
        let mut some = [const { Value::Tag(0) }; N];
        let values = &mut some[..labels.len()];
        let mut own = 0;
        for ((label, word), value) in labels.iter().zip(words).zip(values.iter_mut()) {
            if label.kind() != Kind::Field {
                // SAFETY: the header stores a tag where the program declares a tag.
                *value = Value::Tag(unsafe { word.tag });
                continue;
            }
            // SAFETY: the header stores a field where the program declares a field, and any number
            // is a valid handle value.
            let field = unsafe { word.field };
            match field.value() {
                Some(known) => *value = known,
                // Boxes output NULL for fields without content.
                None if field == Handle::NONE => {
                    *value = Value::Array(Array::zeroed(Element::Char, 0).into());
                    continue;
                }
                None => self.fail(|| {
                    format!(
                        "the box output an invalid or freed field as {label} of variant \
                         {variant}: {plan}"
                    )
                }),
            }
            match self.input.iter().position(|input| *input == field.0) {
                Some(i) => self.input_sent |= 1 << i,
                None if fields[..own].contains(&field) => {}
                None => {
                    fields[own] = field;
                    own += 1;
                }
            }
        }
        let fields = &fields[..own];
        let (recent, n) = &mut self.recent;
        for field in recent[..*n].iter().filter(|field| !fields.contains(field)) {
            field.free();
        }
        recent[..own].copy_from_slice(fields);
        *n = own;
        if self.fault.is_some() || self.payload.is_some() || !self.accepts_more {
            return;
        }
        // Unwind safe: the panic resumes after the function returns.
        match catch_unwind(AssertUnwindSafe(|| self.out.put(variant as usize, values))) {
            Ok(Ok(accepts_more)) => self.accepts_more = accepts_more,
            Ok(Err(why)) => self.fail(|| why),
            Err(payload) => self.payload = Some(payload),
        }
    }
}

/// The value of a field with `count` elements at `data`, or with all bits 0.
fn field_value(element: c_int, count: usize, data: *const c_void, scalar: bool) -> Option<Value> {
    let element = *Element::ALL.get(usize::try_from(element).ok()?)?;
    let bytes = element.size().checked_mul(count).filter(|n| *n <= isize::MAX as usize / 2)?;
    let data = match bytes {
        0 => &[],
        _ if data.is_null() => {
            return Some(match scalar && bytes <= 8 {
                true => Value::Scalar(Scalar::new(element, [0; 8])),
                false => Value::Array(Array::zeroed(element, count).into()),
            });
        }
        // SAFETY: the box guarantees this number of elements.
        _ => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) },
    };
    Some(value_of(element, data, scalar))
}

/// The value of a field with these elements.
pub(super) fn value_of(element: Element, bytes: &[u8], scalar: bool) -> Value {
    if !scalar || bytes.len() > 8 {
        return Value::Array(Array::from_bytes(element, bytes).into());
    }
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    Value::Scalar(Scalar::new(element, word))
}

extern "C" fn create(element: c_int, count: usize, data: *const c_void) -> Handle {
    field_value(element, count, data, count == 1).map_or(Handle::NONE, Handle::new)
}

extern "C" fn array(element: c_int, count: usize, data: *const c_void) -> Handle {
    field_value(element, count, data, false).map_or(Handle::NONE, Handle::new)
}

extern "C" fn is_scalar(field: Handle) -> c_int {
    matches!(field.value(), Some(Value::Scalar(_))).into()
}

extern "C" fn release(field: Handle) {
    field.free();
}

extern "C" fn copy(field: Handle, deep: c_int) -> Handle {
    let value = if deep == 0 { field.value() } else { field.deep() };
    value.map_or(Handle::NONE, Handle::new)
}

unsafe extern "C" fn look(field: Handle, to: *mut CView) {
    let view = match field.view() {
        Some(view) => CView {
            data: view.data.cast(),
            count: view.len,
            element: view.element as c_int,
            size: view.element.size() as c_int,
        },
        None => CView { data: std::ptr::null_mut(), count: 0, element: 0, size: 0 },
    };
    // SAFETY: the header passes a valid address.
    unsafe { to.write(view) }
}

unsafe extern "C" fn variant(call: *mut Call<'_, '_>, variant: c_int) -> *const c_char {
    // SAFETY: the box passes its argument while it runs, and nothing else uses the call.
    let Some(call) = (unsafe { call.as_mut() }) else { return null() };
    match usize::try_from(variant).ok().and_then(|v| call.variants.get(v.checked_sub(1)?)) {
        Some(kinds) => kinds.as_ptr(),
        None => {
            let (n, plan) = (call.variants.len(), call.out.plan());
            call.fail(|| undeclared(variant, n, plan));
            null()
        }
    }
}

unsafe extern "C" fn out(call: *mut Call<'_, '_>, variant: c_int, words: *const Word) {
    // SAFETY: the same as in `variant`.
    let Some(call) = (unsafe { call.as_mut() }) else { return };
    if let Some(kinds) =
        usize::try_from(variant).ok().and_then(|v| call.variants.get(v.checked_sub(1)?))
    {
        // SAFETY: the header fills one word for each letter that `variant` returns.
        let words = unsafe { std::slice::from_raw_parts(words, kinds.count_bytes()) };
        // Most records are small, and larger arrays of values take more time.
        match words.len() {
            ..=4 => call.put::<4>(variant, words),
            _ => call.put::<C_ENTRIES_MAX>(variant, words),
        }
    }
}

unsafe extern "C" fn wanted(call: *mut Call<'_, '_>) -> c_int {
    // SAFETY: the same as in `variant`.
    match unsafe { call.as_ref() } {
        Some(call) => c_int::from(call.accepts_more && call.payload.is_none()),
        None => 0,
    }
}

unsafe extern "C" fn fail(call: *mut Call<'_, '_>, message: *const c_char) {
    // SAFETY: the same as in `variant`.
    let Some(call) = (unsafe { call.as_mut() }) else { return };
    call.fail(|| {
        if message.is_null() {
            return "the box failed without a message".into();
        }
        // SAFETY: the header requires a string that ends with 0.
        one_line(&unsafe { CStr::from_ptr(message) }.to_string_lossy())
    });
}

/// Calls a C function with a pointer and these words. The function takes each word as a pointer or
/// an `int`.
///
/// # Safety
///
/// The function must take this number of arguments, all of them pointers or `int`s.
unsafe fn call_with(function: *const c_void, hnd: *mut c_void, words: &[u64]) {
    macro_rules! arities {
        ($($len:literal: $($at:literal)*;)*) => {
            match words.len() {
                $($len => {
                    type F = unsafe extern "C-unwind" fn(
                        *mut c_void $(, arities!(@word $at))*
                    ) -> *mut c_void;
                    // SAFETY: the caller guarantees such a function. Words are valid for `int`
                    // parameters in both calling conventions that `Library::load` admits: System V
                    // for x86-64 (section 3.2.3) and AAPCS64 for Linux (section 6.8.2). Both pass
                    // pointers and `int`s in the same registers, one each, and further ones in 8
                    // bytes of stack each, and the callee reads only the lower 4 bytes of an `int`.
                    // (Apple's convention packs `int`s on the stack, and that of Windows differs.)
                    // `C-unwind` defines that a C++ exception that leaves the function ends the
                    // process.
                    unsafe {
                        let function = std::mem::transmute::<*const c_void, F>(function);
                        function(hnd $(, words[$at])*);
                    }
                })*
                _ => unreachable!("the caller checks the number of arguments"),
            }
        };
        (@word $at:literal) => { u64 };
    }
    arities! {
        0: ;
        1: 0;
        2: 0 1;
        3: 0 1 2;
        4: 0 1 2 3;
        5: 0 1 2 3 4;
        6: 0 1 2 3 4 5;
        7: 0 1 2 3 4 5 6;
        8: 0 1 2 3 4 5 6 7;
        9: 0 1 2 3 4 5 6 7 8;
        10: 0 1 2 3 4 5 6 7 8 9;
        11: 0 1 2 3 4 5 6 7 8 9 10;
        12: 0 1 2 3 4 5 6 7 8 9 10 11;
        13: 0 1 2 3 4 5 6 7 8 9 10 11 12;
        14: 0 1 2 3 4 5 6 7 8 9 10 11 12 13;
        15: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14;
        16: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15;
        17: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16;
        18: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17;
        19: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18;
        20: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19;
        21: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20;
        22: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21;
        23: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22;
        24: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23;
    }
}
