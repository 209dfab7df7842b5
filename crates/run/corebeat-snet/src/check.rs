//! From a program to a plan: names are resolved, types inferred, and all that may come is followed on its way.
//!
//! ```text
//!   Module --build--> parts --infer--> what each part takes --judge--> what is said --lower--> Net
//! ```
//!
//! - *build* resolves names, from the innermost net outward, and makes one part of each place of a topology. A net is
//!   built once, however often it is used.
//! - *infer* works out from the inside what each part takes (its *variants*). `A .. B` takes what `A` takes, and with it what `B`
//!   needs besides and `A` does not make, for that flows past `A`. A variant that is only more special than another is
//!   kept where it matters, for in a parallel the branch that says most of a record gets it.
//! - *judge* lets the sets of labels that may come flow through the net as records do: best match, flow inheritance, both
//!   outcomes of each guard, until stars and feedback bring nothing new. What cannot go on is an error. Of what passes a
//!   synchrocell it is not known whether it comes at all: what happens to that is a warning at most.
//! - *lower* makes the plan.
//!
//! Of the metadata only observers are looked at (`metadata`), to say that there are none.
//!
//! All of it is bounded: [`DEPTH_MAX`], [`PARTS_MAX`], [`VARIANTS_MAX`], [`ROWS_MAX`], [`WORK_MAX`].

mod build;
mod flow;
mod infer;
mod judge;
mod lower;
mod metadata;
mod part;
mod row;
mod scope;
mod text;

use crate::ast::Module;
use crate::diagnostic::{Diagnostic, Severity};
use crate::plan;

use self::build::Builder;

/// Levels of a net, with those of the nets in it.
const DEPTH_MAX: usize = 500;

/// Parts of a net, with those of the nets in it once for each use.
const PARTS_MAX: u64 = 4_000_000;

/// Variants that one part may take. Where there are more, types are not checked.
const VARIANTS_MAX: usize = 256;

/// Different sets of labels at one place. Where there are more, types are not checked.
const ROWS_MAX: usize = 256;

/// Labels looked at. Where there are more, types are not checked.
const WORK_MAX: u64 = 20_000_000;

/// What the checker says of a program.
#[derive(Debug)]
pub struct Checked {
    /// The net, if nothing is wrong with it.
    pub net: Option<plan::Net>,
    /// What is to be said, in the order of the program. There is a net exactly if no error is among it.
    pub diagnostics: Vec<Diagnostic>,
}

/// Checks a program, and makes a plan of its net of this name; where there is none, of the last one.
///
/// A net that declares what it takes is checked for exactly that. Where nothing is declared, what its parts want and nobody
/// makes is taken to come in with the records.
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
///     "no branch takes {number}; add a branch for such records; `[]` takes all"
/// );
/// ```
pub fn check(module: &Module, name: Option<&str>) -> Checked {
    let mut builder = Builder::new(module);
    let wanted = builder.build(name);
    let mut diagnostics = builder.diagnostics;
    diagnostics.extend(metadata::remarks(&module.definitions));
    let wrong = |diagnostics: &[Diagnostic]| diagnostics.iter().any(|d| d.severity == Severity::Error);
    let mut net = None;
    if let Some(wanted) = wanted
        && !wrong(&diagnostics)
    {
        let verdict = judge::judge(&wanted);
        diagnostics.extend(verdict.diagnostics);
        if !wrong(&diagnostics) {
            match lower::lower(&wanted, &verdict.input, &verdict.output) {
                Ok(plan) => net = Some(plan),
                Err(error) => {
                    diagnostics.push(Diagnostic::error(error.to_string(), wanted.name_span, "with this net"));
                }
            }
        }
    }
    diagnostics.sort_by_key(|d| d.labels.first().map_or(0, |(span, _)| span.start));
    Checked { net, diagnostics }
}
