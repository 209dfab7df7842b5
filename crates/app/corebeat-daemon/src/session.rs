//! What the host knows of a connection: who it is, and what it takes part in.

use corebeat_heartbeat::{GroupId, MemberId, Peer, Role};
use std::collections::BTreeMap;

/// A connection, from the host's side.
#[derive(Debug)]
pub(crate) struct Session {
    /// Whose it is.
    pub(crate) peer: Peer,
    /// The groups that it takes part in.
    pub(crate) seats: BTreeMap<(GroupId, Role), MemberId>,
    /// It wants to be told of its claims.
    pub(crate) watches_claims: bool,
    /// It has hung up: nobody waits for answers any more.
    pub(crate) has_left: bool,
}

impl Session {
    pub(crate) fn new(peer: Peer) -> Session {
        Session { peer, seats: BTreeMap::new(), watches_claims: false, has_left: false }
    }

    /// Whether it beats for a group.
    pub(crate) fn beats(&self) -> bool {
        self.seats.keys().any(|(_, role)| *role == Role::Producer)
    }
}
