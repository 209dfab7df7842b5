//! The monitor's side: groups, their members and their beats.
//!
//! The registry uses no socket, no thread and no clock: its caller provides the time.

use crate::Error;
use crate::goal::Goal;
use crate::group::{GroupId, Mode, Peer};
use crate::page::{Page, Status};
use crate::rate::History;
use crate::raw::{Own, View};
use crate::region::Watched;
use corebeat_wire::host::Role;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Limit on the number of groups of a user.
pub const GROUPS_PER_USER_MAX: usize = 128;
/// Limit on the number of attachments of a user's processes, each to one group in one role.
pub const MEMBERS_PER_USER_MAX: usize = 512;
/// Limit on the number of attachments of all users together.
pub const MEMBERS_MAX: usize = 4096;

/// The identity of an attached process, which is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(u64);

/// Identity and state of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupInfo {
    /// The group.
    pub id: GroupId,
    /// The permissions of other users.
    pub mode: Mode,
    /// Processes that beat for the group, in ascending order.
    pub pids: Vec<u32>,
    /// State at the last sample.
    pub status: Status,
}

/// All groups of a host, or of a process.
#[derive(Debug, Default)]
pub struct Registry {
    groups: BTreeMap<GroupId, Entry>,
    members: BTreeMap<MemberId, Member>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    mode: Mode,
    page: Own<Page>,
    history: History,
    status: Status,
    /// Processes that beat for the group, with the number of members of each.
    pids: BTreeMap<u32, usize>,
}

#[derive(Debug)]
struct Member {
    group: GroupId,
    peer: Peer,
    /// The region of a producer.
    region: Option<Watched>,
}

impl Entry {
    fn new(mode: Mode, now_ns: u64) -> Result<Entry, Error> {
        let group = Entry {
            mode,
            page: Own::new()?,
            history: History::new(now_ns),
            status: Status::default(),
            pids: BTreeMap::new(),
        };
        group.page.write(&group.status);
        Ok(group)
    }

    fn count(&mut self, beats: u64) {
        self.status.beats = self.status.beats.saturating_add(beats);
    }

    fn sample(&mut self, now_ns: u64) {
        let status = &mut self.status;
        self.history.add(now_ns, status.beats, status.goal.window);
        status.samples = self.history.count();
        status.global_rate = self.history.global_rate();
        status.window_rate = self.history.window_rate();
        self.page.write(status);
    }
}

impl Registry {
    /// A registry without groups.
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Attaches a process to a group. A group that does not exist is created if the process belongs
    /// to its owner or to root.
    ///
    /// Only the owner and root may pass a `mode`, at any time; without one a new group has
    /// [`Mode::OWN`]. A `region`, the descriptor of a [`Producer`](crate::Producer), makes the
    /// process a producer; without one it is a consumer. Returns the status page, which the caller
    /// passes to the process.
    ///
    /// # Errors
    /// [`Error::NotAllowed`], [`Error::NoSuchGroup`], [`Error::TooMany`]; [`Error::BadMemory`] for
    /// an invalid region; [`Error::System`]. After an error nothing is changed.
    pub fn join(
        &mut self,
        peer: Peer,
        id: GroupId,
        mode: Option<Mode>,
        region: Option<BorrowedFd<'_>>,
        now_ns: u64,
    ) -> Result<(MemberId, OwnedFd), Error> {
        let role = if region.is_some() { Role::Producer } else { Role::Consumer };
        let group = self.groups.get(&id);
        if mode.is_some() && !peer.owns(id) {
            return Err(self
                .accessible(peer, id)
                .map_or_else(|why| why, |_| Error::NotAllowed(id)));
        }
        if group.is_some() {
            self.check_access(peer, id, role)?
        } else {
            self.check_new(peer, id)?
        }
        let of_user = self.members.values().filter(|member| member.peer.uid == peer.uid).count();
        if of_user >= MEMBERS_PER_USER_MAX {
            return Err(Error::too_many("processes of this user attached", MEMBERS_PER_USER_MAX));
        }
        if self.members.len() >= MEMBERS_MAX {
            return Err(Error::too_many("processes attached", MEMBERS_MAX));
        }
        let region = region.map(|fd| View::new(fd).and_then(Watched::new)).transpose()?;
        let made = if group.is_none() {
            Some(Entry::new(mode.unwrap_or_default(), now_ns)?)
        } else {
            None
        };
        let page = made.as_ref().or(group).map(|group| group.page.as_fd().try_clone_to_owned());
        let page = page.ok_or(Error::NoSuchGroup(id))?;
        let page = page.map_err(|why| Error::system("cannot duplicate the status page", why))?;
        // No step below can fail.
        self.groups.extend(made.map(|group| (id, group)));
        if let Some(group) = self.groups.get_mut(&id) {
            group.mode = mode.unwrap_or(group.mode);
            if region.is_some() {
                *group.pids.entry(peer.pid).or_default() += 1;
            }
        }
        let member = MemberId(self.next);
        self.next += 1;
        self.members.insert(member, Member { group: id, peer, region });
        Ok((member, page))
    }

    /// Detaches a process. Its beats still count. A group ends with its last member. A repeated
    /// call has no effect.
    pub fn leave(&mut self, member: MemberId) {
        let Some(mut member) = self.members.remove(&member) else { return };
        if self.members.values().all(|other| other.group != member.group) {
            self.groups.remove(&member.group);
        } else if let (Some(region), Some(group)) =
            (&mut member.region, self.groups.get_mut(&member.group))
        {
            group.count(region.sample().beats);
            if let Some(count) = group.pids.get_mut(&member.peer.pid) {
                *count -= 1;
            }
            group.pids.retain(|_, count| *count > 0);
        }
    }

    /// Sets the goal of a group. Its status page contains the goal when this function returns.
    ///
    /// # Errors
    /// Those of [`Goal::check`]; [`Error::NoSuchGroup`]; [`Error::NotAllowed`] without permission
    /// to beat for the group.
    pub fn set_goal(&mut self, peer: Peer, id: GroupId, goal: Goal) -> Result<(), Error> {
        goal.check()?;
        self.check_access(peer, id, Role::Producer)?;
        let group = self.groups.get_mut(&id).ok_or(Error::NoSuchGroup(id))?;
        group.status.goal = goal;
        group.page.write(&group.status);
        Ok(())
    }

    /// Samples all groups and updates their status pages. The caller calls this function once per
    /// period, with times that never decrease.
    pub fn sample(&mut self, now_ns: u64) {
        self.groups.values_mut().for_each(|group| group.status.members = 0);
        for member in self.members.values_mut() {
            if let (Some(region), Some(group)) =
                (&mut member.region, self.groups.get_mut(&member.group))
            {
                let observed = region.sample();
                group.count(observed.beats);
                group.status.members += observed.threads;
            }
        }
        self.groups.values_mut().for_each(|group| group.sample(now_ns));
    }

    /// All groups, sorted by owner and number.
    pub fn groups(&self) -> impl Iterator<Item = GroupInfo> {
        self.groups.iter().map(|(id, group)| GroupInfo {
            id: *id,
            mode: group.mode,
            pids: group.pids.keys().copied().collect(),
            status: group.status,
        })
    }

    /// Number of groups.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Whether no process is attached.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// A group that is accessible to `peer`. A group without any permission for `peer` is treated
    /// as nonexistent.
    fn accessible(&self, peer: Peer, id: GroupId) -> Result<&Entry, Error> {
        let group = self.groups.get(&id);
        group.filter(|group| peer.owns(id) || group.mode != Mode::OWN).ok_or(Error::NoSuchGroup(id))
    }

    fn check_access(&self, peer: Peer, id: GroupId, role: Role) -> Result<(), Error> {
        let group = self.accessible(peer, id)?;
        if peer.owns(id) || group.mode.permits_others(role) {
            Ok(())
        } else {
            Err(Error::NotAllowed(id))
        }
    }

    fn check_new(&self, peer: Peer, id: GroupId) -> Result<(), Error> {
        if !peer.owns(id) {
            return Err(Error::NoSuchGroup(id));
        }
        let all =
            GroupId { owner: id.owner, number: 0 }..=GroupId { owner: id.owner, number: u32::MAX };
        if self.groups.range(all).count() >= GROUPS_PER_USER_MAX {
            return Err(Error::too_many("groups of this user", GROUPS_PER_USER_MAX));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Region;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::Ordering;

    const SECOND_NS: u64 = 1_000_000_000;

    fn peer(uid: u32) -> Peer {
        Peer { uid, pid: 100 + uid }
    }

    fn group_of(owner: u32, number: u32) -> GroupId {
        GroupId { owner, number }
    }

    fn region() -> Own<Region> {
        let region = Own::<Region>::new().unwrap();
        region.begin();
        region
    }

    fn beat(region: &Region, slot: usize, n: u64) {
        region.counter(slot).fetch_add(n, Ordering::Relaxed);
    }

    fn read(page: &OwnedFd) -> Status {
        let page = View::<Page>::new(page.as_fd()).unwrap();
        // SAFETY: only Relaxed loads.
        unsafe { page.get() }.read().unwrap()
    }

    fn consume(
        registry: &mut Registry,
        uid: u32,
        id: GroupId,
        mode: Option<Mode>,
    ) -> Result<MemberId, Error> {
        registry.join(peer(uid), id, mode, None, 0).map(|(member, _)| member)
    }

    fn produce(registry: &mut Registry, uid: u32, id: GroupId) -> Result<MemberId, Error> {
        registry.join(peer(uid), id, None, Some(region().as_fd()), 0).map(|(member, _)| member)
    }

    #[test]
    fn group_of_two_processes_has_their_sum() {
        let mut registry = Registry::new();
        let (first_region, second_region) = (region(), region());
        let tid = rustix::thread::gettid();
        assert_eq!((first_region.take(tid).unwrap(), second_region.take(tid).unwrap()), (0, 0));
        let id = group_of(7, 1);
        let (first, page) =
            registry.join(peer(7), id, None, Some(first_region.as_fd()), SECOND_NS).unwrap();
        beat(&first_region, 0, 5);
        registry.sample(2 * SECOND_NS);
        assert_eq!((read(&page).global_rate, read(&page).members), (5.0, 1));
        // Beats from before it joined do not count for this group.
        beat(&second_region, 0, 1000);
        registry.join(peer(7), id, None, Some(second_region.as_fd()), 2 * SECOND_NS).unwrap();
        beat(&second_region, 0, 10);
        beat(&first_region, 0, 3);
        registry.leave(first);
        registry.sample(3 * SECOND_NS);
        let status = read(&page);
        assert_eq!((status.beats, status.members, status.samples), (18, 1, 2));
        assert_eq!(status.global_rate, 9.0);
    }

    #[test]
    fn mode_determines_access_of_other_users() {
        let id = group_of(7, 1);
        for (mode, watch, beat) in
            [(Mode::OWN, false, false), (Mode::WATCHED, true, false), (Mode::OPEN, true, true)]
        {
            let mut registry = Registry::new();
            assert!(matches!(consume(&mut registry, 8, id, None), Err(Error::NoSuchGroup(_))));
            consume(&mut registry, 7, id, Some(mode)).unwrap();
            assert_eq!(consume(&mut registry, 8, id, None).is_ok(), watch);
            assert_eq!(produce(&mut registry, 8, id).is_ok(), beat);
            assert_eq!(registry.set_goal(peer(8), id, Goal::default()).is_ok(), beat);
            // A user without permissions cannot detect that the group exists.
            let refusals = [
                consume(&mut registry, 8, id, Some(Mode::OPEN)).unwrap_err(),
                registry
                    .set_goal(peer(8), id, Goal::default())
                    .err()
                    .unwrap_or(Error::NotAllowed(id)),
            ];
            for refused in refusals {
                assert_eq!(
                    matches!(refused, Error::NoSuchGroup(_)),
                    mode == Mode::OWN,
                    "{refused}"
                );
            }
            assert!(
                consume(&mut registry, 0, id, None).is_ok()
                    && produce(&mut registry, 0, id).is_ok()
            );
            // The owner withdraws the permissions: attached members stay.
            consume(&mut registry, 7, id, Some(Mode::OWN)).unwrap();
            assert!(matches!(consume(&mut registry, 8, id, None), Err(Error::NoSuchGroup(_))));
        }
        let mut registry = Registry::new();
        assert!(matches!(
            consume(&mut registry, 8, id, Some(Mode::OPEN)),
            Err(Error::NoSuchGroup(_))
        ));
        assert!(matches!(
            registry.set_goal(peer(7), id, Goal::default()),
            Err(Error::NoSuchGroup(_))
        ));
        consume(&mut registry, 0, id, Some(Mode::OWN)).unwrap();
        consume(&mut registry, 7, id, None).unwrap();
    }

    #[test]
    fn limits_of_users_are_independent() {
        let mut registry = Registry::new();
        for number in 0..GROUPS_PER_USER_MAX as u32 {
            consume(&mut registry, 1, group_of(1, number), None).unwrap();
        }
        let more = consume(&mut registry, 1, group_of(1, u32::MAX), None);
        assert!(matches!(more, Err(Error::TooMany { limit: GROUPS_PER_USER_MAX, .. })));
        let fill = |registry: &mut Registry, uid: u32| {
            let attached =
                registry.members.values().filter(|member| member.peer.uid == uid).count();
            for _ in attached..MEMBERS_PER_USER_MAX {
                consume(registry, uid, group_of(uid, 3), None).unwrap();
            }
            let more = produce(registry, uid, group_of(uid, 3));
            assert!(matches!(more, Err(Error::TooMany { limit: MEMBERS_PER_USER_MAX, .. })));
        };
        let users = (MEMBERS_MAX / MEMBERS_PER_USER_MAX) as u32;
        (1..=users).for_each(|uid| fill(&mut registry, uid));
        let more = consume(&mut registry, users + 1, group_of(users + 1, 0), None);
        assert!(matches!(more, Err(Error::TooMany { limit: MEMBERS_MAX, .. })));
        let members: Vec<MemberId> = registry.members.keys().copied().collect();
        members.into_iter().for_each(|member| registry.leave(member));
        assert!(registry.is_empty() && registry.groups.is_empty());
    }

    #[test]
    fn valid_goals_take_effect_immediately_and_invalid_goals_never() {
        let mut registry = Registry::new();
        let id = group_of(7, 1);
        let (_, page) = registry.join(peer(7), id, None, None, 0).unwrap();
        let goal = Goal { rate_min: Some(20.0), rate_max: Some(30.0), window: 4, hold: true };
        registry.set_goal(peer(7), id, goal).unwrap();
        assert_eq!(read(&page).goal, goal);
        assert!(registry.set_goal(peer(7), id, Goal { rate_max: Some(10.0), ..goal }).is_err());
        assert_eq!(read(&page).goal, goal);
    }

    /// Operations of the test; members are taken modulo their number.
    #[derive(Debug, Clone)]
    enum Step {
        Join { uid: u32, id: GroupId, mode: Option<Mode>, beats: bool },
        Leave { member: usize },
        Beat { member: usize, n: u64 },
        SetGoal { uid: u32, id: GroupId, window: u32 },
        Sample { after_ns: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let uid = || 0u32..3;
        let id = || (0u32..3, 0u32..2).prop_map(|(owner, number)| group_of(owner, number));
        let mode = (0u32..4).prop_map(|bits| Mode::from_bits(0o600 | bits << 1).unwrap());
        let member = any::<usize>;
        prop_oneof![
            (uid(), id(), proptest::option::of(mode), any::<bool>())
                .prop_map(|(uid, id, mode, beats)| Step::Join { uid, id, mode, beats }),
            member().prop_map(|member| Step::Leave { member }),
            (member(), 0u64..1000).prop_map(|(member, n)| Step::Beat { member, n }),
            (uid(), id(), 0u32..6).prop_map(|(uid, id, window)| Step::SetGoal { uid, id, window }),
            (0u64..3).prop_map(|after| Step::Sample { after_ns: after * SECOND_NS }),
        ]
    }

    /// A reference model that follows the definitions and records everything.
    #[derive(Default)]
    struct Model {
        groups: BTreeMap<GroupId, ModelGroup>,
        members: Vec<ModelMember>,
    }

    struct ModelGroup {
        mode: Mode,
        goal: Goal,
        page: OwnedFd,
        /// Beats of former members.
        past: u64,
        /// Time and beats of all samples.
        samples: Vec<(u64, u64)>,
        /// Length of the window in samples.
        window: usize,
    }

    struct ModelMember {
        name: MemberId,
        pid: u32,
        id: GroupId,
        region: Option<Own<Region>>,
        beats: u64,
    }

    impl Model {
        fn may(&self, uid: u32, id: GroupId, role: Role) -> bool {
            let group = self.groups.get(&id);
            uid == id.owner
                || uid == 0
                || group.is_some_and(|group| group.mode.permits_others(role))
        }

        /// The expected state after a sample.
        fn info(&self, id: GroupId) -> GroupInfo {
            let group = &self.groups[&id];
            let rate =
                |from: usize| match (group.samples[from], group.samples[group.samples.len() - 1]) {
                    ((from_ns, _), (to_ns, _)) if from_ns == to_ns => 0.0,
                    ((from_ns, from), (to_ns, to)) => {
                        (to - from) as f64 / ((to_ns - from_ns) / SECOND_NS) as f64
                    }
                };
            let members = || self.members.iter().filter(|member| member.id == id);
            let pids: BTreeSet<u32> =
                members().filter(|m| m.region.is_some()).map(|m| m.pid).collect();
            let status = Status {
                goal: group.goal,
                beats: group.past + members().map(|member| member.beats).sum::<u64>(),
                members: members().filter(|member| member.region.is_some()).count() as u32,
                samples: group.samples.len() as u64 - 1,
                global_rate: rate(0),
                window_rate: rate(group.samples.len() - 1 - group.window),
            };
            GroupInfo { id, mode: group.mode, pids: pids.into_iter().collect(), status }
        }

        fn run(&mut self, registry: &mut Registry, now_ns: &mut u64, step: Step) {
            let count = self.members.len();
            match step {
                Step::Join { uid, id, mode, beats } => {
                    let role = if beats { Role::Producer } else { Role::Consumer };
                    let region = beats.then(region);
                    region.iter().for_each(|region| {
                        assert_eq!(region.take(rustix::thread::gettid()).unwrap(), 0)
                    });
                    let joined = registry.join(
                        peer(uid),
                        id,
                        mode,
                        region.as_ref().map(AsFd::as_fd),
                        *now_ns,
                    );
                    let owns = uid == id.owner || uid == 0;
                    assert_eq!(joined.is_ok(), owns || mode.is_none() && self.may(uid, id, role));
                    let Ok((name, page)) = joined else { return };
                    let group = self.groups.entry(id).or_insert_with(|| ModelGroup {
                        mode: Mode::OWN,
                        goal: Goal::default(),
                        page,
                        past: 0,
                        samples: vec![(*now_ns, 0)],
                        window: 0,
                    });
                    group.mode = mode.unwrap_or(group.mode);
                    self.members.push(ModelMember {
                        name,
                        pid: peer(uid).pid,
                        id,
                        region,
                        beats: 0,
                    });
                }
                Step::Leave { member } if count > 0 => {
                    let ModelMember { name, id, beats, .. } =
                        self.members.swap_remove(member % count);
                    registry.leave(name);
                    registry.leave(name);
                    self.groups.get_mut(&id).unwrap().past += beats;
                    if self.members.iter().all(|member| member.id != id) {
                        self.groups.remove(&id);
                    }
                }
                Step::Beat { member, n } if count > 0 => {
                    let member = &mut self.members[member % count];
                    if let Some(region) = &member.region {
                        beat(region, 0, n);
                        member.beats += n;
                    }
                }
                Step::Leave { .. } | Step::Beat { .. } => {}
                Step::SetGoal { uid, id, window } => {
                    let goal = Goal { window, ..Goal::default() };
                    let done = registry.set_goal(peer(uid), id, goal).is_ok();
                    let may = self.groups.contains_key(&id) && self.may(uid, id, Role::Producer);
                    assert_eq!(done, may && window > 0);
                    if done {
                        self.groups.get_mut(&id).unwrap().goal = goal;
                    }
                }
                Step::Sample { after_ns } => {
                    *now_ns += after_ns;
                    registry.sample(*now_ns);
                    for id in self.groups.keys().copied().collect::<Vec<_>>() {
                        let beats = self.info(id).status.beats;
                        let group = self.groups.get_mut(&id).unwrap();
                        if group.samples[group.samples.len() - 1].0 < *now_ns {
                            group.samples.push((*now_ns, beats));
                            // The window begins at the first beats.
                            let more = if beats == 0 { 0 } else { group.window + 1 };
                            group.window = more.min(group.goal.window as usize);
                        }
                        assert_eq!(read(&self.groups[&id].page), self.info(id).status);
                    }
                    let expected: Vec<_> = self.groups.keys().map(|id| self.info(*id)).collect();
                    assert_eq!(registry.groups().collect::<Vec<_>>(), expected);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn registry_agrees_with_its_model(steps in proptest::collection::vec(step(), 0..80)) {
            let (mut registry, mut model, mut now_ns) = (Registry::new(), Model::default(), 0);
            for step in steps {
                model.run(&mut registry, &mut now_ns, step);
            }
            assert_eq!(registry.is_empty(), model.members.is_empty());
        }
    }
}
