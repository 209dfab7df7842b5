//! Planted faults: each makes the analysis overlook one class of effects. Tests confirm that a
//! changed behaviour is then detected. Only builds with the feature `fault` have them.

use crate::effect::Kind;

/// The variable that selects a fault.
#[cfg(feature = "fault")]
const VARIABLE: &str = "COREBEAT_EFFECT_FAULT";

/// Whether the fault of this name is planted.
pub(crate) fn is_planted(name: &str) -> bool {
    #[cfg(feature = "fault")]
    return std::env::var(VARIABLE).is_ok_and(|planted| planted == name);
    #[cfg(not(feature = "fault"))]
    {
        let _ = name;
        false
    }
}

/// Whether a planted fault hides effects of this kind.
pub(crate) fn ignores(kind: Kind) -> bool {
    let name = match kind {
        Kind::Lock => "mutex",
        // A static is read and changed through atomics or unsafe code.
        Kind::Static | Kind::Atomic => "static",
        Kind::ThreadLocal => "thread-local",
        Kind::Output => "output",
        Kind::Once => "once-lock",
        Kind::CurrentDir => "current-dir",
        // The errors of `set_current_dir` have the class of files.
        Kind::File if is_planted("current-dir") => "current-dir",
        Kind::File => "file-offset",
        Kind::Count => "count",
        Kind::Location => "location",
        _ => return false,
    };
    is_planted(name)
}
