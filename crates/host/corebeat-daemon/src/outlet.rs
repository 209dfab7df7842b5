//! The state of the host each second, for threads that the control loop never waits for: the web
//! page, and the history.

use crate::limit::{GROUPS_ON_PAGE_MAX, UPDATE_DECISIONS_MAX, UPDATE_EACH_NS};
use crate::watchdog::Now;
use crate::web::Web;
use corebeat_heartbeat::{GroupInfo, Role};
use corebeat_web::{Decision, Group, Update};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{SystemTime, UNIX_EPOCH};

/// A queue of updates. While it is full, updates are left out, and their decisions come with the
/// next one.
#[derive(Debug)]
pub(crate) struct Outlet {
    updates: SyncSender<Update>,
    /// Decisions since the last update.
    decisions: Vec<Decision>,
    /// Number of decisions that were left out since the last update.
    decisions_left_out: usize,
    /// Number of updates that were left out.
    left_out: u64,
}

/// Outcome of a handed-over update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The queue has it.
    Queued,
    /// The queue was full. The next update has its decisions.
    Late,
    /// The thread that reads the queue has ended.
    Ended,
}

impl Outlet {
    pub(crate) fn new(updates: SyncSender<Update>) -> Outlet {
        Outlet { updates, decisions: vec![], decisions_left_out: 0, left_out: 0 }
    }

    /// Adds a decision to the next update.
    pub(crate) fn note(&mut self, decision: Decision) {
        match self.decisions.len() < UPDATE_DECISIONS_MAX {
            true => self.decisions.push(decision),
            false => self.decisions_left_out += 1,
        }
    }

    /// Hands an update over, with the decisions since the last one. Never waits.
    pub(crate) fn send(&mut self, mut update: Update) -> Sent {
        update.decisions = std::mem::take(&mut self.decisions);
        update.decisions_left_out = std::mem::take(&mut self.decisions_left_out);
        let refused = match self.updates.try_send(update) {
            Ok(()) => return Sent::Queued,
            Err(refused) => refused,
        };
        self.left_out += 1;
        match refused {
            TrySendError::Full(update) => {
                self.decisions = update.decisions;
                self.decisions_left_out = update.decisions_left_out;
                Sent::Late
            }
            TrySendError::Disconnected(_) => Sent::Ended,
        }
    }
}

/// The outlets of a daemon.
#[derive(Debug)]
pub(crate) struct Outlets {
    web: Option<Web>,
    history: Option<Outlet>,
    /// Whether the thread of the history has ended, although the daemon runs.
    history_ended: bool,
    /// Begin of the times of the updates, on the clock of the machine.
    start_ns: u64,
    /// Time of the last update.
    last_ns: Option<u64>,
}

impl Outlets {
    /// `now_ns` is the time on the clock of the machine.
    pub(crate) fn new(web: Option<Web>, history: Option<Outlet>, now_ns: u64) -> Outlets {
        Outlets { web, history, history_ended: false, start_ns: now_ns, last_ns: None }
    }

    /// Whether there is any outlet.
    pub(crate) fn are_used(&self) -> bool {
        self.web.is_some() || self.history.is_some()
    }

    /// Time of the next update.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let due_ns = self.last_ns.map_or(self.start_ns, |last_ns| last_ns + UPDATE_EACH_NS);
        self.are_used().then_some(due_ns)
    }

    /// Number of updates that the history lacks, because its thread was late or has ended.
    pub(crate) fn history_left_out(&self) -> u64 {
        self.history.as_ref().map_or(0, |outlet| outlet.left_out)
    }

    /// Adds a decision to the next update. `at_ns` is a time on the clock of the machine; the times
    /// in `decision` are set from it and from the wall clock.
    pub(crate) fn note(&mut self, at_ns: u64, decision: Decision) {
        if !self.are_used() {
            return;
        }
        let at_s = at_ns.saturating_sub(self.start_ns) as f64 / 1e9;
        let decision = Decision { at_s, unix_s: Some(unix_ns() as f64 / 1e9), ..decision };
        self.history.iter_mut().for_each(|outlet| outlet.note(decision.clone()));
        self.web.iter_mut().for_each(|web| web.note(decision.clone()));
    }

    /// Hands an update over, with times on the clock of the machine, and with these groups. Never
    /// waits. The page leaves out groups that its users may not list; the file of the history is
    /// for the user of the daemon. Returns a line about the history once, if its thread has ended.
    pub(crate) fn publish(
        &mut self,
        mut update: Update,
        groups: &[GroupInfo],
        now: Now,
    ) -> Option<&'static str> {
        let at_ns = now.awake_ns;
        let since = |at_ns: u64| at_ns.saturating_sub(self.start_ns);
        update.span_ns = self.last_ns.map_or(0, |last_ns| at_ns.saturating_sub(last_ns));
        (update.boot_ns, update.unix_ns, update.at_ns) = (now.boot_ns, unix_ns(), since(at_ns));
        let points = update.programs.iter_mut().flat_map(|program| &mut program.points);
        points.for_each(|point| point.at_ns = since(point.at_ns));
        self.last_ns = Some(at_ns);
        let listed = |all: bool| {
            let groups = groups.iter().map(|group| on_page(group, update.at_ns));
            groups.filter(|group| all || group.is_public).take(GROUPS_ON_PAGE_MAX).collect()
        };
        let mut has_ended = false;
        if let Some(history) = &mut self.history {
            let update = Update { groups: listed(true), ..update.clone() };
            has_ended = history.send(update) == Sent::Ended;
        }
        if let Some(web) = &mut self.web {
            let groups = listed(web.shows_all);
            web.send(Update { groups, ..update });
        }
        let is_new = has_ended && !std::mem::replace(&mut self.history_ended, has_ended);
        is_new
            .then_some("the history is no longer written: its thread has ended; restart the daemon")
    }
}

fn on_page(group: &GroupInfo, at_ns: u64) -> Group {
    Group {
        owner: group.id.owner,
        group: group.id.number,
        pids: group.pids.clone(),
        members: group.status.members,
        beats: group.status.beats,
        rate_min: group.status.goal.rate_min,
        rate_max: group.status.goal.rate_max,
        is_public: group.mode.permits_others(Role::Consumer),
        rates: [(at_ns, group.status.window_rate)].into(),
    }
}

/// The wall clock, in nanoseconds since 1970; 0 if it is earlier.
pub(crate) fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64
}

/// A decision with nothing but a text.
pub(crate) fn event(what: impl Into<String>) -> Decision {
    Decision { what: what.into(), ..Decision::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::UPDATES_WAITING_MAX;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn publishing_never_waits_for_the_thread() {
        // A queue that no thread reads.
        let (updates, receiver) = sync_channel(UPDATES_WAITING_MAX);
        let mut outlet = Outlet::new(updates);
        for at_ns in 1..100 {
            (0..10).for_each(|_| outlet.note(event("change")));
            outlet.send(Update { at_ns, ..Update::default() });
        }
        let waiting: Vec<Update> = receiver.try_iter().collect();
        assert_eq!(waiting.len(), UPDATES_WAITING_MAX);
        assert_eq!(outlet.decisions.len(), UPDATE_DECISIONS_MAX);
        assert_eq!(outlet.left_out, 99 - UPDATES_WAITING_MAX as u64);
        let missed = 99 * 10 - 10 * waiting.len() - UPDATE_DECISIONS_MAX;
        assert_eq!(outlet.send(Update::default()), Sent::Queued);
        let next = receiver.try_recv().unwrap();
        assert_eq!(next.decisions.len(), UPDATE_DECISIONS_MAX);
        assert_eq!(next.decisions_left_out, missed);
        outlet.send(Update::default());
        assert_eq!(receiver.try_recv().unwrap().decisions_left_out, 0);
    }

    #[test]
    fn history_whose_thread_has_ended_is_reported_once_and_counted() {
        let (updates, receiver) = sync_channel(2);
        let mut outlets = Outlets::new(None, Some(Outlet::new(updates)), 0);
        let publish = |outlets: &mut Outlets, awake_ns| {
            outlets.publish(Update::default(), &[], Now { awake_ns, boot_ns: awake_ns })
        };
        assert_eq!(publish(&mut outlets, 1), None);
        drop(receiver);
        assert!(publish(&mut outlets, 2).is_some_and(|line| line.contains("has ended")));
        assert_eq!(publish(&mut outlets, 3), None);
        assert_eq!(outlets.history_left_out(), 2);
    }

    #[test]
    fn updates_have_the_spans_since_the_last_one_and_times_since_the_start() {
        let (updates, receiver) = sync_channel(2);
        let mut outlets = Outlets::new(None, Some(Outlet::new(updates)), 1000);
        assert_eq!(outlets.due_ns(), Some(1000));
        outlets.note(1500, event("change"));
        for awake_ns in [2000, 5000] {
            outlets.publish(Update::default(), &[], Now { awake_ns, boot_ns: 7 * awake_ns });
        }
        assert_eq!(outlets.due_ns(), Some(5000 + UPDATE_EACH_NS));
        let received: Vec<Update> = receiver.try_iter().collect();
        let times: Vec<_> = received.iter().map(|u| (u.at_ns, u.span_ns, u.boot_ns)).collect();
        assert_eq!(times, [(1000, 0, 14_000), (4000, 3000, 35_000)]);
        assert_eq!(received[0].decisions[0].at_s, 500e-9);
        assert!(received.iter().all(|update| update.unix_ns > 1_700_000_000_000_000_000));
    }
}
