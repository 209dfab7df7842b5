//! Checker: resolves names, infers types, and follows every possible set of labels through the
//! net. The result is a plan.
//!
//! ```text
//!   Module --build--> parts --infer--> input types --verify--> diagnostics --lower--> Net
//! ```
//!
//! - *build* resolves names, from the innermost net outward, and creates one part for each place of
//!   a topology. A net is built once, even if it is used several times.
//! - *infer* computes, from the inside outward, the *variants* that each part takes. `A .. B` takes
//!   the variants of `A`, plus the labels that `B` needs and `A` does not output, because these
//!   labels flow past `A`. A more specific variant is kept where it affects the routing: in a
//!   parallel composition, the branch with the most matching labels receives a record.
//! - *verify* sends the possible sets of labels through the net as records flow at run time: best
//!   match, flow inheritance, both results of each guard, until stars and feedback add nothing new.
//!   A set that cannot continue is an error. Whether a record passes a synchrocell depends on other
//!   records, so a failure after a synchrocell is at most a warning.
//! - *lower* creates the plan.
//!
//! Of the metadata, the checker reads only observers (`metadata`), to warn that they are not
//! supported.
//!
//! All work is bounded by [`DEPTH_MAX`], [`PARTS_MAX`], [`VARIANTS_MAX`], [`ROWS_MAX`] and
//! [`WORK_MAX`].

mod build;
mod flow;
mod infer;
mod lower;
mod metadata;
mod part;
mod row;
mod scope;
mod text;
mod verify;

use crate::ast::Module;
use crate::diagnostic::{Diagnostic, Severity};
use crate::plan;

use self::build::Builder;

/// Levels of a net, including those of nested nets.
const DEPTH_MAX: usize = 500;

/// Parts of a net, including those of nested nets once for each use.
const PARTS_MAX: u64 = 4_000_000;

/// Variants that one part takes. With more, types are not checked.
const VARIANTS_MAX: usize = 256;

/// Different sets of labels at one place. With more, types are not checked.
const ROWS_MAX: usize = 256;

/// Labels that the checker visits. With more, types are not checked.
const WORK_MAX: u64 = 20_000_000;

/// Result of checking a program.
#[derive(Debug)]
pub struct Checked {
    /// The plan, if there is no error.
    pub net: Option<plan::Net>,
    /// Diagnostics in the order of the program. There is a plan if and only if none is an error.
    pub diagnostics: Vec<Diagnostic>,
}

/// Checks a program, and creates a plan of its net with this name, or else of its last net.
///
/// A net that declares a signature is checked for exactly the declared input. Without a signature,
/// the labels that parts need and no part outputs are inferred as input.
///
/// ```
/// let program = "
///     net count ({line} -> ...) {
///         box parse ((line) -> (number) | (<bad>));
///     } connect parse .. ([{<bad>} -> {}] | [{number} -> {<ok = 1>}]);
/// ";
/// let checked = corebeat_snet::check(&corebeat_snet::parse(program).unwrap(), None);
/// assert_eq!(checked.net.unwrap().input()[0].to_string(), "{line}");
///
/// let program = program.replace("[{number}", "[{numbr}");
/// let checked = corebeat_snet::check(&corebeat_snet::parse(&program).unwrap(), None);
/// assert!(checked.net.is_none());
/// assert_eq!(
///     checked.diagnostics[0].to_string(),
///     "no branch takes {number}; add a branch for such records; `[]` takes every record"
/// );
/// ```
pub fn check(module: &Module, name: Option<&str>) -> Checked {
    let mut builder = Builder::new(module);
    let wanted = builder.build(name);
    let mut diagnostics = builder.diagnostics;
    diagnostics.extend(metadata::warnings(&module.definitions));
    let has_error =
        |diagnostics: &[Diagnostic]| diagnostics.iter().any(|d| d.severity == Severity::Error);
    let mut net = None;
    if let Some(wanted) = wanted
        && !has_error(&diagnostics)
    {
        let verified = verify::verify(&wanted);
        diagnostics.extend(verified.diagnostics);
        if !has_error(&diagnostics) {
            match lower::lower(&wanted, &verified.input, &verified.output) {
                Ok(plan) => net = Some(plan),
                Err(error) => {
                    diagnostics.push(Diagnostic::error(
                        error.to_string(),
                        wanted.name_span,
                        "in this net",
                    ));
                }
            }
        }
    }
    diagnostics.sort_by_key(|d| d.labels.first().map_or(0, |(span, _)| span.start));
    Checked { net, diagnostics }
}
