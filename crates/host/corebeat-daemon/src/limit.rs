//! Limits of all resources and of the rate of calls.
//!
//! rtkit, which grants real-time priority to programs on desktops, has the same kinds of limits:
//! for a process, for a user, and for a time span, so that none of them can exhaust a shared
//! resource.

use std::time::Duration;

/// Largest number of connections.
pub(crate) const CLIENTS_MAX: usize = 512;
/// Largest number of connections accepted between two rounds over the present connections.
pub(crate) const ACCEPTED_AT_ONCE: usize = 16;
/// Time until the next attempt to accept connections after descriptors were exhausted.
pub(crate) const LISTENER_PAUSE_NS: u64 = 1_000_000_000;
/// Largest number of connections of a user.
pub(crate) const CLIENTS_PER_USER_MAX: usize = 64;
/// Largest number of groups of one connection; each role counts.
pub(crate) const SEATS_PER_CLIENT_MAX: usize = 64;
/// Approximate size of the groups in one answer, in bytes. The enclosing message must fit as well.
pub(crate) const LIST_BYTES_MAX: usize = corebeat_wire::MESSAGE_BYTES_MAX - 1024;
/// Largest number of claims of all processes of a user.
pub(crate) const CLAIMS_PER_USER_MAX: usize = 128;
/// Largest number of claims whose reports wait for a connection that does not read them.
pub(crate) const REPORTS_WAITING_MAX: usize = 64;
/// Time for a process to return CPUs.
pub(crate) const SHRINK_NS: u64 = 500_000_000;
/// Largest number of observed programs.
pub(crate) const PROGRAMS_MAX: usize = 256;
/// Largest number of observed programs of a user.
pub(crate) const PROGRAMS_PER_USER_MAX: usize = 64;
/// Largest number of threads of an observed program. Observing more threads would take the time of
/// all other programs.
pub(crate) const THREADS_PER_PROGRAM_MAX: usize = 4096;
/// Shortest time from one search for programs that use the CPU to the next: the kernel accounts CPU
/// time in ticks of up to 10 ms.
pub(crate) const SEARCH_EACH_NS: u64 = 200_000_000;
/// A search takes at most one part in this number of a CPU.
pub(crate) const SEARCH_PART: u64 = 100;
/// Largest number of programs in the status.
pub(crate) const STEERED_SHOWN_MAX: usize = 64;
/// Largest number of notes about limitations; the first ones are kept.
pub(crate) const NOTES_MAX: usize = 16;
/// Time limit for a client to complete a message, or to read its answers.
pub(crate) const PATIENCE_NS: u64 = 30_000_000_000;
/// Largest number of connections to each of the metrics and the web page, without streams of
/// events. A further connection replaces the oldest.
pub(crate) const READERS_MAX: usize = 32;
/// Largest number of streams of events. A further stream replaces the oldest.
pub(crate) const STREAMS_MAX: usize = 16;
/// Largest size of an HTTP request, in bytes. A browser sends the cookies of all servers of the
/// same host name.
pub(crate) const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Time limit of an HTTP request, and of each wait for a reader that does not read its answer.
pub(crate) const READER_PATIENCE_NS: u64 = 5_000_000_000;
/// Time limit of an answer that another thread makes: that of a whole day may take seconds.
pub(crate) const ANSWER_PATIENCE_NS: u64 = 60_000_000_000;
/// Shortest time for which a page about the past is kept: the history is written as often.
pub(crate) const PAST_KEPT_NS: u64 = 10_000_000_000;
/// Making the pages of a range takes at most one part in this number of a CPU.
pub(crate) const PAST_PART: u64 = 10;
/// Largest number of groups on the metrics page; the first ones are shown.
pub(crate) const GROUPS_SHOWN_MAX: usize = 1000;
/// Largest number of groups on the web page; the first ones are shown.
pub(crate) const GROUPS_ON_PAGE_MAX: usize = 256;
/// Time from one update of the web page to the next.
pub(crate) const UPDATE_EACH_NS: u64 = 1_000_000_000;
/// Time from one export of the metrics to the next.
pub(crate) const EXPORT_EACH_NS: u64 = 10_000_000_000;
/// Largest number of decisions of an update.
pub(crate) const UPDATE_DECISIONS_MAX: usize = 256;
/// Largest number of updates that wait for the thread of the web page.
pub(crate) const UPDATES_WAITING_MAX: usize = 4;
/// Nice value of the thread of the web page above that of the daemon: readers of the page must not
/// delay the control loop.
pub(crate) const WEB_NICE: i32 = 5;
/// Pause of the thread of the web page after a failed wait.
pub(crate) const WEB_PAUSE: Duration = Duration::from_secs(1);
/// Burst of log lines about clients; afterwards one line each [`LINES_EACH_NS`].
pub(crate) const LINES_MAX: u64 = 20;
/// See [`LINES_MAX`].
pub(crate) const LINES_EACH_NS: u64 = 1_000_000_000;

/// Bytes of a call and its answer that count as one more call: to write a KiB takes about as long
/// as a small call.
pub(crate) const BYTES_PER_CALL: usize = 1 << 10;
/// Groups that count as one more call, for calls that process all groups.
pub(crate) const GROUPS_PER_CALL: usize = 256;
/// Claims that count as one more call, for calls that assign CPUs. The real cost is about ten times
/// higher with hundreds of claims, but many programs of a user that start at the same time must get
/// their claims.
pub(crate) const CLAIMS_PER_CALL: usize = 32;
/// Calls per second of a connection.
pub(crate) const CALLS_OF_CLIENT: Rate = Rate { each_ns: 2_000_000, at_once: 500 };
/// Calls per second of all connections of a user.
pub(crate) const CALLS_OF_USER: Rate = Rate { each_ns: 1_000_000, at_once: 1000 };
/// Pause of a client that exceeds its rate.
pub(crate) const PAUSE_NS: u64 = 100_000_000;
/// Rate of log lines about refused actions: a refused action is tried again every cycle.
pub(crate) const FAILURES: Rate = Rate { each_ns: 60_000_000_000, at_once: 5 };
/// Rate of log lines about clients.
pub(crate) const LINES: Rate = Rate { each_ns: LINES_EACH_NS, at_once: LINES_MAX };

/// A permitted rate of events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    /// Time per event.
    each_ns: u64,
    /// Number of events in a burst after a pause.
    at_once: u64,
}

impl Rate {
    /// Events per second.
    pub(crate) fn per_s(self) -> u64 {
        1_000_000_000 / self.each_ns
    }
}

/// A rate limiter: a leaky bucket, represented by the time at which it is empty.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    empty_at_ns: u64,
}

impl Pace {
    /// Whether an event is permitted now. If so, the event counts.
    pub(crate) fn take(&mut self, rate: Rate, now_ns: u64) -> bool {
        let full_ns = rate.each_ns * rate.at_once;
        let next_ns = self.empty_at_ns.max(now_ns) + rate.each_ns;
        let may = next_ns - now_ns <= full_ns;
        if may {
            self.empty_at_ns = next_ns;
        }
        may
    }

    /// Counts further events of the last permitted one, at the expense of later events.
    pub(crate) fn charge(&mut self, rate: Rate, more: u64, now_ns: u64) {
        self.empty_at_ns = self.empty_at_ns.max(now_ns) + rate.each_ns * more;
    }

    /// Whether a whole burst is permitted again.
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
                let is_rested = taken.last().is_none_or(|last| now_ns - last >= each_ns * at_once);
                let may = pace.take(rate, now_ns);
                prop_assert!(may || !is_rested, "an event after a pause is permitted");
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
