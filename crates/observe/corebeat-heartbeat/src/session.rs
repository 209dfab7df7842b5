//! What this process has attached: once for each group and role, however many of its threads are in it.

use crate::Error;
use crate::daemon::hangs_up;
use crate::goal::Goal;
use crate::group::{Group, GroupId, Role};
use crate::monitor::{Key, Monitor, PERIOD_MAX, PERIOD_MIN, lock};
use crate::page::{Page, Status, Unreadable};
use crate::raw::{Layout, Own, View};
use crate::region::Region;
use rustix::process::{Pid, getpid};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A process has one. It is never freed: a child of fork begins one of its own, and leaves the one that it has from its parent
/// alone, because threads that are not in the child may have held its lock.
#[derive(Debug)]
pub(crate) struct Session {
    pid: Pid,
    /// Finds who measures, at this period if it is this process.
    open: fn(Duration) -> Result<Monitor, Error>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// There is one as long as somebody is attached.
    monitor: Option<Monitor>,
    seats: BTreeMap<Key, Occupied>,
}

#[derive(Debug)]
struct Occupied {
    seat: Arc<Seat>,
    consumers: usize,
}

/// A process's place in a group.
#[derive(Debug)]
pub(crate) struct Seat {
    key: Key,
    page: View<Page>,
    /// A producer's.
    region: Option<Own<Region>>,
    /// The line to the daemon, if it measures.
    line: Option<Arc<OwnedFd>>,
}

/// This process's session.
pub(crate) fn current() -> &'static Session {
    static CURRENT: AtomicPtr<Session> = AtomicPtr::new(ptr::null_mut());
    // Pairs with the exchange below: who sees a session sees what is in it.
    let mut seen = CURRENT.load(Ordering::Acquire);
    loop {
        // SAFETY: null, or a session, of which none is freed.
        match unsafe { seen.as_ref() } {
            Some(session) if !session.is_forked() => return session,
            _ => {}
        }
        let new = Box::into_raw(Box::new(Session::new(Monitor::open)));
        // Release for those who load it; Acquire of the one that somebody else was first with.
        match CURRENT.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: not freed from here on.
            Ok(_) => return unsafe { &*new },
            Err(other) => {
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
                seen = other;
            }
        }
    }
}

impl Session {
    pub(crate) fn new(open: fn(Duration) -> Result<Monitor, Error>) -> Session {
        Session { pid: getpid(), open, state: Mutex::default() }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it is that of a parent.
    fn is_forked(&self) -> bool {
        self.pid != getpid()
    }

    /// A place in a group, and a slot for this thread if it is to beat.
    pub(crate) fn sit(&self, group: &Group, role: Role) -> Result<(Arc<Seat>, usize), Error> {
        if !(PERIOD_MIN..=PERIOD_MAX).contains(&group.period) {
            return Err(Error::BadPeriod(group.period));
        }
        let mut state = lock(&self.state);
        let sat = state.sit(group, role, self.open);
        state.rest();
        sat
    }

    /// Gives a place back, and its slot.
    pub(crate) fn leave(&self, seat: &Arc<Seat>, slot: usize) {
        if self.is_forked() {
            return;
        }
        let mut state = lock(&self.state);
        if let Some(region) = &seat.region {
            region.give_back(slot);
        }
        let there = state.seats.get_mut(&seat.key).filter(|there| Arc::ptr_eq(&there.seat, seat));
        let Some(occupied) = there else { return };
        if seat.key.1 == Role::Consumer {
            occupied.consumers -= 1;
        }
        state.rest();
    }

    /// Changes the goal of a group.
    pub(crate) fn change_goal(&self, seat: &Arc<Seat>, change: impl FnOnce(&mut Goal)) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let mut state = lock(&self.state);
        let mut goal = seat.status()?.goal;
        change(&mut goal);
        // The daemon says the same, in words that have no number.
        goal.check()?;
        let sits = state.seats.get(&seat.key).is_some_and(|there| Arc::ptr_eq(&there.seat, seat));
        let monitor = state.monitor.as_mut().filter(|_| sits).ok_or(Error::MonitorGone)?;
        monitor.set_goal(seat.group(), goal)
    }

    #[cfg(test)]
    pub(crate) fn sample(&self, now_ns: u64) {
        let Some(Monitor::Local(local)) = &lock(&self.state).monitor else { panic!("nobody is attached") };
        local.sample(now_ns);
    }

    /// Whether nobody is attached, and so nobody measures.
    #[cfg(test)]
    pub(crate) fn is_at_rest(&self) -> bool {
        let state = lock(&self.state);
        state.seats.is_empty() && state.monitor.is_none()
    }
}

impl State {
    fn sit(
        &mut self,
        group: &Group,
        role: Role,
        open: fn(Duration) -> Result<Monitor, Error>,
    ) -> Result<(Arc<Seat>, usize), Error> {
        if matches!(&self.monitor, Some(Monitor::Daemon(daemon)) if daemon.is_gone()) {
            // Those who are attached keep their memory, but have left.
            *self = State::default();
        }
        let monitor = match self.monitor.take() {
            Some(monitor) => monitor,
            None => open(group.period)?,
        };
        let monitor = self.monitor.insert(monitor);
        let line = match monitor {
            Monitor::Local(local) => {
                local.hasten(group.period);
                None
            }
            Monitor::Daemon(daemon) => Some(daemon.line()),
        };
        let owner = group.owner.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let key = (GroupId { owner, number: group.number }, role);
        let occupied = match self.seats.entry(key) {
            std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                let region = (role == Role::Producer).then(Own::<Region>::new).transpose()?;
                region.iter().for_each(|region| region.begin());
                let page = monitor.join(key, group.mode, region.as_ref().map(AsFd::as_fd))?;
                let page = View::new(page.as_fd()).inspect_err(|_| monitor.leave(key))?;
                place.insert(Occupied { seat: Arc::new(Seat { key, page, region, line }), consumers: 0 })
            }
        };
        let slot = match &occupied.seat.region {
            Some(region) => region.take(rustix::thread::gettid())?,
            None => 0,
        };
        occupied.consumers += usize::from(role == Role::Consumer);
        Ok((occupied.seat.clone(), slot))
    }

    /// Leaves what no thread is attached to any more.
    fn rest(&mut self) {
        let left: Vec<Key> = self.seats.iter().filter(|(_, o)| !o.is_needed()).map(|(key, _)| *key).collect();
        for key in left {
            self.seats.remove(&key);
            self.monitor.iter_mut().for_each(|monitor| monitor.leave(key));
        }
        if self.seats.is_empty() {
            self.monitor = None;
        }
    }
}

impl Occupied {
    fn is_needed(&self) -> bool {
        self.consumers > 0 || self.seat.region.as_ref().is_some_and(|region| region.is_used())
    }
}

impl Seat {
    pub(crate) fn group(&self) -> GroupId {
        self.key.0
    }

    /// A producer's.
    pub(crate) fn region(&self) -> Option<&Region> {
        self.region.as_deref()
    }

    /// What the monitor tells.
    pub(crate) fn status(&self) -> Result<Status, Error> {
        if self.line.as_deref().is_some_and(hangs_up) {
            return Err(Error::MonitorGone);
        }
        // SAFETY: it loads, Relaxed.
        unsafe { self.page.get() }.read().map_err(|why| match why {
            Unreadable::Unsettled => Error::Unsettled,
            Unreadable::Damaged => {
                Error::BadMemory { what: Page::NAME, why: "its content is none that a monitor writes" }
            }
        })
    }
}
