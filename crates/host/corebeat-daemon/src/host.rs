//! Calls and their answers: groups and claims, without a socket and without a clock.

use crate::claim::ClaimTable;
use crate::limit::{
    BYTES_PER_CALL, CLAIMS_PER_CALL, GROUPS_PER_CALL, LIST_BYTES_MAX, SEATS_PER_CLIENT_MAX,
    STEERED_SHOWN_MAX,
};
use crate::session::Session;
use corebeat_heartbeat::{Error as Refused, GroupId, GroupInfo, Mode, Registry, Role};
use corebeat_machine::{ProgressSample, Topology};
use corebeat_wire::{Call, Frame, Refusal, host, service};
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

/// An answer: text and descriptors. An empty text is an answer that comes later.
type Answer = (Vec<u8>, Vec<OwnedFd>);

/// Result of a call.
#[derive(Debug)]
pub(crate) struct Handled {
    /// The answer; `None` for a call without one.
    pub(crate) answer: Option<Frame>,
    pub(crate) is_refused: bool,
    /// Cost of the call as a number of calls, at least 1.
    pub(crate) cost: u64,
}

/// Values of [`host::STATUS`] that the daemon supplies.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Circumstances {
    pub(crate) period_ns: u64,
    pub(crate) steering: bool,
    pub(crate) clients: u32,
    pub(crate) programs: u32,
}

/// Groups and claims.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) registry: Registry,
    pub(crate) arbiter: ClaimTable,
    pub(crate) circumstances: Circumstances,
    /// Steered programs, each with its user.
    pub(crate) steered: Vec<(u32, host::Steered)>,
    /// Limitations on this host.
    pub(crate) notes: Vec<String>,
}

impl Host {
    /// Creates a host without clients. Claims are on the CPUs of this topology.
    pub(crate) fn new(topology: Topology) -> Host {
        Host {
            registry: Registry::new(),
            arbiter: ClaimTable::new(topology),
            circumstances: Circumstances::default(),
            steered: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Handles a message.
    ///
    /// # Errors
    /// The message is not a call. The peer uses another protocol, so there is no answer.
    pub(crate) fn handle(
        &mut self,
        session: &mut Session,
        asked: &Frame,
        now_ns: u64,
    ) -> Result<Handled, corebeat_wire::Error> {
        let mut call = Call::read(&asked.text)?;
        // A client that has closed the connection was informed that the call failed.
        if session.has_left && !call.oneway {
            return Ok(Handled { answer: None, is_refused: true, cost: 1 });
        }
        let answer = self.answer(session, &mut call, &asked.fds, now_ns);
        let is_refused = answer.is_err();
        let (text, fds) = match answer {
            Ok(answer) => answer,
            Err(refusal) => (corebeat_wire::refuse(&refusal)?, vec![]),
        };
        let cost =
            1 + (asked.text.len() + text.len()) / BYTES_PER_CALL + self.list_cost(&call.method);
        let answer =
            Some(Frame { text, fds }).filter(|answer| !call.oneway && !answer.text.is_empty());
        Ok(Handled { answer, is_refused, cost: cost as u64 })
    }

    /// Additional cost of a call that processes all elements of a list.
    fn list_cost(&self, method: &str) -> usize {
        match method {
            host::LIST_GROUPS => self.registry.group_count() / GROUPS_PER_CALL,
            host::INVADE | host::RETREAT => self.arbiter.count() / CLAIMS_PER_CALL,
            _ => 0,
        }
    }

    /// Removes a connection from its groups, and ends the claims that no other connection of the
    /// process has requested CPUs for. The last connection of a process ends all claims of the
    /// process. `others` are the other connections of the daemon.
    pub(crate) fn leave<'a>(
        &mut self,
        session: &mut Session,
        others: impl IntoIterator<Item = &'a Session>,
        now_ns: u64,
    ) {
        std::mem::take(&mut session.seats)
            .into_values()
            .for_each(|member| self.registry.leave(member));
        let pid = session.peer.pid;
        let rest: Vec<_> = others.into_iter().filter(|other| other.peer.pid == pid).collect();
        if rest.is_empty() {
            return self.arbiter.forget(pid, now_ns);
        }
        // The client may have failed to end a claim: the daemon refuses calls beyond the limits.
        for claim in std::mem::take(&mut session.claims) {
            if !rest.iter().any(|other| other.claims.contains(&claim)) {
                let all = host::Retreat { claim, to: None, cpus: None };
                // A claim that has ended is refused.
                let _ = self.arbiter.retreat(session.peer, all, now_ns);
            }
        }
    }

    fn answer(
        &mut self,
        session: &mut Session,
        call: &mut Call,
        fds: &[OwnedFd],
        now_ns: u64,
    ) -> Result<Answer, Refusal> {
        if call.upgrade {
            return Err(Refusal::MethodNotImplemented { method: call.method.clone() });
        }
        let method = call.method.clone();
        match method.as_str() {
            service::GET_INFO => call.parameters::<host::Nothing>().and_then(|_| plain(&info())),
            service::GET_INTERFACE_DESCRIPTION => {
                describe(&call.parameters::<service::Asked>()?.interface)
            }
            host::ATTACH => self.attach(session, call.parameters()?, fds, now_ns),
            host::DETACH => self.detach(session, call.parameters()?),
            host::SET_GOAL => self.set_goal(session, call.parameters()?),
            host::LIST_GROUPS => self.list_groups(session, call.parameters()?),
            host::INVADE => self.invade(session, call.parameters()?, now_ns),
            host::RETREAT => {
                let asked = call.parameters()?;
                self.arbiter
                    .retreat(session.peer, asked, now_ns)
                    .and_then(|retreated| plain(&retreated))
            }
            host::WATCH_CLAIMS => self.watch_claims(session, call),
            host::LIST_CLAIMS => call.parameters::<host::Nothing>().and_then(|_| {
                let everybodys = session.peer.uid == 0;
                plain(&self.arbiter.list((!everybodys).then_some(session.peer.pid)))
            }),
            host::STATUS => call
                .parameters::<host::Nothing>()
                .and_then(|_| plain(&self.status(session.peer.uid))),
            _ => Err(unknown(method)),
        }
    }

    fn attach(
        &mut self,
        session: &mut Session,
        asked: host::Attach,
        fds: &[OwnedFd],
        now_ns: u64,
    ) -> Result<Answer, Refusal> {
        let id = group_id(session, asked.owner, asked.group);
        let key = (id, asked.role);
        if session.seats.contains_key(&key) {
            return Err(bad(format!("this connection is attached to {id} already; detach first")));
        }
        if session.seats.len() >= SEATS_PER_CLIENT_MAX {
            return Err(Refusal::TooMany {
                what: "groups of one connection".into(),
                limit: SEATS_PER_CLIENT_MAX as u64,
            });
        }
        let region = match (asked.role, fds) {
            (host::Role::Producer, [region]) => Some(region.as_fd()),
            (host::Role::Producer, _) => {
                return Err(bad("a producer sends one descriptor: that of its region"));
            }
            (host::Role::Consumer, []) => None,
            (host::Role::Consumer, _) => return Err(bad("a consumer sends no descriptor")),
        };
        let mode = asked.mode.map(Mode::from_bits).transpose().map_err(refusal)?;
        let joined = self.registry.join(session.peer, id, mode, region, now_ns);
        let (member, page) = joined.map_err(refusal)?;
        session.seats.insert(key, member);
        let (text, _) = plain(&host::Attached { period_ns: self.circumstances.period_ns })?;
        Ok((text, vec![page]))
    }

    fn detach(&mut self, session: &mut Session, asked: host::Detach) -> Result<Answer, Refusal> {
        let id = group_id(session, asked.owner, asked.group);
        let member = session.seats.remove(&(id, asked.role));
        let member = member.ok_or_else(|| Refusal::NoSuchGroup {
            why: format!("this connection is not attached to {id}; attach first"),
        })?;
        self.registry.leave(member);
        plain(&host::Nothing {})
    }

    fn set_goal(&mut self, session: &mut Session, asked: host::SetGoal) -> Result<Answer, Refusal> {
        let id = group_id(session, asked.owner, asked.group);
        self.registry.set_goal(session.peer, id, asked.goal.into()).map_err(refusal)?;
        plain(&host::Nothing {})
    }

    fn invade(
        &mut self,
        session: &mut Session,
        asked: host::Invade,
        now_ns: u64,
    ) -> Result<Answer, Refusal> {
        let invaded = self.arbiter.invade(session.peer, asked, now_ns)?;
        // Without those that have ended, the set is as small as the number of claims of a process.
        session.claims.retain(|claim| self.arbiter.exists(*claim));
        session.claims.insert(invaded.claim);
        plain(&invaded)
    }

    fn list_groups(&self, session: &Session, asked: host::ListGroups) -> Result<Answer, Refusal> {
        let uid = session.peer.uid;
        let after = asked.after.map(|after| GroupId { owner: after.owner, number: after.group });
        let may_see =
            |g: &GroupInfo| uid == 0 || uid == g.id.owner || g.mode.permits_others(Role::Consumer);
        let mut listed = host::Groups { groups: Vec::new(), next: None };
        let mut bytes = 0;
        for group in
            self.registry.groups().filter(|g| after.is_none_or(|after| g.id > after) && may_see(g))
        {
            let group = wire_group(&group);
            // Slightly more than the text of the group within a list.
            bytes += plain(&group)?.0.len();
            if let Some(last) = listed.groups.last().filter(|_| bytes > LIST_BYTES_MAX) {
                listed.next = Some(host::GroupId { owner: last.owner, group: last.group });
                break;
            }
            listed.groups.push(group);
        }
        plain(&listed)
    }

    /// The answers follow with the changes of claims.
    fn watch_claims(&self, session: &mut Session, call: &mut Call) -> Result<Answer, Refusal> {
        call.parameters::<host::Nothing>()?;
        if !call.more {
            return Err(Refusal::ExpectedMore {});
        }
        session.watches_claims = true;
        let begun = host::ClaimChange { claim: 0, cpus: vec![], deadline_ms: None };
        written(&begun, true)
    }

    fn status(&self, uid: u32) -> host::Status {
        let Circumstances { period_ns, steering, clients, programs } = self.circumstances;
        host::Status {
            version: env!("CARGO_PKG_VERSION").into(),
            period_ns,
            steering,
            clients,
            programs,
            groups: self.registry.group_count() as u32,
            claims: self.arbiter.count() as u32,
            steered: self.steered_of(uid),
            notes: self.notes.clone(),
        }
    }

    /// The steered programs of a user; for root, those of all users.
    fn steered_of(&self, uid: u32) -> Vec<host::Steered> {
        let is_listed = |owner: u32| uid == 0 || uid == owner;
        let steered = self.steered.iter().filter(|(owner, _)| is_listed(*owner));
        steered.take(STEERED_SHOWN_MAX).map(|(_, steered)| steered.clone()).collect()
    }

    /// Progress by process, from the first group with a goal that the process emits heartbeats for.
    /// A process without a goal is not steered.
    pub(crate) fn progress(&self) -> BTreeMap<i32, ProgressSample> {
        let mut by_process: BTreeMap<i32, ProgressSample> = BTreeMap::new();
        let has_goal =
            |g: &GroupInfo| g.status.goal.rate_min.is_some() || g.status.goal.rate_max.is_some();
        for group in self.registry.groups().filter(has_goal) {
            let goal = group.status.goal;
            let progress = ProgressSample {
                rate: group.status.window_rate,
                window_ns: self.circumstances.period_ns.saturating_mul(goal.window.into()),
                rate_min: goal.rate_min,
                rate_max: goal.rate_max,
                hold: goal.hold,
                beats: group.status.beats,
            };
            for pid in group.pids.iter().filter_map(|pid| i32::try_from(*pid).ok()) {
                by_process.entry(pid).or_insert(progress);
            }
        }
        by_process
    }
}

fn info() -> service::Info {
    service::Info {
        vendor: "Corebeat".into(),
        product: "corebeat daemon".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        url: env!("CARGO_PKG_REPOSITORY").into(),
        interfaces: vec![service::INTERFACE.into(), host::INTERFACE.into()],
    }
}

fn describe(interface: &str) -> Result<Answer, Refusal> {
    let description = match interface {
        service::INTERFACE => service::DESCRIPTION,
        host::INTERFACE => host::DESCRIPTION,
        _ => return Err(Refusal::InterfaceNotFound { interface: interface.into() }),
    };
    plain(&service::Described { description: description.into() })
}

fn unknown(method: String) -> Refusal {
    match method.rsplit_once('.') {
        Some((service::INTERFACE | host::INTERFACE, _)) => Refusal::MethodNotFound { method },
        Some((interface, _)) => Refusal::InterfaceNotFound { interface: interface.into() },
        None => Refusal::InterfaceNotFound { interface: method },
    }
}

fn group_id(session: &Session, owner: Option<u32>, number: u32) -> GroupId {
    GroupId { owner: owner.unwrap_or(session.peer.uid), number }
}

fn wire_group(group: &GroupInfo) -> host::Group {
    host::Group {
        owner: group.id.owner,
        group: group.id.number,
        mode: group.mode.bits(),
        members: group.status.members,
        beats: group.status.beats,
        global_rate: group.status.global_rate,
        window_rate: group.status.window_rate,
        goal: group.status.goal.into(),
        pids: group.pids.iter().filter_map(|pid| i32::try_from(*pid).ok()).collect(),
    }
}

fn bad(why: impl Into<String>) -> Refusal {
    Refusal::BadRequest { why: why.into() }
}

fn refusal(refused: Refused) -> Refusal {
    let why = refused.to_string();
    match refused {
        Refused::NotAllowed(_) => Refusal::NotAllowed { why },
        Refused::NoSuchGroup(_) => Refusal::NoSuchGroup { why },
        Refused::TooMany { what, limit } => {
            Refusal::TooMany { what: what.into(), limit: limit as u64 }
        }
        _ => Refusal::BadRequest { why },
    }
}

/// Text of an answer without descriptors.
fn plain<R: Serialize>(parameters: &R) -> Result<Answer, Refusal> {
    written(parameters, false)
}

fn written<R: Serialize>(parameters: &R, continues: bool) -> Result<Answer, Refusal> {
    let text = corebeat_wire::answer(parameters, continues);
    text.map(|text| (text, vec![])).map_err(|e| bad(format!("the answer cannot be written: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_heartbeat::Peer;

    #[test]
    fn groups_beyond_one_answer_come_with_the_next_ones() {
        let mut host = Host::new(Topology::flat(1));
        for uid in 1..=5 {
            for number in 0..100 {
                let (peer, id) = (Peer { uid, pid: uid }, GroupId { owner: uid, number });
                host.registry.join(peer, id, None, None, 0).unwrap();
            }
        }
        let session = Session::new(Peer { uid: 0, pid: 9 });
        let (mut found, mut asked, mut answers) = (Vec::new(), host::ListGroups::default(), 0);
        loop {
            let (text, _) = host.list_groups(&session, asked).unwrap();
            assert!(text.len() <= corebeat_wire::MESSAGE_BYTES_MAX);
            let mut answer: serde_json::Value = serde_json::from_slice(&text).unwrap();
            let listed: host::Groups = serde_json::from_value(answer["parameters"].take()).unwrap();
            found.extend(listed.groups.iter().map(|g| (g.owner, g.group)));
            answers += 1;
            asked.after = listed.next;
            if listed.next.is_none() {
                break;
            }
        }
        assert!(answers > 1, "all groups fit into one answer: the test is too small");
        let all: Vec<_> =
            (1..=5).flat_map(|uid| (0..100).map(move |number| (uid, number))).collect();
        assert_eq!(found, all);
    }

    #[test]
    fn call_of_a_closed_connection_is_not_carried_out() {
        let mut host = Host::new(Topology::flat(1));
        let mut session = Session::new(Peer { uid: 1, pid: 1 });
        let invade = |oneway: bool| {
            let parameters = serde_json::json!({ "min": 1, "max": 1 });
            let call = serde_json::json!({ "method": host::INVADE, "parameters": parameters, "oneway": oneway });
            Frame { text: call.to_string().into_bytes(), fds: vec![] }
        };
        session.has_left = true;
        let handled = host.handle(&mut session, &invade(false), 0).unwrap();
        assert!(handled.answer.is_none() && handled.is_refused && host.arbiter.count() == 0);
        // A one-way call has no answer.
        host.handle(&mut session, &invade(true), 0).unwrap();
        assert_eq!(host.arbiter.count(), 1);
    }

    #[test]
    fn closed_connection_ends_the_claims_that_no_other_one_holds() {
        let mut host = Host::new(Topology::flat(4));
        let mut invade = |session: &mut Session, claim: Option<u64>| {
            let asked =
                host::Invade { claim, min: 1, max: 1, numa: None, within: None, prefer: None };
            host.invade(session, asked, 0).unwrap();
            session.claims.last().copied()
        };
        let mut sessions = [1, 1, 2].map(|pid| Session::new(Peer { uid: 1, pid }));
        let [first, second, other] = &mut sessions;
        invade(first, None);
        let shared = invade(first, None);
        invade(second, shared);
        invade(other, None);
        host.leave(first, [&*second, other], 0);
        let claims = |host: &Host, pid| host.arbiter.list(Some(pid)).claims.len();
        assert_eq!((claims(&host, 1), claims(&host, 2)), (1, 1));
        host.leave(second, [&*other], 0);
        assert_eq!((claims(&host, 1), claims(&host, 2)), (0, 1));
    }

    #[test]
    fn call_costs_by_its_text_and_by_the_length_of_lists() {
        let mut host = Host::new(Topology::flat(1));
        let mut session = Session::new(Peer { uid: 1, pid: 1 });
        let mut cost = |host: &mut Host, method: &str| {
            let text = serde_json::json!({ "method": method }).to_string().into_bytes();
            host.handle(&mut session, &Frame { text, fds: vec![] }, 0).unwrap().cost
        };
        assert_eq!((cost(&mut host, host::STATUS), cost(&mut host, host::LIST_GROUPS)), (1, 1));
        for uid in [1, 2, 3] {
            for number in 0..100 {
                let (peer, id) = (Peer { uid, pid: uid }, GroupId { owner: uid, number });
                host.registry.join(peer, id, None, None, 0).unwrap();
            }
        }
        let kib = (cost(&mut host, host::STATUS), cost(&mut host, host::LIST_GROUPS));
        // A group takes some 200 bytes.
        assert!(kib.0 == 1 && (15..30).contains(&kib.1), "{kib:?}");
    }
}
