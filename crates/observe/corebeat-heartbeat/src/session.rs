//! The attachments of this process: one for each group and role, shared by all of its threads.

use crate::Error;
use crate::goal::Goal;
use crate::group::{Group, GroupId, Mode};
use crate::monitor::{Finder, Key, Monitor, Origin, PERIOD_MAX, PERIOD_MIN, lock};
use crate::page::{Page, Status, Unreadable};
use crate::raw::{Layout, Own, View};
use crate::region::Region;
use crate::turn::Turns;
use corebeat_sync::fork::{PerProcess, Process};
use corebeat_wire::host::Role;
use corebeat_wire::{Deadline, is_closed};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::{Arc, Mutex, RwLock};

/// The attachments of a process. A session is never freed: a child of fork creates its own session
/// and does not touch its parent's, because a thread that does not exist in the child may have held
/// its lock.
#[derive(Debug)]
pub(crate) struct Session {
    process: Process,
    finder: Finder,
    state: Turns<State>,
    /// Seats that threads have left, with their slots. The thread that has the turn releases them.
    left: Mutex<Vec<(Arc<Seat>, usize)>>,
}

#[derive(Debug, Default)]
struct State {
    /// Present while a member is attached.
    monitor: Option<Monitor>,
    seats: BTreeMap<Key, SeatEntry>,
}

#[derive(Debug)]
struct SeatEntry {
    seat: Arc<Seat>,
    consumers: usize,
}

/// The attachment of a process to a group in a role.
#[derive(Debug)]
pub(crate) struct Seat {
    key: Key,
    /// The options with which the process attached.
    mode: Option<Mode>,
    /// The region of a producer.
    region: Option<Own<Region>>,
    /// Replaced when a daemon has started.
    link: RwLock<Link>,
}

/// The data that the monitor has provided for a seat.
#[derive(Debug)]
struct Link {
    page: View<Page>,
    /// The monitor.
    origin: Origin,
}

/// The session of this process.
pub(crate) fn current() -> &'static Session {
    static CURRENT: PerProcess<Session> = PerProcess::unset();
    CURRENT.get(|_| Session::new(Finder::HOST))
}

impl Session {
    pub(crate) fn new(finder: Finder) -> Session {
        Session {
            process: Process::current(),
            finder,
            state: Turns::default(),
            left: Mutex::default(),
        }
    }

    /// Whether the session belongs to a parent process.
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Calls a function with the state. Waits for other threads, which may wait for the daemon.
    fn with_state<T>(
        &self,
        deadline: Deadline,
        f: impl FnOnce(&mut State) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut state = self.state.take(deadline)?;
        state.monitor.iter_mut().for_each(|monitor| monitor.set_deadline(deadline));
        state.release(&self.left);
        let result = f(&mut state);
        // Threads that left in the meantime do not wait for longer than their deadlines.
        state.release(&self.left);
        result
    }

    /// Attaches to a group. Returns the seat, and a slot for this thread if it is a producer.
    pub(crate) fn attach(
        &self,
        group: &Group,
        role: Role,
        deadline: Deadline,
    ) -> Result<(Arc<Seat>, usize), Error> {
        if !(PERIOD_MIN..=PERIOD_MAX).contains(&group.period) {
            return Err(Error::BadPeriod(group.period));
        }
        self.with_state(deadline, |state| {
            let attached = state.attach(group, role, self.finder, deadline);
            state.detach_unused();
            attached
        })
    }

    /// Releases a seat and its slot.
    pub(crate) fn leave(&self, seat: &Arc<Seat>, slot: usize, deadline: Deadline) {
        if self.is_forked() {
            return;
        }
        lock(&self.left).push((seat.clone(), slot));
        // If the deadline passes, the thread that has the turn releases the seat at its end.
        let _ = self.with_state(deadline, |_| Ok(()));
    }

    /// The measurements. If another daemon runs than that which measures, the daemon measures from
    /// now on.
    pub(crate) fn status(&self, seat: &Seat, deadline: Deadline) -> Result<Status, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        match seat.status() {
            Ok(None) => {
                // This process measures as long as the search fails.
                let _ = self.with_state(deadline, |state| {
                    state.join_daemon(self.finder, deadline);
                    Ok(())
                });
                seat.read()
            }
            Ok(Some(status)) => Ok(status),
            Err(Error::MonitorGone) => self.with_state(deadline, |state| {
                state.move_seat(seat, self.finder, deadline)?;
                seat.read()
            }),
            Err(why) => Err(why),
        }
    }

    /// Changes the goal of a group.
    pub(crate) fn change_goal(
        &self,
        seat: &Arc<Seat>,
        change: impl FnOnce(&mut Goal),
        deadline: Deadline,
    ) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        self.with_state(deadline, |state| {
            let monitor = state.move_seat(seat, self.finder, deadline)?;
            // The change applies to the goal of an earlier call that timed out, too.
            monitor.settle()?;
            let mut goal = seat.read()?.goal;
            change(&mut goal);
            // The daemon performs the same check, but its refusal does not contain the value.
            goal.check()?;
            monitor.set_goal(seat.group(), goal)
        })
    }

    #[cfg(test)]
    pub(crate) fn sample(&self, now_ns: u64) {
        let Some(Monitor::Local(local)) = &self.state.take(Deadline::new()).unwrap().monitor else {
            panic!("no member is attached")
        };
        local.sample(now_ns);
    }

    /// Makes the next call search for a daemon.
    #[cfg(test)]
    pub(crate) fn hasten_search(&self) {
        let state = self.state.take(Deadline::new()).unwrap();
        if let Some(Origin::Local(search)) = state.monitor.as_ref().map(Monitor::origin) {
            search.make_due();
        }
    }

    /// Whether no member is attached, so that nothing is measured.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.take(Deadline::new()).unwrap();
        state.seats.is_empty() && state.monitor.is_none()
    }
}

impl State {
    fn attach(
        &mut self,
        group: &Group,
        role: Role,
        finder: Finder,
        deadline: Deadline,
    ) -> Result<(Arc<Seat>, usize), Error> {
        match self.follow(finder, deadline) {
            // No daemon has taken over yet. Until then this process measures, including the
            // existing members.
            Err(Error::MonitorGone) => {
                let local = (finder.local)(group.period)?;
                self.move_seats(Monitor::Local(local))?;
            }
            followed => followed?,
        }
        let monitor = match self.monitor.take() {
            Some(monitor) => monitor,
            None => finder.find(group.period, deadline)?,
        };
        let monitor = self.monitor.insert(monitor);
        if let Monitor::Local(local) = monitor {
            local.shorten_period(group.period);
        }
        let owner = group.owner.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let key = (GroupId { owner, number: group.number }, role);
        let occupied = match self.seats.entry(key) {
            std::collections::btree_map::Entry::Occupied(there) => {
                there.get().seat.follow(monitor)?;
                there.into_mut()
            }
            std::collections::btree_map::Entry::Vacant(place) => {
                let region = (role == Role::Producer).then(Own::<Region>::new).transpose()?;
                region.iter().for_each(|region| region.begin());
                let link = RwLock::new(Link::new(monitor, key, group.mode, region.as_ref())?);
                place.insert(SeatEntry {
                    seat: Arc::new(Seat { key, mode: group.mode, region, link }),
                    consumers: 0,
                })
            }
        };
        let slot = match &occupied.seat.region {
            Some(region) => region.take(rustix::thread::gettid())?,
            None => 0,
        };
        occupied.consumers += usize::from(role == Role::Consumer);
        Ok((occupied.seat.clone(), slot))
    }

    /// If the daemon has ended: finds its successor, and moves all seats there. If this process
    /// measures: finds a daemon that has started since.
    ///
    /// # Errors
    /// [`Error::MonitorGone`] if the daemon has no successor.
    fn follow(&mut self, finder: Finder, deadline: Deadline) -> Result<(), Error> {
        let Some(monitor) = &self.monitor else { return Ok(()) };
        match monitor.origin() {
            Origin::Local(search) if search.is_due() => self.join_daemon(finder, deadline),
            Origin::Daemon(_) if monitor.is_gone() => {
                let successor = (finder.daemon)(deadline)?.ok_or(Error::MonitorGone)?;
                self.move_seats(Monitor::Daemon(successor))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Moves all seats from this process to a daemon that has started since. If the daemon refuses
    /// one or does not answer, this process continues to measure.
    fn join_daemon(&mut self, finder: Finder, deadline: Deadline) {
        let Some(Origin::Local(search)) = self.monitor.as_ref().map(Monitor::origin) else {
            return;
        };
        let mut daemon = match (finder.daemon)(deadline) {
            Ok(Some(daemon)) => Monitor::Daemon(daemon),
            Ok(None) => return,
            Err(_) => return search.postpone(),
        };
        let joined = self.seats.values().map(|occupied| occupied.seat.join(&mut daemon));
        let joined = joined.collect::<Result<Vec<Link>, Error>>();
        match joined.and_then(|links| self.move_goals(&mut daemon, &links).map(|()| links)) {
            Ok(links) => {
                self.seats.values().zip(links).for_each(|(occupied, link)| occupied.seat.set(link));
                self.monitor = Some(daemon);
            }
            Err(_) => {
                search.postpone();
                self.seats.keys().for_each(|key| daemon.leave(*key));
            }
        }
    }

    /// Moves the goals of all seats to a monitor at which these are their links, or none of them.
    /// All seats have joined before: the goal of a group of other processes is not changed if the
    /// monitor refuses a seat.
    fn move_goals(&self, monitor: &mut Monitor, links: &[Link]) -> Result<(), Error> {
        let mut moved = Vec::new();
        for (occupied, link) in self.seats.values().zip(links) {
            let Some(goal) = occupied.seat.goal_for(link) else { continue };
            let group = occupied.seat.group();
            moved.push((group, goal, link));
            if let Err(why) = monitor.set_goal(group, goal) {
                withdraw(monitor, &moved);
                return Err(why);
            }
        }
        Ok(())
    }

    /// Moves all seats to this monitor. A seat that is refused reports the error at its next use.
    ///
    /// # Errors
    /// The monitor has ended in the meantime.
    fn move_seats(&mut self, monitor: Monitor) -> Result<(), Error> {
        let monitor = self.monitor.insert(monitor);
        for occupied in self.seats.values() {
            if let Err(why) = occupied.seat.follow(monitor)
                && monitor.is_gone()
            {
                return Err(why);
            }
        }
        Ok(())
    }

    /// The monitor, after this seat has moved to it.
    fn move_seat(
        &mut self,
        seat: &Seat,
        finder: Finder,
        deadline: Deadline,
    ) -> Result<&mut Monitor, Error> {
        self.follow(finder, deadline)?;
        let sits = self.seats.get(&seat.key).is_some_and(|there| ptr::eq(&*there.seat, seat));
        let monitor = self.monitor.as_mut().filter(|_| sits).ok_or(Error::MonitorGone)?;
        seat.follow(monitor)?;
        Ok(monitor)
    }

    /// Releases the seats that threads have left, with their slots.
    fn release(&mut self, left: &Mutex<Vec<(Arc<Seat>, usize)>>) {
        let left = std::mem::take(&mut *lock(left));
        for (seat, slot) in &left {
            if let Some(region) = &seat.region {
                region.give_back(*slot);
            }
            let there = self.seats.get_mut(&seat.key).filter(|own| Arc::ptr_eq(&own.seat, seat));
            if let Some(occupied) = there.filter(|_| seat.key.1 == Role::Consumer) {
                occupied.consumers -= 1;
            }
        }
        if !left.is_empty() {
            self.detach_unused();
        }
    }

    /// Detaches seats without threads.
    fn detach_unused(&mut self) {
        let left: Vec<Key> =
            self.seats.iter().filter(|(_, o)| !o.is_needed()).map(|(key, _)| *key).collect();
        for key in left {
            self.seats.remove(&key);
            self.monitor.iter_mut().for_each(|monitor| monitor.leave(key));
        }
        if self.seats.is_empty() {
            self.monitor = None;
        }
    }
}

/// Removes these goals from a monitor, except those that another process has changed since.
fn withdraw(monitor: &mut Monitor, moved: &[(GroupId, Goal, &Link)]) {
    // The deadline of the call may have passed.
    monitor.set_deadline(Deadline::new());
    // The pages contain the goals of calls that the daemon has answered late. If it does not answer
    // now, the connection ends, and with it the calls.
    if monitor.settle().is_err() {
        return;
    }
    for (group, goal, link) in moved {
        if link.read().is_ok_and(|status| status.goal == *goal) {
            let _ = monitor.set_goal(*group, Goal::default());
        }
    }
}

impl SeatEntry {
    fn is_needed(&self) -> bool {
        self.consumers > 0 || self.seat.region.as_ref().is_some_and(|region| region.is_used())
    }
}

impl Link {
    fn new(
        monitor: &mut Monitor,
        key: Key,
        mode: Option<Mode>,
        region: Option<&Own<Region>>,
    ) -> Result<Link, Error> {
        let page = monitor.join(key, mode, region.map(AsFd::as_fd))?;
        let page = View::new(page.as_fd()).inspect_err(|_| monitor.leave(key))?;
        Ok(Link { page, origin: monitor.origin() })
    }

    /// Reads the page, which may be outdated.
    fn read(&self) -> Result<Status, Error> {
        // SAFETY: only Relaxed loads.
        unsafe { self.page.get() }.read().map_err(|why| match why {
            Unreadable::Unsettled => Error::Unsettled,
            Unreadable::Damaged => {
                Error::BadMemory { what: Page::NAME, why: "its contents are invalid" }
            }
        })
    }
}

impl Seat {
    pub(crate) fn group(&self) -> GroupId {
        self.key.0
    }

    /// The region of a producer.
    pub(crate) fn region(&self) -> Option<&Region> {
        self.region.as_deref()
    }

    /// The current measurements; none if this process measures, and the caller must search for a
    /// daemon first.
    ///
    /// # Errors
    /// [`Error::MonitorGone`] if the daemon has ended.
    fn status(&self) -> Result<Option<Status>, Error> {
        let link = self.link.read().unwrap_or_else(|e| e.into_inner());
        match &link.origin {
            Origin::Daemon(fd) if is_closed(fd) => Err(Error::MonitorGone),
            Origin::Local(search) if search.is_due() => Ok(None),
            _ => link.read().map(Some),
        }
    }

    /// The last measurements.
    fn read(&self) -> Result<Status, Error> {
        self.link.read().unwrap_or_else(|e| e.into_inner()).read()
    }

    /// Moves to this monitor, if it is a new one.
    fn follow(&self, monitor: &mut Monitor) -> Result<(), Error> {
        let link = self.link.read().unwrap_or_else(|e| e.into_inner());
        if link.origin == monitor.origin() {
            return Ok(());
        }
        // Other threads may read in the meantime. Only this thread writes: the caller holds the
        // lock of the session.
        drop(link);
        self.set(self.link_to(monitor)?);
        Ok(())
    }

    /// Attaches to a new monitor, and moves the goal.
    fn link_to(&self, monitor: &mut Monitor) -> Result<Link, Error> {
        let new = self.join(monitor)?;
        if let Some(goal) = self.goal_for(&new) {
            monitor.set_goal(self.group(), goal).inspect_err(|_| monitor.leave(self.key))?;
        }
        Ok(new)
    }

    /// Attaches to a new monitor.
    fn join(&self, monitor: &mut Monitor) -> Result<Link, Error> {
        Link::new(monitor, self.key, self.mode, self.region.as_ref())
    }

    /// The goal to set at a new monitor: the goal of a group moves with its producers, if the group
    /// has none there.
    fn goal_for(&self, new: &Link) -> Option<Goal> {
        let had = self.read().map_or(Goal::default(), |status| status.goal);
        let has = new.read().map_or(had, |status| status.goal);
        (self.region.is_some() && had != has && has == Goal::default()).then_some(had)
    }

    fn set(&self, link: Link) {
        *self.link.write().unwrap_or_else(|e| e.into_inner()) = link;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::Local;
    use std::thread;

    #[test]
    fn wait_behind_another_thread_counts() {
        let finder = Finder { daemon: |_| Ok(None), local: |_| Local::new(None) };
        let session = Session::new(finder);
        let group = Group::new(7);
        let (seat, _) = session.attach(&group, Role::Consumer, Deadline::new()).unwrap();
        let is_late = |result: Result<(), Error>| {
            matches!(result, Err(Error::Daemon(corebeat_wire::Error::TimedOut)))
        };
        // As if another thread waited for the daemon.
        let turn = session.state.take(Deadline::new()).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let late = Deadline::passed;
                assert!(is_late(session.attach(&group, Role::Consumer, late()).map(|_| ())));
                assert!(is_late(session.change_goal(&seat, |_| {}, late())));
                // Measurements are read without the daemon.
                session.status(&seat, late()).unwrap();
                session.leave(&seat, 0, late());
            });
        });
        drop(turn);
        // The next thread releases the seat.
        let _ = session.change_goal(&seat, |_| {}, Deadline::new());
        assert!(session.is_idle());
    }
}
