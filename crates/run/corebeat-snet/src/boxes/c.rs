//! Boxes in C: functions in shared libraries that were compiled with `C4SNet.h`.

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::ptr::null;

use super::field::Handle;
use super::{LinkError, one_line};
use crate::body::{BoxBody, Out};
use crate::label::{Kind, Label};
use crate::plan::BoxPlan;
use crate::value::{Array, Element, Scalar, Value};

/// Fields and tags that a box in C can take, and that it can put out in one record. As in the header.
pub const C_ENTRIES_MAX: usize = 24;

/// What header and program must agree on. As in the header.
const VERSION: c_uint = 1;

/// What C calls. As `struct corebeat_snet_functions` in the header.
#[repr(C)]
struct Functions {
    create: extern "C" fn(c_int, usize, *const c_void) -> Handle,
    release: extern "C" fn(Handle),
    copy: extern "C" fn(Handle, c_int) -> Handle,
    look: unsafe extern "C" fn(Handle, *mut Look),
    variant: unsafe extern "C" fn(*mut Call<'_, '_>, c_int) -> *const c_char,
    out: unsafe extern "C" fn(*mut Call<'_, '_>, c_int, *const Word),
    wanted: unsafe extern "C" fn(*mut Call<'_, '_>) -> c_int,
    fail: unsafe extern "C" fn(*mut Call<'_, '_>, *const c_char),
}

static FUNCTIONS: Functions = Functions { create, release, copy, look, variant, out, wanted, fail };

/// As `struct corebeat_snet_link` in the header.
#[repr(C)]
struct Link {
    version: c_uint,
    call: *const Functions,
}

/// As `struct corebeat_snet_view` in the header.
#[repr(C)]
struct Look {
    data: *mut c_void,
    count: usize,
    element: c_int,
    size: c_int,
}

/// As `union corebeat_snet_value` in the header.
#[derive(Clone, Copy)]
#[repr(C)]
union Word {
    field: Handle,
    tag: c_int,
}

/// A shared library. It is never unloaded: threads and values of its boxes may still need it.
pub(super) struct Library {
    pub(super) path: PathBuf,
    /// What `dlopen` gave.
    handle: *mut c_void,
    /// Its own, to tell its functions from those of libraries that it uses.
    link: usize,
}

// SAFETY: the loader's handles may be used on any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads a library of boxes.
    pub(super) fn load(path: &Path) -> Result<Library, LinkError> {
        let fault = |why: String| LinkError::Library { path: path.to_owned(), why };
        if !cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))) {
            return Err(fault("boxes in C can be called on Linux on x86-64 and AArch64 only".into()));
        }
        // With a slash in it, or the loader would look for it elsewhere.
        let whole = path.canonicalize().map_err(|e| fault(format!("it cannot be read: {e}")))?;
        if !whole.is_file() {
            return Err(fault("it is no file".into()));
        }
        let name = CString::new(whole.as_os_str().as_bytes()).expect("no file has a 0 in its name");
        // SAFETY: a library of boxes is trusted as the program is; `Boxes::load_library` says so.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: the loader's message about what this thread asked for last.
            let why = unsafe { libc::dlerror().as_ref().map(|why| CStr::from_ptr(why).to_string_lossy()) };
            let why = one_line(&why.unwrap_or_default());
            let why = why.strip_prefix(&format!("{}: ", whole.display())).unwrap_or(&why);
            let cure = if why.contains("C4SNet") || why.contains("SNetMem") {
                "; it was made with another C4SNet.h: compile it with Corebeat's"
            } else if why.contains("undefined symbol") {
                "; link it with the library that has it (as in LDLIBS=-lz, where sources are compiled here)"
            } else {
                ""
            };
            return Err(fault(format!("it cannot be loaded: {why}{cure}")));
        }
        // SAFETY: an open library; only the address is looked at here.
        let link = unsafe { libc::dlsym(handle, c"corebeat_snet_api".as_ptr()) }.cast::<Link>();
        if link.is_null() {
            return Err(fault("it has no boxes: nothing in it includes C4SNet.h".into()));
        }
        // SAFETY: a variable of this name is what the header makes; the version is its first part in all versions.
        let version = unsafe { (*link).version };
        if version != VERSION {
            return Err(fault(format!(
                "it was made with version {version} of C4SNet.h, and this program has {VERSION}: compile it again"
            )));
        }
        // SAFETY: as above; no box of the library runs before it is loaded, or it was loaded before and the same is written.
        unsafe { (&raw mut (*link).call).write(&FUNCTIONS) };
        Ok(Library { path: path.to_owned(), handle, link: link as usize })
    }

    /// The address of a function of this name, if the library itself has one.
    fn function(&self, name: &str) -> Option<*const c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the library is open; only the address is looked at here.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) }.cast_const();
        is_code_beside(self.link, address as usize).then_some(address)
    }

    /// The box that a function of this library makes, if there is one of its name.
    pub(super) fn find(&self, plan: &BoxPlan) -> Result<Option<Function>, LinkError> {
        let Some(address) = self.function(&plan.name) else { return Ok(None) };
        let kinds = |labels: &mut dyn Iterator<Item = Label>| -> Result<CString, LinkError> {
            let kinds: Vec<u8> = labels.map(kind).collect();
            if kinds.len() > C_ENTRIES_MAX {
                return Err(LinkError::TooManyEntries { plan: plan.to_string() });
            }
            Ok(CString::new(kinds).expect("kinds are letters"))
        };
        kinds(&mut plan.input.iter().flatten().map(|entry| entry.label))?;
        let variants = plan.outputs.iter().map(|output| kinds(&mut output.iter().copied()));
        let name = format!("box {}", plan.name);
        Ok(Some(Function { name, address, variants: variants.collect::<Result<_, _>>()? }))
    }
}

fn kind(label: Label) -> u8 {
    match label.kind() {
        Kind::Field => b'f',
        Kind::Tag => b't',
        Kind::BindingTag => b'b',
    }
}

/// Whether an address is in a part with code of the object that has `link`.
fn is_code_beside(link: usize, address: usize) -> bool {
    struct Search {
        link: usize,
        address: usize,
        found: bool,
    }
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: as `dl_iterate_phdr` calls it, with the search given below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        // SAFETY: the program headers of a loaded object.
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
    // SAFETY: `look` takes what it is given, and the search lives until this returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

/// A function of a library.
pub(super) struct Function {
    /// `box foo`
    name: String,
    address: *const c_void,
    /// For each variant, a letter for each value.
    variants: Vec<CString>,
}

// SAFETY: the address is of code, which stays loaded; that the function may be called anywhere is what a box is.
unsafe impl Send for Function {}
// SAFETY: as above.
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
            given: words,
            given_put: 0,
            recent: ([Handle::NONE; C_ENTRIES_MAX], 0),
            fault: None,
            payload: None,
            wanted: true,
        };
        let hnd = (&raw mut call).cast();
        // SAFETY: the function is a box of this library, of as many arguments as the program declares: a box that takes
        // others breaks what C asks of every caller.
        corebeat_lpel::doing(&self.name, || unsafe { call_with(self.address, hnd, words) });
        // What was put out is given up now; of what was not, the box is the owner.
        for (i, word) in words.iter().enumerate() {
            if call.given_put & 1 << i != 0 {
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

/// One call of a box: what `hnd` points to.
struct Call<'a, 'o> {
    out: &'a mut Out<'o>,
    variants: &'a [CString],
    /// The fields and tags that it was called with. (No tag looks like a field: those have a generation in front.)
    given: &'a [u64],
    /// Of those, one bit each, which were put out.
    given_put: u32,
    /// The fields of its own that it put out last, and how many.
    recent: ([Handle; C_ENTRIES_MAX], usize),
    /// The first thing that went wrong.
    fault: Option<String>,
    /// What unwinds through here. It may not through C, and does when the function has returned.
    payload: Option<Box<dyn Any + Send>>,
    /// Whether anybody takes more.
    wanted: bool,
}

const _: () = assert!(C_ENTRIES_MAX <= u32::BITS as usize, "`given_put` has a bit for each");

impl Call<'_, '_> {
    fn fail(&mut self, why: impl FnOnce() -> String) {
        if self.fault.is_none() {
            self.fault = Some(why());
        }
    }

    /// Puts out what the handles of a record of at most `N` values stand for.
    fn put<const N: usize>(&mut self, variant: c_int, words: &[Word]) {
        let plan = self.out.plan();
        let labels = &plan.outputs[variant as usize - 1];
        let mut fields = [Handle::NONE; N];
        let mut some = [const { Value::Tag(0) }; N];
        let values = &mut some[..labels.len()];
        let mut own = 0;
        for ((label, word), value) in labels.iter().zip(words).zip(values.iter_mut()) {
            if label.kind() != Kind::Field {
                // SAFETY: the header put a tag where a tag is declared.
                *value = Value::Tag(unsafe { word.tag });
                continue;
            }
            // SAFETY: the header put a field where one is declared, and any number is a handle.
            let field = unsafe { word.field };
            match field.value() {
                Some(known) => *value = known,
                // Boxes put out NULL where only the label says something.
                None if field == Handle::NONE => {
                    *value = Value::Array(Array::zeroed(Element::Char, 0).into());
                    continue;
                }
                None => self.fail(|| {
                    format!("it put out what is no field, or was one and is gone, as {label} of variant {variant}: {plan}")
                }),
            }
            match self.given.iter().position(|given| *given == field.0) {
                Some(i) => self.given_put |= 1 << i,
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
        if self.fault.is_some() || self.payload.is_some() || !self.wanted {
            return;
        }
        // Unwind safe: what unwinds goes on when the function has returned.
        match catch_unwind(AssertUnwindSafe(|| self.out.put(variant as usize, values))) {
            Ok(Ok(wanted)) => self.wanted = wanted,
            Ok(Err(why)) => self.fail(|| why),
            Err(payload) => self.payload = Some(payload),
        }
    }
}

extern "C" fn create(element: c_int, count: usize, data: *const c_void) -> Handle {
    let Some(&element) = usize::try_from(element).ok().and_then(|n| Element::ALL.get(n)) else {
        return Handle::NONE;
    };
    let Some(bytes) = element.size().checked_mul(count).filter(|n| *n <= isize::MAX as usize / 2) else {
        return Handle::NONE;
    };
    let data = if data.is_null() {
        None
    } else {
        // SAFETY: the box says that there are so many elements.
        Some(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) })
    };
    if count == 1 && bytes <= 8 {
        let mut word = [0; 8];
        if let Some(data) = data {
            word[..bytes].copy_from_slice(data);
        }
        return Handle::new(Value::Scalar(Scalar::new(element, word)));
    }
    Handle::new(Value::Array(match data {
        Some(data) => Array::from_bytes(element, data).into(),
        None => Array::zeroed(element, count).into(),
    }))
}

extern "C" fn release(field: Handle) {
    field.free();
}

extern "C" fn copy(field: Handle, deep: c_int) -> Handle {
    let value = if deep == 0 { field.value() } else { field.deep() };
    value.map_or(Handle::NONE, Handle::new)
}

unsafe extern "C" fn look(field: Handle, to: *mut Look) {
    let look = match field.view() {
        Some(view) => Look {
            data: view.data.cast(),
            count: view.len,
            element: view.element as c_int,
            size: view.element.size() as c_int,
        },
        None => Look { data: std::ptr::null_mut(), count: 0, element: 0, size: 0 },
    };
    // SAFETY: a place of the header's.
    unsafe { to.write(look) }
}

unsafe extern "C" fn variant(call: *mut Call<'_, '_>, variant: c_int) -> *const c_char {
    // SAFETY: what the box was called with, and it runs: nobody else has it.
    let Some(call) = (unsafe { call.as_mut() }) else { return null() };
    match usize::try_from(variant).ok().and_then(|v| call.variants.get(v.checked_sub(1)?)) {
        Some(kinds) => kinds.as_ptr(),
        None => {
            let (n, plan) = (call.variants.len(), call.out.plan());
            call.fail(|| format!("it put out variant {variant}, and declares {n} of them: {plan}"));
            null()
        }
    }
}

unsafe extern "C" fn out(call: *mut Call<'_, '_>, variant: c_int, words: *const Word) {
    // SAFETY: as in `variant`.
    let Some(call) = (unsafe { call.as_mut() }) else { return };
    if let Some(kinds) = usize::try_from(variant).ok().and_then(|v| call.variants.get(v.checked_sub(1)?)) {
        // SAFETY: the header filled one for each letter that `variant` gave it.
        let words = unsafe { std::slice::from_raw_parts(words, kinds.count_bytes()) };
        // Most records are small, and making and dropping places for values takes time.
        match words.len() {
            ..=4 => call.put::<4>(variant, words),
            _ => call.put::<C_ENTRIES_MAX>(variant, words),
        }
    }
}

unsafe extern "C" fn wanted(call: *mut Call<'_, '_>) -> c_int {
    // SAFETY: as in `variant`.
    match unsafe { call.as_ref() } {
        Some(call) => c_int::from(call.wanted && call.payload.is_none()),
        None => 0,
    }
}

unsafe extern "C" fn fail(call: *mut Call<'_, '_>, message: *const c_char) {
    // SAFETY: as in `variant`.
    let Some(call) = (unsafe { call.as_mut() }) else { return };
    call.fail(|| {
        if message.is_null() {
            return "it failed".into();
        }
        // SAFETY: a text with a 0 at its end, as the header asks for.
        one_line(&unsafe { CStr::from_ptr(message) }.to_string_lossy())
    });
}

/// Calls a function of C with a pointer and these words, each of which it takes as a pointer or an int.
///
/// # Safety
///
/// It is a function of so many arguments, pointers and ints.
unsafe fn call_with(function: *const c_void, hnd: *mut c_void, words: &[u64]) {
    macro_rules! arities {
        ($($len:literal: $($at:literal)*;)*) => {
            match words.len() {
                $($len => {
                    type F = unsafe extern "C-unwind" fn(*mut c_void $(, arities!(@word $at))*) -> *mut c_void;
                    // SAFETY: a caller's address of such a function. Declared with words where it has ints, it finds its
                    // arguments all the same, in both calling conventions that `Library::load` admits: System V's for x86-64
                    // (section 3.2.3) and AAPCS64 for Linux (section 6.8.2). Both pass pointers and ints in the same
                    // registers, one each, and from there on in 8 bytes of stack each, and the callee reads no more than the
                    // lower 4 bytes of an int. (Apple's packs ints on the stack, and Windows' is another.) A C++ exception
                    // that leaves the function ends the process: `C-unwind` says so instead of leaving it undefined.
                    unsafe {
                        let function = std::mem::transmute::<*const c_void, F>(function);
                        function(hnd $(, words[$at])*);
                    }
                })*
                _ => unreachable!("the caller looks at the number of arguments"),
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
