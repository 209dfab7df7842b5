//! Two closures that may run at the same time.

use crate::context::{Context, Times};
use crate::control::Sample;
use crate::site::{self, Site, Way};
use corebeat_probe::Handover;
use std::panic::Location;

/// Runs two independent closures, perhaps at the same time, and returns both results. In the
/// sequential program, `a` comes first.
///
/// `a` runs on the calling thread, and need not be `Send`. `b` runs on another thread if that
/// thread takes `b` before `a` has ended. Otherwise `b` runs on the calling thread, after `a`.
///
/// ```
/// use corebeat_future::join;
///
/// fn sum(numbers: &[u64]) -> u64 {
///     if numbers.len() <= 1000 {
///         return numbers.iter().sum();
///     }
///     let (left, right) = numbers.split_at(numbers.len() / 2);
///     let (left, right) = join(|| sum(left), || sum(right));
///     left + right
/// }
/// assert_eq!(sum(&(0..100_000).collect::<Vec<_>>()), 4_999_950_000);
/// ```
///
/// # Panics
///
/// With the payload of `a`, if `a` panics: `b` does not run if it has not started, and otherwise
/// its end is waited for. Else with the payload of `b`, if `b` panics.
#[track_caller]
#[inline]
pub fn join<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce() -> RB + Send,
    RB: Send,
{
    let place = Location::caller();
    if site::is_plain(place) {
        let first = a();
        (first, b())
    } else {
        join_at(place, a, b)
    }
}

#[inline(never)]
fn join_at<A, B, RA, RB>(place: &'static Location<'static>, a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce() -> RB + Send,
    RB: Send,
{
    match site::way(place) {
        Way::Plain(_call) => {
            let first = a();
            (first, b())
        }
        Way::Parallel(context, site) => {
            let depth = context.depth();
            let (first, second, times) = context.join(a, probed(site, b));
            record(site, &context, depth, &times);
            (first, second)
        }
    }
}

/// Adds the times of a join to its site.
fn record(site: &'static Site, context: &Context, depth: u32, times: &Times) {
    let Times { first_ns, second_ns, idle_ns } = *times;
    site.record(context, depth, Sample { first_ns, second_ns, idle_ns });
}

/// Records the closure as a call, if the probe of the site is on. Calls in the closure are callees
/// of the caller's call, although another thread may run them.
pub(crate) fn probed<T>(site: &Site, closure: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let probe = site.probe().filter(|probe| probe.is_on());
    let handover = probe.map(|_| Handover::new());
    move || {
        let _line = handover.map(Handover::accept);
        let _call = probe.map(|probe| probe.enter());
        closure()
    }
}
