//! State of a connection: identity and groups.

use corebeat_heartbeat::{GroupId, MemberId, Peer, Role};
use std::collections::{BTreeMap, BTreeSet};

/// A connection, without its socket.
#[derive(Debug)]
pub(crate) struct Session {
    /// Identity of the process.
    pub(crate) peer: Peer,
    /// Groups that the connection is attached to.
    pub(crate) seats: BTreeMap<(GroupId, Role), MemberId>,
    /// Whether the client receives changes of its claims.
    pub(crate) watches_claims: bool,
    /// Claims that the connection has requested CPUs for. Some may have ended.
    pub(crate) claims: BTreeSet<u64>,
    /// Whether the client has closed the connection, so that no answer is sent.
    pub(crate) has_left: bool,
}

impl Session {
    pub(crate) fn new(peer: Peer) -> Session {
        Session {
            peer,
            seats: BTreeMap::new(),
            watches_claims: false,
            claims: BTreeSet::new(),
            has_left: false,
        }
    }

    /// Whether the client receives changes of this claim of a process: of the claims of the
    /// connection, or of all if it has none.
    pub(crate) fn receives(&self, pid: u32, claim: u64) -> bool {
        let is_own = self.claims.is_empty() || self.claims.contains(&claim);
        self.watches_claims && self.peer.pid == pid && is_own
    }

    /// Whether the process emits heartbeats for a group.
    pub(crate) fn beats(&self) -> bool {
        self.seats.keys().any(|(_, role)| *role == Role::Producer)
    }
}
