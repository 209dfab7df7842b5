//! How much of everything there may be, and how fast calls may come.
//!
//! rtkit, which gives real-time priority to programs on desktops, has the same kinds of limits: a process, a user and a span
//! of time each have theirs, so that one of them cannot use up what is there for all.

/// Connections.
pub(crate) const CLIENTS_MAX: usize = 512;
/// So many connections are taken in between two looks at those that are there.
pub(crate) const ACCEPTED_AT_ONCE: usize = 16;
/// Where none can be taken in, because descriptors are used up, the daemon tries again after so long.
pub(crate) const DOOR_REST_NS: u64 = 1_000_000_000;
/// Connections of a user.
pub(crate) const CLIENTS_PER_USER_MAX: usize = 64;
/// Groups that one connection takes part in, each role counted.
pub(crate) const SEATS_PER_CLIENT_MAX: usize = 64;
/// The groups that are listed in one answer have about so many bytes: the message around them has to fit as well.
pub(crate) const LIST_BYTES_MAX: usize = corebeat_wire::MESSAGE_BYTES_MAX - 1024;
/// Claims of a process.
pub(crate) const CLAIMS_PER_PROCESS_MAX: usize = 16;
/// Claims of all processes of a user.
pub(crate) const CLAIMS_PER_USER_MAX: usize = 128;
/// Who is asked to give CPUs back has so long.
pub(crate) const SHRINK_NS: u64 = 500_000_000;
/// Programs that are watched for their pulse.
pub(crate) const PROGRAMS_MAX: usize = 256;
/// Programs of a user that are watched for their pulse.
pub(crate) const PROGRAMS_PER_USER_MAX: usize = 64;
/// A program with more threads is not watched: looking at them would take the time of all others.
pub(crate) const THREADS_PER_PROGRAM_MAX: usize = 4096;
/// Notes about what does not work here; the first ones are kept.
pub(crate) const NOTES_MAX: usize = 16;
/// A client that is within a message, or does not read its answers, has so long to go on.
pub(crate) const PATIENCE_NS: u64 = 30_000_000_000;
/// Connections to the page of metrics.
pub(crate) const SCRAPERS_MAX: usize = 8;
/// What a scraper asks has at most so many bytes.
pub(crate) const REQUEST_BYTES_MAX: usize = 4096;
/// A scraper has so long for all of it.
pub(crate) const SCRAPER_PATIENCE_NS: u64 = 5_000_000_000;
/// Groups that the page of metrics shows, the first ones.
pub(crate) const GROUPS_SHOWN_MAX: usize = 1000;
/// So many lines about clients are logged at once, and then one each [`LINES_EACH_NS`].
pub(crate) const LINES_MAX: u64 = 20;
/// See [`LINES_MAX`].
pub(crate) const LINES_EACH_NS: u64 = 1_000_000_000;

/// A call counts as one more for each so many bytes of it and its answer: to write a KiB takes about as long as a small call.
pub(crate) const BYTES_PER_CALL: usize = 1 << 10;
/// A call that looks through all groups counts as one more for each so many.
pub(crate) const GROUPS_PER_CALL: usize = 256;
/// A call that shares out CPUs anew counts as one more for each so many claims. It takes longer than that, by a factor of some ten where
/// there are hundreds; but many programs of a user that start at a time are to have theirs.
pub(crate) const CLAIMS_PER_CALL: usize = 32;
/// Calls a second, of a connection.
pub(crate) const CALLS_OF_CLIENT: Rate = Rate { each_ns: 2_000_000, at_once: 500 };
/// Calls a second, of all connections of a user.
pub(crate) const CALLS_OF_USER: Rate = Rate { each_ns: 1_000_000, at_once: 1000 };
/// Whoever calls too often is not listened to for so long.
pub(crate) const PAUSE_NS: u64 = 100_000_000;
/// Lines in the log about actions that are not possible: what cannot be done is tried again every turn.
pub(crate) const FAILURES: Rate = Rate { each_ns: 60_000_000_000, at_once: 5 };
/// Lines about clients in the log.
pub(crate) const LINES: Rate = Rate { each_ns: LINES_EACH_NS, at_once: LINES_MAX };

/// How often something may happen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    /// Once in so long.
    each_ns: u64,
    /// So many times at once, after a rest.
    at_once: u64,
}

impl Rate {
    /// How often that is in a second.
    pub(crate) fn per_s(self) -> u64 {
        1_000_000_000 / self.each_ns
    }
}

/// Keeps something to its rate: a bucket that runs out drop by drop, by the moment at which it will be empty.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    empty_at_ns: u64,
}

impl Pace {
    /// Whether it may happen now. If so, it has.
    pub(crate) fn take(&mut self, rate: Rate, now_ns: u64) -> bool {
        let full_ns = rate.each_ns * rate.at_once;
        let next_ns = self.empty_at_ns.max(now_ns) + rate.each_ns;
        let may = next_ns - now_ns <= full_ns;
        if may {
            self.empty_at_ns = next_ns;
        }
        may
    }

    /// What happened turns out to count as so many more: they are taken in advance from what may happen later.
    pub(crate) fn charge(&mut self, rate: Rate, more: u64, now_ns: u64) {
        self.empty_at_ns = self.empty_at_ns.max(now_ns) + rate.each_ns * more;
    }

    /// Whether it may happen as often at once as if it never had.
    pub(crate) fn is_rested(&self, now_ns: u64) -> bool {
        self.empty_at_ns <= now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pace_that_is_charged_for_more_waits_for_all_of_it() {
        let rate = Rate { each_ns: 10, at_once: 5 };
        let mut pace = Pace::default();
        assert!(pace.take(rate, 0));
        pace.charge(rate, 99, 0);
        assert!(!pace.take(rate, 1000 - 41));
        assert!(pace.take(rate, 1000 - 40));
        assert!(!pace.is_rested(1009) && pace.is_rested(1010));
    }

    proptest! {
        #[test]
        fn pace_keeps_to_its_rate_over_any_span(
            each_ns in 1u64..1000, at_once in 1u64..20, steps in proptest::collection::vec(0u64..3000, 1..200),
        ) {
            let rate = Rate { each_ns, at_once };
            let mut pace = Pace::default();
            let mut now_ns = 0;
            let mut taken: Vec<u64> = Vec::new();
            for step in steps {
                now_ns += step;
                let rests = taken.last().is_none_or(|last| now_ns - last >= each_ns * at_once);
                let may = pace.take(rate, now_ns);
                prop_assert!(may || !rests, "who rested may go on");
                taken.extend(may.then_some(now_ns));
            }
            for (i, from) in taken.iter().enumerate() {
                for (count, to) in (1..).zip(&taken[i..]) {
                    prop_assert!(count <= at_once + (to - from) / each_ns + 1);
                }
            }
        }
    }
}
