//! The choices of the user for the analysis: words in a variable.

/// The variable with the words, which commas separate.
pub(crate) const VARIABLE: &str = "COREBEAT_EFFECT_OPTIONS";

/// A library may rely on it that the process has no hook of panics.
pub(crate) const NO_PANIC_HOOK: &str = "no-panic-hook";
/// A library may rely on it that no code reads memory that it was changing when it panicked.
pub(crate) const NO_CATCH: &str = "no-catch";
/// Floating-point numbers may be added and multiplied in another order.
pub(crate) const REASSOCIATE: &str = "reassociate";
/// Recursions whose calls take a few instructions are proposed, too.
pub(crate) const SMALL_CALLS: &str = "small-calls";

/// Whether the variable contains this word.
pub(crate) fn is_set(name: &str) -> bool {
    std::env::var(VARIABLE).is_ok_and(|words| words.split(',').any(|word| word == name))
}
