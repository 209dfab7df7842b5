//! Reviewed facts about the standard library, for the toolchain that `rust-toolchain.toml` names.
//!
//! Generic and inline functions of the standard library have MIR, which the analysis reads like
//! that of any other crate, except that it trusts their unsafe code. This page has the rest:
//!
//! 1. [`ORDERED`]: modules whose functions have effects that must keep their order. A call into one
//!    of them is reported and not followed.
//! 2. Functions without MIR in `core` and `alloc`. These two crates make no system calls. Their
//!    types that change behind a shared reference are all in modules of [`ORDERED`]. So a function
//!    without MIR outside these modules only computes, allocates, and may panic.
//! 3. Functions without MIR in other crates of the standard library: unknown, except [`PURE`].
//! 4. Intrinsics: all only compute, except [`INTRINSICS`].

use crate::effect::Kind;

/// Modules, or functions in modules, and the effect of their functions. The first match counts.
const ORDERED: &[(&str, Kind, &str)] = &[
    ("std::sync::poison::mutex", Kind::Lock, "uses a mutex"),
    ("std::sync::poison::rwlock", Kind::Lock, "uses a lock"),
    ("std::sync::poison::condvar", Kind::Lock, "uses a condition variable"),
    ("std::sync::poison::once", Kind::Once, "uses a `Once`"),
    ("std::sync::once", Kind::Once, "uses a `Once`"),
    ("std::sync::once_lock", Kind::Once, "initialises or reads a `OnceLock`"),
    ("std::sync::lazy_lock", Kind::Once, "initialises or reads a `LazyLock`"),
    ("std::sync", Kind::Lock, "synchronises with other threads"),
    ("core::any", Kind::Location, "uses the name or the identity of a type"),
    ("core::panic::location::caller", Kind::Location, "uses its place in the source"),
    ("core::fmt::rt::new_pointer", Kind::Address, "formats an address"),
    ("core::fmt::pointer_fmt_inner", Kind::Address, "formats an address"),
    ("core::cell::once", Kind::Once, "initialises or reads a `OnceCell`"),
    ("core::cell::lazy", Kind::Once, "initialises or reads a `LazyCell`"),
    ("core::cell", Kind::Cell, "uses a cell, which changes behind a shared reference"),
    ("core::sync::atomic", Kind::Atomic, "uses an atomic variable"),
    ("core::sync", Kind::Lock, "synchronises with other threads"),
    ("core::pin::unsafe_pinned", Kind::Cell, "uses a cell, which changes behind a reference"),
    ("core::future", Kind::Async, "uses asynchronous code"),
    ("core::io::error", Kind::File, "handles an error of the operating system"),
    ("core::task", Kind::Async, "uses a task of asynchronous code"),
    ("core::ffi::va_list", Kind::Foreign, "uses a variable list of arguments"),
    ("alloc::rc", Kind::Count, "uses the counts of an `Rc`"),
    ("alloc::sync", Kind::Count, "uses the counts of an `Arc`"),
    ("alloc::task", Kind::Async, "uses a task of asynchronous code"),
    ("std::thread::local", Kind::ThreadLocal, "uses a thread-local variable"),
    ("std::thread", Kind::Thread, "uses threads"),
    ("std::io::stdio", Kind::Output, "uses standard input, output or error"),
    ("std::io", Kind::File, "reads or writes"),
    ("std::fs", Kind::File, "uses files"),
    ("std::net", Kind::File, "uses sockets"),
    ("std::env::set_current_dir", Kind::CurrentDir, "changes the current directory"),
    ("std::env::current_dir", Kind::CurrentDir, "reads the current directory"),
    ("std::env", Kind::Environment, "uses the environment"),
    ("std::process", Kind::Process, "uses processes, or ends this one"),
    ("std::time", Kind::Time, "reads a clock"),
    ("std::hash::random::new", Kind::Random, "draws random keys"),
    ("std::hash::random::default", Kind::Random, "draws random keys"),
    ("std::random", Kind::Random, "draws random numbers"),
    ("std::panic", Kind::Catch, "catches panics, or changes what they do"),
    ("std::panicking::set_hook", Kind::Hook, "changes the hook of panics"),
    ("std::panicking::take_hook", Kind::Hook, "changes the hook of panics"),
    ("std::panicking::update_hook", Kind::Hook, "changes the hook of panics"),
    ("std::panicking::catch_unwind", Kind::Catch, "catches panics"),
    ("std::panicking::try", Kind::Catch, "catches panics"),
    ("std::backtrace", Kind::Process, "reads the stack"),
    ("std::alloc", Kind::Allocator, "uses the allocator"),
    ("std::os", Kind::File, "uses the operating system"),
    ("std::sys::thread_local", Kind::ThreadLocal, "uses a thread-local variable"),
    ("std::sys", Kind::Unknown, "uses the operating system"),
];

/// Functions of the standard library, without MIR, that only compute.
const PURE: &[&str] = &[
    "std::sys::cmath",
    "std::num",
    "std::f32",
    "std::f64",
    "std::ascii",
    "std::path::compare_components",
];

/// Unsafe functions that the compiler calls in what it makes of `format_args!` and of loops. No
/// other code can call them: they are unstable.
const INSERTED: &[&str] = &["core::fmt::rt", "core::fmt::new"];

/// Modules whose functions start a panic.
const PANICS: &[&str] = &[
    "core::panicking",
    "std::panicking::panic_handler",
    "std::panicking::begin_panic",
    "std::panicking::panic_with_hook",
    "std::panicking::rust_panic",
    "std::panic::panic_any",
    "std::panic::resume_unwind",
    "std::rt::begin_panic",
    "std::rt::panic_fmt",
];

/// Functions with which a program decides to panic, besides [`PANICS`].
const CHECKS: &[&str] = &[
    "core::option::unwrap",
    "core::option::expect",
    "core::result::unwrap",
    "core::result::expect",
    "core::result::unwrap_err",
    "core::result::expect_err",
];

/// Iterators that end, also those that end if their type arguments do.
const FINITE: &[&str] = &[
    "core::slice::iter",
    "core::array::iter",
    "core::str::iter",
    "core::option",
    "core::ops::range::Range",
    "core::ops::range::RangeInclusive",
    "core::iter::adapters::enumerate",
    "core::iter::adapters::rev",
    "core::iter::adapters::zip",
    "core::iter::adapters::chain",
    "core::iter::adapters::copied",
    "core::iter::adapters::cloned",
    "core::iter::adapters::skip",
    "core::iter::adapters::step_by",
    "alloc::vec::into_iter",
    "alloc::collections::btree",
    "alloc::collections::vec_deque",
    "std::collections::hash",
];

/// Beginnings of names of intrinsics that do not only compute.
const INTRINSICS: &[(&str, Kind)] = &[
    ("atomic_", Kind::Atomic),
    ("volatile_", Kind::Unsafe),
    ("unaligned_volatile_", Kind::Unsafe),
    ("nontemporal_", Kind::Unsafe),
    ("catch_unwind", Kind::Catch),
    ("va_", Kind::Foreign),
    ("breakpoint", Kind::Process),
    ("return_address", Kind::Unknown),
    ("gpu_", Kind::Unknown),
    ("offload", Kind::Unknown),
    ("autodiff", Kind::Unknown),
];

/// The knowledge about a function of the standard library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Summary {
    /// Has this effect. The text ends a sentence.
    Effect(Kind, &'static str),
    /// Starts a panic.
    Panics,
    /// Computes, allocates, and may panic.
    Pure,
    /// Nothing is known. The MIR decides, if there is any.
    Read,
}

/// Whether `path` is `module`, or within it.
fn is_within(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The summary of the function at this path, whose implementations are left out of the path:
/// `core::cell::replace` is a function of an implementation in the module `core::cell`.
pub(crate) fn of(path: &str, has_mir: bool) -> Summary {
    if PANICS.iter().any(|module| is_within(path, module)) {
        return Summary::Panics;
    }
    if PURE.iter().any(|module| is_within(path, module)) {
        return Summary::Pure;
    }
    if let Some((_, kind, text)) = ORDERED.iter().find(|(module, ..)| is_within(path, module)) {
        return Summary::Effect(*kind, text);
    }
    let computes = ["core", "alloc"].iter().any(|name| is_within(path, name));
    if computes && !has_mir { Summary::Pure } else { Summary::Read }
}

/// Whether a call of this function is a check of the program that may panic.
pub(crate) fn is_check(path: &str) -> bool {
    PANICS.iter().chain(CHECKS).any(|function| is_within(path, function))
}

/// Whether the iterators at this path end if those in their type arguments do.
pub(crate) fn is_finite(path: &str) -> bool {
    FINITE.iter().any(|module| is_within(path, module))
}

/// Whether this is a range of numbers.
pub(crate) fn is_range(path: &str) -> bool {
    is_within(path, "core::ops::range") || is_within(path, "core::range")
}

/// Names of functions of the standard library with an argument that is a number of elements to
/// allocate or to repeat.
const SIZED: &[&str] = &[
    "from_elem",
    "with_capacity",
    "with_capacity_in",
    "with_capacity_and_hasher",
    "reserve",
    "reserve_exact",
    "try_reserve",
    "try_reserve_exact",
    "resize",
    "resize_with",
    "repeat",
    "repeat_n",
    "new_uninit_slice",
    "new_zeroed_slice",
];

/// Whether a number decides how long the function of the standard library with this path runs, or
/// how much memory it needs.
pub(crate) fn is_sized(path: &str) -> bool {
    path.rsplit("::").next().is_some_and(|name| SIZED.contains(&name))
}

/// Whether the compiler itself inserts calls of this unsafe function.
pub(crate) fn is_inserted(path: &str) -> bool {
    INSERTED.iter().any(|module| is_within(path, module))
}

/// The effect of an intrinsic.
pub(crate) fn of_intrinsic(name: &str) -> Option<Kind> {
    INTRINSICS.iter().find(|(start, _)| name.starts_with(start)).map(|(_, kind)| *kind)
}

/// Whether `derive(Debug)` calls this function, with trait objects that it makes at the call.
pub(crate) fn is_derived(path: &str) -> bool {
    let name = path.strip_prefix("core::fmt::debug_");
    name.is_some_and(|name| name.ends_with("_finish"))
}

/// Whether a crate of the standard library may call functions that it receives as values: pointers
/// to functions, and methods of trait objects. The analysis reports calls from other crates that
/// pass such values.
pub(crate) fn may_call_values(crate_name: &str) -> bool {
    matches!(crate_name, "core" | "alloc")
}

/// Whether a function without type arguments at this path calls trait objects and pointers to
/// functions that only formatting creates. The analysis adds the targets where they are created.
pub(crate) fn formats(path: &str) -> bool {
    is_within(path, "core::fmt")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_special_row_counts() {
        let kind = |path| match of(path, true) {
            Summary::Effect(kind, _) => Some(kind),
            _ => None,
        };
        assert_eq!(kind("std::sync::once_lock::get_or_init"), Some(Kind::Once));
        assert_eq!(kind("std::sync::mpsc::send"), Some(Kind::Lock));
        assert_eq!(kind("std::env::set_current_dir"), Some(Kind::CurrentDir));
        assert_eq!(kind("std::env::vars"), Some(Kind::Environment));
        assert_eq!(kind("core::cells"), None);
        for (i, (module, ..)) in ORDERED.iter().enumerate() {
            let hides = ORDERED[..i].iter().find(|(earlier, ..)| is_within(module, earlier));
            assert_eq!(hides, None, "{module} is never reached");
        }
    }

    #[test]
    fn functions_without_mir_only_compute_in_core_and_alloc() {
        assert_eq!(of("core::fmt::num::fmt", false), Summary::Pure);
        assert_eq!(of("alloc::fmt::format", false), Summary::Pure);
        assert_eq!(of("std::ffi::os_str::to_str", false), Summary::Read);
        assert_eq!(of("core::panicking::panic_fmt", false), Summary::Panics);
        assert_eq!(of_intrinsic("atomic_load"), Some(Kind::Atomic));
        assert_eq!(of_intrinsic("sqrtf64"), None);
    }
}
