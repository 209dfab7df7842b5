//! What this process has attached: once for each group and role, however many of its threads are in it.

use crate::Error;
use crate::goal::Goal;
use crate::group::{Group, GroupId, Mode, Role};
use crate::monitor::{Finder, Key, Monitor, PERIOD_MAX, PERIOD_MIN, lock};
use crate::page::{Page, Status, Unreadable};
use crate::raw::{Layout, Own, View};
use crate::region::Region;
use corebeat_wire::hangs_up;
use rustix::process::{Pid, getpid};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// A process has one. It is never freed: a child of fork begins one of its own, and leaves the one that it has from its parent
/// alone, because threads that are not in the child may have held its lock.
#[derive(Debug)]
pub(crate) struct Session {
    pid: Pid,
    finder: Finder,
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
    /// What was asked for when it was taken.
    mode: Option<Mode>,
    /// A producer's.
    region: Option<Own<Region>>,
    /// Another one, when the daemon has a successor.
    link: RwLock<Link>,
}

/// What the monitor has given for a seat.
#[derive(Debug)]
struct Link {
    page: View<Page>,
    /// The line to the daemon, if it measures, or has measured until it ended.
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
        let new = Box::into_raw(Box::new(Session::new(Finder::HOST)));
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
    pub(crate) fn new(finder: Finder) -> Session {
        Session { pid: getpid(), finder, state: Mutex::default() }
    }

    /// Whether it is that of a parent.
    pub(crate) fn is_forked(&self) -> bool {
        self.pid != getpid()
    }

    /// A place in a group, and a slot for this thread if it is to beat.
    pub(crate) fn sit(&self, group: &Group, role: Role) -> Result<(Arc<Seat>, usize), Error> {
        if !(PERIOD_MIN..=PERIOD_MAX).contains(&group.period) {
            return Err(Error::BadPeriod(group.period));
        }
        let mut state = lock(&self.state);
        let sat = state.sit(group, role, self.finder);
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

    /// What was measured. Where the daemon has ended, its successor measures from here on, if there is one.
    pub(crate) fn status(&self, seat: &Seat) -> Result<Status, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        match seat.status() {
            Err(Error::MonitorGone) => {
                let mut state = lock(&self.state);
                state.bring(seat, self.finder)?;
                seat.read()
            }
            status => status,
        }
    }

    /// Changes the goal of a group.
    pub(crate) fn change_goal(&self, seat: &Arc<Seat>, change: impl FnOnce(&mut Goal)) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let mut state = lock(&self.state);
        let monitor = state.bring(seat, self.finder)?;
        let mut goal = seat.read()?.goal;
        change(&mut goal);
        // The daemon says the same, in words that have no number.
        goal.check()?;
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
    fn sit(&mut self, group: &Group, role: Role, finder: Finder) -> Result<(Arc<Seat>, usize), Error> {
        match self.follow(finder) {
            // Nobody has followed it yet. Until then this process measures, those who were there before as well.
            Err(Error::MonitorGone) => {
                let local = (finder.local)(group.period)?;
                let local = match self.monitor.as_ref().and_then(Monitor::line) {
                    Some(line) => local.standing_in_for(&line)?,
                    None => local,
                };
                self.go_over(Monitor::Local(local))?;
            }
            followed => followed?,
        }
        let monitor = match self.monitor.take() {
            Some(monitor) => monitor,
            None => finder.find(group.period)?,
        };
        let monitor = self.monitor.insert(monitor);
        if let Monitor::Local(local) = monitor {
            local.hasten(group.period);
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
                place.insert(Occupied {
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

    /// Where the daemon has ended: finds its successor, and takes all places there.
    ///
    /// # Errors
    /// [`Error::MonitorGone`], if there is none, and nobody stands in for it.
    fn follow(&mut self, finder: Finder) -> Result<(), Error> {
        let Some(monitor) = self.monitor.as_ref().filter(|monitor| monitor.is_over()) else { return Ok(()) };
        let stays = matches!(monitor, Monitor::Local(_));
        match (finder.daemon)()? {
            Some(successor) => self.go_over(Monitor::Daemon(successor)),
            None if stays => Ok(()),
            None => Err(Error::MonitorGone),
        }
    }

    /// Takes all places at this monitor. One that cannot be had says so itself when it is asked for something.
    ///
    /// # Errors
    /// Where the monitor has ended meanwhile.
    fn go_over(&mut self, monitor: Monitor) -> Result<(), Error> {
        let monitor = self.monitor.insert(monitor);
        for occupied in self.seats.values() {
            if let Err(why) = occupied.seat.follow(monitor)
                && matches!(monitor, Monitor::Daemon(daemon) if daemon.is_gone())
            {
                return Err(why);
            }
        }
        Ok(())
    }

    /// The monitor, with this place at it.
    fn bring(&mut self, seat: &Seat, finder: Finder) -> Result<&mut Monitor, Error> {
        self.follow(finder)?;
        let sits = self.seats.get(&seat.key).is_some_and(|there| ptr::eq(&*there.seat, seat));
        let monitor = self.monitor.as_mut().filter(|_| sits).ok_or(Error::MonitorGone)?;
        seat.follow(monitor)?;
        Ok(monitor)
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

impl Link {
    fn new(
        monitor: &mut Monitor,
        key: Key,
        mode: Option<Mode>,
        region: Option<&Own<Region>>,
    ) -> Result<Link, Error> {
        let page = monitor.join(key, mode, region.map(AsFd::as_fd))?;
        let page = View::new(page.as_fd()).inspect_err(|_| monitor.leave(key))?;
        Ok(Link { page, line: monitor.line() })
    }

    /// As it stands there, perhaps since long ago.
    fn read(&self) -> Result<Status, Error> {
        // SAFETY: it loads, Relaxed.
        unsafe { self.page.get() }.read().map_err(|why| match why {
            Unreadable::Unsettled => Error::Unsettled,
            Unreadable::Damaged => {
                Error::BadMemory { what: Page::NAME, why: "its content is none that a monitor writes" }
            }
        })
    }

    /// Whether this monitor has given it.
    fn is_of(&self, monitor: &Monitor) -> bool {
        self.line.as_ref().map(Arc::as_ptr) == monitor.line().as_ref().map(Arc::as_ptr)
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

    /// What the monitor tells, unless there may be another one by now.
    fn status(&self) -> Result<Status, Error> {
        let link = self.link.read().unwrap_or_else(|e| e.into_inner());
        if link.line.as_deref().is_some_and(hangs_up) { Err(Error::MonitorGone) } else { link.read() }
    }

    /// What the monitor has told.
    fn read(&self) -> Result<Status, Error> {
        self.link.read().unwrap_or_else(|e| e.into_inner()).read()
    }

    /// Goes to this monitor, if it is another one. The group's goal goes with its producers, where it has none there yet.
    fn follow(&self, monitor: &mut Monitor) -> Result<(), Error> {
        let link = self.link.read().unwrap_or_else(|e| e.into_inner());
        if link.is_of(monitor) {
            return Ok(());
        }
        let had = link.read().map_or(Goal::default(), |status| status.goal);
        // Others may look meanwhile. Nobody else changes it: the caller has the session's lock.
        drop(link);
        let new = Link::new(monitor, self.key, self.mode, self.region.as_ref())?;
        let has = new.read().map_or(had, |status| status.goal);
        if self.region.is_some() && had != has && has == Goal::default() {
            monitor.set_goal(self.group(), had).inspect_err(|_| monitor.leave(self.key))?;
        }
        *self.link.write().unwrap_or_else(|e| e.into_inner()) = new;
        Ok(())
    }
}
