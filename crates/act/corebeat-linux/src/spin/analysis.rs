//! Analysis of samples: whether the sampled code waits, by the code alone (`code.rs`) or through
//! calls (`call.rs`). Each address is analysed once, for each chain of callers.

use super::call::{self, Outcome, Pages};
use super::code::{self, Around, Attempt};
use super::evidence::Evidence;
use super::place::{Maps, Names, Place};
use super::ring::Context;
use super::{LoopId, Sampled, read_code};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Number of analysed addresses in the cache; a full cache is emptied.
const JUDGED_MAX: usize = 1 << 14;

/// Number of analyses of an address for different callers; later ones replace the first one.
const OUTCOMES_MAX: usize = 8;

/// Number of instructions that the analyses of loops with calls may follow in a round: 1 ms each
/// tenth of a second. Programs without such loops, whose samples always have new addresses, need no
/// more.
const ROUND_INSTRUCTIONS: usize = 1_000;

/// Number of unused instructions that later rounds may use.
const SAVED_INSTRUCTIONS_MAX: usize = 8_000;

/// Result of the analysis of the code at an address.
#[derive(Debug)]
enum Judgement {
    /// The code could not be read.
    Unread,
    /// The code does not wait.
    Computes,
    /// The code waits. Threads that sample it there spin at this place.
    Spins(Arc<Place>),
    /// The same, unless this attempt has succeeded.
    SpinsAfter(Attempt, Arc<Place>),
    /// The result depends on the functions that have called the code. With the place of the sample
    /// if the code waits.
    Called(Vec<(Outcome, Option<Arc<Place>>)>),
}

/// Results of analyses.
#[derive(Debug, Default)]
pub(super) struct Analysis {
    /// Cache, by process and address.
    judged: HashMap<(i32, u64), Judgement>,
    evidence: Evidence,
    /// Number of instructions that analyses of loops with calls may follow.
    left: usize,
}

impl Analysis {
    /// Starts a round of samples, about every tenth of a second.
    pub(super) fn begin_round(&mut self) {
        self.left = (self.left + ROUND_INSTRUCTIONS).min(SAVED_INSTRUCTIONS_MAX);
    }

    /// Analyses a sample. Without a `context`, no loop with calls is found.
    pub(super) fn sample(
        &mut self,
        (pid, ip): (i32, u64),
        context: Option<Context<'_>>,
        (names, maps, pages): (&mut Names, &mut Maps, &mut Pages),
    ) -> Sampled {
        if self.judged.len() >= JUDGED_MAX {
            self.judged.clear();
        }
        let mut place = || Arc::new(names.place(pid, ip, maps));
        let judgement = self.judged.entry((pid, ip)).or_insert_with(|| match judge(pid, ip) {
            None => Judgement::Unread,
            Some(Around::Waits) => Judgement::Spins(place()),
            Some(Around::WaitsAfter(attempt)) => Judgement::SpinsAfter(attempt, place()),
            Some(Around::Computes) => Judgement::Computes,
            Some(Around::Open) => Judgement::Called(Vec::new()),
        });
        let mut is_cut = false;
        match (judgement, context) {
            (Judgement::Unread, _) => return Sampled::Unread,
            (Judgement::Spins(place), _) => return Sampled::Waits(place.clone()),
            (Judgement::SpinsAfter(attempt, place), context)
                if !context.is_some_and(|context| call::has_succeeded(*attempt, &context)) =>
            {
                return Sampled::Waits(place.clone());
            }
            (Judgement::Called(outcomes), Some(context)) => {
                let known = outcomes.iter().position(|(outcome, _)| outcome.applies(&context));
                // A later sample of the address may be analysed.
                is_cut = known.is_none() && self.left < call::INSTRUCTIONS_MAX;
                if !is_cut {
                    let at = known.unwrap_or_else(|| {
                        if outcomes.len() >= OUTCOMES_MAX {
                            outcomes.remove(0);
                        }
                        let outcome = call::waits(pid, ip, &context, pages);
                        self.left -= outcome.followed;
                        let place = outcome.waiting.is_some().then(place);
                        outcomes.push((outcome, place));
                        outcomes.len() - 1
                    });
                    let (outcome, place) = &outcomes[at];
                    if let (Some(place), Some(waiting)) = (place, &outcome.waiting)
                        && !waiting.has_succeeded(&context)
                    {
                        let id = self.evidence.add_idle(pid, waiting);
                        return Sampled::WaitsInCalls(id, place.clone());
                    }
                    is_cut = outcome.is_cut;
                }
            }
            _ => {}
        }
        if let Some(context) = context {
            self.evidence.add_other((pid, ip), &context, pages, is_cut, &mut self.left);
        }
        Sampled::Computes
    }

    /// Returns whether the samples of a loop with calls show that the loop waits.
    pub(super) fn shows_waiting(&self, id: LoopId) -> bool {
        self.evidence.shows_waiting(id)
    }

    /// Discards all data on processes whose addresses are invalid.
    pub(super) fn forget(&mut self, pids: &HashSet<i32>) {
        self.judged.retain(|(pid, _), _| !pids.contains(pid));
        self.evidence.forget(pids);
    }
}

/// Analyses the code around an address of a process. `None` if the code cannot be read.
pub(super) fn judge(pid: i32, ip: u64) -> Option<Around> {
    let (code, start) = read_code(pid, ip)?;
    Some(code::around(&code, start, ip))
}
